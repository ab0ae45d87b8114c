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
_NOT_OF_THE_SWEEP = {"--program", "--capture-range", "--ranks", "--nsys-arg", "--no-export", "--no-profile", "--force"}
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
    known = options_of(script) | options_of(LAUNCHERS / "capture.bash")
    assert len(known) > 15
    if script.name == "sweep.sh":
        known -= _NOT_OF_THE_SWEEP
    named = {one.replace("_", "-") for one in re.findall(r"--?[a-z][a-z_-]*", told.stdout)}
    assert {one for one in known - _SPELLINGS if one.replace("_", "-") not in named} == set()
