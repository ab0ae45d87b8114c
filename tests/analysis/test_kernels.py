"""Kernels by phase and name: what they cost, in which windows, how much slower communication makes them. What costs most."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, strategies as st

from nsyspipe.analysis import kernels as module
from nsyspipe.analysis.intervals import EMPTY, union
from nsyspipe.analysis.kernels import costs
from nsyspipe.model import schema
from nsyspipe.model.canonical import GRAPH_NAME_ID
from tests.build.make import comm, compute, dtod, ints, operations, windows
from tests.build.tools import run_of
from tests.run.test_traffic import grid_rank

pytestmark = pytest.mark.reads_anew

NO_PHASE = np.int8(-1)


def table_of(*ops, texts=(), phase=None, under=(), spans=()):
    n_kernels = sum(op.category != "copy" for op in ops)
    phase = np.full(n_kernels, NO_PHASE) if phase is None else np.array(phase, np.int8)
    covered = union(ints(*(a for a, _ in under)), ints(*(b for _, b in under)))
    return module.kernels_table(operations(*ops), dict(texts), phase, covered, windows(*spans))


def names(*name_ids, texts):
    table, _ = table_of(
        *(compute(at, at + 1, at, name_id=one) for at, one in enumerate(name_ids)), texts=texts
    )
    return dict(zip(table["name"].to_pylist(), table["n_kernels"].to_pylist(), strict=True))


def test_a_row_says_its_phase_and_name_in_words():
    first = compute(0, 4, 1, name_id=3), compute(5, 6, 2, name_id=4)
    ops = *first, comm(4, 6, 3, name_id=9), compute(8, 15, 4, name_id=3)
    texts = {3: "void gemm<int>(int)", 4: "relu", 9: "ncclKernel(x)"}
    spans = (0, 5), (5, 6)
    table, by_window = table_of(*ops, texts=texts, phase=[0, -1, 3, 0], under=[(4, 6)], spans=spans)
    assert [tuple(row.values()) for row in table.to_pylist()] == [
        ("backward", "gemm", 2, 11, 4, 7, 0, 0, 0, 0),
        ("data", "ncclKernel", 1, 2, 2, 2, 0, 0, 0, 0),
        (None, "relu", 1, 1, 1, 1, 1, 0, 0, 0),
    ]
    # Number, durations, and of those what is beside communication, by window.
    for chosen, expected in (
        ([True, False], [(1, 4, 0), (1, 2, 0), (0, 0, 0)]),
        ([False, True], [(0,) * 3] * 2 + [(1,) * 3]),
    ):
        assert list(zip(*by_window.over(np.array(chosen))[0], strict=True)) == expected, chosen
    assert table_of()[0].num_rows == table_of(dtod(0, 10, 1))[0].num_rows == 0
    assert [
        values.size for values in table_of(spans=spans)[1].over(np.array([True, False]))[0]
    ] == [0] * 3


@pytest.mark.parametrize(
    ("grid", "expected"),
    [
        # The first and the last three lack neighbours. Of the rest 3, 4, 5 ran free for 10; 6, 7,
        # 8, 9 beside communication for 14, 13, 16, 20, half of them launched in another phase.
        (8, [(8, 2, 27, 20), (5, 2, 36, 20)]),
        (None, [(8, 0, 0, 0), (5, 0, 0, 0)]),  # kernels without a grid are not compared
    ],
)
def test_slowed_kernels_are_counted_in_the_phase_that_launched_them(grid, expected):
    durations = 1, 1, 1, 10, 10, 10, 14, 13, 16, 20, 1, 1, 1
    spans = [
        (end - length, end)
        for length, end in zip(durations, np.cumsum(durations).tolist(), strict=True)
    ]
    ops = [compute(*span, at, name_id=5, grid=grid, block=1) for at, span in enumerate(spans)]
    table, _ = table_of(*ops, texts={5: "k"}, phase=[0] * 8 + [1] * 5, under=spans[6:10])
    columns = (
        table[name].to_pylist() for name in ("n_kernels", "n_slowed", "slowed_ns", "free_ns")
    )
    assert list(zip(*columns, strict=True)) == expected


@pytest.mark.parametrize(
    ("name_ids", "texts", "expected"),
    [
        # Names that differ in parameters and template arguments are one.
        (
            (1, 2, 3, 2),
            {1: "void gemm<4>(int)", 2: "void gemm<8, true>(float*)", 3: "gemm"},
            {"gemm": 4},
        ),
        # Graphs and kernels without a name have words of their own.
        ((GRAPH_NAME_ID, 7, None, 8), {7: "gemm"}, {"CUDA graph": 1, "gemm": 1, "(no name)": 2}),
        ((None, GRAPH_NAME_ID), {}, {"(no name)": 1, "CUDA graph": 1}),
        # Far and negative ids have their names too.
        *(
            (
                (far, 6, 5, 7, GRAPH_NAME_ID, far - 1),
                {far: "far", 6: "near"},
                {"far": 1, "near": 1, "(no name)": 3, "CUDA graph": 1},
            )
            for far in (2**22 - 1, 2**22, 2**40, 2**63 - 1, -2, -(2**62))
        ),
    ],
)
def test_what_kernels_are_called(name_ids, texts, expected):
    assert names(*name_ids, texts=texts) == expected


@pytest.mark.parametrize(
    ("n_kept", "expected"),
    [
        # Of a and c in data, with equal time, the first in the alphabet.
        (2, ["0backwardb", "0backwardc", "0dataa", "0datab", "0Noneb", "0Nonec", "1backwardz"]),
        (1, ["0backwardb", "0datab", "0Nonec", "1backwardz"]),
        (0, []),
    ],
)
def test_the_costliest_names_of_each_rank_and_phase_are_kept_in_table_order(n_kept, expected):
    totals = {"0backward": (5, 9, 7), "0data": (5, 9, 5), "0None": (1, 2, 3)}
    rows = [
        (0, phase, name, time)
        for phase, times in zip(("backward", "data", None), totals.values(), strict=True)
        for name, time in zip("abc", times, strict=True)
    ]
    keys = ("rank", "phase", "name", "total_ns")
    rows = [dict(zip(keys, row, strict=True)) for row in (*rows, (1, "backward", "z", 1))]
    kept = module.costliest(schema.KERNEL_COSTS.from_rows(rows), n_kept)
    assert kept.schema == schema.KERNEL_COSTS.arrow
    assert [f"{row['rank']}{row['phase']}{row['name']}" for row in kept.to_pylist()] == expected


KERNELS = st.lists(
    st.tuples(st.integers(-5, 60), st.integers(0, 9), st.integers(0, 2)), max_size=30
)


def sums(kernels, spans):
    """Sum kernels (start, duration, row) over windows, each beside communication but for 1 ns."""
    start, length, row = (ints(*(one[at] for one in kernels)) for at in range(3))
    return module.window_sums(start, (length, np.maximum(length - 1, 0)), row, 3, windows(*spans))


@pytest.mark.parametrize("most", [1, 30, 2**18])
@given(
    KERNELS,
    st.lists(st.integers(0, 50), max_size=25, unique=True),
    st.lists(st.booleans(), min_size=24, max_size=24),
)
def test_every_sum_is_right_or_unknown(most, kernels, edges, flags):
    spans = list(pairwise(sorted(edges)))
    chosen = np.array(flags[: len(spans)], np.bool_)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_MOST_SUMS", most)
        by_window, in_all = sums(kernels, spans)
    in_chosen, is_unknown = by_window.over(chosen)
    for row in range(3):
        own = [(start, length) for start, length, at in kernels if at == row]
        inside = [span for span, is_in in zip(spans, chosen, strict=True) if is_in]
        counted = [length for start, length in own if any(a <= start < b for a, b in inside)]
        for found, lengths in (in_all, [length for _, length in own]), (in_chosen, counted):
            expected = [len(lengths), sum(lengths), sum(max(length - 1, 0) for length in lengths)]
            assert [values[row] for values in found] == expected or (
                found is in_chosen and is_unknown[row]
            ), found
    if len(spans) <= max(most // 3, 8):
        assert not is_unknown.any()


def test_windows_at_either_end_keep_their_own_sums_when_there_are_too_many(monkeypatch):
    # For three rows 100 groups: 25 windows alone at either end, 950 between in 50 groups of 19.
    monkeypatch.setattr(module, "_MOST_SUMS", 300)
    n = 1000
    found, _ = sums([(at, 1, at % 3) for at in range(n)], list(pairwise(range(n + 1))))
    assert len(found.edges) == 101
    assert found.group.size <= 300
    for first, is_known in ((1, True), (25, True), (26, False), (25 + 19, True), (980, True)):
        (inside, *_), is_unknown = found.over((np.arange(n) >= first) & (np.arange(n) < n - 2))
        assert is_unknown.any() == (not is_known), first
        assert not is_known or inside.sum() == n - 2 - first, first


EDGE = (2, 50, 0)  # of another name: nobody's equal, but a neighbour like others
FREE, COVERED = (1, 10, 0), (1, 20, 20)


def slowdown(*kernels, grid=None, block=None):
    """Compare kernels (name, duration, covered); return {kernel: (covered, what that takes free)}."""
    columns = [ints(*(kernel[at] for kernel in kernels)) for at in range(3)]
    shapes = [ints(*([8] * len(kernels) if one is None else one)) for one in (grid, block)]
    kernel, covered, free = (
        one.tolist() for one in module.kernel_slowdown(columns[0], *shapes, *columns[1:])
    )
    return dict(zip(kernel, zip(covered, free, strict=True), strict=True))


def between_edges(*kernels):  # three equal neighbours on either side: all in between are equal
    edge = ((kernels[0] if kernels else EDGE)[0], 50, 50)
    return (*[edge] * 3, *kernels, *[edge] * 3)


FREE_3, COVERED_3, ZERO = [FREE] * 3, [COVERED] * 3, [(0, 10, 0)] * 5 + [(0, 20, 20)] * 5
TOP = -(1 << 48)  # gridZ of 65535 fills the sign bit; only gridX differs


@pytest.mark.parametrize(
    ("kernels", "shapes", "expected"),
    [
        # Free 12, 10, 13 (median 12). Of 40 all was covered, of 14 a half, of 17 a little: longer
        # by 28, 2 and 5.
        (
            between_edges((1, 40, 40), (1, 12, 0), (1, 14, 7), (1, 10, 0), (1, 13, 0), (1, 17, 6)),
            {},
            {3: (40, 40 - 28), 5: (7, 7 - 2), 8: (6, 6 - 5)},
        ),
        # Ten per cent beside communication: 110 for 100 when all of it is covered, 105 for about
        # half.
        (
            between_edges(*[(1, 100, 0)] * 3, (1, 110, 110), (1, 105, 55)),
            {},
            {6: (110, 100), 7: (55, 50)},
        ),
        # One that began beside communication for 2 and waited for a place, 30 for 10: no more is
        # lost than was covered.
        (between_edges(*FREE_3, (1, 30, 2)), {}, {6: (2, 0)}),
        # Medians of even numbers are floored.
        (
            between_edges(FREE, (1, 12, 0), (1, 11, 0), (1, 13, 0), COVERED),
            {},
            {7: (20, 20 - (20 - 11))},
        ),
        # Fewer than three that ran free are not compared with, nor are some without any on the
        # other side.
        *(
            (between_edges(*[COVERED] * n_covered, *[FREE] * n_free), {}, {})
            for n_covered, n_free in ((3, 2), (6, 0), (0, 6))
        ),
        # Of 10 and of 20: whatever ran beside communication, nobody knows which of them it is like.
        # At half they agree.
        (between_edges(*[FREE] * 4, *[(1, 20, 0)] * 4, COVERED), {}, {}),
        (between_edges(*[FREE] * 4, *[(1, 14, 0)] * 4, COVERED), {}, {11: (20, 12)}),
        (between_edges(*[FREE] * 5, *[(1, 15, 0)] * 3, COVERED), {}, {11: (20, 10)}),
        (between_edges(*[FREE] * 5, *[(1, 16, 0)] * 3, COVERED), {}, {}),
        (
            between_edges(*[FREE] * 7, (1, 20, 0), COVERED),
            {},
            {},
        ),  # one of eight lies outside of three quarters on either side
        # Kernels of no length are not compared but are neighbours.
        (between_edges(FREE, FREE, (1, 0, 0), *COVERED_3), {}, {}),
        (
            between_edges(FREE, FREE, (1, 0, 0), FREE, *COVERED_3),
            {},
            dict.fromkeys((7, 8, 9), (20, 10)),
        ),
        # Names 1 and 2 in turn: of name 1 places 4 and 6 ran free, which are too few; of the next
        # 4, 6 and 8.
        ([(1, 10, 0), (2, 10, 0)] * 4 + [(1, 30, 30), (2, 10, 0)] * 6, {}, {}),
        (
            [(1, 10, 0), (2, 70, 0)] * 5 + [(1, 30, 30), (2, 70, 0)] * 5,
            {},
            dict.fromkeys((10, 12, 14, 16), (30, 10)),
        ),
        # Equal kernels have equal grids and blocks.
        (
            between_edges(*FREE_3, *COVERED_3),
            {"grid": [8] * 12, "block": [8] * 12},
            dict.fromkeys((6, 7, 8), (20, 10)),
        ),
        *(
            (between_edges(*FREE_3, *COVERED_3), {shape: [8] * 6 + [9] + [8] * 5}, {})
            for shape in ("grid", "block")
        ),
        (
            between_edges(*FREE_3, *COVERED_3),
            {"grid": [TOP | 5] * 12},
            dict.fromkeys((6, 7, 8), (20, 10)),
        ),
        (between_edges(*FREE_3, *COVERED_3), {"grid": [TOP | 5] * 6 + [TOP | 4] * 6}, {}),
        # Of eight equal ones in a row two have three neighbours on either side; names and shapes of
        # 0 are no exception.
        ([FREE] * 4 + [COVERED] * 4, {}, {}),
        (ZERO, {"grid": [0] * 10, "block": [0] * 10}, {}),
    ],
)
def test_slowdown_of_a_kernel_is_its_time_beyond_its_free_equals(kernels, shapes, expected):
    assert slowdown(*kernels, **shapes) == expected


@pytest.mark.parametrize("offset", [-3, -2, -1, 1, 2, 3])
def test_each_of_the_three_neighbours_on_either_side_tells_places_apart(offset):
    place = [(2, 1, 0)] * 3, [(2, 1, 0)] * 3
    other = [list(side) for side in place]
    side, at = (0, 3 + offset) if offset < 0 else (1, offset - 1)
    other[side][at] = (3, 1, 0)
    same, moved = ([*one[0], "kernel", *one[1]] for one in (place, other))

    def run(*surroundings):
        pairs = zip(surroundings, [FREE] * 3 + [COVERED] * 3, strict=True)
        return [one if one != "kernel" else kernel for places, kernel in pairs for one in places]

    def of_name_1(kernels):
        return {at for at in slowdown(*kernels) if kernels[at][0] == 1}

    assert of_name_1(run(*[same] * 6)) == {24, 31, 38}
    assert of_name_1(run(*[same] * 3, *[moved] * 3)) == set()


def delays(n, beside, ahead=None):
    """Ask of n kernels of 10 ns without communication, 3 ns apart, and n beside it; launched long before, or so long."""
    free = [compute(at, at + 10, 0) for at in range(1000, 1000 + 13 * n, 13)]
    begin, every = 1000 + 13 * n, 10 + beside
    starts = range(begin + 50, begin + 50 + every * n, every)
    late = [compute(at, at + 10, 0 if ahead is None else at - beside - ahead) for at in starts]
    nccl = begin + 20, begin + 60 + every * n
    ops, spans = (
        operations(*free, *late, comm(*nccl, 0)),
        windows((0, begin), (begin, begin + 10**8)),
    )
    found = module.comm_delays(ops, union(ints(nccl[0]), ints(nccl[1])), spans)
    return None if found is None else found.tolist()


@pytest.mark.parametrize(
    ("n", "beside", "ahead", "expected"),
    [
        # The first of them waits 50 ns, of which 20 are before the communication: it is beside it
        # only in part.
        (101, 7, None, [0, 101 * 4]),
        *((101, beside, None, [0, 0]) for beside in (2, 0)),
        (100, 7, None, None),  # fewer than a hundred gaps say nothing
        # A gap is shorter than 100 us, and what fills it was launched before it began.
        (101, 99_999, None, [0, 101 * 99_996]),
        (101, 100_000, None, None),
        (101, 7, 1, [0, 101 * 4]),
        (101, 7, 0, None),
    ],
)
def test_a_later_begin_beside_communication_counts_for_all_kernels_there(
    n, beside, ahead, expected
):
    assert delays(n, beside, ahead) == expected
    assert module.comm_delays(operations(compute(0, 10, 0)), EMPTY, windows((0, 20))).tolist() == [
        0
    ]


@pytest.mark.parametrize(
    ("rows", "share"),
    [
        ([(0, 20, 100, 50_000), (1, 30, 100, 1000)], 0.25),
        (
            [(0, 20, 100, 100_000), (1, 30, 100, 50_000)],
            0.35,
        ),  # a sample of half of the kernels stands for all
        ([(0, 90, 100, 100_000)], 1.0),
        ([(0, 0, 0, 10)], 0.0),
    ],
)
def test_how_much_of_the_time_beside_communication_was_compared(rows, share):
    keys = ("rank", "slowed_ns", "overlapped_ns", "n_kernels")
    rows = [dict(zip(keys, row, strict=True)) | {"n_slowed": 1, "free_ns": 10} for row in rows]
    assert module.compared_kernels(schema.KERNEL_COSTS.from_rows(rows)).share == share


@pytest.mark.parametrize(
    ("bytes_per_s", "kernel_ns", "most"),
    [
        # 1.6 x (3 % and 6.5 us of each kernel) up to 30 GB/s, 1.6 x (50 % and 0.25 us) from 300 on,
        # by the logarithm between.
        (3e9, 100_000, 0.152),
        (30e9, 100_000, 0.152),
        (30e9 * 10**0.5, 100_000, 0.478),
        (300e9, 100_000, 0.804),
        (3e12, 100_000, 0.804),
        # Of a link that is not known the worse: over a narrow one small kernels lose more.
        (None, 100_000, 0.804),
        (None, 5_000, 2.128),
    ],
)
def test_the_largest_slowdown_that_is_assumed_over_a_link(bytes_per_s, kernel_ns, most):
    assert module.largest_assumed_slowdown(bytes_per_s, 1 / kernel_ns) == pytest.approx(most)


def test_communication_is_no_kernel_that_it_could_slow():
    rows = [
        kernel(0, "gemm", 3, 60_000),
        kernel(1, "ncclDevKernel_AllReduce_Sum_f32_RING_LL", 1, 10**9),
    ]
    assert module.operations_per_ns(schema.KERNEL_COSTS.from_rows(rows)) == 1 / 20_000
    assert module.operations_per_ns(schema.KERNEL_COSTS.empty()) == 0


STEPS = [
    {"rank": rank, "step": step, "wall_ns": 1000, "comm_ns": 100}
    for rank in (0, 1)
    for step in (1, 2)
]


def kernel(rank, name, n, ns, **more):
    row = {
        "rank": rank,
        "phase": "forward",
        "name": name,
        "n_kernels": 2 * (n or 1),
        "total_ns": 2 * (ns or 1),
    }
    zeros = dict.fromkeys(("overlapped_ns", "n_slowed", "slowed_ns", "free_ns"), 0)
    return (
        row | zeros | {"n_in_summary": n, "in_summary_ns": ns, "overlapped_in_summary_ns": 0} | more
    )


def collective(rank, step, start, end, *, wait, size=1000, **more):
    own = {
        "rank": rank,
        "step": step,
        "collective": "all_reduce",
        "message_bytes": size,
        "bus_bytes": 1.5 * size,
    }
    times = {
        "start_ns": start,
        "end_ns": end,
        "wait_ns": wait,
        "transfer_ns": end - start - wait,
        "exposed_ns": 10,
    }
    return own | times | {"in_summary": True} | more


def rows_of(table, kernels=(), collectives=(), traffic=(), steps=STEPS, *, is_capture=False):
    schemas = schema.KERNEL_COSTS, schema.COLLECTIVES, schema.TRAFFIC, schema.STEPS
    tables = zip(schemas, (kernels, collectives, traffic, steps), strict=True)
    found = costs(*(one.from_rows(rows) for one, rows in tables), is_capture=is_capture)
    return [row for row in found.to_pylist() if row["table"] == table]


def test_kernels_are_summed_over_ranks_and_the_costliest_stands_first():
    under = {
        "overlapped_ns": 150,
        "overlapped_in_summary_ns": 75,
        "n_slowed": 3,
        "slowed_ns": 90,
        "free_ns": 60,
    }
    first, second, nccl = rows_of(
        "kernels",
        [
            kernel(0, "a", 1, 20),
            kernel(1, "a", 3, 30),
            kernel(0, "b", 4, 200, **under),
            kernel(1, "ncclKernel", 1, 5),
        ],
    )
    # Two ranks and two steps: 200 ns are 50 per step, of 4000 ns, and 75 lie beside communication;
    # of the capture twice as much.
    assert first == dict.fromkeys(schema.COSTS.names) | {
        "table": "kernels",
        "name": "b",
        "phase": "forward",
        "n_calls": 4,
        "total_ns": 200,
        "step_share": 0.05,
        "calls_per_step": 1,
        "time_ns_per_step": 50,
        "beside_comm_ratio": 0.375,
        "slowdown_ratio": 0.5,
        "n_slowed": 3,
    }
    names = ("name", "n_calls", "total_ns", "beside_comm_ratio", "slowdown_ratio")
    assert [second[name] for name in names] == ["a", 4, 50, 0.0, None]
    # What lies beside communication is no question that communication has.
    assert (nccl["name"], nccl["beside_comm_ratio"]) == ("ncclKernel", None)


def test_collectives_are_summed_by_kind_and_size():
    rows = [
        collective(0, 1, 0, 60, wait=20),
        collective(1, 1, 20, 60, wait=0),
        collective(0, 1, 100, 110, wait=0, size=8),
        # A send may end before the last rank comes: it waits no longer than it lasts. The skipped
        # step does not count.
        collective(0, 2, 0, 30, wait=50, transfer_ns=0),
        collective(1, 0, 0, 900, wait=0, in_summary=False),
    ]
    large, small = rows_of("collectives", collectives=rows)
    assert large == dict.fromkeys(schema.COSTS.names) | {
        "table": "collectives",
        "name": "all_reduce",
        "message_bytes": 1000,
        "n_calls": 3,
        "total_ns": 130,
        "step_share": 0.0325,
        "calls_per_step": 0.75,
        "time_ns_per_step": 32.5,
        "bytes_per_step": 750,
        "exposed_ns_per_step": 7.5,
        "hidden_ns_per_step": 25,
        "wait_ns_per_step": 12.5,
        "transfer_ns_per_step": 20,
        "algbw_bytes_per_s": pytest.approx(3000 / 80e-9),
        "busbw_bytes_per_s": pytest.approx(4500 / 80e-9),
    }
    assert (small["message_bytes"], small["n_calls"], small["busbw_bytes_per_s"]) == (
        8,
        1,
        pytest.approx(12 / 10e-9),
    )


@pytest.mark.parametrize(
    ("unknown", "names"),
    [
        ("exposed_ns", {"exposed_ns_per_step", "hidden_ns_per_step"}),
        ("wait_ns", {"wait_ns_per_step"}),
        ("transfer_ns", {"transfer_ns_per_step", "algbw_bytes_per_s", "busbw_bytes_per_s"}),
        ("bus_bytes", {"busbw_bytes_per_s"}),
        ("message_bytes", {"message_bytes", "bytes_per_step", "algbw_bytes_per_s"}),
    ],
)
def test_a_sum_of_which_a_part_is_not_known_is_null(unknown, names):
    whole = [collective(0, 1, 0, 60, wait=20), collective(1, 1, 20, 60, wait=0)]
    lacking = [
        row | {unknown: None} if unknown == "message_bytes" or row["rank"] else row for row in whole
    ]
    (before,), (after,) = (rows_of("collectives", collectives=rows) for rows in (whole, lacking))
    assert {name for name in before if before[name] is not None and after[name] is None} == names
    others = [name for name in {**before, **after} if name not in names]
    assert [after[name] for name in others] == [before[name] for name in others]


def test_without_steps_or_without_a_sight_of_communication_nothing_is_made_up():
    (row,) = rows_of("kernels", [kernel(0, "a", 1, 20)], is_capture=True)
    names = ("total_ns", "step_share", "calls_per_step", "time_ns_per_step")
    assert [row[name] for name in names] == [20, 0.005, None, None]
    (row,) = rows_of("kernels", [kernel(0, "a", None, None), kernel(1, "a", 1, 20)])
    assert (row["n_calls"], row["total_ns"], row["step_share"], row["time_ns_per_step"]) == (
        None,
    ) * 4
    hidden = [
        STEPS[0] | {"comm_ns": None},
        *STEPS[1:],
    ]  # in a graph that was captured as a whole there may be more
    assert (
        rows_of("collectives", collectives=[collective(0, 1, 0, 60, wait=20)], steps=hidden) == []
    )
    (row,) = rows_of("kernels", [kernel(0, "CUDA graph", 1, 20)], steps=hidden)
    assert (row["step_share"], row["beside_comm_ratio"]) == (0.005, None)
    assert [rows_of(table, steps=()) for table in ("kernels", "collectives", "traffic")] == [[]] * 3


def test_a_built_run_has_the_costs_of_its_rows(tmp_path):
    run = run_of(tmp_path, *map(grid_rank, range(4)))
    rows = run.costs().to_pylist()
    steps, n_steps = run.breakdown().to_pylist(), run.breakdown().num_rows
    collectives = [row for row in run.collectives().to_pylist() if row["in_summary"]]
    # Per step on one rank: 4 in its tensor group, each 20 or (the late one) 15 alone, and one of 60
    # beside a kernel of 40.
    large, small = (
        [row for row in collectives if row["message_bytes"] == size * 2**20] for size in (4, 1)
    )
    assert {row["exposed_ns"] for row in large} == {20}
    assert {(row["rank"] % 2, row["exposed_ns"]) for row in small} == {(0, 20), (1, 15)}
    of_small, of_large = (row for row in rows if row["table"] == "collectives")
    names = ("calls_per_step", "time_ns_per_step", "exposed_ns_per_step", "wait_ns_per_step")
    assert [of_small[name] for name in names] == [4, 70, 70, 10]
    names = ("calls_per_step", "time_ns_per_step", "exposed_ns_per_step", "hidden_ns_per_step")
    assert [of_large[name] for name in names] == [1, 60, 20, 40]
    in_kernels = sum(row["in_summary_ns"] for row in run.kernels().to_pylist())
    assert sum(row["total_ns"] for row in rows if row["table"] == "kernels") == in_kernels
    assert of_small["total_ns"] == sum(row["end_ns"] - row["start_ns"] for row in small)
    assert of_small["step_share"] == of_small["total_ns"] / sum(row["wall_ns"] for row in steps)
    assert n_steps == len({(row["rank"], row["step"]) for row in collectives})
    # Those of traffic as the table has them, the costliest first.
    named = ("communicator", "role", "exposed_ns_per_step")
    of_traffic = [tuple(row[name] for name in named) for row in rows if row["table"] == "traffic"]
    assert of_traffic == [
        ("0x10", "tensor", 70),
        ("0x11", "tensor", 70),
        ("0x40", "data", 20),
        ("0x41", "data", 20),
    ]
    assert run.table("costs").equals(run.costs())
