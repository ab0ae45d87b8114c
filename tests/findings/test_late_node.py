"""The host that the others wait for as a whole: worked out for two hosts of two ranks."""

from __future__ import annotations

import pytest

from nsyspipe.findings.straggler import late_node
from nsyspipe.model import schema
from tests.findings.make import collective

HOSTS = {0: "a", 1: "a", 2: "b", 3: "b"}
WORLD = [row for number in (1, 2) for row in collective(number, (0, 10, 100, 103), 400)]
# Rank 2 is late in its group, rank 3 is not in its own.
PAIRS = [
    row | {"rank": rank}
    for comm_id, ranks, starts in (("d0", (0, 2), (0, 100)), ("d1", (1, 3), (0, 0)))
    for rank, row in zip(ranks, collective(1, starts, 400, comm_id=comm_id), strict=True)
]


def late(rows, hosts=HOSTS, error=0):
    node = late_node(schema.COLLECTIVES.from_rows(rows), hosts, error)
    return node and (node.host, node.ranks, node.late_ns.tolist())


@pytest.mark.parametrize(("rows", "options", "expected"), [
    # The first of b comes at 100, the last of a at 10: 90 in each step, although no rank of b is 90 behind the other.
    (WORLD, {}, ("b", (2, 3), [90, 90])),
    (WORLD, {"error": 89}, ("b", (2, 3), [90, 90])),
    (WORLD, {"error": 90}, None),  # the clocks do not tell
    (WORLD, {"error": None}, None),
    (WORLD, {"hosts": {}}, None),
    (WORLD, {"hosts": dict.fromkeys(range(4), "a")}, None),
    (WORLD, {"hosts": {0: "a", 1: "a", 2: "b"}}, None),  # of one rank the host is not known
    # One rank of a host is no host, nor are ranks of which one is late.
    (WORLD, {"hosts": {0: "a", 1: "a", 2: "a", 3: "b"}}, None),
    (PAIRS, {}, None),
    (collective(1, (0, 10, 5, 100), 400), {}, None),
    ([], {}, None),
])  # fmt: skip
def test_a_node_is_late_where_all_its_ranks_are(rows, options, expected):
    assert late(rows, **options) == expected


def test_a_node_says_its_ranks():
    node = late_node(schema.COLLECTIVES.from_rows(WORLD), HOSTS, 0)
    assert node.text == "node b (ranks 2 to 3)"
