"""The words that launchers take, what they refuse and what they need: one message with its fix, status 2, nothing written."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess

import pytest

from nsyspipe.nsys.programs import find_nsys
from tests.build.programs import program, put
from tests.launchers.fakes import LAUNCHERS, NEW_HELP
from tests.launchers.jobs import ddp

NODE = "node.sh --nnodes 2 --node-rank 1 --rdzv-endpoint n0:29500 -n 4"
NO_NSYS = pytest.mark.skipif(find_nsys(search_path="/nowhere") is not None, reason="an nsys is in a usual place")
ODD = ["--dry-run", "-o", "a b", "", "it's", 'say "x"', "$HOME", "*", "--", "new\nline", "ä"]

REFUSED = [
    *("ddp.sh --bogus", "ddp.sh --bogus=1", "ddp.sh word", "ddp.sh ''", "ddp.sh -n", "ddp.sh --output", "ddp.sh -n 0"),
    *("ddp.sh -n two", "ddp.sh --ranks '0;1'", "ddp.sh --dry-run --ranks 1", "ddp.sh --timeout 1m", "ddp.sh --linger ''"),
    *("ddp.sh --exit-timeout 0", "ddp.sh --cuda-graph-trace all", "ddp.sh --capture-range all", "ddp.sh -o captures/"),
    *("ddp.sh -o 'dir/a b'", "ddp.sh -o 100%/run", "ddp.sh --cpu=yes", "ddp.sh --trace nvtx,dx12", "baseline.sh -n 2"),
    *("ddp.sh --attach-steps 50", "ddp.sh --attach-steps 0:9", "ddp.sh --attach-steps 9:9", "ddp.sh --attach-steps 1:2 --capture-range none"),
    *("node.sh", "node.sh --nnodes 2", f"{NODE} --node-rank 2", f"{NODE} --node-rank 01", f"{NODE} --rdzv-endpoint node0"),
    *(f"{NODE} --node-wide --ranks 0", f"{NODE} -n 'a[$(touch owned)]'", f"{NODE} --ranks=8", "ddp.sh -n 2 train.py"),
    *("sweep.sh --program x.py", "sweep.sh --force", "sweep.sh --attach-steps 1:2", "sweep.sh --repeat 0", "sweep.sh -n x", "sweep.sh --only nothing"),
]  # fmt: skip
PRINTED = [
    *("ddp.sh -n 2 -- --lr 1", "baseline.sh", "ddp.sh --cuda-graph-trace graph", "ddp.sh --trace nvtx", "ddp.sh --no-profile"),
    *("ddp.sh --nsys-arg=--cuda-graph-trace=graph:host-only", f"{NODE} --ranks 0-1,7", f"{NODE} --node-wide"),
    *(f"{NODE} --rdzv-backend=c10d -o d/run", "baseline.sh --nsys-arg=--env-var=A=1 --cpu", "ddp.sh -n 3 --output=x/y --nproc=2"),
    *("ddp.sh --attach-steps 50:70 -m trainer.main -- --lr 1", f"{NODE} --attach-steps 1:2", "baseline.sh --attach-steps=9:10"),
    "ddp.sh --capture-range none --force --nsys-arg --delay=3 --nsys-arg=--kill=none --ranks=0 --exit-timeout=7 --trace=nvtx",
    *(f"{launcher} --cpu -- {shlex.join(ODD)}" for launcher in ("baseline.sh", "ddp.sh")),
]  # fmt: skip


@pytest.fixture(autouse=True)
def _a_program(machine):
    machine.put_program("pass")


def test_what_cannot_be_used_is_refused_with_a_fix(machine, pinned):
    told = ""
    for words in REFUSED:
        launcher, *rest = shlex.split(words)
        own = [] if launcher == "sweep.sh" else ["--program", "train.py"]
        answer = machine.run(launcher, "--cpu", *own, *rest)
        assert (answer.status, answer.out, answer.err.count("error:")) == (2, "", 1), words
        assert answer.err.startswith("error: ")
        assert answer.err.splitlines()[-1].startswith("  fix: ")
        told += f"$ {words}\n{machine.without_places(answer.err)}"
    assert machine.files() == []
    pinned("launchers/refused.txt", told)


def printed(machine, words):
    """Return what a dry run says, and the words of the command that it prints."""
    launcher, *rest = shlex.split(words)
    answer = machine.run(launcher, "--dry-run", "--program", "train.py", *rest)
    assert (answer.status, answer.out.count("\n")) == (0, 1 + words.count("\n")), answer.err
    assert machine.files() == []
    return answer, shlex.split(answer.out)


def test_a_dry_run_prints_the_exact_command_and_does_nothing(machine, pinned):
    machine.put_nsys(help_text=NEW_HELP)
    machine.put_gpus(8)
    told = ""
    for words in PRINTED:
        answer, command = printed(machine, words)
        # Variables stand before the command, in any order.
        at = next((at for at, word in enumerate(command[1:], 1) if "=" not in word), 1)
        lines = [*sorted(command[:at]), *command[at:]]
        told += f"$ {words}\n" + "".join(f"  {shlex.quote(word)}\n" for word in lines) + answer.err
        if rest := shlex.split(words.partition(" -- ")[2]):
            assert command[-len(rest) - 1 :] == ["trainer.main" if "-m" in command else "train.py", *rest]
    pinned("launchers/dry_run.txt", machine.without_places(told))


def test_the_launchers_take_the_words_that_documents_give_them(machine):
    clone = LAUNCHERS.parent
    text = "".join(path.read_text(encoding="utf-8") for path in (clone / "README.md", *(clone / "docs").glob("*.md")))
    blocks = re.findall(r"```bash\n(.*?)```", text, flags=re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if line.startswith("launchers/")]
    assert len(lines) > 4
    machine.put_nsys(help_text=NEW_HELP)
    machine.put_gpus(8)
    for line in lines:
        launcher, *rest = shlex.split(line.removeprefix("launchers/"))
        answer = machine.run(launcher, "--dry-run", *rest)
        assert (answer.status, "error: " in answer.err) == (0, False), line


def test_the_printed_command_runs(machine):
    machine.put_program("print('it runs')")
    _, command = printed(machine, "baseline.sh --cpu")
    out = subprocess.run(command, cwd=machine.work, env=machine.environment, stdout=-1, timeout=20, check=True).stdout
    assert out == b"it runs\n"
    assert machine.files() == ["baseline_0.nsys-rep"]


def test_the_variable_nsys_names_one_and_the_option_wins(machine):
    machine.put_nsys(name="other")
    machine.variables["NSYS"] = other = str(machine.root / "bin" / "other")
    assert other in printed(machine, "ddp.sh --cpu")[1]
    assert "other" not in printed(machine, f"ddp.sh --cpu --nsys {machine.root}/bin/nsys")[0].out


def test_what_the_user_has_told_nccl_stays_and_an_old_nsys_traces_nvtx_instead(machine, pinned):
    machine.put_gpus(2)
    told = ""
    for variables in ({}, {"NCCL_DEBUG": "WARN", "NCCL_DEBUG_FILE": "/x/%p"}, {"NCCL_DEBUG": "info"}):
        machine.variables = variables
        answer, command = printed(machine, "ddp.sh -n 2")
        shown = [f"  {word}\n" for word in sorted(command) if word.startswith(("NCCL_", "--trace"))]
        told += "".join([f"{variables}\n", *shown, answer.err])
    pinned("launchers/nccl_variables.txt", machine.without_places(told))


@NO_NSYS
@pytest.mark.parametrize("words", ["baseline.sh", "ddp.sh", NODE])
def test_a_machine_with_nothing_prints_the_command_and_says_what_is_missing(machine, words):
    for path in ("bin/nsys", "bin/torchrun", "site/torch/__init__.py"):
        (machine.root / path).unlink()
    (machine.root / "site" / "torch").rmdir()
    (machine.work / "train.py").unlink()
    answer, _ = printed(machine, words)
    assert "nsys profile --trace=cuda,nvtx,nccl,osrt" in answer.out
    notes = [line for line in answer.err.splitlines() if line.startswith("note: ")]
    assert len(notes) == len(["program", "torch", "GPU", "nsys"])
    assert "error" not in answer.err


def test_files_and_directories_may_have_odd_names(machine, tmp_path):
    folder = machine.work / "it's a dir$"
    put(folder, "-t.py", "print('here')")
    links = tmp_path / "a link"
    links.mkdir()
    (links / "ddp.sh").symlink_to(LAUNCHERS / "ddp.sh")
    words = ("--program", f"{folder.name}/-t.py", "-o", f"{folder.name}/-x'\"$[1]")
    answer = machine.run("ddp.sh", "--cpu", *words, folder=links)
    assert (answer.status, answer.out) == (0, "here\n")
    written = [f"-x'\"$[1]{ending}" for ending in (".capture.json", "_0.nsys-rep", "_0.sqlite")]
    assert sorted(path.name for path in folder.iterdir()) == ["-t.py", *written]
    machine.put_program("print('here')", "-t.py")
    answer = machine.run("baseline.sh", "--cpu", "--program", "-t.py", "--output=-x")
    assert (answer.status, answer.out) == (0, "here\n")
    assert {"-x.capture.json", "-x_0.nsys-rep", "-x_0.sqlite"} < set(machine.files())


@pytest.mark.slow
def test_on_cpus_a_capture_needs_a_package_that_makes_ranges(machine):
    machine.put_nvtx("0.2.12")
    answer = ddp(machine, n=1)
    error = "error: nvtx 0.2.12: its ranges do not reach nsys 2024.2.3.38: no capture would begin"
    fix = '  fix: pip install "nvtx<0.2.12", or name a newer nsys: --nsys PROGRAM'
    assert (answer.status, answer.err) == (2, f"{error}\n{fix}\n")
    # A torch with CUDA makes its own; a capture of everything needs none.
    assert ddp(machine, "--capture-range=none", n=1).status == 0
    (machine.root / "site" / "torch" / "version.py").write_text("cuda: Optional[str] = '12.8'\n")
    assert ddp(machine, "--force", n=1).status == 0


@NO_NSYS
def test_without_nvtx_or_nsys_one_message_says_what_to_do_and_a_job_runs_unprofiled(machine):
    (machine.root / "bin" / "nsys").unlink()
    answer = ddp(machine)
    assert answer.status == 2
    assert answer.err.splitlines()[0].startswith("error: nsys: is not on PATH")
    assert "fix: install Nsight Systems" in answer.err
    (machine.root / "site" / "nvtx.py").unlink()
    answer = ddp(machine, n=1)
    assert answer.status == 2
    assert "has no nvtx, through which a capture begins" in answer.err
    assert answer.err.splitlines()[-1] == '  fix: pip install "nvtx<0.2.12"'
    answer = ddp(machine, "--no-profile", text="print('ran')")
    assert (answer.status, answer.out, machine.files()) == (0, "ran\nran\n", [])


def test_another_nsyspipe_on_the_python_path_is_not_used_and_nsys_may_have_another_name(machine):
    put(machine.root, "site/nsyspipe/__init__.py", "raise SystemExit('stale')")
    (machine.root / "bin" / "nsys").unlink()
    machine.put_nsys(name="nsys-2025.6")
    assert ddp(machine, "--nsys", str(machine.root / "bin" / "nsys-2025.6"), n=1).status == 0
    assert "ddp-1gpu_0.nsys-rep" in machine.files()


@pytest.mark.parametrize("python", ["/no/python", "old/python3"])
def test_a_python_that_cannot_be_used_is_named(machine, python):
    program(machine.work / "old", "python3", "exit 1")
    machine.variables["PYTHON"] = python
    for launcher in ("ddp.sh", "sweep.sh"):
        answer = machine.run(launcher, "--cpu")
        assert answer.status == 2
        assert answer.err.startswith(f"error: {python}: not a Python 3.11 or newer")


def test_fewer_gpus_than_ranks_are_refused_with_how_many_and_without_torch_the_python_that_lacks_it(machine):
    machine.put_gpus(2)
    answer = machine.run("ddp.sh", "-n", "4", "--program", "train.py")
    assert (answer.status, answer.err) == (2, "error: 4 ranks: this machine has 2 GPUs for them\n  fix: -n 2\n")
    shutil.rmtree(machine.root / "site" / "torch")
    answer = ddp(machine, n=1)
    assert answer.status == 2
    assert "has no torch" in answer.err
    assert "PYTHON=/path/to/python3" in answer.err
