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
from typing import Any

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
    folder, names = Path(sys.argv[1]), sys.argv[2:]
    if not (found := {name: facts for name in names if any(facts := _facts(folder, name))}):
        print("no run has left anything to compare", file=sys.stderr)
        return 0
    alone = found.get("baseline", (None, None))[0]
    rows = [_row(name, *facts, alone) for name, facts in found.items()]
    with (folder / "table.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([_HEADS, *rows])
    widths = [max(len(row[at]) for row in [_HEADS, *rows]) for at in range(len(_HEADS))]
    for row in [_HEADS, *rows]:
        cells = [row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]
        print("  ".join(cells).rstrip())
    for line in _overhead(found):
        print(line)
    print(f"pages: {folder}/*.html, run store: {folder}/runs, table: {folder}/table.csv")
    return 0


def _facts(folder: Path, name: str) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    return _json(folder / f"{name}.train.json"), _json(folder / f"{name}.analysis.json")


def _json(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _row(
    name: str,
    train: dict[str, Any] | None,
    analysis: dict[str, Any] | None,
    alone: dict[str, Any] | None,
) -> tuple[str, ...]:
    summary, run = _part(analysis, "summary"), _part(analysis, "run")
    step_ns = _number(summary, "step_time_ns") or _number(train, "median_step_ns")
    copies_ns = _number(summary, "dtod_ns_per_step")
    return (
        name,
        _text(_number(train, "world_size") or _number(run, "n_ranks") or None, "{:.0f}"),
        _text(step_ns and step_ns / _NS_PER_MS, "{:.1f} ms"),
        _text(_number(train, "images_per_s"), "{:.0f}"),
        _text(_scaling(train, alone), "{:.0%}"),
        *(_text(_number(summary, part), "{:.1%}") for part in _SHARES),
        _text(copies_ns if copies_ns is None else copies_ns / _NS_PER_MS, "{:.2f} ms"),
        ", ".join(sorted(_links(analysis))) or "-",
    )


def _part(document: dict[str, Any] | None, name: str) -> dict[str, Any]:
    found = (document or {}).get(name)
    return found if isinstance(found, dict) else {}


def _number(document: dict[str, Any] | None, name: str) -> float | None:
    found = (document or {}).get(name)
    is_number = isinstance(found, (int, float)) and not isinstance(found, bool)
    return found if is_number and math.isfinite(found) else None


def _links(analysis: dict[str, Any] | None) -> set[str]:
    rows = (analysis or {}).get("links")
    kinds = [row.get("kind") for row in rows or [] if isinstance(row, dict)]
    return {kind for kind in kinds if kind and isinstance(kind, str)}


def _scaling(train: dict[str, Any] | None, alone: dict[str, Any] | None) -> float | None:
    """Return how much of that many single GPUs' throughput is reached."""
    many, one = _number(train, "images_per_s"), _number(alone, "images_per_s")
    if not many or not one:
        return None
    return many / (one * (_number(train, "world_size") or 1))


def _overhead(found: dict[str, Any]) -> list[str]:
    """Say what capturing itself cost, where the same run was made without nsys."""
    lines = []
    for name, (train, _) in found.items():
        plain = found.get(f"{name}-unprofiled", (None, None))[0]
        captured_speed, plain_speed = (_number(one, "images_per_s") for one in (train, plain))
        if captured_speed and plain_speed:
            lines.append(
                f"capturing {name} cost {1 - captured_speed / plain_speed:.1%} of its throughput"
            )
    return lines


def _text(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


if __name__ == "__main__":
    sys.exit(main())
