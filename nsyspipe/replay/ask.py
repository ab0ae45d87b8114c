"""Ask what a change of the communication would bring."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nsyspipe.replay.answered_findings import bounds_of, finding_of
from nsyspipe.replay.assumptions import assumptions_of
from nsyspipe.replay.knobs import MENU_LINKS, Knobs, knobs_of
from nsyspipe.replay.opened import Opened, opened_replay, why_refused
from nsyspipe.replay.result import Scenario, WhatIf

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nsyspipe.replay.answered_findings import Bound
    from nsyspipe.replay.scenarios import Replay
    from nsyspipe.run import Run

__all__ = ["whatif"]

_FEW_STEPS = 3
_MENU_BUCKETS = (25.0, 100.0)
_CUSTOM = "custom"


def whatif(
    run: Run,
    *,
    bandwidth: float | str | None = None,
    link: str | None = None,
    gradient_dtype: str | None = None,
    bucket_mb: float | None = None,
    no_wait: bool = False,
    no_grad_copy: bool = False,
    perfect_overlap: bool = False,
    gradient_bytes: float | None = None,
) -> WhatIf:
    """Replay the captured steps with other communication, and say what the step time would be.

    Each rank's own work (its main stream, with its gaps) is kept; collective k starts when the work before it is
    done and the collective before it has ended, ends T_k after its last start over ranks, and what needs it waits
    for that end. Work beside communication takes 1 + c times as long, and each operation begins a delay later: c is that of
    the kernels that ``comm-slows-compute`` compares, the delay that of the gaps between operations; assumed where the
    capture does not show them.
    The step time is that of ``summary``: of each summary step the largest window over ranks, then the median.

    Parameters
    ----------
    run
        Of two ranks or more, from reports or saved with its operations.
    bandwidth
        Bus bandwidth (busbw of nccl-tests) in bytes per second, or as ``"300GB/s"``, captured = gradient bytes x
        2(n-1)/n / transfer: T_k x captured / given over a slower link, 30 us + (T_k - 30 us) x captured / given over a
        faster one.
    link
        A name of `link_speeds.NAMED_LINKS` (``nvlink4``, ``pcie5x16``, ``infiniband-ndr``, ``roce-400``, ``shm``, …), or of
        a GPU for its NVLink (``a100``): its bandwidth. One that the capture reaches about (within 20 %) changes nothing.
    gradient_dtype
        ``bf16`` or ``fp16`` in place of f32: half the bytes, and twice the time of the copies for casting.
    bucket_mb
        DDP's ``bucket_cap_mb``: gradients in order of readiness, a bucket closed by the one that fills it; T of each =
        30 us + its bytes x captured time per byte; where one bucket was captured, those that begin beside work are 2 %
        longer and wait for a place on the GPU. The captured buckets stay as they are.
    no_wait
        All ranks work as the middle one of each step.
    no_grad_copy
        ``gradient_as_bucket_view=True``: without the copies that follow the collectives.
    perfect_overlap
        All communication beside work: max(work + c / (1 + c) x sum of T, sum of T) of each step.
    gradient_bytes
        Bytes of gradients per step, where neither NCCL's payload nor copies say them; changes nothing by itself.
        Where they do, it must be within 10 % of what they say.

    Returns
    -------
    WhatIf
        With any change asked for, one scenario of all of them together (id ``custom``); otherwise a menu of single
        changes, the largest gain first.

    Raises
    ------
    OptionError
        If a value cannot be used, or values contradict each other or the capture.
    DatasetError
        If the run was saved without its operations.

    Notes
    -----
    The interval comes from replays with the least and the most of each thing that is not known (c and the delay; bandwidth and
    overhead of a collective; ready times that were not seen), half a per cent for two captures of one program, and twice
    the standard error of the median: the root of the sum of their squares, since nothing ties one to another. It
    reaches 2 % of the predicted step time to either side, but not below the step without communication: on 28 pairs of
    captures the model was off by 1.1 % in the middle, and once by more than 4 %, where hosts set the pace of the other
    capture. What it does not cover is refused with its reason.

    A faster link is not predicted to be slower, nor its range to end higher, on any capture that was tried; yet nothing
    forces it: between 30 and 300 GB/s the slowdown that is assumed grows with the bandwidth, and holds while ranks wait.
    """
    asked = knobs_of(
        bandwidth=bandwidth,
        gradient_bytes=gradient_bytes,
        link=link,
        gradient_dtype=gradient_dtype,
        bucket_mb=bucket_mb,
        no_wait=no_wait,
        no_grad_copy=no_grad_copy,
        perfect_overlap=perfect_overlap,
    )
    questions = {_CUSTOM: asked} if asked else _menu()
    opened = opened_replay(run, gradient_bytes)
    bounds = bounds_of(run)
    scenarios = [_scenario(opened, key, one, bounds) for key, one in questions.items()]
    if not asked:
        scenarios.sort(key=lambda one: (one.gain_pct is None, -(one.gain_pct or 0.0)))
    return _answer(run, None if isinstance(opened, str) else opened.replay, scenarios)


def _menu() -> dict[str, Knobs]:
    """Return each single change."""
    return {
        **{f"bucket-{size:g}": Knobs(bucket_mb=size) for size in _MENU_BUCKETS},
        "no-grad-copy": Knobs(no_grad_copy=True),
        "gradient-bf16": Knobs(gradient_dtype="bf16"),
        "no-wait": Knobs(no_wait=True),
        "perfect-overlap": Knobs(perfect_overlap=True),
        **{f"link-{name}": Knobs(link=name) for name in MENU_LINKS},
    }


def _scenario(
    opened: Opened | str, key: str, knobs: Knobs, bounds: Mapping[str, Bound]
) -> Scenario:
    refused = why_refused(opened, knobs)
    finding = finding_of(knobs, bounds)
    plain = Scenario(
        id=key,
        label=knobs.label,
        knobs=knobs.given,
        refused=refused,
        finding=finding,
        finding_saving_ns=None if finding is None else bounds[finding].saving_ns,
    )
    if isinstance(opened, str) or refused is not None:
        return plain
    replay = opened.replay
    found = replay.predict(knobs)
    return replace(
        plain,
        step_time_ns=found.step_time_ns,
        low_ns=found.low_ns,
        high_ns=found.high_ns,
        throughput_steps_per_s=1e9 / found.step_time_ns,
        gain_pct=100 * (replay.step_time_ns - found.step_time_ns) / replay.step_time_ns,
        assumptions=assumptions_of(replay, knobs, found.step_time_ns),
    )


def _answer(run: Run, replay: Replay | None, scenarios: list[Scenario]) -> WhatIf:
    summary = run.summary().to_pylist()[0]
    problems: list[dict[str, Any]] = run.problems.to_pylist()
    n_steps = summary["n_summary_steps"]
    if replay is not None and n_steps < _FEW_STEPS:
        problems.append(
            {
                "code": "few-steps-to-replay",
                "severity": "warning",
                "report": None,
                "rank": None,
                "message": f"the answers rest on {n_steps} step{'' if n_steps == 1 else 's'}: the ranges say "
                "nothing of how steps vary",
                "fix": "capture 5 steps or more",
            }
        )
    return WhatIf(
        run_id=run.header.run_id,
        label=run.header.label,
        n_steps=n_steps,
        step_time_ns=summary["step_time_ns"],
        limit_step_time_ns=None if replay is None else replay.limit_ns,
        identity_error_pct=None if replay is None else 100 * replay.identity_error,
        scenarios=tuple(scenarios),
        problems=tuple(problems),
    )
