"""What `analyze`, `compare` and `diff` write: every file that was asked for, each whole or not at all."""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nsyspipe.cli.terminal import write_stdout
from nsyspipe.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from nsyspipe.cli.terminal import Stage
    from nsyspipe.comparison.difference import RunDifference
    from nsyspipe.comparison.gate import Gate
    from nsyspipe.comparison.scoreboard import Scoreboard
    from nsyspipe.run.run import Run


# Outputs by the options that name them: what a command checks of them before its work, and writes after it.


STDOUT = "-"
Named = list[tuple[str, str]]


def named_outputs(outputs: object, formats: Iterable[str]) -> Named:
    """Return format and place of those that are asked for: fields of `outputs` that are not None."""
    values = [(name, getattr(outputs, name)) for name in formats]
    return [(name, value) for name, value in values if value is not None]


def check_named(
    named: Named,
    printable: Collection[str],
    *,
    directories: Collection[str] = (),
    is_made: Callable[[Path], bool] = lambda _: False,
) -> None:
    """Refuse what cannot be written before any work is done.

    Parameters
    ----------
    printable
        Formats that may go to stdout.
    directories
        Formats whose place is a directory, which is made.
    is_made
        Tells that a file's directory will be made.

    Raises
    ------
    OptionError
        If two outputs are one file, or one cannot be printed.
    OutputError
        If a file could not be made where it is wanted.
    """
    from nsyspipe.report.files import check_directory

    seen: dict[str, str] = {}
    for name, value in named:
        option = f"--{name}"
        if value == STDOUT and name not in printable:
            kind = "DIR" if name in directories else "FILE"
            raise OptionError(f"{option} -", "cannot be printed", fix=f"{option} {kind}")
        place = value if value == STDOUT else str(Path(value).resolve())
        if place in seen:
            raise OptionError(f"{seen[place]} and {option}", f"both write {value}")
        seen[place] = option
        if value != STDOUT and name not in directories and not is_made(Path(value)):
            check_directory(Path(value))


def write_texts(
    named: Named,
    text_of: Callable[[str], str],
    inputs: Sequence[Path],
    may_replace: Callable[[str, Path], bool],
) -> None:
    """Write them all, once it is known that all can be: what is printed comes last.

    Parameters
    ----------
    text_of
        Makes the text of a format.
    inputs
        What must never be written over.
    may_replace
        Tells of a format and a file that is there whether it may go.

    Raises
    ------
    OutputError
        If one cannot be written, or a file that is there must stay.
    """
    from nsyspipe.report.files import check_target, write_text

    files = {name: Path(value) for name, value in named if value != STDOUT}

    def question(name: str) -> Callable[[], bool]:
        return lambda: may_replace(name, files[name])

    for name, path in files.items():
        check_target(path, inputs, may_replace=question(name))
    texts = {name: text_of(name) for name, _ in named}
    for name, path in files.items():
        write_text(path, texts[name], inputs, may_replace=question(name))
    for name, value in named:
        if value == STDOUT:
            write_stdout(texts[name])


_FORMATS = ("json", "markdown", "html", "perfetto")
_PRINTABLE = ("json", "markdown")
_LONGEST_ID = 100
_STEPS = re.compile(r"(-?[0-9]{1,18})?(:)?(-?[0-9]{1,18})?")
_LOWEST, _HIGHEST = -(2**62), 2**62


@dataclass(frozen=True)
class AnalysisOutputs:
    """The outputs of one analysis, by the options that ask for them."""

    out: str | None = None
    events: bool = False
    json: str | None = None
    markdown: str | None = None
    html: str | None = None
    perfetto: str | None = None
    perfetto_steps: str | None = None
    force: bool = False

    @property
    def takes_stdout(self) -> bool:
        """Whether one of them is printed, so that nothing else may be."""
        return STDOUT in (self.json, self.markdown)

    def check(self, run_id: str | None) -> None:
        """Refuse what cannot be written before any work is done.

        Parameters
        ----------
        run_id
            The user's; None for the run's own.

        Raises
        ------
        OptionError
            If two outputs are one file, or an option lacks the one that it belongs to.
        OutputError
            If a file could not be made where it is wanted.
        """
        from nsyspipe.store.layout import check_run_id

        if run_id is not None and self.out is not None:
            check_run_id(run_id)
        if run_id is not None and not (run_id.isprintable() and 0 < len(run_id) <= _LONGEST_ID):
            raise OptionError(
                f"--run-id {run_id[:_LONGEST_ID]!r}",
                f"is empty, longer than {_LONGEST_ID}, or has what cannot be printed",
                fix="--run-id NAME",
            )
        if self.events and self.out is None:
            raise OptionError("--events", "belongs to a dataset", fix="--out DIR --events")
        if self.perfetto_steps is not None and self.perfetto is None:
            raise OptionError(
                "--perfetto-steps", "belongs to a trace", fix="--perfetto FILE --perfetto-steps 3:5"
            )
        self._steps()
        named = [*([] if self.out is None else [("out", self.out)]), *self._named()]
        check_named(
            named,
            _PRINTABLE,
            directories=("out",),
            is_made=lambda path: self.out is not None and path.parent == Path(self.out),
        )

    def write(self, run: Run, stage: Stage) -> None:
        """Write them all: what is printed comes last.

        Raises
        ------
        OptionError
            If the trace is to have steps that the run has not.
        OutputError
            If one cannot be written; no file is then changed by halves.
        """
        from nsyspipe.report.export import format_named
        from nsyspipe.report.files import check_target, writing
        from nsyspipe.store.write import check_store, save

        run_id = run.header.run_id
        files = {name: Path(path) for name, path in self._named() if path != STDOUT}
        formats = {name: format_named(name) for name in files}

        def may_replace(name: str) -> Callable[[], bool]:
            return lambda: self.force or formats[name].run_id_of(files[name]) == run_id

        numbers = run.steps()["step"].to_pylist() or [0]
        steps = self._steps((min(numbers), max(numbers)))
        # Nothing is written before it is known that all can be.
        for name, path in files.items():
            check_target(path, run.inputs, may_replace=may_replace(name))
        if self.out is not None:
            check_store(run, Path(self.out))
        if self.perfetto is not None or self.events:
            run.operations(steps)
        if self.out is not None:
            save(
                run,
                Path(self.out),
                events=self.events,
                force=self.force,
                on_progress=stage("saving the run"),
            )
        for name, path in files.items():
            on_progress = stage(f"writing {name}")
            with writing(path, run.inputs, may_replace=may_replace(name)) as file:
                formats[name].write(run, file, steps, on_progress)
        for name, value in self._named():
            if value == STDOUT:
                printed = io.BytesIO()
                format_named(name).write(run, printed, None, None)
                write_stdout(printed.getvalue().decode())

    def _named(self) -> list[tuple[str, str]]:
        """Return the files asked for, by format."""
        return named_outputs(self, _FORMATS)

    def _steps(self, known: tuple[int, int] = (_LOWEST, _HIGHEST)) -> tuple[int, int] | None:
        """Return the first and the last step of the trace, an end left out taken from those known; None for all."""
        if self.perfetto_steps is None:
            return None
        found = _STEPS.fullmatch(self.perfetto_steps)
        if found is None or not (found[1] or found[3]):
            raise OptionError(
                f"--perfetto-steps {self.perfetto_steps!r}",
                "is no FROM:TO of step numbers",
                fix="--perfetto-steps 3:5",
            )
        first = int(found[1]) if found[1] else known[0]
        last = int(found[3]) if found[3] else known[1] if found[2] else first
        if found[1] and found[3] and last < first:
            raise OptionError(
                f"--perfetto-steps {self.perfetto_steps}",
                "ends before it starts",
                fix=f"--perfetto-steps {last}:{first}",
            )
        return first, max(first, last)


# What `compare` writes: every file that was asked for, whole or not at all.


_COMPARE_FORMATS = ("json", "markdown", "csv", "html")
_COMPARE_PRINTABLE = ("json", "markdown", "csv")


@dataclass(frozen=True)
class CompareOutputs:
    """The outputs of one scoreboard, by the options that ask for them."""

    json: str | None = None
    markdown: str | None = None
    csv: str | None = None
    html: str | None = None
    force: bool = False

    @property
    def takes_stdout(self) -> bool:
        """Whether one of them is printed, so that nothing else may be."""
        return any(value == STDOUT for _, value in self._named)

    def check(self) -> None:
        """Refuse what cannot be written before any work is done, as `check_named` does."""
        check_named(self._named, _COMPARE_PRINTABLE)

    def write(self, board: Scoreboard) -> None:
        """Write them all, as `write_texts` does; a file that is there stays unless it is a scoreboard of the same runs."""
        inputs = [path for side in board.sides for run in side.runs for path in run.inputs]

        def may_replace(name: str, path: Path) -> bool:
            return self.force or _is_of(board, name, path)

        write_texts(self._named, lambda name: _text(name, board), inputs, may_replace)

    @property
    def _named(self) -> list[tuple[str, str]]:
        return named_outputs(self, _COMPARE_FORMATS)


def _text(name: str, board: Scoreboard) -> str:
    if name == "html":
        from nsyspipe.report.html.scoreboard_page import scoreboard_page

        return scoreboard_page(board)
    if name == "markdown":
        from nsyspipe.report.scoreboard import scoreboard_markdown

        return scoreboard_markdown(board)
    from nsyspipe.report.scoreboard import scoreboard_csv, scoreboard_document_text

    return scoreboard_csv(board) if name == "csv" else scoreboard_document_text(board)


def _is_of(board: Scoreboard, name: str, path: Path) -> bool:
    """Tell whether a file that is there already is a scoreboard of the same runs."""
    from nsyspipe.report import scoreboard as document

    identity = document.identity_of(board)
    if name == "html":
        from nsyspipe.report.html.page import identity_of_page
        from nsyspipe.report.html.scoreboard_page import RUNS

        return identity_of_page(path, RUNS) == identity
    if name == "markdown":
        from nsyspipe.report.scoreboard import identity_of_markdown

        return identity_of_markdown(path) == identity
    if name == "csv":
        return document.identity_of_csv(path, board) == identity
    return document.identity_of_document(path) == identity


# What `diff` writes: every file that was asked for, whole or not at all, also when the gate fails.


# The fields that name a file, and those of them whose file may be stdout.
_DIFF_FORMATS = ("json", "markdown", "html")
Identity = list[list[str]] | None


@dataclass(frozen=True)
class DiffOutputs:
    """The outputs of one comparison, by the options that ask for them; a further format is one more field."""

    json: str | None = None
    markdown: str | None = None
    html: str | None = None
    force: bool = False

    @property
    def takes_stdout(self) -> bool:
        """Whether one of them is printed, so that nothing else may be."""
        return any(value == STDOUT for _, value in self._named)

    def check(self) -> None:
        """Refuse what cannot be written before any work is done, as `check_named` does."""
        check_named(self._named, _PRINTABLE)

    def write(
        self, difference: RunDifference, gate: Gate | None, *, settings_file: str | None
    ) -> None:
        """Write them all, as `write_texts` does; a file that is there stays unless it is a difference of the same runs."""
        from nsyspipe.report.difference import identity_of

        identity = identity_of(difference)
        sides = (difference.baseline, difference.candidate)
        inputs = [path for side in sides for run in side.runs for path in run.inputs]

        def may_replace(name: str, path: Path) -> bool:
            return self.force or _identity(name, path) == identity

        def text_of(name: str) -> str:
            return _diff_text(name, difference, gate, settings_file)

        write_texts(self._named, text_of, inputs, may_replace)

    @property
    def _named(self) -> list[tuple[str, str]]:
        return named_outputs(self, _DIFF_FORMATS)


def _diff_text(
    name: str, difference: RunDifference, gate: Gate | None, settings_file: str | None
) -> str:
    if name == "json":
        from nsyspipe.report.difference import difference_document_text

        return difference_document_text(difference, gate, settings_file=settings_file)
    if name == "html":
        from nsyspipe.report.html.difference_page import difference_page

        return difference_page(difference, gate, settings_file=settings_file)
    from nsyspipe.report.difference import difference_markdown

    return difference_markdown(difference, gate, settings_file=settings_file)


def _identity(name: str, path: Path) -> Identity:
    """Return the runs of a difference that is there already."""
    if name == "json":
        from nsyspipe.report.difference import identity_of_document

        return identity_of_document(path)
    if name == "html":
        from nsyspipe.report.html.difference_page import identity_of_difference_page

        return identity_of_difference_page(path)
    from nsyspipe.report.difference import identity_of_markdown

    return identity_of_markdown(path)
