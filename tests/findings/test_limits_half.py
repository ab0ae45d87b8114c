"""Limits of one half, which have no names, just below and just above each. Times are ns, steps are of 1000."""

from nsyspipe.findings.host import input_bound, launch_bound
from nsyspipe.findings.lateness import find_culprit, measure_lateness
from nsyspipe.findings.longer_phase import find_longer_phase
from nsyspipe.findings.profiler import profiler_overhead
from tests.findings.device_rules import DATA, INPUT, LAUNCH, idle, started
from tests.findings.make import collective, evidence, phase, step, steps
from tests.findings.role_rules import stages


def saving_of_stages(pause_ns):
    """Return the saving of `launch_bound` of two stages that idle 100 each for launches, so much of it in pauses."""
    given = stages(300, 300, idle_launch_ns=100, idle_pause_ns=pause_ns)
    return launch_bound(given).saving_ns_per_step


# 100 - 50 are half: these 50, and 50 of waiting that the other stage makes.
def test_stages_that_pause_for_half_of_their_idle_time_have_a_saving():
    assert saving_of_stages(50) == 100


# 100 - 51 are 49 %.
def test_stages_that_pause_for_more_than_half_of_it_have_none():
    assert saving_of_stages(51) is None


def saving_of_stages_in_unknown_groups(pause_ns):
    """Return the same where it is not known which ranks form a group."""
    unknown = dict.fromkeys(["wait_ns", "exposed_wait_ns", "transfer_ns"])
    known = {"exposed": 300, "idle_launch_ns": 100, "idle_pause_ns": pause_ns}
    rows = [step(rank, **known) | unknown for rank in range(2)]
    given = evidence(
        rows, traffic=stages(300, 300).traffic.to_pylist(), phases=DATA, are_groups_known=False
    )
    return launch_bound(given).saving_ns_per_step


def test_stages_of_unknown_groups_that_pause_for_half_have_a_saving():
    assert saving_of_stages_in_unknown_groups(50) is not None


def test_stages_of_unknown_groups_that_pause_for_more_than_half_have_none():
    assert saving_of_stages_in_unknown_groups(51) is None


def action_with_idle_time_between_steps(between_ns):
    """Return what `input_bound` advises where so much of 300 ns of idle time for input lies between steps."""
    return input_bound(idle(INPUT, 300, idle_between_steps_ns=between_ns)).action


def test_input_between_steps_has_an_action_of_its_own():
    assert action_with_idle_time_between_steps(300) != action_with_idle_time_between_steps(0)


# 151 of 300 are 50.3 %.
def test_input_of_which_more_than_half_lies_between_steps_is_between_steps():
    assert action_with_idle_time_between_steps(151) == action_with_idle_time_between_steps(300)


def test_input_of_which_half_lies_between_steps_is_not():
    assert action_with_idle_time_between_steps(150) == action_with_idle_time_between_steps(0)


def action_with_start_of_capture(wait_ns):
    """Return what `profiler_overhead` advises where so much of 110 ns that a first step takes longer is waiting."""
    return profiler_overhead(started(wait_ns, 0)).action


def test_a_first_step_that_the_capture_distorts_has_an_action_of_its_own():
    assert action_with_start_of_capture(110) != action_with_start_of_capture(0)


# 55 of 110 are half.
def test_half_of_a_long_first_step_explained_by_the_capture_is_enough():
    assert action_with_start_of_capture(55) == action_with_start_of_capture(110)


def test_less_than_half_explained_by_the_capture_is_not_enough():
    assert action_with_start_of_capture(54) == action_with_start_of_capture(0)


def title_with_idle_ranks(middle_ns):
    """Return the title of `launch_bound` where of three ranks one idles 300, one nothing, and one so long."""
    return launch_bound(idle(LAUNCH, 300, middle_ns, 0)).title


def test_a_rank_that_idles_alone_has_a_title_of_its_own():
    assert title_with_idle_ranks(0) != title_with_idle_ranks(290)


# 149 of 300 are less than half.
def test_a_rank_is_named_if_the_middle_one_idles_less_than_half_of_it():
    assert title_with_idle_ranks(149) == title_with_idle_ranks(0)


# 150 of 300 are half.
def test_no_rank_is_named_if_the_middle_one_idles_half_of_it():
    assert title_with_idle_ranks(150) == title_with_idle_ranks(290)


def is_idle_in_forward(idle_ns):
    """Tell whether rank 1 is said to idle in forward, of which it takes 200 longer and idles so much of it."""
    phases = [
        phase("forward", rank, host_ns=own, device_ns=busy, idle_ns=own - busy)
        for rank, own, busy in ((0, 0, 0), (1, 200, 200 - idle_ns))
    ]
    given = evidence([step(0, exposed=200, wait=200), step(1)], phases=phases)
    return find_longer_phase(given, 1, [1]).is_idle


# 101 of 200 are 50.5 %.
def test_a_phase_that_idles_for_more_than_half_of_the_excess_is_idle():
    assert is_idle_in_forward(101)


def test_a_phase_that_idles_for_half_of_the_excess_is_not():
    assert not is_idle_in_forward(100)


def is_node_to_blame(other_ns):
    """Tell whether host b is named that is late by 100 in each of three steps; rank 1 then delays all by so much."""
    met = []
    for number in (1, 2, 3):
        met += collective(number, (0, 0, 100, 100), 200)
        met += collective(number, (300, 300 + other_ns, 300, 300), 900, seq=1)
    hosts = {0: "a", 1: "a", 2: "b", 3: "b"}
    given = evidence(steps(4, 1, 2, 3, exposed=700), met, hosts=hosts, n_hosts=2)
    culprit = find_culprit(given, measure_lateness(given))
    return hasattr(culprit, "host")


# The largest delays of steps are 200 each: 100 are half.
def test_a_host_with_half_of_the_largest_delays_is_named():
    assert is_node_to_blame(200)


# 100 of 201 are 49.8 %.
def test_a_host_with_less_than_half_of_the_largest_delays_is_not():
    assert not is_node_to_blame(201)


def title_with_wait_of_idle_rank(wait_ns):
    """Return the title of `launch_bound` where rank 0 idles 300 and waits so long, and rank 1 waits 200."""
    rows = [
        step(0, idle_launch_ns=300, exposed=wait_ns, wait=wait_ns),
        step(1, exposed=200, wait=200),
    ]
    return launch_bound(evidence(rows, phases=DATA)).title


def test_an_idle_rank_that_the_others_wait_for_has_a_title_of_its_own():
    assert title_with_wait_of_idle_rank(0) != title_with_wait_of_idle_rank(150)


# 100 of 200 are half.
def test_the_others_wait_for_an_idle_rank_that_waits_half_as_long():
    assert title_with_wait_of_idle_rank(100) == title_with_wait_of_idle_rank(0)


# 101 of 200 are 50.5 %.
def test_all_ranks_wait_for_each_other_if_the_idle_one_waits_longer():
    assert title_with_wait_of_idle_rank(101) == title_with_wait_of_idle_rank(150)
