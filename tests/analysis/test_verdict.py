"""The sentence that a summary leads with."""

from __future__ import annotations

import numpy as np
import pytest

from nsyspipe.analysis.summary import evenness
from nsyspipe.report.words import verdict


def figures(comm, exposed, *, hidden=None, backward=None, compute=None, copies=None, idle=None, wait=None, n_steps=3):
    return {
        "n_summary_steps": n_steps,
        "comm_share": comm,
        "exposed_comm_share": exposed,
        "overlap_ratio": hidden,
        "backward_overlap_ratio": backward,
        "compute_share": compute,
        "exposed_memory_share": copies,
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
        (figures(0.0, 0.0, compute=0.957, idle=0.032), "No communication: compute is 96 % of step time, idle 3 %."),
        (
            figures(0.0, 0.0, compute=0.001, copies=0.9, idle=0.099),
            "No communication: compute is <1 % of step time, copies 90 %, idle 10 %.",
        ),
        (
            figures(0.2, 0.0, hidden=1.0, backward=0.0),
            "Communication is 20 % of step time, 0 % exposed; 100 % of it hides under compute, 0 % under backward's.",
        ),
        (figures(0.0, 0.0, compute=0.957), "No communication: compute is 96 % of step time."),
        (figures(None, None, n_steps=0), "No step has a window on every rank, so there are no figures for the run."),
        (figures(None, None), "What the steps' time goes to is not known: kernels or their names were not recorded."),
    ],
)
def test_the_verdict_says_what_step_time_goes_to(summary, sentence):
    assert verdict(summary, n_ranks=2) == sentence


def test_why_nothing_is_said_of_backward_is_the_reason():
    one = figures(0.5, 0.001, hidden=0.998)
    text = verdict(one, n_ranks=2, is_capture=True)
    assert text.endswith("hides under compute (there are no steps to look for backward in).")
    lost = {"code": "no-launches", "severity": "warning"}
    text = verdict(one, n_ranks=2, problems=[lost])
    assert text.endswith("hides under compute (what backward launched was not recorded).")


def test_idle_time_is_not_said_where_whole_graphs_may_hide_some():
    whole = {"code": "graphs-as-a-whole", "severity": "warning"}
    text = verdict(figures(0.0, 0.0, compute=0.957, idle=0.032), n_ranks=1, problems=[whole])
    assert text == "No communication: compute is 96 % of step time."


def test_without_gpu_activity_there_is_nothing_to_measure():
    nothing = figures(None, None)
    assert verdict(nothing, n_ranks=0) == "No GPU activity was recorded, so there is nothing to measure."


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        # Means and shares by hand: half of 132 + 1400.
        ([132, 1400] * 5, "mean 766.0 ms, median 766.0 ms, which no step takes; 132.0 ms and 1400 ms in turn"),
        # A fifth of 400 + 600.
        ([100, 100, 100, 100, 600] * 2, "mean 200.0 ms, median 100.0 ms; every fifth step takes about 6.0 times as long (600.0 ms instead of 100.0 ms)"),
        # A third of 200 + 180; 80 more than 100.
        ([100, 100, 180] * 4, "mean 126.7 ms, median 100.0 ms; every third step is about 80 % longer (180.0 ms instead of 100.0 ms)"),
        # 500 less than 600.
        ([600, 600, 600, 100] * 3, "mean 475.0 ms, median 600.0 ms; every fourth step is about 83 % shorter (100.0 ms instead of 600.0 ms)"),
        ([100] * 11 + [900] + [100] * 11 + [900], "mean 166.7 ms, median 100.0 ms; every 12th step takes about 9.0 times as long (900.0 ms instead of 100.0 ms)"),
        ([100, 300, 300, 100, 300, 100, 100, 100], "mean 175.0 ms, median 100.0 ms; two levels, 100.0 ms and 300.0 ms (3 of 8 steps)"),
        # No two levels: a quarter of 1500, half of 200 + 400.
        ([100, 200, 400, 800], "mean 375.0 ms, median 300.0 ms, which no step takes"),
    ],
)  # fmt: skip
def test_uneven_steps_are_said_with_mean_median_and_pattern(steps, said):
    found = verdict(figures(0.0, 0.0, compute=0.9), 1, evenness=evenness(np.array(steps) * 1e6))
    assert found.split("\n")[1] == f"Steps are uneven: {said}."


def test_of_even_steps_nothing_is_said():
    # Every fifth 10 % longer: mean 102, and all within 10 % of the median.
    even = evenness(np.array([100.0, 100, 100, 100, 110] * 3))
    assert "uneven" not in verdict(figures(0.0, 0.0, compute=0.9), 1, evenness=even)
