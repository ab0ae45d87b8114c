"""Evidence that ranks which nothing assigns to a communicator are not all one process group."""

import numpy as np
import pytest

from nsyspipe.analysis.process_groups import (
    Calls,
    CallTimes,
    Doubt,
    do_counts_refute_one_group,
    do_times_refute_one_group,
    doubt_of_purposes,
    groups_by_times,
    partners_by_times,
)


def are_contradicted(*collectives):
    """Judge collectives of three ranks, each given as three pairs of start and end."""
    times = np.array(collectives, np.int64).reshape(-1, 2)
    matched = [np.arange(len(times)).reshape(-1, 3)]
    return do_times_refute_one_group(matched, times[:, 0], times[:, 1])


TOGETHER = ((0, 900), (10, 900), (500, 900))
ONE_EARLY = ((0, 499), (10, 900), (500, 900))  # 499 < 500, the last start


@pytest.mark.parametrize(("n_together", "expected"), [(0, True), (1, False)])
def test_one_operation_in_five_that_ends_early_contradicts_one_group(n_together, expected):
    # 1 of 3 operations is early (0.33), 1 of 6 is (0.17): the limit is 0.2.
    assert are_contradicted(ONE_EARLY, *[TOGETHER] * n_together) is expected


def apart(start_spread, end_spread):
    return (0, 10**6), (0, 10**6), (start_spread, 10**6 + end_spread)


@pytest.mark.parametrize(
    ("collective", "n", "expected"),
    [
        (apart(100_000, 50_000), 3, True),
        (apart(99_999, 99_999), 3, False),  # starts that are close say nothing
        (apart(100_000, 49_999), 3, False),  # ends that are much closer than starts: one group
        (apart(100_000, 50_000), 2, False),  # too few
    ],
)
def test_ends_half_as_far_apart_as_starts_contradict_one_group(collective, n, expected):
    assert are_contradicted(*[collective] * n) is expected


@pytest.mark.parametrize(("n_together", "expected"), [(3, True), (4, False)])
def test_half_of_the_collectives_with_distant_starts_must_end_apart(n_together, expected):
    pairs = [apart(200_000, 200_000)] * 3 + [apart(200_000, 0)] * n_together
    assert are_contradicted(*pairs) is expected


# In three steps of two ranks, as pairs of (calls of rank 0, calls of rank 1).
@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([(1, 2), (1, 2), (1, 2)], True),
        ([(1, 0), (1, 0), (1, 0)], True),
        ([(1, 2), (1, 2), (2, 2)], False),  # a rank lost some
        ([(1, 2), (1, 2)], False),  # too few steps
    ],
)
def test_counts_that_differ_in_each_of_three_steps_contradict_one_group(counts, expected):
    calls = [
        (step, rank)
        for step, own in enumerate(counts)
        for rank, n in enumerate(own)
        for _ in range(n)
    ]
    steps, ranks = (np.array(column, np.int64) for column in zip(*calls, strict=True))
    assert do_counts_refute_one_group(steps, ranks, 2) is expected


GRADIENTS = Calls("all_reduce", in_forward=0, in_backward=1)
SHARDS = Calls("reduce_scatter", in_forward=0, in_backward=1)
LAYERS = Calls("all_reduce", in_forward=2, in_backward=2)
SUMS_IN_FORWARD = Calls("all_reduce", in_forward=2, in_backward=1.9)
LOSS = Calls(
    "all_reduce", in_forward=0, in_backward=0
)  # behind backward, as the norm of gradients is
GATHERS = Calls("all_gather", in_forward=9, in_backward=9)


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ([GRADIENTS], None),
        ([GRADIENTS, LOSS, SUMS_IN_FORWARD], None),
        ([SHARDS, GATHERS, LOSS], None),
        ([LAYERS], None),
        ([LAYERS, GRADIENTS], Doubt.PURPOSES),
        ([SHARDS, GATHERS, GRADIENTS], Doubt.PURPOSES),
    ],
)
def test_two_kinds_of_parallelism_are_more_than_one_group(calls, expected):
    assert doubt_of_purposes(calls, has_stages=False) is expected


def test_stages_of_a_pipeline_are_more_than_one_group():
    assert doubt_of_purposes([GRADIENTS], has_stages=True) is Doubt.STAGES


PAIRS = (0, 1), (2, 3)
ACROSS = (0, 2), (1, 3)
ALL = ((0, 1, 2, 3),)


def calls_in(groups, arrivals):
    """Return calls of four ranks in one step; each ends 10 us after the last rank of its group arrived."""
    rows = []
    for place, starts in enumerate(arrivals):
        for group in groups:
            last = max(starts[rank] for rank in group)
            rows += [(rank, place, starts[rank], last + 10_000) for rank in group]
    rank, place, start, end = np.array(sorted(rows), np.int64).T
    shift = 10**9 * place
    return CallTimes(rank, np.zeros_like(rank), start + shift, end + shift)


# In each of three calls the pairs are 300 us apart, and so are the ranks of a pair.
SPREAD = [(0, 300_000, 600_000, 900_000)] * 3
LEVEL = [(0, 1000, 2000, 3000)] * 3


@pytest.mark.parametrize("groups", [PAIRS, ACROSS, ALL], ids=["pairs", "across", "all"])
def test_of_groups_that_the_log_names_times_leave_the_one(groups):
    # Of all ranks the others are parts, which times cannot rule out: so only the real one is listed
    # beside all.
    listed = [*ALL, *(groups if groups is ALL else [*PAIRS, *ACROSS])]
    found = groups_by_times(calls_in(groups, SPREAD), [*dict.fromkeys(listed)])
    assert found == {rank: group for group in groups for rank in group}


def test_ranks_that_arrive_together_may_be_of_any_group():
    assert groups_by_times(calls_in(PAIRS, LEVEL), [*PAIRS, *ACROSS]) is None


def test_parts_of_a_group_are_as_possible_as_the_group():
    assert groups_by_times(calls_in(ALL, SPREAD), [*ALL, *PAIRS]) is None


def test_a_rank_without_any_possible_group_leaves_all_unknown():
    assert groups_by_times(calls_in(PAIRS, SPREAD), [(0, 1), *ACROSS]) is None


def test_ranks_that_make_different_numbers_of_calls_are_of_different_groups():
    calls = calls_in(PAIRS, LEVEL)
    is_kept = ~(
        (calls.rank >= 2) & (calls.start_ns > 2 * 10**9)
    )  # ranks 2 and 3 make two calls of three
    fewer = CallTimes(
        *(getattr(calls, name)[is_kept] for name in ("rank", "step", "start_ns", "end_ns"))
    )
    assert groups_by_times(fewer, [*PAIRS, *ACROSS, *ALL]) == {
        0: (0, 1),
        1: (0, 1),
        2: (2, 3),
        3: (2, 3),
    }


def sends_of(ends, *, start_spread=100_000):
    """Return sends and receives of three ranks or four: of each rank the end of each call, ns after the call of rank 0 starts.

    Each rank starts its calls so much later than the one before it.
    """
    rows = [(rank, place, end) for rank, own in enumerate(ends) for place, end in enumerate(own)]
    rank, place, end = np.array(rows, np.int64).T
    begun = 10**9 * place
    return CallTimes(rank, np.zeros_like(rank), begun + start_spread * rank, begun + end)


def with_partners(n_apart, n_together, *, n_strange_together=0):
    """Return the ends of ranks 0 and 1, which end so many calls apart and together, and of 2 and 3, which do as they.

    The two pairs end calls far apart, but so many at the same time.
    """
    n_calls = n_apart + n_together
    first = np.full(n_calls, 10**6)
    second = first + np.where(np.arange(n_calls) < n_apart, 50_000, 49_999)
    later = np.where(np.arange(n_calls) < n_calls - n_strange_together, 10**6, 0)
    return [first, second, first + later, second + later]


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        (with_partners(0, 3), {0: 1, 1: 0, 2: 3, 3: 2}),
        (with_partners(0, 2), None),  # too few calls
        (
            with_partners(4, 5),
            {0: 1, 1: 0, 2: 3, 3: 2},
        ),  # 4 of 9 sends leave before their receivers come
        (with_partners(5, 5), None),  # half of them
        (
            with_partners(0, 3, n_strange_together=1),
            {0: 1, 1: 0, 2: 3, 3: 2},
        ),  # others end 2 of 3 calls apart
        (with_partners(0, 5, n_strange_together=2), None),  # 3 of 5
    ],
)
def test_ranks_that_end_most_calls_together_send_to_each_other(ends, expected):
    assert partners_by_times(sends_of(ends)) == expected


def test_sends_that_start_within_100_us_of_each_other_tell_no_partner():
    assert partners_by_times(sends_of(with_partners(0, 3), start_spread=99_999)) is None


def test_a_rank_that_ends_its_calls_with_two_others_has_no_certain_partner():
    assert partners_by_times(sends_of([[10**6] * 3] * 3)) is None


def test_ranks_that_send_different_numbers_of_times_are_no_partners():
    together = [10**6] * 4
    assert partners_by_times(sends_of([together, together, together[:3], together[:3]])) == {
        0: 1,
        1: 0,
        2: 3,
        3: 2,
    }
