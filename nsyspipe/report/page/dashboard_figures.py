"""Which figures the dashboard follows, which way is better, and what stands where one is null."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nsyspipe.schema import RUNS
from nsyspipe.units import ms_text, percent_text, rate_text

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["FIGURES", "Figure", "missing_text", "value_of", "value_text"]

NOT_RECORDED = "not recorded"


@dataclass(frozen=True, slots=True)
class Figure:
    """One column of `schema.RUNS` with its words.

    Attributes
    ----------
    kind
        ``ns``, ``per_s`` or ``ratio``: how it is written.
    better
        1 if more is better, -1 if less is, 0 if neither can be said.
    meaning
        In a few words, below its name.
    category
        Of the palette; None for figures that have no colour of their own.
    """

    name: str
    title: str
    heading: str
    kind: str
    better: int
    meaning: str
    category: str | None = None

    @property
    def formula(self) -> str:
        """How it is computed, as `nsyspipe schema` says it."""
        return next(column.doc for column in RUNS.columns if column.name == self.name)


FIGURES = (
    Figure("step_time_ns", "Step time", "step time", "ns", -1, "slowest rank, median over steps"),
    Figure("throughput_steps_per_s", "Throughput", "throughput", "per_s", 1, "1 / mean step time"),
    Figure("exposed_comm_share", "Exposed communication", "exposed", "ratio", -1, "of step time, beside no compute", "exposed"),
    Figure("comm_share", "Communication", "comm", "ratio", 0, "of step time, hidden or not"),
    Figure("backward_overlap_ratio", "Hidden by backward", "hidden", "ratio", 1, "of communication, under backward", "hidden"),
    Figure("wait_share", "Waiting for other ranks", "waiting", "ratio", -1, "of step time, inside communication", "waiting"),
    Figure("idle_share", "Idle", "idle", "ratio", -1, "of step time, the device does nothing", "idle"),
)  # fmt: skip

_TEXTS = {"ns": ms_text, "per_s": rate_text, "ratio": percent_text}


def value_of(run: Mapping[str, Any], figure: Figure) -> float | None:
    """Return a figure of a row of `schema.RUNS`; a damaged one, which no page can carry, is null."""
    value = run[figure.name]
    return float(value) if value is not None and math.isfinite(value) else None


def value_text(run: Mapping[str, Any], figure: Figure) -> str:
    """Return a figure as words, and why there is none."""
    value = value_of(run, figure)
    return missing_text(run, figure) if value is None else _TEXTS[figure.kind](value)


def missing_text(run: Mapping[str, Any], figure: Figure) -> str:
    """Return why a figure is null, as far as the run's own figures tell."""
    if figure.name == "wait_share" and run["n_ranks"] == 1:
        return "one rank"
    if figure.name in {"wait_share", "backward_overlap_ratio"} and run["comm_share"] == 0:
        return "no communication"
    return NOT_RECORDED
