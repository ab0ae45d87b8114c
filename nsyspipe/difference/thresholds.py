"""What counts as a change, unless something else is asked for."""

from __future__ import annotations

import math
from numbers import Real

from nsyspipe.errors import OptionError

__all__ = ["DEFAULT_CONFIDENCE", "DEFAULT_MIN_EFFECT", "check_confidence", "check_min_effect"]

DEFAULT_MIN_EFFECT, DEFAULT_CONFIDENCE = 0.02, 0.95
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


def check_min_effect(min_effect: object) -> None:
    """Check a ratio from 0.

    Raises
    ------
    OptionError
        If it is none.
    """
    if not 0 <= _number(min_effect) < math.inf:
        raise OptionError(f"min_effect={min_effect!r}", "is no ratio from 0", fix="min_effect=0.02")


def _number(value: object) -> float:
    """Return a number of Python or numpy; NaN for a flag and for anything else."""
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    return float(value) if is_number else math.nan  # type: ignore[arg-type]  # a number
