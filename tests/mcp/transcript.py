"""The conversation on the page about the server, with the sample reports, as the page shows it."""

import json
import shutil

import nsyspipe
from nsyspipe.store.write import save
from tests.conftest import SAMPLES
from tests.mcp.conversation import converse

BEFORE, AFTER = (f"sample_reports/ddp-4gpu-{name}_*.sqlite" for name in ("before", "after"))
CALLS = (
    ("analyze", {"reports": [BEFORE], "keys": ["stragglers", "findings"]}),
    ("whatif", {"run": [BEFORE], "bucket_mb": 25, "keys": ["verdict", "step_time_ns"]}),
    ("diff", {"baseline": [BEFORE], "candidate": [AFTER], "keys": ["verdict", "mean_step_time"]}),
    (
        "query",
        {
            "run": "runs:before",
            "table": "steps",
            "columns": ["rank", "step", "exposed_comm_ns"],
            "where": [{"column": "in_summary", "operator": "==", "value": True}],
            "sort_by": "exposed_comm_ns",
            "descending": True,
            "limit": 2,
        },
    ),
    ("analyze", {"reports": ["../../etc/passwd"]}),
)
_MAX_LINES = 24
_MAX_CHARACTERS = 112


def make_root(folder):
    """Fill a directory as a clone of the project: with the sample reports, and a store of a run."""
    samples = folder / "sample_reports"
    samples.mkdir()
    for path in SAMPLES.iterdir():
        if path.suffix in {".sqlite", ".log", ".txt"}:
            shutil.copy(path, samples)
    run = nsyspipe.load(sorted(samples.glob("ddp-4gpu-before_*.sqlite")), label="before", jobs=1)
    save(run, folder / "runs")


def transcript(folder):
    """Return the conversation about a directory that `make_root` filled, as a block of the page."""
    answers = converse([folder], CALLS).answers
    parts = []
    for (tool, arguments), answer in zip(CALLS, answers, strict=True):
        kind = "error" if answer.is_error else "answer"
        text = answer.text.replace(str(folder), "/data")
        parts += [f"> {tool} {json.dumps(arguments)}", f"< {kind}", *shortened(text), ""]
    return "\n".join(parts[:-1]) + "\n"


def shortened(text):
    """Return the lines of an answer, with dots for what is too wide or too long for the page."""
    lines = text.rstrip("\n").splitlines()
    shown = [
        line if len(line) <= _MAX_CHARACTERS else f"{line[:_MAX_CHARACTERS]}..."
        for line in lines[:_MAX_LINES]
    ]
    n_hidden = len(lines) - len(shown)
    return [*shown, *([f"... {n_hidden} more lines"] if n_hidden else [])]
