"""Whether a Parquet file can be as large, once it is read, as it says: told from its footer, before anything is read.

A few bytes can stand for as many rows as somebody likes. What a file of ours becomes in memory is
at most some dozens of its own size; here its rows may become `_SMALL_ROWS`, or `_LARGEST_RATIO`
times its size.
"""

import os
from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.errors import require

_Struct = dict[str, Any]
_Fields = Mapping[int, Any]

_MAGIC = b"PAR1"
_LARGEST_FOOTER = 64 * 2**20
# Rows are grouped and compared once they are read, which takes some times as much as they do; pages
# are not.
_SMALL_ROWS = 64 * 2**20
_SMALL_PAGES = 512 * 2**20
_LARGEST_RATIO = 200
_BYTES_PER_VALUE = 8
# Texts that rows share, which take that much only where they are written out, as in a document.
_MOST_SHARED = 2**30
_MOST_SHARING = 100_000
_LARGEST_EXPANSION = (
    40_000  # bytes that Zstandard makes of one, about; Brotli, which is refused, makes many more
)
_CODECS = (0, 1, 2, 5, 6, 7)  # None, Snappy, gzip, LZ4, Zstandard, LZ4 as it is
_MOST_PAGES = 10_000  # of a column in a row group of a million rows there are some dozens
_LARGEST_HEADER = 1 << 16  # statistics of long texts stand in it
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)
_N_BITS = {_I16: 16, _I32: 32, _I64: 64}
_DEEPEST = 8
_LONG_LIST = 15
_MOST_FIELDS = 32
_MOST_VALUES = 400_000  # some dozens for each column of a million rows; many more would take long
_REPEATED = 2
_PAGES = (0, 2, 3)  # data, dictionary, data of version 2

# Fields of structs by number: a kind, or the name that one is kept by, its kind, and the fields of
# a struct or what is in a list. Others may be of any kind, but for those of encryption and of other
# files, which are refused.
_CHUNK: _Fields = {
    1: _I32,
    2: (None, _LIST, _I32),
    3: (None, _LIST, _BINARY),
    4: ("codec", _I32, None),
    5: ("values", _I64, None),
    6: ("plain", _I64, None),
    7: ("stored", _I64, None),
    8: (None, _LIST, _STRUCT),
    9: ("pages", _I64, None),
    10: _I64,
    11: ("dictionary", _I64, None),
    12: _STRUCT,
    13: (None, _LIST, _STRUCT),
}
_COLUMN: _Fields = {1: None, 2: _I64, 3: ("data", _STRUCT, _CHUNK), 8: None, 9: None}
_GROUP: _Fields = {
    1: ("columns", _LIST, _COLUMN),
    2: _I64,
    3: ("rows", _I64, None),
    4: (None, _LIST, _STRUCT),
    5: _I64,
    6: _I64,
    7: _I16,
}
_ELEMENT: _Fields = {
    **dict.fromkeys((1, 2, 6, 7, 8, 9), _I32),
    3: ("repetition", _I32, None),
    4: _BINARY,
    5: ("children", _I32, None),
    10: _STRUCT,
}
_FILE: _Fields = {
    1: _I32,
    2: ("schema", _LIST, _ELEMENT),
    3: ("rows", _I64, None),
    4: ("groups", _LIST, _GROUP),
    5: (None, _LIST, _STRUCT),
    6: _BINARY,
    7: (None, _LIST, _STRUCT),
    8: None,
    9: None,
}
_PAGE: _Fields = {
    1: ("type", _I32, None),
    2: ("plain", _I32, None),
    3: ("stored", _I32, None),
    4: _I32,
    **dict.fromkeys((5, 6, 7, 8), _STRUCT),
}
_OPTIONAL = {"children", "dictionary", "repetition"}


def check_size(file: BinaryIO) -> int:
    """Return the size of a Parquet file, whose footer and pages' headers are read more strictly than Arrow reads them.

    Arrow ends the process at some, and takes of a field that comes twice, or of another type, what
    others do not. A ValueError if it claims more than a file of its size has, or says anything in a
    way that no writer of ours would.
    """
    size = file.seek(0, os.SEEK_END)
    n_tail = len(_MAGIC) + 4
    require(size >= n_tail + len(_MAGIC), f"{size} bytes are too few for a Parquet file")
    file.seek(size - n_tail)
    tail = file.read(n_tail)
    n_footer = int.from_bytes(tail[:4], "little")
    end_of_rows = size - n_footer - n_tail
    is_whole = (
        tail[4:] == _MAGIC
        and len(_MAGIC) <= end_of_rows < size - n_tail
        and n_footer <= _LARGEST_FOOTER
    )
    require(is_whole, "it is not a complete Parquet file")
    file.seek(end_of_rows)
    reader = _Thrift(file.read(n_footer), "its footer")
    footer = reader.struct(_FILE)
    require(reader.at == n_footer, "its footer is longer than declared")
    chunks, n_rows, n_columns = _column_chunks(footer)
    check_rows(n_rows, n_columns, size)
    n_stored = sum(chunk["stored"] for chunk in chunks)
    most = max(_SMALL_PAGES, _LARGEST_RATIO * size)
    require(n_stored <= size, f"its columns claim {n_stored} of its {size} bytes")
    require(
        size <= 2 * (n_stored + n_footer) + _LARGEST_FOOTER,
        f"of its {size} bytes {n_stored} hold columns",
    )
    larger = "claim to be larger than a file of its size has them"
    require(sum(chunk["plain"] for chunk in chunks) <= most, f"its columns {larger}")
    if n_stored * _LARGEST_EXPANSION > _SMALL_PAGES:  # else it does not matter what is in its pages
        sizes = (n_page for chunk in chunks for n_page in _page_sizes(file, chunk, end_of_rows))
        require(all(n_bytes <= most for n_bytes in accumulate(sizes)), f"its pages {larger}")
    file.seek(0)
    return size


def check_rows(n_rows: int, n_columns: int, n_file: int) -> None:
    """Refuse a table that is larger than a file of that size has."""
    is_possible = n_rows * n_columns * _BYTES_PER_VALUE <= max(_SMALL_ROWS, _LARGEST_RATIO * n_file)
    require(
        is_possible,
        f"{n_rows} rows of {n_columns} columns are more than a file of {n_file} bytes has",
    )


def _column_chunks(footer: _Struct) -> tuple[list[_Struct], int, int]:
    root, *columns = footer["schema"] or [{}]
    is_plain = all("children" not in one and one.get("repetition") != _REPEATED for one in columns)
    require(is_plain and root.get("children") == len(columns), "its columns are no plain ones")
    n_rows = sum(group["rows"] for group in footer["groups"])
    require(n_rows == footer["rows"], "its numbers of rows contradict each other")
    chunks: list[_Struct] = []
    for group in footer["groups"]:
        found = [column["data"] for column in group["columns"]]
        is_whole = len(found) == len(columns) and all(
            chunk["values"] == group["rows"] for chunk in found
        )
        require(is_whole, "its numbers of columns contradict each other")
        chunks += found
    require(
        all(chunk["codec"] in _CODECS for chunk in chunks),
        "its columns are compressed as none of ours is",
    )
    return chunks, n_rows, len(columns)


def _page_sizes(file: BinaryIO, chunk: _Struct, end_of_rows: int) -> Iterator[int]:
    """Yield what each page of a column becomes when it is decompressed, as its header says."""
    at = chunk.get("dictionary") or chunk["pages"]
    end = at + chunk["stored"]
    require(
        len(_MAGIC) <= at <= chunk["pages"] < end <= end_of_rows,
        "a column of it does not lie in it",
    )
    for _ in range(_MOST_PAGES):
        if at == end:
            return
        file.seek(at)
        reader = _Thrift(file.read(min(_LARGEST_HEADER, end - at)), "a page's header")
        header = reader.struct(_PAGE)
        yield header["plain"]
        at += reader.at + header["stored"]
        require(at <= end and header["type"] in _PAGES, "a page of it does not lie in its column")
    raise ValueError("a column of it claims too many pages")


class _Thrift:
    """Structs in Thrift's compact protocol: each field once, in order, of its type, within its width, or none at all."""

    def __init__(self, content: bytes, place: str) -> None:
        self.content = content
        self.place = place
        self.at = 0
        self.n_values = 0

    def struct(self, fields: _Fields, depth: int = 0) -> _Struct:
        """Return the fields of the struct at `at` that have names, by name; `at` is then behind it."""
        if depth > _DEEPEST:
            raise self._fault("is nested too deeply")
        found: _Struct = {}
        number = 0
        while head := self._byte():
            step = head >> 4
            kind = head & 15
            number += step
            if not step or number > _MOST_FIELDS:
                raise self._fault("has fields that are out of order")
            field = fields.get(number, kind)
            if field is None:
                raise self._fault("refers to encryption or to other files")
            name, wanted, inner = field if isinstance(field, tuple) else (None, field, None)
            if kind != wanted:
                raise self._fault("has a part of another type")
            value = self._value(kind, inner, depth + 1)
            if name is not None:
                found[name] = value
        if fields:
            self._check_named(fields, found)
        return found

    def _check_named(self, fields: _Fields, found: _Struct) -> None:
        """Refuse a struct that lacks a named field, or has a negative number."""
        if any(isinstance(value, int) and value < 0 for value in found.values()):
            raise self._fault("has a negative size")
        for field in fields.values():
            name = field[0] if isinstance(field, tuple) else None
            if name is not None and name not in found and name not in _OPTIONAL:
                raise self._fault("lacks a part")

    def _value(self, kind: int, inner: int | _Fields | None, depth: int) -> Any:  # noqa: ANN401 - what the kind says
        """Return a value of this kind: the most frequent kinds come first, as a store has thousands of values."""
        self.n_values += 1
        if self.n_values > _MOST_VALUES:
            raise self._fault("has too many parts")
        if kind in _N_BITS:
            value = self._varint(_N_BITS[kind])
            return (value >> 1) ^ -(value & 1)
        if kind in (_DOUBLE, _BINARY):
            n_bytes = 8 if kind == _DOUBLE else self._varint(31)
            self.at += n_bytes
            if self.at > len(self.content):
                raise self._fault("ends too early")
            return None
        if kind == _STRUCT:
            return self.struct(inner if isinstance(inner, dict) else {}, depth)
        if kind == _LIST:
            return self._list(inner, depth)
        if kind == _BYTE:
            return self._byte()
        if kind in (_TRUE, _FALSE):
            return kind == _TRUE
        raise self._fault("is none of ours")

    def _list(self, inner: int | _Fields | None, depth: int) -> list[Any]:
        head = self._byte()
        n_values = head >> 4
        kind = head & 15
        if n_values == _LONG_LIST:
            n_values = self._varint(31)
        if n_values > len(self.content) - self.at:  # a byte each at least
            raise self._fault("has a list that is longer than it")
        wanted = _STRUCT if isinstance(inner, dict) else kind if inner is None else inner
        if kind != wanted:
            raise self._fault("has a list of another type")
        kind = _BYTE if kind in (_TRUE, _FALSE) else kind  # in a list a byte each
        return [self._value(kind, inner, depth + 1) for _ in range(n_values)]

    def _byte(self) -> int:
        at = self.at
        if at >= len(self.content):
            raise self._fault("ends too early")
        self.at = at + 1
        return self.content[at]

    def _varint(self, n_bits: int) -> int:
        value = 0
        for shift in range(0, n_bits + 1, 7):
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128 and not value >> n_bits:  # noqa: PLR2004 - seven bits a byte
                return value
        raise self._fault("has a number that is too large")

    def _fault(self, problem: str) -> ValueError:
        return ValueError(f"{self.place} {problem}")


def as_plain_text(column: pa.ChunkedArray, n_file: int, *, may_be_shared: bool) -> pa.ChunkedArray:
    """Return texts that were read as a dictionary as they are; a ValueError if no UTF-8, or more than such a file has.

    Where long texts may stand in many rows, as the ranks of a communicator of thousands do, rows
    share their memory.
    """
    column.validate(full=True)
    lengths = [pc.binary_length(chunk.dictionary).take(chunk.indices) for chunk in column.chunks]
    n_bytes = sum(pc.sum(length).as_py() or 0 for length in lengths)
    most = max(_SMALL_ROWS, _LARGEST_RATIO * n_file)
    if n_bytes <= most:
        return column.cast(pa.string())
    n_shared = sum(chunk.dictionary.nbytes for chunk in column.chunks)
    is_possible = (
        may_be_shared
        and n_shared <= most
        and n_bytes <= _MOST_SHARED
        and len(column) <= _MOST_SHARING
    )
    require(is_possible, f"{n_bytes} bytes of text are more than a file of {n_file} bytes has")
    rows = ((chunk.dictionary, at) for chunk in column.chunks for at in chunk.indices.to_pylist())
    shared = [pa.nulls(1, pa.string()) if at is None else texts.slice(at, 1) for texts, at in rows]
    return pa.chunked_array(shared, pa.string())
