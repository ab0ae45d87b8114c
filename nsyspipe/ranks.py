"""Which process is which rank: the first source that numbers them all."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from nsyspipe import schema
from nsyspipe.captured import NOTHING_CAPTURED
from nsyspipe.errors import OptionError
from nsyspipe.one_run import check_one_run
from nsyspipe.problems import Problem, problem
from nsyspipe.read.discover import EXPORT_SUFFIX, source_of
from nsyspipe.read.facts import LAUNCHER_SIZES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa

    from nsyspipe.captured import Captured
    from nsyspipe.cross_rank import CrossRank
    from nsyspipe.digest import ReportDigest
    from nsyspipe.placing import PlacedHost, PlacedProcess

__all__ = [
    "launcher_size",
    "number_ranks",
    "parse_rank_map",
    "rank_sources",
    "ranks_by_map",
    "ranks_table",
]

_ENVIRONMENT = "env:"
_MOST_DIGITS = 18
_STEM_RANK = re.compile(r"(?i)(?:rank|[._-])(\d+)$")


def number_ranks(
    digests: Sequence[ReportDigest],
    placed: Sequence[PlacedProcess | PlacedHost],
    rank_map: Mapping[str, int] | None,
    captured: Captured = NOTHING_CAPTURED,
) -> tuple[list[int], str, list[Problem]]:
    """Give each rank its number, from the first source that numbers every one, all different.

    Sources: the rank map; captured ``RANK``; the capture's sidecar; ``OMPI_COMM_WORLD_RANK``, ``PMI_RANK``,
    ``PMIX_RANK``, ``SLURM_PROCID``, each by itself, since they may contradict each other; NCCL's payload, which knows a
    rank in a communicator only; MPI's thread names; the file's stem; order.

    Returns
    -------
    tuple
        Rank of each process, the source, and problems worth a row.

    Raises
    ------
    RankConflictError
        If two reports cannot be of one run (not asked when a rank map is given).
    OptionError
        If the rank map does not name every report, or gives one number twice.
    """
    if rank_map is not None:
        processes = [(one.report.path, None if one.is_alone else one.process.pid) for one in placed]
        return ranks_by_map(processes, rank_map), "rank_map", []
    check_one_run(digests, placed, captured)
    for source, numbers in rank_sources(placed, captured):
        given = [number for number in numbers if number is not None]
        if len(given) == len(numbers) and len(set(given)) == len(given):
            return given, source, []
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
    captured: Captured = NOTHING_CAPTURED,
    *,
    is_comm_in_graphs: bool = False,
) -> pa.Table:
    """Return `schema.RANKS`.

    Parameters
    ----------
    ranks
        Rank numbers in ascending order.
    source
        Where they come from.
    names
        What to call each report.
    captured
        What sidecars say.
    is_comm_in_graphs
        Whether CUDA graphs that were captured as a whole may hold communication. What they hold is not counted: null.
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


def _local_rank(placed: PlacedProcess, captured: Captured) -> int | None:
    """Return the captured LOCAL_RANK, which of several processes none has, else what the sidecar says."""
    recorded = placed.report.facts.number("LOCAL_RANK") if placed.is_alone else None
    said = captured.rank_of(placed.argument, placed.process.pid, is_alone=placed.is_alone)
    return said.local_rank if recorded is None and said else recorded


def _order_key(placed: PlacedProcess | PlacedHost) -> tuple[int, int, int]:
    device = placed.process.device_id
    return placed.argument, -1 if device is None else device, placed.process.process_id


def rank_sources(
    placed: Sequence[PlacedProcess | PlacedHost], captured: Captured = NOTHING_CAPTURED
) -> Iterator[tuple[str, list[int | None]]]:
    """Yield each source of rank numbers but the rank map and order, with what it says of each process; None for nothing.

    The environment is that of the program that was launched: it names a process only if that is alone in its report.
    """

    def captured_numbers(variable: str) -> tuple[str, list[int | None]]:
        numbers = [one.report.facts.number(variable) if one.is_alone else None for one in placed]
        return f"{_ENVIRONMENT}{variable}", numbers

    yield captured_numbers("RANK")
    said = [
        captured.rank_of(one.argument, one.process.pid, is_alone=one.is_alone) for one in placed
    ]
    yield "sidecar", [one.rank if one else None for one in said]
    for variable in LAUNCHER_SIZES:
        yield captured_numbers(variable)
    comm_ranks = [one.report.comm_ranks.get(one.process.process_id) for one in placed]
    yield "nccl_payload", [comm.rank if comm else None for comm in comm_ranks]
    yield "nvtx_mpi", [one.report.mpi_ranks.get(one.process.process_id) for one in placed]
    yield "file_name", [stem_rank(one.report.path) if one.is_alone else None for one in placed]


def launcher_size(
    placed: Sequence[PlacedProcess | PlacedHost], ranks: Sequence[int], source: str
) -> int | None:
    """Return how many ranks the launcher started that numbered them; None if another source did, or it cannot be.

    A size that differs between reports, or has no room for the ranks that are there, is none.
    """
    variable = LAUNCHER_SIZES.get(source.removeprefix(_ENVIRONMENT))
    sizes = {one.report.facts.number(variable) for one in placed} if variable else set()
    size = sizes.pop() if len(sizes) == 1 else None
    return size if size is not None and size > max(ranks, default=0) else None


def stem_rank(path: str) -> int | None:
    """Return the number at the end of a file's name, or None."""
    match = _STEM_RANK.search(Path(path).stem)
    return int(match[1]) if match and len(match[1]) <= _MOST_DIGITS else None


def ranks_by_map(
    processes: Sequence[tuple[str, int | None]], rank_map: Mapping[str, int]
) -> list[int]:
    """Return the rank that a map gives to each process.

    Parameters
    ----------
    processes
        Path of the report, and the pid where the report has several processes.

    Raises
    ------
    OptionError
        If the map does not name every process, names another, or gives one number twice.
    """
    ranks, used = [], set()
    for path, pid in processes:
        keys = _map_keys(source_of(Path(path)), pid)
        key = next((key for key in keys if key in rank_map), None)
        if key is None:
            raise OptionError("--rank-map", f"gives no rank to {keys[0]}", fix=f'add "{keys[0]}=N"')
        used.add(key)
        if rank_map[key] in ranks:
            raise OptionError(
                "--rank-map", f"gives rank {rank_map[key]} twice", fix="one number per rank"
            )
        ranks.append(rank_map[key])
    if unused := sorted(set(rank_map) - used):
        raise OptionError(
            "--rank-map",
            f"names {unused[0]}, which is not among the reports with GPU activity or steps",
        )
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
    """Read ``a.sqlite=0,b.sqlite=1``, or a file with one such pair per line.

    Raises
    ------
    OptionError
        If it is neither.
    """
    if "=" not in text:
        try:
            text = Path(text).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise OptionError(
                f"--rank-map {text}",
                "neither pairs nor a readable file",
                fix='--rank-map "a.sqlite=0,b.sqlite=1"',
            ) from error
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    pairs = [pair.strip() for line in lines for pair in line.split(",") if pair.strip()]
    found: dict[str, int] = {}
    for pair in pairs:
        name, _, number = pair.rpartition("=")
        if not name or not re.fullmatch(r"\s*[0-9]{1,18}\s*", number):
            raise OptionError(
                f"--rank-map {pair}",
                "not of the form REPORT=RANK",
                fix='--rank-map "a.sqlite=0,b.sqlite=1"',
            )
        if name.strip() in found:
            raise OptionError(
                "--rank-map", f"names {name.strip()} twice", fix="one rank per report"
            )
        found[name.strip()] = int(number)
    return found
