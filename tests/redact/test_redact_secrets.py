"""Secrets planted everywhere a report can hold one: none is among the copy's bytes."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from nsyspipe.errors import NsyspipeError
from nsyspipe.redact.redact import redact
from tests.build.planted import found_in, plant, planted_rank
from tests.build.tools import edit
from tests.build.trace import KERNEL, NVTX, STRINGS, steady_rank
from tests.conftest import examples

SECRET = "hunter-2-Pa55phrase"


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    path = tmp_path_factory.mktemp("planted") / "planted.sqlite"
    return path, plant(path)


@pytest.fixture
def planted(original, tmp_path):
    """Return a report full of secrets, and the secrets by place."""
    path, secrets = original
    return Path(shutil.copy(path, tmp_path)), secrets


def redacted(path, **options):
    copy = path.with_name(f"copy-of-{path.name}")
    redact(str(path), copy, force=True, **options)
    return copy


def rows(path, statement):
    with closing(sqlite3.connect(path)) as database:
        return database.execute(statement).fetchall()


def test_the_copy_has_none_of_the_planted_secrets_and_no_place_for_them(planted):
    """Among all bytes of the file; no free page, no log, and nothing but plain tables."""
    path, secrets = planted
    assert len(secrets) >= 60
    assert found_in(path.read_bytes(), secrets) == list(secrets)
    copy = redacted(path)
    assert found_in(copy.read_bytes(), secrets) == []
    assert rows(copy, "PRAGMA freelist_count") == [(0,)]
    assert rows(copy, "PRAGMA user_version") == [(0,)]
    assert rows(copy, "SELECT DISTINCT type FROM sqlite_master") == [("table",)]
    assert rows(copy, "PRAGMA integrity_check") == [("ok",)]
    header = copy.read_bytes()[:100]
    assert header[18:20] == b"\x01\x01"  # no log
    page_size = int.from_bytes(header[16:18], "big")
    assert copy.stat().st_size == page_size * rows(copy, "PRAGMA page_count")[0][0]
    assert sorted(one.name for one in path.parent.iterdir()) == [copy.name, path.name]
    # What names kernels, ranges, phases and calls stays.
    names = {"gemm", "gemm(float*)", "forward", "backward", "step 0", "step 3", "ncclAllReduce"}
    names |= {"cudaLaunchKernel_v7000", "cudaMemcpyAsync_v3020"}
    assert names < {value for (value,) in rows(copy, f"SELECT value FROM {STRINGS}")}


@pytest.mark.parametrize("encoding", [pytest.param("UTF-16le", marks=pytest.mark.slow), "UTF-16be"])
def test_reports_of_other_encodings_are_copied_and_lose_their_secrets(tmp_path, planted, encoding):
    path, secrets = planted
    other = tmp_path / "other.sqlite"
    with closing(sqlite3.connect(other)) as database:
        database.execute(f"PRAGMA encoding = '{encoding}'")
        with closing(sqlite3.connect(path)) as source:
            for line in source.iterdump():
                if line.startswith(("CREATE TABLE", "INSERT")):
                    database.execute(line)
        database.commit()
    assert found_in(other.read_bytes(), {"one": secrets["environment"]}) == ["one"]
    copy = redacted(other)
    assert found_in(copy.read_bytes(), secrets) == []
    assert rows(copy, "PRAGMA encoding") == [(encoding,)]
    (names,) = rows(copy, f"SELECT count(*) FROM {STRINGS} WHERE value LIKE 'ncclDevKernel_AllReduce%'")
    assert names == (2,)


def text_cells():
    """Return every text cell of a planted report that is no name of a kernel or range: table, row, column."""
    builder = planted_rank({place: place for place in _places()})
    cells = []
    for table, found in builder.rows.items():
        for number, row in enumerate(found):
            for column in builder.schema[table]:
                if (table, column) == (NVTX, "text") and row.get("eventType") in (59, 60):
                    continue
                if table == STRINGS and column == "value":
                    continue  # names, but for those that `plant` adds
                cells.append((table, number, column))
    return cells


def _places():
    class Seen(dict):
        def __missing__(self, place):
            self[place] = place * 3
            return self[place]

    seen = Seen()
    planted_rank(seen)
    return seen


CELLS = text_cells()


@pytest.mark.slow
@examples(40)
@given(cells=st.lists(st.sampled_from(CELLS), min_size=1, max_size=6), as_blob=st.booleans())
def test_a_secret_in_any_cell_is_not_in_the_copy(tmp_path, cells, as_blob):
    """Any cell of any column, numbers too: a copy is made without it, or no copy is made."""
    path = tmp_path / "any.sqlite"
    builder = planted_rank(_places())
    value = SECRET.encode() if as_blob else SECRET
    for table, number, column in cells:
        builder.rows[table][number][column] = value
    builder.write(path)
    try:
        copy = redacted(path)
    except NsyspipeError:
        assert [one.name for one in tmp_path.iterdir() if one.name.startswith(".nsyspipe")] == []
        return
    assert found_in(copy.read_bytes(), {"it": SECRET}) == []
    copy.unlink()


def test_a_text_in_a_column_of_numbers_becomes_unknown(tmp_path):
    path = steady_rank(0).write(tmp_path / "a.sqlite")
    contexts = f"UPDATE {KERNEL} SET contextId = CASE rowid WHEN 2 THEN '{SECRET}' ELSE 7 END"
    copy = redacted(edit(path, contexts))
    assert rows(copy, f"SELECT contextId FROM {KERNEL} WHERE rowid IN (2, 3)") == [(None,), (7,)]
