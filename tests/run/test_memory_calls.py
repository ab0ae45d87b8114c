"""Calls that allocate and free memory of a GPU, in the steps of built runs."""

import pytest

from nsyspipe.model import schema
from tests.build.tools import run_of
from tests.build.trace import RUNTIME, steady_rank

COUNTS = ("n_allocs", "n_frees", "n_failed_allocs", "alloc_bytes", "freed_bytes")
TIMES = (
    "alloc_host_ns",
    "exposed_alloc_ns",
    "idle_blocked_by_allocs_ns",
    "idle_made_by_allocs_ns",
)
NOT_KNOWN = dict.fromkeys((*COUNTS, *TIMES))
NONE_AT_ALL = dict.fromkeys((*COUNTS, *TIMES), 0)


def columns(run, step, rank=0):
    (row,) = [one for one in run.steps().to_pylist() if (one["rank"], one["step"]) == (rank, step)]
    return {name: row[name] for name in (*COUNTS, *TIMES)}


def freeing_rank(rank=0, **sizes):
    """Return a rank that frees and allocates at 400 and 500 of each step, after all its launches.

    The device idles from 350 to 1100 of a step. The launch that ends that is at 1010.
    """
    builder = steady_rank(rank, world_size=1)
    for step in range(4):
        at = 1000 * step
        builder.memory_call(at + 400, at + 460, "cudaFree_v3020", **sizes)
        builder.memory_call(at + 500, at + 520, **sizes)
    return builder


def test_each_step_has_its_calls(tmp_path):
    run = run_of(tmp_path, freeing_rank())
    found = [columns(run, step) for step in (1, 2)]
    assert [[row[name] for name in COUNTS[:3]] for row in found] == [[1, 1, 0]] * 2


# The calls take 60 and 20, all while the device idles for a late launch. So they explain their own
# time, and nothing behind them.
def test_times_of_calls_while_the_device_idles(tmp_path):
    found = columns(run_of(tmp_path, freeing_rank()), 1)
    assert [found[name] for name in TIMES] == [80, 80, 80, 80]


def test_sizes_that_were_not_recorded_are_null(tmp_path):
    found = columns(run_of(tmp_path, freeing_rank()), 1)
    assert (found["alloc_bytes"], found["freed_bytes"]) == (None, None)


def test_the_run_says_how_to_record_sizes(tmp_path):
    run = run_of(tmp_path, freeing_rank())
    rows = [row for row in run.problem_rows if row["code"] == "alloc-sizes-unrecorded"]
    assert [(row["severity"], "--cuda-memory-usage" in row["fix"]) for row in rows] == [
        ("info", True)
    ]


def test_recorded_sizes_are_summed(tmp_path):
    run = run_of(tmp_path, freeing_rank(n_bytes=4096))
    found = columns(run, 1)
    assert (found["alloc_bytes"], found["freed_bytes"]) == (4096, 4096)
    assert "alloc-sizes-unrecorded" not in run.problems["code"].to_pylist()


def test_a_run_without_such_calls_has_zeros_and_lacks_no_sizes(tmp_path):
    run = run_of(tmp_path, steady_rank(0, world_size=1))
    assert columns(run, 1) == NONE_AT_ALL
    assert "alloc-sizes-unrecorded" not in run.problems["code"].to_pylist()


def test_calls_outside_the_steps_used_lack_no_sizes(tmp_path):
    builder = steady_rank(0, world_size=1).memory_call(-90, -10)
    run = run_of(tmp_path, builder)
    assert "alloc-sizes-unrecorded" not in run.problems["code"].to_pylist()


def test_nothing_is_known_without_the_table_of_calls(tmp_path):
    run = run_of(tmp_path, freeing_rank(), without=(RUNTIME,))
    assert columns(run, 1) == NOT_KNOWN


def test_ranks_have_their_own_calls(tmp_path):
    builder = steady_rank(1).memory_call(1400, 1450)
    run = run_of(tmp_path, steady_rank(0), builder)
    assert [columns(run, 1, rank)["n_allocs"] for rank in (0, 1)] == [0, 1]


@pytest.mark.parametrize("name", [*COUNTS, *TIMES])
def test_the_columns_are_nullable(name):
    (column,) = [one for one in schema.STEPS.columns if one.name == name]
    assert column.nullable
