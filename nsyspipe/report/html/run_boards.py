"""Tables of a run's page: stragglers, phases, idle causes, kernels, links, problems, host steps, findings."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from nsyspipe.analysis.summary import host_figures
from nsyspipe.model.schema import IDLE_CAUSES
from nsyspipe.report.host_steps import PARTS, host_cells, host_notes, slowest_first
from nsyspipe.report.html.page import Column, Table, bars, cut
from nsyspipe.report.units import (
    absent,
    bandwidth_text,
    bytes_text,
    count_text,
    ms_text,
    percent_text,
)
from nsyspipe.report.words import expected_text, mean_step_ns, same_problems, saving_texts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa

    from nsyspipe.model.fabric import NcclFacts
    from nsyspipe.report.html.page import Cell
    from nsyspipe.report.words import SameProblem
    from nsyspipe.run.run import Run


# As `text` orders them: a training loop.
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


# The kernels that take most time, over all ranks and the whole capture.


SHOWN_KERNELS = 15
# Longer names differ in their template arguments, which nobody reads in a table.
_LONGEST_NAME = 160
_SUMMED = ("n_kernels", "total_ns", "overlapped_ns", "n_slowed", "slowed_ns", "free_ns")


def kernel_table(kernels: pa.Table) -> Table | None:
    """Return the kernels with most time, by phase; None without kernels."""
    if not kernels.num_rows:
        return None
    found = (
        kernels.group_by(["phase", "name"])
        .aggregate([(name, "sum") for name in _SUMMED])
        .sort_by([("total_ns_sum", "descending"), ("name", "ascending"), ("phase", "ascending")])
    )
    whole = pc.sum(kernels["total_ns"]).as_py()
    rows = found.slice(0, SHOWN_KERNELS).to_pylist()
    totals = [row["total_ns_sum"] for row in rows]
    beside = [_ratio(row["overlapped_ns_sum"], row["total_ns_sum"]) for row in rows]
    columns = [
        [cut(row["name"], _LONGEST_NAME) for row in rows],
        [row["phase"] or absent for row in rows],
        [count_text(row["n_kernels_sum"]) for row in rows],
        bars(totals, [ms_text(total) for total in totals], "accent"),
        [percent_text(_ratio(total, whole)) for total in totals],
        [ms_text(row["total_ns_sum"] / row["n_kernels_sum"]) for row in rows],
        bars(beside, [percent_text(one) for one in beside], "hidden"),
        [_slowdown(row["n_slowed_sum"], row["slowed_ns_sum"], row["free_ns_sum"]) for row in rows],
    ]
    headings = [
        Column("kernel", "name"),
        Column("phase", "text"),
        Column("number"),
        Column("total", hint="sum of durations over all ranks and the whole capture"),
        Column("of all kernels"),
        Column("mean"),
        Column("beside comm", hint="share of its time with communication under way"),
        Column(
            "slower beside comm",
            hint="against equal kernels that ran beside none; how many were compared",
        ),
    ]
    left = found.num_rows - len(rows)
    note = f"{left} more names take {percent_text(1 - sum(totals) / whole)} of kernel time." if left else None  # fmt: skip
    return Table("Top kernels", headings, [*zip(*columns, strict=True)], note)


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _slowdown(n: int, slowed: int, free: int) -> str:
    return f"{percent_text(slowed / free - 1)} ({n})" if n and free else absent


# What connects the ranks, what NCCL says of itself, and what could not be answered: tables of a run's page.


_SHOWN_EDGES, _SHOWN_PLACES, _MOST_ALIKE = 12, 12, 4
_DIGITS = re.compile(r"\d+")
_ALIKE = ("comm_id", "transport", "path", "kind", "nominal_bytes_per_s", "nominal_source")
Trouble = tuple[str, str, str, "str | None"]


def link_table(links: pa.Table) -> Table | None:
    """Return the edges between ranks, those that are alike in one row; None where nothing is known of them."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in links.to_pylist():
        groups.setdefault(tuple(row[name] for name in _ALIKE), []).append(row)
    if not groups:
        return None
    columns = [
        Column("kind", "text"),
        Column("transport", "text", hint="what NCCL set up, in its words"),
        Column("path", "text", hint="what lies between the GPUs, by nvidia-smi topo -m"),
        Column("nominal", hint="what the data sheet promises per direction"),
        Column("source", "text"),
        Column("edges"),
        Column("from and to rank", "text"),
    ]
    cells = [_link_cells(rows) for rows in groups.values()]
    return Table("Links between ranks", columns, cells)


def _link_cells(rows: Sequence[dict[str, Any]]) -> list[str]:
    first = rows[0]
    edges = [f"{row['from_rank']}\N{RIGHTWARDS ARROW}{row['to_rank']}" for row in rows]
    return [
        first["kind"],
        first["transport"] or absent,
        first["path"] or absent,
        bandwidth_text(first["nominal_bytes_per_s"]),
        first["nominal_source"] or absent,
        str(len(rows)),
        _few(edges, _SHOWN_EDGES),
    ]


def nccl_facts(nccl: NcclFacts | None) -> list[tuple[str, str]]:
    """Return NCCL's version and settings as pairs; none without a log of the run."""
    if nccl is None:
        return []
    nvls = {True: "set up", False: "not set up", None: "not said"}[nccl.nvls]
    settings = sorted(nccl.settings.items())
    return [("version", nccl.version or absent), ("NVLink SHARP", nvls), *settings]


def troubles(problems: pa.Table) -> list[Trouble]:
    """Return the problems, those of several ranks once: severity, message, where, fix.

    Of many that differ in nothing but numbers the first is told, and how many there are.
    """
    alike: dict[tuple[str, str, str | None], list[SameProblem]] = {}
    for one in same_problems(problems.to_pylist()):
        key = (one.severity, _DIGITS.sub("#", one.message), one.fix)
        alike.setdefault(key, []).append(one)
    return [
        told
        for (severity, _, fix), group in alike.items()
        for told in (
            [(severity, f"{group[0].message}; {len(group) - 1} more alike", "", fix)]
            if len(group) > _MOST_ALIKE
            else [(severity, one.message, places(one), fix) for one in group]
        )
    ]


def places(problem: SameProblem) -> str:
    """Return the ranks, else the reports, that a problem concerns."""
    if problem.ranks:
        return f"rank {_few([str(rank) for rank in problem.ranks], _SHOWN_PLACES)}"
    return _few(problem.reports, _SHOWN_PLACES)


def _few(names: Sequence[str], most: int) -> str:
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


# The host steps of a run without GPU activity, as a table of its page.


_SHOWN_RANKS = 64
_MEDIAN = 3


def host_table(host_steps: pa.Table) -> Table | None:
    """Return one row per process; None for a run with GPU activity, or without steps.

    Parameters
    ----------
    host_steps
        `schema.HOST_STEPS`.
    """
    if not host_steps.num_rows:
        return None
    figures = host_figures(host_steps)
    shown = slowest_first(figures, _SHOWN_RANKS)
    columns: list[list[Cell]] = [list(cells) for cells in zip(*map(host_cells, shown), strict=True)]
    medians = [one.median_ns for one in shown]
    columns[_MEDIAN] = bars(medians, [str(cell) for cell in columns[_MEDIAN]], "accent")
    headings = [
        Column("rank"),
        Column("report", "name"),
        Column("steps", hint="step ranges that were closed"),
        Column("median step", hint="from the start to the end of the NVTX range, on the host"),
        Column("slowest step"),
        Column("at step", hint="number of the slowest step"),
        *(Column(phase, hint="median on the host, inside the step") for phase in PARTS),
    ]
    note = " ".join(host_notes(figures, _SHOWN_RANKS)) or None
    return Table("Host steps", headings, [*zip(*columns, strict=True)], note)


# What to change first: each finding with its advice, its bound, and the figures behind it.


# A word that is typed as it is keeps its first letter.
_CODE_WORD = re.compile(r"^\S*[_=()]")
# Suffix of a figure's name, and what writes it. The first that fits counts.
_UNITS = (
    ("_bytes_per_s", bandwidth_text),
    ("_ns", ms_text),
    ("_bytes", bytes_text),
    ("_share", percent_text),
    ("_ratio", percent_text),
)
_PER_STEP = "_per_step"


@dataclass(frozen=True)
class Finding:
    """One finding as words.

    Attributes
    ----------
    share
        Of the step time, 0 to 1: length of the bar; 0 without a bound.
    expected
        What a replay expects; None where there was none.
    evidence
        Pairs of name and value.
    """

    id: str
    severity: str
    action: str
    title: str
    advice: str
    saving: str
    share: float
    share_text: str
    expected: str | None
    evidence: list[tuple[str, str]]


def findings_list(run: Run) -> list[Finding]:
    """Return the findings as `run.findings` ranks them."""
    step_time = mean_step_ns(run.summary().to_pylist()[0])
    return [_finding(row, step_time) for row in run.findings().to_pylist()]


def _finding(row: Mapping[str, Any], step_time_ns: float | None) -> Finding:
    saving = row["saving_ns_per_step"]
    text, share_text = saving_texts(saving, step_time_ns)
    expected = expected_text(row["expected_ns_per_step"], step_time_ns)
    return Finding(
        id=row["id"],
        severity=row["severity"],
        action=_sentence(row["action"]),
        title=_sentence(row["title"]),
        advice=_sentence(row["advice"]),
        saving=text,
        share=min(saving / step_time_ns, 1.0) if saving and step_time_ns else 0.0,
        share_text=share_text,
        expected=None if expected == absent else expected,
        evidence=list(evidence_rows(json.loads(row["evidence"]))),
    )


def _sentence(text: str) -> str:
    return text if _CODE_WORD.match(text) else f"{text[:1].upper()}{text[1:]}"


def evidence_rows(evidence: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    """Return name and value of each figure of a finding's evidence, in words; what is null is left out."""
    for key, value in evidence.items():
        if isinstance(value, dict):
            yield from evidence_rows({f"{before}{key}: {name}": one for name, one in value.items()})
        elif value is not None:
            yield _words(key, value)


def _words(key: str, value: object) -> tuple[str, str]:
    head, colon, name = key.partition(": ")
    stem = head.replace("_by_phase", "").replace("_by_kernel", "")
    is_per_step = stem.endswith(_PER_STEP)
    stem = stem.removesuffix(_PER_STEP)
    suffix, write = next(
        ((suffix, write) for suffix, write in _UNITS if stem.endswith(suffix)), ("", count_text)
    )
    label = stem.removesuffix(suffix).removeprefix("n_").replace("_", " ")
    label += " per step" if is_per_step else ""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    text = write(value) if is_number else _plain(value)  # type: ignore[arg-type]  # a number
    return f"{label}{f', {name}' if colon else ''}", text


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or absent
    return str(value)
