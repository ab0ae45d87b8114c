"""Rule ``too-many-buckets``: many small all-reduces, each of which costs little more than its latency."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.compute as pc

from nsyspipe.analysis.traffic import OTHER
from nsyspipe.findings.model import Answer, Evidence, Finding, NotJudged

if TYPE_CHECKING:
    import pyarrow as pa

_MANY = 20
_FLOOR_NS = 100_000  # what an all-reduce of hardly any bytes takes, within a host or over a fast network
_SMALL_BYTES = 4e6  # buckets of this size are limited by the link, not by latency, however short they take
_LEAST_SHARE = 0.01


def too_many_buckets(evidence: Evidence) -> Answer:
    """Fire when a step has 20 all-reduces or more, whose median transfer is below 100 us (and size below 4 MB, if known).

    Saving: the lesser of exposed communication and that number times the median transfer.
    """
    rows = evidence.gradient_all_reduces
    if not rows.num_rows and many_small(evidence, evidence.of_role(OTHER, "all_reduce")) is not None:
        return evidence.unknown_gradients
    small = many_small(evidence, rows)
    if small is None or isinstance(small, NotJudged):
        return small
    saving, figures = small
    return Finding(
        title="many small all-reduces, each bound by latency",
        action="raise bucket_cap_mb: small all-reduces, latency-bound",
        advice="raise DistributedDataParallel(bucket_cap_mb=...), or reduce small tensors together",
        saving_ns_per_step=saving,
        evidence={"all_reduces_per_step": rows.num_rows / evidence.steps.num_rows, **figures},
    )


def many_small(evidence: Evidence, rows: pa.Table) -> tuple[float, dict[str, float | None]] | NotJudged | None:
    """Return what the latency of many small collectives costs at most, with its figures; None where they are not, as the rule has it."""
    n_per_step = rows.num_rows / evidence.steps.num_rows if evidence.steps.num_rows else 0
    if evidence.n_ranks == 1 or n_per_step < _MANY:
        return None
    transfer = rows["transfer_ns"].drop_null()
    if not len(transfer):
        return NotJudged("transfer times are not known", "see the problems about clocks and matching")
    median = pc.approximate_median(transfer).as_py()
    n_bytes = pc.approximate_median(rows["message_bytes"].drop_null()).as_py()
    exposed = evidence.exposed_transfer_ns_per_step or 0.0
    saving = min(exposed, n_per_step * median)
    is_small = n_bytes is None or n_bytes <= _SMALL_BYTES
    if median > _FLOOR_NS or not is_small or evidence.share(saving) < _LEAST_SHARE:
        return None
    figures = {"median_transfer_ns": median, "median_message_bytes": n_bytes}
    return saving, figures | evidence.means("exposed_comm_ns")
