"""Captured jobs with a fake nsys and torchrun: what is said, what is left and what stays, which status.

Each job has its golden text in golden/frozen/launchers/jobs.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field

import pytest

from tests.build.fake_nsys import COPY
from tests.launchers.fakes import CAPTURE
from tests.launchers.jobs import CRASHING, EARLY, HANGS, LOOP_OVER, STUBBORN, WAITING

# Leaves its report where it works, since a file of that name is there.
BLOCKED = (
    'mkdir "$TMPDIR/nvidia"; "$@"; echo "$RANK captured" > "$TMPDIR/nvidia/report1.nsys-rep"; '
    '[ -e "$out.nsys-rep" ] && echo "Failed to create $out: File exists" || '
    'mv "$TMPDIR/nvidia/report1.nsys-rep" "$out.nsys-rep"'
)
# The first rank fails first.
ONCE = f"[ ! -e again_$RANK ] || {{ sleep 0.$((5 * RANK)); echo 'unrecognised option'; exit 1; }}; touch again_$RANK; {CAPTURE}"
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
    marks: tuple[pytest.MarkDecorator, ...] = (pytest.mark.slow,)  # starts a launcher, torchrun, a program per rank


JOBS = {
    # --- that end by themselves
    "well": Job("ddp.sh -n 2 -o a/b/run"),
    "odd_name": Job("ddp.sh -n 2 -o 'gm[1]'"),
    "no_export": Job("ddp.sh -n 2 --no-export"),
    "chosen_ranks": Job("ddp.sh -n 4 --ranks 0-1,3 --no-export", RAN, 'touch "by_$RANK"; "$@"; : > "$out.nsys-rep"'),
    "words": Job(f"ddp.sh -- {shlex.join(ODD)}", "import sys; print(ascii(sys.argv[1:]))", marks=()),
    "status": Job("baseline.sh", "raise SystemExit(7)"),
    "failed_first": Job("ddp.sh -n 2", CRASHING),
    "partial": Job("ddp.sh -n 3", nsys='"$@"; [ $RANK = 1 ] || cp "$reports/$RANK.sqlite" "$out.nsys-rep"'),
    "export_fails": Job("ddp.sh -n 2", export="echo Error: broken >&2; exit 5"),
    "torchrun_fails": Job("ddp.sh -n 2", before="torchrun.broken"),
    "stale_ranks": Job("baseline.sh", "import os; print(os.environ.get('RANK'))",
                       variables={"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "3"}),
    # --- that are ended
    "time_limit": Job("ddp.sh -n 2 --timeout 4", WAITING),
    "loop_over": Job("ddp.sh -n 2 --linger 1", LOOP_OVER),
    "linger": Job("ddp.sh -n 2 --linger 1", WAITING, EARLY),
    "linger_stubborn": Job("ddp.sh -n 2 --linger 1", STUBBORN, EARLY, is_hasty=True),
    "linger_one_report": Job("ddp.sh -n 2 --linger 1 --timeout 5", WAITING, '"$@" & [ $RANK = 1 ] || cp "$reports/0.sqlite" '
                             '"$out.nsys-rep"; wait $!; cp "$reports/$RANK.sqlite" "$out.nsys-rep"'),
    "linger_growing": Job("ddp.sh --linger 1", WAITING, GROWS),
    "linger_chosen": Job("ddp.sh -n 2 --linger 1 --ranks 1", WAITING, EARLY),
    "linger_node": Job(f"{NODE} -n 2 --linger 1 --node-rank 1 --node-wide", WAITING, EARLY),
    "nsys_hangs": Job("ddp.sh -n 2 --exit-timeout 1", nsys='"$@"; [ $RANK = 0 ] && cp "$reports/0.sqlite" "$out.nsys-rep" '
                      '|| sleep 60'),
    "nsys_ignores_its_end": Job("ddp.sh --exit-timeout 1", nsys=HANGS, is_hasty=True),
    "agent_left": Job("ddp.sh", nsys="setsid sleep 55 & echo 'unrecognised option'; exit 1"),
    # An nsys that has missed its agent is started once more.
    "agent_missed": Job("ddp.sh", RAN, f"[ -e again ] || {{ touch again; {MISSED}; }}; {CAPTURE}"),
    "agent_missed_twice": Job("ddp.sh", RAN, MISSED),
    # --- with an earlier capture of the name
    "earlier": Job(["ddp.sh -n 2", "ddp.sh -n 2", "ddp.sh -n 2 --force"]),
    "earlier_put_back": Job(["ddp.sh -n 2", "ddp.sh -n 2 --force"], nsys=ONCE),
    "earlier_forced": Job("ddp.sh -o run --force --no-export", marks=(), before=(
        "run_0.nsys-rep run_7.sqlite run_7.qdstrm run_node0.nsys-rep run.topo.txt run.nccl.host.77.log "
        "run.node1.capture.json run-view_0.nsys-rep run_0_0.sqlite run_0.capture.json run_x.sqlite run.txt run.nccl.txt "
        "run_0.nsys-rep.bak rerun_0.sqlite run")),
    "earlier_logs": Job("ddp.sh -o run", before="run.nccl.host.7.log", marks=()),
    "earlier_of_more_nodes": Job(f"{NODE} --node-rank 0 --force --no-export", marks=(), before=(
        "run_7.sqlite run_node3.nsys-rep run.node3.capture.json run_1.nsys-rep run.node1.capture.json")),
    "two_nodes": Job([f"{NODE} -n 2 --node-rank {node}" for node in ("0", "1", "1", "1 --force")]),
    # A rendezvous that deals out the ranks: nobody knows before which files a node will write.
    "dealt_ranks": Job([DEALT, f"{DEALT} --force"], before="run_0.nsys-rep", marks=()),
    "place_taken": Job("ddp.sh -n 2 -o run", "import os; os.environ['RANK'] == '0' and exec(\"" + TAKING.format("run_0.nsys-rep")
                       + '")', BLOCKED),
    "place_of_node_taken": Job(f"{NODE} --nnodes 1 --node-rank 0 --node-wide", TAKING.format("run_node0.nsys-rep"), BLOCKED,
                               marks=()),
}  # fmt: skip


@pytest.mark.parametrize("name", [pytest.param(name, marks=job.marks) for name, job in JOBS.items()])
def test_a_job_says_and_leaves_what_its_golden_text_has(machine, pinned, name):
    job = JOBS[name]
    machine.put_nsys(job.nsys, export=job.export)
    machine.put_program(job.text)
    machine.variables |= job.variables
    if job.is_hasty:
        machine.put_patience("nsyspipe.capture.supervision", GRACE_S=1, PROGRAM_GRACE_S=1)
    for file in job.before.split():
        (machine.work / file).write_text("old")
    told = ""
    for words in [job.runs] if isinstance(job.runs, str) else job.runs:
        before = machine.marks()
        launcher, *rest = shlex.split(words)
        answer = machine.run(launcher, "--cpu", "--program", "train.py", *rest, timeout=60)
        assert "Traceback" not in answer.err
        told += f"$ {words}\n{machine.told(answer, before)}"
    pinned(f"launchers/jobs/{name}.txt", told)
