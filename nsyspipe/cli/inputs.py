"""From a command's RUN arguments to opened runs: labels, reports read by worker processes, saved runs found."""

from __future__ import annotations

import contextlib
import glob
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nsyspipe.errors import OptionError
from nsyspipe.nsys.find_reports import RAW_SUFFIX, exported_reports, find_logs, find_named, split_logs
from nsyspipe.run.workers import PRELOAD, executor_for
from nsyspipe.store.layout import is_saved, run_ids

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from nsyspipe.cli.terminal import OnProgress, Stage
    from nsyspipe.run.run import Run


def exports_of(reports: Sequence[str], *, jobs: int | None, stage: Stage) -> list[Path]:
    """Return the exports of the reports that are named; a stage of its own only where any is to be made."""
    named = find_named(reports)
    is_raw = any(path.suffix == RAW_SUFFIX for path in named)
    on_progress = stage("exporting reports") if is_raw else None
    return exported_reports(named, jobs=jobs, on_progress=on_progress)


@contextlib.contextmanager
def opened_run(
    reports: Sequence[str],
    nccl_logs: Sequence[str],
    options: Mapping[str, Any],
    *,
    jobs: int | None,
    stage: Stage = lambda _: None,
) -> Iterator[Callable[[OnProgress | None], Run]]:
    """Yield what loads the run; the processes that read its reports end with the context."""
    if any(is_saved(Path(report)) for report in reports):
        from nsyspipe.api import load

        yield lambda _: load(reports, **options, nccl_log=nccl_logs)
        return
    if nccl_logs:
        reports, more_logs = split_logs(reports)
        nccl_logs = [*nccl_logs, *more_logs]
    logs = find_logs(nccl_logs)
    paths = exports_of(reports, jobs=jobs, stage=stage)
    with executor_for(paths, jobs, preload=PRELOAD) as executor:
        # Heavy, so imported while the workers do the same.
        from nsyspipe.api import load

        yield lambda on_progress: load(paths, **options, nccl_log=logs, executor=executor, on_progress=on_progress)


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
    if os.path.lexists(place) or not glob.has_magic(place):
        return []
    found = sorted(glob.glob(place))  # noqa: PTH207 - absolute too
    return found if all(is_saved(Path(one)) for one in found) else []


def _names_files(argument: str) -> bool:
    """Tell whether a whole argument is a path or a glob of some files, whatever it looks like."""
    if os.path.lexists(argument):  # says no to names that are too long
        return True
    return glob.has_magic(argument) and bool(glob.glob(argument))  # noqa: PTH207 - absolute too


_SHOWN = 6

OpenedRuns = list[tuple[str, tuple["Run", ...]]]


@contextlib.contextmanager
def opened_runs(
    named: Sequence[NamedRuns],
    options: Mapping[str, Any],
    *,
    nccl_logs: Sequence[str] = (),
    topologies: Sequence[str] = (),
    jobs: int | None = None,
    stage: Stage = lambda _: None,
) -> Iterator[Callable[[], OpenedRuns]]:
    """Yield what opens all runs; the processes that read their reports end with the context."""
    saved = {place for one in named for place in one.places if is_saved(Path(place))}
    reports = [(one, place) for one in named for place in one.places if place not in saved]
    _check_options(options, [*nccl_logs, *topologies], is_any_report=bool(reports))
    logs, maps = _by_label(nccl_logs, named), _by_label(topologies, named)
    for place in sorted(saved):
        _check_is_one(place)
    if not reports:
        yield lambda: _opened(named, lambda one, place: _saved_run(place, one.label))
        return
    from nsyspipe.nsys.find_reports import exported_reports, find_logs
    from nsyspipe.run.workers import PRELOAD, executor_for

    found_logs = {label: find_logs(files) for label, files in logs.items()}
    paths = {key: exported_reports([key[1]], jobs=jobs, on_progress=stage("exporting reports")) for key in reports}
    with executor_for([path for some in paths.values() for path in some], jobs, preload=PRELOAD) as executor:

        def open_one(one: NamedRuns, place: str) -> Run:
            if place in saved:
                return _saved_run(place, one.label)
            own = {**options, **_own_options(one.label, found_logs, maps)}
            bar = stage(f"reading {one.label or place}")
            return _report_run(paths[one, place], own, executor=executor, on_progress=bar)

        yield lambda: _opened(named, open_one)


def _own_options(
    label: str | None, logs: Mapping[str | None, Sequence[Path]], maps: Mapping[str | None, Sequence[str]]
) -> dict[str, Any]:
    """Return the options that one label's reports have for themselves: its name, its logs and all runs', its map."""
    files = [path for key in dict.fromkeys((None, label)) for path in logs.get(key, [])]
    topology = [*maps.get(label, []), *maps.get(None, []), None][0]
    return {"label": label, "nccl_log": files, "topology": topology}


def _opened(named: Sequence[NamedRuns], open_one: Callable[[NamedRuns, str], Run]) -> OpenedRuns:
    found = [tuple(open_one(one, place) for place in one.places) for one in named]
    headers = [one.label or runs[0].header.label for one, runs in zip(named, found, strict=True)]
    is_twice = [headers.count(label) > 1 for label in headers]
    labels = [
        _shortened(one.places[0]) if twice and one.label is None else label
        for one, label, twice in zip(named, headers, is_twice, strict=True)
    ]
    return list(zip(_distinct(labels), found, strict=True))


def _shortened(place: str) -> str:
    """Return an argument as a label, from its end if it is too long for one."""
    text = place.rstrip("/") or place
    return text if len(text) <= LONGEST_LABEL else f"...{text[3 - LONGEST_LABEL :]}"


def _distinct(labels: Sequence[str]) -> list[str]:
    """Tell labels that are still equal apart by a number: ``run``, ``run (2)``."""
    found: list[str] = []
    for label in labels:
        names = [label, *(f"{label} ({number})" for number in range(2, len(labels) + 2))]
        found.append(next(name for name in names if name not in found))
    return found


def _report_run(paths: Sequence[Path], options: Mapping[str, Any], **more: Any) -> Run:  # noqa: ANN401 - load's own
    # Heavy, so imported while the workers do the same.
    from nsyspipe.api import load

    run = load(paths, **options, **more)
    _ = run.steps()  # read now, one after the other, each with its own bar
    return run


def _saved_run(place: str, label: str | None) -> Run:
    # Not through `load`, which imports what reads reports.
    from nsyspipe.store.layout import find_saved
    from nsyspipe.store.saved_run import SavedRun

    return SavedRun(Path(place), *find_saved(Path(place)), label)


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


def _check_options(options: Mapping[str, Any], files: Sequence[str], *, is_any_report: bool) -> None:
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
