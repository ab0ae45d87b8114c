"""The trace of a few operations: its slices; and read back, tracks, nesting, exact times, arrows, counters, names."""

import io
import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackDescriptor

from nsyspipe.analysis.counters import Series
from nsyspipe.analysis.intervals import union
from nsyspipe.model import schema
from nsyspipe.report.derived_lanes import _waiting_time
from nsyspipe.report.perfetto import (
    bin_edges,
    busy_percent,
    perfetto,
    run_id_of_trace,
)
from nsyspipe.report.perfetto_packets import (
    TraceWriter,
    Track,
    coded,
    disjoint_lanes,
    nested_lanes,
    shown,
    slices,
    values_of,
)
from tests.build import make_perfetto as make
from tests.build.make import ints
from tests.build.make_perfetto import (
    collective,
    comm,
    header,
    host_range,
    op,
    rank_row,
    step_row,
    trace,
    trace_bytes,
)
from tests.perfetto_reading import ReadTrace

KNOWN = {"compute_ns": 0, "comm_ns": 0, "exposed_comm_ns": 0, "wait_ns": 0}
BAD = "a\x1b]0;x\x07<script>alert(1)</script>"


# Two ranks with two collectives: rank 1 is last at the first by 30 ns, rank 0 at the second by 5.
OPS = [
    comm(100, 150, 0, step=3, rank=0),
    comm(130, 152, 0, step=3, rank=1),
    comm(205, 260, 1, step=3, rank=0),
    comm(200, 261, 1, step=3, rank=1),
]
ROWS = [
    make.collective(
        100,
        150,
        0,
        3,
        0,
        wait_ns=30,
        late_by_ns=0,
        transfer_ns=20,
        message_bytes=4096,
        datatype="f32",
    ),
    make.collective(
        130,
        152,
        0,
        3,
        1,
        wait_ns=0,
        late_by_ns=30,
        transfer_ns=22,
        message_bytes=4096,
        datatype="f32",
    ),
    make.collective(205, 260, 1, 3, 0, wait_ns=0, late_by_ns=5),
    make.collective(200, 261, 1, 3, 1, wait_ns=5, late_by_ns=0),
]
# Operations, and the other tables.
CASES = {
    # Processes of several hosts may have the same id: 77 of all of them here.
    "ranks": (
        [op(0, 1, rank=11), op(0, 1, rank=0)],
        {"ranks": [rank_row(0), rank_row(2, host=None), rank_row(11, gpu=None, host=None)]},
    ),
    "what it is of": (
        [op(100, 200)],
        {
            "steps": [step_row(100, 200), step_row(200, 260, 1)],
            "run": replace(header(), world_size=4, captured_at_utc="2026-11-01T00:00:00Z"),
        },
    ),
    "nothing": ([], {}),
    "streams in order, those not known last": (
        [
            op(30, 40),
            op(0, 10, name="first"),
            op(2, 3, stream=1, device=1),
            op(0, 5, "memory", "memcpy DtoH", stream=13),
            op(4, 5, stream=None),
            op(6, 7, device=None, stream=2),
            op(8, 9, device=None, stream=None),
        ],
        {},
    ),
    "what overlaps stands on further threads": (
        [op(0, 10), op(5, 15), op(6, 7), op(20, 30), op(0, 1, stream=8)],
        {},
    ),
    "without length, ordered by number": (
        [op(5, 5, correlation_id=2), op(5, 5, correlation_id=1), op(5, 9, correlation_id=3)],
        {},
    ),
    "before all clocks, drawn from 0": (
        [op(-9, -5, correlation_id=1), op(-3, 4, correlation_id=2)],
        {},
    ),
    "what is known of an operation": (
        [
            op(2**61, 2**61 + 1, step=4, phase="forward", launch_ns=2**61 - 7, correlation_id=12),
            op(2**61 + 5, 2**61 + 6, "memory", "memset", bytes=64),
        ],
        {},
    ),
    "arrows in order of arrival": (OPS, {"collectives": ROWS}),
    "the second is not matched": (
        OPS,
        {"collectives": [row | {"is_matched": row["seq"] == 0} for row in ROWS]},
    ),
    "outside of steps": ([one | {"step": None, "seq": None} for one in OPS], {"collectives": ROWS}),
    "nobody came last": (OPS, {"collectives": [row | {"late_by_ns": 0} for row in ROWS]}),
    "a run without steps": ([], {"steps": [step_row(0, 9)], "family": None}),
    "steps": (
        [],
        {
            "steps": [
                step_row(100, 250, 4, exposed_comm_ns=7),
                step_row(250, 300, 5, is_complete=False),
            ]
        },
    ),
    "phases stand in their step": (
        [],
        {
            "ranges": [
                host_range(10, 40, "forward"),
                host_range(0, 100),
                host_range(40, 90, "backward"),
                host_range(100, 200, step=1),
                host_range(100, 200, "forward", step=1),
            ]
        },
    ),
    "ranges that cross stand on two tracks": (
        [],
        {
            "ranges": [
                host_range(0, 100),
                host_range(10, 50, "forward"),
                host_range(40, 90, "backward"),
            ]
        },
    ),
    # From their first operation to their last: a step has none, and the optimizer launched nothing.
    "phases on the device": (
        [],
        {
            "ranges": [
                host_range(0, 100, device=(20, 200)),
                host_range(10, 40, "forward", device=(20, 90)),
                host_range(40, 90, "backward", device=(80, 200)),
                host_range(90, 95, "optimizer"),
                host_range(100, 140, "forward", step=1, device=(200, 260)),
            ]
        },
    ),
    # Windows [0, 100) and [100, 200); communication [80, 130) with compute [90, 110): exposed [80,
    # 90) and [110, 130).
    "exposed communication": (
        [comm(80, 130), op(90, 110)],
        {"steps": [step_row(0, 100, 0, **KNOWN), step_row(100, 200, 1, **KNOWN)]},
    ),
    "tracks below the steps": (
        [comm(0, 9)],
        {
            "steps": [step_row(0, 9, **KNOWN)],
            "ranges": [host_range(0, 9, "forward", device=(0, 9))],
        },
    ),
    # A true zero has an empty track, what was not recorded none.
    "a true zero": (
        [op(0, 5)],
        {"steps": [step_row(0, 10, exposed_comm_ns=0, compute_ns=5, comm_ns=0)]},
    ),
    "not recorded": ([op(0, 5)], {"steps": [step_row(0, 10)]}),
    # 400 ns in 200 bins of 2: compute in the first half and one ns of the bin behind it.
    "counters": ([op(0, 201)], {"steps": [step_row(0, 400, **KNOWN)]}),
    # All are shifted by 2 s.
    "a clock that starts before 0": (
        [op(7, 9), comm(-50, 20, rank=1)],
        {
            "ranks": [rank_row(0, shift=0), rank_row(1, shift=-1_000_000_001)],
            "steps": [step_row(-50, 50, rank=1, **KNOWN)],
        },
    ),
    "names that hold anything": (
        [op(0, 1, name=BAD, phase=BAD)],
        {"ranks": [rank_row(0, gpu="<b>H200", host="n\nx")], "run": header(label="x\udcff")},
    ),
}


def lines_of(track, indent=""):
    """Yield what stands on a track and below it: bars, inner ones further in, with category and notes; a counter's values."""
    about, pid = track.descriptor.description, track.descriptor.process.pid
    yield f"{indent}{track.name}{f' <{pid}>' if pid else ''}{f' ({about})' if about else ''}"
    for one in track.slices:
        notes = {name: note for name, note in one.notes.items() if name != "nsyspipe"}
        deeper = "  " * (one.depth + 1)
        yield (
            f"{indent}{deeper}[{one.start}, {one.end}) {one.name}: {one.category} "
            f"{json.dumps(notes)}"
        )
    if track.values:
        yield f"{indent}  {track.descriptor.counter.unit_name}: {track.values}"
    for child in sorted(
        track.children, key=lambda one: (one.descriptor.HasField("thread"), one.place)
    ):
        yield from lines_of(child, indent + "  ")


@pytest.mark.parametrize("case", CASES)
def test_a_built_trace_holds_what_it_did(case, pinned):
    ops, tables = CASES[case]
    found = trace(ops, **tables)
    lines = [line for track in (found.run, *found.ranks) for line in lines_of(track)]
    lines += sorted(
        f"arrow {[(one.start, one.end) for one in slices]}" for slices in found.flows().values()
    )
    pinned(f"perfetto/{case.replace(' ', '-').replace(',', '')}", tracks="\n".join(lines))
    assert found.root.process_ordering == TrackDescriptor.PROCESS_ORDERING_EXPLICIT
    assert found.root.thread_ordering == TrackDescriptor.THREAD_ORDERING_EXPLICIT


def test_slices_with_more_notes_than_a_number_has_bits_keep_category_and_notes():
    names = [f"note_{number}" for number in range(70)]
    notes = {name: [number, number] for number, name in enumerate(names)}
    notes["note_69"] = [69, None]
    file = io.BytesIO()
    written = slices(np.array([0, 5]), np.array([5, 9]), "step", "kind", pa.table(notes))
    TraceWriter(file, 0).write_slices(Track("many"), written)
    first, second = ReadTrace(file.getvalue()).run.slices
    assert (first.category, second.category) == ("kind", "kind")
    assert [first.notes[name] for name in names] == [*range(70)]
    assert {*first.notes} - {*second.notes} == {"note_69"}


def counters(**values):
    times = np.array([10, 110, 210])
    return {0: {name: Series(times, np.array(each)) for name, each in values.items()}}


def test_each_hardware_counter_has_a_track_with_its_samples_and_its_unit():
    samples = counters(sm_active=[3, 100, 0], nvlink_tx=[0, 7, 7], gpc_clock=[1980, 1980, 1200])
    (rank,) = trace([op(0, 300)], steps=[step_row(0, 300)], counters=samples).ranks
    group = rank.child("hardware counters")
    assert {track.name: track.values for track in group.children} == {
        "SMs active (%)": [(10, 3), (110, 100), (210, 0)],
        "NVLink sent (%)": [(10, 0), (110, 7), (210, 7)],
        "clock (MHz)": [(10, 1980), (110, 1980), (210, 1200)],
    }
    units = [track.descriptor.counter.unit_name for track in group.children]
    assert units == ["%", "%", "MHz"]


def test_without_counters_a_trace_has_no_group_for_them():
    (rank,) = trace([op(0, 300)], steps=[step_row(0, 300)]).ranks
    assert "hardware counters" not in rank.names


def test_counters_of_asked_steps_begin_with_the_sample_that_holds_then():
    steps = [step_row(0, 150, 0), step_row(150, 205, 1), step_row(205, 300, 2)]
    samples = counters(sm_active=[3, 100, 0])
    (rank,) = trace([op(0, 300)], steps=steps, counters=samples, asked=(1, 1)).ranks
    (track,) = rank.child("hardware counters").children
    assert track.values == [(110, 100)]


def test_a_gap_between_samples_is_told():
    times = np.array([0, 100, 200, 900])
    samples = {0: {"sm_active": Series(times, np.array([1, 2, 3, 4]))}}
    (rank,) = trace([op(0, 900)], steps=[step_row(0, 900)], counters=samples).ranks
    (track,) = rank.child("hardware counters").children
    # 700 ns to the last sample, of which the one before holds for 100.
    assert "600 ns" in track.descriptor.description


@pytest.mark.slow
def test_more_operations_than_a_batch_are_all_there_in_order():
    (rank,) = trace([op(10 * i, 10 * i + 7, name=f"k{i % 3}") for i in range(40_000)]).ranks
    (stream,) = rank.threads
    assert stream.bars == [(10 * i, 10 * i + 7, f"k{i % 3}") for i in range(40_000)]


def test_an_arrow_keeps_its_number_whatever_else_is_shown():
    assert set(trace(OPS[2:], collectives=ROWS).flows()) < set(trace(OPS, collectives=ROWS).flows())
    ops = [op(0, 9, correlation_id=1), op(9, 12, correlation_id=2), comm(3, 8, correlation_id=3)]
    there, back = trace(ops).ranks[0].threads, trace(ops[::-1]).ranks[0].threads
    assert [one.bars for one in there] == [one.bars for one in back]


def test_a_run_is_found_by_its_file(tmp_path):
    path = tmp_path / "x.pftrace"
    path.write_bytes(trace_bytes([op(0, 1)], run=header("20261101T000000-ab12" * 20)))
    assert run_id_of_trace(path) == "20261101T000000-ab12" * 20
    assert b"nsyspipe run_id=20261101T000000-ab12" in path.read_bytes()[:64]


OTHERS = {
    "empty": b"",
    "text": b"SQLite format 3\0" * 9,
    "half a packet": trace_bytes([op(0, 1)])[:20],
    "one byte": b"\x0a",
    "endless size": b"\x0a" + b"\xff" * 30,
    "huge packet": b"\x0a\xff\xff\x7f" + trace_bytes([op(0, 1)]),
    "no message": b"\x0a\x04\xff\xff\xff\xff",
    "of another program": Trace(
        packet=[{"track_descriptor": {"uuid": 1, "name": "main"}}]
    ).SerializeToString(),
    "without a track": Trace(packet=[{"timestamp": 5}]).SerializeToString(),
}


@pytest.mark.parametrize("what", OTHERS)
def test_another_file_is_of_no_run(tmp_path, what):
    path = tmp_path / "x"
    path.write_bytes(OTHERS[what])
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

    perfetto(
        make.a_run(
            header(), schema.RANKS.from_rows([rank_row(rank) for rank in range(3)]), operations()
        ),
        file,
    )
    assert seen == [True, True, True]
    assert len(ReadTrace(file.getvalue()).ranks) == 3


@pytest.mark.parametrize(
    ("lanes_of", "times", "order", "lanes"),
    [
        # Slices of a stream take the first track that is free, and stand inside no other.
        (disjoint_lanes, [(20, 30), (0, 10), (10, 20)], None, [[1, 2, 0]]),
        (disjoint_lanes, [], None, []),
        (disjoint_lanes, [(0, 10), (5, 8), (10, 12), (11, 15)], None, [[0, 2], [1, 3]]),
        (disjoint_lanes, [(0, 10), (2, 4)], None, [[0], [1]]),
        (disjoint_lanes, [(5, 8), (5, 5), (8, 8)], None, [[1, 0, 2]]),
        (disjoint_lanes, [(5, 8), (6, 6)], None, [[0], [1]]),
        (
            disjoint_lanes,
            [(5, 5)] * 3,
            (3, 1, 2),
            [[1, 2, 0]],
        ),  # equal times are in the order of the tie
        # Ranges of a host stand inside each other, of equal ones the lower depth outside; those
        # that cross on two tracks.
        (nested_lanes, [(2, 4), (0, 10), (4, 10)], (0, 0, 0), [[1, 0, 2]]),
        (nested_lanes, [(0, 10), (0, 10)], (1, 0), [[1, 0]]),
        (nested_lanes, [], (), []),
        (nested_lanes, [(0, 10), (5, 15), (6, 14), (15, 20)], (0, 0, 0, 0), [[0, 3], [1, 2]]),
    ],
)
def test_slices_stand_on_the_first_track_that_has_room(lanes_of, times, order, lanes):
    starts, ends = ints(*(start for start, _ in times)), ints(*(end for _, end in times))
    assert [
        lane.tolist() for lane in lanes_of(starts, ends, order if order is None else ints(*order))
    ] == lanes


TIMES = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8)), max_size=30)


@given(TIMES)
def test_lanes_hold_each_slice_once_and_nothing_that_overlaps_or_crosses(found):
    starts = np.array([start for start, _ in found], np.int64)
    ends = starts + np.array([length for _, length in found], np.int64)
    lanes, nests = (
        disjoint_lanes(starts, ends),
        nested_lanes(starts, ends, np.zeros(starts.size, np.int64)),
    )
    for tracks in (lanes, nests):
        assert sorted(row for lane in tracks for row in lane.tolist()) == list(range(len(found))), (
            tracks
        )
    assert all((starts[lane][1:] >= ends[lane][:-1]).all() for lane in lanes)
    # Never more tracks than operations at one time, those without length counted where they stand.
    assert len(lanes) <= max(
        (int(((starts <= t) & (ends >= t)).sum()) for t in range(40)), default=0
    )
    for lane in nests:
        for place, outer in enumerate(lane):
            for inner in lane[place + 1 :]:
                assert starts[inner] >= starts[outer], inner
                assert ends[inner] <= ends[outer] or starts[inner] >= ends[outer], inner


def read(column):
    found = values_of(coded(column))
    numbers = found.numbers.tolist()
    known = found.is_known.tolist()
    values = [
        found.texts[at] if found.texts and ok else at for at, ok in zip(numbers, known, strict=True)
    ]
    return [value if ok else None for value, ok in zip(values, known, strict=True)]


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        ([3, None, 2**62], pa.int64(), [3, None, 2**62]),
        (["b", None, "a", "b"], pa.string(), ["b", None, "a", "b"]),
        ([None, None], pa.string(), [None, None]),
        ([], pa.string(), []),
        ([], pa.int64(), []),
        ([True, False, None], pa.bool_(), ["true", "false", None]),
    ],
)
def test_a_column_keeps_its_values_and_its_nulls(values, kind, expected):
    assert read(pa.chunked_array([values], kind)) == expected
    assert read(pa.chunked_array([values[:1], values[1:]], kind)) == expected


def test_bad_bytes_and_control_characters_are_replaced_in_a_trace():
    raw = pa.array([b"gemm\xff"], pa.binary())
    column = pa.chunked_array([pa.Array.from_buffers(pa.string(), 1, raw.buffers())])
    assert read(column) == ["gemm\N{REPLACEMENT CHARACTER}"]
    assert (
        shown("a\udc80b\x1b[31m\n") == "a?b\N{REPLACEMENT CHARACTER}[31m\N{REPLACEMENT CHARACTER}"
    )
    assert shown("größe · 核") == "größe · 核"


def times(*found):
    return union(ints(*(start for start, _ in found)), ints(*(end for _, end in found)))


@pytest.mark.parametrize(
    ("rows", "window", "waiting"),
    [
        # From its start to the last start, or its own end; nothing of what is not matched or has no
        # common clock.
        (
            [
                collective(0, 50, 0, wait_ns=10),
                collective(60, 65, 1, wait_ns=10),
                collective(70, 90, 2, wait_ns=0),
                collective(100, 120, 3, is_matched=False),
                collective(130, 150, 4),
            ],
            (5, 200),
            [(5, 10), (60, 65)],
        ),
        # At two communicators at once it counts once.
        (
            [collective(0, 50, 0, wait_ns=20), collective(10, 60, 1, wait_ns=20)],
            (0, 100),
            [(0, 30)],
        ),
    ],
)
def test_waiting_runs_from_its_start_to_the_last_start_or_its_end(rows, window, waiting):
    found = _waiting_time(schema.COLLECTIVES.from_rows(rows), times(window))
    assert list(zip(found.starts.tolist(), found.ends.tolist(), strict=True)) == waiting


@pytest.mark.parametrize(
    ("windows", "bins"),
    [
        (
            [(1000, 2000, 0, 0), (900, 2900, 0, 1)],
            (900, 2900, 201),
        ),  # two hundred of a step, over all ranks
        (
            [(1000 * i, 1000 * i + 1000, i, 0) for i in range(100)],
            (0, 100_000, 4001),
        ),  # never more than 4000
        ([(5, 8, 0, 0)], (5, 8, 4)),  # never shorter than a ns
        ([(5, 5, 0, 0)], (5, 5, 1)),
        ([], ()),
    ],
)
def test_bins_are_as_many_as_can_be_told_apart(windows, bins):
    edges = bin_edges(schema.STEPS.from_rows([step_row(*window) for window in windows]))
    assert (*edges[:1], *edges[-1:], *([edges.size] if edges.size else [])) == bins


@pytest.mark.parametrize(
    ("found", "inside", "edges", "percents"),
    [
        # Bins of 10: all, half, half, none, all; equal values are told once.
        (
            [(0, 15), (20, 25), (40, 50)],
            [(0, 50)],
            range(0, 60, 10),
            [(0, 100), (10, 50), (30, 0), (40, 100), (50, 0)],
        ),
        # The window [5, 25): of its part of the first bin 5 of 5, of the last 1 of 5; [30, 40) lies
        # in none.
        ([(0, 10), (22, 23)], [(5, 25)], range(0, 50, 10), [(0, 100), (10, 0), (20, 20), (30, 0)]),
        # To the nearest.
        ([(0, 1), (3, 5)], [(0, 6)], range(0, 9, 3), [(0, 33), (3, 67), (6, 0)]),
    ],
)
def test_busy_is_the_share_of_each_bin_that_lies_in_windows(found, inside, edges, percents):
    at, shares = busy_percent(times(*found), times(*inside), ints(*edges))
    assert list(zip(at.tolist(), shares.tolist(), strict=True)) == percents
