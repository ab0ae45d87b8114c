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
from nsyspipe.model.matrix_datatypes import MatrixTimes
from nsyspipe.model.names import PHASES, is_nccl_communicator, kernel_label
from nsyspipe.model.table import Flags, Float64, Int32, Int64
from nsyspipe.model.typed_tables import (
    CollectivesTable,
    KernelsTable,
    StepsTable,
    TrafficTable,
)

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
_SUMS_OF_COLLECTIVES = ("total_ns", "waited_ns", *_COLUMNS_OF_COLLECTIVES)
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
        edges = self.edges
        group = self.group
        n_chosen_before = np.append(0, np.cumsum(is_chosen))
        n_chosen = np.diff(n_chosen_before[edges])
        is_whole = n_chosen == np.diff(edges)
        is_counted = is_whole[group]
        rows = self.row[is_counted]
        sums_by_row = []
        for values in self.sums:
            counted_values = values[is_counted]
            sums_by_row.append(sums_of(rows, counted_values, self.n_rows))
        is_partial = n_chosen > 0
        is_partial &= ~is_whole
        rows_of_partial = self.row[is_partial[group]]
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
    max_groups = _MOST_SUMS // max(n_rows, 1)
    max_groups = max(max_groups, _MIN_GROUPS)
    first = _first_of_groups(n_windows, max_groups)
    group_starts = windows.starts[first]
    edges = np.append(group_starts, windows.ends[-1:])
    # The place before the first edge and the one after the last are outside of all windows.
    n_places = edges.size + 1
    cell = np.searchsorted(edges, starts, side="right")
    cell *= n_rows
    cell += row
    n_cells = n_places * n_rows
    sums = [np.bincount(cell, minlength=n_cells)]
    sums += [sums_of(cell, values, n_cells) for values in of_each]
    group_edges = np.append(first, n_windows)
    by_window = _keep_nonzero(sums, group_edges, n_rows)
    totals = [values.reshape(n_places, n_rows).sum(axis=0) for values in sums]
    return by_window, totals


def _keep_nonzero(sums: Sequence[Int64], edges: Int64, n_rows: int) -> WindowSums:
    """Return the sums of the windows that have a kernel.

    Each sum has a value per group of windows and row, with another group before and after all.
    """
    end = n_rows * edges.size
    sums_inside = [values[n_rows:end] for values in sums]
    cells = np.flatnonzero(sums_inside[0])
    group, row = np.divmod(cells, max(n_rows, 1))
    sums_of_cells = tuple(values[cells] for values in sums_inside)
    return WindowSums(
        n_rows=n_rows,
        edges=edges,
        group=group.astype(np.int32),
        row=row.astype(np.int32),
        sums=sums_of_cells,
    )


def _first_of_groups(n_windows: int, max_groups: int) -> Int64:
    """Return the first window of each group; a quarter of the groups at either end are windows."""
    windows = np.arange(n_windows)
    if n_windows <= max_groups:
        return windows
    n_at_end = max_groups // 4
    end = n_windows - n_at_end
    n_between = end - n_at_end
    n_groups_between = max_groups - 2 * n_at_end
    group_size = math.ceil(n_between / n_groups_between)
    before = windows[:n_at_end]
    between = windows[n_at_end:end:group_size]
    behind = windows[end:]
    return np.concatenate((before, between, behind))


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
    starts = operations.kernel_start
    ends = operations.kernel_end
    duration = ends - starts
    rows = _number_rows(operations, names, phase)
    row = rows.row
    n_rows = len(rows.name)
    covered = comm.lengths(starts, ends)
    covered[operations.is_comm] = 0
    by_window, sums = window_sums(starts, (duration, covered), row, n_rows, windows)
    n_kernels, total_ns, covered_ns = sums
    columns = {
        "phase": rows.phase,
        "name": rows.name,
        "n_kernels": n_kernels,
        "total_ns": total_ns,
        "min_ns": least_of(row, duration, n_rows),
        "max_ns": _most_of(row, duration, n_rows),
        "overlapped_ns": covered_ns,
    }
    slowed = _find_slowed(operations, comm)
    columns |= _sum_slowed(slowed, row, n_rows)
    return pa.table(columns), by_window


class _KernelRows(NamedTuple):
    """The (phase, name) of each row of kernels, sorted, and the row of each kernel."""

    phase: pa.Array
    name: pa.Array
    row: Int32


def _number_rows(
    operations: ProcessOperations, names: Mapping[int, str], phase: Phases
) -> _KernelRows:
    labels, key = kernel_labels(operations.kernel_column("name_id"), names)
    n_labels = len(labels)
    # The last phase is none, which is -1.
    phases = [*PHASES, None]
    n_keys = len(phases) * n_labels
    first_keys = np.arange(0, n_keys, n_labels, dtype=np.int32)
    key += first_keys[phase]
    keys, row = _number_keys(key, n_keys)
    phase_of_row, label_of_row = np.divmod(keys, n_labels)
    phase_column = _texts_of(phases, phase_of_row)
    name_column = _texts_of(labels, label_of_row)
    return _KernelRows(phase_column, name_column, row)


def _texts_of(texts: Sequence[str | None], codes: Int64) -> pa.Array:
    """Return the text that each code is the place of."""
    column = pa.array(texts, pa.string())
    return column.take(pa.array(codes))


def _most_of(groups: Int32, values: Int64, n_groups: int) -> Int64:
    """Return each group's largest value, at least 0; groups from 0 in any order."""
    most = np.zeros(n_groups, np.int64)
    np.maximum.at(most, groups, values)
    return most


def _number_keys(key: Int32, n_keys: int) -> tuple[Int64, Int32]:
    """Return the keys that occur, and the number of each key among them."""
    n_of_key = np.bincount(key, minlength=n_keys)
    keys = np.flatnonzero(n_of_key)
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
    slowed_ns = sums_of(rows, slowed.covered_ns, n_rows)
    free_ns = sums_of(rows, slowed.free_ns, n_rows)
    n_slowed = np.bincount(rows, minlength=n_rows)
    return {"n_slowed": n_slowed, "slowed_ns": slowed_ns, "free_ns": free_ns}


def _find_slowed(operations: ProcessOperations, comm: IntervalSet) -> Slowed:
    """Return `kernel_slowdown` of the sampled kernels, which are those whose grids are known."""
    if not len(comm):
        return _NONE_SLOWED
    is_sampled = operations.kernel_column("grid") != UNKNOWN
    sampled = np.flatnonzero(is_sampled)
    if not sampled.size:
        return _NONE_SLOWED
    first = int(sampled[0])
    last = int(sampled[-1]) + 1
    is_compute = ~operations.is_comm[first:last]
    rows = np.flatnonzero(is_compute)
    rows += first
    name_id = operations.kernel_column("name_id", first, last)[is_compute]
    grid = operations.kernel_column("grid", first, last)[is_compute]
    block = operations.kernel_column("block", first, last)[is_compute]
    starts = operations.kernel_start[rows]
    ends = operations.kernel_end[rows]
    covered = comm.lengths(starts, ends)
    slowed = kernel_slowdown(name_id, grid, block, ends - starts, covered)
    kernel = rows[slowed.kernel]
    return slowed._replace(kernel=kernel)


def costliest(kernels: KernelsTable, n_kept: int) -> pa.Table:
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
    phase = kernels["phase"].cast(pa.string()).combine_chunks()
    encoded = phase.dictionary_encode(null_encoding="encode")
    n_phases = len(PHASES) + 1
    owner = kernels["rank"].to_numpy() * n_phases
    owner += encoded.indices.to_numpy()
    place = places_in_runs(owner[order])
    is_kept = place < n_kept
    rows = np.sort(order[is_kept])
    return kernels.take(pa.array(rows))


def matrix_times(
    operations: ProcessOperations, names: Mapping[int, str], windows: Windows
) -> MatrixTimes:
    """Return the time of kernels that multiply matrices, of those that start in complete steps.

    What CUDA graphs ran that were captured as a whole has no known datatype.
    """
    complete = np.flatnonzero(windows.is_complete)
    if not complete.size:
        return MatrixTimes()
    starts = operations.kernel_start
    is_inside = starts >= windows.starts[complete[0]]
    is_inside &= starts < windows.ends[complete[-1]]
    is_inside &= ~operations.is_comm
    durations_ns = (operations.kernel_end - starts)[is_inside]
    name_ids, row = np.unique(operations.kernel_column("name_id")[is_inside], return_inverse=True)
    times_ns = sums_of(row, durations_ns, name_ids.size).tolist()
    time_of_name: dict[str, int] = {}
    in_graphs_ns = 0
    for name_id, time_ns in zip(name_ids.tolist(), times_ns, strict=True):
        if name_id == GRAPH_NAME_ID:
            in_graphs_ns = time_ns
        elif name_id in names:
            name = names[name_id]
            time_of_name[name] = time_of_name.get(name, 0) + time_ns
    of_kernels = MatrixTimes.of_kernels(time_of_name)
    return MatrixTimes.total([of_kernels, MatrixTimes(unknown=in_graphs_ns)])


def kernel_labels(name_ids: Int64, names: Mapping[int, str]) -> tuple[list[str], Int32]:
    """Return the labels in alphabetical order, and which one each kernel has."""
    by_id = {}
    for name_id, text in names.items():
        by_id[name_id] = kernel_label(text)
    by_id[GRAPH_NAME_ID] = GRAPH
    # The last text is that of IDs without a name.
    texts = [*by_id.values(), _NAMELESS]
    labels = sorted(set(texts))
    code_of_label = {text: code for code, text in enumerate(labels)}
    codes = [code_of_label[text] for text in texts]
    code_of_place = np.array(codes, np.int32)
    known_ids = pa.array(by_id.keys(), pa.int64())
    ids = pa.array(name_ids)
    place = pc.index_in(ids, value_set=known_ids)
    place = pc.fill_null(place, len(by_id))
    return labels, code_of_place[place.to_numpy()]


class Slowing(Struct, frozen=True):
    """How work is slower during communication.

    It takes 1 + ratio times as long, and each operation begins later.
    """

    ratio: float = 0.0
    delay_ns: float = 0.0

    def blended(self, admixture: Slowing, share: float) -> Slowing:
        """Return a mixture that has this share of another slowing."""
        ratio_difference = admixture.ratio - self.ratio
        delay_difference_ns = admixture.delay_ns - self.delay_ns
        ratio = self.ratio + share * ratio_difference
        delay_ns = self.delay_ns + share * delay_difference_ns
        return Slowing(ratio, delay_ns)

    def total(self, operations_per_ns: float) -> float:
        """Return how much longer work of so many operations takes, as a share of it."""
        delay_ratio = self.delay_ns * operations_per_ns
        return self.ratio + delay_ratio


# What was seen on H200. Over host memory (about 30 GB/s) operations begin later, because launches
# use the same path as transfers. Over NVLink (about 300 GB/s) NCCL runs many more thread blocks,
# which take the place of those of the operations.
NARROW = Slowing(0.03, 6_500.0)
WIDE = Slowing(0.5, 250.0)


def link_width(bytes_per_s: float) -> float:
    """Return where a link is between a narrow one (0) and a wide one (1), by the logarithm."""
    distance = math.log(bytes_per_s / NARROW_LINK)
    largest_distance = math.log(WIDE_LINK / NARROW_LINK)
    width = distance / largest_distance
    return min(max(width, 0.0), 1.0)


def assumed(bytes_per_s: float | None) -> Slowing:
    """Return the likeliest slowing over a link if it was not measured.

    If the link is not known, it is the slowing in the middle.
    """
    width = 0.5
    if bytes_per_s is not None:
        width = link_width(bytes_per_s)
    return NARROW.blended(WIDE, width)


def most_assumed(bytes_per_s: float | None, operations_per_ns: float) -> float:
    """Return how much longer work takes at most if that was not measured, as a share of it.

    If the link is not known, the worse one is assumed.
    """
    slowings = [NARROW, WIDE]
    if bytes_per_s is not None:
        slowings = [assumed(bytes_per_s)]
    totals = [slowing.total(operations_per_ns) for slowing in slowings]
    uncertainty = 1 + ASSUMED_WITHIN
    return uncertainty * max(totals)


def operations_per_ns(kernels: KernelsTable) -> float:
    """Return how many compute kernels run in a ns of their time, from `schema.KERNEL_COSTS`.

    0 without any.
    """
    is_comm = are_communication(kernels["name"])
    compute = kernels.filter(pc.invert(is_comm))
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
    context = _number_contexts(name_id, grid, block)
    is_usable = grid != UNKNOWN
    is_usable &= duration > 0
    usable = np.flatnonzero(is_usable)
    is_covered = covered[usable] > 0
    free = usable[~is_covered]
    during_comm = usable[is_covered]
    if not free.size or not during_comm.size:
        return _NONE_SLOWED
    medians = _medians_by_context(context, free, duration)
    median_ns = medians[context[during_comm]]
    has_median = median_ns != UNKNOWN
    kernel = during_comm[has_median]
    slower_by_ns = duration[kernel] - median_ns[has_median]
    covered_ns = covered[kernel]
    free_ns = np.maximum(covered_ns - slower_by_ns, 0)
    return Slowed(kernel, covered_ns, free_ns)


def _number_contexts(name_id: Int64, grid: Int64, block: Int64) -> Int64:
    """Return a number for each kernel's name, grid and block, and those of its neighbors."""
    kind = np.zeros(name_id.size, np.int64)
    for column in (name_id, grid, block):
        values, code = np.unique(column, return_inverse=True)
        kind *= values.size
        kind += code
    padded = np.pad(kind, _N_NEIGHBORS, constant_values=-1)
    n_compared = 2 * _N_NEIGHBORS + 1
    contexts = runs_of_codes(padded, n_compared)
    return contexts[: kind.size]


def _medians_by_context(context: Int64, free: Int64, duration: Int64) -> Int64:
    """Return the median duration of the free kernels of each context.

    `UNKNOWN` if they are too few, or if they differ too much.
    """
    contexts = context[free]
    lengths = duration[free]
    order = np.lexsort((lengths, contexts))
    contexts = contexts[order]
    lengths = lengths[order]
    first = run_starts(contexts)
    count = np.diff(first, append=free.size)
    median = _medians_of(lengths, first, count)
    place_of_short = first + count // 8
    place_of_long = first + count * 7 // 8
    spread = lengths[place_of_long] - lengths[place_of_short]
    is_known = spread <= _MAX_SPREAD * median
    is_known &= count >= _MIN_EQUAL_KERNELS
    first_known = first[is_known]
    n_contexts = context.max() + 1
    medians = np.full(n_contexts, UNKNOWN)
    medians[contexts[first_known]] = median[is_known]
    return medians


def _medians_of(values: Int64, first: Int64, count: Int64) -> Int64:
    """Return the median of each run of sorted values, floored."""
    last_place = count - 1
    low = values[first + last_place // 2]
    high = values[first + count // 2]
    difference = high - low
    medians: Int64 = low + difference // 2
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
    next_start = start[1:]
    longest_reach = reached + _MAX_GAP_NS
    is_gap = launch[1:] < reached
    is_gap &= next_start >= reached
    is_gap &= next_start < longest_reach
    gap = np.flatnonzero(is_gap)
    gap_start = reached[gap]
    gap_end = next_start[gap]
    gap_ns = gap_end - gap_start
    # Longer by 1 ns, so that no gap is empty.
    covered = comm.lengths(gap_start - 1, gap_end)
    is_free = covered == 0
    is_covered = covered == gap_ns + 1
    return GapsBefore(gap + 1, gap_ns, is_free, is_covered)


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
        gaps = _gaps_before_kernels(part, comm)
        free_gaps.append(gaps.gap_ns[gaps.is_free])
        covered_gap_ns = gaps.gap_ns[gaps.is_covered]
        n_covered += covered_gap_ns.size
        covered_place = gaps.place[gaps.is_covered]
        started = started_in(part.start[covered_place], covered_gap_ns, windows)
        n_gaps += started.number
        gaps_ns += started.total
        starts = part.start[1:]
        starts_during_comm = starts[comm.contains(starts)]
        n_begun += windows.slices(starts_during_comm).counts
    free_gap = np.concatenate(free_gaps)
    if min(free_gap.size, n_covered) < ENOUGH_GAPS:
        return None
    delays_ns = _longer_by(gaps_ns, n_gaps, free_gap.mean()) * n_begun
    return np.rint(delays_ns).astype(np.int64)


def _gaps_before_kernels(part: _PartInOrder, comm: IntervalSet) -> GapsBefore:
    gaps = gaps_before(part.start, part.end, part.launch, comm)
    is_kernel = part.is_kernel[gaps.place]
    place = gaps.place[is_kernel]
    gap_ns = gaps.gap_ns[is_kernel]
    is_free = gaps.is_free[is_kernel]
    is_covered = gaps.is_covered[is_kernel]
    return GapsBefore(place, gap_ns, is_free, is_covered)


def _longer_by(gaps_ns: Int64, n_gaps: Int64, usual_gap_ns: float) -> Float64:
    """Return how much longer the mean gap of each window is than usual, ns; 0 without gaps."""
    divisors = np.maximum(n_gaps, 1)
    mean_gap_ns = gaps_ns / divisors
    longer_ns = np.maximum(mean_gap_ns - usual_gap_ns, 0.0)
    return np.where(n_gaps > 0, longer_ns, 0.0)


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
        last = first + BLOCK
        rows = order[first : last + 1]
        end = ends[rows]
        end[0] = max(end[0], reached)
        reached = end[:-1].max()
        is_kernel = rows < n_kernels
        yield _PartInOrder(starts[rows], end, launches[rows], is_kernel)


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
        are_many = self.n_kernels >= ENOUGH_COMPARED
        return are_many and self.share >= LEAST_COMPARED


def compared_kernels(kernels: pa.Table) -> Compared:
    """Return the slowdown of kernels during communication, of all ranks together.

    `kernels` is `schema.KERNEL_COSTS`.
    """
    names = ("n_slowed", "slowed_ns", "free_ns", "overlapped_ns", "n_kernels")
    rows = sums_by(kernels, ["rank"], names)
    n_slowed = _total(rows, "n_slowed")
    slowed_ns = _total(rows, "slowed_ns")
    free_ns = _total(rows, "free_ns")
    covered_ns = _total(rows, "overlapped_ns")
    slowdown_ratio = None
    if free_ns:
        slowdown_ratio = slowed_ns / free_ns - 1
    share = 0.0
    if covered_ns:
        compared_ns = sum(_compared_ns(row) for row in rows)
        share = min(compared_ns / covered_ns, 1.0)
    return Compared(n_slowed, slowdown_ratio, share)


def _total(rows: Sequence[Row], name: str) -> int:
    total: int = sum(row[name] for row in rows)
    return total


def _compared_ns(row: Row) -> float:
    """Return the time of the compared kernels of a rank, as if all its kernels were sampled."""
    # Each sampled kernel of a large report stands for several.
    n_per_sample = row["n_kernels"] / _SAMPLED_KERNELS
    compared_ns: float = row["slowed_ns"] * max(n_per_sample, 1.0)
    return compared_ns


def costs(
    kernels: pa.Table,
    collectives: CollectivesTable,
    traffic: TrafficTable,
    steps: StepsTable,
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
    rows = [*_rows_of_kernels(kernels, is_comm_known=is_comm_known)]
    if is_comm_known:
        rows += _rows_of_collectives(collectives, n_steps)
    for row in rows:
        total_ns = row["total_ns"]
        row["calls_per_step"] = divided(row["n_calls"], n_steps)
        row["time_ns_per_step"] = divided(total_ns, n_steps)
        row["step_share"] = divided(total_ns, wall_ns)
    rows.sort(key=lambda row: -(row["total_ns"] or 0))
    rows += _rows_of_traffic(traffic, are_groups_known=are_groups_known)
    rows.sort(key=lambda row: TABLES.index(row["table"]))
    return schema.COSTS.from_rows(rows)


def _rows_of_traffic(traffic: pa.Table, *, are_groups_known: bool) -> list[Row]:
    is_of_all_ranks = pc.is_null(traffic["rank"])
    communicators = traffic.filter(is_of_all_ranks).to_pylist()
    communicators.sort(key=lambda row: -(row["comm_ns_per_step"] or 0))
    rows = []
    for communicator in communicators:
        row = {name: communicator[name] for name in _COLUMNS_OF_TRAFFIC}
        row["table"] = TRAFFIC
        row["name"] = communicator["collective"]
        row["time_ns_per_step"] = communicator["comm_ns_per_step"]
        is_of_nccl = is_nccl_communicator(communicator["communicator"])
        if not are_groups_known and not is_of_nccl:
            row["ranks"] = None
        rows.append(row)
    return rows


def _rows_of_kernels(kernels: pa.Table, *, is_comm_known: bool) -> Iterator[Row]:
    for sums in sums_by(kernels, ("name", "phase"), _COLUMNS_OF_KERNELS):
        name = sums["name"]
        total_ns = sums["in_summary_ns"]
        covered_ratio = None
        if is_comm_known and not is_communication(name):
            covered_ns = sums["overlapped_in_summary_ns"]
            covered_ratio = divided(covered_ns, total_ns)
        n_slowed = sums["n_slowed"]
        free_ns = sums["free_ns"]
        slowdown_ratio = None
        if n_slowed and free_ns:
            slowdown_ratio = sums["slowed_ns"] / free_ns - 1
        yield {
            "table": KERNELS,
            "name": name,
            "phase": sums["phase"],
            "n_calls": sums["n_in_summary"],
            "total_ns": total_ns,
            "n_slowed": n_slowed,
            "beside_comm_ratio": covered_ratio,
            "slowdown_ratio": slowdown_ratio,
        }


def _rows_of_collectives(collectives: CollectivesTable, n_steps: int | None) -> Iterator[Row]:
    """Yield a row for each collective and size, without ``calls_per_step`` and shares."""
    columns = _columns_in_summary(collectives)
    for sums in sums_by(columns, ["name", "size"], _SUMS_OF_COLLECTIVES):
        total_ns = sums["total_ns"]
        exposed_ns = sums["exposed_ns"]
        hidden_ns = None
        if exposed_ns is not None:
            hidden_ns = total_ns - exposed_ns
        transfer_ns = sums["transfer_ns"]
        transfer_s = transfer_ns and transfer_ns / 1e9
        row = {"table": COLLECTIVES, "name": sums["name"]}
        row["message_bytes"] = sums["size"]
        row["n_calls"] = sums["n"]
        row["total_ns"] = total_ns
        row["bytes_per_step"] = divided(sums["message_bytes"], n_steps)
        row["exposed_ns_per_step"] = divided(exposed_ns, n_steps)
        row["hidden_ns_per_step"] = divided(hidden_ns, n_steps)
        row["wait_ns_per_step"] = divided(sums["waited_ns"], n_steps)
        row["transfer_ns_per_step"] = divided(transfer_ns, n_steps)
        for name, column in RATES.items():
            row[name] = divided(sums[column], transfer_s)
        yield row


def _columns_in_summary(collectives: pa.Table) -> pa.Table:
    """Return name and size of the collectives of the summary steps, and what is summed of each."""
    in_summary = collectives["in_summary"]
    names = ["start_ns", "end_ns", "wait_ns", "collective", *_COLUMNS_OF_COLLECTIVES]
    different_names = [*dict.fromkeys(names)]
    rows = collectives.select(different_names).filter(in_summary)
    total_ns = pc.subtract(rows["end_ns"], rows["start_ns"])
    waited_ns = pc.min_element_wise(rows["wait_ns"], total_ns, skip_nulls=False)
    columns = {"name": rows["collective"].cast(pa.string())}
    columns["size"] = rows["message_bytes"]
    columns["total_ns"] = total_ns
    columns["waited_ns"] = waited_ns
    for name in _COLUMNS_OF_COLLECTIVES:
        columns[name] = rows.column(name)
    return pa.table(columns)
