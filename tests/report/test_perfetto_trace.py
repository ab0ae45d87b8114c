"""The trace of a few operations, read back: tracks, nesting, exact times, arrows, counters, names."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackDescriptor

from nsyspipe.model import schema
from nsyspipe.report.perfetto import perfetto, run_id_of_trace
from tests.build import make_perfetto as make
from tests.build.make_perfetto import comm, header, op, rank_row, step_row, steps_of, trace, trace_bytes
from tests.perfetto_reading import ReadTrace

BELOW_STEPS = [
    "phases on device", "exposed communication", "waiting in communication", "compute busy", "communication busy",
    "phases on host",
]  # fmt: skip
KNOWN = {"compute_ns": 0, "comm_ns": 0, "exposed_comm_ns": 0, "wait_ns": 0}


def test_each_rank_has_a_process_track_and_they_are_in_order():
    # Processes of several hosts may have the same id: 77 of all of them here.
    ranks = [rank_row(0), rank_row(2, host=None), rank_row(11, gpu=None, host=None)]
    found = trace([op(0, 1, rank=11), op(0, 1, rank=0)], ranks=ranks)
    assert [one.name for one in found.ranks] == ["rank 0 · NVIDIA H200 · node0", "rank 2 · NVIDIA H200", "rank 11"]
    assert [one.descriptor.process.pid for one in found.ranks] == [1, 2, 3]
    assert all("process 77" in one.descriptor.description for one in found.ranks)
    assert found.root.process_ordering == TrackDescriptor.PROCESS_ORDERING_EXPLICIT
    assert found.root.thread_ordering == TrackDescriptor.THREAD_ORDERING_EXPLICIT


def test_the_first_track_tells_what_the_trace_is_of():
    run = replace(header(), world_size=4, captured_at_utc="2026-11-01T00:00:00Z")
    found = trace([op(100, 200)], steps=[step_row(100, 200), step_row(200, 260, 1)], run=run)
    assert found.run.name == "nsyspipe run_id=run-1"
    assert found.run.bars == [(100, 260, "baseline")]
    (told,) = found.run.slices
    assert {**told.notes, "nsyspipe": None} == {
        "start_ns": 100, "run_id": "run-1", "captured_at_utc": "2026-11-01T00:00:00Z", "nsyspipe": None, "n_ranks": 1,
        "world_size": 4, "time_shift_ns": 0,
    }  # fmt: skip


def drawn(ops=(), **tables):
    """Return the bars of the tracks of the only rank: of each stream, the steps and what stands below them."""
    rank = make.only_rank(list(ops), **tables)
    steps = rank.child("steps")
    return {track.name: track.bars for track in (*rank.threads, steps, *steps.children) if track.bars}


STREAM, HOST, DEVICE = "device 0 stream 7", "phases on host", "phases on device"
CASES = {
    "streams in order, those not known last": (
        [
            op(30, 40), op(0, 10, name="first"), op(2, 3, stream=1, device=1), op(0, 5, "memory", "memcpy DtoH", stream=13),
            op(4, 5, stream=None), op(6, 7, device=None, stream=2), op(8, 9, device=None, stream=None),
        ],
        {},
        {
            STREAM: [(0, 10, "first"), (30, 40, "gemm")], "device 0 stream 13": [(0, 5, "memcpy DtoH")],
            "device 0 unknown stream": [(4, 5, "gemm")], "device 1 stream 1": [(2, 3, "gemm")],
            "unknown device stream 2": [(6, 7, "gemm")], "unknown device unknown stream": [(8, 9, "gemm")],
        },
    ),
    "what overlaps stands on further threads": (
        [op(0, 10), op(5, 15), op(6, 7), op(20, 30), op(0, 1, stream=8)],
        {},
        {
            STREAM: [(0, 10, "gemm"), (20, 30, "gemm")], f"{STREAM} (2)": [(5, 15, "gemm")],
            f"{STREAM} (3)": [(6, 7, "gemm")], "device 0 stream 8": [(0, 1, "gemm")],
        },
    ),
    "a run without steps": ([], {"steps": [step_row(0, 9)], "family": None}, {"steps": [(0, 9, "whole capture")]}),
    "ranges that cross stand on two tracks": (
        [],
        {"ranges": [make.host_range(0, 100), make.host_range(10, 50, "forward"), make.host_range(40, 90, "backward")]},
        {HOST: [(0, 100, "step 0"), (10, 50, "forward")], f"{HOST} (2)": [(40, 90, "backward")]},
    ),
    # From their first operation to their last: a step has none, and the optimizer launched nothing.
    "phases on the device": (
        [],
        {"ranges": [
            make.host_range(0, 100, device=(20, 200)), make.host_range(10, 40, "forward", device=(20, 90)),
            make.host_range(40, 90, "backward", device=(80, 200)), make.host_range(90, 95, "optimizer"),
            make.host_range(100, 140, "forward", step=1, device=(200, 260)),
        ]},
        {
            HOST: [(0, 100, "step 0"), (10, 40, "forward"), (40, 90, "backward"), (90, 95, "optimizer"), (100, 140, "forward")],
            DEVICE: [(20, 90, "forward"), (200, 260, "forward")], f"{DEVICE} (2)": [(80, 200, "backward")],
        },
    ),
    # Windows [0, 100) and [100, 200); communication [80, 130) with compute [90, 110): exposed [80, 90) and [110, 130).
    "exposed communication": (
        [comm(80, 130), op(90, 110)],
        {"steps": [step_row(0, 100, 0, **KNOWN), step_row(100, 200, 1, **KNOWN)]},
        {
            STREAM: [(90, 110, "gemm")], "device 0 stream 19": [(80, 130, "ncclKernel")],
            "steps": [(0, 100, "step 0"), (100, 200, "step 1")],
            "exposed communication": [(80, 90, "exposed communication"), (110, 130, "exposed communication")],
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_every_operation_step_and_phase_has_its_bar(case):
    ops, tables, bars = CASES[case]
    assert drawn(ops, **tables) == bars


@pytest.mark.parametrize(
    ("times", "bars"),
    [
        # Without length and at the same time: in the order of their numbers.
        ([(5, 5, 2), (5, 5, 1), (5, 9, 3)], [(5, 5, 5, 1), (5, 5, 5, 2), (5, 9, 5, 3)]),
        # What lies before all clocks is drawn from 0 and tells its start.
        ([(-9, -5, 1), (-3, 4, 2)], [(0, 0, -9, 1), (0, 4, -3, 2)]),
    ],
)
def test_times_are_exact_however_short_or_early(times, bars):
    (stream,) = make.only_rank([op(start, end, correlation_id=number) for start, end, number in times]).threads
    notes = [(one.notes["start_ns"], one.notes["correlation_id"]) for one in stream.slices]
    assert [(*bar, *note) for bar, note in zip(stream.times, notes, strict=True)] == bars


def test_an_operation_tells_what_is_known_of_it_and_nothing_else():
    ops = [
        op(2**61, 2**61 + 1, step=4, phase="forward", launch_ns=2**61 - 7, correlation_id=12),
        op(2**61 + 5, 2**61 + 6, "memory", "memset", bytes=64),
    ]
    (stream,) = make.only_rank(ops).threads
    kernel, copy = stream.slices
    assert kernel.notes == {
        "start_ns": 2**61, "step": 4, "phase": "forward", "launch_ns": 2**61 - 7, "correlation_id": 12,
    }  # fmt: skip
    assert (copy.category, copy.notes) == ("memory", {"start_ns": 2**61 + 5, "bytes": 64})


@pytest.mark.slow
def test_more_operations_than_a_batch_are_all_there_in_order():
    (stream,) = make.only_rank([op(10 * i, 10 * i + 7, name=f"k{i % 3}") for i in range(40_000)]).threads
    assert stream.bars == [(10 * i, 10 * i + 7, f"k{i % 3}") for i in range(40_000)]


def linked():
    """Return two ranks with two collectives: rank 1 is last at the first by 30 ns, rank 0 at the second by 5."""
    ops = [
        comm(100, 150, 0, step=3, rank=0), comm(130, 152, 0, step=3, rank=1),
        comm(205, 260, 1, step=3, rank=0), comm(200, 261, 1, step=3, rank=1),
    ]  # fmt: skip
    rows = [
        make.collective(100, 150, 0, 3, 0, wait_ns=30, late_by_ns=0, transfer_ns=20, message_bytes=4096, datatype="f32"),
        make.collective(130, 152, 0, 3, 1, wait_ns=0, late_by_ns=30, transfer_ns=22, message_bytes=4096, datatype="f32"),
        make.collective(205, 260, 1, 3, 0, wait_ns=0, late_by_ns=5),
        make.collective(200, 261, 1, 3, 1, wait_ns=5, late_by_ns=0),
    ]  # fmt: skip
    return ops, rows


def flows(found):
    return sorted([(one.start, one.end) for one in slices] for slices in found.flows().values())


def test_arrows_link_the_ranks_of_a_collective_in_order_of_arrival():
    ops, rows = linked()
    found = trace(ops, collectives=rows)
    assert flows(found) == [[(100, 150), (130, 152)], [(200, 261), (205, 260)]]
    # An arrow has the same number whatever else is shown.
    assert set(trace(ops[2:], collectives=rows).flows()) < set(found.flows())


def test_what_is_not_matched_or_outside_of_steps_has_no_arrow():
    ops, rows = linked()
    matched = [row | {"is_matched": row["seq"] == 0} for row in rows]
    assert flows(trace(ops, collectives=matched)) == [[(100, 150), (130, 152)]]
    assert trace([one | {"step": None, "seq": None} for one in ops], collectives=rows).flows() == {}


def test_communication_tells_of_its_collective_and_who_came_last():
    ops, rows = linked()
    first, second = trace(ops, collectives=rows).ranks[0].threads[0].slices
    assert first.notes == {
        "start_ns": 100, "step": 3, "seq": 0, "collective": "all_reduce", "comm_id": "0x1", "datatype": "f32",
        "message_bytes": 4096, "wait_ns": 30, "transfer_ns": 20, "last_rank": 1,
    }  # fmt: skip
    assert second.notes == {
        "start_ns": 205, "step": 3, "seq": 1, "collective": "all_reduce", "comm_id": "0x1", "wait_ns": 0,
        "last_rank": 0,
    }  # fmt: skip
    # Nobody came last where two did.
    for rank in trace(ops, collectives=[row | {"late_by_ns": 0} for row in rows]).ranks:
        assert not any("last_rank" in one.notes for one in rank.threads[0].slices)


def test_steps_are_windows_one_after_the_other_with_their_figures():
    steps = steps_of([], steps=[step_row(100, 250, 4, exposed_comm_ns=7), step_row(250, 300, 5, is_complete=False)])
    assert steps.bars == [(100, 250, "step 4"), (250, 300, "step 5")]
    assert steps.slices[0].notes == {
        "start_ns": 100, "step": 4, "wall_ns": 150, "exposed_comm_ns": 7, "is_complete": "true", "in_summary": "true",
    }  # fmt: skip
    assert steps.slices[1].notes["is_complete"] == "false"


def test_phases_of_the_host_stand_in_their_step():
    ranges = [
        make.host_range(10, 40, "forward"), make.host_range(0, 100), make.host_range(40, 90, "backward"),
        make.host_range(100, 200, step=1), make.host_range(100, 200, "forward", step=1),
    ]  # fmt: skip
    host = steps_of([], ranges=ranges).child("phases on host")
    assert [(*bar, one.depth) for bar, one in zip(host.bars, host.slices, strict=True)] == [
        (0, 100, "step 0", 0),
        (10, 40, "forward", 1),
        (40, 90, "backward", 1),
        (100, 200, "step 1", 0),
        (100, 200, "forward", 1),
    ]
    assert host.slices[1].parent is host.slices[0]
    assert host.slices[1].notes == {"start_ns": 10, "step": 0, "n_operations": 1}


def test_tracks_below_the_steps_are_in_order():
    ranges = [make.host_range(0, 9, "forward", device=(0, 9))]
    assert steps_of([comm(0, 9)], steps=[step_row(0, 9, **KNOWN)], ranges=ranges).names == BELOW_STEPS


def test_what_was_not_recorded_has_no_track_and_a_true_zero_an_empty_one():
    known = {"exposed_comm_ns": 0, "compute_ns": 5, "comm_ns": 0}
    steps = steps_of([op(0, 5)], steps=[step_row(0, 10, **known)])
    assert steps.names == ["exposed communication", "compute busy", "communication busy"]
    assert steps.child("exposed communication").slices == []
    assert steps_of([op(0, 5)], steps=[step_row(0, 10)]).names == []


def test_counters_say_how_busy_each_bin_is():
    # 400 ns in 200 bins of 2: compute in the first half and one ns of the bin behind it.
    steps = steps_of([op(0, 201)], steps=[step_row(0, 400, **KNOWN)])
    assert steps.child("compute busy").values == [(0, 100), (200, 50), (202, 0)]
    assert steps.child("communication busy").values == [(0, 0)]
    counter = steps.child("compute busy").descriptor
    assert (counter.counter.unit_name, counter.description) == ("%", "share of each 2 ns")


def test_where_a_clock_starts_before_0_all_are_shifted_by_whole_seconds():
    ranks = [rank_row(0, shift=0), rank_row(1, shift=-1_000_000_001)]
    windows = [step_row(-50, 50, rank=1, **KNOWN)]
    found = trace([op(7, 9), comm(-50, 20, rank=1)], ranks=ranks, steps=windows)
    shift = 2_000_000_000
    assert found.run.slices[0].notes["time_shift_ns"] == shift
    assert found.ranks[0].threads[0].times == [(shift + 7, shift + 9)]
    assert found.ranks[1].threads[0].times == [(shift - 50, shift + 20)]
    assert found.ranks[1].threads[0].slices[0].notes["start_ns"] == -50
    exposed = found.ranks[1].child("steps").child("exposed communication")
    assert exposed.times == [(shift - 50, shift + 20)]


def test_nothing_at_all_is_a_trace():
    found = trace([])
    assert found.run.bars == [(0, 0, "baseline")]
    assert [one.name for one in found.ranks[0].children] == ["steps"]


def test_the_order_of_rows_does_not_matter():
    ops = [op(0, 9, correlation_id=1), op(9, 12, correlation_id=2), comm(3, 8, correlation_id=3)]
    there, back = trace(ops).ranks[0].threads, trace(ops[::-1]).ranks[0].threads
    assert [one.bars for one in there] == [one.bars for one in back]


def test_names_of_traces_are_text_whatever_they_hold():
    bad = "a\x1b]0;x\x07<script>alert(1)</script>"
    rank = make.only_rank(
        [op(0, 1, name=bad, phase=bad)], ranks=[rank_row(0, gpu="<b>H200", host="n\nx")], run=header(label="x\udcff")
    )  # fmt: skip
    fit = "a\N{REPLACEMENT CHARACTER}]0;x\N{REPLACEMENT CHARACTER}<script>alert(1)</script>"
    assert rank.name == "rank 0 · <b>H200 · n\N{REPLACEMENT CHARACTER}x"
    (found,) = rank.threads[0].slices
    assert (found.name, found.notes["phase"]) == (fit, fit)


def test_a_run_is_found_by_its_file(tmp_path):
    path = tmp_path / "x.pftrace"
    path.write_bytes(trace_bytes([op(0, 1)], run=header("20261101T000000-ab12" * 20)))
    assert run_id_of_trace(path) == "20261101T000000-ab12" * 20
    assert b"nsyspipe run_id=20261101T000000-ab12" in path.read_bytes()[:64]


def other_traces():
    track = {"track_descriptor": {"uuid": 1, "name": "main"}}
    whole = trace_bytes([op(0, 1)])
    return {
        "empty": b"",
        "text": b"SQLite format 3\0" * 9,
        "half a packet": whole[:20],
        "one byte": b"\x0a",
        "endless size": b"\x0a" + b"\xff" * 30,
        "huge packet": b"\x0a\xff\xff\x7f" + whole,
        "no message": b"\x0a\x04\xff\xff\xff\xff",
        "of another program": Trace(packet=[track]).SerializeToString(),
        "without a track": Trace(packet=[{"timestamp": 5}]).SerializeToString(),
    }


@pytest.mark.parametrize("what", other_traces())
def test_another_file_is_of_no_run(tmp_path, what):
    path = tmp_path / "x"
    path.write_bytes(other_traces()[what])
    assert run_id_of_trace(path) is None
    assert run_id_of_trace(tmp_path) is None
    assert run_id_of_trace(tmp_path / "missing") is None


def test_a_trace_is_written_rank_by_rank():
    """Nothing of a later rank is asked for before the ranks ahead of it are in the file."""
    file, seen = io.BytesIO(), []

    def operations():
        for rank in range(3):
            events = schema.EVENTS.from_rows([op(0, 1, name=f"kernel of {rank}", rank=rank)])
            yield rank, events, schema.PHASE_RANGES.empty()
            seen.append(f"kernel of {rank}".encode() in file.getvalue())

    ranks = schema.RANKS.from_rows([rank_row(rank) for rank in range(3)])
    perfetto(make.a_run(header(), ranks, operations()), file)
    assert seen == [True, True, True]
    assert len(ReadTrace(file.getvalue()).ranks) == 3
