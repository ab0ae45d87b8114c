"""Which host ranges are phases of which step, and their means; what each costs is in tests/property."""

from __future__ import annotations

import re

import pyarrow as pa
import pytest

from nsyspipe.analysis.phases import phase_codes, phase_ranges, phases_of_launches, with_copies_behind
from nsyspipe.analysis.steps import TextFamilies
from nsyspipe.analysis.summary import phase_summary
from nsyspipe.model import schema
from nsyspipe.model.names import PHASE_PATTERNS, PHASES
from tests.build.make import compute, dtod, htod, ints, members, operations, phase, ranges, texts_of

DEFAULTS = {phase: re.compile(pattern) for phase, pattern in PHASE_PATTERNS.items()}
STEP = (0, 100)
TWO = members(STEP, (100, 200), rows=(0, 1))
TWO_RANGES = (1, *STEP, "step 0"), (1, 100, 200, "step 1")


def found(*rows, steps=TWO, of_steps=TWO_RANGES):
    """Return the non-empty phases of two steps and more ranges, as (step, start, end) each."""
    table = ranges(*of_steps, *rows)
    texts = texts_of(table) if len(table) else pa.array([], pa.string())
    phases = phase_ranges(table, phase_codes(TextFamilies.by_text(texts), DEFAULTS), steps)
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


ROLES = {
    "backward": ("backward", "Backward pass 3", "loss.backward(), seq = 4", "bwd_2", "forward_backward"),  # the first wins
    "forward": ("forward", "FWD", "model_forward", "forward optimizer"),
    "optimizer": ("optimizer step", "Optimizer.step#AdamW.step", "optim", "optimizer data"),
    "data": ("get batch", "get_batch", "fetch-data", "load input", "next batch 7", "dataloader", "Batch 10"),
    # autograd's own ranges: a letter stands before
    None: ("AddBackward0", "autograd::engine::evaluate_function: AddBackward0", "backwards", "forwarding", "preoptim",
           "metadata", "step 3", "", None),
}  # fmt: skip


@pytest.mark.parametrize("phase", ROLES)
def test_default_roles_of_names(phase):
    assert named(*ROLES[phase]) == [phase] * len(ROLES[phase])


def test_a_pattern_of_ones_own_replaces_the_default_and_sees_the_normalised_text():
    patterns = DEFAULTS | {"forward": re.compile(r"^layer #$")}
    assert named("layer 12, seq = 3", "x", "forward", "bwd", patterns=patterns) == ["forward", None, None, "backward"]


@pytest.mark.parametrize(("rows", "phases"), [
    # The ranges inside each step, which start or end with it or not.
    ([*((1, 160, 190, "backward"), (1, 5, 10, "get batch"), (1, 10, 40, "forward"), (1, 40, 80, "bwd")),
     *((1, 80, 100, "optimizer step"), (1, 100, 150, "forward"), (1, 190, 195, "backward"))],
     {"backward": [(0, 40, 80), (1, 160, 190), (1, 190, 195)], "forward": [(0, 10, 40), (1, 100, 150)],
     "optimizer": [(0, 80, 100)], "data": [(0, 5, 10)]}),
    # The batch around everything is no data phase; the one around nothing else is.
    ([(1, 0, 90, "batch"), (1, 10, 40, "forward"), (1, 40, 90, "backward"), (1, 90, 95, "batch")],
     {"forward": [(0, 10, 40)], "backward": [(0, 40, 90)], "data": [(0, 90, 95)]}),
    # It contains one that starts or ends with it.
    ([(1, 0, 90, "batch"), (1, 0, 40, "forward")], {"forward": [(0, 0, 40)]}),
    ([(1, 0, 90, "batch"), (1, 50, 90, "forward")], {"forward": [(0, 50, 90)]}),
    # Of nested or equal ranges of one role the outermost counts; without a role a range hides nothing.
    ([(1, 20, 30, "forward 2"), (1, 10, 40, "forward"), (1, 10, 20, "fwd")], {"forward": [(0, 10, 40)]}),
    # Ranges of another thread are none and hide none; nor is one that sticks out of its step.
    ([(2, 10, 40, "backward"), (1, 5, 50, "forward"), (2, 0, 100, "forward")], {"forward": [(0, 5, 50)]}),
    ([(1, 90, 110, "backward"), (1, 98, 100, "optimizer")], {"optimizer": [(0, 98, 100)]}),
    # The outer backward holds a forward (recomputation), which itself holds a backward.
    ([(1, 0, 90, "backward"), (1, 10, 50, "forward"), (1, 20, 30, "backward")], {"backward": [(0, 20, 30)]}),
])  # fmt: skip
def test_which_ranges_are_phases(rows, phases):
    assert found(*rows) == phases


def test_the_step_range_itself_is_no_phase_and_without_ranges_or_steps_there_is_none():
    batches = (1, 0, 100, "Batch 1"), (1, 100, 200, "Batch 2"), (1, 120, 130, "load batch")
    assert found(of_steps=batches) == {"data": [(1, 120, 130)]}
    assert found(steps=members()) == found(steps=members(STEP, rows=()), of_steps=()) == {}


@pytest.mark.parametrize(("launches", "spans", "phases"), [
    # At a range's start it is in it, at its end it is not.
    ((9, 10, 19, 20), {"forward": (10, 20)}, [None, "forward", "forward", None]),
    # Of two that overlap, backward before forward before optimizer before data, whichever began first.
    ((5, 15, 25), {"forward": (0, 20), "backward": (10, 30)}, ["forward", "backward", "backward"]),
    ((5, 15, 25, 35), {"data": (0, 40), "optimizer": (10, 30), "forward": (20, 30)},
     ["data", "optimizer", "forward", "data"]),
    # One of no length holds nothing, whether others overlap or not.
    ((9, 10, 11), {"forward": (10, 10), "backward": (10, 12)}, [None, "backward", "backward"]),
    ((9, 10, 11), {"forward": (5, 20), "backward": (10, 10)}, ["forward"] * 3),
])  # fmt: skip
def test_which_phase_a_launch_is_in(launches, spans, phases):
    of_phase = {name: phase(*((0, *span) for span in (spans.get(name),) if span)) for name in PHASES}
    codes = phases_of_launches(of_phase, ints(*launches)).tolist()
    assert [PHASES[code] if code >= 0 else None for code in codes] == phases


ALL_TIMES = ("host_ns", "compute_ns", "comm_ns", "device_ns", "exposed_comm_ns", "idle_ns")


def means(*rows):
    """Return the means of rows of (phase, host time, ...), all other times being equal to the last given."""
    filled = [(row[0], *row[1:], *[row[-1]] * (len(ALL_TIMES) + 1 - len(row))) for row in rows]
    keys = ("phase", *ALL_TIMES)
    table = schema.PHASES.from_rows([dict(zip(keys, row, strict=True)) for row in filled])
    found = phase_summary(table).to_pylist()
    return {one.pop("phase"): list(one.values()) for one in found}


def test_a_phase_of_a_run_has_the_means_over_the_ranks_and_steps_that_have_it():
    run = means(("forward", 10, 4), ("backward", 30, 2), ("forward", 13, 5), ("data", 10, 4), ("data", 12, None))
    # A mean is null where a time is null anywhere, and no other.
    assert run == {"backward": [30.0, *[2.0] * 5], "data": [11.0, *[None] * 5], "forward": [11.5, *[4.5] * 5]}
    assert list(run) == ["backward", "data", "forward"]
    assert means() == {}


def test_copies_behind_the_last_kernel_of_a_pass_are_of_it_up_to_the_next_kernel():
    kernels = [compute(at, at + 1, launch) for at, launch in ((0, 10), (2, 20), (4, 50), (6, 60))]
    copies = [dtod(8, 9, 22), dtod(10, 11, 30), htod(12, 13, 40), dtod(14, 15, 55), dtod(16, 17, 70), dtod(18, 19)]
    passes = phase((0, 10, 21), (0, 50, 51), (1, 60, 61))
    # Not those behind the next kernel, other copies, and what nothing launched.
    assert with_copies_behind(passes, operations(*kernels, *copies)).ends.tolist() == [31, 56, 71]
    assert with_copies_behind(passes, operations(*kernels)).ends.tolist() == [21, 51, 61]
    assert with_copies_behind(passes, operations(*kernels, dtod(0, 1, 5))).ends.tolist() == [21, 51, 61]
