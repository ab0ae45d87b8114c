"""README.md says the truth: its commands run, its output is real, its first screen holds two command lines.

Its queries run as they stand, and say what the sample runs say.
"""

from __future__ import annotations

import json
import re
import shlex
from collections import defaultdict
from datetime import UTC
from functools import cache
from itertools import product

import duckdb
import pytest

import nsyspipe
from tests.conftest import SAMPLES

ROOT = SAMPLES.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, flags=re.DOTALL)
COMMANDS = [text.strip() for language, text in BLOCKS if language == "bash"]
MAIN_JOB, TESTS = COMMANDS[:2]
QUERIES = [text for language, text in BLOCKS if language == "sql"]
RUNS = ("ddp-4gpu-before", "ddp-4gpu-after")  # in order of capture


def test_the_first_screen_holds_exactly_two_command_lines():
    first_screen = "\n".join(README.splitlines()[:24])
    blocks = re.findall(r"```bash\n(.*?)```", first_screen, flags=re.DOTALL)
    assert [block.strip() for block in blocks] == [MAIN_JOB, TESTS]
    assert all("\n" not in command for command in (MAIN_JOB, TESTS))
    assert "nsyspipe analyze" in MAIN_JOB
    assert TESTS.endswith("pytest")


@pytest.mark.slow
@pytest.mark.parametrize("example", [text for language, text in BLOCKS if language == "console"])
def test_console_examples_are_real_output(printed, example):
    command, expected = example.split("\n", maxsplit=1)
    program, *arguments = shlex.split(command.removeprefix("$ "))
    assert program == "nsyspipe"
    assert printed(*arguments) == expected
    assert len(expected.splitlines()) <= 26


def test_the_main_jobs_command_runs_in_this_environment(printed):
    program, *arguments = shlex.split(MAIN_JOB.rsplit("&&", maxsplit=1)[1])
    assert (program, arguments[0]) == (".venv/bin/nsyspipe", "analyze")
    assert printed(*arguments, "-j", "1").startswith("Communication is 12 % of step time, 12 % exposed")


# Queries.


@pytest.fixture
def ask(monkeypatch):
    """Return a function that runs the README's n-th query where a user would: in the clone."""
    monkeypatch.chdir(ROOT)

    def run(number):
        rows = duckdb.sql(QUERIES[number]).to_arrow_table().to_pylist()
        return [tuple(row.values()) for row in rows]

    return run


@cache
def document(run):
    return json.loads((SAMPLES / f"{run}.json").read_text(encoding="utf-8"))


def summary_steps(run):
    return [row for row in document(run)["steps"] if row["in_summary"]]


def test_there_are_five_queries_and_none_is_long():
    assert len(QUERIES) == 5
    assert all(len(query.splitlines()) <= 8 for query in QUERIES)


def test_the_trend_of_communication(ask):
    rows = ask(0)
    figures = [document(run)["summary"] for run in RUNS]
    assert [row[1:] for row in rows] == [
        (run, one["step_time_ns"] / 1e6, one["comm_share"], one["exposed_comm_share"])
        for run, one in zip(RUNS, figures, strict=True)
    ]
    captured = [document(run)["run"]["captured_at_utc"] for run in RUNS]
    assert [f"{row[0].astimezone(UTC):%Y-%m-%dT%H:%M:%S.%fZ}" for row in rows] == captured


def test_exposed_communication_by_rank(ask):
    names, expected = ("exposed_comm_ns", "wait_ns", "wall_ns"), []
    for run, rank in product(sorted(RUNS), range(4)):
        rows = [row for row in summary_steps(run) if row["rank"] == rank]
        exposed, wait, wall = (sum(row[name] for row in rows) for name in names)
        expected.append((run, rank, exposed / wall, wait / wall))
    assert ask(1) == expected


def test_the_slowest_steps(ask):
    slowest = defaultdict(list)
    for run in RUNS:
        for row in summary_steps(run):
            slowest[run, row["step"]].append((row["wall_ns"], row["rank"]))
    found = sorted(((max(rows), *key) for key, rows in slowest.items()), reverse=True)[:5]
    assert ask(2) == [(run, step, wall / 1e6, rank) for (wall, rank), run, step in found]


def test_who_the_others_wait_for(ask):
    rows = [(run, row) for run in RUNS for row in document(run)["stragglers"]]
    rows.sort(key=lambda pair: (-pair[1]["lateness_ns"], pair[0], pair[1]["rank"]))
    assert ask(3) == [
        (run, row["rank"], row["n_arrived_last"], row["lateness_ns"] / 1e6, row["wait_caused_ns"] / 1e6)
        for run, row in rows
    ]


def test_the_kernels_with_most_time(ask):
    run = nsyspipe.load(SAMPLES.glob("ddp-4gpu-after_*.sqlite"), jobs=1)
    totals = defaultdict(lambda: [0, 0, 0])
    for row in run.kernels().to_pylist():
        for at, name in enumerate(("n_kernels", "total_ns", "overlapped_ns")):
            totals[row["name"]][at] += row[name]
    top = sorted(totals.items(), key=lambda pair: -pair[1][1])[:10]
    assert ask(4) == [(name, n, total / 1e6, beside / total) for name, (n, total, beside) in top]
