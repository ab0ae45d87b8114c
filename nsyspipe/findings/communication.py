"""All kinds of communication: what no compute hides, and how it slows the compute that hides it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow.compute as pc

from nsyspipe.analysis.kernels import ENOUGH_COMPARED, LESS_HIDDEN, MIN_OVERLAP_SHARE_OF_STEP
from nsyspipe.analysis.traffic import DATA, NEEDED_AT_ONCE, OTHER
from nsyspipe.findings.model import (
    BOUND_OVER_MEASURED,
    COLUMNS_OF_COMM,
    MAX_BELIEVED_SLOWDOWN,
    Answer,
    Bound,
    Evidence,
    Finding,
    NotJudged,
    Rules,
    aggregate_by,
)
from nsyspipe.model.names import counted, verb_for
from nsyspipe.model.table import Float64, Int64

_MIN_EXPOSED_SHARE_OF_STEP = 0.05
# If gradients have this share of exposed communication, the advice is to shorten gradients.
_MIN_SHARE_OF_GRADIENTS = 0.5
# A phase is named if it launched this share of exposed communication. Communication runs on the
# compute stream if this share of it does.
_MIN_SHARE_OF_MOST = 2 / 3
_MIN_SLOWDOWN = 0.02
_MIN_SLOWED_SHARE_OF_STEP = 0.0025
# Communication is mostly waiting from this share on.
_MIN_SHARE_OF_WAITING = 0.5
# Bounds that differ by less are the same.
_MIN_DIFFERENCE_NS = 1
_MAX_SHOWN_KERNELS = 5
_NO_PHASE = "no phase"
_LESS_WAITING = (
    "capture a second run with less wait time, and compare the kernels of both runs: nsyspipe diff"
)


class _Advice(NamedTuple):
    """What to change, in a few words and in a sentence."""

    action: str
    advice: str


_ABOUT_GRADIENTS = _Advice(
    "Send less, or overlap communication with backward",
    (
        "Send less ({hook}no_sync()), use a faster interconnect, or overlap communication "
        "with the backward pass. "
        "nsyspipe whatif predicts the effect of each change"
    ),
)
_ABOUT_OTHER_THAN_GRADIENTS = _Advice(
    "Send less communication that is not gradients",
    (
        "Most of the exposed communication is not gradients, so settings of gradients cannot "
        "help. Send less of the "
        "rest (SyncBatchNorm gathers statistics in each layer), or use a faster interconnect"
    ),
)
_ABOUT_ALL = _Advice(
    "Send less, or overlap communication with compute",
    "Send less, use a faster interconnect, or overlap communication with compute",
)
_ABOUT_COMPUTE_STREAM = _Advice(
    "Run communication on its own stream, or send less",
    (
        "Most communication runs on the compute stream, where no compute can overlap with it. "
        "Call collectives with "
        "async_op=True and wait() only where you need the result, or send less"
    ),
)


# comm-bound


def comm_bound(evidence: Evidence) -> Answer:
    """Fire if at least 5 % of step time is exposed communication without waiting for other ranks.

    Waiting for late ranks belongs to `straggler`. If waiting is not known, all exposed
    communication counts here. Saving: that of `Evidence.saving_without` all communication.
    """
    exposed_ns = evidence.mean("exposed_comm_ns") if evidence.has_comm else None
    exposed_transfer_ns = evidence.exposed_transfer_ns_per_step
    if exposed_ns is None or exposed_transfer_ns is None:
        return None
    if evidence.share_of_step(exposed_transfer_ns) < _MIN_EXPOSED_SHARE_OF_STEP:
        return None
    exposed_by_phase = _exposed_by_phase(evidence)
    saving = evidence.saving_without()
    figures: dict[str, Any] = {
        "exposed_comm_ns_per_step": exposed_ns,
        "exposed_comm_share": evidence.share_of_step(exposed_ns),
        "exposed_transfer_ns_per_step": exposed_transfer_ns if evidence.is_wait_known else None,
    }
    figures |= saving.figures | evidence.means("wait_ns", "exposed_wait_ns")
    if evidence.mean("comm_on_compute_stream_ns"):
        figures |= evidence.means("comm_on_compute_stream_ns")
    figures |= evidence.counted_figures
    figures["exposed_comm_ns_per_step_by_phase"] = exposed_by_phase
    has_much_else = _is_mostly_other_than_gradients(evidence, exposed_ns)
    if has_much_else or not _has_only_gradients(evidence):
        figures["exposed_comm_ns_per_step_by_role"] = evidence.exposed_by_role
    where = _phase_text(
        exposed_by_phase, exposed_ns=exposed_ns, exposed_transfer_ns=exposed_transfer_ns
    )
    role = evidence.main_role_text("exposed_ns_per_step", exposed_transfer_ns, noun="communication")
    title = f"Communication does not fully overlap with compute{where}{role}{evidence.counted_text}"
    words = _advise_to_expose_less(evidence, exposed_ns)
    hook = "bf16_compress_hook, " if evidence.wide_gradients.num_rows else ""
    advice = words.advice.format(hook=hook)
    return Finding(title, words.action, advice, saving.ns_per_step, figures)


def _exposed_by_phase(evidence: Evidence) -> dict[str, float]:
    """Return exposed communication per step by the phase that launched it, in order of names.

    What no phase launched comes last, as `_NO_PHASE`. Phases without any are left out.
    """
    exposed_ns = aggregate_by(evidence.phases, "phase", "exposed_comm_ns", "sum")
    by_name = sorted(exposed_ns.items())
    by_phase = {phase: phase_ns for phase, phase_ns in by_name if phase_ns}
    all_exposed_ns = pc.sum(evidence.steps["exposed_comm_ns"]).as_py()
    outside_ns = all_exposed_ns - sum(by_phase.values())
    if outside_ns > 0:
        by_phase[_NO_PHASE] = outside_ns
    # `steps` has a row for each rank and step.
    n_steps_of_ranks = evidence.steps.num_rows
    return {phase: phase_ns / n_steps_of_ranks for phase, phase_ns in by_phase.items()}


def _phase_text(
    exposed_by_phase: dict[str, float], *, exposed_ns: float, exposed_transfer_ns: float
) -> str:
    """Name the phase that launched two thirds of exposed transfer; empty if no phase surely did.

    `exposed_by_phase` contains exposed waiting, and it is not known of which phases.
    """
    phase = max(exposed_by_phase, key=exposed_by_phase.__getitem__)
    exposed_wait_ns = exposed_ns - exposed_transfer_ns
    # The phase may have all of the waiting. Then this is its transfer.
    least_transfer_ns = exposed_by_phase[phase] - exposed_wait_ns
    is_mostly = least_transfer_ns >= _MIN_SHARE_OF_MOST * exposed_transfer_ns
    if not is_mostly or phase == _NO_PHASE:
        return ""
    return f", most of it launched in the {phase} phase"


def _has_only_gradients(evidence: Evidence) -> bool:
    """Tell whether all traffic of known roles is gradients of data parallelism."""
    return set(evidence.roles) <= {DATA, OTHER}


def _is_mostly_other_than_gradients(evidence: Evidence, exposed_ns: float) -> bool:
    """Tell whether a run has gradients, but most exposed communication is not gradients.

    False if it is not known how much of the gradients is exposed.
    """
    gradients_ns = evidence.exposed_by_role.get(DATA)
    if not evidence.gradient_all_reduces.num_rows or gradients_ns is None:
        return False
    return gradients_ns < _MIN_SHARE_OF_GRADIENTS * exposed_ns


def _advise_to_expose_less(evidence: Evidence, exposed_ns: float) -> _Advice:
    """Return what to change, which depends on the stream and the purpose of communication."""
    # If compute needs the results at once, it has to wait for them on any stream.
    if _is_on_compute_stream(evidence) and not _is_needed_at_once(evidence):
        return _ABOUT_COMPUTE_STREAM
    has_gradients = evidence.gradient_all_reduces.num_rows > 0
    is_only_gradients = has_gradients and _has_only_gradients(evidence)
    if not is_only_gradients:
        return _ABOUT_ALL
    if _is_mostly_other_than_gradients(evidence, exposed_ns):
        return _ABOUT_OTHER_THAN_GRADIENTS
    return _ABOUT_GRADIENTS


def _is_on_compute_stream(evidence: Evidence) -> bool:
    """Tell whether two thirds of communication run on the compute stream."""
    on_stream_ns = evidence.mean("comm_on_compute_stream_ns") or 0.0
    comm_ns = evidence.mean("comm_ns") or 0.0
    return comm_ns > 0 and on_stream_ns >= _MIN_SHARE_OF_MOST * comm_ns


def _is_needed_at_once(evidence: Evidence) -> bool:
    """Tell whether most exposed communication is of a role whose results are needed at once."""
    by_role = evidence.exposed_by_role.items()
    exposed_ns = {role: role_ns or 0.0 for role, role_ns in by_role}
    largest_role = max(exposed_ns, key=exposed_ns.__getitem__, default=None)
    return largest_role in NEEDED_AT_ONCE


# comm-slows-compute


def comm_slows_compute(evidence: Evidence) -> Answer:
    """Fire if equal kernels take 2 % longer during communication, and that is 0.25 % of step time.

    The slowdown c is the time of kernels during communication over the time of equal kernels
    without communication, minus 1. A kernel that communication covers in part counts as one during
    communication. The rule is not judged if less than a quarter of the kernel time during
    communication has equal kernels.

    Compute loses two times: overlapped compute x c / (1 + c), and the time by which kernels begin
    later during communication. Saving: what a step gains without both, see `_bound_on_slowdown`.
    For the bound, c and the later begins are 30 % larger than measured, because the measure may be
    too low by that much. c is at most 1. Figures ``at_most`` are of the rank that sets the bound.
    """
    overlap_ns = evidence.mean("overlap_compute_ns")
    if not evidence.has_comm or overlap_ns is None:
        return None
    if evidence.share_of_step(overlap_ns) < MIN_OVERLAP_SHARE_OF_STEP:
        return None
    if not evidence.compared_kernels.is_enough:
        return _not_judged_without_kernels(evidence)
    slowdown = evidence.slowdown.measured_ratio or 0.0
    hidden_ns, delay_ns = evidence.columns("overlap_compute_ns", "comm_delay_ns")
    slowed_ns = evidence.slowed_ns(hidden_ns)
    lost_ns = evidence.mean_of_largest(slowed_ns + delay_ns)
    is_little = evidence.share_of_step(lost_ns) < _MIN_SLOWED_SHARE_OF_STEP
    if is_little or slowdown < _MIN_SLOWDOWN:
        return None
    limit = _bound_on_slowdown(evidence)
    return Finding(
        title="Kernels run slower while communication runs",
        action="Give NCCL fewer SMs (NCCL_MAX_CTAS)",
        advice="Give communication fewer SMs (NCCL_MAX_CTAS or NCCL_MAX_NCHANNELS), or send less",
        saving_ns_per_step=limit.bound.saving_ns,
        evidence=_slowdown_figures(evidence, slowdown, limit),
    )


def _slowdown_figures(evidence: Evidence, slowdown: float, limit: _LimitRows) -> dict[str, Any]:
    """Return the figures of the finding: those measured, those of the bound, and some kernels.

    `slowdown` is the measured ratio. Figures of the bound are means over the rows that set it.
    """
    hidden_ns, delay_ns = evidence.columns("overlap_compute_ns", "comm_delay_ns")
    compared = evidence.compared_kernels
    measured = {
        "slowdown_ratio": slowdown,
        "n_kernels_compared": compared.n_kernels,
        "compared_share": compared.share,
    }
    means = evidence.means("overlap_compute_ns", "comm_delay_ns")
    slowdown_at_most = min(BOUND_OVER_MEASURED * slowdown, MAX_BELIEVED_SLOWDOWN)
    mean_hidden_ns = float(hidden_ns[limit.rows].mean())
    mean_delay_ns = float(delay_ns[limit.rows].mean())
    at_most = {
        "slowdown_at_most_ratio": slowdown_at_most,
        "overlap_compute_at_most_ns_per_step": mean_hidden_ns,
        "comm_delay_at_most_ns_per_step": BOUND_OVER_MEASURED * mean_delay_ns,
        "saving_ns_per_step_by_part": dict(limit.bound.parts),
    }
    by_kernel = {"slowdown_ratio_by_kernel": _slowdown_by_kernel(evidence)}
    return measured | means | at_most | by_kernel


def _not_judged_without_kernels(evidence: Evidence) -> NotJudged:
    """Say that too few kernels can be compared, and which capture has more."""
    wait_ns = evidence.mean("wait_ns") or 0.0
    comm_ns = evidence.mean("comm_ns") or 0.0
    is_mostly_waiting = comm_ns > 0 and wait_ns >= _MIN_SHARE_OF_WAITING * comm_ns
    fix = _LESS_WAITING if is_mostly_waiting else LESS_HIDDEN
    compared = evidence.compared_kernels
    if compared.n_kernels < ENOUGH_COMPARED:
        kernels = counted(compared.n_kernels, "kernel")
        run = verb_for(compared.n_kernels, "run")
        have = verb_for(compared.n_kernels, "have")
        few = (
            f"only {kernels} that {run} during communication {have} equal kernels without "
            "communication"
        )
        return NotJudged(few, f"capture more steps, or {fix}")
    percent = 100 * compared.share
    little = f"only {percent:.1f}% of the kernel time during communication"
    return NotJudged(f"{little} has equal kernels without communication", fix)


class _KernelTime(NamedTuple):
    """The time of a kernel during communication, and that of equal kernels without any, ns."""

    name: str
    during_comm_ns: int
    without_comm_ns: int

    @property
    def lost_ns(self) -> int:
        """How much time the kernel loses by communication."""
        return self.during_comm_ns - self.without_comm_ns

    @property
    def slowdown(self) -> float:
        """The lost time as a share of the time without communication."""
        return self.during_comm_ns / self.without_comm_ns - 1


def _slowdown_by_kernel(evidence: Evidence) -> dict[str, float]:
    """Return the slowdown of the kernels that lose most time, by name, the most first."""
    by_name = evidence.kernels.group_by("name", use_threads=False)
    # The time of compared kernels during communication, and that of equal ones without any.
    sums = by_name.aggregate([("slowed_ns", "sum"), ("free_ns", "sum")])
    kernels = []
    for row in sums.to_pylist():
        kernel = _KernelTime(
            row["name"], during_comm_ns=row["slowed_ns_sum"], without_comm_ns=row["free_ns_sum"]
        )
        kernels.append(kernel)
    compared = [kernel for kernel in kernels if kernel.without_comm_ns]
    # Kernels that lose the same time stay in order of names.
    in_alphabet = sorted(compared, key=lambda kernel: kernel.name)
    most_lost_first = sorted(in_alphabet, key=lambda kernel: kernel.lost_ns, reverse=True)
    shown = most_lost_first[:_MAX_SHOWN_KERNELS]
    return {kernel.name: kernel.slowdown for kernel in shown}


class _LimitRows(NamedTuple):
    """A bound, and the row of `steps` that sets it in each step."""

    bound: Bound
    rows: Int64


def _bound_on_slowdown(evidence: Evidence) -> _LimitRows:
    """Return what a step gains at most if communication slows no compute: the smaller bound of two.

    ``wall`` is the window of a rank, and ``slowed`` is how much longer its compute takes because of
    communication. The first bound is the largest ``slowed`` of a rank.

    The second bound counts waiting, too: a rank that waits for slowed ranks waits less if they are
    not slowed. ``relief`` is how much less at most: the sum of ``slowed`` over all other ranks, but
    no more than the rank waits. The second bound is only used if it is known who waits for whom,
    and if no stage of a pipeline waits by design::

        max over ranks(wall) - max over ranks(wall - slowed - relief)
    """
    (hidden_ns,) = evidence.columns("overlap_compute_ns")
    slowed_ns = evidence.slowed_ns(hidden_ns, is_upper_bound=True)
    largest_ns = evidence.mean_of_largest(slowed_ns)
    bound_of_rank = Bound(largest_ns, {"slowed_compute": largest_ns})
    of_one_rank = _LimitRows(bound_of_rank, evidence.rows_of_largest(slowed_ns))
    is_waiting_known = evidence.is_wait_known and evidence.are_groups_known
    if evidence.is_pipeline or not is_waiting_known:
        return of_one_rank
    of_all_ranks = _bound_with_waiting(evidence, slowed_ns)
    # Bounds may differ by rounding alone.
    is_smaller = of_all_ranks.bound.saving_ns <= largest_ns - _MIN_DIFFERENCE_NS
    return of_all_ranks if is_smaller else of_one_rank


def _bound_with_waiting(evidence: Evidence, slowed_ns: Float64) -> _LimitRows:
    """Return what a step gains without slowed compute and without the waiting that this causes."""
    wall_ns, wait_ns = evidence.columns("wall_ns", "wait_ns")
    slowed_of_others_ns = evidence.sum_of_other_ranks(slowed_ns)
    caused_ns = np.minimum(wait_ns, slowed_of_others_ns)
    shortened_ns = wall_ns - slowed_ns - caused_ns
    rows = evidence.rows_of_largest(shortened_ns)
    parts = evidence.mean_parts(rows, slowed_compute=slowed_ns, waiting=caused_ns)
    bound = Bound(evidence.saving_down_to(shortened_ns), parts)
    return _LimitRows(bound, rows)


RULES: Rules = {comm_bound: COLUMNS_OF_COMM, comm_slows_compute: COLUMNS_OF_COMM}
