"""A run read back from a store: the same tables and operations, without its reports."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.analysis.operations import overlapping_rows
from nsyspipe.analysis.steps import check_steps
from nsyspipe.errors import DatasetError
from nsyspipe.model import schema
from nsyspipe.run.run import Run, steps_source
from nsyspipe.store.details import Details, parse_details
from nsyspipe.store.find import find_saved
from nsyspipe.store.layout import file_name, partition, published
from nsyspipe.store.read import AGAIN, RunFiles, check_ranks, check_steps_known, read_run_files

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from nsyspipe.findings.link_evidence import LinkVerdict
    from nsyspipe.model.fabric import NcclFacts
    from nsyspipe.run.run import RunHeader


# The operations of a saved run, one by one.


def saved_operations(
    files: RunFiles, all_steps: pa.Table, ranks: list[int], steps: tuple[int, int] | None
) -> Iterator[tuple[int, pa.Table, pa.Table]]:
    """Yield what `operations.run_operations` yields, from files.

    Parameters
    ----------
    files
        Of the run.
    all_steps
        `schema.STEPS` of the run.
    ranks
        In order.

    Raises
    ------
    OptionError
        At once, if no rank has such a step.
    DatasetError
        At once, if the run was saved without its operations.
    """
    if steps is not None:
        check_steps(all_steps, steps)
    if ranks and not any(files.has("events", rank) for rank in ranks):
        raise DatasetError(
            f"run {files.run_id}",
            "was saved without its operations",
            fix="analyze the reports again with --out DIR --events",
        )
    return (_of_rank(files, all_steps, rank, steps) for rank in ranks)


def _of_rank(
    files: RunFiles, all_steps: pa.Table, rank: int, steps: tuple[int, int] | None
) -> tuple[int, pa.Table, pa.Table]:
    events = files.table("events", rank)
    ranges = files.table("phase_ranges", rank)
    check_ranks(events, [rank], files.store / partition("events", files.run_id, rank))
    check_ranks(ranges, [rank], files.store / partition("phase_ranges", files.run_id, rank))
    if steps is None:
        return rank, events, ranges
    windows = all_steps.filter(
        pc.and_(pc.equal(all_steps["rank"], rank), _between(all_steps, steps))
    )
    if windows.num_rows:
        span = pc.min(windows["start_ns"]).as_py(), pc.max(windows["end_ns"]).as_py()
        starts, ends = events["start_ns"].to_numpy(), events["end_ns"].to_numpy()
        rows = overlapping_rows(starts, ends, span)
    else:
        rows = np.empty(0, np.int64)
    return rank, events.take(pa.array(rows)), ranges.filter(_between(ranges, steps))


def _between(table: pa.Table, steps: tuple[int, int]) -> pa.ChunkedArray:
    first, last = steps
    return pc.and_(pc.greater_equal(table["step"], first), pc.less_equal(table["step"], last))


# Tables that name steps of which no window was seen, too: a capture ends while data for the next step is fetched.
_OF_OTHER_STEPS = ("collectives", "phases", "steps")
# Tables that name ranks of which no device was recorded, too.
_OF_OTHER_RANKS = ("host_steps", "problems", "ranks", "runs")


@dataclass(frozen=True, repr=False)
class SavedRun(Run):
    """A run that `write.save` wrote: its files are read when the first is needed, all of one save.

    It stays what it was when the run is replaced; its operations alone are read when they are asked for, and
    then an error if they are of another save.

    Attributes
    ----------
    store
        What the user named.
    tables
        The store itself, also where the user named a directory in it.
    label
        Another name for it; None keeps its own.
    """

    store: Path
    tables: Path
    run_id: str
    label: str | None = None

    def _table(self, name: str) -> pa.Table:
        if name == "summary":
            return schema.conform(self._table("runs"), schema.SUMMARY)
        if name not in self._read:
            if name == "host_steps" and self._details.n_host_steps is None:
                return schema.HOST_STEPS.empty()  # saved before there was this table
            table = self._files.table(name)
            if name not in _OF_OTHER_RANKS:
                path = self._path(name)
                check_ranks(table, self._table("ranks")["rank"].to_pylist(), path)
                if name not in _OF_OTHER_STEPS:
                    check_steps_known(table, self._table("steps"), path)
            self._read[name] = table
        return self._read[name]

    @cached_property
    def _read(self) -> dict[str, pa.Table]:
        return {}

    @cached_property
    def _files(self) -> RunFiles:
        return read_run_files(self.tables, self.run_id)

    def digest_of(self, file: str) -> str:
        """Return the digest of one of its files, by its `layout.file_name`.

        Raises
        ------
        DatasetError
            If it cannot be read.
        """
        return self._files.digest(file)

    def _path(self, name: str) -> Path:
        return self.tables / published(file_name(name), self.run_id)

    @cached_property
    def _row(self) -> dict[str, Any]:
        rows = self._table("runs")
        if rows.num_rows != 1:
            raise DatasetError(
                str(self._path("runs")), f"holds {rows.num_rows} rows of the run, not 1", fix=AGAIN
            )
        found: dict[str, Any] = rows.to_pylist()[0]
        return found

    @cached_property
    def _details(self) -> Details:
        """What no column holds, as objects again."""
        try:
            return parse_details(self._row["details"])
        except ValueError as error:
            path = str(self._path("runs"))
            raise DatasetError(path, f"has no usable details ({error})", fix=AGAIN) from error

    @property
    def inputs(self) -> tuple[Path, ...]:
        return (self.store,)

    @cached_property
    def header(self) -> RunHeader:
        header = self._details.header
        found = header.steps_from or steps_source(
            header.n_ranks,
            self._details.n_host_steps or 0,
            has_family=self.step_family is not None,
        )
        return replace(
            header, run_id=self.run_id, label=self.label or header.label, steps_from=found
        )

    @property
    def step_family(self) -> str | None:
        family: str | None = self._row["step_family"]
        return family

    @property
    def skipped_steps(self) -> list[int]:
        return list(self._details.skipped_steps)

    @property
    def nccl(self) -> NcclFacts | None:
        return self._details.nccl

    @property
    def link(self) -> LinkVerdict | None:
        return self._details.link

    def operations(
        self, steps: tuple[int, int] | None = None
    ) -> Iterator[tuple[int, pa.Table, pa.Table]]:
        ranks = self.ranks["rank"].to_pylist()
        return saved_operations(self._files, self.steps(), ranks, steps)


def open_saved(store: Path, run_id: str | None = None, label: str | None = None) -> SavedRun:
    """Open a run of a store.

    Parameters
    ----------
    run_id
        Which; None where there is only one.
    label
        What to call it from now on; None leaves the saved one.

    Raises
    ------
    OptionError
        If the store has several runs and `run_id` is None.
    DatasetError
        If there is no such run, or its row cannot be read.
    """
    tables, details = find_saved(store, run_id)
    return SavedRun(store, tables, details, label)
