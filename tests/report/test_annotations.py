"""The lanes that a copy of a report has more than the report, and where copies may be written."""

import os
import stat
from pathlib import Path

import pytest

import nsyspipe
from nsyspipe.errors import NotAReportError, OutputError
from nsyspipe.report import annotations
from nsyspipe.report.annotations import (
    Copy,
    lanes_by_report,
    planned_copies,
    remove_unfinished_copies,
    write_copy,
)
from tests.build.across import every_step, load, reports

STEPS = range(4)


def ranges_of(lanes):
    return {
        lane.name.partition(", ")[0]: [
            *zip(lane.starts_ns.tolist(), lane.ends_ns.tolist(), strict=True)
        ]
        for lane in lanes
    }


def make_report(path):
    """Make a report that is older than its export."""
    path.touch()
    os.utime(path, (0, 0))


@pytest.fixture
def run(tmp_path):
    """Return two ranks, which communicate from 300 and from 400 to 600 ns of each step."""
    return load(every_step(reports(2), 300, 400, end=600), tmp_path)


def test_each_rank_has_its_steps_exposed_communication_and_wait_time(run):
    first, second = lanes_by_report(run).values()
    assert {lane.process_id for lane in first} == {1000}
    assert {lane.process_id for lane in second} == {1001}
    # A window ends where the next begins, and the last one with its last operation.
    windows = [*((at + 100, at + 1100) for at in (0, 1000, 2000)), (3100, 3600)]
    rows = [
        *zip(
            *(run.steps()[name].to_pylist() for name in ("rank", "start_ns", "end_ns")), strict=True
        )
    ]
    assert rows == [(rank, *window) for rank in (0, 1) for window in windows]
    found = ranges_of(first)
    assert found["steps"] == ranges_of(second)["steps"] == windows
    assert found["exposed communication"] == [(1000 * n + 300, 1000 * n + 600) for n in STEPS]
    assert found["waiting in communication"] == [(1000 * n + 300, 1000 * n + 400) for n in STEPS]
    found = ranges_of(second)
    assert found["exposed communication"] == [(1000 * n + 400, 1000 * n + 600) for n in STEPS]
    assert found["waiting in communication"] == []  # zero, which is known


def test_findings_nest_over_the_steps_used_in_their_order(run):
    titles = run.findings()["title"].to_pylist()
    assert titles
    (lane,) = [one for one in lanes_by_report(run)["report_0.sqlite"] if "findings" in one.name]
    assert [*lane.texts] == titles
    used = [row for row in run.steps().to_pylist() if row["in_summary"] and row["rank"] == 0]
    start, end = used[0]["start_ns"], used[-1]["end_ns"]
    depths = range(len(titles))
    assert [*zip(lane.starts_ns, lane.ends_ns, strict=True)] == [
        (start + depth, end - depth) for depth in depths
    ]


def test_times_are_those_of_the_report(real):
    run = nsyspipe.load(f"{real}/ddp-2gpu-straggler_*.sqlite")
    shifts = dict(
        zip(*(run.ranks[name].to_pylist() for name in ("rank", "clock_shift_ns")), strict=True)
    )
    assert all(shifts.values())
    lanes = lanes_by_report(run)
    for place, (rank, shift) in enumerate(shifts.items()):
        starts = [row["start_ns"] - shift for row in run.steps().to_pylist() if row["rank"] == rank]
        steps = ranges_of([*lanes.values()][place])["steps"]
        assert [start for start, _ in steps] == starts


def test_wait_time_that_is_not_known_has_no_lane(tmp_path):
    run = load(every_step(reports(1, world_size=2), 300, end=600), tmp_path)
    (lanes,) = lanes_by_report(run).values()
    assert [*ranges_of(lanes)] == ["steps", "exposed communication", "findings"]


def test_copies_keep_the_names_of_the_captured_reports(run, tmp_path):
    for number in (0, 1):
        make_report(tmp_path / f"report_{number}.nsys-rep")
    copies = planned_copies(run, tmp_path / "out")
    assert [(copy.report, copy.source.name, copy.target) for copy in copies] == [
        (f"report_{n}.sqlite", f"report_{n}.nsys-rep", tmp_path / f"out/report_{n}.nsys-rep")
        for n in (0, 1)
    ]


def test_an_export_without_its_report_is_refused(run, tmp_path):
    with pytest.raises(NotAReportError):
        planned_copies(run, tmp_path / "out")


@pytest.mark.parametrize(
    "target", ["report_0.nsys-rep", "there.nsys-rep", "link.nsys-rep", "copy.sqlite"]
)
def test_no_file_is_replaced_and_a_copy_has_the_suffix_of_a_report(tmp_path, target):
    run = load(reports(1), tmp_path)
    for name in ("report_0.nsys-rep", "there.nsys-rep"):
        make_report(tmp_path / name)
    (tmp_path / "link.nsys-rep").symlink_to("nowhere")
    with pytest.raises(OutputError) as caught:
        planned_copies(run, tmp_path / target)
    assert caught.value.fix


def test_two_reports_with_one_name_are_refused(tmp_path):
    for rank, builder in enumerate(reports(2)):
        folder = Path(tmp_path, f"{rank}")
        folder.mkdir()
        builder.write(folder / "report.sqlite")
        make_report(folder / "report.nsys-rep")
    run = nsyspipe.load([tmp_path / "0/report.sqlite", tmp_path / "1/report.sqlite"])
    with pytest.raises(OutputError):
        planned_copies(run, tmp_path / "out")


def test_an_export_that_is_older_than_its_report_is_refused(tmp_path):
    run = load(reports(1), tmp_path)
    make_report(tmp_path / "report_0.nsys-rep")
    os.utime(tmp_path / "report_0.nsys-rep", (2**32, 2**32))
    with pytest.raises(NotAReportError) as caught:
        planned_copies(run, tmp_path / "out.nsys-rep")
    assert "nsyspipe convert" in caught.value.fix


def test_a_name_that_is_too_long_is_refused(tmp_path):
    run = load(reports(1), tmp_path)
    make_report(tmp_path / "report_0.nsys-rep")
    with pytest.raises(OutputError):
        planned_copies(run, tmp_path / f"{'a' * 300}.nsys-rep")


def test_a_place_that_cannot_be_looked_at_is_refused(tmp_path, monkeypatch):
    run = load(reports(1), tmp_path)
    make_report(tmp_path / "report_0.nsys-rep")

    def exists(_path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "exists", exists)
    with pytest.raises(OutputError):
        planned_copies(run, tmp_path / "copy.nsys-rep")


@pytest.fixture
def copy(tmp_path, monkeypatch):
    """Return a copy to be written, whose importer copies the report with the mode 0644."""

    def add(_importer, source, file, _nvtxt, *, timeout_s):
        assert timeout_s
        file.write_bytes(source.read_bytes())
        file.chmod(0o644)

    monkeypatch.setattr(annotations, "add_ranges", add)
    (tmp_path / "a.nsys-rep").write_text("report")
    (tmp_path / "a.nsys-rep").chmod(0o600)
    return Copy("a", tmp_path / "a.nsys-rep", tmp_path / "out" / "a.nsys-rep")


def test_a_copy_has_the_mode_of_its_report(copy):
    write_copy(Path("ImportNvtxt"), copy, [])
    assert stat.S_IMODE(copy.target.stat().st_mode) == 0o600
    assert copy.target.stat().st_nlink == 1
    assert [*copy.target.parent.iterdir()] == [copy.target]


def test_a_directory_of_many_copies_is_cleaned_once(copy, tmp_path, monkeypatch):
    cleaned = []
    monkeypatch.setattr(annotations, "remove_abandoned", cleaned.append)
    second = Copy("b", copy.source, copy.target.with_name("b.nsys-rep"))
    elsewhere = Copy("c", copy.source, tmp_path / "c.nsys-rep")
    copies = [copy, second, elsewhere]
    remove_unfinished_copies(copies)
    for planned_copy in copies:
        write_copy(Path("ImportNvtxt"), planned_copy, [])
    assert sorted(cleaned) == [tmp_path, tmp_path / "out"]


def test_a_file_that_appears_while_the_copy_is_made_stays(copy):
    copy.target.parent.mkdir()
    copy.target.write_text("mine")
    with pytest.raises(OutputError, match="exists"):
        write_copy(Path("ImportNvtxt"), copy, [])
    assert copy.target.read_text() == "mine"
    assert [*copy.target.parent.iterdir()] == [copy.target]


def test_reports_without_gpu_activity_are_refused_in_these_words(without_gpu, tmp_path):
    with pytest.raises(NotAReportError, match="has no GPU activity"):
        planned_copies(without_gpu, tmp_path / "copy.nsys-rep")
