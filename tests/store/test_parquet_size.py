"""Footers and headers of pages: read as strictly as no other reader does, since readers differ over what is odd."""

import re
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nsyspipe.errors import DatasetError
from nsyspipe.model.schema import DATASET
from nsyspipe.store import parquet_size
from nsyspipe.store.parquet_size import _CHUNK, _FILE, _PAGE, _Thrift, as_plain_text, check_size
from nsyspipe.store.read import parsed_object, table_of

# Field headers: the step to the field's number in the high half, its type in the low one (5 is i32,
# 6 i64, 9 a list).
TYPE, PLAIN, STORED, STOP = "1500", "15c801", "15c801", "00"


def read(text, fields=_PAGE):
    return _Thrift(bytes.fromhex(text.replace(" ", "")), "it").struct(fields)


@pytest.mark.parametrize(
    ("text", "why", "fields"),
    [
        (
            f"{TYPE} {PLAIN} {STORED} 05 04 02 {STOP}",
            "out of order",
            _PAGE,
        ),  # field 2 once more, by its number
        (f"{TYPE} {PLAIN} {STORED} 06 06 02 {STOP}", "out of order", _PAGE),  # field 3, as i64
        (f"{TYPE} 16c801 {STORED} {STOP}", "another type", _PAGE),
        (f"{TYPE} 15 8080808080 01 {STORED} {STOP}", "too large", _PAGE),  # more than 32 bits
        (f"{TYPE} 15 01 {STORED} {STOP}", "negative", _PAGE),
        (f"{TYPE} {PLAIN} {STOP}", "lacks a part", _PAGE),
        (f"{TYPE} {PLAIN} {STORED}", "ends too early", _PAGE),
        # Numbers beyond all that are known.
        (f"{TYPE} {PLAIN} {STORED} f5 02 f5 02 f5 02 {STOP}", "out of order", _PAGE),
        (f"{TYPE} {PLAIN} {STORED} 2c {'1c' * 12}", "too deeply", _PAGE),
        ("29 16 02 00", "list of another", _CHUNK),  # encodings are a list of i32, not of i64
        ("29 f5 ff ff ff ff 0f", "too large", _CHUNK),
        ("29 f5 7f 00", "longer than it", _CHUNK),
        ("28 02 61 62 00", "part of another", _CHUNK),
        ("8c 00 00", "encryption", _FILE),
    ],
)
def test_what_readers_take_in_two_ways_is_refused(text, why, fields):
    with pytest.raises(ValueError, match=why):
        read(text, fields)


def test_a_footer_of_too_many_parts_is_refused_before_it_takes_long(monkeypatch):
    monkeypatch.setattr(parquet_size, "_MAX_VALUES", 20)
    assert read(f"{TYPE} {PLAIN} {STORED} {STOP}") == {"type": 0, "plain": 100, "stored": 100}
    with pytest.raises(ValueError, match="too many parts"):
        read("29 f5 18" + "00" * 24 + STOP, {2: _CHUNK[2]})


def content(table, **options):
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **{"compression": "zstd", **options})
    return sink.getvalue()


def stragglers(n_rows, **columns):
    wanted = DATASET["stragglers"]
    nulls = {one.name: pa.nulls(n_rows, one.type) for one in wanted.columns}
    filled = {
        "rank": pa.array(range(n_rows)),
        "run_id": pa.array(["r"] * n_rows).dictionary_encode(),
    }
    return pa.table({**nulls, **filled, **columns}).replace_schema_metadata(wanted.arrow.metadata)


def check_size_of(found):
    with tempfile.TemporaryFile() as file:
        file.write(found)
        file.flush()
        return check_size(file)


def test_a_file_that_brotli_compressed_is_refused():
    # It makes a million bytes of one.
    with pytest.raises(ValueError, match="compressed"):
        check_size_of(content(stragglers(2), compression="brotli"))
    check_size_of(content(stragglers(2), compression="snappy"))


def test_columns_that_a_file_leaves_out_count_as_well(monkeypatch, worded):
    monkeypatch.setattr(parquet_size, "_MAX_ROWS_BYTES", 2**19)
    n_rows = 20_000  # times two columns of 8 bytes is allowed, times seven is not
    table = stragglers(n_rows).select(["rank", "run_id"])
    found = content(
        table, column_encoding={"rank": "DELTA_BINARY_PACKED"}, use_dictionary=["run_id"]
    )
    assert check_size_of(found) == found.size < 5_000
    with pytest.raises(DatasetError) as caught:
        table_of(found, DATASET["stragglers"], Path("it"))
    worded(re.sub(r"[\d,]{4,}", "N", caught.value.problem))


def test_a_text_in_place_of_a_number_is_refused_before_it_is_read(worded):
    found = content(stragglers(2, wait_ns=pa.array(["1", "2"])))
    with pytest.raises(DatasetError, match="wait_ns") as caught:
        table_of(found, DATASET["stragglers"], Path("it"))
    worded(caught.value.problem)


def test_columns_of_others_are_not_read_and_the_id_is_read_as_a_dictionary(monkeypatch):
    asked, plain = [], pq.ParquetFile.read

    def read_and_tell(self, columns=None, **options):
        asked.append((columns, plain(self, columns, **options)))
        return asked[-1][1]

    monkeypatch.setattr(pq.ParquetFile, "read", read_and_tell)
    table = stragglers(2, others=pa.array(["a", "b"]), run_id=pa.array(["r", "r"]))
    assert table_of(content(table), DATASET["stragglers"], Path("it")).num_rows == 2
    ((columns, found),) = asked
    assert "others" not in columns
    assert pa.types.is_dictionary(found["run_id"].type)


def test_a_json_text_that_would_fill_the_memory_as_objects_is_refused():
    with pytest.raises(ValueError, match="more than"):
        parsed_object('{"a":[' + "[]," * (6 << 20) + "0]}")


@pytest.mark.parametrize(
    ("n_rows", "n_bytes", "is_read"),
    [
        (2_000, 10_000, True),  # 20 MB as they are
        # The ranks of thousands, once for each of them: rows share what they say.
        (10_000, 20_000, True),
        (10_000, 120_000, False),
        (100_001, 1_000, False),
    ],
)
def test_long_texts_of_many_rows_are_read_up_to_the_limit(n_rows, n_bytes, is_read):
    texts = pa.array(["a" * n_bytes, "b" * n_bytes])
    codes = pa.array([None, *(at % 2 for at in range(n_rows - 1))], pa.int32())
    column = pa.chunked_array([pa.DictionaryArray.from_arrays(codes, texts)])
    if not is_read:
        with pytest.raises(ValueError, match=r"\b9 bytes\b"):
            as_plain_text(column, 9, may_be_shared=True)
        return
    found = as_plain_text(column, 9, may_be_shared=True)
    assert (found.type, len(found), found.null_count) == (pa.string(), n_rows, 1)
    assert [text and (text[:1], len(text)) for text in found.slice(0, 4).to_pylist()] == [
        None,
        ("a", n_bytes),
        ("b", n_bytes),
        ("a", n_bytes),
    ]
