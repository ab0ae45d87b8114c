"""The texts of a package as they are in its source: string constants, and f-strings with a word for each value.

``python -m tests.contract.messages FOLDER`` prints what the house style objects to in each.
"""

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.contract.prose import (
    FRONTED,
    MAX_WORDS_IN_SENTENCE,
    Objection,
    objections_to_words,
    sentences_of,
    words_in,
)
from tests.contract.trees import children_of

LEAST_WORDS = 3  # of a text that somebody reads: shorter ones are names and keys
_VALUE = "X"  # for what an f-string fills in
_WORD = re.compile(r"(?<![\w.$<>#=/(\[{\\-])[A-Za-z]+[.,:?]?(?![\w(<>={}/\\-])")
# What is no English: SQL, a regular expression, HTML, CSS or script, a path.
_TECHNICAL = re.compile(
    r"SELECT |CREATE |PRAGMA |INSERT |WITH "
    r"RECURSIVE|\(\?[:<!=ia]|\\[sdwb]|^\s*<|</|\{\{|=>|^[\w./-]+$"
)


@dataclass(frozen=True)
class Message:
    """A text of a module, and where it is."""

    path: Path
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}"


def messages_in(path: Path) -> Iterator[Message]:
    """Yield the texts of a module that read as English, without docstrings and what runs in the module alone."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in _texts_of_users(tree):
        text = " ".join(_text_of(node).split())
        if len(_WORD.findall(text)) >= LEAST_WORDS and not _TECHNICAL.search(_text_of(node)):
            yield Message(path, node.lineno, text)


def _texts_of_users(node: ast.AST) -> Iterator[ast.expr]:
    """Yield string constants and f-strings, but no part of an f-string as a text of its own.

    Docstrings are left out, and the messages of errors that only a bug raises.
    """
    if isinstance(node, ast.JoinedStr):
        yield node
        yield from _texts_filled_in(node)
        return
    if isinstance(node, ast.Constant):
        if isinstance(node.value, str):
            yield node
        return
    of_developers = _text_of_developers(node)
    for child in children_of(node):
        if child is not of_developers:
            yield from _texts_of_users(child)
        elif isinstance(child, ast.JoinedStr):
            yield from _texts_filled_in(child)
        elif not isinstance(child, ast.Constant):
            yield from _texts_of_users(child)


def _texts_filled_in(node: ast.JoinedStr) -> Iterator[ast.expr]:
    for value in node.values:
        if isinstance(value, ast.FormattedValue):
            yield from _texts_of_users(value.value)


def _text_of_developers(node: ast.AST) -> ast.expr | None:
    """Return the docstring, or the message of an error that only a bug raises, that a statement has."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return node.value
    return node.msg if isinstance(node, ast.Assert) else None


def _text_of(node: ast.AST) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    parts = node.values if isinstance(node, ast.JoinedStr) else []
    return "".join(str(part.value) if isinstance(part, ast.Constant) else _VALUE for part in parts)


def objections_to_message(text: str) -> Iterator[Objection]:
    """Yield what the house style has against a text: words, long sentences, and sentences that open badly."""
    yield from objections_to_words(text)
    if re.search(rf"\b{_VALUE} %", text):
        yield Objection("number style", text, "a percentage without a space")
    for sentence in sentences_of(text):
        n_words = words_in(sentence)
        if n_words > MAX_WORDS_IN_SENTENCE:
            yield Objection(
                "long sentence", sentence, f"{n_words} words, at most {MAX_WORDS_IN_SENTENCE}"
            )
        is_heading = not sentence.endswith(".")
        if FRONTED.match(sentence) and not is_heading:
            yield Objection("opening", sentence, "the subject first")


if __name__ == "__main__":
    for source in sorted(Path(sys.argv[1]).rglob("*.py")):
        for message in messages_in(source):
            for objection in objections_to_message(message.text):
                print(f"{message}: {objection}")
