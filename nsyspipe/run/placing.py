"""The processes of a run, each with its place on the common clock, and what they decide: step family, size of the world."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nsyspipe.analysis.step_families import choose, choose_host
from nsyspipe.reader.metadata import LAUNCHER_SIZES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsyspipe.model.fabric import NcclLog
    from nsyspipe.run.digest import HostDigest, ProcessDigest
    from nsyspipe.run.gather import ReportDigest


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


@dataclass(frozen=True)
class PlacedHost:
    """A process with steps in a run without device activity, and where it comes from.

    Attributes
    ----------
    is_alone
        Whether its report holds no other process with steps.
    """

    argument: int
    report: ReportDigest
    process: HostDigest
    shift_ns: int
    is_alone: bool

    @property
    def span(self) -> tuple[int, int]:
        """First start and last end of its steps, aligned time."""
        first, last = self.process.span
        return first + self.shift_ns, last + self.shift_ns


def clock_shifts(digests: Sequence[ReportDigest]) -> list[int]:
    """Return what turns each report's time into aligned time: its session start less the earliest.

    Zeros when any report that holds a rank does not say when its session started; without any rank, when any that
    holds steps does not.
    """
    starts = [digest.facts.session_start_utc_ns for digest in digests]
    has_ranks = any(digest.processes for digest in digests)
    if any(
        (digest.processes if has_ranks else digest.hosts) and start is None
        for digest, start in zip(digests, starts, strict=True)
    ):
        return [0] * len(starts)
    first = min((start for start in starts if start is not None), default=0)
    return [0 if start is None else start - first for start in starts]


def place(digests: Sequence[ReportDigest]) -> list[PlacedProcess]:
    """List the processes of a run, in order of argument."""
    shifts = clock_shifts(digests)
    return [
        PlacedProcess(argument, digest, process, shifts[argument])
        for argument, digest in enumerate(digests)
        for process in digest.processes
    ]


def place_hosts(digests: Sequence[ReportDigest]) -> list[PlacedHost]:
    """List the processes with steps of a run without device activity, in order of argument."""
    shifts = clock_shifts(digests)
    placed = []
    for argument, digest in enumerate(digests):
        found = [host for host in digest.hosts if host.members.num_rows]
        placed += [
            PlacedHost(argument, digest, host, shifts[argument], is_alone=len(found) == 1)
            for host in found
        ]
    return placed


def choose_host_family(digests: Sequence[ReportDigest]) -> str | None:
    """Decide on the step family of a run without device activity; None for none."""
    candidates = [[host.candidates for host in digest.hosts] for digest in digests]
    return choose_host(candidates, clock_shifts(digests))


def choose_family(digests: Sequence[ReportDigest]) -> str | None:
    """Decide on the step family of a run; None for none."""
    placed = place(digests)
    return choose([one.process.candidates for one in placed], [one.shift_ns for one in placed])


def told_world_size(digests: Sequence[ReportDigest], said: int | None) -> int | None:
    """Return the captured WORLD_SIZE, else what the sidecar said: the ranks of the job, not of a communicator."""
    captured = (digest.facts.number("WORLD_SIZE") for digest in digests)
    return next((size for size in captured if size is not None), said)


def world_size(
    digests: Sequence[ReportDigest],
    log: NcclLog | None = None,
    said: int | None = None,
    launched: int | None = None,
) -> int | None:
    """Return how many ranks the job had; None where nothing says it.

    The captured WORLD_SIZE, else what the sidecar said, else how many the launcher started that numbered them
    (`launched`), else the size of NCCL's largest communicator; of these, those of the payload go before those of the
    log.
    """
    told = told_world_size(digests, said)
    if told is not None:
        return told
    if launched is not None:
        return launched
    sizes = [comm.n_ranks for digest in digests for comm in digest.comm_ranks.values()]
    return max(sizes or [comm.n_ranks for comm in (log.communicators if log else ())], default=None)


def run_sizes(digests: Sequence[ReportDigest], said: int | None = None) -> list[int]:
    """Return how many ranks a run may have as far as its reports tell, sorted: those there, and the world's."""
    n_ranks = sum(len(digest.processes) for digest in digests)
    launched = {
        size
        for digest in digests
        for name in LAUNCHER_SIZES.values()
        if (size := digest.facts.number(name)) is not None and size >= n_ranks
    }
    return sorted({n_ranks, world_size(digests, said=said) or n_ranks, *launched})


def own_log(
    digests: Sequence[ReportDigest], log: NcclLog, said: int | None = None
) -> NcclLog | None:
    """Return what NCCL logged of a run; None when the log is of another one."""
    pids = {process.pid for digest in digests for process in digest.processes}
    return log.of_run(pids, run_sizes(digests, said))
