"""Print one table of a sweep's runs, and write it as CSV: ``sweep_table.py DIRECTORY RUN...``.

What a run's training program measured is in ``RUN.train.json``, what nsyspipe found in
``RUN.analysis.json``.
"""

from __future__ import annotations

import csv
import json
import math
import sys
from pathlib import Path
from typing import Any, NamedTuple

_HEADS = (
    "run",
    "ranks",
    "step",
    "images/s",
    "scaling",
    "comm",
    "exposed",
    "hidden",
    "waits",
    "copies",
    "link",
)
_SHARES = ("comm_share", "exposed_comm_share", "backward_overlap_ratio", "wait_share")
_NS_PER_MS = 1e6


def main() -> int:
    """Print the table of the runs that have left something."""
    folder = Path(sys.argv[1])
    names = sys.argv[2:]
    all_runs = {name: _read_run(folder, name) for name in names}
    # Runs that have left something.
    runs = {name: run for name, run in all_runs.items() if run.train or run.analysis}
    if not runs:
        print("no run has left anything to compare", file=sys.stderr)
        return 0
    train_of_baseline = runs.get("baseline", _NO_RUN).train
    table = [_HEADS]
    for name, run in runs.items():
        table.append(_row(name, run, train_of_baseline))
    with (folder / "table.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(table)
    column_widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        name_cell = row[0].ljust(column_widths[0])
        cells = [name_cell, *map(str.rjust, row[1:], column_widths[1:])]
        print("  ".join(cells).rstrip())
    for line in _overhead_lines(runs):
        print(line)
    print(f"pages: {folder}/*.html, run store: {folder}/runs, table: {folder}/table.csv")
    return 0


class _Run(NamedTuple):
    """What a run has left: the documents of its training program and of analyze, or None."""

    train: dict[str, Any] | None
    analysis: dict[str, Any] | None


_NO_RUN = _Run(None, None)


def _read_run(folder: Path, name: str) -> _Run:
    train = _json(folder / f"{name}.train.json")
    analysis = _json(folder / f"{name}.analysis.json")
    return _Run(train, analysis)


def _json(path: Path) -> dict[str, Any] | None:
    """Return the object in a file of JSON; None if it has none, or cannot be read."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) else None


def _row(name: str, run: _Run, train_of_baseline: dict[str, Any] | None) -> tuple[str, ...]:
    """Return the cells of a run, in the order of `_HEADS`. A figure that is missing is ``-``."""
    summary = _part(run.analysis, "summary")
    n_ranks_in_reports = _number(_part(run.analysis, "run"), "n_ranks")
    # A figure of 0 is missing too.
    n_ranks = _number(run.train, "world_size") or n_ranks_in_reports or None
    step_ns = _number(summary, "step_time_ns") or _number(run.train, "median_step_ns")
    copies_ns = _number(summary, "dtod_ns_per_step")
    return (
        name,
        _text(n_ranks, "{:.0f}"),
        _text(_in_ms(step_ns), "{:.1f} ms"),
        _text(_number(run.train, "images_per_s"), "{:.0f}"),
        _text(_scaling(run.train, train_of_baseline), "{:.0%}"),
        *(_text(_number(summary, share), "{:.1%}") for share in _SHARES),
        _text(_in_ms(copies_ns), "{:.2f} ms"),
        ", ".join(sorted(_link_kinds(run.analysis))) or "-",
    )


def _in_ms(time_ns: float | None) -> float | None:
    return None if time_ns is None else time_ns / _NS_PER_MS


def _part(document: dict[str, Any] | None, name: str) -> dict[str, Any]:
    """Return an object inside a document; an empty one if there is none."""
    part = (document or {}).get(name)
    return part if isinstance(part, dict) else {}


def _number(document: dict[str, Any] | None, name: str) -> float | None:
    """Return a finite number in a document; None for anything else, such as True."""
    value = (document or {}).get(name)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return value if is_number and math.isfinite(value) else None


def _link_kinds(analysis: dict[str, Any] | None) -> set[str]:
    rows = (analysis or {}).get("links")
    kinds = [row.get("kind") for row in rows or [] if isinstance(row, dict)]
    return {kind for kind in kinds if kind and isinstance(kind, str)}


def _scaling(
    train: dict[str, Any] | None, train_of_baseline: dict[str, Any] | None
) -> float | None:
    """Return the throughput of a run, divided by that of as many single GPUs.

    The baseline runs on one GPU. None if one of the throughputs is missing.
    """
    images_per_s = _number(train, "images_per_s")
    images_per_s_of_one = _number(train_of_baseline, "images_per_s")
    if not images_per_s or not images_per_s_of_one:
        return None
    n_ranks = _number(train, "world_size") or 1
    return images_per_s / (images_per_s_of_one * n_ranks)


def _overhead_lines(runs: dict[str, _Run]) -> list[str]:
    """Return a line about the cost of capturing for each run that was also made without nsys."""
    lines = []
    for name, run in runs.items():
        without_nsys = runs.get(f"{name}-unprofiled", _NO_RUN)
        captured_images_per_s = _number(run.train, "images_per_s")
        plain_images_per_s = _number(without_nsys.train, "images_per_s")
        if captured_images_per_s and plain_images_per_s:
            lost_share = 1 - captured_images_per_s / plain_images_per_s
            lines.append(f"capturing {name} cost {lost_share:.1%} of its throughput")
    return lines


def _text(value: float | None, text_format: str) -> str:
    return "-" if value is None else text_format.format(value)


if __name__ == "__main__":
    sys.exit(main())
