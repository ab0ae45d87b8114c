"""Tell saved runs from reports among what a user names; quick, since every start of the program asks."""

from __future__ import annotations

import os
from pathlib import Path

from nsyspipe.errors import DatasetError, OptionError
from nsyspipe.model.text import printable
from nsyspipe.store.layout import has_run, run_ids

_SHOWN = 6
# Of a large store, only so many labels are read for an error.
_ASKED = 200


def is_saved(path: Path) -> bool:
    """Tell whether a path is a store with runs, or the directory of one run in one of its tables."""
    if "\0" in str(path):  # no file's name, which whoever looks for a report says
        return False
    return _run_of(path) is not None or any(run_ids(path))


def find_saved(path: Path, run_id: str | None = None) -> tuple[Path, str]:
    """Return the store and the id of the one run that is meant.

    Parameters
    ----------
    path
        A store, or the directory of one run in one of its tables.
    run_id
        Which run of the store; None when it has only one.

    Raises
    ------
    OptionError
        If it has several and none is named, or not the one that is named.
    """
    store, named = _run_of(path) or (path, None)
    wanted = named if run_id is None else run_id
    if wanted is None:
        ids = sorted(run_ids(store))
        if len(ids) > 1:
            raise OptionError(
                str(path),
                f"holds {len(ids)} runs",
                found=_shown(store, ids),
                fix=f"--run-id {ids[-1]}",
            )
        wanted = ids[0] if ids else ""
    if named not in (None, wanted) or not has_run(store, wanted):
        ids = sorted(run_ids(store)) if named is None else [named]
        labelled = [one for one in ids[-_ASKED:] if _label(store, one) == wanted]
        problem = f"{path} has no such run"
        if labelled:
            problem += f"; {len(labelled)} of that label, which is no id"
        fix = f"--run-id {(labelled or ids)[-1]}" if ids else None
        raise OptionError(f"--run-id {wanted}", problem, found=_shown(store, ids), fix=fix)
    return store, wanted


def _shown(store: Path, ids: list[str]) -> str:
    """List the last runs, each with its label, which tells more than an id."""
    n_more = len(ids) - _SHOWN
    labels = {one: _label(store, one) for one in ids[-_SHOWN:]}
    shown = [
        f"{one} ({label})" if label not in (None, one) else one for one, label in labels.items()
    ]
    return ", ".join(shown) + (f" and {n_more} more" if n_more > 0 else "")


def _label(store: Path, run_id: str) -> str | None:
    """Return the label of a saved run; None if it cannot be read, which is not what was asked."""
    from nsyspipe.store.read import read_run_files  # noqa: PLC0415 - only an error needs it, and it takes long

    try:
        labels = read_run_files(store, run_id, ()).table("runs")["label"].to_pylist()
    except (DatasetError, KeyError):
        return None
    return printable(labels[0]) if labels and labels[0] else None


def _run_of(path: Path) -> tuple[Path, str] | None:
    """Return store and run of ``STORE/<table>/run_id=ID``; None for any other path."""
    directory = Path(os.path.realpath(path))  # `.` has no name
    kind, _, run_id = directory.name.partition("=")
    if kind != "run_id" or not os.path.isdir(directory):  # noqa: PTH112 - a name may be too long
        return None
    store = directory.parent.parent
    return (store, run_id) if has_run(store, run_id) else None
