"""Where each run's own page is, and how the dashboard links to it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING
from urllib.parse import quote

from nsyspipe.report.page.embed import cut, run_id_of_page

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

__all__ = ["page_links", "page_places"]


def page_places(store: Path, beside: Path, pages: Path | None) -> list[Path]:
    """Return the directories that may hold pages of runs, in the order in which they are asked.

    Parameters
    ----------
    beside
        The directory of the dashboard.
    pages
        The user's.
    """
    given = [] if pages is None else [pages]
    return [*given, beside / "pages", beside, store / "pages"]


def page_links(run_ids: Iterable[str], places: Sequence[Path], beside: Path) -> dict[str, str]:
    """Return the relative URL of each run's page, of those that have one.

    A file counts only if it says itself that it is the page of that run.

    Parameters
    ----------
    beside
        The directory of the dashboard, where the links start.
    """
    found = {}
    for run_id in run_ids:
        pages = (place / f"{run_id}.html" for place in places)
        page = next((page for page in pages if run_id_of_page(page) == run_id), None)
        if page is not None:
            # Bytes, since names of files need not be text; "./" so that none is ever taken for a scheme.
            url = f"./{quote(os.fsencode(os.path.relpath(page, beside)))}"
            if cut(url) == url:  # half a URL leads nowhere
                found[run_id] = url
    return found
