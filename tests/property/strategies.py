"""Small random processes: ties, zero lengths, overlaps, negative times, missing launches."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.build.trace import TraceBuilder
from tests.property.oracle import Op, Process, Range

TIMES = st.integers(-20, 80)
LENGTHS = st.integers(0, 25)
CATEGORIES = st.sampled_from(["compute", "comm", "dtod", "copy", "memset"])
TEXTS = st.sampled_from(
    ["step 1", "step 2", "step 3", "it 4, seq = 9", "it 5, seq = 7", "epoch 0", "epoch 1", "forward", "backward",
     "optimizer", "train_batch", "layer"]
)  # fmt: skip


@st.composite
def intervals(draw):
    start = draw(TIMES)
    return start, start + draw(LENGTHS)


@st.composite
def ops(draw, launches):
    start, end = draw(intervals())
    return Op(start, end, draw(CATEGORIES), draw(launches), draw(st.integers(0, 9)))


@st.composite
def steady_ranges(draw):
    """Draw step ranges one after the other on one thread, so that windows are common, with phases inside."""
    found, at = [], draw(st.integers(-20, 10))
    for number in range(draw(st.integers(2, 5))):
        end = at + draw(st.integers(1, 20))
        found.append(Range(at, end, f"step {number}", 1))
        for text in ("forward", "backward"):
            a, b = sorted((draw(st.integers(at, end)), draw(st.integers(at, end))))
            found.append(Range(a, b, text, 1))
        at = end + draw(st.integers(0, 4))
    return found


@st.composite
def random_ranges(draw):
    found = []
    for _ in range(draw(st.integers(0, 8))):
        start, end = draw(intervals())
        found.append(Range(start, end, draw(TEXTS), draw(st.sampled_from([1, 2]))))
    return found


@st.composite
def processes(draw):
    has_launches = draw(st.sampled_from([True, True, True, False]))
    ranges = draw(steady_ranges())
    if draw(st.booleans()):
        ranges = ranges + draw(random_ranges())
    # Launches mostly fall on the edges of ranges and just inside them, where mistakes are.
    edges = sorted({t for r in ranges for t in (r.start, r.start + 1, r.end - 1, r.end)})
    inside = st.sampled_from(edges)
    launches = st.one_of(inside, inside, inside, TIMES, st.none()) if has_launches else st.none()
    return Process(
        draw(st.lists(ops(launches), min_size=1, max_size=14)), draw(st.permutations(ranges))
    )


def build(process: Process, pid: int = 1000) -> TraceBuilder:
    """Write a process down as a report's rows, in the order drawn."""
    builder = TraceBuilder(pid=pid)
    for op in process.ops:
        if op.category == "compute":
            builder.kernel(op.start, op.end, launch=op.launch)
        elif op.category == "comm":
            builder.nccl(op.start, op.end, launch=op.launch)
        elif op.category == "memset":
            builder.memset(op.start, op.end, launch=op.launch)
        else:
            kind = 8 if op.category == "dtod" else 1
            builder.copy(op.start, op.end, kind, op.n_bytes, launch=op.launch)
    for one in process.ranges:
        builder.range(
            one.start, one.end, one.text, thread="main" if one.thread == 1 else "autograd"
        )
    return builder
