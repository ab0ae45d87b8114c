"""From a template, words and data to one HTML file that fetches nothing: frame, scripts, policy and tables of every page."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import resources
from typing import TYPE_CHECKING, Any, NamedTuple

from markupsafe import Markup, escape
from msgspec import Struct

from nsyspipe.model.figures import FIGURES, OTHER_FIGURES, TERMS
from nsyspipe.model.names import printable
from nsyspipe.report.blocks import Heading, Notes, Table, Troubles
from nsyspipe.report.files import identity_of_page
from nsyspipe.report.units import STEP_PARTS
from nsyspipe.version import __version__

if TYPE_CHECKING:
    from jinja2 import Environment

LIBRARY = "echarts.min.js"
_STYLES = ("tokens.css", "base.css", "parts.css", "charts.css", "print.css")
# In this order: each file may use what stands before it. `start.js` runs the page and comes last of
# all.
_SCRIPTS = ("format", "palette", "tooltip", "options", "zoom", "charts", "furniture", "hints")
RUN_ID = "nsyspipe-run-id"  # the meta element that says which run a page shows
MOST_LETTERS = 400  # of a name, which may be megabytes long: nobody reads more of it
# Inside a script element "</script>" and "<!--" would end or change it; the last two end a line in
# old JavaScript.
_ESCAPES = {ord(char): f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}
run_id_of_page = functools.partial(
    identity_of_page, name=RUN_ID
)  # None of what is no such page or cannot be read
_BLANK_LINES = re.compile(r"\n\s*\n+")
_NUMBER_AND_UNIT = re.compile(r"(?<=\d) (?=(?:%|[num]?s|[kMGT]?B(?:/s)?|steps/s|points|pp)(?!\w))")
# Words of an advice that are typed as they are: options, variables, functions and their arguments.
_CODE = re.compile(
    r"(nvidia-smi topo -m(?: > \w+\.txt)?|pip install '[^']+'|nsys export(?: --[\w-]+=\w+)+ "
    r"[A-Z]+\.[\w-]+|nsyspipe [a-z]+(?: [A-Z]+)+\b"
    r"|(?:nsys profile |[\w/]+\.sh )?--[a-z][\w-]*(?:[= ](?:[A-Z]+|none|\w+\.txt)\b| "
    r"-(?!\S))?(?:=[\w.,-]*\w)?|(?<![\w.])\.?[A-Za-z][\w.]*\((?!s\))[^()]*\)"
    r"|\b[A-Za-z][A-Za-z0-9]*(?:_[A-Za-z0-9]+)+(?:=\w+(?::\w+)?)?\b)"
)
# Between the words of a name.
_BREAKS = re.compile(r"(?<=[A-Za-z0-9)\]][_./])(?=[A-Za-z]{2})|(?<=::)|(?<=[a-z])(?=[A-Z])")
_MOST_SHOWN = 2000  # longer than any sentence of ours
# letters; what is shorter fits a phone
_UNBROKEN = 9
_WHOLE = 27
_LONG_CODE = 36
SUBSECTION = "sub"  # style of a heading inside a section
MOST_LINKS = 7  # to sections, in the bar
PART_LEGEND = tuple(
    (part.category or "", part.short) for part in STEP_PARTS
)  # categories of the palette, and words


# What legends, lanes and bars call parts that are no figures of the vocabulary.
_MEANINGS_OF_DRAWINGS = {
    "compute alone": "Compute during which no communication runs on the same GPU.",
    "compute during communication": "Compute during which communication runs on the same GPU, so that it overlaps.",
    "overlapped communication": "Communication during which a compute kernel runs on the same GPU.",
    "launch queue": "Work that the CPU has launched and that the GPU has not started yet.",
    "kernels": "Kernels and CUDA graphs. The reports do not show which of them communicate.",
    "copies": "Memory copies and memsets.",
    "wait time": FIGURES["wait_ns"].definition,
    "transfer time": FIGURES["transfer_ns"].definition,
}


@functools.cache
def read_asset(name: str) -> str:
    """Return one file of `assets/`."""
    return (resources.files(__package__) / "assets" / name).read_text(encoding="utf-8")


def csp(scripts: tuple[str, ...]) -> str:
    """Return a content security policy under which these scripts run and nothing else, and nothing is fetched."""
    digests = (
        base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts
    )
    hashes = " ".join(f"'sha256-{digest}'" for digest in digests)
    allowed = f"script-src {hashes}; style-src 'unsafe-inline'; img-src data:"
    return f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'"


def cut(text: str, most: int = MOST_LETTERS) -> str:
    """Return text fit to show: no control characters, and of a very long one the start."""
    text = printable(text[: most + 1])
    return text if len(text) <= most else f"{text[: most - 1]}\N{HORIZONTAL ELLIPSIS}"


def as_json(value: object) -> str:
    """Write a value as JSON that may stand inside a script element; texts in it are made fit to show."""
    text = json.dumps(
        _shown(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"), sort_keys=True
    )
    return text.translate(_ESCAPES)


def _shown(value: object) -> object:
    match value:
        case str():
            return cut(value)
        case dict():
            return {cut(str(key)): _shown(one) for key, one in value.items()}
        case list() | tuple() if any(isinstance(one, str | dict | list | tuple) for one in value):
            return [_shown(one) for one in value]
    return (
        value  # long arrays hold numbers only; looking at each of them costs more than writing them
    )


def render(
    template: str,
    title: str,
    identity: tuple[str, str],
    context: Mapping[str, Any],
    data: Mapping[str, object],
    *,
    scripts: Sequence[str] = (),
    styles: Sequence[str] = (),
) -> str:
    """Return a page as text: the same values give the same bytes, and no clock, locale or network is asked.

    `template` is a file in `templates/` that extends ``base.html.j2``, `context` what it shows;
    `identity` is name and content of the meta element that says whose page it is; `data` is what
    the charts draw, by name: plain values that JSON can hold (``nsyspipe.data(name)`` in a script).
    `scripts` and `styles` are in `assets/`, beside every page's.
    """
    library = read_asset(LIBRARY) if data else ""
    script = "\n".join(read_asset(f"{name}.js") for name in (*_SCRIPTS, *scripts, "start"))
    if any("</script" in text.lower() for text in (library, script)):
        raise ValueError("a script of ours would end its own element")
    text: str = (
        _environment()
        .get_template(template)
        .render(
            **context,
            title=title,
            identity=[escape(cut(one, _MOST_SHOWN)) for one in identity],
            tool_version=__version__,
            has_charts=bool(data),
            csp=csp((library, script)),
            library="@@LIBRARY@@",
            script="@@SCRIPT@@",
            styles=Markup("\n".join(map(read_asset, (*_STYLES, *styles)))),  # noqa: S704 - files of ours
            data={name: Markup(as_json(value)) for name, value in data.items()},  # noqa: S704 - see `as_json`
        )
    )
    # Put in last: nobody has to look through a megabyte of library for blank lines.
    head, _, tail = _BLANK_LINES.sub("\n", text).rpartition("@@LIBRARY@@")
    before, _, after = tail.rpartition("@@SCRIPT@@")
    return f"{head}{library}{before}{script}{after}"


def fragment(template: str, context: Mapping[str, Any]) -> str:
    """Return a part of somebody else's page, without a blank line: Markdown would end the HTML there."""
    return _BLANK_LINES.sub("\n", _environment().get_template(template).render(context)).strip()


@functools.cache
def _environment() -> Environment:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(__package__, "templates"),
        undefined=jinja2.StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: (
            _told(value) if isinstance(value, str) and not isinstance(value, Markup) else value
        ),
    )
    environment.globals["new_line"] = Markup("\n")
    environment.filters |= {
        "named": _named,
        "backticked": _backticked,
        "code": _code,
        "name": _name,
        "meaning": meaning_of,
        "anchor": anchor_of,
    }
    return environment


def anchor_of(heading: str) -> str:
    """Return what an address calls a section: its heading in small letters, with hyphens."""
    return re.sub(r"\W+", "-", heading.lower()).strip("-")


@functools.cache
def _meanings() -> dict[str, str]:
    """Return the definitions of the vocabulary by the names that outputs use, in small letters."""
    figures = [*FIGURES.values(), *OTHER_FIGURES.values()]
    meanings = {term.name.lower(): term.definition for term in TERMS}
    for figure in reversed(
        figures
    ):  # the first of a name counts: of a time and its share, the time
        meanings |= {name.lower(): figure.definition for name in (figure.label, figure.short)}
    return meanings | _MEANINGS_OF_DRAWINGS


def meaning_of(name: str) -> str:
    """Return the definition of a name of the vocabulary, as tooltips have it; nothing for any other word."""
    return _meanings().get(" ".join(name.split()).lower(), "")


def _told(text: str) -> str:
    """Return a text fit to be shown, wherever it comes from; no line breaks inside an arrow, or between a number and its unit."""
    return _NUMBER_AND_UNIT.sub("\N{NO-BREAK SPACE}", cut(text, _MOST_SHOWN)).replace(
        " -> ", " \N{RIGHTWARDS ARROW} "
    )


@functools.lru_cache(maxsize=2048)  # a page has the same words in many rows
def _name(text: str, unbroken: int = _UNBROKEN) -> Markup:
    """Return a text with names in it, of which those longer than `unbroken` break where their words end."""
    return Markup(" ").join(_broken(word, unbroken) for word in _told(text).split(" "))


def _broken(word: str, unbroken: int) -> Markup:
    if "-" in word[1:] and len(word) <= _WHOLE:  # browsers break at hyphens
        return Markup('<span class="whole">{}</span>').format(word)
    if len(word) <= unbroken:
        return escape(word)
    return Markup("<wbr>").join(_BREAKS.split(word))


def _code(text: str, unbroken: int = _UNBROKEN, longest: int = _LONG_CODE) -> Markup:
    """Return an advice with what is to be typed marked as code, which stands in one line up to `longest` letters."""
    marked, (*pairs, rest) = Markup(), _CODE.split(cut(text, _MOST_SHOWN))
    for words, code in zip(pairs[::2], pairs[1::2], strict=True):
        is_long = len(code) > longest
        shape = Markup('{}<code class="long">{}</code>') if is_long else Markup("{}<code>{}</code>")
        marked += shape.format(_name(words, unbroken), _name(code) if is_long else code)
    return marked + _name(rest, unbroken)


def _backticked(text: str) -> Markup:
    """Return a text of ours in which code stands between backticks."""
    marked = Markup()
    for at, part in enumerate(cut(text, _MOST_SHOWN).split("`")):
        marked += Markup("<code>{}</code>").format(part) if at % 2 else _name(part)
    return marked


class Fold(Struct, frozen=True):
    """Blocks below a line that opens them."""

    summary: str
    blocks: Sequence[Any]
    is_printed: bool = False  # whether paper shows them opened
    is_open: bool = False


class Columns(Struct, frozen=True):
    """Blocks that stand next to each other where there is room."""

    columns: Sequence[Sequence[Any]]


class Choice(NamedTuple):
    """One step that a chart can show: what stands above it then, and the same figures as a table."""

    step: int
    words: str
    texts: Sequence[str]
    table: Table


class Chart(Struct, frozen=True):
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
    choices: Sequence[Choice] = ()  # the first is drawn
    n_more: int = 0  # ranks that it shows when asked to
    hint: str = ""  # how to read it


# What a section is called that begins with a block; None, as of any other block, if none does.
_SECTIONS: dict[type, Callable[[Any], str | None]] = {
    Heading: lambda block: None if block.style == SUBSECTION else block.text.rstrip(":"),
    Troubles: lambda block: None if block.is_close else "Problems",
    Notes: lambda _: "How to read it",
    Table: lambda block: None if block.is_close else block.caption,
    Chart: lambda block: block.section,
}


def blocks_page(
    blocks: Iterable[Any],
    title: str,
    identity: tuple[str, str],
    *,
    scripts: Sequence[str] = (),
    short: Mapping[str, str] | None = None,
    linked: Sequence[str] | None = None,
    head_name: str = "",
) -> str:
    """Return the page of what is told in blocks: sentences and facts first, then a section for each heading or table.

    `short` is what links call a section whose name is long. The bar links to the `linked` sections,
    by default to the first `MOST_LINKS`, and before them to what stands before all sections, if
    that has a name. The template draws each block by its name.
    """
    parts: list[tuple[str, list[Any]]] = [("", [])]
    data: dict[str, object] = {}
    for block in blocks:
        section = _SECTIONS.get(type(block), lambda _: None)(block)
        if section and section != parts[-1][0]:
            parts.append((section, []))
        parts[-1][1].append(block)
        data |= {chart.name: chart.data for chart in _charts_in(block)}
    (_, head), *rest = parts
    names = [name for name, _ in rest]
    in_bar = names[:MOST_LINKS] if linked is None else [name for name in names if name in linked]
    of_head = [(anchor_of(head_name), head_name)] if head_name else []
    context = {
        "head_name": head_name,
        "brand": title.rpartition(": nsyspipe")[0] or title,
        "short": short or {},
        "head": _named(head),
        "navigation": [*of_head, *((anchor_of(name), name) for name in in_bar)][:MOST_LINKS],
        "sections": [(anchor_of(name), name) for name in names],
        "parts": [_named(part) for _, part in rest],
    }
    return render(
        "blocks.html.j2",
        title,
        identity,
        context,
        data,
        scripts=scripts,
        styles=("run.css", "blocks.css"),
    )


def _inner(block: Any) -> Iterator[Any]:  # noqa: ANN401 - any block
    """Yield the blocks that a block holds."""
    if isinstance(block, Fold):
        yield from block.blocks
    elif isinstance(block, Columns):
        for column in block.columns:
            yield from column


def _charts_in(block: Any) -> Iterator[Chart]:  # noqa: ANN401 - any block
    if isinstance(block, Chart):
        yield block
    for inner in _inner(block):
        yield from _charts_in(inner)


def _named(blocks: Iterable[Any]) -> list[tuple[str, Any]]:
    """Return blocks with their kinds, by which the template draws them."""
    return [(type(block).__name__, block) for block in blocks]
