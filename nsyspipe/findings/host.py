"""The host of a rank: the GPU idles while it launches, loads or waits; and what the profiler takes of it."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct, field
from msgspec.structs import replace

from nsyspipe.analysis.intervals import run_starts
from nsyspipe.analysis.launching import (
    MIN_SLOWER_SHARE,
    fastest_launch_times,
    ranks_without_launches,
    slower_hosts,
)
from nsyspipe.findings.launch_saving import saving_without_launching
from nsyspipe.findings.model import Answer, Evidence, Finding, NotJudged, Rules
from nsyspipe.model.names import LONGEST_CALL, few, is_optimizer, listed, printable
from nsyspipe.model.schema import IDLE_CAUSES
from nsyspipe.model.table import Float64, Int64

# What the rules about idle time share: the rank that the others wait for tells whether, all ranks
# together how much. In a job that synchronises the other ranks fill their queues while they wait in
# NCCL, so only the rank that comes last runs dry. What follows a rule's advice frees every rank of
# that idle time, and with it of the waiting that it caused.
LEAST_IDLE_SHARE = 0.02
_LEAST_TURN = 0.25
_SHOWN_CALLS = 5
_SHOWN_RANKS = 4
_FASTER = (
    'Launch fewer kernels, or launch faster: torch.compile(mode="reduce-overhead") or CUDA graphs, '
    "fused optimizers (fused=True), larger batches"
)
_LESS = "Launch fewer kernels (torch.compile, CUDA graphs)"
_FASTER_WITH_FUSED = (
    'Launch fewer kernels, or launch faster: torch.compile(mode="reduce-overhead") or CUDA graphs, '
    "larger batches"
)
_MOSTLY_PAUSES = 0.5
_SOME_PAUSES = 0.25
_PAUSES = (
    "Find out what the CPU does in the pauses (nsys profile --python-sampling=true): loading, "
    "logging, locks, "
    "garbage collection, sleeping. Launching faster does not shorten a pause"
)
_UNMARKED = ". Wrap data loading in an NVTX range named 'data', so that nsyspipe can recognize it"
_FEED = "Feed the GPU faster: num_workers, pin_memory, non_blocking"
_LOADER = "Set DataLoader(num_workers=..., pin_memory=True, prefetch_factor=...)"
_WITHOUT_WAITING = ", and use .to(device, non_blocking=True)"
_TO_BE_SURE = ". Wrap data loading in an NVTX range named 'data' to be sure"
_NO_SYNCHRONISING = (
    "Avoid .item(), .cpu(), print of tensors and torch.cuda.synchronize() in the step"
)
_ALLOCATE_LESS = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True can avoid {call}"
_ALLOCATING = (
    "cudaMalloc",
    "cudaFree",
    "cuMemAlloc",
    "cuMemFree",
)  # how calls begin that PyTorch's allocator makes
_PIN = "Use DataLoader(pin_memory=True) or tensor.pin_memory(), and .to(device, non_blocking=True)"
_LEAST_COPY_SHARE = 0.001
_TRACE_SHORTER = (
    "start the capture some steps before the steps that count, and keep the capture short"
)
_NEEDED_EVENTS = frozenset({"Cuda", "NvtxEvents"})  # as nsys calls them
_CLOCK = "one clock of CPU and GPU"
_DISTORTED = 1.5
_LEAST_OVERHEAD = 0.01


class Idle(Struct, frozen=True):
    """One cause of idle time."""

    judged_ns: float  # mean per step on the rank that the others wait for
    # step time less the limit without the cause, per step; None where a stage of a pipeline may
    # idle for it in the bubble
    saving_ns: float | None
    # The rank that most of the judged time is of (of equal ones the lowest); None where the middle
    # rank is judged.
    rank: int | None = None
    where: str = ""  # which rank a finding is about, in words; nothing where the others idle alike
    doubt: str = ""  # that it may be a pipeline's bubble, in words
    # Mean per step of the rank that sets the limit: the cause, the waiting that others' made, what
    # that slows, and by how much another's window is longer. They sum to the saving.
    parts: Mapping[str, float] = field(default_factory=dict)
    limit_rank: int | None = None  # that rank, if it is the same in all steps

    @property
    def on_rank(self) -> str:
        """Where devices idle, in words."""
        return self.where + self.doubt


class LateLaunches(Struct, frozen=True):
    """Which devices idle because launches come late, and whose hosts are slower than the others."""

    n_late_steps: Mapping[
        int, int
    ]  # of each rank whose device idles so in a quarter of the steps at least
    n_steps: int
    slower: Sequence[int]  # those of them whose hosts launch slower than the others do on average
    is_every_host_slow: (
        bool  # whether even the fastest takes longer to launch a step than devices work
    )

    @property
    def is_of_one_host(self) -> bool:
        """Whether one device idles so, and its host is slower than the others."""
        return len(self.n_late_steps) == 1 and list(self.slower) == list(self.n_late_steps)


class Removed(Struct, frozen=True):
    """What goes of a step with a cause of idle time, where that is more than the cause: columns of the steps."""

    idle: tuple[str, ...]  # the idle time that it can have made, which may overlap
    copies: str | None = None  # copies that go too, or take less


class _Gone(Struct, frozen=True):
    """What goes of each step with a cause of idle time."""

    idle: Float64
    copies: Float64


def idle_of(
    evidence: Evidence, column: str, *, less: str | None = None, removed: Removed | None = None
) -> Idle | None:
    """Return a cause of idle time as rules judge it, `less` a part of it; None where a rank's is null.

    Judged is in each step the rank that waits least for others (of equal ones the one with the
    longest window, then the lowest), where waiting is known; else the one in the middle (the lower
    of two). Saving, per step::

        max over ranks(wall) - max over ranks(wall - cause - min(wait, largest cause on another
        rank) - slowed)

    since without the cause no rank waits for it, and none is faster than its own work: of its
    waiting goes what another rank's cause can have made, and what hidden waiting slows its compute
    by (`Evidence.slowed_ns` at most). Where waiting is not known it is the largest of the ranks'
    means. Where process groups are not known, see `_idle_by_itself`. Of a pipeline, whose stages
    wait by design, there is no saving: how much of the idle time stands in the bubble is not known.
    Late launches have one, if half of that is `launching_ns`, which is in no bubble. With `removed`
    the saving counts that in place of the cause.
    """
    steps = evidence.steps if less is None else _without_part(evidence.steps, column, less)
    if not steps.num_rows or steps[column].null_count:
        return None
    means = steps.group_by("rank", use_threads=False).aggregate([(column, "mean")])
    by_rank = sorted(means[f"{column}_mean"].to_pylist())
    middle: float = by_rank[(len(by_rank) - 1) // 2]
    bubble = ", perhaps in the pipeline bubble" if evidence.is_pipeline else ""
    cause = steps[column].to_numpy()
    wall = steps["wall_ns"].to_numpy()
    gone = (
        _Gone(cause, np.zeros(cause.size)) if removed is None else _gone(evidence, cause, removed)
    )
    if evidence.n_ranks > 1 and not evidence.are_groups_known:
        return _idle_by_itself(evidence, steps, column, gone, bubble)
    if evidence.n_ranks > 1 and not evidence.is_wait_known:
        if bubble:
            return Idle(middle, None, doubt=bubble)
        parts = _most_on_a_rank(steps["rank"].to_numpy(), idle=gone.idle, copies=gone.copies)
        return Idle(middle, sum(parts.values()), parts=parts)
    wait = pc.fill_null(steps["wait_ns"], 0).to_numpy()
    rank, (_, step) = steps["rank"].to_numpy(), np.unique(steps["step"], return_inverse=True)
    order = np.lexsort((rank, -wall, wait, step))
    waited_for = order[run_starts(step[order])]
    away = gone.idle + gone.copies
    if bubble and column == "idle_launch_ns" and 2 * launching_ns(evidence).sum() >= cause.sum():
        away = launching_ns(evidence)
        bubble = ""
    made = np.minimum(wait, _largest_elsewhere(evidence, away))
    # NCCL's kernels slow the compute beside them while they wait, too.
    hidden_wait = wait - pc.fill_null(steps["exposed_wait_ns"], 0).to_numpy()
    slowed = np.where(made > 0, evidence.slowed_ns(hidden_wait, is_most=True), 0.0)
    shortened = wall - away - made - slowed
    saving = None
    parts = {}
    setting = np.empty(0, np.int64)
    if not bubble:
        saving = evidence.saving_down_to(shortened)
        limit = evidence.rows_of_largest(shortened)
        parts = evidence.mean_parts(
            limit,
            idle=away - gone.copies,
            copies=gone.copies,
            waiting=made,
            slowed_by_waiting=slowed,
        )
        setting = np.unique(rank[limit])
    ranks, place = np.unique(rank[waited_for], return_inverse=True)
    shares = np.bincount(place, weights=cause[waited_for])
    judged = float(cause[waited_for].mean())
    named = int(ranks[shares.argmax()])
    in_turn = ranks[shares >= _LEAST_TURN * shares.sum()].tolist()
    where = ""  # so do the others
    if 2 * middle < judged:
        # It waits at most half as long as the others do: else all wait for each other.
        own = wait[rank == named]
        others = wait[rank != named]
        is_waited_for = not evidence.is_pipeline and (
            not others.size or 2 * own.mean() <= others.mean()
        )
        host = evidence.hosts.get(named) if evidence.n_hosts > 1 else None
        of_host = f" of host {printable(host)}" if host else ""
        awaited = (
            f", which the other ranks wait for{evidence.main_waiting_text}" if is_waited_for else ""
        )
        one_of = f" on ranks {listed(in_turn)}, on one rank in each step"
        where = one_of if len(in_turn) > 1 else f" on rank {named}{of_host}{awaited}"
    limit_rank = int(setting[0]) if setting.size == 1 else None
    return Idle(judged, saving, named, where, bubble, parts, limit_rank)


def _idle_by_itself(
    evidence: Evidence, steps: pa.Table, column: str, gone: _Gone, bubble: str
) -> Idle:
    """Return a cause of idle time of the rank that has most of it, where it is not known which ranks wait for which.

    Any communication may be waiting then. So the saving is that of `idle_of` with all communication
    taken for waiting::

        max over ranks(wall) - max over ranks(wall - gone - min(comm, largest of the gone on another
        rank) - slowed)
    """
    means = (
        steps.group_by("rank", use_threads=False)
        .aggregate([(column, "mean")])
        .sort_by("rank")
        .to_pylist()
    )
    most = max(means, key=lambda row: row[f"{column}_mean"])
    wall, comm, hidden = evidence.columns("wall_ns", "comm_ns", "overlap_compute_ns")
    cause = steps[column].to_numpy()
    if bubble and column == "idle_launch_ns" and 2 * launching_ns(evidence).sum() >= cause.sum():
        gone = _Gone(launching_ns(evidence), np.zeros(cause.size))
        bubble = ""
    where = f" on rank {most['rank']}"
    if bubble:
        return Idle(most[f"{column}_mean"], None, most["rank"], where, bubble)
    all_gone = gone.idle + gone.copies
    waiting = np.minimum(comm, _largest_elsewhere(evidence, all_gone))
    slowed = np.where(waiting > 0, evidence.slowed_ns(hidden, is_most=True), 0.0)
    left = wall - all_gone - waiting - slowed
    limit = evidence.rows_of_largest(left)
    parts = evidence.mean_parts(
        limit,
        idle=gone.idle,
        copies=gone.copies,
        possible_waiting=waiting,
        slowed_by_possible_waiting=slowed,
    )
    return Idle(
        most[f"{column}_mean"], evidence.saving_down_to(left), most["rank"], where, parts=parts
    )


def _largest_elsewhere(evidence: Evidence, cause: Float64) -> Float64:
    """Return for each row of `steps` the largest cause of idle time on another rank of the same step."""
    step = np.unique(evidence.steps["step"], return_inverse=True)[1]
    first = evidence.rows_of_largest(cause)
    others = cause.copy()
    others[first] = 0
    elsewhere = cause[first][step]
    elsewhere[first] = evidence.largest(others)
    return elsewhere


def _gone(evidence: Evidence, cause: Float64, removed: Removed) -> _Gone:
    """Return what goes with a cause: at least the cause, and no more idle time than there is."""
    all_made = np.sum([*evidence.columns(*removed.idle)], axis=0)
    (idle_ns,) = evidence.columns("idle_ns")
    copies = np.zeros(cause.size)
    if removed.copies is not None:
        (copies,) = evidence.columns(removed.copies)
    return _Gone(np.maximum(cause, np.minimum(all_made, idle_ns)), copies)


def _without_part(steps: pa.Table, column: str, part: str) -> pa.Table:
    """Return the steps with a column less a part of it, of which what is not known counts as 0."""
    rest = pc.subtract(steps[column], pc.fill_null(steps[part], 0))
    return steps.set_column(steps.column_names.index(column), column, rest)


def _most_on_a_rank(rank: Int64, **gone: Float64) -> dict[str, float]:
    """Return what goes of a step in the mean on the rank of which most goes; parts of 0 are left out."""
    _, place = np.unique(rank, return_inverse=True)
    n_steps = np.bincount(place)
    means = {name: np.bincount(place, weights=column) / n_steps for name, column in gone.items()}
    most = int(np.sum([*means.values()], axis=0).argmax())
    parts = {name: float(own[most]) for name, own in means.items() if own[most]}
    return parts or {next(iter(gone)): 0.0}


def launching_ns(evidence: Evidence) -> Float64:
    """Return idle time in each step for late launches of a host that launches without a pause: no bubble of a pipeline."""
    launch, pause = evidence.columns("idle_launch_ns", "idle_pause_ns")
    return launch - pause


def idle_above(
    evidence: Evidence, column: str, *, less: str | None = None, removed: Removed | None = None
) -> Idle | None:
    """Return a cause of idle time, as `idle_of` has it, that takes as much of the step as rules speak of; None of any other."""
    idle = idle_of(evidence, column, less=less, removed=removed)
    if idle is None or evidence.share_of_step(idle.judged_ns) < LEAST_IDLE_SHARE:
        return None
    return idle if column == "idle_launch_ns" else _limited_by_launching(evidence, idle)


def _limited_by_launching(evidence: Evidence, idle: Idle) -> Idle:
    """Return idle time with a bound that leaves each step as long as the fastest host launches it, without its input."""
    if idle.saving_ns is None:
        return idle
    (wall,) = evidence.columns("wall_ns")
    launch_ns = fastest_launch_times(evidence.steps, is_input_free=True)
    most_ns = float(np.maximum(evidence.largest(wall) - launch_ns, 0.0).mean())
    if idle.saving_ns <= most_ns:
        return idle
    parts = {**idle.parts, "left_for_launching": most_ns - idle.saving_ns}
    return replace(idle, saving_ns=most_ns, parts=parts)


def _figures(evidence: Evidence, column: str, idle: Idle) -> dict[str, Any]:
    means = evidence.means("idle_ns", *IDLE_CAUSES)
    judged: dict[str, Any] = {"rank": idle.rank, f"judged_{column}_per_step": idle.judged_ns}
    judged |= (
        {"saving_ns_per_step_by_part": {**idle.parts}, "limit_rank": idle.limit_rank}
        if idle.parts
        else {}
    )
    bubble = {"bubble_ns_per_step": evidence.bubble_ns_per_step} if evidence.is_pipeline else {}
    launching = {}
    if "left_for_launching" in idle.parts:
        launch_ns = fastest_launch_times(evidence.steps, is_input_free=True)
        launching = {"fastest_launch_ns_per_step": float(launch_ns.mean())}
    return means if evidence.n_ranks == 1 else means | judged | launching | bubble


def launch_bound(evidence: Evidence) -> Answer:
    """Fire when the rank that the others wait for idles for 2 % of step time because launches come late.

    Saving: that of `launch_saving`, where it is known who waits for whom, else as `idle_of` has it.
    Not judged where more idle time than that has no known cause. Where at least half of that
    idle time lies in pauses of 2 ms and more, the host was not launching but at something else,
    from a quarter on in part: if no range marks the data phase, perhaps waiting for data. What
    keeps it from being
    judged leaves the silence of `input_bound` and `sync_bound` open too: it is named with those
    that did not fire.
    """
    if evidence.steps.num_rows and (missing := _missing(evidence)):
        found = {"input-bound": _idle_input(evidence), "sync-bound": _idle_blocked(evidence)}
        silent = [name for name, idle in found.items() if idle is None]
        nor = (
            f", so {' and '.join(silent)} {'are' if len(silent) > 1 else 'is'} not either"
            if silent
            else ""
        )
        fix = "capture with nsys profile --trace=cuda,nvtx and export without --tables"
        fix = "see the problems about clocks" if missing == _CLOCK else fix
        return NotJudged(f"why the GPU idles is not known without {missing}{nor}", fix)
    idle = idle_above(evidence, "idle_launch_ns")
    if idle is None:
        return None
    is_bound_known = (
        evidence.n_ranks == 1 or evidence.is_wait_known or not evidence.are_groups_known
    )
    if idle.saving_ns is not None and is_bound_known:
        bound = saving_without_launching(evidence)
        idle = replace(
            idle, saving_ns=bound.saving_ns, parts=bound.parts, limit_rank=bound.limit_rank
        )
    title = "The GPU idles because the CPU launches kernels late"
    action = _LESS
    advice = _FASTER
    if _has_fused_optimizer(evidence):
        advice = _FASTER_WITH_FUSED
    steps = evidence.steps
    steps = steps if idle.rank is None else steps.filter(pc.equal(steps["rank"], idle.rank))
    pauses, launch = (pc.sum(steps[name]).as_py() for name in ("idle_pause_ns", "idle_launch_ns"))
    in_pauses = (pauses or 0) / launch
    if in_pauses >= _MOSTLY_PAUSES:
        title = "The GPU idles while the CPU pauses between launches"
        advice = _PAUSES
        action = "Find out what the CPU does while it launches nothing"
    elif in_pauses >= _SOME_PAUSES:
        where = "" if idle.rank is None or evidence.n_ranks == 1 else f" on rank {idle.rank}"
        advice += (
            f". {100 * in_pauses:.0f}% of this idle time{where} are pauses of 2 ms and more. "
            f"{_PAUSES}"
        )
    is_unmarked = (
        in_pauses >= _SOME_PAUSES and "data" not in evidence.phases["phase"].unique().to_pylist()
    )
    figures = _figures(evidence, "idle_launch_ns", idle) | evidence.means("idle_pause_ns")
    late = late_launches(evidence)
    if late is not None and idle.where:
        figures |= _late_figures(evidence, late)
        idle = idle if late.is_of_one_host else replace(idle, where=_where_late(late))
    return Finding(
        title + idle.on_rank, action, advice + _UNMARKED * is_unmarked, idle.saving_ns, figures
    )


def late_launches(evidence: Evidence) -> LateLaunches | None:
    """Return which devices idle for late launches, and whose hosts are slower; None where a host's launch time is not known.

    A device also idles for launches that come no later than those of the others: its queue was
    empty when the capture began, or emptied since, while the other hosts live on a lead. Then no
    host is to blame by itself.
    """
    slower = slower_hosts(evidence.steps)
    n_steps = len(evidence.steps["step"].unique())
    counts = ranks_without_launches(evidence.steps)
    if slower is None or not counts:
        return None
    return LateLaunches(
        counts, n_steps, [rank for rank in slower if rank in counts], evidence.is_launch_bound
    )


def _late_figures(evidence: Evidence, late: LateLaunches) -> dict[str, Any]:
    launch = evidence.steps.group_by("rank", use_threads=False).aggregate(
        [("host_launch_ns", "mean")]
    )
    means = zip(launch["rank"].to_pylist(), launch["host_launch_ns_mean"].to_pylist(), strict=True)
    return {
        "n_steps_idle_for_launches_by_rank": {
            str(rank): n_late for rank, n_late in late.n_late_steps.items()
        },
        "slower_ranks": [*late.slower],
        "host_launch_ns_per_step_by_rank": {str(rank): mean for rank, mean in means},
    }


def _where_late(late: LateLaunches) -> str:
    """Return on which ranks GPUs idle, and whose CPUs launch more slowly than the others."""
    where = f" on {_ranks_text([*late.n_late_steps])}"
    if late.slower:
        launch = "launches" if len(late.slower) == 1 else "launch"
        return (
            f"{where}, and {_ranks_text(late.slower)} {launch} a step more slowly than the other "
            "ranks on average"
        )
    if late.is_every_host_slow:
        return f"{where}, and every CPU needs longer to launch a step than its GPU needs to run it"
    cpus = "and its CPU needs" if len(late.n_late_steps) == 1 else "and their CPUs need"
    limit = f"less than {100 * MIN_SLOWER_SHARE:.0f}% of a step"
    return f"{where}, {cpus} {limit} longer for launching than the others on average"


def _ranks_text(ranks: Sequence[int]) -> str:
    return f"rank{'s'[: len(ranks) > 1]} {listed(map(str, ranks), _SHOWN_RANKS)}"


def _has_fused_optimizer(evidence: Evidence) -> bool:
    """Tell whether kernels that update weights are fused ones, by their names: ``FusedAdamMathFunctor``."""
    names = evidence.kernels["name"].unique().to_pylist()
    return any("fused" in name.lower() and is_optimizer(name) for name in names)


def launched_late_ns(evidence: Evidence, steps_of: Mapping[int, Int64]) -> float:
    """Return how much longer ranks idle because launches come late than the others, over some steps of each."""
    late = 0.0
    for rank, steps in steps_of.items():
        rows = evidence.steps.filter(pc.field("step").isin(pa.array(steps)))
        late += steps.size * max(
            excess(pc.fill_null(rows["idle_launch_ns"], 0), pc.equal(rows["rank"], rank)), 0.0
        )
    return late


def excess(spent: pa.ChunkedArray, is_own: pa.ChunkedArray) -> float:
    """Return how much more a rank spent than the others in the mean; 0 where either has no rows."""
    own, others = (pc.mean(spent.filter(rows)).as_py() for rows in (is_own, pc.invert(is_own)))
    return 0.0 if own is None or others is None else own - others


def _missing(evidence: Evidence) -> str | None:
    """Return what was not recorded; None where causes of idle time are known for all but little of it."""
    unknown = idle_of(evidence, "idle_unknown_ns")
    if unknown is None:
        return "copies and memsets" if evidence.steps["idle_ns"].null_count else _CLOCK
    if evidence.share_of_step(unknown.judged_ns) >= LEAST_IDLE_SHARE:
        share = f"{100 * evidence.share_of_step(unknown.judged_ns):.0f}% of step time"
        return f"the launches of kernels and copies that end {share} of it"
    return "the names of API calls" if idle_of(evidence, "idle_launch_ns") is None else None


def input_bound(evidence: Evidence) -> Answer:
    """Fire when the rank that the others wait for idles for 2 % of step time while its host gets the next batch.

    That is in the data phase, and between two steps, where the loop is in no range and in no CUDA
    call: probably its data loader. Saving: as `idle_of` has it, of all that input can have made:
    loading drains the queue, so that launches behind it come later too, and copies that block the
    host are a part of the advice. Without launches `launch_bound` says that this cannot be judged.
    """
    idle = _idle_input(evidence)
    if idle is None:
        return None
    between = evidence.mean("idle_between_steps_ns")
    n_blocking = evidence.steps["n_blocking_copies"]
    may_wait = bool(n_blocking.null_count or pc.sum(n_blocking).as_py())
    loader = _LOADER + _WITHOUT_WAITING * may_wait
    title = "The GPU idles while the CPU gets the next batch"
    action = _FEED
    advice = loader
    if 2 * (between or 0.0) > (evidence.mean("idle_input_ns") or 0.0):
        title = "The GPU idles between steps, probably while the CPU waits for the data loader"
        action = "Check the data loader first: num_workers, pin_memory"
        advice = loader + _TO_BE_SURE
    figures = _figures(evidence, "idle_input_ns", idle) | evidence.means("idle_between_steps_ns")
    return Finding(title + idle.on_rank, action, advice, idle.saving_ns, figures)


def sync_bound(evidence: Evidence) -> Answer:
    """Fire when the rank that the others wait for idles for 2 % of step time during or after synchronising and memory calls.

    Those of blocking copies from the host are left to `pageable_copy`. Saving: as `idle_of` has it,
    of all that these calls can have made: without them input would come earlier too. Without
    launches `launch_bound` says that this cannot be judged.
    """
    idle = _idle_blocked(evidence)
    if idle is None:
        return None
    calls = dict(list(evidence.blocked_ns_by_call.items())[:_SHOWN_CALLS])
    name = next(iter(calls), "a synchronizing call")[:LONGEST_CALL]
    title = f"The GPU idles because the CPU is blocked in {name}{idle.on_rank}"
    figures = _figures(evidence, "idle_blocked_ns", idle) | {"idle_ns_per_step_by_call": calls}
    advice = _NO_SYNCHRONISING
    allocating = _allocating_call(evidence)
    if allocating is not None:
        advice += f". {_ALLOCATE_LESS.format(call=allocating)}"
    return Finding(title, f"Keep {name} out of the step", advice, idle.saving_ns, figures)


def _allocating_call(evidence: Evidence) -> str | None:
    """Return the call of the device's allocator that the host was blocked in longest; None where it was in none."""
    names = [
        name
        for name in evidence.blocked_ns_by_call
        if name.startswith(_ALLOCATING) and "Host" not in name
    ]
    return names[0][:LONGEST_CALL] if names else None


def _idle_input(evidence: Evidence) -> Idle | None:
    removed = Removed(
        ("idle_made_by_input_ns", "idle_made_by_copies_ns"), copies="exposed_blocking_copy_ns"
    )
    return idle_above(evidence, "idle_input_ns", removed=removed)


def _idle_blocked(evidence: Evidence) -> Idle | None:
    removed = Removed(("idle_made_by_calls_ns",))
    return idle_above(
        evidence, "idle_blocked_ns", less="idle_blocked_by_copies_ns", removed=removed
    )


def pageable_copy(evidence: Evidence) -> Answer:
    """Fire when blocking copies from the host can cost a thousandth of step time on the rank that the others wait for.

    They cost idle time while the host is in their calls and after those had drained the queue, and
    the time of the copies beside neither compute nor communication. Saving: all of that, as
    `idle_of` has it.
    """
    if not (evidence.mean("n_blocking_copies") or 0.0):
        return None
    removed = Removed(("idle_made_by_copies_ns",), copies="exposed_blocking_copy_ns")
    idle = idle_of(evidence, "idle_made_by_copies_ns", removed=removed)
    if idle is None:
        return NotJudged(
            "the cause of idle time next to copies is unknown",
            "see the notes about clocks and calls",
        )
    exposed = evidence.mean("exposed_blocking_copy_ns") or 0.0
    if evidence.share_of_step(exposed + idle.judged_ns) < _LEAST_COPY_SHARE:
        return None
    is_pageable = bool(evidence.mean("n_pageable_copies"))
    title = "The CPU waits for copies to the GPU"
    if is_pageable:
        title = "Copies to the GPU from pageable memory block the CPU"
    action = (
        "Copy from pinned memory, with non_blocking=True"
        if is_pageable
        else "Copy with non_blocking=True"
    )
    figures = evidence.means(
        "n_blocking_copies",
        "n_pageable_copies",
        "blocking_copy_bytes",
        "exposed_blocking_copy_ns",
        "idle_made_by_copies_ns",
    )
    parts = {"saving_ns_per_step_by_part": {**idle.parts}} if idle.parts else {}
    phases = {"n_blocking_copies_per_step_by_phase": _copies_by_phase(evidence)}
    return Finding(title + idle.on_rank, action, _PIN, idle.saving_ns, figures | parts | phases)


def _copies_by_phase(evidence: Evidence) -> dict[str, float]:
    """Return how many blocking copies each phase launches per step and rank, those that launch none left out."""
    sums = evidence.phases.group_by("phase", use_threads=False).aggregate(
        [("n_blocking_copies", "sum")]
    )
    pairs = zip(sums["phase"].to_pylist(), sums["n_blocking_copies_sum"].to_pylist(), strict=True)
    return {phase: number / evidence.steps.num_rows for phase, number in sorted(pairs) if number}


def profiler_overhead(evidence: Evidence) -> Answer:
    """Fire when the first step takes 1.5 times the median, or the profiler's own work overlaps 1 % of the figures' steps.

    The first step must be the longest too. Saving: as `_saving_without_overhead` has it; none when
    only the first step is distorted, or no device idles for that work.
    """
    overhead = evidence.mean("overhead_ns") or 0.0
    ratio, is_longest, is_explained = _first_step(evidence)
    is_skipped = bool(evidence.skipped_steps)
    by_rank = _long_first_steps(evidence)
    is_busy = evidence.share_of_step(overhead) >= _LEAST_OVERHEAD
    if not (is_busy or (ratio is not None and ratio >= _DISTORTED and is_longest)):
        return None
    left_out = ", and nsyspipe does not use the first step" if is_skipped else ""
    saving, parts = _saving_without_overhead(evidence) if is_busy else (None, {})
    title = "The profiler was busy during the steps"
    action = "Read with care: the profiler distorts the capture"
    if is_busy and not saving:
        title += ", but no GPU idled because of the profiler"
    if not is_busy and is_explained:
        title = f"The start of the capture distorts the first step{left_out}"
        action = "Change nothing: only the unused first step is distorted" if is_skipped else action
    elif not is_busy:
        title = (
            "The first step takes "
            f"{_times_the_others(by_rank, ratio or 0.0, evidence.n_ranks)}{left_out}"
        )
        action = "Read with care: the first step differs from the others"
    advice = "Change nothing, because no metric uses the first step"
    if is_busy or not is_skipped:
        advice = _trace_less(evidence)
    of_first: dict[str, Any] = {
        "first_step_to_median_ratio": ratio,
        "first_step_is_skipped": is_skipped,
    }
    if evidence.n_ranks > 1 and by_rank:
        of_first["first_step_to_median_ratio_by_rank"] = {
            str(rank): own for rank, own in by_rank.items()
        }
    figures = evidence.means("overhead_ns") | of_first
    figures |= {"saving_ns_per_step_by_part": parts} if parts else {}
    return Finding(title, action, advice, saving, figures)


def _saving_without_overhead(evidence: Evidence) -> tuple[float | None, dict[str, float]]:
    """Return what steps may be shorter by without the profiler's own work, and its parts; None where no device idled for it.

    On each rank that is the work, as far as the device idles for its host, and waiting for other
    ranks that do the same::

        max over ranks(wall) - max over ranks(wall - work - min(wait, work of all other ranks))
    """
    wall, work, idle, dependency = evidence.columns(
        "wall_ns", "overhead_ns", "idle_ns", "idle_dependency_ns"
    )
    is_known = pc.is_valid(evidence.steps["idle_ns"]).to_numpy()
    cost = np.where(is_known, np.minimum(work, idle - dependency), work)
    is_wait_known = evidence.is_wait_known and evidence.are_groups_known
    (wait,) = evidence.columns("wait_ns" if is_wait_known else "comm_ns")
    waiting = np.minimum(wait, evidence.sum_of_other_ranks(cost))
    left = wall - cost - waiting
    saving = evidence.saving_down_to(left)
    if saving <= 0:
        return None, {}
    return saving, evidence.mean_parts(
        evidence.rows_of_largest(left), overhead=cost, waiting=waiting
    )


def _trace_less(evidence: Evidence) -> str:
    """Return what the profiler can leave out, of what it recorded or may have recorded, and how to capture less."""
    recording = evidence.recording
    less = []
    if not recording.events or set(recording.events) - _NEEDED_EVENTS:
        less.append("--trace=cuda,nvtx")
    if recording.is_cpu_sampled is not False:
        less.append("--sample=none")
    if recording.has_backtraces is not False:
        less.append("no --cudabacktrace")
    if not less:
        return f"{_TRACE_SHORTER[:1].upper()}{_TRACE_SHORTER[1:]}"
    return f"Trace less ({', '.join(less)}), {_TRACE_SHORTER}"


def _first_step(evidence: Evidence) -> tuple[float | None, bool, bool]:
    """Return the first step over the median of the figures' steps, whether it is longer than each, and whether the capture's start is half of that."""
    chosen = evidence.steps["step"].unique().to_pylist()
    first = _number_of_first(evidence)
    rows = evidence.all_steps
    longest = rows.group_by("step", use_threads=False).aggregate([("wall_ns", "max")])
    walls = dict(zip(longest["step"].to_pylist(), longest["wall_ns_max"].to_pylist(), strict=True))
    of_first = rows.filter(pc.equal(rows["step"], first))
    lost = pc.add(*(pc.fill_null(of_first[name], 0) for name in ("wait_ns", "overhead_ns")))
    others = [walls[step] for step in chosen if step != first]
    median = float(np.median(others or [0]))
    if not median:
        return None, False, False
    is_explained = 2 * (pc.max(lost).as_py() or 0) >= walls[first] - median
    return walls[first] / median, walls[first] > max(others), is_explained


def _number_of_first(evidence: Evidence) -> int:
    chosen: list[int] = evidence.steps["step"].unique().to_pylist()
    return (*evidence.skipped_steps, *chosen)[0]


def _long_first_steps(evidence: Evidence) -> dict[int, float]:
    """Return by rank the first step over the median of the rank's others, where that is 1.5 or more."""
    first = _number_of_first(evidence)
    rows = evidence.all_steps
    chosen = pc.is_in(rows["step"], value_set=evidence.steps["step"].unique())
    ranks, steps, walls = (rows[name].to_numpy() for name in ("rank", "step", "wall_ns"))
    is_first = steps == first
    is_other = chosen.to_numpy() & (steps != first)
    ratios: dict[int, float] = {}
    for rank in np.unique(ranks).tolist():
        own = walls[is_first & (ranks == rank)]
        others = walls[is_other & (ranks == rank)]
        if own.size and others.size and own.max() >= _DISTORTED * np.median(others) > 0:
            ratios[rank] = float(own.max() / np.median(others))
    return ratios


def _times_the_others(by_rank: Mapping[int, float], ratio: float, n_ranks: int) -> str:
    """Return in words how much longer the first step is, and on which ranks, where it is not on all or not as much."""
    if not by_rank:
        return f"{ratio:.2g} times the others"
    low = f"{min(by_rank.values()):.2g}"
    high = f"{max(by_rank.values()):.2g}"
    times = high if low == high else f"{low} to {high}"
    where = ""
    most = ""
    if len(by_rank) < n_ranks:
        where = f" on rank{'s' * (len(by_rank) > 1)} {few([*by_rank], _SHOWN_RANKS)}"
    if low != high:
        most = f", most on rank {max(by_rank, key=by_rank.__getitem__)}"
    return f"{times} times the others{where}{most}"


RULES: Rules = {
    launch_bound: ("idle_ns",),
    input_bound: (),
    sync_bound: (),
    pageable_copy: ("exposed_blocking_copy_ns",),
    profiler_overhead: ("overhead_ns",),
}
