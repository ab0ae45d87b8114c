"""Columns of times that are declared TEXT: a second reading finds the rows that the first one found."""

import sqlite3

import nsyspipe
from tests.build.trace import KERNEL, RUNTIME, steady_rank


def with_text_columns(path, table, *columns):
    with sqlite3.connect(path) as database:
        names = [row[1] for row in database.execute(f"PRAGMA table_info({table})")]
        declared = ", ".join(f'"{name}" TEXT' if name in columns else f'"{name}"' for name in names)
        database.execute(f"ALTER TABLE {table} RENAME TO old")
        database.execute(f"CREATE TABLE {table} ({declared})")
        database.execute(f"INSERT INTO {table} SELECT * FROM old")
        database.execute("DROP TABLE old")
    database.close()


def test_operations_of_text_columns_are_those_first_read(tmp_path):
    plain, text = tmp_path / "plain_0.sqlite", tmp_path / "text_0.sqlite"
    for path in (plain, text):
        steady_rank(0).write(path)
    for table in (KERNEL, RUNTIME):
        with_text_columns(text, table, "start", "end", "correlationId")
    runs = [nsyspipe.load(path, jobs=1) for path in (plain, text)]
    steps = [run.steps()["step"][1].as_py() for run in runs]
    tables = [next(run.operations(step))[1] for run, step in zip(runs, steps, strict=True)]
    assert tables[1].num_rows > 0
    assert tables[0].equals(tables[1])
