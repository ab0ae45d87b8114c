"""What notebooks show: each answer as HTML that holds for itself, hostile names as text; and the notebook of the docs."""

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
from nsyspipe.errors import OptionError, OutputError, in_python
from nsyspipe.report import export, overview
from nsyspipe.report.costs import costs_csv
from nsyspipe.report.export import document
from nsyspipe.report.formats import dumps
from nsyspipe.report.html.run_page import run_page
from nsyspipe.report.markdown import markdown
from tests.conftest import SAMPLES

NOTEBOOK = Path(__file__).parents[2] / "docs/notebook.ipynb"
HOSTILE = "</style><script>alert(1)</script>\n\n<img src=x onerror=alert(2)>"


def texts(page):
    text = re.sub(r"<[^>]+>", " ", re.sub(r"<style>.*?</style>", "", page, flags=re.DOTALL))
    return (
        html.unescape(text).replace("\N{NO-BREAK SPACE}", " ").replace("\N{RIGHTWARDS ARROW}", "->")
    )


def words_of(page):
    """Return what a card shows in one line."""
    return " ".join(texts(page).split())


def lines_of(page):
    """Return what a card shows, a line for each text."""
    return [" ".join(text.split()) for text in texts(page).split("  ") if text.strip()]


def test_a_verdict_begins_with_the_headline_of_the_page(steady_run, without_gpu, worded):
    for run in (steady_run, without_gpu):
        (headline,) = re.findall(r"<h1.*?</h1>", run_page(run), re.DOTALL)
        assert run.verdict.startswith(words_of(headline)), run
    board, answer = nsyspipe.compare({"a": steady_run}), nsyspipe.whatif(steady_run, bucket_mb=25)
    worded(board.verdict, "scoreboard")
    worded(answer.verdict, "answer")


def test_a_run_shows_its_verdict_bars_that_are_its_steps_and_its_ranks(
    steady_run, without_gpu, worded
):
    shown = steady_run._repr_html_()
    bars = re.findall(r'<td class="bar">.*?</td>', shown)
    widths = [sum(map(float, re.findall(r"width:([\d.]+)%", bar))) for bar in bars]
    rows = steady_run.rank_summary().to_pylist()
    longest = max(row["step_time_ns"] for row in rows)  # equal steps: the mean is the median
    assert widths == pytest.approx([100 * row["step_time_ns"] / longest for row in rows], abs=0.05)
    assert steady_run.verdict in words_of(shown)
    worded(lines_of(shown))
    assert shown.count('<th scope="row">rank ') == len(rows)
    shown = without_gpu._repr_html_()
    assert ('<td class="bar">' in shown, without_gpu.verdict in words_of(shown)) == (False, True)


def test_what_is_shown_names_parameters_and_no_options_of_commands(steady):
    shown = texts(nsyspipe.whatif(nsyspipe.load(steady, jobs=1, step="none"))._repr_html_())
    assert "step=REGEX" in shown
    assert "--step" not in shown


def test_a_difference_says_whether_its_gate_lets_it_pass(steady_run, worded):
    gated = nsyspipe.diff(
        steady_run, nsyspipe.load(SAMPLES / "ddp-4gpu-after_0.sqlite", jobs=1), fail_on="regression"
    )
    gate = gated.gate
    assert (gate.outcome, gate.exit_code, gate.metrics, bool(gate)) == (
        "undecided",
        4,
        ("step_time",),
        False,
    )
    assert (repr(gate), gate.verdict in texts(gate._repr_html_())) == (f"<{gate.verdict}>", True)
    worded(gate.verdict, "verdict")
    worded(words_of(gated._repr_html_()), "card")
    assert nsyspipe.diff(steady_run, steady_run).gate is None


@pytest.mark.slow
def test_a_notebook_says_what_commands_say_of_an_answer_and_of_findings(worded):
    run = nsyspipe.load(SAMPLES.glob("ddp-4gpu-before_[01].sqlite"), jobs=1, skip_first=7)
    answer = nsyspipe.whatif(run)
    refused = [one for one in answer.scenarios if one.refused]
    shown = texts(answer._repr_html_())
    assert refused
    assert all(in_python(one.refused) in shown for one in refused)
    worded(lines_of(answer._repr_html_()), "answer")
    warnings = [one["message"] for one in answer.problems if one["severity"] == "warning"]
    assert warnings
    assert all(message in shown for message in warnings[:3])
    one = nsyspipe.whatif(run, bucket_mb=25)
    assert all(text in texts(one._repr_html_()) for text in one.scenarios[0].assumptions)
    shown = words_of(run._repr_html_())
    recommended = overview.recommendations_of(run).shown
    assert [one.finding.id for one in recommended[:4] if one.finding.action not in shown] == []
    other = nsyspipe.load(SAMPLES / "ddp-4gpu-after_0.sqlite", jobs=1)
    worded(lines_of(nsyspipe.diff(run, run)._repr_html_()), "the same capture")
    worded(lines_of(nsyspipe.diff(run, other)._repr_html_()), "another capture")


def test_every_answer_is_small_and_whole_and_takes_names_for_text(steady):
    run = nsyspipe.load(steady, jobs=1, label=HOSTILE)
    other = nsyspipe.load(steady, jobs=1, label=HOSTILE, skip_first=2)
    for answer in [
        run,
        nsyspipe.diff(run, other),
        nsyspipe.compare({HOSTILE: run, "b": other}),
        nsyspipe.whatif(run),
    ]:
        shown = answer._repr_html_()
        assert len(shown) < 20_000, answer
        assert not re.search(r"<(script|img|link|iframe)|url\(|\n\s*\n", shown), answer
        style = re.search(r"<style>(.*?)</style>", shown, re.DOTALL)[1]
        of_all = re.sub(
            r"/\*.*?\*/|(?s:^\.nsyspipe:not\(#_\) \{$.*?^\}$)", "", style, flags=re.MULTILINE
        )  # rules inside are the card's
        assert (
            re.findall(
                r"^(?!\.nsyspipe:is\(|\.nsyspipe \{|@keyframes nsyspipe-)\S.*", of_all, re.MULTILINE
            )
            == []
        ), answer
        assert shown.count("<style>") == shown.count("</style>") == 1, answer


@pytest.mark.slow
def test_the_notebook_of_the_docs_runs_and_says_what_it_said(request):
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    book = nbformat.read(NOTEBOOK, as_version=4)
    outputs = [copy.deepcopy(cell.get("outputs")) for cell in book.cells]
    nbclient.NotebookClient(
        book, timeout=120, resources={"metadata": {"path": NOTEBOOK.parent}}
    ).execute()
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
    cells = (
        "".join(cell["source"])
        for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    )
    (code,) = re.findall(rf"```python\n(import {service}\n.*?)```", "\n".join(cells), re.DOTALL)
    monkeypatch.setitem(sys.modules, service, recorder := Recorder(service))
    exec(code, {"before": steady_run})
    logged = next(arguments[0] for name, arguments, _ in recorder.calls if name == log)
    known = {
        name: value
        for name, value in steady_run.summary().to_pylist()[0].items()
        if value is not None
    }
    assert logged == {f"nsys/{name}": value for name, value in known.items()}
    assert any(steady_run.header.label in options.values() for _, _, options in recorder.calls)


@pytest.mark.slow
def test_the_suffix_says_what_is_written_and_steps_are_for_traces_only(steady_run, tmp_path):
    for name in ("run.json", "run.md", "run.csv", "run.html", "run.pftrace", "run.PERFETTO-TRACE"):
        assert export.write(steady_run, tmp_path / name) == tmp_path / name, name
    assert (tmp_path / "run.json").read_text() == dumps(document(steady_run))
    assert (tmp_path / "run.md").read_text() == markdown(steady_run)
    assert (tmp_path / "run.csv").read_text() == costs_csv(steady_run)
    assert (tmp_path / "run.html").read_text().startswith("<!doctype html>")
    assert (tmp_path / "run.pftrace").read_bytes() == (tmp_path / "run.PERFETTO-TRACE").read_bytes()
    export.write(steady_run, tmp_path / "some.pftrace", steps=(1, 2))
    assert (tmp_path / "some.pftrace").stat().st_size < (tmp_path / "run.pftrace").stat().st_size


@pytest.mark.parametrize(
    ("name", "steps"), [("run", None), ("run.parquet", None), ("run.json", (1, 2))]
)
def test_what_cannot_be_written_is_refused(steady_run, tmp_path, name, steps, worded):
    with pytest.raises(OptionError) as caught:
        export.write(steady_run, tmp_path / name, steps=steps)
    assert not (tmp_path / name).exists()
    worded(str(caught.value))


@pytest.mark.slow
def test_a_what_if_is_written_as_the_command_writes_it(steady_run, tmp_path, worded):
    answer = nsyspipe.whatif(steady_run)
    for name in ("w.json", "w.md", "w.html"):
        assert {export.write(answer, tmp_path / name) for _ in range(2)} == {tmp_path / name}, (
            name
        )  # its own file
    assert (
        json.loads((tmp_path / "w.json").read_text())["run"]["run_id"] == steady_run.header.run_id
    )
    other = nsyspipe.whatif(nsyspipe.load(SAMPLES / "ddp-4gpu-after_0.sqlite", jobs=1))
    with pytest.raises(OutputError) as caught:
        export.write(other, tmp_path / "w.md")
    worded(str(caught.value))
    with pytest.raises(OptionError) as caught:
        export.write(answer, tmp_path / "w.csv")
    assert caught.value.fix == str(tmp_path / "w.html")


def test_a_file_of_another_run_is_replaced_by_force_only(steady_run, tmp_path, worded):
    (tmp_path / "run.md").write_text("mine")
    with pytest.raises(OutputError) as caught:
        export.write(steady_run, tmp_path / "run.md")
    worded(str(caught.value))
    assert (tmp_path / "run.md").read_text() == "mine"
    export.write(steady_run, tmp_path / "run.md", force=True)
    assert (tmp_path / "run.md").read_text() == markdown(steady_run)


def test_a_saved_run_reads_like_the_run(steady_run, tmp_path, worded):
    export.parquet(steady_run, tmp_path / "runs", events=True)
    back = nsyspipe.load(tmp_path / "runs")
    worded(repr(back))
    assert repr(steady_run).startswith(repr(back)[:-1])
    assert back.inputs == (tmp_path / "runs",)
    for ours, theirs in zip(steady_run.operations((1, 2)), back.operations((1, 2)), strict=True):
        assert ours[0] == theirs[0], ours
        assert all(one.equals(other) for one, other in zip(ours[1:], theirs[1:], strict=True)), ours
