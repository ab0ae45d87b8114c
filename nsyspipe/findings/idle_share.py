"""What the rules about idle time share: the rank that the others wait for tells whether, all ranks together how much.

In a job that synchronises the other ranks fill their queues while they wait in NCCL, so only the rank that comes last
runs dry. What follows its advice frees every rank of that idle time, and with it of the waiting that it caused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.compute as pc

from nsyspipe.model.schema import IDLE_CAUSES
from nsyspipe.model.text import listed

if TYPE_CHECKING:
    from nsyspipe.findings.model import Evidence
    from nsyspipe.model.types import Int64

_CAUSES = ("idle_ns", *IDLE_CAUSES)
LEAST_SHARE = 0.02
_LEAST_TURN = 0.25


@dataclass(frozen=True)
class IdleOf:
    """One cause of idle time."""

    judged_ns: float  # mean per step on the rank that the others wait for
    saving_ns: float  # step time less the limit without the cause, per step
    # The rank that most of the judged time is of (of equal ones the lowest); None where the middle rank is judged.
    rank: int | None
    is_common: bool  # the rank in the middle idles as much as at least half of that
    is_waited_for: bool = False  # that rank waits at most half as long as the others do: else all wait for each other
    in_turn: tuple[int, ...] = ()  # the ranks that a quarter and more of the judged time is of


def idle_of(evidence: Evidence, column: str) -> IdleOf | None:
    """Return a cause of idle time as rules judge it; None where a rank's is null.

    Judged is in each step the rank that waits least for others (of equal ones the one with the longest window, then the
    lowest), where waiting is known; else the one in the middle (the lower of two). Saving, per step::

        max over ranks(wall) - max over ranks(wall - cause - min(wait, largest cause on another rank) - slowed)

    since without the cause no rank waits for it, and none is faster than its own work: of its waiting goes what
    another rank's cause can have made, and what hidden waiting slows its compute by (`Evidence.most_slowed_share`). Where waiting is not known it is the largest of the ranks' means.
    """
    steps = evidence.steps
    if not steps.num_rows or steps[column].null_count:
        return None
    by_rank: list[float] = sorted(evidence.mean_by_rank[column].to_pylist())
    middle = by_rank[(len(by_rank) - 1) // 2]
    if evidence.n_ranks > 1 and not evidence.is_wait_known:
        return IdleOf(middle, by_rank[-1], None, is_common=True)
    cause, wall = steps[column].to_numpy(), steps["wall_ns"].to_numpy()
    wait = pc.fill_null(steps["wait_ns"], 0).to_numpy()
    rank, (numbers, step) = steps["rank"].to_numpy(), np.unique(steps["step"], return_inverse=True)
    order = np.lexsort((rank, -wall, wait, step))
    waited_for = order[np.searchsorted(step[order], np.arange(numbers.size))]
    longest, limit = np.zeros(numbers.size, np.int64), np.zeros(numbers.size, np.int64)
    np.maximum.at(longest, step, wall)
    made = np.minimum(wait, _most_of_others(cause, step, numbers.size))
    # NCCL's kernels slow the compute beside them while they wait, too.
    hidden_wait = wait - pc.fill_null(steps["exposed_wait_ns"], 0).to_numpy()
    slowed = np.where(made > 0, evidence.most_slowed_share * hidden_wait, 0).astype(np.int64)
    np.maximum.at(limit, step, wall - cause - made - slowed)
    ranks, place = np.unique(rank[waited_for], return_inverse=True)
    shares = np.bincount(place, weights=cause[waited_for])
    named = int(ranks[shares.argmax()])
    in_turn = tuple(ranks[shares >= _LEAST_TURN * shares.sum()].tolist())
    is_own = rank == named
    is_waited_for = is_own.all() or 2 * wait[is_own].mean() <= wait[~is_own].mean()
    judged = float(cause[waited_for].mean())
    saving = min(float((longest - limit).mean()), evidence.mean("wall_ns") or 0.0)
    return IdleOf(judged, saving, named, 2 * middle >= judged, bool(is_waited_for), in_turn)


def _most_of_others(cause: Int64, step: Int64, n_steps: int) -> Int64:
    """Return for each rank and step the largest cause on another rank of that step; 0 where there is none."""
    order = np.lexsort((-cause, step))
    first = np.searchsorted(step[order], np.arange(n_steps))
    most = order[first]
    second = cause.copy()
    second[most] = 0
    others, runner_up = cause[most][step], np.zeros(n_steps, np.int64)
    np.maximum.at(runner_up, step, second)
    others[most] = runner_up
    return others


def idle_above(evidence: Evidence, column: str) -> IdleOf | None:
    """Return a cause of idle time that takes as much of the step as rules speak of; None of any other."""
    idle = idle_of(evidence, column)
    return None if idle is None or evidence.share(idle.judged_ns) < LEAST_SHARE else idle


def on_rank(idle: IdleOf) -> str:
    """Return which rank a finding is about, in words; nothing where the others idle alike."""
    if idle.is_common:
        return ""
    if len(idle.in_turn) > 1:
        return f" on ranks {listed(idle.in_turn)} in turn"
    return f" on rank {idle.rank}{', which the others wait for' if idle.is_waited_for else ''}"


def idle_evidence(evidence: Evidence, idle: IdleOf, column: str) -> dict[str, Any]:
    """Return the mean idle time per step by cause, and of the judged cause that of the rank that was judged."""
    figures = {f"{name}_per_step": evidence.mean(name) for name in _CAUSES}
    own = {"rank": idle.rank, f"judged_{column}_per_step": idle.judged_ns}
    return figures if evidence.n_ranks == 1 else figures | own
