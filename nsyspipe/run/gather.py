"""The work on one report, a plain function of a path that returns small tables, and all reports on one step family.

Any `concurrent.futures.Executor` can run it. The step family is a decision of the whole run, which
one report cannot take: the digest holds every candidate, and windows for the one that would win
if this report were alone. Where the run decides otherwise, that report is digested again.
"""

from __future__ import annotations

import contextlib
import re
from concurrent.futures import Executor, as_completed
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from nsyspipe.analysis.attribution import by_process, distinct, launch_times
from nsyspipe.analysis.intervals import union
from nsyspipe.analysis.phases import between_steps, phase_codes
from nsyspipe.analysis.step_families import TextFamilies, candidates, choose, largest_families
from nsyspipe.errors import OptionError
from nsyspipe.model.names import is_optimizer
from nsyspipe.nsys.files import check_file
from nsyspipe.reader.metadata import Capture, read_capture
from nsyspipe.run.digest import (
    HostDigest,
    HostFamilies,
    ProcessDigest,
    digest_hosts,
    digest_process,
    host_families,
    step_members,
)
from nsyspipe.run.parallel import PRELOAD, SerialExecutor, executor_for, telling_shortage
from nsyspipe.run.placing import choose_family, choose_host_family
from nsyspipe.run.process import ProcessEvents, ReportContext

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Future
    from pathlib import Path

    from numpy.typing import NDArray

    from nsyspipe.analysis.attribution import ProcessOperations
    from nsyspipe.model.options import Reading
    from nsyspipe.model.problems import Problem
    from nsyspipe.reader.metadata import ReportFacts
    from nsyspipe.reader.payload import CommRank, Payloads


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


# Digest all reports of a run, agree on one step family, and digest again those that chose another.


# What a range of one step may be called.
_ONE_STEP = re.compile(r"(?i)(?<![a-z])(step|iter|iteration|batch)(?![a-z])")
_NAMED_FAMILIES = 6


@dataclass(frozen=True)
class Gathered:
    """The digests of a run's reports, all on one step family.

    Attributes
    ----------
    why_no_steps
        Why there is no family; None when there is one.
    """

    digests: tuple[ReportDigest, ...]
    family: str | None
    why_no_steps: str | None


def gather(
    paths: Sequence[Path],
    reading: Reading,
    *,
    jobs: int | None,
    executor: Executor | None,
    on_progress: Callable[[int, int], None] | None,
    named_family: Callable[[Sequence[ReportDigest]], str | None] | None = None,
) -> Gathered:
    """Digest the reports of a run.

    Parameters
    ----------
    named_family
        Asked first which family the steps are: what says it knows; None, or an answer of None, leaves it to be found.

    Raises
    ------
    InputError
        If a report cannot be used; the first in order of argument.
    OptionError
        If a step pattern matches nothing.
    """
    for path in paths:
        check_file(path)  # all of them, before any is read
    own = executor_for(paths, jobs, preload=PRELOAD)
    with contextlib.nullcontext(executor) if executor else own as running:
        digests = _digest_all(running, [(path, None) for path in paths], reading, on_progress)
        if not any(digest.processes for digest in digests):
            return _of_hosts(running, digests, reading, named_family)
        if reading.is_capture:
            return Gathered(tuple(digests), None, "as --step none asks for")
        family = named_family(digests) if named_family else None
        family = family or choose_family(digests)
        if reading.step is not None and family is None:
            raise _no_match(reading.step.pattern, digests)
        digests = _redo(running, digests, reading, family)
        named = reading.step.pattern if reading.step else family
        if family is not None and not any(p.windows.num_rows for d in digests for p in d.processes):
            return Gathered(
                tuple(_redo(running, digests, reading, None)),
                None,
                f"{named!r} ranges launched no kernel",
            )
    why = None if family is not None else _why_none(digests)
    return Gathered(tuple(digests), family, why)


def _of_hosts(
    running: Executor,
    digests: Sequence[ReportDigest],
    reading: Reading,
    named_family: Callable[[Sequence[ReportDigest]], str | None] | None,
) -> Gathered:
    """Agree on the step family of a run without device activity; a pattern that matches nothing is no error there."""
    if reading.is_capture:
        return Gathered(tuple(digests), None, "as --step none asks for")
    family = named_family(digests) if named_family else None
    family = family or choose_host_family(digests)
    wrong = [at for at, digest in enumerate(digests) if digest.hosts and digest.family != family]
    digests = _digest_again(running, digests, reading, family, wrong)
    return Gathered(tuple(digests), family, None if family is not None else "no process has any")


def _why_none(digests: Sequence[ReportDigest]) -> str:
    """Say why no family is of steps: none qualifies, or one named like a step is there just once on every rank."""
    own = [digest for digest in digests if digest.processes]
    for name, _ in own[0].families if own else ():
        if _ONE_STEP.search(name) and all(
            dict(digest.families).get(name) == len(digest.processes) for digest in own
        ):
            pattern = name.replace("#", "[0-9]+")
            return (
                f"there is one range {name!r} on every rank, and one step does not show what is usual: capture 10 or more, "
                f"or ask for it with --step '^{pattern}$'"
            )
    return "no family of NVTX ranges qualifies on every rank"


def _redo(
    running: Executor, digests: Sequence[ReportDigest], reading: Reading, family: str | None
) -> list[ReportDigest]:
    """Digest again the reports whose windows rest on another family."""
    wrong = [
        at for at, digest in enumerate(digests) if digest.processes and digest.family != family
    ]
    return _digest_again(running, digests, reading, family, wrong)


def _digest_again(
    running: Executor,
    digests: Sequence[ReportDigest],
    reading: Reading,
    family: str | None,
    wrong: Sequence[int],
) -> list[ReportDigest]:
    """Digest some of the reports again, on a given family."""
    result = list(digests)
    calls = [(digests[at].path, FamilyChoice(family)) for at in wrong]
    for at, digest in zip(wrong, _digest_all(running, calls, reading, None), strict=True):
        result[at] = digest
    return result


def _digest_all(
    running: Executor,
    calls: Sequence[tuple[Path | str, FamilyChoice | None]],
    reading: Reading,
    on_progress: Callable[[int, int], None] | None,
) -> list[ReportDigest]:
    works_at_once = isinstance(running, SerialExecutor)  # while submitting
    futures: list[Future[ReportDigest]] = []
    try:
        with telling_shortage():
            for path, family in calls:
                futures.append(running.submit(digest_report, str(path), reading, family))
                if works_at_once:
                    futures[-1].result()  # stop at the first error
                    if on_progress:
                        on_progress(len(futures), len(calls))
            if on_progress and not works_at_once:
                for n_done, _ in enumerate(as_completed(futures), start=1):
                    on_progress(n_done, len(calls))
            return [future.result() for future in futures]
    except BaseException:
        for future in futures:
            future.cancel()
        raise


def _no_match(pattern: str, digests: Sequence[ReportDigest]) -> OptionError:
    families: dict[str, int] = {}
    for digest in digests:
        for name, n_ranges in digest.families:
            families[name] = families.get(name, 0) + n_ranges
    shown = ", ".join(f"{name!r} ({n})" for name, n in list(families.items())[:_NAMED_FAMILIES])
    example = next(iter(families), "step #").replace("#", "[0-9]+")
    return OptionError(
        f"--step {pattern!r}",
        "matches no NVTX range, needed for steps",
        found=shown or "no NVTX ranges at all",
        fix=f"leave --step out, or name one of these, digits as [0-9]+: --step '^{example}$'",
    )
