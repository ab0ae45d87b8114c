"""Rule ``alloc-in-step``: calls that allocate or free GPU memory recur in the steps."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from nsyspipe.analysis.memory_calls import MEMORY_CALL_COLUMNS
from nsyspipe.findings.idle import Idle, Removed, measure_idle, measure_large_idle
from nsyspipe.findings.model import (
    Answer,
    Evidence,
    Finding,
    NotJudged,
    Rules,
    Wording,
    fill_zero,
)
from nsyspipe.model.call_names import MANAGING_MEMORY
from nsyspipe.model.table import Flags

# Calls recur on a rank if it has them in so many steps, behind the first step of the capture. So
# many of the later half of these steps must have them, too: what ends is a warm-up.
MIN_SHARE_OF_STEPS = 0.5
MIN_STEPS = 2
IDLE_COLUMN = "idle_blocked_by_allocs_ns"
_REMOVED = Removed(("idle_made_by_allocs_ns",))
_MEANS = (
    *MEMORY_CALL_COLUMNS,
    "exposed_alloc_ns",
    "idle_blocked_by_allocs_ns",
    "idle_made_by_allocs_ns",
)
# Older versions of PyTorch know only the first.
_SETTINGS = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
_EXPANDABLE = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
_THRESHOLD = "garbage_collection_threshold"
_TITLE_OF_FAILING = "The GPU idles because allocations of GPU memory fail in the steps"
_TITLE_OF_FREEING = "The GPU idles because the steps free GPU memory"
_TITLE_OF_GROWING = "The GPU idles because the steps allocate more GPU memory"


def alloc_in_step(evidence: Evidence) -> Answer:
    """Fire if calls that allocate or free GPU memory recur, and GPUs idle for 2 % of step time.

    `recurring_ranks` says on which ranks they recur. The rank that the others wait for must be one
    of these, and its idle time counts. Saving: that of `idle.measure_idle` without all idle time
    that these calls can have made.
    """
    ranks = recurring_ranks(evidence, "n_allocs", "n_frees")
    if not ranks:
        return None
    if measure_idle(evidence, IDLE_COLUMN) is None:
        reason = "the cause of idle time next to allocations is unknown"
        return NotJudged(reason, "see the notes about clocks and calls")
    idle = measure_large_idle(evidence, IDLE_COLUMN, removed=_REMOVED)
    if idle is None:
        return None
    # If the middle rank is judged, it is not known which rank that is.
    is_on_other_rank = idle.rank is not None and idle.rank not in ranks
    if is_on_other_rank:
        return None
    words = _word(evidence)
    figures = _figures(evidence, idle, ranks)
    title = words.title + idle.rank_clause
    return Finding(title, words.action, words.advice, idle.saving_ns, figures)


def recurring_ranks(evidence: Evidence, *columns: str) -> dict[int, int]:
    """Return the ranks on which some calls recur, with the number of steps that have such calls.

    `columns` are counts of these calls in the steps. The first captured step does not count,
    because its calls are a warm-up. A last step that the capture cuts off counts.
    """
    n_steps_of_rank: dict[int, int] = {}
    rank_of_row = evidence.all_steps["rank"].to_numpy()
    step_of_row = evidence.all_steps["step"].to_numpy()
    has_call = _have_calls(evidence, columns)
    for rank in np.unique(rank_of_row).tolist():
        is_of_rank = rank_of_row == rank
        steps_of_rank = step_of_row[is_of_rank]
        is_later = steps_of_rank != steps_of_rank[0]
        has_call_later = has_call[is_of_rank][is_later]
        if _do_recur(has_call_later):
            n_steps_of_rank[rank] = int(has_call_later.sum())
    return n_steps_of_rank


def _have_calls(evidence: Evidence, columns: Collection[str]) -> Flags:
    """Tell which of all steps have calls that some columns count."""
    has_call = np.zeros(evidence.all_steps.num_rows, np.bool_)
    for name in columns:
        n_calls = fill_zero(evidence.all_steps.column(name))
        has_call |= n_calls.to_numpy() > 0
    return has_call


def _do_recur(has_call: Flags) -> bool:
    """Tell whether calls recur: in enough steps of all, and of the later half of the steps.

    The steps are in order of time. An odd one in the middle belongs to the later half.
    """
    if has_call.sum() < MIN_STEPS:
        return False
    n_earlier = has_call.size // 2
    later_half = has_call[n_earlier:]
    least_share = min(has_call.mean(), later_half.mean())
    return bool(least_share >= MIN_SHARE_OF_STEPS)


def _figures(evidence: Evidence, idle: Idle, ranks: Mapping[int, int]) -> dict[str, Any]:
    """Return the figures of the finding. `ranks` are those of `recurring_ranks`.

    Parts of the bound, retries and settings are among them only if there are any.
    """
    figures: dict[str, Any] = {**evidence.means(*_MEANS)}
    by_rank = {str(rank): n_steps for rank, n_steps in ranks.items()}
    figures["n_steps_with_allocs_by_rank"] = by_rank
    if evidence.n_ranks > 1:
        figures["rank"] = idle.rank
    if idle.bound is not None and idle.bound.parts:
        figures["saving_ns_per_step_by_part"] = {**idle.bound.parts}
    blocked_ns = evidence.blocked_ns_by_call
    figures["idle_ns_per_step_by_call"] = {
        name: blocked_ns[name] for name in blocked_ns if name in MANAGING_MEMORY
    }
    if evidence.alloc_retries:
        retries = {str(rank): number for rank, number in evidence.alloc_retries.items()}
        figures["n_alloc_retries_by_rank"] = retries
    settings = _settings(evidence)
    if settings:
        figures["settings"] = settings
    return figures


def _settings(evidence: Evidence) -> dict[str, str]:
    """Return the settings of PyTorch's allocator among the recorded variables."""
    variables = evidence.environment or {}
    return {name: variables[name] for name in _SETTINGS if name in variables}


def _is_set(evidence: Evidence, option: str) -> bool | None:
    """Tell whether the allocator has an option; None if no variables were recorded."""
    if evidence.environment is None:
        return None
    settings = " ".join(_settings(evidence).values())
    return option in settings.lower()


def _word(evidence: Evidence) -> Wording:
    """Say what to change: by whether allocations fail, memory is freed, or memory only grows."""
    # If it is not known whether the option is set, it is advised.
    may_expand = not _is_set(evidence, "expandable_segments:true")
    if evidence.mean("n_failed_allocs"):
        return _word_failing(may_expand=may_expand)
    if recurring_ranks(evidence, "n_frees"):
        return _word_freeing(evidence)
    advice = "Capture later steps to see whether this ends"
    if may_expand:
        advice += f". If sizes of tensors vary, set {_EXPANDABLE}"
    advice += ". If memory grows without end, the program keeps tensors, such as losses"
    return Wording(_TITLE_OF_GROWING, "Find out why the steps need more GPU memory", advice)


def _word_failing(*, may_expand: bool) -> Wording:
    advice = (
        "After an allocation that fails, PyTorch frees its cache, which waits for the GPU. Use "
        "less memory: a smaller batch, or activation checkpointing"
    )
    if may_expand:
        advice += f". {_EXPANDABLE} helps if memory is fragmented"
    return Wording(_TITLE_OF_FAILING, "Use less GPU memory", advice)


def _word_freeing(evidence: Evidence) -> Wording:
    """Name what frees memory: calls of the program, or a setting unless it is known to be unset."""
    causes = ["torch.cuda.empty_cache()"]
    if _is_set(evidence, _THRESHOLD) is not False:
        causes.append(_THRESHOLD)
    uses_none = "uses neither" if len(causes) > 1 else "does not use it"
    advice = (
        f"Keep memory in the cache of PyTorch: remove {' and '.join(causes)}. If the program "
        f"{uses_none}, look for a library that frees GPU memory without PyTorch"
    )
    if evidence.mean("n_failed_allocs") is None:
        advice += ", or allocations fail"
    return Wording(_TITLE_OF_FREEING, "Keep GPU memory from step to step", advice)


RULES: Rules = {alloc_in_step: ("n_allocs",)}
