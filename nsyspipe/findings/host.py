"""The host of a rank: the GPU idles while the host launches, loads data, copies or waits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow.compute as pc
from msgspec import Struct
from msgspec.structs import replace

from nsyspipe.analysis.launching import (
    MIN_SLOWER_SHARE,
    ranks_with_late_launches,
    slower_hosts,
)
from nsyspipe.findings.idle import (
    MIN_IDLE_SHARE_OF_STEP,
    Idle,
    Removed,
    idle_figures,
    measure_idle,
    measure_large_idle,
)
from nsyspipe.findings.launch_saving import saving_without_launching
from nsyspipe.findings.memory import IDLE_COLUMN, alloc_in_step
from nsyspipe.findings.model import (
    Answer,
    Evidence,
    Finding,
    NotJudged,
    Rules,
    Wording,
    aggregate_by,
)
from nsyspipe.model.call_names import MANAGING_MEMORY
from nsyspipe.model.names import LONGEST_CALL, is_optimizer, listed
from nsyspipe.model.problems import SYNCHRONIZE_ONCE

_MAX_SHOWN_CALLS = 5
_MAX_SHOWN_RANKS = 4
# Shares of idle time for late launches that lie in pauses of the host.
_MIN_SHARE_OF_MOSTLY_PAUSES = 0.5
_MIN_SHARE_OF_SOME_PAUSES = 0.25
_MIN_COPY_SHARE_OF_STEP = 0.001
# How calls begin that PyTorch's allocator makes.
_ALLOCATOR_CALLS = ("cudaMalloc", "cudaFree", "cuMemAlloc", "cuMemFree")
_NOT_KNOWN = "why the GPU idles is not known"
_RECORD_CALLS = "capture with nsys profile --trace=cuda,nvtx and export without --tables"
_CLOCKS_UNKNOWN = NotJudged(
    f"{_NOT_KNOWN}, because the clocks of CPU and GPU cannot be compared", SYNCHRONIZE_ONCE
)
_COPIES_UNKNOWN = NotJudged(
    f"{_NOT_KNOWN}, because copies and memsets were not recorded", _RECORD_CALLS
)
_CALLS_UNKNOWN = NotJudged(
    f"{_NOT_KNOWN}, because the names of API calls were not recorded", _RECORD_CALLS
)
_LAUNCH_FASTER = (
    'Launch fewer kernels, or launch faster: torch.compile(mode="reduce-overhead") or CUDA graphs, '
    "fused optimizers (fused=True), larger batches"
)
_LAUNCH_FASTER_WITH_FUSED_OPTIMIZER = (
    'Launch fewer kernels, or launch faster: torch.compile(mode="reduce-overhead") or CUDA graphs, '
    "larger batches"
)
_FIND_OUT_ABOUT_PAUSES = (
    "Find out what the CPU does in the pauses: loading, logging, locks, garbage collection, "
    "sleeping. Launching faster does not shorten a pause"
)
_MARK_DATA = "Wrap data loading in an NVTX range named 'data', so that nsyspipe can recognize it"
_SET_DATA_LOADER = "Set DataLoader(num_workers=..., pin_memory=True, prefetch_factor=...)"
_COPY_ASYNCHRONOUSLY = ", and use .to(device, non_blocking=True)"
_MARK_DATA_TO_BE_SURE = ". Wrap data loading in an NVTX range named 'data' to be sure"
_AVOID_SYNCHRONIZING = (
    "Avoid .item(), .cpu(), print of tensors and torch.cuda.synchronize() in the step"
)
_ALLOCATE_LESS = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True can avoid {call}"
_PIN = "Use DataLoader(pin_memory=True) or tensor.pin_memory(), and .to(device, non_blocking=True)"
_REMOVED_WITH_INPUT = Removed(
    ("idle_made_by_input_ns", "idle_made_by_copies_ns"), copies_column="exposed_blocking_copy_ns"
)
_REMOVED_WITH_CALLS = Removed(("idle_made_by_calls_ns",))
_REMOVED_WITH_COPIES = Removed(
    ("idle_made_by_copies_ns",), copies_column="exposed_blocking_copy_ns"
)


class LateLaunches(Struct, frozen=True):
    """Which devices idle because launches come late, and whose hosts are slower than the others."""

    # In how many steps the device of each rank idles for launches. A rank is left out if that is
    # less than a quarter of the steps.
    n_late_steps: Mapping[int, int]
    # Those of these ranks whose hosts launch more slowly than the others on average.
    slower: Sequence[int]
    # Whether even the fastest host takes longer to launch a step than devices work.
    is_every_host_slow: bool

    @property
    def is_of_one_host(self) -> bool:
        """Whether only one device idles for launches, and its host is slower than the others."""
        late_ranks = [*self.n_late_steps]
        return len(late_ranks) == 1 and [*self.slower] == late_ranks


# launch-bound


def launch_bound(evidence: Evidence) -> Answer:
    """Fire if the rank that the others wait for idles for 2 % of step time for late launches.

    Saving: that of `launch_saving` if it is known who waits for whom, otherwise that of
    `idle.measure_idle`. Not judged if 2 % of step time are idle time without a known cause.

    In pauses of 2 ms and more, the host does something else than launching. The title says so if at
    least half of the idle time lies in pauses, and the advice from a quarter on. If no range marks
    the data phase, the host may wait for data in its pauses.

    If this rule cannot be judged, neither can `input_bound` and `sync_bound`, unless they fire.
    """
    not_judged = _why_causes_are_unknown(evidence)
    if not_judged is not None:
        return not_judged
    idle = _idle_for_launches(evidence)
    if idle is None:
        return None
    figures = idle_figures(evidence, "idle_launch_ns", idle) | evidence.means("idle_pause_ns")
    late = late_launches(evidence)
    if late is not None and idle.where:
        figures |= _late_figures(evidence, late)
        if not late.is_of_one_host:
            # The title names all ranks that idle for launches, and not only the judged one.
            idle = replace(idle, where=_where_late(late))
    words = _word_late_launches(evidence, idle.rank)
    title = words.title + idle.rank_clause
    return Finding(title, words.action, words.advice, idle.saving_ns, figures)


def _idle_for_launches(evidence: Evidence) -> Idle | None:
    """Return the idle time for late launches, if it is large."""
    idle = measure_large_idle(evidence, "idle_launch_ns")
    if idle is None or idle.bound is None or not _has_bound_without_launching(evidence):
        return idle
    return replace(idle, bound=saving_without_launching(evidence))


def _why_causes_are_unknown(evidence: Evidence) -> NotJudged | None:
    """Return why it is not known why the GPU idles; None if nearly all causes are known."""
    if not evidence.steps.num_rows:
        return None
    unknown = measure_idle(evidence, "idle_unknown_ns")
    if unknown is None:
        # Idle time is only known if copies were recorded. Its causes also need one clock.
        is_idle_known = not evidence.steps["idle_ns"].null_count
        return _CLOCKS_UNKNOWN if is_idle_known else _COPIES_UNKNOWN
    unknown_share = evidence.share_of_step(unknown.judged_ns)
    if unknown_share >= MIN_IDLE_SHARE_OF_STEP:
        # The operation that ends an idle time shows by its launch why the device idled.
        percent = f"{100 * unknown_share:.0f}%"
        return NotJudged(
            f"{_NOT_KNOWN}, because {percent} of step time is idle time before kernels and copies "
            "without a recorded launch",
            _RECORD_CALLS,
        )
    is_launch_known = measure_idle(evidence, "idle_launch_ns") is not None
    return None if is_launch_known else _CALLS_UNKNOWN


def _has_bound_without_launching(evidence: Evidence) -> bool:
    """Tell whether `saving_without_launching` can say how long ranks wait for each other.

    If process groups are not known, it can: then all communication counts as waiting.
    """
    has_one_rank = evidence.n_ranks == 1
    return has_one_rank or evidence.is_wait_known or not evidence.are_groups_known


def _word_late_launches(evidence: Evidence, rank: int | None) -> Wording:
    """Say what to change, by how much of the idle time lies in pauses of the host."""
    pause_share = _share_in_pauses(evidence, rank)
    # Without a data phase, loading of data looks like any other pause.
    has_data_phase = "data" in evidence.phases["phase"].unique().to_pylist()
    mark_data = "" if has_data_phase else f". {_MARK_DATA}"
    if pause_share >= _MIN_SHARE_OF_MOSTLY_PAUSES:
        return Wording(
            title="The GPU idles while the CPU pauses between launches",
            action="Find out what the CPU does while it launches nothing",
            advice=f"{_FIND_OUT_ABOUT_PAUSES}{mark_data}",
        )
    is_fused = _has_fused_optimizer(evidence)
    launch_faster = _LAUNCH_FASTER_WITH_FUSED_OPTIMIZER if is_fused else _LAUNCH_FASTER
    advice_about_pauses = ""
    if pause_share >= _MIN_SHARE_OF_SOME_PAUSES:
        where = "" if rank is None or evidence.n_ranks == 1 else f" on rank {rank}"
        share = f"{100 * pause_share:.0f}% of this idle time{where}"
        pauses = f"{share} are pauses of 2 ms and more"
        advice_about_pauses = f". {pauses}. {_FIND_OUT_ABOUT_PAUSES}{mark_data}"
    return Wording(
        title="The GPU idles because the CPU launches kernels late",
        action="Launch fewer kernels (torch.compile, CUDA graphs)",
        advice=f"{launch_faster}{advice_about_pauses}",
    )


def _share_in_pauses(evidence: Evidence, rank: int | None) -> float:
    """Return the share of a rank's idle time for late launches that lies in pauses of its host.

    If the rank is None, all ranks count together. Some idle time must be for late launches.
    """
    steps = evidence.steps.select(["rank", "idle_pause_ns", "idle_launch_ns"])
    if rank is not None:
        steps = steps.filter(pc.equal(steps["rank"], rank))
    pause_ns = pc.sum(steps["idle_pause_ns"]).as_py() or 0
    launch_ns: float = pc.sum(steps["idle_launch_ns"]).as_py()
    return pause_ns / launch_ns


def _has_fused_optimizer(evidence: Evidence) -> bool:
    """Tell whether kernels that update weights are fused, as in ``FusedAdamMathFunctor``."""
    names = evidence.kernels["name"].unique().to_pylist()
    return any("fused" in name.lower() and is_optimizer(name) for name in names)


def late_launches(evidence: Evidence) -> LateLaunches | None:
    """Return which devices idle for late launches, and whose hosts are slower.

    None if no device idles for late launches, or if the launch time of a host is not known.

    A device may idle for launches although its host is no slower than the others. The other hosts
    have launched ahead of their devices, and this host has not. Then no host is to blame by itself.
    """
    slower = slower_hosts(evidence.steps)
    n_late_steps = ranks_with_late_launches(evidence.steps)
    if slower is None or not n_late_steps:
        return None
    slower_and_late = [rank for rank in slower if rank in n_late_steps]
    return LateLaunches(n_late_steps, slower_and_late, evidence.is_launch_bound)


def _late_figures(evidence: Evidence, late: LateLaunches) -> dict[str, Any]:
    n_late_steps = {str(rank): n_steps for rank, n_steps in late.n_late_steps.items()}
    return {
        "n_steps_idle_for_launches_by_rank": n_late_steps,
        "slower_ranks": [*late.slower],
        "host_launch_ns_per_step_by_rank": host_launch_ns_by_rank(evidence),
    }


def host_launch_ns_by_rank(evidence: Evidence) -> dict[str, float]:
    """Return how long the host of each rank takes to launch a step on average."""
    launch_ns = aggregate_by(evidence.steps, "rank", "host_launch_ns", "mean")
    return {str(rank): mean_ns for rank, mean_ns in launch_ns.items()}


def _where_late(late: LateLaunches) -> str:
    """Say on which ranks GPUs idle, and whose CPUs launch more slowly than the others."""
    where = f" on {_ranks_text([*late.n_late_steps])}"
    if late.slower:
        verb = "launches" if len(late.slower) == 1 else "launch"
        launch = f"{_ranks_text(late.slower)} {verb} a step"
        return f"{where}, and {launch} more slowly than the other ranks on average"
    if late.is_every_host_slow:
        return f"{where}, and every CPU needs longer to launch a step than its GPU needs to run it"
    cpus = "and its CPU needs" if len(late.n_late_steps) == 1 else "and their CPUs need"
    limit = f"less than {100 * MIN_SLOWER_SHARE:.0f}% of a step"
    return f"{where}, {cpus} {limit} longer for launching than the others on average"


def _ranks_text(ranks: Sequence[int]) -> str:
    noun = "ranks" if len(ranks) > 1 else "rank"
    return f"{noun} {listed(map(str, ranks), _MAX_SHOWN_RANKS)}"


# input-bound and sync-bound


def input_bound(evidence: Evidence) -> Answer:
    """Fire if the rank that the others wait for idles for 2 % of step time for the next batch.

    Its host gets the batch in the data phase, or probably between two steps, while the loop is in
    no range and in no CUDA call.

    Saving: that of `idle.measure_idle` without all idle time that input can have made. Loading
    drains the queue, so later launches come late too, and the advice also covers copies that block
    the host.
    """
    idle = _idle_for_input(evidence)
    if idle is None:
        return _why_causes_are_unknown(evidence)
    n_blocking_copies = evidence.steps["n_blocking_copies"]
    advice = _SET_DATA_LOADER
    if n_blocking_copies.null_count or pc.sum(n_blocking_copies).as_py():
        advice += _COPY_ASYNCHRONOUSLY
    title = "The GPU idles while the CPU gets the next batch"
    action = "Feed the GPU faster: num_workers, pin_memory, non_blocking"
    between_steps_ns = evidence.mean("idle_between_steps_ns") or 0.0
    input_ns = evidence.mean("idle_input_ns") or 0.0
    is_mostly_between_steps = 2 * between_steps_ns > input_ns
    if is_mostly_between_steps:
        title = "The GPU idles between steps, probably while the CPU waits for the data loader"
        action = "Find out whether the data loader is slow: num_workers, pin_memory"
        advice += _MARK_DATA_TO_BE_SURE
    figures = idle_figures(evidence, "idle_input_ns", idle)
    figures |= evidence.means("idle_between_steps_ns")
    return Finding(title + idle.rank_clause, action, advice, idle.saving_ns, figures)


def _idle_for_input(evidence: Evidence) -> Idle | None:
    return measure_large_idle(evidence, "idle_input_ns", removed=_REMOVED_WITH_INPUT)


def sync_bound(evidence: Evidence) -> Answer:
    """Fire if the rank that the others wait for idles for 2 % of step time for blocking calls.

    These are calls that synchronize or manage memory. Blocking copies from the host belong to
    `pageable_copy`, and calls that manage GPU memory belong to `alloc_in_step` if that rule fires.

    Saving: that of `idle.measure_idle` without all idle time that these calls can have made. Idle
    time for input is among it, because input would come earlier without the calls.
    """
    has_alloc_finding = _has_alloc_finding(evidence)
    idle = _idle_in_calls(evidence, without_allocs=has_alloc_finding)
    if idle is None:
        return _why_causes_are_unknown(evidence)
    excluded_calls = MANAGING_MEMORY if has_alloc_finding else ()
    # The calls that block the host longest come first.
    calls = [name for name in evidence.blocked_ns_by_call if name not in excluded_calls]
    longest_calls = calls[:_MAX_SHOWN_CALLS]
    blocked_ns = {call: evidence.blocked_ns_by_call[call] for call in longest_calls}
    # Long names are cut off.
    name = calls[0][:LONGEST_CALL] if calls else "a synchronizing call"
    title = f"The GPU idles because the CPU is blocked in {name}{idle.rank_clause}"
    advice = _AVOID_SYNCHRONIZING
    allocator_call = _longest_allocator_call(calls)
    if allocator_call is not None:
        advice += f". {_ALLOCATE_LESS.format(call=allocator_call)}"
    figures = idle_figures(evidence, "idle_blocked_ns", idle)
    figures["idle_ns_per_step_by_call"] = blocked_ns
    return Finding(title, f"Keep {name} out of the step", advice, idle.saving_ns, figures)


def _has_alloc_finding(evidence: Evidence) -> bool:
    """Tell whether calls that manage GPU memory have a finding of their own."""
    return isinstance(alloc_in_step(evidence), Finding)


def _idle_in_calls(evidence: Evidence, *, without_allocs: bool) -> Idle | None:
    excluded = ["idle_blocked_by_copies_ns"]
    if without_allocs:
        excluded.append(IDLE_COLUMN)
    return measure_large_idle(
        evidence, "idle_blocked_ns", excluded=excluded, removed=_REMOVED_WITH_CALLS
    )


def _longest_allocator_call(calls: Sequence[str]) -> str | None:
    """Return the first call that allocates or frees GPU memory; None if there is none.

    Calls are in order of time, the longest first. Calls with "Host" are for memory of the host.
    """
    for name in calls:
        if name.startswith(_ALLOCATOR_CALLS) and "Host" not in name:
            return name[:LONGEST_CALL]
    return None


# pageable-copy


def pageable_copy(evidence: Evidence) -> Answer:
    """Fire if blocking copies from the host can cost a thousandth of step time.

    The rank that the others wait for decides. A copy costs its own time without concurrent compute
    or communication. It also costs idle time while the host is in its call, and after the call has
    drained the queue. Saving: that of `idle.measure_idle` without all of these costs.
    """
    if not evidence.mean("n_blocking_copies"):
        return None
    idle = measure_idle(evidence, "idle_made_by_copies_ns", removed=_REMOVED_WITH_COPIES)
    if idle is None:
        reason = "the cause of idle time next to copies is unknown"
        return NotJudged(reason, "see the notes about clocks and calls")
    exposed_ns = evidence.mean("exposed_blocking_copy_ns") or 0.0
    if evidence.share_of_step(exposed_ns + idle.judged_ns) < _MIN_COPY_SHARE_OF_STEP:
        return None
    title = "The CPU waits for copies to the GPU"
    action = "Copy with non_blocking=True"
    if evidence.mean("n_pageable_copies"):
        title = "Copies to the GPU from pageable memory block the CPU"
        action = "Copy from pinned memory, with non_blocking=True"
    figures = _copy_figures(evidence, idle)
    return Finding(title + idle.rank_clause, action, _PIN, idle.saving_ns, figures)


def _copy_figures(evidence: Evidence, idle: Idle) -> dict[str, Any]:
    """Return the figures about blocking copies. `idle` is the idle time that they make."""
    figures: dict[str, Any] = evidence.means(
        "n_blocking_copies",
        "n_pageable_copies",
        "blocking_copy_bytes",
        "exposed_blocking_copy_ns",
        "idle_made_by_copies_ns",
    )
    if idle.bound is not None and idle.bound.parts:
        figures["saving_ns_per_step_by_part"] = {**idle.bound.parts}
    figures["n_blocking_copies_per_step_by_phase"] = _copies_by_phase(evidence)
    return figures


def _copies_by_phase(evidence: Evidence) -> dict[str, float]:
    """Return the number of blocking copies that each phase launches per step and rank.

    Phases are in order of names. Phases that launch none are left out.
    """
    n_copies = aggregate_by(evidence.phases, "phase", "n_blocking_copies", "sum")
    # There is a row for each step and rank.
    n_steps_of_ranks = evidence.steps.num_rows
    by_phase = sorted(n_copies.items())
    return {phase: number / n_steps_of_ranks for phase, number in by_phase if number}


RULES: Rules = {
    launch_bound: ("idle_ns",),
    input_bound: (),
    sync_bound: (),
    pageable_copy: ("exposed_blocking_copy_ns",),
}
