"""What matched collectives show of steps and ranks, and the tables of communication."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from nsyspipe.analysis import collectives as matching
from nsyspipe.analysis.intervals import BLOCK, places_in_runs, run_starts, sums_of
from nsyspipe.analysis.operations import NO_SEQ
from nsyspipe.analysis.traffic import held_up_by_step, own_lateness
from nsyspipe.model import schema
from nsyspipe.model.names import COLLECTIVES
from nsyspipe.model.table import FLOAT, INT, Flags, Float64, Int32, Int64, conform
from nsyspipe.run.comm_rows import ABSENT, NONE, CommRows, comm_rows
from nsyspipe.run.cross_rank import CrossRank, align_captures, cross_rank

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
    "cross_rank",
    "message_sizes",
    "places_in_steps",
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
_COLUMNS_FOR_STRAGGLERS = (
    "step",
    "rank",
    "collective",
    "comm_id",
    "wait_ns",
    "late_by_ns",
    "held_up_ns",
)
_BYTES_OF_BANDWIDTHS = {"algbw_bytes_per_s": "message_bytes", "busbw_bytes_per_s": "bus_bytes"}


class StepWaits(Struct, frozen=True):
    """The wait time of each window."""

    wait_ns: Int64
    # the part while no compute runs
    exposed_wait_ns: Int64
    is_known: Flags


def step_waits(
    across: CrossRank, rank_place: Int64, step: Int64, *, starts: Int64, ends: Int64
) -> StepWaits:
    """Return the wait time of each window: its rank's place, its step and its aligned times.

    It is the union of ``[start, min(last start, end))`` over the rank's matched operations, clipped
    to the window. It is not known if an operation of the step is not matched.
    """
    rows = across.rows
    n_ranks = len(across.placed)
    wait_ns = np.zeros(step.size, np.int64)
    exposed_wait_ns = np.zeros(step.size, np.int64)
    if across.waiting is None:
        return StepWaits(wait_ns, exposed_wait_ns, np.zeros(step.size, np.bool_))
    for place, (rank, operations) in enumerate(across.by_rank()):
        windows = slice(*np.searchsorted(rank_place, (place, place + 1)))
        waits = across.waited(operations, across.waiting)
        wait_ns[windows] = waits.lengths(starts[windows], ends[windows])
        overlapped = waits.intersect(rank.process.hidden.shifted(rank.shift_ns))
        overlapped_ns = overlapped.lengths(starts[windows], ends[windows])
        exposed_wait_ns[windows] = wait_ns[windows] - overlapped_ns
    is_unmatched = rows.in_step & ~across.is_known
    unknown_keys = np.unique(rows.step[is_unmatched] * n_ranks + rows.rank[is_unmatched])
    is_known = ~np.isin(step * n_ranks + rank_place, unknown_keys)
    return StepWaits(wait_ns, exposed_wait_ns, is_known)


def step_bytes(across: CrossRank, rank_place: Int64, step: Int64) -> tuple[Int64, Flags]:
    """Return the bytes of the messages of each (rank, step), and whether all sizes are known."""
    rows = across.rows
    n_ranks = len(across.placed)
    operations = np.flatnonzero(rows.in_step)
    message_bytes = message_sizes(across, operations).message_bytes
    keys = pa.array(rows.step[operations] * n_ranks + rows.rank[operations])
    window_keys = pa.array(step * n_ranks + rank_place)
    # Operations of no window go to one more place at the end, which is dropped.
    n_places = step.size + 1
    window = pc.fill_null(pc.index_in(keys, value_set=window_keys), step.size).to_numpy()
    is_sized = message_bytes != ABSENT
    totals = sums_of(window[is_sized], message_bytes[is_sized], n_places)
    n_unsized = np.bincount(window[~is_sized], minlength=n_places)
    return totals[:-1], n_unsized[:-1] == 0


class MessageSizes(Struct, frozen=True):
    """The sizes of some operations."""

    # the whole message, `ABSENT` if it is not known
    message_bytes: Int64
    # what the bus carries for it, meaningless if not `is_bus_known`
    bus_bytes: Float64
    is_bus_known: Flags


def message_sizes(across: CrossRank, operations: Int64) -> MessageSizes:
    """Return the sizes of some operations, by what NCCL reports of one rank."""
    rows = across.rows
    reported = rows.message_bytes[operations]
    is_reported = reported != ABSENT
    message_bytes = np.full(operations.size, ABSENT)
    bus_bytes = np.zeros(operations.size)
    if not is_reported.any():
        return MessageSizes(message_bytes, bus_bytes, is_reported)
    n_ranks = across.sizes[rows.communicator[operations]]
    collective = rows.collective[operations]
    for code, name in enumerate(COLLECTIVES):
        chosen = is_reported & (collective == code)
        n_chosen_ranks = n_ranks[chosen]
        whole = matching.whole_message(name, reported[chosen], n_chosen_ranks)
        # NCCL reports the part of one rank, so that the whole needs the number of ranks.
        is_unknown = (n_chosen_ranks == 0) & (name in matching.PER_RANK)
        message_bytes[chosen] = np.where(is_unknown, ABSENT, whole)
        at_least_one_rank = np.maximum(n_chosen_ranks, 1).astype(np.float64)
        bus_bytes[chosen] = whole * matching.bus_factor(name, at_least_one_rank)
    is_bus_known = is_reported & (message_bytes != ABSENT) & (n_ranks > 0)
    return MessageSizes(message_bytes, bus_bytes, is_bus_known)


def collectives_table(across: CrossRank, ranks: Sequence[int], summary_steps: Int64) -> pa.Table:
    """Return `schema.COLLECTIVES`, made in blocks of rows, which need little memory."""
    rows = across.rows
    chosen = np.flatnonzero(rows.in_step)
    seq = places_in_steps(across)
    exposed_ns, has_graph = _exposed_times(across)
    ordered = chosen[np.lexsort((rows.rank[chosen], seq[chosen], rows.step[chosen]))]
    nulls = _shared_nulls(ordered.size)
    blocks = []
    for start in range(0, ordered.size, BLOCK):
        block = ordered[start : start + BLOCK]
        columns = _columns(across, block, ranks, summary_steps)
        columns["seq"] = seq[block]
        algorithms = [kind.algorithm for kind in rows.kinds]
        columns["algorithm"] = _words(rows.kind[block], algorithms)
        columns["exposed_ns"] = pa.array(exposed_ns[block], mask=has_graph[block])
        columns |= _waiting_columns(across, block, ("is_significant",))
        columns |= _bandwidths(columns)
        blocks.append(_sharing_nulls(conform(pa.table(columns), schema.COLLECTIVES), nulls))
    return pa.concat_tables([schema.COLLECTIVES.empty(), *blocks])


def _bandwidths(columns: Mapping[str, Any]) -> dict[str, pa.Array]:
    """Return the bandwidths of operations, null if nothing was transferred."""
    seconds = pc.divide(pc.cast(columns["transfer_ns"], pa.float64(), safe=False), 1e9)
    seconds = pc.if_else(pc.equal(seconds, 0.0), None, seconds)
    return {
        name: pc.divide(pc.cast(columns[bytes_name], pa.float64(), safe=False), seconds)
        for name, bytes_name in _BYTES_OF_BANDWIDTHS.items()
    }


def _exposed_times(across: CrossRank) -> tuple[Int64, Flags]:
    """Return the time of each operation while no compute runs, and whether it is unknown.

    It is unknown if CUDA graphs of the rank may hide compute.
    """
    rows = across.rows
    exposed_ns = rows.end_ns - rows.start_ns
    has_graph = np.zeros(len(rows), np.bool_)
    for rank, operations in across.by_rank():
        compute = rank.process.hidden.shifted(rank.shift_ns)
        exposed_ns[operations] -= compute.lengths(
            rows.start_ns[operations], rows.end_ns[operations]
        )
        has_graph[operations] = bool(rank.process.windows["graph_ns"].to_numpy().any())
    return exposed_ns, has_graph


def _shared_nulls(n_rows: int) -> dict[pa.DataType, pa.Array]:
    """Return blocks of nulls that all columns of a large table share; nothing for a small one."""
    return {kind: pa.nulls(BLOCK, kind) for kind in (INT, FLOAT)} if n_rows > BLOCK else {}


def _sharing_nulls(table: pa.Table, nulls: Mapping[pa.DataType, pa.Array]) -> pa.Table:
    """Return a table whose columns without values use the shared nulls, to save memory."""
    for index, field in enumerate(table.schema):
        if field.type in nulls and table[index].null_count == table.num_rows:
            batches = table.select([index]).to_batches(BLOCK)
            chunks = [nulls[field.type][: batch.num_rows] for batch in batches]
            table = table.set_column(index, field, pa.chunked_array(chunks, field.type))
    return table


def collective_figures(across: CrossRank, ranks: Sequence[int], summary_steps: Int64) -> pa.Table:
    """Return the columns of `collectives_table` that metrics and findings need.

    They are of summary steps, sorted by (rank, start). Exposed times show who only passes on a
    delay of another communicator. They are null if the run has only one communicator.
    """
    rows = across.rows
    order = np.flatnonzero(rows.in_step & np.isin(rows.step, summary_steps))
    columns = _columns(across, order, ranks, summary_steps)
    columns["exposed_ns"] = pa.nulls(order.size, pa.int64())
    if len(rows.communicators) > 1:
        exposed_ns, has_graph = _exposed_times(across)
        columns["exposed_ns"] = pa.array(exposed_ns[order], mask=has_graph[order])
    return _sharing_nulls(pa.table(columns), _shared_nulls(order.size))


def _columns(
    across: CrossRank, order: Int64, ranks: Sequence[int], summary_steps: Int64
) -> dict[str, Any]:
    """Return the columns of some operations that both tables of collectives have."""
    rows = across.rows
    kind = rows.kind[order]
    sizes = message_sizes(across, order)
    micro_batch = rows.micro_batch[order]
    columns = {
        "step": rows.step[order],
        "rank": np.asarray(ranks, np.int64)[rows.rank[order]],
        "collective": _words(kind, [each.collective for each in rows.kinds]),
        "datatype": _words(kind, [each.datatype for each in rows.kinds]),
        "comm_id": _words(rows.communicator[order], rows.communicators),
    }
    columns["micro_batch"] = pa.array(micro_batch, pa.int64(), mask=micro_batch == NONE)
    columns["start_ns"] = rows.start_ns[order]
    columns["end_ns"] = rows.end_ns[order]
    columns["is_matched"] = _is_matched(across, order)
    columns["in_summary"] = np.isin(rows.step[order], summary_steps)
    columns |= _waiting_columns(across, order, _MATCHED_COLUMNS)
    is_absent = sizes.message_bytes == ABSENT
    columns["message_bytes"] = pa.array(sizes.message_bytes, mask=is_absent)
    columns["bus_bytes"] = pa.array(sizes.bus_bytes, mask=~sizes.is_bus_known)
    return columns


def _is_matched(across: CrossRank, order: Int64) -> Flags:
    if across.waiting is None:
        return np.zeros(order.size, np.bool_)
    is_matched: Flags = across.waiting.collective_id[order] != matching.NOBODY
    return is_matched


def _words(codes: Int32, words: Sequence[str | None]) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(words, pa.string()))


def _waiting_columns(across: CrossRank, order: Int64, names: Sequence[str]) -> dict[str, pa.Array]:
    """Return columns of matched operations, null for others and if ranks are missing."""
    waiting = across.waiting
    if waiting is None:
        return {name: pa.nulls(order.size, _type_of(name)) for name in names}
    has_all_ranks = across.is_whole[across.rows.communicator[order]]
    is_unknown = ~_is_matched(across, order) | ~has_all_ranks
    return {name: pa.array(waiting.column(name, order), mask=is_unknown) for name in names}


def _type_of(column: str) -> pa.DataType:
    return pa.bool_() if column.startswith("is_") else pa.int64()


def places_in_steps(across: CrossRank) -> Int64:
    """Return the place of each collective in its step, in order of first start.

    Operations of a rank that are not matched come after those that are. Operations in no step have
    `NO_SEQ`.
    """
    rows = across.rows
    seq = np.full(len(rows), NO_SEQ)
    steps_with_matches = n_matched = np.empty(0, np.int64)
    if across.waiting is not None:
        matched = np.flatnonzero(across.is_matched & rows.in_step)
        numbering = _number_matched(across.waiting, rows.step, matched)
        seq[matched] = numbering.place
        steps_with_matches = numbering.steps
        n_matched = numbering.n_collectives
    unmatched = np.flatnonzero(~across.is_matched & rows.in_step)
    order = np.lexsort((rows.start_ns[unmatched], rows.rank[unmatched], rows.step[unmatched]))
    unmatched = unmatched[order]
    step = rows.step[unmatched]
    n_ranks = int(rows.rank.max(initial=0)) + 1
    seq[unmatched] = places_in_runs(step * n_ranks + rows.rank[unmatched])
    index = pc.index_in(pa.array(step), value_set=pa.array(steps_with_matches))
    # The last index is that of steps without matched collectives.
    known_index = pc.fill_null(index, steps_with_matches.size).to_numpy()
    seq[unmatched] += np.append(n_matched, 0)[known_index]
    return seq


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
    order = np.lexsort((waiting.first_start_ns[numbers], step_of_collective))
    place = np.zeros(waiting.first_start_ns.size, np.int64)
    place[numbers[order]] = places_in_runs(step_of_collective[order])
    steps, n_collectives = np.unique(step_of_collective, return_counts=True)
    return _MatchedPlaces(place[collective], steps, n_collectives)


def stragglers_table(
    collectives: pa.Table,
    steps: pa.Table,
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
    is_silent = not matched.num_rows and summary_steps.num_rows > 0 and are_waits_known
    matched = own_lateness(matched)
    is_known = is_silent or (is_whole and matched.num_rows > 0)
    skip_no_null = pc.ScalarAggregateOptions(skip_nulls=False)
    by_rank = summary_steps.group_by("rank", use_threads=False)
    sums = by_rank.aggregate([("wait_ns", "sum", skip_no_null)])
    wait_ns = dict(zip(sums["rank"].to_pylist(), sums["wait_ns_sum"].to_pylist(), strict=True))
    columns = {"rank": ranks, "wait_ns": [*map(wait_ns.get, ranks)]}
    delays = _delays_of_ranks(matched, steps, ranks, is_capture=is_capture)
    if not is_known:
        delays = dict.fromkeys(delays, pa.nulls(len(ranks)))
    return schema.STRAGGLERS.table(columns | delays)


def _delays_of_ranks(
    matched: pa.Table, steps: pa.Table, ranks: Sequence[int], *, is_capture: bool
) -> dict[str, Any]:
    """Return how often and how much each rank delays others, by matched collectives."""
    n_ranks = len(ranks)
    step = matched["step"].to_numpy()
    late_by_ns = pc.fill_null(matched["late_by_ns"], 0).to_numpy()
    place = np.searchsorted(ranks, matched["rank"].to_numpy())
    late = np.flatnonzero(late_by_ns)
    # The largest delay of each step, the first if several are equal.
    largest_first = late[np.lexsort((late, -late_by_ns[late], step[late]))]
    largest = largest_first[run_starts(step[largest_first])]
    lateness_ns = sums_of(place[largest], late_by_ns[largest], n_ranks)
    held_up = held_up_by_step(matched, steps).filter(pc.field("is_alone"))
    held_up_place = np.searchsorted(ranks, held_up["rank"])
    held_up_ns = sums_of(held_up_place, held_up["held_up_ns"].to_numpy(), n_ranks)
    return {
        "n_arrived_last": np.bincount(place[late], minlength=n_ranks),
        "wait_caused_ns": sums_of(place[late], late_by_ns[late], n_ranks),
        "lateness_ns": pa.nulls(n_ranks) if is_capture else lateness_ns,
        "held_up_ns": held_up_ns,
    }
