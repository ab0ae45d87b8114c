"""The fast code equals the plain one on small random reports, end to end, and so does waiting across ranks."""

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import assume, given, strategies as st

import nsyspipe
from nsyspipe.analysis import breakdown
from nsyspipe.model.schema import KERNEL_COSTS, PHASES
from tests.build.tools import rows_of
from tests.conftest import examples
from tests.property import cross_oracle, oracle, oracle_costs
from tests.property.strategies import PROCESSES, load_run, runs, trains, write

pytestmark = pytest.mark.reads_anew

COLLECTIVE = (
    "step",
    "rank",
    "collective",
    "comm_id",
    "start_ns",
    "end_ns",
    "is_matched",
    "in_summary",
    "n_ranks",
    "arrival_skew_ns",
    "wait_ns",
    "transfer_ns",
    "late_by_ns",
    "is_significant",
    "is_late_significant",
)
STEP = ("rank", "step", "start_ns", "end_ns", "wait_ns", "exposed_wait_ns")
ONE = ("rank",)
KEYS = {
    "ranks": ONE,
    "steps": ("rank", "start_ns"),
    "collectives": ("step", "seq", "rank"),
    "stragglers": ONE,
}
FIGURES = ("arrival_skew_ns", "wait_ns", "transfer_ns")
FLOORS = 4  # medians of even numbers are floored: of ends and of differences, in both runs


def tables(run, **more):
    with tempfile.TemporaryDirectory() as folder:
        found = load_run(run, Path(folder), **more)
        ranks = found.ranks.select(["rank", "clock_offset_ns", "clock_error_ns"]).to_pylist()
        names = ("steps", "collectives", "stragglers", "summary")
        return {"ranks": ranks} | {name: getattr(found, name)().to_pylist() for name in names}


def shifted(run, which, by):
    """Return the run with one report's clock ahead by so much; only runs whose clock errors are known."""
    which %= len(run.sessions)
    ranks = [cross_oracle.moved(rank, by) if rank.report == which else rank for rank in run.ranks]
    after = replace(run, ranks=tuple(ranks))
    assume(all(error is not None for one in (run, after) for _, error in cross_oracle.clocks(one)))
    return after


def held_up(rows):
    sums = {}
    for row in rows:
        place = row["step"], row["seq"]
        sums[place] = sums.get(place, 0) + (row.pop("held_up_ns") or 0)
    return sums


def only(rows, names):
    return [{name: row[name] for name in names} for row in rows]


def in_order(rows):
    return sorted(rows, key=lambda row: (row["step"], row["rank"], row["start_ns"], row["comm_id"]))


def one_ns_apart(ends, sessions=(0, 0), streams=(0, 0)):
    """Return two ranks whose collectives start 1 ns apart in each of four steps; `ends` are those of the first step."""
    ranks = []
    for place, (end, stream) in enumerate(zip(ends, streams, strict=True)):
        kernels = [cross_oracle.Kernel(at, at + 5, at) for at in range(0, 400, 100)]
        kernels += [
            cross_oracle.Kernel(at + 10 + place, at + end, at + 1, "all_reduce", used)
            for at in range(0, 400, 100)
            for used in {0, stream}
        ]
        steps = tuple((at // 100, at, at + 95) for at in range(0, 400, 100))
        ranks.append(cross_oracle.Rank(place, steps, tuple(kernels)))
    return cross_oracle.Run(tuple(ranks), tuple(10**18 + shift for shift in sessions))


def two_streams_used_at_once():
    """Return two ranks whose second stream, by id, is first used at once with the first, and listed before it, on rank 0."""
    ranks = []
    for place in range(2):
        kernels = [cross_oracle.Kernel(at, at + 5, at) for at in range(0, 400, 100)]
        for at in range(0, 400, 100):
            first = (at + 10, at + 14 + place, None if place == 0 else at + 1, "all_gather", 2)
            second = (at + 10 + place, at + 13, None if place == 0 else at + 2, "all_gather", 1)
            kernels += [cross_oracle.Kernel(*first), cross_oracle.Kernel(*second)]
        steps = tuple((at // 100, at, at + 95) for at in range(0, 400, 100))
        ranks.append(cross_oracle.Rank(0, steps, tuple(kernels)))
    return cross_oracle.Run(tuple(ranks), (10**18,))


def apart_in_the_last_step_only():
    """Return three ranks whose clocks are apart, with one collective, in the step that is no summary step.

    Two of three ends precede the last start: the ranks cannot be one group, and nothing is matched.
    """
    kernels = (
        cross_oracle.Kernel(0, 1, 0),
        cross_oracle.Kernel(100, 101, 100),
        cross_oracle.Kernel(110, 111, 101, "all_gather", 1),
    )
    ranks = tuple(
        cross_oracle.Rank(place, ((0, 0, 95), (1, 100, 195)), kernels) for place in range(3)
    )
    return cross_oracle.Run(ranks, (10**18, 10**18, 10**18 + 2))


# Where a nanosecond decides who is late: equal ends, a median of two ends that is floored, sessions
# 1 ns apart, and streams that are first used at once. Where a doubt of process groups concerns only
# steps that do not count, lateness is 0.
ONE_NS = {
    "ends at once": one_ns_apart((20, 20)),
    "the last ends later": one_ns_apart((20, 21)),
    "the last ends first": one_ns_apart((21, 20)),
    "sessions apart": one_ns_apart((20, 20), sessions=(1, 0)),
    "no session": replace(one_ns_apart((20, 21)), sessions=(10**18, None)),
    "two streams": one_ns_apart((20, 20), streams=(1, 1)),
    "two streams at once": two_streams_used_at_once(),
    "groups in doubt outside the summary": apart_in_the_last_step_only(),
}


@pytest.mark.slow
@examples(25)
@given(runs())
def test_waiting_equals_the_plain_loops(run):
    assume(cross_oracle.communicates(run))
    check_waiting(run)


@pytest.mark.parametrize("case", ONE_NS)
def test_waiting_of_one_ns_equals_the_plain_loops(case):
    check_waiting(ONE_NS[case])


def check_waiting(run):
    found = tables(run)
    clocks = [cross_oracle.clocks(run)[rank.report] for rank in run.ranks]
    assert [tuple(row.values())[1:] for row in found["ranks"]] == clocks
    expected = in_order(cross_oracle.collectives(run))
    assert only(in_order(found["collectives"]), COLLECTIVE) == only(expected, COLLECTIVE)
    assert only(found["steps"], STEP) == cross_oracle.steps(run)
    assert found["stragglers"] in cross_oracle.stragglers(run)
    check_places(found["collectives"], expected)


def check_places(rows, expected):
    """Check that `seq` names the same collective on all ranks, in order of first start, and then the unmatched."""
    assert rows == sorted(rows, key=lambda row: (row["step"], row["seq"], row["rank"]))
    places = {(r["step"], r["rank"], r["start_ns"], r["comm_id"]): r["seq"] for r in rows}
    for step in {row["step"] for row in rows}:
        own = [row for row in expected if row["step"] == step]
        seqs: dict[object, set[int]] = {}
        for row in own:
            own_key = row["rank"], row["start_ns"], row["comm_id"]
            seqs.setdefault(row["id"] or own_key, set()).add(places[(step, *own_key)])
        assert all(len(one) == 1 for one in seqs.values()), step
        first: dict[object, int] = {}
        for row in own:
            if row["id"]:
                first[row["id"]] = min(row["start_ns"], first.get(row["id"], row["start_ns"]))
        matched = sorted((min(seqs[key]), start) for key, start in first.items())
        assert [place for place, _ in matched] == list(range(len(first))), step
        assert [start for _, start in matched] == sorted(first.values()), step
        for rank in {row["rank"] for row in own}:
            rest = [row for row in rows if (row["step"], row["rank"]) == (step, rank)]
            rest = [row for row in rest if not row["is_matched"]]
            assert [row["seq"] for row in rest] == [len(first) + k for k in range(len(rest))], rank
            assert [row["start_ns"] for row in rest] == sorted(row["start_ns"] for row in rest), (
                rank
            )


@pytest.mark.slow
@examples(10)
@given(
    runs(),
    st.integers(0, 3),
    st.one_of(st.integers(-50, 50), st.sampled_from([10**6, -(10**9), 10**10])),
)
def test_a_clock_that_is_off_moves_no_figure_by_more_than_the_stated_errors(run, which, by):
    before, after = tables(run), tables(shifted(run, which, by))
    pairs = zip(before["ranks"], after["ranks"], strict=True)
    errors = sorted(one["clock_error_ns"] + other["clock_error_ns"] for one, other in pairs)
    allowed = sum(errors[-2:]) + FLOORS  # of the two ranks that a figure compares
    left, right = (in_order(found["collectives"]) for found in (before, after))
    assert only(left, ("is_matched", "n_ranks")) == only(right, ("is_matched", "n_ranks"))
    for one, other in zip(left, right, strict=True):
        for name in FIGURES if one["is_matched"] else ():
            assert abs(one[name] - other[name]) <= allowed, name


@pytest.mark.slow
@examples(10)
@given(runs(steady=True), st.integers(0, 3), st.integers(-(10**10), 10**10))
def test_where_collectives_end_at_once_a_clock_that_is_off_changes_nothing(run, which, by):
    before, after = tables(run), tables(shifted(run, which, by))
    timeless = [name for name in before["collectives"][0] if name not in {"start_ns", "end_ns"}]
    assert only(before["collectives"], timeless) == only(after["collectives"], timeless)
    left, right = (
        only(found["steps"], ("rank", "step", "wait_ns", "wall_ns")) for found in (before, after)
    )
    assert (left, before["stragglers"], before["summary"]) == (
        right,
        after["stragglers"],
        after["summary"],
    )


@pytest.mark.slow
@examples(10)
@given(runs(), st.randoms(use_true_random=False))
def test_the_order_of_files_and_the_numbers_of_ranks_are_only_labels(run, random):
    numbers, order = list(range(len(run.ranks))), list(range(len(run.sessions)))
    random.shuffle(numbers)
    random.shuffle(order)
    before, after = tables(run), tables(run, ranks=numbers, order=order)
    # Of ranks that came last together the one with the lowest number holds up the others.
    assert held_up(before["collectives"]) == held_up(after["collectives"])
    for name, key in KEYS.items():
        for row in after[name]:
            row["rank"] = numbers.index(row["rank"])
        after[name].sort(key=lambda row, key=key: [row[one] for one in key])
    assert before == after


@pytest.mark.slow
@examples(10)
@given(runs(steady=True))
def test_one_report_of_several_processes_says_what_a_report_per_rank_says(run):
    ranks = tuple(replace(rank, report=0) for rank in run.ranks)
    assume(all(error is not None for _, error in cross_oracle.clocks(run)))
    assert tables(run) == tables(replace(run, ranks=ranks, sessions=run.sessions[:1]))


CAUSES = ("input", "launch", "blocked", "dependency", "unknown")
NAMED = {"rank", "step", "phase", "name"}
RUNS = st.lists(PROCESSES, min_size=1, max_size=2)


def loaded(found):
    """Read a run of one report per process; return it and its step family as the oracle sees it."""
    with tempfile.TemporaryDirectory() as folder:
        write(found, Path(folder))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(breakdown, "PAUSE_NS", oracle_costs.PAUSE)
            run = nsyspipe.load(folder, jobs=1)
            run.steps()
    family = oracle.choose_family(found)
    assert (run.step_family, run.ranks["rank"].to_pylist()) == (family, list(range(len(found))))
    return run, family


def by_key(table, rank, *keys):
    rows = rows_of(table, rank)
    return {
        tuple(row[key] for key in keys): {n: v for n, v in row.items() if n not in NAMED}
        for row in rows
    }


def summary_members(run, rank, numbers):
    steps = {row["step"] for row in rows_of(run.steps(), rank) if row["in_summary"]}
    return {member for member, number in enumerate(numbers) if number in steps}


def check_all(found):
    run, family = loaded(found)
    shifts, numbers = run.ranks["clock_shift_ns"].to_pylist(), oracle.numbers(found, family)
    unseen = dict.fromkeys(oracle.UNSEEN) if oracle.lacks_comm(found) else {}
    unknown = dict.fromkeys(oracle.PARTS) if oracle.is_part_known(found, family) else {}
    for rank, process in enumerate(found):
        expected = []
        measures = (
            oracle.breakdown,
            oracle_costs.idle_causes,
            oracle_costs.grad_copies,
            oracle_costs.copies_from_host,
            oracle_costs.memory_calls,
        )
        for parts in zip(*(measure(process, family) for measure in measures), strict=True):
            row = {name: value for part in parts for name, value in part.items()} | unseen | unknown
            row["step"] = numbers[rank][row.pop("member")]
            expected.append(
                row | {name: row[name] + shifts[rank] for name in ("start_ns", "end_ns")}
            )
        steps = rows_of(run.steps(), rank)
        assert [{name: row[name] for name in expected[0]} for row in steps] == expected, rank
        for row in steps:
            causes = [row[f"idle_{cause}_ns"] for cause in CAUSES]
            assert all(cause is None or cause >= 0 for cause in causes), row
            assert None in causes or sum(causes) == row["idle_ns"], row
        phases = {
            (numbers[rank][member], phase): row | {name: None for name in unseen if name in row}
            for (member, phase), row in oracle_costs.phases(process, family).items()
        }
        assert by_key(run.phases(), rank, "step", "phase") == phases, rank
        kernels = oracle_costs.kernel_costs(
            process, family, summary_members(run, rank, numbers[rank])
        )
        assert by_key(run.kernels(), rank, "phase", "name") == kernels, rank
    assert (run.phases().schema, run.kernels().schema) == (PHASES.arrow, KERNEL_COSTS.arrow)


@pytest.mark.parametrize("number", [20, pytest.param(40, marks=pytest.mark.slow)])
def test_steps_phases_and_kernels_equal_counting_every_nanosecond(number):
    examples(number)(given(RUNS)(check_all))()


@pytest.mark.slow
@examples(30)
@given(trains())
def test_kernels_slowed_by_communication_equal_comparing_each_with_all_others(process):
    run, family = loaded([process])
    found = by_key(run.kernels(), 0, "phase", "name")
    expected = oracle_costs.kernel_costs(
        process, family, summary_members(run, 0, oracle.numbers([process], family)[0])
    )
    slowed, of_oracle = (
        {key: row for key, row in one.items() if row["n_slowed"]} for one in (found, expected)
    )
    assert slowed == of_oracle


def moved(process, by, random):
    def later(one):
        launch = {} if getattr(one, "launch", None) is None else {"launch": one.launch + by}
        return replace(one, start=one.start + by, end=one.end + by, **launch)

    columns = [
        [later(one) for one in column] for column in (process.ops, process.ranges, process.calls)
    ]
    for column in columns:
        random.shuffle(column)
    return oracle.Process(*columns)


@pytest.mark.slow
@examples(20)
@given(PROCESSES, st.randoms(use_true_random=False))
def test_row_order_and_time_shift_change_nothing(process, random):
    def rows(one, by=0):
        run, _ = loaded([one])
        steps = run.steps().to_pylist()
        times = [{name: row[name] - by for name in ("start_ns", "end_ns")} for row in steps]
        return [row | own for row, own in zip(steps, times, strict=True)], run.phases().to_pylist()

    assert rows(moved(process, 2**60, random), 2**60) == rows(process)
