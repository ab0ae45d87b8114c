"""Hardware counters of a real capture of two GPUs, against an oracle that reads the report on its own."""

import sqlite3
from contextlib import closing

import pytest

import nsyspipe
from nsyspipe.report.export import document
from tests.property.counter_oracle import NAMES, counted, held_samples, integral

pytestmark = pytest.mark.slow

# What 100 % is: 18 links of 26.5625 GB/s, 16 lanes of 32 GT/s x 128 / 130, and the report's own
# bandwidth of GPU memory.
NVLINK = 478_125_000_000
PCIE = 16 * 32 * 10**9 // 8 * 128 // 130
MEMORY = 4_814_304_000_000
RATES = {"dram": MEMORY, "nvlink": NVLINK, "pcie": PCIE}
# All-reduces of a step, in bytes. A ring of two GPUs sends 2 (n - 1) / n of each: as many.
MESSAGES = 665_231_360


@pytest.fixture(scope="module")
def path(real):
    return real / "2gpu-counters.sqlite"


@pytest.fixture(scope="module")
def run(path):
    return nsyspipe.load(path, jobs=1)


@pytest.fixture(scope="module")
def steps(run):
    """Return the counters of whole steps, with the window of each."""
    windows = {(row["rank"], row["step"]): row for row in run.steps().to_pylist()}
    found = []
    for row in run.counters().to_pylist():
        if row["phase"] is None:
            step = windows[row["rank"], row["step"]]
            found.append(row | {"window": (step["start_ns"], step["end_ns"])})
    return found


@pytest.fixture(scope="module")
def expected(path, steps):
    windows = {}
    for row in steps:
        windows.setdefault(row["rank"], []).append(row["window"])
    return counted(path, sorted(windows), windows)


def test_the_lag_is_that_of_the_oracle(steps, expected):
    _, lag_ns = expected
    assert {row["lag_ns"] for row in steps} == {lag_ns}


def test_each_figure_of_each_step_is_that_of_the_oracle(steps, expected):
    figures, _ = expected
    assert len(steps) > 8
    for row in steps:
        for name, (total, sampled_ns) in figures[row["rank"], row["window"]].items():
            if name == "gpc_clock":
                continue
            mean = total / sampled_ns if sampled_ns else None
            assert row[f"{name}_percent"] == pytest.approx(mean), (name, row["step"])
            rate = RATES.get(name.partition("_")[0])
            if rate is not None and sampled_ns:
                n_bytes = total * rate // (100 * 10**9)
                assert row[f"{name}_bytes"] == n_bytes, (name, row["step"])


def test_the_clock_of_each_step_is_that_of_the_oracle(steps, expected):
    figures, _ = expected
    for row in steps:
        total, sampled_ns = figures[row["rank"], row["window"]]["gpc_clock"]
        # Samples are whole MHz once they are read.
        mean_hz = total / sampled_ns if sampled_ns else None
        assert row["gpc_clock_hz"] == pytest.approx(mean_hz, abs=500_000)


def test_the_sampled_time_is_the_least_of_all_counters(steps, expected):
    figures, _ = expected
    for row in steps:
        of_counters = figures[row["rank"], row["window"]]
        assert {*of_counters} == {*NAMES}
        assert row["sampled_ns"] == min(sampled_ns for _, sampled_ns in of_counters.values())


def test_nvlink_carries_what_the_messages_of_a_step_need(run, steps):
    in_summary = {row["step"] for row in run.steps().to_pylist() if row["in_summary"]}
    sent = [row["nvlink_tx_bytes"] for row in steps if row["step"] in in_summary]
    assert min(row["sampled_ratio"] for row in steps if row["step"] in in_summary) == 1
    # User data alone: the difference is below 1 %. The rate of data sheets would make it 5.5 %.
    assert sent == [pytest.approx(MESSAGES, rel=0.01)] * len(sent)


def test_the_counted_bandwidth_agrees_with_the_derived_one(run, steps):
    in_summary = {row["step"] for row in run.steps().to_pylist() if row["in_summary"]}
    used = [row for row in steps if row["step"] in in_summary]
    n_bytes = sum(max(row["nvlink_rx_bytes"], row["nvlink_tx_bytes"]) for row in used)
    found = document(run)["counters"]
    assert (found["counted_link"], found["sampled_ratio"]) == ("nvlink", 1)
    assert found["counted_bytes_per_step"] == n_bytes / len(used)
    assert found["counted_ratio"] == pytest.approx(n_bytes / (MESSAGES * len(used)))
    assert found["counted_ratio"] == pytest.approx(1, abs=0.01)
    derived = run.summary()["busbw_bytes_per_s"][0].as_py()
    ratio = found["counted_bytes_per_s"] / derived
    assert ratio == pytest.approx(found["counted_ratio"])


def test_collectives_with_three_samples_have_the_bandwidth_of_the_oracle(path, run, expected):
    _, lag_ns = expected
    n_known = 0
    with closing(sqlite3.connect(path)) as database:
        links = {
            rank: [held_samples(database, rank, name) for name in ("nvlink_rx", "nvlink_tx")]
            for rank in range(2)
        }
    for row in run.collectives().to_pylist():
        start, end = row["start_ns"] + (row["wait_ns"] or 0), row["end_ns"]
        traffic = []
        for samples in links[row["rank"]]:
            total, sampled_ns = integral(samples, start, end, lag_ns)
            n_begun = sum(start <= held.start + lag_ns < end for held in samples)
            is_enough = n_begun >= 3 and sampled_ns == end - start
            traffic.append(total if is_enough else None)
        if None in traffic:
            assert row["counted_bytes_per_s"] is None, row
            continue
        n_known += 1
        bandwidth = max(traffic) * NVLINK / 100 / (end - start)
        assert row["counted_bytes_per_s"] == pytest.approx(bandwidth), row
        assert row["counted_ratio"] == pytest.approx(bandwidth / row["busbw_bytes_per_s"])
    # Most collectives of this program are shorter than three periods.
    assert 20 < n_known < 60
