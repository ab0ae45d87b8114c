"""What a replay makes of the findings: which change each advises, what it would likely bring, and what was its bound."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.errors import NsyspipeError
from nsyspipe.findings.judge import in_order
from nsyspipe.findings.slow_link import nvlink_promise
from nsyspipe.model import schema
from nsyspipe.replay.knobs import LINKS, Knobs
from nsyspipe.replay.scenarios import Replay, opened_replay, why_refused

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    from nsyspipe.run.run import Run

# More than this and reading them again takes seconds: `whatif` does it for who asks.
_MOST_OPERATIONS = 500_000
# By rule: the change that it advises. Which link slow-link means, the run's GPUs say.
ADVICE = {
    "comm-bound": Knobs(perfect_overlap=True),
    "single-bucket": Knobs(bucket_mb=25),
    "too-many-buckets": Knobs(bucket_mb=100),
    "grad-copy": Knobs(no_grad_copy=True),
    "compress-gradients": Knobs(gradient_dtype="bf16"),
    "straggler": Knobs(no_wait=True),
}
_SLOW_LINK, _OF_LINKS = "slow-link", ("bandwidth_bytes_per_s", "link")
# Those of one machine.
_ADVISED_LINKS = [one for one in LINKS.values() if one.name.startswith(("nvlink", "pcie"))]


def promised_bytes_per_s(run: Run) -> float | None:
    """Return the fastest link that a finding of the run can speak of: NVLink, where its GPUs have it."""
    return nvlink_promise(run.header.gpu_names)


def advised_change(rule: str, promised: float | None) -> Knobs | None:
    """Return the change that a finding advises; None where the replay knows none like it.

    Of links the fastest that is not beyond what the finding promises.
    """
    if rule != _SLOW_LINK:
        return ADVICE.get(rule)
    slower = [one for one in _ADVISED_LINKS if one.bus_bytes_per_s <= (promised or 0.0)]
    best = max(slower, key=lambda one: one.bus_bytes_per_s, default=None)
    return None if best is None else Knobs(link=best.name)


def finding_of(knobs: Knobs, fired: Container[str], promised: float | None) -> str | None:
    """Return the id of the finding that advises a change; None for several changes, or where no such rule fired.

    A link that is faster than those the finding speaks of is none of its.
    """
    given = list(knobs.given)
    if len(given) != 1:
        return None
    if given[0] not in _OF_LINKS:
        rules = [rule for rule, change in ADVICE.items() if given[0] in change.given]
        return next((one for one in rules if one in fired), None)
    is_beyond = promised is not None and (knobs.target_bytes_per_s or 0.0) > promised
    return None if is_beyond or _SLOW_LINK not in fired else _SLOW_LINK


def with_expected_savings(run: Run, findings: pa.Table) -> pa.Table:
    """Return findings with what a replay of each one's advice brings, as `whatif` answers it.

    ``expected_ns_per_step`` = captured - predicted step time, the mean over steps as of the bound, whatever that says. Of
    the evidence, ``replay_change`` is the change, ``replay_step_time_ns`` with ``_low_`` and ``_high_`` what it predicts
    (medians), ``replay_refused`` why it does not.

    Parameters
    ----------
    findings
        `schema.FINDINGS` of the run, as the rules gave them; returned in the order of `findings.judge.in_order`.
    """
    promised = promised_bytes_per_s(run)
    rows = findings.to_pylist()
    changes = [advised_change(row["id"], promised) for row in rows]
    if not any(changes):
        return findings
    opened = _opened(run)
    told = [row if change is None else _told(row, change, opened) for row, change in zip(rows, changes, strict=True)]
    return schema.FINDINGS.from_rows(in_order(told))


def _opened(run: Run) -> Replay | str:
    n_operations = pc.sum(run.ranks["n_kernels"]).as_py() or 0
    if n_operations > _MOST_OPERATIONS:
        return f"not replayed here: {n_operations:,} kernels take long; nsyspipe whatif does"
    try:
        return opened_replay(run)
    except NsyspipeError as error:  # an answer without it is better than none
        return f"not replayed: {error}"


def _told(row: Mapping[str, Any], change: Knobs, opened: Replay | str) -> dict[str, Any]:
    """Return a finding with what the replay says of its advice."""
    evidence, expected = json.loads(row["evidence"]) | {"replay_change": change.label}, None
    refused = why_refused(opened, change)
    if isinstance(opened, str) or refused is not None:
        evidence["replay_refused"] = refused
    else:
        found = opened.predict(change)
        expected = found.mean_gain_ns
        evidence |= {
            "replay_step_time_ns": found.step_time_ns,
            "replay_step_time_low_ns": found.low_ns,
            "replay_step_time_high_ns": found.high_ns,
        }
    said = json.dumps(evidence, allow_nan=False)
    return {**row, "expected_ns_per_step": expected, "evidence": said}
