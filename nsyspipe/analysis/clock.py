"""How ranks' clocks are aligned, and how far the clock of a device is apart from its host's."""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from nsyspipe.analysis.attribution import NEVER, UNKNOWN, ProcessOperations
from nsyspipe.analysis.intervals import BLOCK, counts_up_to, least_of, run_starts, union
from nsyspipe.model.table import Flags, Float64, Int32, Int64

ALIGNING = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
)  # no rank leaves before all have arrived
_ENOUGH = 3  # one bad correlation decides nothing
_SOLVED = 1e-24  # of the square of what there was to fit: a part of 10^12
_MAD_SCALE = 1.4826  # makes the median of absolute deviations an estimate of the standard deviation
# what measuring may be wrong by, and what a launch or a return takes
_TOLERANCE_NS = 20_000
_LEAST_LATENCY_NS = 5_000
_NOTHING = np.empty(0, np.int64)


class ClockOffset(Struct, frozen=True):
    """The correction of one report's clock: subtracted from its times; 0 unless it exceeds the error."""

    offset_ns: int
    error_ns: (
        int | None
    )  # spread of the differences it rests on; None when there are fewer than three
    part: int = (
        0  # collectives compare the clocks of one part, with those of other parts they say nothing
    )


def clock_offsets(
    matched: Sequence[Int64],
    ends: Int64,
    report: Int64,
    n_reports: int,
    *,
    is_one_clock: bool = False,
) -> list[ClockOffset]:
    """Return each report's offset and its error, by the formulas of `schema.RANKS`, of matched collectives of `ALIGNING`.

    `matched` is as of `collectives.match`; `ends` and `report` are of each operation. Where
    communicators join different reports (tensor groups inside each node, data groups across), there
    is such a median for each set of reports that meet: most calls may be of one that says nothing
    of the other nodes. The offsets are those that fit all sets best, by least squares, apart from
    the median report; the error is the largest of the sets' spreads and of what does not fit.
    """
    corrections = [ClockOffset(0, 0 if is_one_clock else None)] * n_reports
    meetings = [] if is_one_clock else _meetings(matched, ends, report)
    ties = [tie for place, meeting in enumerate(meetings) for tie in _ties(place, *meeting)]
    if not ties:
        return corrections
    places, reports, medians, spreads = (
        np.array(column, np.int64) for column in zip(*ties, strict=True)
    )
    parts = _parts(places, reports, n_reports)
    offsets = np.zeros(n_reports, np.int64)
    misfits = np.zeros(medians.size, np.int64)
    offsets[reports] = medians
    if np.unique(places).size > 1:
        fitted, misfits = _fitted(places, reports, medians, n_reports)
        for part in np.unique(parts[reports]).tolist():
            own = np.unique(reports[parts[reports] == part])
            offsets[own] = fitted[own] - floor_median(np.sort(fitted[own]))
    errors = np.zeros(n_reports, np.int64)
    np.maximum.at(errors, reports, np.maximum(spreads, misfits))
    for number in np.unique(reports).tolist():
        offset = int(offsets[number])
        error = int(errors[number])
        corrections[number] = ClockOffset(
            offset if abs(offset) > error else 0, error, int(parts[number])
        )
    return corrections


def _meetings(matched: Sequence[Int64], ends: Int64, report: Int64) -> list[tuple[Int64, ...]]:
    """Return the differences from the median end, and whose they are, of each set of reports that meet in collectives."""
    meetings: dict[tuple[int, ...], list[tuple[Int64, Int64]]] = {}
    for rows in matched:
        if not rows.size:
            continue
        owner = report[rows]
        difference = ends[rows] - floor_median(np.sort(ends[rows], axis=1))[:, np.newaxis]
        members = owner[:1]
        which = np.zeros(len(rows), np.int64)
        if (owner != members).any():
            members, which = np.unique(owner, axis=0, return_inverse=True)
        which = which.ravel()
        order = np.argsort(which, kind="stable")
        for reports, own in zip(
            members, np.split(order, run_starts(which[order])[1:]), strict=True
        ):
            meeting = meetings.setdefault(tuple(np.unique(reports).tolist()), [])
            meeting.append((difference[own].ravel(), owner[own].ravel()))
    return [tuple(map(np.concatenate, zip(*parts, strict=True))) for parts in meetings.values()]


def _ties(place: int, difference: Int64, owner: Int64) -> Iterator[tuple[int, int, int, int]]:
    """Yield the place of the set, a report, its median difference and the spread, of reports with enough differences."""
    order = np.lexsort((difference, owner))
    for rows in np.split(order, run_starts(owner[order])[1:]):
        own = difference[rows]
        if own.size >= _ENOUGH:
            median = int(floor_median(own))
            spread = round(_MAD_SCALE * int(floor_median(np.sort(np.abs(own - median)))))
            yield place, int(owner[rows[0]]), median, spread


def _parts(places: Int64, reports: Int64, n_reports: int) -> Int64:
    """Return a number for each report, the same for those that sets tie together, at one remove or more."""
    parts = np.arange(n_reports)
    while True:
        least = least_of(places, parts[reports], int(places.max()) + 1)
        before = parts.copy()
        np.minimum.at(parts, reports, least[places])
        if (parts == before).all():
            return parts


def _fitted(places: Int64, reports: Int64, medians: Int64, n_reports: int) -> tuple[Int64, Int64]:
    """Return offsets whose differences from a middle of each set are its medians by least squares, and by how much not."""
    column = np.concatenate((reports, n_reports + places))  # a tie is report - middle of the set
    fit = np.zeros(int(column.max()) + 1)

    def gradient(misfits: Float64) -> Float64:
        return np.bincount(column, np.concatenate((misfits, -misfits)), fit.size).astype(np.float64)

    rest = medians.astype(np.float64)
    slope = direction = gradient(rest)
    steepness = least = slope @ slope
    for _ in range(
        fit.size
    ):  # conjugate gradients: each of few steps takes as long as there are ties
        if steepness <= _SOLVED * least:
            break
        change = direction[reports] - direction[n_reports + places]
        length = steepness / (change @ change)
        fit = fit + length * direction
        rest = rest - length * change
        slope = gradient(rest)
        direction = slope + slope @ slope / steepness * direction
        steepness = slope @ slope
    return np.rint(fit[:n_reports]).astype(np.int64), np.rint(np.abs(rest)).astype(np.int64)


def floor_median(ordered: Int64) -> Int64:
    """Return the median along the last axis of sorted values; of an even number the mean, floored."""
    low = ordered[..., (ordered.shape[-1] - 1) // 2]
    high = ordered[..., ordered.shape[-1] // 2]
    return low + (high - low) // 2


class DeviceClock(Struct, frozen=True):
    """The clock of one device against its host's."""

    offset_ns: int  # how much later it is, as far as it is corrected; 0 where the two may agree
    early_ns: (
        int | None
    )  # the least that the difference device - host can be; None where nothing says it
    late_ns: int | None  # the most, likewise

    @property
    def span_ns(self) -> int | None:
        """How far apart the two ends are: the error of figures that compare device and host; None without both."""
        return (
            None
            if self.early_ns is None or self.late_ns is None
            else max(self.late_ns - self.early_ns, 0)
        )


def device_clock(lags: Int64, leads: Int64) -> DeviceClock:
    """Compare two clocks by start - launch of operations (of those that one call launched the first alone) and end - return.

    The difference device - host lies in [early, late], where late is the smallest lag and early the
    largest lead. It is corrected where 0 lies outside by more than 20 us and at least three
    operations say so, by the nearer end and 5 us. Where fewer than three lie within 20 us of the
    end, it is the end of the third that counts for that. An operation alone may say how close the
    ends are, but not that the difference is another one than what is corrected.
    """
    agreed_late, third_lag = _least(lags)
    least, third_lead = _least(-leads)
    agreed_early = None if least is None else -least
    offset_ns = 0
    if agreed_late is not None and third_lag < -_TOLERANCE_NS:
        offset_ns = agreed_late - _LEAST_LATENCY_NS
    elif agreed_early is not None and third_lead < -_TOLERANCE_NS:
        offset_ns = agreed_early + _LEAST_LATENCY_NS
    late = int(lags.min()) if lags.size else None
    if late is not None and late < offset_ns - _TOLERANCE_NS:
        late = agreed_late
    early = int(leads.max()) if leads.size else None
    if early is not None and early > offset_ns + _TOLERANCE_NS:
        early = agreed_early
    return DeviceClock(offset_ns, early, late)


def _least(values: Int64) -> tuple[int | None, int]:
    """Return the smallest of some values, but for one or two far below the third, and the third; 0 for none."""
    if values.size < _ENOUGH:
        return int(values.min()) if values.size else None, 0
    third = int(np.partition(values, _ENOUGH - 1)[_ENOUGH - 1])
    return int(values.min(initial=NEVER, where=values >= third - _TOLERANCE_NS)), third


def clock_of_device(
    operations: ProcessOperations,
    waits: pa.Table,
    calls: pa.Table | None,
    device_id: int | None = None,
) -> DeviceClock:
    """Compare the clock of one device of a process with its host's, by the operations that ran there.

    `waits` and `calls` are `canonical.HOST_WAITS` and `canonical.HOST_CALLS` of the process. Where
    that used several devices, only the waits for `device_id` count.
    """
    if calls is not None and waits.num_rows:
        waits = waits.filter(_undisturbed(waits, calls))
    if device_id is not None:
        waits = waits.filter(pc.equal(waits["device_id"], device_id))
    n_launched = operations.n_launched
    launched = operations.copy_launch != NEVER
    times = operations.kernel_launch, operations.kernel_start, operations.kernel_end
    kernels = [
        *(column[:n_launched] for column in times),
        operations.kernel_column("stream_id", 0, n_launched),
    ]
    copies = [
        column[launched]
        for column in (operations.copy_launch, operations.copy_start, operations.copy_end)
    ]
    return _clock_of(kernels, copies, waits)


def _undisturbed(waits: pa.Table, calls: pa.Table) -> Flags:
    """Tell which waits began while no other thread was in a call, which may have launched what was not waited for."""
    began = waits["start_ns"].to_numpy()
    thread = waits["thread_id"].to_numpy()
    times = np.sort(began)
    around = [
        (_NOTHING,) * 3
    ]  # start, end and thread of the calls that were running at any of these times
    for batch in calls.select(["start_ns", "end_ns", "thread_id"]).to_batches():
        start, end, of_thread = (column.to_numpy() for column in batch.columns)
        running = np.flatnonzero(np.append(times, NEVER)[counts_up_to(times, start)] < end)
        around.append((start[running], end[running], of_thread[running]))
    starts, ends, of_call = (np.concatenate(column) for column in zip(*around, strict=True))
    is_undisturbed = np.ones(began.size, np.bool_)
    for own in np.unique(thread):  # a few
        others = of_call != own
        mine = thread == own
        later = starts[others] + 1  # what begins at the same time disturbs nothing
        is_undisturbed[mine] = ~union(later, np.maximum(ends[others], later)).contains(began[mine])
    return is_undisturbed


def _clock_of(kernels: Sequence[Int64], copies: Sequence[Int64], waits: pa.Table) -> DeviceClock:
    """Compare one device's clock by operations (launch, start, end, of kernels stream), and calls that waited for it."""
    begins = run_starts(kernels[0])  # of a launch that makes many, as a graph does, the first alone
    lags = np.minimum.reduceat(kernels[1], begins)
    lags -= kernels[0][begins]
    blocking = waits.filter(pc.is_valid(waits["copy_end_ns"]))
    ends, returned = (blocking[name].to_numpy() for name in ("copy_end_ns", "end_ns"))
    lags = np.concatenate((lags, copies[1] - copies[0]))
    return device_clock(lags, np.concatenate((_leads(kernels, copies, waits), ends - returned)))


def _leads(kernels: Sequence[Int64], copies: Sequence[Int64], waits: pa.Table) -> Int64:
    """Return the largest of end - return, as many as decide, for the operations that a call waited for, each with the first such call."""
    rows = waits.filter(pc.is_null(waits["copy_end_ns"])).sort_by("start_ns")
    if not rows.num_rows:
        return _NOTHING
    began = rows["start_ns"].to_numpy()
    returned = rows["end_ns"].to_numpy()
    is_whole = rows["is_whole"].to_numpy()
    waited_for = pc.fill_null(rows["stream_id"], UNKNOWN).to_numpy()
    # Of kernels and copies stream, end, and the first call after the launch; copies, whose stream
    # is not known, are one more.
    streams = kernels[3], np.broadcast_to(UNKNOWN + 1, copies[0].size)
    parts = zip(streams, (kernels, copies), strict=True)
    columns = [
        (stream, own[2], counts_up_to(began, own[0]).astype(np.int32)) for stream, own in parts
    ]
    most = np.full(began.size, NEVER)
    for number in {
        number for stream in streams for number in pc.unique(pa.array(stream)).to_pylist()
    }:
        reached = np.full(began.size + 1, -NEVER)
        for end, call in _of_stream(columns, number):
            np.maximum.at(reached, call, end)
        reached = np.maximum.accumulate(reached)[:-1]
        most = np.minimum(most, np.where(reached == -NEVER, NEVER, reached - returned))
    is_known = waited_for != UNKNOWN
    most[is_whole | is_known] = NEVER  # it waited for all of them, or for one that is known
    groups = [(None, is_whole | ~is_known)]
    groups += [
        (number, (waited_for == number) & ~is_whole) for number in np.unique(waited_for[is_known])
    ]
    largest = _NOTHING
    for number, is_of_group in groups:
        calls = np.append(
            np.flatnonzero(is_of_group), began.size
        )  # the last place is that of no call
        following = calls[np.searchsorted(calls, np.arange(began.size + 1))]
        for end, after in _of_stream(columns, number):
            call = following[after]
            is_awaited = call < began.size
            call = call[is_awaited]
            leads = np.append(largest, np.minimum(end[is_awaited] - returned[call], most[call]))
            largest = np.partition(leads, -_ENOUGH)[-_ENOUGH:] if leads.size > _ENOUGH else leads
    return largest


def _of_stream(
    columns: Sequence[tuple[Int64, Int64, Int32]], number: int | None
) -> Iterator[tuple[Int64, Int32]]:
    """Yield the other two columns of those with some stream (None: any), so many rows at a time that little is made on the way."""
    for stream, end, call in columns:
        for at in range(0, stream.size, BLOCK):
            rows = slice(at, at + BLOCK)
            own = slice(None) if number is None else stream[rows] == number
            yield end[rows][own], call[rows][own]
