"""Which host ranges are phases of which step."""

from __future__ import annotations

import re

import pyarrow as pa
import pytest

from nsyspipe.analysis.phases import phase_codes, phase_ranges, phases_of_launches
from nsyspipe.analysis.steps import TextFamilies
from nsyspipe.model.names import PHASE_PATTERNS, PHASES
from tests.build.make import ints, members, phase, ranges, texts_of

DEFAULTS = {phase: re.compile(pattern) for phase, pattern in PHASE_PATTERNS.items()}
STEP = (0, 100)
TWO = members(STEP, (100, 200), rows=(0, 1))
TWO_RANGES = (1, *STEP, "step 0"), (1, 100, 200, "step 1")


def found(*rows, steps=TWO, patterns=DEFAULTS):
    """Return the non-empty phases of two steps and more ranges, as (step, start, end) each."""
    table = ranges(*TWO_RANGES, *rows)
    phases = phase_ranges(table, phase_codes(TextFamilies.by_text(texts_of(table)), patterns), steps)
    assert tuple(phases) == PHASES
    columns = {name: (one.member, one.starts, one.ends) for name, one in phases.items()}
    return {
        name: list(zip(*(column.tolist() for column in three), strict=True))
        for name, three in columns.items()
        if three[0].size
    }


def named(*texts, patterns=DEFAULTS):
    codes = phase_codes(TextFamilies.by_text(pa.array(texts, pa.string())), patterns)
    return [PHASES[code] if code >= 0 else None for code in codes.tolist()]


# --- phase_codes ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "phase"),
    [
        ("backward", "backward"),
        ("Backward pass 3", "backward"),
        ("loss.backward(), seq = 4", "backward"),
        ("bwd_2", "backward"),
        ("AddBackward0", None),  # autograd's own ranges: a letter stands before
        ("autograd::engine::evaluate_function: AddBackward0", None),
        ("backwards", None),
        ("forward", "forward"),
        ("FWD", "forward"),
        ("model_forward", "forward"),
        ("forwarding", None),
        ("forward_backward", "backward"),  # the first role in order wins
        ("optimizer step", "optimizer"),
        ("Optimizer.step#AdamW.step", "optimizer"),
        ("optim", "optimizer"),
        ("forward optimizer", "forward"),
        ("preoptim", None),
        ("get batch", "data"),
        ("get_batch", "data"),
        ("fetch-data", "data"),
        ("load input", "data"),
        ("next batch 7", "data"),
        ("dataloader", "data"),
        ("Batch 10", "data"),
        ("optimizer data", "optimizer"),
        ("metadata", None),
        ("step 3", None),
        ("", None),
        (None, None),
    ],
)
def test_default_roles_of_names(text, phase):
    assert named(text) == [phase]


def test_each_text_has_its_own_code_in_order():
    assert named("x", "backward 1", None, "get batch", "backward 2") == [
        None, "backward", None, "data", "backward",
    ]  # fmt: skip


def test_a_pattern_of_ones_own_replaces_the_default_and_sees_the_normalised_text():
    patterns = DEFAULTS | {"forward": re.compile(r"^layer #$")}
    assert named("layer 12, seq = 3", "forward", patterns=patterns) == ["forward", None]


# --- phase_ranges --------------------------------------------------------------------------


def test_phases_are_the_ranges_inside_each_step():
    assert found(
        (1, 160, 190, "backward"), (1, 5, 10, "get batch"), (1, 10, 40, "forward"), (1, 40, 80, "bwd"),
        (1, 80, 100, "optimizer step"), (1, 100, 150, "forward"), (1, 190, 195, "backward"),
    ) == {
        "backward": [(0, 40, 80), (1, 160, 190), (1, 190, 195)],
        "forward": [(0, 10, 40), (1, 100, 150)],
        "optimizer": [(0, 80, 100)],
        "data": [(0, 5, 10)],
    }  # fmt: skip


def test_a_range_that_contains_another_role_is_transparent():
    # The batch around everything is no data phase; the one around nothing else is.
    assert found((1, 0, 90, "batch"), (1, 10, 40, "forward"), (1, 40, 90, "backward"), (1, 90, 95, "batch")) == {
        "forward": [(0, 10, 40)],
        "backward": [(0, 40, 90)],
        "data": [(0, 90, 95)],
    }


@pytest.mark.parametrize("inner", [(0, 40), (50, 90)])
def test_a_range_contains_another_that_starts_or_ends_with_it(inner):
    assert found((1, 0, 90, "batch"), (1, *inner, "forward")) == {"forward": [(0, *inner)]}


def test_the_step_range_itself_is_no_phase():
    table = ranges((1, 0, 100, "Batch 1"), (1, 100, 200, "Batch 2"), (1, 120, 130, "load batch"))
    phases = phase_ranges(table, phase_codes(TextFamilies.by_text(texts_of(table)), DEFAULTS), TWO)
    assert {name: one.starts.tolist() for name, one in phases.items()} == {
        "backward": [], "forward": [], "optimizer": [], "data": [120],
    }  # fmt: skip


def test_without_ranges_or_steps_every_phase_is_empty():
    assert found(steps=members()) == {}
    nothing = phase_ranges(
        ranges(), phase_codes(TextFamilies.by_text(pa.array([], pa.string())), DEFAULTS), members(STEP, rows=())
    )
    assert {name: one.member.tolist() for name, one in nothing.items()} == {p: [] for p in PHASES}


@pytest.mark.parametrize(
    ("rows", "phases"),
    [
        # Of nested or equal ranges of one role the outermost counts; without a role a range hides nothing.
        ([(1, 20, 30, "forward 2"), (1, 10, 40, "forward"), (1, 10, 20, "fwd")], {"forward": [(0, 10, 40)]}),
        ([(1, 10, 40, "forward 1"), (1, 10, 40, "forward 2")], {"forward": [(0, 10, 40)]}),
        ([(1, 0, 90, "train"), (1, 10, 40, "forward"), (1, 20, 30, "layer")], {"forward": [(0, 10, 40)]}),
        # The outer backward holds a forward (recomputation), which itself holds a backward.
        ([(1, 0, 90, "backward"), (1, 10, 50, "forward"), (1, 20, 30, "backward")], {"backward": [(0, 20, 30)]}),
        # Ranges that only overlap both count, of one role or of two.
        ([(1, 10, 40, "forward"), (1, 30, 60, "bwd")], {"backward": [(0, 30, 60)], "forward": [(0, 10, 40)]}),
        ([(1, 10, 40, "forward 1"), (1, 30, 60, "forward 2")], {"forward": [(0, 10, 40), (0, 30, 60)]}),
        # Ranges of another thread are none and hide none; nor is one that sticks out of its step.
        ([(2, 10, 40, "backward"), (1, 5, 50, "forward"), (2, 0, 100, "forward")], {"forward": [(0, 5, 50)]}),
        ([(1, 90, 110, "backward"), (1, 98, 100, "optimizer")], {"optimizer": [(0, 98, 100)]}),
        ([(1, 0, 100, "forward")], {"forward": [(0, 0, 100)]}),
    ],
)
def test_which_ranges_are_phases(rows, phases):
    assert found(*rows) == phases


# --- phases_of_launches --------------------------------------------------------------------


def of_launches(*launches, **spans):
    """Return the phase of each launch; `spans` are the ranges of each phase."""
    phases = {name: phase(*((0, *span) for span in spans.get(name, ()))) for name in PHASES}
    codes = phases_of_launches(phases, ints(*launches)).tolist()
    return [PHASES[code] if code >= 0 else None for code in codes]


def test_a_launch_at_a_ranges_start_is_in_it_and_one_at_its_end_is_not():
    found = of_launches(9, 10, 19, 20, forward=[(10, 20)])
    assert found == [None, "forward", "forward", None]


def test_of_two_phases_whose_ranges_overlap_the_first_in_order_has_the_launch():
    # Backward before forward before optimizer before data, whichever began first.
    found = of_launches(5, 15, 25, forward=[(0, 20)], backward=[(10, 30)])
    assert found == ["forward", "backward", "backward"]
    found = of_launches(5, 15, 25, 35, data=[(0, 40)], optimizer=[(10, 30)], forward=[(20, 30)])
    assert found == ["data", "optimizer", "forward", "data"]


def test_a_range_of_no_length_holds_nothing_whether_others_overlap_or_not():
    assert of_launches(9, 10, 11, forward=[(10, 10)], backward=[(10, 12)]) == [None, *["backward"] * 2]  # fmt: skip
    assert of_launches(9, 10, 11, forward=[(5, 20)], backward=[(10, 10)]) == ["forward"] * 3
