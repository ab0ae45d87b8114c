"""The launchers as scripts, the words that they take and refuse: one message with its fix, status 2, nothing written."""

import os
import re
import shlex
import shutil
import subprocess
import time

import pytest
import yaml

from nsyspipe.nsys.programs import find_nsys
from tests.build.programs import program, put
from tests.launchers.fakes import LAUNCHERS, NEW_HELP
from tests.launchers.jobs import ddp

OF_NODE = "node.sh --nnodes 2 --rdzv-endpoint n0:29500"
NODE = "node.sh --nnodes 2 --node-rank 1 --rdzv-endpoint n0:29500 -n 4"
NO_NSYS = pytest.mark.skipif(
    find_nsys(search_path="/nowhere") is not None, reason="an nsys is in a usual place"
)
ODD = ["--dry-run", "-o", "a b", "", "it's", 'say "x"', "$HOME", "*", "--", "new\nline", "ä"]

REFUSED = [
    *(
        "ddp.sh --bogus",
        "ddp.sh --attach-step 50:70",
        "ddp.sh --times=1",
        "node.sh --node_ran 1",
        "sweep.sh --analyse-only",
        "ddp.sh word",
        "ddp.sh ''",
        "ddp.sh -n",
        "ddp.sh --output",
        "ddp.sh -n 0",
    ),
    *(
        "ddp.sh -n two",
        "ddp.sh --ranks '0;1'",
        "ddp.sh --ranks ''",
        "ddp.sh --dry-run --ranks 1",
        "ddp.sh --timeout 1m",
        "ddp.sh --linger ''",
    ),
    *(
        "ddp.sh --exit-timeout 0",
        "ddp.sh --cuda-graph-trace all",
        "ddp.sh --capture-range all",
        "ddp.sh -o captures/",
    ),
    *(
        "ddp.sh -o 'dir/a b'",
        "ddp.sh -o 100%/run",
        "ddp.sh --cpu=yes",
        "ddp.sh --trace nvtx,dx12",
        "baseline.sh -n 2",
    ),
    *(
        "ddp.sh --attach-steps 50",
        "ddp.sh --attach-steps 0:9",
        "ddp.sh --attach-steps 9:9",
        "ddp.sh --attach-steps 1:2 --capture-range none",
    ),
    *(
        "node.sh",
        "node.sh --nnodes 2",
        f"{OF_NODE} --node-rank 2",
        f"{OF_NODE} --node-rank 01",
        "node.sh --nnodes 2 --node-rank 1 --rdzv-endpoint node0",
    ),
    *(
        f"{NODE} --node-wide --ranks 0",
        f"{OF_NODE} --node-rank 1 -n 'a[$(touch owned)]'",
        f"{NODE} --ranks=8",
        "node.sh --nnodes 3 --node-rank 1 --rdzv-endpoint n0:1 -n 1 --ranks 0,8",
        "ddp.sh -n 8 --ranks 0,8",
        "ddp.sh -n 2 train.py",
    ),
    *(
        "sweep.sh --program x.py",
        "sweep.sh --force",
        "sweep.sh --attach-steps 1:2",
        "sweep.sh --repeat 0",
        "sweep.sh -n x",
        "sweep.sh --only nothing",
        "sweep.sh --analyze-only -o nowhere",
    ),
    *(
        "ddp.sh -n 8 -n 4",
        "ddp.sh --nproc=2 --nproc_per_node 2",
        f"{NODE} --node_rank 0",
        "ddp.sh -o a --output b",
        "sweep.sh --only a --only b",
        "ddp.sh -m train",
    ),
    *("ddp.sh --trace nvtxx,osrt", "ddp.sh --trace nvtx,mydomain"),
    *("ddp.sh --no-phases", "ddp.sh --count-flops", "ddp.sh --gpu-metrics"),
    "ddp.sh --attach-steps 1:2 --count-flops",
]
PRINTED = [
    *(
        "ddp.sh -n 2 -- --lr 1",
        "baseline.sh",
        "ddp.sh --cuda-graph-trace graph",
        "ddp.sh --trace nvtx",
        "ddp.sh --no-profile",
    ),
    *(
        "ddp.sh --nsys-arg=--cuda-graph-trace=graph:host-only",
        f"{NODE} --ranks 0-1,7",
        f"{NODE} --node-wide",
    ),
    *(
        f"{NODE} --rdzv-backend=c10d -o d/run",
        "baseline.sh --nsys-arg=--env-var=A=1 --cpu",
        "ddp.sh --output=x/y --nproc=2",
    ),
    *(
        "ddp.sh --attach-steps 50:70 -m trainer.main -- --lr 1",
        f"{NODE} --attach-steps 1:2",
        "baseline.sh --attach-steps=9:10",
    ),
    (
        "ddp.sh --capture-range none --force --nsys-arg --delay=3 --nsys-arg=--kill=none --ranks=0 "
        "--exit-timeout=7 --trace=nvtx"
    ),
    *("ddp.sh --no-python --gpu-metrics -n 2", f"{NODE} --node-wide --gpu-metrics"),
    "ddp.sh --nsys-arg=--python-sampling=false --trace cuda,nvtx,python-gil",
    "ddp.sh --attach-steps 2:3 --no-phases --count-flops",
    *(f"{launcher} --cpu -- {shlex.join(ODD)}" for launcher in ("baseline.sh", "ddp.sh")),
]


@pytest.fixture(autouse=True)
def _a_program(machine):
    machine.put_program("pass")


@pytest.mark.slow
def test_what_cannot_be_used_is_refused_with_a_fix(machine, pinned):
    told = ""
    for words in REFUSED:
        launcher, *rest = shlex.split(words)
        answer = machine.run(
            launcher, "--cpu", *([] if launcher == "sweep.sh" else ["--program", "train.py"]), *rest
        )
        assert (answer.status, answer.out, answer.err.count("error:")) == (2, "", 1), words
        assert answer.err.startswith("error: "), words
        assert answer.err.splitlines()[-1].startswith("  fix: "), words
        told += f"$ {words}\n{machine.without_places(answer.err)}"
    assert machine.files() == []
    pinned("launchers/refused.txt", told)


def printed(machine, words):
    launcher, *rest = shlex.split(words)
    own = (
        []
        if any(word.startswith(("-m", "--program")) for word in rest)
        else ["--program", "train.py"]
    )
    answer = machine.run(launcher, "--dry-run", *own, *rest)
    assert (answer.status, answer.out.count("\n")) == (0, 1 + words.count("\n")), answer.err
    assert machine.files() == []
    return answer, shlex.split(answer.out)


@pytest.mark.slow
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
            assert command[-len(rest) - 1 :] == [
                "trainer.main" if "-m" in command else "train.py",
                *rest,
            ], words
    pinned("launchers/dry_run.txt", machine.without_places(told))


@pytest.mark.slow
def test_the_launchers_take_the_words_that_documents_give_them(machine):
    clone = LAUNCHERS.parent
    text = "".join(
        path.read_text(encoding="utf-8")
        for path in (clone / "README.md", *(clone / "docs").rglob("*.md"))
    )
    blocks = re.findall(r"```bash\n(.*?)```", text, flags=re.DOTALL)
    lines = [
        line for block in blocks for line in block.splitlines() if line.startswith("launchers/")
    ]
    assert len(lines) > 4
    machine.put_nsys(help_text=NEW_HELP)
    machine.put_gpus(8)
    for line in lines:
        launcher, *rest = shlex.split(line.removeprefix("launchers/"))
        answer = machine.run(launcher, "--dry-run", *rest)
        assert (answer.status, "error: " in answer.err) == (0, False), line


@pytest.mark.slow
def test_the_example_for_kubernetes_fits_together_and_its_command_is_taken(machine):
    text = (LAUNCHERS.parent / "docs" / "examples" / "kubernetes.yml").read_text(encoding="utf-8")
    service, job = yaml.safe_load_all(text)
    name, spec, pod = job["metadata"]["name"], job["spec"], job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert spec["completionMode"] == "Indexed"
    assert service["spec"]["selector"] == spec["template"]["metadata"]["labels"]
    assert service["metadata"]["name"] == pod["subdomain"]
    assert [one["name"] for one in container["volumeMounts"]] == [
        one["name"] for one in pod["volumes"]
    ]
    gpus, nodes = container["resources"]["limits"]["nvidia.com/gpu"], spec["completions"]
    launcher, *words = [
        word.replace("$(JOB_COMPLETION_INDEX)", "1") for word in container["command"]
    ]
    assert launcher.startswith(
        next(one["mountPath"] for one in container["volumeMounts"] if one["name"] == "nsyspipe")
    )
    machine.put_nsys(help_text=NEW_HELP)
    machine.put_gpus(gpus)
    answer, command = printed(machine, shlex.join([launcher.rpartition("/")[2], *words]))
    assert answer.err.count("note: ") == 1  # nothing is missing: the note says what was printed
    told = (
        f"--nnodes={nodes}",
        "--node_rank=1",
        f"--nproc_per_node={gpus}",
        f"--master_addr={name}-0.{pod['subdomain']}",
    )
    assert {*told} < {*command}
    assert spec["parallelism"] == nodes


@pytest.mark.slow
def test_the_printed_command_runs(machine):
    machine.put_program("print('it runs')")
    _, command = printed(machine, "baseline.sh --cpu")
    out = subprocess.run(
        command, cwd=machine.work, env=machine.environment, stdout=-1, timeout=20, check=True
    ).stdout
    assert out == b"it runs\n"
    assert machine.files() == ["baseline_0.nsys-rep"]


@pytest.mark.slow
def test_the_variable_nsys_names_one_and_the_option_wins(machine):
    machine.put_nsys(name="other")
    machine.variables["NSYS"] = other = str(machine.root / "bin" / "other")
    assert other in printed(machine, "ddp.sh --cpu")[1]
    assert "other" not in printed(machine, f"ddp.sh --cpu --nsys {machine.root}/bin/nsys")[0].out


@pytest.mark.slow
def test_what_the_user_has_told_nccl_stays_and_an_old_nsys_traces_nvtx_instead(machine, pinned):
    machine.put_gpus(2)
    told = ""
    for variables in (
        {},
        {"NCCL_DEBUG": "WARN", "NCCL_DEBUG_FILE": "/x/%p"},
        {"NCCL_DEBUG": "info"},
    ):
        machine.variables = variables
        answer, command = printed(machine, "ddp.sh -n 2")
        shown = [f"  {word}\n" for word in sorted(command) if word.startswith(("NCCL_", "--trace"))]
        told += "".join([f"{variables}\n", *shown, answer.err])
    pinned("launchers/nccl_variables.txt", machine.without_places(told))


@pytest.mark.slow
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
    assert len(notes) == len(["program", "torch", "GPU", "nsys", "time limit"])
    assert "error" not in answer.err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "is_there"), {"no.such": 0, "of": 0, "of.x": 0, "of.job": 1, "json.tool": 1}.items()
)
def test_a_module_that_cannot_run_is_told_and_nothing_of_it_is_imported(
    machine, worded, module, is_there
):
    put(machine.work / "of", "__init__.py", "raise SystemError")
    put(machine.work / "of", "job.py", "raise SystemError")
    lines = machine.run("ddp.sh", "--cpu", "--dry-run", "-m", module).err.splitlines()
    notes = [line for line in lines if line.startswith(f"note: -m {module}: ")]
    assert len(notes) == (0 if is_there else 1)
    if not is_there:
        worded(notes, "a dry run")
        worded(machine.refusal(machine.run("baseline.sh", "--cpu", "-m", module)), "a run")


@pytest.mark.slow
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
def test_on_cpus_a_capture_needs_a_package_that_makes_ranges(machine, worded):
    machine.put_nvtx("0.2.12")
    answer = ddp(machine, n=1)
    assert (answer.status, answer.err.count("\n")) == (2, 2)
    assert "nvtx 0.2.12" in answer.err
    assert 'pip install "nvtx<0.2.12"' in answer.err
    worded(machine.refusal(answer))
    # A torch with CUDA makes its own; a capture of everything needs none.
    assert ddp(machine, "--capture-range=none", n=1).status == 0
    (machine.root / "site" / "torch" / "version.py").write_text("cuda: Optional[str] = '12.8'\n")
    assert ddp(machine, "--force", n=1).status == 0


@pytest.mark.slow
@NO_NSYS
def test_without_nvtx_or_nsys_one_message_has_the_fix(machine, worded):
    (machine.root / "bin" / "nsys").unlink()
    answer = ddp(machine)
    assert answer.status == 2
    assert answer.err.startswith("error: nsys: ")
    worded(machine.refusal(answer), "no nsys")
    (machine.root / "site" / "nvtx.py").unlink()
    answer = ddp(machine, n=1)
    assert answer.status == 2
    errors = [line for line in answer.err.splitlines() if line.startswith("error: ")]
    assert ["nvtx" in errors[0], errors[1].startswith("error: nsys: ")] == [
        True,
        True,
    ]  # all that is missing at once
    worded(machine.refusal(answer), "no nvtx and no nsys")
    answer = ddp(machine, "--no-profile", n=1, text="print('ran')")
    assert (answer.status, answer.out, machine.files()) == (0, "ran\n", [])


@pytest.mark.slow
def test_another_nsyspipe_on_the_python_path_is_not_used(machine):
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
        assert answer.status == 2, launcher
        assert answer.err.startswith(f"error: {python}: not a Python 3.11 or newer"), launcher


@pytest.mark.slow
def test_fewer_gpus_than_ranks_are_refused_with_their_number(
    machine,
):
    machine.put_gpus(2)
    answer = machine.run("ddp.sh", "-n", "4", "--program", "train.py")
    assert (answer.status, answer.err) == (
        2,
        "error: 4 ranks: this machine has 2 GPUs for them\n  fix: -n 2\n",
    )
    shutil.rmtree(machine.root / "site" / "torch")
    answer = ddp(machine, n=1)
    assert answer.status == 2
    assert "has no torch" in answer.err
    assert "PYTHON=/path/to/python3" in answer.err


SCRIPTS = sorted([*LAUNCHERS.glob("*.sh"), LAUNCHERS / "slurm.sbatch"])
CHECKED = [*SCRIPTS, LAUNCHERS / "capture.bash", LAUNCHERS.parent / ".ci" / "install-nsys"]
_NOT_OF_THE_SWEEP = {
    "--no-phases",
    "--count-flops",
    "--program",
    "-m",
    "--module",
    "--attach-steps",
    "--capture-range",
    "--ranks",
    "--nsys-arg",
    "--no-export",
    "--no-profile",
    "--force",
}
_SPELLINGS = {
    "--nproc_per_node",
    "--nproc-per-node",
    "--node_rank",
}  # other spellings of torchrun's own options


def run(*command, status=0):
    bare = {"PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, cwd="/", env=bare
    )
    assert done.returncode == status, done.stderr
    return done


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="no shellcheck")
def test_shellcheck_finds_nothing():
    for script in CHECKED:
        found = subprocess.run(
            ["shellcheck", "-x", script], capture_output=True, text=True, timeout=60, check=False
        )
        assert (found.stdout, found.returncode) == ("", 0), script


def options_of(path):
    lines = re.findall(r"^ +(-[^)(\"']*)\) ", path.read_text(), re.MULTILINE)
    return {option.strip() for line in lines for option in line.split("|")} - {"--", "-*"}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_the_help_of_a_launcher_fits_a_terminal_and_names_each_option(script, pinned, worded):
    assert os.access(script, os.X_OK)
    assert script.read_text().startswith("#!/usr/bin/env bash\n")
    assert "set -euo pipefail" in script.read_text()
    told = run(script, "--help")
    assert told.stderr == ""
    pinned(f"launchers/help/{script.name}.txt", told.stdout)
    assert max(map(len, told.stdout.splitlines())) <= 120
    if script.suffix == ".sbatch":
        assert not re.search(
            "^  --(nnodes|node-rank|rdzv-endpoint)", told.stdout, re.MULTILINE
        )  # it says them itself
        refused = run(script, status=2).stderr
        assert refused.splitlines()[1:] == [f"  fix: sbatch {script}"]
        worded(refused.splitlines()[0])
        return
    assert run(script, "-h").stdout == run("/bin/sh", script, "-h").stdout == told.stdout
    assert f"  launchers/{script.name}" in told.stdout
    known, of_captures = options_of(script), options_of(LAUNCHERS / "capture.bash")
    if script.name == "try.sh":  # it hands the others on
        parsed = re.findall(r"add_argument\((.*)\)", (LAUNCHERS / "trial.py").read_text())
        known, of_captures = (
            {word for line in parsed for word in re.findall(r'"(-[^"]+)"', line)} - of_captures,
            set(),
        )
        assert {"--captures", "--finding", "--set", "--takes", "--with"} <= known
    known |= of_captures
    assert len(known) > 15 or not of_captures
    if script.name == "sweep.sh":
        known -= _NOT_OF_THE_SWEEP
    named = {one.replace("_", "-") for one in re.findall(r"--?[a-z][a-z_-]*", told.stdout)}
    assert {one for one in known - _SPELLINGS if one.replace("_", "-") not in named} == set()


@pytest.mark.slow
def test_a_dry_run_prints_the_first_nodes_command_and_missing_parts(machine, worded):
    """Nothing of Slurm is there, and where reports belong lies a file."""
    (machine.work / "captures").touch()
    machine.variables["SLURM_NNODES"] = "4"
    words = (
        "--dry-run",
        "--program",
        "nowhere.py",
        "--ranks",
        "0,31",
        "--timeout",
        "1500",
        "--",
        "--dry-run",
    )
    told = machine.run("slurm.sbatch", *words)
    assert told.status == 0
    worded(machine.without_places(told.err).rstrip("\n"), "what is missing")
    longer = machine.run(
        "slurm.sbatch", "--dry-run", "--timeout=7200", "--program", "nowhere.py"
    ).err.splitlines()
    worded(
        [line for line in longer if line.startswith("note: --timeout 7200: ")],
        "more time than the job has",
    )
    for word in (
        "--nodes=4",
        "--time",
        "--gpus-per-node=4",
        "--nnodes",
    ):  # sbatch takes them before the script
        refused = machine.run("slurm.sbatch", "--dry-run", word, "4")
        assert (refused.status, refused.out) == (2, ""), word
        assert refused.err.startswith(f"error: {word}: "), word
        assert f" {LAUNCHERS}/slurm.sbatch ..." in refused.err, word  # the path as it was called
    unlimited = machine.run("slurm.sbatch", "--dry-run", "--program", "nowhere.py").err.splitlines()
    worded([line for line in unlimited if "--timeout" in line], "no time limit")
    given = (
        "--nnodes=4 ",
        "--node_rank=0 ",
        "--nproc_per_node=8 ",
        "--ranks=0,31 ",
        "captures/slurm-JOB_%q{RANK}",
    )
    for words in given:
        assert words in told.out, words
    machine.variables["SLURM_GPUS_ON_NODE"] = "4"
    assert "SLURM_GPUS_ON_NODE" not in machine.run("slurm.sbatch", "--dry-run").err
    more = "-n 2 -o mine/x --nsys-arg -o --program nowhere.py"
    mine = machine.run("slurm.sbatch", "--dry-run", *more.split())
    assert ("--nproc_per_node=2 " in mine.out, "mine/x_%q{RANK}" in mine.out) == (True, True)
    assert "slurm-JOB" not in mine.out
    machine.variables["SLURM_NNODES"] = "two"
    refused = machine.run("slurm.sbatch", "--dry-run")
    assert refused.status == 2
    worded(machine.refusal(refused), "a number of nodes")
    assert machine.run("slurm.sbatch", "--", "--dry-run").status == 2


@pytest.mark.slow
def test_a_copied_slurm_script_finds_the_launchers(machine, worded):
    shutil.copy(LAUNCHERS / "slurm.sbatch", machine.work / "copy.sbatch")
    for words in (("--dry-run",), ("--help",)):
        told = machine.run("copy.sbatch", *words, folder=machine.work)
        assert told.status == 2, words
        assert told.err.startswith(f"error: {machine.work}/launchers/node.sh: "), words
        worded(machine.refusal(told), words[0])
    machine.variables["NSYSPIPE_LAUNCHERS"] = (
        "/nowhere"  # what is named wrongly is told, whatever there is elsewhere
    )
    assert machine.run("copy.sbatch", "--dry-run", folder=machine.work).err.startswith(
        "error: /nowhere/node.sh: no such"
    )
    machine.variables["NSYSPIPE_LAUNCHERS"] = str(LAUNCHERS)
    told = machine.run("copy.sbatch", "--dry-run", "--program", "train.py", folder=machine.work)
    assert (told.status, "--nnodes=2 " in told.out) == (0, True)
    assert (
        "NSYSPIPE_LAUNCHERS" in (LAUNCHERS.parent / "docs" / "how-to" / "clusters.md").read_text()
    )


@pytest.mark.slow
def test_a_dry_run_shows_the_launchers_own_variables(machine):
    machine.variables |= {
        "NSYSPIPE_CHANGED": "A B NCCL_DEBUG no-name",
        "A": "1 2",
        "NCCL_DEBUG": "INFO",
    }
    _, command = printed(machine, "ddp.sh --cpu")
    assert command[:5] == ["env", "-u", "B", f"PYTHONPATH={machine.root}/site", "A=1 2"]
    assert "NCCL_DEBUG=INFO" in command
    machine.variables = {"RANK": "3", "WORLD_SIZE": "8"}
    _, command = printed(machine, "baseline.sh --cpu")
    assert command[:5] == ["env", "-u", "RANK", "-u", "WORLD_SIZE"]


@pytest.mark.slow
def test_an_nsys_that_lists_no_trace_values_is_not_given_what_none_knows(machine):
    machine.put_nsys(help_text="no help")
    for launcher in ("ddp.sh", "baseline.sh"):
        answer, _ = printed(machine, f"{launcher} --cpu --trace cuda,nvtxx")
        assert "note: --trace cuda,nvtxx: no nsys knows nvtxx\n" in answer.err, launcher
        assert "\n  fix: --trace cuda,nvtx\n" in answer.err, launcher
        assert (
            machine.run(launcher, "--cpu", "--program", "train.py", "--trace", "cuda,nvtxx").status
            == 2
        ), launcher
    assert "does not know --trace=nccl (2025.6 does)" in printed(machine, "ddp.sh")[0].err
    (machine.root / "bin" / "nsys").write_text("exit 1")  # nobody to ask
    assert "no nsys knows nvtxx" in printed(machine, "ddp.sh --cpu --trace cuda,nvtxx")[0].err


def test_a_slurm_job_takes_the_launchers_beside_the_script_that_was_submitted(tmp_path, worded):
    """Slurm runs a copy: the script's place, and the directory where it was submitted, are in what Slurm says."""
    copy = shutil.copy(LAUNCHERS / "slurm.sbatch", tmp_path / "slurm_script")
    told = f"JobId=7\n   Command={LAUNCHERS}/slurm.sbatch --program train.py\n"
    put(tmp_path, "said/show job 7", told)
    # Line by line, as long after whoever reads the first one only would have left.
    names = "i=0; while [ $i -lt 5000 ]; do echo n$i; i=$((i + 1)); done"
    program(
        tmp_path, "scontrol", f'case $2 in hostnames) {names};; *) cat "{tmp_path}/said/$*";; esac'
    )
    program(tmp_path, "srun", 'printf "%s\\n" "$@"')
    slurm = {
        "CPUS_PER_TASK": "32",
        "JOB_END_TIME": str(int(time.time()) + 1800),
        "JOB_ID": "7",
        "JOB_NODELIST": "nodes",
        "NNODES": "2",
        "SUBMIT_DIR": str(tmp_path),
    }
    environment = {
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        **{f"SLURM_{name}": text for name, text in slurm.items()},
    }
    answers = []
    for _ in range(2):
        words = ["bash", copy, "--program", "train.py"]
        answers.append(
            subprocess.run(
                words, capture_output=True, text=True, env=environment, timeout=20, check=False
            )
        )
        put(tmp_path, "said/show job 7", "JobId=7\n   Command=(null)\n")
    assert (answers[0].returncode, answers[0].stderr) == (0, "")
    told = answers[0].stdout.splitlines()
    assert told[:2] == ["--ntasks-per-node=1", "--cpus-per-task=32"]
    assert 1400 < int(told.pop(15)) <= 1500  # five minutes before Slurm's half an hour is over
    assert told[5:] == [
        f"{LAUNCHERS}/node.sh",
        "--nnodes",
        "2",
        "--rdzv-endpoint",
        "n0:20007",
        "--nproc",
        "8",
        "-o",
        "captures/slurm-7",
        "--timeout",
        "--program",
        "train.py",
    ]
    assert answers[1].returncode == 2
    worded(answers[1].stderr.rstrip("\n"))
