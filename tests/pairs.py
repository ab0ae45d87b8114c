"""Pairs of captures that differ by one change: what a what-if, a bound and an expectation are measured on.

Ordered: from a capture to the one with the change. Repeats of the GPT's captures on other days were
within 1 % of each other over shared memory, 0.2 % over NVLink.
"""

import functools
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import nsyspipe
from nsyspipe.analysis import kernels
from nsyspipe.analysis.kernels import Slowing
from nsyspipe.replay import ranges, rebucket
from nsyspipe.replay.knobs import knobs_of
from nsyspipe.replay.opening import opened_replay
from nsyspipe.replay.scenarios import Replay, why_refused
from nsyspipe.run.run import Run

__all__ = [
    "MORE_CHANGES",
    "ONE_CHANGE",
    "PAIRS",
    "SAMPLES_BY_NAME",
    "WITHOUT",
    "Captures",
    "Measured",
    "Pair",
    "accuracy_table",
    "measured",
    "reports",
    "set_constants",
    "table",
]

SAMPLES = Path(__file__).parent.parent / "sample_reports"

# bytes of the gradients of the ViT, as its captures without bucket view copy them
VIT_BYTES = 1_226_141_600
_ONE_BUCKET = 5000


@dataclass(frozen=True)
class Pair:
    """Two captures, by their names for `reports`, and what is different in the second."""

    before: str
    after: str
    change: str  # in words
    knobs: (
        Mapping[str, Any] | None
    )  # arguments of `whatif` that make the change; None where it has none for it
    finding: str | None = None  # the rule whose advice the change follows
    model: str = field(default="ViT")
    # Whether the change makes the other capture's settings altogether: the copies of gradients may
    # be left.
    is_exact: bool = True

    @property
    def name(self) -> str:
        return f"{self.before}->{self.after}"


_VIEW = {"no_grad_copy": True}
_LESS = "the copies of gradients come back, for which there is no knob"
_NVLINK, _SHM = {"link": "nvlink4"}, {"link": "shm"}
_BACK = {"bucket_mb": _ONE_BUCKET, "gradient_bytes": VIT_BYTES}

# In a run with bucket view (`…-bucket100`, `…-bucket25`) buckets and view changed together; as one
# change here.
ONE_CHANGE = (
    Pair("ddp-4gpu-shm", "ddp-4gpu", "NVLink", _NVLINK, "slow-link"),
    Pair("ddp-4gpu", "ddp-4gpu-shm", "shared memory", _SHM),
    Pair(
        "ddp-4gpu-shm",
        "ddp-4gpu-shm-bucket100",
        "100 MB, view",
        {"bucket_mb": 100, **_VIEW},
        "single-bucket",
    ),
    Pair("ddp-4gpu-shm-bucket100", "ddp-4gpu-shm", f"one bucket; {_LESS}", _BACK, is_exact=False),
    Pair("ddp-4gpu", "ddp-4gpu-onefile", "100 MB", {"bucket_mb": 100}, "single-bucket"),
    Pair("ddp-4gpu-onefile", "ddp-4gpu", "one bucket", {"bucket_mb": _ONE_BUCKET}),
    Pair(
        "ddp-2gpu",
        "ddp-2gpu-bucket100",
        "100 MB, view",
        {"bucket_mb": 100, **_VIEW},
        "single-bucket",
    ),
    Pair("ddp-2gpu-bucket100", "ddp-2gpu", f"one bucket; {_LESS}", _BACK, is_exact=False),
    Pair(
        "ddp-2gpu-straggler",
        "ddp-2gpu-bucket100",
        "no rank sleeps, view",
        {"no_wait": True, **_VIEW},
        "straggler",
    ),
    Pair(
        "ddp-4gpu-big-shm",
        "ddp-4gpu-big-shm-bucket25",
        "25 MB, view",
        {"bucket_mb": 25, **_VIEW},
        "single-bucket",
    ),
    Pair(
        "ddp-4gpu-big-shm-bucket25",
        "ddp-4gpu-big-shm",
        f"one bucket; {_LESS}",
        _BACK,
        is_exact=False,
    ),
    Pair("2gpu-gpt-b25-shm", "2gpu-gpt-b25", "NVLink", _NVLINK, "slow-link", "GPT"),
    Pair("2gpu-gpt-b25", "2gpu-gpt-b25-shm", "shared memory", _SHM, model="GPT"),
    Pair(
        "2gpu-gpt-b25-shm",
        "2gpu-gpt-b25-shm-bf16hook",
        "bf16 hook",
        {"gradient_dtype": "bf16"},
        "compress-gradients",
        "GPT",
    ),
    Pair("2gpu-gpt-accum-shm", "2gpu-gpt-accum", "NVLink", _NVLINK, "slow-link", "GPT"),
    Pair("2gpu-gpt-accum", "2gpu-gpt-accum-shm", "shared memory", _SHM, model="GPT"),
    Pair(
        "2gpu-gpt-one-shm", "2gpu-gpt-b25-shm", "25 MB", {"bucket_mb": 25}, "single-bucket", "GPT"
    ),
    Pair(
        "2gpu-gpt-b25-shm",
        "2gpu-gpt-one-shm",
        "one bucket",
        {"bucket_mb": _ONE_BUCKET},
        model="GPT",
    ),
    # No knob: what a finding advises all the same.
    Pair("ddp-1gpu", "baseline", "no DDP", None, "ddp-single-gpu"),
    Pair("ddp-4gpu-shm", "ddp-4gpu-shm-powersgd", "PowerSGD hook", None, "compress-gradients"),
)

# With the hook hosts set the pace in half of the steps: kernels start 5 to 10 us after their
# launch, and a rank waits 4 to 5 ms in NCCL; where hosts are ahead a step takes 29.8 to 30.1 ms
# instead of 30.5 (of the last two).
MORE_CHANGES = (
    Pair(
        "ddp-4gpu",
        "ddp-4gpu-shm-bucket100",
        "100 MB, view, shared memory",
        {"bucket_mb": 100, **_VIEW, **_SHM},
    ),
    Pair(
        "ddp-4gpu-shm-bucket100",
        "ddp-4gpu",
        f"one bucket, NVLink; {_LESS}",
        _BACK | _NVLINK,
        is_exact=False,
    ),
    Pair("ddp-4gpu-onefile", "ddp-4gpu-shm-bucket100", "view, shared memory", {**_VIEW, **_SHM}),
    Pair(
        "ddp-4gpu-shm-bucket100",
        "ddp-4gpu-onefile",
        f"NVLink; {_LESS}",
        {**_NVLINK, "gradient_bytes": VIT_BYTES},
        is_exact=False,
    ),
    Pair(
        "ddp-4gpu-onefile",
        "ddp-4gpu-shm",
        "one bucket, shared memory",
        {"bucket_mb": _ONE_BUCKET, **_SHM},
    ),
    Pair("ddp-4gpu-shm", "ddp-4gpu-onefile", "100 MB, NVLink", {"bucket_mb": 100, **_NVLINK}),
    Pair(
        "2gpu-gpt-one-shm",
        "2gpu-gpt-b25",
        "25 MB, NVLink",
        {"bucket_mb": 25, **_NVLINK},
        model="GPT",
    ),
    Pair(
        "2gpu-gpt-b25",
        "2gpu-gpt-one-shm",
        "one bucket, shared memory",
        {"bucket_mb": _ONE_BUCKET, **_SHM},
        model="GPT",
    ),
    Pair(
        "2gpu-gpt-b25",
        "2gpu-gpt-b25-shm-bf16hook",
        "bf16 hook, shared memory",
        {"gradient_dtype": "bf16", **_SHM},
        model="GPT",
    ),
    Pair(
        "2gpu-gpt-one-shm",
        "2gpu-gpt-b25-shm-bf16hook",
        "25 MB, bf16 hook",
        {"bucket_mb": 25, "gradient_dtype": "bf16"},
        model="GPT",
    ),
)

PAIRS = ONE_CHANGE + MORE_CHANGES

# The captures of batch 256 are among the samples, less two of their twelve steps.
SAMPLES_BY_NAME = {
    "ddp-4gpu-big-shm": "ddp-4gpu-before",
    "ddp-4gpu-big-shm-bucket25": "ddp-4gpu-after",
}


def reports(name: str, real: Path) -> list[Path]:
    """Return the reports of a capture, named as in `PAIRS`, or of a sample; `real` is what the fixture gives."""
    stem = SAMPLES_BY_NAME.get(name, name)
    found = [one for folder in (real, SAMPLES) for one in folder.glob(f"{stem}_[0-9].sqlite")]
    return sorted(found) or [real / f"{stem}.sqlite"]


class Captures:
    """The captures of `PAIRS` and others among the real reports, each read once, and made ready to be replayed once.

    ``4gpu/tp`` is a capture of another program, in the folder that `programs` makes when it is
    needed.
    """

    def __init__(self, real: Path, programs: Callable[[], Path] | None = None) -> None:
        def reports_of(name: str) -> list[Path]:
            if programs is None or "/" not in name:
                return reports(name, real)
            return sorted(programs().glob(f"{name}_[0-9].sqlite"))

        self.run: Callable[..., Run] = functools.cache(
            lambda name, **options: nsyspipe.load(reports_of(name), jobs=1, **options)
        )
        self.opened: Callable[[str, float | None], Replay | str] = functools.cache(
            lambda name, n_bytes: opened_replay(self.run(name), n_bytes)
        )


@dataclass(frozen=True)
class Measured:
    """What was predicted for a pair, and what was measured; ns, shares of the measured or predicted step time."""

    pair: Pair
    before_ns: float
    predicted_ns: float | None
    low_ns: float
    high_ns: float
    measured_ns: float
    limit_ns: float
    refused: str | None

    @property
    def error(self) -> float:
        return (self.predicted_ns or 0.0) / self.measured_ns - 1

    @property
    def is_inside(self) -> bool:
        return self.low_ns <= self.measured_ns <= self.high_ns

    @property
    def half_width(self) -> float:
        return (self.high_ns - self.low_ns) / 2 / (self.predicted_ns or 1.0)


def measured(pair: Pair, captures: Captures) -> Measured:
    """Predict one capture of a pair from the other, as `whatif` does; the pair has knobs."""
    changes = dict(pair.knobs or {})
    opened = captures.opened(pair.before, changes.pop("gradient_bytes", None))
    knobs = knobs_of(**changes)
    refused = why_refused(opened, knobs)
    after, before = (
        captures.run(name).summary()["step_time_ns"][0].as_py()
        for name in (pair.after, pair.before)
    )
    if isinstance(opened, str) or refused is not None:
        return Measured(pair, before, None, 0.0, 0.0, after, 0.0, refused)
    found = opened.predict(knobs)
    return Measured(
        pair,
        before,
        found.step_time_ns,
        found.low_ns,
        found.high_ns,
        after,
        opened.limit_ns or 0.0,
        None,
    )


def table(rows: Sequence[Measured]) -> str:
    lines = [
        (
            "| from | to | change | from ms | predicted | range | measured | error % | inside | "
            "half-width % |"
        ),
        "|---|---|---|--:|--:|--:|--:|--:|---|--:|",
    ]
    for one in rows:
        words = [one.pair.before, one.pair.after, one.pair.change, f"{one.before_ns / 1e6:.2f}"]
        if one.predicted_ns is None:
            words += [f"refused: {one.refused}", "", f"{one.measured_ns / 1e6:.2f}", "", "", ""]
        else:
            words += [
                f"{one.predicted_ns / 1e6:.2f}",
                f"{one.low_ns / 1e6:.2f} to {one.high_ns / 1e6:.2f}",
                f"{one.measured_ns / 1e6:.2f}",
                f"{100 * one.error:+.2f}",
                "yes" if one.is_inside else "NO",
                f"{100 * one.half_width:.1f}",
            ]
        lines.append(f"| {' | '.join(words)} |")
    answered = [one for one in rows if one.predicted_ns is not None]
    errors = [abs(one.error) for one in answered]
    half_widths = [one.half_width for one in answered]
    median_error, half_width = (100 * statistics.median(values) for values in (errors, half_widths))
    inside = 100 * statistics.mean(one.is_inside for one in answered)
    summary = (
        f"{len(answered)} of {len(rows)} answered: median error {median_error:.2f} %, worst "
        f"{100 * max(errors):.2f} %, "
        f"inside {inside:.0f} %, median half-width {half_width:.1f} %"
    )
    lines += ["", summary]
    return "\n".join(lines)


# What the constants are, estimated without one of the models: slowdown over host memory, of its
# delay what is in the operation, slowdown over NVLink, and how much longer a collective is beside
# work.
WITHOUT = {
    "ViT": (Slowing(0.03, 7_800.0), 4_700.0, Slowing(0.48, 250.0), 0.055),
    "GPT": (Slowing(0.04, 5_100.0), 2_500.0, Slowing(0.5, 250.0), 0.0),
}


def set_constants(monkeypatch: pytest.MonkeyPatch, model: str) -> None:
    """Give the replay the constants that were estimated without the captures of a model."""
    narrow, in_operation, wide, longer = WITHOUT[model]
    monkeypatch.setattr(kernels, "NARROW", narrow)
    monkeypatch.setattr(ranges, "_NARROW_IN_OPERATION_NS", in_operation)
    monkeypatch.setattr(kernels, "WIDE", wide)
    monkeypatch.setattr(rebucket, "_LONGER_DURING_WORK", longer)


_CHANGES_IN_DOCS = {
    "NVLink": "NVLink",
    "shared memory": "SHM",
    "100 MB": "`bucket_cap_mb=100`",
    "25 MB": "`bucket_cap_mb=25`",
    "view": "`gradient_as_bucket_view`",
    "one bucket": "one bucket",
    "bf16 hook": "bf16 gradients",
    "no rank sleeps": "no straggler",
}


def _program(pair: Pair) -> str:
    if pair.model == "GPT":
        return "GPT, 3 micro-batches" if "accum" in pair.before else "GPT"
    return "ViT, batch 256" if "big" in pair.before else "ViT, batch 32"


def accuracy_table(rows: Sequence[Measured], without_model: Mapping[str, Measured]) -> str:
    """Return the table of docs/accuracy.md; `without_model` has pairs predicted with the constants of the other model."""
    lines = [
        (
            "| program | GPUs | change | captured | predicted (range) | measured | error | error "
            "with the other program's constants |"
        ),
        "|---|--:|---|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        changes = row.pair.change.partition(";")[0].split(", ")
        change = ", ".join(_CHANGES_IN_DOCS[name] for name in changes)
        gpus = re.findall(r"(\d)gpu", row.pair.before)[0]
        predicted = (
            f"{(row.predicted_ns or 0) / 1e6:.1f} ({row.low_ns / 1e6:.1f} to "
            f"{row.high_ns / 1e6:.1f}) ms"
        )
        other = without_model.get(row.pair.name)
        cells = [
            _program(row.pair),
            gpus,
            change if row.pair.is_exact else f"{change} *",
            f"{row.before_ns / 1e6:.1f} ms",
            predicted,
            f"{row.measured_ns / 1e6:.1f} ms",
            _error_text(row),
            _error_text(other) if other else "",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _error_text(row: Measured) -> str:
    outside = "" if row.is_inside else ", outside the range"
    return f"{100 * row.error:+.1f}%{outside}"
