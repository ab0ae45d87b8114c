"""What holds of the findings of every run, whatever its figures are."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from nsyspipe.analysis.traffic import ROLES
from nsyspipe.findings.judge import judge
from nsyspipe.model import schema
from tests.findings.make import WALL, assert_well_said, collective, evidence, kernel, link, phase, step, traffic

_CAUSES = (*schema.IDLE_CAUSES, "exposed_comm_ns", "exposed_grad_copy_ns")
_LINKS = (None, [link("shm", "SHM/direct")], [link("nvlink", "P2P/IPC", "NV4")], [link("net", "NET/IB/0")])


@st.composite
def step_rows(draw, rank, number):
    """Draw a step whose parts fit into it; some figures may not have been recorded."""
    cuts = sorted(draw(st.lists(st.integers(0, WALL), min_size=len(_CAUSES), max_size=len(_CAUSES))))
    parts = [after - before for before, after in zip([0, *cuts], cuts, strict=False)]
    figures = dict(zip(_CAUSES, parts, strict=True))
    exposed = figures.pop("exposed_comm_ns")
    hidden = draw(st.integers(0, WALL - exposed))
    row = step(rank, number, exposed=exposed, hidden=hidden, **figures)
    row |= {
        "wait_ns": (wait := draw(st.integers(0, exposed + hidden))),
        "transfer_ns": exposed + hidden - wait,
        "overhead_ns": draw(st.integers(0, WALL)),
        "n_grad_copies": draw(st.sampled_from([0, 8])),
        "grad_copy_bytes": draw(st.integers(0, 10**6)),
    }
    for name in draw(st.sets(st.sampled_from(sorted(row)), max_size=2)):
        if schema.STEPS.arrow.field(name).nullable:
            row[name] = None
    return row


@st.composite
def runs(draw):
    n_ranks, n_steps = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    rows, met = [], []
    for number in range(n_steps):
        rows += [draw(step_rows(rank, number)) for rank in range(n_ranks)]
        for seq in range(draw(st.integers(0, 3))):
            starts = draw(st.lists(st.integers(0, WALL), min_size=n_ranks, max_size=n_ranks))
            kind = draw(st.sampled_from(["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"]))
            datatype = draw(st.sampled_from(["f32", "bf16"]))
            end = draw(st.integers(max(starts), WALL))
            more = {
                "micro_batch": draw(st.sampled_from([None, 0, 1])),
                "message_bytes": draw(st.sampled_from([None, 9**6])),
            }
            met += collective(number, starts, end, seq=seq, kind=kind, datatype=datatype, **more)
    names = draw(st.sets(st.sampled_from(["backward", "forward", "data"])))
    phases = [
        phase(name, row["rank"], row["step"], exposed_comm_ns=draw(st.integers(0, WALL)), compute_ns=5)
        for name in names
        for row in rows
    ]
    slowed = draw(st.integers(1, 5000))
    uses = sorted({(row["comm_id"], row["collective"]) for row in met})
    cost = st.tuples(st.floats(0, WALL), st.none() | st.floats(0, WALL))
    carried = [
        row
        for comm_id, kind in uses
        for row in traffic(draw(st.sampled_from(ROLES)), kind, *(draw(cost) for _ in range(n_ranks)), comm_id=comm_id)
    ]
    return evidence(
        rows,
        met,
        phases=phases,
        kernels=[kernel("gemm", draw(st.integers(0, 60)), slowed, 1000)],
        links=draw(st.sampled_from(_LINKS)),
        traffic=carried,
        hosts=dict(enumerate(draw(st.sampled_from(["", "aab", "abc"])))),
        gpu_names=draw(st.sampled_from([(), ("NVIDIA H200",)])),
        n_hosts=draw(st.integers(1, 2)),
        blocked_ns_by_call={"cudaMalloc": 7},
    )


@pytest.mark.slow
@given(runs())
def test_findings_stay_within_the_step_and_are_sorted_and_said_in_units(run):
    table, problems = judge(run)
    rows = table.to_pylist()
    assert_well_said(rows)
    assert all(0 <= (row["saving_ns_per_step"] or 0) <= run.mean("wall_ns") for row in rows)
    said = [one.message.partition(" (")[0].removeprefix("not judged: ") for one in problems]
    open_rules = [name for names in said for name in names.split(", ")]
    assert len(set(open_rules)) == len(open_rules)
    assert not set(open_rules) & {row["id"] for row in rows}
