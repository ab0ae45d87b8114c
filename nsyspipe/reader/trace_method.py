"""How CUDA was traced: by hardware events of the GPU, or by instrumented software.

nsys 2025.2 began to trace by hardware on GPUs of the Blackwell generation, and newer versions do it
by default. NVIDIA documents that the diagnostics tell the method, and not in which words. So a text
counts only if it is about one method. No real report with a hardware trace was available.
"""

import re
from collections.abc import Iterable

from nsyspipe.reader.report import DIAGNOSTICS, GPU, Report, version_numbers

HARDWARE = "hardware"
SOFTWARE = "software"
_FIRST_PRODUCT = (2025, 2)
# Compute capability of Blackwell, the first generation with hardware trace.
_FIRST_MAJOR = 10
_ABOUT_CUDA_TRACE = "text LIKE '%CUDA%' AND (text LIKE '%trac%' OR text LIKE '%collect%')"
_MAX_TEXTS = 1000
_HARDWARE = re.compile(r"\bhardware\b|\bHES\b|\bcuda-hw\b", re.IGNORECASE)
_SOFTWARE = re.compile(r"\bsoftware\b|\bcuda-sw\b", re.IGNORECASE)
_FALLS_BACK = re.compile(r"\bfall(?:s|ing)?(?: |-)?back\b|\bfell back\b", re.IGNORECASE)
_DENIES = re.compile(
    r"\bnot\b|\bno\b|n't\b|\bunsupported\b|\bunavailable\b|\bfailed\b|\bcannot\b|\bmay\b",
    re.IGNORECASE,
)


def cuda_traces_of(report: Report, nsys_version: str | None) -> tuple[str, ...]:
    """Return the methods by which CUDA was traced, as far as they are certain; empty if unknown.

    `nsys_version` is the version that exported. The one that captured was not newer.
    """
    version = version_numbers(nsys_version)
    is_known = version != (0, 0)
    if is_known and version < _FIRST_PRODUCT:
        # Neither this nsys nor the one that captured could trace by hardware.
        return (SOFTWARE,)
    if _has_only_older_gpus(report):
        return (SOFTWARE,)
    rows = report.few(DIAGNOSTICS, {"text": "text"}, f"{_ABOUT_CUDA_TRACE} LIMIT {_MAX_TEXTS}")
    return told_methods(row["text"] for row in rows)


def told_methods(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the methods that diagnostics tell.

    >>> told_methods(["CUDA hardware trace is used."])
    ('hardware',)
    >>> told_methods(["CUDA hardware trace is not supported, falling back to software trace."])
    ('software',)
    >>> told_methods(["CUDA hardware trace may be faster than software trace."])
    ()
    """
    methods = {_told_method(text) for text in texts}
    return tuple(sorted(method for method in methods if method is not None))


def _told_method(text: str) -> str | None:
    """Return the method by which CUDA was traced, according to a text of nsys.

    None if the text names no method, or does not tell which of the two methods was used.
    """
    names_hardware = _HARDWARE.search(text) is not None
    names_software = _SOFTWARE.search(text) is not None
    if names_hardware and names_software:
        # nsys falls back from hardware to software. Such a text may also deny the hardware.
        return SOFTWARE if _FALLS_BACK.search(text) else None
    if _DENIES.search(text):
        return None
    if names_hardware:
        return HARDWARE
    return SOFTWARE if names_software else None


def _has_only_older_gpus(report: Report) -> bool:
    """Tell whether all GPUs of the host are known to be too old for a trace by hardware."""
    rows = report.few(GPU, {"computeMajor": "int"})
    majors = [row["computeMajor"] for row in rows]
    are_older = [major is not None and 0 < major < _FIRST_MAJOR for major in majors]
    return bool(majors) and all(are_older)
