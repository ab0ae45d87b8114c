"""What is said of a job that has ended, and its status: every case in one golden text."""

from __future__ import annotations

from dataclasses import replace

from nsyspipe.capture.outcome import End, judge
from nsyspipe.capture.plan import parse_job
from nsyspipe.capture.status import Program, RankRecord

WELL = End(0)
EMPTY = "nothing was captured"


def rank(number=0, *, status=0, report=True, problem=None, ended_at=1.0, pid=100, is_captured=True):
    where = f"/data/run_{number}" if report else None
    return RankRecord(number, number, pid, 90, is_captured, where, status, problem, ended_at)


def verdict(*records, end=WELL, expected=None, capture_range="cudaProfilerApi", words=(), **steps):
    """Judge ranks that are all to be captured; `steps` are each program's: begun, captured, warm-up, asked for, of an epoch."""
    ranks = tuple(one.rank for one in records) if expected is None else expected
    fields = ("n_steps", "n_captured_steps", "warmup", "steps_asked", "epoch_steps")
    programs = {int(name[3:]): Program(**dict(zip(fields, them, strict=False))) for name, them in steps.items()}
    job = parse_job(["--name=/data/run", "--program=train.py", f"--capture-range={capture_range}", *words, "--", "run"])
    return judge(job, records, ranks, programs, end)


def never_began(said):
    return rank(status=1, pid=None, report=False, problem=f"nsys failed before it started the program: {said}")


LOST = rank(report=False, problem=EMPTY)
OF_NODE = [replace(rank(n), report="/data/run_node0") for n in (0, 1)]
CASES = {
    "all reports of a job that ended well": (0, verdict(rank(0), rank(1))),
    "a rank that was not chosen": (0, verdict(rank(0), rank(1, report=False, is_captured=False), expected=(0,))),
    # torchrun ends rank 0 because rank 1 failed, half a second earlier.
    "the rank that failed first": (1, verdict(rank(0, status=143, ended_at=9.5), rank(1, status=1), end=End(1))),
    **{f"status {n}": (n, verdict(rank(status=n), end=End(1))) for n in (139, 137, 128 + 99, 128, 41)},
    "a failure without a report": (1, verdict(rank(status=1, report=False), end=End(1))),
    "a problem of nsys": (3, verdict(rank(report=False, problem="broken"))),
    "one report of several ranks": (130, verdict(*OF_NODE, end=End(130, "interrupt"))),
    "an agent that was missed": (2, verdict(never_began("Connection to Agent lost: End of file"), end=End(1))),
    "an nsys that never started the program": (2, verdict(never_began("no such option"), end=End(1))),
    "a loop shorter than its warm-up": (3, verdict(LOST, of_0=(8, 0, 10, 20))),
    "an epoch shorter than the warm-up": (3, verdict(LOST, of_0=(8, 0, 10, 20, 8))),
    "all epochs shorter than the warm-up": (3, verdict(LOST, of_0=(8, 0, 10, 20, 4))),
    # One step is warm enough for nothing: it is captured itself.
    "a loop of one step": (3, verdict(LOST, of_0=(1, 0, 10, 20))),
    "steps that nsys never heard of": (3, verdict(LOST, of_0=(30, 20, 10, 20))),
    "fewer steps than asked for": (0, verdict(rank(0), rank(1), of_0=(30, 20, 10, 20), of_1=(16, 6, 10, 20))),
    "fewer steps than asked for, in one epoch": (0, verdict(rank(0), of_0=(16, 6, 10, 20, 16))),
    "fewer steps than asked for, in two epochs": (0, verdict(rank(0), of_0=(16, 6, 10, 20, 8))),
    "a command that failed before any rank": (1, verdict(end=End(1))),
    "time was up": (124, verdict(rank(status=143), rank(1, status=None, report=False), end=End(None, "timeout", 60))),
    "the loop was over": (124, verdict(rank(status=143), end=End(None, "exit", 5.0))),
    "somebody asked for its end": (124, verdict(rank(status=143), end=End(None, "linger", 1.0))),
    "Ctrl-C": (130, verdict(rank(status=130), end=End(130, "interrupt"))),
    "SIGTERM": (143, verdict(rank(status=143), end=End(143, "interrupt"))),
    "a torchrun that had to be ended": (0, verdict(rank(0), rank(1), end=End(None, "command", 660.0))),
    **{
        f"never began with {one}": (3, verdict(LOST, replace(LOST, rank=1), capture_range=one))
        for one in ("cudaProfilerApi", "nvtx", "none")
    },
    "an unchanged program of too few steps": (3, verdict(LOST, words=["--attach-steps=50:70"], of_0=(12, 0, 50, 20))),
    "an unchanged program of one step": (3, verdict(LOST, words=["--attach-steps=50:70"], of_0=(1, 0, 50, 20))),
    "an unchanged program without steps": (3, verdict(LOST, words=["--attach-steps=50:70"])),
    "a partial set": (3, verdict(rank(0), rank(1, report=False, problem=EMPTY), expected=(0, 1, 2))),
    "a kept report": (3, verdict(rank(0), rank(1, report=False, problem="which is kept: run.kept-7_1.nsys-rep"))),
    "many lost ranks": (3, verdict(*(rank(n, report=n == 0) for n in range(10)))),
}


def test_the_status_is_the_programs_or_says_whose_fault_it_is_and_the_words_are_these(pinned):
    assert {name: found for name, (_, (found, _)) in CASES.items()} == {name: one for name, (one, _) in CASES.items()}
    text = "".join(f"== {name}\n" + "".join(f"{line}\n" for line in lines) for name, (_, (_, lines)) in CASES.items())
    pinned("launchers/verdicts.txt", text)
