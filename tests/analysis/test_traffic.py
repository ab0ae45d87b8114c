"""What a communicator serves: programs of each kind, with what they printed of their own calls."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from nsyspipe.analysis import traffic as module
from nsyspipe.analysis.intervals import IntervalSet, union
from nsyspipe.analysis.traffic import (
    DATA,
    EXPERT,
    OTHER,
    PIPELINE,
    SHARDED,
    TENSOR,
    CommUse,
    Dimension,
    roles,
)
from nsyspipe.model import schema
from nsyspipe.report.costs import traffic_text
from tests.conftest import examples


def use(collective, calls, forward, *, size=25e6, ranks=(0, 1), before=()):
    behind = None if forward is None else 1 - forward
    return CommUse(f"{ranks}", collective, ranks, calls, size, forward, behind, before)


@pytest.mark.parametrize(
    ("uses", "expected"),
    [
        pytest.param(
            [use("all_reduce", 21, 0.0), use("broadcast", 1, 1.0)], [DATA, DATA], id="DDP"
        ),
        pytest.param(
            [use("all_reduce", 48, 0.5), use("all_reduce", 20, 0.0, ranks=(0, 2))],
            [TENSOR, DATA],
            id="tensor",
        ),
        pytest.param(
            [
                use("all_gather", 48, 0.5),
                use("reduce_scatter", 48, 0.5),
                use("all_reduce", 20, 0.0, ranks=(0, 2)),
            ],
            [TENSOR, TENSOR, DATA],
            id="sequence parallel",
        ),
        pytest.param(
            [use("all_gather", 25, 0.52), use("reduce_scatter", 13, 0.0)],
            [SHARDED, SHARDED],
            id="FSDP2",
        ),
        pytest.param(
            [
                use("all_gather", 25, 0.52),
                use("reduce_scatter", 13, 0.0),
                use("all_reduce", 13, 0.0, ranks=(0, 2)),
            ],
            [SHARDED, SHARDED, DATA],
            id="HSDP",
        ),
        pytest.param(
            [use("send_recv", 8, 0.5, before=(73, 0)), use("all_reduce", 5, 0.0, ranks=(0, 2))],
            [PIPELINE, DATA],
            id="pipeline",
        ),
        # An optimizer of 40 kernels stands before forward where steps are cut there.
        pytest.param(
            [use("send_recv", 8, 0.5, before=(210, 41, 41, 41))],
            [PIPELINE],
            id="behind an optimizer",
        ),
        pytest.param(
            [use("send_recv", 16, 0.5, before=(8, 9))], [OTHER], id="all-to-all as sends, or a ring"
        ),
        pytest.param([use("send_recv", 16, 0.5)], [OTHER], id="sends, launches not known"),
        pytest.param([use("send_recv", 16, 0.5, before=(73,))], [OTHER], id="sends of one rank"),
        pytest.param(
            [use("all_to_all", 16, 0.5), use("all_reduce", 10, 0.0)], [EXPERT, DATA], id="experts"
        ),
        pytest.param([use("all_reduce", 1, 1.0, size=4)], [OTHER], id="the loss"),
        # Three metrics before backward and twelve buckets in it, of sizes that nothing tells.
        pytest.param([use("all_reduce", 15, 0.2, size=None)], [OTHER], id="metrics beside DDP"),
        pytest.param(
            [use("all_reduce", 72, 0.33, size=None)], [TENSOR], id="tensor, layers computed again"
        ),
        # Gradients are scattered in backward, and parameters gathered when the optimizer has them:
        # no layer waits.
        pytest.param(
            [use("reduce_scatter", 12, 0.0), use("all_gather", 12, 0.0)],
            [SHARDED, OTHER],
            id="optimizer sharded alone",
        ),
        pytest.param([use("all_gather", 1, 1.0)], [OTHER], id="all-gather alone"),
        pytest.param([use("broadcast", 1, 1.0)], [OTHER], id="broadcast alone"),
        pytest.param([use("all_reduce", 48, None)], [OTHER], id="backward unknown"),
    ],
)
def test_role(uses, expected):
    assert roles(uses) == expected


@pytest.mark.parametrize(
    ("operations", "expected"),
    [
        # Two pipelines of two stages each: ranks 0 and 1, 2 and 3. Data groups hold one of each, a
        # norm and layers others.
        pytest.param(
            [
                ("a", "send_recv", 0),
                ("a", "send_recv", 1),
                ("b", "send_recv", 2),
                ("b", "send_recv", 3),
                ("data", "all_reduce", 0),
                ("data", "all_reduce", 2),
                ("norm", "all_reduce", 1),
                ("norm", "all_reduce", 0),
                ("layers", "all_reduce", 1),
                ("layers", "all_reduce", 2),
            ],
            [True] * 4 + [False, False, True, True, False, False],
            id="grid",
        ),
        pytest.param(
            [("norm", "all_reduce", 0), ("norm", "all_reduce", 1)], [False, False], id="no pipeline"
        ),
        pytest.param(
            [
                (None, "send_recv", 0),
                (None, "all_reduce", 0),
                (None, "send_recv", 1),
                (None, "all_reduce", 1),
            ],
            [True, False, True, False],
            id="communicators not known",
        ),
        pytest.param([], [], id="nothing"),
    ],
)
def test_what_stages_wait_in_by_design(operations, expected):
    columns = zip(*operations, strict=True) if operations else ([], [], [])
    types = (pa.string(), pa.string(), pa.int64())
    arrays = [pa.array(one, kind) for one, kind in zip(columns, types, strict=True)]
    table = pa.table(dict(zip(("comm_id", "collective", "rank"), arrays, strict=True)))
    assert module.between_stages(table).to_pylist() == expected


@pytest.mark.parametrize(
    ("bubbles", "expected"),
    [
        # Rank 2 is in no pipeline; the row of all ranks together is their mean.
        ([(None, "a", 150.0), (0, "a", 100.0), (1, "a", 200.0), (0, "b", 60.0)], 120.0),
        ([(0, "a", 100.0), (1, "a", None)], None),
        ([], 0.0),
    ],
)
def test_the_bubble_is_a_mean_over_all_ranks(bubbles, expected):
    common = {"collective": "send_recv", "role": PIPELINE, "ranks": "0,1"}
    rows = [
        common | {"rank": rank, "communicator": name, "bubble_ns_per_step": ns}
        for rank, name, ns in bubbles
    ]
    rows.append(
        {"rank": 0, "communicator": "c", "collective": "all_reduce", "role": DATA, "ranks": "0,1"}
    )
    assert module.bubble_ns_per_step(schema.TRAFFIC.from_rows(rows), 3) == expected


def traffic(*comms, name="0x{}", exposed=None, n_bytes=None):
    """Return the table of communicators by role, collective, ranks and size; each rank's exposed time is that of its role."""
    rows = []
    for at, (role, collective, ranks, n_ranks) in enumerate(comms):
        one = {
            "communicator": name.format(at),
            "role": role,
            "collective": collective,
            "n_ranks": n_ranks,
            "ranks": ranks,
            "calls_per_step": 2,
            "bytes_per_step": n_bytes,
            "exposed_ns_per_step": 1000,
            "exposed_part_ns_per_step": (exposed or {}).get(role, 10),
            "bubble_ns_per_step": 7 if role == PIPELINE else None,
        }
        rows += [one | {"rank": rank} for rank in (None, *map(int, ranks.split(",")))]
    return schema.TRAFFIC.from_rows(rows)


_TENSOR = [(TENSOR, "all_reduce", f"{at},{at + 1}", 2) for at in (0, 2, 4, 6)]
_DATA = [(DATA, "all_reduce", ranks, 4) for ranks in ("0,2,4,6", "1,3,5,7")]


@pytest.mark.parametrize(
    ("communicators", "expected", "share"),
    [
        # 4 tensor groups and 2 of data: a rank is in one of each, and 30 of a rank's 40 are
        # tensor's, whatever their number.
        pytest.param(
            _TENSOR + _DATA,
            [((TENSOR,), 2), ((DATA,), 4)],
            75,
            id="grid",
        ),
        # The same two ranks for both are no grid of four.
        pytest.param(
            [(DATA, "all_reduce", "0,1", 2), (EXPERT, "all_to_all", "0,1", 2)],
            [((EXPERT, DATA), 2)],
            25,
            id="experts beside data",
        ),
        pytest.param(
            [(PIPELINE, "send_recv", f"{at},{at + 1}", 2) for at in range(3)],
            [((PIPELINE,), 4)],
            None,
            id="pairs of stages",
        ),
        pytest.param(
            [(SHARDED, kind, "0,1", 2) for kind in ("all_gather", "reduce_scatter")],
            [((SHARDED,), 2)],
            25,
            id="one role",
        ),
        # Rank 0 alone: of which size groups are says NCCL, whether they are the same nobody.
        pytest.param(
            [(TENSOR, "all_reduce", "0", 4), (DATA, "all_reduce", "0", 4)],
            [((TENSOR,), 4), ((DATA,), 4)],
            75,
            id="ranks missing",
        ),
        pytest.param(
            [(TENSOR, "all_reduce", "0,1,2", 3), (TENSOR, "all_reduce", "3,4", 2), _DATA[0]],
            [((TENSOR,), None), ((DATA,), 4)],
            62,
            id="uneven groups",
        ),
        pytest.param(
            [(OTHER, "all_reduce", "0,1", 2), *_DATA], [((DATA,), 4)], None, id="data alone"
        ),
        pytest.param(
            [(DATA, "all_reduce", ",".join(map(str, range(8))), 8)],
            [((DATA,), 8)],
            None,
            id="one group",
        ),
        pytest.param(
            [(DATA, "all_reduce", f"{at},{at + 1}", 2) for at in range(0, 10, 2)],
            [((DATA,), 2)],
            None,
            id="many groups",
        ),
        pytest.param([(OTHER, "all_reduce", "0,1", 2)], [], None, id="nobody knows"),
    ],
)
def test_groups_of_ranks_and_what_is_said_of_them(communicators, expected, share, worded):
    table = traffic(*communicators, exposed={TENSOR: 30})
    assert module.dimensions(table, 8) == [Dimension(names, size) for names, size in expected]
    n_ranks = len(table["rank"].drop_null().unique())
    text = str(traffic_text(table, n_ranks, n_ranks, 40))
    worded(text)
    assert (f"{share}%" in text) == (share is not None)


def test_streams_are_no_communicators_whose_size_could_be_told(worded):
    table = traffic(
        (TENSOR, "all_reduce", "0,1,2,3", 4),
        (DATA, "all_reduce", "0,1,2,3", 4),
        name="all_reduce/{}",
    )
    assert module.dimensions(table, 4) == [Dimension((TENSOR,), None), Dimension((DATA,), None)]
    worded(traffic_text(table, 4, 4, 40), "two roles")
    # Where all ranks of the job meet in the only kind that there is, they are its group.
    table = traffic((DATA, "all_reduce", "0,1,2,3", 4), name="all_reduce/{}")
    assert module.dimensions(table, 4) == [Dimension((DATA,), 4)]
    assert module.dimensions(table, 8) == [Dimension((DATA,), None)]
    worded(
        (str(traffic_text(table, 4, size, 40)) for size in (4, 8, None)),
        "a job of 4, 8 or how many ranks",
    )


@pytest.mark.parametrize(
    ("communicators", "options", "expected"),
    [
        # Four pairs of ranks and two pipelines of four: 2 x 4.
        (
            [*_TENSOR, *((PIPELINE, "send_recv", ranks, 4) for ranks in ("0,2,4,6", "1,3,5,7"))],
            {},
            (8, True),
        ),
        # At least two share one where streams serve two roles; of one role all ranks do.
        (
            [(TENSOR, "all_reduce", "0,1", 2), (DATA, "all_reduce", "0,1", 2)],
            {"name": "stream {}"},
            (2, False),
        ),
        ([(TENSOR, "all_reduce", "0,1,2,3,4,5,6,7", 8)], {"name": "stream {}"}, (8, True)),
        # Two calls of 64 KiB at most carry no part of a model.
        ([(OTHER, "all_reduce", "0,1", 2), *_DATA], {"n_bytes": 131_072}, (1, True)),
        ([(OTHER, "all_reduce", "0,1", 2), *_DATA], {"n_bytes": 131_073}, (1, False)),
        ([(OTHER, "all_reduce", "0,1", 2)], {"n_bytes": 8}, (1, False)),
    ],
)
def test_ranks_that_share_a_batch(communicators, options, expected):
    assert module.ranks_per_batch(traffic(*communicators, **options), 8) == expected
    assert module.ranks_per_batch(traffic(), 1) == (1, True)


_SHARDS = [(SHARDED, "reduce_scatter", ranks, 2) for ranks in ("0,1", "2,3")]


@pytest.mark.parametrize(
    ("communicators", "expected"),
    [
        ([*_SHARDS, (DATA, "all_reduce", "0,2", 2), (DATA, "all_reduce", "1,3", 2)], True),
        # No all-reduce; one within the ranks that share shards; one over all of them; one whose
        # other ranks are not there.
        (_SHARDS, False),
        ([*_SHARDS, (DATA, "all_reduce", "0,1", 2)], False),
        ([*_SHARDS, (DATA, "all_reduce", "0,1,2,3", 4)], False),
        ([*_SHARDS, (DATA, "all_reduce", "0", 2)], False),
        # Broadcasts are no gradients, and replicas of a tensor grid hold no shards.
        ([*_SHARDS, (DATA, "broadcast", "0,2", 2)], False),
        (_TENSOR + _DATA, False),
        ([], False),
    ],
)
def test_all_reduces_between_groups_that_share_shards_are_of_shards(communicators, expected):
    assert module.is_hybrid_sharded(traffic(*communicators)) is expected


def test_a_mean_over_ranks_counts_each_rank_once():
    table = traffic(*_TENSOR, *_DATA, exposed={TENSOR: 30})
    assert module.mean_over_ranks(table, "exposed_part_ns_per_step", "role", 8) == {
        TENSOR: 30,
        DATA: 10,
    }
    assert module.mean_over_ranks(table, "wait_ns_per_step", "role", 8) is None


def test_who_was_kept_waiting_by_another_stage_is_late_for_that():
    # Pipelines of ranks 0 and 1, 2 and 3; gradients among 0 and 2, 1 and 3. In step 1 rank 3 takes
    # 90 longer: rank 2 waits 110 for it where rank 0 waits 20, and comes 80 late to the gradients
    # of its stage, rank 3 itself 95. In step 2 rank 2 is 60 late, although it waited no longer than
    # rank 0.
    rows: list[dict[str, object]] = [
        {
            "step": step,
            "rank": rank,
            "collective": "send_recv",
            "comm_id": f"pair {rank // 2}",
            "wait_ns": wait,
        }
        for step, of_ranks in {1: (20, 30, 110, 30), 2: (20, 30, 20, 30)}.items()
        for rank, wait in enumerate(of_ranks)
    ]
    rows += [
        {
            "step": step,
            "rank": rank,
            "collective": "all_reduce",
            "comm_id": f"data {rank % 2}",
            "late_by_ns": ns,
            "held_up_ns": ns,
        }
        for step, of_ranks in {1: (0, 0, 80, 95), 2: (0, 0, 60, None)}.items()
        for rank, ns in enumerate(of_ranks)
    ]
    found = module.own_lateness(schema.COLLECTIVES.from_rows(rows))
    assert found["inherited_ns"].to_pylist() == [0, 0, 90, 0, 0, 0, 0, 0]
    assert (
        found["late_by_ns"].to_pylist()
        == found["held_up_ns"].to_pylist()
        == [0, 0, 0, 95, 0, 0, 60, None]
    )
    alone = module.own_lateness(
        schema.COLLECTIVES.from_rows(rows[8:])
    )  # without a pipeline all is as it was
    assert alone["late_by_ns"].to_pylist() == [0, 0, 80, 95, 0, 0, 60, None]


_TIMES = st.integers(0, 30)
_INTERVALS = st.lists(st.tuples(_TIMES, _TIMES).map(sorted), max_size=4)


def intervals(pairs):
    return union(
        np.array([one for one, _ in pairs], np.int64), np.array([one for _, one in pairs], np.int64)
    )


def exposed_parts_by_ns(uses, hidden, windows):
    """Return what `exposed_parts` does, asking every ns."""

    def holds(times, at):
        return any(start <= at < end for start, end in times)

    parts = [0.0 for _ in uses]
    for at in range(30):
        if not holds(hidden, at) and holds(windows, at):
            own = [number for number, times in enumerate(uses) if holds(times, at)]
            for number in own:
                parts[number] += 1 / len(own)
    return parts


@examples(200)
@given(st.lists(_INTERVALS, max_size=3), _INTERVALS, _INTERVALS)
def test_exposed_parts_are_those_of_every_ns(uses, hidden, windows):
    found = module.exposed_parts(
        [intervals(one) for one in uses], intervals(hidden), intervals(windows)
    )
    assert found == pytest.approx(exposed_parts_by_ns(uses, hidden, windows))


def test_exposed_parts_sum_to_what_is_exposed():
    # 0 to 10 and 5 to 20, of which 8 to 9 are hidden: 19 are exposed, 4 of them twice.
    uses = [intervals([(0, 10)]), intervals([(5, 20)])]
    everything = IntervalSet(np.array([0]), np.array([30]))
    assert module.exposed_parts(uses, intervals([(8, 9)]), everything) == [5 + 2, 2 + 10]


@pytest.mark.parametrize(("whole", "says"), [(10, True), (11, False)])
def test_whole_times_of_a_run_saved_before_count_where_they_do_not_overlap(whole, says, worded):
    table = traffic((TENSOR, "all_reduce", "0,1", 2), (DATA, "all_reduce", "0,1", 2))
    columns = {"exposed_ns_per_step": float(whole), "exposed_part_ns_per_step": None}
    rows = [row | columns for row in table.to_pylist()]
    text = traffic_text(schema.TRAFFIC.from_rows(rows), 2, 2, 20.0)
    assert ("%" in text) is says
    worded(text)
