"""Idle causes, gradient copies, phases and kernels once more: every nanosecond is asked by itself.

Written from the docstrings and the schema's text, not from the code, and sharing nothing with it.
"""

import itertools
from dataclasses import dataclass

from tests.property import oracle

LABELS = {"comm": "ncclDevKernel_AllReduce_Sum_f32_RING_LL"}
PAUSE = 12  # built runs are of some hundred ns: a pause is as short there
MEASURED = ("compute_ns", "comm_ns", "exposed_comm_ns", "device_ns", "idle_ns")


def holds(spans, time: int | None) -> bool:
    return time is not None and any(start <= time < end for start, end in spans)


def roles(process: oracle.Process, family: str | None) -> dict[str, list[tuple[int, int]]]:
    return {role: [span[1:] for span in oracle.phase_ranges(process, family, role)] for role in oracle.ROLES}


def phase_of(op: oracle.Op, spans: dict[str, list[tuple[int, int]]]) -> str | None:
    return next((role for role in oracle.ROLES if holds(spans[role], op.launch)), None)


@dataclass(frozen=True)
class Gap:
    start: int
    end: int
    ending: oracle.Op  # of unified memory, which nothing launches, the next that something does


def gap_at(process: oracle.Process, tick: int) -> Gap | None:
    """Return the gap between two operations that an idle nanosecond lies in."""
    before = [op.end for op in process.ops if op.start <= tick]
    after = [op for op in process.ops if op.start > tick]
    if not before or not after:
        return None
    first = min(op.start for op in after)

    def order(op: oracle.Op):
        return op.start, not oracle.is_kernel(op), op.launch is None, op.launch or 0

    ending = min(after, key=order)
    launched = [op for op in after if order(op) >= order(ending) and op.category != "unified"]
    return Gap(max(before), first, min(launched, key=order) if launched else ending)


def latency(process: oracle.Process) -> int:
    return max(min((op.start - op.launch for op in oracle.kernels(process) if op.launch is not None), default=0), 0)


def cause(process: oracle.Process, tick: int, data: list[tuple[int, int]]) -> str:
    gap = gap_at(process, tick)
    if gap is None or gap.ending.launch is None:
        return "unknown"
    ready = min(max(gap.ending.launch + latency(process), gap.start), gap.end)
    if tick >= ready:
        return "dependency"
    if holds(data, tick):
        return "input"
    under_way = [call for call in process.calls if call.start <= gap.start < call.end]
    last = min(under_way, key=lambda call: (-call.end, call.start), default=None)
    is_made_up_for = last is not None and tick < gap.start + last.end - last.start
    calls = [(call.start, call.end) for call in process.calls]
    return "blocked" if is_made_up_for or holds(calls, tick) else "launch"


def between_steps(process: oracle.Process, family: str | None) -> tuple[list, list]:
    """Return the ranges of the data phase between steps, and the longest time in no range and no call in each gap.

    Where steps leave less than a pause between them, also the longest pause between the launches around the next one's start.
    """
    members = oracle.members_on(process, family) if family else []
    launches = sorted(op.launch for op in oracle.kernels(process) if op.launch is not None)
    data, places, around = [], [], []
    for before, after in itertools.pairwise(members):
        own = [one for one in process.ranges if one.thread == before.thread]
        own = [one for one in own if not any(one.start <= m.start and m.end <= one.end for m in members)]
        loads = [one for one in own if oracle.role_of(one) == "data"]
        data += [(max(one.start, before.end), min(one.end, after.start)) for one in loads]
        calls = [(one.start, one.end) for one in process.calls]
        calls += [(op.launch, op.launch + 1) for op in process.ops if op.launch is not None]
        spans = [(one.start, one.end) for one in own] + (calls if before.thread == 1 else [])
        places.append((range(before.end, after.start), spans, 1))
        ends = [at for at in launches if at < after.start][-1:] + [at for at in launches if at >= after.start][:1]
        if after.start - before.end < PAUSE and len(ends) == 2 and ends not in around:
            around.append(ends)
            places.append((range(*ends), spans, PAUSE))
    found = [(longest, least) for gap, spans, least in places if (longest := _longest_free(gap, spans))]
    return data, [span for span, least in found if _can_block(process) and span[1] - span[0] >= least]


def _longest_free(gap: range, spans: list[tuple[int, int]]) -> tuple[int, int] | None:
    free = [tick for tick in gap if not holds(spans, tick)]
    runs = [[tick for _, tick in run] for _, run in itertools.groupby(enumerate(free), lambda one: one[1] - one[0])]
    longest = max(runs, key=len, default=None)
    return None if longest is None else (longest[0], longest[-1] + 1)


def _can_block(process: oracle.Process) -> bool:
    return bool(process.calls) or any(op.launch is not None for op in process.ops)


def _pauses(process: oracle.Process, data: list[tuple[int, int]]) -> list[int]:
    """Return the ticks of long stretches in which a launch is late and nothing else is to blame, each of one gap."""
    if not process.ops:
        return []
    idle = sorted(idle_ticks(process, min(op.start for op in process.ops), max(op.end for op in process.ops)))
    stretches: list[list[int]] = [[]]
    for tick in idle:
        if cause(process, tick, data) != "launch":
            continue
        last = stretches[-1]
        is_next = last and last[-1] == tick - 1 and gap_at(process, tick) == gap_at(process, tick - 1)
        stretches += [] if is_next else [[]]
        stretches[-1].append(tick)
    return [tick for one in stretches if len(one) >= PAUSE for tick in one]


def idle_ticks(process: oracle.Process, start: int, end: int) -> set[int]:
    return set(range(start, end)) - oracle.ticks((op.start, op.end) for op in process.ops)


def idle_causes(process: oracle.Process, family: str | None) -> list[dict[str, int | None]]:
    """Return the five causes of each window, and what of them lies between two steps."""
    more, quiet = between_steps(process, family)
    data = roles(process, family)["data"] + more + quiet
    can_block = _can_block(process)
    pauses = _pauses(process, data)
    rows = []
    for _, start, end, _ in oracle.windows(process, family):
        idle = idle_ticks(process, start, end)
        causes = [cause(process, tick, data) for tick in idle]
        names = ("input", "launch", "blocked", "dependency", "unknown")
        row: dict[str, int | None] = {f"idle_{name}_ns": causes.count(name) for name in names}
        input_ticks = [tick for tick in idle if cause(process, tick, data) == "input"]
        row["idle_between_steps_ns"] = sum(holds(quiet, tick) for tick in input_ticks)
        row["idle_pause_ns"] = sum(pauses.count(tick) for tick in idle)
        if not can_block:  # no call of the API was recorded
            row |= {"idle_launch_ns": None, "idle_blocked_ns": None, "idle_pause_ns": None}
        rows.append(row)
    return rows


def grad_copies(process: oracle.Process, family: str | None) -> list[dict[str, int]]:
    backward = roles(process, family)["backward"]
    launched = [op for op in process.ops if op.category == "dtod" and op.launch is not None]
    launched.sort(key=lambda op: op.launch or 0)
    others = [op.launch for op in process.ops if op.category != "dtod" and op.launch is not None]
    runs: list[list[oracle.Op]] = []
    for op in launched:
        between = runs and [t for t in others if runs[-1][-1].launch <= t < op.launch]
        if not runs or between:
            runs.append([])
        runs[-1].append(op)
    found = [op for run in runs if len(run) >= 8 for op in run]
    if backward:
        found = [op for op in found if holds(backward, op.launch)]
    covered = oracle.ticks((op.start, op.end) for op in found)
    busy = oracle.ticks((op.start, op.end) for op in oracle.kernels(process))
    rows = []
    for _, start, end, _ in oracle.windows(process, family):
        begun = [op for op in found if start <= op.start < end]
        own = covered & set(range(start, end))
        rows.append({
            "grad_copy_ns": len(own), "exposed_grad_copy_ns": len(own - busy),
            "grad_copy_bytes": sum(op.n_bytes for op in begun), "n_grad_copies": len(begun),
            "grad_copy_span_ns": max(own, default=-1) + 1 - min(own, default=0),  # no two are 20 us apart
        })  # fmt: skip
    return rows


def phases(process: oracle.Process, family: str | None) -> dict[tuple[int, str], dict[str, int | None]]:
    """Return the costs of each (member, phase) that has a range."""
    spans = roles(process, family)
    has_launch = any(op.launch is not None for op in oracle.kernels(process))
    of_member = {index: set(range(a, b)) for index, a, b, _ in oracle.windows(process, family)}
    compute = oracle.ticks((op.start, op.end) for op in process.ops if op.category == "compute")
    found = {}
    for role in oracle.ROLES:
        own = [op for op in process.ops if phase_of(op, spans) == role]
        by_category = ([(op.start, op.end) for op in own if op.category == one] for one in ("compute", "comm"))
        computes, comms = map(oracle.ticks, by_category)
        device = oracle.ticks((op.start, op.end) for op in own)
        for index in {index for index, _, _ in oracle.phase_ranges(process, family, role)}:
            member = oracle.members_on(process, family)[index]
            host = [(a, b) for i, a, b in oracle.phase_ranges(process, family, role) if i == index]
            row: dict[str, int | None] = {
                "host_ns": len(oracle.ticks(host) & set(range(member.start, member.end))),
                **dict.fromkeys(("n_kernels", *MEASURED)),
            }
            if has_launch:
                row["n_kernels"] = sum(holds(host, op.launch) for op in oracle.kernels(process))
            if has_launch and index in of_member:
                window = of_member[index]
                idle = idle_ticks(process, min(window, default=0), max(window, default=-1) + 1)
                gaps = [gap_at(process, tick) for tick in idle]
                row |= {
                    "compute_ns": len(computes & window), "comm_ns": len(comms & window),
                    "exposed_comm_ns": len((comms - compute) & window), "device_ns": len(device & window),
                    "idle_ns": sum(gap is not None and phase_of(gap.ending, spans) == role for gap in gaps),
                }  # fmt: skip
            found[index, role] = row
    return found


def kernel_costs(
    process: oracle.Process, family: str | None, summary: set[int]
) -> dict[tuple[str | None, str], dict[str, float | None]]:
    """Return the costs of the kernels of each (phase, name); members in `summary` are the figures'."""
    counted = [(a, b) for member, a, b, _ in oracle.windows(process, family) if member in summary]
    spans = roles(process, family)
    comm = oracle.ticks((op.start, op.end) for op in process.ops if op.category == "comm")
    equals = _equal_kernels(process, comm)
    groups: dict[tuple[str | None, str], list[int]] = {}
    for at, op in enumerate(process.ops):
        if oracle.is_kernel(op):
            groups.setdefault((phase_of(op, spans), LABELS.get(op.category, op.name)), []).append(at)
    found = {}
    for key, places in groups.items():
        ops = [process.ops[at] for at in places]
        lengths = [op.end - op.start for op in ops]
        beside = [len(comm & oracle.ticks([(op.start, op.end)])) if op.category == "compute" else 0 for op in ops]
        slowed = [equals[at] for at in places if at in equals]
        inside = [at for at, op in enumerate(ops) if holds(counted, op.start)]
        slow, free = (sum(pair[side] for pair in slowed) for side in (0, 1))
        total, n = sum(lengths), len(ops)
        found[key] = {
            "n_kernels": n, "total_ns": total, "mean_ns": total // n, "min_ns": min(lengths), "max_ns": max(lengths),
            "overlapped_ns": sum(beside), "not_overlapped_ns": total - sum(beside),
            "n_slowed": len(slowed), "slowed_ns": slow, "free_ns": free, "slowdown_ratio": slow / free - 1 if free else None,
            "n_in_summary": len(inside), "in_summary_ns": sum(lengths[at] for at in inside),
            "overlapped_in_summary_ns": sum(beside[at] for at in inside),
        }  # fmt: skip
    return found


def _equal_kernels(process: oracle.Process, comm: set[int]) -> dict[int, tuple[int, int]]:
    """Return for each kernel beside communication with enough equals how much of it was, and what that takes free."""
    order = [at for at, op in enumerate(process.ops) if op.category == "compute"]
    order.sort(key=lambda at: (process.ops[at].launch is None, process.ops[at].launch or 0))
    identity = [(process.ops[at].name, process.ops[at].grid) for at in order]
    beside: list[tuple[object, int, int, int]] = []
    free: dict[object, list[int]] = {}
    for place in range(3, len(order) - 3):
        op = process.ops[order[place]]
        length, covered = op.end - op.start, len(comm & oracle.ticks([(op.start, op.end)]))
        around = tuple(identity[place - 3 : place + 4])
        if length and not covered:
            free.setdefault(around, []).append(length)
        elif length:
            beside.append((around, order[place], length, covered))
    found = {}
    for around, at, length, covered in beside:
        equals = sorted(free.get(around, []))
        n = len(equals)
        if n >= 3 and equals[7 * n // 8] - equals[n // 8] <= 0.5 * oracle.median(equals):
            found[at] = (covered, max(covered - (length - oracle.median(equals)), 0))
    return found
