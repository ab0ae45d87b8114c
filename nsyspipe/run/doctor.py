"""What a set of reports can answer: one row per question.

A row has a fix that would add what the reports lack.
"""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from nsyspipe.errors import OptionError, RankConflictError
from nsyspipe.model.names import grouped
from nsyspipe.model.options import Reading
from nsyspipe.model.problems import CATALOGUE, UNSURE_COMM, Problem, problem
from nsyspipe.nsys.find_reports import display_names, source_of, words_of_runs
from nsyspipe.reader.beside import find_beside
from nsyspipe.reader.metadata import Counts, read_counts
from nsyspipe.reader.report import NEWEST_TESTED, version_numbers
from nsyspipe.reader.sidecar import read_sidecars
from nsyspipe.run.assemble import merge
from nsyspipe.run.beside import files_beside
from nsyspipe.run.digests import ReportDigest
from nsyspipe.run.gather import Gathered, gather, ranks_or_hosts
from nsyspipe.run.process_groups import MIN_RANKS
from nsyspipe.run.questions import NO, PARTLY, QUESTIONS, YES, Answer, Beside, Examined, Question
from nsyspipe.run.ranks import (
    JobSize,
    Numbering,
    check_one_run,
    job_size,
    number_by_name,
    number_ranks,
    run_sizes,
)
from nsyspipe.run.workers import SerialExecutor, place_for, telling_shortage

# Questions about devices, which reports without any device activity cannot answer.
_QUESTIONS_OF_DEVICES = {
    "compute_and_comm",
    "launches",
    "copies",
    "gpu_model",
    "nccl_ranges",
    "message_bytes",
    "idle_causes",
    "kernel_shapes",
    "cuda_graphs",
    "gpu_metrics",
    "link",
}
# Counts of these questions are shown for each rank, or process. Other counts are summed.
_COUNTED_PER_RANK = {"cuda_graphs"}
_COUNTED_PER_PROCESS = {"steps", "phases"}


class Capability(Struct, frozen=True):
    """One question, and whether the reports answer it."""

    name: str
    # What the user gets to know.
    answers: str
    # `YES`, `NO`, or `PARTLY`: in part, or not from every report.
    status: str
    # What there is, in words.
    found: str
    # What would add what is missing, None if nothing is.
    fix: str | None
    # Whether nsyspipe itself uses the answer. Otherwise it helps in Nsight Systems.
    is_used: bool
    n_reports: int
    # The number of reports that answer in full, and the names of the others.
    n_with: int
    lacking: tuple[str, ...]


class Examination(Struct, frozen=True):
    """What some reports can answer."""

    # The displayed name of each report.
    reports: tuple[str, ...]
    nsys_versions: tuple[str, ...]
    schema_versions: tuple[str, ...]
    capabilities: tuple[Capability, ...]
    # Problems that are not part of a capability.
    problems: tuple[Problem, ...]
    # The names of the runs that the reports are of. Empty if they may be of one run.
    runs: tuple[str, ...] = ()


class _GatheredReports(Struct, frozen=True):
    """What the analysis makes of the reports."""

    together: Gathered
    # Of each report. If the reports are not of one run, each was analyzed alone.
    by_report: list[Gathered]
    is_one_run: bool

    @property
    def digests(self) -> list[ReportDigest]:
        """The digest of each report."""
        return [gathered.digests[0] for gathered in self.by_report]

    @property
    def is_host_only(self) -> bool:
        """Whether no report has device activity."""
        return not any(digest.processes for digest in self.together.digests)


def examine(
    paths: Sequence[Path],
    reading: Reading | None = None,
    beside: Beside | None = None,
    *,
    executor: Executor | None = None,
) -> Examination:
    """Find out what reports, which need not be of one run, can answer.

    What is not passed in `beside` is taken from the directories of the reports.
    """
    reading = reading or Reading()
    beside = beside or Beside()
    running = executor or SerialExecutor()
    gathered = _gather_reports(paths, reading, running)
    counts = _count_rows(paths, running)
    beside, problems_of_files = _add_found_files(paths, gathered.together, beside)
    numbering = _number(gathered.digests, beside)
    job = _size_of_job(gathered, numbering, beside)
    reports = _reports_of_job(gathered, counts, reading, beside, job)
    names = display_names(paths)
    problems = [*numbering.problems, *_problems_of_reports(reports, names)]
    capabilities = [_capability(question, reports, beside, names) for question in QUESTIONS]
    digests = gathered.digests
    return Examination(
        reports=tuple(names),
        nsys_versions=_distinct([digest.facts.nsys_version for digest in digests]),
        schema_versions=_distinct([digest.facts.schema_version for digest in digests]),
        capabilities=tuple(capabilities),
        problems=(*problems, *beside.sidecars.problems, *problems_of_files),
        runs=() if gathered.is_one_run else _names_of_runs(paths),
    )


def _count_rows(paths: Sequence[Path], running: Executor) -> list[Counts]:
    with telling_shortage():
        return list(running.map(read_counts, [place_for(running, path) for path in paths]))


def _distinct(values: Iterable[str | None]) -> tuple[str, ...]:
    return tuple(sorted({value for value in values if value}))


def _gather_reports(paths: Sequence[Path], reading: Reading, running: Executor) -> _GatheredReports:
    """Analyze all reports together, and again one by one if they are not of one run."""
    sidecars = read_sidecars([source_of(path) for path in paths])
    try:
        together = gather(paths, reading, sidecars, executor=running)
    except OptionError:
        # No range matches --step. Without it, the other questions can be answered.
        reading = dataclasses.replace(reading, step=None, is_capture=True)
        together = gather(paths, reading, sidecars, executor=running)
    try:
        check_one_run(together.digests, ranks_or_hosts(together.digests), together.sidecars)
    except RankConflictError:
        by_report = [gather([path], reading, executor=running) for path in paths]
        return _GatheredReports(together, by_report, is_one_run=False)
    by_report = [replace(together, digests=(digest,)) for digest in together.digests]
    return _GatheredReports(together, by_report, is_one_run=True)


def _add_found_files(
    paths: Sequence[Path], run: Gathered, beside: Beside
) -> tuple[Beside, Sequence[Problem]]:
    """Add what lies in the directories of reports, and return the problems with those files."""
    beside = replace(beside, sidecars=run.sidecars)
    if not beside.looks_beside:
        return beside, []
    candidates = find_beside([source_of(path) for path in paths])
    files = files_beside(
        candidates,
        run.digests,
        run.sidecars.sidecars,
        wants_log=beside.log is None,
        wants_topology=beside.topology is None,
    )
    log = beside.log or files.log
    topology = beside.topology or files.topology
    return replace(beside, log=log, topology=topology), files.problems


def _names_of_runs(paths: Sequence[Path]) -> tuple[str, ...]:
    """Return the words of the shell that name each run, without directories if these are equal."""
    words = [word.strip("'") for word in words_of_runs(paths)]
    names = [word.rpartition("/")[2] for word in words]
    are_distinct = len(set(names)) == len(names)
    return tuple(names if are_distinct else words)


def _number(digests: Sequence[ReportDigest], beside: Beside) -> Numbering:
    """Give the ranks their numbers: by the rank map that was passed, else by what names them."""
    ranks = ranks_or_hosts(digests)
    if beside.rank_map is None:
        return number_by_name(ranks, beside.sidecars)
    return number_ranks(digests, ranks, beside.rank_map, beside.sidecars)


def _size_of_job(gathered: _GatheredReports, numbering: Numbering, beside: Beside) -> JobSize:
    run = replace(gathered.together, digests=tuple(gathered.digests))
    ranks = ranks_or_hosts(gathered.digests)
    log = None
    if beside.log is not None:
        pids = [rank.process.pid for rank in ranks]
        log = beside.log.of_run(pids, run_sizes(run))
    return job_size(run, ranks, numbering, log=log, ranks_of_all_reports=())


def _reports_of_job(
    gathered: _GatheredReports,
    counts: Sequence[Counts],
    reading: Reading,
    beside: Beside,
    job: JobSize,
) -> list[Examined]:
    """Return each report, with what it takes from the other reports of its job."""
    is_host_only = gathered.is_host_only
    n_ranks = 0 if is_host_only else len(ranks_or_hosts(gathered.digests))
    lacks_groups = gathered.is_one_run and _lacks_groups(gathered.together, beside)
    reports = []
    for argument, run in enumerate(gathered.by_report):
        report = Examined(
            digest=run.digests[0],
            counts=counts[argument],
            reading=reading,
            family=run.family,
            is_host_only=is_host_only,
            was_left_out=is_host_only and beside.sidecars.is_without_gpu(argument),
            job=job,
            is_several=max(n_ranks, job.n_ranks or 1) > 1,
            lacks_groups=lacks_groups,
        )
        reports.append(report)
    return reports


def _lacks_groups(run: Gathered, beside: Beside) -> bool:
    """Tell whether the process groups of a run are unknown, and so which ranks wait for which."""
    is_named = any(digest.comm_sizes for digest in run.digests)
    n_ranks = sum(len(digest.processes) for digest in run.digests)
    if is_named or n_ranks < MIN_RANKS:
        return False
    tables = merge(run, beside.rank_map, None, beside.log, frozenset())
    return any(row.code == "groups-not-named" for row in tables.problems)


def _problems_of_reports(reports: Sequence[Examined], names: Sequence[str]) -> Iterator[Problem]:
    """Yield the problems of reports with these names that no answer mentions."""
    if any(report.was_left_out for report in reports):
        yield problem("captured-without-gpu")
    for report, name in zip(reports, names, strict=True):
        for row in _problems_of_report(report):
            yield row.at(report=name)


def _problems_of_report(report: Examined) -> Iterator[Problem]:
    for row in report.digest.problems:
        # An option that matches nothing changes no answer. Doubt whether a kernel communicates
        # changes only the metrics.
        if row.code.endswith("-unmatched") or row.code in UNSURE_COMM:
            yield row
    version = report.digest.facts.schema_version
    if version_numbers(version) > NEWEST_TESTED:
        yield problem("untested-version", version=version)
    if not (report.digest.processes or report.was_left_out):
        yield problem("no-gpu-activity")


def _capability(
    question: Question, reports: Sequence[Examined], beside: Beside, names: Sequence[str]
) -> Capability:
    """Join the answers that the reports have for one question."""
    answers = question.judge(reports, beside)
    if reports[0].is_host_only:
        answers = [
            _without_devices(question.name, answer, report)
            for answer, report in zip(answers, reports, strict=True)
        ]
    incomplete = [answer for answer in answers if answer.status != YES]
    fixes = Counter(answer.fix for answer in incomplete if answer.fix)
    most_common = fixes.most_common(1)
    lacking = [name for answer, name in zip(answers, names, strict=True) if answer.status != YES]
    return Capability(
        name=question.name,
        answers=question.answers,
        status=_joint_status(answers),
        found=_describe(answers, _count_sharers(question.name, reports)),
        fix=most_common[0][0] if most_common else None,
        is_used=question.is_used,
        n_reports=len(answers),
        n_with=len(answers) - len(lacking),
        lacking=tuple(lacking),
    )


def _joint_status(answers: Sequence[Answer]) -> str:
    """Return the status of several reports. Reports that differ answer in part."""
    statuses = {answer.status for answer in answers}
    return statuses.pop() if len(statuses) == 1 else PARTLY


def _count_sharers(question: str, reports: Sequence[Examined]) -> list[int] | None:
    """Return how many ranks or processes share the counts of each report.

    None if the counts of a question are summed.
    """
    if question in _COUNTED_PER_RANK:
        return [max(len(report.pids), 1) for report in reports]
    if question in _COUNTED_PER_PROCESS:
        return [max(report.n_processes, 1) for report in reports]
    return None


def _without_devices(question: str, answer: Answer, report: Examined) -> Answer:
    """Return the answer of a report if no report has device activity."""
    # If no GPU was meant to be traced, no change of the capture is a fix.
    fix = None if report.was_left_out else CATALOGUE["no-gpu-activity"].fix
    if question == "phases" and report.phase_counts:
        # The times of the phases on the host are known.
        return Answer(PARTLY, report.phase_counts, fix=fix)
    if question == "phases" and report.was_left_out:
        return replace(answer, text="no NVTX range has the name of a phase", fix=None)
    if question not in _QUESTIONS_OF_DEVICES:
        return answer
    if report.was_left_out:
        return Answer(NO, text="captured without a GPU")
    return Answer(NO, text="no GPU activity" if answer.status == YES else answer.text, fix=fix)


def _describe(answers: Sequence[Answer], n_sharers: Sequence[int] | None) -> str:
    """Return in words what the reports have for a question.

    `n_sharers` is how many ranks or processes share the counts of each report.
    """
    complete = [answer for answer in answers if answer.status == YES]
    counts = _describe_counts(answers, n_sharers)
    # If some reports have the answer, another field names those that do not.
    words = counts or " / ".join(_texts(complete or answers))
    # A text that all reports share says itself which of them lack what.
    is_one_text = not counts and _have_one_text(answers)
    if is_one_text or len(complete) in {0, len(answers)}:
        return words
    words = f"{len(complete)} of {len(answers)} reports: {words}"
    reasons = _texts([answer for answer in answers if _is_reason(answer)])
    return words if counts or not reasons else f"{words} (the others: {' / '.join(reasons)})"


def _have_one_text(answers: Iterable[Answer]) -> bool:
    return len({answer.text for answer in answers}) == 1


def _is_reason(answer: Answer) -> bool:
    """Tell whether the text of an answer says why it is incomplete."""
    return answer.status != YES and not answer.counts


def _texts(answers: Iterable[Answer]) -> list[str]:
    """Return the texts of some answers, each once."""
    texts = dict.fromkeys(answer.text for answer in answers)
    return [text for text in texts if text]


class _SharedCount(NamedTuple):
    """How many there are of something in a report, and how many ranks or processes share it."""

    noun: str
    n: int
    n_sharers: int


def _describe_counts(answers: Sequence[Answer], n_sharers: Sequence[int] | None) -> str:
    """Return the counts of the reports in words, empty if there are none."""
    counts = _shared_counts(answers, n_sharers or [1] * len(answers))
    is_shared = n_sharers is not None and sum(n_sharers) > 1
    if not is_shared or not counts:
        return _show_sums(counts)
    # If ranks of one report differ, only their sum is known.
    if any(count.n % count.n_sharers for count in counts):
        return f"{_show_sums(counts)} in all ranks"
    n_of_each = grouped((count.noun, count.n // count.n_sharers) for count in counts)
    words = [f"{_show_range(values)} {noun}" for noun, values in n_of_each.items()]
    return f"{', '.join(words)} per rank"


def _shared_counts(answers: Sequence[Answer], n_sharers: Sequence[int]) -> list[_SharedCount]:
    pairs = [*zip(answers, n_sharers, strict=True)]
    # What there is instead counts only if no report has what the question asks for.
    counted = [(answer, sharers) for answer, sharers in pairs if answer.status != NO] or pairs
    counts = []
    for answer, sharers in counted:
        counts += [_SharedCount(noun, n, sharers) for noun, n in answer.counts]
    return counts


def _show_sums(counts: Iterable[_SharedCount]) -> str:
    numbers = grouped((count.noun, count.n) for count in counts)
    return ", ".join(f"{sum(values)} {noun}" for noun, values in numbers.items())


def _show_range(values: Sequence[int]) -> str:
    """Return the smallest and the largest of some numbers, or their only value."""
    return " to ".join(dict.fromkeys((str(min(values)), str(max(values)))))
