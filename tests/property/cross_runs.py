"""Small random runs of several ranks: late arrivals, ties, lost operations, clocks that are off."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

import nsyspipe
from tests.build.trace import TraceBuilder
from tests.property.cross_model import Kernel, Rank, Run, moved

if TYPE_CHECKING:
    from pathlib import Path

NAMES = {
    "all_reduce": "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
    "all_gather": "ncclDevKernel_AllGather_RING_LL",
    "reduce_scatter": "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL",
    "broadcast": "ncclDevKernel_Broadcast_RING_LL",
}
STEP = 100
BASE = 10**18
PARTITIONS = {
    2: [(0, 1), (0, 1), (0, 0)],
    3: [(0, 1, 2), (0, 1, 2), (0, 0, 1), (0, 0, 0)],
    4: [(0, 1, 2, 3), (0, 1, 2, 3), (0, 0, 1, 1), (0, 1, 1, 1)],
}
OFF = st.sampled_from([0, 0, 0, 1, 4, -30, 10**6])


def rarely(n):
    return st.sampled_from([False] * n + [True])


@st.composite
def runs(draw, *, steady=False):
    """Draw a run.

    A `steady` one has a report per rank, equal clocks, and collectives that end at once everywhere, none lost, all of a
    kind on one stream: of two streams, ranks may start either first.
    """
    n_ranks, n_steps = draw(st.integers(2, 4)), draw(st.integers(2, 4))
    reports = tuple(range(n_ranks)) if steady else draw(st.sampled_from(PARTITIONS[n_ranks]))
    names = st.sampled_from(sorted(NAMES))
    kinds = names.map(lambda name: (name, 1)) if steady else st.tuples(names, st.integers(1, 2))
    plan = [draw(st.lists(kinds, max_size=4)) for _ in range(n_steps)]
    kernels: list[list[Kernel]] = [[] for _ in reports]
    for step, collectives in enumerate(plan):
        for own in kernels:
            start = STEP * step + draw(st.integers(0, 9))
            own.append(Kernel(start, start + draw(st.integers(1, 60)), STEP * step))
        for place, (collective, stream) in enumerate(collectives):
            found = _collective(draw, kernels, step, place, stream, is_even=steady)
            for own, operation in zip(kernels, found, strict=True):
                if operation is not None:
                    own.append(replace(operation, collective=collective))
    off = [0 if steady else draw(OFF) for _ in set(reports)]
    ranks = []
    for report, own in zip(reports, kernels, strict=True):
        first = int(draw(rarely(12)))
        last = n_steps - draw(rarely(12))
        if last - first < 2:
            first, last = 0, n_steps
        ranges = tuple((k, STEP * k, STEP * k + 95) for k in range(first, last))
        captured = (k for k in own if STEP * first <= _time(k) < STEP * last)
        ranks.append(moved(Rank(report, ranges, tuple(captured)), off[report]))
    starts = [BASE if steady else BASE + draw(st.integers(0, 3)) for _ in off]
    if not steady and draw(rarely(3)):
        starts[draw(st.integers(0, len(starts) - 1))] = None
    return Run(tuple(ranks), tuple(starts))


def _time(kernel: Kernel) -> int:
    return kernel.start if kernel.launch is None else kernel.launch


def _collective(draw, kernels, step, place, stream, *, is_even):
    """Draw one collective: an operation per rank, None where it was lost."""
    starts = []
    for own in kernels:
        free = max((k.end for k in own if k.stream == stream), default=0)
        starts.append(max(free, STEP * step + 10 + draw(st.integers(0, 60))))
    done = max(starts) + draw(st.integers(1, 40))
    found = []
    for start in starts:
        end = done if is_even else done + draw(st.sampled_from([0, 0, 1, 3]))
        if not is_even and draw(rarely(20)):
            end = start + draw(st.integers(1, 30))
        # Launched in the step, between two steps, or by nobody knows whom.
        strange = [] if is_even else [STEP * step + 96, None]
        launch = draw(st.sampled_from([STEP * step + 1 + place] * 20 + strange))
        lost = not is_even and draw(rarely(25))
        found.append(None if lost else Kernel(start, end, launch, stream=stream))
    return found


def load(run: Run, folder: Path, *, ranks=None, order=None):
    """Write the reports and open them.

    `ranks` are the numbers to give to the run's ranks, by a rank map unless each has a report of its own; `order` is
    that of the arguments.
    """
    numbers = list(range(len(run.ranks))) if ranks is None else ranks
    has_own = len(run.sessions) == len(run.ranks)
    builders = [TraceBuilder(pid=1000) for _ in run.sessions]
    pairs = []
    for number, rank in zip(numbers, run.ranks, strict=True):
        builder, pid = builders[rank.report], 2000 + number
        add(builder, rank, pid, stream_base=10 * number)
        if has_own:
            builder.env(RANK=number)
        pairs.append(f"r{rank.report}.sqlite:{pid}={number}")
    paths = []
    for place, (builder, start) in enumerate(zip(builders, run.sessions, strict=True)):
        if start is not None:
            builder.session(start)
        paths.append(builder.write(folder / f"r{place}.sqlite"))
    if not has_own:
        alone = [sum(r.report == place for r in run.ranks) == 1 for place in range(len(paths))]
        pairs = [
            pair.replace(f":{2000 + number}", "") if alone[rank.report] else pair
            for pair, number, rank in zip(pairs, numbers, run.ranks, strict=True)
        ]
    arguments = paths if order is None else [paths[place] for place in order]
    options: dict[str, Any] = {} if has_own else {"rank_map": ",".join(pairs)}
    return nsyspipe.load(arguments, step=r"^step \d+$", jobs=1, **options)


def add(builder: TraceBuilder, rank: Rank, pid: int, *, stream_base: int) -> None:
    for number, start, end in rank.steps:
        builder.range(start, end, f"step {number}", pid=pid)
    for k in rank.kernels:
        if k.collective:
            name, stream = NAMES[k.collective], stream_base + k.stream
            builder.nccl(k.start, k.end, name=name, stream=stream, launch=k.launch, pid=pid)
        else:
            builder.kernel(k.start, k.end, launch=k.launch, pid=pid)
