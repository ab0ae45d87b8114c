"""Operations read one by one equal the plain loops and add up to the steps; their timeline equals asking every nanosecond."""

import tempfile
from dataclasses import astuple
from pathlib import Path

import pyarrow.compute as pc
import pytest
from hypothesis import assume, given, strategies as st

import nsyspipe
from nsyspipe.analysis.timeline import MAX_BARS, representative_step, timeline
from nsyspipe.model import schema
from nsyspipe.model.table import TableSchema
from nsyspipe.reader import report
from nsyspipe.run.operations import run_operations
from tests.build.tools import rows
from tests.conftest import examples
from tests.property import cross_oracle, oracle, oracle_costs, timeline_oracle
from tests.property.strategies import PROCESSES, build, load_run, runs, write

pytestmark = pytest.mark.reads_anew

RUNS = st.lists(PROCESSES, min_size=1, max_size=2)
MEMORY = {
    "dtod": "memcpy DtoD",
    "copy": "memcpy HtoD",
    "memset": "memset",
    "unified": "memcpy unified HtoD",
}


@pytest.fixture(autouse=True, scope="module")
def _zones_of_few_rows():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "_ZONE_ROWS", 2)
        yield


def tables(run, steps=None):
    found = list(run_operations(run._tables, run.reading, steps=steps))
    assert [rank for rank, *_ in found] == run.ranks["rank"].to_pylist()
    for _, events, ranges in found:
        assert (events.schema, ranges.schema) == (schema.EVENTS.arrow, schema.PHASE_RANGES.arrow), (
            events
        )
    return {rank: (events, ranges) for rank, events, ranges in found}


def shifted(time, shift):
    return None if time is None else time + shift


def expected_events(process, family, numbers, shift):
    members = [] if family is None else oracle.members_on(process, family)
    windows = oracle.windows(process, family)
    spans = oracle_costs.roles(process, family)

    def step(op):
        if family is None:
            return 0
        holding = [(i, m.start, m.end) for i, m in enumerate(members)]
        holding = [w[:3] for w in windows] if op.launch is None else holding
        time = op.start if op.launch is None else op.launch
        return next((numbers[i] for i, start, end in holding if start <= time < end), None)

    return [
        (
            op.start + shift,
            op.end + shift,
            step(op),
            oracle_costs.phase_of(op, spans),
            "memory" if op.category in MEMORY else op.category,
            MEMORY.get(op.category)
            or (oracle_costs.LABELS["comm"] if op.category == "comm" else op.name),
            shifted(op.launch, shift),
            {"memset": 8}.get(op.category, op.n_bytes) if op.category in MEMORY else None,
            "all_reduce" if op.category == "comm" else None,
        )
        for op in process.ops
    ]


def expected_ranges(process, family, numbers, shift):
    if family is None:
        return set()
    ranges = [(i, None, m.start, m.end) for i, m in enumerate(oracle.members_on(process, family))]
    for role in oracle.ROLES:
        ranges += [(i, role, a, b) for i, a, b in oracle.phase_ranges(process, family, role)]
    # Unified memory moves without any launch, so that it lacks none.
    launchable = [op for op in process.ops if op.category != "unified"]
    has_launches = not launchable or any(op.launch is not None for op in launchable)
    found = set()
    for member, role, start, end in ranges:
        own = [op for op in process.ops if op.launch is not None and start <= op.launch < end]
        hull = (min(op.start for op in own), max(op.end for op in own)) if own else (None, None)
        n_launched = len(own) if has_launches else None
        times = [shifted(time, shift) for time in (start, end, *hull)]
        found.add((numbers[member], role, *times[:2], n_launched, *times[2:]))
    return found


def check_rows(found, got, shifts):
    family = oracle.choose_family(found)
    for rank, process in enumerate(found):
        events, ranges = got[rank]
        numbers = oracle.numbers(found, family)[rank]
        names = (
            "start_ns",
            "end_ns",
            "step",
            "phase",
            "category",
            "name",
            "launch_ns",
            "bytes",
            "collective",
        )
        expected = expected_events(process, family, numbers, shifts[rank])
        assert sorted(rows(events, *names), key=repr) == sorted(expected, key=repr), rank
        assert pc.all(pc.equal(events["rank"], rank), min_count=0).as_py(), rank
        times = rows(events, "start_ns", "end_ns")
        assert times == sorted(times), rank
        names = (
            "step",
            "phase",
            "start_ns",
            "end_ns",
            "n_operations",
            "device_start_ns",
            "device_end_ns",
        )
        assert set(rows(ranges, *names)) == expected_ranges(
            process, family, numbers, shifts[rank]
        ), rank
        keys = [
            (start, phase or "", end)
            for start, phase, end in rows(ranges, "start_ns", "phase", "end_ns")
        ]
        assert keys == sorted(keys), rank


def part(whole, steps, rank, first, last):
    events, ranges = whole[rank]
    windows = [row for row in steps.to_pylist() if row["rank"] == rank]
    windows = [row for row in windows if first <= row["step"] <= last]
    chosen = pc.and_(pc.greater_equal(ranges["step"], first), pc.less_equal(ranges["step"], last))
    if not windows:
        return events.slice(0, 0), ranges.filter(chosen)
    begin = min(row["start_ns"] for row in windows)
    end = max(row["end_ns"] for row in windows)
    overlaps = pc.or_(pc.greater(events["end_ns"], begin), pc.equal(events["start_ns"], begin))
    return events.filter(pc.and_(pc.less(events["start_ns"], end), overlaps)), ranges.filter(chosen)


def check_parts(run, whole, choose):
    """Compare one step and a span of several, which `choose` takes from those that there are, with parts of all."""
    steps = run.steps()
    numbers = sorted(set(steps["step"].to_pylist()))
    spans = (
        {(one := choose(numbers), one), tuple(sorted((choose(numbers), choose(numbers))))}
        if numbers
        else ()
    )
    for first, last in spans:
        got = tables(run, (first, last))
        for rank in whole:
            assert got[rank] == part(whole, steps, rank, first, last), rank


def covered(events, category, window):
    own = (row for row in events.to_pylist() if row["category"] == category)
    return len(oracle.ticks((row["start_ns"], row["end_ns"]) for row in own) & set(range(*window)))


@pytest.mark.slow
@examples(20)
@given(RUNS, st.randoms(use_true_random=False))
def test_operations_equal_the_oracle_and_add_up_to_the_steps(found, random):
    with tempfile.TemporaryDirectory() as folder:
        write(found, Path(folder))
        run = nsyspipe.load(folder)
        whole, steps = tables(run), run.steps().to_pylist()
        check_rows(found, whole, run.ranks["clock_shift_ns"].to_pylist())
        check_parts(run, whole, random.choice)
    for row in (
        [] if oracle.lacks_comm(found) else steps
    ):  # then both are null, as the oracle of the steps says
        events, window = whole[row["rank"]][0], (row["start_ns"], row["end_ns"])
        assert covered(events, "compute", window) == row["compute_ns"], row
        assert covered(events, "comm", window) == row["comm_ns"], row
        begun = [one for one in events.to_pylist() if window[0] <= one["start_ns"] < window[1]]
        dtod = [one["bytes"] for one in begun if one["name"] == "memcpy DtoD"]
        assert (len(dtod), sum(dtod)) == (row["n_dtod"], row["dtod_bytes"]), row
        assert sum(one["category"] == "comm" for one in begun) == row["n_collectives"], row


@pytest.mark.slow
@examples(25)
@given(runs(), st.integers(1, 3), st.randoms(use_true_random=False))
def test_spans_and_timelines_of_several_ranks_add_up(drawn, most, random):
    assume(cross_oracle.communicates(drawn))
    with tempfile.TemporaryDirectory() as folder:
        run = load_run(drawn, Path(folder))
        whole, steps, collectives = tables(run), run.steps(), run.collectives()
        step = representative_step(steps)
        some = tables(run, (step, step))
        check_parts(run, whole, random.choice)
    check_seqs(whole, collectives)
    bars = timeline(steps, collectives, ((rank, *one) for rank, one in some.items()), step, most)
    for row in steps.to_pylist():
        if row["step"] == step:
            check_sums(row, [bar for bar in bars.to_pylist() if bar["rank"] == row["rank"]])
    # What is read of one step is enough: all operations give the same bars.
    assert (
        timeline(steps, collectives, ((rank, *one) for rank, one in whole.items()), step, most)
        == bars
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ddp-2gpu-straggler", "ddp-4gpu-shm", "fsdp-4gpu"])
def test_the_timelines_of_real_runs_add_up_to_the_step(real, name):
    run = nsyspipe.load(sorted(real.glob(f"{name}_[0-9].sqlite")))
    bars = run.timeline().to_pylist()
    rows_of_step = [row for row in run.steps().to_pylist() if row["step"] == bars[0]["step"]]
    assert len(rows_of_step) == run.header.n_ranks
    for row in rows_of_step:
        check_sums(row, [bar for bar in bars if bar["rank"] == row["rank"]])


def check_sums(row, bars):
    def total(lane, column="busy_ns"):
        return sum(bar[column] for bar in bars if bar["lane"] == lane)

    assert (total("compute"), total("comm")) == (row["compute_ns"], row["comm_ns"])
    assert total("exposed") == total("comm", "exposed_ns") == row["exposed_comm_ns"]
    if row["wait_ns"] is None:
        assert all(bar["wait_ns"] is None for bar in bars)
    else:
        assert total("wait") == total("comm", "wait_ns") == row["wait_ns"]


def check_seqs(whole, collectives):
    """Check that each operation of a step has a row of its own in `collectives`, with the same values."""
    names = ("rank", "step", "seq", "start_ns", "end_ns", "collective")
    comms = [events.filter(pc.equal(events["category"], "comm")) for events, _ in whole.values()]
    found = [row for events in comms for row in rows(events, *names)]
    assert all((step is None) == (seq is None) for _, step, seq, *_ in found)
    assert sorted(row for row in found if row[1] is not None) == sorted(rows(collectives, *names))


@pytest.mark.slow
@examples(15)
@given(PROCESSES, st.randoms(use_true_random=False))
def test_the_order_of_rows_in_a_report_changes_nothing_but_the_seq_of_ties(process, random):
    def read(builder):
        with tempfile.TemporaryDirectory() as folder:
            events, ranges = tables(nsyspipe.load(builder.write(Path(folder, "r_0.sqlite"))))[0]
            return events.drop_columns(["seq"]), ranges

    builder = build(process)
    before = read(builder)
    for table in builder.rows.values():
        random.shuffle(table)
    assert read(builder) == before


WINDOW = (6, 30)
STEP = 3
TIMES, LENGTHS = st.integers(0, 32), st.integers(0, 7)
CATEGORIES = ("comm", "compute", "memory")
NAMES = st.sampled_from(["a", "b"])
COLLECTIVES = st.sampled_from(["all_gather", "all_reduce"])


@st.composite
def operations(draw):
    found, at = [], draw(st.integers(0, 15))
    usual = draw(st.sampled_from(CATEGORIES))
    for _ in range(draw(st.integers(0, 14))):
        start = at + draw(st.sampled_from([0, 0, 1, 2, -1, -3]))
        category = draw(st.sampled_from([usual, usual, usual, *CATEGORIES]))
        end, launch = (
            start + draw(st.sampled_from([0, 1, 2, 2, 3, 8])),
            draw(st.none() | st.integers(0, 30)),
        )
        comm = (
            (draw(COLLECTIVES), draw(st.none() | st.integers(0, 9))) if category == "comm" else ()
        )
        found.append(op := timeline_oracle.Op(start, end, category, draw(NAMES), launch, *comm))
        at = draw(st.sampled_from([op.start, op.end, op.end, op.end + 2]))
    return found


@st.composite
def waits(draw):
    start = draw(TIMES)
    length = draw(LENGTHS)
    number = st.integers(0, 9)
    return timeline_oracle.Wait(
        start, start + length, draw(number), draw(COLLECTIVES), draw(number)
    )


@st.composite
def phases(draw):
    start = draw(st.integers(0, 25))
    end = start + draw(st.integers(0, 12))
    return timeline_oracle.Phase(start, end, draw(st.sampled_from(["backward", "data", "forward"])))


def events(found, rank):
    names = ("start_ns", "end_ns", "category", "name", "launch_ns", "collective", "seq")
    rows = [dict(zip(names, astuple(op), strict=True)) for op in found]
    fixed = {"rank": rank, "step": STEP}
    return schema.EVENTS.from_rows(
        [fixed | row | {"dur_ns": row["end_ns"] - row["start_ns"]} for row in rows]
    )


def phase_ranges(ranges, found, rank):
    """Return the ranges, one of the step itself and one of another step, as the second reading would."""
    rows = [{"rank": rank, "step": STEP, "start_ns": 0, "end_ns": 40}]
    rows += [
        {"rank": rank, "step": STEP, "phase": r.name, "start_ns": r.start, "end_ns": r.end}
        for r in ranges
    ]
    rows.append({"rank": rank, "step": STEP + 1, "phase": "data", "start_ns": 0, "end_ns": 40})
    for row in rows:
        own = timeline_oracle.launched(
            found, timeline_oracle.Phase(row["start_ns"], row["end_ns"], "")
        )
        row["n_operations"] = len(own)
        row["device_start_ns"] = min((op.start for op in own), default=None)
        row["device_end_ns"] = max((op.end for op in own), default=None)
    return schema.PHASE_RANGES.from_rows(rows)


def collectives(found, rank):
    fixed = {"step": STEP, "rank": rank, "comm_id": "0", "in_summary": True}
    names = ("start_ns", "end_ns", "wait_ns", "collective", "seq", "is_matched")
    rows = [*((*astuple(one), True) for one in found), (7, 29, None, "other", 99, False)]
    return schema.COLLECTIVES.from_rows(
        [fixed | dict(zip(names, row, strict=True)) for row in rows]
    )


def windows(*rows):
    """Return the columns of `schema.STEPS` that a timeline looks at, from (rank, step, start, end, in_summary[, wait])."""
    columns = ("rank", "step", "start_ns", "end_ns", "in_summary", "wait_ns")
    found = [dict(zip(columns, row, strict=False)) for row in rows]
    names = [column for column in schema.STEPS.columns if column.name in columns]
    return TableSchema("part", "Some columns of steps.", schema.STEPS.key, tuple(names)).from_rows(
        found
    )


@pytest.mark.slow
@examples(70)
@given(
    operations(),
    st.lists(waits(), max_size=6),
    st.lists(phases(), max_size=5),
    st.integers(1, 4),
    st.booleans(),
)
def test_bars_equal_asking_every_nanosecond(found, waiting, ranges, most, is_known):
    # How long the wait of the step is says nothing; whether it is known does.
    steps = windows(
        (5, STEP, *WINDOW, True, *((0,) if is_known else ())), (5, STEP + 1, WINDOW[1], 99, True)
    )
    # A rank without the step comes first.
    ranks = [
        (4, events(found, 4), phase_ranges(ranges, found, 4)),
        (5, events(found, 5), phase_ranges(ranges, found, 5)),
    ]
    table = timeline(steps, collectives(waiting, 5), iter(ranks), STEP, most)
    assert table.schema == schema.TIMELINE.arrow
    expected = [
        {"step": STEP, "rank": 5, "exposed_ns": None, "wait_ns": None} | row
        for row in timeline_oracle.lanes(
            found, waiting, ranges, WINDOW, most, is_wait_known=is_known
        )
    ]
    assert table.to_pylist() == [
        {key: row[key] for key in schema.TIMELINE.names} for row in expected
    ]


def test_a_lane_of_very_many_operations_has_the_most_bars_and_its_busy_time():
    # 5000 kernels of 100 ns, every 200.
    found = [
        timeline_oracle.Op(200 * at + at % 7, 200 * at + at % 7 + 100, "compute", "a")
        for at in range(5000)
    ]
    tables = events(found, 5), schema.PHASE_RANGES.empty()
    table = timeline(
        windows((5, STEP, 0, 10**6, True)), schema.COLLECTIVES.empty(), [(5, *tables)], STEP
    )
    assert table.num_rows == MAX_BARS
    assert (sum(table["busy_ns"].to_pylist()), sum(table["n_operations"].to_pylist())) == (
        500_000,
        5000,
    )


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 5), st.integers(0, 9), st.booleans()),
        max_size=10,
    )
)
def test_the_representative_step_is_the_one_closest_to_the_median(drawn):
    cells = {(rank, step): (wall, flag) for rank, step, wall, flag in drawn}
    n_ranks = len({rank for rank, _ in cells})
    flags = {step: flag for (_, step), (_, flag) in cells.items()}
    rows = [(rank, step, 100, 100 + wall, flags[step]) for (rank, step), (wall, _) in cells.items()]
    times = {
        step: max(wall for (_, other), (wall, _) in cells.items() if other == step)
        for step in flags
    }
    shared = [step for step in flags if sum(s == step for _, s in cells) == n_ranks]
    chosen = [step for step in flags if flags[step]] or shared or list(flags)
    found = representative_step(windows(*sorted(rows)))
    if not chosen:
        assert found is None
        return
    ordered = sorted(times[step] for step in chosen)
    middle = (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
    nearest = min(abs(times[step] - middle) for step in chosen)
    assert found == min(step for step in chosen if abs(times[step] - middle) == nearest)
