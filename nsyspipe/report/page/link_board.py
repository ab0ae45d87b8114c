"""What connects the ranks, what NCCL says of itself, and what could not be answered: tables of a run's page."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from nsyspipe.report.page.tables import Column, Table
from nsyspipe.report.run_words import same_problems
from nsyspipe.units import absent, bandwidth_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from nsyspipe.fabric import NcclFacts
    from nsyspipe.report.run_words import SameProblem

__all__ = ["Trouble", "link_table", "nccl_facts", "places", "troubles"]

_SHOWN_EDGES, _SHOWN_PLACES, _MOST_ALIKE = 12, 12, 4
_DIGITS = re.compile(r"\d+")
_ALIKE = ("comm_id", "transport", "path", "kind", "nominal_bytes_per_s", "nominal_source")
Trouble = tuple[str, str, str, "str | None"]


def link_table(links: pa.Table) -> Table | None:
    """Return the edges between ranks, those that are alike in one row; None where nothing is known of them."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in links.to_pylist():
        groups.setdefault(tuple(row[name] for name in _ALIKE), []).append(row)
    if not groups:
        return None
    columns = [
        Column("kind", "text"),
        Column("transport", "text", hint="what NCCL set up, in its words"),
        Column("path", "text", hint="what lies between the GPUs, by nvidia-smi topo -m"),
        Column("nominal", hint="what the data sheet promises per direction"),
        Column("source", "text"),
        Column("edges"),
        Column("from and to rank", "text"),
    ]
    cells = [_link_cells(rows) for rows in groups.values()]
    return Table("Links between ranks", columns, cells)


def _link_cells(rows: Sequence[dict[str, Any]]) -> list[str]:
    first = rows[0]
    edges = [f"{row['from_rank']}\N{RIGHTWARDS ARROW}{row['to_rank']}" for row in rows]
    return [
        first["kind"],
        first["transport"] or absent,
        first["path"] or absent,
        bandwidth_text(first["nominal_bytes_per_s"]),
        first["nominal_source"] or absent,
        str(len(rows)),
        _few(edges, _SHOWN_EDGES),
    ]


def nccl_facts(nccl: NcclFacts | None) -> list[tuple[str, str]]:
    """Return NCCL's version and settings as pairs; none without a log of the run."""
    if nccl is None:
        return []
    nvls = {True: "set up", False: "not set up", None: "not said"}[nccl.nvls]
    settings = sorted(nccl.settings.items())
    return [("version", nccl.version or absent), ("NVLink SHARP", nvls), *settings]


def troubles(problems: pa.Table) -> list[Trouble]:
    """Return the problems, those of several ranks once: severity, message, where, fix.

    Of many that differ in nothing but numbers the first is told, and how many there are.
    """
    alike: dict[tuple[str, str, str | None], list[SameProblem]] = {}
    for one in same_problems(problems.to_pylist()):
        key = (one.severity, _DIGITS.sub("#", one.message), one.fix)
        alike.setdefault(key, []).append(one)
    return [
        told
        for (severity, _, fix), group in alike.items()
        for told in (
            [(severity, f"{group[0].message}; {len(group) - 1} more alike", "", fix)]
            if len(group) > _MOST_ALIKE
            else [(severity, one.message, places(one), fix) for one in group]
        )
    ]


def places(problem: SameProblem) -> str:
    """Return the ranks, else the reports, that a problem concerns."""
    if problem.ranks:
        return f"rank {_few([str(rank) for rank in problem.ranks], _SHOWN_PLACES)}"
    return _few(problem.reports, _SHOWN_PLACES)


def _few(names: Sequence[str], most: int) -> str:
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")
