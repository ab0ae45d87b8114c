"""One step's timeline on a page: its bars, rank by rank and lane by lane, and the same as a table."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.report.blocks import Field, Table, table_of
from nsyspipe.report.run import LOOP, table_note
from nsyspipe.report.units import absent, in_one_unit, ms_text
from nsyspipe.run.rank_names import RankNames

_LANES = (
    "phase",
    "launch",
    "compute",
    "comm",
    "exposed",
    "wait",
    "memory",
)  # of a rank, from top to bottom
_UNTOLD = "untold"  # the lane ``compute`` of a rank where some of it may be communication
MOST_BARS = 22_400  # more take longer to draw than to understand, and each costs some 25 bytes
IS_PAINTED = (
    "Short operations are merged into one bar, and a fainter bar is less busy. If colors share "
    "a pixel, each shows as often as "
    "its share. Point at a bar for its name and its times."
)
_NONE = -1
_LEAST_STRETCH = 0.01  # of the step: what is shorter is no reason for its length
# Lane, or what is drawn of communication; its category of the palette, and words.
_LEGEND = (
    ("compute", "compute", "compute"),
    (_UNTOLD, _UNTOLD, "kernels"),
    ("hidden", "hidden", "overlapped communication"),
    ("exposed", "exposed", "exposed communication"),
    ("wait", "waiting", "wait time"),
    ("transfer", "transfer", "transfer time"),
    ("memory", "copies", "copies"),
    ("launch", "launch", "launch queue"),
)
# Heading, lane, and the column of `steps` that is null where the lane was not recorded.
_BUSY = (
    ("compute", "compute", "compute_ns"),
    ("total comm", "comm", "comm_ns"),
    ("exposed comm", "exposed", "exposed_comm_ns"),
    ("wait", "wait", "wait_ns"),
    ("copies", "memory", "exposed_memory_ns"),
)


def timeline_data(
    timeline: pa.Table, steps: pa.Table, first: list[int], others: list[int]
) -> dict[str, Any] | None:
    """Return the bars of the representative step; None without a timeline.

    ``step``, ``end`` (ns), ``names``, and ``ranks``: sorted, each with its window and by lane the
    columns ``start``, ``length``, ``name`` (index, -1 for none) and, unless they say nothing,
    ``busy`` (= length), ``n`` (= 1), ``seq`` (-1 for none), ``exposed`` and, where it is known,
    ``wait`` (both of ``comm``). Start and length are what is drawn, gaps between joined operations
    with it; ``busy``, ``exposed`` and ``wait`` are exact. ``stretch``: where the slowest rank is
    longest without compute; None where that is nothing to speak of, or not known (lane ``compute``
    ``untold``).
    """
    if not timeline.num_rows:
        return None
    step = timeline["step"][0].as_py()
    rows = (
        steps.filter(pc.equal(steps["step"], step))
        .select(["rank", "start_ns", "end_ns", "compute_ns"])
        .to_pylist()
    )
    windows = {row["rank"]: (row["start_ns"], row["end_ns"]) for row in rows}
    untold = {row["rank"] for row in rows if row["compute_ns"] is None}
    origin = min(start for start, _ in windows.values())
    counts = {row["values"]: row["counts"] for row in pc.value_counts(timeline["rank"]).to_pylist()}
    shown = [rank for rank in first if rank in counts]
    wanted = [*shown, *(rank for rank in others if rank in counts and rank not in first)]
    n_fitting = int(
        np.searchsorted(np.cumsum([counts[rank] for rank in wanted]), MOST_BARS, side="right")
    )
    kept = sorted(wanted[: max(n_fitting, len(shown))])
    slowest = max(kept, key=lambda rank: windows[rank][1] - windows[rank][0])
    table = timeline.filter(pc.is_in(timeline["rank"], pa.array(kept, pa.int64())))
    names = table["name"].combine_chunks().dictionary_encode()
    table = table.set_column(table.column_names.index("name"), "name", names.indices)
    ranks = []
    for rank in kept:
        own = table.filter(pc.field("rank") == rank)
        called = {"compute": _UNTOLD} if rank in untold else {}
        bars_of = ((lane, own.filter(pc.field("lane") == lane)) for lane in _LANES)
        lanes = {
            called.get(lane, lane): _bars(bars, origin) for lane, bars in bars_of if bars.num_rows
        }
        window = [time - origin for time in windows[rank]]
        ranks.append({"rank": rank, "isFirst": rank in first, "window": window, "lanes": lanes})
    return {
        "step": step,
        "end": max(end for _, end in windows.values()) - origin,
        "stretch": None
        if slowest in untold
        else _stretch(table, slowest, windows[slowest], origin),
        "n_ranks": len(counts),
        "n_shown": len(shown),
        "names": names.dictionary.to_pylist(),
        "ranks": ranks,
    }


def n_bars(data: Mapping[str, Any]) -> int:
    """Return how many bars the data hold, which say how large a page gets."""
    return sum(len(bars["start"]) for rank in data["ranks"] for bars in rank["lanes"].values())


def _stretch(
    timeline: pa.Table, rank: int, window: tuple[int, int], origin: int
) -> dict[str, int] | None:
    """Return where a rank is longest without compute in its window: between bars, of which none is joined there."""
    compute = timeline.filter((pc.field("rank") == rank) & (pc.field("lane") == "compute"))
    if not compute.num_rows:
        return None
    begin, end = window
    starts = np.append(begin, compute["end_ns"].to_numpy())
    ends = np.append(compute["start_ns"].to_numpy(), end)
    at = int(np.argmax(ends - starts))
    known = {"rank": rank, "start": int(starts[at]) - origin, "end": int(ends[at]) - origin}
    return known if ends[at] - starts[at] > _LEAST_STRETCH * (end - begin) else None


def _bars(rows: pa.Table, origin: int) -> dict[str, list[int]]:
    columns = ("start_ns", "end_ns", "name", "busy_ns", "n_operations", "seq")
    start, end, name, busy, n, seq = (
        pc.fill_null(rows[column], _NONE).to_numpy() for column in columns
    )
    bars = {
        "start": (start - origin).tolist(),
        "length": (end - start).tolist(),
        "name": name.tolist(),
    }
    # Mostly bars are single operations, which need no more words.
    usual = {"busy": (busy, end - start), "n": (n, 1), "seq": (seq, _NONE)}
    bars |= {
        column: values.tolist()
        for column, (values, most) in usual.items()
        if (values != most).any()
    }
    # Both are known of all bars of a lane, or of none.
    known = {column: rows[f"{column}_ns"] for column in ("exposed", "wait")}
    return bars | {
        column: values.to_pylist() for column, values in known.items() if not values.null_count
    }


def lane_legend(
    ranks: Sequence[Mapping[str, Any]], names: Sequence[str] = ()
) -> list[tuple[str, str]]:
    """Return what is drawn of any of the ``ranks`` of a timeline with these names: category of the palette, and words."""
    lanes = {lane for rank in ranks for lane in rank["lanes"]}
    for bars in (rank["lanes"]["comm"] for rank in ranks if "comm" in rank["lanes"]):
        busy = sum(bars.get("busy", bars["length"]))
        parts = {"hidden": sum(bars.get("exposed", ())), "transfer": sum(bars.get("wait", [busy]))}
        lanes |= {rest for rest, ns in parts.items() if ns < busy}
    phases = {
        names[at]
        for rank in ranks
        if names
        for at in rank["lanes"].get("phase", {"name": ()})["name"]
    }
    legend = [(category, words) for lane, category, words in _LEGEND if lane in lanes]
    return legend + [(phase, f"{phase} phase") for phase in LOOP if phase in phases]


def timeline_table(
    timeline: pa.Table,
    steps: pa.Table,
    listed: Sequence[int] | None = None,
    *,
    is_capture: bool = False,
    names: RankNames | None = None,
) -> Table:
    """Return per rank, of many those `listed`, when its window begins and ends, how long its lanes are busy, and when its phases run.

    Times count from the first rank's start. What was not recorded, or is not known, is a dash. A
    phase that runs several times is shown from its first start to its last end.
    """
    of_step = steps.filter(pc.equal(steps["step"], timeline["step"][0]))
    origin = pc.min(of_step["start_ns"]).as_py()
    rows = [row for row in of_step.to_pylist() if listed is None or row["rank"] in listed]
    sums = (
        timeline.group_by(["rank", "lane"], use_threads=False)
        .aggregate([("busy_ns", "sum")])
        .to_pylist()
    )
    busy = {(row["rank"], row["lane"]): row["busy_ns_sum"] for row in sums}
    ends = timeline.filter(pc.equal(timeline["lane"], "phase")).group_by(
        ["rank", "name"], use_threads=False
    )
    ends = ends.aggregate([("start_ns", "min"), ("end_ns", "max")]).to_pylist()
    spans = {(row["rank"], row["name"]): (row["start_ns_min"], row["end_ns_max"]) for row in ends}
    lanes = [
        one
        for one in _BUSY
        if one[1] in {"compute", "memory"} or any(row["comm_ns"] != 0 for row in rows)
    ]
    ran = {phase for _, phase in spans}
    whole = "capture" if is_capture else "step"
    spans |= {(row["rank"], whole): (row["start_ns"], row["end_ns"]) for row in rows}

    def lane_time(lane: str, known: str, row: Mapping[str, Any]) -> str:
        return absent if row[known] is None else ms_text(busy.get((row["rank"], lane), 0))

    def span(name: str, row: Mapping[str, Any]) -> str:
        times = in_one_unit([ms_text(time - origin) for time in spans.get((row["rank"], name), ())])
        return " \N{EN DASH} ".join(times) or absent

    names = names or RankNames()
    fields = [
        Field("rank", lambda row: names.name(row["rank"])),
        Field(f"{whole}, from and to", partial(span, whole)),
        *(Field(heading, partial(lane_time, lane, known)) for heading, lane, known in lanes),
        *(Field(f"{phase}, from and to", partial(span, phase)) for phase in LOOP if phase in ran),
    ]
    return table_of(
        f"Timeline of the {whole}, per rank", rows, fields, table_note(len(rows), of_step.num_rows)
    )
