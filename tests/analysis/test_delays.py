"""Who is late by himself and who passes a delay on, against worked-out figures and an oracle."""

import itertools

import pyarrow as pa
from hypothesis import given, strategies as st

from nsyspipe.analysis.delays import without_passed_on
from nsyspipe.analysis.traffic import own_lateness
from nsyspipe.model import schema
from tests.findings.make import collective


def group(ranks, starts, end, **more):
    """Return a collective of some ranks on a communicator of their own."""
    name = "0x" + "".join(map(str, ranks))
    rows = collective(1, starts, end, comm_id=name, **more)
    return [row | {"rank": ranks[row["rank"]]} for row in rows]


def late_by(*groups):
    """Return (ranks' communicator, rank) -> by how much that rank is late by itself, of those that are."""
    rows = schema.COLLECTIVES.from_rows([row for one in groups for row in one])
    found = without_passed_on(own_lateness(rows)).to_pylist()
    return {(row["comm_id"], row["rank"]): row["late_by_ns"] for row in found if row["late_by_ns"]}


# Rank 1 comes 100 late to its tensor group of 0 and 1, so rank 0 comes 100 late to its data group
# with 2.
PASSED_ON = (
    group((0, 1), (10, 110), 120),
    group((2, 3), (10, 10), 20),
    group((0, 2), (130, 30), 140),
)


def test_who_waited_for_another_group_passes_its_delay_on():
    assert late_by(*PASSED_ON) == {("0x01", 1): 100}


def test_who_comes_later_than_it_waited_is_late_by_the_rest():
    assert late_by(*PASSED_ON[:2], group((0, 2), (175, 30), 180)) == {
        ("0x01", 1): 100,
        ("0x02", 0): 45,
    }


def test_what_all_ranks_of_a_collective_waited_is_passed_on_by_none():
    both_waited = (
        group((0, 1), (10, 110), 120),
        group((2, 3), (10, 110), 120),
        group((0, 2), (160, 130), 170),
    )
    assert late_by(*both_waited) == {("0x01", 1): 100, ("0x23", 3): 100, ("0x02", 0): 30}


def test_waiting_beside_compute_is_not_passed_on():
    hidden = group((0, 1), (10, 110), 120, exposed_ns=0)
    assert late_by(hidden, *PASSED_ON[1:])["0x02", 0] == 100


def test_what_was_waited_before_the_last_meeting_is_not_passed_on():
    met = group((0, 2), (125, 125), 126)
    assert late_by(*PASSED_ON[:2], met, group((0, 2), (230, 130), 240))["0x02", 0] == 100


def test_ranks_of_one_communicator_pass_nothing_on():
    rows = schema.COLLECTIVES.from_rows(
        [*group((0, 1), (10, 110), 120), *group((0, 1), (200, 130), 210)]
    )
    own = own_lateness(rows)
    assert without_passed_on(own).equals(own)


def test_communicators_of_the_same_ranks_pass_nothing_on_to_each_other():
    first = [row | {"comm_id": "all_gather/0"} for row in group((0, 1), (10, 110), 120)]
    then = [row | {"comm_id": "reduce_scatter/0"} for row in group((0, 1), (230, 130), 240)]
    assert late_by(first, then, group((0, 2), (300, 300), 310))["reduce_scatter/0", 0] == 100


def oracle(rows):
    """Return what each operation's rank waited elsewhere since its communicator's last operation, one by one."""
    waited = []
    for row in rows:
        same_rank = [one for one in rows if one["rank"] == row["rank"]]

        def waits_until(one):
            return one["start_ns"] + min(one["wait_ns"], one["end_ns"] - one["start_ns"])

        earlier = [
            one
            for one in same_rank
            if one["comm_id"] == row["comm_id"] and one["start_ns"] < row["start_ns"]
        ]
        since = max(
            (waits_until(one) for one in earlier), default=min(one["start_ns"] for one in same_rank)
        )
        between = [one for one in same_rank if since < waits_until(one) <= row["start_ns"]]
        between = [one for one in between if one["comm_id"] != row["comm_id"]]
        total = sum(waits_until(one) - one["start_ns"] for one in between)
        waited.append(min(total, max(row["start_ns"] - since, 0)))
    return waited


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 15), st.integers(0, 15)), min_size=1, max_size=8
    )
)
def test_an_oracle_that_looks_at_each_operation_agrees(meetings):
    groups, at = [], 0
    for which, first, second in meetings:
        ranks = [(0, 1), (2, 3), (0, 2), (1, 3)][which]
        groups.append(group(ranks, (at + first, at + second), at + 20))
        at += 20  # one after the other
    rows = list(itertools.chain(*groups))
    waited = oracle(rows)
    least = {}
    for row, own in zip(rows, waited, strict=True):
        key = row["comm_id"], row["start_ns"] + row["wait_ns"]
        least[key] = min(own, least.get(key, own))
    keys = [(row["comm_id"], row["start_ns"] + row["wait_ns"]) for row in rows]
    expected = [
        max(row["late_by_ns"] - (own - least[key]), 0)
        for row, own, key in zip(rows, waited, keys, strict=True)
    ]
    found = without_passed_on(own_lateness(schema.COLLECTIVES.from_rows(rows)))
    assert found["late_by_ns"].to_pylist() == pa.array(expected).to_pylist()
