"""Pictures of timelines from a few rows of text, as SVG and as bars of letters.

A picture has one or more timelines, which ``---`` separates. The first line of a timeline is its
title. Each further line is a bar::

    GPU compute    0-12 forward  12-36 backward
    GPU comm      36-52 exposed

A lane has a name, then its bars. A bar has a start, an end, and one of `KINDS`. A unit of time is
one letter wide on the terminal.
"""

import re
from collections.abc import Iterator, Sequence
from html import escape
from itertools import pairwise

from msgspec import Struct

MAX_UNITS = 60
_BAR = re.compile(r"(\d+)-(\d+) (\w+)")
# Two spaces end the name of a lane.
_LANE = re.compile(r"(\S.*?)\s{2,}(\d.*)")
_INDENT = "  "
# The last letter of a bar if the next bar of the same kind follows at once.
_BORDER = "|"
# Sizes of the SVG, in pixels.
_UNIT_WIDTH = 10
_LANE_HEIGHT = 30
_BAR_HEIGHT = 22
_LETTER_WIDTH = 7.2
_MARGIN = 16
_LANE_NAME_WIDTH = 130
_TITLE_HEIGHT = 30
_LEGEND_HEIGHT = 26
_WIDTH = 2 * _MARGIN + _LANE_NAME_WIDTH + MAX_UNITS * _UNIT_WIDTH
_SWATCH = 12


class Kind(Struct, frozen=True):
    """What a bar stands for."""

    # On the terminal.
    letter: str
    # In the legend.
    meaning: str
    # Inside the bar.
    label: str
    light_color: str
    dark_color: str
    has_dark_text: bool = False


KINDS = {
    "forward": Kind("f", "forward", "forward", "#7fa3d6", "#86aee8", has_dark_text=True),
    "backward": Kind("b", "backward", "backward", "#35609c", "#3f76c7"),
    "optimizer": Kind("o", "optimizer", "opt", "#1d3a66", "#2f5c9e"),
    "exposed": Kind("#", "exposed communication", "exposed", "#cb2c30", "#cf3f47"),
    "overlapped": Kind(
        "+", "overlapped communication", "overlapped", "#b284ea", "#b79bff", has_dark_text=True
    ),
    "wait": Kind(
        ".", "wait time for other ranks", "wait", "#f7ad0c", "#f2b93a", has_dark_text=True
    ),
    "copy": Kind("c", "copy", "copy", "#45a995", "#5fe3b8", has_dark_text=True),
    "idle": Kind("-", "idle GPU", "idle", "#d3d6dc", "#8a94a4", has_dark_text=True),
    "launch": Kind("l", "CPU launches kernels", "launch", "#cc6c00", "#b46c00"),
    "load": Kind("d", "CPU gets the next batch", "data", "#8a6d3b", "#a58a58"),
    "blocked": Kind("x", "CPU is blocked in a CUDA call", "blocked", "#5f6977", "#7d8796"),
    "profiler": Kind("t", "profiler at work", "profiler", "#434c59", "#949eac"),
}


class Bar(Struct, frozen=True):
    """One bar of a lane, from `start` to `end` in units of time."""

    start: int
    end: int
    kind: str


class Lane(Struct, frozen=True):
    """The bars of one lane, in the order of time. The bars do not overlap."""

    name: str
    bars: tuple[Bar, ...]


class Timeline(Struct, frozen=True):
    """One titled timeline."""

    title: str
    lanes: tuple[Lane, ...]


class Picture(Struct, frozen=True):
    """Timelines that share a legend."""

    timelines: tuple[Timeline, ...]

    @property
    def kinds(self) -> list[Kind]:
        """The kinds of its bars, in the order of `KINDS`."""
        lanes = [lane for timeline in self.timelines for lane in timeline.lanes]
        used = {bar.kind for lane in lanes for bar in lane.bars}
        return [kind for name, kind in KINDS.items() if name in used]


def parse_picture(text: str) -> Picture:
    """Read a picture as the module's docstring describes it.

    Raises
    ------
    ValueError
        If a line is not a lane, a kind is not known, or the bars of a lane overlap or are out of
        range.
    """
    parts = text.split("\n---\n")
    timelines = tuple(_timeline(part.strip().splitlines()) for part in parts)
    return Picture(timelines)


def _timeline(lines: Sequence[str]) -> Timeline:
    title, *lanes = lines
    return Timeline(title.strip(), tuple(_lane(line) for line in lanes))


def _lane(line: str) -> Lane:
    name_and_bars = _LANE.fullmatch(line.strip())
    if name_and_bars is None:
        raise ValueError(f"not a lane: {line!r}")
    name, text = name_and_bars.groups()
    bars = tuple(Bar(int(start), int(end), kind) for start, end, kind in _BAR.findall(text))
    free_from = 0
    for bar in bars:
        if bar.kind not in KINDS:
            raise ValueError(f"not a kind of bar: {bar.kind!r}")
        if not free_from <= bar.start < bar.end <= MAX_UNITS:
            raise ValueError(f"bars overlap or are out of range: {line!r}")
        free_from = bar.end
    read_text = " ".join(f"{bar.start}-{bar.end} {bar.kind}" for bar in bars)
    if read_text != " ".join(text.split()):
        raise ValueError(f"not a lane: {line!r}")
    return Lane(name, bars)


def text_lines(picture: Picture) -> list[str]:
    """Return a picture as lines of letters for the terminal, the legend last."""
    name_width = max(len(lane.name) for timeline in picture.timelines for lane in timeline.lanes)
    lines: list[str] = []
    for timeline in picture.timelines:
        lines.append(timeline.title)
        for lane in timeline.lanes:
            line = f"{_INDENT}{lane.name:<{name_width}}  {_letters(lane)}"
            lines.append(line.rstrip())
        lines.append("")
    space_below_names = " " * name_width
    return lines + _legend_lines(picture, f"{_INDENT}{space_below_names}{_INDENT}")


def _letters(lane: Lane) -> str:
    """Return the bars of a lane, a letter for each unit of time."""
    letters = [" "] * MAX_UNITS
    for bar in lane.bars:
        letters[bar.start : bar.end] = KINDS[bar.kind].letter * (bar.end - bar.start)
    for bar, next_bar in pairwise(lane.bars):
        is_alike_and_close = bar.kind == next_bar.kind and bar.end == next_bar.start
        if is_alike_and_close:
            letters[bar.end - 1] = _BORDER
    return "".join(letters)


def _legend_lines(picture: Picture, indent: str) -> list[str]:
    """Return the entries of the legend, as many in a line as fit."""
    lines: list[str] = []
    for kind in picture.kinds:
        entry = f"{kind.letter} {kind.meaning}"
        longer_line = f"{lines[-1]}   {entry}" if lines else ""
        if lines and len(longer_line) <= MAX_UNITS:
            lines[-1] = longer_line
        else:
            lines.append(entry)
    return [f"{indent}{line}" for line in lines or [""]]


def svg(picture: Picture, description: str) -> str:
    """Return a picture as an SVG document with light and dark colors.

    `description` is read to people who do not see it.
    """
    rows = _legend_rows(picture)
    heights = [_TITLE_HEIGHT + _LANE_HEIGHT * len(timeline.lanes) for timeline in picture.timelines]
    height = 2 * _MARGIN + sum(heights) + _LEGEND_HEIGHT * len(rows)
    size = f'width="{_WIDTH}" height="{height}"'
    view_box = f"0 0 {_WIDTH} {height}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{view_box}" {size} role="img">',
        f"<title>{escape(description)}</title>",
        f"<style>{_style(picture)}</style>",
        f'<rect class="page" {size} rx="8"/>',
    ]
    top = _MARGIN
    for timeline, timeline_height in zip(picture.timelines, heights, strict=True):
        parts += _drawn_timeline(timeline, top)
        top += timeline_height
    parts += _drawn_legend(rows, top)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _style(picture: Picture) -> str:
    """Return the style sheet of a picture, with the colors of its kinds of bars."""
    kinds = {name: kind for name, kind in KINDS.items() if kind in picture.kinds}
    light = "".join(f".{name}{{fill:{kind.light_color}}}" for name, kind in kinds.items())
    dark = "".join(f".{name}{{fill:{kind.dark_color}}}" for name, kind in kinds.items())
    return (
        "text{font:13px system-ui,-apple-system,'Segoe UI',Roboto,'Noto "
        "Sans',sans-serif;fill:#12161c}"
        ".title{font-weight:600;font-size:14px}.lane{fill:#434c59}"
        ".page{fill:#fff;stroke:#e2e5ea}.track{fill:#f0f2f5}"
        f".on-dark{{fill:#fff}}.on-light{{fill:#12161c}}{light}"
        "@media(prefers-color-scheme:dark){text{fill:#e9ecf1}.lane{fill:#b6bec9}"
        ".page{fill:#0f1217;stroke:#2b323d}"
        f".track{{fill:#1d222b}}.on-dark{{fill:#fff}}.on-light{{fill:#12161c}}{dark}}}"
    )


def _drawn_timeline(timeline: Timeline, top: int) -> Iterator[str]:
    yield f'<text class="title" x="{_MARGIN}" y="{top + 16}">{escape(timeline.title)}</text>'
    left = _MARGIN + _LANE_NAME_WIDTH
    track_size = f'width="{MAX_UNITS * _UNIT_WIDTH}" height="{_BAR_HEIGHT}"'
    for number, lane in enumerate(timeline.lanes):
        lane_top = top + _TITLE_HEIGHT + _LANE_HEIGHT * number
        yield f'<text class="lane" x="{_MARGIN}" y="{lane_top + 15}">{escape(lane.name)}</text>'
        yield f'<rect class="track" x="{left}" y="{lane_top}" {track_size}/>'
        for bar in lane.bars:
            yield from _drawn_bar(bar, left, lane_top)


def _drawn_bar(bar: Bar, left: int, top: int) -> Iterator[str]:
    kind = KINDS[bar.kind]
    x = left + bar.start * _UNIT_WIDTH
    width = (bar.end - bar.start) * _UNIT_WIDTH
    size = f'width="{width - 1}" height="{_BAR_HEIGHT}"'
    yield f'<rect class="{bar.kind}" x="{x}" y="{top}" {size} rx="2"/>'
    if len(kind.label) * _LETTER_WIDTH + 6 <= width:
        text_class = "on-light" if kind.has_dark_text else "on-dark"
        middle = x + (width - 1) / 2
        place = f'x="{middle:g}" y="{top + 15}" text-anchor="middle"'
        yield f'<text class="{text_class}" {place}>{kind.label}</text>'


def _legend_rows(picture: Picture) -> list[list[Kind]]:
    """Return the entries of the legend, row by row, as many as fit into each."""
    rows: list[list[Kind]] = [[]]
    used = 0.0
    for kind in picture.kinds:
        width = _legend_width(kind)
        if rows[-1] and used + width > _WIDTH - 2 * _MARGIN:
            rows.append([])
            used = 0.0
        rows[-1].append(kind)
        used += width
    return rows


def _legend_width(kind: Kind) -> float:
    return _SWATCH + 6 + len(kind.meaning) * _LETTER_WIDTH + 18


def _drawn_legend(rows: Sequence[Sequence[Kind]], top: int) -> Iterator[str]:
    name_of_kind = {kind: name for name, kind in KINDS.items()}
    swatch_size = f'width="{_SWATCH}" height="{_SWATCH}"'
    for number, row in enumerate(rows):
        x = float(_MARGIN)
        y = top + 8 + _LEGEND_HEIGHT * number
        for kind in row:
            name = name_of_kind[kind]
            yield f'<rect class="{name}" x="{x:g}" y="{y}" {swatch_size} rx="2"/>'
            yield f'<text x="{x + _SWATCH + 6:g}" y="{y + 11}">{kind.meaning}</text>'
            x += _legend_width(kind)
