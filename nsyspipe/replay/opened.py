"""Get a run ready to be replayed, or say why it cannot be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc

from nsyspipe.errors import OptionError
from nsyspipe.link_speeds import nvlink_speed, pcie_speed
from nsyspipe.replay.contention import compared_kernels
from nsyspipe.replay.markers import captured_program
from nsyspipe.replay.refusals import (
    LARGEST_IDENTITY_ERROR,
    Starvation,
    beyond_nominal,
    contradiction,
    is_sharded,
    starvation,
    why_not,
    why_not_knobs,
    why_not_replayable,
)
from nsyspipe.replay.scenarios import Replay
from nsyspipe.replay.timelines import Collectives, rank_timelines, summary_windows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nsyspipe.replay.knobs import Knobs
    from nsyspipe.run import Run

    Float = NDArray[np.float64]
    Flags = NDArray[np.bool_]

__all__ = ["Opened", "opened_replay", "why_refused"]

# Of bytes of gradients: what a user says may be this much off what the capture says.
_BYTES_WITHIN = 0.1
# As NCCL's kernels name them.
_ELEMENT_BYTES = {"f64": 8, "f32": 4, "f16": 2, "bf16": 2}


@dataclass(frozen=True)
class Opened:
    """A run that can be replayed, and what may stand against single questions.

    Attributes
    ----------
    starved
        How much of its step each rank's GPU waits for launches.
    datatypes
        Of the gradients' all-reduces, as kernel names say; None for one that is not told.
    """

    replay: Replay
    starved: Starvation
    datatypes: set[str | None]


def opened_replay(run: Run, gradient_bytes: float | None = None) -> Opened | str:
    """Return the run ready to be asked, or why it cannot be.

    Parameters
    ----------
    gradient_bytes
        Per step, as the user says.

    Raises
    ------
    OptionError
        If the capture says other bytes.
    DatasetError
        If the run was saved without its operations.
    """
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
    sent = {one for one, is_own in zip(datatypes, is_gradient, strict=True) if is_own}
    recorded = run.summary().to_pylist()[0]["busbw_bytes_per_s"]
    replay = Replay(
        captured,
        gradient_bytes,
        ~starved.is_starved,
        recorded_bytes_per_s=recorded,
        compared=compared_kernels(run.kernels()),
        nominal_bytes_per_s=_nominal(run),
        world_size=run.header.world_size,
        element_bytes=_element_bytes(sent),
    )
    _check_bytes(replay, gradient_bytes, sent)
    if replay.identity_error > LARGEST_IDENTITY_ERROR:
        return (
            f"the replay with nothing changed is off by {100 * replay.identity_error:.1f} %: the run waits for "
            "something that the model does not know"
        )
    if reason := contradiction(replay):
        return reason
    return Opened(replay, starved, sent)


def why_refused(opened: Opened | str, knobs: Knobs) -> str | None:
    """Return why a run has no answer to a combination of knobs; None if it has one.

    Parameters
    ----------
    opened
        What `opened_replay` returned.
    """
    if isinstance(opened, str):
        return opened
    return why_not_knobs(opened.replay, knobs, opened.starved, opened.datatypes)


def _element_bytes(datatypes: set[str | None]) -> int | None:
    """Return the bytes of an element, where all are of one size."""
    sizes = {_ELEMENT_BYTES.get(one or "") for one in datatypes}
    return sizes.pop() if len(sizes) == 1 else None


def _nominal(run: Run) -> float | None:
    """Return what NVLink gives between the run's GPUs, or PCIe where they have none; None where a model is not known."""
    names = run.ranks["gpu_name"].to_pylist()
    found = nvlink_speed(names) or pcie_speed(names)
    return None if found is None else found.bytes_per_s


def _check_bytes(replay: Replay, given: float | None, datatypes: set[str | None]) -> None:
    """Raise if a user's bytes contradict NCCL's payload, the copies, or what the links can carry."""
    if given is None:
        return
    if reason := beyond_nominal(replay):
        narrow = ", ".join(sorted(one or "?" for one in datatypes))
        raise OptionError(
            f"--gradient-bytes {given:,.0f}",
            reason,
            found=f"all-reduces of {narrow}",
            fix="give what is sent: parameters x 4 bytes as f32, x 2 bytes as f16 or bf16",
        )
    if replay.seen_bytes is None:
        return
    if abs(given - replay.seen_bytes) > _BYTES_WITHIN * replay.seen_bytes:
        raise OptionError(
            f"--gradient-bytes {given:,.0f}",
            f"the capture says {replay.seen_bytes:,.0f} bytes of gradients per step",
            fix="leave it out (f32 gradients are parameters x 4 bytes)",
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
