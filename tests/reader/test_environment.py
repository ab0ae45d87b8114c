"""The environment that a report captured: which variables are read, what of their values is kept, and when there is none."""

import pytest

import nsyspipe
from nsyspipe.nsys.command_words import joined_environments
from nsyspipe.reader.facts import read_capture_rows, read_environment
from nsyspipe.reader.metadata import read_capture
from nsyspipe.reader.report import CAPTURE_META, Report, open_report
from nsyspipe.report.export import write
from nsyspipe.store.write import save
from tests.build.plain_steps import plain_rank

SECRET = "hunter2-wandb-token"
STEPS = [(1000, 100, 40, 60)] * 3


def written(path, **variables):
    return plain_rank(0, STEPS, world_size=2).env(**variables).write(path)


def environment(tmp_path, **variables):
    with open_report(written(tmp_path / "r_0.sqlite", **variables)) as report:
        return read_environment(read_capture_rows(report))


def test_allowed_variables_are_read_with_their_values(tmp_path):
    found = environment(
        tmp_path, CUDA_DEVICE_MAX_CONNECTIONS="1", NCCL_P2P_DISABLE="1", PATH="/usr/bin"
    )
    assert found == {"CUDA_DEVICE_MAX_CONNECTIONS": "1", "NCCL_P2P_DISABLE": "1"}


@pytest.mark.parametrize(
    "value", [SECRET, "/home/someone/secret", '1" or "2', "1 | /home/someone", ""]
)
def test_a_value_that_is_not_known_to_be_harmless_is_hidden(tmp_path, value):
    found = environment(tmp_path, NCCL_P2P_DISABLE=value)["NCCL_P2P_DISABLE"]
    assert set(found.split(" | ")) <= {"***", "1"}


def test_an_environment_without_training_variables_was_recorded(tmp_path):
    assert environment(tmp_path, PATH="/usr/bin", WANDB_API_KEY=SECRET) == {}


def test_variables_of_launchers_alone_are_no_environment(tmp_path):
    """Redacted copies keep those, and nothing else."""
    assert environment(tmp_path) is None


@pytest.mark.parametrize("name", ["WANDB_API_KEY", "NCCL_DEBUG_FILE", "HOME", "CUDA_HOME"])
def test_other_variables_are_never_in_a_document_or_store(tmp_path, name):
    written(tmp_path / "r_0.sqlite", NCCL_DEBUG="INFO", **{name: SECRET})
    run = nsyspipe.load(tmp_path / "r_0.sqlite", jobs=1)
    save(run, tmp_path / "store")
    write(run, tmp_path / "run.json")
    files = [one for one in tmp_path.rglob("*") if one.is_file() and one.name != "r_0.sqlite"]
    assert len(files) > 1
    assert not [one for one in files if SECRET.encode() in one.read_bytes()]
    rows = nsyspipe.load(tmp_path / "store").table("findings").to_pylist()
    assert SECRET not in repr((run.header, rows))


@pytest.mark.parametrize(
    ("processes", "joined"),
    [
        ([None, None], None),
        ([None, {"A": "1"}], {"A": "1"}),
        ([{"A": "1"}, {"A": "1"}], {"A": "1"}),
        ([{"A": "2"}, {"A": "1"}], {"A": "1 | 2"}),
        ([{"A": "1"}, {}], {"A": "1 | not set"}),
        ([{"A": "1 | not set"}, {"A": "0"}], {"A": "0 | 1 | not set"}),
    ],
)
def test_values_of_processes_stand_side_by_side(processes, joined):
    assert joined_environments(processes) == joined


def test_the_table_of_the_capture_is_read_once(tmp_path, monkeypatch):
    """A second query counts the variables that nsyspipe does not read."""
    queries = []
    select = Report.select
    number = Report.number

    def counted_select(report, table, *arguments, **options):
        queries.append(("rows", table))
        return select(report, table, *arguments, **options)

    def counted_number(report, table, expression, *arguments):
        # The check of lengths comes first, once for each report.
        if "octet_length" not in expression:
            queries.append(("number", table))
        return number(report, table, expression, *arguments)

    monkeypatch.setattr(Report, "select", counted_select)
    monkeypatch.setattr(Report, "number", counted_number)
    read_capture(str(written(tmp_path / "r_0.sqlite", NCCL_DEBUG="INFO")), None)
    of_capture = [kind for kind, table in queries if table == CAPTURE_META]
    assert of_capture == ["rows", "number"]
