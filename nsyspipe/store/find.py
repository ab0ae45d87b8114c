"""Tell saved runs from reports among what a user names; quick, since every start of the program asks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsyspipe.errors import OptionError
from nsyspipe.store.layout import PART, run_ids, tables_dir

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["find_saved", "is_saved"]

_SHOWN = 6


def is_saved(path: Path) -> bool:
    """Tell whether a path is a store with runs, or the directory of one run in one of its tables."""
    return bool(run_ids(tables_dir(path))) or _run_of(path) is not None


def find_saved(path: Path, run_id: str | None = None) -> tuple[Path, str]:
    """Return the directory of the tables and the id of the one run that is meant.

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
    tables = tables_dir(store)
    ids = run_ids(tables)
    wanted = run_id or named
    shown = ", ".join(ids[-_SHOWN:]) + (f" and {len(ids) - _SHOWN} more" * (len(ids) > _SHOWN))
    if wanted is None:
        if len(ids) > 1:
            raise OptionError(
                str(path), f"holds {len(ids)} runs", found=shown, fix=f"--run-id {ids[-1]}"
            )
        return tables, ids[0]
    if wanted not in ids:
        raise OptionError(f"--run-id {wanted}", f"{path} has no such run", found=shown)
    return tables, wanted


def _run_of(path: Path) -> tuple[Path, str] | None:
    """Return store and run of ``STORE/<table>/run_id=ID``; None for any other path."""
    kind, _, run_id = path.name.partition("=")
    if kind != "run_id" or not (path / PART).is_file():
        return None
    store = path.parent.parent
    return (store, run_id) if run_id in run_ids(tables_dir(store)) else None
