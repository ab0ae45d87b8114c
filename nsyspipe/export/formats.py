"""The files that a run can be written as: how each is made, and how one that is there says which run it is of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import BinaryIO

    from nsyspipe.run import Run

__all__ = ["SUFFIXES", "Format", "Steps", "format_named"]

# The first and the last step to write, by number; None for all.
Steps: TypeAlias = "tuple[int, int] | None"
# Called with (done, in all).
OnProgress: TypeAlias = "Callable[[int, int], None] | None"

SUFFIXES = {
    ".json": "json",
    ".md": "markdown",
    ".html": "html",
    ".pftrace": "perfetto",
    ".perfetto-trace": "perfetto",
}


@dataclass(frozen=True)
class Format:
    """One kind of file.

    Attributes
    ----------
    run_id_of
        Returns the run that a file is of; None for a file of another kind.
    write
        Writes a run to an open file; only a trace asks for the steps, and takes long enough to tell its progress.
    """

    run_id_of: Callable[[Path], str | None]
    write: Callable[[Run, BinaryIO, Steps, OnProgress], None]


def format_named(name: str) -> Format:
    """Return a format; what makes it is imported now, since few are asked for.

    Parameters
    ----------
    name
        ``json``, ``markdown``, ``html`` or ``perfetto``.
    """
    return _FORMATS[name]()


def _text(run_id_of: Callable[[Path], str | None], text_of: Callable[[Run], str]) -> Format:
    def write(run: Run, file: BinaryIO, _steps: Steps, _on_progress: OnProgress) -> None:
        # A name may hold what is no text.
        file.write(text_of(run).encode("utf-8", errors="replace"))

    return Format(run_id_of, write)


def _json() -> Format:
    from nsyspipe.report.document import document_text
    from nsyspipe.report.files import run_id_of_document

    return _text(run_id_of_document, document_text)


def _markdown() -> Format:
    from nsyspipe.report.markdown import markdown, run_id_of_markdown

    return _text(run_id_of_markdown, markdown)


def _html() -> Format:
    from nsyspipe.report.page.embed import run_id_of_page
    from nsyspipe.report.page.run_page import run_page

    return _text(run_id_of_page, run_page)


def _perfetto() -> Format:
    from nsyspipe.export.perfetto_trace import perfetto, run_id_of_trace

    def write(run: Run, file: BinaryIO, steps: Steps, on_progress: OnProgress) -> None:
        perfetto(run, file, steps=steps, on_progress=on_progress)

    return Format(run_id_of_trace, write)


_FORMATS: dict[str, Callable[[], Format]] = {
    "json": _json,
    "markdown": _markdown,
    "html": _html,
    "perfetto": _perfetto,
}
