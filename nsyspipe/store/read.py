"""Read the files of a saved run: all of one save, none larger than what it can hold, each table as nsyspipe writes it."""

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
from nsyspipe.model.table import FLOAT, INT, SCHEMA_VERSION, TEXT, TableSchema
from nsyspipe.store import layout
from nsyspipe.store.layout import Directory, NotPlainError
from nsyspipe.store.parquet_size import as_plain_text, check_rows, check_size

AGAIN = "analyze the reports again with --out"
_ATTEMPTS = 20  # when another save took its place meanwhile; it takes a save longer than a reader
_LATER = (
    *EVENT_TABLES,
    "metrics",
)  # not read by nsyspipe itself, or so large that they are read rank by rank
_OF_RUNS = (RUNS.name, "index")  # small, with a row per run
_DIGEST_BYTES = 16
_LARGEST_ROW = 64 * 2**20
_SMALL = 200_000  # smaller files are read sooner without threads
LARGEST = 2**62  # sums and differences of what is smaller stay in 64 bits
_SPANS = (("start_ns", "end_ns"), ("host_start_ns", "host_end_ns"))
_LONGEST_JSON = (
    16 * 2**20
)  # some twenty times that as objects; a run of 10 000 processes has some millions
_LIMITS = dict.fromkeys(("count", "bytes", "bytes/s"), (0, LARGEST)) | {
    "time": (-(2**61) // 1000, 2**61 // 1000)
}
_LONGEST_LABEL = 500  # as in a sidecar: a terminal takes minutes to lay out millions of characters
_OF_ONE_ROW_PER_KEY = (
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

    store: Path
    run_id: str
    listed: (
        Mapping[str, str] | None
    )  # digests of all files but `runs` saved together; None: not said
    contents: Mapping[
        str, pa.Buffer
    ]  # of `runs` and what is small, but for what cannot be read or is of another save
    runs: pa.Table | None  # None if it cannot be used

    def table(self, name: str, rank: int | None = None) -> pa.Table:
        """Return one table without its ``run_id``; a column that a former version did not have is null, others are left out.

        A `DatasetError` if the file is missing, damaged, of another save or version, or not as a
        run has it.
        """
        file = layout.file_name(name, rank)
        path = self.store / layout.published(file, self.run_id)
        found = self.runs if name == "runs" else None
        if found is None:
            found = table_of(self.contents.get(file) or self._later(file), DATASET[name], path)
        if name == "runs" and found.num_rows != 1:
            raise DatasetError(
                str(path), f"has {found.num_rows} rows for the run instead of 1", fix=AGAIN
            )
        return found

    def has(self, name: str, rank: int | None = None) -> bool:
        """Tell whether a file belongs to the run."""
        file = layout.file_name(name, rank)
        return (
            file in self.listed
            if self.listed is not None
            else _readable(self.store, self.run_id, file) is not None
        )

    def digest(self, file: str) -> str:
        """Return the digest of a file, as it was saved; of a run that does not say, as it is."""
        return (self.listed or {}).get(file) or digest_of(content_of(self.store, self.run_id, file))

    def _later(self, file: str) -> pa.Buffer:
        """Read a file that is not at hand; one of another save is an error."""
        path = self.store / layout.published(file, self.run_id)
        if self.listed is not None and file not in self.listed:
            raise DatasetError(str(path), "is missing from the saved run", fix=AGAIN)
        found = content_of(self.store, self.run_id, file)
        if self.listed is None or digest_of(found) == self.listed[file]:
            return found
        runs = _readable(self.store, self.run_id, layout.RUNS_FILE)
        if runs is None or not runs.equals(self.contents[layout.RUNS_FILE]):
            raise DatasetError(
                f"run {self.run_id}",
                "was replaced or removed during reading",
                fix="read the run again",
            )
        what = "cannot be read (damaged, or from another save of the run)"
        raise DatasetError(str(path), what, fix=AGAIN)


def read_run_files(store: Path, run_id: str) -> RunFiles:
    """Read a run's files at one go, but the operations and what else is large; errors wait for `RunFiles.table`."""
    files = [layout.file_name(name) for name in DATASET if name not in (*_LATER, RUNS.name)]
    runs = _readable(store, run_id, layout.RUNS_FILE)
    for _ in range(_ATTEMPTS):
        row = (
            None
            if runs is None
            else _parsed(runs, store / layout.published(layout.RUNS_FILE, run_id))
        )
        listed = _listed(row)
        found = {
            name: content
            for name in files
            if (content := _readable(store, run_id, name)) is not None
        }
        if listed is not None:
            found = {
                name: content
                for name, content in found.items()
                if digest_of(content) == listed.get(name)
            }
        if listed is None or len(found) == len(files):
            break
        latest = _readable(store, run_id, layout.RUNS_FILE)
        if latest is not None and latest.equals(runs):  # nobody replaced it: others are wrong
            break
        runs = latest
    return RunFiles(
        store, run_id, listed, found if runs is None else found | {layout.RUNS_FILE: runs}, row
    )


def digest_of(content: pa.Buffer) -> str:
    """Return what tells a file's bytes from others."""
    return hashlib.blake2b(content, digest_size=_DIGEST_BYTES).hexdigest()


def nulls_first(table: pa.Table, names: Sequence[str]) -> pa.Table:
    """Return a table sorted by some columns, their nulls first, which each version of Arrow is asked for in another way."""
    keys = [key for name in names for key in (pc.is_valid(table[name]), table[name])]
    numbers = [str(number) for number in range(len(keys))]
    return table.take(
        pc.sort_indices(pa.table(keys, names=numbers), [(one, "ascending") for one in numbers])
    )


def _parsed(runs: pa.Buffer, path: Path) -> pa.Table | None:
    """Return the table `runs`; None if it cannot be used, which who asks for it is told."""
    with contextlib.suppress(DatasetError):
        return table_of(runs, RUNS, path)
    return None


def _listed(runs: pa.Table | None) -> dict[str, str] | None:
    """Return the digests that a run's own row names; None if there are none."""
    if runs is None or not runs.num_rows:
        return None
    with contextlib.suppress(ValueError):  # of which who asks for the details is told
        found = parsed_object(runs["details"][0].as_py()).get("files")
        if isinstance(found, dict) and all(isinstance(one, str) for one in found.values()):
            return found if all(map(layout.FILE_NAME.fullmatch, found)) else None
    return None


def content_of(store: Path, run_id: str, name: str) -> pa.Buffer:
    """Return the bytes of a file of a run, of ``runs`` as nobody looked at them yet; a `DatasetError` if it cannot be read."""
    try:
        with Directory.at(store) as top:
            return _content(top, run_id, name)
    except NotPlainError as error:
        raise error.as_dataset_error() from error
    except FileNotFoundError:
        problem = "is missing from the saved run"
    except (OSError, ValueError, pa.ArrowException, MemoryError) as error:
        problem = f"cannot be read ({' '.join(str(error).split())})"
    raise DatasetError(str(store / layout.published(name, run_id)), problem, fix=AGAIN)


def _readable(store: Path, run_id: str, name: str) -> pa.Buffer | None:
    with contextlib.suppress(DatasetError):
        return content_of(store, run_id, name)
    return None


def _opened(top: Directory, run_id: str, name: str) -> BinaryIO:
    """Open a file of a run: of the save that is committed and not in place yet, else in its place."""
    if layout.RUN_ID.fullmatch(run_id):
        # First there: a file leaves it only for its place.
        with (
            contextlib.suppress(FileNotFoundError),
            top.within(layout.HIDDEN, layout.SWITCH, run_id) as switch,
        ):
            return switch.open_file(name)
    *directories, part = layout.published(name, run_id).parts
    with top.within(*directories) as directory:
        return directory.open_file(part)


def files_in_row(top: Directory, run_id: str) -> set[str] | None:
    """Return the names of all files of a run, as its own row has them; None if it has no usable row."""
    with contextlib.suppress(OSError, ValueError, MemoryError, pa.ArrowException):
        listed = _listed(
            _parsed(_content(top, run_id, layout.RUNS_FILE), top.path / layout.RUNS_FILE)
        )
        return None if listed is None else {*listed, layout.RUNS_FILE}
    return None


def _content(top: Directory, run_id: str, name: str) -> pa.Buffer:
    """Return a file's bytes, in memory that is Arrow's: its threads may outlive Python's."""
    with _opened(top, run_id, name) as file:
        return small_content(file) if name == layout.RUNS_FILE else _whole(file, check_size(file))


def small_content(file: BinaryIO) -> pa.Buffer:
    """Return a file's bytes, not yet checked by `check_size`, which takes longer; a ValueError if it is no small one."""
    size = os.fstat(file.fileno()).st_size
    require(size <= _LARGEST_ROW, f"{size} bytes are more than rows of runs have")
    return _whole(file, size)


def _whole(file: BinaryIO, size: int) -> pa.Buffer:
    content = pa.allocate_buffer(size)
    if file.readinto(memoryview(content)) != size:  # type: ignore[attr-defined]
        raise OSError("it became shorter while it was read")
    return content


def table_of(content: pa.Buffer, wanted: TableSchema, path: Path) -> pa.Table:
    """Read a table from its file's bytes, as `RunFiles.table` returns it; the path is for messages."""
    is_of_runs = wanted.name in _OF_RUNS
    texts = {
        column.name
        for column in wanted.columns
        if pa.types.is_string(column.type) or pa.types.is_dictionary(column.type)
    }
    try:
        source = pa.BufferReader(content)
        if is_of_runs:
            check_size(source)
        footer = pq.read_metadata(source)
        there = texts.intersection(footer.schema.names)  # a former version may lack some
        source.seek(0)
        with pq.ParquetFile(
            source, metadata=footer, page_checksum_verification=True, read_dictionary=[*there]
        ) as file:
            _check_schema(path, file, {*wanted.names} - texts)
            check_rows(file.metadata.num_rows, len(wanted.columns), content.size)
            found = file.read(wanted.names, use_threads=content.size > _SMALL)
        found = _conformed(path, found, wanted, content.size)
        found.validate(full=content.size < _SMALL)
        check_values(found, wanted)
    except (OSError, ValueError, LookupError, TypeError, MemoryError, pa.ArrowException) as error:
        # Arrow has all of these for a file that is not what its footer says.
        raise DatasetError(
            str(path), f"cannot be read ({' '.join(str(error).split())})", fix=AGAIN
        ) from error
    return found if is_of_runs else found.drop_columns(["run_id"])


def check_ranks(table: pa.Table, ranks: Sequence[int], path: Path) -> None:
    """Refuse a table with rows of other ranks."""
    if "rank" not in table.column_names:
        return
    if pc.any(
        pc.and_not(pc.is_valid(table["rank"]), pc.is_in(table["rank"], pa.array(ranks, pa.int64())))
    ).as_py():
        raise DatasetError(str(path), "has rows of ranks that the run has not", fix=AGAIN)


def check_steps_known(table: pa.Table, steps: pa.Table, path: Path) -> None:
    """Refuse a table with rows of steps that their ranks have not."""
    if not {"rank", "step"} <= {*table.column_names}:
        return
    keys = ["rank", "step"]
    found = (
        table.select(keys)
        .filter(pc.is_valid(table["step"]))
        .group_by(keys, use_threads=False)
        .aggregate([])
    )
    if found.join(steps.select(keys), keys, join_type="left anti").num_rows:
        raise DatasetError(str(path), "has rows of steps that the run has not", fix=AGAIN)


def _check_schema(path: Path, file: pq.ParquetFile, numbers: set[str]) -> None:
    """Refuse a later version, columns twice, and texts in place of numbers: a few bytes can stand for many long ones."""
    version = (
        (file.schema_arrow.metadata or {}).get(b"schema_version", b"").decode(errors="replace")
    )
    if not version.isdecimal():
        what = "was not written by nsyspipe (no schema version)"
        raise DatasetError(str(path), what, fix=f"{AGAIN}, or move the file away")
    if int(version) > SCHEMA_VERSION:
        what = f"has columns of version {version}, but this nsyspipe knows only {SCHEMA_VERSION}"
        raise DatasetError(str(path), what, fix="a newer nsyspipe")
    names = file.schema.names
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DatasetError(str(path), f"has columns twice: {', '.join(twice)}", fix=AGAIN)
    for column in file.schema:
        is_text = column.physical_type.endswith("BYTE_ARRAY")
        require(not (is_text and column.name in numbers), f"{column.name} is not a number")


def _conformed(path: Path, found: pa.Table, wanted: TableSchema, n_file: int) -> pa.Table:
    there = found.column_names
    lacking = [one.name for one in wanted.columns if not (one.nullable or one.name in there)]
    if lacking:
        raise DatasetError(str(path), f"lacks the columns {', '.join(lacking)}", fix=AGAIN)
    columns = []
    for one in wanted.columns:
        column = found[one.name] if one.name in there else pa.nulls(found.num_rows, one.type)
        if pa.types.is_dictionary(column.type) and one.type == TEXT:
            # A text of all ranks of a communicator, for each that uses one.
            column = as_plain_text(column, n_file, may_be_shared=one.name == "ranks")
            column = (
                pc.utf8_slice_codeunits(column, 0, _LONGEST_LABEL)
                if one.name == "label"
                else column
            )
        columns.append(column)
    return pa.table(columns, names=wanted.names).cast(wanted.arrow)


def check_values(table: pa.Table, wanted: TableSchema) -> None:
    """Raise a ValueError if a column has what its declared unit never has, a span ends before it starts, a row is twice."""
    for column in wanted.columns:
        values = table[column.name]
        require(column.nullable or not values.null_count, f"{column.name} has nulls")
        is_finite = column.type != FLOAT or pc.all(pc.is_finite(values)).as_py() is not False
        require(is_finite, f"{column.name} has values that are not numbers")
        if column.type in (INT, FLOAT) or column.unit == "time":
            low, high = _LIMITS.get(column.unit, (-LARGEST, LARGEST))
            span = pc.min_max(values.cast(INT) if column.unit == "time" else values).as_py()
            is_known = span["min"] is None or low <= span["min"] <= span["max"] <= high
            require(is_known, f"{column.name} has values beyond what a run has")
        elif (
            column.unit == "json" and wanted is not RUNS
        ):  # whose details are checked field by field
            for text in pc.unique(values.drop_null()).to_pylist():
                parsed_object(text)
    # Two steps of no length may begin at once: they are sorted by that, and told apart by their
    # numbers.
    name = wanted.name
    key = ["rank", "step"] if name == "steps" else [one for one in wanted.key if one != "run_id"]
    is_once = name not in _OF_ONE_ROW_PER_KEY or len(
        table.group_by(key, use_threads=False).aggregate([])
    ) == len(table)
    require(is_once, f"it has rows of the same {', '.join(key)}")
    for start, end in _SPANS:
        is_before = (
            start in table.column_names and pc.any(pc.less(table[end], table[start])).as_py()
        )
        require(not is_before, f"{end} is before {start}")


def parsed_object(text: str) -> dict[str, Any]:
    """Parse a JSON object of somebody else; a ValueError if it is none, too long or too deep, or has a number that is none."""
    require(len(text) <= _LONGEST_JSON, f"it has {len(text)} characters, more than any run has")
    try:
        found = json.loads(text, parse_constant=_number, parse_float=_number)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    require(isinstance(found, dict), "it is not a JSON object")
    return dict(found)


def _number(word: str) -> float:
    require(math.isfinite(number := float(word)), f"{word} is not a number")
    return number
