"""What commands write: the files that were asked for, each complete or not at all.

Results go to stdout, and everything else to stderr.
"""

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
from nsyspipe.model.user_paths import UserPath
from nsyspipe.report.export import FORMAT_OF_SUFFIX, FORMATS
from nsyspipe.report.formats import Format

if TYPE_CHECKING:
    from nsyspipe.report.blocks import Block
    from nsyspipe.run.run import Run

# Starts a stage of the progress bar by its name.
Stage = Callable[[str], OnProgress | None]
Opener = Callable[[], AbstractContextManager[BinaryIO]]
STDOUT = "-"
# In this order they are written.
_FORMATS = tuple(dict.fromkeys(["json", "markdown", "csv", *FORMATS]))
# What a message says of a saved run that is replaced by a run of other reports.
_OF_OTHER_REPORTS = "which was of other reports"
_TO_FILES_ONLY = (
    "out",
    *(name for name, file_format in FORMATS.items() if not file_format.is_printed),
)

_PERFETTO_STEPS = "--perfetto-steps"

Kind = TypeVar("Kind", bound="type[Outputs]")
_STEPS = re.compile(r"(?P<first>-?[0-9]{1,18})?(?P<colon>:)?(?P<last>-?[0-9]{1,18})?")


def write_stdout(text: str) -> None:
    """Write a result, now rather than at exit."""
    # None if whoever started the program closed it.
    if sys.stdout is None:
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
    """Print an error: a line with the problem, then what was found and what fixes it."""
    has_colors = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    word = typer.style("error:", fg="red", bold=True) if has_colors else "error:"
    first, *rest = map(printable, error.lines())
    text = "\n".join([f"{word} {first}", *rest])
    sys.stderr.write(f"{text}\n")


def lenient_encoding() -> None:
    """Let a terminal that knows few letters show the rest as question marks."""
    # None if whoever started the program closed it. The file in its place is never closed.
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def say_written(*names: str, quiet: bool) -> None:
    """Say on stderr which files were written."""
    if names and not quiet:
        text = printable(f"written: {', '.join(names)}")
        typer.echo(text, err=True)


def open_page(path: Path) -> None:
    """Show a page in the browser of whoever is there."""
    import webbrowser

    url = path.absolute().as_uri()
    if not webbrowser.open(url):
        hint = printable(f"no browser was found, so open {path} yourself")
        typer.echo(hint, err=True)


@contextlib.contextmanager
def progress(*, shown: bool) -> Iterator[Stage]:
    """Yield a function that starts a stage, and returns what moves its bar.

    The bar replaces that of the stage before.
    """
    is_terminal = sys.stderr is not None and sys.stderr.isatty()
    if not shown or not is_terminal:
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
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True) as bar:

        def start(name: str) -> OnProgress:
            for task_before in bar.task_ids:
                bar.remove_task(task_before)
            # Without a total, the bar moves until something is counted.
            task = bar.add_task(name, total=None)
            return lambda done, total: bar.update(task, completed=done, total=total)

        yield start


def _format(name: str) -> Any:  # noqa: ANN401 - a field
    metavar = "FILE" if name in _TO_FILES_ONLY else "FILE|-"
    return option(FORMATS[name].help, metavar)


def _check_printable(name: str, value: str) -> None:
    """Refuse to print a format that is written to files only."""
    if value == STDOUT and name in _TO_FILES_ONLY:
        place = "DIR" if name == "out" else "FILE"
        fix = f"--{name} {place}"
        raise OptionError(f"--{name} -", "cannot be printed", fix=fix)


def _check_suffix(name: str, value: str) -> None:
    """Refuse a file whose name has the extension of another format."""
    if name not in FORMATS:
        return
    suffix = Path(value).suffix.lower()
    format_of_suffix = FORMAT_OF_SUFFIX.get(suffix, name)
    if format_of_suffix != name:
        own_suffix = FORMATS[name].suffixes[0]
        renamed = Path(value).with_suffix(own_suffix)
        problem = f"has the file name extension of --{format_of_suffix}"
        fix = f"--{name} {renamed}, or --{format_of_suffix} {value}"
        raise OptionError(f"--{name} {value}", problem, fix=fix)


@dataclass(frozen=True)
class Outputs:
    """The files of an answer, by the options that ask for them.

    A command has the options that are declared as such.
    """

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
        """The formats that are asked for, with their files."""
        values = {name: getattr(self, name, None) for name in _FORMATS}
        return {name: value for name, value in values.items() if value is not None}

    @property
    def printed(self) -> str | None:
        """The format that is printed, so that nothing else may be; `check` allows one at most."""
        values = self._named.items()
        return next((name for name, value in values if value == STDOUT), None)

    def check(self) -> None:
        """Refuse what cannot be written before any work is done."""
        from nsyspipe.report.files import check_directory

        if self.open and self.html is None:
            raise OptionError("--open", "needs an output file", fix="--html FILE --open")
        outputs = self._named
        if self.out is not None:
            outputs = {"out": self.out, **outputs}
        option_of_target: dict[str, str] = {}
        for name, value in outputs.items():
            _check_printable(name, value)
            _check_suffix(name, value)
            is_printed = value == STDOUT
            target = value if is_printed else os.path.realpath(value)
            first_option = option_of_target.setdefault(target, f"--{name}")
            if first_option != f"--{name}":
                options = f"{first_option} and --{name}"
                problem = f"both write to {value}"
                raise OptionError(options, problem, fix="use a different file for each")
            is_file = not is_printed and name != "out"
            if is_file and not self._makes_directory_of(value):
                suffix = FORMATS[name].suffixes[0]
                check_directory(value, f"run{suffix}")

    def _makes_directory_of(self, file: str) -> bool:
        """Tell whether a file goes to the run store, which is made first."""
        if self.out is None:
            return False
        return Path(file).parent == Path(self.out)

    def answer(
        self,
        formats: Mapping[str, Format],
        blocks: Iterable[Block],
        inputs: Sequence[Path],
        identity: object,
        *,
        quiet: bool = False,
    ) -> None:
        """Write all files, then print one format or the blocks.

        Nothing is written before it is known that all files can be.
        """

        def is_same(name: str, path: Path) -> bool:
            return formats[name].identity_of(path) == identity

        files = self._files(inputs, is_same)
        texts = {name: formats[name].text() for name in self._named}
        for name, opened in files.items():
            with opened() as file:
                data = texts[name].encode("utf-8", errors="replace")
                file.write(data)
        if self.printed:
            write_stdout(texts[self.printed])
        elif not quiet:
            write_stdout(text_of(blocks))
        self._say_written(quiet=quiet)

    @property
    def _paths(self) -> dict[str, str]:
        """The files that are written, by format."""
        values = self._named.items()
        return {name: value for name, value in values if value != STDOUT}

    def _say_written(self, *stores: str, quiet: bool) -> None:
        files = self._paths.values()
        say_written(*files, *stores, quiet=quiet)
        if self.open:
            open_page(Path(str(self.html)))

    def _files(
        self, inputs: Sequence[Path], is_same: Callable[[str, Path], bool]
    ) -> dict[str, Opener]:
        """Return what opens each file, or refuse one that may not be replaced.

        `is_same` tells whether the file of a format is of the same runs.
        """
        from nsyspipe.report.files import check_target, writing

        def may_replace(name: str, path: Path) -> bool:
            return self.force or is_same(name, path)

        files: dict[str, Opener] = {}
        for name, value in self._paths.items():
            path = Path(value)
            may_replace_path = partial(may_replace, name, path)
            check_target(path, inputs, may_replace=may_replace_path)
            files[name] = partial(writing, path, inputs, may_replace=may_replace_path)
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
    """Return the name of a run that is saved, and of the run of other reports that it replaces."""
    from nsyspipe.store.layout import has_run
    from nsyspipe.store.saved_run import SavedRun

    header = run.header
    missing_ranks = ""
    if "ranks-not-read" in run.problems["code"].to_pylist():
        size = f"{header.n_ranks} of {header.n_job_ranks} ranks"
        name = f"{store}:{header.label}"
        missing_ranks = f", {size}: {name} means it until a later capture is saved"
    if not has_run(store, header.run_id):
        return f"run {header.run_id}{missing_ranks}"
    other_reports = ""
    # A saved run that cannot be read is replaced without a word about its reports.
    with contextlib.suppress(DatasetError):
        replaced = SavedRun(UserPath.of(store), header.run_id).header
        is_same_capture = replaced.captured_at_utc == header.captured_at_utc
        has_same_reports = replaced.reports == header.reports
        if not has_same_reports or not is_same_capture:
            reports = listed(replaced.reports, 2)
            other_reports = f", {_OF_OTHER_REPORTS}: {reports}"
            if replaced.captured_at_utc:
                captured_at = replaced.captured_at_utc[:19]
                other_reports += f", captured {captured_at} UTC"
    return f"replaced run {header.run_id}{other_reports}{missing_ranks}"


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
        options_of_trace = {"steps": self.perfetto_steps, "ranks": self.perfetto_ranks}
        for name, value in options_of_trace.items():
            if value is not None and self.perfetto is None:
                argument = shlex.quote(value)
                fix = f"--perfetto run.pftrace --perfetto-{name} {argument}"
                raise OptionError(f"--perfetto-{name}", "needs --perfetto", fix=fix)
        self._ranks()
        self._steps()
        self.check()

    def write_run(self, run: Run, stage: Stage, top: int | None, *, quiet: bool) -> None:
        """Write all outputs, with `top` rows in the tables of costs. What is printed comes last."""
        settings = {name: self._settings(name, top) for name in self._named}
        numbers = run.steps()["step"].to_pylist() or [0]
        steps = self._steps(min(numbers), max(numbers))
        run_id = run.header.run_id

        def is_same(name: str, path: Path) -> bool:
            return FORMATS[name].identity_of(path) == run_id

        # Nothing is written before it is known that all can be.
        files = self._files(run.inputs, is_same)
        if self.out is not None:
            from nsyspipe.store.write import check_store

            check_store(run, Path(self.out))
        if self.events:
            run.operations(steps)
        if self.perfetto is not None:
            ranks = self._read_trace(run, steps)
            settings["perfetto"] = {"ranks": ranks}
        stores = []
        if self.out is not None:
            stores.append(self._save(run, self.out, stage))
        for name, opened in files.items():
            with opened() as file:
                on_progress = stage(f"writing {name}")
                options = settings[name]
                FORMATS[name].write(run, file, steps, on_progress, **options)
        if self.printed:
            printed = io.BytesIO()
            options = settings[self.printed]
            FORMATS[self.printed].write(run, printed, None, None, **options)
            write_stdout(printed.getvalue().decode())
        self._say_written(*stores, quiet=quiet)
        has_other_reports = any(_OF_OTHER_REPORTS in store for store in stores)
        if quiet and has_other_reports:
            say_written(*stores, quiet=False)

    def _settings(self, name: str, top: int | None) -> dict[str, Any]:
        """Return the further arguments with which a format is written."""
        return {"top": top} if FORMATS[name].has_top else {}

    def _read_trace(self, run: Run, steps: tuple[int, int] | None) -> list[int]:
        """Read the operations of the trace, and return its ranks. Hints go to stderr."""
        from nsyspipe.report.perfetto import (
            large_trace,
            left_out,
            traced_ranks,
            without_samples,
        )

        chosen = self._ranks()
        ranks = chosen or traced_ranks(run)
        run.operations(steps, ranks)
        hints = []
        if not chosen:
            hints.append(left_out(run))
        if steps is None:
            hints.append(large_trace(run, ranks))
        hints.append(without_samples(run, ranks))
        lines = [f"{hint}\n" for hint in hints if hint]
        sys.stderr.write("".join(lines))
        return ranks

    def _save(self, run: Run, store: str, stage: Stage) -> str:
        """Save the run, and return the store and the run in words."""
        from nsyspipe.store.write import save

        path = Path(store)
        run_text = _replacing(run, path)
        store_text = store.rstrip("/")
        on_progress = stage("saving the run")
        save(run, path, events=self.events, force=self.force, on_progress=on_progress)
        return f"{store_text}/ ({run_text})"

    def _ranks(self) -> list[int] | None:
        """Return the ranks of the trace; None without a choice."""
        if self.perfetto_ranks is None:
            return None
        return sorted(parse_ranks(self.perfetto_ranks, "--perfetto-ranks"))

    def _steps(self, lowest: int = 0, highest: int = 0) -> tuple[int, int] | None:
        """Return the first and the last step of the trace; None for all steps.

        `lowest` and `highest` stand for an end that is left out.
        """
        if self.perfetto_steps is None:
            return None
        ends = _ends_of_steps(self.perfetto_steps)
        first = int(ends["first"] or lowest)
        last_by_default = highest if ends["colon"] else first
        last = int(ends["last"] or last_by_default)
        has_both_ends = ends["first"] and ends["last"]
        if has_both_ends and last < first:
            argument = f"{_PERFETTO_STEPS} {self.perfetto_steps}"
            fix = f"{_PERFETTO_STEPS} {last}:{first}"
            raise OptionError(argument, "ends before it starts", fix=fix)
        return first, max(first, last)


def _ends_of_steps(text: str) -> re.Match[str]:
    """Return the parts of a range of steps: ``first``, ``colon`` and ``last``."""
    problem = "is not a range FROM:TO of step numbers"
    ends = _STEPS.fullmatch(text)
    if ends is None or not (ends["first"] or ends["last"]):
        fix = f"{_PERFETTO_STEPS} 3:5"
        raise OptionError(f"{_PERFETTO_STEPS} {text!r}", problem, fix=fix)
    # As in 14-15.
    if ends["last"] and not ends["colon"]:
        last = ends["last"].removeprefix("-")
        fix = f"{_PERFETTO_STEPS} {ends['first']}:{last}"
        raise OptionError(f"{_PERFETTO_STEPS} {text}", problem, fix=fix)
    return ends
