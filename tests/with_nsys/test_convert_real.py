"""Captures, exports and analyses with a real nsys, on the CPU."""

import json
import re
import subprocess
import sys

import pytest

from nsyspipe.nsys import programs as installed
from tests.cli.tools import assert_refused, environment, nsyspipe_here

pytestmark = pytest.mark.nsys

PROGRAM = """\
import nvtx, time
for i in range(4):
    with nvtx.annotate(f"step {i}"):
        time.sleep(0.005)
"""
TRIES = 3  # on a busy machine nsys loses its own agent now and then


@pytest.fixture(scope="module")
def captured(nsys, tmp_path_factory):
    pytest.importorskip("nvtx")
    folder = tmp_path_factory.mktemp("captured")
    options = ("--trace=nvtx,osrt", "--sample=none", "--cpuctxsw=none", f"--output={folder}/a b_0")
    command = [nsys, "profile", *options, sys.executable, "-c", PROGRAM]
    # Captures of one machine that share a temporary directory disturb each other.
    variables = environment() | {"TMPDIR": str(tmp_path_factory.mktemp("t"))}
    for _ in range(TRIES):
        done = subprocess.run(
            command, env=variables, capture_output=True, text=True, timeout=120, check=False
        )
        if (folder / "a b_0.nsys-rep").exists():
            break
    else:
        pytest.fail(f"nsys captured nothing in {TRIES} tries: {done.stdout}{done.stderr}")
    return folder


@pytest.fixture
def run(nsys, tmp_path):
    variables = {
        "PATH": f"{nsys.parent}:{environment()['PATH']}",
        "NSYSPIPE_CACHE_DIR": str(tmp_path / "cache"),
    }
    return lambda *arguments, **options: nsyspipe_here(*arguments, **(variables | options))


@pytest.fixture
def report(captured, tmp_path):
    target = tmp_path / "run" / "a b_0.nsys-rep"
    target.parent.mkdir()
    target.write_bytes((captured / "a b_0.nsys-rep").read_bytes())
    return target


def test_the_help_of_a_real_nsys_is_understood(nsys):
    found = installed.find(str(nsys))
    assert installed.numbers(found.version_text) >= (2021,)
    assert {"cuda", "nvtx", "osrt", "none"} <= set(found.trace_values())
    assert all(
        found.has("export", one)
        for one in ["--type", "--output", "--lazy", "--force-overwrite", "--quiet"]
    )
    assert not found.has("export", "--no-such-option")


def test_a_capture_is_converted_once_and_its_analysis_is_that_of_its_export(run, report):
    raw = run("analyze", report, "--json", "-")
    assert sorted(report.parent.iterdir()) == [report]
    # What a killed nsys 2024.2.3 leaves is not taken for an export.
    export = report.with_suffix(".sqlite")
    export.write_bytes(b"\0" * 65536)
    done = run("convert", report.parent)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{export}\n", "1 exported\n")
    assert sorted(report.parent.iterdir()) == [report, export]
    assert run("convert", report.parent).stderr == "1 up to date\n"
    exported = run("analyze", export, "--json", "-")
    assert (raw.returncode, raw.stderr) == (0, "")
    assert json.loads(raw.stdout) == json.loads(exported.stdout)


def test_a_report_cut_short_is_told_in_nsyss_words(run, report):
    report.write_bytes(report.read_bytes()[: report.stat().st_size // 2])
    done = run("convert", report, "-q")
    assert_refused(done)
    assert re.search(r"nsys export .*\b\d+\b", done.stderr)
    assert sorted(report.parent.iterdir()) == [report]


def test_a_report_of_a_later_nsys_names_both_versions(run, report, nsys):
    mine = installed.find(str(nsys))
    year = f"Report {installed.numbers(mine.version_text)[0]}@".encode()
    report.write_bytes(report.read_bytes().replace(year, b"Report 2099@", 1))
    done = run("convert", report, "-q")
    assert_refused(done)
    assert "nsys 2099." in done.stderr
    assert mine.version_text in done.stderr
