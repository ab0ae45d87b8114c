"""Where NVTX payloads hold their fields, and what the fields are, however a release lays them out."""

import struct
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace as replaced

from nsyspipe.model.names import bare_name
from nsyspipe.reader.payload import Layout, decode_fields, names_in, place_entries
from tests.build import nccl_layouts as nccl
from tests.build.nccl_layouts import (
    BYTES,
    COMM,
    INT,
    RANK,
    RANKS,
    SIZE,
    UINT64,
    Entry,
    PayloadLayout,
    blob,
)

CHAR, SHORT, LONGDOUBLE, STRING, UNKNOWN, ENUM = 1, 3, 21, 75, 9999, 2**24 + 1
POINTER, FROM_BASE, FIXED, TERMINATED, BY_LENGTH = 1 << 1, 1 << 2, 1 << 4, 2 << 4, 3 << 4


def placed(*entries, pack=0, enums=None):
    rows = {n: {k: v or 0 for k, v in entry.row().items()} for n, entry in enumerate(entries)}
    return {name: at for name, (_, at) in place_entries(rows, pack=pack, enums=enums or {}).items()}


def implicit(name, kind, **more):
    return Entry(name, kind, 0, is_stated=False, **more)


def read(layout):
    schema, entries = layout.rows(1)
    rows = {row["idx"]: {key: value or 0 for key, value in row.items()} for row in entries}
    fields = place_entries(rows, pack=schema["alignTo"] or 0, enums={})
    ends = [at + np.dtype(code).itemsize for code, at in fields.values()]
    return Layout(schema["payloadSize"] or max(ends), bool(schema["payloadSize"]), fields)


def decoded(layout, *blobs, chunks=1):
    """Return, for each blob, the known fields; None where it was not decoded."""
    parts = [list(part) for part in np.array_split(np.array([*blobs, None])[:-1], chunks)]
    column = pa.chunked_array([pa.array(part, pa.binary()) for part in parts], pa.binary())
    fields = decode_fields(column, np.full(len(blobs), 7), {(7, layout.schema): read(layout)})
    return [
        {name: int(fields.values[name][row]) for name in fields.values if fields.known[name][row]}
        if fields.layout[row] >= 0
        else None
        for row in range(len(blobs))
    ]


A_TO_D = [implicit("a", CHAR), implicit("b", INT), implicit("c", CHAR), implicit("d", UINT64)]
# Of what is no single number: the room that it takes, behind a number of 4 bytes.
ROOMS = [
    (implicit("x", INT, flags=FIXED, detail=3), 4 + 12),
    (implicit("x", CHAR, flags=POINTER), 8 + 8),
    (implicit("x", STRING, detail=5), 4 + 5),
    (implicit("x", LONGDOUBLE), 16 + 16),
    (implicit("x", 128), 8 + 8),  # a timestamp
    (implicit(None, SHORT), 4 + 2),
]
OF_UNKNOWN_SIZE = [
    *(implicit("x", kind) for kind in (UNKNOWN, ENUM, STRING)),
    *(implicit("x", INT, flags=flags) for flags in (TERMINATED, BY_LENGTH, 4 << 4, FROM_BASE)),
    implicit("x", STRING, flags=TERMINATED, detail=8),
    Entry("x", INT, -4),
]


def test_an_entry_without_offset_follows_at_its_alignment():
    assert placed(*A_TO_D) == {"a": 0, "b": 4, "c": 8, "d": 16}
    for pack, places in {
        1: [0, 1, 5, 6],
        2: [0, 2, 6, 8],
        4: [0, 4, 8, 12],
        16: [0, 4, 8, 16],
    }.items():
        assert list(placed(*A_TO_D, pack=pack).values()) == places, pack


def test_an_entry_that_is_no_single_number_is_skipped_by_its_size():
    for skipped, end in ROOMS:
        assert placed(implicit("a", INT), skipped, implicit("b", CHAR)) == {"a": 0, "b": end}, (
            skipped
        )
    for skipped in OF_UNKNOWN_SIZE:
        behind = implicit("b", INT), Entry("c", INT, 40), implicit("d", INT)
        assert placed(implicit("a", INT), skipped, *behind) == {"a": 0, "c": 40, "d": 44}, skipped


def test_an_enum_has_its_declared_size_and_a_gap_makes_offsets_unknown():
    entries = [implicit("a", CHAR), implicit("e", ENUM), implicit("b", CHAR)]
    assert placed(*entries, enums={ENUM: 4}) == {"a": 0, "e": 4, "b": 8}
    assert placed(*entries, enums={ENUM: 3}) == {"a": 0}
    row = {"type": INT, "flags": 0, "arrayOrUnionDetail": 0, "offset": 0}
    rows = {0: row | {"name": "a"}, 2: row | {"name": "c"}, 3: row | {"name": "d", "offset": 4}}
    assert place_entries(rows, pack=0, enums={}) == {"a": ("<i4", 0), "d": ("<i4", 4)}
    assert place_entries({1: row | {"name": "b"}}, pack=0, enums={}) == {}


NOT_NCCL = PayloadLayout(5, 8, (Entry("mine", UINT64, 0),))
COUNT_AND_BYTES = PayloadLayout(
    5, 24, (Entry("count", SIZE, 0), Entry("Datatype", INT, 8), Entry("Bytes", SIZE, 16))
)


@pytest.mark.parametrize(
    ("layout", "fields", "values"),
    [
        (nccl.NCCL_2_19, {BYTES: 4096}, {"message_bytes": 4096}),
        (nccl.NCCL_2_19_SEND, {"Bytes": 7, "Peer rank": 3}, {"message_bytes": 7}),
        (
            nccl.NCCL_2_21,
            {COMM: 2**63 + 5, BYTES: 2**40},
            {"comm_id": 5 - 2**63, "message_bytes": 2**40},
        ),
        (
            nccl.COMM_INIT,
            {COMM: 9, RANKS: 4, RANK: 3, "CUDA device": 1},
            {"comm_id": 9, "n_ranks": 4, "rank": 3},
        ),
        (nccl.COMM_INIT, {COMM: 0, RANKS: -1, RANK: 0}, {"rank": 0}),  # what cannot be is unknown
        (nccl.NCCL_2_21, {COMM: 1, BYTES: 2**63}, {"comm_id": 1}),
        (NOT_NCCL, {"mine": 1}, {}),
        (
            COUNT_AND_BYTES,
            {"count": 3, "Datatype": 2, "Bytes": 100},
            {"message_bytes": 100, "count": 3, "datatype": 2},
        ),
        (
            nccl.IMPLICIT,
            {
                "my-rank": 1,
                "NCCL Communicator Id": 2**64 - 1,
                "n_ranks": 2,
                "message size (bytes)": 0,
            },
            {"rank": 1, "comm_id": -1, "n_ranks": 2, "message_bytes": 0},
        ),
    ],
)
def test_a_payload_of_each_release_gives_its_fields(layout, fields, values):
    assert decoded(layout, blob(layout, fields)) == [values]


def test_count_and_datatype_make_the_message_size_unless_it_is_beyond_int64():
    sizes = [1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1, None, None]
    cases = [(10, datatype, size and 10 * size) for datatype, size in enumerate(sizes)]
    cases += [
        (2**63 - 1, 2, None),
        (2**61 - 1, 2, 2**63 - 4),
        (2**61, 2, None),
        (2**63, 2, None),
        (0, 2, 0),
    ]
    fixed = {"commHash": 77, "seqNumber": 3, "commRank": 0, "nRanks": 8}
    blobs = [
        blob(nccl.NCCL_2_28, fixed | {"dataType": datatype, "count": count})
        for count, datatype, _ in cases
    ]
    found = decoded(nccl.NCCL_2_28, *blobs)
    assert [values.get("message_bytes") for values in found] == [size for *_, size in cases]
    assert {(values["comm_id"], values["seq"], values["n_ranks"]) for values in found} == {
        (77, 3, 8)
    }


def test_similar_names_are_not_taken_for_a_field():
    spellings = ["Message size [bytes]", "MESSAGE_SIZE_BYTES", "message-size (bytes)"]
    assert {bare_name(one) for one in spellings} == {"messagesizebytes"}
    names = [
        "Parent NCCL communicator ID",
        "Peer rank",
        "Root",
        "No. of devices",
        "Reduction count",
    ]
    layout = Layout(40, is_exact=True, fields={bare_name(name): ("<i8", 0) for name in names})
    assert names_in(layout) == {}
    assert names_in(replaced(layout, fields={"rank": ("<f4", 0), "myrank": ("<i4", 4)})) == {
        "rank": "myrank"
    }


FITTING = blob(nccl.NCCL_2_21, {COMM: 1, BYTES: 2})
BROKEN = {
    "empty": b"",
    "no header": FITTING[:31],
    "no payload": FITTING[:32],
    "cut": FITTING[:-1],
    "another size than described": FITTING[:16] + struct.pack("<QQ", 16, 48) + FITTING[32:48],
    "huge": FITTING[:16] + struct.pack("<QQ", 2**64 - 1, 56) + FITTING[32:],
    "more than there is": FITTING[:24] + struct.pack("<Q", 57) + FITTING[32:],
    "of two payloads, it seems": struct.pack("<Q", 2) + FITTING[8:] + b"\0" * 24,
    "another schema": FITTING[:8] + struct.pack("<I", 2**24 + 7) + FITTING[12:],
    "noise": b"\x01" * 56,
}


def test_a_blob_that_does_not_fit_is_not_decoded():
    values = {"comm_id": 1, "message_bytes": 2}
    for what, broken in BROKEN.items():
        found = decoded(nccl.NCCL_2_21, FITTING, broken, FITTING + b"tail", None, FITTING, chunks=2)
        assert found == [values, None, values, None, values], what
    assert decoded(nccl.NCCL_2_21, b"short", FITTING, chunks=2) == [None, values]
    # The first number of a header is not the domain.
    assert decoded(nccl.NCCL_2_21, FITTING, struct.pack("<Q", 9) + FITTING[8:]) == [values] * 2


def test_a_blob_is_laid_out_as_the_domain_of_its_range_says():
    column = pa.chunked_array([pa.array([FITTING] * 4)])
    layouts = {
        (domain, nccl.NCCL_2_21.schema): read(nccl.NCCL_2_21) for domain in (7, -1, 2**32 + 1)
    }
    fields = decode_fields(column, np.array([1, 7, -1, 2**32 + 1]), layouts)
    assert (fields.layout >= 0).tolist() == [False, True, True, True]


def test_an_unstated_size_holds_at_least_the_fields():
    whole = blob(nccl.IMPLICIT, {"my-rank": 1})
    shorter = whole[:16] + struct.pack("<QQ", 31, 63) + whole[32:63]
    longer = whole[:16] + struct.pack("<QQ", 40, 72) + whole[32:] + b"\0" * 8
    assert [found is not None for found in decoded(nccl.IMPLICIT, shorter, longer)] == [False, True]
    own = replace(
        nccl.NCCL_2_21, schema=2**32 + 7
    )  # an id of 64 bits that the tool gave is matched in full
    blobs = (blob(one, {COMM: 1, BYTES: 2}) for one in (own, replace(own, schema=2**33 + 7)))
    assert decoded(own, *blobs) == [{"comm_id": 1, "message_bytes": 2}, None]


NAMES = ["commHash", "seqNumber", "Bytes", "No. of ranks", "Rank", *(f"own {n}" for n in range(6))]
FIELDS = dict(zip(NAMES, ["comm_id", "seq", "message_bytes", "n_ranks", "rank"], strict=False))
# Size, alignment, and the description of what is skipped.
SKIPPED = [
    (12, 4, {"kind": INT, "flags": FIXED, "detail": 3}),
    (8, 8, {"kind": CHAR, "flags": POINTER}),
    (5, 1, {"kind": STRING, "detail": 5}),
    (16, 16, {"kind": LONGDOUBLE}),
    (3, None, {"kind": UNKNOWN}),
]


@st.composite
def structs(draw):
    parts = [
        (name, draw(st.sampled_from(sorted(nccl.CODES)))) for name in draw(st.permutations(NAMES))
    ]
    parts += [(None, draw(st.sampled_from(SKIPPED))) for _ in range(draw(st.integers(0, 4)))]
    parts = draw(st.permutations(parts[: draw(st.integers(1, len(parts)))]))
    runs = [[]]
    for name, part in parts:
        if runs[-1] and (draw(st.booleans()) or runs[-1][-1][1] == SKIPPED[-1]):
            runs.append([])
        runs[-1].append((name, part))
    entries, cursor = {}, 0
    for run in draw(st.permutations(range(len(runs)))):
        cursor += draw(st.integers(0, 9))
        cursor = max(cursor, 1) if run else cursor  # 0 is stated by the first entry only
        for n, (name, part) in enumerate(runs[run]):
            size, align, more = (
                part if name is None else (*[struct.calcsize(nccl.CODES[part])] * 2, {"kind": part})
            )
            cursor = cursor if n == 0 else -(-cursor // (align or 1)) * (align or 1)
            entries[run, n] = Entry(name or "", at=cursor, is_stated=n == 0, **more)
            cursor += size
    return PayloadLayout(
        77, cursor, tuple(entries[key] for key in sorted(entries)), draw(st.booleans())
    )


def numbers(kind):
    code = nccl.CODES[kind]
    if code in "fd":
        return st.floats(width=32, allow_nan=False)
    bits = 8 * struct.calcsize(code)
    return (
        st.integers(0, 2**bits - 1)
        if code.isupper()
        else st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    )


@given(structs(), st.data())
def test_any_layout_gives_back_what_was_written(layout, data):
    named = {entry.name: numbers(entry.kind) for entry in layout.entries if entry.name}
    written = data.draw(st.lists(st.fixed_dictionaries(named), min_size=1, max_size=4))
    found = read(layout) if named else Layout(0, is_exact=False, fields={})
    assert found.fields.keys() == {bare_name(name) for name in named}
    if named:
        joined = b"".join(layout.pack(values)[: found.n_bytes] for values in written)
        records = np.frombuffer(joined, found.dtype(found.fields))
        for name in named:
            assert records[bare_name(name)].tolist() == [values[name] for values in written], name
        is_number = {
            entry.name: nccl.CODES[entry.kind] not in "fd" for entry in layout.entries if entry.name
        }
        expected = [
            {
                FIELDS[name]: as_read(FIELDS[name], value)
                for name, value in values.items()
                if name in FIELDS and is_number[name] and as_read(FIELDS[name], value) is not None
            }
            for values in written
        ]
        assert decoded(layout, *(blob(layout, values) for values in written)) == expected


def as_read(field, value):
    """Return a number as the fields hold it: ids as signed 64 bits, counts from 0, None else."""
    signed = value - 2**64 if value >= 2**63 else value
    if field == "comm_id":
        return signed or None
    return signed if field == "seq" or signed >= 0 else None
