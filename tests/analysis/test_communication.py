"""The communication operations of one rank, and which payload of NCCL belongs to which: in order, fused, or nobody's."""

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from nsyspipe.analysis.attribution import NEVER
from nsyspipe.analysis.breakdown import device_time
from nsyspipe.analysis.collectives import (
    NO_MEMBER,
    CommKind,
    assign_messages,
    comm_operations,
    kernel_kinds,
)
from nsyspipe.analysis.steps import Windows
from nsyspipe.model.canonical import COMM_OPERATIONS, PAYLOADS
from tests.build.make import comm, compute, ints, members, operations, windows

TEXTS = {
    1: "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
    2: "ncclDevKernel_AllGather_RING_LL",
    3: "ncclKernel_AllReduce_RING_LL_Sum_float",
    4: "my_ring",
}
STEPS = members((0, 100), (150, 250))
WINDOWS = windows((10, 130), (130, 260))


def found(*ops, steps=STEPS, spans=WINDOWS, payloads=None):
    told = PAYLOADS.empty() if payloads is None else payloads
    return comm_operations(device_time(operations(*ops), spans), TEXTS, steps, told, None)


def rows(*ops, columns=("start_ns", "member"), **options):
    table = found(*ops, **options).table
    return list(zip(*(table[name].to_pylist() for name in columns), strict=True))


def test_operations_are_listed_in_order_of_start_and_compute_is_not():
    ops = comm(50, 60, 5), compute(20, 30, 2), comm(40, 90, 7)
    assert rows(*ops, columns=("start_ns", "end_ns")) == [(40, 90), (50, 60)]
    assert found(*ops).table.schema == COMM_OPERATIONS.arrow


# The first step range has no window, but its operations with a launch are still its own.
SECOND = {"spans": Windows(ints(1), ints(130), ints(260), np.array([False]))}


@pytest.mark.parametrize(
    ("ops", "options", "expected"),
    [
        # Of the step range that holds the launch: at its start, before its end, at its end, between
        # two, in the second.
        (
            (
                comm(10, 11, 0),
                comm(20, 21, 99),
                comm(30, 31, 100),
                comm(40, 41, 149),
                comm(50, 51, 150),
            ),
            {},
            [0, 0, NO_MEMBER, NO_MEMBER, 1],
        ),
        # Without a launch of the window that the start falls in, which gives the step range that it
        # is of.
        (
            (comm(9, 20), comm(10, 20), comm(129, 140), comm(130, 131), comm(260, 270)),
            {},
            [NO_MEMBER, 0, 0, 1, NO_MEMBER],
        ),
        ((comm(20, 30), comm(140, 150), comm(25, 30, 50)), SECOND, [NO_MEMBER, 0, 1]),
        # A capture that is one window holds all.
        (
            (comm(20, 30, 500), comm(40, 50)),
            {"steps": members(), "spans": windows((0, 60))},
            [0, 0],
        ),
    ],
)
def test_which_step_an_operation_belongs_to(ops, options, expected):
    assert rows(*ops, **options) == list(
        zip(sorted(one.start for one in ops), expected, strict=True)
    )


def test_names_that_say_the_same_are_one_kind_and_without_a_known_name_another():
    ids = enumerate((3, 2, 1, 4, None, 99))
    made = found(*(comm(10 * at, 10 * at + 1, at, name_id=name_id) for at, name_id in ids))
    assert made.kinds == (
        CommKind("all_gather", None, "RING_LL"),
        CommKind("all_reduce", "f32", "RING_LL"),
        CommKind("other", None, None),
    )
    assert made.table["kind"].to_pylist() == [1, 0, 1, 2, 2, 2]


@pytest.mark.parametrize(
    ("uses", "orders"),
    [
        # In order of first use, whatever their ids.
        ([(1, 0, 40), (1, 0, 7), (1, 0, 40), (1, 0, 9), (1, 0, 7)], [0, 1, 0, 2, 1]),
        # Each collective by itself: all-reduce uses 40 and 7, all-gather 7 and 40; the old name of
        # all-reduce is no other.
        ([(1, 0, 40), (2, 0, 7), (1, 0, 7), (2, 0, 40), (3, 0, 40)], [0, 0, 1, 1, 0]),
        # One id of two devices is two streams, unknown ones are one.
        ([(1, 1, 7), (1, 0, 7), (1, 1, 7)], [0, 1, 0]),
        ([(1, None, None), (1, 0, 7), (1, None, None)], [0, 1, 0]),
    ],
)
def test_streams_are_numbered(uses, orders):
    """Operations of (name id, device, stream), each after the other."""
    names = ("name_id", "device_id", "stream_id")
    ops = [
        comm(10 * at, 10 * at + 5, at, **dict(zip(names, use, strict=True)))
        for at, use in enumerate(uses)
    ]
    assert found(*ops).table["stream_order"].to_pylist() == orders
    late = (
        comm(10, 20, 9, name_id=1, stream_id=5),
        comm(30, 40, 1, name_id=1, stream_id=6),
    )  # by launch, not by start
    assert found(*late).table["stream_order"].to_pylist() == [1, 0]


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
    names = ("start_ns", "message_bytes", "call", "comm_id", "seq", "end_ns")
    columns = {"process_id": [1] * len(calls), "thread_id": [1] * len(calls)}
    columns |= dict.fromkeys(("n_ranks", "rank", "operation_id"), [None] * len(calls))
    columns |= {name: [call[at] for call in calls] for at, name in enumerate(names)}
    columns["call"] = pa.array(columns["call"], pa.string()).dictionary_encode()
    return PAYLOADS.table(columns)


def test_an_operation_has_the_payload_of_the_call_that_launched_it():
    # In order of start they stand the other way round.
    told = table([Call(1, None, "ncclAllGather", 5, 7, 3), Call(4, 64, "ncclAllReduce", 5, 8, 6)])
    ops = comm(10, 11, 5, name_id=1), comm(20, 21, 2, name_id=2)
    columns = ("start_ns", "comm_id", "seq_number", "message_bytes")
    assert rows(*ops, columns=columns, payloads=told) == [(10, 5, 8, 64), (20, 5, 7, None)]


def assigned(calls, kernels):
    """Return (communicator, number, size) of each kernel; None for what is unknown."""
    times = [NEVER if one.launch is None else one.launch for one in kernels]
    found = assign_messages(
        table(calls), np.array(times, np.int64), kernel_kinds(one.collective for one in kernels)
    )
    return list(
        zip(*(found[name].to_pylist() for name in ("comm_id", "seq", "message_bytes")), strict=True)
    )


NOTHING = (None, None, None)


def sized(*sizes):
    return [NOTHING if size is None else (A, None, size) for size in sizes]


def sends(n):
    return [Kernel(20 + at, "send_recv") for at in range(n)]


GROUP = [Call(10, 1), Call(11, 2, None), Call(12, 4, "ncclGroupEnd")]
MANY = [Call(10, 100), Call(20, 200), Call(40, 400)]
# The first call launched nothing: a communicator of one rank, or an empty message.
APART = [Call(10, 100, end=15), Call(20, 7, comm=B, end=30)]
BOTH_WAYS = [
    Call(10, 100, "ncclRecv"),
    Call(11, 30, "ncclSend"),
    Call(12, 3, "ncclSend"),
    Call(13, 9, "ncclRecv"),
]
# Of two communicators, one of which sends and receives.
TWO_COMMS = [
    Call(10, 1, "ncclSend"),
    Call(11, 2, "ncclRecv"),
    Call(12, 3, "ncclRecv", comm=B),
    Call(13, 4),
]
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
    "send_recv": (
        "ncclSend",
        "ncclRecv",
        "ncclAlltoAll",
        "ncclAllToAll",
        "ncclGather",
        "ncclScatter",
    ),
    "other": ("ncclAllGather",),
}
OTHERS = {
    "all_gather": ("ncclAllReduce", "ncclAlltoAll"),
    "all_reduce": ("ncclReduce",),
    "reduce_scatter": ("ncclReduce",),
    "broadcast": ("ncclSend",),
    "all_to_all": ("ncclSend",),
}


@pytest.mark.parametrize(
    ("by_collective", "expected"), [(FITTING, (A, None, 100)), (OTHERS, NOTHING)]
)
def test_a_call_is_assigned_to_a_kernel_of_its_collective(by_collective, expected):
    for collective, calls in by_collective.items():
        found = [assigned([Call(10, 100, call)], [Kernel(12, collective)]) for call in calls]
        assert found == [[expected]] * len(calls), collective


# Against the rule, told one event after the other.
def blocks(calls, kernels):
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
            fitting = [
                NAMES[one.call] in {None, kernels[n].collective}
                for one, n in zip(payloads, own, strict=True)
            ]
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


@pytest.mark.slow
@given(events())
def test_any_mixture_is_assigned_as_the_rule_says(mixture):
    calls, kernels = mixture
    assert assigned(calls, kernels) == told(calls, kernels)
