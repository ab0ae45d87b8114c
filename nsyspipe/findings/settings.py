"""Environment variables that cost time, if the steps show their effect.

A setting and everything that follows from it are one cause.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from nsyspipe.analysis.traffic import OTHER, TENSOR
from nsyspipe.findings.model import Answer, Evidence, Finding, NotJudged, Rules
from nsyspipe.model.names import listed
from nsyspipe.model.table import Float64
from nsyspipe.nsys.settings import HOST, STREAMS, costly_settings

_MIN_EXPOSED_SHARE_OF_STEP = 0.05
_MIN_IDLE_SHARE_OF_STEP = 0.02
_CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"
_TIMING = "TORCH_NCCL_ENABLE_TIMING"
_BLOCKING_WAIT = "TORCH_NCCL_BLOCKING_WAIT"
_UNSET_BOTH_OF_STREAMS = f"Unset {_CONNECTIONS} and NCCL's timing"
_NOT_KNOWN = NotJudged("communication and compute not known on every rank", None)
_ADVICE = {
    _CONNECTIONS: (
        f"{_CONNECTIONS}=1 gives all streams one queue. Unset {_CONNECTIONS}, or set 8 or more "
        "(Megatron's tensor "
        "parallelism asks for 1 on GPUs before Blackwell)"
    ),
    _TIMING: (
        f"{_TIMING}=1 records events around each collective, which prevents overlap if streams "
        "share a queue. "
        f"Set {_TIMING}=0"
    ),
    "CUDA_LAUNCH_BLOCKING": (
        "CUDA_LAUNCH_BLOCKING=1 makes each launch wait for its kernel, which is only useful for "
        "debugging. Unset CUDA_LAUNCH_BLOCKING"
    ),
    _BLOCKING_WAIT: (
        f"{_BLOCKING_WAIT}=1 makes the CPU wait for each collective. Unset {_BLOCKING_WAIT} "
        "and use "
        "TORCH_NCCL_ASYNC_ERROR_HANDLING for timeouts"
    ),
}


def serialized_streams(evidence: Evidence) -> Answer:
    """Fire if a setting can keep streams from overlapping, and communication is exposed.

    Exposed communication without waiting must be 5 % of step time. In a run with only tensor
    parallelism, CUDA_DEVICE_MAX_CONNECTIONS=1 is no such setting, because the run may need it.

    Saving: what steps gain if windows are shorter by exposed transfer, and by idle time in which
    operations were launched, but had not begun.
    """
    settings = costly_settings(evidence.environment, STREAMS)
    if _is_only_tensor_parallel(evidence):
        settings.pop(_CONNECTIONS, None)
    if not settings:
        return None
    transfer_ns = evidence.exposed_transfer_ns_per_step
    if transfer_ns is None:
        return _NOT_KNOWN
    exposed_share = evidence.share_of_step(transfer_ns)
    if not evidence.has_comm or exposed_share < _MIN_EXPOSED_SHARE_OF_STEP:
        return None
    wall_ns, dependency_ns = evidence.columns("wall_ns", "idle_dependency_ns")
    shortened_ns = wall_ns - (_exposed_transfer_ns(evidence) + dependency_ns)
    figures: dict[str, Any] = {
        "settings": settings,
        "overlap_ratio": evidence.summary["overlap_ratio"],
        "exposed_transfer_ns_per_step": transfer_ns if evidence.is_wait_known else None,
    }
    figures |= evidence.means("exposed_comm_ns", "idle_dependency_ns")
    assigned = _assignments_text(settings)
    title = f"{assigned} can keep communication from overlapping with compute"
    action = _UNSET_BOTH_OF_STREAMS if len(settings) > 1 else f"Unset {listed(settings)}"
    advice = _advise_about(settings)
    saving_ns = evidence.saving_down_to(shortened_ns)
    return Finding(title, action, advice, saving_ns, figures)


def _exposed_transfer_ns(evidence: Evidence) -> Float64:
    """Return exposed communication without waiting, on each row of `steps`.

    If waiting is not known, all exposed communication counts.
    """
    exposed_ns, exposed_wait_ns = evidence.columns("exposed_comm_ns", "exposed_wait_ns")
    return exposed_ns - exposed_wait_ns if evidence.is_wait_known else exposed_ns


def _is_only_tensor_parallel(evidence: Evidence) -> bool:
    """Tell whether a run has traffic, and all traffic of known roles is tensor parallelism."""
    roles = set(evidence.roles)
    return bool(roles) and roles <= {TENSOR, OTHER}


def blocking_launches(evidence: Evidence) -> Answer:
    """Fire if a setting makes the host wait for the GPU, and the steps show it.

    The steps show it if one of these is true. GPUs idle for 2 % of step time because launches come
    late or hosts are blocked, the mean over ranks. Or 5 % of step time is exposed communication
    without waiting.

    Saving: all of the step except its compute, because everything else can run at the same time
    once the host runs ahead.
    """
    settings = costly_settings(evidence.environment, HOST)
    if not evidence.has_comm:
        settings.pop(_BLOCKING_WAIT, None)
    if not settings or not _is_host_blocked(evidence):
        return None
    saving_ns = None
    if not evidence.steps["compute_ns"].null_count:
        (compute_ns,) = evidence.columns("compute_ns")
        saving_ns = evidence.saving_down_to(compute_ns)
    means = evidence.means("idle_launch_ns", "idle_blocked_ns", "exposed_comm_ns", "compute_ns")
    figures = {"settings": settings, **means}
    assigned = _assignments_text(settings)
    verb = "make" if len(settings) > 1 else "makes"
    title = f"{assigned} {verb} the CPU wait for the GPU"
    action = f"Unset {', '.join(settings)}"
    return Finding(title, action, _advise_about(settings), saving_ns, figures)


def _is_host_blocked(evidence: Evidence) -> bool:
    """Tell whether the steps show that the host waits for the GPU.

    A host that waits launches late, so GPUs idle. It also launches no compute that could overlap
    with communication, so communication is exposed.
    """
    launch_ns = evidence.mean("idle_launch_ns") or 0.0
    blocked_ns = evidence.mean("idle_blocked_ns") or 0.0
    idle_ns = launch_ns + blocked_ns
    if evidence.share_of_step(idle_ns) >= _MIN_IDLE_SHARE_OF_STEP:
        return True
    transfer_ns = evidence.exposed_transfer_ns_per_step or 0.0
    exposed_share = evidence.share_of_step(transfer_ns)
    return evidence.has_comm and exposed_share >= _MIN_EXPOSED_SHARE_OF_STEP


def _assignments_text(settings: Mapping[str, str]) -> str:
    assignments = [f"{name}={value}" for name, value in settings.items()]
    return listed(assignments)


def _advise_about(settings: Iterable[str]) -> str:
    return ". ".join(_ADVICE[name] for name in settings)


# A run without such settings lacks nothing if a figure is not known.
RULES: Rules = {serialized_streams: (), blocking_launches: ()}
