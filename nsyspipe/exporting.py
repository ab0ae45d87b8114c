"""Reports of nsys to SQLite: what is up to date stays, the rest is exported, several at once.

Needs only the standard library: it runs beside training programs too.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nsyspipe.errors import NsysNotFoundError, NsyspipeError, OptionError
from nsyspipe.export_jobs import EXPORTED, UP_TO_DATE, Exported, export_all
from nsyspipe.export_target import is_up_to_date, not_writable, target_of
from nsyspipe.nsys import Nsys, find

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

__all__ = [
    "EXPORTED",
    "TIMEOUT_S",
    "UP_TO_DATE",
    "Exported",
    "all_exported",
    "attempt_exports",
    "attempt_pairs",
    "export_reports",
]

TIMEOUT_S = 1800.0


def export_reports(
    reports: Iterable[Path],
    *,
    directory: Path | None = None,
    nsys: Nsys | None = None,
    jobs: int | None = None,
    force: bool = False,
    timeout_s: float = TIMEOUT_S,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[Exported]:
    """Export reports, as `attempt_exports` does, where all of them are needed.

    Raises
    ------
    NsyspipeError
        As `attempt_exports` does; and as `all_exported` does, once all were tried.
    """
    outcomes = attempt_exports(
        reports,
        directory=directory,
        nsys=nsys,
        jobs=jobs,
        force=force,
        timeout_s=timeout_s,
        on_progress=on_progress,
    )
    return all_exported(outcomes)


def attempt_exports(
    reports: Iterable[Path],
    *,
    directory: Path | None = None,
    nsys: Nsys | None = None,
    jobs: int | None = None,
    force: bool = False,
    timeout_s: float = TIMEOUT_S,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[Exported | NsyspipeError]:
    """Export reports; one that fails does not keep the others from it.

    An export is up to date if it is whole, was made from a report of that name, and is not older than it.

    Parameters
    ----------
    directory
        Where to write, made if it is missing; None writes each beside its report.
    nsys
        What exports; None finds one, if anything is to export.
    jobs
        How many at once; None takes the cores there are, up to 8.
    force
        Whether to export also what is up to date, and over files that are no exports of their report.
    timeout_s
        How long one export may take.
    on_progress
        Called with (reports done, reports to export).

    Returns
    -------
    list
        For each report, in order, its export or why there is none.

    Raises
    ------
    OptionError
        If two reports would be exported to one file.
    OutputError
        If the directory cannot be made.
    NsysNotFoundError, NsysFailedError
        If there is no nsys, or it does not answer.
    """
    sources = list(reports)
    pairs = [(one, target_of(one, directory)) for one in sources]
    _check_distinct(pairs)
    if directory is not None:
        _make(directory)
    return attempt_pairs(
        pairs, nsys=nsys, jobs=jobs, force=force, timeout_s=timeout_s, on_progress=on_progress
    )


def attempt_pairs(
    pairs: Sequence[tuple[Path, Path]],
    *,
    nsys: Nsys | None = None,
    jobs: int | None = None,
    force: bool = False,
    timeout_s: float = TIMEOUT_S,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[Exported | NsyspipeError]:
    """Export reports, each to a file of its own, as `attempt_exports` does.

    Parameters
    ----------
    pairs
        Reports, each with the file to export it to; the files differ, their directories are there.
    """
    outcomes: dict[int, Exported | NsyspipeError] = {}
    for at, (source, target) in enumerate(pairs):
        try:
            if is_up_to_date(source, target, force=force):
                outcomes[at] = Exported(target, source, UP_TO_DATE)
        except NsyspipeError as error:
            outcomes[at] = error
    left = [at for at in range(len(pairs)) if at not in outcomes]
    if left:
        nsys = nsys or _found()
        wanted = [pairs[at] for at in left]
        made = export_all(
            nsys, wanted, jobs, timeout_s, on_progress or (lambda *_: None), force=force
        )
        outcomes |= dict(zip(left, made, strict=True))
    return [outcomes[at] for at in range(len(pairs))]


def _found() -> Nsys:
    try:
        return find()
    except NsysNotFoundError as error:
        fix = f"{error.fix}; or run nsyspipe convert on the machine that captured the reports"
        raise NsysNotFoundError(error.subject, error.problem, fix=fix) from error


def all_exported(outcomes: Sequence[Exported | NsyspipeError]) -> list[Exported]:
    """Return the exports where all of them are needed.

    Raises
    ------
    NsyspipeError
        The first failure, which says how many others there are.
    """
    failures = [one for one in outcomes if isinstance(one, NsyspipeError)]
    if failures:
        first, n_others = failures[0], len(failures) - 1
        more = f" (and {n_others} more of {len(outcomes)} reports failed)" if n_others else ""
        raise type(first)(first.subject, first.problem + more, found=first.found, fix=first.fix)
    return [one for one in outcomes if isinstance(one, Exported)]


def _check_distinct(pairs: Sequence[tuple[Path, Path]]) -> None:
    seen: dict[str, Path] = {}
    for source, target in pairs:
        other = seen.setdefault(os.path.realpath(target), source)
        if other is not source:
            raise OptionError(
                f"{other} and {source}",
                f"would both be exported to {target}",
                fix="convert them one by one, each into a directory of its own: -o DIR",
            )


def _make(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise not_writable(directory, error) from error
