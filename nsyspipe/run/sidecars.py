"""Which sidecars are of a run's reports, and what the run takes from them.

The run takes only what is not known otherwise.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from nsyspipe.model.captured import CapturedRank, RunCapture
from nsyspipe.model.names import decoded, printable
from nsyspipe.model.problems import Problem, problem
from nsyspipe.model.side_files import Sidecar
from nsyspipe.nsys.command_words import PER_CAPTURE
from nsyspipe.reader.beside import problem_with_files
from nsyspipe.reader.sidecar import FoundSidecar, FoundSidecars

if TYPE_CHECKING:
    from nsyspipe.analysis.steps import Candidate
    from nsyspipe.run.digests import ReportDigest

T = TypeVar("T")

# Clocks may be wrong, and jobs may wait. A sidecar from another day is of another capture.
MAX_AGE_DIFFERENCE_NS = 86_400 * 10**9


class RunSidecars(Struct, frozen=True):
    """The sidecars that are of a run's reports."""

    sidecars: tuple[Sidecar, ...] = ()
    # The sidecar of each report, by its position, and the ranks of the sidecar in the report.
    by_argument: dict[int, tuple[Sidecar, tuple[CapturedRank, ...]]] = field(default_factory=dict)
    # the step family that they name, if every rank has it
    family: str | None = None
    problems: tuple[Problem, ...] = ()

    def rank_of(self, argument: int, pid: int, *, is_alone: bool) -> CapturedRank | None:
        """Return the sidecar's entry of one process of a report, None if there is none.

        The entry has the ID of the process. If the process is alone in its report (`is_alone`), and
        the report has one entry, that entry need not have an ID.
        """
        _, ranks = self.by_argument.get(argument, (None, ()))
        for rank in ranks:
            if rank.pid == pid:
                return rank
        is_one_of_one = is_alone and len(ranks) == 1
        if is_one_of_one and ranks[0].pid is None:
            return ranks[0]
        return None

    def is_without_gpu(self, argument: int) -> bool:
        """Tell whether a report was captured without tracing a GPU, for example with ``--cpu``."""
        sidecar, _ = self.by_argument.get(argument, (None, ()))
        trace = sidecar.facts.trace if sidecar else None
        if not trace:
            return False
        return not any(name.startswith("cuda") for name in trace)

    @property
    def world_size(self) -> int | None:
        """Ranks of the job, if all say the same."""
        return _same(sidecar.world_size for sidecar in self.sidecars)

    @property
    def ranks(self) -> list[CapturedRank]:
        """Every rank that the sidecars list."""
        return [rank for sidecar in self.sidecars for rank in sidecar.ranks]

    @property
    def facts(self) -> RunCapture | None:
        """How the run was captured, with all versions of different nodes.

        None without a sidecar, or if the sidecars are of different captures.
        """
        if _same(sidecar.facts.name for sidecar in self.sidecars) is None:
            return None
        joined: dict[str, Any] = {}
        for fact in fields(RunCapture):
            recorded = (getattr(sidecar.facts, fact.name) for sidecar in self.sidecars)
            values = [value for value in recorded if value is not None]
            if values:
                joined[fact.name] = _joined_fact(fact.name, values)
        return RunCapture(**joined)


def _joined_fact(name: str, values: Sequence[Any]) -> Any:  # noqa: ANN401 - of the type of the fact
    """Return the field `name` of `RunCapture` for a whole run. `values` has the value of each node.

    All different versions and commits are listed, and so are all values of a variable. Of most
    other facts, the value of the first node counts.
    """
    if name.endswith(("_version", "_commit")):
        return ", ".join(dict.fromkeys(values))
    if name == "git_is_dirty":
        return any(values)
    if name == "hash_key" and len(set(values)) > 1:
        return PER_CAPTURE
    if name == "environment":
        return _joined_environment(values)
    return values[0]


def _joined_environment(environments: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Return every variable with all the different values that nodes have for it."""
    joined = {}
    for variable in sorted(set().union(*environments)):
        values = [environment.get(variable) for environment in environments]
        known_values = [value for value in values if value is not None]
        joined[variable] = " | ".join(dict.fromkeys(known_values))
    return joined


def _same(values: Iterable[T | None]) -> T | None:
    """Return the value that all known values have, None if they differ or none is known."""
    known = {value for value in values if value is not None}
    return known.pop() if len(known) == 1 else None


def with_sidecar_facts(
    digests: Sequence[ReportDigest], sidecars: RunSidecars
) -> tuple[ReportDigest, ...]:
    """Return the digests, with the host and GPU models of the sidecars where reports have none."""
    filled = list(digests)
    for argument, (sidecar, ranks) in sidecars.by_argument.items():
        digest = digests[argument]
        facts = digest.facts
        if facts.host is None:
            facts = replace(facts, host=sidecar.host or None)
        models = sorted({rank.gpu_name for rank in ranks if rank.gpu_name})
        model_of_device = _models_of_devices(digest, argument, sidecars, models)
        # If only some devices had a model, the others would get it too. So all must have one.
        have_all_devices_models = len(model_of_device) == len(digest.processes)
        if not facts.gpu_names and have_all_devices_models:
            names = dict(enumerate(models))
            facts = replace(facts, gpu_names=names, gpu_of_ordinal=model_of_device)
        filled[argument] = replace(digest, facts=facts)
    return tuple(filled)


def _models_of_devices(
    digest: ReportDigest, argument: int, sidecars: RunSidecars, models: Sequence[str]
) -> dict[tuple[int, int], int]:
    """Return the GPU models that the sidecar has for the ranks of a report.

    The keys are the process and the device of a rank. The values are indices into `models`.
    """
    model_of_device = {}
    is_alone = len({process.process_id for process in digest.processes}) == 1
    for process in digest.processes:
        rank = sidecars.rank_of(argument, process.pid, is_alone=is_alone)
        if rank and rank.gpu_name and process.device_id is not None:
            model_of_device[process.pid, process.device_id] = models.index(rank.gpu_name)
    return model_of_device


def run_sidecars(
    found: FoundSidecars, digests: Sequence[ReportDigest], *, wants_step_family: bool
) -> RunSidecars:
    """Choose the sidecars that are of a run's reports.

    Sidecars that are left out are problems of the result. If `wants_step_family`, the result has
    the step family that the chosen sidecars name.
    """
    fitting = []
    reason_of_stale: dict[Path, str] = {}
    for candidate in found.found:
        misfit = _misfit(candidate, digests)
        if misfit:
            reason_of_stale[candidate.sidecar.path] = misfit
        else:
            fitting.append(candidate)
    problems = [*found.problems]
    if reason_of_stale:
        problems.append(problem_with_files("stale-sidecar", reason_of_stale))
    agreeing, conflicts = _agreeing(fitting)
    problems += conflicts
    sidecars = tuple(candidate.sidecar for candidate in agreeing)
    problems += _failures(sidecars)
    by_argument = {}
    for candidate in agreeing:
        for argument, ranks in candidate.by_argument.items():
            by_argument[argument] = candidate.sidecar, ranks
    family = None
    if wants_step_family:
        family, problems_of_family = _step_family(sidecars, digests)
        problems += problems_of_family
    return RunSidecars(sidecars, by_argument, family, tuple(problems))


def _misfit(candidate: FoundSidecar, digests: Sequence[ReportDigest]) -> str | None:
    """Return in words why a sidecar is not of the reports that it names, None if it is.

    It is not if the two were written over a day apart, or have no process in common. Where the
    times or the processes are not known, they are not compared.
    """
    written_ns = candidate.sidecar.captured_at_utc_ns
    for argument, ranks in candidate.by_argument.items():
        digest = digests[argument]
        start_ns = digest.facts.session_start_utc_ns
        if _are_of_different_days(written_ns, start_ns):
            captured_at = candidate.sidecar.facts.captured_at_utc
            return f"written for {captured_at}, over a day from the report's session"
        rank_of_pid = {rank.pid: rank.rank for rank in ranks if rank.pid is not None}
        pids = {process.pid for process in (*digest.processes, *digest.hosts)}
        are_pids_known = rank_of_pid and pids
        if are_pids_known and pids.isdisjoint(rank_of_pid):
            pid, number = next(iter(rank_of_pid.items()))
            return f"rank {number} was process {pid}, which the report does not have"
    return None


def _are_of_different_days(first_ns: int | None, second_ns: int | None) -> bool:
    """Tell whether two times are known, and more than a day apart."""
    if first_ns is None or second_ns is None:
        return False
    return abs(first_ns - second_ns) > MAX_AGE_DIFFERENCE_NS


def _agreeing(candidates: Sequence[FoundSidecar]) -> tuple[list[FoundSidecar], list[Problem]]:
    """Return the sidecars that no other sidecar contradicts, and a problem if there are others.

    Two sidecars contradict each other if both claim the same report. The problem names all
    contradicted sidecars, and one of the disputed reports.
    """
    distinct = _without_copies(candidates)
    claims = Counter(itertools.chain.from_iterable(sidecar.by_argument for sidecar in distinct))
    # The arguments of reports that several sidecars claim.
    disputed = {argument for argument, n_claims in claims.items() if n_claims > 1}
    agreeing: list[FoundSidecar] = []
    conflicting: list[FoundSidecar] = []
    for sidecar in distinct:
        has_disputed_report = not disputed.isdisjoint(sidecar.by_argument)
        group = conflicting if has_disputed_report else agreeing
        group.append(sidecar)
    if not conflicting:
        return agreeing, []
    files = ", ".join(_shown(candidate.sidecar) for candidate in conflicting)
    reports_of_first = conflicting[0].by_argument
    first_disputed = min(disputed.intersection(reports_of_first))
    # All ranks of a report have its name.
    first_rank = reports_of_first[first_disputed][0]
    return agreeing, [problem("conflicting-sidecars", files=files, of=first_rank.report)]


def _without_copies(candidates: Sequence[FoundSidecar]) -> list[FoundSidecar]:
    """Return the sidecars without copies. A copy has the folder and the content of another one."""
    contents: list[Sidecar] = []
    distinct = []
    for candidate in candidates:
        sidecar = candidate.sidecar
        content = replace(sidecar, path=sidecar.path.parent)
        if content not in contents:
            contents.append(content)
            distinct.append(candidate)
    return distinct


def _step_family(
    sidecars: Sequence[Sidecar], digests: Sequence[ReportDigest]
) -> tuple[str | None, list[Problem]]:
    """Return the family that the sidecars name, if every rank has it.

    Else the result is None, with a problem that says why the family is ignored. A family that no
    rank has is ignored without a problem.
    """
    family_of_pattern = {}
    for sidecar in sidecars:
        if sidecar.step_pattern:
            family_of_pattern[sidecar.step_pattern] = sidecar.family
    if not family_of_pattern:
        return None, []
    families = set(family_of_pattern.values())
    family = next(iter(families))
    if len(families) > 1:
        why = "the patterns differ"
    elif family is None:
        why = "the pattern is not a text with numbers"
    else:
        is_on_ranks = _ranks_with_family(family, digests)
        if all(is_on_ranks):
            return family, []
        if not any(is_on_ranks):
            # The pattern is the default of a launcher, and the program names its steps differently.
            return None, []
        why = "some ranks have no such step"
    pattern = " and ".join(map(repr, sorted(family_of_pattern)))
    return None, [problem("step-pattern-ignored", pattern=pattern, why=why)]


def _ranks_with_family(family: str, digests: Sequence[ReportDigest]) -> list[bool]:
    """Tell of each rank whether it has steps of a family.

    Without GPU activity, there are no ranks. Then each report with hosts gets one flag: whether any
    of its hosts has such steps. Some of its hosts may be no ranks.
    """
    candidates_of_ranks = [process.candidates for digest in digests for process in digest.processes]
    is_on_ranks = []
    for candidates in candidates_of_ranks or _candidates_of_host_reports(digests):
        of_family = [candidate for candidate in candidates if candidate.name == family]
        is_on_ranks.append(any(map(_may_be_steps, of_family)))
    return is_on_ranks


def _candidates_of_host_reports(
    digests: Sequence[ReportDigest],
) -> list[tuple[Candidate, ...]]:
    """Return, for each report with hosts, the candidates of all its hosts."""
    candidates_of_reports = []
    for digest in digests:
        if digest.hosts:
            of_hosts = itertools.chain.from_iterable(host.candidates for host in digest.hosts)
            candidates_of_reports.append(tuple(of_hosts))
    return candidates_of_reports


def _may_be_steps(candidate: Candidate) -> bool:
    """Tell whether a family launched something, or nothing was launched at all."""
    return candidate.n_launched_inside > 0 or not candidate.n_launched


def _failures(sidecars: Sequence[Sidecar]) -> Iterator[Problem]:
    """Yield a problem for each way in which captures failed, with the ranks that failed in it."""
    ranks_of_outcome: dict[str, list[int]] = {}
    for sidecar in sidecars:
        for rank in sidecar.ranks:
            outcome = ", and ".join(_outcomes(rank))
            if outcome:
                ranks_of_outcome.setdefault(outcome, []).append(rank.rank)
    for outcome, ranks in ranks_of_outcome.items():
        shown = str(min(ranks))
        n_more = len(ranks) - 1
        if n_more:
            shown += f" and {n_more} more"
        yield problem("capture-failed", which=shown, outcome=outcome)


def _outcomes(rank: CapturedRank) -> Iterator[str]:
    """Yield in words what went wrong with the capture of a rank."""
    # If the capture is complete, the status of the program says nothing of it.
    if rank.status and not rank.is_complete:
        yield f"the program ended with status {rank.status}"
    shown_problem = (rank.problem or "")[:200].rstrip(".")
    if shown_problem:
        yield shown_problem


def _shown(sidecar: Sidecar) -> str:
    return printable(decoded(sidecar.path.name))
