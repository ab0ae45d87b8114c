"""The timeline of random operations equals asking every nanosecond."""

from __future__ import annotations

from dataclasses import astuple

from hypothesis import given, strategies as st

from nsyspipe.analysis.timeline import MAX_BARS, representative_step, timeline
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
        end, launch = start + draw(st.sampled_from([0, 1, 2, 2, 3, 8])), draw(st.none() | st.integers(0, 30))
        comm = (draw(COLLECTIVES), draw(st.none() | st.integers(0, 9))) if category == "comm" else ()
        found.append(op := oracle.Op(start, end, category, draw(NAMES), launch, *comm))
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
    names = ("start_ns", "end_ns", "category", "name", "launch_ns", "collective", "seq")
    rows = [dict(zip(names, astuple(op), strict=True)) for op in found]
    fixed = {"rank": rank, "step": STEP}
    return schema.EVENTS.from_rows([fixed | row | {"dur_ns": row["end_ns"] - row["start_ns"]} for row in rows])


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
    """Return the waits, and an unmatched collective."""
    fixed = {"step": STEP, "rank": rank, "comm_id": "0", "in_summary": True}
    names = ("start_ns", "end_ns", "wait_ns", "collective", "seq", "is_matched")
    rows = [*((*astuple(one), True) for one in found), (7, 29, None, "other", 99, False)]
    return schema.COLLECTIVES.from_rows([fixed | dict(zip(names, row, strict=True)) for row in rows])


def windows(*rows):
    """Return the columns of `schema.STEPS` that a timeline looks at, from (rank, step, start, end, in_summary[, wait])."""
    columns = ("rank", "step", "start_ns", "end_ns", "in_summary", "wait_ns")
    found = [dict(zip(columns, row, strict=False)) for row in rows]
    names = [column for column in schema.STEPS.columns if column.name in columns]
    part = TableSchema("part", "Some columns of steps.", schema.STEPS.key, tuple(names))
    return part.from_rows(found)


@examples(70)
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


def test_a_lane_of_very_many_operations_has_the_most_bars_and_its_busy_time():
    # 5000 kernels of 100 ns, every 200.
    found = [oracle.Op(200 * at + at % 7, 200 * at + at % 7 + 100, "compute", "a") for at in range(5000)]
    tables = events(found, 5), schema.PHASE_RANGES.empty()
    table = timeline(windows((5, STEP, 0, 10**6, True)), schema.COLLECTIVES.empty(), [(5, *tables)], STEP)
    assert table.num_rows == MAX_BARS
    assert (sum(table["busy_ns"].to_pylist()), sum(table["n_operations"].to_pylist())) == (500_000, 5000)


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
