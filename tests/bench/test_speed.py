"""Speed and memory of commands as a user sees them: other processes, from their start to their end.

    pytest -m bench -n 0 -s tests/bench [--kernels 1000000] [--ranks 8]

`analyze` is told as ratios to F, the time that the same engine, through the same ADBC driver, takes to sum exactly the
columns that are loaded. Figures are printed; what fails is a total that the plain pandas way has otherwise, and a trace of
8 x 100 000 kernels that takes 10 s more. Asked for: saving at most 20 % of the analysis, and about a second beside 1000
runs; a diff of two saved runs under 1 s, the menu of what-if under 1.5 s beyond what analyze takes.
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
from dataclasses import replace
from pathlib import Path

import pytest

import nsyspipe
from nsyspipe.reader.metadata import read_capture
from nsyspipe.reader.report import Report, open_report
from nsyspipe.reader.tables import fetch_rows
from nsyspipe.store.write import save
from tests.build.changed_run import Changed
from tests.build.synthetic import generate
from tests.conftest import SAMPLES
from tests.store.store_tools import old_run, stored

pytestmark = pytest.mark.bench
N_RUNS, MOST_SECONDS = 1000, 10
HERE = Path(__file__).parent
PARTS = (
    "wall_ns", "compute_ns", "comm_ns", "exposed_comm_ns", "exposed_memory_ns", "idle_ns", "dtod_ns", "dtod_bytes",
    "n_dtod", "exposed_dtod_ns", "overlap_compute_ns", "overlap_backward_ns", "n_collectives",
)  # fmt: skip
_LENGTH = 'sum(length("{}"))'
_SUMS = {"int": 'sum("{}" & 16777215)', "sql": "sum(({}) & 16777215)", "text": _LENGTH, "blob": _LENGTH}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Return a function that generates reports."""

    def write(n_kernels, n_ranks):
        folder = tmp_path_factory.mktemp("bench")
        n_steps = max(n_kernels // 1000, 4)
        return [generate(folder / f"bench_{rank}.sqlite", n_kernels, n_steps, rank, n_ranks) for rank in range(n_ranks)]

    return write


@pytest.fixture(scope="module")
def reports(request, written):
    return written(request.config.getoption("--kernels"), request.config.getoption("--ranks"))


@pytest.fixture
def shown(capsys):
    """Return a function that prints lines whatever pytest captures."""

    def show(*lines):
        with capsys.disabled():
            print("", *lines, sep="\n")

    return show


def best(ways, times=3):
    """Return the quickest of some runs of each command, taken in turns, so that what else the machine does falls on all."""
    found = {name: [] for name in ways}
    for _ in range(times):
        for name, command in ways.items():
            found[name].append(_child(command))
    return {name: min(some, key=lambda one: one["seconds"]) for name, some in found.items()}


def command(name, *arguments):
    return [sys.executable, "-m", "nsyspipe", name, *map(str, arguments)]


def test_speed_against_the_scan_of_the_same_columns(reports, shown):
    columns = _loaded_columns(reports[0])
    scan = min(_timed(lambda: [_scan(report, columns) for report in reports]) for _ in range(2))
    load = min(_timed(lambda: [read_capture(str(report), None) for report in reports]) for _ in range(2))
    alone, in_pairs = best({jobs: command("analyze", *reports, "-j", jobs) for jobs in (1, 2)}).values()
    plain = _child([sys.executable, str(HERE / "plain_pandas.py"), *map(str, reports)])
    document = json.loads(_child(command("analyze", *reports, "-j", 1, "--json", "-"))["output"])
    assert _totals(document) == json.loads(plain["output"])

    n_bytes = sum(report.stat().st_size for report in reports)
    shown(
        f"{len(reports)} reports, {n_bytes / 1e6:.0f} MB; cores {os.cpu_count()}",
        f"F, scan of {sum(map(len, columns.values()))} columns: {scan:.2f} s",
        f"load: {load:.2f} s = {load / scan:.2f} F",
        *(_line(f"analyze -j {jobs}", found, scan, plain) for jobs, found in ((1, alone), (2, in_pairs))),
        _line("pandas.read_sql + SQLAlchemy, equal totals", plain, scan, plain),
    )


def test_saving_costs_little_beside_the_analysis(reports, tmp_path, shown):
    plain = command("analyze", *reports, "--no-progress")
    outputs = {"tables": ["--out", tmp_path / "tables"], "all": ["--out", tmp_path / "all", "--events"]}
    found = best({"alone": plain} | {name: [*plain, *map(str, more)] for name, more in outputs.items()})
    for name, one in found.items():
        files = [path.stat().st_size for path in (tmp_path / name).glob("[!.]*/**/*.parquet")]
        more = one["seconds"] / found["alone"]["seconds"] - 1
        size = f"{len(files)} files, {sum(files) / 1e6:.1f} MB"
        shown(f"{name}: {one['seconds']:.2f} s ({more:+.0%}), peak {one['peak_mib']:.0f} MiB, {size}")


def test_saving_beside_a_thousand_runs_takes_as_long_as_alone(tmp_path, shown):
    saved = nsyspipe.load(stored(tmp_path / "alone", old_run(tmp_path)))

    def renamed(run_id):
        return Changed(saved, header=replace(saved.header, run_id=run_id))

    seconds = [_timed(lambda n=n: save(renamed(f"run{n}"), tmp_path / "store")) for n in range(N_RUNS)]
    read = _timed(lambda: nsyspipe.load(tmp_path / "store", run_id="run7").steps())
    first, last = (sorted(some)[25] for some in (seconds[:50], seconds[-50:]))
    shown(f"median of the first 50: {first:.3f} s, of the last 50 of {N_RUNS}: {last:.3f} s; opening one: {read:.3f} s")
    assert len(list((tmp_path / "store" / "steps").iterdir())) == N_RUNS


def test_a_trace_of_all_operations_takes_seconds(written, tmp_path, shown):
    plain = command("analyze", *written(100_000, 8), "-q")
    path = tmp_path / "all.pftrace"
    traces = {
        "all": ["--perfetto", str(path)],
        "few": ["--perfetto", str(tmp_path / "few.pftrace"), "--perfetto-steps", "10:12"],
    }
    found = best({"alone": plain} | {name: [*plain, *more] for name, more in traces.items()}, times=2)
    added, few = (found[name]["seconds"] - found["alone"]["seconds"] for name in ("all", "few"))
    n_operations = 8 * 100_000 * 21 // 20  # and a copy per 20 kernels
    shown(
        f"analyze: {found['alone']['seconds']:.2f} s, peak {found['alone']['peak_mib']:.0f} MiB",
        f"with --perfetto: {added:.2f} s more, {added / n_operations * 1e6:.1f} us per operation, "
        f"{path.stat().st_size / 1e6:.0f} MB, peak {found['all']['peak_mib']:.0f} MiB",
        f"with --perfetto-steps 10:12: {few:.2f} s more",
    )
    assert added < MOST_SECONDS


def test_answers_about_a_change(tmp_path, shown):
    names = ("ddp-4gpu-before", "ddp-4gpu-after")
    for name in names:
        save(nsyspipe.load(SAMPLES / f"{name}_*.sqlite", run_id=name, jobs=1), tmp_path / "store")
    sides = [tmp_path / "store" / "runs" / f"run_id={name}" for name in names]
    reports, out = SAMPLES / f"{names[0]}_*.sqlite", tmp_path / "diff.json"
    ways = {
        "diff of two saved runs": command("diff", *sides, "--json", out, "--force"),
        "analyze": command("analyze", reports, "--no-progress"),
        "whatif, the menu": command("whatif", reports, "--no-progress"),
    }
    shown(*(f"{name}: {found['seconds']:.2f} s" for name, found in best(ways).items()))
    assert json.loads(out.read_text("utf-8"))["verdict"] == "improvement"


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
            fetch_rows(report._connection, f"SELECT {', '.join(sums)} FROM {table}")


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
