"""What `compare` writes: every file that was asked for, whole or not at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nsyspipe.cli.named_outputs import STDOUT, check_named, named_outputs, write_texts

if TYPE_CHECKING:
    from pathlib import Path

    from nsyspipe.scoreboard.board import Scoreboard

__all__ = ["CompareOutputs"]

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
        return any(value == STDOUT for _, value in self._named)

    def check(self) -> None:
        """Refuse what cannot be written before any work is done, as `check_named` does."""
        check_named(self._named, _PRINTABLE)

    def write(self, board: Scoreboard) -> None:
        """Write them all, as `write_texts` does; a file that is there stays unless it is a scoreboard of the same runs."""
        inputs = [path for side in board.sides for run in side.runs for path in run.inputs]

        def may_replace(name: str, path: Path) -> bool:
            return self.force or _is_of(board, name, path)

        write_texts(self._named, lambda name: _text(name, board), inputs, may_replace)

    @property
    def _named(self) -> list[tuple[str, str]]:
        return named_outputs(self, _FORMATS)


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
