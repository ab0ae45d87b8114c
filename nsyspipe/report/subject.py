"""Which run an answer is about, in one line: GPUs and the steps used."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nsyspipe.run.run import Run


def hardware_text(run: Run) -> str:
    """Return how many ranks a run has on which GPUs: ``4 x NVIDIA H200``, or ``4 of 8 ranks on NVIDIA H200``."""
    header = run.header
    models = ", ".join(header.gpu_names) or "unknown GPU"
    if header.world_size not in (None, header.n_ranks):
        return f"{header.n_ranks} of {header.world_size} ranks on {models}"
    is_one_model = len(header.gpu_names) == 1
    return f"{header.n_ranks} x {models}" if is_one_model else f"{header.n_ranks} ranks on {models}"


def steps_text(run: Run) -> str:
    """Return how many steps the metrics use: ``8 steps used (10 captured)``."""
    if run.is_capture:
        return "a capture without steps"
    summary = run.summary().to_pylist()[0]
    n_used, n_captured = summary["n_summary_steps"], summary["n_steps"]
    used = "1 step used" if n_used == 1 else f"{n_used} steps used"
    return used if n_used == n_captured else f"{used} ({n_captured} captured)"
