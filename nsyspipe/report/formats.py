"""The formats in which runs and other answers are written, and the JSON of documents."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias

from msgspec import Struct

from nsyspipe.report.files import identity_of_page, json_of

if TYPE_CHECKING:
    from nsyspipe.model.options import OnProgress
    from nsyspipe.report.blocks import Block

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
        file.write(self.text(run, **settings).encode("utf-8", errors="replace"))


def lazily(module: str, name: str) -> Callable[..., Any]:
    """Return a function of this room that is imported when it is called: few are asked for, and some are heavy."""
    place = f"nsyspipe.report.{module}"
    return lambda *given, **options: getattr(import_module(place), name)(*given, **options)  # noqa: PLW0108 - not yet


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
    """Return how an answer is written in each format, and how a file says its identity: by a value, comment or element."""
    from nsyspipe.report.markdown import as_markdown, marked_as, marker

    head = marker(command, key, identity)

    def identity_of_document(path: Path) -> object:
        try:
            return identity_in(json_of(path))
        except (KeyError, TypeError):
            return None

    return {
        "json": Format(lambda: dumps(document()), identity_of_document),
        "markdown": Format(
            lambda: as_markdown(blocks(), head, usage), lambda one: marked_as(one, command, key)
        ),
        "html": Format(page, lambda one: identity_of_page(one, meta)),
    }


def dumps(found: dict[str, Any]) -> str:
    """Write the document with one row of each table per line, so that two of them can be compared."""
    return (
        "{\n"
        + ",\n".join([f"{json.dumps(key)}: {_value(value)}" for key, value in found.items()])
        + "\n}\n"
    )


def _value(value: object) -> str:
    write = json.JSONEncoder(allow_nan=False).encode
    if isinstance(value, list) and value:
        return "[\n" + ",\n".join(f"  {write(row)}" for row in value) + "\n]"
    if isinstance(value, dict):
        return (
            "{\n"
            + ",\n".join(f"  {json.dumps(key)}: {write(one)}" for key, one in value.items())
            + "\n}"
        )
    return write(value)
