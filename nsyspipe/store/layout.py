"""Where things lie in a store, which names a run may have there, and which runs there are; quick: every start asks.

::

    STORE/steps/run_id=ID/part-0.parquet           plain files, all that readers need; in any copy
    of any part too STORE/events/run_id=ID/rank=0/part-0.parquet
    STORE/.nsyspipe/staging/UNIQUE.ID/...          what a writer has not committed yet
    STORE/.nsyspipe/switch/ID/steps.parquet, ...   committed, and not in place yet
    STORE/.nsyspipe/switch/ID/files                the names of all files that the run then has
    STORE/.nsyspipe/index                          rows of `runs` of all runs, with digests of what
    they were read from STORE/.nsyspipe/lock

A run has a file in many tables, and no single rename can publish them together. So a writer puts
all of them into one directory, and renaming that directory to ``switch/ID`` is the moment at which
the run is replaced. After it, each file is renamed into its place, ``runs`` last, which takes some
milliseconds; a writer that is killed meanwhile leaves the rest to the next one.

Who reads by `nsyspipe` looks into ``switch`` first, and finds the names and digests of a run's
files in the run's own row: it gets the old run or the new one, never some tables of each. Who reads
the plain files gets whole ones, and may find old tables beside new ones while they are renamed, or
after a writer was killed just then, until the next run is saved.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import re
import shlex
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import BinaryIO, Self

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
_SAFE = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # a FIFO is not waited for
HIDDEN = ".nsyspipe"
SWITCH = "switch"
INDEX_FILE = "index"
PART = "part-0.parquet"
_SUFFIX = ".parquet"
RUNS_FILE = f"runs{_SUFFIX}"
_LONGEST = 100
RUN_ID = re.compile(
    rf"[A-Za-z0-9][A-Za-z0-9._+-]{{0,{_LONGEST - 1}}}"
)  # that a run which is saved can have
FILE_NAME = re.compile(
    r"[a-z][a-z0-9_]*(-(0|[1-9][0-9]{0,9}))?\.parquet"
)  # as `file_name` makes one
_DATE = re.compile(
    r"[0-9]+-[0-9]+-[0-9]+|epoch", re.IGNORECASE
)  # DuckDB takes more for one than Python does
_SHOWN = 6
_ALIKE = 0.8  # ids that may be mistyped; those of captures of one day are less alike


class NotPlainError(Exception):
    """A link, or anything but what belongs there, in place of a directory or a file of a store."""

    def __init__(self, path: Path, found: str, wanted: str) -> None:
        self.path = path
        self.found = found
        self.wanted = wanted
        self.problem = f"is {found}, where a store has {wanted}"
        super().__init__(f"{path}: {self.problem}")

    def told(self) -> DatasetError:
        """Return what a reader of the store is told."""
        return DatasetError(str(self.path), self.problem, fix=f"remove {self.path}")


@dataclass(frozen=True)
class Directory(contextlib.AbstractContextManager["Directory"]):
    """An open directory of a store, a context; no link in it is ever followed, and what is not plain a `NotPlainError`."""

    fd: int
    path: Path  # for messages only

    @classmethod
    def at(cls, path: Path) -> Self:
        """Open a directory that the user named, through links too."""
        return cls(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), path)

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)

    def names(self) -> list[str]:
        """Return what is in it, in no order."""
        return os.listdir(self.fd)  # noqa: PTH208 - by descriptor

    def require(self, name: str, wanted: str) -> bool:
        """Tell whether something is there, and refuse what is not as wanted: `FILE` or `DIRECTORY`."""
        try:
            found = _kind(os.stat(name, dir_fd=self.fd, follow_symlinks=False).st_mode)
        except (FileNotFoundError, NotADirectoryError):
            return False
        if found != wanted:
            raise NotPlainError(self.path / name, found, wanted)
        return True

    def enter(self, name: str, *, make: bool = False) -> Directory:
        """Open a directory in it, which is made first if asked for."""
        try:
            fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | _SAFE, dir_fd=self.fd)
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
        """Yield the directory that is reached by names, one after the other, as `enter` opens each."""
        with contextlib.ExitStack() as opened:
            found = self
            for name in names:
                found = opened.enter_context(found.enter(name, make=make))
            yield found

    def open_file(self, name: str, flags: int = os.O_RDONLY) -> BinaryIO:
        """Open an ordinary file in it."""
        self.require(name, FILE)  # before it is opened, which some devices take for a request
        try:
            fd = os.open(name, flags | _SAFE, 0o666, dir_fd=self.fd)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise NotPlainError(self.path / name, LINK, FILE) from error
            raise
        found = _kind(os.fstat(fd).st_mode)
        if found != FILE:
            os.close(fd)
            raise NotPlainError(self.path / name, found, FILE)
        return os.fdopen(fd, "wb" if flags & os.O_ACCMODE else "rb")

    def create(self, name: str) -> BinaryIO:
        """Make a new file in it, and open it for writing."""
        return self.open_file(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL)

    def remove_empty(self, *names: str) -> None:
        """Remove the directory that is reached by names, and those around it, as far as nothing is in them."""
        for n_names in range(len(names), 0, -1):
            with (
                contextlib.suppress(OSError, NotPlainError),
                self.within(*names[: n_names - 1]) as around,
            ):
                os.rmdir(names[n_names - 1], dir_fd=around.fd)


def _kind(mode: int) -> str:
    return _KINDS.get(stat.S_IFMT(mode), "a device")


def file_name(table: str, rank: int | None = None) -> str:
    """Return the name of a table's file while it is not in its place."""
    return f"{table}{_SUFFIX}" if rank is None else f"{table}-{rank}{_SUFFIX}"


def table_of_file(name: str) -> str | None:
    """Return the table of the dataset that a file is of, by its `file_name`; None of any other name."""
    from nsyspipe.model.schema import DATASET  # noqa: PLC0415 - heavy, and not needed to find a run

    table = name.removesuffix(_SUFFIX).partition("-")[0]
    return table if FILE_NAME.fullmatch(name) and table in DATASET else None


def published(name: str, run_id: str) -> Path:
    """Return where readers find a file of a run, by its `file_name`; relative to the store."""
    table, _, rank = name.removesuffix(_SUFFIX).partition("-")
    return Path(table, f"{RUN_DIRECTORY}{run_id}", *([f"rank={rank}"] if rank else []), PART)


def has_run(store: Path, run_id: str) -> bool:
    """Tell whether a store has a run, whatever its files are: who reads them says what is wrong."""
    if not run_id or "/" in run_id or "\0" in run_id:
        return False
    # First there: a file leaves it only for its place, and would be in neither otherwise.
    places = [Path(HIDDEN, SWITCH, run_id, RUNS_FILE)] if RUN_ID.fullmatch(run_id) else []
    return any(os.path.lexists(store / place) for place in (*places, published(RUNS_FILE, run_id)))


def name_of_store(store: Path) -> str:
    """Return what the directory of a store is called, through links."""
    return Path(os.path.realpath(store)).name or "runs"


def run_ids(store: Path) -> Iterator[str]:
    """Yield the runs of a store, in no order; none where there is no store, an error where links are in place of it."""
    switched = _listed(store, HIDDEN, SWITCH)  # before their places, as `has_run`
    in_place = {
        name.removeprefix(RUN_DIRECTORY)
        for name in _listed(store, "runs")
        if name.startswith(RUN_DIRECTORY)
    }
    for run_id in in_place.union(switched):
        if has_run(store, run_id):
            yield run_id


def _listed(store: Path, *names: str) -> list[str]:
    try:
        with Directory.at(store) as top, top.within(*names) as directory:
            return directory.names()
    except NotPlainError as error:
        if names == ("runs",):  # of somebody else
            return []
        raise error.told() from error
    except (OSError, ValueError):
        return []


def check_run_id(run_id: str) -> None:
    """Refuse, with one that works, an id that no directory can have, or that readers take for a number or a date."""
    mended = run_id
    if not RUN_ID.fullmatch(run_id):
        mended = (
            re.sub(r"[^A-Za-z0-9._+-]+", "-", run_id).lstrip("._+-")[:_LONGEST].rstrip("-.") or "1"
        )
        what = (
            f"is not a valid directory name (up to {_LONGEST} letters, digits and . _ + -, first a "
            "letter or digit)"
        )
    elif _is_number_or_date(run_id):
        what = "looks like a number or a date, and DuckDB and pandas would convert it"
    else:
        return
    fix = f"run-{mended}"[:_LONGEST] if _is_number_or_date(mended) else mended
    raise OptionError(f"--run-id {run_id!r}", what, fix=f"--run-id {fix}")


def _is_number_or_date(text: str) -> bool:
    for kind in (float, lambda number: int(number, 0), date.fromisoformat):
        with contextlib.suppress(ValueError):
            kind(text)
            return True
    return _DATE.fullmatch(text) is not None


def is_saved(path: Path) -> bool:
    """Tell whether a path is a store with runs, or the directory of one run in one of its tables."""
    # A report, as most are; and no file's name, which whoever looks for a report says.
    if "\0" in str(path) or os.path.isfile(path):  # noqa: PTH113 - a name may be too long
        return False
    return is_one_run(path) or any(run_ids(path))


def is_one_run(path: Path) -> bool:
    """Tell whether a path names one run of a store, not all of it: ``STORE:NAME``, or its directory in a table."""
    return _one_run(path) is not None


def find_saved(path: Path, run_id: str | None = None, label: str | None = None) -> tuple[Path, str]:
    """Return store and id of the one run that is meant; an `OptionError` of several if none is named, or not one of them.

    A path may end in ``:NAME``, the id of a run or a label: of several runs of that label the
    latest is meant, as where a `label` is given and no name. Of a NAME that is the id of one run
    and the label of another nobody knows what it means.
    """
    store, named, is_id = _one_run(path) or (path, None, False)
    if named and not is_id:  # those that cannot be read have the label ""
        of_label = [run_id for run_id, label in labels_by_time(store).items() if label == named]
        meant = [*dict.fromkeys([*[named][: has_run(store, named)], *of_label[-1:]])]
        if len(meant) > 1:
            ways = (
                f"{shlex.quote(place_of(store, named))}, that run, or "
                f"{argument_of(store, meant[-1])}, the label's latest"
            )
            what = "is the ID of a run and the label of other runs"
            raise OptionError(f"{store}:{named}", what, fix=ways)
        named = [named, *meant][-1]
    wanted = named if run_id is None else run_id
    if wanted is not None and named in (None, wanted) and has_run(store, wanted):
        return store, wanted
    labels = labels_by_time(store)
    if named is not None and has_run(store, named):
        labels = {named: labels.get(named, "")}
    ids = [*labels]
    if wanted is None and (
        chosen := [one for one in ids if labels[one] == label] if label else ids[: len(ids) == 1]
    ):
        return store, chosen[-1]
    # The last runs, each with its label, which tells more than an id.
    named_so = [
        one if label in ("", one) else f"{one} ({label})"
        for one, label in [*labels.items()][-_SHOWN:]
    ]
    shown = ", ".join(named_so) + (
        f" and {len(labels) - _SHOWN} more" if len(labels) > _SHOWN else ""
    )
    listing = (
        f"nsyspipe doctor {shlex.quote(str(store))}, which "
        f"{'lists its runs' if all(labels.values()) else 'shows what is wrong'}"
    )
    if wanted is None and label and ids:
        other = nearest_name(label, {*labels.values()} - {""}) or labels[ids[-1]]
        instead = f"--label {shlex.quote(other)}, or {listing}" if other else listing
        raise OptionError(
            f"--label {label}", f"no run of {path} has that label", found=shown, fix=instead
        )
    if wanted is None:
        # One with its operations fits every command.
        with_operations = [
            one for one in ids if (store / "events" / f"{RUN_DIRECTORY}{one}").is_dir()
        ]
        fix = f"{argument_of(store, [*ids, *with_operations][-1])}, or {listing}" if ids else None
        raise OptionError(str(path), f"contains {len(ids)} runs, choose one", found=shown, fix=fix)
    # A label is no value of --run-id, but its latest run's id is.
    named_by = {label: one for one, label in labels.items() if label}
    nearest = nearest_name(wanted, named_by) or nearest_name(wanted, ids, cutoff=_ALIKE)
    if run_id is not None:
        instead = f"{['ID', *ids][-1]}, or {listing}"
        if nearest:
            instead = nearest if nearest in labels else named_by[nearest]
        raise OptionError(
            f"--run-id {run_id}", f"{path} has no such run", found=shown, fix=f"--run-id {instead}"
        )
    fix = f"{argument_of(store, nearest)}, or {listing}" if nearest else listing
    raise OptionError(str(path), "has no such run", found=shown, fix=fix)


def place_of(store: str | Path, run_id: str) -> str:
    """Return the path that is one run of a store by its id, whatever labels there are."""
    return str(Path(store, published(RUNS_FILE, run_id).parent))


def argument_of(store: Path, name: str) -> str:
    """Return how a shell names one run of a store, by its id or label."""
    return shlex.quote(f"{store}:{name}")


def labels_by_time(store: Path) -> dict[str, str]:
    """Return the label of each run of a store, by the time of capture, equal times by id; of one that cannot be read ``""``."""
    if not any(run_ids(store)):
        return {}
    from nsyspipe.store.index import listed_runs  # noqa: PLC0415 - it takes long

    found = listed_runs(store)
    labels = dict.fromkeys((one.run_id for one in found.unreadable), "")
    known = zip(found.runs["run_id"].to_pylist(), found.runs["label"].to_pylist(), strict=True)
    return labels | {run_id: printable(label) for run_id, label in known}


def runs_by_label(
    place: str, label: str, others: Sequence[object] = ()
) -> dict[str, tuple[list[str], list[str]]]:
    """Return the paths of all runs of a label of a store, and of those of another: the one named, else the only other there is.

    Of a label with runs of all ranks those of some are left out: their ids come with the paths. Of
    others that are no label of the store nothing is returned. An `OptionError` says what labels
    there are.
    """
    from nsyspipe.store.index import listed_runs  # noqa: PLC0415 - it takes long

    store = Path(place)
    asked = f"--against {label}"
    if not is_saved(store) or is_one_run(store):
        raise OptionError(asked, f"{place} is not a run store", fix=_with_a_store(store, label))
    # of a label: of each run whether it has all ranks
    found = listed_runs(store)
    ids = dict[str, dict[str, bool]]()
    if found.unreadable:
        problem = (
            f"{argument_of(store, found.unreadable[0].run_id)} cannot be read, so its label is "
            "unknown"
        )
        raise OptionError(asked, problem, fix="remove this run")
    for run in found.runs.select(
        ["run_id", "label", "n_ranks", "n_processes", "world_size"]
    ).to_pylist():
        n_there = run["n_ranks"] if run["n_processes"] is None else run["n_processes"]
        ids.setdefault(printable(run["label"]), {})[run["run_id"]] = n_there >= (
            run["world_size"] or 0
        )
    counts = ", ".join(f"{name} ({len(of)} run{'s'[: len(of) != 1]})" for name, of in ids.items())
    if label not in ids:
        if any(label in of for of in ids.values()):
            fix = f"nsyspipe diff {argument_of(store, label)} CANDIDATE"
            raise OptionError(asked, "is the id of a run, not a label", found=counts, fix=fix)
        fix = f"--against {shlex.quote(nearest_name(label, ids) or next(iter(ids)))}"
        raise OptionError(asked, f"{place} has no run of that label", found=counts, fix=fix)
    candidates = [name for name in ids if name != label]
    start = shlex.join(["nsyspipe", "diff", "--against", label, place])
    if others:
        named = others[0] if len(others) == 1 and isinstance(others[0], str) else ""
        if named == label and not os.path.lexists(named):
            fix = f"{start} {shlex.quote([*candidates, 'REPORTS'][0])}"
            raise OptionError(named, "is the label of the baseline, too", found=counts, fix=fix)
        is_place = os.path.lexists(named) or glob.has_magic(named) or is_one_run(Path(named))
        if named and named not in ids and not (is_place or {*named} & {os.sep, "="}):
            fix = (
                f"{start} "
                f"{shlex.quote(nearest_name(named, candidates) or [*candidates, 'REPORTS'][0])}"
            )
            raise OptionError(
                named, f"is not a label of {place}, a file or a directory", found=counts, fix=fix
            )
        candidates = [named] if named in ids and not os.path.lexists(named) else []
    elif len(candidates) != 1:
        problem = (
            f"{place} has {'several other labels' if candidates else 'no other label'}, and the "
            "candidate is missing"
        )
        raise OptionError(
            asked, problem, found=counts, fix=f"{start} {shlex.quote([*candidates, 'REPORTS'][0])}"
        )
    sides = ((name, ids[name]) for name in (label, *candidates))
    left_out = {
        name: [one for one, has_all in of.items() if any(of.values()) > has_all]
        for name, of in sides
    }
    return {
        name: ([place_of(place, one) for one in ids[name] if one not in of], of)
        for name, of in left_out.items()
    }


def _with_a_store(path: Path, label: str) -> str:
    """Return a command that compares with a label, given what is no store: one run of a store may be meant as the candidate."""
    one = _one_run(path)
    if one is None:
        return (
            f"nsyspipe analyze REPORTS --out STORE --label {shlex.quote(label)}, for each capture"
        )
    store, name, _ = one
    candidate = (
        [] if name == label else [name if name in labels_by_time(store).values() else str(path)]
    )
    return shlex.join(["nsyspipe", "diff", "--against", label, str(store), *candidate])


def _one_run(path: Path) -> tuple[Path, str, bool] | None:
    """Return store and id of ``STORE/<table>/run_id=ID``, or store and name of ``STORE:NAME``, and whether it is the id; else None."""
    is_whole = len(path.parts) > 1 and path.name.startswith(RUN_DIRECTORY)
    directory = path if is_whole else Path(os.path.realpath(path))  # `.` has no name
    run_id = directory.name.removeprefix(RUN_DIRECTORY)
    store = directory.parent.parent
    text = str(path)
    if (
        directory.name.startswith(RUN_DIRECTORY)
        and os.path.isdir(directory)  # noqa: PTH112 - a name may be too long
        and has_run(store, run_id)
    ):
        return store, run_id, True
    if os.path.lexists(text):
        return None
    parts = (
        (Path(text[:at]), text[at + 1 :]) for at, letter in enumerate(text) if letter == ":" and at
    )
    return next(((store, name, False) for store, name in parts if any(run_ids(store))), None)
