"""nsys does not promise an order of rows: the same rows in another order give the same answers."""

import contextlib
import random
import shutil
import sqlite3

import pytest
from typer.testing import CliRunner

from nsyspipe.cli.app import app
from tests.build.nccl_layouts import BYTES, COMM
from tests.build.synthetic import generate
from tests.build.trace import steady_rank

TABLES = "SELECT name, sql FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
COMMANDS = {
    "analyze": ("--json", "-"),
    "analyze -v": ("-v",),
    "analyze --top": ("--top", "30"),
    "analyze --csv": ("--csv", "-"),
    "whatif": ("--json", "-"),
    "doctor": ("--json", "-"),
}


def shuffled(source, target, seed):
    """Copy a report with the rows of every table in another order."""
    order = random.Random(seed)
    with (
        contextlib.closing(sqlite3.connect(source)) as report,
        contextlib.closing(sqlite3.connect(target)) as copy,
    ):
        for name, statement in report.execute(TABLES).fetchall():
            copy.execute(statement)
            rows = report.execute(f'SELECT * FROM "{name}"').fetchall()
            order.shuffle(rows)
            if rows:
                marks = ", ".join("?" * len(rows[0]))
                copy.executemany(f'INSERT INTO "{name}" VALUES ({marks})', rows)
        copy.commit()


def printed(*words):
    result = CliRunner().invoke(app, [*words], prog_name="nsyspipe")
    return result.exit_code, result.stdout


FOLDERS = [
    "built",
    "with tables of payloads",
    pytest.param("synthetic", marks=pytest.mark.slow),
]


@pytest.fixture(scope="module", params=FOLDERS)
def folders(request, tmp_path_factory):
    """Return directories with the same reports in several orders of their rows."""
    first = tmp_path_factory.mktemp("first")
    for rank in range(2):
        path = first / f"r_{rank}.sqlite"
        if request.param == "synthetic":
            generate(path, 3000, 4, rank, 2)
            continue
        version = "3.28.1 2026.4.1" if "tables" in request.param else "3.25.0 2026.2.1 mfu"
        built = steady_rank(rank, version=version).domain("NCCL", 1)
        if "tables" in request.param:
            for at in range(79, 4000, 1000):
                fields = {COMM: 11, BYTES: 4096}
                built.table_payload(at, "ncclAllReduce", fields, end=at + 3, thread="autograd")
        built.write(path)
    others = []
    for seed in range(2):
        folder = tmp_path_factory.mktemp(f"order{seed}")
        for path in first.iterdir():
            shuffled(path, folder / path.name, seed)
        others.append(folder)
    return first, others


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_rows_in_another_order_give_the_same_bytes(folders, command, tmp_path, monkeypatch):
    first, others = folders
    word = command.split()[0]
    answers = []
    for folder in (first, *others):
        # The same names, so that only the order differs.
        place = tmp_path / "reports"
        shutil.copytree(folder, place)
        monkeypatch.chdir(place)
        answers.append(printed(word, "r_0.sqlite", "r_1.sqlite", *COMMANDS[command]))
        monkeypatch.chdir(tmp_path)
        shutil.rmtree(place)
    assert answers[0][1]
    assert answers[1:] == answers[:1] * len(others), command


@pytest.mark.slow
def test_a_difference_of_the_same_rows_is_the_same(folders, tmp_path, monkeypatch):
    first, others = folders
    answers = []
    for folder in (first, *others):
        place = tmp_path / "reports"
        shutil.copytree(folder, place / "a")
        shutil.copytree(first, place / "b")
        monkeypatch.chdir(place)
        answers.append(printed("diff", "a", "b", "--force", "--json", "-"))
        monkeypatch.chdir(tmp_path)
        shutil.rmtree(place)
    assert answers[0][1]
    assert answers[1:] == answers[:1] * len(others)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["perfetto.json.gz", "html"])
def test_written_files_of_the_same_rows_are_the_same(folders, suffix, tmp_path, monkeypatch):
    first, others = folders
    option = "--html" if suffix == "html" else "--perfetto"
    contents = []
    for folder in (first, *others):
        place = tmp_path / "reports"
        shutil.copytree(folder, place)
        monkeypatch.chdir(place)
        printed("analyze", "r_0.sqlite", "r_1.sqlite", option, f"out.{suffix}")
        contents.append((place / f"out.{suffix}").read_bytes())
        monkeypatch.chdir(tmp_path)
        shutil.rmtree(place)
    assert contents[1:] == contents[:1] * len(others)
