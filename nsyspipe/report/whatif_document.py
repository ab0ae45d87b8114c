"""The JSON document of a replay: base units, null where there is no answer."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from nsyspipe.report.document import dumps
from nsyspipe.schema import SCHEMA_VERSION
from nsyspipe.version import __version__

if TYPE_CHECKING:
    from nsyspipe.replay.result import WhatIf

__all__ = ["whatif_document", "whatif_document_text"]


def whatif_document(found: WhatIf) -> dict[str, Any]:
    """Return the document as plain Python values, in a fixed order."""
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
