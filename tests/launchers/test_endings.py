"""How captured jobs end, well and badly, with a fake nsys and torchrun: what is said, what is left, which status."""

from __future__ import annotations

import glob
import shlex

import pytest

from nsyspipe.nsys.programs import find_nsys
from tests.launchers.jobs import CRASHING, ddp

# Each starts a launcher, torchrun, and a program per rank.
pytestmark = pytest.mark.slow


def test_a_job_that_ends_well_leaves_reports_exports_and_a_sidecar(machine):
    answer = ddp(machine, "-o", "a/b/run")
    assert answer.status == 0, answer.err
    assert sorted(path.name for path in (machine.work / "a" / "b").iterdir()) == [
        *("run.capture.json", "run_0.nsys-rep", "run_0.sqlite", "run_1.nsys-rep", "run_1.sqlite")
    ]
    sidecar = machine.sidecar("a/b/run")
    assert (sidecar["world_size"], sidecar["trace"]) == (2, ["nvtx", "osrt"])
    assert (sidecar["nsys_version"], sidecar["capture_range"]) == ("2024.2.3.38", "nvtx")
    told = [(row["rank"], row["report"], row["status"]) for row in sidecar["ranks"]]
    assert told == [(0, "run_0", 0), (1, "run_1", 0)]
    assert f"nsyspipe analyze '{machine.work}/a/b/run_*.sqlite'" in answer.err


def test_the_advised_command_names_the_exports_whatever_the_name(machine):
    answer = ddp(machine, "-o", "gm[1]")
    assert answer.status == 0
    (line,) = [line for line in answer.err.splitlines() if line.startswith("next: ")]
    *command, pattern = shlex.split(line.removeprefix("next: "))
    assert command == ["nsyspipe", "analyze"]
    found = glob.glob(pattern)  # noqa: PTH207 - a pattern with directories, from the root
    assert sorted(found) == [f"{machine.work}/gm[1]_{rank}.sqlite" for rank in (0, 1)]


def test_without_export_only_reports_are_left(machine):
    answer = ddp(machine, "--no-export")
    assert answer.status == 0
    assert machine.files() == ["ddp-2gpu.capture.json", "ddp-2gpu_0.nsys-rep", "ddp-2gpu_1.nsys-rep"]
    assert "ddp-2gpu_*.nsys-rep" in answer.err


def test_only_chosen_ranks_are_captured_and_all_run(machine):
    machine.put_nsys("echo captured $RANK; " + 'touch "captured_$RANK"; "$@"; : > "$out.nsys-rep"')
    answer = ddp(machine, "--ranks", "0-1,3", "--no-export", n=4, text="print('ran')")
    assert answer.status == 0, answer.err
    assert answer.out == "ran\n" * 4
    assert [name for name in machine.files() if name.startswith("captured")] == [
        *("captured_0", "captured_1", "captured_3")
    ]
    rows = {row["rank"]: row["report"] for row in machine.sidecar("ddp-4gpu")["ranks"]}
    assert rows == {0: "ddp-4gpu_0", 1: "ddp-4gpu_1", 2: None, 3: "ddp-4gpu_3"}


def test_the_status_of_the_program_is_passed_on(machine):
    machine.put_program("raise SystemExit(7)")
    answer = machine.run("baseline.sh", "--cpu", "--program", "train.py")
    assert answer.status == 7
    *_, error, found, fix, rest = answer.err.splitlines()
    assert error == "error: train.py: rank 0 ended with status 7; its own message stands above"
    assert found == "  found: reports of 1 of 1 ranks: baseline_0.nsys-rep"
    assert fix == "  fix: mend the program, then capture again with --force"
    assert rest == "what was captured: nsyspipe analyze baseline_0.sqlite"
    assert "baseline_0.sqlite" in machine.files()


def test_of_several_ranks_the_one_that_failed_first_is_named(machine):
    answer = ddp(machine, text=CRASHING)
    assert answer.status == 41
    assert "train.py: rank 1 ended with status 41; its own message stands above" in answer.err
    assert "found: reports of 2 of 2 ranks" in answer.err
    assert "rank 0" not in answer.err


def test_a_partial_set_of_reports_names_the_ranks_that_lack_one(machine):
    machine.put_nsys('"$@"; [ $RANK = 1 ] || cp "$reports/$RANK.sqlite" "$out.nsys-rep"')
    answer = ddp(machine, n=3)
    assert answer.status == 3
    assert "the set of reports is partial" in answer.err
    assert "found: reports of 2 of 3 ranks" in answer.err
    assert "rank 1: nothing was captured" in answer.err
    assert "ddp-3gpu_2.sqlite" in machine.files()


def test_an_export_that_fails_keeps_the_reports_and_says_so(machine):
    machine.put_nsys(export="echo Error: broken >&2; exit 5")
    answer = ddp(machine)
    assert answer.status == 3
    assert "nsys export fails with status 5" in answer.err
    assert machine.files() == ["ddp-2gpu.capture.json", "ddp-2gpu_0.nsys-rep", "ddp-2gpu_1.nsys-rep"]
    assert "ddp-2gpu_*.nsys-rep" in answer.err
    assert "ddp-2gpu_*.sqlite" not in answer.err


def test_a_torchrun_that_fails_before_the_ranks_is_said_to(machine):
    (machine.root / "bin" / "torchrun.broken").touch()
    answer = ddp(machine)
    assert answer.status == 1
    assert "fake torchrun: cannot connect" in answer.err
    assert "the job's command ended with status 1; its own message stands above" in answer.err


@pytest.mark.skipif(find_nsys(search_path="/nowhere") is not None, reason="an nsys is in a usual place")
def test_without_nsys_one_message_says_what_to_do(machine):
    (machine.root / "bin" / "nsys").unlink()
    answer = ddp(machine)
    assert answer.status == 2
    assert answer.err.splitlines()[0].startswith("error: nsys: is not on PATH")
    assert "fix: install Nsight Systems" in answer.err
    assert machine.files() == []


def test_without_nsys_a_job_runs_unprofiled(machine):
    (machine.root / "bin" / "nsys").unlink()
    answer = ddp(machine, "--no-profile", text="print('ran')")
    assert (answer.status, answer.out) == (0, "ran\nran\n")
    assert machine.files() == []


def test_stale_ranks_of_a_job_around_do_not_make_the_baseline_one(machine):
    machine.variables |= {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "3"}
    machine.put_program("import os; print(os.environ.get('RANK'))")
    answer = machine.run("baseline.sh", "--cpu", "--program", "train.py")
    assert (answer.status, answer.out) == (0, "None\n")
    assert machine.sidecar("baseline")["ranks"][0]["rank"] == 0
