"""Limits of the rules about parallelism, just below and just above each. Times are ns, steps are of 1000."""

from nsyspipe.findings.parallelism import shard_regather
from tests.findings.role_rules import gathered


def gathers_again(n_backward):
    """Tell whether `shard_regather` fires where backward launches so many of 100 all-gathers of 1 ns each."""
    launched_by = [*[None] * (100 - n_backward), *[0] * n_backward]
    return shard_regather(gathered(*launched_by, lasting=1)) is not None


# 25 of 100 are a quarter.
def test_a_quarter_of_all_gathers_in_backward_is_a_second_gathering():
    assert gathers_again(25)


def test_less_than_a_quarter_of_all_gathers_in_backward_is_none():
    assert not gathers_again(24)
