"""The clock of a late rank's GPU, as a reason for its delay."""

from types import SimpleNamespace

from nsyspipe.findings.straggler import find_slow_clock

OTHERS_HZ = 2_000_000_000.0


def slow_clock(clock_hz):
    evidence = SimpleNamespace(clocks_hz={0: OTHERS_HZ, 1: clock_hz, 2: OTHERS_HZ})
    late = SimpleNamespace(worst=1, delays_ns={1: 100})
    return find_slow_clock(evidence, late)


def test_a_clock_two_per_cent_lower_is_a_slow_one():
    assert slow_clock(1_959_000_000.0) == (1_959_000_000.0, OTHERS_HZ)


def test_a_clock_that_is_hardly_lower_is_no_slow_one():
    assert slow_clock(1_961_000_000.0) is None
