"""From the RUN arguments of a command to opened runs.

An argument has a label, and names reports, which worker processes read, or a saved run.
"""

from __future__ import annotations

import contextlib
import glob
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from nsyspipe.cli.options import (
    OneRunOptions,
    ReadingOptions,
    RunningOptions,
    SeveralRunsOptions,
    check_name,
)
from nsyspipe.cli.outputs import Stage, progress
from nsyspipe.errors import NsyspipeError, OptionError, ReportNotFoundError, nearest_name
from nsyspipe.model.names import listed, place_as_given
from nsyspipe.nsys.find_reports import (
    RAW_SUFFIXES,
    exported_reports,
    find_logs,
    find_named,
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
) -> tuple[list[Path], ChosenRanks | None]:
    """Return the exports of the reports that are read, and the chosen ranks; None for all ranks."""
    try:
        reports = find_named(arguments)
    except ReportNotFoundError as error:
        fix = next(filter(None, map(_meant_run, arguments)), None)
        if fix:
            raise ReportNotFoundError(
                error.subject, error.problem, found=error.found, fix=fix
            ) from error
        raise
    chosen = None
    if reading.ranks is not None:
        from nsyspipe.run.ranks import choose_ranks

        chosen = choose_ranks(reading.ranks, reports, reading.rank_map)
        reports = [*chosen.paths]
    on_progress = None
    if any(path.suffix in RAW_SUFFIXES for path in reports):
        on_progress = stage("exporting reports")
    return exported_reports(reports, jobs=jobs, on_progress=on_progress), chosen


def _meant_run(place: str) -> str | None:
    """Return the saved run that a missing path may mean, quoted for a shell.

    The path may be ``stor:NAME``, with a misspelt store, or ``STORE/NAME``.
    """
    if os.path.lexists(place) or glob.has_magic(place):
        return None
    before_colon, colon, name = place.rpartition(":")
    store = Path(before_colon)
    if not colon:
        store = Path(place).parent
        name = Path(place).name
    with contextlib.suppress(OSError, NsyspipeError):
        if colon:
            stores = [
                path.name for path in store.parent.iterdir() if path.is_dir() and is_saved(path)
            ]
            store = store.with_name(nearest_name(store.name, stores) or store.name)
        labels = labels_by_time(store)
        names = {*labels, *labels.values()} - {""}
        if name in names:
            return argument_of(store, name)
    return None


@contextlib.contextmanager
def opened_run(
    arguments: Sequence[str], reading: OneRunOptions, running: RunningOptions
) -> Iterator[tuple[Run, Stage]]:
    """Yield the run that all arguments name together, and what starts a stage of the progress bar.

    The processes that read the reports end with the context.
    """
    reading.check_logs()
    labels, places = zip(*map(split_label, arguments), strict=True)
    options = reading.chosen("label", "run_id", "topology")
    options["label"] = _label_of_run(arguments, labels, options["label"])
    options["nccl_log"] = reading.nccl_log or []
    options["reports"] = places
    with progress(shown=running.is_shown) as stage, contextlib.ExitStack() as processes:
        if labels[0] and len(places) == 1 and is_saved(Path(places[0])):
            # The run gets the label of the argument, whatever label it was saved with.
            options["reports"] = place_of(*find_saved(Path(places[0]), reading.run_id))
        elif not any(is_saved(Path(place)) for place in places):
            reports, logs = split_logs(places, reading.nccl_log)
            options["nccl_log"] = find_logs(logs)
            paths, options["ranks"] = reports_to_read(
                reports, reading, jobs=running.jobs, stage=stage
            )
            options["reports"] = paths
            options["executor"] = processes.enter_context(running.executor(paths))
            options["on_progress"] = stage("reading reports")
        # Heavy, so it is imported while the workers do the same.
        from nsyspipe.api import load

        yield load(**options), stage


def _label_of_run(
    arguments: Sequence[str], labels: Sequence[str | None], label_option: str | None
) -> str | None:
    """Return the label of the one run that arguments name, by LABEL= or by --label."""
    if len({*labels}) > 1:
        raise OptionError(
            shlex.join(arguments),
            "names several runs, but this command needs one",
            fix=shlex.quote(arguments[0]),
        )
    label = labels[0]
    if label is not None and label_option not in (None, label):
        option = f"--label {shlex.quote(str(label_option))}"
        raise OptionError(
            f"--label {label_option}",
            f"differs from the label of {arguments[0]}",
            fix=f"leave out one of them: {option}, or {label}=",
        )
    return label_option or label


def store_of(arguments: Sequence[str]) -> Path:
    """Return the run store that is meant as a whole, or refuse anything else."""
    first = Path(arguments[0])
    store = find_saved(first)[0] if is_one_run(first) else first
    if len(arguments) > 1 or store != first:
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

    A path that exists, or a glob that matches, is never read as ``LABEL=...``, and a label has no
    path separator. A glob that matches only saved runs stands for each of them. So does a store, if
    the command takes any number of runs. Ranks of one run, as a shell leaves of a glob, are
    refused. `start` is the start of the command that fixes it.
    """
    # Arguments without a label are runs of their own, whose key is number and place.
    groups: dict[str | tuple[int, str], list[str]] = {}
    for number, argument in enumerate(arguments):
        label, place = split_label(argument)
        for saved_run in _saved_runs(place, is_any_number=is_any_number) or [place]:
            key = (number, saved_run) if label is None else label
            groups.setdefault(key, []).append(saved_run)
    reports = [place for label, place in map(split_label, arguments) if label is None]
    if any(len(group) > 1 for group in words_of_runs(reports).values()):
        from nsyspipe.run.ranks import check_several_runs

        check_several_runs(reports, start)
    return [
        NamedRuns(key if isinstance(key, str) else None, tuple(places))
        for key, places in groups.items()
    ]


def labelled_runs(label: str, place: str, *candidates: str) -> list[NamedRuns]:
    """Return all runs of a label in a store, and those that they are compared with.

    A candidate is a RUN argument, or another label of the store.
    """
    compared_runs = runs_by_label(place, label, candidates)
    sides = []
    for name, (places, incomplete_run_ids) in compared_runs.items():
        sides.append(NamedRuns(name, tuple(places)))
        if incomplete_run_ids:
            left_out = [f"{place.rstrip('/')}:{run_id}" for run_id in incomplete_run_ids]
            words = listed(left_out, 4)
            typer.echo(f"Left out, as {name} has runs of all ranks: {words}.", err=True)
    if len(sides) > 1:
        return sides
    start = f"{shlex.join(['nsyspipe', 'diff', '--against', label, place])} "
    return [*sides, *parse_runs(candidates, start=start)]


def refuse_saved_runs(arguments: Sequence[str], takes: str = "reports") -> None:
    """Refuse a store or a saved run in place of reports, also a saved run that is missing."""
    for place in map(Path, arguments):
        if not is_saved(place):
            continue
        what = "a run store"
        fix = "pass the original reports"
        if is_one_run(place):
            find_saved(place)
            what = "a saved run"
            fix = (
                f"nsyspipe analyze {shlex.quote(str(place))} shows its problems, or pass its "
                "reports"
            )
        raise OptionError(str(place), f"is {what}, but this command needs {takes}", fix=fix)


def split_label(argument: str) -> tuple[str | None, str]:
    """Split ``LABEL=PLACE``; no label is None."""
    label, equals, place = argument.partition("=")
    # The whole argument may be a path or a glob, also an absolute one, which pathlib cannot match.
    # The path is checked first, because glob fails with names that are too long.
    is_glob = glob.has_magic(argument)
    is_place = os.path.lexists(argument) or (is_glob and bool(glob.glob(argument)))  # noqa: PTH207
    if not equals or os.sep in label or is_place:
        return None, argument
    check_name("label ", label, "LABEL=PATH, or ./PATH for a path with = in it")
    if not place:
        raise OptionError(repr(argument), "has a label but no reports", fix=f"{label}=PATH")
    return label, place


def _saved_runs(place: str, *, is_any_number: bool) -> list[str]:
    """Return the saved runs that a glob stands for, or a store if any number of runs is taken."""
    if is_any_number:
        run_ids = [*labels_by_time(Path(place))]
        if len(run_ids) > 1:
            return [place_of(place, run_id) for run_id in run_ids]
    if os.path.lexists(place) or not glob.has_magic(place):
        return []
    # The glob may be absolute, which pathlib cannot match.
    paths = sorted(glob.glob(place))  # noqa: PTH207
    return paths if all(is_saved(Path(path)) for path in paths) else []


def names_in(place: str) -> tuple[list[str], list[str]]:
    """Return the runs of a directory, glob or store as arguments, and the labels of a store.

    The runs of a directory or a glob are told apart by the names of their reports.
    """
    if not is_saved(Path(place)):
        groups = words_of_runs(find_named([place]))
        return [*groups], []
    labels = labels_by_time(Path(place))
    distinct_labels = [*dict.fromkeys(labels.values())]
    run_arguments = [argument_of(Path(place), run_id) for run_id in labels]
    return run_arguments, distinct_labels


@contextlib.contextmanager
def opened_runs(
    named: Sequence[NamedRuns], reading: SeveralRunsOptions, running: RunningOptions
) -> Iterator[Opened]:
    """Yield the captures of each run, which are read one after the other.

    The processes that read the reports end with the context.
    """
    reading.check_logs()
    saved = _find_saved_places(named)
    captures = [(run, place) for run in named for place in run.places if place not in saved]
    if not captures:
        reading.refuse_given("all runs are saved and already analyzed", "analyze the reports again")
    files = _files_by_label(named, reading)
    with progress(shown=running.is_shown) as stage, contextlib.ExitStack() as processes:
        reports = {
            (run, place): reports_to_read([place], reading, jobs=running.jobs, stage=stage)
            for run, place in captures
        }
        executor = None
        if reports:
            paths = [*chain.from_iterable(exports for exports, _ in reports.values())]
            executor = processes.enter_context(running.executor(paths))
        opener = _RunOpener(
            saved=saved,
            reports=reports,
            files=files,
            options=reading.chosen() | {"executor": executor},
            stage=stage,
        )
        yield [opener.open_captures(run) for run in named]


def _find_saved_places(named: Sequence[NamedRuns]) -> dict[str, tuple[Path, str]]:
    """Return store and ID of each place that is a saved run."""
    places = chain.from_iterable(run.places for run in named)
    return {place: find_saved(Path(place)) for place in places if is_saved(Path(place))}


class _FilesByLabel(NamedTuple):
    """Files about runs, by the label of the run. None for files about all runs."""

    logs: Mapping[str | None, Sequence[Path]]
    topologies: Mapping[str | None, Sequence[str]]


def _files_by_label(named: Sequence[NamedRuns], reading: SeveralRunsOptions) -> _FilesByLabel:
    log_arguments = _by_label(reading.nccl_log or [], named)
    topologies = _by_label(reading.topology or [], named)
    logs = {label: find_logs(arguments) for label, arguments in log_arguments.items()}
    return _FilesByLabel(logs, topologies)


@dataclass(frozen=True)
class _RunOpener:
    """Opens runs one after the other, saved ones or from reports, each with its own bar."""

    # Store and ID of each place that is a saved run.
    saved: Mapping[str, tuple[Path, str]]
    # Exports and ranks of each capture that is read.
    reports: Mapping[tuple[NamedRuns, str], tuple[list[Path], ChosenRanks | None]]
    files: _FilesByLabel
    # Arguments of `load` for all runs.
    options: Mapping[str, Any]
    stage: Stage

    def open_captures(self, run: NamedRuns) -> tuple[Run, ...]:
        """Return the captures of a run."""
        return tuple(self._open(run, place) for place in run.places)

    def _open(self, named: NamedRuns, place: str) -> Run:
        # Imported when they are used, because reports need large packages, and workers import these
        # at the same time.
        if place in self.saved:
            from nsyspipe.store.saved_run import SavedRun

            return SavedRun(*self.saved[place], named.label)
        from nsyspipe.api import load

        paths, ranks = self.reports[named, place]
        labels = dict.fromkeys((None, named.label))
        topologies = [
            *self.files.topologies.get(named.label, []),
            *self.files.topologies.get(None, []),
        ]
        options = dict(self.options)
        options["ranks"] = ranks
        options["label"] = named.label
        logs = self.files.logs
        options["nccl_log"] = [path for label in labels for path in logs.get(label, [])]
        options["topology"] = topologies[0] if topologies else None
        options["on_progress"] = self.stage(f"reading {named.label or place}")
        run = load(paths, **options)
        # The steps are read now, so that runs are read one after the other.
        _ = run.steps()
        return run


def _by_label(files: Sequence[str], named: Sequence[NamedRuns]) -> dict[str | None, list[str]]:
    """Return ``LABEL=FILE`` arguments by the label of the run. None for files without a label."""
    labels = [run.label for run in named if run.label is not None]
    files_by_label: dict[str | None, list[str]] = {}
    for file in files:
        label, place = split_label(file)
        if label is not None and label not in labels:
            raise OptionError(
                repr(file),
                "does not start with the label of a run",
                found=", ".join(labels) or "no labels",
                fix="LABEL=RUN and LABEL=FILE",
            )
        files_by_label.setdefault(label, []).append(place)
    return files_by_label
