"""What a page shows of collectives: the chart by order, the chart by size, and the table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nsyspipe.report.page.tables import Column, Table
from nsyspipe.units import absent, bandwidth_text, bytes_text, ms_text

if TYPE_CHECKING:
    from nsyspipe.report.page.collective_medians import Medians

__all__ = ["by_order", "by_size", "collective_note", "collective_table"]

# So many ranks have a column of their own in the table.
_RANK_COLUMNS = 8


def by_order(medians: Medians) -> dict[str, Any] | None:
    """Return what the chart of collectives in order draws; None without any."""
    rows = medians.rows
    if not rows:
        return None
    return {
        "seq": [row["seq"] for row in rows],
        "collective": [row["collective"] for row in rows],
        "transfer": [row["transfer"] for row in rows],
        "duration": [row["duration"] for row in rows],
        "ranks": medians.ranks,
        "wait": [[row["wait"].get(rank) for rank in medians.ranks] for row in rows],
    }


def by_size(medians: Medians) -> dict[str, Any] | None:
    """Return message size against bus bandwidth; None where no size is known."""
    rows = [row for row in medians.rows if row["bytes"] and row["busbw"]]
    if not rows:
        return None
    return {name: [row[name] for row in rows] for name in ("seq", "collective", "bytes", "busbw", "transfer")}  # fmt: skip


def collective_note(medians: Medians) -> str:
    """Return what the figures are medians over, what is left out, and what could not be matched."""
    over = f"Medians over {medians.n_used} of {medians.n_steps} steps of the figures"
    if medians.n_used == medians.n_steps:
        over = f"Medians over the {medians.n_steps} steps of the figures" if medians.n_steps > 1 else "The one step of the figures"  # fmt: skip
    shown = len(medians.rows)
    left_out = (
        f"; the {shown} longest of {medians.n_all} collectives" if shown < medians.n_all else ""
    )
    return f"{over}{left_out}{_matched_note(medians)}."


def _matched_note(medians: Medians) -> str:
    """Return which of those steps transfer and waits are medians over; nothing where it is all of them."""
    if medians.n_complete == medians.n_used:
        return ""
    if not medians.n_matched:
        return "; transfer and waiting are not known, as none could be matched across ranks"
    if medians.n_complete == medians.n_matched:
        return f"; transfer and waiting: the {medians.n_matched} that could be matched"
    return f"; transfer and waiting: the {medians.n_matched} of which some could be matched"


def collective_table(medians: Medians) -> Table:
    """Return the collectives in words: of few ranks the wait of each, of many the longest."""
    ranks = medians.ranks
    few = len(ranks) <= _RANK_COLUMNS
    waits = [Column(f"rank {rank} waits") for rank in ranks] if few else []
    has_bytes = any(row["bytes"] for row in medians.rows)
    sizes = [Column("message"), Column("bus bandwidth")] if has_bytes else []
    columns = [
        Column("place"),
        Column("collective", "text"),
        Column("duration"),
        Column("transfer"),
        Column("longest wait"),
        Column("waiting rank"),
        *waits,
        *sizes,
    ]
    cells = []
    for row in medians.rows:
        wait, rank = _longest(row["wait"])
        cells.append(
            [
                str(row["seq"]),
                row["collective"],
                ms_text(row["duration"]),
                ms_text(row["transfer"]),
                ms_text(wait),
                absent if rank is None else str(rank),
                *(ms_text(row["wait"].get(one)) for one in (ranks if few else ())),
                *((bytes_text(row["bytes"]), bandwidth_text(row["busbw"])) if has_bytes else ()),
            ]
        )
    return Table("Collectives in the order of a step", columns, cells, collective_note(medians))


def _longest(waits: dict[int, float | None]) -> tuple[float | None, int | None]:
    known = [(wait, -rank) for rank, wait in waits.items() if wait is not None]
    if not known:
        return None, None
    wait, rank = max(known)
    return wait, -rank if wait else None
