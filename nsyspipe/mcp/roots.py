"""Keeps a server inside the directories that it may read.

A client names paths, globs and saved runs. Links and ``..`` are resolved before anything at a path
is looked at, so an answer never shows whether something exists outside. nsyspipe also lists the
directories of reports, for sidecars, logs and similar names. So no directory that it lists may have
a link that leads outside.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Self

from msgspec import Struct

from nsyspipe.errors import InputError, OptionError
from nsyspipe.model.names import RUN_DIRECTORY, decoded, listed

_EVENTS = "events"
_UNBOUNDED_PARTS = {"..", "**"}
# The checks take longer than in proportion to these.
_MAX_CHARACTERS = 1024
_MAX_COMPONENTS = 64
_MAX_COLONS = 8


class Roots(Struct, frozen=True):
    """The directories that a server may read, without links in their paths."""

    paths: tuple[Path, ...]

    @classmethod
    def of(cls, directories: Iterable[Path]) -> Self:
        """Return the roots that a user named; an `OptionError` if one is not a directory."""
        paths = []
        for directory in directories:
            real_path = Path(os.path.realpath(directory))
            if not real_path.is_dir():
                raise OptionError(f"--root {directory}", "is not a directory", fix="--root DIR")
            paths.append(real_path)
        if not paths:
            raise OptionError("--root", "is missing", fix="--root DIR, the directory of reports")
        return cls(tuple(paths))

    def check(self, argument: str) -> None:
        """Raise an `InputError` unless all that an argument can name is inside.

        An argument is a path, a glob, or a saved run (``STORE:NAME``). The error is the same
        whatever there is outside.
        """
        _check_size(argument)
        for place in _possible_places(argument):
            self._check_place(place, argument)
        if glob.has_magic(argument):
            self._check_glob(Path(argument), argument)

    def check_file(self, path: Path) -> None:
        """Raise an `InputError` unless a file, and all files beside it, are inside."""
        self._check_inside(path, str(path))
        self._check_directory(path.parent, str(path))

    def check_store(self, store: Path) -> None:
        """Raise an `InputError` unless a store is inside. Its reader follows no links in it."""
        self._check_directory(store, str(store))
        self._check_directory(store / _EVENTS, str(store))

    def _check_place(self, place: str, argument: str) -> None:
        """Check one path that an argument may mean, and directories above it.

        The last directory that is checked is the nearest one that exists, and that has no glob in
        its path.
        """
        path = Path(place)
        self._check_store_of_run(path, argument)
        self._check_directory(path, argument)
        # The root of the file system is such a directory, so this ends.
        while glob.has_magic(str(path)) or not _is_directory(path):
            path = path.parent
            self._check_directory(path, argument)

    def _check_store_of_run(self, path: Path, argument: str) -> None:
        """Check the store if a path is the directory of one run in one table of the store."""
        real_path = _real_path(path)
        paths = [path] if real_path is None else [path, Path(real_path)]
        for directory in paths:
            if directory.name.startswith(RUN_DIRECTORY):
                # The directory is STORE/TABLE/RUN.
                store = directory.parent.parent
                self._check_inside(store, argument)

    def _check_glob(self, pattern: Path, argument: str) -> None:
        """Check each directory that a glob lists, before the glob goes into it."""
        parts = pattern.parts
        unbounded = _UNBOUNDED_PARTS.intersection(parts)
        if unbounded:
            problem = f"is a glob with {listed(sorted(unbounded))}, which this server does not take"
            raise OptionError(argument, problem, fix="name the directory")
        n_literal_parts = next(place for place, part in enumerate(parts) if glob.has_magic(part))
        # `_check_place` has checked the directory of the literal parts. So the first prefix here
        # ends with the first part that has a pattern.
        for n_parts in range(n_literal_parts + 1, len(parts) + 1):
            prefix = str(Path(*parts[:n_parts]))
            for place in glob.glob(prefix):  # noqa: PTH207 - the pattern may be absolute
                self._check_inside(Path(place), argument)
                self._check_directory(Path(place), argument)

    def _check_directory(self, directory: Path, argument: str) -> None:
        """Raise an InputError if a directory is outside, or has a link that leads outside.

        A path that is no directory has no links in it.
        """
        self._check_inside(directory, argument)
        for link in _links_in(directory):
            if not self._has(link):
                name = decoded(link.name)
                problem = f"has a link in its directory that leads outside the roots: {name}"
                fix = "remove the link, or start the server with a --root for its target too"
                raise InputError(argument, problem, fix=fix)

    def _check_inside(self, path: Path, argument: str) -> None:
        """Raise an InputError if a path is outside."""
        # A reader may remove ".." from a path before it follows links, or after it. With links,
        # these two may be different places, so both must be inside.
        without_dots = Path(os.path.normpath(path))
        if not (self._has(path) and self._has(without_dots)):
            raise self._outside(argument)

    def _has(self, path: Path) -> bool:
        """Tell whether a path, without links, is a root or below one."""
        real_path = _real_path(path)
        return real_path is not None and any(map(Path(real_path).is_relative_to, self.paths))

    def _outside(self, argument: str) -> InputError:
        roots = listed([decoded(str(path)) for path in self.paths])
        fix = "name a path below a root, or start the server with another --root"
        problem = "is outside the roots of this server"
        return InputError(argument, problem, found=f"roots: {roots}", fix=fix)


def _check_size(argument: str) -> None:
    """Raise an InputError for an argument that would take long to check."""
    limit_of_parts = {
        "characters": (len(argument), _MAX_CHARACTERS),
        "components": (argument.strip("/").count("/") + 1, _MAX_COMPONENTS),
        "colons": (argument.count(":"), _MAX_COLONS),
    }
    for noun, (number, limit) in limit_of_parts.items():
        if number > limit:
            problem = f"has {number} {noun}, and this server takes at most {limit}"
            raise InputError(argument, problem, fix="name a shorter path")


def _possible_places(argument: str) -> Iterator[str]:
    """Yield the paths that an argument may be: the whole, and the store before each colon."""
    yield argument
    for index, letter in enumerate(argument):
        if letter == ":" and index > 0:
            yield argument[:index]


def _is_directory(path: Path) -> bool:
    return os.path.isdir(path)  # noqa: PTH112 - a name may be too long


def _real_path(path: Path) -> str | None:
    """Return a path without links; None for a text that can be no path, such as a zero byte."""
    try:
        return os.path.realpath(path)
    except (OSError, ValueError):
        return None


def _links_in(directory: Path) -> list[Path]:
    """Return the links in a directory; none if it is not a directory that can be read."""
    try:
        with os.scandir(directory) as entries:
            return [directory / entry.name for entry in entries if entry.is_symlink()]
    except (OSError, ValueError):
        return []
