"""The pages of the docs about findings, and their pictures.

They have the same source as ``nsyspipe explain``.
"""

import re
from collections.abc import Iterator, Sequence

from msgspec import Struct

from nsyspipe.report.explanations import subjects
from nsyspipe.report.explanations.text import (
    Code,
    Explanation,
    Items,
    Paragraph,
    Section,
    as_markdown_lines,
    ids_in,
)
from nsyspipe.report.explanations.timeline import Picture, svg
from nsyspipe.report.units import upper_first

_SOURCE = "nsyspipe/report/explanations/findings"
_GENERATED = (
    "<!-- Generated from {source}. To write it anew: pytest tests/contract/test_explanations.py "
    "--update-golden -->"
)
_WHY_NOT_RUN = {
    "python": "a part of your own program",
    "bash": "REPORTS means your reports, train.py means your program",
}
_INDEX_INTRODUCTION = (
    "A finding is a cause of lost time that nsyspipe has found in a run, with a recommendation. "
    "Each page has the same five parts: what the finding means, how to recognize it, code "
    "before and after, when not to "
    "do it, and how the saving is estimated. The command `nsyspipe explain ID` prints the same "
    "text in the terminal."
)


class Drawing(Struct, frozen=True):
    """A picture of a page: the name of its file, and what it shows in words."""

    file_name: str
    picture: Picture
    description: str


def finding_pages() -> dict[str, str]:
    """Return the files of ``docs/findings/`` by name.

    They are an index, and for each finding a page and its pictures.
    """
    files = {"index.md": _index()}
    for name in ids_in(subjects.FINDINGS_FOLDER):
        explanation = subjects.explain_finding(name)
        files[f"{name}.md"] = _page(explanation)
        for drawing in _drawings(explanation):
            files[drawing.file_name] = svg(drawing.picture, drawing.description)
    return files


def _index() -> str:
    lines = [_GENERATED.format(source=_SOURCE), "", "# Findings", "", _INDEX_INTRODUCTION, ""]
    for cause, entries in subjects.findings_by_cause().items():
        heading = upper_first(subjects.cause_name(cause))
        lines += [f"## {heading}", "", "| finding | meaning |", "|---|---|"]
        for entry in entries:
            link = f"[`{entry.id}`]({entry.id}.md)"
            lines.append(f"| {link} | {entry.title} |")
        lines.append("")
    estimates = subjects.explain("estimates")
    if estimates is not None:
        lines += [f"## {estimates.title}", "", estimates.summary, ""]
        lines += _sections_lines(estimates, "###")
    text = "\n".join(lines).rstrip()
    return f"{text}\n"


def _page(explanation: Explanation) -> str:
    source = f"{_SOURCE}/{explanation.id}.md"
    lines = [_GENERATED.format(source=source), ""]
    heading = f"# {explanation.id}: {explanation.title}"
    lines += [heading, "", explanation.summary, ""]
    lines += _sections_lines(explanation, "##")
    lines.append("[All findings](index.md)\n")
    return "\n".join(lines)


def _sections_lines(explanation: Explanation, marks: str) -> Iterator[str]:
    """Yield the sections of an explanation in Markdown. `marks` stand before their headings."""
    drawings = iter(_drawings(explanation))
    for section in explanation.sections:
        yield f"{marks} {section.heading}"
        yield ""
        for piece in section.pieces:
            if isinstance(piece, Picture):
                drawing = next(drawings)
                yield f"![{drawing.description}]({drawing.file_name})"
            else:
                yield from _piece_lines(piece, explanation.id)
            yield ""


def _piece_lines(piece: Paragraph | Items | Code, page_id: str) -> Sequence[str]:
    lines = as_markdown_lines(piece)
    if isinstance(piece, Code):
        reason = _WHY_NOT_RUN[piece.language]
        return [f"<!-- not run: {reason} -->", "", *lines]
    return [_with_links(line, page_id) for line in lines]


def _with_links(line: str, page_id: str) -> str:
    """Return a line in which each other finding that it names is a link to its page."""
    linked_ids = {*ids_in(subjects.FINDINGS_FOLDER)}
    linked_ids.discard(page_id)

    def with_link(code: re.Match[str]) -> str:
        finding_id = code[1]
        if finding_id not in linked_ids:
            return code[0]
        return f"[{code[0]}]({finding_id}.md)"

    return re.sub(r"`([a-z0-9-]+)`", with_link, line)


def _drawings(explanation: Explanation) -> list[Drawing]:
    """Return the pictures of a page in their order."""
    drawings: list[Drawing] = []
    for section in explanation.sections:
        for piece in section.pieces:
            if isinstance(piece, Picture):
                number = len(drawings) + 1
                suffix = "" if number == 1 else f"-{number}"
                file_name = f"{explanation.id}{suffix}.svg"
                drawing = Drawing(file_name, piece, _description(section))
                drawings.append(drawing)
    return drawings


def _description(section: Section) -> str:
    """Return what the picture of a section shows: its first sentences."""
    texts = (piece.text for piece in section.pieces if isinstance(piece, Paragraph))
    description = next(texts, section.heading)
    return description.replace("`", "")
