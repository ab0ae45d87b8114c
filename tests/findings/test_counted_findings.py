"""Findings that hardware counters support: the figures and words that they add, and when they add none."""

import pytest

from nsyspipe.findings.communication import comm_bound
from nsyspipe.findings.slow_link import slow_link
from nsyspipe.findings.straggler import straggler
from nsyspipe.model import schema
from tests.findings.make import collective, evidence, link, steps

NAMES = ("counted_link", "counted_bytes_per_s", "counted_ratio")
SHM = link("shm", "SHM/direct/direct", "NV18", nominal=63e9)
# Of each rank, in steps of 5000 ns: an all-reduce of 1000 ns, and 25 000 bytes on its bus.
BUS_BYTES = 25_000
STEP = 5000


def counters(*, ratio=1.0, phase=None, n_ranks=2, **figures):
    """Return the counters of a step of each rank, sampled for a share of it."""
    rows = []
    for rank in range(n_ranks):
        place = {"rank": rank, "step": 1, "phase": phase, "lag_ns": 0, "window_ns": STEP}
        sampled = {"sampled_ns": round(ratio * STEP), "sampled_ratio": ratio}
        rows.append(place | sampled | figures)
    return schema.COUNTERS.from_rows(rows)


def run(counted, *, sized=True, exposed=1000):
    sizes = {"message_bytes": 16_000_000, "bus_bytes": BUS_BYTES} if sized else {}
    met = collective(1, (0, 0), 1000, **sizes)
    rows = steps(2, wall=STEP, exposed=exposed)
    return evidence(rows, met, links=[SHM], gpu_names=("NVIDIA H200",), counters=counted)


def counted_of(finding):
    return {name: finding.evidence[name] for name in NAMES if name in finding.evidence}


RULES = pytest.mark.parametrize("rule", [comm_bound, slow_link])
ON_NVLINK = {"nvlink_rx_bytes": 20_000, "nvlink_tx_bytes": 30_000}
ON_PCIE = {"nvlink_rx_bytes": 0, "nvlink_tx_bytes": 0, "pcie_rx_bytes": 50_000}


@RULES
def test_the_larger_direction_of_the_link_counts(rule, worded):
    found = rule(run(counters(**ON_NVLINK)))
    # 30 000 bytes in the 1000 ns of transfer, of 25 000 that sizes tell.
    assert counted_of(found) == {
        "counted_link": "nvlink",
        "counted_bytes_per_s": 30e9,
        "counted_ratio": 1.2,
    }
    worded(found.title)


@RULES
def test_pcie_counts_if_nvlink_carried_nothing(rule):
    found = counted_of(rule(run(counters(**ON_PCIE))))
    assert (found["counted_link"], found["counted_bytes_per_s"]) == ("pcie", 50e9)


@RULES
def test_without_sizes_there_is_no_ratio(rule):
    found = counted_of(rule(run(counters(**ON_NVLINK), sized=False)))
    assert (found["counted_bytes_per_s"], found["counted_ratio"]) == (30e9, None)


@RULES
def test_a_step_needs_samples_in_99_per_cent_of_its_time(rule):
    assert counted_of(rule(run(counters(ratio=0.99, **ON_NVLINK))))
    assert not counted_of(rule(run(counters(ratio=0.989, **ON_NVLINK))))


@RULES
@pytest.mark.parametrize(
    "counted",
    [
        schema.COUNTERS.empty(),
        counters(nvlink_rx_bytes=0, nvlink_tx_bytes=0),
        counters(sm_active_percent=50.0),
        counters(phase="backward", **ON_NVLINK),
    ],
    ids=["no counters", "no traffic", "no counter of a link", "a phase alone"],
)
def test_without_counted_traffic_a_finding_has_neither_figures_nor_words(rule, counted):
    found = rule(run(counted))
    assert counted_of(found) == {}
    assert found.title == rule(run(schema.COUNTERS.empty())).title


def test_counters_make_no_finding_of_their_own():
    # 4 % of a step are no finding, whatever the link carried.
    assert comm_bound(run(counters(**ON_NVLINK), exposed=200)) is None


LATE = 300


def late_run(*clocks_mhz):
    """Return steps in which rank 1 comes 300 ns late to each collective, and the clocks of ranks."""
    rows, met, counted = [], [], []
    for number in range(1, 6):
        rows += steps(3, number, wall=STEP, exposed=500 + LATE, wait=LATE)
        met += collective(number, (0, LATE, 0), 500 + LATE)
        for rank, clock_mhz in enumerate(clocks_mhz):
            place = {"rank": rank, "step": number, "lag_ns": 0}
            sampled = {"window_ns": STEP, "sampled_ns": STEP, "sampled_ratio": 1.0}
            clock_hz = None if clock_mhz is None else 1e6 * clock_mhz
            counted.append(place | sampled | {"gpc_clock_hz": clock_hz})
    return evidence(rows, met, counters=schema.COUNTERS.from_rows(counted))


def test_a_straggler_with_a_lower_clock_has_both_clocks(worded):
    found = straggler(late_run(2000, 1900, 1980))
    assert (found.evidence["clock_hz"], found.evidence["others_clock_hz"]) == (1.9e9, 1.99e9)
    worded(found.title)


@pytest.mark.parametrize(
    ("clock_mhz", "is_slow"), [(1960, True), (1961, False)], ids=["2 % lower", "less"]
)
def test_a_clock_explains_a_straggler_from_two_per_cent_on(clock_mhz, is_slow):
    found = straggler(late_run(2000, clock_mhz, 2000))
    assert ("clock_hz" in found.evidence) == is_slow


@pytest.mark.parametrize(
    "clocks_mhz", [(), (2000,), (2000, None, 2000), (None, 1000, None)], ids=str
)
def test_a_clock_that_was_not_counted_is_no_reason(clocks_mhz):
    assert "clock_hz" not in straggler(late_run(*clocks_mhz)).evidence
