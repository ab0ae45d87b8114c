"""One step of each side above the other: on one axis that counts from the step's start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.report.page.embed import cut
from nsyspipe.report.page.tables import Column, Table
from nsyspipe.report.page.timeline_data import timeline_data
from nsyspipe.report.page.timeline_table import timeline_table
from nsyspipe.units import ms_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsyspipe.difference.run_difference import RunDifference
    from nsyspipe.difference.sides import Side
    from nsyspipe.run import Run

__all__ = ["Timelines", "timelines"]

_SIDES = ("baseline", "candidate")
_LONGEST_LABEL = 60


@dataclass(frozen=True)
class Timelines:
    """What the chart draws, the same as a table, and which sides are in it.

    Attributes
    ----------
    data
        As of `timeline_data`, with a rank per side, and ``titles``: a line above each. None where no side has any.
    table
        None without data.
    missing
        The sides that have no timeline.
    """

    data: dict[str, Any] | None
    table: Table | None
    missing: Sequence[str]


@dataclass(frozen=True)
class _Drawn:
    """The step of one side: its bars and its window, both from the start of that window."""

    name: str
    label: str
    step: int
    rank: int
    wall_ns: int
    timeline: pa.Table
    window: pa.Table

    @property
    def title(self) -> str:
        # The label comes last: where there is no room, it is cut.
        label = cut(self.label, _LONGEST_LABEL)
        return (
            f"{self.name}: {ms_text(self.wall_ns)}, step {self.step} on rank {self.rank}, {label}"
        )


def timelines(difference: RunDifference) -> Timelines:
    """Return the representative step of each side, on the rank whose window of it is the longest (tie: the lowest).

    Of several captures of a side the first one's. Times count from the start of that rank's window, so that both sides
    begin together.
    """
    sides = zip(_SIDES, (difference.baseline, difference.candidate), strict=True)
    found = {name: _drawn(name, side, at) for at, (name, side) in enumerate(sides)}
    drawn = [one for one in found.values() if one is not None]
    missing = [name for name, one in found.items() if one is None]
    if not drawn:
        return Timelines(None, None, missing)
    bars = pa.concat_tables([one.timeline for one in drawn]).combine_chunks()
    steps = pa.concat_tables([one.window for one in drawn]).combine_chunks()
    places = steps["rank"].to_pylist()
    data = timeline_data(bars, steps, places, [])
    table = timeline_table(bars, steps)
    if data is None:
        return Timelines(None, None, list(_SIDES))
    names = [f"{one.rank} of the {one.name}" for one in drawn]
    data |= {
        "titles": [one.title for one in drawn],
        "ranks": [row | {"rank": name} for row, name in zip(data["ranks"], names, strict=True)],
    }
    rows = [
        [one.name, str(one.step), str(one.rank), *row[1:]]
        for one, row in zip(drawn, table.rows, strict=True)
    ]
    columns = [Column("side", "text"), Column("step number"), Column("rank"), *table.columns[1:]]
    return Timelines(data, Table("Timelines of both sides", columns, rows), missing)


def _drawn(name: str, side: Side, place: int) -> _Drawn | None:
    """Return what to draw of a side, which takes the place of a rank; None without a timeline."""
    run = side.runs[0]
    found = run.timeline()
    if not found.num_rows:
        return None
    step = found["step"][0].as_py()
    rank = _slowest(run, step, found["rank"].unique().to_pylist())
    own = pc.and_(pc.equal(run.steps()["step"], step), pc.equal(run.steps()["rank"], rank))
    window = run.steps().filter(own)
    start, end = window["start_ns"][0].as_py(), window["end_ns"][0].as_py()
    bars = found.filter(pc.equal(found["rank"], rank))
    return _Drawn(
        name=name,
        label=side.name,
        step=step,
        rank=rank,
        wall_ns=end - start,
        timeline=_moved(bars, start, place),
        window=_moved(window, start, place),
    )


def _slowest(run: Run, step: int, ranks: Sequence[int]) -> int:
    """Return the rank with the longest window of those that have bars."""
    steps = run.steps().filter(pc.equal(run.steps()["step"], step))
    rows = steps.select(["rank", "start_ns", "end_ns"]).to_pylist()
    order = [(row["start_ns"] - row["end_ns"], row["rank"]) for row in rows if row["rank"] in set(ranks)]  # fmt: skip
    return int(min(order)[1])


def _moved(table: pa.Table, start: int, place: int) -> pa.Table:
    """Return a table whose times count from a start, and whose rank and step say which side it is."""
    columns = {
        "start_ns": pc.subtract(table["start_ns"], start),
        "end_ns": pc.subtract(table["end_ns"], start),
        "rank": pa.array([place] * table.num_rows, table.schema.field("rank").type),
        "step": pa.array([0] * table.num_rows, table.schema.field("step").type),
    }
    for name, column in columns.items():
        table = table.set_column(table.column_names.index(name), table.schema.field(name), column)
    return table
