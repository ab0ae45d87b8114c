"""What `analyze` writes: every file that was asked for, each whole or not at all."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nsyspipe.cli.output import write_stdout
from nsyspipe.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import BinaryIO

    from nsyspipe.cli.progress import Stage
    from nsyspipe.run import Run

__all__ = ["AnalysisOutputs"]

_STDOUT = "-"
_STEPS = re.compile(r"(-?[0-9]{1,18})?(:)?(-?[0-9]{1,18})?")
_LOWEST, _HIGHEST = -(2**62), 2**62


@dataclass(frozen=True)
class _File:
    """One file to write.

    Attributes
    ----------
    run_id_of
        Returns the run that a file which is there already belongs to.
    write
        Writes the result to an open file.
    """

    option: str
    path: Path
    run_id_of: Callable[[Path], str | None]
    write: Callable[[Run, BinaryIO], None]


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
        return _STDOUT in (self.json, self.markdown)

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
        from nsyspipe.report.files import check_directory
        from nsyspipe.store.layout import check_run_id

        if self.out is not None and run_id is not None:
            check_run_id(run_id)
        if self.events and self.out is None:
            raise OptionError("--events", "belongs to a dataset", fix="--out DIR --events")
        if self.perfetto_steps is not None and self.perfetto is None:
            raise OptionError(
                "--perfetto-steps", "belongs to a trace", fix="--perfetto FILE --perfetto-steps 3:5"
            )
        self._steps()
        named = [
            (f"--{name}", value)
            for name in ("out", "json", "markdown", "html", "perfetto")
            if (value := getattr(self, name)) is not None
        ]
        seen: dict[str, str] = {}
        for option, value in named:
            if value == _STDOUT and option not in ("--json", "--markdown"):
                raise OptionError(f"{option} -", "cannot be printed", fix=f"{option} FILE")
            place = value if value == _STDOUT else str(Path(value).resolve())
            if place in seen:
                raise OptionError(f"{seen[place]} and {option}", f"both write {value}")
            seen[place] = option
            if value != _STDOUT and option != "--out":
                check_directory(Path(value))

    def write(self, run: Run, stage: Stage) -> None:
        """Write them all: what is printed comes last.

        Raises
        ------
        OptionError
            If the trace is to have steps that the run has not.
        OutputError
            If one cannot be written; no file is then changed by halves.
        """
        from nsyspipe.report.files import check_target, writing

        run_id = run.header.run_id
        files = list(self._files())

        def may_replace(file: _File) -> Callable[[], bool]:
            return lambda: self.force or file.run_id_of(file.path) == run_id

        for file in files:  # all of them, before the first is written
            check_target(file.path, run.inputs, may_replace=may_replace(file))
        if self.out is not None:
            self._save(run, Path(self.out), stage)
        for file in files:
            stage(f"writing {file.option[2:]}")
            with writing(file.path, run.inputs, may_replace=may_replace(file)) as target:
                file.write(run, target)
        self._print(run)

    def _save(self, run: Run, store: Path, stage: Stage) -> None:
        from nsyspipe.store.write import save

        save(run, store, events=self.events, on_progress=stage("saving the run"))

    def _files(self) -> Iterator[_File]:
        if self.json not in (None, _STDOUT):
            from nsyspipe.report.files import run_id_of_document

            yield _File("--json", Path(self.json), run_id_of_document, _write(_json_text))
        if self.markdown not in (None, _STDOUT):
            from nsyspipe.report.markdown import run_id_of_markdown

            yield _File(
                "--markdown", Path(self.markdown), run_id_of_markdown, _write(_markdown_text)
            )
        if self.html is not None:
            from nsyspipe.report.page.embed import run_id_of_page
            from nsyspipe.report.page.run_page import run_page

            yield _File("--html", Path(self.html), run_id_of_page, _write(run_page))
        if self.perfetto is not None:
            from nsyspipe.export.perfetto_trace import perfetto, run_id_of_trace

            def trace(run: Run, file: BinaryIO) -> None:
                numbers = run.steps()["step"].to_pylist() or [0]
                perfetto(run, file, steps=self._steps((min(numbers), max(numbers))))

            yield _File("--perfetto", Path(self.perfetto), run_id_of_trace, trace)

    def _print(self, run: Run) -> None:
        if self.json == _STDOUT:
            write_stdout(_json_text(run))
        if self.markdown == _STDOUT:
            write_stdout(_markdown_text(run))

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


def _write(text_of: Callable[[Run], str]) -> Callable[[Run, BinaryIO], None]:
    def write(run: Run, file: BinaryIO) -> None:
        file.write(text_of(run).encode("utf-8", errors="replace"))

    return write


def _json_text(run: Run) -> str:
    from nsyspipe.report.document import document, dumps

    return dumps(document(run))


def _markdown_text(run: Run) -> str:
    from nsyspipe.report.markdown import markdown

    return markdown(run)
