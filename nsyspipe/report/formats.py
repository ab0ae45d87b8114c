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

    A format of runs is used for all runs, so its functions get the run as an argument. The format
    of another answer is made for one answer, and its functions have no argument.
    """

    # Returns the text. None for a trace, which is not text.
    make_text: Callable[..., str] | None
    # Returns what an existing file is of, such as the ID of a run. None for a file of another kind.
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
        """Return the text of an answer.

        `answer` is the run for a format of runs, and empty for the format of another answer.
        """
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
        """Write a run to an open file. Formats other than a trace use no steps and no progress.

        `settings` are further arguments of the function that makes the text or writes the trace.
        """
        if self.write_trace is not None:
            self.write_trace(run, file, steps, on_progress, **settings)
            return
        # A name may have characters that are not valid text.
        text = self.text(run, **settings)
        file.write(text.encode("utf-8", errors="replace"))


def lazily(module: str, name: str) -> Callable[..., Any]:
    """Return a function that imports a function of `report` when it is called, and calls it.

    Few of these functions are used in one command, and some import large packages.
    """

    def import_and_call(*arguments: object, **options: object) -> object:
        imported_module = import_module(f"nsyspipe.report.{module}")
        function = getattr(imported_module, name)
        return function(*arguments, **options)

    return import_and_call


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
    """Return how the answer of a command is written in each format, by the name of the format.

    `document`, `blocks` and `page` return the content of the answer for JSON, Markdown and HTML.
    `usage` is a command that Markdown names.

    Each file contains the `identity` of the answer, because a later command may only replace a file
    with the same identity. In JSON, `identity_in` finds the identity in the document. Markdown has
    a comment with the identity, named `key`. HTML has a `meta` element with it, named `meta`.
    """
    from nsyspipe.report.markdown import as_markdown, marked_as, marker

    def json_text() -> str:
        return dumps(document())

    def identity_in_json(path: Path) -> object:
        try:
            return identity_in(json_of(path))
        except (KeyError, TypeError):
            # A document of another command, or no document.
            return None

    def markdown_text() -> str:
        first_line = marker(command, key, identity)
        return as_markdown(blocks(), first_line, usage)

    def identity_in_markdown(path: Path) -> object:
        return marked_as(path, command, key)

    def identity_in_html(path: Path) -> object:
        return identity_of_page(path, meta)

    return {
        "json": Format(json_text, identity_in_json),
        "markdown": Format(markdown_text, identity_in_markdown),
        "html": Format(page, identity_in_html),
    }


def dumps(values: dict[str, Any], max_characters: int | None = MAX_TEXT_CHARACTERS) -> str:
    """Return a document as JSON.

    Each row of a table has its own line, so that two documents can be compared line by line. A name
    in a report may be of any length. So a text with more than `max_characters` is cut, unless
    `max_characters` is None.
    """
    entries = []
    for key, value in values.items():
        text = _json_of_value(value, max_characters)
        entries.append(f"{json.dumps(key)}: {text}")
    document = _bracketed("{", entries, "}")
    return f"{document}\n"


def _json_of_value(value: object, max_characters: int | None) -> str:
    """Return a value of a document as JSON, with a line for each row or entry."""
    # An empty list has no rows, and is written as `[]`.
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
    """Return a value as JSON on one line. Texts in it with more than `max_characters` are cut."""
    encode = json.JSONEncoder(allow_nan=False).encode
    line = encode(value)
    # A short line has no long text. This saves looking for one in most lines.
    if max_characters is None or len(line) <= max_characters:
        return line
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
    """Return entries in brackets, with a line for each entry and for each bracket."""
    lines = ",\n".join(entries)
    return f"{start}\n{lines}\n{end}"
