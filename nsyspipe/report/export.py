"""The files that a run can be written as: how each is made, and how one that is there says which run it is of."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from nsyspipe.errors import OptionError
from nsyspipe.report.files import writing

if TYPE_CHECKING:
    import os
    from collections.abc import Callable
    from typing import BinaryIO

    from nsyspipe.run.run import Run


# The first and the last step to write, by number; None for all.
Steps: TypeAlias = "tuple[int, int] | None"
# Called with (done, in all).
OnProgress: TypeAlias = "Callable[[int, int], None] | None"

SUFFIXES = {".json": "json", ".md": "markdown", ".html": "html", ".pftrace": "perfetto", ".perfetto-trace": "perfetto"}


@dataclass(frozen=True)
class Format:
    """One kind of file."""

    # returns the run that a file is of; None for a file of another kind
    run_id_of: Callable[[Path], str | None]
    # writes a run to an open file; only a trace asks for the steps, and takes long enough to tell its progress
    write: Callable[[Run, BinaryIO, Steps, OnProgress], None]


def format_named(name: str) -> Format:
    """Return a format; what makes it is imported now, since few are asked for."""
    if name == "perfetto":
        from nsyspipe.report.perfetto.trace import perfetto, run_id_of_trace

        return Format(run_id_of_trace, perfetto)
    if name == "html":
        from nsyspipe.report.html.page import run_id_of_page
        from nsyspipe.report.html.run_page import run_page

        return _text(run_id_of_page, run_page)
    if name == "markdown":
        from nsyspipe.report.markdown import markdown, run_id_of_markdown

        return _text(run_id_of_markdown, markdown)
    from nsyspipe.report.document import document_text
    from nsyspipe.report.files import run_id_of_document

    return _text(run_id_of_document, document_text)


def _text(run_id_of: Callable[[Path], str | None], text_of: Callable[[Run], str]) -> Format:
    def write(run: Run, file: BinaryIO, _steps: Steps, _on_progress: OnProgress) -> None:
        # A name may hold what is no text.
        file.write(text_of(run).encode("utf-8", errors="replace"))

    return Format(run_id_of, write)


def write(run: Run, path: str | os.PathLike[str], *, steps: Steps = None, force: bool = False) -> None:
    """Write a run to one file, whose suffix says what: a document, a summary, a page, or a trace.

    Parameters
    ----------
    path
        ``.json``, ``.md``, ``.html``, or ``.pftrace`` for Perfetto. A file of the same run is replaced.
    steps
        For a trace: its first and last step, by number; None takes everything captured.
    force
        Replace a file that is not of this run too.

    Raises
    ------
    OptionError
        If the suffix is none of these, no rank has such a step, or steps are given for anything but a trace.
    OutputError
        If the file is not of this run or one of its inputs, or cannot be written. It is as it was.
    """
    path = Path(path)
    name = SUFFIXES.get(path.suffix.lower())
    if name is None:
        raise OptionError(str(path), f"has the suffix {path.suffix!r}", found=", ".join(SUFFIXES), fix="run.html")
    if steps is not None and name != "perfetto":
        raise OptionError(f"steps={steps}", "belongs to a trace", fix="run.pftrace, or no steps")
    chosen = format_named(name)
    run_id = run.header.run_id
    with writing(path, run.inputs, may_replace=lambda: force or chosen.run_id_of(path) == run_id) as file:
        chosen.write(run, file, steps, None)


def parquet(run: Run, store: str | os.PathLike[str], *, events: bool = False, force: bool = False) -> None:
    """Save a run in a store, from which `nsyspipe.load` reads it back.

    Parameters
    ----------
    store
        The directory; made if it is not there. A run of the same id in it is replaced; the operations that it has
        there are kept if it is of the same reports, read in the same way.
    events
        Save every operation too.
    force
        Replace a run of other reports too whose operations would be lost.

    Raises
    ------
    OptionError
        If the run's id cannot name a directory of the dataset.
    OutputError
        If the store cannot be written, or operations in it would be lost; it is as it was.
    """
    from nsyspipe.store.write import save

    save(run, Path(store), events=events, force=force)
