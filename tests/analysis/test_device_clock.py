"""Whether a device's clock and its host's are apart, by starts before launches and waits that were over too soon."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from nsyspipe.analysis.breakdown import idle_gaps
from nsyspipe.analysis.clock import AGREED, device_clock, device_clocks
from nsyspipe.model import canonical
from nsyspipe.run.process import ProcessEvents
from tests.build.make import compute, dtod, ints, operations

US, MS = 1_000, 1_000_000
NOTHING = ints()


def clock(lags=NOTHING, leads=NOTHING):
    found = device_clock(np.asarray(lags, np.int64), np.asarray(leads, np.int64))
    return found.offset_ns, found.early_ns, found.late_ns


def test_what_started_after_its_launch_and_ended_before_the_wait_says_nothing():
    assert clock([4 * US, 9 * US, 7 * US], [-2 * US, -30 * US]) == (0, -2 * US, 4 * US)
    assert clock() == (0, None, None)
    assert AGREED.span_ns is None


def test_a_deep_queue_is_no_shift():
    assert clock([325 * MS, 326 * MS, 330 * MS])[0] == 0
    assert clock([325 * MS, 326 * MS, 330 * MS], [-3 * US] * 5)[0] == 0


def test_starts_before_their_launches_put_the_device_back():
    lags = [-156 * MS + 4 * US, -156 * MS + 9 * US, -156 * MS + 6 * US]
    assert clock(lags)[0] == -156 * MS + 4 * US - 5 * US


def test_ends_after_the_wait_for_them_put_it_forward():
    assert clock([325 * MS] * 3, [325 * MS - 2 * US] * 3)[0] == 325 * MS - 2 * US + 5 * US


@pytest.mark.parametrize(("lag", "is_corrected"), [(-20 * US, False), (-20 * US - 1, True)])
def test_20_us_are_within_what_is_measured(lag, is_corrected):
    assert (clock([lag] * 3)[0] != 0) == is_corrected
    assert (clock([], [-lag] * 3)[0] != 0) == is_corrected


def test_one_bad_correlation_decides_nothing():
    assert clock([-(10**12), -(10**11), 5 * US, 6 * US])[0] == 0
    assert clock([], [10**12, 10**11, -5 * US])[0] == 0
    # Nor how much, where others say that it is apart.
    lags = [-(10**12), *[-156 * MS] * 3]
    assert clock(lags) == (-156 * MS - 5 * US, None, -156 * MS)


# --- who waited for what ---------------------------------------------------------------------


def waits(*rows):
    """Build `canonical.HOST_WAITS` from (start, end, stream or None for all or "?" for one unknown, end of its copy)."""
    return canonical.HOST_WAITS.table(
        {
            "process_id": [1] * len(rows),
            "thread_id": [1] * len(rows),
            "start_ns": [row[0] for row in rows],
            "end_ns": [row[1] for row in rows],
            "device_id": [0] * len(rows),
            "stream_id": [row[2] if isinstance(row[2], int) else None for row in rows],
            "is_whole": [row[2] is None and len(row) < 4 for row in rows],
            "copy_end_ns": [row[3] if len(row) > 3 else None for row in rows],
        }
    )


def lead(ops, *rows, calls=None):
    """Return the largest lead."""
    return device_clocks(operations(*ops), (0,), waits(*rows), calls)[None].early_ns


# Launched at 10, 20 and 30.
OPS = compute(110, 120, 10), compute(120, 135, 20), compute(135, 160, 30)


def test_a_call_waits_for_what_was_launched_before_it():
    assert lead(OPS, (40, 165, None)) == 160 - 165
    assert lead(OPS, (25, 140, None)) == 135 - 140  # not for the third
    assert lead(OPS, (5, 8, None)) is None


def test_the_first_call_after_a_launch_counts():
    assert lead(OPS, (40, 165, None), (200, 210, None)) == -5


def test_copies_count_too():
    assert lead((*OPS, dtod(160, 180, 35)), (40, 165, None)) == 15


def test_a_blocking_copy_waits_for_itself():
    assert lead(OPS, (40, 165, "?", 170)) == 5


def test_of_a_stream_that_is_not_known_the_earliest_one_counts():
    # Copies, which are one more stream, ended at 90: it may have waited for them alone.
    assert lead((*OPS, dtod(80, 90, 5)), (40, 165, "?")) == 90 - 165
    assert lead(OPS, (40, 165, "?")) == -5


def test_what_another_thread_may_have_launched_meanwhile_is_no_evidence():
    def calls(thread):
        columns = {"process_id": [1], "thread_id": [thread], "start_ns": [38], "end_ns": [45]}
        return canonical.HOST_CALLS.table({name: pa.array(own) for name, own in columns.items()})

    assert lead(OPS, (40, 165, None), calls=calls(2)) is None
    assert lead(OPS, (40, 165, None), calls=calls(1)) == -5


def test_of_what_one_launch_started_the_first_counts():
    # Three nodes of one graph are one operation that says so: too few.
    nodes = [compute(start, start + 5, 10**6) for start in (100, 110, 120)]
    assert device_clocks(operations(*nodes), (0,), waits(), None)[None].offset_ns == 0
    apart = [compute(start, start + 5, 10**6 + start) for start in (100, 110, 120)]
    assert device_clocks(operations(*apart), (0,), waits(), None)[None].offset_ns == -(10**6) - 5 * US


def test_every_device_of_a_process_is_compared_and_its_launches_corrected_by_its_own_clock():
    ops = operations(
        *(compute(start, start + 50, start - 10, device_id=0) for start in (1000, 3000, 5000)),
        *(compute(start, start + 50, start + 10**6, device_id=1) for start in (2000, 4000, 6000)),
    )
    clocks = device_clocks(ops, (0, 1), waits(), None)
    assert {device: one.offset_ns for device, one in clocks.items()} == {0: 0, 1: -(10**6) - 5 * US}
    events = ProcessEvents(1, ops, canonical.RANGES.empty(), (0, 1), True, None, canonical.PAYLOADS.empty(), clocks)
    assert events.clock == clocks[0]
    launches = idle_gaps(ops, 0, events.offsets_of_kernels_ns).launch.tolist()
    # Each kernel of the second device 5 us before its start, as its clock is taken to say.
    assert launches == [2000 - 5 * US, 2990, 4000 - 5 * US, 4990, 6000 - 5 * US]
