"""`nsyspipe schema`: every table and column of the answers, with type, unit and meaning."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

import nsyspipe
from nsyspipe.cli.app import app
from nsyspipe.model.schema import DESCRIBED, RUN_TABLES
from nsyspipe.report.as_text import MAX_WIDTH
from nsyspipe.report.schema import meaning_of
from tests.build.trace import steady_rank
from tests.cli.tools import nsyspipe_here
from tests.markdown_page import Page

REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "tables.md"
ANSWERS = [
    name for name in RUN_TABLES if name != "breakdown"
]  # `breakdown` has the columns of `steps`


def schema(*arguments, columns=100):
    return CliRunner().invoke(app, ["schema", *arguments], env={"COLUMNS": str(columns)})


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return nsyspipe.load(steady_rank(0).write(tmp_path_factory.mktemp("r") / "r_0.sqlite"))


@pytest.mark.parametrize("table", ANSWERS)
def test_every_column_that_an_answer_has_is_described_with_its_type(run, table):
    found = getattr(run, table)
    answer = found if hasattr(found, "schema") else found()
    lines = schema(table).stdout.splitlines()
    described = [
        match.groups()
        for line in lines
        if (match := re.match(r"(\w+) +(int64|double|string|bool)\??", line))
    ]
    assert described == [(field.name, str(field.type)) for field in answer.schema]


@pytest.mark.slow
@pytest.mark.parametrize("columns", [60, 200])
@pytest.mark.parametrize("arguments", [(), ("-v",)], ids=["list", "all columns"])
def test_the_description_fits_the_terminal_and_is_never_too_wide_to_read(arguments, columns):
    lines = schema(*arguments, columns=columns).stdout.splitlines()
    assert max(map(len, lines)) <= min(columns, MAX_WIDTH)


def test_without_a_table_each_table_is_a_line_with_its_number_of_columns():
    _, *lines = schema(columns=80).stdout.split("\n\n")[0].splitlines()
    assert [line.split()[:2] for line in lines] == [
        [name, str(len(table.columns))] for name, table in DESCRIBED.items()
    ]
    summaries = [table.summary for table in DESCRIBED.values()]
    assert [" ".join(line.split()[2:]) for line in lines] == summaries
    assert all(summary.endswith(".") for summary in summaries)


@pytest.mark.slow
def test_verbose_prints_what_each_table_prints_alone():
    # The last line, which explains the types, stands once below all tables.
    alone = [schema(table).stdout.rstrip("\n").rpartition("\n") for table in DESCRIBED]
    (legend,) = {last_line for _, _, last_line in alone}
    tables = [table.strip() for table, _, _ in alone]
    assert schema("-v").stdout == "\n\n".join([*tables, f"{legend}\n"])


def test_the_committed_reference_is_what_the_program_prints(pinned):
    done = nsyspipe_here("schema", "--markdown")
    assert (done.returncode, done.stderr) == (0, "")
    pinned(REFERENCE, done.stdout)


def test_the_reference_lists_each_table_and_column_with_an_anchor():
    reference = schema("--markdown").stdout
    page = Page(reference)
    heading = ["column", "type", "unit", "meaning", "source"]
    for table, described in zip(page.tables, DESCRIBED.values(), strict=True):
        rows = []
        for column in described.columns:
            type_name = "string" if "dictionary" in str(column.type) else str(column.type)
            meaning = meaning_of(described, column)
            rows.append(
                [
                    column.name,
                    f"{type_name}{'?' if column.nullable else ''}",
                    column.unit,
                    meaning,
                    column.source,
                ]
            )
        assert table == [heading, *rows], table
    for described in DESCRIBED.values():
        key = ", ".join(described.key)
        assert f"{described.doc}{f' Sorted by {key}.' if key else ''}" in page.texts, described
    assert page.links == [f"#{name}" for name in DESCRIBED]
    assert [text for text in page.texts if text in DESCRIBED] == [*DESCRIBED]  # the headings
    anchors = [tag for tag in page.html if tag != "</a>"]
    assert anchors == [
        f'<a id="{name}.{column.name}">'
        for name, table in DESCRIBED.items()
        for column in table.columns
    ]
    assert len(set(anchors)) == len(anchors)
    # One table is its section.
    section = schema("steps", "--markdown").stdout
    assert section.startswith("## steps\n")
    assert f"\n\n{section}" in f"{reference}\n"
    assert len(Page(section).tables) == 1
