"""The communication operations of one rank, each with its step, its kind and its communicator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from nsyspipe.analysis.attribution import NEVER
from nsyspipe.analysis.intervals import places_in_runs
from nsyspipe.analysis.messages import ALL_TO_ALL, assign_messages
from nsyspipe.model import canonical
from nsyspipe.model.names import COLLECTIVES, algorithm_of, collective_of, datatype_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from nsyspipe.analysis.attribution import ProcessOperations
    from nsyspipe.analysis.step_families import Members
    from nsyspipe.analysis.steps import Windows
    from nsyspipe.model.types import Int64


NO_MEMBER = -1


@dataclass(frozen=True)
class CommKind:
    """What the name of a communication kernel says; None where it says nothing."""

    collective: str
    datatype: str | None
    algorithm: str | None


@dataclass(frozen=True)
class CommOperations:
    """The communication of one rank."""

    kinds: tuple[CommKind, ...]  # what the column ``kind`` of the table counts
    table: pa.Table  # `canonical.COMM_OPERATIONS`


def comm_operations(
    operations: ProcessOperations,
    names: Mapping[int, str],
    members: Members,
    windows: Windows,
    *,
    payloads: pa.Table,
    is_one_window: bool,
) -> CommOperations:
    """List the communication operations of one rank in order of start.

    An operation belongs to the step range that holds its launch; one without a launch to the window
    that its start falls in.

    Parameters
    ----------
    names
        Text by name id.
    payloads
        `canonical.PAYLOADS` of the process.
    is_one_window
        Whether the rank's capture is its only window, which holds all of them.
    """
    rows = np.flatnonzero(operations.is_comm)
    rows = rows[np.argsort(operations.kernel_start[rows], kind="stable")]
    start, launch = operations.kernel_start[rows], operations.kernel_launch[rows]
    member = members_holding(members, windows, launch, start, is_one_window=is_one_window)
    kinds, kind = _kinds(operations.kernel_column("name_id")[rows], names)
    collective = np.array([COLLECTIVES.index(one.collective) for one in kinds], np.int64)
    order = _stream_order(
        np.where(launch == NEVER, start, launch),
        member,
        collective[kind] if kinds else kind,
        *(operations.kernel_column(name)[rows] for name in ("device_id", "stream_id")),
    )
    told = _messages(payloads, launch, [one.collective for one in kinds], kind)
    table = canonical.COMM_OPERATIONS.table(
        {
            "start_ns": start,
            "end_ns": operations.kernel_end[rows],
            "member": member,
            "kind": kind,
            "stream_order": order,
            **told,
        }
    )
    return CommOperations(tuple(kinds), table)


def _messages(
    payloads: pa.Table, launch: Int64, collectives: list[str], kind: Int64
) -> dict[str, pa.Array]:
    """Return what NCCL's payload says of each operation; null where nothing is certain."""
    if not payloads.num_rows:
        unknown = pa.nulls(launch.size, pa.int64())
        names = "comm_id", "seq_number", "message_bytes", "called"
        return dict.fromkeys(names, unknown)
    texts = pa.DictionaryArray.from_arrays(
        pa.array(kind.astype(np.int32)), pa.array(collectives, pa.string())
    )
    found = assign_messages(payloads, launch, None, texts)
    return {
        "comm_id": pa.array(found.comm_id, mask=~found.has_comm_id),
        "seq_number": pa.array(found.seq, mask=~found.has_seq),
        "message_bytes": pa.array(found.message_bytes, mask=~found.has_bytes),
        "called": pa.array(
            np.full(launch.size, COLLECTIVES.index("all_to_all")), mask=found.kind != ALL_TO_ALL
        ),
    }


def members_holding(
    members: Members, windows: Windows, launch: Int64, start: Int64, *, is_one_window: bool
) -> Int64:
    """Return the step range that each operation belongs to, as an index; `NO_MEMBER` for none.

    Parameters
    ----------
    launch, start
        Of each operation, report time, ns; a launch is `attribution.NEVER` where there is none.
    is_one_window
        Whether the rank's capture is its only window, which holds all operations.
    """
    if is_one_window:
        return np.zeros(launch.size, np.int64)
    own = _inside(members.starts, members.ends, np.arange(members.starts.size), launch)
    never = np.flatnonzero(launch == NEVER)
    own[never] = _inside(windows.starts, windows.ends, windows.member, start[never])
    return own


def _inside(starts: Int64, ends: Int64, member: Int64, times: Int64) -> Int64:
    """Return the member whose range holds each time; `NO_MEMBER` for none."""
    if not starts.size:
        return np.full(times.size, NO_MEMBER)
    at = np.searchsorted(starts, times, side="right") - 1
    return np.where((at >= 0) & (times < ends[at]), member[at], NO_MEMBER)


def _kinds(name_ids: Int64, names: Mapping[int, str]) -> tuple[list[CommKind], Int64]:
    ids, index = np.unique(name_ids, return_inverse=True)
    texts = [names.get(number, "") for number in ids.tolist()]
    found = [CommKind(collective_of(one), datatype_of(one), algorithm_of(one)) for one in texts]
    kinds = sorted(
        set(found), key=lambda one: (one.collective, one.datatype or "", one.algorithm or "")
    )
    code = np.array([kinds.index(one) for one in found], np.int64)
    return kinds, code[index] if found else index


def _stream_order(
    used: Int64, member: Int64, collective: Int64, device: Int64, stream: Int64
) -> Int64:
    """Return which (device, stream) of its collective each uses, in order of first use: a stream id means nothing elsewhere.

    Used is when it was launched: the host does so in the same order on every rank, the device may not.
    The order is that of most steps, since a capture may begin or end between two streams' operations.
    """
    if not collective.size:
        return collective
    codes = [np.unique(column, return_inverse=True)[1] for column in (device, stream)]
    place = (collective * (codes[0].max() + 1) + codes[0]) * (codes[1].max() + 1) + codes[1]
    _, first, pair = np.unique(place, return_index=True, return_inverse=True)
    of_pair = collective[first]
    mean_place, last_place = _places_in_steps(used, member, pair, of_pair)
    first_use = np.full(first.size, NEVER)
    np.minimum.at(first_use, pair, used)
    order = np.lexsort((first, first_use, last_place, mean_place, of_pair))
    numbers = np.empty(order.size, np.int64)
    numbers[order] = places_in_runs(of_pair[order])
    return numbers[pair]


def _places_in_steps(
    used: Int64, member: Int64, pair: Int64, of_pair: Int64
) -> tuple[NDArray[np.float64], Int64]:
    """Return when steps begin to use each stream, among its collective's: the mean place, and that in the last step.

    A capture that begins inside a step changes the order there; at its end streams are only missing.
    """
    inside = np.flatnonzero(member != NO_MEMBER)
    mean, last = np.full(of_pair.size, np.inf), np.zeros(of_pair.size, np.int64)
    if not inside.size:
        return mean, last
    key = member[inside] * of_pair.size + pair[inside]
    cells, cell = np.unique(key, return_inverse=True)
    first_use = np.full(cells.size, NEVER)
    np.minimum.at(first_use, cell, used[inside])
    own_pair = cells % of_pair.size
    group = cells // of_pair.size * (int(of_pair.max()) + 1) + of_pair[own_pair]
    order = np.lexsort((own_pair, first_use, group))
    places = places_in_runs(group[order])
    total, count = np.zeros(of_pair.size), np.bincount(own_pair, minlength=of_pair.size)
    np.add.at(total, own_pair[order], places)
    known = count > 0
    mean[known] = total[known] / count[known]
    last[own_pair[order]] = places  # steps come in order, so the last one stays
    return mean, last
