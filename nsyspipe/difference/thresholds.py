"""What counts as a change, unless something else is asked for."""

from __future__ import annotations

import math

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
    if not (isinstance(confidence, int | float) and _LEAST_CONFIDENCE < confidence < 1):
        raise OptionError(given, f"is not between {_LEAST_CONFIDENCE} and 1", fix=fix)
    return confidence


def check_min_effect(min_effect: object) -> None:
    """Check a ratio from 0.

    Raises
    ------
    OptionError
        If it is none.
    """
    if not (isinstance(min_effect, int | float) and 0 <= min_effect < math.inf):
        raise OptionError(f"min_effect={min_effect!r}", "is no ratio from 0", fix="min_effect=0.02")
