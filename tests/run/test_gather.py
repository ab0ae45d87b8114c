"""One step family for the whole run; any executor; what becomes of a worker that dies."""

from __future__ import annotations

from concurrent.futures import Executor, Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool

import pytest

import nsyspipe
from nsyspipe.errors import InputError
from nsyspipe.run.workers import SerialExecutor, jobs_for
from tests.build.tools import codes, run_of
from tests.build.trace import steady_rank


def test_a_step_pattern_that_only_one_rank_matches_leaves_the_other_without_windows(tmp_path):
    other = steady_rank(1)
    for row in other.rows["NVTX_EVENTS"]:
        row["textId"] = other.string("something")
    run = run_of(tmp_path, steady_rank(0), other, step="^step")
    assert set(run.steps()["rank"].to_pylist()) == {0}
    assert {"steps-missing-on-rank", "no-common-step", "step-missing"} <= set(codes(run))
    assert run.summary()["comm_share"].to_pylist() == [None]


@pytest.mark.slow
def test_any_executor_gives_the_same_rows(steady):
    expected = nsyspipe.load(steady).steps()
    with ThreadPoolExecutor(2) as threads:
        assert nsyspipe.load(steady, executor=threads).steps() == expected
    assert nsyspipe.load(steady, jobs=2).steps() == expected


class DyingExecutor(Executor):
    """Hands out futures of workers that died."""

    def submit(self, fn, /, *args, **kwargs):
        future: Future = Future()
        future.set_exception(BrokenProcessPool("gone"))
        return future


def test_progress_is_told_and_a_worker_that_dies_is_one_clear_error(steady):
    told = []
    _ = nsyspipe.load(steady, on_progress=lambda done, total: told.append((done, total))).steps()
    assert (told[0], told[-1]) == ((1, 2), (2, 2))
    with pytest.raises(InputError, match="a worker process died"):
        nsyspipe.load(steady, executor=DyingExecutor()).steps()
    future = SerialExecutor().submit(int, "x")  # hands errors to the caller
    with pytest.raises(ValueError, match="invalid literal"):
        future.result()


@pytest.mark.parametrize(("sizes", "requested", "available", "expected"), [
    ([], 4, 10**12, 1),
    ([2**20] * 4, None, 10**12, 1),  # small reports are not worth a process
    ([2**20] * 4, 3, 10**12, 3),  # unless asked for
    ([2**20] * 2, 8, 10**12, 2),  # never more than reports
    ([500 << 20] * 8, 8, 2300 << 20, 2),  # 100 MiB + twice the report each: 1100 MiB
    ([500 << 20] * 8, 8, 10 << 20, 1),  # at least one
    ([500 << 20] * 8, 8, 0, 8),  # a system that does not say
])  # fmt: skip
def test_jobs_are_capped_by_reports_and_memory(sizes, requested, available, expected):
    assert jobs_for(sizes, requested, available=available) == expected
