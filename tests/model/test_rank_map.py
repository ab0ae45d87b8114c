"""Rank maps whose names or ranks are ranges."""

import pytest

from nsyspipe.errors import OptionError
from nsyspipe.model.options import parse_rank_map


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("r[00-02]=0-2", {"r00": 0, "r01": 1, "r02": 2}),
        ("r[08-10]=0-2", {"r08": 0, "r09": 1, "r10": 2}),
        ("r[8-10]=0-2", {"r8": 0, "r9": 1, "r10": 2}),  # no zero leads
        ("r[0-2]=4-6", {"r0": 4, "r1": 5, "r2": 6}),
        ("r[099-100]=0-1", {"r099": 0, "r100": 1}),
        ("r[0-1]=00-01", {"r0": 0, "r1": 1}),
        ("a=0-0", {"a": 0}),
        ("a=3-3,b=0", {"a": 3, "b": 0}),
        ("r[7-7]=2-2", {"r7": 2}),
    ],
)
def test_a_range_names_each_report_as_a_shell_does(given, expected):
    assert parse_rank_map(given) == expected


@pytest.mark.parametrize("given", ["a=0-1", "r[0-2]=0-1", "r[0-0]=0-1"])
def test_a_range_of_ranks_needs_as_many_reports(given):
    with pytest.raises(OptionError) as caught:
        parse_rank_map(given)
    assert given in caught.value.subject
