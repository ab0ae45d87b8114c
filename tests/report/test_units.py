"""From base units to words."""

from __future__ import annotations

import pytest

from nsyspipe.report.units import absent, bytes_text, count_text, ms_text, percent_text, rate_text


@pytest.mark.parametrize("text", [ms_text, percent_text, bytes_text, rate_text, count_text])
def test_what_was_not_recorded_is_a_dash_and_never_0(text):
    assert text(None) == absent == "-"
    assert text(0) != absent


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0 ms"),
        (1_234_567, "1.235 ms"),
        (12_340_000, "12.34 ms"),
        (123_400_000, "123.4 ms"),
        (99_990_000, "99.99 ms"),
        (100_000_000, "100.0 ms"),
        (10_000_000, "10.00 ms"),
        (500_000.5, "0.5000 ms"),
        (100, "<0.001 ms"),
        (99_996_000, "100.0 ms"),
        (12_345_600_000, "12346 ms"),
    ],
)
def test_times_are_milliseconds_with_four_digits(ns, text):
    assert ms_text(ns) == text


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (0, "0.0 %"),
        (0.0, "0.0 %"),
        (0.1234, "12.3 %"),
        (1, "100.0 %"),
        (0.0004, "<0.1 %"),
        (0.0006, "0.1 %"),
        (1.5, "150.0 %"),
    ],
)
def test_ratios_are_per_cent_and_a_small_one_is_not_0(ratio, text):
    assert percent_text(ratio) == text


@pytest.mark.parametrize(("ratio", "digits", "text"), [(0.126, 0, "13 %"), (0.004, 0, "<1 %"), (0.00004, 2, "<0.01 %")])
def test_digits_can_be_chosen(ratio, digits, text):
    assert percent_text(ratio, digits) == text


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (1024, "1.02 kB"),
        (1_500_000, "1.50 MB"),
        (999_999, "1.00 MB"),
        (1_700_000_000, "1.70 GB"),
        (2.5e12, "2.50 TB"),
        (5e15, "5000.00 TB"),
    ],
)
def test_bytes_are_in_decimal_units(n_bytes, text):
    assert bytes_text(n_bytes) == text


@pytest.mark.parametrize(
    ("rate", "text"),
    [
        (1.5512, "1.551 steps/s"),
        (12.0, "12.00 steps/s"),
        (0.0123, "0.01230 steps/s"),
        (1234.5, "1234 steps/s"),
    ],
)
def test_rates_are_steps_per_second(rate, text):
    assert rate_text(rate) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0"), (12.0, "12"), (12.5, "12.50"), (1 / 3, "0.3333"), (1234567, "1234567")],
)
def test_counts_have_no_needless_decimals(count, text):
    assert count_text(count) == text
