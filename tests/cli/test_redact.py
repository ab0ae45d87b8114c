"""``nsyspipe redact``: what it writes, says and refuses."""

from __future__ import annotations

import json
import os
import re

import pytest

from tests.build.tools import edit
from tests.build.trace import KERNEL
from tests.cli.redacting import hosts, names, private_reports, refused, run
from tests.cli.tools import nsyspipe_here, terminal_run


@pytest.fixture
def reports(tmp_path):
    return private_reports(tmp_path / "reports")


def test_a_directory_is_copied_and_what_was_removed_is_printed_by_class(reports, tmp_path):
    done = nsyspipe_here("redact", reports, tmp_path / "out")
    assert (done.returncode, done.stderr) == (0, "")
    assert names(tmp_path / "out") == ["ddp_0.sqlite", "ddp_1.sqlite"]
    assert hosts(tmp_path / "out" / "ddp_1.sqlite") == [("Hostname", "host-1")]
    lines = done.stdout.splitlines()
    assert lines[0] == f"2 reports redacted into {tmp_path / 'out'} (2 hosts renamed)"
    removed = lines[lines.index("Removed") + 1 : lines.index("Kept") - 1]
    table = [re.split(r"  +", line.strip()) for line in removed]
    # One secret per report; the host's row stays, with another name.
    assert ["environment and settings of the capture", "2 rows", "META_DATA_CAPTURE"] in table
    assert ["process list", "2 rows", "PROCESSES"] in table
    assert not [row for row in table if "SYSTEM_ENV" in row[-1]]
    assert "names of kernels, NVTX ranges and phases: they may hold private words" in done.stdout
    assert "when the session started (UTC)" in done.stdout
    assert "file names are kept" in done.stdout
    assert "hunter2" not in done.stdout
    assert "ada" not in done.stdout
    assert "private-host" not in done.stdout


def test_one_report_becomes_one_file_and_its_host_is_host_0(reports, tmp_path):
    done = run(reports / "ddp_1.sqlite", tmp_path / "copy.sqlite")
    assert done.exit_code == 0
    assert hosts(tmp_path / "copy.sqlite") == [("Hostname", "host-0")]
    assert "redact the reports of several hosts in one call" in done.output
    assert "1 report redacted" in done.output


def test_a_glob_is_copied_into_a_directory_that_is_made(reports, tmp_path):
    done = run(reports / "ddp_*.sqlite", tmp_path / "a" / "b")
    assert done.exit_code == 0
    assert names(tmp_path / "a" / "b") == ["ddp_0.sqlite", "ddp_1.sqlite"]


@pytest.mark.parametrize("name", ["odd ?#%20&'\".sqlite", "spät.sqlite"])
def test_odd_names_are_no_obstacle(reports, tmp_path, name):
    odd = (reports / "ddp_0.sqlite").rename(reports / name)
    assert run(odd, tmp_path / f"copy of {name}").exit_code == 0
    assert hosts(tmp_path / f"copy of {name}") == [("Hostname", "host-0")]


def test_quiet_prints_nothing(reports, tmp_path):
    done = nsyspipe_here("redact", "-q", reports, tmp_path / "out")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.slow
def test_a_terminal_shows_progress_and_the_summary(reports, tmp_path):
    code, text = terminal_run("redact", reports, tmp_path / "out")
    assert code == 0
    assert "2 reports redacted" in text


def test_copies_are_readable_as_other_new_files_are(reports, tmp_path):
    before = os.umask(0o027)
    try:
        assert run(reports / "ddp_0.sqlite", tmp_path / "copy.sqlite").exit_code == 0
    finally:
        os.umask(before)
    assert (tmp_path / "copy.sqlite").stat().st_mode & 0o777 == 0o640


def put_beside(folder, name="ddp"):
    """Put there what a launcher leaves beside the reports of a capture."""
    log, topology = f"{name}.nccl.node1.12.log", f"{name}.topo.txt"
    found = {
        "capture_version": 1,
        "name": name,
        "ranks": [{"rank": 0, "report": f"{name}_0"}],
        "nccl_log_files": [log],
        "topology_file": topology,
    }
    (folder / f"{name}.capture.json").write_text(json.dumps(found))
    for one in (log, topology):
        (folder / one).write_text("")


def test_what_analyze_reads_beside_the_reports_is_named(reports, tmp_path):
    put_beside(reports)
    (reports / "other.nccl.log").write_text("")
    done = run(reports, tmp_path / "out")
    (line,) = [one for one in done.output.splitlines() if "not copied" in one]
    assert line.endswith(": ddp.capture.json, ddp.nccl.node1.12.log, ddp.topo.txt")
    assert "beside the reports name hosts" in done.output
    assert names(tmp_path / "out") == ["ddp_0.sqlite", "ddp_1.sqlite"]


def test_what_analyze_does_not_read_is_not_named(reports, tmp_path):
    put_beside(reports, "other")
    done = run(reports / "ddp_*.sqlite", tmp_path / "out")
    assert "not copied" not in done.output
    assert "beside the reports name hosts" in done.output
    for path in reports.glob("other*"):
        path.unlink()
    assert "name hosts" not in run(reports, tmp_path / "out2").output


@pytest.mark.parametrize("content", [b"", b"no database", b"SQLite format 3\0"])
def test_what_is_no_report_is_refused(tmp_path, content):
    (tmp_path / "a.sqlite").write_bytes(content)
    refused(tmp_path / "a.sqlite", tmp_path / "out.sqlite")
    assert names(tmp_path) == ["a.sqlite"]


@pytest.mark.slow
def test_a_missing_report_and_an_empty_directory_are_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    assert "no such file" in refused(tmp_path / "a.sqlite", tmp_path / "out.sqlite")
    refused(tmp_path / "empty", tmp_path / "out")
    assert names(tmp_path) == ["empty"]


def test_a_raw_report_is_to_be_converted_first(tmp_path):
    (tmp_path / "a.nsys-rep").write_bytes(b"raw")
    message = refused(tmp_path / "a.nsys-rep", tmp_path / "out.sqlite")
    assert f"fix: nsyspipe convert {tmp_path / 'a.nsys-rep'}" in message


def test_a_report_that_is_still_written_is_refused(reports, tmp_path):
    (reports / "ddp_1.sqlite-wal").write_bytes(b"pages")
    assert "still being written" in refused(reports, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_unknown_table_is_refused_until_it_may_be_dropped(reports, tmp_path):
    edit(reports / "ddp_1.sqlite", "CREATE TABLE NEW_EVENTS (v TEXT)", "INSERT INTO NEW_EVENTS VALUES ('hunter2')")
    message = refused(reports, tmp_path / "out")
    assert "NEW_EVENTS (1 rows)" in message
    assert "--drop-unknown" in message
    assert not (tmp_path / "out").exists()
    done = run(reports, tmp_path / "out", "--drop-unknown")
    assert done.exit_code == 0
    assert re.search(r"unknown tables +1 rows  NEW_EVENTS \(1\)", done.output)
    assert b"NEW_EVENTS" not in (tmp_path / "out" / "ddp_1.sqlite").read_bytes()


def test_an_unknown_table_without_rows_is_no_obstacle(reports, tmp_path):
    edit(reports / "ddp_1.sqlite", "CREATE TABLE NEW_EVENTS (v TEXT DEFAULT 'hunter2')")
    assert run(reports, tmp_path / "out").exit_code == 0
    assert b"NEW_EVENTS" not in (tmp_path / "out" / "ddp_1.sqlite").read_bytes()


def test_an_unknown_column_is_left_out_and_named(reports, tmp_path):
    edit(reports / "ddp_0.sqlite", f"ALTER TABLE {KERNEL} ADD COLUMN newColumn INTEGER DEFAULT 5")
    done = run(reports, tmp_path / "out")
    # 4 steps of 3 kernels.
    assert re.search(rf"unknown columns +12 values  {KERNEL}\.newColumn \(12\)", done.output)
    assert b"newColumn" not in (tmp_path / "out" / "ddp_0.sqlite").read_bytes()


def test_nothing_is_left_when_a_later_report_cannot_be_copied(reports, tmp_path):
    path = reports / "ddp_1.sqlite"
    data = bytearray(path.read_bytes())
    # Break the pages behind the schema, which a look at the names does not read.
    data[2 * 4096 :] = b"\xff" * (len(data) - 2 * 4096)
    path.write_bytes(data)
    refused(reports, tmp_path / "out")
    assert names(tmp_path) == ["reports"]
