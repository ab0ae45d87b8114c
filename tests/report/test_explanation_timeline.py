"""Pictures of explanations: what is read from text, and that letters and SVG show the same bars."""

import xml.etree.ElementTree as ET

import pytest

from nsyspipe.report.explanations.timeline import KINDS, Bar, parse_picture, svg, text_lines

TEXT = """Now
GPU compute  0-12 forward  12-36 backward
GPU comm     30-36 overlapped  36-60 exposed
---
After
rank 0 compute  3-5 forward
"""
SVG = "{http://www.w3.org/2000/svg}"
PIXELS_PER_UNIT = 10


def bars_of(picture):
    return [bar for timeline in picture.timelines for lane in timeline.lanes for bar in lane.bars]


def test_a_picture_is_read():
    first, second = parse_picture(TEXT).timelines
    assert (first.title, second.title) == ("Now", "After")
    assert [lane.name for lane in first.lanes] == ["GPU compute", "GPU comm"]
    assert first.lanes[1].bars == (Bar(30, 36, "overlapped"), Bar(36, 60, "exposed"))
    assert second.lanes[0].name == "rank 0 compute"


@pytest.mark.parametrize(
    "lane",
    [
        "GPU  0-5 unknown",
        "GPU  5-5 forward",
        "GPU  6-5 forward",
        "GPU  0-61 forward",
        "GPU  0-10 forward  9-12 backward",
        "GPU  0-10 forward and more",
        "GPU",
    ],
)
def test_a_lane_that_cannot_be_drawn_is_refused(lane):
    with pytest.raises(ValueError, match=r"lane|kind|overlap"):
        parse_picture(f"Now\n{lane}")


def test_each_unit_of_time_is_one_letter():
    picture = parse_picture(TEXT)
    lines = text_lines(picture)
    start = lines[1].index("f")
    drawn = [line[start:] for line in (lines[1], lines[2])]
    for lane, letters in zip(picture.timelines[0].lanes, drawn, strict=True):
        for bar in lane.bars:
            assert letters[bar.start : bar.end] == KINDS[bar.kind].letter * (bar.end - bar.start), (
                bar
            )
        assert len(letters) == lane.bars[-1].end, lane


def test_bars_of_one_kind_that_touch_have_a_border():
    lines = text_lines(parse_picture("Now\nGPU comm  0-4 overlapped  4-8 overlapped  8-12 exposed"))
    assert lines[1].split()[-1] == "+++|++++####"


def test_the_svg_has_each_bar_at_its_place():
    picture = parse_picture(TEXT)
    drawing = ET.fromstring(svg(picture, "what it <shows>"))
    boxes = [box for box in drawing.iter(f"{SVG}rect") if box.get("class") in KINDS]
    bars = bars_of(picture)
    left = float(boxes[0].get("x"))
    for bar, box in zip(bars, boxes, strict=False):
        assert box.get("class") == bar.kind, bar
        assert float(box.get("x")) - left == bar.start * PIXELS_PER_UNIT, bar
        assert float(box.get("width")) == (bar.end - bar.start) * PIXELS_PER_UNIT - 1, bar
    in_legend = boxes[len(bars) :]
    assert {box.get("class") for box in in_legend} == {bar.kind for bar in bars}


def test_the_svg_says_what_it_shows():
    drawing = ET.fromstring(svg(parse_picture(TEXT), "what it <shows>"))
    assert drawing.find(f"{SVG}title").text == "what it <shows>"
