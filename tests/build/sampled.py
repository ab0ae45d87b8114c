"""A small run of two ranks with hardware counters of both GPUs and samples of Python."""

from pathlib import Path
from typing import Any

import nsyspipe
from nsyspipe.run.run import Run
from tests.build.nccl_layouts import NCCL_2_21
from tests.build.python_samples import sample, with_domain
from tests.build.trace import TraceBuilder

VERSION = "3.25.0 2026.2.1 mfu"
# Of reports with the tables of counters.
COUNTED_VERSION = "3.20.3 2025.3.2"
US = 1000
STEP = 1000 * US
PERIOD = 100 * US
MESSAGE_BYTES = 38_250_000
LINES = [
    ("loss", "/job/train.py", 43),
    ("load", "/job/data.py", 7),
    ("<module>", "/job/train.py", 60),
]
MODULE = LINES[-1]
# Of each tenth of a step, in per cent.
SMS = [80] * 6 + [20] * 2 + [0] * 2
SENT = [0] * 6 + [50] * 2 + [0] * 2
READ = [25] * 10
WRITTEN = [10] * 5 + [0] * 5
NVLINK = "NVLink {} Requests User Data [Throughput %]"


def sampled_rank(number: int, *, n_steps: int = 6) -> TraceBuilder:
    """Return a rank: per step 600 us of compute, 200 us of all-reduce, and 200 us of nothing.

    Its main thread is at one line for half of each step, then at another, and once in a step at
    a third.
    """
    builder = with_domain(TraceBuilder(VERSION, pid=1000 + number)).domain("NCCL", 1)
    builder.schema = TraceBuilder(COUNTED_VERSION).schema | builder.schema
    builder.env(RANK=number, WORLD_SIZE=2, LOCAL_RANK=number).session(10**18).host("node0")
    for gpu in range(2):
        bus = {"uuid": f"uuid-{gpu}", "busLocation": f"0000:0{gpu}:00.0"}
        builder.gpu(gpu, "NVIDIA H200", memoryBandwidth=4 * 10**12, **bus)
    for step in range(n_steps):
        at = STEP * step
        builder.range(at, at + 900 * US, f"step {step}")
        builder.range(at + 10, at + 50, "forward").range(at + 60, at + 160, "backward")
        builder.kernel(at + US, at + 301 * US, launch=at + 20, device=number)
        builder.kernel(at + 301 * US, at + 601 * US, launch=at + 70, device=number)
        message = {"NCCL communicator ID": 7, "Message size [bytes]": MESSAGE_BYTES}
        builder.nccl_payload(at + 79, "ncclAllReduce", message, NCCL_2_21, end=at + 85)
        builder.nccl(at + 601 * US, at + 801 * US, launch=at + 80, device=number)
        for place in range(20):
            line = LINES[place >= 10] if place else MODULE
            frames = (line,) if line is MODULE else (line, MODULE)
            sample(builder, at + US + 50 * US * place, *frames)
    return builder


def per_period(values: list[int], *, n_steps: int = 6) -> dict[int, int]:
    """Return samples: each value for a period of each step."""
    samples = {}
    for place in range(n_steps * len(values)):
        samples[US + PERIOD * place] = values[place % len(values)]
    return samples


def sampled_ranks() -> list[TraceBuilder]:
    """Return two ranks, of which the first counts for both GPUs. Nothing counts PCIe."""
    builders = [sampled_rank(number) for number in range(2)]
    counters = {
        "SMs Active [Throughput %]": SMS,
        "DRAM Read Bandwidth [Throughput %]": READ,
        "DRAM Write Bandwidth [Throughput %]": WRITTEN,
        NVLINK.format("RX"): SENT,
        NVLINK.format("TX"): SENT,
    }
    for gpu in range(2):
        for name, values in counters.items():
            builders[0].counter(name, per_period(values), gpu=gpu)
    return builders


def sampled_run(folder: Path, **options: Any) -> Run:
    """Return the run of the two ranks."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for number, builder in enumerate(sampled_ranks()):
        paths.append(builder.write(folder / f"sampled_{number}.sqlite"))
    return nsyspipe.load(paths, **options)
