"""Canonical tables between `read` and the analysis: what a report holds, whatever nsys calls it."""

from __future__ import annotations

import pyarrow as pa

from nsyspipe.schema.model import FLAG, INT, TEXT, Column, TableSchema

__all__ = ["COPIES", "DTOD_KIND", "KERNELS", "LAUNCHES", "MEMSET_KIND", "RANGES"]

# Values of COPIES.copy_kind that the analysis asks for.
MEMSET_KIND, DTOD_KIND = 0, 8

KERNELS = TableSchema(
    "kernels_of_report",
    "One row per kernel, or per CUDA graph captured as a whole.",
    (),
    (
        Column("process_id", INT, "id", "process that launched it", "KERNEL.globalPid"),
        Column("start_ns", INT, "ns", "device start, report time", "KERNEL.start"),
        Column("end_ns", INT, "ns", "device end, report time", "KERNEL.end"),
        Column(
            "device_id",
            INT,
            "id",
            "CUDA ordinal inside the process",
            "KERNEL.deviceId",
            nullable=True,
        ),
        Column(
            "correlation_id", INT, "id", "joins the launch", "KERNEL.correlationId", nullable=True
        ),
        Column(
            "is_comm", FLAG, "flag", "a communication kernel", "KERNEL.shortName, demangledName"
        ),
    ),
)

COPIES = TableSchema(
    "copies_of_report",
    "One row per memcpy or memset.",
    (),
    (
        Column("process_id", INT, "id", "process that launched it", "MEMCPY.globalPid"),
        Column("start_ns", INT, "ns", "device start, report time", "MEMCPY.start"),
        Column("end_ns", INT, "ns", "device end, report time", "MEMCPY.end"),
        Column(
            "device_id",
            INT,
            "id",
            "CUDA ordinal inside the process",
            "MEMCPY.deviceId",
            nullable=True,
        ),
        Column(
            "correlation_id", INT, "id", "joins the launch", "MEMCPY.correlationId", nullable=True
        ),
        Column(
            "copy_kind",
            INT,
            "enum",
            "CUPTI's: 1 HtoD, 2 DtoH, 8 DtoD, 10 PtoP; 0 for a memset",
            "MEMCPY.copyKind",
            nullable=True,
        ),
        Column("bytes", INT, "bytes", "bytes moved or set", "MEMCPY.bytes", nullable=True),
    ),
)

LAUNCHES = TableSchema(
    "launches_of_report",
    "One row per CUDA API call.",
    (),
    (
        Column("process_id", INT, "id", "process of the calling thread", "RUNTIME.globalTid"),
        Column("start_ns", INT, "ns", "host start of the call", "RUNTIME.start"),
        Column("correlation_id", INT, "id", "joins the operation", "RUNTIME.correlationId"),
    ),
)

RANGES = TableSchema(
    "ranges_of_report",
    "One row per NVTX push/pop or start/end range of a user's domain.",
    (),
    (
        Column("process_id", INT, "id", "process of the thread", "NVTX_EVENTS.globalTid"),
        Column("thread_id", INT, "id", "thread that opened it", "NVTX_EVENTS.globalTid"),
        Column("start_ns", INT, "ns", "host start", "NVTX_EVENTS.start"),
        Column(
            "end_ns",
            INT,
            "ns",
            "host end; an unclosed range ends 1 ns after the last event",
            "NVTX_EVENTS.end",
        ),
        Column(
            "text",
            pa.dictionary(pa.int32(), TEXT),
            "text",
            "the range's text",
            "NVTX_EVENTS.text, textId",
        ),
    ),
)
