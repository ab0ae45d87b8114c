"""The dataset on disk: which tables a run is saved as, each with the run's id as its first column."""

from __future__ import annotations

import pyarrow as pa

from nsyspipe.schema.collectives import COLLECTIVES, STRAGGLERS
from nsyspipe.schema.columns import count
from nsyspipe.schema.figures import PHASE_SUMMARY, RANK_SUMMARY, SUMMARY
from nsyspipe.schema.findings import FINDINGS, PROBLEMS
from nsyspipe.schema.host_steps import HOST_STEPS
from nsyspipe.schema.idle import IDLE_CALLS
from nsyspipe.schema.kernels import KERNEL_COSTS
from nsyspipe.schema.links import LINKS
from nsyspipe.schema.model import FLAG, FLOAT, INT, TEXT, Column, TableSchema
from nsyspipe.schema.ranks import RANKS
from nsyspipe.schema.steps import PHASES, STEPS
from nsyspipe.schema.timeline import EVENTS, PHASE_RANGES, TIMELINE

__all__ = ["DATASET", "EVENT_TABLES", "METRICS", "RUNS", "RUN_ID"]

# A dictionary, since that is what pandas makes of the directory's `run_id=`: the two must agree.
RUN_ID = Column(
    "run_id",
    pa.dictionary(pa.int32(), TEXT),
    "id",
    "the run, as in the directory's name",
    "--run-id, else capture time and contents",
)


def _text(name: str, doc: str, source: str = "", *, nullable: bool = False) -> Column:
    return Column(name, TEXT, "text", doc, source, nullable)


RUNS = TableSchema(
    "runs",
    "One row per run: what identifies it, and its figures.",
    ("run_id",),
    (
        RUN_ID,
        _text("label", "name of the run", "--label, else what the reports' names have in common"),
        count("n_ranks", "ranks that the reports hold", "derived"),
        count("world_size", "ranks that the job had", "WORLD_SIZE, NCCL", nullable=True),
        _text("gpu_names", "models, comma separated", "TARGET_INFO_GPU"),
        _text("hosts", "host names, comma separated", "TARGET_INFO_SYSTEM_ENV"),
        _text("nsys_versions", "versions of nsys that captured, comma separated", "META_DATA"),
        _text("export_schema_versions", "of the exports, comma separated", "META_DATA_EXPORT"),
        Column(
            "captured_at_utc",
            pa.timestamp("us", tz="UTC"),
            "time",
            "start of the earliest session",
            "TARGET_INFO_SESSION_START_TIME",
            nullable=True,
        ),
        _text("reports", "names of the reports, comma separated", "file names"),
        _text("step_family", "the NVTX texts that are the steps; null without steps", "NVTX_EVENTS", nullable=True),
        *SUMMARY.columns,
        _text("link_kind", "kind of the slowest link, as in `links`; null when not known", "NCCL log, topology", nullable=True),
        _text("nccl_version", "of NCCL; null without its log", "NCCL log", nullable=True),
        _text("tool_version", "nsyspipe that wrote the run"),
        Column("schema_version", INT, "count", "version of this dataset's columns"),
        Column("details", TEXT, "json", "lists and verdicts of the run, for nsyspipe's own use"),
    ),
)  # fmt: skip

METRICS = TableSchema(
    "metrics",
    "One row per figure: of the run (rank and step null), of a rank (step null), or of a (rank, step). The long form "
    "of `runs`, `rank_summary` and `steps`, for dashboards.",
    ("rank", "step", "metric"),
    (
        Column("rank", INT, "id", "global rank; null for the run's figures", "", nullable=True),
        Column("step", INT, "id", "step number; null for the run's and a rank's", "", nullable=True),
        _text("metric", "name of the column that it is in those tables"),
        _text("unit", "its unit there"),
        Column("value", FLOAT, "the metric's", "its value; null when not recorded", "", nullable=True),
        Column("in_summary", FLAG, "flag", "of a (rank, step): it counts in the run's figures", "", nullable=True),
    ),
)  # fmt: skip


def _saved(table: TableSchema) -> TableSchema:
    """Return a run's table as it is on disk."""
    columns = table.columns if table is RUNS else (RUN_ID, *table.columns)
    key = table.key if table is RUNS else ("run_id", *table.key)
    return TableSchema(table.name, table.doc, key, columns)


_TABLES = (
    RUNS, RANKS, STEPS, PHASES, COLLECTIVES, STRAGGLERS, KERNEL_COSTS, LINKS, RANK_SUMMARY, PHASE_SUMMARY, IDLE_CALLS,
    TIMELINE, HOST_STEPS, FINDINGS, PROBLEMS, METRICS,
)  # fmt: skip

# Written on demand only, and by rank.
EVENT_TABLES: dict[str, TableSchema] = {one.name: _saved(one) for one in (EVENTS, PHASE_RANGES)}
DATASET: dict[str, TableSchema] = {one.name: _saved(one) for one in _TABLES} | EVENT_TABLES
