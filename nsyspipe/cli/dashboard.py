"""``nsyspipe dashboard``: one page over all runs of a store."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from nsyspipe.cli.inputs import store_of
from nsyspipe.cli.options import QuietOptions, flag, option, with_options
from nsyspipe.cli.outputs import STDOUT, open_page, progress, say_written, write_stdout
from nsyspipe.errors import OptionError
from nsyspipe.model.names import printable
from nsyspipe.store.layout import name_of_store

_STORE = "A run store, which analyze --out writes. The dashboard shows all its runs."


@dataclass(frozen=True)
class DashboardOptions:
    """Where the page is written, and the pages that it links to."""

    out: str | None = option("Output file. - prints the HTML. [required]", "FILE|-", "-o")
    pages: Path | None = option(
        "Also write the HTML report of each run into this directory, and link to it. [default: "
        "link to existing HTML "
        "reports in pages/, in the directory of FILE, or in STORE/pages/]",
        "DIR",
    )
    open: bool = flag("Open the dashboard in a browser.")
    force: bool = flag("Replace a FILE that is not a dashboard, and write all HTML reports again.")


@with_options
def dashboard(
    stores: Annotated[list[str], typer.Argument(metavar="STORE", help=_STORE)],
    *,
    page: DashboardOptions,
    running: QuietOptions,
) -> None:
    """Write a dashboard of all runs of a run store: a table and, for four or more runs, a chart of
    step time.

    The dashboard is one self-contained HTML file. --pages keeps an HTML report that is newer than
    its run.

    \b
    Examples:
      nsyspipe dashboard runs/ -o runs.html
      nsyspipe dashboard runs/ -o site/index.html --pages site/pages
      nsyspipe dashboard runs/ -o - | ssh host 'cat > /var/www/runs.html'
    """  # noqa: D205 - the summary is longer than a line
    store = store_of(stores)
    name = name_of_store(store)
    file = shlex.quote(f"{name}.html")
    if page.out is None:
        raise OptionError("dashboard", "needs a file to write", fix=f"-o {file}")
    # None if the page is printed.
    target = None if page.out == STDOUT else Path(page.out)
    if page.open and target is None:
        raise OptionError("--open", "needs an output file", fix=f"-o {file} --open")
    from nsyspipe.report.html.dashboard_page import check_dashboard, store_page

    if target is not None:
        check_dashboard(str(page.out), store, force=page.force)
    with progress(shown=running.is_shown) as stage:
        text, n_runs, unreadable = store_page(
            store, target, page.pages, force=page.force, stage=stage
        )
    for run in unreadable:
        warning = f"warning: {run.run_id}: {run.table} {run.message}"
        typer.echo(printable(warning), err=True)
    if target is None:
        write_stdout(text)
        return
    from nsyspipe.report.files import write_text

    # `check_dashboard` has refused what may not be replaced.
    write_text(target, text, [store], may_replace=lambda: True)
    runs_text = "1 run" if n_runs == 1 else f"{n_runs} runs"
    written = [f"{target} ({runs_text})"]
    if page.pages is not None:
        written.append(f"{page.pages}/")
    say_written(*written, quiet=running.quiet)
    if page.open:
        open_page(target)
