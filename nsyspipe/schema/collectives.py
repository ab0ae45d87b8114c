"""Collectives across ranks, and who the others wait for."""

from __future__ import annotations

from nsyspipe.schema.columns import RANK, STEP, count, ns
from nsyspipe.schema.model import FLAG, FLOAT, INT, TEXT, Column, TableSchema

__all__ = ["COLLECTIVES", "STRAGGLERS"]

_UNMATCHED = (
    "null where the operation is not matched, in a run of one rank, or without a common clock"
)

COLLECTIVES = TableSchema(
    "collectives",
    "One row per communication operation that belongs to a step: a collective on one rank. The k-th operation of "
    "a communicator in a step is the same collective on all its ranks.",
    ("step", "seq", "rank"),
    (
        STEP,
        count(
            "seq", "place in the step, by first start; the same on all ranks if matched", "derived"
        ),
        RANK,
        Column(
            "collective",
            TEXT,
            "text",
            "all_reduce, all_gather, reduce_scatter, broadcast, reduce, all_to_all, send_recv, other",
            "KERNEL names",
        ),
        Column("datatype", TEXT, "text", "element type, as f32", "KERNEL names", nullable=True),
        Column("algorithm", TEXT, "text", "as RING_LL", "KERNEL names", nullable=True),
        Column(
            "comm_id",
            TEXT,
            "text",
            "communicator: NCCL's hash, else collective/order of first use of its (device, stream)",
            "NCCL payload, KERNEL.streamId",
        ),
        ns("start_ns", "own start, aligned time", source="KERNEL.start"),
        ns("end_ns", "own end, aligned time", source="KERNEL.end"),
        Column("is_matched", FLAG, "flag", "has its counterparts on the other ranks", "derived"),
        Column("in_summary", FLAG, "flag", "its step counts in the run's figures", "derived"),
        count("n_ranks", f"ranks matched; {_UNMATCHED}", "derived", nullable=True),
        ns("arrival_skew_ns", f"last start - first start; {_UNMATCHED}", nullable=True),
        ns("wait_ns", f"last start - own start; {_UNMATCHED}", nullable=True),
        ns("transfer_ns", f"own end - last start, at least 0; {_UNMATCHED}", nullable=True),
        ns(
            "late_by_ns",
            f"of the rank that arrived last: last start - second-last start; 0 of the others; {_UNMATCHED}",
            nullable=True,
        ),
        ns(
            "held_up_ns",
            "of the rank that arrived last (of several the lowest): the longest that another waited, the largest "
            "min(last start, own end) - own start; 0 of the others, and where the skew is not significant; "
            f"{_UNMATCHED}",
            nullable=True,
        ),
        Column(
            "is_significant",
            FLAG,
            "flag",
            "arrival_skew exceeds the larger clock error of the first and the last rank, never where an error is not "
            f"known; {_UNMATCHED}",
            "derived",
            nullable=True,
        ),
        Column(
            "is_late_significant",
            FLAG,
            "flag",
            f"late_by exceeds the larger clock error of the last and the second-last rank, likewise; {_UNMATCHED}",
            "derived",
            nullable=True,
        ),
        Column(
            "message_bytes",
            INT,
            "bytes",
            "the whole array, as nccl-tests counts: for all_gather, reduce_scatter and all_to_all NCCL's "
            "figure x ranks of the communicator",
            "NCCL payload",
            nullable=True,
        ),
        Column(
            "bus_bytes",
            FLOAT,
            "bytes",
            "message_bytes x 2(n-1)/n for all_reduce, (n-1)/n for all_gather, reduce_scatter, all_to_all, else 1",
            "NCCL payload",
            nullable=True,
        ),
        Column(
            "algbw_bytes_per_s",
            FLOAT,
            "bytes/s",
            "message_bytes / transfer",
            "derived",
            nullable=True,
        ),
        Column(
            "busbw_bytes_per_s", FLOAT, "bytes/s", "bus_bytes / transfer", "derived", nullable=True
        ),
    ),
)

_OVER = "over matched collectives of summary steps; null when none could be matched, and in a run of one rank"

STRAGGLERS = TableSchema(
    "stragglers",
    "One row per rank: how the others waited for it.",
    ("rank",),
    (
        RANK,
        count(
            "n_arrived_last",
            f"collectives in which it arrived last, alone, {_OVER}",
            "KERNEL.start",
            nullable=True,
        ),
        ns("wait_caused_ns", f"sum of late_by {_OVER}", source="KERNEL.start", nullable=True),
        ns(
            "lateness_ns",
            f"sum over steps of the step's largest late_by, for the rank that was last there, {_OVER}",
            source="KERNEL.start",
            nullable=True,
        ),
        ns(
            "held_up_ns",
            "sum of held_up of the collectives in which it arrived last, alone, send_recv apart, at most the step's "
            f"time in each step, {_OVER}",
            source="KERNEL.start",
            nullable=True,
        ),
        ns(
            "wait_ns",
            "sum of wait_ns of its summary steps; null where one of them is, and without summary steps",
            source="KERNEL.start",
            nullable=True,
        ),
    ),
)
