"""What the tests of collectives share: runs of several ranks on one clock, and short forms of their tables."""

import nsyspipe
from tests.build.tools import codes
from tests.build.trace import DEFAULT, TraceBuilder

BROADCAST = "ncclDevKernel_Broadcast_RING_LL"
GATHER = "ncclDevKernel_AllGather_RING_LL"
SCATTER = "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL"
CLOCK = "TARGET_INFO_SESSION_START_TIME"
_CODES = {"clock-error-unknown", "ended-before-last-arrived", "no-common-clock", "no-session-start"}
_CODES |= {"groups-not-named", "ranks-missing", "unmatched-collectives"}


def reports(n_ranks, n_steps=4, world_size=None, version=DEFAULT):
    """Build ranks of 1000 ns steps, all on one clock: step i's window starts at 1000 i + 100 with a kernel.

    Steps 0 to n - 2 are complete, step 0 is skipped; a step's range ends 100 ns before the next
    begins.
    """
    found = []
    for rank in range(n_ranks):
        builder = (
            TraceBuilder(version, pid=1000 + rank)
            .session(10**18)
            .gpu()
            .env(RANK=rank, WORLD_SIZE=world_size or n_ranks)
        )
        for step in range(n_steps):
            at = 1000 * step
            builder.range(at, at + 900, f"step {step}").kernel(at + 100, at + 200, launch=at + 10)
        found.append(builder)
    return found


def every_step(builders, *arrivals, end, steps=range(4), launch=20, **more):
    """Add one collective to each step: when each rank arrives, and when all are done."""
    for builder, arrival in zip(builders, arrivals, strict=True):
        for at in (1000 * step for step in steps):
            builder.nccl(
                at + arrival, at + end, launch=None if launch is None else at + launch, **more
            )
    return builders


def load(builders, folder, **options):
    without = options.pop("without", ())
    for place, builder in enumerate(builders):
        builder.write(folder / f"report_{place}.sqlite", without=without)
    return nsyspipe.load(folder, **options)


def collectives(run, *names, step=1):
    return [
        tuple(row[name] for name in names)
        for row in run.collectives().to_pylist()
        if row["step"] == step
    ]


def waits(run, rank=None):
    if rank is None:
        return [waits(run, one) for one in run.ranks["rank"].to_pylist()]
    return [row["wait_ns"] for row in run.steps().to_pylist() if row["rank"] == rank]


def stragglers(run):
    return [tuple(row.values()) for row in run.stragglers().to_pylist()]


def said_of_clocks_and_matching(run):
    return [code for code in codes(run) if code in _CODES]
