"""Which sidecars are of a run's reports: none of another capture of that name, none that another contradicts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from nsyspipe.captured import Captured
from nsyspipe.problems import Problem, problem
from nsyspipe.untrusted import decoded, printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from nsyspipe.digest import ReportDigest
    from nsyspipe.families import Candidate
    from nsyspipe.read.facts import ReportFacts
    from nsyspipe.read.sidecar import FoundSidecar, FoundSidecars
    from nsyspipe.sidecar_model import Sidecar

__all__ = ["KnownReport", "believe", "believe_of_run"]

# Clocks may be wrong, and jobs may wait; a capture of the same name from another day is another one.
_ONE_CAPTURE_NS = 86_400 * 10**9
_LONGEST_REASON = 200


@dataclass(frozen=True)
class KnownReport:
    """What tells one capture from another: the report's facts, and the processes that it has."""

    facts: ReportFacts
    pids: frozenset[int]


def believe_of_run(
    found: FoundSidecars, digests: Sequence[ReportDigest], *, asks_for_steps: bool
) -> Captured:
    """Choose which sidecars are of the reports of a run, and what family they say the steps are.

    Parameters
    ----------
    digests
        One per report, in the order in which their sidecars were looked for.
    asks_for_steps
        Whether a step family is wanted of them: no option names the steps.
    """
    reports = [
        KnownReport(
            digest.facts,
            frozenset(one.pid for one in digest.processes) | {one.pid for one in digest.hosts},
        )
        for digest in digests
    ]
    captured = believe(found, reports)
    if not asks_for_steps:
        return captured
    family, problems = _step_family(captured.sidecars, digests)
    return replace(captured, family=family, problems=(*captured.problems, *problems))


def believe(found: FoundSidecars, reports: Sequence[KnownReport]) -> Captured:
    """Choose which sidecars are of these reports.

    One is not when it was written more than a day before or after a report's session began, or when it knows the
    processes of a report and none of them is there; none of two is that say different things of one report.

    Parameters
    ----------
    found
        The sidecars beside the reports.
    reports
        In the order in which their sidecars were looked for.
    """
    problems = list(found.problems)
    fitting = []
    for one in found.found:
        if reason := _misfit(one, reports):
            problems.append(problem("stale-sidecar", file=_shown(one.sidecar), reason=reason))
        else:
            fitting.append(one)
    kept, conflicts = _agreeing(fitting)
    problems += conflicts
    sidecars = tuple(one.sidecar for one in kept)
    by_argument = {
        argument: (one.sidecar, ranks)
        for one in kept
        for argument, ranks in one.by_argument.items()
    }
    problems += _failures(sidecars)
    return Captured(sidecars, by_argument, problems=tuple(problems))


def _misfit(found: FoundSidecar, reports: Sequence[KnownReport]) -> str | None:
    """Say why a sidecar is not of these reports; None if it is."""
    captured = found.sidecar.captured_at_utc_ns
    for argument, ranks in found.by_argument.items():
        start = reports[argument].facts.session_start_utc_ns
        if captured is not None and start is not None and abs(captured - start) > _ONE_CAPTURE_NS:
            return f"written for {found.sidecar.facts.captured_at_utc}, over a day from the report's session"
        known = {one.pid: one.rank for one in ranks if one.pid is not None}
        if known and reports[argument].pids and not known.keys() & reports[argument].pids:
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


def _step_family(
    sidecars: Sequence[Sidecar], digests: Sequence[ReportDigest]
) -> tuple[str | None, list[Problem]]:
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
    return any(
        one.name == family and (one.n_launched_inside > 0 or not one.n_launched)
        for one in candidates
    )


def _failures(sidecars: Sequence[Sidecar]) -> Iterator[Problem]:
    """State which ranks ended badly; many that ended alike are one row."""
    by_outcome: dict[str, list[int]] = {}
    for one in (rank for sidecar in sidecars for rank in sidecar.ranks):
        is_bad = (
            one.status and not one.is_complete
        )  # after a whole capture its status says nothing of that
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
