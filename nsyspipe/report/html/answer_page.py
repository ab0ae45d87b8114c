"""The pages of answers (diff, compare, whatif).

The first screen has the verdict and one picture. Then there is a section for each detail.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

from msgspec import Struct

from nsyspipe.report.blocks import Block, Sentence
from nsyspipe.report.html.page import Chart, Fold, anchor_of, render, with_kinds


class Segment(Struct, frozen=True):
    """A part of a bar: its share of the longest bar, its colour in the palette, and its words."""

    category: str
    share: float
    words: str


class StackedBar(Struct, frozen=True):
    """A step time as a bar of parts, or the name of a group, which has no parts.

    `cells` stand behind the bar, one for each column. `low` and `high` are the ends of the range,
    as shares.
    """

    label: str
    segments: Sequence[Segment] = ()
    cells: Sequence[str] = ()
    low: float | None = None
    high: float | None = None
    # Of what is compared with, or what nobody can set.
    is_faint: bool = False


class StackedBars(Struct, frozen=True):
    """Step times below each other, with a line at one of them."""

    caption: str
    # Headings of the label, the bar, and each cell.
    columns: Sequence[str]
    bars: Sequence[StackedBar]
    # Categories of the palette, and words.
    legend: Sequence[tuple[str, str]]
    # Where the line is, as a share.
    mark: float | None = None
    note: str = ""


PageBlock: TypeAlias = "Block | Chart | Fold | StackedBars"


class Section(Struct, frozen=True):
    """A part of a page, which navigation names by the short title."""

    title: str
    blocks: Sequence[PageBlock]
    short_title: str = ""

    @property
    def anchor(self) -> str:
        """What an address calls the section."""
        return anchor_of(self.title)


class AnswerPage(Struct, frozen=True):
    """What a page shows, in its order."""

    title: str
    identity: tuple[str, str]
    verdict: Sentence
    introduction: Sequence[PageBlock]
    picture: Section
    beside_picture: Sequence[Section] = ()
    details: Sequence[Section] = ()

    @property
    def sections(self) -> Sequence[Section]:
        """All sections that say something."""
        sections = (self.picture, *self.beside_picture, *self.details)
        return [section for section in sections if section.blocks]


def answer_html(page: AnswerPage, scripts: Sequence[str] = ()) -> str:
    """Return a page as one HTML file.

    The file is complete and needs no network. The same answer gives the same bytes.
    """
    context = _context(page)
    charts = _charts(page.sections)
    data = {chart.name: chart.data for chart in charts}
    styles = ("run.css", "blocks.css", "answer.css")
    return render(
        "answer.html.j2", page.title, page.identity, context, data, scripts=scripts, styles=styles
    )


def _context(page: AnswerPage) -> dict[str, object]:
    """Return what the template shows of a page."""
    subject, _, _ = page.title.rpartition(": nsyspipe")
    brand = subject or page.title
    sections = page.sections
    with_short_title = [section for section in sections if section.short_title]
    short_title_of = {section.title: section.short_title for section in with_short_title}
    links = [(section.anchor, section.title) for section in sections]
    introduction = with_kinds(page.introduction)
    # Empty if there is nothing to draw.
    shown_pictures = _shown_sections([page.picture])
    picture = shown_pictures[0] if shown_pictures else None
    beside_picture = _shown_sections(page.beside_picture)
    details = _shown_sections(page.details)
    return {
        "brand": brand,
        "short": short_title_of,
        "sections": links,
        "verdict": page.verdict,
        "introduction": introduction,
        "picture": picture,
        "beside_picture": beside_picture,
        "details": details,
    }


def _charts(sections: Iterable[Section]) -> Iterator[Chart]:
    for section in sections:
        for block in section.blocks:
            if isinstance(block, Chart):
                yield block


def _shown_sections(sections: Iterable[Section]) -> list[dict[str, object]]:
    """Return the sections that have blocks, as the template takes them."""
    shown: list[dict[str, object]] = []
    for section in sections:
        if section.blocks:
            blocks = with_kinds(section.blocks)
            shown.append({"anchor": section.anchor, "title": section.title, "blocks": blocks})
    return shown
