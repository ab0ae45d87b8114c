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
    # Matched operations of known size: their messages, what crosses a link, and their time.
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


def traffic_table(across: CrossRank, steps: pa.Table, *, is_capture: bool) -> pa.Table:
    """Return `schema.TRAFFIC`: a row per (rank, communicator, collective), and one for all ranks.

    `steps` is `schema.STEPS`.
    """
    summary_steps = steps.filter(steps["in_summary"])
    is_summary_step = np.isin(across.rows.step, summary_steps["step"].to_numpy())
    in_summary = across.rows.in_step & is_summary_step
    cells = pa.Table.from_pylist([*_cells(across, summary_steps, in_summary)], _CELLS)
    all_ranks = _sum_over_ranks(cells)
    uses = _uses(across, cells, all_ranks, in_summary)
    table = pa.concat_tables([all_ranks.select(_CELLS.names), cells])
    use_numbers = pa.array(uses, pa.int64())
    index = pc.index_in(table["use"], value_set=use_numbers).to_numpy()
    order = np.lexsort((index, pc.fill_null(table["rank"], NONE)))
    table = table.take(pa.array(order))
    communicator = table["use"].to_numpy() // len(COLLECTIVES)
    n_ranks = across.sizes[communicator]
    columns = _columns_of_uses([*uses.values()], index[order])
    columns |= _values_per_step(
        table, is_capture=is_capture, has_comm_between=across.has_comm_between
    )
    columns |= _bandwidths(table)
    columns["rank"] = table["rank"]
    columns["n_ranks"] = pa.array(n_ranks, mask=n_ranks == 0)
    # Stages wait for each other by design.
    is_staged = pc.equal(columns["role"], PIPELINE)
    wait_ns = columns["wait_ns_per_step"]
    columns["bubble_ns_per_step"] = pc.if_else(is_staged, wait_ns, None)
    columns["wait_ns_per_step"] = pc.if_else(is_staged, None, wait_ns)
    return schema.TRAFFIC.table(columns)


def _sum_over_ranks(cells: pa.Table) -> pa.Table:
    """Return a cell of each use for all ranks, whose rank is null."""
    skip_no_null = pc.ScalarAggregateOptions(skip_nulls=False)
    by_use = cells.group_by("use", use_threads=False)
    sums = by_use.aggregate([(name, "sum", skip_no_null) for name in _SUMS])
    no_rank = pa.nulls(len(sums), pa.int64())
    return sums.rename_columns(["use", *_SUMS]).append_column("rank", no_rank)


def _columns_of_uses(uses: Sequence[CommUse], index: Int64) -> dict[str, Any]:
    """Return what identifies the use of each row, whose place in `uses` is its index."""
    places = pa.array(index)
    names = pa.array([use.communicator for use in uses], pa.string())
    collectives = pa.array([use.collective for use in uses], pa.string())
    # All rows of a communicator share one text, because thousands of ranks may be listed in
    # thousands of rows.
    text_of_ranks = {use.ranks: pa.array([",".join(map(str, use.ranks))]) for use in uses}
    text_of_use = [text_of_ranks[use.ranks] for use in uses]
    texts = [text_of_use[place] for place in index.tolist()]
    roles_of_uses = pa.array(roles(uses), pa.string())
    return {
        "communicator": names.take(places),
        "collective": collectives.take(places),
        "role": roles_of_uses.take(places),
        "ranks": pa.chunked_array(texts, pa.string()),
    }


def _values_per_step(
    table: pa.Table, *, is_capture: bool, has_comm_between: bool
) -> dict[str, pa.ChunkedArray]:
    n_steps = pc.if_else(is_capture, None, pc.cast(table["n_steps"], pa.float64()))
    values = {f"{name}_per_step": _divide(table[name], n_steps) for name in _PER_STEP}
    if has_comm_between:
        for name in _PARTIAL_BETWEEN_STEPS:
            values[f"{name}_per_step"] = pa.nulls(len(table), pa.float64())
    return values


def _bandwidths(table: pa.Table) -> dict[str, pa.ChunkedArray]:
    seconds = pc.divide(pc.cast(table["sized_ns"], pa.float64()), 1e9)
    return {
        "algbw_bytes_per_s": _divide(table["sized_bytes"], seconds),
        "busbw_bytes_per_s": _divide(table["sized_bus_bytes"], seconds),
    }


def _divide(values: pa.ChunkedArray, divisor: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the quotient, null for a divisor that is not above 0."""
    positive = pc.if_else(pc.greater(divisor, 0), divisor, None)
    return pc.divide(pc.cast(values, pa.float64(), safe=False), positive)


class _Calls(Struct, frozen=True):
    """The operations of all ranks, with what the cells sum of them."""

    across: CrossRank
    # Number of each operation's use.
    use: Int64
    in_summary: Flags
    sizes: MessageSizes
    # Of which operations it is known who waits.
    is_known: Flags


class _StepsOfRank(Struct, frozen=True):
    """The summary steps of one rank."""

    starts: Int64
    ends: Int64
    # When compute hides communication.
    hidden: IntervalSet


def _cells(
    across: CrossRank, summary_steps: pa.Table, in_summary: Flags
) -> Iterator[dict[str, Any]]:
    """Yield a row of `_CELLS` for each rank and use."""
    rows = across.rows
    calls = _Calls(
        across=across,
        use=use_of(rows),
        in_summary=in_summary,
        sizes=message_sizes(across, np.arange(len(rows))),
        is_known=across.is_known,
    )
    is_comm_unknown = pc.is_null(summary_steps["comm_ns"])
    ranks_with_hidden_comm = {*summary_steps.filter(is_comm_unknown)["rank"].to_pylist()}
    for rank, span in across.by_rank():
        has_hidden_comm = rank.number in ranks_with_hidden_comm
        steps = _steps_of_rank(summary_steps, rank)
        operations_of_use = _operations_of_uses(calls.use, span)
        times = {} if has_hidden_comm else _times_of_uses(calls, operations_of_use, steps)
        for use, operations in operations_of_use.items():
            cell = {"rank": rank.number, "use": use, "n_steps": steps.starts.size}
            cell |= _sized_sums(calls, operations)
            if not has_hidden_comm:
                cell |= times[use]
                cell |= _sums_of_use(calls, operations, steps)
            yield cell


def _operations_of_uses(use: Int64, span: slice) -> dict[int, Int64]:
    """Return the operations of each use in a span of all operations."""
    use_in_span = use[span]
    return {
        number: np.flatnonzero(use_in_span == number) + span.start
        for number in np.unique(use_in_span).tolist()
    }


def _steps_of_rank(summary_steps: pa.Table, rank: Rank[ProcessDigest]) -> _StepsOfRank:
    rank_of_step = summary_steps["rank"].to_numpy()
    first, end = np.searchsorted(rank_of_step, (rank.number, rank.number + 1))
    windows = slice(first, end)
    return _StepsOfRank(
        starts=summary_steps["start_ns"].to_numpy()[windows],
        ends=summary_steps["end_ns"].to_numpy()[windows],
        hidden=rank.process.hidden.shifted(rank.shift_ns),
    )


def _times_of_uses(
    calls: _Calls, operations_of_use: Mapping[int, Int64], steps: _StepsOfRank
) -> dict[int, dict[str, Any]]:
    """Return how long each use runs in the steps, exposed and overlapped by compute."""
    rows = calls.across.rows
    unions = {
        use: union(rows.start_ns[operations], rows.end_ns[operations])
        for use, operations in operations_of_use.items()
    }
    windows = IntervalSet(steps.starts, steps.ends)
    exposed_part_ns = exposed_parts([*unions.values()], steps.hidden, windows)
    times = {}
    for (use, intervals), part_ns in zip(unions.items(), exposed_part_ns, strict=True):
        comm_ns = intervals.lengths(steps.starts, steps.ends).sum()
        overlapped = intervals.intersect(steps.hidden)
        overlapped_ns = overlapped.lengths(steps.starts, steps.ends).sum()
        times[use] = {
            "comm_ns": comm_ns,
            "exposed_ns": comm_ns - overlapped_ns,
            "hidden_ns": overlapped_ns,
            "exposed_part_ns": part_ns,
        }
    return times


def _sized_sums(calls: _Calls, operations: Int64) -> dict[str, Any]:
    """Return bytes and time of a use if all its operations are matched and have known sizes."""
    waiting = calls.across.waiting
    counted = operations[calls.in_summary[operations]]
    is_measured = calls.sizes.is_bus_known[counted] & calls.is_known[counted]
    if waiting is None or not counted.size or not is_measured.all():
        return {}
    return {
        "sized_bytes": calls.sizes.message_bytes[counted].sum(),
        "sized_bus_bytes": calls.sizes.bus_bytes[counted].sum(),
        "sized_ns": waiting.column("transfer_ns", counted).sum(),
    }


def _sums_of_use(calls: _Calls, operations: Int64, steps: _StepsOfRank) -> dict[str, Any]:
    """Return the counts, bytes and wait time of a use, without those that are not known."""
    across = calls.across
    counted = operations[calls.in_summary[operations]]
    sums: dict[str, Any] = {"calls": counted.size}
    message_bytes = calls.sizes.message_bytes[counted]
    if not (message_bytes == ABSENT).any():
        sums["bytes"] = message_bytes.sum()
    if across.waiting is not None and calls.is_known[counted].all():
        waits = across.waited(operations, across.waiting)
        sums["wait_ns"] = waits.lengths(steps.starts, steps.ends).sum()
    launched_in = across.rows.launched_in[counted]
    if not (launched_in == NONE).any():
        sums["forward"] = np.count_nonzero(launched_in == IN_FORWARD)
        sums["backward"] = np.count_nonzero(launched_in == IN_BACKWARD)
    return sums


def _uses(
    across: CrossRank, cells: pa.Table, all_ranks: pa.Table, in_summary: Flags
) -> dict[int, CommUse]:
    """Return the uses by their number, in order of communicator and collective.

    They hold what `roles` needs to find the kind of parallelism.
    """
    ranks_of_communicator = _ranks_of_communicators(cells)
    kernels_before = kernels_before_sends(across.rows, in_summary)
    uses = {}
    for row in all_ranks.to_pylist():
        number = row["use"]
        communicator, collective = divmod(number, len(COLLECTIVES))
        n_steps = row["n_steps"]
        uses[number] = CommUse(
            communicator=across.rows.communicators[communicator],
            collective=COLLECTIVES[collective],
            ranks=ranks_of_communicator[communicator],
            calls_per_step=(row["calls"] or 0) / n_steps if n_steps else 0.0,
            kernels_before=kernels_before.get(number, ()),
            **_means_per_call(row),
        )
    in_order = sorted(uses.items(), key=lambda entry: (entry[1].communicator, entry[1].collective))
    return dict(in_order)


def _ranks_of_communicators(cells: pa.Table) -> dict[int, tuple[int, ...]]:
    """Return the ranks that use each communicator, in order of their first cell."""
    # A dict keeps the order, and each rank once.
    users: dict[int, dict[int, None]] = {}
    for rank, use in zip(cells["rank"].to_pylist(), cells["use"].to_pylist(), strict=True):
        users.setdefault(use // len(COLLECTIVES), {})[rank] = None
    return {communicator: tuple(ranks) for communicator, ranks in users.items()}


def _means_per_call(row: Mapping[str, Any]) -> dict[str, float | None]:
    """Return what `CommUse` has of a mean call, None if it is not known or there are no calls."""
    n_calls = row["calls"] or 0
    means: dict[str, float | None] = {}
    for name, column in _SUMS_PER_CALL.items():
        is_known = n_calls and row[column] is not None
        means[name] = row[column] / n_calls if is_known else None
    return means
