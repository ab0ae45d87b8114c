"""Rule ``launch-bound``: the GPU waits for kernel launches."""

from __future__ import annotations

import pyarrow.compute as pc

from nsyspipe.findings.model import LEAST_IDLE_SHARE, Answer, Evidence, Finding, NotJudged, idle_above, idle_of

NEEDS = ("idle_ns",)

_FASTER = 'launch less or faster: torch.compile(mode="reduce-overhead") or CUDA graphs, fused optimizers (fused=True), larger batches'  # fmt: skip
_PAUSES = (
    "find what the host does there (nsys profile --python-sampling=true): loading, logging, locks, "
    "garbage collection, sleeping; launching faster makes no pause shorter"
)
_UNMARKED = "; wrap data loading in an NVTX range named 'data' to tell it apart"


def launch_bound(evidence: Evidence) -> Answer:
    """Fire when the rank that the others wait for idles for 2 % of step time because launches come late.

    Saving: as `model.idle_of` has it. Not judged where more idle time than that has no known cause. Where no
    range marks the data phase, the host may have been waiting for data, and the finding says so. Where at least half of that
    idle time lies in pauses of 2 ms and more, the host was not launching but at something else. What keeps it from being
    judged leaves the silence of `input_bound` and `sync_bound` open too: it is named with those that did not fire.
    """
    if evidence.steps.num_rows and (missing := _missing(evidence)):
        columns = {"input-bound": "idle_input_ns", "sync-bound": "idle_blocked_ns"}
        silent = [name for name, column in columns.items() if idle_above(evidence, column) is None]
        nor = f", so {' and '.join(silent)} {'are' if len(silent) > 1 else 'is'} not either" if silent else ""
        fix = "capture with nsys profile --trace=cuda,nvtx and export without --tables"
        return NotJudged(f"why the GPU idles is not known without {missing}{nor}", fix)
    idle = idle_above(evidence, "idle_launch_ns")
    if idle is None:
        return None
    has_data = "data" in evidence.phases["phase"].unique().to_pylist()
    title, advice = "the GPU idles because kernels are launched late", _FASTER
    unmarked = "launch less (torch.compile), or load data faster"
    action = "launch less: torch.compile, CUDA graphs, fused=True" if has_data else unmarked
    # Of the judged rank, or of all ranks where none is judged.
    steps = evidence.steps
    steps = steps if idle.rank is None else steps.filter(pc.equal(steps["rank"], idle.rank))
    pauses, launch = (pc.sum(steps[name]).as_py() for name in ("idle_pause_ns", "idle_launch_ns"))
    if 2 * (pauses or 0) >= launch:
        title, advice = "the GPU idles while the host pauses between launches", _PAUSES
        action = "find what the host does when it launches nothing"
    figures = idle.figures(evidence)
    figures["idle_pause_ns_per_step"] = evidence.mean("idle_pause_ns")
    return Finding(title + idle.on_rank, action, advice + ("" if has_data else _UNMARKED), idle.saving_ns, figures)


def _missing(evidence: Evidence) -> str | None:
    """Return what was not recorded; None where causes of idle time are known for all but little of it."""
    unknown = idle_of(evidence, "idle_unknown_ns")
    if evidence.steps["idle_ns"].null_count or unknown is None:
        return "copies and memsets"
    if evidence.share(unknown.judged_ns) >= LEAST_IDLE_SHARE:
        share = f"{100 * evidence.share(unknown.judged_ns):.0f} % of step time"
        return f"the launches of kernels and copies that end {share} of it"
    return "the names of API calls" if idle_of(evidence, "idle_launch_ns") is None else None
