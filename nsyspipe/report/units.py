"""From base units to words: the only place that converts or rounds."""

from __future__ import annotations

import math

_NS_PER_MS = 1e6
_SMALLEST_MS = 0.001
# From here on two decimals round up to the next unit.
_ROUNDS_UP = 0.999995
_BYTE_UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))

# What stands where nothing was recorded.
absent = "-"


def ms_text(ns: float | None) -> str:
    """Return nanoseconds as milliseconds with four significant digits, ``12.34 ms``."""
    if ns is None:
        return absent
    ms = ns / _NS_PER_MS
    if ms and abs(ms) < _SMALLEST_MS:
        return f"<{_SMALLEST_MS} ms"
    return f"{_significant(ms)} ms"


def _significant(value: float) -> str:
    """Write a number with four significant digits and no exponent."""
    if value == 0:
        return "0"
    magnitude = math.floor(math.log10(abs(float(f"{value:.3e}"))))
    return f"{value:.{max(3 - magnitude, 0)}f}"


def percent_text(ratio: float | None, digits: int = 1) -> str:
    """Return a ratio as per cent, ``12.3 %``; a small one that is not zero says so."""
    if ratio is None:
        return absent
    text = f"{100 * ratio:.{digits}f}"
    if ratio and float(text) == 0:
        return f"<{10**-digits:.{digits}f} %"
    return f"{text} %"


def bytes_text(n_bytes: float | None) -> str:
    """Return bytes in decimal units, ``1.70 GB``."""
    if n_bytes is None:
        return absent
    for scale, unit in _BYTE_UNITS:
        if n_bytes >= _ROUNDS_UP * scale:
            return f"{n_bytes / scale:.2f} {unit}"
    return f"{n_bytes:.0f} B"


def bandwidth_text(bytes_per_s: float | None) -> str:
    """Return bytes per second as GB/s of 1e9 with four significant digits, ``24.07 GB/s``."""
    return absent if bytes_per_s is None else f"{_significant(bytes_per_s / 1e9)} GB/s"


def rate_text(per_second: float | None) -> str:
    """Return steps per second with four significant digits, ``1.551 steps/s``."""
    return absent if per_second is None else f"{_significant(per_second)} steps/s"


def count_text(count: float | None) -> str:
    """Return a count as it is, a mean count with four significant digits."""
    if count is None:
        return absent
    return f"{count:.0f}" if count == round(count) else _significant(count)
