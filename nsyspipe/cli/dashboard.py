"""``nsyspipe dashboard``: one page over all runs of a store."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from nsyspipe.cli.inputs import store_of
from nsyspipe.cli.options import QuietOptions, flag, option, with_options
from nsyspipe.cli.outputs import STDOUT, open_page, progress, say_written, write_stdout
from nsyspipe.errors import OptionError, OutputError
from nsyspipe.model.names import printable


@dataclass(frozen=True)
class DashboardOptions:
    """Where the page is written, and the pages that it links to."""

    out: str | None = option("The page; - prints it. [required]", "FILE|-", "-o")
    pages: Path | None = option(
        "Write the page of each run there too, and link to it. [default: link to pages that are in pages/ beside FILE, "
        "beside FILE, or in STORE/pages/]",
        "DIR",
    )
    open: bool = flag("Open the page in a browser.")
    force: bool = flag("Replace a FILE that is no dashboard; write all pages anew.")


@with_options
def dashboard(
    stores: Annotated[
        list[str], typer.Argument(metavar="STORE", help="A directory that analyze --out wrote; all its runs are shown.")
    ],
    *,
    page: DashboardOptions,
    running: QuietOptions,
) -> None:
    """Write one page over all runs of a store: which got better or worse, and since which run.

    It needs nothing but itself. A page that --pages wrote before is kept while it is newer than its run.

    \b
    Examples:
      nsyspipe dashboard runs/ -o runs.html
      nsyspipe dashboard runs/ -o site/index.html --pages site/pages
      nsyspipe dashboard runs/ -o - | ssh host 'cat > /var/www/runs.html'
    """
    store = store_of(stores)
    name = store.resolve().name or "runs"
    if page.out is None:
        raise OptionError("dashboard", "needs a file to write", fix=f"-o {shlex.quote(f'{name}.html')}")
    target = None if page.out == STDOUT else Path(page.out)
    if page.open and target is None:
        raise OptionError("--open", "opens the page that is written", fix=f"-o {shlex.quote(f'{name}.html')} --open")
    if target is not None:
        from nsyspipe.report.files import check_directory, check_target, identity_of_page, write_text
        from nsyspipe.report.html.dashboard_page import DASHBOARD, STORE

        # What may not be replaced is refused before any work is done.
        check_directory(str(page.out), f"{name}.html")
        check_target(target, (), may_replace=lambda: True)
        if target.exists() and not page.force and identity_of_page(target, STORE) != DASHBOARD:
            raise OutputError(str(target), "exists, and is no dashboard of nsyspipe", fix="--force, or another name")
    from nsyspipe.report.html.dashboard_page import dashboard_page, page_links, write_pages
    from nsyspipe.store.saved_run import stored_runs

    with progress(shown=running.is_shown) as stage:
        found, failed = stored_runs(store, on_progress=stage("reading runs")), []
        run_ids = found.runs["run_id"].to_pylist()
        if page.pages is not None:
            failed = write_pages(store, run_ids, page.pages, force=page.force, on_progress=stage("writing pages"))
        for one in (*found.unreadable, *failed):
            typer.echo(printable(f"warning: {one.run_id}: {one.table} {one.message}"), err=True)
        links = page_links(store, run_ids, Path() if target is None else target.parent, page.pages)
        text = dashboard_page(found, title=name, pages=links, problems=failed)
    if target is None:
        write_stdout(text)
        return
    write_text(target, text, [store], may_replace=lambda: True)
    runs = f"{len(run_ids)} run{'s'[: len(run_ids) != 1]}"
    say_written(f"{target} ({runs})", *([] if page.pages is None else [f"{page.pages}/"]), quiet=running.quiet)
    if page.open:
        open_page(target)
