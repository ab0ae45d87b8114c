"""From named runs to opened ones: reports are read, saved runs are found."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nsyspipe.cli.run_names import LONGEST_LABEL, split_label
from nsyspipe.errors import OptionError
from nsyspipe.store.find import is_saved
from nsyspipe.store.layout import run_ids

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from nsyspipe.cli.progress import Stage
    from nsyspipe.cli.run_names import NamedRuns
    from nsyspipe.run import Run

__all__ = ["OpenedRuns", "opened_runs"]

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
    """Yield what opens all runs; the processes that read their reports end with the context.

    Parameters
    ----------
    options
        Of `nsyspipe.load`, by name: how reports are read. Saved runs keep the figures they have.
    nccl_logs, topologies
        ``FILE`` for the reports of all runs, or ``LABEL=FILE`` for those of one.

    Raises
    ------
    OptionError
        If an argument names several runs, or options for reports come with saved runs alone.
    InputError
        If an argument names no report.
    """
    saved = {place for one in named for place in one.places if is_saved(Path(place))}
    reports = [(one, place) for one in named for place in one.places if place not in saved]
    _check_options(options, [*nccl_logs, *topologies], is_any_report=bool(reports))
    logs, maps = _by_label(nccl_logs, named), _by_label(topologies, named)
    for place in sorted(saved):
        _check_is_one(place)
    if not reports:
        yield lambda: _opened(named, lambda one, place: _saved_run(place, one.label))
        return
    from nsyspipe.export_cache import exported_reports
    from nsyspipe.parallel import PRELOAD, executor_for
    from nsyspipe.read.discover import find_logs

    found_logs = {label: find_logs(files) for label, files in logs.items()}
    paths = {
        key: exported_reports([key[1]], jobs=jobs, on_progress=stage("exporting reports"))
        for key in reports
    }
    with executor_for(
        [path for some in paths.values() for path in some], jobs, preload=PRELOAD
    ) as executor:

        def open_one(one: NamedRuns, place: str) -> Run:
            if place in saved:
                return _saved_run(place, one.label)
            own = {**options, **_own_options(one.label, found_logs, maps)}
            bar = stage(f"reading {one.label or place}")
            return _report_run(paths[one, place], own, executor=executor, on_progress=bar)

        yield lambda: _opened(named, open_one)


def _own_options(
    label: str | None,
    logs: Mapping[str | None, Sequence[Path]],
    maps: Mapping[str | None, Sequence[str]],
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
    from nsyspipe.loading import load

    run = load(paths, **options, **more)
    _ = run.steps()  # read now, one after the other, each with its own bar
    return run


def _saved_run(place: str, label: str | None) -> Run:
    # Not through `load`, which imports what reads reports.
    from nsyspipe.store.find import find_saved
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


def _check_options(
    options: Mapping[str, Any], files: Sequence[str], *, is_any_report: bool
) -> None:
    given = [
        f"--{name.replace('_', '-')}"
        for name, value in options.items()
        if value is not None and value != "auto"
    ]
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
            raise OptionError(
                repr(file), "names no run by its label", found=", ".join(known) or "no labels"
            )
        found.setdefault(label, []).append(place)
    return found
