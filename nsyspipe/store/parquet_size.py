"""Checks the footer of a Parquet file before it is read, so that a small file cannot fill memory.

A tiny file can claim any number of rows (a decompression bomb). In memory, a file of nsyspipe takes
at most some dozens of times its size. Here its rows may take `_MAX_ROWS_BYTES`, or `_MAX_RATIO`
times its size if that is more.
"""

import os
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO, NamedTuple, Self

import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.errors import require

_Struct = dict[str, Any]
_Fields = Mapping[int, Any]

_MAGIC = b"PAR1"
# A file ends with the size of its footer in 4 bytes, and the magic bytes.
_TAIL_BYTES = 4 + len(_MAGIC)
_MAX_FOOTER_BYTES = 64 * 2**20
# A file may always take so much in memory, whatever its own size. Rows are grouped and compared
# after they are read, which takes several times their size. This does not hold for pages.
_MAX_ROWS_BYTES = 64 * 2**20
_MAX_PAGES_BYTES = 512 * 2**20
_MAX_RATIO = 200
_BYTES_PER_VALUE = 8
# Texts that rows share take so much only if they are written out, as in a document.
_MAX_SHARED_TEXT_BYTES = 2**30
_MAX_ROWS_WITH_SHARED_TEXT = 100_000
# About so many bytes can Zstandard make of one. Brotli makes many more, and is refused.
_MAX_EXPANSION = 40_000
# None, Snappy, gzip, LZ4, Zstandard, raw LZ4.
_CODECS = (0, 1, 2, 5, 6, 7)
# A column of a row group of a million rows has some dozens.
_MAX_PAGES_PER_CHUNK = 10_000
# Statistics of long texts are part of a header.
_MAX_HEADER_BYTES = 1 << 16
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)
_N_BITS = {_I16: 16, _I32: 32, _I64: 64}
_MAX_DEPTH = 8
# In place of the length of a list: the length follows as a number of its own.
_LONG_LIST = 15
_MAX_FIELD_NUMBER = 32
# A file has some dozens of values for each column of a million rows. Many more would take long.
_MAX_VALUES = 400_000
_REPEATED = 2
# Data, dictionary, data of version 2.
_PAGE_TYPES = (0, 2, 3)

# Fields of structs by number. A field is a kind, or a name by which its value is returned, its
# kind, and the fields of a struct or the contents of a list. None is a field of encryption or of
# other files, which is refused. Fields that are not listed may be of any kind.
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
    """Return the size of a Parquet file; a ValueError if it is not like a file of nsyspipe.

    A file is refused if it claims more than a file of its size can hold. It is also refused if its
    footer or a page header is not as our writers write it. Arrow is less strict: some of these
    files end the process, and others are read in another way than by other programs.
    """
    size = file.seek(0, os.SEEK_END)
    n_footer_bytes = _footer_size(file, size)
    end_of_rows = size - n_footer_bytes - _TAIL_BYTES
    file.seek(end_of_rows)
    reader = _Thrift(file.read(n_footer_bytes), "its footer")
    footer = reader.struct(_FILE)
    require(reader.position == n_footer_bytes, "its footer is longer than declared")
    columns = _Columns.of_footer(footer)
    check_rows(columns.n_rows, columns.n_columns, size)
    _check_chunk_sizes(file, columns.chunks, size, end_of_rows)
    file.seek(0)
    return size


def _footer_size(file: BinaryIO, size: int) -> int:
    """Return the size of a file's footer in bytes, which stands in the tail behind the footer.

    A ValueError is raised if the tail is not that of a Parquet file.
    """
    min_size = _TAIL_BYTES + len(_MAGIC)
    require(size >= min_size, f"{size} bytes are too few for a Parquet file")
    footer_end = size - _TAIL_BYTES
    file.seek(footer_end)
    tail = file.read(_TAIL_BYTES)
    n_footer_bytes = int.from_bytes(tail[:4], "little")
    has_magic = tail[4:] == _MAGIC
    # The file begins with magic bytes too, and the footer is not empty.
    footer_start = footer_end - n_footer_bytes
    is_inside = len(_MAGIC) <= footer_start < footer_end
    is_complete = has_magic and is_inside and n_footer_bytes <= _MAX_FOOTER_BYTES
    require(is_complete, "it is not a complete Parquet file")
    return n_footer_bytes


def _check_chunk_sizes(file: BinaryIO, chunks: list[_Struct], size: int, end_of_rows: int) -> None:
    """Raise a ValueError if columns claim more than their file has, or than may be in memory.

    The footer claims sizes of columns, and the header of each page claims the size of the page.
    Headers are only read if the pages of a file of this size can become too large.
    """
    n_footer_bytes = size - end_of_rows - _TAIL_BYTES
    n_stored_bytes = sum(chunk["stored"] for chunk in chunks)
    n_plain_bytes = sum(chunk["plain"] for chunk in chunks)
    max_plain_bytes = max(_MAX_PAGES_BYTES, _MAX_RATIO * size)
    require(n_stored_bytes <= size, f"its columns claim {n_stored_bytes} of its {size} bytes")
    # The limits grow with the size of a file. So bytes that nobody reads must not make it large.
    n_used_bytes = n_stored_bytes + n_footer_bytes
    is_mostly_used = size <= 2 * n_used_bytes + _MAX_FOOTER_BYTES
    require(is_mostly_used, f"of its {size} bytes {n_stored_bytes} hold columns")
    problem = "claim to be larger than a file of its size has them"
    require(n_plain_bytes <= max_plain_bytes, f"its columns {problem}")
    max_possible_bytes = n_stored_bytes * _MAX_EXPANSION
    if max_possible_bytes <= _MAX_PAGES_BYTES:
        # The pages cannot become too large, whatever their headers claim.
        return
    n_bytes_so_far = 0
    for chunk in chunks:
        for n_page_bytes in _page_sizes(file, chunk, end_of_rows):
            n_bytes_so_far += n_page_bytes
            if n_bytes_so_far > max_plain_bytes:
                raise ValueError(f"its pages {problem}")


def check_rows(n_rows: int, n_columns: int, n_file_bytes: int) -> None:
    """Raise a ValueError if a table is larger than a file of that size can hold."""
    n_bytes = n_rows * n_columns * _BYTES_PER_VALUE
    max_bytes = max(_MAX_ROWS_BYTES, _MAX_RATIO * n_file_bytes)
    table = f"{n_rows} rows of {n_columns} columns"
    require(n_bytes <= max_bytes, f"{table} are more than a file of {n_file_bytes} bytes has")


class _Columns(NamedTuple):
    """What the footer of a file declares: a chunk per column and row group."""

    chunks: list[_Struct]
    n_rows: int
    n_columns: int

    @classmethod
    def of_footer(cls, footer: _Struct) -> Self:
        """Return the columns of a footer; a ValueError if they are nested or contradictory."""
        # The first element of a schema is a root, which has all columns as its children. In a flat
        # schema no column has children itself. Without elements, the file is refused below.
        root, *columns = footer["schema"] or [{}]
        n_columns = len(columns)
        has_nested_columns = any("children" in column for column in columns)
        has_lists = any(column.get("repetition") == _REPEATED for column in columns)
        is_flat = not has_nested_columns and not has_lists
        is_plain = is_flat and root.get("children") == n_columns
        require(is_plain, "its columns are no plain ones")
        n_rows = sum(group["rows"] for group in footer["groups"])
        require(n_rows == footer["rows"], "its numbers of rows contradict each other")
        chunks: list[_Struct] = []
        for group in footer["groups"]:
            chunks += _chunks_of_group(group, n_columns)
        has_our_codecs = all(chunk["codec"] in _CODECS for chunk in chunks)
        require(has_our_codecs, "its columns are compressed as none of ours is")
        return cls(chunks, n_rows, n_columns)


def _chunks_of_group(group: _Struct, n_columns: int) -> list[_Struct]:
    """Return the chunks of a row group; a ValueError if columns or rows are missing."""
    chunks: list[_Struct] = [column["data"] for column in group["columns"]]
    n_rows = group["rows"]
    has_all_rows = all(chunk["values"] == n_rows for chunk in chunks)
    is_whole = has_all_rows and len(chunks) == n_columns
    require(is_whole, "its numbers of columns contradict each other")
    return chunks


def _page_sizes(file: BinaryIO, chunk: _Struct, end_of_rows: int) -> Iterator[int]:
    """Yield the decompressed size of each page of a column chunk, as the page's header declares."""
    first_data_page = chunk["pages"]
    # A dictionary comes before the data. Its position is missing or 0 if there is none.
    position = chunk.get("dictionary") or first_data_page
    end = position + chunk["stored"]
    is_chunk_inside = len(_MAGIC) <= position <= first_data_page < end <= end_of_rows
    require(is_chunk_inside, "a column of it does not lie in it")
    for _ in range(_MAX_PAGES_PER_CHUNK):
        if position == end:
            return
        file.seek(position)
        n_bytes = min(_MAX_HEADER_BYTES, end - position)
        reader = _Thrift(file.read(n_bytes), "a page's header")
        header = reader.struct(_PAGE)
        yield header["plain"]
        # The next page follows the header and the stored bytes of this page.
        position += reader.position + header["stored"]
        is_page_inside = position <= end and header["type"] in _PAGE_TYPES
        require(is_page_inside, "a page of it does not lie in its column")
    raise ValueError("a column of it claims too many pages")


class _Thrift:
    """A strict reader of structs in Thrift's compact protocol.

    Each field has to come once, in order, of its type and within its width. Otherwise a ValueError
    is raised.
    """

    def __init__(self, content: bytes, place: str) -> None:
        self.content = content
        # What is read, for messages.
        self.place = place
        # The offset of the next byte.
        self.position = 0
        self.n_values = 0

    def struct(self, fields: _Fields, depth: int = 0) -> _Struct:
        """Read the struct at `position`, and return its named fields by name.

        `fields` has the fields of the struct by number, as the constants of this module do.
        """
        if depth > _MAX_DEPTH:
            raise self._fault("is nested too deeply")
        named_values: _Struct = {}
        number = 0
        while True:
            head = self._byte()
            # A zero byte ends a struct.
            if not head:
                break
            # A field begins with a byte: how much higher its number is than that of the field
            # before it, in the upper 4 bits, and its kind in the lower 4 bits.
            number_step = head >> 4
            kind = head & 15
            number += number_step
            if not number_step or number > _MAX_FIELD_NUMBER:
                raise self._fault("has fields that are out of order")
            # A field that is not listed may be of any kind.
            field = fields.get(number, kind)
            if field is None:
                raise self._fault("refers to encryption or to other files")
            # A field that is only a kind is read, but has no name to be returned by.
            name_kind_inner = field if isinstance(field, tuple) else (None, field, None)
            name, needed_kind, inner = name_kind_inner
            if kind != needed_kind:
                raise self._fault("has a part of another type")
            value = self._value(kind, inner, depth + 1)
            if name is not None:
                named_values[name] = value
        if fields:
            self._check_named(fields, named_values)
        return named_values

    def _check_named(self, fields: _Fields, named_values: _Struct) -> None:
        """Raise a ValueError if a struct lacks a named field, or has a negative number."""
        numbers = [value for value in named_values.values() if isinstance(value, int)]
        if min(numbers, default=0) < 0:
            raise self._fault("has a negative size")
        for field in fields.values():
            name = field[0] if isinstance(field, tuple) else None
            is_needed = name is not None and name not in _OPTIONAL
            if is_needed and name not in named_values:
                raise self._fault("lacks a part")

    def _value(
        self,
        kind: int,
        inner: int | _Fields | None,
        depth: int,
    ) -> Any:  # noqa: ANN401 - by kind
        """Read a value of a kind. Floating-point numbers and texts are skipped, and are None.

        `inner` has the fields of a struct, or what a list contains. None if any contents are fine.
        """
        # A store has thousands of values, so the most frequent kinds come first.
        self.n_values += 1
        if self.n_values > _MAX_VALUES:
            raise self._fault("has too many parts")
        if kind in _N_BITS:
            # Zigzag: the numbers 0, 1, 2, 3, 4 stand for 0, -1, 1, -2, 2.
            zigzag = self._varint(_N_BITS[kind])
            is_negative = zigzag & 1
            return (zigzag >> 1) ^ -is_negative
        if kind in (_DOUBLE, _BINARY):
            # The length of a text stands before it.
            n_bytes = 8 if kind == _DOUBLE else self._varint(31)
            self.position += n_bytes
            if self.position > len(self.content):
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
        """Read a list. `inner` is the kind of its values, or the fields of its structs.

        None if values of any kind are fine.
        """
        # The length is in the upper 4 bits of the first byte, and the kind in the lower 4 bits.
        head = self._byte()
        n_values = head >> 4
        kind = head & 15
        if n_values == _LONG_LIST:
            n_values = self._varint(31)
        # Each value takes at least one byte.
        if n_values > len(self.content) - self.position:
            raise self._fault("has a list that is longer than it")
        needed_kind = _STRUCT if isinstance(inner, dict) else inner
        if needed_kind is not None and kind != needed_kind:
            raise self._fault("has a list of another type")
        # In a field, a truth value is a kind. In a list, it is a byte.
        kind_of_values = _BYTE if kind in (_TRUE, _FALSE) else kind
        return [self._value(kind_of_values, inner, depth + 1) for _ in range(n_values)]

    def _byte(self) -> int:
        """Read a byte as a number."""
        position = self.position
        if position >= len(self.content):
            raise self._fault("ends too early")
        self.position = position + 1
        return self.content[position]

    def _varint(self, n_bits: int) -> int:
        """Read a number of at most so many bits, which stands in as many bytes as it needs.

        Each byte has 7 bits of the number. The lowest bits of the number are in the first byte. The
        eighth bit of a byte tells whether another byte follows.
        """
        # Most of a footer are such numbers, so bytes are read here and not by another function.
        content = self.content
        position = self.position
        value = 0
        for shift in range(0, n_bits, 7):
            if position >= len(content):
                raise self._fault("ends too early")
            byte = content[position]
            position += 1
            value |= (byte & 127) << shift
            is_last_byte = byte < 128  # noqa: PLR2004 - the eighth bit is 0
            if is_last_byte:
                has_more_bits = value >> n_bits > 0
                if has_more_bits:
                    break
                self.position = position
                return value
        raise self._fault("has a number that is too large")

    def _fault(self, problem: str) -> ValueError:
        return ValueError(f"{self.place} {problem}")


def as_plain_text(
    column: pa.ChunkedArray, n_file_bytes: int, *, may_be_shared: bool
) -> pa.ChunkedArray:
    """Return texts that were read as a dictionary as plain texts.

    With `may_be_shared`, equal texts share their memory if they would take too much of it. Such a
    text is the list of thousands of ranks of a communicator, which stands in many rows. A
    ValueError is raised for texts that are not UTF-8, and for more text than a file of that size
    can hold.
    """
    # This raises the error for texts that are not UTF-8.
    column.validate(full=True)
    n_written_out_bytes = sum(map(_n_text_bytes, column.chunks))
    max_bytes = max(_MAX_ROWS_BYTES, _MAX_RATIO * n_file_bytes)
    if n_written_out_bytes <= max_bytes:
        return column.cast(pa.string())
    n_distinct_bytes = sum(chunk.dictionary.nbytes for chunk in column.chunks)
    has_few_texts = n_distinct_bytes <= max_bytes and n_written_out_bytes <= _MAX_SHARED_TEXT_BYTES
    has_few_rows = len(column) <= _MAX_ROWS_WITH_SHARED_TEXT
    can_be_shared = may_be_shared and has_few_texts and has_few_rows
    words = f"{n_written_out_bytes} bytes of text"
    require(can_be_shared, f"{words} are more than a file of {n_file_bytes} bytes has")
    # One array per row, each a slice of the dictionary, which copies nothing.
    text_of_row = []
    no_text = pa.nulls(1, pa.string())
    for chunk in column.chunks:
        dictionary = chunk.dictionary
        for index in chunk.indices.to_pylist():
            text = no_text if index is None else dictionary.slice(index, 1)
            text_of_row.append(text)
    return pa.chunked_array(text_of_row, pa.string())


def _n_text_bytes(texts: pa.DictionaryArray) -> int:
    """Return the length in bytes of all texts of an array, as often as each stands in it."""
    lengths = pc.binary_length(texts.dictionary).take(texts.indices)
    return pc.sum(lengths).as_py() or 0
