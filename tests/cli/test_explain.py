"""`nsyspipe explain`: one ID, all IDs, an ID that does not exist, and JSON."""

import json

import pytest
from typer.testing import CliRunner

from nsyspipe.cli.app import app
from nsyspipe.errors import OptionError
from nsyspipe.report.explanations.subjects import all_ids
from nsyspipe.report.explanations.text import ids_in

WIDTH = 80


def explain(*arguments):
    return CliRunner().invoke(
        app, ["explain", *arguments], env={"COLUMNS": str(WIDTH), "NO_COLOR": "1"}
    )


@pytest.mark.parametrize(
    "name", [*ids_in("findings"), *ids_in("words"), "exposed_comm", "few-steps", "wall_ns", "rank"]
)
def test_an_explanation_fits_80_columns(name):
    done = explain(name)
    assert done.exit_code == 0
    assert max(map(len, done.stdout.splitlines())) <= WIDTH


def test_without_an_id_all_are_listed():
    done = explain()
    assert done.exit_code == 0
    words = set(done.stdout.replace(",", " ").split())
    document = json.loads(explain("--json", "-").stdout)
    listed = [entry["id"] for entries in document.values() for entry in entries]
    assert set(listed) <= words
    assert set(listed) <= set(all_ids())
    assert set(ids_in("findings")) <= set(listed)


@pytest.mark.parametrize(
    ("label", "name"),
    [
        ("stream dependency", "stream-dependency"),
        ("idle: stream dependency", "idle_dependency"),
        ("exposed copies", "exposed_memory"),
        ("slowdown under communication", "slowdown_ratio"),
        ("Slowdown under comm", "slowdown_ratio"),
        ("idle before", "idle_ns_per_step"),
    ],
)
def test_a_label_of_an_output_is_explained(label, name):
    assert json.loads(explain(label, "--json", "-").stdout)["id"] == name


def test_an_unknown_id_is_an_error_with_suggestions():
    done = explain("stragler")
    assert isinstance(done.exception, OptionError)
    assert (done.exception.exit_code, done.exception.fix) == (2, "nsyspipe explain straggler")
    assert done.exception.found.split(", ")[0] == "straggler"


def test_an_id_that_is_like_none_leads_to_the_list():
    error = explain("qqq").exception
    assert (error.exit_code, error.found, error.fix.split(",")[0]) == (2, None, "nsyspipe explain")


def test_the_json_document_has_the_sections():
    document = json.loads(explain("single-bucket", "--json", "-").stdout)
    assert (document["id"], document["group"]) == ("single-bucket", "finding")
    assert len(document["sections"]) == 5
    assert "```python" in document["sections"][2]["text"]


def test_the_json_document_is_written_to_a_file(tmp_path):
    path = tmp_path / "explanation.json"
    assert explain("wall_ns", "--json", str(path)).exit_code == 0
    assert json.loads(path.read_text())["group"] == "column"
