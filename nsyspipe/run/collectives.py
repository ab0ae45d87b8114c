"""The tables of collectives and of stragglers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.analysis.collectives import PER_RANK, bus_factor, held_up_by_step, whole_message
from nsyspipe.analysis.intervals import places_in_runs, run_starts
from nsyspipe.model import schema
from nsyspipe.model.names import COLLECTIVES
from nsyspipe.run.cross_rank import ABSENT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from nsyspipe.analysis.collectives import Waiting
    from nsyspipe.model.types import Flags, Int64
    from nsyspipe.run.cross_rank import CommRows, CrossRank


_NS_PER_S = 1e9
# Columns of what is known of matched operations.
_NEEDED = (
    "n_ranks", "arrival_skew_ns", "wait_ns", "transfer_ns", "late_by_ns", "held_up_ns", "is_late_significant",
)  # fmt: skip
_SHOWN_ONLY = ("is_significant",)


def collectives_table(across: CrossRank, ranks: Sequence[int], summary_steps: Int64, sizes: Int64) -> pa.Table:
    """Return one row per operation that belongs to a step, sorted by (step, seq, rank).

    It is `schema.COLLECTIVES` but for its texts, which are dictionaries: a million equal words cost. Ranks are numbers
    in ascending order; sizes are the ranks of each communicator, 0 where that is not known.
    """
    rows = across.rows
    chosen = np.flatnonzero(rows.in_step)
    seq = numbered(rows, across.waiting)
    order = chosen[np.lexsort((rows.rank[chosen], seq[chosen], rows.step[chosen]))]
    columns = _columns(across, order, ranks, summary_steps, sizes) | {
        "seq": seq[order],
        "algorithm": _words(rows.kind[order], [one.algorithm for one in rows.kinds]),
        "comm_id": _words(rows.communicator[order], rows.communicators),
        **_waiting_columns(across.waiting, order, _SHOWN_ONLY),
    }
    columns["algbw_bytes_per_s"] = _per_second(columns["message_bytes"], columns["transfer_ns"])
    columns["busbw_bytes_per_s"] = _per_second(columns["bus_bytes"], columns["transfer_ns"])
    return pa.table({name: columns[name] for name in schema.COLLECTIVES.names})


def collective_figures(across: CrossRank, ranks: Sequence[int], summary_steps: Int64, sizes: Int64) -> pa.Table:
    """Return those columns of `collectives_table` that figures and rules need, sorted by (rank, start).

    There may be a million rows, of which most runs show none: what sorts and numbers them can wait.
    """
    order = np.flatnonzero(across.rows.in_step)
    return pa.table(_columns(across, order, ranks, summary_steps, sizes))


def _columns(
    across: CrossRank, order: Int64, ranks: Sequence[int], summary_steps: Int64, sizes: Int64
) -> dict[str, pa.Array | Int64 | Flags]:
    rows, found = across.rows, across.waiting
    message, bus, is_sized = _bytes(rows, sizes)
    is_matched = np.zeros(len(rows), np.bool_) if found is None else found.is_matched
    return {
        "step": rows.step[order],
        "rank": np.asarray(ranks, np.int64)[rows.rank[order]],
        **{
            name: _words(rows.kind[order], [getattr(one, name) for one in rows.kinds])
            for name in ("collective", "datatype")
        },
        "start_ns": rows.start_ns[order],
        "end_ns": rows.end_ns[order],
        "is_matched": is_matched[order],
        "in_summary": np.isin(rows.step[order], summary_steps),
        **_waiting_columns(found, order, _NEEDED),
        "message_bytes": pa.array(message[order], mask=message[order] == ABSENT),
        "bus_bytes": pa.array(bus[order], mask=~is_sized[order]),
    }


def _words(codes: Int64, words: Sequence[str | None]) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int32)), pa.array(words, pa.string()))


def _waiting_columns(found: Waiting | None, order: Int64, names: Sequence[str]) -> dict[str, pa.Array]:
    if found is None:
        kinds = {name: pa.bool_() if name.startswith("is_") else pa.int64() for name in names}
        return {name: pa.nulls(order.size, kind) for name, kind in kinds.items()}
    unknown = ~found.is_matched[order]
    return {name: pa.array(getattr(found, name)[order], mask=unknown) for name in names}


def _per_second(n_bytes: object, transfer: object) -> pa.Array:
    """Divide bytes by ns; null where either is, or where nothing was transferred."""
    seconds = pc.divide(pc.cast(transfer, pa.float64(), safe=False), _NS_PER_S)
    return pc.divide(pc.cast(n_bytes, pa.float64(), safe=False), pc.if_else(pc.equal(seconds, 0.0), None, seconds))


def numbered(rows: CommRows, found: Waiting | None) -> Int64:
    """Return the place of each collective in its step, in order of first start; unmatched ones of a rank come after."""
    if found is None:
        is_matched, collective, first = np.zeros(len(rows), np.bool_), rows.rank, rows.start_ns
    else:
        is_matched, collective, first = found.is_matched, found.collective_id, found.first_start_ns
    seq = np.zeros(len(rows), np.int64)
    matched = np.flatnonzero(is_matched & rows.in_step)
    order = matched[np.lexsort((collective[matched], first[matched], rows.step[matched]))]
    is_new = np.ones(order.size, np.bool_)
    is_new[1:] = collective[order[1:]] != collective[order[:-1]]
    seq[order] = _count_within(rows.step[order], is_new)
    steps, n_matched = np.unique(rows.step[order[is_new]], return_counts=True)
    rest = np.flatnonzero(~is_matched & rows.in_step)
    order = rest[np.lexsort((rows.start_ns[rest], rows.rank[rest], rows.step[rest]))]
    owner = rows.step[order] * (int(rows.rank.max(initial=0)) + 1) + rows.rank[order]
    seq[order] = places_in_runs(owner)
    if steps.size:
        at = np.minimum(np.searchsorted(steps, rows.step[order]), steps.size - 1)
        seq[order] += np.where(steps[at] == rows.step[order], n_matched[at], 0)
    return seq


def _count_within(owner: Int64, is_new: Flags) -> Int64:
    """Count the new ones from 0 within each run of equal owners."""
    count = np.cumsum(is_new)
    begins = run_starts(owner)
    return count - np.repeat(count[begins], np.diff(begins, append=owner.size))


def _bytes(rows: CommRows, sizes: Int64) -> tuple[Int64, NDArray[np.float64], Flags]:
    """Return each operation's whole message (`ABSENT`: not known), its bus bytes, and whether those are known."""
    n_ranks = sizes[rows.communicator] if len(rows) else rows.rank
    message = np.full(len(rows), ABSENT)
    bus = np.zeros(len(rows))
    known = rows.message_bytes != ABSENT
    for code, name in enumerate(COLLECTIVES):
        own = known & (rows.collective == code)
        whole = whole_message(name, rows.message_bytes[own], n_ranks[own])
        message[own] = np.where((n_ranks[own] == 0) & (name in PER_RANK), ABSENT, whole)
        factor = bus_factor(name, np.maximum(n_ranks[own], 1).astype(np.float64))
        bus[own] = whole * factor
    return message, bus, known & (message != ABSENT) & (n_ranks > 0)


def step_bytes(across: CrossRank, sizes: Int64, rank: Int64, step: Int64) -> tuple[Int64, Flags]:
    """Return the bytes of the messages that belong to each (rank, step), and whether all of them are known."""
    rows = across.rows
    message, _, _ = _bytes(rows, sizes)
    width = len(across.placed)
    wanted = step * width + rank
    order = np.argsort(wanted, kind="stable")
    own = np.flatnonzero(rows.in_step)
    key = rows.step[own] * width + rows.rank[own]
    at = np.minimum(np.searchsorted(wanted[order], key), max(wanted.size - 1, 0))
    hit = wanted[order][at] == key if wanted.size else np.zeros(key.size, np.bool_)
    place, found = order[at[hit]], message[own[hit]]
    totals, n_absent = np.zeros(wanted.size, np.int64), np.zeros(wanted.size, np.int64)
    np.add.at(totals, place, np.where(found == ABSENT, 0, found))
    np.add.at(n_absent, place, found == ABSENT)
    return totals, n_absent == 0


def stragglers_table(
    collectives: pa.Table, steps: pa.Table, ranks: Sequence[int], *, is_capture: bool = False
) -> pa.Table:
    """Return `schema.STRAGGLERS` over the summary steps; figures are null where nothing could be matched.

    Lateness is of a step: in a capture without steps it is null.
    """
    counts = pc.and_(collectives["in_summary"], collectives["is_matched"])
    chosen = collectives.filter(counts)
    in_figures = steps.filter(steps["in_summary"])
    # Where every waiting time is known and nothing matched, there was no communication.
    has_waits = in_figures.num_rows > 0 and not in_figures["wait_ns"].null_count
    is_known = chosen.num_rows > 0 or has_waits
    rank = chosen["rank"].to_numpy()
    late_by = pc.fill_null(chosen["late_by_ns"], 0).to_numpy()
    lateness = _lateness(rank, chosen["step"].to_numpy(), late_by)
    numbers, place = np.unique(rank, return_inverse=True)
    n_late, caused = np.zeros(numbers.size, np.int64), np.zeros(numbers.size, np.int64)
    np.add.at(n_late, place, late_by != 0)
    np.add.at(caused, place, late_by)
    of_rank = dict(zip(numbers.tolist(), zip(n_late.tolist(), caused.tolist(), strict=True), strict=True))
    sums = in_figures.group_by("rank").aggregate([("wait_ns", "sum", pc.ScalarAggregateOptions(skip_nulls=False))])
    waits = dict(zip(sums["rank"].to_pylist(), sums["wait_ns_sum"].to_pylist(), strict=True))
    held_up = held_up_by_step(chosen, steps)
    held_up = held_up.filter(held_up["is_alone"])
    held_up = held_up.group_by("rank").aggregate([("held_up_ns", "sum")])
    held_up_of = dict(zip(held_up["rank"].to_pylist(), held_up["held_up_ns_sum"].to_pylist(), strict=True))
    rows: list[Mapping[str, object]] = []
    for number in ranks:
        row: dict[str, object] = {"rank": number, "wait_ns": waits.get(number)}
        if is_known:
            row["n_arrived_last"], row["wait_caused_ns"] = of_rank.get(number, (0, 0))
            row["lateness_ns"] = None if is_capture else sum(lateness.get(number, {}).values())
            row["held_up_ns"] = held_up_of.get(number, 0)
        rows.append(row)
    return schema.STRAGGLERS.from_rows(rows)


def _lateness(rank: Int64, step: Int64, late_by: Int64) -> dict[int, dict[int, int]]:
    """Return by rank and step the largest delay of the step, for the rank that caused it (of equal ones the first)."""
    late = np.flatnonzero(late_by)
    order = late[np.lexsort((late, -late_by[late], step[late]))]
    found: dict[int, dict[int, int]] = {}
    for at in order[run_starts(step[order])].tolist():
        found.setdefault(int(rank[at]), {})[int(step[at])] = int(late_by[at])
    return found
