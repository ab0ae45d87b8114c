"""Pictures of timelines from a few rows of text, as SVG and as bars of letters.

A picture has one or more timelines, which ``---`` separates. The first line of a timeline is its
title. Each further line is a lane::

    GPU compute    0-12 forward  12-36 backward
    GPU comm      36-52 exposed

A lane has a name, then its bars. A bar has a start, an end, and one of `KINDS`. A unit of time is
one letter wide on the terminal.
"""

import re
from collections.abc import Iterator, Sequence
from html import escape
from itertools import chain, pairwise

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
_GAP_AFTER_BAR = 1
# Left and right of the label of a bar, together.
_LABEL_PADDING = 6
# From the top of a text line to the bottom of its letters.
_TITLE_BASELINE = 16
_LANE_BASELINE = 15
_LEGEND_BASELINE = 11
_SPACE_ABOVE_LEGEND = 8
_SPACE_AFTER_SWATCH = 6
_SPACE_AFTER_MEANING = 18


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
        used: set[str] = set()
        for timeline in self.timelines:
            for lane in timeline.lanes:
                used.update(bar.kind for bar in lane.bars)
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
    return Picture(tuple(map(_timeline, parts)))


def _timeline(text: str) -> Timeline:
    title, *lines = text.strip().splitlines()
    lanes = tuple(map(_lane, lines))
    return Timeline(title.strip(), lanes)


def _bar(match: re.Match[str]) -> Bar:
    start, end, kind = match.groups()
    return Bar(int(start), int(end), kind)


def _lane(line: str) -> Lane:
    """Read a lane: its name, two spaces, and its bars.

    Raises a ValueError for a line of any other form, and if bars overlap or are out of range.
    """
    name_and_bars = _LANE.fullmatch(line.strip())
    if name_and_bars is None:
        raise ValueError(f"not a lane: {line!r}")
    name, text = name_and_bars.groups()
    bars = tuple(map(_bar, _BAR.finditer(text)))
    end_of_last_bar = 0
    for bar in bars:
        if bar.kind not in KINDS:
            raise ValueError(f"not a kind of bar: {bar.kind!r}")
        is_in_range = end_of_last_bar <= bar.start < bar.end <= MAX_UNITS
        if not is_in_range:
            raise ValueError(f"bars overlap or are out of range: {line!r}")
        end_of_last_bar = bar.end
    # `finditer` skips what is not a bar. Then the bars are not the whole text.
    text_of_bars = " ".join(f"{bar.start}-{bar.end} {bar.kind}" for bar in bars)
    text_with_single_spaces = " ".join(text.split())
    if text_of_bars != text_with_single_spaces:
        raise ValueError(f"not a lane: {line!r}")
    return Lane(name, bars)


def text_lines(picture: Picture) -> list[str]:
    """Return a picture as lines of letters for the terminal, the legend last."""
    lanes = chain.from_iterable(timeline.lanes for timeline in picture.timelines)
    name_width = max(len(lane.name) for lane in lanes)
    lines: list[str] = []
    for timeline in picture.timelines:
        lines.append(timeline.title)
        for lane in timeline.lanes:
            name = lane.name.ljust(name_width)
            line = f"{_INDENT}{name}  {_letters(lane)}"
            lines.append(line.rstrip())
        lines.append("")
    space_below_names = " " * name_width
    legend_indent = f"{_INDENT}{space_below_names}{_INDENT}"
    return lines + _legend_lines(picture, legend_indent)


def _letters(lane: Lane) -> str:
    """Return the bars of a lane, a letter for each unit of time.

    Bars of one kind have the same letters. If two such bars touch, the last letter of the first one
    is a border.
    """
    letters = [" "] * MAX_UNITS
    for bar in lane.bars:
        letter = KINDS[bar.kind].letter
        n_units = bar.end - bar.start
        letters[bar.start : bar.end] = letter * n_units
    for bar, next_bar in pairwise(lane.bars):
        has_same_letter = bar.kind == next_bar.kind
        is_adjacent = bar.end == next_bar.start
        if has_same_letter and is_adjacent:
            letters[bar.end - 1] = _BORDER
    return "".join(letters)


def _legend_lines(picture: Picture, indent: str) -> list[str]:
    """Return the entries of the legend, as many in a line as fit."""
    lines: list[str] = []
    current_line = ""
    for kind in picture.kinds:
        entry = f"{kind.letter} {kind.meaning}"
        longer_line = f"{current_line}   {entry}" if current_line else entry
        is_full = bool(current_line) and len(longer_line) > MAX_UNITS
        if is_full:
            lines.append(current_line)
            current_line = entry
        else:
            current_line = longer_line
    # Without bars, the legend is one empty line.
    lines.append(current_line)
    return [f"{indent}{line}" for line in lines]


def svg(picture: Picture, description: str) -> str:
    """Return a picture as an SVG document with light and dark colors.

    `description` is read to people who do not see it.
    """
    rows = _legend_rows(picture)
    heights = [_height(timeline) for timeline in picture.timelines]
    legend_height = _LEGEND_HEIGHT * len(rows)
    height = 2 * _MARGIN + sum(heights) + legend_height
    size = f'width="{_WIDTH}" height="{height}"'
    view_box = f"0 0 {_WIDTH} {height}"
    namespace = "http://www.w3.org/2000/svg"
    parts = [f'<svg xmlns="{namespace}" viewBox="{view_box}" {size} role="img">']
    parts.append(f"<title>{escape(description)}</title>")
    parts.append(f"<style>{_style(picture)}</style>")
    parts.append(f'<rect class="page" {size} rx="8"/>')
    top = _MARGIN
    for timeline, timeline_height in zip(picture.timelines, heights, strict=True):
        parts += _drawn_timeline(timeline, top)
        top += timeline_height
    parts += _drawn_legend(rows, top)
    parts.append("</svg>\n")
    return "\n".join(parts)


def _height(timeline: Timeline) -> int:
    """Return the height of a timeline with its title, in pixels."""
    n_lanes = len(timeline.lanes)
    return _TITLE_HEIGHT + _LANE_HEIGHT * n_lanes


def _style(picture: Picture) -> str:
    """Return the style sheet of a picture, with the colors of its kinds of bars."""
    light = ""
    dark = ""
    for name, kind in KINDS.items():
        if kind in picture.kinds:
            light += f".{name}{{fill:{kind.light_color}}}"
            dark += f".{name}{{fill:{kind.dark_color}}}"
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
    """Yield the elements of a timeline whose upper edge is at `top`, in pixels."""
    title = escape(timeline.title)
    title_baseline = top + _TITLE_BASELINE
    yield f'<text class="title" x="{_MARGIN}" y="{title_baseline}">{title}</text>'
    left = _MARGIN + _LANE_NAME_WIDTH
    track_width = MAX_UNITS * _UNIT_WIDTH
    track_size = f'width="{track_width}" height="{_BAR_HEIGHT}"'
    lanes_top = top + _TITLE_HEIGHT
    for number, lane in enumerate(timeline.lanes):
        lane_top = lanes_top + _LANE_HEIGHT * number
        name = escape(lane.name)
        name_baseline = lane_top + _LANE_BASELINE
        yield f'<text class="lane" x="{_MARGIN}" y="{name_baseline}">{name}</text>'
        yield f'<rect class="track" x="{left}" y="{lane_top}" {track_size}/>'
        for bar in lane.bars:
            yield from _drawn_bar(bar, left, lane_top)


def _drawn_bar(bar: Bar, left: int, top: int) -> Iterator[str]:
    """Yield a bar, and its label if the bar is wide enough for the label."""
    kind = KINDS[bar.kind]
    x = left + bar.start * _UNIT_WIDTH
    n_units = bar.end - bar.start
    width = n_units * _UNIT_WIDTH
    drawn_width = width - _GAP_AFTER_BAR
    size = f'width="{drawn_width}" height="{_BAR_HEIGHT}"'
    position = f'x="{x}" y="{top}"'
    yield f'<rect class="{bar.kind}" {position} {size} rx="2"/>'
    label_width = len(kind.label) * _LETTER_WIDTH
    has_room_for_label = label_width + _LABEL_PADDING <= width
    if has_room_for_label:
        text_class = "on-light" if kind.has_dark_text else "on-dark"
        middle = x + drawn_width / 2
        baseline = top + _LANE_BASELINE
        place = f'x="{middle:g}" y="{baseline}" text-anchor="middle"'
        yield f'<text class="{text_class}" {place}>{kind.label}</text>'


def _legend_rows(picture: Picture) -> list[list[Kind]]:
    """Return the entries of the legend, row by row, as many as fit into each."""
    row: list[Kind] = []
    rows = [row]
    max_width = _WIDTH - 2 * _MARGIN
    used_width = 0.0
    for kind in picture.kinds:
        width = _legend_width(kind)
        has_room = used_width + width <= max_width
        # The first entry of a row may be wider than the row.
        if row and not has_room:
            row = []
            rows.append(row)
            used_width = 0.0
        row.append(kind)
        used_width += width
    return rows


def _legend_width(kind: Kind) -> float:
    text_width = len(kind.meaning) * _LETTER_WIDTH
    return _SWATCH + _SPACE_AFTER_SWATCH + text_width + _SPACE_AFTER_MEANING


def _drawn_legend(rows: Sequence[Sequence[Kind]], top: int) -> Iterator[str]:
    """Yield the elements of a legend whose upper edge is at `top`, in pixels."""
    name_of_kind = {kind: name for name, kind in KINDS.items()}
    swatch_size = f'width="{_SWATCH}" height="{_SWATCH}"'
    for number, row in enumerate(rows):
        x = float(_MARGIN)
        y = top + _SPACE_ABOVE_LEGEND + _LEGEND_HEIGHT * number
        for kind in row:
            name = name_of_kind[kind]
            position = f'x="{x:g}" y="{y}"'
            yield f'<rect class="{name}" {position} {swatch_size} rx="2"/>'
            text_x = x + _SWATCH + _SPACE_AFTER_SWATCH
            baseline = y + _LEGEND_BASELINE
            yield f'<text x="{text_x:g}" y="{baseline}">{kind.meaning}</text>'
            x += _legend_width(kind)
