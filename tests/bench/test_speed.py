"""Speed and memory of commands as a user sees them: other processes, from their start to their end.

    pytest -m bench -n 0 -s tests/bench [--kernels 1000000] [--ranks 8]

All sizes grow with these two: 64, 256, 1024 and 2048 ranks of 10 000 kernels each are 8, 32, 128
and 256 times the ranks, with a hundredth of the kernels.

`analyze` is told as ratios to F, the time that the same engine, through the same ADBC driver, takes
to sum exactly the columns that are loaded. Figures are printed; what fails is a total that the
plain pandas way has otherwise, and a trace of 8 x 100 000 kernels that takes 10 s more. Asked for:
saving at most 20 % of the analysis, and about a second beside 1000 runs; a diff of two saved runs
under 1 s, the menu of what-if under 1.5 s beyond what analyze takes. What is in-process is told
too: matching across 512 ranks, and a process more in a report.
"""

import contextlib
import json
import os
import re
import sqlite3
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import nsyspipe
from nsyspipe.analysis.clock import ALIGNING, clock_offsets
from nsyspipe.analysis.collectives import CommKind, match_collectives, measure_waiting
from nsyspipe.model.names import COLLECTIVES
from nsyspipe.reader.metadata import read_capture
from nsyspipe.reader.report import Report, open_report
from nsyspipe.reader.tables import fetch_rows
from nsyspipe.run.collectives import ABSENT, NONE, CommRows, CrossRank, collectives_table
from nsyspipe.store.write import save
from tests.build.synthetic import clock_errors, generate
from tests.build.tools import STEADY, Changed
from tests.build.trace import steady_rank
from tests.conftest import SAMPLES
from tests.store.store_tools import old_run, stored

pytestmark = pytest.mark.bench
N_RUNS, MOST_SECONDS = 1000, 10
N_RANKS, N_COLLECTIVES, SEED = 512, 2000, 7
# The first four of `COLLECTIVES` are the kinds of the generated rows.
KINDS = tuple(CommKind(name, "f32", "RING_LL") for name in COLLECTIVES[:4])
SIZES = (500, 5000)
PROCESS_BITS = 24  # of a globalTid, above those of the thread
HERE = Path(__file__).parent
_LENGTH = 'sum(length("{}"))'
_SUMS = {
    "int": 'sum("{}" & 16777215)',
    "sql": "sum(({}) & 16777215)",
    "text": _LENGTH,
    "blob": _LENGTH,
}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    def write(n_kernels, n_ranks):
        folder = tmp_path_factory.mktemp("bench")
        n_steps = max(n_kernels // 1000, 4)
        return [
            generate(folder / f"bench_{rank}.sqlite", n_kernels, n_steps, rank, n_ranks)
            for rank in range(n_ranks)
        ]

    return write


@pytest.fixture(scope="module")
def reports(request, written):
    return written(request.config.getoption("--kernels"), request.config.getoption("--ranks"))


@pytest.fixture
def shown(capsys):
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
    load = min(
        _timed(lambda: [read_capture(str(report), None) for report in reports]) for _ in range(2)
    )
    alone, in_pairs = best(
        {jobs: command("analyze", *reports, "-j", jobs) for jobs in (1, 2)}
    ).values()
    plain = _child([sys.executable, str(HERE / "plain_pandas.py"), *map(str, reports)])
    document = json.loads(_child(command("analyze", *reports, "-j", 1, "--json", "-"))["output"])
    assert _totals(document) == json.loads(plain["output"])

    def line(what, found):
        seconds, faster = found["seconds"], plain["seconds"] / found["seconds"]
        took = f"{seconds:.2f} s = {seconds / scan:.2f} F"
        return f"{what}: {took}, peak {found['peak_mib']:.0f} MiB, {faster:.1f} x pandas"

    n_bytes = sum(report.stat().st_size for report in reports)
    shown(
        f"{len(reports)} reports, {n_bytes / 1e6:.0f} MB; cores {os.cpu_count()}",
        f"F, scan of {sum(map(len, columns.values()))} columns: {scan:.2f} s",
        f"load: {load:.2f} s = {load / scan:.2f} F",
        *(line(f"analyze -j {jobs}", found) for jobs, found in ((1, alone), (2, in_pairs))),
        line("pandas.read_sql + SQLAlchemy, equal totals", plain),
    )


def test_saving_costs_little_beside_the_analysis(reports, tmp_path, shown):
    plain = command("analyze", *reports, "--no-progress")
    outputs = {
        "tables": ["--out", tmp_path / "tables"],
        "all": ["--out", tmp_path / "all", "--events"],
    }
    found = best(
        {"alone": plain} | {name: [*plain, *map(str, more)] for name, more in outputs.items()}
    )
    found |= best({"second look": command("analyze", tmp_path / "tables", "--no-progress")})
    for name, one in found.items():
        files = [path.stat().st_size for path in (tmp_path / name).glob("[!.]*/**/*.parquet")]
        more = one["seconds"] / found["alone"]["seconds"] - 1
        size = f"{len(files)} files, {sum(files) / 1e6:.1f} MB"
        shown(
            f"{name}: {one['seconds']:.2f} s ({more:+.0%}), peak {one['peak_mib']:.0f} MiB, {size}"
        )


def test_each_of_many_ranks_costs_as_much(request, written, tmp_path, shown):
    n_kernels, few = (request.config.getoption(name) for name in ("--kernels", "--ranks"))
    for n_ranks in (8 * few, 32 * few, 128 * few, 256 * few):
        reports = written(n_kernels // 100, n_ranks)
        page, trace, store = (
            tmp_path / f"{n_ranks}{suffix}" for suffix in (".html", ".pftrace", "")
        )
        plain = command("analyze", reports[0].parent, "-q")
        more = {"--html": page, "--perfetto": trace, "--out": store}
        ways = {"analyze": plain} | {name: [*plain, name, str(path)] for name, path in more.items()}
        if n_ranks == 8 * few:
            ways["pandas.read_sql + SQLAlchemy"] = [
                sys.executable,
                str(HERE / "plain_pandas.py"),
                *map(str, reports),
            ]
        found = best(ways, times=1) | best(
            {"second look": command("analyze", store, "-q")}, times=1
        )
        sizes = {"--html": page.stat().st_size, "--perfetto": trace.stat().st_size}
        shown(
            f"{n_ranks} ranks x {n_kernels // 100} kernels",
            *(
                f"{name}: {one['seconds']:.2f} s, {1e3 * one['seconds'] / n_ranks:.1f} ms per "
                "rank, peak "
                f"{one['peak_mib']:.0f} MiB"
                + (f", {sizes[name] / 1e6:.2f} MB" if name in sizes else "")
                for name, one in found.items()
            ),
        )


def test_saving_beside_a_thousand_runs_takes_as_long_as_alone(tmp_path, shown):
    saved = nsyspipe.load(stored(tmp_path / "alone", old_run(tmp_path)))

    def renamed(run_id):
        return Changed(saved, header=replace(saved.header, run_id=run_id))

    seconds = [
        _timed(lambda n=n: save(renamed(f"run{n}"), tmp_path / "store")) for n in range(N_RUNS)
    ]
    read = _timed(lambda: nsyspipe.load(tmp_path / "store", run_id="run7").steps())
    first, last = (sorted(some)[25] for some in (seconds[:50], seconds[-50:]))
    shown(
        f"median of the first 50: {first:.3f} s, of the last 50 of {N_RUNS}: {last:.3f} s; "
        f"opening one: {read:.3f} s"
    )
    assert len(list((tmp_path / "store" / "steps").iterdir())) == N_RUNS


def test_a_trace_of_all_operations_takes_seconds(request, written, tmp_path, shown):
    n_kernels = request.config.getoption("--kernels") // 10
    plain = command("analyze", *written(n_kernels, 8), "-q")
    path = tmp_path / "all.pftrace"
    few = ["--perfetto", str(tmp_path / "few.pftrace"), "--perfetto-steps", "1:3"]
    traces = {"all": ["--perfetto", str(path)], "few": few}
    found = best(
        {"alone": plain} | {name: [*plain, *more] for name, more in traces.items()}, times=2
    )
    added, few = (found[name]["seconds"] - found["alone"]["seconds"] for name in ("all", "few"))
    n_operations = 8 * n_kernels * 21 // 20  # and a copy per 20 kernels
    shown(
        f"analyze: {found['alone']['seconds']:.2f} s, peak {found['alone']['peak_mib']:.0f} MiB",
        f"with --perfetto: {added:.2f} s more, {added / n_operations * 1e6:.1f} us per operation, "
        f"{path.stat().st_size / 1e6:.0f} MB, peak {found['all']['peak_mib']:.0f} MiB",
        f"with --perfetto-steps 1:3: {few:.2f} s more",
    )
    assert added < MOST_SECONDS


def test_answers_about_a_change_and_of_a_small_run(written, tmp_path, shown):
    names = ("ddp-4gpu-before", "ddp-4gpu-after")
    for name in names:
        save(nsyspipe.load(SAMPLES / f"{name}_*.sqlite", run_id=name, jobs=1), tmp_path / "store")
    sides = [tmp_path / "store" / "runs" / f"run_id={name}" for name in names]
    reports, out = SAMPLES / f"{names[0]}_*.sqlite", tmp_path / "diff.json"
    ways = {
        "diff of two saved runs": command("diff", *sides, "--json", out, "--force"),
        "analyze": command("analyze", reports, "--no-progress"),
        "whatif, the menu": command("whatif", reports, "--no-progress"),
        "analyze, 4 reports of 5 000 kernels": command("analyze", *written(5000, 4), "-q"),
        "what it imports": [
            sys.executable,
            "-c",
            "import numpy, pyarrow, sqlalchemy, adbc_driver_sqlite.dbapi",
        ],
    }
    shown(*(f"{name}: {found['seconds']:.2f} s" for name, found in best(ways).items()))
    assert json.loads(out.read_text("utf-8"))["verdict"] == "improvement"


# What is done across ranks, beside one sort of as many numbers in the same process.
def generated_rows():
    """Return rows as `comm_rows` has them, by rank and start: all ranks arrive tens of us apart and end within 3 us."""
    rng = np.random.default_rng(SEED)
    kind = rng.integers(0, len(KINDS), N_COLLECTIVES)
    stream = (rng.random(N_COLLECTIVES) > 0.7).astype(np.int64)
    ready = 10_000_000_000 + np.cumsum(rng.integers(450_000, 800_000, N_COLLECTIVES))
    shape = N_RANKS, N_COLLECTIVES
    start = ready + np.minimum(rng.exponential(15_000, shape), 99_000).astype(np.int64)
    end = (
        ready
        + 100_000
        + rng.integers(20_000, 300_000, N_COLLECTIVES)
        + rng.integers(0, 3000, shape)
    )
    error = clock_errors(N_RANKS, SEED)[:, None]
    rank, kind = np.repeat(np.arange(N_RANKS), N_COLLECTIVES), np.tile(kind, N_RANKS)
    unknown, none = np.full(rank.size, ABSENT), np.full(rank.size, NONE, np.int32)
    return CommRows(
        rank=rank.astype(np.int32),
        step=np.tile(np.arange(N_COLLECTIVES) // 20, N_RANKS),
        in_step=np.ones(rank.size, np.bool_),
        start_ns=(start + error).ravel(),
        end_ns=(end + error).ravel(),
        kind=kind.astype(np.int32),
        kinds=KINDS,
        communicator=(2 * kind + np.tile(stream, N_RANKS)).astype(np.int32),
        communicators=tuple(f"{kind.collective}/{order}" for kind in KINDS for order in range(2)),
        seq_number=unknown,
        message_bytes=unknown,
        launched_in=none,
        micro_batch=none,
        n_before=none,
        has_ids=False,
    )


def test_speed_of_matching_clocks_and_waiting(shown):
    rows = generated_rows()
    numbers = np.random.default_rng(SEED).permutation(rows.start_ns)
    aligning = np.array([name in ALIGNING for name in COLLECTIVES])
    sort = min(_timed(lambda: np.sort(numbers)) for _ in range(3))

    def across(size=N_RANKS):
        group, required = rows.groups(size)
        matched = match_collectives(group, rows.rank, required)
        telling = [block[aligning[rows.collective[block[:, 0]]]] for block in matched]
        offsets = clock_offsets(telling, rows.end_ns, rows.rank.astype(np.int64), size)
        errors = np.array([one.error_ns for one in offsets], np.int64)
        offset = np.array([one.offset_ns for one in offsets], np.int64)[rows.rank]
        times = rows.start_ns - offset, rows.end_ns - offset
        return offsets, measure_waiting(
            matched,
            *times,
            rows.rank,
            error_ns_of_clock=errors,
            part_of_clock=np.zeros_like(errors),
        )

    seconds = min(_timed(across) for _ in range(3))
    offsets, found = across()
    run = CrossRank(
        (),
        tuple(offsets),
        rows,
        np.full(len(rows.communicators), N_RANKS),
        found,
        (),
        np.ones(len(rows.communicators), np.bool_),
    )
    chosen = np.unique(rows.step)
    table = collectives_table(run, range(N_RANKS), chosen)
    table_seconds = min(
        _timed(lambda: collectives_table(run, range(N_RANKS), chosen)) for _ in range(2)
    )
    assert (
        found.is_matched.all()
    )  # ends agree within 3 us, so clocks are known as well: up to what all have in common
    assert np.ptp(np.array([one.offset_ns for one in offsets]) - clock_errors(N_RANKS, SEED)) < 3000
    assert table.num_rows == N_RANKS * N_COLLECTIVES
    shown(
        f"{N_RANKS} ranks x {N_COLLECTIVES} collectives: np.sort {sort:.3f} s",
        f"groups, match, clocks, waiting: {seconds:.2f} s = {seconds / sort:.1f} sorts",
        f"table of collectives: {table_seconds:.2f} s = {table_seconds / sort:.1f} sorts",
    )


# What a process more costs in a small report: one of 500 processes, and one of 5 000.
def with_processes(path, n_processes):
    steady_rank(0, world_size=1).write(path)
    with contextlib.closing(sqlite3.connect(path)) as database:
        for table in [
            row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type='table'")
        ]:
            columns = [row[1] for row in database.execute(f"PRAGMA table_info({table})")]
            own = [name for name in columns if name in {"globalTid", "globalPid"}]
            if not own:
                continue
            moved = [
                f"{name} + (k.n << {PROCESS_BITS})" if name in own else f'"{name}"'
                for name in columns
            ]
            database.execute(
                "WITH RECURSIVE k(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM k WHERE n < ?) "
                f"INSERT INTO {table} SELECT {', '.join(moved)} FROM {table}, k",
                (n_processes - 1,),
            )
        database.commit()
        (found,) = database.execute(
            "SELECT count(DISTINCT globalPid) FROM CUPTI_ACTIVITY_KIND_KERNEL"
        ).fetchone()
    assert found == n_processes
    return path


def test_a_process_costs_as_much_among_many_as_among_few(tmp_path, shown):
    costs = {}
    for n_processes in SIZES:
        path = with_processes(tmp_path / f"of_{n_processes}.sqlite", n_processes)
        begin = time.process_time()
        try:
            assert nsyspipe.load(path, jobs=1).ranks.num_rows > 0, n_processes
        except nsyspipe.NsyspipeError as error:
            shown(error)
        costs[n_processes] = (time.process_time() - begin) / n_processes
    shown(
        *(
            f"{n_processes:6} processes: {1e3 * cost:.2f} ms of CPU each"
            for n_processes, cost in costs.items()
        )
    )


def _timed(work) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _loaded_columns(path: Path) -> dict[tuple[str, str | None], dict[str, str]]:
    """Record which columns of which rows (table and condition) the reader selects, and SQL expressions of them."""
    seen: dict[tuple[str, str | None], dict[str, str]] = {}
    select = Report.select

    def recording(self, table, columns, *, derived=None, where=None):
        seen.setdefault((table, where), {}).update(
            columns, **dict.fromkeys((derived or {}).values(), "sql")
        )
        return select(self, table, columns, derived=derived, where=where)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Report, "select", recording)
        read_capture(str(path), None)
    return seen


def _scan(path: Path, columns: dict[tuple[str, str | None], dict[str, str]]) -> None:
    """Sum the columns through the driver that loads them; ids are masked, since their sum overflows."""
    with open_report(path) as report:
        for (table, where), kinds in columns.items():
            sums = [
                _SUMS[kind].format(at)
                for at, kind in kinds.items()
                if kind == "sql" or report.has(table, at)
            ]
            fetch_rows(
                report._connection, f"SELECT {', '.join(sums)} FROM {table} WHERE {where or 1}"
            )


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
        return [
            int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        ]
    return []


def _totals(found: dict) -> list[dict[str, int]]:
    ranks = [row["rank"] for row in found["ranks"]]
    return [
        {name: sum(one[name] for one in found["steps"] if one["rank"] == at) for name in STEADY}
        for at in ranks
    ]
