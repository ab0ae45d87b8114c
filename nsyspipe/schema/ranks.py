"""The ranks of a run."""

from __future__ import annotations

from nsyspipe.schema.columns import RANK, ns
from nsyspipe.schema.model import INT, TEXT, Column, TableSchema

__all__ = ["RANKS"]

RANKS = TableSchema(
    "ranks",
    "One row per rank: a process with device activity.",
    ("rank",),
    (
        RANK,
        Column("local_rank", INT, "id", "captured LOCAL_RANK", "META_DATA_CAPTURE", nullable=True),
        Column("report", TEXT, "text", "report that holds the rank", "file name"),
        Column("pid", INT, "id", "operating system's process id", "globalPid"),
        Column(
            "device_id",
            INT,
            "id",
            "device with most operations (tie: the lowest)",
            "KERNEL.deviceId",
            nullable=True,
        ),
        Column(
            "device_ids",
            TEXT,
            "text",
            "all devices of the process, comma separated",
            "KERNEL.deviceId",
        ),
        Column("gpu_name", TEXT, "text", "model of that device", "TARGET_INFO_GPU", nullable=True),
        Column("host", TEXT, "text", "host name", "TARGET_INFO_SYSTEM_ENV", nullable=True),
        Column(
            "rank_source",
            TEXT,
            "text",
            "where the number comes from: rank_map, env:RANK (or another variable), sidecar, nccl_payload, nvtx_mpi, file_name, order",
            "derived",
        ),
        Column(
            "n_kernels",
            INT,
            "count",
            "compute and comm operations",
            "KERNEL, GRAPH_TRACE",
            nullable=True,
        ),
        Column("n_comm", INT, "count", "comm operations", "KERNEL names", nullable=True),
        Column(
            "n_dtod", INT, "count", "device-to-device copies", "MEMCPY.copyKind = 8", nullable=True
        ),
        ns(
            "clock_shift_ns",
            "added to the report's own times to get aligned time: utcEpochNs - the run's lowest (0 where a "
            "report lacks it) - clock_offset",
            source="TARGET_INFO_SESSION_START_TIME",
        ),
        ns(
            "clock_offset_ns",
            "the report's clock less the others': median over matched all_reduce, all_gather, reduce_scatter, "
            "all_to_all of (own end - median end over ranks), of all its ranks; 0 unless it exceeds the error "
            "and there are at least 3",
            source="KERNEL.end",
        ),
        ns(
            "clock_error_ns",
            "1.4826 x median absolute deviation of the same; a skew below it is not significant; 0 in a run "
            "of one report, null with fewer than 3",
            source="KERNEL.end",
            nullable=True,
        ),
    ),
)
