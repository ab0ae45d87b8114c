"""Copies of all reports of a run, in one go: hosts get their new names over all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nsyspipe.errors import InputError
from nsyspipe.reader.report import open_report
from nsyspipe.reader.tables import in_place_of_a_table
from nsyspipe.redact.copy import Copying, Removed, copy_numbers, count_left_behind, opened
from nsyspipe.redact.places import Place, beside, places_for, staged
from nsyspipe.redact.tables import base_name, class_of, is_known
from nsyspipe.redact.texts import copy_ranges, copy_strings, count_named
from nsyspipe.redact.values import copy_facts, copy_layouts, host_of, names_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path


# One report into one copy.


@dataclass(frozen=True)
class Findings:
    """What a report has that decides how it is copied.

    Attributes
    ----------
    host
        Its host's name; None when it does not say.
    unknown
        Rows by unknown table.
    """

    host: str | None
    unknown: dict[str, int]


def look_at(path: Path) -> Findings:
    """Look at a report before anything is written.

    Raises
    ------
    InputError
        If it is missing, damaged, no nsys export, or shows another table's rows under a name that is nsys's.
    """
    with open_report(path) as report, opened(path, None) as connection:
        for table in sorted(report.views):
            base = base_name(table)
            if is_known(base) and class_of(base) is None:
                raise in_place_of_a_table(path, table, "view")
        copying = Copying(report, connection)
        unknown = {
            table: n
            for table in report.tables
            if not is_known(base_name(table)) and (n := copying.count(table))
        }
        return Findings(host_of(report), unknown)


def copy_report(
    path: Path, copy: Path, host: str | None, on_rows: Callable[[int], None]
) -> Removed:
    """Fill an empty file with the copy of a report.

    Parameters
    ----------
    host
        What to call the host in it.
    on_rows
        Called with the number of the last row of a table that was copied.

    Returns
    -------
    Removed
        What stayed behind.
    """
    removed = Removed()
    with open_report(path) as report, opened(path, copy) as connection:
        copying = Copying(report, connection, removed, on_rows)
        copy_numbers(copying)
        copy_facts(copying, host)
        copy_layouts(copying)
        copy_ranges(copying)
        copy_strings(copying)
        count_named(copying, names_of(report))
        count_left_behind(copying)
    return removed


_MOST_NAMED = 5
_MIB = 2**20


@dataclass(frozen=True)
class Redaction:
    """What was done.

    Attributes
    ----------
    places
        Each report and its copy.
    n_hosts
        How many hosts got another name.
    removed
        What stayed behind.
    beside
        Names of files beside the reports that `analyze` reads, and that were not copied.
    has_others_beside
        Whether logs, topologies or sidecars of no report lie there too.
    """

    places: Sequence[Place]
    n_hosts: int
    removed: Removed
    beside: Sequence[str]
    has_others_beside: bool = False


def redact(
    reports: str,
    out: Path,
    *,
    force: bool = False,
    drop_unknown: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
) -> Redaction:
    """Write copies of reports without what analysis does not need.

    Parameters
    ----------
    reports
        One report, a directory, or a glob.
    out
        The copy of one report; a directory for the others.
    force
        Replace files.
    drop_unknown
        Leave out tables that are not known; without it they are an error.
    on_progress
        Called with how much is done, and how much there is, in MiB.

    Raises
    ------
    InputError
        If a report cannot be used, or has an unknown table with rows.
    OutputError
        If a copy cannot be written, or would replace what it must not. Nothing is left of it.
    """
    places = places_for(reports, out, force=force)
    findings = [look_at(place.report) for place in places]
    if not drop_unknown:
        for place, found in zip(places, findings, strict=True):
            _check_known(place, found)
    hosts = _host_names(findings)
    removed = Removed()
    progress = _Progress([place.report for place in places], on_progress)
    with staged(places) as files:
        for place, found, file in zip(places, findings, files, strict=True):
            host = None if found.host is None else hosts.get(found.host, "")
            removed.update(copy_report(place.report, file, host, progress.of(file)))
            progress.finish(place.report)
    return Redaction(places, len(hosts), removed, *beside([place.report for place in places]))


def _check_known(place: Place, found: Findings) -> None:
    if not found.unknown:
        return
    names = [f"{table} ({n} rows)" for table, n in sorted(found.unknown.items())]
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    raise InputError(
        str(place.report),
        "has tables that this version does not know, so that it cannot tell what is private in them",
        found=f"{', '.join(names[:_MOST_NAMED])}{more}",
        fix="--drop-unknown leaves them out; analysis reads none of them",
    )


def _host_names(findings: Sequence[Findings]) -> Mapping[str, str]:
    """Return a new name for each host, numbered as they appear; no name stays none."""
    hosts = dict.fromkeys(found.host for found in findings if found.host)
    return {host: f"host-{index}" for index, host in enumerate(hosts)}


class _Progress:
    """How far the copies are, measured by the sizes of the files."""

    def __init__(
        self, reports: Sequence[Path], on_progress: Callable[[int, int], None] | None
    ) -> None:
        self._on_progress = on_progress
        self._sizes = {report: report.stat().st_size for report in reports}
        self._total = sum(self._sizes.values())
        self._done = 0

    def of(self, copy: Path) -> Callable[[int], None]:
        """Return what to call while a copy grows."""
        return lambda _: self._show(self._done + copy.stat().st_size)

    def finish(self, report: Path) -> None:
        """Count a report as done."""
        self._done += self._sizes[report]
        self._show(self._done)

    def _show(self, done: int) -> None:
        if self._on_progress:
            self._on_progress(min(done, self._total) // _MIB, -(-self._total // _MIB))
