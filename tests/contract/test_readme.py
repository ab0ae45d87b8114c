"""README.md says the truth: its commands run, its output is real, its first screen holds two command lines."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nsyspipe.cli.app import app

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, flags=re.DOTALL)
COMMANDS = [text.strip() for language, text in BLOCKS if language == "bash"]
MAIN_JOB, TESTS = COMMANDS[:2]


def test_the_first_screen_holds_exactly_two_command_lines():
    first_screen = "\n".join(README.splitlines()[:24])
    blocks = re.findall(r"```bash\n(.*?)```", first_screen, flags=re.DOTALL)
    assert [block.strip() for block in blocks] == [MAIN_JOB, TESTS]
    assert all("\n" not in command for command in (MAIN_JOB, TESTS))
    assert "nsyspipe analyze" in MAIN_JOB
    assert TESTS.endswith("pytest")


@pytest.fixture
def printed(monkeypatch):
    """Return a function that runs the program where a user would, in the clone: what it prints."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "100")

    def run(arguments):
        result = CliRunner().invoke(app, arguments, prog_name="nsyspipe")
        assert (result.exit_code, result.exception) == (0, None)
        return result.stdout

    return run


@pytest.mark.slow
@pytest.mark.parametrize("example", [text for language, text in BLOCKS if language == "console"])
def test_console_examples_are_real_output(printed, example):
    command, expected = example.split("\n", maxsplit=1)
    program, *arguments = shlex.split(command.removeprefix("$ "))
    assert program == "nsyspipe"
    assert printed(arguments) == expected
    assert len(expected.splitlines()) <= 26


def test_the_main_jobs_command_runs_in_this_environment(printed):
    program, *arguments = shlex.split(MAIN_JOB.rsplit("&&", maxsplit=1)[1])
    assert (program, arguments[0]) == (".venv/bin/nsyspipe", "analyze")
    assert printed([*arguments, "-j", "1"]).startswith("Communication is 12 % of step time, 12 % exposed")
