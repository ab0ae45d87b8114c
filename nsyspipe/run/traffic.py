"""What each communicator carries and costs, by the kind of parallelism that it serves; the table of it."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.analysis.intervals import IntervalSet, union
from nsyspipe.analysis.phases import IN_BACKWARD, IN_FORWARD
from nsyspipe.analysis.traffic import PIPELINE, CommUse, exposed_parts, roles
from nsyspipe.model import schema
from nsyspipe.model.names import COLLECTIVES
from nsyspipe.model.table import Flags
from nsyspipe.run.collectives import ABSENT, NONE, CrossRank, message_sizes
from nsyspipe.run.process_groups import kernels_before_sends, use_of

# Sums over summary steps, each of which the table has per step.
_PER_STEP = ("calls", "bytes", "comm_ns", "exposed_ns", "exposed_part_ns", "hidden_ns", "wait_ns")
# Calls by the pass that launched them; of matched operations of known size the messages, what
# crosses a link, the time.
_SUMS = (*_PER_STEP, "forward", "backward", "sized_bytes", "sized_bus_bytes", "sized_ns", "n_steps")
_OF_CALLS = {"bytes_per_call": "bytes", "forward_share": "forward", "backward_share": "backward"}
# What a rank did with one collective of one communicator, which is a use, in its summary steps.
# Null: not known.
_FLOATS = ("exposed_part_ns", "sized_bus_bytes")
_CELLS = pa.schema(
    [(name, pa.float64() if name in _FLOATS else pa.int64()) for name in ("rank", "use", *_SUMS)]
)


def traffic_table(across: CrossRank, steps: pa.Table, *, is_capture: bool) -> pa.Table:
    """Return `schema.TRAFFIC` of `schema.STEPS`: a row per (rank, communicator, collective), and one of all ranks together."""
    summary = steps.filter(steps["in_summary"])
    chosen = across.rows.in_step & np.isin(across.rows.step, summary["step"].to_numpy())
    cells = pa.Table.from_pylist([*_cells(across, summary, chosen)], _CELLS)
    is_whole = pc.ScalarAggregateOptions(skip_nulls=False)
    sums = cells.group_by("use", use_threads=False).aggregate(
        [(name, "sum", is_whole) for name in _SUMS]
    )
    pooled = sums.rename_columns(["use", *_SUMS]).append_column(
        "rank", pa.nulls(len(sums), pa.int64())
    )
    uses = _uses(across, cells, pooled, chosen)
    table = pa.concat_tables([pooled.select(_CELLS.names), cells])
    at = pc.index_in(table["use"], value_set=pa.array(uses, pa.int64())).to_numpy()
    order = np.lexsort((at, pc.fill_null(table["rank"], NONE)))
    table = table.take(pa.array(order))
    at = at[order]
    role = pa.array(roles([*uses.values()]), pa.string()).take(pa.array(at))
    n_ranks = across.sizes[table["use"].to_numpy() // len(COLLECTIVES)]
    # Thousands of ranks would be listed in thousands of rows: those of a communicator are one text.
    texts = {one.ranks: pa.array([",".join(map(str, one.ranks))]) for one in uses.values()}
    ranks = [texts[one.ranks] for one in uses.values()]

    def divided(name: str, by: pa.ChunkedArray) -> pa.ChunkedArray:
        return pc.divide(
            pc.cast(table[name], pa.float64(), safe=False), pc.if_else(pc.greater(by, 0), by, None)
        )

    n_steps = pc.if_else(is_capture, None, pc.cast(table["n_steps"], pa.float64()))
    per_step = {f"{name}_per_step": divided(name, n_steps) for name in _PER_STEP}
    if across.has_comm_between:
        per_step |= {
            f"{name}_per_step": pa.nulls(len(table), pa.float64())
            for name in ("calls", "bytes", "wait_ns")
        }
    is_staged = pc.equal(role, PIPELINE)
    wait = per_step["wait_ns_per_step"]
    seconds = pc.divide(pc.cast(table["sized_ns"], pa.float64()), 1e9)
    columns = per_step | {
        "rank": table["rank"],
        "communicator": pa.array([one.communicator for one in uses.values()], pa.string()).take(
            pa.array(at)
        ),
        "collective": pa.array([one.collective for one in uses.values()], pa.string()).take(
            pa.array(at)
        ),
        "role": role,
        "n_ranks": pa.array(n_ranks, mask=n_ranks == 0),
        "ranks": pa.chunked_array([ranks[use] for use in at.tolist()], pa.string()),
        # Stages wait for each other by design.
        "bubble_ns_per_step": pc.if_else(is_staged, wait, None),
        "wait_ns_per_step": pc.if_else(is_staged, None, wait),
        "algbw_bytes_per_s": divided("sized_bytes", seconds),
        "busbw_bytes_per_s": divided("sized_bus_bytes", seconds),
    }
    return schema.TRAFFIC.table(columns)


def _cells(across: CrossRank, summary: pa.Table, chosen: Flags) -> Iterator[dict[str, Any]]:
    rows = across.rows
    use = use_of(across.rows)
    windows = [summary[name].to_numpy() for name in ("rank", "start_ns", "end_ns")]
    message, bus, is_sized = message_sizes(across, np.arange(len(rows)))
    matched = across.waiting
    is_known = across.is_known
    is_measured = is_sized & is_known
    is_hidden = {*summary.filter(pc.is_null(summary["comm_ns"]))["rank"].to_pylist()}
    for rank, span in across.by_rank():
        own_windows = slice(*np.searchsorted(windows[0], (rank.number, rank.number + 1)))
        starts = windows[1][own_windows]
        ends = windows[2][own_windows]
        hidden = rank.process.hidden.shifted(rank.shift_ns)
        own_uses = np.unique(use[span]).tolist()
        of_uses = {code: np.flatnonzero(use[span] == code) + span.start for code in own_uses}
        is_seen = rank.number not in is_hidden
        unions = {
            code: union(rows.start_ns[of], rows.end_ns[of])
            for code, of in of_uses.items()
            if is_seen
        }
        parts = dict(
            zip(
                unions,
                exposed_parts([*unions.values()], hidden, IntervalSet(starts, ends)),
                strict=True,
            )
        )
        for code in own_uses:
            of_use = of_uses[code]
            own = of_use[chosen[of_use]]
            cell: dict[str, Any] = {"rank": rank.number, "use": code, "n_steps": starts.size}
            if matched is not None and own.size and is_measured[own].all():
                cell["sized_bytes"], cell["sized_bus_bytes"] = message[own].sum(), bus[own].sum()
                cell["sized_ns"] = matched.column("transfer_ns", own).sum()
            if is_seen:
                times = unions[code]
                comm = times.lengths(starts, ends).sum()
                beside = times.intersect(hidden).lengths(starts, ends).sum()
                cell |= {
                    "calls": own.size,
                    "comm_ns": comm,
                    "exposed_ns": comm - beside,
                    "hidden_ns": beside,
                }
                cell["exposed_part_ns"] = parts[code]
                cell["bytes"] = None if (message[own] == ABSENT).any() else message[own].sum()
                if matched is not None and is_known[own].all():
                    cell["wait_ns"] = across.waited(of_use, matched).lengths(starts, ends).sum()
                launched_in = rows.launched_in[own]
                if not (launched_in == NONE).any():
                    cell["forward"] = np.count_nonzero(launched_in == IN_FORWARD)
                    cell["backward"] = np.count_nonzero(launched_in == IN_BACKWARD)
            yield cell


def _uses(
    across: CrossRank, cells: pa.Table, pooled: pa.Table, chosen: Flags
) -> dict[int, CommUse]:
    """Return what the role of each use is told from, in order of its communicator's name and its collective's."""
    users: dict[int, dict[int, None]] = {}
    for rank, use in zip(cells["rank"].to_pylist(), cells["use"].to_pylist(), strict=True):
        users.setdefault(use // len(COLLECTIVES), {})[rank] = None
    before = kernels_before_sends(across.rows, chosen)
    uses = {}
    for row in pooled.to_pylist():
        communicator, collective = divmod(row["use"], len(COLLECTIVES))
        calls = row["calls"] or 0
        n_steps = row["n_steps"]
        told = {name: row[of] if calls else None for name, of in _OF_CALLS.items()}
        uses[row["use"]] = CommUse(
            communicator=across.rows.communicators[communicator],
            collective=COLLECTIVES[collective],
            ranks=tuple(users[communicator]),
            calls_per_step=calls / n_steps if n_steps else 0.0,
            kernels_before=before.get(row["use"], ()),
            **{name: None if total is None else total / calls for name, total in told.items()},
        )
    return dict(sorted(uses.items(), key=lambda item: (item[1].communicator, item[1].collective)))
