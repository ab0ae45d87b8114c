"""The terminal summary: verdict first, then the run, the link, one row per rank, what to change, and what is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from nsyspipe.model.options import DEFAULT_FINDINGS
from nsyspipe.model.text import printable
from nsyspipe.report.as_text import MAX_WIDTH, apart, dim, grid, marked, rendered
from nsyspipe.report.host_steps import LOOP, capture_text, host_steps_text
from nsyspipe.report.units import (
    absent,
    bandwidth_text,
    bytes_text,
    count_text,
    ms_text,
    percent_text,
    rate_text,
)
from nsyspipe.report.words import (
    RANK_COLUMNS,
    capture_lengths,
    expected_text,
    idle_text,
    left_out,
    mean_step_ns,
    same_problems,
    saving_texts,
    subject_parts,
    verdict_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rich.table import Table

    from nsyspipe.findings.slow_link import LinkVerdict
    from nsyspipe.report.words import SameProblem
    from nsyspipe.run.run import Run


# On a narrower terminal a column of words would be a few letters wide.
_TABLE_WIDTH = 79
# Two lines of a terminal, less what breaking between words costs.
_LINK_LENGTH = 185
_STYLES = {"high": "bold red", "medium": "yellow", "low": "dim"}


def findings_text(
    findings: Sequence[Mapping[str, Any]],
    step_time_ns: float | None,
    n_shown: int | None,
    width: int = _TABLE_WIDTH,
) -> RenderableType:
    """Return what to change first, each with the most that it could bring: a line per finding, or all in full."""
    shown = findings[:n_shown]
    is_brief = n_shown is not None
    is_table = is_brief and width >= _TABLE_WIDTH
    more = len(findings) - len(shown)
    hint = f"; {more} more, and why: --findings all" if more else "; why: --findings all"
    title = Text("What to change first", style="bold")
    is_replayed = any(row["expected_ns_per_step"] is not None for row in shown)
    most = f"most it gives back per step{', ~ in a replay' if is_replayed else ''}"
    title.append(f" ({most}{hint if is_brief else ''})", style="not bold dim")
    rows = [
        (
            _figures(row, step_time_ns, is_replayed=is_replayed, is_short=is_table),
            Text(row["id"], style=_STYLES[row["severity"]]),
            _what(row, is_brief=is_brief),
        )
        for row in shown
    ]
    if is_table:
        return Group(title, _table(rows))
    widths = [max(map(len, column)) for column in zip(*(row[0] for row in rows), strict=True)]
    below = [
        (
            Text("  ".join(map(str.rjust, figures, widths))).append("  ").append(name),
            Padding(what, (0, 0, 0, 4)),
        )
        for figures, name, what in rows
    ]
    return Group(title, *(part for parts in below for part in parts))


def _what(row: Mapping[str, Any], *, is_brief: bool) -> Text:
    """Return what to change in a few words, or what was found and the whole advice."""
    if is_brief:
        return Text(printable(row["action"]))
    return Text(f"{printable(row['title'])}\n").append(row["advice"], style="dim")


def _table(rows: Sequence[tuple[tuple[str, ...], Text, Text]]) -> Table:
    table = grid(has_headings=False)
    for column in zip(*(figures for figures, _, _ in rows), strict=True):
        table.add_column(justify="right", no_wrap=True, min_width=max(map(len, column)))
    table.add_column(no_wrap=True, min_width=max(len(name) for _, name, _ in rows))
    table.add_column(ratio=1)
    for figures, name, what in rows:
        table.add_row(*figures, name, what)
    return table


def _figures(
    row: Mapping[str, Any], step_time_ns: float | None, *, is_replayed: bool, is_short: bool
) -> tuple[str, ...]:
    """Return a saving's bound, what share of the step time it is, and the share that a replay expects.

    Where there is a replay and room is short, the shares alone.
    """
    most, share = saving_texts(row["saving_ns_per_step"], step_time_ns)
    if not is_replayed:
        return _at_most(most), share
    expected = expected_text(row["expected_ns_per_step"], step_time_ns)
    return (_at_most(share), expected) if is_short else (_at_most(most), share, expected)


def _at_most(text: str) -> str:
    return text if text == absent else f"<= {text}"


def link_text(verdict: LinkVerdict | None) -> str | None:
    """Return what communication crosses, on which edges, and how much of its bandwidth the run reached; in two lines.

    None when the link is not known. A bandwidth that was estimated has an ``about``.
    """
    if verdict is None or verdict.slowest is None:
        return None
    link = verdict.slowest
    rest = f"; {link.edges}"
    nominal = link.nominal_bytes_per_s
    if verdict.busbw_bytes_per_s is not None:
        about = "about " if verdict.is_estimate else ""
        rest += f"; bus bandwidth {about}{bandwidth_text(verdict.busbw_bytes_per_s)}"
        rest += f" of {bandwidth_text(nominal)} nominal" if nominal else ""
    elif nominal:
        rest += f"; nominal {bandwidth_text(nominal)}"
    room = _LINK_LENGTH - len(rest)
    text = printable(f"link: {link.text}")
    return (text if len(text) <= room else f"{text[: room - 3].rstrip()}...") + rest


_SHOWN_RANKS = 16
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


def summary_text(run: Run, console: Console, *, n_findings: int | None = DEFAULT_FINDINGS) -> str:
    """Return a run's summary as text for a console, at most `MAX_WIDTH` columns wide."""
    return rendered(Group(*_sections(run, console.width, n_findings)), console)


def _sections(run: Run, width: int, n_findings: int | None) -> Iterable[RenderableType]:
    summary = run.summary().to_pylist()[0]
    findings = run.findings().to_pylist()
    host_steps = run.host_steps()
    has_host_steps = host_steps.num_rows > 0
    problems = run.problems.to_pylist()
    sentence = verdict_of(run)
    yield Text(sentence, style="bold")
    lines = [
        " | ".join(subject_parts(run, summary)),
        capture_text(run.header.capture),
        link_text(run.link),
    ]
    yield dim(line for line in lines if line)
    if summary["n_summary_steps"] or run.is_capture:
        if not run.is_capture:  # all of it is of a step
            yield apart(_run_table(summary, width))
        if idle := idle_text(run.breakdown(), run.idle_calls()):
            yield Text(idle)
        yield apart(_rank_table(run, width))
    if has_host_steps:
        yield apart(host_steps_text(host_steps, min(width, MAX_WIDTH)))
    phases = run.phase_summary().to_pylist()
    if phases and n_findings is None:  # the whole story was asked for
        yield apart(_phase_table(phases))
    if findings and n_findings != 0:
        found = findings_text(findings, mean_step_ns(summary), n_findings, width)
        yield apart(found)
    if problems:
        same = same_problems(problems)
        yield apart(marked((one.severity, one.message, _place(one), one.fix) for one in same))


def _run_table(summary: Mapping[str, Any], width: int) -> Table:
    table = grid(has_headings=False)
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
    known = {name: heading for heading, name in RANK_COLUMNS}
    if all(row[_WAIT] is None for row in rows):
        del known[_WAIT]
    names = _fitting(list(known), rows, width)
    narrow = {} if width >= _WAIT_WIDTH else _NARROW
    walls = capture_lengths(run) if run.is_capture else {}
    rows = [row | {_LENGTH: walls.get(row["rank"], row["step_time_ns"])} for row in rows]
    shown = sorted(rows, key=lambda row: -(row[_LENGTH] or 0))[:_SHOWN_RANKS]
    table = grid()
    table.add_column("rank", justify="right")
    heading = "capture" if run.is_capture else "step\ntime"
    table.add_column(heading, justify="right", no_wrap=True)
    for name in names:
        table.add_column(narrow.get(name, known[name]), justify="right")
    for row in sorted(shown, key=lambda row: row["rank"]):
        table.add_row(str(row["rank"]), ms_text(row[_LENGTH]), *(percent_text(row[name]) for name in names))
    notes = left_out(list(known.values()), [known[name] for name in names])
    if len(rows) > len(shown):
        notes.append(
            f"The {len(shown)} {'longest' if run.is_capture else 'slowest'} of {len(rows)} ranks; --json has all."
        )
    return Group(table, dim(notes)) if notes else table


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
    table = grid()
    table.add_column("phase")
    for heading, _ in _PHASE_COLUMNS:
        table.add_column(heading, justify="right")
    for row in sorted(phases, key=lambda row: LOOP.index(row["phase"])):
        table.add_row(row["phase"], *(ms_text(row[f"{name}_per_step"]) for _, name in _PHASE_COLUMNS))
    return table


def _place(problem: SameProblem) -> str:
    if problem.ranks:
        return f"rank {', '.join(map(str, problem.ranks))}"
    return ", ".join(problem.reports)
