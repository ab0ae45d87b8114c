"""Tables of a run's page: stragglers, phases, idle causes, kernels, links, problems, host steps, findings."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from nsyspipe.analysis.summary import host_figures
from nsyspipe.model.schema import IDLE_CAUSES
from nsyspipe.report.blocks import Column, Field, Table, barred, bars, of, table_of
from nsyspipe.report.host_steps import LOOP, PARTS, host_cells, host_notes, slowest_first
from nsyspipe.report.html.page import cut
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
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from nsyspipe.model.fabric import NcclFacts
    from nsyspipe.report.blocks import Cell
    from nsyspipe.report.words import SameProblem
    from nsyspipe.run.run import Run


_SHOWN_CALLS = 8
_IDLE_MEANINGS = {
    "input": "the host was in the data phase",
    "launch": "the host launched late, for any other reason",
    "blocked": "the host was blocked in a synchronisation or memory call",
    "dependency": "launched in time: waited for another stream, or for the device to start it",
    "unknown": "no launch was recorded",
}


def straggler_table(stragglers: pa.Table, rank_summary: pa.Table, n_steps: int) -> Table | None:
    """Return how the others waited for each rank, per step, the latest first; None for one rank, or where nothing could be matched."""
    rows = sorted(stragglers.to_pylist(), key=lambda row: (-(row["lateness_ns"] or 0), row["rank"]))
    if len(rows) < 2 or not n_steps or all(row["lateness_ns"] is None for row in rows):  # noqa: PLR2004 - two ranks
        return None
    times = {row["rank"]: row["step_time_ns"] for row in rank_summary.to_pylist()}

    def per_step(name: str) -> Callable[[Mapping[str, Any]], float | None]:
        return lambda row: None if row[name] is None else row[name] / n_steps

    fields = [
        Field("rank", of("rank")),
        Field("step time", lambda row: ms_text(times.get(row["rank"])), hint="median of the rank's windows"),
        barred(rows, "late per step", per_step("lateness_ns"), "accent", "how long all others waited for it, at most, mean per step"),
        Field("arrived last", of("n_arrived_last"), hint="collectives in which it arrived last, alone"),
        Field("wait caused per step", lambda row: ms_text(per_step("wait_caused_ns")(row)), hint="summed over collectives: one delay counts in every bucket behind it"),
        barred(rows, "waits itself per step", per_step("wait_ns"), "waiting", "for other ranks, inside communication"),
    ]  # fmt: skip
    return table_of("Who the others wait for", rows, fields)


def phase_table(phase_summary: pa.Table) -> Table | None:
    """Return what each phase takes per step, in the order of a training loop; None without phases."""
    rows = sorted(phase_summary.to_pylist(), key=lambda row: LOOP.index(row["phase"]))
    fields = [
        Field("phase", of("phase"), "text"),
        Field("host", of("host_ns_per_step", ms_text), hint="the host is in the phase's ranges"),
        barred(rows, "device", itemgetter("device_ns_per_step"), "compute", "operations launched in the phase run"),
        Field("compute", of("compute_ns_per_step", ms_text)),
        Field("communication", of("comm_ns_per_step", ms_text)),
        barred(rows, "exposed", itemgetter("exposed_comm_ns_per_step"), "exposed", "communication of the phase beside no compute of any"),
        barred(rows, "idle before", itemgetter("idle_ns_per_step"), "idle", "idle time that an operation of this phase ends"),
    ]  # fmt: skip
    return table_of("Phases, mean per step", rows, fields) if rows else None


def idle_table(summary: Mapping[str, Any]) -> Table | None:
    """Return idle time per step by cause, the largest first; None where it is not known."""
    found = [(name.removeprefix("idle_").removesuffix("_ns"), summary[f"{name}_per_step"]) for name in IDLE_CAUSES]
    rows = sorted(((cause, ns) for cause, ns in found if ns), key=lambda row: -row[1])
    idle, share = sum(ns for _, ns in rows), summary["idle_share"]
    fields = [
        Field("cause", itemgetter(0), "text"),
        barred(rows, "idle per step", itemgetter(1), "idle"),
        Field("of step time", lambda row: percent_text(share * row[1] / idle if share and idle else None)),
        Field("meaning", lambda row: _IDLE_MEANINGS[row[0]], "text"),
    ]  # fmt: skip
    return table_of("Idle by cause, mean per step", rows, fields) if rows else None


def idle_call_table(idle_calls: pa.Table) -> Table | None:
    """Return the calls that hosts were blocked in while devices idled; None without any."""
    rows = idle_calls.to_pylist()[:_SHOWN_CALLS]
    fields = [
        Field("call", itemgetter("call"), "name"),
        Field("idle per step", of("blocked_ns_per_step", ms_text)),
    ]
    return table_of("Calls that hosts were blocked in", rows, fields) if rows else None


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
    fields = [
        Field("kernel", lambda row: cut(row["name"], _LONGEST_NAME), "name"),
        Field("phase", of("phase"), "text"),
        Field("number", of("n_kernels_sum", count_text)),
        barred(rows, "total", itemgetter("total_ns_sum"), "accent", "sum of durations over all ranks and the whole capture"),
        Field("of all kernels", lambda row: percent_text(_ratio(row["total_ns_sum"], whole))),
        Field("mean", lambda row: ms_text(row["total_ns_sum"] / row["n_kernels_sum"])),
        barred(rows, "beside comm", lambda row: _ratio(row["overlapped_ns_sum"], row["total_ns_sum"]), "hidden", "share of its time with communication under way", write=percent_text),
        Field("slower beside comm", _slowdown, hint="against equal kernels that ran beside none; how many were compared"),
    ]  # fmt: skip
    left = found.num_rows - len(rows)
    rest = percent_text(1 - sum(row["total_ns_sum"] for row in rows) / whole) if left else ""
    note = f"{left} more names take {rest} of kernel time." if left else None
    return table_of("Top kernels", rows, fields, note)


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _slowdown(row: Mapping[str, Any]) -> str:
    n, slowed, free = (row[f"{name}_sum"] for name in ("n_slowed", "slowed_ns", "free_ns"))
    return f"{percent_text(slowed / free - 1)} ({n})" if n and free else absent


_SHOWN_EDGES, _SHOWN_PLACES, _MOST_ALIKE = 12, 12, 4
_DIGITS = re.compile(r"\d+")
_ALIKE = ("comm_id", "transport", "path", "kind", "nominal_bytes_per_s", "nominal_source")
Trouble = tuple[str, str, str, "str | None"]


def link_table(links: pa.Table) -> Table | None:
    """Return the edges between ranks, those that are alike in one row; None where nothing is known of them."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in links.to_pylist():
        groups.setdefault(tuple(row[name] for name in _ALIKE), []).append(row)
    rows = [
        group[0] | {"edges": [f"{row['from_rank']}\N{RIGHTWARDS ARROW}{row['to_rank']}" for row in group]}
        for group in groups.values()
    ]
    fields = [
        Field("kind", of("kind"), "text"),
        Field("transport", of("transport"), "text", "what NCCL set up, in its words"),
        Field("path", of("path"), "text", "what lies between the GPUs, by nvidia-smi topo -m"),
        Field("nominal", of("nominal_bytes_per_s", bandwidth_text), hint="what the data sheet promises per direction"),
        Field("source", of("nominal_source"), "text"),
        Field("edges", of("edges", lambda edges: str(len(edges)))),
        Field("from and to rank", of("edges", lambda edges: _few(edges, _SHOWN_EDGES)), "text"),
    ]  # fmt: skip
    return table_of("Links between ranks", rows, fields) if rows else None


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


_SHOWN_RANKS = 64
_MEDIAN = 3


def host_table(host_steps: pa.Table) -> Table | None:
    """Return one row per process; None for a run with GPU activity, or without steps."""
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
    suffix, write = next(((suffix, write) for suffix, write in _UNITS if stem.endswith(suffix)), ("", count_text))
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
