"""What counts as a change, unless something else is asked for."""

from __future__ import annotations

import math
from numbers import Real

from nsyspipe.errors import OptionError

__all__ = [
    "DEFAULT_CONFIDENCE",
    "DEFAULT_MIN_EFFECT",
    "DEFAULT_MIN_EFFECT_PCT",
    "check_confidence",
    "effect_ratio",
]

DEFAULT_MIN_EFFECT_PCT, DEFAULT_CONFIDENCE = 2.0, 0.95
DEFAULT_MIN_EFFECT = DEFAULT_MIN_EFFECT_PCT / 100
_LEAST_CONFIDENCE = 0.5


def check_confidence(confidence: object, given: str, fix: str) -> float:
    """Return a confidence above 0.5 and below 1.

    Parameters
    ----------
    given, fix
        How an error names it, and a value that could be used.

    Raises
    ------
    OptionError
        If it is not.
    """
    value = _number(confidence)
    if not _LEAST_CONFIDENCE < value < 1:
        raise OptionError(given, f"is no number between {_LEAST_CONFIDENCE} and 1", fix=fix)
    return value


def effect_ratio(min_effect_pct: object, min_effect: object = None) -> float:
    """Return a percentage from 0 as a ratio: 2 and "2%" are both 0.02.

    Parameters
    ----------
    min_effect
        What an earlier parameter was given, which took ratios: refused, since it may mean either.

    Raises
    ------
    OptionError
        If it is no percentage.
    """
    fix = "min_effect_pct=2"
    if min_effect is not None:
        raise OptionError(f"min_effect={min_effect!r}", "may be a ratio or per cent", fix=fix)
    text = min_effect_pct.strip().removesuffix("%") if isinstance(min_effect_pct, str) else None
    try:
        value = _number(min_effect_pct) if text is None else float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise OptionError(f"min_effect_pct={min_effect_pct!r}", "is no percentage from 0", fix=fix)
    return value / 100


def _number(value: object) -> float:
    """Return a number of Python or numpy; NaN for a flag and for anything else."""
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    return float(value) if is_number else math.nan  # type: ignore[arg-type]  # a number
