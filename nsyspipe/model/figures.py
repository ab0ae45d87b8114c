"""The figures of a run, of each rank and of each phase: names, units, formulas."""

from __future__ import annotations

from nsyspipe.model.step_tables import IDLE_CAUSES, PHASE_TIMES
from nsyspipe.model.table import FLOAT, INT, RANK, TEXT, Column, TableSchema, ratio

_POOLED = "pooled: sum over ranks and summary steps of the numerator / sum of the denominator"

_FIGURES = (
    ratio("comm_share", f"comm / wall, {_POOLED}"),
    ratio("exposed_comm_share", "exposed_comm / wall, pooled"),
    ratio("overlap_ratio", "overlap_compute / comm, pooled"),
    ratio("backward_overlap_ratio", "overlap_backward / comm, pooled"),
    ratio("idle_share", "idle / wall, pooled"),
    ratio("compute_share", "compute / wall, pooled"),
    ratio("exposed_memory_share", "exposed_memory / wall, pooled"),
    ratio("wait_share", "wait / wall, pooled"),
    ratio("transfer_share", "(comm - wait) / wall, pooled"),
    Column(
        "dtod_ns_per_step", FLOAT, "ns", "mean dtod_ns over (rank, step)", "derived", nullable=True
    ),
    Column(
        "dtod_bytes_per_step",
        FLOAT,
        "bytes",
        "mean dtod_bytes over (rank, step)",
        "derived",
        nullable=True,
    ),
    Column(
        "collectives_per_step",
        FLOAT,
        "count",
        "mean n_collectives over (rank, step)",
        "derived",
        nullable=True,
    ),
    *(
        Column(
            f"{name}_per_step",
            FLOAT,
            "ns",
            f"mean {name} over (rank, step): idle time by cause",
            "derived",
            nullable=True,
        )
        for name in IDLE_CAUSES
    ),
    Column(
        "message_bytes_per_step",
        FLOAT,
        "bytes",
        "mean message_bytes over (rank, step)",
        "derived",
        nullable=True,
    ),
    Column(
        "algbw_bytes_per_s",
        FLOAT,
        "bytes/s",
        "sum of message_bytes / sum of transfer over matched collectives of summary steps",
        "derived",
        nullable=True,
    ),
    Column(
        "busbw_bytes_per_s",
        FLOAT,
        "bytes/s",
        "sum of bus_bytes / sum of transfer over the same",
        "derived",
        nullable=True,
    ),
)

FIGURES = tuple(column.name for column in _FIGURES)

SUMMARY = TableSchema(
    "summary",
    "One row: the run's figures over its summary steps: complete on every rank, less the skipped; if there are none, "
    "all that every rank has.",
    (),
    (
        Column("n_steps", INT, "count", "steps with a window on some rank", "derived"),
        Column("n_summary_steps", INT, "count", "steps the figures rest on", "derived"),
        Column(
            "step_time_ns",
            FLOAT,
            "ns",
            "per summary step the largest window over ranks; the median of those",
            "derived",
            nullable=True,
        ),
        Column(
            "throughput_steps_per_s",
            FLOAT,
            "1/s",
            "1e9 / mean of the same",
            "derived",
            nullable=True,
        ),
        *_FIGURES,
    ),
)

RANK_SUMMARY = TableSchema(
    "rank_summary",
    "One row per rank: the same figures over the rank's summary steps.",
    ("rank",),
    (
        RANK,
        Column(
            "step_time_ns", FLOAT, "ns", "median of the rank's windows", "derived", nullable=True
        ),
        *_FIGURES,
    ),
)

PHASE_SUMMARY = TableSchema(
    "phase_summary",
    "One row per phase: means over the (rank, step) of the figures that have it.",
    ("phase",),
    (
        Column("phase", TEXT, "text", "backward, forward, optimizer or data", "NVTX_EVENTS"),
        *(
            Column(
                f"{name}_per_step",
                FLOAT,
                "ns",
                f"mean of {name} of phases",
                "derived",
                nullable=True,
            )
            for name in PHASE_TIMES
        ),
    ),
)
