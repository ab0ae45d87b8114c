"""What commands write: every file that was asked for, each whole or not at all; results to stdout, the rest to stderr."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

import typer

from nsyspipe.cli.options import flag, option
from nsyspipe.errors import DatasetError, NsyspipeError, OptionError, OutputError
from nsyspipe.model.names import listed, printable
from nsyspipe.model.options import OnProgress, parse_ranks
from nsyspipe.nsys.find_reports import naming_sources
from nsyspipe.report.export import FORMATS
from nsyspipe.report.files import Format

if TYPE_CHECKING:
    from nsyspipe.report.blocks import Block
    from nsyspipe.run.run import Run

Stage = Callable[[str], OnProgress | None]  # starts a stage by its name
Opener = Callable[[], AbstractContextManager[BinaryIO]]
STDOUT = "-"
_FORMATS = tuple(
    dict.fromkeys(["json", "markdown", "csv", *FORMATS])
)  # in this order they are written
_OF_OTHERS = "which was of other reports"
_TO_FILES_ONLY = ("out", *(name for name, one in FORMATS.items() if not one.is_printed))

Kind = TypeVar("Kind", bound="type[Outputs]")
_STEPS = re.compile(r"(-?[0-9]{1,18})?(:)?(-?[0-9]{1,18})?")


def write_stdout(text: str) -> None:
    """Write a result, now rather than at exit."""
    if sys.stdout is None:  # closed by whoever started the program
        raise OutputError("standard output", "is closed", fix="write to a file: --json FILE")
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        problem = f"cannot be written ({error.strerror})"
        raise OutputError("standard output", problem, fix="write to a file: --json FILE") from error


def text_of(blocks: Iterable[Block]) -> str:
    """Return blocks as text for this terminal."""
    from rich.console import Console

    from nsyspipe.report.as_text import as_text

    return as_text(blocks, Console())


def print_error(error: NsyspipeError) -> None:
    """Print an error: one line that says it, then what was found and what fixes it."""
    is_coloured = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    word = typer.style("error:", fg="red", bold=True) if is_coloured else "error:"
    first, *rest = (printable(naming_sources(line)) for line in error.lines())
    sys.stderr.write("\n".join([f"{word} {first}", *rest]) + "\n")


def lenient_encoding() -> None:
    """Let a terminal that knows few letters show the rest as question marks."""
    if sys.stderr is None:  # closed by whoever started the program
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - for the program's life
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def say_written(*names: str, quiet: bool) -> None:
    """Say on stderr which files were written."""
    if names and not quiet:
        typer.echo(printable(f"written: {', '.join(names)}"), err=True)


def open_page(path: Path) -> None:
    """Show a page in the browser of whoever is there."""
    import webbrowser

    if not webbrowser.open(path.absolute().as_uri()):
        typer.echo(printable(f"no browser was found, so open {path} yourself"), err=True)


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


def _format(name: str) -> Any:  # noqa: ANN401 - a field
    return option(FORMATS[name].help, "FILE" if name in _TO_FILES_ONLY else "FILE|-")


@dataclass(frozen=True)
class Outputs:
    """The files of an answer, by the options that ask for them; a command has those that are declared as options."""

    out: str | None = None
    events: bool = False
    json: str | None = _format("json")
    markdown: str | None = _format("markdown")
    csv: str | None = None
    html: str | None = _format("html")
    perfetto: str | None = None
    perfetto_steps: str | None = None
    open: bool = flag("Open the HTML report of --html in a browser.")
    force: bool = flag("Replace output files of other runs.")

    @property
    def _named(self) -> dict[str, str]:
        return {
            name: value for name in _FORMATS if (value := getattr(self, name, None)) is not None
        }

    @property
    def printed(self) -> str | None:
        """The format that is printed, so that nothing else may be; `check` lets through one at most."""
        return next((name for name, value in self._named.items() if value == STDOUT), None)

    def check(self) -> None:
        """Refuse what cannot be written before any work is done."""
        from nsyspipe.report.files import check_directory

        if self.open and self.html is None:
            raise OptionError("--open", "needs an output file", fix="--html FILE --open")
        seen: dict[str, str] = {}
        for name, value in (
            self._named if self.out is None else {"out": self.out} | self._named
        ).items():
            shown = f"--{name}"
            if value == STDOUT and name in _TO_FILES_ONLY:
                raise OptionError(
                    f"{shown} -",
                    "cannot be printed",
                    fix=f"{shown} {'DIR' if name == 'out' else 'FILE'}",
                )
            own = next(
                (of for of, one in FORMATS.items() if Path(value).suffix.lower() in one.suffixes),
                name,
            )
            if own != name and name in FORMATS:
                fix = (
                    f"{shown} {Path(value).with_suffix(FORMATS[name].suffixes[0])}, or --{own} "
                    f"{value}"
                )
                raise OptionError(
                    f"{shown} {value}", f"has the file name extension of --{own}", fix=fix
                )
            other = seen.setdefault(value if value == STDOUT else os.path.realpath(value), shown)
            if other != shown:
                raise OptionError(
                    f"{other} and {shown}",
                    f"both write to {value}",
                    fix="use a different file for each",
                )
            is_made = self.out is not None and Path(value).parent == Path(self.out)
            if value != STDOUT and name != "out" and not is_made:
                check_directory(value, f"run{FORMATS[name].suffixes[0]}")

    def answer(
        self,
        formats: Mapping[str, Format],
        blocks: Iterable[Block],
        inputs: Sequence[Path],
        identity: object,
        *,
        quiet: bool = False,
    ) -> None:
        """Write all files, once it is known that all can be; then print the format that is to be, else the blocks."""
        files = self._files(inputs, lambda name, path: formats[name].identity_of(path) == identity)
        texts = {name: formats[name].text() for name in self._named}
        for name, opened in files.items():
            with opened() as file:
                file.write(texts[name].encode("utf-8", errors="replace"))
        if self.printed or not quiet:
            write_stdout(texts[self.printed] if self.printed else text_of(blocks))
        self._say_written(quiet=quiet)

    def _say_written(self, *more: str, quiet: bool) -> None:
        say_written(
            *(value for value in self._named.values() if value != STDOUT), *more, quiet=quiet
        )
        if self.open:
            open_page(Path(str(self.html)))

    def _files(
        self, inputs: Sequence[Path], is_same: Callable[[str, Path], bool]
    ) -> dict[str, Opener]:
        from nsyspipe.report.files import check_target, writing

        files: dict[str, Opener] = {}
        for name, path in (
            (name, Path(value)) for name, value in self._named.items() if value != STDOUT
        ):
            may_replace = partial(lambda *named: self.force or is_same(*named), name, path)
            check_target(path, inputs, may_replace=may_replace)
            files[name] = partial(writing, path, inputs, may_replace=may_replace)
        return files


@dataclass(frozen=True)
class VerboseOutputs(Outputs):
    """The files of an answer, of which the terminal shows the most important part."""

    verbose: bool = flag("Print everything: all metrics, kernels, assumptions and notes.", "-v")


@dataclass(frozen=True)
class ComparisonOutputs(VerboseOutputs):
    """The files of a difference."""

    force: bool = flag(
        "Compare runs that are not comparable, and replace output files of other runs."
    )


@dataclass(frozen=True)
class ScoreboardOutputs(ComparisonOutputs):
    """The files of a scoreboard."""

    csv: str | None = option("Write the table as CSV. - prints only the CSV.", "FILE|-")


def _replacing(run: Run, store: Path) -> str:
    """Name a run that is saved, and the one of other reports whose place it takes."""
    from nsyspipe.store.layout import has_run
    from nsyspipe.store.saved_run import SavedRun

    new = run.header
    more = ""
    if "ranks-not-read" in run.problems["code"].to_pylist():
        more = (
            f", {new.n_ranks} of {new.n_job_ranks} ranks: {store}:{new.label} means it until a "
            "later capture is saved"
        )
    if not has_run(store, new.run_id):
        return f"run {new.run_id}{more}"
    with contextlib.suppress(DatasetError):  # nobody can tell
        old = SavedRun(store, new.run_id).header
        if (old.reports, old.captured_at_utc) != (new.reports, new.captured_at_utc):
            when = f", captured {old.captured_at_utc[:19]} UTC" if old.captured_at_utc else ""
            more = f", {_OF_OTHERS}: {listed(old.reports, 2)}{when}{more}"
    return f"replaced run {new.run_id}{more}"


def _with_formats(outputs: Kind) -> Kind:
    for name in FORMATS:
        if name not in {"json", "markdown", "html"}:
            outputs.__annotations__[name] = "str | None"
            setattr(outputs, name, _format(name))
    return outputs


@dataclass(frozen=True)
@_with_formats
class AnalysisOutputs(Outputs):
    """The outputs of one analysis."""

    out: str | None = option(
        (
            "Save the run in a run store (Parquet files), which other commands accept instead of "
            "reports."
        ),
        "DIR",
        "-o",
    )
    events: bool = flag("Also save every GPU operation, which whatif needs. Only with --out.")
    perfetto_steps: str | None = option(
        "First and last step of the trace. [default: all captured steps]", "FROM:TO"
    )
    perfetto_ranks: str | None = option(
        "Ranks in the trace. [default: all of up to 8 ranks, otherwise the ranks that differ most]",
        "0-7,63",
    )

    def check_run(self, run_id: str | None) -> None:
        """Refuse what cannot be written before any work is done."""
        from nsyspipe.store.layout import check_run_id

        if run_id is not None and self.out is not None:
            check_run_id(run_id)
        if self.events and self.out is None:
            raise OptionError("--events", "needs --out", fix="--out DIR --events")
        for name, given in (("steps", self.perfetto_steps), ("ranks", self.perfetto_ranks)):
            if given is not None and self.perfetto is None:
                fix = f"--perfetto run.pftrace --perfetto-{name} {shlex.quote(given)}"
                raise OptionError(f"--perfetto-{name}", "needs --perfetto", fix=fix)
        self._ranks()
        self._steps()
        self.check()

    def write_run(self, run: Run, stage: Stage, top: int | None, *, quiet: bool) -> None:
        """Write them all, with so many of the costliest; what is printed comes last."""
        formats = {name: FORMATS[name] for name in self._named}
        shown: dict[str, dict[str, Any]] = {
            name: {"top": top} if FORMATS[name].has_top else {} for name in formats
        }
        numbers = run.steps()["step"].to_pylist() or [0]
        steps = self._steps(min(numbers), max(numbers))
        # Nothing is written before it is known that all can be.
        files = self._files(
            run.inputs, lambda name, path: formats[name].run_id_of(path) == run.header.run_id
        )
        if self.out is not None:
            from nsyspipe.store.write import check_store, save

            check_store(run, Path(self.out))
        if self.events:
            run.operations(steps)
        if self.perfetto is not None:
            from nsyspipe.report.perfetto import large_trace, left_out, traced_ranks

            ranks = self._ranks() or traced_ranks(run)
            run.operations(steps, ranks)
            shown["perfetto"] = {"ranks": ranks}
            hints = [
                None if self._ranks() else left_out(run),
                large_trace(run, ranks) if steps is None else None,
            ]
            sys.stderr.write("".join(f"{hint}\n" for hint in hints if hint))
        stores = []
        if self.out is not None:
            stores = [f"{self.out.rstrip('/')}/ ({_replacing(run, Path(self.out))})"]
            save(
                run,
                Path(self.out),
                events=self.events,
                force=self.force,
                on_progress=stage("saving the run"),
            )
        for name, opened in files.items():
            with opened() as file:
                formats[name].write(run, file, steps, stage(f"writing {name}"), **shown[name])
        if self.printed:
            printed = io.BytesIO()
            formats[self.printed].write(run, printed, None, None, **shown[self.printed])
            write_stdout(printed.getvalue().decode())
        self._say_written(*stores, quiet=quiet)
        if quiet and any(_OF_OTHERS in store for store in stores):
            say_written(*stores, quiet=False)

    def _ranks(self) -> list[int] | None:
        return (
            None
            if self.perfetto_ranks is None
            else sorted(parse_ranks(self.perfetto_ranks, "--perfetto-ranks"))
        )

    def _steps(self, lowest: int = 0, highest: int = 0) -> tuple[int, int] | None:
        """Return the first and the last step of the trace, an end left out taken from those known; None for all."""
        if self.perfetto_steps is None:
            return None
        ends = _STEPS.fullmatch(self.perfetto_steps)
        option = "--perfetto-steps"
        if ends is None or not (ends[1] or ends[3]):
            raise OptionError(
                f"{option} {self.perfetto_steps!r}",
                "is not a range FROM:TO of step numbers",
                fix=f"{option} 3:5",
            )
        if ends[3] and not ends[2]:  # 14-15
            fix = f"{option} {ends[1]}:{ends[3].removeprefix('-')}"
            raise OptionError(
                f"{option} {self.perfetto_steps}", "is not a range FROM:TO of step numbers", fix=fix
            )
        first = int(ends[1] or lowest)
        last = int(ends[3] or (highest if ends[2] else first))
        if ends[1] and ends[3] and last < first:
            raise OptionError(
                f"{option} {self.perfetto_steps}",
                "ends before it starts",
                fix=f"{option} {last}:{first}",
            )
        return first, max(first, last)
