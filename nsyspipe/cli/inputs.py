"""From a command's RUN arguments to opened runs: labels, reports read by worker processes, saved runs found."""

from __future__ import annotations

import contextlib
import glob
import os
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

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
from nsyspipe.store import layout
from nsyspipe.store.layout import find_saved, is_one_run, is_saved, place_of

if TYPE_CHECKING:
    from nsyspipe.run.ranks import ChosenRanks
    from nsyspipe.run.run import Run

# What an argument may be, for help.
ONE_RUN = (
    "One run: its nsys reports (.sqlite, or .nsys-rep if nsys is installed), a directory, or a "
    "glob. Or a saved run: STORE, "
    "STORE:ID, or STORE:LABEL (the latest run of that label). LABEL= in front sets the label."
)
Opened = list[tuple["Run", ...]]


def reports_to_read(
    arguments: Sequence[str], reading: ReadingOptions, *, jobs: int | None, stage: Stage
) -> tuple[list[Path], ChosenRanks | None]:
    """Return the exports of the reports that are named and read, and the ranks that were asked for; None for all."""
    try:
        named = find_named(arguments)
        chosen = None
    except ReportNotFoundError as error:
        fix = next(filter(None, map(_meant_run, arguments)), None)
        if fix:
            raise ReportNotFoundError(
                error.subject, error.problem, found=error.found, fix=fix
            ) from error
        raise
    if reading.ranks is not None:
        from nsyspipe.run.ranks import choose_ranks

        chosen = choose_ranks(reading.ranks, named, reading.rank_map)
        named = [*chosen.paths]
    is_any_raw = any(path.suffix in RAW_SUFFIXES for path in named)
    return exported_reports(
        named, jobs=jobs, on_progress=stage("exporting reports") if is_any_raw else None
    ), chosen


def _meant_run(place: str) -> str | None:
    """Return the saved run that a place where nothing lies may mean, ``stor:NAME`` or ``STORE/NAME``, as a shell names it."""
    if os.path.lexists(place) or glob.has_magic(place):
        return None
    before, colon, name = place.rpartition(":")
    store, name = (Path(before), name) if colon else (Path(place).parent, Path(place).name)
    with contextlib.suppress(OSError, NsyspipeError):
        if colon:
            stores = [
                path.name for path in store.parent.iterdir() if path.is_dir() and is_saved(path)
            ]
            store = store.with_name(nearest_name(store.name, stores) or store.name)
        named = layout.labels_by_time(store)
        return layout.argument_of(store, name) if name in {*named, *named.values()} - {""} else None
    return None


@contextlib.contextmanager
def opened_run(
    named: Sequence[str], reading: OneRunOptions, running: RunningOptions
) -> Iterator[tuple[Run, Stage]]:
    """Yield the run that all arguments name together, and what starts a stage; processes that read end with the context."""
    reading.check_logs()
    labels, places = zip(*map(split_label, named), strict=True)
    if len({*labels}) > 1:
        raise OptionError(
            shlex.join(named),
            "names several runs, but this command needs one",
            fix=shlex.quote(named[0]),
        )
    options = reading.chosen("label", "run_id", "topology") | {
        "nccl_log": reading.nccl_log or [],
        "reports": places,
    }
    if labels[0] is not None and options["label"] not in (None, labels[0]):
        fix = f"leave out one of them: --label {shlex.quote(options['label'])}, or {labels[0]}="
        raise OptionError(
            f"--label {options['label']}", f"differs from the label of {named[0]}", fix=fix
        )
    options["label"] = options["label"] or labels[0]
    with progress(shown=running.is_shown) as stage, contextlib.ExitStack() as processes:
        if (
            labels[0] and len(places) == 1 and is_saved(Path(places[0]))
        ):  # the run is called so, whatever its label is
            options["reports"] = place_of(*find_saved(Path(places[0]), reading.run_id))
        elif not any(is_saved(Path(place)) for place in places):
            reports, logs = split_logs(places, reading.nccl_log)
            options["nccl_log"] = find_logs(logs)
            paths, options["ranks"] = reports_to_read(
                reports, reading, jobs=running.jobs, stage=stage
            )
            executor = processes.enter_context(running.executor(paths))
            options.update(reports=paths, executor=executor, on_progress=stage("reading reports"))
        from nsyspipe.api import load  # heavy, so imported while the workers do the same

        yield load(**options), stage


def store_of(arguments: Sequence[str]) -> Path:
    """Return the one store that is named where all of its runs are meant; one of its runs, or others, are refused."""
    first = Path(arguments[0])
    store = find_saved(first)[0] if is_one_run(first) else first
    if len(arguments) > 1 or store != first:
        shown = shlex.quote(place_as_given(store, first))
        raise OptionError(shlex.join(arguments), "is not one run store", fix=shown)
    return store


@dataclass(frozen=True)
class NamedRuns:
    """What a user names as one thing to look at: one capture, or several under one label."""

    label: str | None  # what stands before ``=``; None: the runs name themselves
    places: tuple[
        str, ...
    ]  # one argument per capture: a glob, a directory, a report, or a saved run


def parse_runs(
    arguments: Sequence[str], *, is_any_number: bool = False, start: str = ""
) -> list[NamedRuns]:
    """Group RUN arguments by their labels, in the order in which each first stands.

    A path that exists, or a glob that matches, wins over the reading as ``LABEL=...``; a label has
    no path separator. A glob that matches nothing but saved runs stands for each of them; where any
    number is welcome, so does a store. Ranks of one run, as a shell leaves of a glob, are refused,
    with the `start` of a command.
    """
    groups: dict[str | tuple[int, str], list[str]] = {}
    for number, argument in enumerate(arguments):
        label, place = split_label(argument)
        for saved_run in _saved_runs(place, is_any_number=is_any_number) or [place]:
            groups.setdefault((number, saved_run) if label is None else label, []).append(saved_run)
    reports = [place for label, place in map(split_label, arguments) if label is None]
    if any(len(group) > 1 for group in words_of_runs(reports).values()):
        from nsyspipe.run.ranks import check_several_runs

        check_several_runs(reports, start)
    return [
        NamedRuns(key if isinstance(key, str) else None, tuple(places))
        for key, places in groups.items()
    ]


def labelled_runs(label: str, place: str, *others: str) -> list[NamedRuns]:
    """Return all runs of a label in a store, and what they are compared with: RUN arguments, or another label of the store."""
    found = layout.runs_by_label(place, label, others)
    for name, (_, partial) in found.items():
        if partial:
            words = listed([f"{place.rstrip('/')}:{run_id}" for run_id in partial], 4)
            typer.echo(f"Left out, as {name} has runs of all ranks: {words}.", err=True)
    sides = [NamedRuns(name, tuple(places)) for name, (places, _) in found.items()]
    start = f"{shlex.join(['nsyspipe', 'diff', '--against', label, place])} "
    return sides if len(sides) > 1 else [*sides, *parse_runs(others, start=start)]


def refuse_saved_runs(arguments: Sequence[str], takes: str = "reports") -> None:
    """Refuse what is no report where only reports will do; of one run, which has to be there, say what takes it."""
    for place in (Path(argument) for argument in arguments if is_saved(Path(argument))):
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
    # Of files a whole argument is a path or a glob; the first says no to names that are too long.
    is_place = os.path.lexists(argument) or (glob.has_magic(argument) and bool(glob.glob(argument)))  # noqa: PTH207 - absolute too
    if not equals or os.sep in label or is_place:
        return None, argument
    check_name("label ", label, "LABEL=PATH, or ./PATH for a path with = in it")
    if not place:
        raise OptionError(repr(argument), "has a label but no reports", fix=f"{label}=PATH")
    return label, place


def _saved_runs(place: str, *, is_any_number: bool) -> list[str]:
    if is_any_number and len(ids := [*layout.labels_by_time(Path(place))]) > 1:
        return [place_of(place, run_id) for run_id in ids]
    found = [] if os.path.lexists(place) or not glob.has_magic(place) else sorted(glob.glob(place))  # noqa: PTH207 - absolute too
    return found if all(is_saved(Path(one)) for one in found) else []


def names_in(place: str) -> tuple[list[str], list[str]]:
    """Return the runs that a directory or glob has by the names of reports, or a store, as arguments; and a store's labels."""
    if not is_saved(Path(place)):
        return [*words_of_runs(find_named([place]))], []
    labels = layout.labels_by_time(Path(place))
    return [layout.argument_of(Path(place), run_id) for run_id in labels], [
        *dict.fromkeys(labels.values())
    ]


@contextlib.contextmanager
def opened_runs(
    named: Sequence[NamedRuns], reading: SeveralRunsOptions, running: RunningOptions
) -> Iterator[Opened]:
    """Yield the captures of each run, read one after the other; the processes that read end with the context."""
    reading.check_logs()
    options = reading.chosen()
    logs = reading.nccl_log or []
    maps = reading.topology or []
    saved = {
        place: find_saved(Path(place))
        for one in named
        for place in one.places
        if is_saved(Path(place))
    }
    reports = [(one, place) for one in named for place in one.places if place not in saved]
    if not reports:
        reading.refuse_given("all runs are saved and already analyzed", "analyze the reports again")
    logs_of = _by_label(logs, named)
    maps_of = _by_label(maps, named)
    files = {label: find_logs(found) for label, found in logs_of.items()}
    with progress(shown=running.is_shown) as stage, contextlib.ExitStack() as processes:
        found = {
            key: reports_to_read([key[1]], reading, jobs=running.jobs, stage=stage)
            for key in reports
        }
        every = [path for paths, _ in found.values() for path in paths]
        executor = processes.enter_context(running.executor(every)) if reports else None

        def open_one(one: NamedRuns, place: str) -> Run:
            # Each imported where it is used: what reads reports is heavy, and workers import it at
            # the same time.
            if place in saved:
                from nsyspipe.store.saved_run import SavedRun

                return SavedRun(*saved[place], one.label)
            from nsyspipe.api import load

            paths, options["ranks"] = found[one, place]
            own_logs = [
                path for key in dict.fromkeys((None, one.label)) for path in files.get(key, [])
            ]
            own_map = [*maps_of.get(one.label, []), *maps_of.get(None, []), None][0]
            bar = stage(f"reading {one.label or place}")
            options.update(
                label=one.label,
                nccl_log=own_logs,
                topology=own_map,
                executor=executor,
                on_progress=bar,
            )
            run = load(paths, **options)
            _ = run.steps()  # read now, one after the other, each with its own bar
            return run

        yield [tuple(open_one(one, place) for place in one.places) for one in named]


def _by_label(files: Sequence[str], named: Sequence[NamedRuns]) -> dict[str | None, list[str]]:
    known = [one.label for one in named if one.label is not None]
    grouped: dict[str | None, list[str]] = {}
    for file in files:
        label, place = split_label(file)
        if label is not None and label not in known:
            found = ", ".join(known) or "no labels"
            fix = "LABEL=RUN and LABEL=FILE"
            raise OptionError(
                repr(file), "does not start with the label of a run", found=found, fix=fix
            )
        grouped.setdefault(label, []).append(place)
    return grouped
