"""Message sizes and bandwidths as nccl-tests counts them, and what the table of collectives makes of them."""

from __future__ import annotations

import numpy as np
import pytest

from nsyspipe.analysis.clock import ClockOffset
from nsyspipe.analysis.collectives import bus_factor, match, waiting, whole_message
from nsyspipe.run.collectives import CrossRank, collectives_table, comm_rows, step_bytes
from tests.build.make import ints
from tests.build.make_comm import GATHER, SEND, op, rank

PER_RANK = ("all_gather", "reduce_scatter", "all_to_all")
WHOLE = ("all_reduce", "broadcast", "reduce", "send_recv", "other")


# --- one collective -------------------------------------------------------------------------------


@pytest.mark.parametrize("collective", [*PER_RANK, *WHOLE])
def test_the_message_is_the_whole_array(collective):
    # NCCL reports the part of one rank where each has a part: 100 bytes of 4 ranks, 7 of 2.
    found = whole_message(collective, ints(100, 7, 0), ints(4, 2, 8))
    assert found.tolist() == ([400, 14, 0] if collective in PER_RANK else [100, 7, 0])


@pytest.mark.parametrize(
    ("collective", "factors"),
    [
        ("all_reduce", [0, 1, 1.5, 1.75]),  # 2 (n - 1) / n of 1, 2, 4, 8 ranks
        *((name, [0, 0.5, 0.75, 0.875]) for name in PER_RANK),  # (n - 1) / n
        *((name, [1, 1, 1, 1]) for name in WHOLE[1:]),
    ],
)
def test_bus_bandwidth_is_algorithm_bandwidth_times_nccl_tests_factor(collective, factors):
    assert bus_factor(collective, np.array([1.0, 2, 4, 8])).tolist() == factors


# --- the table ------------------------------------------------------------------------------------


def across_of(*ranks):
    rows = comm_rows(ranks, [ints(0, 1)] * len(ranks))
    group, required = rows.groups(len(ranks))
    error = np.zeros(len(rows), np.int64)
    found = waiting(match(group, rows.rank, required), rows.start_ns, rows.end_ns, error)
    return CrossRank(tuple(ranks), (ClockOffset(0, 0),), rows, found, ())


def table_of(across, sizes):
    return collectives_table(across, range(len(across.placed)), ints(0), ints(*sizes)).to_pylist()


def bandwidths(*ranks, sizes):
    """Return (rank, message, bus bytes, algbw, busbw) of each row."""
    names = ("rank", "message_bytes", "bus_bytes", "algbw_bytes_per_s", "busbw_bytes_per_s")
    return [tuple(row[name] for name in names) for row in table_of(across_of(*ranks), sizes)]


def test_bandwidth_is_the_message_over_the_transfer_without_the_wait():
    # All-reduce of 800 bytes on two ranks: [0, 10) and [2, 12): the last arrives at 2, so transfers are 8 and
    # 10 ns: 100 and 80 bytes a ns. 2 (n - 1) / n = 1.
    assert bandwidths(rank(op(0, n_bytes=800)), rank(op(2, n_bytes=800)), sizes=(2,)) == [
        (0, 800, 800.0, 1e11, 1e11),
        (1, 800, 800.0, 8e10, 8e10),
    ]


def test_an_all_gather_moves_what_all_ranks_have():
    # 100 bytes of each of 4 ranks (two of them present) in 10 ns, three quarters of it over the bus.
    both = rank(op(0, kind=GATHER, n_bytes=100))
    assert bandwidths(both, both, sizes=(4,)) == [(number, 400, 300.0, 4e10, 3e10) for number in range(2)]


def test_without_the_size_of_the_communicator_there_is_no_bus_bandwidth():
    both = rank(op(0, n_bytes=100), op(20, kind=GATHER, n_bytes=100))
    # all_gather/0 stands before all_reduce/0, but starts later.
    assert bandwidths(both, both, sizes=(0, 0)) == [
        *((number, 100, None, 1e10, None) for number in range(2)),
        *((number, None, None, None, None) for number in range(2)),
    ]


def test_a_message_of_unknown_size_has_no_bandwidth_and_an_empty_one_has_0():
    both = rank(op(0), op(20, n_bytes=0))
    assert bandwidths(both, both, sizes=(2,)) == [
        *((number, None, None, None, None) for number in range(2)),
        *((number, 0, 0.0, 0.0, 0.0) for number in range(2)),
    ]


def test_where_nothing_is_left_to_transfer_there_is_no_bandwidth():
    # Rank 0 is done at 10, just when rank 1 arrives.
    found = bandwidths(rank(op(0, n_bytes=50)), rank(op(10, n_bytes=50)), sizes=(2,))
    assert found == [(0, 50, 50.0, None, None), (1, 50, 50.0, 5e9, 5e9)]


def test_an_unmatched_operation_has_its_message_and_no_bandwidth():
    found = bandwidths(rank(op(0, n_bytes=50)), rank(), sizes=(2,))
    assert found == [(0, 50, 50.0, None, None)]


def test_sends_count_what_nccl_says_of_each_rank():
    found = bandwidths(rank(op(0, kind=SEND, n_bytes=30)), rank(op(0, kind=SEND, n_bytes=40)), sizes=(2,))
    assert found == [(0, 30, 30.0, 3e9, 3e9), (1, 40, 40.0, 4e9, 4e9)]


def test_bytes_beyond_what_a_float_holds_are_exact():
    n_bytes = 2**53 + 1
    (first, _) = bandwidths(*[rank(op(0, n_bytes=n_bytes))] * 2, sizes=(2,))
    assert first[1] == n_bytes


# --- bytes of a step ------------------------------------------------------------------------------


def test_bytes_of_a_step_are_those_of_the_operations_that_belong_to_it():
    # Step 0: 10, and 20 gathered of 2 ranks; step 1: 5. What belongs to no step counts nowhere.
    both = rank(
        op(0, n_bytes=10), op(20, kind=GATHER, n_bytes=20), op(40, member=1, n_bytes=5),
        op(60, member=-1, n_bytes=1000),
    )  # fmt: skip
    across = across_of(both, both)
    sizes = ints(*(2 for _ in across.rows.communicators))
    found, known = step_bytes(across, sizes, ints(1, 0, 0, 1), ints(0, 0, 1, 1))
    assert (found.tolist(), known.tolist()) == ([50, 50, 5, 5], [True] * 4)


def test_a_step_with_one_unknown_message_is_not_known_and_one_without_any_is_0():
    across = across_of(rank(op(0, n_bytes=10), op(20)), rank(op(0, n_bytes=10)))
    found, known = step_bytes(across, ints(2), ints(0, 0, 1, 1), ints(0, 1, 0, 1))
    assert known.tolist() == [False, True, True, True]
    assert found[known].tolist() == [0, 10, 0]


def test_steps_without_windows_add_nothing():
    # Step 0 has a window on rank 1 only, and step 1 on rank 0 only.
    both = rank(op(0, n_bytes=10), op(20, member=1, n_bytes=7))
    found, known = step_bytes(across_of(both, both), ints(2), ints(1, 0), ints(0, 1))
    assert (found.tolist(), known.tolist()) == ([10, 7], [True, True])
    found, known = step_bytes(across_of(both, both), ints(2), ints(), ints())
    assert (found.size, known.size) == (0, 0)
