"""Ranks are matched by NCCL's numbers of operations (``operationId``), as NVIDIA documents them. No real report was at hand."""

import numpy as np
import pytest

from nsyspipe.analysis.collectives import match_collectives
from nsyspipe.run.comm_rows import comm_rows, find_operation_numbers
from tests.build.across import collectives, every_step, load, reports
from tests.build.make_comm import GATHER, SEND, op, rank
from tests.build.tools import codes, problem_of

VERSION = "3.28.1 2026.4.1"
COMM = 7


def numbered(start, number, **more):
    return op(start, comm=COMM, number=number, n_bytes=more.pop("n_bytes", 64), **more)


def rows_of(*ranks):
    return comm_rows([rank(*operations) for operations in ranks], [np.array([1, 2])] * len(ranks))


def starts_matched(*ranks):
    """Return the starts of each matched collective, by rank."""
    rows = rows_of(*ranks)
    group, required = rows.groups(len(ranks))
    matches = match_collectives(group, rows.rank, required)
    return sorted(tuple(rows.start_ns[one].tolist()) for block in matches for one in block)


def test_operations_in_another_order_are_matched_by_number():
    first = [numbered(0, 11), numbered(20, 12), numbered(40, 13)]
    second = [numbered(5, 12), numbered(25, 11), numbered(45, 13)]
    assert starts_matched(first, second) == [(0, 25), (20, 5), (40, 45)]


def test_a_missing_operation_shifts_no_match():
    first = [numbered(0, 11), numbered(20, 12), numbered(40, 13)]
    second = [numbered(25, 12), numbered(45, 13)]
    assert starts_matched(first, second) == [(20, 25), (40, 45)]


def test_an_operation_without_a_number_is_not_matched():
    first = [numbered(0, 11), numbered(20, None), numbered(40, 13)]
    second = [numbered(5, 11), numbered(25, 12), numbered(45, 13)]
    assert starts_matched(first, second) == [(0, 5), (40, 45)]


def test_negative_numbers_are_numbers():
    assert starts_matched([numbered(0, -(2**63) + 1)], [numbered(5, -(2**63) + 1)]) == [(0, 5)]


@pytest.mark.parametrize(("n_numbered", "is_by_number"), [(2, True), (1, False)])
def test_more_than_half_of_a_communicator_must_have_numbers(n_numbered, is_by_number):
    # One of two, or two of two, on each rank.
    first = [numbered(0, 11), numbered(20, 12 if n_numbered == 2 else None)]
    numbers = find_operation_numbers(rows_of(first, first))
    assert numbers.is_numbered.any() == is_by_number


def test_numbers_without_a_communicator_are_not_used():
    first = [op(0, number=11), op(20, number=12)]
    assert not find_operation_numbers(rows_of(first, first)).is_numbered.any()


def test_sends_and_receives_are_matched_by_order():
    first = [numbered(0, 11, kind=SEND), numbered(20, 12)]
    second = [numbered(5, 13, kind=SEND), numbered(25, 12)]
    assert starts_matched(first, second) == [(0, 5), (20, 25)]


@pytest.mark.parametrize(
    ("changed", "n_contradicted"),
    [
        (numbered(5, 11, n_bytes=128), 2),
        (numbered(5, 11, kind=GATHER), 2),
        (numbered(5, 12), 3),
    ],
    ids=["another size", "another collective", "the number of another operation"],
)
def test_a_contradicted_number_leaves_its_communicator_to_the_order(changed, n_contradicted):
    first = [numbered(0, 11), numbered(20, 12)]
    second = [changed, numbered(25, 12)]
    rows = rows_of(first, second)
    numbers = find_operation_numbers(rows)
    assert numbers.n_contradicted == n_contradicted
    assert not numbers.is_numbered.any()
    assert not numbers.is_unnumbered.any()
    assert starts_matched(first, second) == [(0, 5), (20, 25)]


def test_other_communicators_keep_their_numbers():
    other = op(60, comm=8, number=21, n_bytes=64)
    first = [numbered(0, 11), other]
    second = [numbered(5, 11, n_bytes=128), other]
    numbers = find_operation_numbers(rows_of(first, second))
    assert numbers.is_numbered.tolist() == [False, True] * 2


def built(folder, *, name="operationId", orders=((0, 1), (1, 0)), sizes=(16, 16)):
    """Write two ranks whose two all-reduces of each step run in other orders on two streams."""
    builders = reports(2, version=VERSION)
    for place, builder in enumerate(builders):
        builder.domain("NCCL", 1)
        for step in range(4):
            for call, operation in enumerate(orders[place]):
                fields = {"commHash": COMM, "commRank": place, "count": sizes[place]}
                fields |= {"dataType": 7, name: 100 + 10 * step + operation}
                builder.table_payload(1000 * step + 20 + 30 * call, "AllReduce", fields)
    # The k-th call of each rank runs at the same time, the second one later on rank 1.
    every_step(builders, 300, 300, end=400, launch=30)
    every_step(builders, 500, 540, end=600, launch=60, stream=20)
    return load(builders, folder)


def pairs(run):
    """Return the starts of the operations of each collective of step 1."""
    rows = collectives(run, "seq", "rank", "start_ns", "is_matched")
    assert all(is_matched for *_, is_matched in rows)
    starts = {}
    for seq, _, start, _ in rows:
        starts.setdefault(seq, []).append(start)
    return sorted(map(tuple, starts.values()))


def test_reports_are_matched_by_number(tmp_path):
    # The first call of rank 0 is the second one of rank 1.
    run = built(tmp_path)
    assert pairs(run) == [(1300, 1540), (1500, 1300)]
    assert "operation-ids-contradict" not in codes(run)


def test_reports_with_the_number_of_a_call_are_matched_by_order(tmp_path):
    assert pairs(built(tmp_path, name="apiId")) == [(1300, 1300), (1500, 1540)]


def test_contradicted_numbers_are_one_problem(tmp_path):
    run = built(tmp_path, sizes=(16, 32))
    assert codes(run).count("operation-ids-contradict") == 1
    # Two operations in each of four steps of two ranks.
    assert problem_of(run, "operation-ids-contradict")["message"].startswith("16 ")
