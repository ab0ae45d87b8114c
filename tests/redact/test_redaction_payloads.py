"""Payloads packed anew: the numbers that are read, and zeros."""

from __future__ import annotations

import struct

import numpy as np
import pyarrow as pa
import pytest

from nsyspipe.reader.payload import decode_fields
from nsyspipe.reader.payload_layouts import Layout
from nsyspipe.redact.values import MARK, packed

# A communicator at 0, private bytes at 8, a size at 16.
LAYOUT = Layout(
    24,
    is_exact=True,
    fields={"commhash": ("<u8", 0), "user": ("<u8", 8), "bytes": ("<u8", 16)},
)


def blob(payload, *, schema=5, schema_high=0, first=1, tail=b""):
    header = struct.pack("<QIIQQ", first, schema, schema_high, len(payload), 32 + len(payload))
    return header + payload + tail


def repacked(one, layouts, domain=1):
    column = pa.chunked_array([pa.array([one], pa.binary())])
    (found,) = packed(column, np.array([domain]), layouts)
    return found


def test_only_numbers_that_are_read_are_left_of_a_payload():
    payload = struct.pack("<Q8sQ", 7, b"hunter2!", 4096)
    found = repacked(blob(payload), {(1, 5): LAYOUT})
    assert found == blob(struct.pack("<QQQ", 7, 0, 4096))


def test_nothing_is_left_behind_the_payload_or_in_the_high_words_of_its_header():
    payload = struct.pack("<Q8sQ", 7, b"hunter2!", 4096)
    for given in (
        blob(payload, schema_high=0x65723221, tail=b"hunter2!"),
        blob(payload, schema_high=0x65723221, first=0x68756E7465723221),
    ):
        assert repacked(given, {(1, 5): LAYOUT}) == blob(struct.pack("<QQQ", 7, 0, 4096))


def test_the_domain_is_that_of_the_range():
    given = blob(struct.pack("<QQQ", 7, 1, 8))
    assert repacked(given, {(9, 5): LAYOUT}, 9) == blob(struct.pack("<QQQ", 7, 0, 8))
    assert repacked(given, {(1, 5): LAYOUT}, 9) == MARK


def test_a_schema_whose_id_needs_its_high_word_keeps_it():
    layouts = {(1, 5 + (9 << 32)): LAYOUT}
    given = blob(struct.pack("<QQQ", 7, 1, 8), schema_high=9)
    found = repacked(given, layouts)
    assert found == blob(struct.pack("<QQQ", 7, 0, 8), schema_high=9)


@pytest.mark.parametrize(
    "given", [b"", b"hunter2", blob(b"hunter2!" * 2), blob(b"x" * 24, schema=6)], ids=range(4)
)
def test_what_fits_no_layout_becomes_a_mark(given):
    assert repacked(given, {(1, 5): LAYOUT}) == MARK


def test_what_was_packed_anew_says_the_same_to_the_reader():
    payload = struct.pack("<Q8sQ", 2**63 + 5, b"hunter2!", 2**40)
    chunks = [pa.chunked_array([pa.array([one], pa.binary())]) for one in (
        blob(payload), repacked(blob(payload), {(1, 5): LAYOUT}),
    )]  # fmt: skip
    first, second = (decode_fields(one, np.array([1]), {(1, 5): LAYOUT}) for one in chunks)
    assert first.values["comm_id"].tolist() == [5 - 2**63] == second.values["comm_id"].tolist()
    assert (
        first.values["message_bytes"].tolist() == [2**40] == second.values["message_bytes"].tolist()
    )
