"""The page of a difference as text: whose it is, what it says, and that no name in it is more than text."""

from __future__ import annotations

import html
import json
import re

import pytest

import nsyspipe
from nsyspipe.api import diff
from nsyspipe.comparison.difference import Side
from nsyspipe.comparison.gate import gate
from nsyspipe.report.difference import identity_of, identity_of_difference_page
from nsyspipe.report.difference_words import verdict_text
from nsyspipe.report.document import document
from nsyspipe.report.html.difference_page import difference_page
from nsyspipe.report.html.page import run_id_of_page
from nsyspipe.report.html.run_page import run_page
from nsyspipe.report.markdown import markdown
from nsyspipe.store.write import save
from tests.build.hostile import HOSTILE, hostile_log, write_hostile_run
from tests.build.plain_steps import plain_run
from tests.build.trace import TraceBuilder

MS = 10**6


def steps(compute, n=12):
    return [((compute + number % 3) * MS, 20 * MS, 4 * MS, 6 * MS) for number in range(n)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return two ranks with steps of 130, 131 and 132 ms, the same 30 ms shorter, and three ranks of those."""
    folder = tmp_path_factory.mktemp("runs")
    return {
        "slow": plain_run(folder / "slow", [steps(100)] * 2),
        "fast": plain_run(folder / "fast", [steps(70)] * 2, start=2 * 10**18),
        "again": plain_run(folder / "again", [steps(71)] * 2, start=3 * 10**18),
        "wide": plain_run(folder / "wide", [steps(70)] * 3, start=4 * 10**18),
    }


@pytest.fixture
def change(runs):
    return diff(runs["slow"], runs["fast"])


def words(text):
    """Return what a page shows: without its head, scripts and tags."""
    text = re.sub(r"<(script|style)\b.*?</\1>", "", text, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", text)).split())


def data(text, name):
    found = re.search(rf'<script type="application/json" id="data-{name}">(.*?)</script>', text)
    return json.loads(found[1])


def written(folder, text):
    path = folder / "page.html"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_same_runs_give_the_same_bytes(change, runs):
    assert difference_page(change) == difference_page(diff(runs["slow"], runs["fast"]))


def test_the_headline_is_the_sentence_of_the_terminal(change):
    text = difference_page(change)
    assert verdict_text(change).startswith("Improvement: step time 131.0 ms -> 101.0 ms (-22.9 %)")
    assert verdict_text(change) in words(text)
    assert '<h1 data-verdict="improvement">' in text


def test_it_says_how_sure_that_is_and_what_is_left_out(change):
    shown = words(difference_page(change))
    for part in ("95 % interval", "median of 12 steps", "spread between captures is not in the interval", "no change: all of the interval within 2.0 %"):  # fmt: skip
        assert part in shown


def test_several_captures_of_a_side_are_all_in_it(runs):
    found = diff(Side("base", (runs["slow"],)), Side("new", (runs["fast"], runs["again"])))
    text = words(difference_page(found))
    assert "spread between captures is not in the interval" not in text
    for heading in ("baseline base", "candidate new, capture 1 of 2", "candidate new, capture 2 of 2"):  # fmt: skip
        assert heading in text
    for name in ("slow", "fast", "again"):
        assert runs[name].header.run_id in text


def test_what_speaks_against_comparing_comes_first(runs):
    shown = words(difference_page(diff(runs["slow"], runs["wide"])))
    assert "not comparable world size: baseline 2, candidate 3" in shown
    assert shown.index("not comparable") < shown.index("Where the change in step time comes from")


def test_the_gate_says_why_it_failed(runs):
    worse = diff(runs["fast"], runs["slow"])
    shown = words(difference_page(worse, gate(worse, "regression")))
    assert "Gate failed: --fail-on regression: step_time regression, 101.0 ms -> 131.0 ms" in shown
    better = diff(runs["slow"], runs["fast"])
    assert "Gate passed: --fail-on regression" in words(difference_page(better, gate(better, "regression")))  # fmt: skip
    assert "Gate" not in words(difference_page(better))


def test_a_page_knows_its_runs(change, runs, tmp_path):
    path = written(tmp_path, difference_page(change))
    assert identity_of_difference_page(path) == identity_of(change)
    assert identity_of(change) == [[runs["slow"].header.run_id], [runs["fast"].header.run_id]]
    assert run_id_of_page(path) is None


@pytest.mark.parametrize("content", ["", "nothing", "7", "[", "null", '{"a": 1}'])
def test_other_files_are_no_such_page(content, tmp_path, runs):
    assert identity_of_difference_page(tmp_path / "missing.html") is None
    assert identity_of_difference_page(written(tmp_path, content)) is None
    page = '<!doctype html><html lang="en"><head><meta charset="utf-8">'
    page += f'<meta name="nsyspipe-diff-runs" content="{html.escape(content)}">'
    assert identity_of_difference_page(written(tmp_path, page)) is None
    assert identity_of_difference_page(written(tmp_path, run_page(runs["slow"]))) is None


def test_reports_and_the_runs_saved_from_them_give_the_same_page(change, runs, tmp_path):
    for name in ("slow", "fast"):
        save(runs[name], tmp_path / name)
    saved = diff(tmp_path / "slow", tmp_path / "fast")
    assert difference_page(saved) == difference_page(change)


def test_names_of_traces_are_only_text(tmp_path, runs):
    label = "</title><script>window.attacked=9</script>"
    hostile = nsyspipe.load(
        write_hostile_run(tmp_path),
        nccl_log=hostile_log(tmp_path / "nccl.log"),
        run_id="\"><script>alert('id')</script>\n",
        jobs=1,
    )
    found = diff(Side(label, (runs["slow"],)), Side(label, (hostile,)), force=True)
    text = difference_page(found)
    assert text.count("<script") == 2 + text.count('<script type="application/json"')
    for name in (*HOSTILE[:4], label):
        if "<" in name:
            assert name not in text.replace(text[text.rindex("<script>") :], "")
    assert label in words(text)
    assert identity_of_difference_page(written(tmp_path, text)) == identity_of(found)


def test_a_run_that_knows_nothing_of_the_device_still_has_a_page(tmp_path, runs):
    builder = TraceBuilder(pid=1).env(RANK=0, WORLD_SIZE=1).session(10**18)
    for step in range(4):
        builder.range(1000 * step, 1000 * step + 900, f"step {step}")
    empty = nsyspipe.load(builder.write(tmp_path / "host.sqlite"), jobs=1)
    text = difference_page(diff(runs["slow"], empty))
    shown = words(text)
    assert "Inconclusive: no step time" in shown
    assert "A side has no step with a window on every rank" in shown
    assert "There is no timeline of the candidate" in shown
    assert "There is no timeline of the baseline" not in shown
    assert "Not known: a side has no step to count kernels by" in shown
    assert len(data(text, "timelines")["ranks"]) == 1
    nothing = difference_page(diff(empty, Side("other", (empty,))))
    assert 'id="data-timelines"' not in nothing
    assert 'id="data-waterfall"' not in nothing


def test_exact_figures_are_written_in_letters_that_a_page_shows(change):
    text = words(difference_page(change))
    assert "-30 000 000 ns" in text
    assert "\ufffd" not in text


def test_equal_runs_differ_by_nothing(runs):
    text = difference_page(diff(runs["slow"], runs["slow"]))
    shown = words(text)
    assert "No change: step time 131.0 ms -> 131.0 ms (0.0 %)" in shown
    assert "None appeared, vanished, or changed" in shown
    assert {bar["delta"] for bar in data(text, "waterfall")["bars"]} == {None, 0}


def test_where_means_are_judged_the_page_speaks_of_means_and_each_run_says_that_it_is_uneven(
    tmp_path,
):
    """Steps of 132 and 1400 ms in turn against even ones of 146: no sentence is of medians where the verdict is not."""
    uneven = [((102 if number % 2 else 1370) * MS, 20 * MS, 4 * MS, 6 * MS) for number in range(14)]
    before = plain_run(tmp_path / "before", [uneven] * 2)
    after = plain_run(tmp_path / "after", [steps(116, 14)] * 2, start=2 * 10**18)
    shown = words(difference_page(diff(before, after)))
    for part in ("mean of 14 steps", "step time, mean", "means of times, since steps are uneven", "132.0 ms and 1400 ms in turn"):  # fmt: skip
        assert part in shown
    assert "The verdict above is about medians" not in shown
    assert "132.0 ms and 1400 ms in turn" in words(run_page(before))
    assert "132.0 ms and 1400 ms in turn" in markdown(before)
    assert document(before)["evenness"]["period"] == 2
    assert document(after)["evenness"]["is_uneven"] is False
