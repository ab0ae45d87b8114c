"""NCCL logs and topologies that lie beside reports under their name: found, told from others' by their processes, and read.

Whoever sent the reports may have sent these files too: they are ordinary files of that directory,
reached by no link, of a bounded size and number.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import stat
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from msgspec import Struct, field

from nsyspipe.errors import InputError
from nsyspipe.model.names import decoded, few, printable
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

MOST_ENTRIES = 100_000
MOST_LOGS = 4096
MOST_LOG_BYTES = 64 << 20
MOST_TOPOLOGY_BYTES = 1 << 20
_SHOWN = 3
# What follows the name of a run in the name of a file that the launchers, or the user, put beside
# its reports.
_LOG = re.compile(r"(?:\.node\d{1,9})?\.nccl(?:\..{0,255})?\.log", re.DOTALL)
_TOPOLOGY = re.compile(r"(?:\.node\d{1,9})?\.topo\.txt")
_ANY_TOPOLOGY = re.compile(r"topo.{0,255}\.txt", re.DOTALL)
_REDACTED_HOST = re.compile(r"host-\d{1,6}", re.ASCII)  # as copies that were redacted have it
_NODE = re.compile(r"\.node\d{1,9}$")


class RunProcess(Struct, frozen=True):
    """A process of the run; its host is None where the report does not say."""

    pid: int
    host: str | None


class Candidates(Struct, frozen=True):
    """The files beside the reports of a run that are called as those of it are."""

    logs: tuple[Path, ...] = ()
    topologies: tuple[Path, ...] = ()  # several: which of them is of the run, nothing tells

    @property
    def paths(self) -> tuple[Path, ...]:
        """All of them."""
        return self.logs + self.topologies


class FilesBeside(Struct):
    """What the files beside the reports say, and what is to be said of them; None where there is none of this run."""

    log: NcclLog | None = None
    topology: Topology | None = None
    problems: list[Problem] = field(default_factory=list)


def find_beside(reports: Iterable[Path]) -> Candidates:
    """Find the logs and topologies beside some reports: those with their name, else the topologies of their directory."""
    names_by_folder: dict[Path, set[str]] = {}
    for path in reports:
        names_by_folder.setdefault(path.parent, set()).update(_names_of(path))
    logs: list[Path] = []
    topologies: list[Path] = []
    for folder, names in names_by_folder.items():
        entries = _entries(folder)
        logs += [folder / entry for entry in entries if _is_named(entry, names, _LOG)]
        own = [folder / entry for entry in entries if _is_named(entry, names, _TOPOLOGY)]
        topologies += own or [folder / entry for entry in entries if _ANY_TOPOLOGY.fullmatch(entry)]
    return Candidates(tuple(logs), tuple(topologies))


def _names_of(report: Path) -> set[str]:
    """Return what the run of a report may be called: its name, without its rank, and without its node."""
    without_rank = RANK_OF_NAME.sub("", report.stem)
    return {report.stem, without_rank, _NODE.sub("", without_rank)} - {""}


def _entries(folder: Path) -> list[str]:
    # Whoever reads the reports will say what is wrong with their directory.
    with contextlib.suppress(OSError, ValueError), os.scandir(folder) as entries:
        return sorted(entry.name for entry in itertools.islice(entries, MOST_ENTRIES))
    return []


def _is_named(entry: str, names: Collection[str], rest: re.Pattern[str]) -> bool:
    ends = (found.start() for found in re.finditer(r"\.", entry))
    return any(entry[:end] in names and rest.fullmatch(entry, end) for end in ends)


def read_logs_beside(paths: Sequence[Path], processes: Collection[RunProcess]) -> FilesBeside:
    """Read those logs that are of a run with these processes; of the others say why they are not used."""
    found = FilesBeside()
    contents: list[_LogContents] = []
    n_bytes = 0
    for path in paths[:MOST_LOGS]:
        reason = why_refused(path, MOST_LOG_BYTES - n_bytes)
        if reason is None:
            n_bytes += path.lstat().st_size
            try:
                contents.append(_log_contents(path))
            except InputError as error:
                reason = error.problem
        if reason is not None:
            found.problems.append(_unused(path, reason, "--nccl-log"))
    if len(paths) > MOST_LOGS:
        more = f"there are {len(paths)} logs, and {MOST_LOGS} are read"
        found.problems.append(_unused(paths[MOST_LOGS], more, "--nccl-log"))
    fitting = _fitting(contents, processes)
    others = [content for content in contents if content not in fitting]
    if others:
        found.problems.append(_ignored_logs(others, processes))
    if fitting:
        unusable: dict[Path, InputError] = {}
        found.log = read_nccl_logs([one.path for one in fitting], unusable)
        found.problems += [
            _unused(path, error.problem, "--nccl-log") for path, error in unusable.items()
        ]
        found.problems.append(used_beside([one.path for one in fitting]))
    return found


def read_topology_beside(paths: Sequence[Path], gpus: Collection[int]) -> FilesBeside:
    """Read the one topology beside the reports, if it has the GPUs that their hosts have; else say why it is not used."""
    found = FilesBeside()
    usable: dict[Path, Topology] = {}
    for path in paths[:MOST_LOGS]:
        reason = why_refused(path, MOST_TOPOLOGY_BYTES)
        if reason is None:
            try:
                usable[path] = read_topology(path)
            except InputError as error:
                reason = error.problem
        if reason is not None:
            found.problems.append(_unused(path, reason, "--topology"))
    if not usable:
        return found
    first, *others = usable
    different = [path for path in others if usable[path] != usable[first]]
    absent = sorted(set(gpus) - set(usable[first].gpus))
    if different:
        names = few([_shown(path) for path in (first, *different)], _SHOWN)
        found.problems.append(problem("topologies-beside", files=names))
    elif absent:
        reason = f"GPU {', '.join(map(str, absent))} of the reports is missing in the topology"
        found.problems.append(_unused(first, reason, "--topology"))
    else:
        found.topology = usable[first]
        found.problems.append(used_beside([first]))
    return found


def why_refused(path: Path, most_bytes: int) -> str | None:
    """Return why a file beside reports is not read: only ordinary files of that directory are, up to a size; None if it is."""
    try:
        state = path.lstat()
    except (OSError, ValueError) as error:
        return (error.strerror if isinstance(error, OSError) else None) or "unreadable"
    if stat.S_ISLNK(state.st_mode):
        return "it is a link, and only files of the reports' own directory are read"
    if not stat.S_ISREG(state.st_mode):
        return "no ordinary file"
    return f"too large: {state.st_size} bytes" if state.st_size > most_bytes else None


class _LogContents(Struct, frozen=True):
    """Whose log a file is."""

    path: Path
    processes: frozenset[Process]  # that wrote lines
    comm_ids: frozenset[str]  # of communicators that these were in


def _log_contents(path: Path) -> _LogContents:
    processes: set[Process] = set()
    comm_ids: set[str] = set()
    for text, is_whole in printed_lines(path):
        process, _, fact = parse_line(text) or (None, 0, None)
        if process is not None and is_whole:
            processes.add(process)
        if isinstance(fact, Init) and fact.comm_id is not None and is_whole:
            comm_ids.add(fact.comm_id)
    if not processes:
        raise InputError(decoded(str(path)), "contains no line from NCCL")
    return _LogContents(path, frozenset(processes), frozenset(comm_ids))


def _fitting(
    contents: Sequence[_LogContents], processes: Collection[RunProcess]
) -> list[_LogContents]:
    """Return the logs of the run: those that one of its processes wrote, and of communicators that these were in."""
    own = [
        content
        for content in contents
        if any(_is_of(process, processes) for process in content.processes)
    ]
    comm_ids = {comm_id for one in own for comm_id in one.comm_ids}
    return [
        content
        for content in contents
        if content in own or not comm_ids.isdisjoint(content.comm_ids)
    ]


def _is_of(logged: Process, processes: Collection[RunProcess]) -> bool:
    host, pid = logged
    return any(process.pid == pid and _is_one_host(process.host, host) for process in processes)


def _is_one_host(host: str | None, logged: str) -> bool:
    """Tell whether a host's name may be that of a log, which has it without a domain; one that was redacted may be any."""
    if host is None or _REDACTED_HOST.fullmatch(host):
        return True
    return host.partition(".")[0].lower() == logged.partition(".")[0].lower()


def _ignored_logs(others: Sequence[_LogContents], processes: Collection[RunProcess]) -> Problem:
    pids = {one.pid for one in processes}
    logged = sorted({process for one in others for process in one.processes})
    has_pid = any(pid in pids for _, pid in logged)
    hosts = sorted({host for host, _ in logged})
    whose = (
        f"written on hosts {few(hosts, _SHOWN)}"
        if has_pid
        else f"written by processes {few([str(pid) for _, pid in logged], _SHOWN)}"
    )
    names = few([_shown(one.path) for one in others], _SHOWN)
    return problem("log-beside-ignored", files=names, whose=whose)


def _unused(path: Path, reason: str, option: str) -> Problem:
    return problem(
        "file-beside-unusable", file=_shown(path), reason=printable(reason), option=option
    )


def used_beside(paths: Sequence[Path]) -> Problem:
    """Say which files are used that nobody named."""
    return problem("files-beside-used", files=few([_shown(path) for path in paths], _SHOWN))


def _shown(path: Path) -> str:
    return printable(decoded(path.name))
