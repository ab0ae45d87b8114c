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

_IN = "Reports (.sqlite), best all of a run at once: files, directories, globs; and last OUT."
_OUT = "OUT: the copy of one report; for several a directory, in which they keep their names."
_DROP = "Leave out tables that this version does not know, instead of refusing the report."
_REPLACE = "Replace copies that are there already."
_NSYS = "The nsys to use, or its directory. [default: on PATH, else where it is usually installed]"
_REPORTS = "Reports of nsys: files, directories, globs."


@dataclass(frozen=True)
class ExportOptions:
    """Where reports are exported to, and by what."""

    out: Path | None = option("Write there, made if missing. [default: beside each report]", "DIR", "-o")
    force: bool = flag("Export also what is up to date, and replace files that are no reports.")
    nsys: str | None = option(_NSYS, "PATH")
    timeout: float = option("How long one export may take.", "SECONDS", default=1800.0, least=1)


@dataclass(frozen=True)
class ExportingOptions(RunningOptions):
    """How many exports are made at once, and what is said meanwhile."""

    jobs: int | None = option("Exports at once. [default: the cores, up to 8]", "N", "-j", least=1)
    quiet: bool = flag("Print neither paths nor progress, only errors.", "-q")


@with_options
def convert(
    reports: Annotated[list[str], typer.Argument(metavar="REPORTS...", help=_REPORTS)],
    *,
    export: ExportOptions,
    running: ExportingOptions,
) -> None:
    """Export .nsys-rep reports to the SQLite files that the other commands read.

    Runs nsys export with every option that this nsys has for a whole export. What is up to date is skipped: an
    export that is whole, of a report with that name, and not older than it. A file of that name which is something
    else is not replaced without --force. stdout names each export that is there at the end, one a line; a report
    that fails does not keep the others from it. Exit code 2 if any fails; nothing is ever half-written.

    analyze and doctor take .nsys-rep files too: they export them into a cache ($NSYSPIPE_CACHE_DIR, else
    ~/.cache/nsyspipe; up to $NSYSPIPE_CACHE_BYTES, 20 GB), and write nothing beside them.

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
            sources, directory=export.out, nsys=nsys, elsewhere=elsewhere, jobs=running.jobs, force=export.force,
            timeout_s=export.timeout, on_progress=stage("exporting reports"),
        )  # fmt: skip
    for one in outcomes:
        if isinstance(one, NsyspipeError):
            print_error(one)
    made = [one for one in outcomes if isinstance(one, Exported)]
    n_failed = len(outcomes) - len(made)
    if not running.quiet:
        paths = [printable(str(one.path)) for one in made]
        # Another program must not take one for an option.
        write_stdout("".join(f"{'./' if path.startswith('-') else ''}{path}\n" for path in paths))
        counts = [(sum(one.status == status for one in made), status) for status in (EXPORTED, UP_TO_DATE)]
        typer.echo(", ".join(f"{n} {what}" for n, what in [*counts, (n_failed, "failed")] if n), err=True)
    if n_failed:
        raise typer.Exit(2)


@contextlib.contextmanager
def _exporters(running: ExportingOptions, program: str | None) -> Iterator[tuple[Executor, Callable[[], bool]] | None]:
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
            problem, fix = (
                "was not found on any worker",
                "--nsys PATH as the workers see the path, or leave out --scheduler",
            )
            raise NsysNotFoundError(program or "nsys", problem, found=listed(without, MOST_NAMES), fix=fix)
        if without:
            cluster.take_only(found.keys() - without)
            said = f"no nsys on {len(without)} of {len(found)} workers, which export nothing: {listed(without, MOST_NAMES)}"
            typer.echo("" if running.quiet else f"{said}\n", err=True, nl=False)
        yield cluster, is_unwanted


@with_options
def redact(
    paths: Annotated[list[str], typer.Argument(metavar="IN... OUT", help=f"{_IN} {_OUT}")],
    *,
    drop_unknown: Annotated[bool, typer.Option("--drop-unknown", help=_DROP, rich_help_panel=OUTPUT)] = False,
    force: Annotated[bool, typer.Option("--force", help=_REPLACE, rich_help_panel=OUTPUT)] = False,
    running: QuietOptions,
) -> None:
    """Copy reports without environment, host, user, paths, process list; analyze answers the same for the copy.

    Only what analysis needs is copied. Names of kernels and NVTX ranges stay: they may hold private words.

    \b
    Examples:
      nsyspipe redact ddp-8gpu_0.sqlite copy_0.sqlite
      nsyspipe redact reports/ redacted/
      nsyspipe redact 'reports/ddp-8gpu_*.sqlite' redacted/
    """
    from nsyspipe.redact.redact import redact as run_redact
    from nsyspipe.report.redaction import redaction_text

    if len(paths) == 1:
        raise OptionError("redact", "needs a place for the copies", fix=f"nsyspipe redact {shlex.quote(paths[0])} OUT")
    reports, out = paths[:-1], Path(paths[-1])
    refuse_saved_runs(reports)
    with progress(shown=running.is_shown) as stage:
        done = run_redact(reports, out, force=force, drop_unknown=drop_unknown, on_progress=stage("copying MiB"))
    if not running.quiet:
        write_stdout(redaction_text(done, out))
