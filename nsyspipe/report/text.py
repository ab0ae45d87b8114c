"""The terminal summary: verdict first, then the run, one row per rank, and what is missing."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from nsyspipe.report.capture_words import capture_text
from nsyspipe.report.findings_text import findings_text, link_text
from nsyspipe.report.host_steps_text import host_steps_text
from nsyspipe.report.idle_text import idle_text
from nsyspipe.report.run_words import (
    capture_lengths,
    left_out,
    mean_step_ns,
    same_problems,
    subject_parts,
)
from nsyspipe.report.verdict import verdict
from nsyspipe.settings import DEFAULT_FINDINGS
from nsyspipe.units import bandwidth_text, bytes_text, count_text, ms_text, percent_text, rate_text
from nsyspipe.untrusted import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from nsyspipe.report.run_words import SameProblem
    from nsyspipe.run import Run

__all__ = ["MAX_WIDTH", "rendered", "summary_text"]

MAX_WIDTH = 100
_SHOWN_RANKS = 16
_LOOP = ("data", "forward", "backward", "optimizer")
_PHASE_COLUMNS = (
    ("host", "host_ns"),
    ("device", "device_ns"),
    ("exposed\ncomm", "exposed_comm_ns"),
    ("idle", "idle_ns"),
)
# A narrower terminal gets fewer columns rather than cut numbers.
_FULL_WIDTH, _FEW = 79, ("compute_share", "exposed_comm_share", "wait_share")
# Where waiting is known, it needs the width of others.
_WAIT_WIDTH, _WAIT = 92, "wait_share"
_LENGTH = "length_ns"
_NARROW = {"backward_overlap_ratio": "hidden\nbehind\nbackward", _WAIT: "waits\nfor\nothers"}
_STYLES = {"error": "bold red", "warning": "yellow", "info": "dim"}

# Heading and figure; the parts of the step come first and sum to it.
_RANK_COLUMNS = (
    ("compute", "compute_share"),
    ("exposed\ncomm", "exposed_comm_share"),
    ("exposed\ncopies", "exposed_memory_share"),
    ("idle", "idle_share"),
    ("comm\nin all", "comm_share"),
    ("hidden\nby compute", "overlap_ratio"),
    ("hidden by\nbackward", "backward_overlap_ratio"),
    ("waits for\nothers", "wait_share"),
)


def summary_text(run: Run, console: Console, *, n_findings: int | None = DEFAULT_FINDINGS) -> str:
    """Return a run's summary as text for a console, at most `MAX_WIDTH` columns wide.

    Parameters
    ----------
    n_findings
        How many findings to show; None shows all.
    """
    return rendered(Group(*_sections(run, console.width, n_findings)), console)


def rendered(content: RenderableType, console: Console) -> str:
    """Render for a console's width and colours, without the spaces that fill lines up."""
    page = Console(
        file=io.StringIO(),
        width=min(console.width, MAX_WIDTH),
        force_terminal=console.is_terminal,
        color_system=console.color_system,  # type: ignore[arg-type]  # one of the names it takes
        no_color=console.no_color,
        legacy_windows=False,
    )
    page.print(content)
    text: str = page.file.getvalue()  # type: ignore[attr-defined]
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


def _sections(run: Run, width: int, n_findings: int | None) -> Iterable[RenderableType]:
    summary = run.summary().to_pylist()[0]
    findings = run.findings().to_pylist()
    host_steps = run.host_steps()
    has_host_steps = host_steps.num_rows > 0
    problems = run.problems.to_pylist()
    sentence = verdict(
        summary,
        run.header.n_ranks,
        findings,
        has_host_steps=has_host_steps,
        is_capture=run.is_capture,
        problems=problems,
        evenness=run.evenness(),
    )
    yield Text(sentence, style="bold")
    yield Text(printable(" | ".join(subject_parts(run, summary))), style="dim")
    if made_with := capture_text(run.header.capture):
        yield Text(printable(made_with), style="dim")
    if link := link_text(run.link):
        yield Text(link, style="dim")
    if summary["n_summary_steps"] or run.is_capture:
        if not run.is_capture:  # all of it is of a step
            yield Padding(_run_table(summary, width), (1, 0, 0, 0))
        if idle := idle_text(run.breakdown(), run.idle_calls()):
            yield Text(idle)
        yield Padding(_rank_table(run, width), (1, 0, 0, 0))
    if has_host_steps:
        yield Padding(host_steps_text(host_steps, min(width, MAX_WIDTH)), (1, 0, 0, 0))
    phases = run.phase_summary().to_pylist()
    if phases and n_findings is None:  # the whole story was asked for
        yield Padding(_phase_table(phases), (1, 0, 0, 0))
    if findings and n_findings != 0:
        found = findings_text(findings, mean_step_ns(summary), n_findings, width)
        yield Padding(found, (1, 0, 0, 0))
    if problems:
        yield Padding(_problem_table(problems), (1, 0, 0, 0))


def _run_table(summary: Mapping[str, Any], width: int) -> Table:
    table = _grid()
    n_pairs = 2 if width >= _FULL_WIDTH else 1
    for _ in range(n_pairs):
        table.add_column(style="dim")
        table.add_column(justify="right")
    figures = (
        ("step time", ms_text(summary["step_time_ns"])),
        ("throughput", rate_text(summary["throughput_steps_per_s"])),
        ("collectives per step", count_text(summary["collectives_per_step"])),
        (
            "DtoD copies per step",
            f"{ms_text(summary['dtod_ns_per_step'])}, {bytes_text(summary['dtod_bytes_per_step'])}",
        ),
        *_message_figures(summary),
    )
    for at in range(0, len(figures), n_pairs):
        first, *more = figures[at : at + n_pairs]
        table.add_row(*first, *(cell for name, value in more for cell in (f"  {name}", value)))
    return table


def _message_figures(summary: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """Return message sizes and bandwidth, where the reports say them."""
    if summary["message_bytes_per_step"]:
        yield "message bytes per step", bytes_text(summary["message_bytes_per_step"])
        yield "bus bandwidth", bandwidth_text(summary["busbw_bytes_per_s"])


def _rank_table(run: Run, width: int) -> Group | Table:
    rows = run.rank_summary().to_pylist()
    known = {name: heading for heading, name in _RANK_COLUMNS}
    if all(row[_WAIT] is None for row in rows):
        del known[_WAIT]
    names = _fitting(list(known), rows, width)
    narrow = {} if width >= _WAIT_WIDTH else _NARROW
    walls = capture_lengths(run) if run.is_capture else {}
    rows = [row | {_LENGTH: walls.get(row["rank"], row["step_time_ns"])} for row in rows]
    shown = sorted(rows, key=lambda row: -(row[_LENGTH] or 0))[:_SHOWN_RANKS]
    table = _grid()
    table.show_header = True
    table.add_column("rank", justify="right")
    heading = "capture" if run.is_capture else "step\ntime"
    table.add_column(heading, justify="right", no_wrap=True)
    for name in names:
        table.add_column(narrow.get(name, known[name]), justify="right")
    for row in sorted(shown, key=lambda row: row["rank"]):
        table.add_row(
            str(row["rank"]),
            ms_text(row[_LENGTH]),
            *(percent_text(row[name]) for name in names),
        )
    notes = left_out(list(known.values()), [known[name] for name in names])
    if len(rows) > len(shown):
        notes.append(
            f"The {len(shown)} {'longest' if run.is_capture else 'slowest'} of {len(rows)} ranks; --json has all."
        )
    return Group(table, Text("\n".join(notes), style="dim")) if notes else table


def _fitting(names: list[str], rows: Sequence[Mapping[str, Any]], width: int) -> list[str]:
    """Return the figures that a terminal has room for; who waits is the last to go."""
    if width < _FULL_WIDTH:
        return [name for name in names if name in _FEW]
    if width >= _WAIT_WIDTH or _WAIT not in names:
        return names
    # As in the verdict: what hides under compute is said where backward was not marked.
    is_marked = any(row["backward_overlap_ratio"] is not None for row in rows)
    unneeded = "overlap_ratio" if is_marked else "backward_overlap_ratio"
    return [name for name in names if name != unneeded]


def _phase_table(phases: Sequence[Mapping[str, Any]]) -> Table:
    """Show what each phase takes per step, in the order of a training loop."""
    table = _grid()
    table.show_header = True
    table.add_column("phase")
    for heading, _ in _PHASE_COLUMNS:
        table.add_column(heading, justify="right")
    for row in sorted(phases, key=lambda row: _LOOP.index(row["phase"])):
        table.add_row(
            row["phase"], *(ms_text(row[f"{name}_per_step"]) for _, name in _PHASE_COLUMNS)
        )
    return table


def _problem_table(problems: Sequence[Mapping[str, Any]]) -> Table:
    """Show equal problems of several ranks once."""
    table = _grid()
    table.add_column()
    table.add_column(overflow="fold", ratio=1)
    for one in same_problems(problems):
        text = Text(printable(one.message))
        if place := _place(one):
            text.append(f" ({printable(place)})", style="dim")
        if one.fix:
            text.append(f"\nfix: {one.fix}", style="dim")
        table.add_row(Text(one.severity, style=_STYLES[one.severity]), text)
    return table


def _place(problem: SameProblem) -> str:
    if problem.ranks:
        return f"rank {', '.join(map(str, problem.ranks))}"
    return ", ".join(problem.reports)


def _grid() -> Table:
    return Table(
        box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim"
    )
