"""Progress on stderr: a bar for each stage of long work, nothing off a terminal."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

__all__ = ["OnProgress", "Stage", "progress"]

# Called with (done, in all); and what starts a stage by its name.
OnProgress = Callable[[int, int], None]
Stage = Callable[[str], OnProgress | None]


@contextlib.contextmanager
def progress(*, shown: bool) -> Iterator[Stage]:
    """Yield what starts a stage: it replaces the bar of the one before, and returns what moves its own."""
    if not shown or sys.stderr is None or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:

        def start(name: str) -> OnProgress:
            for old in bar.task_ids:
                bar.remove_task(old)
            task = bar.add_task(name, total=None)  # it moves until something is counted
            return lambda done, total: bar.update(task, completed=done, total=total)

        yield start
