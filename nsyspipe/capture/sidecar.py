"""What a capture ran on, and its sidecar ``NAME.capture.json``, which says how, where and by what its reports were made.

Of the command line and the environment it holds what `command_words` lets stand, and hashes of the
rest.
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
from typing import Any

from nsyspipe.capture.rank import NOT_ENDED, NOT_MADE, NOT_STARTED, NOT_WRITTEN, NOTHING
from nsyspipe.capture.status import Program
from nsyspipe.errors import OutputError
from nsyspipe.model.captured import CAPTURE_VERSION, SIDECAR_SUFFIX, CapturedRank
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

_TOTAL_S = 12.0
_LONGEST_NAME = 100
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
# Nothing of a repository that git would start, or fetch from where a repository says.
_NO_PROGRAMS = (
    *("core.fsmonitor=false", "core.hooksPath=/dev/null", "safe.bareRepository=explicit"),
    *(
        f"protocol{one}.allow=never"
        for one in ("", ".ext", ".file", ".git", ".ssh", ".http", ".https")
    ),
)
_NO_FILTER = ("clean=", "smudge=", "process=", "required=false")
_NO_SETTING = re.compile(r"[=\n\ufffd]")
_MOST_CHANGES = 1000
TOPOLOGY_SUFFIX = ".topo.txt"
_LONGEST_TEXT = 500
_MOST_LOGS = 4096
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z_0-9]*=", re.ASCII)
_NOT_ENDED = NOT_ENDED.format(seconds="[0-9]{1,9}")
_EPOCHS = "(?: in one epoch| in epochs of [0-9]+)?"
# Sentences of ours that a sidecar may say of a rank; what nsys said besides may quote the command,
# and is left out.
_PROBLEMS = re.compile(
    rf"{NOTHING}|{NOT_STARTED}|{NOT_WRITTEN}|{NOT_MADE}|{_NOT_ENDED}"
    rf"|[0-9]+ of [0-9]+ steps were captured: its loop ended after [0-9]+ steps?{_EPOCHS}, the "
    r"warm-up is [0-9]+"
)
# Names of phases that say nothing of anybody; others are the program's own words, and stand in the
# report alone.
_PHASES = (
    "data forward backward optimizer step loss zero_grad zero-grad eval validation val train "
    "checkpoint save load h2d "
    "to_device all_reduce allreduce reduce sync clip clip_grad scheduler lr_scheduler warmup"
)
_STEPS = re.compile(r"\^[A-Za-z]{1,20}[ _#]?\[0-9\]\+\$", re.ASCII)


@dataclass(frozen=True)
class Surroundings:
    """What this host and its Python environment are; None for what is not known. Untracked files are not dirty."""

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
    total_s: float = _TOTAL_S,
) -> Surroundings:
    """Look at this machine for about `total_s` seconds, and at the repository of the training program, if known."""
    patience = Patience(total_s, search_path)
    there, driver = gpus(patience)
    links = topology(patience) if there else None
    commit, is_dirty = (None, None) if directory is None else _commit(patience, directory)
    versions = (*torch_versions(), nccl_version(root), platform.python_version())
    host = printable(platform.node())[:_LONGEST_NAME] or None  # as nsys records it
    return Surroundings(host, there, driver, links, *versions, commit, is_dirty)


def program_directory(command: Sequence[str]) -> Path | None:
    """Return the directory of the first existing Python file that a command names, but for what starts our modules; or None."""
    programs = (
        word
        for word in command
        if word.endswith(".py") and not word.endswith("/launchers/run_module.py")
    )
    program = next(filter(os.path.isfile, programs), None)  # False for a word that is no path
    return None if program is None else Path(program).absolute().parent


def _commit(patience: Patience, directory: Path) -> tuple[str | None, bool | None]:
    """Ask git; no git, no repository, and one of somebody else's (which git refuses) are all None."""
    # Changes nothing, and starts no program that the repository's configuration names.
    settings = [word for one in _NO_PROGRAMS for word in ("-c", one)]
    here = ("git", "-C", str(directory), "--no-optional-locks", *settings)
    commit = patience.answer(*here, "rev-parse", "HEAD").strip()
    if not _COMMIT.fullmatch(commit):
        return None, None
    top = patience.answer(*here, "rev-parse", "--show-toplevel").removesuffix("\n")
    # What changes files between a repository and its directory is switched off: a file is compared
    # as it is.
    found = patience.output(*here, "config", "--null", "--name-only", "--get-regexp", r"^filter\.")
    if not top or found is None or found.status not in (0, 1):  # 1: there are no filters
        return commit, None
    filters = {name.rpartition(".")[0] for name in found.text.split("\0") if name}
    if any(map(_NO_SETTING.search, filters)):
        return commit, None
    for one in sorted(filters):
        settings += [word for what in _NO_FILTER for word in ("-c", f"{one}.{what}")]
    return commit, _is_dirty(
        patience, ("git", "-C", top, "--no-optional-locks", *settings), has_filters=bool(filters)
    )


def _is_dirty(patience: Patience, there: Sequence[str], *, has_filters: bool) -> bool | None:
    """Tell whether a file is changed; None if all that differ have a filter, which nobody asked."""
    # A submodule is asked for its commit only: git would start in it with that repository's own
    # configuration.
    options = ("--porcelain", "-z", "--untracked-files=no", "--no-renames")
    found = patience.output(*there, "status", *options, "--ignore-submodules=dirty")
    if found is None or found.status != 0:
        return None
    changed = [line[3:] for line in found.text.split("\0") if line]
    if not changed or not has_filters:
        return bool(changed)
    told = patience.output(*there, "check-attr", "-z", "filter", "--", *changed[:_MOST_CHANGES])
    is_without = (
        told is not None
        and told.status == 0
        and {"unspecified", "unset"} & set(told.text.split("\0")[2::3])
    )
    return True if is_without else None


@dataclass(frozen=True)
class Place:
    """Where a capture's files go: its name as the launcher got it, with its directories, and its node, if there are several."""

    name: str
    node_rank: int = 0
    n_nodes: int = 1

    def file(self, ending: str = SIDECAR_SUFFIX) -> Path:
        """Return the sidecar, or another file of this node."""
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
    """Collect what a sidecar says, once the job has ended, on the node that ran it; nothing is written.

    The ranks are this node's; a pid is the training program's own, never nsys's, or None: the
    analysis takes a sidecar whose pids are not in the reports for another capture's. Time,
    environment and key are this process's if left out. The facts are ``world_size``,
    ``nsys_version``, ``trace``, ``capture_range`` and ``ended_by``: ``linger`` (its reports were
    whole), ``exit`` (it hung while it exited), ``timeout``, ``interrupt``, or None.
    """
    key = key or hash_key()
    programs = programs or {}
    around = {name: fact for name, fact in asdict(surroundings).items() if name != "topology"}
    # What the training program saw goes before what this process finds installed.
    versions = {
        name: _common(programs, name) for name in ("cuda_version", "torch_version", "nccl_version")
    }
    rows = _ranks({rank.rank: rank for rank in ranks}, programs)
    topology_file = place.file(TOPOLOGY_SUFFIX)
    phases = [
        _text(phase_name) for program in programs.values() for phase_name in program.phase_names
    ]
    pattern = _common(programs, "step_pattern")
    return {
        "capture_version": CAPTURE_VERSION,
        "tool_version": __version__,
        "name": _shaped(CAPTURE_NAME, _text(Path(place.name).name)),
        "captured_at_utc": f"{(captured_at or datetime.now(UTC)).astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}",
        "command": _command([decoded(word) for word in command], key),
        "hash_key": key.key_id,
        "node_rank": place.node_rank,
        "n_nodes": place.n_nodes,
        **_shaped_facts(around | {name: said for name, said in versions.items() if said} | facts),
        "ranks": [asdict(row) for row in rows],
        "trace": recorded_command(["--trace", *facts.get("trace", ())], key)[1:],
        "topology_file": decoded(topology_file.name) if topology_file.is_file() else None,
        "nccl_log_files": _logs(place, rows, surroundings.host),
        "step_pattern": pattern if pattern and _STEPS.fullmatch(pattern) else None,
        "phase_names": list(dict.fromkeys(phase for phase in phases if phase in _PHASES.split())),
        "environment": recorded_environment(
            os.environ if environment is None else environment, key
        ),
    }


def _shaped_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return facts with None in place of a version or a host name that no reader would take for one."""
    shapes = {name: VERSION for name in facts if name.endswith("_version")} | {"host": HOST_NAME}
    return {
        name: _shaped(shapes[name], fact) if name in shapes else fact
        for name, fact in facts.items()
    }


def _shaped(shape: re.Pattern[str], text: str | None) -> str | None:
    return text if text and shape.fullmatch(text) else None


def _ranks(
    by_rank: Mapping[int, CapturedRank], programs: Mapping[int, Program]
) -> list[CapturedRank]:
    """Return one row per rank, by rank: what the caller knows, and what only the training program does."""
    rows = []
    for rank in sorted({*by_rank, *programs}):
        row = by_rank.get(rank, CapturedRank(rank))
        said = programs.get(rank, Program())
        own_problems = "; ".join(dict.fromkeys(_PROBLEMS.findall(row.problem or "")))
        pid = row.pid if said.pid is None else said.pid
        local_rank = said.local_rank if row.local_rank is None else row.local_rank
        gpu_name = _shaped(GPU_NAME, _text(row.gpu_name or said.gpu_name))
        report = _text(PurePath(row.report or "").name) or None
        problem = (own_problems or "its capture failed") if row.problem else None
        rows.append(
            replace(
                row,
                pid=pid,
                local_rank=local_rank,
                gpu_name=gpu_name,
                report=report,
                problem=problem,
            )
        )
    return rows


def _common(programs: Mapping[int, Program], name: str) -> str | None:
    texts = {_text(text) for program in programs.values() if (text := getattr(program, name))}
    return texts.pop() if len(texts) == 1 else None


def write_sidecar(path: Path, document: Mapping[str, Any] | str) -> None:
    """Write a sidecar, or a text beside it; a reader sees the old one or the whole new one. OutputError if it cannot be written."""
    text = (
        document
        if isinstance(document, str)
        else json.dumps(document, indent=1, allow_nan=False) + "\n"
    )
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
    """Return what is written of a command; of variables before it those that are written of an environment."""
    if words[:1] != ["env"]:
        return recorded_command(words, key)
    at = next((n for n, word in enumerate(words) if n and not _ASSIGNMENT.match(word)), len(words))
    set_here = dict(word.split("=", 1) for word in words[1:at])
    kept = [f"{name}={value}" for name, value in recorded_environment(set_here, key).items()]
    return [*(["env"] if kept else []), *kept, *recorded_command(words[at:], key)]


def _logs(place: Place, rows: Sequence[CapturedRank], host: str | None) -> list[str]:
    """Return the names of NCCL's logs, those of the ranks' processes if there are any; each node lists its own."""
    base = re.escape(Path(place.name).name)
    folder = Path(place.name).parent
    short = host.partition(".")[0] if host and place.n_nodes > 1 else None  # as NCCL writes %h
    named = re.compile(rf"{base}(?:\.node[0-9]+)?\.nccl\.(.+?)\.([0-9]+)\.log")
    by_pid: dict[str, int] = {}
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            match = named.fullmatch(path.name)
            if match and short in (
                None,
                match[1].partition(".")[0],
            ):
                by_pid[decoded(path.name)] = int(match[2])
    pids = {row.pid for row in rows}
    return sorted([log for log, pid in by_pid.items() if pid in pids] or by_pid)[:_MOST_LOGS]


def _text(value: object) -> str:
    return printable(decoded(value))[:_LONGEST_TEXT] if isinstance(value, str) else ""
