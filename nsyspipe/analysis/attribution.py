"""The device operations of one process as columns, and the launch that each came from."""

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from numpy.typing import NDArray

from nsyspipe.analysis.intervals import IntervalSet, Slices, is_sorted
from nsyspipe.model.canonical import UNIFIED_KINDS
from nsyspipe.model.table import INT, Flags, Int64, narrowed
from nsyspipe.model.typed_tables import (
    CopiesOfReportTable,
    KernelsOfReportTable,
)

# The launch time of an operation without a launch: after all others.
NEVER = np.iinfo(np.int64).max
# Null in `ProcessOperations.kernel_column`. No ID and no packed shape is that low.
UNKNOWN = np.iinfo(np.int64).min

_NARROWED_COLUMNS = ("device_id", "stream_id", "name_id")
# Launches are looked up in a table with a row per possible correlation ID. If that table would be
# more than this many times longer than the launches, it has a row per ID that occurs.
_MAX_TABLE_ROWS_PER_LAUNCH = 8
# The longest table of `are_among`, in bytes for each ID.
_MAX_TABLE_BYTES_PER_ID = 16


class ProcessOperations(Struct, frozen=True):
    """The device operations of one process. Kernels and copies are each in order of launch."""

    # Compute and communication kernels. Those without a launch come last, with `NEVER`.
    kernel_start: Int64
    kernel_end: Int64
    kernel_launch: Int64
    is_comm: Flags
    # Memcpys and memsets. An unknown kind is -1, unknown bytes are 0.
    copy_start: Int64
    copy_end: Int64
    copy_launch: Int64
    copy_kind: Int64
    copy_bytes: Int64
    # Kernels with a launch.
    n_launched: int
    # By number of operations, most first. Of devices with as many, the lowest comes first.
    devices: tuple[int, ...]
    # Row of each kernel among those of the process. None if the rows are in order of launch.
    kernel_order: Int64 | None
    # Columns of `canonical.KERNELS` that are seldom needed, in order of row: see `kernel_column`.
    kernel_rows: pa.Table

    def kernel_column(self, name: str, first: int = 0, last: int | None = None) -> Int64:
        """Return device_id, stream_id, name_id, grid or block of some kernels, in order of launch.

        Null is `UNKNOWN`.
        """
        column = self.kernel_rows[name]
        if self.kernel_order is None:
            # The rows are in order of launch, so only some of them have to be converted.
            n_kernels = None if last is None else last - first
            chosen = column.slice(first, n_kernels)
            return filled(chosen.cast(INT))
        values = filled(column.cast(INT))
        rows = self.kernel_order[first:last]
        return values[rows]

    @property
    def n_without_launch(self) -> int:
        """Operations of any kind whose launch is missing.

        Moves of unified memory never have a launch, and are not counted.
        """
        has_no_launch = self.copy_launch == NEVER
        is_missing = has_no_launch & ~self.is_unified
        n_copies = int(np.count_nonzero(is_missing))
        n_kernels = self.kernel_start.size - self.n_launched
        return n_kernels + n_copies

    @property
    def n_launchable(self) -> int:
        """Operations of any kind that something launched, recorded or not."""
        is_launchable = ~self.is_unified
        n_copies = int(np.count_nonzero(is_launchable))
        return self.kernel_start.size + n_copies

    @property
    def is_unified(self) -> Flags:
        """Copies of unified memory, which nothing launches."""
        return np.isin(self.copy_kind, UNIFIED_KINDS)

    @property
    def span(self) -> tuple[int, int]:
        """First start and last end of any operation, report time."""
        kernels = (self.kernel_start, self.kernel_end)
        copies = (self.copy_start, self.copy_end)
        firsts = []
        lasts = []
        for starts, ends in (kernels, copies):
            if starts.size:
                firsts.append(int(starts.min()))
                lasts.append(int(ends.max()))
        return min(firsts), max(lasts)

    def kernels_launched_in(self, starts: Int64, ends: Int64) -> Slices:
        """Return, for each host range, the slice of kernels that it launched."""
        launches = self.kernel_launch[: self.n_launched]
        return Slices.within(launches, starts, ends)


class Inputs(Struct, frozen=True):
    """When the host of one rank was getting input. No time is in both sets."""

    # In ranges of the data phase.
    data: IntervalSet
    # The longest time between each two steps in which the thread is in no range and no CUDA call.
    quiet: IntervalSet


class _LaunchPlaces(Struct, frozen=True):
    """Where the launch with a correlation ID stands in a table of launches."""

    lowest: int
    highest: int
    # The IDs that occur, ascending. None if the table has a row for each ID from lowest to highest.
    occurring: Int64 | None

    @classmethod
    def of_launches(cls, launches: pa.Table) -> "_LaunchPlaces":
        """Choose the table that fits the correlation IDs of some launches."""
        ids = launches["correlation_id"]
        bounds = pc.min_max(ids).as_py()
        lowest = bounds["min"]
        highest = bounds["max"]
        n_possible = highest - lowest + 1
        is_sparse = n_possible > _MAX_TABLE_ROWS_PER_LAUNCH * launches.num_rows
        occurring = np.unique(ids.to_numpy()) if is_sparse else None
        return cls(lowest, highest, occurring)

    @property
    def n_ids(self) -> int:
        """Number of rows of the table, and the place of every ID that it does not have."""
        if self.occurring is None:
            return self.highest - self.lowest + 1
        return int(self.occurring.size)

    def find(self, ids: Int64) -> Int64:
        """Return the place of each ID in the table, `n_ids` if the table does not have the ID."""
        is_in_table = (ids >= self.lowest) & (ids <= self.highest)
        if self.occurring is None:
            places: Int64 = ids - self.lowest
        else:
            places = np.searchsorted(self.occurring, ids)
            # IDs above all others have the place behind the last. They are not in the table.
            id_of_place = np.append(self.occurring, 0)
            is_in_table &= id_of_place[places] == ids
        if is_in_table.all():
            return places
        return np.where(is_in_table, places, self.n_ids)


def launch_times(launches: pa.Table | None, *operations: pa.Table) -> list[Int64]:
    """Return for each table the time of the launch of each row, `NEVER` for none.

    The launch of a row is the first row of `launches` with its correlation ID. `launches` are
    `canonical.LAUNCHES` or `HOST_CALLS` of the process.
    """
    if launches is None or not launches.num_rows:
        return [np.full(table.num_rows, NEVER) for table in operations]
    places = _LaunchPlaces.of_launches(launches)
    # By place. The last element is for IDs without a launch, and stays `NEVER`.
    first_launch = np.full(places.n_ids + 1, NEVER)
    for batch in launches.to_batches():
        starts = batch["start_ns"].to_numpy()
        place = places.find(batch["correlation_id"].to_numpy())
        np.minimum.at(first_launch, place, starts)
    times = []
    for table in operations:
        # An empty array, since a table may have no chunk.
        times_of_chunks = [np.empty(0, np.int64)]
        for ids in table["correlation_id"].chunks:
            # Null is `UNKNOWN` here, which has no launch.
            place = places.find(filled(ids))
            times_of_chunks.append(first_launch[place])
        times.append(np.concatenate(times_of_chunks))
    return times


def are_among(ids: Int64, wanted: Int64) -> Flags:
    """Tell for each ID whether it is among the wanted IDs.

    `np.isin` can look IDs up in a table, or sort them. The table is faster. Correlation IDs are a
    little too far apart for the limit from which numpy sorts. So the method is chosen here, by a
    higher limit.
    """
    if not wanted.size:
        return np.zeros(ids.size, np.bool_)
    lowest = int(wanted.min())
    highest = int(wanted.max())
    # The table has a byte for each possible ID.
    n_bytes = highest - lowest + 1
    n_ids = ids.size + wanted.size
    fits_in_table = n_bytes <= _MAX_TABLE_BYTES_PER_ID * n_ids
    flags: Flags = np.isin(ids, wanted, kind="table" if fits_in_table else "sort")
    return flags


def filled(column: pa.ChunkedArray, null: int = UNKNOWN) -> Int64:
    """Return a column of integers, with `null` in place of nulls. Integers stay exact."""
    without_nulls = pc.fill_null(column, null) if column.null_count else column
    values: Int64 = without_nulls.to_numpy()
    return values


def by_process(table: pa.Table | None, processes: Sequence[int]) -> list[pa.Table | None]:
    """Return what `rows_by_process` returns.

    If `table` is None, because the report does not record its content, each process has None.
    """
    if table is None:
        return [None] * len(processes)
    return [*rows_by_process(table, processes)]


def rows_by_process(table: pa.Table, processes: Sequence[int]) -> list[pa.Table]:
    """Return the rows of each process, in one pass over the table.

    `processes` are in ascending order. The result has an entry for each of them. A process without
    rows has an empty table.
    """
    process_of_row = table["process_id"].to_numpy()
    if not is_sorted(process_of_row):
        by_process_id = np.argsort(process_of_row, kind="stable")
        table = table.combine_chunks().take(by_process_id)
        process_of_row = process_of_row[by_process_id]
    firsts = np.searchsorted(process_of_row, processes, side="left")
    lasts = np.searchsorted(process_of_row, processes, side="right")
    tables = []
    for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True):
        tables.append(table.slice(first, last - first))
    return tables


def operations_of(
    kernels: KernelsOfReportTable,
    kernel_launch: Int64,
    copies: CopiesOfReportTable,
    copy_launch: Int64,
) -> ProcessOperations:
    """Bring the operations of one process into order of launch.

    Launch times are as `launch_times` returns them. Kernels are many, and mostly in order already.
    Then their columns are not copied, and `kernel_order` is None. The columns in `kernel_rows` stay
    in the order of the table in any case, since they are seldom needed.
    """
    kernel_order = None
    if not is_sorted(kernel_launch):
        kernel_order = np.argsort(kernel_launch, kind="stable")
        kernel_launch = kernel_launch[kernel_order]
    n_launched = int(np.searchsorted(kernel_launch, NEVER))
    kernel_start = _in_order(kernels["start_ns"], kernel_order)
    kernel_end = _in_order(kernels["end_ns"], kernel_order)
    is_comm = _in_order(kernels["is_comm"], kernel_order)
    kernel_rows = _seldom_needed_columns(kernels)
    copy_order = np.argsort(copy_launch, kind="stable")
    copy_start = _in_order(copies["start_ns"], copy_order)
    copy_end = _in_order(copies["end_ns"], copy_order)
    copy_launch = copy_launch[copy_order]
    copy_kind = filled(copies["copy_kind"], -1)[copy_order]
    copy_bytes = filled(copies["bytes"], 0)[copy_order]
    devices = _devices_by_use(kernels, copies)
    return ProcessOperations(
        kernel_start=kernel_start,
        kernel_end=kernel_end,
        kernel_launch=kernel_launch,
        is_comm=is_comm,
        copy_start=copy_start,
        copy_end=copy_end,
        copy_launch=copy_launch,
        copy_kind=copy_kind,
        copy_bytes=copy_bytes,
        n_launched=n_launched,
        devices=devices,
        kernel_order=kernel_order,
        kernel_rows=kernel_rows,
    )


def _in_order(column: pa.ChunkedArray, order: Int64 | None) -> NDArray[Any]:
    """Return the values of a column in some order of rows. None leaves them as they are."""
    values: NDArray[Any] = column.to_numpy()
    return values if order is None else values[order]


def _devices_by_use(kernels: KernelsOfReportTable, copies: CopiesOfReportTable) -> tuple[int, ...]:
    """Return the device with most operations first; of devices with as many the lowest ID."""
    chunks = kernels["device_id"].chunks + copies["device_id"].chunks
    device_ids = pa.chunked_array(chunks, pa.int64())
    counts = pc.value_counts(device_ids.drop_null()).to_pylist()
    counts.sort(key=itemgetter("values"))
    # This keeps the order of IDs among equal counts.
    counts.sort(key=itemgetter("counts"), reverse=True)
    return tuple(map(itemgetter("values"), counts))


def _seldom_needed_columns(kernels: pa.Table) -> pa.Table:
    """Return `ProcessOperations.kernel_rows`: some columns, in types as narrow as their values."""
    columns = kernels.select([*_NARROWED_COLUMNS, "grid", "block"])
    for place, name in enumerate(_NARROWED_COLUMNS):
        column = narrowed(columns[name])
        columns = columns.set_column(place, name, column)
    return columns
