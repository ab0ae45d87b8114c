"""One cause of idle time: how long the GPU idles for it, on which rank, and what that costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from msgspec.structs import replace

from nsyspipe.analysis.intervals import run_starts
from nsyspipe.analysis.launching import fastest_launch_times
from nsyspipe.findings.model import Bound, Evidence, fill_zero
from nsyspipe.model.names import listed, printable
from nsyspipe.model.schema import IDLE_CAUSES
from nsyspipe.model.table import Float64, Int64
from nsyspipe.model.typed_tables import (
    StepsTable,
)

# All rules about idle time judge alike: the rank that the others wait for decides whether a rule
# fires, and all ranks together decide what it saves. If ranks synchronize, the other ranks fill
# their queues while they wait in NCCL, so only the rank that comes last runs dry. Whoever follows
# the advice frees every rank of that idle time, and of the waiting that it caused.
MIN_IDLE_SHARE_OF_STEP = 0.02
# The named ranks take turns if each has this share of the judged idle time.
_MIN_SHARE_OF_RANK_IN_TURN = 0.25
_LAUNCH_COLUMN = "idle_launch_ns"
_PERHAPS_BUBBLE = ", perhaps in the pipeline bubble"


class Idle(Struct, frozen=True):
    """One cause of idle time."""

    # Mean per step on the rank that the others wait for.
    judged_ns: float
    # What a step gains without the cause. None if a stage of a pipeline may idle for it in the
    # bubble.
    bound: Bound | None
    # The rank with most of the judged time, the lowest of equals. None if the middle rank is
    # judged.
    rank: int | None = None
    # Which rank idles, in words. Empty if the other ranks idle alike.
    where: str = ""
    # Whether it may be a part of a pipeline's bubble.
    is_perhaps_bubble: bool = False

    @property
    def saving_ns(self) -> float | None:
        """What a step gains without the cause; None if there is no bound."""
        return None if self.bound is None else self.bound.saving_ns

    @property
    def rank_clause(self) -> str:
        """Which rank idles, and what it may be instead, as the end of a title."""
        perhaps_bubble = _PERHAPS_BUBBLE if self.is_perhaps_bubble else ""
        return self.where + perhaps_bubble


class Removed(Struct, frozen=True):
    """What a step loses together with a cause of idle time, if that is more than the cause."""

    # Columns of idle time that the cause can have made. They may overlap.
    idle_columns: tuple[str, ...]
    # The column of copies that are gone too, or take less.
    copies_column: str | None = None


class _Gone(NamedTuple):
    """What each row of the steps loses together with a cause of idle time, ns."""

    idle: Float64
    copies: Float64

    @property
    def total(self) -> Float64:
        """Idle time and copies."""
        return self.idle + self.copies


class _Cause(NamedTuple):
    """One cause of idle time in the steps of a run."""

    column: str
    # The steps, with the cause in its column.
    steps: StepsTable
    gone: _Gone

    @property
    def ns(self) -> Float64:
        """The cause on each row of the steps."""
        cause_ns: Float64 = self.steps.column(self.column).to_numpy()
        return cause_ns

    def mean_by_rank(self) -> dict[int, float]:
        """Return the mean per step of each rank, in the order of ranks."""
        rank_of_row = self.steps["rank"].to_numpy()
        ranks, rank_number_of_row = np.unique(rank_of_row, return_inverse=True)
        n_steps = np.bincount(rank_number_of_row)
        means_ns = np.bincount(rank_number_of_row, weights=self.ns) / n_steps
        return dict(zip(ranks.tolist(), means_ns.tolist(), strict=True))

    def mean_of_middle_rank(self) -> float:
        """Return the mean per step of the rank in the middle, the lower of two."""
        means = sorted(self.mean_by_rank().values())
        lower_middle = (len(means) - 1) // 2
        return means[lower_middle]


def measure_large_idle(
    evidence: Evidence, column: str, *, excluded: Sequence[str] = (), removed: Removed | None = None
) -> Idle | None:
    """Return the idle time of `measure_idle` if it takes at least 2 % of the step; otherwise None.

    The parameters are those of `measure_idle`. The bound of the result leaves each step as long as
    the fastest host takes to launch it. For late launches the bound is that of `measure_idle`,
    because launching itself would get shorter.
    """
    largest_ns = pc.max(evidence.steps.column(column)).as_py()
    # No mean is larger than this. Most causes of idle time are too small to be measured further.
    if largest_ns is None or evidence.share_of_step(largest_ns) < MIN_IDLE_SHARE_OF_STEP:
        return None
    idle = measure_idle(evidence, column, excluded=excluded, removed=removed)
    if idle is None or evidence.share_of_step(idle.judged_ns) < MIN_IDLE_SHARE_OF_STEP:
        return None
    if column == _LAUNCH_COLUMN or idle.bound is None:
        return idle
    return replace(idle, bound=_limit_by_launching(evidence, idle.bound))


def measure_idle(
    evidence: Evidence, column: str, *, excluded: Sequence[str] = (), removed: Removed | None = None
) -> Idle | None:
    """Return how long the judged rank idles for a cause, and what a step gains without the cause.

    The cause is a column of the steps, less its parts in the columns `excluded`. `removed` is what
    a step loses together with the cause, which makes the bound larger. The result is None if the
    cause is not known on every rank.

    The judged rank is the one that waits least for the others in a step. Of equals, that is the
    rank with the longest window, then the lowest rank. If waiting is not known, the rank in the
    middle is judged. If process groups are not known, the rank with most of the cause is judged.

    Stages of a pipeline have no bound, because their idle time may lie in the bubble. Late launches
    are an exception: they have a bound if half of them are `launching_ns`, which lies in no bubble.
    """
    steps = evidence.steps
    for part in excluded:
        steps = _exclude(steps, column, part)
    if not steps.num_rows or steps.column(column).null_count:
        return None
    gone = _find_gone(evidence, steps.column(column).to_numpy(), removed)
    cause = _Cause(column, steps, gone)
    has_other_ranks = evidence.n_ranks > 1
    if has_other_ranks and not evidence.are_groups_known:
        return _judge_rank_with_most(evidence, cause)
    if has_other_ranks and not evidence.is_wait_known:
        return _judge_middle_rank(evidence, cause)
    # A single rank is the awaited rank in each step.
    return _judge_awaited_rank(evidence, cause)


def launching_ns(evidence: Evidence) -> Float64:
    """Return for each row of `steps` the idle time while a host launches late, but does not pause.

    No part of this idle time lies in the bubble of a pipeline.
    """
    launch_ns, pause_ns = evidence.columns(_LAUNCH_COLUMN, "idle_pause_ns")
    return launch_ns - pause_ns


def idle_figures(evidence: Evidence, column: str, idle: Idle) -> dict[str, Any]:
    """Return the figures of a finding about idle time. With one rank, none names a rank.

    `column` is the cause of the idle time.
    """
    figures: dict[str, Any] = evidence.means("idle_ns", *IDLE_CAUSES)
    parts = {} if idle.bound is None else idle.bound.parts
    if parts:
        figures["saving_ns_per_step_by_part"] = {**parts}
    if evidence.n_ranks == 1:
        return figures
    figures["rank"] = idle.rank
    figures[f"judged_{column}_per_step"] = idle.judged_ns
    if idle.bound is not None and parts:
        figures["limit_rank"] = idle.bound.limit_rank
        # `_limit_by_launching` adds this part if launching limits the bound.
        if "left_for_launching" in parts:
            launch_ns = fastest_launch_times(evidence.steps, is_input_free=True)
            figures["fastest_launch_ns_per_step"] = float(launch_ns.mean())
    if evidence.is_pipeline:
        figures["bubble_ns_per_step"] = evidence.bubble_ns_per_step
    return figures


def _exclude(steps: StepsTable, column: str, part: str) -> pa.Table:
    """Return the steps with a column less a part of it. A part that is not known counts as 0."""
    part_ns = fill_zero(steps.column(part))
    rest_ns = pc.subtract(steps.column(column), part_ns)
    place_of_column = steps.column_names.index(column)
    return steps.set_column(place_of_column, column, rest_ns)


def _find_gone(evidence: Evidence, cause_ns: Float64, removed: Removed | None) -> _Gone:
    """Return what each row of the steps loses without a cause of idle time.

    That is the idle time of the cause, or the idle time in `removed` if it is more. The copies in
    `removed` are gone too.
    """
    no_copies = np.zeros(cause_ns.size)
    if removed is None:
        return _Gone(idle=cause_ns, copies=no_copies)
    removed_columns_ns = [*evidence.columns(*removed.idle_columns)]
    (idle_ns,) = evidence.columns("idle_ns")
    # The columns may overlap, so their sum may be more than all idle time.
    removed_idle_ns = np.minimum(np.sum(removed_columns_ns, axis=0), idle_ns)
    gone_idle_ns = np.maximum(cause_ns, removed_idle_ns)
    if removed.copies_column is None:
        return _Gone(idle=gone_idle_ns, copies=no_copies)
    (copies_ns,) = evidence.columns(removed.copies_column)
    return _Gone(idle=gone_idle_ns, copies=copies_ns)


def _is_mostly_launching(evidence: Evidence, cause: _Cause) -> bool:
    """Tell whether a cause is late launches, at least half of which lie in no bubble."""
    if cause.column != _LAUNCH_COLUMN:
        return False
    outside_of_bubble_ns = launching_ns(evidence).sum()
    return bool(2 * outside_of_bubble_ns >= cause.ns.sum())


def _gone_outside_of_bubble(evidence: Evidence, cause: _Cause) -> _Gone | None:
    """Return what steps lose without a cause; None if it may be the bubble of a pipeline.

    In a pipeline, only idle time while a host launches late is known to be outside of the bubble.
    """
    if not evidence.is_pipeline:
        return cause.gone
    if not _is_mostly_launching(evidence, cause):
        return None
    no_copies = np.zeros(cause.ns.size)
    return _Gone(idle=launching_ns(evidence), copies=no_copies)


def _judge_middle_rank(evidence: Evidence, cause: _Cause) -> Idle:
    """Judge the rank in the middle. The bound is the largest of the means of ranks."""
    judged_ns = cause.mean_of_middle_rank()
    if evidence.is_pipeline:
        return Idle(judged_ns, bound=None, is_perhaps_bubble=True)
    parts = _parts_of_rank_with_most(evidence.rank_of_row, cause.gone)
    bound = Bound(sum(parts.values()), parts)
    return Idle(judged_ns, bound)


def _parts_of_rank_with_most(rank: Int64, gone: _Gone) -> dict[str, float]:
    """Return what is gone of a step: means over steps on the rank that loses most.

    `rank` is that of each row of the steps. Parts of 0 are left out, unless both are 0.
    """
    _, rank_number = np.unique(rank, return_inverse=True)
    n_steps = np.bincount(rank_number)
    mean_idle_ns = np.bincount(rank_number, weights=gone.idle) / n_steps
    mean_copies_ns = np.bincount(rank_number, weights=gone.copies) / n_steps
    mean_gone_ns = mean_idle_ns + mean_copies_ns
    loser = int(mean_gone_ns.argmax())
    parts = {"idle": float(mean_idle_ns[loser]), "copies": float(mean_copies_ns[loser])}
    nonzero_parts = {name: part_ns for name, part_ns in parts.items() if part_ns}
    return nonzero_parts or {"idle": 0.0}


def _judge_rank_with_most(evidence: Evidence, cause: _Cause) -> Idle:
    """Judge the rank with most of a cause, if it is not known which ranks wait for which.

    Any communication may be waiting then. So the bound is that of `_bound_without` with all
    communication in place of waiting.
    """
    means = cause.mean_by_rank()
    rank = max(means, key=means.__getitem__)
    where = f" on rank {rank}"
    gone = _gone_outside_of_bubble(evidence, cause)
    if gone is None:
        return Idle(means[rank], bound=None, rank=rank, where=where, is_perhaps_bubble=True)
    comm_ns, hidden_comm_ns = evidence.columns("comm_ns", "overlap_compute_ns")
    largest_elsewhere_ns = _largest_on_other_ranks(evidence, gone.total)
    caused_ns = np.minimum(comm_ns, largest_elsewhere_ns)
    slowed_ns = slowed_by_waiting(evidence, caused_ns, hidden_comm_ns)
    (wall_ns,) = evidence.columns("wall_ns")
    shortened_ns = wall_ns - gone.total - caused_ns - slowed_ns
    limit_rows = evidence.rows_of_largest(shortened_ns)
    parts = evidence.mean_parts(
        limit_rows,
        idle=gone.idle,
        copies=gone.copies,
        possible_waiting=caused_ns,
        slowed_by_possible_waiting=slowed_ns,
    )
    bound = Bound(evidence.saving_down_to(shortened_ns), parts)
    return Idle(means[rank], bound, rank, where)


def _judge_awaited_rank(evidence: Evidence, cause: _Cause) -> Idle:
    """Judge in each step the rank that the other ranks wait for.

    The rank of the result has most of the judged time. It is named unless the rank in the middle
    idles for at least half of that time.
    """
    awaited_rows = _rows_of_awaited_ranks(evidence)
    # One value per step, of the rank that is awaited in this step.
    awaited_ns = cause.ns[awaited_rows]
    awaited_ranks = evidence.rank_of_row[awaited_rows]
    judged_ns = float(awaited_ns.mean())
    ranks, rank_number_of_step = np.unique(awaited_ranks, return_inverse=True)
    judged_ns_of_ranks = np.bincount(rank_number_of_step, weights=awaited_ns)
    rank = int(ranks[judged_ns_of_ranks.argmax()])
    where = ""
    if judged_ns > 2 * cause.mean_of_middle_rank():
        min_ns_of_turn = _MIN_SHARE_OF_RANK_IN_TURN * judged_ns_of_ranks.sum()
        ranks_in_turn = ranks[judged_ns_of_ranks >= min_ns_of_turn]
        where = _where_text(evidence, rank, ranks_in_turn.tolist())
    gone = _gone_outside_of_bubble(evidence, cause)
    if gone is None:
        return Idle(judged_ns, bound=None, rank=rank, where=where, is_perhaps_bubble=True)
    bound = _bound_without(evidence, gone)
    return Idle(judged_ns, bound=bound, rank=rank, where=where)


def _rows_of_awaited_ranks(evidence: Evidence) -> Int64:
    """Return the row of each step whose rank waits least.

    Of equals, that is the rank with the longest window, then the lowest rank.
    """
    (wall_ns,) = evidence.columns("wall_ns")
    wait_ns = _wait_ns(evidence)
    longest_first = -wall_ns
    # The most important key is the last one.
    keys = (evidence.rank_of_row, longest_first, wait_ns, evidence.step_of_row)
    sorted_rows = np.lexsort(keys)
    first_of_step = run_starts(evidence.step_of_row[sorted_rows])
    return sorted_rows[first_of_step]


def _where_text(evidence: Evidence, rank: int, ranks_in_turn: Sequence[int]) -> str:
    """Say on which rank the GPU idles, and whether the others wait for it."""
    if len(ranks_in_turn) > 1:
        return f" on ranks {listed(ranks_in_turn)}, on one rank in each step"
    host = evidence.hosts.get(rank) if evidence.n_hosts > 1 else None
    of_host = f" of host {printable(host)}" if host else ""
    awaited = ""
    if _is_awaited(evidence, rank):
        awaited = f", which the other ranks wait for{evidence.main_waiting_text}"
    return f" on rank {rank}{of_host}{awaited}"


def _is_awaited(evidence: Evidence, rank: int) -> bool:
    """Tell whether a rank waits at most half as long as the others on average.

    Otherwise all ranks wait for each other, as stages of a pipeline do by design.
    """
    if evidence.is_pipeline:
        return False
    wait_ns = _wait_ns(evidence)
    is_rank = evidence.rank_of_row == rank
    if is_rank.all():
        return True
    mean_of_rank_ns = wait_ns[is_rank].mean()
    mean_of_others_ns = wait_ns[~is_rank].mean()
    return bool(2 * mean_of_rank_ns <= mean_of_others_ns)


def _wait_ns(evidence: Evidence) -> Float64:
    (wait_ns,) = evidence.columns("wait_ns")
    return wait_ns


def _bound_without(evidence: Evidence, gone: _Gone) -> Bound:
    """Return what a step gains at most without a cause of idle time.

    Per step::

        max over ranks(wall) - max over ranks(wall - gone - min(wait, largest gone on another rank)
        - slowed)

    ``wall`` is the window of a rank, and ``gone`` is what the rank loses itself. Its waiting gets
    shorter by what another rank loses. ``slowed`` is how much its hidden waiting slows its compute
    at most (`Evidence.slowed_ns`), because NCCL's kernels also slow compute while they wait.
    """
    wait_ns = _wait_ns(evidence)
    wall_ns, exposed_wait_ns = evidence.columns("wall_ns", "exposed_wait_ns")
    largest_elsewhere_ns = _largest_on_other_ranks(evidence, gone.total)
    caused_ns = np.minimum(wait_ns, largest_elsewhere_ns)
    hidden_wait_ns = wait_ns - exposed_wait_ns
    slowed_ns = slowed_by_waiting(evidence, caused_ns, hidden_wait_ns)
    shortened_ns = wall_ns - gone.total - caused_ns - slowed_ns
    limit_rows = evidence.rows_of_largest(shortened_ns)
    parts = evidence.mean_parts(
        limit_rows,
        idle=gone.idle,
        copies=gone.copies,
        waiting=caused_ns,
        slowed_by_waiting=slowed_ns,
    )
    limit_rank = only_rank(evidence, limit_rows)
    return Bound(evidence.saving_down_to(shortened_ns), parts, limit_rank)


def slowed_by_waiting(evidence: Evidence, gone_wait_ns: Float64, hidden_ns: Float64) -> Float64:
    """Return for each row of `steps` how much its hidden waiting slows compute at most.

    It is 0 for rows of which no waiting is gone.
    """
    slowed_ns = evidence.slowed_ns(hidden_ns, is_upper_bound=True)
    return np.where(gone_wait_ns > 0, slowed_ns, 0.0)


def only_rank(evidence: Evidence, rows: Int64) -> int | None:
    """Return the rank that some rows of the steps are of; None for several ranks."""
    ranks = np.unique(evidence.rank_of_row[rows])
    return int(ranks[0]) if ranks.size == 1 else None


def _largest_on_other_ranks(evidence: Evidence, cause_ns: Float64) -> Float64:
    """Return for each row of `steps` the largest cause of idle time on another rank of its step.

    It is 0 if there is no other rank.
    """
    _, step_number_of_row = np.unique(evidence.step_of_row, return_inverse=True)
    # One row per step.
    rows_of_largest = evidence.rows_of_largest(cause_ns)
    without_largest_ns = cause_ns.copy()
    without_largest_ns[rows_of_largest] = 0
    largest_ns = cause_ns[rows_of_largest]
    second_largest_ns = evidence.largest(without_largest_ns)
    # The rank with the largest cause looks at the second largest, all others at the largest.
    has_largest = np.zeros(cause_ns.size, np.bool_)
    has_largest[rows_of_largest] = True
    return np.where(
        has_largest, second_largest_ns[step_number_of_row], largest_ns[step_number_of_row]
    )


def _limit_by_launching(evidence: Evidence, bound: Bound) -> Bound:
    """Return the bound, or a lower one that leaves steps as long as the fastest host launches them.

    The time in which the host gets input does not count.
    """
    (wall_ns,) = evidence.columns("wall_ns")
    launch_ns = fastest_launch_times(evidence.steps, is_input_free=True)
    above_launching_ns = np.maximum(evidence.largest(wall_ns) - launch_ns, 0.0)
    max_saving_ns = float(above_launching_ns.mean())
    if bound.saving_ns <= max_saving_ns:
        return bound
    # Parts sum to the bound, so what is left is a part below 0.
    left_ns = max_saving_ns - bound.saving_ns
    parts = {**bound.parts, "left_for_launching": left_ns}
    return Bound(max_saving_ns, parts, bound.limit_rank)
