"""Tables that compare ranks, phases and causes of idle time, with bars."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nsyspipe.report.page.tables import Column, Table, bars
from nsyspipe.schema import IDLE_CAUSES
from nsyspipe.units import absent, ms_text, percent_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

__all__ = ["idle_call_table", "idle_table", "phase_table", "straggler_table"]

# As `run_words` orders them: a training loop.
_LOOP = ("data", "forward", "backward", "optimizer")
_SHOWN_CALLS = 8
_IDLE_MEANINGS = {
    "input": "the host was in the data phase",
    "launch": "the host launched late, for any other reason",
    "blocked": "the host was blocked in a synchronisation or memory call",
    "dependency": "launched in time: waited for another stream, or for the device to start it",
    "unknown": "no launch was recorded",
}


def straggler_table(stragglers: pa.Table, rank_summary: pa.Table, n_steps: int) -> Table | None:
    """Return how the others waited for each rank, per step, the latest first; None for one rank, or where nothing could be matched.

    Parameters
    ----------
    stragglers, rank_summary
        `schema.STRAGGLERS` and `schema.RANK_SUMMARY`.
    n_steps
        Summary steps.
    """
    rows = sorted(stragglers.to_pylist(), key=lambda row: (-(row["lateness_ns"] or 0), row["rank"]))
    if len(rows) < 2 or not n_steps or all(row["lateness_ns"] is None for row in rows):  # noqa: PLR2004 - two ranks
        return None
    times = {row["rank"]: row["step_time_ns"] for row in rank_summary.to_pylist()}

    def per_step(name: str) -> list[float | None]:
        return [None if row[name] is None else row[name] / n_steps for row in rows]

    late, waits = per_step("lateness_ns"), per_step("wait_ns")
    columns = [
        [str(row["rank"]) for row in rows],
        [ms_text(times.get(row["rank"])) for row in rows],
        bars(late, [ms_text(one) for one in late], "accent"),
        [absent if row["n_arrived_last"] is None else str(row["n_arrived_last"]) for row in rows],
        [ms_text(one) for one in per_step("wait_caused_ns")],
        bars(waits, [ms_text(one) for one in waits], "waiting"),
    ]
    headings = [
        Column("rank"),
        Column("step time", hint="median of the rank's windows"),
        Column("late per step", hint="how long all others waited for it, at most, mean per step"),
        Column("arrived last", hint="collectives in which it arrived last, alone"),
        Column("wait caused per step", hint="summed over collectives: one delay counts in every bucket behind it"),
        Column("waits itself per step", hint="for other ranks, inside communication"),
    ]  # fmt: skip
    return Table("Who the others wait for", headings, [*zip(*columns, strict=True)])


def phase_table(phase_summary: pa.Table) -> Table | None:
    """Return what each phase takes per step, in the order of a training loop; None without phases."""
    rows = sorted(phase_summary.to_pylist(), key=lambda row: _LOOP.index(row["phase"]))
    if not rows:
        return None

    def column(name: str, category: str) -> list[object]:
        values = [row[f"{name}_per_step"] for row in rows]
        return [*bars(values, [ms_text(one) for one in values], category)]

    columns = [
        [row["phase"] for row in rows],
        [ms_text(row["host_ns_per_step"]) for row in rows],
        column("device_ns", "compute"),
        [ms_text(row["compute_ns_per_step"]) for row in rows],
        [ms_text(row["comm_ns_per_step"]) for row in rows],
        column("exposed_comm_ns", "exposed"),
        column("idle_ns", "idle"),
    ]
    headings = [
        Column("phase", "text"),
        Column("host", hint="the host is in the phase's ranges"),
        Column("device", hint="operations launched in the phase run"),
        Column("compute"),
        Column("communication"),
        Column("exposed", hint="communication of the phase beside no compute of any"),
        Column("idle before", hint="idle time that an operation of this phase ends"),
    ]
    return Table("Phases, mean per step", headings, [*zip(*columns, strict=True)])


def idle_table(summary: Mapping[str, Any]) -> Table | None:
    """Return idle time per step by cause, the largest first; None where it is not known."""
    found = [
        (name.removeprefix("idle_").removesuffix("_ns"), summary[f"{name}_per_step"])
        for name in IDLE_CAUSES
    ]
    rows = sorted(((cause, ns) for cause, ns in found if ns), key=lambda row: -row[1])
    if not rows:
        return None
    idle, share = sum(ns for _, ns in rows), summary["idle_share"]
    times = [ns for _, ns in rows]
    columns = [
        [cause for cause, _ in rows],
        bars(times, [ms_text(ns) for ns in times], "idle"),
        [percent_text(share * ns / idle if share and idle else None) for ns in times],
        [_IDLE_MEANINGS[cause] for cause, _ in rows],
    ]
    headings = [
        Column("cause", "text"),
        Column("idle per step"),
        Column("of step time"),
        Column("meaning", "text"),
    ]
    return Table("Idle by cause, mean per step", headings, [*zip(*columns, strict=True)])


def idle_call_table(idle_calls: pa.Table) -> Table | None:
    """Return the calls that hosts were blocked in while devices idled; None without any."""
    rows = idle_calls.to_pylist()[:_SHOWN_CALLS]
    if not rows:
        return None
    cells = [[row["call"], ms_text(row["blocked_ns_per_step"])] for row in rows]
    return Table(
        "Calls that hosts were blocked in", [Column("call", "name"), Column("idle per step")], cells
    )
