"""Why the devices idle, in one line."""

from __future__ import annotations

import pytest

from nsyspipe.model import schema
from nsyspipe.report.words import idle_text

CAUSES = ("input", "launch", "blocked", "dependency", "unknown")


def text(*causes, wall=10_000, calls=("cudaMalloc", "cudaFree"), more=()):
    """Return the line of steps with these five causes each; the causes sum to the idle time."""
    rows = [row(causes, wall), *more]
    named = [{"call": call, "blocked_ns_per_step": 9.0 - at} for at, call in enumerate(calls)]
    return idle_text(schema.STEPS.from_rows(rows), schema.IDLE_CALLS.from_rows(named))


def row(causes, wall, idle=None):
    columns = {f"idle_{name}_ns": ns for name, ns in zip(CAUSES, causes, strict=True)}
    return {"wall_ns": wall, "idle_ns": sum(causes) if idle is None else idle} | columns


def test_the_largest_cause_stands_first_and_small_ones_are_left_out():
    assert text(290, 400, 110, 540, 9) == (
        "idle 13.5 %: dependency 5.4 %, launch 4.0 %, input 2.9 %, blocked 1.1 % (cudaMalloc)"
    )
    assert text(0, 0, 0, 200, 10) == "idle 2.1 %: dependency 2.0 %, unknown 0.1 %"


def test_steps_are_pooled():
    assert text(100, 0, 0, 0, 0, wall=1000, more=[row((0, 200, 0, 0, 0), 3000)]) == (
        "idle 7.5 %: launch 5.0 %, input 2.5 %"
    )


@pytest.mark.parametrize(("idle", "is_said"), [(200, True), (199, False), (0, False)])
def test_idle_time_under_2_percent_is_not_explained(idle, is_said):
    assert bool(text(idle, 0, 0, 0, 0)) == is_said


def test_causes_that_cannot_be_told_apart_stand_together():
    assert idle_text(
        schema.STEPS.from_rows([row((30, None, None, 20, 0), 1000, idle=200)]),
        schema.IDLE_CALLS.empty(),
    ) == "idle 20.0 %: launch or blocked 15.0 %, input 3.0 %, dependency 2.0 %"  # fmt: skip


@pytest.mark.parametrize(
    "rows",
    [[], [row((None,) * 5, 1000, idle=300) | {"idle_ns": None}], [row((0,) * 5, 0)]],
    ids=["no steps", "not recorded", "no time"],
)
def test_what_is_not_known_is_not_said(rows):
    assert idle_text(schema.STEPS.from_rows(rows), schema.IDLE_CALLS.empty()) is None


def test_names_of_calls_are_made_fit_to_show():
    assert text(0, 0, 500, 0, 0, calls=["\x1b[31mcall" + "x" * 500]).endswith(
        " (\N{REPLACEMENT CHARACTER}[31mcall" + "x" * 26 + ")"
    )
    assert text(0, 0, 500, 0, 0, calls=[]) == "idle 5.0 %: blocked 5.0 %"
