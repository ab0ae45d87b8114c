"""How many files an addition touches, proved by making it in a copy of the package."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import nsyspipe
from nsyspipe.model import figures
from nsyspipe.model.schema import STEPS, SUMMARY
from tests.build.trace import steady_rank

RULE = """def any_step(evidence):
    return Finding("there are steps", "look", "look at them", 1.0, {"n_rows": evidence.steps.num_rows})


RULES: Rules = {
    any_step: ("idle_ns",),
"""
EXPLANATION = "# There are steps\n\nThe run has steps.\n\n## What it means\n\nIt has steps.\n"
COLUMN = """        ns("busy_ns", "|C u M u P|", source="derived"),
        ns(
            "idle_pause_ns",
"""
STEP_TIMES = """STEP_TIMES = DescribedTable(
    name="step_times",
    summary="One row per step.",
    doc="One row per step.",
    key=("step",),
    columns=(
        identifier("step", "step number", source="derived"),
        ns("step_time_ns", "largest window over ranks", source="derived"),
    ),
)

FINDINGS = DescribedTable(
"""
MADE = """            case "step_times":
                longest = tables.steps.group_by("step", use_threads=False).aggregate(
                    [("wall_ns", "max")]
                )
                table = schema.STEP_TIMES.table(longest.rename_columns(["step", "step_time_ns"]))
            case "timeline" | """
ROWS = """def rows(run):
    lines = [f"{row['rank']} {row['step']} {row['wall_ns']}" for row in run.steps().to_pylist()]
    return "\\n".join([run.header.run_id, *lines])


def run_id_of_rows(path):
    return path.read_text().partition("\\n")[0]
"""
MAKER = """FORMATS = {
    "rows": Format(lazily("rows", "rows"), lazily("rows", "run_id_of_rows"), (".rows",),
        "Write the steps as lines; - prints them and nothing else."),
"""
# What is added -> in how many files, and those: in each the texts that stand there, and what stands
# there then; a new file has no text before.
ADDITIONS = {
    "a finding": (
        3,
        {
            "findings/gradients.py": {"RULES: Rules = {\n": RULE},
            "findings/judge.py": {'("profiler-overhead",)': '("profiler-overhead", "any-step")'},
            "report/explanations/findings/any-step.md": {"": EXPLANATION},
        },
    ),
    "a column of the steps": (
        2,
        {
            "model/schema.py": {'        ns(\n            "idle_pause_ns",\n': COLUMN},
            "analysis/breakdown.py": {
                '        "wall_ns": wall_ns,': (
                    '        "busy_ns": wall_ns - idle_ns, "wall_ns": wall_ns,'
                )
            },
        },
    ),
    "a table": (
        2,
        {
            "model/schema.py": {
                "FINDINGS = DescribedTable(\n": STEP_TIMES,
                "    IDLE_CALLS,\n": "    IDLE_CALLS,\n    STEP_TIMES,\n",
                "    LINKS.name: LINKS,\n": (
                    "    LINKS.name: LINKS,\n    STEP_TIMES.name: STEP_TIMES,\n"
                ),
            },
            "report_run.py": {'            case "timeline" | ': MADE},
        },
    ),
    "an output format of a run": (
        2,
        {"report/rows.py": {"": ROWS}, "report/export.py": {"FORMATS = {\n": MAKER}},
    ),
    "an export version": (
        1,
        {"reader/report.py": {"NEWEST_TESTED = (3, 25)": "NEWEST_TESTED = (4, 1)"}},
    ),
}
VERSION = "4.1.0"


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reports")
    for rank in range(2):
        steady_rank(rank).meta(EXPORT_SCHEMA_VERSION=VERSION).write(folder / f"r_{rank}.sqlite")
    return folder


@pytest.fixture(scope="module")
def document(reports, tmp_path_factory):
    """Return what a copy of the package with all additions says of two reports, saved in `runs` of their folder."""
    folder = tmp_path_factory.mktemp("copy")
    package = folder / "nsyspipe"
    shutil.copytree(
        Path(nsyspipe.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__")
    )
    for _, files in ADDITIONS.values():
        for name, changes in files.items():
            for before, after in changes.items():
                text = (package / name).read_text() if before else ""
                assert not before or text.count(before) == 1, (name, before)
                (package / name).write_text(text.replace(before, after) if before else after)
    command = [
        sys.executable,
        "-P",
        "-m",
        "nsyspipe",
        "analyze",
        str(reports),
        "-j",
        "1",
        "--quiet",
    ]
    outputs = ["--json", "run.json", "--rows", "run.rows", "--out", "runs", "--run-id", "x"]
    subprocess.run(
        [*command, *outputs], env=os.environ | {"PYTHONPATH": str(folder)}, cwd=reports, check=True
    )
    return json.loads((reports / "run.json").read_text())


def rows(reports, table):
    return pq.read_table(next((reports / "runs" / table).rglob("*.parquet"))).to_pylist()


@pytest.mark.parametrize("what", ADDITIONS)
def test_an_addition_touches_few_files(what):
    n_files, files = ADDITIONS[what]
    assert len(files) <= n_files


@pytest.mark.slow
def test_each_addition_works(document, reports):
    assert "any-step" in [one["id"] for one in document["findings"]]
    # The column.
    assert all(row["busy_ns"] == row["wall_ns"] - row["idle_ns"] for row in document["steps"])
    assert "busy_ns" in {row["metric"] for row in rows(reports, "metrics")}
    assert "busy_ns" in rows(reports, "steps")[0]
    # The table.
    longest = {
        step: max(row["wall_ns"] for row in document["steps"] if row["step"] == step)
        for step in (1, 2)
    }
    assert {
        row["step"]: row["step_time_ns"] for row in document["step_times"] if row["step"] in (1, 2)
    } == longest
    assert rows(reports, "step_times") == [{"run_id": "x", **row} for row in document["step_times"]]
    # The format is an option and a file.
    first, *lines = (reports / "run.rows").read_text().splitlines()
    assert first == document["run"]["run_id"]
    assert lines == [f"{row['rank']} {row['step']} {row['wall_ns']}" for row in document["steps"]]
    # The export version is tested then and not before.
    assert "untested-version" not in [one["code"] for one in document["problems"]]
    assert "untested-version" in nsyspipe.load(reports, jobs=1).problems["code"].to_pylist()


# Columns that say where a row lies, or which rows count: no figures.
PLACES = {
    "rank",
    "step",
    "start_ns",
    "end_ns",
    "is_complete",
    "in_summary",
    "n_steps",
    "n_summary_steps",
}
FIGURES = {*SUMMARY.names, *STEPS.names} - PLACES


def test_the_registry_names_each_column_and_metric_once():
    assert {*SUMMARY.names} - PLACES <= set(figures.FIGURES) <= FIGURES
    assert len(figures.METRICS) == len(figures.FIGURES)
    assert {one.column for place in figures.PLACES for one in figures.shown(place)} <= set(
        figures.FIGURES
    )


@pytest.mark.parametrize("figure", figures.FIGURES.values(), ids=figures.FIGURES)
def test_a_figure_says_what_it_is(figure):
    assert all((figure.short, figure.label, figure.formula))
    assert figure.better in {"lower", "higher", "neither"}
    assert figure.unit in {
        "ns",
        "1/s",
        "ratio",
        "count",
        "bytes",
        "bytes/s",
        "FLOP/s",
        "token/s",
        "sample/s",
    }


def test_headings_are_as_narrow_as_two_lines_can_be():
    assert figures.FIGURES["backward_overlap_ratio"].heading == "overlap with\nbackward"
    assert figures.FIGURES["idle_share"].heading == "idle"
