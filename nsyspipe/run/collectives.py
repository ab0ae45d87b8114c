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
    cross_rank: CrossRank,
    rank_of_window: Int64,
    step_of_window: Int64,
    *,
    starts: Int64,
    ends: Int64,
) -> StepWaits:
    """Return the wait time of each window.

    `rank_of_window` has the index of each window's rank among the ranks of the run. `starts` and
    `ends` are the aligned times of the windows. The wait time of a window is the union of
    ``[start, min(last start, end))`` over the rank's matched operations, clipped to the window. The
    wait time is not known if an operation of the step is not matched.
    """
    wait_ns = np.zeros_like(starts)
    overlapped_ns = np.zeros_like(starts)
    if cross_rank.waiting is None:
        is_known = np.zeros(starts.size, np.bool_)
        return StepWaits(wait_ns=wait_ns, exposed_wait_ns=wait_ns, is_known=is_known)
    for rank_index, (rank, operations) in enumerate(cross_rank.by_rank()):
        # The windows of a rank follow each other.
        first_window = np.searchsorted(rank_of_window, rank_index)
        end_window = np.searchsorted(rank_of_window, rank_index, side="right")
        windows = slice(first_window, end_window)
        window_starts = starts[windows]
        window_ends = ends[windows]
        waits = cross_rank.waited(operations, cross_rank.waiting)
        wait_ns[windows] = waits.lengths(window_starts, window_ends)
        # Communication overlaps with compute in these times, and is exposed in all others.
        overlap = rank.process.overlap.shifted(rank.shift_ns)
        overlapped_waits = waits.intersect(overlap)
        overlapped_ns[windows] = overlapped_waits.lengths(window_starts, window_ends)
    return StepWaits(
        wait_ns=wait_ns,
        exposed_wait_ns=wait_ns - overlapped_ns,
        is_known=_are_waits_known(cross_rank, rank_of_window, step_of_window),
    )


def _are_waits_known(cross_rank: CrossRank, rank_of_window: Int64, step_of_window: Int64) -> Flags:
    """Tell of each window whether the wait times of all its operations are known.

    `rank_of_window` has the index of each window's rank among the ranks of the run.
    """
    rows = cross_rank.rows
    n_ranks = len(cross_rank.ranks)
    is_unknown = rows.in_step & ~cross_rank.is_known
    step_of_unknown = rows.step[is_unknown]
    rank_of_unknown = rows.rank[is_unknown]
    # A window has one step and one rank. Each pair of them gets one number.
    unknown_pairs = np.unique(step_of_unknown * n_ranks + rank_of_unknown)
    pair_of_window = step_of_window * n_ranks + rank_of_window
    return ~np.isin(pair_of_window, unknown_pairs)


def step_bytes(
    cross_rank: CrossRank, rank_of_window: Int64, step_of_window: Int64
) -> tuple[Int64, Flags]:
    """Return the bytes of the messages of each window, and whether all sizes are known.

    `rank_of_window` has the index of each window's rank among the ranks of the run.
    """
    operations = np.flatnonzero(cross_rank.rows.in_step)
    message_bytes = message_sizes(cross_rank, operations).message_bytes
    is_sized = message_bytes != ABSENT
    window_of_operation = _windows_of_operations(
        cross_rank, operations, rank_of_window, step_of_window
    )
    # Operations of no window are summed in one more window at the end, which is not returned.
    n_windows_and_none = step_of_window.size + 1
    window_of_sized = window_of_operation[is_sized]
    window_of_unsized = window_of_operation[~is_sized]
    total_bytes = sums_of(window_of_sized, message_bytes[is_sized], n_windows_and_none)
    n_unsized = np.bincount(window_of_unsized, minlength=n_windows_and_none)
    are_all_sized = n_unsized == 0
    return total_bytes[:-1], are_all_sized[:-1]


def _windows_of_operations(
    cross_rank: CrossRank, operations: Int64, rank_of_window: Int64, step_of_window: Int64
) -> Int64:
    """Return the index of each operation's window, the number of windows if it has none.

    `rank_of_window` has the index of each window's rank among the ranks of the run.
    """
    rows = cross_rank.rows
    n_ranks = len(cross_rank.ranks)
    operation_step = rows.step[operations]
    operation_rank = rows.rank[operations]
    # One number for each pair of a step and a rank.
    pair_of_operation = pa.array(operation_step * n_ranks + operation_rank)
    pair_of_window = pa.array(step_of_window * n_ranks + rank_of_window)
    window_or_null = pc.index_in(pair_of_operation, value_set=pair_of_window)
    n_windows = step_of_window.size
    window: Int64 = pc.fill_null(window_or_null, n_windows).to_numpy()
    return window


class MessageSizes(Struct, frozen=True):
    """The sizes of some operations."""

    # the whole message, `ABSENT` if it is not known
    message_bytes: Int64
    # what the bus carries for it, meaningless if not `is_bus_known`
    bus_bytes: Float64
    is_bus_known: Flags


def message_sizes(cross_rank: CrossRank, operations: Int64) -> MessageSizes:
    """Return the sizes of some operations.

    NCCL reports for some collectives the part of one rank. Such a message, and all bytes on the
    bus, are known only if the number of ranks of the communicator is known.
    """
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
            is_n_ranks_unknown = n_ranks_of_chosen == 0
            message_bytes[is_chosen] = np.where(is_n_ranks_unknown, ABSENT, whole_bytes)
        else:
            message_bytes[is_chosen] = whole_bytes
    # A message that is known was reported.
    is_bus_known = (message_bytes != ABSENT) & (n_ranks > 0)
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
    exposed_ns, is_unknown = _exposed_times(cross_rank)
    columns_of_all = {"seq": pa.array(seq), "exposed_ns": pa.array(exposed_ns, mask=is_unknown)}
    columns_of_all |= tuning_columns(rows, inspected)
    ordered_operations = _ordered_by_step(rows, seq)
    n_operations = ordered_operations.size
    shared_nulls = _shared_nulls(n_operations)
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
        blocks.append(_sharing_nulls(table, shared_nulls))
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

    The bandwidth is counted over the transfer time of an operation. If the transfer time is not
    known, it is counted over the whole operation.
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

    The time is unknown if the rank launched CUDA graphs as a whole. Compute inside such a graph is
    not recorded.
    """
    rows = cross_rank.rows
    exposed_ns = rows.end_ns - rows.start_ns
    is_unknown = np.zeros(len(rows), np.bool_)
    for rank, operations in cross_rank.by_rank():
        starts = rows.start_ns[operations]
        ends = rows.end_ns[operations]
        # Communication overlaps with compute in these times.
        overlap = rank.process.overlap.shifted(rank.shift_ns)
        exposed_ns[operations] -= overlap.lengths(starts, ends)
        graph_ns = rank.process.windows["graph_ns"].to_numpy()
        is_unknown[operations] = graph_ns.any()
    return exposed_ns, is_unknown


def _shared_nulls(n_rows: int) -> dict[pa.DataType, pa.Array]:
    """Return a block of nulls of each type, which the columns of a large table share.

    A small table shares none.
    """
    if n_rows <= BLOCK:
        return {}
    return {data_type: pa.nulls(BLOCK, data_type) for data_type in (INT, FLOAT)}


def _sharing_nulls(table: pa.Table, nulls: Mapping[pa.DataType, pa.Array]) -> pa.Table:
    """Return a table in which columns without values use `nulls`, to save memory.

    `nulls` has `BLOCK` nulls for each type, or is empty.
    """
    for position, field in enumerate(table.schema):
        is_all_null = table[position].null_count == table.num_rows
        if is_all_null and field.type in nulls:
            shared = nulls[field.type]
            # A batch has at most `BLOCK` rows, so the shared nulls are enough for it.
            batches = table.select([position]).to_batches(BLOCK)
            chunks = [shared[: batch.num_rows] for batch in batches]
            column = pa.chunked_array(chunks, field.type)
            table = table.set_column(position, field, column)
    return table


def collective_figures(
    cross_rank: CrossRank, ranks: Sequence[int], summary_steps: Int64
) -> pa.Table:
    """Return the columns of `collectives_table` that metrics and findings need.

    The rows are operations of summary steps, sorted by (rank, start). Exposed times are needed only
    to find ranks that pass on a delay from one communicator to another. So they are null if the run
    has only one communicator.
    """
    rows = cross_rank.rows
    is_summary_step = np.isin(rows.step, summary_steps)
    operations = np.flatnonzero(rows.in_step & is_summary_step)
    n_operations = operations.size
    columns = _columns(cross_rank, operations, ranks, summary_steps)
    columns["exposed_ns"] = pa.nulls(n_operations, pa.int64())
    if len(rows.communicators) > 1:
        exposed_ns, is_unknown = _exposed_times(cross_rank)
        columns["exposed_ns"] = pa.array(exposed_ns[operations], mask=is_unknown[operations])
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
    rank_index = rows.rank[operations]
    rank_numbers = np.asarray(ranks, np.int64)
    collectives = [each.collective for each in rows.kinds]
    datatypes = [each.datatype for each in rows.kinds]
    columns: dict[str, Any] = {"step": step}
    columns["rank"] = rank_numbers[rank_index]
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
    has_all_ranks = cross_rank.has_all_ranks[communicator]
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
    """Return for each operation which collective of its step it is, counted from 0.

    In each step, the matched collectives are counted first, in order of first start. Then the
    unmatched operations of each rank are counted. Operations in no step have `NO_SEQ`.
    """
    rows = cross_rank.rows
    place = np.full(len(rows), NO_SEQ)
    unmatched = _unmatched_by_rank(cross_rank)
    step = rows.step[unmatched]
    rank = rows.rank[unmatched]
    n_ranks = len(cross_rank.ranks)
    # Rows of one step and rank follow each other.
    place_among_unmatched = places_in_runs(step * n_ranks + rank)
    if cross_rank.waiting is None:
        place[unmatched] = place_among_unmatched
        return place
    matched = np.flatnonzero(cross_rank.is_matched & rows.in_step)
    numbering = _number_matched(cross_rank.waiting, rows.step, matched)
    place[matched] = numbering.place
    place[unmatched] = numbering.n_matched_in(step) + place_among_unmatched
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

    # Of each matched operation, the place of its collective.
    place: Int64
    # The steps that have matched collectives, and how many of them each step has.
    steps: Int64
    n_collectives: Int64

    def n_matched_in(self, step: Int64) -> Int64:
        """Return the number of matched collectives in each of some steps."""
        index_or_null = pc.index_in(pa.array(step), value_set=pa.array(self.steps))
        n_or_null = pa.array(self.n_collectives).take(index_or_null)
        n_matched: Int64 = pc.fill_null(n_or_null, 0).to_numpy()
        return n_matched


def _number_matched(waiting: matching.Waiting, step: Int64, operations: Int64) -> _MatchedPlaces:
    """Return the places of matched collectives in their steps, in order of first start.

    `operations` are the matched operations, and `step` has the step of every operation.
    """
    id_of_operation = waiting.collective_id[operations]
    ids, index_of_first = np.unique(id_of_operation, return_index=True)
    # All operations of a collective are in one step, so the first operation shows it.
    first_operation = operations[index_of_first]
    step_of_collective = step[first_operation]
    first_start_ns = waiting.first_start_ns[ids]
    # By step, then by first start.
    order = np.lexsort((first_start_ns, step_of_collective))
    n_ids = waiting.first_start_ns.size
    place_of_id = np.zeros(n_ids, np.int64)
    place_of_id[ids[order]] = places_in_runs(step_of_collective[order])
    steps, n_collectives = np.unique(step_of_collective, return_counts=True)
    return _MatchedPlaces(place_of_id[id_of_operation], steps, n_collectives)


def stragglers_table(
    collectives: CollectivesTable,
    steps: StepsTable,
    ranks: Sequence[int],
    *,
    is_capture: bool,
    has_all_comm: bool = True,
) -> pa.Table:
    """Return `schema.STRAGGLERS` over the summary steps, with a row for each rank.

    Delays are null if nothing could be matched, or if communication of a rank is missing (not
    `has_all_comm`). They are null too if only stages of a pipeline communicate, which does not show
    which rank is late. Lateness is also null without steps (`is_capture`). If the summary steps
    have no communication at all, all values are 0.
    """
    is_chosen = pc.and_(collectives["in_summary"], collectives["is_matched"])
    matched = collectives.select(_COLUMNS_FOR_STRAGGLERS).filter(is_chosen)
    summary_steps = steps.select(["rank", "wait_ns"]).filter(steps["in_summary"])
    # If every wait time is known and nothing matched, there was no communication. Then no rank came
    # late, even if collectives of other steps are not known.
    are_waits_known = summary_steps.num_rows > 0 and not summary_steps["wait_ns"].null_count
    is_without_comm = are_waits_known and not matched.num_rows
    showing_lateness = own_lateness(matched)
    is_lateness_shown = has_all_comm and showing_lateness.num_rows > 0
    are_delays_known = is_without_comm or is_lateness_shown
    delays = _delays_of_ranks(showing_lateness, steps, ranks, is_capture=is_capture)
    if not are_delays_known:
        nulls = pa.nulls(len(ranks))
        delays = dict.fromkeys(delays, nulls)
    columns = {"rank": ranks, "wait_ns": _wait_of_ranks(summary_steps, ranks)}
    return schema.STRAGGLERS.table(columns | delays)


def _wait_of_ranks(steps: StepsTable, ranks: Sequence[int]) -> list[int | None]:
    """Return the wait time of each rank in some steps, in ns.

    The wait time is None if that of one of its steps is null, or if the rank has no step.
    """
    by_rank = steps.group_by("rank", use_threads=False)
    sums = by_rank.aggregate([("wait_ns", "sum", _SKIP_NO_NULL)])
    ranks_with_steps = sums["rank"].to_pylist()
    sums_ns = sums["wait_ns_sum"].to_pylist()
    wait_ns_of_rank = dict(zip(ranks_with_steps, sums_ns, strict=True))
    return [wait_ns_of_rank.get(rank) for rank in ranks]


def _delays_of_ranks(
    collectives: CollectivesTable, steps: StepsTable, ranks: Sequence[int], *, is_capture: bool
) -> dict[str, Any]:
    """Return how often and how much each rank delays others.

    `collectives` has a row for each matched operation, as `analysis.traffic.own_lateness` returns
    them. The columns that are returned have a value for each of `ranks`, which are in ascending
    order.
    """
    n_ranks = len(ranks)
    step = collectives["step"].to_numpy()
    late_by_ns = pc.fill_null(collectives["late_by_ns"], 0).to_numpy()
    # Of each row, the index of its rank in `ranks`.
    rank_index = np.searchsorted(ranks, collectives["rank"].to_numpy())
    late_rows = np.flatnonzero(late_by_ns)
    late_rank_index = rank_index[late_rows]
    delay_ns = late_by_ns[late_rows]
    # By step, then the largest delay first, then the first row.
    order = np.lexsort((late_rows, -delay_ns, step[late_rows]))
    ordered_rows = late_rows[order]
    # The lateness of a rank is the sum of the delays that are the largest of their step.
    largest_rows = ordered_rows[run_starts(step[ordered_rows])]
    lateness_ns = sums_of(rank_index[largest_rows], late_by_ns[largest_rows], n_ranks)
    held_up = sum_held_up(collectives, steps)
    held_up = held_up.filter(held_up["is_alone"])
    held_up_rank_index = np.searchsorted(ranks, held_up["rank"])
    delays: dict[str, Any] = {}
    delays["n_arrived_last"] = np.bincount(late_rank_index, minlength=n_ranks)
    delays["wait_caused_ns"] = sums_of(late_rank_index, delay_ns, n_ranks)
    delays["lateness_ns"] = pa.nulls(n_ranks) if is_capture else lateness_ns
    delays["held_up_ns"] = sums_of(held_up_rank_index, held_up["held_up_ns"].to_numpy(), n_ranks)
    return delays
