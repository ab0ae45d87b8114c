"""Steps by repetition: launches built place by place, the units to be seen in them, which of them are one step of all ranks."""

import tracemalloc
from collections.abc import Iterable, Sequence
from itertools import chain

import numpy as np
import pyarrow as pa
import pytest

from nsyspipe.analysis import repetition
from nsyspipe.analysis.alignment import agreement, n_common, n_shared
from nsyspipe.analysis.repeated_steps import (
    aligned_numbers,
    backward_of_operators,
    backward_of_thread,
)
from nsyspipe.analysis.steps import Members
from tests.build.make_comm import SEND, op, rank

LOOP, AUTOGRAD = 1, 2
_GAP_NS, _PAUSE_NS = 10, 500

Launch = tuple[str, int, int, int]  # name, grid, thread, pause of the host before it
Roll = np.random.Generator


def launches(*names: str, thread: int = LOOP, grid: int = 1) -> list[Launch]:
    return [(name, grid, thread, _GAP_NS) for name in names]


def forward(n_layers: int = 6, grid: int = 1) -> list[Launch]:
    return launches("embed", *["norm", "gemm", "gelu", "gemm2"] * n_layers, "loss", grid=grid)


def backward(n_layers: int = 6, grid: int = 1, comm: str = "nccl_all_reduce") -> list[Launch]:
    layer = launches("gemm2_b", "gelu_b", "gemm_b", "norm_b", thread=AUTOGRAD, grid=grid)
    return [*layer * n_layers, *launches("embed_b", comm, thread=AUTOGRAD, grid=grid)]


def optimizer(name: str = "AdamFunctor") -> list[Launch]:
    return launches("zero", "clip", name, name, name)


def step(n_layers: int = 6, name: str = "AdamFunctor", grid: int = 1) -> list[Launch]:
    first, *rest = [*forward(n_layers, grid), *backward(n_layers, grid), *optimizer(name)]
    return [(*first[:3], _PAUSE_NS), *rest]


def sequence(parts: Iterable[Sequence[Launch]]) -> repetition.LaunchSequence:
    rows = list(chain.from_iterable(parts))
    names = [row[0] for row in rows]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    shapes = {row[:2]: number for number, row in enumerate(dict.fromkeys(row[:2] for row in rows))}
    shape_of = {key: number for number, key in enumerate(shapes)}
    return repetition.LaunchSequence(
        time_ns=np.cumsum([row[3] for row in rows]),
        thread_id=np.array([row[2] for row in rows], np.int64),
        name=np.array([numbers[name] for name in names], np.int64),
        shape=np.array([shape_of[row[:2]] for row in rows], np.int64),
        is_optimizer=np.array(["Functor" in name for name in names], np.bool_),
        is_comm=np.array([name.startswith("nccl") for name in names], np.bool_),
    )


def units(parts: Sequence[Sequence[Launch]]) -> repetition.Repetition:
    found = repetition.find_repetition(sequence(parts))
    assert found is not None
    return found


def edges(*sizes: int, first: int = 0) -> list[int]:
    return np.cumsum([first, *sizes]).tolist()


_STEP = len(step())
_MICRO = [*forward(), *backward()]
_UNKNOWN = launches("fused_update", "fused_update_2")
_UPDATE = "update"  # an optimizer whose kernels are not known
_EVALUATION = [*forward(), *launches("argmax")] * 3
_FOREIGN = launches(*(f"inception_{at}" for at in range(90)))  # an evaluation by another network


def dynamic(roll: Roll, *, comm: int = 0) -> list[Launch]:
    some = launches(*(f"gemm_{number}" for number in roll.integers(0, 30, roll.integers(20, 60))))
    return [*some, *launches(*["nccl_all_reduce"] * comm, thread=AUTOGRAD), *optimizer()]


def noisy(parts: Sequence[Launch], roll: Roll) -> list[Launch]:
    """Return a step of many layers of which 3 % of the launches are left out, doubled, or others."""
    rows: list[Launch] = []
    for row, dice in zip(parts, roll.random(len(parts)), strict=True):
        changed = (
            [] if dice < 0.01 else [row, row] if dice < 0.02 else [(f"other {dice:.3f}", *row[1:])]
        )
        rows += (
            changed
            if dice < 0.03 and row[0] not in {"embed", "loss", "embed_b", "AdamFunctor"}
            else [row]
        )
    return rows


def every(n: int, parts: Sequence[Sequence[Launch]], block: Sequence[Launch]) -> list[list[Launch]]:
    return [
        [*part, *block] if at % n == n - 1 and at < len(parts) - 1 else [*part]
        for at, part in enumerate(parts)
    ]


@pytest.mark.parametrize("n", [3, 5])
def test_steps_of_equal_launches_begin_behind_the_optimizer(n: int) -> None:
    found = units([step()] * n)
    assert found.edges.tolist() == edges(*[_STEP] * n)
    assert (found.key, found.agreement, found.is_step, found.n_launches) == (
        repetition.SHAPES,
        1.0,
        True,
        _STEP,
    )
    assert (found.thread_id, found.backward_threads) == (LOOP, (AUTOGRAD,))


def test_a_capture_that_begins_and_ends_inside_a_step_has_whole_steps_only() -> None:
    assert units([step()[20:], *[step()] * 4, step()[:30]]).edges.tolist() == edges(
        *[_STEP] * 4, first=_STEP - 20
    )


@pytest.mark.parametrize(
    ("parts", "sizes"),
    [
        pytest.param(
            [[*_MICRO * 4, *_UNKNOWN]] * 6,
            [4 * len(_MICRO) + 2] * 6,
            id="accumulation, unknown optimizer",
        ),
        pytest.param(
            [[*_MICRO * 4, *optimizer()]] * 6, [4 * len(_MICRO) + 5] * 6, id="accumulation"
        ),
        pytest.param([step(), step(3, "SGDFunctor")] * 5, [_STEP + len(step(3))] * 5, id="GAN 1:1"),
        pytest.param(
            [*[step()] * 5, step(4, "SGDFunctor")] * 4, [5 * _STEP + len(step(4))] * 4, id="GAN 5:1"
        ),
        pytest.param(
            [step(), step(name="SGDFunctor")] * 5, [2 * _STEP] * 5, id="GAN of equal networks"
        ),
        pytest.param(
            [step(name=_UPDATE), step(3, "update_g")] * 5,
            [_STEP + len(step(3))] * 5,
            id="GAN 1:1, unknown",
        ),
        pytest.param(
            [*[step(name=_UPDATE)] * 5, step(4, "update_g")] * 4,
            [5 * _STEP + len(step(4))] * 4,
            id="GAN 5:1, unknown",
        ),
        pytest.param(
            [[*step(), *optimizer("MuonFunctor")]] * 5, [_STEP + 5] * 5, id="two optimizers"
        ),
        pytest.param(
            [[*_MICRO * n, *optimizer()] for n in (3, 2, 4, 3, 2, 3, 4, 3)],
            [n * len(_MICRO) + 5 for n in (3, 2, 4, 3, 2, 3, 4, 3)],
            id="accumulation of other numbers",
        ),
        pytest.param(
            every(2, [step()] * 9, _EVALUATION),
            [*[_STEP, _STEP + len(_EVALUATION)] * 4, _STEP],
            id="evaluation every 2",
        ),
        pytest.param(
            every(4, [step(name=_UPDATE)] * 12, _EVALUATION),
            [*[*[_STEP] * 3, _STEP + len(_EVALUATION)] * 2, *[_STEP] * 3],
            id="evaluation every 4, unknown optimizer, whose last step may be cut off",
        ),
        pytest.param(
            every(10, [step()] * 30, [*_EVALUATION, *_FOREIGN]),
            [*[*[_STEP] * 9, _STEP + len(_EVALUATION) + 90] * 2, *[_STEP] * 10],
            id="three epochs",
        ),
        pytest.param(
            every(10, [step()] * 30, _FOREIGN),
            [*[*[_STEP] * 9, _STEP + 90] * 2, *[_STEP] * 10],
            id="evaluation by another network",
        ),
    ],
)
def test_a_step_is_what_repeats_as_a_whole(parts: list[list[Launch]], sizes: list[int]) -> None:
    found = units(parts)
    assert found.is_step
    assert np.diff(found.edges).tolist() == sizes


@pytest.mark.parametrize("is_dynamic", [False, True])
def test_an_optimizer_inside_backward_ends_a_step_with_its_last_kernel(is_dynamic: bool) -> None:
    inside = [row for one in backward() for row in (one, *launches("AdamFunctor", thread=AUTOGRAD))]
    roll = np.random.default_rng(1)
    parts = [[*(dynamic(roll)[:-5] if is_dynamic else forward()), *inside] for _ in range(6)]
    found = units(parts)
    assert found.edges.tolist() == edges(*map(len, parts))
    assert (found.thread_id, found.backward_threads) == (LOOP, (AUTOGRAD,))


def test_lengths_that_differ_from_step_to_step_change_grids_and_not_names() -> None:
    found = units([step(grid=int(grid)) for grid in np.random.default_rng(1).integers(2, 900, 8)])
    assert (found.key, np.diff(found.edges).tolist()) == (repetition.NAMES, [_STEP] * 8)


@pytest.mark.parametrize("comm", [3, 0])
def test_kernels_that_differ_from_step_to_step_leave_collectives_and_optimizer(comm: int) -> None:
    roll = np.random.default_rng(1)
    parts = [dynamic(roll, comm=comm) for _ in range(10)]
    found = units(parts)
    assert (found.key, found.edges.tolist()) == (repetition.COMM, edges(*map(len, parts)))


def test_a_cut_off_step_is_no_unit_if_only_collectives_are_compared() -> None:
    roll = np.random.default_rng(2)
    parts = [dynamic(roll, comm=3) for _ in range(10)]
    assert units([parts[0][-10:], *parts[1:]]).edges.tolist() == edges(
        *map(len, parts[1:]), first=10
    )


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("n", [30, 4])
def test_a_few_launches_more_or_less_are_noise_but_an_evaluation_is_not(n: int, seed: int) -> None:
    roll = np.random.default_rng(seed)
    parts = every(n, [noisy(step(60), roll) for _ in range(20)], _EVALUATION)
    found = units(parts)
    assert (found.key, found.edges.size - 1) == (repetition.SHAPES, 20)
    assert 0.95 <= found.agreement < 1
    # The optimizer ends a step to the launch; where an evaluation ends, is known by what follows.
    off = found.edges - edges(*map(len, parts))
    assert np.abs(off).max() <= (0 if n == 30 else len(_EVALUATION) + 9)
    assert np.median(np.abs(off)) == 0


SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 4))]


@pytest.mark.parametrize("seed", SEEDS)
def test_micro_batches_are_no_steps_if_noise_hides_every_fourth(
    seed: int,
) -> None:
    roll = np.random.default_rng(seed)
    found = repetition.find_repetition(
        sequence([noisy([*_MICRO * 4, *_UNKNOWN], roll) for _ in range(8)])
    )
    assert found is None or found.edges.size - 1 == 8


def test_of_two_stretches_around_a_recompilation_the_longer_counts() -> None:
    other = [
        (name if "Functor" in name else f"triton_{name}", grid, at, gap)
        for name, grid, at, gap in step(5)
    ]
    found = units([*[step()] * 4, launches(*(f"autotune_{at}" for at in range(200))), *[other] * 9])
    assert np.diff(found.edges).tolist()[-8:] == [len(other)] * 8
    assert found.edges[-1] - found.edges[0] < 10 * len(other)


def test_a_step_of_few_graphs_is_a_step_where_something_says_so() -> None:
    piecewise = launches(*(f"graph {at}" for at in range(18)), "nccl_all_reduce", "AdamFunctor")
    assert np.diff(units([piecewise] * 6).edges).tolist() == [20] * 6
    for name, is_step in (("graph", False), ("graph with AdamFunctor", True)):
        whole = units([launches(name)] * 6)
        assert (np.diff(whole.edges).tolist(), whole.is_step) == ([1] * 6, is_step), name


def test_inference_of_equal_layers_has_units_and_no_steps() -> None:
    found = units([launches("norm", "gemm", "gelu", "gemm2") * 48])
    assert (found.n_launches, found.is_step) == (4, False)
    decoded = units([launches("embed", *["norm", "gemm", "gelu", "gemm2"] * 48, "sample")] * 9)
    assert (decoded.n_launches, decoded.edges.size - 1, decoded.is_step) == (4 * 48 + 2, 9, False)


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param(
            [launches("fill", "normal", "fill", "copy", "cat", "normal")], id="initialisation"
        ),
        pytest.param([step()], id="one step"),
        pytest.param([step()] * 2, id="two steps"),
        pytest.param(
            [*[[*_MICRO * 8, *_UNKNOWN]] * 2, _MICRO * 4], id="two steps of many micro-batches"
        ),
        pytest.param(
            [launches(*(f"k{n}" for n in np.random.default_rng(7).integers(0, 90, 400)))],
            id="different requests",
        ),
        pytest.param([launches("fill")], id="one launch"),
        pytest.param([], id="no launch"),
        pytest.param(
            [launches(*["fill", "normal"] * 5), *[step()] * 2], id="two steps behind initialisation"
        ),
        pytest.param(
            [
                launches("embed", *["norm", "gemm", "gelu", "gemm2"] * n, "head")
                for n in (3, 9, 30, 14, 25, 7, 40)
            ],
            id="requests of other lengths",
        ),
    ],
)
def test_what_does_not_repeat_has_no_units(parts: list[list[Launch]]) -> None:
    assert repetition.find_repetition(sequence(parts)) is None


def test_where_no_optimizer_is_known_a_unit_begins_behind_the_longest_pause() -> None:
    one = step(name="update")
    assert units([one[25:], *[one] * 5, one[:10]]).edges.tolist() == edges(
        *[len(one)] * 5, first=len(one) - 25
    )


def test_ranges_of_units_and_of_the_backward_pass() -> None:
    parts = [step()] * 4
    built = sequence(parts)
    found = units(parts)
    steps = found.members
    # In the middle of the pause before each, the first and the last as long as the others.
    assert steps.starts.tolist() == [built.time_ns[at] - _PAUSE_NS // 2 for at in found.edges[:-1]]
    assert steps.ends.tolist() == [*steps.starts[1:].tolist(), built.time_ns[-1] + _PAUSE_NS // 2]
    ranges = backward_of_thread(built, steps)
    assert ranges is not None
    first, last = len(forward()), len(forward()) + len(backward()) - 1
    assert ranges.member.tolist() == [0, 1, 2, 3]
    assert ranges.starts.tolist() == [built.time_ns[at * _STEP + first] for at in range(4)]
    assert ranges.ends.tolist() == [built.time_ns[at * _STEP + last] + 1 for at in range(4)]


def test_each_micro_batch_has_one_backward_pass_on_one_autograd_thread() -> None:
    parts = [[*_MICRO * 4, *optimizer()]] * 4
    ranges = backward_of_thread(sequence(parts), units(parts).members)
    assert ranges is not None
    assert ranges.member.tolist() == np.repeat(range(4), 4).tolist()
    other = [(name, grid, 3, pause) for name, grid, _, pause in backward()]
    parts = [[*step(), *other]] * 4
    found = units(parts)
    assert found.backward_threads == (AUTOGRAD, 3)
    assert backward_of_thread(sequence(parts), found.members) is None


STARTS = (0, 1000, 2300, 3100, 4600, 5500)  # when five steps of a program begin: never evenly


def of_rank(begins, *, late=0, first=0, ids=False, shift=0):
    """Return a rank whose units begin so; its all-reduce ends 700 behind, `late` by its clock, and is the first-th and on."""
    seqs = range(first, first + len(begins)) if ids else [None] * len(begins)
    ops = [
        op(begins[at] + 690 + late, member=at, comm=5 if ids else None, seq=seq)
        for at, seq in enumerate(seqs)
    ]
    return rank(*ops).process.comm, pa.table({"start_ns": np.array(begins) + late}), shift


@pytest.mark.parametrize(
    ("ranks", "numbers"),
    [
        pytest.param([of_rank(STARTS), of_rank(STARTS)], [0, 0], id="alike"),
        pytest.param([of_rank(STARTS), of_rank(STARTS[1:])], [-1, 0], id="one step apart"),
        pytest.param([of_rank(STARTS[2:]), of_rank(STARTS[:-1])], [0, -2], id="two steps apart"),
        # By their ends alone the clocks' difference would hide which is which.
        pytest.param(
            [of_rank(STARTS), of_rank(STARTS[1:], late=-1050)], [-1, 0], id="clocks a step apart"
        ),
        pytest.param(
            [of_rank(STARTS[1:]), of_rank(STARTS, shift=17)],
            [0, -1],
            id="a constant between the clocks",
        ),
        pytest.param(
            [of_rank(STARTS, ids=True), of_rank(STARTS, ids=True, first=1, late=-1000)],
            [-1, 0],
            id="NCCL's numbers",
        ),
    ],
)
def test_units_with_equal_collectives_are_one_step_numbered_from_the_first(ranks, numbers):
    aligned, is_sure = aligned_numbers(ranks)
    assert ([int(one[0]) for one in aligned], is_sure) == (numbers, True)
    assert all((np.diff(one) == 1).all() for one in aligned)


def test_the_clock_decides_between_steps_that_are_equal_to_the_ns():
    even = tuple(range(0, 6000, 1000))
    for late, answer in ((300, ([0, 0], True)), (500, ([0, 0], False))):
        aligned, is_sure = aligned_numbers([of_rank(even), of_rank(even, late=late)])
        assert ([int(one[0]) for one in aligned], is_sure) == answer, late


def sender(begins):
    comm = rank(*(op(start, kind=SEND, member=at) for at, start in enumerate(begins))).process.comm
    return comm, pa.table({"start_ns": np.array(begins) + 40}), 0


@pytest.mark.parametrize(
    ("of_first", "of_other", "numbers"), [(0, 1, [-1, 0]), (1, 0, [0, -1]), (2, 0, [0, -2])]
)
def test_ranks_without_a_common_collective_are_aligned_by_when_they_begin(
    of_first, of_other, numbers
):
    aligned, is_sure = aligned_numbers([of_rank(STARTS[of_first:]), sender(STARTS[of_other:])])
    assert ([int(one[0]) for one in aligned], is_sure) == (numbers, True)


def test_ranks_are_aligned_over_a_third_rank_in_both_communicators():
    def named(*ids, first, late):
        ops = [
            op(start + 690 + late, member=at, comm=comm, seq=at + first)
            for at, start in enumerate(STARTS[first:])
            for comm in ids
        ]
        return rank(*ops).process.comm, pa.table({"start_ns": np.array(STARTS[first:]) + late}), 0

    # By the clock the second would be a step later; nothing but the third knows better.
    ranks = [named(5, first=0, late=0), named(6, first=1, late=-1100), named(5, 6, first=0, late=0)]
    aligned, is_sure = aligned_numbers(ranks)
    assert ([int(one[0]) for one in aligned], is_sure) == ([-1, 0, -1], True)
    assert [int(one[0]) for one in aligned_numbers(ranks[:2])[0]] == [0, 0]


def test_operators_of_autograds_engine_say_when_backward_runs():
    texts = [
        "autograd::engine::evaluate_function: AddmmBackward0, seq = 3",
        "AddmmBackward0, seq = 3",
        "aten::mm, seq = 9",
        "NllLossBackward, op_id = 4",
        "mine",
    ]
    starts, ends = [100, 110, 10, 1150, 0], [200, 190, 90, 1250, 3000]
    ranges = pa.table(
        {"text": pa.array(texts).dictionary_encode(), "start_ns": starts, "end_ns": ends}
    )
    members = Members(1, np.array([4]), np.array([0, 1000]), np.array([1000, 1200]))
    found = backward_of_operators(ranges, members)
    assert [one.tolist() for one in (found.member, found.starts, found.ends)] == [
        [0, 1],
        [100, 1150],
        [200, 1200],
    ]
    assert backward_of_operators(ranges.slice(2, 1), members) is None


def longest_common(one, other):
    row = [0] * (len(one) + 1)
    for item in other:
        before = row
        row = [0]
        for at, own in enumerate(one):
            row.append(before[at] + 1 if own == item else max(row[at], before[at + 1]))
    return row[-1]


def changed(sequence, roll, n_changes):
    left = np.delete(sequence, roll.choice(sequence.size, n_changes, replace=False))
    return np.insert(
        left, np.sort(roll.choice(left.size, n_changes)), roll.integers(0, 9, n_changes)
    )


@pytest.mark.parametrize("seed", range(20))
def test_what_is_common_is_the_longest_common_subsequence(seed):
    roll = np.random.default_rng(seed)
    one, other = (roll.integers(0, 5, size) for size in roll.integers(0, 60, 2))
    expected = longest_common(one, other)
    assert n_common(one, other, 60) == expected
    assert expected <= n_shared(one, other) <= min(one.size, other.size)


@pytest.mark.parametrize("seed", range(5))
def test_across_several_blocks_of_rows_a_band_as_wide_as_the_changes_is_enough(seed):
    roll = np.random.default_rng(seed)
    one = roll.integers(0, 9, 2600)
    other = changed(one, roll, 40)
    whole = n_common(one, other, 2600)
    assert n_common(one, other, 80) == whole >= 2560
    assert agreement(one, other, 0.95) == (whole / 2600, slice(0, 0))


@pytest.mark.parametrize("at", [0, 30, 100])
def test_a_block_that_only_one_rank_has_is_left_out(at):
    unit = np.arange(100)
    longer = np.insert(unit, at, np.full(40, 500))
    assert agreement(unit, longer, 0.9) == (1.0, slice(at, at + 40))
    noisy = longer.copy()
    noisy[np.flatnonzero(longer != 500)[[20, 60]]] = 900
    assert agreement(unit, noisy, 0.9) == (
        (0.98, slice(at, at + 40)) if at != 30 else (0.0, slice(0, 0))
    )


def test_sequences_of_other_items_are_not_aligned_at_all():
    assert agreement(np.arange(50), np.arange(100, 150), 0.9) == (0.0, slice(0, 0))


@pytest.mark.slow
def test_alignment_of_long_units_holds_a_band_and_not_a_row_per_item():
    roll = np.random.default_rng(1)
    one = roll.permutation(20_000)
    other = changed(one, roll, 200)
    tracemalloc.start()
    assert n_common(one, other, 1000) >= 19_800
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8_000_000  # a number of 20 000 bits for each of as many items would be 50 MB
