"""Room for the files of a job: an earlier capture of its name is refused, or set aside until the new one has begun."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from typing import TYPE_CHECKING

from nsyspipe.capture.plan import Job, earlier_files, is_capture
from nsyspipe.errors import OutputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

__all__ = ["room_for"]

_MOST_NAMED = 3


@contextlib.contextmanager
def room_for(job: Job) -> Iterator[Room]:
    """Make room for a job's files while it runs.

    With --force an earlier capture is set aside, all of it, so that none of its ranks is taken for this job's: into a
    hidden directory beside it, from which nothing need be copied. It is removed at the end if the job has begun,
    and else put back.

    Raises
    ------
    OutputError
        If there is an earlier capture and no --force, or reports cannot be written there.
    """
    room = Room(job)
    if job.nsys is not None:
        room.make()
    try:
        yield room
    finally:
        room.clear()


class Room:
    """Where an earlier capture is while the job runs. `has_begun` says whether the new one takes its place."""

    def __init__(self, job: Job) -> None:
        self.has_begun = False
        self._job = job
        self._aside = job.name.with_name(f".{job.name.name}.earlier-{os.getpid()}")

    def make(self) -> None:
        """Refuse, or set aside."""
        job = self._job
        try:
            job.name.parent.mkdir(parents=True, exist_ok=True)
            there = earlier_files(job)
            if not job.is_forced:
                _refuse([path for path in there if is_capture(job, path)], job)
                return
            for path in there:
                if path.is_dir() and not path.is_symlink():
                    raise IsADirectoryError(errno.EISDIR, f"{path.name} is a directory")
            if there:
                self._aside.mkdir()
            for path in there:
                with contextlib.suppress(FileNotFoundError):  # another node was first
                    path.rename(self._aside / path.name)
        except OSError as error:
            self.clear()
            raise OutputError(
                str(job.name), f"reports cannot be written there: {error.strerror}", fix="-o NAME"
            ) from error

    def clear(self) -> None:
        """Remove the earlier capture, or put back what has not been replaced."""
        if not self._aside.is_dir():
            return
        with contextlib.suppress(OSError):  # what cannot be put back stays where it is
            for path in sorted(self._aside.iterdir()):
                place = self._job.name.with_name(path.name)
                if not self.has_begun and not place.exists():
                    path.rename(place)
            shutil.rmtree(self._aside)


def _refuse(there: Sequence[Path], job: Job) -> None:
    if there:
        more = f", … {len(there) - _MOST_NAMED} more" if len(there) > _MOST_NAMED else ""
        raise OutputError(
            str(job.name),
            "an earlier capture of this name is there",
            found=", ".join(path.name for path in there[:_MOST_NAMED]) + more,
            fix="-o ANOTHER_NAME, or --force to replace it",
        )
