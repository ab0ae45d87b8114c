"""From what a user types to report files: paths, directories and globs, and a cache of exports.

A report that was not exported is exported into the cache, so that nothing is written into its
directory. Reports may contain secrets, so only the user can read the cache. A report that changed
is exported again. If the cache is full, the exports that were used longest ago are removed.
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
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from nsyspipe.errors import (
    InputError,
    NotAReportError,
    OptionError,
    OutputError,
    ReportNotFoundError,
)
from nsyspipe.model.names import decoded, listed, printable, table_of_store
from nsyspipe.model.user_paths import AnyPath, ReportFile
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
# The rank at the end of a report's name.
RANK_OF_NAME = re.compile(r"(?i)(?:rank|[._-])(\d{1,18})$")
_Report = TypeVar("_Report", bound=os.PathLike[str])
_DIRECTORY = "NSYSPIPE_CACHE_DIR"
_BYTES = "NSYSPIPE_CACHE_BYTES"
_DEFAULT_MAX_BYTES = 20_000_000_000
_KEY_LENGTH = 32
# What distinguishes the names of the reports of one run.
_RANK_NUMBER = re.compile(r"(?i)[._-]*(?:rank)?[._-]*\d+$")
_OPTIONS_LENGTH = 8
_NO_CACHE = "cannot be used as the cache of exports"
_ENTRY = re.compile(
    rf"[0-9a-f]{{{_KEY_LENGTH}}}-\d+(?:\.\d+)+-[0-9a-f]{{{_OPTIONS_LENGTH}}}", re.ASCII
)
# The entries of the cache that this process uses. Their locks stay open until the process ends.
_CLAIMS: dict[Path, int | None] = {}


def _word(path: str) -> str:
    """Return a path as a word for the shell, which no command takes for an option."""
    if path.startswith("-"):
        path = f"./{path}"
    return shlex.quote(decoded(path))


def words_of_runs(paths: Iterable[str | Path], *, is_whole: bool = False) -> dict[str, list[Path]]:
    """Group reports into runs, by their names without the rank at the end.

    The key of a run is what a user types in a shell to name its reports: a path, or a glob for
    several reports. If `is_whole`, the key names all reports of the run that exist, and not only
    those of `paths`.
    """
    reports_by_word: dict[str, list[Path]] = {}
    for (stem, suffix), reports in _group_by_run(paths).items():
        path_or_glob = str(reports[0])
        has_several = len(set(reports)) > 1
        if has_several or (is_whole and _has_several_reports(stem, suffix)):
            path_or_glob = _glob_of_run(stem, suffix)
        reports_by_word.setdefault(_word(path_or_glob), []).extend(reports)
    return reports_by_word


def _has_several_reports(stem: str, suffix: str) -> bool:
    """Tell whether several reports of a run exist, whose names have a rank after the stem."""
    return len(glob.glob(_glob_of_run(stem, suffix))) > 1  # noqa: PTH207


def _group_by_run(paths: Iterable[str | Path]) -> dict[tuple[str, str], list[Path]]:
    """Group reports by what their paths have before and after the rank.

    The key is the path up to the rank, and the suffix, which follows the rank. For a path without a
    rank, the key is the path without its suffix, and an empty text.
    """
    reports_by_run: dict[tuple[str, str], list[Path]] = {}
    for path in map(Path, paths):
        stem = path.stem
        suffix = ""
        rank = RANK_OF_NAME.search(stem)
        if rank is not None:
            stem = stem[: rank.start(1)]
            suffix = path.suffix
        key = (str(path.parent / stem), suffix)
        reports_by_run.setdefault(key, []).append(path)
    return reports_by_run


def _glob_of_run(stem: str, suffix: str) -> str:
    """Return a glob of the reports of a run, whose names have a rank between stem and suffix.

    It is ``STEM*SUFFIX`` if this matches no other files, else ``STEM[0-9]*SUFFIX``.
    """
    path_of_run = re.compile(rf"{re.escape(stem)}\d+{re.escape(suffix)}")
    literal_stem = glob.escape(stem)
    short_glob = f"{literal_stem}*{suffix}"
    matches = glob.glob(short_glob)  # noqa: PTH207
    matches_only_run = all(map(path_of_run.fullmatch, matches))
    return short_glob if matches_only_run else f"{literal_stem}[0-9]*{suffix}"


def named_reports(arguments: Iterable[AnyPath]) -> list[ReportFile]:
    """Return the reports that the arguments name, as `find_named`. A `ReportFile` names itself."""
    reports: list[ReportFile] = []
    for argument in arguments:
        if isinstance(argument, ReportFile):
            reports.append(argument)
        else:
            named = _expand([argument], EXPORT_SUFFIX, *RAW_SUFFIXES)
            reports += map(ReportFile.of, named)
    return without_exported(reports)


def find_named(arguments: Iterable[AnyPath]) -> list[Path]:
    """Return the files that the arguments name, in their order.

    The files of a glob or directory are sorted by the numbers in their names. A directory stands
    for its ``.sqlite`` files, and for its ``.nsys-rep`` and ``.qdrep`` files that have no
    ``.sqlite`` file. A file that is named twice is returned twice.
    """
    return without_exported(_expand(arguments, EXPORT_SUFFIX, *RAW_SUFFIXES))


def without_exported(reports: Sequence[_Report]) -> list[_Report]:
    """Return the reports without those whose export is among them.

    A report and its export have the same path but for the suffix.
    """
    paths = [*map(Path, reports)]
    exports = [path for path in paths if path.suffix == EXPORT_SUFFIX]
    paths_of_exports = {path.with_suffix("") for path in exports}
    remaining = []
    for report, path in zip(reports, paths, strict=True):
        is_raw = path.suffix in RAW_SUFFIXES
        has_export = is_raw and path.with_suffix("") in paths_of_exports
        if not has_export:
            remaining.append(report)
    return remaining


def find_captures(arguments: Iterable[str | Path]) -> list[Path]:
    """Return the reports to export that the arguments name, each once.

    Files that are exports already are left out. Raises NotAReportError if the arguments name only
    exports, or a file that is neither an export nor a report.
    """
    named = _expand(arguments, *RAW_SUFFIXES)
    captures = [path for path in named if path.suffix != EXPORT_SUFFIX]
    if named and not captures:
        export = str(named[0])
        fix = f"nsyspipe analyze {_word(export)}, or pass the {RAW_SUFFIXES[0]} file"
        raise NotAReportError(export, "is already an export", fix=fix)
    for path in captures:
        if path.suffix not in RAW_SUFFIXES:
            raise _not_a_capture(path)
    first_path_of_file: dict[str, Path] = {}
    for path in captures:
        first_path_of_file.setdefault(os.path.realpath(path), path)
    return list(first_path_of_file.values())


def _not_a_capture(path: Path) -> NotAReportError:
    if path.suffix in OUTPUTS:
        problem = f"is {OUTPUTS[path.suffix]}, not a report that can be exported"
    else:
        problem = f"is not named like an nsys report ({listed(RAW_SUFFIXES, joint='or')})"
    fix = f"pass {RAW_SUFFIXES[0]} files, or the directory that nsys wrote to"
    return NotAReportError(str(path), problem, fix=fix)


def split_logs(arguments: Iterable[str], logs: Sequence[str] | None) -> tuple[list[str], list[str]]:
    """Split arguments into reports and logs. Returns the reports, then all logs after `logs`.

    `logs` are the values of ``--nccl-log``. A shell expands ``--nccl-log *.log`` into words, of
    which only the first becomes a value of the option, and the others become arguments. So a text
    file that is not named like a report counts as a log. Without `logs`, all arguments are reports.
    """
    if not logs:
        return [*arguments], []
    reports: list[str] = []
    all_logs = [*logs]
    for argument in arguments:
        if _is_text_file(Path(argument)):
            all_logs.append(argument)
        else:
            reports.append(argument)
    return reports, all_logs


def _is_text_file(path: Path) -> bool:
    if path.suffix in (EXPORT_SUFFIX, *RAW_SUFFIXES) or not path.is_file():
        return False
    with readable(path), path.open("rb") as file:
        return file.read(len(_MAGIC)) != _MAGIC


def find_logs(arguments: Iterable[str | Path]) -> list[Path]:
    """Return the log files that the arguments name, those of a glob sorted by name.

    Raises ReportNotFoundError if an argument names no file.
    """
    logs: list[Path] = []
    for argument in arguments:
        path = Path(argument)
        with readable(path):
            # A file may have the signs of a glob in its name.
            names = [str(path)] if path.exists() else glob.glob(str(path))  # noqa: PTH207
        if not names:
            problem = "matches no file, needed for the link"
            raise ReportNotFoundError(decoded(str(path)), problem, fix="check the path")
        logs += sorted(map(Path, names))
    return logs


def label_of(names: Sequence[str]) -> str:
    """Return what the names of reports begin with in common, without rank numbers and suffix.

    If they have nothing in common, it is ``run``.
    """
    stems = [Path(name).stem for name in names]
    if len(stems) > 1:
        stems = [_RANK_NUMBER.sub("", stem) for stem in stems]
    shared = os.path.commonprefix(stems)  # noqa: RUF071 - not paths
    rests = [stem[len(shared) :] for stem in stems]
    if any(rest[:1].isdigit() for rest in rests):
        # The common part ends within a number, as of process IDs or hosts that differ.
        shared = shared.rstrip("0123456789")
    return shared.rstrip(" ._-") or "run"


def display_names(reports: Sequence[ReportFile]) -> list[str]:
    """Return, for each report, the shortest end of its path that distinguishes it from others.

    All names have the same number of directories. An export in the cache is named as if it were in
    the directory of its report.
    """
    parts_of_paths = [Path(_displayed_path(report)).parts for report in reports]
    n_distinct_paths = len(set(parts_of_paths))
    n_parts = 0
    names: list[str] = []
    # Names that are whole paths are distinct, so this ends.
    while len(set(names)) < n_distinct_paths:
        n_parts += 1
        names = ["/".join(parts[-n_parts:]) for parts in parts_of_paths]
    return names


def _displayed_path(report: ReportFile) -> str:
    """Return the path of a report, or of its export, as if the cache did not exist."""
    path = report.source
    is_in_cache = report.path != path
    if is_in_cache:
        path = path.with_suffix(EXPORT_SUFFIX)
    return decoded(str(path))


class _Absence(NamedTuple):
    """Why an argument names no report, and what to do."""

    problem: str
    fix: str


def _expand(arguments: Iterable[AnyPath], *suffixes: str) -> list[Path]:
    """Return the files that arguments name; ReportNotFoundError if an argument names none.

    A directory names its files with one of the suffixes.
    """
    expanded: list[Path] = []
    for argument in map(str, arguments):
        if not argument:
            raise ReportNotFoundError("an empty argument", "names no report", fix="pass a path")
        path = Path(argument)
        # Both look at files, whose errors `readable` turns into errors of nsyspipe.
        with readable(path):
            files = _files_named(path, suffixes)
            absence = None if files else _explain_absence(path, suffixes)
        if absence is not None:
            near = reports_near(path)
            raise ReportNotFoundError(str(path), absence.problem, found=near, fix=absence.fix)
        expanded += files
    return expanded


def _files_named(path: Path, suffixes: Sequence[str]) -> list[Path]:
    """Return the files that a path, directory or glob names. The list may be empty.

    A path names its file, whatever its suffix. A directory names its files with one of the
    suffixes. So does a glob, but if it matches no such file, it names all files that it matches.
    """
    if path.is_dir():
        reports = (entry for entry in path.iterdir() if entry.suffix in suffixes)
        return sorted(reports, key=by_number)
    if path.exists():
        return [path]
    pattern = str(path)
    if not glob.has_magic(pattern):
        return []
    matches = map(Path, glob.glob(pattern, recursive=True))  # noqa: PTH207 - absolute patterns
    files = [match for match in matches if not match.is_dir()]
    files.sort(key=by_number)
    files_with_suffix = [file for file in files if file.suffix in suffixes]
    return files_with_suffix or files


def _explain_absence(path: Path, suffixes: Sequence[str]) -> _Absence:
    if path.is_dir():
        return _explain_absence_in(path, suffixes)
    if glob.has_magic(str(path)):
        return _Absence("matches no report", "check the path, or pass a directory")
    return _Absence("no such file or directory", _fix_of_name(path))


def _explain_absence_in(directory: Path, suffixes: Sequence[str]) -> _Absence:
    """Explain why a directory has no reports with these suffixes."""
    if EXPORT_SUFFIX not in suffixes and has_reports(directory, [EXPORT_SUFFIX]):
        problem = "contains only reports that are already exported"
        return _Absence(problem, fix=f"nsyspipe analyze {_word(str(directory))}")
    table_and_store = table_of_store(directory)
    if table_and_store:
        # The directory is a table of a run store. The user means the store.
        problem, path_of_store = table_and_store
        return _Absence(problem, fix=_word(path_of_store))
    # A third suffix is that of old reports.
    needed = listed(suffixes[:2], joint="or")
    problem = f"is a directory without {needed} reports"
    entries = sorted(directory.iterdir())
    folders = [f"{entry}/" for entry in entries if has_reports(entry, suffixes)]
    if folders:
        names = listed(folders, most=4)
        return _Absence(f"{problem}, but {names} has such reports", fix=_word(folders[0]))
    return _Absence(problem, fix="pass the directory that nsys wrote to")


def _fix_of_name(path: Path) -> str:
    """Return the fix for a path that does not exist.

    If the path is the name of a job, as outputs print it, the fix is the glob of the job's reports.
    """
    with contextlib.suppress(OSError):
        # The search takes signs of a glob in the name for letters.
        pattern = f"{glob.escape(path.name)}_*{EXPORT_SUFFIX}"
        has_reports_of_job = bool(path.name) and any(path.parent.glob(pattern))
        if has_reports_of_job:
            glob_of_job = path.with_name(f"{path.name}_*{EXPORT_SUFFIX}")
            return _word(str(glob_of_job))
    return "check the path, or quote the glob"


def has_reports(folder: Path, suffixes: Sequence[str]) -> bool:
    """Tell whether a directory can be read, and has files with these suffixes."""
    with contextlib.suppress(OSError):
        if folder.is_dir():
            return any(path.suffix in suffixes for path in folder.iterdir())
    return False


def reports_near(path: Path) -> str:
    """Name the reports whose names are most similar to that of a path or glob, and their directory.

    This is the directory of the path. If it does not exist, it is the nearest directory above it
    that exists.
    """
    folder = path if path.is_dir() else path.parent
    while glob.has_magic(str(folder)) or not folder.is_dir():
        folder = folder.parent
    place = decoded(str(folder.absolute()))
    with contextlib.suppress(OSError):
        entries = sorted(folder.iterdir())
        return f"{_names_near(path, entries)} in {place}"
    return f"{place} cannot be looked into"


def _names_near(path: Path, entries: Sequence[Path]) -> str:
    """Name the entries of a directory whose names are most similar to that of a path.

    If no entry is similar, the first three reports are named. The text also says how many other
    reports there are.
    """
    suffixes = (EXPORT_SUFFIX, *RAW_SUFFIXES)
    names = [entry.name for entry in entries if entry.suffix in suffixes]
    similar = difflib.get_close_matches(path.name, names)
    if not path.is_dir():
        # A directory with a similar name may hold reports, or saved runs (STORE:ID).
        directories = [entry.name for entry in entries if entry.is_dir()]
        name, _, _ = path.name.partition(":")
        similar_directories = difflib.get_close_matches(name, directories)
        similar += [f"{directory}/" for directory in similar_directories]
    names_shown = sorted(similar) or names[:3]
    text = ", ".join(map(decoded, names_shown)) or "no report"
    n_more = len(set(names).difference(names_shown))
    if not n_more:
        return text
    plural = "s" if n_more > 1 else ""
    return f"{text} and {n_more} more report{plural}"


def cache_directory() -> Path:
    """Return where exports are cached.

    This is ``$NSYSPIPE_CACHE_DIR``, else ``nsyspipe`` in the user's cache directory.
    """
    # Unlike pathlib, `expanduser` raises nothing.
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111
    directory = os.environ.get(_DIRECTORY) or f"{home}/nsyspipe"
    return Path(directory).absolute()


def exported_reports(
    arguments: Iterable[AnyPath],
    *,
    jobs: int | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[ReportFile]:
    """Return the reports that the arguments name, as `named_reports`, all exported.

    A report without an export is exported into the cache. `on_progress` is called with (reports
    exported, reports to export). A failure is raised after all reports were tried.
    """
    reports = named_reports(arguments)
    raw_reports = [report for report in reports if report.path.suffix in RAW_SUFFIXES]
    # The paths as the user wrote them, for messages, and each once.
    paths = [Path(str(report)) for report in raw_reports]
    sources = list(dict.fromkeys(paths))
    if not sources:
        return reports
    max_bytes = _max_cache_bytes()
    folder = cache_directory() / "exports"
    # Without nsys, `find` would raise an error. Exports that are in the cache already can be used.
    nsys = find() if find_nsys() else None
    if nsys is not None:
        _make_private(folder)
    targets = {source: _target(folder, source, nsys, sources) for source in sources}
    for target in targets.values():
        _claim_entry(target.parent)
    outcomes = attempt_exports(
        targets, targets=targets, nsys=nsys, jobs=jobs, on_progress=on_progress
    )
    _make_room(folder, max_bytes)
    # This raises the first failure.
    all_exported(outcomes)
    return [_exported(report, targets) for report in reports]


def _exported(report: ReportFile, targets: Mapping[Path, Path]) -> ReportFile:
    """Return a report, to be read from its target if it is not exported yet."""
    if report.path.suffix not in RAW_SUFFIXES:
        return report
    return report.exported_to(targets[Path(str(report))])


def _max_cache_bytes() -> int:
    """Return how many bytes the cache may have, as the user's variable says, or the default."""
    value = os.environ.get(_BYTES) or f"{_DEFAULT_MAX_BYTES}"
    if not (value.isascii() and value.isdigit()):
        fix = f"{_BYTES}=20000000000"
        raise OptionError(f"{_BYTES}={value}", "is not a number of bytes", fix=fix)
    return int(value)


def _claim_entry(entry: Path) -> None:
    """Claim an entry of the cache so that no process removes it, and renew its time of use."""
    old_lock = _CLAIMS.get(entry)
    # The new lock is taken before the old one is given up, so that the entry always has one.
    _CLAIMS[entry] = claim(entry)
    if old_lock is not None:
        os.close(old_lock)


def _make_private(folder: Path) -> None:
    """Make a directory that only this user can write to; OutputError if that is not possible.

    A directory that exists is refused if it is another user's, or if others can write to it. Root
    may use the directory of any user.
    """
    fix = f"{_DIRECTORY}=DIR, or nsyspipe convert -o DIR"
    try:
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.stat()
    except OSError as error:
        problem = f"{_NO_CACHE} ({error.strerror})"
        raise OutputError(str(folder), problem, fix=fix) from error
    is_root_or_owner = os.geteuid() in (0, status.st_uid)
    if not is_root_or_owner:
        raise OutputError(str(folder), f"{_NO_CACHE}, because it belongs to another user", fix=fix)
    if stat.S_IMODE(status.st_mode) & 0o022:
        fix = f"chmod go-w {shlex.quote(str(folder))}, or {fix}"
        raise OutputError(str(folder), f"{_NO_CACHE}, because others can write to it", fix=fix)


def _target(folder: Path, source: Path, nsys: Nsys | None, sources: Sequence[Path]) -> Path:
    """Return where the export of a report is in the cache.

    The directory of the export identifies the report, by a hash, and the nsys with its options. The
    file keeps the name of the report, which may have the rank. Without an nsys, the result is an
    export of the report that is in the cache already (`_any_export`). `sources` are all reports,
    for the error if the cache has no such export.
    """
    with readable(source):
        status = source.stat()
        real_path = os.path.realpath(source)
    identity = f"{real_path}\0{status.st_size}\0{status.st_mtime_ns}"
    key = hashlib.sha256(os.fsencode(identity)).hexdigest()[:_KEY_LENGTH]
    if nsys is None:
        return _any_export(folder, source, key, sources)
    options = " ".join(export_options(nsys))
    options_hash = hashlib.sha256(options.encode()).hexdigest()[:_OPTIONS_LENGTH]
    entry = folder / f"{key}-{nsys.version_text}-{options_hash}"
    # If this fails, the export into the directory fails later, and its error says why.
    with contextlib.suppress(OSError):
        entry.mkdir(mode=0o700, exist_ok=True)
    if entry.is_symlink():
        problem = "is a link, but the export cache needs a directory"
        fix = f"rm {shlex.quote(str(entry))}"
        raise OutputError(str(entry), problem, fix=fix)
    return target_of(source, entry)


def _any_export(folder: Path, source: Path, key: str, sources: Sequence[Path]) -> Path:
    """Return the export of a report in the cache that was used last, whatever nsys made it.

    Raises NotAReportError if the cache has no export of the report. If a file next to the report
    may be its export, the fix is to pass such files in place of all reports (`sources`).
    """
    entries = folder.glob(f"{key}-*")
    for entry in sorted(entries, key=claimed_at, reverse=True):
        target = target_of(source, entry)
        with contextlib.suppress(InputError, OutputError):
            if is_up_to_date(source, target, force=False):
                return target
    export_next_to_report = target_of(source)
    if not export_next_to_report.exists():
        problem = (
            "is an nsys report that was not exported to SQLite, and nsys was not found on PATH or "
            "in the usual places"
        )
        fix = (
            f"add the bin directory of nsys to PATH, or {GET_NSYS}, or run nsyspipe convert "
            f"{_word(str(source))} on a machine with nsys (no GPU needed)"
        )
        raise NotAReportError(decoded(str(source)), problem, fix=fix)
    exports = [path.with_suffix(EXPORT_SUFFIX) for path in sources]
    words = " ".join(words_of_runs(exports))
    problem = "is an nsys report, but this machine has no nsys to export the report"
    export = printable(decoded(str(export_next_to_report)))
    found_text = f"a file that may be its export: {export}"
    fix = f"nsyspipe analyze {words}"
    raise NotAReportError(decoded(str(source)), problem, found=found_text, fix=fix)


def _make_room(folder: Path, max_bytes: int) -> None:
    """Remove entries of the cache until the others have at most `max_bytes` together.

    First, the remains of killed processes are removed from all entries. Then the entries that were
    used longest ago are removed. Entries in use stay, even if they have more bytes.
    """
    paths = [path for path in folder.iterdir() if _ENTRY.fullmatch(path.name)]
    entries = [path for path in paths if not path.is_symlink()]
    for entry in entries:
        remove_abandoned(entry)
    bytes_of_entry = {entry: _bytes_below(entry) for entry in entries}
    for entry in sorted(entries, key=claimed_at):
        if sum(bytes_of_entry.values()) <= max_bytes:
            return
        # An entry that cannot be looked at stays. `_CLAIMS` has those that this process uses.
        with contextlib.suppress(OSError):
            if entry not in _CLAIMS and holds_exports_only(entry) and not is_claimed(entry):
                shutil.rmtree(entry, ignore_errors=True)
                del bytes_of_entry[entry]


def _bytes_below(directory: Path) -> int:
    n_bytes = 0
    for path in directory.rglob("*"):
        with contextlib.suppress(OSError):
            n_bytes += path.lstat().st_size
    return n_bytes
