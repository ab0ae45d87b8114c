"""Which process is which rank: the first source that numbers them all; and whether reports can be of one run."""

import itertools
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
from msgspec import Struct

from nsyspipe.errors import OptionError, RankConflictError, as_given
from nsyspipe.model import schema
from nsyspipe.model.names import decoded, few, grouped, ranges
from nsyspipe.model.options import RANK_MAP, asked_ranks, parse_rank_map
from nsyspipe.model.problems import Problem, problem
from nsyspipe.model.side_files import NcclLog
from nsyspipe.nsys import find_reports as files
from nsyspipe.reader.metadata import JOB_VARIABLES, LAUNCHER_SIZES, ReportFacts, read_facts
from nsyspipe.reader.report import open_report
from nsyspipe.run.captures import capture_numbers, joined_ranks, share_one_process_number
from nsyspipe.run.cross_rank import CrossRank
from nsyspipe.run.digests import Rank, ReportDigest, one_of_each_process, place
from nsyspipe.run.gather import Gathered
from nsyspipe.run.process import HostDigest, ProcessDigest
from nsyspipe.run.sidecars import RunSidecars

Ranks: TypeAlias = Sequence[Rank[ProcessDigest] | Rank[HostDigest]]
_ONE_RUN_NS = 60 * 10**9
_ONE_HOST_NS = 10 * 10**9
_TOGETHER_NS = 5 * 10**9
_LONG_NS = 600 * 10**9
_SHOWN = 4
_TWICE = "are the same report"
_DIFFERENT = "{}, so they are reports of different runs"
_ACTIVE = "active"
# What tells runs apart: report, key, the value that all reports have alike, and words if they do
# not.
_Identity: TypeAlias = tuple[ReportDigest, object, object, str]
_ENVIRONMENT = "env:"
_SHOWN_NAMES = 8
_LONG = 60
_MOST_RANKS = (
    100_000  # more than any job has: a larger number in a name is a process ID, a job's or a date
)
# A shell or torchrun gets its process ID just before the program that it starts; lower ones, as in
# containers, say nothing.
_LEAST_STARTER_PID = 300
_MOST_APART_FROM_STARTER = 16


def check_one_run(digests: Sequence[ReportDigest], ranks: Ranks, sidecars: RunSidecars) -> None:
    """Raise if two reports are one and the same, claim one rank, or come from different runs, naming both files."""
    if not is_surely_one_run(digests, sidecars):
        _check_processes_once(digests, ranks)
    seen: dict[object, tuple[object, ReportDigest]] = {}
    for digest, key, value, what in _identities(digests, ranks, sidecars):
        theirs, other = seen.setdefault(key, (value, digest))
        if theirs != value:
            raise _conflict(digests, other, digest, what.format(f"{theirs} and {value}"))
    if any(rank.report.facts.session_start_utc_ns is None for rank in ranks):
        return
    is_told = is_surely_one_run(digests, sidecars)
    in_order = sorted(ranks, key=lambda rank: rank.span[0])
    last_to_end = itertools.accumulate(
        in_order, lambda *pair: max(*pair, key=lambda rank: rank.span[1])
    )
    for latest, rank in zip(last_to_end, in_order[1:], strict=False):
        gap_ns = rank.span[0] - latest.span[1]
        if gap_ns > (_ONE_RUN_NS if is_told else _most_apart_ns(latest.report, rank.report)):
            apart = f"{gap_ns / 1e9:.3g} s" if gap_ns < _LONG_NS else f"{gap_ns / 60e9:.0f} min"
            what = f"{_ACTIVE} {apart} apart"
            raise _conflict(digests, latest.report, rank.report, _DIFFERENT.format(what))


def _check_processes_once(digests: Sequence[ReportDigest], ranks: Ranks) -> None:
    """Raise if reports seem to be captures of one process, and nothing shows that they are: analyzing each is right anyway."""
    processes = [rank for rank in ranks if isinstance(rank.process, ProcessDigest)]
    of_number = grouped(
        ((rank.report.facts.host, rank.process.pid, rank.process.device_id), rank)
        for rank in processes
    )
    groups = [sorted(group, key=lambda rank: rank.span) for group in of_number.values()]
    pairs = itertools.chain.from_iterable(map(itertools.pairwise, groups))
    pair = next((pair for pair in pairs if share_one_process_number(*pair)), None)
    if pair is None:
        return
    before, _ = pair
    names = " and ".join(decoded(str(files.source_of(Path(rank.report.path)))) for rank in pair)
    what = (
        f"both contain process {before.process.pid} of one host, one after the other. They may "
        "be captures of one process, "
        "but the reports do not confirm this"
    )
    captures = capture_numbers(groups)
    first = [
        as_given(digest.path)
        for at, digest in enumerate(digests)
        if captures.get(at) == captures[before.argument]
    ]
    words = " ".join(shlex.quote(decoded(str(files.source_of(Path(path))))) for path in first)
    example = f": nsyspipe analyze {words}" if len(first) <= _SHOWN_NAMES else ""
    fix = (
        f"analyze the reports of each capture separately{example}, or use --rank-map if they are "
        "ranks of one run"
    )
    raise RankConflictError(names, what, fix=fix)


def _most_apart_ns(first: ReportDigest, second: ReportDigest) -> int:
    """Return how long after one report of a run another may begin: less where both communicate on one host, named apart."""
    names = {
        files.RANK_OF_NAME.sub("", files.source_of(Path(one.path)).stem) for one in (first, second)
    }
    is_one_host = first.facts.host is not None and first.facts.host == second.facts.host
    may_meet = first.has_communication and second.has_communication
    return _ONE_HOST_NS if is_one_host and may_meet and len(names) > 1 else _ONE_RUN_NS


def _identities(
    digests: Sequence[ReportDigest], ranks: Ranks, sidecars: RunSidecars
) -> Iterator[_Identity]:
    for at, digest in enumerate(digests):
        status = Path(digest.path).stat()
        yield digest, ("file", status.st_dev, status.st_ino), at, _TWICE
    for rank in ranks:
        start = rank.report.facts.session_start_utc_ns
        if start is not None:
            yield rank.report, ("capture", start, rank.process.process_id), rank.argument, _TWICE
    yield from _variables(digests, ranks)
    for argument, (sidecar, _) in sidecars.by_argument.items():
        alike: dict[object, tuple[object, str]] = {
            "name": (sidecar.facts.name, "their sidecars name two captures"),
            "size": (sidecar.world_size, "their sidecars say two world sizes"),
        }
        for entry in sidecar.ranks:  # a capture of the same name, made again elsewhere
            words = f"their sidecars are of two captures, each with a rank {entry.rank}"
            alike[entry.rank] = (sidecar.captured_at_utc_ns, entry.pid), words
        for key, (told, words) in alike.items():
            if told is not None:
                yield digests[argument], ("sidecar", key), told, _DIFFERENT.format(words)


def _variables(digests: Sequence[ReportDigest], ranks: Ranks) -> Iterator[_Identity]:
    for digest in digests:
        size = digest.facts.number("WORLD_SIZE")
        if size is not None:
            yield digest, "WORLD_SIZE", size, _DIFFERENT.format("captured WORLD_SIZE is {}")
    for rank in ranks:
        if rank.is_alone and (number := rank.report.facts.number("RANK")) is not None:
            yield (
                rank.report,
                ("RANK", number),
                rank.argument,
                _DIFFERENT.format(f"captured RANK is {number} in both"),
            )
    for variable, digest in itertools.product(JOB_VARIABLES, digests):
        value = digest.facts.variables.get(variable, "").strip()
        if value:
            yield digest, variable, value, _DIFFERENT.format(f"captured {variable} differs")


def _conflict(
    digests: Sequence[ReportDigest], one: ReportDigest, other: ReportDigest, what: str
) -> RankConflictError:
    names = " and ".join(
        decoded(str(files.source_of(Path(digest.path)))) for digest in (one, other)
    )
    fix = "pass each report once" if what == _TWICE else "pass the reports of one run"
    groups = files.words_of_runs((as_given(digest.path) for digest in digests), is_whole=True)
    has_ranks = any(
        files.RANK_OF_NAME.search(path.stem) for group in groups.values() for path in group
    )
    if one.path == other.path:
        return RankConflictError(names, what, fix="pass each report once")
    if what != _TWICE and len(groups) > 1 and has_ranks:
        more = f" or {len(groups) - _SHOWN} more" if len(groups) > _SHOWN else ""
        return RankConflictError(names, what, fix=f"{fix}: {' or '.join([*groups][:_SHOWN])}{more}")
    but = ". If they are of one run," if what.startswith(_ACTIVE) else ", or"
    return RankConflictError(names, what, fix=f"{fix}{but} number them yourself with --rank-map")


def check_several_runs(arguments: Iterable[str], start: str = "") -> None:
    """Raise if reports, each of which is meant as a run, are ranks of one: by their names, and what they captured.

    `start` is the start of a command that one run completes.

    They are of one job if their world size is the same, above 1, and no rank is there twice; where
    none was captured, if their captures began together. What was not exported yet is judged by its
    name alone.
    """
    groups = files.words_of_runs(files.without_exported([*map(Path, arguments)]))
    for word, named in groups.items():
        paths = [path for path in named if path.is_file()]  # not globs
        is_raw = any(path.suffix in files.RAW_SUFFIXES for path in paths)
        if len(paths) > 1 and (is_raw or _are_of_one_job(paths)):
            problem = (
                f"{len(paths)} reports of one {'name' if is_raw else 'job'}, but each is given as "
                "its own run"
            )
            other = " and another for the other run" if len(groups) == 1 and not start else ""
            fix = f"{start}{' '.join(groups)}{other}, or LABEL=REPORT if each is a run"
            raise RankConflictError(word, problem, fix=fix)


def _are_of_one_job(paths: Sequence[Path]) -> bool:
    facts = [_facts_of(path) for path in paths]
    numbers = [[fact.number(name) for fact in facts] for name in ("WORLD_SIZE", "RANK")]
    jobs = ({fact.variables.get(name, "") for fact in facts} for name in JOB_VARIABLES)
    if any(len(values) > 1 for values in jobs) or len({*numbers[0]}) > 1:
        return False
    if numbers[0][0] is not None:
        return numbers[0][0] > 1 and len({*numbers[1]}) == len(facts)
    starts = [fact.session_start_utc_ns for fact in facts if fact.session_start_utc_ns is not None]
    return len(starts) == len(facts) and max(starts) - min(starts) <= _TOGETHER_NS


def is_surely_one_run(digests: Sequence[ReportDigest], sidecars: RunSidecars) -> bool:
    """Tell whether the reports with ranks say themselves that they are of one run: one capture, or one job's id."""
    used = [at for at, digest in enumerate(digests) if digest.processes or digest.hosts]
    if len(used) < 2:  # noqa: PLR2004 - two could differ
        return True
    told = [sidecars.by_argument.get(at) for at in used]
    captures = {(one[0].facts.name, one[0].captured_at_utc_ns) if one else None for one in told}
    if len(captures) == 1 and None not in captures:
        return True
    variables = [digests[at].facts.variables for at in used]
    ids = [
        {variable.get(name, "").strip() for variable in variables}
        for name in ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID")
    ]
    return any(
        len(values) == 1 and not values & {"", "none"} for values in ids
    )  # torchrun's default id says nothing


class Numbering(Struct, frozen=True):
    """The number of each process of a run, and of each of its ranks, in the order that they were given in."""

    numbers: tuple[int, ...]  # of the ranks
    process_numbers: tuple[int, ...]  # of the process of each rank
    source: str
    problems: tuple[Problem, ...] = ()

    @property
    def n_processes(self) -> int:
        """How many processes there are."""
        return len(set(self.process_numbers))

    @property
    def has_shared_processes(self) -> bool:
        """Whether some process has several ranks, each on a device of its own."""
        return self.n_processes < len(self.numbers)


def number_by_name(ranks: Ranks, sidecars: RunSidecars) -> Numbering:
    """Give each rank the number that one of `rank_sources` does; where none numbers all processes, there is no number."""
    processes = one_of_each_process(ranks)
    named = named_ranks(processes, sidecars)
    if named is None:
        return Numbering((), (), "order")
    numbers, source = named
    return _with_ranks(ranks, processes, numbers, source, [])


def number_ranks(
    digests: Sequence[ReportDigest],
    ranks: Ranks,
    rank_map: Mapping[str, int] | None,
    sidecars: RunSidecars,
) -> Numbering:
    """Give each process its number, by the rank map, else one of `rank_sources`, else order; then each rank.

    Ranks have their process's number, unless some process has several: then they are counted,
    process by process, and device by device.
    """
    if rank_map is None:
        check_one_run(digests, ranks, sidecars)
    processes = one_of_each_process(ranks)
    return _with_ranks(ranks, processes, *_number_processes(processes, rank_map, sidecars))


def _with_ranks(
    ranks: Ranks, processes: Ranks, numbers: Sequence[int], source: str, problems: Sequence[Problem]
) -> Numbering:
    """Return the numbers of ranks whose processes have these numbers."""
    number_of = {process.place: number for process, number in zip(processes, numbers, strict=True)}
    of_ranks = [number_of[rank.place] for rank in ranks]
    if len(processes) == len(ranks):
        return Numbering(tuple(of_ranks), tuple(of_ranks), source, tuple(problems))
    in_order = sorted(
        range(len(ranks)), key=lambda at: (of_ranks[at], _device_key(ranks[at].process.device_id))
    )
    place_of = {at: place for place, at in enumerate(in_order)}
    counted = tuple(place_of[at] for at in range(len(ranks)))
    return Numbering(counted, tuple(of_ranks), source, tuple(problems))


def _number_processes(
    processes: Ranks, rank_map: Mapping[str, int] | None, sidecars: RunSidecars
) -> tuple[list[int], str, list[Problem]]:
    """Return the number of each process, of which one rank is given, what it comes from, and what is doubtful about it."""
    if rank_map is not None:
        numbers = ranks_by_map(processes, rank_map, sidecars)
        return numbers, "rank_map", [*_contradictions(processes, numbers, sidecars)]
    named = named_ranks(processes, sidecars)
    if named is not None:
        return *named, []
    places = [(one.argument, _leading_device(one), one.process.process_id) for one in processes]
    keys = [(argument, _device_key(device), process) for argument, device, process in places]
    by_order = {key: number for number, key in enumerate(sorted(keys))}
    unnamed = problem("rank-by-order", severity="info" if len(keys) == 1 else None)
    return [by_order[key] for key in keys], "order", [unnamed] if keys else []


def _leading_device(rank: Rank[ProcessDigest] | Rank[HostDigest]) -> int | None:
    """Return the device of a rank's process with most operations."""
    return next(iter(rank.process.device_ids), None)


def _device_key(device: int | None) -> int:
    return -1 if device is None else device


def _contradictions(
    ranks: Ranks, numbers: Sequence[int], sidecars: RunSidecars
) -> Iterator[Problem]:
    """Say which process has another number than its capture recorded, in RANK or else in the sidecar, and how many more."""
    recorded = [of_each for _, of_each in itertools.islice(rank_sources(ranks, sidecars), 2)]
    told = [
        next((number for number in own if number is not None), None)
        for own in zip(*recorded, strict=True)
    ]
    wrong = [one for one in zip(ranks, numbers, told, strict=True) if one[2] not in {None, one[1]}]
    if wrong:
        rank, number, captured = wrong[0]
        name = decoded(files.source_of(Path(rank.report.path)).name)
        more = f" (and {len(wrong) - 1} more)" * (len(wrong) > 1)
        yield problem("rank-map-differs", report=name, number=number, told=captured, more=more)


def ranks_table(
    across: CrossRank,
    source: str,
    names: Sequence[str],
    sidecars: RunSidecars,
    *,
    is_comm_in_graphs: bool = False,
) -> pa.Table:
    """Return `schema.RANKS`, numbers from `source`; counts are null where whole CUDA graphs hold, or may hold, such work."""
    rows: list[dict[str, object]] = []
    for rank in across.placed:
        process = rank.process
        facts = rank.report.facts
        # Of several processes, none has the captured variable.
        local_rank = facts.number("LOCAL_RANK") if rank.is_alone else None
        entry = sidecars.rank_of(rank.argument, process.pid, is_alone=rank.is_alone)
        offset = across.offsets and across.offsets[rank.argument]
        row: dict[str, object] = {
            "rank": rank.number,
            "process_rank": rank.process_number,
            "local_rank": entry.local_rank if local_rank is None and entry else local_rank,
            "report": ",".join(names[part.argument] for part in rank.parts),
            "pid": process.pid,
            "device_id": process.device_id,
            "device_ids": ",".join(map(str, sorted(process.device_ids))),
            "gpu_name": facts.gpu_name(process.pid, process.device_id),
            "host": facts.host,
            "rank_source": source,
            "compute_stream_id": process.compute_stream_id,
            "n_kernels": process.n_kernels,
            "n_comm": None if rank.report.n_graphs and is_comm_in_graphs else process.n_comm,
            "n_dtod": None if rank.report.n_graphs else process.n_dtod,
            "clock_shift_ns": rank.shift_ns,
            "clock_offset_ns": offset and offset.offset_ns,
            "clock_error_ns": offset and offset.error_ns,
        }
        rows.append(row)
    return schema.RANKS.from_rows(rows)


def rank_sources(ranks: Ranks, sidecars: RunSidecars) -> Iterator[tuple[str, list[int | None]]]:
    """Yield each source of rank numbers but the rank map and order, with what it says of each process; None for nothing."""

    # The environment is that of the program that was launched: it names a process only if that is
    # alone in its report.
    def captured(variable: str) -> tuple[str, list[int | None]]:
        numbers = [rank.report.facts.number(variable) if rank.is_alone else None for rank in ranks]
        return f"{_ENVIRONMENT}{variable}", numbers

    yield captured("RANK")
    entries = [
        sidecars.rank_of(rank.argument, rank.process.pid, is_alone=rank.is_alone) for rank in ranks
    ]
    yield "sidecar", [entry.rank if entry else None for entry in entries]
    yield from map(captured, LAUNCHER_SIZES)
    comm_ranks = [rank.report.comm_ranks.get(rank.process.process_id) for rank in ranks]
    yield "nccl_payload", [comm[0] if comm else None for comm in comm_ranks]
    yield "nvtx_mpi", [rank.report.mpi_ranks.get(rank.process.process_id) for rank in ranks]
    yield "file_name", _numbers_of_names(ranks)


def _numbers_of_names(ranks: Ranks) -> list[int | None]:
    """Return the number that ends each report's name; of none where these are process IDs, or no rank can have one of them."""
    numbers = [_number_of_names(rank) if rank.is_alone else None for rank in ranks]
    named = [
        (rank, number) for rank, number in zip(ranks, numbers, strict=True) if number is not None
    ]
    are_process_ids = all(_may_be_process_id(number, rank.process.pid) for rank, number in named)
    if are_process_ids or not all(_may_be_rank(number, rank.report) for rank, number in named):
        return [None] * len(numbers)
    return numbers


def _number_of_names(rank: Rank[ProcessDigest] | Rank[HostDigest]) -> int | None:
    """Return the number that ends the name of a rank's report; of several reports, where captures are counted, the same."""
    numbers = {stem_rank(part.report.path) for part in rank.parts}
    return numbers.pop() if len(numbers) == 1 else None


def _may_be_process_id(number: int, pid: int) -> bool:
    """Tell whether a report may be named by its process (nsys's ``%p``), or by the program that started it just before."""
    is_starter = number >= _LEAST_STARTER_PID and 0 < pid - number <= _MOST_APART_FROM_STARTER
    return number == pid or is_starter


def _may_be_rank(number: int, report: ReportDigest) -> bool:
    """Tell whether a rank may have such a number: lower than the world's size, where that is known, and no date."""
    size = told_world_size([report])
    return number < (_MOST_RANKS if size is None else size)


def named_ranks(ranks: Ranks, sidecars: RunSidecars) -> tuple[list[int], str] | None:
    """Return the numbers of the first source that numbers every process, all different, and its name; None for none."""
    numbering = (
        (_all_numbers(of_each), source) for source, of_each in rank_sources(ranks, sidecars)
    )
    return next(((numbers, source) for numbers, source in numbering if numbers is not None), None)


def _all_numbers(of_each: Sequence[int | None]) -> list[int] | None:
    numbers = [number for number in of_each if number is not None]
    return numbers if len(of_each) == len(numbers) == len(set(numbers)) else None


def launcher_size(ranks: Ranks, sidecars: RunSidecars) -> int | None:
    """Return how many ranks the launcher started that numbered them; None if another source did, or they do not fit."""
    numbers, source = named_ranks(ranks, sidecars) or ([], "")
    variable = LAUNCHER_SIZES.get(source.removeprefix(_ENVIRONMENT))
    sizes = {rank.report.facts.number(variable) for rank in ranks} if variable else set()
    size = sizes.pop() if len(sizes) == 1 else None
    return size if size is not None and size > max(numbers, default=0) else None


def told_world_size(
    digests: Sequence[ReportDigest], sidecars: RunSidecars | None = None
) -> int | None:
    """Return the captured WORLD_SIZE, else what the sidecars say: the ranks of the job, not of a communicator."""
    captured = (digest.facts.number("WORLD_SIZE") for digest in digests)
    return next(
        (size for size in captured if size is not None), sidecars.world_size if sidecars else None
    )


class JobSize(Struct, frozen=True):
    """How large the job was that a run's reports are of; None is "not known"."""

    world_size: int | None  # what the launcher counts: processes, where some have several devices
    # The ranks that the job had; at least so many where processes are missing, which may have
    # several
    n_ranks: int | None

    def has_all(self, n_ranks: int) -> bool:
        """Tell whether nothing says that there are more than so many ranks."""
        return self.n_ranks is None or self.n_ranks <= n_ranks


def job_size(
    gathered: Gathered,
    ranks: Ranks,
    numbering: Numbering,
    *,
    log: NcclLog | None,
    ranks_of_all_reports: Iterable[int],
) -> JobSize:
    """Return how large the job was.

    That is how many ranks it had, else the launcher started, else NCCL's largest communicator has,
    else numbers prove: those of reports that are `there`, but not read, count; else gaps in numbers
    that are no order's, nor of names of files that do not count from 0: ``%p`` and dates are
    numbers too. Where processes have several devices, NCCL counts more than launchers.
    """
    processes = one_of_each_process(ranks)
    launched = (
        None if numbering.source == "rank_map" else launcher_size(processes, gathered.sidecars)
    )
    if len(processes) == len(ranks):
        size = world_size(gathered.digests, gathered.sidecars, log, launched)
        size = _least_size(numbering, ranks_of_all_reports) if size is None else size
        n_without = n_unrecorded_ranks(gathered.digests)
        if size is None and n_without and ranks:
            return JobSize(None, len(ranks) + n_without)
        return JobSize(size, size)
    told = told_world_size(gathered.digests, gathered.sidecars)
    told = launched if told is None else told
    told = _least_size(numbering, ranks_of_all_reports) if told is None else told
    n_missing = 0 if told is None else max(told - len(processes), 0)
    of_nccl = largest_communicator(gathered.digests, log)
    if told is None and of_nccl is None:
        return JobSize(None, None)
    return JobSize(told, max(len(ranks) + n_missing, of_nccl or 0))


def n_unrecorded_ranks(digests: Sequence[ReportDigest]) -> int:
    """Return how many processes did what ranks do and are none, since none of their kernels was recorded."""
    here = {
        (at, process.process_id)
        for at, digest in enumerate(digests)
        for process in digest.processes
    }
    of_reports = ((at, one) for at, digest in enumerate(digests) for one in digest.unrecorded)
    return sum(one.is_rank and (at, one.process_id) not in here for at, one in of_reports)


def _least_size(numbering: Numbering, ranks_of_all_reports: Iterable[int]) -> int | None:
    """Return how many processes their numbers prove; None where these prove nothing."""
    numbers = set(numbering.process_numbers)
    source = numbering.source
    is_counted = source != "order" and (source != "file_name" or 0 in numbers)
    has_gaps = bool(numbers) and max(numbers) - min(numbers) >= len(numbers)
    return (
        max([*ranks_of_all_reports, *(numbers if is_counted and has_gaps else ())], default=-1) + 1
        or None
    )


def largest_communicator(digests: Sequence[ReportDigest], log: NcclLog | None) -> int | None:
    """Return the size of NCCL's largest communicator, by the payloads, else by the log."""
    told = [size for digest in digests for size in digest.comm_sizes.values()]
    return max(told or [comm.n_ranks for comm in (log.communicators if log else ())], default=None)


def world_size(
    digests: Sequence[ReportDigest],
    sidecars: RunSidecars | None = None,
    log: NcclLog | None = None,
    launched: int | None = None,
) -> int | None:
    """Return how many ranks the job had, else the launcher started, else NCCL's largest communicator has, if any says."""
    sizes = [n_ranks for digest in digests for _, n_ranks in digest.comm_ranks.values()]
    largest = max(
        sizes or [comm.n_ranks for comm in (log.communicators if log else ())], default=None
    )
    return next(
        (
            size
            for size in (told_world_size(digests, sidecars), launched, largest)
            if size is not None
        ),
        None,
    )


def run_sizes(gathered: Gathered) -> list[int]:
    """Return how many ranks a run may have as far as its reports tell, sorted: those there, and the world's."""
    digests = gathered.digests
    n_ranks = len(
        joined_ranks(place(digests), is_one_job=is_surely_one_run(digests, gathered.sidecars))
    )
    launched = [digest.facts.number(name) for digest in digests for name in LAUNCHER_SIZES.values()]
    possible = {size for size in launched if size is not None and size >= n_ranks}
    return sorted({n_ranks, world_size(digests, gathered.sidecars) or n_ranks, *possible})


def stem_rank(path: str) -> int | None:
    """Return the number at the end of a file's name, or None."""
    match = files.RANK_OF_NAME.search(Path(path).stem)
    return int(match[1]) if match else None


def ranks_by_map(ranks: Ranks, rank_map: Mapping[str, int], sidecars: RunSidecars) -> list[int]:
    """Return the rank that a map gives to each process; `OptionError` unless it names each, no other, each number of the job once."""
    numbers: list[int] = []
    # A process that was captured several times may be named by any of its reports.
    of_parts = [[_names_of(part) for part in rank.parts] for rank in ranks]
    names = [parts[0] for parts in of_parts]
    named = [
        next((key for keys in parts for key in keys if key in rank_map), None) for parts in of_parts
    ]
    told = {key for parts in of_parts for key in _first_names(parts, rank_map)}
    for parts in of_parts:
        of_process = sorted({rank_map[key] for key in _first_names(parts, rank_map)})
        if len(of_process) > 1:
            both = " and ".join(map(str, of_process[:2]))
            problem = f"assigns ranks {both} to one process that was captured several times"
            raise OptionError("--rank-map", problem, found=parts[0][0], fix="one rank per process")
    unused = rank_map.keys() - told
    if unused:  # or another name of one that is named already
        problem = f"names {min(unused)}, but no such report has GPU activity or steps"
        there = few([keys[0] for keys in names], _SHOWN_NAMES)
        raise OptionError(
            "--rank-map",
            problem,
            found=there,
            fix="use one of these reports, or leave out --rank-map",
        )
    absent = [keys[0] for keys, key in zip(names, named, strict=True) if key is None][:_SHOWN_NAMES]
    if absent:
        found = ", ".join([*rank_map][:_SHOWN_NAMES])
        given = [f"{key}={rank_map[key]}" for key in named if key]
        fix = f'--rank-map "{",".join([*given, *(f"{name}=N" for name in absent)])}"'
        raise OptionError(
            "--rank-map", f"gives no rank to {', '.join(absent)}", found=found, fix=fix
        )
    for key in filter(None, named):
        if rank_map[key] in numbers:
            raise OptionError(
                "--rank-map", f"gives rank {rank_map[key]} twice", fix="one number per rank"
            )
        numbers.append(rank_map[key])
    sizes = (told_world_size([rank.report], sidecars) for rank in ranks)
    most = max((size for size in sizes if size is not None), default=None)
    if most is not None and max(numbers) >= most:
        raise OptionError(
            "--rank-map", f"gives rank {max(numbers)} of {most}", fix=f"ranks 0 to {most - 1}"
        )
    return numbers


def _names_of(part: Rank[ProcessDigest] | Rank[HostDigest]) -> list[str]:
    pid = None if part.is_alone else part.process.pid
    return _map_keys(files.source_of(Path(part.report.path)), pid)


def _first_names(parts: Sequence[Sequence[str]], rank_map: Mapping[str, int]) -> list[str]:
    """Return the first name that a map has of each report of one rank."""
    named = (next((key for key in keys if key in rank_map), None) for keys in parts)
    return [key for key in named if key is not None]


def _map_keys(path: Path, pid: int | None) -> list[str]:
    """Return the names a rank map may use: stem, every tail of the path, its export's; of several processes with ``:PID``."""
    both = path, path.with_suffix(files.EXPORT_SUFFIX)
    tails, exported = (
        ["/".join(one.parts[-depth:]) for depth in range(1, len(one.parts) + 1)] for one in both
    )
    names = [*tails, path.stem, str(path), *exported]
    return names if pid is None else [f"{name}:{pid}" for name in names]


class ChosenRanks(Struct, frozen=True):
    """The reports that are read of a run of which some ranks were asked for."""

    asked: str
    paths: tuple[Path, ...]
    ranks: frozenset[int]  # of these reports
    there: frozenset[int]  # of all reports of the run, read or not
    rank_map: Mapping[str, int] | None  # of these reports

    def check(self, numbers: Sequence[int], source: str) -> None:
        """Refuse reports that turn out to be of other ranks than was taken from their names."""
        if not self.ranks.issuperset(numbers):
            problem = f"does not match the reports, because their names and ranks differ ({source})"
            raise OptionError(
                f"--ranks {self.asked}", problem, found=shown_ranks(numbers), fix=RANK_MAP
            )


def choose_ranks(
    asked: str | int | Iterable[int],
    paths: Sequence[Path],
    rank_map: Mapping[Any, int] | str | None,
) -> ChosenRanks:
    """Choose the reports of some ranks, ``0-7,63``; `OptionError` where one is not there, or nothing tells whose reports are.

    That is told by the rank map, else by names that end in numbers, else by the RANK captured, for
    which reports are opened.
    """
    wanted_ranks = asked_ranks(asked)
    text = (
        asked
        if isinstance(asked, str) and len(asked) < _LONG
        else shown_ranks(wanted_ranks).replace(", ", ",")
    )
    given_map = parse_rank_map(rank_map)
    of_reports = _ranks_of(paths, given_map)
    if of_reports is None:
        problem = (
            "cannot choose reports, because their ranks are unknown (no names like "
            "REPORT_0.sqlite, no recorded RANK)"
        )
        pairs = ",".join(
            f"{files.source_of(path).name}={rank}" for rank, path in enumerate(paths[:_SHOWN])
        )
        fix = f'--rank-map "{pairs}{",..." * (len(paths) > _SHOWN)}", or leave out --ranks'
        fix = fix if len(paths) > 1 else "leave out --ranks, nsyspipe reads one report as a whole"
        raise OptionError(f"--ranks {text}", problem, fix=fix)
    there = frozenset(rank for own in of_reports for rank in own)
    absent = wanted_ranks - there
    if absent:
        fix = f"--ranks {shown_ranks(wanted_ranks & there or there)}" if there else RANK_MAP
        raise OptionError(
            f"--ranks {text}", f"rank {min(absent)} is not there", found=shown_ranks(there), fix=fix
        )
    chosen = [not wanted_ranks.isdisjoint(own) for own in of_reports]
    ranks = frozenset(
        rank for own, is_chosen in zip(of_reports, chosen, strict=True) if is_chosen for rank in own
    )
    others = ranks - wanted_ranks
    if others:
        problem = (
            f"leaves out {shown_ranks(others)}, but nsyspipe reads a report with all its ranks"
        )
        raise OptionError(
            f"--ranks {text}", problem, fix=f"--ranks {shown_ranks(ranks)}, or leave out --ranks"
        )
    own_map = given_map and {name: rank for name, rank in given_map.items() if rank in ranks}
    return ChosenRanks(text, tuple(itertools.compress(paths, chosen)), ranks, there, own_map)


def _ranks_of(paths: Sequence[Path], rank_map: Mapping[str, int] | None) -> list[set[int]] | None:
    """Return the ranks of each report as far as it can be told before it is read; None where nothing numbers all."""
    sources = [files.source_of(path) for path in paths]
    if rank_map is not None:
        named = grouped((re.sub(r":\d+$", "", key), rank) for key, rank in rank_map.items())
        return [
            next(({*named[key]} for key in _map_keys(path, None) if key in named), set())
            for path in sources
        ]
    numbers = _all_numbers([stem_rank(str(path)) for path in sources])
    if numbers is None and all(path.suffix == files.EXPORT_SUFFIX for path in paths):
        facts = [_facts_of(path) for path in paths]
        captured = (
            [fact.number(variable) for fact in facts] for variable in ("RANK", *LAUNCHER_SIZES)
        )
        # Reports of one rank are its captures.
        of_variables = (
            [number for number in own if number is not None] for own in map(list, captured)
        )
        numbers = next((own for own in of_variables if len(own) == len(paths)), None)
    return None if numbers is None else [{rank} for rank in numbers]


def _facts_of(path: Path) -> ReportFacts:
    with open_report(path) as report:
        return read_facts(report)


def shown_ranks(ranks: Iterable[int]) -> str:
    """Write ranks as ``0-7, 63``."""
    return few(ranges({*ranks}), _SHOWN_NAMES)
