"""The work on one report: a plain function of a path that returns small, picklable tables.

Any `concurrent.futures.Executor` can run it. The step family is a decision of the whole run, which
one report cannot take: the digest holds every candidate, and windows for the one that would win
if this report were alone. Where the run decides otherwise, that report is digested again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from nsyspipe.attribution import by_process, distinct, launch_times
from nsyspipe.classify import is_optimizer
from nsyspipe.families import TextFamilies, candidates, choose, largest_families
from nsyspipe.host_digest import HostDigest, HostFamilies, digest_hosts, host_families
from nsyspipe.intervals import union
from nsyspipe.phases import between_steps, phase_codes
from nsyspipe.process_digest import ProcessDigest, digest_process, step_members
from nsyspipe.process_events import ProcessEvents, ReportContext
from nsyspipe.read.capture import Capture, read_capture

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from nsyspipe.attribution import ProcessOperations
    from nsyspipe.problems import Problem
    from nsyspipe.read.facts import ReportFacts
    from nsyspipe.read.payload import CommRank, Payloads
    from nsyspipe.settings import Reading

__all__ = ["FamilyChoice", "ReportDigest", "digest_report"]

_SHOWN_FAMILIES = 8


@dataclass(frozen=True)
class FamilyChoice:
    """The step family that a run decided on; None makes each rank's capture one window."""

    name: str | None


@dataclass(frozen=True)
class ReportDigest:
    """What the run needs of one report.

    Attributes
    ----------
    mpi_ranks, comm_ranks
        Rank by process, from MPI's thread names and from NCCL's payload.
    comm_sizes
        Number of ranks by communicator, from the same.
    hosts
        In a report without device activity the processes with ranges of their own.
    family
        The step family that the windows rest on, or the hosts' steps; None when the capture is one window.
    families
        The largest families and their number of ranges, for messages.
    name_column, open_end_ns
        What a second reading must not decide anew: where kernels' names come from, and when ranges that were never
        closed end.
    n_graphs
        CUDA graphs that were captured as a whole.
    has_communication
        Whether anything says that its processes communicate: a kernel, or NCCL or MPI in NVTX.
    size_gap
        Why NCCL does not say how many bytes it sends: a key of `problems.SIZE_GAPS`; None where it does.
    """

    path: str
    facts: ReportFacts
    mpi_ranks: dict[int, int]
    comm_ranks: dict[int, CommRank]
    comm_sizes: dict[int, int]
    processes: tuple[ProcessDigest, ...]
    hosts: tuple[HostDigest, ...]
    family: str | None
    families: tuple[tuple[str, int], ...]
    name_column: str | None
    open_end_ns: int | None
    n_graphs: int
    has_communication: bool
    size_gap: str | None
    problems: tuple[Problem, ...]


def digest_report(path: str, reading: Reading, family: FamilyChoice | None = None) -> ReportDigest:
    """Read one report and reduce it to small tables.

    Parameters
    ----------
    path
        An SQLite export.
    reading
        The patterns that decide what an event is.
    family
        The step family to use; None lets this report choose its own best.

    Raises
    ------
    InputError
        If the file cannot be used.
    """
    capture = read_capture(path, reading.comm_kernel)
    texts = _texts(capture.ranges.table)
    named = TextFamilies.by_text(texts)
    families = TextFamilies.by_option(texts, reading.step) if reading.step else named
    events = _split(capture)
    context = ReportContext(
        families=families,
        codes=phase_codes(named, reading.phases),
        names=capture.operations.names,
        recorded=capture.recorded,
        overhead=None if capture.overhead is None else union(*capture.overhead),
    )
    found = [
        candidates(
            one.ranges, families, one.operations, _optimizer_launches(one.operations, context.names)
        )
        for one in events
    ]
    hosts = HostFamilies({}, {}) if events else host_families(capture.ranges, families)
    best = choose(found, [0] * len(found)) if events else hosts.best
    chosen = family.name if family else None if reading.is_capture else best
    members = [
        step_members(one, families, own, chosen) for one, own in zip(events, found, strict=True)
    ]
    host = [
        between_steps(one.ranges, context.codes, own, capture.calls)
        for one, own in zip(events, members, strict=True)
    ]
    capture = capture.without_events()  # most of the memory, not needed any more
    digests = [
        digest_process(one, context, own, steps, between, family=chosen)
        for one, own, steps, between in zip(events, found, members, host, strict=True)
    ]
    return ReportDigest(
        path=path,
        facts=capture.facts,
        mpi_ranks=capture.ranges.mpi_ranks,
        comm_ranks=capture.payloads.comm_ranks,
        comm_sizes=_comm_sizes(capture.payloads),
        processes=tuple(digest for digest, _ in digests),
        hosts=digest_hosts(
            hosts,
            families,
            context.codes,
            family=chosen,
            open_end_ns=capture.ranges.open_end_ns,
        ),
        family=chosen,
        families=largest_families(capture.ranges.table, named, _SHOWN_FAMILIES),
        name_column=capture.operations.name_column,
        open_end_ns=capture.ranges.open_end_ns,
        n_graphs=capture.operations.n_graphs,
        has_communication=capture.ranges.has_communication
        or any(digest.n_comm for digest, _ in digests),
        size_gap=_size_gap(capture),
        problems=(
            *capture.problems,
            *(one for _, problems in digests for one in problems),
        ),
    )


def _optimizer_launches(
    operations: ProcessOperations, names: Mapping[int, str]
) -> NDArray[np.int64] | None:
    """Return when the kernels that update the weights were launched, sorted; None where none is known by its name."""
    ids = [number for number, name in names.items() if is_optimizer(name)]
    if not ids:
        return None
    own = np.isin(operations.kernel_column("name_id", 0, operations.n_launched), ids)
    found: NDArray[np.int64] = operations.kernel_launch[: operations.n_launched][own]
    return found if found.size else None


def _size_gap(capture: Capture) -> str | None:
    gap = capture.payloads.size_gap
    return gap if gap is None or capture.ranges.has_nccl else "no-ranges"


def _texts(ranges: pa.Table) -> pa.StringArray:
    """Return the dictionary of the ranges' texts."""
    return (
        ranges["text"].combine_chunks().dictionary if ranges.num_rows else pa.array([], pa.string())
    )


def _split(capture: Capture) -> list[ProcessEvents]:
    """Return the events of each process with device activity, in order of process id."""
    kernels, copies = capture.operations.kernels, capture.operations.copies
    processes = np.union1d(distinct(kernels["process_id"]), distinct(copies["process_id"])).tolist()
    calls, launches = capture.blocking_calls, capture.launches
    nothing = [None] * len(processes)
    return [
        ProcessEvents.of(
            process,
            own_kernels,
            own_copies,
            (launch_times(own_kernels, own_launches), launch_times(own_copies, own_launches)),
            ranges=own_ranges,
            payloads=own_payloads,
            blocking_calls=own_calls,
            waits=own_waits,
            calls=own_host_calls,
        )
        for process, own_kernels, own_copies, own_launches, own_ranges, own_payloads, own_calls, own_waits, own_host_calls in zip(
            processes,
            by_process(kernels, processes),
            by_process(copies, processes),
            nothing if launches is None else by_process(launches, processes),
            by_process(capture.ranges.table, processes),
            by_process(capture.payloads.table, processes),
            nothing if calls is None else by_process(calls, processes),
            by_process(capture.waits, processes),
            nothing if capture.calls is None else by_process(capture.calls, processes),
            strict=True,
        )
    ]


def _comm_sizes(payloads: Payloads) -> dict[int, int]:
    sizes = payloads.comm_sizes
    return dict(zip(sizes["comm_id"].to_pylist(), sizes["n_ranks"].to_pylist(), strict=True))
