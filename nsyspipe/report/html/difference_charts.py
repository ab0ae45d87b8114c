"""The charts of a difference's page: step time part by part, one step of each side, figures beside zero."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.report.blocks import Column, Field, Table, table_of
from nsyspipe.report.difference_words import part_cells, part_rows
from nsyspipe.report.html.page import cut
from nsyspipe.report.html.timeline import timeline_data, timeline_table
from nsyspipe.report.units import absent, ms_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from nsyspipe.comparison.difference import RunDifference, Side
    from nsyspipe.run.run import Run


# Name in words and colour of each part.
_PARTS = {
    "compute": ("compute", "compute"),
    "exposed_comm": ("exposed comm", "exposed"),
    "exposed_memory": ("exposed copies", "copies"),
    "idle": ("idle", "idle"),
}
_REST = "not split"
# A colour that stands for no part.
_NEUTRAL = "ink3"
# What changed has at least this share of the axis.
_LEAST_SHARE = 0.25


def waterfall(difference: RunDifference) -> dict[str, Any] | None:
    """Return the bars of the chart.

    Returns
    -------
    dict or None
        ``from``: where the axis begins, ns; above 0 where what changed could not be seen on a whole one. ``bars``: each
        with ``name``, ``category``, ``start`` and ``end`` (ns; those of a part are the sum so far without and with it),
        ``baseline``, ``candidate`` and ``delta``. The first is the baseline, the last the candidate, and between them
        every bar begins where the one before ends, exactly. A part that a side did not record is in the bar
        ``not split``. None where a side has no steps.
    """
    before, after, delta = difference.mean_step_time
    if before is None or after is None or delta is None:
        return None
    bars, at = [_whole("baseline", before)], before
    for name, category, row in _parts(difference):
        bars.append(_part(name, category, at, row))
        at = bars[-1]["end"]
    if at != after or difference.step_time_parts["delta_ns"].null_count:
        rest = {"baseline_ns": None, "candidate_ns": None, "delta_ns": after - at}
        bars.append(_part(_REST, _NEUTRAL, at, rest))
    bars.append(_whole("candidate", after))
    return {"from": _axis_start([bar["end"] for bar in bars]), "bars": bars}


def _whole(name: str, time: float) -> dict[str, Any]:
    sides = {"baseline": None, "candidate": None, "delta": None}
    return {"name": name, "category": _NEUTRAL, "start": 0.0, "end": time} | sides


def _part(name: str, category: str, at: float, row: Mapping[str, Any]) -> dict[str, Any]:
    sides = {side: row[f"{side}_ns"] for side in ("baseline", "candidate", "delta")}
    return {"name": name, "category": category, "start": at, "end": at + row["delta_ns"]} | sides


def _parts(difference: RunDifference) -> list[tuple[str, str, dict[str, Any]]]:
    """Return name, colour and row of each part that both sides recorded; idle by cause, if causes are known."""
    found = []
    for row in difference.step_time_parts.to_pylist():
        if row["delta_ns"] is None:
            continue
        name, category = _PARTS[row["part"]]
        causes = []
        if row["part"] == "idle":
            causes = [
                (f"idle: {one['cause']}", category, one)
                for one in difference.idle_causes.to_pylist()
                if one["baseline_ns"] or one["candidate_ns"]
            ]
        found += causes or [(name, category, row)]
    return found


def _axis_start(ends: list[float]) -> float:
    """Return where the axis begins: at 0, unless what changed is too little of it to be seen."""
    lowest, highest = min(ends), max(ends)
    span = highest - lowest
    if not span or span >= _LEAST_SHARE * highest:
        return 0.0
    unit = 10.0 ** math.floor(math.log10(span))
    return max(unit * math.floor((lowest - span / 2) / unit), 0.0)


def waterfall_table(difference: RunDifference) -> Table:
    """Return the parts of both sides in words, with the exact difference."""
    fields = [
        Field("part", lambda pair: pair[0].replace("  ", "of it idle: "), "text"),
        Field("baseline", lambda pair: part_cells(pair[1])[0]),
        Field("candidate", lambda pair: part_cells(pair[1])[1]),
        Field("change", lambda pair: part_cells(pair[1])[2]),
        Field("change, exactly", lambda pair: _exact(pair[1]["delta_ns"])),
    ]
    title = "Parts of the mean step time on the slowest rank"
    return table_of(title, part_rows(difference), fields)


def _exact(ns: float | None) -> str:
    if ns is None:
        return absent
    text = f"{ns:+,.3f}".replace(",", " ").removesuffix(".000")
    return f"{text if ns else '0'} ns"


_SIDES = ("baseline", "candidate")
_LONGEST_LABEL = 60


@dataclass(frozen=True)
class Timelines:
    """What the chart draws, the same as a table, and which sides are in it."""

    # as of `timeline_data`, with a rank per side, and ``titles``: a line above each. None where no side has any.
    data: dict[str, Any] | None
    table: Table | None  # None without data
    missing: Sequence[str]  # the sides that have no timeline


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
        return f"{self.name}: {ms_text(self.wall_ns)}, step {self.step} on rank {self.rank}, {label}"


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
    rows = [[one.name, str(one.step), str(one.rank), *row[1:]] for one, row in zip(drawn, table.rows, strict=True)]
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


# Ends of a scale, so that ticks are numbers that one reads at a glance.
_NICE = (1, 2, 5, 10, 20, 50, 100)


@dataclass(frozen=True, slots=True)
class Judged:
    """A verdict, and why it is none where it is none."""

    verdict: str
    why: str | None = None
    kind = "judged"


@dataclass(frozen=True, slots=True)
class DeltaCell:
    """A difference as shares of a track whose middle is zero: -1 is its left end, 1 its right one; other cells have words."""

    at: float | None = None  # where the difference is; None draws nothing
    # ends of its interval; None without one
    low: float | None = None
    high: float | None = None
    # from here on, either way, it is more than no change; None leaves it out
    band: float | None = None
    kind = "delta"

    @property
    def bar(self) -> tuple[float, float]:
        """Left end and width of the bar from zero, per cent of the track."""
        return _place(min(self.at or 0, 0), max(self.at or 0, 0))

    @property
    def whisker(self) -> tuple[float, float] | None:
        """Left end and width of the interval."""
        return None if self.low is None or self.high is None else _place(self.low, self.high)

    @property
    def no_change(self) -> tuple[float, float] | None:
        """Left end and width of the band."""
        return None if self.band is None else _place(-self.band, self.band)

    @property
    def beyond(self) -> str | None:
        """``left`` or ``right`` where the difference lies outside of the track."""
        if self.at is None or abs(self.at) <= 1:
            return None
        return "right" if self.at > 0 else "left"


Cell = str | DeltaCell | Judged


@dataclass(frozen=True, slots=True)
class Scale:
    """How far a column's tracks reach to either side of zero."""

    limit: float

    @classmethod
    def around(cls, held: Iterable[float], others: Iterable[float]) -> Scale:
        """Return the smallest of a few round ends that holds what it must and half of the others; else the largest.

        All of them would be too many: what changed tenfold would leave no room to see the rest.
        """
        sizes = sorted(map(abs, others))
        most = max([*map(abs, held), *sizes[: (len(sizes) + 1) // 2]], default=0)
        return cls(next((one for one in _NICE if most <= one), _NICE[-1]))

    def share(self, value: float | None) -> float | None:
        """Return where a value lies, as a share of the limit."""
        return None if value is None else value / self.limit


@dataclass(frozen=True, slots=True)
class DeltaTable:
    """A table as `page.Table`, whose cells may be of this module too."""

    caption: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    strong: frozenset[int] = frozenset()  # numbers of the rows to point out
    note: str | None = None  # stands below

    @staticmethod
    def verdict_of(row: Sequence[Cell]) -> str | None:
        """Return the verdict that a row has a cell of."""
        return next((cell.verdict for cell in row if isinstance(cell, Judged)), None)


def _place(low: float, high: float) -> tuple[float, float]:
    left, right = (50 * (1 + min(max(one, -1), 1)) for one in (low, high))
    return left, right - left
