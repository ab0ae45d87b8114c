"""Which process is which rank: the first source that numbers them all; and whether reports can be of one run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from nsyspipe.errors import OptionError, RankConflictError
from nsyspipe.model import schema
from nsyspipe.model.problems import Problem, problem
from nsyspipe.nsys.find_reports import EXPORT_SUFFIX, source_of
from nsyspipe.reader.metadata import JOB_VARIABLES, LAUNCHER_SIZES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa

    from nsyspipe.model.fabric import NcclLog
    from nsyspipe.model.sidecar import Sidecar
    from nsyspipe.run.cross_rank import CrossRank
    from nsyspipe.run.digest import HostDigest, ProcessDigest
    from nsyspipe.run.gather import Placed, ReportDigest
    from nsyspipe.run.sidecars import Captured

    Rank: TypeAlias = Placed[ProcessDigest] | Placed[HostDigest]


_ONE_RUN_NS = 60_000_000_000
# Of these, an equal value says that the job is the same one; torchrun's default id says nothing.
_IDENTIFYING = ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID")
_NO_ID = "none"
_TWICE, _DIFFERENT = "the same report twice", "{}: reports of different runs"


def check_one_run(digests: Sequence[ReportDigest], placed: Sequence[Rank], captured: Captured) -> None:
    """Raise if two reports are one and the same, claim one rank, or come from different runs, naming both files.

    Different runs: two captured ``WORLD_SIZE``, or two captured ids or ports of the job; the sidecars of two captures;
    or over a minute between the activity of reports: that of their devices, in a run without any that of their hosts'
    steps.
    """
    seen: dict[object, tuple[object, ReportDigest]] = {}
    for digest, key, value, what in _identities(digests, placed, captured):
        theirs, other = seen.setdefault(key, (value, digest))
        if theirs != value:
            raise _conflict(other, digest, what.format(f"{theirs} and {value}"))
    _check_times(placed)


def _identities(
    digests: Sequence[ReportDigest], placed: Sequence[Rank], captured: Captured
) -> Iterator[tuple[ReportDigest, object, object, str]]:
    """Yield what tells runs apart: report, key, the value that all reports have alike, and words if they do not."""
    yield from _captures(digests, placed)
    for digest in digests:
        if (size := digest.facts.number("WORLD_SIZE")) is not None:
            yield digest, "WORLD_SIZE", size, _DIFFERENT.format("captured WORLD_SIZE is {}")
    for one in placed:
        rank = one.report.facts.number("RANK") if one.is_alone else None
        if rank is not None:
            what = _DIFFERENT.format(f"captured RANK is {rank} in both")
            yield one.report, ("RANK", rank), one.argument, what
    for variable in JOB_VARIABLES:
        for digest in digests:
            if value := _text(digest, variable):
                yield digest, variable, value, _DIFFERENT.format(f"captured {variable} differs")
    for argument, (sidecar, _) in captured.by_argument.items():
        for key, said, what in _said(sidecar):
            yield digests[argument], ("sidecar", key), said, _DIFFERENT.format(what)


def _captures(
    digests: Sequence[ReportDigest], placed: Sequence[Rank]
) -> Iterator[tuple[ReportDigest, object, object, str]]:
    for at, digest in enumerate(digests):
        status = Path(digest.path).stat()
        yield digest, ("file", status.st_dev, status.st_ino), at, _TWICE
    for one in placed:
        if (start := one.report.facts.session_start_utc_ns) is not None:
            yield one.report, ("capture", start, one.process.process_id), one.argument, _TWICE


def _text(digest: ReportDigest, variable: str) -> str:
    return digest.facts.variables.get(variable, "").strip()


def _said(sidecar: Sidecar) -> Iterator[tuple[object, object, str]]:
    """Yield what sidecars of one capture have alike, each of the nodes its own ranks: key, value, words if it differs."""
    if sidecar.facts.name is not None:
        yield "name", sidecar.facts.name, "their sidecars name two captures"
    if sidecar.world_size is not None:
        yield "size", sidecar.world_size, "their sidecars say two world sizes"
    for one in sidecar.ranks:
        # A capture of the same name, made again elsewhere.
        value = (sidecar.captured_at_utc_ns, one.pid)
        yield one.rank, value, f"their sidecars are of two captures, each with a rank {one.rank}"


def _check_times(placed: Sequence[Rank]) -> None:
    """Raise if activity pauses for over a minute between two reports."""
    if any(one.report.facts.session_start_utc_ns is None for one in placed):
        return
    latest: Rank | None = None
    for one in sorted(placed, key=lambda one: one.span[0]):
        if latest is not None and one.span[0] - latest.span[1] > _ONE_RUN_NS:
            seconds = (one.span[0] - latest.span[1]) // 1_000_000_000
            what = _DIFFERENT.format(f"active {seconds} s apart")
            raise _conflict(latest.report, one.report, what)
        if latest is None or one.span[1] > latest.span[1]:
            latest = one


def _conflict(first: ReportDigest, second: ReportDigest, what: str) -> RankConflictError:
    fix = "pass each report once" if what == _TWICE else "pass the reports of one run"
    names = f"{first.path} and {second.path}"
    return RankConflictError(names, what, fix=f"{fix}, or number them yourself with --rank-map")


def is_surely_one_run(digests: Sequence[ReportDigest], captured: Captured) -> bool:
    """Tell whether the reports with ranks say themselves that they are of one run: one capture, or one job's id."""
    used = [at for at, digest in enumerate(digests) if digest.processes or digest.hosts]
    if len(used) < 2:  # noqa: PLR2004 - two could differ
        return True
    said = [captured.by_argument.get(at) for at in used]
    captures = {(one[0].facts.name, one[0].captured_at_utc_ns) if one else None for one in said}
    if len(captures) == 1 and None not in captures:
        return True
    ids = [[_text(digests[at], name) for at in used] for name in _IDENTIFYING]
    return any(len(set(own)) == 1 and own[0] not in ("", _NO_ID) for own in ids)


_ENVIRONMENT = "env:"
_MOST_DIGITS = 18
_STEM_RANK = re.compile(r"(?i)(?:rank|[._-])(\d+)$")


def number_ranks(
    digests: Sequence[ReportDigest], placed: Sequence[Rank], rank_map: Mapping[str, int] | None, captured: Captured
) -> tuple[list[int], str, list[Problem]]:
    """Give each rank its number, from the first source that numbers every one, all different; name the source.

    Sources: the rank map; captured ``RANK``; the capture's sidecar; ``OMPI_COMM_WORLD_RANK``, ``PMI_RANK``,
    ``PMIX_RANK``, ``SLURM_PROCID``, each by itself, since they may contradict each other; NCCL's payload, which knows a
    rank in a communicator only; MPI's thread names; the file's stem; order.

    Raises
    ------
    RankConflictError
        If two reports cannot be of one run (not asked when a rank map is given).
    OptionError
        If the rank map does not name every report, or gives one number twice.
    """
    if rank_map is not None:
        return ranks_by_map(placed, rank_map), "rank_map", []
    check_one_run(digests, placed, captured)
    if (named := named_ranks(placed, captured)) is not None:
        return *named, []
    order = sorted(range(len(placed)), key=lambda at: _order_key(placed[at]))
    ranks = [0] * len(placed)
    for rank, at in enumerate(order):
        ranks[at] = rank
    severity = "info" if len(placed) == 1 else None
    return ranks, "order", [problem("rank-by-order", severity=severity)] if placed else []


def ranks_table(
    across: CrossRank,
    ranks: Sequence[int],
    source: str,
    names: Sequence[str],
    captured: Captured,
    *,
    is_comm_in_graphs: bool = False,
) -> pa.Table:
    """Return `schema.RANKS`; rank numbers are in ascending order, `source` is where they come from.

    What CUDA graphs that were captured as a whole hold is not counted: null, for communication where they may hold
    some.
    """
    rows = [
        {
            "rank": rank,
            "local_rank": _local_rank(one, captured),
            "report": names[one.argument],
            "pid": one.process.pid,
            "device_id": one.process.device_id,
            "device_ids": ",".join(map(str, one.process.device_ids)),
            "gpu_name": one.report.facts.gpu_name(one.process.pid, one.process.device_id),
            "host": one.report.facts.host,
            "rank_source": source,
            "n_kernels": one.process.n_kernels,
            "n_comm": None if one.report.n_graphs and is_comm_in_graphs else one.process.n_comm,
            "n_dtod": None if one.report.n_graphs else one.process.n_dtod,
            "clock_shift_ns": one.shift_ns,
            "clock_offset_ns": across.offsets[one.argument].offset_ns,
            "clock_error_ns": across.offsets[one.argument].error_ns,
        }
        for one, rank in zip(across.placed, ranks, strict=True)
    ]
    return schema.RANKS.from_rows(rows)


def _local_rank(placed: Placed[ProcessDigest], captured: Captured) -> int | None:
    """Return the captured LOCAL_RANK, which of several processes none has, else what the sidecar says."""
    recorded = placed.report.facts.number("LOCAL_RANK") if placed.is_alone else None
    said = captured.rank_of(placed.argument, placed.process.pid, is_alone=placed.is_alone)
    return said.local_rank if recorded is None and said else recorded


def _order_key(placed: Rank) -> tuple[int, int, int]:
    device = placed.process.device_id
    return placed.argument, -1 if device is None else device, placed.process.process_id


def rank_sources(placed: Sequence[Rank], captured: Captured) -> Iterator[tuple[str, list[int | None]]]:
    """Yield each source of rank numbers but the rank map and order, with what it says of each process; None for nothing.

    The environment is that of the program that was launched: it names a process only if that is alone in its report.
    """

    def captured_numbers(variable: str) -> tuple[str, list[int | None]]:
        numbers = [one.report.facts.number(variable) if one.is_alone else None for one in placed]
        return f"{_ENVIRONMENT}{variable}", numbers

    yield captured_numbers("RANK")
    said = [captured.rank_of(one.argument, one.process.pid, is_alone=one.is_alone) for one in placed]
    yield "sidecar", [one.rank if one else None for one in said]
    for variable in LAUNCHER_SIZES:
        yield captured_numbers(variable)
    comm_ranks = [one.report.comm_ranks.get(one.process.process_id) for one in placed]
    yield "nccl_payload", [comm.rank if comm else None for comm in comm_ranks]
    yield "nvtx_mpi", [one.report.mpi_ranks.get(one.process.process_id) for one in placed]
    yield "file_name", [stem_rank(one.report.path) if one.is_alone else None for one in placed]


def named_ranks(placed: Sequence[Rank], captured: Captured) -> tuple[list[int], str] | None:
    """Return the numbers of the first source that numbers every process, all different, and its name; None for none."""
    for source, found in rank_sources(placed, captured):
        numbers = [number for number in found if number is not None]
        if len(found) == len(numbers) == len(set(numbers)):
            return numbers, source
    return None


def launcher_size(placed: Sequence[Rank], ranks: Sequence[int], source: str) -> int | None:
    """Return how many ranks the launcher started that numbered them; None if another source did, or it cannot be.

    A size that differs between reports, or has no room for the ranks that are there, is none.
    """
    variable = LAUNCHER_SIZES.get(source.removeprefix(_ENVIRONMENT))
    sizes = {one.report.facts.number(variable) for one in placed} if variable else set()
    size = sizes.pop() if len(sizes) == 1 else None
    return size if size is not None and size > max(ranks, default=0) else None


def told_world_size(digests: Sequence[ReportDigest], said: int | None) -> int | None:
    """Return the captured WORLD_SIZE, else what the sidecar said: the ranks of the job, not of a communicator."""
    captured = (digest.facts.number("WORLD_SIZE") for digest in digests)
    return next((size for size in captured if size is not None), said)


def world_size(
    digests: Sequence[ReportDigest], log: NcclLog | None = None, said: int | None = None, launched: int | None = None
) -> int | None:
    """Return how many ranks the job had; None where nothing says it.

    The captured WORLD_SIZE, else what the sidecar said, else how many the launcher started that numbered them
    (`launched`), else the size of NCCL's largest communicator; of these, those of the payload go before those of the
    log.
    """
    told = told_world_size(digests, said)
    if told is not None:
        return told
    if launched is not None:
        return launched
    sizes = [comm.n_ranks for digest in digests for comm in digest.comm_ranks.values()]
    return max(sizes or [comm.n_ranks for comm in (log.communicators if log else ())], default=None)


def run_sizes(digests: Sequence[ReportDigest], said: int | None = None) -> list[int]:
    """Return how many ranks a run may have as far as its reports tell, sorted: those there, and the world's."""
    n_ranks = sum(len(digest.processes) for digest in digests)
    launched = {
        size
        for digest in digests
        for name in LAUNCHER_SIZES.values()
        if (size := digest.facts.number(name)) is not None and size >= n_ranks
    }
    return sorted({n_ranks, world_size(digests, said=said) or n_ranks, *launched})


def own_log(digests: Sequence[ReportDigest], log: NcclLog, said: int | None = None) -> NcclLog | None:
    """Return what NCCL logged of a run; None when the log is of another one."""
    pids = {process.pid for digest in digests for process in digest.processes}
    return log.of_run(pids, run_sizes(digests, said))


def stem_rank(path: str) -> int | None:
    """Return the number at the end of a file's name, or None."""
    match = _STEM_RANK.search(Path(path).stem)
    return int(match[1]) if match and len(match[1]) <= _MOST_DIGITS else None


def ranks_by_map(placed: Sequence[Rank], rank_map: Mapping[str, int]) -> list[int]:
    """Return the rank that a map gives to each process.

    `OptionError` if the map does not name every process, names another, or gives one number twice.
    """
    ranks, used = [], set()
    for one in placed:
        keys = _map_keys(source_of(Path(one.report.path)), None if one.is_alone else one.process.pid)
        key = next((key for key in keys if key in rank_map), None)
        if key is None:
            raise OptionError("--rank-map", f"gives no rank to {keys[0]}", fix=f'add "{keys[0]}=N"')
        used.add(key)
        if rank_map[key] in ranks:
            raise OptionError("--rank-map", f"gives rank {rank_map[key]} twice", fix="one number per rank")
        ranks.append(rank_map[key])
    if unused := sorted(set(rank_map) - used):
        raise OptionError("--rank-map", f"names {unused[0]}, which is not among the reports with GPU activity or steps")
    return ranks


def _map_keys(path: Path, pid: int | None) -> list[str]:
    """Return the names a rank map may use: stem, and every tail of the path; of several processes with ``:PID``.

    A raw report may be called by its export's name too: reports and maps are converted at different times.
    """
    names = [*_tails(path), path.stem, str(path)]
    if path.suffix != EXPORT_SUFFIX:
        names += _tails(path.with_suffix(EXPORT_SUFFIX))
    return names if pid is None else [f"{name}:{pid}" for name in names]


def _tails(path: Path) -> list[str]:
    return ["/".join(path.parts[-depth:]) for depth in range(1, len(path.parts) + 1)]


def parse_rank_map(text: str) -> dict[str, int]:
    """Read ``a.sqlite=0,b.sqlite=1``, or a file with one such pair per line; `OptionError` if it is neither."""
    if "=" not in text:
        try:
            text = Path(text).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise OptionError(
                f"--rank-map {text}", "neither pairs nor a readable file", fix='--rank-map "a.sqlite=0,b.sqlite=1"'
            ) from error
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    pairs = [pair.strip() for line in lines for pair in line.split(",") if pair.strip()]
    found: dict[str, int] = {}
    for pair in pairs:
        name, _, number = pair.rpartition("=")
        if not name or not re.fullmatch(r"\s*[0-9]{1,18}\s*", number):
            raise OptionError(
                f"--rank-map {pair}", "not of the form REPORT=RANK", fix='--rank-map "a.sqlite=0,b.sqlite=1"'
            )
        if name.strip() in found:
            raise OptionError("--rank-map", f"names {name.strip()} twice", fix="one rank per report")
        found[name.strip()] = int(number)
    return found
