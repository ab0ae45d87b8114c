"""From base units to words: the only place that converts or rounds."""

from __future__ import annotations

__all__ = ["absent", "bytes_text", "count_text", "ms_text", "percent_text", "rate_text"]

_NS_PER_MS = 1e6
_BYTE_UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))

# What stands where nothing was recorded.
absent = "-"


def ms_text(ns: float | None) -> str:
    """Return nanoseconds as milliseconds with four significant digits, ``12.34 ms``."""
    if ns is None:
        return absent
    ms = ns / _NS_PER_MS
    if ms == 0:
        return "0 ms"
    digits = 1 if ms >= 100 else 2 if ms >= 10 else 3  # noqa: PLR2004 - significant digits
    return f"{ms:.{digits}f} ms"


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
    scale, unit = next(((scale, unit) for scale, unit in _BYTE_UNITS if n_bytes >= scale), (1, "B"))
    return f"{n_bytes / scale:.2f} {unit}" if scale > 1 else f"{n_bytes:.0f} B"


def rate_text(per_second: float | None) -> str:
    """Return steps per second, ``1.55 steps/s``."""
    return absent if per_second is None else f"{per_second:.3g} steps/s"


def count_text(count: float | None) -> str:
    """Return a count or a mean count without needless decimals."""
    return absent if count is None else f"{count:.6g}"
