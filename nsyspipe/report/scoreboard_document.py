"""The JSON document of a scoreboard, and its table as CSV: base units, null (or nothing) where not recorded."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from nsyspipe.report.document import dumps
from nsyspipe.report.written import json_of
from nsyspipe.schema import SCHEMA_VERSION
from nsyspipe.untrusted import printable
from nsyspipe.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from nsyspipe.scoreboard.board import Scoreboard

__all__ = [
    "identity_of",
    "identity_of_csv",
    "identity_of_document",
    "scoreboard_csv",
    "scoreboard_document",
    "scoreboard_document_text",
]

# What a spreadsheet takes for a formula at the start of a cell.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_LARGEST_FILE = 2**26


def scoreboard_document(board: Scoreboard) -> dict[str, Any]:
    """Return the document as plain Python values, in a fixed order; ``captures`` are the run ids of a run."""
    captures = {side.label: [run.header.run_id for run in side.runs] for side in board.sides}
    rows = board.table.to_pylist()
    return {
        "schema_version": SCHEMA_VERSION,
        "tool_version": __version__,
        "reference": board.reference,
        "sort": board.sort,
        "min_effect_pct": round(100 * board.rules.min_effect, 12),
        "confidence": board.rules.confidence,
        "is_forced": board.rules.is_forced,
        "settings_file": board.rules.settings_file,
        "runs": [
            {key: value for key, value in row.items() if key != "run_ids"}
            | {"captures": captures[row["label"]]}
            for row in rows
        ],
        "kinds": [
            asdict(kind) | {"labels": list(kind.labels), "level_with": list(kind.level_with)}
            for kind in board.kinds
        ],
        "comparability": board.checks.to_pylist(),
        "problems": board.problems.to_pylist(),
    }


def scoreboard_document_text(board: Scoreboard) -> str:
    """Return the document as JSON."""
    return dumps(scoreboard_document(board))


def scoreboard_csv(board: Scoreboard) -> str:
    """Return the table as CSV: one row per run, the columns of `tables.SCOREBOARD`, nothing where null.

    A name that a spreadsheet would take for a formula begins with an apostrophe.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(board.table.column_names)
    for row in board.table.to_pylist():
        writer.writerow([_cell(value) for value in row.values()])
    return text.getvalue()


def identity_of(board: Scoreboard) -> str:
    """Return what tells scoreboards apart, as a hash: the run ids of their runs, in whatever order."""
    return _hashed([run.header.run_id for run in side.runs] for side in board.sides)


def identity_of_document(path: Path) -> str | None:
    """Return the same of a JSON document; None for any other file."""
    found = json_of(path)
    try:
        captures = [row["captures"] for row in found["runs"]]
        return _hashed(captures) if found["reference"] else None
    except (KeyError, TypeError):
        return None


def identity_of_csv(path: Path, board: Scoreboard) -> str | None:
    """Return the identity of a board if a CSV file is of the same runs; None if it is not."""
    try:
        if path.stat().st_size > _LARGEST_FILE:
            return None
        rows = list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))))
    except (OSError, ValueError, csv.Error):
        return None
    ours = sorted(_cell(ids) for ids in board.table["run_ids"].to_pylist())
    there = sorted(str(row.get("run_ids")) for row in rows)
    return identity_of(board) if there == ours else None


def _cell(value: object) -> str:
    if isinstance(value, str):
        text = printable(value)
        return f"'{text}" if text.startswith(_FORMULA) else text
    return "" if value is None else str(value)


def _hashed(captures: Iterable[Iterable[str]]) -> str:
    ids = sorted(sorted(map(str, one)) for one in captures)
    return hashlib.sha256(json.dumps(ids).encode()).hexdigest()
