"""`nsyspipe schema`: every table and column of the answers, with type, unit and meaning."""

from __future__ import annotations

import re

import pytest
from typer.testing import CliRunner

import nsyspipe
from nsyspipe.cli.app import app
from nsyspipe.errors import OptionError
from tests.cli.tools import assert_refused, nsyspipe_run

TABLES = [
    "ranks", "steps", "phases", "collectives", "stragglers", "kernels", "links", "summary", "rank_summary", "phase_summary", "idle_calls",
    "findings", "problems",
]  # fmt: skip


def schema(*arguments, columns=100):
    return CliRunner().invoke(app, ["schema", *arguments], env={"COLUMNS": str(columns)})


def test_without_a_table_all_of_them_are_described():
    done = nsyspipe_run("schema")
    assert (done.returncode, done.stderr) == (0, "")
    assert [line for line in done.stdout.splitlines() if line in TABLES] == TABLES


@pytest.mark.parametrize("table", TABLES)
def test_one_table_is_described_alone(table):
    lines = schema(table).stdout.splitlines()
    assert lines[0] == table
    assert not {line for line in lines[1:] if line in TABLES}


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("columns", [80, 100])
def test_every_column_that_an_answer_has_is_described_with_its_type(steady, table, columns):
    found = getattr(nsyspipe.load(steady), table)
    answer = found if hasattr(found, "schema") else found()
    lines = schema(table, columns=columns).stdout.splitlines()
    described = [
        match.groups()
        for line in lines
        if (match := re.match(r"(\w+) +(int64|double|string|bool)\??", line))
    ]
    assert described == [(field.name, str(field.type)) for field in answer.schema]


@pytest.mark.parametrize("columns", [60, 80, 100, 200])
def test_the_description_fits_the_terminal_and_never_exceeds_100_columns(columns):
    lines = schema(columns=columns).stdout.splitlines()
    assert max(map(len, lines)) <= min(columns, 100)


def test_the_description_says_unit_and_formula():
    text = schema("steps").stdout
    row = next(line for line in text.splitlines() if line.startswith("idle_ns"))
    assert " ns " in row
    assert "wall - |C u M u P|" in text
    assert "compute + exposed_comm + exposed_memory + idle = wall" in " ".join(text.split())


def test_what_may_be_null_is_marked():
    lines = {line.split()[0]: line for line in schema("steps").stdout.splitlines() if line.strip()}
    assert " int64? " in lines["overlap_backward_ns"]
    assert " int64 " in lines["wall_ns"]


@pytest.mark.parametrize("table", ["nope", "STEPS", ""])
def test_an_unknown_table_is_refused_with_those_there_are(table):
    done = schema(table)
    assert isinstance(done.exception, OptionError)
    assert done.exception.found == ", ".join(TABLES)


def test_the_program_refuses_an_unknown_table_in_one_line():
    assert_refused(nsyspipe_run("schema", "nope"))
