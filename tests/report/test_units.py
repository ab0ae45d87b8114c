"""From base units to words, and what figures are called."""

from __future__ import annotations

from functools import partial

import pytest

from nsyspipe.model.figures import FIGURES
from nsyspipe.report.units import (
    absent,
    bytes_text,
    count_text,
    delta_text,
    figure_text,
    in_one_unit,
    ms_text,
    percent_text,
    rate_text,
    signed,
)

MS = 10**6
TEXTS = {
    ms_text: {0: "0 ms", 1_234_567: "1.235 ms", 12_340_000: "12.34 ms", 123_400_000: "123.4 ms", 99_990_000: "99.99 ms",
              100_000_000: "100.0 ms", 10_000_000: "10.00 ms", 500_000.5: "0.5000 ms", 100: "<0.001 ms",
              99_996_000: "100.0 ms", 12_345_600_000: "12346 ms"},
    percent_text: {0: "0.0 %", 0.1234: "12.3 %", 1: "100.0 %", 0.0004: "<0.1 %", 0.0006: "0.1 %", 1.5: "150.0 %",
                   -0.0004: ">-0.1 %", -0.02: "-2.0 %"},
    partial(percent_text, digits=1): {-0.0: "0.0 %"},
    partial(percent_text, digits=0): {0.126: "13 %", 0.004: "<1 %"},
    partial(percent_text, digits=2): {0.00004: "<0.01 %"},
    bytes_text: {0: "0 B", 999: "999 B", 1000: "1.00 kB", 1024: "1.02 kB", 1_500_000: "1.50 MB", 999_999: "1.00 MB",
                 1_700_000_000: "1.70 GB", 2.5e12: "2.50 TB", 5e15: "5000.00 TB"},
    rate_text: {1.5512: "1.551 steps/s", 12.0: "12.00 steps/s", 0.0123: "0.01230 steps/s", 1234.5: "1234 steps/s"},
    count_text: {0: "0", 12.0: "12", 12.5: "12.50", 1 / 3: "0.3333", 1234567: "1234567"},
    # A difference has a sign, and a unit in which it is seen; of ratios points.
    partial(delta_text, "ns"): {-72.88 * MS: "-72.88 ms", 1.5 * MS: "+1.500 ms", 0.0: "0 ms", -20.0: "-20 ns",
                                0.25: "+0.25 ns", 12_345.0: "+12.35 us", -100_000.0: "-0.1000 ms"},
    partial(delta_text, "ratio"): {-0.021: "-2.1 points", 0.0: "0.0 points", 0.0004: "+0.04 points",
                                   -0.000000004: "-4e-07 points"},
    partial(delta_text, "bytes"): {-1.23e9: "-1.23 GB", 0.3: "+0.3 B"},
    partial(delta_text, "bytes/s"): {-20.0: "-2e-08 GB/s"},
    partial(delta_text, "count"): {36.0: "+36"},
    partial(delta_text, "1/s"): {0.25: "+0.2500 steps/s"},
    signed: {-11.3: "-11.3", 0.04: "+0.04", -0.0006: "-0.001", -0.0: "0.0"},
    # As many digits as tell it from what counts.
    partial(signed, told_from=2.0): {2.04: "+2.04", 2.0: "+2.0", -1.996: "-1.996"},
}  # fmt: skip


@pytest.mark.parametrize(
    ("write", "value", "text"),
    [(write, value, text) for write, texts in TEXTS.items() for value, text in texts.items()],
)
def test_a_value_has_its_unit_and_as_many_digits_as_tell_it(write, value, text):
    assert write(value) == text


@pytest.mark.parametrize(("times", "texts"), [
    # Four digits for the longest; what rounds to nothing is not nothing, and nothing is.
    ([445.4e6, 4_032_000.0, 7836.0, 0.0, None], ["445.4 ms", "4.0 ms", "<0.1 ms", "0 ms", "-"]),
    ([7836.0, 29_100.0], ["7.84 us", "29.10 us"]),
    ([6069e6, 999e6], ["6.069 s", "0.999 s"]), ([60.0, 1.5], ["60 ns", "2 ns"]), ([0.0, None], ["0 ms", "-"]),
    ([None], ["-"]),
])  # fmt: skip
def test_the_times_of_a_column_have_one_unit(times, texts):
    assert in_one_unit([ms_text(ns) for ns in times]) == texts


def test_differences_keep_their_signs_and_other_columns_are_left_alone():
    assert in_one_unit([delta_text("ns", 7.305e6), delta_text("ns", -255.9)]) == ["+7.305 ms", "-255.9 ns"]
    mixed = [ms_text(445.4e6), "17.0 %", "76.50 ms (11.9 %)"]
    assert in_one_unit(mixed) == mixed


@pytest.mark.parametrize("write", [ms_text, percent_text, bytes_text, rate_text, count_text, partial(delta_text, "ns")])
def test_what_was_not_recorded_is_a_dash_and_never_0(write):
    assert write(None) == absent == "-"
    assert write(0) != absent


def test_every_figure_that_is_not_known_is_a_dash():
    assert {figure_text(figure, None) for figure in FIGURES.values()} == {absent}
