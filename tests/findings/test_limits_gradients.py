"""Limits of the rules about gradients, just below and just above each. Times are ns, steps are of 1000."""

from nsyspipe.findings.gradients import compress_gradients
from nsyspipe.findings.model import NotJudged
from tests.findings.role_rules import using


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
