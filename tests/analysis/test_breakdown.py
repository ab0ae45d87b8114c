"""Where each window's time goes, which gaps the devices have, and why they idle: one case per formula, then the edges."""

import numpy as np
import pytest

from nsyspipe.analysis import breakdown as module
from nsyspipe.analysis.attribution import NEVER, Inputs
from nsyspipe.analysis.breakdown import (
    IdleCauses,
    breakdown,
    device_time,
    exposed_by_late_launches,
    grad_copies,
    idle_causes,
    idle_gaps,
)
from nsyspipe.analysis.intervals import EMPTY, union
from nsyspipe.model.problems import Recorded
from nsyspipe.model.schema import IDLE_CAUSES as CAUSES, IDLE_DETAILS
from tests.build.make import (
    calls,
    comm,
    compute,
    dtod,
    htod,
    ints,
    listed,
    memset,
    operations,
    unified,
    windows,
)

pytestmark = pytest.mark.reads_anew

ALL = Recorded()
NO_INPUT = Inputs(EMPTY, EMPTY)
DTOD_FIGURES = ["dtod_ns", "dtod_bytes", "n_dtod", "exposed_dtod_ns"]

KERNEL_FIGURES = [
    "compute_ns",
    "comm_ns",
    "exposed_comm_ns",
    "overlap_compute_ns",
    "overlap_backward_ns",
    "n_collectives",
]

# compute [0, 40); comm [30, 60); a DtoD copy [35, 70); a memset [80, 90).
KERNELS = compute(0, 30, 1), compute(20, 40, 2), comm(30, 60, 3)
MIXED = *KERNELS, dtod(35, 70, 4, n_bytes=64), memset(80, 90, 5, n_bytes=7)
# Exposed: communication in [40, 60); copies in [60, 70) and [80, 90), DtoD of them in the first;
# hidden [30, 40).
MIXED_PARTS = {
    "wall_ns": 100,
    "compute_ns": 40,
    "comm_ns": 30,
    "exposed_comm_ns": 20,
    "exposed_memory_ns": 20,
    "idle_ns": 20,
    "dtod_ns": 35,
    "dtod_bytes": 64,
    "n_dtod": 1,
    "exposed_dtod_ns": 10,
    "overlap_compute_ns": 10,
    "overlap_backward_ns": None,
    "n_collectives": 1,
}


def columns(spans, *ops, recorded=ALL):
    found = breakdown(device_time(operations(*ops), windows(*spans)), None, recorded)
    assert list(found) == list(MIXED_PARTS)
    return listed(found)


def row(*ops, span=(0, 100), **options):
    return {
        name: None if one is None else one[0]
        for name, one in columns([span], *ops, **options).items()
    }


@pytest.mark.parametrize(
    ("recorded", "nulls"),
    [
        (ALL, ()),
        (
            Recorded(kernels=False),
            {*KERNEL_FIGURES, "exposed_memory_ns", "idle_ns", "exposed_dtod_ns"},
        ),
        (Recorded(names=False), KERNEL_FIGURES),
        (Recorded(memcpy=False), {*DTOD_FIGURES, "exposed_memory_ns", "idle_ns"}),
        (Recorded(memset=False), {"exposed_memory_ns", "idle_ns"}),
        (Recorded(kinds=False), DTOD_FIGURES),
        (Recorded(sizes=False), {"dtod_bytes"}),
    ],
)
def test_each_figure_of_a_window_is_its_value_or_null_if_not_recorded(recorded, nulls):
    assert row(*MIXED, recorded=recorded) == MIXED_PARTS | dict.fromkeys(nulls)


def test_no_windows_have_no_figures():
    assert columns([], *MIXED) == {name: [] for name in MIXED_PARTS} | {"overlap_backward_ns": None}


def test_bytes_and_times_above_what_a_float_holds_stay_exact():
    big, far = 2**53 + 1, 2**60
    copies = dtod(far, far + 1, n_bytes=big), dtod(far + 5, far + 6, n_bytes=2)
    found = row(compute(far, far + big), comm(far + 1, far + 3), *copies, span=(far, far + big + 2))
    assert found == MIXED_PARTS | {
        "wall_ns": big + 2,
        "compute_ns": big,
        "comm_ns": 2,
        "exposed_comm_ns": 0,
        "exposed_memory_ns": 0,
        "idle_ns": 2,
        "dtod_ns": 2,
        "dtod_bytes": 2**53 + 3,
        "n_dtod": 2,
        "exposed_dtod_ns": 0,
        "overlap_compute_ns": 2,
        "n_collectives": 1,
    }


def gaps(*ops):
    """Return (start, end, launch of what ends it; None without one) of each gap."""
    found = idle_gaps(operations(*ops))
    launches = [None if one == NEVER else one for one in found.launch.tolist()]
    return list(zip(found.starts.tolist(), found.ends.tolist(), launches, strict=True))


FAR = 2**60 + 1
UNIFIED = (
    compute(0, 10, 1),
    unified(20, 25),
    unified(30, 32),
    memset(40, 42, 33),
    compute(50, 60, 5),
)


@pytest.mark.parametrize(
    ("ops", "expected"),
    [
        ((comm(40, 50, 7), compute(0, 10, 1), memset(60, 70, 8)), [(10, 40, 7), (50, 60, 8)]),
        ((compute(0, 10, 1), comm(10, 20, 2), compute(15, 30, 3), dtod(18, 40, 4)), []),
        # The other stream is busy until 35.
        (
            (comm(0, 35, 1), compute(10, 15, 2), compute(30, 33, 3), compute(45, 50, 4)),
            [(35, 45, 4)],
        ),
        # An operation of no length parts a gap in two.
        ((compute(0, 10, 1), compute(14, 14, 2), compute(20, 30, 3)), [(10, 14, 2), (14, 20, 3)]),
        # Of operations that start together a kernel ends the gap, of kernels the first launched.
        ((compute(0, 10, 1), dtod(20, 25, 2), compute(20, 22, 9)), [(10, 20, 9)]),
        ((compute(0, 10, 1), compute(20, 25, 9), comm(20, 22, 4), compute(20, 21)), [(10, 20, 4)]),
        ((compute(0, 10, 1), compute(20, 30), dtod(40, 50)), [(10, 20, None), (30, 40, None)]),
        ((compute(0, 10, 1), unified(20, 25), dtod(20, 22, 9)), [(10, 20, 9)]),
        ((compute(0, 10, 1), unified(20, 25)), [(10, 20, None)]),
        # Times far from 0 stay exact.
        ((compute(FAR, FAR + 1, -5), compute(FAR + 3, FAR + 4, FAR)), [(FAR + 1, FAR + 3, FAR)]),
        # The gaps before copies of unified memory, which nothing launches, wait for the memset, as
        # the one before itself.
        (UNIFIED, [(10, 20, 33), (25, 30, 33), (32, 40, 33), (42, 50, 5)]),
        # One whose launch was not recorded explains nothing, though another follows.
        (
            (compute(0, 10, 1), unified(20, 25), dtod(30, 40), compute(50, 60, 5)),
            [(10, 20, None), (25, 30, None), (40, 50, 5)],
        ),
    ],
)
def test_where_gaps_are_and_what_ends_them(ops, expected):
    assert gaps(*ops) == expected


@pytest.mark.parametrize(
    ("ops", "expected"),
    [
        # 90, 7 and 30; a copy's 1 does not count, nor does a kernel without a launch.
        (
            (
                compute(100, 110, 10),
                comm(57, 60, 50),
                compute(40, 50, 10),
                dtod(21, 30, 20),
                compute(5, 6),
            ),
            7,
        ),
        # Where even the shortest is long, the device never was idle; what starts before its launch
        # has two clocks.
        *(
            ((compute(100_000, 100_001, 100_000 - waited),), expected)
            for waited, expected in ((20_000, 20_000), (20_001, 20_000), (0, 0), (-3, 0))
        ),
        ((compute(10, 20),), 0),
        ((dtod(10, 20, 5), compute(30, 40)), 0),
    ],
)
def test_launch_latency_is_the_shortest_time_from_launch_to_kernel_start(ops, expected):
    assert idle_gaps(operations(*ops)).latency_ns == expected


COLUMNS = (
    "grad_copy_ns",
    "exposed_grad_copy_ns",
    "grad_copy_span_ns",
    "grad_copy_bytes",
    "n_grad_copies",
)


def copied(*ops, in_backward=None, recorded=ALL, spans=((0, 1000),)):
    """Return the figures of some windows; the flags are of the copies in order of launch."""
    flags = None if in_backward is None else np.array(in_backward, np.bool_)
    found = grad_copies(device_time(operations(*ops), windows(*spans)), flags, recorded)
    assert tuple(found) == COLUMNS
    return listed(found)


def run(n_copies, first=1, *, step=1, n_bytes=100):
    """Return DtoD copies launched one after the other: of 2 ns each, at 10 times their launch."""
    return [
        dtod(10 * at, 10 * at + 2, at, n_bytes)
        for at in range(first, first + n_copies * step, step)
    ]


SPARSE = run(16, step=2)  # launched at 1, 3, ... 31


@pytest.mark.parametrize(
    ("ops", "number"),
    [
        # What is launched between two breaks a run: the first 7 are too few.
        *(((*SPARSE, other(500, 501, 14)), 9) for other in (compute, htod, memset)),
        *(((*SPARSE, other(500, 501, 16)), 8 + 8) for other in (comm, htod, memset)),
        ((*SPARSE, compute(500, 501, 0), compute(600, 601, 32)), 16),
        # Parts of 6, 4 and 6.
        *(
            ((*SPARSE, compute(500, 501, 12), other(600, 601, 20)), 0)
            for other in (comm, htod, memset)
        ),
        # What is launched in the same nanosecond comes after: [1, 7] and [8, 15]; at the last it
        # breaks nothing.
        *(
            ((*run(15), other(500, 501, at)), number)
            for other in (compute, htod)
            for at, number in ((1, 14), (7, 8), (8, 8), (15, 15))
        ),
    ],
)
def test_copies_of_gradients_are_launched_one_after_the_other(ops, number):
    assert copied(*ops)["n_grad_copies"] == [number]


@pytest.mark.parametrize("n_inside", [8, 3, 0])
def test_copies_launched_outside_of_backward_ranges_do_not_count(n_inside):
    # The run is one whatever the ranges; what of it lies in one counts.
    flags = [True] * n_inside + [False] * (8 - n_inside)
    assert copied(*run(8), in_backward=flags)["n_grad_copies"] == [n_inside]


def test_the_gaps_between_them_count_up_to_20_us():
    # [0, 100) ... [140 000, 140 100): 20 000 from end to start after the second, 20 001 after the
    # fourth, else 19 900.
    starts = [
        place * 20_000 + (100 if place > 1 else 0) + (101 if place > 3 else 0) for place in range(8)
    ]
    found = copied(
        *(dtod(start, start + 100, place, 1) for place, start in enumerate(starts)),
        spans=[(0, 200_000)],
    )
    assert found["grad_copy_span_ns"] == [3 * 20_000 + 200 + 3 * 20_000 + 100]


@pytest.mark.parametrize("edge", [82, 90])
def test_the_gap_between_the_copies_of_two_steps_is_of_neither(edge):
    # Copies of 2 every 10: [10, 82) before the edge, [90, 162) after it.
    assert copied(*run(16), spans=[(0, edge), (edge, 1000)])["grad_copy_span_ns"] == [72, 72]


@pytest.mark.parametrize(
    ("fact", "nulls"),
    [*((fact, COLUMNS) for fact in ("kernels", "memcpy", "kinds")), ("sizes", ["grad_copy_bytes"])],
)
def test_copies_whose_kernels_kinds_or_sizes_were_not_recorded(fact, nulls):
    assert copied(*run(8), recorded=Recorded(**{fact: False})) == copied(*run(8)) | dict.fromkeys(
        nulls
    )


SYNC, ALLOC = "cudaDeviceSynchronize", "cudaMalloc"


# One gap, [10, 100), ended by a kernel that was launched at 80; the latency is 5, that of the first
# kernel, so it could have started at R = 85: late for 75, then dependent for 15.
FIRST, LAST = compute(0, 10, -5), compute(100, 110, 80)


def parts(*ops, data=(), blocking=(), spans=((0, 110),)):
    """Return the causes as (input, launch, blocked, dependency, unknown), one number per window."""
    found, _ = causes(*ops, data=data, blocking=blocking, spans=spans)
    assert tuple(found) == (*CAUSES, *IDLE_DETAILS)
    columns = [None if found[name] is None else found[name].tolist() for name in CAUSES]
    return columns if len(spans) > 1 else [None if one is None else one[0] for one in columns]


def causes(*ops, **host):
    """Return the columns that explain the idle time of some windows, and the blocked time by call."""
    found = explained(*ops, **host)
    return found.columns, found.by_call


def explained(*ops, data=(), blocking=(), spans=((0, 110),), between=(), of_copies=()):
    """Explain the idle time of some windows; it must come out whole."""
    busy = {t for op in ops for t in range(op.start, op.end)}
    idle = ints(*(len({*range(*span)} - busy) for span in spans))
    of_data, of_between = (
        union(*(ints(*(span[at] for span in times)) for at in (0, 1))) for times in (data, between)
    )
    table = None if blocking is None else calls(*blocking, of_copies=of_copies)
    gaps = idle_gaps(operations(*ops))
    found = idle_causes(gaps, windows(*spans), idle, Inputs(of_data, of_between), table)
    columns, by_call = found.columns, found.by_call
    if blocking is not None:
        assert sum(columns[name] for name in CAUSES).tolist() == idle.tolist()
        assert all((one >= 0).all() for one in columns.values())
        blocked = columns["idle_blocked_ns"]
        assert sum(by_call.values(), np.zeros_like(blocked)).tolist() == blocked.tolist()
        assert all(one.any() for one in by_call.values())
    return found


@pytest.mark.parametrize(
    ("ops", "host", "expected"),
    [
        # Late until the kernel could have started; launched before the gap, or so that its latency
        # reaches into it.
        ((FIRST, LAST), {}, [0, 75, 0, 15, 0]),
        ((FIRST, compute(100, 110, 3)), {}, [0, 0, 0, 90, 0]),
        ((FIRST, compute(100, 110, 8)), {}, [0, 3, 0, 87, 0]),  # R = 13
        # Of copies the latency may be shorter; without a launch the cause is unknown, and so before
        # and after all operations.
        ((FIRST, dtod(100, 110, 98)), {}, [0, 90, 0, 0, 0]),
        (
            (FIRST, dtod(100, 110)),
            {"data": [(0, 100)], "blocking": [(0, 100, SYNC)]},
            [0, 0, 0, 0, 90],
        ),
        ((FIRST, LAST), {"spans": [(-20, 200)]}, [0, 75, 0, 15, 110]),
        # The data phase explains what it covers of the late part, before a call that blocks; that
        # in the middle its own time.
        ((FIRST, LAST), {"data": [(0, 30), (80, 95)]}, [25, 50, 0, 15, 0]),
        ((FIRST, LAST), {"blocking": [(30, 40, SYNC), (84, 95, ALLOC)]}, [0, 64, 11, 15, 0]),
        ((FIRST, LAST), {"data": [(20, 40)], "blocking": [(30, 50, SYNC)]}, [20, 45, 10, 15, 0]),
        # A call explains as much late time as it lasted, from its start on: without it the host had
        # launched so much earlier.
        ((FIRST, LAST), {"blocking": [(5, 12, SYNC)]}, [0, 68, 7, 15, 0]),
        ((FIRST, LAST), {"blocking": [(-90, 12, SYNC)]}, [0, 0, 75, 15, 0]),
        (
            (FIRST, LAST),
            {"blocking": [(-20, 12, SYNC), (30, 50, ALLOC)]},
            [0, 35, 40, 15, 0],
        ),  # [10, 42) and [42, 50)
        (
            (FIRST, LAST),
            {"data": [(12, 15), (20, 30)], "blocking": [(5, 13, SYNC)]},
            [13, 57, 5, 15, 0],
        ),  # [10, 12), [15, 18)
        ((FIRST, LAST), {"blocking": [(10, 11, SYNC)]}, [0, 74, 1, 15, 0]),
        (
            (FIRST, LAST),
            {"blocking": [(5, 10, SYNC)]},
            [0, 70, 5, 15, 0],
        ),  # it was over, and had drained the queue
        (
            (FIRST, LAST),
            {"blocking": [(3, 7, SYNC)]},
            [0, 74, 1, 15, 0],
        ),  # [10, 11): not later than 7 + 4
        ((FIRST, LAST), {"blocking": [(2, 6, SYNC)]}, [0, 75, 0, 15, 0]),
        # Without the ends of calls blocked and launch cannot be told apart.
        ((FIRST, LAST), {"data": [(20, 50)], "blocking": None}, [30, None, None, 15, 0]),
    ],
)
def test_what_explains_a_gap(ops, host, expected):
    assert parts(*ops, **host) == expected


# Gaps [10, 20), [30, 40) and [50, 60), each late as a whole.
SHORT = compute(0, 10, -5), compute(20, 30, 15), compute(40, 50, 35), compute(60, 70, 55)


@pytest.mark.parametrize(
    ("call", "blocked"),
    [
        ((-20, 5), 10),  # until 5 + 25 = 30
        ((-21, 6), 13),  # until 6 + 27 = 33
        ((-15, 15), 20),  # until 15 + 30 = 45
        ((-35, 15), 30),  # longer than all gaps
        ((10, 20), 10),  # as much as it lasted goes by meanwhile
        ((2, 20), 18),  # until 38, when 18 have gone by
        ((42, 49), 6),  # until 49 + 7 = 56
    ],
)
def test_a_call_that_drained_the_queue_explains_later_gaps_too(call, blocked):
    assert parts(*SHORT, blocking=[(*call, SYNC)], spans=[(0, 70)]) == [
        0,
        30 - blocked,
        blocked,
        0,
        0,
    ]


def test_a_drained_queue_explains_the_next_windows_gaps():
    found = causes(*SHORT, blocking=[(-35, 15, SYNC)], spans=[(0, 25), (25, 45), (45, 70)])
    assert found[0]["idle_blocked_ns"].tolist() == [10, 10, 10]
    assert listed(found[1]) == {SYNC: [10, 10, 10]}


def test_input_behind_a_call_is_input_and_spends_the_drained_queue():
    # 30 of late time: [10, 20) blocked, [30, 40) input, of which the call had saved 10 too, and
    # nothing is left.
    row = [10, 10, 10, 0, 0]
    assert parts(*SHORT, blocking=[(-8, 12, SYNC)], data=[(30, 40)], spans=[(0, 70)]) == row


MADE = [f"idle_made_by_{source}_ns" for source in ("input", "calls", "copies", "allocs")]


@pytest.mark.parametrize(
    ("host", "made"),
    [
        # Of [10, 85) late, whose gap ends at 100: at most as long as the host was held up, and
        # behind that as long again.
        ({"data": [(20, 40)]}, [20, 0, 0, 0]),
        ({"data": [(0, 40)]}, [40, 0, 0, 0]),  # [10, 50)
        ({"data": [(-30, 8)]}, [36, 0, 0, 0]),  # [10, 46): 8 + 38
        ({"data": [(-90, 8)]}, [90, 0, 0, 0]),
        ({"data": [(90, 95)]}, [5, 0, 0, 0]),
        (
            {"blocking": [(20, 40, SYNC)], "data": [(20, 40)]},
            [20, 20, 0, 0],
        ),  # both could bring it back
        ({"blocking": [(5, 12, SYNC), (30, 50, ALLOC)], "of_copies": [1]}, [0, 7, 20, 20]),
        # [5, 12) of a synchronisation, and [30, 55) of two calls that allocate.
        ({"blocking": [(5, 12, SYNC), (30, 50, ALLOC), (50, 55, ALLOC)]}, [0, 32, 0, 25]),
        ({"blocking": [(5, 12, SYNC)], "of_copies": [0]}, [0, 0, 7, 0]),
        ({"blocking": None, "data": [(20, 40)]}, [20, None, None, None]),
    ],
)
def test_what_input_calls_and_copies_make_of_idle_time_at_most(host, made):
    columns = explained(FIRST, LAST, **host).columns
    assert [None if columns[name] is None else columns[name].tolist()[0] for name in MADE] == made


def test_a_gap_that_ends_with_an_early_launch_is_made_by_nothing():
    columns = explained(
        FIRST, compute(100, 110, 3), data=[(0, 90)], blocking=[(0, 90, SYNC)]
    ).columns
    assert [columns[name].tolist() for name in MADE] == [[0], [0], [0], [0]]


def test_the_part_of_blocking_copies_is_told_by_call():
    found = explained(
        FIRST, LAST, blocking=[(20, 25, SYNC), (30, 50, ALLOC), (60, 64, SYNC)], of_copies=[1, 2]
    )
    assert found.columns["idle_blocked_by_copies_ns"].tolist() == [24]
    assert listed(found.by_call) == {SYNC: [9], ALLOC: [20]}
    assert listed(found.of_copies_by_call) == {SYNC: [4], ALLOC: [20]}


@pytest.mark.parametrize(
    ("late", "blocking", "pause"),
    [
        (40, (), 40),
        (39, (), 0),
        (60, ((30, 31, SYNC),), 0),
        (90, ((50, 60, SYNC),), 80),  # a call parts the stretch
    ],
)
def test_a_pause_is_a_long_stretch_in_which_nothing_is_launched(monkeypatch, late, blocking, pause):
    monkeypatch.setattr(module, "PAUSE_NS", 40)
    # Launched with no latency, each kernel starts when it comes; windows cut the gap in two.
    ops = (compute(0, 10, 0), compute(10 + late, 20 + late, 10 + late))
    half = 10 + late // 2
    found, _ = causes(*ops, blocking=blocking, spans=((0, half), (half, 20 + late)))
    assert found["idle_pause_ns"].sum() == pause
    assert (found["idle_pause_ns"] <= found["idle_launch_ns"]).all()


def test_the_time_between_two_steps_is_waited_for_input():
    # Late [10, 85), of which [20, 40) and [80, 85) are between two steps, and [50, 60) of the data
    # phase.
    columns, _ = causes(FIRST, LAST, data=[(50, 60)], between=[(20, 40), (80, 90)])
    assert [
        columns[f"idle_{name}_ns"].tolist() for name in ("input", "launch", "between_steps")
    ] == [[35], [40], [25]]


def test_without_idle_time_or_windows_there_are_no_causes():
    gaps = idle_gaps(operations(FIRST, LAST))
    found = idle_causes(gaps, windows((0, 110)), None, NO_INPUT, calls((0, 90, SYNC)))
    assert found == IdleCauses(dict.fromkeys((*CAUSES, *IDLE_DETAILS)), {}, {})
    found = idle_causes(gaps, windows(), ints(), NO_INPUT, calls((5, 12, SYNC)))
    assert {name: one.tolist() for name, one in found.columns.items()} == {
        name: [] for name in (*CAUSES, *IDLE_DETAILS)
    }
    assert (found.by_call, found.of_copies_by_call) == ({}, {})


WHOLE = ((0, 110),)
THRICE = [(20, 25, SYNC), (30, 50, ALLOC), (60, 64, SYNC)]


@pytest.mark.parametrize(
    ("blocking", "spans", "by_call"),
    [
        (None, WHOLE, {}),
        (THRICE, WHOLE, {ALLOC: [20], SYNC: [9]}),
        # By window, whose edges cut.
        (
            THRICE,
            [(0, 22), (22, 40), (40, 63), (63, 110)],
            {SYNC: [2, 3, 3, 1], ALLOC: [0, 10, 10, 0]},
        ),
        # [10, 62) is behind the first, less what goes by while another is under way: [30, 70).
        ([(-40, 12, SYNC), (30, 70, ALLOC)], WHOLE, {SYNC: [20], ALLOC: [40]}),
        ([(2, 11, ALLOC), (6, 30, SYNC)], WHOLE, {SYNC: [24]}),
        ([(2, 30, ALLOC), (6, 11, SYNC)], WHOLE, {ALLOC: [28]}),
        # Two threads: one call ends when the other begins, or after it began: then the last to
        # return counts.
        ([(20, 30, ALLOC), (30, 50, SYNC)], WHOLE, {SYNC: [20], ALLOC: [10]}),
        ([(20, 30, ALLOC), (25, 50, SYNC)], WHOLE, {SYNC: [25], ALLOC: [5]}),
        # Outside of all windows it is of no call.
        ([(-15, 12, SYNC)], [(20, 30), (30, 40)], {SYNC: [10, 7]}),
        ([(70, 80, SYNC)], [(20, 30)], {}),
    ],
)
def test_blocked_time_is_told_by_call(blocking, spans, by_call):
    assert listed(causes(FIRST, LAST, blocking=blocking, spans=spans)[1]) == by_call


US = 1000
# Compute [100, 200) and [260, 400) us, communication [150, 300): exposed in [200, 260).
EARLY = compute(100 * US, 200 * US, 90 * US), comm(150 * US, 300 * US, 100 * US)


def exposed_late(*ops, spans=((0, 1000 * US),), latency=10 * US, offset=0):
    device = device_time(operations(*ops), windows(*spans))
    return exposed_by_late_launches(device, latency, offset).tolist()


@pytest.mark.parametrize(
    ("launch_us", "late_us"), [(150, 0), (190, 0), (191, 1), (240, 50), (250, 60), (255, 60)]
)
def test_communication_is_exposed_until_the_next_compute_could_start(launch_us, late_us):
    assert exposed_late(*EARLY, compute(260 * US, 400 * US, launch_us * US)) == [late_us * US]


@pytest.mark.parametrize(("launch_ns", "late_us"), [(80 * US, 50), (80 * US - 1, 0)])
def test_communication_that_starts_within_20_us_of_its_launch_is_late(launch_ns, late_us):
    ops = (
        compute(0, 150 * US, 0),
        comm(100 * US, 200 * US, launch_ns),
        compute(210 * US, 300 * US, 5 * US),
    )
    assert exposed_late(*ops) == [late_us * US]


def test_launches_are_put_on_the_devices_clock():
    ops = *EARLY, compute(260 * US, 400 * US, 215 * US)
    assert [exposed_late(*ops, offset=by * US) for by in (0, 20)] == [[25 * US], [45 * US]]


def test_late_exposure_is_split_at_windows():
    ops = *EARLY, compute(260 * US, 400 * US, 240 * US)
    assert exposed_late(*ops, spans=[(0, 220 * US), (220 * US, 900 * US)]) == [20 * US, 30 * US]


@pytest.mark.parametrize(
    "ops",
    [
        EARLY,  # no compute comes behind it
        (*EARLY, compute(260 * US, 400 * US)),  # of which no launch was recorded
        # Of compute that starts together the first launched counts.
        (*EARLY, compute(260 * US, 400 * US, 250 * US), compute(260 * US, 300 * US, 180 * US)),
        (compute(0, 50 * US, 0),),
        (comm(0, 50 * US),),
        (),
    ],
)
def test_what_no_late_launch_exposes(ops):
    assert exposed_late(*ops) == [0]
