"""How long the answers about a change take, as a user sees it: another process, from its start to its end.

    pytest -m bench -n 0 -s tests/bench/test_diff_speed.py

Asked for: a diff of two saved runs under 1 s, the menu of what-if under 1.5 s beyond what analyze takes.
"""

from __future__ import annotations

import json
import sys

import pytest

import nsyspipe
from nsyspipe.store.write import save
from tests.bench.test_analyze_speed import _child
from tests.conftest import SAMPLES

pytestmark = pytest.mark.bench
NAMES = ("ddp-4gpu-before", "ddp-4gpu-after")


def test_answers_about_a_change(tmp_path, capsys):
    for name in NAMES:
        save(nsyspipe.load(SAMPLES / f"{name}_*.sqlite", run_id=name, jobs=1), tmp_path / "store")
    sides = [str(tmp_path / "store" / "runs" / f"run_id={name}") for name in NAMES]
    reports, out = str(SAMPLES / f"{NAMES[0]}_*.sqlite"), tmp_path / "diff.json"
    ways = {
        "diff of two saved runs": ["diff", *sides, "--json", str(out), "--force"],
        "analyze": ["analyze", reports, "--no-progress"],
        "whatif, the menu": ["whatif", reports, "--no-progress"],
    }
    found = {name: [] for name in ways}
    for _ in range(3):
        for name, arguments in ways.items():
            found[name].append(_child([sys.executable, "-m", "nsyspipe", *arguments])["seconds"])
    assert json.loads(out.read_text("utf-8"))["verdict"] == "improvement"
    with capsys.disabled():
        print()
        for name, seconds in found.items():
            print(f"{name}: {min(seconds):.2f} s")
