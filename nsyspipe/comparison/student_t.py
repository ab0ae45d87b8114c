"""Student's t distribution, which neither numpy nor the standard library has."""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import pairwise

import numpy as np

from nsyspipe.model.table import Float64

# Gauss and Legendre: places in a piece of the integral, and their weights. The places are closer
# together towards the upper end of the piece, because below 2 degrees of freedom the density has no
# derivative there. This gives nine digits of the integral.
_GRADING = 4
_NODES, _NODE_WEIGHTS = np.polynomial.legendre.leggauss(24)
_UNIT_NODES = (_NODES + 1) / 2
_SHARES_FROM_END = _UNIT_NODES**_GRADING
_WEIGHTS = _NODE_WEIGHTS / 2 * _GRADING * _UNIT_NODES ** (_GRADING - 1)
# Ends of the pieces, in units of t.
_PIECE_ENDS = (0.0, 2.0, 7.0, math.inf)
_MAX_RELATIVE_ERROR = 1e-9
_LEAST_TAIL_OF_LOG = 1e-9
_MAX_NEWTON_STEPS = 60


def two_sided_tails(t: Float64, freedom: Float64) -> tuple[Float64, Float64]:
    """Return P(|T| > t), and the density of |T| at t, for several t.

    Each t has its own degrees of freedom. With t = sqrt(freedom) tan a, the density of T over the
    angle a is cos(a)^(freedom - 1), up to a constant. It is integrated piece by piece, from 0 to
    the angle of t, and from 0 to the angle of infinity, which gives the constant.
    """
    root = np.sqrt(freedom)
    angle = np.arctan(t / root)
    integral_to_t = np.zeros_like(angle)
    integral_to_infinity = np.zeros_like(angle)
    for low, high in pairwise(_PIECE_ENDS):
        first_angle = np.arctan(low / root)
        last_angle = np.arctan(high / root)
        # In a piece beyond t, this is the first angle, so that the piece adds nothing.
        angle_in_piece = np.clip(angle, first_angle, last_angle)
        integral_to_t += _integrate_density(first_angle, angle_in_piece, freedom)
        integral_to_infinity += _integrate_density(first_angle, last_angle, freedom)
    # The density over t is the density over the angle a, times da/dt = cos(a)^2 / root.
    density_over_t = np.cos(angle) ** (freedom + 1) / root
    tails = 1 - integral_to_t / integral_to_infinity
    return tails, density_over_t / integral_to_infinity


def _integrate_density(first_angle: Float64, last_angle: Float64, freedom: Float64) -> Float64:
    """Return the integral of cos(a)^(freedom - 1) between two angles, for each of several pairs."""
    width = last_angle - first_angle
    # A row per pair of angles, a column per place of the integral.
    angles = last_angle[:, np.newaxis] - width[:, np.newaxis] * _SHARES_FROM_END
    densities = np.cos(angles) ** (freedom[:, np.newaxis] - 1)
    integral: Float64 = width * (densities @ _WEIGHTS)
    return integral


def half_width(weights: Float64, errors: Float64, freedom: Float64, error: float) -> float:
    """Return the half-width at which the tails have the probability `error`.

    The tails of a half-width h are the sum of weights x P(|T| > h / errors), where each standard
    error in `errors` has its weight and its degrees of freedom. The half-width is found by Newton's
    method on the logarithm of the tails.
    """
    # The half-width that is looked for lies between these two.
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
        # A step that leaves the bracket, or is very long, is replaced by half the bracket. Without
        # an upper end, the half-width is doubled.
        if low < target < min(high, 4 * half):
            half = target
        elif math.isfinite(high):
            half = (low + high) / 2
        else:
            half = 2 * half
    return half


def _newton_step(tail: float, slope: float, error: float) -> float:
    """Return by how much Newton's method moves a half-width with this tail.

    The method looks for log(tail) = log(error). `slope` is how fast the tail falls with the
    half-width, so log(tail) falls by slope / tail. If the tail does not fall, the step is infinite.
    """
    if slope <= 0:
        return math.inf
    # The logarithm of a tail of 0 would be infinite. The factor `tail` makes the step 0 then.
    log_ratio = math.log(max(tail, _LEAST_TAIL_OF_LOG) / error)
    return tail * log_ratio / slope


@lru_cache(maxsize=4096)
def critical_value(confidence: float, freedom: float) -> float:
    """Return t such that P(|T| <= t) is `confidence`: the factor of a two-sided interval.

    Degrees of freedom come from captures, so they are few, at least 1, and not whole (Welch).
    """
    # It is the half-width of a single standard error of 1, with all the weight.
    one = np.ones(1)
    return half_width(weights=one, errors=one, freedom=freedom * one, error=1 - confidence)
