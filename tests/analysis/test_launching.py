"""How long a host takes to launch a step, against worked-out figures and an oracle that counts each tick."""

import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from nsyspipe.analysis.attribution import operations_of
from nsyspipe.analysis.intervals import union
from nsyspipe.analysis.launching import (
    MIN_QUEUED_OPERATIONS,
    MIN_WAITING_LAUNCH_NS,
    device_waits,
    fastest_launch_times,
    host_times,
    longest_work_times,
    slower_hosts,
    steps_with_late_launches,
)
from nsyspipe.analysis.steps import Members, Windows
from nsyspipe.model import canonical, schema
from tests.findings.make import step

NOTHING = union(np.empty(0, np.int64), np.empty(0, np.int64))


def operations(kernels):
    """Return kernels given as (launch, start, end)."""
    launch, start, end = np.array(kernels, np.int64).reshape(-1, 3).T
    rows = [
        {"process_id": 1, "start_ns": a, "end_ns": b, "is_comm": False}
        for a, b in zip(start.tolist(), end.tolist(), strict=True)
    ]
    return operations_of(
        canonical.KERNELS.from_rows(rows), launch, canonical.COPIES.empty(), np.empty(0, np.int64)
    )


def calls(schema_of, *spans):
    return schema_of.from_rows(
        [
            {
                "process_id": 1,
                "thread_id": 1,
                "start_ns": a,
                "end_ns": b,
                "correlation_id": at,
                "call": "cudaFree",
            }
            | {"is_whole": True}
            for at, (a, b) in enumerate(spans)
        ]
    )


def waits_of(kernels, *, launches=(), blocking=(), waits=()):
    tables = calls(canonical.HOST_CALLS, *launches), calls(canonical.BLOCKING_CALLS, *blocking)
    found = device_waits(operations(kernels), *tables, calls(canonical.HOST_WAITS, *waits), 0)
    return list(zip(found.starts.tolist(), found.ends.tolist(), strict=True))


def test_a_synchronising_call_is_a_wait():
    assert waits_of([(0, 1, 5), (20, 21, 25)], blocking=[(3, 9)], waits=[(8, 12)]) == [(3, 12)]


def test_a_call_during_which_another_thread_launches_is_no_wait():
    assert waits_of([(0, 1, 5), (20, 21, 25)], blocking=[(3, 21)]) == []


def queued(n_before, lasts):
    """Return the waits of a launch that lasts so long, with so many operations launched before it that have not run."""
    at = 10 * n_before
    kernels = [(10 * number, 10**7, 10**7 + 1) for number in range(n_before + 1)]
    return waits_of(kernels, launches=[(at, at + lasts)])


def test_a_long_launch_behind_a_full_queue_is_a_wait():
    at = 10 * MIN_QUEUED_OPERATIONS
    assert queued(MIN_QUEUED_OPERATIONS, MIN_WAITING_LAUNCH_NS) == [
        (at, at + MIN_WAITING_LAUNCH_NS)
    ]


def test_a_launch_just_not_so_long_is_no_wait():
    assert queued(MIN_QUEUED_OPERATIONS, MIN_WAITING_LAUNCH_NS - 1) == []


def test_a_long_launch_behind_a_queue_just_not_so_full_is_no_wait():
    assert queued(MIN_QUEUED_OPERATIONS - 1, MIN_WAITING_LAUNCH_NS) == []


def two_steps(*, waits=NOTHING, inputs=NOTHING, offset_ns=0):
    """Return the host's times of steps [0, 100) and [100, 200), whose kernels are launched at 10, 60 and 110, 170."""
    kernels = [(10, 40, 60), (60, 70, 130), (110, 140, 160), (170, 180, 230)]
    members = Members(1, np.arange(2), np.array([0, 100]), np.array([100, 200]))
    windows = Windows(
        np.arange(2), np.array([40, 140]), np.array([140, 230]), np.array([True, False])
    )
    return host_times(
        operations(kernels), members, windows, waits=waits, inputs=inputs, offset_ns=offset_ns
    )


def test_a_step_lasts_on_the_host_until_the_next_one_is_launched():
    assert two_steps().launch_ns.tolist() == [100, 60]


def test_waits_are_no_launch_time_and_no_input():
    waits, inputs = (
        union(np.array([20, 90]), np.array([50, 120])),
        union(np.array([45]), np.array([65])),
    )
    times = two_steps(waits=waits, inputs=inputs)
    assert (times.launch_ns.tolist(), times.input_ns.tolist()) == ([50, 50], [15, 0])


@pytest.mark.parametrize(("offset_ns", "lead"), [(0, [30, 30]), (20, [10, 10]), (40, [0, 0])])
def test_the_lead_is_on_the_hosts_clock(offset_ns, lead):
    assert two_steps(offset_ns=offset_ns).lead_ns.tolist() == lead


def test_a_capture_without_steps_lasts_from_its_first_launch_to_its_last():
    nothing = np.empty(0, np.int64)
    windows = Windows(np.array([0]), np.array([40]), np.array([230]), np.array([False]))
    times = host_times(
        operations([(10, 40, 60), (170, 180, 230)]),
        Members(1, nothing, nothing, nothing),
        windows,
        waits=NOTHING,
        inputs=NOTHING,
        offset_ns=0,
    )
    assert times.launch_ns.tolist() == [160]


@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(1, 8)), max_size=6),
    st.lists(st.tuples(st.integers(0, 60), st.integers(1, 8)), max_size=6),
    st.lists(st.integers(0, 59), min_size=6, max_size=20, unique=True),
)
def test_the_times_are_those_of_an_oracle_that_counts_ticks(waits, inputs, launches):
    launches = sorted(launches)
    edges = [0, 20, 40, 60]
    of_steps = [[one for one in launches if a <= one < b] for a, b in itertools.pairwise(edges)]
    numbers = [number for number, own in enumerate(of_steps) if own]
    begins = [of_steps[number][0] for number in numbers]
    ends = [*begins[1:], of_steps[numbers[-1]][-1]]
    waiting, getting = (
        {tick for a, n in spans for tick in range(a, a + n)} for spans in (waits, inputs)
    )
    spans = [set(range(a, b)) for a, b in zip(begins, ends, strict=True)]

    members = Members(1, np.arange(3), np.array(edges[:-1]), np.array(edges[1:]))
    starts = np.array(begins) + 100
    is_complete = np.ones(starts.size, np.bool_)
    windows = Windows(np.array(numbers), starts, np.append(starts[1:], starts[-1] + 1), is_complete)
    kernels = operations([(one, one + 100, one + 101) for one in launches])
    sets = [
        union(*np.array([(a, a + n) for a, n in one], np.int64).reshape(-1, 2).T)
        for one in (waits, inputs)
    ]
    times = host_times(kernels, members, windows, waits=sets[0], inputs=sets[1], offset_ns=0)

    assert times.launch_ns.tolist() == [len(span - waiting) for span in spans]
    assert times.input_ns.tolist() == [len((span & getting) - waiting) for span in spans]
    assert times.lead_ns.tolist() == [100] * len(spans)


def steps_table(*launch_ns, n_steps, lead_ns=0):
    """Return steps of as many ranks as there are launch times, the same in each step."""
    return schema.STEPS.from_rows(
        [
            step(rank, number, host_launch_ns=own, host_lead_ns=lead_ns)
            for number in range(1, n_steps + 1)
            for rank, own in enumerate(launch_ns)
        ]
    )


def test_the_fastest_host_counts():
    assert fastest_launch_times(steps_table(900, 700, 800, n_steps=3)).tolist() == [700] * 3


def test_without_input_its_time_is_no_launch_time():
    rows = steps_table(900, 700, n_steps=3)
    input_ns = pa.array([500, 0] * 3, pa.int64())
    rows = rows.set_column(rows.column_names.index("host_input_ns"), "host_input_ns", input_ns)
    assert fastest_launch_times(rows, is_input_free=True).tolist() == [400] * 3


def test_of_two_steps_the_lead_is_no_launch_time():
    assert fastest_launch_times(steps_table(900, 700, n_steps=2, lead_ns=300)).tolist() == [400] * 2


def test_of_three_steps_the_lead_does_not_count():
    assert fastest_launch_times(steps_table(900, 700, n_steps=3, lead_ns=300)).tolist() == [700] * 3


def test_a_launch_time_that_is_not_known_leaves_no_floor():
    rows = steps_table(900, 700, n_steps=3)
    launch = pa.array([None, *rows["host_launch_ns"].to_pylist()[1:]], pa.int64())
    rows = rows.set_column(rows.column_names.index("host_launch_ns"), "host_launch_ns", launch)
    assert fastest_launch_times(rows).tolist() == [0] * 3


@pytest.mark.parametrize(("missing", "n_steps"), [("host_input_ns", 3), ("host_lead_ns", 2)])
def test_a_launch_time_is_not_known_without_what_is_taken_off(missing, n_steps):
    rows = steps_table(900, 700, n_steps=n_steps, lead_ns=300)
    at = rows.schema.get_field_index(missing)
    rows = rows.set_column(at, missing, pa.nulls(rows.num_rows, rows.schema.field(at).type))
    assert fastest_launch_times(rows, is_input_free=True).tolist() == [0] * n_steps


def hosts(*launch_ns):
    """Return a step of 1000 of each rank, whose host launches for so long."""
    return schema.STEPS.from_rows(
        [step(rank, host_launch_ns=own) for rank, own in enumerate(launch_ns)]
    )


@pytest.mark.parametrize(
    ("launch_ns", "slower"),
    [
        # The others take 900 on average, and 3 % of a step are 30.
        ((880, 930, 920), [1]),
        ((880, 929, 920), []),
        ((900, 900), []),
        ((900, 931, 990), [2]),
        ((900,), []),
        ((900, None), None),
        ((0, 0), None),
    ],
)
def test_a_slower_host_takes_3_percent_of_a_step_longer(launch_ns, slower):
    assert slower_hosts(hosts(*launch_ns)) == slower


def test_a_step_lacks_launches_from_2_percent_of_it_on():
    idle = [(1, 20), (2, 19), (3, None)]
    steps = schema.STEPS.from_rows([step(0, number, idle_launch_ns=own) for number, own in idle])
    assert steps_with_late_launches(steps)[0].tolist() == [1]


def test_the_longest_work_is_a_window_without_idle_time_and_exposed_waiting():
    # Rank 0 works 1000 - 300, rank 1 1000 - 400 exposed waiting; in step 2 it is not known what
    # rank 1 waits.
    rows = [
        step(0, 1, idle_launch_ns=300),
        step(1, 1, exposed=500, wait=400),
        step(0, 2, idle_launch_ns=300),
        step(1, 2, exposed=500, wait=400, exposed_wait_ns=None),
    ]
    assert longest_work_times(schema.STEPS.from_rows(rows)).tolist() == [700.0, 1000.0]
