"""What kernels and collectives cost, and how much slower kernels run during communication."""

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

# Sums by window of one rank (32 bytes each) that are kept until ranks tell which windows count.
_MOST_SUMS = 2**18
_MIN_GROUPS = 8
GRAPH = "CUDA graph"
_NAMELESS = "(no name)"
# Compared kernels stand for all from this share of the time during communication on, and from this
# number on.
LEAST_COMPARED = 0.25
ENOUGH_COMPARED = 30
# With less overlap, as a share of the step, no kernels are compared.
MIN_OVERLAP_SHARE_OF_STEP = 0.02
# How to get kernels that can be compared if most of the communication overlaps.
LESS_HIDDEN = (
    "capture a second run with less overlap, and compare the kernels of both runs: nsyspipe diff"
)
# All kernels together are seldom slowed down by more. A larger slowdown may have another reason.
MOST_USUAL = 0.5
# So many kernels of a large report are compared.
_SAMPLED_KERNELS = 50_000
# A measured slowdown may be wrong by this share, and an assumed one by the other.
MEASURED_WITHIN = 0.3
ASSUMED_WITHIN = 0.6
NARROW_LINK = 30e9
WIDE_LINK = 300e9
# So many gaps are enough for a mean. Longer times are pauses and not gaps.
ENOUGH_GAPS = 100
_MAX_GAP_NS = 100_000
# Equal kernels have the same name, grid and block, and so do so many of their neighbors. The place
# distinguishes matrices of different depth.
_N_NEIGHBORS = 3
_MIN_EQUAL_KERNELS = 3
# The spread of the middle three quarters of equal kernels, as a share of their median. If it is
# larger, one name and grid stand for several shapes.
_MAX_SPREAD = 0.5
Row = dict[str, Any]
KERNELS = "kernels"
COLLECTIVES = "collectives"
TRAFFIC = "traffic"
TABLES = (KERNELS, COLLECTIVES, TRAFFIC)
_COLUMNS_OF_KERNELS = (
    "n_in_summary",
    "in_summary_ns",
    "overlapped_in_summary_ns",
    "n_slowed",
    "slowed_ns",
    "free_ns",
)
_COLUMNS_OF_COLLECTIVES = ("transfer_ns", "exposed_ns", *RATES.values())
_COLUMNS_OF_TRAFFIC = [name for name in schema.COSTS.names if name in schema.TRAFFIC.names]


class WindowSums(Struct, frozen=True):
    """Sums by (group of windows, row), only those that are not 0."""

    n_rows: int
    # First window of each group, and the end of the last. Mostly each window is a group.
    edges: Int64
    group: Int32
    row: Int32
    # Number of kernels, their durations, and the part of the durations during communication.
    sums: tuple[Int64, ...]

    def over(self, is_chosen: Flags) -> tuple[list[Int64], Flags]:
        """Return each sum by row over some windows, and which rows are not known.

        A row is not known if only a part of one of its groups is chosen.
        """
        n_chosen_before = np.append(0, np.cumsum(is_chosen))
        n_chosen = np.diff(n_chosen_before[self.edges])
        is_whole = n_chosen == np.diff(self.edges)
        is_counted = is_whole[self.group]
        rows = self.row[is_counted]
        sums_by_row = [sums_of(rows, values[is_counted], self.n_rows) for values in self.sums]
        is_partial = (n_chosen > 0) & ~is_whole
        rows_of_partial = self.row[is_partial[self.group]]
        is_unknown = np.zeros(self.n_rows, np.bool_)
        is_unknown[rows_of_partial] = True
        return sums_by_row, is_unknown


def window_sums(
    starts: Int64, of_each: Sequence[Int64], row: Int64 | Int32, n_rows: int, windows: Windows
) -> tuple[WindowSums, list[Int64]]:
    """Sum kernels by row in each window that they start in, and over all wherever they start.

    The sums are the number of kernels, and those of the values in `of_each`. With more than 2^18
    windows times rows, windows between share their sums in groups of equal length. Windows at
    either end, where steps are skipped or cut off, still have sums of their own.
    """
    n_windows = len(windows)
    max_groups = max(_MOST_SUMS // max(n_rows, 1), _MIN_GROUPS)
    first = _first_of_groups(n_windows, max_groups)
    edges = np.append(windows.starts[first], windows.ends[-1:])
    # The place before the first edge and the one after the last are outside of all windows.
    cell = np.searchsorted(edges, starts, side="right") * n_rows + row
    n_cells = (edges.size + 1) * n_rows
    sums = [np.bincount(cell, minlength=n_cells)]
    sums += [sums_of(cell, values, n_cells) for values in of_each]
    inside = slice(n_rows, n_rows * (first.size + 1))
    cells = np.flatnonzero(sums[0][inside])
    group, row_of_cell = np.divmod(cells, max(n_rows, 1))
    by_window = WindowSums(
        n_rows=n_rows,
        edges=np.append(first, n_windows),
        group=group.astype(np.int32),
        row=row_of_cell.astype(np.int32),
        sums=tuple(values[inside][cells] for values in sums),
    )
    sums_of_cells = [values.reshape(edges.size + 1, n_rows) for values in sums]
    return by_window, [values.sum(axis=0) for values in sums_of_cells]


def _first_of_groups(n_windows: int, max_groups: int) -> Int64:
    """Return the first window of each group; a quarter of the groups at either end are windows."""
    windows = np.arange(n_windows)
    if n_windows <= max_groups:
        return windows
    n_at_end = max_groups // 4
    end = n_windows - n_at_end
    n_groups_between = max_groups - 2 * n_at_end
    group_size = math.ceil((end - n_at_end) / n_groups_between)
    between = windows[n_at_end:end:group_size]
    return np.concatenate((windows[:n_at_end], between, windows[end:]))


def kernels_table(
    operations: ProcessOperations,
    names: Mapping[int, str],
    phase: Phases,
    comm: IntervalSet,
    windows: Windows,
) -> tuple[pa.Table, WindowSums]:
    """Sum the kernels of one rank by phase and name, and by window.

    `phase` is an index into `names.PHASES`, -1 for none. The table has a row per (phase, name) that
    occurs, sorted so, null last. Its columns are those of `schema.KERNEL_COSTS` for the whole
    capture, without means, differences and ratios. The sums by window have a row for each of these
    rows.
    """
    labels, label = kernel_labels(operations.kernel_column("name_id"), names)
    duration = operations.kernel_end - operations.kernel_start
    # The last phase is none, which is -1.
    first_keys = np.arange(len(PHASES) + 1, dtype=np.int32) * len(labels)
    keys, row = _number_keys(label + first_keys[phase], first_keys.size * len(labels))
    # It is as long as the kernels.
    del label
    covered = comm.lengths(operations.kernel_start, operations.kernel_end)
    covered[operations.is_comm] = 0
    by_window, (number, total_ns, covered_ns) = window_sums(
        operations.kernel_start, (duration, covered), row, keys.size, windows
    )
    max_ns = np.zeros(keys.size, np.int64)
    np.maximum.at(max_ns, row, duration)
    phase_of_row, label_of_row = np.divmod(keys, len(labels))
    columns = {
        "phase": pa.array([*PHASES, None], pa.string()).take(pa.array(phase_of_row)),
        "name": pa.array(labels, pa.string()).take(pa.array(label_of_row)),
        "n_kernels": number,
        "total_ns": total_ns,
        "min_ns": least_of(row, duration, keys.size),
        "max_ns": max_ns,
        "overlapped_ns": covered_ns,
    }
    columns |= _sum_slowed(_find_slowed(operations, comm), row, keys.size)
    return pa.table(columns), by_window


def _number_keys(key: Int32, n_keys: int) -> tuple[Int64, Int32]:
    """Return the keys that occur, and the number of each key among them."""
    keys = np.flatnonzero(np.bincount(key, minlength=n_keys))
    number_of_key = np.zeros(n_keys, np.int32)
    number_of_key[keys] = np.arange(keys.size)
    return keys, number_of_key[key]


class Slowed(NamedTuple):
    """Kernels that ran during communication, and have equal kernels that ran without it."""

    kernel: Int64
    covered_ns: Int64  # how much of each kernel was during communication
    free_ns: Int64  # what that would have taken without communication


_NONE_SLOWED = Slowed(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64))


def _sum_slowed(slowed: Slowed, row: Int32, n_rows: int) -> dict[str, Int64]:
    rows = row[slowed.kernel]
    return {
        "n_slowed": np.bincount(rows, minlength=n_rows),
        "slowed_ns": sums_of(rows, slowed.covered_ns, n_rows),
        "free_ns": sums_of(rows, slowed.free_ns, n_rows),
    }


def _find_slowed(operations: ProcessOperations, comm: IntervalSet) -> Slowed:
    """Return `kernel_slowdown` of the sampled kernels, which are those whose grids are known."""
    if not (len(comm) and operations.kernel_start.size):
        return _NONE_SLOWED
    sampled = np.flatnonzero(operations.kernel_column("grid") != UNKNOWN)
    first, last = (int(sampled[0]), int(sampled[-1]) + 1) if sampled.size else (0, 0)
    is_compute = ~operations.is_comm[first:last]
    rows = np.flatnonzero(is_compute) + first
    starts = operations.kernel_start[rows]
    ends = operations.kernel_end[rows]
    slowed = kernel_slowdown(
        operations.kernel_column("name_id", first, last)[is_compute],
        operations.kernel_column("grid", first, last)[is_compute],
        operations.kernel_column("block", first, last)[is_compute],
        ends - starts,
        comm.lengths(starts, ends),
    )
    return slowed._replace(kernel=rows[slowed.kernel])


def costliest(kernels: pa.Table, n_kept: int) -> pa.Table:
    """Keep the names with most time of each (rank, phase) of `schema.KERNEL_COSTS`.

    The order of the table stays.
    """
    keys = [
        ("rank", "ascending"),
        ("phase", "ascending"),
        ("total_ns", "descending"),
        ("name", "ascending"),
    ]
    order = pc.sort_indices(kernels, keys).to_numpy()
    phase_names = kernels["phase"].cast(pa.string()).combine_chunks()
    phases = phase_names.dictionary_encode(null_encoding="encode")
    rank = kernels["rank"].to_numpy()
    owner = rank * (len(PHASES) + 1) + phases.indices.to_numpy()
    place = places_in_runs(owner[order])
    kept_rows = np.sort(order[place < n_kept])
    return kernels.take(pa.array(kept_rows))


def kernel_labels(name_ids: Int64, names: Mapping[int, str]) -> tuple[list[str], Int32]:
    """Return the labels in alphabetical order, and which one each kernel has."""
    by_id = {name_id: kernel_label(text) for name_id, text in names.items()}
    by_id[GRAPH_NAME_ID] = GRAPH
    labels = sorted({*by_id.values(), _NAMELESS})
    code_of_label = {text: code for code, text in enumerate(labels)}
    # The last code is that of IDs without a text.
    codes = [code_of_label[text] for text in (*by_id.values(), _NAMELESS)]
    known_ids = pa.array(by_id.keys(), pa.int64())
    place = pc.index_in(pa.array(name_ids), value_set=known_ids)
    place = pc.fill_null(place, len(by_id)).to_numpy()
    return labels, np.array(codes, np.int32)[place]


class Slowing(Struct, frozen=True):
    """How work is slower during communication.

    It takes 1 + ratio times as long, and each operation begins later.
    """

    ratio: float = 0.0
    delay_ns: float = 0.0

    def blended(self, admixture: Slowing, share: float) -> Slowing:
        """Return a mixture that has this share of another slowing."""
        ratio = self.ratio + share * (admixture.ratio - self.ratio)
        delay_ns = self.delay_ns + share * (admixture.delay_ns - self.delay_ns)
        return Slowing(ratio, delay_ns)

    def total(self, operations_per_ns: float) -> float:
        """Return how much longer work of so many operations takes, as a share of it."""
        return self.ratio + self.delay_ns * operations_per_ns


# What was seen on H200. Over host memory (about 30 GB/s) operations begin later, because launches
# use the same path as transfers. Over NVLink (about 300 GB/s) NCCL runs many more thread blocks,
# which take the place of those of the operations.
NARROW = Slowing(0.03, 6_500.0)
WIDE = Slowing(0.5, 250.0)


def link_width(bytes_per_s: float) -> float:
    """Return where a link is between a narrow one (0) and a wide one (1), by the logarithm."""
    width = math.log(bytes_per_s / NARROW_LINK) / math.log(WIDE_LINK / NARROW_LINK)
    return min(max(width, 0.0), 1.0)


def assumed(bytes_per_s: float | None) -> Slowing:
    """Return the likeliest slowing over a link if it was not measured.

    If the link is not known, it is the slowing in the middle.
    """
    return NARROW.blended(WIDE, 0.5 if bytes_per_s is None else link_width(bytes_per_s))


def most_assumed(bytes_per_s: float | None, operations_per_ns: float) -> float:
    """Return how much longer work takes at most if that was not measured, as a share of it.

    If the link is not known, the worse one is assumed.
    """
    links = (NARROW, WIDE) if bytes_per_s is None else (assumed(bytes_per_s),)
    return (1 + ASSUMED_WITHIN) * max(link.total(operations_per_ns) for link in links)


def operations_per_ns(kernels: pa.Table) -> float:
    """Return how many compute kernels run in a ns of their time, from `schema.KERNEL_COSTS`.

    0 without any.
    """
    compute = kernels.filter(pc.invert(are_communication(kernels["name"])))
    n_kernels = pc.sum(compute["n_kernels"]).as_py()
    total_ns = pc.sum(compute["total_ns"]).as_py()
    return n_kernels / total_ns if total_ns else 0.0


def kernel_slowdown(
    name_id: Int64, grid: Int64, block: Int64, duration: Int64, covered: Int64
) -> Slowed:
    """Compare kernels during communication with equal kernels without it.

    `schema.KERNEL_COSTS` defines the comparison; medians are floored. The compute kernels are in
    order of launch. Those with an `UNKNOWN` grid are not compared. `covered` is how much of each
    `duration` communication was under way, ns. The result has each kernel that ran during
    communication, all or in part, and has equal kernels without it.
    """
    # A number for each (name, grid, block).
    kind = np.zeros(duration.size, np.int64)
    for column in (name_id, grid, block):
        values, code = np.unique(column, return_inverse=True)
        kind = kind * values.size + code
    padded = np.pad(kind, _N_NEIGHBORS, constant_values=-1)
    context = runs_of_codes(padded, 2 * _N_NEIGHBORS + 1)[: kind.size]
    usable = np.flatnonzero((grid != UNKNOWN) & (duration > 0))
    is_covered = covered[usable] > 0
    free = usable[~is_covered]
    during_comm = usable[is_covered]
    if not free.size or not during_comm.size:
        return _NONE_SLOWED
    median_ns = _medians_by_context(context, free, duration)[context]
    kernel = during_comm[median_ns[during_comm] != UNKNOWN]
    slower_by_ns = duration[kernel] - median_ns[kernel]
    return Slowed(
        kernel=kernel,
        covered_ns=covered[kernel],
        free_ns=np.maximum(covered[kernel] - slower_by_ns, 0),
    )


def _medians_by_context(context: Int64, free: Int64, duration: Int64) -> Int64:
    """Return the median duration of the free kernels of each context.

    `UNKNOWN` if they are too few, or if they differ too much.
    """
    free = free[np.lexsort((duration[free], context[free]))]
    first = run_starts(context[free])
    lengths = duration[free]
    count = np.diff(first, append=free.size)
    low = lengths[first + (count - 1) // 2]
    high = lengths[first + count // 2]
    median = low + (high - low) // 2
    spread = lengths[first + count * 7 // 8] - lengths[first + count // 8]
    is_known = (count >= _MIN_EQUAL_KERNELS) & (spread <= _MAX_SPREAD * median)
    known_contexts = context[free[first[is_known]]]
    medians = np.full(context.max() + 1, UNKNOWN)
    medians[known_contexts] = median[is_known]
    return medians


class GapsBefore(NamedTuple):
    """Gaps before operations in which nothing but the device is waited for."""

    place: Int64  # of the operation
    gap_ns: Int64
    is_free: Flags  # whether no part of the gap is during communication
    is_covered: Flags  # whether all of it is


def gaps_before(start: Int64, end: Int64, launch: Int64, comm: IntervalSet) -> GapsBefore:
    """Return gaps before operations, which are in order of start, that only the device causes.

    The operation was launched before the gap, and the gap is under 100 us. That leaves out most
    waits for a collective.
    """
    reached = np.maximum.accumulate(end)[:-1]
    is_launched = launch[1:] < reached
    is_gap = (start[1:] >= reached) & (start[1:] < reached + _MAX_GAP_NS)
    place = np.flatnonzero(is_launched & is_gap) + 1
    start = start[place]
    gap_start = reached[place - 1]
    # Longer by 1 ns, so that no gap is empty.
    covered = comm.lengths(gap_start - 1, start)
    gap_ns = start - gap_start
    return GapsBefore(place, gap_ns, covered == 0, covered == gap_ns + 1)


def comm_delays(operations: ProcessOperations, comm: IntervalSet, windows: Windows) -> Int64 | None:
    """Return how much later operations begin during communication than without it, ns per window.

    `schema.STEPS` defines it. What counts are the gaps of `gaps_before` in front of kernels, on any
    stream. 0 without communication. None if there are too few gaps.
    """
    n_windows = len(windows)
    if not len(comm):
        return np.zeros(n_windows, np.int64)
    n_gaps = np.zeros(n_windows, np.int64)
    gaps_ns = np.zeros(n_windows, np.int64)
    n_begun = np.zeros(n_windows, np.int64)
    free_gaps = [np.empty(0, np.int64)]
    n_covered = 0
    for part in _parts_in_order_of_start(operations):
        gaps = gaps_before(part.start, part.end, part.launch, comm)
        is_kernel = part.is_kernel[gaps.place]
        free_gaps.append(gaps.gap_ns[gaps.is_free & is_kernel])
        is_covered = gaps.is_covered & is_kernel
        n_covered += int(np.count_nonzero(is_covered))
        gap_ends = part.start[gaps.place[is_covered]]
        started = started_in(gap_ends, gaps.gap_ns[is_covered], windows)
        n_gaps += started.number
        gaps_ns += started.total
        starts = part.start[1:]
        n_begun += windows.slices(starts[comm.contains(starts)]).counts
    free_gap = np.concatenate(free_gaps)
    if min(free_gap.size, n_covered) < ENOUGH_GAPS:
        return None
    later_ns = np.maximum(gaps_ns / np.maximum(n_gaps, 1) - free_gap.mean(), 0.0)
    return np.rint(np.where(n_gaps > 0, later_ns, 0.0) * n_begun).astype(np.int64)


class _PartInOrder(NamedTuple):
    """Compute kernels and copies in order of start. The first one stands for all before it."""

    start: Int64
    end: Int64
    launch: Int64
    is_kernel: Flags


def _parts_in_order_of_start(operations: ProcessOperations) -> Iterator[_PartInOrder]:
    """Yield the operations in parts, so that temporary arrays stay small."""
    is_compute = ~operations.is_comm
    n_kernels = int(np.count_nonzero(is_compute))
    starts = np.append(operations.kernel_start[is_compute], operations.copy_start)
    ends = np.append(operations.kernel_end[is_compute], operations.copy_end)
    launches = np.append(operations.kernel_launch[is_compute], operations.copy_launch)
    order = np.argsort(starts, kind="stable")
    reached = -NEVER
    for first in range(0, order.size - 1, BLOCK):
        rows = order[first : first + BLOCK + 1]
        end = ends[rows]
        end[0] = max(end[0], reached)
        reached = end[:-1].max()
        yield _PartInOrder(starts[rows], end, launches[rows], rows < n_kernels)


class Compared(NamedTuple):
    """The kernels during communication that have equal kernels without it."""

    n_kernels: int
    # How much longer they take during communication: slowed / free - 1. None if there are none.
    slowdown_ratio: float | None
    # Their share of the kernel time during communication, estimated from a sample; 1 at most.
    share: float

    @property
    def is_enough(self) -> bool:
        """Whether they may stand for all kernels."""
        return self.n_kernels >= ENOUGH_COMPARED and self.share >= LEAST_COMPARED


def compared_kernels(kernels: pa.Table) -> Compared:
    """Return the slowdown of kernels during communication, of all ranks together.

    `kernels` is `schema.KERNEL_COSTS`.
    """
    names = ("n_slowed", "slowed_ns", "free_ns", "overlapped_ns", "n_kernels")
    rows = sums_by(kernels, ["rank"], names)
    slowed_ns = sum(row["slowed_ns"] for row in rows)
    free_ns = sum(row["free_ns"] for row in rows)
    covered_ns = sum(row["overlapped_ns"] for row in rows)
    # Each sampled kernel of a large report stands for several.
    n_per_sample = [max(row["n_kernels"] / _SAMPLED_KERNELS, 1.0) for row in rows]
    compared_ns = sum(row["slowed_ns"] * n for row, n in zip(rows, n_per_sample, strict=True))
    return Compared(
        n_kernels=sum(row["n_slowed"] for row in rows),
        slowdown_ratio=slowed_ns / free_ns - 1 if free_ns else None,
        share=min(compared_ns / covered_ns, 1.0) if covered_ns else 0.0,
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
    """Return `schema.COSTS`; `steps` are all summary steps.

    It has no collectives if the communication of a step is not known.
    """
    wall_ns = pc.sum(steps["wall_ns"]).as_py()
    n_steps = None if is_capture else steps.num_rows
    is_comm_known = not steps["comm_ns"].null_count
    rows = list(_rows_of_kernels(kernels, is_comm_known=is_comm_known))
    if is_comm_known:
        rows += _rows_of_collectives(collectives, n_steps)
    for row in rows:
        row["calls_per_step"] = divided(row["n_calls"], n_steps)
        row["time_ns_per_step"] = divided(row["total_ns"], n_steps)
        row["step_share"] = divided(row["total_ns"], wall_ns)
    rows.sort(key=lambda row: -(row["total_ns"] or 0))
    rows += _rows_of_traffic(traffic, are_groups_known=are_groups_known)
    return schema.COSTS.from_rows(sorted(rows, key=lambda row: TABLES.index(row["table"])))


def _rows_of_traffic(traffic: pa.Table, *, are_groups_known: bool) -> list[Row]:
    communicators = traffic.filter(pc.is_null(traffic["rank"])).to_pylist()
    communicators.sort(key=lambda row: -(row["comm_ns_per_step"] or 0))
    rows = []
    for communicator in communicators:
        row = {
            "table": TRAFFIC,
            "name": communicator["collective"],
            "time_ns_per_step": communicator["comm_ns_per_step"],
        }
        row |= {name: communicator[name] for name in _COLUMNS_OF_TRAFFIC}
        if not are_groups_known and not is_nccl_communicator(communicator["communicator"]):
            row["ranks"] = None
        rows.append(row)
    return rows


def _rows_of_kernels(kernels: pa.Table, *, is_comm_known: bool) -> Iterator[Row]:
    for sums in sums_by(kernels, ("name", "phase"), _COLUMNS_OF_KERNELS):
        covered_ratio = None
        if is_comm_known and not is_communication(sums["name"]):
            covered_ratio = divided(sums["overlapped_in_summary_ns"], sums["in_summary_ns"])
        slowdown_ratio = None
        if sums["n_slowed"] and sums["free_ns"]:
            slowdown_ratio = sums["slowed_ns"] / sums["free_ns"] - 1
        yield {
            "table": KERNELS,
            "name": sums["name"],
            "phase": sums["phase"],
            "n_calls": sums["n_in_summary"],
            "total_ns": sums["in_summary_ns"],
            "n_slowed": sums["n_slowed"],
            "beside_comm_ratio": covered_ratio,
            "slowdown_ratio": slowdown_ratio,
        }


def _rows_of_collectives(collectives: pa.Table, n_steps: int | None) -> Iterator[Row]:
    """Yield a row for each collective and size, without ``calls_per_step`` and shares."""
    names = ["start_ns", "end_ns", "wait_ns", "collective", *_COLUMNS_OF_COLLECTIVES]
    rows = collectives.select([*dict.fromkeys(names)]).filter(collectives["in_summary"])
    total_ns = pc.subtract(rows["end_ns"], rows["start_ns"])
    waited_ns = pc.min_element_wise(rows["wait_ns"], total_ns, skip_nulls=False)
    columns = {"total_ns": total_ns, "waited_ns": waited_ns}
    columns |= {name: rows[name] for name in _COLUMNS_OF_COLLECTIVES}
    keys = {"name": rows["collective"].cast(pa.string()), "size": columns["message_bytes"]}
    for sums in sums_by(pa.table(keys | columns), [*keys], [*columns]):
        exposed_ns = sums["exposed_ns"]
        hidden_ns = None if exposed_ns is None else sums["total_ns"] - exposed_ns
        transfer_ns = sums["transfer_ns"]
        transfer_s = transfer_ns and transfer_ns / 1e9
        row = {
            "table": COLLECTIVES,
            "name": sums["name"],
            "message_bytes": sums["size"],
            "n_calls": sums["n"],
            "total_ns": sums["total_ns"],
            "bytes_per_step": divided(sums["message_bytes"], n_steps),
            "exposed_ns_per_step": divided(exposed_ns, n_steps),
            "hidden_ns_per_step": divided(hidden_ns, n_steps),
            "wait_ns_per_step": divided(sums["waited_ns"], n_steps),
            "transfer_ns_per_step": divided(transfer_ns, n_steps),
        }
        for name, column in RATES.items():
            row[name] = divided(sums[column], transfer_s)
        yield row
