"""The gate of `diff`: one line, the last one, with its exit code; nothing of it among the results."""

import re

import pytest

from tests.cli.tools import nsyspipe_here

GATE = re.compile(r"^GATE (PASSED|FAILED|UNDECIDED) \(exit (\d)\): ")


@pytest.mark.parametrize(
    ("arguments", "outcome", "code"),
    [
        ("slow fast", "PASSED", 0),
        ("fast slow", "FAILED", 3),
        ("short fast", "UNDECIDED", 4),
    ],
)
def test_the_gate_is_decided_in_one_line_at_the_end(beside, arguments, outcome, code):
    done = nsyspipe_here("diff", *arguments.split(), "--fail-on", "regression", cwd=beside)
    lines = done.stderr.splitlines()
    found = GATE.match(lines[-1])
    assert (found[1], int(found[2]), done.returncode) == (outcome, code, code)
    assert sum(bool(GATE.match(line)) for line in [*lines, *done.stdout.splitlines()]) == 1
    assert "error:" not in done.stderr


@pytest.mark.parametrize(("arguments", "is_said"), [("slow fast", False), ("fast slow", True)])
def test_a_quiet_gate_only_speaks_when_it_fails(beside, arguments, is_said):
    done = nsyspipe_here("diff", *arguments.split(), "--fail-on", "regression", "-q", cwd=beside)
    assert (bool(GATE.search(done.stderr)), done.stdout) == (is_said, "")


def test_without_a_gate_nothing_is_decided(beside):
    done = nsyspipe_here("diff", "fast", "slow", cwd=beside)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
@pytest.mark.parametrize("command", ["diff slow fast", "compare slow fast again", "whatif slow"])
def test_verbose_prints_more(beside, command):
    short, full = (
        nsyspipe_here(*command.split(), *option, cwd=beside).stdout for option in ([], ["-v"])
    )
    assert len(full.splitlines()) > len(short.splitlines()) > 0


def test_runs_with_too_few_steps_are_named_once_in_each_sentence(beside):
    done = nsyspipe_here("compare", "short", "slow", cwd=beside)
    first = done.stdout.splitlines()[0]
    assert first.count("short") == 1
    assert first.count("slow") == 0
