"""From a template, words and data to one HTML file that fetches nothing: frame, scripts, policy and tables of every page."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import re
from dataclasses import dataclass, field
from importlib import resources
from typing import TYPE_CHECKING, Any

from nsyspipe.model.names import printable
from nsyspipe.report.blocks import Heading, Notes, Table, Troubles
from nsyspipe.report.files import identity_of_page
from nsyspipe.report.units import STEP_PARTS
from nsyspipe.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from jinja2 import Environment
    from markupsafe import Markup


LIBRARY = "echarts.min.js"
SHELL_STYLES = ("tokens.css", "base.css", "parts.css", "charts.css", "print.css")
# In this order: each file may use what stands before it. `start.js` runs the page and comes last of all.
SHELL_SCRIPTS = ("format.js", "palette.js", "tooltip.js", "options.js", "zoom.js", "charts.js", "furniture.js")
_START = "start.js"


@functools.cache
def read_asset(name: str) -> str:
    """Return one file of `assets/`."""
    return (resources.files(__package__) / "assets" / name).read_text(encoding="utf-8")


def styles(names: tuple[str, ...] = ()) -> str:
    """Return the shell's styles, then those of the page."""
    return "\n".join(read_asset(name) for name in (*SHELL_STYLES, *names))


def script(names: tuple[str, ...] = ()) -> str:
    """Return the shell's scripts, then those of the page, then what starts them."""
    return "\n".join(read_asset(name) for name in (*SHELL_SCRIPTS, *names, _START))


def csp(scripts: tuple[str, ...]) -> str:
    """Return a content security policy under which these scripts run and nothing else, and nothing is fetched."""
    hashes = " ".join(f"'sha256-{_sha256(text)}'" for text in scripts)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


@functools.cache
def _sha256(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


# Name of the meta element that says which run a page shows.
RUN_ID = "nsyspipe-run-id"
# A name may be megabytes long; nobody reads more of it than this.
MOST_LETTERS = 400
_MOST_IDENTITY = 2000
# Inside a script element "</script>" and "<!--" would end or change it; the last two end a line in old JavaScript.
_ESCAPES = {ord(char): f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}


def cut(text: str, most: int = MOST_LETTERS) -> str:
    """Return text fit to show: no control characters, and of a very long one the start."""
    text = printable(text[: most + 1])
    return text if len(text) <= most else f"{text[: most - 1]}\N{HORIZONTAL ELLIPSIS}"


def as_json(value: object) -> str:
    """Write a value as JSON that may stand inside a script element; texts in it are made fit to show."""
    text = json.dumps(_shown(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"), sort_keys=True)
    return text.translate(_ESCAPES)


def _shown(value: object) -> object:
    if isinstance(value, str):
        return cut(value)
    if isinstance(value, dict):
        return {cut(str(key)): _shown(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        # Long arrays hold numbers only; looking at each of them costs more than writing them.
        return [_shown(one) for one in value] if _has_parts(value) else value
    return value


def _has_parts(values: list[Any] | tuple[Any, ...]) -> bool:
    return any(isinstance(one, str | dict | list | tuple) for one in values)


def run_id_of_page(path: Path) -> str | None:
    """Return the id of the run that a page shows; None if the file is no such page or cannot be read."""
    return identity_of_page(path, RUN_ID)


_BLANK_LINES = re.compile(r"\n\s*\n+")
_NUMBER_AND_UNIT = re.compile(r"(?<=\d) (?=(?:%|ns|ms|[kMGT]?B|GB/s|steps/s)(?!\w))")
# Words of an advice that are typed as they are: options, variables, functions and their arguments.
_CODE = re.compile(
    r"nvidia-smi topo -m|--[a-z][\w-]*(?:[= ][A-Z]+\b)?(?:=[\w.]+)?|(?<![\w.])\.?[A-Za-z][\w.]*\([^()]*\)"
    r"|\b[A-Za-z][A-Za-z0-9]*(?:_[A-Za-z0-9]+)+(?:=\w+(?::\w+)?)?\b"
)


@dataclass(frozen=True)
class Page:
    """What makes one page."""

    template: str  # file in `templates/` that extends ``base.html.j2``
    title: str  # of the browser's tab
    identity: tuple[str, str]  # name and content of the meta element that says whose page it is
    context: Mapping[str, Any]  # what the template shows, beside `title`
    # by name what the charts draw: plain values that JSON can hold. ``nsyspipe.data(name)`` in a script.
    data: Mapping[str, Any]
    # files of `assets/` that this page needs beside the shell's
    scripts: tuple[str, ...] = ()
    styles: tuple[str, ...] = field(default=())
    has_charts: bool = True


def render(page: Page) -> str:
    """Return the page as text: the same page gives the same bytes, and no clock, locale or network is asked."""
    library, own = (_closed(read_asset(LIBRARY) if page.has_charts else ""), _closed(script(page.scripts)))
    markup = _markup()
    text: str = (
        _environment()
        .get_template(page.template)
        .render(
            **page.context,
            title=page.title,
            identity=page.identity,
            tool_version=__version__,
            has_charts=page.has_charts,
            csp=csp((library, own)),
            styles=markup(styles(page.styles)),
            data={name: markup(as_json(value)) for name, value in page.data.items()},
            library=markup("@@LIBRARY@@"),
            script=markup("@@SCRIPT@@"),
        )
    )
    # Put in last: nobody has to look through a megabyte of library for blank lines.
    head, _, tail = _BLANK_LINES.sub("\n", text).rpartition("@@LIBRARY@@")
    before, _, after = tail.rpartition("@@SCRIPT@@")
    return f"{head}{library}{before}{own}{after}"


def _closed(text: str) -> str:
    if "</script" in text.lower():
        message = "a script of ours would end its own element"
        raise ValueError(message)
    return text


def _markup() -> type[Markup]:
    from markupsafe import Markup  # noqa: PLC0415 - comes with jinja2, which only pages need

    return Markup


@functools.cache
def _environment() -> Environment:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(__package__, "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalize,
    )
    environment.filters["code"] = _code
    environment.filters["unbroken"] = _unbroken
    return environment


def _finalize(value: object) -> object:
    """Make every text that a template shows fit to be shown, wherever it comes from."""
    return cut(value, _MOST_SHOWN) if type(value) is str else value


# Longer than any sentence of ours.
_MOST_SHOWN = 2000


def _unbroken(text: str) -> Markup:
    """Return a sentence in which no line breaks between a number and its unit."""
    return _markup()("&nbsp;").join(_NUMBER_AND_UNIT.split(cut(text, _MOST_SHOWN)))


def _code(text: str) -> Markup:
    """Return an advice with what is to be typed marked as code."""
    markup, text = _markup(), cut(text, _MOST_SHOWN)
    parts, at = markup(), 0
    for found in _CODE.finditer(text):
        parts += text[at : found.start()]
        parts += markup("<code>{}</code>").format(found[0])
        at = found.end()
    return parts + text[at:]


@dataclass(frozen=True, slots=True)
class Chart:
    """What a page draws, by its name in `data`, the builder of that name in the scripts, and the same as a table."""

    name: str
    section: str
    label: str
    height: int
    data: object
    table: Table | None
    caption: str = ""
    legend: Sequence[tuple[str, str]] = ()  # category of the palette, and words
    has_zoom: bool = False


# Of the parts of a step: categories of the palette, and words.
PART_LEGEND = tuple((part.category or "", part.short) for part in STEP_PARTS)


def blocks_page(
    blocks: Iterable[Any],
    title: str,
    identity: tuple[str, str],
    *,
    scripts: tuple[str, ...] = (),
    styles: tuple[str, ...] = (),
    brand: str | None = None,
    n_beside: int = 0,
) -> str:
    """Return the page of what is told in blocks: sentences and facts first, then a section for each heading or table.

    The first `n_beside` sections stand beside each other where there is room. A block that only one subject has is drawn
    by its name in the template, as the others are.
    """
    parts: list[tuple[str, list[tuple[str, Any]]]] = [("", [])]
    charts = []
    for block in blocks:
        section = _section(block)
        if section and section != parts[-1][0]:
            parts.append((section, []))
        parts[-1][1].append((type(block).__name__, block))
        charts += [block] if isinstance(block, Chart) else []
    (_, head), *rest = parts
    return render(
        Page(
            template="blocks.html.j2",
            title=title,
            identity=identity,
            context={
                "brand": brand or title,
                "n_beside": n_beside,
                "head": head,
                "sections": [(_anchor(name), name) for name, _ in rest],
                "parts": [part for _, part in rest],
            },
            data={chart.name: chart.data for chart in charts},
            scripts=scripts,
            styles=("run.css", "blocks.css", *styles),
            has_charts=bool(charts),
        )
    )


def _anchor(name: str) -> str:
    return re.sub(r"\W+", "-", name.lower()).strip("-")


def _section(block: object) -> str | None:
    """Return what a section is called that begins with a block; None if none does."""
    match block:
        case Heading():
            return block.text.rstrip(":")
        case Troubles(is_close=False):
            return "Problems"
        case Notes():
            return "How to read it"
        case Table(is_close=False):
            return block.caption
        case Chart():
            return block.section
    return None
