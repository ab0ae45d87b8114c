"""`nsyspipe diff --html`: the page is written also when a gate fails, and replaces no other runs' page."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from nsyspipe.cli.app import app
from nsyspipe.errors import OptionError, OutputError
from tests.build.plain_steps import write_run

MS = 10**6


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Return a function that runs the command beside a slow and a fast run."""
    monkeypatch.chdir(tmp_path)
    for at, (name, compute) in enumerate([("slow", 100), ("fast", 70)]):
        steps = [((compute + number % 3) * MS, 20 * MS, 4 * MS, 6 * MS) for number in range(12)]
        write_run(tmp_path / name, [steps], start=10**18 + at * 10**12)

    def invoke(*arguments):
        return CliRunner().invoke(app, ["diff", "-q", "-j", "1", *arguments])

    return invoke


def test_the_page_is_written_also_when_the_gate_fails(run, tmp_path):
    done = run("fast", "slow", "--html", "page.html", "--fail-on", "regression")
    assert done.exit_code == 3
    assert "Gate failed" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_a_page_of_the_same_runs_is_replaced_and_one_of_others_is_not(run, tmp_path):
    path = tmp_path / "page.html"
    assert run("slow", "fast", "--html", "page.html").exit_code == 0
    first = path.read_bytes()
    assert run("slow", "fast", "--html", "page.html").exit_code == 0
    assert path.read_bytes() == first
    refused = run("fast", "slow", "--html", "page.html")
    # The command line's main turns it into exit code 2.
    assert isinstance(refused.exception, OutputError)
    assert path.read_bytes() == first
    assert run("fast", "slow", "--html", "page.html", "--force").exit_code == 0
    assert path.read_bytes() != first


def test_a_page_cannot_be_printed(run):
    refused = run("slow", "fast", "--html", "-")
    assert isinstance(refused.exception, OptionError)
    assert str(refused.exception) == "--html -: cannot be printed"
