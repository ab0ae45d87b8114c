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
    # Of each sum.
    group: Int32
    row: Int32
    # Number of kernels, their durations, and the part of the durations during communication.
    sums: tuple[Int64, ...]

    def over(self, is_chosen: Flags) -> tuple[list[Int64], Flags]:
        """Return each sum by row over the chosen windows, and which rows are not known.

        The windows of a group have one sum. So a row is not known if it has a sum in a group of
        which only some windows are chosen. `is_chosen` has a flag per window.
        """
        # Before each window, and before the end of the last.
        n_chosen_before = np.append(0, np.cumsum(is_chosen))
        n_chosen_of_group = np.diff(n_chosen_before[self.edges])
        n_windows_of_group = np.diff(self.edges)
        is_whole_group = n_chosen_of_group == n_windows_of_group
        is_counted = is_whole_group[self.group]
        rows = self.row[is_counted]
        sums_by_row = []
        for values in self.sums:
            counted_values = values[is_counted]
            sums_by_row.append(sums_of(rows, counted_values, self.n_rows))
        is_partial_group = n_chosen_of_group > 0
        is_partial_group &= ~is_whole_group
        is_of_partial = is_partial_group[self.group]
        is_unknown = np.zeros(self.n_rows, np.bool_)
        is_unknown[self.row[is_of_partial]] = True
        return sums_by_row, is_unknown


def window_sums(
    starts: Int64, of_each: Sequence[Int64], row: Int64 | Int32, n_rows: int, windows: Windows
) -> tuple[WindowSums, list[Int64]]:
    """Sum kernels by window and row, and by row alone.

    `row` is the row of each kernel. The sums are the number of kernels, and those of each column
    in `of_each`. A kernel counts in the window that it starts in. The sums by row alone also have
    the kernels that start in no window.

    At most about 2^18 sums by window are kept. If windows times rows are more, windows in the
    middle are put into groups that have one sum. Windows at either end, where steps are skipped or
    cut off, still have sums of their own.
    """
    n_windows = len(windows)
    n_affordable = _MOST_SUMS // max(n_rows, 1)
    max_groups = max(n_affordable, _MIN_GROUPS)
    first_window = _first_of_groups(n_windows, max_groups)
    group_starts = windows.starts[first_window]
    edges = np.append(group_starts, windows.ends[-1:])
    # One place per group, one before the first group, and one behind the last.
    n_places = edges.size + 1
    # A cell is a place and a row in one number: place * n_rows + row. There are many kernels, so it
    # is made in place.
    cell = np.searchsorted(edges, starts, side="right")
    cell *= n_rows
    cell += row
    n_cells = n_places * n_rows
    sums = [np.bincount(cell, minlength=n_cells)]
    sums += [sums_of(cell, values, n_cells) for values in of_each]
    group_edges = np.append(first_window, n_windows)
    by_window = _keep_nonzero(sums, group_edges, n_rows)
    totals = [values.reshape(n_places, n_rows).sum(axis=0) for values in sums]
    return by_window, totals


def _keep_nonzero(sums: Sequence[Int64], edges: Int64, n_rows: int) -> WindowSums:
    """Return the sums of the groups of windows and rows that have a kernel.

    The first of `sums` is the number of kernels. Each sum has a value per place and row. The first
    place is before all groups of windows, and the last place is behind them. Both are left out.
    """
    end = n_rows * edges.size
    sums_inside = [values[n_rows:end] for values in sums]
    n_kernels = sums_inside[0]
    cells = np.flatnonzero(n_kernels)
    # Without rows there are no cells either, so the divisor does not matter.
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
    """Return the first window of each group of windows.

    If there are more windows than groups, a quarter of the groups at either end are single windows.
    The groups between have several windows each.
    """
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

    `names` are texts by name ID. `phase` is an index into `names.PHASES` for each kernel, -1 for
    none. The table has a row per (phase, name) that occurs, sorted by both, null last. Its columns
    are those of `schema.KERNEL_COSTS` for the whole capture, without means, differences and ratios.
    The sums by window number the rows as the table does.
    """
    starts = operations.kernel_start
    ends = operations.kernel_end
    duration = ends - starts
    rows = _number_rows(operations, names, phase)
    row = rows.row
    n_rows = len(rows.name)
    overlapped = comm.lengths(starts, ends)
    # Communication does not overlap with itself.
    overlapped[operations.is_comm] = 0
    by_window, sums = window_sums(starts, (duration, overlapped), row, n_rows, windows)
    n_kernels, total_ns, overlapped_ns = sums
    columns = {
        "phase": rows.phase,
        "name": rows.name,
        "n_kernels": n_kernels,
        "total_ns": total_ns,
        "min_ns": least_of(row, duration, n_rows),
        "max_ns": _most_of(row, duration, n_rows),
        "overlapped_ns": overlapped_ns,
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
    """Return the rows of a table of kernels by phase and name. `phase` is that of each kernel."""
    labels, label_of_kernel = kernel_labels(operations.kernel_column("name_id"), names)
    n_labels = len(labels)
    # No phase is -1, which reads the last element.
    phases = [*PHASES, None]
    # A key is a phase and a label in one number: phase * n_labels + label.
    n_keys = len(phases) * n_labels
    first_key_of_phase = np.arange(0, n_keys, n_labels, dtype=np.int32)
    key_of_kernel = first_key_of_phase[phase]
    key_of_kernel += label_of_kernel
    key_of_row, row_of_kernel = _number_keys(key_of_kernel, n_keys)
    phase_of_row, label_of_row = np.divmod(key_of_row, n_labels)
    phase_column = _texts_of(phases, phase_of_row)
    name_column = _texts_of(labels, label_of_row)
    return _KernelRows(phase_column, name_column, row_of_kernel)


def _texts_of(texts: Sequence[str | None], codes: Int64) -> pa.Array:
    """Return for each code the text with that index."""
    column = pa.array(texts, pa.string())
    return column.take(pa.array(codes))


def _most_of(groups: Int32, values: Int64, n_groups: int) -> Int64:
    """Return each group's largest value, at least 0; groups from 0 in any order."""
    most = np.zeros(n_groups, np.int64)
    np.maximum.at(most, groups, values)
    return most


def _number_keys(key: Int32, n_keys: int) -> tuple[Int64, Int32]:
    """Return the different keys that occur, sorted, and for each key its index among them.

    All keys are from 0 to below `n_keys`.
    """
    n_occurrences = np.bincount(key, minlength=n_keys)
    occurring_keys = np.flatnonzero(n_occurrences)
    index_of_key = np.zeros(n_keys, np.int32)
    index_of_key[occurring_keys] = np.arange(occurring_keys.size)
    return occurring_keys, index_of_key[key]


class Slowed(NamedTuple):
    """Kernels that ran during communication, and have equal kernels that ran without it."""

    kernel: Int64
    slowed_ns: Int64  # how long each kernel ran during communication
    free_ns: Int64  # how long the same part would have taken without communication


_NONE_SLOWED = Slowed(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64))


def _sum_slowed(slowed: Slowed, row: Int32, n_rows: int) -> dict[str, Int64]:
    """Sum the slowed kernels by row; `row` is the row of every kernel."""
    rows = row[slowed.kernel]
    slowed_ns = sums_of(rows, slowed.slowed_ns, n_rows)
    free_ns = sums_of(rows, slowed.free_ns, n_rows)
    n_slowed = np.bincount(rows, minlength=n_rows)
    return {"n_slowed": n_slowed, "slowed_ns": slowed_ns, "free_ns": free_ns}


def _find_slowed(operations: ProcessOperations, comm: IntervalSet) -> Slowed:
    """Return `kernel_slowdown` of the sampled kernels, which are those whose grids are known.

    All compute kernels from the first sampled kernel to the last are passed on. Those that are not
    sampled are only neighbors of the sampled ones.
    """
    if not len(comm):
        return _NONE_SLOWED
    is_sampled = operations.kernel_column("grid") != UNKNOWN
    sampled = np.flatnonzero(is_sampled)
    if not sampled.size:
        return _NONE_SLOWED
    begin = int(sampled[0])
    end = int(sampled[-1]) + 1
    is_compute = ~operations.is_comm[begin:end]
    compute_kernels = np.flatnonzero(is_compute) + begin
    name_id = operations.kernel_column("name_id", begin, end)[is_compute]
    grid = operations.kernel_column("grid", begin, end)[is_compute]
    block = operations.kernel_column("block", begin, end)[is_compute]
    starts = operations.kernel_start[compute_kernels]
    ends = operations.kernel_end[compute_kernels]
    overlapped = comm.lengths(starts, ends)
    slowed = kernel_slowdown(name_id, grid, block, ends - starts, overlapped)
    # From indices among the compute kernels to indices among all kernels.
    return slowed._replace(kernel=compute_kernels[slowed.kernel])


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
    costliest_first = pc.sort_indices(kernels, keys).to_numpy()
    phase = kernels["phase"].cast(pa.string()).combine_chunks()
    # No phase is a phase of its own.
    encoded = phase.dictionary_encode(null_encoding="encode")
    n_phases = len(PHASES) + 1
    # A group is a rank and a phase.
    group = kernels["rank"].to_numpy() * n_phases
    group += encoded.indices.to_numpy()
    place_in_group = places_in_runs(group[costliest_first])
    is_kept = place_in_group < n_kept
    rows = np.sort(costliest_first[is_kept])
    return kernels.take(pa.array(rows))


def matrix_times(
    operations: ProcessOperations, names: Mapping[int, str], windows: Windows
) -> MatrixTimes:
    """Return the time of the kernels that multiply matrices, by datatype.

    Kernels count that start between the begin of the first complete step and the end of the last.
    The datatype is not known for CUDA graphs whose kernels were not recorded one by one.
    """
    complete = np.flatnonzero(windows.is_complete)
    if not complete.size:
        return MatrixTimes()
    starts = operations.kernel_start
    is_inside = starts >= windows.starts[complete[0]]
    is_inside &= starts < windows.ends[complete[-1]]
    is_inside &= ~operations.is_comm
    durations_ns = (operations.kernel_end - starts)[is_inside]
    id_of_kernel = operations.kernel_column("name_id")[is_inside]
    name_ids, name_of_kernel = np.unique(id_of_kernel, return_inverse=True)
    times_ns = sums_of(name_of_kernel, durations_ns, name_ids.size).tolist()
    ns_of_name: dict[str, int] = {}
    ns_in_graphs = 0
    for name_id, time_ns in zip(name_ids.tolist(), times_ns, strict=True):
        if name_id == GRAPH_NAME_ID:
            ns_in_graphs = time_ns
        elif name_id in names:
            # Several IDs may have the same name.
            name = names[name_id]
            ns_of_name[name] = ns_of_name.get(name, 0) + time_ns
    times_of_kernels = MatrixTimes.of_kernels(ns_of_name)
    times_of_graphs = MatrixTimes(unknown=ns_in_graphs)
    return MatrixTimes.total([times_of_kernels, times_of_graphs])


def kernel_labels(name_ids: Int64, names: Mapping[int, str]) -> tuple[list[str], Int32]:
    """Return the labels in alphabetical order, and for each kernel the index of its label.

    `name_ids` are those of the kernels, and `names` are by name ID. Several names may have the same
    label.
    """
    label_of_id = {}
    for name_id, text in names.items():
        label_of_id[name_id] = kernel_label(text)
    label_of_id[GRAPH_NAME_ID] = GRAPH
    # A place is that of an ID in `label_of_id`. One more place is for IDs without a name.
    label_of_place = [*label_of_id.values(), _NAMELESS]
    labels = sorted(set(label_of_place))
    index_of_label = {label: index for index, label in enumerate(labels)}
    indices = [index_of_label[label] for label in label_of_place]
    index_of_place = np.array(indices, np.int32)
    known_ids = pa.array(label_of_id.keys(), pa.int64())
    ids = pa.array(name_ids)
    known_places = pc.index_in(ids, value_set=known_ids)
    place_of_kernel = pc.fill_null(known_places, len(label_of_id))
    return labels, index_of_place[place_of_kernel.to_numpy()]


class Slowing(Struct, frozen=True):
    """How work is slower during communication.

    Each operation takes 1 + ratio times as long, and begins later by the delay.
    """

    ratio: float = 0.0
    delay_ns: float = 0.0

    def blended(self, admixture: Slowing, share: float) -> Slowing:
        """Return a mixture of both slowings, of which `admixture` has this share."""
        ratio_difference = admixture.ratio - self.ratio
        delay_difference_ns = admixture.delay_ns - self.delay_ns
        ratio = self.ratio + share * ratio_difference
        delay_ns = self.delay_ns + share * delay_difference_ns
        return Slowing(ratio, delay_ns)

    def total(self, operations_per_ns: float) -> float:
        """Return how much longer work takes, as a share of its time without communication.

        `operations_per_ns` is how many operations run in a ns of that time.
        """
        delay_ratio = self.delay_ns * operations_per_ns
        return self.ratio + delay_ratio


# What was seen on H200. Over host memory (about 30 GB/s) operations begin later, because launches
# use the same path as transfers. Over NVLink (about 300 GB/s) NCCL runs many more thread blocks,
# which take the place of those of the operations.
NARROW = Slowing(0.03, 6_500.0)
WIDE = Slowing(0.5, 250.0)


def link_width(bytes_per_s: float) -> float:
    """Return where a link is between a narrow link (0) and a wide link (1).

    The logarithm of the bandwidth counts. Links beyond either are 0 or 1.
    """
    distance = math.log(bytes_per_s / NARROW_LINK)
    largest_distance = math.log(WIDE_LINK / NARROW_LINK)
    width = distance / largest_distance
    return min(max(width, 0.0), 1.0)


def assumed(bytes_per_s: float | None) -> Slowing:
    """Return the likeliest slowing over a link if it was not measured.

    If the link is not known, return the mean of the slowings over a narrow and a wide link.
    """
    width = 0.5
    if bytes_per_s is not None:
        width = link_width(bytes_per_s)
    return NARROW.blended(WIDE, width)


def largest_assumed_slowdown(bytes_per_s: float | None, operations_per_ns: float) -> float:
    """Return how much longer work takes at most, if that was not measured.

    The result is a share of the time of the work without communication. An assumed slowing may be
    too small by `ASSUMED_WITHIN`. If the link is not known, the worse of the narrow and the wide
    link is assumed.
    """
    slowings = [NARROW, WIDE] if bytes_per_s is None else [assumed(bytes_per_s)]
    totals = [slowing.total(operations_per_ns) for slowing in slowings]
    return (1 + ASSUMED_WITHIN) * max(totals)


def operations_per_ns(kernels: KernelsTable) -> float:
    """Return how many compute kernels run in a ns of the time of compute kernels.

    `kernels` is `schema.KERNEL_COSTS`. 0 without compute kernels.
    """
    is_comm = are_communication(kernels["name"])
    compute = kernels.filter(pc.invert(is_comm))
    n_kernels = pc.sum(compute["n_kernels"]).as_py()
    total_ns = pc.sum(compute["total_ns"]).as_py()
    return n_kernels / total_ns if total_ns else 0.0


def kernel_slowdown(
    name_id: Int64, grid: Int64, block: Int64, duration: Int64, overlapped: Int64
) -> Slowed:
    """Compare kernels during communication with equal kernels without it.

    The parameters have a value per compute kernel, in order of launch. `duration` is how long the
    kernel ran, and `overlapped` is the part of that time during communication, both in ns. Kernels
    with an `UNKNOWN` grid are not compared. `schema.KERNEL_COSTS` defines the comparison; medians
    are floored.

    The result has the kernels that ran at least in part during communication, and that have enough
    equal kernels without.
    """
    context = _number_contexts(name_id, grid, block)
    is_usable = grid != UNKNOWN
    is_usable &= duration > 0
    usable = np.flatnonzero(is_usable)
    is_overlapped = overlapped[usable] > 0
    during_comm = usable[is_overlapped]
    without_comm = usable[~is_overlapped]
    if not without_comm.size or not during_comm.size:
        return _NONE_SLOWED
    usual_ns_of_context = _medians_by_context(context, without_comm, duration)
    usual_ns = usual_ns_of_context[context[during_comm]]
    is_usual_known = usual_ns != UNKNOWN
    kernel = during_comm[is_usual_known]
    longer_by_ns = duration[kernel] - usual_ns[is_usual_known]
    slowed_ns = overlapped[kernel]
    # Only the part during communication got longer. Without, it would take as much less time.
    free_ns = np.maximum(slowed_ns - longer_by_ns, 0)
    return Slowed(kernel, slowed_ns, free_ns)


def _number_contexts(name_id: Int64, grid: Int64, block: Int64) -> Int64:
    """Return the number of the context of each kernel.

    A context is the name, grid and block of a kernel and of its neighbors on both sides.
    """
    # One number per name, grid and block.
    kind = np.zeros(name_id.size, np.int64)
    for column in (name_id, grid, block):
        values, code = np.unique(column, return_inverse=True)
        kind *= values.size
        kind += code
    # The first and the last kernels get neighbors of the kind -1.
    padded_kind = np.pad(kind, _N_NEIGHBORS, constant_values=-1)
    context_size = 2 * _N_NEIGHBORS + 1
    # The context of a kernel begins `_N_NEIGHBORS` places before the kernel. The padding has moved
    # all kernels by as many places, so the context begins at the old place of its kernel.
    contexts = runs_of_codes(padded_kind, context_size)
    return contexts[: kind.size]


def _medians_by_context(context: Int64, rows: Int64, duration: Int64) -> Int64:
    """Return for each context the median duration of some kernels, ns.

    `context` and `duration` are those of all kernels, and `rows` are the kernels that count. The
    median is `UNKNOWN` if a context has too few of these, or if their durations differ too much.
    """
    unsorted_context = context[rows]
    unsorted_duration = duration[rows]
    by_context = np.lexsort((unsorted_duration, unsorted_context))
    sorted_context = unsorted_context[by_context]
    sorted_duration = unsorted_duration[by_context]
    first = run_starts(sorted_context)
    count = np.diff(first, append=rows.size)
    median = _medians_of(sorted_duration, first, count)
    spread = _spreads_of(sorted_duration, first, count)
    is_known = spread <= _MAX_SPREAD * median
    is_known &= count >= _MIN_EQUAL_KERNELS
    n_contexts = context.max() + 1
    median_of_context = np.full(n_contexts, UNKNOWN)
    known_contexts = sorted_context[first[is_known]]
    median_of_context[known_contexts] = median[is_known]
    return median_of_context


def _spreads_of(values: Int64, first: Int64, count: Int64) -> Int64:
    """Return how far the middle three quarters of each run of sorted values reach.

    These are the values from an eighth of the run to seven eighths. `first` is the place of the
    first value of each run, and `count` is how many values the run has.
    """
    place_of_low = first + count // 8
    place_of_high = first + count * 7 // 8
    low = values[place_of_low]
    high = values[place_of_high]
    spreads: Int64 = high - low
    return spreads


def _medians_of(values: Int64, first: Int64, count: Int64) -> Int64:
    """Return the median of each run of sorted values, floored.

    `first` is the place of the first value of each run, and `count` is how many values it has.
    """
    # The two middle places. They are the same if the count is odd.
    low_place = first + (count - 1) // 2
    high_place = first + count // 2
    low = values[low_place]
    high = values[high_place]
    difference = high - low
    medians: Int64 = low + difference // 2
    return medians


class GapsBefore(NamedTuple):
    """Gaps before operations in which nothing but the device is waited for."""

    place: Int64  # of the operation
    gap_ns: Int64
    is_without_comm: Flags  # whether no part of the gap is during communication
    is_during_comm: Flags  # whether all of it is


def gaps_before(start: Int64, end: Int64, launch: Int64, comm: IntervalSet) -> GapsBefore:
    """Return the gaps between operations that only the device causes.

    The operations are in order of start. The host does not cause a gap if the next operation was
    launched before the gap. Gaps of 100 us or more are left out, since most of them are waits for a
    collective. A gap of no length counts, too: operations that follow at once have no delay.
    """
    # For each operation but the first, when all operations before it have ended.
    previous_end = np.maximum.accumulate(end)[:-1]
    next_start = start[1:]
    is_gap = launch[1:] < previous_end
    is_gap &= next_start >= previous_end
    is_gap &= next_start < previous_end + _MAX_GAP_NS
    place_before_gap = np.flatnonzero(is_gap)
    gap_start = previous_end[place_before_gap]
    gap_end = next_start[place_before_gap]
    gap_ns = gap_end - gap_start
    # A gap may have no length. So the last ns before each gap is looked at, too.
    looked_at_ns = gap_ns + 1
    during_comm_ns = comm.lengths(gap_start - 1, gap_end)
    is_without_comm = during_comm_ns == 0
    is_during_comm = during_comm_ns == looked_at_ns
    return GapsBefore(place_before_gap + 1, gap_ns, is_without_comm, is_during_comm)


def comm_delays(operations: ProcessOperations, comm: IntervalSet, windows: Windows) -> Int64 | None:
    """Return by how much communication delays the begin of operations, ns per window in total.

    The mean gap before kernels during communication is compared with that without communication,
    on any stream. Each operation that begins during communication is delayed by the difference, as
    `schema.STEPS` defines it. 0 without communication. None if there are too few gaps of one kind.
    """
    n_windows = len(windows)
    if not len(comm):
        return np.zeros(n_windows, np.int64)
    # What each window has during communication: the number and the total length of the gaps, and
    # the number of operations that begin.
    n_gaps = np.zeros(n_windows, np.int64)
    total_gap_ns = np.zeros(n_windows, np.int64)
    n_begun = np.zeros(n_windows, np.int64)
    # Gaps in no window count here, too.
    n_gaps_during_comm = 0
    gaps_without_comm = [np.empty(0, np.int64)]
    for part in _parts_in_order_of_start(operations):
        gaps = _gaps_before_kernels(part, comm)
        gaps_without_comm.append(gaps.gap_ns[gaps.is_without_comm])
        gap_ns = gaps.gap_ns[gaps.is_during_comm]
        n_gaps_during_comm += gap_ns.size
        kernel_start = part.start[gaps.place[gaps.is_during_comm]]
        started = started_in(kernel_start, gap_ns, windows)
        n_gaps += started.number
        total_gap_ns += started.total
        # The first operation of a part was counted in the part before.
        starts = part.start[1:]
        starts_during_comm = starts[comm.contains(starts)]
        n_begun += windows.slices(starts_during_comm).counts
    gap_without_comm_ns = np.concatenate(gaps_without_comm)
    if min(gap_without_comm_ns.size, n_gaps_during_comm) < ENOUGH_GAPS:
        return None
    delay_ns = _longer_by(total_gap_ns, n_gaps, usual_gap_ns=gap_without_comm_ns.mean())
    return np.rint(delay_ns * n_begun).astype(np.int64)


def _gaps_before_kernels(part: _PartInOrder, comm: IntervalSet) -> GapsBefore:
    """Return `gaps_before` the kernels of a part, without those before copies."""
    gaps = gaps_before(part.start, part.end, part.launch, comm)
    is_kernel = part.is_kernel[gaps.place]
    place = gaps.place[is_kernel]
    gap_ns = gaps.gap_ns[is_kernel]
    is_without_comm = gaps.is_without_comm[is_kernel]
    is_during_comm = gaps.is_during_comm[is_kernel]
    return GapsBefore(place, gap_ns, is_without_comm, is_during_comm)


def _longer_by(total_gap_ns: Int64, n_gaps: Int64, usual_gap_ns: float) -> Float64:
    """Return how much longer the mean gap of each window is than usual, ns.

    0 if the mean gap is shorter than usual, or if the window has no gaps.
    """
    # Where there is no gap, 1 avoids a division by 0.
    divisors = np.maximum(n_gaps, 1)
    mean_gap_ns = total_gap_ns / divisors
    longer_ns = np.maximum(mean_gap_ns - usual_gap_ns, 0.0)
    return np.where(n_gaps > 0, longer_ns, 0.0)


class _PartInOrder(NamedTuple):
    """Compute kernels and copies in order of start. The first one stands for all before it."""

    start: Int64
    end: Int64
    launch: Int64
    is_kernel: Flags


def _parts_in_order_of_start(operations: ProcessOperations) -> Iterator[_PartInOrder]:
    """Yield the operations in parts, so that temporary arrays stay small.

    The last operation of a part is also the first one of the next part, so that the gap behind it
    is in a part. As the first one, it stands for all operations before. So it gets the latest end
    of all operations up to it.
    """
    is_compute = ~operations.is_comm
    n_kernels = int(np.count_nonzero(is_compute))
    starts = np.append(operations.kernel_start[is_compute], operations.copy_start)
    ends = np.append(operations.kernel_end[is_compute], operations.copy_end)
    launches = np.append(operations.kernel_launch[is_compute], operations.copy_launch)
    row_at_place = np.argsort(starts, kind="stable")
    # Of the operations before the part.
    latest_end = -NEVER
    # The last operation begins no part, since no gap is behind it.
    last_place = row_at_place.size - 1
    for first in range(0, last_place, BLOCK):
        last = first + BLOCK
        rows = row_at_place[first : last + 1]
        end = ends[rows]
        end[0] = max(end[0], latest_end)
        # All but the last operation, which begins the next part.
        latest_end = end[:-1].max()
        # Kernels have the first rows, and copies the rows behind.
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

    Compared are kernels that run during communication and also without it. ``slowed_ns`` is the
    time of these kernels during communication. ``free_ns`` is how long the same work would take
    without communication.

    The share compares the time of these kernels with that of all compute during communication.
    Their time is extrapolated from a sample, which may give more than there was. So the share is
    cut at 1.

    `kernels` is `schema.KERNEL_COSTS`.
    """
    names = ("n_slowed", "slowed_ns", "free_ns", "overlapped_ns", "n_kernels")
    rows = sums_by(kernels, ["rank"], names)
    n_slowed = _total(rows, "n_slowed")
    slowed_ns = _total(rows, "slowed_ns")
    free_ns = _total(rows, "free_ns")
    overlapped_ns = _total(rows, "overlapped_ns")
    compared_ns = sum(_compared_ns(row) for row in rows)
    slowdown_ratio = slowed_ns / free_ns - 1 if free_ns else None
    share = min(compared_ns / overlapped_ns, 1.0) if overlapped_ns else 0.0
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
    """Return `schema.COSTS`: kernels, then collectives, then traffic, each the costliest first.

    `steps` are all summary steps. The table has no collectives if the communication of any step is
    not known. A capture has no figures per step. If `are_groups_known` is false, only the
    communicators of NCCL have ranks.
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
    rows.sort(key=lambda row: row["total_ns"] or 0, reverse=True)
    rows += _rows_of_traffic(traffic, are_groups_known=are_groups_known)
    # This keeps the order inside of each table.
    rows.sort(key=lambda row: TABLES.index(row["table"]))
    return schema.COSTS.from_rows(rows)


def _rows_of_traffic(traffic: pa.Table, *, are_groups_known: bool) -> list[Row]:
    """Return a row for each communicator of `schema.TRAFFIC`, the costliest first.

    NCCL's own communicators have certain ranks. If `are_groups_known` is false, the ranks of all
    other communicators are only assumed, so they are null here.
    """
    is_of_all_ranks = pc.is_null(traffic["rank"])
    communicators = traffic.filter(is_of_all_ranks).to_pylist()
    communicators.sort(key=lambda row: row["comm_ns_per_step"] or 0, reverse=True)
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
    """Yield a row for each name and phase, of all ranks, without figures per step and shares."""
    for sums in sums_by(kernels, ("name", "phase"), _COLUMNS_OF_KERNELS):
        name = sums["name"]
        total_ns = sums["in_summary_ns"]
        overlap_ratio = divided(sums["overlapped_in_summary_ns"], total_ns)
        may_overlap = is_comm_known and not is_communication(name)
        n_slowed = sums["n_slowed"]
        free_ns = sums["free_ns"]
        is_compared = bool(n_slowed and free_ns)
        yield {
            "table": KERNELS,
            "name": name,
            "phase": sums["phase"],
            "n_calls": sums["n_in_summary"],
            "total_ns": total_ns,
            "n_slowed": n_slowed,
            "beside_comm_ratio": overlap_ratio if may_overlap else None,
            "slowdown_ratio": sums["slowed_ns"] / free_ns - 1 if is_compared else None,
        }


def _rows_of_collectives(collectives: CollectivesTable, n_steps: int | None) -> Iterator[Row]:
    """Yield a row for each collective and size, without the columns that `costs` adds."""
    columns = _columns_in_summary(collectives)
    for sums in sums_by(columns, ["name", "size"], _SUMS_OF_COLLECTIVES):
        total_ns = sums["total_ns"]
        exposed_ns = sums["exposed_ns"]
        hidden_ns = None if exposed_ns is None else total_ns - exposed_ns
        transfer_ns = sums["transfer_ns"]
        # None if it is not known.
        transfer_s = divided(transfer_ns, 1e9)
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
    # Each name once, in the same order.
    different_names = [*dict.fromkeys(names)]
    rows = collectives.select(different_names).filter(in_summary)
    total_ns = pc.subtract(rows["end_ns"], rows["start_ns"])
    # An operation that ends before the last rank arrives waits only until its end.
    waited_ns = pc.min_element_wise(rows["wait_ns"], total_ns, skip_nulls=False)
    columns = {"name": rows["collective"].cast(pa.string())}
    columns["size"] = rows["message_bytes"]
    columns["total_ns"] = total_ns
    columns["waited_ns"] = waited_ns
    for name in _COLUMNS_OF_COLLECTIVES:
        columns[name] = rows.column(name)
    return pa.table(columns)
