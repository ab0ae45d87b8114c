"""Where each window's time goes: one hand-made window per formula, then the edges."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, strategies as st

from nsyspipe.analysis.breakdown import breakdown, device_time
from nsyspipe.model.problems import Recorded
from tests.build.make import comm, compute, dtod, ints, listed, memset, operations, windows
from tests.conftest import examples

ALL = Recorded()
NAMES = [
    "wall_ns", "compute_ns", "comm_ns", "exposed_comm_ns", "exposed_memory_ns", "idle_ns", "dtod_ns", "dtod_bytes",
    "n_dtod", "exposed_dtod_ns", "overlap_compute_ns", "overlap_backward_ns", "n_collectives",
]  # fmt: skip
DTOD_FIGURES = ["dtod_ns", "dtod_bytes", "n_dtod", "exposed_dtod_ns"]

# compute [0, 40); comm [30, 60); a DtoD copy [35, 70); a memset [80, 90).
MIXED = (
    compute(0, 30, 1),
    compute(20, 40, 2),
    comm(30, 60, 3),
    dtod(35, 70, 4, n_bytes=64),
    memset(80, 90, 5, n_bytes=7),
)
MIXED_PARTS = {
    "wall_ns": 100,
    "compute_ns": 40,
    "comm_ns": 30,
    "exposed_comm_ns": 20,  # [40, 60)
    "exposed_memory_ns": 20,  # [60, 70) and [80, 90)
    "idle_ns": 20,  # [70, 80) and [90, 100)
    "dtod_ns": 35,
    "dtod_bytes": 64,
    "n_dtod": 1,
    "exposed_dtod_ns": 10,  # [60, 70)
    "overlap_compute_ns": 10,  # [30, 40)
    "overlap_backward_ns": None,
    "n_collectives": 1,
}


def columns(spans, *ops, backward=None, recorded=ALL):
    flags = None if backward is None else np.array(backward, np.bool_)
    found = breakdown(rows := operations(*ops), windows(*spans), flags, recorded, device_time(rows))
    assert list(found) == NAMES
    return listed(found)


def row(*ops, span=(0, 100), **options):
    """Return the only window's figures."""
    found = columns([span], *ops, **options)
    return {name: None if one is None else one[0] for name, one in found.items()}


def test_every_figure_of_a_window_with_all_kinds_of_operations():
    assert row(*MIXED) == MIXED_PARTS


def test_overlap_with_backward_counts_backward_compute_only():
    # comm [0, 50); backward flags: compute [20, 30), and the comm kernel itself, which is no compute.
    ops = compute(10, 20, 1), compute(20, 30, 2), comm(0, 50, 3)
    assert row(*ops, backward=[False, True, True])["overlap_backward_ns"] == 10
    assert row(*ops, backward=[False, False, True])["overlap_backward_ns"] == 0
    assert row(*ops, backward=[True, True, False])["overlap_backward_ns"] == 20


def test_backward_flags_follow_the_order_of_launch():
    # In order of launch: [60, 90), [0, 10); the first is backward, under comm for 10.
    found = row(compute(0, 10, 8), compute(60, 90, 2), comm(0, 70, 9), backward=[True, False, False])
    assert found["overlap_backward_ns"] == 10


def test_no_windows_have_no_figures():
    assert columns([], *MIXED) == {name: [] for name in NAMES} | {"overlap_backward_ns": None}


@pytest.mark.parametrize(
    ("recorded", "nulls"),
    [
        (Recorded(memcpy=False), {*DTOD_FIGURES, "exposed_memory_ns", "idle_ns"}),
        (Recorded(memset=False), {"exposed_memory_ns", "idle_ns"}),
        (Recorded(kinds=False), set(DTOD_FIGURES)),
        (Recorded(sizes=False), {"dtod_bytes"}),
    ],
)
def test_what_was_not_recorded_is_null_and_all_else_stays(recorded, nulls):
    expected = MIXED_PARTS | dict.fromkeys(nulls)
    assert row(*MIXED, recorded=recorded) == expected


def test_bytes_and_times_above_what_a_float_holds_stay_exact():
    big, far = 2**53 + 1, 2**60
    found = row(
        compute(far, far + big),
        comm(far + 1, far + 3),
        dtod(far, far + 1, n_bytes=big),
        dtod(far + 5, far + 6, n_bytes=2),
        span=(far, far + big + 2),
    )
    assert found == MIXED_PARTS | {
        "wall_ns": big + 2, "compute_ns": big, "comm_ns": 2, "exposed_comm_ns": 0, "exposed_memory_ns": 0,
        "idle_ns": 2, "dtod_ns": 2, "dtod_bytes": 2**53 + 3, "n_dtod": 2, "exposed_dtod_ns": 0,
        "overlap_compute_ns": 2, "n_collectives": 1,
    }  # fmt: skip


@st.composite
def some_operations(draw):
    start = draw(st.integers(-5, 30))
    make = draw(st.sampled_from([compute, comm, dtod, memset]))
    return make(start, start + draw(st.integers(0, 12)))


EDGES = st.lists(st.integers(0, 30), min_size=2, max_size=4, unique=True).map(sorted)


@examples(200)
@given(st.lists(some_operations(), max_size=8), EDGES)
def test_parts_sum_to_wall_and_comm_exactly(ops, edges):
    spans = list(itertools.pairwise(edges))
    found = {name: ints(*one) if one is not None else None for name, one in columns(spans, *ops).items()}
    parts = ("compute_ns", "exposed_comm_ns", "exposed_memory_ns", "idle_ns")
    assert sum(found[name] for name in parts).tolist() == found["wall_ns"].tolist()
    comm_parts = found["exposed_comm_ns"] + found["overlap_compute_ns"]
    assert comm_parts.tolist() == found["comm_ns"].tolist()
    assert all((one >= 0).all() for one in found.values() if one is not None)
