"""What each nsys export version has, found by looking: table and column names, never version numbers alone.

Exports are lazy (a table without events may be absent), columns come and go in the middle of tables,
and a few were renamed. All of that is known here and nowhere else.

==========================  ===================================================================
2020-21 (no meta table)     ``TARGET_INFO_GPU.deviceId``; no session start, no environment
2.9.1-3.1.7                 ``EXPORT_META_DATA``; session start appears
3.4.0 on                    ``META_DATA_EXPORT`` and ``META_DATA_CAPTURE``
3.11.1 on                   ``CUPTI_ACTIVITY_KIND_GRAPH_TRACE``
3.16.1 on                   ``NVTX_EVENTS.binaryData``
3.17.1 on                   ``TARGET_INFO_CUDA_DEVICE`` maps CUDA ordinals to GPUs
3.20.3 on                   ``NVTX_PAYLOAD_SCHEMAS`` and ``_ENTRIES``
==========================  ===================================================================
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["NEWEST_TESTED", "Catalog", "is_newer_than_tested", "is_read", "knows_overhead"]

KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
MEMCPY = "CUPTI_ACTIVITY_KIND_MEMCPY"
MEMSET = "CUPTI_ACTIVITY_KIND_MEMSET"
GRAPH = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
SYNCHRONIZATION = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
NVTX = "NVTX_EVENTS"
STRINGS = "StringIds"
EXPORT_META = "META_DATA_EXPORT"
EXPORT_META_OLD = "EXPORT_META_DATA"
CAPTURE_META = "META_DATA_CAPTURE"
SESSION_START = "TARGET_INFO_SESSION_START_TIME"
GPU = "TARGET_INFO_GPU"
CUDA_DEVICE = "TARGET_INFO_CUDA_DEVICE"
SYSTEM_ENV = "TARGET_INFO_SYSTEM_ENV"
OVERHEAD = "PROFILER_OVERHEAD"
PAYLOAD_SCHEMAS = "NVTX_PAYLOAD_SCHEMAS"
PAYLOAD_ENTRIES = "NVTX_PAYLOAD_SCHEMA_ENTRIES"
OS_RUNTIME = "OSRT_API"
CPU_SAMPLES = "COMPOSITE_EVENTS"
GPU_METRICS = "GPU_METRICS"
PAYLOAD_ENUMS = "NVTX_PAYLOAD_ENUMS"

_READ = {
    one.lower()
    for one in (
        KERNEL, MEMCPY, MEMSET, GRAPH, RUNTIME, NVTX, STRINGS, EXPORT_META, EXPORT_META_OLD, CAPTURE_META,
        SESSION_START, GPU, CUDA_DEVICE, SYSTEM_ENV, OVERHEAD, PAYLOAD_SCHEMAS, PAYLOAD_ENTRIES, PAYLOAD_ENUMS,
        SYNCHRONIZATION, OS_RUNTIME, CPU_SAMPLES, GPU_METRICS,
    )
}  # fmt: skip
# A file with none of these is no nsys export.
_SIGNS = (STRINGS, EXPORT_META, EXPORT_META_OLD, KERNEL, RUNTIME, NVTX, SESSION_START)

# Some exporters append a version to a table's name.
_VERSIONED = re.compile(r"^(?P<table>.+)_V(?P<version>[0-9]{1,9})$")

NEWEST_TESTED = (3, 25)
# Every export looked at knows `OVERHEAD`; this is the oldest of them that says its version.
_OLDEST_WITH_OVERHEAD = (2, 9)


@dataclass(frozen=True)
class Catalog:
    """The tables and columns that one report really has.

    Parameters
    ----------
    columns
        Column names by table name, as reflected.
    """

    columns: Mapping[str, frozenset[str]]

    def physical(self, table: str) -> str | None:
        """Return the name under which a table exists (``_V3`` suffixes included), or None."""
        if table in self.columns:
            return table
        matches = [m for m in map(_VERSIONED.match, self.columns) if m and m["table"] == table]
        return max(matches, key=lambda m: int(m["version"])).group() if matches else None

    def has(self, table: str, *names: str) -> bool:
        """Tell whether a table exists and has all of these columns."""
        physical = self.physical(table)
        return physical is not None and self.columns[physical].issuperset(names)

    def first(self, table: str, *names: str) -> str | None:
        """Return the first of these columns that a table has, or None."""
        return next((name for name in names if self.has(table, name)), None)

    @property
    def is_nsys(self) -> bool:
        """Whether Nsight Systems wrote this database."""
        return any(self.physical(table) for table in _SIGNS)

    @property
    def export_meta(self) -> str | None:
        """Name of the table that describes the export, or None."""
        return self.physical(EXPORT_META) or self.physical(EXPORT_META_OLD)


def is_read(table: str) -> bool:
    """Tell whether a table of this name, in any case and of any version, is one that is read."""
    found = _VERSIONED.match(table.upper())
    return table.lower() in _READ or (found is not None and found["table"].lower() in _READ)


def is_newer_than_tested(schema_version: str | None) -> bool:
    """Tell whether an export schema version is newer than any that nsyspipe was tried on."""
    found = _numbers(schema_version)
    return found is not None and found > NEWEST_TESTED


def knows_overhead(schema_version: str | None) -> bool:
    """Tell whether exports of a schema version have the table `OVERHEAD` when there is something in it."""
    found = _numbers(schema_version)
    return found is not None and found >= _OLDEST_WITH_OVERHEAD


def _numbers(schema_version: str | None) -> tuple[int, int] | None:
    found = re.match(r"(\d+)\.(\d+)", schema_version or "")
    return (int(found[1]), int(found[2])) if found else None
