"""Processes of a run whose kernels were not recorded: what is known of each, and for which ranks they stand."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from msgspec import Struct

from nsyspipe.analysis.steps import TextFamilies
from nsyspipe.model.names import few, listed
from nsyspipe.model.problems import Problem, problem
from nsyspipe.reader.report import pid_of

_SHOWN = 8
_COST_OF_RANKS = (
    "No metric includes their GPU work. Wait time, transfer time, bandwidth and stragglers are "
    "not available for "
    "communication with these processes"
)
_COST_OF_OTHERS = "If these processes ran kernels, no metric includes the kernels"


class UnrecordedProcess(Struct, frozen=True):
    """A process of a report that launched work or has ranges, but of which there is no kernel."""

    process_id: int
    n_launches: int  # calls that launched kernels or CUDA graphs
    n_ranges: int  # the user's NVTX ranges
    n_steps: int  # of them those of the steps' family
    number: int | None  # its rank, as NCCL or MPI says

    @property
    def is_rank(self) -> bool:
        """Whether it did what ranks do."""
        return self.n_launches > 0 or self.n_steps > 0


def unrecorded_processes(
    launches: Mapping[int, int],
    ranges: pa.Table,
    families: TextFamilies,
    family: str | None,
    numbers: Mapping[int, int],
) -> tuple[UnrecordedProcess, ...]:
    """Return the processes without kernels, of `metadata.Capture.launches_without_kernels`, with what their ranges say.

    `families` and `family` are those of the steps, `numbers` the ranks by process that the report
    tells.
    """
    if not launches:
        return ()
    owner = ranges["process_id"].to_numpy()
    is_own = ~ranges["is_library"].to_numpy()
    is_step = np.zeros(ranges.num_rows, np.bool_)
    if family in families.names:
        is_step = families.of_text[
            ranges["text"].combine_chunks().indices.to_numpy()
        ] == families.names.index(family)
    n_ranges, n_steps = (Counter(owner[rows].tolist()) for rows in (is_own, is_step))
    return tuple(
        UnrecordedProcess(
            process_id,
            n_launches,
            n_ranges[process_id],
            n_steps[process_id],
            numbers.get(process_id),
        )
        for process_id, n_launches in sorted(launches.items())
        if n_launches or n_ranges[process_id]
    )


class MissingRanks(Struct, frozen=True):
    """Which ranks of the job are not there, by number; None where that is not known."""

    world_size: int | None
    numbers: Sequence[int] | None


def problems_of(processes: Sequence[UnrecordedProcess], missing: MissingRanks) -> Iterator[Problem]:
    """Name the processes of one report without kernels: those that are ranks first; and say what is unknown for them."""
    ranks = [process for process in processes if process.is_rank]
    launched = [rank for rank in ranks if rank.n_launches]
    stepping = [rank for rank in ranks if not rank.n_launches]
    others = [process for process in processes if not process.is_rank]
    if launched:
        what = f"launched {sum(one.n_launches for one in launched):,} kernels or CUDA graphs"
        yield _row(launched, what, _COST_OF_RANKS, _stand_for(launched, missing, len(ranks)))
    if stepping:
        what = f"{_have(stepping)} {sum(one.n_steps for one in stepping):,} steps of the run"
        yield _row(stepping, what, _COST_OF_RANKS, _stand_for(stepping, missing, len(ranks)))
    if others:
        what = f"{_have(others)} {sum(one.n_ranges for one in others):,} NVTX ranges"
        yield _row(others, what, _COST_OF_OTHERS, "", severity="info")


def _row(
    processes: Sequence[UnrecordedProcess],
    what: str,
    cost: str,
    stand_for: str,
    *,
    severity: str | None = None,
) -> Problem:
    pids = few([str(pid_of(process.process_id)) for process in processes], _SHOWN)
    noun, them = ("process", "it") if len(processes) == 1 else ("processes", "them")
    facts: dict[str, Any] = {
        "processes": f"{noun} {pids}",
        "them": them,
        "what": what,
        "stand_for": stand_for,
        "cost": cost,
    }
    return problem("processes-without-kernels", severity=severity, **facts)


def _have(processes: Sequence[UnrecordedProcess]) -> str:
    return "has" if len(processes) == 1 else "have"


def _stand_for(processes: Iterable[UnrecordedProcess], missing: MissingRanks, n_ranks: int) -> str:
    """Return in words which ranks of the job the processes are, of `n_ranks` in all without kernels."""
    told = [process.number for process in processes]
    known = [number for number in told if number is not None]
    if known and len(known) == len(told):
        return f" (these processes are {_ranks(sorted(known))})"
    if missing.world_size is None:
        return ""
    if missing.numbers is None:
        return f" (these processes are {len(told)} of the {missing.world_size} ranks of the job)"
    if len(missing.numbers) == n_ranks == len(told):
        return f" (these processes are {_ranks(missing.numbers)})"
    return f" (these processes are some of {_ranks(missing.numbers)})" if missing.numbers else ""


def _ranks(numbers: Sequence[int]) -> str:
    if len(numbers) > _SHOWN:
        return f"ranks {few([*map(str, numbers)], _SHOWN)}"
    return f"rank {numbers[0]}" if len(numbers) == 1 else f"ranks {listed([*map(str, numbers)])}"
