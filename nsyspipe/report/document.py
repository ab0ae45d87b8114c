"""The JSON document of a run: every figure in base units, null where nothing was recorded."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from nsyspipe.model.schema import DOCUMENTED, FIGURES
from nsyspipe.model.table import SCHEMA_VERSION
from nsyspipe.version import __version__

if TYPE_CHECKING:
    from nsyspipe.run.run import Run


# Columns that only the API's tables show.
_NOT_IN_RANKS = ("device_ids", "clock_shift_ns")


def document(run: Run) -> dict[str, Any]:
    """Return the document as plain Python values, in a fixed order."""
    summary = run.summary().to_pylist()[0]
    tables = {key: run.table(one.name).to_pylist() for key, one in DOCUMENTED.items()}
    tables["ranks"] = [{k: v for k, v in row.items() if k not in _NOT_IN_RANKS} for row in tables["ranks"]]
    counts = {name: summary.pop(name) for name in ("n_steps", "n_summary_steps")}
    return {
        "schema_version": SCHEMA_VERSION,
        "tool_version": __version__,
        "run": asdict(run.header),
        "summary": counts | {"skipped_steps": run.skipped_steps} | summary | {"by_rank": _extremes(run)},
        "evenness": None if (even := run.evenness()) is None else asdict(even),
        **tables,
        "nccl": None if run.nccl is None else asdict(run.nccl),
        "findings": [row | {"evidence": json.loads(row["evidence"])} for row in run.findings().to_pylist()],
        "problems": run.problems.to_pylist(),
    }


def document_text(run: Run) -> str:
    """Return the document as JSON."""
    return dumps(document(run))


def dumps(found: dict[str, Any]) -> str:
    """Write the document with one row of each table per line, so that two of them can be compared."""
    parts = [f"{json.dumps(key)}: {_value(value)}" for key, value in found.items()]
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _value(value: object) -> str:
    if isinstance(value, list) and value:
        rows = ",\n".join(f"  {json.dumps(row, allow_nan=False)}" for row in value)
        return f"[\n{rows}\n]"
    if isinstance(value, dict):
        rows = ",\n".join(f"  {json.dumps(key)}: {json.dumps(one, allow_nan=False)}" for key, one in value.items())
        return f"{{\n{rows}\n}}"
    return json.dumps(value, allow_nan=False)


def _extremes(run: Run) -> dict[str, dict[str, list[float]] | None]:
    """Return each figure's lowest and highest rank with its value; the lower rank of equal ones."""
    rows = run.rank_summary().to_pylist()
    found: dict[str, dict[str, list[float]] | None] = {}
    for name in ("step_time_ns", *FIGURES):
        known = [(row[name], row["rank"]) for row in rows if row[name] is not None]
        if not known:
            found[name] = None
            continue
        low, low_rank = min(known)
        high, high_rank = min(known, key=lambda pair: (-pair[0], pair[1]))
        found[name] = {"lowest": [low_rank, low], "highest": [high_rank, high]}
    return found
