"""Runs whose steps are laid out by hand: compute, then communication, then a copy, then nothing, end to end."""

import nsyspipe
from tests.build.trace import DEFAULT, TraceBuilder

# The first complete step is left out of the figures, the last one is cut off: neither counts.
FIRST, LAST = (500, 50, 0, 50), (100, 10, 0, 0)


def plain_rank(
    rank,
    steps,
    *,
    world_size=None,
    gpu="NVIDIA H200",
    name="step",
    kernel="gemm",
    start=10**18,
    pid=1000,
    host="node0",
):
    """Return a rank with one entry (compute, comm, copy, idle) per summary step, ns; 0 leaves the operation out."""
    builder = TraceBuilder(pid=pid + rank)
    builder.env(RANK=rank, LOCAL_RANK=rank, **({"WORLD_SIZE": world_size} if world_size else {}))
    builder.session(start).host(host)
    if gpu:
        builder.gpu(name=gpu)
    builder.meta(
        **dict(
            zip(("EXPORT_SCHEMA_VERSION", "EXPORT_PRODUCT_VERSION"), DEFAULT.split(), strict=True)
        )
    )
    at = 1000
    for number, (compute, comm, copy, idle) in enumerate([FIRST, *steps, LAST]):
        launch = at - 10
        builder.range(launch - 1, launch + compute + comm + copy + idle - 2, f"{name} {number}")
        builder.range(launch, launch + 8, "backward").kernel(
            at, at + compute, kernel, launch=launch + 1
        )
        at += compute
        if comm:
            builder.nccl(at, at + comm, launch=launch + 2)
        at += comm
        if copy:
            builder.copy(at, at + copy, n_bytes=8 * copy, launch=launch + 3)
        at += copy + idle
    return builder


def write_run(folder, ranks, **options):
    folder.mkdir(parents=True, exist_ok=True)
    options.setdefault("world_size", len(ranks))
    for rank, steps in enumerate(ranks):
        plain_rank(rank, steps, **options).write(folder / f"run_{rank}.sqlite")
    return folder


def plain_run(folder, ranks, **options):
    return nsyspipe.load(write_run(folder, ranks, **options), jobs=1)


def host_run(folder):
    builder = TraceBuilder(pid=1).env(RANK=0, WORLD_SIZE=1).session(10**18)
    for step in range(4):
        builder.range(1000 * step, 1000 * step + 900, f"step {step}")
    return nsyspipe.load(builder.write(folder / "host.sqlite"), jobs=1)


MS = 10**6
# Name -> compute of the first step in ms, summary steps, ranks.
RUNS = {
    "slow": (100, 12, 2),
    "fast": (70, 12, 2),
    "again": (100, 12, 2),
    "short": (70, 2, 2),
    "wide": (90, 12, 3),
    "wider": (80, 12, 3),
}


def steps(compute, n=12, comm=20):
    """Return steps of (compute, comm, copy, idle): compute grows by 0, 1, 2 ms in turn, so that there is an interval."""
    return [((compute + number % 3) * MS, comm * MS, 4 * MS, 6 * MS) for number in range(n)]


def scoreboard_runs(folder, names=tuple(RUNS), **options):
    return {
        name: plain_run(
            folder / name, [steps(compute, n)] * ranks, start=10**18 + place * 10**12, **options
        )
        for place, (name, (compute, n, ranks)) in enumerate(RUNS.items())
        if name in names
    }
