"""What ``nsyspipe doctor`` found, as text for the terminal and as a document."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from nsyspipe.model.text import printable
from nsyspipe.report.text import rendered
from nsyspipe.report.units import bytes_text
from nsyspipe.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from nsyspipe.model.problems import Problem
    from nsyspipe.nsys.machine import Check
    from nsyspipe.run.doctor import Capability, Examination


_SCHEMA_VERSION = 1
_STYLES = {
    "ok": "green", "warning": "yellow", "missing": "red", "unknown": "magenta",
    "yes": "green", "partly": "yellow", "no": "red",
}  # fmt: skip
# A narrower terminal gets fewer columns.
_FULL_WIDTH, _USE_WIDTH, _NAMES_WIDTH = 79, 36, 28
_SHOWN_NAMES = 3
_ACRONYMS = {"cpu", "cuda", "gpu", "nccl", "nvtx", "os"}
# What a machine is for, in the words of the first line.
_TASKS = {
    "analyze": "analyze reports",
    "convert": "convert .nsys-rep files",
    "capture": "capture runs",
}
_CAPTURE, _GPU = "capture", "cuda_driver"
_ON_CPUS = "on its CPUs only (--cpu)"

Rows = list[tuple[str, str, str, str]]
Fixes = list[tuple[str, str]]


def machine_text(checks: Sequence[Check], console: Console) -> str:
    """Return what a machine has as text for a console."""
    rows: Rows = [
        (one.status, _words(one.name), _found(one), f"for: {one.needed_for}") for one in checks
    ]
    fixes: Fixes = [(_words(one.name), one.fix) for one in checks if one.fix]
    verdict = Text(_machine_verdict(checks), style="bold")
    return rendered(Group(verdict, _table(rows, console.width), *_fix_list(fixes)), console)


def reports_text(found: Examination, console: Console) -> str:
    """Return what reports can answer as text for a console."""
    used = [one for one in found.capabilities if one.is_used]
    others = [one for one in found.capabilities if not one.is_used]
    widest = max(len(_words(one.name)) for one in found.capabilities)
    parts: list[RenderableType] = [
        Text(_reports_verdict(found, used), style="bold"),
        Text(_subject(found), style="dim"),
        _table(_rows(used), console.width, name_width=widest),
        Padding(
            Text("Not used by nsyspipe, but shown by Nsight Systems:", style="dim"), (1, 0, 0, 0)
        ),
        _table(_rows(others), console.width, name_width=widest, n_above=0),
        *_fix_list([(_words(one.name), _fix(one)) for one in found.capabilities if one.fix]),
        *(_problem(one) for one in found.problems),
    ]
    return rendered(Group(*parts), console)


def machine_document(checks: Iterable[Check]) -> dict[str, Any]:
    """Return the document of a machine as plain Python values."""
    return _header() | {"checks": [asdict(one) for one in checks], "problems": []}


def reports_document(found: Examination) -> dict[str, Any]:
    """Return the document of an examination as plain Python values."""
    fields = ("code", "severity", "report", "rank", "message", "fix")
    return _header() | {
        "reports": list(found.reports),
        "capabilities": [asdict(one) for one in found.capabilities],
        "problems": [{name: getattr(one, name) for name in fields} for one in found.problems],
    }


def _header() -> dict[str, Any]:
    return {"schema_version": _SCHEMA_VERSION, "tool_version": __version__}


def _machine_verdict(checks: Sequence[Check]) -> str:
    can: dict[str, list[str]] = {"yes": [], "unknown": [], "no": []}
    for task, words in _TASKS.items():
        needed = {one.name: one.status for one in checks if task in one.needed_for.split(", ")}
        what = words
        if task == _CAPTURE and needed.get(_GPU) == "missing" and _answer(needed) == "no":
            del needed[_GPU]  # the launchers do without
            what = words if _answer(needed) == "no" else f"{words} {_ON_CPUS}"
        can[_answer(needed)].append(what)
    parts = [
        f"{words} {_or(can[answer], joint)}"
        for answer, words, joint in (
            ("yes", "This machine can", "and"),
            ("unknown", "unclear whether it can", "or"),
            ("no", "it cannot", "or"),
        )
        if can[answer]
    ]
    return f"{'; '.join(parts)}."


def _answer(needed: Mapping[str, str]) -> str:
    """Tell whether a machine can do what needs these, by the status of each."""
    statuses = needed.values()
    return "no" if "missing" in statuses else "unknown" if "unknown" in statuses else "yes"


def _reports_verdict(found: Examination, used: Sequence[Capability]) -> str:
    n_reports = len(found.reports)
    whose = "This report answers" if n_reports == 1 else f"These {n_reports} reports answer"
    full = [one for one in used if one.status == "yes"]
    parts = [f"{whose} {len(full)} of {len(used)} questions"]
    for status, words in (("partly", "in part"), ("no", "not at all")):
        names = [_words(one.name) for one in used if one.status == status]
        if names:
            parts.append(f"{words}: {', '.join(names)}")
    return f"{'; '.join(parts)}."


def _subject(found: Examination) -> str:
    names = found.reports
    shown = names[0] if len(names) == 1 else f"{names[0]} ... {names[-1]}"
    parts = [shown]
    if found.nsys_versions:
        parts.append(f"exported by nsys {', '.join(found.nsys_versions)}")
    if found.schema_versions:
        parts.append(f"schema {', '.join(found.schema_versions)}")
    return printable(" | ".join(parts))


def _rows(capabilities: Iterable[Capability]) -> Rows:
    return [(one.status, _words(one.name), one.found, one.answers) for one in capabilities]


def _table(rows: Rows, width: int, *, name_width: int | None = None, n_above: int = 1) -> Padding:
    """Show one row per thing; a narrow terminal does without the last column."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, min_width=name_width)
    table.add_column(ratio=1, overflow="fold")
    is_wide = width >= _FULL_WIDTH
    if is_wide:
        table.add_column(max_width=_USE_WIDTH, overflow="fold", style="dim")
    for status, name, found, use in rows:
        cells = [Text(status, style=_STYLES[status]), Text(name), Text(printable(found))]
        table.add_row(*cells, *([Text(use)] if is_wide else []))
    return Padding(table, (n_above, 0, 0, 0))


def _fix_list(fixes: Fixes) -> Iterable[RenderableType]:
    """Show each fix once, with what it mends."""
    if not fixes:
        return
    names: dict[str, list[str]] = {}
    for name, fix in fixes:
        names.setdefault(fix, []).append(name)
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(max_width=_NAMES_WIDTH)
    table.add_column(ratio=1, overflow="fold")
    for fix, whose in names.items():
        table.add_row(Text(", ".join(whose)), Text(printable(fix)))
    yield Padding(Text("To add what is missing:"), (1, 0, 0, 0))
    yield table


def _fix(one: Capability) -> str:
    """Name the reports that lack it, unless all do."""
    if not one.n_with:
        return one.fix or ""
    more = len(one.lacking) - _SHOWN_NAMES
    names = ", ".join(one.lacking[:_SHOWN_NAMES]) + (f" and {more} more" if more > 0 else "")
    return f"{one.fix} (for {names})"


def _problem(one: Problem) -> Padding:
    place = f" ({one.report})" if one.report else ""
    text = Text(printable(f"{one.severity}: {one.message}{place}"))
    if one.fix:
        text.append(f"\nfix: {one.fix}", style="dim")
    return Padding(text, (1, 0, 0, 0))


def _found(one: Check) -> str:
    return one.found if one.found_bytes is None else f"{bytes_text(one.found_bytes)} {one.found}"


def _words(name: str) -> str:
    return " ".join(word.upper() if word in _ACRONYMS else word for word in name.split("_"))


def _or(words: Sequence[str], joint: str) -> str:
    return f" {joint} ".join(filter(None, (", ".join(words[:-1]), words[-1])))
