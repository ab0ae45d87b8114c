"""What makes a gate fail, and the thresholds that files set."""

from __future__ import annotations

import pytest

from nsyspipe.comparison.gate import (
    FAILED,
    PASSED,
    UNDECIDED,
    GateSettings,
    check_can_fail,
    gate,
    parse_confidence,
    parse_metrics,
    parse_min_effect,
    read_settings,
)
from nsyspipe.errors import OptionError
from nsyspipe.model.figures import METRICS


class Judged:
    """A difference of which only the verdicts of the judged metrics are known; "change" is of one without direction."""

    def __init__(self, **verdicts):
        self.judged_rows = [
            {"metric": name, "verdict": verdict, "better": "neither" if verdict == "change" else "lower"}
            for name, verdict in verdicts.items()
        ]


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
    judged = Judged(**{f"m{at}": verdict for at, verdict in enumerate(verdicts)})
    assert gate(judged, "regression").exit_code == on_regression
    assert gate(judged, "any-change").exit_code == on_any_change


def test_a_metric_without_direction_fails_only_where_any_change_does():
    judged = Judged(step_time="no change", comm="change")
    assert gate(judged, "any-change").exit_code == FAILED
    with pytest.raises(OptionError, match="comm is neither better lower nor higher") as caught:
        gate(judged, "regression")
    assert caught.value.fix == "--fail-on any-change"


def test_a_gate_that_could_never_fail_names_all_that_have_no_direction():
    check_can_fail("any-change", {"comm": "neither"})
    check_can_fail("regression", {"idle": "lower", "busbw": "higher"})
    better = {"comm": "neither", "idle": "lower", "collectives": "neither"}
    with pytest.raises(OptionError, match="comm, collectives are neither") as caught:
        check_can_fail("regression", better, "x.toml: fail-on", 'fail-on = "any-change"')
    assert caught.value.subject == "x.toml: fail-on"
    assert caught.value.fix == 'fail-on = "any-change"'


def test_a_gate_says_which_metrics_failed_and_which_are_open():
    found = gate(Judged(a="regression", b="inconclusive", c="no change"), "regression")
    assert [row["metric"] for row in found.failed] == ["a"]
    assert [row["metric"] for row in found.undecided] == ["b"]
    assert found.outcome == "failed"


def test_an_unknown_gate_is_refused():
    with pytest.raises(OptionError, match="is no gate"):
        gate(Judged(a="no change"), "slower")


@pytest.mark.parametrize(
    ("text", "ratio"), [("2%", 0.02), ("2", 0.02), (" 0.5 % ", 0.005), ("0", 0.0), ("0.02%", 0.0002), (".5%", 0.005), ("1e-5 %", 1e-7), ("2E+0%", 0.02)]
)  # fmt: skip
def test_a_minimum_effect_is_in_per_cent_with_or_without_the_sign(text, ratio):
    assert parse_min_effect(text) == pytest.approx(ratio)


@pytest.mark.parametrize("text", ["0.02", ".5", "1e-5"])
def test_a_number_that_may_be_a_ratio_is_asked_about(text):
    with pytest.raises(OptionError, match="may mean") as caught:
        parse_min_effect(text)
    for answer in caught.value.fix.removeprefix("write ").split(" or "):
        assert parse_min_effect(answer) >= 0


@pytest.mark.parametrize("text", ["", "-1", "two", "2%%", "nan", "inf", "1e400", "1e", "e5", "9" * 400])
def test_what_is_no_percentage_is_refused(text):
    with pytest.raises(OptionError, match="no percentage"):
        parse_min_effect(text)


@pytest.mark.parametrize("text", ["0.5", "1", "95", "95%", "", "nan", "-0.9"])
def test_a_confidence_out_of_range_is_refused(text):
    with pytest.raises(OptionError, match=r"between 0\.5 and 1"):
        parse_confidence(text)


def test_metrics_are_names_separated_by_commas():
    assert parse_metrics("step_time, idle,step_time") == ("step_time", "idle")
    with pytest.raises(OptionError) as caught:
        parse_metrics("step_time,speed")
    assert caught.value.found == ", ".join(METRICS)


# --- files ----------------------------------------------------------------------------------------


def write(folder, name, text):
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(text)
    return path


def test_the_nearest_file_wins_and_is_named(tmp_path):
    write(tmp_path, "nsyspipe.toml", "[diff]\nmin-effect = 5")
    path = write(tmp_path / "a", "nsyspipe.toml", '[diff]\nfail-on = "regression"\n')
    assert read_settings(tmp_path / "a" / "b") == GateSettings(fail_on="regression", path=path)


@pytest.mark.parametrize("table", ["[tool.nsyspipe.diff]", "[tool.nsyspipe]"])
def test_a_pyproject_sets_everything(tmp_path, table):
    text = f'{table}\nfail_on = "any-change"\nmin-effect = "3%"\nconfidence = 0.9\nmetric = ["idle", "wait"]\n'
    path = write(tmp_path, "pyproject.toml", text)
    assert read_settings(tmp_path) == GateSettings("any-change", 0.03, 0.9, ("idle", "wait"), path)


def test_the_table_of_the_command_wins_over_the_one_of_the_program(tmp_path):
    path = write(tmp_path, "nsyspipe.toml", "min-effect = 1\nconfidence = 0.8\n[diff]\nmin-effect = 2\n")
    assert read_settings(tmp_path) == GateSettings(min_effect=0.02, confidence=0.8, path=path)


def test_a_pyproject_without_a_table_of_ours_is_passed_by(tmp_path):
    write(tmp_path / "a", "pyproject.toml", "[project]\nname = 'x'\n[tool.ruff]\n")
    path = write(tmp_path, "nsyspipe.toml", "")
    assert read_settings(tmp_path / "a") == GateSettings(path=path)


def test_of_one_directory_our_own_file_wins(tmp_path):
    write(tmp_path, "pyproject.toml", "[tool.nsyspipe.diff]\nmin-effect = 1\n")
    path = write(tmp_path, "nsyspipe.toml", "[diff]\nmin-effect = 4\n")
    assert read_settings(tmp_path) == GateSettings(min_effect=0.04, path=path)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[diff]\nmin_efect = 2", "sets 'min-efect', which nothing reads"),
        ("[diff]\nmin-effect = true", "no percentage"),
        ("[diff]\nmin-effect = -1", "no percentage"),
        ("[diff]\nmin-effect = []", "no percentage"),
        ("[diff]\nmin-effect = 0x" + "f" * 5000, "no percentage"),
        ("[diff]\nmin-effect = nan", "no percentage"),
        ("[diff]\nfail_on = 'regression'\nfail-on = 'any-change'", "sets 'fail-on' twice"),
        ("fail_on = 'regression'\nfail-on = 'regression'", "sets 'fail-on' twice"),
        ("[diff]\nconfidence = 95", r"between 0\.5 and 1"),
        ("[diff]\nfail-on = 'slower'", "is no gate"),
        ("[diff]\nfail-on = ['regression']", "is no gate"),
        ("[diff]\nmetric = 3", "is no list of metrics"),
        ("[diff]\nmetric = []", "is no list of metrics"),
        ("[diff]\nmetric = ['speed']", "no such metric"),
        ("diff = 3", "no table of settings"),
        ("[diff", "is no TOML"),
        ("# \ud800", "is no TOML"),
        ("#" * (2**20 + 1), "too large"),
    ],
)
def test_a_wrong_file_is_a_clear_error_that_names_it(tmp_path, text, problem):
    path = tmp_path / "nsyspipe.toml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(OptionError, match=problem) as caught:
        read_settings(tmp_path)
    assert str(path) in str(caught.value)


def test_a_pyproject_whose_tools_are_no_table_is_not_ours(tmp_path):
    write(tmp_path, "pyproject.toml", "tool = 3")
    assert read_settings(tmp_path).path is None


@pytest.mark.parametrize("text", ["[tool.other", "\ud800", "= 3"])
def test_a_broken_pyproject_that_is_not_ours_is_passed_by(tmp_path, text):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "pyproject.toml").write_bytes(text.encode("utf-8", "surrogatepass"))
    path = write(tmp_path, "nsyspipe.toml", "[diff]\nmin-effect = 4\n")
    assert read_settings(tmp_path / "a") == GateSettings(min_effect=0.04, path=path)


def test_a_broken_pyproject_that_may_be_ours_is_an_error(tmp_path):
    write(tmp_path, "pyproject.toml", "[tool.nsyspipe.diff]\nfail-on = regression\n")
    with pytest.raises(OptionError, match="is no TOML"):
        read_settings(tmp_path)


def test_a_small_number_is_taken_however_it_is_written(tmp_path):
    write(tmp_path, "nsyspipe.toml", "[diff]\nmin-effect = '1e-5%'\n")
    assert read_settings(tmp_path).min_effect == pytest.approx(1e-7)


def test_either_spelling_inside_of_diff_wins_over_the_other_outside(tmp_path):
    write(tmp_path, "nsyspipe.toml", "fail-on = 'regression'\n[diff]\nfail_on = 'any-change'\n")
    assert read_settings(tmp_path).fail_on == "any-change"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("nsyspipe.toml", "[diff]\nmin-effect = 'x'"),
        ("nsyspipe.toml", "[diff]\nconfidence = 2"),
        ("nsyspipe.toml", "[diff]\nmetric = 3"),
        ("nsyspipe.toml", "diff = 3"),
        ("pyproject.toml", "tool.nsyspipe.diff = 3"),
    ],
)
def test_the_fix_of_a_wrong_file_can_be_written_into_it(tmp_path, name, text):
    write(tmp_path, name, text)
    with pytest.raises(OptionError) as caught:
        read_settings(tmp_path)
    fix = caught.value.fix
    table = "" if fix.startswith("[") else "[tool.nsyspipe.diff]\n" if "py" in name[:2] else "[diff]\n"
    write(tmp_path, name, table + fix)
    assert read_settings(tmp_path).path == tmp_path / name
