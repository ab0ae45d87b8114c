"""The pages of a store's runs, each written from the saved run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsyspipe.errors import DatasetError, OptionError, OutputError
from nsyspipe.report.files import write_text
from nsyspipe.report.page.embed import run_id_of_page
from nsyspipe.report.page.run_page import run_page
from nsyspipe.store.catalog import Unreadable
from nsyspipe.store.layout import RUNS_FILE, published
from nsyspipe.store.saved_run import open_saved

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

__all__ = ["write_pages"]


def write_pages(
    store: Path,
    run_ids: Sequence[str],
    pages: Path,
    *,
    force: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[Unreadable]:
    """Write the page of each run as ``<run id>.html``; one that is newer than its run stays as it is.

    Parameters
    ----------
    pages
        The directory; made if it is not there.
    force
        Write all of them, and replace files that are no pages of these runs.
    on_progress
        Called with (runs done, runs in all).

    Returns
    -------
    list
        The runs of which there is no page, because a table of theirs cannot be read.

    Raises
    ------
    OutputError
        If a page cannot be written, or another file is in its place.
    """
    _make(pages)
    failed = []
    for n_done, run_id in enumerate(run_ids, start=1):
        path = pages / f"{run_id}.html"
        if force or not _is_fresh(path, store, run_id):
            try:
                text = run_page(open_saved(store, run_id))
            except (DatasetError, OptionError) as error:
                failed.append(Unreadable(run_id, "page", error.problem, error.fix))
            else:
                may_replace = _asker(path, run_id, force=force)
                write_text(path, text, (), may_replace=may_replace, is_named=False)
        if on_progress:
            on_progress(n_done, len(run_ids))
    return failed


def _make(pages: Path) -> None:
    try:
        pages.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        problem = f"cannot be made ({error.strerror})"
        raise OutputError(str(pages), problem, fix="--pages with another directory") from error


def _is_fresh(path: Path, store: Path, run_id: str) -> bool:
    """Tell whether a page of the run is there and not older than what was saved of it."""
    if path.is_symlink() or run_id_of_page(path) != run_id:
        return False
    try:
        saved = (store / published(RUNS_FILE, run_id)).lstat().st_mtime_ns
        return path.lstat().st_mtime_ns >= saved
    except OSError:  # replaced at this moment
        return False


def _asker(path: Path, run_id: str, *, force: bool) -> Callable[[], bool]:
    return lambda: force or run_id_of_page(path) == run_id
