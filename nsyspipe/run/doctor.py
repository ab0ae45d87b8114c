"""What a set of reports can answer: one row per question, and the flag that would add what is not there."""

import dataclasses
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Executor
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from nsyspipe.errors import OptionError, RankConflictError
from nsyspipe.model.names import grouped
from nsyspipe.model.options import Reading
from nsyspipe.model.problems import CATALOGUE, UNSURE_COMM, Problem, problem
from nsyspipe.nsys.find_reports import display_names, source_of, words_of_runs
from nsyspipe.reader.beside import FilesBeside, find_beside
from nsyspipe.reader.metadata import read_counts
from nsyspipe.reader.report import NEWEST_TESTED, version_numbers
from nsyspipe.reader.sidecar import read_sidecars
from nsyspipe.run.assemble import merge
from nsyspipe.run.beside import files_beside
from nsyspipe.run.gather import Gathered, gather, ranks_or_hosts
from nsyspipe.run.process_groups import MIN_RANKS
from nsyspipe.run.questions import NO, PARTLY, QUESTIONS, YES, Answer, Beside, Examined, Question
from nsyspipe.run.ranks import check_one_run, job_size, number_by_name, number_ranks, run_sizes
from nsyspipe.run.workers import SerialExecutor, place_for, telling_shortage

# What changes in the answers of reports without any device activity: nothing of a device can be
# asked of them.
_OF_DEVICE = {
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
# What each rank has of its own, or shares with the other ranks of its process; other counts add up.
_PER_RANK = {"cuda_graphs"}
_PER_PROCESS = {"steps", "phases"}


class Capability(Struct, frozen=True):
    """One question, and whether the reports answer it."""

    name: str
    answers: str  # what one gets
    status: str  # `YES`; `PARTLY`: in part, or not from every report; `NO`
    found: str
    fix: str | None  # the flag that would add what is not there; None when nothing is to add
    is_used: bool  # whether nsyspipe answers it; otherwise it is there for a look in Nsight Systems
    n_reports: int
    n_with: int  # reports that answer in full
    lacking: tuple[str, ...]  # the others, by name


class Examination(Struct, frozen=True):
    """What some reports can answer."""

    reports: tuple[str, ...]  # what to call each report
    nsys_versions: tuple[str, ...]
    schema_versions: tuple[str, ...]
    capabilities: tuple[Capability, ...]
    problems: tuple[Problem, ...]  # what no capability says
    runs: tuple[
        str, ...
    ] = ()  # what names each of the runs that they are of; nothing where they may be of one


def examine(
    paths: Sequence[Path],
    reading: Reading | None = None,
    beside: Beside | None = None,
    *,
    executor: Executor | None = None,
) -> Examination:
    """Look into reports, which need not be of one run; what is not given beside them is taken from their sidecars."""
    names = display_names(paths)
    reading = reading or Reading()
    beside = beside or Beside()
    running = executor or SerialExecutor()
    together, gathered = _gathered(paths, reading, running)
    with telling_shortage():
        counts = list(running.map(read_counts, [place_for(running, path) for path in paths]))
    runs: list[str] = []
    if any(own.digests[0] is not one for own, one in zip(gathered, together.digests, strict=True)):
        words = [word.strip("'") for word in words_of_runs(paths)]
        runs = [word.rpartition("/")[2] for word in words]
        runs = (
            runs if len({*runs}) == len(runs) else words
        )  # without directories where that tells them apart
    sidecars = together.sidecars
    found = FilesBeside()
    if beside.looks_beside:
        candidates = find_beside([source_of(path) for path in paths])
        wanted = {"wants_log": beside.log is None, "wants_topology": beside.topology is None}
        found = files_beside(candidates, together.digests, sidecars.sidecars, **wanted)
    log = beside.log or found.log
    topology = beside.topology or found.topology
    beside = replace(beside, log=log, topology=topology, sidecars=sidecars)
    is_host_only = not any(digest.processes for digest in together.digests)
    digests = [one.digests[0] for one in gathered]
    ranks = ranks_or_hosts(digests)
    own: list[Problem] = []
    numbering = number_by_name(ranks, sidecars)
    if beside.rank_map is not None:
        numbering = number_ranks(digests, ranks, beside.rank_map, sidecars)
        own += numbering.problems
    merged = replace(together, digests=tuple(digests))
    own_log = beside.log and beside.log.of_run(
        [rank.process.pid for rank in ranks], run_sizes(merged)
    )
    job = job_size(merged, ranks, numbering, log=own_log, ranks_of_all_reports=())
    is_several = max(0 if is_host_only else len(ranks), job.n_ranks or 1) > 1
    is_one_run = all(
        own.digests[0] is one for own, one in zip(gathered, together.digests, strict=True)
    )
    lacks_groups = is_one_run and _lacks_groups(together, beside)
    reports = []
    for at, (digest, rows, one) in enumerate(zip(digests, counts, gathered, strict=True)):
        was_left_out = is_host_only and sidecars.is_without_gpu(at)
        reports.append(
            Examined(
                digest,
                rows,
                reading,
                one.family,
                is_host_only,
                was_left_out,
                job,
                is_several,
                lacks_groups,
            )
        )
    own += (
        [problem("captured-without-gpu")] if any(report.was_left_out for report in reports) else []
    )
    for report, name in zip(reports, names, strict=True):
        # An option that matches nothing changes no answer; what may be communication or not, only
        # its figures.
        told = (
            one
            for one in report.digest.problems
            if one.code.endswith("-unmatched") or one.code in UNSURE_COMM
        )
        own += (one.at(report=name) for one in told)
        version = report.digest.facts.schema_version
        if version_numbers(version) > NEWEST_TESTED:
            own.append(problem("untested-version", version=version).at(report=name))
        if not (report.digest.processes or report.was_left_out):
            own.append(problem("no-gpu-activity").at(report=name))
    return Examination(
        reports=tuple(names),
        nsys_versions=tuple(
            sorted(filter(None, {digest.facts.nsys_version for digest in digests}))
        ),
        schema_versions=tuple(
            sorted(filter(None, {digest.facts.schema_version for digest in digests}))
        ),
        capabilities=tuple(_capability(question, reports, beside, names) for question in QUESTIONS),
        problems=(*own, *sidecars.problems, *found.problems),
        runs=tuple(runs),
    )


def _lacks_groups(run: Gathered, beside: Beside) -> bool:
    """Tell whether the analysis does not know the process groups of a run, so that it cannot tell who waits for whom."""
    is_named = any(digest.comm_sizes for digest in run.digests)
    if is_named or sum(len(digest.processes) for digest in run.digests) < MIN_RANKS:
        return False
    tables = merge(run, beside.rank_map, None, beside.log, frozenset())
    return any(one.code == "groups-not-named" for one in tables.problems)


def _gathered(
    paths: Sequence[Path], reading: Reading, running: Executor
) -> tuple[Gathered, list[Gathered]]:
    """Return what the analysis makes of all reports together, and of each; without others if they are no one run."""
    sidecars = read_sidecars([source_of(path) for path in paths])
    try:
        together = gather(paths, reading, sidecars, executor=running)
    except OptionError:  # --step matches nothing
        reading = dataclasses.replace(reading, step=None, is_capture=True)
        together = gather(paths, reading, sidecars, executor=running)
    try:
        check_one_run(together.digests, ranks_or_hosts(together.digests), together.sidecars)
    except RankConflictError:
        return together, [gather([path], reading, executor=running) for path in paths]
    return together, [replace(together, digests=(digest,)) for digest in together.digests]


def _capability(
    question: Question, reports: Sequence[Examined], beside: Beside, names: Sequence[str]
) -> Capability:
    answers = question.judge(reports, beside)
    if reports[0].is_host_only:
        answers = [_of_host(question.name, *pair) for pair in zip(answers, reports, strict=True)]
    lacking = [
        (answer, name) for answer, name in zip(answers, names, strict=True) if answer.status != YES
    ]
    fixes = Counter(answer.fix for answer, _ in lacking if answer.fix)
    return Capability(
        name=question.name,
        answers=question.answers,
        status=NO if all(answer.status == NO for answer in answers) else PARTLY if lacking else YES,
        found=_words(answers, _n_each(question.name, reports)),
        fix=fixes.most_common(1)[0][0] if fixes else None,
        is_used=question.is_used,
        n_reports=len(answers),
        n_with=len(answers) - len(lacking),
        lacking=tuple(name for _, name in lacking),
    )


def _n_each(question: str, reports: Sequence[Examined]) -> list[int] | None:
    """Return how many of each report have what is counted each for itself; None where counts add up."""
    if question in _PER_RANK:
        return [max(len(report.pids), 1) for report in reports]
    return [max(report.n_processes, 1) for report in reports] if question in _PER_PROCESS else None


def _of_host(name: str, answer: Answer, report: Examined) -> Answer:
    """Return what a report without device activity has for one question, of which its rule knows nothing."""
    # Where no GPU was to be traced, no fix of a capture helps.
    fix = None if report.was_left_out else CATALOGUE["no-gpu-activity"].fix
    if name == "phases" and (counts := report.phase_counts):
        return Answer(PARTLY, counts, fix=fix)  # their times on the host
    if name == "phases" and report.was_left_out:
        return replace(answer, text="no NVTX range has the name of a phase", fix=None)
    if name not in _OF_DEVICE:
        return answer
    if report.was_left_out:
        return Answer(NO, text="captured without a GPU")
    return Answer(NO, text="no GPU activity" if answer.status == YES else answer.text, fix=fix)


def _words(answers: Sequence[Answer], n_ranks: Sequence[int] | None = None) -> str:
    pairs = [*zip(answers, n_ranks or [1] * len(answers), strict=True)]
    # What there is instead counts only where no report has what is asked for.
    counted = [(answer, n) for answer, n in pairs if answer.status != NO] or pairs
    # Where several ranks of one report differ, only their sum is known.
    is_of_each = sum(n_ranks or ()) > 1 and not any(
        count % n for answer, n in counted for _, count in answer.counts
    )
    counts = grouped(
        (noun, m // n if is_of_each else m) for answer, n in counted for noun, m in answer.counts
    )
    of_each = {
        noun: " to ".join(dict.fromkeys((str(min(own)), str(max(own)))))
        for noun, own in counts.items()
    }
    told = of_each if is_of_each else {noun: str(sum(own)) for noun, own in counts.items()}
    having = [answer for answer in answers if answer.status == YES]
    # Where some reports have it, what they have is said; the others are named elsewhere.
    texts = dict.fromkeys(answer.text for answer in having or answers if answer.text)
    words = ", ".join(f"{n} {noun}" for noun, n in told.items()) or " / ".join(texts)
    words += (
        "" if not told or sum(n_ranks or ()) < 2 else " per rank" if is_of_each else " in all ranks"  # noqa: PLR2004 - ranks
    )
    is_of_all = (
        not told and len({answer.text for answer in answers}) == 1
    )  # says itself which reports lack what
    if is_of_all or len(having) in {0, len(answers)}:
        return words
    why = dict.fromkeys(
        one.text for one in answers if one.status != YES and one.text and not one.counts
    )
    others = f" (the others: {' / '.join(why)})" if why and not counts else ""
    return f"{len(having)} of {len(answers)} reports: {words}{others}"
