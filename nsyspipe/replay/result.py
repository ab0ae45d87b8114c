"""What a replay answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Scenario", "WhatIf"]


@dataclass(frozen=True)
class Scenario:
    """What one combination of changes would bring.

    Attributes
    ----------
    id
        Stable: ``bucket-25``, ``link-nvlink4``; ``custom`` for a user's own combination.
    label
        The same in words.
    knobs
        What is changed, by the names of `whatif`'s arguments; a bandwidth is ``bandwidth_bytes_per_s``, a number
        however it was given.
    step_time_ns
        Predicted step time; None where the question is refused.
    low_ns, high_ns
        Least and most that it may be; None likewise.
    throughput_steps_per_s
        1e9 / step_time_ns.
    gain_pct
        100 x (captured - predicted) / captured step time: positive is faster.
    assumptions
        What the answer rests on, a sentence each.
    refused
        Why there is no answer; None if there is one.
    finding
        Id of the run's finding that advises this one change; None where there is none, and for several changes.
    finding_saving_ns
        What that finding says could be gained at most, ns per step; None where it has no bound.
    """

    id: str
    label: str
    knobs: Mapping[str, float | str | bool]
    step_time_ns: float | None = None
    low_ns: float | None = None
    high_ns: float | None = None
    throughput_steps_per_s: float | None = None
    gain_pct: float | None = None
    assumptions: tuple[str, ...] = ()
    refused: str | None = None
    finding: str | None = None
    finding_saving_ns: float | None = None


@dataclass(frozen=True)
class WhatIf:
    """The answer to `whatif`.

    Attributes
    ----------
    run_id, label
        Of the run.
    n_steps
        Steps that the answer rests on.
    step_time_ns
        Captured step time: of each summary step the largest window over ranks, then the median; None without any.
    limit_step_time_ns
        The same replayed with communication that takes no time and slows nothing: what no other link, bucket or
        datatype can beat. ``no_wait`` and ``no_grad_copy`` change the work itself, so they can. None where nothing
        can be replayed, and where sharded (FSDP): how much of that work communication slows is not known.
    identity_error_pct
        Largest difference of any step between capture and replay with nothing changed, in per cent; None likewise.
    scenarios
        One per question; a menu has the largest gain first, refused ones last.
    problems
        Rows of `schema.PROBLEMS`, and what the replay adds.
    """

    run_id: str
    label: str
    n_steps: int
    step_time_ns: float | None
    limit_step_time_ns: float | None
    identity_error_pct: float | None
    scenarios: tuple[Scenario, ...]
    problems: tuple[Mapping[str, Any], ...]

    def table(self) -> pa.Table:
        """Return the scenarios as a table: one row each, in their order; knobs and assumptions as text.

        Columns: id, label, step_time_ns, low_ns, high_ns, throughput_steps_per_s, gain_pct, assumptions, refused,
        finding, finding_saving_ns.
        """
        rows = [
            {
                "id": one.id,
                "label": one.label,
                "step_time_ns": one.step_time_ns,
                "low_ns": one.low_ns,
                "high_ns": one.high_ns,
                "throughput_steps_per_s": one.throughput_steps_per_s,
                "gain_pct": one.gain_pct,
                "assumptions": "; ".join(one.assumptions),
                "refused": one.refused,
                "finding": one.finding,
                "finding_saving_ns": one.finding_saving_ns,
            }
            for one in self.scenarios
        ]
        text, number = pa.string(), pa.float64()
        kinds = [text, text, number, number, number, number, number, text, text, text, number]
        names = [
            "id", "label", "step_time_ns", "low_ns", "high_ns", "throughput_steps_per_s", "gain_pct", "assumptions",
            "refused", "finding", "finding_saving_ns",
        ]  # fmt: skip
        return pa.Table.from_pylist(rows, pa.schema(zip(names, kinds, strict=True)))
