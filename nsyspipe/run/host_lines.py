"""The table of lines of Python of a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from nsyspipe.analysis.host_lines import (
    HOST_CAUSES,
    FrameCounts,
    HoldCounts,
    HostLines,
    LineCounts,
    count_calls,
    count_functions,
    count_holds,
    count_lines,
)
from nsyspipe.model import schema
from nsyspipe.model.python_files import (
    CALL,
    FUNCTION,
    IN_PROGRAM,
    INNERMOST,
    LET_GO,
    LOCK_HOLDER,
    short_names,
)
from nsyspipe.model.table import Int64, with_values
from nsyspipe.model.typed_tables import HostLinesTable
from nsyspipe.run.digests import Rank, Ranks, are_windows_in
from nsyspipe.run.process import ProcessDigest


def host_lines_table(
    ranks: Ranks, summary_steps: Sequence[int] | Int64, *, is_capture: bool
) -> pa.Table:
    """Return `schema.HOST_LINES`: where threads of Python were in the summary steps."""
    if is_capture:
        return schema.HOST_LINES.empty()
    tables: list[pa.Table] = []
    for rank in sorted(ranks, key=lambda rank: rank.number):
        tables += _tables_of_rank(rank, summary_steps)
    if not tables:
        return schema.HOST_LINES.empty()
    lines = pa.concat_tables(tables)
    paths = paths_of_lines(lines)
    with_names = with_short_names(lines, paths, "after_file")
    return with_short_names(with_names, paths)


def paths_of_lines(table: HostLinesTable) -> set[str]:
    """Return the whole paths of all files in `schema.HOST_LINES`."""
    paths = {*table["path"].to_pylist(), *table["after_path"].to_pylist()}
    return paths - {None}


def with_short_names(
    table: pa.Table, other_paths: Iterable[str] = (), column: str = "file"
) -> pa.Table:
    """Return lines with the names of their files as users see them.

    The column has paths before. Names are relative to the folder that these paths and the others
    have in common.
    """
    paths = table[column].to_pylist()
    known_paths = filter(None, paths)
    names = short_names([*other_paths, *known_paths])
    return with_values(table, column, [names.get(path) for path in paths])


def _tables_of_rank(
    rank: Rank[ProcessDigest], summary_steps: Sequence[int] | Int64
) -> Iterator[pa.Table]:
    """Yield the rows of a rank, in alphabetical order of column ``frame``."""
    samples = _in_summary_steps(rank, rank.process.host_lines, summary_steps)
    samples_of_holder = _in_summary_steps(rank, rank.process.holder_lines, summary_steps)
    number = rank.number
    if samples is not None:
        yield _rows_of_stacks(number, samples, CALL, count_calls(samples))
        yield _rows_of_stacks(number, samples, FUNCTION, count_functions(samples))
        yield _rows(number, samples, INNERMOST, count_lines(samples, samples.innermost))
        yield _rows_of_holds(number, samples, LET_GO, count_holds(samples))
    if samples_of_holder is not None:
        holds = count_holds(samples_of_holder)
        yield _rows_of_holds(number, samples_of_holder, LOCK_HOLDER, holds)
    if samples is not None:
        # `IN_PROGRAM` comes behind `LOCK_HOLDER` in the alphabet.
        yield _rows(number, samples, IN_PROGRAM, count_lines(samples, samples.in_program))


def lock_waits_of_ranks(
    ranks: Ranks, summary_steps: Sequence[int] | Int64
) -> dict[int, dict[str, float]]:
    """Return for how long each rank waits for Python's lock in idle time: ns per step, by cause.

    Ranks whose waits are not known, or that have no summary step, are left out.
    """
    waits_of_ranks = {}
    for rank in ranks:
        waits = rank.process.lock_waits
        is_in_summary = are_windows_in(rank, summary_steps)
        if waits is not None and is_in_summary.any():
            means = {}
            for cause, waits_ns in zip(HOST_CAUSES, waits.ns_by_cause, strict=True):
                summary_waits_ns = waits_ns[is_in_summary]
                means[cause] = float(summary_waits_ns.mean())
            waits_of_ranks[rank.number] = means
    return waits_of_ranks


def without_paths(table: HostLinesTable) -> pa.Table:
    """Return the lines without whole paths, which reveal people and projects."""
    no_paths = [None] * table.num_rows
    without = with_values(table, "path", no_paths)
    return with_values(without, "after_path", no_paths)


def _in_summary_steps(
    rank: Rank[ProcessDigest], samples: HostLines | None, summary_steps: Sequence[int] | Int64
) -> HostLines | None:
    """Return the samples of a rank that are in summary steps, None if there are none."""
    if samples is None:
        return None
    is_in_summary = are_windows_in(rank, summary_steps)
    chosen = samples.chosen(is_in_summary[samples.window])
    return chosen if chosen.window.size else None


def _rows_of_stacks(number: int, samples: HostLines, frame: str, counts: FrameCounts) -> pa.Table:
    """Return the rows of calls or functions of one rank, with whole paths as files.

    `frame` says which of both they are. Such rows have a depth in the stack. Functions also have
    their first and last sampled line.
    """
    rows = _rows(number, samples, frame, counts.counts)
    changed: dict[str, Any] = {"mean_depth": counts.mean_depth}
    if frame == FUNCTION:
        changed |= {"line": counts.first_line, "last_line": counts.last_line}
    for name, values in changed.items():
        rows = with_values(rows, name, values)
    return rows


def _rows_of_holds(number: int, samples: HostLines, frame: str, holds: HoldCounts) -> pa.Table:
    """Return the rows of one rank about when a thread held Python's lock, with paths as files.

    `frame` says which thread it is. Such rows have a second line: that of the sample before.
    """
    rows = _rows(number, samples, frame, holds.counts)
    # Null for no line.
    row_of_line = pa.array(holds.held_after, mask=holds.held_after < 0)
    lines_before = samples.lines.take(row_of_line)
    for name in ("path", "line", "function"):
        rows = with_values(rows, f"after_{name}", lines_before[name])
    # `with_short_names` replaces it.
    return with_values(rows, "after_file", lines_before["path"])


def _rows(number: int, samples: HostLines, frame: str, counts: LineCounts) -> pa.Table:
    """Return the rows of one rank and one kind of line, with whole paths as files.

    Columns about idle time are null if its causes are not known.
    """
    n_rows = counts.line.size
    lines = samples.lines.take(pa.array(counts.line))
    columns: dict[str, Any] = {name: lines[name] for name in ("path", "line", "function")}
    columns["rank"] = np.full(n_rows, number)
    columns["frame"] = pa.repeat(frame, n_rows)
    # `with_short_names` replaces it.
    columns["file"] = lines["path"]
    columns["last_line"] = pa.nulls(n_rows, pa.int64())
    columns["mean_depth"] = pa.nulls(n_rows, pa.float64())
    for name in ("after_file", "after_function", "after_path"):
        columns[name] = pa.nulls(n_rows, pa.string())
    columns["after_line"] = pa.nulls(n_rows, pa.int64())
    columns["n_samples"] = counts.n_samples
    of_idle_time = {
        "n_idle_samples": counts.n_idle_samples,
        "n_idle_steps": counts.n_idle_windows,
    }
    for cause_index, cause in enumerate(HOST_CAUSES):
        of_idle_time[f"n_{cause}_samples"] = counts.n_samples_by_cause[cause_index]
        of_idle_time[f"n_{cause}_steps"] = counts.n_windows_by_cause[cause_index]
    unknown = pa.nulls(n_rows, pa.int64())
    for name, values in of_idle_time.items():
        columns[name] = pa.array(values) if samples.is_cause_known else unknown
    return schema.HOST_LINES.table(columns)
