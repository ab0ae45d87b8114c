"""Section 6 of the definitions once more, as slow and plain as possible: loops over ranks, steps and nanoseconds.

Written from the definitions, not from the code, and sharing nothing with it.
"""

from collections import Counter
from dataclasses import dataclass, replace
from functools import lru_cache

from tests.property.oracle import leaves_comm_out, median, ticks


@dataclass(frozen=True)
class Kernel:
    """A kernel of one rank, on its report's clock; compute has no collective."""

    start: int
    end: int
    launch: int | None
    collective: str | None = None
    stream: int = 0


@dataclass(frozen=True)
class Rank:
    """Step ranges are (number, start, end) in order of time."""

    report: int
    steps: tuple[tuple[int, int, int], ...]
    kernels: tuple[Kernel, ...]


@dataclass(frozen=True)
class Run:
    """Ranks by number; for each report the session's start, None where it is not recorded."""

    ranks: tuple[Rank, ...]
    sessions: tuple[int | None, ...]


def moved(rank: Rank, by: int) -> Rank:
    return replace(
        rank,
        steps=tuple((number, start + by, end + by) for number, start, end in rank.steps),
        kernels=tuple(
            replace(
                k,
                start=k.start + by,
                end=k.end + by,
                launch=None if k.launch is None else k.launch + by,
            )
            for k in rank.kernels
        ),
    )


def communicates(run: Run) -> bool:
    return len(run.ranks) == 1 or any(
        kernel.collective for rank in run.ranks for kernel in rank.kernels
    )


def is_part_known(run: Run) -> bool:
    launched = [[k for k in rank.kernels if k.launch is not None] for rank in run.ranks]
    return any(
        leaves_comm_out(
            [step[1:] for step in rank.steps],
            [k.launch for k in own],
            [k.launch for k in own if k.collective],
        )
        for rank, own in zip(run.ranks, launched, strict=True)
    )


# What is asked many times of the same rank and run is found once. Nobody changes an answer.
once = lru_cache(maxsize=4096)
TELL_CLOCKS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


def launched_in(rank: Rank, step) -> list[Kernel]:
    _, start, end = step
    return [k for k in rank.kernels if k.launch is not None and start <= k.launch < end]


@once
def windows(rank: Rank) -> list[tuple[int, int, int, bool]]:
    """Return (step, start, end, is_complete) of each window, on the report's clock."""
    begun: list[tuple[int, int]] = []
    for place, step in enumerate(rank.steps):
        starts = [k.start for k in launched_in(rank, step)]
        if starts and (not begun or min(starts) > begun[-1][1]):
            begun.append((place, min(starts)))
    found = []
    for (place, start), following in zip(begun, [*begun[1:], None], strict=True):
        if following is None:
            end, complete = max(k.end for k in launched_in(rank, rank.steps[place])), False
        else:
            end, complete = following[1], place == 0 or bool(found)
        found.append((rank.steps[place][0], start, end, complete))
    return found


@once
def step_of(rank: Rank, kernel: Kernel) -> int | None:
    if kernel.launch is None:
        inside = [number for number, start, end, _ in windows(rank) if start <= kernel.start < end]
    else:
        inside = [number for number, start, end in rank.steps if start <= kernel.launch < end]
    return inside[0] if inside else None


def comm_of(rank: Rank) -> list[Kernel]:
    return sorted((k for k in rank.kernels if k.collective), key=lambda k: k.start)


@once
def communicator_of(rank: Rank, kernel: Kernel) -> str:
    """Name the communicator: the collective, and its stream's place in the order in which most steps begin to use them."""

    def used(one: Kernel) -> int:
        return one.start if one.launch is None else one.launch

    def first_of(kernels: list[Kernel], stream: int) -> int:
        """Return when a stream is first used, and of streams used at once the one that starts first."""
        return min((used(k), at) for at, k in enumerate(kernels) if k.stream == stream)

    same = [k for k in comm_of(rank) if k.collective == kernel.collective]
    places: dict[int, list[int]] = {}
    for number, _, _ in rank.steps:
        own = [k for k in same if step_of(rank, k) == number]
        streams = sorted({k.stream for k in own}, key=lambda stream: first_of(own, stream))
        for place, stream in enumerate(streams):
            places.setdefault(stream, []).append(place)

    def order(stream: int):
        found = places.get(stream)
        mean = sum(found) / len(found) if found else float("inf")
        return mean, found[-1] if found else 0, first_of(same, stream)

    streams = sorted({k.stream for k in same}, key=order)
    return f"{kernel.collective}/{streams.index(kernel.stream)}"


Matched = dict[tuple[int, str, int], list[Kernel]]


def matched_collectives(run: Run) -> Matched:
    """Return by (step, communicator, k) the operations of all ranks; nothing where the ranks cannot all be one group."""
    matched = by_order(run)
    if len(run.ranks) > 2 and (
        counts_differ_in_every_step(run) or times_contradict_one_group(run, matched)
    ):
        return {}
    return matched


def counts_differ_in_every_step(run: Run) -> bool:
    """Tell whether, in three steps or more, ranks never make as many calls of some communicator."""
    calls = [[(step_of(r, k), communicator_of(r, k)) for k in comm_of(r)] for r in run.ranks]
    calls = [[one for one in own if one[0] is not None] for own in calls]
    if not all(calls):
        return False
    for communicator in {name for own in calls for _, name in own}:
        by_rank = [Counter(step for step, name in own if name == communicator) for own in calls]
        in_steps = {step for counts in by_rank for step in counts}
        if len(in_steps) >= 3 and all(
            len({counts[step] for counts in by_rank}) > 1 for step in in_steps
        ):
            return True
    return False


def times_contradict_one_group(run: Run, matched: Matched) -> bool:
    """Tell whether in some communicator one end in five precedes the last start, or ends lie apart as starts do."""
    if not has_common_clock(run, matched):
        return False
    move = to_aligned(run, matched)
    early, wide, apart = {}, Counter[str](), Counter[str]()
    for (_, communicator, _), own in matched.items():
        if own[0].collective not in TELL_CLOCKS:
            continue
        starts, ends = (
            [getattr(k, name) + by for k, by in zip(own, move, strict=True)]
            for name in ("start", "end")
        )
        early.setdefault(communicator, []).extend(end < max(starts) for end in ends)
        between_starts, between_ends = (max(times) - min(times) for times in (starts, ends))
        wide[communicator] += between_starts >= 100_000
        apart[communicator] += between_starts >= 100_000 and between_ends >= between_starts / 2
    often_early = any(any(own) and 5 * sum(own) >= len(own) for own in early.values())
    return often_early or any(n >= 3 and 2 * apart[name] >= n for name, n in wide.items())


def by_order(run: Run) -> Matched:
    """Return the operations that have the same place on all ranks."""
    lists: dict[tuple[int, str], list[list[Kernel]]] = {}
    for number, rank in enumerate(run.ranks):
        for kernel in comm_of(rank):
            step = step_of(rank, kernel)
            if step is not None:
                key = step, communicator_of(rank, kernel)
                lists.setdefault(key, [[] for _ in run.ranks])[number].append(kernel)
    found = {}
    for (step, communicator), own in lists.items():
        if len(run.ranks) > 1 and len({len(one) for one in own}) == 1:
            for k, operations in enumerate(zip(*own, strict=True)):
                found[step, communicator, k] = list(operations)
    return found


def session_shifts(run: Run) -> list[int]:
    if any(start is None for start in run.sessions):
        return [0] * len(run.sessions)
    return [start - min(run.sessions) for start in run.sessions]


def clocks(run: Run, matched: Matched | None = None) -> list[tuple[int, int | None]]:
    """Return (what is applied, error) of each report, by what is matched."""
    return clocks_of_matched(run) if matched is None else clocks_by(run, matched)


@once
def clocks_of_matched(run: Run) -> list[tuple[int, int | None]]:
    return clocks_by(run, matched_collectives(run))


def clocks_by(run: Run, matched: Matched) -> list[tuple[int, int | None]]:
    if len(run.sessions) == 1:
        return [(0, 0)]
    shifts = session_shifts(run)
    differences: list[list[int]] = [[] for _ in run.sessions]
    for operations in matched.values():
        if operations[0].collective in TELL_CLOCKS:
            ends = [k.end + shifts[r.report] for k, r in zip(operations, run.ranks, strict=True)]
            for end, rank in zip(ends, run.ranks, strict=True):
                differences[rank.report].append(end - median(ends))
    found = []
    for own in differences:
        if len(own) < 3:
            found.append((0, None))
            continue
        offset = median(own)
        spread = median([abs(one - offset) for one in own])
        error = (14826 * spread + 5000) // 10000
        found.append((offset if abs(offset) > error else 0, error))
    return found


def to_aligned(run: Run, matched: Matched | None = None) -> list[int]:
    shifts, offsets = session_shifts(run), clocks(run, matched)
    return [shifts[rank.report] - offsets[rank.report][0] for rank in run.ranks]


def has_common_clock(run: Run, matched: Matched | None = None) -> bool:
    if len(run.sessions) == 1 or all(start is not None for start in run.sessions):
        return True
    return all(error is not None for _, error in clocks(run, matched))


def summary_steps(run: Run) -> list[int]:
    own = [windows(rank) for rank in run.ranks]
    complete = [{number for number, _, _, done in one if done} for one in own]
    common = sorted(set.intersection(*complete))
    if not common:
        return sorted(set.intersection(*({number for number, *_ in one} for one in own)))
    return common[1:] if len(common) > 1 else common


@once
def collectives(run: Run) -> list[dict[str, object]]:
    """Return a row per operation that belongs to a step; `id` stands for its collective, None unmatched."""
    move, errors = to_aligned(run), [clocks(run)[rank.report][1] for rank in run.ranks]
    chosen, known = summary_steps(run), has_common_clock(run)
    matched = matched_collectives(run) if known else {}
    rows = []
    for number, rank in enumerate(run.ranks):
        for kernel in comm_of(rank):
            step = step_of(rank, kernel)
            if step is None:
                continue
            key = next((key for key, own in matched.items() if own[number] is kernel), None)
            rows.append(
                {
                    "id": key,
                    "step": step,
                    "rank": number,
                    "collective": kernel.collective,
                    "comm_id": communicator_of(rank, kernel),
                    "start_ns": kernel.start + move[number],
                    "end_ns": kernel.end + move[number],
                    "is_matched": key is not None,
                    "in_summary": step in chosen,
                    **arrival(number, kernel, matched.get(key), move, errors),
                }
            )
    return rows


def arrival(number, kernel, operations, move, errors) -> dict[str, object]:
    names = "n_ranks", "arrival_skew_ns", "wait_ns", "transfer_ns", "late_by_ns"
    if operations is None:
        return dict.fromkeys([*names, "is_significant", "is_late_significant"])
    starts = [one.start + move[place] for place, one in enumerate(operations)]
    ordered = sorted(starts)
    first, second_last, last = ordered[0], ordered[-2], ordered[-1]
    late_by = last - second_last if starts[number] == last else 0

    def exceeds(size: int, *times: int) -> bool:
        """Tell whether no clock of the ranks that arrived at those times is off by that much."""
        concerned = [errors[place] for place, start in enumerate(starts) if start in times]
        return all(error is not None and size > error for error in concerned)

    return {
        "n_ranks": len(starts),
        "arrival_skew_ns": last - first,
        "wait_ns": last - starts[number],
        "transfer_ns": max(kernel.end + move[number] - last, 0),
        "late_by_ns": late_by,
        "is_significant": exceeds(last - first, first, last),
        "is_late_significant": late_by > 0 and exceeds(late_by, second_last, last),
    }


@once
def steps(run: Run) -> list[dict[str, object]]:
    rows, move = collectives(run), to_aligned(run)
    found = []
    for number, rank in enumerate(run.ranks):
        own = [row for row in rows if row["rank"] == number]
        matched = [row for row in own if row["is_matched"]]
        waited = [
            (row["start_ns"], row["start_ns"] + row["wait_ns"], row["end_ns"]) for row in matched
        ]
        waiting = ticks((first, min(until, end)) for first, until, end in waited)
        compute = [kernel for kernel in rank.kernels if not kernel.collective]
        computing = ticks(
            (kernel.start + move[number], kernel.end + move[number]) for kernel in compute
        )
        for step, *window, _ in windows(rank):
            start, end = (one + move[number] for one in window)
            is_known = all(row["is_matched"] for row in own if row["step"] == step)
            is_known = (
                is_known and len(run.ranks) > 1 and has_common_clock(run) and not is_part_known(run)
            )
            wait = sum(start <= t < end for t in waiting) if is_known else None
            exposed = sum(start <= t < end for t in waiting - computing) if is_known else None
            row = {"rank": number, "step": step, "start_ns": start, "end_ns": end}
            found.append(row | {"wait_ns": wait, "exposed_wait_ns": exposed})
    return found


def lateness(run: Run) -> list[dict[int, int]]:
    """Return the lateness by rank; several where ranks were last by the same largest delay of a step."""
    found: list[dict[int, int]] = [{}]
    rows = [row for row in collectives(run) if row["in_summary"] and row["late_by_ns"]]
    for step in {row["step"] for row in rows}:
        own = [row for row in rows if row["step"] == step]
        largest = max(row["late_by_ns"] for row in own)
        last = {row["rank"] for row in own if row["late_by_ns"] == largest}
        found = [{**one, rank: one.get(rank, 0) + largest} for one in found for rank in last]
    return found


def held_up_alone(run: Run, rows: list[dict[str, object]]) -> dict[int, int]:
    """Return by rank how long others waited for it where it alone came last; a step counts at most its own time."""
    walls: dict[int, int] = {}
    for row in steps(run):
        length = row["end_ns"] - row["start_ns"]
        walls[row["step"]] = min(length, walls.get(row["step"], length))
    delays = {}
    for row in rows:
        delays.setdefault((row["step"], row["id"]), []).append(row)
    by_step: dict[int, list[tuple[list[int], int]]] = {}
    for (step, _), taking_part in delays.items():
        last = max(row["start_ns"] for row in taking_part)
        latest = sorted(row["rank"] for row in taking_part if row["start_ns"] == last)
        waited = max(min(row["end_ns"], last) - row["start_ns"] for row in taking_part)
        if taking_part[0]["is_significant"] and waited > 0:
            by_step.setdefault(step, []).append((latest, waited))
    found: dict[int, int] = {}
    for step, waits in by_step.items():
        total = sum(waited for _, waited in waits)
        for number in range(len(run.ranks)):
            of_rank = sum(waited for latest, waited in waits if latest == [number])
            share = int(of_rank * (walls[step] / total)) if total > walls[step] else of_rank
            found[number] = found.get(number, 0) + share
    return found


def stragglers(run: Run) -> list[list[dict[str, object]]]:
    chosen, tables = summary_steps(run), []
    rows = [row for row in collectives(run) if row["in_summary"] and row["is_matched"]]
    waits = [row for row in steps(run) if row["step"] in chosen]
    is_known = rows or (waits and all(row["wait_ns"] is not None for row in waits))
    held_up = held_up_alone(run, rows)
    for late in lateness(run):
        table = []
        for number in range(len(run.ranks)):
            delays = [row["late_by_ns"] for row in rows if row["rank"] == number]
            waited = [row["wait_ns"] for row in waits if row["rank"] == number]
            figures = {
                "n_arrived_last": sum(delay > 0 for delay in delays),
                "wait_caused_ns": sum(delays),
                "lateness_ns": late.get(number, 0),
                "held_up_ns": held_up.get(number, 0),
            }
            wait = None if None in waited or not waited else sum(waited)
            figures = figures if is_known and not is_part_known(run) else dict.fromkeys(figures)
            table.append({"rank": number, **figures, "wait_ns": wait})
        tables.append(table)
    return tables
