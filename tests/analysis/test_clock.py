"""Clocks of ranks, whose offsets collectives tell, and of a device and its host, which launches and waits tell."""

import numpy as np
import pytest

from nsyspipe.analysis.clock import (
    ClockOffset,
    clock_of_device,
    clock_offsets,
    device_clock,
    floor_median,
)
from nsyspipe.model import canonical
from tests.build.make import compute, dtod, ints, operations

NONE = ClockOffset(0, None)


def offsets(*collectives, reports=None):
    """Return (offset, error) of each report; a collective is its end on each rank, rank i being of `reports[i]`."""
    reports = reports or tuple(range(len(collectives[0])))
    ends = np.array(collectives, np.int64)
    rows = np.arange(ends.size).reshape(ends.shape)[:, np.newaxis]
    found = clock_offsets(
        list(rows), ends.ravel(), ints(*reports[: ends.shape[1]] * len(ends)), max(reports) + 1
    )
    return [(one.offset_ns, one.error_ns) for one in found]


@pytest.mark.parametrize(
    ("values", "median"),
    [
        ([5], 5),
        ([1, 2, 9], 2),
        ([1, 2], 1),
        ([1, 3], 2),
        ([-2, -1], -2),
        ([-1, 0], -1),
        ([0, 4, 5, 5], 4),
        ([2**62, 2**62 + 1], 2**62),
        ([-(2**61), 2**61], 0),  # their sum is no int64
    ],
)
def test_the_median_of_an_even_number_is_floored(values, median):
    assert floor_median(ints(*values)) == median


@pytest.mark.parametrize(
    ("deviation", "error"),
    [(0, 0), (1, 1), (2, 3), (3, 4), (10, 15), (1000, 1483), (10**9, 1_482_600_000)],
)
def test_the_error_is_the_spread_of_the_differences_to_the_nearest_ns(deviation, error):
    at = 10**10  # differences of rank 2: 10^10 less the deviation, 10^10, 10^10 and more; x 1.4826
    assert offsets((0, 0, at - deviation), (0, 0, at), (0, 0, at + deviation)) == [
        (0, 0),
        (0, 0),
        (at, error),
    ]


@pytest.mark.parametrize(("offset", "applied"), [(4, 0), (5, 5), (-4, 0), (-5, -5)])
def test_an_offset_is_applied_only_where_it_exceeds_its_error(offset, applied):
    # Deviations 3, 0, 3 (rank 1 stays the median, as the other two lie beside it): error
    # round(4.4478) = 4.
    low, high = offset - 3, offset + 3
    assert offsets(*[(-second, 0, second) for second in (low, offset, high)]) == [
        (-applied, 4),
        (0, 0),
        (applied, 4),
    ]


FOUR = (0, 1, 2, 100), (10, 11, 12, 150), (20, 21, 22, 120)
FAR = 2**61 + 1  # a float would lose the 1


@pytest.mark.parametrize(
    ("ends", "reports", "expected"),
    [
        # Rank 1 is the median end; ranks 0 and 2 differ from it by -40, -40, -40 and +100, +100,
        # +100.
        (
            [(960, 1000, 1100), (1960, 2000, 2100), (2960, 3000, 3100)],
            None,
            [(-40, 0), (0, 0), (100, 0)],
        ),
        # Of rank 2: 10, 11, 20, 30: floor(15.5) = 15; deviations 5, 4, 5, 15: median 5, x 1.4826 =
        # 7.413.
        ([(0, 0, 10), (0, 0, 11), (0, 0, 20), (0, 0, 30)], None, [(0, 0), (0, 0), (15, 7)]),
        # Fewer than three differences tell nothing.
        ([(0, 90)], None, [(0, None)] * 2),
        ([(0, 90), (100, 190)], None, [(0, None)] * 2),
        ([(0, 90), (100, 190), (200, 290)], None, [(-45, 0), (45, 0)]),
        # Ranks 0, 1, 2 are report 0: -1, 0, 1 of the first collective are three differences, as its
        # median end is floor(1.5) = 1. Rank 3 is report 1: 99 alone is too few, and so is 139 with
        # it; with 99 deviations are 0, 40, 0.
        (FOUR[:1], (0, 0, 0, 1), [(0, 1), (0, None)]),
        (FOUR[:2], (0, 0, 0, 1), [(0, 1), (0, None)]),
        (FOUR, (0, 0, 0, 1), [(0, 1), (99, 0)]),
        ([(FAR + k, FAR + k + 7, FAR + k + 9) for k in range(3)], None, [(-7, 0), (0, 0), (2, 0)]),
    ],
)
def test_the_offset_is_the_median_difference_from_the_median_end(ends, reports, expected):
    assert offsets(*ends, reports=reports) == expected


def of_groups(*groups, n_reports):
    """Return (offset, error, part) of each report, a group being its reports and its collectives' ends, rank by rank."""
    matched, ends, owner = [], [], []
    for reports, *collectives in groups:
        for own in collectives:
            matched.append(np.arange(len(ends), len(ends) + len(own))[np.newaxis])
            ends, owner = [*ends, *own], [*owner, *reports]
    found = clock_offsets(matched, ints(*ends), ints(*owner), n_reports)
    return [(one.offset_ns, one.error_ns, one.part) for one in found]


def test_collectives_inside_a_node_do_not_outvote_those_across_nodes():
    # Reports 0 and 1 are of one node, 2 and 3 of another, 1000 later. Ten collectives inside each,
    # three across.
    inside = [
        ([0, 1], *[(at, at) for at in range(10)]),
        ([2, 3], *[(at + 1000, at + 1000) for at in range(10)]),
    ]
    across = [
        ([0, 2], *[(at, at + 1000) for at in range(3)]),
        ([1, 3], *[(at, at + 1000) for at in range(3)]),
    ]
    assert of_groups(*inside, *across, n_reports=4) == [
        (-500, 0, 0),
        (-500, 0, 0),
        (500, 0, 0),
        (500, 0, 0),
    ]
    # One that joins the nodes is enough, the others follow their neighbours.
    assert of_groups(*inside, across[0], n_reports=4) == [
        (-500, 0, 0),
        (-500, 0, 0),
        (500, 0, 0),
        (500, 0, 0),
    ]


def test_offsets_of_nodes_lie_within_their_errors_where_ends_are_uneven():
    # Across, the ends of reports 2 and 3 are 1000 later, and by -40, 0 and 40 uneven: differences
    # of 480, 500 and 520.
    inside = [
        ([0, 1], *[(at, at) for at in range(10)]),
        ([2, 3], *[(at + 1000, at + 1000) for at in range(10)]),
    ]
    across = [(pair, *[(0, 1000 + by) for by in (-40, 0, 40)]) for pair in ([0, 2], [1, 3])]
    assert of_groups(*inside, *across, n_reports=4) == [
        (-500, 30, 0),
        (-500, 30, 0),
        (500, 30, 0),
        (500, 30, 0),
    ]
    # What the two pairs say differs by 80: a quarter of it is put on each side of the square, half
    # of that on each report.
    across = [([0, 2], *[(0, 960)] * 3), ([1, 3], *[(0, 1040)] * 3)]
    found = of_groups(*inside, *across, n_reports=4)
    assert [(offset, error) for offset, error, _ in found] == [
        (-490, 10),
        (-510, 10),
        (490, 10),
        (510, 10),
    ]


def test_nodes_that_never_meet_are_parts_of_their_own():
    apart = ([0, 1], *[(0, 90)] * 3), ([2, 3], *[(5000, 5010)] * 3)
    assert of_groups(*apart, n_reports=5) == [
        (-45, 0, 0),
        (45, 0, 0),
        (-5, 0, 2),
        (5, 0, 2),
        (0, None, 0),
    ]


@pytest.mark.parametrize("n_reports", [1, 2])
def test_clocks_are_unknown_without_collectives_and_exact_on_one_clock(
    n_reports,
):
    assert clock_offsets([], ints(), ints(), n_reports) == [NONE] * n_reports
    exact = [ClockOffset(0, 0)] * n_reports
    matched = [np.array([[0, 1], [2, 3], [4, 5]])]
    ends, report = ints(0, 90, 100, 120, 200, 290), np.zeros(6, np.int64)
    assert clock_offsets(matched, ends, report, n_reports, is_one_clock=True) == exact
    assert clock_offsets([], ints(), ints(), n_reports, is_one_clock=True) == exact


US, MS = 1_000, 1_000_000


@pytest.mark.parametrize(
    ("lags", "leads", "offset"),
    [
        # What started after its launch and ended before the wait says nothing, nor does a deep
        # queue.
        ([4 * US, 9 * US, 7 * US], [-2 * US, -30 * US], 0),
        ([325 * MS, 326 * MS, 330 * MS], [], 0),
        ([325 * MS, 326 * MS, 330 * MS], [-3 * US] * 5, 0),
        # Starts before their launches put the device back, ends after the wait for them forward.
        (
            [-156 * MS + 4 * US, -156 * MS + 9 * US, -156 * MS + 6 * US],
            [],
            -156 * MS + 4 * US - 5 * US,
        ),
        ([325 * MS] * 3, [325 * MS - 2 * US] * 3, 325 * MS - 2 * US + 5 * US),
        # 20 us are within what is measured.
        ([-20 * US] * 3, [], 0),
        ([-20 * US - 1] * 3, [], -25 * US - 1),
        ([], [20 * US] * 3, 0),
        ([], [20 * US + 1] * 3, 25 * US + 1),
        # One bad correlation, or two, decides nothing, nor how much where others say that it is
        # apart.
        ([-(10**12), -(10**11), 5 * US, 6 * US], [], 0),
        ([], [10**12, 10**11, -5 * US], 0),
        ([-(10**12), *[-156 * MS] * 3], [], -156 * MS - 5 * US),
    ],
)
def test_whether_a_devices_clock_is_apart_and_by_how_much(lags, leads, offset):
    assert device_clock(ints(*lags), ints(*leads)).offset_ns == offset


def test_what_is_nearest_to_saying_that_clocks_are_apart_is_kept():
    near = device_clock(ints(4 * US, 9 * US, 7 * US), ints(-2 * US, -30 * US))
    assert (near.early_ns, near.late_ns) == (-2 * US, 4 * US)
    apart = device_clock(ints(-(10**12), *[-156 * MS] * 3), ints())
    assert (apart.early_ns, apart.late_ns) == (None, -156 * MS)
    nothing = device_clock(ints(), ints())
    assert (nothing.offset_ns, nothing.early_ns, nothing.late_ns, nothing.span_ns) == (
        0,
        None,
        None,
        None,
    )


@pytest.mark.parametrize(
    ("lags", "leads", "ends"),
    [
        # A device waited for once, at the end: what ended last says how close the ends are,
        # whatever ended well before.
        ([20 * US] * 3, [-25 * US, -2 * MS, -3 * MS], (-25 * US, 20 * US)),
        ([40 * US, 9 * MS, 70 * MS], [-500 * US] * 3, (-500 * US, 40 * US)),
        # One that contradicts the other end, or the offset of 0, says nothing, from 20 us on.
        ([-20 * US, *[5 * US] * 3], [-9 * US] * 3, (-9 * US, -20 * US)),
        ([-20 * US - 1, *[5 * US] * 3], [-9 * US] * 3, (-9 * US, 5 * US)),
        ([5 * US] * 3, [20 * US, *[-9 * US] * 3], (20 * US, 5 * US)),
        ([5 * US] * 3, [20 * US + 1, *[-9 * US] * 3], (-9 * US, 5 * US)),
        ([-(10**12), *[5 * US] * 3], [-25 * US, -2 * MS, -3 * MS], (-25 * US, 5 * US)),
        # Where the clock is corrected, the ends lie around that offset.
        (
            [-(10**12), *[-156 * MS] * 3],
            [-156 * MS - 50 * US, -200 * MS, -200 * MS],
            (-156 * MS - 50 * US, -156 * MS),
        ),
        ([325 * MS] * 3, [10**12, *[325 * MS - 2 * US] * 3], (325 * MS - 2 * US, 325 * MS)),
    ],
)
def test_one_operation_says_how_close_the_ends_are_but_not_that_they_are_apart(lags, leads, ends):
    clock = device_clock(ints(*lags), ints(*leads))
    assert (clock.early_ns, clock.late_ns) == ends
    assert clock.span_ns == max(ends[1] - ends[0], 0)


def waits(*rows):
    """Build `canonical.HOST_WAITS` from (start, end, stream or None for all or "?" for one unknown, end of its copy)."""
    same = {"process_id": 1, "thread_id": 1, "device_id": 0}
    return canonical.HOST_WAITS.from_rows(
        [
            same
            | {
                "start_ns": start,
                "end_ns": end,
                "stream_id": stream if isinstance(stream, int) else None,
                "is_whole": stream is None and not copy,
                "copy_end_ns": copy[0] if copy else None,
            }
            for start, end, stream, *copy in rows
        ]
    )


# Launched at 10, 20 and 30.
OPS = compute(110, 120, 10), compute(120, 135, 20), compute(135, 160, 30)

ALL = (40, 165, None)


def called(thread):
    return canonical.HOST_CALLS.from_rows(
        [{"process_id": 1, "thread_id": thread, "start_ns": 38, "end_ns": 45}]
    )


@pytest.mark.parametrize(
    ("ops", "rows", "calls", "lead"),
    [
        # A call waits for what was launched before it, and the first one after a launch counts.
        (OPS, [ALL], None, 160 - 165),
        (OPS, [(25, 140, None)], None, 135 - 140),  # not for the third
        (OPS, [(5, 8, None)], None, None),
        (OPS, [ALL, (200, 210, None)], None, -5),
        # Copies count too; a blocking one waits for itself.
        ((*OPS, dtod(160, 180, 35)), [ALL], None, 15),
        (OPS, [(40, 165, "?", 170)], None, 5),
        # Of a stream that is not known the earliest: copies, which are one more, ended at 90.
        ((*OPS, dtod(80, 90, 5)), [(40, 165, "?")], None, 90 - 165),
        (OPS, [(40, 165, "?")], None, -5),
        # What another thread may have launched meanwhile is no evidence.
        (OPS, [ALL], called(2), None),
        (OPS, [ALL], called(1), -5),
    ],
)
def test_who_waited_for_what(ops, rows, calls, lead):
    assert clock_of_device(operations(*ops), waits(*rows), calls).early_ns == lead


def test_of_what_one_launch_started_the_first_counts():
    # Three nodes of one graph are one operation that says so: too few.
    nodes = [compute(start, start + 5, 10**6) for start in (100, 110, 120)]
    assert clock_of_device(operations(*nodes), waits(), None).offset_ns == 0
    apart = [compute(start, start + 5, 10**6 + start) for start in (100, 110, 120)]
    assert clock_of_device(operations(*apart), waits(), None).offset_ns == -(10**6) - 5 * US


def test_waits_for_another_device_say_nothing_of_this_ones_clock():
    ops = operations(*OPS)
    of_both = [clock_of_device(ops, waits(ALL), None, device) for device in (0, 1)]
    assert [one.early_ns for one in of_both] == [160 - 165, None]
