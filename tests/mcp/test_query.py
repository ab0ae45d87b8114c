"""Rows of a table: columns, conditions, order and limits, on steps that are laid out by hand."""

import itertools
import json

import pytest

from nsyspipe.errors import OptionError
from nsyspipe.mcp.arguments import MAX_ROWS, QueryArguments, parse
from nsyspipe.mcp.tools import Tools
from nsyspipe.model.schema import RUN_TABLES
from tests.build.plain_steps import FIRST, LAST
from tests.mcp.conftest import STEPS_OF_RANKS

# All captured steps of a rank have the first and the last too.
COMPUTE = [[step[0] for step in (FIRST, *steps, LAST)] for steps in STEPS_OF_RANKS]
ALL_COMPUTE = COMPUTE[0] + COMPUTE[1]
COLUMNS = ["rank", "step", "compute_ns"]


@pytest.fixture
def asked(tools):
    """Return a function that makes a query of the steps of the run `fast`, and returns its document."""

    def ask(**arguments):
        arguments = {"run": "store:fast", "table": "steps", "columns": COLUMNS} | arguments
        return json.loads(tools.query(parse("query", QueryArguments, arguments)))

    return ask


def where(column, operator, *value):
    return {"column": column, "operator": operator} | ({"value": value[0]} if value else {})


def computes(document):
    return [row["compute_ns"] for row in document["rows"]]


def test_all_rows_have_the_named_columns_in_the_order_of_the_query(asked):
    document = asked(columns=["compute_ns", "rank"])
    assert [list(row) for row in document["rows"]] == [["compute_ns", "rank"]] * len(ALL_COMPUTE)


def test_without_columns_a_row_has_all(asked):
    assert list(asked(columns=None)["rows"][0]) == RUN_TABLES["steps"].names


def test_a_column_has_its_type_and_unit(asked):
    described = {column["name"]: column for column in asked()["columns"]}
    assert described["compute_ns"] == {"name": "compute_ns", "type": "int64", "unit": "ns"}


@pytest.mark.parametrize(
    ("operator", "is_fulfilled"),
    [
        ("==", lambda compute_ns: compute_ns == 200),
        ("!=", lambda compute_ns: compute_ns != 200),
        ("<", lambda compute_ns: compute_ns < 200),
        ("<=", lambda compute_ns: compute_ns <= 200),
        (">", lambda compute_ns: compute_ns > 200),
        (">=", lambda compute_ns: compute_ns >= 200),
    ],
)
def test_a_condition_compares_numbers(asked, operator, is_fulfilled):
    document = asked(where=[where("compute_ns", operator, 200)])
    assert computes(document) == [*filter(is_fulfilled, ALL_COMPUTE)]


def test_all_conditions_hold_together(asked):
    document = asked(where=[where("compute_ns", ">", 100), where("rank", "==", 1)])
    assert computes(document) == [compute for compute in COMPUTE[1] if compute > 100]


def test_a_null_fulfils_only_is_null(asked):
    # No option and no sidecar says how many tokens a step has.
    name = "tokens"
    n_rows = len(ALL_COMPUTE)
    counts = {
        operator: asked(where=[where(name, operator, *value)])["n_matching_rows"]
        for operator, value in (("is null", ()), ("is not null", ()), ("==", [0]), ("!=", [0]))
    }
    assert counts == {"is null": n_rows, "is not null": 0, "==": 0, "!=": 0}


@pytest.mark.slow
def test_a_text_is_compared_with_a_text(asked):
    document = asked(table="kernels", columns=["name"], where=[where("name", "==", "gemm")])
    assert {row["name"] for row in document["rows"]} == {"gemm"}


@pytest.mark.parametrize("is_descending", [False, True])
def test_rows_are_sorted_by_a_column(asked, is_descending):
    document = asked(sort_by="compute_ns", descending=is_descending)
    assert computes(document) == sorted(ALL_COMPUTE, reverse=is_descending)


def test_pages_of_a_query_are_all_its_rows_once(asked):
    pages, offset = [], 0
    while offset is not None:
        page = asked(limit=3, offset=offset)
        pages.append(computes(page))
        offset = page["next_offset"]
    assert [len(page) for page in pages] == [3, 3, 2]
    assert [*itertools.chain(*pages)] == ALL_COMPUTE


def test_counts_are_those_of_the_table_and_of_the_conditions(asked):
    document = asked(where=[where("rank", "==", 0)], limit=1)
    counts = document["n_rows"], document["n_matching_rows"], len(document["rows"])
    assert counts == (len(ALL_COMPUTE), len(COMPUTE[0]), 1)


def test_rows_end_before_the_limit_of_bytes(world, tools):
    query = parse(
        "query", QueryArguments, {"run": "store:fast", "table": "steps", "columns": COLUMNS}
    )
    rows = json.loads(tools.query(query))["rows"]
    bytes_of_two = sum(len(json.dumps(row)) for row in rows[:2])
    limited = json.loads(Tools(tools.roots, bytes_of_two).query(query))
    assert limited["rows"] == rows[:2]
    assert limited["next_offset"] == 2


def test_a_row_above_the_limit_of_bytes_is_an_error(tools):
    query = parse("query", QueryArguments, {"run": "store:fast", "table": "steps"})
    with pytest.raises(OptionError):
        Tools(tools.roots, 10).query(query)


@pytest.mark.parametrize("table", RUN_TABLES)
def test_every_table_can_be_queried(asked, table):
    document = asked(table=table, columns=None, limit=MAX_ROWS)
    assert [column["name"] for column in document["columns"]] == RUN_TABLES[table].names


REFUSED = {
    "a table that is not there": {"table": "runs; DROP TABLE steps"},
    "operations, which are read rank by rank": {"table": "events"},
    "an attribute of a run": {"table": "header"},
    "a column that is not there": {"columns": ["rank", "1=1"]},
    "no columns": {"columns": []},
    "a condition on no column": {"where": [where("nothing", "==", 1)]},
    "an order by no column": {"sort_by": "nothing"},
    "a text for a number": {"where": [where("rank", "==", "0 OR 1=1")]},
    "a fraction for an integer": {"where": [where("rank", "==", 0.5)]},
    "a flag for an integer": {"where": [where("rank", "==", True)]},
    "a number for a text": {
        "table": "kernels",
        "columns": ["name"],
        "where": [where("name", "==", 1)],
    },
    "an integer of more than 64 bits": {"where": [where("rank", "==", 2**63)]},
    "an integer that a float cannot hold": {"where": [where("mfu", "==", 2**53 + 1)]},
    "a negative one": {"where": [where("mfu", "==", -(2**53) - 1)]},
    "no value": {"where": [where("rank", "==")]},
    "a value for a null": {"where": [where("rank", "is null", 1)]},
    "an unknown operator": {"where": [where("rank", "LIKE", "%")]},
    "an unknown argument": {"sql": "SELECT 1"},
    "too many rows": {"limit": MAX_ROWS + 1},
    "no row": {"limit": 0},
    "a negative offset": {"offset": -1},
    "a run that is not there": {"run": "store:nothing"},
    "a store of several runs": {"run": "store"},
    "reports": {"run": "fast"},
}


@pytest.mark.parametrize("arguments", REFUSED.values(), ids=REFUSED)
def test_a_query_is_refused(asked, arguments):
    with pytest.raises(OptionError):
        asked(**arguments)


@pytest.mark.parametrize("value", [2**53, -(2**53), 2.0**60])
def test_a_large_number_is_compared_with_a_ratio(asked, value):
    assert asked(where=[where("mfu", "==", value)])["rows"] == []


def test_a_fraction_is_compared_with_a_ratio(asked):
    column = "overlap_ratio"
    document = asked(columns=[column], where=[where(column, "<=", 0)])
    assert {row[column] for row in document["rows"]} == {0.0}
