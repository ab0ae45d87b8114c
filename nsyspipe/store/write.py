"""Save a run in a store."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from nsyspipe.errors import OutputError
from nsyspipe.schema import EVENT_TABLES
from nsyspipe.schema.model import INT, TEXT
from nsyspipe.store.commit import replacing_run
from nsyspipe.store.layout import check_run_id, file_name
from nsyspipe.store.saved_tables import saved, saved_tables

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from nsyspipe.run import Run

__all__ = ["check_store", "save"]

_ROWS_PER_GROUP = 1_000_000


def save(
    run: Run,
    store: Path,
    *,
    events: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
) -> None:
    """Write a run's tables; they replace what the store has of the same run id, and nothing else.

    Readers see the store as it was until all tables are there, and then all of them. Two writers may
    be at work at once; of two that write one run id, the later wins. Nothing depends on the time of
    writing: the same run gives the same bytes.

    Parameters
    ----------
    store
        The directory; made if it is not there.
    events
        Write `schema.EVENTS` and `schema.PHASE_RANGES` too: every operation, one file per rank.
    on_progress
        Called with (ranks written, ranks in all) while operations are written.

    Raises
    ------
    OptionError
        If the run's id cannot name a directory that all readers take for text.
    OutputError
        If the store cannot be written, or the reports lie in it; it is as it was.
    """
    run_id = run.header.run_id
    check_run_id(run_id)
    check_store(run, store)
    tables = saved_tables(run)
    with replacing_run(store, run_id) as staging:
        for name, table in tables.items():
            _write(table, staging / file_name(name))
        if events:
            n_ranks = run.ranks.num_rows
            for n_done, (rank, *found) in enumerate(run.operations(), start=1):
                for name, table in zip(EVENT_TABLES, found, strict=True):
                    _write(saved(name, table, run_id), staging / file_name(name, rank))
                if on_progress:
                    on_progress(n_done, n_ranks)


def check_store(run: Run, store: Path) -> None:
    """Raise if the reports lie in the directory: whoever names it next would get the saved run, not them.

    Raises
    ------
    OutputError
        With another place.
    """
    where = Path(os.path.realpath(store))  # resolve() fails on a link to itself
    reports = [one for one in run.inputs if not one.is_dir()]  # a directory is a saved run
    if any(Path(os.path.realpath(one)).parent == where for one in reports):
        raise OutputError(str(store), "is where the reports lie", fix=f"--out {store / 'runs'}")


def _write(table: pa.Table, path: Path) -> None:
    """Write one file: small times by their differences, texts by dictionary, the rest as it is."""
    kinds = {field.name: field.type for field in table.schema}
    texts = [name for name, kind in kinds.items() if kind == TEXT or name == "run_id"]
    times = [name for name, kind in kinds.items() if kind == INT and name.endswith("_ns")]
    with path.open(
        "wb"
    ) as file:  # closed at once if the disk is full; any name, also one that is no text
        pq.write_table(
            table,
            file,
            compression="zstd",
            compression_level=1,
            row_group_size=_ROWS_PER_GROUP,
            use_dictionary=texts,
            column_encoding=dict.fromkeys(times, "DELTA_BINARY_PACKED"),
            write_page_checksum=True,
        )
