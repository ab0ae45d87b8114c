"""What a set of reports can answer: one row per question, and the flag that would add each."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from nsyspipe.analysis.links import links, slowest
from nsyspipe.errors import OptionError, RankConflictError
from nsyspipe.model.options import Reading
from nsyspipe.model.problems import CATALOGUE, Problem, problem
from nsyspipe.nsys.files import check_file
from nsyspipe.nsys.find_reports import display_names, source_of
from nsyspipe.reader import report as versions
from nsyspipe.reader.metadata import read_counts
from nsyspipe.reader.sidecar import read_beside, read_sidecars
from nsyspipe.run.doctor_rules import (
    DETAIL_RULES,
    EVENT_RULES,
    NO,
    PARTLY,
    YES,
    Beside,
    Examined,
    Finding,
    Rule,
    lack,
    phase_counts,
)
from nsyspipe.run.gather import gather, place, place_hosts
from nsyspipe.run.ranks import check_one_run, launcher_size, named_ranks, rank_sources, ranks_by_map, world_size
from nsyspipe.run.workers import SerialExecutor, telling_shortage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from concurrent.futures import Executor
    from pathlib import Path

    from nsyspipe.run.gather import Gathered
    from nsyspipe.run.ranks import Rank
    from nsyspipe.run.sidecars import Captured


_ALONE = "the other ranks' reports are missing"
_ONE_RUN = "pass the reports of one run, each once"
_LOG = "run with NCCL_DEBUG=INFO and pass --nccl-log FILE"
_TOPOLOGY = "nvidia-smi topo -m > topo.txt and --topology topo.txt"
# Direct access is over NVLink or PCIe, which the topology tells.
_UNCLEAR_KINDS = {"p2p", "unknown"}
# What each source of ranks is called.
_SOURCES = {
    "sidecar": "the capture's sidecar",
    "nccl_payload": "NCCL's payload",
    "nvtx_mpi": "MPI's thread names",
    "file_name": "file names",
}
_SHOWN_RANKS = 8


@dataclass(frozen=True)
class Capability:
    """One question, and whether the reports answer it."""

    name: str
    answers: str  # what one gets
    status: str  # `YES`; `PARTLY`: in part, or not from every report; `NO`
    found: str
    fix: str | None  # the flag that would add what is not there; None when nothing is to add
    is_used: bool  # whether nsyspipe answers it; otherwise it is there for a look in Nsight Systems
    # n_reports, n_with: all reports, and those that answer in full
    n_reports: int
    n_with: int
    lacking: tuple[str, ...]  # the others, by name


@dataclass(frozen=True)
class Examination:
    """What some reports can answer."""

    reports: tuple[str, ...]  # what to call each report
    nsys_versions: tuple[str, ...]
    schema_versions: tuple[str, ...]
    capabilities: tuple[Capability, ...]
    problems: tuple[Problem, ...]  # what no capability says


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
    reading, running = reading or Reading(), executor or SerialExecutor()
    with telling_shortage():
        counts = list(running.map(read_counts, paths))
    together, gathered = _gathered(paths, reading, running)
    captured = together.captured
    beside, problems = _with_sidecars(beside or Beside(), captured)
    is_host_only = not any(digest.processes for digest in together.digests)
    reports = [
        Examined(one.digests[0], own, reading, one.family, is_host_only)
        for one, own in zip(gathered, counts, strict=True)
    ]
    digests = [one.digest for one in reports]
    size = world_size(digests, beside.log, captured.world_size, _launched_size(reports, captured))
    n_ranks = sum(len(digest.processes) for digest in digests)
    reports = [replace(one, is_several=max(n_ranks, size or 1) > 1) for one in reports]
    left_out = [is_host_only and captured.is_without_gpu(at) for at in range(len(reports))]
    return Examination(
        reports=tuple(names),
        nsys_versions=_distinct(one.facts.nsys_version for one in reports),
        schema_versions=_distinct(one.facts.schema_version for one in reports),
        capabilities=tuple(_combined(rule, reports, beside, left_out, names) for rule in RULES),
        problems=(*_problems(reports, names, left_out), *problems),
    )


def _gathered(paths: Sequence[Path], reading: Reading, running: Executor) -> tuple[Gathered, list[Gathered]]:
    """Return what the analysis makes of all reports together, and of each.

    Reports that cannot be of one run are analysed each by itself.
    """
    sidecars = read_sidecars([source_of(path) for path in paths])
    try:
        together = gather(paths, reading, sidecars, executor=running)
    except OptionError:  # --step matches nothing
        reading = replace(reading, step=None, is_capture=True)
        together = gather(paths, reading, sidecars, executor=running)
    digests = together.digests
    try:
        check_one_run(digests, place(digests) or place_hosts(digests), together.captured)
    except RankConflictError:
        return together, [gather([path], reading, executor=running) for path in paths]
    return together, [replace(together, digests=(one,)) for one in digests]


def _with_sidecars(given: Beside, captured: Captured) -> tuple[Beside, list[Problem]]:
    """Add what the sidecars of the reports say, and what is wrong with them."""
    log, topology, problems = read_beside(
        captured.sidecars, wants_log=given.log is None, wants_topology=given.topology is None
    )
    log, topology = given.log or log, given.topology or topology
    found = replace(given, log=log, topology=topology, captured=captured)
    return found, [*captured.problems, *problems]


def _combined(
    rule: Rule, reports: Sequence[Examined], beside: Beside, left_out: Sequence[bool], names: Sequence[str]
) -> Capability:
    """Make one row of what each report has; `left_out`: whether no GPU of a report was to be traced."""
    findings = rule.judge(reports, beside)
    if reports[0].is_host_only:
        findings = [
            of_host(rule.name, found, report, was_left_out=was)
            for found, report, was in zip(findings, reports, left_out, strict=True)
        ]
    pairs = zip(findings, names, strict=True)
    lacking = [(one, report) for one, report in pairs if one.status != YES]
    fixes = Counter(one.fix for one, _ in lacking if one.fix)
    status = YES if not lacking else PARTLY
    return Capability(
        name=rule.name,
        answers=rule.answers,
        status=NO if all(one.status == NO for one in findings) else status,
        found=_found(findings),
        fix=fixes.most_common(1)[0][0] if fixes else None,
        is_used=rule.is_used,
        n_reports=len(findings),
        n_with=len(findings) - len(lacking),
        lacking=tuple(report for _, report in lacking),
    )


# What changes in the answers of reports without any device activity: nothing of a device can be asked of them.
_OF_DEVICE = {
    "compute_and_comm", "launches", "copies", "gpu_model", "nccl_ranges", "message_bytes", "idle_causes",
    "kernel_shapes", "cuda_graphs", "gpu_metrics", "link",
}  # fmt: skip


def of_host(name: str, found: Finding, report: Examined, *, was_left_out: bool) -> Finding:
    """Return what a report without device activity has for one question, of which its rule knows nothing.

    Where no GPU was to be traced, no fix of a capture helps.
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
    if not is_mixed:
        return found
    why = dict.fromkeys(one.text for one in findings if one.status != YES and one.text and not one.counts)
    others = f"; the others: {'; '.join(why)}" if why and not counts else ""
    return f"{len(having)} of {len(findings)} reports: {found}{others}"


def _problems(reports: Sequence[Examined], names: Sequence[str], left_out: Sequence[bool]) -> Iterator[Problem]:
    """State what no capability says."""
    if any(left_out):
        yield problem("captured-without-gpu")
    for report, name, was_left_out in zip(reports, names, left_out, strict=True):
        version = report.facts.schema_version
        if versions.is_newer_than_tested(version):
            yield problem("untested-version", version=version).at(report=name)
        if not (report.digest.processes or was_left_out):
            yield problem("no-gpu-activity", what=name).at(report=name)


def _distinct(values: Iterable[str | None]) -> tuple[str, ...]:
    return tuple(sorted({value for value in values if value}))


# What only all reports together can answer: which ranks, of how many, on one clock, connected by what.


def _placed(reports: Sequence[Examined]) -> Sequence[Rank]:
    """Return the processes that are ranks, as the analysis has them."""
    digests = [one.digest for one in reports]
    return place(digests) or place_hosts(digests)


def _ranks(reports: Sequence[Examined], beside: Beside) -> list[Finding]:
    """Tell the source that numbers all ranks: the first that names each, and no two alike, as in analysis."""
    placed = _placed(reports)
    if beside.rank_map is None:
        best = _numbered(placed, beside.captured)
    else:
        numbers = ranks_by_map(placed, beside.rank_map)
        best = Finding(YES, text=f"{_listed(numbers)} from --rank-map")
    without = lack("no-gpu-activity", "no GPU activity")
    return [best if report.pids else without for report in reports]


def _numbered(placed: Sequence[Rank], captured: Captured) -> Finding:
    best = lack("rank-by-order", "nothing names them", status=PARTLY)
    for source, found in rank_sources(placed, captured):
        numbers = [number for number in found if number is not None]
        if len(numbers) < len(placed):
            continue
        name = _SOURCES.get(source, source.removeprefix("env:"))
        repeated = sorted(number for number, n in Counter(numbers).items() if n > 1)
        if not repeated:
            return Finding(YES, text=f"{_listed(numbers)} from {name}")
        if best.text == "nothing names them":
            text = f"rank {repeated[0]} is there {numbers.count(repeated[0])} times in {name}"
            best = Finding(PARTLY, text=text, fix=_ONE_RUN)
    return Finding(YES, text="only one") if len(placed) == 1 else best


def _launched_size(reports: Sequence[Examined], captured: Captured) -> int | None:
    """Return how many ranks the launcher started that numbered them; None if another source did."""
    placed = _placed(reports)
    named = named_ranks(placed, captured)
    return launcher_size(placed, *named) if named else None


def _world_size(reports: Sequence[Examined], beside: Beside) -> list[Finding]:
    said, launched = beside.captured.world_size, _launched_size(reports, beside.captured)
    sizes = [world_size([one.digest], None, said, launched) for one in reports]
    known = sorted({size for size in sizes if size is not None})
    n_ranks = _n_ranks(reports)
    here = Finding(YES, text=_listed(known))
    if len(known) > 1:
        here = Finding(PARTLY, text=f"{_listed(known)} in different reports", fix=_ONE_RUN)
    elif known and n_ranks < known[0]:
        text = f"{known[0]}, of which {n_ranks} in these reports"
        here = lack("ranks-missing", text, status=PARTLY)
    fix = "capture under torchrun with nsys 2023.3 or newer, which records WORLD_SIZE"
    absent = Finding(NO, text="not recorded", fix=fix)
    return [absent if size is None else here for size in sizes]


def _n_ranks(reports: Sequence[Examined]) -> int:
    return sum(len(report.pids) for report in reports)


def _one_clock(reports: Sequence[Examined], _: Beside) -> list[Finding]:
    hosts = {report.facts.host for report in reports if report.facts.host}
    text = "session starts" if len(reports) > 1 else "session start"
    if len(hosts) > 1:
        text += f", on {len(hosts)} hosts whose clocks may differ"
    there = Finding(YES, text=text)
    if _is_alone_of_several(reports):
        there = lack("ranks-missing", _ALONE)
    elif any(one.hides_comm for one in reports):
        there = lack("comm-in-graphs", "communication inside CUDA graphs is not seen")
    absent = lack("no-session-start", "no session start")
    return [absent if one.facts.session_start_utc_ns is None else there for one in reports]


def _link(reports: Sequence[Examined], beside: Beside) -> list[Finding]:
    """Tell what is known of the slowest link; between GPUs that reach each other that takes both files."""
    sizes = [world_size([one.digest]) for one in reports]
    known = [size for size in sizes if size is not None]
    # A report alone that communicates may be one of many, unless it says how many there are.
    is_one_rank = max([_n_ranks(reports), *known]) == 1 and (
        bool(known) or not any(report.n_comm for report in reports)
    )
    found = Finding(YES, text="one rank") if is_one_rank else _known_link(reports, beside, set(sizes))
    if _is_alone_of_several(reports) and found.status != NO:
        found = lack("ranks-missing", _ALONE)
    return [found] * len(reports)


def _is_alone_of_several(reports: Sequence[Examined]) -> bool:
    """Tell whether one rank alone is there of a job that is known to have had more."""
    return _n_ranks(reports) == 1 and any(report.is_several for report in reports)


def _known_link(reports: Sequence[Examined], beside: Beside, sizes: set[int | None]) -> Finding:
    log, topology = beside.log, beside.topology
    if log is None and topology is None:
        text = "neither NCCL's log nor the topology"
        return Finding(NO, text=text, fix=f"{_LOG}; {_TOPOLOGY}")
    pids = [pid for report in reports for pid in report.pids]
    if log is not None and log.of_run(pids, {len(pids), *sizes}) is None:
        return lack("log-of-another-run", "the log is of another run")
    rows = links(log, topology, pids=pids)
    link = slowest(rows)
    if link is not None:
        unclear = _UNCLEAR_KINDS.intersection(rows["kind"].to_pylist())
        if not unclear:
            return Finding(YES, text=link.text)
        text = f"{link.text}; {link.edges}" if link.n_unknown else link.text
        return Finding(PARTLY, text=text, fix=_TOPOLOGY if "p2p" in unclear else _LOG)
    if topology is None:
        text = "the log does not say what NCCL uses"
        return Finding(PARTLY, text=text, fix=f"{_LOG}; {_TOPOLOGY}")
    gpus = {f"GPU{index}" for index in topology.gpus}
    paths = sorted({path for ends, path in topology.paths.items() if gpus.issuperset(ends)})
    text = f"the GPUs are connected by {', '.join(paths)}" if paths else "a topology of one GPU"
    return Finding(PARTLY, text=f"{text}; no NCCL log says what NCCL uses", fix=_LOG)


def _listed(numbers: Sequence[int]) -> str:
    """Write ``0-3`` for numbers without a gap, else the first few of them."""
    ordered = sorted(numbers)
    if len(ordered) > 1 and ordered == list(range(ordered[0], ordered[-1] + 1)):
        return f"{ordered[0]}-{ordered[-1]}"
    more = ", ..." if len(ordered) > _SHOWN_RANKS else ""
    return ", ".join(map(str, ordered[:_SHOWN_RANKS])) + more


RULES = (
    *EVENT_RULES,
    Rule("ranks", "which report is which rank", _ranks),
    Rule("world_size", "whether ranks are missing", _world_size),
    Rule("one_clock", "who waits for whom across ranks", _one_clock),
    Rule("link", "what connects the ranks, and its bandwidth", _link),
    *DETAIL_RULES,
)
