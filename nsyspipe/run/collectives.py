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
from nsyspipe.analysis.traffic import held_up_by_step, own_lateness
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
    """Return the wait time of each window: its rank's place, its step and its aligned times.

    It is the union of ``[start, min(last start, end))`` over the rank's matched operations, clipped
    to the window. It is not known if an operation of the step is not matched.
    """
    wait_ns = np.zeros(step.size, np.int64)
    overlapped_ns = np.zeros(step.size, np.int64)
    if cross_rank.waiting is None:
        is_known = np.zeros(step.size, np.bool_)
        return StepWaits(wait_ns, wait_ns, is_known)
    for place, (rank, operations) in enumerate(cross_rank.by_rank()):
        first, end = np.searchsorted(rank_place, (place, place + 1))
        windows = slice(first, end)
        window_starts = starts[windows]
        window_ends = ends[windows]
        waits = cross_rank.waited(operations, cross_rank.waiting)
        wait_ns[windows] = waits.lengths(window_starts, window_ends)
        compute = rank.process.hidden.shifted(rank.shift_ns)
        overlapped = waits.intersect(compute)
        overlapped_ns[windows] = overlapped.lengths(window_starts, window_ends)
    is_known = _are_waits_known(cross_rank, rank_place, step)
    return StepWaits(wait_ns, wait_ns - overlapped_ns, is_known)


def _are_waits_known(cross_rank: CrossRank, rank_place: Int64, step: Int64) -> Flags:
    """Tell of which windows all operations are matched."""
    rows = cross_rank.rows
    n_ranks = len(cross_rank.placed)
    is_unmatched = rows.in_step & ~cross_rank.is_known
    unmatched_step = rows.step[is_unmatched]
    unmatched_rank = rows.rank[is_unmatched]
    unknown_keys = np.unique(unmatched_step * n_ranks + unmatched_rank)
    window_keys = step * n_ranks + rank_place
    return ~np.isin(window_keys, unknown_keys)


def step_bytes(cross_rank: CrossRank, rank_place: Int64, step: Int64) -> tuple[Int64, Flags]:
    """Return the bytes of the messages of each (rank, step), and whether all sizes are known."""
    operations = np.flatnonzero(cross_rank.rows.in_step)
    message_bytes = message_sizes(cross_rank, operations).message_bytes
    is_sized = message_bytes != ABSENT
    window = _windows_of_operations(cross_rank, operations, rank_place, step)
    # Operations of no window go to one more place at the end, which is dropped.
    n_places = step.size + 1
    sized_window = window[is_sized]
    unsized_window = window[~is_sized]
    totals = sums_of(sized_window, message_bytes[is_sized], n_places)
    n_unsized = np.bincount(unsized_window, minlength=n_places)
    are_all_sized = n_unsized == 0
    return totals[:-1], are_all_sized[:-1]


def _windows_of_operations(
    cross_rank: CrossRank, operations: Int64, rank_place: Int64, step: Int64
) -> Int64:
    """Return the place of the window of each operation, `step.size` if it has no window."""
    rows = cross_rank.rows
    n_ranks = len(cross_rank.placed)
    operation_step = rows.step[operations]
    operation_rank = rows.rank[operations]
    keys = pa.array(operation_step * n_ranks + operation_rank)
    window_keys = pa.array(step * n_ranks + rank_place)
    known_window = pc.index_in(keys, value_set=window_keys)
    window: Int64 = pc.fill_null(known_window, step.size).to_numpy()
    return window


class MessageSizes(Struct, frozen=True):
    """The sizes of some operations."""

    # the whole message, `ABSENT` if it is not known
    message_bytes: Int64
    # what the bus carries for it, meaningless if not `is_bus_known`
    bus_bytes: Float64
    is_bus_known: Flags


def message_sizes(cross_rank: CrossRank, operations: Int64) -> MessageSizes:
    """Return the sizes of some operations, by what NCCL reports of one rank."""
    rows = cross_rank.rows
    reported = rows.message_bytes[operations]
    is_reported = reported != ABSENT
    message_bytes = np.full(operations.size, ABSENT)
    bus_bytes = np.zeros(operations.size)
    if not is_reported.any():
        return MessageSizes(message_bytes, bus_bytes, is_reported)
    n_ranks = cross_rank.sizes[rows.communicator[operations]]
    collective = rows.collective[operations]
    for code, name in enumerate(COLLECTIVES):
        chosen = is_reported & (collective == code)
        n_chosen_ranks = n_ranks[chosen]
        whole = matching.whole_message(name, reported[chosen], n_chosen_ranks)
        bus_bytes[chosen] = whole * _bus_factor(name, n_chosen_ranks)
        if name in matching.PER_RANK:
            # NCCL reports the part of one rank, so that the whole needs the number of ranks.
            whole = np.where(n_chosen_ranks == 0, ABSENT, whole)
        message_bytes[chosen] = whole
    is_message_known = message_bytes != ABSENT
    has_n_ranks = n_ranks > 0
    is_bus_known = is_reported & is_message_known & has_n_ranks
    return MessageSizes(message_bytes, bus_bytes, is_bus_known)


def _bus_factor(collective: str, n_ranks: Int64) -> Float64:
    """Return the factor for each number of ranks. If the number is not known, it is 1."""
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
    """Return `schema.COLLECTIVES`, made in blocks of rows, which need little memory."""
    rows = cross_rank.rows
    seq = places_in_steps(cross_rank)
    exposed_ns, has_graph = _exposed_times(cross_rank)
    of_rows = {"seq": pa.array(seq), "exposed_ns": pa.array(exposed_ns, mask=has_graph)}
    of_rows |= tuning_columns(rows, inspected)
    ordered = _ordered_by_step(rows, seq)
    nulls = _shared_nulls(ordered.size)
    blocks = []
    for start in range(0, ordered.size, BLOCK):
        block = ordered[start : start + BLOCK]
        columns = _columns(cross_rank, block, ranks, summary_steps)
        columns["algorithm"] = _algorithms(rows, block)
        columns |= {name: values.take(pa.array(block)) for name, values in of_rows.items()}
        columns |= _waiting_columns(cross_rank, block, ("is_significant",))
        columns |= _bandwidths(columns)
        columns |= _counted_columns(columns, counted)
        table = conform(pa.table(columns), schema.COLLECTIVES)
        blocks.append(_sharing_nulls(table, nulls))
    return pa.concat_tables([schema.COLLECTIVES.empty(), *blocks])


def _algorithms(rows: CommRows, operations: Int64) -> pa.DictionaryArray:
    """Return what the names of kernels have of algorithm and protocol."""
    algorithms = [kind.algorithm for kind in rows.kinds]
    return _words(rows.kind[operations], algorithms)


def _ordered_by_step(rows: CommRows, seq: Int64) -> Int64:
    """Return the operations in steps, ordered by step, place in the step, and rank."""
    chosen = np.flatnonzero(rows.in_step)
    step = rows.step[chosen]
    rank = rows.rank[chosen]
    order = np.lexsort((rank, seq[chosen], step))
    return chosen[order]


def _bandwidths(columns: Mapping[str, Any]) -> dict[str, pa.Array]:
    """Return the bandwidths of operations, null if nothing was transferred."""
    transfer_ns = as_floats(columns["transfer_ns"])
    is_zero = pc.equal(transfer_ns, 0.0)
    seconds = pc.divide(transfer_ns, 1e9)
    seconds = pc.if_else(is_zero, None, seconds)
    bandwidths = {}
    for name, bytes_name in _BYTES_OF_BANDWIDTHS.items():
        n_bytes = as_floats(columns[bytes_name])
        bandwidths[name] = pc.divide(n_bytes, seconds)
    return bandwidths


def _counted_columns(columns: Mapping[str, Any], counted: CountedRanks) -> dict[str, pa.Array]:
    """Return what hardware counters say of the bandwidth of operations."""
    ends = columns["end_ns"]
    starts = columns["start_ns"]
    if not counted.by_rank:
        return {name: pa.nulls(ends.size) for name in _COUNTED_COLUMNS}
    durations_ns = pa.array(ends - starts)
    transfer_ns = pc.coalesce(columns["transfer_ns"], durations_ns).to_numpy()
    counts = counted_bandwidths(counted, columns["rank"], ends - transfer_ns, ends)
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

    It is unknown if CUDA graphs of the rank may hide compute.
    """
    rows = cross_rank.rows
    exposed_ns = rows.end_ns - rows.start_ns
    has_graph = np.zeros(len(rows), np.bool_)
    for rank, operations in cross_rank.by_rank():
        starts = rows.start_ns[operations]
        ends = rows.end_ns[operations]
        compute = rank.process.hidden.shifted(rank.shift_ns)
        exposed_ns[operations] -= compute.lengths(starts, ends)
        graph_ns = rank.process.windows["graph_ns"].to_numpy()
        has_graph[operations] = graph_ns.any()
    return exposed_ns, has_graph


def _shared_nulls(n_rows: int) -> dict[pa.DataType, pa.Array]:
    """Return blocks of nulls that all columns of a large table share, nothing for a small one."""
    if n_rows <= BLOCK:
        return {}
    return {kind: pa.nulls(BLOCK, kind) for kind in (INT, FLOAT)}


def _sharing_nulls(table: pa.Table, nulls: Mapping[pa.DataType, pa.Array]) -> pa.Table:
    """Return a table whose columns without values use the shared nulls, to save memory."""
    for index, field in enumerate(table.schema):
        is_all_null = table[index].null_count == table.num_rows
        if is_all_null and field.type in nulls:
            shared = nulls[field.type]
            batches = table.select([index]).to_batches(BLOCK)
            chunks = [shared[: batch.num_rows] for batch in batches]
            column = pa.chunked_array(chunks, field.type)
            table = table.set_column(index, field, column)
    return table


def collective_figures(
    cross_rank: CrossRank, ranks: Sequence[int], summary_steps: Int64
) -> pa.Table:
    """Return the columns of `collectives_table` that metrics and findings need.

    They are of summary steps, sorted by (rank, start). Exposed times show who only passes on a
    delay of another communicator. They are null if the run has only one communicator.
    """
    rows = cross_rank.rows
    is_summary_step = np.isin(rows.step, summary_steps)
    order = np.flatnonzero(rows.in_step & is_summary_step)
    n_rows = order.size
    columns = _columns(cross_rank, order, ranks, summary_steps)
    columns["exposed_ns"] = pa.nulls(n_rows, pa.int64())
    if len(rows.communicators) > 1:
        exposed_ns, has_graph = _exposed_times(cross_rank)
        is_unknown = has_graph[order]
        columns["exposed_ns"] = pa.array(exposed_ns[order], mask=is_unknown)
    return _sharing_nulls(pa.table(columns), _shared_nulls(n_rows))


def _columns(
    cross_rank: CrossRank, order: Int64, ranks: Sequence[int], summary_steps: Int64
) -> dict[str, Any]:
    """Return the columns of some operations that both tables of collectives have."""
    rows = cross_rank.rows
    step = rows.step[order]
    kind = rows.kind[order]
    communicator = rows.communicator[order]
    micro_batch = rows.micro_batch[order]
    rank_place = rows.rank[order]
    rank_numbers = np.asarray(ranks, np.int64)
    collectives = [each.collective for each in rows.kinds]
    datatypes = [each.datatype for each in rows.kinds]
    columns: dict[str, Any] = {"step": step}
    columns["rank"] = rank_numbers[rank_place]
    columns["collective"] = _words(kind, collectives)
    columns["datatype"] = _words(kind, datatypes)
    columns["comm_id"] = _words(communicator, rows.communicators)
    columns["micro_batch"] = pa.array(micro_batch, pa.int64(), mask=micro_batch == NONE)
    columns["start_ns"] = rows.start_ns[order]
    columns["end_ns"] = rows.end_ns[order]
    columns["is_matched"] = _is_matched(cross_rank, order)
    columns["in_summary"] = np.isin(step, summary_steps)
    columns |= _waiting_columns(cross_rank, order, _MATCHED_COLUMNS)
    sizes = message_sizes(cross_rank, order)
    message_bytes = sizes.message_bytes
    is_bus_unknown = ~sizes.is_bus_known
    columns["message_bytes"] = pa.array(message_bytes, mask=message_bytes == ABSENT)
    columns["bus_bytes"] = pa.array(sizes.bus_bytes, mask=is_bus_unknown)
    return columns


def _is_matched(cross_rank: CrossRank, order: Int64) -> Flags:
    if cross_rank.waiting is None:
        return np.zeros(order.size, np.bool_)
    collective_id = cross_rank.waiting.collective_id[order]
    is_matched: Flags = collective_id != matching.NOBODY
    return is_matched


def _words(codes: Int32, words: Sequence[str | None]) -> pa.DictionaryArray:
    dictionary = pa.array(words, pa.string())
    return pa.DictionaryArray.from_arrays(pa.array(codes), dictionary)


def _waiting_columns(
    cross_rank: CrossRank, order: Int64, names: Sequence[str]
) -> dict[str, pa.Array]:
    """Return columns of matched operations, null for others and if ranks are missing."""
    waiting = cross_rank.waiting
    if waiting is None:
        return {name: pa.nulls(order.size, _type_of(name)) for name in names}
    communicator = cross_rank.rows.communicator[order]
    has_all_ranks = cross_rank.is_whole[communicator]
    is_known = _is_matched(cross_rank, order) & has_all_ranks
    is_unknown = ~is_known
    columns = {}
    for name in names:
        values = waiting.column(name, order)
        columns[name] = pa.array(values, mask=is_unknown)
    return columns


def _type_of(column: str) -> pa.DataType:
    return pa.bool_() if column.startswith("is_") else pa.int64()


def places_in_steps(cross_rank: CrossRank) -> Int64:
    """Return the place of each collective in its step, in order of first start.

    Operations of a rank that are not matched come after those that are. Operations in no step have
    `NO_SEQ`.
    """
    rows = cross_rank.rows
    seq = np.full(len(rows), NO_SEQ)
    steps_with_matches = n_matched = np.empty(0, np.int64)
    if cross_rank.waiting is not None:
        matched = np.flatnonzero(cross_rank.is_matched & rows.in_step)
        numbering = _number_matched(cross_rank.waiting, rows.step, matched)
        seq[matched] = numbering.place
        steps_with_matches = numbering.steps
        n_matched = numbering.n_collectives
    unmatched = _unmatched_by_rank(cross_rank)
    step = rows.step[unmatched]
    rank = rows.rank[unmatched]
    n_ranks = int(rows.rank.max(initial=0)) + 1
    index = pc.index_in(pa.array(step), value_set=pa.array(steps_with_matches))
    # The last index is that of steps without matched collectives.
    known_index = pc.fill_null(index, steps_with_matches.size).to_numpy()
    n_matched_of_step = np.append(n_matched, 0)[known_index]
    place_of_rank = places_in_runs(step * n_ranks + rank)
    seq[unmatched] = n_matched_of_step + place_of_rank
    return seq


def _unmatched_by_rank(cross_rank: CrossRank) -> Int64:
    """Return the operations in steps that are not matched, ordered by step, rank and start."""
    rows = cross_rank.rows
    is_unmatched = ~cross_rank.is_matched & rows.in_step
    unmatched = np.flatnonzero(is_unmatched)
    step = rows.step[unmatched]
    rank = rows.rank[unmatched]
    start_ns = rows.start_ns[unmatched]
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
    """Return the places of collectives in their steps, in order of first start."""
    collective = waiting.collective_id[operations]
    numbers, first_operation = np.unique(collective, return_index=True)
    step_of_collective = step[operations[first_operation]]
    first_start_ns = waiting.first_start_ns
    order = np.lexsort((first_start_ns[numbers], step_of_collective))
    ordered_numbers = numbers[order]
    place = np.zeros(first_start_ns.size, np.int64)
    place[ordered_numbers] = places_in_runs(step_of_collective[order])
    steps, n_collectives = np.unique(step_of_collective, return_counts=True)
    return _MatchedPlaces(place[collective], steps, n_collectives)


def stragglers_table(
    collectives: CollectivesTable,
    steps: StepsTable,
    ranks: Sequence[int],
    *,
    is_capture: bool,
    is_whole: bool = True,
) -> pa.Table:
    """Return `schema.STRAGGLERS` over the summary steps.

    Delays are null if nothing could be matched, if ranks are missing, or if only stages of a
    pipeline communicate, which does not show who is late. Lateness is also null without steps. If
    these steps have no communication at all, the values are 0.
    """
    is_chosen = pc.and_(collectives["in_summary"], collectives["is_matched"])
    matched = collectives.select(_COLUMNS_FOR_STRAGGLERS).filter(is_chosen)
    summary_steps = steps.filter(steps["in_summary"])
    # If every wait time is known and nothing matched, there was no communication. Then nobody came
    # late, even if collectives of other steps are not known.
    are_waits_known = not summary_steps["wait_ns"].null_count
    has_matches = matched.num_rows > 0
    is_silent = not has_matches and summary_steps.num_rows > 0 and are_waits_known
    matched = own_lateness(matched)
    is_whole_and_matched = is_whole and matched.num_rows > 0
    delays = _delays_of_ranks(matched, steps, ranks, is_capture=is_capture)
    if not is_silent and not is_whole_and_matched:
        nulls = pa.nulls(len(ranks))
        delays = dict.fromkeys(delays, nulls)
    columns = {"rank": ranks, "wait_ns": _wait_of_ranks(summary_steps, ranks)}
    return schema.STRAGGLERS.table(columns | delays)


def _wait_of_ranks(steps: StepsTable, ranks: Sequence[int]) -> list[int | None]:
    """Return the wait time of each rank in some steps, in ns, None if it is not known."""
    by_rank = steps.group_by("rank", use_threads=False)
    sums = by_rank.aggregate([("wait_ns", "sum", _SKIP_NO_NULL)])
    ranks_with_steps = sums["rank"].to_pylist()
    sums_ns = sums["wait_ns_sum"].to_pylist()
    wait_ns = dict(zip(ranks_with_steps, sums_ns, strict=True))
    return [wait_ns.get(rank) for rank in ranks]


def _delays_of_ranks(
    matched: CollectivesTable, steps: StepsTable, ranks: Sequence[int], *, is_capture: bool
) -> dict[str, Any]:
    """Return how often and how much each rank delays others, by matched collectives."""
    n_ranks = len(ranks)
    step = matched["step"].to_numpy()
    late_by_ns = pc.fill_null(matched["late_by_ns"], 0).to_numpy()
    rank_place = np.searchsorted(ranks, matched["rank"].to_numpy())
    late = np.flatnonzero(late_by_ns)
    late_place = rank_place[late]
    delay_ns = late_by_ns[late]
    # The largest delay of each step, the first if several are equal.
    order = np.lexsort((late, -delay_ns, step[late]))
    largest_first = late[order]
    largest = largest_first[run_starts(step[largest_first])]
    lateness_ns = sums_of(rank_place[largest], late_by_ns[largest], n_ranks)
    held_up = held_up_by_step(matched, steps)
    held_up = held_up.filter(pc.field("is_alone"))
    held_up_place = np.searchsorted(ranks, held_up["rank"])
    held_up_ns = held_up["held_up_ns"].to_numpy()
    delays: dict[str, Any] = {}
    delays["n_arrived_last"] = np.bincount(late_place, minlength=n_ranks)
    delays["wait_caused_ns"] = sums_of(late_place, delay_ns, n_ranks)
    delays["lateness_ns"] = pa.nulls(n_ranks) if is_capture else lateness_ns
    delays["held_up_ns"] = sums_of(held_up_place, held_up_ns, n_ranks)
    return delays
