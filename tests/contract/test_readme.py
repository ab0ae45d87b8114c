"""README.md says the truth: its commands run, its output is real, its first screen holds two command lines."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.mark.slow
@pytest.mark.parametrize("example", [text for language, text in BLOCKS if language == "console"])
def test_console_examples_are_real_output(example):
    command, expected = example.split("\n", maxsplit=1)
    program, *arguments = shlex.split(command.removeprefix("$ "))
    assert program == "nsyspipe"
    done = subprocess.run(
        [sys.executable, "-m", "nsyspipe", *arguments],
        cwd=ROOT, env=os.environ | {"COLUMNS": "100"}, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert done.stdout == expected
    assert len(expected.splitlines()) <= 26


def test_the_main_jobs_command_runs_in_this_environment():
    command = shlex.split(MAIN_JOB.rsplit("&&", maxsplit=1)[1])
    assert command[:2] == [".venv/bin/nsyspipe", "analyze"]
    done = subprocess.run(
        [sys.executable, "-m", "nsyspipe", *command[1:]],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.startswith("Communication is 12 % of step time, 12 % exposed")
