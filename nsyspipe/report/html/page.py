"""The frame of every page: from a template, words and data to one HTML file that loads nothing.

The frame has scripts, styles, the content security policy, and tables.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import resources
from itertools import chain
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
# In this order: each file may use those before it. `start.js` runs the page and comes last of all.
_SCRIPTS = ("format", "palette", "tooltip", "options", "zoom", "charts", "furniture", "hints")
# The meta element that says which run a page shows.
RUN_ID = "nsyspipe-run-id"
# Letters of a name, which may be megabytes long. Nobody reads more of it.
MOST_LETTERS = 400
# Inside a script element "</script>" and "<!--" would end or change it; the last two end a line in
# old JavaScript.
_ESCAPES = {ord(char): f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}
# Types of values that are or may hold texts.
_MAY_HOLD_TEXT = (str, dict, list, tuple)
# Returns None for a file that is not such a page or cannot be read.
run_id_of_page = functools.partial(identity_of_page, name=RUN_ID)
_BLANK_LINES = re.compile(r"\n\s*\n+")
_NUMBER_AND_UNIT = re.compile(r"(?<=\d) (?=(?:%|[num]?s|[kMGT]?B(?:/s)?|steps/s|points|pp)(?!\w))")
# Words of a recommendation that are typed as they are: options, variables, functions and their
# arguments.
_CODE = re.compile(
    r"(nvidia-smi topo -m(?: > \w+\.txt)?|pip install '[^']+'|nsys export(?: --[\w-]+=\w+)+ "
    r"[A-Z]+\.[\w-]+|nsyspipe [a-z]+(?: [A-Z]+)+\b"
    r"|(?:nsys profile |[\w/]+\.sh )?--[a-z][\w-]*(?:[= ](?:[A-Z]+|none|\w+\.txt)\b| "
    r"-(?!\S))?(?:=[\w.,-]*\w)?|(?<![\w.])\.?[A-Za-z][\w.]*\((?!s\))[^()]*\)"
    r"|\b[A-Za-z][A-Za-z0-9]*(?:_[A-Za-z0-9]+)+(?:=\w+(?::\w+)?)?\b)"
)
# Between the words of a name.
_BREAKS = re.compile(r"(?<=[A-Za-z0-9)\]][_./])(?=[A-Za-z]{2})|(?<=::)|(?<=[a-z])(?=[A-Z])")
# Letters of a text: more than any sentence of nsyspipe has.
MAX_LETTERS_OF_TEXT = 2000
# Letters of a word that is never broken, because it fits a phone.
MAX_UNBROKEN_LETTERS = 9
# Letters of a word with hyphens that is never broken, though browsers break at hyphens.
MAX_UNBROKEN_LETTERS_WITH_HYPHEN = 27
# Letters of code that stands in one line.
MAX_LETTERS_OF_SHORT_CODE = 36
# Style of a heading inside a section.
SUBSECTION = "sub"
# Links to sections in the bar.
MOST_LINKS = 7
# Categories of the palette, and words.
PART_LEGEND = tuple((part.category or "", part.short) for part in STEP_PARTS)
# What legends, lanes and bars call parts that are not metrics of the vocabulary.
_MEANINGS_OF_DRAWINGS = {
    "compute alone": "Compute during which no communication runs on the same GPU.",
    "compute during communication": (
        "Compute during which communication runs on the same GPU, so that it overlaps."
    ),
    "overlapped communication": "Communication during which a compute kernel runs on the same GPU.",
    "launch queue": "Work that the CPU has launched and that the GPU has not started yet.",
    "kernels": "Kernels and CUDA graphs. The reports do not show which of them communicate.",
    "copies": "Memory copies and memsets.",
    "wait time": FIGURES["wait_ns"].definition,
    "transfer time": FIGURES["transfer_ns"].definition,
    "hardware counters, 0 to 100%": (
        "Each lane shows what nsys counted on the GPU, in per cent of what the hardware can do. "
        "A lane of a link has the larger of received and sent."
    ),
    "main thread at other lines": "Lines of Python with less time than those with a color.",
}


@functools.cache
def read_asset(name: str) -> str:
    """Return one file of `assets/`."""
    assets = resources.files(__package__) / "assets"
    return (assets / name).read_text(encoding="utf-8")


def csp(scripts: tuple[str, ...]) -> str:
    """Return a content security policy that runs these scripts only, and loads nothing."""
    hashes = " ".join(map(_hash_of, scripts))
    allowed = f"script-src {hashes}; style-src 'unsafe-inline'; img-src data:"
    return f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'"


def _hash_of(script: str) -> str:
    """Return the hash of a script, as a content security policy has it."""
    digest = hashlib.sha256(script.encode()).digest()
    encoded = base64.b64encode(digest).decode()
    return f"'sha256-{encoded}'"


def cut(text: str, most: int = MOST_LETTERS) -> str:
    """Return a text fit to show: without control characters, and only the start if it is long."""
    # One letter more than fits is enough to see that the text is too long.
    shown = printable(text[: most + 1])
    if len(shown) <= most:
        return shown
    # The ellipsis takes the place of a letter.
    start = shown[: most - 1]
    return f"{start}\N{HORIZONTAL ELLIPSIS}"


def as_json(value: object) -> str:
    """Write a value as JSON that may stand inside a script element, with texts fit to show."""
    shown = _shown(value)
    text = json.dumps(
        shown, ensure_ascii=False, allow_nan=False, separators=(",", ":"), sort_keys=True
    )
    return text.translate(_ESCAPES)


def _shown(value: object) -> object:
    """Return a value with all texts in it fit to show, also those in lists and dicts."""
    match value:
        case str():
            return cut(value)
        case dict():
            return {cut(str(key)): _shown(inner) for key, inner in value.items()}
        case list() | tuple() if any(isinstance(inner, _MAY_HOLD_TEXT) for inner in value):
            return [_shown(inner) for inner in value]
    # A list of numbers stays as it is. A call for each number would take longer than to write it.
    return value


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
    """Return a page as text. The same values give the same bytes.

    `template` is a file in `templates/` that extends ``base.html.j2``. `context` has the values
    that the template shows. `identity` is the name and the content of the meta element that says
    what the page shows.

    `data` is what the charts draw, by name: plain values that JSON can hold. A script reads them by
    ``nsyspipe.data(name)``. `scripts` and `styles` are files in `assets/` that this page has in
    addition to those of every page. A page without data has no library for charts.
    """
    library = read_asset(LIBRARY) if data else ""
    script_names = (*_SCRIPTS, *scripts, "start")
    script = "\n".join(read_asset(f"{name}.js") for name in script_names)
    # No check of what users pass: this would be a bug of nsyspipe.
    if any("</script" in text.lower() for text in (library, script)):
        raise ValueError("a script of ours would end its own element")
    style_texts = map(read_asset, (*_STYLES, *styles))
    identity_texts = [escape(cut(text, MAX_LETTERS_OF_TEXT)) for text in identity]
    # Assets are files of ours, and `as_json` escapes what could end a script element.
    style = Markup("\n".join(style_texts))  # noqa: S704
    data_texts = {name: Markup(as_json(value)) for name, value in data.items()}  # noqa: S704
    policy = csp((library, script))
    frame = {
        "title": title,
        "identity": identity_texts,
        "tool_version": __version__,
        "has_charts": bool(data),
        "csp": policy,
        "library": "@@LIBRARY@@",
        "script": "@@SCRIPT@@",
        "styles": style,
        "data": data_texts,
    }
    page_template = _environment().get_template(template)
    text: str = page_template.render(**context, **frame)
    # Blank lines go before @@LIBRARY@@ and @@SCRIPT@@ are replaced, so that nobody looks for them
    # in a megabyte of library.
    without_blank_lines = _BLANK_LINES.sub("\n", text)
    return _with_scripts(without_blank_lines, library, script)


def _with_scripts(text: str, library: str, script: str) -> str:
    """Return a page with library and script in their places, which stand at its end.

    A text of a report may contain the words that mark the places, so the last ones count.
    """
    before_library, _, after_library = text.rpartition("@@LIBRARY@@")
    before_script, _, after_script = after_library.rpartition("@@SCRIPT@@")
    return f"{before_library}{library}{before_script}{script}{after_script}"


def fragment(template: str, context: Mapping[str, Any]) -> str:
    """Return a part of somebody else's page, without blank lines, where Markdown would end it."""
    text = _environment().get_template(template).render(context)
    return _BLANK_LINES.sub("\n", text).strip()


@functools.cache
def _environment() -> Environment:
    """Return what renders templates: texts are escaped, and a missing value is an error."""
    import jinja2

    loader = jinja2.PackageLoader(__package__, "templates")
    environment = jinja2.Environment(
        loader=loader,
        undefined=jinja2.StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalize,
    )
    environment.globals["new_line"] = Markup("\n")
    environment.filters |= {
        "named": with_kinds,
        "backticked": _backticked,
        "code": _code,
        "name": _name,
        "meaning": meaning_of,
        "anchor": anchor_of,
    }
    return environment


def _finalize(value: object) -> object:
    """Return what a template writes of a value: a text fit to show, unless it is marked already."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return _typeset(value)
    return value


def anchor_of(heading: str) -> str:
    """Return what an address calls a section: its heading in small letters, with hyphens."""
    with_hyphens = re.sub(r"\W+", "-", heading.lower())
    return with_hyphens.strip("-")


@functools.cache
def _meanings() -> dict[str, str]:
    """Return the definitions of the vocabulary by the names that outputs use, in small letters."""
    meanings_of_terms = {term.name.lower(): term.definition for term in TERMS}
    meanings_of_figures: dict[str, str] = {}
    for figure in (*FIGURES.values(), *OTHER_FIGURES.values()):
        for name in (figure.label, figure.short):
            # A time and its share have one name. The time comes first, so its definition stays.
            meanings_of_figures.setdefault(name.lower(), figure.definition)
    return meanings_of_terms | meanings_of_figures | _MEANINGS_OF_DRAWINGS


def meaning_of(name: str) -> str:
    """Return the definition of a name of the vocabulary, for a tooltip; ``""`` for another name."""
    words = name.lower().split()
    with_single_spaces = " ".join(words)
    return _meanings().get(with_single_spaces, "")


def _typeset(text: str) -> str:
    """Return a text fit to show, with arrows, and without line breaks between number and unit."""
    shown = cut(text, MAX_LETTERS_OF_TEXT)
    unbroken = _NUMBER_AND_UNIT.sub("\N{NO-BREAK SPACE}", shown)
    return unbroken.replace(" -> ", " \N{RIGHTWARDS ARROW} ")


# A page has the same words in many rows.
@functools.lru_cache(maxsize=2048)
def _name(text: str, unbroken: int = MAX_UNBROKEN_LETTERS) -> Markup:
    """Return a text in which names of more than `unbroken` letters break where a word ends."""
    words = _typeset(text).split(" ")
    broken_words = (_broken(word, unbroken) for word in words)
    return Markup(" ").join(broken_words)


def _broken(word: str, unbroken: int) -> Markup:
    """Return a word that a browser may break between parts of a name, if the word is long.

    `unbroken` is how many letters a word may have without breaks. A word with hyphens may have
    `MAX_UNBROKEN_LETTERS_WITH_HYPHEN`, and does not even break at its hyphens then.
    """
    # The first letter does not count: browsers do not break after the hyphen of an option.
    has_hyphen = "-" in word[1:]
    if has_hyphen and len(word) <= MAX_UNBROKEN_LETTERS_WITH_HYPHEN:
        return Markup('<span class="whole">{}</span>').format(word)
    if len(word) <= unbroken:
        return escape(word)
    pieces = _BREAKS.split(word)
    return Markup("<wbr>").join(pieces)


def _code(
    text: str, unbroken: int = MAX_UNBROKEN_LETTERS, longest: int = MAX_LETTERS_OF_SHORT_CODE
) -> Markup:
    """Return a recommendation in which what is to be typed is marked as code.

    Names outside of code do not break up to `unbroken` letters. Code does not break up to `longest`
    letters.
    """
    marked = Markup()
    shown = cut(text, MAX_LETTERS_OF_TEXT)
    # By turns words and code. Words, which may be empty, come first and last.
    *words_and_code, last_words = _CODE.split(shown)
    words_before_code = words_and_code[::2]
    codes = words_and_code[1::2]
    for words, code in zip(words_before_code, codes, strict=True):
        marked += _name(words, unbroken)
        if len(code) > longest:
            broken_code = _name(code)
            marked += Markup('<code class="long">{}</code>').format(broken_code)
        else:
            marked += Markup("<code>{}</code>").format(code)
    return marked + _name(last_words, unbroken)


def _backticked(text: str) -> Markup:
    """Return a text of ours in which code stands between backticks."""
    marked = Markup()
    # Words and code take turns, and words (perhaps none) come first.
    parts = cut(text, MAX_LETTERS_OF_TEXT).split("`")
    for place, part in enumerate(parts):
        is_code = place % 2 == 1
        marked += Markup("<code>{}</code>").format(part) if is_code else _name(part)
    return marked


class Fold(Struct, frozen=True):
    """Blocks below a line that opens them."""

    summary: str
    blocks: Sequence[Any]
    # Whether paper shows them opened.
    is_printed: bool = False
    is_open: bool = False


class Columns(Struct, frozen=True):
    """Blocks that stand next to each other where there is room."""

    columns: Sequence[Sequence[Any]]


class Choice(NamedTuple):
    """One step that a chart can show, with the text above it and the same values as a table."""

    step: int
    words: str
    texts: Sequence[str]
    table: Table


class Chart(Struct, frozen=True):
    """What a page draws, and the same values as a table.

    The name is that of the data, and of the function in the scripts that draws them.
    """

    name: str
    section: str
    label: str
    height: int
    data: object
    table: Table | None
    caption: str = ""
    # Categories of the palette, and words.
    legend: Sequence[tuple[str, str]] = ()
    has_zoom: bool = False
    # The first is drawn.
    choices: Sequence[Choice] = ()
    # Ranks that the chart shows on demand.
    n_more: int = 0
    # How to read the chart.
    hint: str = ""


class _PageSection(NamedTuple):
    """A section of `blocks_page`; what stands before all sections has no title."""

    title: str
    blocks: list[Any]


def _title_of_section(block: Any) -> str | None:  # noqa: ANN401 - any block
    """Return the title of the section that a block begins; None if it begins none."""
    match block:
        case Heading():
            return None if block.style == SUBSECTION else block.text.rstrip(":")
        case Troubles():
            return None if block.is_close else "Problems"
        case Notes():
            return "How to read it"
        case Table():
            return None if block.is_close else block.caption
        case Chart():
            return block.section
    return None


def blocks_page(
    blocks: Iterable[Any],
    title: str,
    identity: tuple[str, str],
    *,
    scripts: Sequence[str] = (),
    short: Mapping[str, str] | None = None,
    head_name: str = "",
) -> str:
    """Return a page of blocks, with a section for each heading or table.

    The bar at the top has links to the first sections, `MOST_LINKS` at most. `short` has shorter
    names of some sections for these links, by title. If `head_name` is passed, the first link has
    this name, and leads to the blocks before all sections.

    The template draws each block by the name of its class.
    """
    sections = _sections_of(blocks)
    charts = chain.from_iterable(map(_charts_in_section, sections))
    data = {chart.name: chart.data for chart in charts}
    head, *titled_sections = sections
    links = [(anchor_of(section.title), section.title) for section in titled_sections]
    navigation = _navigation(links, head_name)
    subject, _, _ = title.rpartition(": nsyspipe")
    brand = subject or title
    blocks_of_sections = [with_kinds(section.blocks) for section in titled_sections]
    context = {
        "head_name": head_name,
        "brand": brand,
        "short": short or {},
        "head": with_kinds(head.blocks),
        "navigation": navigation,
        "sections": links,
        "parts": blocks_of_sections,
    }
    styles = ("run.css", "blocks.css")
    return render("blocks.html.j2", title, identity, context, data, scripts=scripts, styles=styles)


def _sections_of(blocks: Iterable[Any]) -> list[_PageSection]:
    """Return the sections of a page. The first section has no title, and perhaps no blocks.

    A block with another title than the section before begins a new section. A block without a title
    belongs to the section before.
    """
    section = _PageSection("", [])
    sections = [section]
    for block in blocks:
        title = _title_of_section(block)
        if title and title != section.title:
            section = _PageSection(title, [])
            sections.append(section)
        section.blocks.append(block)
    return sections


def _charts_in_section(section: _PageSection) -> Iterator[Chart]:
    for block in section.blocks:
        yield from _charts_in(block)


def _navigation(links: Sequence[tuple[str, str]], head_name: str) -> list[tuple[str, str]]:
    """Return the links of the bar of `blocks_page`: anchors and names of sections.

    `links` are those to all sections with a title.
    """
    links_in_bar = [*links]
    if head_name:
        link_to_head = (anchor_of(head_name), head_name)
        links_in_bar.insert(0, link_to_head)
    return links_in_bar[:MOST_LINKS]


def _blocks_inside(block: Any) -> Iterator[Any]:  # noqa: ANN401 - any block
    """Yield the blocks that a block holds directly; nothing for most blocks."""
    if isinstance(block, Fold):
        yield from block.blocks
    elif isinstance(block, Columns):
        for column in block.columns:
            yield from column


def _charts_in(block: Any) -> Iterator[Chart]:  # noqa: ANN401 - any block
    """Yield a block if it is a chart, and all charts inside it, however deep."""
    if isinstance(block, Chart):
        yield block
    for inner_block in _blocks_inside(block):
        yield from _charts_in(inner_block)


def with_kinds(blocks: Iterable[Any]) -> list[tuple[str, Any]]:
    """Return blocks with their kinds, by which the template draws them."""
    return [(type(block).__name__, block) for block in blocks]
