"""Speed and memory of `analyze`, as ratios to SQLite's own scan of the same columns in the same run.

    pytest -m bench -s tests/bench [--kernels 1000000] [--ranks 8]

F is the time that the same engine, through the same ADBC driver, takes to sum exactly the columns
that are loaded. Nothing here fails on a time: it prints figures. It does fail when the totals of the
plain pandas way differ.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import sqlalchemy as sa

from nsyspipe.read.capture import read_capture
from nsyspipe.read.report import Report, open_report
from tests.build.synthetic import generate

pytestmark = pytest.mark.bench
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def reports(request, tmp_path_factory):
    n_kernels, n_ranks = request.config.getoption("--kernels"), request.config.getoption("--ranks")
    folder = tmp_path_factory.mktemp("bench")
    n_steps = max(n_kernels // 1000, 4)
    return [generate(folder / f"bench_{rank}.sqlite", n_kernels, n_steps, rank) for rank in range(n_ranks)]


def test_speed_against_the_scan_of_the_same_columns(reports, capsys):
    columns = _loaded_columns(reports[0])
    scan = min(_timed(lambda: [_scan(report, columns) for report in reports]) for _ in range(2))
    load = min(_timed(lambda: [read_capture(str(report), None) for report in reports]) for _ in range(2))
    alone, in_pairs = (_best_analysis(reports, jobs) for jobs in (1, 2))
    plain = _child([sys.executable, str(HERE / "plain_pandas.py"), *map(str, reports)])
    totals = json.loads(plain["output"])
    assert _totals(json.loads(alone["output"])) == totals

    n_bytes = sum(report.stat().st_size for report in reports)
    lines = [
        f"{len(reports)} reports, {n_bytes / 1e6:.0f} MB; cores {os.cpu_count()}",
        f"F, scan of {sum(map(len, columns.values()))} columns: {scan:.2f} s",
        f"load (F): {load:.2f} s = {load / scan:.2f} F",
        f"analyze -j 1: {alone['seconds']:.2f} s = {alone['seconds'] / scan:.2f} F, peak {alone['peak_mib']:.0f} MiB",
        f"analyze -j 2: {in_pairs['seconds']:.2f} s = {in_pairs['seconds'] / scan:.2f} F, "
        f"peak {in_pairs['peak_mib']:.0f} MiB in the largest process",
        f"pandas.read_sql + SQLAlchemy, equal totals: {plain['seconds']:.1f} s, peak {plain['peak_mib']:.0f} MiB; "
        f"{plain['seconds'] / alone['seconds']:.1f} x -j 1, {plain['seconds'] / in_pairs['seconds']:.1f} x -j 2",
    ]
    with capsys.disabled():
        print("", *lines, sep="\n")


def _timed(work) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _loaded_columns(path: Path) -> dict[str, dict[str, str]]:
    """Record which columns of which table the reader selects."""
    seen: dict[str, dict[str, str]] = {}
    select = Report.select

    def recording(self, table, columns, *, where=None):
        seen.setdefault(table, {}).update(columns)
        return select(self, table, columns, where=where)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Report, "select", recording)
        read_capture(str(path), None)
    return seen


def _scan(path: Path, columns: dict[str, dict[str, str]]) -> None:
    """Sum the columns through the driver that loads them; ids are masked, since their sum overflows."""
    with open_report(path) as report:
        for table, kinds in columns.items():
            sums = [
                f'sum("{name}" & 16777215)' if kind == "int" else f'sum(length("{name}"))'
                for name, kind in kinds.items()
                if report.has(table, name)
            ]
            report._connection.execute(sa.text(f"SELECT {', '.join(sums)} FROM {table}")).all()


def _best_analysis(reports: list[Path], jobs: int) -> dict:
    command = [sys.executable, "-m", "nsyspipe", "analyze", *map(str, reports), "-j", str(jobs), "--json", "-"]
    return min((_child(command) for _ in range(2)), key=lambda found: found["seconds"])


def _child(command: list[str]) -> dict:
    """Run a command; return its output, seconds, and the peak memory of its largest process."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=HERE.parent.parent)
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    process.stdout.close()
    assert process.returncode == 0
    return {"output": output, "seconds": time.perf_counter() - start, "peak_mib": usage.ru_maxrss / 1024}


def _totals(found: dict) -> list[dict[str, int]]:
    names = ("wall_ns", "compute_ns", "comm_ns", "exposed_comm_ns")
    ranks = [row["rank"] for row in found["ranks"]]
    return [{name: sum(row[name] for row in found["steps"] if row["rank"] == rank) for name in names} for rank in ranks]
