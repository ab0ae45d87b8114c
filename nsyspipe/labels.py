"""The NVTX vocabulary: how range texts are normalised, and which names mean a phase or no step at all."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "DIGITS_PATTERN",
    "PHASES",
    "PHASE_PATTERNS",
    "SUFFIX_PATTERN",
    "holds_steps",
    "is_library_domain",
    "is_operator",
    "phase_of",
    "step_number",
]

# In order of precedence: a text that matches several is the first.
PHASE_PATTERNS: dict[str, str] = {
    "backward": r"(?i)(?<![a-z])(backward|bwd)(?![a-z])",
    "forward": r"(?i)(?<![a-z])(forward|fwd)(?![a-z])",
    "optimizer": r"(?i)\boptim",
    "data": r"(?i)\b(get|fetch|load|next)?[ _-]*(batch|data|input)",
}
PHASES = tuple(PHASE_PATTERNS)

# torch.autograd.profiler.emit_nvtx appends these to every text. Both patterns mean the same to RE2
# (Arrow) and to Python.
SUFFIX_PATTERN = r", (?:seq|op_id) = [0-9]+"
DIGITS_PATTERN = r"[0-9]+"

# Domains that libraries open for ranges of their own, by how their names begin; any other named domain is the user's.
_LIBRARY_DOMAINS = (
    "NCCL", "MPI", "DALI", "CCCL", "UCX", "cuBLAS", "cuDNN", "cuFFT", "cuSPARSE", "cuSOLVER", "cuRAND", "cuTENSOR",
    "cuFile", "cuDF", "libcudf", "libcu++", "libcudacxx", "TensorRT", "NVSHMEM", "nvJPEG", "nvImageCodec", "librmm",
    "libkvikio",
)  # fmt: skip
# Abbreviations as they are written; names in any case.
_LIBRARY_DOMAIN = re.compile(
    "|".join(
        re.escape(one) if one.isupper() else f"(?i:{re.escape(one)})" for one in _LIBRARY_DOMAINS
    )
)
# What torch.autograd.profiler.emit_nvtx and pyprof write: one range per operator, or a dictionary of its arguments.
_OPERATOR = re.compile(
    r"(?:aten|autograd|c(?:10|#)d?|_c(?:10|#)d_functional|prim|quantized|torch|torchaudio|torchvision)::"
    r"|\{\s*['\"]\w+['\"]\s*:"
)
_HOLDS_STEPS = re.compile(r"(?i)epoch|warm[-_ ]?up")
_LARGEST_STEP = 2**63 - 1
_MOST_DIGITS = 19


def step_number(text: str) -> int | None:
    """Return the one integer in the text, suffixes dropped; None when there is not exactly one."""
    found = re.findall(DIGITS_PATTERN, re.sub(SUFFIX_PATTERN, "", text))
    if len(found) != 1 or len(found[0].lstrip("0")) > _MOST_DIGITS:
        return None
    number = int(found[0].lstrip("0") or "0")
    return number if number <= _LARGEST_STEP else None


def holds_steps(family: str) -> bool:
    """Tell whether a family is named like an epoch or a warm-up, which hold many steps."""
    return _HOLDS_STEPS.search(family) is not None


def is_library_domain(name: str) -> bool:
    """Tell whether an NVTX domain is a library's own: cuBLAS, cuBLASLt, DALI, NCCL, and so on."""
    return _LIBRARY_DOMAIN.match(name) is not None


def is_operator(family: str) -> bool:
    """Tell whether a text, normalised or not, is an operator's: ``aten::mm``, ``{'mod': 'torch', ...}``."""
    return _OPERATOR.match(family) is not None


def phase_of(family: str, patterns: Mapping[str, re.Pattern[str]]) -> str | None:
    """Return the first phase whose pattern matches a normalised text, or None."""
    return next((phase for phase in PHASES if patterns[phase].search(family)), None)
