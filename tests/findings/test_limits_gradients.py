"""Limits of the rules about gradients, just below and just above each. Times are ns, steps are of 1000."""

from nsyspipe.findings.gradients import compress_gradients, no_sync
from nsyspipe.findings.model import NotJudged
from tests.findings.make import evidence, steps, traffic
from tests.findings.role_rules import MB, passes, using


def answer_about_unknown_all_reduces(exposed_ns):
    """Return what `compress_gradients` says of exposed all-reduces that may or may not be of gradients."""
    return compress_gradients(
        using("other", "all_reduce", (exposed_ns, 0), (exposed_ns, 0), links=[])
    )


# 100 of 1000 are 10 %.
def test_unknown_all_reduces_of_10_percent_of_a_step_are_not_judged():
    assert isinstance(answer_about_unknown_all_reduces(100), NotJudged)


# 99 of 1000 are 9.9 %.
def test_unknown_all_reduces_of_less_than_10_percent_are_no_matter():
    assert answer_about_unknown_all_reduces(99) is None


# A message of 64 KiB, 65 536 bytes, is small.
def answer_about_messages_of(n_bytes):
    """Return what `compress_gradients` says of an exposed all-reduce of so many bytes whose role is not known."""
    carried = traffic("other", "all_reduce", (300, 0), (300, 0), n_bytes=n_bytes)
    return compress_gradients(evidence(steps(2, exposed=300), traffic=carried, links=[]))


def test_unknown_all_reduces_of_small_messages_are_no_gradients():
    assert answer_about_messages_of(65_536) is None


def test_unknown_all_reduces_of_larger_messages_may_be_gradients():
    assert isinstance(answer_about_messages_of(65_537), NotJudged)


def has_no_sync_beside(n_bytes):
    """Tell whether `no_sync` fires for two backward passes that send 25 MB each, and the last so much more."""
    return no_sync(passes((25,), (25, n_bytes / MB))) is not None


def test_a_small_message_of_one_backward_pass_is_left_out():
    assert has_no_sync_beside(65_536)


# Then the passes send one message and two.
def test_a_message_that_is_not_small_counts_in_its_backward_pass():
    assert not has_no_sync_beside(65_537)
