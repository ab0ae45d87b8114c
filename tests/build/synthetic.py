"""Make large reports that look like a DDP rank's: a million kernels in a few seconds.

    python -m tests.build.synthetic OUT.sqlite --kernels 1000000 --steps 1000 --rank 0

Per step: forward (a third of the launches), backward (60 %, from the autograd thread), optimizer. NVTX
is nested four deep: step, phase, layer, op; one range per five kernels. The device has a compute
stream, two NCCL streams (8 % of kernels) and a copy stream (one copy per 20 kernels). Rows stand in
order of launch, so not of device start. Collectives of different ranks do not match.
"""

from __future__ import annotations

import argparse
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tests.build.trace import KERNEL, MEMCPY, NVTX, RUNTIME, STRINGS, schemas

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Int64 = NDArray[np.int64]

_VERSION = "3.13.2 2024.5.1"
_FORWARD, _BACKWARD, _OPTIMIZER = range(3)
_PHASES = ("forward", "backward", "optimizer step")
_COMPUTE, _COMM, _COPY = range(3)
_NCCL = [
    f"ncclDevKernel_{op}_{kind}_RING_LL"
    for op in ("AllReduce_Sum", "AllGather")
    for kind in ("f32", "bf16")
]
_N_COMPUTE_NAMES = 160
_LAUNCHES_PER_OP, _OPS_PER_LAYER = 6, 8


def generate(path: Path, n_kernels: int, n_steps: int, rank: int = 0) -> Path:
    """Write one report."""
    rng = np.random.default_rng(rank)
    n_launches = n_kernels + n_kernels // 20
    step = np.arange(n_launches) * n_steps // n_launches
    _, first, count = np.unique(step, return_index=True, return_counts=True)
    place = (np.arange(n_launches) - first[step]) / count[step]
    phase = np.where(place < 0.33, _FORWARD, np.where(place < 0.93, _BACKWARD, _OPTIMIZER))
    kind = _kinds(rng, n_launches, n_kernels, phase)
    called, returned = _host_times(rng, step)
    start, end, stream = _device_times(rng, kind, returned)

    pid = 4000 + rank
    process = (1 << 56) + (pid << 24)
    thread = process + pid + np.where(phase == _BACKWARD, 77, 0)
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA journal_mode = OFF")
        for table in (
            STRINGS,
            KERNEL,
            MEMCPY,
            RUNTIME,
            NVTX,
            "META_DATA_CAPTURE",
            "TARGET_INFO_SESSION_START_TIME",
        ):
            definitions = ", ".join(
                f'"{name}" {kind_}' for name, kind_ in schemas()[_VERSION][table].items()
            )
            database.execute(f"CREATE TABLE {table} ({definitions})")
        names = [
            f"void at::native::elementwise_kernel_{i}<float, 4>(int, T)"
            for i in range(_N_COMPUTE_NAMES)
        ] + _NCCL
        texts = ["cudaLaunchKernel_v7000", "cudaMemcpyAsync_v3020", *_PHASES]
        texts += [f"layer{i}" for i in range(32)] + [f"aten::op_{i}" for i in range(40)]
        ids = {text: number for number, text in enumerate([*names, *texts], start=1)}
        _put(database, STRINGS, id=list(ids.values()), value=list(ids))
        common = {"start": start, "end": end, "deviceId": rank, "contextId": 1, "streamId": stream,
                  "correlationId": np.arange(n_launches) * 2 + 1001, "globalPid": process}  # fmt: skip
        is_copy = kind == _COPY
        compute_name = (
            np.minimum((rng.pareto(0.9, n_launches) * 6).astype(np.int64), _N_COMPUTE_NAMES - 1) + 1
        )
        comm_name = rng.integers(_N_COMPUTE_NAMES + 1, len(names) + 1, n_launches)
        name = np.where(kind == _COMM, comm_name, compute_name)
        _put(
            database,
            KERNEL,
            where=~is_copy,
            **common,
            demangledName=name,
            shortName=name,
            gridX=rng.integers(1, 8192, n_launches),
            blockX=128,
        )
        _put(
            database,
            MEMCPY,
            where=is_copy,
            **common,
            bytes=rng.integers(4, 1 << 24, n_launches),
            copyKind=rng.choice([1, 2, 8], n_launches),
        )
        _put(database, RUNTIME, start=called, end=returned, globalTid=thread, correlationId=common["correlationId"],
             nameId=ids["cudaLaunchKernel_v7000"] + is_copy, eventClass=0, returnValue=0)  # fmt: skip
        _put_ranges(database, ids, step, phase, called, returned, process + pid, thread)
        _put(
            database,
            "META_DATA_CAPTURE",
            name=["PROCESS_0:ENVIRONMENT_VARIABLE"],
            value=[f'RANK="{rank}"'],
        )
        _put(
            database,
            "TARGET_INFO_SESSION_START_TIME",
            utcEpochNs=[10**18 + rank],
            utcTime=[""],
            localTime=[""],
        )
        database.commit()
    return path


def _kinds(rng: np.random.Generator, n_launches: int, n_kernels: int, phase: Int64) -> Int64:
    order = rng.permutation(n_launches)
    kind = np.full(n_launches, _COMPUTE)
    kind[order[: n_launches - n_kernels]] = _COPY
    likely = np.where(phase == _BACKWARD, 0.11, 0.04)
    kind[(kind == _COMPUTE) & (rng.random(n_launches) < likely)] = _COMM
    return kind


def _host_times(rng: np.random.Generator, step: Int64) -> tuple[Int64, Int64]:
    length = rng.integers(2500, 6000, step.size)
    pause = rng.integers(500, 3000, step.size) + 400_000 * np.diff(step, prepend=-1)
    returned = 10_000_000_000 + np.cumsum(length + pause)
    return returned - length, returned


def _device_times(
    rng: np.random.Generator, kind: Int64, returned: Int64
) -> tuple[Int64, Int64, Int64]:
    """Queue the operations on their streams: each starts when it has arrived and the one before has ended."""
    length = np.clip(rng.lognormal(8.4, 0.8, kind.size), 1000, 400_000).astype(np.int64)
    long = np.clip(rng.lognormal(10.6, 0.7, kind.size), 5000, 3_000_000).astype(np.int64)
    length = np.where(kind == _COMM, long, length)
    stream = np.select(
        [kind == _COPY, kind == _COMM], [14, np.where(rng.random(kind.size) < 0.7, 20, 24)], 7
    )
    arrival = returned + rng.integers(4000, 12000, kind.size)
    start = np.empty(kind.size, np.int64)
    for one in (7, 14, 20, 24):
        own = np.flatnonzero(stream == one)
        before = np.cumsum(length[own]) - length[own]
        start[own] = before + np.maximum.accumulate(arrival[own] - before)
    return start, start + length, stream


def _put_ranges(database, ids, step, phase, called, returned, main_thread, thread) -> None:
    """Write step, phase, layer and op ranges; the last two on the thread that launches."""

    def groups(*keys: Int64) -> tuple[Int64, Int64]:
        edge = np.flatnonzero(np.any([np.diff(key, prepend=-1) != 0 for key in keys], axis=0))
        return edge, np.append(edge[1:], step.size) - 1

    number = np.arange(step.size)
    first, last = groups(step)
    texts = [f"step {i}" for i in step[first].tolist()]
    _put(
        database,
        NVTX,
        start=called[first] - 50,
        end=returned[last] + 50,
        eventType=59,
        text=texts,
        globalTid=main_thread,
        domainId=0,
    )
    first, last = groups(step, phase)
    named = np.array([ids[text] for text in _PHASES])[phase[first]]
    _put(
        database,
        NVTX,
        start=called[first] - 30,
        end=returned[last] + 30,
        eventType=59,
        textId=named,
        globalTid=main_thread,
        domainId=0,
    )
    for margin, size, base, n_names in (
        (20, _LAUNCHES_PER_OP * _OPS_PER_LAYER, "layer0", 32),
        (10, _LAUNCHES_PER_OP, "aten::op_0", 40),
    ):
        first, last = groups(step, phase, number // size)
        named = ids[base] + np.arange(first.size) % n_names
        _put(
            database,
            NVTX,
            start=called[first] - margin,
            end=returned[last] + margin,
            eventType=59,
            textId=named,
            globalTid=thread[first],
            domainId=0,
        )


def _put(
    database: sqlite3.Connection,
    table: str,
    where: NDArray[np.bool_] | None = None,
    **columns: object,
) -> None:
    """Insert columns: arrays or lists of one length, and constants; what the table requires besides is 0."""
    required = {name: 0 for name, kind in schemas()[_VERSION][table].items() if "NOT NULL" in kind}
    columns = required | columns
    size = next(len(values) for values in columns.values() if isinstance(values, np.ndarray | list))
    keep = np.arange(size) if where is None else np.flatnonzero(where)
    lists = []
    for values in columns.values():
        if isinstance(values, np.ndarray):
            lists.append(values[keep].tolist())
        else:
            lists.append(values if isinstance(values, list) else [values] * keep.size)
    names = ", ".join(f'"{name}"' for name in columns)
    database.executemany(
        f"INSERT INTO {table} ({names}) VALUES ({', '.join('?' * len(columns))})",
        zip(*lists, strict=True),
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--kernels", type=int, default=100_000)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rank", type=int, default=0)
    arguments = parser.parse_args()
    generate(arguments.out, arguments.kernels, arguments.steps, arguments.rank)
