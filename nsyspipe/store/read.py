"""Read the files of a saved run.

All files are of one save, no file claims more than a file of its size can hold, and each table is
as nsyspipe writes it.
"""

import contextlib
import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec import Struct

from nsyspipe.errors import DatasetError, require
from nsyspipe.model.schema import DATASET, EVENT_TABLES, RUNS
from nsyspipe.model.table import FLOAT, INT, SCHEMA_VERSION, TEXT, Column, TableSchema
from nsyspipe.model.typed_tables import (
    RunsTable,
    StepsColumn,
    StepsTable,
)
from nsyspipe.model.user_paths import AnyPath
from nsyspipe.store import layout
from nsyspipe.store.layout import Directory, NotPlainError
from nsyspipe.store.parquet_size import as_plain_text, check_rows, check_size

AGAIN = "analyze the reports again with --out"
# Another save may replace the run while it is read. A save takes longer than a reader, so few
# attempts are needed.
_MAX_ATTEMPTS = 20
# Tables that nsyspipe itself does not read, or that are so large that they are read rank by rank.
_NOT_READ_AT_ONCE = (*EVENT_TABLES, "metrics")
# Small tables, with a row per run.
_TABLES_OF_RUNS = (RUNS.name, "index")
_DIGEST_BYTES = 16
_MAX_RUNS_FILE_BYTES = 64 * 2**20
# Smaller files are read faster without threads.
_MIN_BYTES_FOR_THREADS = 200_000
# Sums and differences of two smaller integers stay in 64 bits.
LARGEST = 2**62
_SPANS = (("start_ns", "end_ns"), ("host_start_ns", "host_end_ns"))
# Parsed objects take about twenty times the memory of the text. The text of a run of 10 000
# processes has some millions of characters.
_MAX_JSON_CHARACTERS = 16 * 2**20
# Unit -> the least and the greatest value that a run has.
_COUNTED = ("count", "bytes", "bytes/s", "FLOP", "FLOP/s", "token/s", "sample/s")
_LIMITS = dict.fromkeys(_COUNTED, (0, LARGEST)) | {"time": (-(2**61) // 1000, 2**61 // 1000)}
# A terminal takes minutes to lay out millions of characters. Sidecars have the same limit.
_MAX_LABEL_CHARACTERS = 500
_TABLES_WITH_UNIQUE_KEYS = (
    "ranks",
    "steps",
    "phases",
    "stragglers",
    "kernels",
    "rank_summary",
    "phase_summary",
)


class RunFiles(Struct, frozen=True):
    """The files of one save of a run, as they were at one moment."""

    store: AnyPath
    run_id: str
    # The digests of all files of the save except `runs`. None if the run does not name them.
    listed: Mapping[str, str] | None
    # The bytes of `runs` and of the small files, without files that cannot be read or that are of
    # another save.
    contents: Mapping[str, pa.Buffer]
    # None if the table cannot be used.
    runs: RunsTable | None

    def table(self, name: str, rank: int | None = None) -> pa.Table:
        """Return one table without its ``run_id``.

        A column that a former version did not have is null. Unknown columns are left out. A
        `DatasetError` is raised if the file is missing, damaged, of another save or a later
        version, or has values that no run has.
        """
        file = layout.file_name(name, rank)
        path = path_in_store(self.store, file, self.run_id)
        is_runs = name == "runs"
        if is_runs and self.runs is not None:
            table = self.runs
        else:
            content = self.contents.get(file) or self._read_now(file)
            table = table_of(content, DATASET[name], path)
        if is_runs and table.num_rows != 1:
            problem = f"has {table.num_rows} rows for the run instead of 1"
            raise DatasetError(str(path), problem, fix=AGAIN)
        return table

    def has(self, name: str, rank: int | None = None) -> bool:
        """Return whether a file belongs to the run."""
        file = layout.file_name(name, rank)
        if self.listed is not None:
            return file in self.listed
        return _content_or_none(self.store, self.run_id, file) is not None

    def digest(self, file: str) -> str:
        """Return the digest of a file when it was saved, or its present one if that is unknown."""
        saved_digest = (self.listed or {}).get(file)
        return saved_digest or digest_of(content_of(self.store, self.run_id, file))

    def _read_now(self, file: str) -> pa.Buffer:
        """Read a file that was not read before. A file of another save is an error."""
        path = path_in_store(self.store, file, self.run_id)
        listed = self.listed
        if listed is not None and file not in listed:
            raise DatasetError(str(path), "is missing from the saved run", fix=AGAIN)
        content = content_of(self.store, self.run_id, file)
        if listed is None or digest_of(content) == listed[file]:
            return content
        # The file is of another save. If the file `runs` has changed too, the run was replaced.
        runs_now = _content_or_none(self.store, self.run_id, layout.RUNS_FILE)
        runs_before = self.contents.get(layout.RUNS_FILE)
        if runs_now is None or runs_before is None or not runs_now.equals(runs_before):
            problem = "was replaced or removed during reading"
            raise DatasetError(f"run {self.run_id}", problem, fix="read the run again")
        problem = "cannot be read (damaged, or from another save of the run)"
        raise DatasetError(str(path), problem, fix=AGAIN)


def path_in_store(store: AnyPath, name: str, run_id: str) -> Path:
    """Return the path of a file of a run for messages, with the store as the user wrote it."""
    return Path(str(store)) / layout.published(name, run_id)


def read_run_files(store: AnyPath, run_id: str) -> RunFiles:
    """Read the files of a run that are small, at one moment between two saves.

    Nothing raises here: `RunFiles.table` raises the error of a file when its table is asked for.
    """
    skipped_tables = (*_NOT_READ_AT_ONCE, RUNS.name)
    files = [layout.file_name(name) for name in DATASET if name not in skipped_tables]
    runs_content = _content_or_none(store, run_id, layout.RUNS_FILE)
    path_of_runs = path_in_store(store, layout.RUNS_FILE, run_id)
    for _ in range(_MAX_ATTEMPTS):
        row = None if runs_content is None else _runs_row(runs_content, path_of_runs)
        listed = _listed_digests(row)
        contents = _read_contents(store, run_id, files, listed)
        has_all_files = len(contents) == len(files)
        # Without a list of digests, another attempt could not find more files.
        if has_all_files or listed is None:
            break
        # If nobody replaced the run meanwhile, some files are damaged. Reading them again would not
        # help.
        latest_content = _content_or_none(store, run_id, layout.RUNS_FILE)
        if latest_content is not None and latest_content.equals(runs_content):
            break
        runs_content = latest_content
    if runs_content is not None:
        contents[layout.RUNS_FILE] = runs_content
    return RunFiles(store, run_id, listed, contents, row)


def _read_contents(
    store: AnyPath, run_id: str, files: Sequence[str], listed: Mapping[str, str] | None
) -> dict[str, pa.Buffer]:
    """Return the bytes of each file that can be read and, if digests are listed, has its digest."""
    contents = {}
    for name in files:
        content = _content_or_none(store, run_id, name)
        if content is None:
            continue
        if listed is None or digest_of(content) == listed.get(name):
            contents[name] = content
    return contents


def digest_of(content: pa.Buffer) -> str:
    """Return a text by which the bytes of a file can be recognized."""
    return hashlib.blake2b(content, digest_size=_DIGEST_BYTES).hexdigest()


def nulls_first(table: pa.Table, names: Sequence[str]) -> pa.Table:
    """Return a table sorted by some columns, with their nulls first.

    Arrow's option for nulls differs from version to version. So each column is preceded by a key of
    its own that tells whether the value is there: False sorts before True.
    """
    keys = []
    for name in names:
        column = table[name]
        keys += [pc.is_valid(column), column]
    key_names = [str(number) for number in range(len(keys))]
    sort_keys = [(key_name, "ascending") for key_name in key_names]
    key_table = pa.table(keys, names=key_names)
    sorted_row_numbers = pc.sort_indices(key_table, sort_keys)
    return table.take(sorted_row_numbers)


def _runs_row(runs: pa.Buffer, path: Path) -> pa.Table | None:
    """Return the table `runs`; None if it cannot be used."""
    # The error comes when the table is asked for.
    with contextlib.suppress(DatasetError):
        return table_of(runs, RUNS, path)
    return None


def _listed_digests(runs: RunsTable | None) -> dict[str, str] | None:
    """Return the digests of files that a run's own row contains; None if it has none."""
    if runs is None or not runs.num_rows:
        return None
    # The error of damaged details comes when the details are asked for.
    with contextlib.suppress(ValueError):
        details = parsed_object(runs["details"][0].as_py())
        digests = details.get("files")
        if not isinstance(digests, dict):
            return None
        has_texts = all(isinstance(digest, str) for digest in digests.values())
        if has_texts and all(map(layout.FILE_NAME.fullmatch, digests)):
            return digests
    return None


def content_of(store: AnyPath, run_id: str, name: str) -> pa.Buffer:
    """Return the bytes of a file of a run; a `DatasetError` if it cannot be read.

    The file has passed `check_size`. Only ``runs`` has not, and `table_of` checks it later.
    """
    try:
        with Directory.at(store) as top:
            return _content(top, run_id, name)
    except NotPlainError as error:
        raise error.as_dataset_error() from error
    except FileNotFoundError:
        problem = "is missing from the saved run"
    except (OSError, ValueError, pa.ArrowException, MemoryError) as error:
        problem = f"cannot be read ({_in_one_line(error)})"
    path = path_in_store(store, name, run_id)
    raise DatasetError(str(path), problem, fix=AGAIN)


def _in_one_line(error: Exception) -> str:
    """Return the message of an error without line breaks."""
    words = str(error).split()
    return " ".join(words)


def _content_or_none(store: AnyPath, run_id: str, name: str) -> pa.Buffer | None:
    with contextlib.suppress(DatasetError):
        return content_of(store, run_id, name)
    return None


def _opened(top: Directory, run_id: str, name: str) -> BinaryIO:
    """Open a file of a run: of a save that is committed but not in place yet, else in its place."""
    if layout.RUN_ID.fullmatch(run_id):
        # Look into `switch` first: a file leaves it only for its place.
        switch_place = (layout.HIDDEN, layout.SWITCH, run_id)
        with contextlib.suppress(FileNotFoundError), top.within(*switch_place) as switch:
            return switch.open_file(name)
    *directories, part = layout.published(name, run_id).parts
    with top.within(*directories) as directory:
        return directory.open_file(part)


def files_in_row(top: Directory, run_id: str) -> set[str] | None:
    """Return the names of all files of a run from its own row; None if the row is not usable."""
    with contextlib.suppress(OSError, ValueError, MemoryError, pa.ArrowException):
        content = _content(top, run_id, layout.RUNS_FILE)
        runs = _runs_row(content, top.path / layout.RUNS_FILE)
        digests = _listed_digests(runs)
        return None if digests is None else {*digests, layout.RUNS_FILE}
    return None


def _content(top: Directory, run_id: str, name: str) -> pa.Buffer:
    """Return a file's bytes in memory of Arrow, because its threads may outlive those of Python."""
    with _opened(top, run_id, name) as file:
        if name == layout.RUNS_FILE:
            return small_content(file)
        return _whole_content(file, check_size(file))


def small_content(file: BinaryIO) -> pa.Buffer:
    """Return the bytes of a file with rows of runs; a ValueError if the file is not small.

    `check_size` has not checked them, because it takes longer.
    """
    size = os.fstat(file.fileno()).st_size
    require(size <= _MAX_RUNS_FILE_BYTES, f"{size} bytes are more than rows of runs have")
    return _whole_content(file, size)


def _whole_content(file: BinaryIO, size: int) -> pa.Buffer:
    content = pa.allocate_buffer(size)
    if file.readinto(memoryview(content)) != size:  # type: ignore[attr-defined]
        raise OSError("it became shorter while it was read")
    return content


def table_of(content: pa.Buffer, schema: TableSchema, path: Path) -> pa.Table:
    """Read a table from the bytes of its file, as `RunFiles.table` returns it.

    Only a table with a row per run keeps its ``run_id``. A `DatasetError` with the path is raised
    if the file is not what nsyspipe writes.
    """
    has_row_per_run = schema.name in _TABLES_OF_RUNS
    try:
        source = pa.BufferReader(content)
        # `content_of` has checked the size of all other files.
        if has_row_per_run:
            check_size(source)
        columns_of_file = _read_columns(source, schema, path)
        table = _conformed(path, columns_of_file, schema, content.size)
        is_small = content.size < _MIN_BYTES_FOR_THREADS
        table.validate(full=is_small)
        check_values(table, schema)
    except (OSError, ValueError, LookupError, TypeError, MemoryError, pa.ArrowException) as error:
        # Arrow raises all of these if a file is not what its footer says.
        problem = f"cannot be read ({_in_one_line(error)})"
        raise DatasetError(str(path), problem, fix=AGAIN) from error
    return table if has_row_per_run else table.drop_columns(["run_id"])


def _read_columns(source: pa.BufferReader, schema: TableSchema, path: Path) -> pa.Table:
    """Read the columns of a schema that a file has, texts as dictionaries."""
    n_bytes = source.size()
    texts = {column.name for column in schema.columns if _is_text(column.type)}
    footer = pq.read_metadata(source)
    # A file of a former version may lack some columns.
    texts_in_file = [*texts.intersection(footer.schema.names)]
    source.seek(0)
    options = {"page_checksum_verification": True, "read_dictionary": texts_in_file}
    with pq.ParquetFile(source, metadata=footer, **options) as file:
        _check_schema(path, file, {*schema.names} - texts)
        check_rows(file.metadata.num_rows, len(schema.columns), n_bytes)
        uses_threads = n_bytes > _MIN_BYTES_FOR_THREADS
        return file.read(schema.names, use_threads=uses_threads)


def _is_text(column_type: pa.DataType) -> bool:
    is_text: bool = pa.types.is_string(column_type) or pa.types.is_dictionary(column_type)
    return is_text


def check_ranks(table: pa.Table, ranks: Sequence[int], path: Path) -> None:
    """Raise a `DatasetError` if a table has rows of other ranks."""
    if "rank" not in table.column_names:
        return
    rank = table["rank"]
    is_known = pc.is_in(rank, pa.array(ranks, pa.int64()))
    is_unknown = pc.and_not(pc.is_valid(rank), is_known)
    if pc.any(is_unknown).as_py():
        raise DatasetError(str(path), "has rows of ranks that the run has not", fix=AGAIN)


def check_steps_known(table: pa.Table, steps: StepsTable, path: Path) -> None:
    """Raise a `DatasetError` if a table has rows of steps that their ranks do not have."""
    if not {"rank", "step"} <= {*table.column_names}:
        return
    keys: list[StepsColumn] = ["rank", "step"]
    has_step = pc.is_valid(table["step"])
    with_step = table.select(keys).filter(has_step)
    steps_of_table = with_step.group_by(keys, use_threads=False).aggregate([])
    unknown_steps = steps_of_table.join(steps.select(keys), keys, join_type="left anti")
    if unknown_steps.num_rows:
        raise DatasetError(str(path), "has rows of steps that the run has not", fix=AGAIN)


def _check_schema(path: Path, file: pq.ParquetFile, number_columns: set[str]) -> None:
    """Refuse a file of a later version, with two columns of a name, or with texts for numbers.

    Only texts are read as a dictionary. A column of texts for numbers could fill memory, because a
    few bytes can stand for many long texts.
    """
    metadata = file.schema_arrow.metadata or {}
    version = metadata.get(b"schema_version", b"").decode(errors="replace")
    if not version.isdecimal():
        problem = "was not written by nsyspipe (no schema version)"
        raise DatasetError(str(path), problem, fix=f"{AGAIN}, or move the file away")
    if int(version) > SCHEMA_VERSION:
        problem = f"has columns of version {version}, but this nsyspipe knows only {SCHEMA_VERSION}"
        raise DatasetError(str(path), problem, fix="a newer nsyspipe")
    names = file.schema.names
    repeated_names = sorted({name for name in names if names.count(name) > 1})
    if repeated_names:
        problem = f"has columns twice: {', '.join(repeated_names)}"
        raise DatasetError(str(path), problem, fix=AGAIN)
    for column in file.schema:
        is_text = column.physical_type.endswith("BYTE_ARRAY")
        is_wrong = is_text and column.name in number_columns
        require(not is_wrong, f"{column.name} is not a number")


def _conformed(path: Path, table: pa.Table, schema: TableSchema, n_file_bytes: int) -> pa.Table:
    """Return a table with all columns of a schema, those that its file lacks as nulls."""
    present = {*table.column_names}
    needed = [column.name for column in schema.columns if not column.nullable]
    missing = [name for name in needed if name not in present]
    if missing:
        raise DatasetError(str(path), f"lacks the columns {', '.join(missing)}", fix=AGAIN)
    columns = []
    for column in schema.columns:
        if column.name in present:
            values = table[column.name]
        else:
            values = pa.nulls(table.num_rows, column.type)
        if pa.types.is_dictionary(values.type) and column.type == TEXT:
            columns.append(_plain_texts(values, column.name, n_file_bytes))
        else:
            columns.append(values)
    return pa.table(columns, names=schema.names).cast(schema.arrow)


def _plain_texts(texts: pa.ChunkedArray, name: str, n_file_bytes: int) -> pa.ChunkedArray:
    """Return a column of texts that was read as a dictionary as plain texts. Labels are cut off."""
    # The text with all ranks of a communicator stands in the rows of each of its ranks.
    may_be_shared = name == "ranks"
    plain_texts = as_plain_text(texts, n_file_bytes, may_be_shared=may_be_shared)
    if name == "label":
        return pc.utf8_slice_codeunits(plain_texts, 0, _MAX_LABEL_CHARACTERS)
    return plain_texts


def check_values(table: pa.Table, schema: TableSchema) -> None:
    """Raise a ValueError if a table has values that no run has.

    That is a value outside the limits of its unit, a span that ends before it starts, or two rows
    with the same key.
    """
    for column in schema.columns:
        # The details of `runs` are checked field by field when they are read.
        _check_column(column, table[column.name], checks_json=schema is not RUNS)
    _check_keys(table, schema)
    for start, end in _SPANS:
        if start in table.column_names:
            is_early = pc.less(table[end], table[start])
            ends_early = pc.any(is_early).as_py()
            require(not ends_early, f"{end} is before {start}")


def _check_column(column: Column, values: pa.ChunkedArray, *, checks_json: bool) -> None:
    """Raise a ValueError if a column has nulls, numbers or JSON that no run has."""
    name = column.name
    require(column.nullable or not values.null_count, f"{name} has nulls")
    if column.type == FLOAT:
        # An empty column, or one of nulls alone, has only finite values.
        are_finite = pc.all(pc.is_finite(values), min_count=0).as_py()
        require(are_finite, f"{name} has values that are not numbers")
    is_time = column.unit == "time"
    if is_time or column.type in (INT, FLOAT):
        lower_limit, upper_limit = _LIMITS.get(column.unit, (-LARGEST, LARGEST))
        numbers = values.cast(INT) if is_time else values
        extremes = pc.min_max(numbers).as_py()
        smallest = extremes["min"]
        largest = extremes["max"]
        # Without a value, both extremes are None.
        is_empty = smallest is None
        is_within = is_empty or (lower_limit <= smallest and largest <= upper_limit)
        require(is_within, f"{name} has values beyond what a run has")
    elif column.unit == "json" and checks_json:
        for text in pc.unique(values.drop_null()).to_pylist():
            parsed_object(text)


def _check_keys(table: pa.Table, schema: TableSchema) -> None:
    """Raise a ValueError if two rows of a table with unique keys have the same key."""
    if schema.name not in _TABLES_WITH_UNIQUE_KEYS:
        return
    if schema.name == "steps":
        # The key of the schema has the start of a step, by which steps are sorted. Two steps of no
        # length may start at once, but each has a number of its own.
        key = ["rank", "step"]
    else:
        key = [name for name in schema.key if name != "run_id"]
    # One row for each key.
    distinct_keys = table.group_by(key, use_threads=False).aggregate([])
    is_unique = len(distinct_keys) == len(table)
    require(is_unique, f"it has rows of the same {', '.join(key)}")


def parsed_object(text: str) -> dict[str, Any]:
    """Parse a JSON object that another program may have written.

    A ValueError is raised if the text is not an object, is too long or nested too deeply, or has
    a number that is not finite.
    """
    n_characters = len(text)
    is_short = n_characters <= _MAX_JSON_CHARACTERS
    require(is_short, f"it has {n_characters} characters, more than any run has")
    try:
        parsed = json.loads(text, parse_constant=_finite_number, parse_float=_finite_number)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    require(isinstance(parsed, dict), "it is not a JSON object")
    return dict(parsed)


def _finite_number(word: str) -> float:
    number = float(word)
    require(math.isfinite(number), f"{word} is not a number")
    return number
