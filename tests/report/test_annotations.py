"""The lanes that a copy of a report has more than the report, and where copies may be written."""

from pathlib import Path

import pytest

import nsyspipe
from nsyspipe.errors import NotAReportError, OutputError
from nsyspipe.report.annotations import lanes_by_report, planned_copies
from tests.build.across import every_step, load, reports

STEPS = range(4)


def ranges_of(lanes):
    return {
        lane.name.partition(", ")[0]: [
            *zip(lane.starts_ns.tolist(), lane.ends_ns.tolist(), strict=True)
        ]
        for lane in lanes
    }


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
        (tmp_path / f"report_{number}.nsys-rep").touch()
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
        (tmp_path / name).touch()
    (tmp_path / "link.nsys-rep").symlink_to("nowhere")
    with pytest.raises(OutputError) as caught:
        planned_copies(run, tmp_path / target)
    assert caught.value.fix


def test_two_reports_with_one_name_are_refused(tmp_path):
    for rank, builder in enumerate(reports(2)):
        folder = Path(tmp_path, f"{rank}")
        folder.mkdir()
        builder.write(folder / "report.sqlite")
        (folder / "report.nsys-rep").touch()
    run = nsyspipe.load([tmp_path / "0/report.sqlite", tmp_path / "1/report.sqlite"])
    with pytest.raises(OutputError):
        planned_copies(run, tmp_path / "out")
