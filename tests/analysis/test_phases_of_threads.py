"""Phases on other threads than that of the steps, names with digits, and host times that one step dominates."""

import re

import numpy as np
import pyarrow as pa
import pytest

from nsyspipe.analysis.phases import (
    LaunchingThreads,
    PhaseRanges,
    backward_passes,
    launching_threads,
    phase_codes,
    phase_ranges,
)
from nsyspipe.analysis.steps import TextFamilies
from nsyspipe.analysis.summary import host_medians, is_dominated
from nsyspipe.model.names import PHASE_PATTERNS, PHASES
from tests.build.make import ints, members, ranges, texts_of

MAIN, AUTOGRAD, LOADER = 1, 2, 3
DEFAULTS = {phase: re.compile(pattern) for phase, pattern in PHASE_PATTERNS.items()}
STEPS = members((0, 100), (100, 200), rows=(0, 1))  # their thread is MAIN
OF_STEPS = (MAIN, 0, 100, "step 0"), (MAIN, 100, 200, "step 1")


def found(*rows, others):
    table = ranges(*OF_STEPS, *rows)
    texts = texts_of(table)
    phases = phase_ranges(
        table, phase_codes(TextFamilies.by_text(texts), DEFAULTS, texts), STEPS, others
    )
    columns = {name: (one.member, one.starts, one.ends) for name, one in phases.items()}
    known = {name: three for name, three in columns.items() if three[0].size}
    return {
        name: list(zip(*(one.tolist() for one in three), strict=True))
        for name, three in known.items()
    }


IN_BOTH_STEPS = LaunchingThreads(ints(0, 1), ints(AUTOGRAD, AUTOGRAD))


def codes_of(*texts, **patterns):
    names = pa.array(texts, pa.string())
    asked = DEFAULTS | {phase: re.compile(pattern) for phase, pattern in patterns.items()}
    codes = phase_codes(TextFamilies.by_text(names), asked, names)
    return [PHASES[code] if code >= 0 else None for code in codes.tolist()]


def test_a_pattern_with_digits_matches_the_text_as_it_is():
    assert codes_of("bprop 3", "bprop x", None, backward=r"bprop \d+") == ["backward", None, None]


def test_a_pattern_with_one_number_matches_that_text_alone():
    assert codes_of("layer 1", "layer 2, seq = 7", forward=r"^layer 2") == [None, "forward"]


def test_the_first_phase_of_a_text_counts_whichever_form_matched():
    # The usual forward matches the normalised text, the asked backward only the text as it is.
    assert codes_of("forward 7", backward=r"forward 7") == ["backward"]
    assert codes_of("backward 7", forward=r"backward 7") == ["backward"]


def test_ranges_of_a_thread_that_launches_the_steps_kernels_are_phases():
    rows = (AUTOGRAD, 40, 50, "block1.backward"), (AUTOGRAD, 50, 60, "block0.backward")
    assert found(*rows, others=IN_BOTH_STEPS) == {"backward": [(0, 40, 50), (0, 50, 60)]}


def test_ranges_of_a_thread_that_launches_in_another_step_alone_are_none():
    rows = (AUTOGRAD, 40, 50, "block.backward"), (AUTOGRAD, 140, 150, "block.backward")
    in_the_second = LaunchingThreads(ints(1), ints(AUTOGRAD))
    assert found(*rows, others=in_the_second) == {"backward": [(1, 140, 150)]}


def test_ranges_of_a_thread_that_launches_nothing_are_none():
    assert found((LOADER, 40, 50, "load batch"), others=IN_BOTH_STEPS) == {}


def test_recomputed_forward_on_autograds_thread_stays_in_backward():
    rows = (MAIN, 40, 90, "backward"), (AUTOGRAD, 50, 60, "forward")
    assert found(*rows, others=IN_BOTH_STEPS) == {
        "backward": [(0, 40, 90)],
        "forward": [(0, 50, 60)],
    }


def test_layers_inside_the_backward_range_of_the_steps_thread_add_nothing():
    rows = (MAIN, 40, 90, "backward"), (AUTOGRAD, 50, 60, "block.backward")
    assert found(*rows, others=IN_BOTH_STEPS) == {"backward": [(0, 40, 90)]}


def test_threads_that_launch_are_told_step_by_step():
    launches, threads = ints(10, 20, 99, 120, 250), ints(MAIN, AUTOGRAD, AUTOGRAD, LOADER, LOADER)
    others = launching_threads(STEPS, launches, threads)
    assert list(zip(others.member.tolist(), others.thread_id.tolist(), strict=True)) == [
        (0, AUTOGRAD),
        (1, LOADER),
    ]


@pytest.mark.parametrize(
    ("launched_between", "n_passes"),
    [
        ((), 1),  # layers of one pass
        ((49, MAIN), 1),  # inside the first range
        ((50, AUTOGRAD), 1),  # between them, by the thread of the ranges
        ((50, MAIN), 2),  # the forward of a second micro-batch
    ],
)
def test_layers_are_one_backward_pass_until_the_steps_thread_launches(launched_between, n_passes):
    times, threads = ints(*launched_between[:1]), ints(*launched_between[1:])
    backward = PhaseRanges(ints(0, 0), ints(40, 60), ints(50, 70))
    passes = backward_passes(backward, STEPS, times, threads)
    assert passes.starts.size == n_passes
    assert (int(passes.starts[0]), int(passes.ends[-1])) == (40, 70)


def test_backward_passes_end_with_their_step():
    backward = PhaseRanges(ints(0, 1), ints(90, 110), ints(95, 120))
    assert backward_passes(backward, STEPS, ints(), ints()).member.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        # Four of 10 and one of x: x is longer than the second by x - 10, a fifth of the sum 40 + x
        # if x is 22.5.
        ([10, 10, 10, 10, 22], False),
        ([10, 10, 10, 10, 23], True),
        ([10, 1000], False),  # of two, nobody tells which is usual
        ([10, 10, 1000], True),
        ([10, 10, 50, 50], False),  # two levels
        ([5, 5, 5, 5, 5, 5, 5, 453], True),
        ([0, 0, 0], False),
    ],
)
def test_a_mean_is_dominated_by_one_step_alone(times, expected):
    assert is_dominated(times) is expected


def phases(*rows):
    return pa.table(
        dict(zip(("phase", "rank", "host_ns"), map(list, zip(*rows, strict=True)), strict=True))
    )


def test_medians_are_of_all_ranks_of_the_phase_that_one_step_dominates():
    forward = [("forward", 0, ns) for ns in (5, 6, 7, 453)] + [
        ("forward", 1, ns) for ns in (4, 4, 5, 5)
    ]
    steady = [("backward", rank, 10) for rank in (0, 1) for _ in range(4)]
    assert host_medians(phases(*forward, *steady)) == {"forward": {0: 6.5, 1: 4.5}}


def test_host_times_that_are_not_known_dominate_nothing():
    assert host_medians(phases(*[("forward", 0, None)] * 3, ("backward", 0, 7))) == {}


def test_no_threads_have_no_pairs():
    nothing = LaunchingThreads(np.empty(0, np.int64), np.empty(0, np.int64))
    assert nothing.has(ints(0, 1), ints(MAIN, AUTOGRAD)).tolist() == [False, False]
