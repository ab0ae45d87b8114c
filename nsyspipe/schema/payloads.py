"""Canonical tables of what NCCL itself reported of its calls, in the payloads of its NVTX ranges."""

from __future__ import annotations

import pyarrow as pa

from nsyspipe.schema.model import INT, TEXT, Column, TableSchema

__all__ = ["COMM_SIZES", "PAYLOADS"]

PAYLOADS = TableSchema(
    "payloads_of_report",
    "One row per NCCL call whose payload can be decoded, in order of process, start and thread.",
    ("process_id", "start_ns", "thread_id"),
    (
        Column("process_id", INT, "id", "process of the thread", "NVTX_EVENTS.globalTid"),
        Column("thread_id", INT, "id", "calling thread", "NVTX_EVENTS.globalTid"),
        Column("start_ns", INT, "ns", "host start of the call, report time", "NVTX_EVENTS.start"),
        Column(
            "end_ns",
            INT,
            "ns",
            "host end of the call, report time; null when it never ended",
            "NVTX_EVENTS.end",
            nullable=True,
        ),
        Column(
            "call",
            pa.dictionary(pa.int32(), TEXT),
            "text",
            "NCCL's function, such as ncclAllReduce; null without a text",
            "NVTX_EVENTS.text, textId",
            nullable=True,
        ),
        Column(
            "comm_id",
            INT,
            "id",
            "communicator, the same on all its ranks: 64 bits read as a signed number; null for NCCL's 0 (none yet)",
            "payload: NCCL communicator ID, commHash",
            nullable=True,
        ),
        Column(
            "seq",
            INT,
            "count",
            "NCCL's own number of the call in its communicator",
            "payload: seqNumber",
            nullable=True,
        ),
        Column(
            "message_bytes",
            INT,
            "bytes",
            "as NCCL reports it: the per-rank part of all_gather, reduce_scatter, all_to_all",
            "payload: Message size [bytes], else count x size of dataType",
            nullable=True,
        ),
        Column(
            "n_ranks",
            INT,
            "count",
            "size of the communicator",
            "payload: No. of ranks",
            nullable=True,
        ),
        Column("rank", INT, "id", "rank in the communicator", "payload: Rank", nullable=True),
    ),
)

COMM_SIZES = TableSchema(
    "comm_sizes_of_report",
    "One row per process and communicator whose size NCCL reported without contradiction.",
    ("process_id", "comm_id"),
    (
        Column("process_id", INT, "id", "process of the thread", "NVTX_EVENTS.globalTid"),
        Column("comm_id", INT, "id", "communicator, as in payloads_of_report", "payload"),
        Column("n_ranks", INT, "count", "size of the communicator", "payload: No. of ranks"),
    ),
)
