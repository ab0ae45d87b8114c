"""Payloads that an export has as tables, as NVIDIA documents them for schema 3.28. All are built."""

import pytest

import nsyspipe
from nsyspipe.reader.calls import read_strings
from nsyspipe.reader.payload import read_payloads
from nsyspipe.reader.report import open_report
from nsyspipe.redact.redact import redact
from tests.build import nccl_layouts as nccl
from tests.build.nccl_layouts import BYTES, COMM, RANK, RANKS
from tests.build.tools import edit
from tests.build.trace import TraceBuilder, steady_rank

VERSION = "3.28.1 2026.4.1"
SUM = {COMM: -7, BYTES: 4096}
TABLE = f"DYNAMIC_NVTXPAYLOAD_DATATYPE_{TraceBuilder().global_pid()}_1_{2**24 + 40}"
NAMES = ["start_ns", "call", "comm_id", "message_bytes", "n_ranks", "rank"]


def reduced(*, domain="NCCL"):
    """Return a report with two calls of NCCL, whose payloads are in one table."""
    built = TraceBuilder(VERSION).domain(domain, 1)
    built.table_payload(10, "ncclAllReduce", SUM)
    return built.table_payload(20, "ncclAllReduce", SUM | {BYTES: 8192})


def read(folder, built, *statements):
    path = built.write(folder / "r.sqlite")
    with open_report(edit(path, *statements) if statements else path) as report:
        return read_payloads(report, read_strings(report))


def rows(payloads):
    return [tuple(row.values()) for row in payloads.table.select(NAMES).to_pylist()]


def sizes(payloads):
    return payloads.table["message_bytes"].to_pylist()


def test_the_rows_of_a_table_are_the_payloads_of_their_ranges(tmp_path):
    found = read(tmp_path, reduced())
    calls = [
        (10, "ncclAllReduce", -7, 4096, None, None),
        (20, "ncclAllReduce", -7, 8192, None, None),
    ]
    assert rows(found) == calls
    assert (found.n_undecoded, found.size_gap) == (0, None)


def test_each_process_and_schema_has_its_own_table(tmp_path):
    built = reduced().domain("NCCL", 3, pid=2000)
    created = {COMM: -7, RANKS: 2, RANK: 1}
    built.table_payload(5, "ncclCommInitRank", created, schema=9, domain=3, pid=2000)
    found = read(tmp_path, built)
    assert rows(found)[-1] == (5, "ncclCommInitRank", -7, None, 2, 1)
    assert found.comm_ranks == {built.global_pid(2000): (1, 2)}


def test_count_and_datatype_of_a_table_give_the_size(tmp_path):
    built = TraceBuilder(VERSION).domain("NCCL", 1)
    # Ten numbers of bfloat16.
    built.table_payload(10, "ncclAllReduce", {"commHash": 5, "count": 10, "dataType": 9})
    assert sizes(read(tmp_path, built)) == [20]


def test_a_column_keeps_the_meaning_of_the_name_that_it_had(tmp_path):
    change = f'ALTER TABLE "{TABLE}" RENAME COLUMN "Message_size__bytes_" TO f1'
    names = "UPDATE NVTX_EXPORT_TRANSLATION SET sanitizedName = 'f1' WHERE originalName LIKE 'Mes%'"
    assert sizes(read(tmp_path, reduced(), change, names)) == [4096, 8192]
    assert sizes(read(tmp_path, reduced(), change)) == [None, None]


@pytest.mark.parametrize(
    ("change", "known"),
    [
        (f'UPDATE "{TABLE}" SET eventId = 99 WHERE eventId = 2', [8192]),
        (f'INSERT INTO "{TABLE}" SELECT * FROM "{TABLE}" WHERE eventId = 2', [8192]),
        (f'UPDATE "{TABLE}" SET Message_size__bytes_ = -1 WHERE eventId = 2', [None, 8192]),
        (f"UPDATE \"{TABLE}\" SET Message_size__bytes_ = 'many' WHERE eventId = 2", [None, 8192]),
        (f'UPDATE "{TABLE}" SET Message_size__bytes_ = 1.5 WHERE eventId = 2', [None, 8192]),
        ("UPDATE NVTX_EVENTS SET domainId = 2 WHERE eventId = 2", [8192]),
        ("UPDATE NVTX_EVENTS SET globalTid = globalTid + (1 << 24) WHERE eventId = 2", [8192]),
        (f'ALTER TABLE "{TABLE}" DROP COLUMN eventId', []),
        ("DROP TABLE NVTX_EVENTS_PAYLOAD_SCHEMAS", []),
        (f'DELETE FROM "{TABLE}"', []),
    ],
)
def test_a_row_that_contradicts_its_range_has_no_values(tmp_path, change, known):
    assert sizes(read(tmp_path, reduced(), change)) == known


def test_a_view_in_place_of_a_table_is_refused(tmp_path):
    path = reduced().write(tmp_path / "r.sqlite")
    edit(path, f'CREATE TABLE a AS SELECT * FROM "{TABLE}"', f'DROP TABLE "{TABLE}"')
    edit(path, f'CREATE VIEW "{TABLE}" AS SELECT * FROM a')
    with pytest.raises(nsyspipe.errors.NotAReportError, match="is a view"), open_report(path):
        pass


def test_tables_of_other_libraries_are_not_read(tmp_path):
    assert sizes(read(tmp_path, reduced(domain="Python Backtrace"))) == []


def a_rank(rank, *, is_in_table):
    """Return a rank whose collectives have payloads, in a table or as bytes."""
    built = steady_rank(rank, version=VERSION).domain("NCCL", 1)
    for step in range(4):
        at = 1000 * step + 79
        fields = {COMM: 11, BYTES: 4096}
        more = {"end": at + 3, "thread": "autograd"}
        if is_in_table:
            built.table_payload(at, "ncclAllReduce", fields, schema=2**24 + 6, **more)
        else:
            built.nccl_payload(at, "ncclAllReduce", fields, nccl.NCCL_2_21, **more)
    return built


def collectives_of(folder, *, is_in_table):
    folder.mkdir()
    for rank in range(2):
        a_rank(rank, is_in_table=is_in_table).write(folder / f"r_{rank}.sqlite")
    return collectives(folder)


def collectives(folder):
    return nsyspipe.load(folder, jobs=1).collectives().to_pylist()


@pytest.mark.slow
def test_a_run_has_the_same_collectives_from_tables_and_from_bytes(tmp_path):
    from_tables = collectives_of(tmp_path / "tables", is_in_table=True)
    assert from_tables == collectives_of(tmp_path / "bytes", is_in_table=False)
    assert {row["message_bytes"] for row in from_tables} == {4096}


@pytest.mark.slow
def test_a_redacted_copy_has_the_payloads_of_the_original(tmp_path):
    original = collectives_of(tmp_path / "tables", is_in_table=True)
    redact(str(tmp_path / "tables"), tmp_path / "copy")
    assert collectives(tmp_path / "copy") == original
