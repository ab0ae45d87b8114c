"""Which finding of ``analyze`` a change answers, and what that finding said it could bring at most."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nsyspipe.replay.knobs import Knobs
    from nsyspipe.run import Run

__all__ = ["Bound", "bounds_of", "finding_of"]

# By knob: the rules that advise it; the first that fired counts.
_ADVISED_BY = {
    "bandwidth_bytes_per_s": ("slow-link",),
    "link": ("slow-link",),
    "gradient_dtype": ("compress-gradients",),
    "bucket_mb": ("single-bucket", "too-many-buckets"),
    "no_wait": ("straggler",),
    "no_grad_copy": ("grad-copy",),
    "perfect_overlap": ("comm-bound",),
}


@dataclass(frozen=True)
class Bound:
    """What a finding says could be gained.

    Attributes
    ----------
    saving_ns
        At most, per step; None where it has no bound.
    link_bytes_per_s
        The fastest link that it speaks of; None where it speaks of none.
    """

    saving_ns: float | None
    link_bytes_per_s: float | None = None


def bounds_of(run: Run) -> dict[str, Bound]:
    """Return the bound of each finding of a run by its id; source: `schema.FINDINGS`."""
    table = run.judged_findings()
    columns = (table[name].to_pylist() for name in ("id", "saving_ns_per_step", "evidence"))
    return {
        name: Bound(saving, json.loads(evidence).get("nvlink_nominal_bytes_per_s"))
        for name, saving, evidence in zip(*columns, strict=True)
    }


def finding_of(knobs: Knobs, bounds: Mapping[str, Bound]) -> str | None:
    """Return the id of the finding that advises a change; None for several changes, or where no such rule fired.

    A link that is faster than those the finding speaks of is none of its.

    Parameters
    ----------
    bounds
        Those of `bounds_of`.
    """
    given = list(knobs.given)
    if len(given) != 1:
        return None
    found = next((one for one in _ADVISED_BY[given[0]] if one in bounds), None)
    target = knobs.target_bytes_per_s
    fastest = None if found is None else bounds[found].link_bytes_per_s
    is_beyond = target is not None and fastest is not None and target > fastest
    return None if is_beyond else found
