"""The second reading of reports: operations one by one, of all steps or of some, in any kind of report."""

from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool

import pyarrow.compute as pc
import pytest
from msgspec.structs import asdict

import nsyspipe
from nsyspipe.analysis.timeline import representative_step
from nsyspipe.errors import DamagedReportError, InputError, OptionError, ReportNotFoundError
from nsyspipe.model import schema
from nsyspipe.model.options import Reading
from nsyspipe.reader import report
from nsyspipe.reader.report import open_report
from nsyspipe.run import workers
from nsyspipe.run.doctor import examine
from nsyspipe.run.operations import run_operations
from nsyspipe.run.workers import SerialExecutor, jobs_for
from tests.build.tools import bare, blank, codes, edit, one_report, problem_of, rows, run_of
from tests.build.trace import KERNEL, MEMCPY, MEMSET, RUNTIME, TraceBuilder, steady_rank

pytestmark = pytest.mark.reads_anew

REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def read(run, steps=None, **options):
    """Return EVENTS and PHASE_RANGES by rank, in the order in which they came."""
    return {
        rank: tables
        for rank, *tables in run_operations(run._tables, run.reading, steps=steps, **options)
    }


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """Return the run of two equal ranks, which nobody changes."""
    return run_of(tmp_path_factory.mktemp("plain"), steady_rank(0), steady_rank(1))


def test_every_column_of_the_operations_of_a_step_is_the_hand_computed_one(plain):
    # Step 1 runs from 1000; rank 1's session starts 1 ns later, but all collectives end as late, so
    # both shifts are 0.
    events, _ = read(plain, (1, 1))[1]
    assert events.schema == schema.EVENTS.arrow
    common = {"rank": 1, "step": 1, "device_id": 0}
    compute = {
        "category": "compute",
        "name": "gemm",
        "stream_id": 7,
        "dur_ns": 100,
        "bytes": None,
        "collective": None,
        "seq": None,
    }
    assert events.to_pylist() == [
        common
        | compute
        | {
            "phase": "forward",
            "start_ns": 1100,
            "end_ns": 1200,
            "launch_ns": 1010,
            "correlation_id": 5,
        },
        common
        | compute
        | {
            "phase": "backward",
            "start_ns": 1200,
            "end_ns": 1300,
            "launch_ns": 1070,
            "correlation_id": 6,
        },
        common
        | {
            "phase": "backward",
            "category": "comm",
            "name": REDUCE,
            "stream_id": 19,
            "start_ns": 1270,
            "end_ns": 1330,
            "dur_ns": 60,
            "launch_ns": 1080,
            "correlation_id": 7,
            "bytes": None,
            "collective": "all_reduce",
            "seq": 0,
        },
        common
        | {
            "phase": "backward",
            "category": "memory",
            "name": "memcpy DtoD",
            "stream_id": 7,
            "start_ns": 1340,
            "end_ns": 1350,
            "dur_ns": 10,
            "launch_ns": 1090,
            "correlation_id": 8,
            "bytes": 64,
            "collective": None,
            "seq": None,
        },
    ]


def test_graphs_are_compute_and_memsets_memory(tmp_path):
    builder = TraceBuilder("3.24.0 2025.5.2")
    for step in range(3):
        at = 1000 * step
        builder.range(at, at + 900, f"step {step}").graph(at + 100, at + 400, launch=at + 10)
        builder.memset(at + 410, at + 420, launch=at + 20)
    events, _ = read(run_of(tmp_path, builder), (1, 1))[0]
    assert rows(events, "category", "name", "bytes") == [
        ("compute", "CUDA graph", None),
        ("memory", "memset", 8),
    ]


def test_unknown_devices_streams_calls_and_kinds_are_null(tmp_path):
    builder = blank(blank(steady_rank(0), "deviceId", KERNEL, MEMCPY), "streamId", KERNEL, MEMCPY)
    builder = blank(builder, "copyKind", MEMCPY)
    for row in builder.rows[KERNEL]:
        row["correlationId"] = None if row["start"] == 1200 else row["correlationId"]
    run = run_of(tmp_path, builder)
    for steps in (None, (1, 1)):
        events, _ = read(run, steps)[0]
        assert set(events["device_id"].to_pylist() + events["stream_id"].to_pylist()) == {None}, (
            steps
        )
        known = rows(events, "start_ns", "step", "launch_ns", "correlation_id")
        assert (1200, 1, None, None) in known, steps  # by the window that it starts in
        assert "memcpy" in events["name"].to_pylist(), steps


def test_a_step_range_that_launched_no_kernel_has_its_ranges_and_no_operations(tmp_path):
    builder = (
        steady_rank(0)
        .range(4000, 4900, "step 4")
        .range(4005, 4050, "forward")
        .copy(4100, 4150, launch=4010)
    )
    run = run_of(tmp_path, builder)
    assert 4 not in run.steps()["step"].to_pylist()
    for steps in ((4, 4), (3, 4), (-1, 3)):
        with pytest.raises(OptionError):
            read(run, steps)
    _, ranges = read(run)[0]
    names = ("step", "phase", "n_operations", "device_end_ns")
    assert rows(ranges, *names)[-2:] == [(4, None, 1, 4150), (4, "forward", 1, 4150)]


def test_ranges_that_were_never_closed_end_where_the_first_reading_found(tmp_path):
    builder = steady_rank(0)
    for row in builder.rows["NVTX_EVENTS"]:
        if row["start"] in (3000, 3060):  # the last step and its backward
            row["end"] = None
    run = run_of(tmp_path, builder)
    whole, some = read(run)[0][1], read(run, (3, 3))[0][1]
    # The last operation ends at 3350.
    assert rows(some, "phase", "end_ns") == [(None, 3351), ("forward", 3050), ("backward", 3351)]
    assert whole.slice(whole.num_rows - 3) == some


def test_a_steps_own_range_is_no_phase_but_one_as_long_inside_it_is(tmp_path):
    for inner in ("data", "batch {}"):
        builder = TraceBuilder()
        for step in range(4):
            at = 1000 * step
            builder.range(at, at + 900, f"batch {step}").range(at, at + 900, inner.format(step))
            builder.kernel(at + 100, at + 200, launch=at + 10)
        run = run_of(tmp_path, builder)
        assert run.step_family == "batch #", inner
        for steps in (None, (1, 1)):
            events, ranges = read(run, steps)[0]
            assert set(events["phase"].to_pylist()) == {"data"}, steps
            of_step = [row for row in rows(ranges, "step", "phase", "start_ns") if row[0] == 1]
            assert of_step == [(1, None, 1000), (1, "data", 1000)], steps


def test_the_phase_of_a_late_operation_is_told_by_all_ranges_of_its_own_step(tmp_path):
    # Around a forward range "load data" is transparent, also for what it launches long after that.
    builder = steady_rank(0).range(1700, 1890, "load data").range(1750, 1760, "forward")
    builder.kernel(2050, 2150, "late", launch=1880, stream=9)
    run = run_of(tmp_path, builder)
    for steps in (None, (2, 2)):
        found = rows(read(run, steps)[0][0], "name", "step", "phase")
        assert [row for row in found if row[0] == "late"] == [("late", 1, None)], steps


def test_an_option_for_steps_and_for_communication_holds_in_the_second_reading(tmp_path):
    builder = steady_rank(0)
    for step in range(4):
        builder.kernel(1000 * step + 400, 1000 * step + 450, "my_reduce", launch=1000 * step + 95)
    run = run_of(
        tmp_path,
        builder,
        step="^step",
        comm_kernel="my_reduce",
        forward="backward",
        backward="nothing",
    )
    events, ranges = read(run, (1, 1))[0]
    assert rows(events, "name", "category", "collective", "seq")[-1] == (
        "my_reduce",
        "comm",
        "reduce",
        1,
    )
    # No range is the backward pass: it is what the other thread launches.
    assert set(ranges["phase"].to_pylist()) == {None, "forward", "backward"}


# Short names have no parameters, and what ends with a parenthesis has no short name.
@pytest.mark.parametrize(
    ("pattern", "is_matched"),
    [("^my_reduce$", True), (r"my_reduce\(", True), ("^my_gather", False)],
)
def test_a_pattern_for_communication_that_is_no_kernels_name_is_told(
    tmp_path, pattern, is_matched, worded
):
    builder = steady_rank(0).kernel(1400, 1450, "my_reduce", launch=1095)
    builder.kernel(1460, 1470, "my_allReduce", launch=1096)
    run = run_of(tmp_path, builder, comm_kernel=pattern)
    examined = examine([*tmp_path.glob("*.sqlite")], Reading.from_text(comm_kernel=pattern))
    by_run, by_doctor = (
        [one["message"] for one in problems if one["code"] == "comm-kernel-unmatched"]
        for problems in (run.problem_rows, map(asdict, examined.problems))
    )
    assert by_run == by_doctor
    assert len(by_run) == (not is_matched)
    for message in by_run:
        assert pattern in message, message
        assert REDUCE in message, message
        worded(message)


def test_the_processes_of_one_report_are_told_apart(tmp_path):
    path = one_report(steady_rank(0), steady_rank(1)).write(tmp_path / "both.sqlite")
    edit(path, f"UPDATE {KERNEL} SET streamId = 3 WHERE globalPid = {(1 << 48) + (1001 << 24)}")
    run = nsyspipe.load(path)
    for steps, n_rows in ((None, 16), ((1, 1), 4)):
        found = read(run, steps).values()
        assert [(events.num_rows, ranges.num_rows) for events, ranges in found] == [
            (n_rows, 3 * n_rows // 4)
        ] * 2, steps
        assert [set(events["stream_id"].to_pylist()) for events, _ in found] == [{7, 19}, {3, 7}], (
            steps
        )


@pytest.mark.slow
def test_ranks_come_in_order_whatever_reports_hold_them(tmp_path):
    names = []
    for place, numbers in enumerate(((0, 3), (1, 2), (4,))):
        one_report(*map(bare, numbers)).write(tmp_path / f"r{place}.sqlite")
        pids = {number: f":{1000 + number}" if len(numbers) > 1 else "" for number in numbers}
        names += [f"r{place}.sqlite{pid}={number}" for number, pid in pids.items()]
    run = nsyspipe.load(tmp_path, rank_map=",".join(names))
    for options in ({}, {"jobs": 3}, {"executor": ThreadPoolExecutor(2)}):
        assert list(read(run, (1, 1), **options)) == [0, 1, 2, 3, 4], options


def test_of_communication_that_starts_at_once_the_first_launched_comes_first(tmp_path):
    builder = (
        steady_rank(0)
        .nccl(1500, 1520, launch=1096, stream=21)
        .nccl(1500, 1510, launch=1095, stream=23)
    )
    run = run_of(tmp_path, builder)
    for steps in (None, (1, 1)):
        own = rows(read(run, steps)[0][0], "start_ns", "stream_id", "seq")
        assert [row for row in own if row[0] == 1500] == [(1500, 23, 1), (1500, 21, 2)], steps
    ends = {row["seq"]: row["end_ns"] for row in run.collectives().to_pylist() if row["step"] == 1}
    assert ends == {0: 1330, 1: 1510, 2: 1520}


@pytest.mark.parametrize(
    "changes",
    [
        (),
        (
            f"UPDATE {KERNEL} SET rowid = -rowid",
            f"UPDATE {RUNTIME} SET rowid = 1000 - rowid",
        ),  # last rows first
        (f"UPDATE {KERNEL} SET rowid = rowid + 500 WHERE rowid > 2",),
        (f'CREATE INDEX calls ON {RUNTIME} (correlationId DESC, start, "end", globalTid, nameId)',),
        (
            f"ALTER TABLE {KERNEL} ADD COLUMN rowid INTEGER",
            f'UPDATE {KERNEL} SET rowid = "end" / 100',
        ),
        (f'UPDATE {KERNEL} SET "end" = start - 1 WHERE streamId = 7 AND start < 1200',),
    ],
)
def test_a_span_is_a_part_of_all_whatever_the_order_of_rows_and_their_numbers(
    tmp_path, monkeypatch, changes
):
    monkeypatch.setattr(report, "_ZONE_ROWS", 2)
    run = nsyspipe.load(edit(steady_rank(0, world_size=1).write(tmp_path / "a.sqlite"), *changes))
    (events, _), (some, _) = read(run)[0], read(run, (2, 2))[0]
    assert some.num_rows
    assert some == events.filter(pc.equal(events["step"], 2))


def test_zones_are_all_that_may_reach_into_a_span_and_no_others(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "_ZONE_ROWS", 2)
    builder = TraceBuilder()
    for at in range(5):
        builder.kernel(10 * at, 10 * at + 10, "gemm")
    with open_report(builder.write(tmp_path / "a.sqlite")) as opened:
        times = opened.select(KERNEL, {"start": "int", "end": "int"})
        zones = opened.zones(KERNEL, times["start"], times["end"])[KERNEL]
    spans = {
        (0, 5): "1 AND 2",
        (20, 20): "1 AND 4",
        (21, 39): "3 AND 4",
        (41, 90): "5 AND 6",
        (60, 90): "0 AND -1",
    }
    for span, between in spans.items():
        assert zones.condition(*span) == f"rowid BETWEEN {between}", span


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["baseline", "ddp-4gpu-onefile", "ddp-2gpu-straggler", "fsdp-4gpu"]
)
def test_a_span_of_a_real_run_is_a_part_of_it(runs, name):
    run = runs(name)
    step = representative_step(run.steps())
    whole, some = read(run), read(run, (step, step))
    for row in run.steps().to_pylist():
        if row["step"] == step:
            events, ranges = whole[row["rank"]]
            runs_in = pc.and_(
                pc.less(events["start_ns"], row["end_ns"]),
                pc.greater(events["end_ns"], row["start_ns"]),
            )
            assert some[row["rank"]] == [
                events.filter(runs_in),
                ranges.filter(pc.equal(ranges["step"], step)),
            ], row


class Counting(Executor):
    """Runs nothing until it is asked for the result, and counts what was submitted and not fetched yet."""

    def __init__(self):
        self.ahead, self.most = 0, 0

    def submit(self, fn, /, *args, **kwargs):
        self.ahead += 1
        self.most = max(self.most, self.ahead)
        counting = self

        class Lazy(Future):
            def result(self, timeout=None):
                counting.ahead -= 1
                return fn(*args, **kwargs)

        return Lazy()


@pytest.mark.slow
def test_few_reports_are_read_ahead_of_the_one_that_is_waited_for(tmp_path):
    run = run_of(tmp_path, *(steady_rank(rank) for rank in range(7)))
    for jobs, most in ((1, 2), (3, 4), (None, 5)):
        counting = Counting()
        assert list(read(run, (1, 1), jobs=jobs, executor=counting)) == list(range(7)), jobs
        assert (counting.most, counting.ahead) == (most, 0), jobs


def test_a_report_is_read_when_its_rank_is_asked_for(
    steady,
):
    run = nsyspipe.load(steady)
    found = run_operations(run._tables, run.reading, jobs=1)
    assert next(found)[0] == 0
    (steady / "steady_1.sqlite").unlink()
    for ask in (lambda: next(found), lambda: read(run, jobs=1), lambda: read(run, jobs=2)):
        with pytest.raises(ReportNotFoundError, match=r"steady_1\.sqlite"):
            ask()


@pytest.mark.parametrize(
    "change",
    [f"DELETE FROM {KERNEL} WHERE streamId = 19", f'UPDATE {KERNEL} SET "end" = "end" + 1'],
    ids=["a stream less", "kernels that end later"],
)
def test_a_report_that_has_changed_is_an_error_that_names_it(steady, change, worded):
    run = nsyspipe.load(steady)
    run.steps()
    edit(steady / "steady_1.sqlite", change)
    for steps in (None, (1, 1)):
        with pytest.raises(DamagedReportError, match=r"steady_1\.sqlite") as caught:
            read(run, steps)
        worded(caught.value.problem, f"steps {steps}")
    row = problem_of(run, "reports-changed")
    assert "steady_1.sqlite" in row["message"]
    assert "steady_0.sqlite" not in row["message"]
    worded(row["message"], "problem")


def test_steps_that_no_rank_has_are_refused_at_once_with_those_there_are(plain, tmp_path, worded):
    bare = run_of(tmp_path, TraceBuilder().range(0, 10, "step 1"))
    assert read(bare) == {}  # without GPU activity
    for run, steps in ((plain, (7, 9)), (plain, (2, 1)), (plain, 9), (bare, (0, 0))):
        with pytest.raises(OptionError) as caught:
            run_operations(run._tables, run.reading, steps=steps)
        worded(caught.value.lines(), f"steps {steps}")


def test_who_stops_early_leaves_no_thread_behind_and_no_report_is_touched(steady):
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in steady.iterdir()}
    run = nsyspipe.load(steady)
    found = run_operations(run._tables, run.reading, jobs=2)
    next(found)
    found.close()
    assert list(read(run)) == list(read(run, (1, 1))) == [0, 1]
    assert before == {
        path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in steady.iterdir()
    }


@pytest.mark.slow
def test_other_processes_can_do_the_work(plain):
    with ProcessPoolExecutor(1) as executor:
        assert read(plain, (1, 2), executor=executor) == read(plain, (1, 2))


def test_rows_without_a_valid_time_are_left_out_again(tmp_path):
    path = steady_rank(0).memset(1400, 1410, launch=1100).write(tmp_path / "a_0.sqlite")
    edit(path, f'UPDATE {MEMSET} SET "end" = "start" - 1', f'UPDATE {MEMCPY} SET "end" = 0')
    run = nsyspipe.load(path)
    assert all(
        "memory" not in read(run, steps)[0][0]["category"].to_pylist() for steps in (None, (1, 1))
    )


# --- workers --------------------------------------------------------------------------------------
def test_a_step_pattern_of_one_rank_leaves_the_other_without_windows(tmp_path):
    other = steady_rank(1)
    for row in other.rows["NVTX_EVENTS"]:
        row["textId"] = other.string("something")
    run = run_of(tmp_path, steady_rank(0), other, step="^step")
    assert set(run.steps()["rank"].to_pylist()) == {0}
    assert {"steps-missing-on-rank", "no-common-step", "step-missing"} <= set(codes(run))
    assert run.summary()["comm_share"].to_pylist() == [None]


@pytest.mark.slow
def test_any_executor_gives_the_same_rows(steady):
    expected = nsyspipe.load(steady).steps()
    with ThreadPoolExecutor(2) as threads:
        assert nsyspipe.load(steady, executor=threads).steps() == expected
    assert nsyspipe.load(steady, jobs=2).steps() == expected


class DyingExecutor(Executor):
    """Hands out futures of workers that died."""

    def submit(self, fn, /, *args, **kwargs):
        future: Future = Future()
        future.set_exception(BrokenProcessPool("gone"))
        return future


def test_progress_is_told_and_a_worker_that_dies_is_one_clear_error(steady, worded):
    told = []
    _ = nsyspipe.load(steady, on_progress=lambda done, total: told.append((done, total))).steps()
    assert (told[0], told[-1]) == ((1, 2), (2, 2))
    with pytest.raises(InputError) as caught:
        nsyspipe.load(steady, executor=DyingExecutor()).steps()
    worded("\n".join(caught.value.lines()).replace(str(steady), "STEADY"))
    future = SerialExecutor().submit(int, "x")  # hands errors to the caller
    with pytest.raises(ValueError, match="invalid literal"):
        future.result()


@pytest.mark.parametrize(
    ("sizes", "requested", "available", "expected"),
    [
        ([], 4, 10**12, 1),
        ([2**20] * 4, None, 10**12, 1),  # small reports are not worth a process
        ([2**20] * 4, 3, 10**12, 3),  # unless asked for
        ([2**20] * 2, 8, 10**12, 2),  # never more than reports
        ([500 << 20] * 8, 8, 2300 << 20, 2),  # 100 MiB + twice the report each: 1100 MiB
        ([500 << 20] * 8, 8, 10 << 20, 1),  # at least one
        ([500 << 20] * 8, 8, 0, 8),  # a system that does not say
    ],
)
def test_jobs_are_capped_by_reports_and_memory(sizes, requested, available, expected):
    assert jobs_for(sizes, requested, available=available) == expected


MACHINE = {"proc/meminfo": "MemTotal: 900 kB\nMemAvailable: 500 kB\n"}
GROUP = {"sys/fs/cgroup/memory.max": "300000\n", "sys/fs/cgroup/memory.current": "100000\n"}


@pytest.mark.parametrize(
    ("files", "free_bytes"),
    [
        ({}, 0),
        (MACHINE, 500 * 1024),
        # The control group counts also where the machine does not say.
        (GROUP, 200_000),
        ({"proc/meminfo": "MemTotal: 900 kB\n"} | GROUP, 200_000),
        ({"proc/meminfo": "MemAvailable: much kB\n"} | GROUP, 200_000),
        (MACHINE | GROUP, 200_000),
        (MACHINE | GROUP | {"sys/fs/cgroup/memory.max": "max\n"}, 500 * 1024),
        (MACHINE | GROUP | {"sys/fs/cgroup/memory.max": "800000\n"}, 500 * 1024),
        # A group that has used its limit up, which is not the same as an unknown limit.
        (MACHINE | GROUP | {"sys/fs/cgroup/memory.current": "300001\n"}, 1),
    ],
)
def test_free_memory_is_what_machine_and_group_have_left(tmp_path, files, free_bytes):
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert workers._free_memory(tmp_path) == free_bytes


@pytest.mark.slow
def test_a_timeline_of_many_ranks_has_the_most_telling_ones(tmp_path, monkeypatch):
    whole = run_of(tmp_path, *(steady_rank(rank) for rank in range(4))).timeline()
    monkeypatch.setattr("nsyspipe.analysis.timeline.MAX_RANKS", 2)
    few = run_of(tmp_path, *(steady_rank(rank) for rank in range(4)))
    assert set(whole["rank"].to_pylist()) == {0, 1, 2, 3}
    assert few.timeline() == whole.filter(
        pc.is_in(whole["rank"], pc.unique(few.timeline()["rank"]))
    )
    assert len(few.timeline()["rank"].unique()) == 2
    for given in ((None, [3]), (whole["step"][0].as_py(), 3)):
        assert few.timeline(*given) == whole.filter(pc.equal(whole["rank"], 3)), given
