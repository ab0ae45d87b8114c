"""The format of an explanation.

It has a title, a sentence, and sections of paragraphs, lists, code and pictures.
"""

import re
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TypeAlias

from msgspec import Struct

from nsyspipe.report.explanations.timeline import Picture, parse_picture

FOLDER = Path(__file__).parent
_FENCE = "```"
_PICTURE = "timeline"
_ITEM = re.compile(r"(?:-|\d+\.) (.+)", re.DOTALL)


class Group(StrEnum):
    """What kind of thing an ID names, in words."""

    FINDING = "finding"
    WORD = "word of outputs"
    NOTE = "note or warning"
    METRIC = "metric"
    COLUMN = "column"


class Paragraph(Struct, frozen=True):
    """Sentences."""

    text: str


class Items(Struct, frozen=True):
    """A list, numbered or not."""

    texts: tuple[str, ...]
    is_numbered: bool = False


class Code(Struct, frozen=True):
    """Lines of a program or of a shell."""

    language: str
    text: str


Piece: TypeAlias = Paragraph | Items | Code | Picture


class Section(Struct, frozen=True):
    """A heading and what stands below."""

    heading: str
    pieces: tuple[Piece, ...]


class Explanation(Struct, frozen=True):
    """What one ID means: its group, its title, one sentence, and sections."""

    id: str
    group: Group
    title: str
    summary: str
    sections: tuple[Section, ...]


def normalized(topic: str) -> str:
    """Return an ID in lower case, with ``-`` for spaces and ``_``."""
    return re.sub(r"[\s_]+", "-", topic.strip().lower())


def ids_in(folder: str) -> list[str]:
    """Return the IDs that have a file in a folder of explanations, sorted."""
    return sorted(path.stem for path in (FOLDER / folder).glob("*.md"))


def read_explanation(folder: str, name: str, group: Group) -> Explanation:
    """Read one file of explanations, ``FOLDER/NAME.md``."""
    text = (FOLDER / folder / f"{name}.md").read_text(encoding="utf-8")
    return parse_explanation(text, name, group)


def parse_explanation(text: str, name: str, group: Group) -> Explanation:
    """Read an explanation from Markdown.

    The first line is the title (``# ...``). The paragraph below is the summary. Each ``## ...``
    begins a section. A fenced block with the language ``timeline`` is a picture.

    Raises
    ------
    ValueError
        If there is no title or no summary, or a picture cannot be read.
    """
    head, *parts = re.split(r"^## ", text, flags=re.MULTILINE)
    title, _, summary = head.strip().partition("\n")
    if not title.startswith("# ") or not summary.strip():
        raise ValueError(f"{name}: the title or the summary is missing")
    sections = tuple(_section(part) for part in parts)
    return Explanation(name, group, title.removeprefix("# "), _joined(summary), sections)


def _joined(text: str) -> str:
    """Return lines of text as one line."""
    return " ".join(text.split())


def _section(text: str) -> Section:
    heading, _, body = text.partition("\n")
    return Section(heading.strip(), tuple(_pieces(body)))


def _pieces(body: str) -> Iterator[Piece]:
    """Yield the pieces of a section: fenced blocks, and paragraphs and lists between them."""
    for number, part in enumerate(body.split(f"\n{_FENCE}")):
        is_fenced = number % 2 == 1
        if is_fenced:
            language, _, content = part.partition("\n")
            yield parse_picture(content) if language == _PICTURE else Code(language, content)
        else:
            blocks = part.strip().split("\n\n")
            yield from (_words(block.strip()) for block in blocks if block.strip())


def _words(block: str) -> Paragraph | Items:
    """Return a block as a list if each of its entries begins with a mark."""
    entries = re.split(r"\n(?=(?:-|\d+\.) )", block)
    items = [_ITEM.fullmatch(entry) for entry in entries]
    texts = tuple(_joined(item[1]) for item in items if item is not None)
    if len(texts) != len(entries):
        return Paragraph(_joined(block))
    return Items(texts, is_numbered=block[0].isdigit())


def as_markdown_lines(piece: Paragraph | Items | Code) -> Sequence[str]:
    """Return a piece other than a picture as lines of Markdown."""
    match piece:
        case Paragraph():
            return [piece.text]
        case Items():
            if piece.is_numbered:
                return [f"{number}. {text}" for number, text in enumerate(piece.texts, 1)]
            return [f"- {text}" for text in piece.texts]
        case Code():
            return [f"{_FENCE}{piece.language}", *piece.text.splitlines(), _FENCE]
