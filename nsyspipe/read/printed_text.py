"""Read what a program printed: any bytes at all, with escape codes, cut at any place."""

from __future__ import annotations

import re
import stat
from typing import TYPE_CHECKING, NamedTuple

from nsyspipe.errors import InputError
from nsyspipe.read.file_check import readable
from nsyspipe.untrusted import decoded

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["PrintedLine", "printed_lines"]

_LONGEST_LINE_BYTES = 65_536
# Colours and cursor moves, window titles, and two-character sequences, in this order.
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]{0,500}(?:\x07|\x1b\\)|[@-Z\\^_])")


class PrintedLine(NamedTuple):
    """A line without escape codes; one that is not whole has lost its end, or its begin."""

    text: str
    is_whole: bool


def printed_lines(path: Path, *, most: int | None = None) -> Iterator[PrintedLine]:
    """Yield the first lines of a text file, one after the other; bytes that are not UTF-8 are replaced.

    Raises
    ------
    InputError
        If the file is missing, not readable or no ordinary file.
    """
    with readable(path):
        if not stat.S_ISREG(path.stat().st_mode):
            raise InputError(decoded(str(path)), "no ordinary file, where a text was needed")
        with path.open("rb") as file:
            was_whole, count = True, 0
            while (most is None or count < most) and (line := file.readline(_LONGEST_LINE_BYTES)):
                count += 1
                is_whole = line.endswith(b"\n")
                text = _ESCAPES.sub("", line.decode("utf-8", "replace").rstrip("\r\n"))
                yield PrintedLine(text, is_whole and was_whole)
                was_whole = is_whole
