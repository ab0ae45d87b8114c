"""What each communicator carries and costs, by the kind of parallelism that it serves; the table of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nsyspipe.analysis.collectives import NOBODY, waited_until
from nsyspipe.analysis.intervals import run_starts, union
from nsyspipe.analysis.phases import IN_BACKWARD, IN_FORWARD
from nsyspipe.analysis.traffic import PIPELINE, CommUse, roles
from nsyspipe.model import schema
from nsyspipe.model.names import COLLECTIVES
from nsyspipe.run.collectives import ABSENT, NONE, message_sizes

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from nsyspipe.model.table import Flags, Float64, Int64
    from nsyspipe.run.collectives import CrossRank


# Sums over summary steps, each of which a table has per step.
_PER_STEP = ("calls", "bytes", "comm_ns", "exposed_ns", "hidden_ns", "wait_ns")
# Matched operations whose size is known: whole messages, what crosses a link of them, and their time.
_SIZED = ("sized_bytes", "sized_bus_bytes", "sized_ns")
# What one rank moved with one collective of one communicator in its summary steps, `n_steps`: sums of those above, and
# calls by the pass that launched them. None: not known.
_Cell = dict[str, Any]


def traffic_table(across: CrossRank, steps: pa.Table, sizes: Int64, *, is_capture: bool) -> pa.Table:
    """Return `schema.TRAFFIC`: a row per (rank, communicator, collective), and one of all ranks together.

    `steps` is `schema.STEPS`, `sizes` the ranks of each communicator, 0 where that is not known.
    """
    rows = across.rows
    width = len(COLLECTIVES)
    use = rows.communicator.astype(np.int64) * width + rows.collective
    summary = steps.filter(steps["in_summary"])
    windows = [summary[name].to_numpy() for name in ("rank", "step", "start_ns", "end_ns")]
    chosen = rows.in_step & np.isin(rows.step, windows[1])
    message, bus, is_sized = message_sizes(rows, sizes, np.arange(len(rows)))
    is_hidden = {row["rank"] for row in summary.select(["rank", "comm_ns"]).to_pylist() if row["comm_ns"] is None}
    cells: dict[int, dict[int, _Cell]] = {}
    users: dict[int, set[int]] = {}
    edges = np.searchsorted(rows.rank, np.arange(len(across.placed) + 1))
    for place, rank in enumerate(across.placed):
        own_windows = slice(*np.searchsorted(windows[0], (rank.number, rank.number + 1)))
        starts, ends = windows[2][own_windows], windows[3][own_windows]
        hidden = rank.process.hidden.shifted(rank.shift_ns)
        span = slice(edges[place], edges[place + 1])
        for code in np.unique(use[span]).tolist():
            of_use = np.flatnonzero(use[span] == code) + span.start
            own = of_use[chosen[of_use]]
            times = union(rows.start_ns[of_use], rows.end_ns[of_use])
            comm = int(times.lengths(starts, ends).sum())
            beside = int(times.intersect(hidden).lengths(starts, ends).sum())
            launched_in = rows.launched_in[own]
            is_told = not (launched_in == NONE).any()
            cell: _Cell = {
                "calls": own.size,
                "bytes": None if (message[own] == ABSENT).any() else int(message[own].sum()),
                "comm_ns": comm,
                "exposed_ns": comm - beside,
                "hidden_ns": beside,
                "wait_ns": _waited(across, of_use, own, starts, ends),
                "forward": np.count_nonzero(launched_in == IN_FORWARD) if is_told else None,
                "backward": np.count_nonzero(launched_in == IN_BACKWARD) if is_told else None,
            }
            if rank.number in is_hidden:
                cell = dict.fromkeys(cell)
            cell |= {"n_steps": starts.size, **_sized(across, own, message, bus, is_sized)}
            cells.setdefault(code, {})[rank.number] = cell
            users.setdefault(code // width, set()).add(rank.number)
    before = _kernels_before(across, chosen)
    uses = []
    for code, by_rank in cells.items():
        ranks = tuple(sorted(users[code // width]))
        uses.append(_use(code, rows.communicators[code // width], ranks, list(by_rank.values()), before.get(code, ())))
    table: list[dict[str, Any]] = []
    for (code, by_rank), one, role in zip(cells.items(), uses, roles(uses), strict=True):
        named = {
            "communicator": one.communicator,
            "collective": one.collective,
            "role": role,
            "n_ranks": int(sizes[code // width]) or None,
            "ranks": ",".join(map(str, one.ranks)),
        }
        for number, own_cells in ((None, list(by_rank.values())), *((rank, [cell]) for rank, cell in by_rank.items())):
            table.append({"rank": number, **named, **_figures(own_cells, role, is_capture=is_capture)})
    table.sort(key=lambda row: (row["rank"] is not None, row["rank"] or 0, row["communicator"], row["collective"]))
    return schema.TRAFFIC.from_rows(table)


def _kernels_before(across: CrossRank, chosen: Flags) -> dict[int, tuple[float, ...]]:
    """Return by use how many kernels its ranks launch in a step before their first send or receive: the median of each's steps."""
    rows, width = across.rows, len(COLLECTIVES)
    sends = np.flatnonzero(chosen & (rows.collective == COLLECTIVES.index("send_recv")))
    use = rows.communicator[sends] * width + rows.collective[sends]
    uses = np.unique(use).tolist()
    before: dict[int, tuple[float, ...]] = {}
    order = np.argsort(use, kind="stable")
    # Where communicators are not NCCL's own, a stage's two may be two streams: they count as one.
    parts = np.split(sends[order], run_starts(use[order])[1:]) if rows.has_ids and uses else [sends]
    for group, own in zip([[code] for code in uses] if rows.has_ids else [uses], parts, strict=False):
        if not own.size or (rows.n_before[own] == NONE).any():
            continue
        own = own[np.lexsort((rows.n_before[own], rows.step[own], rows.rank[own]))]  # noqa: PLW2901
        rank = rows.rank[own].astype(np.int64)
        is_first = run_starts(rank * (int(rows.step[own].max()) + 1) + rows.step[own])
        of_ranks = np.split(rows.n_before[own[is_first]], run_starts(rank[is_first])[1:])
        before |= dict.fromkeys(group, tuple(float(np.median(one)) for one in of_ranks))
    return before


def _waited(across: CrossRank, of_use: Int64, own: Int64, starts: Int64, ends: Int64) -> int | None:
    rows, matched = across.rows, across.waiting
    if matched is None or (matched.collective_id[own] == NOBODY).any():
        return None
    begun = rows.start_ns[of_use]
    until = waited_until(begun, rows.end_ns[of_use], matched.column("wait_ns", of_use))
    return int(union(begun[until > begun], until[until > begun]).lengths(starts, ends).sum())


def _sized(across: CrossRank, own: Int64, message: Int64, bus: Float64, is_sized: Flags) -> _Cell:
    matched = across.waiting
    if matched is None or not own.size or not (is_sized[own] & (matched.collective_id[own] != NOBODY)).all():
        return dict.fromkeys(_SIZED)
    sums = message[own].sum(), bus[own].sum(), matched.column("transfer_ns", own).sum()
    return {name: one.item() for name, one in zip(_SIZED, sums, strict=True)}


def _use(code: int, name: str, ranks: tuple[int, ...], cells: Sequence[_Cell], before: tuple[float, ...]) -> CommUse:
    calls, n_bytes, forward, backward = (_total(cells, of) for of in ("calls", "bytes", "forward", "backward"))
    n_steps = _total(cells, "n_steps")
    return CommUse(
        communicator=name,
        collective=COLLECTIVES[code % len(COLLECTIVES)],
        ranks=ranks,
        calls_per_step=(calls or 0) / n_steps if n_steps else 0.0,
        bytes_per_call=n_bytes / calls if calls and n_bytes is not None else None,
        forward_share=forward / calls if calls and forward is not None else None,
        backward_share=backward / calls if calls and backward is not None else None,
        kernels_before=before,
    )


def _figures(cells: Sequence[_Cell], role: str, *, is_capture: bool) -> dict[str, float | None]:
    n_steps = _total(cells, "n_steps")
    figures: dict[str, float | None] = {}
    for name in _PER_STEP:
        total = None if is_capture else _total(cells, name)
        figures[f"{name}_per_step"] = total / n_steps if total is not None and n_steps else None
    # Stages wait for each other by design.
    figures["bubble_ns_per_step"] = figures["wait_ns_per_step"] if role == PIPELINE else None
    figures["wait_ns_per_step"] = None if role == PIPELINE else figures["wait_ns_per_step"]
    n_bytes, bus, sized_ns = (_total(cells, name) for name in _SIZED)
    seconds = (sized_ns or 0) / 1e9
    figures["algbw_bytes_per_s"] = n_bytes / seconds if seconds > 0 else None
    figures["busbw_bytes_per_s"] = bus / seconds if seconds > 0 else None
    return figures


def _total(cells: Sequence[_Cell], name: str) -> Any:  # noqa: ANN401 - a number
    """Return the sum of what cells have of a name; None where one is not known."""
    known = [cell[name] for cell in cells]
    return None if None in known else sum(known)
