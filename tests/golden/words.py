"""Files of texts that tests expect: rows of a name and, indented below it, its text."""

import functools
import re
from pathlib import Path

INDENT = "    "


def row_of(test: str) -> str:
    """Return the name of the row of a test, ``test_a_claim[case]``: ``a claim [case]``."""
    claim, bracket, case = test.removeprefix("test_").partition("[")
    words = claim.replace("_", " ")
    return f"{words} {bracket}{case}" if bracket else words


def figures(text: str) -> set[str]:
    """Return the numbers of a text as they are written: a test compares those that are worked out by hand."""
    return set(re.findall(r"\d[\d,]*(?:\.\d+)?(?<!,)", text))


def read(file: Path) -> dict[str, str]:
    """Return the text of each row of a file, which need not be there."""
    return dict(_rows_of(file.read_text(encoding="utf-8"))) if file.exists() else {}


@functools.lru_cache(maxsize=4)
def _rows_of(content: str) -> dict[str, str]:
    rows: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in content.split("\n"):
        if line and not line.startswith(INDENT):
            lines = rows.setdefault(line, [])
        else:
            lines.append(line.removeprefix(INDENT))
    # Each row ends with an empty line.
    return {row: "\n".join(text[:-1]) for row, text in rows.items()}


def write(file: Path, rows: dict[str, str]) -> None:
    """Write rows, sorted by their names."""
    blocks = []
    for row, text in sorted(rows.items()):
        lines = [INDENT + line if line else "" for line in text.split("\n")]
        blocks.append("\n".join([row, *lines, ""]))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(blocks), encoding="utf-8")
