"""A difference's figures with units and signs: however small one is, its sign is told."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from nsyspipe.units import (
    absent,
    bandwidth_text,
    bytes_text,
    count_text,
    ms_text,
    percent_text,
    rate_text,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = [
    "delta_text",
    "interval_cell",
    "interval_in_percent",
    "interval_text",
    "percent_change",
    "value_text",
]

_NS_PER_US, _SHORT_NS = 1e3, 1e5
_POINTS = "points"
_MOST_DIGITS = 3


def _time_text(ns: float | None) -> str:
    """Return milliseconds, and what is much shorter in microseconds or nanoseconds."""
    if ns is None or not 0 < abs(ns) < _SHORT_NS:
        return ms_text(ns)
    return f"{ns / _NS_PER_US:.4g} us" if abs(ns) >= _NS_PER_US else f"{ns:.4g} ns"


_TEXTS: dict[str, Callable[[float | None], str]] = {
    "ns": _time_text,
    "1/s": rate_text,
    "ratio": percent_text,
    "count": count_text,
    "bytes": bytes_text,
    "bytes/s": bandwidth_text,
}
# Of each unit: what differences are shown in, how much of that one is, below which its own words say too little.
_SMALL = {
    "ns": ("ns", 1.0, 1.0),
    "1/s": ("steps/s", 1.0, 1e-3),
    "count": ("", 1.0, 1e-3),
    "bytes": ("B", 1.0, 1.0),
    "bytes/s": ("GB/s", 1e9, 1e6),
}


def value_text(unit: str | None, value: float | None) -> str:
    """Return a figure with its unit."""
    return _TEXTS[unit or "count"](value)


def delta_text(unit: str | None, delta: float | None) -> str:
    """Return a difference with sign and unit; of ratios in percentage points."""
    if delta is None:
        return absent
    size = abs(delta)
    sign = "+" if delta > 0 else "-" if delta < 0 else ""
    if unit == "ratio":
        return f"{sign}{_percent(100 * size)} {_POINTS}"
    name, scale, least = _SMALL[unit or "count"]
    if 0 < size < least:
        return f"{sign}{size / scale:.2g} {name}".rstrip()
    return f"{sign}{value_text(unit, size)}"


def percent_change(row: Mapping[str, Any]) -> str:
    """Return the relative difference with its sign; nothing of ratios, which have points."""
    pct = row["delta_pct"]
    if pct is None or row["unit"] == "ratio":
        return absent
    return f"{_signed(pct, row.get('min_effect_pct'))} %"


def interval_in_percent(row: Mapping[str, Any]) -> str | None:
    """Return the interval in per cent of the baseline, and what counts; of ratios in points. None without either."""
    base, least = row["baseline"], row["min_effect"]
    if row["ci_low"] is None or least is None or not (base or row["unit"] == "ratio"):
        return None
    unit, word = (1, _POINTS) if row["unit"] == "ratio" else (abs(base), "%")
    counts = 100 * least / unit
    low, high = (_signed(100 * row[name] / unit, counts) for name in ("ci_low", "ci_high"))
    return f"{low} to {high} {word}, and {_percent(counts)} {word} counts"


def _signed(pct: float, counts: float | None) -> str:
    return f"{'+' if pct > 0 else '-' if pct < 0 else ''}{_percent(abs(pct), counts)}"


def _percent(size: float, counts: float | None = None) -> str:
    """Write with one decimal, or as many as tell it from zero and from what counts; at last with an exponent."""
    if not size:
        return "0.0"
    for digits in range(1, _MOST_DIGITS + 1):
        text = f"{size:.{digits}f}"
        is_told = counts is None or math.isclose(size, counts) or text != f"{counts:.{digits}f}"
        if float(text) and is_told:
            return text
    return f"{size:.0e}" if size < 10**-_MOST_DIGITS else f"{size:.{_MOST_DIGITS + 3}g}"


def interval_text(row: Mapping[str, Any]) -> str:
    """Return the interval of a metric's difference, ``-74.15 .. -71.61 ms``; one unit where both ends have it."""
    if row["ci_low"] is None:
        return absent
    low, high = (delta_text(row["unit"], row[name]) for name in ("ci_low", "ci_high"))
    return f"{low.removesuffix(f' {unit}') if (unit := _unit(high)) else low} .. {high}"


def interval_cell(row: Mapping[str, Any]) -> str:
    """Return the same without the unit, for a table that has it in the cell of the difference, if that is the same."""
    text = interval_text(row)
    unit = _unit(text)
    is_same = unit and unit == _unit(delta_text(row["unit"], row["delta"])) == _unit(
        delta_text(row["unit"], row["ci_low"])
    )
    return text.removesuffix(f" {unit}") if is_same else text


def _unit(text: str) -> str:
    return text.rpartition(" ")[2] if " " in text else ""
