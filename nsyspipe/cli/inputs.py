"""From a command's RUN arguments to opened runs: labels, reports read by worker processes, saved runs found."""

from __future__ import annotations

import contextlib
import glob
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nsyspipe.cli.outputs import progress
from nsyspipe.errors import OptionError
from nsyspipe.nsys.find_reports import RAW_SUFFIX, exported_reports, find_logs, find_named, split_logs
from nsyspipe.run.workers import PRELOAD, executor_for
from nsyspipe.store.layout import is_saved, run_ids

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from nsyspipe.cli.options import NamedRunOptions, OneRunOptions, RunningOptions, SeveralRunsOptions
    from nsyspipe.cli.outputs import Stage
    from nsyspipe.run.run import Run


def exports_of(reports: Sequence[str], *, jobs: int | None, stage: Stage) -> list[Path]:
    """Return the exports of the reports that are named; a stage of its own only where any is to be made."""
    named = find_named(reports)
    is_raw = any(path.suffix == RAW_SUFFIX for path in named)
    return exported_reports(named, jobs=jobs, on_progress=stage("exporting reports") if is_raw else None)


def with_logs(reports: Sequence[str], logs: Sequence[str] | None) -> tuple[list[str], list[str]]:
    """Return reports and logs apart: a glob of logs that a shell has expanded stands among the reports."""
    if not logs:
        return list(reports), []
    reports, more_logs = split_logs(reports)
    return list(reports), [*logs, *more_logs]


@contextlib.contextmanager
def opened_run(
    reports: Sequence[str], reading: NamedRunOptions, running: RunningOptions
) -> Iterator[tuple[Run, Stage]]:
    """Yield a run that is named by all its reports, and what starts a stage; the processes that read end with the context."""
    options = reading.chosen("label", "run_id", "topology")
    with progress(shown=running.is_shown) as stage:
        if any(is_saved(Path(report)) for report in reports):
            from nsyspipe.api import load

            yield load(reports, **options, nccl_log=reading.nccl_log or []), stage
            return
        reports, logs = with_logs(reports, reading.nccl_log)
        found_logs = find_logs(logs)
        paths = exports_of(reports, jobs=running.jobs, stage=stage)
        with executor_for(paths, running.jobs, preload=PRELOAD) as executor:
            # Heavy, so imported while the workers do the same.
            from nsyspipe.api import load

            bar = stage("reading reports")
            yield load(paths, **options, nccl_log=found_logs, executor=executor, on_progress=bar), stage


LONGEST_LABEL = 100


@dataclass(frozen=True)
class NamedRuns:
    """What a user names as one thing to look at: one capture, or several under one label."""

    label: str | None  # what stands before ``=``; None: the runs name themselves
    # one argument per capture: a glob, a directory, a report, or a saved run
    places: tuple[str, ...]


def parse_runs(arguments: Sequence[str]) -> list[NamedRuns]:
    """Group RUN arguments by their labels, in the order in which each first stands.

    A path that exists, or a glob that matches, wins over the reading as ``LABEL=...``; a label has no
    path separator. A glob that matches nothing but saved runs stands for each of them.
    """
    groups: dict[str | tuple[int, str], list[str]] = {}
    for number, argument in enumerate(arguments):
        label, place = split_label(argument)
        for one in _saved_runs(place) or [place]:
            groups.setdefault((number, one) if label is None else label, []).append(one)
    return [NamedRuns(key if isinstance(key, str) else None, tuple(places)) for key, places in groups.items()]


def split_label(argument: str) -> tuple[str | None, str]:
    """Split ``LABEL=PLACE``; no label is None."""
    label, equals, place = argument.partition("=")
    separators = {os.sep, os.altsep} - {None}
    if not equals or any(one in label for one in separators if one) or _names_files(argument):
        return None, argument
    if not (label and label.isprintable() and len(label) <= LONGEST_LABEL):
        raise OptionError(
            repr(argument[:LONGEST_LABEL]),
            f"has a label that is empty, longer than {LONGEST_LABEL}, or not printable",
            fix="LABEL=PATH, or ./PATH for a path with = in it",
        )
    if not place:
        raise OptionError(repr(argument), "has a label and no reports", fix=f"{label}=PATH")
    return label, place


def _saved_runs(place: str) -> list[str]:
    """Return the runs that a glob of saved runs matches; none if it is anything else."""
    found = [] if os.path.lexists(place) or not glob.has_magic(place) else sorted(glob.glob(place))  # noqa: PTH207 - absolute too
    return found if all(is_saved(Path(one)) for one in found) else []


def _names_files(argument: str) -> bool:
    """Tell whether a whole argument is a path or a glob of some files, whatever it looks like."""
    # The first says no to names that are too long.
    return os.path.lexists(argument) or (glob.has_magic(argument) and bool(glob.glob(argument)))  # noqa: PTH207 - absolute too


_SHOWN = 6

OpenedRuns = list[tuple[str, tuple["Run", ...]]]


@contextlib.contextmanager
def opened_runs(
    named: Sequence[NamedRuns], reading: OneRunOptions | SeveralRunsOptions, running: RunningOptions
) -> Iterator[OpenedRuns]:
    """Yield all runs by their labels, read one after the other; the processes that read end with the context."""
    options, topology = reading.chosen(), reading.topology
    logs, maps = reading.nccl_log or [], [topology] if isinstance(topology, str) else topology or []
    saved = {place for one in named for place in one.places if is_saved(Path(place))}
    reports = [(one, place) for one in named for place in one.places if place not in saved]
    _check_options(options, [*logs, *maps], is_any_report=bool(reports))
    logs_of, maps_of = _by_label(logs, named), _by_label(maps, named)
    for place in sorted(saved):
        _check_is_one(place)
    files = {label: find_logs(found) for label, found in logs_of.items()}
    with progress(shown=running.is_shown) as stage, contextlib.ExitStack() as processes:
        paths = {
            key: exported_reports([key[1]], jobs=running.jobs, on_progress=stage("exporting reports"))
            for key in reports
        }
        every = [path for some in paths.values() for path in some]
        executor = processes.enter_context(executor_for(every, running.jobs, preload=PRELOAD)) if reports else None

        def open_one(one: NamedRuns, place: str) -> Run:
            # Each imported where it is used: what reads reports is heavy, and workers import it at the same time.
            if place in saved:
                from nsyspipe.store.saved_run import open_saved

                return open_saved(Path(place), label=one.label)
            from nsyspipe.api import load

            run = load(
                paths[one, place],
                **options,
                label=one.label,
                nccl_log=[path for key in dict.fromkeys((None, one.label)) for path in files.get(key, [])],
                topology=[*maps_of.get(one.label, []), *maps_of.get(None, []), None][0],
                executor=executor,
                on_progress=stage(f"reading {one.label or place}"),
            )
            _ = run.steps()  # read now, one after the other, each with its own bar
            return run

        yield _labelled(named, open_one)


def _labelled(named: Sequence[NamedRuns], open_one: Callable[[NamedRuns, str], Run]) -> OpenedRuns:
    """Open all runs; of equal labels those that nobody gave become arguments, then they are told apart by numbers."""
    found = [tuple(open_one(one, place) for place in one.places) for one in named]
    headers = [one.label or runs[0].header.label for one, runs in zip(named, found, strict=True)]
    labels: list[str] = []
    for one, header in zip(named, headers, strict=True):
        label = header
        if one.label is None and headers.count(header) > 1:
            label = one.places[0].rstrip("/") or one.places[0]
            # Its end says most of one that is too long.
            label = label if len(label) <= LONGEST_LABEL else f"...{label[3 - LONGEST_LABEL :]}"
        names = [label, *(f"{label} ({number})" for number in range(2, len(named) + 2))]
        labels.append(next(name for name in names if name not in labels))
    return list(zip(labels, found, strict=True))


def _check_is_one(place: str) -> None:
    """Refuse a store of several runs, and say how one of them is named."""
    ids = sorted(run_ids(Path(place)))
    if len(ids) > 1:
        n_more = len(ids) - _SHOWN
        shown = ", ".join(ids[-_SHOWN:]) + (f" and {n_more} more" if n_more > 0 else "")
        raise OptionError(
            place,
            f"holds {len(ids)} runs, where one is meant",
            found=shown,
            fix=str(Path(place) / "runs" / f"run_id={ids[-1]}"),
        )


def _check_options(options: dict[str, Any], files: Sequence[str], *, is_any_report: bool) -> None:
    given = [f"--{name.replace('_', '-')}" for name, value in options.items() if value is not None and value != "auto"]
    given += ["--nccl-log or --topology"] if files else []
    if given and not is_any_report:
        raise OptionError(
            ", ".join(given),
            "says how reports are read, and all runs are saved ones, whose figures are made",
            fix="leave it out, or analyze the reports again",
        )


def _by_label(files: Sequence[str], named: Sequence[NamedRuns]) -> dict[str | None, list[str]]:
    """Group ``LABEL=FILE`` by label; a file without one is for all."""
    known = [one.label for one in named if one.label is not None]
    found: dict[str | None, list[str]] = {}
    for file in files:
        label, place = split_label(file)
        if label is not None and label not in known:
            raise OptionError(repr(file), "names no run by its label", found=", ".join(known) or "no labels")
        found.setdefault(label, []).append(place)
    return found
