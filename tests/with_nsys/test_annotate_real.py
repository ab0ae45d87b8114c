"""Ranges in copies of a report of a real nsys, which exports them again."""

import json
import sqlite3
import subprocess
from contextlib import closing

import pytest

import nsyspipe
from nsyspipe.nsys.nvtxt import find_importer
from nsyspipe.nsys.programs import find_nsys
from nsyspipe.report.annotations import lanes_by_report, planned_copies, write_copy
from tests.build.across import every_step, reports
from tests.with_nsys.test_convert_real import captured  # noqa: F401 - a fixture

pytestmark = pytest.mark.nsys
PUSHED = 70
NAMED = 72


def exported(report, kind, target):
    nsys = find_nsys().path
    command = [nsys, "export", f"--type={kind}", f"--output={target}", report]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return target


def ranges_in(report, target):
    """Return the ranges that ImportNvtxt has added, by the name of their thread, with their process."""
    lines = exported(report, "json", target).read_text(errors="replace").splitlines()
    events = [json.loads(line) for line in lines if "Nvtxt" in line]
    threads = [one["NvtxtMetaEvent"]["Thread"] for one in events if one["Type"] == NAMED]
    names = {thread["GlobalThreadId"]: thread["Name"] for thread in threads}
    found = {(name, int(thread) >> 24 & 0xFFFFFF): set() for thread, name in names.items()}
    for event in (one["NvtxtEvent"]["Nvtx"] for one in events if one["Type"] == PUSHED):
        key = (names[event["GlobalTid"]], int(event["GlobalTid"]) >> 24 & 0xFFFFFF)
        found[key].add((int(event["Timestamp"]), int(event["EndTimestamp"]), event["Text"]))
    return found


def counts_of_rows(path):
    """Return how many rows each table has, but for those about the machine that ImportNvtxt makes up."""
    with closing(sqlite3.connect(path)) as database:
        database.execute("DELETE FROM TARGET_INFO_SYSTEM_ENV WHERE globalVid = 0")
        tables = [
            name
            for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            if not name.startswith("META_DATA")
        ]
        return {
            name: database.execute(f'SELECT count(*) FROM "{name}"').fetchone() for name in tables
        }


def test_the_ranges_of_a_run_come_back_with_their_times_and_the_rest_stays(
    captured,  # noqa: F811
    with_nsys,
    tmp_path,
):
    """The run is made, since a machine without GPUs captures none. Its times are within the captured time."""
    builders = every_step(reports(2), 300, 400, end=600)
    for number, builder in enumerate(builders):
        report = tmp_path / f"run_{number}.nsys-rep"
        report.write_bytes((captured / "a b_0.nsys-rep").read_bytes())
        # Behind its report: an older export may be that of another capture.
        builder.write(tmp_path / f"run_{number}.sqlite")
    run = nsyspipe.load(tmp_path)
    lanes = lanes_by_report(run)
    for copy in planned_copies(run, tmp_path / "out"):
        before = copy.source.read_bytes()
        added = write_copy(find_importer(), copy, lanes[copy.report])
        expected = {
            (lane.name, lane.process_id): {
                *zip(
                    lane.starts_ns.tolist(),
                    lane.ends_ns.tolist(),
                    [*map(str, lane.texts)],
                    strict=True,
                )
            }
            for lane in lanes[copy.report]
        }
        assert ranges_in(copy.target, tmp_path / f"{copy.report}.json") == expected
        assert (added.n_ranges, added.n_left_out) == (sum(map(len, expected.values())), 0)
        assert copy.source.read_bytes() == before
        # nsyspipe reads exports, and that of the copy has the same rows.
        sides = [
            counts_of_rows(exported(report, "sqlite", tmp_path / f"{copy.report}.{side}"))
            for side, report in (("before", copy.source), ("after", copy.target))
        ]
        assert sides[0] == sides[1]


def test_ranges_outside_of_the_captured_time_are_counted(captured, with_nsys, tmp_path):  # noqa: F811
    (late,) = reports(1)
    late.range(10**15, 10**15 + 900, "step 4").kernel(
        10**15 + 100, 10**15 + 200, launch=10**15 + 10
    )
    (tmp_path / "run_0.nsys-rep").write_bytes((captured / "a b_0.nsys-rep").read_bytes())
    late.write(tmp_path / "run_0.sqlite")
    run = nsyspipe.load(tmp_path)
    (copy,) = planned_copies(run, tmp_path / "copy.nsys-rep")
    added = write_copy(find_importer(), copy, lanes_by_report(run)[copy.report])
    assert added.n_left_out
