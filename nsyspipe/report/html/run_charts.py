"""The charts of a run's page, each with the same values as a table.

They show where the time goes, steps over time, and collectives.
"""

from __future__ import annotations

import heapq
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from nsyspipe.analysis.intervals import places_in_runs, run_starts
from nsyspipe.model.figures import FIGURES
from nsyspipe.model.names import noun_for, verb_for
from nsyspipe.model.typed_tables import (
    CollectivesTable,
    StepsColumn,
    StepsTable,
)
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
_PARTS_WITHOUT_COMM = (("compute", "compute", ""), _PARTS[3], _PARTS[4])
_RANKS_HINT = (
    "Each bar is the mean over the steps used. Percentages are shares of the step time. "
    "The thin bar is the total communication of the rank, overlapped or not, split into wait "
    "time and transfer time."
)
# Keys of a row of `step_rows` that the chart of the steps needs.
_STEP_KEYS_IN_DATA = (
    "step",
    "rank",
    "wall_ns",
    "fastest_rank",
    "fastest_wall_ns",
    "median_wall_ns",
    "walls_ns",
    "mark",
)
_STEP_SHARES = (
    "compute_share",
    "exposed_comm_share",
    "exposed_memory_share",
    "idle_share",
    "wait_share",
)
_SHARES_OF_COMM = frozenset({"exposed_comm_share", "wait_share"})
# Columns of the steps that are summed for the bar of a rank.
_SUMMED_COLUMNS = (
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
# Sums that the data of a rank's bar have besides its parts.
_RANK_TIMES = ("wall", "comm", "wait", "transfer")
_RANKS_BY_NUMBER = RankNames()
# A chart with more columns than this zooms.
MAX_COLUMNS_WITHOUT_ZOOM = 12
# The table of collectives has a column for each rank of up to this many ranks.
MAX_RANK_COLUMNS = 8
# Speed is drawn over message size only if there are at least this many sizes.
MIN_MESSAGE_SIZES = 3
# Height of the bar of a rank, in pixels.
BAR_HEIGHT = 32
# More columns than this would be narrower than a pixel or two.
MOST_COLUMNS = 400
# A column of the steps has at most this many dots, which stand for its ranks.
MAX_DOTS_PER_STEP = 16
# Collectives of a step that are drawn. A step may have thousands of short ones.
MOST_COLLECTIVES = 240
# Medians rest on at most this many rows. Of a longer run, evenly spaced steps are taken.
MAX_ROWS_OF_MEDIANS = 400_000
# Ranks whose wait in a collective is shown.
MAX_SHOWN_WAITS = 10
# Parts of the thin bar below that of a rank: category of the palette, and words in the legend.
THIN = (
    ("waiting", "wait time"),
    ("transfer", "transfer time"),
)
# Columns that tell one call of a collective from another, and their names over all steps.
_CALL_KEY = ["step", "collective", "seq"]
_COLLECTIVE_KEY = ["nth", "collective"]
_LENGTH = "length_ns"
_COUNTED_HINT = (
    "Bandwidth that hardware counters saw during transfer, and how it compares with bus bandwidth."
)
_COUNTED_COLUMNS = ("counted_bytes_per_s", "counted_ratio")
_MEASURED_COLUMNS = ("transfer_ns", "message_bytes", "busbw_bytes_per_s", *_COUNTED_COLUMNS)
_COLUMNS_OF_MEDIANS = (*_CALL_KEY, "rank", "start_ns", "end_ns", "wait_ns", *_MEASURED_COLUMNS)
# Keys of a row of `Medians` that the chart of the collectives needs, and that of their sizes.
_COLLECTIVE_KEYS_IN_DATA = (
    "seq",
    "collective",
    "n_steps",
    "transfer",
    "duration",
    "longest",
    "n_waits",
)
_SIZE_KEYS_IN_DATA = ("seq", "collective", "bytes", "busbw", "transfer")
# Where the facts of a collective have the rank that came last.
_PLACE_OF_LAST_RANK = 2
# Of collectives that hardware counters saw.
_COUNTED_KEYS_IN_DATA = ("counted", "counted_ratio")


class After(Struct, frozen=True):
    """The step time that a simulation predicts for the first recommendation, with its range."""

    ns: float
    low_ns: float
    high_ns: float


def legend(rows: Iterable[Mapping[str, int]], *, has_comm: bool) -> list[tuple[str, str]]:
    """Return the parts of a step that take time in any row, as categories of the palette and words.

    Each row is a result of `parts_of`.
    """
    drawn_categories = set()
    for ns_by_category in rows:
        drawn_categories |= {category for category, ns in ns_by_category.items() if ns}
    parts = _PARTS if has_comm else _PARTS_WITHOUT_COMM
    return [(category, words) for category, words, _ in parts if category in drawn_categories]


def parts_of(row: Mapping[str, Any]) -> dict[str, int]:
    """Split the wall time of a step into parts that sum exactly to it: ns by category of `_PARTS`.

    If any part was not recorded, the result has neither compute alone nor compute during
    communication. It then has those of the other parts that were recorded.
    """
    compute_ns = row["compute_ns"]
    compute_during_comm_ns = row["overlap_compute_ns"]
    parts_without_compute = {
        "exposed": row["exposed_comm_ns"],
        "copies": row["exposed_memory_ns"],
        "idle": row["idle_ns"],
    }
    if None in {compute_ns, compute_during_comm_ns, *parts_without_compute.values()}:
        return {name: ns for name, ns in parts_without_compute.items() if ns is not None}
    return {
        "compute": compute_ns - compute_during_comm_ns,
        "hidden": compute_during_comm_ns,
        **parts_without_compute,
    }


def names_in_data(names: RankNames) -> dict[str, Any]:
    """Return what the data of a chart hold of rank names; nothing if all ranks go by number."""
    if not names.names:
        return {}
    name_by_rank = {str(rank): name for rank, name in names.names.items()}
    return {"rank_names": name_by_rank}


def rank_chart(
    steps: StepsTable,
    ranks: Sequence[int],
    listed: Sequence[int] | None = None,
    *,
    caption: str = "",
    is_capture: bool = False,
    has_comm: bool = True,
    names: RankNames = _RANKS_BY_NUMBER,
    step_ns: float | None = None,
    after: After | None = None,
) -> Chart | None:
    """Return the chart of where the time of the summary steps goes, per rank; None without steps.

    The chart draws `ranks`. The table has the `listed` ranks, by default all.

    In the data, ``ranks`` has the sums of each rank over the steps in ns: ``wall``, ``parts`` (see
    `parts_of`), ``comm``, ``wait`` and ``transfer``. The script divides these sums by ``n_steps``.
    ``whole`` says what a bar shows: a step, or the capture. ``step`` is `step_ns`. It is 100 % for
    the shares in the bars, as everywhere on the first screen. ``after`` is the step time after a
    change, which is drawn below the ranks.
    """
    rank_rows = _sum_steps_by_rank(steps)
    drawn_ranks = set(ranks)
    rank_bars = [_rank_bar(row) for row in rank_rows if row["rank"] in drawn_ranks]
    if not rank_bars:
        return None
    n_steps = pc.count_distinct(steps["step"]).as_py()
    if is_capture:
        whole = "capture"
        label = "Where the time of the capture goes, per rank"
    else:
        whole = "step"
        label = "Where each step's time goes, per rank"
    data = {
        "n_steps": n_steps,
        "whole": whole,
        "ranks": rank_bars,
        "step": step_ns,
        **names_in_data(names),
    }
    n_bars = len(rank_bars)
    if after is not None:
        data["after"] = {"ns": after.ns, "low": after.low_ns, "high": after.high_ns}
        n_bars += 1
    listed_rows = _listed_rows(rank_rows, listed)
    fields = _rank_fields(listed_rows, n_steps, whole, names)
    note = table_note(len(listed_rows), len(rank_rows))
    table = table_of(label, listed_rows, fields, note)
    thin_bars = _thin_bars(rank_bars) if has_comm else []
    colours = legend(map(itemgetter("parts"), rank_bars), has_comm=has_comm)
    return Chart(
        name="step-bars",
        section="Overview",
        label=label,
        height=36 + BAR_HEIGHT * n_bars,
        data=data,
        table=table,
        caption=caption,
        legend=[*colours, *thin_bars],
        hint=_RANKS_HINT if thin_bars else "",
    )


def _listed_rows(
    rank_rows: list[dict[str, Any]], listed: Sequence[int] | None
) -> list[dict[str, Any]]:
    """Return the rows of the listed ranks, by default all."""
    if listed is None:
        return rank_rows
    return [row for row in rank_rows if row["rank"] in listed]


def _sum_steps_by_rank(steps: StepsTable) -> list[dict[str, Any]]:
    """Return a row per rank, by rank number, with the sums of `_SUMMED_COLUMNS` over the steps.

    A sum is None if the value of any step is null.
    """
    options = pc.ScalarAggregateOptions(skip_nulls=False, min_count=1)
    aggregations = [(name, "sum", options) for name in _SUMMED_COLUMNS]
    sums = steps.group_by("rank", use_threads=False).aggregate(aggregations)
    # Arrow calls the sum of a column NAME_sum.
    columns = [name.removesuffix("_sum") for name in sums.column_names]
    named_sums = sums.rename_columns(columns)
    by_rank = named_sums.sort_by("rank")
    rows: list[dict[str, Any]] = by_rank.to_pylist()
    return rows


def _rank_bar(rank_row: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is drawn of a row of `_sum_steps_by_rank`."""
    times = {name: rank_row[f"{name}_ns"] for name in _RANK_TIMES}
    parts = parts_of(rank_row)
    return {"rank": rank_row["rank"], "parts": parts, **times}


def _thin_bars(rank_bars: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return the parts of the thin bars that take time on any rank."""
    waiting, transfer = THIN
    parts = []
    if any(rank_bar["wait"] for rank_bar in rank_bars):
        parts.append(waiting)
    if any(rank_bar["transfer"] for rank_bar in rank_bars):
        parts.append(transfer)
    return parts


def _rank_fields(
    rank_rows: Sequence[Mapping[str, Any]], n_steps: int, whole: str, names: RankNames
) -> list[Field]:
    """Return the columns of the table of the ranks.

    They are mean times per step. The parts of the step also have their shares of the step time.
    """

    def mean_text(total_ns: int | None) -> str:
        mean_ns = None if total_ns is None else total_ns / n_steps
        return ms_text(mean_ns)

    def part_text(category: str, row: Mapping[str, Any]) -> str:
        part_ns = parts_of(row).get(category)
        wall_ns = row["wall_ns"]
        share = None
        if part_ns is not None and wall_ns:
            share = part_ns / wall_ns
        return with_share(mean_text(part_ns), share)

    has_comm = _may_have_comm(rank_rows)
    parts = _PARTS if has_comm else _PARTS_WITHOUT_COMM
    rank_field = Field("rank", lambda row: names.name(row["rank"]))
    whole_field = Field(whole, of("wall_ns", mean_text))
    fields = [rank_field, whole_field]
    for category, words, meaning in parts:
        field = Field(words, partial(part_text, category), hint=meaning)
        fields.append(field)
    if has_comm:
        fields += _comm_fields(mean_text)
    return fields


def _may_have_comm(rows: Iterable[Mapping[str, Any]]) -> bool:
    """Tell whether any row has communication, or communication that is not known (None)."""
    return any(row["comm_ns"] != 0 for row in rows)


def _comm_fields(mean_text: Callable[[int | None], str]) -> list[Field]:
    """Return the columns with the communication of a rank, as means over the steps."""
    comm_label = FIGURES["comm_ns"].label.lower()
    transfer_label = FIGURES["transfer_ns"].label.lower()
    comm = Field(comm_label, of("comm_ns", mean_text))
    wait = Field("wait time", of("wait_ns", mean_text))
    transfer = Field(transfer_label, of("transfer_ns", mean_text))
    return [comm, wait, transfer]


def step_rows(steps: StepsTable, skipped: Sequence[int], n_ranks: int) -> list[dict[str, Any]]:
    """Return a row per step, in order of time: the row of its slowest rank, with more keys.

    Of equally slow ranks, the lowest counts as the slowest. The keys are the columns of
    `schema.STEPS` and: ``fastest_rank``, ``fastest_wall_ns``, ``median_wall_ns``, ``begin_ns`` (the
    earliest start of any rank), ``walls_ns`` (the wall times of the ranks, longest first, or a
    sample of them if there are many), and ``mark`` (why the step is not used, or ``""``).
    """
    if not steps.num_rows:
        return []
    endless_steps = steps_without_end(steps)
    rows = []
    for walls in _walls_of_steps(steps):
        row = walls.row
        row |= _rank_figures(walls)
        step = row["step"]
        is_on_all_ranks = walls.wall_ns.size == n_ranks
        row["mark"] = _why_not_used(
            row,
            is_skipped=step in skipped,
            is_endless=step in endless_steps,
            is_on_all_ranks=is_on_all_ranks,
        )
        rows.append(row)
    return sorted(rows, key=itemgetter("begin_ns", "step"))


class _StepWalls(NamedTuple):
    """The wall times of one step on its ranks. The arrays have the slowest rank first."""

    # The row of the slowest rank.
    row: dict[str, Any]
    wall_ns: np.ndarray
    ranks: np.ndarray
    starts_ns: np.ndarray


def _walls_of_steps(steps: StepsTable) -> Iterator[_StepWalls]:
    """Yield the wall times of each step, in order of their numbers."""
    step = np.asarray(steps["step"].to_numpy())
    wall_ns = np.asarray(steps["wall_ns"].to_numpy())
    # Numbers of rows, sorted by step, which is the last key of `lexsort`. Within a step, the
    # longest wall time is first. Rows with equal times stay in order of rank, as in the table.
    sorted_rows = np.lexsort((-wall_ns, step))
    # Where each step begins among the sorted rows: with its slowest rank.
    step_starts = run_starts(step[sorted_rows])
    slowest_rows = pa.array(sorted_rows[step_starts])
    row_of_steps: list[dict[str, Any]] = [{**row} for row in steps.take(slowest_rows).to_pylist()]

    def arrays_of_steps(column: StepsColumn) -> list[np.ndarray]:
        values = steps[column].to_numpy()
        # Split before each step except the first.
        return np.split(values[sorted_rows], step_starts[1:])

    wall_ns_of_steps = arrays_of_steps("wall_ns")
    ranks_of_steps = arrays_of_steps("rank")
    starts_of_steps = arrays_of_steps("start_ns")
    yield from map(_StepWalls, row_of_steps, wall_ns_of_steps, ranks_of_steps, starts_of_steps)


def _rank_figures(walls: _StepWalls) -> dict[str, Any]:
    """Return the keys of `step_rows` about the ranks of a step."""
    wall_ns = walls.wall_ns
    n_dots = min(wall_ns.size, MAX_DOTS_PER_STEP)
    # Evenly spaced places among the sorted ranks, from the slowest to the fastest.
    drawn_places = np.linspace(0, wall_ns.size - 1, n_dots).astype(int)
    fastest_rank = int(walls.ranks[-1])
    fastest_wall_ns = int(wall_ns[-1])
    begin_ns = int(walls.starts_ns.min())
    median_wall_ns = float(np.median(wall_ns))
    return {
        "fastest_rank": fastest_rank,
        "fastest_wall_ns": fastest_wall_ns,
        "begin_ns": begin_ns,
        "median_wall_ns": median_wall_ns,
        "walls_ns": wall_ns[drawn_places].tolist(),
    }


def _why_not_used(
    row: Mapping[str, Any], *, is_skipped: bool, is_endless: bool, is_on_all_ranks: bool
) -> str:
    """Return in words why a step is not used; ``""`` if it is used."""
    if is_skipped:
        return "skipped"
    if row["in_summary"]:
        return ""
    if is_endless:
        return WITHOUT_END
    return "incomplete" if is_on_all_ranks else "not on every rank"


def step_chart(
    rows: Sequence[dict[str, Any]], *, has_comm: bool = True, names: RankNames = _RANKS_BY_NUMBER
) -> Chart | None:
    """Return the chart of the rows of `step_rows`; None without steps.

    A chart of up to `MOST_COLUMNS` steps has a column per step. In a longer one, a column stands
    for several consecutive steps and shows the slowest of them.
    """
    if not rows:
        return None
    n_steps = len(rows)
    n_steps_per_column = math.ceil(n_steps / MOST_COLUMNS)
    drawn_rows = _slowest_rows(rows, n_steps_per_column)
    note = None
    caption = ""
    if n_steps_per_column > 1:
        note = f"Each column is the slowest of {n_steps_per_column} steps. --json has all steps."
        caption = f"{n_steps} steps in {len(drawn_rows)} columns."
    parts = [parts_of(row) for row in drawn_rows]
    data = _columns_of(drawn_rows, _STEP_KEYS_IN_DATA)
    data |= names_in_data(names)
    data["parts"] = _part_columns(parts)
    fields = _step_fields(rows, names)
    title = "Steps over time, shares of the slowest rank"
    table = table_of(title, drawn_rows, fields, note)
    colours = legend(parts, has_comm=has_comm)
    return Chart(
        name="step-columns",
        section="Steps",
        label="Step time over steps",
        height=260,
        data=data,
        table=table,
        caption=caption,
        legend=colours,
        has_zoom=n_steps > MAX_COLUMNS_WITHOUT_ZOOM,
    )


def _slowest_rows(rows: Sequence[dict[str, Any]], n_steps: int) -> list[dict[str, Any]]:
    """Return the slowest of each `n_steps` consecutive rows, which have one step each."""
    slowest_rows = []
    for start in range(0, len(rows), n_steps):
        consecutive_rows = rows[start : start + n_steps]
        slowest_rows.append(max(consecutive_rows, key=itemgetter("wall_ns")))
    return slowest_rows


def _part_columns(parts: Sequence[Mapping[str, int]]) -> dict[str, list[int | None]]:
    """Return the times of each part by its category, in order of the columns of the chart.

    `parts` has a result of `parts_of` for each column. A time that is not known is None.
    """
    columns = {}
    for category, _, _ in _PARTS:
        columns[category] = [ns_by_category.get(category) for ns_by_category in parts]
    return columns


def _columns_of(rows: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> dict[str, Any]:
    """Return for each key the values of all rows, as the data of a chart have them."""
    return {key: list(map(itemgetter(key), rows)) for key in keys}


def _step_fields(rows: Sequence[Mapping[str, Any]], names: RankNames) -> list[Field]:
    """Return the columns of the table of the steps, without those that all rows leave empty."""
    has_comm = _may_have_comm(rows)
    has_several_ranks = any(len(row["walls_ns"]) > 1 for row in rows)
    step_time = Field(FIGURES["step_time_ns"].short, of("wall_ns", ms_text))
    fields = [Field("step", of("step")), step_time]
    if has_several_ranks:
        slowest_rank = Field("slowest rank", lambda row: names.name(row["rank"]))
        fields.append(slowest_rank)
    shares = [name for name in _STEP_SHARES if has_comm or name not in _SHARES_OF_COMM]
    fields += map(_share_field, shares)
    if has_several_ranks:
        fastest_rank = Field("fastest rank", lambda row: names.name(row["fastest_rank"]))
        fastest_time = Field("fastest rank's time", of("fastest_wall_ns", ms_text))
        median_time = Field("median of ranks", of("median_wall_ns", ms_text))
        fields += [fastest_rank, fastest_time, median_time]
    used = Field("used", _used_text, "text")
    return [*fields, used]


def _used_text(row: Mapping[str, Any]) -> str:
    """Return that a step is used, or why not."""
    why_not_used = str(row["mark"])
    return why_not_used or "yes"


def _share_field(name: str) -> Field:
    """Return the column of a metric that is a share."""
    return Field(FIGURES[name].short, of(name, percent_text))


def collective_charts(
    medians: Medians, whole: str = "a step", names: RankNames = _RANKS_BY_NUMBER
) -> list[Chart]:
    """Return the charts of the collectives of `whole`; none without collectives.

    The first chart shows the collectives in their order. Its table has the wait time of each rank
    if there are few ranks. The second chart shows bus bandwidth over message size. It is left out
    if fewer than `MIN_MESSAGE_SIZES` sizes are known.

    `whole` is ``"a step"`` or ``"the capture"``.
    """
    rows = medians.rows
    if not rows:
        return []
    label = f"Collectives in the order of {whole}"
    definite_whole = "the step" if whole == "a step" else whole
    axis = f"place in {definite_whole}"
    if medians.n_left_out:
        axis += f" ({medians.n_left_out} shorter left out)"
    data = _columns_of(rows, _COLLECTIVE_KEYS_IN_DATA)
    data |= names_in_data(names)
    data["axis"] = axis
    fields = _collective_fields(medians, names)
    table = table_of(label, rows, fields, medians.note)
    colours = _collective_legend(rows)
    in_order = Chart(
        name="collectives",
        section="Communication",
        label=label,
        height=260,
        data=data,
        table=table,
        legend=colours,
        has_zoom=len(rows) > MAX_COLUMNS_WITHOUT_ZOOM,
    )
    rows_with_size = [row for row in rows if row["bytes"] and row["busbw"]]
    sizes = {row["bytes"] for row in rows_with_size}
    if len(sizes) < MIN_MESSAGE_SIZES:
        return [in_order]
    keys = [*_SIZE_KEYS_IN_DATA]
    if _has_counted(rows_with_size):
        keys += _COUNTED_KEYS_IN_DATA
    over_size = Chart(
        name="sizes",
        section="Communication",
        label="Message size and bus bandwidth of each collective",
        height=260,
        data=_columns_of(rows_with_size, keys),
        table=None,
        caption="The table of the chart above has the same values.",
    )
    return [in_order, over_size]


def _has_counted(rows: Iterable[Mapping[str, Any]]) -> bool:
    """Tell whether hardware counters saw any of the collectives."""
    return any(row["counted"] is not None for row in rows)


def _longest_wait(row: Mapping[str, Any]) -> tuple[int, float] | None:
    """Return the rank that waits longest in a collective of `Medians`, and for how many ns.

    None if no wait is known.
    """
    # Pairs of rank and wait, the longest wait first.
    longest_waits: list[tuple[int, float]] = row["longest"]
    return longest_waits[0] if longest_waits else None


def _longest_wait_ns(row: Mapping[str, Any]) -> float | None:
    """Return the longest wait of any rank in a collective of `Medians`; None if none is known."""
    longest_wait = _longest_wait(row)
    if longest_wait is None:
        return None
    _, wait_ns = longest_wait
    return wait_ns


def _collective_legend(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return the colours that occur in the chart of the collectives, each with its meaning.

    A colour is a category of the palette.
    """
    colours = []
    if any(row["transfer"] for row in rows):
        colours.append(("transfer", "transfer time"))
    if any(_longest_wait_ns(row) for row in rows):
        colours.append(("waiting", "longest wait time of a rank"))
    if any(row["transfer"] is None for row in rows):
        colours.append(("untold", "duration, because transfer and wait time are not known"))
    return colours


def _collective_fields(medians: Medians, names: RankNames) -> list[Field]:
    """Return the columns of the table of the collectives.

    A column is left out if no row has a value for it, or if there are too many ranks for it.
    """

    def waiting_rank(row: Mapping[str, Any]) -> str:
        longest_wait = _longest_wait(row)
        if longest_wait is None:
            return absent
        rank, wait_ns = longest_wait
        return names.name(rank) if wait_ns else absent

    duration_hint = "Median of the rank that needs longest, with its wait time."
    transfer_hint = "Transfer time, median over ranks and steps."
    transfer_name = FIGURES["transfer_ns"].short
    place = Field("place", of("seq"))
    kind = Field("collective", of("collective"), "text")
    fields = [place, kind]
    distinct_n_steps = {row["n_steps"] for row in medians.rows}
    if len(distinct_n_steps) > 1:
        steps = Field("steps", of("n_steps"), hint="steps used that have the collective")
        fields.append(steps)
    duration = Field("longest duration", of("duration", ms_text), hint=duration_hint)
    transfer = Field(transfer_name, of("transfer", ms_text), hint=transfer_hint)
    wait = Field("longest wait", _longest_wait_text)
    fields += [duration, transfer, wait, Field("waiting rank", waiting_rank)]
    if len(medians.ranks) <= MAX_RANK_COLUMNS:
        fields += [_wait_field(rank, names.name(rank)) for rank in medians.ranks]
    if any(row["bytes"] for row in medians.rows):
        fields += _message_fields()
    if _has_counted(medians.rows):
        fields.append(_COUNTED_FIELD)
    return fields


def _counted_text(row: Mapping[str, Any]) -> str:
    """Return the counted bandwidth of a collective, and its ratio to bus bandwidth if known."""
    bandwidth = bandwidth_text(row["counted"])
    ratio = row["counted_ratio"]
    return bandwidth if ratio is None else f"{bandwidth} ({ratio:.2f}x)"


_COUNTED_FIELD = Field("counted", _counted_text, hint=_COUNTED_HINT)


def _message_fields() -> list[Field]:
    """Return the columns with message size and bus bandwidth."""
    message = Field("message", of("bytes", bytes_text))
    bandwidth_name = FIGURES["busbw_bytes_per_s"].short
    bandwidth = Field(bandwidth_name, of("busbw", bandwidth_text))
    return [message, bandwidth]


def _longest_wait_text(row: Mapping[str, Any]) -> str:
    longest_ns = _longest_wait_ns(row)
    return ms_text(longest_ns)


def _wait_field(rank: int, name: str) -> Field:
    """Return the column with the wait of one rank in each collective."""

    def wait_text(row: Mapping[str, Any]) -> str:
        wait_ns = row["wait"].get(rank)
        return ms_text(wait_ns)

    return Field(f"rank {name} waits ms", wait_text, unit="ms")


def collective_facts(collectives: pa.Table, step: int) -> dict[str, list[float | None]]:
    """Return what is known of each collective of a step, by its place (``seq``) as text.

    The values are: message bytes, bus bandwidth, the rank that came last. If hardware counters saw
    the collective, counted bandwidth and its ratio to bus bandwidth follow. A value that is not
    known is None.
    """
    facts: dict[str, list[float | None]] = {}
    columns = ["seq", "rank", "late_by_ns", "message_bytes", "busbw_bytes_per_s"]
    columns += _COUNTED_COLUMNS
    in_step = pc.equal(collectives["step"], step)
    rows = collectives.select(columns).filter(in_step).to_pylist()
    for row in rows:
        seq = str(row["seq"])
        if seq not in facts:
            # All ranks of a collective have these facts in common.
            facts[seq] = _shared_facts(row)
        # Only the rank that came last is late by more than 0.
        if row["late_by_ns"]:
            facts[seq][_PLACE_OF_LAST_RANK] = row["rank"]
    return facts


def _shared_facts(row: Mapping[str, Any]) -> list[float | None]:
    """Return the facts of a collective, with None in the place of the rank that came last."""
    facts = [row["message_bytes"], row["busbw_bytes_per_s"], None]
    if row["counted_bytes_per_s"] is not None:
        facts += [row[name] for name in _COUNTED_COLUMNS]
    return facts


class Medians(NamedTuple):
    """One row per collective of a step that is drawn, in order."""

    # ``seq``, ``collective``, ``n_steps`` (that have it), ``duration`` (ns, median over steps of
    # the rank where it is longest), ``transfer`` (median over ranks and steps; None unless
    # matched), ``wait`` (by rank, median over steps), ``longest`` (rank and wait of some of these,
    # the longest first), ``n_waits`` (how many are known), ``bytes``, ``busbw``, ``counted``
    # (bytes/s that counters saw), ``counted_ratio``
    rows: list[dict[str, Any]]
    ranks: list[int]
    # What the values are medians over, what is left out, and what could not be matched.
    note: str
    # Shorter collectives, before, between and behind the rows.
    n_left_out: int


class _CollectiveRows(NamedTuple):
    """The rows of `Medians`, and what they leave out."""

    rows: list[dict[str, Any]]
    # Collectives with those that are left out.
    n_all: int
    # Collectives that only some of the steps have.
    n_in_some_steps: int


class _SampledSteps(NamedTuple):
    """The steps that medians are computed over, evenly chosen from the summary steps."""

    n_steps: int
    n_used: int
    # Whether each row of the collectives is in one of the chosen steps.
    is_chosen: pa.ChunkedArray


def _sample_steps(collectives: pa.Table) -> _SampledSteps:
    """Choose the summary steps that medians are computed over, from the rows of all collectives.

    All are chosen if they have at most `MAX_ROWS_OF_MEDIANS` rows. Otherwise evenly spaced steps
    are chosen, which have about that many rows, but at least one step.
    """
    is_in_summary = collectives["in_summary"]
    summary_steps = collectives["step"].filter(is_in_summary).unique().to_pylist()
    n_steps = len(summary_steps)
    n_rows = pc.sum(is_in_summary).as_py() or 0  # Arrow's sum of no rows is null.
    if n_rows <= MAX_ROWS_OF_MEDIANS:
        return _SampledSteps(n_steps, n_steps, is_in_summary)
    # So many steps have about `MAX_ROWS_OF_MEDIANS` rows together.
    n_affordable_steps = n_steps * MAX_ROWS_OF_MEDIANS // n_rows
    n_used = max(n_affordable_steps, 1)
    # Evenly spaced, beginning with the first step.
    used_places = [number * n_steps // n_used for number in range(n_used)]
    used_steps = [summary_steps[place] for place in used_places]
    is_used = pc.is_in(collectives["step"], pa.array(used_steps, pa.int64()))
    is_chosen = pc.and_(is_in_summary, is_used)
    return _SampledSteps(n_steps, n_used, is_chosen)


def collective_medians(collectives: pa.Table, whole: str = "a step") -> Medians:
    """Return the medians of each collective over the summary steps, or over a sample of them.

    `whole` is ``"a step"``, or ``"the capture"`` if the capture is treated as one step.
    """
    sample = _sample_steps(collectives)
    used_rows = collectives.select(["step", "rank", "is_matched"]).filter(sample.is_chosen)
    if used_rows.num_rows:
        calls = collectives.select(_COLUMNS_OF_MEDIANS)
        collective_rows = _collective_rows(calls.filter(sample.is_chosen))
    else:
        collective_rows = _CollectiveRows([], n_all=0, n_in_some_steps=0)
    notes = [*_step_notes(sample.n_used, sample.n_steps, whole)]
    notes += _row_notes(collective_rows)
    notes += _matching_notes(used_rows, sample.n_used)
    ranks = sorted(used_rows["rank"].unique().to_pylist())
    n_left_out = collective_rows.n_all - len(collective_rows.rows)
    return Medians(collective_rows.rows, ranks, note=" ".join(notes), n_left_out=n_left_out)


def _step_notes(n_used: int, n_steps: int, whole: str) -> Iterator[str]:
    """Yield which steps the medians are over; nothing for a capture as a whole."""
    if n_used < n_steps:
        yield f"Times are medians over {n_used} of {n_steps} steps."
    elif n_steps > 1:
        yield f"Times are medians over the {n_steps} steps used."
    elif whole == "a step":
        yield "There is one step used."


def _row_notes(collective_rows: _CollectiveRows) -> Iterator[str]:
    """Yield how many collectives have no row, and how many are not in all steps."""
    n_shown = len(collective_rows.rows)
    n_all = collective_rows.n_all
    if n_shown < n_all:
        yield f"These are the {n_shown} longest of {n_all} collectives."
    n_in_some_steps = collective_rows.n_in_some_steps
    if n_in_some_steps:
        are = verb_for(n_in_some_steps, "are")
        yield (
            f"{n_in_some_steps} of {n_all} collectives {are} in some steps only. The "
            "n-th collective of a kind is taken for the same collective in all steps."
        )


def _matching_notes(used_rows: CollectivesTable, n_used: int) -> Iterator[str]:
    """Yield on which of the `n_used` steps transfer and wait time rest; nothing if on all of them.

    Both times are known of the collectives that were matched over the ranks. A step may have
    matched and unmatched collectives.
    """
    is_matched = used_rows["is_matched"]
    step = used_rows["step"]
    is_unmatched = pc.invert(is_matched)
    steps_with_matched = {*step.filter(is_matched).unique().to_pylist()}
    steps_with_unmatched = {*step.filter(is_unmatched).unique().to_pylist()}
    fully_matched_steps = steps_with_matched - steps_with_unmatched
    partly_matched_steps = steps_with_matched & steps_with_unmatched
    if n_used and not steps_with_matched:
        yield "Transfer time and wait time are not known. The notes have the reason."
    elif len(fully_matched_steps) < n_used:
        how_many = "some" if partly_matched_steps else "all"
        n_matched = len(steps_with_matched)
        steps = noun_for(n_matched, "step")
        yield (
            f"Transfer time and wait time rest on the {n_matched} {steps} in which "
            f"{how_many} collectives could be matched."
        )


def _collective_rows(calls: pa.Table) -> _CollectiveRows:
    """Return the rows of `Medians`: one for each of the longest collectives, in order of a step.

    `calls` has a row per rank for each call of a collective, with `_COLUMNS_OF_MEDIANS`. The n-th
    collective of a kind counts as the same collective in each step that has at least n of the kind.
    """
    # A row per call, whatever the number of ranks that take part.
    calls_of_all_ranks = calls.group_by(_CALL_KEY, use_threads=False).aggregate([])
    n_steps = pc.count_distinct(calls_of_all_ranks["step"]).as_py()
    nth_of_calls = _with_nth(calls_of_all_ranks)
    measured_calls = _with_lengths(calls.join(nth_of_calls, _CALL_KEY))
    # A row per collective, over all steps.
    collectives = _with_places(measured_calls)
    by_length = [(f"{_LENGTH}_mean", "descending"), ("place", "ascending")]
    longest_first = collectives.sort_by(by_length)
    longest = longest_first.slice(0, MOST_COLLECTIVES)
    places = longest.select([*_COLLECTIVE_KEY, "place"])
    drawn_calls = measured_calls.join(places, _COLLECTIVE_KEY, join_type="inner")
    name_of_place = collectives["collective"].to_pylist()
    n_steps_of_place = collectives["step_count_distinct"].to_pylist()
    rows = _median_rows(drawn_calls, name_of_place, n_steps_of_place)
    n_in_some_steps = sum(n_with_it < n_steps for n_with_it in n_steps_of_place)
    return _CollectiveRows(rows, len(name_of_place), n_in_some_steps)


def _with_lengths(calls: pa.Table) -> pa.Table:
    """Return calls with the column `_LENGTH`, and with wait times that are no longer than the call.

    The wait time of a rank lasts until the last rank starts. In a broadcast, the call of the root
    may end before that. Then the root waits only until its own call ends.
    """
    length_ns = pc.subtract(calls["end_ns"], calls["start_ns"])
    wait_ns = pc.min_element_wise(calls["wait_ns"], length_ns, skip_nulls=False)
    with_lengths = calls.append_column(_LENGTH, length_ns)
    without_waits = with_lengths.drop_columns("wait_ns")
    return without_waits.append_column("wait_ns", wait_ns)


def _with_nth(calls: pa.Table) -> pa.Table:
    """Return calls, sorted by `_CALL_KEY`, with the column ``nth``.

    ``nth`` counts the calls of one kind in one step from 0.
    """
    calls = calls.sort_by([(name, "ascending") for name in _CALL_KEY])
    kinds = calls["collective"].combine_chunks().dictionary_encode()
    n_kinds = len(kinds.dictionary)
    # Each pair of step and kind has a number of its own, because kinds are below `n_kinds`.
    lowest_number_of_step = calls["step"].to_numpy() * n_kinds
    pair_number = lowest_number_of_step + kinds.indices.to_numpy()
    # Calls of the same pair are neighbours after the sort.
    nth = places_in_runs(pair_number)
    return calls.append_column("nth", pa.array(nth))


def _with_places(calls: pa.Table) -> pa.Table:
    """Return one row per collective, by its ``place``: 0 for the first collective of a step.

    The place is by mean ``seq``. The row also has the mean length and the number of steps.
    """
    means = [("seq", "mean"), (_LENGTH, "mean"), ("step", "count_distinct")]
    collectives = calls.group_by(_COLLECTIVE_KEY, use_threads=False).aggregate(means)
    in_order = [(name, "ascending") for name in ("seq_mean", *_COLLECTIVE_KEY)]
    ordered = collectives.sort_by(in_order)
    places = range(ordered.num_rows)
    return ordered.append_column("place", pa.array(places))


def _median_rows(
    calls: pa.Table, name_of_place: Sequence[str], n_steps_of_place: Sequence[int]
) -> list[dict[str, Any]]:
    """Return the rows of `Medians`: one for each ``place`` that the calls have, in order.

    `name_of_place` and `n_steps_of_place` have the name of each collective, and the number of steps
    that have the collective. Both are indexed by its place.
    """
    times = _times_of_ranks(calls)
    rows = []
    # The place, and the medians in the order of `_MEASURED_COLUMNS`.
    medians_of_places = _medians(calls, ["place"], _MEASURED_COLUMNS)
    for place, transfer_ns, n_bytes, busbw, *counted in medians_of_places:
        wait_of_ranks = times.waits[place]
        known_waits = [(rank, ns) for rank, ns in wait_of_ranks.items() if ns is not None]
        longest_waits = heapq.nsmallest(MAX_SHOWN_WAITS, known_waits, key=_longest_wait_first)
        row = {
            "seq": place,
            "collective": name_of_place[place],
            "n_steps": n_steps_of_place[place],
            "duration": times.durations[place],
            "wait": wait_of_ranks,
            "longest": longest_waits,
            "n_waits": len(known_waits),
            "transfer": transfer_ns,
            "bytes": n_bytes,
            "busbw": busbw,
        }
        row |= zip(_COUNTED_KEYS_IN_DATA, counted, strict=True)
        rows.append(row)
    return rows


class _TimesOfRanks(NamedTuple):
    """The medians over steps of each collective in ns, by its place."""

    # By place and rank: the wait time; None if it is not known.
    waits: Mapping[int, Mapping[int, float | None]]
    # The length of the collective on the rank where it is longest.
    durations: Mapping[int, float]


def _times_of_ranks(calls: pa.Table) -> _TimesOfRanks:
    """Return the medians of each collective: wait times by rank, and the length.

    The length is that of the rank on which the median length is longest.
    """
    waits: dict[int, dict[int, float | None]] = {}
    durations: dict[int, float] = {}
    medians_of_ranks = _medians(calls, ["place", "rank"], ["wait_ns", _LENGTH])
    for place, rank, wait_ns, length_ns in medians_of_ranks:
        waits_of_place = waits.setdefault(place, {})
        waits_of_place[rank] = wait_ns
        longest_so_far_ns = durations.get(place, 0.0)
        durations[place] = max(longest_so_far_ns, length_ns)
    return _TimesOfRanks(waits, durations)


def _longest_wait_first(wait: tuple[int, float]) -> tuple[float, int]:
    """Return the key that sorts the longest wait first, and equal ones by rank."""
    rank, wait_ns = wait
    return -wait_ns, rank


def _medians(table: pa.Table, keys: list[str], columns: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """Yield a tuple per group of rows with the same keys: the keys, then the median of each column.

    The groups are sorted by their keys. A median is None if no value of the group is known.
    """
    in_lists = [(name, "list") for name in columns]
    by_keys = [(name, "ascending") for name in keys]
    groups = table.group_by(keys, use_threads=False).aggregate(in_lists)
    groups = groups.sort_by(by_keys)
    key_columns = [groups[name].to_pylist() for name in keys]
    median_columns = []
    for name in columns:
        # Of each group, an Arrow list of values. Each list becomes Python numbers on its own, since
        # all of them together take far more memory.
        lists_of_groups = groups[f"{name}_list"]
        median_columns.append(list(map(_median, lists_of_groups)))
    return zip(*key_columns, *median_columns, strict=True)


def _median(values: pa.ListScalar) -> float | None:
    """Return the median of the known values of a list; None without any."""
    known = [value for value in values.as_py() if value is not None]
    return float(statistics.median(known)) if known else None
