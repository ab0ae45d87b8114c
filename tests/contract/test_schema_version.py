"""Within a schema version columns are only added: a dashboard's query that worked keeps working.

The snapshot of a version says what was promised; `pytest --update-golden` takes new columns and
tables into it, but drops or changes none: that takes a new version, which has a snapshot of its
own.
"""

import json
from pathlib import Path

import pytest

from nsyspipe.model.schema import DATASET, DESCRIBED
from nsyspipe.model.table import SCHEMA_VERSION, TableSchema

WHAT_TO_DO = (
    "Bring the column back, or, if readers of the dataset must change, raise SCHEMA_VERSION in "
    "nsyspipe/model/table.py "
    "and run pytest --update-golden tests/contract/test_schema_version.py"
)


def real_tables():
    """Return type and unit by table and column: on disk a table has `run_id` too; some are answers of the API only."""
    tables = (DESCRIBED | DATASET).values()
    return {
        table.name: {one.name: f"{one.type} in {one.unit}" for one in table.columns}
        for table in tables
    }


def check(folder, now, version=1, *, is_update=False):
    """Fail with what a snapshot has and the tables of now have not; an update adds what is new."""
    path = folder / f"schema_v{version}.json"
    if not path.exists() and not is_update:
        pytest.fail(
            f"version {version} has no snapshot: pytest --update-golden "
            "tests/contract/test_schema_version.py"
        )
    before = json.loads(path.read_text(encoding="utf-8"))["tables"] if path.exists() else {}
    all_of = before, now
    was, found = (
        {f"{name}.{one}: {of[name][one]}" for name in of for one in of[name]} for of in all_of
    )
    if lost := sorted(was - found):
        pytest.fail(
            f"gone or changed: {'; '.join(lost)}, in the same schema version {version}. "
            f"{WHAT_TO_DO}"
        )
    if is_update:
        path.write_text(
            json.dumps({"schema_version": version, "tables": now}, indent=1) + "\n",
            encoding="utf-8",
        )


def test_no_column_is_lost_or_changed_without_a_new_schema_version(request):
    is_update = request.config.getoption("--update-golden")
    check(Path(__file__).parent, real_tables(), SCHEMA_VERSION, is_update=is_update)


WALL, SHARE = {"wall_ns": "int64 in ns"}, {"comm_share": "double in ratio"}
BEFORE = {"steps": WALL | SHARE}


@pytest.mark.parametrize(
    ("now", "lost"),
    [
        ({}, "steps.comm_share: double in ratio; steps.wall_ns: int64 in ns,"),
        ({"steps": WALL}, "steps.comm_share: double in ratio,"),
        ({"steps": SHARE | {"wall_ns": "double in ns"}}, "steps.wall_ns: int64 in ns,"),
        ({"steps": SHARE | {"wall_ns": "int64 in us"}}, "steps.wall_ns: int64 in ns,"),
    ],
)
def test_what_is_lost_in_the_same_version_fails_and_no_update_hides_it(tmp_path, now, lost):
    check(tmp_path, BEFORE, is_update=True)
    kept = (tmp_path / "schema_v1.json").read_text()
    for is_update in (False, True):
        with pytest.raises(pytest.fail.Exception, match=rf"changed: {lost}.*raise SCHEMA_VERSION"):
            check(tmp_path, now, is_update=is_update)
    assert (tmp_path / "schema_v1.json").read_text() == kept
    # A new version may lose them once it has a snapshot.
    with pytest.raises(pytest.fail.Exception, match="version 2 has no snapshot"):
        check(tmp_path, now, 2)
    check(tmp_path, now, 2, is_update=True)
    assert json.loads((tmp_path / "schema_v2.json").read_text()) == {
        "schema_version": 2,
        "tables": now,
    }


def test_what_is_added_passes_and_an_update_makes_it_a_promise(tmp_path):
    check(tmp_path, BEFORE, is_update=True)
    more = {"steps": SHARE | WALL | {"note": "string in text"}}  # an order of columns is no promise
    check(tmp_path, more)
    check(tmp_path, more, is_update=True)
    with pytest.raises(pytest.fail.Exception, match=r"steps\.note"):
        check(tmp_path, BEFORE)


def test_a_change_of_the_real_tables_is_seen(tmp_path, monkeypatch):
    check(tmp_path, real_tables(), is_update=True)
    first, *others = DESCRIBED["summary"].columns
    monkeypatch.setitem(DESCRIBED, "summary", TableSchema("summary", "One row.", (), tuple(others)))
    with pytest.raises(pytest.fail.Exception, match=rf"summary\.{first.name}"):
        check(tmp_path, real_tables())
