"""What one pastes into a pull request: verdict, figures, ranks, findings and problems, in under 60 lines.

How text is escaped for GitHub's Markdown stands here, for every page of it.
"""

from __future__ import annotations

import re
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

import pyarrow.compute as pc

from nsyspipe.analysis.summary import host_figures
from nsyspipe.model.text import printable
from nsyspipe.report.blocks import Facts, Heading, Items, Notes, Sentence, Table, Troubles, left_out, words_of
from nsyspipe.report.files import head_of
from nsyspipe.report.host_steps import PARTS, capture_text, host_cells, host_notes, slowest_first
from nsyspipe.report.text import link_text
from nsyspipe.report.units import ms_text, percent_text, rate_text
from nsyspipe.report.words import (
    RANK_COLUMNS,
    capture_lengths,
    expected_text,
    idle_text,
    mean_step_ns,
    same_problems,
    saving_texts,
    subject_parts,
    verdict_of,
)
from nsyspipe.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa

    from nsyspipe.report.blocks import Block
    from nsyspipe.report.words import SameProblem
    from nsyspipe.run.run import Run


_LONGEST = 300
_BREAK = "\N{ZERO WIDTH SPACE}"
# What GitHub turns into mentions, references, links and emoji after Markdown is done, so that a
# backslash does not help: @name, #1, GH-1, http://, www. and :name:.
_LINKED = re.compile(
    r"(?<=@)(?=\w)|(?<=#)(?=\d)|(?<=\bGH)(?=-\d)|(?<=:)(?=//)|(?<=\bwww)(?=\.)|(?<=:)(?=[\w+-]+:)",
    re.IGNORECASE,
)
# An underscore between two letters never means emphasis.
_SYNTAX = re.compile(r"[\\`*\[\]~&<>|$\u200b]|(?<![^\W_])_|_(?![^\W_])")
_INSTEAD = {
    "&": "&amp;",
    "<": "&lt;",
    ">": "&gt;",
    "|": "&#124;",  # as an entity it cannot end a cell, whoever counts the backslashes
    "$": "<span>$</span>",  # else two of them are a formula
    _BREAK: "&#8203;",
}
# Options, calls, settings and names as programs have them; no character that could end a code span or a cell.
_CODE = re.compile(
    r"""(?<![\w./)-])(?:
        --[a-z][\w-]*(?:=[\w,.:]*\w)?              # --trace=cuda,nvtx
        | \.?[a-z][\w.]*\([\w\ ,.="'-]*\)          # .to(device, non_blocking=True)
        | [a-z]\w*=[\w.:]*\w                       # NCCL_P2P_DISABLE=1
        | [a-z][\w-]*(?:_[\w-]*\w|\.[\w-]+\w)+     # bucket_cap_mb, torch.compile
    )""",
    re.ASCII | re.IGNORECASE | re.VERBOSE,
)
_MARKS_OF_CODE = re.compile(r"[_.=]|^--|\(\)$")


def escaped(text: str, longest: int = _LONGEST) -> str:
    """Return text that Markdown shows as it is, in one line; not for the start of a line."""
    return _escaped(_cut(text, longest))


def prose(text: str, longest: int = _LONGEST) -> str:
    """Return the same with what looks like an option, a call or a name of a program in code font."""
    text = _cut(text, longest)
    parts, at = [], 0
    for match in _CODE.finditer(text):
        if _MARKS_OF_CODE.search(match[0]):  # not the "rank(s)" of a sentence
            parts += [_escaped(text[at : match.start()]), f"`{match[0]}`"]
            at = match.end()
    return "".join([*parts, _escaped(text[at:])])


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], *, n_words: int = 0) -> list[str]:
    """Return the lines of a table whose cells are Markdown already."""
    n_figures = len(headings) - n_words
    return [
        _row(headings),
        _row(["--:"] * n_figures + ["---"] * n_words),
        *(_row([*map(_unparted, row[:n_figures]), *row[n_figures:]]) for row in rows),
    ]


def as_markdown(blocks: Iterable[Block], head: Sequence[str], command: str) -> str:
    """Write blocks in GitHub's Markdown: the lines of comments that a bot looks for first, the command last."""
    parts = [head, *map(_lines, blocks), [f"nsyspipe {__version__}: `{command}`"]]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def _lines(block: Block) -> list[str]:  # noqa: PLR0911 - one per kind of block
    match block:
        case Sentence():
            return [f"**{escaped(block.text)}**" if "bold" in block.style else prose(block.text)]
        case Facts():
            parts = ", ".join(escaped(part, _LONGEST_NAME) for part in block.parts)
            return [f"{block.about}: {parts}"]
        case Heading():
            return [f"### {escaped(block.text.removesuffix(':'))}"]
        case Items():
            return [f"- {prose(text)}" for text in block.texts]
        case Troubles():
            rest = left_out(block.rows, block.n_shown)
            lines = [trouble_line(*row) for row in block.rows[: block.n_shown]]
            return [*lines, *([f"- {prose(rest)}"] if rest else [])]
        case Notes():
            return [prose(text) + "<br>" for text in block.texts]
        case Table(rows=[]) if block.note:
            return [prose(f"{block.caption}: {block.note}")]
        case Table():
            kinds = [column.kind for column in block.columns]
            cells = [
                [_cell(words_of(cell), kind) for cell, kind in zip(row, kinds, strict=True)]
                for row in block.rows[: block.n_shown]
            ]
            marks = ["--:" if kind == "number" else "---" for kind in kinds]
            headings = [escaped(column.heading.replace("\n", " ")) for column in block.columns]
            below = [prose(text) for text in (left_out(block.rows, block.n_shown), block.note) if text]
            return [*map(_row, [headings, marks, *cells]), *(["", *below] if below else [])]


def _cell(text: str, kind: str) -> str:
    if kind == "number":
        return _unparted(escaped(text))
    return escaped(text, _LONGEST_NAME) if kind == "name" else prose(text)


def trouble_line(severity: str, message: str, place: str, fix: str | None) -> str:
    """Return what is wrong as an item of a list."""
    where = f" ({escaped(place)})" if place else ""
    return f"- **{severity}**{where}: {prose(message)}." + (f" Fix: {prose(fix)}." if fix else "")


def marker(command: str, key: str, value: str) -> list[str]:
    """Return the comments that a file begins with: for a bot, the same whatever the runs; and whose file it is.

    No value can end its comment: neither ``>`` nor ``--`` is left in it.
    """
    text = quote(value, safe="", errors="surrogatepass").replace("--", "-%2D")
    return [f"<!-- nsyspipe:{command} -->", f"<!-- nsyspipe:{key}={text} -->"]


def marked_as(path: Path, command: str, key: str) -> str | None:
    """Return whose file it is, by `marker`; None of any other file. Reads only its head."""
    pattern = rf"<!-- nsyspipe:{command} -->\s+<!-- nsyspipe:{key}=(\S*) -->"
    found = re.match(pattern, head_of(path))
    return unquote(found[1], errors="surrogatepass") if found else None


def _unparted(figure: str) -> str:
    return figure.replace(" ", "\N{NO-BREAK SPACE}")


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cut(text: str, longest: int) -> str:
    text = printable(text)
    return text if len(text) <= longest else f"{text[: longest - 3].rstrip()}..."


def _escaped(text: str) -> str:
    broken = _LINKED.sub(_BREAK, text)
    return _SYNTAX.sub(lambda match: _INSTEAD.get(match[0], f"\\{match[0]}"), broken)


_SHOWN_RANKS, _SHOWN_FINDINGS, _SHOWN_PROBLEMS, _SHOWN_PLACES = 8, 8, 8, 4
_LONGEST_NAME = 80
_COMMAND = "nsyspipe analyze REPORTS"
_FIGURES = (
    ("comm", "comm_share"),
    ("exposed comm", "exposed_comm_share"),
    ("hidden under backward", "backward_overlap_ratio"),
    ("waiting", "wait_share"),
    ("idle", "idle_share"),
)
_WAIT, _LATENESS, _LENGTH = "wait_share", "lateness_ns_per_step", "length_ns"
_BY_COMPUTE, _BY_BACKWARD = "overlap_ratio", "backward_overlap_ratio"


def markdown(run: Run) -> str:
    """Return a run's summary in GitHub's Markdown: under 60 lines, the same for the same run.

    The first lines are comments, which are not shown: `marker`.
    """
    summary = run.summary().to_pylist()[0]
    findings = run.findings().to_pylist()
    host_steps = run.host_steps()
    has_host_steps = host_steps.num_rows > 0
    problems = run.problems.to_pylist()
    sentence = verdict_of(run).replace("\n", " ")
    blocks = [
        marker("analyze", "run_id", run.header.run_id),
        [f"**{escaped(sentence)}**"],
        [_subject(subject_parts(run, summary)), *_made_with(run)],
        [_capital(prose(link))] if (link := link_text(run.link)) else [],
    ]
    if summary["n_summary_steps"] or run.is_capture:
        idle = idle_text(run.breakdown(), run.idle_calls())
        blocks += [_figures(run, summary), [_capital(prose(idle))] if idle else []]
        blocks += _ranks(run, summary["n_summary_steps"])
    if has_host_steps:
        blocks += _host_steps(host_steps)
    blocks += _findings(findings, mean_step_ns(summary))
    blocks += _problems(problems)
    blocks.append([_foot(run.header.run_id)])
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def run_id_of_markdown(path: Path) -> str | None:
    """Return the id of the run that a file of `markdown` is of; None if it is no such file. Reads only its head."""
    return marked_as(path, "analyze", "run_id")


def _subject(parts: Sequence[str]) -> str:
    label, *rest = (escaped(part, _LONGEST_NAME) for part in parts)
    return f"Run {label}: {', '.join(rest)}"


def _made_with(run: Run) -> list[str]:
    text = capture_text(run.header.capture)
    return [f"Captured with {escaped(text, 2 * _LONGEST_NAME)}"] if text else []


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _figures(run: Run, summary: Mapping[str, Any]) -> list[str]:
    grad_copy_ns = pc.mean(run.breakdown()["grad_copy_ns"], skip_nulls=False).as_py()
    shares = [(heading, percent_text(summary[name])) for heading, name in _FIGURES]
    figures = [
        ("step time", ms_text(summary["step_time_ns"])),
        ("throughput", rate_text(summary["throughput_steps_per_s"])),
        *shares,
        ("gradient copies", ms_text(grad_copy_ns)),
    ]
    if run.is_capture:  # the others are of a step
        figures = shares
    return table([heading for heading, _ in figures], [[text for _, text in figures]])


def _ranks(run: Run, n_steps: int) -> list[list[str]]:
    """Return a row per rank, of many ranks only for those that matter most."""
    lateness = {row["rank"]: row["lateness_ns"] for row in run.stragglers().to_pylist()}
    walls = capture_lengths(run) if run.is_capture else {}
    rows = [
        row
        | {_LATENESS: None if (late := lateness.get(row["rank"])) is None else late / n_steps}
        | {_LENGTH: walls.get(row["rank"], row["step_time_ns"])}
        for row in run.rank_summary().to_pylist()
    ]
    shown = _that_matter(rows)
    columns = _rank_columns(rows, "capture" if run.is_capture else "step time")
    lines = table(
        [heading for heading, _, _ in columns],
        [[text(row[name]) for _, name, text in columns] for row in shown],
    )
    if len(shown) == len(rows):
        return [lines]
    waited = ", the most waited for" if _is_known(rows, _LATENESS) else ""
    left_out = f"{len(shown)} of {len(rows)} ranks: the slowest, the most exposed{waited}; `--json` has all."
    return [lines, [left_out]]


def _host_steps(host_steps: pa.Table) -> list[list[str]]:
    """Return a row per process of a run without GPU activity, and what is to be said of them."""
    figures = host_figures(host_steps)
    rows = []
    for one in slowest_first(figures, _SHOWN_RANKS):
        rank, report, *cells = host_cells(one)
        rows.append([rank, *cells, escaped(report, _LONGEST_NAME)])
    headings = ["rank", "steps", "median step", "slowest step", "at step", *PARTS, "report"]
    return [
        table(headings, rows, n_words=1),
        *([prose(note)] for note in host_notes(figures, _SHOWN_RANKS)),
    ]


def _rank_columns(rows: Sequence[Mapping[str, Any]], length: str) -> list[tuple[str, str, Callable[[Any], str]]]:
    """Return heading, figure and how it is written; few enough for the width of a comment."""
    columns: list[tuple[str, str, Callable[[Any], str]]] = [
        ("rank", "rank", str),
        (length, _LENGTH, ms_text),
        *((heading.replace("\n", " "), name, percent_text) for heading, name in RANK_COLUMNS),
        ("others wait for it", _LATENESS, ms_text),
    ]
    unneeded = {name for name in (_WAIT, _LATENESS) if not _is_known(rows, name)}
    # As in the verdict: what hides under compute is said where backward was not marked.
    is_marked = _is_known(rows, _BY_BACKWARD) or not _is_known(rows, _BY_COMPUTE)
    unneeded.add(_BY_COMPUTE if is_marked else _BY_BACKWARD)
    return [column for column in columns if column[1] not in unneeded]


def _is_known(rows: Iterable[Mapping[str, Any]], name: str) -> bool:
    return any(row[name] is not None for row in rows)


def _that_matter(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the slowest, the most exposed and the most waited-for ranks in turn, then sorted by rank."""
    orders = [_by_figure(rows, name) for name in (_LENGTH, "exposed_comm_share", _LATENESS)]
    in_turn = filter(None, chain.from_iterable(zip_longest(*orders)))
    by_rank = {row["rank"]: row for row in chain(in_turn, rows)}
    return [by_rank[rank] for rank in sorted(list(by_rank)[:_SHOWN_RANKS])]


def _by_figure(rows: Iterable[Mapping[str, Any]], name: str) -> list[Mapping[str, Any]]:
    """Return the rows that have something of a figure, most first; of equal ones the lower rank."""
    return sorted((row for row in rows if row[name]), key=lambda row: (-row[name], row["rank"]))


def _findings(findings: Sequence[Mapping[str, Any]], step_time_ns: float | None) -> list[list[str]]:
    if not findings:
        return []
    shown = findings[:_SHOWN_FINDINGS]
    is_replayed = any(row["expected_ns_per_step"] is not None for row in shown)
    rows = [
        [
            *saving_texts(row["saving_ns_per_step"], step_time_ns),
            *([expected_text(row["expected_ns_per_step"], step_time_ns)] if is_replayed else []),
            f"`{row['id']}`: {prose(row['title'])}",
            prose(row["advice"]),
        ]
        for row in shown
    ]
    replayed = ["in a replay"] if is_replayed else []
    headings = ["at most", "of step time", *replayed, "what was found", "what to do"]
    blocks = [
        ["### What to change first (most it gives back per step)"],
        table(headings, rows, n_words=2),
    ]
    if more := len(findings) - len(rows):
        blocks.append([f"Left out: {more} more (`{_COMMAND} --findings all` shows all)."])
    return blocks


def _problems(problems: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return warnings and errors with what mends them; the rest is counted."""
    found = same_problems(problems)
    grave = [one for one in found if one.severity != "info"]
    shown = grave[:_SHOWN_PROBLEMS]
    counts = ((len(grave) - len(shown), "more"), (len(found) - len(grave), "of severity info"))
    rest = " and ".join(f"{n} {what}" for n, what in counts if n)
    note = f"{'Problems left out' if grave else 'No errors or warnings; left out'}: {rest}"
    notes = [f"{note} (`{_COMMAND}` shows all)."] if rest else []
    return [["### Problems"], [_problem(one) for one in shown], notes] if grave else [notes]


def _problem(problem: SameProblem) -> str:
    noun, places = ("rank", problem.ranks) if problem.ranks else ("report", problem.reports)
    names = ", ".join(_cut(str(place), _LONGEST_NAME) for place in places[:_SHOWN_PLACES])
    more = f" and {len(places) - _SHOWN_PLACES} more" if len(places) > _SHOWN_PLACES else ""
    where = f"{noun} {names}{more}" if places else ""
    return trouble_line(problem.severity, problem.message, where, problem.fix)


def _foot(run_id: str) -> str:
    return (
        f"nsyspipe {__version__}, run {escaped(run_id, _LONGEST_NAME)}. More: `{_COMMAND} --html report.html`; "
        "what the figures mean: `nsyspipe schema`."
    )
