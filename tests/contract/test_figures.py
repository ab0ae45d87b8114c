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
# Figures that more files work with, and how many at most: a file more is one that lists figures again.
MORE = {
    "transfer_ns": 21, "message_bytes": 20, "wall_ns": 19, "wait_ns": 17, "exposed_comm_ns": 17, "idle_ns": 16,
    "compute_ns": 15, "comm_ns": 14, "step_time_ns": 13, "throughput_steps_per_s": 11, "idle_share": 10,
    "exposed_comm_share": 10, "exposed_memory_ns": 9, "busbw_bytes_per_s": 9, "overlap_compute_ns": 8,
    "n_collectives": 8, "comm_share": 8, "wait_share": 7, "grad_copy_ns": 7, "overlap_ratio": 6,
    "overlap_backward_ns": 6, "overhead_ns": 6, "n_grad_copies": 6, "n_dtod": 6, "message_bytes_per_step": 6,
    "idle_input_ns": 6, "idle_blocked_ns": 6, "exposed_memory_share": 6, "backward_overlap_ratio": 6,
    "idle_unknown_ns": 5, "idle_launch_ns": 5, "grad_copy_bytes": 5, "exposed_wait_ns": 5, "exposed_grad_copy_ns": 5,
    "dtod_bytes": 5, "compute_share": 5, "comm_delay_ns": 5, "collectives_per_step": 5,
}  # fmt: skip


@pytest.fixture(scope="module")
def files():
    """Return in how many files each word stands."""
    words = [set(re.findall(r"\w+", path.read_text(encoding="utf-8"))) for path in PACKAGE.rglob("*.py")]
    return {figure: sum(figure in found for found in words) for figure in FIGURES}


@pytest.mark.parametrize("figure", sorted(FIGURES))
def test_a_figure_is_named_in_few_files(files, figure):
    assert files[figure] <= MORE.get(figure, MOST)


def test_the_registry_names_columns_and_each_metric_once():
    assert set(figures.FIGURES) <= FIGURES
    assert len(figures.METRICS) == len(figures.FIGURES)
    assert {one.column for place in figures.PLACES for one in figures.shown(place)} <= set(figures.FIGURES)


def test_every_figure_of_the_run_is_registered():
    assert {*SUMMARY.names} - PLACES <= set(figures.FIGURES)


@pytest.mark.parametrize("figure", figures.FIGURES.values(), ids=figures.FIGURES)
def test_a_figure_says_what_it_is(figure):
    assert figure.short
    assert figure.label
    assert figure.formula
    assert figure.better in {"lower", "higher", "neither"}
    assert figure.unit in {"ns", "1/s", "ratio", "count", "bytes", "bytes/s"}


def test_headings_are_as_narrow_as_two_lines_can_be():
    assert figures.FIGURES["wait_share"].heading == "waits for\nothers"
    assert figures.FIGURES["idle_share"].heading == "idle"
