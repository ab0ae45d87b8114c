"""What each communicator carries and costs, by kind of parallelism, and the table of it.

A *use* is one collective of one communicator.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from nsyspipe.analysis.intervals import IntervalSet, union
from nsyspipe.analysis.phases import IN_BACKWARD, IN_FORWARD
from nsyspipe.analysis.traffic import PIPELINE, CommUse, exposed_parts, roles
from nsyspipe.model import schema
from nsyspipe.model.names import COLLECTIVES
from nsyspipe.model.table import Flags, Int64
from nsyspipe.model.typed_tables import (
    StepsColumn,
    StepsTable,
)
from nsyspipe.run.collectives import MessageSizes, message_sizes
from nsyspipe.run.comm_rows import ABSENT, NONE
from nsyspipe.run.cross_rank import CrossRank
from nsyspipe.run.digests import Rank
from nsyspipe.run.process import ProcessDigest
from nsyspipe.run.process_groups import kernels_before_sends, use_of

# Sums over summary steps that the table has per step.
_PER_STEP = ("calls", "bytes", "comm_ns", "exposed_ns", "exposed_part_ns", "hidden_ns", "wait_ns")
# Values per step that are a part of the whole if much communication runs between steps.
_PARTIAL_BETWEEN_STEPS = ("calls", "bytes", "wait_ns")
_SUMS = (
    *_PER_STEP,
    # Calls by the pass that launched them.
    "forward",
    "backward",
    # For bandwidths: the messages of matched operations of known size, what crosses a link for
    # them, and how long they transfer.
    "sized_bytes",
    "sized_bus_bytes",
    "sized_ns",
    "n_steps",
)
_SUMS_PER_CALL = {
    "bytes_per_call": "bytes",
    "forward_share": "forward",
    "backward_share": "backward",
}
# A cell is what a rank did for one use in its summary steps. Null is not known.
_FLOATS = ("exposed_part_ns", "sized_bus_bytes")
_CELLS = pa.schema(
    [(name, pa.float64() if name in _FLOATS else pa.int64()) for name in ("rank", "use", *_SUMS)]
)
_SKIP_NO_NULL = pc.ScalarAggregateOptions(skip_nulls=False)
_COLUMNS_OF_STEPS: tuple[StepsColumn, ...] = ("rank", "step", "start_ns", "end_ns", "comm_ns")


def traffic_table(cross_rank: CrossRank, steps: StepsTable, *, is_capture: bool) -> pa.Table:
    """Return `schema.TRAFFIC`: a row per (rank, communicator, collective).

    Each communicator and collective has one more row for all ranks. `steps` is `schema.STEPS`.
    """
    rows = cross_rank.rows
    summary_steps = steps.select(_COLUMNS_OF_STEPS).filter(steps["in_summary"])
    summary_numbers = summary_steps["step"].to_numpy()
    in_summary = rows.in_step & np.isin(rows.step, summary_numbers)
    rows_of_cells = [*_cells(cross_rank, summary_steps, in_summary)]
    cells = pa.Table.from_pylist(rows_of_cells, _CELLS)
    sums_over_ranks = _sum_over_ranks(cells)
    uses = _uses(cross_rank, cells, sums_over_ranks, in_summary)
    unordered = pa.concat_tables([sums_over_ranks, cells])
    # By rank, then by use. The rows of all ranks, whose rank is null, come first.
    use_numbers = pa.array(uses, pa.int64())
    index_of_use = pc.index_in(unordered["use"], value_set=use_numbers).to_numpy()
    rank_or_none = pc.fill_null(unordered["rank"], NONE)
    order = np.lexsort((index_of_use, rank_or_none))
    table = unordered.take(pa.array(order))
    columns = _columns_of_uses([*uses.values()], index_of_use[order])
    columns |= _values_per_step(
        table, is_capture=is_capture, has_comm_between=cross_rank.has_comm_between
    )
    columns |= _waits_and_bubbles(columns)
    columns |= _bandwidths(table)
    columns["rank"] = table["rank"]
    columns["n_ranks"] = _sizes_of_communicators(cross_rank, table["use"].to_numpy())
    return schema.TRAFFIC.table(columns)


def _sum_over_ranks(cells: pa.Table) -> pa.Table:
    """Return a row of `_CELLS` for each use, with sums over all ranks, and null as the rank.

    A sum is null if the value of one rank is null.
    """
    by_use = cells.group_by("use", use_threads=False)
    aggregations = [(name, "sum", _SKIP_NO_NULL) for name in _SUMS]
    sums = by_use.aggregate(aggregations)
    sums = sums.rename_columns(["use", *_SUMS])
    no_rank = pa.nulls(len(sums), pa.int64())
    return sums.append_column("rank", no_rank).select(_CELLS.names)


def _columns_of_uses(uses: Sequence[CommUse], index_of_use: Int64) -> dict[str, Any]:
    """Return the columns that describe the use of each row.

    `index_of_use` has for each row the index of its use in `uses`.
    """
    communicators = [use.communicator for use in uses]
    collectives = [use.collective for use in uses]
    names_of_uses = {
        "communicator": communicators,
        "collective": collectives,
        "role": roles(uses),
    }
    indices = pa.array(index_of_use)
    columns: dict[str, Any] = {}
    for column, names in names_of_uses.items():
        texts_of_uses = pa.array(names, pa.string())
        columns[column] = texts_of_uses.take(indices)
    # `take` would copy long texts for each row. Chunks of one text share it.
    chunk_of_use = _texts_of_ranks(uses)
    chunks = [chunk_of_use[index] for index in index_of_use.tolist()]
    columns["ranks"] = pa.chunked_array(chunks, pa.string())
    return columns


def _texts_of_ranks(uses: Sequence[CommUse]) -> list[pa.Array]:
    """Return the ranks of each use as a text, such as ``0,1``, in an array of length 1.

    All uses of the same ranks share one array, because thousands of ranks may be listed in
    thousands of rows.
    """
    text_of_ranks = {}
    for ranks in {use.ranks for use in uses}:
        text = ",".join(map(str, ranks))
        text_of_ranks[ranks] = pa.array([text])
    return [text_of_ranks[use.ranks] for use in uses]


def _sizes_of_communicators(cross_rank: CrossRank, use: Int64) -> pa.Array:
    """Return the number of ranks of the communicator of each use, null if it is not known.

    `use` has numbers of uses, as `use_of` makes them.
    """
    communicator = use // len(COLLECTIVES)
    n_ranks = cross_rank.sizes[communicator]
    is_unknown = n_ranks == 0
    return pa.array(n_ranks, mask=is_unknown)


def _values_per_step(
    table: pa.Table, *, is_capture: bool, has_comm_between: bool
) -> dict[str, pa.ChunkedArray]:
    """Return sums as means per step, null if the ranks have no steps (`is_capture`).

    If much communication runs between steps (`has_comm_between`), the steps have only a part of
    calls, bytes and wait times. Then these are null too.
    """
    n_steps = pc.cast(table["n_steps"], pa.float64())
    # A quotient with the divisor null is null.
    divisor = pc.if_else(is_capture, None, n_steps)
    values = {}
    for name in _PER_STEP:
        per_step = _divide(table[name], divisor)
        if has_comm_between and name in _PARTIAL_BETWEEN_STEPS:
            per_step = pa.nulls(len(table), pa.float64())
        values[f"{name}_per_step"] = per_step
    return values


def _waits_and_bubbles(columns: Mapping[str, Any]) -> dict[str, pa.ChunkedArray]:
    """Return wait times in two columns, of which each row has one: bubbles, and other waiting.

    The wait times of pipeline stages are bubbles, because stages wait for each other by design.
    """
    is_staged = pc.equal(columns["role"], PIPELINE)
    wait_ns = columns["wait_ns_per_step"]
    return {
        "bubble_ns_per_step": pc.if_else(is_staged, wait_ns, None),
        "wait_ns_per_step": pc.if_else(is_staged, None, wait_ns),
    }


def _bandwidths(table: pa.Table) -> dict[str, pa.ChunkedArray]:
    """Return the bandwidths of uses, null if nothing of known size was transferred."""
    transfer_ns = pc.cast(table["sized_ns"], pa.float64())
    seconds = pc.divide(transfer_ns, 1e9)
    return {
        "algbw_bytes_per_s": _divide(table["sized_bytes"], seconds),
        "busbw_bytes_per_s": _divide(table["sized_bus_bytes"], seconds),
    }


def _divide(values: pa.ChunkedArray, divisor: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the quotient, null for a divisor that is not above 0."""
    is_positive = pc.greater(divisor, 0)
    positive_or_null = pc.if_else(is_positive, divisor, None)
    dividend = pc.cast(values, pa.float64(), safe=False)
    return pc.divide(dividend, positive_or_null)


class _Calls(Struct, frozen=True):
    """The operations of all ranks, with what the cells sum of them."""

    cross_rank: CrossRank
    # Of each operation, the number of its use, as `use_of` makes it.
    use: Int64
    in_summary: Flags
    sizes: MessageSizes
    # Of each operation, whether its wait time is known.
    is_wait_known: Flags


class _StepsOfRank(Struct, frozen=True):
    """The summary steps of one rank."""

    starts: Int64
    ends: Int64
    # When communication overlaps with compute.
    overlap: IntervalSet

    def time_in_steps(self, intervals: IntervalSet) -> int:
        """Return how much of the time of the steps the intervals cover, in ns."""
        ns_of_steps = intervals.lengths(self.starts, self.ends)
        return int(ns_of_steps.sum())


def _cells(
    cross_rank: CrossRank, summary_steps: StepsTable, in_summary: Flags
) -> Iterator[dict[str, Any]]:
    """Yield a row of `_CELLS` for each rank and use.

    If some communication of a rank was not recorded, its rows have no times, calls and bytes. Only
    the sums for bandwidths stay.
    """
    rows = cross_rank.rows
    all_operations = np.arange(len(rows))
    sizes = message_sizes(cross_rank, all_operations)
    calls = _Calls(
        cross_rank=cross_rank,
        use=use_of(rows),
        in_summary=in_summary,
        sizes=sizes,
        is_wait_known=cross_rank.is_known,
    )
    ranks_with_unknown_comm = _ranks_with_unknown_comm(summary_steps)
    for rank, rows_of_rank in cross_rank.by_rank():
        is_comm_known = rank.number not in ranks_with_unknown_comm
        steps = _steps_of_rank(summary_steps, rank)
        n_steps = steps.starts.size
        operations_of_use = _operations_of_uses(calls.use, rows_of_rank)
        times_of_use = _times_of_uses(calls, operations_of_use, steps) if is_comm_known else {}
        for use, operations in operations_of_use.items():
            cell = {"rank": rank.number, "use": use, "n_steps": n_steps}
            cell |= _sized_sums(calls, operations)
            if is_comm_known:
                cell |= times_of_use[use]
                cell |= _sums_of_use(calls, operations, steps)
            yield cell


def _ranks_with_unknown_comm(summary_steps: StepsTable) -> set[int]:
    """Return the ranks that have a summary step whose communication time is not known."""
    is_comm_unknown = pc.is_null(summary_steps["comm_ns"])
    steps_with_unknown_comm = summary_steps.filter(is_comm_unknown)
    return {*steps_with_unknown_comm["rank"].to_pylist()}


def _operations_of_uses(use: Int64, rows_of_rank: slice) -> dict[int, Int64]:
    """Return the operations of one rank by the number of their use, as indices into all rows."""
    use_of_rank = use[rows_of_rank]
    operations_of_use = {}
    for number in np.unique(use_of_rank).tolist():
        index_in_rank = np.flatnonzero(use_of_rank == number)
        operations_of_use[number] = index_in_rank + rows_of_rank.start
    return operations_of_use


def _steps_of_rank(summary_steps: StepsTable, rank: Rank[ProcessDigest]) -> _StepsOfRank:
    """Return the summary steps of one rank. `summary_steps` is in order of rank."""
    rank_of_step = summary_steps["rank"].to_numpy()
    first_row = np.searchsorted(rank_of_step, rank.number)
    n_steps = np.searchsorted(rank_of_step, rank.number, side="right") - first_row
    steps_of_rank = summary_steps.slice(first_row, n_steps)
    overlap = rank.process.overlap.shifted(rank.shift_ns)
    starts = steps_of_rank["start_ns"].to_numpy()
    ends = steps_of_rank["end_ns"].to_numpy()
    return _StepsOfRank(starts, ends, overlap)


def _times_of_uses(
    calls: _Calls, operations_of_use: Mapping[int, Int64], steps: _StepsOfRank
) -> dict[int, dict[str, Any]]:
    """Return the columns of `_CELLS` that are times of a use in the steps, for each use.

    A part of the time overlaps with compute (``hidden_ns``), and the rest is exposed. Uses that are
    exposed at the same time share that time in ``exposed_part_ns``.
    """
    rows = calls.cross_rank.rows
    unions = []
    for operations in operations_of_use.values():
        starts = rows.start_ns[operations]
        ends = rows.end_ns[operations]
        unions.append(union(starts, ends))
    windows = IntervalSet(steps.starts, steps.ends)
    exposed_part_ns = exposed_parts(unions, steps.overlap, windows)
    times = {}
    for use, intervals, part_ns in zip(operations_of_use, unions, exposed_part_ns, strict=True):
        comm_ns = steps.time_in_steps(intervals)
        overlapped = intervals.intersect(steps.overlap)
        overlapped_ns = steps.time_in_steps(overlapped)
        exposed_ns = comm_ns - overlapped_ns
        times[use] = {
            "comm_ns": comm_ns,
            "exposed_ns": exposed_ns,
            "hidden_ns": overlapped_ns,
            "exposed_part_ns": part_ns,
        }
    return times


def _sized_sums(calls: _Calls, operations: Int64) -> dict[str, Any]:
    """Return the bytes and the transfer time of a use, from which its bandwidth follows.

    The result is empty unless the wait time and the size of each operation of the use in summary
    steps are known.
    """
    waiting = calls.cross_rank.waiting
    sizes = calls.sizes
    in_summary = calls.in_summary[operations]
    counted = operations[in_summary]
    is_size_and_wait_known = sizes.is_bus_known[counted] & calls.is_wait_known[counted]
    are_all_known = bool(is_size_and_wait_known.all())
    if waiting is None or not counted.size or not are_all_known:
        return {}
    message_bytes = sizes.message_bytes[counted]
    bus_bytes = sizes.bus_bytes[counted]
    transfer_ns = waiting.column("transfer_ns", counted)
    return {
        "sized_bytes": message_bytes.sum(),
        "sized_bus_bytes": bus_bytes.sum(),
        "sized_ns": transfer_ns.sum(),
    }


def _sums_of_use(calls: _Calls, operations: Int64, steps: _StepsOfRank) -> dict[str, Any]:
    """Return the counts, bytes and wait time of a use over the summary steps.

    The counts are of all calls, and of calls that forward or backward launched. A sum is left out
    if one of its operations does not have the value.
    """
    cross_rank = calls.cross_rank
    in_summary = calls.in_summary[operations]
    counted = operations[in_summary]
    sums: dict[str, Any] = {"calls": counted.size}
    message_bytes = calls.sizes.message_bytes[counted]
    if not (message_bytes == ABSENT).any():
        sums["bytes"] = message_bytes.sum()
    is_wait_known = calls.is_wait_known[counted]
    if cross_rank.waiting is not None and is_wait_known.all():
        # Only the part of the waits that lies in summary steps counts.
        waits = cross_rank.waited(operations, cross_rank.waiting)
        sums["wait_ns"] = steps.time_in_steps(waits)
    launched_in = cross_rank.rows.launched_in[counted]
    is_pass_known = launched_in != NONE
    if is_pass_known.all():
        sums["forward"] = np.count_nonzero(launched_in == IN_FORWARD)
        sums["backward"] = np.count_nonzero(launched_in == IN_BACKWARD)
    return sums


def _uses(
    cross_rank: CrossRank, cells: pa.Table, sums_over_ranks: pa.Table, in_summary: Flags
) -> dict[int, CommUse]:
    """Return the uses by their number, in order of communicator and collective.

    A use has what `roles` needs to find the kind of parallelism. `sums_over_ranks` has a row for
    each use.
    """
    communicators = cross_rank.rows.communicators
    ranks_of_communicator = _ranks_of_communicators(cells)
    kernels_before = kernels_before_sends(cross_rank.rows, in_summary)
    uses = {}
    for row in sums_over_ranks.to_pylist():
        number = row["use"]
        # `use_of` makes the number from a communicator and a collective.
        communicator_index, collective_index = divmod(number, len(COLLECTIVES))
        n_calls = row["calls"] or 0
        n_steps = row["n_steps"]
        calls_per_step = n_calls / n_steps if n_steps else 0.0
        uses[number] = CommUse(
            communicator=communicators[communicator_index],
            collective=COLLECTIVES[collective_index],
            ranks=ranks_of_communicator[communicator_index],
            calls_per_step=calls_per_step,
            kernels_before=kernels_before.get(number, ()),
            **_means_per_call(row),
        )

    def names_of_use(number: int) -> tuple[str, str]:
        use = uses[number]
        return use.communicator, use.collective

    in_order = sorted(uses, key=names_of_use)
    return {number: uses[number] for number in in_order}


def _ranks_of_communicators(cells: pa.Table) -> dict[int, tuple[int, ...]]:
    """Return the ranks that use each communicator, each once, in order of their first cell."""
    ranks_of_communicator: dict[int, list[int]] = {}
    ranks = cells["rank"].to_pylist()
    uses = cells["use"].to_pylist()
    for rank, use in zip(ranks, uses, strict=True):
        # `use_of` makes the number of a use from a communicator and a collective.
        communicator = use // len(COLLECTIVES)
        ranks_of_communicator.setdefault(communicator, []).append(rank)
    return {
        communicator: tuple(dict.fromkeys(user_ranks))
        for communicator, user_ranks in ranks_of_communicator.items()
    }


def _means_per_call(row: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the fields of `CommUse` that are means over calls.

    A mean is None if its sum is not known, or if there are no calls.
    """
    n_calls = row["calls"] or 0
    means: dict[str, float | None] = {}
    for name, column in _SUMS_PER_CALL.items():
        total = row[column]
        is_known = n_calls > 0 and total is not None
        means[name] = total / n_calls if is_known else None
    return means
