"""What every command prints and what every table holds, on the samples and on real reports, pinned byte by byte.

Texts that people read, and tables, are files under `frozen/`: a change shows which row and cell
changed. Documents, pages, traces and single operations are digests in `frozen/digests/`, a line for
each part.
"""

import hashlib
import io
import json
import os
import re
import shutil
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.csv
import pytest
from typer.testing import CliRunner

from nsyspipe import api
from nsyspipe.cli.app import app
from tests.conftest import REAL, SAMPLES
from tests.read_once import load_once


class Totals(NamedTuple):
    """How rows of single operations are summed up: by which columns, and which columns are added."""

    by: tuple[str, ...]
    summed: tuple[str, ...]


COMMANDS = (
    "",
    "analyze",
    "annotate",
    "compare",
    "convert",
    "dashboard",
    "diff",
    "doctor",
    "explain",
    "mcp",
    "redact",
    "schema",
    "whatif",
)
TABLES = (
    "ranks",
    "steps",
    "breakdown",
    "phases",
    "collectives",
    "stragglers",
    "links",
    "findings",
    "kernels",
    "summary",
    "rank_summary",
    "phase_summary",
    "idle_calls",
    "timeline",
    "host_steps",
    "problems",
)
REPORTS = [path.name for folder in (REAL, SAMPLES) for path in folder.glob("*.sqlite*")]
RUNS = sorted({re.sub(r"(_\d+)?\.sqlite(\.xz)?$", "", name) for name in REPORTS})
# One row a line; of the other tables, one cell a line, so that a new column leaves the old lines
# alone.
LONG_TABLES = ("collectives", "kernels", "phases")
# Tables of single operations have too many rows to read. Their totals are pinned as rows, and a
# digest pins the rest.
BARS = Totals(
    by=("rank", "lane"),
    summed=("busy_ns", "exposed_ns", "wait_ns", "n_operations"),
)
EVENTS = Totals(
    by=("rank", "step", "phase", "category", "stream_id"),
    summed=("dur_ns", "bytes"),
)
# Shown in every format, not in text alone: a run of each kind.
SHOWN = (
    "2gpu-fsdp2",
    "2gpu-gpt-b25-shm",
    "2gpu-graph",
    "baseline",
    "ddp-2gpu-straggler",
    "ddp-4gpu-before",
    "ddp-4gpu-onefile",
)
BESIDE = [
    ("diff", ("ddp-4gpu-before", "ddp-4gpu-after")),
    ("diff", ("2gpu-gpt-b25-shm", "2gpu-gpt-b25")),
    ("diff", ("2gpu-graph", "2gpu-graph-node")),
    ("compare", ("ddp-1gpu", "ddp-2gpu", "ddp-4gpu")),
    ("compare", ("ddp-4gpu-before", "ddp-4gpu-after")),
]
CHANGES = {
    "2gpu-gpt-b25-shm": ["--link", "h200"],
    "2gpu-gpt-b25": ["--bucket-mb", "100"],
    "2gpu-gpt-one-shm": ["--perfect-overlap"],
    "ddp-4gpu-before": ["--bucket-mb", "25"],
    "ddp-4gpu-shm": ["--gradient-dtype", "bf16"],
    "2gpu-graph": ["--no-wait"],
}
# The quickest of each kind: the others take a second each, and run with the slow tests.
QUICK = ("baseline", "2gpu-graph", "ddp-2gpu-straggler")


def some(names):
    return [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.fixture(scope="module")
def reports(real, tmp_path_factory):  # and nothing else, so that no log is found beside them
    folder = tmp_path_factory.mktemp("reports")
    for report in SAMPLES.glob("*.sqlite"):
        shutil.copy(report, folder)
    for report in real.glob("*.sqlite"):
        os.link(report, folder / report.name)
    return folder


@pytest.fixture(scope="module")
def load():
    """Return `load`, by which each run is read once for all that is said of it here."""
    return load_once()


@pytest.fixture
def called(reports, load, monkeypatch, tmp_path):
    monkeypatch.setattr(api, "load", load)
    monkeypatch.chdir(reports)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")

    def run(*arguments):
        result = CliRunner().invoke(app, [*map(str, arguments)], prog_name="nsyspipe")
        assert result.exception is None or isinstance(result.exception, SystemExit)
        errors = f"--- stderr ---\n{result.stderr}" if result.stderr else ""
        code = f"--- exit {result.exit_code} ---\n" if result.exit_code else ""
        return (result.stdout + errors + code).replace(str(tmp_path), "TMP")

    return run


@pytest.fixture
def written(called, tmp_path):
    files = {name: tmp_path / f"answer.{name}" for name in ("markdown", "json", "html")}
    options = [word for name, path in files.items() for word in (f"--{name}", path)]

    def run(*arguments):
        for path in files.values():
            path.unlink(missing_ok=True)
        text = called(*arguments, *options)
        markdown, document, page = (path.read_bytes() for path in files.values())
        return text, markdown.decode(), document.decode(), page

    return run


@pytest.fixture
def digested(pinned):
    return lambda name, parts: pinned(
        f"digests/{name}.json",
        json.dumps({part: digest(content) for part, content in parts.items()}, indent=1) + "\n",
    )


def digest(content):
    return hashlib.sha256(
        content if isinstance(content, bytes) else str(content).encode()
    ).hexdigest()[:16]


def parts_of(document):
    return {key: json.dumps(value, sort_keys=True) for key, value in json.loads(document).items()}


def as_csv(table):
    """Return a table as CSV: a header, then one row a line in the table's own order."""
    sink = io.BytesIO()
    pyarrow.csv.write_csv(table, sink)
    return sink.getvalue().decode()


def as_json(table):
    """Return a table as JSON with one cell a line; JSON text inside a cell is spread over lines too."""
    rows = table.to_pylist()
    for row in rows:
        if row.get("evidence"):
            row["evidence"] = json.loads(row["evidence"])
    return json.dumps(rows, indent=1, default=str) + "\n"


def totals(table, kind):
    """Return the number of rows and the sums of a table for each combination of `kind.by`, sorted."""
    sums = [(name, "sum") for name in kind.summed]
    grouped = table.group_by(list(kind.by)).aggregate([([], "count_all"), *sums])
    return grouped.sort_by([(name, "ascending") for name in kind.by])


def table_digest(table):
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    shape = f"{table.num_rows} rows of {table.num_columns}"
    return f"{shape}: {digest(sink.getvalue().to_pybytes())}"


def inputs(run):
    return [f"{run}_*.sqlite"] if list(Path().glob(f"{run}_*.sqlite")) else [f"{run}.sqlite"]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_what_it_was(command, called, pinned):
    pinned(f"help/{command or 'nsyspipe'}.txt", called(*command.split(), "--help"))


@pytest.mark.parametrize("run", some(RUNS))
def test_what_a_run_says_is_what_it_was(run, called, pinned):
    pinned(f"analyze/{run}.txt", called("analyze", *inputs(run), "-j", "1"))
    pinned(f"doctor/{run}.txt", called("doctor", *inputs(run)))


@pytest.mark.slow
@pytest.mark.parametrize("run", some(RUNS))
def test_every_table_of_a_run_is_what_it_was(run, called, load, pinned):
    whole = load(*inputs(run), jobs=1)
    digests = {}
    for name in TABLES:
        value = getattr(whole, name)
        table = value() if callable(value) else value
        if name == "timeline":
            pinned(f"tables/{run}/timeline-totals.csv", as_csv(totals(table, BARS)))
            digests[name] = table_digest(table)
        elif name in LONG_TABLES:
            pinned(f"tables/{run}/{name}.csv", as_csv(table))
        else:
            pinned(f"tables/{run}/{name}.json", as_json(table))
    for rank, events, phase_ranges in whole.operations():
        pinned(f"tables/{run}/events-of-rank-{rank}-totals.csv", as_csv(totals(events, EVENTS)))
        digests[f"events of rank {rank}"] = table_digest(events)
        digests[f"phase ranges of rank {rank}"] = table_digest(phase_ranges)
    pinned(f"digests/tables/{run}.json", json.dumps(digests, indent=1) + "\n")


@pytest.mark.slow
@pytest.mark.parametrize("run", some(SHOWN))
def test_other_formats_of_a_run_are_what_they_were(run, written, pinned, digested, tmp_path):
    trace = tmp_path / "trace.pftrace"
    _, summary, document, page = written("analyze", *inputs(run), "-j", "1", "--perfetto", trace)
    _, examined, answers, examined_page = written("doctor", *inputs(run))
    pinned(f"markdown/{run}.md", summary)
    parts = parts_of(document) | {"--html": page, "--perfetto": trace.read_bytes()}
    digested(
        f"analyze/{run}",
        parts | {f"doctor {key}": value for key, value in parts_of(answers).items()},
    )
    pinned(f"doctor/{run}.md", examined)
    digested(f"doctor/{run}", {"--html": examined_page})


@pytest.mark.slow
@pytest.mark.parametrize(("command", "runs"), BESIDE)
def test_runs_beside_each_other_are_what_they_were(command, runs, written, pinned, digested):
    name = f"{command}/{command}-{'-'.join(runs)}"
    text, markdown, document, page = written(command, *(inputs(run)[0] for run in runs), "-j", "1")
    pinned(f"{name}.txt", text)
    pinned(f"{name}.md", markdown)
    digested(name, parts_of(document) | {"--html": page})


@pytest.mark.slow
@pytest.mark.parametrize("run", CHANGES)
def test_what_if_answers_what_it_did(run, written, pinned, digested):
    for name, change in ((f"whatif/{run}-advice", []), (f"whatif/{run}-change", CHANGES[run])):
        text, markdown, document, page = written("whatif", *inputs(run), "-j", "1", *change)
        pinned(f"{name}.txt", text)
        pinned(f"{name}.md", markdown)
        digested(name, {"all": document, "--html": page})


@pytest.mark.slow
def test_schema_is_what_it_was(called, pinned, digested):
    pinned("schema/list.txt", called("schema"))
    pinned("schema/tables.txt", called("schema", "-v"))
    for table in ("steps", "collectives", "findings"):
        pinned(f"schema/{table}.txt", called("schema", table))
    digested("schema/reference", {"markdown": called("schema", "--markdown")})


def test_explanations_are_what_they_were(called, pinned):
    pinned("explain/all.txt", called("explain"))
    for name in ("single-bucket", "estimates", "exposed_comm", "few-steps", "start_ns", "rank"):
        pinned(f"explain/{name}.txt", called("explain", name))


@pytest.mark.slow
def test_copies_without_secrets_are_what_they_were(called, pinned, tmp_path):
    pinned(
        "redact/2gpu-gpt-b25_0.txt",
        called("redact", "2gpu-gpt-b25_0.sqlite", tmp_path / "copy.sqlite"),
    )


@pytest.mark.slow
def test_a_dashboard_is_what_it_was(called, pinned, digested, tmp_path):
    store, page = tmp_path / "store", tmp_path / "dashboard.html"
    for run in ("ddp-4gpu-before", "ddp-4gpu-after", "ddp-4gpu-shm"):
        called("analyze", *inputs(run), "-j", "1", "--run-id", run, "--out", store, "-q")
    pinned("dashboard/printed.txt", called("dashboard", store, "-o", page))
    digested(
        "dashboard/page", {"page": page.read_text(encoding="utf-8").replace(str(tmp_path), "TMP")}
    )
