"""Functions whose results depend on bytes alone: the tests of a process compute each result once.

Tests build the same few reports, read the same operations of them, and save the same few tables.
The marker `reads_anew` says which tests are about how this is done, so that they do it anew.
"""

import functools
import hashlib
import os
import pickle
from collections.abc import Callable, Hashable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa
import pytest
from msgspec.structs import replace

from nsyspipe.model.table import TableSchema
from nsyspipe.reader.report import FileState
from nsyspipe.run import gather, operations
from nsyspipe.run.operations import ReportTask
from nsyspipe.store import read, write
from nsyspipe.store.parquet_size import check_size

_MAX_DIGESTS = 256
# They are larger than digests.
_MAX_OPERATIONS = 128
_MAX_TABLES = 1024

_Value = TypeVar("_Value")


class _Latest:
    """The latest results of a function by key, of which so many are kept."""

    def __init__(self, max_results: int) -> None:
        self._results: dict[Hashable, Any] = {}
        self._max_results = max_results

    def get(self, key: Hashable, compute: Callable[[], _Value]) -> _Value:
        """Return the result of a key, which is computed the first time; an error is not kept."""
        value = self._results.pop(key) if key in self._results else compute()
        # Those asked for last are kept.
        self._results[key] = value
        if len(self._results) > self._max_results:
            del self._results[next(iter(self._results))]
        return value


def _content_key(path: Path) -> bytes:
    """Return what the bytes of a report are known by."""
    content = hashlib.blake2b()
    for file in (path, Path(f"{path}-wal")):
        if file.is_file():
            content.update(file.read_bytes())
    return content.digest()


def _state(path: Path) -> FileState:
    status = path.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _remembered_digest() -> Callable[..., Any]:
    """Return `digest_report`, which reads reports with equal bytes once.

    A digest depends on the bytes of the report and on the other arguments alone, except for the
    path and the state of the file, which are those of the file at hand.
    """
    digest_report = gather.digest_report
    digests = _Latest(_MAX_DIGESTS)

    @functools.wraps(digest_report)
    def remember(path: Any, *arguments: Any, **options: Any) -> Any:
        file = Path(os.fspath(path))
        key = _content_key(file), pickle.dumps((arguments, options))
        digest = digests.get(key, lambda: digest_report(path, *arguments, **options))
        return replace(digest, file=path, facts=replace(digest.facts, file_state=_state(file)))

    return remember


def _remembered_operations() -> Callable[..., Any]:
    """Return `report_operations`, which reads the operations of reports with equal bytes once.

    They depend on the bytes of the report and on the task alone, if the report is as it was
    digested.
    """
    report_operations = operations.report_operations
    tables = _Latest(_MAX_OPERATIONS)

    @functools.wraps(report_operations)
    def remember(task: ReportTask) -> Any:
        file = Path(os.fspath(task.file))
        if not file.is_file() or _state(file) != task.wanted.file_state:
            return report_operations(task)
        wanted = replace(task.wanted, file_state=None)
        asked = (task.reading, task.family, wanted, task.ranks)
        key = _content_key(file), pickle.dumps(asked)
        return tables.get(key, lambda: report_operations(task))

    return remember


def _remembered_encoding() -> Callable[[pa.Table], pa.Buffer]:
    """Return `_encoded`, which encodes equal tables once."""
    encoded = write._encoded
    contents = _Latest(_MAX_TABLES)

    @functools.wraps(encoded)
    def remember(table: pa.Table) -> pa.Buffer:
        stream = pa.BufferOutputStream()
        with pa.ipc.new_stream(stream, table.schema) as writer:
            writer.write_table(table)
        key = hashlib.blake2b(stream.getvalue()).digest()
        return contents.get(key, lambda: encoded(table))

    return remember


def _remembered_table() -> Callable[[pa.Buffer, TableSchema, Path], pa.Table]:
    """Return `table_of`, which reads and checks files of equal bytes once. Errors are raised anew."""
    table_of = read.table_of
    tables = _Latest(_MAX_TABLES)

    @functools.wraps(table_of)
    def remember(content: pa.Buffer, schema: TableSchema, path: Path) -> pa.Table:
        key = hashlib.blake2b(content).digest(), schema.name
        return tables.get(key, lambda: table_of(content, schema, path))

    return remember


class _Function(NamedTuple):
    """A function of the package, and the same one that remembers its results."""

    module: ModuleType
    name: str
    own: Callable[..., Any]
    remembered: Callable[..., Any]


def _function(module: ModuleType, name: str, remembered: Callable[..., Any]) -> _Function:
    return _Function(module, name, getattr(module, name), remembered)


class ReadOnce:
    """Takes results of equal bytes from earlier tests, unless the test is about how they are made."""

    def __init__(self) -> None:
        self._functions = (
            _function(gather, "digest_report", _remembered_digest()),
            _function(operations, "report_operations", _remembered_operations()),
            _function(write, "_encoded", _remembered_encoding()),
            _function(read, "table_of", _remembered_table()),
        )

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        reads_anew = item.get_closest_marker("reads_anew")
        for function in self._functions:
            used = function.own if reads_anew else function.remembered
            setattr(function.module, function.name, used)


def remembered_size() -> Callable[[Any], int]:
    """Return `check_size`, which asks once of the same bytes: tests read each saved run many times."""
    sizes: dict[bytes, int] = {}

    def size_of(file: Any) -> int:
        if file.seek(0, os.SEEK_END) > 2**20:
            return check_size(file)
        file.seek(0)
        content = hashlib.blake2b(file.read()).digest()
        if content not in sizes:
            sizes[content] = check_size(file)
        file.seek(0)
        return sizes[content]

    return size_of
