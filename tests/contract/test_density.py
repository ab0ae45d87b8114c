"""The code stays as easy to read as it is: counts of what makes a reader stop do not grow.

Each limit is the figure of today. Whoever brings a count down lowers its limit here.
"""

import ast
from pathlib import Path

import pytest

import nsyspipe
from tests.contract.density import Density, complexity, density_of, measure_file, measure_lines

PACKAGE = Path(nsyspipe.__file__).parent
TESTS = Path(__file__).parent.parent

# Count -> how many places of the package have it at most.
LIMITS = {
    "complex functions": 0,
    "functions with many locals": 0,
    # The columns of the steps as types.
    "large statements": 1,
    "deeply nested statements": 0,
    "long lines": 0,
    "switched-off formatting": 0,
    "walrus": 0,
    "nested comprehensions": 0,
    "tuples assigned to tuples": 0,
    "ternaries in f-strings": 0,
    "results that are long tuples": 0,
    "calls with many positional arguments": 0,
}
MAX_MEAN_STATEMENT_NODES = 11.5
MAX_P90_STATEMENT_NODES = 18
MAX_VAGUE_NAMES_PER_1000 = 0.36


@pytest.fixture(scope="module")
def package():
    return density_of(PACKAGE)


@pytest.mark.parametrize("count", LIMITS)
def test_a_count_does_not_grow(package, count):
    places = package.places.get(count, [])
    assert len(places) <= LIMITS[count], "\n".join([f"{len(places)} {count}:", *places])


def test_statements_are_not_larger_on_average(package):
    assert package.mean_statement_nodes <= MAX_MEAN_STATEMENT_NODES


def test_large_statements_are_not_larger(package):
    assert package.p90_statement_nodes <= MAX_P90_STATEMENT_NODES


def test_vague_names_are_not_more_frequent(package):
    assert package.vague_names_per_1000 <= MAX_VAGUE_NAMES_PER_1000


def test_no_formatting_is_switched_off_in_tests():
    density = Density()
    for path in TESTS.rglob("*.py"):
        measure_lines(density, path.read_text(encoding="utf-8"), path.name)
    assert density.places.get("switched-off formatting", []) == []


# Code, and the counts that it adds to.
EXAMPLES = {
    "x = 1\n": [],
    f"x = '{'a' * 95}'\n": ["long lines"],
    "x = [1]  # fmt: skip\n": ["switched-off formatting"],
    "print(y := 2)\n": ["walrus"],
    "x = [[b for b in a] for a in c]\n": ["nested comprehensions"],
    "x = [b for a in c for b in a]\n": [],
    "a, b = 1, 2\n": ["tuples assigned to tuples"],
    "a, b = c\n": [],
    "f'{1 if x else 2}'\n": ["ternaries in f-strings"],
    "f(1, 2, 3, 4, 5)\n": [],
    "f(1, 2, 3, 4, 5, 6)\n": ["calls with many positional arguments"],
    "x = a(b(c(d())))\n": [],
    "x = a(b(c(d(e()))))\n": ["deeply nested statements"],
    "if a(b(c(d(e())))):\n    pass\n": ["deeply nested statements"],
    # 5 nodes, and 4 for each addition.
    "x = a" + " + a" * 13 + "\n": [],
    "x = a" + " + a" * 14 + "\n": ["large statements"],
    "x = [" + "a, " * 30 + "]\n": ["large statements"],
    # The entries of a constant are read one by one.
    "X = [" + "a, " * 30 + "]\n": [],
    "X = {" + "a: f(c, c, c), " * 6 + "}\n": [],
    "x = {" + "a: f(c, c, c), " * 6 + "}\n": ["large statements"],
    "X = [a" + " + a" * 14 + "]\n": ["large statements"],
    "def f() -> tuple[int, int]: pass\n": [],
    "def f() -> tuple[int, ...]: pass\n": [],
    "def f() -> tuple[int, int, int]: pass\n": ["results that are long tuples"],
    "def f():\n" + "".join(f"    x{n} = 1\n" for n in range(15)): [],
    "def f():\n" + "".join(f"    x{n} = 1\n" for n in range(16)): ["functions with many locals"],
    "def f():\n" + "    if a: pass\n" * 11: [],
    "def f():\n" + "    if a: pass\n" * 12: ["complex functions"],
}


@pytest.mark.parametrize("source", EXAMPLES)
def test_a_count_has_what_it_is_named_after(source):
    density = Density()
    measure_file(density, source, "a.py")
    assert list(density.places) == EXAMPLES[source]


def test_a_compound_statement_counts_by_its_head():
    density = Density()
    measure_file(density, "def f():\n    '''Text.'''\n    if a:\n        b = 1\n", "a.py")
    # The head: `if`, and `a` with its context. The statement below it: the assignment, `b` with
    # its context, and 1.
    assert sorted(density.statement_nodes) == [3, 4]


def test_vague_names_are_counted_among_variables_and_parameters():
    density = Density()
    measure_file(density, "def f(one, rank):\n    found = rank\n    n_steps = one\n", "a.py")
    assert (density.n_vague_bindings, density.n_bindings) == (2, 4)


@pytest.mark.parametrize(
    ("body", "paths"),
    [
        ("pass", 1),
        ("if a and b or c: pass", 4),
        ("return [x for x in y if x if z]", 4),
        ("return a if b else c", 2),
        ("while a: pass", 2),
    ],
)
def test_each_way_through_a_function_counts(body, paths):
    assert complexity(ast.parse(f"def f():\n    {body}\n").body[0]) == paths
