"""``nsyspipe convert`` and ``nsyspipe redact``: reports as SQLite, and copies that can be shown to others."""

import contextlib
import shlex
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from nsyspipe.cli.inputs import refuse_saved_runs
from nsyspipe.cli.options import OUTPUT, QuietOptions, RunningOptions, flag, option, with_options
from nsyspipe.cli.outputs import print_error, progress, write_stdout
from nsyspipe.errors import NsysNotFoundError, NsyspipeError, OptionError
from nsyspipe.model.names import listed, printable

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
    from nsyspipe.nsys.export import EXPORTED, UP_TO_DATE, Exported, attempt_exports
    from nsyspipe.nsys.find_reports import find_captures
    from nsyspipe.nsys.programs import find

    refuse_saved_runs(reports)
    sources = find_captures(reports)
    nsys = None if export.nsys is None else export.nsys if running.cluster else find(export.nsys)
    with progress(shown=running.is_shown) as stage, _exporters(running, export.nsys) as elsewhere:
        outcomes = attempt_exports(
            sources,
            directory=export.out,
            nsys=nsys,
            elsewhere=elsewhere,
            jobs=running.jobs,
            force=export.force,
            timeout_s=export.timeout,
            on_progress=stage("exporting reports"),
        )
    for outcome in outcomes:
        if isinstance(outcome, NsyspipeError):
            print_error(outcome)
    made = [outcome for outcome in outcomes if isinstance(outcome, Exported)]
    n_failed = len(outcomes) - len(made)
    if not running.quiet:
        paths = [printable(str(one.path)) for one in made]
        # Another program must not take one for an option.
        write_stdout("".join(f"{'./' if path.startswith('-') else ''}{path}\n" for path in paths))
        counts = [
            (sum(one.status == status for one in made), status) for status in (EXPORTED, UP_TO_DATE)
        ]
        typer.echo(
            ", ".join(f"{n} {what}" for n, what in [*counts, (n_failed, "failed")] if n), err=True
        )
    if n_failed:
        raise typer.Exit(2)


@contextlib.contextmanager
def _exporters(
    running: ExportingOptions, program: str | None
) -> Iterator[tuple[Executor, Callable[[], bool]] | None]:
    """Yield the workers of the cluster that is asked for, and name those without nsys; None without a cluster."""
    if running.cluster is None:
        yield None
        return
    from nsyspipe.nsys.programs import find
    from nsyspipe.run.cluster import MOST_NAMES, Cluster, is_unwanted

    with Cluster(running.cluster) as cluster:
        found = cluster.on_each_worker(find, program)
        without = [worker for worker, one in found.items() if isinstance(one, Exception)]
        if without and len(without) == len(found):
            problem = "was not found on any worker"
            fix = "--nsys PATH as the workers see the path, or leave out --scheduler"
            raise NsysNotFoundError(
                program or "nsys", problem, found=listed(without, MOST_NAMES), fix=fix
            )
        if without:
            cluster.take_only(found.keys() - without)
            said = (
                f"{len(without)} of {len(found)} workers have no nsys and export nothing: "
                f"{listed(without, MOST_NAMES)}"
            )
            typer.echo("" if running.quiet else f"{said}\n", err=True, nl=False)
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
        raise OptionError(
            "redact",
            "needs a place for the copies",
            fix=f"nsyspipe redact {shlex.quote(paths[0])} OUT",
        )
    reports = paths[:-1]
    out = Path(paths[-1])
    refuse_saved_runs(reports)
    with progress(shown=running.is_shown) as stage:
        done = run_redact(
            reports, out, force=force, drop_unknown=drop_unknown, on_progress=stage("copying MiB")
        )
    if not running.quiet:
        write_stdout(redaction_text(done, out))
