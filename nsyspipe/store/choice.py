"""Which run or runs of a store the user means."""

from __future__ import annotations

import glob
import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from nsyspipe.errors import OptionError
from nsyspipe.model.names import RUN_DIRECTORY, printable
from nsyspipe.store.layout import (
    RunReference,
    has_run,
    is_one_run,
    is_saved,
    place_of,
    run_ids,
    run_reference,
)
from nsyspipe.suggestions import LabelChoice, RunChoice, argument_of

if TYPE_CHECKING:
    from nsyspipe.model.typed_tables import RunsColumn

_COLUMNS_OF_RANKS: list[RunsColumn] = ["run_id", "label", "n_ranks", "n_processes", "world_size"]


def find_saved(path: Path, run_id: str | None = None, label: str | None = None) -> tuple[Path, str]:
    """Return the store and the id of the one run that the user means.

    A path may end in ``:NAME``, the id of a run or a label. A label means its latest run. `label`
    only counts if neither the path nor `run_id` names a run.

    An `OptionError` is raised if the run does not exist, if the store has several runs and none is
    named, and if NAME is the id of one run and the label of another.
    """
    reference = run_reference(path) or RunReference(path, None, is_id=False)
    store = reference.store
    id_of_path = _named_run(reference)
    wanted_id = id_of_path if run_id is None else run_id
    is_same_run = id_of_path is None or id_of_path == wanted_id
    if wanted_id is not None and is_same_run and has_run(store, wanted_id):
        return store, wanted_id
    # What follows is for errors, and for a store without a named run.
    labels = labels_by_time(store)
    if id_of_path is not None and has_run(store, id_of_path):
        # `run_id` names another run than the path, so only the run of the path can be meant.
        labels = {id_of_path: labels.get(id_of_path, "")}
    choice = RunChoice(path, store, labels)
    if run_id is not None:
        raise choice.no_such_run_id(run_id)
    if id_of_path is not None:
        raise choice.no_such_run(id_of_path)
    return store, _run_without_a_name(choice, label)


def _run_without_a_name(choice: RunChoice, label: str | None) -> str:
    """Return the latest run of a label, and without a label the only run of the store."""
    if label:
        # In order of time.
        ids_with_label = choice.ids_with_label(label)
        if ids_with_label:
            return ids_with_label[-1]
        if choice.ids:
            raise choice.no_such_label(label)
    elif len(choice.ids) == 1:
        return choice.ids[0]
    # This is also the error for a store without runs.
    raise choice.several_runs(_ids_with_operations(choice))


def _ids_with_operations(choice: RunChoice) -> list[str]:
    """Return the ids of the runs that were saved with their operations."""
    events = choice.store / "events"
    directories = {run_id: events / f"{RUN_DIRECTORY}{run_id}" for run_id in choice.ids}
    return [run_id for run_id, directory in directories.items() if directory.is_dir()]


def _named_run(reference: RunReference) -> str | None:
    """Return the id of the run that a name means: the run of this id, or the latest of this label.

    If there is no such run, the name itself is returned; None without a name. An `OptionError` is
    raised if the name is both an id and the label of other runs.
    """
    store, name, is_id = reference
    if not name or is_id:
        return name
    latest_of_label = None
    for run_id, label in labels_by_time(store).items():
        if label == name:
            latest_of_label = run_id
    if not has_run(store, name):
        return latest_of_label or name
    if latest_of_label is not None and latest_of_label != name:
        run_place = shlex.quote(place_of(store, name))
        label_place = argument_of(store, latest_of_label)
        problem = "is the ID of a run and the label of other runs"
        fix = f"{run_place}, that run, or {label_place}, the label's latest"
        raise OptionError(f"{store}:{name}", problem, fix=fix)
    return name


def labels_by_time(store: Path) -> dict[str, str]:
    """Return the label of each run of a store, in order of the time of capture, then of the id.

    The label of a run that cannot be read is ``""``.
    """
    if not any(run_ids(store)):
        return {}
    from nsyspipe.store.index import listed_runs  # noqa: PLC0415 - it takes long

    stored = listed_runs(store)
    labels = dict.fromkeys((run.run_id for run in stored.unreadable), "")
    readable_ids = stored.runs["run_id"].to_pylist()
    readable_labels = stored.runs["label"].to_pylist()
    readable = zip(readable_ids, readable_labels, strict=True)
    return labels | {run_id: printable(label) for run_id, label in readable}


class LabelRuns(NamedTuple):
    """The runs of a label that a comparison uses, and those that it leaves out."""

    paths: list[str]
    # Runs of some ranks only, where the label also has runs of all ranks.
    partial_run_ids: list[str]


def runs_by_label(
    place: str, label: str, candidates: Sequence[object] = ()
) -> dict[str, LabelRuns]:
    """Return the runs of the baseline's label, then those of the candidate's label, by label.

    `candidates` are what the user named as the candidate. Without any, the candidate is the only
    other label of the store. If they are places and no label, only the baseline is returned. An
    `OptionError` says which labels there are.
    """
    from nsyspipe.store.index import listed_runs  # noqa: PLC0415 - it takes long

    store = Path(place)
    if not is_saved(store) or is_one_run(store):
        fix = _command_with_a_store(store, label)
        raise OptionError(f"--against {label}", f"{place} is not a run store", fix=fix)
    stored = listed_runs(store)
    if stored.unreadable:
        first = argument_of(store, stored.unreadable[0].run_id)
        problem = f"{first} cannot be read, so its label is unknown"
        raise OptionError(f"--against {label}", problem, fix="remove this run")
    rows = stored.runs.select(_COLUMNS_OF_RANKS).to_pylist()
    runs = _has_all_ranks_by_label(rows)
    choice = LabelChoice(place, label, runs)
    if label not in runs:
        raise choice.no_such_baseline()
    compared = [label, *_candidate_labels(choice, candidates)]
    return {name: _runs_of_label(place, runs[name]) for name in compared}


def _has_all_ranks_by_label(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, bool]]:
    """Return for each label whether each of its runs has all ranks, by run id.

    `rows` have `_COLUMNS_OF_RANKS` of the runs of a store.
    """
    has_all_ranks: dict[str, dict[str, bool]] = {}
    for run in rows:
        n_processes = run["n_processes"]
        n_captured = run["n_ranks"] if n_processes is None else n_processes
        # If the world size is not known, no rank is known to be missing.
        is_any_missing = run["world_size"] is not None and n_captured < run["world_size"]
        runs_of_label = has_all_ranks.setdefault(printable(run["label"]), {})
        runs_of_label[run["run_id"]] = not is_any_missing
    return has_all_ranks


def _runs_of_label(place: str, has_all_ranks: Mapping[str, bool]) -> LabelRuns:
    """Return the runs of a label that are compared, and those that are left out.

    `has_all_ranks` tells for each run id whether the run has all ranks. Runs of some ranks are left
    out, unless the label has no other runs.
    """
    whole = [run_id for run_id, is_whole in has_all_ranks.items() if is_whole]
    compared = whole or [*has_all_ranks]
    left_out = [run_id for run_id in has_all_ranks if run_id not in compared]
    paths = [place_of(place, run_id) for run_id in compared]
    return LabelRuns(paths, partial_run_ids=left_out)


def _candidate_labels(choice: LabelChoice, candidates: Sequence[object]) -> list[str]:
    """Return the label of the candidate, if the candidate is a label and not a place."""
    if not candidates:
        if len(choice.other_labels) != 1:
            raise choice.no_candidate()
        return choice.other_labels
    name = str(candidates[0])
    may_be_a_label = len(candidates) == 1 and isinstance(candidates[0], str)
    if not may_be_a_label or os.path.lexists(name):
        return []
    if name == choice.baseline:
        raise choice.same_label_twice()
    if name in choice.runs:
        return [name]
    if name and not _may_be_a_place(name):
        raise choice.no_such_candidate(name)
    return []


def _may_be_a_place(name: str) -> bool:
    """Return whether a text is, or looks like, reports or a saved run."""
    has_path_letters = os.sep in name or "=" in name
    if os.path.lexists(name) or has_path_letters:
        return True
    return glob.has_magic(name) or is_one_run(Path(name))


def _command_with_a_store(path: Path, label: str) -> str:
    """Return a command that compares with a label, for a path that is not a store.

    If the path is one run of a store, that run may be meant as the candidate.
    """
    reference = run_reference(path)
    if reference is None:
        quoted_label = shlex.quote(label)
        return f"nsyspipe analyze REPORTS --out STORE --label {quoted_label}, for each capture"
    command = ["nsyspipe", "diff", "--against", label, str(reference.store)]
    name = reference.name
    if name is not None and name != label:
        is_label = name in labels_by_time(reference.store).values()
        command.append(name if is_label else str(path))
    return shlex.join(command)
