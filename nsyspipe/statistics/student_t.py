"""Quantiles of Student's t distribution, which neither numpy nor the standard library has."""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import pairwise
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    FloatArray = NDArray[np.float64]

__all__ = ["critical_value", "two_sided_tail", "two_sided_tails"]

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(12)
# In units of t: pieces on which these give 9 digits of the integral, whatever the degrees of freedom.
_PIECES = (0.0, 2.0, 7.0, math.inf)

_TINY = 1e-300
_CLOSE = 1e-14
_STEPS = 100
# Beyond this the difference to the normal distribution is less than a part in 10^7.
_NORMAL_FROM = 1e8


def two_sided_tail(t: float, freedom: float) -> float:
    """Return P(|T| > t) for Student's t with `freedom` degrees of freedom (any real above 0).

    The regularised incomplete beta function I_x(freedom/2, 1/2) at x = freedom / (freedom + t^2).
    """
    square = t * t
    return _incomplete_beta(
        freedom / 2, 0.5, freedom / (freedom + square), square / (freedom + square)
    )


def two_sided_tails(t: FloatArray, freedom: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return P(|T| > t) of many t at once, each with its degrees of freedom, and the density of |T| there.

    With t = sqrt(freedom) tan a the density of T is cos(a)^(freedom - 1) da, but for a constant: integrated piecewise
    by Gauss and Legendre.
    """
    root = np.sqrt(freedom)
    at = np.arctan(t / root)
    below, whole = np.zeros_like(at), np.zeros_like(at)
    for low, high in pairwise(_PIECES):
        left, right = np.arctan(low / root), np.arctan(high / root)
        end = np.clip(at, left, right)
        below += _of_cosine(left, end, freedom)
        whole += _of_cosine(left, right, freedom)
    return 1 - below / whole, np.cos(at) ** (freedom + 1) / root / whole


def _of_cosine(low: FloatArray, high: FloatArray, freedom: FloatArray) -> FloatArray:
    width = (high - low) / 2
    angles = low[:, None] + width[:, None] * (_NODES + 1)
    found: FloatArray = width * (np.cos(angles) ** (freedom[:, None] - 1) @ _WEIGHTS)
    return found


@lru_cache(maxsize=4096)
def critical_value(confidence: float, freedom: float) -> float:
    """Return t such that P(|T| <= t) is `confidence`: what a two-sided interval multiplies its error by.

    Parameters
    ----------
    confidence
        Between 0 and 1, both excluded.
    freedom
        Degrees of freedom, any real number of at least 1 (Welch's are not whole); infinity is the
        normal distribution.

    Raises
    ------
    ValueError
        Outside these ranges.

    Notes
    -----
    Newton's method on `two_sided_tail`, to 13 digits; checked against printed tables.

    Examples
    --------
    >>> round(critical_value(0.95, 10), 4)
    2.2281
    """
    if not (0 < confidence < 1 and freedom >= 1):
        msg = f"no Student t quantile for confidence {confidence!r}, {freedom!r} degrees of freedom"
        raise ValueError(msg)
    tail = 1 - confidence
    t = -NormalDist().inv_cdf(tail / 2)
    if freedom > _NORMAL_FROM:
        return t
    # The tail is convex and falls, and the normal quantile is too small: Newton climbs to the root.
    front = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)
    front -= math.log(freedom * math.pi) / 2
    for _ in range(_STEPS):
        slope = 2 * math.exp(front - (freedom + 1) / 2 * math.log1p(t * t / freedom))
        step = (two_sided_tail(t, freedom) - tail) / slope
        t += step
        if step <= _CLOSE * t:
            break
    return t


def _incomplete_beta(a: float, b: float, x: float, rest: float) -> float:
    """I_x(a, b); `rest` is 1 - x, given by the caller because subtracting would lose it near 1."""
    if x <= 0 or rest <= 0:
        return 0.0 if x <= 0 else 1.0
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log(rest)
    )
    if x < (a + 1) / (a + b + 2):
        return front * _fraction(a, b, x) / a
    return 1 - front * _fraction(b, a, rest) / b


def _fraction(a: float, b: float, x: float) -> float:
    """Return the continued fraction of the incomplete beta function by Lentz's method."""
    c, d = 1.0, 1 / _off_zero(1 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, 10_000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1 / _off_zero(1 + term * d)
            c = _off_zero(1 + term / c)
            value *= c * d
        if abs(c * d - 1) < 1e-15:  # noqa: PLR2004 - the last bits of a float
            break
    return value


def _off_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
