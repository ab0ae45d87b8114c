"""Read one table of a saved run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from nsyspipe.errors import DatasetError
from nsyspipe.schema import DATASET, SCHEMA_VERSION
from nsyspipe.store.layout import PART, partition

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["AGAIN", "read_table"]

AGAIN = "analyze the reports again with --out"


def read_table(tables: Path, name: str, run_id: str, rank: int | None = None) -> pa.Table:
    """Return one table of a run without its ``run_id``, with the columns that this version knows.

    A column that a former version did not have is null.

    Raises
    ------
    DatasetError
        If the file is missing, damaged, of a later version, or lacks a column that is never null.
    """
    path = tables / partition(name, run_id, rank) / PART
    try:
        # One file as it is: the directory's name must not add a column of its own.
        found = pq.ParquetFile(path).read()
    except FileNotFoundError as error:
        raise DatasetError(str(path), "is missing from the saved run", fix=AGAIN) from error
    except (OSError, pa.ArrowException) as error:
        raise DatasetError(str(path), f"cannot be read ({error})", fix=AGAIN) from error
    version = (found.schema.metadata or {}).get(b"schema_version", b"").decode()
    if not version.isdecimal() or int(version) > SCHEMA_VERSION:
        raise DatasetError(
            str(path),
            f"has columns of version {version or 'unknown'}, this nsyspipe knows {SCHEMA_VERSION}",
            fix="a newer nsyspipe",
        )
    return _conformed(path, found, name)


def _conformed(path: Path, found: pa.Table, name: str) -> pa.Table:
    wanted = DATASET[name]
    lacking = [
        column.name
        for column in wanted.columns
        if column.name not in found.column_names and not column.nullable
    ]
    if lacking:
        raise DatasetError(str(path), f"lacks the columns {', '.join(lacking)}", fix=AGAIN)
    columns = [
        found[one.name] if one.name in found.column_names else pa.nulls(found.num_rows, one.type)
        for one in wanted.columns
    ]
    table = pa.table(columns, names=wanted.names).cast(wanted.arrow)
    return table if name == "runs" else table.drop_columns(["run_id"])
