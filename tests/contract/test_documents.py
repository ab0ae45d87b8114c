"""README.md and docs/ say the truth: their commands run, output is real, what cannot run here names only what there is.

The fenced blocks of a page are run in order, in a directory that has only ``sample_reports/``, and
``captures/`` for the README, where a command that needs GPUs makes them. A block below
``<!-- not run: WHY -->`` is not run: its commands, options and names are looked up.
``--update-golden`` writes the
output of ``console`` blocks anew."""

import ast
import importlib
import json
import re
import shlex
import subprocess
from datetime import UTC
from functools import cache

import duckdb
import pandas as pd
import pytest
import typer.main
import typer.testing
import yaml

import nsyspipe
from nsyspipe import api
from nsyspipe.cli.app import app
from nsyspipe.comparison.gate import read_settings
from nsyspipe.reader.fabric import read_nccl_logs
from tests.conftest import SAMPLES
from tests.read_once import load_once

ROOT = SAMPLES.parent
README = ROOT / "README.md"
DOCS = ROOT / "docs"
# Pages about the code, and pages that are written by a command and checked where the command is
# tested.
NOT_FOR_USERS = {DOCS / "architecture.md"}
WRITTEN_BY_COMMANDS = {
    *(DOCS / "reference" / f"{name}.md" for name in ("tables", "cli", "python")),
    *(DOCS / "findings").glob("*.md"),
}
PAGES = sorted({*DOCS.rglob("*.md")} - NOT_FOR_USERS - WRITTEN_BY_COMMANDS)
DOCUMENTS = [README, *PAGES]
TERMINAL_WIDTH = 80  # columns of the console blocks
SUPERSET = DOCS / "examples" / "superset"
RUNS = ("ddp-4gpu-before", "ddp-4gpu-after")  # in order of capture
# Options of other programs.
OPTIONS = (
    "--agent --only --questions --replies --bind --container-image --container-mounts --container-workdir --network --nv "
    "--stop-on-range-end "
    "--body-file --cap-add --capture-range-end --cuda-memory-usage --gpu-metrics-device --gpu-metrics-devices --gpu-metrics-frequency --python-sampling --cudabacktrace --delay --dist --duration --dynamic-tables --email "
    "--firstname "
    "--force-overwrite "
    "--gpus --group --include-blobs --index-url --ipc --job --junitxml --lastname --nccl-trace --no-deps "
    "--no-python "
    "--nodes --nproc_per_node "
    "--gpus-per-node --lr --nthreads --ntasks --password --rm --sample --scheduler-file --seed "
    "--tables --type --user --username --with-threads"
)


def blocks(path, *languages, is_run=True):
    """Return the texts of a document's fenced blocks in some languages."""
    found = re.findall(
        r"(<!-- not run: [^\n]+ -->\n+)?```(\w+)\n(.*?)```",
        path.read_text("utf-8"),
        flags=re.DOTALL,
    )
    return [text for why, language, text in found if language in languages and is_run == (not why)]


def lines(text):
    """Return the commands of a block, and of the ``run:`` lines of YAML."""
    text = re.sub(r"(?m)^ *(- )?(run|script): ", "", text).replace("\\\n", " ")
    return [
        line.strip()
        for line in text.splitlines()
        if line.strip() and not line.strip().startswith("#")
    ]


# The blocks of the README that set nsyspipe up: .ci/run runs them word for word.
RUN_BY_CI = {
    line
    for block in blocks(README, "bash")
    for line in lines(block)
    if not line.startswith("nsyspipe ")
}
PLUGIN = (ROOT / "nsyspipe" / "pytest_plugin" / "hooks.py").read_text("utf-8")
QUERIES = blocks(DOCS / "how-to" / "dashboards.md", "sql")
LAUNCHERS = "".join(path.read_text("utf-8") for path in (ROOT / "launchers").glob("*.*"))
SOURCES = LAUNCHERS + "".join(path.read_text("utf-8") for path in (ROOT / "nsyspipe").rglob("*.py"))
# Sessions of the plugin, which tests/pytest_plugin runs.
OF_PYTEST = "$ pytest "
OUTPUTS: dict[str, str] = {}  # of commands that several pages have
WRITES_FILES = re.compile(r" (-o|--out|--html|--perfetto|redact|--(json|csv|markdown) (?!-( |$)))")
COMMANDS = vars(typer.main.get_command(app))["commands"]


def options_in(text):
    """Return the long options that stand in a text."""
    return {option.rstrip("-") for option in re.findall(r"(?<![\w-])--[a-z][\w-]+", text)}


def having(*languages):
    return [pytest.param(path, id=path.stem) for path in DOCUMENTS if blocks(path, *languages)]


@pytest.fixture(scope="module")
def load():
    """Return `load`, by which the samples are read once for all pages."""
    return load_once()


@pytest.fixture
def world(tmp_path, monkeypatch, load):
    """Go to the directory that commands of documents run in, as wide as documents are; return how to run one."""
    (tmp_path / "sample_reports").symlink_to(SAMPLES)
    (tmp_path / "captures").mkdir()
    for report in SAMPLES.glob("ddp-4gpu-before_*.sqlite"):
        (tmp_path / "captures" / report.name).symlink_to(report)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(api, "load", load)
    monkeypatch.setenv("COLUMNS", str(TERMINAL_WIDTH))
    monkeypatch.setenv("NO_COLOR", "1")

    def run(line):
        command, _, pipe = line.partition(" | head -n ")
        if command not in OUTPUTS or WRITES_FILES.search(command):
            result = typer.testing.CliRunner().invoke(
                app, shlex.split(command)[1:], prog_name="nsyspipe"
            )
            assert result.exit_code == 0, f"{line}\n{result.stderr}"
            OUTPUTS[command] = result.stdout
        return "".join(OUTPUTS[command].splitlines(keepends=True)[: int(pipe) if pipe else None])

    return run


def test_the_readme_begins_with_a_command_that_sets_up_everything():
    assert lines(blocks(README, "bash")[0])[0] in RUN_BY_CI


def linked_pages(path):
    """Return the Markdown files that a page links to."""
    links = re.findall(r"\]\(([^)#\s]+\.md)", path.read_text("utf-8"))
    return {(path.parent / link).resolve() for link in links if ":" not in link}


def test_every_page_can_be_reached_from_the_first_one():
    reached, to_visit = set(), [DOCS / "index.md"]
    while to_visit:
        page = to_visit.pop()
        if page not in reached and page.exists():
            reached.add(page)
            to_visit.extend(linked_pages(page))
    assert sorted({*PAGES, *WRITTEN_BY_COMMANDS} - reached) == []


@pytest.mark.parametrize("image", sorted((DOCS / "images").iterdir()), ids=lambda image: image.name)
def test_an_image_is_small(image):
    assert image.stat().st_size <= 300_000


@pytest.mark.parametrize("path", [*DOCUMENTS, ROOT / "CONTRIBUTING.md"], ids=lambda path: path.stem)
def test_groups_are_installed_by_a_pip_that_knows_them(path):
    for block in blocks(path, "bash") + blocks(path, "bash", is_run=False):
        assert "-qU pip && " in block.partition("--group")[0] or "--group" not in block, (
            block
        )  # that of a new venv is too old


# What NCCL writes of a host, a network and a user.
PRIVATE_LOG = (
    "Bootstrap: Using eth0:192.0.2.2<0>",
    "NCCL_DEBUG_FILE set by environment to /home/me/x.log",
)


def test_a_log_without_its_host_and_addresses_says_the_same(tmp_path):
    (command,) = (
        one
        for one in blocks(DOCS / "how-to" / "share.md", "bash", is_run=False)
        if one.startswith("sed ")
    )
    for real in [*(ROOT / "tests" / "real" / "logs").glob("*.log"), *SAMPLES.glob("*.log")]:
        log, redacted = tmp_path / "all.log", tmp_path / "redacted.log"
        log.write_text(
            real.read_text() + "".join(f"node0:7:7 [0] NCCL INFO {one}\n" for one in PRIVATE_LOG)
        )
        with redacted.open("w") as file:
            subprocess.run([*shlex.split(command)[:3], log], stdout=file, check=True)
        assert not re.search(r"node0|192\.|home", redacted.read_text()), real
        assert repr(read_nccl_logs([redacted])) == repr(read_nccl_logs([real])).replace(
            "node0", "host-0"
        ), real


@pytest.mark.slow
@pytest.mark.parametrize("path", having("console"))
def test_console_examples_are_real_output(world, request, path):
    text = path.read_text("utf-8")
    for block in blocks(path, "console"):
        if block.startswith(OF_PYTEST):
            continue
        assert block.startswith("$ nsyspipe "), block
        real = "".join(f"$ {line}\n{world(line)}" for line in re.findall(r"(?m)^\$ (.+)\n", block))
        text = text.replace(block, real)
    if request.config.getoption("--update-golden"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text("utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("path", having("bash"))
def test_commands_run(world, path):
    for line in (line for block in blocks(path, "bash") for line in lines(block)):
        if path == README and line in RUN_BY_CI:
            continue
        assert line.startswith("nsyspipe "), f"below <!-- not run: WHY -->: {line}"
        world(line)


@pytest.mark.slow
@pytest.mark.parametrize("path", having("python"))
def test_python_runs(world, path):
    names = {}  # the blocks of a page are one program
    for block in blocks(path, "python"):
        exec(compile(block, path.name, "exec"), names)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.stem)
def test_what_is_not_run_names_what_there_is(path):
    for line in (
        line for block in blocks(path, "bash", "yaml", is_run=False) for line in lines(block)
    ):
        for command in re.split(r" (?:&&|\|\||\|) ", line):
            words = re.sub(r"^(\w+=\S* )+", "", command.partition(" > ")[0]).split()
            if words and words[0].endswith("nsyspipe"):
                COMMANDS[words[1]].make_context(words[1], shlex.split(" ".join(words[2:])))
            elif words and words[0].startswith("launchers/"):
                own = words[: words.index("--")] if "--" in words else words
                told = subprocess.run(
                    [ROOT / words[0], "--help"], capture_output=True, text=True, check=True
                ).stdout
                assert set(options_in(" ".join(own))) <= options_in(told), line
    for node in (
        node
        for block in blocks(path, "python", is_run=False)
        for node in ast.walk(ast.parse(block))
    ):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("nsyspipe"):
            module = importlib.import_module(node.module)
            assert {one.name for one in node.names} <= {
                *dir(module),
                *module.__all__,
                *module._CALLBACKS,
            }, node


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.stem)
def test_options_and_variables_that_are_named_exist(path, tmp_path):
    text = path.read_text("utf-8")
    spans = re.findall(r"```.*?```|`[^`\n]+`", text, flags=re.DOTALL)
    named = options_in(" ".join(spans))
    commands = {
        words[1]
        for span in spans
        if len(words := span.strip("`").split()) > 1 and words[0] == "nsyspipe"
    }
    assert {one for one in commands if one.isalpha()} <= COMMANDS.keys()
    ours = {
        name for command in COMMANDS.values() for option in command.params for name in option.opts
    }
    assert sorted(named - ours - {*OPTIONS.split()} - options_in(LAUNCHERS + PLUGIN)) == []
    assert [name for name in re.findall(r"\bNSYSPIPE_\w+", text) if name not in SOURCES] == []
    for block in blocks(path, "toml"):
        (tmp_path / "pyproject.toml").write_text(block, encoding="utf-8")
        assert read_settings(tmp_path).metrics, block
    assert not re.search(
        r"pip install [^.\n]*nsyspipe(?!/)", text
    )  # it is on no index: another's would come


# What the queries of docs/how-to/dashboards.md answer, worked out from the samples' documents, and
# from a run.
@cache
def document(run):
    return json.loads((SAMPLES / f"{run}.json").read_text(encoding="utf-8"))


def test_the_keys_of_the_document_are_listed():
    text = " ".join((ROOT / "docs/how-to/outputs.md").read_text(encoding="utf-8").split())
    listed = re.findall(
        r"`(\w+)`", text.partition("The document has these keys:")[2].partition(".")[0]
    )
    assert listed == [key for key in document("ddp-4gpu-before") if not key.endswith("_version")]


def rows_of(table):
    """Return the rows of both runs that figures rest on."""
    rows = [{"run": run} | row for run in RUNS for row in document(run)[table]]
    return pd.DataFrame([row for row in rows if row.get("in_summary", True)])


def tuples(frame):
    return [*frame.itertuples(index=False, name=None)]


def trend():
    figures = [
        (document(run)["run"]["captured_at_utc"], run, document(run)["summary"]) for run in RUNS
    ]
    return [
        (at, run, one["step_time_ns"] / 1e6, one["comm_share"], one["exposed_comm_share"])
        for at, run, one in figures
    ]


def exposed_by_rank():
    steps = rows_of("steps").assign(label=lambda row: row["run"])  # the samples' IDs are labels
    means = steps.groupby(["run", "label", "rank"])[["exposed_comm_ns", "wait_ns"]].mean() / 1e6
    return tuples(means.reset_index())


def slowest_steps():
    slowest = (
        rows_of("steps")
        .sort_values(["wall_ns", "rank"])
        .groupby(["run", "step"])
        .tail(1)
        .nlargest(5, "wall_ns")
    )
    return tuples(slowest.assign(ms=slowest["wall_ns"] / 1e6)[["run", "step", "ms", "rank"]])


def stragglers():
    rows = rows_of("stragglers").sort_values(
        ["lateness_ns", "run", "rank"], ascending=[False, True, True]
    )
    rows[["late", "caused"]] = rows[["lateness_ns", "wait_caused_ns"]] / 1e6
    return tuples(rows[["run", "rank", "n_arrived_last", "late", "caused"]])


def kernels():
    run = nsyspipe.load(SAMPLES.glob("ddp-4gpu-after_*.sqlite"), jobs=1)
    columns = ["n_in_summary", "in_summary_ns", "overlapped_in_summary_ns"]
    top = (
        run.kernels()
        .to_pandas()
        .groupby("name")[columns]
        .sum()
        .nlargest(10, "in_summary_ns")
        .reset_index()
    )
    return [(name, n, total / 1e6, beside / total) for name, n, total, beside in tuples(top)]


ANSWERS = (trend, exposed_by_rank, slowest_steps, stragglers, kernels)


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: answer.__name__)
def test_a_query_says_what_the_samples_say(answer, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert len(QUERIES) == len(ANSWERS)
    query = QUERIES[ANSWERS.index(answer)]
    rows = [tuple(row.values()) for row in duckdb.sql(query).to_arrow_table().to_pylist()]
    told = [
        tuple(
            f"{cell.astimezone(UTC):%Y-%m-%dT%H:%M:%S.%fZ}" if hasattr(cell, "hour") else cell
            for cell in row
        )
        for row in rows
    ]
    assert told == answer()


def test_the_query_where_runs_are_saved_is_one_of_these():
    (query,) = blocks(DOCS / "how-to" / "outputs.md", "sql")
    assert query == QUERIES[ANSWERS.index(exposed_by_rank)]


def test_the_dashboard_for_superset_answers_from_the_samples():
    database, datasets, answers = duckdb.connect(), {}, {}
    for table in ("runs", "steps"):
        database.execute(
            f"CREATE VIEW {table} AS FROM read_parquet('{SAMPLES}/dataset/{table}/*/*.parquet')"
        )
    for path in (SUPERSET / "datasets").glob("*/*.yaml"):
        dataset = yaml.safe_load(path.read_text(encoding="utf-8"))
        datasets[dataset["uuid"]] = answer = database.sql(dataset["sql"])
        assert {*answer.columns} == {column["column_name"] for column in dataset["columns"]}, path
    for path in (SUPERSET / "charts").glob("*.yaml"):
        text = path.read_text(encoding="utf-8")
        chart = {
            "x_axis": "run",
            "groupby": [],
            "all_columns": [],
            **yaml.safe_load(text)["params"],
        }
        names = (
            pd.Series([chart["x_axis"], chart["groupby"], chart["all_columns"]]).explode().dropna()
        )
        query = [*(f'"{name}"' for name in names), *re.findall(r"sqlExpression: '?([^'\n]+)", text)]
        answers[path.stem] = (
            datasets[yaml.safe_load(text)["dataset_uuid"]].aggregate(", ".join(query)).fetchall()
        )
    shares = sorted(row[-1] / 100 for row in answers["exposed_comm"])
    sums = rows_of("steps").groupby(["run", "rank"])[["exposed_comm_ns", "wall_ns"]].sum()
    assert shares == pytest.approx(sorted(sums["exposed_comm_ns"] / sums["wall_ns"]))
    walls = sorted(rows_of("steps").groupby("run")["wall_ns"].mean() / 1e6)
    assert sorted(sum(parts) for _, *parts in answers["breakdown"]) == pytest.approx(walls)
    assert len(answers["step_time"]) == len(answers["what_changed"]) == len(RUNS)


PACKAGE = ROOT / "nsyspipe"
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
LINKED = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
FENCED = re.compile(r"^```.*?^```$", flags=re.DOTALL | re.MULTILINE)


def anchors(text):
    """Return what a link may name in a page: its headings as GitHub writes them, and anchors of its own."""
    headings = re.findall(r"^#+ (.+)$", FENCED.sub("", text), flags=re.MULTILINE)
    words = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {one.replace(" ", "-") for one in words} | set(re.findall(r'<a id="([^"]+)"', text))


def broken_links(path):
    """Return the links of a page that lead to no file of the repository, or to no heading of it."""
    text = FENCED.sub("", path.read_text(encoding="utf-8"))
    broken = []
    for link in re.findall(r'(?:\]\(|src="|srcset=")([^)"\s]+)[)"]', text):
        if re.match(r"[a-z]+:", link):
            continue
        place, _, anchor = link.partition("#")
        target = path.parent / place if place else path
        if not target.exists() or (
            anchor and anchor not in anchors(target.read_text(encoding="utf-8"))
        ):
            broken.append(link)
    return broken


def test_every_file_that_is_named_exists():
    names = {name for name in re.findall(r"[\w/]+\.py\b", ARCHITECTURE) if "NAME" not in name}
    assert names
    assert [
        name
        for name in names
        if not ((ROOT if name.startswith("tests/") else PACKAGE) / name).is_file()
    ] == []


def test_every_file_of_the_package_has_its_line():
    lines = re.findall(r"^- `([\w/]+\.py)`: .+$", ARCHITECTURE, flags=re.MULTILINE)
    assert len(set(lines)) == len(lines)
    # A room's own file holds what the room is, and no code; that of capture is what training
    # programs import.
    own = {path for path in PACKAGE.rglob("*/__init__.py") if path.parent.name != "capture"}
    assert (
        sorted(
            {str(path.relative_to(PACKAGE)) for path in set(PACKAGE.rglob("*.py")) - own}
            - set(lines)
        )
        == []
    )


def test_the_drawing_has_the_layers_of_the_import_contract():
    contract = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    layers = re.search(r"\nlayers = \[\n(.*?)\]", contract, flags=re.DOTALL)
    assert layers is not None
    drawing = [line.strip() for line in ARCHITECTURE.split("```")[1].splitlines() if line.strip()]
    wanted = re.findall(r'"([^"]+)"', layers[1])
    assert [
        line for line, layer in zip(drawing, wanted, strict=True) if not line.startswith(layer)
    ] == []


def test_hooks_before_a_commit_are_commands_of_ci():
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    hooks = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    commands = re.findall(r"^\s+entry: (.+)$", hooks, flags=re.MULTILINE)
    assert commands
    assert [command for command in commands if command not in ci] == []


@pytest.mark.parametrize("path", LINKED, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path):
    assert broken_links(path) == []


def test_a_link_to_nothing_is_found(tmp_path):
    page = tmp_path / "page.md"
    links = "[a](page.md#a-page) [b](gone.md) [c](#gone) [d](https://example.org/x)"
    page.write_text(f"# A page\n{links}\n```\n[e](gone.md)\n```\n", encoding="utf-8")
    assert broken_links(page) == ["gone.md", "#gone"]
