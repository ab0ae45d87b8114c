"""Hardware counters once more, as slow and plain as possible: SQL, lists and loops over samples.

Written from the docstrings and the page about counters, not from the code, and sharing nothing with
it.
"""

import itertools
import sqlite3
import statistics
from contextlib import closing
from dataclasses import dataclass

NAMES = {
    "sm_active": ["SMs Active [Throughput %]"],
    "tensor_active": ["Tensor Active [Throughput %]"],
    "dram_read": ["DRAM Read Bandwidth [Throughput %]"],
    "dram_write": ["DRAM Write Bandwidth [Throughput %]"],
    "nvlink_rx": [
        f"NVLink RX {kind} User Data [Throughput %]" for kind in ("Requests", "Responses")
    ],
    "nvlink_tx": [
        f"NVLink TX {kind} User Data [Throughput %]" for kind in ("Requests", "Responses")
    ],
    "pcie_rx": ["PCIe RX Throughput [Throughput %]"],
    "pcie_tx": ["PCIe TX Throughput [Throughput %]"],
    "gpc_clock": ["GPC Clock Frequency [MHz]"],
}
VALUES = """select timestamp, sum(value) from GPU_METRICS join
    (select distinct typeId, metricId, metricName from TARGET_INFO_GPU_METRICS) using (typeId, metricId)
    where metricName in ({}) and (typeId & 255) = ? group by timestamp order by timestamp"""
NCCL = """select start, end from CUPTI_ACTIVITY_KIND_KERNEL join StringIds on id = shortName
    where value like 'nccl%' and deviceId = ? order by start"""


@dataclass(frozen=True)
class Held:
    """A sample, and from when to when it holds."""

    start: int
    end: int
    value: int


def held_samples(database, gpu, name):
    """Return the samples of a counter: each holds until the next, but over a gap for one period."""
    texts = NAMES[name]
    query = VALUES.format(", ".join("?" * len(texts)))
    rows = database.execute(query, (*texts, gpu)).fetchall()
    times = [time for time, _ in rows]
    between = [later - time for time, later in itertools.pairwise(times)]
    period = int(statistics.median(between))
    found = []
    for (time, value), length in zip(rows, [*between, period], strict=True):
        holds = length if length <= 2 * period else period
        found.append(Held(time, time + holds, value))
    return found


def integral(samples, start, end, shift=0):
    """Return the sum of value x ns in a window, and how much of the window is sampled."""
    total = sampled = 0
    for held in samples:
        common = min(held.end + shift, end) - max(held.start + shift, start)
        if common > 0:
            total += held.value * common
            sampled += common
    return total, sampled


def comm_times(database, gpu):
    """Return when NCCL's kernels run, without times that two of them have in common."""
    found = []
    for start, end in database.execute(NCCL, (gpu,)):
        if found and start <= found[-1][1]:
            found[-1][1] = max(found[-1][1], end)
        else:
            found.append([start, end])
    return found


def lag(database, gpus):
    """Return the shift of at most three periods with which most NVLink traffic is in NCCL's kernels."""
    sent = {gpu: held_samples(database, gpu, "nvlink_tx") for gpu in gpus}
    comm = {gpu: comm_times(database, gpu) for gpu in gpus}
    period = int(statistics.median([each.end - each.start for each in sent[gpus[0]]]))
    shifts = [quarter * period // 4 for quarter in range(-12, 13)]

    def inside(shift):
        return sum(
            integral([each for each in sent[gpu] if each.value], start, end, shift)[0]
            for gpu in gpus
            for start, end in comm[gpu]
        )

    return max(shifts, key=lambda shift: (inside(shift), -abs(shift)))


def counted(path, gpus, windows):
    """Return, by (GPU, window), the integral and sampled time of each counter, and the lag."""
    with closing(sqlite3.connect(path)) as database:
        shift = lag(database, gpus)
        figures = {}
        for gpu in gpus:
            samples = {name: held_samples(database, gpu, name) for name in NAMES}
            for window in windows[gpu]:
                figures[gpu, window] = {
                    name: integral(each, *window, shift) for name, each in samples.items()
                }
        return figures, shift
