"""An explanation, and the list of all IDs, as blocks for the terminal and as a JSON document."""

import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from nsyspipe.report.blocks import Block, Cell, Field, Sentence, Table
from nsyspipe.report.explanations import subjects
from nsyspipe.report.explanations.subjects import Entry
from nsyspipe.report.explanations.text import (
    Code,
    Explanation,
    Items,
    Paragraph,
    Piece,
    as_markdown_lines,
)
from nsyspipe.report.explanations.timeline import Picture, text_lines

_INDENT = "  "
# Of the longest metric, so that all lists of IDs line up.
_ID_WIDTH = 22


def explanation_blocks(explanation: Explanation) -> Iterator[Block]:
    """Yield the title, the summary, and each section with its pieces."""
    heading = f"{explanation.id} ({explanation.group})"
    yield Sentence(heading, "bold")
    if explanation.title != explanation.id:
        yield Sentence(explanation.title)
    yield Sentence(_plain(explanation.summary), is_close=False)
    for section in explanation.sections:
        yield Sentence(section.heading, "bold", is_close=False)
        for number, piece in enumerate(section.pieces):
            yield from _piece_blocks(piece, is_first=number == 0)


def _piece_blocks(piece: Piece, *, is_first: bool) -> Iterator[Block]:
    match piece:
        case Paragraph():
            yield Sentence(_plain(piece.text), is_close=is_first)
        case Items():
            yield _items_table(piece, is_close=is_first)
        case Code():
            yield from _lines(piece.text.splitlines(), is_first=is_first)
        case Picture():
            yield from _lines(text_lines(piece), is_first=is_first)


def _items_table(items: Items, *, is_close: bool) -> Table:
    """Return a list as a table of two columns, so that each text stands below its own beginning."""
    rows: list[list[Cell]] = []
    for number, text in enumerate(items.texts, start=1):
        mark = f"{number}." if items.is_numbered else "-"
        rows.append([mark, _plain(text)])
    columns = [Field("", kind="word"), Field("", kind="prose")]
    return Table("", columns, rows, has_headings=False, is_close=is_close)


def _lines(lines: Sequence[str], *, is_first: bool) -> Iterator[Block]:
    """Yield lines that keep their spaces, indented."""
    for number, line in enumerate(lines):
        is_close = is_first or number > 0
        yield Sentence(textwrap.indent(line, _INDENT), is_close=is_close)


def _plain(text: str) -> str:
    """Return a text of Markdown without the marks for code and bold letters."""
    return text.replace("`", "").replace("**", "")


def index_blocks() -> Iterator[Block]:
    """Yield all IDs by group."""
    yield Sentence("nsyspipe explain ID explains one of these.")
    for cause, entries in subjects.findings_by_cause().items():
        cause_name = subjects.cause_name(cause)
        yield from _entries_blocks(f"Findings about {cause_name}", entries)
    yield from _entries_blocks("Words of outputs", subjects.words())
    yield from _entries_blocks("Metrics", subjects.metrics())
    yield Sentence("Notes and warnings", "bold", is_close=False)
    yield Sentence(", ".join(subjects.notes()))
    yield Sentence("Columns", "bold", is_close=False)
    yield Sentence("The name of any column of nsyspipe schema, for example wall_ns.")


def _entries_blocks(heading: str, entries: Sequence[Entry]) -> Iterator[Block]:
    """Yield IDs below a heading, each with its title."""
    yield Sentence(heading, "bold", is_close=False)
    id_column = Field("", kind="word", least=_ID_WIDTH)
    columns = [id_column, Field("", kind="prose")]
    rows = [[entry.id, _plain(entry.title)] for entry in entries]
    yield Table("", columns, rows, has_headings=False, is_close=True)


def explanation_document(explanation: Explanation) -> dict[str, Any]:
    """Return an explanation as a JSON document: each section with its text in Markdown."""
    sections = []
    for section in explanation.sections:
        text = section_markdown(section.pieces)
        sections.append({"heading": section.heading, "text": text})
    group = explanation.group.name.lower()
    return {
        "id": explanation.id,
        "group": group,
        "title": explanation.title,
        "summary": explanation.summary,
        "sections": sections,
    }


def index_document() -> dict[str, Any]:
    """Return all IDs by group as a JSON document."""
    findings = []
    for cause, entries in subjects.findings_by_cause().items():
        for entry in entries:
            finding = {"id": entry.id, "cause": cause, "title": entry.title}
            findings.append(finding)
    words = [*map(_row, subjects.words())]
    metrics = [*map(_row, subjects.metrics())]
    notes = [{"id": code} for code in subjects.notes()]
    return {"findings": findings, "words": words, "metrics": metrics, "notes": notes}


def _row(entry: Entry) -> dict[str, str]:
    return {"id": entry.id, "title": entry.title}


def section_markdown(pieces: Sequence[Piece]) -> str:
    """Return the pieces of a section as Markdown, pictures as bars of letters."""
    lines_of_pieces = map(_markdown_lines, pieces)
    texts = ["\n".join(lines) for lines in lines_of_pieces]
    return "\n\n".join(texts)


def _markdown_lines(piece: Piece) -> Sequence[str]:
    if isinstance(piece, Picture):
        return ["```text", *text_lines(piece), "```"]
    return as_markdown_lines(piece)
