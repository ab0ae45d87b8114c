"""Secrets planted everywhere a report can hold one: none is among the copy's bytes; and forms of what it keeps."""

import shutil
import sqlite3
import struct
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from nsyspipe.errors import NsyspipeError
from nsyspipe.reader import report as versions
from nsyspipe.reader.payload import Layout
from nsyspipe.redact import copy as tables, values as facts
from nsyspipe.redact.copy import Amount, Removed
from nsyspipe.redact.redact import redact
from nsyspipe.redact.values import MARK, packed
from tests.build.planted import found_in, plant, planted_rank
from tests.build.tools import edit, query
from tests.build.trace import KERNEL, NVTX, STRINGS, schemas, steady_rank
from tests.conftest import examples

SECRET = "hunter-2-Pa55phrase"


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    path = tmp_path_factory.mktemp("planted") / "planted.sqlite"
    return path, plant(path)


@pytest.fixture
def planted(original, tmp_path):
    path, secrets = original
    return Path(shutil.copy(path, tmp_path)), secrets


def redacted(path, **options):
    copy = path.with_name(f"copy-of-{path.name}")
    redact(str(path), copy, force=True, **options)
    return copy


def test_the_copy_has_none_of_the_planted_secrets_and_no_place_for_them(planted):
    """Among all bytes of the file; no free page, no log, and nothing but plain tables."""
    path, secrets = planted
    assert len(secrets) >= 60
    assert found_in(path.read_bytes(), secrets) == list(secrets)
    copy = redacted(path)
    assert found_in(copy.read_bytes(), secrets) == []
    said = {"PRAGMA freelist_count": 0, "PRAGMA user_version": 0, "PRAGMA integrity_check": "ok"}
    for statement, answer in {**said, "SELECT DISTINCT type FROM sqlite_master": "table"}.items():
        assert query(copy, statement) == [(answer,)], statement
    header = copy.read_bytes()[:100]
    assert header[18:20] == b"\x01\x01"  # no log
    page_size = int.from_bytes(header[16:18], "big")
    assert copy.stat().st_size == page_size * query(copy, "PRAGMA page_count")[0][0]
    assert sorted(one.name for one in path.parent.iterdir()) == [copy.name, path.name]
    # What names kernels, ranges, phases and calls stays.
    names = {"gemm", "gemm(float*)", "forward", "backward", "step 0", "step 3", "ncclAllReduce"}
    names |= {"cudaLaunchKernel_v7000", "cudaMemcpyAsync_v3020"}
    assert names < {value for (value,) in query(copy, f"SELECT value FROM {STRINGS}")}


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
    assert query(copy, "PRAGMA encoding") == [(encoding,)]
    (names,) = query(
        copy, f"SELECT count(*) FROM {STRINGS} WHERE value LIKE 'ncclDevKernel_AllReduce%'"
    )
    assert names == (2,)


def text_cells():
    """Return every text cell of a planted report that is no name of a kernel or range: table, row, column."""
    builder = planted_rank(Places())
    return [
        (table, number, column)
        for table, found in builder.rows.items()
        for number, row in enumerate(found)
        for column in builder.schema[table]
        if ((table, column) != (NVTX, "text") or row.get("eventType") not in (59, 60))
        and (table, column) != (STRINGS, "value")  # names, but for those that `plant` adds
    ]


class Places(dict):
    def __missing__(self, place):
        return self.setdefault(place, place * 3)


CELLS = text_cells()


@pytest.mark.slow
@examples(40)
@given(cells=st.lists(st.sampled_from(CELLS), min_size=1, max_size=6), as_blob=st.booleans())
def test_a_secret_in_any_cell_is_not_in_the_copy(tmp_path, cells, as_blob):
    """Any cell of any column, numbers too: a copy is made without it, or no copy is made."""
    path = tmp_path / "any.sqlite"
    builder = planted_rank(Places())
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
    copy = redacted(
        edit(path, f"UPDATE {KERNEL} SET contextId = CASE rowid WHEN 2 THEN '{SECRET}' ELSE 7 END")
    )
    assert query(copy, f"SELECT contextId FROM {KERNEL} WHERE rowid IN (2, 3)") == [(None,), (7,)]


@pytest.mark.parametrize("version", sorted(schemas()))
def test_every_table_and_column_of_every_version_is_settled(version):
    for table, columns in schemas()[version].items():
        assert tables.is_known(table), table
        if tables.class_of(table) is None:
            assert tables.KNOWN[table] >= set(columns), table


def test_no_table_is_both_kept_and_dropped():
    assert not any(map(tables.class_of, {*tables.NUMBERS, *tables.CHECKED}))
    assert not tables.is_known("stringids")
    assert not tables.is_known("NEW_EVENTS")
    assert tables.is_known("ENUM_OF_A_LATER_RELEASE")
    others = [f"{versions.KERNEL}_V3; secret", f"{versions.KERNEL}_Vx"]
    names = [versions.KERNEL, f"{versions.KERNEL}_V3", "PROCESSES_V12", *others]
    assert [*map(tables.base_name, names)] == [
        versions.KERNEL,
        versions.KERNEL,
        "PROCESSES",
        *others,
    ]


MODELS = (
    "NVIDIA H200",
    "NVIDIA A100-SXM4-80GB",
    "NVIDIA A100 80GB PCIe",
    "NVIDIA H100 80GB HBM3",
    "NVIDIA GH200 480GB",
    "NVIDIA H100 PCIe",
    "NVIDIA H100 NVL",
    "NVIDIA B200",
    "NVIDIA L40S",
    "NVIDIA L4",
    "NVIDIA A10G",
    "Tesla T4",
    "Tesla V100-SXM2-16GB",
    "Tesla P100-PCIE-16GB",
    "A100-SXM4-40GB",
    "Quadro RTX 6000",
    "TITAN V",
    "TITAN RTX",
    "GeForce GTX 1080 Ti",
    "NVIDIA GeForce RTX 3090",
    "NVIDIA GeForce RTX 4070 Laptop GPU",
    "NVIDIA RTX A6000",
    "NVIDIA RTX 6000 Ada Generation",
    "NVIDIA H200 MIG 1g.18gb",
    "NVIDIA GeForce RTX 2080 SUPER",
    "NVIDIA RTX PRO 6000 Blackwell Server Edition",
    "NVIDIA GB200",
    "NVIDIA A800-SXM4-80GB",
    "NVIDIA H20",
)
NO_MODELS = (
    "hunter2",
    "NVIDIA hunter2",
    "NVIDIA H200 of ada",
    "NVIDIA",
    "H200\nsecret",
    "NVIDIA H200 sk-4711",
)
VERSIONS = ("2024.2.3.38", "3.11.1", "2025.3.1.90-253135822126v0", "2026.2")
NO_VERSIONS = ("", "mfu", "2024.2 secret", "2024.2-hunter2", "3.11.1\n")


def test_models_of_gpus_versions_and_names_of_tables_are_told_from_other_words():
    assert [name for name in (*MODELS, *NO_MODELS) if facts._MODEL.fullmatch(name)] == [*MODELS]
    assert [text for text in (*VERSIONS, *NO_VERSIONS) if facts._VERSION.fullmatch(text)] == [
        *VERSIONS
    ]
    assert [facts._table_list(text) for text in ("", "secret", "NVTX_EVENTS,secret")] == [
        "",
        "-",
        "NVTX_EVENTS",
    ]


@pytest.mark.parametrize(
    ("recorded", "copied"),
    [
        # In the order of our list, whatever separates the names.
        ("NVTX_EVENTS;CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_KERNEL,NVTX_EVENTS"),
        ("NVTX_EVENTS CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_KERNEL,NVTX_EVENTS"),
        ("nvtx_events", "NVTX_EVENTS"),
        # A name inside another name is another table.
        ("CUPTI_ACTIVITY_KIND_MEMCPY2", "-"),
        ("CUPTI_ACTIVITY_KIND_MEMCPY2 CUPTI_ACTIVITY_KIND_MEMSET", "CUPTI_ACTIVITY_KIND_MEMSET"),
        # This pattern matches only names that are longer by one letter.
        ("CUPTI_ACTIVITY_KIND_MEMCPY.", "-"),
    ],
)
def test_only_whole_names_of_tables_are_copied(recorded, copied):
    assert facts._table_list(recorded) == copied


def test_amounts_add_up_by_class_and_place():
    removed = Removed()
    for amount in (
        ("b", "T", 2),
        ("b", "T", 0, "values"),
        ("b", "T", 3),
        ("a", "T.c", 1, "values"),
    ):
        removed.add(*amount)
    assert removed.amounts() == [Amount("a", "T.c", 1, "values"), Amount("b", "T", 5, "rows")]


# A communicator at 0, private bytes at 8, a size at 16.
LAYOUT = Layout(
    24, is_exact=True, fields={"commhash": ("<u8", 0), "user": ("<u8", 8), "bytes": ("<u8", 16)}
)


def blob(payload, *, schema=5, schema_high=0, first=1, tail=b""):
    return (
        struct.pack("<QIIQQ", first, schema, schema_high, len(payload), 32 + len(payload))
        + payload
        + tail
    )


def repacked(one, layouts, domain=1):
    (found,) = packed(pa.chunked_array([pa.array([one], pa.binary())]), np.array([domain]), layouts)
    return found


def test_only_the_numbers_that_are_read_stay_in_a_payload():
    payload = struct.pack("<Q8sQ", 7, b"hunter2!", 4096)
    high = {"schema_high": 0x65723221}
    for more in ({}, high | {"tail": b"hunter2!"}, high | {"first": 0x68756E7465723221}):
        assert repacked(blob(payload, **more), {(1, 5): LAYOUT}) == blob(
            struct.pack("<QQQ", 7, 0, 4096)
        ), more


def test_a_schema_keeps_the_domain_of_its_range_or_becomes_a_mark():
    given, kept = struct.pack("<QQQ", 7, 1, 8), struct.pack("<QQQ", 7, 0, 8)
    assert repacked(blob(given), {(9, 5): LAYOUT}, 9) == blob(kept)
    assert repacked(blob(given), {(1, 5): LAYOUT}, 9) == MARK
    assert repacked(blob(given, schema_high=9), {(1, 5 + (9 << 32)): LAYOUT}) == blob(
        kept, schema_high=9
    )
    for given in (b"", b"hunter2", blob(b"hunter2!" * 2), blob(b"x" * 24, schema=6)):
        assert repacked(given, {(1, 5): LAYOUT}) == MARK, given
