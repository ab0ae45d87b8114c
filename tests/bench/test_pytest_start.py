"""What the pytest plugin costs a session that has no marked test, printed.

    pytest -m bench -n 0 -s tests/bench/test_pytest_start.py

Sessions of ``pytest --collect-only`` with and without the plugin run in turns, so what else the
machine does falls on both. They collect one test, and load no other plugins that are installed, so
the ratio is as large as it can be.
"""

import os
import statistics
import subprocess
import sys
import time

import pytest

from tests.conftest import SAMPLES
from tests.pytest_plugin.conftest import write_entry_points

pytestmark = pytest.mark.bench
N_TURNS = 30
OTHERS = ("anyio", "hypothesispytest", "pytest_cov", "randomly", "xdist", "xdist.looponfail")


def session_s(folder, path, *arguments):
    """Return how long a session takes that collects the tests of a folder."""
    others = [word for name in OTHERS for word in ("-p", f"no:{name}")]
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", *others, *arguments]
    variables = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, path))}
    start_s = time.perf_counter()
    subprocess.run(command, cwd=folder, env=variables, capture_output=True, check=True)
    return time.perf_counter() - start_s


def test_what_the_plugin_adds_to_a_session(tmp_path, tmp_path_factory):
    (tmp_path / "test_one.py").write_text("def test(): pass\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    root = SAMPLES.parent
    with_plugin = [write_entry_points(tmp_path_factory.mktemp("installed")), root]
    with_s, without_s = [], []
    for _ in range(N_TURNS):
        with_s.append(session_s(tmp_path, with_plugin))
        without_s.append(session_s(tmp_path, [root], "-p", "no:nsyspipe"))
    medians_s = statistics.median(with_s), statistics.median(without_s)
    ratio = medians_s[0] / medians_s[1]
    print(
        f"\npytest --collect-only: {1000 * medians_s[0]:.0f} ms with the plugin, "
        f"{1000 * medians_s[1]:.0f} ms without, ratio {ratio:.3f} (median of {N_TURNS} turns)"
    )
