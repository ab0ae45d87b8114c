"""A small built run in which much could be better, and a log and a topology that say that its link is slow."""

from tests.build.trace import TraceBuilder
from tests.conftest import REAL

LOG = REAL / "logs" / "ddp-4gpu-shm.nccl.log"
TOPOLOGY = REAL / "logs" / "topo-4gpu.txt"
PIDS = (3175, 3171)  # of the log's processes, else it would be of another run
LINK = ("--nccl-log", LOG, "--topology", TOPOLOGY)


def write_sick(folder):
    """Build two ranks with seven findings once the link is known; return their folder.

    Step i begins at 1000 i + 100: backward [100, 300), one all-reduce [300, 600) after it, eight
    copies of 1 ns from 600 to 615, then idle until the next step's kernel, which is launched 20
    before it. Savings: 485 late launches (385, and the 100 of input that the host launches beside),
    100 between the steps' ranges, 300 exposed communication, all of which smaller
    buckets or a compression may hide or save; 800 bytes were copied, which NVLink, 450 per ns,
    would need 800 / 450 ns for; 15 of copies with the gaps between them.
    """
    for rank in range(2):
        builder = (
            TraceBuilder(pid=PIDS[rank])
            .session(10**18)
            .gpu()
            .env(RANK=rank, WORLD_SIZE=2, LOCAL_RANK=rank)
        )
        for at in range(0, 4000, 1000):
            builder.range(at, at + 900, f"step {at // 1000}").range(at + 70, at + 99, "backward")
            builder.kernel(at + 100, at + 300, launch=at + 80).nccl(
                at + 300, at + 600, launch=at + 85
            )
            for number in range(8):
                start = at + 600 + 2 * number
                builder.copy(start, start + 1, launch=at + 90 + number)
        builder.write(folder / f"sick_{rank}.sqlite")
    return folder
