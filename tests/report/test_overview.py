"""What the first screen of a run shows, by codes and figures: what comes first, in which order, and what stays below it."""

import re

import pyarrow as pa
import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

import nsyspipe
from nsyspipe.analysis.summary import means_of_slowest
from nsyspipe.cli.app import app
from nsyspipe.findings.judge import RULES
from nsyspipe.model.figures import METRICS
from nsyspipe.model.problems import SkippedCheck
from nsyspipe.report import overview
from nsyspipe.report.findings import LITTLE_SHARE_OF_STEP, findings_of
from nsyspipe.report.first_screen import as_clause
from nsyspipe.report.overview import (
    BOUNDED,
    CONDITIONAL,
    ESTIMATED,
    UNBOUNDED,
    RankSpread,
    Recommendation,
)
from nsyspipe.report.units import short_percent
from tests.build.tools import Changed, finding

STEP_NS = 100.0
NUMBER = re.compile(r"(?<![\w.])\d+(\.\d+)?")


@pytest.fixture
def some_finding(steady_run):
    (found,) = findings_of(Changed(steady_run, findings=[finding(1)]))
    return found


@pytest.fixture
def change(some_finding):
    """Return a function that makes a recommendation by its id and the step time that it leaves."""

    def make(rule, step_ns=50.0, known=ESTIMATED, *, is_clear=True):
        saving_ns = None if known == UNBOUNDED else STEP_NS - step_ns
        step_ns = None if known == UNBOUNDED else step_ns
        low_ns = high_ns = step_ns if known in {ESTIMATED, CONDITIONAL} else None
        return Recommendation(
            replace(some_finding, id=rule),
            known,
            saving_ns,
            step_ns,
            low_ns,
            high_ns,
            is_clear=is_clear,
        )

    return make


def sort(*found, is_all_little=False):
    return overview.sort_recommendations(found, is_all_little=is_all_little)


def ids(changes):
    return [one.finding.id for one in changes]


def test_the_cause_comes_first_although_its_consequence_saves_more(change):
    found = sort(change("launch-bound", 80.0), change("straggler", 60.0))
    assert found.first.finding.id == "launch-bound"
    assert overview.is_cause_of(found.first, found.alternatives[0])


def test_alternatives_go_by_the_step_time_that_is_shown(change):
    found = sort(
        change("a", 70.0), change("b", 90.0), change("c", 60.0, CONDITIONAL), change("d", 80.0)
    )
    assert ids(found.alternatives) == ["c", "d", "b"]


def test_upper_bounds_stand_behind_estimates_and_unknown_savings_last(change):
    found = sort(
        change("a"), change("x", known=UNBOUNDED), change("b", 10.0, BOUNDED), change("c", 90.0)
    )
    assert ids(found.alternatives) == ["c", "b", "x"]


def test_what_is_within_noise_is_not_on_the_first_screen(change):
    found = sort(change("a", 98.0, is_clear=False), change("b", 60.0))
    assert found.first.finding.id == "b"
    assert ids(found.within_noise) == ["a"]
    assert found.alternatives == ()


@pytest.mark.parametrize(
    ("saved", "is_shown"),
    [(LITTLE_SHARE_OF_STEP - 0.001, False), (LITTLE_SHARE_OF_STEP + 0.001, True)],
)
def test_an_alternative_that_saves_little_is_not_on_the_first_screen(change, saved, is_shown):
    found = sort(change("a"), change("b", STEP_NS * (1 - saved), BOUNDED))
    assert (ids(found.alternatives) == ["b"]) is is_shown
    assert (ids(found.little) == ["b"]) is not is_shown


def test_nothing_comes_first_where_all_save_little(change):
    found = sort(change("a", 99.0), change("x", known=UNBOUNDED), is_all_little=True)
    assert found.first is None
    assert ids(found.little) == ["a"]
    assert ids(found.alternatives) == ["x"]


def test_exposed_communication_is_no_change_where_another_reduces_it(change):
    found = sort(change("single-bucket", 70.0), change("comm-bound", 60.0, BOUNDED))
    assert ids(found.shown) == ["single-bucket"]
    assert found.exposure.finding.id == "comm-bound"


@pytest.mark.parametrize("others", [[], ["within noise"], ["unbounded"]])
def test_exposed_communication_comes_first_where_no_change_reduces_it(change, others):
    more = {
        "within noise": change("a", 99.0, is_clear=False),
        "unbounded": change("a", known=UNBOUNDED),
    }
    found = sort(*(more[name] for name in others), change("comm-bound", 60.0, BOUNDED))
    assert found.first.finding.id == "comm-bound"


def test_a_larger_saving_behind_the_first_is_named(change):
    first, larger, smaller = change("a", 70.0), change("b", 60.0, CONDITIONAL), change("c", 80.0)
    assert overview.outranked_by(first, [larger, smaller]) == [larger]


def test_saved_share_is_of_the_captured_step(change):
    assert change("a", 75.0).saved_share == 0.25
    assert change("a", known=UNBOUNDED).saved_share is None


@pytest.mark.parametrize(("share", "is_visible"), [(0.0199, False), (0.0201, True)])
def test_ranks_differ_visibly_from_a_share_of_the_step_on(share, is_visible):
    assert RankSpread(METRICS["idle"], 1.0, share).is_visible is is_visible


def test_parts_of_a_step_are_those_of_its_slowest_rank():
    rows = [(0, 1, 10, 3), (1, 1, 20, 5), (0, 2, 40, 7), (1, 2, 40, 9)]
    table = pa.table(
        dict(zip(("rank", "step", "wall_ns", "idle_ns"), zip(*rows, strict=True), strict=True))
    )
    assert means_of_slowest(table, ["wall_ns", "idle_ns"]) == {"wall_ns": 30.0, "idle_ns": 6.0}


def test_a_part_that_one_slowest_rank_lacks_is_not_known():
    table = pa.table(
        {"rank": [0, 0], "step": [1, 2], "wall_ns": [10, 20], "idle_ns": pa.array([3, None])}
    )
    assert means_of_slowest(table, ["idle_ns"]) == {"idle_ns": None}


def test_parts_sum_to_the_step_time_of_the_headline(steady_run):
    step = overview.step_time_of(steady_run)
    assert sum(part.ns for part in step.parts) == pytest.approx(step.mean_ns)
    assert step.mean_ns == pytest.approx(
        1e9 / steady_run.summary()["throughput_steps_per_s"][0].as_py()
    )
    assert [part.ns for part in step.parts] == sorted(
        (part.ns for part in step.parts), reverse=True
    )


def test_every_rule_fired_passed_or_was_skipped(steady_run):
    checks = overview.checks_of(steady_run)
    rules = {rule.__name__.replace("_", "-") for rule in RULES}
    fired = {row["id"] for row in steady_run.finding_rows}
    assert {*checks.passed} | {*checks.skipped_rules} | fired == rules
    assert not {*checks.passed} & ({*checks.skipped_rules} | fired)


def test_a_rule_that_was_not_judged_is_skipped_with_its_reason(steady_run):
    check = SkippedCheck(("slow-link", "compress-gradients"), "no log", "pass it")
    checks = overview.checks_of(Changed(steady_run, findings=[], skipped_checks=(check,)))
    assert checks.skipped == (check,)
    assert not {"slow-link", "compress-gradients"} & {*checks.passed}


def test_all_rules_are_skipped_where_none_could_be_judged(steady_run):
    check = SkippedCheck(tuple(rule.__name__.replace("_", "-") for rule in RULES), "no steps", None)
    checks = overview.checks_of(Changed(steady_run, findings=[], skipped_checks=(check,)))
    assert checks.passed == ()
    assert len(checks.skipped_rules) == len(RULES)


@pytest.mark.parametrize(
    ("sentence", "clause"),
    [
        ("One bucket", "one bucket"),
        ("A bucket", "a bucket"),
        ("NCCL sends", "NCCL sends"),
        ("f32 is", "f32 is"),
    ],
)
def test_a_sentence_goes_on_after_a_label(sentence, clause):
    assert as_clause(sentence) == clause


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (0, "0%"),
        (0.0094, "0.9%"),
        (0.0096, "1%"),
        (0.454, "45%"),
        (0.9949, "99%"),
        (0.9951, "99.5%"),
        (1, "100%"),
    ],
)
def test_short_percent(ratio, text):
    assert short_percent(ratio) == text


@pytest.fixture
def printed(real, monkeypatch):
    """Return a function that runs analyze on real reports, in a folder without logs, on a terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.chdir(real)

    def run(name, *options):
        result = CliRunner().invoke(
            app, ["analyze", f"{name}_*.sqlite", *options], prog_name="nsyspipe"
        )
        assert result.exit_code == 0
        return result.stdout

    return run


@pytest.mark.slow
def test_the_first_screen_keeps_its_budgets(printed):
    lines = printed("ddp-4gpu-shm").splitlines()
    n_numbers = sum(len(NUMBER.findall(line)) for line in lines)
    n_first = sum(len(NUMBER.findall(line)) for line in lines[:10])
    assert len(lines) <= 32
    assert n_numbers <= 45
    assert n_first <= 16
    assert not [line for line in lines if ";" in line]
    assert max(map(len, lines)) <= 80


@pytest.mark.slow
def test_the_last_line_explains_the_first_recommendation(printed, real):
    first = overview.recommendations_of(nsyspipe.load(real.glob("ddp-4gpu-shm_*.sqlite"))).first
    assert printed("ddp-4gpu-shm").split()[-3:] == ["nsyspipe", "explain", first.finding.id]


@pytest.mark.slow
def test_verbose_has_every_finding_and_problem(printed, real):
    run = nsyspipe.load(real.glob("ddp-4gpu-shm_*.sqlite"))
    words = " ".join(printed("ddp-4gpu-shm", "-v").split())
    assert [row["id"] for row in run.finding_rows if f"[{row['id']}]" not in words] == []
    assert [
        row["message"] for row in run.problem_rows if " ".join(row["message"].split()) not in words
    ] == []
    assert [rule for rule in overview.checks_of(run).passed if rule not in words] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "has_table"), [("ddp-4gpu-shm", False), ("ddp-2gpu-straggler", True)]
)
def test_ranks_have_a_table_where_they_differ(printed, real, name, has_table):
    spread = overview.rank_spread(nsyspipe.load(real.glob(f"{name}_*.sqlite")))
    assert spread.is_visible is has_table
    assert ("rank  time ms" in printed(name)) is has_table
