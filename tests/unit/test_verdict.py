"""The sentence that a summary leads with."""

from __future__ import annotations

import pytest

from nsyspipe.report.verdict import verdict


def figures(
    comm, exposed, *, hidden=None, backward=None, compute=None, idle=None, wait=None, n_steps=3
):
    return {
        "n_summary_steps": n_steps,
        "comm_share": comm,
        "exposed_comm_share": exposed,
        "overlap_ratio": hidden,
        "backward_overlap_ratio": backward,
        "compute_share": compute,
        "idle_share": idle,
        "wait_share": wait,
    }


@pytest.mark.parametrize(
    ("summary", "sentence"),
    [
        (
            figures(0.5, 0.48, hidden=0.04, backward=0.03),
            "Communication is 50 % of step time, 48 % exposed; 3 % of it hides under backward.",
        ),
        (
            figures(0.5, 0.001, hidden=0.998),
            "Communication is 50 % of step time, <1 % exposed; 100 % of it hides under compute (backward was not marked).",
        ),
        (
            figures(0.5, 0.48, hidden=0.04, backward=0.03, wait=0.05),
            (
                "Communication is 50 % of step time (5 % waiting for other ranks), 48 % exposed; 3 % of it hides under "
                "backward."
            ),
        ),
        (
            figures(0.5, 0.48, hidden=0.04, backward=0.03, wait=0.049),
            "Communication is 50 % of step time, 48 % exposed; 3 % of it hides under backward.",
        ),
        (
            figures(0.0, 0.0, compute=0.957, idle=0.032),
            "No communication: compute is 96 % of step time, idle 3 %.",
        ),
        (figures(0.0, 0.0, compute=0.957), "No communication: compute is 96 % of step time."),
        (
            figures(None, None, n_steps=0),
            "No step has a window on every rank, so there are no figures for the run.",
        ),
        (
            figures(None, None),
            "What the steps' time goes to is not known: kernels or their names were not recorded.",
        ),
    ],
)
def test_the_verdict_says_what_step_time_goes_to(summary, sentence):
    assert verdict(summary, n_ranks=2) == sentence


def test_without_gpu_activity_there_is_nothing_to_measure():
    nothing = figures(None, None)
    assert (
        verdict(nothing, n_ranks=0)
        == "No GPU activity was recorded, so there is nothing to measure."
    )
