"""Small random runs: single processes with ties, overlaps and missing launches; ranks that come late, with clocks that are off."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

import nsyspipe
from tests.build.trace import KERNEL, RUNTIME, TraceBuilder
from tests.property.cross_oracle import Kernel, Rank, Run, moved
from tests.property.oracle import Call, Op, Process, Range

TIMES = st.integers(-20, 80)
BLOCKING = ("cudaDeviceSynchronize_v3020", "cudaMalloc_v3020")
LENGTHS = st.integers(0, 25)
NAMES, GRIDS = st.sampled_from(["gemm", "relu", "FusedAdamMathFunctor"]), st.sampled_from([1, 1, 2])
CATEGORIES = st.sampled_from(["compute", "comm", "dtod", "copy", "memset", "unified"])
TEXTS = st.sampled_from(
    [
        "step 1",
        "step 2",
        "step 3",
        "it 4, seq = 9",
        "it 5, seq = 7",
        "epoch 0",
        "epoch 1",
        "forward",
        "backward",
        "optimizer",
        "train_batch",
        "layer 1",
        "layer 2",
        "get batch",
        "aten::mm, seq = 3",
        "{'mod': 'torch'}",
        "warm-up 1",
        "warmup 2",
    ]
)
DOMAINS = st.sampled_from([None, None, None, "DALI", "cuBLASLt", "mine", "MPI"])


@st.composite
def intervals(draw):
    start = draw(TIMES)
    return start, start + draw(LENGTHS)


@st.composite
def ops(draw, launches):
    category = draw(CATEGORIES)
    launch = None if category == "unified" else draw(launches)
    return Op(
        *draw(intervals()), category, launch, draw(st.integers(0, 9)), draw(NAMES), draw(GRIDS)
    )


@st.composite
def bursts(draw, at):
    launch, start = draw(at), draw(TIMES)
    found = []
    for _ in range(draw(st.integers(7, 9))):
        end = start + draw(st.integers(0, 3))
        found.append(Op(start, end, "dtod", launch, draw(st.integers(0, 9))))
        launch, start = launch + draw(st.integers(0, 2)), end + draw(st.integers(-2, 2))
    return found


@st.composite
def trains(draw):
    names = draw(st.sampled_from(["a", "a", "ab"]))
    found, at = [], 0
    for number in range(draw(st.integers(14, 22))):
        name, length = names[number % len(names)], draw(st.sampled_from([0, 1, 2, 3, 9, 10, 11]))
        under = draw(st.sampled_from([*["all"] * 4, *["none"] * 4, "some"]))
        found.append(Op(at, at + length, "compute", number, name=name))
        if under != "none":
            begin = at if under == "all" else at + draw(st.integers(0, length))
            found.append(Op(begin, at + length, "comm", number))
        at += length + draw(st.integers(0, 1))
    return Process(
        found, [Range(0, 10, "step 1", 1), Range(10, 20, "step 2", 1), Range(2, 7, "forward", 1)]
    )


@st.composite
def steady_ranges(draw):
    found, at = [], draw(st.integers(-20, 10))
    for number in range(draw(st.integers(2, 5))):
        end = at + draw(st.integers(1, 20))
        found.append(Range(at, end, f"step {number}", 1))
        for text in ("forward", "backward", "get batch"):
            a, b = sorted((draw(st.integers(at, end)), draw(st.integers(at, end))))
            found.append(Range(a, b, text, 1))
        at = end + draw(st.integers(0, 4))
    return found


@st.composite
def random_ranges(draw):
    number = range(draw(st.integers(0, 8)))
    return [
        Range(*draw(intervals()), draw(TEXTS), draw(st.sampled_from([1, 2])), draw(DOMAINS))
        for _ in number
    ]


@st.composite
def nested_ranges(draw):
    found, at = [], draw(st.integers(-20, 10))
    for number in range(draw(st.integers(1, 3))):
        begin = at
        for inner in range(draw(st.integers(1, 4))):
            end = at + draw(st.integers(0, 8))
            found.append(Range(at, end, f"layer {inner}", 1))
            at = end + draw(st.sampled_from([0, 0, 1]))
        found.append(
            Range(begin, at, f"{draw(st.sampled_from(['part', 'step', 'epoch']))} {number}", 1)
        )
    return found


@st.composite
def processes(draw):
    has_launches = draw(st.sampled_from([True, True, True, False]))
    ranges = draw(st.one_of(steady_ranges(), nested_ranges()))
    if draw(st.booleans()):
        ranges = ranges + draw(random_ranges())
    # Launches mostly fall on the edges of ranges and just inside them, where mistakes are.
    edges = sorted({t for r in ranges for t in (r.start, r.start + 1, r.end - 1, r.end)})
    inside = st.sampled_from(edges)
    launches = st.one_of(inside, inside, inside, TIMES, st.none()) if has_launches else st.none()
    found = draw(st.lists(ops(launches), min_size=1, max_size=14))
    if has_launches and draw(st.booleans()):
        found += draw(bursts(st.one_of(inside, TIMES)))
    spans = draw(st.lists(intervals(), max_size=3))
    calls = [Call(*span, BLOCKING[number % 2]) for number, span in enumerate(spans)]
    return Process(found, draw(st.permutations(ranges)), calls)


@st.composite
def workloads(draw):
    found, ranges, calls, at, busy = [], [], [], draw(TIMES), -20
    for number in range(draw(st.integers(2, 4))):
        begin = at
        for text in draw(st.permutations(["get batch", "forward", "backward"])):
            start, at = at, at + draw(st.integers(0, 12))
            ranges.append(Range(start, at, text, 1))
            for _ in range(draw(st.integers(0, 3))):
                launch = draw(st.one_of(st.integers(start, at), st.integers(start, at), st.none()))
                first = max(busy, start if launch is None else launch) + draw(st.integers(-1, 5))
                op = draw(ops(st.just(launch)))
                found.append(replace(op, start=first, end=first + draw(st.integers(0, 6))))
                busy = draw(st.sampled_from([busy, found[-1].end]))
            if draw(st.booleans()):
                called = draw(st.integers(start, at))
                calls.append(
                    Call(called, called + draw(st.integers(0, 9)), BLOCKING[len(calls) % 2])
                )
        ranges.append(Range(begin, at, f"step {number}", 1))
        at += draw(st.integers(0, 3))
    return Process(found or [draw(ops(st.none()))], draw(st.permutations(ranges)), calls)


def build(process: Process, pid: int = 1000) -> TraceBuilder:
    builder = TraceBuilder(pid=pid)
    for op in process.ops:
        if op.category == "compute":
            builder.kernel(op.start, op.end, op.name, launch=op.launch)
            builder.rows[KERNEL][-1]["gridX"] = op.grid
        elif op.category == "comm":
            builder.nccl(op.start, op.end, launch=op.launch)
        elif op.category == "memset":
            builder.memset(op.start, op.end, launch=op.launch)
        else:
            kind = {"dtod": 8, "unified": 11}.get(op.category, 1)
            builder.copy(op.start, op.end, kind, op.n_bytes, launch=op.launch)
    for call in process.calls:
        builder.launch(call.start, api=call.name)
        builder.rows[RUNTIME][-1]["end"] = call.end
    domains = sorted({one.domain for one in process.ranges if one.domain})
    for number, domain in enumerate(domains, start=3):
        builder.domain(domain, number)
    for one in process.ranges:
        place = domains.index(one.domain) + 3 if one.domain else 0
        builder.range(
            one.start, one.end, one.text, thread=["main", "autograd"][one.thread - 1], domain=place
        )
    return builder


PROCESSES = st.one_of(processes(), workloads())


def write(found, folder: Path) -> None:
    for rank, process in enumerate(found):
        build(process, pid=1000 + rank).write(folder / f"r_{rank}.sqlite")


COLLECTIVES = {
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

    A `steady` one has a report per rank, equal clocks, and collectives that end at once everywhere,
    none lost, all of a kind on one stream: of two streams, ranks may start either first.
    """
    n_ranks, n_steps = draw(st.integers(2, 4)), draw(st.integers(2, 4))
    reports = tuple(range(n_ranks)) if steady else draw(st.sampled_from(PARTITIONS[n_ranks]))
    names = st.sampled_from(sorted(COLLECTIVES))
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
        found.append(
            None if not is_even and draw(rarely(25)) else Kernel(start, end, launch, stream=stream)
        )
    return found


def load_run(run: Run, folder: Path, *, ranks=None, order=None):
    """Write the reports and open them.

    `ranks` are the numbers to give to the run's ranks, by a rank map unless each has a report of
    its own; `order` is that of the arguments.
    """
    numbers = list(range(len(run.ranks))) if ranks is None else ranks
    has_own = len(run.sessions) == len(run.ranks)
    builders = [TraceBuilder(pid=1000) for _ in run.sessions]
    pairs = []
    for number, rank in zip(numbers, run.ranks, strict=True):
        builder, pid = builders[rank.report], 2000 + number
        _add(builder, rank, pid, stream_base=10 * number)
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


def _add(builder: TraceBuilder, rank: Rank, pid: int, *, stream_base: int) -> None:
    for number, start, end in rank.steps:
        builder.range(start, end, f"step {number}", pid=pid)
    for k in rank.kernels:
        if k.collective:
            name, stream = COLLECTIVES[k.collective], stream_base + k.stream
            builder.nccl(k.start, k.end, name=name, stream=stream, launch=k.launch, pid=pid)
        else:
            builder.kernel(k.start, k.end, launch=k.launch, pid=pid)
