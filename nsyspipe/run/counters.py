"""The hardware counters of each rank, and their table.

One nsys of a host counts for all GPUs. So a rank's counters can be in the report of another rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from msgspec import Struct

from nsyspipe.analysis.breakdown import kernel_times
from nsyspipe.analysis.counted_steps import LINK_NAMES
from nsyspipe.analysis.counters import (
    CounterKernels,
    Lag,
    LinkTraffic,
    Series,
    is_full_while_idle,
    joined,
    link_bandwidth,
    measure_lag,
)
from nsyspipe.analysis.intervals import IntervalSet, union
from nsyspipe.model import schema
from nsyspipe.model.link_rates import LinkRates, link_rates
from nsyspipe.model.names import PHASES
from nsyspipe.model.problems import Problem, problem
from nsyspipe.model.table import Float64, Int64
from nsyspipe.model.typed_tables import StepsTable
from nsyspipe.reader.facts import ReportFacts
from nsyspipe.reader.gpu_metrics import CLOCK, Counters, GpuCounters
from nsyspipe.reader.report import pid_of
from nsyspipe.run.digests import Rank, Ranks, ReportDigest, clock_shifts
from nsyspipe.run.process import ProcessDigest, ProcessEvents

_LINKS = ("nvlink_rx", "nvlink_tx", "pcie_rx", "pcie_tx")
_MEMORY = ("dram_read", "dram_write")
PERCENTS = ("sm_active", "tensor_active", *_MEMORY, *_LINKS)
_NVLINK = ("nvlink_rx", "nvlink_tx")
# The integral of 1 % over 1 s, in per cent x ns, times 100.
_PERCENT_NS_PER_S = 100 * 1_000_000_000
HZ_PER_MHZ = 1_000_000


class RankCounters(Struct, frozen=True):
    """The counters of the GPU of one rank, in aligned time, with the lag of their report."""

    series: dict[str, Series]
    lag_ns: int
    memory_bytes_per_s: int | None
    rates: LinkRates

    def rate(self, name: str) -> int | None:
        """Return the bytes/s that a counter calls 100 %. None if it is not known."""
        return self.memory_bytes_per_s if name in _MEMORY else self.rates.of_counter(name)

    def traffic(self, link: str) -> LinkTraffic | None:
        """Return what ``nvlink`` or ``pcie`` carries, None if that or its rate is not known."""
        received = self.series.get(f"{link}_rx")
        sent = self.series.get(f"{link}_tx")
        rate = self.rates.of_counter(link)
        if received is None or sent is None or rate is None:
            return None
        return LinkTraffic(received, sent, rate)


class CountedRanks(Struct, frozen=True):
    """The counters of a run: those of each rank that has any, by its number."""

    by_rank: dict[int, RankCounters]
    problems: tuple[Problem, ...] = ()


NO_COUNTERS = CountedRanks({})


def lag_of_report(
    counters: Counters, facts: ReportFacts, events: Iterable[ProcessEvents]
) -> Lag | None:
    """Find the lag of the counters of a report by the kernels of its own ranks.

    What the GPUs send on NVLink is compared with communication. Without such traffic, the activity
    of SMs is compared with compute.
    """
    gpus = {gpu.gpu_id: gpu for gpu in counters.gpus}
    sent: list[CounterKernels] = []
    active: list[CounterKernels] = []
    for rank in events:
        operations = rank.operations
        device = operations.devices[0] if operations.devices else None
        gpu_id = facts.gpu_id(pid_of(rank.process_id), device)
        gpu = gpus.get(gpu_id) if gpu_id is not None else None
        if gpu is None:
            continue
        is_comm = operations.is_comm
        if "nvlink_tx" in gpu.series:
            comm = kernel_times(operations, is_comm)
            sent.append(CounterKernels(gpu.series["nvlink_tx"], comm))
        if "sm_active" in gpu.series:
            compute = kernel_times(operations, ~is_comm)
            active.append(CounterKernels(gpu.series["sm_active"], compute))
    return measure_lag(sent) or measure_lag(active)


class CountedBandwidths(NamedTuple):
    """The counted bandwidth of operations, NaN if it is not known."""

    bytes_per_s: Float64
    # Index into `LINK_NAMES`.
    link: Int64


def counted_bandwidths(
    counted: CountedRanks, rank: Int64, starts: Int64, ends: Int64
) -> CountedBandwidths:
    """Return the counted bandwidth of operations: their ranks, and when they transfer.

    PCIe counts if NVLink carries nothing during an operation.
    """
    bandwidth = np.full(starts.size, np.nan)
    link = np.zeros(starts.size, np.int64)
    for number, counters in counted.by_rank.items():
        rows = np.flatnonzero(rank == number)
        for place in reversed(range(len(LINK_NAMES))):
            traffic = counters.traffic(LINK_NAMES[place])
            if traffic is None:
                continue
            of_link = link_bandwidth(traffic, starts[rows], ends[rows])
            is_first = np.isnan(bandwidth[rows])
            is_used = (of_link > 0) | is_first
            bandwidth[rows[is_used]] = of_link[is_used]
            link[rows[is_used]] = place
    return CountedBandwidths(bandwidth, link)


class _CountedGpu(NamedTuple):
    """The counters of a GPU in one report."""

    argument: int
    digest: ReportDigest
    gpu: GpuCounters

    @property
    def place(self) -> tuple[int, int]:
        """The argument of its report, and its GPU."""
        return self.argument, self.gpu.gpu_id

    @property
    def lag_ns(self) -> int:
        """The lag of its report, 0 if nothing shows it."""
        lag = self.digest.counters.lag
        return lag.lag_ns if lag else 0


def counted_ranks(digests: Sequence[ReportDigest], ranks: Ranks) -> CountedRanks:
    """Give each rank the counters of its GPU, from whichever report has them."""
    counted = list(_counted_gpus(digests))
    if not counted:
        return NO_COUNTERS
    shifts_ns = _shifts_of_reports(digests, ranks)
    by_rank: dict[int, RankCounters] = {}
    problems: list[Problem] = []
    used: set[tuple[int, int]] = set()
    for rank in ranks:
        gpus_of_rank = [gpu for gpu in counted if _is_gpu_of_rank(gpu, rank)]
        if not gpus_of_rank:
            continue
        used.update(gpu.place for gpu in gpus_of_rank)
        counters = _counters_of_rank(gpus_of_rank, shifts_ns)
        connected = _without_idle_links(counters, _comm_times(rank))
        if connected is not counters:
            problems.append(problem("idle-link-full", rank=rank.number))
        by_rank[rank.number] = connected
    problems += _problems_of_rates(counted, used)
    problems += _problems_of_unused(counted, used)
    return CountedRanks(by_rank, tuple(problems))


def count_counted_ranks(digests: Sequence[ReportDigest], ranks: Ranks) -> list[int]:
    """Return the number of ranks of each report whose GPU is counted, in any of the reports."""
    counted = list(_counted_gpus(digests))
    n_counted = [0] * len(digests)
    for rank in ranks:
        if any(_is_gpu_of(gpu, rank) for gpu in counted):
            n_counted[rank.argument] += 1
    return n_counted


def _shifts_of_reports(digests: Sequence[ReportDigest], ranks: Ranks) -> list[int]:
    """Return what turns the time of each report into aligned time."""
    shifts_ns = clock_shifts(digests)
    for rank in ranks:
        parts = rank.parts
        corrected_ns = rank.shift_ns - parts[0].shift_ns
        for part in parts:
            shifts_ns[part.argument] = part.shift_ns + corrected_ns
    return shifts_ns


def _counted_gpus(digests: Sequence[ReportDigest]) -> Iterator[_CountedGpu]:
    for argument, digest in enumerate(digests):
        for gpu in digest.counters.gpus:
            yield _CountedGpu(argument, digest, gpu)


def _is_gpu_of_rank(counted: _CountedGpu, rank: Rank[ProcessDigest]) -> bool:
    return any(_is_gpu_of(counted, part) for part in rank.parts)


def _is_gpu_of(counted: _CountedGpu, part: Rank[ProcessDigest]) -> bool:
    """Tell whether counters are those of the GPU of one capture of a rank.

    GPUs of different reports are the same if their UUIDs are. Without UUIDs, they are the same if
    they have the same place on the bus of the same host.
    """
    facts = part.report.facts
    gpu_id = facts.gpu_id(part.process.pid, part.process.device_id)
    if gpu_id is None:
        return False
    if counted.argument == part.argument:
        return counted.gpu.gpu_id == gpu_id
    identity = facts.gpu_identities.get(gpu_id)
    if identity is None:
        return False
    counted_identity = counted.gpu.identity
    if identity.uuid and counted_identity.uuid:
        return identity.uuid == counted_identity.uuid
    is_same_host = facts.host is not None and facts.host == counted.digest.facts.host
    has_bus = bool(identity.bus_location)
    is_same_place = identity.bus_location == counted_identity.bus_location
    return is_same_host and has_bus and is_same_place


def _counters_of_rank(counted: Sequence[_CountedGpu], shifts_ns: Sequence[int]) -> RankCounters:
    series: dict[str, list[Series]] = {}
    for counted_gpu in counted:
        shift_ns = shifts_ns[counted_gpu.argument] + counted_gpu.lag_ns
        moved = _moved(counted_gpu.gpu.series, shift_ns)
        for name, moved_series in moved.items():
            series.setdefault(name, []).append(moved_series)
    first = counted[0]
    return RankCounters(
        series={name: joined(parts) for name, parts in series.items()},
        lag_ns=first.lag_ns,
        memory_bytes_per_s=first.gpu.memory_bytes_per_s,
        rates=link_rates(first.gpu.model),
    )


def _moved(series: Mapping[str, Series], by_ns: int) -> dict[str, Series]:
    """Return samples later by some time. Counters that share their times still do."""
    times: dict[int, Int64] = {}
    moved = {}
    for name, each in series.items():
        key = id(each.times)
        if key not in times:
            times[key] = each.times + by_ns
        moved[name] = Series(times[key], each.values)
    return moved


def _comm_times(rank: Rank[ProcessDigest]) -> IntervalSet:
    """Return when a rank communicates, in aligned time."""
    table = rank.process.comm.table
    if "start_ns" not in table.column_names:
        nothing = np.empty(0, np.int64)
        return IntervalSet(nothing, nothing)
    starts = table["start_ns"].to_numpy() + rank.shift_ns
    ends = table["end_ns"].to_numpy() + rank.shift_ns
    return union(starts, ends)


def _without_idle_links(counters: RankCounters, comm: IntervalSet) -> RankCounters:
    """Leave out NVLink if it reads full while nothing communicates."""
    links = [counters.series[name] for name in _NVLINK if name in counters.series]
    if not any(is_full_while_idle(link, comm) for link in links):
        return counters
    series = {name: each for name, each in counters.series.items() if name not in _NVLINK}
    return RankCounters(series, counters.lag_ns, counters.memory_bytes_per_s, counters.rates)


def _problems_of_rates(
    counted: Iterable[_CountedGpu], used: set[tuple[int, int]]
) -> Iterator[Problem]:
    models = set()
    for counted_gpu in counted:
        gpu = counted_gpu.gpu
        has_links = not gpu.series.keys().isdisjoint(_LINKS)
        rates = link_rates(gpu.model)
        is_unknown = rates.nvlink_bytes_per_s is None or rates.pcie_bytes_per_s is None
        if counted_gpu.place in used and has_links and is_unknown:
            models.add(gpu.model or "of an unknown model")
    for model in sorted(models):
        yield problem("link-rate-unknown", model=model)


def _problems_of_unused(
    counted: Sequence[_CountedGpu], used: set[tuple[int, int]]
) -> Iterator[Problem]:
    if not used:
        yield problem("counters-of-unknown-gpu", n=len(counted))


class _Windows(NamedTuple):
    """Windows of one rank, and the row of the table that each belongs to."""

    row: Int64
    starts: Int64
    ends: Int64

    def followed_by(self, windows: _Windows, n_rows: int) -> _Windows:
        """Return these windows, which have some rows, and others, whose rows come after those."""
        row = np.concatenate([self.row, windows.row + n_rows])
        starts = np.concatenate([self.starts, windows.starts])
        ends = np.concatenate([self.ends, windows.ends])
        return _Windows(row, starts, ends)


def _windows_of(steps: StepsTable) -> _Windows:
    starts = steps["start_ns"].to_numpy()
    ends = steps["end_ns"].to_numpy()
    return _Windows(np.arange(steps.num_rows), starts, ends)


def counters_table(counted: CountedRanks, ranks: Ranks, steps: StepsTable) -> pa.Table:
    """Return `schema.COUNTERS`: a row per rank and step, and per phase of it."""
    tables = [schema.COUNTERS.empty()]
    step_rank = steps["rank"].to_numpy()
    for rank in ranks:
        counters = counted.by_rank.get(rank.number)
        if counters is None:
            continue
        own_steps = steps.filter(pa.array(step_rank == rank.number))
        tables.append(_table_of_rank(rank, counters, own_steps))
    joined_table: pa.Table = pa.concat_tables(tables)
    return joined_table


def _table_of_rank(
    rank: Rank[ProcessDigest], counters: RankCounters, steps: StepsTable
) -> pa.Table:
    phases = _phases_of_rank(rank)
    n_steps = steps.num_rows
    n_rows = n_steps + len(phases.names)
    windows = _windows_of(steps).followed_by(phases.windows, n_steps)
    columns = _measure(counters, windows, n_rows)
    columns["rank"] = np.full(n_rows, rank.number)
    columns["step"] = np.concatenate([steps["step"].to_numpy(), phases.step])
    columns["phase"] = pa.array([None] * n_steps + phases.names, pa.string())
    columns["lag_ns"] = np.full(n_rows, counters.lag_ns)
    table = schema.COUNTERS.table(columns)
    order = [("step", "ascending"), ("phase", "ascending")]
    ordered: pa.Table = table.sort_by(order)
    return ordered


class _Phases(NamedTuple):
    """The phases of the steps of one rank."""

    step: Int64
    names: list[str]
    # Their rows are places in `step`.
    windows: _Windows


def _phases_of_rank(rank: Rank[ProcessDigest]) -> _Phases:
    """Return when the phases of each step run, in aligned time."""
    stretches = rank.process.stretches
    key = rank.steps[stretches.member] * len(PHASES) + stretches.phase
    keys, row = np.unique(key, return_inverse=True)
    names = [PHASES[code] for code in (keys % len(PHASES)).tolist()]
    starts_ns = stretches.starts + rank.shift_ns
    ends_ns = stretches.ends + rank.shift_ns
    return _Phases(keys // len(PHASES), names, _Windows(row, starts_ns, ends_ns))


def _measure(counters: RankCounters, windows: _Windows, n_rows: int) -> dict[str, Any]:
    """Return the columns of counters in windows that are grouped by row."""
    columns: dict[str, Any] = {}
    window_ns = np.zeros(n_rows, np.int64)
    np.add.at(window_ns, windows.row, windows.ends - windows.starts)
    columns["window_ns"] = window_ns
    least_sampled_ns = window_ns.copy()
    nothing = pa.nulls(n_rows)
    for name in PERCENTS:
        series = counters.series.get(name)
        integral_ns = sampled_ns = None
        if series is not None:
            integral_ns, sampled_ns = _sums(series, windows, n_rows)
            least_sampled_ns = np.minimum(least_sampled_ns, sampled_ns)
        mean = nothing if sampled_ns is None else _means(integral_ns, sampled_ns)
        columns[f"{name}_percent"] = mean
        if name in _MEMORY or name in _LINKS:
            n_bytes = _bytes_of(integral_ns, counters.rate(name), n_rows)
            columns[f"{name}_bytes"] = _where_sampled(n_bytes, sampled_ns)
            columns[f"{name}_bytes_per_s"] = _rates(n_bytes, sampled_ns)
    clock = counters.series.get(CLOCK)
    columns["gpc_clock_hz"] = nothing
    if clock is not None:
        integral_ns, sampled_ns = _sums(clock, windows, n_rows)
        columns["gpc_clock_hz"] = _means(integral_ns * 1.0 * HZ_PER_MHZ, sampled_ns)
        least_sampled_ns = np.minimum(least_sampled_ns, sampled_ns)
    columns["sampled_ns"] = least_sampled_ns
    columns["sampled_ratio"] = _means(least_sampled_ns, window_ns)
    return columns


def _sums(series: Series, windows: _Windows, n_rows: int) -> tuple[Int64, Int64]:
    """Return the integral of a counter over the windows of each row, and their sampled time."""
    integral_ns = np.zeros(n_rows, np.int64)
    sampled_ns = np.zeros(n_rows, np.int64)
    np.add.at(integral_ns, windows.row, series.integrals(windows.starts, windows.ends))
    np.add.at(sampled_ns, windows.row, series.sampled_ns(windows.starts, windows.ends))
    return integral_ns, sampled_ns


def _means(sums: Any, durations_ns: Int64) -> pa.Array:  # noqa: ANN401 - integers or floats
    """Return sums divided by durations, null where a duration is 0."""
    is_empty = durations_ns == 0
    means = sums / np.where(is_empty, 1, durations_ns)
    return pa.array(means, pa.float64(), mask=is_empty)


def bytes_of_integral(integral_percent_ns: int, bytes_per_s: int) -> int:
    """Return the bytes of an integral of per cent x ns at a rate that is 100 %, rounded down."""
    return integral_percent_ns * bytes_per_s // _PERCENT_NS_PER_S


def _bytes_of(integral_ns: Int64 | None, rate: int | None, n_rows: int) -> list[int | None]:
    if integral_ns is None or rate is None:
        return [None] * n_rows
    return [bytes_of_integral(each, rate) for each in integral_ns.tolist()]


def _where_sampled(n_bytes: list[int | None], sampled_ns: Int64 | None) -> pa.Array:
    if sampled_ns is None:
        return pa.array(n_bytes, pa.int64())
    known = [each if ns else None for each, ns in zip(n_bytes, sampled_ns.tolist(), strict=True)]
    return pa.array(known, pa.int64())


def _rates(n_bytes: list[int | None], sampled_ns: Int64 | None) -> pa.Array:
    if sampled_ns is None:
        return pa.nulls(len(n_bytes))
    per_s = []
    for each, ns in zip(n_bytes, sampled_ns.tolist(), strict=True):
        is_known = each is not None and ns > 0
        per_s.append(each * 1e9 / ns if is_known and each is not None else None)
    return pa.array(per_s, pa.float64())
