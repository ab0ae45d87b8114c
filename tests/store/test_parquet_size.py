"""Footers and headers of pages: read as strictly as no other reader does, since readers differ over what is odd."""

from __future__ import annotations

import pytest

from nsyspipe.store.parquet_size import _CHUNK, _FILE, _PAGE, _Thrift

# Field headers: the step to the field's number in the high half, its type in the low one (5 is i32, 6 i64, 9 a list).
TYPE, PLAIN, STORED, STOP = "1500", "15c801", "15c801", "00"


def read(text, fields=_PAGE):
    return _Thrift(bytes.fromhex(text.replace(" ", "")), "it").struct(fields)


def test_a_plain_header_is_read():
    assert read(f"{TYPE} {PLAIN} {STORED} {STOP}") == {"type": 0, "plain": 100, "stored": 100}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            f"{TYPE} {PLAIN} {STORED} 05 04 02 {STOP}",
            "out of order",
        ),  # field 2 once more, by its number
        (f"{TYPE} {PLAIN} {STORED} 06 06 02 {STOP}", "out of order"),  # field 3, as i64
        (f"{TYPE} 16c801 {STORED} {STOP}", "another type"),
        (f"{TYPE} 15 8080808080 01 {STORED} {STOP}", "too large"),  # more than 32 bits
        (f"{TYPE} 15 01 {STORED} {STOP}", "negative"),
        (f"{TYPE} {PLAIN} {STOP}", "lacks a part"),
        (f"{TYPE} {PLAIN} {STORED}", "ends too early"),
        (
            f"{TYPE} {PLAIN} {STORED} f5 02 f5 02 f5 02 {STOP}",
            "out of order",
        ),  # numbers beyond all that are known
        (f"{TYPE} {PLAIN} {STORED} 2c {'1c' * 12}", "too deeply"),
    ],
)
def test_what_readers_take_in_two_ways_is_refused(text, why):
    with pytest.raises(ValueError, match=why):
        read(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("29 16 02 00", "list of another type"),  # encodings are a list of i32, not of i64
        ("29 f5 ff ff ff ff 0f", "too large"),
        ("29 f5 7f 00", "longer than it"),
        ("28 02 61 62 00", "part of another type"),
    ],
)
def test_lists_have_the_type_and_the_length_that_they_should(text, why):
    with pytest.raises(ValueError, match=why):
        read(text, _CHUNK)


def test_encryption_and_other_files_are_refused():
    with pytest.raises(ValueError, match="encryption"):
        read("8c 00 00", _FILE)
