"""Families of range texts, how each rank measures them, and which one a run chooses."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pyarrow as pa
import pytest

from nsyspipe.analysis.steps import STEP_OPTION, Candidate, TextFamilies, candidates, choose, members_of, normalise
from tests.build.make import compute, operations, ranges, texts_of

NO_OPERATIONS = operations()


def one(name="step #", *, union=100, first=0, members=2, inside=1, launched=1):
    return Candidate(name, 1, union, first, members, inside, launched)


def measured(table, ops=NO_OPERATIONS, pattern=None, updates=None):
    texts = texts_of(table)
    families = TextFamilies.by_option(texts, re.compile(pattern)) if pattern else TextFamilies.by_text(texts)
    launches = None if updates is None else np.array(updates, np.int64)
    return candidates(table, families, ops, launches)


def facts(found):
    return [dataclasses.astuple(candidate)[:7] for candidate in found]


# --- texts ---------------------------------------------------------------------------------


def test_suffixes_are_dropped_and_each_run_of_digits_becomes_a_mark():
    texts = ["Batch 10", "aten::mm, seq = 7, op_id = 12", "a1b22c333", "step, seq 4", "", None]
    expected = ["Batch #", "aten::mm", "a#b#c#", "step, seq #", "", None]
    assert normalise(pa.array(texts, pa.string())).to_pylist() == expected


def test_texts_that_differ_in_digits_only_are_a_family():
    texts = pa.array(["Batch 10", "step 1", None, "Batch 9, seq = 4", "batch 10"])
    families = TextFamilies.by_text(texts)
    assert families.names == ["Batch #", "step #", "batch #"]
    assert families.of_text.tolist() == [0, 1, -1, 0, 2]


def test_an_option_makes_one_family_of_what_it_matches_anywhere_in_the_text_as_it_is():
    texts = pa.array(["train 1", "my train 2, seq = 5", None, "eval 5", "TRAIN 3"])
    families = TextFamilies.by_option(texts, re.compile(r"train|= 5$"))
    assert families.names == [STEP_OPTION]
    assert families.of_text.tolist() == [0, 0, -1, -1, -1]


def test_no_texts_make_no_family():
    nothing = pa.array([], pa.string())
    assert TextFamilies.by_text(nothing).names == []
    assert TextFamilies.by_option(nothing, re.compile("a")).of_text.tolist() == []


# --- candidates ----------------------------------------------------------------------------


def test_a_family_is_measured_on_the_thread_with_its_largest_union():
    # Thread 1: [0, 30) and [10, 40) = 40; thread 2: [0, 25) and [50, 75) = 50, though thread 1 has 60 in sum.
    table = ranges((1, 0, 30, "s 1"), (2, 50, 75, "s 2"), (1, 10, 40, "s 2"), (2, 0, 25, "s 1"))
    assert facts(measured(table)) == [("s #", 2, 50, 0, 2, 0, 0)]


@pytest.mark.parametrize(("threads", "best"), [((7, 3), 3), ((7, -3), -3), ((-7, -3), -7)])
def test_of_threads_with_equal_unions_the_lowest_counts(threads, best):
    # The other thread has more ranges and starts earlier: only the union and the id matter.
    other = max(threads)
    table = ranges((other, 0, 5, "s 1"), (other, 5, 10, "s 2"), (best, 10, 20, "s 1"))
    assert facts(measured(table)) == [("s #", best, 10, 10, 1, 0, 0)]


def test_no_ranges_or_none_that_the_option_matches_give_no_candidates():
    assert candidates(ranges(), TextFamilies([], NO_OPERATIONS.kernel_start), NO_OPERATIONS) == []
    assert measured(ranges((1, 0, 10, "s 1")), pattern="train") == []


@pytest.mark.parametrize(
    ("candidate", "qualifies"),
    [
        (one(members=1), False),
        (one(members=2), True),
        (one(inside=2, launched=4), True),  # exactly half
        (one(inside=1, launched=3), False),
        (one(inside=0, launched=0), True),  # a rank without launches is not asked
        (one(inside=0, launched=0, members=1), False),
    ],
)
def test_a_family_needs_two_members_and_half_of_the_launches(candidate, qualifies):
    assert candidate.qualifies is qualifies


# --- choose --------------------------------------------------------------------------------


def chosen(*ranks, shifts=None):
    return choose(ranks, shifts or [0] * len(ranks))


def test_the_largest_union_summed_over_ranks_wins():
    # a: 100 + 10, b: 50 + 61
    first = [one("a", union=100), one("b", union=50)]
    second = [one("b", union=61), one("a", union=10)]
    assert chosen(first, second) == "b"


def test_an_epoch_wins_only_if_nothing_else_qualifies():
    epoch, step = one("Epoch #", union=1000), one("step #", union=1)
    assert chosen([epoch, step]) == "step #"
    assert chosen([epoch, one("step #", members=1)]) == "Epoch #"


def test_of_equal_unions_the_earlier_first_range_wins_in_aligned_time():
    # First ranges: a at 5 and 9, b at 7 and 8; with rank 1 shifted by -4: a 5 and 5, b 7 and 4.
    ranks = [[one("a", first=5), one("b", first=7)], [one("a", first=9), one("b", first=8)]]
    assert chosen(*ranks) == "a"
    assert chosen(*ranks, shifts=[0, -4]) == "b"


def test_what_the_option_matches_on_any_rank_needs_no_vote():
    matched = one(STEP_OPTION, members=1, inside=0, launched=9)
    assert chosen([matched], []) == STEP_OPTION
    assert chosen([], [matched]) == STEP_OPTION
    assert chosen([], []) is None


def test_a_range_named_like_the_option_needs_a_vote_like_any_other():
    # Detected, not asked for: one member is not enough.
    assert chosen(measured(ranges((1, 0, 10, "--step")))) is None


# --- members_of ----------------------------------------------------------------------------


def test_members_are_the_kept_ranges_of_the_best_thread_in_order_of_start():
    table = ranges(
        (2, 0, 100, "other"),
        (2, 40, 60, "s 3"),
        (1, 0, 10, "s 1"),
        (2, 15, 35, "s 2"),  # starts inside [10, 30)
        (2, 10, 30, "s 1"),
        (2, 40, 45, "s 4"),  # starts with the longer [40, 60)
    )
    families = TextFamilies.by_text(texts_of(table))
    (best,) = (found for found in candidates(table, families, NO_OPERATIONS) if found.name == "s #")
    found = members_of(table, families, best)
    assert found.thread_id == 2
    assert (found.rows.tolist(), found.starts.tolist(), found.ends.tolist()) == ([4, 1], [10, 40], [30, 60])


# --- what is never a step ------------------------------------------------------------------


def test_ranges_of_a_librarys_domain_are_steps_only_by_option():
    table = ranges((1, 0, 50, "run 1"), (1, 50, 90, "run 2"), (1, 5, 6, "s 1"), libraries=(0, 1))
    assert [found.name for found in measured(table)] == ["s #"]
    assert facts(measured(table, pattern="run")) == [(STEP_OPTION, 1, 90, 0, 2, 0, 0)]


@pytest.mark.parametrize(
    "text", ["aten::to, seq = 4, op_id = 5", "{'mod': 'torch', 'op': 'conv2d'}", "c10d::allreduce_"]
)
def test_operators_are_steps_only_by_option(text):
    table = ranges((1, 0, 50, text), (1, 50, 90, text), (1, 5, 6, "s 1"))
    assert [found.name for found in measured(table)] == ["s #"]
    assert facts(measured(table, pattern=re.escape(text))) == [(STEP_OPTION, 1, 90, 0, 2, 0, 0)]


@pytest.mark.parametrize("text", ["Trainer::step 1", "{step 1}", "step aten::to"])
def test_texts_of_users_that_look_like_operators_may_be_steps(text):
    assert len(measured(ranges((1, 0, 9, text)))) == 1


LAYERS = ((1, 0, 100, "train"), *((1, 10 * at, 10 * at + 8, f"layer {at}") for at in range(1, 5)))


@pytest.mark.parametrize(
    ("updates", "is_part"),
    [
        (None, False),  # no optimizer that is known by its name
        ([95], True),
        ([12, 95], True),
        ([12, 22], False),  # half of the four members
        ([12, 13, 14], True),  # one member
        ([18, 28], True),  # at their ends, which are outside
    ],
)
def test_members_inside_one_range_are_parts_of_a_step_unless_half_of_them_update_weights(updates, is_part):
    ops = operations(*(compute(0, 1, at) for at in (12, 22, 32, 42)))
    found = {one.name: one for one in measured(ranges(*LAYERS), ops, updates=updates)}
    assert found["layer #"].is_part is is_part
    assert found["layer #"].qualifies is not is_part


@pytest.mark.parametrize(
    ("container", "is_part"),
    [
        ((1, 10, 28, "two of them"), True),
        ((1, 11, 37, "one of them"), False),
        ((2, 0, 100, "of another thread"), False),
        ((1, 0, 100, "layer 99"), False),  # of the family itself: the only member
    ],
)
def test_parts_of_a_step_lie_in_one_other_range_of_their_thread(container, is_part):
    ops = operations(*(compute(0, 1, at) for at in (12, 22, 32, 42)))
    found = measured(ranges(container, *LAYERS[1:]), ops, updates=[95])
    layers = next(one for one in found if one.name == "layer #")
    assert layers.is_part is is_part


def test_a_family_named_by_the_option_is_never_a_part():
    ops = operations(*(compute(0, 1, at) for at in (12, 22, 32, 42)))
    (found,) = measured(ranges(*LAYERS), ops, pattern="layer", updates=[95])
    assert not found.is_part


def test_a_family_inside_anothers_ranges_loses_to_it_where_both_take_as_long():
    # Layers without a gap between them: as much time, the same start, and first in the alphabet.
    steps = [(1, at, at + 20, f"step {at}") for at in (0, 20)]
    layers = [(1, at, at + 10, f"layer {at}") for at in (0, 10, 20, 30)]
    found = measured(ranges(*steps, *layers))
    assert [one.holders for one in found] == [("step #",), ()]
    assert choose([found], [0]) == "step #"


@pytest.mark.parametrize("name", ["warmup #", "Warm-up # of #", "warm_up #"])
def test_a_warm_up_wins_only_if_nothing_else_qualifies(name):
    both = [one(name, union=1000), one("step #", union=10)]
    assert choose([both], [0]) == "step #"
    assert choose([both[:1]], [0]) == name
