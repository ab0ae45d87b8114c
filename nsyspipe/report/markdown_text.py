"""Text for GitHub's Markdown: names from traces stay text there, whatever they hold."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from nsyspipe.untrusted import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["escaped", "prose", "table"]

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
    """Return text that Markdown shows as it is, in one line; not for the start of a line.

    Parameters
    ----------
    longest
        Longer text is cut to so many characters.
    """
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
    """Return the lines of a table whose cells are Markdown already.

    Parameters
    ----------
    n_words
        How many columns at the end hold words; the others hold figures, which are aligned to the right and never
        parted from their units.
    """
    n_figures = len(headings) - n_words
    return [
        _row(headings),
        _row(["--:"] * n_figures + ["---"] * n_words),
        *(_row([*map(_unparted, row[:n_figures]), *row[n_figures:]]) for row in rows),
    ]


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
