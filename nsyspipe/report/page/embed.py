"""What a page carries besides what it shows: its data for the charts, and whose page it is."""

from __future__ import annotations

import html
import json
import re
from typing import TYPE_CHECKING, Any

from nsyspipe.report.written import head_of
from nsyspipe.untrusted import printable

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["MOST_LETTERS", "RUN_ID", "as_json", "cut", "identity_of_page", "run_id_of_page"]

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
    """Write a value as JSON that may stand inside a script element; texts in it are made fit to show.

    Raises
    ------
    ValueError
        If it holds a number that JSON has no word for.
    """
    text = json.dumps(
        _shown(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"), sort_keys=True
    )
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


def identity_of_page(path: Path, name: str) -> str | None:
    """Return the content of the meta element that stands first in a page of ours; None for any other file.

    Parameters
    ----------
    name
        Of the meta element: `RUN_ID` for the page of a run.
    """
    pattern = (
        r'<!doctype html>\s*<html lang="en">\s*<head>\s*<meta charset="utf-8">\s*'
        rf'<meta name="{re.escape(name)}" content="([^"]*)">'
    )
    found = re.match(pattern, head_of(path))
    return html.unescape(found[1]) if found else None


def run_id_of_page(path: Path) -> str | None:
    """Return the id of the run that a page shows; None if the file is no such page or cannot be read."""
    return identity_of_page(path, RUN_ID)
