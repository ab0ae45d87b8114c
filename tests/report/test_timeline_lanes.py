"""Lanes of counters and lines of Python as the chart of a page draws them; times are ns."""

import pytest

from nsyspipe.model import schema
from nsyspipe.report.html.run_page import run_page
from nsyspipe.report.html.timeline_lanes import (
    MAX_COLORED_LINES,
    LaneTables,
    add_lanes,
    lane_fields,
    lanes_legend,
    line_colors,
)
from tests.build.sampled import sampled_run
from tests.report.test_timeline import bar, drawn, windows


def counted(start, end, rank=0, **percents):
    place = {"step": 4, "rank": rank, "start_ns": start, "end_ns": end, "sampled_ns": end - start}
    return place | {f"{name}_percent": value for name, value in percents.items()}


def at_line(start, end, line, *, rank=0, file="train.py"):
    place = {"step": 4, "rank": rank, "start_ns": start, "end_ns": end, "n_samples": 3}
    return place | {"frame": "program", "file": file, "line": line, "function": f"f{line}"}


def tables(*rows):
    counters = [row for row in rows if "sampled_ns" in row]
    lines = [row for row in rows if "line" in row]
    return LaneTables(schema.COUNTER_BARS.from_rows(counters), schema.LINE_BARS.from_rows(lines))


def data_of(*rows):
    data = drawn(bar("compute", 1000, 1100))
    sampled = tables(*rows)
    colors = line_colors([sampled])
    add_lanes(data, sampled, windows((1000, 1100)), colors)
    return data, colors


def test_only_counters_that_were_sampled_have_a_lane():
    data, _ = data_of(counted(1000, 1050, sm_active=12.34, nvlink_tx=5.0))
    assert [lane["label"] for lane in data["counters"]] == ["SMs active", "NVLink"]
    assert data["ranks"][0]["counted"] == {
        "start": [0],
        "length": [50],
        "values": {"sm_active": [12.3], "nvlink_tx": [5.0]},
    }


def test_reads_and_writes_add_up_and_directions_of_a_link_do_not():
    data, _ = data_of(counted(1000, 1050, dram_read=1, dram_write=2, pcie_rx=3, pcie_tx=4))
    assert [(lane["label"], lane["isSum"]) for lane in data["counters"]] == [
        ("GPU memory", True),
        ("PCIe", False),
    ]


def test_a_bar_of_a_line_has_its_label_function_and_samples():
    data, _ = data_of(at_line(1010, 1030, 43), at_line(1030, 1040, 7, file="data.py"))
    line = data["ranks"][0]["lanes"]["line"]
    assert (line["start"], line["length"], line["samples"]) == ([10, 30], [20, 10], [3, 3])
    assert [data["names"][place] for place in line["name"]] == ["train.py:43", "data.py:7"]
    assert line["function"] == ["f43", "f7"]
    assert line["color"] == ["line-1", "line-2"]


def test_lines_with_less_time_share_a_color():
    rows = [at_line(1000 + 10 * place, 1010 + 10 * place - place, place) for place in range(8)]
    data, colors = data_of(*rows)
    found = data["ranks"][0]["lanes"]["line"]["color"]
    assert len(colors) == MAX_COLORED_LINES == 5
    assert found == [*colors.values(), "line-other", "line-other", "line-other"]
    assert [category for category, _ in lanes_legend([data], colors)] == [
        *colors.values(),
        "line-other",
    ]


def test_samples_that_were_not_seen_have_no_color_of_their_own():
    data, colors = data_of(at_line(1000, 1090, 0, file="<not seen>"), at_line(1090, 1100, 3))
    assert [*colors] == ["train.py:3"]
    assert data["ranks"][0]["lanes"]["line"]["color"] == ["line-other", "line-1"]


def test_the_table_has_the_mean_of_each_counter_by_time():
    sampled = tables(
        counted(1000, 1030, sm_active=100.0), counted(1030, 1040, sm_active=20.0, dram_read=5.0)
    )
    (sms, read) = lane_fields(sampled)
    # 30 ns of 100 %, 10 ns of 20 %. Rank 1 was not counted.
    assert (sms.cell({"rank": 0}), sms.cell({"rank": 1})) == ("80.0%", "-")
    assert read.cell({"rank": 0}) == "5.0%"


def test_without_samples_a_page_has_no_lanes():
    data, colors = data_of()
    assert ("counters" in data, colors) == (False, {})
    assert "counted" not in data["ranks"][0]
    assert lanes_legend([data], colors) == []


@pytest.mark.slow
@pytest.mark.parametrize(("options", "has_lines"), [({}, True), ({"lines": False}, False)])
def test_a_page_has_lines_of_python_unless_they_are_left_out(tmp_path, options, has_lines):
    page = run_page(sampled_run(tmp_path / "run", jobs=1, **options))
    assert ('"color":["line-' in page) == has_lines
    assert '"counted":{' in page
