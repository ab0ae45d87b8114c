"""A run's figures and each rank's: pooled ratios, step time, means."""

from __future__ import annotations

import pyarrow as pa
import pytest

from nsyspipe.analysis.summary import rank_summary, summary, with_ratios
from nsyspipe.model import schema
from nsyspipe.model.figures import RATIOS

PARTS = {
    "wall_ns": 100, "compute_ns": 50, "comm_ns": 40, "exposed_comm_ns": 30, "exposed_memory_ns": 5, "idle_ns": 15,
    "dtod_ns": 8, "dtod_bytes": 64, "n_dtod": 1, "exposed_dtod_ns": 5, "overlap_compute_ns": 10,
    "overlap_backward_ns": 4, "n_collectives": 2, "wait_ns": 12, "transfer_ns": 28, "message_bytes": 512,
    "idle_input_ns": 3, "idle_launch_ns": 4, "idle_blocked_ns": 5, "idle_dependency_ns": 2, "idle_unknown_ns": 1,
}  # fmt: skip
FIGURES = {
    "comm_share": 0.4,
    "exposed_comm_share": 0.3,
    "overlap_ratio": 0.25,
    "backward_overlap_ratio": 0.1,
    "idle_share": 0.15,
    "compute_share": 0.5,
    "exposed_memory_share": 0.05,
    "wait_share": 0.12,
    "transfer_share": 0.28,
    "dtod_ns_per_step": 8.0,
    "dtod_bytes_per_step": 64.0,
    "collectives_per_step": 2.0,
    "idle_input_ns_per_step": 3.0,
    "idle_launch_ns_per_step": 4.0,
    "idle_blocked_ns_per_step": 5.0,
    "idle_dependency_ns_per_step": 2.0,
    "idle_unknown_ns_per_step": 1.0,
    "message_bytes_per_step": 512.0,
    "algbw_bytes_per_s": None,
    "busbw_bytes_per_s": None,
}
NO_FIGURES = dict.fromkeys(FIGURES)


def step(rank, number, *, chosen=True, **parts):
    return PARTS | {"rank": rank, "step": number, "in_summary": chosen, "is_complete": True} | parts


def of_run(*rows):
    (found,) = summary(schema.STEPS.from_rows(rows), schema.COLLECTIVES.empty()).to_pylist()
    return found


def of_ranks(ranks, *rows):
    numbers = schema.RANKS.from_rows([{"rank": rank} for rank in ranks])
    steps = schema.STEPS.from_rows(rows)
    return rank_summary(steps, schema.COLLECTIVES.empty(), numbers).to_pylist()


# --- ratios of a row -----------------------------------------------------------------------


def ratios(**parts):
    columns = {name: pa.array([value], pa.int64()) for name, value in (PARTS | parts).items()}
    return {name: with_ratios(columns)[name].to_pylist()[0] for name in RATIOS}


def test_each_ratio_is_its_numerator_over_wall_or_comm():
    assert ratios() == {name: FIGURES[name] for name in RATIOS}


def test_a_ratio_is_null_where_its_denominator_is_0():
    no_comm = ratios(comm_ns=0, exposed_comm_ns=0, overlap_compute_ns=0, overlap_backward_ns=0)
    assert no_comm == {name: FIGURES[name] for name in RATIOS} | {
        "comm_share": 0.0, "exposed_comm_share": 0.0, "overlap_ratio": None, "backward_overlap_ratio": None,
    }  # fmt: skip
    no_wall = ratios(**dict.fromkeys(PARTS, 0))
    assert no_wall == dict.fromkeys(RATIOS)


def test_a_ratio_is_null_where_its_numerator_is():
    nulls = {"idle_ns": None, "exposed_memory_ns": None, "overlap_backward_ns": None}
    assert ratios(**nulls) == {name: FIGURES[name] for name in RATIOS} | {
        "idle_share": None, "exposed_memory_share": None, "backward_overlap_ratio": None,
    }  # fmt: skip


def test_ratios_are_added_to_the_columns_that_were_there():
    columns = {name: pa.chunked_array([[value], [2 * value]], pa.int64()) for name, value in PARTS.items()}
    found = with_ratios(columns)
    assert list(found) == [*PARTS, *RATIOS]
    assert found["comm_share"].to_pylist() == [0.4, 0.4]
    assert found["wall_ns"].to_pylist() == [100, 200]


# --- the run -------------------------------------------------------------------------------


def test_one_row_gives_its_own_figures():
    assert of_run(step(0, 1)) == FIGURES | {
        "n_steps": 1, "n_summary_steps": 1, "step_time_ns": 100.0, "throughput_steps_per_s": 1e7,
    }  # fmt: skip


def test_run_ratios_are_pooled_and_not_means_of_ratios():
    # comm 40 + 10 of wall 100 + 300; the mean of the ratios would be (0.4 + 1/30) / 2.
    found = of_run(step(0, 1), step(1, 1, wall_ns=300, comm_ns=10, overlap_compute_ns=10))
    assert found["comm_share"] == 50 / 400
    assert found["overlap_ratio"] == 20 / 50
    assert found["compute_share"] == 100 / 400


def test_figures_per_step_are_means_over_ranks_and_steps():
    rows = (step(0, 1), step(1, 1, dtod_bytes=65, n_collectives=3, dtod_ns=0), step(0, 2), step(1, 2, dtod_ns=4))
    found = of_run(*rows)
    per_step = (found["dtod_ns_per_step"], found["dtod_bytes_per_step"], found["collectives_per_step"])
    assert per_step == (5.0, 64.25, 2.25)


def test_step_time_is_the_median_over_steps_of_the_slowest_rank():
    # Slowest: 120, 110, 400; their median is 120 and their mean 210.
    found = of_run(
        step(0, 1, wall_ns=100), step(1, 1, wall_ns=120), step(0, 2, wall_ns=110), step(1, 2, wall_ns=90),
        step(0, 3, wall_ns=1), step(1, 3, wall_ns=400),
    )  # fmt: skip
    assert (found["n_summary_steps"], found["step_time_ns"]) == (3, 120.0)
    assert found["throughput_steps_per_s"] == 1e9 / 210


def test_step_time_of_an_even_number_of_steps_is_not_floored():
    assert of_run(step(0, 1, wall_ns=100), step(0, 2, wall_ns=101))["step_time_ns"] == 100.5


def test_steps_that_are_not_chosen_are_counted_and_nothing_more():
    found = of_run(step(0, 0, chosen=False, wall_ns=10**6), step(0, 1), step(0, 2, chosen=False, comm_ns=None))
    assert found == of_run(step(0, 1)) | {"n_steps": 3}


def test_without_summary_steps_there_are_no_figures():
    nothing = NO_FIGURES | {
        "n_summary_steps": 0, "step_time_ns": None, "throughput_steps_per_s": None,
    }  # fmt: skip
    assert of_run(step(0, 0, chosen=False)) == nothing | {"n_steps": 1}
    assert of_run() == nothing | {"n_steps": 0}


def test_a_null_on_one_row_makes_the_pooled_figure_null_and_no_other():
    nulls = {
        "overlap_backward_ns": None, "idle_ns": None, "exposed_memory_ns": None, "dtod_ns": None, "dtod_bytes": None,
        "wait_ns": None, "message_bytes": None, "idle_blocked_ns": None,
    }  # fmt: skip
    found = of_run(step(0, 1), step(1, 1, **nulls))
    lost = (
        "backward_overlap_ratio",
        "idle_share",
        "exposed_memory_share",
        "dtod_ns_per_step",
        "dtod_bytes_per_step",
        "wait_share",
        "idle_blocked_ns_per_step",
        "message_bytes_per_step",
    )
    assert {name: found[name] for name in FIGURES} == FIGURES | dict.fromkeys(lost)


def test_windows_of_no_length_have_neither_shares_nor_throughput():
    found = of_run(step(0, 1, **dict.fromkeys(PARTS, 0)))
    expected = NO_FIGURES | dict.fromkeys((name for name in FIGURES if name.endswith("_per_step")), 0.0)
    assert {name: found[name] for name in FIGURES} == expected
    assert (found["step_time_ns"], found["throughput_steps_per_s"]) == (0.0, None)


@pytest.mark.parametrize(("first", "second", "mean"), [
    (2**53 + 1, 1, 2.0**52 + 1),  # a float sum would lose the 1 of each
    (2**61 + 2**9, 2**61, 2.0**61 + 2**8),
])  # fmt: skip
def test_bytes_above_what_a_float_holds_are_summed_exactly(first, second, mean):
    assert of_run(step(0, 1, dtod_bytes=first), step(0, 2, dtod_bytes=second))["dtod_bytes_per_step"] == mean


# --- ranks ---------------------------------------------------------------------------------


def test_each_rank_has_its_own_figures_over_its_summary_steps():
    rows = (
        step(1, 1, wall_ns=200), step(0, 1), step(1, 2, wall_ns=205), step(0, 2),
        step(1, 3, wall_ns=9, chosen=False),
    )  # fmt: skip
    first, second = of_ranks([0, 1], *rows)
    assert first == FIGURES | {"rank": 0, "step_time_ns": 100.0}
    # 405 of wall, over which compute has 100 and comm 80.
    assert (second["rank"], second["step_time_ns"]) == (1, 202.5)
    assert (second["compute_share"], second["comm_share"]) == (100 / 405, 80 / 405)


def test_a_rank_without_summary_steps_has_no_figures():
    rows = step(0, 1), step(1, 1, chosen=False)
    expected = [FIGURES | {"rank": 0, "step_time_ns": 100.0}, NO_FIGURES | {"rank": 1, "step_time_ns": None}]
    assert of_ranks([0, 1], *rows) == expected
