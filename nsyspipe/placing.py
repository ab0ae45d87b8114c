"""The processes of a run, each with its report and its place on the common clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nsyspipe.families import choose

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsyspipe.digest import ReportDigest
    from nsyspipe.process_digest import ProcessDigest

__all__ = ["PlacedProcess", "choose_family", "clock_shifts", "place", "world_size"]


@dataclass(frozen=True)
class PlacedProcess:
    """A process with device activity, and where it comes from.

    Attributes
    ----------
    argument
        Position of its report among the run's.
    shift_ns
        Added to report time to get aligned time.
    """

    argument: int
    report: ReportDigest
    process: ProcessDigest
    shift_ns: int

    @property
    def span(self) -> tuple[int, int]:
        """First start and last end of its operations, aligned time."""
        first, last = self.process.span
        return first + self.shift_ns, last + self.shift_ns

    @property
    def is_alone(self) -> bool:
        """Whether its report holds no other rank."""
        return len(self.report.processes) == 1


def clock_shifts(digests: Sequence[ReportDigest]) -> list[int]:
    """Return what turns each report's time into aligned time: its session start less the earliest.

    Zeros when any report does not say when its session started.
    """
    starts = [digest.facts.session_start_utc_ns for digest in digests]
    known = [start for start in starts if start is not None]
    if len(known) < len(starts):
        return [0] * len(starts)
    return [start - min(known) for start in known]


def place(digests: Sequence[ReportDigest]) -> list[PlacedProcess]:
    """List the processes of a run, in order of argument."""
    shifts = clock_shifts(digests)
    return [
        PlacedProcess(argument, digest, process, shifts[argument])
        for argument, digest in enumerate(digests)
        for process in digest.processes
    ]


def choose_family(digests: Sequence[ReportDigest]) -> str | None:
    """Decide on the step family of a run; None for none."""
    placed = place(digests)
    return choose([one.process.candidates for one in placed], [one.shift_ns for one in placed])


def world_size(digests: Sequence[ReportDigest]) -> int | None:
    """Return the captured WORLD_SIZE, else the size of NCCL's largest communicator, else None."""
    captured = [
        size for digest in digests if (size := digest.facts.number("WORLD_SIZE")) is not None
    ]
    if captured:
        return captured[0]
    return max(
        (comm.n_ranks for digest in digests for comm in digest.comm_ranks.values()), default=None
    )
