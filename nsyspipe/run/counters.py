"""The hardware counters of each rank, and their table.

One nsys of a host counts for all GPUs. So a rank's counters can be in the report of another rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

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
    """Find how late the counters of a report are, by the kernels of the report's own ranks.

    What the GPUs send on NVLink is compared with communication kernels. If that shows no lag, the
    activity of SMs is compared with compute kernels. None if neither shows a lag.
    """
    gpu_of_id = {gpu.gpu_id: gpu for gpu in counters.gpus}
    sent_in_comm: list[CounterKernels] = []
    active_in_compute: list[CounterKernels] = []
    for rank in events:
        operations = rank.operations
        device = operations.devices[0] if operations.devices else None
        gpu_id = facts.gpu_id(pid_of(rank.process_id), device)
        gpu = gpu_of_id.get(gpu_id) if gpu_id is not None else None
        if gpu is None:
            continue
        is_comm = operations.is_comm
        if "nvlink_tx" in gpu.series:
            comm = kernel_times(operations, is_comm)
            sent_in_comm.append(CounterKernels(gpu.series["nvlink_tx"], comm))
        if "sm_active" in gpu.series:
            compute = kernel_times(operations, ~is_comm)
            active_in_compute.append(CounterKernels(gpu.series["sm_active"], compute))
    return measure_lag(sent_in_comm) or measure_lag(active_in_compute)


class CountedBandwidths(NamedTuple):
    """The counted bandwidth of operations, NaN if it is not known."""

    bytes_per_s: Float64
    # Index into `LINK_NAMES`.
    link: Int64


def counted_bandwidths(
    counted: CountedRanks, rank: Int64, starts: Int64, ends: Int64
) -> CountedBandwidths:
    """Return the counted bandwidth of operations, and the link that was counted.

    `rank` has the rank of each operation. `starts` and `ends` are when each transfers. NVLink comes
    before PCIe in `LINK_NAMES`. So PCIe is used only for operations during which NVLink carries
    nothing or was not counted.
    """
    bandwidth = np.full(starts.size, np.nan)
    link = np.zeros(starts.size, np.int64)
    for number, counters in counted.by_rank.items():
        operations = np.flatnonzero(rank == number)
        # A link with traffic replaces the links behind it in `LINK_NAMES`. So the last is first.
        for link_index in reversed(range(len(LINK_NAMES))):
            traffic = counters.traffic(LINK_NAMES[link_index])
            if traffic is None:
                continue
            link_bytes_per_s = link_bandwidth(traffic, starts[operations], ends[operations])
            has_traffic = link_bytes_per_s > 0
            has_no_link_yet = np.isnan(bandwidth[operations])
            is_used = has_traffic | has_no_link_yet
            bandwidth[operations[is_used]] = link_bytes_per_s[is_used]
            link[operations[is_used]] = link_index
    return CountedBandwidths(bytes_per_s=bandwidth, link=link)


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
    """Give each rank the counters of its GPU, from all reports that have them."""
    counted = list(_counted_gpus(digests))
    if not counted:
        return NO_COUNTERS
    shifts_ns = _shifts_of_reports(digests, ranks)
    by_rank: dict[int, RankCounters] = {}
    problems: list[Problem] = []
    # The places of the counted GPUs that a rank uses.
    used_places: set[tuple[int, int]] = set()
    for rank in ranks:
        gpus_of_rank = [gpu for gpu in counted if _is_gpu_of_rank(gpu, rank)]
        if not gpus_of_rank:
            continue
        used_places.update(gpu.place for gpu in gpus_of_rank)
        counters = _counters_of_rank(gpus_of_rank, shifts_ns)
        if _is_nvlink_full_while_idle(counters, _comm_times(rank)):
            problems.append(problem("idle-link-full", rank=rank.number))
            by_rank[rank.number] = _without_nvlink(counters)
        else:
            by_rank[rank.number] = counters
    problems += _problems_of_rates(counted, used_places)
    problems += _problems_of_unused(counted, used_places)
    return CountedRanks(by_rank, tuple(problems))


def count_counted_ranks(digests: Sequence[ReportDigest], ranks: Ranks) -> list[int]:
    """Return for each report how many of its ranks have a GPU with hardware counters.

    The counters of a GPU may be in any of the reports.
    """
    counted = list(_counted_gpus(digests))
    n_counted = [0] * len(digests)
    for rank in ranks:
        if any(_is_gpu_of(gpu, rank) for gpu in counted):
            n_counted[rank.argument] += 1
    return n_counted


def _shifts_of_reports(digests: Sequence[ReportDigest], ranks: Ranks) -> list[int]:
    """Return what is added to the times of each report to get aligned time.

    The clock of a report with ranks was corrected too. The shift has this correction.
    """
    shifts_ns = clock_shifts(digests)
    for rank in ranks:
        # A rank with several captures has the shift of its first capture. If the rank was corrected
        # after its captures were joined, the correction holds for all of them.
        captures = rank.parts
        correction_ns = rank.shift_ns - captures[0].shift_ns
        for capture in captures:
            shifts_ns[capture.argument] = capture.shift_ns + correction_ns
    return shifts_ns


def _counted_gpus(digests: Sequence[ReportDigest]) -> Iterator[_CountedGpu]:
    """Yield the GPUs with hardware counters in each report."""
    for argument, digest in enumerate(digests):
        for gpu in digest.counters.gpus:
            yield _CountedGpu(argument, digest, gpu)


def _is_gpu_of_rank(counted: _CountedGpu, rank: Rank[ProcessDigest]) -> bool:
    return any(_is_gpu_of(counted, part) for part in rank.parts)


def _is_gpu_of(counted: _CountedGpu, part: Rank[ProcessDigest]) -> bool:
    """Tell whether counters are those of the GPU of one capture of a rank.

    In one report, GPUs are the same if they have the same ID. GPUs of different reports are the
    same if they have the same UUID. Without UUIDs, they are the same if they have the same place on
    the bus of the same host.
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
    is_place_known = bool(identity.bus_location)
    is_same_place = identity.bus_location == counted_identity.bus_location
    return is_same_host and is_place_known and is_same_place


def _counters_of_rank(counted: Sequence[_CountedGpu], shifts_ns: Sequence[int]) -> RankCounters:
    """Return the counters of one GPU, joined over the reports that have some of them.

    `counted` has the GPU in each of these reports. `shifts_ns` has for each report of the run what
    is added to its times to get aligned time. The lag and the rates are those of the first report.
    """
    parts_of_series: dict[str, list[Series]] = {}
    for counted_gpu in counted:
        shift_ns = shifts_ns[counted_gpu.argument] + counted_gpu.lag_ns
        moved = _moved(counted_gpu.gpu.series, shift_ns)
        for name, moved_series in moved.items():
            parts_of_series.setdefault(name, []).append(moved_series)
    first = counted[0]
    return RankCounters(
        series={name: joined(parts) for name, parts in parts_of_series.items()},
        lag_ns=first.lag_ns,
        memory_bytes_per_s=first.gpu.memory_bytes_per_s,
        rates=link_rates(first.gpu.model),
    )


def _moved(series: Mapping[str, Series], by_ns: int) -> dict[str, Series]:
    """Return series of samples that are later by some ns.

    Series that share one array of times still share one, because it takes much memory.
    """
    moved_times: dict[int, Int64] = {}
    moved_series = {}
    for name, each in series.items():
        key = id(each.times)
        if key not in moved_times:
            moved_times[key] = each.times + by_ns
        moved_series[name] = Series(moved_times[key], each.values)
    return moved_series


def _comm_times(rank: Rank[ProcessDigest]) -> IntervalSet:
    """Return when a rank communicates, in aligned time. Never if that was not recorded."""
    table = rank.process.comm.table
    is_recorded = "start_ns" in table.column_names
    if not is_recorded:
        nothing = np.empty(0, np.int64)
        return IntervalSet(nothing, nothing)
    starts = table["start_ns"].to_numpy() + rank.shift_ns
    ends = table["end_ns"].to_numpy() + rank.shift_ns
    return union(starts, ends)


def _is_nvlink_full_while_idle(counters: RankCounters, comm: IntervalSet) -> bool:
    """Tell whether a counter of NVLink shows full use while nothing communicates."""
    links = [counters.series[name] for name in _NVLINK if name in counters.series]
    return any(is_full_while_idle(link, comm) for link in links)


def _without_nvlink(counters: RankCounters) -> RankCounters:
    """Leave out the counters of NVLink."""
    series = {name: each for name, each in counters.series.items() if name not in _NVLINK}
    return replace(counters, series=series)


def _problems_of_rates(
    counted: Iterable[_CountedGpu], used_places: set[tuple[int, int]]
) -> Iterator[Problem]:
    """Yield the models of used GPUs whose links are counted, but have an unknown rate."""
    models = set()
    for counted_gpu in counted:
        gpu = counted_gpu.gpu
        is_used = counted_gpu.place in used_places
        has_links = not gpu.series.keys().isdisjoint(_LINKS)
        rates = link_rates(gpu.model)
        is_rate_unknown = rates.nvlink_bytes_per_s is None or rates.pcie_bytes_per_s is None
        if is_used and has_links and is_rate_unknown:
            models.add(gpu.model or "of an unknown model")
    for model in sorted(models):
        yield problem("link-rate-unknown", model=model)


def _problems_of_unused(
    counted: Sequence[_CountedGpu], used_places: set[tuple[int, int]]
) -> Iterator[Problem]:
    """Yield the problem that no counted GPU is that of a rank."""
    if not used_places:
        yield problem("counters-of-unknown-gpu", n=len(counted))


class _Windows(NamedTuple):
    """Windows of one rank, and the row of the table that each belongs to.

    A row may have several windows, such as the stretches of a phase.
    """

    row: Int64
    starts: Int64
    ends: Int64

    def followed_by(self, windows: _Windows, n_rows: int) -> _Windows:
        """Return these windows, which have `n_rows` rows, and behind them other windows.

        The rows of the other windows count on from `n_rows`.
        """
        row = np.concatenate([self.row, windows.row + n_rows])
        starts = np.concatenate([self.starts, windows.starts])
        ends = np.concatenate([self.ends, windows.ends])
        return _Windows(row, starts, ends)


def _windows_of(steps: StepsTable) -> _Windows:
    """Return the windows of some steps, each with its own row."""
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
    """Return `schema.COUNTERS` of one rank. `steps` are the rank's rows of `schema.STEPS`."""
    phases = _phases_of_rank(rank)
    n_steps = steps.num_rows
    # The rows of the steps, then those of the phases.
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
    """The phases of the steps of one rank, one for each pair of step and phase that exists."""

    step: Int64
    names: list[str]
    # Their rows are indices into `step` and `names`.
    windows: _Windows


def _phases_of_rank(rank: Rank[ProcessDigest]) -> _Phases:
    """Return when the phases of each step run, in aligned time.

    A stretch is a time in which one phase runs. Its row is that of its step and phase.
    """
    stretches = rank.process.stretches
    step_of_stretch = rank.steps[stretches.member]
    # One number for each pair of a step and a phase.
    pair_of_stretch = step_of_stretch * len(PHASES) + stretches.phase
    pairs, row_of_stretch = np.unique(pair_of_stretch, return_inverse=True)
    step_of_pair, phase_of_pair = np.divmod(pairs, len(PHASES))
    names = [PHASES[phase] for phase in phase_of_pair.tolist()]
    starts_ns = stretches.starts + rank.shift_ns
    ends_ns = stretches.ends + rank.shift_ns
    return _Phases(step_of_pair, names, _Windows(row_of_stretch, starts_ns, ends_ns))


def _measure(counters: RankCounters, windows: _Windows, n_rows: int) -> dict[str, Any]:
    """Return the columns of `schema.COUNTERS` that are measured in the windows of each row.

    A column is null if its counter was not recorded. ``sampled_ns`` of a row is the sampled time of
    the counter that was sampled least.
    """
    columns: dict[str, Any] = {}
    window_ns = np.zeros(n_rows, np.int64)
    np.add.at(window_ns, windows.row, windows.ends - windows.starts)
    columns["window_ns"] = window_ns
    least_sampled_ns = window_ns
    for name in (*PERCENTS, CLOCK):
        series = counters.series.get(name)
        sums = None if series is None else _sums_of_counter(series, windows, n_rows)
        columns |= _columns_of_counter(name, sums, counters.rate(name), n_rows)
        if sums is not None:
            least_sampled_ns = np.minimum(least_sampled_ns, sums.sampled_ns)
    columns["sampled_ns"] = least_sampled_ns
    columns["sampled_ratio"] = _means(least_sampled_ns, window_ns)
    return columns


class _CounterSums(NamedTuple):
    """The sums of a counter over the windows of each row."""

    # In the unit of the counter times ns.
    integral: Int64
    # The part of the windows of which there are samples.
    sampled_ns: Int64


def _columns_of_counter(
    name: str, sums: _CounterSums | None, bytes_per_s: int | None, n_rows: int
) -> dict[str, Any]:
    """Return the columns of one counter, null if it was not recorded (no `sums`).

    `bytes_per_s` is what a counter of memory or a link calls 100 %, None if it is not known.
    """
    nothing = pa.nulls(n_rows)
    if name == CLOCK:
        if sums is None:
            return {"gpc_clock_hz": nothing}
        # As floats, because integers of this size could overflow.
        hz_ns = sums.integral * 1.0 * HZ_PER_MHZ
        return {"gpc_clock_hz": _means(hz_ns, sums.sampled_ns)}
    mean_percent = nothing if sums is None else _means(sums.integral, sums.sampled_ns)
    columns: dict[str, Any] = {f"{name}_percent": mean_percent}
    if name in _MEMORY or name in _LINKS:
        integral_percent_ns = None if sums is None else sums.integral
        sampled_ns = None if sums is None else sums.sampled_ns
        n_bytes = _bytes_of(integral_percent_ns, bytes_per_s, n_rows)
        columns[f"{name}_bytes"] = _where_sampled(n_bytes, sampled_ns)
        columns[f"{name}_bytes_per_s"] = _rates(n_bytes, sampled_ns)
    return columns


def _sums_of_counter(series: Series, windows: _Windows, n_rows: int) -> _CounterSums:
    """Return the sums of a counter over the windows of each row."""
    integral = np.zeros(n_rows, np.int64)
    sampled_ns = np.zeros(n_rows, np.int64)
    np.add.at(integral, windows.row, series.integrals(windows.starts, windows.ends))
    np.add.at(sampled_ns, windows.row, series.sampled_ns(windows.starts, windows.ends))
    return _CounterSums(integral, sampled_ns)


def _means(sums: Any, durations_ns: Int64) -> pa.Array:  # noqa: ANN401 - integers or floats
    """Return sums divided by durations, null where a duration is 0."""
    is_empty = durations_ns == 0
    means = sums / np.where(is_empty, 1, durations_ns)
    return pa.array(means, pa.float64(), mask=is_empty)


def bytes_of_integral(integral_percent_ns: int, bytes_per_s: int) -> int:
    """Return the bytes of an integral of per cent x ns at a rate that is 100 %, rounded down."""
    return integral_percent_ns * bytes_per_s // _PERCENT_NS_PER_S


def _bytes_of(
    integral_percent_ns: Int64 | None, bytes_per_s: int | None, n_rows: int
) -> list[int | None]:
    """Return the bytes of each row, all None if the counter or its rate is unknown."""
    if integral_percent_ns is None or bytes_per_s is None:
        return [None] * n_rows
    return [bytes_of_integral(each, bytes_per_s) for each in integral_percent_ns.tolist()]


def _where_sampled(n_bytes: list[int | None], sampled_ns: Int64 | None) -> pa.Array:
    """Return the bytes of each row, null for rows without samples."""
    if sampled_ns is None:
        return pa.array(n_bytes, pa.int64())
    known = [each if ns else None for each, ns in zip(n_bytes, sampled_ns.tolist(), strict=True)]
    return pa.array(known, pa.int64())


def _rates(n_bytes: list[int | None], sampled_ns: Int64 | None) -> pa.Array:
    """Return the bytes per second of each row, null if its bytes or sampled time are unknown."""
    if sampled_ns is None:
        return pa.nulls(len(n_bytes))
    bytes_per_s: list[float | None] = []
    for n_bytes_of_row, ns in zip(n_bytes, sampled_ns.tolist(), strict=True):
        if n_bytes_of_row is None or ns <= 0:
            bytes_per_s.append(None)
        else:
            bytes_per_s.append(n_bytes_of_row * 1e9 / ns)
    return pa.array(bytes_per_s, pa.float64())
