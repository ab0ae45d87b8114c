"""Finds files of NCCL and topologies in the directories of reports, and reads those of the run.

Files belong to the run by their names, and logs also by their processes. Whoever sent the reports
may have sent these files too. Only ordinary files of the directory are read, without links, and
only up to a size and number.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import stat
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct, field

from nsyspipe.errors import InputError
from nsyspipe.model.inspected import InspectedCalls, InspectedProcess
from nsyspipe.model.names import decoded, few, few_with_reasons, printable
from nsyspipe.model.problems import Problem, problem
from nsyspipe.model.side_files import NcclLog, Topology
from nsyspipe.nsys.find_reports import RANK_OF_NAME
from nsyspipe.reader.fabric import (
    Init,
    Process,
    parse_line,
    printed_lines,
    read_nccl_logs,
    read_topology,
)
from nsyspipe.reader.nccl_inspector import read_inspected_calls

MOST_ENTRIES = 100_000
MOST_LOGS = 4096
MOST_LOG_BYTES = 64 << 20
MOST_TOPOLOGY_BYTES = 1 << 20
# NCCL Inspector writes about 400 bytes for each call.
MOST_INSPECTOR_BYTES = 256 << 20
_MAX_NAMES_SHOWN = 3
# What follows the name of a run in the name of a file that the launchers, or the user, put into the
# directory of its reports.
_LOG = re.compile(r"(?:\.node\d{1,9})?\.nccl(?:\..{0,255})?\.log", re.DOTALL)
_TOPOLOGY = re.compile(r"(?:\.node\d{1,9})?\.topo\.txt")
_ANY_TOPOLOGY = re.compile(r"topo.{0,255}\.txt", re.DOTALL)
# NCCL Inspector writes a file for each process, by default in a directory of its own.
_INSPECTED = re.compile(r"(?P<host>.{1,255})-pid(?P<pid>[0-9]{1,10})\.log", re.DOTALL)
_INSPECTOR_FOLDER = re.compile(r"nccl-inspector-.{1,255}", re.DOTALL)
_MOST_INSPECTOR_FOLDERS = 16
# The name of a host in redacted copies.
_REDACTED_HOST = re.compile(r"host-\d{1,6}", re.ASCII)
_NODE = re.compile(r"\.node\d{1,9}$")


class RunProcess(Struct, frozen=True):
    """A process of the run; its host is None if the report does not have it."""

    pid: int
    host: str | None


class Candidates(Struct, frozen=True):
    """The files in the directories of a run's reports that have names like files of the run."""

    logs: tuple[Path, ...] = ()
    # If there are several, it is not known which one is of the run.
    topologies: tuple[Path, ...] = ()
    # Files that are named like those of NCCL Inspector. Their names have host and process.
    inspected: tuple[Path, ...] = ()

    @property
    def paths(self) -> tuple[Path, ...]:
        """All of them."""
        return self.logs + self.topologies + self.inspected


class FilesBeside(Struct):
    """The contents of the files of a run, None if there is no such file, and problems with them."""

    log: NcclLog | None = None
    topology: Topology | None = None
    problems: list[Problem] = field(default_factory=list)
    inspected: InspectedCalls | None = None


def find_beside(reports: Iterable[Path]) -> Candidates:
    """Find the logs, topologies and files of NCCL Inspector in the directories of some reports.

    Logs and topologies have the name of the run. If a directory has no such topology, all its
    topologies are found.
    """
    names_by_folder: dict[Path, set[str]] = {}
    for path in reports:
        names = names_by_folder.setdefault(path.parent, set())
        names.update(_names_of(path))
    logs: list[Path] = []
    topologies: list[Path] = []
    inspected: list[Path] = []
    for folder, names in names_by_folder.items():
        entries = _entries(folder)
        named_logs = _named(entries, names, _LOG)
        topology_names = _named(entries, names, _TOPOLOGY)
        if not topology_names:
            topology_names = [entry for entry in entries if _ANY_TOPOLOGY.fullmatch(entry)]
        logs += [folder / entry for entry in named_logs]
        topologies += [folder / entry for entry in topology_names]
        inspected += _find_inspected(folder, entries)
    return Candidates(tuple(logs), tuple(topologies), tuple(inspected))


def _find_inspected(folder: Path, entries: Iterable[str]) -> list[Path]:
    """Find what may be files of NCCL Inspector, in a directory and in the Inspector's own folders.

    NCCL Inspector makes these folders in the directory.
    """
    entries = list(entries)
    inspected = [folder / entry for entry in entries if _INSPECTED.fullmatch(entry)]
    named_folders = [folder / entry for entry in entries if _INSPECTOR_FOLDER.fullmatch(entry)]
    folders = [path for path in named_folders if not path.is_symlink()]
    for inspector_folder in folders[:_MOST_INSPECTOR_FOLDERS]:
        names = filter(_INSPECTED.fullmatch, _entries(inspector_folder))
        inspected += [inspector_folder / name for name in names]
    return inspected


def _names_of(report: Path) -> set[str]:
    """Return the possible names of a report's run: with rank, without rank, and without node."""
    name = report.stem
    without_rank = RANK_OF_NAME.sub("", name)
    without_node = _NODE.sub("", without_rank)
    return {name, without_rank, without_node} - {""}


def _entries(folder: Path) -> list[str]:
    # Whoever reads the reports raises the error for a directory that cannot be read.
    with contextlib.suppress(OSError, ValueError), os.scandir(folder) as entries:
        first_entries = itertools.islice(entries, MOST_ENTRIES)
        return sorted(entry.name for entry in first_entries)
    return []


def _named(entries: Iterable[str], names: Collection[str], rest: re.Pattern[str]) -> list[str]:
    """Return the entries that have the name of a run, followed by a pattern."""
    return [entry for entry in entries if _is_named(entry, names, rest)]


def _is_named(entry: str, names: Collection[str], rest: re.Pattern[str]) -> bool:
    """Tell whether an entry has the name of a run, followed by a pattern."""
    for dot in re.finditer(r"\.", entry):
        end = dot.start()
        if entry[:end] in names and rest.fullmatch(entry, end):
            return True
    return False


def read_logs_beside(paths: Sequence[Path], processes: Collection[RunProcess]) -> FilesBeside:
    """Read the logs of the run that has the processes `processes`. `paths` may be of other runs.

    The problems tell which logs were used, and why others were not.
    """
    files = FilesBeside()
    reason_of_unused: dict[Path, str] = {}
    contents = _read_contents(paths[:MOST_LOGS], reason_of_unused)
    reason_of_unread = f"nsyspipe reads only {MOST_LOGS} logs"
    reason_of_unused |= dict.fromkeys(paths[MOST_LOGS:], reason_of_unread)
    logs_of_run = _logs_of_run(contents, processes)
    ignored = [content for content in contents if content not in logs_of_run]
    if ignored:
        files.problems.append(_ignored_logs(ignored, processes))
    if logs_of_run:
        paths_of_run = [content.path for content in logs_of_run]
        unusable: dict[Path, InputError] = {}
        files.log = read_nccl_logs(paths_of_run, unusable)
        reason_of_unused |= {path: error.problem for path, error in unusable.items()}
        files.problems.append(used_beside(paths_of_run))
    if reason_of_unused:
        files.problems.append(_unused(reason_of_unused, "--nccl-log"))
    return files


def read_inspected_beside(paths: Sequence[Path], processes: Collection[RunProcess]) -> FilesBeside:
    """Read the files of NCCL Inspector that processes of the run wrote.

    The name of a file tells which process wrote it. Files of other processes are not looked at,
    because they may be of other runs. The problems tell which files were used, and why others were
    not.
    """
    files = FilesBeside()
    chosen: list[tuple[Path, InspectedProcess]] = []
    reason_of_unused: dict[Path, str] = {}
    n_bytes = 0
    for path in paths:
        process = _process_of_name(path)
        if not _is_of_run((process.host, process.pid), processes):
            continue
        n_bytes_left = MOST_INSPECTOR_BYTES - n_bytes
        reason = why_refused(path, n_bytes_left)
        if reason is None:
            n_bytes += path.lstat().st_size
            chosen.append((path, process))
        else:
            reason_of_unused[path] = reason
    unusable: dict[Path, InputError] = {}
    if chosen:
        files.inspected = read_inspected_calls(chosen, unusable)
    reason_of_unused |= {path: error.problem for path, error in unusable.items()}
    if reason_of_unused:
        files.problems.append(problem_with_files("nccl-inspector-unusable", reason_of_unused))
    used = [path for path, _ in chosen if path not in unusable]
    if used:
        files.problems.append(problem("nccl-inspector-used", files=_few_names(used)))
    return files


def _process_of_name(path: Path) -> InspectedProcess:
    """Return the process that wrote a file, by its name."""
    match = _INSPECTED.fullmatch(path.name)
    if match is None:
        raise ValueError("no name of a file of NCCL Inspector")
    return InspectedProcess(match["host"], int(match["pid"]))


def _read_contents(paths: Iterable[Path], reason_of_unused: dict[Path, str]) -> list[_LogContents]:
    """Return, for each log, what tells of which run it is.

    Files that cannot be read are left out. So is each file that is too large, together with the
    files before it. They are added to `reason_of_unused`.
    """
    contents: list[_LogContents] = []
    n_bytes = 0
    for path in paths:
        n_bytes_left = MOST_LOG_BYTES - n_bytes
        reason = why_refused(path, n_bytes_left)
        if reason is None:
            n_bytes += path.lstat().st_size
            try:
                contents.append(_log_contents(path))
            except InputError as error:
                reason = error.problem
        if reason is not None:
            reason_of_unused[path] = reason
    return contents


def read_topology_beside(paths: Sequence[Path], gpus: Collection[int]) -> FilesBeside:
    """Read the topology of a run from files in the directories of its reports.

    It is used if all files have the same topology, and if it has all GPUs of the reports. A problem
    tells which file was used, or why none was.
    """
    files = FilesBeside()
    reason_of_unused: dict[Path, str] = {}
    topology_of_path = _read_topologies(paths[:MOST_LOGS], reason_of_unused)
    if reason_of_unused:
        files.problems.append(_unused(reason_of_unused, "--topology"))
    if not topology_of_path:
        return files
    first_path, *other_paths = topology_of_path
    topology = topology_of_path[first_path]
    different = [path for path in other_paths if topology_of_path[path] != topology]
    missing_gpus = sorted(set(gpus) - set(topology.gpus))
    if different:
        names = _few_names((first_path, *different))
        files.problems.append(problem("topologies-beside", files=names))
    elif missing_gpus:
        numbers = ", ".join(map(str, missing_gpus))
        reason = f"GPU {numbers} of the reports is missing in the topology"
        files.problems.append(_unused({first_path: reason}, "--topology"))
    else:
        files.topology = topology
        files.problems.append(used_beside([first_path]))
    return files


def _read_topologies(
    paths: Iterable[Path], reason_of_unused: dict[Path, str]
) -> dict[Path, Topology]:
    """Read topologies. Files that cannot be read are added to `reason_of_unused`."""
    topologies: dict[Path, Topology] = {}
    for path in paths:
        reason = why_refused(path, MOST_TOPOLOGY_BYTES)
        if reason is None:
            try:
                topologies[path] = read_topology(path)
            except InputError as error:
                reason = error.problem
        if reason is not None:
            reason_of_unused[path] = reason
    return topologies


def why_refused(path: Path, max_bytes: int) -> str | None:
    """Return why a file in the directory of reports is not read; None if it is read.

    Only ordinary files of at most `max_bytes` bytes are read, and no links.
    """
    try:
        state = path.lstat()
    except OSError as error:
        return error.strerror or "unreadable"
    except ValueError:
        return "unreadable"
    if stat.S_ISLNK(state.st_mode):
        return "it is a link, and only files of the reports' own directory are read"
    if not stat.S_ISREG(state.st_mode):
        return "no ordinary file"
    n_bytes = state.st_size
    return f"too large: {n_bytes} bytes" if n_bytes > max_bytes else None


class _LogContents(Struct, frozen=True):
    """What identifies the run of a log."""

    path: Path
    # The processes that wrote lines.
    processes: frozenset[Process]
    # The communicators of these processes.
    comm_ids: frozenset[str]


def _log_contents(path: Path) -> _LogContents:
    """Return the processes and communicators in a log; `InputError` if it is no log of NCCL."""
    processes: set[Process] = set()
    comm_ids: set[str] = set()
    for text, is_complete in printed_lines(path):
        line = parse_line(text)
        if line is None or not is_complete:
            continue
        if line.process is not None:
            processes.add(line.process)
        fact = line.fact
        if isinstance(fact, Init) and fact.comm_id is not None:
            comm_ids.add(fact.comm_id)
    if not processes:
        raise InputError(decoded(str(path)), "contains no line from NCCL")
    return _LogContents(path, frozenset(processes), frozenset(comm_ids))


def _logs_of_run(
    contents: Sequence[_LogContents], processes: Collection[RunProcess]
) -> list[_LogContents]:
    """Return the logs of the run.

    These are the logs of its processes, and other logs that have a communicator of its processes.
    """
    written_by_run = [content for content in contents if _is_written_by(content, processes)]
    comm_ids_of_run: set[str] = set()
    for content in written_by_run:
        comm_ids_of_run |= content.comm_ids
    logs_of_run: list[_LogContents] = []
    for content in contents:
        has_comm_of_run = not comm_ids_of_run.isdisjoint(content.comm_ids)
        if has_comm_of_run or content in written_by_run:
            logs_of_run.append(content)
    return logs_of_run


def _is_written_by(log: _LogContents, processes: Collection[RunProcess]) -> bool:
    return any(_is_of_run(process, processes) for process in log.processes)


def _is_of_run(logged_process: Process, processes: Collection[RunProcess]) -> bool:
    logged_host, pid = logged_process
    hosts = (process.host for process in processes if process.pid == pid)
    return any(may_be_host(host, logged_host) for host in hosts)


def may_be_host(host: str | None, logged_host: str) -> bool:
    """Tell whether a host may be the one that a log names.

    Logs have no domains. A redacted host may be any host.
    """
    if host is None or _REDACTED_HOST.fullmatch(host):
        return True
    return _without_domain(host) == _without_domain(logged_host)


def _without_domain(host: str) -> str:
    name, _, _ = host.partition(".")
    return name.lower()


def _ignored_logs(logs: Sequence[_LogContents], processes: Collection[RunProcess]) -> Problem:
    """Return the problem for logs of other runs, which names the processes that wrote them.

    If one of these processes has the PID of a process of the run, the two must be on different
    hosts. Then the problem names the hosts instead.
    """
    pids_of_run = {process.pid for process in processes}
    log_processes = sorted({process for log in logs for process in log.processes})
    hosts = sorted({host for host, _ in log_processes})
    log_pids = [pid for _, pid in log_processes]
    if pids_of_run.isdisjoint(log_pids):
        whose = f"written by processes {few(log_pids, _MAX_NAMES_SHOWN)}"
    else:
        whose = f"written on hosts {few(hosts, _MAX_NAMES_SHOWN)}"
    names = _few_names(log.path for log in logs)
    return problem("log-beside-ignored", files=names, whose=whose)


def _unused(reason_of_file: Mapping[Path, str], option: str) -> Problem:
    return problem_with_files("file-beside-unusable", reason_of_file, option=option)


def problem_with_files(
    code: str, reason_of_file: Mapping[Path, str], *, option: str | None = None
) -> Problem:
    """Return one problem for all files that are not used, which names the first with their reasons.

    Anybody can put any number of bad files beside reports, so a file is no problem of its own.
    `option` is the one that takes such a file, if the fix of the problem names it.
    """
    names_and_reasons = [
        (_shown(path), printable(reason)) for path, reason in reason_of_file.items()
    ]
    files = few_with_reasons(names_and_reasons, _MAX_NAMES_SHOWN)
    return problem(code, n=len(names_and_reasons), files=files, option=option)


def used_beside(paths: Iterable[Path]) -> Problem:
    """Return the note about files that are used although nobody named them."""
    return problem("files-beside-used", files=_few_names(paths))


def _few_names(paths: Iterable[Path]) -> str:
    """Return the first names of some files as text, and the number of others."""
    names = [_shown(path) for path in paths]
    return few(names, _MAX_NAMES_SHOWN)


def _shown(path: Path) -> str:
    return printable(decoded(path.name))
