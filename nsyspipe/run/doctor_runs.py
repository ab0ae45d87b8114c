"""What only all reports together can answer: which ranks, of how many, on one clock, connected by what."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nsyspipe.analysis.links import links, slowest
from nsyspipe.model.problems import CATALOGUE
from nsyspipe.run.doctor_rules import NO, PARTLY, YES, Finding
from nsyspipe.run.placing import place, place_hosts, world_size
from nsyspipe.run.ranks import launcher_size, rank_sources, ranks_by_map
from nsyspipe.run.sidecars import NOTHING_CAPTURED

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from nsyspipe.model.fabric import NcclLog, Topology
    from nsyspipe.run.doctor_rules import Examined
    from nsyspipe.run.placing import PlacedHost, PlacedProcess
    from nsyspipe.run.sidecars import Captured


_SHOWN_RANKS = 8
_ALONE = "the other ranks' reports are missing"
_ONE_RUN = "pass the reports of one run, each once"


_LOG = "run with NCCL_DEBUG=INFO and pass --nccl-log FILE"
_TOPOLOGY = "nvidia-smi topo -m > topo.txt and --topology topo.txt"
# Direct access is over NVLink or PCIe, which the topology tells.
_UNCLEAR_KINDS = {"p2p", "unknown"}


@dataclass(frozen=True)
class Beside:
    """What lies beside the reports; None is "neither given nor named by a sidecar"."""

    rank_map: Mapping[str, int] | None = None
    log: NcclLog | None = None
    topology: Topology | None = None
    captured: Captured = NOTHING_CAPTURED


# What each source of ranks is called.
_SOURCES = {
    "sidecar": "the capture's sidecar",
    "nccl_payload": "NCCL's payload",
    "nvtx_mpi": "MPI's thread names",
    "file_name": "file names",
}


def placed_of(reports: Sequence[Examined]) -> list[PlacedProcess] | list[PlacedHost]:
    """Return the processes that are ranks, as the analysis has them."""
    digests = [one.digest for one in reports]
    return place(digests) or place_hosts(digests)


def _ranks(reports: Sequence[Examined], beside: Beside) -> list[Finding]:
    """Tell the source that numbers all ranks: the first that names each, and no two alike, as in analysis.

    Raises
    ------
    OptionError
        If a rank map does not fit the reports.
    """
    without = Finding(NO, text="no GPU activity", fix=CATALOGUE["no-gpu-activity"].fix)
    placed = placed_of(reports)
    if beside.rank_map is None:
        best = _numbered(placed, beside.captured)
    else:
        processes = [(one.report.path, None if one.is_alone else one.process.pid) for one in placed]
        numbers = ranks_by_map(processes, beside.rank_map)
        best = Finding(YES, text=f"{_listed(numbers)} from --rank-map")
    return [best if report.n_processes else without for report in reports]


def _numbered(placed: Sequence[PlacedProcess | PlacedHost], captured: Captured) -> Finding:
    best = Finding(PARTLY, text="nothing names them", fix=CATALOGUE["rank-by-order"].fix)
    for source, found in rank_sources(placed, captured):
        numbers = [number for number in found if number is not None]
        if len(numbers) < len(placed):
            continue
        name = _SOURCES.get(source, source.removeprefix("env:"))
        repeated = sorted(number for number, n in Counter(numbers).items() if n > 1)
        if not repeated:
            best = Finding(YES, text=f"{_listed(numbers)} from {name}")
            break
        if best.text == "nothing names them":
            text = f"rank {repeated[0]} is there {numbers.count(repeated[0])} times in {name}"
            best = Finding(PARTLY, text=text, fix=_ONE_RUN)
    if len(placed) == 1 and best.status != YES:
        best = Finding(YES, text="only one")
    return best


def launched_size(reports: Sequence[Examined], captured: Captured) -> int | None:
    """Return how many ranks the launcher started that numbered them; None if another source did."""
    placed = placed_of(reports)
    for source, found in rank_sources(placed, captured):
        numbers = [number for number in found if number is not None]
        if placed and len(numbers) == len(set(numbers)) == len(placed):
            return launcher_size(placed, numbers, source)
    return None


def _world_size(reports: Sequence[Examined], beside: Beside) -> list[Finding]:
    said, launched = beside.captured.world_size, launched_size(reports, beside.captured)
    sizes = [world_size([one.digest], None, said, launched) for one in reports]
    known = sorted({size for size in sizes if size is not None})
    n_ranks = sum(report.n_processes for report in reports)
    if len(known) > 1:
        here = Finding(PARTLY, text=f"{_listed(known)} in different reports", fix=_ONE_RUN)
    elif known and n_ranks < known[0]:
        text = f"{known[0]}, of which {n_ranks} in these reports"
        here = Finding(PARTLY, text=text, fix=CATALOGUE["ranks-missing"].fix)
    else:
        here = Finding(YES, text=_listed(known))
    fix = "capture under torchrun with nsys 2023.3 or newer, which records WORLD_SIZE"
    absent = Finding(NO, text="not recorded", fix=fix)
    return [absent if size is None else here for size in sizes]


def _size_of(report: Examined) -> int | None:
    return world_size([report.digest])


def _one_clock(reports: Sequence[Examined], _: Beside) -> list[Finding]:
    hosts = {report.facts.host for report in reports if report.facts.host}
    text = "session starts" if len(reports) > 1 else "session start"
    if len(hosts) > 1:
        text += f", on {len(hosts)} hosts whose clocks may differ"
    there = Finding(YES, text=text)
    absent = Finding(NO, text="no session start", fix=CATALOGUE["no-session-start"].fix)
    if _is_alone_of_several(reports):
        there = Finding(NO, text=_ALONE, fix=CATALOGUE["ranks-missing"].fix)
    elif any(
        one.digest.n_graphs and (one.is_several or one.digest.has_communication) for one in reports
    ):
        text = "communication inside CUDA graphs is not seen"
        there = Finding(NO, text=text, fix=CATALOGUE["comm-in-graphs"].fix)
    return [absent if one.facts.session_start_utc_ns is None else there for one in reports]


def _link(reports: Sequence[Examined], beside: Beside) -> list[Finding]:
    """Tell what is known of the slowest link; between GPUs that reach each other that takes both files."""
    found = Finding(YES, text="one rank") if _is_one_rank(reports) else _known_link(reports, beside)
    if _is_alone_of_several(reports) and found.status != NO:
        found = Finding(NO, text=_ALONE, fix=CATALOGUE["ranks-missing"].fix)
    return [found] * len(reports)


def _is_alone_of_several(reports: Sequence[Examined]) -> bool:
    """Tell whether one rank alone is there of a job that is known to have had more."""
    n_ranks = sum(report.n_processes for report in reports)
    return n_ranks == 1 and any(report.is_several for report in reports)


def _is_one_rank(reports: Sequence[Examined]) -> bool:
    sizes = [size for size in map(_size_of, reports) if size is not None]
    n_ranks = max([sum(report.n_processes for report in reports), *sizes])
    # A report alone that communicates may be one of many, unless it says how many there are.
    return n_ranks == 1 and (bool(sizes) or not any(report.n_comm for report in reports))


def _known_link(reports: Sequence[Examined], beside: Beside) -> Finding:
    log, topology = beside.log, beside.topology
    if log is None and topology is None:
        text = "neither NCCL's log nor the topology"
        return Finding(NO, text=text, fix=f"{_LOG}; {_TOPOLOGY}")
    pids = [pid for report in reports for pid in report.pids]
    n_ranks = sum(report.n_processes for report in reports)
    if log is not None and log.of_run(pids, {n_ranks, *map(_size_of, reports)}) is None:
        return Finding(
            NO, text="the log is of another run", fix=CATALOGUE["log-of-another-run"].fix
        )
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


# Name, what one gets, and what each report contributes.
RUN_RULES: tuple[tuple[str, str, Callable[[Sequence[Examined], Beside], list[Finding]]], ...] = (
    ("ranks", "which report is which rank", _ranks),
    ("world_size", "whether ranks are missing", _world_size),
    ("one_clock", "who waits for whom across ranks", _one_clock),
    ("link", "what connects the ranks, and its bandwidth", _link),
)
