"""Captured jobs with a fake nsys and torchrun: what is said, what stays, which status; and jobs that are ended early.

Each job has its golden text in golden/frozen/launchers/jobs.
"""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field

import pytest

from nsyspipe.capture.plan import LINGER_S
from nsyspipe.nsys.find_reports import find_named
from tests.build.fake_nsys import COPY
from tests.build.programs import program, within
from tests.cli.test_forges import EXAMPLE, FORGES, capture_command
from tests.launchers.fakes import CAPTURE, LAUNCHERS, ended, wait_for
from tests.launchers.jobs import CRASHING, EARLY, HANGS, LOOP_OVER, STUBBORN, WAITING, ddp, starting

# Leaves its report where it works, since a file of that name is there.
BLOCKED = (
    'mkdir "$TMPDIR/nvidia"; "$@"; echo "$RANK captured" > "$TMPDIR/nvidia/report1.nsys-rep"; '
    '[ -e "$out.nsys-rep" ] && echo "Failed to create $out: File exists" || '
    'mv "$TMPDIR/nvidia/report1.nsys-rep" "$out.nsys-rep"'
)
ONCE = f"[ ! -e again ] || {{ echo 'unrecognised option'; exit 1; }}; touch again; {CAPTURE}"
MISSED = "echo 'Connection to Agent lost: End of file'; exit 1"
GROWS = (
    '"$@" & for i in 1 2 3 4 5 6 7 8; do echo part >> "$out.nsys-rep"; sleep 0.5; done; '
    'cp "$reports/$RANK.sqlite" "$out.nsys-rep"; touch made; wait $!'
)
TAKING = "import pathlib; pathlib.Path('{}').write_text('other')"
NODE = "node.sh --nnodes 2 --rdzv-endpoint h:1 -o run"
DEALT = f"{NODE} --node-rank 0 --rdzv-backend c10d"
ODD = ["a b", "", "it's", 'say "x"', "$HOME", "*", "--", "-x"]
RAN = "print('ran')"


@dataclass(frozen=True)
class Job:
    """Command lines, one after the other, and the machine that they run on; `before` are files that were there."""

    runs: str | list[str]
    text: str = "pass"
    nsys: str = CAPTURE
    export: str = COPY
    before: str = ""
    variables: dict[str, str] = field(default_factory=dict)
    is_hasty: bool = False  # what ends others waits a second for them
    asks_plan: bool = False
    marks: tuple[pytest.MarkDecorator, ...] = (
        pytest.mark.slow,
    )  # starts a launcher, torchrun, a program per rank


JOBS = {
    "well": Job("ddp.sh -n 2 -o a/b/run", asks_plan=True),
    "odd_name": Job("ddp.sh -n 2 -o 'gm[1]'"),
    "no_export": Job("ddp.sh --no-export"),
    "chosen_ranks": Job(
        "ddp.sh -n 4 --ranks 0-1,3 --no-export", RAN, 'touch "by_$RANK"; "$@"; : > "$out.nsys-rep"'
    ),
    "words": Job(
        f"ddp.sh -- {shlex.join(ODD)}", "import sys; print(ascii(sys.argv[1:]))", marks=()
    ),
    "status": Job("baseline.sh", "raise SystemExit(7)"),
    "failed_first": Job("ddp.sh -n 2", CRASHING),
    "partial": Job(
        "ddp.sh -n 3", nsys='"$@"; [ $RANK = 1 ] || cp "$reports/$RANK.sqlite" "$out.nsys-rep"'
    ),
    "export_fails": Job("ddp.sh -n 2", export="echo Error: broken >&2; exit 5"),
    "torchrun_fails": Job("ddp.sh", before="torchrun.broken"),
    "stale_ranks": Job(
        "baseline.sh",
        "import os; print(os.environ.get('RANK'))",
        variables={"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "3"},
    ),
    "time_limit": Job("ddp.sh --timeout 4", WAITING),
    "loop_over": Job("ddp.sh --linger 1", LOOP_OVER),
    "linger": Job("ddp.sh -n 2 --linger 1", WAITING, EARLY),
    "linger_stubborn": Job("ddp.sh --linger 1", STUBBORN, EARLY, is_hasty=True),
    "linger_one_report": Job(
        "ddp.sh -n 2 --linger 1 --timeout 5",
        WAITING,
        '"$@" & [ $RANK = 1 ] || cp "$reports/0.sqlite" '
        '"$out.nsys-rep"; wait $!; cp "$reports/$RANK.sqlite" "$out.nsys-rep"',
    ),
    "linger_growing": Job("ddp.sh --linger 1", WAITING, GROWS),
    "linger_chosen": Job("ddp.sh -n 2 --linger 1 --ranks 1", WAITING, EARLY),
    "linger_node": Job(f"{NODE} -n 2 --linger 1 --node-rank 1 --node-wide", WAITING, EARLY),
    "nsys_hangs": Job(
        "ddp.sh -n 2 --exit-timeout 1",
        nsys='"$@"; [ $RANK = 0 ] && cp "$reports/0.sqlite" "$out.nsys-rep" || sleep 60',
    ),
    "nsys_ignores_its_end": Job("ddp.sh --exit-timeout 1", nsys=HANGS, is_hasty=True),
    "agent_left": Job("ddp.sh", nsys="setsid sleep 55 & echo 'unrecognised option'; exit 1"),
    # An nsys that has missed its agent is started once more.
    "agent_missed": Job("ddp.sh", RAN, f"[ -e again ] || {{ touch again; {MISSED}; }}; {CAPTURE}"),
    "agent_missed_twice": Job("ddp.sh", RAN, MISSED),
    "earlier": Job(["ddp.sh -n 2", "ddp.sh -n 2", "ddp.sh -n 2 --force"]),
    "earlier_put_back": Job(["ddp.sh", "ddp.sh --force"], nsys=ONCE),
    "earlier_forced": Job(
        "ddp.sh -o run --force --no-export",
        marks=(),
        before=(
            "run_0.nsys-rep run_7.sqlite run_7.qdstrm run_node0.nsys-rep run.topo.txt "
            "run.nccl.host.77.log "
            "run.node1.capture.json run-view_0.nsys-rep run_0_0.sqlite run_0.capture.json "
            "run_x.sqlite run.txt run.nccl.txt "
            "run_0.nsys-rep.bak rerun_0.sqlite run"
        ),
    ),
    "earlier_logs": Job("ddp.sh -o run", before="run.nccl.host.7.log", marks=()),
    "earlier_of_more_nodes": Job(
        f"{NODE} --node-rank 0 --force --no-export",
        marks=(),
        before=(
            "run_7.sqlite run_node3.nsys-rep run.node3.capture.json run_1.nsys-rep "
            "run.node1.capture.json"
        ),
    ),
    "two_nodes": Job([f"{NODE} -n 2 --node-rank {node}" for node in ("0", "1", "1", "1 --force")]),
    # A rendezvous that deals out the ranks: nobody knows before which files a node will write.
    "dealt_ranks": Job([DEALT, f"{DEALT} --force"], before="run_0.nsys-rep", marks=()),
    "place_taken": Job(
        "ddp.sh -n 2 -o run",
        "import os; os.environ['RANK'] == '0' and exec(\"" + TAKING.format("run_0.nsys-rep") + '")',
        BLOCKED,
    ),
    "place_of_node_taken": Job(
        "node.sh --nnodes 1 --rdzv-endpoint h:1 -o run --node-rank 0 --node-wide",
        TAKING.format("run_node0.nsys-rep"),
        BLOCKED,
        marks=(),
    ),
}


@pytest.fixture(autouse=True)
def _a_plan(machine):
    """What this machine has is known: asking for it is tested in `test_words`."""
    machine.put_plan()


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=job.marks) for name, job in JOBS.items()]
)
def test_a_job_says_and_leaves_what_its_golden_text_has(machine, pinned, name):
    job = JOBS[name]
    machine.put_nsys(job.nsys, export=job.export)
    machine.put_program(job.text)
    machine.variables |= job.variables
    if job.asks_plan:
        machine.put_python()
    if job.is_hasty:
        machine.put_patience("nsyspipe.capture.supervision", GRACE_S=1, PROGRAM_GRACE_S=1)
    for file in job.before.split():
        (machine.work / file).write_text("old")
    told = ""
    for words in [job.runs] if isinstance(job.runs, str) else job.runs:
        before = machine.marks()
        launcher, *rest = shlex.split(words)
        answer = machine.run(launcher, "--cpu", "--program", "train.py", *rest, timeout=60)
        assert "Traceback" not in answer.err, words
        told += f"$ {words}\n{machine.told(answer, before)}"
    pinned(f"launchers/jobs/{name}.txt", told)


@pytest.mark.slow
def test_an_unprofiled_job_does_not_wait_for_background_processes(machine):
    text = """
import subprocess
print(subprocess.Popen(["sleep", "20"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).pid)
"""
    answer = ddp(machine, "--no-profile", n=1, text=text, timeout=15)  # less than that takes
    os.kill(int(answer.out), signal.SIGKILL)
    assert answer.status == 0


@pytest.mark.slow
def test_a_program_trains_on_after_its_capture_unless_told_to_end(machine):
    machine.put_nsys(EARLY)
    assert LINGER_S == 120  # its own default is shortened, so that it would be seen
    machine.put_patience("nsyspipe.capture.plan", LINGER_S=0.5)
    answer = ddp(machine, text=WAITING.replace("60", "4") + "print('trained on')")
    assert (answer.status, answer.out) == (0, "trained on\n" * 2), answer.err
    assert machine.sidecar("ddp-2gpu")["ended_by"] is None
    answer = ddp(
        machine, "--force", text=LOOP_OVER
    )  # what says that it is over is ended all the same
    assert answer.status == 124
    assert machine.sidecar("ddp-2gpu")["ended_by"] == "exit"


@pytest.mark.slow
@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGQUIT]
)  # TERM and HUP: tests/capture/test_capture_job.py
def test_an_interrupted_job_ends_keeps_its_reports_and_leaves_nothing_running(machine, number):
    process = starting(machine)
    os.kill(process.pid, number)
    answer = ended(process)
    assert answer.status == 128 + number
    by = "" if number == signal.SIGINT else f" by {signal.Signals(number).name}"
    assert f"error: interrupted{by}\n  found: reports of 2 of 2 ranks" in answer.err
    assert answer.err.splitlines()[-1].startswith("what was captured: nsyspipe analyze ")
    assert "Traceback" not in answer.err
    assert "ddp-2gpu_1.sqlite" in machine.files()


@pytest.mark.slow
def test_a_second_interrupt_does_not_wait(machine):
    machine.put_nsys(HANGS)
    process = starting(machine, text=STUBBORN)
    os.kill(process.pid, signal.SIGINT)
    time.sleep(0.5)
    os.kill(process.pid, signal.SIGINT)
    answer = ended(process, timeout=15)  # less than that takes
    assert answer.status == 130
    assert "Traceback" not in answer.err


@pytest.mark.slow
def test_an_interrupted_export_leaves_nothing_half_written(machine):
    machine.put_nsys(export=f'touch {machine.root}/exporting; echo half > "$out"; sleep 60')
    machine.put_program("pass")
    process = machine.start("ddp.sh", "--cpu", "--program", "train.py")
    wait_for(machine.root / "exporting")
    os.kill(process.pid, signal.SIGTERM)
    answer = ended(process)
    assert answer.status == 143
    assert "error: interrupted by SIGTERM" in answer.err
    assert "nsyspipe convert" in answer.err
    assert "Traceback" not in answer.err
    assert machine.files() == ["ddp-1gpu.capture.json", "ddp-1gpu_0.nsys-rep"]


@pytest.mark.slow
def test_nohup_is_respected(machine):
    nohup = {"preexec_fn": lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)}
    process = starting(machine, text=WAITING.replace("60", "1"), n=1, **nohup)
    os.kill(process.pid, signal.SIGHUP)
    assert ended(process).status == 0


@pytest.mark.slow
def test_a_rank_whose_supervisor_was_killed_is_cleaned_up(machine):
    process = starting(machine, text=STUBBORN)
    supervisors = machine.pids("nsyspipe.capture.rank")
    assert len(supervisors) == 2
    for pid in supervisors:
        os.kill(pid, signal.SIGKILL)
    time.sleep(0.5)
    os.kill(process.pid, signal.SIGINT)
    os.kill(process.pid, signal.SIGINT)
    assert ended(process, timeout=40).status == 130


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["ddp.sh", "baseline.sh"])
def test_what_a_killed_launcher_ran_ends_with_it(machine, launcher):
    process = starting(machine, n=1, launcher=launcher)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=20)
    within(20, lambda: not machine.left_behind(), "all end")
    assert [
        name for name in machine.files() if name.endswith("_0.nsys-rep")
    ]  # its nsys has ended too, with a report
    for folder in machine.temporary.glob("nsyspipe-*"):
        shutil.rmtree(folder)


@pytest.mark.slow
def test_ranks_whose_torchrun_was_killed_end(machine):
    process = starting(machine)
    name = str(machine.root / "bin" / "torchrun")
    (torchrun,) = [
        pid for pid, command in machine._running().items() if command.split()[2:3] == [name]
    ]
    os.kill(torchrun, signal.SIGKILL)
    answer = ended(process, timeout=20)
    assert answer.status == 143
    assert "found: reports of 2 of 2 ranks" in answer.err


@pytest.mark.slow
def test_of_what_is_left_after_a_program_only_nsys_is_ended(machine):
    copy = shutil.copy("/bin/sleep", machine.root / "bin" / "nsys-copy")
    # The program may end within the time that a busy machine needs to start what nsys leaves.
    until_there = f"until readlink /proc/*/exe | grep -q {copy}; do sleep 0.02; done 2> /dev/null"
    machine.put_nsys(
        f'setsid {copy} 56 & {until_there}; "$@"; cp "$reports/0.sqlite" "$out.nsys-rep"'
    )
    text = """
import subprocess
print(subprocess.Popen(["sleep", "57"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True).pid)
"""
    answer = ddp(machine, n=1, text=text, timeout=25)
    assert answer.status == 0, answer.err
    left = machine.left_behind()
    os.kill(int(answer.out), signal.SIGKILL)
    assert list(left) == [int(answer.out)]


@pytest.mark.slow
def test_the_examples_for_forges_name_to_analyze_what_the_launcher_has_written(machine):
    # All forges capture with the same command, which runs once here.
    (command,) = {capture_command(forge) for forge in FORGES}
    machine.put_program("pass")
    program(machine.root / "nsyspipe/launchers", "ddp.sh", f'exec "{LAUNCHERS}/ddp.sh" --cpu "$@"')
    variables = {
        "HOME": str(machine.root),
        "STEP_TIME_CAPTURE": command.replace("-n 4", "-n 1"),
        "STEP_TIME_CAPTURES": "1",
    }
    subprocess.run(
        [sys.executable, EXAMPLE / "step_time.py", "capture"],
        cwd=machine.work,
        env=machine.environment | variables,
        check=True,
        capture_output=True,
    )
    found = find_named([machine.work / "reports/1"])
    assert [path.name for path in found] == ["run_0.sqlite"]
