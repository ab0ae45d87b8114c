"""From what a user types to report files: paths, directories, globs (quoted ones too); and what an export was made from."""

from __future__ import annotations

import glob
from pathlib import Path
from typing import TYPE_CHECKING

from nsyspipe.errors import NotAReportError, ReportNotFoundError
from nsyspipe.model.text import decoded
from nsyspipe.nsys.files import readable
from nsyspipe.nsys.programs import by_number

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


_MAGIC = b"SQLite format 3"
EXPORT_SUFFIX, RAW_SUFFIX = ".sqlite", ".nsys-rep"

# What an export that lies elsewhere, in a cache, was made from: files beside the report are looked for there.
_SOURCES: dict[Path, Path] = {}


def find_reports(arguments: Iterable[str | Path]) -> list[Path]:
    """Return the exports that the arguments name, as `find_named` does.

    Raises
    ------
    ReportNotFoundError
        If an argument names no file.
    NotAReportError
        If only an ``.nsys-rep`` without its export is there.
    """
    found = find_named(arguments)
    for path in found:
        if path.suffix == RAW_SUFFIX:
            raise not_exported(path)
    return found


def not_exported(path: Path, found: str | None = None) -> NotAReportError:
    """Return the error about a report that would have to be exported first."""
    return NotAReportError(
        str(path),
        "an nsys report that was not exported to SQLite",
        found=found,
        fix=f"nsys export --type=sqlite {path} (from nsys 2025.3 on with --include-blobs=true)",
    )


def find_named(arguments: Iterable[str | Path]) -> list[Path]:
    """Return the files that the arguments name, in their order; within a glob or directory by number.

    A directory stands for its ``.sqlite`` files, and its ``.nsys-rep`` files without one. A report that is
    there twice stays there twice: whether that is an error is decided where ranks are.

    Raises
    ------
    ReportNotFoundError
        If an argument names no file.
    """
    found = _expand_all(arguments, (EXPORT_SUFFIX, RAW_SUFFIX))
    exported = {path.with_suffix("") for path in found if path.suffix == EXPORT_SUFFIX}
    return [
        path for path in found if path.suffix != RAW_SUFFIX or path.with_suffix("") not in exported
    ]


def find_captures(arguments: Iterable[str | Path]) -> list[Path]:
    """Return the reports to export that the arguments name, each once, ordered as `find_named` does.

    Exports among them are passed over: a shell's ``run_*`` names them too.

    Raises
    ------
    ReportNotFoundError
        If an argument names no file.
    NotAReportError
        If all that they name are exports.
    """
    found = _expand_all(arguments, (RAW_SUFFIX,))
    captures = [path for path in found if path.suffix != EXPORT_SUFFIX]
    if found and not captures:
        raise NotAReportError(
            str(found[0]),
            "is an export already, where a report to export was needed",
            fix=f"nsyspipe analyze {found[0]}, or pass the {RAW_SUFFIX} file",
        )
    distinct: dict[Path, Path] = {}
    for path in captures:
        distinct.setdefault(path.resolve(), path)
    return list(distinct.values())


def remember_source(export: Path, source: Path) -> None:
    """Remember what an export that does not lie beside its report was made from."""
    _SOURCES[export] = source


def source_of(path: Path) -> Path:
    """Return the report that an export in the cache was made from, as the user named it; else the path itself."""
    return _SOURCES.get(path, path)


def split_logs(arguments: Iterable[str]) -> tuple[list[str], list[str]]:
    """Tell text files among the arguments from reports: a shell expands ``--nccl-log nccl_*.log`` into several words.

    Returns
    -------
    tuple
        What are reports, and what are logs: files that are not SQLite's and not named like a report.
    """
    reports: list[str] = []
    logs: list[str] = []
    for argument in arguments:
        path = Path(argument)
        is_text = (
            path.suffix not in (EXPORT_SUFFIX, RAW_SUFFIX)
            and path.is_file()
            and not _is_sqlite(path)
        )
        (logs if is_text else reports).append(argument)
    return reports, logs


def _is_sqlite(path: Path) -> bool:
    with readable(path), path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def find_logs(arguments: Iterable[str | Path]) -> list[Path]:
    """Return the log files that the arguments name: paths, and globs in order of the alphabet.

    Raises
    ------
    ReportNotFoundError
        If an argument names no file.
    """
    found: list[Path] = []
    for argument in arguments:
        path = Path(argument)
        with readable(path):
            matches = [path] if path.exists() else sorted(map(Path, glob.glob(str(path))))  # noqa: PTH207 - absolute too
        if not matches:
            raise ReportNotFoundError(
                decoded(str(path)), "matches no file, needed for the link", fix="check the path"
            )
        found += matches
    return found


def display_names(paths: Sequence[str | Path]) -> list[str]:
    """Return the shortest path tails that tell the reports apart: file names, if those differ.

    A report that was exported into the cache is called as if its export lay beside it.
    """
    paths = [_beside_source(Path(path)) for path in paths]
    parts = [Path(decoded(str(path))).parts for path in paths]
    for depth in range(1, max(map(len, parts), default=1) + 1):
        names = ["/".join(one[-depth:]) for one in parts]
        if len(set(names)) == len(set(parts)):
            return names
    return [decoded(str(path)) for path in paths]


def _beside_source(path: Path) -> Path:
    source = source_of(path)
    return path if source == path else source.with_suffix(EXPORT_SUFFIX)


def _expand_all(arguments: Iterable[str | Path], suffixes: tuple[str, ...]) -> list[Path]:
    found: list[Path] = []
    for argument in arguments:
        if not str(argument):
            raise ReportNotFoundError("an empty argument", "names no report", fix="pass a path")
        with readable(Path(argument)):
            found += _expand(Path(argument), suffixes)
    return found


def _expand(argument: Path, suffixes: tuple[str, ...]) -> list[Path]:
    """Return the files that one argument names; of a directory those with these suffixes, the first of which wins."""
    if argument.is_dir():
        found = sorted(
            (path for path in argument.iterdir() if path.suffix in suffixes), key=by_number
        )
        if not found:
            raise ReportNotFoundError(
                str(argument),
                f"a directory without {suffixes[0]} reports",
                fix="pass the directory that nsys wrote to",
            )
        return found
    if argument.exists() or not glob.has_magic(str(argument)):
        return [argument]
    matches = [Path(match) for match in glob.glob(str(argument), recursive=True)]  # noqa: PTH207 - absolute patterns
    files = sorted((path for path in matches if not path.is_dir()), key=by_number)
    found = [path for path in files if path.suffix in suffixes] or files
    if not found:
        raise ReportNotFoundError(
            str(argument),
            "this glob matches no report",
            fix="check the path; a directory works too",
        )
    return found
