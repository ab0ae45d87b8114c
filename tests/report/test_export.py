"""From Python what the command line writes."""

from __future__ import annotations

import pytest

import nsyspipe
from nsyspipe.errors import OptionError, OutputError
from nsyspipe.report import export
from nsyspipe.report.costs import costs_csv
from nsyspipe.report.export import document_text
from nsyspipe.report.markdown import markdown


@pytest.fixture
def run(steady_run):
    return steady_run


def test_the_suffix_says_what_is_written_and_steps_are_for_traces_only(run, tmp_path):
    for name in ("run.json", "run.md", "run.csv", "run.html", "run.pftrace", "run.PERFETTO-TRACE"):
        export.write(run, tmp_path / name)
    assert (tmp_path / "run.json").read_text() == document_text(run)
    assert (tmp_path / "run.md").read_text() == markdown(run)
    assert (tmp_path / "run.csv").read_text() == costs_csv(run)
    assert (tmp_path / "run.html").read_text().startswith("<!doctype html>")
    assert (tmp_path / "run.pftrace").read_bytes() == (tmp_path / "run.PERFETTO-TRACE").read_bytes()
    export.write(run, tmp_path / "some.pftrace", steps=(1, 2))
    assert (tmp_path / "some.pftrace").stat().st_size < (tmp_path / "run.pftrace").stat().st_size


@pytest.mark.parametrize(("name", "steps", "why"), [
    *((name, None, "has the suffix") for name in ("run", "run.parquet")), ("run.json", (1, 2), "belongs to a trace"),
])  # fmt: skip
def test_what_cannot_be_written_is_refused(run, tmp_path, name, steps, why):
    with pytest.raises(OptionError, match=why):
        export.write(run, tmp_path / name, steps=steps)
    assert not (tmp_path / name).exists()


def test_a_file_of_another_run_is_replaced_by_force_only(run, tmp_path):
    (tmp_path / "run.md").write_text("mine")
    with pytest.raises(OutputError, match="is not of this run"):
        export.write(run, tmp_path / "run.md")
    assert (tmp_path / "run.md").read_text() == "mine"
    export.write(run, tmp_path / "run.md", force=True)
    assert (tmp_path / "run.md").read_text() == markdown(run)


def test_a_saved_run_reads_like_the_run(run, tmp_path):
    export.parquet(run, tmp_path / "runs", events=True)
    back = nsyspipe.load(tmp_path / "runs")
    assert repr(back) == repr(run) == "<Run 'steady': 2 ranks, 4 steps, 2 in the figures>"
    assert back.inputs == (tmp_path / "runs",)
    for ours, theirs in zip(run.operations((1, 2)), back.operations((1, 2)), strict=True):
        assert ours[0] == theirs[0]
        assert all(one.equals(other) for one, other in zip(ours[1:], theirs[1:], strict=True))
