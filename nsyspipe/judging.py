"""From a run's tables to what its rules look at."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.compute as pc

from nsyspipe.findings.model import Evidence
from nsyspipe.link import absent_gpus, links
from nsyspipe.problems import problem

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from nsyspipe.fabric import NcclLog, Topology
    from nsyspipe.merge import RunTables
    from nsyspipe.problems import Problem

__all__ = ["evidence_of", "links_of"]


def evidence_of(
    tables: RunTables,
    summary: pa.Table,
    phases: pa.Table,
    *,
    gpu_names: Sequence[str],
    links: pa.Table | None,
    log: NcclLog | None,
) -> Evidence:
    """Collect what rules may ask about a run.

    Parameters
    ----------
    summary
        `schema.SUMMARY`.
    phases
        `schema.PHASES` of the summary steps.
    links
        `schema.LINKS`; None when nothing says anything about them.
    log
        What NCCL logged of the run.
    """
    return Evidence(
        n_ranks=tables.ranks.num_rows,
        world_size=tables.world_size,
        summary=summary.to_pylist()[0],
        steps=tables.steps.filter(tables.steps["in_summary"]),
        is_capture=tables.is_capture,
        all_steps=tables.steps,
        phases=phases,
        all_collectives=tables.collectives,
        stragglers=tables.stragglers,
        kernels=tables.kernels,
        blocked_ns_by_call=tables.blocked_ns_by_call,
        skipped_steps=tuple(int(step) for step in tables.selection.skipped),
        n_hosts=max(pc.count_distinct(tables.ranks["host"]).as_py(), 1),
        gpu_names=tuple(gpu_names),
        links=links,
        nccl_settings=None if log is None else log.settings,
    )


def links_of(
    log: NcclLog | None, topology: Topology | None, ranks: pa.Table, world_size: int | None
) -> tuple[pa.Table | None, list[Problem]]:
    """Return `schema.LINKS` of a run, and what is wrong with the topology; None without it and a log.

    Parameters
    ----------
    log
        Of this run.
    ranks
        `schema.RANKS`.
    """
    if log is None and topology is None:
        return None, []
    rows = {row["rank"]: row for row in ranks.to_pylist()}
    n_ranks = world_size or len(rows)
    pids = [row["pid"] for row in rows.values()]
    hosts = {rank: row["host"] for rank, row in rows.items()}
    local_ranks = {
        rank: row["device_id"] if row["local_rank"] is None else row["local_rank"]
        for rank, row in rows.items()
    }
    lacking = absent_gpus(
        log, topology, n_ranks=n_ranks, local_ranks=local_ranks, hosts=hosts, pids=pids
    )
    named = ", ".join(map(str, lacking))
    found = links(
        log,
        topology,
        {rank: row["gpu_name"] for rank, row in rows.items()},
        n_ranks=n_ranks,
        local_ranks=local_ranks,
        hosts=hosts,
        pids=pids,
    )
    return found, [problem("topology-of-another-machine", gpus=named)] if lacking else []
