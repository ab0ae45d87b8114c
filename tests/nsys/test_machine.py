"""Probes of a machine: fake programs and a fake file system, no GPU and no nsys needed."""

import importlib
import shutil
import sys
import time

import pytest
from hypothesis import given, strategies as st
from rich.console import Console

from nsyspipe.nsys import programs
from nsyspipe.nsys.machine import ANALYZE, CAPTURE, STATUSES, Check, check_machine
from nsyspipe.nsys.programs import Output
from nsyspipe.report.as_text import as_text
from nsyspipe.report.doctor import machine_blocks
from tests.build.programs import (
    DRIVER_FILE,
    GPUS,
    HELP,
    STATUS,
    TOPOLOGY,
    VERSION,
    have_ended,
    printing,
    program,
    put,
)
from tests.conftest import examples

NAMES = [
    "nsyspipe",
    "disk_space",
    "nsys",
    "importer",
    "trace_values",
    "cpu_sampling",
    "cuda_driver",
    "topology",
    "torch",
    "nccl",
    "nvtx",
]


@pytest.fixture
def place(tmp_path):
    root, bin_ = tmp_path / "root", tmp_path / "bin"
    root.mkdir()
    bin_.mkdir()
    return root, bin_


@pytest.fixture
def checks(place, monkeypatch):
    root, bin_ = place

    def run(ask=programs.ask, **options):
        monkeypatch.setattr(programs, "ask", ask)
        found = check_machine(root=root, search_path=str(bin_), **options)
        assert [one.name for one in found] == NAMES
        assert {one.status for one in found} <= set(STATUSES)
        assert all(one.found and one.needed_for for one in found)
        return {one.name: one for one in found}

    return run


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """Return a function that puts packages on Python's path; torch says so if it is imported."""
    site = tmp_path / "site"
    site.mkdir()
    # Another test of this process may have imported the real torch, and then that one would be
    # found.
    monkeypatch.delitem(sys.modules, "torch", raising=False)

    def install(version_file=None, **versions):
        if version_file is not None:
            put(site, "torch/__init__.py", "raise RuntimeError('torch was imported')")
            put(site, "torch/version.py", version_file)
        for name, version in versions.items():
            text = f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n"
            put(site, f"{name}-{version}.dist-info/METADATA", text)
        monkeypatch.syspath_prepend(str(site))

    return install


def test_nothing_is_there_and_nothing_fails_and_little_disk_space_is_a_warning(
    checks, tmp_path, monkeypatch
):
    found = checks(folder=tmp_path)
    missing = [name for name, one in found.items() if one.status == "missing"]
    assert {"nsys", "importer", "trace_values", "cuda_driver", "topology"} <= {*missing}
    assert (found["nsyspipe"].status, found["cpu_sampling"].status) == ("ok", "unknown")
    assert found["disk_space"].found_bytes == pytest.approx(
        shutil.disk_usage(tmp_path).free, rel=0.1
    )
    assert all(found[name].fix for name in ("nsys", "cuda_driver"))
    assert checks(folder=tmp_path / "gone")["disk_space"].status == "unknown"
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 9, 1))
    assert (checks()["disk_space"].status, checks()["disk_space"].found_bytes) == ("warning", 1)


WITH_NCCL = HELP.replace("'osrt'", "'osrt', 'nccl'")
ALONE = "\tGPU0\tCPU Affinity\nGPU0\t X \t0-31\n"
QUERIED = (
    f"case $1 in --query-gpu*) cat <<'END'\n{GPUS}END\nexit;; esac\n{printing(topo=TOPOLOGY)}\n"
)
PARANOID = "proc/sys/kernel/perf_event_paranoid"
NCCL = "usr/lib/x86_64-linux-gnu/libnccl.so"
NSYS = {"nsys": printing(version=VERSION)}
SAMPLING = {"nsys": printing(version=VERSION, status=STATUS)}
NOT_SAMPLING = {"nsys": printing(version=VERSION, status=STATUS.replace("OK", "Fail"))}
BROKEN = {"nvidia-smi": "echo failed; exit 9"}
LOADED = {"proc/driver/nvidia/version": DRIVER_FILE}
# What programs print, files of the system, the check that is looked at, and its status.
PROBES = {
    "nsys": ({"nsys": printing(version=VERSION, profile=HELP)}, {}, "nsys", "ok"),
    "no trace of nccl": (
        {"nsys": printing(version=VERSION, profile=HELP)},
        {},
        "trace_values",
        "warning",
    ),
    "a trace of nccl": (
        {"nsys": printing(version=VERSION, profile=WITH_NCCL)},
        {},
        "trace_values",
        "ok",
    ),
    "another help": (
        {"nsys": printing(version=VERSION, profile="new")},
        {},
        "trace_values",
        "unknown",
    ),
    "nsys fails": ({"nsys": "exit 127"}, {}, "nsys", "unknown"),
    "no nsys by its words": ({"nsys": "echo hello"}, {}, "nsys", "unknown"),
    "made for another processor": ({"nsys": None}, {}, "nsys", "unknown"),
    "no importer": (NSYS, {}, "importer", "unknown"),
    # What nsys says of CPU sampling goes before the kernel's setting.
    "paranoid 2": (NSYS, {PARANOID: "2\n"}, "cpu_sampling", "ok"),
    "paranoid 4": (NSYS, {PARANOID: "4\n"}, "cpu_sampling", "warning"),
    "paranoid 4, but nsys samples": (SAMPLING, {PARANOID: "4\n"}, "cpu_sampling", "ok"),
    "paranoid -1, but nsys fails": (NOT_SAMPLING, {PARANOID: "-1\n"}, "cpu_sampling", "warning"),
    "two GPUs": ({"nvidia-smi": QUERIED}, {}, "cuda_driver", "ok"),
    "links of two GPUs": ({"nvidia-smi": QUERIED}, {}, "topology", "ok"),
    "links of one GPU": ({"nvidia-smi": printing(topo=ALONE)}, {}, "topology", "ok"),
    # A loaded driver is named when nvidia-smi does not work.
    "a driver without nvidia-smi": (BROKEN, LOADED, "cuda_driver", "unknown"),
    "no links without nvidia-smi": (BROKEN, LOADED, "topology", "unknown"),
    # The system's counts too.
    "nccl of the system": ({}, {f"{NCCL}.2.9.6": "", f"{NCCL}.2.28.3": ""}, "nccl", "ok"),
}


@pytest.mark.parametrize(("tools", "files", "name", "status"), PROBES.values(), ids=PROBES)
def test_a_check_is_what_programs_and_files_say(checks, place, tools, files, name, status, worded):
    for tool, script in tools.items():
        path = program(place[1], tool, script or "")
        if script is None:
            path.write_bytes(b"\x7fELF\x02\x01\x01")
    for file, text in files.items():
        put(place[0], file, text)
    check = checks()[name]
    assert check.status == status
    assert (check.fix is None) == (status == "ok")
    worded([check.found, *([check.fix] if check.fix else [])])


def test_a_hanging_nsys_is_asked_once_and_leaves_nobody_behind(checks, place, worded):
    pids = place[1] / "pids"
    program(place[1], "nsys", f"sleep 60 & echo $! $$ >> {pids}; wait")
    real = programs.ask
    found = checks(lambda command, timeout_s: real(command, min(timeout_s, 0.5)))
    assert found["nsys"].status == found["trace_values"].status == "unknown"
    worded(found["nsys"].found)
    (line,) = pids.read_text().splitlines()
    assert have_ended(line)


def test_all_programs_together_get_less_than_ten_seconds_and_none_starts_later(
    checks, place, monkeypatch
):
    for name in ("nsys", "nvidia-smi"):
        program(place[1], name, "exit 0")
    asked = []
    found = checks(lambda command, timeout_s: asked.append(command), total_s=0)
    assert asked == []
    assert {found[name].status for name in ("nsys", "trace_values", "topology")} == {"unknown"}
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def slow(command, timeout_s):
        now[0] += timeout_s * 0.99
        return Output(0, "")

    checks(slow)
    assert now[0] < 10


def test_an_nsys_of_a_usual_place_is_told_with_how_to_put_it_on_the_path(checks, place):
    program(place[0] / "opt/nvidia/nsight-systems/2025.10.1/bin", "nsys", printing(version=VERSION))
    found = checks()
    assert found["nsys"].status == "warning"
    assert found["nsys"].fix == "export PATH=/opt/nvidia/nsight-systems/2025.10.1/bin:$PATH"
    assert str(place[0]) not in repr(found)


TORCH = "__version__ = '2.11.0+cu130'\ndebug = False\ncuda: Optional[str] = '13.0'\nhip = None\n"


CPU_TORCH = "__version__ = '2.11.0+cpu'\ncuda: Optional[str] = None\n"


@pytest.mark.parametrize(
    ("version_file", "versions", "torch", "nccl"),
    [
        pytest.param(TORCH, {"nvidia_nccl_cu13": "2.28.9"}, "ok", ("ok", "2.28.9"), id="both"),
        pytest.param(CPU_TORCH, {}, "warning", ("unknown", None), id="of CPUs"),
        pytest.param("", {"torch": "2.4.0"}, "warning", (None, None), id="known by its package"),
    ],
)
def test_torch_and_nccl_are_read_and_not_imported(
    checks, packages, version_file, versions, torch, nccl, worded
):
    packages(version_file, **versions)
    found = checks()
    assert found["torch"].status == torch
    worded(found["torch"].found)
    # An NCCL of this machine may be found where none is put.
    status, version = nccl
    assert status in {found["nccl"].status, None}
    assert version in {found["nccl"].found, None}


def test_a_directory_called_torch_is_no_torch(checks, tmp_path, monkeypatch, worded):
    (tmp_path / "site/torch").mkdir(parents=True)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    # Nothing else on the path: the real torch would be found.
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site")])
    assert checks()["torch"].status == "missing"
    # Without torch nothing labels when nvtx is not installed.
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    monkeypatch.setattr(
        importlib.metadata.Distribution, "from_name", {}.__getitem__
    )  # KeyError: also a broken one
    found = checks()["nvtx"]
    assert found.status == "missing"
    worded([found.found, found.fix])


@pytest.mark.parametrize(
    ("driver", "torch"),
    [
        ("ok", "ok"),
        ("missing", "warning"),
        ("missing", "missing"),
        ("ok", "missing"),
        ("unknown", "ok"),
    ],
)
def test_a_machine_can_capture_what_its_cpus_do_and_what_another_python_trains(
    driver, torch, worded
):
    facts = (
        ("nsyspipe", "ok", "", ANALYZE),
        ("cuda_driver", driver, "", CAPTURE),
        ("torch", torch, "", CAPTURE),
    )
    worded(as_text(machine_blocks([Check(*fact) for fact in facts]), Console(width=100)))


@pytest.mark.parametrize(
    ("nvtx", "nsys", "status"),
    [
        ("0.2.12", "2024.2.3", "warning"),
        ("0.2.15", "2023.4.1", "warning"),
        ("0.2.11", "2024.2.3", "ok"),
        ("0.2.12", "2025.3.2", "ok"),
    ],
)
def test_a_new_nvtx_does_not_reach_an_old_nsys(checks, place, packages, nvtx, nsys, status):
    packages(nvtx=nvtx)
    program(place[1], "nsys", printing(version=f"NVIDIA Nsight Systems version {nsys}.38-24v0"))
    found = checks()["nvtx"]
    assert found.status == status
    assert found.found.startswith(nvtx)


def test_nothing_but_known_words_is_kept_of_what_programs_print(checks, place):
    secret = "/home/alice TOKEN=hunter2"
    text = f"{secret}\n{VERSION}{HELP}{STATUS}{GPUS}{TOPOLOGY}{secret}"
    put(place[0], "proc/sys/kernel/perf_event_paranoid", "2\n")
    for name in ("nsys", "nvidia-smi"):
        program(place[1], name, f"cat <<'END'\n{text}\nEND")
    found = checks()
    assert {found[name].status for name in ("nsys", "cuda_driver", "topology")} == {"ok"}
    assert not any(word in repr(found) for word in ("alice", "hunter2", str(place[1])))


@given(text=st.text(), status=st.sampled_from([0, 1, None]))
@examples(50)
def test_no_output_makes_a_probe_fail(checks, place, text, status):
    for name in ("nsys", "nvidia-smi"):
        program(place[1], name, "")
    checks(lambda command, timeout_s: Output(status, text))
