"""RUN arguments as users write them: one is one capture, ``LABEL=`` in front names what it is a capture of."""

from __future__ import annotations

import glob
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nsyspipe.errors import OptionError
from nsyspipe.store.find import is_saved

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["LONGEST_LABEL", "NamedRuns", "parse_runs", "split_label"]

LONGEST_LABEL = 100


@dataclass(frozen=True)
class NamedRuns:
    """What a user names as one thing to look at: one capture, or several under one label.

    Attributes
    ----------
    label
        What stands before ``=``; None: the runs name themselves.
    places
        One argument per capture: a glob, a directory, a report, or a saved run.
    """

    label: str | None
    places: tuple[str, ...]


def parse_runs(arguments: Sequence[str]) -> list[NamedRuns]:
    """Group RUN arguments by their labels, in the order in which each first stands.

    A path that exists, or a glob that matches, wins over the reading as ``LABEL=...``; a label has no
    path separator. A glob that matches nothing but saved runs stands for each of them.

    Raises
    ------
    OptionError
        If a label is empty, too long, or not printable, or names nothing.
    """
    groups: dict[str | tuple[int, str], list[str]] = {}
    for number, argument in enumerate(arguments):
        label, place = split_label(argument)
        for one in _saved_runs(place) or [place]:
            groups.setdefault((number, one) if label is None else label, []).append(one)
    return [
        NamedRuns(key if isinstance(key, str) else None, tuple(places))
        for key, places in groups.items()
    ]


def split_label(argument: str) -> tuple[str | None, str]:
    """Split ``LABEL=PLACE``; no label is None.

    Raises
    ------
    OptionError
        If the label is empty, too long, or not printable, or nothing follows it.
    """
    label, equals, place = argument.partition("=")
    separators = {os.sep, os.altsep} - {None}
    if not equals or any(one in label for one in separators if one) or _names_files(argument):
        return None, argument
    if not (label and label.isprintable() and len(label) <= LONGEST_LABEL):
        raise OptionError(
            repr(argument[:LONGEST_LABEL]),
            f"has a label that is empty, longer than {LONGEST_LABEL}, or not printable",
            fix="LABEL=PATH, or ./PATH for a path with = in it",
        )
    if not place:
        raise OptionError(repr(argument), "has a label and no reports", fix=f"{label}=PATH")
    return label, place


def _saved_runs(place: str) -> list[str]:
    """Return the runs that a glob of saved runs matches; none if it is anything else."""
    if os.path.lexists(place) or not glob.has_magic(place):
        return []
    found = sorted(glob.glob(place))  # noqa: PTH207 - absolute too
    return found if all(is_saved(Path(one)) for one in found) else []


def _names_files(argument: str) -> bool:
    """Tell whether a whole argument is a path or a glob of some files, whatever it looks like."""
    if os.path.lexists(argument):  # says no to names that are too long
        return True
    return glob.has_magic(argument) and bool(glob.glob(argument))  # noqa: PTH207 - absolute too
