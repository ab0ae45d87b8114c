"""From Python what `analyze` does with its output options."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from nsyspipe.errors import OptionError
from nsyspipe.export.formats import SUFFIXES, format_named
from nsyspipe.report.files import writing

if TYPE_CHECKING:
    import os

    from nsyspipe.export.formats import Steps
    from nsyspipe.run import Run

__all__ = ["parquet", "write"]


def write(
    run: Run, path: str | os.PathLike[str], *, steps: Steps = None, force: bool = False
) -> None:
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
        raise OptionError(
            str(path), f"has the suffix {path.suffix!r}", found=", ".join(SUFFIXES), fix="run.html"
        )
    if steps is not None and name != "perfetto":
        raise OptionError(f"steps={steps}", "belongs to a trace", fix="run.pftrace, or no steps")
    chosen = format_named(name)
    run_id = run.header.run_id
    with writing(
        path, run.inputs, may_replace=lambda: force or chosen.run_id_of(path) == run_id
    ) as file:
        chosen.write(run, file, steps, None)


def parquet(
    run: Run, store: str | os.PathLike[str], *, events: bool = False, force: bool = False
) -> None:
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
