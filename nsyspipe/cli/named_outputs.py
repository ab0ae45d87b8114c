"""Outputs by the options that name them: what a command checks of them before its work, and writes after it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from nsyspipe.cli.output import write_stdout
from nsyspipe.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

__all__ = ["STDOUT", "check_named", "named_outputs", "write_texts"]

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
