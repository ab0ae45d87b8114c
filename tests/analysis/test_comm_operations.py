"""The communication operations of one rank: their step, their kind, their communicator."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from nsyspipe.analysis.communication import NO_MEMBER, CommKind, comm_operations
from nsyspipe.analysis.steps import Windows
from nsyspipe.model import canonical
from nsyspipe.model.canonical import PAYLOADS
from tests.build.make import comm, compute, ints, members, operations, windows

TEXTS = {
    1: "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
    2: "ncclDevKernel_AllGather_RING_LL",
    3: "ncclKernel_AllReduce_RING_LL_Sum_float",
    4: "my_ring",
}
STEPS = members((0, 100), (150, 250))
WINDOWS = windows((10, 130), (130, 260))


def found(*ops, steps=STEPS, spans=WINDOWS, is_one_window=False, payloads=None):
    told = PAYLOADS.empty() if payloads is None else payloads
    return comm_operations(operations(*ops), TEXTS, steps, spans, payloads=told, is_one_window=is_one_window)


def payload(start, call, **more):
    """Return what NCCL says of one call of 2 ns on communicator 5."""
    row = {"process_id": 1, "thread_id": 1, "start_ns": start, "end_ns": start + 2, "comm_id": 5}
    columns = {name: [(row | more).get(name)] for name in PAYLOADS.names}
    return PAYLOADS.table(columns | {"call": pa.array([call]).dictionary_encode()})


def rows(*ops, columns=("start_ns", "member"), **options):
    table = found(*ops, **options).table
    return list(zip(*(table[name].to_pylist() for name in columns), strict=True))


# --- steps ---------------------------------------------------------------------------------


def test_operations_are_listed_in_order_of_start_and_compute_is_not():
    made = found(comm(50, 60, 5), compute(20, 30, 2), comm(40, 90, 7))
    assert made.table.schema == canonical.COMM_OPERATIONS.arrow
    assert made.table.select(["start_ns", "end_ns"]).to_pylist() == [
        {"start_ns": 40, "end_ns": 90},
        {"start_ns": 50, "end_ns": 60},
    ]


def test_an_operation_belongs_to_the_step_range_that_holds_its_launch():
    # Launched at a range's start, before its end, at its end, between two ranges, in the second.
    ops = comm(10, 11, 0), comm(20, 21, 99), comm(30, 31, 100), comm(40, 41, 149), comm(50, 51, 150)
    assert rows(*ops) == [(10, 0), (20, 0), (30, NO_MEMBER), (40, NO_MEMBER), (50, 1)]


def test_an_operation_without_a_launch_belongs_to_the_window_that_its_start_falls_in():
    ops = comm(9, 20), comm(10, 20), comm(129, 140), comm(130, 131), comm(260, 270)
    assert [member for _, member in rows(*ops)] == [NO_MEMBER, 0, 0, 1, NO_MEMBER]


def test_a_window_gives_the_step_range_that_it_is_of():
    # The first step range has no window, but its operations with a launch are still its own.
    second = Windows(ints(1), ints(130), ints(260), np.array([False]))
    assert rows(comm(20, 30), comm(140, 150), comm(25, 30, 50), spans=second) == [
        (20, NO_MEMBER), (25, 0), (140, 1),
    ]  # fmt: skip


def test_a_capture_that_is_one_window_holds_all_operations():
    ops = comm(20, 30, 500), comm(40, 50)
    assert rows(*ops, steps=members(), spans=windows((0, 60)), is_one_window=True) == [
        (20, 0), (40, 0),
    ]  # fmt: skip


# --- kinds ---------------------------------------------------------------------------------


def test_names_that_say_the_same_are_one_kind():
    made = found(
        comm(10, 11, 1, name_id=3), comm(20, 21, 2, name_id=2), comm(30, 31, 3, name_id=1),
        comm(40, 41, 4, name_id=4),
    )  # fmt: skip
    assert made.kinds == (
        CommKind("all_gather", None, "RING_LL"),
        CommKind("all_reduce", "f32", "RING_LL"),
        CommKind("other", None, None),
    )
    assert made.table["kind"].to_pylist() == [1, 0, 1, 2]


@pytest.mark.parametrize("name_id", [None, 99])
def test_an_operation_without_a_known_name_is_of_another_kind(name_id):
    made = found(comm(10, 11, 1, name_id=name_id), comm(20, 21, 2, name_id=1))
    assert made.kinds[1] == CommKind("other", None, None)
    assert made.table["kind"].to_pylist() == [1, 0]


# --- streams -------------------------------------------------------------------------------


def orders(*uses):
    """Return the stream order of operations (name id, device, stream), each after the other."""
    ops = [
        comm(10 * at, 10 * at + 5, at, name_id=name, device_id=device, stream_id=stream)
        for at, (name, device, stream) in enumerate(uses)
    ]
    return found(*ops).table["stream_order"].to_pylist()


def test_streams_are_numbered_in_order_of_first_use_whatever_their_ids():
    assert orders((1, 0, 40), (1, 0, 7), (1, 0, 40), (1, 0, 9), (1, 0, 7)) == [0, 1, 0, 2, 1]


def test_each_collective_numbers_its_streams_by_itself():
    # All-reduce uses 40 and 7, all-gather 7 and 40; the old name of all-reduce is no other.
    assert orders((1, 0, 40), (2, 0, 7), (1, 0, 7), (2, 0, 40), (3, 0, 40)) == [0, 0, 1, 1, 0]


def test_one_stream_id_of_two_devices_is_two_streams():
    assert orders((1, 1, 7), (1, 0, 7), (1, 1, 7)) == [0, 1, 0]


def test_unknown_streams_are_one_stream():
    assert orders((1, None, None), (1, 0, 7), (1, None, None)) == [0, 1, 0]


def test_streams_are_numbered_by_launch_and_not_by_start():
    late = comm(10, 20, 9, name_id=1, stream_id=5), comm(30, 40, 1, name_id=1, stream_id=6)
    assert found(*late).table["stream_order"].to_pylist() == [1, 0]


# --- payloads ------------------------------------------------------------------------------

TOLD = ("start_ns", "comm_id", "seq_number", "message_bytes")


def test_an_operation_has_the_payload_of_the_call_that_launched_it():
    # In order of start they stand the other way round.
    told = payload(4, "ncclAllReduce", seq=8, message_bytes=64), payload(1, "ncclAllGather", seq=7)
    ops = comm(10, 11, 5, name_id=1), comm(20, 21, 2, name_id=2)
    assert rows(*ops, columns=TOLD, payloads=pa.concat_tables(told, unify_dictionaries=True)) == [
        (10, 5, 8, 64), (20, 5, 7, None),
    ]  # fmt: skip
