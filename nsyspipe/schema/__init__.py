"""Every table that nsyspipe hands from one room to the next or to a user.

Times are int64 nanoseconds; intervals are half-open. A null means "not recorded".
"""

from __future__ import annotations

from nsyspipe.schema.collectives import COLLECTIVES, STRAGGLERS
from nsyspipe.schema.dataset import DATASET, EVENT_TABLES, METRICS, RUNS
from nsyspipe.schema.events import (
    BLOCKING_CALLS,
    COMM_OPERATIONS,
    COPIES,
    DTOD_KIND,
    GRAPH_NAME_ID,
    HOST_CALLS,
    HOST_WAITS,
    KERNELS,
    LAUNCHES,
    MEMSET_KIND,
    RANGES,
    UNIFIED_KINDS,
)
from nsyspipe.schema.figures import FIGURES, PHASE_SUMMARY, RANK_SUMMARY, SUMMARY
from nsyspipe.schema.findings import FINDINGS, PROBLEMS
from nsyspipe.schema.host_steps import HOST_STEPS
from nsyspipe.schema.idle import IDLE_CALLS, IDLE_CAUSES
from nsyspipe.schema.kernels import KERNEL_COSTS
from nsyspipe.schema.links import LINK_KINDS, LINKS
from nsyspipe.schema.model import SCHEMA_VERSION, Column, TableSchema, conform
from nsyspipe.schema.payloads import COMM_SIZES, PAYLOADS
from nsyspipe.schema.ranks import RANKS
from nsyspipe.schema.results import DESCRIBED
from nsyspipe.schema.steps import PHASE_TIMES, PHASES, STEPS
from nsyspipe.schema.timeline import EVENTS, LANES, PHASE_RANGES, TIMELINE

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
