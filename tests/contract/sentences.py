"""Finds sentences of nsyspipe's output in test functions: tests compare codes, fields and figures, goldens hold words.

A sentence is a text that shares four words in a row with a text of the program. Whatever a test
compares is looked at: its assertions, comparisons, ``match=`` arguments and parameters, and the
constants that these name.
"""

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from tests.contract.trees import nodes_of, nodes_of_file

MOST_WORDS = 3  # in a row, which a test may share with a text of the program
_WORDS = re.compile(r"\b[A-Za-z][a-z'-]*(?:[,:]? [A-Za-z][a-z'-]*)+\b")
_WORD = re.compile(r"[a-z][a-z'-]*")
_SCRIPTS = {".sh", ".bash", ".sbatch", ".js"}


class Sentence(Struct, frozen=True):
    """A text in a test function that repeats the program's output."""

    test: str
    text: str

    def __str__(self) -> str:
        return f"{self.test}: {self.text!r}"


def phrases_in(text: str) -> Iterator[str]:
    """Yield each run of four words that follow each other in a text."""
    length = MOST_WORDS + 1
    for match in _WORDS.finditer(text):
        words = _WORD.findall(match[0].lower())
        yield from (" ".join(words[at : at + length]) for at in range(len(words) - length + 1))


def phrases_of_program(folders: Iterable[Path]) -> frozenset[str]:
    """Return the phrases of all texts in Python files, docstrings left out, and of all scripts."""
    paths = [path for folder in folders for path in folder.rglob("*")]
    return frozenset(
        phrase for path in paths for text in _texts_of(path) for phrase in phrases_in(text)
    )


def _texts_of(path: Path) -> Iterator[str]:
    if path.suffix == ".py":
        nodes = nodes_of_file(path)
        docstrings = _docstrings(nodes)
        yield from (str(node.value) for node in _texts(nodes) if node not in docstrings)
    elif path.suffix in _SCRIPTS and not path.name.endswith(".min.js"):  # those are libraries
        yield path.read_text(encoding="utf-8")


def sentences_in(source: str, phrases: frozenset[str]) -> list[Sentence]:
    """Return the sentences that the test functions of a module compare."""
    tree = ast.parse(source)
    nodes = nodes_of(tree)
    shared = {
        str(node.value)
        for node in _texts(nodes)
        if not phrases.isdisjoint(phrases_in(str(node.value)))
    }
    if not shared:  # so no test compares one of them
        return []
    constants = _assigned(
        node for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign)
    )
    tests = [
        node for node in nodes if isinstance(node, ast.FunctionDef) and node.name.startswith("test")
    ]
    sentences = {
        Sentence(test.name, text)
        for test in tests
        for text in _compared_texts(test, constants)
        if text in shared
    }
    return sorted(sentences, key=str)


def _compared_texts(
    test: ast.FunctionDef, constants_of_module: dict[str, list[ast.expr]]
) -> Iterator[str]:
    """Yield the texts of what a test compares; a name stands for all that it is assigned."""
    nodes = nodes_of(test)
    constants = constants_of_module | _assigned(nodes)
    waiting = list(_comparisons(test, nodes))
    followed: set[str] = set()
    while waiting:
        parts = nodes_of(waiting.pop())
        yield from (str(node.value) for node in _texts(parts))
        names = {node.id for node in parts if isinstance(node, ast.Name)}
        waiting += [value for name in names - followed for value in constants.get(name, ())]
        followed |= names


def _comparisons(test: ast.FunctionDef, nodes: Iterable[ast.AST]) -> Iterator[ast.expr]:
    for decorator in test.decorator_list:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func).endswith("parametrize"):
            yield from decorator.args[1:]
    for node in nodes:
        if isinstance(node, ast.Assert):
            yield node.test
        elif isinstance(node, ast.Compare):
            yield node
        elif isinstance(node, ast.keyword) and node.arg == "match":
            yield node.value


def _assigned(nodes: Iterable[ast.AST]) -> dict[str, list[ast.expr]]:
    values: dict[str, list[ast.expr]] = {}
    for node in nodes:
        if not isinstance(node, ast.Assign | ast.AnnAssign):
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for name in (
            part.id for target in targets for part in nodes_of(target) if isinstance(part, ast.Name)
        ):
            if node.value is not None:
                values.setdefault(name, []).append(node.value)
    return values


def _texts(nodes: Sequence[ast.AST]) -> Iterator[ast.Constant]:
    """Yield the texts among the nodes of a tree; keys of a dict, which name cases, are left out."""
    keys = {id(key) for node in nodes if isinstance(node, ast.Dict) for key in node.keys}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in keys:
            yield node


def _docstrings(nodes: Sequence[ast.AST]) -> set[ast.expr]:
    holders = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    firsts = [node.body[0] for node in nodes if isinstance(node, holders) and node.body]
    return {first.value for first in firsts if isinstance(first, ast.Expr)}
