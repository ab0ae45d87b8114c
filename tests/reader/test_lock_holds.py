"""Lines between which a thread held Python's lock: samples by hand, and a loop over samples."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from nsyspipe.reader.lock_holds import Stacks, ThreadSamples, find_hold_ends

# A program: the module calls `train` at line 204. `train` calls a layer at line 184, and the
# optimizer at line 191. Stacks are innermost first.
MODULE = 204
LAYER = (21, 184, MODULE)
OPTIMIZER = (191, MODULE)
REPORT = (194, MODULE)
IN_REPORT = (97, 194, MODULE)
# A line of a library, which is shown if a stack has no frame of the program.
LIBRARY = 900


def hold_ends(*samples):
    """Return the two lines of each sample, given its (time, is late, stack, number of thread)."""
    stacks = [stack for _, _, stack, _ in samples]
    number = np.array([len(stack) for stack in stacks], np.int64)
    found = find_hold_ends(
        ThreadSamples(
            thread=np.array([sample[3] for sample in samples], np.int64),
            times=np.array([sample[0] for sample in samples], np.int64),
            is_late=np.array([sample[1] for sample in samples], np.bool_),
            shown_line=np.array([[*stack, LIBRARY][0] for stack in stacks], np.int64),
        ),
        Stacks(
            line=np.array([line for stack in stacks for line in stack], np.int64),
            first=np.cumsum(number) - number,
            number=number,
        ),
    )
    return list(zip(found.after.tolist(), found.let_go.tolist(), strict=True))


def in_time(time, stack, thread=0):
    return time, False, stack, thread


def late(time, stack, thread=0):
    return time, True, stack, thread


def test_all_samples_of_a_hold_have_the_lines_of_the_function_that_both_stacks_share():
    batch = [late(time, LAYER) for time in (207, 307, 407)]
    assert hold_ends(in_time(100, OPTIMIZER), *batch) == [(-1, -1), *[(191, 184)] * 3]


def test_a_hold_without_a_sample_before_has_only_the_line_of_letting_go():
    batch = [late(time, LAYER) for time in (107, 207)]
    assert hold_ends(*batch, in_time(300, OPTIMIZER)) == [(-1, 21), (-1, 21), (-1, -1)]


def test_equal_stacks_have_two_equal_lines():
    assert hold_ends(in_time(100, IN_REPORT), late(207, IN_REPORT))[1] == (97, 97)


def test_a_stack_that_goes_on_inside_has_the_line_of_its_call_twice():
    assert hold_ends(in_time(100, IN_REPORT), late(207, REPORT))[1] == (194, 194)
    assert hold_ends(in_time(100, REPORT), late(207, IN_REPORT))[1] == (194, 194)


def test_without_a_shared_function_the_outermost_lines_are_those_that_differ():
    assert hold_ends(in_time(100, (5, 6)), late(207, (7, 8)))[1] == (6, 8)


def test_without_frames_of_the_program_the_line_is_that_of_the_library():
    assert hold_ends(in_time(100, ()), late(207, LAYER))[1] == (LIBRARY, 21)
    assert hold_ends(in_time(100, LAYER), late(207, ()))[1] == (21, LIBRARY)


def test_the_sample_before_a_hold_may_be_of_another_hold():
    samples = [in_time(100, LAYER), late(207, OPTIMIZER), late(310, LAYER), late(410, LAYER)]
    assert hold_ends(*samples)[1:] == [(184, 191), (191, 184), (191, 184)]


def test_late_samples_that_are_not_a_period_apart_are_of_two_holds():
    # The period is 100, because it occurs most often.
    of_first = [late(time, IN_REPORT) for time in (207, 307, 407)]
    of_second = [late(time, IN_REPORT) for time in (511, 610, 710)]
    ends = hold_ends(in_time(100, OPTIMIZER), *of_first, *of_second)
    assert ends[1:] == [(191, 194)] * 3 + [(97, 97)] * 3


def test_samples_of_other_threads_are_not_before():
    samples = [in_time(100, OPTIMIZER), in_time(150, REPORT, thread=1), late(207, LAYER)]
    assert hold_ends(*samples)[2] == (191, 184)


def test_samples_may_come_in_any_order():
    samples = [late(307, LAYER), in_time(100, OPTIMIZER), late(207, LAYER)]
    assert hold_ends(*samples) == [(191, 184), (-1, -1), (191, 184)]


def test_no_samples_have_no_lines():
    assert hold_ends() == []


def loop_over_samples(samples):
    """Return what `hold_ends` should return, sample by sample."""
    by_thread = {}
    for place, sample in enumerate(samples):
        by_thread.setdefault(sample[3], []).append((*sample, place))
    for of_thread in by_thread.values():
        of_thread.sort(key=lambda sample: sample[0])
    pairs = [pair for of_thread in by_thread.values() for pair in pairwise(of_thread)]
    gaps = Counter(after[0] - before[0] for before, after in pairs if may_be_one(before, after))
    period = max(gaps, key=lambda gap: (gaps[gap], -gap), default=0)
    ends = [(-1, -1)] * len(samples)
    for of_thread in by_thread.values():
        before = None
        first = None
        for sample in of_thread:
            is_next = before is not None and may_be_one(before, sample)
            if not (is_next and abs(sample[0] - before[0] - period) <= 1):
                first = (before, sample)
            if sample[1]:
                ends[sample[4]] = ends_of(*first)
            before = sample
    return ends


def may_be_one(before, sample):
    return before[1] and sample[1] and shown(before) == shown(sample)


def shown(sample):
    return [*sample[2], LIBRARY][0]


def ends_of(before, sample):
    if before is None:
        return -1, shown(sample)
    pairs = list(zip(reversed(before[2]), reversed(sample[2]), strict=False))
    if not pairs:
        return shown(before), shown(sample)
    return next((pair for pair in pairs if pair[0] != pair[1]), pairs[-1])


@pytest.mark.parametrize("seed", range(20))
def test_lines_are_those_of_a_loop_over_samples(seed):
    random = np.random.default_rng(seed)
    samples = []
    for time in random.choice(400, 150, replace=False).tolist():
        stack = tuple(random.integers(0, 3, random.integers(0, 4)).tolist())
        samples.append((time, bool(random.random() < 0.6), stack, int(random.integers(0, 2))))
    assert hold_ends(*samples) == loop_over_samples(samples)
