"""Stores of a few or many small runs, written as a plain copy of a store is: one file per table and run."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from nsyspipe.model.schema import DATASET
from nsyspipe.model.table import SCHEMA_VERSION
from nsyspipe.store.layout import file_name, published

_FIRST = {"finding": "id", "action": "action", "saving_ns_per_step": "saving_ns_per_step"}
START = datetime(2026, 3, 1, 4, 30, tzinfo=UTC)


def run_row(run_id: str, **changes: Any) -> dict[str, Any]:
    """Return a row of `runs`: 4 ranks on one host, 100 ms per step, a fifth of it communication, half of that hidden."""
    step_ns = changes.get("step_time_ns", 100e6)
    return {
        "run_id": run_id,
        "label": "nightly",
        "n_ranks": 4,
        "n_processes": None,
        "world_size": 4,
        "gpu_names": "NVIDIA H200",
        "hosts": "node0",
        "nsys_versions": "2026.1",
        "export_schema_versions": "3.20",
        "captured_at_utc": START,
        "reports": f"{run_id}.sqlite",
        "n_steps": 11,
        "n_summary_steps": 10,
        "step_time_ns": step_ns,
        "throughput_steps_per_s": step_ns and 1e9 / step_ns,
        "comm_share": 0.2,
        "exposed_comm_share": 0.1,
        "overlap_ratio": 0.5,
        "backward_overlap_ratio": 0.5,
        "step_family": None,
        "compute_share": None,
        "wait_share": 0.05,
        "idle_share": 0.02,
        "link_kind": "nvlink",
        "n_findings": 0,
        "tool_version": "0.1.0",
        "schema_version": SCHEMA_VERSION,
        "details": json.dumps({"work": work_text()}),
        "work": work_text(),
    } | changes


def work_text(
    busy_ns: float | None = 2e7, kernel: str = "gemm", n_sharing: int = 1, source: str = "ranges"
) -> str:
    return json.dumps(
        [busy_ns, {kernel: 2e7}, {kernel: 10}, {str(n_sharing): [n_sharing, True]}, source]
    )


def finding_row(**changes: Any) -> dict[str, Any]:
    return {
        "id": "single-bucket",
        "severity": "high",
        "title": "one all-reduce",
        "action": "lower bucket_cap_mb",
        "advice": "lower bucket_cap_mb",
        "saving_ns_per_step": 12.3e6,
        "evidence": "{}",
    } | changes


def add_run(store: Path, run_id: str, *, findings: Any = (), **changes: Any) -> str:
    first = {f"first_{name}": findings[0][of] for name, of in _FIRST.items()} if findings else {}
    write(
        store,
        "runs",
        run_id,
        [run_row(run_id, **{"n_findings": len(findings), **first, **changes})],
    )
    write(store, "findings", run_id, [{"run_id": run_id, **row} for row in findings])
    return run_id


def write(store: Path, table: str, run_id: str, rows: list[dict[str, Any]]) -> Path:
    path = file_of(store, table, run_id)
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(DATASET[table].from_rows(rows), path)
    return path


def file_of(store: Path, table: str, run_id: str) -> Path:
    return store / published(file_name(table), run_id)


def days(n: float) -> datetime:
    return START + timedelta(days=n)


def add_series(store: Path, label: str, times_ms: list[float | None], **changes: Any) -> list[str]:
    """Write a run a day with these step times, the first on day 0; return their ids."""
    of_days = enumerate(times_ms)
    return [
        add_run(store, f"{label}-{day:03}", label=label, **series_day(day, ms), **changes)
        for day, ms in of_days
    ]


def series_day(day: int, ms: float | None) -> dict[str, Any]:
    return {"captured_at_utc": days(day), "step_time_ns": ms and 1e6 * ms}
