"""From base units to words, the only place that converts or rounds; and what figures are called wherever they are shown."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from nsyspipe.model.figures import METRICS, Figure, shown

_Units: TypeAlias = tuple[tuple[float, str, float], ...]
_NS_PER_MS = 1e6
_NS_PER_US = 1e3
_SHORT_NS = 1e4  # from here on a time is in ms: so are most, and those beside it can be compared
_TIME_UNITS: _Units = (
    (1e9, "s", 1e9),
    (_NS_PER_MS, "ms", _SHORT_NS),
    (_NS_PER_US, "us", _NS_PER_US),
    (1.0, "ns", 0.0),
)
_MOST_DECIMALS = {"ns": 0, "us": 3}  # a time has no more; any other quantity four
_SMALLEST_MS = 0.001
_ROUNDS_UP = 0.999995  # from here on two decimals round up to the next unit
_RATES = ((1.0, "steps/s", 0.0),)
_GB_S = ((1e9, "GB/s", 0.0),)
_BYTE_UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
absent = "-"  # where nothing was recorded
# shares that need a decimal
_SMALL_SHARE = 0.0095
_NEARLY_ALL = 0.995
_MOST_DIGITS = 3
_NO_DECIMAL = 1000
POINTS = "pp"  # what a difference of ratios is in
# What the mean step time is the sum of.
STEP_PARTS = tuple(METRICS[name] for name in ("compute", "exposed_comm", "exposed_memory", "idle"))


class Quantity(str):
    """A quantity in words, and what stands behind it, that knows its size, so that a whole column can be written in one unit."""

    size: float
    units: _Units
    then: str

    def __new__(
        cls, text: str, size: float, units: _Units = _TIME_UNITS, then: str = ""
    ) -> Quantity:
        """Return the words of a quantity, in ns if no units are given: (size of one, name, from where on it is used)."""
        quantity = super().__new__(cls, text + then)
        quantity.size, quantity.units, quantity.then = size, units, then
        return quantity


def ms_text(ns: float | None, n_digits: int = 4) -> str:
    """Return nanoseconds as milliseconds with so many significant digits, ``12.34 ms``; none before the point is left out."""
    if ns is None:
        return absent
    is_tiny = 0 < abs(ns / _NS_PER_MS) < _SMALLEST_MS
    return Quantity(
        f"<{_SMALLEST_MS} ms" if is_tiny else f"{_significant(ns / _NS_PER_MS, n_digits)} ms", ns
    )


def in_one_unit(texts: Sequence[str], unit: str = "") -> list[str]:
    """Return the cells of a column or row of quantities in one unit, and with the decimals that the largest has of four digits.

    ``unit`` is one that the heading names, and the cells then do not; else it is that of the
    largest. What is not zero but rounds to it says so, and a difference keeps its sign. What holds
    anything else but such and dashes stays as it is.
    """
    known = [text for text in texts if isinstance(text, Quantity)]
    if len({one.units for one in known}) != 1 or len(known) + texts.count(absent) < len(texts):
        return [*texts]
    largest = max(abs(one.size) for one in known) or _NS_PER_MS
    scale, name, _ = next(
        one for one in known[0].units if (one[1] == unit if unit else largest >= one[2])
    )
    digits = min(_decimals(largest / scale), _MOST_DECIMALS.get(name, 4))
    named = "" if unit else f" {name}"
    written = (
        f"{_number(one.size / scale, digits, '+' if one[0] == '+' else '-')}{named}{one.then}"
        for one in known
    )
    return [next(written) if isinstance(text, Quantity) else text for text in texts]


def beside(time: str, values: Iterable[float | None]) -> str:
    """Return a time, or its difference, as it stands in a row of others: in one unit, with decimals that tell the shortest, but of the longest five digits."""
    lengths = [abs(value) for value in values if value]
    if not isinstance(time, Quantity) or time.units is not _TIME_UNITS or not lengths:
        return time
    scale, name, _ = next(one for one in _TIME_UNITS[1:] if max(lengths) >= one[2])
    digits = min(
        _decimals(min(lengths) / scale),
        _decimals(max(lengths) / scale, 5),
        _MOST_DECIMALS.get(name, 4),
    )
    return f"{_number(time.size / scale, digits, '+' if time.startswith('+') else '-')} {name}"


def _number(value: float, digits: int, sign: str) -> str:
    number = f"{value:{sign}.{digits}f}" if value else "0"
    if value and not float(number):
        return (
            f"<{10**-digits:.{digits}f}"
            if sign == "-" and value > 0
            else f"{value:{sign}.{_decimals(value, 1)}f}"
        )
    return number


def _decimals(value: float, n_digits: int = 4) -> int:
    return (
        max(n_digits - 1 - math.floor(math.log10(abs(float(f"{value:.{n_digits - 1}e}")))), 0)
        if value
        else 0
    )


def _significant(value: float, n_digits: int = 4) -> str:
    return f"{value:.{_decimals(value, n_digits)}f}" if value else "0"


def with_share(time: str, ratio: float | None) -> str:
    """Return a time and the share of the whole that it is, ``12.34 ms (5.6%)``."""
    return (
        Quantity(time, time.size, then=f" ({percent_text(ratio)})")
        if isinstance(time, Quantity)
        else time
    )


def percent_text(ratio: float | None, digits: int = 1) -> str:
    """Return a ratio in percent, ``12.3%``; a small one that is not zero says so."""
    if ratio is None:
        return absent
    text = f"{100 * ratio + 0.0:.{digits}f}"
    is_hidden = ratio and float(text) == 0
    if is_hidden:
        sign = "<" if ratio > 0 else ">-"
        return f"{sign}{10**-digits:.{digits}f}%"
    return f"{text}%"


def short_percent(ratio: float | None) -> str:
    """Return a ratio in percent for a first look: whole percent, with one decimal below 1%; only all of it is 100%."""
    if ratio is None:
        return absent
    is_small = 0 < abs(ratio) < _SMALL_SHARE
    is_nearly_all = _NEARLY_ALL <= ratio < 1
    return percent_text(ratio, 1 if is_small or is_nearly_all else 0)


def sure_text(confidence: float) -> str:
    """Return how sure an interval is, ``95%``, in as many digits as it was given."""
    return f"{100 * confidence:.14g}%"


def bytes_text(n_bytes: float | None, digits: int = 2) -> str:
    """Return bytes in decimal units, ``1.70 GB``."""
    if n_bytes is None:
        return absent
    sizes = (
        f"{n_bytes / scale:.{digits}f} {unit}"
        for scale, unit in _BYTE_UNITS
        if n_bytes >= _ROUNDS_UP * scale
    )
    return next(sizes, f"{n_bytes:.0f} B")


def bandwidth_text(bytes_per_s: float | None) -> str:
    """Return bytes per second as GB/s of 1e9 with four significant digits, ``24.07 GB/s``."""
    return (
        absent
        if bytes_per_s is None
        else Quantity(f"{_significant(bytes_per_s / 1e9)} GB/s", bytes_per_s, _GB_S)
    )


def rate_text(per_second: float | None, n_digits: int = 4) -> str:
    """Return steps per second with so many significant digits, ``1.551 steps/s``."""
    if per_second is None:
        return absent
    return Quantity(f"{_significant(per_second, n_digits)} steps/s", per_second, _RATES)


def count_text(count: float | None) -> str:
    """Return a count as it is, a mean count with four significant digits."""
    if count is None:
        return absent
    return f"{count:.0f}" if count == round(count) else _significant(count)


def _time_text(ns: float | None) -> str:
    if ns is None or not 0 < abs(ns) < _SHORT_NS:
        return ms_text(ns)
    return Quantity(f"{ns / _NS_PER_US:.4g} us" if abs(ns) >= _NS_PER_US else f"{ns:.4g} ns", ns)


# Of each unit of a column: its words, and of those of a small difference the unit, its size, and
# below which it is small.
_UNITS: dict[str, tuple[Callable[[float | None], str], str, float, float]] = {
    "ns": (_time_text, "ns", 1.0, 1.0),
    "1/s": (rate_text, "steps/s", 1.0, 1e-3),
    "ratio": (percent_text, POINTS, 1.0, 0.0),
    "count": (count_text, "", 1.0, 1e-3),
    "bytes": (bytes_text, "B", 1.0, 1.0),
    "bytes/s": (bandwidth_text, "GB/s", 1e9, 1e6),
}


def value_text(unit: str | None, value: float | None) -> str:
    """Return a figure with its unit."""
    return _UNITS[unit or "count"][0](value)


def delta_text(unit: str | None, delta: float | None) -> str:
    """Return a difference with sign and unit; of ratios in percentage points."""
    if delta is None:
        return absent
    if unit == "ratio":
        return f"{signed(100 * delta)} {POINTS}"
    size, (_, name, scale, least) = abs(delta), _UNITS[unit or "count"]
    sized = f"{size / scale:.2g} {name}".rstrip() if 0 < size < least else value_text(unit, size)
    text = f"{_sign(delta)}{sized}"
    return Quantity(text, delta) if unit == "ns" else text


def signed(value: float, told_from: float | None = None) -> str:
    """Return a number as `decimals` does, with its sign."""
    return f"{_sign(value)}{decimals(abs(value), told_from)}"


def _sign(value: float) -> str:
    if value > 0:
        return "+"
    return "-" if value < 0 else ""


def decimals(size: float, told_from: float | None = None) -> str:
    """Write with one decimal, or as many as tell it from zero and from another number; at last with an exponent; from 1000 on without."""
    if not size or size >= _NO_DECIMAL:
        return f"{size:.0f}" if size else "0.0"
    for digits in range(1, _MOST_DIGITS + 1):
        text = f"{size:.{digits}f}"
        if float(text) and (
            told_from is None or math.isclose(size, told_from) or text != f"{told_from:.{digits}f}"
        ):
            return text
    return f"{size:.0e}" if size < 10**-_MOST_DIGITS else f"{size:.{_MOST_DIGITS + 3}g}"


def counted(count: int, noun: str) -> str:
    """Return a count with its noun, ``1 check`` or ``3 checks``."""
    return f"{count} {noun_for(count, noun)}"


def noun_for(count: int, noun: str) -> str:
    """Return a noun, in the plural unless the count is 1."""
    return noun if count == 1 else f"{noun}s"


def upper_first(text: str) -> str:
    """Return a text with its first letter as a capital, all others as they are."""
    return f"{text[:1].upper()}{text[1:]}"


def metric_figure(name: str) -> Figure | None:
    """Return the figure of a metric of `diff`; None of those that are none of its main ones."""
    return next((figure for figure in shown("difference") if figure.name == name), None)


def metric_label(name: str) -> str:
    """Return a metric of `diff` in words."""
    figure = METRICS.get(name)
    return figure.short if figure else name.replace("_", " ")
