"""Directories and files of a store, reached without ever following a link.

A store may have been prepared by somebody else, or changed while it is used. Only its own path is taken as
it is, links and all, since the user names it; everything below is opened by descriptor from the directory
around it, so that nothing can lead elsewhere between a check and what is done after it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, Self

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["DIRECTORY", "FILE", "LINK", "Directory", "NotPlainError"]

FILE, DIRECTORY, LINK = "a file", "a directory", "a link"
_KINDS = (
    (stat.S_ISREG, FILE),
    (stat.S_ISDIR, DIRECTORY),
    (stat.S_ISLNK, LINK),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
)
_SAFE = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # a FIFO is not waited for


class NotPlainError(Exception):
    """A link, or anything but what belongs there, in place of a directory or a file of a store."""

    def __init__(self, path: Path, found: str, wanted: str) -> None:
        self.path, self.found, self.wanted = path, found, wanted
        self.problem = f"is {found}, where a store has {wanted}"
        super().__init__(f"{path}: {self.problem}")


@dataclass(frozen=True)
class Directory:
    """An open directory; a context, which closes it.

    Attributes
    ----------
    path
        For messages only.
    """

    fd: int
    path: Path

    @classmethod
    def at(cls, path: Path) -> Self:
        """Open a directory that the user named, through links too.

        Raises
        ------
        OSError
            If it is none, or cannot be read.
        """
        return cls(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)

    def names(self) -> list[str]:
        """Return what is in it, in no order."""
        return os.listdir(self.fd)  # noqa: PTH208 - by descriptor

    def kind(self, name: str) -> str | None:
        """Return what a name is: `FILE`, `DIRECTORY`, `LINK`, something else in words; None if it is not there."""
        try:
            mode = os.stat(name, dir_fd=self.fd, follow_symlinks=False).st_mode
        except (FileNotFoundError, NotADirectoryError):
            return None
        return _kind(mode)

    def require(self, name: str, wanted: str) -> bool:
        """Tell whether something is there.

        Raises
        ------
        NotPlainError
            If it is not what is wanted.
        """
        found = self.kind(name)
        if found not in (None, wanted):
            raise NotPlainError(self.path / name, found or "", wanted)
        return found is not None

    def enter(self, name: str, *, make: bool = False) -> Directory:
        """Open a directory in it, which is made first if asked for.

        Raises
        ------
        NotPlainError
            If it is a link, or no directory.
        OSError
            If it is not there, or cannot be read or made.
        """
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
                raise NotPlainError(
                    self.path / name, self.kind(name) or "something else", DIRECTORY
                ) from error
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
        """Open an ordinary file in it.

        Raises
        ------
        NotPlainError
            If it is anything else.
        OSError
            If it is not there, or cannot be opened.
        """
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
        """Make a new file in it, and open it for writing.

        Raises
        ------
        OSError
            If it cannot be made, or is there already.
        """
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
    return next((kind for is_kind, kind in _KINDS if is_kind(mode)), "a device")
