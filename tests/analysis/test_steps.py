"""Which ranges are steps, step windows on the device, and which steps count."""

import re

import numpy as np
import pyarrow as pa
import pytest
from msgspec import structs

from nsyspipe.analysis import steps as module
from nsyspipe.analysis.phases import (
    phase_codes,
    phase_ranges,
    phases_of_launches,
    with_copies_behind,
)
from nsyspipe.analysis.steps import TextFamilies
from nsyspipe.analysis.summary import phase_summary
from nsyspipe.errors import OptionError
from nsyspipe.model import schema
from nsyspipe.model.names import PHASE_PATTERNS, PHASES
from tests.build.make import (
    comm,
    compute,
    dtod,
    htod,
    ints,
    members,
    memset,
    operations,
    phase,
    ranges,
    texts_of,
)
from tests.golden.words import figures as figures_of

NO_OPERATIONS = operations()


def one(name="step #", *, union=100, first=0, members=2, inside=1, launched=1):
    return module.Candidate(name, 1, union, first, members, inside, launched)


def measured(table, ops=NO_OPERATIONS, pattern=None, updates=None):
    texts = texts_of(table)
    of = module.TextFamilies
    families = of.by_option(texts, re.compile(pattern)) if pattern else of.by_text(texts)
    return module.candidates(
        table, families, ops, None if updates is None else np.array(updates, np.int64)
    )


def facts(found):
    return [structs.astuple(candidate)[:7] for candidate in found]


def test_texts_that_differ_only_in_digits_are_a_family():
    texts = [
        "Batch 10",
        "aten::mm, seq = 7, op_id = 12",
        "a1b22c333",
        "step, seq 4",
        "",
        None,
        "Batch 9, seq = 4",
    ]
    texts = pa.array([*texts, "batch 10"], pa.string())
    expected = ["Batch #", "aten::mm", "a#b#c#", "step, seq #", "", None, "Batch #", "batch #"]
    assert module.normalise(texts).to_pylist() == expected
    families = module.TextFamilies.by_text(texts)
    assert [None if at < 0 else families.names[at] for at in families.of_text.tolist()] == expected
    assert families.names == ["Batch #", "aten::mm", "a#b#c#", "step, seq #", "", "batch #"]
    assert module.TextFamilies.by_text(pa.array([], pa.string())).names == []


def test_the_step_option_makes_one_family_of_all_matching_texts():
    texts = pa.array(["train 1", "my train 2, seq = 5", None, "eval 5", "TRAIN 3"])
    families = module.TextFamilies.by_option(texts, re.compile(r"train|= 5$"))
    assert (families.names, families.of_text.tolist()) == ([module.STEP_OPTION], [0, 0, -1, -1, -1])
    assert (
        module.TextFamilies.by_option(pa.array([], pa.string()), re.compile("a")).of_text.tolist()
        == []
    )


@pytest.mark.parametrize(
    ("rows", "best"),
    [
        # Thread 1: [0, 30) and [10, 40) = 40; thread 2: [0, 25) and [50, 75) = 50, though thread 1
        # has 60 in sum.
        (
            ((1, 0, 30, "s 1"), (2, 50, 75, "s 2"), (1, 10, 40, "s 2"), (2, 0, 25, "s 1")),
            (2, 50, 0, 2),
        ),
        # Of equal unions the lowest thread, though the other has more ranges and starts earlier.
        *(
            (
                ((other, 0, 5, "s 1"), (other, 5, 10, "s 2"), (lowest, 10, 20, "s 1")),
                (lowest, 10, 10, 1),
            )
            for other, lowest in ((7, 3), (7, -3), (-3, -7))
        ),
    ],
)
def test_a_family_is_measured_on_the_thread_with_its_largest_union(rows, best):
    assert facts(measured(ranges(*rows))) == [("s #", *best, 0, 0)]


def test_no_ranges_or_none_that_the_option_matches_give_no_candidates():
    assert (
        module.candidates(
            ranges(), module.TextFamilies([], NO_OPERATIONS.kernel_start), NO_OPERATIONS
        )
        == []
    )
    assert measured(ranges((1, 0, 10, "s 1")), pattern="train") == []


@pytest.mark.parametrize(
    ("candidate", "qualifies"),
    [
        (one(members=1), False),
        (one(members=2), True),
        (one(inside=2, launched=4), True),
        (one(inside=1, launched=3), False),  # exactly half, and less
        # A rank without launches is not asked.
        (one(inside=0, launched=0), True),
        (one(inside=0, launched=0, members=1), False),
    ],
)
def test_a_family_needs_two_members_and_half_of_the_launches(candidate, qualifies):
    assert candidate.qualifies is qualifies


STEP, EPOCH, MATCHED = (
    one(union=10),
    one("Epoch #", union=1000),
    one(module.STEP_OPTION, members=1, inside=0, launched=9),
)
# First ranges: a at 5 and 9, b at 7 and 8; with rank 1 shifted by -4: a 5 and 5, b 7 and 4.
FIRSTS = [[one("a", first=5), one("b", first=7)], [one("a", first=9), one("b", first=8)]]


@pytest.mark.parametrize(
    ("ranks", "shifts", "family"),
    [
        # The largest union summed over ranks, a: 100 + 10, b: 50 + 61; of equal ones the earlier in
        # aligned time.
        (
            [[one("a", union=100), one("b", union=50)], [one("b", union=61), one("a", union=10)]],
            [0, 0],
            "b",
        ),
        (FIRSTS, [0, 0], "a"),
        (FIRSTS, [0, -4], "b"),
        # An epoch or a warm-up only if nothing else qualifies.
        ([[EPOCH, STEP]], [0], "step #"),
        ([[EPOCH, one("step #", members=1)]], [0], "Epoch #"),
        *(
            (rank, [0], family)
            for name in ("warmup #", "Warm-up # of #", "warm_up #", "Train EPOCH #", "epochs")
            for rank, family in (
                ([[one(name, union=1000), STEP]], "step #"),
                ([[one(name, union=1000)]], name),
            )
        ),
        # What the option matches on any rank needs no vote; a range named like it, which was not
        # asked for, does.
        ([[MATCHED], []], [0, 0], module.STEP_OPTION),
        ([[], [MATCHED]], [0, 0], module.STEP_OPTION),
        ([measured(ranges((1, 0, 10, "--step")))], [0], None),
        ([[], []], [0, 0], None),
    ],
)
def test_which_family_is_chosen(ranks, shifts, family):
    assert module.choose(ranks, shifts) == family


OPERATORS = ["aten::to, seq = 4, op_id = 5", "{'mod': 'torch', 'op': 'conv2d'}", "c10d::allreduce_"]


@pytest.mark.parametrize(
    ("text", "libraries"), [("run", (0, 1)), *((text, ()) for text in OPERATORS)]
)
def test_operators_and_ranges_of_a_librarys_domain_are_steps_only_by_option(text, libraries):
    table = ranges((1, 0, 50, text), (1, 50, 90, text), (1, 5, 6, "s 1"), libraries=libraries)
    assert [found.name for found in measured(table)] == ["s #"]
    assert facts(measured(table, pattern=re.escape(text))) == [
        (module.STEP_OPTION, 1, 90, 0, 2, 0, 0)
    ]


@pytest.mark.parametrize("text", ["Trainer::step 1", "{step 1}", "step aten::to"])
def test_texts_of_users_that_look_like_operators_may_be_steps(text):
    assert len(measured(ranges((1, 0, 9, text)))) == 1


TRAIN = (1, 0, 100, "train")
LAYERS = [(1, 10 * at, 10 * at + 8, f"layer {at}") for at in range(1, 5)]
FOUR_LAUNCHES = operations(*(compute(0, 1, at) for at in (12, 22, 32, 42)))


@pytest.mark.parametrize(
    ("container", "updates", "is_part"),
    [
        (TRAIN, None, False),  # no optimizer that is known by its name
        (TRAIN, [95], True),
        (TRAIN, [12, 95], True),
        (TRAIN, [12, 22], False),  # half of the four members
        (TRAIN, [12, 13, 14], True),  # one member
        (TRAIN, [18, 28], True),  # at their ends, which are outside
        ((1, 10, 28, "two of them"), [95], True),
        ((1, 11, 37, "one of them"), [95], False),
        ((2, 0, 100, "of another thread"), [95], False),
        ((1, 0, 100, "layer 99"), [95], False),  # of the family itself: the only member
    ],
)
def test_members_inside_one_range_are_parts_unless_half_update_weights(container, updates, is_part):
    found = {
        one.name: one
        for one in measured(ranges(container, *LAYERS), FOUR_LAUNCHES, updates=updates)
    }
    assert found["layer #"].is_part is is_part
    assert is_part is False or not found["layer #"].qualifies


def test_a_family_named_by_the_option_is_never_a_part():
    (found,) = measured(ranges(TRAIN, *LAYERS), FOUR_LAUNCHES, pattern="layer", updates=[95])
    assert not found.is_part


def test_a_family_inside_anothers_ranges_loses_to_it_where_both_take_as_long():
    # Layers without a gap between them: as much time, the same start, and first in the alphabet.
    steps = [(1, at, at + 20, f"step {at}") for at in (0, 20)]
    found = measured(ranges(*steps, *[(1, at, at + 10, f"layer {at}") for at in (0, 10, 20, 30)]))
    assert [one.holders for one in found] == [("step #",), ()]
    assert module.choose([found], [0]) == "step #"


THREE = members((0, 100), (100, 200), (200, 300))


def rows(windows):
    """Return (member, start, end, is_complete) of each window."""
    columns = (windows.member, windows.starts, windows.ends, windows.is_complete)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def test_a_capture_is_one_cut_off_window_from_first_start_to_last_end():
    ops = operations(compute(20, 60, 10), comm(50, 55), dtod(5, 9), memset(58, 70))
    assert rows(module.capture_window(ops)) == [(0, 5, 70, False)]


KERNELS = compute(20, 30, 10), compute(120, 150, 110)
FOUR = members((0, 10), (10, 20), (20, 30), (30, 40))
FIRST_TWO, FIRST_AND_THIRD = (
    [(0, 20, 120, True), (1, 120, 150, False)],
    [(0, 20, 220, True), (2, 220, 230, False)],
)
LAST = compute(220, 230, 210)

FAR = 2**60


@pytest.mark.parametrize(
    ("step_ranges", "ops", "expected"),
    [
        # Windows tile time from first kernel to first kernel: a launch at the start belongs; the
        # device may lag behind.
        (
            THREE,
            (compute(20, 60, 10), compute(60, 90, 99), comm(120, 150, 100), compute(310, 380, 250)),
            [(0, 20, 120, True), (1, 120, 310, True), (2, 310, 380, False)],
        ),
        # From the kernel that starts first, not the one launched first.
        (
            THREE,
            (compute(50, 60, 5), comm(30, 40, 20), compute(170, 180, 110), compute(130, 150, 190)),
            [(0, 30, 130, True), (1, 130, 180, False)],
        ),
        (
            members((FAR, FAR + 3), (FAR + 3, FAR + 6)),
            (compute(FAR + 1, FAR + 2, FAR), compute(FAR + 7, FAR + 9, FAR + 3)),
            [(0, FAR + 1, FAR + 7, True), (1, FAR + 7, FAR + 9, False)],
        ),
        # Without any launch the host times are the windows; where only copies have launches there
        # are none.
        (
            members((0, 90), (100, 190)),
            (compute(20, 60), comm(500, 900), dtod(10, 20)),
            [(0, 0, 100, True), (1, 100, 190, False)],
        ),
        (THREE, (compute(20, 60), dtod(10, 20, 5)), []),
        (members(), (compute(20, 60, 10),), []),
        (members(), (compute(20, 60),), []),
        # Copies start no window; those that belong to the last one extend it, strangers do not.
        (THREE, (htod(5, 8, 1), memset(101, 102, 101), *KERNELS), FIRST_TWO),
        (THREE, (*KERNELS, dtod(140, 170, 199)), [(0, 20, 120, True), (1, 120, 170, False)]),
        (THREE, (*KERNELS, dtod(140, 160, 99), dtod(150, 170, 200), dtod(160, 180)), FIRST_TWO),
        # Of kernels only those launched in the last step do, and the one that ends last.
        (
            THREE,
            (
                compute(20, 30, 10),
                compute(220, 290, 210),
                compute(230, 280, 220),
                compute(400, 450, 300),
                compute(460, 470),
            ),
            [(0, 20, 220, True), (2, 220, 290, False)],
        ),
        # A step without kernels counts in the window before it; the first one without makes the
        # next incomplete.
        (THREE, (compute(20, 30, 10), dtod(110, 115, 110), LAST), FIRST_AND_THIRD),
        (
            THREE,
            (dtod(5, 8, 10), compute(120, 130, 110), LAST),
            [(1, 120, 220, False), (2, 220, 230, False)],
        ),
        # A step whose first kernel starts with or before the window before it has none; its kernels
        # end none.
        (THREE, (compute(20, 30, 10), compute(20, 90, 110), LAST), FIRST_AND_THIRD),
        (THREE, (compute(20, 30, 10), compute(19, 90, 110), LAST), FIRST_AND_THIRD),
        (THREE, (*KERNELS, compute(100, 500, 210)), FIRST_TWO),
        # Step 2 starts after step 1, yet before window 0.
        (
            FOUR,
            (compute(50, 60, 5), compute(30, 40, 15), compute(45, 55, 25), compute(70, 80, 35)),
            [(0, 50, 70, True), (3, 70, 80, False)],
        ),
    ],
)
def test_windows_follow_the_kernels_that_steps_launch(step_ranges, ops, expected):
    assert rows(module.step_windows(step_ranges, operations(*ops))) == expected


def selected(rows, n_ranks, skip_first=None):
    """Select among (step, start, is complete), one per (rank, step) with a window."""
    step, start = ints(*(row[0] for row in rows)), ints(*(row[1] for row in rows))
    found = module.select_steps(
        step, start, np.array([row[2] for row in rows], np.bool_), n_ranks, skip_first
    )
    return found.steps.tolist(), found.skipped.tolist(), found.is_fallback


def rank(*complete, first=0):
    """Windows of one rank, numbered from `first`, each 10 ns after the one before."""
    return [(first + at, 10 * (first + at), flag) for at, flag in enumerate(complete)]


ABC = rank(True, True, True, False)
# Complete on one rank only: 0 and 1; both ranks have 0 and 1, only rank 0 has 2.
NONE_COMPLETE = [*rank(True, False, False), *rank(False, True)]
TWICE = ABC + [(step, start + 3, flag) for step, start, flag in ABC]


@pytest.mark.parametrize(
    ("rows", "n_ranks", "skip_first", "expected"),
    [
        # The first complete step is skipped when another remains, not the first step.
        (ABC, 1, None, ([1, 2], [0], False)),
        (rank(True, True), 1, None, ([1], [0], False)),
        (rank(True, False), 1, None, ([0], [], False)),
        (rank(False, True, True, False), 1, None, ([2], [1], False)),
        # A number skips that many.
        (ABC, 1, 0, ([0, 1, 2], [], False)),
        (ABC, 1, 1, ([1, 2], [0], False)),
        (ABC, 1, 2, ([2], [0, 1], False)),
        # Complete only if on every rank: 0 is missing on rank 1, 1 is cut off there, 4 is missing
        # on rank 0.
        (ABC + rank(False, True, True, True, first=1), 2, 0, ([2], [], False)),
        # In order of time and not of number; the order of rows does not matter.
        (
            [(7, 0, True), (3, 10, True), (5, 20, True), (4, 30, False)],
            1,
            None,
            ([3, 5], [7], False),
        ),
        (TWICE, 2, None, ([1, 2], [0], False)),
        (TWICE[::-1], 2, None, ([1, 2], [0], False)),
        # Without a complete step those that every rank has are used and none is skipped.
        (NONE_COMPLETE, 2, None, ([0, 1], [], True)),
        (NONE_COMPLETE, 2, 5, ([0, 1], [], True)),
        ([*rank(True, False), *rank(True, False, first=5)], 2, None, ([], [], True)),
        ([], 2, None, ([], [], True)),
    ],
)
def test_which_steps_count_in_a_runs_figures(rows, n_ranks, skip_first, expected):
    assert selected(rows, n_ranks, skip_first) == expected


@pytest.mark.parametrize("n", [3, 10**6])
def test_skipping_all_complete_steps_is_an_error_that_says_how_many_there_are(n):
    with pytest.raises(OptionError) as caught:
        selected(ABC, 1, n)
    assert caught.value.subject == f"--skip-first {n}"
    assert "3" in figures_of(caught.value.problem)
    assert "--skip-first 2" in caught.value.fix


DEFAULTS = {phase: re.compile(pattern) for phase, pattern in PHASE_PATTERNS.items()}
SPAN = (0, 100)
TWO = members(SPAN, (100, 200), rows=(0, 1))
TWO_RANGES = (1, *SPAN, "step 0"), (1, 100, 200, "step 1")


def found(*rows, steps=TWO, of_steps=TWO_RANGES):
    """Return the non-empty phases of two steps and more ranges, as (step, start, end) each."""
    table = ranges(*of_steps, *rows)
    texts = texts_of(table) if len(table) else pa.array([], pa.string())
    phases = phase_ranges(table, phase_codes(TextFamilies.by_text(texts), DEFAULTS, texts), steps)
    assert tuple(phases) == PHASES
    columns = {name: (one.member, one.starts, one.ends) for name, one in phases.items()}
    known = {name: three for name, three in columns.items() if three[0].size}
    return {
        name: list(zip(*(one.tolist() for one in three), strict=True))
        for name, three in known.items()
    }


def named(*texts, patterns=DEFAULTS):
    texts = pa.array(texts, pa.string())
    codes = phase_codes(TextFamilies.by_text(texts), patterns, texts)
    return [PHASES[code] if code >= 0 else None for code in codes.tolist()]


ROLES = {
    "backward": (
        "backward",
        "Backward pass 3",
        "loss.backward(), seq = 4",
        "bwd_2",
        "forward_backward",
    ),  # the first wins
    "forward": ("forward", "FWD", "model_forward", "forward optimizer"),
    "optimizer": ("optimizer step", "Optimizer.step#AdamW.step", "optim", "optimizer data"),
    "data": (
        "get batch",
        "get_batch",
        "fetch-data",
        "load input",
        "next batch 7",
        "dataloader",
        "Batch 10",
    ),
    # autograd's own ranges: a letter stands before
    None: (
        "AddBackward0",
        "autograd::engine::evaluate_function: AddBackward0",
        "backwards",
        "forwarding",
        "preoptim",
        "metadata",
        "step 3",
        "",
        None,
    ),
}


@pytest.mark.parametrize("phase", ROLES)
def test_default_roles_of_names(phase):
    assert named(*ROLES[phase]) == [phase] * len(ROLES[phase])


def test_a_user_pattern_replaces_the_default_and_sees_normalized_text():
    patterns = DEFAULTS | {"forward": re.compile(r"^layer #$")}
    assert named("layer 12, seq = 3", "x", "forward", "bwd", patterns=patterns) == [
        "forward",
        None,
        None,
        "backward",
    ]


@pytest.mark.parametrize(
    ("rows", "phases"),
    [
        # The ranges inside each step, which start or end with it or not.
        (
            [
                *(
                    (1, 160, 190, "backward"),
                    (1, 5, 10, "get batch"),
                    (1, 10, 40, "forward"),
                    (1, 40, 80, "bwd"),
                ),
                *(
                    (1, 80, 100, "optimizer step"),
                    (1, 100, 150, "forward"),
                    (1, 190, 195, "backward"),
                ),
            ],
            {
                "backward": [(0, 40, 80), (1, 160, 190), (1, 190, 195)],
                "forward": [(0, 10, 40), (1, 100, 150)],
                "optimizer": [(0, 80, 100)],
                "data": [(0, 5, 10)],
            },
        ),
        # The batch around everything is no data phase; the one around nothing else is.
        (
            [
                (1, 0, 90, "batch"),
                (1, 10, 40, "forward"),
                (1, 40, 90, "backward"),
                (1, 90, 95, "batch"),
            ],
            {"forward": [(0, 10, 40)], "backward": [(0, 40, 90)], "data": [(0, 90, 95)]},
        ),
        # It contains one that starts or ends with it.
        ([(1, 0, 90, "batch"), (1, 0, 40, "forward")], {"forward": [(0, 0, 40)]}),
        ([(1, 0, 90, "batch"), (1, 50, 90, "forward")], {"forward": [(0, 50, 90)]}),
        # Of nested or equal ranges of one role the outermost counts; without a role a range hides
        # nothing.
        (
            [(1, 20, 30, "forward 2"), (1, 10, 40, "forward"), (1, 10, 20, "fwd")],
            {"forward": [(0, 10, 40)]},
        ),
        # Ranges of another thread are none and hide none; nor is one that sticks out of its step.
        (
            [(2, 10, 40, "backward"), (1, 5, 50, "forward"), (2, 0, 100, "forward")],
            {"forward": [(0, 5, 50)]},
        ),
        ([(1, 90, 110, "backward"), (1, 98, 100, "optimizer")], {"optimizer": [(0, 98, 100)]}),
        # The outer backward holds a forward (recomputation), which itself holds a backward.
        (
            [(1, 0, 90, "backward"), (1, 10, 50, "forward"), (1, 20, 30, "backward")],
            {"backward": [(0, 20, 30)]},
        ),
    ],
)
def test_which_ranges_are_phases(rows, phases):
    assert found(*rows) == phases


def test_the_step_range_is_not_a_phase():
    batches = (1, 0, 100, "Batch 1"), (1, 100, 200, "Batch 2"), (1, 120, 130, "load batch")
    assert found(of_steps=batches) == {"data": [(1, 120, 130)]}
    assert found(steps=members()) == found(steps=members(SPAN, rows=()), of_steps=()) == {}


@pytest.mark.parametrize(
    ("launches", "spans", "phases"),
    [
        # At a range's start it is in it, at its end it is not.
        ((9, 10, 19, 20), {"forward": (10, 20)}, [None, "forward", "forward", None]),
        # Of two that overlap, backward before forward before optimizer before data, whichever began
        # first.
        (
            (5, 15, 25),
            {"forward": (0, 20), "backward": (10, 30)},
            ["forward", "backward", "backward"],
        ),
        (
            (5, 15, 25, 35),
            {"data": (0, 40), "optimizer": (10, 30), "forward": (20, 30)},
            ["data", "optimizer", "forward", "data"],
        ),
        # One of no length holds nothing, whether others overlap or not.
        ((9, 10, 11), {"forward": (10, 10), "backward": (10, 12)}, [None, "backward", "backward"]),
        ((9, 10, 11), {"forward": (5, 20), "backward": (10, 10)}, ["forward"] * 3),
    ],
)
def test_which_phase_a_launch_is_in(launches, spans, phases):
    of_phase = {
        name: phase(*((0, *span) for span in (spans.get(name),) if span)) for name in PHASES
    }
    codes = phases_of_launches(of_phase, ints(*launches)).tolist()
    assert [PHASES[code] if code >= 0 else None for code in codes] == phases


ALL_TIMES = ("host_ns", "compute_ns", "comm_ns", "device_ns", "exposed_comm_ns", "idle_ns")


def means(*rows):
    """Return the means of rows of (phase, host time, ...), all other times being equal to the last given."""
    filled = [(row[0], *row[1:], *[row[-1]] * (len(ALL_TIMES) + 1 - len(row))) for row in rows]
    table = schema.PHASES.from_rows(
        [dict(zip(("phase", *ALL_TIMES), row, strict=True)) for row in filled]
    )
    return {one.pop("phase"): list(one.values()) for one in phase_summary(table).to_pylist()}


def test_a_phase_of_a_run_has_the_means_over_the_ranks_and_steps_that_have_it():
    run = means(
        ("forward", 10, 4),
        ("backward", 30, 2),
        ("forward", 13, 5),
        ("data", 10, 4),
        ("data", 12, None),
    )
    # A mean is null where a time is null anywhere, and no other.
    assert run == {
        "backward": [30.0, *[2.0] * 5],
        "data": [11.0, *[None] * 5],
        "forward": [11.5, *[4.5] * 5],
    }
    assert list(run) == ["backward", "data", "forward"]
    assert means() == {}


def test_copies_after_the_last_kernel_of_a_pass_belong_to_the_pass():
    kernels = [compute(at, at + 1, launch) for at, launch in ((0, 10), (2, 20), (4, 50), (6, 60))]
    copies = [
        dtod(8, 9, 22),
        dtod(10, 11, 30),
        htod(12, 13, 40),
        dtod(14, 15, 55),
        dtod(16, 17, 70),
        dtod(18, 19),
    ]
    passes = phase((0, 10, 21), (0, 50, 51), (1, 60, 61))
    # Not those behind the next kernel, other copies, and what nothing launched.
    assert with_copies_behind(passes, operations(*kernels, *copies)).ends.tolist() == [31, 56, 71]
    assert with_copies_behind(passes, operations(*kernels)).ends.tolist() == [21, 51, 61]
    assert with_copies_behind(passes, operations(*kernels, dtod(0, 1, 5))).ends.tolist() == [
        21,
        51,
        61,
    ]
