"""Programs that know nothing of nsyspipe, in three kinds of parallelism, captured by ``--attach-steps`` on two GPUs."""

import pytest

from nsyspipe.capture.plan import n_gpus
from tests.with_nsys.launching import steps_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif((n_gpus() or 0) < 2, reason="needs two NVIDIA GPUs"),
]

# Rank 0 prints the median time of its steps 10 to 19, in ns; step by step, since it waits for the
# loss.
PARALLEL_INPUT = """
import os, statistics, sys, time, torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
kind, rank, is_gpu = sys.argv[1], int(os.environ["LOCAL_RANK"]), torch.cuda.is_available()
device = torch.device(f"cuda:{rank}" if is_gpu else "cpu")
if is_gpu: torch.cuda.set_device(device)
dist.init_process_group("nccl" if is_gpu else "gloo")
width, n = (4096, 2048) if is_gpu else (32, 16)
torch.manual_seed(0)
class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(width, width), torch.nn.Linear(width, width)
    def forward(self, x): return x + self.down(torch.relu(self.up(x)))
model = torch.nn.Sequential(*[Block() for _ in range(4)]).to(device)
mesh = init_device_mesh(device.type, (2,))
loss_of = lambda out, target: ((out - target) ** 2).mean()
if kind == "fsdp":
    from torch.distributed.fsdp import fully_shard
    for part in (*model, model): fully_shard(part, mesh=mesh)
elif kind == "tensor":
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    for part in model: parallelize_module(part, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
else:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B
    model = model[2 * rank : 2 * rank + 2]
    data = torch.randn(n, width, device=device)
    stage = PipelineStage(model, rank, 2, device, input_args=(data[: n // 4],))
    schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=loss_of)
optimizer = torch.optim.AdamW(model.parameters())
ends = []
for step in range(22):
    batch = torch.randn(n, width, device=device)
    if kind == "pipeline":
        schedule.step(*([batch] if rank == 0 else []), **({"target": batch, "losses": []} if rank else {}))
    else:
        loss_of(model(batch), batch).backward()
    optimizer.step()
    optimizer.zero_grad()
    if is_gpu: torch.cuda.synchronize()
    ends.append(time.perf_counter_ns())
if rank == 0:
    print(int(statistics.median(b - a for a, b in zip(ends[9:19], ends[10:20]))))
dist.destroy_process_group()
"""


@pytest.mark.parametrize("kind", ["fsdp", "tensor", "pipeline"])
def test_an_unchanged_program_is_captured_and_its_steps_take_what_it_says(machine, kind):
    machine.put_program(PARALLEL_INPUT)
    words = ("-n", "2", "-o", "run", "--attach-steps", "10:20", "--program", "train.py", "--", kind)
    answer = machine.run("ddp.sh", *words, timeout=240)
    assert answer.status == 0, answer.err
    found = machine.analysis("run_*.sqlite")
    assert steps_of(found, "steps") == {rank: list(range(10, 20)) for rank in (0, 1)}
    assert found["summary"]["step_time_ns"] == pytest.approx(int(answer.out), rel=0.1)
    assert found["summary"]["comm_share"] > 0
