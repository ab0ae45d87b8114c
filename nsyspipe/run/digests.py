"""The digest of one report, and the ranks that the digests of a run hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import compress
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
from msgspec import Struct, field

from nsyspipe.analysis.comm_calls import Called
from nsyspipe.model.problems import Problem
from nsyspipe.model.table import Flags, Int64
from nsyspipe.model.user_paths import ReportFile
from nsyspipe.reader.facts import ReportFacts
from nsyspipe.reader.gpu_metrics import NO_COUNTERS, Counters
from nsyspipe.reader.report import Zones
from nsyspipe.run.process import HostDigest, ProcessDigest
from nsyspipe.run.unrecorded import UnrecordedProcess

P = TypeVar("P", ProcessDigest, HostDigest)


class ReportDigest(Struct, frozen=True):
    """What the run needs of one report."""

    file: ReportFile
    facts: ReportFacts
    # rank by process, from MPI's thread names
    mpi_ranks: dict[int, int]
    # rank and size of the communicator by process, from NCCL's payload
    comm_ranks: dict[int, tuple[int, int]]
    # number of ranks by communicator, from NCCL's payload
    comm_sizes: dict[int, int]
    # the ranks: each process on each of its devices, in this order
    processes: tuple[ProcessDigest, ...]
    # in a report without device activity, the processes with ranges
    hosts: tuple[HostDigest, ...]
    # of the steps of windows or hosts, or None if the capture is one window
    family: str | None
    # families that no step pattern names, with their number of ranges, the most time first
    families: tuple[tuple[str, int], ...]
    # families that are named like a phase: family, phase, number of ranges
    phase_families: tuple[tuple[str, str, int], ...]
    # number of ranges that match the step pattern, or None without a pattern
    n_named_steps: int | None
    # What a second reading must not decide again: the column of kernel names, and the end of
    # ranges that never closed.
    name_column: str | None
    open_end_ns: int | None
    # of large tables, which find the rows of a span
    zones: Mapping[str, Zones]
    # what is communication because of the calls that launched it
    called: Called
    # number of CUDA graphs that were captured as a whole
    n_graphs: int
    # number of NVTX ranges of NCCL
    n_nccl_ranges: int
    # number of NCCL calls whose message size can be read
    n_message_bytes: int
    # whether anything shows communication: a kernel, or NCCL or MPI in NVTX
    has_communication: bool
    # why NCCL does not report message sizes (`problems.SIZE_GAPS`), or None if it does
    size_gap: str | None
    problems: tuple[Problem, ...]
    # hardware counters of GPUs of this host
    counters: Counters = NO_COUNTERS
    # number of samples of the main threads of Python, whose lines are known
    n_python_samples: int = 0
    # number of times in which a thread of the program waits for Python's lock or holds it, or None
    # if they were not recorded
    n_lock_ranges: int | None = None
    # whether nsys recorded the memory of GPUs
    has_memory_sizes: bool = False
    # processes without kernels, in a report that has kernels of other processes
    unrecorded: tuple[UnrecordedProcess, ...] = ()

    @property
    def hosts_with_steps(self) -> list[HostDigest]:
        """The processes that are counted as ranks if no report of the run has device activity."""
        return [host for host in self.hosts if host.members.num_rows]


class Rank(Struct, Generic[P], frozen=True):
    """A process on one of its devices, or one with steps in a run without device activity."""

    # position of its report among the run's
    argument: int
    report: ReportDigest
    process: P
    # added to report time to get aligned time
    shift_ns: int
    # whether its report holds no rank of another process
    is_alone: bool = True
    # The rank number, once ranks are numbered, and that of the process. They are the same unless
    # some process has several devices.
    number: int = -1
    process_number: int = -1
    # the step number of each of its members, once ranks are numbered
    steps: Int64 = field(default_factory=lambda: np.empty(0, np.int64))
    # if the process was captured several times, each capture in order of time
    captures: tuple[Rank[P], ...] = ()

    @property
    def parts(self) -> tuple[Rank[P], ...]:
        """Its captures, or itself: each is in one report."""
        return self.captures or (self,)

    @property
    def place(self) -> tuple[int, int]:
        """The argument of its report, and its process."""
        return self.argument, self.process.process_id

    @property
    def span(self) -> tuple[int, int]:
        """First start and last end of its operations, or of its steps, aligned time."""
        first_ns, last_ns = self.process.span
        shift_ns = self.shift_ns
        return first_ns + shift_ns, last_ns + shift_ns


Ranks: TypeAlias = Sequence[Rank[ProcessDigest]]
R = TypeVar("R", bound=Rank[Any])


def are_windows_in(rank: Rank[ProcessDigest], steps: Sequence[int] | Int64) -> Flags:
    """Tell which windows of a rank, whose steps are numbered, are of some steps."""
    member_of_window = rank.process.windows["member"].to_numpy()
    step_of_window = rank.steps[member_of_window]
    is_in_steps: Flags = np.isin(step_of_window, steps)
    return is_in_steps


def one_of_each_process(ranks: Sequence[R]) -> list[R]:
    """Return the first rank of each process.

    Launchers and rank maps number processes, whatever devices these have.
    """
    first: dict[tuple[int, int], R] = {}
    for rank in ranks:
        first.setdefault(rank.place, rank)
    return list(first.values())


def place(digests: Sequence[ReportDigest]) -> list[Rank[ProcessDigest]]:
    """List the ranks of a run, in order of argument."""
    processes_of_reports = [digest.processes for digest in digests]
    return _placed(digests, processes_of_reports)


def place_hosts(digests: Sequence[ReportDigest]) -> list[Rank[HostDigest]]:
    """List the processes with steps of a run without device activity, in order of argument."""
    hosts_of_reports = [digest.hosts_with_steps for digest in digests]
    return _placed(digests, hosts_of_reports)


def _placed(
    digests: Sequence[ReportDigest], processes_of_reports: Sequence[Sequence[P]]
) -> list[Rank[P]]:
    """Return a rank for each process of each report, without a number yet."""
    shifts_ns = clock_shifts(digests)
    ranks = []
    for argument, processes in enumerate(processes_of_reports):
        digest = digests[argument]
        shift_ns = shifts_ns[argument]
        process_ids = {process.process_id for process in processes}
        is_alone = len(process_ids) == 1
        for process in processes:
            rank = Rank(argument, digest, process, shift_ns=shift_ns, is_alone=is_alone)
            ranks.append(rank)
    return ranks


def have_ranks(digests: Sequence[ReportDigest]) -> list[bool]:
    """Tell which reports have ranks.

    In a run without device activity, these are reports that may have steps of hosts.
    """
    if any(digest.processes for digest in digests):
        return [bool(digest.processes) for digest in digests]
    return [bool(digest.hosts) for digest in digests]


def clock_shifts(digests: Sequence[ReportDigest]) -> list[int]:
    """Return what is added to the times of each report to get aligned time.

    It is the time from the earliest session start to that of the report. It is 0 for all reports if
    a report with ranks has no session start. Other reports may have none.
    """
    starts_ns = [digest.facts.session_start_utc_ns for digest in digests]
    starts_of_ranks_ns = compress(starts_ns, have_ranks(digests))
    if None in starts_of_ranks_ns:
        return [0] * len(starts_ns)
    known_starts_ns = [start_ns for start_ns in starts_ns if start_ns is not None]
    earliest_ns = min(known_starts_ns, default=0)
    return [0 if start_ns is None else start_ns - earliest_ns for start_ns in starts_ns]
