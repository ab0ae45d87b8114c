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
import pyarrow.compute as pc

from nsyspipe.attribution import distinct, launch_times
from nsyspipe.families import TextFamilies, candidates, choose, largest_families
from nsyspipe.host_digest import HostDigest, HostFamilies, digest_hosts, host_families
from nsyspipe.intervals import union
from nsyspipe.phases import between_steps, phase_codes
from nsyspipe.process_digest import ProcessDigest, digest_process, step_members
from nsyspipe.process_events import ProcessEvents, ReportContext
from nsyspipe.read.capture import Capture, read_capture

if TYPE_CHECKING:
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
    found = [candidates(one.ranges, families, one.operations) for one in events]
    hosts = HostFamilies({}, {}) if events else host_families(capture.ranges, families)
    best = choose(found, [0] * len(found)) if events else hosts.best
    chosen = family.name if family else best
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
        problems=(
            *capture.problems,
            *(one for _, problems in digests for one in problems),
        ),
    )


def _texts(ranges: pa.Table) -> pa.StringArray:
    """Return the dictionary of the ranges' texts."""
    return (
        ranges["text"].combine_chunks().dictionary if ranges.num_rows else pa.array([], pa.string())
    )


def _split(capture: Capture) -> list[ProcessEvents]:
    """Return the events of each process with device activity, in order of process id."""
    kernels, copies = capture.operations.kernels, capture.operations.copies
    launch = launch_times(kernels, capture.launches), launch_times(copies, capture.launches)
    processes = np.union1d(distinct(kernels["process_id"]), distinct(copies["process_id"])).tolist()
    events = []
    for process in processes:
        tables, times = (kernels, copies), launch
        if len(processes) > 1:
            mine = [pc.equal(table["process_id"], process) for table in tables]
            tables = tuple(table.filter(own) for table, own in zip(tables, mine, strict=True))
            times = tuple(time[own.to_numpy()] for time, own in zip(launch, mine, strict=True))
        calls = capture.blocking_calls
        events.append(
            ProcessEvents.of(
                process,
                *tables,
                times,
                ranges=_of_process(capture.ranges.table, process),
                payloads=_of_process(capture.payloads.table, process),
                blocking_calls=None if calls is None else _of_process(calls, process),
                waits=_of_process(capture.waits, process),
                calls=None if capture.calls is None else _of_process(capture.calls, process),
            )
        )
    return events


def _comm_sizes(payloads: Payloads) -> dict[int, int]:
    sizes = payloads.comm_sizes
    return dict(zip(sizes["comm_id"].to_pylist(), sizes["n_ranks"].to_pylist(), strict=True))


def _of_process(table: pa.Table, process: int) -> pa.Table:
    mine = pc.equal(table["process_id"], process)
    return table if pc.all(mine, min_count=0).as_py() else table.filter(mine)
