"""Nothing that nsyspipe writes or says of an unredacted report holds its secrets."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pyarrow.parquet as pq
import pytest

from nsyspipe.redact.redact import redact
from nsyspipe.report.redaction import redaction_text
from tests.build.planted import SHOWN, found_in, plant
from tests.build.trace import KERNEL, steady_rank
from tests.cli.tools import nsyspipe_here

SECRET = "hunter-2-Pa55phrase"


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """Return the folder of a run of two ranks full of secrets, and those that must show nowhere."""
    folder = tmp_path_factory.mktemp("planted")
    secrets = {}
    for rank in range(2):
        secrets = plant(folder / f"run_{rank}.sqlite", rank=rank)
    return folder, {place: one for place, one in secrets.items() if place not in SHOWN}


def said(done):
    """Return both streams of a run that answered."""
    assert done.returncode == 0, done.stderr
    return (done.stdout + done.stderr).encode("utf-8", "surrogateescape")


def cells(folder):
    """Return every value of a dataset as one text; what is stored is compressed."""
    tables = [pq.read_table(path, partitioning=None) for path in sorted(folder.rglob("*.parquet"))]
    assert tables
    return "\n".join(repr(table.schema.metadata) + repr(table.to_pydict()) for table in tables).encode()


@pytest.mark.parametrize(
    "command", ["analyze", "analyze --json -", "analyze --markdown -", "analyze --findings all", "doctor", "redact"]
)
def test_no_secret_is_in_what_a_command_says(planted, tmp_path, command):
    folder, secrets = planted
    name, *options = command.split()
    text = said(nsyspipe_here(name, folder, *options, *([tmp_path / "out"] if name == "redact" else [])))
    assert name != "analyze" or b"step" in text
    assert found_in(text, secrets) == []


@pytest.mark.slow
def test_no_secret_is_in_what_analyze_writes(planted, tmp_path):
    folder, secrets = planted
    files = {"json": "run.json", "markdown": "run.md", "html": "run.html", "perfetto": "run.pftrace"}
    options = [word for name, file in files.items() for word in (f"--{name}", tmp_path / file)]
    options += ["--out", tmp_path / "store", "--events"]
    assert found_in(said(nsyspipe_here("analyze", folder, *options)), secrets) == []
    for file in files.values():
        data = (tmp_path / file).read_bytes()
        assert b"step" in data
        assert found_in(data, secrets) == [], file
    assert found_in(cells(tmp_path / "store"), secrets) == []
    assert found_in(b"".join(str(one).encode() for one in tmp_path.rglob("*")), secrets) == []
    page = tmp_path / "runs.html"
    assert found_in(said(nsyspipe_here("dashboard", tmp_path / "store", "-o", page)), secrets) == []
    assert found_in(page.read_bytes(), secrets) == []


@pytest.mark.parametrize("command", ["analyze", "doctor", "redact"])
def test_an_error_about_a_text_among_numbers_does_not_quote_it(tmp_path, command):
    path = steady_rank(0).domain("NCCL", 1).write(tmp_path / "a.sqlite")
    with closing(sqlite3.connect(path)) as database:
        database.execute("UPDATE StringIds SET id = ? WHERE rowid = 1", (SECRET,))
        database.execute(f"UPDATE {KERNEL} SET start = ? WHERE rowid = 1", (SECRET,))
        database.commit()
    more = [tmp_path / "copy.sqlite"] if command == "redact" else []
    done = nsyspipe_here(command, path, *more)
    assert "Traceback" not in done.stderr
    assert found_in((done.stdout + done.stderr).encode(), {"it": SECRET}) == []


ADA = {"HOME": "/home/ada/", "USER": "ada"}


@pytest.mark.parametrize(("texts", "variables", "n"), [
    (["load /home/ada/data.pt"], ADA, 1),
    (["load /home/ada/data.pt", "job of ADA", "on node0"], ADA, 3),
    (["canada", "step 1", "node01"], ADA, 0),
    (["a b a", "root of all"], {"USER": "a", "LOGNAME": "root"}, 0),  # short names find nothing
])  # fmt: skip
def test_kept_texts_with_a_removed_name_are_counted(tmp_path, texts, variables, n):
    built = steady_rank(0).env(**variables)
    for at, text in enumerate(texts):
        built.range(at, at + 1, text, inline=at % 2 == 1)
    done = redact(str(built.write(tmp_path / "r.sqlite")), tmp_path / "out.sqlite")
    assert done.removed.n_named == n
    assert ("still hold" in redaction_text(done, tmp_path)) == bool(n)
