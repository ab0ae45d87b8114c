"""The fast code equals the plain one on small random reports, end to end."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings, strategies as st

import nsyspipe
from tests.property import oracle
from tests.property.strategies import build, processes

COLUMNS = [
    name
    for name in oracle.breakdown(oracle.Process([oracle.Op(0, 1, "compute", None)]), None)[0]
    if name != "member"
]


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(processes(), min_size=1, max_size=2))
def test_windows_and_breakdown_equal_counting_every_nanosecond(found):
    with tempfile.TemporaryDirectory() as folder:
        for rank, process in enumerate(found):
            build(process, pid=1000 + rank).write(Path(folder, f"r_{rank}.sqlite"))
        run = nsyspipe.load(folder)
        rows = run.steps().to_pylist()
        ranks = run.ranks["rank"].to_pylist()
    family = oracle.choose_family(found)
    if family is not None and not any(oracle.windows(process, family) for process in found):
        family = None
    assert run.step_family == family
    assert ranks == list(range(len(found)))
    for rank, process in enumerate(found):
        own = [{name: row[name] for name in COLUMNS} for row in rows if row["rank"] == rank]
        expected = [
            {name: row[name] for name in COLUMNS} for row in oracle.breakdown(process, family)
        ]
        assert own == expected


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(processes(), st.randoms(use_true_random=False))
def test_row_order_time_shift_and_stream_names_change_nothing(process, random):
    def rows(one: oracle.Process) -> list[dict[str, object]]:
        with tempfile.TemporaryDirectory() as folder:
            run = nsyspipe.load(build(one).write(Path(folder, "r_0.sqlite")))
            return run.steps().to_pylist()

    shift = 2**60
    shuffled = oracle.Process(
        [
            oracle.Op(
                o.start + shift,
                o.end + shift,
                o.category,
                None if o.launch is None else o.launch + shift,
                o.n_bytes,
            )
            for o in process.ops
        ],
        [oracle.Range(r.start + shift, r.end + shift, r.text, r.thread) for r in process.ranges],
    )
    random.shuffle(shuffled.ops)
    random.shuffle(shuffled.ranges)
    moved = [
        row | {"start_ns": row["start_ns"] - shift, "end_ns": row["end_ns"] - shift}
        for row in rows(shuffled)
    ]
    assert moved == rows(process)
