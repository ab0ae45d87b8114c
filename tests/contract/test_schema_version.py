"""Within a schema version columns are only added: a dashboard's query that worked keeps working.

The snapshot of a version says what was promised; `pytest --update-golden` takes new columns and tables into it,
but drops or changes none: that takes a new version, which has a snapshot of its own.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nsyspipe.model.schema import DATASET, DESCRIBED
from nsyspipe.model.table import FLOAT, INT, SCHEMA_VERSION, TEXT, Column, TableSchema

FOLDER = Path(__file__).parent
WHAT_TO_DO = (
    "Bring the column back, or, if readers of the dataset must change, raise SCHEMA_VERSION in nsyspipe/model/table.py "
    "and run pytest --update-golden tests/contract/test_schema_version.py"
)


def promised(tables):
    """Return type and unit by table and column, as a snapshot holds them."""
    return {table.name: {one.name: f"{one.type} in {one.unit}" for one in table.columns} for table in tables}


def broken(before, now):
    """Say which columns of a snapshot are gone or changed; nothing of what is new."""
    found = []
    for table, columns in before.items():
        if table not in now:
            found.append(f"table {table} is gone")
            continue
        for name, was in columns.items():
            is_now = now[table].get(name)
            if is_now is None:
                found.append(f"{table}.{name} is gone")
            elif is_now != was:
                found.append(f"{table}.{name} was {was}, is {is_now}")
    return found


def check(folder, version, now, *, is_update=False):
    """Fail with what broke the promises of this version; an update adds what is new."""
    path = folder / f"schema_v{version}.json"
    before = json.loads(path.read_text(encoding="utf-8"))["tables"] if path.exists() else None
    if before is None and not is_update:
        pytest.fail(f"version {version} has no snapshot: pytest --update-golden tests/contract/test_schema_version.py")
    if lost := broken(before or {}, now):
        pytest.fail(f"{'; '.join(lost)}, in the same schema version {version}. {WHAT_TO_DO}")
    if is_update:
        path.write_text(json.dumps({"schema_version": version, "tables": now}, indent=1) + "\n", encoding="utf-8")


def real_tables():
    """Return what the program promises: on disk a table has `run_id` too; some are answers of the API only."""
    return promised((DESCRIBED | DATASET).values())


def test_no_column_is_lost_or_changed_without_a_new_schema_version(request):
    is_update = request.config.getoption("--update-golden")
    check(FOLDER, SCHEMA_VERSION, real_tables(), is_update=is_update)


# --- the guard itself ------------------------------------------------------------------------------

WALL = Column("wall_ns", INT, "ns", "window")
SHARE = Column("comm_share", FLOAT, "ratio", "comm / wall")


def steps(*columns):
    return promised([TableSchema("steps", "One row per step.", (), columns)])


@pytest.fixture
def folder(tmp_path):
    """Return a folder with the snapshot of version 1: two columns of one table."""
    check(tmp_path, 1, steps(WALL, SHARE), is_update=True)
    return tmp_path


LOST = [
    ({}, "table steps is gone"),
    (steps(WALL), "steps.comm_share is gone"),
    (steps(Column("wall_ns", FLOAT, "ns", "retyped"), SHARE), "steps.wall_ns was int64 in ns, is double in ns"),
    (steps(Column("wall_ns", INT, "us", "unit"), SHARE), "steps.wall_ns was int64 in ns, is int64 in us"),
]


@pytest.mark.parametrize(("now", "said"), LOST)
def test_what_is_lost_in_the_same_version_fails_and_no_update_hides_it(folder, now, said):
    kept = (folder / "schema_v1.json").read_text()
    for is_update in (False, True):
        with pytest.raises(pytest.fail.Exception, match=rf"{said}.*raise SCHEMA_VERSION"):
            check(folder, 1, now, is_update=is_update)
    assert (folder / "schema_v1.json").read_text() == kept


def test_what_is_added_passes_and_an_update_makes_it_a_promise(folder):
    more = steps(WALL, SHARE, Column("note", TEXT, "text", "new")) | {"notes": {}}
    check(folder, 1, more)
    assert not broken(json.loads((folder / "schema_v1.json").read_text())["tables"], more)
    check(folder, 1, more, is_update=True)
    with pytest.raises(pytest.fail.Exception, match=r"steps\.note is gone; table notes is gone"):
        check(folder, 1, steps(WALL, SHARE))
    # An order of columns is no promise.
    assert not broken(steps(WALL, SHARE), steps(SHARE, WALL))


def test_a_new_version_may_lose_columns_once_it_has_a_snapshot(folder):
    with pytest.raises(pytest.fail.Exception, match="version 2 has no snapshot"):
        check(folder, 2, steps(WALL))
    check(folder, 2, steps(WALL), is_update=True)
    check(folder, 2, steps(WALL))
    found = json.loads((folder / "schema_v2.json").read_text())
    assert found == {"schema_version": 2, "tables": {"steps": {"wall_ns": "int64 in ns"}}}


def test_a_change_of_the_real_tables_is_seen(tmp_path, monkeypatch):
    check(tmp_path, SCHEMA_VERSION, real_tables(), is_update=True)
    first, *others = DESCRIBED["summary"].columns
    monkeypatch.setitem(DESCRIBED, "summary", TableSchema("summary", "One row.", (), tuple(others)))
    with pytest.raises(pytest.fail.Exception, match=rf"summary\.{first.name} is gone"):
        check(tmp_path, SCHEMA_VERSION, real_tables())
