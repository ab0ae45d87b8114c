"""What a set of reports can answer: one row per question, and the flag that would add each."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import repeat
from typing import TYPE_CHECKING

from nsyspipe.errors import OptionError, RankConflictError
from nsyspipe.model.options import Reading
from nsyspipe.model.problems import CATALOGUE, Problem, problem
from nsyspipe.nsys.files import check_file
from nsyspipe.nsys.find_reports import display_names, source_of
from nsyspipe.reader import report as versions
from nsyspipe.reader.contents import read_contents
from nsyspipe.reader.sidecar import read_beside, read_sidecars
from nsyspipe.run.doctor_rules import (
    DETAIL_RULES,
    EVENT_RULES,
    NO,
    PARTLY,
    YES,
    Examined,
    Finding,
    Rule,
    phase_counts,
)
from nsyspipe.run.doctor_runs import RUN_RULES, Beside, launched_size
from nsyspipe.run.gather import gather
from nsyspipe.run.parallel import SerialExecutor, telling_shortage
from nsyspipe.run.placing import place, place_hosts, world_size
from nsyspipe.run.ranks import check_one_run
from nsyspipe.run.sidecars import believe_of_run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from concurrent.futures import Executor
    from pathlib import Path

    from nsyspipe.reader.contents import Contents
    from nsyspipe.reader.sidecar import FoundSidecars
    from nsyspipe.run.gather import Gathered, ReportDigest
    from nsyspipe.run.sidecars import Captured


# What changes in the answers of reports without any device activity: nothing of a device can be asked of them.


_OF_DEVICE = {
    "compute_and_comm", "launches", "copies", "gpu_model", "nccl_ranges", "message_bytes", "idle_causes",
    "kernel_shapes", "cuda_graphs", "gpu_metrics", "link",
}  # fmt: skip


def with_host_processes(reports: Sequence[Examined]) -> tuple[list[Examined], bool]:
    """Let the processes with steps stand for ranks where no report has device activity, and tell whether they do."""
    is_host_only = not any(one.pids for one in reports)
    if is_host_only:
        return [replace(one, pids=_with_steps(one)) for one in reports], True
    return list(reports), False


def _with_steps(report: Examined) -> tuple[int, ...]:
    return tuple(sorted(one.pid for one in report.digest.hosts if one.members.num_rows))


def of_host(name: str, found: Finding, report: Examined, *, was_left_out: bool) -> Finding:
    """Return what a report without device activity has for one question.

    Parameters
    ----------
    found
        What its rule says, which takes nothing recorded for nothing there.
    was_left_out
        Whether no GPU was to be traced: then no fix of a capture helps.
    """
    fix = None if was_left_out else CATALOGUE["no-gpu-activity"].fix
    if name == "phases" and (counts := phase_counts(report)):
        return Finding(PARTLY, counts, fix=fix)  # their times on the host
    if name == "phases" and was_left_out:
        return replace(found, text="no NVTX range is named like a phase", fix=None)
    if name not in _OF_DEVICE:
        return found
    if was_left_out:
        return Finding(NO, text="captured without a GPU")
    text = "no GPU activity" if found.status == YES else found.text
    return Finding(NO, text=text, fix=fix)


@dataclass(frozen=True)
class Capability:
    """One question, and whether the reports answer it.

    Attributes
    ----------
    answers
        What one gets.
    status
        `YES`; `PARTLY`: in part, or not from every report; `NO`.
    fix
        The flag that would add what is not there; None when nothing is to add.
    is_used
        Whether nsyspipe answers it; otherwise it is there for a look in Nsight Systems.
    n_reports, n_with
        All reports, and those that answer in full.
    lacking
        The others, by name.
    """

    name: str
    answers: str
    status: str
    found: str
    fix: str | None
    is_used: bool
    n_reports: int
    n_with: int
    lacking: tuple[str, ...]


@dataclass(frozen=True)
class Examination:
    """What some reports can answer.

    Attributes
    ----------
    reports
        What to call each report.
    problems
        What no capability says.
    """

    reports: tuple[str, ...]
    nsys_versions: tuple[str, ...]
    schema_versions: tuple[str, ...]
    capabilities: tuple[Capability, ...]
    problems: tuple[Problem, ...]


def examine(
    paths: Sequence[Path],
    reading: Reading | None = None,
    beside: Beside | None = None,
    *,
    executor: Executor | None = None,
) -> Examination:
    """Look into reports, which need not be of one run.

    Parameters
    ----------
    reading
        What is a step, a phase, a communication kernel; None for the defaults.
    beside
        What was given beside the reports; what was not is taken from their sidecars.
    executor
        Runs the work on each report; None works in this process.

    Raises
    ------
    InputError
        If one of them is missing, damaged, or no nsys export.
    OptionError
        If a rank map does not fit the reports.
    """
    names = display_names(paths)
    for path in paths:
        check_file(path)  # all of them, before any is read
    reading = reading or Reading()
    with telling_shortage():
        running = executor or SerialExecutor()
        contents = list(running.map(read_contents, paths, repeat(reading)))

    sidecars = read_sidecars([source_of(path) for path in paths])
    analysed, captured = _analysed(paths, reading, running, sidecars)
    beside, problems = _with_sidecars(beside or Beside(), captured)
    reports = _examined(contents, analysed, beside)
    reports, is_host_only = with_host_processes(reports)
    left_out = [is_host_only and beside.captured.is_without_gpu(at) for at in range(len(reports))]

    def combined(
        name: str, answers: str, findings: Sequence[Finding], *, is_used: bool = True
    ) -> Capability:
        if is_host_only:
            findings = [
                of_host(name, found, report, was_left_out=was)
                for found, report, was in zip(findings, reports, left_out, strict=True)
            ]
        return _combined(name, answers, findings, names, is_used=is_used)

    def judged(rules: Iterable[Rule]) -> list[Capability]:
        return [
            combined(
                rule.name,
                rule.answers,
                [rule.judge(one) for one in reports],
                is_used=rule.is_used,
            )
            for rule in rules
        ]

    together = [
        combined(name, answers, judge(reports, beside)) for name, answers, judge in RUN_RULES
    ]
    return Examination(
        reports=tuple(names),
        nsys_versions=_distinct(one.facts.nsys_version for one in reports),
        schema_versions=_distinct(one.facts.schema_version for one in reports),
        capabilities=(*judged(EVENT_RULES), *together, *judged(DETAIL_RULES)),
        problems=(*_problems(reports, names, left_out), *problems),
    )


def _analysed(
    paths: Sequence[Path], reading: Reading, running: Executor, sidecars: FoundSidecars
) -> tuple[list[tuple[ReportDigest, str | None]], Captured]:
    """Return what the analysis makes of each report, with its steps' family, and what sidecars say of all.

    Reports that cannot be of one run are analysed each by itself.
    """
    asks = reading.step is None and not reading.is_capture

    def believed(digests: Sequence[ReportDigest]) -> Captured:
        return believe_of_run(sidecars, digests, asks_for_steps=asks)

    def gathered(
        some: Sequence[Path], named: Callable[[Sequence[ReportDigest]], str | None]
    ) -> Gathered:
        def read(told: Reading) -> Gathered:
            return gather(
                some, told, jobs=None, executor=running, on_progress=None, named_family=named
            )

        try:
            return read(reading)
        except OptionError:  # --step matches nothing
            return read(replace(reading, step=None, is_capture=True))

    together = gathered(paths, lambda digests: believed(digests).family)
    captured = believed(together.digests)
    found = [(digest, together.family) for digest in together.digests]
    placed = place(together.digests) or place_hosts(together.digests)
    try:
        check_one_run(together.digests, placed, captured)
    except RankConflictError:
        alone = [gathered([path], lambda _: None) for path in paths]
        found = [(one.digests[0], one.family) for one in alone]
    return found, captured


def _examined(
    contents: Sequence[Contents],
    analysed: Sequence[tuple[ReportDigest, str | None]],
    beside: Beside,
) -> list[Examined]:
    """Put side by side what each report holds and what the analysis makes of it."""
    found = [
        Examined(**vars(one), digest=digest, family=family, is_several=False)
        for one, (digest, family) in zip(contents, analysed, strict=True)
    ]
    digests = [digest for digest, _ in analysed]
    launched = launched_size(found, beside.captured)
    size = world_size(digests, beside.log, beside.captured.world_size, launched)
    n_ranks = sum(len(digest.processes) for digest in digests)
    return [replace(one, is_several=max(n_ranks, size or 1) > 1) for one in found]


def _with_sidecars(given: Beside, captured: Captured) -> tuple[Beside, list[Problem]]:
    """Add what the sidecars of the reports say, and what is wrong with them."""
    log, topology, problems = read_beside(
        captured.sidecars, wants_log=given.log is None, wants_topology=given.topology is None
    )
    log, topology = given.log or log, given.topology or topology
    found = replace(given, log=log, topology=topology, captured=captured)
    return found, [*captured.problems, *problems]


def _combined(
    name: str,
    answers: str,
    findings: Sequence[Finding],
    names: Sequence[str],
    *,
    is_used: bool = True,
) -> Capability:
    """Make one row of what each report has."""
    pairs = zip(findings, names, strict=True)
    lacking = [(one, report) for one, report in pairs if one.status != YES]
    fixes = Counter(one.fix for one, _ in lacking if one.fix)
    status = YES if not lacking else PARTLY
    return Capability(
        name=name,
        answers=answers,
        status=NO if all(one.status == NO for one in findings) else status,
        found=_found(findings),
        fix=fixes.most_common(1)[0][0] if fixes else None,
        is_used=is_used,
        n_reports=len(findings),
        n_with=len(findings) - len(lacking),
        lacking=tuple(report for _, report in lacking),
    )


def _found(findings: Sequence[Finding]) -> str:
    """Say what some reports have: counts add up, equal words are said once."""
    counts: Counter[str] = Counter()
    # What there is instead counts only where no report has what is asked for.
    for one in [one for one in findings if one.status != NO] or findings:
        for noun, n in one.counts:
            counts[noun] += n
    having = [one for one in findings if one.status == YES]
    # Where some reports have it, what they have is said; the others are named elsewhere.
    texts = dict.fromkeys(one.text for one in having or findings if one.text)
    found = ", ".join(f"{n} {noun}" for noun, n in counts.items()) or "; ".join(texts)
    is_mixed = 0 < len(having) < len(findings)
    return f"{len(having)} of {len(findings)} reports: {found}" if is_mixed else found


def _problems(
    reports: Sequence[Examined], names: Sequence[str], left_out: Sequence[bool]
) -> Iterator[Problem]:
    """State what no capability says; `left_out`: whether no GPU of a report was to be traced."""
    if any(left_out):
        yield problem("captured-without-gpu")
    for report, name, was_left_out in zip(reports, names, left_out, strict=True):
        version = report.facts.schema_version
        if versions.is_newer_than_tested(version):
            yield problem("untested-version", version=version).at(report=name)
        if not (report.has_device_activity or was_left_out):
            yield problem("no-gpu-activity", what=name).at(report=name)


def _distinct(values: Iterable[str | None]) -> tuple[str, ...]:
    return tuple(sorted({value for value in values if value}))
