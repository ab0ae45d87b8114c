"""Communication of any kind: what of it no compute hides, and what it does to the compute that hides it."""

from collections.abc import Mapping

import numpy as np
import pyarrow.compute as pc
from msgspec import Struct

from nsyspipe.analysis.kernels import ENOUGH_COMPARED, LEAST_OVERLAP_SHARE, LESS_HIDDEN
from nsyspipe.analysis.traffic import DATA, NEEDED_AT_ONCE, OTHER
from nsyspipe.findings.model import (
    AT_MOST,
    MOST_BELIEVED,
    OF_COMM,
    Answer,
    Evidence,
    Finding,
    NotJudged,
    Rules,
)
from nsyspipe.model.table import Float64, Int64

_LEAST_EXPOSED = 0.05
_NO_PHASE = "no phase"
_OF_GRADIENTS = (
    "Send less, or overlap communication with backward",
    (
        "Send less ({halves}no_sync()), use a faster interconnect, or overlap communication "
        "with the backward pass. "
        "nsyspipe whatif predicts the effect of each change"
    ),
)
_BESIDE_GRADIENTS = (
    "Send less communication that is not gradients",
    (
        "Most of the exposed communication is not gradients, so settings of gradients cannot "
        "help. Send less of the "
        "rest (SyncBatchNorm gathers statistics in each layer), or use a faster interconnect"
    ),
)
_OF_ANY = (
    "Send less, or overlap communication with compute",
    "Send less, use a faster interconnect, or overlap communication with compute",
)
_ON_COMPUTE_STREAM = (
    "Run communication on its own stream, or send less",
    (
        "Most communication runs on the compute stream, where no compute can overlap with it. "
        "Call collectives with "
        "async_op=True and wait() only where you need the result, or send less"
    ),
)
_LEAST_OF_GRADIENTS = (
    0.5  # of exposed communication, from which on what shortens gradients is advised
)
_MOSTLY = 2 / 3  # a phase is named from this share of what is exposed on
_LEAST_SLOWDOWN = 0.02
_LEAST_SHARE = 0.0025
_LESS_WAITING = (
    "capture a second run with less wait time, and compare the kernels of both runs: nsyspipe diff"
)
_MOSTLY_WAITS = 0.5  # of communication
_SHOWN_KERNELS = 5
_LEAST_NS = 1  # by which bounds differ


def comm_bound(evidence: Evidence) -> Answer:
    r"""Fire when at least 5 % of step time is exposed communication, waiting for other ranks apart.

    Waiting is `straggler`'s; where it is not known, it counts. Saving: what is exposed so,
    ``|M \\ C \\ W|``, and what communication slows compute down by, as `Evidence.saving_without` has it.
    """
    exposed = evidence.mean("exposed_comm_ns") if evidence.has_comm else None
    transfer = evidence.exposed_transfer_ns_per_step
    if exposed is None or transfer is None or evidence.share(transfer) < _LEAST_EXPOSED:
        return None
    sums = evidence.phases.group_by("phase", use_threads=False).aggregate(
        [("exposed_comm_ns", "sum")]
    )
    totals = {
        row["phase"]: total
        for row in sums.sort_by("phase").to_pylist()
        if (total := row["exposed_comm_ns_sum"])
    }
    rest = pc.sum(evidence.steps["exposed_comm_ns"]).as_py() - sum(totals.values())
    totals |= {_NO_PHASE: rest} if rest > 0 else {}
    by_phase = {
        phase: total / evidence.steps.num_rows for phase, total in totals.items()
    }  # by which launched it
    phase = max(by_phase, key=by_phase.__getitem__)
    # Of which phase the waiting is, is not known: it may all be of this one.
    is_mostly = by_phase[phase] - (exposed - transfer) >= _MOSTLY * transfer
    where = (
        f", most of it launched in the {phase} phase" if is_mostly and phase != _NO_PHASE else ""
    )
    is_ddp = set(evidence.roles) <= {DATA, OTHER}
    has_others = _is_beside_gradients(evidence, exposed)
    action, advice = _advice(evidence, is_ddp=is_ddp, has_others=has_others)
    on_stream = (
        evidence.means("comm_on_compute_stream_ns")
        if evidence.mean("comm_on_compute_stream_ns")
        else {}
    )
    mostly = evidence.mostly("communication ", "exposed_ns_per_step", transfer)
    saving, figures = evidence.saving_without()
    figures = {
        "exposed_comm_ns_per_step": exposed,
        "exposed_comm_share": evidence.share(exposed),
        "exposed_transfer_ns_per_step": transfer if evidence.is_wait_known else None,
        **figures,
        **evidence.means("wait_ns", "exposed_wait_ns"),
        **on_stream,
        "exposed_comm_ns_per_step_by_phase": by_phase,
        **(
            {}
            if is_ddp and not has_others
            else {"exposed_comm_ns_per_step_by_role": evidence.exposed_by_role}
        ),
    }
    advice = advice.format(
        halves="bf16_compress_hook, " if evidence.wide_gradients.num_rows else ""
    )
    return Finding(
        f"Communication does not fully overlap with compute{where}{mostly}",
        action,
        advice,
        saving,
        figures,
    )


def _is_beside_gradients(evidence: Evidence, exposed_ns: float) -> bool:
    """Tell whether most of what is exposed is not gradients', in a run that has gradients."""
    of_gradients = evidence.exposed_by_role.get(DATA)
    if not evidence.gradient_all_reduces.num_rows or of_gradients is None:
        return False
    return of_gradients < _LEAST_OF_GRADIENTS * exposed_ns


def _advice(evidence: Evidence, *, is_ddp: bool, has_others: bool) -> tuple[str, str]:
    """Return the action and the advice for exposed communication."""
    on_stream = evidence.mean("comm_on_compute_stream_ns") or 0.0
    exposed = {role: ns or 0.0 for role, ns in evidence.exposed_by_role.items()}
    is_needed_at_once = max(exposed, key=exposed.__getitem__, default=None) in NEEDED_AT_ONCE
    if on_stream >= _MOSTLY * (evidence.mean("comm_ns") or 0.0) > 0 and not is_needed_at_once:
        return _ON_COMPUTE_STREAM
    if not (is_ddp and evidence.gradient_all_reduces.num_rows):
        return _OF_ANY
    return _BESIDE_GRADIENTS if has_others else _OF_GRADIENTS


def comm_slows_compute(evidence: Evidence) -> Answer:
    """Fire when equal kernels take 2 % longer beside communication, and that costs 0.25 % of step time.

    With c = slowed / free - 1 over all kernels that can be compared, those covered in part too,
    saving: overlapped compute x c / (1 + c), and how much later kernels begin beside communication,
    both with 30 % more than measured, which is what the measure holds within, and c at most 1;
    `_saving_of_slowdown` has what of that a step gains, and figures ``at_most`` are of the rank
    that sets it. Not judged where they are under a quarter of the kernel time beside communication.
    """
    overlap = evidence.mean("overlap_compute_ns")
    if not evidence.has_comm or overlap is None or evidence.share(overlap) < LEAST_OVERLAP_SHARE:
        return None
    compared = evidence.compared
    slowdown = evidence.slowdown_figures["slowdown_ratio"] or 0.0
    if not compared.is_enough:
        if compared.n_kernels < ENOUGH_COMPARED:
            few = (
                f"only {compared.n_kernels} kernels that run during communication have equal "
                "kernels without communication"
            )
            return NotJudged(few, f"capture more steps, or {_less_beside(evidence)}")
        of_all = f"only {100 * compared.share:.1f}% of the kernel time during communication"
        return NotJudged(
            f"{of_all} has equal kernels without communication", _less_beside(evidence)
        )
    hidden, late = evidence.columns("overlap_compute_ns", "comm_delay_ns")
    lost = evidence.mean_of_most(evidence.slowed_ns(hidden) + late)
    if slowdown < _LEAST_SLOWDOWN or evidence.share(lost) < _LEAST_SHARE:
        return None
    slowed = evidence.slowed_ns(hidden, is_most=True)
    bound = _saving_of_slowdown(evidence, slowed)
    rows = bound.rows
    sums = evidence.kernels.group_by("name", use_threads=False).aggregate(
        [("slowed_ns", "sum"), ("free_ns", "sum")]
    )
    of_kernels = [
        [row[name] for name in ("name", "slowed_ns_sum", "free_ns_sum")] for row in sums.to_pylist()
    ]
    of_kernels = sorted(
        (row for row in of_kernels if row[2]), key=lambda row: (row[2] - row[1], row[0])
    )
    figures = {
        "slowdown_ratio": slowdown,
        "n_kernels_compared": compared.n_kernels,
        "compared_share": compared.share,
        **evidence.means("overlap_compute_ns", "comm_delay_ns"),
        "slowdown_at_most_ratio": min(AT_MOST * slowdown, MOST_BELIEVED),
        "overlap_compute_at_most_ns_per_step": float(hidden[rows].mean()),
        "comm_delay_at_most_ns_per_step": AT_MOST * float(late[rows].mean()),
        "saving_ns_per_step_by_part": dict(bound.parts),
        "slowdown_ratio_by_kernel": {
            name: slow / free - 1 for name, slow, free in of_kernels[:_SHOWN_KERNELS]
        },
    }
    title = "Kernels run slower while communication runs"
    action = "Give NCCL fewer SMs (NCCL_MAX_CTAS)"
    advice = "Give communication fewer SMs (NCCL_MAX_CTAS or NCCL_MAX_NCHANNELS), or send less"
    return Finding(title, action, advice, bound.saving_ns, figures)


def _less_beside(evidence: Evidence) -> str:
    """Return which capture has more compute without communication beside it."""
    wait = evidence.mean("wait_ns") or 0.0
    comm = evidence.mean("comm_ns") or 0.0
    is_waiting = wait >= _MOSTLY_WAITS * comm > 0
    return _LESS_WAITING if is_waiting else LESS_HIDDEN


class _SlowdownSaving(Struct, frozen=True):
    """A bound, the row of `steps` that sets it in each step, and the means of what it is the sum of there."""

    saving_ns: float
    rows: Int64
    parts: Mapping[str, float]


def _saving_of_slowdown(evidence: Evidence, slowed: Float64) -> _SlowdownSaving:
    """Return what a step gains at most where communication slows no compute.

    At most what the rank with most has of it, and, where it is known who waits for whom and no
    stage waits by design::

        max over ranks(wall) - max over ranks(wall - slowed - min(wait, slowed of all other ranks))

    since a rank that waits for another is as long as that one.
    """
    rows = evidence.rows_of_most(slowed)
    of_most = _SlowdownSaving(
        evidence.mean_of_most(slowed), rows, {"slowed_compute": evidence.mean_of_most(slowed)}
    )
    if not (evidence.is_wait_known and evidence.are_groups_known) or evidence.is_pipeline:
        return of_most
    wall, wait = evidence.columns("wall_ns", "wait_ns")
    waiting = np.minimum(wait, evidence.of_other_ranks(slowed))
    left = wall - slowed - waiting
    saving_ns = evidence.saving_down_to(left)
    if saving_ns > of_most.saving_ns - _LEAST_NS:
        return of_most
    limit = evidence.rows_of_most(left)
    return _SlowdownSaving(
        saving_ns, limit, evidence.parts_of(limit, slowed_compute=slowed, waiting=waiting)
    )


RULES: Rules = {comm_bound: OF_COMM, comm_slows_compute: OF_COMM}
