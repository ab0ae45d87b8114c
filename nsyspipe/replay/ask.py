"""Ask what a change of the communication would bring."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.compute as pc

from nsyspipe.replay.assumptions import assumptions_of
from nsyspipe.replay.knobs import LINKS, Knobs, knobs_of
from nsyspipe.replay.markers import captured_program
from nsyspipe.replay.refusals import (
    LARGEST_IDENTITY_ERROR,
    Starvation,
    is_sharded,
    starvation,
    why_not,
    why_not_knobs,
    why_not_replayable,
)
from nsyspipe.replay.result import Scenario, WhatIf
from nsyspipe.replay.scenarios import Replay
from nsyspipe.replay.timelines import Collectives, rank_timelines, summary_windows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nsyspipe.run import Run

    Float = NDArray[np.float64]
    Flags = NDArray[np.bool_]

__all__ = ["whatif"]

_FEW_STEPS = 3
_MENU_BUCKETS = (25.0, 100.0)
_CUSTOM = "custom"


@dataclass(frozen=True)
class _Asked:
    """A run that can be replayed, and what may stand against single questions."""

    replay: Replay
    starved: Starvation
    datatypes: set[str | None]


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
    for that end. Work beside communication takes 1 + c times as long: c is measured on equal operations, or assumed.
    The step time is that of ``summary``: of each summary step the largest window over ranks, then the median.

    Parameters
    ----------
    run
        Of two ranks or more, from reports or saved with its operations.
    bandwidth
        Bus bandwidth (busbw of nccl-tests) in bytes per second, or as ``"300GB/s"``: T_k = 30 us + (T_k - 30 us) x
        captured / given, captured = gradient bytes x 2(n-1)/n / transfer.
    link
        ``nvlink5``, ``nvlink4``, ``pcie5x16``, ``pcie4x16``, ``shm``: a bandwidth of the table `LINKS`.
    gradient_dtype
        ``bf16`` or ``fp16`` in place of f32: half the bytes, and twice the time of the copies for casting.
    bucket_mb
        DDP's ``bucket_cap_mb``: gradients in order of readiness, a bucket closed by the one that fills it; T of each =
        30 us + its bytes x captured time per byte.
    no_wait
        All ranks work as the middle one of each step.
    no_grad_copy
        ``gradient_as_bucket_view=True``: without the copies that follow the collectives.
    perfect_overlap
        All communication beside work: max(work + c / (1 + c) x sum of T, sum of T) of each step.
    gradient_bytes
        Bytes of gradients per step, where neither NCCL's payload nor copies say them; changes nothing by itself.

    Returns
    -------
    WhatIf
        With any change asked for, one scenario of all of them together (id ``custom``); otherwise a menu of single
        changes, the largest gain first.

    Raises
    ------
    OptionError
        If a value cannot be used, or values contradict each other.
    DatasetError
        If the run was saved without its operations.

    Notes
    -----
    The interval comes from replays with the least and the most of what is not known (c, the bandwidth, the overhead
    of a collective, ready times that were not seen), half a per cent for two captures of one program, and twice the
    standard error of the median. What the model does not cover is refused with its reason.
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
    found = _opened(run, gradient_bytes)
    if isinstance(found, str):
        scenarios = [
            Scenario(key, one.label, one.given, refused=found) for key, one in questions.items()
        ]
        return _answer(run, None, scenarios)
    scenarios = [_scenario(found, key, one) for key, one in questions.items()]
    if not asked:
        scenarios.sort(key=lambda one: (one.gain_pct is None, -(one.gain_pct or 0.0)))
    return _answer(run, found.replay, scenarios)


def _menu() -> dict[str, Knobs]:
    """Return each single change."""
    return {
        **{f"bucket-{size:g}": Knobs(bucket_mb=size) for size in _MENU_BUCKETS},
        "no-grad-copy": Knobs(no_grad_copy=True),
        "gradient-bf16": Knobs(gradient_dtype="bf16"),
        "no-wait": Knobs(no_wait=True),
        "perfect-overlap": Knobs(perfect_overlap=True),
        **{f"link-{name}": Knobs(link=name) for name in LINKS},
    }


def _opened(run: Run, gradient_bytes: float | None) -> _Asked | str:
    """Return the run ready to be asked, or why it cannot be."""
    if reason := why_not(run):
        return reason
    windows = summary_windows(run)
    if windows is None:
        return "the steps that count do not follow one another, or not on every rank"
    timelines = rank_timelines(run, windows)
    if reason := why_not_replayable(run, timelines, windows):
        return reason
    first = timelines[0].collectives
    n_bytes, datatypes = _recorded(run, first)
    is_gradient = _gradient_collectives(first)
    captured = captured_program(timelines, windows, n_bytes, is_gradient)
    starved = starvation(timelines, windows)
    recorded = run.summary().to_pylist()[0]["busbw_bytes_per_s"]
    replay = Replay(captured, gradient_bytes, ~starved.is_starved, recorded_bytes_per_s=recorded)
    if replay.identity_error > LARGEST_IDENTITY_ERROR:
        return (
            f"the replay with nothing changed is off by {100 * replay.identity_error:.1f} %: the run waits for "
            "something that the model does not know"
        )
    return _Asked(
        replay, starved, {one for one, is_own in zip(datatypes, is_gradient, strict=True) if is_own}
    )


def _recorded(run: Run, first: Collectives) -> tuple[Float, list[str | None]]:
    """Return message bytes (NaN where not recorded) and datatype of each collective."""
    table = run.collectives()
    table = table.filter(pc.equal(table["rank"], run.ranks["rank"][0]))
    rows = {
        (step, seq): (n_bytes, datatype)
        for step, seq, n_bytes, datatype in zip(
            *(table[name].to_pylist() for name in ("step", "seq", "message_bytes", "datatype")),
            strict=True,
        )
    }
    found = [
        rows.get(key, (None, None))
        for key in zip(first.step.tolist(), first.seq.tolist(), strict=True)
    ]
    n_bytes = np.array([np.nan if one is None else one for one, _ in found], np.float64)
    return n_bytes, [datatype for _, datatype in found]


def _gradient_collectives(first: Collectives) -> Flags:
    """Tell which collectives are DDP's: of each step the all-reduces of the phase that has most of their time."""
    found = np.zeros(first.step.size, np.bool_)
    if is_sharded(first.kind.tolist()):
        return found
    all_reduce = first.kind == "all_reduce"
    length = first.end - first.start
    for step in np.unique(first.step).tolist():
        own = np.flatnonzero(all_reduce & (first.step == step))
        if own.size:
            phase = first.phase[own]
            total = {one: int(length[own][phase == one].sum()) for one in np.unique(phase).tolist()}
            found[own[phase == max(total, key=lambda one: (total[one], one))]] = True
    return found


def _scenario(asked: _Asked, key: str, knobs: Knobs) -> Scenario:
    replay = asked.replay
    if reason := why_not_knobs(replay, knobs, asked.starved, asked.datatypes):
        return Scenario(key, knobs.label, knobs.given, refused=reason)
    found = replay.predict(knobs)
    return Scenario(
        id=key,
        label=knobs.label,
        knobs=knobs.given,
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
