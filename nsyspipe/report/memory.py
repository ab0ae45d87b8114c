"""Sentences about GPU memory: the peaks of torch, what is left, and calls that manage memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

import pyarrow.compute as pc

from nsyspipe.analysis.memory_calls import MEMORY_CALL_COLUMNS
from nsyspipe.model.figures import OTHER_FIGURES
from nsyspipe.model.typed_tables import StepsTable
from nsyspipe.report.blocks import Field, Table, of, table_of
from nsyspipe.report.units import bytes_text, count_text, ms_text
from nsyspipe.run.run import Run

_Rows = Sequence[Mapping[str, Any]]
_Means = Mapping[str, float | None]
_FIGURES = [
    OTHER_FIGURES[name] for name in ("peak_allocated", "peak_reserved", "headroom", "alloc_retries")
]
_COLUMNS = (*MEMORY_CALL_COLUMNS, "exposed_alloc_ns")


def memory_texts(run: Run) -> list[str]:
    """Return what is known of the GPU memory of a run; empty if nothing is."""
    rows: _Rows = run.ranks.to_pylist()
    texts = [*_peak_texts(rows), *_headroom_texts(run, rows), *_retry_texts(run, rows)]
    return [*texts, *_call_texts(run.breakdown())]


def _known_rows_largest_first(rows: _Rows, column: str) -> list[Mapping[str, Any]]:
    """Return the rows of ranks that have a value, the largest first, then the lowest rank."""
    known_rows = [row for row in rows if row[column] is not None]
    # Rows are in order of rank, and the sort is stable.
    return sorted(known_rows, key=itemgetter(column), reverse=True)


def _peak_texts(rows: _Rows) -> Iterator[str]:
    """Yield the largest peak of the memory of PyTorch. Nothing if no peak is known."""
    parts = []
    for column, verb in (
        ("peak_allocated_bytes", "allocated"),
        ("peak_reserved_bytes", "reserved"),
    ):
        largest_first = _known_rows_largest_first(rows, column)
        if largest_first:
            largest = largest_first[0][column]
            parts.append(f"{bytes_text(largest)} {verb}")
    if parts:
        yield f"Peak GPU memory of PyTorch, on the rank with most: {', '.join(parts)}"


def _headroom_texts(run: Run, rows: _Rows) -> Iterator[str]:
    """Yield the headroom of the rank with the least. Nothing if no headroom is known."""
    largest_first = _known_rows_largest_first(rows, "headroom_bytes")
    if not largest_first:
        return
    least = largest_first[-1]
    headroom = bytes_text(least["headroom_bytes"])
    total = bytes_text(least["gpu_memory_bytes"])
    where = _where(run, rows, least)
    yield f"Headroom: {headroom} of {total}{where}. CUDA and NCCL use a part of the headroom"


def _retry_texts(run: Run, rows: _Rows) -> Iterator[str]:
    """Yield the retries of the rank with the most. Nothing if retries are not known."""
    largest_first = _known_rows_largest_first(rows, "n_alloc_retries")
    if not largest_first:
        return
    most = largest_first[0]
    n_retries = most["n_alloc_retries"]
    where = _where(run, rows, most) if n_retries else ""
    yield f"Retries of PyTorch's allocator: {n_retries}{where}"


def _where(run: Run, rows: _Rows, row: Mapping[str, Any]) -> str:
    """Return which of several ranks a row is of."""
    return f" on rank {run.rank_names.name(row['rank'])}" if len(rows) > 1 else ""


def rank_tables(run: Run, n_shown: int) -> Iterator[Table]:
    """Yield a table of the memory of at most `n_shown` ranks. Nothing for a run with one rank.

    Figures that are not known for any rank are left out. Without figures, there is no table.
    """
    rows: _Rows = run.ranks.to_pylist()
    shown_figures = [
        figure for figure in _FIGURES if _known_rows_largest_first(rows, figure.column)
    ]
    if len(rows) == 1 or not shown_figures:
        return
    shown_ranks = run.telling_ranks(n_shown)
    shown_rows = [row for row in rows if row["rank"] in shown_ranks]

    def rank_cell(row: Mapping[str, Any]) -> str:
        return run.rank_names.name(row["rank"])

    fields = [Field("rank", rank_cell)]
    for figure in shown_figures:
        write = bytes_text if figure.unit == "bytes" else count_text
        fields.append(Field(figure.heading, of(figure.column, write)))
    yield table_of("GPU memory of ranks", shown_rows, fields, is_close=True)


def _means(steps: StepsTable) -> _Means:
    """Return the mean of each column about calls. None if a value of the column is not known."""
    means: dict[str, float | None] = {}
    for name in _COLUMNS:
        mean = pc.mean(steps.column(name), skip_nulls=False)
        means[name] = mean.as_py()
    return means


def _call_texts(steps: StepsTable) -> Iterator[str]:
    """Yield how many calls manage memory, and what they cost. Nothing without such calls."""
    means = _means(steps)
    n_allocs = means["n_allocs"]
    n_frees = means["n_frees"]
    if not n_allocs and not n_frees:
        return
    parts = [f"{n_allocs or 0:.4g} to allocate", f"{n_frees or 0:.4g} to free"]
    n_failed = means["n_failed_allocs"]
    if n_failed:
        parts.append(f"{n_failed:.4g} that failed to allocate")
    parts += _costs(means)
    yield f"CUDA calls for GPU memory, per step and rank: {', '.join(parts)}"


def _costs(means: _Means) -> Iterator[str]:
    """Yield how many bytes and how much time the calls of a step take, as far as it is known."""
    for column, verb in (("alloc_bytes", "allocated"), ("freed_bytes", "freed")):
        # Left out if it is 0 or not known.
        if means[column]:
            yield f"{bytes_text(means[column])} {verb}"
    if means["alloc_host_ns"] is not None:
        yield f"{ms_text(means['alloc_host_ns'])} of CPU time"
    if means["exposed_alloc_ns"] is not None:
        yield f"{ms_text(means['exposed_alloc_ns'])} of it while the GPU is idle"
