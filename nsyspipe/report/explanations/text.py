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
    words = topic.strip().lower()
    return re.sub(r"[\s_]+", "-", words)


def ids_in(folder: str) -> list[str]:
    """Return the IDs that have a file in a folder of explanations, sorted."""
    paths = (FOLDER / folder).glob("*.md")
    return sorted(path.stem for path in paths)


def read_explanation(folder: str, name: str, group: Group) -> Explanation:
    """Read one file of explanations, ``FOLDER/NAME.md``."""
    path = FOLDER / folder / f"{name}.md"
    text = path.read_text(encoding="utf-8")
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
    head, *section_texts = re.split(r"^## ", text, flags=re.MULTILINE)
    title_and_summary = head.strip()
    title_line, _, summary = title_and_summary.partition("\n")
    has_title = title_line.startswith("# ")
    if not has_title or not summary.strip():
        raise ValueError(f"{name}: the title or the summary is missing")
    title = title_line.removeprefix("# ")
    sections = tuple(map(_section, section_texts))
    return Explanation(name, group, title, _in_one_line(summary), sections)


def _in_one_line(text: str) -> str:
    """Return lines of text as one line."""
    return " ".join(text.split())


def _section(text: str) -> Section:
    heading, _, body = text.partition("\n")
    pieces = tuple(_pieces(body))
    return Section(heading.strip(), pieces)


def _pieces(body: str) -> Iterator[Piece]:
    """Yield the pieces of a section: fenced blocks, and paragraphs and lists between them."""
    parts = body.split(f"\n{_FENCE}")
    for number, part in enumerate(parts):
        # A fence begins each block, and another one ends it. So every second part is inside.
        is_fenced = number % 2 == 1
        if is_fenced:
            yield _fenced_piece(part)
        else:
            blocks = [block.strip() for block in part.split("\n\n")]
            yield from map(_paragraph_or_list, filter(None, blocks))


def _fenced_piece(text: str) -> Picture | Code:
    language, _, content = text.partition("\n")
    is_picture = language == _PICTURE
    return parse_picture(content) if is_picture else Code(language, content)


def _paragraph_or_list(block: str) -> Paragraph | Items:
    """Return a block of words as a list if each of its entries begins with ``-`` or ``1.``."""
    # An entry begins at a line with a mark, and may have more lines.
    entries = re.split(r"\n(?=(?:-|\d+\.) )", block)
    matches = map(_ITEM.fullmatch, entries)
    items = [match for match in matches if match is not None]
    are_all_items = len(items) == len(entries)
    if not are_all_items:
        return Paragraph(_in_one_line(block))
    texts = [_in_one_line(item[1]) for item in items]
    first_character = block[0]
    return Items(tuple(texts), is_numbered=first_character.isdigit())


def as_markdown_lines(piece: Paragraph | Items | Code) -> Sequence[str]:
    """Return a piece other than a picture as lines of Markdown."""
    match piece:
        case Paragraph():
            return [piece.text]
        case Items():
            if piece.is_numbered:
                numbered_texts = enumerate(piece.texts, 1)
                return [f"{number}. {text}" for number, text in numbered_texts]
            return [f"- {text}" for text in piece.texts]
        case Code():
            lines = piece.text.splitlines()
            return [f"{_FENCE}{piece.language}", *lines, _FENCE]
