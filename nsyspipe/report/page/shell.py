"""From a template, words and data to one HTML file that fetches nothing: the frame of every page."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nsyspipe.report.page.assets import LIBRARY, csp, read_asset, script, styles
from nsyspipe.report.page.embed import as_json, cut
from nsyspipe.version import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jinja2 import Environment
    from markupsafe import Markup

__all__ = ["Page", "render"]

_BLANK_LINES = re.compile(r"\n\s*\n+")
_NUMBER_AND_UNIT = re.compile(r"(?<=\d) (?=(?:%|ns|ms|[kMGT]?B|GB/s|steps/s)(?!\w))")
# Words of an advice that are typed as they are: options, variables, functions and their arguments.
_CODE = re.compile(
    r"nvidia-smi topo -m|--[a-z][\w-]*(?:[= ][A-Z]+\b)?(?:=[\w.]+)?|(?<![\w.])\.?[A-Za-z][\w.]*\([^()]*\)"
    r"|\b[A-Za-z][A-Za-z0-9]*(?:_[A-Za-z0-9]+)+(?:=\w+(?::\w+)?)?\b"
)


@dataclass(frozen=True)
class Page:
    """What makes one page.

    Attributes
    ----------
    template
        File in `templates/` that extends ``base.html.j2``.
    title
        Of the browser's tab.
    identity
        Name and content of the meta element that says whose page it is.
    context
        What the template shows, beside `title`.
    data
        By name what the charts draw: plain values that JSON can hold. ``nsyspipe.data(name)`` in a script.
    scripts, styles
        Files of `assets/` that this page needs beside the shell's.
    """

    template: str
    title: str
    identity: tuple[str, str]
    context: Mapping[str, Any]
    data: Mapping[str, Any]
    scripts: tuple[str, ...] = ()
    styles: tuple[str, ...] = field(default=())


def render(page: Page) -> str:
    """Return the page as text: the same page gives the same bytes, and no clock, locale or network is asked."""
    library, own = _closed(read_asset(LIBRARY)), _closed(script(page.scripts))
    markup = _markup()
    text: str = (
        _environment()
        .get_template(page.template)
        .render(
            **page.context,
            title=page.title,
            identity=page.identity,
            tool_version=__version__,
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
