"""From base units to words. Only this module converts and rounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeAlias

from nsyspipe.model.figures import METRICS, Figure, shown
from nsyspipe.model.names import counted, verb_for


class Unit(NamedTuple):
    """A unit of a quantity."""

    # In base units.
    size: float
    name: str
    # The smallest quantity, in base units, that is written in this unit.
    smallest: float


# The largest unit comes first.
_Units: TypeAlias = tuple[Unit, ...]
_NS_PER_MS = 1e6
_NS_PER_US = 1e3
# Longer times are in ms. Most times are, and times in one unit are easy to compare.
_MIN_NS_IN_MS = 1e4
_TIME_UNITS: _Units = (
    Unit(1e9, "s", 1e9),
    Unit(_NS_PER_MS, "ms", _MIN_NS_IN_MS),
    Unit(_NS_PER_US, "us", _NS_PER_US),
    Unit(1.0, "ns", 0.0),
)
_MAX_DECIMALS = 4
_MAX_DECIMALS_OF_UNIT = {"ns": 0, "us": 3}
_MIN_SHOWN_MS = 0.001
# From this share of a unit on, bytes are written in the unit.
_MIN_SHARE_OF_UNIT = 0.999995
_RATES: _Units = (Unit(1.0, "steps/s", 0.0),)
_BANDWIDTHS: _Units = (Unit(1e9, "GB/s", 0.0),)
_FLOP_RATES: _Units = (Unit(1e12, "TFLOP/s", 0.0),)
# The largest unit comes first.
_BYTES_OF_UNIT = {"TB": 1e12, "GB": 1e9, "MB": 1e6, "kB": 1e3}
# Shown where nothing was recorded.
absent = "-"
# Shares from 0.95 % to below 99.5 % need no decimal at a first look.
_MIN_SHARE_WITHOUT_DECIMAL = 0.0095
_MAX_SHARE_WITHOUT_DECIMAL = 0.995
_MAX_DECIMALS_OF_NUMBER = 3
_MIN_NUMBER_WITHOUT_DECIMAL = 1000
# The unit of differences of ratios.
POINTS = "pp"
# The mean step time is the sum of these metrics.
STEP_PARTS = tuple(METRICS[name] for name in ("compute", "exposed_comm", "exposed_memory", "idle"))


class Quantity(str):
    """A quantity in words that knows its size, so that a whole column can have one unit."""

    # In base units.
    size: float
    units: _Units
    # Words after the quantity, such as its share of a whole. They stay if the unit changes.
    words_after: str

    def __new__(
        cls, text: str, size: float, units: _Units = _TIME_UNITS, words_after: str = ""
    ) -> Quantity:
        """Return the words of a quantity, which is in ns if no units are given."""
        quantity = super().__new__(cls, text + words_after)
        quantity.size = size
        quantity.units = units
        quantity.words_after = words_after
        return quantity

    @property
    def sign(self) -> str:
        """How a number format shows its sign: ``+`` for both signs, ``-`` for minus only."""
        return "+" if self.startswith("+") else "-"


def ms_text(ns: float | None, n_digits: int = 4) -> str:
    """Return nanoseconds as milliseconds, ``12.34 ms``, with this many significant digits.

    Digits before the point are never left out. A time that is not zero but closer to zero than
    0.001 ms is ``<0.001 ms``, or ``>-0.001 ms`` if it is negative.
    """
    if ns is None:
        return absent
    ms = ns / _NS_PER_MS
    is_tiny = 0 < abs(ms) < _MIN_SHOWN_MS
    number = _significant(ms, n_digits)
    if is_tiny:
        sign = "<" if ms > 0 else ">-"
        number = f"{sign}{_MIN_SHOWN_MS}"
    return Quantity(f"{number} ms", ns)


def in_one_unit(texts: Sequence[str], heading_unit: str = "") -> list[str]:
    """Return the cells of a column or row in one unit, and all with the same number of decimals.

    The largest cell decides the unit, and has four digits. If the heading names a unit
    (`heading_unit`), cells have that unit and do not name it. A cell that is not zero but would
    round to zero says so, and a difference keeps its sign.

    Cells are returned as they are if some are neither quantities nor dashes, if there is no
    quantity, and if there are quantities of two kinds, such as times and bandwidths.
    """
    quantities = [text for text in texts if isinstance(text, Quantity)]
    n_quantities_and_dashes = len(quantities) + texts.count(absent)
    kinds_of_units = {quantity.units for quantity in quantities}
    if len(kinds_of_units) != 1 or n_quantities_and_dashes < len(texts):
        return [*texts]
    (units,) = kinds_of_units
    largest = max(abs(quantity.size) for quantity in quantities)
    # If all times are 0, they are in ms. Other kinds of quantities have only one unit.
    deciding_size = largest or _NS_PER_MS
    chosen_unit = _unit_of(deciding_size, units, heading_unit)
    decimals_of_largest = _decimals(deciding_size / chosen_unit.size)
    n_decimals = min(decimals_of_largest, _max_decimals(chosen_unit))
    unit_text = "" if heading_unit else f" {chosen_unit.name}"

    def rewritten(cell: str) -> str:
        if not isinstance(cell, Quantity):
            return cell
        number = _number(cell.size / chosen_unit.size, n_decimals, cell.sign)
        return f"{number}{unit_text}{cell.words_after}"

    return [rewritten(text) for text in texts]


def _unit_of(size: float, units: Iterable[Unit], name: str = "") -> Unit:
    """Return the unit for a size, or the unit with a name if one is given."""
    if name:
        return next(unit for unit in units if unit.name == name)
    return next(unit for unit in units if size >= unit.smallest)


def _max_decimals(unit: Unit) -> int:
    return _MAX_DECIMALS_OF_UNIT.get(unit.name, _MAX_DECIMALS)


def in_unit_of_row(text: str, values_ns: Iterable[float | None]) -> str:
    """Return the text of a time, or of a difference of times, in the unit of its row.

    `values_ns` are the times of the row. The longest one decides the unit, which is ms at most. The
    decimals show four digits of the shortest time, but at most five digits of the longest. A text
    that is not a time stays.
    """
    lengths_ns = [abs(value) for value in values_ns if value]
    if not lengths_ns or not isinstance(text, Quantity):
        return text
    if text.units is not _TIME_UNITS:
        return text
    _seconds, *units_up_to_ms = _TIME_UNITS
    shortest_ns = min(lengths_ns)
    longest_ns = max(lengths_ns)
    unit = _unit_of(longest_ns, units_up_to_ms)
    decimals_of_shortest = _decimals(shortest_ns / unit.size)
    max_decimals_of_longest = _decimals(longest_ns / unit.size, n_digits=5)
    n_decimals = min(decimals_of_shortest, max_decimals_of_longest, _max_decimals(unit))
    number = _number(text.size / unit.size, n_decimals, text.sign)
    return f"{number} {unit.name}"


def _number(value: float, n_decimals: int, sign: str) -> str:
    """Return a number with some decimals. `sign` is that of `Quantity.sign`.

    A number that is not zero but rounds to zero is ``<0.01``. If it has a plus or a minus in front,
    it has enough decimals for one digit instead, ``-0.004``.
    """
    if not value:
        return "0"
    text = f"{value:{sign}.{n_decimals}f}"
    is_rounded_to_zero = float(text) == 0
    if not is_rounded_to_zero:
        return text
    has_sign_in_front = sign == "+" or value < 0
    if has_sign_in_front:
        n_decimals_of_first_digit = _decimals(value, n_digits=1)
        return f"{value:{sign}.{n_decimals_of_first_digit}f}"
    smallest_shown = 10**-n_decimals
    return f"<{smallest_shown:.{n_decimals}f}"


def _decimals(value: float, n_digits: int = 4) -> int:
    """Return with how many decimals a value has this many significant digits."""
    if not value:
        return 0
    # Rounded first, because rounding may add a digit: 9.9996 is 10.00 with four digits.
    rounded = float(f"{value:.{n_digits - 1}e}")
    # 0 for one digit before the point, and -1 for 0.1 to 0.99.
    exponent = math.floor(math.log10(abs(rounded)))
    return max(n_digits - 1 - exponent, 0)


def _significant(value: float, n_digits: int = 4) -> str:
    """Return a number with this many significant digits. 0 has no decimals."""
    if not value:
        return "0"
    n_decimals = _decimals(value, n_digits)
    return f"{value:.{n_decimals}f}"


def with_share(time: str, ratio: float | None) -> str:
    """Return a time with its share of the whole, ``12.34 ms (5.6%)``."""
    if not isinstance(time, Quantity):
        return time
    share = f" ({percent_text(ratio)})"
    return Quantity(time, time.size, words_after=share)


def percent_text(ratio: float | None, n_decimals: int = 1) -> str:
    """Return a ratio in percent, ``12.3%``, with this many decimals.

    A ratio that is not zero but rounds to zero is ``<0.1%``, or ``>-0.1%`` if it is negative.
    """
    if ratio is None:
        return absent
    # Adding zero makes a negative zero positive.
    percent = 100 * ratio + 0.0
    text = f"{percent:.{n_decimals}f}"
    is_rounded_to_zero = ratio != 0 and float(text) == 0
    if is_rounded_to_zero:
        sign = "<" if ratio > 0 else ">-"
        smallest_shown = 10**-n_decimals
        return f"{sign}{smallest_shown:.{n_decimals}f}%"
    return f"{text}%"


def short_percent(ratio: float | None) -> str:
    """Return a ratio in percent for a first look: whole percent, with one decimal below 1%.

    A ratio below 1 is never ``100%``: from 99.5% on, it has a decimal.
    """
    if ratio is None:
        return absent
    is_small = 0 < abs(ratio) < _MIN_SHARE_WITHOUT_DECIMAL
    is_nearly_all = _MAX_SHARE_WITHOUT_DECIMAL <= ratio < 1
    n_decimals = 1 if is_small or is_nearly_all else 0
    return percent_text(ratio, n_decimals)


def sure_text(confidence: float) -> str:
    """Return the confidence of an interval, ``95%``, with all of its digits."""
    return f"{100 * confidence:.14g}%"


def bytes_text(n_bytes: float | None, n_decimals: int = 2) -> str:
    """Return bytes in decimal units, ``1.70 GB``."""
    if n_bytes is None:
        return absent
    for unit, unit_bytes in _BYTES_OF_UNIT.items():
        # Just below a unit, two decimals would round to 1000.00 of the smaller unit.
        if n_bytes >= _MIN_SHARE_OF_UNIT * unit_bytes:
            return f"{n_bytes / unit_bytes:.{n_decimals}f} {unit}"
    return f"{n_bytes:.0f} B"


def bandwidth_text(bytes_per_s: float | None) -> str:
    """Return bytes per second as GB/s of 1e9, with four significant digits, ``24.07 GB/s``."""
    if bytes_per_s is None:
        return absent
    number = _significant(bytes_per_s / 1e9)
    return Quantity(f"{number} GB/s", bytes_per_s, _BANDWIDTHS)


def rate_text(per_second: float | None, n_digits: int = 4) -> str:
    """Return steps per second with this many significant digits, ``1.551 steps/s``."""
    if per_second is None:
        return absent
    number = _significant(per_second, n_digits)
    return Quantity(f"{number} steps/s", per_second, _RATES)


def flop_rate_text(flops_per_s: float | None) -> str:
    """Return FLOPs per second as TFLOP/s of 1e12, ``227.4 TFLOP/s``."""
    if flops_per_s is None:
        return absent
    number = _significant(flops_per_s / 1e12)
    return Quantity(f"{number} TFLOP/s", flops_per_s, _FLOP_RATES)


def token_rate_text(per_second: float | None) -> str:
    """Return tokens per second, ``196400 tokens/s``."""
    return absent if per_second is None else f"{_significant(per_second)} tokens/s"


def sample_rate_text(per_second: float | None) -> str:
    """Return samples per second, ``767.4 samples/s``."""
    return absent if per_second is None else f"{_significant(per_second)} samples/s"


def count_text(count: float | None) -> str:
    """Return a count as it is, or a mean count with four significant digits."""
    if count is None:
        return absent
    is_whole = count == round(count)
    return f"{count:.0f}" if is_whole else _significant(count)


def _time_text(ns: float | None) -> str:
    """Return a time in ms, or a short time in us or ns."""
    is_short = ns is not None and 0 < abs(ns) < _MIN_NS_IN_MS
    if ns is None or not is_short:
        return ms_text(ns)
    is_in_us = abs(ns) >= _NS_PER_US
    text = f"{ns / _NS_PER_US:.4g} us" if is_in_us else f"{ns:.4g} ns"
    return Quantity(text, ns)


class _ColumnUnit(NamedTuple):
    """How the values of a column are written."""

    write: Callable[[float | None], str]
    # A difference below `small` is written in this unit, with two digits.
    small_unit: str
    small_unit_size: float
    small: float


_UNIT_OF_COLUMN = {
    "ns": _ColumnUnit(_time_text, "ns", 1.0, 1.0),
    "1/s": _ColumnUnit(rate_text, "steps/s", 1.0, 1e-3),
    "ratio": _ColumnUnit(percent_text, POINTS, 1.0, 0.0),
    "count": _ColumnUnit(count_text, "", 1.0, 1e-3),
    "bytes": _ColumnUnit(bytes_text, "B", 1.0, 1.0),
    "bytes/s": _ColumnUnit(bandwidth_text, "GB/s", 1e9, 1e6),
    "FLOP": _ColumnUnit(count_text, "FLOP", 1.0, 1.0),
    "FLOP/s": _ColumnUnit(flop_rate_text, "TFLOP/s", 1e12, 1e9),
    "token/s": _ColumnUnit(token_rate_text, "tokens/s", 1.0, 1e-3),
    "sample/s": _ColumnUnit(sample_rate_text, "samples/s", 1.0, 1e-3),
}


def value_text(unit: str | None, value: float | None) -> str:
    """Return a value with its unit."""
    return _UNIT_OF_COLUMN[unit or "count"].write(value)


def delta_text(unit: str | None, delta: float | None) -> str:
    """Return a difference with its sign and unit. Differences of ratios are percentage points."""
    if delta is None:
        return absent
    if unit == "ratio":
        return f"{signed(100 * delta)} {POINTS}"
    size = abs(delta)
    # A metric without a unit is a count.
    column_unit = _UNIT_OF_COLUMN[unit or "count"]
    is_small = 0 < size < column_unit.small
    if is_small:
        size_in_small_unit = size / column_unit.small_unit_size
        # A count has no unit, and then no space behind it.
        size_text = f"{size_in_small_unit:.2g} {column_unit.small_unit}".rstrip()
    else:
        size_text = column_unit.write(size)
    text = f"{_sign(delta)}{size_text}"
    # Only times are written again in the unit of their column.
    return Quantity(text, delta) if unit == "ns" else text


def signed(value: float, distinct_from: float | None = None) -> str:
    """Return a number with its sign, as `decimals` writes it."""
    number = decimals(abs(value), distinct_from)
    return f"{_sign(value)}{number}"


def _sign(value: float) -> str:
    if value > 0:
        return "+"
    return "-" if value < 0 else ""


def decimals(size: float, distinct_from: float | None = None) -> str:
    """Return a number with one to three decimals, as few as possible.

    The decimals must show that `size` is not zero, and that it is not the number `distinct_from`.
    If three decimals do not show that, the number has six digits, and a tiny number has an
    exponent. A number from 1000 on has no decimal.
    """
    if not size:
        return "0.0"
    if size >= _MIN_NUMBER_WITHOUT_DECIMAL:
        return f"{size:.0f}"
    for n_decimals in range(1, _MAX_DECIMALS_OF_NUMBER + 1):
        text = f"{size:.{n_decimals}f}"
        is_zero = float(text) == 0
        if not is_zero and _looks_distinct(size, distinct_from, n_decimals):
            return text
    is_tiny = size < 10**-_MAX_DECIMALS_OF_NUMBER
    return f"{size:.0e}" if is_tiny else f"{size:.6g}"


def _looks_distinct(size: float, number: float | None, n_decimals: int) -> bool:
    """Tell whether two numbers have different texts.

    True as well if the numbers are equal, because no decimals could distinguish them.
    """
    if number is None or math.isclose(size, number):
        return True
    text = f"{size:.{n_decimals}f}"
    return text != f"{number:.{n_decimals}f}"


def place_of_more(count: int, noun: str, place: str) -> str:
    """Return a sentence about what is not shown, such as ``3 more ranks are in --json``."""
    more = counted(count, f"more {noun}")
    return f"{more} {verb_for(count, 'are')} in {place}."


def upper_first(text: str) -> str:
    """Return a text with its first letter as a capital, all others as they are."""
    first_letter = text[:1].upper()
    return f"{first_letter}{text[1:]}"


def metric_figure(name: str) -> Figure | None:
    """Return the figure of a metric of `diff`. None if it is not one of the main metrics."""
    figures = (figure for figure in shown("difference") if figure.name == name)
    return next(figures, None)


def metric_label(name: str) -> str:
    """Return a metric of `diff` in words."""
    figure = METRICS.get(name)
    return figure.short if figure else name.replace("_", " ")
