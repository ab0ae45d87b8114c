"""Several captures of the same processes, as ``nsys --capture-range-end=repeat`` makes them, are one run."""

import shlex
import sqlite3
from contextlib import closing
from dataclasses import dataclass, replace

import numpy as np
import pyarrow.compute as pc
import pytest

import nsyspipe
from nsyspipe.errors import OptionError, RankConflictError
from nsyspipe.report.perfetto import bin_edges
from nsyspipe.run.captures import MAX_NSYS_START_ROUNDING_NS
from tests.build.trace import TraceBuilder

US, MS, S = 10**3, 10**6, 10**9
START_NS, STEP_NS = 10**18, 100 * MS


@dataclass(frozen=True)
class Captured:
    """One report: steps of 100 ms, in each a kernel of 70 ms and an all-reduce of 20 ms, on each process."""

    first_step: int = 0
    after_ns: int = 0  # the session begins so much after the first one
    n_steps: int = 5
    pids: tuple[int, ...] = (4000, 4001)
    host: str = "node0"
    text: str = "step {}"
    end_later_ns: int = 0  # its clock is so much ahead
    has_optimizer: bool = False
    variables: tuple[tuple[str, object], ...] = ()

    def write(self, path):
        trace = (
            TraceBuilder(pid=self.pids[0]).session(START_NS + self.after_ns).host(self.host).gpu()
        )
        trace.env(**dict(self.variables))
        for device, pid in enumerate(self.pids):
            for step in range(self.n_steps):
                begin = step * STEP_NS + 10 * MS + self.end_later_ns
                trace.range(
                    begin, begin + 95 * MS, self.text.format(self.first_step + step), pid=pid
                )
                trace.kernel(
                    begin + 100 * US,
                    begin + 70 * MS,
                    launch=begin + 10 * US,
                    pid=pid,
                    device=device,
                )
                times = begin + 70 * MS, begin + 90 * MS
                trace.nccl(*times, launch=begin + 20 * US, pid=pid, device=device)
                if self.has_optimizer:
                    own = {"launch": begin + 30 * US, "pid": pid, "device": device}
                    trace.kernel(begin + 90 * MS, begin + 95 * MS, "FusedAdamMathFunctor", **own)
        return trace.write(path)


THREE = tuple(Captured(5 * at, 3 * S * at) for at in range(3))


def loaded(directory, captures, stem="report{}", **options):
    paths = [
        one.write(directory / f"{stem.format(at + 1)}.sqlite") for at, one in enumerate(captures)
    ]
    return nsyspipe.load(paths, **options)


def codes(run):
    return {*run.problems["code"].to_pylist()}


def summary_steps(run):
    return sorted({*run.breakdown()["step"].to_pylist()})


def test_three_captures_of_two_processes_are_a_run_of_two_ranks(tmp_path):
    run = loaded(tmp_path, THREE)
    summary = run.summary().to_pylist()[0]
    assert (run.header.n_ranks, summary["n_steps"], summary["n_summary_steps"]) == (2, 15, 9)
    assert run.ranks["pid"].to_pylist() == [4000, 4001]
    assert run.ranks["report"].to_pylist() == ["report1.sqlite,report2.sqlite,report3.sqlite"] * 2
    assert summary["step_time_ns"] == STEP_NS
    assert "captured-several-times" in codes(run)
    assert not {"different-runs", "step-missing", "capture-start-in-figures"} & codes(run)


def test_a_captured_rank_is_one_rank_in_all_captures(tmp_path):
    alone = [
        replace(one, pids=(4000,), variables=(("RANK", 0), ("WORLD_SIZE", 1))) for one in THREE
    ]
    run = loaded(tmp_path, alone)
    assert run.ranks["rank"].to_pylist() == [0]
    assert run.ranks["rank_source"].to_pylist() == ["env:RANK"]
    assert run.summary()["n_summary_steps"].to_pylist() == [9]


@pytest.mark.slow
def test_a_report_per_rank_and_capture_is_a_run_too(tmp_path):
    reports = [
        replace(one, pids=(4000 + rank,), variables=(("RANK", rank), ("WORLD_SIZE", 2)))
        for rank in (1, 0)
        for one in THREE
    ]
    run = loaded(tmp_path, reports)
    assert run.ranks["rank"].to_pylist() == [0, 1]
    assert run.ranks["report"].to_pylist()[1] == "report1.sqlite,report2.sqlite,report3.sqlite"
    assert run.summary()["n_summary_steps"].to_pylist() == [9]
    assert run.collectives()["is_matched"].to_pylist() == [True] * 30


def test_steps_are_those_of_each_capture_alone(tmp_path):
    run = loaded(tmp_path, THREE)
    parts = [nsyspipe.load(tmp_path / f"report{at}.sqlite") for at in (1, 2, 3)]
    names = [name for name in run.steps().column_names if name not in {"start_ns", "end_ns"}]
    alone = sorted(
        (row for part in parts for row in part.steps().select(names).to_pylist()), key=str
    )
    assert sorted(run.steps().select(names).to_pylist(), key=str) == alone


def test_no_step_reaches_over_the_time_between_captures(tmp_path):
    steps = loaded(tmp_path, THREE).steps()
    # The last window of a capture ends with its last operation, and the next begins with the next
    # capture.
    rank0 = steps.filter(pc.equal(steps["rank"], 0))
    begun = rank0["start_ns"].to_numpy() - rank0["end_ns"].to_numpy()[0] + STEP_NS
    assert begun.tolist() == [
        capture * 3 * S + step * STEP_NS for capture in range(3) for step in range(5)
    ]
    assert rank0["is_complete"].to_pylist() == [True, True, True, True, False] * 3
    assert max(rank0["wall_ns"].to_pylist()) == STEP_NS


def test_counts_and_kernels_are_of_all_captures(tmp_path):
    run = loaded(tmp_path, THREE)
    assert run.ranks["n_kernels"].to_pylist() == [30, 30]
    kernels = run.kernels().to_pylist()
    assert {
        (row["name"], row["n_kernels"], row["n_in_summary"], row["max_ns"]) for row in kernels
    } == {
        ("gemm", 15, 9, 69_900 * US),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 15, 9, 20 * MS),
    }


@pytest.mark.parametrize(
    ("skip", "expected"),
    [
        (None, [1, 2, 3, 6, 7, 8, 11, 12, 13]),
        (0, [0, 1, 2, 3, 5, 6, 7, 8, 10, 11, 12, 13]),
        (3, [3, 8, 13]),
    ],
)
def test_steps_are_skipped_in_each_capture(tmp_path, skip, expected):
    options = {} if skip is None else {"skip_first": skip}
    run = loaded(tmp_path, THREE, **options)
    assert summary_steps(run) == expected
    assert ("capture-start-in-figures" in codes(run)) == (skip == 0)


def test_skipping_all_steps_of_each_capture_is_refused(tmp_path):
    with pytest.raises(OptionError) as caught:
        loaded(tmp_path, THREE, skip_first=4).steps()
    assert "--skip-first 3" in caught.value.fix


def test_of_captures_with_one_whole_step_each_none_is_skipped(tmp_path):
    run = loaded(tmp_path, [replace(one, n_steps=2) for one in THREE])
    assert summary_steps(run) == [0, 5, 10]
    assert "capture-start-in-figures" in codes(run)


def test_the_whole_step_of_a_short_capture_is_its_first_and_skipped(tmp_path):
    run = loaded(tmp_path, [THREE[0], replace(THREE[1], n_steps=2)])
    assert summary_steps(run) == [1, 2, 3]


def test_captures_of_one_step_each_are_steps_though_none_is_whole(tmp_path):
    run = loaded(tmp_path, [replace(one, n_steps=1) for one in THREE])
    assert summary_steps(run) == [0, 5, 10]
    assert "no-complete-step" in codes(run)


@pytest.mark.parametrize("text", ["step", "batch {}"])
def test_steps_without_numbers_of_their_own_are_counted_on(tmp_path, text):
    again = [replace(one, text=text, first_step=0) for one in THREE]  # of an epoch each, say
    run = loaded(tmp_path, again)
    assert summary_steps(run) == [1, 2, 3, 6, 7, 8, 11, 12, 13]


def test_a_step_that_one_rank_lacks_in_a_capture_shifts_no_later_one(tmp_path):
    short = [
        replace(one, text="step", pids=(4000,), n_steps=4 if not at else 5)
        for at, one in enumerate(THREE)
    ]
    whole = [replace(one, text="step", pids=(4001,)) for one in THREE]
    run = loaded(tmp_path, [*short, *whole])
    # The short rank's fourth step is cut off; the later captures' steps count from 5 and 10 on both
    # ranks.
    assert summary_steps(run) == [1, 2, 6, 7, 8, 11, 12, 13]
    assert pc.all(
        run.collectives().filter(pc.greater(run.collectives()["step"], 4))["is_matched"]
    ).as_py()


def test_clocks_are_aligned_in_each_capture_by_itself(tmp_path):
    # The second host's clock is 2 ms behind in the first capture, 5 ms ahead in the second: more
    # than sessions say.
    first = [replace(one, pids=(4000,)) for one in THREE[:2]]
    second = [
        replace(one, pids=(4001,), host="node1", end_later_ns=moved)
        for one, moved in zip(THREE[:2], (-2 * MS, 5 * MS), strict=True)
    ]
    run = loaded(tmp_path, [*first, *second])
    collectives = run.collectives()
    assert collectives["is_matched"].to_pylist() == [True] * 20
    assert {*collectives["wait_ns"].to_pylist()} == {0}
    assert run.ranks["clock_error_ns"].to_pylist() == [0, 0]


@dataclass(frozen=True)
class Pair:
    """Two reports, and whether they are captures of one process."""

    second: Captured
    is_one: bool
    stem: str = "report{}"


ALONE = Captured(pids=(4000,))
LAST_NS = 510 * MS - 10 * MS  # the end of its last operation
GAP_NS = (
    60 * S + LAST_NS - (10 * MS + 100 * US)
)  # a session that begins so much later has its first operation 60 s after the last


@pytest.mark.parametrize(
    "pair",
    [
        Pair(replace(ALONE, first_step=5, after_ns=3 * S), is_one=True),
        Pair(replace(ALONE, first_step=5, after_ns=3 * S, host="node1"), is_one=False),
        Pair(replace(ALONE, first_step=5, after_ns=3 * S, pids=(4001,)), is_one=False),
        Pair(replace(ALONE, first_step=5, after_ns=100 * MS), is_one=False),  # at the same time
        # Whose steps have other numbers is told by them, whatever the names and the time between.
        Pair(replace(ALONE, first_step=5, after_ns=900 * S), is_one=True, stem="{}-a"),
        # Whose steps begin anew is told by its name, if it is soon enough.
        Pair(replace(ALONE, after_ns=GAP_NS), is_one=True),
    ],
    ids=str,
)
def test_captures_of_one_process_are_told_by_host_process_and_time(tmp_path, pair):
    run = loaded(tmp_path, [ALONE, pair.second], pair.stem)
    assert (run.header.n_ranks == 1) == pair.is_one
    assert ("captured-several-times" in codes(run)) == pair.is_one


@pytest.mark.parametrize(
    ("after_ns", "names"), [(GAP_NS + 1, ("a1", "a2")), (70 * S, ("base", "other"))]
)
def test_other_runs_with_that_process_number_are_refused_as_before(tmp_path, after_ns, names):
    paths = [
        one.write(tmp_path / f"{name}.sqlite")
        for one, name in zip((ALONE, replace(ALONE, after_ns=after_ns)), names, strict=True)
    ]
    with pytest.raises(RankConflictError):
        nsyspipe.load(paths).steps()


def test_containers_of_one_host_may_have_the_same_process_number(tmp_path):
    # Two ranks, each process 31 of its container, in two captures.
    reports = [
        replace(
            one,
            pids=(31,),
            after_ns=one.after_ns + rank,
            variables=(("RANK", rank), ("WORLD_SIZE", 2)),
        )
        for one in THREE[:2]
        for rank in (0, 1)
    ]
    run = loaded(tmp_path, reports)
    assert run.ranks["report"].to_pylist() == [
        "report1.sqlite,report3.sqlite",
        "report2.sqlite,report4.sqlite",
    ]
    assert summary_steps(run) == [1, 2, 3, 6, 7, 8]


def test_a_rank_that_was_captured_several_times_can_be_chosen(tmp_path):
    alone = [
        replace(one, pids=(4000,), variables=(("RANK", 3), ("WORLD_SIZE", 4))) for one in THREE
    ]
    run = loaded(tmp_path, alone, ranks="3")
    assert run.ranks["rank"].to_pylist() == [3]
    assert summary_steps(run) == [1, 2, 3, 6, 7, 8, 11, 12, 13]


def test_captures_without_steps_are_windows_of_their_own(tmp_path):
    run = loaded(tmp_path, THREE, step="none")
    steps = run.steps()
    assert steps["step"].to_pylist() == [0, 1, 2] * 2
    assert {*steps["wall_ns"].to_pylist()} == {400 * MS + 89_900 * US}
    assert run.summary()["n_steps"].to_pylist() == [0]


def test_units_by_repetition_have_numbers_of_their_own_in_each_capture(tmp_path):
    trained = [replace(one, n_steps=8, has_optimizer=True) for one in THREE]
    run = loaded(tmp_path, trained, step="repetition")
    steps = run.steps().filter(pc.equal(run.steps()["rank"], 0))
    numbers = steps["step"].to_pylist()
    assert numbers == sorted({*numbers})
    assert max(steps["wall_ns"].to_pylist()) == STEP_NS
    assert run.collectives()["is_matched"].to_pylist().count(False) == 0


def test_the_second_reading_has_the_operations_of_all_captures(tmp_path):
    run = loaded(tmp_path, THREE)
    for rank, events, ranges in run.operations():
        own = run.steps().filter(pc.equal(run.steps()["rank"], rank))
        assert np.unique(events["step"].to_numpy()).tolist() == own["step"].to_pylist(), rank
        first = (
            events.group_by("step").aggregate([("start_ns", "min")]).sort_by("step")["start_ns_min"]
        )
        assert first.to_pylist() == own["start_ns"].to_pylist(), rank
        assert (np.diff(events["start_ns"].to_numpy()) >= 0).all(), rank
        assert ranges.num_rows == 15, rank


def test_operations_of_steps_of_one_capture_alone_can_be_read(tmp_path):
    run = loaded(tmp_path, THREE)
    read = {rank: {*events["step"].to_pylist()} for rank, events, _ in run.operations((6, 7))}
    assert read == {0: {6, 7}, 1: {6, 7}}


def test_a_replay_takes_the_steps_of_one_capture(tmp_path):
    answer = nsyspipe.whatif(loaded(tmp_path, [*THREE[:2], replace(THREE[2], n_steps=7)]))
    assert answer.n_steps == 5  # of seven less the first and the cut-off one
    assert "one-capture-replayed" in {row["code"] for row in answer.problems}


def test_counters_have_bins_as_long_as_without_the_time_between(tmp_path):
    run = loaded(tmp_path, THREE)
    alone = nsyspipe.load(tmp_path / "report1.sqlite")
    widths = [int(np.diff(bin_edges(one.steps())).min()) for one in (run, alone)]
    assert widths[0] == widths[1]


def test_a_saved_run_of_captures_is_the_same(tmp_path):
    run = loaded(tmp_path, THREE)
    saved = nsyspipe.load(nsyspipe.export.parquet(run, tmp_path / "saved"))
    assert saved.summary().to_pylist() == run.summary().to_pylist()
    assert saved.steps().to_pylist() == run.steps().to_pylist()


@pytest.mark.parametrize(
    "given", ["report1:4000=1,report1:4001=0", "report3:4000=1,report2:4001=0,report1:4001=0"]
)
def test_a_rank_map_names_a_process_by_any_of_its_captures(tmp_path, given):
    run = loaded(tmp_path, THREE, rank_map=given)
    assert dict(zip(run.ranks["rank"].to_pylist(), run.ranks["pid"].to_pylist(), strict=True)) == {
        0: 4001,
        1: 4000,
    }


def test_a_rank_map_gives_the_captures_of_a_process_one_rank(tmp_path, worded):
    with pytest.raises(OptionError) as caught:
        loaded(tmp_path, THREE, rank_map="report1:4000=0,report1:4001=1,report2:4001=0").steps()
    worded(caught.value.lines())


# Names of the reports of three captures of two processes. The first six are what nsys makes of
# --output with --capture-range-end=repeat, the others of nsys start and stop.
NAMES = {
    "report": [["report1"], ["report2"], ["report3"]],
    "node": [["all.1"], ["all.2"], ["all.3"]],
    "rank": [[f"ddp_{rank}.{capture}" for rank in (0, 1)] for capture in (1, 2, 3)],
    "process": [[f"name_{pid}.{capture}" for pid in (4000, 4001)] for capture in (1, 2, 3)],
    "counted before rank": [[f"rep_{capture}_{rank}" for rank in (0, 1)] for capture in (1, 2, 3)],
    "counted before host": [
        [f"rep_{rank + 2 * capture}_node0" for rank in (1, 2)] for capture in (0, 1, 2)
    ],
    "words": [[f"{word}_{rank}" for rank in (0, 1)] for word in ("before", "middle", "after")],
    "words, one report": [["before"], ["middle"], ["after"]],
}


def unnumbered(directory, names, *, is_by_one_nsys, has_rank=False, nsys_later_ns=0):
    """Write captures whose steps have no numbers; if recorded, nsys was started 10 s before the first, or later than that."""
    paths = []
    for capture, reports in enumerate(names):
        for rank, name in enumerate(reports):
            pids = (4000 + rank,) if len(reports) > 1 else (4000, 4001)
            variables = (("RANK", rank), ("WORLD_SIZE", 2)) if has_rank and len(reports) > 1 else ()
            one = Captured(after_ns=3 * S * capture, pids=pids, text="step", variables=variables)
            paths.append(one.write(directory / f"{name}.sqlite"))
            if is_by_one_nsys:
                began_after_ns = 10 * S + 3 * S * capture - nsys_later_ns * capture
                with closing(sqlite3.connect(paths[-1])) as report, report:
                    report.execute("CREATE TABLE ANALYSIS_DETAILS (startTime INTEGER)")
                    report.execute("INSERT INTO ANALYSIS_DETAILS VALUES (?)", (began_after_ns,))
    return paths


@pytest.mark.parametrize("has_rank", [True, False])
@pytest.mark.parametrize("names", NAMES.values(), ids=NAMES)
def test_captures_of_one_nsys_are_one_run_whatever_their_names(tmp_path, names, has_rank):
    run = nsyspipe.load(unnumbered(tmp_path, names, is_by_one_nsys=True, has_rank=has_rank))
    assert (run.header.n_ranks, summary_steps(run)) == (2, [1, 2, 3, 6, 7, 8, 11, 12, 13])
    assert "captured-several-times" in codes(run)


@pytest.mark.parametrize(
    ("later_ns", "is_one"),
    [
        (MAX_NSYS_START_ROUNDING_NS, True),
        (MAX_NSYS_START_ROUNDING_NS + 1, False),
    ],
)
def test_reports_of_one_nsys_agree_on_when_it_was_started(tmp_path, later_ns, is_one):
    names = [["before"], ["after"]]
    paths = unnumbered(tmp_path, names, is_by_one_nsys=True, nsys_later_ns=later_ns)
    if is_one:
        assert nsyspipe.load(paths).header.n_ranks == 2
    else:
        with pytest.raises(RankConflictError):
            nsyspipe.load(paths).steps()


@pytest.mark.parametrize("has_rank", [True, False])
@pytest.mark.parametrize(
    "key", ["counted before rank", "counted before host", "words", "words, one report"]
)
def test_the_fix_for_unconfirmed_captures_works_as_printed(tmp_path, key, has_rank):
    paths = unnumbered(tmp_path, NAMES[key], is_by_one_nsys=False, has_rank=has_rank)
    with pytest.raises(RankConflictError) as caught:
        nsyspipe.load(paths).steps()
    command, _, _ = caught.value.fix.partition(", or ")
    _, _, reports = command.partition("nsyspipe analyze ")
    run = nsyspipe.load(shlex.split(reports))
    assert (run.header.n_ranks, summary_steps(run)) == (2, [1, 2, 3])


def test_a_rank_map_tells_that_unconfirmed_captures_are_ranks(tmp_path):
    paths = unnumbered(tmp_path, [["before", "x"], ["after", "y"]], is_by_one_nsys=False)
    run = nsyspipe.load([paths[0], paths[2]], rank_map={"before": 0, "after": 1})
    assert run.ranks["rank"].to_pylist() == [0, 1]
