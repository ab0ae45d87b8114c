"""The examples of docs/how-to/pytest.md run, and its transcript is what pytest prints; ``--update-golden`` writes it anew."""

import os
import re
import shlex
import subprocess
import sys

import pytest

import nsyspipe
from nsyspipe.store.write import save
from tests.build.plain_steps import steps, write_run
from tests.conftest import SAMPLES
from tests.contract.test_documents import DOCS, TERMINAL_WIDTH, blocks
from tests.pytest_plugin.conftest import WITHOUT_OTHERS, outcomes

PAGE = DOCS / "how-to" / "pytest.md"
SHORT_EXAMPLE, WITH_CAPTURES = blocks(PAGE, "python", is_run=False)
(TRANSCRIPT,) = blocks(PAGE, "console")
(SETTINGS,) = blocks(PAGE, "ini")
# The time of a session differs each time.
TIME = re.compile(r"in \d+\.\d\ds")
LAUNCHER = """\
#!/bin/bash
# Makes the reports of the next capture where it is asked to.
printf '%s\\n' "$*" >> launched
cp made/$(wc -l < launched)/* "$(dirname "$4")"
"""
MS = 10**6


@pytest.mark.slow
def test_the_transcript_is_real(pytester, installed, monkeypatch, request):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(installed), str(SAMPLES.parent)]))
    monkeypatch.setenv("COLUMNS", str(TERMINAL_WIDTH))
    # pytest shortens its summary only where neither is set.
    for variable in ("CI", "BUILD_NUMBER"):
        monkeypatch.delenv(variable, raising=False)
    (pytester.path / "sample_reports").symlink_to(SAMPLES)
    pytester.makepyfile(test_step_time=SHORT_EXAMPLE)
    command = TRANSCRIPT.partition("\n")[0].removeprefix("$ ")
    _, *words = shlex.split(command)
    program = [sys.executable, "-m", "pytest", *WITHOUT_OTHERS[:4], *words]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (pytest.ExitCode.TESTS_FAILED, "")
    real = f"$ {command}\n{TIME.sub('in 2.00s', done.stdout)}"
    if request.config.getoption("--update-golden"):
        text = PAGE.read_text("utf-8")
        PAGE.write_text(text.replace(TRANSCRIPT, real), encoding="utf-8")
    assert real in PAGE.read_text("utf-8")


def write_captures(folder, first_capture, compute):
    """Write three captures of a program whose median step takes `compute` + 31 ms, a little apart."""
    for number in range(1, 4):
        rows = [(part[0] + number * MS // 10, *part[1:]) for part in steps(compute)]
        start = 10**18 + (first_capture + number) * 10**12
        write_run(folder / str(number), [rows] * 2, start=start)


# A step of the baseline takes 131 ms.
@pytest.mark.slow
@pytest.mark.parametrize(("compute", "outcome"), [(100, "passed"), (120, "failed"), (90, "passed")])
def test_the_example_with_captures_compares_them(session, pytester, compute, outcome):
    write_captures(pytester.path / "main", 0, 100)
    for number in range(1, 4):
        run = nsyspipe.load(
            pytester.path / "main" / str(number), label="main", run_id=f"main-{number}", jobs=1
        )
        save(run, pytester.path / "runs")
    write_captures(pytester.path / "made", 10, compute)
    launcher = pytester.mkdir("launchers") / "ddp.sh"
    launcher.write_text(LAUNCHER)
    launcher.chmod(0o755)
    pytester.makeini(SETTINGS)
    result = session(WITH_CAPTURES, store=None)
    assert outcomes(result) == {outcome: 1}
    launched = (pytester.path / "launched").read_text().splitlines()
    assert len(launched) == 3
    assert all(line.endswith("--attach-steps 50:70 --program train.py") for line in launched)
