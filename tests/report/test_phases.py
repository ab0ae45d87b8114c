"""What is said below the table of phases, and of phases that differ between ranks. Times are ns."""

from types import SimpleNamespace

import pytest

from nsyspipe.model import schema
from nsyspipe.report import words
from nsyspipe.run.rank_names import RankNames
from tests.findings.make import phase, step


def run_of(*rows, skipped=(), phases=()):
    """Return what a run says of steps and phases."""
    figures = {
        "breakdown": lambda: schema.STEPS.from_rows(rows),
        "phases": lambda: schema.PHASES.from_rows(phases),
    }
    return SimpleNamespace(skipped_steps=list(skipped), rank_names=RankNames(), **figures)


def backward(*host_by_step, rank):
    """Return backward in steps 1, 2, ...: so long on the host, and alike on every device."""
    return [
        phase("backward", rank, number, host_ns=ns)
        for number, ns in enumerate(host_by_step, start=1)
    ]


@pytest.mark.parametrize(
    ("leads", "in_host", "note"),
    [
        ((0, 0), 1019, None),
        ((0, 0), 1020, words.HOST_NOT_AHEAD),
        ((0, 99), 1020, words.HOST_NOT_AHEAD),
        ((0, 100), 1020, words.HOST_AHEAD),
        ((None, None), 1020, words.HOST_NOT_AHEAD),
    ],
)
def test_the_host_is_said_to_run_ahead_only_where_one_does(leads, in_host, note):
    run = run_of(*(step(rank, host_lead_ns=lead) for rank, lead in enumerate(leads)))
    assert words.host_note(run, in_host) == note


@pytest.mark.parametrize(
    ("lead", "skipped", "is_told"),
    [
        (100, (0,), False),
        (99, (0,), True),
        (100, (), True),
        (100, (3,), True),
    ],
)
def test_host_time_that_may_be_waiting_for_a_step_left_out_is_not_compared(lead, skipped, is_told):
    rows = [step(rank, 1, host_lead_ns=lead) for rank in range(2)]
    run = run_of(*rows, skipped=skipped, phases=backward(700, rank=0) + backward(100, rank=1))
    assert (words.phases_text(run) is not None) is is_told


def test_a_first_step_that_takes_the_host_no_longer_than_others_counts():
    ms = 1_000_000
    rows = [
        step(rank, number, wall=1000 * ms, host_lead_ns=500 * ms)
        for rank in range(2)
        for number in (1, 2)
    ]
    phases = backward(300 * ms, 300 * ms, rank=0) + backward(100 * ms, 120 * ms, rank=1)
    told = words.phases_text(run_of(*rows, skipped=(0,), phases=phases))
    assert "300.0 ms on rank 0, 110.0 ms on rank 1" in told


def test_host_time_of_later_steps_is_compared():
    ms = 1_000_000
    rows = [
        step(rank, number, wall=1000 * ms, host_lead_ns=500 * ms)
        for rank in range(2)
        for number in (1, 2, 3)
    ]
    phases = backward(450 * ms, 300 * ms, 300 * ms, rank=0) + backward(
        100 * ms, 110 * ms, 120 * ms, rank=1
    )
    told = words.phases_text(run_of(*rows, skipped=(0,), phases=phases))
    assert "300.0 ms on rank 0, 110.0 ms on rank 1" in told
