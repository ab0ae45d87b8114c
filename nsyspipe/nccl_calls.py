"""What NCCL's payloads say of its calls, as columns, and which kind of kernel a call launches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.attribution import NEVER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    Int64 = NDArray[np.int64]
    Flags = NDArray[np.bool_]

__all__ = [
    "ALL_TO_ALL",
    "ANY",
    "N_KINDS",
    "SEND_RECV",
    "Calls",
    "Messages",
    "calls_of",
    "fits",
    "kernel_kinds",
]

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
    """What NCCL reported of calls or of kernels; a value counts only where its flag is set.

    Attributes
    ----------
    comm_id
        Communicator: 64 bits as a signed number.
    seq
        NCCL's own number of the call; of calls that were fused, the first one's.
    message_bytes
        As NCCL reports it; of calls that were fused, the sum.
    kind
        Number of the collective that was called, or `ANY`.
    """

    comm_id: Int64
    has_comm_id: Flags
    seq: Int64
    has_seq: Flags
    message_bytes: Int64
    has_bytes: Flags
    kind: Int64

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
    """Calls that may have launched a kernel.

    Attributes
    ----------
    start, end
        Host time of the call; the end of one that never ended is before all times.
    is_receive
        Whether it is ncclRecv.
    says
        What the payload says.
    """

    start: Int64
    end: Int64
    thread: Int64
    is_receive: Flags
    says: Messages

    @property
    def kind(self) -> Int64:
        """Number of the collective, or `ANY`."""
        return self.says.kind


def calls_of(payloads: pa.Table) -> Calls:
    """Return the calls of `schema.PAYLOADS` that may have launched a kernel, in the same order.

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
