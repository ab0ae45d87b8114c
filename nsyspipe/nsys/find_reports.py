"""From what a user types to report files: paths, directories, globs (quoted ones too); and a cache of exports.

Reports that are analyzed as they are get exported into it; nothing is written beside them. Secrets
may be in them, so only its user can read the cache. A report that changes is another one; what was
used longest ago makes room.
"""

import contextlib
import difflib
import glob
import hashlib
import os
import re
import shlex
import shutil
import stat
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from nsyspipe import errors
from nsyspipe.errors import (
    InputError,
    NotAReportError,
    OptionError,
    OutputError,
    ReportNotFoundError,
)
from nsyspipe.model.names import decoded, grouped, listed, printable, table_of_store
from nsyspipe.nsys.export import (
    all_exported,
    attempt_exports,
    export_options,
    is_up_to_date,
    target_of,
)
from nsyspipe.nsys.files import (
    OUTPUTS,
    claim,
    claimed_at,
    holds_exports_only,
    is_claimed,
    readable,
    remove_abandoned,
)
from nsyspipe.nsys.programs import GET_NSYS, Nsys, by_number, find, find_nsys

_MAGIC = b"SQLite format 3"
EXPORT_SUFFIX = ".sqlite"
RAW_SUFFIXES = (".nsys-rep", ".qdrep")
RANK_OF_NAME = re.compile(
    r"(?i)(?:rank|[._-])(\d{1,18})$"
)  # what ends a report's name where it is its rank
# What an export that lies elsewhere, in a cache, was made from: files beside the report are looked
# for there.
_SOURCES: dict[Path, Path] = {}
_DIRECTORY = "NSYSPIPE_CACHE_DIR"
_BYTES = "NSYSPIPE_CACHE_BYTES"
_MOST_BYTES = 20_000_000_000
_KEY_LENGTH = 32
_OPTIONS_LENGTH = 8
_NO_CACHE = "cannot be used as the cache of exports"
_ENTRY = re.compile(
    rf"[0-9a-f]{{{_KEY_LENGTH}}}-\d+(?:\.\d+)+-[0-9a-f]{{{_OPTIONS_LENGTH}}}", re.ASCII
)
_CLAIMS: dict[
    Path, int | None
] = {}  # entries that this process uses: their locks stay open until it ends


def _word(path: str) -> str:
    return shlex.quote(decoded(f"./{path}" if path.startswith("-") else path))


def words_of_runs(paths: Iterable[str | Path], *, is_whole: bool = False) -> dict[str, list[Path]]:
    """Group reports by their names but for a rank at the end: runs, by the shell's word that names each, or all its reports."""
    groups: dict[tuple[str, str], list[Path]] = {}
    for path in map(source_of, map(Path, paths)):
        match = RANK_OF_NAME.search(path.stem)
        stem = path.stem if match is None else path.stem[: match.start(1)]
        groups.setdefault(
            (str(path.parent / stem), "" if match is None else path.suffix), []
        ).append(path)
    words: dict[str, list[Path]] = {}
    for (stem, suffix), group in groups.items():
        word = str(group[0])
        if is_whole or len({*group}) > 1:
            globs = [f"{glob.escape(stem)}{digits}{suffix}" for digits in ("*", "[0-9]*")]
            # The longer one, where the other has reports of other names.
            is_rank = re.compile(rf"{re.escape(stem)}\d+{re.escape(suffix)}").fullmatch
            exact = next((one for one in globs if all(map(is_rank, glob.glob(one)))), globs[1])  # noqa: PTH207
            word = exact if len({*group}) > 1 or len(glob.glob(exact)) > 1 else word  # noqa: PTH207
        words.setdefault(_word(word), []).extend(group)
    return words


def find_named(arguments: Iterable[str | Path]) -> list[Path]:
    """Return the files that the arguments name, in their order; within a glob or directory by number.

    A directory stands for its ``.sqlite`` files, and its ``.nsys-rep`` and ``.qdrep`` files without
    one. One named twice stays.
    """
    return without_exported(_expand(arguments, EXPORT_SUFFIX, *RAW_SUFFIXES))


def without_exported(paths: Sequence[Path]) -> list[Path]:
    """Return the reports without those whose export is among them."""
    exported = {path.with_suffix("") for path in paths if path.suffix == EXPORT_SUFFIX}
    return [
        path
        for path in paths
        if path.suffix not in RAW_SUFFIXES or path.with_suffix("") not in exported
    ]


def find_captures(arguments: Iterable[str | Path]) -> list[Path]:
    """Return the reports to export that are named, each once; exports are passed over, alone a NotAReportError."""
    found = _expand(arguments, *RAW_SUFFIXES)
    captures = [path for path in found if path.suffix != EXPORT_SUFFIX]
    if found and not captures:
        fix = f"nsyspipe analyze {_word(str(found[0]))}, or pass the {RAW_SUFFIXES[0]} file"
        raise NotAReportError(str(found[0]), "is already an export", fix=fix)
    wrong = next((path for path in captures if path.suffix not in RAW_SUFFIXES), None)
    if wrong:
        fix = f"pass {RAW_SUFFIXES[0]} files, or the directory that nsys wrote to"
        is_output = wrong.suffix in OUTPUTS
        named = f"is not named like an nsys report ({listed(RAW_SUFFIXES, joint='or')})"
        what = (
            f"is {OUTPUTS[wrong.suffix]}, not a report that can be exported" if is_output else named
        )
        raise NotAReportError(str(wrong), what, fix=fix)
    return [
        paths[0] for paths in grouped((os.path.realpath(path), path) for path in captures).values()
    ]


def source_of(path: Path) -> Path:
    """Return the report that an export in the cache was made from, as the user named it; else the path itself."""
    return _SOURCES.get(path, path)


def naming_sources(text: str) -> str:
    """Return a text that names reports where it named their exports in the cache, as `source_of` does."""
    for made, source in _SOURCES.items():
        text = text.replace(str(made), str(source))
    return errors.as_given(text)


def split_logs(arguments: Iterable[str], logs: Sequence[str] | None) -> tuple[list[str], list[str]]:
    """Tell reports from more logs, where any are named: a shell expands ``--nccl-log *.log`` into words, texts not named like reports."""
    if not logs:
        return [*arguments], []
    found: tuple[list[str], list[str]] = [], [*logs]
    for argument in arguments:
        path = Path(argument)
        is_text = path.suffix not in (EXPORT_SUFFIX, *RAW_SUFFIXES) and path.is_file()
        if is_text:
            with readable(path), path.open("rb") as file:
                is_text = file.read(len(_MAGIC)) != _MAGIC
        found[is_text].append(argument)
    return found


def find_logs(arguments: Iterable[str | Path]) -> list[Path]:
    """Return the log files that the arguments name, globs by the alphabet; ReportNotFoundError if one names none."""
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
    """Return the shortest path tails that tell reports apart; one in the cache as if it lay beside its report."""
    pairs = [(path, source_of(path)) for path in map(Path, paths)]
    texts = [
        decoded(str(path if path == source else source.with_suffix(EXPORT_SUFFIX)))
        for path, source in pairs
    ]
    parts = [Path(text).parts for text in texts]
    for depth in range(1, max(map(len, parts), default=1) + 1):
        names = ["/".join(part[-depth:]) for part in parts]
        if len(set(names)) == len(set(parts)):
            return names
    return texts


def _expand(arguments: Iterable[str | Path], *suffixes: str) -> list[Path]:
    expanded: list[Path] = []
    for argument in map(str, arguments):
        if not argument:
            raise ReportNotFoundError("an empty argument", "names no report", fix="pass a path")
        path = Path(argument)
        with readable(path):
            if path.is_dir():
                found = sorted(
                    (one for one in path.iterdir() if one.suffix in suffixes), key=by_number
                )
                needed = listed(suffixes[:2], joint="or")
                problem = f"is a directory without {needed} reports"
                fix = "pass the directory that nsys wrote to"
                if (
                    not found
                    and EXPORT_SUFFIX not in suffixes
                    and has_reports(path, [EXPORT_SUFFIX])
                ):
                    problem = "contains only reports that are already exported"
                    fix = f"nsyspipe analyze {_word(str(path))}"
                elif not found and (inside := table_of_store(path)):
                    problem = inside[0]
                    fix = _word(inside[1])
                elif not found and (
                    runs := [one for one in sorted(path.iterdir()) if has_reports(one, suffixes)]
                ):
                    names = listed([f"{run}/" for run in runs], most=4)
                    problem = f"{problem}, but {names} has such reports"
                    fix = _word(f"{runs[0]}/")
            elif path.exists():
                found = [path]
            elif not glob.has_magic(str(path)):
                found = []
                problem = "no such file or directory"
                fix = _fix_of_name(path)
            else:
                matches = map(Path, glob.glob(str(path), recursive=True))  # noqa: PTH207 - absolute patterns
                files = sorted((one for one in matches if not one.is_dir()), key=by_number)
                found = [file for file in files if file.suffix in suffixes] or files
                problem = "matches no report"
                fix = "check the path, or pass a directory"
        if not found:
            raise ReportNotFoundError(str(path), problem, found=reports_near(path), fix=fix)
        expanded += found
    return expanded


def _fix_of_name(path: Path) -> str:
    """Return the glob of a job's reports, if a path is what outputs call the job; else to check the path."""
    with contextlib.suppress(OSError):
        glob_of_job = path.with_name(f"{path.name}_*{EXPORT_SUFFIX}")
        if path.name and any(path.parent.glob(f"{glob.escape(path.name)}_*{EXPORT_SUFFIX}")):
            return _word(str(glob_of_job))
    return "check the path, or quote the glob"


def has_reports(folder: Path, suffixes: Sequence[str]) -> bool:
    """Tell whether a directory holds files of these suffixes; not one that cannot be looked into."""
    with contextlib.suppress(OSError):
        return folder.is_dir() and any(path.suffix in suffixes for path in folder.iterdir())
    return False


def reports_near(path: Path) -> str:
    """Say what reports lie where a path or glob looks, by name those that are most alike; and where that is."""
    folder = path if path.is_dir() else path.parent
    while glob.has_magic(str(folder)) or not folder.is_dir():
        folder = folder.parent
    with contextlib.suppress(OSError):
        entries = sorted(folder.iterdir())
        names = [entry.name for entry in entries if entry.suffix in (EXPORT_SUFFIX, *RAW_SUFFIXES)]
        # Directories that are alike may hold reports, or saved runs (STORE:ID).
        directories = {
            entry.name: f"{entry.name}/"
            for entry in entries
            if entry.is_dir() and not path.is_dir()
        }
        near = difflib.get_close_matches(path.name, names)
        near += [
            directories[close_match]
            for close_match in difflib.get_close_matches(path.name.partition(":")[0], directories)
        ]
        alike = sorted(near) or names[:3]
        n_more = len({*names}.difference(alike))
        more = f" and {n_more} more report{'s' * (n_more > 1)}" if n_more else ""
        return (
            f"{', '.join(map(decoded, alike)) or 'no report'}{more} in "
            f"{decoded(str(folder.absolute()))}"
        )
    return f"{decoded(str(folder.absolute()))} cannot be looked into"


def cache_directory() -> Path:
    """Return where exports are kept: ``$NSYSPIPE_CACHE_DIR``, else ``nsyspipe`` in the user's cache directory."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111 - raises nothing
    return Path(os.environ.get(_DIRECTORY) or f"{home}/nsyspipe").absolute()


def exported_reports(
    arguments: Iterable[str | Path],
    *,
    jobs: int | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[Path]:
    """Return the exports that the arguments name; of a report without one, its export in the cache (see `source_of`).

    `on_progress` is called with (reports exported, reports to export). All are tried before a
    failure is raised.
    """
    paths = find_named(arguments)
    sources = {path: None for path in paths if path.suffix in RAW_SUFFIXES}
    if not sources:
        return paths
    limit = os.environ.get(_BYTES) or f"{_MOST_BYTES}"
    if not (limit.isascii() and limit.isdigit()):
        raise OptionError(
            f"{_BYTES}={limit}", "is not a number of bytes", fix=f"{_BYTES}=20000000000"
        )
    folder = cache_directory() / "exports"
    nsys = find() if find_nsys() else None  # what is there already will do
    if nsys is not None:
        _make_private(folder)
    targets = {source: _target(folder, source, nsys, list(sources)) for source in sources}
    for target in targets.values():
        # Keeps others from making room where this process reads, and renews the time of its use.
        old, _CLAIMS[target.parent] = _CLAIMS.get(target.parent), claim(target.parent)
        if old is not None:
            os.close(old)
    outcomes = attempt_exports(
        targets, targets=targets, nsys=nsys, jobs=jobs, on_progress=on_progress
    )
    _make_room(folder, int(limit))
    all_exported(outcomes)
    _SOURCES.update((target, errors.whole_path(source)) for source, target in targets.items())
    return [targets.get(path, path) for path in paths]


def _make_private(folder: Path) -> None:
    fix = f"{_DIRECTORY}=DIR, or nsyspipe convert -o DIR"
    try:
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.stat()
    except OSError as error:
        raise OutputError(str(folder), f"{_NO_CACHE} ({error.strerror})", fix=fix) from error
    if os.geteuid() not in (0, status.st_uid):
        raise OutputError(str(folder), f"{_NO_CACHE}, because it belongs to another user", fix=fix)
    if stat.S_IMODE(status.st_mode) & 0o022:
        fix = f"chmod go-w {shlex.quote(str(folder))}, or {fix}"
        raise OutputError(str(folder), f"{_NO_CACHE}, because others can write to it", fix=fix)


def _target(folder: Path, source: Path, nsys: Nsys | None, sources: Sequence[Path]) -> Path:
    """Return where a report's export is kept: under what identifies it, with the stem that may tell its rank."""
    with readable(source):
        status = source.stat()
        facts = f"{os.path.realpath(source)}\0{status.st_size}\0{status.st_mtime_ns}"
    report = hashlib.sha256(os.fsencode(facts)).hexdigest()[:_KEY_LENGTH]
    if nsys is None:
        return _any_export(folder, source, report, sources)
    options = hashlib.sha256(" ".join(export_options(nsys)).encode()).hexdigest()
    entry = folder / f"{report}-{nsys.version_text}-{options[:_OPTIONS_LENGTH]}"
    with contextlib.suppress(OSError):  # exporting into it says what is wrong
        entry.mkdir(mode=0o700, exist_ok=True)
    if entry.is_symlink():
        problem = "is a link, but the export cache needs a directory"
        raise OutputError(str(entry), problem, fix=f"rm {shlex.quote(str(entry))}")
    return target_of(source, entry)


def _any_export(folder: Path, source: Path, report: str, sources: Sequence[Path]) -> Path:
    """Return an export that was made when there was an nsys."""
    for entry in sorted(folder.glob(f"{report}-*"), key=claimed_at, reverse=True):
        target = target_of(source, entry)
        with contextlib.suppress(InputError, OutputError):
            if is_up_to_date(source, target, force=False):
                return target
    if not target_of(source).exists():
        where = "on PATH or in the usual places"
        problem = (
            f"is an nsys report that was not exported to SQLite, and nsys was not found {where}"
        )
        fix = (
            f"add the bin directory of nsys to PATH, or {GET_NSYS}, or run nsyspipe convert "
            f"{_word(str(source))} on a machine with nsys (no GPU needed)"
        )
        raise NotAReportError(decoded(str(source)), problem, fix=fix)
    named = " ".join(words_of_runs(one.with_suffix(EXPORT_SUFFIX) for one in sources))
    problem = "is an nsys report, but this machine has no nsys to export the report"
    found = f"a file that may be its export: {printable(decoded(str(target_of(source))))}"
    raise NotAReportError(
        decoded(str(source)), problem, found=found, fix=f"nsyspipe analyze {named}"
    )


def _make_room(folder: Path, limit: int) -> None:
    """Remove what killed runs left, then what was used longest ago, until the rest is no larger than the limit or in use."""
    ours = [one for one in folder.iterdir() if _ENTRY.fullmatch(one.name) and not one.is_symlink()]
    for entry in ours:
        remove_abandoned(entry)
    sizes = dict.fromkeys(ours, 0)
    for entry, path in [(one, path) for one in ours for path in one.rglob("*")]:
        with contextlib.suppress(OSError):
            sizes[entry] += path.lstat().st_size
    for entry in sorted(ours, key=claimed_at):
        if sum(sizes.values()) <= limit:
            return
        with contextlib.suppress(OSError):
            if entry not in _CLAIMS and holds_exports_only(entry) and not is_claimed(entry):
                shutil.rmtree(entry, ignore_errors=True)
                del sizes[entry]
