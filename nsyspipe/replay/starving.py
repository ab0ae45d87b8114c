"""Which GPUs wait for kernels that their CPU has not launched yet, and why."""

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow.compute as pc
from msgspec import Struct

from nsyspipe.analysis.launching import ranks_without_launches, slower_hosts
from nsyspipe.model.table import Float64
from nsyspipe.run.run import Run

# If a GPU waits for launches for a larger share of its step, the CPU decides how long the step is.
MAX_STARVED_SHARE = 0.02
LAUNCH_BOUND = "launch-bound"
# The causes in words, by the column of the time that a GPU is idle because of them.
_CAUSES = {
    "idle_input_ns": "input-bound",
    "idle_launch_ns": LAUNCH_BOUND,
    "idle_blocked_ns": "sync-bound",
}
# A cause is named if it has at least this share of the time that a GPU waits for launches.
_MIN_CAUSE_SHARE = 0.25


class Starving(Struct, frozen=True):
    """Which GPUs wait for launches in many steps, and which CPUs launch more slowly."""

    # By rank whose GPU waits in a quarter of the steps at least: the number of these steps.
    n_late_steps: Mapping[int, int]
    n_steps: int
    # Ranks. None if the launch time of a CPU is not known.
    slower: Sequence[int] | None


def starving(run: Run) -> Starving:
    """Return which ranks of a run lack launches in which of the steps used."""
    breakdown = run.breakdown()
    n_steps = len(breakdown["step"].unique())
    n_late_steps = ranks_without_launches(breakdown, tuple(_CAUSES))
    return Starving(n_late_steps, n_steps, slower_hosts(breakdown))


def starved_shares(run: Run) -> Float64:
    """Return the share of each rank's median step in which its GPU waits for launches."""
    steps = run.breakdown()
    rank = steps["rank"].to_numpy()
    waits_ns = [pc.fill_null(steps[column], 0).to_numpy() for column in _CAUSES]
    shares = np.sum(waits_ns, axis=0) / steps["wall_ns"].to_numpy()
    medians = [np.median(shares[rank == number]) for number in np.unique(rank)]
    return np.array(medians)


def starved_causes(run: Run) -> list[tuple[str, ...]]:
    """Return for each rank why its GPU waits for launches, in words, the largest cause first."""
    by_rank = run.breakdown().group_by("rank", use_threads=False)
    sums = by_rank.aggregate([(column, "sum") for column in _CAUSES])
    return [_causes_of_rank(row) for row in sums.sort_by("rank").to_pylist()]


def _causes_of_rank(sums: Mapping[str, int | None]) -> tuple[str, ...]:
    waits_ns = {words: sums[f"{column}_sum"] or 0 for column, words in _CAUSES.items()}
    min_wait_ns = _MIN_CAUSE_SHARE * sum(waits_ns.values())
    named = [words for words, wait_ns in waits_ns.items() if wait_ns and wait_ns >= min_wait_ns]
    return tuple(sorted(named, key=lambda words: -waits_ns[words]))
