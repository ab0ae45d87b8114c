"""Build DDP runs of which every time is known: each step's work, its buckets, its copies, who is late."""

from __future__ import annotations

import dataclasses
from typing import Any

from tests.build.nccl_layouts import NCCL_2_21
from tests.build.trace import DEFAULT, TraceBuilder

MS, US = 1_000_000, 1_000
MIB = 1 << 20


@dataclasses.dataclass(frozen=True)
class Ddp:
    """A run without contention; all ranks have one clock. Times are ns.

    The gradients become ready one after the other in the backward pass: a layer's kernel, then the
    one that scales its gradient into the bucket. `buckets` says how many gradients are in each; a
    bucket's all-reduce begins when its last gradient is scaled on all ranks and the one before is
    over. After the last: the copies; all of it once for each micro-batch, then the optimizer.
    """

    n_ranks: int = 2
    n_steps: int = 5
    forward: int = 10 * MS
    layer: int = 5 * MS
    scale: int = 100 * US
    transfer: tuple[int, ...] = (80 * MS,)
    buckets: tuple[int, ...] = (4,)
    gradients: tuple[int, ...] = (26 * MIB,) * 4
    copy: int = 100 * US
    optimizer: int = 4 * MS
    late: tuple[int, ...] = (0, 0)
    has_copies: bool = True
    launch_every: int = US  # between launches: what is launched too late starts too late
    datatype: str = "f32"
    scales_alike: bool = (
        True  # whether one kernel scales all gradients; else each has one of its own name
    )
    has_phases: bool = True
    has_payloads: bool = False
    n_micro_batches: int = 1

    def changed(self, **fields: Any) -> Ddp:
        return dataclasses.replace(self, **fields)

    def write(self, folder, name="ddp"):
        folder.mkdir(exist_ok=True)
        builders = [self._builder(rank) for rank in range(self.n_ranks)]
        free = [1000 * MS] * self.n_ranks
        for step in range(self.n_steps):
            free = self._step(builders, step, free)
        for rank, builder in enumerate(builders):
            builder.write(folder / f"{name}_{rank}.sqlite")
        return str(folder / f"{name}_*.sqlite")

    def _builder(self, rank):
        builder = TraceBuilder(
            "3.25.0 2026.2.1 mfu" if self.has_payloads else DEFAULT, pid=1000 + rank
        )
        if self.has_payloads:
            builder.domain("NCCL", 1)
        builder.env(RANK=rank, WORLD_SIZE=self.n_ranks, LOCAL_RANK=rank).session(10**18).gpu()
        return builder.meta(EXPORT_SCHEMA_VERSION="3.11.1", EXPORT_PRODUCT_VERSION="2024.2.3")

    def _step(self, builders, step, free):
        hosts = [Host(self, builder, step) for builder in builders]
        for _ in range(self.n_micro_batches):
            free = self._micro_batch(hosts, free)
        for host, at in zip(hosts, free, strict=True):
            host.kernel(at, at + self.optimizer, "optimizer")
            host.close()
        return [at + self.optimizer for at in free]

    def _micro_batch(self, hosts, free):
        now = [at + self.forward + late for at, late in zip(free, self.late, strict=False)]
        for host, at, end in zip(hosts, free, now, strict=True):
            host.kernel(at, end, "forward")
        comm_free, gradient = 0, 0
        for n_gradients, transfer in zip(self.buckets, self.transfer, strict=True):
            for _ in range(n_gradients):
                length = self.scale * self.gradients[gradient] // self.gradients[0]
                name = "scale_gradient" if self.scales_alike else f"scale_{chr(97 + gradient)}"
                for rank, host in enumerate(hosts):
                    begin = now[rank] + self.layer
                    host.kernel(now[rank], begin, "layer_backward")
                    host.kernel(begin, begin + length, name)
                    now[rank] = begin + length
                gradient += 1
            starts = [max(one, comm_free) for one in now]
            comm_free = max(starts) + transfer
            n_bytes = sum(self.gradients[gradient - n_gradients : gradient])
            for host, start in zip(hosts, starts, strict=True):
                host.all_reduce(start, comm_free, n_bytes)
        ends = [max(one, comm_free) for one in now]
        for size in self.gradients if self.has_copies else ():
            length = self.copy * size // self.gradients[0]
            for rank, host in enumerate(hosts):
                host.copy(ends[rank], ends[rank] + length, size)
                ends[rank] += length
        return ends


class Host:
    """Launches the operations of one step of one rank, far ahead of the device."""

    def __init__(self, run, builder, step):
        self.run, self.builder = run, builder
        self.first = self.at = step * 10 * MS
        builder.range(self.first, self.first + 9 * MS, f"step {step}")
        self.backward = None

    def _launch(self):
        self.at += self.run.launch_every
        return self.at

    def kernel(self, start, end, name):
        if name == "layer_backward" and self.backward is None:
            self.backward = self.at + 1
        if name in ("forward", "optimizer") and self.backward is not None:
            if self.run.has_phases:
                self.builder.range(self.backward, self.at + 1, "backward")
            self.backward = None
        self.builder.kernel(start, end, name, launch=self._launch())

    def all_reduce(self, start, end, n_bytes):
        name = f"ncclDevKernel_AllReduce_Sum_{self.run.datatype}_RING_LL"
        launch = self._launch()
        self.builder.nccl(start, end, launch=launch, name=name)
        if self.run.has_payloads:
            fields = {"NCCL communicator ID": 5, "Message size [bytes]": n_bytes}
            self.builder.nccl_payload(
                launch - 100, "ncclAllReduce", fields, NCCL_2_21, end=launch + 100
            )

    def copy(self, start, end, n_bytes):
        self.builder.copy(start, end, n_bytes=n_bytes, launch=self._launch())

    def close(self):
        assert self.at < self.first + 9 * MS
