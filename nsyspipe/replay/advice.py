"""What a replay expects of the findings' advice: beside the bound of each, what it would likely bring."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from nsyspipe.errors import NsyspipeError
from nsyspipe.findings.judge import in_order
from nsyspipe.model import schema
from nsyspipe.replay.knobs import ADVICE, ADVISED_LINKS, LINKS, Knobs
from nsyspipe.replay.scenarios import opened_replay, why_refused

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from nsyspipe.replay.scenarios import Opened
    from nsyspipe.run.run import Run


# More than this and reading them again takes seconds: `whatif` does it for who asks.
_MOST_OPERATIONS = 500_000


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
    rows = findings.to_pylist()
    changes = [advised_change(row["id"], json.loads(row["evidence"])) for row in rows]
    if not any(changes):
        return findings
    opened = _opened(run)
    told = [row if change is None else _told(row, change, opened) for row, change in zip(rows, changes, strict=True)]  # fmt: skip
    return schema.FINDINGS.from_rows(in_order(told))


def advised_change(name: str, evidence: Mapping[str, Any]) -> Knobs | None:
    """Return the change that a finding advises; None where the replay knows none like it.

    Of links the fastest that is not beyond what the finding promises.
    """
    if name != "slow-link":
        return ADVICE.get(name)
    promised = evidence.get("nvlink_nominal_bytes_per_s") or 0.0
    slower = [LINKS[one] for one in ADVISED_LINKS if LINKS[one].bus_bytes_per_s <= promised]
    best = max(slower, key=lambda one: one.bus_bytes_per_s, default=None)
    return None if best is None else Knobs(link=best.name)


def _opened(run: Run) -> Opened | str:
    n_operations = pc.sum(run.ranks["n_kernels"]).as_py() or 0
    if n_operations > _MOST_OPERATIONS:
        return f"not replayed here: {n_operations:,} kernels take long; nsyspipe whatif does"
    try:
        return opened_replay(run)
    except NsyspipeError as error:  # an answer without it is better than none
        return f"not replayed: {error}"


def _told(row: Mapping[str, Any], change: Knobs, opened: Opened | str) -> dict[str, Any]:
    """Return a finding with what the replay says of its advice."""
    evidence = json.loads(row["evidence"])
    refused = why_refused(opened, change)
    expected = None
    if isinstance(opened, str) or refused is not None:
        evidence |= {"replay_change": change.label, "replay_refused": refused}
    else:
        found = opened.replay.predict(change)
        expected = found.mean_gain_ns
        evidence |= {
            "replay_change": change.label,
            "replay_step_time_ns": found.step_time_ns,
            "replay_step_time_low_ns": found.low_ns,
            "replay_step_time_high_ns": found.high_ns,
        }
    return {
        **row,
        "expected_ns_per_step": expected,
        "evidence": json.dumps(evidence, allow_nan=False),
    }
