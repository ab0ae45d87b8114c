"""The processes of a run with their rank numbers, and the size of the job that they belong to."""

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct

from nsyspipe.analysis.steps import step_numbers
from nsyspipe.model.side_files import NcclLog
from nsyspipe.nsys.find_reports import display_names
from nsyspipe.run.captures import joined_ranks, step_ordinals, with_steps
from nsyspipe.run.digests import P, Rank, place, place_hosts
from nsyspipe.run.gather import Gathered
from nsyspipe.run.process import HostDigest, ProcessDigest
from nsyspipe.run.ranks import JobSize, Numbering, is_surely_one_run, job_size, number_ranks


class NumberedRun(Struct, frozen=True):
    """A run with the numbers of its ranks, before anything is compared between ranks."""

    gathered: Gathered
    # The displayed name of each report.
    report_names: Sequence[str]
    # In ascending order of their numbers. Without GPU activity there are no ranks, but hosts.
    ranks: Sequence[Rank[ProcessDigest]]
    hosts: Sequence[Rank[HostDigest]]
    numbering: Numbering
    job: JobSize
    # Rank numbers of all reports, if only some reports are read. Else empty.
    ranks_of_all_reports: frozenset[int]
    # Whether the reports themselves show that they are of one run.
    is_one_run: bool
    # Whether the ranks have no steps: each capture is then one window.
    is_capture: bool

    @property
    def is_numbered(self) -> bool:
        """Whether the numbers of ranks are more than the order of the reports."""
        return self.numbering.source != "order"

    @property
    def has_all_ranks(self) -> bool:
        """Whether nothing shows that the job had more ranks."""
        return self.job.has_all(len(self.ranks))


def number_run(
    gathered: Gathered,
    rank_map: Mapping[str, int] | None,
    log: NcclLog | None,
    ranks_of_all_reports: frozenset[int],
) -> NumberedRun:
    """Give the ranks of a run their numbers, and find the size of the job.

    If the run has no ranks, its hosts get numbers: the processes that have steps on the CPU.
    """
    digests = gathered.digests
    report_files = [digest.file for digest in digests]
    is_one_run = is_surely_one_run(digests, gathered.sidecars)
    ranks = joined_ranks(place(digests), is_one_job=is_one_run)
    hosts = [] if ranks else place_hosts(digests)
    ranks_or_hosts = ranks or hosts
    numbering = number_ranks(digests, ranks_or_hosts, rank_map, gathered.sidecars)
    job = job_size(
        gathered, ranks_or_hosts, numbering, log=log, ranks_of_all_reports=ranks_of_all_reports
    )
    has_no_steps = gathered.why_no_steps is not None
    is_capture = bool(ranks) and has_no_steps
    numbered_ranks = _with_numbers(ranks, numbering, is_capture=is_capture)
    numbered_hosts = _with_numbers(hosts, numbering, is_capture=False)
    return NumberedRun(
        gathered=gathered,
        report_names=display_names(report_files),
        ranks=numbered_ranks,
        hosts=numbered_hosts,
        numbering=numbering,
        job=job,
        ranks_of_all_reports=ranks_of_all_reports,
        is_one_run=is_one_run,
        is_capture=is_capture,
    )


def _with_numbers(
    ranks: Sequence[Rank[P]], numbering: Numbering, *, is_capture: bool
) -> list[Rank[P]]:
    """Return ranks with their numbers and the numbers of their steps, in ascending order.

    `is_capture` says that the ranks have no steps. Then each capture of a rank is one window, and
    windows are counted from 0.
    """
    if is_capture:
        steps_of_ranks = [np.arange(len(rank.parts)) for rank in ranks]
    else:
        ordinals = step_ordinals([rank.parts for rank in ranks])
        marked_numbers = [rank.process.members["number"] for rank in ranks]
        steps_of_ranks = step_numbers(marked_numbers, ordinals)
    if not ranks:
        # `numbering` is of the hosts of the run, and this is the empty list of its ranks, or the
        # other way round.
        return []
    process_numbers = numbering.process_numbers
    numbered = map(with_steps, ranks, numbering.numbers, process_numbers, steps_of_ranks)
    return sorted(numbered, key=lambda rank: rank.number)
