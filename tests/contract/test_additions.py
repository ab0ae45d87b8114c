"""How many files an addition touches, proved by making it in a copy of the package: "How to add" in docs/architecture.md."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import nsyspipe
from tests.build.trace import steady_rank

# What is added: file -> the text that stands there, and what stands there then; a new file has no text before.
RULE = '''"""Rule ``any-step``: there are steps."""

from __future__ import annotations

from nsyspipe.findings.model import Answer, Evidence, Finding

NEEDS = ("idle_ns",)


def any_step(evidence: Evidence) -> Answer:
    """Fire always."""
    return Finding("there are steps", "look", "look at them", 1.0, {"n_rows": evidence.steps.num_rows})
'''
FINDING = {"findings/any_step.py": ("", RULE)}
COLUMN = {
    "model/schema.py": ("    idle_pause_ns ", "    busy_ns   ns   |C u M u P| <- derived\n    idle_pause_ns "),
    "analysis/breakdown.py": (
        '        "wall_ns": wall,\n',
        '        "wall_ns": wall,\n        "busy_ns": compute + (comm_ns - overlap) + exposed_memory,\n',
    ),
}
EXPORT_VERSION = {"reader/report.py": ("NEWEST_TESTED = (3, 25)", "NEWEST_TESTED = (4, 1)")}


@pytest.fixture
def analyzed(tmp_path):
    """Return a function that makes an addition in a copy of the package, and lets the copy analyze two reports."""

    def analyze(addition, *options, schema_version="3.11.1"):
        package = tmp_path / "copy" / "nsyspipe"
        shutil.copytree(Path(nsyspipe.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
        for name, (before, after) in addition.items():
            text = (package / name).read_text() if before else ""
            assert text.count(before) == 1 or not before, name
            (package / name).write_text(text.replace(before, after) if before else after)
        for rank in range(2):
            report = steady_rank(rank).meta(EXPORT_SCHEMA_VERSION=schema_version)
            report.write(tmp_path / f"r_{rank}.sqlite")
        command = [sys.executable, "-P", "-m", "nsyspipe", "analyze", *map(str, sorted(tmp_path.glob("r_*.sqlite")))]
        done = subprocess.run(
            [*command, "-j", "1", "--json", "-", *options],
            env=os.environ | {"PYTHONPATH": str(tmp_path / "copy")},
            cwd=tmp_path,
            capture_output=True,
            check=True,
        )
        return json.loads(done.stdout)

    return analyze


@pytest.mark.slow
def test_a_finding_is_one_file(analyzed):
    assert len(FINDING) == 1
    assert "any-step" in [one["id"] for one in analyzed(FINDING)["findings"]]


@pytest.mark.slow
def test_a_column_of_the_steps_is_two_files_and_stands_in_document_and_dataset(analyzed, tmp_path):
    assert len(COLUMN) == 2
    document = analyzed(COLUMN, "--out", "runs")
    for row in document["steps"]:
        assert row["busy_ns"] == row["wall_ns"] - row["idle_ns"]

    found = pytest.importorskip("duckdb").sql(
        f"select distinct metric from read_parquet('{tmp_path}/runs/metrics/*/*.parquet')"
    )
    assert ("busy_ns",) in found.fetchall()


@pytest.mark.slow
def test_an_export_version_that_changes_nothing_else_is_one_line(analyzed):
    problems = analyzed(EXPORT_VERSION, schema_version="4.1.0")["problems"]
    assert "untested-version" not in [one["code"] for one in problems]


@pytest.mark.slow
def test_without_that_line_the_version_is_said_to_be_untested(analyzed):
    problems = analyzed({}, schema_version="4.1.0")["problems"]
    assert "untested-version" in [one["code"] for one in problems]
