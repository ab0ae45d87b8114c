"""The first screen of a difference: how long it is, what it leaves out, and that `-v` has the rest."""

import re
from types import SimpleNamespace

import pyarrow as pa
import pytest
from rich.console import Console

import nsyspipe
from nsyspipe.comparison.causes import MeanStepTime
from nsyspipe.report.as_text import as_text
from nsyspipe.report.difference import difference_blocks
from nsyspipe.report.difference_screen import LITTLE_SHARE, part_rows, screen_blocks
from tests.build.plain_steps import MS
from tests.conftest import SAMPLES

# As `clarity` counts numbers.
NUMBER = re.compile(r"(?<![\w.])\d+(\.\d+)?")
MOST_LINES, MOST_NUMBERS = 35, 50
STEP_MS = 100.0


@pytest.fixture(scope="module")
def samples():
    before, after = (str(SAMPLES / f"ddp-4gpu-{name}_*.sqlite") for name in ("before", "after"))
    return nsyspipe.diff(before, after)


def text_of(blocks, width):
    return as_text(blocks, Console(width=width, no_color=True))


def test_the_samples_fit_the_budget_of_lines_and_numbers(samples):
    text = text_of(screen_blocks(samples), 80)
    n_lines, n_numbers = len(text.splitlines()), len(NUMBER.findall(text))
    assert (n_lines <= MOST_LINES, n_numbers <= MOST_NUMBERS) == (True, True), (n_lines, n_numbers)


@pytest.mark.slow
@pytest.mark.parametrize("width", [40, 60, 80, 100, 140])
def test_no_line_is_wider_than_the_terminal(samples, width):
    widest = max(map(len, text_of(screen_blocks(samples), width).splitlines()))
    assert widest <= width


@pytest.mark.slow
def test_everything_that_the_screen_leaves_out_is_in_the_full_text(samples):
    short, full = (
        text_of(blocks, 100) for blocks in (screen_blocks(samples), difference_blocks(samples))
    )
    kernel = samples.top_kernels.to_pylist()[0]["name"][:12]
    assert [kernel in text for text in (short, full)] == [False, True]
    assert len(full.splitlines()) > len(short.splitlines())


def test_a_metric_that_got_worse_in_a_faster_run_is_no_alarm(samples):
    rows = {row["metric"]: row["verdict"] for row in samples.metrics.to_pylist()}
    assert (samples.verdict, rows["wait"]) == ("improvement", "regression")
    assert "regression" not in text_of(screen_blocks(samples), 100)


def test_the_gate_is_not_part_of_the_screen(samples):
    gated = nsyspipe.diff(samples.baseline.runs[0], samples.candidate.runs[0], fail_on="regression")
    assert gated.gate.outcome.upper() not in text_of(screen_blocks(gated), 100)


def part(name, delta_ms):
    return {
        "part": name,
        "baseline_ns": 20.0 * MS,
        "candidate_ns": (20.0 + delta_ms) * MS,
        "delta_ns": delta_ms * MS,
    }


def difference(*parts, overlap=0.0, judged=("step_time",)):
    metrics = [
        {
            "metric": "overlap_ratio",
            "unit": "ratio",
            "baseline": 0.5,
            "candidate": 0.5 + overlap,
            "delta": overlap,
        },
        {
            "metric": "dtod",
            "unit": "ns",
            "baseline": 4.0 * MS,
            "candidate": 5.0 * MS,
            "delta": 1.0 * MS,
        },
    ]
    return SimpleNamespace(
        mean_step_time=MeanStepTime(STEP_MS * MS, None, None),
        step_time_parts=pa.Table.from_pylist(list(parts)),
        metrics=pa.Table.from_pylist(metrics),
        judged=judged,
    )


@pytest.mark.parametrize(
    ("share", "is_shown"), [(1.01 * LITTLE_SHARE, True), (0.99 * LITTLE_SHARE, False)]
)
def test_a_part_is_shown_from_a_thousandth_of_the_step_on(share, is_shown):
    rows = part_rows(difference(part("compute", 10.0), part("idle", share * STEP_MS)))
    assert ("idle" in [row.name for row in rows]) == is_shown


def test_bars_are_as_long_as_the_change_and_show_its_direction():
    longer, shorter = part_rows(difference(part("compute", 8.0), part("idle", -4.0)))
    assert (set(longer.bar), set(shorter.bar)) == ({"+"}, {"-"})
    assert len(longer.bar) == 2 * len(shorter.bar)


@pytest.mark.parametrize(("overlap", "is_shown"), [(0.1, True), (0.0, False)])
def test_overlap_is_shown_if_it_changed(overlap, is_shown):
    names = [row.name for row in part_rows(difference(part("compute", 8.0), overlap=overlap))]
    assert ("overlap" in names) == is_shown


def test_another_judged_metric_has_a_row():
    names = [
        row.name
        for row in part_rows(difference(part("compute", 8.0), judged=("dtod", "step_time")))
    ]
    assert names == ["compute", "D2D memcpy"]


def test_without_known_parts_there_are_no_rows():
    assert part_rows(difference(part("compute", 8.0) | {"delta_ns": None})) == []
