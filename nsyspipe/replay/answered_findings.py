"""Which finding of ``analyze`` a change answers, and what that finding said it could bring at most."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nsyspipe.replay.knobs import Knobs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nsyspipe.run import Run

__all__ = ["ADVICE", "Bound", "bounds_of", "finding_of"]

# By rule: the change that it advises. Which link slow-link means, its evidence says.
ADVICE = {
    "comm-bound": Knobs(perfect_overlap=True),
    "single-bucket": Knobs(bucket_mb=25),
    "too-many-buckets": Knobs(bucket_mb=100),
    "grad-copy": Knobs(no_grad_copy=True),
    "compress-gradients": Knobs(gradient_dtype="bf16"),
    "straggler": Knobs(no_wait=True),
}
_OF_LINKS = ("bandwidth_bytes_per_s", "link")


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
    found = next((one for one in _advising(given[0]) if one in bounds), None)
    target = knobs.target_bytes_per_s
    fastest = None if found is None else bounds[found].link_bytes_per_s
    is_beyond = target is not None and fastest is not None and target > fastest
    return None if is_beyond else found


def _advising(knob: str) -> list[str]:
    """Return the rules that advise to change a knob."""
    if knob in _OF_LINKS:
        return ["slow-link"]
    return [rule for rule, change in ADVICE.items() if knob in change.given]
