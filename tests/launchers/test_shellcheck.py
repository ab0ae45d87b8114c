"""The launchers as scripts: shellcheck finds nothing, they can be run, and their help tells what they take."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys

import pytest

from tests.build.programs import program, put
from tests.launchers.fakes import LAUNCHERS

SCRIPTS = sorted([*LAUNCHERS.glob("*.sh"), LAUNCHERS / "slurm.sbatch"])
CHECKED = [*SCRIPTS, LAUNCHERS / "capture.bash", LAUNCHERS.parent / ".ci" / "install-nsys"]
_NOT_OF_THE_SWEEP = {
    "--program", "-m", "--module", "--attach-steps", "--capture-range", "--ranks", "--nsys-arg",
    "--no-export", "--no-profile", "--force",
}  # fmt: skip
# Other spellings of torchrun's own options.
_SPELLINGS = {"--nproc_per_node", "--nproc-per-node", "--node_rank"}


def run(*command, status=0):
    bare = {"PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd="/", env=bare)
    assert done.returncode == status, done.stderr
    return done


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="no shellcheck")
def test_shellcheck_finds_nothing():
    for script in CHECKED:
        found = subprocess.run(["shellcheck", "-x", script], capture_output=True, text=True, timeout=60, check=False)
        assert (found.stdout, found.returncode) == ("", 0)


def options_of(path):
    lines = re.findall(r"^ +(-[^)(\"']*)\) ", path.read_text(), re.MULTILINE)
    return {option.strip() for line in lines for option in line.split("|")} - {"--", "-*"}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_launcher_can_be_run_and_its_help_fits_a_terminal_and_names_every_option(script, pinned):
    assert os.access(script, os.X_OK)
    assert script.read_text().startswith("#!/usr/bin/env bash\n")
    assert "set -euo pipefail" in script.read_text()
    told = run(script, "--help")
    assert told.stderr == ""
    pinned(f"launchers/help/{script.name}.txt", told.stdout)
    if script.suffix == ".sbatch":
        refused = run(script, status=2)
        assert refused.stderr == "error: slurm.sbatch: this is no Slurm job\n  fix: sbatch launchers/slurm.sbatch\n"
        return
    assert run(script, "-h").stdout == told.stdout
    assert max(map(len, told.stdout.splitlines())) <= 120
    assert f"  launchers/{script.name}" in told.stdout
    known, of_captures = options_of(script), options_of(LAUNCHERS / "capture.bash")
    if script.name == "try.sh":  # it hands the others on
        parsed = re.findall(r"add_argument\((.*)\)", (LAUNCHERS / "trial.py").read_text())
        known, of_captures = {word for line in parsed for word in re.findall(r'"(-[^"]+)"', line)} - of_captures, set()
        assert {"--captures", "--finding", "--set", "--takes", "--with"} <= known
    known |= of_captures
    assert len(known) > 15 or not of_captures
    if script.name == "sweep.sh":
        known -= _NOT_OF_THE_SWEEP
    named = {one.replace("_", "-") for one in re.findall(r"--?[a-z][a-z_-]*", told.stdout)}
    assert {one for one in known - _SPELLINGS if one.replace("_", "-") not in named} == set()


def test_a_dry_run_on_a_login_node_prints_the_first_nodes_command_and_says_what_is_missing(machine):
    """Nothing of Slurm is there, and where reports belong lies a file."""
    (machine.work / "captures").touch()
    machine.variables["SLURM_NNODES"] = "4"
    told = machine.run("slurm.sbatch", "--dry-run", "--program", "nowhere.py", "--ranks", "0,31", "--", "--dry-run")
    assert told.status == 0
    for words in (
        "--nnodes=4 ",
        "--node_rank=0 ",
        "--nproc_per_node=8 ",
        "--ranks=0,31 ",
        "captures/slurm-JOB_%q{RANK}",
    ):
        assert words in told.out
    assert "note: nowhere.py: no such training program\n" in told.err
    assert f"note: captures/slurm-JOB: reports cannot be written below {machine.work}/captures\n" in told.err
    assert machine.run("slurm.sbatch", "--", "--dry-run").status == 2


def test_a_slurm_job_takes_the_launchers_beside_the_script_that_was_submitted(tmp_path):
    """Slurm runs a copy: the script's place, and the directory where it was submitted, are in what Slurm says."""
    copy = shutil.copy(LAUNCHERS / "slurm.sbatch", tmp_path / "slurm_script")
    told = f"JobId=7\n   Command={LAUNCHERS}/slurm.sbatch --program train.py\n"
    for command, arguments in (("show job 7", told), ("show hostnames nodes", "n0\nn1\n")):
        put(tmp_path, f"said/{command}", arguments)
    program(tmp_path, "scontrol", f'cat "{tmp_path}/said/$*"')
    program(tmp_path, "srun", 'printf "%s\\n" "$@"')
    slurm = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "nodes", "SLURM_NNODES": "2", "SLURM_SUBMIT_DIR": str(tmp_path)}
    answers = []
    for _ in range(2):
        environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", **slurm}
        words = ["bash", copy, "--program", "train.py"]
        answers.append(subprocess.run(words, capture_output=True, text=True, env=environment, timeout=20, check=False))
        put(tmp_path, "said/show job 7", "JobId=7\n   Command=(null)\n")
    assert (answers[0].returncode, answers[0].stderr) == (0, "")
    assert answers[0].stdout.splitlines()[4:] == [
        f"{LAUNCHERS}/node.sh", "--nnodes", "2", "--nproc", "8", "--rdzv-endpoint", "n0:20007",
        "-o", "captures/slurm-7", "--program", "train.py",
    ]  # fmt: skip
    error = (
        f"error: {tmp_path}/launchers/node.sh: no such program\n  fix: export NSYSPIPE_LAUNCHERS=DIRECTORY_OF_NODE_SH\n"
    )
    assert (answers[1].returncode, answers[1].stderr) == (2, error)


# --- the training program's options ---------------------------------------------------------------
TRAIN = LAUNCHERS / "train_vit.py"


@pytest.fixture
def parse(monkeypatch):
    """Return what reads options, in a process that torchrun has started."""
    spec = importlib.util.spec_from_file_location("vit_options", TRAIN.with_name("vit_options.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setenv("RANK", "0")
    return module.parse


def train(tmp_path, *options):
    clean = {key: value for key, value in os.environ.items() if key != "RANK"} | {"PYTHONPATH": str(tmp_path)}
    command = [sys.executable, str(TRAIN), *options]
    return subprocess.run(command, env=clean, capture_output=True, text=True, timeout=60, check=False)


def test_help_says_how_to_start_it(tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('torch must not be needed here')", "utf-8")
    done = train(tmp_path, "--help")
    assert done.returncode == 0
    assert "torchrun --standalone --nproc_per_node=4 train_vit.py" in done.stdout
    assert "demonstrations of what goes wrong" in done.stdout


NO_GROUP = "needs a process group: start with 'torchrun --standalone"


@pytest.mark.parametrize(("options", "message"), [
    ("--fsdp --no-ddp", "--fsdp and --no-ddp: choose one"),
    ("--fsdp --hook fp16", "--hook is an option of DDP: it does nothing with --fsdp"),
    ("--no-ddp --static-graph", "--static-graph is an option of DDP: it does nothing with --no-ddp"),
    ("--fsdp --dtype float16", "FSDP2 has no scaler for the loss; use --dtype bfloat16"),
    ("--static-graph --accumulate 2", "PyTorch's static graph fails"),
    ("--hook powersgd --warmup 2", "needs --warmup 3 or more, got 2"),
    ("--crash-rank 1", "needs --crash-at STEP"),
    ("--json no/such/place.json", "--json no/such/place.json: no such directory"),
    ("--bucket-cap-mb -1", "-1 is not a size in MB"),
    ("--bucket-cap-mb nan", "nan is not a size in MB"),
    ("--steps 0", "0 is less than 1"), ("--warmup -1", "-1 is negative"), ("--slow-ms inf", "inf is no duration"),
    ("--accumulate two", "invalid number value: 'two'"),
    ("--fsdp", NO_GROUP), ("--gradient-as-bucket-view", NO_GROUP), ("--bucket-cap-mb=50", NO_GROUP),
])  # fmt: skip
def test_options_that_cannot_be_used_end_in_one_message(parse, monkeypatch, capsys, options, message):
    if message == NO_GROUP:
        monkeypatch.delenv("RANK")
    with pytest.raises(SystemExit) as end:
        parse(options.split())
    assert end.value.code == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_a_machine_without_torch_is_told_so(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import importlib.util as u; u.find_spec = lambda name: None", "utf-8")
    done = train(tmp_path, "--model", "tiny")
    assert done.returncode == 1
    assert done.stderr == "error: train_vit.py needs PyTorch: pip install torch\n"
