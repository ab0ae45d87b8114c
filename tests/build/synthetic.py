"""Make large reports that look like those of a DDP run's ranks: a million kernels in a few seconds.

Per step: forward (a third of the launches), backward (60 %, from the autograd thread), optimizer,
each ended by a long collective and a call that waits for it; before one step in eight the data are
waited for. Layers repeat the same kernels, which take 10 % longer under communication. NVTX is
nested four deep: step, phase, layer, op; one range per five kernels. The device has a compute
stream, two NCCL streams (8 % of kernels) and a copy stream (one copy per 20 kernels). Reports of
the same kernels, steps and ranks are one run: each operation has its place on a clock of all ranks,
which a rank begins up to 10 us late; a collective ends everywhere within 3 us. The sessions of the
ranks start 5 ms apart, and what the reports say of that is up to 0.4 ms wrong.
"""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tests.build.trace import KERNEL, MEMCPY, NVTX, RUNTIME, STRINGS, schemas

Int64 = NDArray[np.int64]

_VERSION, _RUN = "3.13.2 2024.5.1", 7
_CAPTURE, _SESSION = "META_DATA_CAPTURE", "TARGET_INFO_SESSION_START_TIME"
_FORWARD, _BACKWARD, _OPTIMIZER = range(3)
_COMPUTE, _COMM, _COPY, _SYNC = range(4)
_PHASES, _LOADING = ("forward", "backward", "optimizer step"), "get batch"
_LAYER = np.array([20, 40, 10])  # kernels of a layer, by phase
_N_LAYERS, _N_OPS, _LAUNCHES_PER_OP = 32, 40, 5
_APIS = (
    "cudaLaunchKernel_v7000",
    "cudaMemcpyAsync_v3020",
    "cudaStreamSynchronize_v3020",
    "cudaEventSynchronize_v3020",
)
# Name, grid and block; names take turns, and of the same name later ones have larger grids.
_FAMILIES = (
    ("ampere_bf16_s16816gemm_bf16_{}x128_ldg8_f2f_stages_64x3_tn", (16, 8, 1), (128, 1, 1)),
    ("void at::native::vectorized_elementwise_kernel<4, op_{}>(int, T)", (1024, 1, 1), (128, 1, 1)),
    ("void flash_fwd_kernel<Flash_kernel_traits<64, {}>>(Params)", (4, 16, 12), (128, 1, 1)),
    ("void at::native::reduce_kernel<512, {}, ReduceOp<float>>(T)", (96, 2, 1), (32, 16, 1)),
)
_OPTIMIZER_FAMILY = (
    "void at::native::multi_tensor_apply_kernel<adam_{}>",
    (320, 1, 1),
    (512, 1, 1),
)
_COMM_KERNELS = (
    ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", (24, 1, 1), (544, 1, 1)),
    ("ncclDevKernel_AllReduce_Sum_bf16_TREE_LL", (16, 1, 1), (512, 1, 1)),
    ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", (24, 1, 1), (544, 1, 1)),
    ("ncclDevKernel_AllGather_RING_LL", (8, 1, 1), (640, 1, 1)),
)
_TURNS = [(_FAMILIES[at % 4], at // 4 + 1) for at in range(48)] + [
    (_OPTIMIZER_FAMILY, at) for at in range(1, 5)
]
_KERNELS = [
    (name.format(turn), (grid[0] * turn, *grid[1:]), block) for (name, grid, block), turn in _TURNS
]
_KERNELS += _COMM_KERNELS
_N_COMPUTE = len(_TURNS)
_NAMES_OF_PHASE = ((0, 16), (16, 48), (48, 52))


class Program(NamedTuple):
    """The launches of every rank, in order: an array each. `name` is 0 for what has none."""

    step: Int64
    phase: Int64
    kind: Int64
    name: Int64
    stream: Int64
    layer: Int64
    op: Int64
    is_last: NDArray[np.bool_]  # the collective that a phase ends with


class Times(NamedTuple):
    """API calls and operations of one rank; `loading` is the time of data loading before each step."""

    called: Int64
    returned: Int64
    start: Int64
    end: Int64
    loading: Int64


def clock_errors(n_ranks: int, seed: int = _RUN) -> Int64:
    """Return by how much each rank's clock is off, after what its report says about it."""
    rng = np.random.default_rng([seed, 1])
    return rng.integers(100_000, 400_000, n_ranks) * rng.choice([-1, 1], n_ranks)


def generate(path: Path, n_kernels: int, n_steps: int, rank: int = 0, n_ranks: int = 8) -> Path:
    """Write one report; a step has at least 30 kernels."""
    if n_kernels < 30 * n_steps:
        raise ValueError(f"{n_kernels} kernels are too few for {n_steps} steps")
    run = _program(n_kernels, n_steps)
    rng = np.random.default_rng(rank)
    n_bytes = rng.integers(4, 1 << 24, run.kind.size)
    session = 5_000_000 * rank
    times = _times(run, rng, 1500 + n_bytes // 500, 10**10 - session)
    pid = 4000 + rank
    process = (1 << 56) + (pid << 24)
    thread = process + pid + np.where((run.phase == _BACKWARD) & (run.kind != _SYNC), 77, 0)
    texts = [name for name, *_ in _KERNELS] + [*_APIS, *_PHASES, _LOADING]
    texts += [f"layer{i}" for i in range(_N_LAYERS)] + [f"aten::op_{i}" for i in range(_N_OPS)]
    ids = {text: number for number, text in enumerate(texts, start=1)}
    correlation = np.arange(run.kind.size) * 2 + 1001
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA journal_mode = OFF")
        for table in (STRINGS, KERNEL, MEMCPY, RUNTIME, NVTX, _CAPTURE, _SESSION):
            columns = ", ".join(
                f'"{name}" {kind}' for name, kind in schemas()[_VERSION][table].items()
            )
            database.execute(f"CREATE TABLE {table} ({columns})")
        _put(database, STRINGS, id=np.arange(len(ids)) + 1, value=list(ids))
        common = {
            "start": times.start,
            "end": times.end,
            "deviceId": rank % 8,
            "contextId": 1,
            "streamId": run.stream,
            "correlationId": correlation,
            "globalPid": process,
        }
        shapes = np.array([grid + block for _, grid, block in _KERNELS]).T[:, run.name - 1]
        axes = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")
        _put(
            database,
            KERNEL,
            where=run.kind <= _COMM,
            **common,
            demangledName=run.name,
            shortName=run.name,
            **dict(zip(axes, shapes, strict=True)),
        )
        copy_kind = rng.choice([1, 2, 8], run.kind.size)
        _put(database, MEMCPY, where=run.kind == _COPY, **common, bytes=n_bytes, copyKind=copy_kind)
        api = np.array([ids[name] for name in (_APIS[0], *_APIS[:3])])[run.kind]
        api[(run.kind == _SYNC) & (run.phase == _BACKWARD)] = ids[_APIS[3]]
        _put(
            database,
            RUNTIME,
            start=times.called,
            end=times.returned,
            globalTid=thread,
            correlationId=correlation,
            nameId=api,
        )
        _put_ranges(database, ids, run, times, process + pid, thread)
        _put(database, _CAPTURE, name=["PROCESS_0:ENVIRONMENT_VARIABLE"], value=[f'RANK="{rank}"'])
        epoch = 10**18 + session + int(clock_errors(n_ranks)[rank])
        _put(database, _SESSION, utcEpochNs=[epoch], utcTime=[""], localTime=[""])
        database.commit()
    return path


def _program(n_kernels: int, n_steps: int) -> Program:
    """Return what a run launches: layers of the same kernels, and collectives among them."""
    rng = np.random.default_rng(_RUN)
    number = np.arange(n_kernels)
    step = number * n_steps // n_kernels
    edge, share = np.searchsorted(step, np.arange(n_steps + 1)), n_kernels // n_steps
    is_late = edge[step + 1] - number <= share * 7 // 100
    phase = np.select(
        [is_late, number - edge[step] < share * 33 // 100], [_OPTIMIZER, _FORWARD], _BACKWARD
    )
    chunk = step * 3 + phase
    place = number - np.searchsorted(chunk, chunk)
    left = np.searchsorted(chunk, chunk, side="right") - 1 - number
    # At least ten other kernels lie between two collectives: they are over by then.
    is_comm = ((place % 12 == 6) & (left >= 10)) | (left == 0)
    comm_name = _N_COMPUTE + rng.integers(0, len(_COMM_KERNELS), n_kernels)
    comm_stream = np.where(rng.random(n_kernels) > 0.7, 24, 20)
    position = np.cumsum(~is_comm) - ~is_comm
    position -= position[number - place]
    table = np.array([rng.integers(*names, _LAYER.max()) for names in _NAMES_OF_PHASE])
    name = np.where(is_comm, comm_name, table[phase, position % _LAYER[phase]]) + 1
    with_copy = (number % 20 == 19) & (left > 0)
    row = np.repeat(number, 1 + with_copy + (left == 0))
    is_kernel = np.diff(row, prepend=-1) > 0
    other = np.where(with_copy, _COPY, _SYNC)
    kind = np.where(is_kernel, np.where(is_comm, _COMM, _COMPUTE)[row], other[row])
    stream = np.select([kind == _COMM, kind == _COMPUTE], [comm_stream[row], 7], 14)
    layer, op = (position // _LAYER[phase])[row], (position // _LAUNCHES_PER_OP)[row]
    named = np.where(is_kernel, name[row], 0)
    return Program(
        step[row], phase[row], kind, named, stream, layer, op, is_last=is_kernel & (left == 0)[row]
    )


def _times(run: Program, own: np.random.Generator, copy_length: Int64, begin: int) -> Times:
    """Return when everything of one rank happens; `own` draws what is the rank's alone."""
    rng = np.random.default_rng([_RUN, 2])
    size, n_steps = run.step.size, int(run.step[-1]) + 1
    loading = rng.integers(100_000, 400_000, n_steps) * (rng.random(n_steps) < 0.125)
    typical = np.clip(rng.lognormal(9.2, 0.7, len(_KERNELS)), 2500, 90_000)[run.name - 1]
    transfer = rng.integers(15_000, 40_000, size) * np.where(run.is_last, 8, 1)
    is_comm, is_sync = run.kind == _COMM, run.kind == _SYNC
    # A place for each: time for its launch, or for the kernel when it is slow and late; a step
    # waits for its data.
    length = np.where(run.kind == _COMPUTE, typical * 1.1 + 2500, 5000).astype(np.int64)
    length[run.is_last], length[is_sync] = transfer[run.is_last], 60_000
    first = np.flatnonzero(np.diff(run.step, prepend=-1))
    length[first[1:] - 1] += loading[1:]
    place = begin + loading[0] + np.cumsum(length) - length
    is_under = np.maximum.accumulate(np.where(is_comm, place + transfer, 0)) > place
    chunk = np.flatnonzero(np.diff(run.step * 3 + run.phase, prepend=-1))
    since = np.repeat(chunk, np.diff(np.append(chunk, size)))
    called = place[since] - 10_000 + 4000 * (np.arange(size) - since)
    returned = called + own.integers(2500, 3500, size)
    returned[is_sync] = np.maximum(called, place + 3000)[is_sync] + own.integers(
        1500, 5000, is_sync.sum()
    )
    start = place + own.integers(0, np.where(is_comm, 10_000, 2500))
    end = start + (typical * np.where(is_under, 1.1, 1) * (1 - 0.03 * own.random(size))).astype(
        np.int64
    )
    end[is_comm] = (place + transfer + own.integers(0, 3000, size))[is_comm]
    is_copy = run.kind == _COPY
    start[is_copy] = (returned + own.integers(4000, 12_000, size))[is_copy]
    end[is_copy] = (start + copy_length)[is_copy]
    return Times(called, returned, start, end, loading)


def _put_ranges(
    database: sqlite3.Connection,
    ids: dict[str, int],
    run: Program,
    times: Times,
    main_thread: int,
    thread: Int64,
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
    put(
        opened - 50,
        returned[last] + 50,
        main_thread,
        text=[f"step {i}" for i in run.step[first].tolist()],
    )
    is_loading = times.loading > 0
    put(opened[is_loading], called[first[is_loading]] - 40, main_thread, textId=ids[_LOADING])
    first, last = groups(run.step, run.phase)
    named = np.array([ids[text] for text in _PHASES])[run.phase[first]]
    put(called[first] - 30, returned[last] + 30, main_thread, textId=named)
    is_sync = (run.kind == _SYNC).astype(np.int64)
    for margin, number, base, n_names in (
        (20, run.layer, "layer0", _N_LAYERS),
        (10, run.op, "aten::op_0", _N_OPS),
    ):
        first, last = groups(run.step, run.phase, is_sync, number)
        named = ids[base] + number[first] % n_names
        put(called[first] - margin, returned[last] + margin, thread[first], textId=named)


def _put(
    database: sqlite3.Connection, table: str, where: NDArray[np.bool_] | None = None, **columns: Any
) -> None:
    """Insert columns: arrays or lists of one length, and constants; what the table requires besides is 0."""
    columns = {
        name: 0 for name, kind in schemas()[_VERSION][table].items() if "NOT NULL" in kind
    } | columns
    size = next(len(values) for values in columns.values() if isinstance(values, np.ndarray | list))
    keep = np.arange(size) if where is None else np.flatnonzero(where)
    names = ", ".join(f'"{name}"' for name in columns)
    marks = ", ".join("?" * len(columns))
    for begin in range(0, keep.size, 50_000):
        rows = keep[begin : begin + 50_000]
        lists = [
            values[rows].tolist()
            if isinstance(values, np.ndarray)
            else [values[row] for row in rows.tolist()]
            if isinstance(values, list)
            else [values] * rows.size
            for values in columns.values()
        ]
        database.executemany(
            f"INSERT INTO {table} ({names}) VALUES ({marks})", zip(*lists, strict=True)
        )
