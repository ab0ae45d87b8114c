"""The lines of Python at which main threads were while GPUs waited for their CPUs, as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.model.names import counted, listed
from nsyspipe.model.python_files import IN_PROGRAM, INNERMOST, NOT_SEEN
from nsyspipe.model.typed_tables import HostLinesTable
from nsyspipe.report.blocks import Field, Table, barred, of, table_of
from nsyspipe.report.units import count_text
from nsyspipe.run.run import Run

# Terminal widths from which on columns are shown that are not needed most.
_NARROW_WIDTH = 60
_STANDARD_WIDTH = 79
_CAPTION = "Lines of Python while the GPU waited"
_KEYS = ("file", "line", "function")
# Causes of idle time, as parts of names of columns, and in words.
_CAUSES = {"input": "data loading", "launch": "late launch", "blocked": "CPU blocked"}
_COUNTS = ("n_idle_samples", "n_idle_steps", *(f"n_{cause}_samples" for cause in _CAUSES))
_IDLE_HINT = "samples of the main thread in idle time that the CPU causes, of all ranks"


def line_table(
    run: Run,
    n_shown: int,
    **layout: Any,  # noqa: ANN401 - of `Table`
) -> Table | None:
    """Return the lines of the program with most samples in idle time.

    If no line of the program has such a sample, return the innermost lines of all files instead.
    None if no sample is in idle time.
    """
    lines = run.host_lines()
    lines_in_program = _sums_of_lines(lines, IN_PROGRAM)
    rows = lines_in_program or _sums_of_lines(lines, INNERMOST)
    if not rows:
        return None
    shown = rows[:n_shown]
    # Each sample has one innermost line, so that it is counted once.
    is_innermost = pc.equal(lines["frame"], INNERMOST)
    innermost_lines = lines.filter(is_innermost)
    n_samples = pc.sum(innermost_lines["n_idle_samples"]).as_py() or 0
    note = _samples_note(n_samples, rows, n_shown)
    return table_of(_CAPTION, shown, _fields(shown), note, **layout)


def _samples_note(n_samples: int, rows: Sequence[Mapping[str, Any]], n_shown: int) -> str:
    """Return where all samples in idle time are: in shown lines, in other lines, and in no line."""
    n_of_rows = [row["n_idle_samples"] for row in rows]
    n_in_shown = sum(n_of_rows[:n_shown])
    places = [f"{count_text(n_in_shown)} at these lines"]
    n_left_out = len(rows[n_shown:])
    if n_left_out:
        n_in_others = sum(n_of_rows[n_shown:])
        lines = counted(n_left_out, "more line")
        places.append(f"{count_text(n_in_others)} at {lines} (table host_lines)")
    n_without_line = n_samples - sum(n_of_rows)
    if n_without_line > 0:
        places.append(f"{count_text(n_without_line)} without a known line of the program")
    n_in_all = max(n_samples, sum(n_of_rows))
    return f"{counted(n_in_all, 'sample')} in idle time: {listed(places)}."


def _sums_of_lines(lines: HostLinesTable, frame: str) -> list[dict[str, Any]]:
    """Return the counts of each line with samples in idle time, summed over ranks.

    `frame` is the kind of lines, `IN_PROGRAM` or `INNERMOST`. The line with most samples is first.
    """
    is_of_frame = pc.equal(lines["frame"], frame)
    # The line of a sample is not known if the sampler came too late, see `NOT_SEEN`.
    is_seen = pc.not_equal(lines["file"], NOT_SEEN)
    # Null if the number of samples is not known. Then `filter` drops the line.
    has_idle_samples = pc.greater(lines["n_idle_samples"], 0)
    is_chosen = pc.and_(pc.and_(is_of_frame, is_seen), has_idle_samples)
    chosen_lines: pa.Table = lines.filter(is_chosen)
    rows_of_lines = chosen_lines.group_by(list(_KEYS), use_threads=False)
    sums = rows_of_lines.aggregate([(name, "sum") for name in _COUNTS])
    names = [name.removesuffix("_sum") for name in sums.column_names]
    most_samples_first = ("n_idle_samples", "descending")
    order_of_equal_lines = [(key, "ascending") for key in _KEYS]
    sorted_sums = sums.rename_columns(names).sort_by([most_samples_first, *order_of_equal_lines])
    rows: list[dict[str, Any]] = sorted_sums.to_pylist()
    return rows


def _fields(rows: Sequence[Mapping[str, Any]]) -> list[Field]:
    """Return the columns of the table. `rows` are its rows, the most samples first."""
    samples = barred(
        rows,
        "samples",
        itemgetter("n_idle_samples"),
        category="idle",
        hint=_IDLE_HINT,
        write=count_text,
    )
    n_steps = of("n_idle_steps", count_text)
    line = Field("line", _line_cell, kind="name")
    function = Field("function", of("function"), kind="name", from_width=_NARROW_WIDTH)
    steps = Field("steps", n_steps, hint="steps with such a sample, of all ranks")
    cause = Field("cause of idle", _cause_cell, kind="word", from_width=_STANDARD_WIDTH)
    return [line, function, samples, steps, cause]


def _line_cell(row: Mapping[str, Any]) -> str:
    return f"{row['file']}:{row['line']}"


def _cause_cell(row: Mapping[str, Any]) -> str:
    """Return the cause of idle time that most samples of a line have."""
    cause = max(_CAUSES, key=lambda name: row[f"n_{name}_samples"])
    return _CAUSES[cause]
