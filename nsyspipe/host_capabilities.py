"""What changes in the answers of reports without any device activity: nothing of a device can be asked of them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from nsyspipe.capability_rules import NO, PARTLY, YES, Finding, phase_counts
from nsyspipe.problems import CATALOGUE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsyspipe.capability_rules import Examined


__all__ = ["of_host", "with_host_processes"]

_OF_DEVICE = {
    "compute_and_comm", "launches", "copies", "gpu_model", "nccl_ranges", "message_bytes", "idle_causes",
    "kernel_shapes", "cuda_graphs", "gpu_metrics", "link",
}  # fmt: skip


def with_host_processes(reports: Sequence[Examined]) -> tuple[list[Examined], bool]:
    """Let the processes with steps stand for ranks where no report has device activity, and tell whether they do."""
    is_host_only = not any(one.pids for one in reports)
    if is_host_only:
        return [replace(one, pids=_with_steps(one)) for one in reports], True
    return list(reports), False


def _with_steps(report: Examined) -> tuple[int, ...]:
    return tuple(sorted(one.pid for one in report.digest.hosts if one.members.num_rows))


def of_host(name: str, found: Finding, report: Examined, *, was_left_out: bool) -> Finding:
    """Return what a report without device activity has for one question.

    Parameters
    ----------
    found
        What its rule says, which takes nothing recorded for nothing there.
    was_left_out
        Whether no GPU was to be traced: then no fix of a capture helps.
    """
    fix = None if was_left_out else CATALOGUE["no-gpu-activity"].fix
    if name == "phases" and (counts := phase_counts(report)):
        return Finding(PARTLY, counts, fix=fix)  # their times on the host
    if name == "phases" and was_left_out:
        return replace(found, text="no NVTX range is named like a phase", fix=None)
    if name not in _OF_DEVICE:
        return found
    if was_left_out:
        return Finding(NO, text="captured without a GPU")
    text = "no GPU activity" if found.status == YES else found.text
    return Finding(NO, text=text, fix=fix)
