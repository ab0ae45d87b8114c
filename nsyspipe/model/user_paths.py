"""Paths as the user wrote them, which name their files in any working directory."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self, TypeAlias

# What opens a file takes it as a path. Messages show it as text.
AnyPath: TypeAlias = str | os.PathLike[str]


@dataclass(frozen=True, repr=False)
class UserPath(os.PathLike[str]):
    """A path that the user wrote.

    As a path it is absolute, so it names its file in any working directory and in any process. As
    text it is what the user wrote, so messages show it with `str`.
    """

    # Absolute, with its links.
    path: Path
    # As the user wrote it.
    spelling: str

    @classmethod
    def of(cls, path: AnyPath) -> Self:
        """Return a path that the user wrote. It may be one already."""
        if isinstance(path, cls):
            return path
        absolute = os.path.abspath(path)  # noqa: PTH100 - keeps links
        return cls(Path(absolute), os.fspath(path))

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        return self.spelling

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.spelling!r})"


@dataclass(frozen=True, repr=False)
class ReportFile(UserPath):
    """The file that is read of a report that the user named.

    It is the named file itself or, if that is not exported, its export in the cache.
    """

    # The report that the user named, absolute. Other files of its run are in its directory.
    source: Path

    @classmethod
    def of(cls, path: AnyPath) -> Self:
        """Return a report that the user named. It may be one already."""
        if isinstance(path, cls):
            return path
        named = UserPath.of(path)
        return cls(named.path, named.spelling, named.path)

    def exported_to(self, export: Path) -> ReportFile:
        """Return the same report, of which this export is read."""
        return replace(self, path=export)
