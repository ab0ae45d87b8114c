"""What a capture writes down about itself: facts of the machine, of the ranks, and the file."""

import json
import os
import shutil
import stat
import subprocess
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import pytest

from nsyspipe.capture import sidecar
from nsyspipe.capture.outcome import cut_short_text
from nsyspipe.capture.rank import NOT_ENDED, NOT_MADE, NOT_STARTED, NOT_WRITTEN, NOTHING
from nsyspipe.capture.sidecar import (
    TOPOLOGY_SUFFIX,
    Place,
    Surroundings,
    gather_surroundings,
    write_sidecar,
)
from nsyspipe.capture.status import Program, read_programs
from nsyspipe.errors import OutputError
from nsyspipe.model.captured import CapturedRank
from nsyspipe.nsys.machine import Gpu
from nsyspipe.nsys.secrets import HashKey
from tests.build.programs import TOPOLOGY, printing, program, put

SECRET = "Zx81-plant3d"
UNKNOWN = Surroundings(None, (), None, None, None, None, None, "3.11.9", None, None)
KEY = HashKey(b"k" * 32)
QUERY = "--query-gpu=index,name,driver_version"
GIT = shutil.which("git")


@pytest.fixture
def around(tmp_path):
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    for name in ("sh", "cat", "echo", "tr", "sleep"):
        (bin_ / name).symlink_to(shutil.which(name))

    def look(directory=None, *, smi=None, git=False, total_s=5):
        if smi:
            program(bin_, "nvidia-smi", smi)
        if git:
            (bin_ / "git").symlink_to(GIT)
        return gather_surroundings(
            directory or tmp_path, root=tmp_path, search_path=str(bin_), total_s=total_s
        )

    return look


def test_gpus_driver_and_topology_come_from_nvidia_smi(around):
    rows = "0, NVIDIA H200, 580.159.04\n1, NVIDIA H200, 580.159.04"
    found = around(smi=printing(**{QUERY.replace("-", ""): rows, "topo": TOPOLOGY}))
    assert found.gpus == (Gpu(0, "NVIDIA H200"), Gpu(1, "NVIDIA H200"))
    assert found.driver_version == "580.159.04"
    assert "GPU1\tNV18" in found.topology


NO_GPU = (
    None,
    "exit 9",
    "echo 'No devices were found'",
    "echo '1, 2'",
    "echo ', , , '",
    "echo 'x, NVIDIA, 1, 2.3'",
)


@pytest.mark.parametrize("smi", [*NO_GPU, "head -c 9000 /dev/urandom", "sleep 30"])
def test_a_machine_without_gpus_is_no_error(around, smi):
    found = around(
        smi=smi, total_s=0.3 if smi == "sleep 30" else 5
    )  # one that hangs costs its limit only
    assert (found.gpus, found.driver_version, found.topology) == ((), None, None)
    assert found.host == os.uname().nodename


def commit_in(folder):
    settings = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    (folder / "train.py").write_text("pass\n")
    for words in (
        ("init", "-q"),
        ("add", "train.py"),
        (*settings, "commit", "-qm", "one"),
        ("rev-parse", "HEAD"),
    ):
        done = subprocess.run([GIT, "-C", folder, *words], check=True, capture_output=True)
    return done.stdout.decode().strip()


@pytest.mark.skipif(GIT is None, reason="no git on this machine")
def test_the_commit_is_that_of_the_program_and_a_changed_file_makes_it_dirty(around, tmp_path):
    folder = tmp_path / "code"
    folder.mkdir()
    for git, expected in ((False, (None, None)), (True, (commit_in(folder), False))):
        found = around(folder, git=git)
        assert (found.git_commit, found.git_is_dirty) == expected, git
    (folder / "ddp_0.sqlite").write_text("not tracked")
    assert gather_surroundings(folder, root=tmp_path).git_is_dirty is False
    (folder / "train.py").write_text("pass  # changed\n")
    assert gather_surroundings(folder, root=tmp_path).git_is_dirty is True
    found = gather_surroundings(tmp_path, root=tmp_path)  # no repository
    assert (found.git_commit, found.git_is_dirty) == (None, None)


def test_the_programs_directory_is_that_of_the_first_python_file(tmp_path):
    (tmp_path / "train.py").write_text("")
    assert (
        sidecar.program_directory(["torchrun", "missing.py", f"{tmp_path}/train.py", "\0.py"])
        == tmp_path
    )
    assert sidecar.program_directory(["torchrun", "-m", "train"]) is None


def status(folder, **by_rank):
    for rank, content in by_rank.items():
        text = content if isinstance(content, str) else json.dumps(content)
        put(folder, f"status/ranges_{rank.removeprefix('r')}.json", text)
    return read_programs(folder / "status")


def document(name, node_rank=0, n_nodes=1, **more):
    place = Place(str(name), node_rank, n_nodes)
    given = {"command": ["python", "train.py"], "environment": {}, "surroundings": UNKNOWN} | more
    return sidecar.sidecar_document(place, **given)


def test_a_rank_is_what_the_launcher_and_its_program_say(tmp_path):
    programs = status(
        tmp_path,
        r0={"rank": 0, "pid": 51, "gpu_name": "NVIDIA H200"},
        r1={"rank": 1, "local_rank": 1, "pid": 61},
        r2={"pid": True, "local_rank": "0", "gpu_name": 7},
        r3='{"rank": 2, "pid"',  # killed while it was written
        x={"rank": 9},
    )
    first = CapturedRank(0, pid=50, report="/runs/ddp_0", status=0)
    ranks = [first, CapturedRank(1, report="ddp_1", problem="no report")]
    found = document(tmp_path / "ddp", programs=programs, ranks=ranks)
    nothing = asdict(CapturedRank(0))
    assert found["ranks"] == [
        nothing | {"pid": 51, "status": 0, "report": "ddp_0", "gpu_name": "NVIDIA H200"},
        nothing
        | {
            "rank": 1,
            "pid": 61,
            "local_rank": 1,
            "report": "ddp_1",
            "problem": "its capture failed",
        },
        nothing | {"rank": 2},
    ]


def test_versions_that_the_program_saw_go_before_what_is_installed(tmp_path):
    said = {"torch_version": "2.9.0", "nccl_version": None, "step_pattern": "^step [0-9]+$"}
    # What the program names its phases and steps besides stays in the report.
    first, second = (
        said | {"phase_names": ["data", SECRET, "forward"]},
        said | {"phase_names": ["forward", "eval"]},
    )
    installed = Surroundings(
        "node1", (), "580.1", None, "2.8.0", "13.0", "2.27.3", "3.11.9", None, None
    )
    found = document(
        tmp_path / "ddp", programs=status(tmp_path, r0=first, r1=second), surroundings=installed
    )
    names = ("torch_version", "cuda_version", "nccl_version", "driver_version", "host")
    assert [found[name] for name in names] == ["2.9.0", "13.0", "2.27.3", "580.1", "node1"]
    assert found["step_pattern"] == "^step [0-9]+$"
    assert found["phase_names"] == ["data", "forward", "eval"]
    programs = status(tmp_path, r1=said | {"step_pattern": "^batch [0-9]+$"})
    assert document(tmp_path / "ddp", programs=programs)["step_pattern"] is None
    own = said | {"step_pattern": f"^{SECRET} [0-9]+$"}
    assert (
        document(tmp_path / "ddp", programs=status(tmp_path, r0=own, r1=own))["step_pattern"]
        is None
    )


def test_without_status_files_there_is_what_the_caller_says(tmp_path):
    facts = {
        "ended_by": "linger",
        "world_size": 2,
        "trace": ["cuda", "nvtx"],
        "capture_range": "cudaProfilerApi",
        "nsys_version": "2025.3.1",
    }
    ranks = [CapturedRank(0, status=143, report="ddp_0", is_complete=True), CapturedRank(1)]
    moment, said = (
        datetime(2026, 11, 21, 12, 0, 0, 999, tzinfo=UTC),
        read_programs(tmp_path / "missing"),
    )
    found = document(
        tmp_path / "runs" / "ddp", programs=said, ranks=ranks, captured_at=moment, **facts
    )
    expected = facts | {
        "capture_version": 1,
        "name": "ddp",
        "captured_at_utc": "2026-11-21T12:00:00Z",
        "node_rank": 0,
        "n_nodes": 1,
        "topology_file": None,
        "nccl_log_files": [],
    }
    assert {name: found[name] for name in expected} == expected
    assert [row["is_complete"] for row in found["ranks"]] == [True, None]


@pytest.mark.parametrize(
    ("command", "written"),
    [
        # Of variables before the command an allow list is kept.
        (
            "env PYTHONPATH=/x NCCL_DEBUG_FILE=/x/a.log NCCL_DEBUG=INFO A=b torchrun train.py lr=1",
            "env NCCL_DEBUG=INFO torchrun train.py lr=1",
        ),
        ("env PYTHONPATH=/home/me train.py", "train.py"),
        ("env A=b", ""),
        ("train.py A=b B=1", f"train.py A={KEY.hide('A', 'b')} B=1"),
    ],
)
def test_of_a_command_private_variables_are_left_out(tmp_path, command, written):
    assert (
        document(tmp_path / "ddp", command=command.split(), key=KEY)["command"] == written.split()
    )


def cut_short_in_epochs_of(steps):
    return cut_short_text(
        Program(n_steps=3, n_captured_steps=2, warmup=1, steps_asked=3, epoch_steps=steps)
    )


LATE = NOT_ENDED.format(seconds=60)


@pytest.mark.parametrize(
    ("problem", "written"),
    [
        (f"nsys failed: unrecognised option in train.py --api-key {SECRET}", "its capture failed"),
        (f"{NOT_STARTED}: no option {SECRET}", NOT_STARTED),
        (f"{LATE}; {NOT_WRITTEN}: {SECRET}", f"{LATE}; {NOT_WRITTEN}"),
        (f"{NOT_MADE}, which is kept: {SECRET}", NOT_MADE),
        *[(sentence, sentence) for sentence in (NOTHING, *map(cut_short_in_epochs_of, (0, 2, 3)))],
        (
            cut_short_in_epochs_of(0).replace("3 steps", f"3 steps in {SECRET}"),
            "its capture failed",
        ),
    ],
)
def test_of_a_problem_only_our_own_sentences_are_in_it(tmp_path, problem, written):
    (row,) = document(tmp_path / "ddp", ranks=[CapturedRank(0, problem=problem)])["ranks"]
    assert row["problem"] == written


N1 = Surroundings("n1.cluster", (), None, None, None, None, None, "3", None, None)


@pytest.mark.parametrize(
    ("facts", "logs"),
    [
        (
            {"ranks": [CapturedRank(0, pid=51)]},
            "n.x.51 n1.51 n2.51",
        ),  # those of the ranks' processes
        (
            {},
            "n.x.51 n1.40 n1.51 n2.51",
        ),  # none of the ranks' processes: whoever logged, they are all there is
        ({"n_nodes": 2, "surroundings": N1}, "n1.40 n1.51"),  # each node lists its own
    ],
)
def test_logs_are_those_of_the_ranks_processes(tmp_path, facts, logs):
    for name in (
        "ddp.nccl.n1.51",
        "ddp.nccl.n1.40",
        "ddp.nccl.n2.51",
        "ddp-2.nccl.n1.51",
        "ddp.nccl.n.x.51",
    ):
        (tmp_path / f"{name}.log").write_text("")
    (tmp_path / "ddp.node0.nccl.n1.52.log").write_text("")
    (tmp_path / "ddp.nccl.n1.x.txt").write_text("")
    more = ["ddp.node0.nccl.n1.52.log"] if "ranks" not in facts else []
    found = document(tmp_path / "ddp", **facts)["nccl_log_files"]
    assert found == [*(f"ddp.nccl.{log}.log" for log in logs.split()), *more]


def test_the_topology_lies_beside_and_is_named(tmp_path):
    assert document(tmp_path / "ddp")["topology_file"] is None
    write_sidecar(Place(str(tmp_path / "ddp")).file(TOPOLOGY_SUFFIX), TOPOLOGY)
    assert (tmp_path / "ddp.topo.txt").read_text() == TOPOLOGY
    assert document(tmp_path / "ddp")["topology_file"] == "ddp.topo.txt"
    assert Place("ddp", 1, 2).file(TOPOLOGY_SUFFIX) == Path("ddp.node1.topo.txt")


def test_a_sidecar_is_replaced_whole_or_the_failure_is_reported(
    tmp_path,
):
    assert Place("ddp", 1, 2).file() == Path("ddp.node1.capture.json")
    path = Place(str(tmp_path / "new" / "ddp-2.5")).file()
    assert path == tmp_path / "new" / "ddp-2.5.capture.json"
    write_sidecar(path, {"name": "first"})
    write_sidecar(path, {"name": "sécond"})
    assert json.loads(path.read_bytes()) == {"name": "sécond"}
    assert list(path.parent.iterdir()) == [path]
    plain = tmp_path / "plain"
    plain.write_text("")
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)
    (tmp_path / "ddp.capture.json").mkdir()
    for place in ("plain/ddp.capture.json", "ddp.capture.json"):
        with pytest.raises(OutputError, match="cannot be written"):
            write_sidecar(tmp_path / place, {})
    assert sorted(one.name for one in tmp_path.iterdir()) == ["ddp.capture.json", "new", "plain"]
