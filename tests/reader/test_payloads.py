"""NCCL payloads in built and real reports."""

import shutil
from dataclasses import replace

import pyarrow.compute as pc
import pytest

import nsyspipe
from nsyspipe.model.canonical import COMM_SIZES, PAYLOADS
from nsyspipe.reader import payload
from nsyspipe.reader.calls import read_strings
from nsyspipe.reader.payload import read_payloads
from nsyspipe.reader.ranges import read_ranges
from nsyspipe.reader.report import open_report
from tests.build import nccl_layouts as nccl
from tests.build.nccl_layouts import BYTES, COMM, INT, SIZE, UINT64, Entry, PayloadLayout
from tests.build.python_samples import sample, with_domain
from tests.build.tools import edit
from tests.build.trace import NVTX, TraceBuilder, schemas, steady_rank

NEW = "3.25.0 2026.2.1 mfu"
ENTRIES, ENUMS = "NVTX_PAYLOAD_SCHEMA_ENTRIES", "NVTX_PAYLOAD_ENUMS"
FIELDS = Entry(COMM, UINT64, 0), Entry(BYTES, SIZE, 8)
NAMES = ["start_ns", "call", "comm_id", "seq", "message_bytes", "n_ranks", "rank"]


def builder(version=NEW, **more):
    return TraceBuilder(version, **more).domain("NCCL", 1)


def reduced(at, size, *, comm=5, builder_=None, **more):
    """Add ncclAllReduce as NCCL 2.21 describes it."""
    return (builder_ or builder()).nccl_payload(
        at, "ncclAllReduce", {COMM: comm, BYTES: size}, nccl.NCCL_2_21, **more
    )


def read(folder, built, *statements, **options):
    path = built.write(folder / "r.sqlite", **options)
    with open_report(edit(path, *statements) if statements else path) as report:
        return read_payloads(report, read_strings(report))


def rows(payloads, *names):
    return [tuple(row.values()) for row in payloads.table.select(names or NAMES).to_pylist()]


def test_all_releases_side_by_side_become_one_table(tmp_path):
    built = builder().nccl_payload(50, "ncclAllReduce", {BYTES: 4096}, nccl.NCCL_2_19)
    built.nccl_payload(
        40, "ncclAllGather", {COMM: 2**63 + 5, BYTES: 2**40 + 1}, nccl.NCCL_2_21, end=48
    )
    fields = {"commHash": 9, "dataType": 9, "count": 10, "seqNumber": 3, "commRank": 0, "nRanks": 2}
    built.nccl_payload(30, "ncclReduceScatter", fields, nccl.NCCL_2_28, inline=True)
    fields = {"my-rank": 1, "NCCL Communicator Id": 8, "n_ranks": 2, "message size (bytes)": 7}
    built.nccl_payload(20, "ncclBroadcast", fields, nccl.IMPLICIT, thread="autograd")
    found = read(tmp_path, created(built, 10, 8, 2, 1))
    assert found.table.schema.equals(PAYLOADS.arrow)
    assert rows(found) == [
        (10, "ncclCommInitRank", 8, None, None, 2, 1),
        (20, "ncclBroadcast", 8, None, 7, 2, 1),
        (30, "ncclReduceScatter", 9, 3, 20, 2, 0),
        (40, "ncclAllGather", 5 - 2**63, None, 2**40 + 1, None, None),
        (50, "ncclAllReduce", None, None, 4096, None, None),
    ]
    assert rows(found, "end_ns") == [(11,), (21,), (31,), (48,), (51,)]
    assert set(rows(found, "thread_id")) == {(built.global_tid(),), (built.global_tid("autograd"),)}
    assert (set(rows(found, "process_id")), found.n_undecoded) == ({(built.global_pid(),)}, 0)


def test_payloads_of_samples_of_python_are_not_read(tmp_path, monkeypatch):
    built = with_domain(reduced(10, 7))
    sample(built, 20, ("f", "/home/me/a.py", 3))
    path = built.write(tmp_path / "r.sqlite")
    numbers_of_blobs = []
    decode = payload.decode_fields

    def counted(blobs, *others):
        numbers_of_blobs.append(len(blobs))
        return decode(blobs, *others)

    monkeypatch.setattr(payload, "decode_fields", counted)
    with open_report(path) as report:
        strings = read_strings(report)
        domains = read_ranges(report, strings, []).python_domains
        found = read_payloads(report, strings, domains)
    assert rows(found, "message_bytes") == [(7,)]
    assert numbers_of_blobs == [1]


def test_texts_and_ends_may_be_missing_and_a_blob_may_be_stored_as_text(tmp_path):
    built = reduced(10, 1).nccl_payload(20, None, {COMM: 5, BYTES: 2}, nccl.NCCL_2_21)
    assert rows(read(tmp_path, built), "call", "message_bytes") == [("ncclAllReduce", 1), (None, 2)]
    assert rows(read(tmp_path, built, "DELETE FROM StringIds"), "call", "message_bytes") == [
        (None, 1),
        (None, 2),
    ]
    built.rows[NVTX][-1]["end"], built.rows[NVTX][-2]["end"] = None, 9
    assert rows(read(tmp_path, built), "start_ns", "end_ns") == [(10, None), (20, None)]
    as_text = f"UPDATE {NVTX} SET binaryData = CAST(binaryData AS TEXT)"
    found = read(tmp_path, reduced(10, 2**63 - 2, comm=2**64 - 1), as_text)
    assert rows(found, "comm_id", "message_bytes") == [(-1, 2**63 - 2)]


@pytest.mark.slow
def test_more_rows_than_one_batch_are_read(tmp_path):
    built = reduced(0, 64).nccl_payload(-10, "ncclAllGather", {BYTES: 1}, nccl.NCCL_2_19)
    names = ", ".join(f'"{name}"' for name in built.schema[NVTX])
    copied = names.replace('"start"', '"start" + n').replace('"end"', '"end" + n')
    numbers = (
        "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r LIMIT 70000) SELECT n FROM "
        "r"
    )
    more = f"INSERT INTO {NVTX} ({names}) SELECT {copied} FROM {NVTX}, numbers WHERE start = 0"
    found = read(tmp_path, built, f"CREATE TEMP TABLE numbers AS {numbers}", more)
    assert found.table["start_ns"].to_pylist() == [-10, *range(70_001)]
    assert found.table["message_bytes"].to_pylist() == [1] + [64] * 70_001
    assert found.table["call"].to_pylist() == ["ncclAllGather"] + ["ncclAllReduce"] * 70_001


def test_payloads_of_other_libraries_are_left_alone(tmp_path):
    theirs = PayloadLayout(2**24 + 5, 16, (Entry("Rank", INT, 0), Entry("bytes", SIZE, 8)))
    built = reduced(10, 1).domain("mine", 2).domain("NCCL", 2, pid=77)
    built.nccl_payload(20, "exchange", {"Rank": 1, "bytes": 2}, theirs, domain=2)
    built.nccl_payload(30, None, {"Rank": 1, "bytes": 2}, theirs, domain=2)
    built.nccl_payload(40, "exchange", {"Rank": 3, "bytes": 4}, theirs, domain=2, pid=77)
    assert rows(read(tmp_path, built), "start_ns", "message_bytes") == [
        (40, 4),
        (10, 1),
    ]  # by process


def test_nccl_is_recognized_by_text_without_a_domain_row(
    tmp_path,
):
    built = reduced(10, 1, builder_=TraceBuilder(NEW)).nccl_payload(
        20, "other", {BYTES: 2}, nccl.NCCL_2_19
    )
    assert rows(read(tmp_path, built), "call") == [("ncclAllReduce",)]
    built = TraceBuilder(NEW).range(-500, None, "NCCL", domain=1, kind=75)
    assert rows(
        read(tmp_path, built.nccl_payload(20, "SIMPLE", {BYTES: 2}, nccl.NCCL_2_19)), "call"
    ) == [("SIMPLE",)]


def created(built, at, comm, n_ranks, rank, **more):
    fields = {COMM: comm, "No. of ranks": n_ranks, "Rank": rank, "CUDA device": 0}
    return built.nccl_payload(at, "ncclCommInitRank", fields, nccl.COMM_INIT, **more)


def test_communicators_have_sizes_by_process(tmp_path):
    built, here, there = builder(), builder().global_pid(), builder().global_pid(77)
    made = [
        (8, 4, 3, 1000),
        (9, 2, 1, 1000),
        (8, 4, 2, 77),
        (9, 2, 1, 1000),
        (0, 8, 7, 1000),
        (6, 0, 0, 1000),
    ]
    for at, (comm, size, rank, pid) in enumerate(made):
        created(built, at, comm, size, rank, pid=pid)
    found = read(tmp_path, built)
    assert found.comm_sizes.schema.equals(COMM_SIZES.arrow)
    assert [tuple(row.values()) for row in found.comm_sizes.to_pylist()] == [
        (there, 8, 4),
        (here, 8, 4),
        (here, 9, 2),
    ]
    assert found.comm_ranks == {here: (7, 8), there: (2, 4)}


def test_a_communicator_with_two_sizes_has_no_size(tmp_path):
    found = read(tmp_path, created(created(builder(), 1, 8, 4, 3), 2, 8, 2, 1))
    assert found.comm_sizes.num_rows == 0
    assert found.comm_ranks == {builder().global_pid(): (3, 4)}
    found = read(
        tmp_path, steady_rank(0, version=NEW).comm_payload(10, n_ranks=4, rank=3, swap=True)
    )
    assert (found.comm_ranks, found.n_undecoded) == ({builder().global_pid(): (3, 4)}, 0)


# One version of each kind: whether ranges have payloads, and whether these are described.
KINDS = {
    ("binaryData" in one[NVTX], ENTRIES in one): version
    for version, one in schemas().items()
    if NVTX in one
}


@pytest.mark.parametrize("version", KINDS.values())
def test_no_export_without_blobs_or_their_description_or_a_table_has_payloads(tmp_path, version):
    built = reduced(10, 1, builder_=builder(version))
    if ENTRIES in built.schema:
        built.rows[NVTX][-1]["binaryData"] = None
    found = read(tmp_path, built)
    assert (found.table.num_rows, found.comm_sizes.num_rows) == (0, 0)
    assert (found.comm_ranks, found.n_undecoded) == ({}, 0)
    for without in (NVTX, ENTRIES, "NVTX_PAYLOAD_SCHEMAS") if ENTRIES in built.schema else ():
        found = read(tmp_path, reduced(10, 1), without=(without,))
        assert (found.table.num_rows, found.n_undecoded) == (0, 0), without


OTHERS = {"nvtx": NVTX, "schemas": "NVTX_PAYLOAD_SCHEMAS", "entries": ENTRIES}
OF_2_21 = " WHERE schemaId = 16777222"


@pytest.mark.parametrize(
    ("change", "is_described"),
    [
        (
            (
                "UPDATE {nvtx} SET binaryData = substr(binaryData, 1, length(binaryData) - 1) "
                "WHERE start = 20"
            ),
            True,
        ),
        ("UPDATE {nvtx} SET binaryData = x'0102' WHERE start = 20", True),
        ("UPDATE {nvtx} SET domainId = 2 WHERE start = 20", True),
        ("UPDATE {nvtx} SET binaryData = zeroblob(56) WHERE start = 20", True),
        ("UPDATE {schemas} SET payloadSize = 16" + OF_2_21, False),
        ("UPDATE {schemas} SET schemaId = 3" + OF_2_21, False),
        ("UPDATE {schemas} SET type = 3" + OF_2_21, False),  # a union
        (
            (
                "INSERT INTO {schemas} (domainId, schemaId, type, payloadSize) VALUES (1, "
                "16777222, 1, 32)"
            ),
            False,
        ),
        (
            (
                "INSERT INTO {entries} (domainId, schemaId, idx, type, name, offset) VALUES (1, "
                "16777222, 1, 5, 'Root', 8)"
            ),
            False,
        ),
    ],
)
def test_blobs_with_a_bad_size_or_description_are_counted_and_ignored(
    tmp_path, change, is_described
):
    built = builder().nccl_payload(10, "ncclAllGather", {BYTES: 9}, nccl.NCCL_2_19)
    built = reduced(30, 3, builder_=built) if is_described else built
    found = read(tmp_path, reduced(20, 1, builder_=built), change.format(**OTHERS))
    assert rows(found, "message_bytes") == ([(9,), (3,)] if is_described else [(9,)])
    assert found.n_undecoded == 1


def test_each_process_may_repeat_the_description(tmp_path):
    built = reduced(10, 1)
    for table in ("NVTX_PAYLOAD_SCHEMAS", ENTRIES):
        built.rows[table] = [dict(row) for row in built.rows[table] * 4]
    assert rows(read(tmp_path, built), "message_bytes") == [(1,)]


def test_a_field_beyond_the_payload_is_left_out(tmp_path):
    layout = replace(nccl.NCCL_2_21, size=16, entries=FIELDS)
    built = builder().nccl_payload(10, "ncclSend", {COMM: 1, BYTES: 2}, layout)
    found = read(tmp_path, built, f"UPDATE {ENTRIES} SET offset = 9 WHERE idx = 1")
    assert (rows(found, "comm_id", "message_bytes"), found.n_undecoded) == ([(1, None)], 0)
    layout = replace(nccl.NCCL_2_21, entries=(FIELDS[0], FIELDS[1]._replace(kind=20)))
    found = read(tmp_path, builder().nccl_payload(10, "ncclSend", {COMM: 1, BYTES: 2.5}, layout))
    assert rows(found, "comm_id", "message_bytes") == [(1, None)]


def test_an_enum_takes_the_room_that_its_table_says(tmp_path):
    follow = [("Reduction operation", nccl.REDUCTION, 0), ("Root", INT, 4), (BYTES, SIZE, 8)]
    entries = tuple(Entry(*one, is_stated=False) for one in follow)
    built = builder().nccl_payload(10, "ncclReduce", {BYTES: 6}, PayloadLayout(9, 16, entries))
    assert rows(read(tmp_path, built)) == []
    built.schema = built.schema | {
        ENUMS: dict.fromkeys(("domainId", "schemaId", "size"), "INTEGER")
    }
    built.add(ENUMS, domainId=2, schemaId=nccl.REDUCTION, size=8)
    assert rows(read(tmp_path, built)) == []
    built.add(ENUMS, domainId=1, schemaId=nccl.REDUCTION, size=4)
    assert rows(read(tmp_path, built), "message_bytes") == [(6,)]


GPT = 166_307_840  # parameters of the GPT, f32; its all-gathers move bf16
MIB = 2**20
# By capture: bytes of a step's messages.
BYTES_PER_STEP = {
    **{f"2gpu-gpt-{name}": 4 * GPT for name in ("b25", "b25-shm", "one-shm", "accum", "accum-shm")},
    "2gpu-gpt-b25-shm-bf16hook": 2 * GPT,
    "2gpu-tp": 32 * 16 * MIB,
    "2gpu-pp": 8 * 4 * MIB,
    # Of its blocks all-gathers in forward and in backward, of the rest once; reduce-scatters once.
    "2gpu-fsdp2": 2 * (2 * 8 * 12_596_224 + 65_538_048) + 4 * GPT,
    # Each rank sends 8 MiB to each; the rest is all-reduced.
    "2gpu-moe": 32 * 2 * 8 * MIB + 131_072_000 + 131_080_192 + 4 * 33_619_968,
}


@pytest.mark.parametrize(("name", "n_bytes"), BYTES_PER_STEP.items())
def test_message_bytes_are_what_the_program_sends(runs, name, n_bytes):
    run = runs(name)
    assert run.summary()["message_bytes_per_step"][0].as_py() == n_bytes
    assert run.summary()["busbw_bytes_per_s"][0].as_py() > 0
    wrong = {
        "no-message-size",
        "few-message-sizes",
        "undecoded-payload",
        "ended-before-last-arrived",
    }
    assert wrong.isdisjoint(run.problems["code"].to_pylist())
    if name == "2gpu-gpt-b25-shm":
        assert round(run.summary()["busbw_bytes_per_s"][0].as_py() / 1e9, 2) == 25.49


def test_an_all_to_all_that_ran_as_sends_and_receives_is_one(runs):
    rows = runs("2gpu-moe").collectives()
    rows = rows.filter(pc.equal(rows["collective"], "all_to_all"))
    assert (rows.num_rows, set(rows["message_bytes"].to_pylist())) == (2 * 8 * 32, {16 * MIB})
    assert pc.all(rows["is_matched"]).as_py()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "shift"), [("2gpu-gpt-b25-shm", 1), ("2gpu-moe", 6), ("2gpu-fsdp2", 2**31)]
)
def test_the_number_of_the_domain_changes_no_figure(runs, real, tmp_path, name, shift):
    tables = (NVTX, "NVTX_PAYLOAD_SCHEMAS", ENTRIES, ENUMS)
    shifted = [
        f"UPDATE {table} SET domainId = domainId + {shift} WHERE domainId > 0" for table in tables
    ]
    for rank in range(2):
        edit(
            shutil.copyfile(real / f"{name}_{rank}.sqlite", tmp_path / f"{name}_{rank}.sqlite"),
            *shifted,
        )
    before, after = runs(name), nsyspipe.load(str(tmp_path / f"{name}_*.sqlite"))
    assert (after.summary(), after.collectives()) == (before.summary(), before.collectives())
    assert after.problems["code"].to_pylist() == before.problems["code"].to_pylist()
