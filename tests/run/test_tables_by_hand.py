"""Every column of the other tables, worked out by hand of the run of `test_columns_by_hand`.

Here the clock of rank 1 is 370 ns behind, and its session starts 400 ns later. So its aligned ends
are 30 ns after those of rank 0 before the correction, and each rank is 15 ns from their median.
"""

import json
from datetime import UTC, datetime

import pyarrow.parquet as pq
import pytest

import nsyspipe
from nsyspipe.model import schema
from nsyspipe.store.write import runs_table, save
from tests.build.plain_steps import plain_rank
from tests.build.tools import run_of, shift
from tests.build.trace import RUNTIME, TraceBuilder
from tests.run.test_columns_by_hand import COMM_START, RATE, SIZE, rank_of, row_of
from tests.run.test_files_beside import STEPS, TOPOLOGY, log_text

BEHIND, LATER, OFFSET = 370, 400, 15
FIRST = OFFSET  # where a step of number 0 begins in aligned time, on both ranks
AT = FIRST + 1000  # the same of step 1
RING = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
BUSY = [(60, 30, 140, 10), (20, 20, 130, 20)]  # of each rank: comm, exposed, device, dependency


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    (folder / "a.nccl.log").write_text(log_text())
    (folder / "a.topo.txt").write_text(TOPOLOGY)
    behind = shift(rank_of(1), -BEHIND)
    behind.rows["TARGET_INFO_SESSION_START_TIME"][0]["utcEpochNs"] += LATER
    return run_of(folder, rank_of(0), behind)


@pytest.fixture(scope="module")
def saved(run, tmp_path_factory):
    store = tmp_path_factory.mktemp("store")
    save(run, store)
    return lambda name: pq.read_table(
        next(store.rglob(f"{name}/*/*.parquet")), partitioning=None
    ).to_pylist()


@pytest.fixture(scope="module")
def operations(run):
    return [(events.to_pylist(), ranges.to_pylist()) for _, events, ranges in run.operations()]


@pytest.mark.parametrize(
    ("rank", "shift_ns", "offset_ns"), [(0, OFFSET, -OFFSET), (1, LATER - OFFSET, OFFSET)]
)
def test_every_column_of_a_rank(run, rank, shift_ns, offset_ns):
    assert row_of(run.ranks, rank=rank) == {
        "process_rank": rank,
        "local_rank": rank,
        "report": f"a_{rank}.sqlite",
        "pid": 1000 + rank,
        "device_id": 0,
        "device_ids": "0",
        "gpu_name": "NVIDIA H200",
        "host": "node0",
        # The report does not have the memory of the GPU, and there is no sidecar.
        "gpu_memory_bytes": None,
        "peak_allocated_bytes": None,
        "peak_reserved_bytes": None,
        "headroom_bytes": None,
        "n_alloc_retries": None,
        "peak_datatype": None,
        "peak_datatype_source": None,
        "rank_source": "env:RANK",
        "n_kernels": 12,  # in each of four steps two kernels and an all-reduce
        "compute_stream_id": 7,
        "n_comm": 4,
        "n_dtod": 4,
        "clock_shift_ns": shift_ns,  # the later session, less the offset
        "clock_offset_ns": offset_ns,
        "clock_error_ns": 0,  # all four differences are equal
    }


@pytest.mark.parametrize("rank", [0, 1])
def test_every_column_of_a_backward_phase(run, rank):
    comm_ns, exposed_ns, device_ns, dependency_ns = BUSY[rank]
    assert row_of(run.phases(), rank=rank, step=1, phase="backward") == {
        "host_ns": 100,  # [60, 160)
        "n_kernels": 2,  # a kernel and an all-reduce; the copy is none
        "compute_ns": 100,
        "comm_ns": comm_ns,
        "exposed_comm_ns": exposed_ns,
        "device_ns": device_ns,
        "n_blocking_copies": 0,
        "idle_ns": dependency_ns,  # the gaps before the copy and the all-reduce
    }


def test_every_column_of_a_forward_phase(run):
    assert row_of(run.phases(), rank=0, step=1, phase="forward") == {
        "host_ns": 45,  # [5, 50)
        "n_kernels": 1,
        "compute_ns": 100,
        "comm_ns": 0,
        "exposed_comm_ns": 0,
        "device_ns": 100,
        "n_blocking_copies": 0,
        "idle_ns": 750,  # [350, 1100), which the next step's forward kernel ends
    }


# Of the two connections of the ring between two ranks. The log names host memory, although the
# topology has NVLink. A lane of PCIe 5.0 has 32 GT/s, of which 128 of 130 bits are data.
LINK = {
    "comm_id": "0xabc",
    "transport": "SHM/direct/direct",
    "n_channels": 1,
    "path": "NV18",
    "kind": "shm",
    "nominal_bytes_per_s": pytest.approx(32e9 * 16 / 8 * 128 / 130, rel=1e-12),
    "nominal_source": "PCIe 5.0 x16 (H200) to host memory",
    "algorithms": "ring",
}


def test_every_column_of_the_links(run):
    assert run.links().to_pylist() == [
        LINK | {"from_rank": 0, "to_rank": 1},
        LINK | {"from_rank": 1, "to_rank": 0},
    ]


def bar(lane, start, end, n_operations=1, **others):
    named = {"lane": lane, "start_ns": AT + start, "end_ns": AT + end, "busy_ns": end - start}
    empty = {"exposed_ns": None, "wait_ns": None, "name": None, "seq": None}
    return empty | named | {"n_operations": n_operations, "step": 1, "rank": 0} | others


def test_every_column_of_the_timeline_of_a_rank(run):
    # Steps 1 and 2 are equally long, so the first. The window starts at 100.
    reduced = {"name": "all_reduce", "seq": 0}
    assert [row for row in run.timeline().to_pylist() if row["rank"] == 0] == [
        bar("comm", 270, 330, exposed_ns=30, wait_ns=40, **reduced),
        bar("compute", 100, 200, name="gemm"),
        bar("compute", 200, 300, name="gemm"),
        bar("exposed", 300, 330, **reduced),
        # From the window's start to the last start: launches at 70, 80 and 90 that wait.
        bar("launch", 100, 340, 3, name="memcpy DtoD"),
        bar("memory", 340, 350, name="memcpy DtoD"),
        bar("phase", 100, 200, name="forward"),
        bar("phase", 200, 350, 3, name="backward", busy_ns=140),  # less [330, 340)
        bar("wait", 270, 310, **reduced),
    ]


@pytest.mark.parametrize("rank", [0, 1])
def test_every_column_of_the_events_of_a_step(operations, rank):
    events, _ = operations[rank]
    reduced = {"collective": "all_reduce", "seq": 0}
    rows = [
        ("forward", "compute", "gemm", 7, 100, 200, 10, {}),
        ("backward", "compute", "gemm", 7, 200, 300, 70, {}),
        ("backward", "comm", RING, 19, COMM_START[rank], 330, 80, reduced),
        ("backward", "memory", "memcpy DtoD", 7, 340, 350, 90, {"bytes": 64}),
    ]
    assert [event for event in events if event["step"] == 1] == [
        {
            "rank": rank,
            "step": 1,
            "phase": phase,
            "category": category,
            "name": name,
            "device_id": 0,
            "stream_id": stream,
            "start_ns": AT + start,
            "end_ns": AT + end,
            "dur_ns": end - start,
            "launch_ns": AT + launch,
            "correlation_id": 4 + number,  # step 0 has the first four launches
            "bytes": None,
            "collective": None,
            "seq": None,
        }
        | others
        for number, (phase, category, name, stream, start, end, launch, others) in enumerate(
            rows, start=1
        )
    ]


@pytest.mark.parametrize("rank", [0, 1])
def test_every_column_of_the_phase_ranges_of_a_step(operations, rank):
    _, ranges = operations[rank]
    rows = [
        (None, 0, 900, 4, 100, 350),
        ("forward", 5, 50, 1, 100, 200),
        ("backward", 60, 160, 3, 200, 350),
    ]
    assert [row for row in ranges if row["step"] == 1] == [
        {
            "rank": rank,
            "step": 1,
            "phase": phase,
            "start_ns": AT + start,
            "end_ns": AT + end,
            "n_operations": n_operations,
            "device_start_ns": AT + first,
            "device_end_ns": AT + last,
        }
        for phase, start, end, n_operations, first, last in rows
    ]


# Of both ranks and both summary steps: four (rank, step) of 1000 ns.
NO_COST = dict.fromkeys(schema.COSTS.names)
IN_KERNELS = NO_COST | {"table": "kernels", "n_calls": 4, "calls_per_step": 1.0, "n_slowed": 0}
GEMM = {"name": "gemm", "total_ns": 400, "step_share": 0.1, "time_ns_per_step": 100.0}
REDUCED = {"total_ns": 160, "step_share": 0.04, "time_ns_per_step": 40.0}  # 60 and 20, twice
OF_MESSAGES = {
    "name": "all_reduce",
    "calls_per_step": 1.0,
    "time_ns_per_step": 40.0,
    "bytes_per_step": float(SIZE),
    "exposed_ns_per_step": 25.0,  # 30 and 20
    "hidden_ns_per_step": 15.0,
    "wait_ns_per_step": 20.0,  # 40 and 0
    "algbw_bytes_per_s": pytest.approx(RATE, rel=1e-12),
    "busbw_bytes_per_s": pytest.approx(RATE, rel=1e-12),
}


def test_every_column_of_the_costs(run):
    communicator = {"communicator": "0x7", "role": "data", "ranks": "0,1"}
    assert run.costs().to_pylist() == [
        # Rank 0 has 30 of 100 beside the all-reduce, and rank 1 nothing.
        IN_KERNELS | GEMM | {"phase": "backward", "beside_comm_ratio": 0.15},
        IN_KERNELS | GEMM | {"phase": "forward", "beside_comm_ratio": 0.0},
        IN_KERNELS | REDUCED | {"name": RING, "phase": "backward"},
        NO_COST
        | OF_MESSAGES
        | REDUCED
        | {"table": "collectives", "message_bytes": SIZE, "n_calls": 4, "transfer_ns_per_step": 20},
        NO_COST | OF_MESSAGES | communicator | {"table": "traffic"},
    ]


def finding(run, identifier):
    """Return the row with its evidence as a dict, less the words, which goldens hold."""
    row = row_of(run.findings(), id=identifier)
    words = [row.pop(name) for name in ("title", "action", "advice")]
    assert all(words)
    return row | {"evidence": json.loads(row["evidence"])}


# Means over the ranks, of which rank 1 is the slowest without the cause.
IDLE = {
    "idle_ns_per_step": 765.0,  # 760 and 770
    "idle_input_ns_per_step": 100.0,
    "idle_launch_ns_per_step": 650.0,
    "idle_blocked_ns_per_step": 0.0,
    "idle_dependency_ns_per_step": 15.0,  # 10 and 20
    "idle_unknown_ns_per_step": 0.0,
    "rank": 1,
    "limit_rank": 1,
}


def test_every_column_of_a_finding(run):
    # Without late launches rank 1 needs 200 of compute, a copy of 10, and 20 that depend: 230.
    assert finding(run, "launch-bound") == {
        "severity": "high",  # 77 %
        "saving_ns_per_step": 770.0,
        "expected_ns_per_step": None,
        "evidence": IDLE
        | {
            "judged_idle_launch_ns_per_step": 650.0,
            "idle_pause_ns_per_step": 0.0,
            "saving_ns_per_step_by_part": {
                "idle_for_launches": 650.0,
                "idle_for_input_and_calls": 100.0,
                "exposed_by_late_launches": 20.0,
            },
        },
    }


def test_every_column_of_a_problem(run):
    # Goldens hold its words. Steps 1 and 2 are complete and not skipped.
    row = row_of(run.problems, code="few-steps")
    assert " 2 steps" in row.pop("message")
    assert row.pop("fix")
    assert row == {"severity": "info", "report": None, "rank": None}


def test_every_column_of_a_run(run, saved):
    (found,) = saved("runs")
    details = json.loads(found.pop("details"))
    assert details["skipped_steps"] == [0]
    (summary,) = run.summary().to_pylist()  # whose values are worked out in test_columns_by_hand
    first = run.findings().to_pylist()[0]
    assert found == summary | {
        "run_id": run.run_id,
        "label": "a",  # of a_0 and a_1
        "n_ranks": 2,
        "n_processes": 2,
        "world_size": 2,
        "gpu_names": "NVIDIA H200",
        "hosts": "node0",
        "nsys_versions": "mfu",
        "export_schema_versions": "3.25.0",
        "captured_at_utc": datetime(2001, 9, 9, 1, 46, 40, tzinfo=UTC),  # 10**9 s
        "reports": "a_0.sqlite, a_1.sqlite",
        "step_family": "step #",
        "link_kind": None,  # too fast for host memory, so the log's link is not believed
        "nccl_version": None,  # the log has none
        "environment": None,  # RANK and WORLD_SIZE are none of its variables
        "n_findings": run.findings().num_rows,
        "first_finding": "launch-bound",
        "first_action": first["action"],
        "first_saving_ns_per_step": 770.0,
        "tool_version": nsyspipe.__version__,
        "schema_version": 1,
        "definitions_version": 2,
    }


# The place of a step is no metric.
NO_METRICS = ("rank", "step", "is_complete", "in_summary", "start_ns", "end_ns")


def long_form(table, described, **fixed):
    """Return the rows of a table's columns as plain loops make them."""
    units = {column.name: column.unit for column in described.columns}
    empty = {"rank": None, "step": None, "in_summary": None}
    return [
        empty
        | fixed
        | {name: row[name] for name in empty if name in row}
        | {"metric": metric, "unit": units[metric], "value": value}
        for row in table.to_pylist()
        for metric, value in row.items()
        if metric not in NO_METRICS
    ]


def place(row):
    return tuple((row[name] is not None, row[name]) for name in ("rank", "step", "metric"))


def test_every_column_of_the_metrics(run, saved):
    expected = [
        *long_form(run.summary(), schema.SUMMARY),
        *long_form(run.rank_summary(), schema.RANK_SUMMARY),
        *long_form(run.steps(), schema.STEPS),
    ]
    expected = [{"run_id": run.run_id} | row for row in expected]
    assert sorted(saved("metrics"), key=place) == sorted(expected, key=place)


def test_a_run_has_its_link_and_what_else_was_recorded(tmp_path):
    version = "node0:1000:1000 [0] NCCL INFO NCCL version 2.21.5+cuda12.4\n"
    (tmp_path / "a.nccl.log").write_text(version + log_text())
    ranks = [plain_rank(rank, STEPS, world_size=2) for rank in range(2)]
    found = run_of(tmp_path, *(rank.env(NCCL_P2P_DISABLE=1) for rank in ranks))
    (row,) = runs_table(found, {}).to_pylist()
    assert row["link_kind"] == "shm"
    assert row["nccl_version"] == "2.21.5+cuda12.4"  # as NCCL names it
    assert json.loads(row["environment"]) == {"NCCL_P2P_DISABLE": "1"}


@pytest.fixture(scope="module")
def blocked(tmp_path_factory):
    """Return a run with a call that blocks from 150 to 400 of a step, in step 1 for a copy.

    It blocks the gap [200, 500), in which the operation that ends it is late up to 485: launched at
    410, and the least latency is the copy's 75. One operation ends before it starts.
    """
    builder = TraceBuilder(pid=1).env(RANK=0, WORLD_SIZE=1)
    for at in (0, 1000, 2000, 3000):
        builder.range(at, at + 900, f"step {at // 1000}").range(at + 5, at + 145, "forward")
        builder.kernel(at + 100, at + 200, launch=at + 10)
        if at == 1000:
            builder.copy(at + 195, at + 200, kind=1, launch=at + 120)
        builder.launch(at + 150, api="cudaStreamSynchronize_v3020")
        builder.rows[RUNTIME][-1]["end"] = at + 400
        builder.kernel(at + 500, at + 600, launch=at + 410)
    return run_of(tmp_path_factory.mktemp("blocked"), builder.kernel(700, 690, launch=420))


def test_every_column_of_the_idle_calls(blocked):
    # The call's period is over when its late time is its 250, so at 450 of the step.
    assert blocked.idle_calls().to_pylist() == [
        {
            "call": "cudaStreamSynchronize",
            "blocked_ns_per_step": 250.0,
            "of_copies_ns_per_step": 125.0,  # in one of two steps
        }
    ]


@pytest.mark.parametrize(("step", "n"), [(1, 1), (2, 0)])
def test_a_phase_counts_the_copies_that_its_range_launched(blocked, step, n):
    assert row_of(blocked.phases(), step=step, phase="forward")["n_blocking_copies"] == n


def test_a_problem_names_its_report_and_rank(blocked):
    row = row_of(blocked.problems, code="dropped-operations")
    assert " 1 GPU operation" in row.pop("message")
    assert row.pop("fix")
    assert row == {"severity": "warning", "report": "a_0.sqlite", "rank": 0}
