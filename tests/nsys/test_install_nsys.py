"""The script that installs nsys for tests: what it refuses, before it touches anything."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.build.programs import program

SCRIPT = Path(__file__).parents[2] / ".ci" / "install-nsys"


def run(folder, *words):
    """Run it where nothing can be downloaded: it says so where it would begin to."""
    program(folder / "bin", "apt-get", "exit 1")
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        [SCRIPT, *words],
        cwd=folder,
        env={**os.environ, "HOME": str(folder), "PATH": path},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def made(folder):
    return sorted(path.name for path in folder.iterdir() if path.name != "bin")


def test_help_prints_help_and_makes_nothing(tmp_path):
    done = run(tmp_path, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert ".ci/install-nsys [PREFIX]" in done.stdout
    assert made(tmp_path) == []


@pytest.mark.parametrize("words", [["--prefix=x"], ["-v"], ["a", "b"], [""], ["a", "-v"]])
def test_unknown_words_are_refused(tmp_path, words):
    done = run(tmp_path, *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert "fix: " in done.stderr
    assert made(tmp_path) == []


@pytest.mark.parametrize("name", ["mine", "mine/", "mine/thesis.txt"])
def test_other_files_are_never_replaced(tmp_path, name):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    done = run(tmp_path, name)
    assert done.returncode == 2
    assert "is there, and no nsys that this has installed" in done.stderr
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years of work"


@pytest.mark.parametrize("kind", ["new", "empty", "broken"])
def test_what_may_be_replaced_goes_on_to_the_download(tmp_path, kind):
    if kind == "empty":
        (tmp_path / kind).mkdir()
    elif kind == "broken":
        (tmp_path / kind / "usr" / "lib" / "nsight-systems").mkdir(parents=True)
    done = run(tmp_path, kind)
    assert done.returncode == 1
    assert "could not be downloaded" in done.stderr or "no apt-get" in done.stderr


def test_an_nsys_that_is_there_is_named_and_how_to_use_it_is_told(tmp_path):
    program(tmp_path / "an nsys" / "bin", "nsys", "echo NVIDIA Nsight Systems version 2024.2.3")
    done = run(tmp_path, "an nsys")
    assert (done.returncode, done.stdout) == (0, f"{tmp_path}/an nsys/bin/nsys\n")
    assert done.stderr == f"to use it: export PATH={tmp_path}/an\\ nsys/bin:$PATH\n"
