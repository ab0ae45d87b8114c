"""The definitions once more, as slow and plain as possible: every nanosecond is counted by itself.

Written from the definitions, not from the code, and sharing nothing with it.
"""

import re
from dataclasses import dataclass, field

LIBRARY_DOMAINS = ("NCCL", "MPI", "DALI", "cuBLAS")
OPTIMIZER = re.compile("Adam|SGD|Lion|Muon|LAMB")  # of the kernels' names in these tests
ROLES = {
    "backward": r"(?i)(?<![a-z])(backward|bwd)(?![a-z])",
    "forward": r"(?i)(?<![a-z])(forward|fwd)(?![a-z])",
    "optimizer": r"(?i)\boptim",
    "data": r"(?i)\b(get|fetch|load|next)?[ _-]*(batch|data|input)",
}


@dataclass(frozen=True)
class Op:
    start: int
    end: int
    category: str  # compute, comm, dtod, other copy, memset, unified (a copy that nothing launches)
    launch: int | None
    n_bytes: int = 0
    name: str = "gemm"  # of a compute kernel
    grid: int = 1


@dataclass(frozen=True)
class Call:
    """A call of the API that blocks the host."""

    start: int
    end: int
    name: str


@dataclass(frozen=True)
class Range:
    start: int
    end: int
    text: str
    thread: int
    domain: str | None = None


@dataclass
class Process:
    ops: list[Op] = field(default_factory=list)
    ranges: list[Range] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)


def family_of(text: str) -> str:
    return re.sub(r"\d+", "#", re.sub(r", (seq|op_id) = \d+", "", text))


def ticks(intervals) -> set[int]:
    return {t for start, end in intervals for t in range(start, end)}


def median(values) -> int:
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) // 2


def is_kernel(op: Op) -> bool:
    return op.category in ("compute", "comm")


def kernels(process: Process) -> list[Op]:
    return [op for op in process.ops if is_kernel(op)]


def users(process: Process) -> list[Range]:
    own = [r for r in process.ranges if not (r.domain or "").startswith(LIBRARY_DOMAINS)]
    return [r for r in own if not r.text.startswith("MPI_")]


def members_on(process: Process, family: str) -> list[Range]:
    own = [r for r in users(process) if family_of(r.text) == family]
    threads = sorted({r.thread for r in own})
    if not threads:
        return []
    best = max(
        threads, key=lambda t: (len(ticks((r.start, r.end) for r in own if r.thread == t)), -t)
    )
    kept: list[Range] = []
    for r in sorted((r for r in own if r.thread == best), key=lambda r: (r.start, -r.end)):
        if not kept or r.start >= kept[-1].end:
            kept.append(r)
    return kept


def union_on_best(process: Process, family: str) -> int:
    own = [r for r in users(process) if family_of(r.text) == family]
    return max(
        len(ticks((r.start, r.end) for r in own if r.thread == t)) for t in {r.thread for r in own}
    )


def launched_in(member: Range, op: Op) -> bool:
    return op.launch is not None and member.start <= op.launch < member.end


def is_part_of_a_step(process: Process, family: str) -> bool:  # layers or micro-batches
    members = members_on(process, family)
    computes = [op for op in process.ops if op.category == "compute" and op.launch is not None]
    updates = [op for op in computes if OPTIMIZER.search(op.name)]
    if not updates or 2 * sum(any(launched_in(m, op) for op in updates) for m in members) >= len(
        members
    ):
        return False
    return any(
        sum(other.start <= m.start and m.end <= other.end for m in members) >= 2
        for other in users(process)
        if family_of(other.text) != family and other.thread == members[0].thread
    )


def qualifies(process: Process, family: str) -> bool:
    members = members_on(process, family)
    if len(members) < 2 or family.startswith(("aten::", "{'mod'")):
        return False
    launched = [op for op in kernels(process) if op.launch is not None]
    inside = [op for op in launched if any(launched_in(m, op) for m in members)]
    return 2 * len(inside) >= len(launched) and not is_part_of_a_step(process, family)


def is_inside(processes: list[Process], family: str, other: str) -> bool:
    def lie_in(inner: str, outer: str) -> bool:
        pairs = ((m, members_on(p, outer)) for p in processes for m in members_on(p, inner))
        return all(
            any(o.start <= m.start and m.end <= o.end for o in around) for m, around in pairs
        )

    return lie_in(family, other) and not lie_in(other, family)


def choose_family(processes: list[Process]) -> str | None:
    names = {family_of(r.text) for p in processes for r in users(p)}
    good = [f for f in names if all(qualifies(p, f) for p in processes)]
    outer = [f for f in good if re.search("epoch|warm-?up", f.lower())]
    good = [f for f in good if f not in outer] or outer
    if good != outer:
        good = [f for f in good if not any(is_inside(processes, f, other) for other in good)]
    if not good:
        return None

    def order(family):
        total = sum(union_on_best(p, family) for p in processes)
        return (-total, min(members_on(p, family)[0].start for p in processes), family)

    family = min(good, key=order)
    return family if any(windows(p, family) for p in processes) else None


def belongs(process: Process, member: Range) -> list[Op]:
    return [op for op in process.ops if launched_in(member, op)]


def windows(process: Process, family: str | None) -> list[tuple[int, int, int, bool]]:
    """Return (member, start, end, is_complete) of each window."""
    if family is None:
        first = min(op.start for op in process.ops)
        return [(0, first, max(op.end for op in process.ops), False)]
    members = members_on(process, family)
    if all(op.launch is None for op in process.ops):
        starts = [m.start for m in members] + [members[-1].end]
        return [(i, starts[i], starts[i + 1], i < len(members) - 1) for i in range(len(members))]
    begun: list[tuple[int, int]] = []
    for index, member in enumerate(members):
        first = [op.start for op in belongs(process, member) if is_kernel(op)]
        if first and (not begun or min(first) > begun[-1][1]):
            begun.append((index, min(first)))
    result = []
    for at, (index, start) in enumerate(begun):
        if at + 1 < len(begun):
            result.append((index, start, begun[at + 1][1], at > 0 or index == 0))
        else:
            result.append(
                (index, start, max(op.end for op in belongs(process, members[index])), False)
            )
    return result


def numbers(processes: list[Process], family: str | None) -> list[list[int]]:
    if family is None:
        return [[0] for _ in processes]
    texts = [[m.text for m in members_on(process, family)] for process in processes]
    found = [[re.findall(r"\d+", re.sub(r", seq = \d+", "", t)) for t in own] for own in texts]
    if all(len(one) == 1 for own in found for one in own):
        steps = [[int(one[0]) for one in own] for own in found]
        if all(len(set(own)) == len(own) for own in steps):
            return steps
    return [list(range(len(own))) for own in texts]


def role_of(r: Range) -> str | None:
    return next(
        (name for name, pattern in ROLES.items() if re.search(pattern, family_of(r.text))), None
    )


def phase_ranges(process: Process, family: str | None, role: str) -> list[tuple[int, int, int]]:
    """Return (member, start, end) of the host ranges of a role inside the step ranges."""
    if family is None:
        return []
    members = members_on(process, family)
    inside = []
    for r in users(process):
        begun = [i for i, m in enumerate(members) if m.start <= r.start]
        if begun and r not in members and role_of(r):
            member = members[begun[-1]]
            if r.thread == member.thread and r.end <= member.end:
                inside.append((begun[-1], r))
    found = []
    for index, r in inside:
        others = [o for _, o in inside if o is not r and r.start <= o.start and o.end <= r.end]
        if role_of(r) == role and all(role_of(o) == role for o in others):
            found.append((index, r.start, r.end))
    return [
        (index, a, b)
        for index, a, b in found
        if not any(start <= a and b <= end and (start, end) != (a, b) for _, start, end in found)
    ]


# What is not known where communication was not seen: it may have counted as compute.
UNSEEN = (
    "compute_ns",
    "comm_ns",
    "exposed_comm_ns",
    "overlap_compute_ns",
    "overlap_backward_ns",
    "n_collectives",
)


# Not known where step ranges leave communication out.
PARTS = (
    "overlap_backward_ns",
    "grad_copy_ns",
    "exposed_grad_copy_ns",
    "grad_copy_span_ns",
    "grad_copy_bytes",
    "n_grad_copies",
)


def lacks_comm(processes: list[Process]) -> bool:
    return len(processes) > 1 and not any(op.category == "comm" for p in processes for op in p.ops)


def leaves_comm_out(spans, launches, of_comm) -> bool:
    """Tell whether of launches from the first span to the last, or of communication's, over a tenth are in none, some communication."""

    def outside(times) -> tuple[int, float]:
        reached = [t for t in times if spans and spans[0][0] <= t < spans[-1][1]]
        n = sum(not any(start <= t < end for start, end in spans) for t in reached)
        return n, n / max(len(reached), 1)

    (_, share), (n_comm, share_of_comm) = outside(launches), outside(of_comm)
    return n_comm > 0 and max(share, share_of_comm) > 0.1


def is_part_known(processes: list[Process], family: str | None) -> bool:
    launched = [
        ([op for op in kernels(p) if op.launch is not None], p) for p in processes if family
    ]
    return any(
        leaves_comm_out(
            [(m.start, m.end) for m in members_on(p, family)],
            [op.launch for op in own],
            [op.launch for op in own if op.category == "comm"],
        )
        for own, p in launched
    )


def breakdown(process: Process, family: str | None) -> list[dict[str, object]]:
    compute = ticks((op.start, op.end) for op in process.ops if op.category == "compute")
    comm = ticks((op.start, op.end) for op in process.ops if op.category == "comm")
    memory = ticks(
        (op.start, op.end)
        for op in process.ops
        if op.category in ("dtod", "copy", "memset", "unified")
    )
    dtod = ticks((op.start, op.end) for op in process.ops if op.category == "dtod")
    host = phase_ranges(process, family, "backward")
    has_launch = any(op.launch is not None for op in kernels(process))
    computes = [op for op in process.ops if op.category == "compute" and op.launch is not None]
    backward = ticks(
        (op.start, op.end) for op in computes if any(a <= op.launch < b for _, a, b in host)
    )
    rows = []
    for index, start, end, complete in windows(process, family):
        window = set(range(start, end))
        copies = [op for op in process.ops if op.category == "dtod" and start <= op.start < end]
        rows.append(
            {
                "member": index,
                "start_ns": start,
                "end_ns": end,
                "is_complete": complete,
                "wall_ns": len(window),
                "compute_ns": len(compute & window),
                "comm_ns": len(comm & window),
                "exposed_comm_ns": len((comm - compute) & window),
                "idle_ns": len(window - compute - comm - memory),
                "exposed_memory_ns": len((memory - compute - comm) & window),
                "dtod_ns": len(dtod & window),
                "dtod_bytes": sum(op.n_bytes for op in copies),
                "n_dtod": len(copies),
                "exposed_dtod_ns": len((dtod - compute - comm) & window),
                "overlap_compute_ns": len(comm & compute & window),
                "overlap_backward_ns": len(comm & backward & window)
                if host and has_launch
                else None,
                "n_collectives": sum(
                    op.category == "comm" and start <= op.start < end for op in process.ops
                ),
            }
        )
    return rows
