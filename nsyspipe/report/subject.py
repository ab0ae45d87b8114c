"""What run an answer is about, in one line: GPUs, parallelism and the steps used."""

from __future__ import annotations

from nsyspipe.report.first_screen import title_of
from nsyspipe.report.words import steps_used_text
from nsyspipe.run.run import Run


def subject_facts(run: Run) -> list[str]:
    """Return what a run ran on, and how many steps its metrics use."""
    return [hardware_text(run), steps_text(run)]


def hardware_text(run: Run) -> str:
    """Return what a run ran on: ``4 x NVIDIA H200, one node, data parallel``."""
    return ", ".join(title_of(run).facts)


def steps_text(run: Run) -> str:
    """Return how many steps the metrics use: ``8 steps used of 10 captured``."""
    n_host_steps = run.host_steps().num_rows
    if n_host_steps:
        return f"{n_host_steps} CPU steps"
    if run.is_capture:
        return "no training steps found"
    summary = run.summary().to_pylist()[0]
    return steps_used_text(run, summary["n_summary_steps"], summary["n_steps"])
