"""Device operations of a report as canonical Arrow tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from nsyspipe import schema
from nsyspipe.read import versions
from nsyspipe.read.kernels import read_graphs, read_kernels
from nsyspipe.read.rows import OPERATION_COLUMNS, constant, valid_rows

if TYPE_CHECKING:
    import re

    from nsyspipe.read.report import Report
    from nsyspipe.read.strings import Strings

__all__ = ["Operations", "read_operations"]

# Canonical column -> nsys's.
_MEMSET_COLUMNS = OPERATION_COLUMNS | {"bytes": "bytes"}
_COPY_COLUMNS = _MEMSET_COLUMNS | {"copy_kind": "copyKind"}


@dataclass(frozen=True)
class Operations:
    """What ran on the devices.

    Attributes
    ----------
    kernels, copies
        `schema.KERNELS` and `schema.COPIES`.
    n_dropped
        Rows that ended before they started, or had no time.
    n_graphs
        CUDA graphs that were captured as a whole: their kernels cannot be told apart.
    names
        Text of every `name_id` among the kernels.
    name_column
        nsys's column that the kernels' names come from; None when there is none.
    has_names
        Whether any kernel's name is known; true without kernels.
    """

    kernels: pa.Table
    copies: pa.Table
    n_dropped: int
    n_graphs: int
    has_names: bool
    names: dict[int, str]
    name_column: str | None


def read_operations(
    report: Report, strings: Strings, comm_pattern: re.Pattern[str] | None
) -> Operations:
    """Read all device operations; a table that the lazy export left out has no rows."""
    kernels = read_kernels(report, strings, comm_pattern)
    graphs, bad_graphs = read_graphs(report)
    memcpys, bad_memcpys = valid_rows(report, versions.MEMCPY, _COPY_COLUMNS)
    memsets, bad_memsets = valid_rows(report, versions.MEMSET, _MEMSET_COLUMNS)
    memsets |= {"copy_kind": constant(memsets, schema.MEMSET_KIND)}
    copies = [schema.COPIES.table(memcpys), schema.COPIES.table(memsets)]
    return Operations(
        kernels=pa.concat_tables([kernels.table, graphs]),
        copies=pa.concat_tables(copies),
        n_dropped=kernels.n_dropped + bad_graphs + bad_memcpys + bad_memsets,
        n_graphs=graphs.num_rows,
        names=kernels.names,
        name_column=kernels.name_column,
        has_names=not kernels.table.num_rows or bool(kernels.names),
    )
