"""One run of a scoreboard: its captures, and the figures of them together."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from nsyspipe.difference.figures import DEFAULT_METRIC, per_step
from nsyspipe.difference.step_parts import mean_step_time, step_parts
from nsyspipe.scoreboard.tables import SUMMARY_FIGURES
from nsyspipe.statistics import evenness

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from nsyspipe.difference.sides import Side
    from nsyspipe.difference.step_table import StepTable
    from nsyspipe.statistics import Evenness

__all__ = ["Entrant"]

_NO_FIGURES = "no-figures"


@dataclass(frozen=True, eq=False)
class Entrant:
    """A run that is compared with others: a `Side`, and what a row of `tables.SCOREBOARD` says of it alone.

    `tables` has its captures, as `StepTable.of_sides` gives them.
    """

    side: Side
    tables: Sequence[StepTable]

    @property
    def label(self) -> str:
        """What to call it."""
        return self.side.label

    @cached_property
    def step_times(self) -> list[NDArray[np.float64]] | str:
        """Each capture's step times in order of time, ns; in words why one has none."""
        found = []
        for table in self.tables:
            values = per_step(table, DEFAULT_METRIC)
            if isinstance(values, str):
                return values
            found.append(values)
        return found

    @property
    def evenness(self) -> list[Evenness]:
        """How even the steps of each capture are; of those that have any."""
        times = self.step_times
        found = [] if isinstance(times, str) else list(map(evenness, times))
        return [one for one in found if one is not None]

    @property
    def n_steps(self) -> int:
        """Summary steps of all captures together."""
        return sum(table.n_steps for table in self.tables)

    def figures(self) -> dict[str, Any]:
        """Return the run's own figures: of several captures the mean, null where one of them has none."""
        runs = self.side.runs
        header = runs[0].header
        summaries = [run.summary().to_pylist()[0] for run in runs]
        own = {name: _mean(row[name] for row in summaries) for name in SUMMARY_FIGURES}
        if any(table.hides_idle for table in self.tables):
            own["idle_share"] = None
        # Of rates it is the mean of their times that the speed-up compares.
        rates = [row["throughput_steps_per_s"] for row in summaries]
        throughput = _mean(rates) if len(rates) == 1 else _inverse(_mean(map(_inverse, rates)))
        n_ranks = header.world_size or header.n_ranks
        return {
            "label": self.label,
            "run_ids": " ".join(run.header.run_id for run in runs),
            "n_captures": len(runs),
            "world_size": header.world_size,
            "n_ranks": header.n_ranks,
            "gpu_names": ", ".join(header.gpu_names),
            "n_summary_steps": self.n_steps,
            **own,
            "throughput_steps_per_s": throughput,
            "rank_steps_per_s": None if throughput is None else throughput * n_ranks,
            **self._parts(),
        }

    def problems(self) -> list[dict[str, Any]]:
        """Return rows of `tables.PROBLEMS_OF_RUNS`: those of the captures, and one of each without figures."""
        found = []
        for run, table in zip(self.side.runs, self.tables, strict=True):
            where = {"label": self.label, "run_id": run.header.run_id}
            if not table.n_steps:
                why = _CAPTURE if run.is_capture else {}
                found.append(where | _WITHOUT_FIGURES | why)
            found += [where | row for row in run.problems.to_pylist()]
        return found

    def _parts(self) -> dict[str, float | None]:
        """Return the mean step time and the parts that sum to it, as a difference of two runs has them."""
        parts, _ = step_parts(self.tables, self.tables)
        times = zip(parts["part"].to_pylist(), parts["baseline_ns"].to_pylist(), strict=True)
        mean = mean_step_time(self.tables)
        return {
            "mean_step_time_ns": None if mean is None else float(mean),
            **{f"{name}_ns": time for name, time in times},
        }


_WITHOUT_FIGURES: dict[str, Any] = {
    "code": _NO_FIGURES,
    "severity": "warning",
    "report": None,
    "rank": None,
    "message": "no step has a window on every rank: the run has no figures to compare",
    "fix": "see the other problems of this run",
}
_CAPTURE = {
    "message": "a capture without steps: there is no step time to compare",
    "fix": "name the steps with --step REGEX",
}


def _mean(values: Iterable[float | None]) -> float | None:
    """Return the mean; None if any value is, or is no number, as of a damaged run; of one value itself, exactly."""
    found = list(values)
    known = [value for value in found if value is not None and math.isfinite(value)]
    if not found or len(known) < len(found):
        return None
    return known[0] if len(known) == 1 else sum(known) / len(known)


def _inverse(value: float | None) -> float | None:
    return 1 / value if value else None
