"""Student's t against printed tables and the two cases that have a closed form."""

from __future__ import annotations

import math

import numpy as np
import pytest

from nsyspipe.comparison.interval import critical_value, two_sided_tails

# NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.2: upper critical values, two-sided here.
TABLE = [
    (1, 0.95, 12.706),
    (1, 0.99, 63.657),
    (2, 0.90, 2.920),
    (2, 0.95, 4.303),
    (3, 0.95, 3.182),
    (4, 0.95, 2.776),
    (4, 0.99, 4.604),
    (5, 0.95, 2.571),
    (9, 0.99, 3.250),
    (10, 0.95, 2.228),
    (18, 0.95, 2.101),
    (30, 0.95, 2.042),
    (30, 0.998, 3.385),
    (60, 0.99, 2.660),
    (100, 0.95, 1.984),
]


@pytest.mark.parametrize(("freedom", "confidence", "value"), TABLE)
def test_quantiles_are_those_of_the_printed_table(freedom, confidence, value):
    assert critical_value(confidence, freedom) == pytest.approx(value, abs=5.1e-4)


@pytest.mark.parametrize("confidence", [0.5, 0.8, 0.95, 0.99, 0.9999, 1 - 1e-6])
def test_one_and_two_degrees_of_freedom_have_closed_forms(confidence):
    # One: Cauchy, tan(pi c / 2). Two: c = t / sqrt(2 + t^2).
    assert critical_value(confidence, 1) == pytest.approx(math.tan(math.pi * confidence / 2), 1e-9)
    two = confidence * math.sqrt(2 / (1 - confidence**2))
    assert critical_value(confidence, 2) == pytest.approx(two, 1e-9)


@pytest.mark.parametrize("t", [0.0, 1e-9, 0.3, 1.0, 5.0, 1e6])
def test_tails_of_one_and_two_degrees_of_freedom_have_closed_forms(t):
    (one, two), _ = two_sided_tails(np.array([t, t]), np.array([1.0, 2.0]))
    assert one == pytest.approx(1 - 2 / math.pi * math.atan(t), abs=1e-12)
    assert two == pytest.approx(1 - t / math.sqrt(2 + t * t), abs=1e-12)


@pytest.mark.parametrize(("freedom", "confidence", "value"), TABLE)
def test_the_tail_beyond_a_printed_quantile_is_the_rest(freedom, confidence, value):
    tails, densities = two_sided_tails(np.array([value]), np.array([float(freedom)]))
    # Printed to half a thousandth.
    assert tails[0] == pytest.approx(1 - confidence, abs=6e-4 * densities[0])
