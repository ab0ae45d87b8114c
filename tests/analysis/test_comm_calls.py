"""Copies that calls of NCCL launched are one collective for each call and device, as plain loops find them."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from nsyspipe.analysis.comm_calls import UNKNOWN_SIZE, find_called, with_called
from nsyspipe.model import canonical
from nsyspipe.model.names import collective_of
from tests.conftest import examples

DTOH, DTOD, PEER = 2, 8, 10
GENERIC = "ncclDevKernel_Generic_4"
PROCESS = 1 << 24
NAME_IDS = {1: GENERIC, 2: "ncclDevKernel_AllReduce_Sum_f32_RING_LL", 3: "gemm"}


@dataclass(frozen=True)
class Operation:
    """One copy or kernel, and the call that launched it."""

    thread: int
    launch: int
    start: int
    length: int
    kind: int = DTOD
    device: int = 0
    name_id: int | None = None  # of kernels
    correlation: int = 0


@dataclass(frozen=True)
class Call:
    thread: int
    start: int
    end: int
    text: str
    n_ranks: int = UNKNOWN_SIZE


def tables(operations):
    """Return the canonical tables of kernels, copies and host calls."""
    kernels = [one for one in operations if one.name_id is not None]
    copies = [one for one in operations if one.name_id is None]

    def times(own):
        return {
            "process_id": [PROCESS for _ in own],
            "device_id": [one.device for one in own],
            "start_ns": [one.start for one in own],
            "end_ns": [one.start + one.length for one in own],
            "correlation_id": [one.correlation for one in own],
        }

    nothing = {name: pa.nulls(len(kernels), pa.int64()) for name in ("grid", "block", "stream_id")}
    name_ids = [one.name_id for one in kernels]
    own = {"name_id": name_ids, "is_comm": [NAME_IDS[one].startswith("nccl") for one in name_ids]}
    moved = {"copy_kind": [one.kind for one in copies], "bytes": [one.length for one in copies]}
    host = {
        "process_id": [PROCESS for _ in operations],
        "thread_id": [PROCESS + one.thread for one in operations],
        "start_ns": [one.launch for one in operations],
        "end_ns": [one.launch + 1 for one in operations],
        "correlation_id": [one.correlation for one in operations],
    }
    return (
        canonical.KERNELS.table(times(kernels) | nothing | own),
        canonical.COPIES.table(times(copies) | moved),
        canonical.HOST_CALLS.table(host),
    )


def calls_table(calls):
    texts = pa.array([one.text for one in calls], pa.string()).dictionary_encode()
    return canonical.COMM_CALLS.table(
        {
            "process_id": [PROCESS for _ in calls],
            "thread_id": [PROCESS + one.thread for one in calls],
            "start_ns": [one.start for one in calls],
            "end_ns": [one.end for one in calls],
            "text": texts,
        }
    )


def result(operations, calls, *, are_several=True):
    """Return the communication operations as (start, end, name, device, bytes), and how many copies are left."""
    operations = [
        Operation(**{**vars(one), "correlation": at + 1}) for at, one in enumerate(operations)
    ]
    kernels, copies, host_calls = tables(operations)
    sizes = np.array([one.n_ranks for one in calls], np.int64)
    called = find_called(
        kernels,
        copies,
        NAME_IDS,
        host_calls=host_calls,
        comm_calls=calls_table(calls),
        n_ranks=sizes,
        has_job_several_ranks=are_several,
    )
    kernels = kernels.append_column("bytes", pa.nulls(kernels.num_rows, pa.int64()))
    found, left = with_called(kernels, copies, called)
    names = NAME_IDS | dict(called.names)
    rows = sorted(
        (row["start_ns"], row["end_ns"], names[row["name_id"]], row["device_id"], row["bytes"] or 0)
        for row in found.to_pylist()
        if row["is_comm"]
    )
    return rows, left.num_rows


def oracle(operations, calls, *, are_several=True):
    """Return what `result` does, by loops over everything."""
    left, groups, rows = 0, {}, []
    for one in operations:
        call = holding(one, calls)
        spelled = None if call is None else meaning(call, calls)
        if one.name_id is not None:
            name = NAME_IDS[one.name_id]
            if name == GENERIC and spelled and spelled != "ncclGroup":
                name = f"{GENERIC} [{collective_of(spelled)}]"
            if name.startswith("nccl"):
                rows.append((one.start, one.start + one.length, name, one.device, 0))
            continue
        if (
            one.kind not in (DTOD, PEER)
            or call is None
            or not counts(call, calls, operations, are_several)
        ):
            left += 1
            continue
        groups.setdefault((call, one.device, f"{spelled} [copies]"), []).append(one)
    for (_, device, name), own in groups.items():
        last = max(one.start + one.length for one in own)
        rows.append(
            (min(one.start for one in own), last, name, device, sum(one.length for one in own))
        )
    return sorted(rows), left


def holding(operation, calls):
    around = [
        one
        for one in calls
        if one.thread == operation.thread
        and one.start <= operation.launch < one.end
        and one.text != "ncclGroupStart"
    ]
    return min(around, key=lambda one: one.start, default=None)


def of_group(end, calls):
    """Return the calls of the group that an end ends; nothing where it is inside another group, or its start is not there."""
    depth, inside = 0, []
    for one in sorted(
        (one for one in calls if one.thread == end.thread), key=lambda one: one.start
    ):
        if one.text == "ncclGroupStart":
            inside = inside if depth else []
            depth += 1
        elif one.text == "ncclGroupEnd":
            is_whole = depth == 1
            depth = max(depth - 1, 0)
            if one == end:
                return inside if is_whole else []
        elif depth:
            inside.append(one)
    raise AssertionError(end)


def meaning(call, calls):
    names = (
        {spelling(one.text) for one in of_group(call, calls)}
        if call.text == "ncclGroupEnd"
        else {spelling(call.text)}
    )
    return names.pop() if len(names) == 1 else "ncclGroup"


def spelling(text):
    return "ncclSendRecv" if text in ("ncclSend", "ncclRecv") else text


def counts(call, calls, operations, are_several):
    own = [one for one in operations if one.name_id is None and holding(one, calls) == call]
    members = of_group(call, calls) if call.text == "ncclGroupEnd" else [call]
    n_ranks = max((one.n_ranks for one in members), default=UNKNOWN_SIZE)
    return (
        any(one.kind == PEER for one in own)
        or n_ranks > 1
        or (n_ranks == UNKNOWN_SIZE and bool(are_several))
    )


TEXTS = st.sampled_from(
    ["ncclAllGather", "ncclAllReduce", "ncclSend", "ncclRecv", "ncclGroupStart", "ncclGroupEnd"]
)
# Calls of one thread follow each other: each takes a slot of ten ns, or a part of it.
CALLS = st.dictionaries(
    st.tuples(st.integers(0, 1), st.integers(0, 7)),
    st.tuples(TEXTS, st.integers(1, 10), st.integers(0, 2)),
    max_size=12,
).map(
    lambda slots: [
        Call(
            thread,
            10 * slot,
            10 * slot + length,
            text,
            UNKNOWN_SIZE if "Group" in text else n_ranks,
        )
        for (thread, slot), (text, length, n_ranks) in slots.items()
    ]
)
COPIES = st.builds(
    Operation,
    thread=st.integers(0, 1),
    launch=st.integers(0, 90),
    start=st.integers(100, 200),
    length=st.integers(0, 50),
    kind=st.sampled_from([DTOH, DTOD, DTOD, PEER]),
    device=st.integers(0, 1),
)
KERNELS = st.builds(
    Operation,
    thread=st.integers(0, 1),
    launch=st.integers(0, 90),
    start=st.integers(100, 200),
    length=st.integers(0, 50),
    name_id=st.sampled_from([*NAME_IDS]),
)


@pytest.mark.slow
@examples(200)
@given(
    st.lists(COPIES, max_size=12),
    st.lists(KERNELS, max_size=4),
    CALLS,
    st.sampled_from([True, False, None]),
)
def test_collectives_of_copies_are_those_that_plain_loops_find(copies, kernels, calls, are_several):
    operations = [*copies, *kernels]
    expected = oracle(operations, calls, are_several=are_several)
    assert result(operations, calls, are_several=are_several) == expected


def copy_at(launch, start=100, **more):
    return Operation(0, launch, start, 10, **more)


GATHER = Call(0, 10, 20, "ncclAllGather", 4)


def test_copies_of_one_call_are_one_collective():
    rows, n_left = result([copy_at(12), copy_at(15, 150), copy_at(19, 120)], [GATHER])
    assert rows == [(100, 160, "ncclAllGather [copies]", 0, 30)]
    assert n_left == 0


@pytest.mark.parametrize("launch", [9, 20])
def test_a_copy_beside_the_call_remains_a_copy(launch):
    assert result([copy_at(launch)], [GATHER]) == ([], 1)


def test_a_copy_of_another_thread_remains_a_copy():
    assert result([Operation(1, 12, 100, 10)], [GATHER]) == ([], 1)


def test_what_a_communicator_of_one_rank_copies_remains_a_copy():
    assert result([copy_at(12)], [Call(0, 10, 20, "ncclAllGather", 1)]) == ([], 1)


def test_copies_from_the_host_are_no_collective():
    assert result([copy_at(12, kind=1)], [GATHER]) == ([], 1)


@pytest.mark.parametrize(("are_several", "n_left"), [(True, 0), (False, 1), (None, 1)])
def test_where_no_size_is_known_the_job_decides(are_several, n_left):
    assert (
        result([copy_at(12)], [Call(0, 10, 20, "ncclAllGather")], are_several=are_several)[1]
        == n_left
    )


@pytest.mark.parametrize("are_several", [True, False, None])
def test_a_copy_to_another_gpu_is_communication_in_any_case(are_several):
    assert (
        result(
            [copy_at(12, kind=PEER)], [Call(0, 10, 20, "ncclAllGather")], are_several=are_several
        )[1]
        == 0
    )


def test_symmetric_memory_needs_no_communicator():
    calls = [Call(0, 10, 20, "symm_mem::_low_contention_all_gather")]
    rows, n_left = result([copy_at(12), copy_at(13)], calls, are_several=None)
    assert rows == [(100, 110, "low_contention_all_gather [copies]", 0, 20)]
    assert n_left == 0


GROUP = [
    Call(0, 0, 2, "ncclGroupStart"),
    Call(0, 3, 5, "ncclSend", 2),
    Call(0, 6, 8, "ncclRecv", 2),
    Call(0, 10, 20, "ncclGroupEnd"),
]


def test_what_the_end_of_a_group_launches_is_what_its_calls_are():
    assert result([copy_at(12)], GROUP)[0] == [(100, 110, "ncclSendRecv [copies]", 0, 10)]


def test_a_group_of_several_collectives_names_none():
    calls = [GROUP[0], GROUP[1], Call(0, 6, 8, "ncclAllReduce", 2), GROUP[3]]
    assert result([copy_at(12)], calls)[0] == [(100, 110, "ncclGroup [copies]", 0, 10)]
    assert result([copy_at(12, name_id=1)], calls)[0] == [(100, 110, GENERIC, 0, 0)]


def test_the_inner_end_of_nested_groups_ends_none():
    inner = [Call(0, 2, 3, "ncclGroupStart"), Call(0, 8, 9, "ncclGroupEnd")]
    assert result([copy_at(12)], [GROUP[0], *inner, GROUP[1], GROUP[3]])[0] == [
        (100, 110, "ncclSendRecv [copies]", 0, 10)
    ]


def test_a_generic_kernel_takes_the_collective_of_its_call():
    calls = [Call(0, 10, 20, "ncclReduceScatter")]
    assert result([copy_at(12, name_id=1)], calls)[0] == [
        (100, 110, f"{GENERIC} [reduce_scatter]", 0, 0)
    ]


def test_a_kernel_that_says_its_collective_keeps_it():
    calls = [Call(0, 10, 20, "ncclReduceScatter")]
    assert result([copy_at(12, name_id=2)], calls)[0] == [(100, 110, NAME_IDS[2], 0, 0)]
