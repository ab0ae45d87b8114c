"""What matched collectives show of steps and ranks, and the tables of communication."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from nsyspipe.analysis import collectives as matching
from nsyspipe.analysis.counted_steps import LINK_NAMES
from nsyspipe.analysis.intervals import BLOCK, places_in_runs, run_starts, sums_of
from nsyspipe.analysis.operations import NO_SEQ
from nsyspipe.analysis.traffic import own_lateness, sum_held_up
from nsyspipe.model import schema
from nsyspipe.model.inspected import InspectedCalls
from nsyspipe.model.names import COLLECTIVES
from nsyspipe.model.table import FLOAT, INT, Flags, Float64, Int32, Int64, conform
from nsyspipe.model.typed_tables import (
    CollectivesColumn,
    CollectivesTable,
    StepsTable,
)
from nsyspipe.run.comm_rows import ABSENT, NONE, CommRows, comm_rows
from nsyspipe.run.counters import (
    NO_COUNTERS,
    CountedRanks,
    counted_bandwidths,
)
from nsyspipe.run.cross_rank import CrossRank, align_captures, relate_ranks
from nsyspipe.run.nccl_tunings import tuning_columns

__all__ = [
    "ABSENT",
    "NONE",
    "CommRows",
    "CrossRank",
    "MessageSizes",
    "StepWaits",
    "align_captures",
    "collective_figures",
    "collectives_table",
    "comm_rows",
    "message_sizes",
    "places_in_steps",
    "relate_ranks",
    "step_bytes",
    "step_waits",
    "stragglers_table",
]

# Columns that are known only of matched operations.
_MATCHED_COLUMNS = (
    "n_ranks",
    "arrival_skew_ns",
    "wait_ns",
    "transfer_ns",
    "late_by_ns",
    "held_up_ns",
    "is_late_significant",
)
_COLUMNS_FOR_STRAGGLERS: tuple[CollectivesColumn, ...] = (
    "step",
    "rank",
    "collective",
    "comm_id",
    "wait_ns",
    "late_by_ns",
    "held_up_ns",
)
_BYTES_OF_BANDWIDTHS = {"algbw_bytes_per_s": "message_bytes", "busbw_bytes_per_s": "bus_bytes"}
_COUNTED_COLUMNS = ("counted_bytes_per_s", "counted_link", "counted_ratio")
_SKIP_NO_NULL = pc.ScalarAggregateOptions(skip_nulls=False)


class StepWaits(Struct, frozen=True):
    """The wait time of each window."""

    wait_ns: Int64
    # the part while no compute runs
    exposed_wait_ns: Int64
    is_known: Flags


def step_waits(
    cross_rank: CrossRank, rank_place: Int64, step: Int64, *, starts: Int64, ends: Int64
) -> StepWaits:
    """Return the wait time of each window.

    A window has the index of its rank in `rank_place`, its step in `step`, and its aligned times in
    `starts` and `ends`. Its wait time is the union of ``[start, min(last start, end))`` over the
    rank's matched operations, clipped to the window. The wait time is not known if an operation of
    the step is not matched.
    """
    wait_ns = np.zeros(step.size, np.int64)
    overlapped_ns = np.zeros(step.size, np.int64)
    if cross_rank.waiting is None:
        is_known = np.zeros(step.size, np.bool_)
        return StepWaits(wait_ns, wait_ns, is_known)
    for place, (rank, operations) in enumerate(cross_rank.by_rank()):
        # The windows of a rank follow each other.
        first_window, end_window = np.searchsorted(rank_place, (place, place + 1))
        windows = slice(first_window, end_window)
        window_starts = starts[windows]
        window_ends = ends[windows]
        waits = cross_rank.waited(operations, cross_rank.waiting)
        wait_ns[windows] = waits.lengths(window_starts, window_ends)
        # `hidden` is when compute runs, which hides communication.
        compute = rank.process.hidden.shifted(rank.shift_ns)
        overlapped_waits = waits.intersect(compute)
        overlapped_ns[windows] = overlapped_waits.lengths(window_starts, window_ends)
    is_known = _are_waits_known(cross_rank, rank_place, step)
    return StepWaits(wait_ns, wait_ns - overlapped_ns, is_known)


def _are_waits_known(cross_rank: CrossRank, rank_place: Int64, step: Int64) -> Flags:
    """Tell of each window whether the wait times of all its operations are known.

    `rank_place` and `step` are those of the windows.
    """
    rows = cross_rank.rows
    n_ranks = len(cross_rank.placed)
    is_unknown = rows.in_step & ~cross_rank.is_known
    step_of_unknown = rows.step[is_unknown]
    rank_of_unknown = rows.rank[is_unknown]
    # One number for each pair of a step and a rank, as a window has them.
    unknown_pairs = np.unique(step_of_unknown * n_ranks + rank_of_unknown)
    pair_of_window = step * n_ranks + rank_place
    return ~np.isin(pair_of_window, unknown_pairs)


def step_bytes(cross_rank: CrossRank, rank_place: Int64, step: Int64) -> tuple[Int64, Flags]:
    """Return the bytes of the messages of each window, and whether all sizes are known.

    `rank_place` and `step` are those of the windows.
    """
    operations = np.flatnonzero(cross_rank.rows.in_step)
    message_bytes = message_sizes(cross_rank, operations).message_bytes
    is_sized = message_bytes != ABSENT
    window_of_operation = _windows_of_operations(cross_rank, operations, rank_place, step)
    # Operations of no window count in one more window at the end, which is dropped.
    n_windows_and_none = step.size + 1
    window_of_sized = window_of_operation[is_sized]
    window_of_unsized = window_of_operation[~is_sized]
    total_bytes = sums_of(window_of_sized, message_bytes[is_sized], n_windows_and_none)
    n_unsized = np.bincount(window_of_unsized, minlength=n_windows_and_none)
    are_all_sized = n_unsized == 0
    return total_bytes[:-1], are_all_sized[:-1]


def _windows_of_operations(
    cross_rank: CrossRank, operations: Int64, rank_place: Int64, step: Int64
) -> Int64:
    """Return the index of each operation's window, the number of windows if it has none.

    `rank_place` and `step` are those of the windows.
    """
    rows = cross_rank.rows
    n_ranks = len(cross_rank.placed)
    operation_step = rows.step[operations]
    operation_rank = rows.rank[operations]
    # One number for each pair of a step and a rank.
    pair_of_operation = pa.array(operation_step * n_ranks + operation_rank)
    pair_of_window = pa.array(step * n_ranks + rank_place)
    window_or_null = pc.index_in(pair_of_operation, value_set=pair_of_window)
    window: Int64 = pc.fill_null(window_or_null, step.size).to_numpy()
    return window


class MessageSizes(Struct, frozen=True):
    """The sizes of some operations."""

    # the whole message, `ABSENT` if it is not known
    message_bytes: Int64
    # what the bus carries for it, meaningless if not `is_bus_known`
    bus_bytes: Float64
    is_bus_known: Flags


def message_sizes(cross_rank: CrossRank, operations: Int64) -> MessageSizes:
    """Return the sizes of some operations, computed from what NCCL reports of one rank."""
    rows = cross_rank.rows
    reported_bytes = rows.message_bytes[operations]
    is_reported = reported_bytes != ABSENT
    message_bytes = np.full(operations.size, ABSENT)
    bus_bytes = np.zeros(operations.size)
    if not is_reported.any():
        return MessageSizes(message_bytes, bus_bytes, is_reported)
    # 0 if the number is not known.
    n_ranks = cross_rank.sizes[rows.communicator[operations]]
    collective = rows.collective[operations]
    for collective_index, name in enumerate(COLLECTIVES):
        is_chosen = is_reported & (collective == collective_index)
        n_ranks_of_chosen = n_ranks[is_chosen]
        whole_bytes = matching.whole_message(name, reported_bytes[is_chosen], n_ranks_of_chosen)
        bus_bytes[is_chosen] = whole_bytes * _bus_factor(name, n_ranks_of_chosen)
        if name in matching.PER_RANK:
            # NCCL reports the part of one rank, so that the whole needs the number of ranks.
            whole_bytes = np.where(n_ranks_of_chosen == 0, ABSENT, whole_bytes)
        message_bytes[is_chosen] = whole_bytes
    is_message_known = message_bytes != ABSENT
    has_n_ranks = n_ranks > 0
    is_bus_known = is_reported & is_message_known & has_n_ranks
    return MessageSizes(message_bytes, bus_bytes, is_bus_known)


def _bus_factor(collective: str, n_ranks: Int64) -> Float64:
    """Return the bytes on the bus per byte of the message, for each number of ranks.

    An unknown number of ranks, which is 0, counts as 1.
    """
    at_least_one_rank = np.maximum(n_ranks, 1)
    return matching.bus_factor(collective, at_least_one_rank.astype(np.float64))


def collectives_table(
    cross_rank: CrossRank,
    ranks: Sequence[int],
    summary_steps: Int64,
    counted: CountedRanks = NO_COUNTERS,
    *,
    inspected: InspectedCalls | None = None,
) -> pa.Table:
    """Return `schema.COLLECTIVES`, made in blocks of rows, which need little memory.

    `ranks` are the rank numbers in ascending order. `counted` has hardware counters, and
    `inspected` the calls that NCCL Inspector saw.
    """
    rows = cross_rank.rows
    seq = places_in_steps(cross_rank)
    exposed_ns, has_graph = _exposed_times(cross_rank)
    columns_of_all = {"seq": pa.array(seq), "exposed_ns": pa.array(exposed_ns, mask=has_graph)}
    columns_of_all |= tuning_columns(rows, inspected)
    ordered_operations = _ordered_by_step(rows, seq)
    n_operations = ordered_operations.size
    nulls = _shared_nulls(n_operations)
    blocks = []
    for start in range(0, n_operations, BLOCK):
        block = ordered_operations[start : start + BLOCK]
        columns = _columns(cross_rank, block, ranks, summary_steps)
        columns["algorithm"] = _algorithms(rows, block)
        columns |= {name: values.take(pa.array(block)) for name, values in columns_of_all.items()}
        columns |= _waiting_columns(cross_rank, block, ("is_significant",))
        columns |= _bandwidths(columns)
        columns |= _counted_columns(columns, counted)
        table = conform(pa.table(columns), schema.COLLECTIVES)
        blocks.append(_sharing_nulls(table, nulls))
    return pa.concat_tables([schema.COLLECTIVES.empty(), *blocks])


def _algorithms(rows: CommRows, operations: Int64) -> pa.DictionaryArray:
    """Return algorithm and protocol of each operation by the name of its kernel, else null."""
    algorithms = [kind.algorithm for kind in rows.kinds]
    return _words(rows.kind[operations], algorithms)


def _ordered_by_step(rows: CommRows, seq: Int64) -> Int64:
    """Return the operations in steps, ordered by step, place in the step (`seq`), and rank."""
    in_steps = np.flatnonzero(rows.in_step)
    step = rows.step[in_steps]
    rank = rows.rank[in_steps]
    # The last key counts most.
    order = np.lexsort((rank, seq[in_steps], step))
    return in_steps[order]


def _bandwidths(columns: Mapping[str, Any]) -> dict[str, pa.Array]:
    """Return the bandwidths of operations, null if nothing was transferred."""
    transfer_ns = as_floats(columns["transfer_ns"])
    is_zero = pc.equal(transfer_ns, 0.0)
    seconds_or_zero = pc.divide(transfer_ns, 1e9)
    seconds = pc.if_else(is_zero, None, seconds_or_zero)
    bandwidths = {}
    for name, bytes_name in _BYTES_OF_BANDWIDTHS.items():
        n_bytes = as_floats(columns[bytes_name])
        bandwidths[name] = pc.divide(n_bytes, seconds)
    return bandwidths


def _counted_columns(columns: Mapping[str, Any], counted: CountedRanks) -> dict[str, pa.Array]:
    """Return the bandwidth of operations by hardware counters, the link, and the share of busbw.

    Bytes are counted while an operation transfers. If its transfer time is not known, they are
    counted in all its time.
    """
    ends = columns["end_ns"]
    starts = columns["start_ns"]
    if not counted.by_rank:
        return {name: pa.nulls(ends.size) for name in _COUNTED_COLUMNS}
    durations_ns = pa.array(ends - starts)
    transfer_ns = pc.coalesce(columns["transfer_ns"], durations_ns).to_numpy()
    # Waiting comes first, so the transfer ends with the operation.
    transfer_starts = ends - transfer_ns
    counts = counted_bandwidths(counted, columns["rank"], transfer_starts, ends)
    is_unknown = np.isnan(counts.bytes_per_s)
    bytes_per_s = pa.array(counts.bytes_per_s, mask=is_unknown)
    link = pa.array(counts.link, mask=is_unknown)
    return {
        "counted_bytes_per_s": bytes_per_s,
        "counted_link": pc.take(pa.array(LINK_NAMES), link),
        "counted_ratio": pc.divide(bytes_per_s, columns["busbw_bytes_per_s"]),
    }


def as_floats(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return numbers as floats, rounded where they are too large to be exact."""
    return pc.cast(values, pa.float64(), safe=False)


def _exposed_times(cross_rank: CrossRank) -> tuple[Int64, Flags]:
    """Return the time of each operation while no compute runs, and whether it is unknown.

    The time is unknown if the rank launched CUDA graphs as a whole, which may hide compute.
    """
    rows = cross_rank.rows
    exposed_ns = rows.end_ns - rows.start_ns
    has_graph = np.zeros(len(rows), np.bool_)
    for rank, operations in cross_rank.by_rank():
        starts = rows.start_ns[operations]
        ends = rows.end_ns[operations]
        # `hidden` is when compute runs, which hides communication.
        compute = rank.process.hidden.shifted(rank.shift_ns)
        exposed_ns[operations] -= compute.lengths(starts, ends)
        graph_ns = rank.process.windows["graph_ns"].to_numpy()
        has_graph[operations] = graph_ns.any()
    return exposed_ns, has_graph


def _shared_nulls(n_rows: int) -> dict[pa.DataType, pa.Array]:
    """Return a block of nulls of each type, which the columns of a large table share.

    A small table shares none.
    """
    if n_rows <= BLOCK:
        return {}
    return {data_type: pa.nulls(BLOCK, data_type) for data_type in (INT, FLOAT)}


def _sharing_nulls(table: pa.Table, nulls: Mapping[pa.DataType, pa.Array]) -> pa.Table:
    """Return a table whose columns without values use the shared nulls, to save memory."""
    for position, field in enumerate(table.schema):
        is_all_null = table[position].null_count == table.num_rows
        if is_all_null and field.type in nulls:
            shared = nulls[field.type]
            # Batches are not longer than a block of nulls.
            batches = table.select([position]).to_batches(BLOCK)
            chunks = [shared[: batch.num_rows] for batch in batches]
            column = pa.chunked_array(chunks, field.type)
            table = table.set_column(position, field, column)
    return table


def collective_figures(
    cross_rank: CrossRank, ranks: Sequence[int], summary_steps: Int64
) -> pa.Table:
    """Return the columns of `collectives_table` that metrics and findings need.

    The rows are operations of summary steps, sorted by (rank, start). Exposed times show which rank
    only passes on a delay of another communicator. So they are null if the run has only one
    communicator.
    """
    rows = cross_rank.rows
    is_summary_step = np.isin(rows.step, summary_steps)
    operations = np.flatnonzero(rows.in_step & is_summary_step)
    n_operations = operations.size
    columns = _columns(cross_rank, operations, ranks, summary_steps)
    columns["exposed_ns"] = pa.nulls(n_operations, pa.int64())
    if len(rows.communicators) > 1:
        exposed_ns, has_graph = _exposed_times(cross_rank)
        is_unknown = has_graph[operations]
        columns["exposed_ns"] = pa.array(exposed_ns[operations], mask=is_unknown)
    return _sharing_nulls(pa.table(columns), _shared_nulls(n_operations))


def _columns(
    cross_rank: CrossRank, operations: Int64, ranks: Sequence[int], summary_steps: Int64
) -> dict[str, Any]:
    """Return the columns that both tables of collectives have, with a row for each operation.

    `ranks` are the rank numbers in ascending order.
    """
    rows = cross_rank.rows
    step = rows.step[operations]
    kind = rows.kind[operations]
    communicator = rows.communicator[operations]
    micro_batch = rows.micro_batch[operations]
    rank_place = rows.rank[operations]
    rank_numbers = np.asarray(ranks, np.int64)
    collectives = [each.collective for each in rows.kinds]
    datatypes = [each.datatype for each in rows.kinds]
    columns: dict[str, Any] = {"step": step}
    columns["rank"] = rank_numbers[rank_place]
    columns["collective"] = _words(kind, collectives)
    columns["datatype"] = _words(kind, datatypes)
    columns["comm_id"] = _words(communicator, rows.communicators)
    columns["micro_batch"] = pa.array(micro_batch, pa.int64(), mask=micro_batch == NONE)
    columns["start_ns"] = rows.start_ns[operations]
    columns["end_ns"] = rows.end_ns[operations]
    columns["is_matched"] = _are_matched(cross_rank, operations)
    columns["in_summary"] = np.isin(step, summary_steps)
    columns |= _waiting_columns(cross_rank, operations, _MATCHED_COLUMNS)
    sizes = message_sizes(cross_rank, operations)
    message_bytes = sizes.message_bytes
    is_bus_unknown = ~sizes.is_bus_known
    columns["message_bytes"] = pa.array(message_bytes, mask=message_bytes == ABSENT)
    columns["bus_bytes"] = pa.array(sizes.bus_bytes, mask=is_bus_unknown)
    return columns


def _are_matched(cross_rank: CrossRank, operations: Int64) -> Flags:
    """Tell which of some operations are matched with operations of other ranks."""
    if cross_rank.waiting is None:
        return np.zeros(operations.size, np.bool_)
    collective_id = cross_rank.waiting.collective_id[operations]
    is_matched: Flags = collective_id != matching.NOBODY
    return is_matched


def _words(index_of_word: Int32, words: Sequence[str | None]) -> pa.DictionaryArray:
    """Return a column of words, which are given by their indices in `words`."""
    dictionary = pa.array(words, pa.string())
    return pa.DictionaryArray.from_arrays(pa.array(index_of_word), dictionary)


def _waiting_columns(
    cross_rank: CrossRank, operations: Int64, names: Sequence[str]
) -> dict[str, pa.Array]:
    """Return columns of `Waiting` by name, with a row for each operation.

    A value is null if the operation is not matched, or if ranks of its communicator are missing.
    """
    waiting = cross_rank.waiting
    if waiting is None:
        return {name: pa.nulls(operations.size, _type_of(name)) for name in names}
    communicator = cross_rank.rows.communicator[operations]
    has_all_ranks = cross_rank.is_whole[communicator]
    is_known = _are_matched(cross_rank, operations) & has_all_ranks
    is_unknown = ~is_known
    columns = {}
    for name in names:
        values = waiting.column(name, operations)
        columns[name] = pa.array(values, mask=is_unknown)
    return columns


def _type_of(column: str) -> pa.DataType:
    return pa.bool_() if column.startswith("is_") else pa.int64()


def places_in_steps(cross_rank: CrossRank) -> Int64:
    """Return the place in its step of each operation's collective, in order of first start.

    In each step, the matched collectives come first. The unmatched operations of a rank follow
    them. Operations in no step have `NO_SEQ`.
    """
    rows = cross_rank.rows
    place = np.full(len(rows), NO_SEQ)
    steps_with_matches = np.empty(0, np.int64)
    n_matched_of_step = np.empty(0, np.int64)
    if cross_rank.waiting is not None:
        matched = np.flatnonzero(cross_rank.is_matched & rows.in_step)
        numbering = _number_matched(cross_rank.waiting, rows.step, matched)
        place[matched] = numbering.place
        steps_with_matches = numbering.steps
        n_matched_of_step = numbering.n_collectives
    unmatched = _unmatched_by_rank(cross_rank)
    step = rows.step[unmatched]
    rank = rows.rank[unmatched]
    n_ranks = int(rows.rank.max(initial=0)) + 1
    index_or_null = pc.index_in(pa.array(step), value_set=pa.array(steps_with_matches))
    # A step without matched collectives gets the index behind the last step, where a 0 stands.
    index_of_step = pc.fill_null(index_or_null, steps_with_matches.size).to_numpy()
    n_before = np.append(n_matched_of_step, 0)[index_of_step]
    # Rows of one step and rank follow each other.
    place_among_unmatched = places_in_runs(step * n_ranks + rank)
    place[unmatched] = n_before + place_among_unmatched
    return place


def _unmatched_by_rank(cross_rank: CrossRank) -> Int64:
    """Return the operations in steps that are not matched, ordered by step, rank and start."""
    rows = cross_rank.rows
    is_unmatched = ~cross_rank.is_matched & rows.in_step
    unmatched = np.flatnonzero(is_unmatched)
    step = rows.step[unmatched]
    rank = rows.rank[unmatched]
    start_ns = rows.start_ns[unmatched]
    # The last key counts most.
    order = np.lexsort((start_ns, rank, step))
    return unmatched[order]


class _MatchedPlaces(Struct, frozen=True):
    """The places of matched collectives in their steps."""

    # Of each operation, the place of its collective.
    place: Int64
    # The steps that have matched collectives, and how many.
    steps: Int64
    n_collectives: Int64


def _number_matched(waiting: matching.Waiting, step: Int64, operations: Int64) -> _MatchedPlaces:
    """Return the places of matched collectives in their steps, in order of first start.

    `operations` are the matched operations, and `step` has the step of every operation.
    """
    id_of_operation = waiting.collective_id[operations]
    ids, index_of_an_operation = np.unique(id_of_operation, return_index=True)
    # All operations of a collective are in one step.
    step_of_collective = step[operations[index_of_an_operation]]
    first_start_ns = waiting.first_start_ns[ids]
    # By step, then by first start.
    order = np.lexsort((first_start_ns, step_of_collective))
    place_of_id = np.zeros(waiting.first_start_ns.size, np.int64)
    place_of_id[ids[order]] = places_in_runs(step_of_collective[order])
    steps, n_collectives = np.unique(step_of_collective, return_counts=True)
    return _MatchedPlaces(place_of_id[id_of_operation], steps, n_collectives)


def stragglers_table(
    collectives: CollectivesTable,
    steps: StepsTable,
    ranks: Sequence[int],
    *,
    is_capture: bool,
    is_whole: bool = True,
) -> pa.Table:
    """Return `schema.STRAGGLERS` over the summary steps, with a row for each rank.

    Delays are null if nothing could be matched, if ranks are missing (not `is_whole`), or if only
    stages of a pipeline communicate, which does not show which rank is late. Lateness is also null
    without steps (`is_capture`). If the summary steps have no communication at all, all values are
    0.
    """
    is_chosen = pc.and_(collectives["in_summary"], collectives["is_matched"])
    matched = collectives.select(_COLUMNS_FOR_STRAGGLERS).filter(is_chosen)
    summary_steps = steps.filter(steps["in_summary"])
    # If every wait time is known and nothing matched, there was no communication. Then no rank came
    # late, even if collectives of other steps are not known.
    are_waits_known = not summary_steps["wait_ns"].null_count
    has_matches = matched.num_rows > 0
    is_silent = not has_matches and summary_steps.num_rows > 0 and are_waits_known
    showing_lateness = own_lateness(matched)
    is_lateness_known = is_whole and showing_lateness.num_rows > 0
    delays = _delays_of_ranks(showing_lateness, steps, ranks, is_capture=is_capture)
    if not is_silent and not is_lateness_known:
        nulls = pa.nulls(len(ranks))
        delays = dict.fromkeys(delays, nulls)
    columns = {"rank": ranks, "wait_ns": _wait_of_ranks(summary_steps, ranks)}
    return schema.STRAGGLERS.table(columns | delays)


def _wait_of_ranks(steps: StepsTable, ranks: Sequence[int]) -> list[int | None]:
    """Return the wait time of each rank in some steps, in ns.

    It is None if a step of the rank does not have it, or if the rank has no step.
    """
    by_rank = steps.group_by("rank", use_threads=False)
    sums = by_rank.aggregate([("wait_ns", "sum", _SKIP_NO_NULL)])
    ranks_with_steps = sums["rank"].to_pylist()
    sums_ns = sums["wait_ns_sum"].to_pylist()
    wait_ns_of_rank = dict(zip(ranks_with_steps, sums_ns, strict=True))
    return [wait_ns_of_rank.get(rank) for rank in ranks]


def _delays_of_ranks(
    own_delays: CollectivesTable, steps: StepsTable, ranks: Sequence[int], *, is_capture: bool
) -> dict[str, Any]:
    """Return how often and how much each rank delays others.

    `own_delays` are matched collectives, as `traffic.own_lateness` returns them.
    The columns have a value for each rank of `ranks`, which are in ascending order.
    """
    n_ranks = len(ranks)
    step = own_delays["step"].to_numpy()
    late_by_ns = pc.fill_null(own_delays["late_by_ns"], 0).to_numpy()
    rank_index = np.searchsorted(ranks, own_delays["rank"].to_numpy())
    late_rows = np.flatnonzero(late_by_ns)
    late_rank_index = rank_index[late_rows]
    delay_ns = late_by_ns[late_rows]
    # By step, then the largest delay first, then the first row.
    order = np.lexsort((late_rows, -delay_ns, step[late_rows]))
    ordered_rows = late_rows[order]
    largest_of_steps = ordered_rows[run_starts(step[ordered_rows])]
    lateness_ns = sums_of(rank_index[largest_of_steps], late_by_ns[largest_of_steps], n_ranks)
    held_up = sum_held_up(own_delays, steps).filter(pc.field("is_alone"))
    held_up_rank_index = np.searchsorted(ranks, held_up["rank"])
    delays: dict[str, Any] = {}
    delays["n_arrived_last"] = np.bincount(late_rank_index, minlength=n_ranks)
    delays["wait_caused_ns"] = sums_of(late_rank_index, delay_ns, n_ranks)
    delays["lateness_ns"] = pa.nulls(n_ranks) if is_capture else lateness_ns
    delays["held_up_ns"] = sums_of(held_up_rank_index, held_up["held_up_ns"].to_numpy(), n_ranks)
    return delays
