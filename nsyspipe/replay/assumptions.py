"""What an answer rests on, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsyspipe.metrics.slowdown import MOST_USUAL
from nsyspipe.replay.knobs import LINKS

if TYPE_CHECKING:
    from nsyspipe.replay.knobs import Knobs
    from nsyspipe.replay.scenarios import Replay

__all__ = ["assumptions_of"]

_GB = 1e9


def assumptions_of(replay: Replay, knobs: Knobs, step_time_ns: float) -> tuple[str, ...]:
    """Return a sentence for each thing that an answer takes for granted.

    Parameters
    ----------
    step_time_ns
        The answer.
    """
    said = [
        *_ranks(replay),
        *_given_bytes(replay),
        *_link(replay, knobs),
        *_gradients(replay, knobs),
        *_rest(knobs),
        *_slowdown(replay, knobs),
    ]
    if replay.is_sharded:
        said.append("work beside communication goes on as fast as captured")
    if replay.step_time_ns - step_time_ns > replay.lead_ns:
        said.append("hosts can launch that much faster, which the capture does not show")
    return tuple(said)


def _ranks(replay: Replay) -> list[str]:
    n_ranks = replay.captured.program.n_ranks
    said = (
        [] if n_ranks > 1 else ["for this rank alone: what it waits for the others stays as it is"]
    )
    if (n_missing := replay.world_size - n_ranks) and n_ranks > 1:
        are = "rank is" if n_missing == 1 else "ranks are"
        said.append(
            f"{n_missing} {are} missing: a step is taken to be as long as that of the {n_ranks} of "
            f"{replay.world_size} that are there, and they wait for no other"
        )
    return said


def _given_bytes(replay: Replay) -> list[str]:
    given, element = replay.given_bytes, replay.element_bytes
    if given is None:
        return []
    # Bytes of f32 gradients that a hook sends as bf16 show here as twice as many gradients.
    of = (
        ""
        if element is None
        else f": {given / element:,.0f} gradients of {element} bytes, as they are sent"
    )
    return [f"gradients of {given:,.0f} bytes per step as given{of}"]


def _link(replay: Replay, knobs: Knobs) -> list[str]:
    target, own = knobs.target_bytes_per_s, replay.bus_bytes_per_s
    if target is None or own is None:
        return []
    if knobs.link is None:
        return [
            f"bus bandwidth {target / _GB:.4g} GB/s as given, within 10 %; captured {own / _GB:.4g} GB/s"
        ]
    link = LINKS[knobs.link]
    if replay.target(knobs) is None:
        return [f"{link.name}: the captured {own / _GB:.4g} GB/s are what it gives, so it stays"]
    how = "measured" if link.is_measured else "not measured"
    reached = f"bus bandwidth {target / _GB:.4g} GB/s within {100 * link.within:.0f} %, {how} ({link.source})"
    return [f"{link.name}: {reached}; captured {own / _GB:.4g} GB/s"]


def _gradients(replay: Replay, knobs: Knobs) -> list[str]:
    said = []
    if knobs.bucket_mb is not None:
        is_exact = all(one is not None and one.is_exact for one in replay.gradients)
        how = (
            "the copies and kernels of each"
            if is_exact
            else "estimates between the captured buckets"
        )
        said.append(
            f"sizes and ready times of the gradients from {how}; the same bandwidth for other sizes"
        )
    if knobs.gradient_dtype is not None:
        said.append(
            f"half the bytes as {knobs.gradient_dtype}; what it does to convergence is not looked at"
        )
        if not replay.n_copies:
            said.append("casting takes no time")
    return said


def _rest(knobs: Knobs) -> list[str]:
    said = []
    if knobs.no_wait:
        said.append("all ranks work like the middle one of each step, of two like the faster")
    if knobs.no_grad_copy:
        said.append("all that is copied from buckets to gradients goes away")
    if knobs.perfect_overlap:
        said.append("all communication runs beside compute, which it slows")
    return said


def _slowdown(replay: Replay, knobs: Knobs) -> list[str]:
    found = replay.slowdown_range(knobs)
    if found is None:
        return []
    likely, least, most, is_measured = found
    how = "measured here" if is_measured else "assumed"
    rare = ", more than is usual" if likely > MOST_USUAL else ""
    return [
        f"work beside communication takes {100 * likely:.0f} % longer ({100 * least:.0f} to {100 * most:.0f} %, {how}{rare})"
    ]
