"""From a run's tables to what its rules look at."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.compute as pc

from nsyspipe.findings.model import Evidence
from nsyspipe.link import links

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from nsyspipe.fabric import NcclLog, Topology
    from nsyspipe.merge import RunTables

__all__ = ["evidence_of", "links_of"]


def evidence_of(
    tables: RunTables,
    summary: pa.Table,
    phases: pa.Table,
    *,
    gpu_names: Sequence[str],
    links: pa.Table | None,
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
    """
    return Evidence(
        n_ranks=tables.ranks.num_rows,
        world_size=tables.world_size,
        summary=summary.to_pylist()[0],
        steps=tables.steps.filter(tables.steps["in_summary"]),
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
    )


def links_of(
    log: NcclLog | None, topology: Topology | None, ranks: pa.Table, world_size: int | None
) -> pa.Table | None:
    """Return `schema.LINKS` of a run; None without a log and a topology.

    Parameters
    ----------
    ranks
        `schema.RANKS`.
    """
    if log is None and topology is None:
        return None
    rows = {row["rank"]: row for row in ranks.to_pylist()}
    local = {rank: row["local_rank"] for rank, row in rows.items()}
    device = {rank: row["device_id"] for rank, row in rows.items()}
    return links(
        log,
        topology,
        {rank: row["gpu_name"] for rank, row in rows.items()},
        n_ranks=world_size or len(rows),
        local_ranks={
            rank: index
            for rank in rows
            if (index := device[rank] if local[rank] is None else local[rank]) is not None
        },
        hosts={rank: row["host"] for rank, row in rows.items()},
        pids=[row["pid"] for row in rows.values()],
    )
