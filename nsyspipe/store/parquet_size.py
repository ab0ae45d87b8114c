"""Whether a Parquet file can be as large, once it is read, as it says: told from its footer, before anything is read.

A few bytes can stand for as many rows as somebody likes. What a file of ours becomes in memory is at most
some dozens of its own size; here a file may become `_SMALL_BYTES`, or `_LARGEST_RATIO` times its size.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Iterator

    _Struct = dict[int, Any]


_MAGIC = b"PAR1"
_LARGEST_FOOTER = 64 * 2**20
_SMALL_BYTES = 512 * 2**20
_LARGEST_RATIO = 200
_BYTES_PER_VALUE = 8
# Zstandard makes at most about this many bytes of one.
_LARGEST_EXPANSION = 40_000


def check_size(file: BinaryIO) -> int:
    """Return the size of a Parquet file.

    Its footer is looked at here, and not by Arrow, which ends the process at some that contradict themselves.

    Raises
    ------
    ValueError
        If it is none, or claims more rows, larger columns or larger pages than a file of its size has.
    OSError
        If it cannot be read.
    """
    size = os.fstat(file.fileno()).st_size
    n_tail = len(_MAGIC) + 4
    if size < n_tail + len(_MAGIC):
        raise ValueError(f"{size} bytes are no Parquet file")
    file.seek(size - n_tail)
    tail = file.read(n_tail)
    n_footer = int.from_bytes(tail[:4], "little")
    if tail[4:] != _MAGIC or not 0 < n_footer <= min(size - n_tail - len(_MAGIC), _LARGEST_FOOTER):
        raise ValueError("it is no Parquet file, or its end is missing")
    file.seek(size - n_tail - n_footer)
    footer = _Thrift(file.read(n_footer), "its footer").struct()
    _check_footer(footer, size, n_footer, file)
    file.seek(0)
    return size


def _check_footer(footer: _Struct, size: int, n_footer: int, file: BinaryIO) -> None:
    most = max(_SMALL_BYTES, _LARGEST_RATIO * size)
    chunks, n_rows, n_columns = _column_chunks(footer)
    if n_rows * n_columns * _BYTES_PER_VALUE > most:
        raise ValueError(
            f"{n_rows} rows of {n_columns} columns are more than a file of {size} bytes has"
        )
    n_stored = sum(_size(chunk, 7) for chunk in chunks)
    if n_stored > size:
        raise ValueError(f"its columns claim {n_stored} of its {size} bytes")
    if size > 2 * (n_stored + n_footer) + _LARGEST_FOOTER:
        raise ValueError(f"of its {size} bytes {n_stored} hold columns")
    if sum(_size(chunk, 6) for chunk in chunks) > most:
        raise ValueError("its columns claim to be larger than a file of its size has them")
    if n_stored * _LARGEST_EXPANSION <= _SMALL_BYTES:  # whatever is in its pages
        return
    n_bytes = 0
    for chunk in chunks:
        for n_page in _page_sizes(file, chunk):
            n_bytes += n_page
            if n_bytes > most:
                raise ValueError("its pages claim to be larger than a file of its size has them")


def _column_chunks(footer: _Struct) -> tuple[list[_Struct], int, int]:
    """Return what the footer says of each column of each row group, and the numbers of rows and of columns."""
    groups = _structs(footer, 4)
    n_columns = sum(_N_CHILDREN not in element for element in _structs(footer, 2))
    n_rows = sum(_size(group, 3) for group in groups)
    if n_rows != _size(footer, 3):
        raise ValueError("its numbers of rows contradict each other")
    columns = [_structs(group, 1) for group in groups]
    if any(len(of_group) != n_columns for of_group in columns):
        raise ValueError("its numbers of columns contradict each other")
    if any({1, 8, 9} & column.keys() for of_group in columns for column in of_group):
        raise ValueError("columns of it are encrypted or in other files")
    return [_struct(column, 3) for of_group in columns for column in of_group], n_rows, n_columns


def _page_sizes(file: BinaryIO, chunk: _Struct) -> Iterator[int]:
    """Yield what each page of a column becomes when it is decompressed, as its header says."""
    starts = [_size(chunk, 9)]
    if chunk.get(11):
        starts.append(_size(chunk, 11))
    at, end = min(starts), min(starts) + _size(chunk, 7)
    for _ in range(_MOST_PAGES):
        if at >= end:
            return
        try:
            header, n_header = _header_at(file, at, min(_USUAL_HEADER, end - at))
        except ValueError:
            header, n_header = _header_at(file, at, min(_LARGEST_HEADER, end - at))
        yield _size(header, 2)
        at += n_header + _size(header, 3)
    raise ValueError("a column of it claims too many pages")


def _header_at(file: BinaryIO, at: int, n_bytes: int) -> tuple[_Struct, int]:
    file.seek(at)
    header = _Thrift(file.read(n_bytes), "a page's header")
    return header.struct(), header.at


# Of a column in a row group of a million rows there are some dozens.
_MOST_PAGES = 10_000
_USUAL_HEADER, _LARGEST_HEADER = 512, 1 << 16  # statistics of long texts stand in it
_STOP, _TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = 0, 1, 2, 3, 7, 8, 9, 10, 11, 12  # fmt: skip
_DEEPEST = 8
_LONG_LIST = 15
_N_CHILDREN = 5  # field of an element of the schema: a leaf has none


def _size(struct: _Struct, field: int) -> int:
    value = struct.get(field)
    if not isinstance(value, int) or value < 0:
        raise ValueError("a size in it is missing or negative")
    return value


def _struct(struct: _Struct, field: int) -> _Struct:
    value = struct.get(field)
    if not isinstance(value, dict):
        raise ValueError("a part of its footer is missing")  # noqa: TRY004 - of the file's content
    return value


def _structs(struct: _Struct, field: int) -> list[_Struct]:
    value = struct.get(field)
    if not isinstance(value, list) or not all(isinstance(part, dict) for part in value):
        raise ValueError("a part of its footer is missing")
    return value


class _Thrift:
    """What Thrift's compact protocol wrote, by number of field: integers, structs, lists; of texts the length alone."""

    def __init__(self, content: bytes, place: str) -> None:
        self.content, self.place, self.at = content, place, 0

    def struct(self, depth: int = 0) -> _Struct:
        """Return the struct at `at`, which is then behind it."""
        found: _Struct = {}
        field = 0
        while (head := self._byte()) != _STOP:
            field = field + (head >> 4) if head >> 4 else self._zigzag()
            found[field] = self._value(head & 15, depth + 1)
        return found

    def _value(self, kind: int, depth: int) -> Any:  # noqa: ANN401 - what the kind says
        if depth > _DEEPEST:
            raise ValueError(f"{self.place} is nested too deeply")
        if kind in (_TRUE, _FALSE):
            return kind == _TRUE
        if kind == _BYTE:
            return self._byte()
        if kind < _DOUBLE:
            return self._zigzag()
        if kind in (_DOUBLE, _BINARY):
            n_bytes = 8 if kind == _DOUBLE else self._varint()
            self.at += n_bytes
            return None
        if kind == _STRUCT:
            return self.struct(depth)
        if kind in (_LIST, _SET):
            return self._list(depth)
        raise ValueError(f"{self.place} is none of ours")

    def _list(self, depth: int) -> list[Any]:
        head = self._byte()
        n_values = head >> 4
        if n_values == _LONG_LIST:
            n_values = self._varint()
        if n_values > len(self.content) - self.at:  # each has a byte at least
            raise ValueError(f"{self.place} has a list that is longer than it")
        kind = head & 15
        if kind in (_TRUE, _FALSE):  # in a list a byte each
            kind = _BYTE
        return [self._value(kind, depth + 1) for _ in range(n_values)]

    def _byte(self) -> int:
        if self.at >= len(self.content):
            raise ValueError(f"{self.place} ends too early")
        self.at += 1
        return self.content[self.at - 1]

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128 or shift > 70:  # noqa: PLR2004 - seven bits a byte
                return value

    def _zigzag(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)


def as_plain_text(column: pa.ChunkedArray, n_file: int) -> pa.ChunkedArray:
    """Return texts that were read as a dictionary as they are.

    Parameters
    ----------
    n_file
        Size of the file.

    Raises
    ------
    ValueError
        If they are no UTF-8, or one long text many times over: more than a file of that size has.
    """
    column.validate(full=True)
    n_bytes = 0
    for chunk in column.chunks:
        lengths = pc.binary_length(chunk.dictionary).take(chunk.indices)
        n_bytes += pc.sum(lengths).as_py() or 0
    if n_bytes > max(_SMALL_BYTES, _LARGEST_RATIO * n_file):
        raise ValueError(f"{n_bytes} bytes of text are more than a file of {n_file} bytes has")
    return column.cast(pa.string())
