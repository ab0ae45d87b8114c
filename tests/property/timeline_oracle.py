"""The timeline once more, as slow and plain as possible: every nanosecond is asked whose it is.

Written from the docstrings, not from the code, and sharing nothing with it.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Op:
    start: int
    end: int
    category: str  # compute, comm, memory
    name: str
    launch: int | None = None
    collective: str | None = None
    seq: int | None = None


@dataclass(frozen=True)
class Wait:
    """A matched operation of a collective: its times, and how long it waited for the last rank."""

    start: int
    end: int
    wait: int
    name: str
    seq: int


@dataclass(frozen=True)
class Phase:
    """A host range, and the hull of what the device ran of it."""

    start: int
    end: int
    name: str


@dataclass
class Bar:
    ticks: list[int]  # busy ones
    start: int
    end: int
    operations: list[tuple[str, int, int | None]] = field(default_factory=list)  # name, time, seq

    def row(self, lane: str) -> dict[str, object]:
        times: dict[str, int] = {}
        for name, length, _ in self.operations:
            times[name] = times.get(name, 0) + length
        return {
            "lane": lane,
            "start_ns": self.start,
            "end_ns": self.end,
            "busy_ns": len(set(self.ticks)),
            "n_operations": len(self.operations),
            "name": min(times, key=lambda name: (-times[name], name)),
            "seq": self.operations[0][2] if len(self.operations) == 1 else None,
        }


def clipped(start: int, end: int, window: tuple[int, int]) -> list[int]:
    return [tick for tick in range(start, end) if window[0] <= tick < window[1]]


def join(bars: list[Bar], most: int) -> list[Bar]:
    bars = list(bars)
    while len(bars) > most:
        gaps = [
            (bars[i + 1].start - max(one.end for one in bars[: i + 1]), i)
            for i in range(len(bars) - 1)
        ]
        _, at = min(gaps)
        one, other = bars[at], bars[at + 1]
        end, operations = max(one.end, other.end), one.operations + other.operations
        bars[at : at + 2] = [Bar(one.ticks + other.ticks, one.start, end, operations)]
    return bars


def merged(ops: list[Op], window: tuple[int, int], most: int) -> list[Bar]:
    parts = [(op, clipped(op.start, op.end, window)) for op in ops]
    parts = [(op, ticks) for op, ticks in parts if ticks]
    busy = sorted({tick for _, ticks in parts for tick in ticks})
    bars: list[Bar] = []
    for tick in busy:
        # One operation runs in this nanosecond and the one before: the bar goes on.
        if not any(tick in ticks and tick - 1 in ticks for _, ticks in parts):
            bars.append(Bar([], tick, tick))
        bars[-1].ticks.append(tick)
        bars[-1].end = tick + 1
    for op, ticks in parts:
        next(bar for bar in bars if ticks[0] in bar.ticks).operations.append(
            (op.name, len(ticks), None)
        )
    return join(bars, most)


def painted(
    ops: list[tuple[int, int, str, int | None]], window: tuple[int, int], most: int
) -> list[Bar]:
    """Take (start, end, name, seq) in the order in which equal ones count."""
    parts = [(op, clipped(op[0], op[1], window)) for op in ops]
    parts = [(op, ticks) for op, ticks in parts if ticks]
    order = sorted(range(len(parts)), key=lambda i: (parts[i][0][0], -parts[i][0][1], i))
    owner_of = {}
    for index in reversed(order):
        owner_of.update(dict.fromkeys(parts[index][1], index))
    bars: dict[int, Bar] = {}
    for tick in sorted(owner_of):
        bar = bars.setdefault(owner_of[tick], Bar([], tick, tick))
        assert bar.end == tick, tick  # no operation has two pieces
        bar.ticks.append(tick)
        bar.end = tick + 1
    for index, ((_, _, name, seq), ticks) in enumerate(parts):
        bar = bars.get(index) or bars[owner_of[ticks[0]]]
        bar.operations.append((name, len(ticks), seq))
    return join(sorted(bars.values(), key=lambda bar: bar.start), most)


def exposed(
    ops: list[tuple[int, int, str, int | None]],
    compute: set[int],
    window: tuple[int, int],
    most: int,
) -> list[Bar]:
    """Take what `painted` takes: of each bar the runs of nanoseconds in which nothing computes."""
    bars: list[Bar] = []
    for whole in painted(ops, window, len(ops) + 1):
        # The bar is that of the first operation by (start, longest first) that holds all of it.
        holding = [op for op in ops if op[0] <= whole.start and whole.end <= op[1]]
        _, _, name, seq = min(holding, key=lambda op: (op[0], -op[1]))
        own: list[Bar] = []
        for tick in whole.ticks:
            if tick in compute:
                continue
            if not own or own[-1].end != tick:
                own.append(Bar([], tick, tick))
            own[-1].ticks.append(tick)
            own[-1].end = tick + 1
        for bar in own:
            bar.operations.append((name, len(bar.ticks), seq))
        bars += own
    return join(bars, most)


def launched(ops: list[Op], phase: Phase) -> list[Op]:
    return [op for op in ops if op.launch is not None and phase.start <= op.launch < phase.end]


def phases(ops: list[Op], ranges: list[Phase], window: tuple[int, int], most: int) -> list[dict]:
    bars = []
    for phase in ranges:
        own = launched(ops, phase)
        if own and (
            ticks := clipped(min(op.start for op in own), max(op.end for op in own), window)
        ):
            busy = [tick for op in own for tick in clipped(op.start, op.end, window)]
            bar = Bar(busy, ticks[0], ticks[-1] + 1, [(phase.name, len(ticks), None)])
            bars.append((bar, len(own), phase.name))
    bars.sort(key=lambda found: (found[0].start, found[0].end, found[2]))
    joined = join([bar for bar, _, _ in bars], most)
    rows, used = [], 0
    for bar in joined:
        n_ranges = len(bar.operations)
        counts = [count for _, count, _ in bars[used : used + n_ranges]]
        used += n_ranges
        rows.append(bar.row("phase") | {"n_operations": sum(counts), "seq": None})
    return rows


def lanes(
    ops: list[Op],
    waits: list[Wait],
    ranges: list[Phase],
    window: tuple[int, int],
    most: int,
    *,
    is_wait_known: bool,
) -> list[dict[str, object]]:
    """Return the rows of one rank, in order of (lane, start, end, name)."""
    compute = {t for op in ops if op.category == "compute" for t in range(op.start, op.end)}
    waiting = {t for one in waits for t in range(one.start, min(one.start + one.wait, one.end))}
    comm = [(op.start, op.end, op.collective, op.seq) for op in ops if op.category == "comm"]
    until = [(one.start, min(one.start + one.wait, one.end), one.name, one.seq) for one in waits]
    queued = [
        op for op in ops if op.launch is not None and op.start < window[1] and op.end > window[0]
    ]
    found = {
        "comm": painted(comm, window, most),
        "compute": merged([op for op in ops if op.category == "compute"], window, most),
        "exposed": exposed(comm, compute, window, most),
        "launch": merged([Op(op.launch, op.start, "", op.name) for op in queued], window, most),
        "memory": merged([op for op in ops if op.category == "memory"], window, most),
        "wait": painted(until, window, most),
    }
    rows = [bar.row(lane) for lane, bars in found.items() for bar in bars]
    for row, bar in zip(rows, found["comm"], strict=False):  # comm comes first
        row["exposed_ns"] = len(set(bar.ticks) - compute)
        row["wait_ns"] = len(set(bar.ticks) & waiting) if is_wait_known else None
    rows += phases(ops, ranges, window, most)
    return sorted(rows, key=lambda row: (row["lane"], row["start_ns"], row["end_ns"]))
