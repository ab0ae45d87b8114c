"""Rule ``flat-all-reduce``: gradients of all ranks of several hosts go in one all-reduce."""

from __future__ import annotations

from collections import Counter

from nsyspipe.analysis.traffic import DATA
from nsyspipe.findings.model import Answer, Evidence, Finding

_ADVICE = (
    'HSDP, fully_shard(mesh=init_device_mesh("cuda", (hosts, ranks per host), mesh_dim_names=...)), reduce-scatters within a '
    "host and all-reduces a part across; or let NCCL take a tree (NCCL_ALGO=NVLSTree,Tree; its log with "
    "NCCL_DEBUG_SUBSYS=TUNING says what it takes)"
)


def flat_all_reduce(evidence: Evidence) -> Answer:
    """Fire where all-reduces of gradients among several ranks on each of several hosts have an `Evidence.exposed_cost`.

    That is the saving. Which way NCCL takes inside of one all-reduce is not looked at.
    """
    cost = evidence.exposed_cost(DATA, "all_reduce") if evidence.gradient_all_reduces.num_rows else None
    groups = {row["ranks"] for row in evidence.traffic_of(DATA, "all_reduce")}
    per_host = [Counter(evidence.hosts.get(int(rank)) for rank in ranks.split(",")) for ranks in groups]
    flat = [one for one in per_host if None not in one and len(one) > 1 and min(one.values()) > 1]
    if cost is None or not flat:
        return None
    largest = max(flat, key=Counter.total)
    title = f"gradients of {largest.total()} ranks on {len(largest)} hosts go in one all-reduce each"
    figures = {"n_hosts": len(largest), "n_ranks": largest.total(), **cost[1]}
    return Finding(title, "reduce within each host first, then across hosts", _ADVICE, cost[0], figures)
