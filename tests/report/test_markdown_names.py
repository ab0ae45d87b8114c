"""Markdown of runs with hostile names, and the comment in it that a bot finds again."""

from __future__ import annotations

from dataclasses import replace

import pytest

import nsyspipe
from nsyspipe.report.markdown import markdown, run_id_of_markdown
from tests.build.changed_run import Changed, finding
from tests.build.trace import steady_rank
from tests.markdown_page import Page


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return nsyspipe.load(steady_rank(0).write(tmp_path_factory.mktemp("r") / "r_0.sqlite"), run_id="r1")


HOSTILE = "<img src=x onerror=alert(1)> @octocat #12 `a` |b| **c** [d](http://e.example) -->\n# f"


def test_hostile_names_stay_text(tmp_path):
    for rank in range(2):
        builder = steady_rank(rank)
        for row in builder.rows["StringIds"]:
            row["value"] = row["value"].replace("step ", f"{HOSTILE} ")
        builder.gpu(0, f"H200 {HOSTILE}").write(tmp_path / f"a{HOSTILE[:25]}_{rank}.sqlite")
    run = nsyspipe.load(tmp_path, run_id=HOSTILE, label=HOSTILE)
    rows = [finding(1) | {"title": HOSTILE, "advice": HOSTILE}]
    problems = [{"message": HOSTILE, "fix": HOSTILE, "report": HOSTILE}]
    source = markdown(Changed(run, findings=rows, problems=problems))
    page = Page(source)
    assert not page.links
    assert not page.reached
    assert page.html == source.splitlines()[:2]
    assert [len(row) for row in page.tables[2]] == [3, 3]
    assert HOSTILE.replace("\n", "\N{REPLACEMENT CHARACTER}") in page.tables[2][1][2]
    assert page.texts[1].startswith("Run: <img src=x onerror=alert(1)> @octocat #12 `a` |b| **c** [d]")
    assert page.tags <= {"", "p", "strong", "h3", "ul", "li", "code", "table", "thead", "tbody", "tr", "th", "td"}  # fmt: skip


@pytest.mark.parametrize(
    "run_id",
    ["r1", "20261120T2215-38", "a b", "-->", "--!>", "->", ">", "---", "a--", "<!--", "%2D", "é\n\t", "\udce9", ""],
)
def test_a_run_id_is_found_again_and_cannot_end_its_comment(run, tmp_path, run_id):
    text = markdown(Changed(run, header=replace(run.header, run_id=run_id)))
    marker = text.splitlines()[1]
    assert "--" not in marker.removeprefix("<!--").removesuffix("-->")
    path = tmp_path / "comment.md"
    path.write_text(text, encoding="utf-8")
    assert run_id_of_markdown(path) == run_id


def test_a_page_that_is_not_ours_has_no_run_id(tmp_path):
    path = tmp_path / "notes.md"
    assert run_id_of_markdown(path) is None
    assert run_id_of_markdown(tmp_path) is None
    for text in (
        "",
        "# notes",
        "<!-- nsyspipe:analyze -->",
        "# notes\n<!-- nsyspipe:analyze -->\n<!-- nsyspipe:run_id=a -->",
    ):
        path.write_text(text)
        assert run_id_of_markdown(path) is None
    path.write_bytes(b"\xff\xfe\x00")
    assert run_id_of_markdown(path) is None


def test_a_page_that_went_through_a_web_form_keeps_its_run_id(run, tmp_path):
    path = tmp_path / "comment.md"
    path.write_bytes(markdown(run).replace("\n", "\r\n").encode())
    assert run_id_of_markdown(path) == "r1"
