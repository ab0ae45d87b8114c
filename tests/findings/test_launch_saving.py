"""What a step gains at most where launching takes no time: worked-out bounds. Times are ns, steps are of 1000."""

import pytest

from nsyspipe.findings.host import input_bound
from nsyspipe.findings.launch_saving import saving_without_launching
from tests.findings.make import collective, evidence, step, steps


def saving(*rows):
    return saving_without_launching(evidence(list(rows))).saving_ns


def test_idle_time_for_launches_is_gone():
    assert saving(step(idle_launch_ns=300)) == 300


def test_what_the_device_takes_to_start_late_launches_is_gone():
    assert saving(step(idle_launch_ns=300, idle_dependency_ns=80, idle_late_start_ns=50)) == 350


@pytest.mark.parametrize(("launch_ns", "gained"), [(250, 0), (270, 20), (600, 100)])
def test_input_comes_as_much_earlier_as_the_host_launches_beside(launch_ns, gained):
    row = step(idle_launch_ns=200, idle_input_ns=100, host_launch_ns=launch_ns, host_input_ns=50)
    assert saving(row) == 200 + gained


def test_ranks_that_are_late_in_turn_make_a_third_wait_for_both():
    in_turn = [step(rank, idle_launch_ns=200, exposed=200, wait=200) for rank in range(2)]
    # The third one waits 400, 200 for each: the largest idle time of one rank is but half of that.
    assert saving(*in_turn, step(2, exposed=400, wait=400)) == 400


def test_no_rank_waits_less_than_not_at_all():
    assert saving(step(0, idle_launch_ns=500), step(1, exposed=100, wait=100)) == 100


def test_a_rank_that_does_not_wait_for_launches_stays():
    assert saving(step(0, idle_launch_ns=500), step(1)) == 0


def test_waiting_beside_compute_leaves_the_compute():
    # 700 of compute stay, although 600 are waited.
    assert saving(step(0, idle_launch_ns=600), step(1, exposed=300, wait=600)) == 300


def test_the_parts_are_those_of_the_rank_that_sets_the_limit():
    bound = saving_without_launching(
        evidence([step(0, idle_launch_ns=300), step(1, idle_launch_ns=100)])
    )
    assert (bound.limit_rank, dict(bound.parts)) == (1, {"idle_for_launches": 100.0})


def test_the_parts_tell_late_launches_from_what_they_make_of_input_and_calls():
    row = step(
        idle_launch_ns=30,
        idle_dependency_ns=20,
        idle_late_start_ns=10,
        idle_input_ns=300,
        idle_blocked_ns=200,
    )
    bound = saving_without_launching(evidence([row | {"host_launch_ns": 450, "host_input_ns": 20}]))
    # The host launches beside 450 - 20 - 30 of the 500 for input and in calls.
    parts = {
        "idle_for_launches": 30.0,
        "idle_at_late_start": 10.0,
        "idle_for_input_and_calls": 400.0,
    }
    assert (bound.saving_ns, dict(bound.parts)) == (440, parts)


def of_input(*launch_ns):
    """Return the bound of input that idles rank 1 for 300 in each of three steps, while rank 0 waits for it."""
    rows = []
    for number in (1, 2, 3):
        rows.append(step(0, number, exposed=300, wait=300, host_launch_ns=launch_ns[0]))
        rows.append(
            step(1, number, idle_input_ns=300, host_launch_ns=launch_ns[1], host_input_ns=300)
        )
    found = input_bound(
        evidence(rows, [row for n in (1, 2, 3) for row in collective(n, (0, 300), 500)])
    )
    return found.saving_ns_per_step


def test_input_saves_no_more_than_lies_above_launching():
    # The fastest host without input takes 750.
    assert of_input(750, 1060) == 250


def test_input_saves_all_that_it_idles_where_launching_is_shorter():
    assert of_input(750, 1000) == 300


@pytest.mark.parametrize(("late_ns", "hidden_ns"), [(0, 0), (60, 60), (100, 100)])
def test_transfer_that_late_launches_expose_may_be_hidden(late_ns, hidden_ns):
    assert (
        saving(step(idle_launch_ns=300, exposed=100, exposed_late_comm_ns=late_ns))
        == 300 + hidden_ns
    )


def test_waiting_that_nobody_makes_by_launching_stays():
    # Of 100 that are exposed 70 are waiting.
    assert saving(step(idle_launch_ns=300, exposed=100, wait=70, exposed_late_comm_ns=60)) == 330


def test_communication_that_may_be_waiting_is_hidden_once():
    unknown = {"wait_ns": None, "exposed_wait_ns": None}
    rows = [
        step(0, idle_launch_ns=300, exposed=100, exposed_late_comm_ns=60) | unknown,
        step(1, idle_launch_ns=50, exposed=400, exposed_late_comm_ns=400) | unknown,
    ]
    bound = saving_without_launching(evidence(rows, are_groups_known=False))
    # On rank 0 50 may be waiting for rank 1, and the other 50 hidden; rank 1 is left with 550: 1000
    # less 50, 300 and 100.
    parts = {"idle_for_launches": 300, "possible_waiting": 50, "exposed_by_late_launches": 50}
    assert (bound.saving_ns, bound.limit_rank, dict(bound.parts)) == (400, 0, parts)


def test_hidden_transfer_is_a_part_of_the_bound():
    bound = saving_without_launching(
        evidence([step(idle_launch_ns=300, exposed=100, exposed_late_comm_ns=60)])
    )
    assert dict(bound.parts) == {"idle_for_launches": 300, "exposed_by_late_launches": 60}


def test_a_step_of_one_rank_waits_for_nobody():
    assert saving(*steps(1, 1, 2, idle_launch_ns=100)) == 100
