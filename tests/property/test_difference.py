"""Whatever the runs: a run does not differ from itself, and swapping the sides negates every difference exactly."""

import tempfile
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from nsyspipe.api import diff
from nsyspipe.comparison.changes import apportioned
from nsyspipe.comparison.side import Side
from tests.build.plain_steps import plain_run

lengths = st.integers(0, 5000)
# Long enough for its launches, which come one after the other.
step = st.tuples(st.integers(20, 5000), lengths, lengths, lengths)
# Ranks have the same steps' numbers, each its own times.
ranks = st.integers(1, 8).flatmap(
    lambda n: st.lists(st.lists(step, min_size=n, max_size=n), min_size=1, max_size=2)
)


def negated(value):
    return None if value is None else -value


@pytest.mark.slow
@given(captures=st.lists(ranks, min_size=2, max_size=4), force=st.booleans())
@settings(max_examples=10, deadline=None)
def test_swapping_the_sides_negates_every_difference_exactly(captures, force):
    with tempfile.TemporaryDirectory() as folder:
        places = [(Path(folder) / str(at), 10**18 + at * 10**12) for at in range(len(captures))]
        each = zip(places, captures, strict=True)
        runs = [plain_run(path, one, world_size=None, start=start) for (path, start), one in each]
        one, other = Side("a", tuple(runs[:-1])), Side("b", (runs[-1],))
        there, back = diff(one, other, force=force), diff(other, one, force=force)
        for row, turned in zip(there.metrics.to_pylist(), back.metrics.to_pylist(), strict=True):
            assert (row["baseline"], row["candidate"]) == (
                turned["candidate"],
                turned["baseline"],
            ), row
            for name, other in (("delta", "delta"), ("ci_low", "ci_high"), ("ci_high", "ci_low")):
                assert row[name] == negated(turned[other]), name
        for name in ("step_time_parts", "idle_causes"):
            rows, turned = (getattr(side, name)["delta_ns"].to_pylist() for side in (there, back))
            assert rows == [negated(value) for value in turned], name
        keyed = (
            ("kernels", "phase", "name", "delta_ns_per_step"),
            ("changes", "topic", "what", "delta"),
        )
        for name, *keys, delta in keyed:
            tables = (getattr(side, name).to_pylist() for side in (there, back))
            rows, turned = (
                {tuple(row[key] for key in keys): row[delta] for row in table} for table in tables
            )
            assert rows == {key: negated(value) for key, value in turned.items()}, name


@pytest.mark.slow
@given(captures=ranks)
@settings(max_examples=10, deadline=None)
def test_a_run_does_not_differ_from_itself(captures):
    with tempfile.TemporaryDirectory() as folder:
        run = plain_run(Path(folder), captures, world_size=None)
        found = diff(run, run, force=True)
        for row in found.metrics.to_pylist():
            assert row["delta"] in (0.0, None), row
            assert row["verdict"] in ("no change", "inconclusive"), row
            if min(row["n_baseline"], row["n_candidate"]) >= 3:
                assert row["verdict"] == "no change", row
        assert found.mean_step_time[2] in (0.0, None)
        assert found.changes.num_rows == 0
        assert set(found.kernels["status"].to_pylist()) <= {"same"}
        assert [row["check"] for row in found.comparability.to_pylist() if row["blocks"]] == [
            "same-capture"
        ]


@pytest.mark.slow
@given(before=ranks, after=ranks)
@settings(max_examples=10, deadline=None)
def test_parts_sum_to_the_mean_step_time_as_it_is_counted_by_hand(before, after):
    with tempfile.TemporaryDirectory() as folder:
        runs = [
            plain_run(Path(folder) / name, one, world_size=None)
            for name, one in (("a", before), ("b", after))
        ]
        found = diff(*runs)
        rows = found.step_time_parts.to_pylist()
        for at, column in enumerate(("baseline_ns", "candidate_ns", "delta_ns")):
            assert sum(row[column] for row in rows) == found.mean_step_time[at], at
        # By hand, from what was laid out.
        for column, given_steps in (("baseline_ns", before), ("candidate_ns", after)):
            slowest = [
                max(one, key=lambda cell: (sum(cell), 0)) for one in zip(*given_steps, strict=True)
            ]
            for place, row in enumerate(rows):
                mean = Fraction(sum(cell[place] for cell in slowest), len(slowest))
                assert abs(Fraction(row[column]) - mean) <= Fraction(1, 1024), place


@given(
    parts=st.lists(st.fractions(0, 10**15), min_size=1, max_size=8),
    unit=st.sampled_from([Fraction(1), Fraction(1, 1024)]),
)
def test_rounded_parts_sum_to_the_rounded_total_and_stay_within_a_unit(parts, unit):
    total = round(sum(parts) / unit) * unit
    found = apportioned(total, {str(at): part for at, part in enumerate(parts)}, unit)
    assert sum(found.values()) == total
    for at, part in enumerate(parts):
        assert abs(found[str(at)] - part) <= unit, at
