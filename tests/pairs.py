"""Pairs of captures that differ by one change: what a what-if, a bound and an expectation are measured on.

Ordered: from a capture to the one with the change. Repeats of the GPT's captures on other days were within 1 % of each
other over shared memory, 0.2 % over NVLink.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nsyspipe

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nsyspipe.run import Run

__all__ = ["MORE_CHANGES", "ONE_CHANGE", "PAIRS", "Pair", "opened", "reports"]

SAMPLES = Path(__file__).parent.parent / "sample_reports"

# Bytes of the gradients: of the ViT as its captures without bucket view copy them, of the GPT by NCCL's payload.
VIT_BYTES, GPT_BYTES = 1_226_141_600, 665_231_360
_ONE_BUCKET = 5000


@dataclass(frozen=True)
class Pair:
    """Two captures, and what is different in the second.

    Attributes
    ----------
    before, after
        Names for `reports`.
    change
        In words.
    knobs
        Arguments of `whatif` that make the change; None where it has none for it.
    finding
        The rule whose advice the change follows; None where no rule advises it.
    model
        Of the captured program.
    is_exact
        Whether the change makes the other capture's settings altogether; otherwise a little is left (the copies of
        gradients that a run without bucket view has and one with it has not).
    """

    before: str
    after: str
    change: str
    knobs: Mapping[str, Any] | None
    finding: str | None = None
    model: str = field(default="ViT")
    is_exact: bool = True

    @property
    def name(self) -> str:
        """Both names, as a test's id."""
        return f"{self.before}->{self.after}"


_VIEW = {"no_grad_copy": True}
_LESS = "the copies of gradients come back, for which there is no knob"
_NVLINK, _SHM = {"link": "nvlink4"}, {"link": "shm"}
_BACK = {"bucket_mb": _ONE_BUCKET, "gradient_bytes": VIT_BYTES}

# In a run with bucket view (`…-bucket100`, `…-bucket25`) buckets and view changed together; as one change here.
ONE_CHANGE = (
    Pair("ddp-4gpu-shm", "ddp-4gpu", "NVLink", _NVLINK, "slow-link"),
    Pair("ddp-4gpu", "ddp-4gpu-shm", "shared memory", _SHM),
    Pair("ddp-4gpu-shm", "ddp-4gpu-shm-bucket100", "100 MB, view", {"bucket_mb": 100, **_VIEW}, "single-bucket"),
    Pair("ddp-4gpu-shm-bucket100", "ddp-4gpu-shm", f"one bucket; {_LESS}", _BACK, is_exact=False),
    Pair("ddp-4gpu", "ddp-4gpu-onefile", "100 MB", {"bucket_mb": 100}, "single-bucket"),
    Pair("ddp-4gpu-onefile", "ddp-4gpu", "one bucket", {"bucket_mb": _ONE_BUCKET}),
    Pair("ddp-2gpu", "ddp-2gpu-bucket100", "100 MB, view", {"bucket_mb": 100, **_VIEW}, "single-bucket"),
    Pair("ddp-2gpu-bucket100", "ddp-2gpu", f"one bucket; {_LESS}", _BACK, is_exact=False),
    Pair("ddp-2gpu-straggler", "ddp-2gpu-bucket100", "no rank sleeps, view", {"no_wait": True, **_VIEW}, "straggler"),
    Pair("ddp-4gpu-big-shm", "ddp-4gpu-big-shm-bucket25", "25 MB, view", {"bucket_mb": 25, **_VIEW}, "single-bucket"),
    Pair("ddp-4gpu-big-shm-bucket25", "ddp-4gpu-big-shm", f"one bucket; {_LESS}", _BACK, is_exact=False),
    Pair("2gpu-gpt-b25-shm", "2gpu-gpt-b25", "NVLink", _NVLINK, "slow-link", "GPT"),
    Pair("2gpu-gpt-b25", "2gpu-gpt-b25-shm", "shared memory", _SHM, model="GPT"),
    Pair("2gpu-gpt-b25-shm", "2gpu-gpt-b25-shm-bf16hook", "bf16 hook", {"gradient_dtype": "bf16"}, "compress-gradients", "GPT"),
    Pair("2gpu-gpt-accum-shm", "2gpu-gpt-accum", "NVLink", _NVLINK, "slow-link", "GPT"),
    Pair("2gpu-gpt-accum", "2gpu-gpt-accum-shm", "shared memory", _SHM, model="GPT"),
    Pair("2gpu-gpt-one-shm", "2gpu-gpt-b25-shm", "25 MB", {"bucket_mb": 25}, "single-bucket", "GPT"),
    Pair("2gpu-gpt-b25-shm", "2gpu-gpt-one-shm", "one bucket", {"bucket_mb": _ONE_BUCKET}, model="GPT"),
    # No knob: what a finding advises all the same.
    Pair("ddp-1gpu", "baseline", "no DDP", None, "ddp-single-gpu"),
    Pair("ddp-4gpu-shm", "ddp-4gpu-shm-powersgd", "PowerSGD hook", None, "compress-gradients"),
)  # fmt: skip

MORE_CHANGES = (
    Pair("ddp-4gpu", "ddp-4gpu-shm-bucket100", "100 MB, view, shared memory", {"bucket_mb": 100, **_VIEW, **_SHM}),
    Pair("ddp-4gpu-shm-bucket100", "ddp-4gpu", f"one bucket, NVLink; {_LESS}", _BACK | _NVLINK, is_exact=False),
    Pair("ddp-4gpu-onefile", "ddp-4gpu-shm-bucket100", "view, shared memory", {**_VIEW, **_SHM}),
    Pair("ddp-4gpu-shm-bucket100", "ddp-4gpu-onefile", f"NVLink; {_LESS}", {**_NVLINK, "gradient_bytes": VIT_BYTES}, is_exact=False),
    Pair("ddp-4gpu-onefile", "ddp-4gpu-shm", "one bucket, shared memory", {"bucket_mb": _ONE_BUCKET, **_SHM}),
    Pair("ddp-4gpu-shm", "ddp-4gpu-onefile", "100 MB, NVLink", {"bucket_mb": 100, **_NVLINK}),
    Pair("2gpu-gpt-one-shm", "2gpu-gpt-b25", "25 MB, NVLink", {"bucket_mb": 25, **_NVLINK}, model="GPT"),
    Pair("2gpu-gpt-b25", "2gpu-gpt-one-shm", "one bucket, shared memory", {"bucket_mb": _ONE_BUCKET, **_SHM}, model="GPT"),
    Pair("2gpu-gpt-b25", "2gpu-gpt-b25-shm-bf16hook", "bf16 hook, shared memory", {"gradient_dtype": "bf16", **_SHM}, model="GPT"),
    Pair("2gpu-gpt-one-shm", "2gpu-gpt-b25-shm-bf16hook", "25 MB, bf16 hook", {"bucket_mb": 25, "gradient_dtype": "bf16"}, model="GPT"),
)  # fmt: skip

PAIRS = ONE_CHANGE + MORE_CHANGES

# The captures of batch 256 are among the samples, less two of their twelve steps.
_SAMPLES = {
    "ddp-4gpu-big-shm": "ddp-4gpu-before",
    "ddp-4gpu-big-shm-bucket25": "ddp-4gpu-after",
}


def reports(name: str, real: Path) -> list[Path]:
    """Return the reports of a capture.

    Parameters
    ----------
    name
        As in `PAIRS`.
    real
        What the fixture of that name gives.
    """
    folder, stem = (SAMPLES, _SAMPLES[name]) if name in _SAMPLES else (real, name)
    found = sorted(folder.glob(f"{stem}_[0-9].sqlite"))
    return found or [folder / f"{stem}.sqlite"]


def opened(name: str, real: Path) -> Run:
    """Load a capture of `PAIRS`."""
    return nsyspipe.load(reports(name, real))
