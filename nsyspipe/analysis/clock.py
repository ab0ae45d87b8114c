"""How ranks' clocks are aligned, and how far the clock of a device is apart from its host's.

Ranks are aligned by collectives, which end on all of them at once. A device's clock is told by what cannot be: a start
before its launch, or a wait that was over too soon; a long time from launch to start alone says nothing, since queues are
deep.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc

from nsyspipe.analysis.attribution import NEVER, UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from nsyspipe.analysis.attribution import ProcessOperations
    from nsyspipe.model.types import Flags, Int64


# How far the clocks of reports are apart, told by collectives, which end on all ranks at once.


# Collectives that no rank leaves before all have arrived.
ALIGNING = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")

_ENOUGH = 3
# Makes the median of absolute deviations an estimate of the standard deviation.
_MAD_SCALE = 1.4826


@dataclass(frozen=True)
class ClockOffset:
    """The correction of one report's clock."""

    offset_ns: int  # subtracted from its times; 0 unless it exceeds the error
    # spread of the differences it rests on; None when there are fewer than three
    error_ns: int | None


def clock_offsets(
    matched: Sequence[Int64],
    ends: Int64,
    report: Int64,
    n_reports: int,
    *,
    is_one_clock: bool = False,
) -> list[ClockOffset]:
    """Return each report's offset: the median of (own end - median end over ranks), of matched collectives of `ALIGNING`.

    The error is 1.4826 times the median absolute deviation, to the nearest ns. Where one report holds all ranks, they share
    its clock: offset and error are 0. `matched` has matrices of operations, one collective per row, as `collectives.match`
    gives them; `ends` and `report` one value per operation.
    """
    if is_one_clock:
        return [ClockOffset(0, 0)] * n_reports
    differences, owner = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for rows in matched:
        own_end = ends[rows]
        middle = floor_median(np.sort(own_end, axis=1))
        differences.append((own_end - middle[:, np.newaxis]).ravel())
        owner.append(report[rows].ravel())
    difference, of_report = np.concatenate(differences), np.concatenate(owner)
    return [_offset(np.sort(difference[of_report == number])) for number in range(n_reports)]


def _offset(differences: Int64) -> ClockOffset:
    if differences.size < _ENOUGH:
        return ClockOffset(0, None)
    offset = int(floor_median(differences))
    spread = int(floor_median(np.sort(np.abs(differences - offset))))
    error = round(_MAD_SCALE * spread)
    return ClockOffset(offset if abs(offset) > error else 0, error)


def floor_median(ordered: Int64) -> Int64:
    """Return the median along the last axis of sorted values; of an even number the mean, floored."""
    size = ordered.shape[-1]
    low, high = ordered[..., (size - 1) // 2], ordered[..., size // 2]
    median: Int64 = low + (high - low) // 2
    return median


# What measuring may be wrong by, and what a launch or a return takes.
_TOLERANCE_NS, _LEAST_LATENCY_NS = 20_000, 5_000
# One bad correlation decides nothing.
_NOTHING = np.empty(0, np.int64)


@dataclass(frozen=True)
class DeviceClock:
    """The clock of one device against its host's."""

    offset_ns: int  # how much later it is, as far as it is corrected; 0 where the two may agree
    # the least and the most that the difference device - host can be; None where nothing says it
    early_ns: int | None
    late_ns: int | None

    @property
    def span_ns(self) -> int | None:
        """How far apart the two ends are: the error of figures that compare device and host; None without both."""
        if self.early_ns is None or self.late_ns is None:
            return None
        return max(self.late_ns - self.early_ns, 0)


AGREED = DeviceClock(0, None, None)


def device_clock(lags: Int64, leads: Int64) -> DeviceClock:
    """Compare two clocks by start - launch of operations (of those that one call launched the first alone) and end - return.

    The difference device - host lies in [early, late], where late is the smallest lag and early the largest lead. It is
    corrected where 0 lies outside by more than 20 us and at least three operations say so, by the nearer end and 5 us.
    Where fewer than three lie within 20 us of the end, it is the end of the third that counts.
    """
    late, third_lag = _least(lags)
    least, third_lead = _least(-leads)
    early = None if least is None else -least
    offset = 0
    if late is not None and third_lag < -_TOLERANCE_NS:
        offset = late - _LEAST_LATENCY_NS
    elif early is not None and third_lead < -_TOLERANCE_NS:
        offset = early + _LEAST_LATENCY_NS
    return DeviceClock(offset, early, late)


def _least(values: Int64) -> tuple[int | None, int]:
    """Return the smallest of some values, but for one or two far below the third, and the third; 0 for none."""
    if values.size < _ENOUGH:
        return int(values.min()) if values.size else None, 0
    third = int(np.partition(values, _ENOUGH - 1)[_ENOUGH - 1])
    return int(values[values >= third - _TOLERANCE_NS].min()), third


def device_clocks(
    operations: ProcessOperations, devices: tuple[int, ...], waits: pa.Table, calls: pa.Table | None
) -> dict[int | None, DeviceClock]:
    """Compare the clocks of a process's devices with its host's; by device, None for a process that has none or one.

    A wait that began while another thread was in a call is left out, as that may have launched something that was not
    waited for. `waits` and `calls` are `canonical.HOST_WAITS` and `canonical.HOST_CALLS` of the process.
    """
    if calls is not None and waits.num_rows:
        waits = waits.filter(_undisturbed(waits, calls))
    n_launched = operations.n_launched
    columns = operations.kernel_launch, operations.kernel_start, operations.kernel_end
    launch, start, end = (column[:n_launched] for column in columns)
    stream = operations.kernel_column("stream_id", 0, n_launched)
    if len(devices) <= 1:
        own = operations.copy_launch != NEVER
        kernels = launch, start, end, stream
        copies = operations.copy_launch[own], operations.copy_start[own], operations.copy_end[own]
        return {None: _clock_of(kernels, copies, waits, is_only=True)}
    device = operations.kernel_column("device_id", 0, n_launched)
    found: dict[int | None, DeviceClock] = {}
    for number in devices:
        own = device == number
        kernels = launch[own], start[own], end[own], stream[own]
        told = waits.filter(pc.fill_null(pc.equal(waits["device_id"], number), fill_value=False))
        found[number] = _clock_of(kernels, (_NOTHING,) * 3, told, is_only=False)
    return found


def _undisturbed(waits: pa.Table, calls: pa.Table) -> Flags:
    """Tell which waits began while no other thread was in a call."""
    began, thread = waits["start_ns"].to_numpy(), waits["thread_id"].to_numpy()
    starts, ends, of_call = _calls_around(np.sort(began), calls)
    found = np.ones(began.size, np.bool_)
    for own in np.unique(thread):  # a few
        others = np.flatnonzero(of_call != own)
        others = others[np.argsort(starts[others], kind="stable")]
        if not others.size:
            continue
        mine = thread == own
        before = np.searchsorted(starts[others], began[mine], side="left")
        reached = np.concatenate(([UNKNOWN], np.maximum.accumulate(ends[others])))
        found[mine] = reached[before] <= began[mine]
    return found


def _calls_around(times: Int64, calls: pa.Table) -> tuple[Int64, Int64, Int64]:
    """Return start, end and thread of the calls that were running at any of some times, in ascending order."""
    found = [(_NOTHING,) * 3]
    for batch in calls.select(["start_ns", "end_ns", "thread_id"]).to_batches():
        start, end, thread = (column.to_numpy() for column in batch.columns)
        after = np.searchsorted(times, start, side="right")
        around = np.flatnonzero(np.append(times, NEVER)[after] < end)
        found.append((start[around], end[around], thread[around]))
    starts, ends, threads = (np.concatenate(column) for column in zip(*found, strict=True))
    return starts, ends, threads


def _clock_of(
    kernels: tuple[Int64, Int64, Int64, Int64],
    copies: tuple[Int64, Int64, Int64],
    waits: pa.Table,
    *,
    is_only: bool,
) -> DeviceClock:
    """Compare one device's clock by its operations in order of launch, and the calls that waited for it."""
    launch, start, end, stream = kernels
    lags = np.concatenate((_first_lags(launch, start), copies[1] - copies[0]))
    leads = _leads(launch, end, stream, copies, waits) if waits.num_rows else _NOTHING
    own = pc.is_valid(waits["copy_end_ns"])
    blocking = waits.filter(own)
    if is_only or blocking.num_rows:
        ends, returned = (blocking[name].to_numpy() for name in ("copy_end_ns", "end_ns"))
        leads = np.concatenate((leads, ends - returned))
    return device_clock(lags, leads)


def _first_lags(launch: Int64, start: Int64) -> Int64:
    """Return start - launch of the first operation of each launch, as a graph makes many."""
    if not launch.size:
        return launch
    if (launch[1:] > launch[:-1]).all():
        return start - launch
    begins = np.flatnonzero(np.diff(launch, prepend=launch[0] - 1))
    first: Int64 = np.minimum.reduceat(start, begins)
    return first - launch[begins]


def _leads(
    launch: Int64,
    end: Int64,
    stream: Int64,
    copies: tuple[Int64, Int64, Int64],
    waits: pa.Table,
) -> Int64:
    """Return end - return for the operations that a call waited for, each with the first such call."""
    rows = waits.filter(pc.is_null(waits["copy_end_ns"])).sort_by("start_ns")
    if not rows.num_rows:
        return _NOTHING
    began, returned = rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()
    is_whole = rows["is_whole"].to_numpy()
    told = pc.fill_null(rows["stream_id"], UNKNOWN).to_numpy()
    # Of copies the stream is not known: they are one more.
    launch, end = np.concatenate((launch, copies[0])), np.concatenate((end, copies[2]))
    stream = np.concatenate((stream, np.full(copies[0].size, UNKNOWN + 1)))
    most = np.full(began.size, NEVER)
    by_stream = [np.flatnonzero(stream == one) for one in np.unique(stream)]
    for own in by_stream:
        reached = np.concatenate(([NEVER], np.maximum.accumulate(end[own])))
        before = np.searchsorted(launch[own], began, side="left")
        lead = np.where(before > 0, reached[before] - returned, NEVER)
        most = np.minimum(most, lead)
    most[is_whole] = NEVER  # it waited for all of them, not for one that nobody knows
    found = [_first_waits((launch, end), (began, returned, most), is_whole | (told == UNKNOWN))]
    for number in np.unique(told[told != UNKNOWN]):
        own = np.flatnonzero(stream == number)
        chosen = (told == number) & ~is_whole
        at_most = np.full(began.size, NEVER)
        found.append(_first_waits((launch[own], end[own]), (began, returned, at_most), chosen))
    return np.concatenate(found)


def _first_waits(operations: tuple[Int64, Int64], waits: tuple[Int64, Int64, Int64], chosen: Flags) -> Int64:
    """Return each operation's end - return of the first chosen call after its launch, at most what that call says."""
    launch, end = operations
    began, returned, most = (column[chosen] for column in waits)
    if not began.size:
        return _NOTHING
    place = np.searchsorted(began, launch, side="right")
    known = place < began.size
    place = place[known]
    leads: Int64 = np.minimum(end[known] - returned[place], most[place])
    return leads
