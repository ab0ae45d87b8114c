"""What NCCL's payloads say of its calls, and which of these calls a communication kernel came from.

A kernel and its call share no id. They share a thread and an order: each call comes before its
launch, inside the call's own range or, when calls are grouped, in the ``ncclGroupEnd`` behind them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.analysis.attribution import NEVER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from nsyspipe.model.types import Flags, Int64


# What NCCL's payloads say of its calls, as columns, and which kind of kernel a call launches.


# Kinds are counted through these. Sends and receives meet in one kernel.
_COLLECTIVES = (
    *("allgather", "allreduce", "alltoall", "broadcast", "gather", "reduce"),
    *("reducescatter", "scatter", "sendrecv"),
)
_ALIASES = {"bcast": "broadcast", "send": "sendrecv", "recv": "sendrecv"}
SEND_RECV, N_KINDS = _COLLECTIVES.index("sendrecv"), len(_COLLECTIVES)
ALL_TO_ALL = _COLLECTIVES.index("alltoall")
# NCCL makes sends and receives of these.
_AS_SENDS = (ALL_TO_ALL, _COLLECTIVES.index("gather"), _COLLECTIVES.index("scatter"))
ANY, _NONE = -1, -2  # fits each kind; launches no kernel


@dataclass(frozen=True)
class Messages:
    """What NCCL reported of calls or of kernels; a value counts only where its flag is set."""

    comm_id: Int64  # communicator: 64 bits as a signed number
    has_comm_id: Flags
    seq: Int64  # NCCL's own number of the call; of calls that were fused, the first one's
    has_seq: Flags
    message_bytes: Int64  # as NCCL reports it; of calls that were fused, the sum
    has_bytes: Flags
    kind: Int64  # number of the collective that was called, or `ANY`

    def take(self, rows: Int64) -> Messages:
        """Return some rows, in any order and number."""
        return Messages(*(column[rows] for column in vars(self).values()))

    def followed_by(self, *others: Messages) -> Messages:
        """Return all rows of this and of others, one after the other."""
        columns: Iterator[tuple[Any, ...]] = zip(
            *(vars(part).values() for part in (self, *others)), strict=True
        )
        return Messages(*map(np.concatenate, columns))

    @classmethod
    def unknown(cls, n_rows: int) -> Messages:
        """Return rows of which nothing is known."""
        value, flag = np.zeros(n_rows, np.int64), np.zeros(n_rows, np.bool_)
        return cls(value, flag, value, flag, value, flag, np.full(n_rows, ANY))


@dataclass(frozen=True)
class Calls:
    """Calls that may have launched a kernel."""

    # host time of the call; the end of one that never ended is before all times
    start: Int64
    end: Int64
    thread: Int64
    is_receive: Flags  # whether it is ncclRecv
    says: Messages  # what the payload says

    @property
    def kind(self) -> Int64:
        """Number of the collective, or `ANY`."""
        return self.says.kind


def calls_of(payloads: pa.Table) -> Calls:
    """Return the calls of `canonical.PAYLOADS` that may have launched a kernel, in the same order.

    That leaves out what makes or destroys communicators and what NCCL does not name as a
    collective, such as its notes of single tasks. A group's call, or one without a name, fits any
    kind, and counts if it has a size or a number.
    """
    texts = payloads["call"].cast(pa.string())
    kind = _kinds(texts, _kind_of_call)
    is_receive = pc.fill_null(pc.match_substring(texts, "recv", ignore_case=True), fill_value=False)

    def column(name: str, null: int = 0) -> tuple[Int64, Flags]:
        values = payloads[name]
        return pc.fill_null(values, null).to_numpy(), pc.is_valid(values).to_numpy()

    says = Messages(*column("comm_id"), *column("seq"), *column("message_bytes"), kind)
    is_call = (kind >= 0) | ((kind == ANY) & (says.has_bytes | says.has_seq))
    rows = np.flatnonzero(is_call)
    return Calls(
        start=column("start_ns")[0][rows],
        end=column("end_ns", -NEVER)[0][rows],
        thread=column("thread_id")[0][rows],
        is_receive=is_receive.to_numpy()[rows],
        says=says.take(rows),
    )


def kernel_kinds(collectives: pa.Array | Sequence[str]) -> Int64:
    """Return the kind of kernels by the name of their collective, ``all_reduce``."""
    if not isinstance(collectives, pa.Array | pa.ChunkedArray):
        collectives = pa.array(collectives, pa.string())
    return _kinds(collectives.cast(pa.string()), _kind_of_kernel)


def fits(call_kind: Int64, kernel_kind: Int64) -> Flags:
    """Tell whether each call may have launched the kernel beside it."""
    fit: Flags = (call_kind == kernel_kind) | (call_kind == ANY) | (kernel_kind == ANY)
    fit |= (kernel_kind == SEND_RECV) & np.isin(call_kind, _AS_SENDS)
    return fit


def _kinds(names: pa.Array | pa.ChunkedArray, kind_of: Callable[[str], int]) -> Int64:
    """Return the kind of each name, asked once for each that differs; a null name fits any."""
    encoded = names.combine_chunks() if isinstance(names, pa.ChunkedArray) else names
    encoded = pc.dictionary_encode(encoded)
    kinds = np.array([*map(kind_of, encoded.dictionary.to_pylist()), ANY], np.int64)
    indices: Int64 = pc.fill_null(encoded.indices, kinds.size - 1).to_numpy()
    return kinds[indices]


def _kind_of_call(text: str) -> int:
    bare = _bare(text).removeprefix("nccl")
    if not bare or bare.startswith("group"):
        return ANY
    bare = _ALIASES.get(bare, bare)
    return _COLLECTIVES.index(bare) if bare in _COLLECTIVES else _NONE


def _kind_of_kernel(collective: str) -> int:
    bare = _bare(collective)
    return _COLLECTIVES.index(bare) if bare in _COLLECTIVES else ANY


def _bare(name: str) -> str:
    return "".join(filter(str.isalnum, name)).lower()


# No sum of sizes beyond this is believed; int64 holds about twice as much.
_LARGEST = 2.0**62


def assign_messages(
    payloads: pa.Table,
    launches: Int64,
    threads: Int64 | None,
    collectives: pa.Array | Sequence[str],
) -> Messages:
    """Assign NCCL's payloads to the communication kernels of one process.

    On each thread, consecutive payloads and the consecutive launches behind them form a block. In
    it, as many kernels as payloads belong together one to one, in order. One kernel behind several
    payloads of one communicator and one collective is NCCL's fusion of a group: their sizes are
    summed. (Launched inside the last payload's own range, it is no group's but that call's.) All
    else is ambiguous, a payload that names another collective than its kernel included: the kernels
    of that block get nothing, like those without a launch or before any payload.

    Parameters
    ----------
    payloads
        `canonical.PAYLOADS` of one process, any row order.
    launches
        Host start of each kernel's launch, any order; `NEVER` where unknown.
    threads
        Thread of each launch; None when unknown: then the process counts as one thread.
    collectives
        Collective of each kernel (``all_reduce``); what names none (``other``) fits any payload.

    Returns
    -------
    Messages
        One entry per kernel, in their order.

    Notes
    -----
    ``message_bytes`` stays what NCCL reports, the per-rank part for all_gather, reduce_scatter and
    all_to_all: scaling it to the whole array is left to the bandwidth figures. Sends and receives
    meet in one kernel: what is sent counts, and what is received only where that communicator sends
    nothing in the block. A kernel whose launch is unknown may own any payload, so in a process that
    has one, nothing counts as fused.
    """
    calls = calls_of(payloads)
    kinds = kernel_kinds(collectives)
    blocks = _blocks(calls, launches, threads)
    # A row for each kernel: a call's, a fused group's, or the last, of which nothing is known.
    source = np.full(launches.size, -1)
    call, kernel = _one_to_one(calls, kinds, blocks)
    source[kernel] = call
    fused, kernel, last, is_fused = _fused(calls, kinds, blocks)
    is_own = launches[kernel] < calls.end[last]
    own = is_own & fits(calls.kind[last], kinds[kernel])
    source[kernel[own]] = last[own]
    if (launches < NEVER).all():
        is_fused &= ~is_own
        source[kernel[is_fused]] = calls.kind.size + np.flatnonzero(is_fused)
    return calls.says.followed_by(fused, Messages.unknown(1)).take(source)


@dataclass(frozen=True)
class _Blocks:
    """Rows of calls and of kernels in order of block and time, each with its block."""

    call: Int64
    call_block: Int64
    kernel: Int64
    kernel_block: Int64
    n_calls: Int64
    n_kernels: Int64


def _blocks(calls: Calls, launches: Int64, threads: Int64 | None) -> _Blocks:
    """Sort calls and launches by thread and time; where a call follows a launch, a block begins."""
    kernel = np.flatnonzero(launches < NEVER)
    n_calls = calls.start.size
    thread = np.zeros(n_calls + kernel.size, np.int64)
    if threads is not None:
        thread = np.concatenate((calls.thread, threads[kernel]))
    is_kernel = np.arange(thread.size) >= n_calls
    time = np.concatenate((calls.start, launches[kernel]))
    order = np.lexsort((is_kernel, time, thread))
    thread, is_kernel = thread[order], is_kernel[order]
    begins = np.ones(thread.size, np.bool_)
    begins[1:] = (thread[1:] != thread[:-1]) | (is_kernel[:-1] & ~is_kernel[1:])
    block = np.cumsum(begins) - 1
    call, call_block = order[~is_kernel], block[~is_kernel]
    counts = _is_counted(calls, call, call_block)
    call, call_block = call[counts], call_block[counts]
    n_blocks = int(np.count_nonzero(begins))
    return _Blocks(
        call=call,
        call_block=call_block,
        kernel=kernel[order[is_kernel] - n_calls],
        kernel_block=block[is_kernel],
        n_calls=np.bincount(call_block, minlength=n_blocks),
        n_kernels=np.bincount(block[is_kernel], minlength=n_blocks),
    )


def _is_counted(calls: Calls, call: Int64, block: Int64) -> Flags:
    """Leave out what a communicator receives in a block in which it also sends."""
    says, is_receive = calls.says, calls.is_receive[call]
    codes = np.unique(says.comm_id, return_inverse=True)[1] + 1
    comm = np.where(says.has_comm_id, codes, 0)[call]
    key = block * (codes.size + 1) + comm
    is_send = (calls.kind[call] == SEND_RECV) & ~is_receive
    is_matched: Flags = is_receive & np.isin(key, key[is_send])
    return ~is_matched


def _one_to_one(calls: Calls, kinds: Int64, blocks: _Blocks) -> tuple[Int64, Int64]:
    """Return calls and kernels of the blocks that have as many of both, all fitting."""
    is_even = blocks.n_calls == blocks.n_kernels
    call = blocks.call[is_even[blocks.call_block]]
    is_mine = is_even[blocks.kernel_block]
    kernel, block = blocks.kernel[is_mine], blocks.kernel_block[is_mine]
    is_bad = np.zeros(is_even.size, np.bool_)
    is_bad[block[~fits(calls.kind[call], kinds[kernel])]] = True
    return call[~is_bad[block]], kernel[~is_bad[block]]


def _fused(calls: Calls, kinds: Int64, blocks: _Blocks) -> tuple[Messages, Int64, Int64, Flags]:
    """Sum up the calls of each block that has several of them and one kernel.

    Returned with that kernel, the last call, and whether the calls can be one fused group.
    """
    is_wanted = (blocks.n_calls > 1) & (blocks.n_kernels == 1)
    call = blocks.call[is_wanted[blocks.call_block]]
    kernel = blocks.kernel[is_wanted[blocks.kernel_block]]
    if not call.size:
        return Messages.unknown(0), kernel, call, np.zeros(0, np.bool_)
    n_calls = blocks.n_calls[is_wanted]
    firsts = np.cumsum(n_calls) - n_calls
    says, kind = calls.says.take(call), calls.kind[call]
    highest = np.maximum.reduceat(kind, firsts)  # unnamed calls are the lowest
    lowest = np.minimum.reduceat(np.where(kind == ANY, N_KINDS, kind), firsts)
    is_group = (highest == ANY) | (lowest == highest)
    is_group &= fits(highest, kinds[kernel])
    is_group &= np.logical_and.reduceat(says.has_comm_id, firsts)
    comm = says.comm_id
    is_group &= np.minimum.reduceat(comm, firsts) == np.maximum.reduceat(comm, firsts)
    has_bytes = np.logical_and.reduceat(says.has_bytes, firsts)
    has_bytes &= np.add.reduceat(says.message_bytes.astype(np.float64), firsts) < _LARGEST
    fused = replace(
        says.take(firsts),
        message_bytes=np.add.reduceat(says.message_bytes, firsts),
        has_bytes=has_bytes,
    )
    return fused, kernel, call[firsts + n_calls - 1], is_group
