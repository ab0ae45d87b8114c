"""What steps and backward are taken to be where no range says it: told by every output that rests on it, and by no other."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from nsyspipe.api import compare, diff
from nsyspipe.replay.answer import whatif
from nsyspipe.report.as_text import as_text
from nsyspipe.report.difference import difference_blocks, difference_document
from nsyspipe.report.export import document
from nsyspipe.report.html.difference_page import difference_page
from nsyspipe.report.html.run_page import run_page
from nsyspipe.report.markdown import as_markdown, markdown
from nsyspipe.report.perfetto import perfetto
from nsyspipe.report.run import summary_text
from nsyspipe.report.scoreboard import scoreboard_blocks, scoreboard_document, scoreboard_page
from nsyspipe.report.whatif import whatif_blocks, whatif_document
from tests.build.tools import run_of
from tests.run.test_step_sources import trained

STEPS, BACKWARD = "steps found by repetition", "backward by autograd's thread"
CODES = {"steps-by-repetition", "backward-by-thread"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return the same run twice: with ranges, and without."""
    folders = [tmp_path_factory.mktemp(name) for name in ("marked", "bare")]
    return [
        run_of(folder, *(trained(rank, 8, is_marked=is_marked) for rank in range(2)), label=folder.name, jobs=1)
        for folder, is_marked in zip(folders, (True, False), strict=True)
    ]


def text_of(blocks):
    return as_text(blocks, Console(width=100))


def texts_of(run):
    """Return what each output says of a run, by its name."""
    board, answer, change = compare([run]), whatif(run), diff(run, run)
    return {
        "text": summary_text(run, Console(width=100)), "Markdown": markdown(run), "page": run_page(run).replace("&#39;", "'"),
        "diff": text_of(difference_blocks(change)), "diff's Markdown": as_markdown(difference_blocks(change), [], ""),
        "diff's page": difference_page(change).replace("&#39;", "'"),
        "compare": text_of(scoreboard_blocks(board)), "compare's page": scoreboard_page(board).replace("&#39;", "'"),
        "whatif": text_of(whatif_blocks(answer, run)), "whatif's Markdown": as_markdown(whatif_blocks(answer, run), [], ""),
    }  # fmt: skip


def test_every_text_says_it_of_a_run_without_ranges_and_of_no_other(runs):
    marked, bare = (
        {name: " ".join(text.replace("\N{ZERO WIDTH SPACE}", "").split()) for name, text in texts_of(run).items()}
        for run in runs
    )
    assert [name for name, text in bare.items() if not (STEPS in text and BACKWARD in text)] == []
    assert [name for name, text in marked.items() if STEPS in text or BACKWARD in text] == []
    assert "none marked" not in bare["page"]


def test_every_document_says_it_of_a_run_without_ranges_and_of_no_other(runs):
    for run, codes, source in zip(runs, (set(), CODES), ("ranges", "repetition"), strict=True):
        documents = [
            document(run), scoreboard_document(compare([run])), whatif_document(whatif(run)),
            difference_document(diff(run, run)),
        ]  # fmt: skip
        assert [CODES & {row["code"] for row in one["problems"]} for one in documents] == [codes] * 4
        assert json.dumps(documents[0]["run"]["steps_from"]) == f'"{source}"'


def test_steps_of_a_trace_are_steps(runs):
    for run in runs:
        file = io.BytesIO()
        perfetto(run, file)
        assert (b"step 1" in file.getvalue(), b"whole capture" in file.getvalue()) == (True, False)


def test_a_difference_says_that_sides_take_steps_and_backward_from_elsewhere(runs):
    checks = {row["check"]: (row["baseline"], row["candidate"]) for row in diff(*runs).comparability.to_pylist()}
    assert checks["steps-from"] == ("ranges", "repetition")
    assert checks["step-family"] == ("'step #'", "repetition")
    assert checks["backward-from"] == ("ranges", "thread")
    assert "backward-from" not in {row["check"] for row in diff(runs[1], runs[1]).comparability.to_pylist()}
