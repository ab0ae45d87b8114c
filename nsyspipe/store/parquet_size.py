"""Whether a Parquet file can be as large, once it is read, as it says: told from its footer, before anything is read.

A few bytes can stand for as many rows as somebody likes. What a file of ours becomes in memory is at most
some dozens of its own size; here a file may become `_SMALL_BYTES`, or `_LARGEST_RATIO` times its size.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["as_plain_text", "check_size"]

_MAGIC = b"PAR1"
_LARGEST_FOOTER = 64 * 2**20
_SMALL_BYTES = 512 * 2**20
_LARGEST_RATIO = 200
_BYTES_PER_VALUE = 8
# Zstandard makes at most about this many bytes of one.
_LARGEST_EXPANSION = 40_000


def check_size(file: BinaryIO) -> int:
    """Return the size of a Parquet file.

    Raises
    ------
    ValueError
        If it is none, or claims more rows, larger columns or larger pages than a file of its size has.
    pa.ArrowException
        If its footer cannot be read.
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
    footer = file.read(n_footer) + tail
    _check_footer(pq.read_metadata(pa.BufferReader(_MAGIC + footer)), size, n_footer, file)
    file.seek(0)
    return size


def _check_footer(found: pq.FileMetaData, size: int, n_footer: int, file: BinaryIO) -> None:
    most = max(_SMALL_BYTES, _LARGEST_RATIO * size)
    n_columns = found.num_columns
    groups = [found.row_group(at) for at in range(found.num_row_groups)]
    n_rows = sum(max(group.num_rows, 0) for group in groups)
    if n_rows != found.num_rows or any(group.num_rows < 0 for group in groups):
        raise ValueError("its numbers of rows contradict each other")
    if n_rows * n_columns * _BYTES_PER_VALUE > most:
        raise ValueError(
            f"{n_rows} rows of {n_columns} columns are more than a file of {size} bytes has"
        )
    chunks = [group.column(at) for group in groups for at in range(n_columns)]
    n_stored = sum(max(chunk.total_compressed_size, 0) for chunk in chunks)
    if n_stored > size or any(chunk.total_compressed_size < 0 for chunk in chunks):
        raise ValueError(f"its columns claim {n_stored} of its {size} bytes")
    if size > 2 * (n_stored + n_footer) + _LARGEST_FOOTER:
        raise ValueError(f"of its {size} bytes {n_stored} hold columns")
    if sum(max(chunk.total_uncompressed_size, 0) for chunk in chunks) > most:
        raise ValueError("its columns claim to be larger than a file of its size has them")
    if n_stored * _LARGEST_EXPANSION <= _SMALL_BYTES:  # whatever is in its pages
        return
    n_bytes = 0
    for chunk in chunks:
        for n_page in _page_sizes(file, chunk):
            n_bytes += n_page
            if n_bytes > most:
                raise ValueError("its pages claim to be larger than a file of its size has them")


def _page_sizes(file: BinaryIO, chunk: pq.ColumnChunkMetaData) -> Iterator[int]:
    """Yield what each page of a column becomes when it is decompressed, as its header says."""
    starts = [chunk.data_page_offset]
    if chunk.has_dictionary_page and chunk.dictionary_page_offset:
        starts.append(chunk.dictionary_page_offset)
    at, end = min(starts), min(starts) + chunk.total_compressed_size
    for _ in range(_MOST_PAGES):
        if at >= end:
            return
        try:
            header = _header_at(file, at, min(_USUAL_HEADER, end - at))
        except ValueError:
            header = _header_at(file, at, min(_LARGEST_HEADER, end - at))
        n_page, n_stored = header.found.get(2, -1), header.found.get(3, -1)
        if n_page < 0 or n_stored < 0:
            raise ValueError("a page of it has no size")
        yield n_page
        at += header.at + n_stored
    raise ValueError("a column of it claims too many pages")


def _header_at(file: BinaryIO, at: int, n_bytes: int) -> _Header:
    file.seek(at)
    return _Header(file.read(n_bytes))


# Of a column in a row group of a million rows there are some dozens.
_MOST_PAGES = 10_000
_USUAL_HEADER, _LARGEST_HEADER = 512, 1 << 16  # statistics of long texts stand in it
_STOP, _TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = 0, 1, 2, 3, 7, 8, 9, 10, 11, 12  # fmt: skip
_DEEPEST = 8


class _Header:
    """A page's header, in Thrift's compact protocol: only its own integers are wanted, the rest is passed over."""

    def __init__(self, content: bytes) -> None:
        self.content, self.at = content, 0
        self.found = self._integers()  # `at` is then behind it

    def _integers(self) -> dict[int, int]:
        """Return the integer fields of the outermost struct, by id."""
        found: dict[int, int] = {}
        field = 0
        while (head := self._byte()) != _STOP:
            kind = head & 15
            field = field + (head >> 4) if head >> 4 else self._zigzag()
            if _BYTE < kind < _DOUBLE:
                found[field] = self._zigzag()
            else:
                self._skip(kind, 1)
        return found

    def _byte(self) -> int:
        if self.at >= len(self.content):
            raise ValueError("a page of it has no header")
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

    def _skip(self, kind: int, depth: int) -> None:
        if depth > _DEEPEST:
            raise ValueError("a page of it has a header that is nested too deeply")
        if kind in (_TRUE, _FALSE):
            return
        if kind == _BYTE:
            self.at += 1
        elif kind < _DOUBLE:
            self._varint()
        elif kind == _DOUBLE:
            self.at += 8
        elif kind == _BINARY:
            n_bytes = self._varint()
            self.at += n_bytes
        elif kind == _STRUCT:
            while (head := self._byte()) != _STOP:
                if not head >> 4:
                    self._zigzag()
                self._skip(head & 15, depth + 1)
        else:
            raise ValueError("a page of it has no header of ours")


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
