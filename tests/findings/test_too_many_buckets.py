"""Rule too-many-buckets: many all-reduces, each of which costs little more than its latency."""

from __future__ import annotations

import pytest

from nsyspipe.findings.too_many_buckets import too_many_buckets
from tests.findings.make import collective, evidence, fired, not_judged, silent, steps, unmatched

WALL = 10_000_000
FLOOR = 100_000
PLENTY = 3_000_000


def all_reduces(n, transfer=FLOOR, *, number=1, **more):
    """Return `n` all-reduces of a step that both ranks start together."""
    found = []
    for seq in range(n):
        at = 200_000 * seq
        found += collective(number, (at, at), at + transfer, seq=seq, **more)
    return found


def run(rows, *numbers, exposed=PLENTY, **more):
    return evidence(steps(2, *numbers, wall=WALL, exposed=exposed), rows, **more)


def test_many_short_all_reduces_could_save_what_they_leave_exposed():
    # 20 of 100 us are 2 ms, 3 ms are exposed: at most 2 ms. The rows of two ranks are counted per rank.
    found = fired(too_many_buckets, run(all_reduces(20)))
    assert found.saving_ns_per_step == 2_000_000
    assert found.evidence == {
        "all_reduces_per_step": 20,
        "median_transfer_ns": FLOOR,
        "median_message_bytes": None,
        "exposed_comm_ns_per_step": PLENTY,
    }


def test_no_more_than_what_is_exposed_can_be_saved():
    assert fired(too_many_buckets, run(all_reduces(20), exposed=300_000)).saving_ns_per_step == (300_000)


@pytest.mark.parametrize(
    "given",
    [
        run(all_reduces(19)),
        run(all_reduces(20, FLOOR + 1)),
        run(all_reduces(20, message_bytes=4_000_001)),
        run(all_reduces(20), exposed=WALL // 100 - 1),
        run(all_reduces(20), 1, 2),
        run(all_reduces(20, kind="all_gather")),
        evidence(steps(1, wall=WALL, exposed=PLENTY), all_reduces(20)[::2]),
    ],
    ids=[
        "19 of them",
        "longer than the floor",
        "over 4 MB each",
        "less than 1 %",
        "10 per step",
        "all-gathers",
        "one rank",
    ],
)
def test_few_or_long_or_large_or_hidden_ones_are_no_matter(given):
    silent(too_many_buckets, given)


def test_all_thresholds_at_once_still_fire():
    given = run(all_reduces(20, FLOOR, message_bytes=4_000_000), exposed=WALL // 100)
    assert fired(too_many_buckets, given).evidence["median_message_bytes"] == 4_000_000


def test_a_few_large_buckets_among_many_small_ones_do_not_hide_them():
    rows = all_reduces(30, 40_000) + [row | {"seq": row["seq"] + 30} for row in all_reduces(5, 180_000)]
    found = fired(too_many_buckets, run(rows))
    assert found.evidence["median_transfer_ns"] == 40_000
    assert found.saving_ns_per_step == 35 * 40_000


def test_the_small_all_reduces_of_sharded_training_are_no_buckets():
    # Hybrid sharding: per layer a reduce-scatter within the host, an all-reduce across hosts.
    rows = all_reduces(24) + [row | {"seq": row["seq"] + 24} for row in all_reduces(24, kind="reduce_scatter")]
    silent(too_many_buckets, run(rows))


def test_transfers_that_are_not_known_cannot_be_judged():
    reason = not_judged(too_many_buckets, run(unmatched(all_reduces(20))))
    assert reason == "transfer times are not known"


def test_few_all_reduces_are_no_matter_even_if_nothing_is_known_of_them():
    silent(too_many_buckets, run(unmatched(all_reduces(19))))


def test_a_step_without_communication_is_no_matter():
    silent(too_many_buckets, run([], exposed=0))
