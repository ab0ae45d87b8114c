"""The formats in which runs and other answers are written, and the JSON of documents."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias

from msgspec import Struct

from nsyspipe.errors import shortened
from nsyspipe.report.files import identity_of_page, json_of

if TYPE_CHECKING:
    from nsyspipe.model.options import OnProgress
    from nsyspipe.report.blocks import Block

# Characters of a text in a document. The longest text of nsyspipe itself has less than 500.
MAX_TEXT_CHARACTERS = 2000
# The first and the last step of a trace, by number; None for all.
Steps: TypeAlias = "tuple[int, int] | None"


class Format(Struct, frozen=True):
    """A format in which an answer is written.

    A format of runs gets the run to write. A format of another answer already has its answer.
    """

    # Returns the text; None for a trace, which is not text.
    make_text: Callable[..., str] | None
    # Returns what a file is of, such as the ID of a run; None for a file of another kind.
    identity_of: Callable[[Path], object]
    suffixes: tuple[str, ...] = ()
    # The help of the option that asks for the format.
    help: str = ""
    # Whether it can be printed.
    is_printed: bool = True
    # Whether its text gets the number of rows in the tables of costs.
    has_top: bool = False
    # Writes a trace of a run to an open file.
    write_trace: Callable[..., None] | None = None

    def text(self, *answer: object, **settings: object) -> str:
        """Return the text of an answer: of the run of a format of runs, else of its own."""
        if self.make_text is None:
            message = "a trace is not text"
            raise TypeError(message)
        return self.make_text(*answer, **settings)

    def write(
        self,
        run: object,
        file: BinaryIO,
        steps: Steps,
        on_progress: OnProgress | None,
        **settings: object,
    ) -> None:
        """Write a run to an open file. Only a trace needs the steps, and tells its progress."""
        if self.write_trace is not None:
            self.write_trace(run, file, steps, on_progress, **settings)
            return
        # A name may have characters that are not valid text.
        text = self.text(run, **settings)
        file.write(text.encode("utf-8", errors="replace"))


def lazily(module: str, name: str) -> Callable[..., Any]:
    """Return a function of `report` that is imported when it is called.

    Few of these functions are used in one command, and some import large packages.
    """

    def call(*arguments: object, **options: object) -> object:
        full_module = import_module(f"nsyspipe.report.{module}")
        function = getattr(full_module, name)
        return function(*arguments, **options)

    return call


def formats_of(
    command: str,
    identity: str,
    *,
    document: Callable[[], dict[str, Any]],
    identity_in: Callable[[Any], object],
    blocks: Callable[[], Iterable[Block]],
    usage: str,
    page: Callable[[], str],
    meta: str,
    key: str = "runs",
) -> dict[str, Format]:
    """Return how the answer of a command is written in each format.

    Each file contains the `identity` of the answer: JSON as a value that `identity_in` finds,
    Markdown as a comment with this `key`, and HTML as a `meta` element.
    """
    from nsyspipe.report.markdown import as_markdown, marked_as, marker

    def identity_of_document(path: Path) -> object:
        try:
            return identity_in(json_of(path))
        except (KeyError, TypeError):
            return None

    def markdown_text() -> str:
        head = marker(command, key, identity)
        return as_markdown(blocks(), head, usage)

    def identity_of_markdown(path: Path) -> object:
        return marked_as(path, command, key)

    def identity_of_html(path: Path) -> object:
        return identity_of_page(path, meta)

    return {
        "json": Format(lambda: dumps(document()), identity_of_document),
        "markdown": Format(markdown_text, identity_of_markdown),
        "html": Format(page, identity_of_html),
    }


def dumps(values: dict[str, Any], max_characters: int | None = MAX_TEXT_CHARACTERS) -> str:
    """Return a document as JSON.

    Each row of a table has its own line, so that two documents can be compared line by line. A name
    in a report may be of any length, so a longer text is cut, unless `max_characters` is None.
    """
    entries = []
    for key, value in values.items():
        text = _json_of_value(value, max_characters)
        entries.append(f"{json.dumps(key)}: {text}")
    document = _bracketed("{", entries, "}")
    return f"{document}\n"


def _json_of_value(value: object, max_characters: int | None) -> str:
    """Return a value of a document as JSON, with a line for each row or entry."""
    if isinstance(value, list) and value:
        rows = [f"  {_encoded(row, max_characters)}" for row in value]
        return _bracketed("[", rows, "]")
    if isinstance(value, dict):
        entries = []
        for key, entry in value.items():
            text = _encoded(entry, max_characters)
            entries.append(f"  {json.dumps(key)}: {text}")
        return _bracketed("{", entries, "}")
    return _encoded(value, max_characters)


def _encoded(value: object, max_characters: int | None) -> str:
    """Return a value on one line."""
    encode = json.JSONEncoder(allow_nan=False).encode
    text = encode(value)
    # Few lines are longer than a text may be.
    if max_characters is None or len(text) <= max_characters:
        return text
    return encode(_cut(value, max_characters))


def _cut(value: object, max_characters: int) -> object:
    """Return a value in which no text is longer than `max_characters`."""
    if isinstance(value, str):
        return shortened(value, max_characters)
    if isinstance(value, list | tuple):
        return [_cut(entry, max_characters) for entry in value]
    if isinstance(value, dict):
        return {name: _cut(entry, max_characters) for name, entry in value.items()}
    return value


def _bracketed(start: str, entries: Iterable[str], end: str) -> str:
    lines = ",\n".join(entries)
    return f"{start}\n{lines}\n{end}"
