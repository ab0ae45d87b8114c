"""Rule ``grad-copy``: DDP copies every gradient out of its bucket."""

from __future__ import annotations

from nsyspipe.findings.model import Answer, Evidence, Finding

NEEDS = ("grad_copy_ns",)

_SPAN = "grad_copy_span_ns"
_LEAST_SHARE = 0.001
# Compression hooks copy their factors as well: few bytes must cost more to be worth a word.
_FEW_BYTES, _LEAST_SHARE_OF_FEW = 16e6, 0.005


def grad_copy(evidence: Evidence) -> Answer:
    """Fire when a run with all-reduces makes long runs of DtoD copies for 0.1 % of step time, of less than 16 MB for 0.5 %.

    Saving: their own time with the gaps of up to 20 us between them, on the rank with most of it in each step; beside
    communication too, which they slow down.
    """
    exposed = evidence.mean("exposed_grad_copy_ns")
    if exposed is None:
        return None
    n_bytes = evidence.mean("grad_copy_bytes")
    has_few = n_bytes is not None and n_bytes < _FEW_BYTES
    if evidence.share(exposed) < (_LEAST_SHARE_OF_FEW if has_few else _LEAST_SHARE):
        return None
    if not evidence.gradient_all_reduces.num_rows:
        return evidence.unknown_gradients
    has_span = evidence.mean(_SPAN) is not None
    return Finding(
        title="gradients are copied out of their buckets at the end of backward",
        action="gradient_as_bucket_view=True: no copies out of buckets",
        advice="DistributedDataParallel(gradient_as_bucket_view=True): gradients live in the buckets, which saves "
        "their memory too",
        saving_ns_per_step=evidence.mean_of_most(evidence.steps[_SPAN].to_numpy()) if has_span else None,
        evidence=copy_evidence(evidence),
    )


def copy_evidence(evidence: Evidence) -> dict[str, float | None]:
    """Return what the copies between gradients and buckets cost per step."""
    figures = evidence.means("grad_copy_ns", "exposed_grad_copy_ns", _SPAN, "grad_copy_bytes")
    return figures | {"grad_copies_per_step": evidence.mean("n_grad_copies")}
