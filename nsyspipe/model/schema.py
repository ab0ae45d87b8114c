"""All tables by name: which a run is saved as, and which a user gets.

Findings, problems, runs and metrics are declared here, the others in the modules that this one names.
"""

from __future__ import annotations

import pyarrow as pa

from nsyspipe.model.canonical import (
    BLOCKING_CALLS,
    COMM_OPERATIONS,
    COMM_SIZES,
    COPIES,
    DTOD_KIND,
    GRAPH_NAME_ID,
    HOST_CALLS,
    HOST_WAITS,
    KERNELS,
    LAUNCHES,
    MEMSET_KIND,
    PAYLOADS,
    RANGES,
    UNIFIED_KINDS,
)
from nsyspipe.model.figures import FIGURES, PHASE_SUMMARY, RANK_SUMMARY, SUMMARY
from nsyspipe.model.operation_tables import (
    COLLECTIVES,
    EVENTS,
    KERNEL_COSTS,
    LANES,
    LINK_KINDS,
    LINKS,
    PHASE_RANGES,
    STRAGGLERS,
    TIMELINE,
)
from nsyspipe.model.step_tables import (
    HOST_STEPS,
    IDLE_CALLS,
    IDLE_CAUSES,
    PHASE_TIMES,
    PHASES,
    RANKS,
    STEPS,
)
from nsyspipe.model.table import (
    FLAG,
    FLOAT,
    INT,
    SCHEMA_VERSION,
    TEXT,
    Column,
    TableSchema,
    conform,
    count,
)

__all__ = [
    "BLOCKING_CALLS",
    "COLLECTIVES",
    "COMM_OPERATIONS",
    "COMM_SIZES",
    "COPIES",
    "DATASET",
    "DESCRIBED",
    "DTOD_KIND",
    "EVENTS",
    "EVENT_TABLES",
    "FIGURES",
    "FINDINGS",
    "GRAPH_NAME_ID",
    "HOST_CALLS",
    "HOST_STEPS",
    "HOST_WAITS",
    "IDLE_CALLS",
    "IDLE_CAUSES",
    "KERNELS",
    "KERNEL_COSTS",
    "LANES",
    "LAUNCHES",
    "LINKS",
    "LINK_KINDS",
    "MEMSET_KIND",
    "METRICS",
    "PAYLOADS",
    "PHASES",
    "PHASE_RANGES",
    "PHASE_SUMMARY",
    "PHASE_TIMES",
    "PROBLEMS",
    "RANGES",
    "RANKS",
    "RANK_SUMMARY",
    "RUNS",
    "RUN_ID",
    "SCHEMA_VERSION",
    "STEPS",
    "STRAGGLERS",
    "SUMMARY",
    "TIMELINE",
    "UNIFIED_KINDS",
    "Column",
    "TableSchema",
    "conform",
]


# What a run could not answer, and what to change about it.


FINDINGS = TableSchema(
    "findings",
    "One row per rule that fired, by saving, largest first.",
    ("saving_ns_per_step", "id"),
    (
        Column("id", TEXT, "text", "stable identifier of the rule", ""),
        Column(
            "severity",
            TEXT,
            "text",
            "high, medium or low: the saving is at least 10 %, at least 3 % of step time, or less or not known",
            "derived",
        ),
        Column("title", TEXT, "text", "what was found", ""),
        Column("action", TEXT, "text", "what to change, in a few words", ""),
        Column("advice", TEXT, "text", "what to change, with the option's name", ""),
        Column(
            "saving_ns_per_step",
            FLOAT,
            "ns",
            "upper bound on the step time that the change could give back; null where it has none",
            "derived",
            nullable=True,
        ),
        Column(
            "expected_ns_per_step",
            FLOAT,
            "ns",
            "what the change would likely bring: step time less that of a replay with it (nsyspipe whatif, which says how), the mean over steps, never "
            "cut to saving_ns_per_step; the evidence has the replay's range, which may hold no gain at all; null where the replay knows no such change, refused it (replay_refused in the evidence says why), or the run was "
            "saved before there was this column",
            "derived",
            nullable=True,
        ),
        Column(
            "evidence", TEXT, "json", "the figures that the rule rests on, as a JSON object", ""
        ),
    ),
)

PROBLEMS = TableSchema(
    "problems",
    "One row per thing that could not be read or answered, what it costs, and what would bring it back.",
    (),
    (
        Column("code", TEXT, "text", "stable identifier", ""),
        Column("severity", TEXT, "text", "error, warning or info", ""),
        Column("report", TEXT, "text", "the report concerned", "", nullable=True),
        Column("rank", INT, "id", "the rank concerned", "", nullable=True),
        Column("message", TEXT, "text", "what is missing and which answer it costs", ""),
        Column("fix", TEXT, "text", "the flag or option that mends it", "", nullable=True),
    ),
)


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


# The tables a user gets: every column's unit and formula, as ``nsyspipe schema`` prints them.


DESCRIBED: dict[str, TableSchema] = {
    schema.name: schema
    for schema in (
        RANKS,
        STEPS,
        PHASES,
        COLLECTIVES,
        STRAGGLERS,
        KERNEL_COSTS,
        LINKS,
        SUMMARY,
        RANK_SUMMARY,
        PHASE_SUMMARY,
        IDLE_CALLS,
        TIMELINE,
        HOST_STEPS,
        FINDINGS,
        PROBLEMS,
        EVENTS,
        PHASE_RANGES,
        RUNS,
        METRICS,
    )
}
