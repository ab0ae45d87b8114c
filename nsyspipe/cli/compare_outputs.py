"""What `compare` writes: every file that was asked for, whole or not at all."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nsyspipe.cli.output import write_stdout
from nsyspipe.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nsyspipe.scoreboard.board import Scoreboard

__all__ = ["CompareOutputs"]

_STDOUT = "-"
_FORMATS = ("json", "markdown", "csv", "html")
_PRINTABLE = ("json", "markdown", "csv")


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
        return any(value == _STDOUT for _, value in self._named())

    def check(self) -> None:
        """Refuse what cannot be written before any work is done.

        Raises
        ------
        OptionError
            If two outputs are one file, or one cannot be printed.
        OutputError
            If a file could not be made where it is wanted.
        """
        from nsyspipe.report.files import check_directory

        seen: dict[str, str] = {}
        for name, value in self._named():
            if value == _STDOUT and name not in _PRINTABLE:
                raise OptionError(f"--{name} -", "cannot be printed", fix=f"--{name} FILE")
            place = value if value == _STDOUT else str(Path(value).resolve())
            if place in seen:
                raise OptionError(f"{seen[place]} and --{name}", f"both write {value}")
            seen[place] = f"--{name}"
            if value != _STDOUT:
                check_directory(Path(value))

    def write(self, board: Scoreboard) -> None:
        """Write them all: what is printed comes last.

        Raises
        ------
        OutputError
            If one cannot be written, or a file that is there is no scoreboard of the same runs.
        """
        from nsyspipe.report.files import check_target, write_text

        inputs = [path for side in board.sides for run in side.runs for path in run.inputs]
        files = {name: Path(value) for name, value in self._named() if value != _STDOUT}

        def may_replace(name: str) -> Callable[[], bool]:
            return lambda: self.force or _is_of(board, name, files[name])

        for name, path in files.items():
            check_target(path, inputs, may_replace=may_replace(name))
        texts = {name: _text(name, board) for name, _ in self._named()}
        for name, path in files.items():
            write_text(path, texts[name], inputs, may_replace=may_replace(name))
        for name, value in self._named():
            if value == _STDOUT:
                write_stdout(texts[name])

    def _named(self) -> Iterable[tuple[str, str]]:
        values = [(name, getattr(self, name)) for name in _FORMATS]
        return [(name, value) for name, value in values if value is not None]


def _text(name: str, board: Scoreboard) -> str:
    if name == "html":
        from nsyspipe.report.page.scoreboard import scoreboard_page

        return scoreboard_page(board)
    if name == "markdown":
        from nsyspipe.report.scoreboard_markdown import scoreboard_markdown

        return scoreboard_markdown(board)
    from nsyspipe.report.scoreboard_document import scoreboard_csv, scoreboard_document_text

    return scoreboard_csv(board) if name == "csv" else scoreboard_document_text(board)


def _is_of(board: Scoreboard, name: str, path: Path) -> bool:
    """Tell whether a file that is there already is a scoreboard of the same runs."""
    from nsyspipe.report import scoreboard_document as document

    identity = document.identity_of(board)
    if name == "html":
        from nsyspipe.report.page.embed import identity_of_page
        from nsyspipe.report.page.scoreboard import RUNS

        return identity_of_page(path, RUNS) == identity
    if name == "markdown":
        from nsyspipe.report.scoreboard_markdown import identity_of_markdown

        return identity_of_markdown(path) == identity
    if name == "csv":
        return document.identity_of_csv(path, board) == identity
    return document.identity_of_document(path) == identity
