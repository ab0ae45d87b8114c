"""Runs whose steps are laid out by hand: compute, then communication, then a copy, then nothing, end to end."""

from __future__ import annotations

import nsyspipe
from tests.build.trace import DEFAULT, TraceBuilder

# The first complete step is left out of the figures, the last one is cut off: neither counts.
FIRST, LAST = (500, 50, 0, 50), (100, 10, 0, 0)


def plain_rank(rank, steps, *, world_size=None, gpu="NVIDIA H200", name="step", kernel="gemm", start=10**18, pid=1000):
    """Return a rank with one entry (compute, comm, copy, idle) per summary step, ns; 0 leaves the operation out."""  # fmt: skip
    builder = TraceBuilder(pid=pid + rank)
    builder.env(RANK=rank, LOCAL_RANK=rank, **({"WORLD_SIZE": world_size} if world_size else {}))
    builder.session(start).host("node0")
    if gpu:
        builder.gpu(name=gpu)
    builder.meta(**dict(zip(("EXPORT_SCHEMA_VERSION", "EXPORT_PRODUCT_VERSION"), DEFAULT.split(), strict=True)))
    at = 1000
    for number, (compute, comm, copy, idle) in enumerate([FIRST, *steps, LAST]):
        launch = at - 10
        builder.range(launch - 1, launch + compute + comm + copy + idle - 2, f"{name} {number}")
        builder.range(launch, launch + 8, "backward")
        builder.kernel(at, at + compute, kernel, launch=launch + 1)
        at += compute
        if comm:
            builder.nccl(at, at + comm, launch=launch + 2)
        at += comm
        if copy:
            builder.copy(at, at + copy, n_bytes=8 * copy, launch=launch + 3)
        at += copy + idle
    return builder


def write_run(folder, ranks, **options):
    """Write a report per rank, each a list of steps; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    options.setdefault("world_size", len(ranks))
    for rank, steps in enumerate(ranks):
        plain_rank(rank, steps, **options).write(folder / f"run_{rank}.sqlite")
    return folder


def plain_run(folder, ranks, **options):
    """Write a run and open it."""
    return nsyspipe.load(write_run(folder, ranks, **options), jobs=1)
