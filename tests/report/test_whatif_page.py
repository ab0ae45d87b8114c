"""The page of a what-if: its bars are the step times of the answer, and names are only text."""

import re

import pytest

import nsyspipe
from nsyspipe.report import whatif as report
from nsyspipe.report.export import write
from nsyspipe.report.html.page import MOST_LINKS, run_id_of_page
from nsyspipe.report.html.whatif_page import divided_step, stacked_bars, whatif_page
from tests.build.ddp_run import Ddp
from tests.build.hostile import HOSTILE

LABEL = HOSTILE[2]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whatif")
    Ddp().write(folder)
    return nsyspipe.load(sorted(folder.glob("*.sqlite")), jobs=1, label=LABEL)


@pytest.fixture(scope="module")
def answer(run):
    return nsyspipe.whatif(run)


def rows_of(answer):
    answered = [scenario for scenario in answer.scenarios if scenario.refused is None]
    return report.menu_rows(answer, answered, is_verbose=True)


def test_a_bar_is_as_long_as_the_step_time(answer):
    rows = rows_of(answer)
    bars = stacked_bars(answer, rows)
    longest_ns = max(max(row.step_time_ns or 0, row.high_ns or 0) for row in rows)
    lengths = [sum(segment.share for segment in bar.segments) for bar in bars.bars]
    assert lengths == pytest.approx([(row.step_time_ns or 0) / longest_ns for row in rows])
    assert [(bar.low, bar.high) for bar in bars.bars] == [
        (row.low_ns and row.low_ns / longest_ns, row.high_ns and row.high_ns / longest_ns)
        for row in rows
    ]
    assert bars.mark == pytest.approx(answer.step_time_ns / longest_ns)


def test_a_group_has_a_name_and_no_bar(answer):
    names = {bar.label for bar in stacked_bars(answer, rows_of(answer)).bars if not bar.segments}
    assert names <= {*report.GROUP_NAMES.values()}
    assert names


def test_a_step_is_what_it_takes_without_communication_and_what_that_adds(answer):
    captured, *rows = rows_of(answer)
    limit_ns = answer.limit_step_time_ns
    assert divided_step(answer, captured) == [
        ("untold", limit_ns),
        ("exposed", answer.step_time_ns - limit_ns),
    ]
    (limit,) = (row for row in rows if row.step_time_ns == limit_ns and row.low_ns is None)
    assert divided_step(answer, limit) == [("untold", limit_ns)]


@pytest.mark.parametrize("knob", ["no_wait", "no_grad_copy", "no_sync"])
def test_a_change_of_the_work_itself_is_not_divided(answer, knob):
    row = report.MenuRow("change", answer.step_time_ns, knobs=frozenset({knob}))
    assert divided_step(answer, row) == [("accent", answer.step_time_ns)]


def test_a_page_has_few_links_and_its_identity(run, answer, tmp_path):
    path = write(answer, tmp_path / "page.html")
    page = path.read_text(encoding="utf-8")
    navigation = re.search(r'<nav class="sections".*?</nav>', page, re.DOTALL)[0]
    links = re.findall(r'href="#([^"]+)"', navigation)
    assert 0 < len(links) <= MOST_LINKS
    assert [link for link in links if f'<section id="{link}"' not in page] == []
    assert report.whatif_formats(answer, run)["html"].identity_of(path) == answer.run_id
    assert run_id_of_page(path) is None


def test_a_name_on_the_page_is_only_text(run, answer):
    page = whatif_page(answer, run)
    assert LABEL in answer.label
    assert page.count("<script") == 2
    assert "<img" not in page


def test_a_page_without_an_estimate_has_no_range(run, answer):
    refused = nsyspipe.whatif(run, no_sync=True)
    assert refused.scenarios[0].refused is not None
    pages = (whatif_page(answer, run), whatif_page(refused, run))
    assert ['class="stack-range"' in page for page in pages] == [True, False]
