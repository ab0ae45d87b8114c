"""Make a small report out of a real one: drop tables that analysis never reads, and late steps.

    python -m tests.build.trim IN.sqlite OUT.sqlite [--steps N]

A maintainer's tool: it made sample_reports/ and tests/real/ (see PROVENANCE.md there) and is not
run by any test. Every row that stays is byte for byte the original's.
"""

from __future__ import annotations

import argparse
import sqlite3
from contextlib import closing
from pathlib import Path

# Lookup tables whose ids the code knows, and host-side samples that no analysis uses.
_DROPPED_PREFIXES = ("ENUM_",)
_DROPPED = {"ANALYSIS_FILE", "OSRT_CALLCHAINS", "ProcessStreams", "CUPTI_ACTIVITY_KIND_CUDA_EVENT"}
_BY_LAUNCH = ("KERNEL", "MEMCPY", "MEMSET", "SYNCHRONIZATION")
_BY_TIME = ("NVTX_EVENTS", "OSRT_API", "PROFILER_OVERHEAD")


def trim(source: Path, target: Path, n_steps: int | None) -> None:
    """Copy a report without what is never read, and without what began after its n-th step."""
    target.unlink(missing_ok=True)
    with closing(sqlite3.connect(target, uri=True)) as database:
        database.execute("ATTACH ? AS source", (f"file:{source}?mode=ro",))
        tables = database.execute("SELECT name, sql FROM source.sqlite_master WHERE type = 'table'").fetchall()
        for name, sql in tables:
            if name in _DROPPED or name.startswith(_DROPPED_PREFIXES):
                continue
            database.execute(sql)
            database.execute(f"INSERT INTO main.{name} SELECT * FROM source.{name}")
        if n_steps is not None:
            _cut(database, {name for name, _ in tables}, n_steps)
        database.commit()
        database.execute("DETACH source")
        database.execute("VACUUM")


def _cut(database: sqlite3.Connection, tables: set[str], n_steps: int) -> None:
    steps = database.execute(
        "SELECT start FROM main.NVTX_EVENTS LEFT JOIN main.StringIds ON id = textId "
        "WHERE coalesce(text, value) LIKE 'Batch %' OR coalesce(text, value) LIKE 'step %' ORDER BY start"
    ).fetchall()
    if len(steps) <= n_steps:
        return
    (cut,) = steps[n_steps]
    late = "SELECT correlationId FROM main.CUPTI_ACTIVITY_KIND_RUNTIME WHERE start >= ?"
    for kind in _BY_LAUNCH:
        name = f"CUPTI_ACTIVITY_KIND_{kind}"
        if name in tables:
            database.execute(f"DELETE FROM main.{name} WHERE correlationId IN ({late})", (cut,))
    for name in (*_BY_TIME, "CUPTI_ACTIVITY_KIND_RUNTIME"):
        if name in tables:
            database.execute(f"DELETE FROM main.{name} WHERE start >= ?", (cut,))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--steps", type=int)
    arguments = parser.parse_args()
    trim(arguments.source, arguments.target, arguments.steps)
