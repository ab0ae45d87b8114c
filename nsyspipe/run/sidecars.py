"""Which sidecars are of a run's reports, and what the run takes from them: only what is not known otherwise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from nsyspipe.model.captured import CapturedRank, RunCapture
from nsyspipe.model.names import decoded, printable
from nsyspipe.model.problems import Problem, problem
from nsyspipe.model.side_files import Sidecar
from nsyspipe.nsys.command_words import PER_CAPTURE
from nsyspipe.reader.sidecar import FoundSidecar, FoundSidecars

if TYPE_CHECKING:
    from nsyspipe.run.digests import ReportDigest

T = TypeVar("T")

# Clocks may be wrong, and jobs may wait; a capture of the same name from another day is another
# one.
_ONE_CAPTURE_NS = 86_400 * 10**9


class RunSidecars(Struct, frozen=True):
    """The sidecars that are of a run's reports."""

    sidecars: tuple[Sidecar, ...] = ()
    # By the position of each report that has one: its sidecar, and the ranks of that in the report
    by_argument: dict[int, tuple[Sidecar, tuple[CapturedRank, ...]]] = field(default_factory=dict)
    family: str | None = None  # the step family that they name, if every rank has it
    problems: tuple[Problem, ...] = ()

    def rank_of(self, argument: int, pid: int, *, is_alone: bool) -> CapturedRank | None:
        """Return the entry of one process of a report: found by its pid, or as the only one there."""
        _, ranks = self.by_argument.get(argument, (None, ()))
        only = ranks[0] if is_alone and len(ranks) == 1 and ranks[0].pid is None else None
        return next((rank for rank in ranks if rank.pid == pid), only)

    def is_without_gpu(self, argument: int) -> bool:
        """Tell whether a report was captured without any trace of a GPU, as launchers do with ``--cpu``."""
        sidecar, _ = self.by_argument.get(argument, (None, ()))
        trace = sidecar.facts.trace if sidecar else None
        return bool(trace) and not any(name.startswith("cuda") for name in trace or ())

    @property
    def world_size(self) -> int | None:
        """Ranks of the job, if all say the same."""
        return _same(sidecar.world_size for sidecar in self.sidecars)

    @property
    def ranks(self) -> list[CapturedRank]:
        """Every rank that they list."""
        return [rank for sidecar in self.sidecars for rank in sidecar.ranks]

    @property
    def facts(self) -> RunCapture | None:
        """How the run was captured, versions of nodes side by side; None without a sidecar, or when captures differ."""
        if _same(sidecar.facts.name for sidecar in self.sidecars) is None:
            return None
        joined: dict[str, Any] = {}
        for name in (one.name for one in fields(RunCapture)):
            told = (getattr(sidecar.facts, name) for sidecar in self.sidecars)
            values = [value for value in told if value is not None]
            if values and name.endswith(("_version", "_commit")):
                joined[name] = ", ".join(dict.fromkeys(values))
            elif values and name == "git_is_dirty":
                joined[name] = any(values)
            elif name == "hash_key" and len(set(values)) > 1:
                joined[name] = PER_CAPTURE
            elif values and name == "environment":
                told_of = {
                    key: [own[key] for own in values if key in own]
                    for key in sorted(set().union(*values))
                }
                joined[name] = {key: " | ".join(dict.fromkeys(own)) for key, own in told_of.items()}
            elif values:
                joined[name] = values[0]
        return RunCapture(**joined)


def _same(values: Iterable[T | None]) -> T | None:
    known = {value for value in values if value is not None}
    return known.pop() if len(known) == 1 else None


def with_sidecar_facts(
    digests: Sequence[ReportDigest], sidecars: RunSidecars
) -> tuple[ReportDigest, ...]:
    """Fill in the host and the GPU models that reports lack."""
    result = list(digests)
    for argument, (sidecar, ranks) in sidecars.by_argument.items():
        facts = digests[argument].facts
        processes = digests[argument].processes
        facts = replace(facts, host=facts.host if facts.host is not None else sidecar.host or None)
        models = sorted({rank.gpu_name for rank in ranks if rank.gpu_name})
        of_ordinal = {}
        is_alone = len({process.process_id for process in processes}) == 1
        for process in processes:
            rank = sidecars.rank_of(argument, process.pid, is_alone=is_alone)
            if rank and rank.gpu_name and process.device_id is not None:
                of_ordinal[process.pid, process.device_id] = models.index(rank.gpu_name)
        if not facts.gpu_names and len(of_ordinal) == len(
            processes
        ):  # one model alone would count for all
            facts = replace(facts, gpu_names=dict(enumerate(models)), gpu_of_ordinal=of_ordinal)
        result[argument] = replace(digests[argument], facts=facts)
    return tuple(result)


def run_sidecars(
    found: FoundSidecars, digests: Sequence[ReportDigest], *, asks_for_steps: bool
) -> RunSidecars:
    """Choose which sidecars are of the reports of a run, and what family they say the steps are, if that is asked for."""
    pairs = [(one, _misfit(one, digests)) for one in found.found]
    stale = [
        problem("stale-sidecar", file=_shown(one.sidecar), reason=reason)
        for one, reason in pairs
        if reason
    ]
    agreeing, conflicts = _agreeing([one for one, reason in pairs if not reason])
    sidecars = tuple(one.sidecar for one in agreeing)
    by_argument = {
        argument: (one.sidecar, ranks)
        for one in agreeing
        for argument, ranks in one.by_argument.items()
    }
    family, ignored = _step_family(sidecars, digests) if asks_for_steps else (None, [])
    problems = (*found.problems, *stale, *conflicts, *_failures(sidecars), *ignored)
    return RunSidecars(sidecars, by_argument, family, problems)


def _misfit(found: FoundSidecar, digests: Sequence[ReportDigest]) -> str | None:
    written = found.sidecar.captured_at_utc_ns
    for argument, ranks in found.by_argument.items():
        digest = digests[argument]
        start = digest.facts.session_start_utc_ns
        if written is not None and start is not None and abs(written - start) > _ONE_CAPTURE_NS:
            return (
                f"written for {found.sidecar.facts.captured_at_utc}, over a day from the report's "
                "session"
            )
        known = {rank.pid: rank.rank for rank in ranks if rank.pid is not None}
        pids = {process.pid for process in (*digest.processes, *digest.hosts)}
        if known and pids and pids.isdisjoint(known):
            pid, number = next(iter(known.items()))
            return f"rank {number} was process {pid}, which the report does not have"
    return None


def _agreeing(found: Sequence[FoundSidecar]) -> tuple[list[FoundSidecar], list[Problem]]:
    contents = [replace(one.sidecar, path=one.sidecar.path.parent) for one in found]
    distinct = [one for at, one in enumerate(found) if contents[at] not in contents[:at]]
    claims = Counter(argument for one in distinct for argument in one.by_argument)
    disputed = {argument for argument, count in claims.items() if count > 1}
    agreeing = [one for one in distinct if not disputed & set(one.by_argument)]
    others = [one for one in distinct if disputed & set(one.by_argument)]
    if not others:
        return agreeing, []
    files = ", ".join(_shown(one.sidecar) for one in others)
    first = min(disputed & set(others[0].by_argument))
    return agreeing, [
        problem("conflicting-sidecars", files=files, of=others[0].by_argument[first][0].report)
    ]


def _step_family(
    sidecars: Sequence[Sidecar], digests: Sequence[ReportDigest]
) -> tuple[str | None, list[Problem]]:
    """Return the family that the sidecars name, if it has a member on every rank, or why not."""
    family_of = {
        sidecar.step_pattern: sidecar.family for sidecar in sidecars if sidecar.step_pattern
    }
    if not family_of:
        return None, []
    families = set(family_of.values())
    family = families.pop()
    why = "the patterns differ" if families else "the pattern is not a text with numbers"
    if not families and family is not None:
        own = [process.candidates for digest in digests for process in digest.processes]
        if not own:  # of these, only some may be ranks
            own = [
                tuple(candidate for host in digest.hosts for candidate in host.candidates)
                for digest in digests
                if digest.hosts
            ]
        named = (
            [candidate for candidate in candidates if candidate.name == family]
            for candidates in own
        )
        is_there = [
            any(
                candidate.n_launched_inside > 0 or not candidate.n_launched
                for candidate in candidates
            )
            for candidates in named
        ]
        if all(is_there):
            return family, []
        if not any(
            is_there
        ):  # the launcher's own pattern, in a program that names its steps otherwise
            return None, []
        why = "some ranks have no such step"
    return None, [
        problem("step-pattern-ignored", pattern=" and ".join(map(repr, sorted(family_of))), why=why)
    ]


def _failures(sidecars: Sequence[Sidecar]) -> Iterator[Problem]:
    by_outcome: dict[str, list[int]] = {}
    for rank in (rank for sidecar in sidecars for rank in sidecar.ranks):
        is_bad = (
            rank.status and not rank.is_complete
        )  # after a whole capture its status says nothing of that
        status = f"the program ended with status {rank.status}" if is_bad else None
        outcome = ", and ".join(
            filter(None, (status, rank.problem and rank.problem[:200].rstrip(".")))
        )
        if outcome:
            by_outcome.setdefault(outcome, []).append(rank.rank)
    for outcome, ranks in by_outcome.items():
        more = f" and {len(ranks) - 1} more" if len(ranks) > 1 else ""
        yield problem("capture-failed", which=f"{min(ranks)}{more}", outcome=outcome)


def _shown(sidecar: Sidecar) -> str:
    return printable(decoded(sidecar.path.name))
