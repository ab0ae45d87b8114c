"""What `diff` writes: every file that was asked for, whole or not at all, also when the gate fails."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nsyspipe.cli.output import write_stdout
from nsyspipe.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nsyspipe.difference.run_difference import RunDifference
    from nsyspipe.gate import Gate

__all__ = ["DiffOutputs"]

_STDOUT = "-"
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

    def write(
        self, difference: RunDifference, gate: Gate | None, *, settings_file: str | None
    ) -> None:
        """Write them all: what is printed comes last.

        Raises
        ------
        OutputError
            If one cannot be written, or a file that is there is no difference of the same runs.
        """
        from nsyspipe.report.difference_document import identity_of
        from nsyspipe.report.files import check_target, write_text

        identity = identity_of(difference)
        inputs = [
            path
            for side in (difference.baseline, difference.candidate)
            for run in side.runs
            for path in run.inputs
        ]
        files = {name: Path(value) for name, value in self._named() if value != _STDOUT}

        def may_replace(name: str) -> Callable[[], bool]:
            return lambda: self.force or _identity(name, files[name]) == identity

        for name, path in files.items():
            check_target(path, inputs, may_replace=may_replace(name))
        texts = {name: _text(name, difference, gate, settings_file) for name, _ in self._named()}
        for name, path in files.items():
            write_text(path, texts[name], inputs, may_replace=may_replace(name))
        for name, value in self._named():
            if value == _STDOUT:
                write_stdout(texts[name])

    def _named(self) -> Iterable[tuple[str, str]]:
        values = [(name, getattr(self, name)) for name in _FORMATS]
        return [(name, value) for name, value in values if value is not None]


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
