"""The line about the link: what it crosses, on which edges, and how much of its bandwidth was reached."""

from __future__ import annotations

import pytest

from nsyspipe.analysis.links import SlowestLink
from nsyspipe.findings.slow_link import LACKING, LinkVerdict
from nsyspipe.report.words import link_text


def verdict(*, nominal=63e9, text="SHM through host memory", n_edges=4, **reached):
    link = SlowestLink("shm", 3, 0, nominal, text, 2, 0, n_edges, is_of_ring=True)
    return LinkVerdict(True, True, False, text, LACKING, {}, link, **reached)


PAYLOAD = {"busbw_bytes_per_s": 25e9, "busbw_source": "payload"}
COPIES = {"busbw_bytes_per_s": 25e9, "busbw_source": "gradient copies"}


@pytest.mark.parametrize(
    ("nominal", "reached", "said"),
    [
        (63e9, PAYLOAD, "; bus bandwidth 25.00 GB/s of 63.00 GB/s nominal"),
        (63e9, COPIES, "; bus bandwidth about 25.00 GB/s of 63.00 GB/s nominal"),
        (None, COPIES, "; bus bandwidth about 25.00 GB/s"),
        (63e9, {}, "; nominal 63.00 GB/s"),
        (None, {}, ""),
    ],
)
def test_what_is_measured_and_what_is_estimated(nominal, reached, said):
    found = link_text(verdict(nominal=nominal, **reached))
    assert found == f"link: SHM through host memory; 2 of 4 edges, rank 3 to 0 first{said}"


def test_words_make_room_for_figures():
    found = link_text(verdict(text=300 * "x", n_edges=128, **COPIES))
    assert len(found) == 185
    assert found.endswith(
        "x...; 2 of 128 edges, rank 3 to 0 first; bus bandwidth about 25.00 GB/s of 63.00 GB/s nominal"
    )


def test_nothing_is_said_of_a_link_that_is_not_known():
    assert link_text(None) is None
    assert link_text(LinkVerdict(None, False, False, "", LACKING, {}, **COPIES)) is None
