"""`nsyspipe skill`: what it prints, what it writes, and that the program has all that it names."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import typer.main
import yaml
from typer.testing import CliRunner

import nsyspipe.report.skill
from nsyspipe.cli.app import app
from nsyspipe.cli.options import CHANGES
from nsyspipe.errors import NsyspipeError, OptionError, OutputError
from nsyspipe.model.schema import DESCRIBED
from nsyspipe.report.skill.fields import jq_filter, parse_path
from nsyspipe.report.skill.questions import QUESTIONS
from tests.conftest import SAMPLES
from tests.contract.docs_index import llms_text
from tests.evals.json_values import values_at

PACKAGE = Path(nsyspipe.report.skill.__file__).parent
COMMANDS = vars(typer.main.get_command(app))["commands"]
FILES = ["SKILL.md", "llms.txt"]
# An agent reads the skill at once.
MAX_LINES = 150


def skill(*arguments):
    return CliRunner().invoke(app, ["skill", *map(str, arguments)])


@pytest.fixture(scope="module")
def text():
    return skill().stdout


@pytest.fixture(scope="module")
def document():
    return json.loads(skill("--json", "-").stdout)


def test_the_skill_is_pinned(text, pinned):
    pinned("skill/SKILL.md", text)


def test_the_index_of_the_docs_has_their_pages(pinned):
    pinned(PACKAGE / "llms.txt", llms_text())


def test_the_front_matter_is_as_the_format_wants_it(text):
    _, front_matter, _ = text.split("---\n", 2)
    fields = yaml.safe_load(front_matter)
    assert fields.keys() == {"name", "description"}
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", fields["name"])
    assert 0 < len(fields["description"]) <= 1024


def test_the_skill_can_be_read_at_once(text):
    assert len(text.splitlines()) <= MAX_LINES


def test_no_placeholder_is_left(text):
    assert "{{" not in text


def test_every_command_has_its_line_of_help(text):
    for name, command in COMMANDS.items():
        assert f"| `nsyspipe {name}` | {command.short_help} |" in text.splitlines()


def test_the_skill_names_every_change_of_whatif(text):
    changes = [
        option
        for option in COMMANDS["whatif"].params
        if getattr(option, "rich_help_panel", None) == CHANGES
    ]
    assert changes
    for option in changes:
        assert f"`{' '.join(filter(None, [*option.opts, option.metavar]))}`" in text


def test_every_command_that_is_named_exists(text):
    named = re.findall(r"`nsyspipe ([a-z]+)", text)
    assert set(named) - COMMANDS.keys() == set()


def test_every_option_that_is_named_is_one_of_its_command(text):
    for command, rest in re.findall(r"`nsyspipe ([a-z]+) ([^`]*)`", text):
        options = {name for option in COMMANDS[command].params for name in option.opts}
        assert set(re.findall(r"--[a-z][a-z-]*", rest)) - options == set()


def test_every_question_has_its_row(text):
    rows = text.splitlines()
    for question in QUESTIONS:
        row = f"| {question.command} | {question.text} | `{question.path}` |"
        assert any(line.startswith(row) for line in rows), question.id


def test_questions_have_ids_of_their_own():
    ids = [question.id for question in QUESTIONS]
    assert len(ids) == len(set(ids))


def test_every_command_of_a_question_prints_json():
    for question in QUESTIONS:
        options = {name for option in COMMANDS[question.command].params for name in option.opts}
        assert "--json" in options


def unit_of(column_name):
    """Return the unit of a column by its name; None if the schema has no such column."""
    units = {
        column.unit
        for table in DESCRIBED.values()
        for column in table.columns
        if column.name == column_name
    }
    return units.pop() if len(units) == 1 else None


# Columns with these units have no unit in the skill.
WITHOUT_UNIT = {"text", "flag", "enum", "json"}


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.id)
def test_a_unit_is_that_of_the_schema(question):
    name = question.path.rpartition(".")[2].partition("[")[0]
    unit = unit_of(name)
    if unit is not None:
        assert question.unit == ("" if unit in WITHOUT_UNIT else unit)


# Real captures in which each field of a command occurs, as arguments.
RUNS_OF_COMMAND = {
    "doctor": [["ddp-4gpu-shm_*.sqlite"]],
    "analyze": [[f"{name}_*.sqlite"] for name in ("ddp-4gpu-shm", "ddp-2gpu-straggler", "ddp-1gpu")]
    + [[str(SAMPLES / "ddp-4gpu-before_*.sqlite")]]  # with a log
    + [["2gpu-counters.sqlite"], ["2gpu-gpt-accum_*.sqlite"], ["4gpu-item-pageable_*.sqlite"]]
    + [["4gpu-tpddp_*.sqlite"]],
    "whatif": [["ddp-4gpu-shm_*.sqlite", "--bucket-mb", "25"]],
    "diff": [["ddp-4gpu-shm_*.sqlite", "ddp-4gpu-shm-bucket100_*.sqlite"]],
    "compare": [["2gpu-gpt-one-shm_*.sqlite", "2gpu-gpt-b25-shm_*.sqlite"]],
}


@pytest.fixture(scope="module")
def documents(real):
    """Return the documents of real captures by command."""
    folder = Path.cwd()
    os.chdir(real)
    try:
        return {
            command: [
                json.loads(CliRunner().invoke(app, [command, *words, "--json", "-"]).stdout)
                for words in runs
            ]
            for command, runs in RUNS_OF_COMMAND.items()
        }
    finally:
        os.chdir(folder)


@pytest.mark.slow
@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.id)
def test_the_field_of_a_question_is_in_the_document_of_its_command(documents, question):
    values = [values_at(document, question.path) for document in documents[question.command]]
    assert any(values), question.path


@pytest.mark.slow
def test_jq_chooses_the_values_of_the_paths(documents):
    program = shutil.which("jq")
    if program is None:
        pytest.skip("jq is not installed")
    for question in QUESTIONS:
        document = documents[question.command][0]
        # A list that is null has no rows for us, and is an error for jq.
        values = values_at(document, question.path)
        if values:
            done = subprocess.run(
                [program, "-c", jq_filter(question.path)],
                input=json.dumps(document),
                capture_output=True,
                text=True,
                check=True,
            )
            assert [json.loads(line) for line in done.stdout.splitlines()] == values, question.id


def test_the_document_has_what_is_written(document, text):
    assert document["files"] == [
        {"name": "SKILL.md", "text": text},
        {"name": "llms.txt", "text": (PACKAGE / "llms.txt").read_text(encoding="utf-8")},
    ]


def test_the_document_has_all_questions(document):
    assert [row["id"] for row in document["questions"]] == [question.id for question in QUESTIONS]
    assert document["questions"][0].keys() == {
        "id",
        "text",
        "command",
        "path",
        "unit",
        "abstain",
        "jq",
    }


@pytest.mark.parametrize(
    ("path", "filter_of_jq"),
    [
        ("verdict", ".verdict"),
        ("findings[0].id", ".findings[0].id"),
        ("steps[].wall_ns", ".steps[].wall_ns"),
        (
            "traffic[rank=null,role=data].busbw_bytes_per_s",
            '.traffic[] | select(.rank == null and .role == "data") | .busbw_bytes_per_s',
        ),
        ("ranks[rank=3].pid", ".ranks[] | select(.rank == 3) | .pid"),
    ],
)
def test_a_path_has_a_filter_of_jq(path, filter_of_jq):
    assert jq_filter(path) == filter_of_jq


@pytest.mark.parametrize("path", ["", "a..b", "a[b", "a[b]", "a.[0]", "a[b=1,]", "a[b=1=2]"])
def test_a_text_that_is_no_path_is_refused(path):
    with pytest.raises(ValueError, match=re.escape(repr(path))):
        parse_path(path)


DOCUMENT = {"rows": [{"rank": None, "ns": 1}, {"rank": 2, "ns": 3}], "empty": [], "null": None}


@pytest.mark.parametrize(
    ("path", "values"),
    [
        ("rows[].ns", [1, 3]),
        ("rows[0].ns", [1]),
        ("rows[2].ns", []),
        ("rows[rank=2].ns", [3]),
        ("rows[rank=null].ns", [1]),
        ("rows[name=a].ns", []),
        ("empty[0].ns", []),
        ("null", [None]),
        ("missing", []),
    ],
)
def test_a_path_chooses_values(path, values):
    assert values_at(DOCUMENT, path) == values


def written(folder):
    return {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}


def test_the_files_are_installed(tmp_path, text):
    folder = tmp_path / "skills" / "nsyspipe"
    assert skill("--install", folder).exit_code == 0
    assert written(folder) == {"SKILL.md": text, "llms.txt": llms_text()}


@pytest.mark.parametrize("name", FILES)
def test_if_one_file_exists_none_is_written(tmp_path, name):
    (tmp_path / name).write_text("mine")
    done = skill("--install", tmp_path)
    assert isinstance(done.exception, OutputError)
    assert done.exception.exit_code == 2
    assert written(tmp_path) == {name: "mine"}


def test_with_force_existing_files_are_replaced(tmp_path, text):
    for name in FILES:
        (tmp_path / name).write_text("old")
    assert skill("--install", tmp_path, "--force").exit_code == 0
    assert written(tmp_path) == {"SKILL.md": text, "llms.txt": llms_text()}


@pytest.mark.parametrize("name", FILES)
def test_a_link_is_not_followed_even_with_force(tmp_path, name):
    target = tmp_path / "elsewhere"
    target.write_text("mine")
    folder = tmp_path / "skill"
    folder.mkdir()
    (folder / name).symlink_to(target)
    assert isinstance(skill("--install", folder, "--force").exception, OutputError)
    assert target.read_text() == "mine"
    assert [path.name for path in folder.iterdir()] == [name]


def test_a_directory_in_place_of_a_file_is_refused_even_with_force(tmp_path):
    (tmp_path / "llms.txt").mkdir()
    assert isinstance(skill("--install", tmp_path, "--force").exception, OutputError)
    assert [path.name for path in tmp_path.iterdir()] == ["llms.txt"]


def test_a_file_in_place_of_the_directory_is_refused(tmp_path):
    place = tmp_path / "file"
    place.write_text("mine")
    for target in (place, place / "below"):
        assert isinstance(skill("--install", target).exception, OutputError)
    assert place.read_text() == "mine"


def test_an_existing_json_file_is_kept_and_nothing_is_installed(tmp_path):
    document = tmp_path / "skill.json"
    document.write_text("mine")
    done = skill("--install", tmp_path / "skill", "--json", document)
    assert isinstance(done.exception, OutputError)
    assert written(tmp_path) == {"skill.json": "mine"}


def test_json_and_files_are_written_together(tmp_path, document):
    folder = tmp_path / "skill"
    done = skill("--install", folder, "--json", "-")
    assert json.loads(done.stdout) == document
    assert sorted(written(folder)) == FILES


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_if_a_file_cannot_be_written_whole_the_old_files_stay(tmp_path, monkeypatch, error):
    for name in FILES:
        (tmp_path / name).write_text("old")

    def fail(_):
        raise error

    monkeypatch.setattr("nsyspipe.report.files.make_readable", fail)
    assert skill("--install", tmp_path, "--force").exit_code != 0
    assert written(tmp_path) == dict.fromkeys(FILES, "old")


@pytest.mark.parametrize("place", ["skill/SKILL.md", "skill", "skill/../skill/llms.txt"])
def test_json_in_the_place_of_the_skill_is_refused(tmp_path, place):
    (tmp_path / "skill").mkdir()
    install = tmp_path / "skill"
    if place == "skill":
        install = install / "below"
        (tmp_path / "skill").rmdir()
    done = skill("--install", install, "--json", tmp_path / place, "--force")
    assert isinstance(done.exception, NsyspipeError)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("directory", ["", "a" * 300])
def test_a_directory_that_cannot_be_is_refused(tmp_path, monkeypatch, directory):
    monkeypatch.chdir(tmp_path)
    done = skill("--install", directory)
    assert isinstance(done.exception, OutputError)
    assert [*tmp_path.iterdir()] == []


def test_a_directory_that_cannot_be_looked_at_is_refused(tmp_path, monkeypatch):
    def exists(_path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "exists", exists)
    assert isinstance(skill("--install", tmp_path / "skill").exception, OutputError)


def test_json_through_a_link_to_a_file_of_the_skill_is_refused(tmp_path):
    (tmp_path / "skill").mkdir()
    (tmp_path / "skill.json").symlink_to("skill/SKILL.md")
    done = skill("--install", tmp_path / "skill", "--json", tmp_path / "skill.json", "--force")
    assert isinstance(done.exception, NsyspipeError)
    assert [*(tmp_path / "skill").iterdir()] == []


@pytest.mark.parametrize("name", ["SKILL.md", "skill.pftrace"])
def test_a_wrong_extension_names_no_option_that_the_command_lacks(tmp_path, name):
    error = skill("--json", tmp_path / name).exception
    assert isinstance(error, OptionError)
    assert {*re.findall(r"--[a-z]+", "\n".join(error.lines()))} == {"--json"}
    assert [*tmp_path.iterdir()] == []
