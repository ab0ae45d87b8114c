"""``nsyspipe convert`` and ``nsyspipe redact``: reports as SQLite, and copies to share."""

import contextlib
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nsyspipe.cli.inputs import refuse_saved_runs
from nsyspipe.cli.options import OUTPUT, QuietOptions, RunningOptions, flag, option, with_options
from nsyspipe.cli.outputs import print_error, progress, write_stdout
from nsyspipe.errors import NsysNotFoundError, NsyspipeError, OptionError
from nsyspipe.model.names import listed, printable

if TYPE_CHECKING:
    from nsyspipe.nsys.export import Exported

_IN = (
    "Reports (.sqlite), preferably all reports of a run: files, directories or globs. The last "
    "argument is OUT."
)
_OUT = "OUT is the copy of one report, or a directory for several copies, which keep their names."
_DROP = "Leave out tables that this version does not know, instead of refusing the report."
_REPLACE = "Replace existing copies."
_NSYS = "Path of nsys or its directory. [default: from PATH, or the usual directories]"
_REPORTS = "nsys reports: files, directories or globs."


@dataclass(frozen=True)
class ExportOptions:
    """Where reports are exported to, and by what."""

    out: Path | None = option(
        "Output directory, created if missing. [default: the directory of each report]", "DIR", "-o"
    )
    force: bool = flag("Export up-to-date reports again, and replace files that are not exports.")
    nsys: str | None = option(_NSYS, "PATH")
    timeout: float = option("Time limit of one export.", "SECONDS", default=1800.0, least=1)


@dataclass(frozen=True)
class ExportingOptions(RunningOptions):
    """How many exports are made at once, and what is said meanwhile."""

    jobs: int | None = option(
        "Number of exports at once. [default: cores, at most 8]", "N", "-j", least=1
    )
    quiet: bool = flag("Print no paths and no progress, only errors.", "-q")


@with_options
def convert(
    reports: Annotated[list[str], typer.Argument(metavar="REPORTS...", help=_REPORTS)],
    *,
    export: ExportOptions,
    running: ExportingOptions,
) -> None:
    """Export .nsys-rep reports to the SQLite files that the other commands read.

    convert skips exports that are complete and not older than their report. convert replaces other
    files only with --force. stdout lists the exports, one per line. If a report fails, convert
    continues with the others and exits with 2. An export is always complete or missing.

    analyze and doctor accept .nsys-rep files too. They export into a cache ($NSYSPIPE_CACHE_DIR or
    ~/.cache/nsyspipe, at most $NSYSPIPE_CACHE_BYTES or 20 GB).

    \b
    Examples:
      nsyspipe convert ddp-8gpu_*.nsys-rep
      nsyspipe convert reports/ -o exports/ -j 4
      nsyspipe convert "runs/*/ddp_*.nsys-rep" --nsys /opt/nvidia/nsight-systems/2025.6.1/bin/nsys
      nsyspipe convert reports/ --scheduler tcp://HOST:8786
      nsyspipe convert reports/ | xargs -d '\\n' nsyspipe analyze
    """
    from nsyspipe.nsys.export import Exported, attempt_exports
    from nsyspipe.nsys.find_reports import find_captures
    from nsyspipe.nsys.programs import Nsys, find

    refuse_saved_runs(reports)
    sources = find_captures(reports)
    # On a cluster, the workers look for the program on their own machines.
    is_found_later = export.nsys is None or running.cluster
    nsys: Nsys | str | None = export.nsys if is_found_later else find(str(export.nsys))
    # `elsewhere` has the workers of a cluster. It is None if this machine makes the exports.
    with progress(shown=running.is_shown) as stage, _exporters(running, export.nsys) as elsewhere:
        on_progress = stage("exporting reports")
        outcomes = attempt_exports(
            sources,
            directory=export.out,
            nsys=nsys,
            elsewhere=elsewhere,
            jobs=running.jobs,
            force=export.force,
            timeout_s=export.timeout,
            on_progress=on_progress,
        )
    errors = [outcome for outcome in outcomes if isinstance(outcome, NsyspipeError)]
    for error in errors:
        print_error(error)
    if not running.quiet:
        exports = [outcome for outcome in outcomes if isinstance(outcome, Exported)]
        _print_exports(exports, n_failed=len(errors))
    if errors:
        raise typer.Exit(2)


def _print_exports(exports: Sequence["Exported"], *, n_failed: int) -> None:
    """Print the paths of the exports to stdout, one per line.

    Also print to stderr how many exports were made, how many were up to date, and how many failed.
    """
    from nsyspipe.nsys.export import EXPORTED, UP_TO_DATE

    paths = [printable(str(exported.path)) for exported in exports]
    write_stdout("".join(map(_path_line, paths)))
    n_by_status = Counter(exported.status for exported in exports)
    n_exported = n_by_status[EXPORTED]
    n_up_to_date = n_by_status[UP_TO_DATE]
    counts = {EXPORTED: n_exported, UP_TO_DATE: n_up_to_date, "failed": n_failed}
    texts = [f"{number} {status}" for status, number in counts.items() if number]
    typer.echo(", ".join(texts), err=True)


def _path_line(path: str) -> str:
    """Return a line with a path, which no program that reads the line takes for an option."""
    looks_like_option = path.startswith("-")
    return f"./{path}\n" if looks_like_option else f"{path}\n"


@contextlib.contextmanager
def _exporters(
    running: ExportingOptions, program: str | None
) -> Iterator[tuple[Executor, Callable[[], bool]] | None]:
    """Yield the workers of the cluster that have nsys, and how a worker asks if it is to stop.

    Yield None without a cluster. Raise a NsysNotFoundError if no worker has nsys. `program` is the
    path of nsys on the workers.
    """
    if running.cluster is None:
        yield None
        return
    from nsyspipe.nsys.programs import find
    from nsyspipe.run.cluster import MOST_NAMES, Cluster, is_unwanted

    with Cluster(running.cluster) as cluster:
        # For each worker its nsys, or the exception that `find` raised there.
        nsys_of_worker = cluster.on_each_worker(find, program)
        workers_without = [
            worker for worker, nsys in nsys_of_worker.items() if isinstance(nsys, Exception)
        ]
        if workers_without:
            names = listed(workers_without, MOST_NAMES)
            n_workers = len(nsys_of_worker)
            n_without = len(workers_without)
            if n_without == n_workers:
                problem = "was not found on any worker"
                fix = "--nsys PATH as the workers see the path, or leave out --scheduler"
                raise NsysNotFoundError(program or "nsys", problem, found=names, fix=fix)
            cluster.take_only(nsys_of_worker.keys() - workers_without)
            if not running.quiet:
                size = f"{n_without} of {n_workers} workers"
                typer.echo(f"{size} have no nsys and export nothing: {names}", err=True)
        yield cluster, is_unwanted


@with_options
def redact(
    paths: Annotated[list[str], typer.Argument(metavar="IN... OUT", help=f"{_IN} {_OUT}")],
    *,
    drop_unknown: Annotated[
        bool, typer.Option("--drop-unknown", help=_DROP, rich_help_panel=OUTPUT)
    ] = False,
    force: Annotated[bool, typer.Option("--force", help=_REPLACE, rich_help_panel=OUTPUT)] = False,
    running: QuietOptions,
) -> None:
    """Copy reports without environment, host names, user names, paths and process lists.

    nsyspipe gives the same answers for a copy. The names of kernels and NVTX ranges stay, so check
    them for private words before you share a copy.

    \b
    Examples:
      nsyspipe redact ddp-8gpu_0.sqlite copy_0.sqlite
      nsyspipe redact reports/ redacted/
      nsyspipe redact 'reports/ddp-8gpu_*.sqlite' redacted/
    """
    from nsyspipe.redact.redact import redact as run_redact
    from nsyspipe.report.redaction import redaction_text

    if len(paths) == 1:
        fix = f"nsyspipe redact {shlex.quote(paths[0])} OUT"
        raise OptionError("redact", "needs a place for the copies", fix=fix)
    reports = paths[:-1]
    out = Path(paths[-1])
    refuse_saved_runs(reports)
    with progress(shown=running.is_shown) as stage:
        on_progress = stage("copying MiB")
        redacted = run_redact(
            reports, out, force=force, drop_unknown=drop_unknown, on_progress=on_progress
        )
    if not running.quiet:
        write_stdout(redaction_text(redacted, out))
