"""What a set of reports can answer: one row per question.

A row has a fix that would add what the reports lack.
"""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor
from itertools import compress
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from nsyspipe.errors import OptionError, RankConflictError
from nsyspipe.model.names import grouped
from nsyspipe.model.options import Reading
from nsyspipe.model.problems import CATALOGUE, UNSURE_COMM, Problem, problem
from nsyspipe.model.user_paths import AnyPath, ReportFile
from nsyspipe.nsys.find_reports import display_names, words_of_runs
from nsyspipe.reader.beside import find_beside
from nsyspipe.reader.metadata import Counts, read_counts
from nsyspipe.reader.report import NEWEST_TESTED, version_numbers
from nsyspipe.reader.sidecar import read_sidecars
from nsyspipe.run.assemble import merge
from nsyspipe.run.beside import files_beside
from nsyspipe.run.counters import count_counted_ranks
from nsyspipe.run.digests import ReportDigest, place
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
from nsyspipe.run.workers import SerialExecutor, telling_shortage

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
    "python_lines",
    "python_lock",
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
    paths: Sequence[AnyPath],
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
    files = [*map(ReportFile.of, paths)]
    gathered = _gather_reports(files, reading, running)
    counts = _count_rows(files, running)
    beside, problems_of_files = _add_found_files(files, gathered.together, beside)
    numbering = _number(gathered.digests, beside)
    job = _size_of_job(gathered, numbering, beside)
    reports = _reports_of_job(gathered, counts, reading, beside, job)
    names = display_names(files)
    capabilities = [_capability(question, reports, beside, names) for question in QUESTIONS]
    problems = [*numbering.problems, *_problems_of_reports(reports, names)]
    problems += [*beside.sidecars.problems, *problems_of_files]
    run_names = () if gathered.is_one_run else _names_of_runs(files)
    return Examination(
        reports=tuple(names),
        **_versions(gathered.digests),
        capabilities=tuple(capabilities),
        problems=tuple(problems),
        runs=run_names,
    )


def _versions(digests: Sequence[ReportDigest]) -> dict[str, Any]:
    """Return the versions of the reports, by field of `Examination`."""
    all_facts = [digest.facts for digest in digests]
    nsys_versions = [facts.nsys_version for facts in all_facts]
    schema_versions = [facts.schema_version for facts in all_facts]
    return {
        "nsys_versions": _distinct(nsys_versions),
        "schema_versions": _distinct(schema_versions),
    }


def _count_rows(files: Sequence[ReportFile], running: Executor) -> list[Counts]:
    with telling_shortage():
        return list(running.map(read_counts, files))


def _distinct(values: Iterable[str | None]) -> tuple[str, ...]:
    return tuple(sorted({value for value in values if value}))


def _gather_reports(
    files: Sequence[ReportFile], reading: Reading, running: Executor
) -> _GatheredReports:
    """Analyze all reports together, and again one by one if they are not of one run.

    If no range matches --step, the reports are analyzed without steps.
    """
    sidecars = read_sidecars([file.source for file in files])
    try:
        together = gather(files, reading, sidecars, executor=running)
    except OptionError:
        # Without steps, the other questions can be answered.
        reading = dataclasses.replace(reading, step=None, is_capture=True)
        together = gather(files, reading, sidecars, executor=running)
    digests = together.digests
    try:
        check_one_run(digests, ranks_or_hosts(digests), together.sidecars)
    except RankConflictError:
        by_report = [gather([file], reading, executor=running) for file in files]
        return _GatheredReports(together, by_report, is_one_run=False)
    by_report = [replace(together, digests=(digest,)) for digest in digests]
    return _GatheredReports(together, by_report, is_one_run=True)


def _add_found_files(
    reports: Sequence[ReportFile], run: Gathered, beside: Beside
) -> tuple[Beside, Sequence[Problem]]:
    """Return `beside` with the files in the directories of the reports, and problems with them.

    A log or topology that was passed is kept.
    """
    beside = replace(beside, sidecars=run.sidecars)
    if not beside.looks_beside:
        return beside, []
    sources = [report.source for report in reports]
    wants_log = beside.log is None
    wants_topology = beside.topology is None
    files = files_beside(
        find_beside(sources),
        run.digests,
        run.sidecars.sidecars,
        wants_log=wants_log,
        wants_topology=wants_topology,
    )
    log = beside.log or files.log
    topology = beside.topology or files.topology
    return replace(beside, log=log, topology=topology), files.problems


def _names_of_runs(files: Sequence[ReportFile]) -> tuple[str, ...]:
    """Return the words of the shell that name each run.

    They come without directories if they are still different then.
    """
    paths = map(str, files)
    words = [word.strip("'") for word in words_of_runs(paths)]
    words_without_directory = [word.rpartition("/")[2] for word in words]
    are_different = len(set(words_without_directory)) == len(words)
    return tuple(words_without_directory if are_different else words)


def _number(digests: Sequence[ReportDigest], beside: Beside) -> Numbering:
    """Give the ranks their numbers: by the rank map that was passed, else by what names them."""
    ranks = ranks_or_hosts(digests)
    if beside.rank_map is None:
        return number_by_name(ranks, beside.sidecars)
    return number_ranks(digests, ranks, beside.rank_map, beside.sidecars)


def _size_of_job(gathered: _GatheredReports, numbering: Numbering, beside: Beside) -> JobSize:
    """Return how large the job of the reports was. A log counts only if it is of this run."""
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
    has_several_ranks = max(n_ranks, job.n_ranks or 1) > 1
    lacks_groups = gathered.is_one_run and _lacks_groups(gathered.together, beside)
    n_counted = _count_counted_ranks(gathered)
    reports = []
    for argument, run in enumerate(gathered.by_report):
        was_left_out = is_host_only and beside.sidecars.is_without_gpu(argument)
        report = Examined(
            digest=run.digests[0],
            counts=counts[argument],
            reading=reading,
            family=run.family,
            is_host_only=is_host_only,
            was_left_out=was_left_out,
            job=job,
            is_several=has_several_ranks,
            lacks_groups=lacks_groups,
            n_counted=n_counted[argument],
        )
        reports.append(report)
    return reports


def _count_counted_ranks(gathered: _GatheredReports) -> list[int]:
    """Return the number of ranks of each report whose GPU is counted in a report of its run."""
    if gathered.is_one_run:
        digests = gathered.together.digests
        return count_counted_ranks(digests, place(digests))
    n_counted: list[int] = []
    for run in gathered.by_report:
        n_counted += count_counted_ranks(run.digests, place(run.digests))
    return n_counted


def _lacks_groups(run: Gathered, beside: Beside) -> bool:
    """Tell whether the process groups of a run are unknown, and so which ranks wait for which."""
    is_named = any(digest.comm_sizes for digest in run.digests)
    n_ranks_of_reports = [len(digest.processes) for digest in run.digests]
    n_ranks = sum(n_ranks_of_reports)
    if is_named or n_ranks < MIN_RANKS:
        return False
    tables = merge(run, beside.rank_map, None, beside.log, frozenset())
    codes = [row.code for row in tables.problems]
    return "groups-not-named" in codes


def _problems_of_reports(reports: Sequence[Examined], names: Sequence[str]) -> Iterator[Problem]:
    """Yield the problems of reports with these names that no answer mentions."""
    if any(report.was_left_out for report in reports):
        yield problem("captured-without-gpu")
    for report, name in zip(reports, names, strict=True):
        for row in _problems_of_report(report):
            yield row.at(report=name)


def _problems_of_report(report: Examined) -> Iterator[Problem]:
    digest = report.digest
    for row in digest.problems:
        # These two change no answer, so nothing else mentions them: an option that matches nothing,
        # and doubt whether a kernel communicates.
        is_unmatched_option = row.code.endswith("-unmatched")
        if is_unmatched_option or row.code in UNSURE_COMM:
            yield row
    version = digest.facts.schema_version
    if version_numbers(version) > NEWEST_TESTED:
        yield problem("untested-version", version=version)
    if not (digest.processes or report.was_left_out):
        yield problem("no-gpu-activity")


def _capability(
    question: Question, reports: Sequence[Examined], beside: Beside, names: Sequence[str]
) -> Capability:
    """Join the answers that the reports have for one question.

    `beside` is what lies in the directory of the reports, and `names` are the names of the reports.
    """
    answers = _answers(question, reports, beside)
    status = _joint_status(answers)
    are_incomplete = [answer.status != YES for answer in answers]
    lacking = tuple(compress(names, are_incomplete))
    n_sharers = _count_sharers(question.name, reports)
    description = _describe(answers, n_sharers)
    n_reports = len(answers)
    n_complete = n_reports - len(lacking)
    return Capability(
        name=question.name,
        answers=question.answers,
        status=status,
        found=description,
        fix=_most_common_fix(answers),
        is_used=question.is_used,
        n_reports=n_reports,
        n_with=n_complete,
        lacking=lacking,
    )


def _answers(question: Question, reports: Sequence[Examined], beside: Beside) -> Sequence[Answer]:
    """Return the answer of each report to a question.

    If no report has GPU activity, answers may say so instead of what the rule says.
    """
    answers = question.judge(reports, beside)
    if not reports[0].is_host_only:
        return answers
    answers_of_hosts = []
    for answer, report in zip(answers, reports, strict=True):
        host_answer = _without_devices(question.name, answer, report)
        answers_of_hosts.append(host_answer)
    return answers_of_hosts


def _most_common_fix(answers: Sequence[Answer]) -> str | None:
    """Return the fix that most incomplete answers have, None if none has a fix."""
    incomplete = [answer for answer in answers if answer.status != YES]
    fixes = [answer.fix for answer in incomplete if answer.fix]
    for fix, _ in Counter(fixes).most_common(1):
        return fix
    return None


def _joint_status(answers: Sequence[Answer]) -> str:
    """Return the status that all reports have, or `PARTLY` if they differ."""
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
    """Return the answer of a report if no report has GPU activity.

    `answer` is what the rule of the question says. It holds for questions that need no GPU.
    """
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
    text = "no GPU activity" if answer.status == YES else answer.text
    return Answer(NO, text=text, fix=fix)


def _describe(answers: Sequence[Answer], n_sharers: Sequence[int] | None) -> str:
    """Return in words what the reports have for a question.

    `n_sharers` is how many ranks or processes share the counts of each report.
    """
    n_reports = len(answers)
    complete = [answer for answer in answers if answer.status == YES]
    n_complete = len(complete)
    counts = _describe_counts(answers, n_sharers)
    # If some reports have the answer, another field names those that do not.
    words = counts or _texts(complete or answers)
    # A text that all reports share says itself which of them lack what.
    is_one_text = not counts and _have_one_text(answers)
    if is_one_text or n_complete in {0, n_reports}:
        return words
    words = f"{n_complete} of {n_reports} reports: {words}"
    reasons = _texts(filter(_is_reason, answers))
    if counts or not reasons:
        return words
    return f"{words} (the others: {reasons})"


def _have_one_text(answers: Iterable[Answer]) -> bool:
    return len({answer.text for answer in answers}) == 1


def _is_reason(answer: Answer) -> bool:
    """Tell whether the text of an answer says why it is incomplete."""
    return answer.status != YES and not answer.counts


def _texts(answers: Iterable[Answer]) -> str:
    """Return the texts of some answers, each once, in one line."""
    texts = dict.fromkeys(answer.text for answer in answers)
    return " / ".join(filter(None, texts))


class _SharedCount(NamedTuple):
    """How many there are of something in a report, and how many ranks or processes share it."""

    noun: str
    n: int
    n_sharers: int


def _describe_counts(answers: Sequence[Answer], n_sharers: Sequence[int] | None) -> str:
    """Return the counts of the reports in words, empty if there are none."""
    is_shared = n_sharers is not None and sum(n_sharers) > 1
    counts = _shared_counts(answers, n_sharers or [1] * len(answers))
    if not is_shared or not counts:
        return _show_sums(counts)
    # A sum that the ranks cannot share equally means that they differ. Then only the sum is known.
    do_ranks_differ = any(count.n % count.n_sharers for count in counts)
    if do_ranks_differ:
        return f"{_show_sums(counts)} in all ranks"
    nouns = [count.noun for count in counts]
    n_per_rank = [count.n // count.n_sharers for count in counts]
    values_of_nouns = grouped(zip(nouns, n_per_rank, strict=True))
    ranges = []
    for noun, values in values_of_nouns.items():
        shown = _show_range(values)
        ranges.append(f"{shown} {noun}")
    return f"{', '.join(ranges)} per rank"


def _shared_counts(answers: Sequence[Answer], n_sharers: Sequence[int]) -> list[_SharedCount]:
    """Return the counts of all reports, each with how many ranks or processes share it."""
    # The counts of an answer no are of what there is instead. They are shown only if all answers
    # are no.
    has_positive_answer = any(answer.status != NO for answer in answers)
    counts = []
    for answer, n_sharers_of_report in zip(answers, n_sharers, strict=True):
        if answer.status == NO and has_positive_answer:
            continue
        for noun, n in answer.counts:
            count = _SharedCount(noun, n, n_sharers_of_report)
            counts.append(count)
    return counts


def _show_sums(counts: Iterable[_SharedCount]) -> str:
    """Return the sum of the counts of each noun in words."""
    numbers_of_nouns = grouped((count.noun, count.n) for count in counts)
    totals = []
    for noun, numbers in numbers_of_nouns.items():
        total = sum(numbers)
        totals.append(f"{total} {noun}")
    return ", ".join(totals)


def _show_range(values: Sequence[int]) -> str:
    """Return the smallest and the largest of some numbers, or their only value."""
    smallest = min(values)
    largest = max(values)
    if smallest == largest:
        return str(smallest)
    return f"{smallest} to {largest}"
