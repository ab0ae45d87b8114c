"""Runs for scoreboards, laid out by hand: walls of 130, 131, 132 ms and so on around a mean."""

from __future__ import annotations

from tests.build.plain_steps import plain_run

MS = 10**6
# Name -> compute of the first step in ms, summary steps, ranks.
RUNS = {
    "slow": (100, 12, 2), "fast": (70, 12, 2), "again": (100, 12, 2), "short": (70, 2, 2), "wide": (90, 12, 3),
    "wider": (80, 12, 3),
}  # fmt: skip


def steps(compute, n=12):
    """Return steps of (compute, comm, copy, idle): compute grows by 0, 1, 2 ms in turn, so that there is an interval."""
    return [((compute + number % 3) * MS, 20 * MS, 4 * MS, 6 * MS) for number in range(n)]


def scoreboard_runs(folder, names=tuple(RUNS), **options):
    """Write runs by name and open them; each is captured at a time of its own."""
    return {
        name: plain_run(folder / name, [steps(compute, n)] * ranks, start=10**18 + place * 10**12, **options)
        for place, (name, (compute, n, ranks)) in enumerate(RUNS.items())
        if name in names
    }
