"""What notebooks show: each answer as HTML that holds for itself, hostile names as text; and the notebook of the docs."""

from __future__ import annotations

import contextlib
import copy
import html
import json
import re
import sys
import types
from pathlib import Path

import pytest

import nsyspipe
from nsyspipe.report.html.run_page import run_page

NOTEBOOK = Path(__file__).parents[2] / "docs/notebook.ipynb"
HOSTILE = "</style><script>alert(1)</script>\n\n<img src=x onerror=alert(2)>"


def texts(page):
    """Return what a reader sees, without tags and styles."""
    return html.unescape(re.sub(r"<[^>]+>", " ", re.sub(r"<style>.*?</style>", "", page, flags=re.DOTALL)))


def test_a_verdict_is_the_headline_of_the_page(steady_run, without_gpu):
    for run in (steady_run, without_gpu):
        headline = texts(re.search(r"<h1.*?</h1>", run_page(run))[0]).strip().replace("\N{NO-BREAK SPACE}", " ")
        assert run.verdict == headline


def test_a_run_shows_its_verdict_bars_that_are_its_steps_and_its_ranks(steady_run):
    shown = steady_run._repr_html_()
    widths = [
        sum(map(float, re.findall(r"width:([\d.]+)%", bar))) for bar in re.findall(r'<td class="bar">.*?</td>', shown)
    ]
    rows = steady_run.rank_summary().to_pylist()
    longest = max(row["step_time_ns"] for row in rows)  # equal steps: the mean is the median
    assert widths == pytest.approx([100 * row["step_time_ns"] / longest for row in rows], abs=0.05)
    assert steady_run.verdict in texts(shown).replace("\N{NO-BREAK SPACE}", " ")
    assert shown.count('<th scope="row">rank ') == len(rows) == shown.count("<tbody>") * 2


def test_what_is_shown_names_parameters_and_no_options_of_commands(steady):
    shown = texts(nsyspipe.whatif(nsyspipe.load(steady, jobs=1, step="none"))._repr_html_())
    assert "name the steps with step=REGEX" in shown
    assert "--step" not in shown


def test_what_was_not_recorded_has_no_bar(without_gpu):
    shown = without_gpu._repr_html_()
    assert '<td class="bar">' not in shown
    assert without_gpu.verdict in texts(shown)


def test_every_answer_is_small_and_whole_and_takes_names_for_text(steady):
    run = nsyspipe.load(steady, jobs=1, label=HOSTILE)
    other = nsyspipe.load(steady, jobs=1, label=HOSTILE, skip_first=2)
    answers = [run, nsyspipe.diff(run, other), nsyspipe.compare({HOSTILE: run, "b": other}), nsyspipe.whatif(run)]
    for answer in answers:
        shown = answer._repr_html_()
        assert len(shown) < 20_000
        assert not re.search(r"<(script|img|link|iframe)|url\(|\n\s*\n", shown)
        assert all(
            rule.strip().startswith(".nsyspipe ")
            for rule in re.findall(r"^(.*?)\{", re.search(r"<style>(.*?)</style>", shown, re.DOTALL)[1], re.MULTILINE)
        )
        assert shown.count("<style>") == shown.count("</style>") == 1


@pytest.mark.slow
def test_the_notebook_of_the_docs_runs_and_says_what_it_said(request):
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    book = nbformat.read(NOTEBOOK, as_version=4)
    outputs = [copy.deepcopy(cell.get("outputs")) for cell in book.cells]
    nbclient.NotebookClient(book, timeout=120, resources={"metadata": {"path": NOTEBOOK.parent}}).execute()
    for cell in book.cells:
        cell.metadata.pop("execution", None)  # when it ran
    if request.config.getoption("--update-golden"):
        nbformat.write(book, NOTEBOOK)
    else:
        assert [cell.get("outputs") for cell in book.cells] == outputs
    text = NOTEBOOK.read_text(encoding="utf-8")
    assert len(text) < 60_000
    assert not re.search(r"/(home|root|tmp|work|Users)/", text)


class Recorder(types.ModuleType):
    """A module whose calls are kept: the real one is a service."""

    def __init__(self, name):
        super().__init__(name)
        self.calls = []

    def __getattr__(self, name):
        def call(*arguments, **options):
            self.calls.append((name, arguments, options))
            return contextlib.nullcontext(self)

        return call


@pytest.mark.parametrize(("service", "log"), [("wandb", "log"), ("mlflow", "log_metrics")])
def test_figures_are_logged_beside_an_experiment(monkeypatch, steady_run, service, log):
    cells = ("".join(cell["source"]) for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"])
    (code,) = re.findall(rf"```python\n(import {service}\n.*?)```", "\n".join(cells), re.DOTALL)
    monkeypatch.setitem(sys.modules, service, recorder := Recorder(service))
    exec(code, {"before": steady_run})
    logged = next(arguments[0] for name, arguments, _ in recorder.calls if name == log)
    known = {name: value for name, value in steady_run.summary().to_pylist()[0].items() if value is not None}
    assert logged == {f"nsys/{name}": value for name, value in known.items()}
    assert any(steady_run.header.label in options.values() for _, _, options in recorder.calls)
