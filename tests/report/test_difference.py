"""A difference in words: units, signs, sentences; and its text and Markdown."""

import html
import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from rich.console import Console

import nsyspipe
from nsyspipe.api import diff
from nsyspipe.comparison.causes import MeanStepTime
from nsyspipe.comparison.difference import RunDifference
from nsyspipe.comparison.gate import GateSettings
from nsyspipe.comparison.metrics import Rules
from nsyspipe.comparison.side import Side
from nsyspipe.model.side_files import NcclFacts
from nsyspipe.report import difference as words
from nsyspipe.report.as_text import as_text
from nsyspipe.report.blocks import Sentence
from nsyspipe.report.html.difference_page import difference_page
from nsyspipe.report.units import delta_text
from tests.build.plain_steps import MS, host_run, plain_rank, plain_run, steps, write_run
from tests.build.tools import Changed


def text_of(difference, width=100):
    return as_text(words.difference_blocks(difference), Console(width=width, no_color=True))


def markdown_of(difference):
    return words.difference_formats(difference)["markdown"].text()


@pytest.fixture(scope="module")
def runs(board_runs, tmp_path_factory):
    chatty = [(one, 2 * comm, *rest) for one, comm, *rest in steps(100)]
    return board_runs | {"chatty": plain_run(tmp_path_factory.mktemp("chatty"), [chatty] * 2)}


@pytest.mark.parametrize(
    ("unit", "low", "delta", "high", "text", "cell"),
    [
        ("ns", -74.15 * MS, -73 * MS, -71.61 * MS, "-74.15 to -71.61 ms", "-74.15 to -71.61"),
        # However small it is, both signs are there.
        ("ns", -335.2, 30.0, 395.2, "-335.2 to +395.2 ns", "-335.2 to +395.2"),
        ("ratio", -0.0004, 0.0, 0.0003, "-0.04 to +0.03 pp", "-0.04 to +0.03"),
        # Where the units of the ends differ, neither is lost.
        ("ns", -900.0, 1300.0, 2500.0, "-900 ns to +2.5 us", "-900 ns to +2.5 us"),
        ("bytes", -2000.0, -995.0, 10.0, "-2.00 kB to +10 B", "-2.00 kB to +10 B"),
        ("ns", None, 1.0, None, "-", "-"),
    ],
)
def test_an_interval_says_its_unit_once(unit, low, delta, high, text, cell):
    row = {"unit": unit, "ci_low": low, "delta": delta, "ci_high": high}
    assert (words.interval_text(row), words.interval_cell(row)) == (text, cell)


@pytest.mark.parametrize(
    ("statistics", "second_line"),
    [
        ({None}, ""),
        (set(), ""),
        ({"mean"}, "\nmean"),
        ({"median"}, "\nmedian"),
        ({"mean", "median"}, "\nmean or median"),
        # A metric without a value has no statistic.
        ({"mean", None}, "\nmean"),
        ({"median", None}, "\nmedian"),
        ({"mean", "median", None}, "\nmean or median"),
    ],
)
def test_the_headings_of_both_sides_have_the_statistics_of_their_values(statistics, second_line):
    headings = [field.heading for field in words._metric_side_fields(statistics)]
    assert headings == [f"baseline{second_line}", f"candidate{second_line}"]


@pytest.mark.parametrize(
    ("unit", "change", "text"),
    [
        ("ratio", 12.0, "-"),
        ("ns", None, "-"),
        ("ns", -11.3, "-11.3%"),
        ("ns", 999.0, "+999.0%"),
        ("ns", 2763.0, "+2763%"),
        ("ns", 16517.0, "-"),
    ],
)
def test_a_ratio_has_points_and_no_per_cent_nor_has_what_was_next_to_nothing(unit, change, text):
    assert words.percent_change({"unit": unit, "delta_pct": change}) == text


@pytest.mark.parametrize(
    ("baseline", "low", "high", "said"),
    [
        (10e6, -1e6, 2e6, ("-10.0 to +20.0 %", "2.0 %")),
        # 30 ms are 600 times 0.05 ms, of which 2 % are 1 us.
        (0.05e6, -10e6, 30e6, ("-10.0000 to +30.0000 ms", "1 us")),
        (-0.05e6, -30e6, 10e6, ("-30.0000 to +10.0000 ms", "1 us")),
    ],
)
def test_an_interval_of_next_to_nothing_is_in_its_unit(baseline, low, high, said):
    row = {
        "unit": "ns",
        "why": "interval",
        "baseline": baseline,
        "min_effect": abs(baseline) / 50,
        "ci_low": low,
        "ci_high": high,
        "delta": 0.0,
    }
    assert words._relative_interval(row) == said


# Medians: slow has 101 ms of compute and fast 71, both 30 ms of all else; short has two steps of
# 100 and 101 ms. What decides leads, and the others are named; what is better leads over what is as
# it was. Chatty communicates 40 ms instead of 20: what has no direction is never called better or
# worse.
SPOKEN = [
    "slow fast step_time",
    "short fast step_time",
    "slow fast busbw",
    "fast slow idle,compute,step_time",
    "slow fast idle,compute,step_time",
    "slow chatty comm,collectives",
    "slow chatty comm,compute",
]


@pytest.mark.slow
def test_the_verdict_leads_with_the_figure_that_decides(runs, pinned):
    said = []
    for case in SPOKEN:
        before, after, metrics = case.split()
        said.append(
            f"{case}: "
            f"{words.verdict_text(diff(runs[before], runs[after], metrics=metrics.split(',')))}"
        )
    pinned("difference/verdicts", sentences="\n".join(said))


@pytest.mark.parametrize(
    ("longer", "verdict", "is_named"),
    [
        # Which figure: the mean, since steps are uneven by it. Without it they are level.
        (0, "inconclusive", True),
        # All steps are 10 % longer than the longest of the baseline: one that is longer still
        # changes nothing.
        (13, "regression", False),
        # Two of them are no single one.
        (None, "inconclusive", False),
    ],
)
def test_one_step_that_alone_keeps_it_undecided_is_named(
    runs, tmp_path, longer, verdict, is_named, worded
):
    after = steps(100 + (longer or 0))
    for number in (5,) if longer is not None else (3, 5, 8):
        after[number] = (after[number][0] + 497 * MS + (number == 5) * MS, *after[number][1:])
    found = diff(runs["slow"], plain_run(tmp_path, [after] * 2, start=2 * 10**18))
    assert found.verdict == verdict
    assert (found.outlier is not None) == is_named
    if is_named:
        sentences = [
            one.text for one in words.difference_blocks(found) if isinstance(one, Sentence)
        ]
        (sentence,) = [text for text in sentences if "630.0 ms" in text]
        assert re.findall(r"[\d.]+ ms", sentence) == ["630.0 ms", "131.0 ms"]
        worded(sentence)


def several(_, runs):
    return Side("base", (runs["slow"], runs["again"])), runs["fast"]


def uneven(folder, _):
    """Return steps of 132 and 1400 ms in turn, and even ones of 146: times are judged on means."""
    in_turn = [
        ((102 if number % 2 else 1370) * MS, 20 * MS, 4 * MS, 6 * MS) for number in range(14)
    ]
    after = plain_run(folder / "after", [steps(116, 14)] * 2, start=2 * 10**18)
    return plain_run(folder / "before", [in_turn] * 2), after


def without_steps(folder, _):
    return tuple(
        nsyspipe.load(write_run(folder / name, [steps(compute, 3)] * 2), step="none", jobs=1)
        for name, compute in (("one", 100), ("two", 70))
    )


def many_changes(_, runs):
    names = [f"NCCL_{number:02d}" for number in range(30)]
    old, new = (
        Changed(runs["slow"], nccl=NcclFacts("2.21", dict.fromkeys(names, value), nvls=None))
        for value in "01"
    )
    return Side("a", (old,)), Side("b", (new,))


def not_split(folder, runs):
    bare = plain_rank(0, steps(90), world_size=1).write(
        folder / "bare.sqlite", without=("CUPTI_ACTIVITY_KIND_MEMCPY",)
    )
    return bare, plain_run(folder / "whole", [steps(70)])


CASES = {
    "same": lambda _, runs: (runs["slow"], runs["slow"]),
    "faster": lambda _, runs: (runs["slow"], runs["fast"]),
    "undecided": lambda _, runs: (runs["short"], runs["fast"]),
    "wide": lambda folder, runs: (runs["slow"], plain_run(folder / "wide", [steps(70, 2)] * 3)),
    "other-kernel": lambda folder, runs: (
        runs["slow"],
        plain_run(folder / "other", [steps(100, 11)] * 2, kernel="k" * 200),
    ),
    "host-only": lambda folder, runs: (runs["slow"], host_run(folder)),
    "nothing": lambda folder, runs: (run := host_run(folder), Side("other", (run,))),
    "several": several,
    "uneven": uneven,
    "without-steps": without_steps,
    "many-changes": many_changes,
    "not-split": not_split,
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_built_difference_says_in_all_formats_what_it_did(case, runs, tmp_path, pinned, shown):
    sides = CASES[case](tmp_path, runs)
    made = RunDifference(*sides) if case == "many-changes" else diff(*sides, force=True)
    found = replace(made, fail_on="regression", settings=GateSettings(fail_on="regression"))
    document = {"json": words.difference_formats(found)["json"].text()} if case == "faster" else {}
    texts = {
        "text": text_of(found),
        "markdown": markdown_of(found),
        "page": shown(difference_page(found)),
    }
    pinned(f"difference/{case}", **texts, **document)


@pytest.mark.parametrize(
    ("compute", "hidden", "part", "times"),
    [
        (("regression", 22, 25), (1, 14), 3, ["+3.000", "1.000", "14.00"]),
        (("regression", 22, 25), (1, 1), 3, []),
        (("no change", 22, 22), (1, 14), 0, []),
        (("no change", 22, 25), (1, 1), -1, ["-1.000"]),
        (("no change", 22, 25), (1, 1), -0.01, []),
    ],
    ids=[
        "beside more communication",
        "beside as much",
        "no change",
        "another sign",
        "next to nothing",
    ],
)
def test_what_runs_beside_compute_and_signs_that_differ_are_said(
    compute, hidden, part, times, worded
):
    verdict, *sides = compute
    values = {"compute": sides, "exposed_memory": (1, 1), "idle": (1, 1)}
    rows = [
        {
            "metric": name,
            "verdict": verdict,
            "min_effect": MS / 2,
            "delta": (new - old) * MS,
            "baseline": old * MS,
            "candidate": new * MS,
        }
        for name, (old, new) in values.items()
    ]
    metrics, parts = map(pa.Table.from_pylist, (rows, [{"part": "compute", "delta_ns": part * MS}]))
    candidate = SimpleNamespace(runs=[])
    found = SimpleNamespace(
        metrics=metrics,
        step_time_parts=parts,
        mean_step_time=MeanStepTime(50 * MS, None, None),
        statistic="median",
        hidden_comm_ns=tuple(ms * MS for ms in hidden),
        candidate=candidate,
    )
    texts = [
        text
        for text in (words._overlap_note(found), *words._contradictions(found).values())
        if text
    ]
    assert re.findall(r"([+-]?[\d.]+) ms", " ".join(texts[:1])) == times
    worded(texts)


@pytest.mark.slow
def test_a_gate_says_in_one_line_what_it_found_and_by_which_rule(faster, worded):
    passed, failed = (
        replace(faster, fail_on=fail_on).gate for fail_on in ("regression", "any-change")
    )
    worded(words.gate_text(passed), "passed")
    assert re.findall(r"-?\d+\.\d", words.gate_text(failed)) == ["131.0", "101.0", "-30.0", "-22.9"]
    worded(words.gate_text(failed), "failed")
    # Whoever set it: an option, the file that what is of it names, or nobody.
    settings = GateSettings(
        min_effect=0.02,
        path=Path("x.toml").resolve(),
        from_file=frozenset({"min_effect"}),
        fail_on="regression",
    )
    worded(words.rule_text(passed, settings), "rule")
    worded(words.notes(replace(faster, settings=settings))[-1], "file")


@pytest.fixture(scope="module")
def much(runs, tmp_path_factory):
    """Return a difference of long figures: 2013.5 % more, and of settings with long names and values."""
    folder = tmp_path_factory.mktemp("much")
    compute = 131 * 21.135 - 30
    slow = plain_run(
        folder,
        [[(int((compute + n % 3) * MS), *rest) for n, (_, *rest) in enumerate(steps(0))]] * 2,
    )
    names = {f"NCCL_A_SETTING_WITH_A_LONG_NAME_{at}": "v" * 30 for at in range(2)}
    old = Changed(runs["slow"], nccl=NcclFacts("2.21", {"NCCL_DEBUG": "x"}, nvls=None))
    new = Changed(slow, nccl=NcclFacts("2.22", names, nvls=None))
    return RunDifference(Side("a", (old,)), Side("b", (new,)), rules=Rules(is_forced=True))


@pytest.mark.parametrize(
    ("width", "left_out"),
    [
        (45, {"change, 95% CI of the change, %, verdict", "phase, status", "change"}),
        (60, {"change, 95% CI of the change, %", "phase, status", "change"}),
        (80, {"95% CI of the change"}),
        (100, set()),
        (200, set()),
    ],
)
def test_no_figure_is_cut_and_what_has_no_room_is_named(much, width, left_out):
    text = text_of(much, width)
    assert "\N{HORIZONTAL ELLIPSIS}" not in text
    lines = text.splitlines()
    assert max(map(len, lines)) <= min(width, 100)
    row = next(line for line in lines if line.startswith("step time "))
    figure = much.metrics.to_pylist()[0]
    # Both sides are the last to go, then the verdict.
    assert ("131.0 ms" in row, "regression" in row) == (True, width >= 60)
    assert (words.percent_change(figure).removesuffix("%") in row.split()) == (width >= 80)
    assert (words._metric(figure, "delta", delta_text) in row) == (width >= 80)
    told = re.split("more columns: ", " ".join(text.split()))[1:]
    assert {part.partition(".")[0] for part in told} == left_out
    # Names and values of settings are cut with dots that say so, and the sides stay.
    assert any(line.startswith("NCCL_DEBUG ") and "not set" in line for line in lines)
    assert "vvvv..vvvv" in text


def test_a_name_cannot_drive_the_terminal_nor_break_the_markdown(runs):
    found = diff(Side("a\x1b[31m|<b>\n", (runs["slow"],)), runs["fast"])
    assert "\x1b" not in text_of(found) + markdown_of(found)
    assert "<b>" not in markdown_of(found)


def test_all_formats_say_what_became_of_the_gate_and_whose_they_are(runs, faster, tmp_path):
    settings = GateSettings(fail_on="any-change", path=Path("x.toml").resolve())
    gated = replace(faster, fail_on="any-change", settings=settings)
    formats = words.difference_formats(gated)
    assert words.gate_text(gated.gate) in " ".join(text_of(gated).split())
    page = formats["markdown"].text()
    assert page.startswith("<!-- nsyspipe:diff -->")
    assert len(page.splitlines()) < 80
    assert "`--fail-on` any-change" in page
    ids = json.dumps([[runs["slow"].header.run_id], [runs["fast"].header.run_id]])
    for name, chosen in formats.items():
        path = tmp_path / name
        path.write_text(chosen.text(), encoding="utf-8")
        assert {other: formats[other].identity_of(path) for other in formats} == dict.fromkeys(
            formats
        ) | {name: ids}, name
        for content in ("", "nothing", "7", "[", "null", '{"a": 1}'):
            meta = f'<meta name="nsyspipe-diff-runs" content="{html.escape(content)}">'
            page = f'<!doctype html><html lang="en"><head><meta charset="utf-8">{meta}'
            for text in (content, page):
                path.write_text(text, encoding="utf-8")
                assert chosen.identity_of(path) != ids, text
        assert chosen.identity_of(tmp_path / "missing") is None, name


def test_throughput_is_judged_as_step_time_is(tmp_path, faster):
    # 2 % of 100 ms count; -1.96 % of step time is +2.00 % of throughput, and no more than it.
    before = [(98 * MS, 0, 0, 2 * MS)] * 6
    after = [(98 * MS, 0, 0, 40_000)] * 6
    one = plain_run(tmp_path / "one", [before] * 2)
    found = diff(one, plain_run(tmp_path / "two", [after] * 2, start=10**18 + 10**12))
    for rows in (
        {row["metric"]: row for row in each.metrics.to_pylist()} for each in (found, faster)
    ):
        time, rate = rows["step_time"], rows["throughput"]
        assert rate["verdict"] == time["verdict"], rows
        assert rate["baseline"] == pytest.approx(1e9 / time["baseline"]), rows
        assert rate["delta"] == pytest.approx(1e9 / time["candidate"] - 1e9 / time["baseline"]), (
            rows
        )
        per_ns = 1e9 / time["baseline"] / time["candidate"]
        assert rate["ci_low"] == pytest.approx(-time["ci_high"] * per_ns), rows
        assert rate["min_effect"] == pytest.approx(time["min_effect"] * per_ns), rows
    rows = {row["metric"]: row for row in found.metrics.to_pylist()}
    assert rows["step_time"]["delta_pct"] == pytest.approx(-1.96)
    assert rows["throughput"]["delta_pct"] == pytest.approx(100 * 1.96 / 98.04)
    assert rows["throughput"]["verdict"] == "no change"


@pytest.mark.parametrize(
    ("delta", "verdict", "is_shown"),
    [
        (5 * MS, "change", True),
        (-5 * MS, "improvement", True),
        # Less than a twentieth of the step time, or not for sure.
        (4.9 * MS, "change", False),
        (50 * MS, "inconclusive", False),
        (None, "inconclusive", False),
    ],
)
def test_a_time_that_changed_much_for_sure_stands_with_the_main_figures(delta, verdict, is_shown):
    rows = [
        {
            "metric": "step_time",
            "unit": "ns",
            "baseline": 100 * MS,
            "delta": 0.0,
            "verdict": "no change",
        },
        {
            "metric": "idle_input",
            "unit": "ns",
            "baseline": 1 * MS,
            "delta": 0.0,
            "verdict": "no change",
        },
        {
            "metric": "transfer",
            "unit": "ns",
            "baseline": 7 * MS,
            "delta": delta,
            "verdict": verdict,
        },
    ]
    sorted_rows, n_shown = words.metric_rows(
        SimpleNamespace(
            metrics=pa.Table.from_pylist(rows),
            has_capture_without_steps=False,
            judged=["step_time"],
        )
    )
    assert [row["metric"] for row in sorted_rows[:n_shown]] == [
        "step_time",
        *["transfer"] * is_shown,
    ]
