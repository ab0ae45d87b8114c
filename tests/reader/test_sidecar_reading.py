"""Sidecars beside reports, and what nvidia-smi topo -m prints: what is taken from them, and what is refused."""

import json
import os
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from nsyspipe.capture.sidecar import Place, Surroundings, sidecar_document, write_sidecar
from nsyspipe.capture.status import read_programs
from nsyspipe.errors import InputError, NsyspipeError
from nsyspipe.model.captured import CapturedRank, MemoryPeaks, RunCapture, WorkPerStep
from nsyspipe.model.side_files import Topology
from nsyspipe.nsys.machine import Gpu
from nsyspipe.nsys.secrets import HashKey
from nsyspipe.reader.fabric import read_topology
from nsyspipe.reader.sidecar import family_of_pattern, parse_sidecar, read_beside, read_sidecars
from tests.build.programs import TOPOLOGY
from tests.conftest import REAL, examples

LOG = (REAL / "logs" / "ddp-2gpu.nccl.log").read_text()


def put(folder, content, name="ddp.capture.json"):
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def found(folder, *names):
    return read_sidecars([folder / name for name in names or ("ddp_0.sqlite", "ddp_1.sqlite")])


RANKS = {"ranks": [{"rank": 0, "report": "ddp_0"}, {"rank": 1, "report": "ddp_1"}]}


def test_a_sidecar_is_found_by_its_name_and_the_reports_that_it_names(tmp_path):
    path = put(tmp_path, RANKS)
    result = found(tmp_path, "ddp_1.sqlite", "ddp_0.sqlite")
    (one,) = result.found
    assert (result.paths, result.problems) == ((path,), ())
    assert one.by_argument == {
        0: (CapturedRank(rank=1, report="ddp_1"),),
        1: (CapturedRank(rank=0, report="ddp_0"),),
    }


@pytest.mark.parametrize("name", ["ddp.node0.capture.json", "ddp.node12.capture.json"])
def test_each_node_may_have_its_own_and_one_of_another_name_is_not_even_read(tmp_path, name):
    put(tmp_path, {"ranks": [{"rank": 0, "report": "ddp_node0"}]}, name)
    for other in (
        "ddp-2gpu.capture.json",
        "dd.capture.json",
        "ddp_0.json",
        "capture.json",
        "x.capture.json",
    ):
        put(tmp_path, "no JSON", other)
    result = found(tmp_path, "ddp_node0.sqlite")
    assert (len(result.found), result.problems) == (1, ())


def test_a_sidecar_of_other_reports_is_ignored(
    tmp_path,
):
    put(tmp_path, {"ranks": [{"rank": 0, "report": "ddp_7"}, {"rank": 1}]})
    assert (
        found(tmp_path).found
        == found(tmp_path / "missing").found
        == found(tmp_path, "a\0b/x_0.sqlite").found
        == ()
    )
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        put(tmp_path / name, RANKS)
    assert [
        sorted(one.by_argument) for one in found(tmp_path, "a/ddp_0.sqlite", "b/ddp_0.sqlite").found
    ] == [[0], [1]]


def test_a_sidecar_may_be_a_link_as_a_report_may_be_one(tmp_path):
    capture, linked = tmp_path / "capture", tmp_path / "linked"
    capture.mkdir()
    linked.mkdir()
    put(capture, RANKS | {"nccl_log_files": ["ddp.nccl.log"]})
    (capture / "ddp.nccl.log").write_text(LOG)
    (linked / "ddp.capture.json").symlink_to(capture / "ddp.capture.json")
    result = found(linked)
    (one,) = result.found
    assert (sorted(one.by_argument), result.problems) == ([0, 1], ())
    # What the sidecar names is looked for in the directory of the link.
    log, _, problems = read_beside([one.sidecar], wants_log=True, wants_topology=False)
    assert (log, [one.code for one in problems]) == (None, ["sidecar-file-unusable"])


def secret(folder):
    path = folder / "secret.json"
    path.write_text(json.dumps({"auths": {"registry": {"auth": "hunter2"}}, "name": "hunter2 x"}))
    return path


def large(folder):
    path = folder / "large.json"
    path.write_text(json.dumps(RANKS) + " " * 2**20)
    return path


def pipe(folder):
    os.mkfifo(folder / "pipe")
    return folder / "pipe"


@pytest.mark.parametrize(
    "target",
    [secret, large, pipe, lambda folder: folder, lambda _: Path("/dev/zero")],
    ids=["secret", "large", "pipe", "directory", "device"],
)
def test_of_the_target_of_a_link_nothing_is_taken_but_a_sidecar(tmp_path, target):
    runs = tmp_path / "runs"
    runs.mkdir()
    (runs / "ddp.capture.json").symlink_to(target(tmp_path))
    result = found(runs)
    assert result.found == ()
    assert "hunter2" not in repr(result)


@pytest.mark.parametrize("kind", ["directory", "pipe", "dangling", "large"])
def test_what_is_no_ordinary_small_file_is_refused(tmp_path, kind, worded):
    path = tmp_path / "ddp.capture.json"
    make = {
        "directory": path.mkdir,
        "pipe": lambda: os.mkfifo(path),
        "dangling": lambda: path.symlink_to(tmp_path / "missing"),
        "large": lambda: path.write_text(json.dumps(RANKS) + " " * 2**20),
    }
    make[kind]()
    (problem,) = found(tmp_path).problems
    assert problem.code == "unusable-sidecar"
    worded(problem.message)


# What the programs of two ranks tell of their work and memory. No step has negative FLOPs.
OF_WORK = (
    {"tokens_per_step": 8192, "flops_per_step": 2**59, "peak_reserved_bytes": 34 << 30},
    {"tokens_per_step": True, "flops_per_step": -1, "allocator_retries": 0},
)


def test_what_a_capture_writes_is_what_is_read(tmp_path):
    """The whole way: writer, file, reader."""
    versions = {
        "torch_version": "2.9.0",
        "cuda_version": "13.0",
        "nccl_version": "2.27.3",
        "python_version": "3.11.9",
    }
    same = versions | {"driver_version": "580.159.04", "git_commit": "a" * 40, "git_is_dirty": True}
    around = Surroundings(host="node1", gpus=(Gpu(0, "NVIDIA H200"),), topology=None, **same)
    status = tmp_path / "status"
    status.mkdir()
    for rank in (0, 1):
        put(
            status,
            {"pid": 50 + rank, "local_rank": rank, "step_pattern": "^step [0-9]+$"} | OF_WORK[rank],
            f"ranges_{rank}.json",
        )
        (tmp_path / f"ddp.nccl.node1.{50 + rank}.log").write_text("")
    (tmp_path / "ddp.topo.txt").write_text(TOPOLOGY)
    place = Place(str(tmp_path / "ddp"))
    document = sidecar_document(
        place,
        ["torchrun", "train.py", "--token", "abc"],
        ranks=[
            CapturedRank(0, report="ddp_0", status=0, gpu_name="NVIDIA H200"),
            CapturedRank(1, report="ddp_1", status=-9, problem="nothing was captured"),
            CapturedRank(2, status=0),
        ],
        programs=read_programs(status),
        world_size=3,
        nsys_version="2025.3.1",
        trace=["cuda", "nvtx"],
        capture_range="cudaProfilerApi",
        captured_at=datetime(2026, 11, 21, 12, tzinfo=UTC),
        surroundings=around,
        environment={"NCCL_DEBUG": "INFO", "HOME": "/root"},
        key=HashKey(b"k" * 32, key_id="0123abcd"),
    )
    write_sidecar(place.file(), document)
    result = found(tmp_path)
    assert not result.problems
    (one,) = result.found
    command = ["torchrun", "train.py", "--token", HashKey(b"k" * 32).hide("token", "abc")]
    assert one.sidecar.facts == RunCapture(
        name="ddp",
        captured_at_utc="2026-11-21T12:00:00Z",
        command=command,
        hash_key="0123abcd",
        nsys_version="2025.3.1",
        trace=["cuda", "nvtx"],
        capture_range="cudaProfilerApi",
        environment={"NCCL_DEBUG": "INFO"},
        **same,
    )
    assert one.sidecar.ranks == (
        CapturedRank(
            *(0, 0, 50, "ddp_0", 0, None, "NVIDIA H200"),
            work_per_step=WorkPerStep(tokens=8192, flops=2**59),
            memory=MemoryPeaks(peak_reserved_bytes=34 << 30),
        ),
        CapturedRank(
            *(1, 1, 51, "ddp_1", -9, "nothing was captured", None),
            memory=MemoryPeaks(allocator_retries=0),
        ),
        CapturedRank(2, status=0),
    )
    # 20,778 days after 1970, and half of one
    assert one.sidecar.captured_at_utc_ns == (20_778 * 86_400 + 43_200) * 10**9
    assert (one.sidecar.host, one.sidecar.world_size) == ("node1", 3)
    assert (one.sidecar.step_pattern, one.sidecar.family) == ("^step [0-9]+$", "step #")
    assert one.sidecar.log_names == ("ddp.nccl.node1.50.log", "ddp.nccl.node1.51.log")
    assert one.sidecar.topology_name == "ddp.topo.txt"


def test_an_empty_sidecar_says_nothing_and_unknown_keys_are_ignored(tmp_path):
    nothing = parse_sidecar(b"{}", tmp_path)
    assert nothing.facts == RunCapture()
    more = {"capture_version": 1, "later": {"a": [1]}, "ranks": [], "git_commit": None}
    assert parse_sidecar(json.dumps(more).encode(), tmp_path) == nothing
    facts = parse_sidecar(json.dumps({"name": "\ud800x\x7f"}).encode(), tmp_path).facts
    assert facts.name == "\ufffdx\ufffd"


def test_secrets_and_other_variables_of_a_sidecar_by_hand_are_not_taken(tmp_path):
    """Those of an earlier version too: they hold all that was not known to be a secret."""
    content = {
        "command": ["train.py", "x", "--key=abc", "--lr", "1", "--token", "***", "hmac:0123abcd"],
        "environment": {"HOME": "/me", "NCCL_ALGO": "Ring", "NCCL_NET": "abc"},
    }
    facts = parse_sidecar(json.dumps(content).encode(), tmp_path).facts
    expected = ["train.py", "***", "--key=***", "--lr", "1", "--token", "***", "hmac:0123abcd"]
    assert (facts.command, facts.hash_key) == (expected, None)
    assert facts.environment == {"NCCL_ALGO": "Ring", "NCCL_NET": "***"}


NO_COUNTS: tuple[object, ...] = ("1", 1.5, True, -1, 2**62 + 1, [], {})
UNUSABLE = {
    **{
        f"no JSON, {case}": text
        for case, text in {
            "empty": "",
            "cut": '{"name": "ddp"',
            "no UTF-8": "\udc80",
            "deep": "[" * 100_000,
            "a long number": f'{{"world_size": {"9" * 10_000}}}',
        }.items()
    },
    "no object": "[]",
    "a later version": {"capture_version": 2},
    "version 0": {"capture_version": 0},
    "a name that is a number": {"name": 7},
    "a long name": {"name": "x" * 501},
    **{f"a world of {size!r}": {"world_size": size} for size in ("2", 2.0, True, 0, 2**40)},
    "a number for yes": {"git_is_dirty": 1},
    "an option for a commit": {"git_commit": "--help"},
    "a short hash key": {"hash_key": "0123"},
    **{
        f"captured {time}": {"captured_at_utc": time}
        for time in (
            "yesterday",
            "2026-11-21T12:00:00",
            "0001-01-01T00:00:00+23:00",
            "9999-12-31T23:59:59-23:00",
        )
    },
    "a command in one text": {"command": "torchrun"},
    "a number in a command": {"command": ["torchrun", 1]},
    "an environment in a list": {"environment": []},
    "a number in an environment": {"environment": {"NCCL_DEBUG": 1}},
    "ranks in an object": {"ranks": {}},
    "a number for a rank's entry": {"ranks": [0]},
    "an entry of no rank": {"ranks": [{"report": "ddp_0"}]},
    "rank -1": {"ranks": [{"rank": -1}]},
    "one rank twice": {"ranks": [{"rank": 1}, {"rank": 1}]},
    "one process of two ranks": {
        "ranks": [{"rank": at, "report": "ddp_0", "pid": 5} for at in (0, 1)]
    },
    "process 0": {"ranks": [{"rank": 0, "pid": 0}]},
    "many files": {"nccl_log_files": ["a"] * 5000},
    **{
        f"{name} of {value!r}": {"ranks": [{"rank": 0, part: {name: value}}]}
        for part, name in (
            ("work_per_step", "flops"),
            ("work_per_step", "tokens"),
            ("memory", "peak_reserved_bytes"),
        )
        for value in NO_COUNTS
    },
    "a step of no samples": {"ranks": [{"rank": 0, "work_per_step": {"samples": 0}}]},
    "work in a list": {"ranks": [{"rank": 0, "work_per_step": [1]}]},
    "memory in a text": {"ranks": [{"rank": 0, "memory": "34 GB"}]},
}


@pytest.mark.parametrize("content", UNUSABLE.values(), ids=UNUSABLE)
def test_one_wrong_field_makes_it_unusable_and_the_reason_is_said(tmp_path, content, worded):
    text = content if isinstance(content, str) else json.dumps(content)
    (tmp_path / "ddp.capture.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    result = found(tmp_path)
    assert result.found == ()
    (problem,) = result.problems
    assert (problem.code, problem.severity) == ("unusable-sidecar", "warning")
    worded(problem.message)


KEYS = st.sampled_from(
    [
        "capture_version",
        "name",
        "captured_at_utc",
        "command",
        "git_commit",
        "git_is_dirty",
        "host",
        "world_size",
        "ranks",
        "rank",
        "pid",
        "report",
        "status",
        "trace",
        "topology_file",
        "nccl_log_files",
        "work_per_step",
        "memory",
        "step_pattern",
        "environment",
        "NCCL_DEBUG",
    ]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just("ddp_0"),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS | st.text(), inner),
    max_leaves=20,
)


@pytest.mark.slow
@examples(60)
@given(st.dictionaries(KEYS, JSON).map(json.dumps).map(str.encode) | st.binary())
def test_no_content_crashes_the_reader(tmp_path, content):
    (tmp_path / "ddp.capture.json").write_bytes(content)
    result = found(tmp_path)
    assert len(result.found) + len(result.problems) <= 1
    log, topology, problems = read_beside(
        [one.sidecar for one in result.found], wants_log=True, wants_topology=True
    )
    assert (log, topology) == (None, None)
    assert all(one.message.isprintable() for one in (*problems, *result.problems))


FAMILIES = {
    "^step [0-9]+$": "step #",
    r"^step \d+$": "step #",
    r"^step\ [0-9]+$": "step #",
    "^[0-9]+$": "#",
    r"^Batch\-[0-9]+/[0-9]+$": "Batch-#/#",
    r"^it\.[0-9]+$": "it.#",
}
# Of more than one family, or of none at all.
NO_FAMILIES = (
    "step [0-9]+",
    "^step$",
    "^(step|batch) [0-9]+$",
    "^(a+)+[0-9]+$",
    "^step .*[0-9]+$",
    "^step 4 [0-9]+$",
    "^step [0-9]*$",
    r"^\w+ [0-9]+$",
    r"^step [0-9]+\$",
    "",
)


def test_a_sidecar_pattern_is_a_family_and_never_run(tmp_path):
    for pattern, family in (FAMILIES | dict.fromkeys(NO_FAMILIES)).items():
        assert family_of_pattern(pattern) == family, pattern
        assert (
            parse_sidecar(json.dumps({"step_pattern": pattern}).encode(), tmp_path).family == family
        ), pattern
    with pytest.raises(ValueError, match=r"\b500\b"):
        parse_sidecar(json.dumps({"step_pattern": "(" * 501}).encode(), tmp_path)


def beside(folder, **named):
    put(folder, RANKS | named)
    sidecars = [one.sidecar for one in found(folder).found]
    log, topology, problems = read_beside(sidecars, wants_log=True, wants_topology=True)
    assert {one.code for one in problems} <= {"sidecar-file-unusable", "files-beside-used"}
    unusable = [one.message for one in problems if one.code == "sidecar-file-unusable"]
    assert (len(unusable) < len(problems)) == (log is not None or topology is not None)
    return log, topology, unusable


def numbers_of(message):
    return [int(number) for number in re.findall(r"\d+", message)]


def files_of(message):
    return re.findall(r"[\w./]+\.(?:log|txt)\b", message)


def test_logs_and_topology_are_read_also_through_a_link_to_their_directory(tmp_path):
    half = LOG.index("\n", len(LOG) // 2) + 1
    runs = tmp_path / "runs"
    runs.mkdir()
    (tmp_path / "link").symlink_to(runs)
    for name, text in (("a.log", LOG[:half]), ("b.log", LOG[half:]), ("topo.txt", TOPOLOGY)):
        (runs / name).write_text(text)
    for folder in (runs, tmp_path / "link"):
        log, topology, problems = beside(
            folder, nccl_log_files=["a.log", "b.log"], topology_file="topo.txt"
        )
        assert (log.communicators != (), topology.link(0, 1), problems) == (True, "NV18", []), (
            folder
        )


def test_what_cannot_be_read_is_told_and_the_rest_is_used(tmp_path, worded):
    (tmp_path / "a.log").write_text(LOG)
    (tmp_path / "b.log").write_text("nothing of NCCL's\n")
    (tmp_path / "topo.txt").write_text("no matrix\n")
    os.mkfifo(tmp_path / "d.log")
    logs = ["b.log", "a.log", "c.log", "d.log"]
    log, topology, problems = beside(tmp_path, nccl_log_files=logs, topology_file="topo.txt")
    assert (log.communicators != (), topology) == (True, None)
    (message,) = problems
    # The fourth file is only counted.
    assert files_of(message) == ["c.log", "d.log", "b.log"]
    worded(message)


def test_any_number_of_missing_files_is_one_problem(tmp_path):
    names = [f"rank{number}.log" for number in range(4000)]
    _, _, (message,) = beside(tmp_path, nccl_log_files=names)
    assert numbers_of(message) == [4000, 0, 1, 2, 3997]


def test_any_number_of_unusable_sidecars_is_one_problem(tmp_path):
    for node in range(50):
        put(tmp_path, "no JSON", f"ddp.node{node:02}.capture.json")
    put(tmp_path, RANKS, "ddp.node77.capture.json")
    (tmp_path / "ddp.node99.capture.json").mkdir()
    result = found(tmp_path)
    assert len(result.found) == 1
    (problem,) = result.problems
    assert problem.code == "unusable-sidecar"
    # In all, three of one reason, the others of it, and one of another reason.
    assert numbers_of(problem.message) == [51, 0, 1, 2, 47, 99]


@pytest.mark.parametrize(
    "name",
    [
        "../secret.log",
        "{outside}/secret.log",
        "link.log",
        "folder/secret.log",
        "runs/../../secret.log",
        "",
    ],
)
def test_no_file_outside_of_its_directory_is_opened(tmp_path, name, worded):
    runs = tmp_path / "runs"
    runs.mkdir()
    (tmp_path / "secret.log").write_text(LOG)
    (runs / "link.log").symlink_to(tmp_path / "secret.log")
    (runs / "folder").symlink_to(tmp_path)
    log, topology, problems = beside(
        runs, nccl_log_files=[name.format(outside=tmp_path)], topology_file="../topo.txt"
    )
    assert (log, topology) == (None, None)
    (message,) = problems
    assert files_of(message)[-1] == "topo.txt"
    worded(message)


# Two GPUs and two NICs; nvidia-smi underlines its header.
WITH_NICS = (
    "\t\x1b[4mGPU0\tGPU1\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    "GPU0\t X \tNV12\tPXB\tSYS\t0-63,128-191\t0\t\tN/A\n"
    "GPU1\tNV12\t X \tSYS\tPIX\t64-127,192-255\t1\t\tN/A\n"
    "NIC0\tPXB\tSYS\t X \tSYS\t\t\t\t\n"
    "NIC1\tSYS\tPIX\tSYS\t X \t\t\t\t\n"
    "\nLegend:\n\n  X    = Self\n  SYS  = Connection traversing PCIe as well as the SMP "
    "interconnect\n"
    "  NV#  = Connection traversing a bonded set of # NVLinks\n"
    "\nNIC Legend:\n\n  NIC0: mlx5_0\n  NIC1: mlx5_bond_0\n"
)
PATHS = {
    ("GPU0", "GPU1"): "NV12",
    ("GPU0", "NIC0"): "PXB",
    ("GPU1", "NIC1"): "PIX",
    ("GPU0", "NIC1"): "SYS",
    ("GPU1", "NIC0"): "SYS",
    ("NIC0", "NIC1"): "SYS",
}
TWO_NICS = Topology(
    gpus=(0, 1), paths=PATHS | {(other, one): path for (one, other), path in PATHS.items()}
)


def read(folder, text):
    path = folder / "topo.txt"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_topology(path)


def test_gpus_and_nics_are_read_from_any_topology_layout(
    tmp_path,
):
    assert read(tmp_path, WITH_NICS) == TWO_NICS
    assert (TWO_NICS.link(0, 1), TWO_NICS.link(1, 0)) == ("NV12", "NV12")
    assert (TWO_NICS.link(0, 0), TWO_NICS.link(0, 5)) == (None, None)
    text = "Fri Nov 20\n| GPU  Name |\n\n" + WITH_NICS + "\ndone GPU0 GPU1\n"
    assert (
        read(tmp_path, text.replace("\n", "\r\n"))
        == TWO_NICS
        == read(tmp_path, WITH_NICS.expandtabs(9))
    )


@pytest.mark.parametrize(
    ("text", "gpus", "paths"),
    [
        # Older drivers name NICs themselves, and SYS SOC.
        (
            (
                " GPU0 GPU1 mlx5_0 CPU Affinity\nGPU0 X SOC PHB 0-7\nGPU1 SOC X NODE 8-15\nmlx5_0 "
                "PHB NODE X \n"
            ),
            (0, 1),
            {"GPU0 GPU1": "SYS", "GPU0 mlx5_0": "PHB", "mlx5_0 GPU1": "NODE"},
        ),
        # Indices need not be dense, and one GPU has no paths.
        (
            "\tGPU2\tGPU5\tCPU Affinity\nGPU2\t X \tNV4\t0-7\nGPU5\tNV4\t X \t0-7\n",
            (2, 5),
            {"GPU2 GPU5": "NV4"},
        ),
        ("\tGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \t0-31\t0\t\tN/A\n", (0,), {}),
        # Cut inside the row of GPU1: the row of GPU0 says both directions.
        (
            WITH_NICS[: WITH_NICS.index("GPU1\tNV12") + 7],
            (0, 1),
            {"GPU1 GPU0": "NV12", "GPU0 NIC1": "SYS", "GPU1 NIC1": None},
        ),
        # Unknown words are no paths. The row of GPU1 ends at what is no cell, so that of GPU2
        # tells.
        (
            "\tGPU0\tGPU1\tGPU2\nGPU0\t X \tPIX\tN/A\nGPU1\tPIX\t X \tERR\nGPU2\tN/A\tPHB\t X \n",
            (0, 1, 2),
            {"GPU0 GPU1": "PIX", "GPU0 GPU2": None, "GPU2 GPU1": "PHB", "GPU1 GPU2": "PHB"},
        ),
    ],
)
def test_other_matrices_say_what_they_can(tmp_path, text, gpus, paths):
    found = read(tmp_path, text)
    assert (found.gpus, {pair: found.paths.get(tuple(pair.split())) for pair in paths}) == (
        gpus,
        paths,
    )
    assert bool(found.paths) == bool(paths)


OTHERS = (
    "",
    "GPU0\n",
    "hello\n\x00\xff",
    "\tGPU0\tGPU1\tCPU Affinity\n",
    "GPU 0: NVIDIA H200 (UUID: GPU-0)\n",
    "\tGPU0\tGPU1\nGPU0\tX\tOK\nGPU1\tOK\tX\n",  # topo -p2p r: another matrix
)


def test_other_files_and_what_is_no_file_are_refused_with_a_way_out(tmp_path, worded):
    for case, text in enumerate(OTHERS):
        with pytest.raises(InputError) as refused:
            read(tmp_path, text)
        assert refused.value.subject == str(tmp_path / "topo.txt"), case
        worded(refused.value.lines(), f"file {case}")
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(NsyspipeError):
            read_topology(path)


@examples(100)
@given(st.data())
def test_any_change_of_the_text_is_read_or_refused(tmp_path_factory, data):
    raw = WITH_NICS.encode()
    start = data.draw(st.integers(0, len(raw)))
    end = data.draw(st.integers(start, len(raw)))
    path = tmp_path_factory.mktemp("topo") / "topo.txt"
    path.write_bytes(raw[:start] + data.draw(st.binary(max_size=30)) + raw[end:])
    try:
        paths = set(read_topology(path).paths.values())
    except InputError:
        paths = set()
    assert all(path in {"PIX", "PXB", "PHB", "NODE", "SYS"} or path[:2] == "NV" for path in paths)


@pytest.mark.parametrize("n_gpus", [2, 4])
def test_real_matrices(n_gpus):
    found = read_topology(REAL / "logs" / f"topo-{n_gpus}gpu.txt")
    assert found.gpus == tuple(range(n_gpus))
    pairs = [(a, b) for a in range(n_gpus) for b in range(n_gpus) if a != b]
    assert ({found.link(*pair) for pair in pairs}, len(found.paths)) == ({"NV18"}, len(pairs))
