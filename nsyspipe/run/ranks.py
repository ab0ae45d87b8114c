"""Which process is which rank, by the first source that numbers all of them.

Also whether reports can be of one run, and how large the job was.
"""

import itertools
import re
import shlex
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, TypeGuard

import pyarrow as pa
from msgspec import Struct

from nsyspipe.analysis.work import RankWork
from nsyspipe.errors import OptionError, RankConflictError
from nsyspipe.model import schema
from nsyspipe.model.captured import CapturedRank
from nsyspipe.model.names import decoded, few, grouped, ranges
from nsyspipe.model.options import RANK_MAP, asked_ranks, parse_rank_map
from nsyspipe.model.problems import Problem, problem
from nsyspipe.model.side_files import NcclLog
from nsyspipe.model.user_paths import AnyPath, ReportFile
from nsyspipe.nsys import find_reports as files
from nsyspipe.reader.facts import JOB_VARIABLES, LAUNCHER_SIZES, ReportFacts, read_facts
from nsyspipe.reader.report import open_report
from nsyspipe.run.captures import capture_numbers, joined_ranks, share_one_process_number
from nsyspipe.run.cross_rank import CrossRank
from nsyspipe.run.digests import Rank, ReportDigest, one_of_each_process, place
from nsyspipe.run.gather import Gathered
from nsyspipe.run.memory import memory_of_rank
from nsyspipe.run.process import HostDigest, ProcessDigest
from nsyspipe.run.sidecars import RunSidecars

_AnyRank: TypeAlias = Rank[ProcessDigest] | Rank[HostDigest]
Ranks: TypeAlias = Sequence[_AnyRank]
_Row: TypeAlias = dict[str, object]
# Reports of one run are not farther apart than this.
MAX_GAP_IN_RUN_NS = 60 * 10**9
# Reports that communicate on one host, and have different names, are not farther apart than this.
MAX_GAP_ON_HOST_NS = 10 * 10**9
# Captures of one job begin within this time.
MAX_START_DIFFERENCE_NS = 5 * 10**9
# Longer gaps are shown in minutes.
MIN_GAP_IN_MINUTES_NS = 600 * 10**9
# Runs and reports that a fix names.
MAX_NAMED_RUNS = 4
MAX_NAMED_REPORTS = 8
# A longer --ranks is shown as ranges.
MAX_SHOWN_OPTION_LENGTH = 60
# No job has more ranks. A larger number in a name is a process ID, that of a job, or a date.
MAX_RANKS = 100_000
# A shell or torchrun gets its process ID just before the program that it starts. Lower numbers, as
# in containers, do not show that.
MIN_STARTER_PID = 300
MAX_PIDS_AFTER_STARTER = 16
_TWICE = "are the same report"
_DIFFERENT = "{}, so they are reports of different runs"
_ACTIVE = "active"
_ENVIRONMENT = "env:"
# "none" is torchrun's default.
_NO_JOB_IDS = frozenset(("", "none"))


class _Claim(Struct, frozen=True):
    """What a report says of its run. All claims with one key must have one value."""

    digest: ReportDigest
    key: object
    value: object
    # the conflict in words, with ``{}`` for both values
    words: str


def check_one_run(digests: Sequence[ReportDigest], ranks: Ranks, sidecars: RunSidecars) -> None:
    """Raise if two reports are the same, claim one rank, or are of different runs.

    The error names both files.
    """
    is_surely_one = is_surely_one_run(digests, sidecars)
    if not is_surely_one:
        _check_processes_once(digests, ranks)
    first_claims: dict[object, _Claim] = {}
    for claim in _claims(digests, ranks, sidecars):
        first = first_claims.setdefault(claim.key, claim)
        if first.value != claim.value:
            values = f"{first.value} and {claim.value}"
            what = claim.words.format(values)
            raise _conflict(digests, first.digest, claim.digest, what)
    # Times of reports can be compared only if all know when their session started.
    starts_ns = [rank.report.facts.session_start_utc_ns for rank in ranks]
    if None not in starts_ns:
        _check_gaps(digests, ranks, is_surely_one=is_surely_one)


def _check_gaps(digests: Sequence[ReportDigest], ranks: Ranks, *, is_surely_one: bool) -> None:
    """Raise if ranks ran so long after each other that they are of different runs."""
    ranks_by_start = sorted(ranks, key=_start_ns)
    # Of the ranks that started before, the rank that ends last.
    last_to_end: _AnyRank | None = None
    for rank in ranks_by_start:
        if last_to_end is None:
            last_to_end = rank
            continue
        gap_ns = _start_ns(rank) - _end_ns(last_to_end)
        if is_surely_one:
            max_gap_ns = MAX_GAP_IN_RUN_NS
        else:
            max_gap_ns = _max_gap_ns(last_to_end.report, rank.report)
        if gap_ns > max_gap_ns:
            what = _of_different_runs(f"{_ACTIVE} {_duration(gap_ns)} apart")
            raise _conflict(digests, last_to_end.report, rank.report, what)
        last_to_end = max(last_to_end, rank, key=_end_ns)


def _of_different_runs(reason: str) -> str:
    """Return in words that two reports are of different runs, with the reason."""
    return _DIFFERENT.format(reason)


def _start_ns(rank: _AnyRank) -> int:
    start_ns, _ = rank.span
    return start_ns


def _end_ns(rank: _AnyRank) -> int:
    _, end_ns = rank.span
    return end_ns


def _duration(duration_ns: int) -> str:
    if duration_ns < MIN_GAP_IN_MINUTES_NS:
        return f"{duration_ns / 1e9:.3g} s"
    return f"{duration_ns / 60e9:.0f} min"


def _check_processes_once(digests: Sequence[ReportDigest], ranks: Ranks) -> None:
    """Raise if reports seem to be captures of one process, but do not confirm that they are.

    The error says to analyze the reports of each capture alone, which is always right.
    """
    ranks_of_devices = _ranks_by_device(ranks)
    for ranks_of_device in ranks_of_devices:
        for before, after in itertools.pairwise(ranks_of_device):
            if share_one_process_number(before, after):
                capture_of_report = capture_numbers(ranks_of_devices)
                raise _unconfirmed_captures(digests, before, after, capture_of_report)


def _ranks_by_device(ranks: Ranks) -> list[list[Rank[ProcessDigest]]]:
    """Group the ranks that have one host, process number and device.

    Each group is in order of time. Processes without GPU activity are left out.
    """
    groups: dict[object, list[Rank[ProcessDigest]]] = {}
    for rank in ranks:
        if _has_device(rank):
            process = rank.process
            key = rank.report.facts.host, process.pid, process.device_id
            group = groups.setdefault(key, [])
            group.append(rank)
    return [sorted(group, key=lambda rank: rank.span) for group in groups.values()]


def _has_device(rank: _AnyRank) -> TypeGuard[Rank[ProcessDigest]]:
    return isinstance(rank.process, ProcessDigest)


def _unconfirmed_captures(
    digests: Sequence[ReportDigest],
    before: Rank[ProcessDigest],
    after: Rank[ProcessDigest],
    capture_of_report: Mapping[int, int],
) -> RankConflictError:
    """Return the error that two reports seem to be captures of one process.

    `capture_of_report` has the number of each report's capture, by argument. The fix shows how to
    analyze the capture to which the report of `before` belongs.
    """
    what = (
        f"both contain process {before.process.pid} of one host, one after the other. They "
        "may be captures of one process, but the reports do not confirm this"
    )
    capture_before = capture_of_report[before.argument]
    reports_of_capture = []
    for argument, digest in enumerate(digests):
        if capture_of_report.get(argument) == capture_before:
            reports_of_capture.append(digest)
    fix = (
        f"analyze the reports of each capture separately{_example(reports_of_capture)}, or use "
        "--rank-map if they are ranks of one run"
    )
    return RankConflictError(_names_of_two(before.report, after.report), what, fix=fix)


def _example(digests: Sequence[ReportDigest]) -> str:
    """Return the command that analyzes some reports, or nothing if they are too many."""
    if len(digests) > MAX_NAMED_REPORTS:
        return ""
    paths = map(_shown_path, digests)
    words = " ".join(map(shlex.quote, paths))
    return f": nsyspipe analyze {words}"


def _names_of_two(first: ReportDigest, second: ReportDigest) -> str:
    return f"{_shown_path(first)} and {_shown_path(second)}"


def _shown_path(report: ReportDigest) -> str:
    """Return the path of a report as the user wrote it."""
    return decoded(str(report.file))


def _max_gap_ns(first: ReportDigest, second: ReportDigest) -> int:
    """Return how long after the first report of a run the second may begin, if they are of one run.

    Ranks of one host that communicate with each other run at one time. So the limit is lower if
    both reports communicate on one host, unless their names are those of one run.
    """
    first_host = first.facts.host
    is_one_host = first_host is not None and first_host == second.facts.host
    do_both_communicate = first.has_communication and second.has_communication
    have_names_of_one_run = _name_of_run(first) == _name_of_run(second)
    if is_one_host and do_both_communicate and not have_names_of_one_run:
        return MAX_GAP_ON_HOST_NS
    return MAX_GAP_IN_RUN_NS


def _name_of_run(report: ReportDigest) -> str:
    """Return the name of a report without the rank at its end."""
    return files.RANK_OF_NAME.sub("", report.file.source.stem)


def _claims(
    digests: Sequence[ReportDigest], ranks: Ranks, sidecars: RunSidecars
) -> Iterator[_Claim]:
    """Yield the claims of all reports of a run. Two claims of one key must have one value.

    The value may be the argument of the report. Then two reports with this key are a conflict.
    """
    for argument, digest in enumerate(digests):
        # Two paths may name one file, which has one device and inode.
        status = digest.file.path.stat()
        file_key = "file", status.st_dev, status.st_ino
        yield _Claim(digest, file_key, argument, _TWICE)
    for rank in ranks:
        report = rank.report
        start_ns = report.facts.session_start_utc_ns
        if start_ns is not None:
            # A copy of a report has the same session and process.
            capture_key = "capture", start_ns, rank.process.process_id
            yield _Claim(report, capture_key, rank.argument, _TWICE)
    yield from _claims_of_variables(digests, ranks)
    yield from _claims_of_sidecars(digests, sidecars)


def _claims_of_sidecars(digests: Sequence[ReportDigest], sidecars: RunSidecars) -> Iterator[_Claim]:
    """Yield what the sidecars of a run must agree on: name, world size, and each rank's process."""
    for argument, (sidecar, _) in sidecars.by_argument.items():
        digest = digests[argument]
        name = sidecar.facts.name
        if name is not None:
            conflict = _of_different_runs("their sidecars name two captures")
            yield _Claim(digest, ("sidecar", "name"), name, conflict)
        if sidecar.world_size is not None:
            conflict = _of_different_runs("their sidecars say two world sizes")
            yield _Claim(digest, ("sidecar", "size"), sidecar.world_size, conflict)
        for entry in sidecar.ranks:
            reason = f"their sidecars are of two captures, each with a rank {entry.rank}"
            conflict = _of_different_runs(reason)
            # Two captures may have the same name, but their times or process IDs differ.
            time_and_pid = sidecar.captured_at_utc_ns, entry.pid
            yield _Claim(digest, ("sidecar", entry.rank), time_and_pid, conflict)


def _claims_of_variables(digests: Sequence[ReportDigest], ranks: Ranks) -> Iterator[_Claim]:
    """Yield what captured variables must agree on: world size, job, and one report per RANK."""
    for digest in digests:
        size = digest.facts.number("WORLD_SIZE")
        if size is not None:
            # Both values replace the braces once they are known.
            conflict = _of_different_runs("captured WORLD_SIZE is {}")
            yield _Claim(digest, "WORLD_SIZE", size, conflict)
    for rank in ranks:
        number = _captured_number(rank, "RANK")
        if number is not None:
            conflict = _of_different_runs(f"captured RANK is {number} in both")
            yield _Claim(rank.report, ("RANK", number), rank.argument, conflict)
    for variable, digest in itertools.product(JOB_VARIABLES, digests):
        value = digest.facts.variables.get(variable, "")
        if value.strip():
            conflict = _of_different_runs(f"captured {variable} differs")
            yield _Claim(digest, variable, value.strip(), conflict)


def _captured_number(rank: _AnyRank, variable: str) -> int | None:
    """Return a number that the captured environment has of a process, None if there is none.

    The environment is that of the program that nsys launched. So it describes a process only if the
    process is alone in its report.
    """
    return rank.report.facts.number(variable) if rank.is_alone else None


def _conflict(
    digests: Sequence[ReportDigest], first: ReportDigest, second: ReportDigest, what: str
) -> RankConflictError:
    """Return the error of two reports that cannot be of one run.

    `what` is the conflict in words. If the names of all reports show several runs, the fix names
    these runs. Else the fix suggests --rank-map.
    """
    names = _names_of_two(first, second)
    if first.file.path == second.file.path:
        return RankConflictError(names, what, fix="pass each report once")
    if what == _TWICE:
        fix = "pass each report once, or number them yourself with --rank-map"
        return RankConflictError(names, what, fix=fix)
    reports_of_one_run = "pass the reports of one run"
    paths = [str(digest.file) for digest in digests]
    # By the word of the shell that names the reports of a run, such as a glob.
    paths_of_runs = files.words_of_runs(paths, is_whole=True)
    n_runs = len(paths_of_runs)
    all_paths = itertools.chain.from_iterable(paths_of_runs.values())
    has_ranks = any(files.RANK_OF_NAME.search(path.stem) for path in all_paths)
    if n_runs > 1 and has_ranks:
        words = list(paths_of_runs)[:MAX_NAMED_RUNS]
        n_more = n_runs - len(words)
        if n_more:
            words.append(f"{n_more} more")
        return RankConflictError(names, what, fix=f"{reports_of_one_run}: {' or '.join(words)}")
    # A long gap is the only conflict that reports of one run may have.
    is_about_gap = what.startswith(_ACTIVE)
    conjunction = ". If they are of one run," if is_about_gap else ", or"
    fix = f"{reports_of_one_run}{conjunction} number them yourself with --rank-map"
    return RankConflictError(names, what, fix=fix)


def check_several_runs(arguments: Iterable[str], start: str = "") -> None:
    """Raise if reports that are each given as a run are ranks of one run.

    `arguments` are the arguments of the command, each of which should be a run. Reports whose names
    differ only in the rank are ranks of one run if they are of one job. Reports that are not
    exported yet are judged by their names alone. The fix is a command with a glob for each run. It
    begins with `start` if that command needs only one run.
    """
    given_paths = [Path(argument) for argument in arguments]
    # By the word of the shell that names the reports of a run, such as a glob.
    paths_of_runs = files.words_of_runs(files.without_exported(given_paths))
    for glob, paths in paths_of_runs.items():
        # An argument may be a glob itself, which is no file.
        report_paths = [path for path in paths if path.is_file()]
        if len(report_paths) <= 1:
            continue
        is_raw = any(path.suffix in files.RAW_SUFFIXES for path in report_paths)
        if is_raw or _are_of_one_job(report_paths):
            shared = "name" if is_raw else "job"
            what = f"{len(report_paths)} reports of one {shared}, but each is given as its own run"
            needs_second_run = len(paths_of_runs) == 1 and not start
            second_run = " and another for the other run" if needs_second_run else ""
            globs = " ".join(paths_of_runs)
            fix = f"{start}{globs}{second_run}, or LABEL=REPORT if each is a run"
            raise RankConflictError(glob, what, fix=fix)


def _are_of_one_job(paths: Sequence[Path]) -> bool:
    """Tell whether two or more reports are of one job.

    Reports of one job have the same world size, which is above 1, and each has another rank. If no
    report has a world size, their captures must have begun together. Reports with different world
    sizes or names of jobs are of different jobs.
    """
    facts = [_facts_of(path) for path in paths]
    world_sizes = {each.number("WORLD_SIZE") for each in facts}
    if len(world_sizes) > 1 or _have_different_jobs(facts):
        return False
    # All reports have this world size, or none has any.
    (world_size,) = world_sizes
    if world_size is not None:
        ranks = {each.number("RANK") for each in facts}
        is_each_rank_once = len(ranks) == len(facts)
        return world_size > 1 and is_each_rank_once
    starts_ns = _known(each.session_start_utc_ns for each in facts)
    are_all_known = len(starts_ns) == len(facts)
    return are_all_known and max(starts_ns) - min(starts_ns) <= MAX_START_DIFFERENCE_NS


def _known(numbers: Iterable[int | None]) -> list[int]:
    return [number for number in numbers if number is not None]


def _first_known(numbers: Iterable[int | None]) -> int | None:
    return next((number for number in numbers if number is not None), None)


def _have_different_jobs(facts: Sequence[ReportFacts]) -> bool:
    """Tell whether a variable that names the job has different values in the reports.

    A missing variable counts as an empty value.
    """
    for name in JOB_VARIABLES:
        values = {report.variables.get(name, "") for report in facts}
        if len(values) > 1:
            return True
    return False


def is_surely_one_run(digests: Sequence[ReportDigest], sidecars: RunSidecars) -> bool:
    """Tell whether reports and sidecars prove that the reports are of one run.

    One report is of one run. Several reports are if they are of one capture, or if all have the ID
    of the same job. Reports without processes do not count.
    """
    with_processes: list[int] = []
    for argument, digest in enumerate(digests):
        if digest.processes or digest.hosts:
            with_processes.append(argument)
    has_one_report = len(with_processes) <= 1
    if has_one_report or _are_of_one_capture(with_processes, sidecars):
        return True
    variables_of_reports = [digests[argument].facts.variables for argument in with_processes]
    for name in ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID"):
        job_ids = {variables.get(name, "").strip() for variables in variables_of_reports}
        has_all_ids = job_ids.isdisjoint(_NO_JOB_IDS)
        if has_all_ids and len(job_ids) == 1:
            return True
    return False


def _are_of_one_capture(arguments: Sequence[int], sidecars: RunSidecars) -> bool:
    """Tell whether all these reports have sidecars that were written for the same capture."""
    names_and_times = set()
    for argument in arguments:
        if argument not in sidecars.by_argument:
            return False
        sidecar, _ = sidecars.by_argument[argument]
        name_and_time = sidecar.facts.name, sidecar.captured_at_utc_ns
        names_and_times.add(name_and_time)
    return len(names_and_times) == 1


class Numbering(Struct, frozen=True):
    """The numbers of a run's processes and ranks, in the order of the ranks."""

    # of the ranks
    numbers: tuple[int, ...]
    # of the process of each rank
    process_numbers: tuple[int, ...]
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


class _ProcessNumbers(Struct, frozen=True):
    """The number of each process, and the source of the numbers."""

    numbers: Sequence[int]
    source: str
    problems: Sequence[Problem] = ()


def number_by_name(ranks: Ranks, sidecars: RunSidecars) -> Numbering:
    """Give each rank the number that one of `rank_sources` has.

    If no source numbers all processes, the ranks have no numbers.
    """
    processes = one_of_each_process(ranks)
    named = named_ranks(processes, sidecars)
    if named is None:
        return Numbering(numbers=(), process_numbers=(), source="order")
    numbers, source = named
    return _with_ranks(ranks, processes, _ProcessNumbers(numbers, source))


def number_ranks(
    digests: Sequence[ReportDigest],
    ranks: Ranks,
    rank_map: Mapping[str, int] | None,
    sidecars: RunSidecars,
) -> Numbering:
    """Give each process and each rank its number.

    The number of a process comes from the rank map, else from one of `rank_sources`, else from its
    place in the order of reports. If each process has one rank, the rank has the number of its
    process. If some process has several ranks, all ranks are counted in order of process number and
    device. Raises an error if there is no rank map, and the reports cannot be of one run.
    """
    if rank_map is None:
        check_one_run(digests, ranks, sidecars)
    processes = one_of_each_process(ranks)
    numbered = _number_processes(processes, rank_map, sidecars)
    return _with_ranks(ranks, processes, numbered)


def _with_ranks(ranks: Ranks, processes: Ranks, numbered: _ProcessNumbers) -> Numbering:
    """Return the numbers of ranks by the numbers of their processes.

    `processes` has one rank of each process, and `numbered` has the numbers of these processes.
    """
    # All ranks of a process have the same `place`: their report and process.
    number_of_process: dict[tuple[int, int], int] = {}
    for process, number in zip(processes, numbered.numbers, strict=True):
        number_of_process[process.place] = number
    process_numbers = [number_of_process[rank.place] for rank in ranks]
    has_shared_processes = len(processes) < len(ranks)
    if has_shared_processes:
        devices = [_device_key(rank.process.device_id) for rank in ranks]
        keys = list(zip(process_numbers, devices, strict=True))
        rank_numbers = _positions_in_order(keys)
    else:
        rank_numbers = process_numbers
    return Numbering(
        numbers=tuple(rank_numbers),
        process_numbers=tuple(process_numbers),
        source=numbered.source,
        problems=tuple(numbered.problems),
    )


def _positions_in_order(keys: Sequence[tuple[int, ...]]) -> list[int]:
    """Return for each key its position in the sorted keys. Equal keys keep their order."""
    n_keys = len(keys)
    indices_in_order = sorted(range(n_keys), key=keys.__getitem__)
    positions = [0] * n_keys
    for position, index in enumerate(indices_in_order):
        positions[index] = position
    return positions


def _number_processes(
    processes: Ranks, rank_map: Mapping[str, int] | None, sidecars: RunSidecars
) -> _ProcessNumbers:
    """Return the number of each process. `processes` has one rank of each process."""
    if rank_map is not None:
        numbers = ranks_by_map(processes, rank_map, sidecars)
        problems = list(_problems_of_map(processes, numbers, sidecars))
        return _ProcessNumbers(numbers, "rank_map", problems)
    named = named_ranks(processes, sidecars)
    if named is not None:
        numbers, source = named
        return _ProcessNumbers(numbers, source)
    keys = [_order_of_process(rank) for rank in processes]
    problems = []
    if keys:
        # The only process of a run cannot be in a wrong place.
        severity = "info" if len(keys) == 1 else None
        problems.append(problem("rank-by-order", severity=severity))
    return _ProcessNumbers(_positions_in_order(keys), "order", problems)


def _order_of_process(rank: _AnyRank) -> tuple[int, ...]:
    """Return the key by which processes without numbers are sorted: report, device and ID."""
    device_key = _device_key(_leading_device(rank))
    return rank.argument, device_key, rank.process.process_id


def _leading_device(rank: _AnyRank) -> int | None:
    """Return the device on which a rank's process has most operations, None without a device."""
    return next(iter(rank.process.device_ids), None)


def _device_key(device: int | None) -> int:
    """Return a number that sorts devices. A rank without a device comes before all of them."""
    return -1 if device is None else device


def _problems_of_map(
    ranks: Ranks, numbers: Sequence[int], sidecars: RunSidecars
) -> Iterator[Problem]:
    """Yield the problem that the rank map gives other numbers than the capture.

    The problem names the first process with another number. `numbers` are those of the rank map.
    """
    different = []
    for rank, number in zip(ranks, numbers, strict=True):
        captured = _number_of_capture(rank, sidecars)
        if captured is not None and captured != number:
            different.append((rank, number, captured))
    if different:
        first_rank, number, captured = different[0]
        name = decoded(first_rank.report.file.source.name)
        n_more = len(different) - 1
        more = f" (and {n_more} more)" if n_more else ""
        yield problem("rank-map-differs", report=name, number=number, told=captured, more=more)


def _number_of_capture(rank: _AnyRank, sidecars: RunSidecars) -> int | None:
    """Return the captured RANK of a process, else its rank in the sidecar, else None."""
    captured_rank = _captured_number(rank, "RANK")
    if captured_rank is not None:
        return captured_rank
    entry = _entry_of(rank, sidecars)
    return entry.rank if entry else None


def ranks_table(
    cross_rank: CrossRank,
    source: str,
    names: Sequence[str],
    sidecars: RunSidecars,
    *,
    works: Sequence[RankWork],
    is_comm_in_graphs: bool = False,
) -> pa.Table:
    """Return `schema.RANKS`, with a row for each rank.

    `source` is the source of the rank numbers, and `names` are the names of the reports. `works`
    has, for each rank, what its steps work on. A number of operations is null if CUDA graphs that
    were captured as a whole may hold such operations. Clock offsets are null if the clocks of some
    reports cannot be compared.
    """
    rows: list[_Row] = []
    for rank, work in zip(cross_rank.ranks, works, strict=True):
        row = _identity_of_rank(rank, source, names, sidecars)
        row |= _device_and_counts(rank, is_comm_in_graphs=is_comm_in_graphs)
        row |= memory_of_rank(rank, sidecars)
        row["peak_datatype"] = work.peak_datatype
        row["peak_datatype_source"] = work.peak_datatype_source
        row["clock_shift_ns"] = rank.shift_ns
        offset = cross_rank.offsets[rank.argument] if cross_rank.offsets else None
        row["clock_offset_ns"] = offset.offset_ns if offset else None
        row["clock_error_ns"] = offset.error_ns if offset else None
        rows.append(row)
    return schema.RANKS.from_rows(rows)


def _identity_of_rank(
    rank: Rank[ProcessDigest], source: str, names: Sequence[str], sidecars: RunSidecars
) -> _Row:
    """Return the columns of a rank's row that say which process and devices it is."""
    process = rank.process
    local_rank = _local_rank(rank, sidecars)
    report_names = [names[part.argument] for part in rank.parts]
    device_ids = map(str, sorted(process.device_ids))
    return {
        "rank": rank.number,
        "process_rank": rank.process_number,
        "local_rank": local_rank,
        "report": ",".join(report_names),
        "pid": process.pid,
        "device_id": process.device_id,
        "device_ids": ",".join(device_ids),
        "host": rank.report.facts.host,
        "rank_source": source,
    }


def _device_and_counts(rank: Rank[ProcessDigest], *, is_comm_in_graphs: bool) -> _Row:
    """Return the columns of a rank's row about its GPU and its numbers of operations.

    CUDA graphs that were captured as a whole may hold copies. `is_comm_in_graphs` says that they
    may hold communication too.
    """
    process = rank.process
    has_graphs = bool(rank.report.n_graphs)
    has_hidden_comm = has_graphs and is_comm_in_graphs
    gpu_name = rank.report.facts.gpu_name(process.pid, process.device_id)
    n_comm = None if has_hidden_comm else process.n_comm
    n_dtod = None if has_graphs else process.n_dtod
    return {
        "gpu_name": gpu_name,
        "compute_stream_id": process.compute_stream_id,
        "n_kernels": process.n_kernels,
        "n_comm": n_comm,
        "n_dtod": n_dtod,
    }


def _local_rank(rank: Rank[ProcessDigest], sidecars: RunSidecars) -> int | None:
    """Return the captured LOCAL_RANK of a process, else that of the sidecar, else None."""
    local_rank = _captured_number(rank, "LOCAL_RANK")
    if local_rank is not None:
        return local_rank
    entry = _entry_of(rank, sidecars)
    return entry.local_rank if entry else None


def _entry_of(rank: _AnyRank, sidecars: RunSidecars) -> CapturedRank | None:
    """Return the entry of a rank's process in its sidecar."""
    return sidecars.rank_of(rank.argument, rank.process.pid, is_alone=rank.is_alone)


def rank_sources(ranks: Ranks, sidecars: RunSidecars) -> Iterator[tuple[str, list[int | None]]]:
    """Yield each source of rank numbers except the rank map and order, the most reliable first.

    A source comes as its name, and a list with a number for each of `ranks`. The number is None if
    the source does not have it.
    """

    def source_of_variable(variable: str) -> tuple[str, list[int | None]]:
        numbers = [_captured_number(rank, variable) for rank in ranks]
        return f"{_ENVIRONMENT}{variable}", numbers

    yield source_of_variable("RANK")
    entries = [_entry_of(rank, sidecars) for rank in ranks]
    yield "sidecar", [entry.rank if entry else None for entry in entries]
    for variable in LAUNCHER_SIZES:
        yield source_of_variable(variable)
    yield "nccl_payload", [_number_by_payload(rank) for rank in ranks]
    yield "nvtx_mpi", [_number_by_mpi(rank) for rank in ranks]
    yield "file_name", _numbers_of_names(ranks)


def _number_by_payload(rank: _AnyRank) -> int | None:
    """Return the number of a rank in its communicator by NCCL's payload, None without payload."""
    rank_and_size = rank.report.comm_ranks.get(rank.process.process_id)
    if rank_and_size is None:
        return None
    number, _ = rank_and_size
    return number


def _number_by_mpi(rank: _AnyRank) -> int | None:
    return rank.report.mpi_ranks.get(rank.process.process_id)


def _numbers_of_names(ranks: Ranks) -> list[int | None]:
    """Return the number at the end of the name of each rank's report.

    All are None if one of the numbers is too large for a rank, or if all may be process IDs.
    """
    numbers = [_number_of_names(rank) for rank in ranks]
    numbered = [
        (rank, number) for rank, number in zip(ranks, numbers, strict=True) if number is not None
    ]
    are_ranks = all(_may_be_rank(number, rank.report) for rank, number in numbered)
    are_process_ids = all(_may_be_process_id(number, rank.process.pid) for rank, number in numbered)
    if are_ranks and not are_process_ids:
        return numbers
    return [None] * len(numbers)


def _number_of_names(rank: _AnyRank) -> int | None:
    """Return the number at the end of the name of a rank's report, or of all its reports.

    It is None if the report has other processes too. It is also None if the rank has reports with
    different numbers, because these count its captures.
    """
    if not rank.is_alone:
        return None
    numbers = {stem_rank(part.report.file.path) for part in rank.parts}
    return numbers.pop() if len(numbers) == 1 else None


def _may_be_process_id(number: int, pid: int) -> bool:
    """Tell whether a number of a report's name may be a process ID (nsys's ``%p``).

    It may be the ID of the process itself (`pid`), or of the program that started the process.
    """
    n_pids_later = pid - number
    is_just_before = 0 < n_pids_later <= MAX_PIDS_AFTER_STARTER
    may_be_starter = number >= MIN_STARTER_PID and is_just_before
    return number == pid or may_be_starter


def _may_be_rank(number: int, report: ReportDigest) -> bool:
    """Tell whether a number may be a rank.

    A rank is below the world size. If the world size is not known, a number may be a rank unless it
    is as large as a date.
    """
    world_size = recorded_world_size([report])
    rank_limit = MAX_RANKS if world_size is None else world_size
    return number < rank_limit


def named_ranks(ranks: Ranks, sidecars: RunSidecars) -> tuple[list[int], str] | None:
    """Return the numbers of `ranks` by the first source that gives each of them another number.

    Returns the numbers and the name of the source, or None if there is no such source.
    """
    for source, source_numbers in rank_sources(ranks, sidecars):
        numbers = _all_numbers(source_numbers)
        if numbers is not None:
            return numbers, source
    return None


def _all_numbers(candidates: Sequence[int | None]) -> list[int] | None:
    """Return the numbers, or None if one of them is not known or is there twice."""
    known_numbers = _known(candidates)
    n_different = len(set(known_numbers))
    return known_numbers if n_different == len(candidates) else None


def launcher_size(ranks: Ranks, sidecars: RunSidecars) -> int | None:
    """Return how many ranks the launcher started, None if it is not known.

    A launcher that numbers the ranks, for example in SLURM_PROCID, has a variable for their number
    too. All reports must have the same value of it, and each number must be below that.
    """
    named = named_ranks(ranks, sidecars)
    if named is None:
        return None
    numbers, source = named
    number_variable = source.removeprefix(_ENVIRONMENT)
    size_variable = LAUNCHER_SIZES.get(number_variable)
    if size_variable is None:
        return None
    sizes = {rank.report.facts.number(size_variable) for rank in ranks}
    size = sizes.pop() if len(sizes) == 1 else None
    largest_number = max(numbers, default=0)
    if size is None or size <= largest_number:
        return None
    return size


def recorded_world_size(
    digests: Sequence[ReportDigest], sidecars: RunSidecars | None = None
) -> int | None:
    """Return the captured WORLD_SIZE, else that of the sidecars, else None.

    The world size counts the ranks of the job, not of a communicator.
    """
    for digest in digests:
        size = digest.facts.number("WORLD_SIZE")
        if size is not None:
            return size
    return sidecars.world_size if sidecars else None


class JobSize(Struct, frozen=True):
    """How large the job of a run was. None is not known."""

    # what the launcher counts, which is processes if some have several devices
    world_size: int | None
    # The number of ranks of the job. If processes are missing, which may have several ranks, this
    # is the least number.
    n_ranks: int | None

    def has_all(self, n_ranks: int) -> bool:
        """Tell whether nothing shows that the job had more than `n_ranks` ranks."""
        return self.n_ranks is None or self.n_ranks <= n_ranks


def job_size(
    gathered: Gathered,
    ranks: Ranks,
    numbering: Numbering,
    *,
    log: NcclLog | None,
    ranks_of_all_reports: Iterable[int],
) -> JobSize:
    """Return how large the job was, by the first of these that is known.

    1. The recorded world size.
    2. How many ranks the launcher started.
    3. The size of NCCL's largest communicator.
    4. The numbers of reports that exist, read or not, or gaps between the numbers of ranks. Gaps
       prove nothing if numbers are only an order, or come from file names that do not count from 0:
       process IDs (``%p``) and dates are numbers too.

    If processes have several devices, NCCL counts more ranks than launchers do. If none of these is
    known, processes without recorded kernels are counted as ranks too.
    """
    digests = gathered.digests
    n_ranks = len(ranks)
    processes = one_of_each_process(ranks)
    n_processes = len(processes)
    # With a rank map, the variables of the launcher may be wrong.
    has_rank_map = numbering.source == "rank_map"
    launched_size = None if has_rank_map else launcher_size(processes, gathered.sidecars)
    least_size = _least_size(numbering, ranks_of_all_reports)
    has_shared_processes = n_processes < n_ranks
    if has_shared_processes:
        recorded_size = recorded_world_size(digests, gathered.sidecars)
        n_job_processes = _first_known((recorded_size, launched_size, least_size))
        n_nccl_ranks = largest_communicator(digests, log)
        return _size_with_shared_processes(
            n_job_processes, n_nccl_ranks, n_ranks=n_ranks, n_processes=n_processes
        )
    reported_size = world_size(digests, gathered.sidecars, log, launched_size)
    size = _first_known((reported_size, least_size))
    n_unrecorded = n_unrecorded_ranks(digests)
    if size is None and n_unrecorded and ranks:
        # Processes without recorded kernels are ranks of the job too.
        return JobSize(world_size=None, n_ranks=n_ranks + n_unrecorded)
    return JobSize(world_size=size, n_ranks=size)


def _size_with_shared_processes(
    n_job_processes: int | None, n_nccl_ranks: int | None, *, n_ranks: int, n_processes: int
) -> JobSize:
    """Return the size of a job if some of the present processes have several ranks.

    The run has `n_processes` processes with `n_ranks` ranks. `n_job_processes` is the size of the
    job in processes, by a launcher or by their numbers. `n_nccl_ranks` is its size in ranks, by
    NCCL. Each is None if it is not known.
    """
    if n_job_processes is None and n_nccl_ranks is None:
        return JobSize(world_size=None, n_ranks=None)
    least_n_ranks = n_ranks
    if n_job_processes is not None and n_job_processes > n_processes:
        # Each missing process has at least one rank.
        n_missing = n_job_processes - n_processes
        least_n_ranks += n_missing
    if n_nccl_ranks is not None:
        least_n_ranks = max(least_n_ranks, n_nccl_ranks)
    return JobSize(world_size=n_job_processes, n_ranks=least_n_ranks)


def n_unrecorded_ranks(digests: Sequence[ReportDigest]) -> int:
    """Return how many processes are ranks by what they did, but have no recorded kernels."""
    n_ranks = 0
    for digest in digests:
        ids_with_kernels = {process.process_id for process in digest.processes}
        for process in digest.unrecorded:
            if process.is_rank and process.process_id not in ids_with_kernels:
                n_ranks += 1
    return n_ranks


def _least_size(numbering: Numbering, ranks_of_all_reports: Iterable[int]) -> int | None:
    """Return how many processes a job must have by their numbers, None if these prove nothing.

    A job counts its processes from 0. So a process with the number 7 proves 8 processes. The
    numbers of the processes that were read count only if there are gaps between them.
    """
    process_numbers = set(numbering.process_numbers)
    do_count = _do_count_ranks(process_numbers, numbering.source)
    proving_numbers = set(ranks_of_all_reports)
    if do_count and _have_gaps(process_numbers):
        proving_numbers |= process_numbers
    # Damaged reports may have negative numbers, which count nothing.
    counting_numbers = [number for number in proving_numbers if number >= 0]
    return max(counting_numbers) + 1 if counting_numbers else None


def _have_gaps(numbers: Collection[int]) -> bool:
    """Tell whether a number between the lowest and the highest is missing."""
    if not numbers:
        return False
    n_without_gaps = max(numbers) - min(numbers) + 1
    return len(numbers) < n_without_gaps


def _do_count_ranks(numbers: Container[int], source: str) -> bool:
    """Tell whether numbers from `source` count the ranks of the job.

    They do not if they are only an order. Numbers of file names may be process IDs or dates, unless
    one of them is 0.
    """
    if source == "file_name":
        return 0 in numbers
    return source != "order"


def largest_communicator(digests: Sequence[ReportDigest], log: NcclLog | None) -> int | None:
    """Return the number of ranks of NCCL's largest communicator, by the payloads, else by the log.

    None if neither has a communicator.
    """
    sizes: list[int] = []
    for digest in digests:
        sizes += digest.comm_sizes.values()
    return max(sizes or _logged_sizes(log), default=None)


def _logged_sizes(log: NcclLog | None) -> list[int]:
    """Return how many ranks each communicator of NCCL's log has."""
    if log is None:
        return []
    return [communicator.n_ranks for communicator in log.communicators]


def world_size(
    digests: Sequence[ReportDigest],
    sidecars: RunSidecars | None = None,
    log: NcclLog | None = None,
    launched: int | None = None,
) -> int | None:
    """Return how many ranks the job had, None if it is not known.

    This is the recorded world size, else what the launcher started (`launched`), else the size of
    NCCL's largest communicator. NCCL's log counts only if no payload has a communicator.
    """
    recorded_size = recorded_world_size(digests, sidecars)
    communicator_sizes = []
    for digest in digests:
        for _, n_ranks in digest.comm_ranks.values():
            communicator_sizes.append(n_ranks)
    largest_size = max(communicator_sizes or _logged_sizes(log), default=None)
    return _first_known((recorded_size, launched, largest_size))


def run_sizes(gathered: Gathered) -> list[int]:
    """Return how many ranks a run may have by its reports, as sorted numbers.

    These numbers are the ranks in the reports, the world size, and what a launcher started. A
    launcher that started fewer ranks than the reports have is left out.
    """
    digests = gathered.digests
    sidecars = gathered.sidecars
    is_one_job = is_surely_one_run(digests, sidecars)
    n_ranks = len(joined_ranks(place(digests), is_one_job=is_one_job))
    sizes = {n_ranks, world_size(digests, sidecars) or n_ranks}
    for digest in digests:
        launched_sizes = _known(map(digest.facts.number, LAUNCHER_SIZES.values()))
        sizes.update(size for size in launched_sizes if size >= n_ranks)
    return sorted(sizes)


def stem_rank(path: str | Path) -> int | None:
    """Return the number at the end of a file's name, or None."""
    stem = Path(path).stem
    match = files.RANK_OF_NAME.search(stem)
    return int(match[1]) if match else None


def ranks_by_map(ranks: Ranks, rank_map: Mapping[str, int], sidecars: RunSidecars) -> list[int]:
    """Return the number that a map gives to each process. `ranks` has one rank of each process.

    Raises `OptionError` unless the map names each process and no other, and each number once.
    """
    # The name of each process in errors.
    shown_names: list[str] = []
    # The keys of the map that name each process.
    keys_of_processes: list[list[str]] = []
    for rank in ranks:
        # A process that was captured several times may be named by any of its reports.
        names_of_parts = [_names_of(part) for part in rank.parts]
        names_of_first_part = names_of_parts[0]
        shown_names.append(names_of_first_part[0])
        keys_of_processes.append(_keys_of_parts(names_of_parts, rank_map))
    for shown_name, keys in zip(shown_names, keys_of_processes, strict=True):
        _check_one_number(shown_name, keys, rank_map)
    _check_all_used(shown_names, keys_of_processes, rank_map)
    first_keys = _check_all_named(shown_names, keys_of_processes, rank_map)
    numbers: list[int] = []
    for key in first_keys:
        number = rank_map[key]
        if number in numbers:
            what = f"gives rank {number} twice"
            raise OptionError("--rank-map", what, fix="one number per rank")
        numbers.append(number)
    _check_below_world_size(ranks, numbers, sidecars)
    return numbers


def _check_one_number(name: str, keys: Sequence[str], rank_map: Mapping[str, int]) -> None:
    """Raise if the keys of one process in the map have several numbers."""
    numbers = {rank_map[key] for key in keys}
    if len(numbers) > 1:
        first, second, *_ = sorted(numbers)
        what = f"assigns ranks {first} and {second} to one process that was captured several times"
        raise OptionError("--rank-map", what, found=name, fix="one rank per process")


def _check_all_used(
    names: Sequence[str], keys_of_processes: Sequence[Sequence[str]], rank_map: Mapping[str, int]
) -> None:
    """Raise if the map has a key that names no process, or a second key for one report.

    `keys_of_processes` has one key for each report of a process.
    """
    used_keys = set(itertools.chain.from_iterable(keys_of_processes))
    unused = rank_map.keys() - used_keys
    if unused:
        what = f"names {min(unused)}, but no such report has GPU activity or steps"
        fix = "use one of these reports, or leave out --rank-map"
        raise OptionError("--rank-map", what, found=few(names, MAX_NAMED_REPORTS), fix=fix)


def _check_all_named(
    names: Sequence[str], keys_of_processes: Sequence[Sequence[str]], rank_map: Mapping[str, int]
) -> list[str]:
    """Return the first key of each process in the map. Raises `OptionError` if a process has none.

    `names` are the names of the processes in errors.
    """
    first_keys: list[str] = []
    absent: list[str] = []
    for name, keys in zip(names, keys_of_processes, strict=True):
        if keys:
            first_keys.append(keys[0])
        else:
            absent.append(name)
    if absent:
        shown_absent = absent[:MAX_NAMED_REPORTS]
        shown_map = list(rank_map)[:MAX_NAMED_REPORTS]
        entries = [f"{key}={rank_map[key]}" for key in first_keys]
        entries += [f"{name}=N" for name in shown_absent]
        what = f"gives no rank to {', '.join(shown_absent)}"
        fix = f'--rank-map "{",".join(entries)}"'
        raise OptionError("--rank-map", what, found=", ".join(shown_map), fix=fix)
    return first_keys


def _check_below_world_size(ranks: Ranks, numbers: Sequence[int], sidecars: RunSidecars) -> None:
    """Raise if a number is not below the largest recorded world size."""
    recorded_sizes = _known(recorded_world_size([rank.report], sidecars) for rank in ranks)
    world_size = max(recorded_sizes, default=None)
    if world_size is not None and max(numbers) >= world_size:
        what = f"gives rank {max(numbers)} of {world_size}"
        raise OptionError("--rank-map", what, fix=f"ranks 0 to {world_size - 1}")


def _names_of(part: _AnyRank) -> list[str]:
    """Return the names that a rank map may use for a process in one report."""
    pid = None if part.is_alone else part.process.pid
    return _map_keys(part.report.file.source, pid)


def _keys_of_parts(
    names_of_parts: Sequence[Sequence[str]], rank_map: Mapping[str, int]
) -> list[str]:
    """Return the keys of a map that name the reports of one process, at most one for each report.

    `names_of_parts` has, for each report, the names that a map may use. Reports that the map does
    not name are left out.
    """
    keys = []
    for names in names_of_parts:
        key = next((name for name in names if name in rank_map), None)
        if key is not None:
            keys.append(key)
    return keys


def _map_keys(path: Path, pid: int | None) -> list[str]:
    """Return the names that a rank map may use for a process of a report.

    A report may be named by its path, by any tail of its path, by its stem, or by any tail of the
    path of its export. `pid` is None if the process is alone in the report. Else each name ends in
    ``:PID``.
    """
    exported = path.with_suffix(files.EXPORT_SUFFIX)
    names = _tails(path)
    names += [path.stem, str(path)]
    names += _tails(exported)
    if pid is None:
        return names
    return [f"{name}:{pid}" for name in names]


def _tails(path: Path) -> list[str]:
    """Return the ends of a path, from its last part to all its parts: ``c``, ``b/c``, ``a/b/c``."""
    tails: list[str] = []
    for n_parts in range(1, len(path.parts) + 1):
        last_parts = path.parts[-n_parts:]
        tails.append("/".join(last_parts))
    return tails


class ChosenRanks(Struct, frozen=True):
    """The reports that are read if the user asks for some ranks of a run."""

    # the value of --ranks in words
    asked: str
    reports: tuple[ReportFile, ...]
    # of these reports
    ranks: frozenset[int]
    # of all reports of the run, read or not
    ranks_of_all_reports: frozenset[int]
    # the entries of these reports, or None without a rank map
    rank_map: Mapping[str, int] | None

    def check(self, numbers: Sequence[int], source: str) -> None:
        """Raise if the reports turn out to have ranks that were not expected of them.

        `numbers` are the ranks that were read from the reports, and `source` is the source of these
        numbers.
        """
        if not self.ranks.issuperset(numbers):
            option = f"--ranks {self.asked}"
            what = f"does not match the reports, because their names and ranks differ ({source})"
            raise OptionError(option, what, found=shown_ranks(numbers), fix=RANK_MAP)


def choose_ranks(
    asked: str | int | Iterable[int],
    reports: Sequence[ReportFile],
    rank_map: Mapping[Any, int] | str | None,
) -> ChosenRanks:
    """Choose the reports of some ranks, such as ``0-7,63``.

    The ranks of reports come from the rank map, else from numbers at the end of their names, else
    from the captured RANK, for which reports are opened. Raises `OptionError` if a rank does not
    exist, if the ranks of the reports are not known, or if a report with a wanted rank has other
    ranks too.
    """
    wanted = asked_ranks(asked)
    shown = _shown_option(asked, wanted)
    option = f"--ranks {shown}"
    full_map = parse_rank_map(rank_map)
    ranks_of_reports = _ranks_of(reports, full_map)
    if ranks_of_reports is None:
        raise _unknown_ranks(option, reports)
    existing = frozenset(itertools.chain.from_iterable(ranks_of_reports))
    _check_all_exist(option, wanted, existing)
    has_wanted_rank = [not wanted.isdisjoint(report_ranks) for report_ranks in ranks_of_reports]
    ranks_of_chosen_reports = itertools.compress(ranks_of_reports, has_wanted_rank)
    chosen_ranks = frozenset(itertools.chain.from_iterable(ranks_of_chosen_reports))
    unwanted = chosen_ranks - wanted
    if unwanted:
        what = f"leaves out {shown_ranks(unwanted)}, but nsyspipe reads a report with all its ranks"
        fix = f"--ranks {shown_ranks(chosen_ranks)}, or leave out --ranks"
        raise OptionError(option, what, fix=fix)
    chosen_reports = itertools.compress(reports, has_wanted_rank)
    chosen_map = None if full_map is None else _entries_of(chosen_ranks, full_map)
    return ChosenRanks(
        asked=shown,
        reports=tuple(chosen_reports),
        ranks=chosen_ranks,
        ranks_of_all_reports=existing,
        rank_map=chosen_map,
    )


def _check_all_exist(option: str, wanted: frozenset[int], existing: frozenset[int]) -> None:
    """Raise if a rank that was asked for does not exist.

    The fix suggests the wanted ranks that exist. If none of them exists, it suggests all ranks.
    """
    absent = wanted - existing
    if not absent:
        return
    suggested = (wanted & existing) or existing
    # If no report has a rank, the rank map is wrong.
    fix = f"--ranks {shown_ranks(suggested)}" if suggested else RANK_MAP
    what = f"rank {min(absent)} is not there"
    raise OptionError(option, what, found=shown_ranks(existing), fix=fix)


def _entries_of(ranks: Container[int], rank_map: Mapping[str, int]) -> dict[str, int]:
    return {name: rank for name, rank in rank_map.items() if rank in ranks}


def _shown_option(asked: str | int | Iterable[int], wanted: Iterable[int]) -> str:
    """Return the value of --ranks as the user gave it, or as ranges if it is long."""
    if isinstance(asked, str) and len(asked) < MAX_SHOWN_OPTION_LENGTH:
        return asked
    return shown_ranks(wanted).replace(", ", ",")


def _unknown_ranks(option: str, reports: Sequence[ReportFile]) -> OptionError:
    """Return the error that nothing tells the ranks of reports.

    The fix is a rank map with the first reports, or no --ranks if there is one report.
    """
    what = (
        "cannot choose reports, because their ranks are unknown (no names like REPORT_0.sqlite, no "
        "recorded RANK)"
    )
    if len(reports) <= 1:
        fix = "leave out --ranks, nsyspipe reads one report as a whole"
        return OptionError(option, what, fix=fix)
    entries: list[str] = []
    for rank, report in enumerate(reports[:MAX_NAMED_RUNS]):
        entries.append(f"{report.source.name}={rank}")
    if len(reports) > MAX_NAMED_RUNS:
        entries.append("...")
    fix = f'--rank-map "{",".join(entries)}", or leave out --ranks'
    return OptionError(option, what, fix=fix)


def _ranks_of(
    reports: Sequence[ReportFile], rank_map: Mapping[str, int] | None
) -> list[set[int]] | None:
    """Return the ranks of each report before it is read, None if nothing numbers all reports.

    With a rank map, a report may have several ranks, or none if the map does not name it. Else each
    report has one rank, by the number in its name or by the captured RANK.
    """
    given_paths = [Path(str(report)) for report in reports]
    if rank_map is not None:
        ranks_of_name = grouped((_without_pid(key), rank) for key, rank in rank_map.items())
        return [_mapped_ranks(path, ranks_of_name) for path in given_paths]
    numbers = _all_numbers([stem_rank(path) for path in given_paths])
    if numbers is None:
        numbers = _captured_ranks(reports)
    return None if numbers is None else [{rank} for rank in numbers]


def _without_pid(key: str) -> str:
    """Return the name of the report in a key of a rank map, which may be ``REPORT:PID``."""
    return re.sub(r":\d+$", "", key)


def _mapped_ranks(path: Path, ranks_of_name: Mapping[str, Sequence[int]]) -> set[int]:
    """Return the ranks that a map gives to the processes of a report, empty if it does not name it.

    `ranks_of_name` has the ranks by the name of the report.
    """
    for name in _map_keys(path, None):
        if name in ranks_of_name:
            return set(ranks_of_name[name])
    return set()


def _captured_ranks(reports: Sequence[ReportFile]) -> list[int] | None:
    """Return the rank of each report by the first variable that all reports captured.

    None if there is no such variable, or if a report is not exported yet. Several reports may have
    the same rank, because a rank may be captured several times.
    """
    are_exports = all(report.path.suffix == files.EXPORT_SUFFIX for report in reports)
    if not are_exports:
        return None
    facts = [_facts_of(report) for report in reports]
    for variable in ("RANK", *LAUNCHER_SIZES):
        numbers = _known(each.number(variable) for each in facts)
        if len(numbers) == len(facts):
            return numbers
    return None


def _facts_of(path: AnyPath) -> ReportFacts:
    with open_report(path) as report:
        return read_facts(report)


def shown_ranks(ranks: Iterable[int]) -> str:
    """Write ranks as ``0-7, 63``."""
    return few(ranges({*ranks}), MAX_NAMED_REPORTS)
