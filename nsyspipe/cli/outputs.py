"""What commands write: every file that was asked for, each whole or not at all."""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nsyspipe.cli.options import (
    Csv,
    Events,
    Force,
    ForceComparison,
    ForceFile,
    Html,
    Json,
    Markdown,
    Out,
    Perfetto,
    PerfettoSteps,
)
from nsyspipe.cli.terminal import write_stdout
from nsyspipe.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from nsyspipe.cli.terminal import Stage
    from nsyspipe.report.files import Format
    from nsyspipe.run.run import Run


STDOUT = "-"
# In this order they are written, and what is printed comes last.
_FORMATS = ("json", "markdown", "csv", "html", "perfetto")
_TO_FILES_ONLY = ("html", "perfetto")


@dataclass(frozen=True)
class Outputs:
    """The files of an answer, by the options that ask for them; a command has those that are annotated."""

    out: str | None = None
    events: bool = False
    json: Json = None
    markdown: Markdown = None
    csv: str | None = None
    html: Html = None
    perfetto: str | None = None
    perfetto_steps: str | None = None
    force: Force = False

    @property
    def takes_stdout(self) -> bool:
        """Whether one of them is printed, so that nothing else may be."""
        return any(value == STDOUT for _, value in self._named)

    @property
    def _named(self) -> list[tuple[str, str]]:
        """The formats asked for, and where they go."""
        values = [(name, getattr(self, name)) for name in _FORMATS]
        return [(name, value) for name, value in values if value is not None]

    @property
    def _files(self) -> dict[str, Path]:
        return {name: Path(value) for name, value in self._named if value != STDOUT}

    def check(self) -> None:
        """Refuse what cannot be written before any work is done."""
        from nsyspipe.report.files import check_directory

        seen: dict[str, str] = {}
        named = [*([] if self.out is None else [("out", self.out)]), *self._named]
        for name, value in named:
            option = f"--{name}"
            if value == STDOUT and (name == "out" or name in _TO_FILES_ONLY):
                kind = "DIR" if name == "out" else "FILE"
                raise OptionError(f"{option} -", "cannot be printed", fix=f"{option} {kind}")
            place = value if value == STDOUT else str(Path(value).resolve())
            if place in seen:
                raise OptionError(f"{seen[place]} and {option}", f"both write {value}")
            seen[place] = option
            is_made = self.out is not None and Path(value).parent == Path(self.out)
            if value != STDOUT and name != "out" and not is_made:
                check_directory(Path(value))

    def write(self, formats: Mapping[str, Format], inputs: Sequence[Path], identity: object) -> None:
        """Write them all, once it is known that all can be: what is printed comes last."""
        from nsyspipe.report.files import check_target, write_text

        def may_replace(name: str, path: Path) -> Callable[[], bool]:
            return lambda: self.force or formats[name].identity_of(path) == identity

        for name, path in self._files.items():
            check_target(path, inputs, may_replace=may_replace(name, path))
        texts = {name: formats[name].text() for name, _ in self._named}
        for name, path in self._files.items():
            write_text(path, texts[name], inputs, may_replace=may_replace(name, path))
        for name, value in self._named:
            if value == STDOUT:
                write_stdout(texts[name])


@dataclass(frozen=True)
class ScoreboardOutputs(Outputs):
    """The files of a scoreboard."""

    csv: Csv = None
    force: ForceComparison = False


@dataclass(frozen=True)
class DifferenceOutputs(Outputs):
    """The files of a difference."""

    force: ForceComparison = False


@dataclass(frozen=True)
class DoctorOutputs(Outputs):
    """The files of an examination, which do not say what they are of."""

    force: ForceFile = False


_LONGEST_ID = 100
_STEPS = re.compile(r"(-?[0-9]{1,18})?(:)?(-?[0-9]{1,18})?")
_LOWEST, _HIGHEST = -(2**62), 2**62


@dataclass(frozen=True)
class AnalysisOutputs(Outputs):
    """The outputs of one analysis."""

    out: Out = None
    events: Events = False
    perfetto: Perfetto = None
    perfetto_steps: PerfettoSteps = None

    def check_run(self, run_id: str | None) -> None:
        """Refuse what cannot be written before any work is done."""
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
            raise OptionError("--perfetto-steps", "belongs to a trace", fix="--perfetto FILE --perfetto-steps 3:5")
        self._steps()
        self.check()

    def write_run(self, run: Run, stage: Stage) -> None:
        """Write them all: what is printed comes last."""
        from nsyspipe.report.export import format_named
        from nsyspipe.report.files import check_target, writing
        from nsyspipe.store.write import check_store, save

        run_id = run.header.run_id
        files = self._files
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
            save(run, Path(self.out), events=self.events, force=self.force, on_progress=stage("saving the run"))
        for name, path in files.items():
            on_progress = stage(f"writing {name}")
            with writing(path, run.inputs, may_replace=may_replace(name)) as file:
                formats[name].write(run, file, steps, on_progress)
        for name, value in self._named:
            if value == STDOUT:
                printed = io.BytesIO()
                format_named(name).write(run, printed, None, None)
                write_stdout(printed.getvalue().decode())

    def _steps(self, known: tuple[int, int] = (_LOWEST, _HIGHEST)) -> tuple[int, int] | None:
        """Return the first and the last step of the trace, an end left out taken from those known; None for all."""
        if self.perfetto_steps is None:
            return None
        found = _STEPS.fullmatch(self.perfetto_steps)
        if found is None or not (found[1] or found[3]):
            raise OptionError(
                f"--perfetto-steps {self.perfetto_steps!r}", "is no FROM:TO of step numbers", fix="--perfetto-steps 3:5"
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
