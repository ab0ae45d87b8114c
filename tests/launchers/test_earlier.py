"""An earlier capture of the same name, and captures that nsys could not put where they belong: none is lost."""

from __future__ import annotations

import pytest

from tests.launchers.jobs import ddp

# An nsys that leaves its report where it works, since a file of that name is there.
BLOCKED = (
    'mkdir "$TMPDIR/nvidia"; "$@"; echo "$RANK captured" > "$TMPDIR/nvidia/report1.nsys-rep"; '
    '[ -e "$out.nsys-rep" ] && echo "Failed to create $out: File exists" || '
    'mv "$TMPDIR/nvidia/report1.nsys-rep" "$out.nsys-rep"'
)


@pytest.mark.slow
def test_an_earlier_capture_stays_unless_forced(machine):
    assert ddp(machine).status == 0
    before = (machine.work / "ddp-2gpu_0.sqlite").stat().st_mtime_ns
    answer = ddp(machine)
    assert answer.status == 2
    assert "an earlier capture of this name is there" in answer.err
    assert "--force" in answer.err
    assert (machine.work / "ddp-2gpu_0.sqlite").stat().st_mtime_ns == before
    assert ddp(machine, "--force").status == 0
    assert (machine.work / "ddp-2gpu_0.sqlite").stat().st_mtime_ns > before


def test_force_removes_all_ranks_of_this_name_and_nothing_else(machine):
    own = ["run_0.nsys-rep", "run_7.sqlite", "run_7.qdstrm", "run_node0.nsys-rep", "run.topo.txt"]
    own += ["run.nccl.host.77.log", "run.node1.capture.json"]
    others = ["run-view_0.nsys-rep", "run_0_0.sqlite", "run_0.capture.json", "run_x.sqlite"]
    others += ["run.txt", "run.nccl.txt", "run_0.nsys-rep.bak", "rerun_0.sqlite", "run"]
    for name in own + others:
        (machine.work / name).write_text("old")
    assert ddp(machine, "-o", "run", "--force", "--no-export", n=1).status == 0
    assert machine.files() == sorted([*others, "run.capture.json", "run_0.nsys-rep"])
    assert all((machine.work / name).read_text() == "old" for name in others)


@pytest.mark.slow
def test_two_nodes_share_a_directory_and_keep_to_their_own(machine):
    machine.put_program("pass")
    words = ["--cpu", "--nnodes", "2", "-n", "2", "--rdzv-endpoint", "h:1", "-o", "run"]
    words += ["--program", "train.py"]
    for node in ("0", "1"):
        assert machine.run("node.sh", *words, "--node-rank", node).status == 0
    assert [name for name in machine.files() if not name.endswith("sqlite")] == [
        *("run.node0.capture.json", "run.node1.capture.json"),
        *(f"run_{rank}.nsys-rep" for rank in range(4)),
    ]
    before = (machine.work / "run_0.nsys-rep").stat().st_ino
    assert machine.run("node.sh", *words, "--node-rank", "1").status == 2
    assert machine.run("node.sh", *words, "--node-rank", "1", "--force").status == 0
    assert (machine.work / "run_0.nsys-rep").stat().st_ino == before


def test_a_report_that_was_there_is_not_taken_for_this_jobs(machine):
    # A rendezvous that deals out the ranks: nobody knows before which files a node will write.
    (machine.work / "run_0.nsys-rep").write_text("old")
    machine.put_program("pass")
    words = ["--cpu", "--nnodes=2", "--node-rank=0", "--rdzv-endpoint=h:1", "--rdzv-backend=c10d"]
    answer = machine.run("node.sh", *words, "-o", "run", "--program", "train.py")
    assert answer.status == 2
    assert "found: run_0.nsys-rep" in answer.err
    assert machine.files() == ["run_0.nsys-rep"]
    assert machine.run("node.sh", *words, "-o", "run", "--program=train.py", "--force").status == 0
    assert (machine.work / "run_0.nsys-rep").read_bytes() != b"old"


@pytest.mark.slow
def test_a_report_whose_place_was_taken_meanwhile_is_kept_beside_it(machine):
    machine.put_nsys(BLOCKED)
    text = "import os, pathlib; os.environ['RANK'] == '0' and pathlib.Path('run_0.nsys-rep').write_text('other')"
    answer = ddp(machine, "-o", "run", text=text)
    assert answer.status == 3
    (kept,) = machine.work.glob("run.kept-*_0.nsys-rep")
    assert kept.read_text() == "0 captured\n"
    assert (machine.work / "run_0.nsys-rep").read_text() == "other"
    assert "found: reports of 1 of 2 ranks: run_1.nsys-rep" in answer.err
    assert f"rank 0: nsys could not write its report, which is kept: {kept.name}: Failed to" in answer.err
    assert "fix: nsyspipe analyze takes a kept .nsys-rep as it is" in answer.err
    # Only the job's own report is exported.
    assert not (machine.work / "run_0.sqlite").exists()


def test_a_report_of_a_node_whose_place_was_taken_is_kept_too(machine):
    machine.put_nsys(BLOCKED)
    machine.put_program("import pathlib; pathlib.Path('run_node0.nsys-rep').write_text('other')")
    words = ["--cpu", "--nnodes=1", "--node-rank=0", "--rdzv-endpoint=h:1", "-o", "run", "--program=train.py"]
    answer = machine.run("node.sh", *words, "--node-wide")
    assert answer.status == 3
    (kept,) = machine.work.glob("run.kept-*_node0.nsys-rep")
    assert kept.read_text() == " captured\n"
    assert kept.name in answer.err


@pytest.mark.slow
def test_an_earlier_capture_is_put_back_when_the_new_one_does_not_begin(machine):
    assert ddp(machine).status == 0
    before = {name: (machine.work / name).stat().st_ino for name in machine.files()}
    machine.put_nsys("echo 'unrecognised option'; exit 1")
    assert ddp(machine, "--force").status == 2
    assert {name: (machine.work / name).stat().st_ino for name in machine.files()} == before


def test_logs_of_a_job_without_a_report_are_no_earlier_capture(machine):
    (machine.work / "run.nccl.host.7.log").write_text("why it crashed")
    assert ddp(machine, "-o", "run", n=1).status == 0
    assert (machine.work / "run.nccl.host.7.log").read_text() == "why it crashed"


def test_the_first_of_fewer_nodes_clears_what_more_nodes_have_left(machine):
    stale = ["run_7.sqlite", "run_node3.nsys-rep", "run.node3.capture.json"]
    of_node_1 = ["run_1.nsys-rep", "run.node1.capture.json"]
    for name in (*stale, *of_node_1):
        (machine.work / name).write_text("old")
    machine.put_program("pass")
    words = ["--cpu", "--nnodes=2", "--rdzv-endpoint=h:1", "-o", "run", "--program=train.py"]
    answer = machine.run("node.sh", *words, "--node-rank=0", "--force", "--no-export")
    assert answer.status == 0, answer.err
    assert machine.files() == sorted(["run.node0.capture.json", "run_0.nsys-rep", *of_node_1])
