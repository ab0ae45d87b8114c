"""Reports to redact, and the command that does it."""

from __future__ import annotations

import sqlite3
from contextlib import closing

from typer.testing import CliRunner

from nsyspipe.cli.app import app
from tests.build.tools import edit
from tests.build.trace import steady_rank
from tests.cli.tools import assert_refused, nsyspipe_here


def private_reports(folder):
    """Write two reports that hold secrets."""
    folder.mkdir()
    for rank in range(2):
        builder = steady_rank(rank)
        builder.rows["TARGET_INFO_SYSTEM_ENV"][0]["value"] = f"private-host-{rank}"
        builder.env(AWS_SECRET_ACCESS_KEY="hunter2")
        path = builder.write(folder / f"ddp_{rank}.sqlite")
        edit(
            path,
            "CREATE TABLE PROCESSES (globalPid INTEGER, name TEXT)",
            "INSERT INTO PROCESSES VALUES (1, '/home/ada/train')",
        )
    return folder


def run(*arguments):
    """Run the program in this process, where that is enough."""
    return CliRunner().invoke(app, ["redact", *map(str, arguments)], catch_exceptions=True)


def refused(*arguments):
    """Run the program, which must refuse, and return what it says."""
    done = nsyspipe_here("redact", *arguments)
    assert_refused(done)
    return done.stderr


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def hosts(path):
    with closing(sqlite3.connect(path)) as database:
        return database.execute("SELECT name, value FROM TARGET_INFO_SYSTEM_ENV").fetchall()
