"""A scoreboard: its sentences, the terminal, Markdown and page, JSON and CSV, and how a file is known to be of the same runs."""

import csv
import io
import re

import pytest
from rich.console import Console

from nsyspipe.api import compare
from nsyspipe.comparison.side import Side
from nsyspipe.report import scoreboard as module
from nsyspipe.report.as_text import MAX_WIDTH, as_text
from nsyspipe.report.html.page import LIBRARY, read_asset
from nsyspipe.report.html.scoreboard_page import scoreboard_page
from nsyspipe.store.write import save
from tests.build.hostile import HOSTILE


@pytest.fixture
def board(board_runs):
    return lambda *names, **options: compare({name: board_runs[name] for name in names}, **options)


def text(board, width=100):
    return as_text(module.scoreboard_blocks(board), Console(width=width))


def written(board, name):
    return module.scoreboard_formats(board)[name].text()


# The steps of slow and again take 131 ms, of fast 101: 131 / 101 = 1.297, 101 / 131 = 0.771. Short
# has two steps only. Who is not told apart is neither level nor slower; an undecided run may be
# faster where the best is no change; each kind of several runs has a sentence, the largest first.
SPOKEN = [
    ("slow fast again", {}),
    ("fast slow", {}),
    ("slow again", {}),
    ("slow again short", {}),
    ("slow fast short", {}),
    ("slow fast short", {"min_effect_pct": 50}),
    ("slow fast", {"min_effect_pct": 50}),
    ("wide slow wider fast again", {}),
    ("slow wide", {}),
    ("slow", {}),
    ("short fast", {}),
]


@pytest.mark.slow
def test_who_is_fastest_and_how_sure_that_is(board, pinned):
    said = []
    for names, options in SPOKEN:
        found = board(*names.split(), **options)
        sentences = module.headlines(found)
        said += ["", f"{names}{', half counts' if options else ''}:", *sentences]
        assert " ".join(text(found).split()).startswith(sentences[0]), names
        assert f"\n**{sentences[0][:8]}" in written(found, "markdown"), names
    pinned("scoreboard/headlines", sentences="\n".join(said[1:]))


CASES = {
    "kinds": "slow wide fast short",
    "forced": "slow wide",
    "one-kind": "slow fast",
    "undecided": "slow short fast",
    "several": "two fast",
    "without-steps": "none none_too",
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_built_scoreboard_says_in_all_formats_what_it_did(
    case, board_runs, without_gpu, pinned, shown
):
    sides = {name: Side(name.replace("_", " "), (run,)) for name, run in board_runs.items()}
    sides |= {name: Side(name.replace("_", " "), (without_gpu,)) for name in ("none", "none_too")}
    sides["two"] = Side("two", (board_runs["slow"], board_runs["again"]))
    found = compare([sides[name] for name in CASES[case].split()], force=case == "forced")
    texts = {
        name: one.text() for name, one in module.scoreboard_formats(found).items() if name != "html"
    }
    pinned(f"scoreboard/{case}", text=text(found), **texts, page=shown(scoreboard_page(found)))


@pytest.mark.parametrize("width", [40, 60, 80, 100, 200])
def test_no_line_is_wider_than_the_terminal_and_no_figure_is_cut(board, width):
    said = text(board("slow", "fast", "wide", "wider", "short"), width)
    assert max(map(len, said.splitlines())) <= min(width, MAX_WIDTH)
    assert "\N{HORIZONTAL ELLIPSIS}" not in said
    # 101 ms in place of 131.
    assert "-22.9%" in said
    assert "\nfast " in said


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [HOSTILE[at] for at in (2, 5, 8, 9)]
)  # a tag, a template, directions, controls
def test_names_stay_text_in_all_formats(board_runs, name):
    found = compare(
        {
            name: board_runs["slow"],
            "[red]b[/red]": board_runs["fast"],
            "=1+1|`": board_runs["again"],
        }
    )
    shown = text(found)
    assert all(char.isprintable() or char == "\n" for char in shown)
    assert "[red]b[/red]" in shown
    page = written(found, "markdown")
    assert page.startswith("<!-- nsyspipe:compare -->")
    assert "<script" not in page
    assert "\\[red\\]b" in page
    assert "=1+1&#124;\\`" in page
    found = compare({name: board_runs["slow"], "</script><img src=x>": board_runs["fast"]})
    harmless = page_of(compare({"a": board_runs["slow"], "b": board_runs["fast"]}))
    tags = re.compile(r"<(?:script|img)\b")
    assert len(tags.findall(page_of(found))) == len(tags.findall(harmless))
    assert "&lt;/script&gt;&lt;img src=x&gt;" in page_of(found)


def page_of(board):
    return scoreboard_page(board).replace(read_asset(LIBRARY), "")


@pytest.mark.slow
def test_saved_runs_give_the_same_page(board_runs, tmp_path):
    for name, run in board_runs.items():
        save(run, tmp_path / name)
    saved = compare({name: tmp_path / name for name in board_runs})
    assert scoreboard_page(saved) == scoreboard_page(compare(board_runs))


def test_nothing_is_fetched_and_every_id_is_there_once(board_runs):
    page = page_of(compare({name: board_runs[name] for name in ("slow", "fast", "short", "wide")}))
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert not re.findall(r'(?:src|href)="(?!#|data:)[^"]*"', page)


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@SUM(A1)", "=cmd|' /C calc'!A0"])
def test_a_name_is_no_formula_of_a_spreadsheet(board_runs, name):
    found = compare({name: board_runs["slow"], 'a,"b"': board_runs["fast"]})
    rows = list(csv.DictReader(io.StringIO(written(found, "csv"))))
    assert [row["label"] for row in rows] == [f"'{name}", 'a,"b"']
    assert rows[1]["peer"] == f"'{name}"
    # Control characters of a name are shown, not kept.
    text = written(compare({"a\tb\n\x1b[2J": board_runs["slow"]}), "csv")
    assert (text.count("\n"), "a\N{REPLACEMENT CHARACTER}b" in text) == (2, True)


def test_files_are_known_by_their_runs_whatever_the_order(board, board_runs, tmp_path):
    for name, chosen in module.scoreboard_formats(board("slow", "fast")).items():
        (tmp_path / name).write_text(chosen.text(), encoding="utf-8")
    turned = compare({"x": board_runs["fast"], "y": board_runs["slow"]})
    other = compare({"x": board_runs["fast"], "y": board_runs["again"]})
    for found, is_same in ((board("slow", "fast"), True), (turned, True), (other, False)):
        for name, chosen in module.scoreboard_formats(found).items():
            assert (chosen.identity_of(tmp_path / name) == module.identity_of(found)) == is_same, (
                name
            )
    both = compare([Side("both", (board_runs["slow"], board_runs["again"])), board_runs["fast"]])
    assert module.identity_of(both) != module.identity_of(board("slow", "again", "fast"))


@pytest.mark.parametrize(
    "content", ["", "{}", "[]", '{"runs": [{}]}', "run_ids\n", "\0", "a,b\n1", '{"runs": 1}']
)
def test_no_other_file_is_taken_for_one(board, tmp_path, content):
    path = tmp_path / "other"
    path.write_text(content)
    for chosen in module.scoreboard_formats(board("slow", "fast")).values():
        assert chosen.identity_of(path) is None, chosen
        assert chosen.identity_of(tmp_path / "missing") is None, chosen
