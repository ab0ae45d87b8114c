"""One report into one copy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nsyspipe.read.report import open_report
from nsyspipe.read.tables import in_place_of_a_table
from nsyspipe.redaction.copying import Copying, copy_numbers, count_left_behind
from nsyspipe.redaction.database import opened
from nsyspipe.redaction.facts import copy_facts, host_of, names_of
from nsyspipe.redaction.payloads import copy_layouts
from nsyspipe.redaction.ranges import copy_ranges
from nsyspipe.redaction.removed import Removed
from nsyspipe.redaction.strings import copy_strings, count_named
from nsyspipe.redaction.tables import base_name, class_of, is_known

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["Findings", "copy_report", "look_at"]


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
    with open_report(path) as report, opened(path, None) as database:
        for table in sorted(report.views):
            base = base_name(table)
            if is_known(base) and class_of(base) is None:
                raise in_place_of_a_table(path, table, "view")
        copying = Copying(report, database, Removed(), lambda _: None)
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
    with open_report(path) as report, opened(path, copy) as database:
        copying = Copying(report, database, removed, on_rows)
        copy_numbers(copying)
        copy_facts(copying, host)
        copy_layouts(copying)
        copy_ranges(copying)
        copy_strings(copying)
        count_named(copying, names_of(report))
        count_left_behind(copying)
    return removed
