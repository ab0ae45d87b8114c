"""Traces of whole runs, read back and compared with the run's own tables."""

import io
from collections import Counter
from types import SimpleNamespace

import pytest

import nsyspipe
from nsyspipe.errors import OptionError
from nsyspipe.report.export import write
from nsyspipe.report.perfetto import (
    large_trace,
    left_out,
    perfetto,
    traced_ranks,
    without_samples,
)
from nsyspipe.store.write import save
from tests.build.across import every_step, load, reports
from tests.build.sampled import sampled_run
from tests.build.tools import rows_of
from tests.perfetto_reading import ReadTrace


def trace_of(run, steps=None, on_progress=None):
    file = io.BytesIO()
    perfetto(run, file, steps, on_progress)
    return ReadTrace(file.getvalue())


def check(run, steps=None):
    """Compare each number that a trace shows with the run's tables; return the trace."""
    found = trace_of(run, steps)
    shift = found.run.slices[0].notes["time_shift_ns"]
    first, last = steps or (-(2**63), 2**63)
    ranks = run.ranks["rank"].to_pylist()
    assert [one.name.split(" · ")[0] for one in found.ranks] == [f"rank {rank}" for rank in ranks]
    linked: Counter = Counter()
    for track, (rank, events, ranges) in zip(found.ranks, run.operations(steps), strict=True):
        shown = [row for row in rows_of(run.steps(), rank) if first <= row["step"] <= last]
        check_operations(track, events.to_pylist(), shift)
        check_steps(track, shown, shift)
        check_ranges(track, ranges.to_pylist(), shift)
        matched = {
            (row["step"], row["seq"])
            for row in rows_of(run.collectives(), rank)
            if row["is_matched"]
        }
        linked.update(
            key for row in events.to_pylist() if (key := (row["step"], row["seq"])) in matched
        )
    assert sorted(map(len, found.flows().values())) == sorted(linked.values())
    check_flows(found)
    return found


def check_operations(track, events, shift):
    """Every operation is there once, with its exact times, on a thread of its stream, beside no other."""
    # What runs in a graph that was captured as a whole is not known: its span is on a track of its
    # own.
    drawn = [(one.name, graph.category) for one in track.threads for graph in one.slices]
    assert all(("CUDA graphs" in name) == (category == "graph") for name, category in drawn)
    kinds = {"graph": "compute"}
    slices = [
        (one, thread.name.split(" (")[0]) for thread in track.threads for one in thread.slices
    ]
    drawn = Counter(
        (
            one.notes["start_ns"],
            one.end - shift,
            one.name,
            kinds.get(one.category, one.category),
            stream,
        )
        for one, stream in slices
    )
    names = ("start_ns", "end_ns", "name", "category")
    streams = [f"GPU {row['device_id']} stream {row['stream_id']}" for row in events]
    assert drawn == Counter(
        (*map(row.get, names), stream) for row, stream in zip(events, streams, strict=True)
    )
    assert all(one.start == one.notes["start_ns"] + shift and one.depth == 0 for one, _ in slices)


def check_steps(track, shown, shift):
    """Windows, and in each the exposed communication and the waiting of the steps table."""
    steps = track.child("steps")
    assert steps.times == [(row["start_ns"] + shift, row["end_ns"] + shift) for row in shown]
    for name, figure in (
        ("exposed communication", "exposed_comm_ns"),
        ("waiting in communication", "wait_ns"),
    ):
        known = [row for row in shown if row[figure] is not None]
        assert (name in steps.names) == bool(known), name
        if not known:
            continue
        derived = steps.child(name)
        assert derived.total == sum(row[figure] for row in known), name
        for row in known:
            first, last = row["start_ns"] + shift, row["end_ns"] + shift
            assert (
                sum(max(min(end, last) - max(start, first), 0) for start, end in derived.times)
                == row[figure]
            ), row


def check_ranges(track, ranges, shift):
    """Every host range is there once, phases inside of their step."""
    hosts = [one for one in track.child("steps").children if one.name.startswith("phases on host")]
    assert Counter((*bar,) for host in hosts for bar in host.bars) == Counter(
        (row["start_ns"] + shift, row["end_ns"] + shift, row["phase"] or f"step {row['step']}")
        for row in ranges
    )
    for host in hosts[:1]:
        assert all(
            one.parent is None or one.parent.notes["step"] == one.notes["step"]
            for one in host.slices
        ), host


def check_flows(found):
    """The slices of a flow are the same place of the same step, on different ranks."""
    rank_of = {
        id(one): rank.number
        for rank in found.ranks
        for thread in rank.threads
        for one in thread.slices
    }
    for slices in found.flows().values():
        assert len({(one.notes["step"], one.notes["seq"]) for one in slices}) == 1, slices
        assert len({rank_of[id(one)] for one in slices}) == len(slices), slices


def test_a_steady_run_shows_what_was_built(steady):
    found = check(nsyspipe.load(steady))
    rank = found.ranks[1]
    # Step 1 is forward [1100, 1200), backward [1200, 1300), all-reduce [1270, 1330) and a copy
    # [1340, 1350). The session of rank 1 starts 1 ns late, but its all-reduces end with the
    # others': that is its clock's offset.
    assert rank.name == "rank 1 · NVIDIA H200 · node0"
    compute, comm = rank.threads
    assert compute.bars[3:6] == [
        (1100, 1200, "gemm"),
        (1200, 1300, "gemm"),
        (1340, 1350, "memcpy DtoD"),
    ]
    assert comm.times[1] == (1270, 1330)
    steps = rank.child("steps")
    assert steps.child("exposed communication").times[1] == (1300, 1330)
    host = [(1000, 1900, "step 1"), (1005, 1050, "forward"), (1060, 1160, "backward")]
    assert steps.child("phases on host").bars[3:6] == host
    # Launched in forward: the first kernel; in backward: the second, the all-reduce and the copy.
    assert steps.child("phases on GPU").bars[2:4] == [
        (1100, 1200, "forward"),
        (1200, 1350, "backward"),
    ]
    assert [len(slices) for slices in found.flows().values()] == [
        2,
        2,
        2,
        2,
    ]  # four collectives, each on both ranks


def test_streams_say_nccl_calls_have_a_track_and_progress_moves_inside_a_rank(steady):
    run, moves = nsyspipe.load(steady), []
    rank = trace_of(run, on_progress=lambda done, total: moves.append((done, total))).ranks[0]
    assert [" (NCCL)" in one.name for one in rank.threads] == [False, True]
    events = [row for _, table, _ in run.operations() for row in table.to_pylist()]
    launches = sorted({row["launch_ns"] for row in events if row["rank"] == 0})
    tracks = rank.child("steps").children
    assert launches in [[one.notes.get("start_ns") for one in track.slices] for track in tracks]
    # Two ranks with 12 operations of compute and copies, then 4 of communication: 75 % of each half
    # come in between.
    assert moves == [(0, 100), (38, 100), (50, 100), (50, 100), (88, 100), (100, 100), (100, 100)]


def test_a_large_trace_is_told_of_before_it_is_written(steady):
    run = nsyspipe.load(steady)
    assert large_trace(run, [0, 1]) is None
    ranks = run.ranks.set_column(
        run.ranks.column_names.index("n_kernels"), "n_kernels", [[2_000_000, 2_000_000]]
    )
    assert "720.00 MB" in large_trace(
        SimpleNamespace(ranks=ranks), [0, 1]
    )  # 4 million kernels of 180 bytes
    assert "360.00 MB" in large_trace(SimpleNamespace(ranks=ranks), [1])


@pytest.mark.slow
def test_a_saved_run_has_no_tracks_of_counters_and_says_why(tmp_path, worded):
    run = sampled_run(tmp_path / "reports")
    save(run, tmp_path / "store", events=True)
    saved = nsyspipe.load(tmp_path / "store")
    groups = [rank.names for each in (run, saved) for rank in trace_of(each).ranks]
    assert ["hardware counters" in names for names in groups] == [True, True, False, False]
    assert without_samples(run, [0, 1]) is None
    worded(without_samples(saved, [0, 1]))


def test_a_saved_run_without_counters_lacks_no_tracks_of_them(tmp_path, steady):
    save(nsyspipe.load(steady), tmp_path / "store", events=True)
    assert without_samples(nsyspipe.load(tmp_path / "store"), [0, 1]) is None


@pytest.mark.slow
def test_a_trace_of_many_ranks_has_those_that_differ(tmp_path, worded):
    run = load(
        every_step(reports(12), *(450 if rank == 5 else 400 for rank in range(12)), end=520),
        tmp_path,
    )
    assert (len(traced_ranks(run)), 5 in traced_ranks(run)) == (8, True)
    assert [one.name.split()[1] for one in trace_of(run).ranks] == [*map(str, traced_ranks(run))]
    assert "--perfetto-ranks 0-11" in left_out(run)
    worded(left_out(run), "left out")
    write(run, tmp_path / "some.pftrace", ranks=[9, 2])
    assert [
        one.name.split()[1] for one in ReadTrace((tmp_path / "some.pftrace").read_bytes()).ranks
    ] == ["2", "9"]
    with pytest.raises(OptionError) as caught:
        run.operations(ranks=[14, 12, 1, 15])
    worded(str(caught.value), "asked for")


def test_only_the_steps_that_are_asked_for_are_shown(steady):
    found = check(nsyspipe.load(steady), (1, 2))
    rank = found.ranks[0]
    assert [name for *_, name in rank.child("steps").bars] == ["step 1", "step 2"]
    assert rank.threads[1].times == [(1270, 1330), (2270, 2330)]
    assert found.run.bars[0][:2] == (1100, 3100)
    with pytest.raises(OptionError):
        trace_of(nsyspipe.load(steady), (7, 9))


def test_waiting_of_two_communicators_and_unmatched_ones(tmp_path):
    builders = every_step(reports(2), 300, 350, end=400)
    builders[0].nccl(1420, 1450, launch=1030, stream=23)  # only on rank 0: step 1 has no waiting
    found = check(load(builders, tmp_path))
    # Each step but that one, the last too: rank 0 waits 50 ns.
    waiting = [rank.child("steps").child("waiting in communication").times for rank in found.ranks]
    assert waiting == [[(300, 350), (2300, 2350), (3300, 3350)], []]


def test_a_trace_of_one_rank_has_no_arrows(tmp_path):
    found = check(load(every_step(reports(1), 300, end=400), tmp_path))
    assert found.flows() == {}
    assert "waiting in communication" not in found.ranks[0].child("steps").names
    steps = check(load(reports(1), tmp_path)).ranks[0].child("steps")
    assert steps.child("exposed communication").slices == []
    assert steps.child("communication busy").values == [(100, 0)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "ddp-1gpu",
        "ddp-2gpu-straggler",
        "ddp-2gpu-bucket100-nsys2025",
        "ddp-4gpu-onefile",
        "ddp-4gpu-shm-powersgd",
        "fsdp-4gpu",
        "baseline",
        "2gpu-graph",
    ],
)
def test_real_runs_show_their_own_numbers(runs, name):
    run = runs(name)
    check(run)
    numbers = run.steps()["step"].to_pylist()
    if numbers:
        middle = sorted(numbers)[len(numbers) // 2]
        check(run, (middle, middle + 1))
