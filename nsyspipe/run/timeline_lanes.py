"""The tables of what a timeline shows below the operations of a rank."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from nsyspipe.analysis.host_lines import HostLines
from nsyspipe.analysis.timeline_lanes import (
    LineBars,
    LineSamples,
    Window,
    counted_bars,
    line_bars,
)
from nsyspipe.model import schema
from nsyspipe.model.python_files import IN_PROGRAM, INNERMOST
from nsyspipe.model.typed_tables import HostLinesTable, StepsTable
from nsyspipe.reader.gpu_metrics import CLOCK
from nsyspipe.run.counters import HZ_PER_MHZ, PERCENTS, CountedRanks, RankCounters
from nsyspipe.run.digests import Rank, Ranks
from nsyspipe.run.host_lines import paths_of_lines, with_short_names
from nsyspipe.run.process import ProcessDigest


class SampledRanks(Struct, frozen=True):
    """The samples of Python of a run, in aligned time: those of each rank, by its number."""

    by_rank: dict[int, LineSamples]


def sampled_ranks(ranks: Ranks) -> SampledRanks:
    """Return the samples of Python of each rank that has any."""
    by_rank = {}
    for rank in ranks:
        samples = rank.process.host_lines
        if samples is not None:
            by_rank[rank.number] = _samples_of_rank(rank, samples)
    return SampledRanks(by_rank)


def _samples_of_rank(rank: Rank[ProcessDigest], samples: HostLines) -> LineSamples:
    """Return the samples of a rank in order of time, in aligned time."""
    # Captures of one rank may stand in any order, and so may their samples.
    order = np.argsort(samples.times, kind="stable")
    times = samples.times[order]
    aligned_times = times + rank.shift_ns
    return LineSamples(aligned_times, samples.shown_line[order], samples.lines)


def counter_bars_table(
    counted: CountedRanks, steps: StepsTable, drawn: schema.DrawnStep
) -> pa.Table:
    """Return `schema.COUNTER_BARS`."""
    tables = [schema.COUNTER_BARS.empty()]
    for rank, window in _windows(steps, drawn):
        counters = counted.by_rank.get(rank)
        if counters is None:
            continue
        columns = _columns_of_counters(counters, window)
        columns |= _of_rank(drawn.step, rank, columns)
        table = schema.COUNTER_BARS.table(columns)
        tables.append(table)
    return pa.concat_tables(tables).combine_chunks()


def _columns_of_counters(counters: RankCounters, window: Window) -> dict[str, Any]:
    """Return the columns of `schema.COUNTER_BARS` of one rank."""
    bars = counted_bars(counters.series, window)
    columns: dict[str, Any] = {"start_ns": bars.starts, "end_ns": bars.ends}
    columns["sampled_ns"] = bars.sampled_ns
    unknown = pa.nulls(bars.starts.size, pa.float64())
    for name in PERCENTS:
        columns[f"{name}_percent"] = bars.means.get(name, unknown)
    clock_mhz = bars.means.get(CLOCK, unknown)
    columns["gpc_clock_hz"] = pc.multiply(clock_mhz, HZ_PER_MHZ)
    return columns


def line_bars_table(
    sampled: SampledRanks, steps: StepsTable, drawn: schema.DrawnStep, host_lines: HostLinesTable
) -> pa.Table:
    """Return `schema.LINE_BARS`. Files have the names that they have in `host_lines`."""
    tables = [schema.LINE_BARS.empty()]
    for rank, window in _windows(steps, drawn):
        samples = sampled.by_rank.get(rank)
        if samples is None:
            continue
        bars = line_bars(samples, window)
        columns = _columns_of_lines(samples, bars)
        columns |= _of_rank(drawn.step, rank, columns)
        table = schema.LINE_BARS.table(columns)
        tables.append(table)
    joined = pa.concat_tables(tables).combine_chunks()
    return with_short_names(joined, paths_of_lines(host_lines))


def _columns_of_lines(samples: LineSamples, bars: LineBars) -> dict[str, Any]:
    """Return the columns of `schema.LINE_BARS` of one rank, with whole paths as files."""
    lines = samples.lines.take(pa.array(bars.line))
    columns: dict[str, Any] = {"start_ns": bars.starts, "end_ns": bars.ends}
    is_of_program = lines["is_of_program"]
    columns["frame"] = pc.if_else(is_of_program, IN_PROGRAM, INNERMOST)
    columns["file"] = lines["path"]
    columns["line"] = lines["line"]
    columns["function"] = lines["function"]
    columns["n_samples"] = bars.n_samples
    return columns


def _windows(steps: StepsTable, drawn: schema.DrawnStep) -> Iterator[tuple[int, Window]]:
    """Yield each drawn rank that has the drawn step, with its window, in order of rank."""
    is_of_step = pc.equal(steps["step"], drawn.step)
    rows = steps.filter(is_of_step).to_pylist()
    rows.sort(key=itemgetter("rank"))
    for row in rows:
        if row["rank"] in drawn.ranks:
            window = Window(row["start_ns"], row["end_ns"])
            yield row["rank"], window


def _of_rank(step: int, rank: int, columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns ``step`` and ``rank``, with as many rows as other columns have."""
    n_rows = columns["start_ns"].size
    steps = np.full(n_rows, step)
    ranks = np.full(n_rows, rank)
    return {"step": steps, "rank": ranks}
