"""The slowdown beside communication, measured on kernels that are known to be slower by a fifth."""

import itertools

import numpy as np
import pytest
from hypothesis import given, strategies as st

import nsyspipe
from nsyspipe.analysis.kernels import Compared, Slowing
from nsyspipe.replay.answer import whatif
from nsyspipe.replay.assumptions import has_later_starts
from nsyspipe.replay.gradients import bucket_ends, is_alike, matched_in_order
from nsyspipe.replay.ranges import Contention, slowdowns
from tests.build.trace import TraceBuilder
from tests.conftest import examples
from tests.golden.words import figures

US, MS = 1_000, 1_000_000
KERNELS = 200


def rank_with(rank, factor, *, other_shape=1.0, n_steps=5):
    """Return a rank with 200 equal kernels of 10 us before and 200 beside an all-reduce, the latter `factor` as long.

    With `other_shape` every second group of ten free kernels takes that much longer: one name, two
    shapes.
    """
    builder = (
        TraceBuilder(pid=1000 + rank)
        .env(RANK=rank, WORLD_SIZE=2, LOCAL_RANK=rank)
        .session(10**18)
        .gpu()
    )
    lengths = [
        int(10 * US * (other_shape if kernel // 10 % 2 else 1.0)) for kernel in range(KERNELS)
    ]
    lengths += [int(10 * US * factor)] * KERNELS
    at = 1000 * MS
    for step in range(n_steps):
        host = step * 3 * MS
        builder.range(host, host + 2 * MS, f"step {step}")
        begin = at + sum(lengths[:KERNELS])
        for number, length in enumerate(lengths, start=1):
            builder.kernel(
                at, at + length, "layer", launch=host + (number + (number > KERNELS)) * US
            )
            at += length
        builder.nccl(begin, at + 100 * US, launch=host + (KERNELS + 1) * US)
        builder.kernel(
            at + 100 * US, at + 200 * US, "optimizer", launch=host + (2 * KERNELS + 2) * US
        )
        at += 200 * US
    return builder


@pytest.fixture
def measured(tmp_path):
    def measure(**options):
        for rank in range(2):
            rank_with(rank, **options).write(tmp_path / f"run_{rank}.sqlite")
        return whatif(nsyspipe.load(str(tmp_path / "run_*.sqlite")), no_wait=True)

    return measure


def slowdown_of(found):
    """Return what is assumed of work beside communication: the rule that measures it is named there."""
    said = [one for one in found.scenarios[0].assumptions if "comm-slows-compute" in one]
    return said[0]


# Of 200 kernels beside communication 197 have three equal neighbours on either side.
@pytest.mark.slow
@pytest.mark.parametrize(("factor", "percent"), [(1.2, 20), (1.0, 0), (0.9, 0)])
def test_a_slowdown_is_measured_and_taken_out_of_the_limit(measured, factor, percent, worded):
    found = measured(factor=factor)
    said = slowdown_of(found)
    worded(said)
    assert f"{percent:.1f}" in figures(said)
    assert any(abs(int(figure) - percent) <= 1 for figure in figures(said) if figure.isdecimal())
    # 200 kernels of 10 us, 200 that took 12 of which communication made 30 % more than measured at
    # most, an optimizer of 100.
    if percent:
        assert found.limit_step_time_ns == pytest.approx(
            200 * 10 * US + 200 * 12 * US / 1.26 + 100 * US, rel=0.004
        )
        assert found.limit_gain_ns == pytest.approx(found.step_time_ns - found.limit_step_time_ns)


# A name that stands for two shapes is not compared; what no kernel ever lost is not believed.
ODD = {
    "two shapes": {"factor": 1.2, "other_shape": 3.0},
    "four times": {"factor": 4.0},
    "rarely so much": {"factor": 1.8},
}


@pytest.mark.slow
@pytest.mark.parametrize("options", ODD.values(), ids=ODD)
def test_what_is_odd_is_said_or_not_measured(measured, options, worded):
    worded(measured(**options).scenarios[0].assumptions)


# As printed: 43.4 % is 43 %, which 43.0 % of the kernels are all of; 42.9 % are not.
@pytest.mark.parametrize(
    ("work", "kernels", "is_there"),
    [
        (43.0, 43.6, False),
        (43.4, 43.0, False),
        (43.0, 42.9, True),
        (50.0, 0.0, True),
        (0.4, 0.0, False),
        (-1.0, 0.0, False),
    ],
)
def test_later_starts_are_named_only_where_kernels_leave_a_part(work, kernels, is_there):
    assert has_later_starts(work, kernels) is is_there


def contention(slowdown, *, share=1.0, covered=0.5, delay=0.0):
    """Return what was measured on operations of 20 us with 2 us between them."""
    return Contention(Compared(1000, slowdown, share), delay, 2 * US, covered, 22e6, 1000)


@pytest.mark.parametrize("captured", [20e9, 100e9, 330e9])
def test_beyond_a_wide_link_a_faster_one_slows_no_more(captured):
    found = [slowdowns(contention(0.4), captured, target).pairs for target in (300e9, 600e9, 2e12)]
    assert found[0] == found[1] == found[2]


def test_compared_kernels_count_with_their_measured_slowdown():
    # Over host memory 3 %, and 3.8 us of each operation: (22 - 2 - 6.5) us / 1.03 of it are its
    # own.
    others = 0.03 + 3.8 / ((20 - 6.5) / 1.03)
    for part in (0.25, 0.5, 1.0):
        before, _ = slowdowns(contention(0.2, share=part), 25e9, None).pairs[0]
        ratio = part * 0.2 + (1 - part) * others
        assert before.ratio == pytest.approx(ratio), part
        # The 2 us between two operations are no work that could be slower.
        assert before.delay_ns == pytest.approx(-ratio * 2 * US), part


def test_a_delay_is_measured_if_no_kernels_can_be_compared():
    found = slowdowns(contention(None, share=0.0, delay=3 * US), 25e9, None)
    assert not found.is_measured
    before, after = found.pairs[0]
    assert before == after
    assert before.delay_ns == pytest.approx(3 * US - before.ratio * 2 * US)
    found = slowdowns(contention(0.2, covered=0.01), 25e9, None)
    assert found.pairs[0][0] == Slowing(0.03, 6_500.0)


def test_another_link_uses_the_usual_slowdown_and_not_the_measured_one():
    target = slowdowns(contention(0.2), 30e9, 300e9).pairs[0][1]
    assert (target.ratio, target.delay_ns) == pytest.approx((0.5, 250.0))
    assert slowdowns(contention(0.2), 30e9, 31e9).pairs[0][1].ratio == pytest.approx(0.2, rel=0.03)


# --- which gradients go into one bucket -----------------------------------------------------------
MIB = 1 << 20
LENGTHS = st.integers(1, 1000)


@pytest.mark.parametrize(
    ("sizes", "cap", "ends"),
    [
        ([26, 26, 26], 25, [0, 1, 2]),  # each fills one by itself
        ([25, 25], 25, [0, 1]),  # met exactly
        ([10, 10, 10, 10], 25, [2, 3]),  # the third closes it, the last stays open
        ([10, 10, 10, 10], 1000, [3]),
        ([1, 90, 1, 1], 25, [1, 3]),  # a large one joins what is there
        ([5], 0.001, [0]),
    ],
)
def test_a_bucket_is_closed_by_the_gradient_that_fills_it(sizes, cap, ends):
    assert bucket_ends(np.array(sizes, np.float64) * MIB, cap).tolist() == ends


@given(st.lists(st.integers(1, 60 * MIB), min_size=1, max_size=30), st.integers(1, 100))
def test_buckets_are_those_of_one_gradient_at_a_time(sizes, cap):
    ends, held = [], 0
    for at, size in enumerate(sizes):
        held += size
        if held >= cap * MIB or at == len(sizes) - 1:
            ends.append(at)
            held = 0
    assert bucket_ends(np.array(sizes, np.float64), cap).tolist() == ends


@examples(100)
@given(
    st.lists(LENGTHS, min_size=2, max_size=6),
    st.lists(LENGTHS, max_size=2),
    st.randoms(use_true_random=False),
)
def test_no_other_choice_in_order_fits_better(sizes, others, random):
    lengths = [float(one) for one in [*sizes, *others]]
    random.shuffle(lengths)
    # What the docstring says of the kernels' expected lengths.
    largest = max(len(sizes) // 4, 1)
    per_byte = sum(sorted(lengths)[-largest:]) / sum(sorted(sizes)[-largest:])
    base = max(min(lengths) - min(sizes) * per_byte, 0)
    expected = [base + size * per_byte for size in sizes]

    def cost(places):
        return sum(
            abs(np.log(lengths[at] / want)) for at, want in zip(places, expected, strict=True)
        )

    found = matched_in_order(np.array(lengths), np.array(sizes, np.float64)).tolist()
    assert found == sorted(set(found))
    best = min(map(cost, itertools.combinations(range(len(lengths)), len(sizes))))
    assert cost(found) == pytest.approx(best)


def test_kernels_that_do_not_follow_the_sizes_are_others():
    unequal, equal = (
        np.array([1.0, 9.0, 5.0]),
        np.array([7.0, 7.0, 7.0]),
    )  # those say nothing against any kernels
    assert is_alike(np.array([1.0, 5.0, 2.0]), equal)
    assert not any(
        is_alike(np.array(lengths), unequal) for lengths in ([9.0, 1.0, 5.0], [3.0, 3.0, 3.0])
    )
