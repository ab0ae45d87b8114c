"""Make large reports that look like those of a DDP run's ranks: a million kernels in a few seconds.

    python -m tests.build.synthetic OUT.sqlite --kernels 1000000 --steps 1000 --rank 0 --ranks 8

Per step: forward (a third of the launches), backward (60 %, from the autograd thread), optimizer, each
ended by a synchronising call; before one step in eight the data are waited for. Forward and backward
repeat layers of the same kernels, which take 10 % longer under communication. NVTX is nested four
deep: step, phase, layer, op; one range per five kernels. The device has a compute stream, two NCCL
streams (8 % of kernels) and a copy stream (one copy per 20 kernels). Rows stand in order of launch, so
not of device start. Reports of the same kernels, steps and ranks are one run: in each step every rank
has the same collectives, arrives when it does, and ends them with the others within 3 us. The
sessions of the ranks start 5 ms apart, and what the reports say of that is up to 0.4 ms wrong.
"""

from __future__ import annotations

import argparse
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.build.synthetic_times import (
    BACKWARD,
    COMM,
    COPY,
    N_COMPUTE_NAMES,
    SYNC,
    Program,
    Times,
    clock_errors,
    program,
    rank_times,
)
from tests.build.trace import KERNEL, MEMCPY, NVTX, RUNTIME, STRINGS, schemas

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Int64 = NDArray[np.int64]

_VERSION = "3.13.2 2024.5.1"
_CAPTURE, _SESSION = "META_DATA_CAPTURE", "TARGET_INFO_SESSION_START_TIME"
_PHASES = ("forward", "backward", "optimizer step")
_LOADING = "get batch"
_N_LAYERS, _N_OPS = 32, 40
_APIS = ("cudaLaunchKernel_v7000", "cudaMemcpyAsync_v3020", "cudaStreamSynchronize_v3020", "cudaEventSynchronize_v3020")
# Name, grid and block; names take turns, and of the same name later ones have larger grids.
_FAMILIES = (
    ("ampere_bf16_s16816gemm_bf16_{}x128_ldg8_f2f_stages_64x3_tn", (16, 8, 1), (128, 1, 1)),
    ("void at::native::vectorized_elementwise_kernel<4, op_{}>(int, T)", (1024, 1, 1), (128, 1, 1)),
    ("void flash_fwd_kernel<Flash_kernel_traits<64, {}>>(Params)", (4, 16, 12), (128, 1, 1)),
    ("void at::native::reduce_kernel<512, {}, ReduceOp<float>>(T)", (96, 2, 1), (32, 16, 1)),
)
_OPTIMIZER_FAMILY = ("void at::native::multi_tensor_apply_kernel<adam_{}>", (320, 1, 1), (512, 1, 1))
_N_OPTIMIZER_NAMES = 4
_COMM_KERNELS = (
    ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", (24, 1, 1), (544, 1, 1)),
    ("ncclDevKernel_AllReduce_Sum_bf16_TREE_LL", (16, 1, 1), (512, 1, 1)),
    ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", (24, 1, 1), (544, 1, 1)),
    ("ncclDevKernel_AllGather_RING_LL", (8, 1, 1), (640, 1, 1)),
)


def generate(path: Path, n_kernels: int, n_steps: int, rank: int = 0, n_ranks: int = 8) -> Path:
    """Write one report; a step has at least 30 kernels."""
    if n_kernels < 30 * n_steps:
        raise ValueError(f"{n_kernels} kernels are too few for {n_steps} steps")
    run = program(n_kernels, n_steps)
    rng = np.random.default_rng(rank)
    n_bytes = rng.integers(4, 1 << 24, run.kind.size)
    times = rank_times(run, rank, n_ranks, 1500 + n_bytes // 500)
    session = 5_000_000 * rank
    times = times._replace(**{name: getattr(times, name) - session for name in times._fields[:4]})

    pid = 4000 + rank
    process = (1 << 56) + (pid << 24)
    thread = process + pid + np.where((run.phase == BACKWARD) & (run.kind != SYNC), 77, 0)
    kernels = _kernel_names()
    texts = [name for name, *_ in kernels] + [*_APIS, *_PHASES, _LOADING]
    texts += [f"layer{i}" for i in range(_N_LAYERS)] + [f"aten::op_{i}" for i in range(_N_OPS)]
    ids = {text: number for number, text in enumerate(texts, start=1)}
    correlation = np.arange(run.kind.size) * 2 + 1001
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA journal_mode = OFF")
        for table in (STRINGS, KERNEL, MEMCPY, RUNTIME, NVTX, _CAPTURE, _SESSION):
            columns = ", ".join(f'"{name}" {kind}' for name, kind in schemas()[_VERSION][table].items())
            database.execute(f"CREATE TABLE {table} ({columns})")
        _put(database, STRINGS, id=np.arange(len(ids)) + 1, value=list(ids))
        common = {"start": times.start, "end": times.end, "deviceId": rank % 8, "contextId": 1,
                  "streamId": run.stream, "correlationId": correlation, "globalPid": process}  # fmt: skip
        shapes = np.array([grid + block for _, grid, block in kernels]).T[:, run.name - 1]
        axes = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")
        _put(database, KERNEL, where=run.kind <= COMM, **common, demangledName=run.name, shortName=run.name,
             **dict(zip(axes, shapes, strict=True)))  # fmt: skip
        copy_kind = rng.choice([1, 2, 8], run.kind.size)
        _put(database, MEMCPY, where=run.kind == COPY, **common, bytes=n_bytes, copyKind=copy_kind)
        api = np.array([ids[name] for name in (_APIS[0], *_APIS[:3])])[run.kind]
        api[(run.kind == SYNC) & (run.phase == BACKWARD)] = ids[_APIS[3]]
        _put(database, RUNTIME, start=times.called, end=times.returned, globalTid=thread,
             correlationId=correlation, nameId=api)  # fmt: skip
        _put_ranges(database, ids, run, times, process + pid, thread)
        _put(database, _CAPTURE, name=["PROCESS_0:ENVIRONMENT_VARIABLE"], value=[f'RANK="{rank}"'])
        epoch = 10**18 + session + int(clock_errors(n_ranks)[rank])
        _put(database, _SESSION, utcEpochNs=[epoch], utcTime=[""], localTime=[""])
        database.commit()
    return path


def _kernel_names() -> list[tuple[str, tuple[int, ...], tuple[int, ...]]]:
    """Return name, grid and block of each kernel that a `Program` names."""
    n_others = N_COMPUTE_NAMES - _N_OPTIMIZER_NAMES
    turns = [(_FAMILIES[i % len(_FAMILIES)], i // len(_FAMILIES) + 1) for i in range(n_others)]
    turns += [(_OPTIMIZER_FAMILY, turn) for turn in range(1, _N_OPTIMIZER_NAMES + 1)]
    named = [(name.format(turn), (grid[0] * turn, *grid[1:]), block) for (name, grid, block), turn in turns]
    return [*named, *_COMM_KERNELS]


def _put_ranges(
    database: sqlite3.Connection, ids: dict[str, int], run: Program, times: Times, main_thread: int, thread: Int64
) -> None:
    """Write step, data loading, phase, layer and op ranges; the last two on the thread that launches."""

    def groups(*keys: Int64) -> tuple[Int64, Int64]:
        edge = np.flatnonzero(np.any([np.diff(key, prepend=-1) != 0 for key in keys], axis=0))
        return edge, np.append(edge[1:], run.step.size) - 1

    def put(start: Int64, end: Int64, on: Int64 | int, **text: Any) -> None:
        _put(database, NVTX, start=start, end=end, eventType=59, globalTid=on, domainId=0, **text)

    called, returned = times.called, times.returned
    first, last = groups(run.step)
    opened = called[first] - times.loading
    texts = [f"step {i}" for i in run.step[first].tolist()]
    put(opened - 50, returned[last] + 50, main_thread, text=texts)
    is_loading = times.loading > 0
    put(opened[is_loading], called[first[is_loading]] - 40, main_thread, textId=ids[_LOADING])
    first, last = groups(run.step, run.phase)
    named = np.array([ids[text] for text in _PHASES])[run.phase[first]]
    put(called[first] - 30, returned[last] + 30, main_thread, textId=named)
    is_sync = (run.kind == SYNC).astype(np.int64)
    for margin, number, base, n_names in ((20, run.layer, "layer0", _N_LAYERS), (10, run.op, "aten::op_0", _N_OPS)):
        first, last = groups(run.step, run.phase, is_sync, number)
        named = ids[base] + number[first] % n_names
        put(called[first] - margin, returned[last] + margin, thread[first], textId=named)


def _put(database: sqlite3.Connection, table: str, where: NDArray[np.bool_] | None = None, **columns: Any) -> None:
    """Insert columns: arrays or lists of one length, and constants; what the table requires besides is 0."""
    required = {name: 0 for name, kind in schemas()[_VERSION][table].items() if "NOT NULL" in kind}
    columns = required | columns
    size = next(len(values) for values in columns.values() if isinstance(values, np.ndarray | list))
    keep = np.arange(size) if where is None else np.flatnonzero(where)
    names = ", ".join(f'"{name}"' for name in columns)
    marks = ", ".join("?" * len(columns))
    for begin in range(0, keep.size, 50_000):
        rows = keep[begin : begin + 50_000]
        lists = [
            values[rows].tolist() if isinstance(values, np.ndarray)
            else [values[row] for row in rows.tolist()] if isinstance(values, list)
            else [values] * rows.size
            for values in columns.values()
        ]  # fmt: skip
        database.executemany(f"INSERT INTO {table} ({names}) VALUES ({marks})", zip(*lists, strict=True))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--kernels", type=int, default=100_000)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--ranks", type=int, default=8)
    given = parser.parse_args()
    generate(given.out, given.kernels, given.steps, given.rank, given.ranks)
