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
    found = assign_messages(table(calls), np.array(times, np.int64), kernel_kinds(one.collective for one in kernels))
    columns = [
        (found["comm_id"], found["has_comm_id"]),
        (found["seq"], found["has_seq"]),
        (found["message_bytes"], found["has_message_bytes"]),
    ]
    rows = ([int(v) if has else None for v, has in zip(*column, strict=True)] for column in columns)
    return list(zip(*rows, strict=True))


NOTHING = (None, None, None)


def sized(*sizes):
    """Return what kernels have of calls of communicator A without a number."""
    return [NOTHING if size is None else (A, None, size) for size in sizes]


def sends(n):
    return [Kernel(20 + at, "send_recv") for at in range(n)]


GROUP = [Call(10, 1), Call(11, 2, None), Call(12, 4, "ncclGroupEnd")]
MANY = [Call(10, 100), Call(20, 200), Call(40, 400)]
# The first call launched nothing: a communicator of one rank, or an empty message.
APART = [Call(10, 100, end=15), Call(20, 7, comm=B, end=30)]
BOTH_WAYS = [Call(10, 100, "ncclRecv"), Call(11, 30, "ncclSend"), Call(12, 3, "ncclSend"), Call(13, 9, "ncclRecv")]
# Of two communicators, one of which sends and receives.
TWO_COMMS = [Call(10, 1, "ncclSend"), Call(11, 2, "ncclRecv"), Call(12, 3, "ncclRecv", comm=B), Call(13, 4)]
LAUNCH_NOTHING = [
    *(Call(8, None, "ncclCommInitRankConfig"), Call(9, None, "ncclCommSplit"), Call(10, 100)),
    Call(11, 100, "LL128"),  # NCCL's note of the task that this launch carries out
    *(Call(12, None, None), Call(13, None, "ncclGroupEnd")),
]
EXACT = [Call(2**60 + 1, 2**62 + 1, comm=-(2**63), seq=2**53 + 1)]


@pytest.mark.parametrize(
    ("calls", "kernels", "expected"),
    [
        # One to one: kernels of a graph share a launch and keep their order.
        ([Call(10, 100), Call(11, 200)], [Kernel(20), Kernel(20)], sized(100, 200)),
        # Before any payload, or without a launch, there is nothing.
        ([Call(10, 100)], [Kernel(5), Kernel(15), Kernel(None)], sized(None, 100, None)),
        ([], [Kernel(5), Kernel(None)], [NOTHING, NOTHING]),
        ([Call(10, 1)], [], []),
        ([], [], []),
        (EXACT, [Kernel(2**60 + 2)], [(-(2**63), 2**53 + 1, 2**62 + 1)]),
        # Fused: one kernel of a group takes the sum, and the first number.
        (
            [Call(10, 100, seq=7), Call(11, 20, seq=8), Call(12, 3, seq=9), Call(40, 5, seq=10)],
            [Kernel(20), Kernel(44)],
            [(A, 7, 123), (A, 10, 5)],
        ),
        # The sum is unknown if one part is, or if it is beyond belief.
        ([Call(10, 100), Call(11, None)], [Kernel(20)], [(A, None, None)]),
        ([Call(10, 2**62), Call(11, 2**62)], [Kernel(20)], [(A, None, None)]),
        # Another or an unknown communicator, or another collective, is no fusion.
        *(
            ([Call(10, 100), second], [Kernel(20)], [NOTHING])
            for second in (
                *(Call(11, 20, comm=B), Call(11, 20, comm=None)),
                *(Call(11, 20, "ncclAllGather"), Call(11, 20, "ncclReduceScatter")),
            )
        ),
        # A launch inside the last call is not that of a group.
        (APART, [Kernel(29)], [(B, None, 7)]),
        (APART, [Kernel(30)], [NOTHING]),
        (APART, [Kernel(29, "all_gather")], [NOTHING]),
        # The kernel without a launch may be the first call's own: then nothing counts as fused.
        (MANY, [Kernel(None), Kernel(25), Kernel(45)], sized(None, None, 400)),
        ([Call(10, 100), Call(20, 200, end=30)], [Kernel(None), Kernel(25)], sized(None, 200)),
        # Calls that launch nothing stand in nobody's way.
        (LAUNCH_NOTHING, [Kernel(20)], sized(100)),
        # An unnamed call may be part of a fused group.
        (GROUP, [Kernel(20)], sized(7)),
        (GROUP[1:], [Kernel(20, "all_gather")], sized(6)),
        (GROUP, [Kernel(20, "all_gather")], [NOTHING]),
        ([*GROUP, Call(13, 8, "ncclAllGather")], [Kernel(20, "other")], [NOTHING]),
        # Of sends and receives only what is sent counts; where nothing is sent, what is received.
        (BOTH_WAYS, sends(1), sized(33)),
        (BOTH_WAYS[:2], sends(1), sized(30)),
        (BOTH_WAYS[:2], sends(2), [NOTHING, NOTHING]),
        ([Call(10, 100, "ncclRecv"), Call(11, 30, "ncclRecv")], sends(1), sized(130)),
        (TWO_COMMS, [*sends(2), Kernel(22)], [(A, None, 1), (B, None, 3), (A, None, 4)]),
    ],
)
def test_what_each_kernel_has_of_the_calls_before_it(calls, kernels, expected):
    assert assigned(calls, kernels) == expected


FITTING = {
    "all_reduce": ("ncclAllReduce",),
    "all_gather": ("ncclAllGather", "ncclGroupEnd", ""),
    "reduce_scatter": ("ncclReduceScatter",),
    "broadcast": ("ncclBroadcast", "ncclBcast"),
    "reduce": ("ncclReduce", None),
    "all_to_all": ("ncclAlltoAll",),
    "send_recv": ("ncclSend", "ncclRecv", "ncclAlltoAll", "ncclAllToAll", "ncclGather", "ncclScatter"),
    "other": ("ncclAllGather",),
}
OTHERS = {
    "all_gather": ("ncclAllReduce", "ncclAlltoAll"),
    "all_reduce": ("ncclReduce",),
    "reduce_scatter": ("ncclReduce",),
    "broadcast": ("ncclSend",),
    "all_to_all": ("ncclSend",),
}


@pytest.mark.parametrize(("by_collective", "expected"), [(FITTING, (A, None, 100)), (OTHERS, NOTHING)])
def test_a_call_is_assigned_to_a_kernel_of_its_collective(by_collective, expected):
    for collective, calls in by_collective.items():
        found = [assigned([Call(10, 100, call)], [Kernel(12, collective)]) for call in calls]
        assert found == [[expected]] * len(calls), collective


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
        calls.append(Call(at, size, name, draw(pick([A, A, B, None])), draw(st.none() | st.integers(0, 5)), end))
    if kernels and draw(st.integers(0, 9)) == 0:
        kernels.append(Kernel(None))
    return calls, kernels


@given(events())
def test_any_mixture_is_assigned_as_the_rule_says(mixture):
    calls, kernels = mixture
    assert assigned(calls, kernels) == told(calls, kernels)
