"""Whether two sides can be compared at all, and what else makes a comparison doubtful: each reason by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from nsyspipe.comparison.changes import is_estimated
from nsyspipe.comparison.series import MIN_STEPS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from nsyspipe.comparison.difference import Side
    from nsyspipe.run.run import Run

    Sides = tuple[Side, Side]


_UNKNOWN, _NONE, _GPU, _COUNTED = "not recorded", "none", "recorded", "counted"
# From this share of step time on, the profiler's own work changes what it measures.
_MUCH_OVERHEAD = 0.01
# What a run sends in a step may differ a little with padding.
_SAME_BYTES = 0.01
_SHOWN = 6


@dataclass(frozen=True)
class Check:
    """One reason to doubt a comparison: a row of `tables.COMPARABILITY`."""

    check: str
    blocks: bool
    baseline: str
    candidate: str
    message: str


def check_comparable(baseline: Side, candidate: Side) -> list[Check]:
    """Return what speaks against comparing two sides; what blocks comes first.

    Blocking: another world size, another GPU model, ranks missing that the other side has, no GPU activity on one
    side only, steps on one side only. A warning: the same lacking on both sides, other step families or numbers of skipped steps, other
    message bytes, captures that distort (profiler overhead, cut-off steps, other traces, parts not recorded on one side), times
    of kernels that are estimated, fewer than 3 summary steps, and one capture on both sides.
    """
    tests = (_same_capture, _job, _steps, _capture, _too_few)
    found = [check for test in tests for check in test((baseline, candidate))]
    return sorted(found, key=lambda check: not check.blocks)


def _check(name: str, what: str, words: Sequence[str], *, blocks: bool = False, after: str = "") -> Check:
    before, now = words
    return Check(name, blocks, before, now, f"{what}: baseline {before}, candidate {now}{after}")


def _differing(
    name: str,
    what: str,
    sides: Sides,
    told: Callable[[Run], str],
    *,
    blocks: bool = False,
    fine: str | None = None,
    after: str = "",
) -> Iterator[Check]:
    """Yield a check if what is told of the captures is not the same of all, or not what is fine."""
    values = {told(run) for run in _runs(sides)}
    if len(values) > 1 or (fine is not None and values != {fine}):
        yield _check(name, what, _said(sides, told), blocks=blocks, after=after)


def _said(sides: Sides, told: Callable[[Run], str]) -> list[str]:
    """Return what is told of each side's captures, each once."""
    return [" | ".join(dict.fromkeys(told(run) for run in side.runs)) for side in sides]


def _runs(sides: Sides) -> list[Run]:
    return [run for side in sides for run in side.runs]


def _same_capture(sides: Sides) -> Iterator[Check]:
    """Warn of a baseline that is the candidate: a gate on them always passes."""
    baseline, candidate = sides
    pairs = ((other, run) for run in candidate.runs for other in baseline.runs)
    for before, now in (pair for pair in pairs if _is_one_capture(*pair)):
        labels = before.header.label, now.header.label
        message = f"the same capture is on both sides: {labels[0]}"
        yield Check("same-capture", blocks=False, baseline=labels[0], candidate=labels[1], message=message)
        return


def _is_one_capture(one: Run, other: Run) -> bool:
    """Tell by what no two captures share, under whatever run ids they were saved; the cheap first."""
    at = one.header.captured_at_utc
    return at is not None and at == other.header.captured_at_utc and _work(one) == _work(other)


def _work(run: Run) -> tuple[object, object]:
    ranks = run.ranks.select(["rank", "pid", "n_kernels"]).to_pylist()
    return run.summary()["step_time_ns"][0].as_py(), ranks


def _job(sides: Sides) -> Iterator[Check]:
    """Check world size, GPUs and ranks."""
    headers = [run.header for run in _runs(sides)]
    is_sized = all(header.world_size is not None for header in headers)
    yield from _differing(
        "world-size",
        "world size" if is_sized else "number of ranks",
        sides,
        lambda run: str(run.header.world_size if is_sized else run.header.n_ranks),
        blocks=True,
    )
    has_gpu = [header.n_ranks > 0 for header in headers]
    if not all(has_gpu):
        words = _said(sides, lambda run: _GPU if run.header.n_ranks else _UNKNOWN)
        named = zip(("baseline", "candidate"), words, strict=True)
        lacking = " and ".join(name for name, word in named if word != _GPU)
        message = f"no GPU activity was recorded: {lacking}"
        yield Check("no-gpu-activity", any(has_gpu), words[0], words[1], message)
    yield from _differing(
        "gpu-model",
        "GPU model",
        sides,
        lambda run: ", ".join(run.header.gpu_names) or _UNKNOWN,
        blocks=all(header.gpu_names for header in headers),
    )
    yield from _differing(
        "missing-ranks",
        "ranks without a report",
        sides,
        lambda run: _listed(_missing(run)),
        blocks=len(set(map(_missing, _runs(sides)))) > 1,
        fine=_NONE,
    )


def _missing(run: Run) -> tuple[int, ...]:
    if not run.header.n_ranks:
        return ()  # its reports are there, and say nothing of GPUs
    present = set(run.ranks["rank"].to_pylist())
    size = run.header.world_size or 0
    # A count is enough to compare by; of a damaged report it may be any number.
    return tuple(rank for rank in range(min(size, 1 << 16)) if rank not in present)


def _listed(ranks: Sequence[int]) -> str:
    more = f" and {len(ranks) - _SHOWN} more" if len(ranks) > _SHOWN else ""
    return ", ".join(map(str, ranks[:_SHOWN])) + more if ranks else _NONE


def _steps(sides: Sides) -> Iterator[Check]:
    """Check what the steps are, and what is sent in one."""
    # Figures of a step are not those of a capture; what has no GPU activity is said elsewhere.
    if all(run.header.n_ranks for run in _runs(sides)):
        yield from _differing(
            "steps-from",
            "steps come from",
            sides,
            lambda run: "nothing: a capture" if run.is_capture else str(run.header.steps_from),
            blocks=True,
        )
    yield from _differing(
        "step-family",
        "steps are",
        sides,
        lambda run: repr(run.step_family) if run.step_family else "the whole capture",
    )
    yield from _differing(
        "skipped-steps",
        "steps skipped at the start",
        sides,
        lambda run: str(len(run.skipped_steps)),
    )
    before, after = (
        mean_of([run.summary()["message_bytes_per_step"][0].as_py() for run in side.runs]) for side in sides
    )
    if before is None or after is None or abs(after - before) <= _SAME_BYTES * max(before, after):
        return
    texts = [f"{mean:.0f} bytes" for mean in (before, after)]
    yield _check("message-bytes", "messages of a step have", texts)


def mean_of(values: Sequence[float | None]) -> float | None:
    """Return the mean; None where any value is."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None


def _capture(sides: Sides) -> Iterator[Check]:
    """Check what captures distort, did not record or cut off."""
    shares = [[_overhead_share(run) for run in side.runs] for side in sides]
    if any(share >= _MUCH_OVERHEAD for side in shares for share in side):
        texts = [" | ".join(f"{100 * share:.1f} %" for share in side) for side in shares]
        yield _check("profiler-overhead", "the profiler's own work takes of the steps", texts)
    if all(_traced(run) != _UNKNOWN for run in _runs(sides)):
        yield from _differing("traces", "traced", sides, _traced)
    # A capture that lacks something measures less, whatever the program did.
    yield from _differing("recorded", "problems of the captures", sides, _grave)
    yield from _differing("cut-off-steps", "cut-off steps among the figures'", sides, _cut_off, fine=_NONE)
    yield from _differing(
        "kernel-times",
        "times of kernels per step are",
        sides,
        lambda run: "estimated from the whole capture" if is_estimated(run) else _COUNTED,
        fine=_COUNTED,
        after="; analyze the reports again with --out if an older nsyspipe saved them",
    )


def _overhead_share(run: Run) -> float:
    steps = run.breakdown()
    overhead, wall = (pc.sum(steps[name]).as_py() for name in ("overhead_ns", "wall_ns"))
    return float(overhead / wall) if overhead and wall else 0.0


def _traced(run: Run) -> str:
    capture = run.header.capture
    return ", ".join(sorted(capture.trace)) if capture and capture.trace else _UNKNOWN


def _grave(run: Run) -> str:
    grave = run.problems.filter(pc.not_equal(run.problems["severity"], "info"))
    return ", ".join(sorted(grave["code"].unique().to_pylist())) or _NONE


def _cut_off(run: Run) -> str:
    # A capture has no steps.
    is_whole = run.is_capture or pc.all(run.breakdown()["is_complete"], min_count=0).as_py()
    return _NONE if is_whole else "some"


def _too_few(sides: Sides) -> Iterator[Check]:
    if any(run.is_capture or not run.header.n_ranks for run in _runs(sides)):
        return  # more steps are not what is lacking
    numbers = [[n_steps(run) for run in side.runs] for side in sides]
    if any(number < MIN_STEPS for side in numbers for number in side):
        texts = [" | ".join(map(str, side)) for side in numbers]
        enough = f"; {MIN_STEPS} are the least, 20 are better"
        yield _check("few-steps", "too few summary steps", texts, after=enough)


def n_steps(run: Run) -> int:
    """Return how many summary steps a run has."""
    number: int = run.summary()["n_summary_steps"][0].as_py()
    return number
