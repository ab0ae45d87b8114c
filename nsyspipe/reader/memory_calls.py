"""CUDA API calls that allocate, free or map memory of a GPU, with their sizes if recorded.

Calls that take memory from a pool of CUDA (``cudaMallocAsync``) are left out. They wait for
nothing, and a program may make one for each tensor. Memory of the host is left out too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from nsyspipe.analysis.attribution import filled
from nsyspipe.analysis.intervals import sums_of
from nsyspipe.errors import DamagedReportError
from nsyspipe.model import canonical
from nsyspipe.model.call_names import (
    ALLOCATING,
    FREEING,
    MANAGING_MEMORY,
    MEMORY_PREFIXES,
    are_named,
    without_version,
)
from nsyspipe.model.table import Int64
from nsyspipe.model.typed_tables import MemoryCallsOfReportTable
from nsyspipe.reader.calls import Strings
from nsyspipe.reader.host_copies import joint_codes, paired_codes
from nsyspipe.reader.report import (
    MEMORY_USAGE,
    RUNTIME,
    STRINGS,
    TIME_LIMIT,
    Report,
    bounds_of,
    process_of,
)

_NEEDED = ("start", "end", "globalTid", "nameId")
_COLUMNS = (*_NEEDED, "correlationId", "returnValue")
_SIZE_COLUMNS = ("globalPid", "correlationId", "bytes", "memKind")
# What nsys calls memory of a GPU: Device, Array and Managed.
_KINDS_OF_MEMORY = (2, 3, 4)
# More than a call can allocate. A larger size is damaged.
_MAX_BYTES = 2**42


class MemoryCalls(Struct, frozen=True):
    """The calls of a report that manage memory of GPUs."""

    # `canonical.MEMORY_CALLS`. None if calls, or their names and ends, were not recorded.
    table: MemoryCallsOfReportTable | None = None
    # Whether nsys recorded the memory of GPUs.
    has_sizes: bool = False


def read_memory_calls(report: Report, strings: Strings) -> MemoryCalls:
    """Read the calls that manage memory of GPUs, in order of start.

    The table of the result is None if calls, or their names and ends, were not recorded. Its sizes
    are null if they were not recorded, or cannot be read.
    """
    has_columns = report.has(MEMORY_USAGE, *_SIZE_COLUMNS)
    has_sizes = has_columns and report.has_rows(MEMORY_USAGE)
    if not _has_named_calls(report):
        return MemoryCalls(has_sizes=has_sizes)
    name_of_id = _names_by_id(strings)
    if not name_of_id:
        return MemoryCalls(canonical.MEMORY_CALLS.empty(), has_sizes)
    calls = _select_calls(report, name_of_id)
    n_bytes = pa.nulls(calls.num_rows, pa.int64())
    if has_sizes and calls.num_rows:
        # Without sizes, all else of the report can be used.
        with contextlib.suppress(DamagedReportError):
            n_bytes = _bytes_of_calls(report, calls)
    name_ids = calls["nameId"].to_pylist()
    names = pa.array(map(name_of_id.get, name_ids), pa.string())
    threads = calls["globalTid"].to_numpy()
    columns: dict[str, Any] = {"process_id": process_of(threads)}
    columns["start_ns"] = calls["start"]
    columns["end_ns"] = calls["end"]
    columns["is_alloc"] = are_named(names, ALLOCATING)
    columns["is_free"] = are_named(names, FREEING)
    columns["is_failed"] = pc.not_equal(calls["returnValue"], 0)
    columns["bytes"] = n_bytes
    table = canonical.MEMORY_CALLS.table(columns)
    return MemoryCalls(table, has_sizes)


def _has_named_calls(report: Report) -> bool:
    """Tell whether a report has CUDA API calls with their names and ends."""
    if not report.has(RUNTIME, *_NEEDED):
        return False
    return report.has_rows(RUNTIME) and report.has_rows(STRINGS)


def _names_by_id(strings: Strings) -> dict[int, str]:
    """Return the names of calls that manage memory, without versions, by ID of the string."""
    texts = strings.texts_beginning(*MEMORY_PREFIXES)
    name_of_id = {}
    for name_id, text in texts.items():
        name = without_version(text or "")
        if name in MANAGING_MEMORY:
            name_of_id[name_id] = name
    return name_of_id


def _select_calls(report: Report, name_ids: Iterable[int]) -> pa.Table:
    """Return the calls with one of some names, a thread and possible times, in order of start.

    `name_ids` are the ids of the names.
    """
    ids = ", ".join(map(str, sorted(name_ids)))
    columns = dict.fromkeys(_COLUMNS, "int")
    calls = report.select(RUNTIME, columns, where=f"nameId IN ({ids})")
    start = filled(calls["start"])
    end = filled(calls["end"])
    has_thread = pc.is_valid(calls["globalTid"])
    is_usable = has_thread.to_numpy()
    is_usable &= start > -TIME_LIMIT
    is_usable &= end < TIME_LIMIT
    is_usable &= end >= start
    usable_calls = calls.filter(pa.array(is_usable))
    return usable_calls.sort_by("start")


def _bytes_of_calls(report: Report, calls: pa.Table) -> pa.Array:
    """Return how many bytes each call allocated or freed, null if no event says."""
    # The bounds leave out events of other calls. They are None if no call has an ID. Then 0 stands
    # in, the ID of events without a call, for memory that was held when the capture began.
    first_id, last_id = bounds_of(calls["correlationId"])
    kinds = ", ".join(map(str, _KINDS_OF_MEMORY))
    of_calls = f"correlationId BETWEEN {first_id or 0} AND {last_id or 0}"
    where = f"{of_calls} AND memKind IN ({kinds})"
    columns = dict.fromkeys(_SIZE_COLUMNS, "int")
    events = report.select(MEMORY_USAGE, columns, where=where)
    return _sums_by_call(calls, events.drop_null())


def _sums_by_call(calls: pa.Table, events: pa.Table) -> pa.Array:
    """Return, for each call, the sum of bytes of the events with its process and correlation ID.

    Null for a call without such an event, or with one of an impossible size.
    """
    keys = _joint_keys(calls, events)
    n_calls = calls.num_rows
    n_keys = int(keys.max()) + 1
    key_of_call = keys[:n_calls]
    key_of_event = keys[n_calls:]
    bytes_of_event: Int64 = events["bytes"].to_numpy()
    is_possible = (bytes_of_event >= 0) & (bytes_of_event <= _MAX_BYTES)
    possible_bytes = np.where(is_possible, bytes_of_event, 0)
    bytes_of_key = sums_of(key_of_event, possible_bytes, n_keys)
    is_key_known = np.zeros(n_keys, np.bool_)
    is_key_known[key_of_event] = True
    # One impossible event makes the sum of its key unknown.
    is_key_known[key_of_event[~is_possible]] = False
    return pa.array(bytes_of_key[key_of_call], mask=~is_key_known[key_of_call])


def _joint_keys(calls: pa.Table, events: pa.Table) -> Int64:
    """Return a small number for the process and correlation ID of each call, then of each event.

    The numbers count from 0. Equal pairs have equal numbers.
    """
    processes_of_calls = process_of(calls["globalTid"].to_numpy())
    processes_of_events = events["globalPid"].to_numpy()
    process_codes = joint_codes(processes_of_calls, processes_of_events)
    ids_of_calls = filled(calls["correlationId"])
    ids_of_events = events["correlationId"].to_numpy()
    id_codes = joint_codes(ids_of_calls, ids_of_events)
    pair_codes = paired_codes(id_codes, process_codes)
    _, keys = np.unique(pair_codes, return_inverse=True)
    return keys
