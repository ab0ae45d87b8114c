"""What the rules about idle time share: the rank in the middle tells whether, the rank with most how much.

One rank alone is no systemic finding. But a bound must hold on every rank: the change that rids the
middle rank of its idle time rids the others of theirs, and the step is as long as its longest window.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.compute as pc

from nsyspipe.schema import IDLE_CAUSES

if TYPE_CHECKING:
    from nsyspipe.findings.model import Evidence

__all__ = ["idle_evidence", "most_ns", "typical_ns"]

_CAUSES = ("idle_ns", *IDLE_CAUSES)


def typical_ns(evidence: Evidence, column: str) -> float | None:
    """Return the median over ranks (the lower of two) of a cause's mean per step; None where a rank's is null."""
    if not evidence.steps.num_rows or evidence.steps[column].null_count:
        return None
    values: list[float] = sorted(evidence.mean_by_rank[column].to_pylist())
    return values[(len(values) - 1) // 2]


def most_ns(evidence: Evidence, column: str) -> float:
    """Return the largest over ranks of a cause's mean per step; `typical_ns` must know it."""
    most: float = pc.max(evidence.mean_by_rank[column]).as_py()
    return most


def idle_evidence(evidence: Evidence) -> dict[str, float | None]:
    """Return the mean idle time per step by cause."""
    return {f"{name}_per_step": evidence.mean(name) for name in _CAUSES}
