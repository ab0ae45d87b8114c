"""The charts of a run's page, each with the same figures as a table: where time goes, steps over time, collectives."""

from __future__ import annotations

import heapq
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from nsyspipe.analysis.intervals import places_in_runs, run_starts
from nsyspipe.model.figures import FIGURES
from nsyspipe.report.blocks import Field, of, table_of
from nsyspipe.report.html.page import Chart, meaning_of
from nsyspipe.report.run import table_note
from nsyspipe.report.units import (
    absent,
    bandwidth_text,
    bytes_text,
    ms_text,
    percent_text,
    with_share,
)
from nsyspipe.report.words import WITHOUT_END, steps_without_end
from nsyspipe.run.rank_names import RankNames

# Parts of a step that sum to its wall time: category of the palette, words, and meaning.
_PARTS = (
    ("compute", "compute alone", meaning_of("compute alone")),
    ("hidden", "compute during communication", meaning_of("compute during communication")),
    ("exposed", "exposed communication", FIGURES["exposed_comm_ns"].definition),
    ("copies", "exposed copies", FIGURES["exposed_memory_ns"].definition),
    ("idle", "idle", FIGURES["idle_ns"].definition),
)
_WITHOUT_COMM = (("compute", "compute", ""), _PARTS[3], _PARTS[4])
_RANKS_HINT = (
    "Each bar is the mean over the steps used. Percentages are shares of the step time. "
    "The thin bar is the total communication of the rank, overlapped or not, split into wait "
    "time and transfer time."
)
_DRAWN = (
    "step",
    "rank",
    "wall_ns",
    "fastest_rank",
    "fastest_wall_ns",
    "median_wall_ns",
    "walls_ns",
    "mark",
)
_SUMMED = (
    "wall_ns",
    "compute_ns",
    "overlap_compute_ns",
    "exposed_comm_ns",
    "exposed_memory_ns",
    "idle_ns",
    "comm_ns",
    "wait_ns",
    "transfer_ns",
)
# Columns from which on a chart zooms; ranks that have a column of their own; sizes of messages to
# draw speeds over.
_BY_NUMBER = RankNames()
_ZOOMED_FROM = 12
_RANK_COLUMNS = 8
_SIZES = 3
BAR_HEIGHT = 32  # of a rank, px
MOST_COLUMNS = 400  # more are narrower than a pixel or two
_DOTS = 16  # of the ranks of a step
# Columns of a chart (a step may have thousands of short ones); rows of medians, of longer runs
# steps taken evenly.
MOST_COLLECTIVES = 240
_MOST_ROWS = 400_000
_SHOWN_WAITS = 10
THIN = (
    ("waiting", "wait time"),
    ("transfer", "transfer time"),
)  # in the legend of the bar below that of a rank
_CALL = ["step", "collective", "seq"]
_NTH = ["nth", "collective"]
_LENGTH = "length_ns"
_MEASURED = ("transfer_ns", "message_bytes", "busbw_bytes_per_s")
_OF_MEDIANS = (*_CALL, "rank", "start_ns", "end_ns", "wait_ns", *_MEASURED)


class After(Struct, frozen=True):
    """The step time that a simulation predicts for the first recommendation, with its range."""

    ns: float
    low_ns: float
    high_ns: float


def legend(rows: Iterable[Mapping[str, int]], *, has_comm: bool) -> list[tuple[str, str]]:
    """Return which parts of a step, of `parts_of`, take time in some row: category of the palette, and words."""
    names = {name for row in rows for name, ns in row.items() if ns}
    return [
        (category, words)
        for category, words, _ in (_PARTS if has_comm else _WITHOUT_COMM)
        if category in names
    ]


def parts_of(row: Mapping[str, Any]) -> dict[str, int]:
    """Split a wall time exactly: compute alone, compute with communication beside it, exposed comm, copies, idle.

    Where one of them was not recorded, those of the last three that are known by themselves.
    """
    compute = row["compute_ns"]
    hidden = row["overlap_compute_ns"]
    parts = {
        "exposed": row["exposed_comm_ns"],
        "copies": row["exposed_memory_ns"],
        "idle": row["idle_ns"],
    }
    if None in {compute, hidden, *parts.values()}:
        return {name: ns for name, ns in parts.items() if ns is not None}
    return {"compute": compute - hidden, "hidden": hidden, **parts}


def names_in_data(names: RankNames) -> dict[str, Any]:
    """Return what a chart's data have of ranks that are not called by their number alone; nothing where there are none."""
    return (
        {"rank_names": {str(rank): name for rank, name in names.names.items()}}
        if names.names
        else {}
    )


def rank_chart(
    steps: pa.Table,
    ranks: Sequence[int],
    listed: Sequence[int] | None = None,
    *,
    caption: str = "",
    is_capture: bool = False,
    has_comm: bool = True,
    names: RankNames = _BY_NUMBER,
    step_ns: float | None = None,
    after: After | None = None,
) -> Chart | None:
    """Return where the time of summary steps goes, per rank: some ranks drawn, those that are `listed`, or all, in the table.

    The data are sums over the steps in ns, to be divided by their number: ``n_steps``, ``whole``
    (what a bar is of), and ``ranks``: ``wall``, ``parts`` (see `parts_of`), ``comm``, ``wait``,
    ``transfer``. ``step`` is what the shares in the bars are of, so that the whole first screen has
    one denominator; ``after`` is drawn below the ranks. None without summary steps.
    """
    options = pc.ScalarAggregateOptions(skip_nulls=False, min_count=1)
    summed = steps.group_by("rank", use_threads=False).aggregate(
        [(name, "sum", options) for name in _SUMMED]
    )
    columns = [name.removesuffix("_sum") for name in summed.column_names]
    rows = summed.rename_columns(columns).sort_by("rank").to_pylist()
    shown = [row for row in rows if row["rank"] in set(ranks)]
    times = ("wall", "comm", "wait", "transfer")
    drawn = [
        {"rank": row["rank"], "parts": parts_of(row), **{key: row[f"{key}_ns"] for key in times}}
        for row in shown
    ]
    if not drawn:
        return None
    n_ranks = len(rows)
    rows = [row for row in rows if listed is None or row["rank"] in listed]
    n_steps = pc.count_distinct(steps["step"]).as_py()
    label = (
        "Where the time of the capture goes, per rank"
        if is_capture
        else "Where each step's time goes, per rank"
    )
    whole = "capture" if is_capture else "step"

    def mean(total: int | None) -> str:
        return ms_text(None if total is None else total / n_steps)

    def part(name: str, row: Mapping[str, Any]) -> str:
        time = parts_of(row).get(name)
        wall = row["wall_ns"]
        return with_share(mean(time), None if time is None or not wall else time / wall)

    parts = _WITHOUT_COMM if all(row["comm_ns"] == 0 for row in rows) else _PARTS
    split = {
        "total communication": "comm_ns",
        "wait time": "wait_ns",
        "transfer time": "transfer_ns",
    }
    fields = [
        Field("rank", lambda row: names.name(row["rank"])),
        Field(whole, of("wall_ns", mean)),
        *(Field(words, partial(part, name), hint=hint) for name, words, hint in parts),
        *(Field(words, of(name, mean)) for words, name in split.items() if parts is _PARTS),
    ]
    data = {
        "n_steps": n_steps,
        "whole": whole,
        "ranks": drawn,
        "step": step_ns,
        **names_in_data(names),
    }
    if after is not None:
        data["after"] = {"ns": after.ns, "low": after.low_ns, "high": after.high_ns}
    thin = [
        pair
        for pair, time in zip(THIN, times[2:], strict=True)
        if has_comm and any(row[time] for row in drawn)
    ]
    colours = [*legend((row["parts"] for row in drawn), has_comm=has_comm), *thin]
    n_rows = len(drawn) + (after is not None)
    height = 36 + BAR_HEIGHT * n_rows
    table = table_of(label, rows, fields, table_note(len(rows), n_ranks))
    return Chart(
        "step-bars",
        "Overview",
        label,
        height,
        data,
        table,
        caption,
        colours,
        hint=_RANKS_HINT if thin else "",
    )


def step_rows(steps: pa.Table, skipped: Sequence[int], n_ranks: int) -> list[dict[str, Any]]:
    """Return one row per step, in order of time: the slowest rank's row of `schema.STEPS` (tie: the lowest) and more.

    ``fastest_rank``, ``fastest_wall_ns``, ``median_wall_ns``, ``walls_ns`` of its ranks, longest
    first (of many some, evenly), ``begin_ns``, and ``mark``: ``""`` for a step in the figures, else
    why it is not.
    """
    if not steps.num_rows:
        return []
    endless = steps_without_end(steps)
    step, wall, rank, start = (
        np.asarray(steps[name].to_numpy()) for name in ("step", "wall_ns", "rank", "start_ns")
    )
    order = np.lexsort((-wall, step))  # rows are in order of rank
    first = run_starts(step[order])
    rows: list[dict[str, Any]] = steps.take(pa.array(order[first])).to_pylist()
    columns = (np.split(values[order], first[1:]) for values in (wall, rank, start))
    for row, walls, ranks, starts in zip(rows, *columns, strict=True):
        dots = np.linspace(0, walls.size - 1, min(walls.size, _DOTS)).astype(int)
        row |= {
            "fastest_rank": int(ranks[-1]),
            "fastest_wall_ns": int(walls[-1]),
            "begin_ns": int(starts.min()),
        }
        row |= {"median_wall_ns": float(np.median(walls)), "walls_ns": walls[dots].tolist()}
        why = "incomplete" if walls.size == n_ranks else "not on every rank"
        why = WITHOUT_END if row["step"] in endless else why
        row["mark"] = "skipped" if row["step"] in skipped else "" if row["in_summary"] else why
    return sorted(rows, key=lambda row: (row["begin_ns"], row["step"]))


def step_chart(
    rows: Sequence[dict[str, Any]], *, has_comm: bool = True, names: RankNames = _BY_NUMBER
) -> Chart | None:
    """Return the chart of `step_rows`, of more than `MOST_COLUMNS` the slowest of each ``per_column``; None without steps."""
    if not rows:
        return None
    per_column = max(-(-len(rows) // MOST_COLUMNS), 1)
    shown = [
        max(rows[at : at + per_column], key=lambda row: row["wall_ns"])
        for at in range(0, len(rows), per_column)
    ]
    parts = [parts_of(row) for row in shown]
    shares = (
        "compute_share",
        "exposed_comm_share",
        "exposed_memory_share",
        "idle_share",
        "wait_share",
    )
    silent = (
        {"exposed_comm_share", "wait_share"} if all(row["comm_ns"] == 0 for row in rows) else set()
    )
    fields = [
        Field("step", of("step")),
        Field(FIGURES["step_time_ns"].short, of("wall_ns", ms_text)),
        Field("slowest rank", lambda row: names.name(row["rank"])),
        *(
            Field(FIGURES[name].short, of(name, percent_text))
            for name in shares
            if name not in silent
        ),
        Field("fastest rank", lambda row: names.name(row["fastest_rank"])),
        Field("fastest rank's time", of("fastest_wall_ns", ms_text)),
        Field("median of ranks", of("median_wall_ns", ms_text)),
        Field("used", lambda row: row["mark"] or "yes", "text"),
    ]
    told = [
        field
        for field in fields
        if "rank" not in field.heading or any(len(row["walls_ns"]) > 1 for row in rows)
    ]
    note = (
        f"Each column is the slowest of {per_column} steps. --json has all steps."
        if per_column > 1
        else None
    )
    data: dict[str, Any] = {name: [row[name] for row in shown] for name in _DRAWN}
    data |= names_in_data(names)
    data["parts"] = {name: [row.get(name) for row in parts] for name, _, _ in _PARTS}
    table = table_of("Steps over time, shares of the slowest rank", shown, told, note)
    caption = f"{len(rows)} steps in {len(shown)} columns." if per_column > 1 else ""
    colours = legend(parts, has_comm=has_comm)
    has_zoom = len(rows) > _ZOOMED_FROM
    return Chart(
        "step-columns",
        "Steps",
        "Step time over steps",
        260,
        data,
        table,
        caption,
        colours,
        has_zoom,
    )


def collective_charts(
    medians: Medians, whole: str = "a step", names: RankNames = _BY_NUMBER
) -> list[Chart]:
    """Return the collectives in order of what they are part of, and message size against bus bandwidth where sizes are known; none without any.

    The table has the wait of each of few ranks, of many the longest.
    """
    rows = medians.rows
    if not rows:
        return []
    ranks = medians.ranks if len(medians.ranks) <= _RANK_COLUMNS else []
    messages = [
        Field("message", of("bytes", bytes_text)),
        Field(FIGURES["busbw_bytes_per_s"].short, of("busbw", bandwidth_text)),
    ]
    fields = [
        Field("place", of("seq")),
        Field("collective", of("collective"), "text"),
        *(
            [Field("steps", of("n_steps"), hint="steps used that have the collective")]
            if len({row["n_steps"] for row in rows}) > 1
            else []
        ),
        Field(
            "longest duration",
            of("duration", ms_text),
            hint="Median of the rank that needs longest, with its wait time.",
        ),
        Field(
            FIGURES["transfer_ns"].short,
            of("transfer", ms_text),
            hint="Transfer time, median over ranks and steps.",
        ),
        Field(
            "longest wait", lambda row: ms_text(row["longest"][0][1] if row["longest"] else None)
        ),
        Field(
            "waiting rank",
            lambda row: (
                names.name(row["longest"][0][0]) if any(ns for _, ns in row["longest"]) else absent
            ),
        ),
        *(
            Field(
                f"rank {names.name(rank)} waits ms",
                partial(lambda at, row: ms_text(row["wait"].get(at)), rank),
                unit="ms",
            )
            for rank in ranks
        ),
        *(messages if any(row["bytes"] for row in rows) else []),
    ]
    label = f"Collectives in the order of {whole}"
    section = "Communication"
    drawn = ("seq", "collective", "n_steps", "transfer", "duration", "longest", "n_waits")
    data: dict[str, Any] = {name: [row[name] for row in rows] for name in drawn}
    data |= names_in_data(names)
    data["axis"] = f"place in {whole.replace('a ', 'the ')}"
    data["axis"] += f" ({medians.n_left_out} shorter left out)" if medians.n_left_out else ""
    colours = [("transfer", "transfer time")] * any(row["transfer"] for row in rows)
    colours += [("waiting", "longest wait time of a rank")] * any(
        row["longest"][0][1] for row in rows if row["longest"]
    )
    colours += [("untold", "duration, because transfer and wait time are not known")] * any(
        row["transfer"] is None for row in rows
    )
    table = table_of(label, rows, fields, medians.note)
    has_zoom = len(rows) > _ZOOMED_FROM
    order = Chart(
        "collectives", section, label, 260, data, table, legend=colours, has_zoom=has_zoom
    )
    sized = [row for row in rows if row["bytes"] and row["busbw"]]
    if len({row["bytes"] for row in sized}) < _SIZES:
        return [order]
    data = {
        name: [row[name] for row in sized]
        for name in ("seq", "collective", "bytes", "busbw", "transfer")
    }
    caption = "The table of the chart above has the same values."
    label = "Message size and bus bandwidth of each collective"
    return [order, Chart("sizes", section, label, 260, data, None, caption)]


def collective_facts(collectives: pa.Table, step: int) -> dict[str, list[float | None]]:
    """Return by place in a step message bytes, bus bandwidth and the rank that came last, each null where it is not known."""
    facts: dict[str, list[float | None]] = {}
    columns = ["seq", "rank", "late_by_ns", "message_bytes", "busbw_bytes_per_s"]
    for row in collectives.select(columns).filter(pc.equal(collectives["step"], step)).to_pylist():
        about = facts.setdefault(
            str(row["seq"]), [row["message_bytes"], row["busbw_bytes_per_s"], None]
        )
        about[2] = row["rank"] if row["late_by_ns"] else about[2]
    return facts


class Medians(NamedTuple):
    """One row per collective of a step that is drawn, in order."""

    # ``seq``, ``collective``, ``n_steps`` (that have it), ``duration`` (ns, median over steps of
    # the rank where it is longest), ``transfer`` (median over ranks and steps; None unless
    # matched), ``wait`` (by rank, median over steps), ``longest`` (rank and wait of some of these,
    # the longest first), ``n_waits`` (how many are known), ``bytes``, ``busbw``
    rows: list[dict[str, Any]]
    ranks: list[int]
    note: str  # what the figures are medians over, what is left out, and what could not be matched
    n_left_out: int  # shorter ones, before, between and behind the rows


def collective_medians(collectives: pa.Table, whole: str = "a step") -> Medians:
    """Return the collectives of summary steps, or of a capture as a `whole`; of more than `MOST_COLLECTIVES` those that take most time."""
    in_summary = collectives["in_summary"]
    steps = collectives["step"].filter(in_summary).unique().to_pylist()
    n_used = len(steps)
    n_steps = len(steps)
    n_rows = pc.sum(in_summary).as_py() or 0
    if n_rows > _MOST_ROWS:
        n_used = max(n_steps * _MOST_ROWS // n_rows, 1)
        used = [steps[at * n_steps // n_used] for at in range(n_used)]
        in_summary = pc.and_(in_summary, pc.is_in(collectives["step"], pa.array(used, pa.int64())))
    rows, n_all, n_of_some = (
        _rows(collectives.select(_OF_MEDIANS).filter(in_summary)) if n_rows else ([], 0, 0)
    )
    table = collectives.select(["step", "rank", "is_matched"]).filter(in_summary)
    n_left_out = n_all - len(rows)
    of_steps = f"{n_used} of {n_steps} steps" if n_used < n_steps else f"the {n_steps} steps used"
    notes = [f"Times are medians over {of_steps}."]
    if n_used == n_steps <= 1:
        notes = ["There is one step used."] if whole == "a step" else []
    if n_left_out:
        notes.append(f"These are the {len(rows)} longest of {n_all} collectives.")
    if n_of_some:
        notes.append(
            f"{n_of_some} of {n_all} collectives are in some steps only. The n-th collective "
            "of a kind is taken for the same "
            "collective in all steps."
        )
    # Transfer and waits rest on the steps in which any operation is matched.
    masks = (table["is_matched"], pc.invert(table["is_matched"]))
    matched, unmatched = (set(table["step"].filter(mask).unique().to_pylist()) for mask in masks)
    if n_used and not matched:
        notes.append("Transfer time and wait time are not known. The notes have the reason.")
    elif len(matched - unmatched) < n_used:
        how_many = "some" if matched & unmatched else "all"
        notes.append(
            f"Transfer time and wait time rest on the {len(matched)} steps in which {how_many} "
            "collectives could be matched."
        )
    return Medians(rows, sorted(table["rank"].unique().to_pylist()), " ".join(notes), n_left_out)


def _rows(table: pa.Table) -> tuple[list[dict[str, Any]], int, int]:
    """Return one row per collective, in order; how many there are with those left out, and how many only some steps have.

    The n-th of its kind is one collective in all steps that have it, whatever else is in some of
    them.
    """
    calls = (
        table.group_by(_CALL, use_threads=False)
        .aggregate([])
        .sort_by([(name, "ascending") for name in _CALL])
    )
    kind = calls["collective"].combine_chunks().dictionary_encode()
    nth = places_in_runs(calls["step"].to_numpy() * len(kind.dictionary) + kind.indices.to_numpy())
    table = table.join(calls.append_column("nth", pa.array(nth)), _CALL)
    table = table.append_column(_LENGTH, pc.subtract(table["end_ns"], table["start_ns"]))
    # What ends before the last rank starts, as a broadcast's root may, waits until its own end
    # only.
    waited = pc.min_element_wise(table["wait_ns"], table[_LENGTH], skip_nulls=False)
    table = table.drop_columns("wait_ns").append_column("wait_ns", waited)
    means = [("seq", "mean"), (_LENGTH, "mean"), ("step", "count_distinct")]
    kinds = table.group_by(_NTH, use_threads=False).aggregate(means)
    kinds = kinds.sort_by([(name, "ascending") for name in ("seq_mean", *_NTH)])
    kinds = kinds.append_column("place", pa.array(range(kinds.num_rows)))
    of_kinds = kinds.rename_columns({"step_count_distinct": "n_steps"}).to_pylist()
    longest = kinds.sort_by([(f"{_LENGTH}_mean", "descending"), ("place", "ascending")]).slice(
        0, MOST_COLLECTIVES
    )
    table = table.join(longest.select([*_NTH, "place"]), _NTH, join_type="inner")
    waits: dict[int, dict[int, float | None]] = {}
    lengths: dict[int, float] = {}
    for place, rank, wait, length in _medians(table, ["place", "rank"], ["wait_ns", _LENGTH]):
        waits.setdefault(place, {})[rank] = wait
        lengths[place] = max(lengths.get(place, 0.0), length)
    rows = []
    for place, transfer, n_bytes, busbw in _medians(table, ["place"], _MEASURED):
        known = [(rank, ns) for rank, ns in waits[place].items() if ns is not None]
        longest_waits = heapq.nsmallest(_SHOWN_WAITS, known, key=lambda pair: (-pair[1], pair[0]))
        rows.append(
            {
                "seq": place,
                **{name: of_kinds[place][name] for name in ("collective", "n_steps")},
                "duration": lengths[place],
                "wait": waits[place],
                "longest": longest_waits,
                "n_waits": len(known),
                "transfer": transfer,
                "bytes": n_bytes,
                "busbw": busbw,
            }
        )
    n_steps = pc.count_distinct(calls["step"]).as_py()
    return rows, len(of_kinds), sum(one["n_steps"] < n_steps for one in of_kinds)


def _medians(table: pa.Table, keys: list[str], columns: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    lists = table.group_by(keys, use_threads=False).aggregate([(name, "list") for name in columns])
    lists = lists.sort_by([(name, "ascending") for name in keys])
    # One by one, since what is known of all rows takes far more memory as Python's numbers.
    known = (
        ([n for n in values.as_py() if n is not None] for values in lists[f"{name}_list"])
        for name in columns
    )
    medians = (
        [float(statistics.median(values)) if values else None for values in rows] for rows in known
    )
    return zip(*(lists[name].to_pylist() for name in keys), *medians, strict=True)
