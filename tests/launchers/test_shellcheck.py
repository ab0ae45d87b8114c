"""The launchers as scripts: shellcheck finds nothing, they can be run, and their help tells what they take."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

import pytest

from tests.launchers.fakes import LAUNCHERS

SCRIPTS = sorted([*LAUNCHERS.glob("*.sh"), LAUNCHERS / "slurm.sbatch"])
CHECKED = [*SCRIPTS, LAUNCHERS / "capture.bash", LAUNCHERS.parent / ".ci" / "install-nsys"]
_NOT_OF_THE_SWEEP = {
    *("--program", "--capture-range", "--ranks", "--nsys-arg"),
    *("--no-export", "--no-profile", "--force"),
}
# Other spellings of torchrun's own options.
_SPELLINGS = {"--nproc_per_node", "--nproc-per-node", "--node_rank"}


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="no shellcheck")
@pytest.mark.parametrize("script", CHECKED, ids=lambda path: path.name)
def test_shellcheck_finds_nothing(script):
    found = subprocess.run(["shellcheck", "-x", script], capture_output=True, text=True, timeout=60, check=False)
    assert (found.stdout, found.returncode) == ("", 0)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_launcher_can_be_run(script):
    assert os.access(script, os.X_OK)
    assert script.read_text().startswith("#!/usr/bin/env bash\n")
    assert "set -euo pipefail" in script.read_text()


def options_of(path):
    """Return the options that a script's case lines name."""
    lines = re.findall(r"^ +(-[^)(\"']*)\) ", path.read_text(), re.MULTILINE)
    return {option.strip() for line in lines for option in line.split("|")} - {"--", "-*"}


@pytest.mark.parametrize("script", sorted(LAUNCHERS.glob("*.sh")), ids=lambda path: path.name)
@pytest.mark.parametrize("option", ["--help", "-h"])
def test_help_fits_a_terminal_and_names_every_option(script, option):
    told = subprocess.run([script, option], capture_output=True, text=True, timeout=20, check=True, cwd="/")
    assert told.stderr == ""
    assert max(map(len, told.stdout.splitlines())) <= 120
    known = options_of(script) | options_of(LAUNCHERS / "capture.bash")
    assert len(known) > 15
    if script.name == "sweep.sh":
        known -= _NOT_OF_THE_SWEEP
    named = {one.replace("_", "-") for one in re.findall(r"--?[a-z][a-z_-]*", told.stdout)}
    missing = {one for one in known - _SPELLINGS if one.replace("_", "-") not in named}
    assert missing == set()


def test_the_help_of_each_launcher_shows_how_it_is_started():
    for script in LAUNCHERS.glob("*.sh"):
        told = subprocess.run([script, "--help"], capture_output=True, text=True, timeout=20, check=True)
        assert f"  launchers/{script.name}" in told.stdout


def test_the_example_for_slurm_tells_its_options_and_what_it_runs_in():
    script = LAUNCHERS / "slurm.sbatch"
    bare = {"PATH": "/usr/bin:/bin"}
    told = subprocess.run([script, "--help"], capture_output=True, text=True, timeout=20, check=True, env=bare)
    assert told.stdout.startswith("An example: sbatch launchers/slurm.sbatch [options of node.sh]")
    assert "--rdzv-endpoint" in told.stdout
    told = subprocess.run([script], capture_output=True, text=True, timeout=20, check=False, env=bare)
    assert told.returncode == 2
    assert told.stderr == ("error: slurm.sbatch: this is no Slurm job\n  fix: sbatch launchers/slurm.sbatch\n")
