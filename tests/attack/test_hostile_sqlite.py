"""Reports whose schema computes, loops or lies: refused with exit 2 before any of it runs, by every reader and by redact."""

import contextlib
import itertools
import os
import re
import signal
import struct
import subprocess
import sys
import time

import pytest

from nsyspipe.errors import DamagedReportError, InputError, NotAReportError
from nsyspipe.reader.metadata import read_capture, read_counts
from nsyspipe.reader.report import open_report
from nsyspipe.redact.copy import look_at
from tests.build.tools import edit, query
from tests.build.trace import KERNEL, NVTX, RUNTIME, STRINGS, steady_rank
from tests.cli.tools import nsyspipe_here

FOREVER = "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT {columns} FROM r"
READ = [
    KERNEL,
    RUNTIME,
    NVTX,
    STRINGS,
    "CUPTI_ACTIVITY_KIND_MEMCPY",
    "META_DATA_CAPTURE",
    "META_DATA_EXPORT",
    "TARGET_INFO_GPU",
    "TARGET_INFO_SESSION_START_TIME",
    "TARGET_INFO_SYSTEM_ENV",
]
READERS = [lambda path: read_capture(str(path), None), read_counts, look_at]


@pytest.fixture
def report(tmp_path):
    def made(*edits, is_tampered=False):
        path = steady_rank(0, version="3.25.0 2026.2.1 mfu").write(
            tmp_path / "r.sqlite", lazy=False
        )
        return edit(path, *["PRAGMA writable_schema = ON"] * is_tampered, *edits)

    return made


def assert_refused(path, kind=InputError, match=None):
    """Check that every reader refuses a report; return what they say, each text once."""
    texts = {}
    for reader in READERS:
        with pytest.raises(kind, match=match) as caught:
            reader(path)
        texts["\n".join(caught.value.lines())] = None
    return [*texts]


@pytest.fixture
def endless(report):
    def made(table):
        names = [row[1] for row in query(report(), f"PRAGMA table_info({table})")]
        shown = FOREVER.format(columns=", ".join(f'n AS "{name}"' for name in names))
        return report(f"DROP TABLE {table}", f"CREATE VIEW {table} AS {shown}")

    return made


@pytest.mark.parametrize("table", READ)
def test_a_view_that_never_ends_is_refused_in_place_of_any_table(endless, table):
    assert_refused(endless(table), NotAReportError, rf"\b{table} ")


WITHOUT_ROWS = {
    "a view of a version": ["CREATE VIEW {nvtx}_V7 AS SELECT 1 AS start"],
    "a view in small letters": ["DROP TABLE {nvtx}", "CREATE VIEW nvtx_events AS SELECT 1"],
    "a view in quotes": ["DROP TABLE {nvtx}", 'CREATE VIEW "NVTX_EVENTS" AS SELECT 1'],
    "a table of texts": ["DROP TABLE {nvtx}", "CREATE VIRTUAL TABLE {nvtx} USING fts5(text)"],
    "a table of boxes": [
        "DROP TABLE {strings}",
        "CREATE VIRTUAL TABLE {strings} USING rtree(id, value, v2)",
    ],
    "a further column": ["ALTER TABLE {nvtx} ADD COLUMN extra AS (hex(zeroblob(1000000000)))"],
    "a stored column": [
        "DROP TABLE {strings}",
        "CREATE TABLE {strings} (id INTEGER, value TEXT AS (printf('%.*c', 1e9, 'x')) STORED)",
    ],
    "a default": [
        "ALTER TABLE {strings} RENAME COLUMN value TO old",
        "ALTER TABLE {strings} ADD COLUMN value TEXT DEFAULT '" + "x" * 100_000 + "'",
    ],
}


@pytest.mark.parametrize("case", WITHOUT_ROWS)
def test_what_holds_no_rows_of_its_own_is_refused(report, case, tmp_path, worded):
    path = report(*(edit.format(nvtx=NVTX, strings=STRINGS) for edit in WITHOUT_ROWS[case]))
    worded(assert_refused(path, NotAReportError))


@pytest.mark.parametrize(
    "edit",
    [
        # Views under the name of a table, an index and a trigger, with comments, and twice.
        (
            "UPDATE sqlite_master SET sql = 'CREATE VIEW NVTX_EVENTS AS SELECT 1', rootpage = 0 "
            "WHERE name = 'NVTX_EVENTS'"
        ),
        *(
            (
                f"UPDATE sqlite_master SET sql = '{made} NVTX_EVENTS USING fts5(a)', rootpage = 0 "
                "WHERE name = 'NVTX_EVENTS'"
            )
            for made in ("CREATE /**/ VIRTUAL TABLE", "create virtual table")
        ),
        *(
            (
                f"INSERT INTO sqlite_master VALUES ('{kind}', 'i', 'i', 0, 'CREATE VIEW "
                "GPU_METRICS AS SELECT 1 AS start')"
            )
            for kind in ("index", "trigger", "view")
        ),
        (
            "INSERT INTO sqlite_master VALUES ('table', 'GPU_METRICS', 'x', 2, 'CREATE TABLE other "
            "(start)')"
        ),
        (
            "INSERT INTO sqlite_master VALUES ('table', 'nvtx_events', 'x', 2, 'CREATE TABLE "
            "nvtx_events (start)')"
        ),
        "INSERT INTO sqlite_master VALUES ('table', NULL, NULL, NULL, NULL)",
        "INSERT INTO sqlite_master VALUES ('view', 'v', 'v', 3, 'CREATE VIEW v AS SELECT 1')",
    ],
)
def test_a_schema_that_sqlite_never_writes_is_refused(report, edit):
    assert_refused(report(edit, is_tampered=True))


@pytest.mark.parametrize(
    "edit",
    [
        "CREATE VIEW mine AS " + FOREVER.format(columns="n"),
        "CREATE VIEW mine AS SELECT * FROM nowhere",
        "CREATE VIRTUAL TABLE mine USING fts5(a)",
        "CREATE TRIGGER t AFTER INSERT ON StringIds BEGIN SELECT randomblob(1e9); END",
        "CREATE INDEX i ON NVTX_EVENTS(abs(start))",
        "CREATE UNIQUE INDEX i ON StringIds(id)",
        "CREATE INDEX i ON StringIds(value COLLATE NOCASE)",
        'CREATE TABLE "a ""name""" (x CHECK (x > 0), y UNIQUE)',
        "CREATE TABLE [of mine] (x PRIMARY KEY) WITHOUT ROWID",
        "ANALYZE",
        "ALTER TABLE StringIds RENAME TO StringIds_V2",
    ],
)
def test_what_stands_beside_the_tables_that_are_read_does_no_harm(report, edit):
    path = report(edit)
    assert read_capture(str(path), None).operations.kernels.num_rows == 12
    assert read_counts(path).rows[KERNEL] == 12
    look_at(path)


COLLATION = (
    "UPDATE sqlite_master SET sql = replace(sql, 'value TEXT', 'value TEXT COLLATE nosuch') WHERE "
    "name = 'StringIds'"
)


@pytest.mark.parametrize("value", ["'text'", "x'00ff'", "1.5", "9e99", "9223372036854775807", None])
def test_values_of_another_type_give_an_error_or_an_answer(report, value):
    columns = [(RUNTIME, "start"), (RUNTIME, "correlationId"), (NVTX, "domainId")]
    columns += [(KERNEL, name) for name in ("start", "globalPid", "shortName")]
    for change in (
        [f'UPDATE {table} SET "{column}" = {value}' for table, column in columns]
        if value
        else [COLLATION]
    ):
        path = report(change, is_tampered=value is None)
        for reader in READERS:
            with contextlib.suppress(InputError):
                reader(path)


def tree_that_meets_itself(path, table, depth):
    """Let a table's pages lead to each other: `depth` levels of interior pages, all of whose cells lead to the next."""
    ((root,),) = query(path, f"SELECT rootpage FROM sqlite_master WHERE name = '{table}'")
    data = bytearray(path.read_bytes())
    size = int.from_bytes(data[16:18], "big")
    n_pages = len(data) // size
    leaf = bytes(data[(root - 1) * size : root * size])
    for page, below in itertools.pairwise([root, *(n_pages + 1 + level for level in range(depth))]):
        n_cells = (size - 12) // 8
        cells = [size - 6 * (cell + 1) for cell in range(n_cells)]
        made = bytearray(size)
        struct.pack_into(">BHHHBI", made, 0, 5, 0, n_cells, cells[-1], 0, below)
        struct.pack_into(f">{n_cells}H", made, 12, *cells)
        for number, at in enumerate(cells):
            struct.pack_into(">IB", made, at, below, number % 128)
        if page > n_pages:
            data += made
        else:
            data[(page - 1) * size : page * size] = made
    data += leaf
    struct.pack_into(">I", data, 28, len(data) // size)
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("table", [KERNEL, NVTX, RUNTIME, STRINGS])
def test_pages_that_meet_again_are_refused(report, table, tmp_path, worded):
    path = tree_that_meets_itself(report(), table, depth=6)
    start = time.process_time()
    texts = assert_refused(path, DamagedReportError)
    assert time.process_time() - start < 60  # some 10^16 rows else
    worded([re.sub(r"\d+", "N", text.replace(str(path), "REPORT")) for text in texts])


def test_a_file_that_has_changed_since_it_was_checked_is_checked_again(report):
    path = report()
    with open_report(path) as opened:
        state = opened.state
    with open_report(path, state) as again:
        assert again.tables == opened.tables
    tree_that_meets_itself(path, NVTX, depth=6)
    with pytest.raises(DamagedReportError), open_report(path, state):
        pass


def test_a_schema_whose_pages_meet_again_is_refused(report):
    path = report()
    data = bytearray(path.read_bytes())
    size = int.from_bytes(data[16:18], "big")
    struct.pack_into(">BHHHBI", data, 100, 5, 0, 2, size - 12, 0, 2)
    struct.pack_into(">HH", data, 112, size - 12, size - 6)
    struct.pack_into(">IBxIB", data, size - 12, 2, 1, 2, 2)
    path.write_bytes(data)
    assert_refused(path, DamagedReportError)


def test_texts_that_share_pages_are_weighed(report):
    path = report(
        "INSERT INTO StringIds VALUES (9000, printf('%.*c', 3000, 'x'))",
        *(
            f"INSERT INTO StringIds SELECT {9001 + n}, value FROM StringIds WHERE id = 9000"
            for n in range(60)
        ),
    )
    with open_report(path) as opened:
        assert opened.select(STRINGS, {"value": "text"}).num_rows > 60
        opened._n_bytes = 1000
        opened._length_checked.clear()
        with pytest.raises(DamagedReportError, match=STRINGS):
            opened.select(STRINGS, {"value": "text"})


@pytest.mark.parametrize("command", ["analyze", "doctor", "whatif", "redact"])
def test_every_command_refuses_a_view_in_one_line(endless, tmp_path, command, worded):
    done = nsyspipe_here(
        command, endless(NVTX), *([tmp_path / "out.sqlite"] if command == "redact" else [])
    )
    assert done.returncode == 2
    worded(done.stderr)
    assert [one.name for one in tmp_path.iterdir()] == ["r.sqlite"]


@pytest.mark.slow
def test_ctrl_c_ends_the_reading_of_a_large_report(report):
    path = report(
        f"INSERT INTO {NVTX} (start, end, eventType, text, globalTid, domainId) "
        "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r LIMIT 400000) "
        "SELECT n, n + 1, 59, 'x' || n, 281474976710656, 0 FROM r"
    )
    program = (
        "import sys; from nsyspipe.reader.metadata import read_capture; print('go', flush=True)\n"
        f"while True: read_capture({str(path)!r}, None)"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    child.stdout.readline()
    time.sleep(0.3)
    os.kill(child.pid, signal.SIGINT)
    child.communicate(timeout=60)
    assert child.returncode != 0
