"""Which sidecars are of a run's reports, and what the run takes from them: only what is not known otherwise.

None of another capture of that name is believed, none that another contradicts.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from nsyspipe.model.problems import Problem, problem
from nsyspipe.model.sidecar import RunCapture
from nsyspipe.model.text import decoded, printable
from nsyspipe.nsys.command_words import PER_CAPTURE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from nsyspipe.analysis.steps import Candidate
    from nsyspipe.model.sidecar import CapturedRank, Sidecar
    from nsyspipe.reader.sidecar import FoundSidecar, FoundSidecars
    from nsyspipe.run.gather import ReportDigest


T = TypeVar("T")


@dataclass(frozen=True)
class Captured:
    """What the believed sidecars of a run say."""

    sidecars: tuple[Sidecar, ...] = ()
    # The sidecar of each report that has one, by the report's position, and its ranks in that report
    by_argument: dict[int, tuple[Sidecar, tuple[CapturedRank, ...]]] = field(default_factory=dict)
    family: str | None = None  # the step family that they name, if every rank has it
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
            rank.rank for one in self.sidecars for rank in one.ranks if rank.report is None and rank.problem is None
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


def with_captured_facts(digests: Sequence[ReportDigest], captured: Captured) -> tuple[ReportDigest, ...]:
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
    return {name: " | ".join(dict.fromkeys(one[name] for one in found if name in one)) for name in names}


def _same(values: Iterable[T | None]) -> T | None:
    """Return the only value that is known; None without one, or if they differ."""
    known = {value for value in values if value is not None}
    return known.pop() if len(known) == 1 else None


# Clocks may be wrong, and jobs may wait; a capture of the same name from another day is another one.
_ONE_CAPTURE_NS = 86_400 * 10**9
_LONGEST_REASON = 200


def believe(found: FoundSidecars, digests: Sequence[ReportDigest], *, asks_for_steps: bool) -> Captured:
    """Choose which sidecars are of the reports of a run, and what family they say the steps are, if that is asked for.

    One is not when it was written more than a day before or after a report's session began, or when it knows the
    processes of a report and none of them is there; none of two is that say different things of one report.
    """
    problems = list(found.problems)
    fitting = []
    for one in found.found:
        if reason := _misfit(one, digests):
            problems.append(problem("stale-sidecar", file=_shown(one.sidecar), reason=reason))
        else:
            fitting.append(one)
    kept, conflicts = _agreeing(fitting)
    problems += conflicts
    sidecars = tuple(one.sidecar for one in kept)
    by_argument = {argument: (one.sidecar, ranks) for one in kept for argument, ranks in one.by_argument.items()}
    problems += _failures(sidecars)
    family, ignored = _step_family(sidecars, digests) if asks_for_steps else (None, [])
    return Captured(sidecars, by_argument, family, (*problems, *ignored))


def _misfit(found: FoundSidecar, digests: Sequence[ReportDigest]) -> str | None:
    """Say why a sidecar is not of these reports; None if it is."""
    captured = found.sidecar.captured_at_utc_ns
    for argument, ranks in found.by_argument.items():
        digest = digests[argument]
        start = digest.facts.session_start_utc_ns
        if captured is not None and start is not None and abs(captured - start) > _ONE_CAPTURE_NS:
            return f"written for {found.sidecar.facts.captured_at_utc}, over a day from the report's session"
        known = {one.pid: one.rank for one in ranks if one.pid is not None}
        pids = {one.pid for one in digest.processes} | {one.pid for one in digest.hosts}
        if known and pids and not known.keys() & pids:
            pid, rank = next(iter(known.items()))
            return f"rank {rank} was process {pid}, which the report does not have"
    return None


def _agreeing(found: Sequence[FoundSidecar]) -> tuple[list[FoundSidecar], list[Problem]]:
    """Drop copies, and all that contradict each other."""
    distinct: list[FoundSidecar] = []
    for one in found:
        same = (_without_path(other.sidecar) == _without_path(one.sidecar) for other in distinct)
        if not any(same):
            distinct.append(one)
    claims = Counter(argument for one in distinct for argument in one.by_argument)
    disputed = {argument for argument, count in claims.items() if count > 1}
    kept = [one for one in distinct if not disputed & set(one.by_argument)]
    others = [one for one in distinct if disputed & set(one.by_argument)]
    if not others:
        return kept, []
    files = ", ".join(_shown(one.sidecar) for one in others)
    report = next(
        rank.report
        for one in others
        for argument in sorted(disputed & set(one.by_argument))
        for rank in one.by_argument[argument]
    )
    return kept, [problem("conflicting-sidecars", files=files, of=report)]


def _without_path(sidecar: Sidecar) -> Sidecar:
    return replace(sidecar, path=sidecar.path.parent)


def _step_family(sidecars: Sequence[Sidecar], digests: Sequence[ReportDigest]) -> tuple[str | None, list[Problem]]:
    """Return the family that the sidecars name, if it has a member on every rank, or why not."""
    patterns = {one.step_pattern for one in sidecars if one.step_pattern}
    if not patterns:
        return None, []
    shown = " and ".join(repr(one) for one in sorted(patterns))
    families = {one.family for one in sidecars if one.step_pattern}
    family = families.pop()
    if families or family is None:
        why = "that is more than a text with numbers" if not families else "these differ"
        return None, [problem("step-pattern-ignored", pattern=shown, why=why)]
    has_ranks = any(digest.processes for digest in digests)
    ranks: list[bool] = []
    for digest in digests:
        ranks += [_has(one.candidates, family) for one in digest.processes]
        if not has_ranks and digest.hosts:  # of these, only some may be ranks
            ranks.append(any(_has(one.candidates, family) for one in digest.hosts))
    if all(ranks):
        return family, []
    if not any(ranks):  # the launcher's own pattern, in a program that names its steps otherwise
        return None, []
    why = "some rank has no such step"
    return None, [problem("step-pattern-ignored", pattern=shown, why=why)]


def _has(candidates: Iterable[Candidate], family: str) -> bool:
    return any(one.name == family and (one.n_launched_inside > 0 or not one.n_launched) for one in candidates)


def _failures(sidecars: Sequence[Sidecar]) -> Iterator[Problem]:
    """State which ranks ended badly; many that ended alike are one row."""
    by_outcome: dict[str, list[int]] = {}
    for one in (rank for sidecar in sidecars for rank in sidecar.ranks):
        is_bad = one.status and not one.is_complete  # after a whole capture its status says nothing of that
        status = f"its program ended with status {one.status}" if is_bad else None
        said = one.problem and one.problem[:_LONGEST_REASON].rstrip(".")
        if outcome := "; ".join(filter(None, (status, said))):
            by_outcome.setdefault(outcome, []).append(one.rank)
    for outcome, ranks in by_outcome.items():
        first = min(ranks)
        more = f" and {len(ranks) - 1} more" if len(ranks) > 1 else ""
        yield problem("capture-failed", which=f"{first}{more}", outcome=outcome)


def _shown(sidecar: Sidecar) -> str:
    return printable(decoded(sidecar.path.name))
