"""Communication that late launches expose, once more: every nanosecond is asked by itself."""

from unittest import mock

from hypothesis import given, strategies as st

from nsyspipe.analysis import breakdown as module
from nsyspipe.analysis.attribution import NEVER
from tests.build.make import comm, compute, operations, windows

LONGEST_LAUNCH = 4  # built operations are of some ns
WINDOWS = (0, 25), (25, 60)

operation = st.builds(
    lambda make, start, length, lead: make(
        start, start + length, None if lead is None else start - lead
    ),
    st.sampled_from([compute, comm]),
    st.integers(0, 50),
    st.integers(1, 12),
    st.none() | st.integers(-2, 15),
)


def is_late(tick, ops, latency, offset):
    """Tell whether communication is under way that a late launch exposes, by the text of `schema.STEPS`."""
    kernels = list(
        zip(
            ops.kernel_start.tolist(),
            ops.kernel_end.tolist(),
            ops.kernel_launch.tolist(),
            ops.is_comm,
            strict=True,
        )
    )
    comms = [
        (start, launch)
        for start, end, launch, is_comm in kernels
        if is_comm and start <= tick < end
    ]
    computes = [one for one in kernels if not one[3]]
    if not comms or any(start <= tick < end for start, end, _, _ in computes):
        return False
    if any(
        launch != NEVER and start - launch - offset <= LONGEST_LAUNCH for start, launch in comms
    ):
        return True
    before = [end for _, end, _, _ in computes if end <= tick]
    behind = [(start, launch) for start, _, launch, _ in computes if start > tick]
    if not before or not behind:
        return False
    launch = min(behind)[1]
    return launch != NEVER and tick < launch + offset + latency


@given(st.lists(operation, max_size=12), st.integers(0, 3), st.integers(-3, 3))
def test_each_nanosecond_of_late_exposure(rows, latency, offset):
    ops = operations(*rows)
    expected = [
        sum(is_late(tick, ops, latency, offset) for tick in range(*span)) for span in WINDOWS
    ]
    with mock.patch.object(module, "_MAX_LAUNCH_LATENCY_NS", LONGEST_LAUNCH):
        device = module.device_time(ops, windows(*WINDOWS))
        found = module.exposed_by_late_launches(device, latency, offset)
    assert found.tolist() == expected
