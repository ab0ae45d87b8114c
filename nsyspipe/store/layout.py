"""Where files lie in a store, which names a run may have, and which runs a store has.

Every start of the program asks for this, so nothing here takes long.

::

    STORE/steps/run_id=ID/part-0.parquet            plain files, which are all that readers need
    STORE/events/run_id=ID/rank=0/part-0.parquet
    STORE/.nsyspipe/staging/UNIQUE.ID/...           what a writer has not committed yet
    STORE/.nsyspipe/switch/ID/steps.parquet, ...    committed, but not in place yet
    STORE/.nsyspipe/switch/ID/files                 the names of all files that the run then has
    STORE/.nsyspipe/index                           the rows of `runs` of all runs, each with a
                                                    digest of the file that it was read from
    STORE/.nsyspipe/lock

A copy of any part of a store can be read, too.

A run has a file in many tables, and no single rename can publish them together. So a writer puts
all of them into one directory, and renaming that directory to ``switch/ID`` is the moment at which
the run is replaced. After it, each file is renamed into its place, ``runs`` last, which takes some
milliseconds. If a writer is killed meanwhile, the next writer does the rest.

A reader that uses `nsyspipe` looks into ``switch`` first, and finds the names and digests of the
files of a run in the run's own row. Such a reader gets the old run or the new one, never some
tables of each. A reader of the plain files gets whole files, but may find old tables next to new
ones while a writer renames them. After a writer was killed at that moment, this lasts until the
next run is saved.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import re
import shlex
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import BinaryIO, NamedTuple, Self

from nsyspipe.errors import DatasetError, OptionError, nearest_name
from nsyspipe.model.names import RUN_DIRECTORY, printable

FILE = "a file"
DIRECTORY = "a directory"
LINK = "a link"
_KINDS = {
    stat.S_IFREG: FILE,
    stat.S_IFDIR: DIRECTORY,
    stat.S_IFLNK: LINK,
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
}
# Never follow a link, and never wait for a writer of a FIFO.
_SAFE_OPEN_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
HIDDEN = ".nsyspipe"
SWITCH = "switch"
INDEX_FILE = "index"
PART = "part-0.parquet"
_SUFFIX = ".parquet"
RUNS_FILE = f"runs{_SUFFIX}"
_MAX_RUN_ID_LENGTH = 100
# The ids of runs that can be saved.
RUN_ID = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._+-]{{0,{_MAX_RUN_ID_LENGTH - 1}}}")
# The names that `file_name` makes.
FILE_NAME = re.compile(r"[a-z][a-z0-9_]*(-(0|[1-9][0-9]{0,9}))?\.parquet")
# DuckDB takes more texts for a date than Python does.
_DUCKDB_DATE = re.compile(r"[0-9]+-[0-9]+-[0-9]+|epoch", re.IGNORECASE)
_MAX_RUNS_IN_ERROR = 6
# An id that is less similar is no typing error. Ids of captures of one day are less similar.
_MIN_SIMILARITY_OF_IDS = 0.8


class NotPlainError(Exception):
    """A link or another unexpected thing stands where a store has a directory or a file."""

    def __init__(self, path: Path, actual: str, expected: str) -> None:
        self.path = path
        self.actual = actual
        self.expected = expected
        self.problem = f"is {actual}, where a store has {expected}"
        super().__init__(f"{path}: {self.problem}")

    def as_dataset_error(self) -> DatasetError:
        """Return the error for the user who reads the store."""
        return DatasetError(str(self.path), self.problem, fix=f"remove {self.path}")


@dataclass(frozen=True)
class Directory(contextlib.AbstractContextManager["Directory"]):
    """An open directory of a store, as a context.

    Links in the directory are never followed. A `NotPlainError` is raised for a link, and for
    anything else that is neither a directory nor an ordinary file.
    """

    fd: int
    # For messages only.
    path: Path

    @classmethod
    def at(cls, path: Path) -> Self:
        """Open a directory that the user named. Links in its path are followed."""
        return cls(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), path)

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)

    def names(self) -> list[str]:
        """Return the names in the directory, in no order."""
        return os.listdir(self.fd)  # noqa: PTH208 - by descriptor

    def require(self, name: str, kind: str) -> bool:
        """Return whether a name exists. Refuse one that is not of a kind: `FILE` or `DIRECTORY`."""
        try:
            mode = os.stat(name, dir_fd=self.fd, follow_symlinks=False).st_mode
        except (FileNotFoundError, NotADirectoryError):
            return False
        if _kind(mode) != kind:
            raise NotPlainError(self.path / name, _kind(mode), kind)
        return True

    def enter(self, name: str, *, make: bool = False) -> Directory:
        """Open a directory inside this one. With `make`, a missing one is made first."""
        try:
            fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | _SAFE_OPEN_FLAGS, dir_fd=self.fd)
        except FileNotFoundError:
            if not make:
                raise
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, dir_fd=self.fd)
            return self.enter(name)
        except OSError as error:
            if error.errno in (errno.ENOTDIR, errno.ELOOP):
                self.require(name, DIRECTORY)
            raise
        return Directory(fd, self.path / name)

    @contextlib.contextmanager
    def within(self, *names: str, make: bool = False) -> Iterator[Directory]:
        """Enter the named directories one after the other, and yield the last."""
        with contextlib.ExitStack() as opened:
            directory = self
            for name in names:
                directory = opened.enter_context(directory.enter(name, make=make))
            yield directory

    def open_file(self, name: str, flags: int = os.O_RDONLY) -> BinaryIO:
        """Open an ordinary file in the directory."""
        # Check first, because some devices take the opening itself for a request.
        self.require(name, FILE)
        try:
            fd = os.open(name, flags | _SAFE_OPEN_FLAGS, 0o666, dir_fd=self.fd)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise NotPlainError(self.path / name, LINK, FILE) from error
            raise
        kind = _kind(os.fstat(fd).st_mode)
        if kind != FILE:
            os.close(fd)
            raise NotPlainError(self.path / name, kind, FILE)
        return os.fdopen(fd, "wb" if flags & os.O_ACCMODE else "rb")

    def create(self, name: str) -> BinaryIO:
        """Make a new file in the directory, and open it for writing."""
        return self.open_file(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL)

    def remove_empty(self, *names: str) -> None:
        """Remove the directory at the end of a path of names, and its parents, while empty."""
        for n_names in range(len(names), 0, -1):
            parents = names[: n_names - 1]
            with (
                contextlib.suppress(OSError, NotPlainError),
                self.within(*parents) as parent,
            ):
                os.rmdir(names[n_names - 1], dir_fd=parent.fd)


def _kind(mode: int) -> str:
    return _KINDS.get(stat.S_IFMT(mode), "a device")


def file_name(table: str, rank: int | None = None) -> str:
    """Return the name of a table's file while the file is not in its place."""
    return f"{table}{_SUFFIX}" if rank is None else f"{table}-{rank}{_SUFFIX}"


def table_of_file(name: str) -> str | None:
    """Return the table that a file belongs to by its `file_name`; None for any other name."""
    from nsyspipe.model.schema import DATASET  # noqa: PLC0415 - heavy, and not needed to find a run

    table = name.removesuffix(_SUFFIX).partition("-")[0]
    return table if FILE_NAME.fullmatch(name) and table in DATASET else None


def published(name: str, run_id: str) -> Path:
    """Return the path in a store at which readers find a file of a run, by its `file_name`."""
    table, _, rank = name.removesuffix(_SUFFIX).partition("-")
    directory = Path(table, f"{RUN_DIRECTORY}{run_id}")
    if rank:
        directory /= f"rank={rank}"
    return directory / PART


def has_run(store: Path, run_id: str) -> bool:
    """Return whether a store has a run. Checks existence only: reading reports damage."""
    if not run_id or "/" in run_id or "\0" in run_id:
        return False
    # Look into `switch` first. A file leaves it only for its place, so in the other order a file
    # that moves in between would be in neither.
    if RUN_ID.fullmatch(run_id) and os.path.lexists(store / HIDDEN / SWITCH / run_id / RUNS_FILE):
        return True
    return os.path.lexists(store / published(RUNS_FILE, run_id))


def name_of_store(store: Path) -> str:
    """Return the name of a store's directory, with links resolved."""
    return Path(os.path.realpath(store)).name or "runs"


def run_ids(store: Path) -> Iterator[str]:
    """Yield the runs of a store, in no order.

    Without a store there are none. A store with links instead of directories is an error.
    """
    # First the runs in `switch`, then those in their places, as in `has_run`.
    switched = _names_in(store, HIDDEN, SWITCH)
    in_place = {
        name.removeprefix(RUN_DIRECTORY)
        for name in _names_in(store, "runs")
        if name.startswith(RUN_DIRECTORY)
    }
    for run_id in in_place.union(switched):
        if has_run(store, run_id):
            yield run_id


def _names_in(store: Path, *names: str) -> list[str]:
    try:
        with Directory.at(store) as top, top.within(*names) as directory:
            return directory.names()
    except NotPlainError as error:
        # A directory of another program may have anything called `runs`.
        if names == ("runs",):
            return []
        raise error.as_dataset_error() from error
    except (OSError, ValueError):
        return []


def check_run_id(run_id: str) -> None:
    """Raise an `OptionError` for an id that no run can have, with an id that works.

    No run can have an id that is not the name of a directory, or one that DuckDB, pandas, Polars or
    pyarrow would convert to a number or a date.
    """
    usable = run_id
    if not RUN_ID.fullmatch(run_id):
        usable = _as_directory_name(run_id)
        problem = (
            f"is not a valid directory name (up to {_MAX_RUN_ID_LENGTH} letters, digits and "
            ". _ + -, first a letter or digit)"
        )
    elif _is_number_or_date(run_id):
        problem = "looks like a number or a date, and DuckDB and pandas would convert it"
    else:
        return
    if _is_number_or_date(usable):
        usable = f"run-{usable}"[:_MAX_RUN_ID_LENGTH]
    raise OptionError(f"--run-id {run_id!r}", problem, fix=f"--run-id {usable}")


def _as_directory_name(text: str) -> str:
    """Return the most similar text that `RUN_ID` allows, which may still be a number."""
    with_dashes = re.sub(r"[^A-Za-z0-9._+-]+", "-", text).lstrip("._+-")
    return with_dashes[:_MAX_RUN_ID_LENGTH].rstrip("-.") or "1"


def _is_number_or_date(text: str) -> bool:
    for parse in (float, lambda number: int(number, 0), date.fromisoformat):
        with contextlib.suppress(ValueError):
            parse(text)
            return True
    return _DUCKDB_DATE.fullmatch(text) is not None


def is_saved(path: Path) -> bool:
    """Return whether a path is a store with runs, or the directory of one run in one table."""
    # A file is mostly a report, and a name with a zero byte exists nowhere. Both are left to the
    # reader of reports, which has the right message.
    if "\0" in str(path) or os.path.isfile(path):  # noqa: PTH113 - a name may be too long
        return False
    return is_one_run(path) or any(run_ids(path))


def is_one_run(path: Path) -> bool:
    """Return whether a path names one run: ``STORE:NAME``, or the run's directory in a table."""
    return _run_reference(path) is not None


class _RunReference(NamedTuple):
    """A store, and the name of one of its runs as the user wrote it."""

    store: Path
    # None: the user named the store only.
    name: str | None
    # The name is certainly the id of a run, and not perhaps a label.
    is_id: bool


@dataclass(frozen=True)
class _Choice:
    """The runs among which a user has to choose one."""

    # As the user wrote it.
    path: Path
    store: Path
    # Run id -> label, by time of capture. The label of a run that cannot be read is "".
    labels: Mapping[str, str]

    @property
    def ids(self) -> list[str]:
        return [*self.labels]

    def ids_with_label(self, label: str) -> list[str]:
        return [run_id for run_id in self.labels if self.labels[run_id] == label]

    def latest_runs_text(self) -> str:
        """Return the ids of the latest runs, each with its label, which tells more than an id."""
        texts = []
        for run_id, label in [*self.labels.items()][-_MAX_RUNS_IN_ERROR:]:
            has_own_label = label not in ("", run_id)
            texts.append(f"{run_id} ({label})" if has_own_label else run_id)
        text = ", ".join(texts)
        if len(self.labels) > _MAX_RUNS_IN_ERROR:
            text += f" and {len(self.labels) - _MAX_RUNS_IN_ERROR} more"
        return text

    def doctor_command(self) -> str:
        """Return the command that lists the runs, and what the command shows."""
        purpose = "lists its runs" if all(self.labels.values()) else "shows what is wrong"
        return f"nsyspipe doctor {shlex.quote(str(self.store))}, which {purpose}"

    def no_such_label(self, label: str) -> OptionError:
        """Return the error of a label that no run has, where there are runs."""
        known_labels = {*self.labels.values()} - {""}
        suggestion = nearest_name(label, known_labels) or self.labels[self.ids[-1]]
        fix = self.doctor_command()
        if suggestion:
            fix = f"--label {shlex.quote(suggestion)}, or {fix}"
        return OptionError(
            f"--label {label}",
            f"no run of {self.path} has that label",
            found=self.latest_runs_text(),
            fix=fix,
        )

    def several_runs(self) -> OptionError:
        """Return the error of a store where the user has to name one of the runs."""
        fix = None
        if self.ids:
            # A run with its operations fits every command, so the latest of these is suggested.
            with_operations = [
                run_id
                for run_id in self.ids
                if (self.store / "events" / f"{RUN_DIRECTORY}{run_id}").is_dir()
            ]
            suggestion = [*self.ids, *with_operations][-1]
            fix = f"{argument_of(self.store, suggestion)}, or {self.doctor_command()}"
        return OptionError(
            str(self.path),
            f"contains {len(self.ids)} runs, choose one",
            found=self.latest_runs_text(),
            fix=fix,
        )

    def no_such_run_id(self, run_id: str) -> OptionError:
        """Return the error of a ``--run-id`` that the store does not have."""
        nearest = self._nearest(run_id)
        if nearest is None:
            value = f"{['ID', *self.ids][-1]}, or {self.doctor_command()}"
        elif nearest in self.labels:
            value = nearest
        else:
            # A label is no value of --run-id, but the id of its latest run is.
            value = self._latest_id_by_label()[nearest]
        return OptionError(
            f"--run-id {run_id}",
            f"{self.path} has no such run",
            found=self.latest_runs_text(),
            fix=f"--run-id {value}",
        )

    def no_such_run(self, name: str) -> OptionError:
        """Return the error of a path ``STORE:NAME`` where no run has that id or label."""
        nearest = self._nearest(name)
        fix = self.doctor_command()
        if nearest is not None:
            fix = f"{argument_of(self.store, nearest)}, or {fix}"
        return OptionError(
            str(self.path), "has no such run", found=self.latest_runs_text(), fix=fix
        )

    def _latest_id_by_label(self) -> dict[str, str]:
        return {label: run_id for run_id, label in self.labels.items() if label}

    def _nearest(self, name: str) -> str | None:
        nearest_label = nearest_name(name, self._latest_id_by_label())
        return nearest_label or nearest_name(name, self.ids, cutoff=_MIN_SIMILARITY_OF_IDS)


def find_saved(path: Path, run_id: str | None = None, label: str | None = None) -> tuple[Path, str]:
    """Return the store and the id of the one run that the user means.

    A path may end in ``:NAME``, the id of a run or a label. A label means its latest run, both in
    a path and as `label`, which counts only if no run is named. An `OptionError` is raised if the
    run does not exist, if the store has several runs and none is named, and if NAME is the id of
    one run and the label of another.
    """
    reference = _run_reference(path) or _RunReference(path, None, is_id=False)
    store = reference.store
    named_id = _named_run(reference)
    wanted_id = named_id if run_id is None else run_id
    is_free = named_id in (None, wanted_id)
    if wanted_id is not None and is_free and has_run(store, wanted_id):
        return store, wanted_id
    labels = labels_by_time(store)
    if named_id is not None and has_run(store, named_id):
        labels = {named_id: labels.get(named_id, "")}
    choice = _Choice(path, store, labels)
    if run_id is not None:
        raise choice.no_such_run_id(run_id)
    if named_id is not None:
        raise choice.no_such_run(named_id)
    return store, _run_without_a_name(choice, label)


def _run_without_a_name(choice: _Choice, label: str | None) -> str:
    """Return the latest run of a label, and without a label the only run of the store."""
    if label:
        candidates = choice.ids_with_label(label)
        if not candidates and choice.ids:
            raise choice.no_such_label(label)
    else:
        candidates = choice.ids if len(choice.ids) == 1 else []
    if not candidates:
        raise choice.several_runs()
    return candidates[-1]


def _named_run(reference: _RunReference) -> str | None:
    """Return the id of the run that a name means, and the name if no run has it."""
    store, name, is_id = reference
    if not name or is_id:
        return name
    of_label = [run_id for run_id, label in labels_by_time(store).items() if label == name]
    latest_of_label = of_label[-1] if of_label else None
    if not has_run(store, name):
        return latest_of_label or name
    if latest_of_label is not None and latest_of_label != name:
        fix = (
            f"{shlex.quote(place_of(store, name))}, that run, or "
            f"{argument_of(store, latest_of_label)}, the label's latest"
        )
        raise OptionError(
            f"{store}:{name}", "is the ID of a run and the label of other runs", fix=fix
        )
    return name


def place_of(store: str | Path, run_id: str) -> str:
    """Return the path that names one run of a store by its id, whatever labels there are."""
    return str(Path(store, published(RUNS_FILE, run_id).parent))


def argument_of(store: Path, name: str) -> str:
    """Return how one run of a store is named in a shell, by its id or label."""
    return shlex.quote(f"{store}:{name}")


def labels_by_time(store: Path) -> dict[str, str]:
    """Return the label of each run of a store, in order of the time of capture, then of the id.

    The label of a run that cannot be read is ``""``.
    """
    if not any(run_ids(store)):
        return {}
    from nsyspipe.store.index import listed_runs  # noqa: PLC0415 - it takes long

    stored = listed_runs(store)
    labels = dict.fromkeys((run.run_id for run in stored.unreadable), "")
    readable = zip(stored.runs["run_id"].to_pylist(), stored.runs["label"].to_pylist(), strict=True)
    return labels | {run_id: printable(label) for run_id, label in readable}


class LabelRuns(NamedTuple):
    """The runs of a label that a comparison uses, and those that it leaves out."""

    paths: list[str]
    # Runs of some ranks only, where the label also has runs of all ranks.
    partial_run_ids: list[str]


@dataclass(frozen=True)
class _LabelComparison:
    """What ``--against LABEL`` compares: the runs of two labels of a store."""

    # The store as the user wrote it.
    place: str
    baseline: str
    # Label -> run id -> whether the run has all ranks.
    runs: Mapping[str, Mapping[str, bool]]

    @property
    def option(self) -> str:
        return f"--against {self.baseline}"

    @property
    def other_labels(self) -> list[str]:
        return [label for label in self.runs if label != self.baseline]

    def counts_text(self) -> str:
        texts = []
        for label, ids in self.runs.items():
            noun = "run" if len(ids) == 1 else "runs"
            texts.append(f"{label} ({len(ids)} {noun})")
        return ", ".join(texts)

    def command_with(self, candidate: str) -> str:
        start = shlex.join(["nsyspipe", "diff", "--against", self.baseline, self.place])
        return f"{start} {shlex.quote(candidate)}"

    def command_with_first_label(self) -> str:
        return self.command_with([*self.other_labels, "REPORTS"][0])

    def check_baseline(self) -> None:
        """Raise an `OptionError` if no run has the label of the baseline."""
        if self.baseline in self.runs:
            return
        if any(self.baseline in ids for ids in self.runs.values()):
            fix = f"nsyspipe diff {argument_of(Path(self.place), self.baseline)} CANDIDATE"
            problem = "is the id of a run, not a label"
        else:
            suggestion = nearest_name(self.baseline, self.runs) or next(iter(self.runs))
            fix = f"--against {shlex.quote(suggestion)}"
            problem = f"{self.place} has no run of that label"
        raise OptionError(self.option, problem, found=self.counts_text(), fix=fix)

    def check_candidate(self, name: str) -> None:
        """Raise an `OptionError` if a candidate can be neither another label nor a place."""
        exists = os.path.lexists(name)
        if name == self.baseline and not exists:
            raise OptionError(
                name,
                "is the label of the baseline, too",
                found=self.counts_text(),
                fix=self.command_with_first_label(),
            )
        if not name or name in self.runs:
            return
        has_path_letters = os.sep in name or "=" in name
        if exists or has_path_letters or glob.has_magic(name) or is_one_run(Path(name)):
            return
        suggestion = nearest_name(name, self.other_labels)
        fix = self.command_with(suggestion) if suggestion else self.command_with_first_label()
        raise OptionError(
            name,
            f"is not a label of {self.place}, a file or a directory",
            found=self.counts_text(),
            fix=fix,
        )

    def only_other_label(self) -> str:
        """Return the label of the candidate where the user did not name one."""
        if len(self.other_labels) != 1:
            amount = "several other labels" if self.other_labels else "no other label"
            raise OptionError(
                self.option,
                f"{self.place} has {amount}, and the candidate is missing",
                found=self.counts_text(),
                fix=self.command_with_first_label(),
            )
        return self.other_labels[0]

    def runs_of(self, label: str) -> LabelRuns:
        ids = self.runs[label]
        partial = []
        if any(ids.values()):
            partial = [run_id for run_id, has_all_ranks in ids.items() if not has_all_ranks]
        paths = [place_of(self.place, run_id) for run_id in ids if run_id not in partial]
        return LabelRuns(paths, partial)


def runs_by_label(
    place: str, label: str, candidates: Sequence[object] = ()
) -> dict[str, LabelRuns]:
    """Return the runs of the baseline's label, and those of the candidate's label if it is one.

    `candidates` is what the user named as the candidate. If it is empty, the candidate is the only
    other label of the store. If it is no label of the store, only the baseline is returned. An
    `OptionError` says which labels there are.
    """
    from nsyspipe.store.index import listed_runs  # noqa: PLC0415 - it takes long

    store = Path(place)
    if not is_saved(store) or is_one_run(store):
        raise OptionError(
            f"--against {label}",
            f"{place} is not a run store",
            fix=_command_with_a_store(store, label),
        )
    stored = listed_runs(store)
    if stored.unreadable:
        first = argument_of(store, stored.unreadable[0].run_id)
        problem = f"{first} cannot be read, so its label is unknown"
        raise OptionError(f"--against {label}", problem, fix="remove this run")
    runs = dict[str, dict[str, bool]]()
    for run in stored.runs.select(
        ["run_id", "label", "n_ranks", "n_processes", "world_size"]
    ).to_pylist():
        n_captured = run["n_ranks"] if run["n_processes"] is None else run["n_processes"]
        runs_of_label = runs.setdefault(printable(run["label"]), {})
        runs_of_label[run["run_id"]] = n_captured >= (run["world_size"] or 0)
    comparison = _LabelComparison(place, label, runs)
    comparison.check_baseline()
    return {
        compared: comparison.runs_of(compared)
        for compared in [label, *_candidate_labels(comparison, candidates)]
    }


def _candidate_labels(comparison: _LabelComparison, candidates: Sequence[object]) -> list[str]:
    """Return the label of the candidate, if the candidate is a label and not a place."""
    if not candidates:
        return [comparison.only_other_label()]
    is_a_name = len(candidates) == 1 and isinstance(candidates[0], str)
    name = str(candidates[0]) if is_a_name else ""
    comparison.check_candidate(name)
    is_label = name in comparison.runs and not os.path.lexists(name)
    return [name] if is_label else []


def _command_with_a_store(path: Path, label: str) -> str:
    """Return a command that compares with a label, for a path that is not a store.

    If the path is one run of a store, that run may be meant as the candidate.
    """
    reference = _run_reference(path)
    if reference is None:
        return (
            f"nsyspipe analyze REPORTS --out STORE --label {shlex.quote(label)}, for each capture"
        )
    command = ["nsyspipe", "diff", "--against", label, str(reference.store)]
    name = reference.name
    if name is not None and name != label:
        is_label = name in labels_by_time(reference.store).values()
        command.append(name if is_label else str(path))
    return shlex.join(command)


def _run_reference(path: Path) -> _RunReference | None:
    """Return what ``STORE/<table>/run_id=ID`` or ``STORE:NAME`` refers to; None for other paths."""
    is_complete = len(path.parts) > 1 and path.name.startswith(RUN_DIRECTORY)
    # A path such as `.` has no name of its own.
    directory = path if is_complete else Path(os.path.realpath(path))
    run_id = directory.name.removeprefix(RUN_DIRECTORY)
    store = directory.parent.parent
    if (
        directory.name.startswith(RUN_DIRECTORY)
        and os.path.isdir(directory)  # noqa: PTH112 - a name may be too long
        and has_run(store, run_id)
    ):
        return _RunReference(store, run_id, is_id=True)
    text = str(path)
    if os.path.lexists(text):
        return None
    # A store or a name may contain colons, so each colon but a first letter is tried.
    for index, letter in enumerate(text):
        if letter == ":" and index > 0:
            store = Path(text[:index])
            if any(run_ids(store)):
                return _RunReference(store, text[index + 1 :], is_id=False)
    return None
