"""What run an answer is about, in one line: GPUs, parallelism and the steps used."""

from __future__ import annotations

from collections.abc import Sequence

from nsyspipe.analysis.traffic import DATA, EXPERT, OTHER, PIPELINE, SHARDED, TENSOR, dimensions
from nsyspipe.model.names import listed
from nsyspipe.report.blocks import Title
from nsyspipe.report.words import counted_of_all, ranks_text, steps_used_text
from nsyspipe.run.run import Run

_PARALLELISM = {
    DATA: "data parallel",
    SHARDED: "FSDP/ZeRO",
    TENSOR: "tensor parallel",
    PIPELINE: "pipeline parallel",
    EXPERT: "expert parallel",
}

# The method of tracing that is named.
_HARDWARE = "hardware"


def title_of(run: Run) -> Title:
    """Return what the run is called and what it ran on."""
    header = run.header
    facts = [_machines(run)]
    if header.hosts:
        n_nodes = len(header.hosts)
        nodes = "one node" if n_nodes == 1 else f"{n_nodes} nodes"
        facts.append(nodes)
    facts.append(_parallelism(run))
    # Tracing by software is usual, so it is not named.
    if _HARDWARE in header.cuda_trace_methods:
        facts.append(f"CUDA traced by {listed(header.cuda_trace_methods)}")
    known_facts = [fact for fact in facts if fact]
    return Title(header.label, known_facts)


def subject_facts(run: Run) -> list[str]:
    """Return what a run ran on, and how many steps its metrics use."""
    return [hardware_text(run), steps_text(run)]


def hardware_text(run: Run) -> str:
    """Return what a run ran on: ``4 x NVIDIA H200, one node, data parallel``."""
    return ", ".join(title_of(run).facts)


def steps_text(run: Run) -> str:
    """Return how many steps the metrics use: ``8 steps used of 10 captured``.

    Without GPU activity, return the number of steps on the CPU. If no training steps were found,
    return that.
    """
    # A row per step and process, only if no GPU activity was recorded.
    n_host_steps = run.host_steps().num_rows
    if n_host_steps:
        return f"{n_host_steps} CPU steps"
    if run.is_capture:
        return "no training steps found"
    (summary,) = run.summary().to_pylist()
    n_used = summary["n_summary_steps"]
    return steps_used_text(run, n_used, summary["n_steps"])


def _machines(run: Run) -> str:
    """Return the GPUs of a run: ``4 x NVIDIA H200``.

    If the GPUs are of several models, ranks share a process, or ranks are missing, return the ranks
    and their GPUs. Without ranks, return how many processes there are.
    """
    header = run.header
    if not header.n_ranks:
        rows = run.host_steps().to_pylist()
        distinct_processes = {(row["report"], row["pid"]) for row in rows}
        processes = counted_of_all(
            len(distinct_processes), header.world_size, noun="process", plural_ending="es"
        )
        return f"{processes} without GPU activity"
    gpus = listed(header.gpu_names) if header.gpu_names else ""
    # A job of unknown size counts as complete.
    n_job_ranks = header.n_job_ranks or header.n_ranks
    is_whole_job = header.n_ranks >= n_job_ranks
    is_of_one_model = len(header.gpu_names) == 1
    if is_whole_job and is_of_one_model and not header.has_shared_processes:
        return f"{header.n_ranks} x {gpus}"
    ranks = ranks_text(header)
    return f"{ranks} on {gpus}" if gpus else ranks


def _parallelism(run: Run) -> str:
    """Return the kinds of parallelism: ``data parallel``, or ``data 4 x tensor 2``.

    A single kind has no size. Empty if communication is not known.
    """
    groups = dimensions(run.traffic(), run.header.world_size)
    groups_of_known_kind = [group for group in groups if set(group.roles) != {OTHER}]
    if len(groups_of_known_kind) == 1:
        return listed(_kinds(groups_of_known_kind[0].roles))
    return " x ".join(_sized(group.roles, group.size) for group in groups_of_known_kind)


def _kinds(roles: Sequence[str]) -> list[str]:
    return [_PARALLELISM[role] for role in roles if role in _PARALLELISM]


def _sized(roles: Sequence[str], n_ranks_in_group: int | None) -> str:
    """Return the kinds of parallelism of a process group with its size: ``tensor 2``."""
    kinds = _kinds(roles)
    names = listed(kind.removesuffix(" parallel") for kind in kinds)
    if n_ranks_in_group is None:
        return names
    return f"{names} {n_ranks_in_group}"
