"""Processes of a run whose kernels were not recorded, and which ranks they may be."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from msgspec import Struct

from nsyspipe.analysis.steps import TextFamilies
from nsyspipe.model.names import few, listed, noun_for
from nsyspipe.model.problems import Problem, problem
from nsyspipe.model.typed_tables import (
    RangesOfReportTable,
)
from nsyspipe.reader.report import pid_of

# A problem lists this many processes or ranks.
_MAX_SHOWN = 8
_COST_OF_RANKS = (
    "No metric includes their GPU work. Wait time, transfer time, bandwidth and stragglers are "
    "not available for "
    "communication with these processes"
)
_COST_OF_OTHERS = "If these processes ran kernels, no metric includes the kernels"


class UnrecordedProcess(Struct, frozen=True):
    """A process that launched work or has ranges in a report, but none of its kernels are there."""

    process_id: int
    # Calls that launched kernels or CUDA graphs.
    n_launches: int
    # The user's NVTX ranges, and those of them that are steps.
    n_ranges: int
    n_steps: int
    # Its rank, if NCCL or MPI says.
    number: int | None

    @property
    def is_rank(self) -> bool:
        """Whether it did what ranks do."""
        return self.n_launches > 0 or self.n_steps > 0


def unrecorded_processes(
    launches: Mapping[int, int],
    ranges: RangesOfReportTable,
    families: TextFamilies,
    family: str | None,
    numbers: Mapping[int, int],
) -> tuple[UnrecordedProcess, ...]:
    """Return the processes without kernels that launched work or have ranges of the user.

    `launches` has the number of launches of each process without kernels, by its ID. `families` are
    the families that steps may be of, and `family` is the family of the steps. `numbers` has the
    ranks that the report names, by process ID.
    """
    if not launches:
        return ()
    process_id_of_range = ranges["process_id"].to_numpy()
    is_of_user = ~ranges["is_library"].to_numpy()
    if family in families.names:
        text_of_range = ranges["text"].combine_chunks().indices.to_numpy()
        family_of_range = families.of_text[text_of_range]
        is_step = family_of_range == families.names.index(family)
    else:
        is_step = np.zeros(ranges.num_rows, np.bool_)
    n_ranges_of_process = Counter(process_id_of_range[is_of_user].tolist())
    n_steps_of_process = Counter(process_id_of_range[is_step].tolist())
    processes = []
    for process_id, n_launches in sorted(launches.items()):
        n_ranges = n_ranges_of_process[process_id]
        n_steps = n_steps_of_process[process_id]
        number = numbers.get(process_id)
        if n_launches or n_ranges:
            process = UnrecordedProcess(process_id, n_launches, n_ranges, n_steps, number)
            processes.append(process)
    return tuple(processes)


class MissingRanks(Struct, frozen=True):
    """The ranks of the job that the reports lack, by number. None is not known."""

    world_size: int | None
    numbers: Sequence[int] | None


def problems_of(processes: Sequence[UnrecordedProcess], missing: MissingRanks) -> Iterator[Problem]:
    """Yield problems that name the processes without kernels in one report, ranks first.

    `missing` are the ranks of the job that no report has, which these processes may be.
    """
    ranks = [process for process in processes if process.is_rank]
    yield from _problems_of_ranks(ranks, missing)
    helpers = [process for process in processes if not process.is_rank]
    if helpers:
        n_ranges = sum(process.n_ranges for process in helpers)
        activity = f"{_have(helpers)} {n_ranges:,} NVTX {noun_for(n_ranges, 'range')}"
        yield _problem(
            helpers, activity=activity, identity="", cost=_COST_OF_OTHERS, severity="info"
        )


def _problems_of_ranks(
    ranks: Sequence[UnrecordedProcess], missing: MissingRanks
) -> Iterator[Problem]:
    """Yield a problem of the ranks that launched work, and one of the ranks with only steps."""
    launching = [rank for rank in ranks if rank.n_launches]
    if launching:
        n_launches = sum(rank.n_launches for rank in launching)
        kernels = noun_for(n_launches, "kernel")
        activity = f"launched {n_launches:,} {kernels} or CUDA {noun_for(n_launches, 'graph')}"
        identity = _identify(launching, missing, len(ranks))
        yield _problem(launching, activity=activity, identity=identity, cost=_COST_OF_RANKS)
    stepping = [rank for rank in ranks if not rank.n_launches]
    if stepping:
        n_steps = sum(rank.n_steps for rank in stepping)
        activity = f"{_have(stepping)} {n_steps:,} {noun_for(n_steps, 'step')} of the run"
        identity = _identify(stepping, missing, len(ranks))
        yield _problem(stepping, activity=activity, identity=identity, cost=_COST_OF_RANKS)


def _problem(
    processes: Sequence[UnrecordedProcess],
    *,
    activity: str,
    identity: str,
    cost: str,
    severity: str | None = None,
) -> Problem:
    """Return the problem that the kernels of some processes were not recorded.

    `activity` is what the processes did, and `identity` which ranks they are, in brackets or empty.
    `cost` is what is not known without their kernels.
    """
    pids = [str(pid_of(process.process_id)) for process in processes]
    is_single = len(processes) == 1
    noun = "process" if is_single else "processes"
    pronoun = "it" if is_single else "them"
    return problem(
        "processes-without-kernels",
        severity=severity,
        processes=f"{noun} {few(pids, _MAX_SHOWN)}",
        them=pronoun,
        what=activity,
        stand_for=identity,
        cost=cost,
    )


def _have(processes: Sequence[UnrecordedProcess]) -> str:
    """Return the verb that follows the processes."""
    return "has" if len(processes) == 1 else "have"


def _identify(processes: Sequence[UnrecordedProcess], missing: MissingRanks, n_ranks: int) -> str:
    """Return in words which ranks the processes are, empty if nothing shows it.

    The processes may name their ranks. Else they are some of the `missing` ranks. They are all of
    these only if they are all `n_ranks` ranks without kernels, and as many ranks are missing.
    """
    n_processes = len(processes)
    world_size = missing.world_size
    numbers = [process.number for process in processes]
    known_numbers = sorted(number for number in numbers if number is not None)
    if known_numbers and len(known_numbers) == n_processes:
        return f" (these processes are {_list_ranks(known_numbers)})"
    if world_size is None:
        return ""
    if missing.numbers is None:
        return f" (these processes are {n_processes} of the {world_size} ranks of the job)"
    if not missing.numbers:
        return ""
    missing_ranks = _list_ranks(missing.numbers)
    are_all_ranks = n_processes == n_ranks
    if are_all_ranks and len(missing.numbers) == n_ranks:
        return f" (these processes are {missing_ranks})"
    return f" (these processes are some of {missing_ranks})"


def _list_ranks(numbers: Sequence[int]) -> str:
    """Return the first of some ranks in words, such as ``ranks 0 and 1``."""
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    names = [str(number) for number in numbers]
    if len(names) > _MAX_SHOWN:
        return f"ranks {few(names, _MAX_SHOWN)}"
    return f"ranks {listed(names)}"
