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
from nsyspipe.model.names import grouped, listed
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
    world_size,
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
    "device_clock",
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
# With more reports, the words of an answer do not name them.
_MAX_NAMED_REPORTS = 3


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
    running_executor = executor or SerialExecutor()
    files = [*map(ReportFile.of, paths)]
    gathered = _gather_reports(files, reading, running_executor)
    counts = _count_rows(files, running_executor)
    found, problems_of_files = _add_found_files(files, gathered.together, beside or Beside())
    numbering = _number(gathered.digests, found)
    job = _size_of_job(gathered, numbering, found)
    reports = _reports_of_job(gathered, counts, reading, found, job)
    names = display_names(files)
    capabilities = [_capability(question, reports, found, names) for question in QUESTIONS]
    problems = [*numbering.problems, *_problems_of_reports(reports, names)]
    problems += [*found.sidecars.problems, *problems_of_files]
    run_names = () if gathered.is_one_run else _names_of_runs(files)
    return Examination(
        # Of the reports, an examination has only the names.
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


def _count_rows(files: Sequence[ReportFile], executor: Executor) -> list[Counts]:
    """Count what each report has in its tables."""
    with telling_shortage():
        return list(executor.map(read_counts, files))


def _distinct(values: Iterable[str | None]) -> tuple[str, ...]:
    return tuple(sorted({value for value in values if value}))


def _gather_reports(
    files: Sequence[ReportFile], reading: Reading, executor: Executor
) -> _GatheredReports:
    """Analyze all reports together, and again one by one if they are not of one run.

    An option about steps may fit no report, for example if no range matches --step. Then the
    reports are analyzed without steps, so that the other questions can be answered.
    """
    sidecars = read_sidecars([file.source for file in files])
    fitting_reading = reading
    try:
        together = gather(files, reading, sidecars, executor=executor)
    except OptionError:
        fitting_reading = dataclasses.replace(reading, step=None, is_capture=True)
        together = gather(files, fitting_reading, sidecars, executor=executor)
    digests = together.digests
    try:
        check_one_run(digests, ranks_or_hosts(digests), together.sidecars)
    except RankConflictError:
        by_report = [gather([file], fitting_reading, executor=executor) for file in files]
        return _GatheredReports(together, by_report, is_one_run=False)
    by_report = [replace(together, digests=(digest,)) for digest in digests]
    return _GatheredReports(together, by_report, is_one_run=True)


def _add_found_files(
    reports: Sequence[ReportFile], run: Gathered, beside: Beside
) -> tuple[Beside, Sequence[Problem]]:
    """Return `beside` with the sidecars, log and topology that lie beside the reports.

    A log or topology that was passed is kept. Returns the problems with the files too.
    """
    with_sidecars = replace(beside, sidecars=run.sidecars)
    if not beside.looks_beside:
        return with_sidecars, []
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
    return replace(with_sidecars, log=log, topology=topology), files.problems


def _names_of_runs(files: Sequence[ReportFile]) -> tuple[str, ...]:
    """Return a name for each run that the reports are of: a path or a glob.

    Directories are left out if the names are still different without them.
    """
    paths = map(str, files)
    # Names with special characters are quoted for the shell.
    names = [word.strip("'") for word in words_of_runs(paths)]
    names_without_directory = [name.rpartition("/")[2] for name in names]
    are_different = len(set(names_without_directory)) == len(names)
    return tuple(names_without_directory if are_different else names)


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
    """Return each report, with what is known of it only from all reports of its job."""
    is_host_only = gathered.is_host_only
    n_present_ranks = 0 if is_host_only else len(ranks_or_hosts(gathered.digests))
    n_job_ranks = job.n_ranks or 1
    had_job_several_ranks = n_present_ranks > 1 or n_job_ranks > 1
    lacks_groups = gathered.is_one_run and _lacks_groups(gathered.together, beside)
    n_ranks_with_counters = _count_counted_ranks(gathered)
    reports = []
    for argument, run in enumerate(gathered.by_report):
        was_without_gpu = is_host_only and beside.sidecars.is_without_gpu(argument)
        had_several_ranks = had_job_several_ranks
        if not gathered.is_one_run:
            had_several_ranks = _had_several_ranks(run, default=had_job_several_ranks)
        report = Examined(
            digest=run.digests[0],
            counts=counts[argument],
            reading=reading,
            family=run.family,
            is_host_only=is_host_only,
            was_without_gpu=was_without_gpu,
            job=job,
            had_several_ranks=had_several_ranks,
            lacks_groups=lacks_groups,
            n_ranks_with_counters=n_ranks_with_counters[argument],
        )
        reports.append(report)
    return reports


def _had_several_ranks(run: Gathered, *, default: bool) -> bool:
    """Tell whether the job of one report had several ranks; `default` if nothing shows it."""
    n_ranks = len(ranks_or_hosts(run.digests))
    n_job_ranks = world_size(run.digests, run.sidecars)
    if n_ranks > 1:
        return True
    return default if n_job_ranks is None else n_job_ranks > 1


def _count_counted_ranks(gathered: _GatheredReports) -> list[int]:
    """Return for each report how many of its ranks have a GPU with hardware counters.

    The counters of a GPU may be in another report of the same run.
    """
    if gathered.is_one_run:
        digests = gathered.together.digests
        return count_counted_ranks(digests, place(digests))
    n_ranks_with_counters: list[int] = []
    for run in gathered.by_report:
        n_ranks_with_counters += count_counted_ranks(run.digests, place(run.digests))
    return n_ranks_with_counters


def _lacks_groups(run: Gathered, beside: Beside) -> bool:
    """Tell whether the process groups of a run are unknown, and so which ranks wait for which.

    Only an analysis of the run shows this. It is left out if NCCL names the groups, or if there are
    too few ranks for several groups.
    """
    are_groups_named = any(digest.comm_sizes for digest in run.digests)
    n_ranks_of_reports = [len(digest.processes) for digest in run.digests]
    n_ranks = sum(n_ranks_of_reports)
    if are_groups_named or n_ranks < MIN_RANKS:
        return False
    tables = merge(
        run,
        beside.rank_map,
        skip=None,
        log=beside.log,
        ranks_of_all_reports=frozenset(),
    )
    codes = [row.code for row in tables.problems]
    return "groups-not-named" in codes


def _problems_of_reports(reports: Sequence[Examined], names: Sequence[str]) -> Iterator[Problem]:
    """Yield the problems that no answer mentions. `names` are the names of the reports."""
    if any(report.was_without_gpu for report in reports):
        yield problem("captured-without-gpu")
    for report, name in zip(reports, names, strict=True):
        for row in _problems_of_report(report):
            yield row.at(report=name)


def _problems_of_report(report: Examined) -> Iterator[Problem]:
    """Yield the problems of a report that no answer mentions.

    These are options that match nothing, kernels that perhaps communicate, an untested version, and
    no GPU activity although a GPU was traced.
    """
    digest = report.digest
    for row in digest.problems:
        is_unmatched_option = row.code.endswith("-unmatched")
        is_unsure_comm = row.code in UNSURE_COMM
        if is_unmatched_option or is_unsure_comm:
            yield row
    version = digest.facts.schema_version
    if version_numbers(version) > NEWEST_TESTED:
        yield problem("untested-version", version=version)
    has_gpu_activity = bool(digest.processes)
    if not has_gpu_activity and not report.was_without_gpu:
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
    description = _describe(answers, n_sharers, names)
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

    If no report has GPU activity, some answers say so instead of what the question's rule says.
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

    A report without ranks counts as one. None for a question whose counts are summed.
    """
    if question in _COUNTED_PER_RANK:
        return [max(len(report.pids), 1) for report in reports]
    if question in _COUNTED_PER_PROCESS:
        return [max(report.n_processes, 1) for report in reports]
    return None


def _without_devices(question: str, answer: Answer, report: Examined) -> Answer:
    """Return the answer of a report if no report has GPU activity.

    `answer` is what the rule of the question says. It is returned for questions that need no GPU.
    A question about devices gets the answer "no", with the reason of `answer` if it has one.
    """
    # If no GPU was meant to be traced, no change of the capture is a fix.
    fix = None if report.was_without_gpu else CATALOGUE["no-gpu-activity"].fix
    if question == "phases" and report.phase_counts:
        # The times of the phases on the host are known.
        return Answer(PARTLY, report.phase_counts, fix=fix)
    if question == "phases" and report.was_without_gpu:
        return replace(answer, text="no NVTX range has the name of a phase", fix=None)
    needs_devices = question in _QUESTIONS_OF_DEVICES
    if not needs_devices:
        return answer
    if report.was_without_gpu:
        return Answer(NO, text="captured without a GPU")
    has_reason = answer.status != YES
    return Answer(NO, text=answer.text if has_reason else "no GPU activity", fix=fix)


def _describe(
    answers: Sequence[Answer], n_sharers: Sequence[int] | None, names: Sequence[str]
) -> str:
    """Return in words what the reports have for a question.

    `n_sharers` is how many ranks or processes share the counts of each report, None if counts are
    summed. If a few reports have different answers, each answer follows the `names` of its reports.
    """
    if len(answers) <= _MAX_NAMED_REPORTS:
        kinds = _describe_kinds(answers, n_sharers, names)
        if len(kinds) > 1:
            return ". ".join(kinds)
    return _describe_without_names(answers, n_sharers)


def _describe_without_names(answers: Sequence[Answer], n_sharers: Sequence[int] | None) -> str:
    """Return in words what the reports have for a question, and how many have all of it.

    `Capability.lacking` names the reports without a complete answer, so these words do not.
    """
    n_reports = len(answers)
    complete = [answer for answer in answers if answer.status == YES]
    n_complete = len(complete)
    counts = _describe_counts(answers, n_sharers)
    # A text that all reports share says itself which of them lack what.
    is_one_text = not counts and _have_one_text(answers)
    are_equally_complete = n_complete in {0, n_reports}
    if is_one_text or are_equally_complete:
        return counts or _texts(complete or answers)
    is_complete = [answer.status == YES for answer in answers]
    counts_of_complete = _describe_some(answers, n_sharers, is_complete)
    words_of_complete = counts_of_complete or _texts(complete)
    words_of_others = _describe_others(answers, n_sharers)
    start = f"{n_complete} of {n_reports} reports: {words_of_complete}"
    other_reports = "the other report" if n_reports - n_complete == 1 else "the other reports"
    return f"{start} ({other_reports}: {words_of_others})" if words_of_others else start


def _describe_kinds(
    answers: Sequence[Answer], n_sharers: Sequence[int] | None, names: Sequence[str]
) -> list[str]:
    """Return for each kind of answer the names of its reports, and what these reports have."""
    kinds = [*map(_kind_of, answers)]
    parts = []
    for kind in dict.fromkeys(kinds):
        is_of_kind = [other_kind == kind for other_kind in kinds]
        answers_of_kind = list(compress(answers, is_of_kind))
        counts = _describe_some(answers, n_sharers, is_of_kind)
        words = counts or _texts(answers_of_kind) or "none"
        parts.append(f"{listed(compress(names, is_of_kind))}: {words}")
    return parts


def _kind_of(answer: Answer) -> tuple[object, ...]:
    """Return what the words of an answer depend on, except for its counts."""
    nouns = tuple(noun for noun, _ in answer.counts)
    return answer.status, nouns, "" if nouns else answer.text


def _describe_others(answers: Sequence[Answer], n_sharers: Sequence[int] | None) -> str:
    """Return what the reports without a complete answer have.

    Empty if it is plain that they have nothing, because complete answers are counts.
    """
    is_partly = [answer.status == PARTLY for answer in answers]
    counts = _describe_some(answers, n_sharers, is_partly)
    has_counts = any(answer.counts for answer in answers)
    return counts if has_counts else _texts(filter(_is_reason, answers))


def _describe_some(
    answers: Sequence[Answer], n_sharers: Sequence[int] | None, is_chosen: Sequence[bool]
) -> str:
    """Return the counts of some of the answers in words, empty if they have none."""
    n_sharers_of_chosen = None if n_sharers is None else list(compress(n_sharers, is_chosen))
    return _describe_counts(list(compress(answers, is_chosen)), n_sharers_of_chosen)


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
    """Return the counts of the reports in words, empty if there are none.

    `n_sharers` is how many ranks or processes share the counts of each report, None if counts are
    summed.
    """
    is_shared = n_sharers is not None and sum(n_sharers) > 1
    one_sharer_each = [1] * len(answers)
    counts = _shared_counts(answers, n_sharers or one_sharer_each)
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
    # If an answer is "no", its counts say what there is instead. They are shown only if all answers
    # are "no".
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
