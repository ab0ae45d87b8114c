"""``nsyspipe redact``: what it writes, says and refuses, where copies go, and what is left after an error."""

import json
import os
import re
import shutil

import pytest

from nsyspipe.errors import OutputError
from nsyspipe.redact.redact import Place, staged
from tests.build.tools import edit, file_names, query
from tests.build.trace import KERNEL, steady_rank
from tests.cli.tools import assert_refused, nsyspipe_here


@pytest.fixture
def reports(tmp_path):
    folder = tmp_path / "reports"
    folder.mkdir()
    for rank in range(2):
        builder = steady_rank(rank)
        builder.rows["TARGET_INFO_SYSTEM_ENV"][0]["value"] = f"private-host-{rank}"
        builder.env(AWS_SECRET_ACCESS_KEY="hunter2")
        path, made = (
            builder.write(folder / f"ddp_{rank}.sqlite"),
            "CREATE TABLE PROCESSES (globalPid INTEGER, name TEXT)",
        )
        edit(path, made, "INSERT INTO PROCESSES VALUES (1, '/home/ada/train')")
    return folder


def redacted(*arguments):
    done = nsyspipe_here("redact", *arguments, COLUMNS="100")
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def refused(*arguments):
    done = nsyspipe_here("redact", *arguments, COLUMNS="100")
    assert_refused(done)
    return done.stderr


HOSTS = "SELECT name, value FROM TARGET_INFO_SYSTEM_ENV"
BOTH = ["ddp_0.sqlite", "ddp_1.sqlite"]


def test_a_directory_is_copied_and_what_was_removed_is_printed_by_class(reports, tmp_path, worded):
    text = redacted(reports, tmp_path / "out")
    assert file_names(tmp_path / "out") == BOTH
    assert query(tmp_path / "out" / "ddp_1.sqlite", HOSTS) == [("Hostname", "host-1")]
    rows = [re.split(r"  +", line.strip()) for line in text.splitlines()]
    n_removed = {row[-1]: int(row[1].split()[0]) for row in rows if len(row) == 3}
    # One secret per report; the host's row stays, with another name.
    assert (n_removed["META_DATA_CAPTURE"], n_removed["PROCESSES"]) == (2, 2)
    assert not [table for table in n_removed if "SYSTEM_ENV" in table]
    assert not [word for word in ("hunter2", "ada", "private-host") if word in text]
    worded(text)


@pytest.mark.parametrize("name", ["ddp_1.sqlite", "odd ?#%20&'\".sqlite", "spät.sqlite"])
def test_one_report_becomes_one_file_whose_host_is_host_0_whatever_its_name(
    reports, tmp_path, name, worded
):
    report = (reports / "ddp_1.sqlite").rename(reports / name)
    before = os.umask(0o027)
    try:
        text = redacted(report, tmp_path / f"copy of {name}")
    finally:
        os.umask(before)
    assert query(tmp_path / f"copy of {name}", HOSTS) == [("Hostname", "host-0")]
    worded(text)
    assert (
        tmp_path / f"copy of {name}"
    ).stat().st_mode & 0o777 == 0o640  # copies are readable as other new files are


def test_what_analyze_reads_beside_the_reports_is_named_and_nothing_else(reports, tmp_path, worded):
    for name in ("other", "ddp"):
        log, topology = (
            f"{name}.nccl.node1.12.log",
            f"{name}.topo.txt",
        )  # what a launcher leaves there
        found = {"capture_version": 1, "name": name, "ranks": [{"rank": 0, "report": f"{name}_0"}]}
        found |= {"nccl_log_files": [log], "topology_file": topology}
        for file, content in (
            (f"{name}.capture.json", json.dumps(found)),
            (log, ""),
            (topology, ""),
        ):
            (reports / file).write_text(content)
        text = redacted(reports / "ddp_*.sqlite", tmp_path / "made" / name)
        files = re.findall(r"\S+\.(?:capture\.json|log|topo\.txt)", text)
        expected = ["ddp.capture.json", "ddp.nccl.node1.12.log", "ddp.topo.txt"]
        assert files == (expected if name == "ddp" else []), name
        worded(text, name)
        assert file_names(tmp_path / "made" / name) == BOTH, name
    assert redacted("-q", reports, tmp_path / "quiet") == ""


def test_redact_refuses_raw_and_unfinished_reports(reports, tmp_path, worded):
    raw, out = tmp_path / "a.nsys-rep", tmp_path / "out"
    raw.write_bytes(b"raw")
    (tmp_path / "b.nsys-rep").write_bytes(b"raw")
    worded(refused(raw, tmp_path / "b.nsys-rep", out), "raw")
    shutil.copy(reports / "ddp_0.sqlite", raw.with_suffix(".sqlite"))
    redacted(raw, tmp_path / "a_out.sqlite")  # its export stands for it
    assert (tmp_path / "a_out.sqlite").is_file()
    (reports / "ddp_1.sqlite-wal").write_bytes(b"pages")
    worded(refused(reports, out), "still written")
    assert not out.exists()


def test_an_unknown_table_is_refused_until_it_may_be_dropped(reports, tmp_path, worded):
    edit(
        reports / "ddp_1.sqlite",
        "CREATE TABLE NEW_EVENTS (v TEXT)",
        "INSERT INTO NEW_EVENTS VALUES ('hunter2')",
    )
    message = refused(reports, tmp_path / "out")
    assert "--drop-unknown" in message
    worded(message)
    assert not (tmp_path / "out").exists()
    text = redacted(reports, tmp_path / "out", "--drop-unknown")
    assert re.findall(r"NEW_EVENTS \((\d+)\)", text) == ["1"]
    assert b"NEW_EVENTS" not in (tmp_path / "out" / "ddp_1.sqlite").read_bytes()


def test_an_empty_unknown_table_is_no_obstacle_to_redaction(reports, tmp_path):
    edit(reports / "ddp_1.sqlite", "CREATE TABLE NEW_EVENTS (v TEXT DEFAULT 'hunter2')")
    edit(reports / "ddp_0.sqlite", f"ALTER TABLE {KERNEL} ADD COLUMN newColumn INTEGER DEFAULT 5")
    text = redacted(reports, tmp_path / "out")
    assert b"NEW_EVENTS" not in (tmp_path / "out" / "ddp_1.sqlite").read_bytes()
    # 4 steps of 3 kernels.
    assert re.findall(rf"{KERNEL}\.newColumn \((\d+)\)", text) == ["12"]
    assert b"newColumn" not in (tmp_path / "out" / "ddp_0.sqlite").read_bytes()


@pytest.mark.parametrize("n_logs", [0, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("is_copy_there", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_copy_and_the_logs_of_an_older_file_are_replaced_only_by_force(
    reports, tmp_path, is_copy_there, n_logs
):
    """SQLite rolls OUT-wal into OUT when that is opened."""
    copy = tmp_path / "copies" / "copy.sqlite"
    copy.parent.mkdir()
    if is_copy_there:
        redacted(reports / "ddp_1.sqlite", copy)
    before = copy.read_bytes() if is_copy_there else b""
    for suffix in ("-wal", "-shm", "-journal")[:n_logs]:
        copy.with_name(copy.name + suffix).write_text("hunter2")
    if is_copy_there or n_logs:
        assert "--force" in refused(reports / "ddp_0.sqlite", copy)
    assert len(file_names(copy.parent)) == n_logs + is_copy_there
    assert not is_copy_there or copy.read_bytes() == before
    redacted(reports / "ddp_0.sqlite", copy, "--force")
    assert file_names(copy.parent) == ["copy.sqlite"]
    assert query(copy, HOSTS) == [("Hostname", "host-0")]


@pytest.mark.parametrize("content", ["a capture", "mine"])
def test_what_is_no_copy_is_replaced_by_nothing(reports, tmp_path, content, worded):
    """The other capture, not exported from anything, is all that there is of it."""
    other = tmp_path / "other.sqlite"
    steady_rank(0).write(other) if content == "a capture" else other.write_text(content)
    before = other.read_bytes()
    for force in ([], ["--force"]):
        message = refused(reports / "ddp_0.sqlite", other, *force)
        assert "--force" not in message, force
        worded(message, " ".join(force))
    assert other.read_bytes() == before


def test_several_reports_become_no_directory_that_is_named_as_a_report(reports, tmp_path, worded):
    """The glob of which a shell made two words, and the name of one copy."""
    message = refused(*(reports / name for name in BOTH), tmp_path / "one.sqlite")
    worded(message)
    # In a directory that has the report itself, the fix is another name.
    message = refused(reports / "ddp_0.sqlite", reports, "--force")
    assert f"{reports}/redacted-ddp_0.sqlite\n" in message
    assert file_names(tmp_path) == ["reports"]


def test_a_directory_with_other_files_is_refused_without_force(reports, tmp_path, worded):
    out = tmp_path / "out"
    out.mkdir()
    (out / "other.sqlite").write_text("not redacted")
    worded(refused(reports, out))
    assert file_names(out) == ["other.sqlite"]
    redacted(reports, out, "--force")
    assert file_names(out) == [*BOTH, "other.sqlite"]


@pytest.mark.parametrize("how", ["same", "link", "hard link", "other spelling", "named like a log"])
def test_an_original_is_never_replaced(reports, tmp_path, how, worded):
    report = reports / "ddp_0.sqlite"
    out = {"same": report, "other spelling": reports / ".." / "reports" / "ddp_0.sqlite"}.get(how)
    if how == "named like a log":
        report, out = report.rename(tmp_path / "copy.sqlite-wal"), tmp_path / "copy.sqlite"
    elif out is None:
        out = tmp_path / "linked.sqlite"
        (out.symlink_to if how == "link" else out.hardlink_to)(report)
    before = report.read_bytes()
    worded(refused(report, out, "--force"))
    assert report.read_bytes() == before


def test_the_directory_of_the_originals_takes_no_copies(reports, tmp_path, worded):
    linked = tmp_path / "linked"
    linked.symlink_to(reports)
    for out in (reports, linked):
        for which in (reports, reports / "*.sqlite"):
            worded(refused(which, out, "--force"), f"{which.name} to {out.name}")
    assert file_names(reports) == BOTH


def test_redact_refuses_equal_names_and_unusable_places(reports, tmp_path, worded):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "ddp_0.sqlite").hardlink_to(reports / "ddp_0.sqlite")
    message = refused(tmp_path / "*" / "ddp_*.sqlite", tmp_path / "out")
    worded(message, "two of one name")
    assert not (tmp_path / "out").exists()
    (tmp_path / "file").write_text("")
    (tmp_path / "closed").mkdir(mode=0o500)
    worded(refused(reports / "ddp_0.sqlite", tmp_path / "folder", "--force"), "a directory")
    worded(refused(reports, tmp_path / "file", "--force"), "a file")
    worded(refused(reports / "ddp_0.sqlite", tmp_path / "file" / "copy.sqlite"), "below a file")
    if os.geteuid() != 0:  # root may write anywhere
        refused(reports, tmp_path / "closed" / "out")


def test_nothing_is_left_when_a_later_report_cannot_be_copied(reports, tmp_path):
    path = reports / "ddp_1.sqlite"
    data = bytearray(path.read_bytes())
    # Break the pages behind the schema, which a look at the names does not read.
    data[2 * 4096 :] = b"\xff" * (len(data) - 2 * 4096)
    path.write_bytes(data)
    refused(reports, tmp_path / "out")
    assert file_names(tmp_path) == ["reports"]


def test_nothing_is_left_when_a_later_copy_cannot_be_renamed(reports, tmp_path):
    places = [Place(reports / name, tmp_path / "out" / name) for name in BOTH]
    with pytest.raises(OutputError), staged(places) as files:  # noqa: PT012 - a directory appears meanwhile
        for file in files:
            file.write_text("a copy")
        places[1].copy.mkdir()
    assert file_names(tmp_path / "out") == ["ddp_1.sqlite"]
