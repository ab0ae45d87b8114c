"""Limits of who is named for being late, just below and just above each. Times are ns, steps are of 1000."""

from nsyspipe.findings.lateness import ranks_with_slow_hosts
from nsyspipe.findings.model import Finding
from nsyspipe.findings.straggler import straggler
from tests.findings.make import collective, evidence, steps
from tests.findings.straggler_rules import late_in_turn, on_device, parts, run


def figure(given, name):
    """Return a figure of what `straggler` finds; None where it is not there."""
    found = straggler(given)
    assert isinstance(found, Finding), found
    return found.evidence.get(name)


DELAYS = "held_up_ns_per_step_by_rank"


# 10 of 1000 are 1 %, and more than a tenth of all delays, 50.
def test_a_rank_that_delays_others_by_1_percent_of_a_step_is_named():
    assert figure(parts(40, 10), DELAYS) == {"1": 40.0, "0": 10.0}


# 9 of 1000 are 0.9 %, but more than a tenth of all delays, 49.
def test_a_rank_that_delays_others_by_less_than_1_percent_is_not_named():
    assert figure(parts(40, 9), DELAYS) == {"1": 40.0}


# Rank 1 is late by 10 in the last step: 1 %.
def test_a_step_with_a_delay_of_1_percent_counts_as_held_up():
    assert figure(run(100, 100, 100, 10), "n_steps_held_up_by_rank") == {"1": 4}


# Rank 1 is late by 9 in the last step: 0.9 %.
def test_a_step_with_a_delay_of_less_than_1_percent_does_not():
    assert figure(run(100, 100, 100, 9), "n_steps_held_up_by_rank") == {"1": 3}


def late_before_the_first_step(start_ns):
    """Return three steps in which rank 1 delays the other by 50, 25 and 25, and began the first one so late."""
    rows = steps(2, 1, 2, 3, exposed=300)
    rows = [
        row | {"start_ns": 1000 + start_ns} if (row["rank"], row["step"]) == (1, 1) else row
        for row in rows
    ]
    delays = ((1, 50), (2, 25), (3, 25))
    met = [row for number, late in delays for row in collective(number, (0, late), 500)]
    return figure(evidence(rows, met), "late_before_first_step_ns")


# 10 of 50 + 25 + 25 are 10 %.
def test_a_start_that_is_late_by_a_tenth_of_all_delays_is_told():
    assert late_before_the_first_step(10) == 10


def test_a_start_that_is_late_by_less_than_a_tenth_is_not_told():
    assert late_before_the_first_step(9) is None


def slow_hosts(*launch_ns, compute_ns=(400, 400, 400)):
    """Return the slow ones of late ranks, of which only rank 1 is late."""
    late = late_in_turn(*launch_ns, compute_ns=compute_ns, late_in_each=[[1]] * 3)
    return ranks_with_slow_hosts(late, [1])


# Rank 1 launches in 930, and no other rank in more than 900: 30 of 1000 are 3 %.
def test_a_host_that_launches_3_percent_of_a_step_longer_is_slow():
    assert slow_hosts(900, 930, 900) == [1]


# Rank 2 launches in 901: rank 1 takes 29 longer, 2.9 %.
def test_a_host_that_launches_less_than_3_percent_longer_is_not_slow():
    assert slow_hosts(900, 930, 901) == []


# Rank 1 computes 429, 2.9 % of a step longer than the others.
def test_a_host_is_slow_if_its_rank_computes_less_than_3_percent_longer():
    assert slow_hosts(900, 930, 900, compute_ns=(400, 429, 400)) == [1]


# Rank 1 computes 430, 3 % of a step longer than the others.
def test_no_host_is_slow_whose_rank_computes_3_percent_longer():
    assert slow_hosts(900, 930, 900, compute_ns=(400, 430, 400)) == []


# Rank 1 takes 190 longer in forward, 10 in data, and 20 outside of phases: 60 % of 220 are 132.
def test_input_with_more_than_60_percent_of_the_excess_is_named():
    assert figure(on_device(133, forward=200, data=20), "phase") == "data"


def test_input_with_60_percent_of_the_excess_is_not_named():
    assert figure(on_device(132, forward=200, data=20), "phase") is None


def names_late_host(*late_ns):
    """Tell whether `straggler` names host b, both ranks of which come so late in each step."""
    met = [
        row
        for number, ns in enumerate(late_ns, start=1)
        for row in collective(number, (0, 0, ns, ns), 500)
    ]
    rows = steps(4, *range(1, len(late_ns) + 1), exposed=300)
    hosts = {0: "a", 1: "a", 2: "b", 3: "b"}
    found = straggler(evidence(rows, met, hosts=hosts, n_hosts=2))
    return isinstance(found, Finding) and found.evidence["node"] == "b"


# 90 of 3000 are 3 %.
def test_a_host_that_is_late_by_3_percent_of_all_steps_is_named():
    assert names_late_host(30, 30, 30)


# 89 of 3000 are 2.97 %.
def test_a_host_that_is_late_by_less_than_3_percent_is_not_named():
    assert not names_late_host(30, 30, 29)
