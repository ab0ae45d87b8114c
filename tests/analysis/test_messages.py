"""Which payload of NCCL belongs to which communication kernel: in order, fused, or nobody's."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from nsyspipe.analysis.attribution import NEVER
from nsyspipe.analysis.communication import assign_messages, kernel_kinds
from nsyspipe.model.canonical import PAYLOADS

A, B = 5 - 2**63, 7


class Call(NamedTuple):
    """A payload of ncclAllReduce on communicator A, unless said otherwise."""

    start: int
    size: int | None = None
    call: str | None = "ncclAllReduce"
    comm: int | None = A
    seq: int | None = None
    end: int | None = None


class Kernel(NamedTuple):
    """The launch of a kernel; None when it is unknown."""

    launch: int | None
    collective: str = "all_reduce"


def table(calls):
    """Build `canonical.PAYLOADS` from calls of one process."""
    columns = {
        "process_id": [1 for _ in calls],
        "thread_id": [1 for _ in calls],
        "start_ns": [one.start for one in calls],
        "end_ns": [one.end for one in calls],
        "call": pa.array([one.call for one in calls], pa.string()).dictionary_encode(),
        "comm_id": [one.comm for one in calls],
        "seq": [one.seq for one in calls],
        "message_bytes": [one.size for one in calls],
        "n_ranks": [None for _ in calls],
        "rank": [None for _ in calls],
    }
    return PAYLOADS.table(columns)


def assigned(calls, kernels):
    """Return (communicator, number, size) of each kernel; None for what is unknown."""
    times = [NEVER if one.launch is None else one.launch for one in kernels]
    found = assign_messages(
        table(calls),
        np.array(times, np.int64),
        kernel_kinds(one.collective for one in kernels),
    )
    columns = [
        (found["comm_id"], found["has_comm_id"]),
        (found["seq"], found["has_seq"]),
        (found["message_bytes"], found["has_message_bytes"]),
    ]
    rows = ([int(v) if has else None for v, has in zip(*column, strict=True)] for column in columns)
    return list(zip(*rows, strict=True))


def sizes(calls, kernels, **more):
    return [size for _, _, size in assigned(calls, kernels, **more)]


NOTHING = (None, None, None)


# --- one to one -------------------------------------------------------------------------------------


def test_graph_kernels_that_share_a_launch_keep_their_order():
    assert sizes([Call(10, 100), Call(11, 200)], [Kernel(20), Kernel(20)]) == [100, 200]


def test_a_kernel_before_any_payload_or_without_a_launch_gets_nothing():
    kernels = [Kernel(5), Kernel(15), Kernel(None)]
    assert assigned([Call(10, 100)], kernels) == [NOTHING, (A, None, 100), NOTHING]


def test_without_payloads_or_kernels_there_is_nothing_to_assign():
    assert assigned([], [Kernel(5), Kernel(None)]) == [NOTHING, NOTHING]
    assert assigned([Call(10, 1)], []) == []
    assert assigned([], []) == []


def test_values_are_exact():
    calls = [Call(2**60 + 1, 2**62 + 1, comm=-(2**63), seq=2**53 + 1)]
    assert assigned(calls, [Kernel(2**60 + 2)]) == [(-(2**63), 2**53 + 1, 2**62 + 1)]


# --- fused groups ---------------------------------------------------------------------------------


def test_one_kernel_of_a_group_takes_the_sum():
    calls = [Call(10, 100, seq=7), Call(11, 20, seq=8), Call(12, 3, seq=9), Call(40, 5, seq=10)]
    assert assigned(calls, [Kernel(20), Kernel(44)]) == [(A, 7, 123), (A, 10, 5)]


def test_the_sum_is_unknown_if_one_part_is_or_if_it_is_beyond_belief():
    assert assigned([Call(10, 100), Call(11, None)], [Kernel(20)]) == [(A, None, None)]
    assert assigned([Call(10, 2**62), Call(11, 2**62)], [Kernel(20)]) == [(A, None, None)]


@pytest.mark.parametrize(
    "second",
    [
        Call(11, 20, comm=B),
        Call(11, 20, comm=None),
        Call(11, 20, "ncclAllGather"),
        Call(11, 20, "ncclReduceScatter"),
    ],
)
def test_another_communicator_or_collective_is_no_fusion(second):
    assert assigned([Call(10, 100), second], [Kernel(20)]) == [NOTHING]


def test_a_launch_inside_the_last_call_is_not_that_of_a_group():
    # The first call launched nothing: a communicator of one rank, or an empty message.
    calls = [Call(10, 100, end=15), Call(20, 7, comm=B, end=30)]
    assert assigned(calls, [Kernel(29)]) == [(B, None, 7)]
    assert assigned(calls, [Kernel(30)]) == [NOTHING]
    assert assigned(calls, [Kernel(29, "all_gather")]) == [NOTHING]


def test_nothing_counts_as_fused_when_a_launch_is_unknown():
    # The kernel without a launch may be the first call's own.
    calls = [Call(10, 100), Call(20, 200), Call(40, 400)]
    assert sizes(calls, [Kernel(None), Kernel(25), Kernel(45)]) == [None, None, 400]
    assert sizes([Call(10, 100), Call(20, 200, end=30)], [Kernel(None), Kernel(25)]) == [None, 200]


# --- which call fits which kernel -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "collective"),
    [
        ("ncclAllReduce", "all_reduce"),
        ("ncclAllGather", "all_gather"),
        ("ncclReduceScatter", "reduce_scatter"),
        ("ncclBroadcast", "broadcast"),
        ("ncclBcast", "broadcast"),
        ("ncclReduce", "reduce"),
        ("ncclAlltoAll", "all_to_all"),
        ("ncclSend", "send_recv"),
        ("ncclRecv", "send_recv"),
        ("ncclAlltoAll", "send_recv"),
        ("ncclAllToAll", "send_recv"),
        ("ncclGather", "send_recv"),
        ("ncclScatter", "send_recv"),
        ("ncclGroupEnd", "all_gather"),
        ("", "all_gather"),
        (None, "reduce"),
        ("ncclAllGather", "other"),
    ],
)
def test_a_call_fits_its_kernel(call, collective):
    assert assigned([Call(10, 100, call)], [Kernel(12, collective)]) == [(A, None, 100)]


@pytest.mark.parametrize(
    ("call", "collective"),
    [
        ("ncclAllReduce", "all_gather"),
        ("ncclReduce", "all_reduce"),
        ("ncclReduce", "reduce_scatter"),
        ("ncclSend", "broadcast"),
        ("ncclAlltoAll", "all_gather"),
        ("ncclSend", "all_to_all"),
    ],
)
def test_a_call_of_another_collective_is_not_assigned(call, collective):
    assert assigned([Call(10, 100, call)], [Kernel(12, collective)]) == [NOTHING]


def test_calls_that_launch_nothing_stand_in_nobodys_way():
    calls = [
        Call(8, None, "ncclCommInitRankConfig"),
        Call(9, None, "ncclCommSplit"),
        Call(10, 100),
        Call(11, 100, "LL128"),  # NCCL's note of the task that this launch carries out
        Call(12, None, None),
        Call(13, None, "ncclGroupEnd"),
    ]
    assert sizes(calls, [Kernel(20)]) == [100]


def test_an_unnamed_call_may_be_part_of_a_fused_group():
    calls = [Call(10, 1), Call(11, 2, None), Call(12, 4, "ncclGroupEnd")]
    assert sizes(calls, [Kernel(20)]) == [7]
    assert sizes(calls[1:], [Kernel(20, "all_gather")]) == [6]
    assert sizes(calls, [Kernel(20, "all_gather")]) == [None]
    assert sizes([*calls, Call(13, 8, "ncclAllGather")], [Kernel(20, "other")]) == [None]


# --- send and receive -----------------------------------------------------------------------------


def test_of_a_send_and_a_receive_only_what_is_sent_counts():
    calls = [
        Call(10, 100, "ncclRecv"),
        Call(11, 30, "ncclSend"),
        Call(12, 3, "ncclSend"),
        Call(13, 9, "ncclRecv"),
    ]
    assert sizes(calls, [Kernel(20, "send_recv")]) == [33]
    assert sizes(calls[:2], [Kernel(20, "send_recv")]) == [30]
    assert sizes(calls[:2], [Kernel(20, "send_recv"), Kernel(21, "send_recv")]) == [None, None]


def test_where_nothing_is_sent_what_is_received_counts():
    calls = [Call(10, 100, "ncclRecv"), Call(11, 30, "ncclRecv")]
    assert sizes(calls, [Kernel(20, "send_recv")]) == [130]


def test_communicators_send_and_receive_apart():
    calls = [
        Call(10, 1, "ncclSend"),
        Call(11, 2, "ncclRecv"),
        Call(12, 3, "ncclRecv", comm=B),
        Call(13, 4),
    ]
    kernels = [Kernel(20, "send_recv"), Kernel(21, "send_recv"), Kernel(22)]
    assert sizes(calls, kernels) == [1, 3, 4]


# --- against the rule, told one event after the other ---------------------------------------------------


def blocks(calls, kernels):
    """Yield the payloads and kernels of each block."""
    events = [(one.start, 0, n) for n, one in enumerate(calls)]
    events += [(one.launch, 1, n) for n, one in enumerate(kernels) if one.launch is not None]
    mine, own = [], []
    for _, is_kernel, n in sorted(events):
        if not is_kernel and own:
            yield mine, own
            mine, own = [], []
        (own if is_kernel else mine).append(n)
    yield mine, own


NAMES = {"ncclAllReduce": "all_reduce", "ncclAllGather": "all_gather", None: None}


def told(calls, kernels):
    found = [NOTHING] * len(kernels)
    for mine, own in blocks(calls, kernels):
        payloads = [calls[n] for n in mine]
        names = {NAMES[one.call] for one in payloads} - {None}
        if len(mine) == len(own):
            fitting = [NAMES[one.call] in {None, kernels[n].collective} for one, n in zip(payloads, own, strict=True)]
            for one, n in zip(payloads, own, strict=True):
                found[n] = (one.comm, one.seq, one.size) if all(fitting) else NOTHING
        elif len(own) == 1 and len(mine) > 1:
            (kernel,), last = own, payloads[-1]
            parts = [one.size for one in payloads]
            if last.end is not None and kernels[kernel].launch < last.end:
                if NAMES[last.call] in {None, kernels[kernel].collective}:
                    found[kernel] = (last.comm, last.seq, last.size)
            elif (
                names <= {kernels[kernel].collective}
                and None not in {one.comm for one in payloads}
                and len({one.comm for one in payloads}) == 1
                and all(one.launch is not None for one in kernels)
            ):
                found[kernel] = (last.comm, payloads[0].seq, None if None in parts else sum(parts))
    return found


TIMES = st.lists(st.integers(0, 60), max_size=14, unique=True)


@st.composite
def events(draw):
    """Draw calls and kernels at times that all differ."""
    pick = st.sampled_from
    calls, kernels = [], []
    for at in draw(TIMES):
        if draw(st.booleans()):
            kernels.append(Kernel(at, draw(pick(["all_reduce", "all_reduce", "all_gather"]))))
            continue
        name = draw(pick(["ncclAllReduce", "ncclAllReduce", "ncclAllGather", None]))
        size = draw(st.integers(0, 9) if name is None else pick([None, 0, 1, 2**50]))
        end = draw(st.none() | st.integers(at, at + 4))
        calls.append(
            Call(
                at,
                size,
                name,
                draw(pick([A, A, B, None])),
                draw(st.none() | st.integers(0, 5)),
                end,
            )
        )
    if kernels and draw(st.integers(0, 9)) == 0:
        kernels.append(Kernel(None))
    return calls, kernels


@given(events())
def test_any_mixture_is_assigned_as_the_rule_says(mixture):
    calls, kernels = mixture
    assert assigned(calls, kernels) == told(calls, kernels)
