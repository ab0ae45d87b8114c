"""Read one table of a saved run."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from nsyspipe.errors import DatasetError
from nsyspipe.schema import DATASET, SCHEMA_VERSION
from nsyspipe.store.layout import file_of

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
    path = file_of(tables, name, run_id, rank)
    try:
        # One file as it is: the directory's name must not add a column of its own. And opened by Arrow: its threads
        # may let go of Python's bytes when the interpreter is gone, which aborts the process.
        with (
            pa.OSFile(os.fsencode(path)) as raw,
            pq.ParquetFile(raw, page_checksum_verification=True) as file,
        ):
            _check_version(path, file.schema_arrow)
            found = file.read()
        return _conformed(path, found, name)
    except FileNotFoundError as error:
        if not tables.is_dir():
            raise DatasetError(
                f"run {run_id}", "was replaced or removed while it was read", fix="read it again"
            ) from error
        raise DatasetError(str(path), "is missing from the saved run", fix=AGAIN) from error
    except (OSError, ValueError, pa.ArrowException) as error:
        why = " ".join(str(error).split())
        raise DatasetError(str(path), f"cannot be read ({why})", fix=AGAIN) from error


def _check_version(path: Path, found: pa.Schema) -> None:
    version = (found.metadata or {}).get(b"schema_version", b"").decode(errors="replace")
    if not version.isdecimal() or int(version) > SCHEMA_VERSION:
        raise DatasetError(
            str(path),
            f"has columns of version {version or 'unknown'}, this nsyspipe knows {SCHEMA_VERSION}",
            fix="a newer nsyspipe",
        )


def _conformed(path: Path, found: pa.Table, name: str) -> pa.Table:
    wanted, there = DATASET[name], set(found.column_names)
    lacking = [one.name for one in wanted.columns if not (one.nullable or one.name in there)]
    if lacking:
        raise DatasetError(str(path), f"lacks the columns {', '.join(lacking)}", fix=AGAIN)
    columns = [
        found[one.name] if one.name in there else pa.nulls(found.num_rows, one.type)
        for one in wanted.columns
    ]
    table = pa.table(columns, names=wanted.names).cast(wanted.arrow)
    return table if name == "runs" else table.drop_columns(["run_id"])
