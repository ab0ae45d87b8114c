"""From the digests of all reports to the tables of one run; figures that hang on what was not seen become null."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.analysis.steps import Selection, select_steps, step_numbers
from nsyspipe.analysis.summary import with_ratios
from nsyspipe.model import schema
from nsyspipe.model.names import PHASES
from nsyspipe.model.table import TableSchema, conform
from nsyspipe.run.collectives import collective_figures, collectives_table, step_bytes, stragglers_table
from nsyspipe.run.cross_rank import CrossRank, communicator_sizes, cross_rank, step_waits
from nsyspipe.run.gather import place, place_hosts
from nsyspipe.run.problems import lacks_comm, of_messages, of_ranks, of_reports, of_steps, of_world
from nsyspipe.run.ranks import is_surely_one_run, launcher_size, number_ranks, ranks_table, told_world_size, world_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from nsyspipe.model.fabric import NcclLog
    from nsyspipe.model.problems import Problem
    from nsyspipe.model.types import Int64
    from nsyspipe.run.digest import HostDigest, ProcessDigest
    from nsyspipe.run.gather import Gathered, Placed, ReportDigest


@dataclass(frozen=True)
class RunTables:
    """The tables of one run, and how its steps were selected."""

    # ranks, steps, phases, stragglers, kernels: the tables of `schema` by the same names; kernels are
    # `schema.KERNEL_COSTS`
    ranks: pa.Table
    steps: pa.Table
    phases: pa.Table
    collectives: pa.Table  # as `collectives.collective_figures` returns them
    # Returns `collectives.collectives_table`, which few ask for
    all_collectives: Callable[[], pa.Table]
    stragglers: pa.Table
    kernels: pa.Table
    # idle_calls, host_steps: `schema.IDLE_CALLS`, `schema.HOST_STEPS`
    idle_calls: pa.Table
    host_steps: pa.Table
    problems: tuple[Problem, ...]
    selection: Selection
    world_size: int | None
    across: CrossRank  # the ranks in the order of the table, on one clock, with their communication
    step_numbers: tuple[Int64, ...]  # for each rank the step number of each of its step ranges
    is_capture: bool  # whether the ranks have no steps: the one row of each is its capture

    @property
    def blocked_ns_by_call(self) -> dict[str, float]:
        """Mean idle time per step by the API call that the host was blocked in, largest first."""
        columns = (self.idle_calls[name].to_pylist() for name in schema.IDLE_CALLS.names)
        return dict(zip(*columns, strict=True))


def merge(
    gathered: Gathered,
    names: Sequence[str],
    *,
    rank_map: Mapping[str, int] | None,
    skip_first: int | None,
    log: NcclLog | None = None,
) -> RunTables:
    """Join the digests of a run's reports; `names` is what to call each.

    NCCL's log tells the size of the world when nothing else does. Raises what `ranks.number_ranks` and
    `steps.select_steps` raise.
    """
    digests, captured, why_no_steps = gathered.digests, gathered.captured, gathered.why_no_steps
    placed = place(digests)
    hosts = [] if placed else place_hosts(digests)
    ranks, source, rank_problems = number_ranks(digests, placed or hosts, rank_map, captured)
    launched = launcher_size(placed or hosts, ranks, source)
    host_steps = host_steps_table(hosts, None if source == "order" else ranks, names)
    if hosts:  # numbered as ranks are, but none of them
        ranks, rank_problems = [], []
    order = sorted(range(len(placed)), key=ranks.__getitem__)
    placed, ranks = [placed[at] for at in order], [ranks[at] for at in order]
    is_capture = bool(placed) and why_no_steps is not None
    numbering = _step_numbers(placed, has_family=not is_capture)
    is_one_run = is_surely_one_run(digests, captured)
    across = cross_rank(placed, numbering, len(digests), is_one_run=is_one_run)
    placed = list(across.placed)
    table, place_of = _windows(placed, ranks, numbering)
    size = world_size(digests, log, captured.world_size, launched)
    is_graph = _has_whole_graphs(placed)
    may_hide = _may_hide_comm(placed, digests, size)
    hidden = _hidden_comm(placed, size, is_graph, may_hide=may_hide)
    table = _without(_without(table, _HIDDEN, hidden), _COPIES_IN_GRAPHS, is_graph)
    selection = select_steps(
        table["step"].to_numpy(),
        table["start_ns"].to_numpy(),
        np.asarray(table["is_complete"], np.bool_),
        len(placed),
        skip_first,
    )
    sizes = communicator_sizes(across, size)
    steps = _steps(table, place_of, across, sizes, selection)
    is_hidden = bool((hidden & steps["in_summary"].to_numpy()).any())
    of_collectives = (across, ranks, selection.steps, sizes)
    collectives = collective_figures(*of_collectives)
    found = [
        *of_reports(digests, names, placed, ranks, captured, is_hidden=is_hidden),
        *rank_problems,
        *across.problems,
        *of_ranks(placed, ranks, size, captured),
        *of_world(len(placed or hosts), told_world_size(digests, captured.world_size)),
        *captured.problems,
        *of_messages(collectives, len(placed), digests),
        *of_steps(table, ranks, selection, why_no_steps),
    ]
    return RunTables(
        ranks=ranks_table(across, ranks, source, names, captured, is_comm_in_graphs=may_hide),
        steps=steps,
        phases=_without_comm_of_phases(_phases_table(placed, ranks, numbering), table, hidden),
        collectives=collectives,
        all_collectives=functools.partial(collectives_table, *of_collectives),
        stragglers=stragglers_table(collectives, steps, ranks, is_capture=is_capture),
        kernels=_kernels_table(placed, ranks, numbering, selection),
        idle_calls=schema.IDLE_CALLS.empty() if is_capture else _idle_calls(placed, numbering, steps, selection),
        host_steps=host_steps,
        problems=tuple(found),
        selection=selection,
        world_size=size,
        across=across,
        step_numbers=tuple(numbering),
        is_capture=is_capture,
    )


_ACROSS = ("wait_ns", "exposed_wait_ns", "transfer_ns", "message_bytes")
_DERIVED = {"in_summary", *_ACROSS, *(name for name in schema.FIGURES)}
_WINDOWS = TableSchema(
    "windows",
    "Steps before selection.",
    schema.STEPS.key,
    tuple(column for column in schema.STEPS.columns if column.name not in _DERIVED),
)


def _step_numbers(placed: Sequence[Placed[ProcessDigest]], *, has_family: bool) -> list[Int64]:
    """Return each rank's step number by member; the one window of a run without steps is step 0."""
    if not has_family:
        return [np.zeros(1, np.int64) for _ in placed]
    return step_numbers([one.process.members["number"] for one in placed])


def _rank_columns(placed: Placed[ProcessDigest], rank: int, numbers: Int64, table: pa.Table) -> dict[str, Any]:
    """Return the columns of one table of a rank, with its number and its steps', times aligned."""
    columns = {name: table[name] for name in table.column_names}
    columns["rank"] = np.full(table.num_rows, rank)
    if "member" in columns:
        member = columns.pop("member").to_numpy()
        columns["step"] = numbers[member] if member.size else np.empty(0, np.int64)
    if "start_ns" in columns:
        columns |= {n: pc.add(table[n], placed.shift_ns) for n in ("start_ns", "end_ns")}
    return columns


def _joined(tables: Iterable[pa.Table], of: TableSchema) -> pa.Table:
    """Put tables of all ranks together, sorted by their key; nulls come last."""
    merged = pa.concat_tables([of.empty(), *tables])
    return conform(merged.sort_by([(name, "ascending") for name in of.key]), of)


def _windows(
    placed: Sequence[Placed[ProcessDigest]], ranks: Sequence[int], numbering: Sequence[Int64]
) -> tuple[pa.Table, Int64]:
    """Return all windows, and for each the place of its rank among the run's."""
    tables = [
        conform(pa.table(_rank_columns(one, rank, own, one.process.windows)), _WINDOWS)
        for one, rank, own in zip(placed, ranks, numbering, strict=True)
    ]
    counts = [one.num_rows for one in tables]
    return pa.concat_tables([_WINDOWS.empty(), *tables]), np.repeat(np.arange(len(tables)), counts)


def host_steps_table(
    placed: Sequence[Placed[HostDigest]], ranks: Sequence[int] | None, names: Sequence[str]
) -> pa.Table:
    """Return `schema.HOST_STEPS` of a run without device activity; ranks are None when they are not known."""
    numbers = step_numbers([one.process.members["number"] for one in placed])
    tables = []
    for at, (one, steps) in enumerate(zip(placed, numbers, strict=True)):
        members = one.process.members
        n_steps = members.num_rows
        columns = {
            "rank": pa.array([None if ranks is None else ranks[at]] * n_steps, pa.int64()),
            "report": pa.array([names[one.argument]] * n_steps, pa.string()),
            "pid": np.full(n_steps, one.process.pid),
            "step": steps,
            "host_start_ns": pc.add(members["start_ns"], one.shift_ns),
            "host_end_ns": pc.add(members["end_ns"], one.shift_ns),
            "host_ns": pc.subtract(members["end_ns"], members["start_ns"]),
            "is_complete": members["is_complete"],
            **{f"{phase}_ns": members[f"{phase}_ns"] for phase in PHASES},
        }
        tables.append(schema.HOST_STEPS.table(columns))
    return _joined(tables, schema.HOST_STEPS)


# What communication that was not seen makes unknown: it may have counted as compute.
_HIDDEN = (
    "compute_ns", "comm_ns", "exposed_comm_ns", "overlap_compute_ns", "overlap_backward_ns", "n_collectives",
    "comm_delay_ns",
)  # fmt: skip
# What copies inside CUDA graphs that were captured as a whole make unknown.
_COPIES_IN_GRAPHS = (
    "exposed_memory_ns", "dtod_ns", "dtod_bytes", "n_dtod", "exposed_dtod_ns", "grad_copy_ns", "exposed_grad_copy_ns",
    "grad_copy_span_ns", "grad_copy_bytes", "n_grad_copies",
)  # fmt: skip
_HIDDEN_OF_PHASES = ("compute_ns", "comm_ns", "exposed_comm_ns")


def _has_whole_graphs(placed: Sequence[Placed[ProcessDigest]]) -> NDArray[np.bool_]:
    """Flag the windows in which a CUDA graph runs that was captured as a whole."""
    graphs = [one.process.windows["graph_ns"].to_numpy() > 0 for one in placed]
    return np.concatenate([np.zeros(0, np.bool_), *graphs])


def _may_hide_comm(placed: Sequence[Placed[ProcessDigest]], digests: Sequence[ReportDigest], size: int | None) -> bool:
    """Tell whether a CUDA graph may hold communication: several ranks run, or NCCL or MPI is in use."""
    is_several = len(placed) > 1 or (size or 1) > 1
    return is_several or any(digest.has_communication for digest in digests)


def _hidden_comm(
    placed: Sequence[Placed[ProcessDigest]], size: int | None, is_graph: NDArray[np.bool_], *, may_hide: bool
) -> NDArray[np.bool_]:
    """Flag the windows in which communication may have run that was not seen: inside CUDA graphs, or under other names.

    A run of several ranks without any communication kernel has some that is not known.
    """
    if not is_graph.any() and lacks_comm(placed, size):
        return np.ones(is_graph.size, np.bool_)
    return is_graph & may_hide


def _without(table: pa.Table, names: Iterable[str], hidden: NDArray[np.bool_]) -> pa.Table:
    """Make columns null where a flag is set."""
    if not hidden.any():
        return table
    for name in names:
        at = table.column_names.index(name)
        table = table.set_column(at, table.field(at), pc.if_else(hidden, None, table[name]))
    return table


def _without_comm_of_phases(phases: pa.Table, windows: pa.Table, hidden: NDArray[np.bool_]) -> pa.Table:
    """Make null what phases say of communication in the steps where some may not have been seen."""
    if not hidden.any() or not phases.num_rows:
        return phases
    own = windows.filter(pa.array(hidden))
    width = max(pc.max(windows["step"]).as_py(), pc.max(phases["step"]).as_py()) + 1
    keys = [one["rank"].to_numpy() * width + one["step"].to_numpy() for one in (phases, own)]
    return _without(phases, _HIDDEN_OF_PHASES, np.isin(*keys))


def _steps(table: pa.Table, place_of: Int64, across: CrossRank, sizes: Int64, selection: Selection) -> pa.Table:
    """Return `schema.STEPS`: the windows, what they mean across ranks, and whether they count."""
    step, starts, ends = (table[name].to_numpy() for name in ("step", "start_ns", "end_ns"))
    waits, exposed_waits, is_known = step_waits(across, place_of, step, starts, ends)
    # What a rank waits for may be inside another's graphs.
    is_known &= ~np.isin(step, step[pc.is_null(table["comm_ns"]).to_numpy()])
    n_bytes, is_sized = step_bytes(across, sizes, place_of, step)
    has_comm = pc.is_valid(table["comm_ns"])
    columns = {name: table[name] for name in table.column_names}
    columns["wait_ns"] = pc.if_else(has_comm, pa.array(waits, mask=~is_known), None)
    columns["exposed_wait_ns"] = pc.if_else(has_comm, pa.array(exposed_waits, mask=~is_known), None)
    columns["transfer_ns"] = pc.subtract(table["comm_ns"], columns["wait_ns"])
    columns["message_bytes"] = pc.if_else(has_comm, pa.array(n_bytes, mask=~is_sized), None)
    columns["in_summary"] = pc.is_in(table["step"], value_set=pa.array(selection.steps, pa.int64()))
    return schema.STEPS.table(with_ratios(columns))


def _phases_table(
    placed: Sequence[Placed[ProcessDigest]], ranks: Sequence[int], numbering: Sequence[Int64]
) -> pa.Table:
    tables = [
        schema.PHASES.table(_rank_columns(one, rank, numbers, one.process.phases))
        for one, rank, numbers in zip(placed, ranks, numbering, strict=True)
    ]
    return _joined(tables, schema.PHASES)


def _kernels_table(
    placed: Sequence[Placed[ProcessDigest]], ranks: Sequence[int], numbering: Sequence[Int64], selection: Selection
) -> pa.Table:
    """Return `schema.KERNEL_COSTS`; rows without a phase come last."""
    tables = []
    for one, rank, numbers in zip(placed, ranks, numbering, strict=True):
        found = one.process.kernels
        by_window = one.process.kernels_by_window
        n_inside, inside_ns, is_unknown = by_window.over(_in_summary(one, numbers, selection))
        slowed, free = (pc.cast(found[n], pa.float64(), safe=False) for n in ("slowed_ns", "free_ns"))
        ratio = pc.subtract(pc.divide(slowed, free), 1)
        columns = _rank_columns(one, rank, numbers, found) | {
            "mean_ns": pc.divide(found["total_ns"], found["n_kernels"]),
            "not_overlapped_ns": pc.subtract(found["total_ns"], found["overlapped_ns"]),
            "slowdown_ratio": pc.if_else(pc.greater(found["free_ns"], 0), ratio, None),
            "n_in_summary": pa.array(n_inside, mask=is_unknown),
            "in_summary_ns": pa.array(inside_ns, mask=is_unknown),
        }
        tables.append(schema.KERNEL_COSTS.table(columns))
    return _joined(tables, schema.KERNEL_COSTS)


def _in_summary(one: Placed[ProcessDigest], numbers: Int64, selection: Selection) -> NDArray[np.bool_]:
    """Flag the windows of a rank that are summary steps."""
    return np.isin(numbers[one.process.windows["member"].to_numpy()], selection.steps)


def _idle_calls(
    placed: Sequence[Placed[ProcessDigest]], numbering: Sequence[Int64], steps: pa.Table, selection: Selection
) -> pa.Table:
    """Return `schema.IDLE_CALLS` over the summary steps; no rows where blocked time of one is not known."""
    chosen = steps.filter(steps["in_summary"])
    if not chosen.num_rows or chosen["idle_blocked_ns"].null_count:
        return schema.IDLE_CALLS.empty()
    totals: dict[str, int] = {}
    for one, numbers in zip(placed, numbering, strict=True):
        counts = _in_summary(one, numbers, selection)
        for call, blocked in one.process.blocked_ns_by_call.items():
            totals[call] = totals.get(call, 0) + int(blocked[counts].sum())
    ordered = sorted(totals.items(), key=lambda pair: (-pair[1], pair[0]))
    rows = [{"call": call, "blocked_ns_per_step": total / chosen.num_rows} for call, total in ordered if total]
    return schema.IDLE_CALLS.from_rows(rows)
