"""The device operations of one process as columns, the launch that each came from, and the host ranges around it."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from nsyspipe.analysis.intervals import IntervalSet, Slices, is_sorted
from nsyspipe.model.canonical import UNIFIED_KINDS
from nsyspipe.model.table import INT, Flags, Int64, narrowed

NEVER = np.iinfo(np.int64).max  # the launch time of an operation without a launch: after all others
UNKNOWN = np.iinfo(
    np.int64
).min  # null in `ProcessOperations.kernel_column`; no id and no packed shape is that low

_NARROW = ("device_id", "stream_id", "name_id")
# Correlation ids are looked up in a table by id, by their place where that table would be so many
# times longer than the rows.
_SPARSE = 8
# Of ids that are looked for, the longest table, in bytes for each row that is looked through.
_MOST_TABLE_BYTES_PER_ROW = 16


class ProcessOperations(Struct, frozen=True):
    """The device operations of one process, as numpy columns; kernels and copies each in order of launch."""

    # compute and comm operations; those without a launch come last, with `NEVER`
    kernel_start: Int64
    kernel_end: Int64
    kernel_launch: Int64
    is_comm: Flags
    # memcpys and memsets; an unknown kind is -1, unknown bytes are 0
    copy_start: Int64
    copy_end: Int64
    copy_launch: Int64
    copy_kind: Int64
    copy_bytes: Int64
    n_launched: int  # kernels with a launch
    devices: tuple[
        int, ...
    ]  # by number of operations, the device with most first (tie: the lowest)
    kernel_order: (
        Int64 | None
    )  # row of each kernel among the process's; None when they stand in order of launch
    kernel_rows: (
        pa.Table
    )  # columns of `canonical.KERNELS` that few ask for, in order of row: see `kernel_column`

    def kernel_column(self, name: str, first: int = 0, last: int | None = None) -> Int64:
        """Return device_id, stream_id, name_id, grid or block of some kernels; `UNKNOWN` for null."""
        column = self.kernel_rows[name]
        if self.kernel_order is None:
            column = column.slice(first, None if last is None else last - first)
        values = filled(column.cast(INT))
        return values if self.kernel_order is None else values[self.kernel_order[first:last]]

    @property
    def n_without_launch(self) -> int:
        """Operations of any kind without the launch that they must have had: unified memory moves without any."""
        n_copies = int(np.count_nonzero((self.copy_launch == NEVER) & ~self.is_unified))
        return self.kernel_start.size - self.n_launched + n_copies

    @property
    def n_launchable(self) -> int:
        """Operations of any kind that something launched, recorded or not."""
        return self.kernel_start.size + int(np.count_nonzero(~self.is_unified))

    @property
    def is_unified(self) -> Flags:
        """Copies of unified memory, which nothing launches."""
        return np.isin(self.copy_kind, UNIFIED_KINDS)

    @property
    def span(self) -> tuple[int, int]:
        """First start and last end of any operation, report time."""
        starts = [int(a.min()) for a in (self.kernel_start, self.copy_start) if a.size]
        return min(starts), max(int(a.max()) for a in (self.kernel_end, self.copy_end) if a.size)

    def kernels_launched_in(self, starts: Int64, ends: Int64) -> Slices:
        """Return, for each host range, the slice of kernels that it launched."""
        return Slices.within(self.kernel_launch[: self.n_launched], starts, ends)


class Inputs(Struct, frozen=True):
    """When the host of one rank was getting input; no time is in both."""

    data: IntervalSet  # in ranges of the data phase
    # the longest stretch between each two steps in which their thread is in no range and no CUDA
    # call
    quiet: IntervalSet


def launch_times(launches: pa.Table | None, *operations: pa.Table) -> list[Int64]:
    """Return the launch of each row of some tables: the first `canonical.LAUNCHES` (or `HOST_CALLS`) of its process and id, or `NEVER`."""
    if launches is None or not launches.num_rows:
        return [np.full(table.num_rows, NEVER) for table in operations]
    lowest, highest = (bound.as_py() for bound in pc.min_max(launches["correlation_id"]).values())
    n_ids = highest - lowest + 1
    known = None
    if n_ids > _SPARSE * launches.num_rows:
        known = np.unique(launches["correlation_id"].to_numpy())
        n_ids = known.size

    def places(ids: Int64) -> Int64:
        inside = (ids >= lowest) & (ids <= highest)
        at: Int64 = ids - lowest if known is None else np.searchsorted(known, ids)
        if known is not None:
            inside &= np.append(known, 0)[at] == ids
        return at if inside.all() else np.where(inside, at, n_ids)

    first = np.full(n_ids + 1, NEVER)  # the last place is that of no call
    for batch in launches.to_batches():
        np.minimum.at(
            first, places(batch["correlation_id"].to_numpy()), batch["start_ns"].to_numpy()
        )
    chunks = [table["correlation_id"].chunks for table in operations]
    return [
        np.concatenate([first[:0], *(first[places(filled(ids))] for ids in chunk)])
        for chunk in chunks
    ]


def are_among(ids: Int64, wanted: Int64) -> Flags:
    """Tell which ids are among the wanted ones.

    numpy's own limit, from which on it sorts instead of looking into a table, is just below what
    correlation ids need.
    """
    if not wanted.size:
        return np.zeros(ids.size, np.bool_)
    n_bytes = int(wanted.max()) - int(wanted.min()) + 1
    fits_in_table = n_bytes <= _MOST_TABLE_BYTES_PER_ROW * (ids.size + wanted.size)
    flags: Flags = np.isin(ids, wanted, kind="table" if fits_in_table else "sort")
    return flags


def filled(column: pa.ChunkedArray, null: int = UNKNOWN) -> Int64:
    """Return a column of integers, with a number in the place of null (never through float)."""
    values: Int64 = (pc.fill_null(column, null) if column.null_count else column).to_numpy()
    return values


def by_process(table: pa.Table | None, processes: Sequence[int]) -> list[pa.Table]:
    """Return the rows of each of some processes, in their ascending order: one pass over the table for all of them; None of None."""
    if table is None:
        return [None] * len(processes)
    owner = table["process_id"].to_numpy()
    if not is_sorted(owner):
        order = np.argsort(owner, kind="stable")
        table = table.combine_chunks().take(pa.array(order))
        owner = owner[order]
    edges = (np.searchsorted(owner, processes, side=side).tolist() for side in ("left", "right"))
    return [table.slice(first, last - first) for first, last in zip(*edges, strict=True)]


def operations_of(
    kernels: pa.Table, kernel_launch: Int64, copies: pa.Table, copy_launch: Int64
) -> ProcessOperations:
    """Bring the operations of one process into order of launch; launch times as `launch_times` gives them."""
    chunks = kernels["device_id"].chunks + copies["device_id"].chunks
    devices = pc.value_counts(pa.chunked_array(chunks, pa.int64()).drop_null()).to_pylist()
    rare = kernels.select([*_NARROW, "grid", "block"])
    for at, name in enumerate(_NARROW):
        rare = rare.set_column(at, name, narrowed(rare[name]))
    order = None if is_sorted(kernel_launch) else np.argsort(kernel_launch, kind="stable")
    columns = [kernels[name].to_numpy() for name in ("start_ns", "end_ns", "is_comm")]
    start, end, is_comm, launch = (
        values if order is None else values[order] for values in (*columns, kernel_launch)
    )
    copy_order = np.argsort(copy_launch, kind="stable")
    return ProcessOperations(
        kernel_start=start,
        kernel_end=end,
        kernel_launch=launch,
        is_comm=is_comm,
        copy_start=copies["start_ns"].to_numpy()[copy_order],
        copy_end=copies["end_ns"].to_numpy()[copy_order],
        copy_launch=copy_launch[copy_order],
        copy_kind=filled(copies["copy_kind"], -1)[copy_order],
        copy_bytes=filled(copies["bytes"], 0)[copy_order],
        n_launched=int(np.searchsorted(launch, NEVER)),
        devices=tuple(
            device["values"]
            for device in sorted(devices, key=lambda one: (-one["counts"], one["values"]))
        ),
        kernel_order=order,
        kernel_rows=rare,
    )
