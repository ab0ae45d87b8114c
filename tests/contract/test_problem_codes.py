"""Every code of a problem that the package can print is in the catalogue, so that `nsyspipe explain CODE` explains it.

`problem(code)` looks a code up, so a code that is not in the catalogue fails there. What is left
are rows that are made in another way, and codes that only a rare input reaches. Both are found in
the source.
"""

import ast
from pathlib import Path

import pytest

import nsyspipe
from nsyspipe.model.problems import CATALOGUE
from nsyspipe.model.schema import PROBLEMS
from nsyspipe.report.explanations.subjects import explain
from nsyspipe.report.explanations.text import Group
from tests.contract.trees import nodes_of, nodes_of_file

PACKAGE = Path(nsyspipe.__file__).parent
DECLARATIONS = Path("model/problems.py")


@pytest.fixture(scope="module")
def used():
    """Return the codes that each module names, and whether it makes problems, by path."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        nodes = nodes_of_file(path)
        found[path.relative_to(PACKAGE)] = codes_in(nodes), bool(calls_of("Problem", nodes))
    return found


def constants_in(node):
    """Return the texts that an expression can be: those of both branches of a condition."""
    branches = [node.body, node.orelse] if isinstance(node, ast.IfExp) else [node]
    return {
        one.value
        for one in branches
        if isinstance(one, ast.Constant) and isinstance(one.value, str)
    }


def calls_of(name, nodes):
    calls = (node for node in nodes if isinstance(node, ast.Call))
    return [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == name]


def codes_in(nodes):
    """Return the codes that a module names: as the argument of `problem`, or in a row that it makes."""
    codes = {code for call in calls_of("problem", nodes) for code in constants_in(call.args[0])}
    for row in (node for node in nodes if isinstance(node, ast.Dict)):
        keys = [key.value if isinstance(key, ast.Constant) else None for key in row.keys]
        values = dict(zip(keys, row.values, strict=True))
        codes |= constants_in(values["code"]) if "code" in values else set()
    return codes


def test_every_code_is_in_the_catalogue(used):
    unknown = {
        (str(path), code) for path, (codes, _) in used.items() for code in codes - {*CATALOGUE}
    }
    assert unknown == set()


def test_only_the_catalogue_makes_problems(used):
    makers = {path for path, (_, makes_problems) in used.items() if makes_problems}
    assert makers == {DECLARATIONS}


def test_codes_are_found_in_calls_conditions_and_rows():
    tree = ast.parse('problem("a" if x else "b")\nproblem(code)\nrow = {"code": "c", "rank": None}')
    assert codes_in(nodes_of(tree)) == {"a", "b", "c"}


def test_every_code_has_an_explanation():
    explanations = {code: explain(code) for code in CATALOGUE}
    kinds = {code: (found.id, found.group) for code, found in explanations.items()}
    assert kinds == {code: (code, Group.NOTE) for code in CATALOGUE}


def test_a_problem_has_every_column_of_its_table():
    from nsyspipe.model.problems import problem  # noqa: PLC0415 - only this test makes one

    assert list(problem("no-figures").row) == PROBLEMS.names
