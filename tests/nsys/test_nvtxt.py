"""Ranges that are added to copies of reports: their text, and what becomes of the program that adds them."""

import numpy as np
import pytest

from nsyspipe.errors import NsysFailedError, NsysNotFoundError
from nsyspipe.nsys.nvtxt import Added, add_ranges, find_importer
from nsyspipe.report.nvtxt import Lane, nvtxt_of
from tests.build.fake_nsys import fake_nsys, take_nsys_away
from tests.build.programs import program
from tests.build.read_nvtxt import read_nvtxt

# Keeps the text, and says how many events it has added.
IMPORTER = """
while [ $# -gt 0 ]; do case "$1" in -i) report=$2;; -n) text=$2;; -o) copy=$2;; esac; shift; done
cp "$text" "$0.text"
cp "$report" "$copy"
printf 'Adding events: 10%%\\r%s events imported\\n' "$(grep -c '^Range' "$text")"
"""


def lane(*ranges, name="steps", process_id=7):
    starts, ends, texts = zip(*ranges, strict=True) if ranges else ((), (), ())
    return Lane(name, "Gold", process_id, np.array(starts, int), np.array(ends, int), list(texts))


@pytest.fixture
def add(tmp_path):
    """Return a function that adds lanes to a report, and returns what was added and the text."""
    (tmp_path / "scratch").mkdir()
    (tmp_path / "a b.nsys-rep").write_text("a report")

    def add_lanes(*lanes, does=IMPORTER, timeout_s=20):
        importer = program(tmp_path / "bin", "ImportNvtxt", does)
        copy = tmp_path / "scratch" / "a b.nsys-rep"
        added = add_ranges(
            importer, tmp_path / "a b.nsys-rep", copy, nvtxt_of(lanes), timeout_s=timeout_s
        )
        assert copy.read_text() == "a report"
        return added, read_nvtxt((tmp_path / "bin/ImportNvtxt.text").read_text())

    return add_lanes


def test_ranges_that_touch_or_nest_come_back(add):
    touching = [(10, 20, "step 1"), (20, 30, "step 2")]
    nested = [(10, 30, "outer"), (11, 29, "inner")]
    added, lanes = add(lane(*touching), lane(*nested, name="findings"))
    assert added == Added(4, 0)
    assert lanes == {"steps": touching, "findings": nested[::-1]}


def test_lanes_of_one_name_in_two_processes_are_two_threads(add):
    added, lanes = add(lane((1, 2, "a"), name="x"), lane((3, 4, "b"), name="y", process_id=8))
    assert (added.n_ranges, lanes) == (2, {"x": [(1, 2, "a")], "y": [(3, 4, "b")]})


def test_a_range_without_length_is_left_out(add):
    assert add(lane((5, 5, "nothing"), (6, 7, "a"))) == (Added(1, 0), {"steps": [(6, 7, "a")]})


def test_an_empty_lane_stays_because_it_means_zero(add):
    assert add(lane()) == (Added(0, 0), {"steps": []})


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('a"b', "a'b"),
        ("ends with \\", "ends with /"),
        ("two\nlines\r\t\0", "two?lines???"),
        ("$HOME %s # , ;", "$HOME %s # , ;"),
        ("é" * 300, "é" * 200),
    ],
)
def test_a_name_of_the_report_ends_no_text_and_no_line(add, text, shown):
    _, lanes = add(lane((1, 2, text), name=text))
    assert lanes == {shown: [(1, 2, shown)]}


def test_ranges_outside_of_the_captured_time_are_counted(add):
    skips = IMPORTER.replace("$(grep -c '^Range' \"$text\")", "2")
    assert add(lane((1, 2, "a"), (3, 4, "b"), (5, 6, "c")), does=skips)[0] == Added(1, 2)


@pytest.mark.parametrize(
    "does",
    [
        "echo 'Report was created by a newer version' >&2; exit 1",
        "echo '2 events imported'",  # but no copy
        "exec sleep 60",
    ],
)
def test_a_program_that_fails_or_writes_nothing_is_an_error(add, does):
    with pytest.raises(NsysFailedError) as caught:
        add(lane((1, 2, "a")), does=does, timeout_s=1)
    assert caught.value.fix


def test_a_program_that_cannot_start_is_an_error(tmp_path):
    with pytest.raises(NsysFailedError):
        add_ranges(tmp_path / "none", tmp_path / "a", tmp_path / "b", "", timeout_s=1)


@pytest.mark.parametrize("place", ["tool/ImportNvtxt", "host-linux-x64/ImportNvtxt"])
def test_the_program_is_found_beside_nsys_or_in_its_package(tmp_path, monkeypatch, place):
    fake_nsys(tmp_path / "tool")
    monkeypatch.setenv("PATH", str(tmp_path / "tool"), prepend=":")
    with pytest.raises(NsysNotFoundError) as caught:
        find_importer()
    assert caught.value.fix
    folder, name = place.split("/")
    expected = program(tmp_path / folder, name, IMPORTER)
    assert find_importer() == expected


def test_without_nsys_the_program_is_not_looked_for(monkeypatch):
    take_nsys_away(monkeypatch)
    with pytest.raises(NsysNotFoundError):
        find_importer()
