"""Student's t distribution, which neither numpy nor the standard library has."""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import pairwise

import numpy as np

from nsyspipe.model.table import Float64

# Gauss and Legendre: places in a piece of the integral, and their weights. The places are closer
# together towards the upper end of the piece, where the density has no derivative below 2 degrees
# of freedom. This gives nine digits of the integral.
_GRADING = 4
_NODES, _NODE_WEIGHTS = np.polynomial.legendre.leggauss(24)
_UNIT_NODES = (_NODES + 1) / 2
_SHARES_FROM_END = _UNIT_NODES**_GRADING
_WEIGHTS = _NODE_WEIGHTS / 2 * _GRADING * _UNIT_NODES ** (_GRADING - 1)
# Ends of the pieces, in units of t.
_PIECE_ENDS = (0.0, 2.0, 7.0, math.inf)
_MAX_RELATIVE_ERROR = 1e-9
_MAX_NEWTON_STEPS = 60


def two_sided_tails(t: Float64, freedom: Float64) -> tuple[Float64, Float64]:
    """Return P(|T| > t) for several t, each with its degrees of freedom, and the density of |T|.

    With t = sqrt(freedom) tan a, the density of T is cos(a)^(freedom - 1) da, up to a constant. It
    is integrated piece by piece.
    """
    root = np.sqrt(freedom)
    angle = np.arctan(t / root)
    below = np.zeros_like(angle)
    whole = np.zeros_like(angle)
    for low, high in pairwise(_PIECE_ENDS):
        first_angle = np.arctan(low / root)
        last_angle = np.arctan(high / root)
        clipped_angle = np.clip(angle, first_angle, last_angle)
        below += _integrate_density(first_angle, clipped_angle, freedom)
        whole += _integrate_density(first_angle, last_angle, freedom)
    derivative = np.cos(angle) ** (freedom + 1) / root
    densities = derivative / whole
    return 1 - below / whole, densities


def _integrate_density(first_angle: Float64, last_angle: Float64, freedom: Float64) -> Float64:
    """Integrate cos(a)^(freedom - 1) between two angles."""
    width = last_angle - first_angle
    angles = last_angle[:, None] - width[:, None] * _SHARES_FROM_END
    densities = np.cos(angles) ** (freedom[:, None] - 1)
    integral: Float64 = width * (densities @ _WEIGHTS)
    return integral


def half_width(weights: Float64, errors: Float64, freedom: Float64, error: float) -> float:
    """Return the half-width h for which the sum of weights x P(|T| > h / errors) is `error`.

    Newton's method on the logarithm of the tail, within brackets.
    """
    low = 0.0
    high = math.inf
    half = 2 * float(weights @ errors)
    for _ in range(_MAX_NEWTON_STEPS):
        tails, densities = two_sided_tails(half / errors, freedom)
        tail = float(weights @ tails)
        slope = float(weights @ (densities / errors))
        if tail > error:
            low = half
        else:
            high = half
        newton_step = _newton_step(tail, slope, error)
        target = half + newton_step
        if abs(newton_step) <= _MAX_RELATIVE_ERROR * half:
            return target
        if low < target < min(high, 4 * half):
            half = target
        elif math.isfinite(high):
            half = (low + high) / 2
        else:
            half = 2 * half
    return half


def _newton_step(tail: float, slope: float, error: float) -> float:
    """Return how far Newton's method moves a half-width with this tail; infinity without slope."""
    if slope <= 0:
        return math.inf
    safe_tail = max(tail, _MAX_RELATIVE_ERROR)
    log_ratio = math.log(safe_tail / error)
    return tail * log_ratio / slope


@lru_cache(maxsize=4096)
def critical_value(confidence: float, freedom: float) -> float:
    """Return t such that P(|T| <= t) is `confidence`: the factor of a two-sided interval.

    Degrees of freedom come from captures, so they are few, at least 1, and not whole (Welch).
    """
    unit = np.ones(1)
    return half_width(unit, unit, freedom * unit, 1 - confidence)
