"""From the digests of all reports to the tables of one run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe import schema
from nsyspipe.metrics.summary import with_ratios
from nsyspipe.placing import PlacedProcess, place, world_size
from nsyspipe.ranks import number_ranks
from nsyspipe.run_problems import of_ranks, of_reports, of_steps, problems_table
from nsyspipe.selection import Selection, select_steps

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from nsyspipe.digest import ReportDigest

    Int64 = NDArray[np.int64]

__all__ = ["RunTables", "merge"]


@dataclass(frozen=True)
class RunTables:
    """The tables of one run: `schema.RANKS`, `STEPS`, `PHASES`, `PROBLEMS`, and how steps were selected."""

    ranks: pa.Table
    steps: pa.Table
    phases: pa.Table
    problems: pa.Table
    selection: Selection
    world_size: int | None


def merge(
    digests: Sequence[ReportDigest],
    names: Sequence[str],
    *,
    rank_map: Mapping[str, int] | None,
    skip_first: int | None,
    why_no_steps: str | None,
) -> RunTables:
    """Join the digests of a run's reports.

    Parameters
    ----------
    digests
        One per report, all on the same step family.
    names
        What to call each report.
    why_no_steps
        Why the run has no step family; None when it has one.

    Raises
    ------
    RankConflictError, OptionError
        As `ranks.number_ranks` and `selection.select_steps` do.
    """
    placed = place(digests)
    ranks, source, rank_problems = number_ranks(digests, placed, rank_map)
    order = sorted(range(len(placed)), key=ranks.__getitem__)
    placed, ranks = [placed[at] for at in order], [ranks[at] for at in order]
    numbering = _step_numbers(placed, has_family=why_no_steps is None)
    steps = [
        _rank_steps(one, rank, own) for one, rank, own in zip(placed, ranks, numbering, strict=True)
    ]
    table = pa.concat_tables([schema.conform(one, _WINDOWS) for one in steps] or [_WINDOWS.empty()])
    selection = select_steps(
        table["step"].to_numpy(),
        table["start_ns"].to_numpy(),
        table["is_complete"].to_numpy(zero_copy_only=False)
        if table.num_rows
        else np.empty(0, np.bool_),
        len(placed),
        skip_first,
    )
    in_summary = pc.is_in(table["step"], value_set=pa.array(selection.steps, pa.int64()))
    columns = {name: table[name] for name in table.column_names} | {"in_summary": in_summary}
    size = world_size(digests)
    found = [
        *of_reports(digests, names, placed, ranks),
        *rank_problems,
        *of_ranks(placed, ranks, size),
        *of_steps(table, ranks, selection, why_no_steps),
    ]
    return RunTables(
        ranks=_ranks_table(placed, ranks, source, names),
        steps=schema.STEPS.table(with_ratios(columns)),
        phases=_phases_table(placed, ranks, numbering),
        problems=problems_table(found),
        selection=selection,
        world_size=size,
    )


_DERIVED = {"in_summary", *(name for name in schema.FIGURES)}
_WINDOWS = schema.TableSchema(
    "windows",
    "Steps before selection.",
    schema.STEPS.key,
    tuple(column for column in schema.STEPS.columns if column.name not in _DERIVED),
)


def _step_numbers(placed: Sequence[PlacedProcess], *, has_family: bool) -> list[Int64]:
    """Return each rank's step number by member: the text's one integer if that works on every rank, else order."""
    if not has_family:
        return [np.zeros(1, np.int64) for _ in placed]
    columns = [one.process.members["number"] for one in placed]
    if all(not column.null_count and len(pc.unique(column)) == len(column) for column in columns):
        return [column.to_numpy() for column in columns]
    return [np.arange(len(column)) for column in columns]


def _rank_steps(placed: PlacedProcess, rank: int, numbers: Int64) -> pa.Table:
    windows = placed.process.windows
    columns = {
        name: windows[name]
        for name in windows.column_names
        if name not in ("member", "start_ns", "end_ns")
    }
    return pa.table(
        {
            "rank": pa.array(np.full(windows.num_rows, rank)),
            "step": pa.array(numbers[windows["member"].to_numpy()]),
            "start_ns": pa.array(windows["start_ns"].to_numpy() + placed.shift_ns),
            "end_ns": pa.array(windows["end_ns"].to_numpy() + placed.shift_ns),
            **columns,
        }
    )


def _ranks_table(
    placed: Sequence[PlacedProcess], ranks: Sequence[int], source: str, names: Sequence[str]
) -> pa.Table:
    rows = [
        {
            "rank": rank,
            "local_rank": one.report.facts.number("LOCAL_RANK") if one.is_alone else None,
            "report": names[one.argument],
            "pid": one.process.pid,
            "device_id": one.process.device_id,
            "device_ids": ",".join(map(str, one.process.device_ids)),
            "gpu_name": one.report.facts.gpu_name(one.process.pid, one.process.device_id),
            "host": one.report.facts.host,
            "rank_source": source,
            "n_kernels": one.process.n_kernels,
            "n_comm": one.process.n_comm,
            "n_dtod": one.process.n_dtod,
            "clock_shift_ns": one.shift_ns,
        }
        for one, rank in zip(placed, ranks, strict=True)
    ]
    return schema.RANKS.from_rows(rows)


def _phases_table(
    placed: Sequence[PlacedProcess], ranks: Sequence[int], numbering: Sequence[Int64]
) -> pa.Table:
    tables = []
    for one, rank, numbers in zip(placed, ranks, numbering, strict=True):
        phases = one.process.phases
        columns = {name: phases[name] for name in phases.column_names if name != "member"}
        columns["rank"] = pa.array(np.full(phases.num_rows, rank))
        columns["step"] = pa.array(
            numbers[phases["member"].to_numpy()] if phases.num_rows else np.empty(0, np.int64)
        )
        tables.append(schema.PHASES.table(columns))
    merged = pa.concat_tables(tables or [schema.PHASES.empty()])
    return schema.conform(
        merged.sort_by([(name, "ascending") for name in schema.PHASES.key]), schema.PHASES
    )
