"""Rule launch-bound: the GPU idles because kernels are launched late; and it speaks for all rules about idle time."""

from __future__ import annotations

import pytest

from nsyspipe.findings.launch_bound import launch_bound
from nsyspipe.model.step_tables import IDLE_CAUSES
from tests.findings.make import evidence, fired, not_judged, phase, silent, step, steps

DATA = [phase("data"), phase("forward")]


def late(*by_rank, phases=DATA, **more):
    """Return ranks that idle so long for launches; the others wait for the one that idles most."""
    most = max(idle or 0 for idle in by_rank)
    rows = [
        step(rank, idle_launch_ns=idle, exposed=most - (idle or 0), wait=most - (idle or 0), **more)
        for rank, idle in enumerate(by_rank)
    ]
    return evidence(rows, phases=phases)


def test_idle_time_for_want_of_launches_is_the_saving():
    found = fired(launch_bound, late(250, idle_dependency_ns=30))
    assert found.saving_ns_per_step == 250
    assert found.action == "launch less: torch.compile, CUDA graphs, fused=True"
    assert found.evidence == {
        "idle_ns_per_step": 280,
        "idle_input_ns_per_step": 0,
        "idle_launch_ns_per_step": 250,
        "idle_blocked_ns_per_step": 0,
        "idle_dependency_ns_per_step": 30,
        "idle_unknown_ns_per_step": 0,
        "idle_pause_ns_per_step": 0,
    }


@pytest.mark.parametrize(("pause", "is_pausing"), [(125, True), (124, False), (None, False)])
def test_who_pauses_is_not_told_to_launch_faster(pause, is_pausing):
    found = fired(launch_bound, late(250, idle_pause_ns=pause))
    assert ("torch.compile" in found.advice) != is_pausing
    assert found.action.startswith("find what the host does" if is_pausing else "launch less")
    assert found.saving_ns_per_step == 250


def test_the_pauses_of_the_judged_rank_count():
    rows = [
        step(0, idle_launch_ns=100, idle_pause_ns=0),
        step(1, exposed=100, wait=100, idle_pause_ns=0),
    ]
    rows[1] |= {"idle_launch_ns": 50, "idle_pause_ns": 50, "compute_ns": 850, "idle_ns": 50}
    assert fired(launch_bound, evidence(rows, phases=DATA)).action.startswith("launch less")


@pytest.mark.parametrize(("idle", "fires"), [(20, True), (19, False)])
def test_it_needs_2_percent_of_step_time(idle, fires):
    (fired if fires else silent)(launch_bound, late(idle))


@pytest.mark.parametrize("by_rank", [(20, 900), (900, 0, 20), (0, 900), (900, 0, 0)])
def test_the_rank_that_the_others_wait_for_decides(by_rank):
    found = fired(launch_bound, late(*by_rank))
    assert found.saving_ns_per_step == 900
    rank = by_rank.index(900)
    assert found.title.endswith(f"launched late on rank {rank}, which the others wait for")


def test_ranks_that_wait_for_each_other_wait_for_none():
    # Rank 1 waits least in two of three steps and idles for nothing in them; 600 of rank 0 in the third are all there is.
    waits, idles = [(300, 200), (300, 200), (200, 300)], [(0, 0), (0, 0), (600, 0)]
    rows = [
        step(rank, number, wait=wait[rank], exposed=wait[rank], idle_launch_ns=idle[rank])
        for number, (wait, idle) in enumerate(zip(waits, idles, strict=True), start=1)
        for rank in range(2)
    ]
    found = fired(launch_bound, evidence(rows, phases=DATA))
    assert found.title.endswith("launched late on rank 0")
    assert found.evidence["rank"] == 0


def test_where_all_idle_alike_no_rank_is_named():
    assert fired(launch_bound, late(300, 290)).title.endswith("launched late")


@pytest.mark.parametrize("phases", [[], [phase("forward")]])
def test_without_a_data_phase_the_host_may_have_been_loading(phases):
    found = fired(launch_bound, late(250, phases=phases))
    assert found.action == "launch less (torch.compile), or load data faster"
    assert "'data'" in found.advice


@pytest.mark.parametrize(
    "given",
    [late(0, idle_input_ns=300), late(0, idle_blocked_ns=300), late(0, idle_dependency_ns=300)],
    ids=["input", "blocked", "dependency"],
)
def test_other_causes_are_other_rules(given):
    silent(launch_bound, given)


# --- what cannot be judged ------------------------------------------------------------------------


@pytest.mark.parametrize(("unknown", "is_judged"), [(19, True), (20, False)])
def test_idle_time_without_a_cause_leaves_it_open(unknown, is_judged):
    (fired if is_judged else not_judged)(launch_bound, late(300, idle_unknown_ns=unknown))


@pytest.mark.parametrize("missing", ["idle_launch_ns", "idle_unknown_ns"])
def test_causes_that_were_not_recorded_leave_all_three_rules_open(missing):
    reason = not_judged(launch_bound, evidence([step(**{missing: None})]))
    assert "input-bound and sync-bound" in reason


def test_only_what_is_missing_is_named_and_only_rules_that_were_not_judged():
    # 25 % of the step idles before operations without a launch; input-bound fires nevertheless.
    reason = not_judged(launch_bound, evidence([step(idle_input_ns=300, idle_unknown_ns=250)]))
    assert reason == (
        "why the GPU idles is not known without the launches of kernels and copies that end 25 % of step time of it, "
        "so sync-bound is not either"
    )


def test_a_report_without_copies_knows_no_idle_time():
    nothing = dict.fromkeys(["idle_ns", "exposed_memory_ns", *IDLE_CAUSES])
    assert "copies" in not_judged(launch_bound, evidence(steps(2, **nothing)))


def test_one_rank_of_which_it_is_not_known_leaves_it_open():
    not_judged(launch_bound, late(300, None))


def test_windows_without_length_idle_for_no_share_of_time():
    silent(launch_bound, evidence([step(wall=0)]))
