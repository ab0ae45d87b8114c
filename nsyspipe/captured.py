"""What a run takes from its sidecars: only from those that fit its reports, and only what is not known better.

A sidecar wins over guesses (file names, order, the largest family of ranges) and loses against options and against
what the reports themselves recorded.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from nsyspipe.command_words import PER_CAPTURE
from nsyspipe.sidecar_model import RunCapture

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nsyspipe.digest import ReportDigest
    from nsyspipe.problems import Problem
    from nsyspipe.sidecar_model import CapturedRank, Sidecar

__all__ = ["NOTHING_CAPTURED", "Captured", "with_captured_facts"]

T = TypeVar("T")


@dataclass(frozen=True)
class Captured:
    """What the believed sidecars of a run say.

    Attributes
    ----------
    by_argument
        The sidecar of each report that has one, by the report's position, and its ranks in that report.
    family
        The step family that they name, if every rank has it.
    """

    sidecars: tuple[Sidecar, ...] = ()
    by_argument: dict[int, tuple[Sidecar, tuple[CapturedRank, ...]]] = field(default_factory=dict)
    family: str | None = None
    problems: tuple[Problem, ...] = ()

    def rank_of(self, argument: int, pid: int, *, is_alone: bool) -> CapturedRank | None:
        """Return what is said of one process of a report: found by its pid, or as the only one there."""
        _, ranks = self.by_argument.get(argument, (None, ()))
        by_pid = next((one for one in ranks if one.pid == pid), None)
        if by_pid is not None:
            return by_pid
        return ranks[0] if is_alone and len(ranks) == 1 and ranks[0].pid is None else None

    def is_without_gpu(self, argument: int) -> bool:
        """Tell whether a report was captured without any trace of a GPU, as launchers do with ``--cpu``."""
        sidecar, _ = self.by_argument.get(argument, (None, ()))
        trace = sidecar and sidecar.facts.trace
        return bool(trace) and not any(one.startswith("cuda") for one in trace or ())

    @property
    def world_size(self) -> int | None:
        """Ranks of the job, if all say the same."""
        return _same(one.world_size for one in self.sidecars)

    @property
    def name(self) -> str | None:
        """The capture's name, if all say the same."""
        return _same(one.facts.name for one in self.sidecars)

    @property
    def ranks(self) -> set[int]:
        """Every rank that they list."""
        return {rank.rank for one in self.sidecars for rank in one.ranks}

    @property
    def not_captured(self) -> set[int]:
        """Ranks that were left out of the capture on purpose."""
        return {
            rank.rank
            for one in self.sidecars
            for rank in one.ranks
            if rank.report is None and rank.problem is None
        }

    def reports_of(self, ranks: Iterable[int]) -> list[str]:
        """Return the stems of the reports that hold some ranks, sorted."""
        wanted = set(ranks)
        found = {rank.report for one in self.sidecars for rank in one.ranks if rank.rank in wanted}
        return sorted(report for report in found if report is not None)

    @property
    def facts(self) -> RunCapture | None:
        """How the run was captured; None without a sidecar, or when they are of several captures."""
        if not self.sidecars or self.name is None:
            return None
        first, *others = (one.facts for one in self.sidecars)
        return _joined(first, others)


NOTHING_CAPTURED = Captured()


def with_captured_facts(
    digests: Sequence[ReportDigest], captured: Captured
) -> tuple[ReportDigest, ...]:
    """Fill in the host and the GPU models that reports lack."""
    result = list(digests)
    for argument, (sidecar, ranks) in captured.by_argument.items():
        facts = digests[argument].facts
        processes = digests[argument].processes
        if facts.host is None and sidecar.host:
            facts = replace(facts, host=sidecar.host)
        if not facts.gpu_names:
            models = sorted({one.gpu_name for one in ranks if one.gpu_name})
            of_ordinal = {}
            for process in processes:
                one = captured.rank_of(argument, process.pid, is_alone=len(processes) == 1)
                if one and one.gpu_name and process.device_id is not None:
                    of_ordinal[process.pid, process.device_id] = models.index(one.gpu_name)
            if len(of_ordinal) == len(processes):  # one model alone would count for all
                facts = replace(facts, gpu_names=dict(enumerate(models)), gpu_of_ordinal=of_ordinal)
        result[argument] = replace(digests[argument], facts=facts)
    return tuple(result)


def _joined(first: RunCapture, others: Sequence[RunCapture]) -> RunCapture:
    """Join what the sidecars of several nodes say: versions that differ side by side, else the first that is known."""
    changes: dict[str, Any] = {}
    for one in fields(RunCapture):
        values = [value for facts in (first, *others) if (value := getattr(facts, one.name)) is not None]  # fmt: skip
        if values and one.name.endswith(("_version", "_commit")):
            changes[one.name] = ", ".join(dict.fromkeys(values))
        elif values and one.name == "git_is_dirty":
            changes[one.name] = any(values)
        elif one.name == "hash_key" and len(set(values)) > 1:
            changes[one.name] = PER_CAPTURE
        elif values and one.name == "environment":
            changes[one.name] = _joined_environments(values)
        elif values:
            changes[one.name] = values[0]
    return RunCapture(**changes)


def _joined_environments(found: Sequence[dict[str, str]]) -> dict[str, str]:
    names = sorted({name for one in found for name in one})
    return {
        name: " | ".join(dict.fromkeys(one[name] for one in found if name in one)) for name in names
    }


def _same(values: Iterable[T | None]) -> T | None:
    """Return the only value that is known; None without one, or if they differ."""
    known = {value for value in values if value is not None}
    return known.pop() if len(known) == 1 else None
