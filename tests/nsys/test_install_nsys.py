"""The script that installs nsys for tests: what it refuses, before it touches anything."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.build.programs import program

SCRIPT = Path(__file__).parents[2] / ".ci" / "install-nsys"


def run(folder, *words):
    """Run it where nothing can be downloaded (it says so where it would begin to); return its status and streams."""
    program(folder / "bin", "apt-get", "exit 1")
    variables = os.environ | {"HOME": str(folder), "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    options = {"cwd": folder, "env": variables, "capture_output": True, "text": True, "timeout": 30}
    done = subprocess.run([SCRIPT, *words], check=False, **options)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("words", [["--help"], ["--prefix=x"], ["-v"], ["a", "b"], [""], ["a", "-v"]])
def test_help_and_unknown_words_make_nothing(tmp_path, words):
    status, out, err = run(tmp_path, *words)
    if words == ["--help"]:
        assert (status, ".ci/install-nsys [PREFIX]" in out, err) == (0, True, "")
    else:
        assert (status, out, err.startswith("error: "), "fix: " in err) == (2, "", True, True)
    assert [path.name for path in tmp_path.iterdir()] == ["bin"]


@pytest.mark.parametrize("name", ["mine", "mine/", "mine/thesis.txt"])
def test_other_files_are_never_replaced(tmp_path, name):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    status, _, err = run(tmp_path, name)
    assert status == 2
    assert "is there, and no nsys that this has installed" in err
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years of work"


def test_what_is_new_empty_or_broken_goes_on_to_the_download_and_an_nsys_that_is_there_is_named(tmp_path):
    for there in ("", "x", "x/usr/lib/nsight-systems"):
        (tmp_path / there).mkdir(parents=True, exist_ok=True)
        status, _, err = run(tmp_path, "x")
        assert status == 1
        assert "could not be downloaded" in err or "no apt-get" in err
    program(tmp_path / "an nsys" / "bin", "nsys", "echo NVIDIA Nsight Systems version 2024.2.3")
    err = f"to use it: export PATH={tmp_path}/an\\ nsys/bin:$PATH\n"
    assert run(tmp_path, "an nsys") == (0, f"{tmp_path}/an nsys/bin/nsys\n", err)
