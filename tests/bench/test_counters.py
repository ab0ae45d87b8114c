"""Reading three million rows of hardware counters, beside a scan that sums their four columns.

pytest -m bench -n 0 -s tests/bench/test_counters.py
"""

import sqlite3
import time
from contextlib import closing

import pytest

from nsyspipe.reader.facts import read_facts
from nsyspipe.reader.gpu_metrics import read_counters
from nsyspipe.reader.report import open_report
from nsyspipe.reader.tables import fetch_rows
from tests.build.trace import COUNTER_TYPE, steady_rank

pytestmark = pytest.mark.bench
N_ROWS = 3_000_000
# nsys samples 30 counters of a GPU. Eleven of them are read.
N_METRICS = 30
NAMES = (
    "GPC Clock Frequency [MHz]",
    "SMs Active [Throughput %]",
    "Tensor Active [Throughput %]",
    "DRAM Read Bandwidth [Throughput %]",
    "DRAM Write Bandwidth [Throughput %]",
    "NVLink RX Requests User Data [Throughput %]",
    "NVLink RX Responses User Data [Throughput %]",
    "NVLink TX Requests User Data [Throughput %]",
    "NVLink TX Responses User Data [Throughput %]",
    "PCIe RX Throughput [Throughput %]",
    "PCIe TX Throughput [Throughput %]",
)
MAX_RATIO = 3
N_REPEATS = 3
SUMS = (
    "SELECT total(timestamp), total(typeId), total(metricId), total(value) FROM GPU_METRICS "
    "NOT INDEXED"
)


@pytest.fixture
def report(tmp_path):
    builder = steady_rank(0)
    for name in NAMES:
        builder.counter(name, {})
    builder.counter(NAMES[0], {0: 0})
    path = builder.write(tmp_path / "r_0.sqlite")
    with closing(sqlite3.connect(path)) as database:
        rows = (
            (100_000 * (row // N_METRICS), COUNTER_TYPE, row % N_METRICS, row % 101)
            for row in range(N_ROWS)
        )
        database.executemany("INSERT INTO GPU_METRICS VALUES (?, ?, ?, ?)", rows)
        database.commit()
    return path


def test_three_million_rows_cost_at_most_three_scans(report):
    ratios = []
    with open_report(report) as opened:
        facts = read_facts(opened)
        for _ in range(N_REPEATS):
            begin = time.perf_counter()
            fetch_rows(opened._connection, SUMS)
            after_scan = time.perf_counter()
            counters = read_counters(opened, facts)
            scan_s = after_scan - begin
            read_s = time.perf_counter() - after_scan
            ratios.append(read_s / scan_s)
            print(f"scan {scan_s:.2f} s, read {read_s:.2f} s, ratio {ratios[-1]:.2f}")
    assert len(counters.gpus[0].series) == 9
    assert min(ratios) <= MAX_RATIO
