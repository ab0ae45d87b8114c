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
    return {
        role: [span[1:] for span in oracle.phase_ranges(process, family, role)]
        for role in oracle.ROLES
    }


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
    return max(
        min(
            (op.start - op.launch for op in oracle.kernels(process) if op.launch is not None),
            default=0,
        ),
        0,
    )


def late_ticks(process: oracle.Process) -> list[int]:
    """Return the idle nanoseconds that go by before the operation that ends their gap could have started, in order."""
    if not process.ops:
        return []
    found = []
    for tick in sorted(
        idle_ticks(process, min(op.start for op in process.ops), max(op.end for op in process.ops))
    ):
        gap = gap_at(process, tick)
        is_launched = gap is not None and gap.ending.launch is not None
        if is_launched and tick < min(
            max(gap.ending.launch + latency(process), gap.start), gap.end
        ):
            found.append(tick)
    return found


Call = tuple[int, int]


def explained_until(call: Call, idle: list[int]) -> int:
    """Return when a call has explained as many idle nanoseconds as it lasted, at most as long behind its end as it lasted."""
    start, end = call
    behind = [tick for tick in idle if tick >= start][: end - start]
    is_spent = len(behind) == end - start
    return min(max(behind[-1] + 1, end), 2 * end - start) if is_spent else 2 * end - start


def made_by(held_up: list[Call], idle: list[int]) -> set[int]:
    """Return which idle nanoseconds times explain in which the host was held up."""
    return {
        tick for call in held_up for tick in idle if call[0] <= tick < explained_until(call, idle)
    }


def owner(tick: int, calls: list[Call], idle: list[int]) -> int | None:
    """Return which call explains a nanosecond: of those under way the last to return, else the one that explains longest."""
    under_way = [at for at, (start, end) in enumerate(calls) if start <= tick < end]
    if under_way:
        return min(under_way, key=lambda at: (-calls[at][1], calls[at][0], at))
    until = {at: explained_until(call, idle) for at, call in enumerate(calls)}
    explains = [at for at, (start, _) in enumerate(calls) if start <= tick < until[at]]
    return min(explains, key=lambda at: (-until[at], *calls[at], at), default=None)


def blocking_copies(process: oracle.Process) -> dict[int, int]:
    """Return the copies from the host of which the next call synchronises, and the place of that call.

    No copy is built out of pageable memory, and every second call synchronises.
    """
    starts = [op.launch for op in process.ops if op.launch is not None] + [
        call.start for call in process.calls
    ]
    syncs = range(0, len(process.calls), 2)
    found = {}
    for number, op in enumerate(process.ops):
        if op.category != "copy" or op.launch is None:
            continue
        later = [at for at in syncs if process.calls[at].start >= op.launch]
        following = min(later, key=lambda at: process.calls[at].start, default=None)
        if following is not None and not any(
            op.launch < at < process.calls[following].start for at in starts
        ):
            found[number] = following
    return found


def copies_from_host(process: oracle.Process, family: str | None) -> list[dict[str, int | None]]:
    """Return the blocking copies of each window."""
    copies = [process.ops[at] for at in blocking_copies(process)]
    covered = oracle.ticks((op.start, op.end) for op in copies)
    busy = oracle.ticks((op.start, op.end) for op in oracle.kernels(process))
    rows = []
    for _, start, end, _ in oracle.windows(process, family):
        begun = [op for op in copies if start <= op.start < end]
        row: dict[str, int | None] = {
            "n_blocking_copies": len(begun),
            "n_pageable_copies": None if copies else 0,
            "blocking_copy_bytes": sum(op.n_bytes for op in begun),
            "exposed_blocking_copy_ns": len((covered - busy) & set(range(start, end))),
        }
        rows.append(row if _can_block(process) else dict.fromkeys(row))
    return rows


def cause(
    process: oracle.Process, tick: int, data: list[tuple[int, int]], blocked: set[int]
) -> str:
    gap = gap_at(process, tick)
    if gap is None or gap.ending.launch is None:
        return "unknown"
    ready = min(max(gap.ending.launch + latency(process), gap.start), gap.end)
    if tick >= ready:
        return "dependency"
    if holds(data, tick):
        return "input"
    return "blocked" if tick in blocked else "launch"


def between_steps(process: oracle.Process, family: str | None) -> tuple[list, list]:
    """Return the ranges of the data phase between steps, and the longest time in no range and no call in each gap.

    Where steps leave less than a pause between them, also the longest pause between the launches
    around the next one's start, unless the program marks when it loads data.
    """
    members = oracle.members_on(process, family) if family else []
    launches = sorted(op.launch for op in oracle.kernels(process) if op.launch is not None)
    data, places, around = [], [], []
    for before, after in itertools.pairwise(members):
        own = [one for one in process.ranges if one.thread == before.thread]
        own = [
            one
            for one in own
            if not any(one.start <= m.start and m.end <= one.end for m in members)
        ]
        loads = [one for one in own if oracle.role_of(one) == "data"]
        data += [(max(one.start, before.end), min(one.end, after.start)) for one in loads]
        calls = [(one.start, one.end) for one in process.calls]
        calls += [(op.launch, op.launch + 1) for op in process.ops if op.launch is not None]
        spans = [(one.start, one.end) for one in own] + (calls if before.thread == 1 else [])
        places.append((range(before.end, after.start), spans, 1))
        ends = [at for at in launches if at < after.start][-1:] + [
            at for at in launches if at >= after.start
        ][:1]
        is_without_gap = after.start - before.end < PAUSE
        if is_without_gap and not loads and len(ends) == 2 and ends not in around:
            around.append(ends)
            places.append((range(*ends), spans, PAUSE))
    found = [
        (longest, least) for gap, spans, least in places if (longest := _longest_free(gap, spans))
    ]
    return data, [
        span for span, least in found if _can_block(process) and span[1] - span[0] >= least
    ]


def _merged(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the longest stretches of nanoseconds in any of some spans."""
    covered = sorted(oracle.ticks(spans))
    runs = [
        [tick for _, tick in run]
        for _, run in itertools.groupby(enumerate(covered), lambda one: one[1] - one[0])
    ]
    return [(run[0], run[-1] + 1) for run in runs]


def _longest_free(gap: range, spans: list[tuple[int, int]]) -> tuple[int, int] | None:
    free = [tick for tick in gap if not holds(spans, tick)]
    runs = [
        [tick for _, tick in run]
        for _, run in itertools.groupby(enumerate(free), lambda one: one[1] - one[0])
    ]
    longest = max(runs, key=len, default=None)
    return None if longest is None else (longest[0], longest[-1] + 1)


def _can_block(process: oracle.Process) -> bool:
    return bool(process.calls) or any(op.launch is not None for op in process.ops)


def _pauses(process: oracle.Process, data: list[tuple[int, int]], blocked: set[int]) -> list[int]:
    """Return the ticks of long stretches in which a launch is late and nothing else is to blame, each of one gap."""
    if not process.ops:
        return []
    idle = sorted(
        idle_ticks(process, min(op.start for op in process.ops), max(op.end for op in process.ops))
    )
    stretches: list[list[int]] = [[]]
    for tick in idle:
        if cause(process, tick, data, blocked) != "launch":
            continue
        last = stretches[-1]
        is_next = (
            last and last[-1] == tick - 1 and gap_at(process, tick) == gap_at(process, tick - 1)
        )
        stretches += [] if is_next else [[]]
        stretches[-1].append(tick)
    return [tick for one in stretches if len(one) >= PAUSE for tick in one]


def allocating(process: oracle.Process) -> list[oracle.Call]:
    return [call for call in process.calls if call.name.startswith("cudaMalloc")]


def memory_calls(process: oracle.Process, family: str | None) -> list[dict[str, int | None]]:
    """Return the calls that allocate memory, by the step range that each of them follows."""
    calls = allocating(process)
    in_calls = oracle.ticks((call.start, call.end) for call in calls)
    found = oracle.windows(process, family)
    members = oracle.members_on(process, family) if family else []
    rows = []
    for place, (member, start, end, _) in enumerate(found):
        first, last = -1000, 1000
        if members:
            is_last = place + 1 == len(found)
            first = members[member].start
            last = members[member].end if is_last else members[found[place + 1][0]].start
        n_allocs = sum(first <= call.start < last for call in calls)
        row: dict[str, int | None] = {
            "n_allocs": n_allocs,
            "n_frees": 0,
            "n_failed_allocs": 0,
            "alloc_bytes": None if n_allocs else 0,
            "freed_bytes": 0,
            "alloc_host_ns": sum(first <= tick < last for tick in in_calls),
            "exposed_alloc_ns": len(in_calls & idle_ticks(process, start, end)),
        }
        if not _can_block(process):
            row = dict.fromkeys(row)
        rows.append(row)
    return rows


def idle_ticks(process: oracle.Process, start: int, end: int) -> set[int]:
    return set(range(start, end)) - oracle.ticks((op.start, op.end) for op in process.ops)


def idle_causes(process: oracle.Process, family: str | None) -> list[dict[str, int | None]]:
    """Return the five causes of each window, what of them lies between two steps, and what their sources make at most."""
    more, quiet = between_steps(process, family)
    data = roles(process, family)["data"] + more + quiet
    can_block = _can_block(process)
    of_copies = set(blocking_copies(process).values())
    timed = [
        (call.start, call.end, at in of_copies)
        for at, call in enumerate(process.calls)
        if call.end > call.start
    ]
    is_alloc = [call in allocating(process) for call in process.calls if call.end > call.start]
    calls = [(start, end) for start, end, _ in timed]
    late = late_ticks(process)
    blocked = made_by(calls, late)
    by_copies = {
        tick for tick in blocked if (at := owner(tick, calls, late)) is not None and timed[at][2]
    }
    by_allocs = {
        tick for tick in blocked if (at := owner(tick, calls, late)) is not None and is_alloc[at]
    }
    pauses = _pauses(process, data, blocked)
    late_gaps = {
        (gap.start, gap.end) for tick in late if (gap := gap_at(process, tick)) is not None
    }
    in_late_gaps = sorted(tick for start, end in late_gaps for tick in range(start, end))
    held_up = {
        "input": _merged(data),
        "calls": [(start, end) for start, end, is_of_copy in timed if not is_of_copy],
        "copies": [(start, end) for start, end, is_of_copy in timed if is_of_copy],
        "allocs": [span[:2] for span, allocates in zip(timed, is_alloc, strict=True) if allocates],
    }
    made = {source: made_by(times, in_late_gaps) for source, times in held_up.items()}
    rows = []
    for _, start, end, _ in oracle.windows(process, family):
        idle = idle_ticks(process, start, end)
        causes = [cause(process, tick, data, blocked) for tick in idle]
        names = ("input", "launch", "blocked", "dependency", "unknown")
        row: dict[str, int | None] = {f"idle_{name}_ns": causes.count(name) for name in names}
        input_ticks = [tick for tick in idle if cause(process, tick, data, blocked) == "input"]
        row["idle_between_steps_ns"] = sum(holds(quiet, tick) for tick in input_ticks)
        row["idle_pause_ns"] = sum(pauses.count(tick) for tick in idle)
        in_blocked = [tick for tick in idle if cause(process, tick, data, blocked) == "blocked"]
        row["idle_blocked_by_copies_ns"] = sum(tick in by_copies for tick in in_blocked)
        row["idle_blocked_by_allocs_ns"] = sum(tick in by_allocs for tick in in_blocked)
        row |= {f"idle_made_by_{source}_ns": len(ticks & idle) for source, ticks in made.items()}
        if not can_block:  # no call of the API was recorded
            of_calls = (
                "launch",
                "blocked",
                "pause",
                "blocked_by_copies",
                "made_by_calls",
                "made_by_copies",
                "blocked_by_allocs",
                "made_by_allocs",
            )
            row |= {f"idle_{name}_ns": None for name in of_calls}
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
        rows.append(
            {
                "grad_copy_ns": len(own),
                "exposed_grad_copy_ns": len(own - busy),
                "grad_copy_bytes": sum(op.n_bytes for op in begun),
                "n_grad_copies": len(begun),
                "grad_copy_span_ns": max(own, default=-1)
                + 1
                - min(own, default=0),  # no two are 20 us apart
            }
        )
    return rows


def phases(
    process: oracle.Process, family: str | None
) -> dict[tuple[int, str], dict[str, int | None]]:
    """Return the costs of each (member, phase) that has a range."""
    spans = roles(process, family)
    has_launch = any(op.launch is not None for op in oracle.kernels(process))
    of_member = {index: set(range(a, b)) for index, a, b, _ in oracle.windows(process, family)}
    compute = oracle.ticks((op.start, op.end) for op in process.ops if op.category == "compute")
    found = {}
    for role in oracle.ROLES:
        own = [op for op in process.ops if phase_of(op, spans) == role]
        by_category = (
            [(op.start, op.end) for op in own if op.category == one] for one in ("compute", "comm")
        )
        computes, comms = map(oracle.ticks, by_category)
        device = oracle.ticks((op.start, op.end) for op in own)
        for index in {index for index, _, _ in oracle.phase_ranges(process, family, role)}:
            member = oracle.members_on(process, family)[index]
            host = [(a, b) for i, a, b in oracle.phase_ranges(process, family, role) if i == index]
            row: dict[str, int | None] = {
                "host_ns": len(oracle.ticks(host) & set(range(member.start, member.end))),
                **dict.fromkeys(("n_kernels", *MEASURED, "n_blocking_copies")),
            }
            if _can_block(process):
                copies = [process.ops[at] for at in blocking_copies(process)]
                inside = [(max(a, member.start), min(b, member.end)) for a, b in host]
                row["n_blocking_copies"] = sum(holds(inside, op.launch) for op in copies)
            if has_launch:
                row["n_kernels"] = sum(holds(host, op.launch) for op in oracle.kernels(process))
            if has_launch and index in of_member:
                window = of_member[index]
                idle = idle_ticks(process, min(window, default=0), max(window, default=-1) + 1)
                gaps = [gap_at(process, tick) for tick in idle]
                row |= {
                    "compute_ns": len(computes & window),
                    "comm_ns": len(comms & window),
                    "exposed_comm_ns": len((comms - compute) & window),
                    "device_ns": len(device & window),
                    "idle_ns": sum(
                        gap is not None and phase_of(gap.ending, spans) == role for gap in gaps
                    ),
                }
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
            groups.setdefault((phase_of(op, spans), LABELS.get(op.category, op.name)), []).append(
                at
            )
    found = {}
    for key, places in groups.items():
        ops = [process.ops[at] for at in places]
        lengths = [op.end - op.start for op in ops]
        beside = [
            len(comm & oracle.ticks([(op.start, op.end)])) if op.category == "compute" else 0
            for op in ops
        ]
        slowed = [equals[at] for at in places if at in equals]
        inside = [at for at, op in enumerate(ops) if holds(counted, op.start)]
        slow, free = (sum(pair[side] for pair in slowed) for side in (0, 1))
        total, n = sum(lengths), len(ops)
        found[key] = {
            "n_kernels": n,
            "total_ns": total,
            "mean_ns": total // n,
            "min_ns": min(lengths),
            "max_ns": max(lengths),
            "overlapped_ns": sum(beside),
            "not_overlapped_ns": total - sum(beside),
            "n_slowed": len(slowed),
            "slowed_ns": slow,
            "free_ns": free,
            "slowdown_ratio": slow / free - 1 if free else None,
            "n_in_summary": len(inside),
            "in_summary_ns": sum(lengths[at] for at in inside),
            "overlapped_in_summary_ns": sum(beside[at] for at in inside),
        }
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
