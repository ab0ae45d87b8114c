"""The pages of docs/reference/ that are made from the program itself: commands from their options, Python from docstrings."""

import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator
from typing import Any

import typer.main

import nsyspipe
from nsyspipe import capture
from nsyspipe.cli.app import app
from nsyspipe.cli.options import Sectioned
from nsyspipe.model.figures import METRICS, glossary_rows
from nsyspipe.pytest_plugin.marker import StepTimeRule
from nsyspipe.pytest_plugin.step_time import StepTime
from nsyspipe.report.markdown import prose
from nsyspipe.run.run import Run

WRITTEN_BY = (
    "<!-- Written by pytest tests/contract/test_reference.py --update-golden. Do not edit. -->"
)
_DEFAULT = re.compile(r" *\[(default: .*)\]$")
_NO_PANEL = "Arguments"
_LONGEST_CELL = 10_000


# --- commands -------------------------------------------------------------------------------------
def cli_page() -> str:
    """Return the page of all commands, with the texts of ``--help``."""
    parts = [
        "# Command line",
        WRITTEN_BY,
        (
            "The texts on this page are those of `nsyspipe COMMAND --help`. [Exit "
            "codes](exit-codes.md) are on a page of their own."
        ),
    ]
    commands: dict[str, Sectioned] = vars(typer.main.get_command(app))["commands"]
    parts.append("\n".join(f"- [nsyspipe {name}](#nsyspipe-{name})" for name in commands))
    for name, command in commands.items():
        parts.extend(_command_parts(name, command))
    return "\n\n".join(parts) + "\n"


def _command_parts(name: str, command: Sectioned) -> Iterator[str]:
    yield f"## nsyspipe {name}"
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        yield _paragraph(paragraph)
    context = command.make_context(name, [], resilient_parsing=True)
    panels: dict[str, list[str]] = {}
    for option in command.params:
        record = option.get_help_record(context)
        if record is not None:
            panel = getattr(option, "rich_help_panel", None) or _NO_PANEL
            panels.setdefault(panel, []).append(_option_row(record))
    for panel, rows in panels.items():
        yield "\n".join([f"| {panel} | meaning |", "|---|---|", *rows])


def _paragraph(text: str) -> str:
    if not text.startswith("\b"):
        return prose(" ".join(text.split()), _LONGEST_CELL)
    title, *lines = text.removeprefix("\b").strip("\n").splitlines()
    return f"{title}\n\n```text\n{textwrap.dedent(chr(10).join(lines))}\n```"


def _option_row(record: tuple[str, str]) -> str:
    names, meaning = record[0].removesuffix(" <list[str]>"), record[1]
    default = _DEFAULT.search(meaning)
    words = prose(_DEFAULT.sub("", meaning), _LONGEST_CELL)
    if default:
        value = default[1].removeprefix("default: ").replace("|", "\\|")
        words += f" Default: `{value}`."
    return f"| `{names.replace('|', chr(92) + '|')}` | {words} |"


# --- Python ---------------------------------------------------------------------------------------
_FUNCTIONS = ("load", "diff", "compare", "whatif", "dashboard")
_EXPORTS = ("write", "parquet", "document")
_CAPTURE = ("captured_steps", "annotate", "start_capture", "stop_capture")
_STARS: dict[object, str] = {
    inspect.Parameter.VAR_POSITIONAL: "*",
    inspect.Parameter.VAR_KEYWORD: "**",
}
_SECTIONS = ("Parameters", "Returns", "Yields", "Raises")


def python_page() -> str:
    """Return the page of all public functions, and of the tables of a run, with the texts of their docstrings."""
    parts = [
        "# Python API",
        WRITTEN_BY,
        (
            "The texts on this page are the docstrings. [Notebook](../how-to/notebook.md) and "
            "[pytest](../how-to/pytest.md) show how to use them."
        ),
    ]
    for name in _FUNCTIONS:
        parts.extend(_callable_parts(f"nsyspipe.{name}", getattr(nsyspipe, name)))
    for name in _EXPORTS:
        parts.extend(_callable_parts(f"nsyspipe.export.{name}", getattr(nsyspipe.export, name)))
    for name in _CAPTURE:
        parts.extend(_callable_parts(f"nsyspipe.capture.{name}", getattr(capture, name)))
    parts.extend(_class_parts("nsyspipe.Run", Run))
    parts.extend(_class_parts("nsyspipe.Side", nsyspipe.Side))
    parts.extend(_class_parts("nsyspipe.NsyspipeError", nsyspipe.NsyspipeError))
    parts.extend(_callable_parts("pytest.mark.step_time", StepTimeRule))
    parts.extend(_callable_parts("step_time", StepTime.__call__))
    return "\n\n".join(parts) + "\n"


def _callable_parts(name: str, function: Any) -> Iterator[str]:
    from numpydoc.docscrape import FunctionDoc  # noqa: PLC0415 - only who writes the page has it

    doc = FunctionDoc(function)
    yield f"## {name}"
    parameters = ", ".join(_parameters(function))
    yield f"```text\n{name}({parameters})\n```"
    yield from _texts(doc)


def _parameters(function: Any) -> Iterator[str]:
    """Yield the parameters of a function without types; a star comes before those that need their names."""
    has_star = False
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not has_star:
            has_star = True
            yield "*"
        stars = _STARS.get(parameter.kind, "")
        has_star = has_star or parameter.kind is parameter.VAR_POSITIONAL
        default = "" if parameter.default is parameter.empty else f"={parameter.default!r}"
        yield f"{stars}{parameter.name}{default}"


def _class_parts(name: str, cls: type) -> Iterator[str]:
    from numpydoc.docscrape import NumpyDocString  # noqa: PLC0415

    yield f"## {name}"
    yield from _texts(NumpyDocString(inspect.getdoc(cls) or ""))
    rows = [f"| `{member}` | {summary} |" for member, summary in _members(cls)]
    if rows:
        yield "\n".join(["| member | what it is |", "|---|---|", *rows])


def _members(cls: type) -> Iterator[tuple[str, str]]:
    """Yield the public methods and properties of a class with the first sentence of their docstrings."""
    for name, member in vars(cls).items():
        if name.startswith("_") or not (inspect.isfunction(member) or isinstance(member, property)):
            continue
        summary = (inspect.getdoc(member) or "").partition("\n\n")[0]
        call = f"{name}({', '.join(_parameters(member))})" if inspect.isfunction(member) else name
        yield call, _markdown([summary])


def _texts(doc: Any) -> Iterator[str]:
    yield _markdown(doc["Summary"])
    if doc["Extended Summary"]:
        yield _markdown(doc["Extended Summary"])
    for section in _SECTIONS:
        if doc[section]:
            yield f"**{section}**"
            yield "\n".join(_entry(name, kind, lines) for name, kind, lines in doc[section])
    if doc["Notes"]:
        yield _markdown(doc["Notes"])


def _entry(name: str, kind: str, lines: Iterable[str]) -> str:
    head = " ".join(f"`{text}`" for text in (name, kind) if text)
    return f"- {head}: {' '.join(_markdown(lines).split())}"


def _markdown(lines: Iterable[str]) -> str:
    """Return lines of reStructuredText, as our docstrings have it, as Markdown: code has one backtick there."""
    text = "\n".join(lines).replace("``", "`").replace("|", "\\|").replace("<", "&lt;")
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))


# --- glossary -------------------------------------------------------------------------------------
def with_part(page: str, name: str, text: str) -> str:
    """Return a page with another text between the two comments of that name."""
    begin, end = (f"<!-- {name}: {word} -->" for word in ("begin", "end"))
    before, _, rest = page.partition(begin)
    if not rest:
        message = f"no comment {begin!r} on the page"
        raise ValueError(message)
    return f"{before}{begin}\n{text}\n{end}{rest.partition(end)[2]}"


def vocabulary_table() -> str:
    """Return the terms of the vocabulary, with the stable names and units of those that are metrics."""
    names: dict[str, list[str]] = {}
    for metric in METRICS.values():
        names.setdefault(metric.label, []).append(f"`{metric.name}`")
    lines = ["| term | short | name | unit | meaning |", "|---|---|---|---|---|"]
    for row in glossary_rows():
        cells = (row.term, row.short, ", ".join(names.get(row.term, [])), row.unit, row.definition)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
