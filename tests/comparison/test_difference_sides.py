"""What a difference takes for a side, and what it refuses."""

from __future__ import annotations

import pytest

from nsyspipe.api import diff
from nsyspipe.comparison.difference import Side
from nsyspipe.comparison.metrics import overall_verdict
from nsyspipe.errors import OptionError, ReportNotFoundError

STEPS = [(1000 + 3 * (number % 2), 100, 40, 60) for number in range(8)]


@pytest.fixture(scope="module")
def run(made):
    return made(STEPS, STEPS)


def test_a_side_is_a_side_a_run_or_a_path(run):
    folder = run.inputs[0].parent
    for given in (Side("x", (run,)), run, folder, str(folder / "run_*.sqlite")):
        assert diff(given, run).verdict == "no change"
    assert repr(diff(run, run)) == "<RunDifference 'run' -> 'run': no change>"


def test_a_path_that_is_none_is_an_error(run):
    with pytest.raises(ReportNotFoundError):
        diff("nowhere", run)


def test_a_side_needs_a_run_and_each_capture_once(run):
    with pytest.raises(OptionError, match="no run"):
        Side("x", ())
    with pytest.raises(OptionError, match="twice"):
        diff(Side("x", (run, run)), run)


@pytest.mark.parametrize(
    "options",
    [
        *({"min_effect": value} for value in (-0.1, float("nan"), float("inf"))),
        *({"confidence": value} for value in (0.5, 1.0)),
        {"metrics": ["speed"]},
    ],
)
def test_options_out_of_range_are_refused(run, options):
    with pytest.raises(OptionError):
        diff(run, run, **options)


def test_runs_that_are_not_comparable_are_judged_by_force_only(run, made):
    slower = made(*[[(2000 + one, *rest) for one, *rest in STEPS]] * 3)
    found = diff(run, slower)
    assert not found.is_comparable
    assert found.verdict == "inconclusive"
    row = found.metrics.to_pylist()[0]
    assert row["why"] == "not comparable: world-size"
    assert (row["baseline"], row["candidate"]) == (1201.5, 3201.5)  # the figures are there
    forced = diff(run, slower, force=True)
    assert forced.verdict == "regression"
    assert not forced.is_comparable


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        (["improvement", "no change"], "improvement"),
        (["no change", "no change"], "no change"),
        (["improvement", "inconclusive", "no change"], "inconclusive"),
        (["inconclusive", "regression", "improvement"], "regression"),
        # What has no direction does not enter beside what has one,
        (["neither change", "no change"], "no change"),
        (["neither inconclusive", "improvement"], "improvement"),
        # and alone it is never better nor worse.
        (["neither no change"], "no change"),
        (["neither change", "neither no change"], "inconclusive"),
        (["neither inconclusive"], "inconclusive"),
    ],
)
def test_several_metrics_have_one_verdict_of_the_contract(verdicts, expected):
    rows = [
        {"verdict": one.removeprefix("neither "), "better": "neither" if one.startswith("neither") else "lower"}
        for one in verdicts
    ]
    assert overall_verdict(rows) == expected
    assert overall_verdict(rows[::-1]) == expected


def test_a_side_is_shown_by_its_label_or_what_tells_it_from_the_other(run):
    assert Side("x", (run,)).name == "x"
    assert Side("x", (run,), "runs/x").name == "runs/x"
    assert "'runs/x' -> 'x'" in repr(diff(Side("x", (run,), "runs/x"), Side("x", (run,))))
