"""The sidecar of a capture, ``NAME.capture.json``: how, where and by what its reports were made.

The sidecar contains the parts of the command line and the environment that `command_words` allows,
and hashes of the rest.
"""

import contextlib
import json
import os
import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from nsyspipe.capture.rank import NOT_ENDED, NOT_MADE, NOT_STARTED, NOT_WRITTEN, NOTHING
from nsyspipe.capture.status import Program
from nsyspipe.errors import OutputError
from nsyspipe.model.captured import (
    CAPTURE_VERSION,
    MAX_COUNT,
    SIDECAR_SUFFIX,
    CapturedRank,
    MemoryPeaks,
    WorkPerStep,
)
from nsyspipe.model.names import decoded, printable
from nsyspipe.nsys.command_words import (
    CAPTURE_NAME,
    GPU_NAME,
    HOST_NAME,
    VERSION,
    recorded_command,
    recorded_environment,
)
from nsyspipe.nsys.files import claimed_file, make_readable
from nsyspipe.nsys.machine import Gpu, gpus, topology
from nsyspipe.nsys.programs import ROOT, Patience, nccl_version, torch_versions
from nsyspipe.nsys.secrets import HashKey, hash_key
from nsyspipe.version import __version__

# The time for all questions to other programs.
_MAX_QUESTIONS_S = 12.0
_MAX_HOST_CHARACTERS = 100
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
# Settings by which git starts no program, and fetches nothing, that a repository names.
_NO_PROGRAMS = (
    "core.fsmonitor=false",
    "core.hooksPath=/dev/null",
    "safe.bareRepository=explicit",
    "protocol.allow=never",
    "protocol.ext.allow=never",
    "protocol.file.allow=never",
    "protocol.git.allow=never",
    "protocol.ssh.allow=never",
    "protocol.http.allow=never",
    "protocol.https.allow=never",
)
_NO_FILTER = ("clean=", "smudge=", "process=", "required=false")
_NOT_IN_OPTION = re.compile(r"[=\n\ufffd]")
_MAX_CHANGED_FILES = 1000
TOPOLOGY_SUFFIX = ".topo.txt"
_MAX_TEXT_CHARACTERS = 500
_MAX_LOGS = 4096
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z_0-9]*=", re.ASCII)
_NOT_ENDED = NOT_ENDED.format(seconds="[0-9]{1,9}")
_EPOCHS = "(?: in one epoch| in epochs of [0-9]+)?"
# Our sentences about problems of a rank. A message of nsys may quote the command, and is left out.
_PROBLEMS = re.compile(
    rf"{NOTHING}|{NOT_STARTED}|{NOT_WRITTEN}|{NOT_MADE}|{_NOT_ENDED}"
    rf"|[0-9]+ of [0-9]+ steps were captured: its loop ended after [0-9]+ steps?{_EPOCHS}, the "
    r"warm-up is [0-9]+"
)
# Names of phases that many programs use. Other names are words of the program, and only in the
# report.
_USUAL_PHASES = (
    "data forward backward optimizer step loss zero_grad zero-grad eval validation val train "
    "checkpoint save load h2d "
    "to_device all_reduce allreduce reduce sync clip clip_grad scheduler lr_scheduler warmup"
)
_STEPS = re.compile(r"\^[A-Za-z]{1,20}[ _#]?\[0-9\]\+\$", re.ASCII)


@dataclass(frozen=True)
class Surroundings:
    """Facts about the host and its Python environment. None for what is not known.

    Untracked files do not make a repository dirty.
    """

    host: str | None
    gpus: tuple[Gpu, ...]
    driver_version: str | None
    topology: str | None
    torch_version: str | None
    cuda_version: str | None
    nccl_version: str | None
    python_version: str
    git_commit: str | None
    git_is_dirty: bool | None


def gather_surroundings(
    directory: Path | None = None,
    *,
    root: Path = ROOT,
    search_path: str | None = None,
    total_s: float = _MAX_QUESTIONS_S,
) -> Surroundings:
    """Describe this machine, and the repository of the training program if it is known.

    Other programs get about `total_s` seconds for their answers.
    """
    patience = Patience(total_s, search_path)
    gpus_here, driver_version = gpus(patience)
    links = topology(patience) if gpus_here else None
    repository = _RepositoryState(commit=None, is_dirty=None)
    if directory is not None:
        repository = _repository_state(patience, directory)
    torch_version, cuda_version = torch_versions()
    # The same name as that in the reports of nsys.
    host = printable(platform.node())[:_MAX_HOST_CHARACTERS]
    return Surroundings(
        host=host or None,
        gpus=gpus_here,
        driver_version=driver_version,
        topology=links,
        torch_version=torch_version,
        cuda_version=cuda_version,
        nccl_version=nccl_version(root),
        python_version=platform.python_version(),
        git_commit=repository.commit,
        git_is_dirty=repository.is_dirty,
    )


def program_directory(command: Sequence[str]) -> Path | None:
    """Return the directory of the first existing Python file that a command names, or None.

    ``run_module.py``, which starts our modules, does not count.
    """
    for word in command:
        is_ours = word.endswith("/launchers/run_module.py")
        # A `Path` may raise for a word that is no path.
        if word.endswith(".py") and not is_ours and os.path.isfile(word):  # noqa: PTH113
            return Path(word).absolute().parent
    return None


class _RepositoryState(NamedTuple):
    """The commit of a repository, and whether its files are changed. None for what is not known."""

    commit: str | None
    is_dirty: bool | None


def _repository_state(patience: Patience, directory: Path) -> _RepositoryState:
    """Return the state of the repository around a directory.

    Nothing is known without git, without a repository, and for the repository of another user,
    which git refuses. Only the commit is known if git would have to run a program of the repository
    to find changed files.
    """
    # Change nothing, and start no program that the configuration of the repository names.
    settings = _as_options(_NO_PROGRAMS)
    git = ("git", "-C", str(directory), "--no-optional-locks", *settings)
    commit = patience.answer(*git, "rev-parse", "HEAD").strip()
    if not _COMMIT.fullmatch(commit):
        return _RepositoryState(commit=None, is_dirty=None)
    commit_alone = _RepositoryState(commit, is_dirty=None)
    top = patience.answer(*git, "rev-parse", "--show-toplevel").removesuffix("\n")
    # Filters change files between a repository and its directory. They are switched off, because
    # they are programs of the repository. So files are compared without them.
    output = patience.output(*git, "config", "--null", "--name-only", "--get-regexp", r"^filter\.")
    # The status 1 means that there are no filters.
    if not top or output is None or output.status not in (0, 1):
        return commit_alone
    # ``filter.lfs.clean`` is a setting of ``filter.lfs``.
    setting_names = filter(None, output.text.split("\0"))
    filter_names = {name.rpartition(".")[0] for name in setting_names}
    # An option cannot switch off a filter with such characters in its name.
    has_filter_left = any(map(_NOT_IN_OPTION.search, filter_names))
    if has_filter_left:
        return commit_alone
    for filter_name in sorted(filter_names):
        no_filter = [f"{filter_name}.{setting}" for setting in _NO_FILTER]
        settings += _as_options(no_filter)
    git_without_filters = ("git", "-C", top, "--no-optional-locks", *settings)
    is_dirty = _is_dirty(patience, git_without_filters, has_filters=bool(filter_names))
    return _RepositoryState(commit, is_dirty)


def _as_options(settings: Iterable[str]) -> list[str]:
    """Return ``-c SETTING`` for each setting of git."""
    options: list[str] = []
    for setting in settings:
        options += ("-c", setting)
    return options


def _is_dirty(
    patience: Patience, git_without_filters: Sequence[str], *, has_filters: bool
) -> bool | None:
    """Return whether a file of a repository is changed.

    With its filter switched off, an unchanged file may look different. So None is returned if all
    different files have a filter, or if git gives no answer.
    """
    # In a submodule, git would use the configuration of the submodule, with programs that are not
    # switched off. So git only compares the commit of a submodule, not its files.
    options = ("--porcelain", "-z", "--untracked-files=no", "--no-renames")
    answer = patience.output(*git_without_filters, "status", *options, "--ignore-submodules=dirty")
    if answer is None or answer.status != 0:
        return None
    # Two letters and a space are before each path.
    lines = filter(None, answer.text.split("\0"))
    different_paths = [line[3:] for line in lines]
    if not different_paths or not has_filters:
        return bool(different_paths)
    # A command has a limited length. One file without a filter is enough for an answer.
    checked_paths = different_paths[:_MAX_CHANGED_FILES]
    question = ("check-attr", "-z", "filter", "--", *checked_paths)
    attributes = patience.output(*git_without_filters, *question)
    if attributes is None or attributes.status != 0:
        return None
    # For each file, the answer has the path, the name of the attribute, and its value.
    filters_of_files = set(attributes.text.split("\0")[2::3])
    has_file_without_filter = not filters_of_files.isdisjoint({"unspecified", "unset"})
    return True if has_file_without_filter else None


@dataclass(frozen=True)
class Place:
    """Where the files of a capture are: its name with its directories, and its node."""

    name: str
    node_rank: int = 0
    n_nodes: int = 1

    def file(self, ending: str = SIDECAR_SUFFIX) -> Path:
        """Return the path of the sidecar, or of another file of this node."""
        node = f".node{self.node_rank}" if self.n_nodes > 1 else ""
        return Path(f"{self.name}{node}{ending}")


def sidecar_document(
    place: Place,
    command: Sequence[str],
    ranks: Iterable[CapturedRank] = (),
    programs: Mapping[int, Program] | None = None,
    *,
    surroundings: Surroundings,
    captured_at: datetime | None = None,
    environment: Mapping[str, str] | None = None,
    key: HashKey | None = None,
    **facts: Any,  # noqa: ANN401 - of the document, as they are
) -> dict[str, Any]:
    """Return the contents of a sidecar, after a job has ended on this node. Nothing is written.

    `ranks` are those of this node, and `programs` has what their programs reported, by rank. A pid
    is that of the training program, never that of nsys. If the pids of a sidecar are not in the
    reports, the analysis takes the sidecar for that of another capture.

    Time, environment and key default to those of this process. The facts are ``world_size``,
    ``nsys_version``, ``trace``, ``capture_range`` and ``ended_by``. The last one is ``linger`` (the
    reports were complete), ``exit`` (the program hung while it exited), ``timeout``, ``interrupt``,
    or None.
    """
    key = key or hash_key()
    programs = programs or {}
    environment = os.environ if environment is None else environment
    by_rank = {rank.rank: rank for rank in ranks}
    rows = _ranks(by_rank, programs)
    command_words = [decoded(word) for word in command]
    all_facts = _machine_facts(surroundings, programs) | facts
    # `recorded_command` knows by the option which words it may record. The document has the values
    # without the option.
    trace_option = ["--trace", *facts.get("trace", ())]
    recorded_trace = recorded_command(trace_option, key)[1:]
    document = _identity(place, captured_at or datetime.now(UTC))
    document["command"] = _command(command_words, key)
    document["hash_key"] = key.key_id
    document["node_rank"] = place.node_rank
    document["n_nodes"] = place.n_nodes
    document |= _shaped_facts(all_facts)
    document["ranks"] = [asdict(row) for row in rows]
    document["trace"] = recorded_trace
    document["topology_file"] = _topology_file(place)
    document["nccl_log_files"] = _logs(place, rows, surroundings.host)
    document["step_pattern"] = _shaped(_STEPS, _common(programs, "step_pattern"))
    document["phase_names"] = _usual_phase_names(programs)
    document["environment"] = recorded_environment(environment, key)
    return document


def _identity(place: Place, captured_at: datetime) -> dict[str, Any]:
    """Return the versions of a sidecar, and the name and time of its capture."""
    name = _text(Path(place.name).name)
    captured_at_utc = captured_at.astimezone(UTC)
    return {
        "capture_version": CAPTURE_VERSION,
        "tool_version": __version__,
        "name": _shaped(CAPTURE_NAME, name),
        "captured_at_utc": f"{captured_at_utc:%Y-%m-%dT%H:%M:%SZ}",
    }


def _topology_file(place: Place) -> str | None:
    """Return the name of the file with the topology of this node; None if there is no file."""
    file = place.file(TOPOLOGY_SUFFIX)
    return decoded(file.name) if file.is_file() else None


def _machine_facts(surroundings: Surroundings, programs: Mapping[int, Program]) -> dict[str, Any]:
    """Return the facts about this machine, without its topology."""
    facts = asdict(surroundings)
    # The topology has its own file.
    del facts["topology"]
    for name in ("cuda_version", "torch_version", "nccl_version"):
        # The training programs may have used another installation than this process finds. If they
        # agree on a version, it counts.
        version_of_programs = _common(programs, name)
        if version_of_programs:
            facts[name] = version_of_programs
    return facts


def _usual_phase_names(programs: Mapping[int, Program]) -> list[str]:
    """Return the phases of the programs that have a name in `_USUAL_PHASES`.

    They are in order of first use. Other names are words of the program, and stay out of the
    sidecar.
    """
    usual_names = _USUAL_PHASES.split()
    # A dict keeps the order, and has each name once.
    names: dict[str, None] = {}
    for program in programs.values():
        names |= dict.fromkeys(map(_text, program.phase_names))
    return [name for name in names if name in usual_names]


def _shaped_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return facts with None instead of a version or a host name that does not look like one."""
    shaped = dict(facts)
    for name, fact in facts.items():
        if name.endswith("_version"):
            shaped[name] = _shaped(VERSION, fact)
        elif name == "host":
            shaped[name] = _shaped(HOST_NAME, fact)
    return shaped


def _shaped(shape: re.Pattern[str], text: str | None) -> str | None:
    """Return a text that looks as it must, otherwise None."""
    return text if text and shape.fullmatch(text) else None


def _ranks(
    by_rank: Mapping[int, CapturedRank], programs: Mapping[int, Program]
) -> list[CapturedRank]:
    """Return one row per rank, in order of ranks, completed by what its training program told.

    `by_rank` has the rows that the supervisors of the ranks have written.
    """
    rows = []
    for rank in sorted({*by_rank, *programs}):
        row = by_rank.get(rank, CapturedRank(rank))
        program = programs.get(rank, Program())
        # The program knows its pid best, and the supervisor the local rank.
        pid = row.pid if program.pid is None else program.pid
        local_rank = program.local_rank if row.local_rank is None else row.local_rank
        gpu_name = _text(row.gpu_name or program.gpu_name)
        report = _text(PurePath(row.report or "").name)
        completed_row = replace(
            row,
            pid=pid,
            local_rank=local_rank,
            problem=_our_sentences(row.problem),
            gpu_name=_shaped(GPU_NAME, gpu_name),
            report=report or None,
            work_per_step=_work(program),
            memory=_memory(program),
        )
        rows.append(completed_row)
    return rows


def _our_sentences(problem: str | None) -> str | None:
    """Return the sentences of a problem that are ours, because those of nsys may quote secrets.

    None without a problem.
    """
    if not problem:
        return None
    sentences = dict.fromkeys(_PROBLEMS.findall(problem))
    return "; ".join(sentences) or "its capture failed"


def _work(program: Program) -> WorkPerStep | None:
    """Return what a step works on, None if the program counted nothing."""
    work = WorkPerStep(
        tokens=_count(program.tokens_per_step, least=1),
        samples=_count(program.samples_per_step, least=1),
        flops=_count(program.flops_per_step, least=1),
    )
    return None if work == WorkPerStep() else work


def _memory(program: Program) -> MemoryPeaks | None:
    """Return the peaks of the allocator, None if torch did not tell them."""
    memory = MemoryPeaks(
        peak_allocated_bytes=_count(program.peak_allocated_bytes),
        peak_reserved_bytes=_count(program.peak_reserved_bytes),
        allocator_retries=_count(program.allocator_retries),
    )
    return None if memory == MemoryPeaks() else memory


def _count(value: int | None, least: int = 0) -> int | None:
    """Return a count of a program, None if it is not known or impossible."""
    if value is None:
        return None
    is_possible = least <= value <= MAX_COUNT
    return value if is_possible else None


def _common(programs: Mapping[int, Program], name: str) -> str | None:
    """Return a fact on which all programs that know it agree."""
    facts = [getattr(program, name) for program in programs.values()]
    texts = {_text(fact) for fact in facts if fact}
    return texts.pop() if len(texts) == 1 else None


def write_sidecar(path: Path, document: Mapping[str, Any] | str) -> None:
    """Write a sidecar, or a text as it is, to a file; an OutputError if this is not possible.

    A reader of the file sees the old file or the complete new one.
    """
    text = document
    if not isinstance(text, str):
        text = json.dumps(document, indent=1, allow_nan=False) + "\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with claimed_file(path.parent) as draft:
            draft.write_text(text, encoding="utf-8", errors="replace")
            make_readable(draft)
            draft.replace(path)
    except OSError as error:
        problem = f"cannot be written: {error.strerror or error}"
        raise OutputError(decoded(str(path)), problem, fix="choose another name") from error


def _command(words: Sequence[str], key: HashKey) -> list[str]:
    """Return the words of a command that a sidecar contains.

    After ``env``, variables (NAME=VALUE) are treated as those of an environment. If none of them
    may be recorded, ``env`` is left out too.
    """
    if words[:1] != ["env"]:
        return recorded_command(words, key)
    program_at = 1
    while program_at < len(words) and _ASSIGNMENT.match(words[program_at]):
        program_at += 1
    variables = dict(word.split("=", 1) for word in words[1:program_at])
    recorded_variables = recorded_environment(variables, key)
    assignments = [f"{name}={value}" for name, value in recorded_variables.items()]
    if assignments:
        assignments.insert(0, "env")
    recorded_program = recorded_command(words[program_at:], key)
    return [*assignments, *recorded_program]


def _logs(place: Place, rows: Sequence[CapturedRank], host: str | None) -> list[str]:
    """Return the sorted names of NCCL's logs beside the reports of a capture.

    These are the logs of the ranks' processes. If none of the logs is of a rank, all are returned.
    With several nodes, each node considers only the logs of its own host, if that is known.
    """
    place_path = Path(place.name)
    name = re.escape(place_path.name)
    log_name = re.compile(rf"{name}(?:\.node[0-9]+)?\.nccl\.(?P<host>.+?)\.(?P<pid>[0-9]+)\.log")
    is_host_checked = place.n_nodes > 1 and bool(host)
    pid_by_log: dict[str, int] = {}
    with contextlib.suppress(OSError):
        for path in place_path.parent.iterdir():
            match = log_name.fullmatch(path.name)
            if match is None:
                continue
            is_of_this_host = _short_host(match["host"]) == _short_host(host or "")
            if is_of_this_host or not is_host_checked:
                pid_by_log[decoded(path.name)] = int(match["pid"])
    pids_of_ranks = {row.pid for row in rows}
    logs_of_ranks = [log for log, pid in pid_by_log.items() if pid in pids_of_ranks]
    all_logs = list(pid_by_log)
    return sorted(logs_of_ranks or all_logs)[:_MAX_LOGS]


def _text(value: object) -> str:
    """Return a text without control characters and of limited length; empty for other values."""
    if not isinstance(value, str):
        return ""
    text = printable(decoded(value))
    return text[:_MAX_TEXT_CHARACTERS]


def _short_host(host: str) -> str:
    """Return the name of a host without its domain, as NCCL writes %h."""
    short, _, _ = host.partition(".")
    return short
