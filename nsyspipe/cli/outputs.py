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
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

import typer

from nsyspipe.cli.options import declared_options, flag, option
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
        # The reader has left, which is no error of the output. The program exits silently.
        raise
    except OSError as error:
        fix = "write to a file: --json FILE"
        raise OutputError.not_writable("standard output", error, fix=fix) from error


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
    """Let stdout and stderr replace letters that they cannot encode by question marks."""
    # None if whoever started the program closed it. The file in its place stays open until the
    # program ends.
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
    """Yield a function that shows the bar of a stage, and returns a function that moves the bar.

    The bar replaces that of the stage before. If no bar is shown, the yielded function returns
    None.
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
    """Raise an OptionError if a format that is written to files only is to be printed."""
    if value == STDOUT and name in _TO_FILES_ONLY:
        place = "DIR" if name == "out" else "FILE"
        fix = f"--{name} {place}"
        raise OptionError(f"--{name} -", "cannot be printed", fix=fix)


def _check_suffix(name: str, value: str, options: Collection[str]) -> None:
    """Raise an OptionError if the name of a file has the extension of another format.

    An extension that belongs to no format may be used for any. The error names the option of the
    other format only if it is one of the `options` of the command.
    """
    if name not in FORMATS:
        return
    suffix = Path(value).suffix.lower()
    format_of_suffix = FORMAT_OF_SUFFIX.get(suffix, name)
    if format_of_suffix == name:
        return
    usual_suffix = FORMATS[name].suffixes[0]
    renamed = Path(value).with_suffix(usual_suffix)
    fix = f"--{name} {renamed}"
    if format_of_suffix in options:
        problem = f"has the file name extension of --{format_of_suffix}"
        fix += f", or --{format_of_suffix} {value}"
    else:
        problem = f"has the file name extension {suffix}, but --{name} writes {usual_suffix}"
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
        """The file of each format that the user asked for. `STDOUT` means that it is printed."""
        values = {name: getattr(self, name, None) for name in _FORMATS}
        return {name: value for name, value in values.items() if value is not None}

    @property
    def printed(self) -> str | None:
        """The format that is printed; None if none is. `check` has allowed one at most.

        If a format is printed, nothing else may be.
        """
        for name, value in self._named.items():
            if value == STDOUT:
                return name
        return None

    def check(self) -> None:
        """Raise an error for an output that cannot be written, before any work is done."""
        from nsyspipe.report.files import check_place_for_file

        if self.open and self.html is None:
            raise OptionError("--open", "needs an output file", fix="--html FILE --open")
        outputs = self._named
        if self.out is not None:
            outputs = {"out": self.out, **outputs}
        options_of_command = [declared.name for declared in declared_options(self)]
        # Two outputs need two files, with all links resolved.
        option_of_target: dict[str, str] = {}
        for name, value in outputs.items():
            _check_printable(name, value)
            _check_suffix(name, value, options_of_command)
            is_printed = value == STDOUT
            target = value if is_printed else os.path.realpath(value)
            first_option = option_of_target.setdefault(target, f"--{name}")
            is_target_taken = first_option != f"--{name}"
            if is_target_taken:
                options = f"{first_option} and --{name}"
                problem = f"both write to {value}"
                raise OptionError(options, problem, fix="use a different file for each")
            # The store of --out is a directory, which is made.
            is_file = not is_printed and name != "out"
            if is_file and not self._makes_directory_of(value):
                suffix = FORMATS[name].suffixes[0]
                check_place_for_file(value, f"run{suffix}")

    def _makes_directory_of(self, file: str) -> bool:
        """Tell whether a file goes to the directory of the run store, which is made before it."""
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

        `identity` is what tells the runs of this answer from others. Only a file of the same runs
        may be replaced. All files are checked before the first one is written.
        """

        def is_same(name: str, path: Path) -> bool:
            return formats[name].identity_of(path) == identity

        openers = self._openers(inputs, is_same)
        texts = {name: formats[name].text() for name in self._named}
        for name, open_file in openers.items():
            with open_file() as file:
                encoded_text = texts[name].encode("utf-8", errors="replace")
                file.write(encoded_text)
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
        """Say which files and stores were written, and open the page if the user wants that."""
        files = self._paths.values()
        say_written(*files, *stores, quiet=quiet)
        if self.open:
            open_page(Path(str(self.html)))

    def _openers(
        self, inputs: Sequence[Path], is_same: Callable[[str, Path], bool]
    ) -> dict[str, Opener]:
        """Return for each format the function that opens its file.

        Raise an OutputError if a file may not be replaced. `is_same` tells whether an existing file
        of a format is of the same runs. No file may replace any of the `inputs`.
        """
        from nsyspipe.report.files import check_target, writing

        def may_replace(name: str, path: Path) -> bool:
            return self.force or is_same(name, path)

        openers: dict[str, Opener] = {}
        for name, value in self._paths.items():
            path = Path(value)
            may_replace_path = partial(may_replace, name, path)
            check_target(path, inputs, may_replace=may_replace_path)
            # `writing` checks again, because the file may have changed by then.
            openers[name] = partial(writing, path, inputs, may_replace=may_replace_path)
        return openers


@dataclass(frozen=True)
class VerboseOutputs(Outputs):
    """The files of an answer, of which the terminal shows the most important part."""

    verbose: bool = flag("Print more: metrics, kernels, assumptions and notes.", "-v")


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


def _words_of_saved_run(run: Run, store: Path) -> str:
    """Return in words which run is saved, and whether it replaces a run.

    If not all ranks were read, their number is added. If the replaced run is of other reports,
    these are added.
    """
    from nsyspipe.store.layout import has_run
    from nsyspipe.store.saved_run import SavedRun

    header = run.header
    missing_ranks = ""
    if "ranks-not-read" in run.problems["code"].to_pylist():
        size = f"{header.n_ranks} of {header.n_job_ranks} ranks"
        name = f"{store}:{header.label}"
        # "It" is the run that is saved. The name of a label means its latest run.
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
    """Add an option to a class of outputs for each format that `Outputs` does not declare."""
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
        """Raise an error for an output that cannot be written, before any work is done."""
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
        # These raise the errors for ranks and steps that cannot be parsed.
        _ = self._ranks_of_trace()
        _ = self._steps_of_trace()
        self.check()

    def write_run(self, run: Run, stage: Stage, top: int | None, *, quiet: bool) -> None:
        """Write all outputs, with `top` rows in the tables of costs. What is printed comes last."""
        settings = {name: self._settings(name, top) for name in self._named}
        # Without steps, step 0 stands for both ends.
        step_numbers = run.steps()["step"].to_pylist() or [0]
        steps = self._steps_of_trace(min(step_numbers), max(step_numbers))
        run_id = run.header.run_id

        def is_same(name: str, path: Path) -> bool:
            return FORMATS[name].identity_of(path) == run_id

        # Nothing is written before it is known that all can be.
        openers = self._openers(run.inputs, is_same)
        if self.out is not None:
            from nsyspipe.store.write import check_store

            check_store(run, Path(self.out))
        if self.events:
            # This raises the error for steps that cannot be read.
            _ = run.operations(steps)
        if self.perfetto is not None:
            ranks = self._check_trace(run, steps)
            settings["perfetto"] = {"ranks": ranks}
        saved_texts = []
        if self.out is not None:
            saved_texts.append(self._save(run, self.out, stage))
        for name, open_file in openers.items():
            with open_file() as file:
                on_progress = stage(f"writing {name}")
                FORMATS[name].write(run, file, steps, on_progress, **settings[name])
        if self.printed:
            printed = io.BytesIO()
            FORMATS[self.printed].write(run, printed, None, None, **settings[self.printed])
            write_stdout(printed.getvalue().decode())
        self._say_written(*saved_texts, quiet=quiet)
        # Even a quiet command says that a run of other reports is gone.
        is_other_run_replaced = any(_OF_OTHER_REPORTS in text for text in saved_texts)
        if quiet and is_other_run_replaced:
            say_written(*saved_texts, quiet=False)

    def _settings(self, name: str, top: int | None) -> dict[str, Any]:
        """Return the further arguments with which a format is written."""
        return {"top": top} if FORMATS[name].has_top else {}

    def _check_trace(self, run: Run, steps: tuple[int, int] | None) -> list[int]:
        """Return the ranks of the trace: the chosen ones, or those that tell most.

        Raise the error for operations that cannot be read. Print hints about the trace to stderr.
        """
        from nsyspipe.report.perfetto import (
            large_trace,
            left_out,
            traced_ranks,
            without_samples,
        )

        chosen = self._ranks_of_trace()
        ranks = chosen or traced_ranks(run)
        # This raises the error for operations that cannot be read.
        _ = run.operations(steps, ranks)
        # Each of these functions returns a hint, or None if there is nothing to say.
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
        # Before the run is saved, because then nothing is left of a run that it replaces.
        run_text = _words_of_saved_run(run, path)
        store_text = store.rstrip("/")
        on_progress = stage("saving the run")
        save(run, path, events=self.events, force=self.force, on_progress=on_progress)
        return f"{store_text}/ ({run_text})"

    def _ranks_of_trace(self) -> list[int] | None:
        """Return the ranks that the user chose for the trace, sorted; None without a choice."""
        if self.perfetto_ranks is None:
            return None
        return sorted(parse_ranks(self.perfetto_ranks, "--perfetto-ranks"))

    def _steps_of_trace(self, lowest: int = 0, highest: int = 0) -> tuple[int, int] | None:
        """Return the first and the last step of the trace; None for all steps.

        `lowest` and `highest` are the first and last step of the run. They replace an end that the
        user left out. Before the run is known, a call without them checks the text of the option:
        it raises an error if the text is no range, and its result means nothing.
        """
        if self.perfetto_steps is None:
            return None
        # Each part is a text, or None if it is missing.
        ends = _ends_of_steps(self.perfetto_steps)
        first = int(ends["first"] or lowest)
        # "3:" goes on to the last step, and "3" is one step.
        last_by_default = highest if ends["colon"] else first
        last = int(ends["last"] or last_by_default)
        has_both_ends = ends["first"] and ends["last"]
        if has_both_ends and last < first:
            argument = f"{_PERFETTO_STEPS} {self.perfetto_steps}"
            fix = f"{_PERFETTO_STEPS} {last}:{first}"
            raise OptionError(argument, "ends before it starts", fix=fix)
        # "9:" in a run that ends with step 7 is step 9, and no range that ends before it starts.
        return first, max(first, last)


def _ends_of_steps(text: str) -> re.Match[str]:
    """Return the parts of a range of steps: ``first``, ``colon`` and ``last``.

    The range is ``3:5``, ``3:``, ``:5`` or ``3``. Raise an OptionError for any other text.
    """
    problem = "is not a range FROM:TO of step numbers"
    ends = _STEPS.fullmatch(text)
    if ends is None or not (ends["first"] or ends["last"]):
        fix = f"{_PERFETTO_STEPS} 3:5"
        raise OptionError(f"{_PERFETTO_STEPS} {text!r}", problem, fix=fix)
    # The pattern allows negative steps, so it takes "14-15" for "14" and "-15". A colon is meant.
    if ends["last"] and not ends["colon"]:
        last = ends["last"].removeprefix("-")
        fix = f"{_PERFETTO_STEPS} {ends['first']}:{last}"
        raise OptionError(f"{_PERFETTO_STEPS} {text}", problem, fix=fix)
    return ends
