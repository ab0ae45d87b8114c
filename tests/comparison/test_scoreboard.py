"""A scoreboard: speed-ups over the first, verdicts, kinds that cannot be compared, and what has no figures."""

import re
from itertools import permutations

import numpy as np
import pyarrow as pa
import pytest

from nsyspipe.api import compare, diff
from nsyspipe.comparison.comparability import CHECKS_OF_RUNS, RUN_PROBLEMS
from nsyspipe.comparison.scoreboard import SCOREBOARD, SORTS, check_sort, sorted_rows
from nsyspipe.comparison.side import Side
from nsyspipe.errors import OptionError
from nsyspipe.model.schema import SUMMARY
from nsyspipe.report.scoreboard import headlines
from nsyspipe.store.choice import find_saved
from nsyspipe.store.saved_run import SavedRun
from nsyspipe.store.write import save
from tests.build.plain_steps import MS, plain_run, steps
from tests.build.tools import Changed


@pytest.fixture
def runs(board_runs):
    return board_runs


def rows(runs, *names, **options):
    return {
        row["label"]: row
        for row in compare({name: runs[name] for name in names}, **options).table.to_pylist()
    }


def test_the_speedup_is_the_ratio_of_mean_step_times(runs):
    found = rows(runs, "slow", "fast")["fast"]  # walls of 130, 131, 132 and of 100, 101, 102 ms
    assert found["speedup"] == pytest.approx(131 / 101, rel=1e-12)
    assert found["speedup_low"] < 131 / 101 < found["speedup_high"]
    # The verdict is of the medians, which are as far apart.
    assert (
        found["peer_delta_low_ratio"]
        < found["peer_delta_ratio"]
        == -30 / 131
        < found["peer_delta_high_ratio"]
        < 0
    )
    assert found["throughput_steps_per_s"] == pytest.approx(1000 / 101)
    assert found["rank_steps_per_s"] == pytest.approx(2000 / 101)
    assert (found["step_time_ns"], found["n_summary_steps"]) == (101 * MS, 12)
    # The first is the reference; parts sum to the mean step time.
    found = rows(runs, "slow", "fast")["slow"]
    assert (found["verdict"], found["speedup"]) == ("reference", 1.0)
    assert (found["speedup_low"], found["speedup_high"]) == (1.0, 1.0)
    parts = [found[f"{name}_ns"] for name in ("compute", "exposed_comm", "exposed_memory", "idle")]
    assert parts == [101 * MS, 20 * MS, 4 * MS, 6 * MS]
    assert found["mean_step_time_ns"] == sum(parts) == 131 * MS


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "name", "options", "verdict"),
    [
        ("slow", "fast", {}, "improvement"),
        ("slow", "again", {}, "no change"),
        ("slow", "short", {}, "inconclusive"),
        ("fast", "slow", {}, "regression"),
        # Unless less than what counts; numbers of numpy are numbers.
        ("fast", "slow", {"min_effect_pct": 50}, "no change"),
        (
            "fast",
            "slow",
            {"min_effect_pct": np.float32(50), "confidence": np.float32(0.9)},
            "no change",
        ),
    ],
)
def test_the_verdict_is_that_of_a_difference_on_step_time(runs, first, name, options, verdict):
    found = rows(runs, first, name, **options)[name]
    assert found["verdict"] == found["peer_verdict"] == verdict
    assert options or diff(runs[first], runs[name]).verdict == verdict
    found = rows(runs, "slow", "short")[
        "short"
    ]  # two steps, of 100 and 101 ms, have a speed-up without an interval
    assert found["speedup"] == pytest.approx(131 / 100.5)
    assert found["speedup_low"] is None
    assert re.findall(r"\b(?:slow|short|\d+)\b", found["why"]) == ["short", "2", "3"]


def test_another_world_size_is_judged_only_within_its_kind(runs):
    found = rows(runs, "slow", "wide", "fast", "wider")
    assert found["wider"]["speedup"] == pytest.approx(
        131 / 111
    )  # steps of 121 and 111 ms in the mean
    assert found["wider"]["verdict"] == "inconclusive"
    assert found["wider"]["why"] == "not comparable: world size"
    assert (found["wider"]["peer"], found["wider"]["peer_verdict"]) == ("wide", "improvement")
    assert found["wider"]["peer_speedup"] == pytest.approx(121 / 111)
    assert (found["wide"]["peer"], found["wide"]["peer_verdict"]) == ("wide", "reference")
    assert found["fast"]["peer"] == "slow"
    found = rows(runs, "slow", "wide", force=True)[
        "wide"
    ]  # by force they are judged against the first
    assert (found["verdict"], found["peer"], found["why"]) == ("improvement", "slow", None)


@pytest.mark.slow
def test_kinds_name_their_best_and_what_cannot_be_told_from_it(runs):
    first, second = compare(
        {name: runs[name] for name in ("slow", "wide", "again", "wider", "short")}
    ).kinds
    assert (first.peer, first.labels) == ("slow", ("slow", "again", "short"))
    assert (first.best, first.level_with) == ("slow", ("again",))  # equal ones: the reference
    assert first.not_told_from == ("short",)  # two steps say nothing of it
    assert (second.best, second.level_with, second.not_told_from) == ("wider", (), ())
    # Copies of one capture are no rivals.
    (copies,) = compare({"a": runs["fast"], "b": runs["fast"], "c": runs["slow"]}).kinds
    assert (copies.best, copies.level_with, copies.not_told_from) == ("a", (), ())


@pytest.fixture(scope="module")
def apart(tmp_path_factory):
    """Return runs that fit some of the others: of 100, 190 and 370 ms of compute, of none that is known, of other GPUs or none."""
    folder = tmp_path_factory.mktemp("apart")
    of_name = {
        "a": (100, "H200"),
        "b": (190, "H200"),
        "c": (370, "H200"),
        "dark": (100, "H200"),
        "dark2": (100, "H200"),
        "l4": (100, "L4"),
        "gpu?": (100, None),
    }
    made = {
        name: plain_run(
            folder / str(at), [steps(compute, 4)] * 2, gpu=gpu, start=10**18 + at * 10**12
        )
        for at, (name, (compute, gpu)) in enumerate(of_name.items())
    }
    for name in ("dark", "dark2"):
        rows = made[name].breakdown()
        at = rows.column_names.index("compute_ns")
        nulls = rows.set_column(at, "compute_ns", pa.nulls(rows.num_rows, rows["compute_ns"].type))
        made[name] = Changed(made[name], breakdown=lambda nulls=nulls: nulls)
    return made


@pytest.mark.slow
@pytest.mark.parametrize(
    ("names", "kinds"),
    [
        # 190 is less than twice 100, and 370 less than twice 190: from the least on.
        (("a", "b", "c"), ["ab", "c"]),
        # What nobody knows of is like nobody but others of which nobody knows.
        (("a", "c", "dark", "b"), ["ab", "c", "dark"]),
        (("a", "dark"), ["a", "dark"]),
        (("dark", "dark2"), ["darkdark2"]),
        (("a", "c", "dark", "dark2"), ["a", "c", "darkdark2"]),
        (("a", "b", "l4", "gpu?"), ["ab", "gpu?", "l4"]),
        (("a", "b", "gpu?"), ["abgpu?"]),
    ],
)
def test_the_order_of_runs_does_not_change_who_is_compared_with_whom(apart, names, kinds):
    for order in permutations(names):
        board = compare([Side(name, (apart[name],)) for name in order])
        assert sorted("".join(sorted(kind.labels)) for kind in board.kinds) == kinds, order
        assert all(
            kind.peer == next(name for name in order if name in kind.labels) for kind in board.kinds
        ), order
        if not {"gpu?", "dark"}.intersection(
            names
        ):  # what parts a kind from the first or its kind is said of one of it
            told = {row["label"] for row in board.checks.to_pylist() if row["blocks"]}
            assert [bool(told.intersection(kind.labels)) for kind in board.kinds] == [
                False,
                *[True] * (len(kinds) - 1),
            ], order
    forced = compare([Side(name, (apart[name],)) for name in names], force=True)
    assert [kind.peer for kind in forced.kinds] == [names[0]]


@pytest.mark.slow
def test_unknown_compute_is_not_compared_with_known_compute(apart, worded):
    sides = [Side(name, (apart[name],)) for name in ("dark", "dark2", "a")]
    of_both = compare(sides[:2])
    (check,) = of_both.checks.to_pylist()
    assert not check["blocks"]
    worded([*headlines(of_both), check["message"]], "of both")
    assert diff(*sides[:2]).verdict == "no change"
    # It is told of those that it is of only.
    three = headlines(compare([Side(name, (apart[name],)) for name in ("a", "b", "dark")]))
    worded(three, "of one of three")
    # One verdict of one pair.
    board, found = compare(sides[1:]), diff(*sides[1:], fail_on="regression")
    assert board.table["why"].to_pylist()[1] == found.metrics["why"][0].as_py()
    worded([*headlines(board), found.metrics["why"][0].as_py()], "of one of two")
    assert (found.verdict, found.gate.outcome) == ("inconclusive", "undecided")
    assert diff(*sides[1:], force=True).verdict == "no change"


def test_another_gpu_is_another_kind(apart, worded):
    found = compare({name: apart[name] for name in ("a", "l4")})
    assert [kind.peer for kind in found.kinds] == ["a", "l4"]
    (first, why), check = found.table["why"].to_pylist(), found.checks.to_pylist()[0]
    assert (first, check["check"]) == (None, "gpu-model")
    worded([why, check["message"]])


def test_a_check_of_runs_names_the_run_instead_of_the_baseline(run, made):
    other_run = made(*[[(3_000, 100, 40, 60)] * 3] * 2, kernel="conv")
    board = compare([Side("first", (run,)), Side("second", (other_run,))])
    (row,) = [row for row in board.checks.to_pylist() if row["check"] == "other-work"]
    for text in (row["value"], row["message"]):
        assert "baseline" not in text
        assert "first" in text


def test_several_captures_are_one_run_with_the_mean_of_their_figures(runs):
    found = compare([Side("both", (runs["slow"], runs["fast"])), runs["slow"]]).table.to_pylist()[0]
    assert (found["n_captures"], found["n_summary_steps"]) == (2, 24)
    assert found["mean_step_time_ns"] == 116 * MS
    assert found["step_time_ns"] == 116 * MS
    assert found["throughput_steps_per_s"] == pytest.approx(1000 / 116)
    assert found["run_ids"].split() == [runs[one].header.run_id for one in ("slow", "fast")]
    with pytest.raises(OptionError, match="twice"):
        compare([Side("both", (runs["slow"], runs["slow"]))])


@pytest.mark.parametrize("order", [("slow", "empty"), ("empty", "slow"), ("empty", "empty2")])
def test_a_run_without_steps_is_a_row_of_nulls_with_a_problem(runs, without_gpu, order):
    named = {"slow": runs["slow"], "empty": without_gpu, "empty2": without_gpu}
    board = compare({name: named[name] for name in order}, force=True)
    for row in board.table.to_pylist():
        assert (row["speedup"] is None) == ("empty" in (row["label"][:5], order[0])), row
        if row["label"] != "slow":
            assert row["step_time_ns"] is row["compute_ns"] is row["mean_step_time_ns"] is None, row
            codes = [
                one["code"] for one in board.problems.to_pylist() if one["label"] == row["label"]
            ]
            assert codes[0] == "no-figures", row
    assert board.table["verdict"].to_pylist() == ["reference", "inconclusive"]


def test_tables_have_their_declared_schemas_with_docs(runs, without_gpu):
    board = compare([runs["slow"], without_gpu])
    schemas = {"table": SCOREBOARD, "checks": CHECKS_OF_RUNS, "problems": RUN_PROBLEMS}
    for table, schema in ((getattr(board, name), schema) for name, schema in schemas.items()):
        assert table.schema.equals(schema.arrow, check_metadata=True), table
        assert all(column.doc and column.unit for column in schema.columns), table
        for field in table.schema:
            assert field.nullable or table[field.name].null_count == 0, field


@pytest.mark.slow
def test_saved_runs_give_the_same_tables_as_their_reports(runs, tmp_path):
    names = ("slow", "fast", "short")
    for name in names:
        save(runs[name], tmp_path / name)
    reports, saved = (
        compare([of[name] for name in names])
        for of in (runs, {name: tmp_path / name for name in names})
    )
    for name in ("table", "checks", "problems", "kinds"):
        assert getattr(saved, name) == getattr(reports, name), name


@pytest.mark.slow
def test_the_order_of_other_runs_changes_no_comparison_with_the_first(runs):
    usual = rows(runs, "slow", "again", "fast", "wide", "wider")
    for label, row in rows(runs, "slow", "wider", "again", "wide", "fast").items():
        others = {
            name: value for name, value in usual[label].items() if not name.startswith("peer")
        }
        assert {name: row[name] for name in others} == others, label
    names = ("slow", "fast", "wide", "again")
    usual, by_time = rows(runs, *names), rows(runs, *names, sort="step_time")
    assert list(by_time) == ["fast", "wide", "slow", "again"]
    assert usual == by_time


class Damaged(SavedRun):
    def summary(self):
        row = super().summary().to_pylist()[0]
        return SUMMARY.from_rows(
            [row | {"comm_share": float("nan"), "throughput_steps_per_s": float("inf")}]
        )


@pytest.mark.slow
def test_figures_of_a_damaged_run_that_are_no_numbers_are_null(runs, tmp_path):
    save(runs["slow"], tmp_path)
    found = compare([Damaged(*find_saved(tmp_path))]).table.to_pylist()[0]
    assert found["comm_share"] is found["throughput_steps_per_s"] is None
    assert found["step_time_ns"] == 131 * MS


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sort", "speed"),
        *(("min_effect_pct", value) for value in (-1, float("nan"), "two", True)),
        *(("confidence", value) for value in (1, 0.5)),
    ],
)
def test_a_value_that_cannot_be_used_is_refused(runs, name, value, worded):
    with pytest.raises(OptionError) as caught:
        compare([runs["slow"]], **{name: value})
    worded(str(caught.value))


def test_no_runs_are_refused(worded):
    with pytest.raises(OptionError) as caught:
        compare([])
    worded(str(caught.value))


def test_a_metric_has_its_name_or_column_and_unknown_ones_are_refused(
    runs,
):
    assert {column for column, _ in SORTS.values()} <= set(SCOREBOARD.names)
    assert [check_sort(name) for name in ("step_time", "step_time_ns")] == ["step_time"] * 2
    with pytest.raises(OptionError) as caught:
        check_sort("label", "--sort")
    assert caught.value.subject == "--sort 'label'"
    assert caught.value.found.startswith("step_time, throughput, ")
    board = compare([Side("a", (runs["slow"],))])
    assert repr(board) == f"<Scoreboard of 1 run against 'a': {board.headline}>"


@pytest.mark.parametrize(("name", "expected"), [("step_time", "bcad"), ("overlap_ratio", "abcd")])
def test_the_best_comes_first_nulls_last_and_equal_ones_as_given(name, expected):
    rows = [
        {"label": label, SORTS[name][0]: value}
        for label, value in [("d", None), ("a", 3), ("b", 1), ("c", 1)]
    ]
    assert "".join(row["label"] for row in sorted_rows(rows, name)) == expected
