"""A figure is registered once: in how many files of the package its name stands, as a word of code, docstring or comment."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import nsyspipe
from nsyspipe.model import figures
from nsyspipe.model.schema import STEPS, SUMMARY

PACKAGE = Path(nsyspipe.__file__).parent
# Columns that say where a row lies, or which rows count: no figures.
PLACES = {"rank", "step", "start_ns", "end_ns", "is_complete", "in_summary", "n_steps", "n_summary_steps"}
FIGURES = {*SUMMARY.names, *STEPS.names} - PLACES
# A new figure may stand in so many: declared, registered, computed, and one more that works with it.
MOST = 4
# So many files work with some figures: a file more is one that lists figures again.
MORE = {
    23: "transfer_ns", 21: "message_bytes", 20: "wall_ns wait_ns", 17: "comm_ns exposed_comm_ns idle_ns",
    15: "compute_ns", 13: "step_time_ns", 11: "throughput_steps_per_s", 10: "busbw_bytes_per_s exposed_comm_share",
    9: "exposed_memory_ns", 8: "comm_share n_collectives overlap_compute_ns",
    7: "grad_copy_ns idle_share wait_share",
    6: "backward_overlap_ratio exposed_memory_share idle_blocked_ns idle_input_ns message_bytes_per_step n_dtod n_grad_copies "
    "overhead_ns overlap_backward_ns overlap_ratio",
    5: "collectives_per_step comm_delay_ns compute_share dtod_bytes exposed_grad_copy_ns grad_copy_bytes idle_launch_ns "
    "idle_unknown_ns",
}  # fmt: skip


@pytest.fixture(scope="module")
def files():
    """Return in how many files each word stands."""
    words = [set(re.findall(r"\w+", path.read_text(encoding="utf-8"))) for path in PACKAGE.rglob("*.py")]
    return {figure: sum(figure in found for found in words) for figure in FIGURES}


@pytest.mark.parametrize("figure", sorted(FIGURES))
def test_a_figure_is_named_in_few_files(files, figure):
    assert files[figure] <= next((n for n, names in MORE.items() if figure in names.split()), MOST)


def test_the_registry_names_columns_and_each_metric_once_and_every_figure_of_the_run():
    assert {*SUMMARY.names} - PLACES <= set(figures.FIGURES) <= FIGURES
    assert len(figures.METRICS) == len(figures.FIGURES)
    assert {one.column for place in figures.PLACES for one in figures.shown(place)} <= set(figures.FIGURES)


@pytest.mark.parametrize("figure", figures.FIGURES.values(), ids=figures.FIGURES)
def test_a_figure_says_what_it_is(figure):
    assert all((figure.short, figure.label, figure.formula))
    assert figure.better in {"lower", "higher", "neither"}
    assert figure.unit in {"ns", "1/s", "ratio", "count", "bytes", "bytes/s"}


def test_headings_are_as_narrow_as_two_lines_can_be():
    assert figures.FIGURES["wait_share"].heading == "waits for\nothers"
    assert figures.FIGURES["idle_share"].heading == "idle"
