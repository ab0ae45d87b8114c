"""The fast code equals the plain one on small random reports, end to end."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

import nsyspipe
from nsyspipe.analysis import breakdown
from nsyspipe.model.schema import KERNEL_COSTS, PHASES
from tests.conftest import examples
from tests.property import oracle, oracle_costs
from tests.property.strategies import PROCESSES, trains, write

CAUSES = ("input", "launch", "blocked", "dependency", "unknown")
KEYS = {"rank", "step", "phase", "name"}
RUNS = st.lists(PROCESSES, min_size=1, max_size=2)


def loaded(found):
    """Read a run of one report per process; return it and its step family as the oracle sees it."""
    with tempfile.TemporaryDirectory() as folder:
        write(found, Path(folder))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(breakdown, "PAUSE_NS", oracle_costs.PAUSE)
            run = nsyspipe.load(folder, jobs=1)
            run.steps()
    family = oracle.choose_family(found)
    assert run.step_family == family
    assert run.ranks["rank"].to_pylist() == list(range(len(found)))
    return run, family


def rows_of(table, rank):
    return [row for row in table.to_pylist() if row["rank"] == rank]


def by_key(table, rank, *keys):
    """Return the rows of a rank by some of their columns, without them."""
    rows = rows_of(table, rank)
    return {tuple(row[key] for key in keys): {n: v for n, v in row.items() if n not in KEYS} for row in rows}


def summary_members(run, rank, numbers):
    """Return which of a rank's members are steps of the figures."""
    steps = {row["step"] for row in rows_of(run.steps(), rank) if row["in_summary"]}
    return {member for member, number in enumerate(numbers) if number in steps}


def check_all(found):
    run, family = loaded(found)
    shifts, numbers = run.ranks["clock_shift_ns"].to_pylist(), oracle.numbers(found, family)
    unseen = dict.fromkeys(oracle.UNSEEN) if oracle.lacks_comm(found) else {}
    for rank, process in enumerate(found):
        expected = []
        measures = oracle.breakdown, oracle_costs.idle_causes, oracle_costs.grad_copies
        for parts in zip(*(measure(process, family) for measure in measures), strict=True):
            row = {name: value for part in parts for name, value in part.items()} | unseen
            row["step"] = numbers[rank][row.pop("member")]
            expected.append(row | {name: row[name] + shifts[rank] for name in ("start_ns", "end_ns")})
        steps = rows_of(run.steps(), rank)
        assert [{name: row[name] for name in expected[0]} for row in steps] == expected
        for row in steps:
            causes = [row[f"idle_{cause}_ns"] for cause in CAUSES]
            assert all(cause is None or cause >= 0 for cause in causes)
            assert None in causes or sum(causes) == row["idle_ns"]
        phases = {
            (numbers[rank][member], phase): row | {name: None for name in unseen if name in row}
            for (member, phase), row in oracle_costs.phases(process, family).items()
        }
        assert by_key(run.phases(), rank, "step", "phase") == phases
        kernels = oracle_costs.kernel_costs(process, family, summary_members(run, rank, numbers[rank]))
        assert by_key(run.kernels(), rank, "phase", "name") == kernels
    assert (run.phases().schema, run.kernels().schema) == (PHASES.arrow, KERNEL_COSTS.arrow)


@pytest.mark.parametrize("number", [20, pytest.param(40, marks=pytest.mark.slow)])
def test_steps_phases_and_kernels_equal_counting_every_nanosecond(number):
    examples(number)(given(RUNS)(check_all))()


@pytest.mark.slow
@examples(30)
@given(trains())
def test_kernels_slowed_by_communication_equal_comparing_each_with_all_others(process):
    run, family = loaded([process])
    found = by_key(run.kernels(), 0, "phase", "name")
    numbers = oracle.numbers([process], family)[0]
    expected = oracle_costs.kernel_costs(process, family, summary_members(run, 0, numbers))
    slowed, of_oracle = ({key: row for key, row in one.items() if row["n_slowed"]} for one in (found, expected))
    assert slowed == of_oracle


def moved(process, by, random):
    """Return the same process some time later, its rows in another order."""

    def later(one):
        launch = {} if getattr(one, "launch", None) is None else {"launch": one.launch + by}
        return replace(one, start=one.start + by, end=one.end + by, **launch)

    columns = [[later(one) for one in column] for column in (process.ops, process.ranges, process.calls)]  # fmt: skip
    for column in columns:
        random.shuffle(column)
    return oracle.Process(*columns)


@pytest.mark.slow
@examples(20)
@given(PROCESSES, st.randoms(use_true_random=False))
def test_row_order_and_time_shift_change_nothing(process, random):
    def rows(one, by=0):
        run, _ = loaded([one])
        steps = run.steps().to_pylist()
        times = [{name: row[name] - by for name in ("start_ns", "end_ns")} for row in steps]
        return [row | own for row, own in zip(steps, times, strict=True)], run.phases().to_pylist()

    assert rows(moved(process, 2**60, random), 2**60) == rows(process)
