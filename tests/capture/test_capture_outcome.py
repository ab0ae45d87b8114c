"""What is said of a job that has ended, and its status: every case in one golden text."""

import json
import os
import time
from dataclasses import replace

import pytest

from nsyspipe.capture.outcome import End, finish, judge
from nsyspipe.capture.plan import parse_job
from nsyspipe.capture.rank import (
    FAILED_BY_ITSELF,
    NOTHING,
    NsysOutput,
    last_words,
    output_of,
    report_there,
)
from nsyspipe.capture.status import Program, RankRecord
from tests.build.fake_nsys import fake_nsys
from tests.build.programs import TOPOLOGY, printing, program

WELL = End(0)


def rank(number=0, *, status=0, report=True, problem=None, ended_at=1.0, pid=100, is_captured=True):
    where = f"/data/run_{number}" if report else None
    return RankRecord(number, number, pid, 90, is_captured, where, status, problem, ended_at)


def verdict(*records, end=WELL, expected=None, capture_range="cudaProfilerApi", words=(), **steps):
    """Judge ranks that are all to be captured; `steps` are each program's: begun, captured, warm-up, asked for, of an epoch."""
    fields = ("n_steps", "n_captured_steps", "warmup", "steps_asked", "epoch_steps")
    programs = {
        int(name[3:]): Program(**dict(zip(fields, them, strict=False)))
        for name, them in steps.items()
    }
    job = parse_job(
        [
            "--name=/data/run",
            "--program=train.py",
            f"--capture-range={capture_range}",
            *words,
            "--",
            "run",
        ]
    )
    dealt = (
        {"n_local": max(expected) + 1, "chosen": frozenset(expected)}
        if expected
        else {"rendezvous": "c10d"}
    )
    return judge(replace(job, nsys="nsys", **dealt), records, programs, end)


def never_began(said):
    return rank(
        status=1,
        pid=None,
        report=False,
        problem=f"nsys failed before it started the program: {said}",
    )


LOST = rank(report=False, problem=NOTHING)
OF_NODE = [replace(rank(n), report="/data/run_node0") for n in (0, 1)]
CASES = {
    "all reports of a job that ended well": (0, verdict(rank(0), rank(1))),
    "a rank that was not chosen": (
        0,
        verdict(rank(0), rank(1, report=False, is_captured=False), expected=(0,)),
    ),
    # torchrun ends rank 0 because rank 1 failed, half a second earlier.
    "the rank that failed first": (
        1,
        verdict(rank(0, status=143, ended_at=9.5), rank(1, status=1), end=End(1)),
    ),
    **{
        f"status {n}": (n, verdict(rank(status=n), end=End(1)))
        for n in (139, 137, 128 + 99, 128, 41)
    },
    "a failure without a report": (1, verdict(rank(status=1, report=False), end=End(1))),
    "a problem of nsys": (3, verdict(rank(report=False, problem="broken"))),
    "one report of several ranks": (130, verdict(*OF_NODE, end=End(130, "interrupt"))),
    "an agent that was missed": (
        2,
        verdict(never_began("Connection to Agent lost: End of file"), end=End(1)),
    ),
    "an nsys that never started the program": (
        2,
        verdict(never_began("no such option"), end=End(1)),
    ),
    "a loop shorter than its warm-up": (3, verdict(LOST, of_0=(8, 0, 10, 20))),
    "an epoch shorter than the warm-up": (3, verdict(LOST, of_0=(8, 0, 10, 20, 8))),
    "all epochs shorter than the warm-up": (3, verdict(LOST, of_0=(8, 0, 10, 20, 4))),
    # One step is warm enough for nothing: it is captured itself.
    "a loop of one step": (3, verdict(LOST, of_0=(1, 0, 10, 20))),
    "steps that nsys never heard of": (3, verdict(LOST, of_0=(30, 20, 10, 20))),
    "fewer steps than asked for": (
        0,
        verdict(rank(0), rank(1), of_0=(30, 20, 10, 20), of_1=(16, 6, 10, 20)),
    ),
    "fewer steps than asked for, in one epoch": (0, verdict(rank(0), of_0=(16, 6, 10, 20, 16))),
    "fewer steps than asked for, in two epochs": (0, verdict(rank(0), of_0=(16, 6, 10, 20, 8))),
    "a command that failed before any rank": (1, verdict(end=End(1))),
    "time was up": (
        124,
        verdict(rank(status=143), rank(1, status=None, report=False), end=End(None, "timeout", 60)),
    ),
    "the loop was over": (124, verdict(rank(status=143), end=End(None, "exit", 5.0))),
    "somebody asked for its end": (124, verdict(rank(status=143), end=End(None, "linger", 1.0))),
    "Ctrl-C": (130, verdict(rank(status=130), end=End(130, "interrupt"))),
    "SIGTERM": (143, verdict(rank(status=143), end=End(143, "interrupt"))),
    "a torchrun that had to be ended": (
        0,
        verdict(rank(0), rank(1), end=End(None, "command", 660.0)),
    ),
    **{
        f"never began with {one}": (3, verdict(LOST, replace(LOST, rank=1), capture_range=one))
        for one in ("cudaProfilerApi", "nvtx", "none")
    },
    "an unchanged program of too few steps": (
        3,
        verdict(LOST, words=["--attach-steps=50:70"], of_0=(12, 0, 50, 20)),
    ),
    "an unchanged program of one step": (
        3,
        verdict(LOST, words=["--attach-steps=50:70"], of_0=(1, 0, 50, 20)),
    ),
    "an unchanged program without steps": (3, verdict(LOST, words=["--attach-steps=50:70"])),
    "a partial set": (
        3,
        verdict(rank(0), rank(1, report=False, problem=NOTHING), expected=(0, 1, 2)),
    ),
    "a kept report": (
        3,
        verdict(rank(0), rank(1, report=False, problem="which is kept: run.kept-7_1.nsys-rep")),
    ),
    "many lost ranks": (3, verdict(*(rank(n, report=n == 0) for n in range(10)))),
}


def test_the_exit_status_is_the_programs_or_names_the_culprit(pinned):
    assert {name: found for name, (_, (found, _)) in CASES.items()} == {
        name: one for name, (one, _) in CASES.items()
    }
    text = "".join(
        f"== {name}\n" + "".join(f"{line}\n" for line in lines)
        for name, (_, (_, lines)) in CASES.items()
    )
    pinned("launchers/verdicts.txt", text)


@pytest.mark.parametrize("has_links", [True, False])
def test_how_the_gpus_are_linked_is_written_beside_the_sidecar_which_names_it(
    tmp_path, monkeypatch, has_links
):
    gpus = {
        "querygpu=index,name,driver_version": "0, NVIDIA H200, 580.159.04\n1, NVIDIA H200, 580.159.04"
    }
    program(
        tmp_path / "bin", "nvidia-smi", printing(**gpus, topo=TOPOLOGY if has_links else "failed")
    )
    monkeypatch.setenv("PATH", f"{tmp_path}/bin", prepend=os.pathsep)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    words = [
        f"--name={tmp_path}/run",
        "--program=train.py",
        f"--nsys={fake_nsys(tmp_path / 'nsys')}",
        "--no-export",
    ]
    records = [replace(rank(), report=f"{tmp_path}/run_0")]
    written, failed, analysis = finish(parse_job([*words, "--", "run"]), records, {}, 0.0, None)
    assert (written, failed) == ([f"1 report written: {tmp_path}/run_0.nsys-rep"], [])
    assert analysis == f"nsyspipe analyze {tmp_path}/run_0.nsys-rep"
    named = json.loads((tmp_path / "run.capture.json").read_text())["topology_file"]
    assert named == ("run.topo.txt" if has_links else None)
    assert [path.read_text().rstrip("\n") for path in tmp_path.glob("*.topo.txt")] == [
        TOPOLOGY.rstrip("\n")
    ] * has_links


@pytest.fixture
def place(tmp_path):
    (tmp_path / "tmp" / "nvidia").mkdir(parents=True)
    (tmp_path / "log").write_text("starting\nFailed to create 'run_0.nsys-rep': File exists\nbye\n")
    return tmp_path


def came_of(place, *, earlier=None):
    return NsysOutput(
        str(place / "run_0"), place / "tmp", place / "log", earlier=earlier
    ).captured()


@pytest.mark.parametrize("is_noted", [True, False])
def test_a_file_that_was_there_or_is_older_than_this_nsys_is_not(place, is_noted):
    path = place / "run_0.nsys-rep"
    path.write_text("old")
    if not is_noted:  # moved there meanwhile
        os.utime(path, ns=(0, time.time_ns() - 3600 * 10**9))
    assert came_of(place, earlier=report_there(str(place / "run_0")) if is_noted else None) == (
        None,
        NOTHING,
    )


# The content of the report's place, the files that are left where nsys works, whether there is a
# report, and the files that are kept beside the report.
LEFT = {
    "a new report": ("mine", {}, True, {}),
    "a copy on its way from another file system": ("mine", {"report1.nsys-rep": "mine"}, True, {}),
    "reports behind a file of another program": (
        "other's",
        {"a.nsys-rep": "a", "b.nsys-rep": "b"},
        False,
        {"run.kept-P_0.nsys-rep": "a", "run.kept-P-1_0.nsys-rep": "b"},
    ),
    "a capture without a report": (None, {"x.qdstrm": "mine"}, False, {"run_0.qdstrm": "mine"}),
    "an empty report": (None, {"report1.nsys-rep": ""}, False, {}),
}


@pytest.mark.parametrize(("there", "left", "has_report", "kept"), LEFT.values(), ids=LEFT)
def test_a_new_file_is_the_report_and_what_is_left_is_kept_beside_it(
    place, worded, there, left, has_report, kept
):
    if there:
        (place / "run_0.nsys-rep").write_text(there)
    for name, text in left.items():
        (place / "tmp" / "nvidia" / name).write_text(text)
    report, problem = came_of(place)
    mark = f"kept-{os.getpid()}"
    assert report == (str(place / "run_0") if has_report else None)
    assert (problem is None) is has_report
    worded((problem or "no problem").replace(mark, "kept-P"))
    names = {path.name.replace(mark, "kept-P"): path.read_text() for path in place.glob("run*")}
    assert names == kept | ({"run_0.nsys-rep": there} if there else {})


def test_a_capture_that_cannot_be_moved_stays_and_is_named(place, worded):
    (place / "run_0.qdstrm").write_text("first")
    left = place / "tmp" / "nvidia" / "x.qdstrm"
    left.write_text("second")
    _, problem = came_of(place)
    assert f"run.kept-{os.getpid()}_0.qdstrm" in problem
    worded(problem.replace(f"kept-{os.getpid()}", "kept-P"), "a name that is taken")
    assert (place / "run_0.qdstrm").read_text() == "first"
    left.write_text("mine")
    _, problem = NsysOutput(str(place / "no" / "run_0"), place / "tmp", place / "log").captured()
    assert str(left.parent) in problem
    worded(problem, "a capture that cannot be moved")
    assert left.read_text() == "mine"


def test_the_output_has_the_rank_and_a_failed_nsys_is_recognized(place, monkeypatch):
    monkeypatch.setenv("RANK", "3")
    assert output_of(["nsys", "profile", "--output=a/run_%q{RANK}"]) == "a/run_3"
    assert output_of(["nsys", "profile"]) is None
    for line in (
        "Exception: Connection to Agent lost: End of file",
        "std::exception::what: RuntimeException",
    ):
        (place / "log").write_text(f"[1/2]\n{line}\n")
        assert last_words(place / "log") == f": {line}", line
        assert FAILED_BY_ITSELF.search(last_words(place / "log")), line
    assert not FAILED_BY_ITSELF.search(": unrecognised option")
