"""The timeline of random operations equals asking every nanosecond, and its sums are those of the steps."""

from __future__ import annotations

import itertools

from hypothesis import given, strategies as st

from nsyspipe.analysis.timeline import representative_step, timeline
from nsyspipe.model import schema
from nsyspipe.model.table import TableSchema
from tests.conftest import examples
from tests.property import timeline_oracle as oracle

WINDOW = (6, 30)
STEP = 3
TIMES, LENGTHS = st.integers(0, 32), st.integers(0, 7)
CATEGORIES = ("comm", "compute", "memory")
NAMES = st.sampled_from(["a", "b"])
COLLECTIVES = st.sampled_from(["all_gather", "all_reduce"])


@st.composite
def operations(draw):
    """Draw operations of which many touch, overlap, begin or end together, or leave equal gaps."""
    found, at = [], draw(st.integers(0, 15))
    usual = draw(st.sampled_from(CATEGORIES))
    for _ in range(draw(st.integers(0, 14))):
        start = at + draw(st.sampled_from([0, 0, 1, 2, -1, -3]))
        category = draw(st.sampled_from([usual, usual, usual, *CATEGORIES]))
        is_comm = category == "comm"
        op = oracle.Op(
            start,
            start + draw(st.sampled_from([0, 1, 2, 2, 3, 8])),
            category,
            draw(NAMES),
            draw(st.one_of(st.none(), st.integers(0, 30))),
            draw(COLLECTIVES) if is_comm else None,
            draw(st.one_of(st.none(), st.integers(0, 9))) if is_comm else None,
        )
        found.append(op)
        at = draw(st.sampled_from([op.start, op.end, op.end, op.end + 2]))
    return found


@st.composite
def waits(draw):
    start = draw(TIMES)
    length = draw(LENGTHS)
    return oracle.Wait(start, start + length, draw(st.integers(0, 9)), draw(COLLECTIVES), draw(st.integers(0, 9)))


@st.composite
def phases(draw):
    start = draw(st.integers(0, 25))
    end = start + draw(st.integers(0, 12))
    return oracle.Phase(start, end, draw(st.sampled_from(["backward", "data", "forward"])))


def events(found, rank):
    rows = [
        {
            "rank": rank,
            "step": STEP,
            "category": op.category,
            "name": op.name,
            "start_ns": op.start,
            "end_ns": op.end,
            "dur_ns": op.end - op.start,
            "launch_ns": op.launch,
            "collective": op.collective,
            "seq": op.seq,
        }
        for op in found
    ]
    return schema.EVENTS.from_rows(rows)


def phase_ranges(ranges, found, rank):
    """Return the ranges, one of the step itself and one of another step, as the second reading would."""
    rows = [{"rank": rank, "step": STEP, "start_ns": 0, "end_ns": 40}]
    rows += [{"rank": rank, "step": STEP, "phase": r.name, "start_ns": r.start, "end_ns": r.end} for r in ranges]  # fmt: skip
    rows.append({"rank": rank, "step": STEP + 1, "phase": "data", "start_ns": 0, "end_ns": 40})
    for row in rows:
        own = oracle.launched(found, oracle.Phase(row["start_ns"], row["end_ns"], ""))
        row["n_operations"] = len(own)
        row["device_start_ns"] = min((op.start for op in own), default=None)
        row["device_end_ns"] = max((op.end for op in own), default=None)
    return schema.PHASE_RANGES.from_rows(rows)


def collectives(found, rank):
    rows = [
        {
            "step": STEP,
            "seq": one.seq,
            "rank": rank,
            "collective": one.name,
            "comm_id": "0",
            "start_ns": one.start,
            "end_ns": one.end,
            "is_matched": True,
            "in_summary": True,
            "wait_ns": one.wait,
        }
        for one in found
    ]
    unmatched = {"is_matched": False, "wait_ns": None, "start_ns": 7, "end_ns": 29, "seq": 99}
    template = {"step": STEP, "rank": rank, "collective": "other", "comm_id": "0"}
    return schema.COLLECTIVES.from_rows([*rows, template | unmatched | {"in_summary": True}])


def windows(*rows):
    """Return the columns of `schema.STEPS` that a timeline looks at, from (rank, step, start, end, in_summary[, wait])."""
    columns = ("rank", "step", "start_ns", "end_ns", "in_summary", "wait_ns")
    found = [dict(zip(columns, row, strict=False)) for row in rows]
    names = [column for column in schema.STEPS.columns if column.name in columns]
    part = TableSchema("part", "Some columns of steps.", schema.STEPS.key, tuple(names))
    return part.from_rows(found)


@examples(50)
@given(operations(), st.lists(waits(), max_size=6), st.lists(phases(), max_size=5), st.integers(1, 4), st.booleans())
def test_bars_equal_asking_every_nanosecond(found, waiting, ranges, most, is_known):
    # How long the wait of the step is says nothing; whether it is known does.
    known = (0,) if is_known else ()
    steps = windows((5, STEP, *WINDOW, True, *known), (5, STEP + 1, WINDOW[1], 99, True))
    # A rank without the step comes first.
    ranks = [(4, events(found, 4), phase_ranges(ranges, found, 4)),
             (5, events(found, 5), phase_ranges(ranges, found, 5))]  # fmt: skip
    table = timeline(steps, collectives(waiting, 5), iter(ranks), STEP, most)
    assert table.schema == schema.TIMELINE.arrow
    expected = [
        {"step": STEP, "rank": 5, "exposed_ns": None, "wait_ns": None} | row
        for row in oracle.lanes(found, waiting, ranges, WINDOW, most, is_wait_known=is_known)
    ]
    assert table.to_pylist() == [{key: row[key] for key in schema.TIMELINE.names} for row in expected]


@examples(50)
@given(operations(), st.integers(1, 4))
def test_exposed_time_of_bars_adds_up_however_few_bars_there_are(found, most):
    ranks = [(0, events(found, 0), phase_ranges([], found, 0))]
    steps = windows((0, STEP, *WINDOW, True))
    rows = timeline(steps, collectives([], 0), ranks, STEP, most).to_pylist()
    comm, compute = (
        {t for op in found if op.category == lane for t in oracle.clipped(op.start, op.end, WINDOW)}
        for lane in ("comm", "compute")
    )
    total = len(comm - compute)
    assert sum(row["exposed_ns"] for row in rows if row["lane"] == "comm") == total
    assert sum(row["busy_ns"] for row in rows if row["lane"] == "exposed") == total
    assert all(row["exposed_ns"] is None for row in rows if row["lane"] != "comm")


@examples(50)
@given(operations(), st.integers(1, 4))
def test_bars_do_not_overlap_and_are_few_enough(found, most):
    steps = windows((0, STEP, *WINDOW, True))
    ranks = [(0, events(found, 0), phase_ranges([], found, 0))]
    rows = timeline(steps, collectives([], 0), ranks, STEP, most).to_pylist()
    for lane in (*CATEGORIES, "exposed"):
        own = [row for row in rows if row["lane"] == lane]
        assert len(own) <= most
        assert all(a["end_ns"] <= b["start_ns"] for a, b in itertools.pairwise(own))
        assert all(0 < row["busy_ns"] <= row["end_ns"] - row["start_ns"] for row in own)
    for lane in CATEGORIES:
        own = [row for row in rows if row["lane"] == lane]
        covered = {t for op in found if op.category == lane for t in oracle.clipped(op.start, op.end, WINDOW)}
        assert sum(row["busy_ns"] for row in own) == len(covered)


@examples(60)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5), st.integers(0, 9), st.booleans()), max_size=10))  # fmt: skip
def test_the_representative_step_is_the_one_closest_to_the_median(drawn):
    cells = {(rank, step): (wall, flag) for rank, step, wall, flag in drawn}
    n_ranks = len({rank for rank, _ in cells})
    flags = {step: flag for (_, step), (_, flag) in cells.items()}
    rows = [(rank, step, 100, 100 + wall, flags[step]) for (rank, step), (wall, _) in cells.items()]
    times = {step: max(wall for (_, other), (wall, _) in cells.items() if other == step) for step in flags}
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
