"""Interval arithmetic, by hand and against sets of integers."""

import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from nsyspipe.analysis.attribution import UNKNOWN
from nsyspipe.analysis.intervals import EMPTY, IntervalSet, grouped_lengths, outermost, union
from nsyspipe.analysis.operations import CATEGORIES, device_operations
from nsyspipe.model import canonical
from nsyspipe.model.names import COLLECTIVES
from nsyspipe.reader.operations import _in_whole_steps
from tests.build.make import PROCESS, ints
from tests.conftest import examples

TWO, FAR = IntervalSet(ints(0, 20), ints(10, 30)), 2**62


def union_of(spans):
    return union(ints(*(a for a, _ in spans)), ints(*(b for _, b in spans)))


def pairs(found):
    return list(zip(found.starts.tolist(), found.ends.tolist(), strict=True))


def lengths(rows, n_groups):
    return grouped_lengths(*np.array(rows, np.int64).reshape(-1, 3).T, n_groups).tolist()


def test_the_complement_of_intervals_is_exact_above_what_a_float_holds():
    always = union_of([(-FAR, FAR)])
    assert pairs(always.without(TWO)) == [(-FAR, 0), (10, 20), (30, FAR)]
    assert pairs(always.without(EMPTY)) == [(-FAR, FAR)]
    assert pairs(TWO.without(always.without(TWO))) == pairs(TWO)
    assert union_of([(-(2**61), 2**61 + 1)]).covered_until(ints(2**62)).tolist() == [2**62 + 1]
    assert (len(EMPTY), lengths([], 3), lengths([], 0)) == (0, [0, 0, 0], [])


SPANS = st.lists(
    st.tuples(st.integers(-15, 15), st.integers(0, 8)).map(lambda x: (x[0], x[0] + x[1])),
    max_size=8,
)
quick = examples(100)


def ticks(spans):
    return {tick for start, end in spans for tick in range(start, end)}


@quick
@given(SPANS)
def test_a_union_is_the_set_of_its_ticks_in_disjoint_sorted_pieces(spans):
    found = pairs(union_of(spans))
    assert ticks(found) == ticks(spans)
    assert all(start < end for start, end in found)
    assert all(a[1] < b[0] for a, b in itertools.pairwise(found))


@quick
@given(SPANS, st.lists(st.integers(-20, 30), max_size=6))
def test_measures_of_a_set_equal_counting(spans, times):
    found, covered, at = union_of(spans), ticks(spans), ints(*times)
    assert found.contains(at).tolist() == [time in covered for time in times]
    assert found.covered_until(at).tolist() == [
        sum(tick < time for tick in covered) for time in times
    ]
    windows = ints(*(time + 7 for time in times))
    assert found.lengths(at, windows).tolist() == [
        len(covered & set(range(time, time + 7))) for time in times
    ]


@quick
@given(SPANS, SPANS)
def test_an_intersection_is_the_common_ticks(one, other):
    assert ticks(pairs(union_of(one).intersect(union_of(other)))) == ticks(one) & ticks(other)
    assert ticks(pairs(union_of(one).without(union_of(other)))) == ticks(one) - ticks(other)


@quick
@given(SPANS)
def test_picks_equal_going_through_them_one_by_one(spans):
    kept = []
    for row in sorted(range(len(spans)), key=lambda i: (spans[i][0], -spans[i][1])):
        if not kept or spans[row][0] >= spans[kept[-1]][1]:
            kept.append(row)
    assert outermost(*(ints(*(span[at] for span in spans)) for at in (0, 1))).tolist() == kept


@quick
@given(
    st.lists(st.tuples(st.integers(0, 3), SPANS), max_size=4),
    st.sampled_from([-1000, 0, 2**60, 2**61 - 1, 2**62]),
)
def test_lengths_of_groups_equal_counting_each_group(groups, far):
    rows = [(group, start, end) for group, spans in groups for start, end in spans]
    rows.append((3, far, far + 1))  # only to widen the span
    assert lengths(rows, 4) == [
        len(ticks((a, b) for g, a, b in rows if g == group)) for group in range(4)
    ]


TEXTS = {1: "void at::relu<float>(int)", 2: "ncclDevKernel_AllGather_RING_LL(x)", 3: "nccl(x)"}
NAMES = ("process_id", "start_ns", "end_ns", "device_id", "stream_id", "correlation_id")


def kernel(start, end, name_id=1, *, is_comm=False, device=0, stream=7, correlation=1):
    values = dict(zip(NAMES, (PROCESS, start, end, device, stream, correlation), strict=True))
    return values | {"name_id": name_id, "is_comm": is_comm, "grid": None, "block": None}


def copy(start, end, kind=8, n_bytes=100, *, device=0, stream=7, correlation=1):
    values = dict(zip(NAMES, (PROCESS, start, end, device, stream, correlation), strict=True))
    return values | {"bytes": n_bytes, "copy_kind": kind}


def operations(kernels=(), memcpys=(), memsets=(), launches=None):
    def table(rows, more):
        columns = {name: [row[name] for row in rows] for name in (*NAMES, *more)}
        return pa.table({name: pa.array(one, pa.int64()) for name, one in columns.items()})

    launches = launches or [range(len(rows)) for rows in (kernels, memcpys, memsets)]
    tables = (
        canonical.KERNELS.from_rows(kernels),
        table(memcpys, ("bytes", "copy_kind")),
        table(memsets, ("bytes",)),
    )
    return device_operations(*tables, [ints(*one) for one in launches], TEXTS)


def named(found):
    return [found.names[code] for code in found.name.tolist()]


def test_operations_of_all_kinds_are_in_one_table():
    graph, unnamed = (
        canonical.GRAPH_NAME_ID,
        kernel(1, 2, None, device=None, stream=None, correlation=None),
    )
    comms = [kernel(1, 2, name, is_comm=True) for name in (2, 3, 9)]
    kernels = kernel(10, 20), kernel(5, 6, graph), unnamed, *comms
    found = operations(kernels, [copy(30, 40)], [copy(40, 50, n_bytes=8)])
    assert [CATEGORIES[code] for code in found.category.tolist()] == [
        *["compute"] * 3,
        *["comm"] * 3,
        *["memory"] * 2,
    ]
    names = [
        "at::relu",
        "CUDA graph",
        "(no name)",
        "ncclDevKernel_AllGather_RING_LL",
        "nccl",
        "(no name)",
    ]
    assert named(found) == [*names, "memcpy DtoD", "memset"]
    assert list(found.names) == sorted(found.names)
    assert found.n_bytes.tolist() == [*[UNKNOWN] * 6, 100, 8]
    gather, other = COLLECTIVES.index("all_gather"), COLLECTIVES.index("other")
    assert found.collective.tolist() == [-1, -1, -1, gather, other, other, -1, -1]
    assert [column[2] for column in (found.device_id, found.stream_id, found.correlation_id)] == [
        UNKNOWN
    ] * 3
    empty = operations()
    assert (len(empty), empty.in_order().tolist()) == (0, [])


def test_copies_are_called_by_their_kind():
    kinds = {1: "HtoD", 2: "DtoH", 8: "DtoD", 9: "HtoH", 10: "PtoP", 11: "unified HtoD"}
    unknown = (0, 99, None)  # CUPTI's "unknown" is no memset
    found = operations(memcpys=[copy(1, 2, kind) for kind in (*kinds, *unknown)])
    assert named(found) == [*(f"memcpy {kind}" for kind in kinds.values()), *["memcpy"] * 3]


def test_operations_stand_by_start_then_end_then_every_other_column():
    # Communication before compute, what is unknown before what is known.
    first = kernel(5, 9), kernel(6, 7, is_comm=True), kernel(6, 7, device=None)
    rows = [
        *first,
        kernel(6, 7, correlation=1),
        kernel(6, 7, correlation=2),
        kernel(6, 8),
        kernel(7, 7),
    ]
    for chosen in itertools.islice(itertools.permutations(range(7)), 0, None, 97):
        found = operations([rows[at] for at in chosen], launches=[[0] * 7, [], []])
        assert [chosen[at] for at in found.in_order().tolist()] == list(range(7)), chosen
    # Of those that are equal otherwise what is given decides.
    assert operations([kernel(6, 7), kernel(6, 7)], launches=[[3, 3], [], []]).in_order(
        ints(2, 1)
    ).tolist() == [1, 0]


@pytest.mark.parametrize(
    ("span", "wide"),
    [
        ((12, 13), (10, 20)),
        ((12, 33), (10, 40)),
        ((22, 28), (22, 28)),  # between two
        ((20, 30), (10, 40)),  # touches both
        ((5, 99), (5, 99)),
    ],
)
def test_ranges_are_read_in_whole_steps_and_a_span_stays_without_steps(span, wide):
    assert _in_whole_steps(span, ints(10, 30), ints(20, 40)) == wide
    assert _in_whole_steps(span, *(np.empty(0, np.int64),) * 2) == span
