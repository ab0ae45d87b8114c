"""From the RUN arguments of a command to opened runs.

An argument has a label, and names reports, which worker processes read, or a saved run.
"""

from __future__ import annotations

import contextlib
import glob
import os
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import typer

from nsyspipe.cli.options import (
    WORK_OPTIONS,
    OneRunOptions,
    ReadingOptions,
    RunningOptions,
    SeveralRunsOptions,
    check_name,
)
from nsyspipe.cli.outputs import Stage, progress
from nsyspipe.errors import (
    NsyspipeError,
    OptionError,
    ReportNotFoundError,
    nearest_name,
    short_repr,
)
from nsyspipe.model.names import listed, place_as_given
from nsyspipe.model.user_paths import ReportFile, UserPath
from nsyspipe.model.work import AskedWork
from nsyspipe.nsys.find_reports import (
    RAW_SUFFIXES,
    display_names,
    exported_reports,
    find_logs,
    find_named,
    label_of,
    named_reports,
    split_logs,
    words_of_runs,
)
from nsyspipe.store.choice import find_saved, labels_by_time, runs_by_label
from nsyspipe.store.layout import is_one_run, is_saved, place_of
from nsyspipe.suggestions import argument_of

if TYPE_CHECKING:
    from nsyspipe.run.ranks import ChosenRanks
    from nsyspipe.run.run import Run

# What an argument may be, for help.
ONE_RUN = (
    "One run: its nsys reports (.sqlite, or .nsys-rep if nsys is installed), a directory, or a "
    "glob. Or a saved run: STORE, "
    "STORE:ID, or STORE:LABEL (the latest run of that label). LABEL= in front sets the label."
)
# Of each side, its captures.
Opened = list[tuple["Run", ...]]


def reports_to_read(
    arguments: Sequence[str], reading: ReadingOptions, *, jobs: int | None, stage: Stage
) -> tuple[list[ReportFile], ChosenRanks | None]:
    """Return the exports of the reports that are read, and the ranks that the user chose.

    The ranks are None if the user chose none. Then the reports of all ranks are read.
    """
    try:
        reports = named_reports(arguments)
    except ReportNotFoundError as error:
        # The fix is the first saved run that an argument may mean.
        fixes = filter(None, map(_meant_run, arguments))
        fix = next(fixes, None)
        if fix is None:
            raise
        subject = error.subject
        problem = error.problem
        raise ReportNotFoundError(subject, problem, found=error.found, fix=fix) from error
    chosen = None
    if reading.ranks is not None:
        from nsyspipe.run.ranks import choose_ranks

        chosen = choose_ranks(reading.ranks, reports, reading.rank_map)
        reports = [*chosen.reports]
    on_progress = None
    has_raw_report = any(report.path.suffix in RAW_SUFFIXES for report in reports)
    if has_raw_report:
        on_progress = stage("exporting reports")
    exports = exported_reports(reports, jobs=jobs, on_progress=on_progress)
    return exports, chosen


def _meant_run(place: str) -> str | None:
    """Return the saved run that a missing path may mean, quoted for a shell; None without one.

    The path may be ``stor:NAME``, with a misspelt store, or ``STORE/NAME``. `NAME` is a run ID or a
    label.
    """
    if os.path.lexists(place) or glob.has_magic(place):
        return None
    before_colon, colon, after_colon = place.rpartition(":")
    # Without a store that can be read, no run is meant.
    with contextlib.suppress(OSError, NsyspipeError):
        if colon:
            given_store = Path(before_colon)
            store_name = nearest_name(given_store.name, _names_of_stores(given_store.parent))
            store = given_store.with_name(store_name or given_store.name)
            name = after_colon
        else:
            store = Path(place).parent
            name = Path(place).name
        label_of_run_id = labels_by_time(store)
        names = {*label_of_run_id, *label_of_run_id.values()}
        if name and name in names:
            return argument_of(store, name)
    return None


def _names_of_stores(directory: Path) -> list[str]:
    """Return the names of the run stores in a directory."""
    directories = [path for path in directory.iterdir() if path.is_dir()]
    return [path.name for path in directories if is_saved(path)]


@contextlib.contextmanager
def opened_run(
    arguments: Sequence[str], reading: OneRunOptions, running: RunningOptions
) -> Iterator[tuple[Run, Stage]]:
    """Yield the run that all arguments name together, and the function that starts a progress bar.

    The processes that read the reports end with the context.
    """
    reading.check_logs()
    labelled_places = map(split_label, arguments)
    # The label of each argument, or None, and its place: a path, a glob, or a saved run.
    labels, places = zip(*labelled_places, strict=True)
    options = reading.chosen("label", "run_id", "topology", *WORK_OPTIONS)
    options["label"] = _label_of_run(arguments, labels, options["label"])
    with progress(shown=running.is_shown) as stage, contextlib.ExitStack() as processes:
        has_saved_run = any(map(is_saved, map(Path, places)))
        if not has_saved_run:
            reports, logs = split_logs(places, reading.nccl_log)
            options["nccl_log"] = find_logs(logs)
            paths, ranks = reports_to_read(reports, reading, jobs=running.jobs, stage=stage)
            options["reports"] = paths
            options["ranks"] = ranks
            executor = running.executor(paths)
            options["executor"] = processes.enter_context(executor)
            options["on_progress"] = stage("reading reports")
        else:
            options["nccl_log"] = reading.nccl_log or []
            # `load` opens a saved run, and refuses several.
            options["reports"] = places
            if labels[0] and len(places) == 1:
                # The run gets the label of the argument, whatever label it was saved with.
                store, run_id = find_saved(Path(places[0]), reading.run_id)
                options["reports"] = place_of(store, run_id)
        # Heavy, so it is imported while the workers do the same.
        from nsyspipe.api import load

        yield load(**options), stage


def _label_of_run(
    arguments: Sequence[str], labels: Sequence[str | None], label_option: str | None
) -> str | None:
    """Return the label of the one run that arguments name, by LABEL= or by --label.

    `labels` has the label of each argument, None without LABEL=. Raise an OptionError if they
    differ, or if they differ from --label.
    """
    if len({*labels}) > 1:
        command = shlex.join(arguments)
        problem = "names several runs, but this command needs one"
        raise OptionError(command, problem, fix=shlex.quote(arguments[0]))
    label = labels[0]
    if label is not None and label_option is not None and label_option != label:
        option = f"--label {shlex.quote(label_option)}"
        problem = f"differs from the label of {arguments[0]}"
        fix = f"leave out one of them: {option}, or {label}="
        raise OptionError(f"--label {label_option}", problem, fix=fix)
    return label_option or label


def store_of(arguments: Sequence[str]) -> Path:
    """Return the path of a run store, which must be the only argument.

    Raise an OptionError for one run of a store, and for several arguments. The fix is the store of
    the first argument.
    """
    first = Path(arguments[0])
    store = first
    is_run_of_store = is_one_run(first)
    if is_run_of_store:
        store, _run_id = find_saved(first)
    if is_run_of_store or len(arguments) > 1:
        shown = shlex.quote(place_as_given(store, first))
        raise OptionError(shlex.join(arguments), "is not one run store", fix=shown)
    return store


@dataclass(frozen=True)
class NamedRuns:
    """What a user names as one thing to look at: one capture, or several under one label."""

    # What stands before ``=``; None if the runs have their own labels.
    label: str | None
    # One argument per capture: a glob, a directory, a report, or a saved run.
    places: tuple[str, ...]


def parse_runs(
    arguments: Sequence[str], *, is_any_number: bool = False, start: str = ""
) -> list[NamedRuns]:
    """Group RUN arguments by their labels, in the order of their first arguments.

    A path that exists, or a glob that matches, is never read as ``LABEL=...``. A label has no path
    separator. A glob that matches only saved runs stands for each of these runs. If the command
    takes any number of runs, a store stands for each of its runs.

    Raise an OptionError if arguments are ranks of one run, as they are if the shell has expanded a
    glob without quotes. `start` is the start of the command in the fix.
    """
    # Arguments of one label share a group, whose key is the label. Any other run is a group of its
    # own, whose key is the number of the argument and the place of the run.
    groups: dict[str | tuple[int, str], list[str]] = {}
    places_without_label = []
    for number, argument in enumerate(arguments):
        label, place = split_label(argument)
        if label is None:
            places_without_label.append(place)
        saved_runs = _saved_runs(place, is_any_number=is_any_number)
        for place_of_run in saved_runs or [place]:
            key = (number, place_of_run) if label is None else label
            places = groups.setdefault(key, [])
            places.append(place_of_run)
    reports_of_runs = words_of_runs(places_without_label).values()
    if any(len(reports) > 1 for reports in reports_of_runs):
        from nsyspipe.run.ranks import check_several_runs

        check_several_runs(places_without_label, start)
    named_runs = []
    for key, places in groups.items():
        label = key if isinstance(key, str) else None
        named_runs.append(NamedRuns(label, tuple(places)))
    return named_runs


def labelled_runs(label: str, place: str, *candidates: str) -> list[NamedRuns]:
    """Return two sides: all runs of a label in a store, and the runs to compare with them.

    `place` is the store. A candidate is a RUN argument, or another label of the store. Without
    candidates, the second side is the only other label of the store.
    """
    # One side, or both if the candidate is a label, too.
    compared_runs = runs_by_label(place, label, candidates)
    sides = []
    for name, (places, incomplete_run_ids) in compared_runs.items():
        sides.append(NamedRuns(name, tuple(places)))
        if incomplete_run_ids:
            store = place.rstrip("/")
            left_out = [f"{store}:{run_id}" for run_id in incomplete_run_ids]
            words = listed(left_out, 4)
            typer.echo(f"Left out, as {name} has runs of all ranks: {words}.", err=True)
    are_both_labels = len(sides) > 1
    if are_both_labels:
        return sides
    command = shlex.join(["nsyspipe", "diff", "--against", label, place])
    further_sides = parse_runs(candidates, start=f"{command} ")
    return sides + further_sides


def refuse_saved_runs(arguments: Sequence[str], takes: str = "reports") -> None:
    """Raise an OptionError if an argument is a store or a saved run instead of reports.

    `takes` says what the command needs. If a run is missing in its store, the error says so.
    """
    for place in map(Path, arguments):
        if not is_saved(place):
            continue
        what = "a run store"
        fix = "pass the original reports"
        if is_one_run(place):
            # This raises the error for a run that is missing.
            find_saved(place)
            what = "a saved run"
            quoted = shlex.quote(str(place))
            fix = f"nsyspipe analyze {quoted} shows its problems, or pass its reports"
        problem = f"is {what}, but this command needs {takes}"
        raise OptionError(str(place), problem, fix=fix)


def split_label(argument: str) -> tuple[str | None, str]:
    """Split ``LABEL=PLACE`` into label and place. The label is None if there is none.

    An argument that is a path, or a glob that matches, has no label, even if it contains ``=``.
    """
    label, equals, place = argument.partition("=")
    # The whole argument may be a path or a glob, also an absolute one, which pathlib cannot match.
    # The path is checked first, because glob fails with names that are too long.
    is_glob = glob.has_magic(argument)
    if os.path.lexists(argument) or (is_glob and glob.glob(argument)):  # noqa: PTH207
        return None, argument
    if not equals or os.sep in label:
        return None, argument
    check_name("label ", label, "LABEL=PATH, or ./PATH for a path with = in it")
    if not place:
        raise OptionError(repr(argument), "has a label but no reports", fix=f"{label}=PATH")
    return label, place


def _saved_runs(place: str, *, is_any_number: bool) -> list[str]:
    """Return the saved runs that one place stands for, if it does not stand for itself alone.

    A glob stands for its matches if all are saved runs. A store with several runs stands for these
    if the command takes any number of runs. The result is empty for any other place.
    """
    if is_any_number:
        run_ids = [*labels_by_time(Path(place))]
        if len(run_ids) > 1:
            return [place_of(place, run_id) for run_id in run_ids]
    # An existing path may look like a glob.
    is_glob = glob.has_magic(place) and not os.path.lexists(place)
    if not is_glob:
        return []
    # The glob may be absolute, which pathlib cannot match.
    places = sorted(glob.glob(place))  # noqa: PTH207
    are_all_saved = all(map(is_saved, map(Path, places)))
    return places if are_all_saved else []


def names_in(place: str) -> tuple[list[str], list[str]]:
    """Return the runs of a directory, glob or store as RUN arguments, and the labels of a store.

    The runs of a directory or a glob are told apart by the names of their reports. They have no
    labels.
    """
    if not is_saved(Path(place)):
        reports_by_argument = words_of_runs(find_named([place]))
        return [*reports_by_argument], []
    store = Path(place)
    label_of_run_id = labels_by_time(store)
    distinct_labels = [*dict.fromkeys(label_of_run_id.values())]
    run_arguments = [argument_of(store, run_id) for run_id in label_of_run_id]
    return run_arguments, distinct_labels


@contextlib.contextmanager
def opened_runs(
    named: Sequence[NamedRuns], reading: SeveralRunsOptions, running: RunningOptions
) -> Iterator[Opened]:
    """Yield the captures of each run, in order of `named`. They are read one after the other.

    The processes that read the reports end with the context.
    """
    reading.check_logs()
    saved = _find_saved_places(named)
    captures_to_read = [(run, place) for run in named for place in run.places if place not in saved]
    if not captures_to_read:
        reading.refuse_given("all runs are saved and already analyzed", "analyze the reports again")
    about_runs = _options_by_label(named, reading, saved)
    with progress(shown=running.is_shown) as stage, contextlib.ExitStack() as processes:
        reports = {}
        for run, place in captures_to_read:
            exports_and_ranks = reports_to_read([place], reading, jobs=running.jobs, stage=stage)
            reports[run, place] = exports_and_ranks
        executor = None
        if reports:
            paths_of_captures = (paths for paths, _ in reports.values())
            paths = [*chain.from_iterable(paths_of_captures)]
            executor = processes.enter_context(running.executor(paths))
        options = reading.chosen() | {"executor": executor}
        opener = _RunOpener(
            saved=saved, reports=reports, about_runs=about_runs, options=options, stage=stage
        )
        yield [opener.open_captures(run) for run in named]


def _find_saved_places(named: Sequence[NamedRuns]) -> dict[str, tuple[Path, str]]:
    """Return store and run ID of each place that is a saved run. Other places are left out."""
    saved = {}
    for place in chain.from_iterable(run.places for run in named):
        path = Path(place)
        if is_saved(path):
            saved[place] = find_saved(path)
    return saved


# The label by which options name each run. Several runs may have the same label.
_Labels: TypeAlias = Sequence[tuple[NamedRuns, str]]


def _label_runs(
    named: Sequence[NamedRuns],
    reading: SeveralRunsOptions,
    saved: Mapping[str, tuple[Path, str]],
) -> _Labels:
    """Return each run with the label by which options can name the run.

    That is the label of its argument, or else of its store or its file names. These take time to
    find. So if no option has a label, a run without one in its argument has ``""``.
    """
    are_labels_needed = _has_option_with_label(reading)
    labels = []
    for run in named:
        if run.label:
            label = run.label
        elif are_labels_needed:
            label = _label_of_place(run.places[0], saved)
        else:
            label = ""
        labels.append((run, label))
    return labels


def _has_option_with_label(reading: SeveralRunsOptions) -> bool:
    """Tell whether the value of any option may be ``LABEL=VALUE``, with the label of a run."""
    values: list[str] = [*(reading.nccl_log or ()), *(reading.topology or ())]
    for name in WORK_OPTIONS:
        values += getattr(reading, name) or ()
    return any("=" in value for value in values)


def _label_of_place(place: str, saved: Mapping[str, tuple[Path, str]]) -> str:
    """Return the label of a saved run, or what the names of reports have in common."""
    if place in saved:
        store, run_id = saved[place]
        return labels_by_time(store).get(run_id, run_id)
    reports = [ReportFile.of(path) for path in find_named([place])]
    return label_of(display_names(reports))


class _OptionsByLabel(NamedTuple):
    """What options say about runs, by the label of the run. None for what is about all runs."""

    logs: Mapping[str | None, Sequence[Path]]
    topologies: Mapping[str | None, Sequence[str]]
    # Arguments of `load` about the work of a step.
    works: Mapping[str | None, Mapping[str, str]]
    labels: _Labels


def _options_by_label(
    named: Sequence[NamedRuns],
    reading: SeveralRunsOptions,
    saved: Mapping[str, tuple[Path, str]],
) -> _OptionsByLabel:
    """Return what the options say about runs. Raise an OptionError if they name no run of these."""
    labels = _label_runs(named, reading, saved)
    log_arguments = _by_label(reading.nccl_log or [], labels)
    topologies = _by_label(reading.topology or [], labels)
    works = _works_by_label(labels, reading, saved)
    arguments_of_labels = log_arguments.items()
    logs = {label: find_logs(arguments) for label, arguments in arguments_of_labels}
    return _OptionsByLabel(logs, topologies, works, labels)


@dataclass(frozen=True)
class _RunOpener:
    """Opens runs one after the other, saved ones or from reports, each with its own bar."""

    # Store and ID of each place that is a saved run.
    saved: Mapping[str, tuple[Path, str]]
    # Exports and ranks of each capture that is read.
    reports: Mapping[tuple[NamedRuns, str], tuple[list[ReportFile], ChosenRanks | None]]
    about_runs: _OptionsByLabel
    # Arguments of `load` for all runs.
    options: Mapping[str, Any]
    stage: Stage

    def open_captures(self, run: NamedRuns) -> tuple[Run, ...]:
        """Return the captures of a run."""
        captures = [self._open(run, place) for place in run.places]
        return tuple(captures)

    def _open(self, named: NamedRuns, place: str) -> Run:
        """Return one capture of a run, with its steps read if it comes from reports."""
        # Imported when they are used, because reports need large packages, and workers import these
        # at the same time.
        if place in self.saved:
            from nsyspipe.store.saved_run import SavedRun

            store, run_id = self.saved[place]
            return SavedRun(UserPath.of(store), run_id, named.label)
        from nsyspipe.api import load

        paths, ranks = self.reports[named, place]
        about_runs = self.about_runs
        # The label by which options name the run. The run itself may have no label.
        label = dict(about_runs.labels)[named]
        options = dict(self.options)
        # What is about all runs has label None. What is about this run comes later and replaces it.
        options |= about_runs.works.get(None, {})
        options |= about_runs.works.get(label, {})
        options["ranks"] = ranks
        options["label"] = named.label
        options["nccl_log"] = [*about_runs.logs.get(None, []), *about_runs.logs.get(label, [])]
        topologies_of_run = about_runs.topologies.get(label, [])
        topologies_of_all = about_runs.topologies.get(None, [])
        # The first one is used, if there is any.
        options["topology"] = next(iter([*topologies_of_run, *topologies_of_all]), None)
        name = named.label or place
        options["on_progress"] = self.stage(f"reading {name}")
        run = load(paths, **options)
        # The steps are read now, so that runs are read one after the other.
        _ = run.steps()
        return run


def _by_label(files: Sequence[str], labels: _Labels) -> dict[str | None, list[str]]:
    """Return the files of ``LABEL=FILE`` arguments, by label. Files without a label have key None.

    Raise an OptionError if a label is not that of exactly one run.
    """
    files_by_label: dict[str | None, list[str]] = {}
    for file in files:
        label, place = split_label(file)
        _check_label(label, labels, repr(file), fix="LABEL=RUN and LABEL=FILE")
        files_by_label.setdefault(label, []).append(place)
    return files_by_label


def _check_label(label: str | None, labels: _Labels, subject: str, *, fix: str) -> None:
    """Raise an OptionError if the label of an option is not that of exactly one run.

    None, which is about all runs, is fine. `subject` is the option with its value.
    """
    if label is None:
        return
    labels_of_runs = [label_of_run for _, label_of_run in labels]
    n_runs = labels_of_runs.count(label)
    if n_runs == 1:
        return
    problem = "does not start with the label of a run"
    if n_runs:
        problem = f"starts with the label of {n_runs} runs"
    distinct_labels = dict.fromkeys(labels_of_runs)
    raise OptionError(subject, problem, found=", ".join(distinct_labels), fix=fix)


def _works_by_label(
    labels: _Labels, reading: SeveralRunsOptions, saved: Collection[str]
) -> dict[str | None, dict[str, str]]:
    """Return the values of `WORK_OPTIONS`, by the label of the run and by option.

    None is the label of what holds for all runs. Wrong values are refused before reports are read.
    """
    works: dict[str | None, dict[str, str]] = {}
    for name in WORK_OPTIONS:
        option = f"--{name.replace('_', '-')}"
        arguments: Sequence[str] = getattr(reading, name) or ()
        for argument in arguments:
            subject = f"{option} {short_repr(argument)}"
            label, value = _split_value(argument)
            how_to_name_a_run = f"LABEL=RUN and {option} LABEL={value}"
            _check_label(label, labels, subject, fix=how_to_name_a_run)
            _check_is_read(label, labels, saved, subject)
            # This raises the error for a wrong value.
            AskedWork.of_options({name: value})
            work = works.setdefault(label, {})
            if name in work:
                runs = "all runs" if label is None else label
                problem = f"is the second value for {runs}"
                raise OptionError(subject, problem, fix="pass one value for each label")
            work[name] = value
    return works


def _split_value(argument: str) -> tuple[str | None, str]:
    """Split ``LABEL=VALUE`` into label and value. The label is None if there is none.

    Unlike a path, a value has no ``=``, so the last one ends the label.
    """
    label, equals, value = argument.rpartition("=")
    return (label, value) if equals else (None, argument)


def _check_is_read(
    label: str | None, labels: _Labels, saved: Collection[str], subject: str
) -> None:
    """Raise an OptionError if an option is about a label of which all captures are saved.

    The option would have no effect, because saved runs are analyzed already. `saved` are the places
    of saved runs.
    """
    if label is None:
        return
    places: list[str] = []
    for run, label_of_run in labels:
        if label_of_run == label:
            places += run.places
    if all(place in saved for place in places):
        problem = f"is about {label}, which is a saved run and already analyzed"
        raise OptionError(subject, problem, fix="leave it out, or analyze the reports again")
