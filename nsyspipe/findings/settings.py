"""Settings of the environment that cost time, where the steps show what they do: each with what follows from it as one cause."""

from collections.abc import Iterable, Mapping

from nsyspipe.analysis.traffic import OTHER, TENSOR
from nsyspipe.findings.model import Answer, Evidence, Finding, NotJudged, Rules
from nsyspipe.model.names import listed
from nsyspipe.nsys.settings import HOST, STREAMS, costly_settings

_LEAST_EXPOSED = 0.05
_LEAST_IDLE = 0.02
_CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"
_TIMING = "TORCH_NCCL_ENABLE_TIMING"
_BLOCKING_WAIT = "TORCH_NCCL_BLOCKING_WAIT"
_UNSET_BOTH_OF_STREAMS = f"Unset {_CONNECTIONS} and NCCL's timing"
_NOT_KNOWN = "communication and compute not known on every rank", None
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
    """Fire when a setting can keep streams from running beside each other, and 5 % of step time is exposed communication.

    Waiting is not counted. A run of tensor parallelism alone may want
    CUDA_DEVICE_MAX_CONNECTIONS=1. Saving: exposed transfer, and idle time of operations that were
    launched and had not begun; the largest over ranks of each step.
    """
    settings = costly_settings(evidence.environment, STREAMS)
    if evidence.roles and set(evidence.roles) <= {TENSOR, OTHER}:
        settings.pop(_CONNECTIONS, None)
    if not settings:
        return None
    transfer = evidence.exposed_transfer_ns_per_step
    if transfer is None:
        return NotJudged(*_NOT_KNOWN)
    if not evidence.has_comm or evidence.share_of_step(transfer) < _LEAST_EXPOSED:
        return None
    wall, exposed, wait, dependency = evidence.columns(
        "wall_ns", "exposed_comm_ns", "exposed_wait_ns", "idle_dependency_ns"
    )
    gone = exposed - wait + dependency if evidence.is_wait_known else exposed + dependency
    figures = {
        "settings": settings,
        "overlap_ratio": evidence.summary["overlap_ratio"],
        "exposed_transfer_ns_per_step": transfer if evidence.is_wait_known else None,
        **evidence.means("exposed_comm_ns", "idle_dependency_ns"),
    }
    title = f"{_assigned(settings)} can keep communication from overlapping with compute"
    action = _UNSET_BOTH_OF_STREAMS if len(settings) > 1 else f"Unset {listed(settings)}"
    return Finding(title, action, _advice(settings), evidence.saving_down_to(wall - gone), figures)


def blocking_launches(evidence: Evidence) -> Answer:
    """Fire when a setting makes the host wait for the GPU, and the GPU idles 2 % of step time for it.

    That is idle time because launches come late or the host is blocked, the mean over ranks; or 5 %
    of step time is exposed communication. Saving: all of the step but its compute, as all else can
    go beside it once the host runs ahead.
    """
    settings = costly_settings(evidence.environment, HOST)
    if not evidence.has_comm:
        settings.pop(_BLOCKING_WAIT, None)
    idle = (evidence.mean("idle_launch_ns") or 0.0) + (evidence.mean("idle_blocked_ns") or 0.0)
    transfer = (evidence.exposed_transfer_ns_per_step or 0.0) if evidence.has_comm else 0.0
    is_seen = (
        evidence.share_of_step(idle) >= _LEAST_IDLE
        or evidence.share_of_step(transfer) >= _LEAST_EXPOSED
    )
    if not settings or not is_seen:
        return None
    (compute,) = evidence.columns("compute_ns")
    is_bounded = not evidence.steps["compute_ns"].null_count
    figures = {
        "settings": settings,
        **evidence.means("idle_launch_ns", "idle_blocked_ns", "exposed_comm_ns", "compute_ns"),
    }
    verb = "make" if len(settings) > 1 else "makes"
    title = f"{_assigned(settings)} {verb} the CPU wait for the GPU"
    saving = evidence.saving_down_to(compute) if is_bounded else None
    return Finding(title, f"Unset {', '.join(settings)}", _advice(settings), saving, figures)


def _assigned(settings: Mapping[str, str]) -> str:
    return listed(f"{name}={value}" for name, value in settings.items())


def _advice(settings: Iterable[str]) -> str:
    return ". ".join(_ADVICE[name] for name in settings)


# A run without such settings lacks nothing where a figure is not known.
RULES: Rules = {serialized_streams: (), blocking_launches: ()}
