"""What `diff` writes: every file that was asked for, whole or not at all, also when the gate fails."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nsyspipe.cli.named_outputs import STDOUT, check_named, named_outputs, write_texts

if TYPE_CHECKING:
    from pathlib import Path

    from nsyspipe.difference.run_difference import RunDifference
    from nsyspipe.gate import Gate

__all__ = ["DiffOutputs"]

# The fields that name a file, and those of them whose file may be stdout.
_FORMATS = ("json", "markdown", "html")
_PRINTABLE = ("json", "markdown")
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
        from nsyspipe.report.difference_document import identity_of

        identity = identity_of(difference)
        sides = (difference.baseline, difference.candidate)
        inputs = [path for side in sides for run in side.runs for path in run.inputs]

        def may_replace(name: str, path: Path) -> bool:
            return self.force or _identity(name, path) == identity

        def text_of(name: str) -> str:
            return _text(name, difference, gate, settings_file)

        write_texts(self._named, text_of, inputs, may_replace)

    @property
    def _named(self) -> list[tuple[str, str]]:
        return named_outputs(self, _FORMATS)


def _text(
    name: str, difference: RunDifference, gate: Gate | None, settings_file: str | None
) -> str:
    if name == "json":
        from nsyspipe.report.difference_document import difference_document_text

        return difference_document_text(difference, gate, settings_file=settings_file)
    if name == "html":
        from nsyspipe.report.page.difference_page import difference_page

        return difference_page(difference, gate, settings_file=settings_file)
    from nsyspipe.report.difference_markdown import difference_markdown

    return difference_markdown(difference, gate, settings_file=settings_file)


def _identity(name: str, path: Path) -> Identity:
    """Return the runs of a difference that is there already."""
    if name == "json":
        from nsyspipe.report.difference_document import identity_of_document

        return identity_of_document(path)
    if name == "html":
        from nsyspipe.report.page.difference_page import identity_of_difference_page

        return identity_of_difference_page(path)
    from nsyspipe.report.difference_markdown import identity_of_markdown

    return identity_of_markdown(path)
