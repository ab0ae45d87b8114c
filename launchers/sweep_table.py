"""Print one table of a sweep's runs, and write it as CSV: ``sweep_table.py DIRECTORY RUN...``.

What a run's training program measured is in ``RUN.train.json``, what nsyspipe found in ``RUN.analysis.json``.
"""

from __future__ import annotations

import csv
import json
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
_NS_PER_MS = 1e6


def main() -> int:
    """Print the table of the runs that have left something."""
    folder, names = Path(sys.argv[1]), sys.argv[2:]
    found = {name: facts for name in names if any(facts := _facts(folder, name))}
    if not found:
        print("no run has left anything to compare", file=sys.stderr)
        return 0
    alone = found.get("baseline", (None, None))[0]
    rows = [_row(name, *facts, alone) for name, facts in found.items()]
    with (folder / "table.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([_HEADS, *rows])
    widths = [max(len(row[at]) for row in [_HEADS, *rows]) for at in range(len(_HEADS))]
    for row in [_HEADS, *rows]:
        cells = (
            text.ljust(width) if at == 0 else text.rjust(width)
            for at, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        print("  ".join(cells).rstrip())
    for line in _overhead(found):
        print(line)
    print(f"pages: {folder}/*.html, dataset: {folder}/runs, table: {folder}/table.csv")
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
    train, summary = train or {}, (analysis or {}).get("summary", {})
    step_ns = summary.get("step_time_ns")
    step_ms = step_ns / _NS_PER_MS if step_ns else train.get("median_step_ms")
    copies = summary.get("dtod_ns_per_step")
    return (
        name,
        _text(train.get("world_size") or (analysis or {}).get("run", {}).get("n_ranks"), "{:d}"),
        _text(step_ms, "{:.1f} ms"),
        _text(train.get("images_per_s"), "{:.0f}"),
        _text(_scaling(train, alone), "{:.0%}"),
        *(
            _text(summary.get(f"{part}"), "{:.1%}")
            for part in ("comm_share", "exposed_comm_share", "backward_overlap_ratio", "wait_share")
        ),
        _text(copies / _NS_PER_MS if copies is not None else None, "{:.2f} ms"),
        ", ".join(
            sorted({row["kind"] for row in (analysis or {}).get("links", []) if row.get("kind")})
        )
        or "-",
    )


def _scaling(train: dict[str, Any], alone: dict[str, Any] | None) -> float | None:
    """Return how much of that many single GPUs' throughput is reached."""
    if not alone or not train.get("images_per_s") or not alone.get("images_per_s"):
        return None
    return float(train["images_per_s"] / (alone["images_per_s"] * train.get("world_size", 1)))


def _overhead(found: dict[str, Any]) -> list[str]:
    """Say what capturing itself cost, where the same run was made without nsys."""
    lines = []
    for name, (train, _) in found.items():
        plain = found.get(f"{name}-unprofiled", (None, None))[0]
        if train and plain and plain.get("images_per_s"):
            lost = 1 - train["images_per_s"] / plain["images_per_s"]
            lines.append(f"capturing {name} cost {lost:.1%} of its throughput")
    return lines


def _text(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


if __name__ == "__main__":
    sys.exit(main())
