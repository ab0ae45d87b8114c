"""Speed and memory of `analyze`, as ratios to SQLite's own scan of the same columns in the same run.

    pytest -m bench -n 0 -s tests/bench [--kernels 1000000] [--ranks 8]

F is the time that the same engine, through the same ADBC driver, takes to sum exactly the columns
that are loaded. Nothing here fails on a time: it prints figures. It does fail when the totals of the
plain pandas way differ.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import sqlalchemy as sa

from nsyspipe.reader.metadata import read_capture
from nsyspipe.reader.report import Report, open_report
from tests.build.synthetic import generate

pytestmark = pytest.mark.bench
HERE = Path(__file__).parent
PARTS = (
    "wall_ns", "compute_ns", "comm_ns", "exposed_comm_ns", "exposed_memory_ns", "idle_ns", "dtod_ns", "dtod_bytes",
    "n_dtod", "exposed_dtod_ns", "overlap_compute_ns", "overlap_backward_ns", "n_collectives",
)  # fmt: skip
_LENGTH = 'sum(length("{}"))'
_SUMS = {"int": 'sum("{}" & 16777215)', "sql": "sum(({}) & 16777215)", "text": _LENGTH, "blob": _LENGTH}


@pytest.fixture(scope="module")
def reports(request, tmp_path_factory):
    n_kernels, n_ranks = request.config.getoption("--kernels"), request.config.getoption("--ranks")
    folder = tmp_path_factory.mktemp("bench")
    n_steps = max(n_kernels // 1000, 4)
    return [generate(folder / f"bench_{rank}.sqlite", n_kernels, n_steps, rank, n_ranks) for rank in range(n_ranks)]


def test_speed_against_the_scan_of_the_same_columns(reports, capsys):
    columns = _loaded_columns(reports[0])
    scan = min(_timed(lambda: [_scan(report, columns) for report in reports]) for _ in range(2))
    load = min(_timed(lambda: [read_capture(str(report), None) for report in reports]) for _ in range(2))
    alone, in_pairs = (
        min((_analyze(reports, jobs) for _ in range(3)), key=lambda found: found["seconds"]) for jobs in (1, 2)
    )
    plain = _child([sys.executable, str(HERE / "plain_pandas.py"), *map(str, reports)])
    assert _totals(json.loads(_analyze(reports, 1, "--json", "-")["output"])) == json.loads(plain["output"])

    n_bytes = sum(report.stat().st_size for report in reports)
    lines = [
        f"{len(reports)} reports, {n_bytes / 1e6:.0f} MB; cores {os.cpu_count()}",
        f"F, scan of {sum(map(len, columns.values()))} columns: {scan:.2f} s",
        f"load: {load:.2f} s = {load / scan:.2f} F",
        *(_line(f"analyze -j {jobs}", found, scan, plain) for jobs, found in ((1, alone), (2, in_pairs))),
        _line("pandas.read_sql + SQLAlchemy, equal totals", plain, scan, plain),
    ]
    with capsys.disabled():
        print("", *lines, sep="\n")


def _line(what: str, found: dict, scan: float, plain: dict) -> str:
    seconds, peak = found["seconds"], found["peak_mib"]
    faster = plain["seconds"] / seconds
    return (
        f"{what}: {seconds:.2f} s = {seconds / scan:.2f} F, peak {peak:.0f} MiB in one process, {faster:.1f} x pandas"
    )


def _timed(work) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _loaded_columns(path: Path) -> dict[str, dict[str, str]]:
    """Record which columns of which table the reader selects, and SQL expressions of them."""
    seen: dict[str, dict[str, str]] = {}
    select = Report.select

    def recording(self, table, columns, *, derived=None, **options):
        seen.setdefault(table, {}).update(columns, **dict.fromkeys((derived or {}).values(), "sql"))
        return select(self, table, columns, derived=derived, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Report, "select", recording)
        read_capture(str(path), None)
    return seen


def _scan(path: Path, columns: dict[str, dict[str, str]]) -> None:
    """Sum the columns through the driver that loads them; ids are masked, since their sum overflows."""
    with open_report(path) as report:
        for table, kinds in columns.items():
            sums = [
                _SUMS[kind].format(name) for name, kind in kinds.items() if kind == "sql" or report.has(table, name)
            ]
            report._connection.execute(sa.text(f"SELECT {', '.join(sums)} FROM {table}")).all()


def _analyze(reports: list[Path], jobs: int, *options: str) -> dict:
    return _child([sys.executable, "-m", "nsyspipe", "analyze", *map(str, reports), "-j", str(jobs), *options])


def _child(command: list[str]) -> dict:
    """Run a command; return its output, seconds, and the peak memory of its largest process."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=HERE.parent.parent)
    peaks: dict[int, int] = {}
    watcher = threading.Thread(target=_watch, args=(process, peaks))
    watcher.start()
    output, _ = process.communicate()
    seconds = time.perf_counter() - start
    watcher.join()
    assert process.returncode == 0
    return {"output": output, "seconds": seconds, "peak_mib": max(peaks.values()) / 1024}


def _watch(process: subprocess.Popen, peaks: dict[int, int]) -> None:
    """Note the high-water mark of resident memory (KiB) of a process and its children, until it ends."""
    while process.poll() is None:
        for pid in [process.pid, *_children(process.pid)]:
            with contextlib.suppress(OSError):
                found = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
                if found:
                    peaks[pid] = int(found[1])
        time.sleep(0.02)


def _children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def _totals(found: dict) -> list[dict[str, int]]:
    ranks = [row["rank"] for row in found["ranks"]]
    return [{name: sum(row[name] for row in found["steps"] if row["rank"] == rank) for name in PARTS} for rank in ranks]
