"""Which GPUs wait for kernels that their CPU has not launched yet, and why."""

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow.compute as pc
from msgspec import Struct

from nsyspipe.analysis.launching import ranks_with_late_launches, slower_hosts
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
    n_late_steps = ranks_with_late_launches(breakdown, tuple(_CAUSES))
    return Starving(n_late_steps, n_steps, slower_hosts(breakdown))


def starved_shares(run: Run) -> Float64:
    """Return the share of a step in which each rank's GPU waits for launches.

    That is the median over steps. Ranks are in order.
    """
    steps = run.breakdown()
    rank_of_row = steps["rank"].to_numpy()
    waits_by_cause_ns = [pc.fill_null(steps.column(column), 0).to_numpy() for column in _CAUSES]
    wait_ns = np.sum(waits_by_cause_ns, axis=0)
    wall_ns = steps["wall_ns"].to_numpy()
    share_of_row = wait_ns / wall_ns
    medians = []
    for rank in np.unique(rank_of_row):
        shares_of_rank = share_of_row[rank_of_row == rank]
        medians.append(np.median(shares_of_rank))
    return np.array(medians)


def starved_causes(run: Run) -> list[tuple[str, ...]]:
    """Return for each rank why its GPU waits for launches, in words, the largest cause first."""
    by_rank = run.breakdown().group_by("rank", use_threads=False)
    sums = by_rank.aggregate([(column, "sum") for column in _CAUSES])
    rows = sums.sort_by("rank").to_pylist()
    return [_causes_of_rank(row) for row in rows]


def _causes_of_rank(sums: Mapping[str, int | None]) -> tuple[str, ...]:
    """Return the causes with at least a quarter of a rank's wait time, the largest cause first.

    Causes with equal times stay in the order of `_CAUSES`.
    """
    wait_ns_by_cause: dict[str, int] = {}
    for column, words in _CAUSES.items():
        wait_ns = sums[f"{column}_sum"] or 0
        if wait_ns:
            wait_ns_by_cause[words] = wait_ns
    total_ns = sum(wait_ns_by_cause.values())
    min_wait_ns = _MIN_CAUSE_SHARE * total_ns
    named = [words for words, wait_ns in wait_ns_by_cause.items() if wait_ns >= min_wait_ns]
    longest_first = sorted(named, key=wait_ns_by_cause.__getitem__, reverse=True)
    return tuple(longest_first)
