"""Aligns the clocks of ranks, and compares the clock of a device with that of its host."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from nsyspipe.analysis.attribution import NEVER, UNKNOWN, ProcessOperations
from nsyspipe.analysis.intervals import BLOCK, counts_up_to, least_of, run_starts, union
from nsyspipe.model.table import Flags, Float64, Int32, Int64
from nsyspipe.model.typed_tables import (
    HostWaitsOfReportTable,
)

# No rank leaves these collectives before all have arrived.
ALIGNING = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
)
# With fewer differences one wrong correlation could decide.
_MIN_DIFFERENCES = 3
# A fit ends when the square of its gradient is this part of the first one: a part of 10^12.
_MAX_REMAINING_GRADIENT = 1e-24
# Makes the median of absolute deviations an estimate of the standard deviation.
_MAD_SCALE = 1.4826
# What a measurement of a time may be wrong by.
_TOLERANCE_NS = 20_000
# What a launch or the return of a call takes at least.
_MIN_LATENCY_NS = 5_000
_NO_TIMES = np.empty(0, np.int64)
# The stream of copies, for which no stream is recorded.
_STREAM_OF_COPIES = UNKNOWN + 1


class ClockOffset(Struct, frozen=True):
    """The correction of the clock of one report."""

    # Subtracted from the times of the report. 0 unless it exceeds the error.
    offset_ns: int
    # Spread of the differences behind the offset. None if there are fewer than three.
    error_ns: int | None
    # Collectives compare the clocks of reports of one part. Clocks of different parts were never
    # compared.
    part: int = 0


class _Ties(Struct, frozen=True):
    """How far the clock of each report is from the middle of a meeting.

    A meeting is a set of reports that take part in the same collectives. A tie is a row: one report
    in one meeting.
    """

    meeting: Int64
    report: Int64
    median_ns: Int64
    spread_ns: Int64


class _Tie(NamedTuple):
    """A row of `_Ties`."""

    meeting: int
    report: int
    median_ns: int
    spread_ns: int


def clock_offsets(
    matched: Sequence[Int64],
    ends: Int64,
    report: Int64,
    n_reports: int,
    *,
    is_one_clock: bool = False,
) -> list[ClockOffset]:
    """Return the offset and the error of each report, by the formulas of `schema.RANKS`.

    `matched` are collectives of `ALIGNING`, as `collectives.match_collectives` returns them. `ends`
    and `report` have a value per operation. With `is_one_clock`, all reports have the same clock,
    so that all offsets and errors are 0.

    A collective compares the clocks of the reports that take part. Communicators may join different
    sets of reports, for example tensor groups inside each node and data groups across nodes. So
    each set of reports has medians of its own. The offsets fit the medians of all sets best, by
    least squares. They are relative to the median report.

    A report has a spread and a misfit in each of its sets. The misfit is by how much the fitted
    offset misses the median of the set. The error of a report is its largest spread or misfit. An
    offset that is not larger than its error is 0.
    """
    if is_one_clock:
        return [ClockOffset(0, 0)] * n_reports
    not_compared = ClockOffset(0, None)
    corrections = [not_compared] * n_reports
    ties = _tie_reports(matched, ends, report)
    if not ties.report.size:
        return corrections
    parts = _connect_reports(ties, n_reports)
    offsets, misfits = _choose_offsets(ties, parts, n_reports)
    error_of_tie = np.maximum(ties.spread_ns, misfits)
    errors = np.zeros(n_reports, np.int64)
    np.maximum.at(errors, ties.report, error_of_tie)
    for number in np.unique(ties.report).tolist():
        offset_ns = int(offsets[number])
        error_ns = int(errors[number])
        if abs(offset_ns) <= error_ns:
            offset_ns = 0
        corrections[number] = ClockOffset(offset_ns, error_ns, int(parts[number]))
    return corrections


def _tie_reports(matched: Sequence[Int64], ends: Int64, report: Int64) -> _Ties:
    """Return a tie for each meeting and each report in the meeting."""
    ties: list[_Tie] = []
    for number, meeting in enumerate(_find_meetings(matched, ends, report)):
        ties += _tie_meeting(number, meeting)
    # Without ties, the matrix still has a column per field.
    matrix = np.array(ties, np.int64).reshape(len(ties), len(_Tie._fields))
    return _Ties(*matrix.T)


class _Meeting(Struct, frozen=True):
    """The ends of operations, of all collectives of one set of reports."""

    difference_ns: Int64  # from the median end of the collective to the end of the operation
    report: Int64  # of each operation

    @classmethod
    def joined(cls, parts: Sequence["_Meeting"]) -> "_Meeting":
        """Return all collectives of one set of reports."""
        differences_ns = [part.difference_ns for part in parts]
        reports = [part.report for part in parts]
        return cls(np.concatenate(differences_ns), np.concatenate(reports))


def _find_meetings(matched: Sequence[Int64], ends: Int64, report: Int64) -> list[_Meeting]:
    """Return the meeting of each set of reports that meet in collectives."""
    parts_of_set: dict[tuple[int, ...], list[_Meeting]] = {}
    # A matrix has a row per collective, and a column per rank that takes part.
    for operations in matched:
        if not operations.size:
            continue
        reports = report[operations]
        end_ns = ends[operations]
        median_end = floor_median(np.sort(end_ns, axis=1))
        difference_ns = end_ns - median_end[:, np.newaxis]
        distinct_rows, number_of_row = _number_rows(reports)
        collectives_of_rows = _places_of_numbers(number_of_row)
        for row, collectives in zip(distinct_rows, collectives_of_rows, strict=True):
            reports_that_meet = tuple(np.unique(row).tolist())
            part = _Meeting(difference_ns[collectives].ravel(), reports[collectives].ravel())
            parts_of_set.setdefault(reports_that_meet, []).append(part)
    return [_Meeting.joined(parts) for parts in parts_of_set.values()]


def _number_rows(matrix: Int64) -> tuple[Int64, Int64]:
    """Return the distinct rows of a matrix, and for each row the index of its distinct row."""
    first_row = matrix[:1]
    if (matrix == first_row).all():
        # This is usual, and needs no sort.
        return first_row, np.zeros(len(matrix), np.int64)
    distinct_rows, number_of_row = np.unique(matrix, axis=0, return_inverse=True)
    return distinct_rows, number_of_row.ravel()


def _places_of_numbers(numbers: Int64) -> list[Int64]:
    """Return for each different number the places where it occurs, the lowest number first."""
    places = np.argsort(numbers, kind="stable")
    first = run_starts(numbers[places])
    return np.split(places, first[1:])


def _tie_meeting(number: int, meeting: _Meeting) -> Iterator[_Tie]:
    """Yield a tie for each report that has enough differences. `number` is that of the meeting."""
    by_report = np.lexsort((meeting.difference_ns, meeting.report))
    first_of_report = run_starts(meeting.report[by_report])
    for rows in np.split(by_report, first_of_report[1:]):
        # In ascending order.
        differences_ns = meeting.difference_ns[rows]
        if differences_ns.size < _MIN_DIFFERENCES:
            continue
        report = int(meeting.report[rows[0]])
        median_ns = int(floor_median(differences_ns))
        deviations_ns = np.abs(differences_ns - median_ns)
        deviations_ns.sort()
        median_deviation_ns = int(floor_median(deviations_ns))
        spread_ns = round(_MAD_SCALE * median_deviation_ns)
        yield _Tie(number, report, median_ns, spread_ns)


def _connect_reports(ties: _Ties, n_reports: int) -> Int64:
    """Return the part of each report. Reports that meetings connect have the same part.

    The connection may go over other reports. A part is named by its lowest report.
    """
    parts = np.arange(n_reports)
    n_meetings = int(ties.meeting.max()) + 1
    # Each report takes the lowest part of its meetings, until none changes.
    while True:
        before = parts.copy()
        lowest_of_meeting = least_of(ties.meeting, parts[ties.report], n_meetings)
        np.minimum.at(parts, ties.report, lowest_of_meeting[ties.meeting])
        if (parts == before).all():
            return parts


def _choose_offsets(ties: _Ties, parts: Int64, n_reports: int) -> tuple[Int64, Int64]:
    """Return the offset of each report, and the misfit of each tie, ns.

    Offsets are relative to the median report of each part.
    """
    offsets = np.zeros(n_reports, np.int64)
    n_meetings = np.unique(ties.meeting).size
    if n_meetings == 1:
        # Each report has one tie, which always fits.
        offsets[ties.report] = ties.median_ns
        return offsets, np.zeros_like(ties.median_ns)
    fitted, misfits = _fit_offsets(ties, n_reports)
    part_of_tie = parts[ties.report]
    for part in np.unique(part_of_tie).tolist():
        is_of_part = part_of_tie == part
        reports = np.unique(ties.report[is_of_part])
        fitted_of_part = fitted[reports]
        offsets[reports] = fitted_of_part - floor_median(np.sort(fitted_of_part))
    return offsets, misfits


def _fit_offsets(ties: _Ties, n_reports: int) -> tuple[Int64, Int64]:
    """Return offsets that fit the medians of the ties by least squares, and the misfit of each tie.

    The unknowns are the offset of each report, and behind them the middle of each meeting. The
    median of a tie measures offset - middle. The misfit is the median less the fitted difference.

    The method is conjugate gradients, which minimizes the sum of the squares of the misfits. A step
    takes as long as there are ties, and few steps are needed.
    """
    middle = n_reports + ties.meeting
    unknowns_of_ties = np.concatenate((ties.report, middle))
    n_unknowns = int(unknowns_of_ties.max()) + 1

    def descent_of(misfits: Float64) -> Float64:
        """Return how much each unknown reduces the sum of squares: the negative gradient."""
        reductions = np.concatenate((misfits, -misfits))
        descent = np.bincount(unknowns_of_ties, reductions, n_unknowns)
        return descent.astype(np.float64)

    # All unknowns begin with 0, so at first the misfits are the medians.
    fit = np.zeros(n_unknowns)
    misfits = ties.median_ns.astype(np.float64)
    descent = descent_of(misfits)
    direction = descent
    steepness = descent @ descent
    steepness_at_end = _MAX_REMAINING_GRADIENT * steepness
    # In exact arithmetic, there are no more steps than unknowns.
    for _ in range(n_unknowns):
        if steepness <= steepness_at_end:
            break
        change_of_ties = direction[ties.report] - direction[middle]
        # The length of the step at which the sum of squares is least in this direction.
        length = steepness / (change_of_ties @ change_of_ties)
        fit = fit + length * direction
        misfits = misfits - length * change_of_ties
        descent = descent_of(misfits)
        next_steepness = descent @ descent
        share_of_direction = next_steepness / steepness
        direction = descent + share_of_direction * direction
        steepness = next_steepness
    return _rounded(fit[:n_reports]), _rounded(np.abs(misfits))


def _rounded(values: Float64) -> Int64:
    return np.rint(values).astype(np.int64)


def floor_median(ordered: Int64) -> Int64:
    """Return the median along the last axis of sorted values; the mean of two is floored."""
    n_values = ordered.shape[-1]
    low = ordered[..., (n_values - 1) // 2]
    high = ordered[..., n_values // 2]
    half_distance = (high - low) // 2
    return low + half_distance


class DeviceClock(Struct, frozen=True):
    """The clock of one device against that of its host."""

    # How much later the clock of the device is, as far as it is corrected. 0 if both may agree.
    offset_ns: int
    # The least and the most that the difference device - host can be. None if no operation says it.
    early_ns: int | None
    late_ns: int | None

    @property
    def span_ns(self) -> int | None:
        """How far apart both ends are: the error of metrics that compare device and host.

        None if an end is not known.
        """
        if self.early_ns is None or self.late_ns is None:
            return None
        return max(self.late_ns - self.early_ns, 0)


def device_clock(lags: Int64, leads: Int64) -> DeviceClock:
    """Compare the clocks of a device and its host by the times of operations, ns.

    A lag is start - launch of an operation. If one call launched several operations, only the first
    counts. A lead is end of an operation - return of the call that waited for the operation. An
    operation starts after its launch, and ends before the return. So the difference device - host
    is at most the smallest lag, which is the late end. It is at least the largest lead, the early
    end.

    The clock is corrected if at least three lags are below -20 us, or if at least three leads are
    above 20 us. Then both clocks cannot agree. An agreed end leaves out one or two operations that
    are more than 20 us beyond the third. The correction is an agreed end, and 5 us beyond the end,
    since a launch and a return take at least that long.

    The ends of the result are the smallest lag and the largest lead. If one of them excludes the
    correction by more than 20 us, the agreed end stands in.
    """
    agreed_lag = _find_agreed_least(lags)
    # The largest lead is the smallest negative lead.
    negative_leads = -leads
    agreed_negative_lead = _find_agreed_least(negative_leads)
    offset_ns = 0
    if agreed_lag is not None and agreed_lag.third < -_TOLERANCE_NS:
        offset_ns = agreed_lag.least - _MIN_LATENCY_NS
    elif agreed_negative_lead is not None and agreed_negative_lead.third < -_TOLERANCE_NS:
        agreed_early = -agreed_negative_lead.least
        offset_ns = agreed_early + _MIN_LATENCY_NS
    late_ns = _end_by_values(lags, agreed_lag, offset_ns)
    negative_early_ns = _end_by_values(negative_leads, agreed_negative_lead, -offset_ns)
    early_ns = None if negative_early_ns is None else -negative_early_ns
    return DeviceClock(offset_ns, early_ns, late_ns)


class _Agreed(NamedTuple):
    """The smallest of some values, as far as several values agree."""

    # Without values that are more than 20 us below the third smallest.
    least: int
    # The third smallest value. 0 with fewer values, which correct no clock.
    third: int


def _find_agreed_least(values: Int64) -> _Agreed | None:
    """Return the agreed smallest value; None without values."""
    if not values.size:
        return None
    if values.size < _MIN_DIFFERENCES:
        return _Agreed(int(values.min()), third=0)
    place_of_third = _MIN_DIFFERENCES - 1
    partly_sorted = np.partition(values, place_of_third)
    third = int(partly_sorted[place_of_third])
    is_near_third = values >= third - _TOLERANCE_NS
    return _Agreed(int(values[is_near_third].min()), third)


def _end_by_values(values: Int64, agreed: _Agreed | None, offset_ns: int) -> int | None:
    """Return the smallest value; the agreed one if the smallest excludes the offset."""
    if agreed is None:
        return None
    least = int(values.min())
    excludes_offset = least < offset_ns - _TOLERANCE_NS
    return agreed.least if excludes_offset else least


class _Launched(Struct, frozen=True):
    """The launched kernels or copies of a device, in order of launch."""

    launch: Int64
    start: Int64
    end: Int64
    stream: Int64


def clock_of_device(
    operations: ProcessOperations,
    waits: HostWaitsOfReportTable,
    calls: pa.Table | None,
    device_id: int | None = None,
) -> DeviceClock:
    """Compare the clock of one device of a process with its host's, by its operations.

    `waits` and `calls` are `canonical.HOST_WAITS` and `canonical.HOST_CALLS` of the process. If the
    process used several devices, pass `device_id`: only the waits for that device count.
    """
    if calls is not None and waits.num_rows:
        is_undisturbed = _are_undisturbed(waits, calls)
        waits = waits.filter(is_undisturbed)
    if device_id is not None:
        is_for_device = pc.equal(waits["device_id"], device_id)
        waits = waits.filter(is_for_device)
    kernels = _launched_kernels(operations)
    copies = _launched_copies(operations)
    return _compare_clocks(kernels, copies, waits)


def _launched_kernels(operations: ProcessOperations) -> _Launched:
    n_launched = operations.n_launched
    launch = operations.kernel_launch[:n_launched]
    start = operations.kernel_start[:n_launched]
    end = operations.kernel_end[:n_launched]
    stream = operations.kernel_column("stream_id", 0, n_launched)
    return _Launched(launch, start, end, stream)


def _launched_copies(operations: ProcessOperations) -> _Launched:
    is_launched = operations.copy_launch != NEVER
    launch = operations.copy_launch[is_launched]
    start = operations.copy_start[is_launched]
    end = operations.copy_end[is_launched]
    stream = np.broadcast_to(_STREAM_OF_COPIES, launch.size)
    return _Launched(launch, start, end, stream)


class _RunningCalls(Struct, frozen=True):
    """Calls that were running when a wait began."""

    start: Int64
    end: Int64
    thread: Int64


def _are_undisturbed(waits: HostWaitsOfReportTable, calls: pa.Table) -> Flags:
    """Tell which waits began while no other thread was in a call.

    A call of another thread may launch operations that the wait does not wait for.
    """
    began = waits["start_ns"].to_numpy()
    thread = waits["thread_id"].to_numpy()
    running = _find_running_calls(calls, np.sort(began))
    is_undisturbed = np.ones(began.size, np.bool_)
    # There are few threads that wait.
    for thread_id in np.unique(thread):
        is_of_other_thread = running.thread != thread_id
        is_of_thread = thread == thread_id
        # A call that begins with the wait does not disturb the wait. So each call counts from 1 ns
        # behind its start.
        starts = running.start[is_of_other_thread] + 1
        ends = running.end[is_of_other_thread]
        is_disturbed = union(starts, ends).contains(began[is_of_thread])
        is_undisturbed[is_of_thread] = ~is_disturbed
    return is_undisturbed


def _find_running_calls(calls: pa.Table, times: Int64) -> _RunningCalls:
    """Return the calls that run at any of some sorted times.

    A call does not count as running at the time at which it begins. So it lasts 2 ns or more.
    """
    starts = [_NO_TIMES]
    ends = [_NO_TIMES]
    threads = [_NO_TIMES]
    time_at_place = np.append(times, NEVER)
    columns = calls.select(["start_ns", "end_ns", "thread_id"])
    for batch in columns.to_batches():
        start, end, thread = (column.to_numpy() for column in batch.columns)
        # The first time behind the start of each call.
        next_time = time_at_place[counts_up_to(times, start)]
        running = np.flatnonzero(next_time < end)
        starts.append(start[running])
        ends.append(end[running])
        threads.append(thread[running])
    return _RunningCalls(np.concatenate(starts), np.concatenate(ends), np.concatenate(threads))


def _compare_clocks(
    kernels: _Launched, copies: _Launched, waits: HostWaitsOfReportTable
) -> DeviceClock:
    """Collect the lags and leads of all operations, and compare the clocks by them."""
    # A launch may make many kernels, as a graph does. Only the first of them starts at once.
    first_of_launch = run_starts(kernels.launch)
    kernel_lags = np.minimum.reduceat(kernels.start, first_of_launch)
    kernel_lags -= kernels.launch[first_of_launch]
    copy_lags = copies.start - copies.launch
    lags = np.append(kernel_lags, copy_lags)
    leads_of_waits = _find_largest_leads(kernels, copies, waits)
    # A blocking copy waits for itself.
    is_copy = pc.is_valid(waits["copy_end_ns"])
    blocking_copies = waits.filter(is_copy)
    copy_ends = blocking_copies["copy_end_ns"].to_numpy()
    returns = blocking_copies["end_ns"].to_numpy()
    leads_of_copies = copy_ends - returns
    leads = np.append(leads_of_waits, leads_of_copies)
    return device_clock(lags, leads)


class _WaitingCalls(Struct, frozen=True):
    """Calls that wait for a device, a stream or an event, in order of start."""

    began: Int64
    returned: Int64
    is_whole: Flags  # whether the call waits for all operations of the device
    stream: Int64  # that the call waits for; `UNKNOWN` if not known

    @classmethod
    def of_waits(cls, waits: HostWaitsOfReportTable) -> "_WaitingCalls":
        """Return the waits that are not copies."""
        is_no_copy = pc.is_null(waits["copy_end_ns"])
        rows = waits.filter(is_no_copy)
        rows = rows.sort_by("start_ns")
        began = rows["start_ns"].to_numpy()
        returned = rows["end_ns"].to_numpy()
        is_whole = rows["is_whole"].to_numpy()
        stream = pc.fill_null(rows["stream_id"], UNKNOWN).to_numpy()
        return cls(began, returned, is_whole, stream)


class _Awaited(Struct, frozen=True):
    """Kernels or copies that calls may have waited for."""

    stream: Int64
    end: Int64
    next_call: Int32  # the first waiting call that begins after the launch


def _find_largest_leads(kernels: _Launched, copies: _Launched, waits: pa.Table) -> Int64:
    """Return the three largest leads of operations that a call waited for, ns.

    A lead is end of an operation - return of the first call that waited for the operation. Other
    leads change nothing in `device_clock`. If fewer operations were waited for, return all leads.
    """
    calls = _WaitingCalls.of_waits(waits)
    n_calls = calls.began.size
    if not n_calls:
        return _NO_TIMES
    awaited = [
        _with_next_calls(kernels, calls.began),
        _with_next_calls(copies, calls.began),
    ]
    max_lead = _limit_leads(awaited, calls)
    largest_leads = _NO_TIMES
    for stream, is_of_group in _groups_of_calls(calls):
        next_of_group = _next_of_group(is_of_group)
        for end, next_call in _of_stream(awaited, stream):
            first_call = next_of_group[next_call]
            is_awaited = first_call < n_calls
            waiting_call = first_call[is_awaited]
            exact_leads = end[is_awaited] - calls.returned[waiting_call]
            leads = np.minimum(exact_leads, max_lead[waiting_call])
            largest_leads = _largest_of(np.append(largest_leads, leads))
    return largest_leads


def _largest_of(leads: Int64) -> Int64:
    """Return the three largest leads in any order; all leads if there are no more."""
    if leads.size <= _MIN_DIFFERENCES:
        return leads
    partly_sorted = np.partition(leads, -_MIN_DIFFERENCES)
    return partly_sorted[-_MIN_DIFFERENCES:]


def _groups_of_calls(calls: _WaitingCalls) -> Iterator[tuple[int | None, Flags]]:
    """Yield each stream, and which calls wait for that stream alone.

    The first group has None in place of a stream. Its calls wait for all streams, or for a stream
    that is not known.
    """
    is_known = calls.stream != UNKNOWN
    yield None, calls.is_whole | ~is_known
    for stream in np.unique(calls.stream[is_known]).tolist():
        waits_for_stream = calls.stream == stream
        yield stream, waits_for_stream & ~calls.is_whole


def _with_next_calls(launched: _Launched, began: Int64) -> _Awaited:
    """Return operations with the first call behind their launch; `began` are those of all calls."""
    n_begun = counts_up_to(began, launched.launch)
    next_call = n_begun.astype(np.int32)
    return _Awaited(launched.stream, launched.end, next_call)


def _next_of_group(is_of_group: Flags) -> Int64:
    """Return for each call the first call of a group from that call on.

    Without such a call, the result is the number of calls. The result has one more element than
    there are calls, for operations that no call follows. This element is the number of calls, too.
    """
    n_calls = is_of_group.size
    calls_of_group = np.append(np.flatnonzero(is_of_group), n_calls)
    all_calls = np.arange(n_calls + 1)
    places = np.searchsorted(calls_of_group, all_calls)
    return calls_of_group[places]


def _limit_leads(awaited: Sequence[_Awaited], calls: _WaitingCalls) -> Int64:
    """Return the largest certain lead of each call whose stream is not known.

    Such a call waited for one of the streams. For each stream, take the lead of its last operation
    before the call. The call waited for at least one of these operations, so only the smallest of
    the leads is certain. The leads of all other calls have no limit, which is `NEVER`.
    """
    n_calls = calls.began.size
    least_lead = np.full(n_calls, NEVER)
    streams: set[int] = set()
    for operations in awaited:
        streams.update(pc.unique(pa.array(operations.stream)).to_pylist())
    for stream in streams:
        # The largest end of the operations between each call and the call before. The last element
        # is for operations that no call follows.
        last_end_before_call = np.full(n_calls + 1, -NEVER)
        for end, next_call in _of_stream(awaited, stream):
            np.maximum.at(last_end_before_call, next_call, end)
        last_end_so_far = np.maximum.accumulate(last_end_before_call)[:-1]
        has_operations = last_end_so_far != -NEVER
        lead = np.where(has_operations, last_end_so_far - calls.returned, NEVER)
        least_lead = np.minimum(least_lead, lead)
    is_stream_known = calls.stream != UNKNOWN
    has_no_limit = calls.is_whole | is_stream_known
    return np.where(has_no_limit, NEVER, least_lead)


def _of_stream(awaited: Sequence[_Awaited], stream: int | None) -> Iterator[tuple[Int64, Int32]]:
    """Yield ends and next calls of the operations of a stream. With None, yield those of all.

    A few operations are yielded at a time, so that temporary arrays stay small.
    """
    for operations in awaited:
        for first in range(0, operations.stream.size, BLOCK):
            rows = slice(first, first + BLOCK)
            ends = operations.end[rows]
            next_calls = operations.next_call[rows]
            if stream is not None:
                is_chosen = operations.stream[rows] == stream
                ends = ends[is_chosen]
                next_calls = next_calls[is_chosen]
            yield ends, next_calls
