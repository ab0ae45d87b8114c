"""The communication of ranks, without their reports."""

from types import SimpleNamespace

import pyarrow as pa

from nsyspipe.analysis.collectives import CommKind, CommOperations
from nsyspipe.analysis.intervals import EMPTY
from nsyspipe.model import canonical
from nsyspipe.run.digests import Rank

SUM = CommKind("all_reduce", "f32", "RING_LL")
GATHER = CommKind("all_gather", None, "RING_LL")
SEND = CommKind("send_recv", None, None)


def op(
    start,
    *,
    kind=SUM,
    member=0,
    order=0,
    comm=None,
    seq=None,
    n_bytes=None,
    called=None,
    number=None,
):
    return {
        "start_ns": start,
        "end_ns": start + 10,
        "member": member,
        "kind": kind,
        "stream_order": order,
        "comm_id": comm,
        "seq_number": seq,
        "operation_id": number,
        "message_bytes": n_bytes,
        "n_calls": None,
        "called": called,
        "launched_in": None,
        "micro_batch": None,
        "n_before": None,
    }


def rank(*operations, kinds=(SUM, GATHER, SEND), report=0, shift=0):
    rows = [one | {"kind": kinds.index(one["kind"])} for one in operations]
    comm = CommOperations.of(kinds, canonical.COMM_OPERATIONS.from_rows(rows))
    alone = {"overlap": EMPTY, "windows": pa.table({"graph_ns": [0]})}
    return Rank(report, None, SimpleNamespace(comm=comm, **alone), shift)  # type: ignore[arg-type]
