"""The tables a user gets: every column's unit and formula, as ``nsyspipe schema`` prints them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsyspipe.schema.collectives import COLLECTIVES, STRAGGLERS
from nsyspipe.schema.dataset import METRICS, RUNS
from nsyspipe.schema.figures import PHASE_SUMMARY, RANK_SUMMARY, SUMMARY
from nsyspipe.schema.findings import FINDINGS, PROBLEMS
from nsyspipe.schema.host_steps import HOST_STEPS
from nsyspipe.schema.idle import IDLE_CALLS
from nsyspipe.schema.kernels import KERNEL_COSTS
from nsyspipe.schema.links import LINKS
from nsyspipe.schema.ranks import RANKS
from nsyspipe.schema.steps import PHASES, STEPS
from nsyspipe.schema.timeline import EVENTS, PHASE_RANGES, TIMELINE

if TYPE_CHECKING:
    from nsyspipe.schema.model import TableSchema

__all__ = ["DESCRIBED"]

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
