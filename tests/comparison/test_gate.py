"""What makes a gate fail, and the thresholds that files set."""

import re
from functools import partial

import pytest
from msgspec.structs import asdict

from nsyspipe.comparison import gate as module
from nsyspipe.comparison.difference import Gate
from nsyspipe.errors import OptionError
from nsyspipe.model.figures import METRICS

PASSED, FAILED, UNDECIDED = 0, 3, 4


def gate_of(fail_on, **verdicts):
    """Return the gate of a difference of which only these verdicts are known; "change" is of a metric without direction."""
    names, better = ("metric", "verdict", "better", "min_effect_pct"), {"change": "neither"}
    rows = [(name, verdict, better.get(verdict, "lower"), 2) for name, verdict in verdicts.items()]
    return Gate.of([dict(zip(names, row, strict=True)) for row in rows], fail_on)


@pytest.mark.parametrize(
    ("verdicts", "on_regression", "on_any_change"),
    [
        (["no change"], PASSED, PASSED),
        (["improvement"], PASSED, FAILED),
        (["regression"], FAILED, FAILED),
        (["inconclusive"], UNDECIDED, UNDECIDED),
        (["inconclusive", "regression"], FAILED, FAILED),
        (["inconclusive", "improvement"], UNDECIDED, FAILED),
        (["no change", "inconclusive"], UNDECIDED, UNDECIDED),
    ],
)
def test_a_gate_fails_is_undecided_or_passes(verdicts, on_regression, on_any_change):
    judged = {f"m{at}": verdict for at, verdict in enumerate(verdicts)}
    assert gate_of("regression", **judged).exit_code == on_regression
    assert gate_of("any-change", **judged).exit_code == on_any_change
    assert bool(gate_of("regression", **judged)) == (on_regression == PASSED)


def test_a_metric_without_direction_fails_only_where_any_change_does(worded):
    judged = {"step_time": "no change", "comm": "change"}
    assert gate_of("any-change", **judged).exit_code == FAILED
    with pytest.raises(OptionError) as caught:
        gate_of("regression", **judged)
    assert caught.value.fix == "--fail-on any-change"
    worded(caught.value.lines(), "one metric")
    module.check_can_fail("any-change", {"comm": "neither"})
    module.check_can_fail("regression", {"idle": "lower", "busbw": "higher"})
    better = {"comm": "neither", "idle": "lower", "collectives": "neither"}
    with pytest.raises(OptionError) as caught:
        module.check_can_fail("regression", better, "x.toml: fail-on", 'fail-on = "any-change"')
    assert (caught.value.subject, caught.value.fix) == ("x.toml: fail-on", 'fail-on = "any-change"')
    worded(caught.value.lines(), "two of a file")


def test_a_gate_says_which_metrics_failed_and_which_are_open():
    found = gate_of("regression", a="regression", b="inconclusive", c="no change")
    assert (found.metrics, found.min_effect_pct) == (("a", "b", "c"), 2)
    assert [row["metric"] for row in found.failed] == ["a"]
    assert [row["metric"] for row in found.undecided] == ["b"]
    assert found.outcome == "failed"


@pytest.mark.parametrize(
    ("text", "ratio"),
    [
        ("2%", 0.02),
        ("2", 0.02),
        (" 0.5 % ", 0.005),
        ("0", 0.0),
        ("0.02%", 0.0002),
        (".5%", 0.005),
        ("1e-5 %", 1e-7),
        ("2E+0%", 0.02),
    ],
)
def test_a_minimum_effect_is_in_per_cent_with_or_without_the_sign(text, ratio):
    assert module.parse_min_effect(text) == pytest.approx(ratio)


@pytest.mark.parametrize("given", ["0.02", ".5", "1e-5", 0.02, 0.005])
def test_a_number_that_may_be_a_ratio_is_asked_about(given):
    with pytest.raises(OptionError, match="may mean") as caught:
        module.effect_ratio(given)
    ratio, percent = (
        one.strip("'") for one in caught.value.fix.removeprefix("write ").split(" or ")
    )
    assert [module.effect_ratio(one) for one in (ratio, percent)] == pytest.approx(
        [float(given), float(given) / 100]
    )


@pytest.mark.parametrize(
    ("parse", "option", "texts"),
    [
        (
            module.parse_min_effect,
            "--min-effect",
            ["", "-1", "two", "2%%", "nan", "inf", "1e400", "1e", "e5", "9" * 400],
        ),
        (
            partial(module.check_confidence, name="--confidence"),
            "--confidence",
            ["0.5", "1", "95", "95%", "", "nan", "-0.9"],
        ),
    ],
    ids=["min-effect", "confidence"],
)
def test_what_is_no_percentage_and_a_confidence_out_of_range_are_refused(
    parse, option, texts, worded
):
    problems = set()
    for text in texts:
        with pytest.raises(OptionError) as caught:
            parse(text)
        assert caught.value.subject.startswith(f"{option} "), text
        problems.add(caught.value.problem)
    (problem,) = problems
    worded(problem)


def test_metrics_are_names_separated_by_commas():
    assert module.check_metrics("step_time, idle,step_time") == ("step_time", "idle")
    with pytest.raises(OptionError) as caught:
        module.check_metrics("step_time,speed")
    assert caught.value.found == ", ".join(METRICS)


OURS, PROJECT = "nsyspipe.toml", "pyproject.toml"
ALL = 'fail_on = "any-change"\nmin-effect = "3%"\nconfidence = 0.9\nmetric = ["idle", "wait"]\n'
SET = {"fail_on": "any-change", "min_effect": 0.03, "confidence": 0.9, "metrics": ("idle", "wait")}


@pytest.mark.parametrize(
    ("above", "here", "expected"),
    [
        # The nearest file wins; of one directory our own.
        (
            {OURS: "[diff]\nmin-effect = 5"},
            {OURS: "[diff]\nfail-on = 'regression'"},
            {"fail_on": "regression"},
        ),
        (
            {},
            {PROJECT: "[tool.nsyspipe.diff]\nmin-effect = 1", OURS: "[diff]\nmin-effect = 4"},
            {"min_effect": 0.04},
        ),
        ({}, {PROJECT: f"[tool.nsyspipe.diff]\n{ALL}"}, SET),
        ({}, {PROJECT: f"[tool.nsyspipe]\n{ALL}"}, SET),
        # What the table of the command says wins over the program's, in either spelling.
        (
            {},
            {OURS: "min-effect = 1\nconfidence = 0.8\n[diff]\nmin-effect = 2"},
            {"min_effect": 0.02, "confidence": 0.8},
        ),
        (
            {},
            {OURS: "fail-on = 'regression'\n[diff]\nfail_on = 'any-change'"},
            {"fail_on": "any-change"},
        ),
        ({}, {OURS: "[diff]\nmin-effect = '1e-5%'"}, {"min_effect": 1e-5 / 100}),
        # A project that is not ours is passed by, even if it is broken.
        (
            {OURS: "confidence = 0.8"},
            {PROJECT: "[project]\nname = 'x'\n[tool.ruff]\n"},
            {"confidence": 0.8},
        ),
        *(
            ({OURS: "confidence = 0.8"}, {PROJECT: text}, {"confidence": 0.8})
            for text in ("[tool.other", "\ud800", "= 3", "tool = 3")
        ),
    ],
)
def test_the_nearest_file_that_is_ours_sets_what_options_leave(tmp_path, above, here, expected):
    for folder, files in ((tmp_path, above), (tmp_path / "a", here)):
        folder.mkdir(exist_ok=True)
        for name, text in files.items():
            (folder / name).write_bytes(text.encode("utf-8", "surrogatepass"))
    found = module.read_settings(tmp_path / "a" / "b")
    assert {
        name: value for name, value in asdict(found).items() if value and name != "path"
    } == expected
    assert found.path.parent == (
        tmp_path if "confidence" in expected and len(expected) == 1 else tmp_path / "a"
    )


WRONG_FILES = {
    "a misspelt name": "[diff]\nmin_efect = 2",
    "no table": "diff = 3",
    "a table of another file": "\n[tool.nsyspipe.diff]\nmin-effect = 2",
    "min-effect true": "[diff]\nmin-effect = true",
    "min-effect below 0": "[diff]\nmin-effect = -1",
    "min-effect a list": "[diff]\nmin-effect = []",
    "min-effect of 5000 digits": "[diff]\nmin-effect = 0x" + "f" * 5000,
    "min-effect nan": "[diff]\nmin-effect = nan",
    "fail-on in two spellings": "[diff]\nfail_on = 'regression'\nfail-on = 'any-change'",
    "fail-on twice the same": "fail_on = 'regression'\nfail-on = 'regression'",
    "confidence 95": "[diff]\nconfidence = 95",
    "fail-on slower": "[diff]\nfail-on = 'slower'",
    "fail-on a list": "[diff]\nfail-on = ['regression']",
    "metric 3": "[diff]\nmetric = 3",
    "no metric": "[diff]\nmetric = []",
    "another metric": "[diff]\nmetric = ['speed']",
    "too large": "#" * (2**20 + 1),
    "no TOML": "[diff",
    "half a letter": "# \ud800",
    "a broken project that may be ours": "[tool.nsyspipe.diff]\nfail-on = regression\n",
}


@pytest.mark.parametrize("case", WRONG_FILES)
def test_a_wrong_file_is_a_clear_error_that_names_it(tmp_path, case, worded):
    text = WRONG_FILES[case]
    path = tmp_path / (PROJECT if text.startswith("[tool.") else OURS)
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(OptionError) as caught:
        module.read_settings(tmp_path)
    assert str(path) in str(caught.value)
    # What Python says of TOML is in brackets, and not the same in each version.
    worded([re.sub(r"\(.*\)", "(...)", line) for line in caught.value.lines()])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (OURS, "[diff]\nmin-effect = 'x'"),
        (OURS, "[diff]\nconfidence = 2"),
        (OURS, "[diff]\nmetric = 3"),
        (OURS, "diff = 3"),
        (PROJECT, "tool.nsyspipe.diff = 3"),
    ],
)
def test_the_fix_of_a_wrong_file_can_be_written_into_it(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(OptionError) as caught:
        module.read_settings(tmp_path)
    fix = caught.value.fix
    path.write_text(
        ("" if fix.startswith("[") else "[tool.nsyspipe.diff]\n" if name == PROJECT else "[diff]\n")
        + fix
    )
    assert module.read_settings(tmp_path).path == path
