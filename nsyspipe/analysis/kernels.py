"""What each kernel costs, by phase and name, over all and in each step; how much slower it runs beside communication; and what costs most of all."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from nsyspipe.analysis.alignment import runs_of_codes
from nsyspipe.analysis.attribution import NEVER, UNKNOWN, ProcessOperations
from nsyspipe.analysis.breakdown import Phases, started_in
from nsyspipe.analysis.intervals import (
    BLOCK,
    IntervalSet,
    least_of,
    places_in_runs,
    run_starts,
    sums_of,
)
from nsyspipe.analysis.steps import Windows
from nsyspipe.analysis.summary import divided, sums_by
from nsyspipe.model import schema
from nsyspipe.model.canonical import GRAPH_NAME_ID
from nsyspipe.model.comm_kernels import are_communication, is_communication
from nsyspipe.model.figures import RATES
from nsyspipe.model.names import PHASES, is_nccl_communicator, kernel_label
from nsyspipe.model.table import Flags, Int32, Int64

# sums by window of one rank (32 bytes each) until ranks tell which windows count
_MOST_SUMS = 2**18
_LEAST_GROUPS = 8
GRAPH = "CUDA graph"
_NAMELESS = "(no name)"
# kernels stand for all from this share of time beside comm on, and so many
LEAST_COMPARED = 0.25
ENOUGH_COMPARED = 30
MOST_USUAL = (
    0.5  # more is seldom seen of all kernels together: such a figure may be of something else
)
_SAMPLE = 50_000  # so many kernels of a large report are compared
MEASURED_WITHIN = 0.3  # what is measured of a slowdown holds within this
NARROW_LINK = 30e9
WIDE_LINK = 300e9
ASSUMED_WITHIN = 0.6  # what is assumed of a slowdown that was not measured, likewise
# so many gaps say something; what is longer is a pause
ENOUGH_GAPS = 100
_LONGEST_GAP_NS = 100_000
# the same kernels have so many same neighbours (name, grid, block): the place tells matrices'
# depths apart
_REACH = 3
_ENOUGH = 3
_LARGEST_SPREAD = (
    0.5  # of equal ones' middle three quarters; else one name and grid stand for several shapes
)
Row = dict[str, Any]
TABLES = KERNELS, COLLECTIVES, TRAFFIC = "kernels", "collectives", "traffic"
_OF_KERNELS = (
    "n_in_summary",
    "in_summary_ns",
    "overlapped_in_summary_ns",
    "n_slowed",
    "slowed_ns",
    "free_ns",
)
_SUMMED = ("transfer_ns", "exposed_ns", *RATES.values())
_OF_TRAFFIC = [name for name in schema.COSTS.names if name in schema.TRAFFIC.names]


class WindowSums(Struct, frozen=True):
    """Sums by (group of windows, row), only those that are not 0."""

    n_rows: int
    edges: (
        Int64  # first window of each group, and the end of the last; mostly each window is a group
    )
    group: Int32
    row: Int32
    sums: tuple[
        Int64, ...
    ]  # number of kernels, their durations, and what of these was beside communication

    def over(self, is_chosen: Flags) -> tuple[list[Int64], Flags]:
        """Return each sum by row over some windows, and whether only a part of a row's group is chosen."""
        n_chosen = np.diff(np.append(0, np.cumsum(is_chosen))[self.edges])
        is_whole = n_chosen == np.diff(self.edges)
        counts = is_whole[self.group]
        of_rows = [sums_of(self.row[counts], values[counts], self.n_rows) for values in self.sums]
        is_unknown = np.zeros(self.n_rows, np.bool_)
        is_unknown[self.row[((n_chosen > 0) & ~is_whole)[self.group]]] = True
        return of_rows, is_unknown


def window_sums(
    starts: Int64, of_each: Sequence[Int64], row: Int64, n_rows: int, windows: Windows
) -> tuple[WindowSums, list[Int64]]:
    """Sum kernels, and what is `of_each`, by row in each window that they start in, and over all, wherever they start.

    With more than 2^18 windows times rows, those at either end, where steps are skipped or cut off,
    have their own sums still, those between share theirs in runs of equal length.
    """
    n_windows = len(windows)
    most = max(_MOST_SUMS // max(n_rows, 1), _LEAST_GROUPS)
    first = np.arange(n_windows)
    if n_windows > most:
        at_edge = most // 4
        end = n_windows - most // 4
        size = -(-(end - at_edge) // (most - 2 * at_edge))
        first = np.concatenate((first[:at_edge], first[at_edge:end:size], first[end:]))
    edges = np.append(windows.starts[first], windows.ends[-1:])
    # The place before the first edge and the one after the last are outside of all windows.
    cell = np.searchsorted(edges, starts, side="right") * n_rows + row
    size = (edges.size + 1) * n_rows
    sums = [np.bincount(cell, minlength=size), *(sums_of(cell, values, size) for values in of_each)]
    inside = slice(n_rows, n_rows * (first.size + 1))
    cells = np.flatnonzero(sums[0][inside])
    group, of_row = (column.astype(np.int32) for column in np.divmod(cells, max(n_rows, 1)))
    in_windows = tuple(values[inside][cells] for values in sums)
    by_window = WindowSums(n_rows, np.append(first, n_windows), group, of_row, in_windows)
    return by_window, [values.reshape(edges.size + 1, n_rows).sum(axis=0) for values in sums]


def kernels_table(
    operations: ProcessOperations,
    names: Mapping[int, str],
    phase: Phases,
    comm: IntervalSet,
    windows: Windows,
) -> tuple[pa.Table, WindowSums]:
    """Sum the kernels of one rank by phase (an index into `names.PHASES`, -1 for none) and name, and by their window.

    One row per (phase, name) that occurs, sorted so, null last: those columns of
    `schema.KERNEL_COSTS` that are of the whole capture, less means, differences and ratios. The
    sums by window have a row for each of these rows.
    """
    labels, label = kernel_labels(operations.kernel_column("name_id"), names)
    duration = operations.kernel_end - operations.kernel_start
    size = (len(PHASES) + 1) * len(labels)
    key = (
        label + (np.arange(len(PHASES) + 1, dtype=np.int32) * len(labels))[phase]
    )  # no phase is -1, the last place
    keys = np.flatnonzero(np.bincount(key, minlength=size))
    row_of_key = np.zeros(size, np.int32)
    row_of_key[keys] = np.arange(keys.size)
    row = row_of_key[key]
    del key, label  # each as long as the kernels
    covered = comm.lengths(operations.kernel_start, operations.kernel_end)
    covered[operations.is_comm] = 0
    by_window, sums = window_sums(
        operations.kernel_start, (duration, covered), row, keys.size, windows
    )
    number, total, beside = sums
    longest = np.zeros(keys.size, np.int64)
    np.maximum.at(longest, row, duration)
    slowed, slowed_ns, free_ns = _slowed(operations, comm)
    columns = {
        "phase": pa.array([*PHASES, None], pa.string()).take(pa.array(keys // len(labels))),
        "name": pa.array(labels, pa.string()).take(pa.array(keys % len(labels))),
        "n_kernels": number,
        "total_ns": total,
        "min_ns": least_of(row, duration, keys.size),
        "max_ns": longest,
        "overlapped_ns": beside,
        "n_slowed": np.bincount(row[slowed], minlength=keys.size),
        "slowed_ns": sums_of(row[slowed], slowed_ns, keys.size),
        "free_ns": sums_of(row[slowed], free_ns, keys.size),
    }
    return pa.table(columns), by_window


def _slowed(operations: ProcessOperations, comm: IntervalSet) -> tuple[Int64, Int64, Int64]:
    """Return `kernel_slowdown` of the sample of kernels whose grids are known, with the places of the kernels."""
    if not (len(comm) and operations.kernel_start.size):
        nothing = np.empty(0, np.int64)
        return nothing, nothing, nothing
    known = np.flatnonzero(operations.kernel_column("grid") != UNKNOWN)
    first, last = (int(known[0]), int(known[-1]) + 1) if known.size else (0, 0)
    own = np.flatnonzero(~operations.is_comm[first:last])
    starts = operations.kernel_start[own + first]
    ends = operations.kernel_end[own + first]
    name_id, grid, block = (
        operations.kernel_column(name, first, last)[own] for name in ("name_id", "grid", "block")
    )
    kernel, slowed_ns, free_ns = kernel_slowdown(
        name_id, grid, block, ends - starts, comm.lengths(starts, ends)
    )
    return own[kernel] + first, slowed_ns, free_ns


def costliest(kernels: pa.Table, n_kept: int) -> pa.Table:
    """Keep of `schema.KERNEL_COSTS` the names with most time of each (rank, phase), in the table's order."""
    keys = [
        ("rank", "ascending"),
        ("phase", "ascending"),
        ("total_ns", "descending"),
        ("name", "ascending"),
    ]
    order = pc.sort_indices(kernels, keys).to_numpy()
    phases = (
        kernels["phase"]
        .cast(pa.string())
        .combine_chunks()
        .dictionary_encode(null_encoding="encode")
    )
    owner = kernels["rank"].to_numpy() * (len(PHASES) + 1) + phases.indices.to_numpy()
    return kernels.take(pa.array(np.sort(order[places_in_runs(owner[order]) < n_kept])))


def kernel_labels(name_ids: Int64, names: Mapping[int, str]) -> tuple[list[str], Int32]:
    """Return the labels in order of the alphabet, and which one each kernel has."""
    by_id = {number: kernel_label(text) for number, text in names.items()} | {GRAPH_NAME_ID: GRAPH}
    labels = sorted({*by_id.values(), _NAMELESS})
    codes = {text: code for code, text in enumerate(labels)}
    code = np.array([*(codes[text] for text in by_id.values()), codes[_NAMELESS]], np.int32)
    at = pc.index_in(pa.array(name_ids), value_set=pa.array(by_id.keys(), pa.int64()))
    return labels, code[pc.fill_null(at, len(by_id)).to_numpy()]


class Slowing(Struct, frozen=True):
    """How work beside communication is slower: it takes 1 + ratio times as long, and each operation begins later."""

    ratio: float = 0.0
    delay_ns: float = 0.0

    def blended(self, other: Slowing, share: float) -> Slowing:
        """Return one that is so much of another."""
        ratio = self.ratio + share * (other.ratio - self.ratio)
        return Slowing(ratio, self.delay_ns + share * (other.delay_ns - self.delay_ns))

    def total(self, operations_per_ns: float) -> float:
        """Return by how much work of so many operations takes longer, as a share of it."""
        return self.ratio + self.delay_ns * operations_per_ns


# What was seen on H200: over host memory (about 30 GB/s) operations begin later, since launches go
# the way of transfers; over NVLink (about 300) NCCL runs many more thread blocks, which take the
# place of the operations' own.
NARROW = Slowing(0.03, 6_500.0)
WIDE = Slowing(0.5, 250.0)


def link_width(bytes_per_s: float) -> float:
    """Return where a link is between a narrow one (0) and a wide one (1), by the logarithm; beyond them as they are."""
    return min(
        max(math.log(bytes_per_s / NARROW_LINK) / math.log(WIDE_LINK / NARROW_LINK), 0.0), 1.0
    )


def assumed(bytes_per_s: float | None) -> Slowing:
    """Return the likeliest slowing over a link where it was not measured; of one that is not known that in the middle."""
    return NARROW.blended(WIDE, 0.5 if bytes_per_s is None else link_width(bytes_per_s))


def most_assumed(bytes_per_s: float | None, operations_per_ns: float) -> float:
    """Return by how much work takes longer at most where that was not measured; over a link not known as over the worse one."""
    links = (NARROW, WIDE) if bytes_per_s is None else (assumed(bytes_per_s),)
    return (1 + ASSUMED_WITHIN) * max(link.total(operations_per_ns) for link in links)


def operations_per_ns(kernels: pa.Table) -> float:
    """Return how many compute kernels run in a ns of their time, of `schema.KERNEL_COSTS`; 0 without any."""
    is_comm = are_communication(kernels["name"])
    number, total = (
        pc.sum(kernels.filter(pc.invert(is_comm))[name]).as_py()
        for name in ("n_kernels", "total_ns")
    )
    return number / total if total else 0.0


def kernel_slowdown(
    name_id: Int64, grid: Int64, block: Int64, duration: Int64, covered: Int64
) -> tuple[Int64, Int64, Int64]:
    """Compare kernels beside communication with equal ones that ran free, as `schema.KERNEL_COSTS` says; medians are floored.

    Compute kernels stand in order of launch; `UNKNOWN` grids are not compared. `covered` is how
    much of each `duration` communication was under way, ns. Returns the index of each kernel that
    ran beside communication, all or in part, and has equal ones that ran free; how much of it was
    beside communication; and what that would have taken free.
    """
    own = np.zeros(duration.size, np.int64)  # a number for each (name, grid, block)
    for column in (name_id, grid, block):
        values, code = np.unique(column, return_inverse=True)
        own = own * values.size + code
    context = runs_of_codes(np.pad(own, _REACH, constant_values=-1), 2 * _REACH + 1)[: own.size]
    usable = np.flatnonzero((grid != UNKNOWN) & (duration > 0))
    is_beside = covered[usable] > 0
    free = usable[~is_beside]
    beside = usable[is_beside]
    if not free.size or not beside.size:
        return (np.empty(0, np.int64),) * 3
    free = free[np.lexsort((duration[free], context[free]))]
    first = run_starts(context[free])
    lengths = duration[free]
    count = np.diff(first, append=free.size)
    low = lengths[first + (count - 1) // 2]
    high = lengths[first + count // 2]
    median = low + (high - low) // 2
    spread = lengths[first + count * 7 // 8] - lengths[first + count // 8]
    is_known = (count >= _ENOUGH) & (spread <= _LARGEST_SPREAD * median)
    medians = np.full(context.max() + 1, UNKNOWN)  # by context
    medians[context[free[first[is_known]]]] = median[is_known]
    kernel = beside[medians[context[beside]] != UNKNOWN]
    return (
        kernel,
        covered[kernel],
        np.maximum(covered[kernel] - (duration[kernel] - medians[context[kernel]]), 0),
    )


def gaps_before(
    start: Int64, end: Int64, launch: Int64, comm: IntervalSet
) -> tuple[Int64, Int64, Flags, Flags]:
    """Return gaps before operations, in order of start, in which nothing but the device is waited for.

    Those are of what was launched before the gap, and under 100 us, which leaves out most waits for
    a collective. Returns the place of each such operation, its gap, and whether none of that is
    beside communication, or all.
    """
    before = np.maximum.accumulate(end)[:-1]
    own = (launch[1:] < before) & (start[1:] >= before) & (start[1:] < before + _LONGEST_GAP_NS)
    place = np.flatnonzero(own) + 1
    start = start[place]
    before = before[own]
    # by 1 ns longer, so that no gap is empty
    covered = comm.lengths(before - 1, start)
    gap = start - before
    return place, gap, covered == 0, covered == gap + 1


def comm_delays(operations: ProcessOperations, comm: IntervalSet, windows: Windows) -> Int64 | None:
    """Return by window how much later operations begin beside communication than without, as `schema.STEPS` has it, ns.

    By `gaps_before` kernels, on whatever stream. 0 without communication.
    """
    if not len(comm):
        return np.zeros(len(windows), np.int64)
    compute = ~operations.is_comm
    n_kernels = int(np.count_nonzero(compute))
    of_kernels = operations.kernel_start, operations.kernel_end, operations.kernel_launch
    of_copies = operations.copy_start, operations.copy_end, operations.copy_launch
    order = np.argsort(
        np.append(operations.kernel_start[compute], operations.copy_start), kind="stable"
    )
    columns = [np.append(own[compute], of) for own, of in zip(of_kernels, of_copies, strict=True)]
    number, total, n_begun = np.zeros((3, len(windows)), np.int64)
    free_gaps = [np.empty(0, np.int64)]
    n_beside = 0
    reached = -NEVER
    for at in range(0, order.size - 1, BLOCK):
        rows = order[at : at + BLOCK + 1]
        start, end, launch = (column[rows] for column in columns)
        end[0] = max(end[0], reached)  # it stands for all before
        reached = end[:-1].max()
        place, gap, free, beside = gaps_before(start, end, launch, comm)
        is_kernel = rows[place] < n_kernels
        free_gaps.append(gap[free & is_kernel])
        beside &= is_kernel
        n_beside += int(np.count_nonzero(beside))
        n_started, gap_ns = started_in(start[place[beside]], gap[beside], windows)
        number += n_started
        total += gap_ns
        n_begun += windows.slices(start[1:][comm.contains(start[1:])]).counts
    free_gap = np.concatenate(free_gaps)
    if min(free_gap.size, n_beside) < ENOUGH_GAPS:
        return None
    late = np.where(
        number > 0, np.maximum(total / np.maximum(number, 1) - free_gap.mean(), 0.0), 0.0
    )
    return np.rint(late * n_begun).astype(np.int64)


class Compared(NamedTuple):
    """The kernels beside communication that have equal ones without it."""

    n_kernels: int
    slowdown_ratio: (
        float | None
    )  # how much longer they take beside it: slowed / free - 1; None where there are none
    # how much of the kernel time beside communication they are, maybe of a sample; 1 at most
    share: float

    @property
    def is_enough(self) -> bool:
        """Whether they may stand for the others."""
        return self.n_kernels >= ENOUGH_COMPARED and self.share >= LEAST_COMPARED


def compared_kernels(kernels: pa.Table) -> Compared:
    """Return what the kernels of `schema.KERNEL_COSTS` tell of the slowdown beside communication, all ranks together."""
    names = ("n_slowed", "slowed_ns", "free_ns", "overlapped_ns", "n_kernels")
    rows = sums_by(kernels, ["rank"], names)
    number, slowed, free, beside = (sum(row[name] for row in rows) for name in names[:4])
    compared = sum(row["slowed_ns"] * max(row["n_kernels"] / _SAMPLE, 1.0) for row in rows)
    return Compared(
        number, slowed / free - 1 if free else None, min(compared / beside, 1.0) if beside else 0.0
    )


def costs(
    kernels: pa.Table,
    collectives: pa.Table,
    traffic: pa.Table,
    steps: pa.Table,
    *,
    is_capture: bool,
    are_groups_known: bool = True,
) -> pa.Table:
    """Return `schema.COSTS`, without collectives where a step's communication is not known; `steps` are all summary steps."""
    wall = pc.sum(steps["wall_ns"]).as_py()
    n_steps = None if is_capture else steps.num_rows
    is_known = not steps["comm_ns"].null_count
    rows = [
        *_of_kernels(kernels, is_comm_known=is_known),
        *(_collectives(collectives, n_steps) if is_known else ()),
    ]
    for row in rows:
        row["calls_per_step"] = divided(row["n_calls"], n_steps)
        row["time_ns_per_step"] = divided(row["total_ns"], n_steps)
        row["step_share"] = divided(row["total_ns"], wall)
    rows.sort(key=lambda row: -(row["total_ns"] or 0))
    of_all = traffic.filter(pc.is_null(traffic["rank"])).to_pylist()
    for row in sorted(of_all, key=lambda row: -(row["comm_ns_per_step"] or 0)):
        named = {
            "table": TRAFFIC,
            "name": row["collective"],
            "time_ns_per_step": row["comm_ns_per_step"],
        }
        if not (are_groups_known or is_nccl_communicator(row["communicator"])):
            row["ranks"] = None
        rows.append(named | {name: row[name] for name in _OF_TRAFFIC})
    return schema.COSTS.from_rows(sorted(rows, key=lambda row: TABLES.index(row["table"])))


def _of_kernels(kernels: pa.Table, *, is_comm_known: bool) -> Iterator[Row]:
    for row in sums_by(kernels, ("name", "phase"), _OF_KERNELS):
        has_beside = is_comm_known and not is_communication(row["name"])
        yield {
            "table": KERNELS,
            "name": row["name"],
            "phase": row["phase"],
            "n_calls": row["n_in_summary"],
            "total_ns": row["in_summary_ns"],
            "n_slowed": row["n_slowed"],
            "beside_comm_ratio": divided(row["overlapped_in_summary_ns"], row["in_summary_ns"])
            if has_beside
            else None,
            "slowdown_ratio": row["slowed_ns"] / row["free_ns"] - 1
            if row["n_slowed"] and row["free_ns"]
            else None,
        }


def _collectives(collectives: pa.Table, n_steps: int | None) -> Iterator[Row]:
    def chosen(name: str) -> pa.ChunkedArray:
        return collectives[name].filter(collectives["in_summary"])

    own = pc.subtract(chosen("end_ns"), chosen("start_ns"))
    waited = pc.min_element_wise(chosen("wait_ns"), own, skip_nulls=False)
    columns = {"total_ns": own, "waited_ns": waited} | {name: chosen(name) for name in _SUMMED}
    kinds = {"name": chosen("collective").cast(pa.string()), "size": columns["message_bytes"]}
    for row in sums_by(pa.table(kinds | columns), [*kinds], [*columns]):
        exposed = row["exposed_ns"]
        transfer = row["transfer_ns"]
        yield {
            "table": COLLECTIVES,
            "name": row["name"],
            "message_bytes": row["size"],
            "n_calls": row["n"],
            "total_ns": row["total_ns"],
            "bytes_per_step": divided(row["message_bytes"], n_steps),
            "exposed_ns_per_step": divided(exposed, n_steps),
            "hidden_ns_per_step": divided(
                None if exposed is None else row["total_ns"] - exposed, n_steps
            ),
            "wait_ns_per_step": divided(row["waited_ns"], n_steps),
            "transfer_ns_per_step": divided(transfer, n_steps),
            **{
                name: divided(row[column], transfer and transfer / 1e9)
                for name, column in RATES.items()
            },
        }
