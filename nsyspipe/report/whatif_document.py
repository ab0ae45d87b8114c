"""The JSON document of a replay: base units, null where there is no answer."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from nsyspipe.report.document import dumps
from nsyspipe.report.written import json_of
from nsyspipe.schema import SCHEMA_VERSION
from nsyspipe.version import __version__

if TYPE_CHECKING:
    from pathlib import Path

    from nsyspipe.replay.result import WhatIf

__all__ = ["run_id_of_answer", "whatif_document", "whatif_document_text"]


def whatif_document(found: WhatIf) -> dict[str, Any]:
    """Return the document as plain Python values, in a fixed order.

    A scenario's ``knobs`` are what is changed by the names of `whatif`'s arguments, but for ``bandwidth_bytes_per_s``,
    which is a number however the bandwidth was given.
    """
    return {
        "schema_version": SCHEMA_VERSION,
        "tool_version": __version__,
        "run": {"run_id": found.run_id, "label": found.label, "n_summary_steps": found.n_steps},
        "step_time_ns": found.step_time_ns,
        "limit_step_time_ns": found.limit_step_time_ns,
        "identity_error_pct": found.identity_error_pct,
        "scenarios": [
            asdict(one) | {"knobs": dict(one.knobs), "assumptions": list(one.assumptions)}
            for one in found.scenarios
        ],
        "problems": [dict(one) for one in found.problems],
    }


def whatif_document_text(found: WhatIf) -> str:
    """Return the document as JSON."""
    return dumps(whatif_document(found))


def run_id_of_answer(path: Path) -> str | None:
    """Return the run of such a document; None for any other file, that of ``analyze`` too."""
    found = json_of(path)
    try:
        return str(found["run"]["run_id"]) if isinstance(found["scenarios"], list) else None
    except (KeyError, TypeError):
        return None
