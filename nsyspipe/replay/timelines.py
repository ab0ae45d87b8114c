"""The operations that a replay needs of each rank: its main stream, its collectives, its windows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.model.names import PHASES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from nsyspipe.model.types import Flags, Int64
    from nsyspipe.run.run import Run


# The launch of what has none: before everything.
NEVER = -(2**62)
_COPY_NAME = "memcpy DtoD"
_NO_PHASE = -1


@dataclass(frozen=True)
class Windows:
    """The windows to replay, the same steps on every rank.

    Attributes
    ----------
    steps
        Step numbers in order.
    edges
        Row per edge (one more than steps), column per rank: where each window starts, and the last one ends; aligned ns.
    counts
        Which of the steps count in the run's figures.
    """

    ranks: tuple[int, ...]
    steps: Int64
    edges: Int64
    counts: Flags

    def step_times(self, edges: NDArray[np.float64] | None = None) -> NDArray[np.float64]:
        """Return the largest window over ranks of each step that counts, ns."""
        found = self.edges if edges is None else edges
        longest: NDArray[np.float64] = np.diff(found, axis=-2).max(axis=-1)[..., self.counts]
        return longest


@dataclass(frozen=True)
class Collectives:
    """A rank's communication operations, in order of launch; times aligned, ns."""

    start: Int64
    end: Int64
    launch: Int64
    step: Int64
    seq: Int64
    phase: Int64
    stream: Int64
    kind: NDArray[np.object_]


@dataclass(frozen=True)
class RankTimeline:
    """What one rank did between the first and the last edge of its windows; times aligned, ns.

    Attributes
    ----------
    start, end, launch, step, phase, name, n_bytes, is_copy
        Of the operations of the main stream, in order of start: the one with most compute time. One without a launch
        has that of the one before it.
    names
        What ``name`` counts.
    busy_ns
        Compute time of the main stream.
    n_without_launch
        Operations of it whose launch was not recorded.
    n_hooked, hooked_ns
        Compute kernels on a stream of communication, and their time.
    next_launch
        When what begins the window after the last one was launched; `NEVER` where there is none.
    n_outside
        Communication operations that belong to no step.
    """

    rank: int
    start: Int64
    end: Int64
    launch: Int64
    step: Int64
    phase: Int64
    name: Int64
    names: tuple[str, ...]
    n_bytes: Int64
    is_copy: Flags
    is_compute: Flags
    busy_ns: int
    n_without_launch: int
    n_hooked: int
    hooked_ns: int
    next_launch: int
    n_outside: int
    collectives: Collectives


def summary_windows(run: Run) -> Windows | None:
    """Return the windows from the first to the last summary step; None unless all ranks have them, complete and one after the other."""
    table = run.steps()
    ranks = tuple(run.ranks["rank"].to_pylist())
    chosen = table.filter(table["in_summary"])
    if not chosen.num_rows or not pc.all(chosen["is_complete"]).as_py():
        return None
    bounds = pc.min_max(chosen["step"]).as_py()
    held = table.filter(
        pc.and_(
            pc.greater_equal(table["step"], bounds["min"]),
            pc.less_equal(table["step"], bounds["max"]),
        )
    )
    steps = np.unique(held["step"].to_numpy())
    rank, step = held["rank"].to_numpy(), held["step"].to_numpy()
    order = np.lexsort((step, rank))
    if not np.array_equal(rank[order], np.repeat(ranks, steps.size)):
        return None
    shape = (len(ranks), steps.size)
    starts = held["start_ns"].to_numpy()[order].reshape(shape)
    ends = held["end_ns"].to_numpy()[order].reshape(shape)
    if not np.array_equal(ends[:, :-1], starts[:, 1:]):
        return None
    counts = np.isin(steps, np.unique(chosen["step"].to_numpy()))
    return Windows(ranks, steps, np.concatenate((starts, ends[:, -1:]), axis=1).T, counts)


def rank_timelines(run: Run, windows: Windows) -> list[RankTimeline]:
    """Read what each rank did in the windows, in order of rank.

    Raises
    ------
    DatasetError
        If the run was saved without its operations.
    """
    # What begins the window after the last one tells why it did not begin earlier.
    known = run.steps()["step"].to_numpy()
    last = int(windows.steps[-1])
    span = int(windows.steps[0]), int(known[known > last].min(initial=known.max(initial=last)))
    found = {rank: events for rank, events, _ in run.operations(span)}
    return [
        _timeline(rank, found[rank], windows.edges[0, at], windows.edges[-1, at])
        for at, rank in enumerate(windows.ranks)
    ]


def _timeline(rank: int, events: pa.Table, first: int, last: int) -> RankTimeline:
    columns = _columns(events)
    start = columns["start"]
    is_comm, is_compute = (
        pc.equal(events["category"], word).to_numpy(zero_copy_only=False)
        for word in ("comm", "compute")
    )
    duration = events["dur_ns"].to_numpy()
    stream = _streams(events)
    inside = (start >= first) & (start < last)
    main = _main_stream(stream, duration, is_compute & inside)
    # In order of start, which is that of launch on one stream.
    rows = np.flatnonzero(inside & ~is_comm & (stream == main))
    codes = events["name"].combine_chunks().dictionary_encode()
    name, names = codes.indices.to_numpy(), tuple(codes.dictionary.to_pylist())
    comm = np.flatnonzero(inside & is_comm)
    hooked = is_compute & inside & np.isin(stream, stream[comm])
    after = np.flatnonzero((start >= last) & (is_comm | is_compute))
    own = {key: value[rows] for key, value in columns.items()}
    n_without_launch = int(np.count_nonzero(own["launch"] == NEVER))
    own["launch"] = _after_the_one_before(own["launch"])
    return RankTimeline(
        rank=rank,
        **own,
        name=name[rows].astype(np.int64),
        names=names,
        n_bytes=_filled(events["bytes"], 0)[rows],
        is_copy=_is_named(names, _COPY_NAME)[name[rows]],
        is_compute=is_compute[rows],
        busy_ns=int(duration[rows][is_compute[rows]].sum()),
        n_without_launch=n_without_launch,
        n_hooked=int(np.count_nonzero(hooked)),
        hooked_ns=int(duration[hooked].sum()),
        next_launch=int(columns["launch"][after[np.argmin(start[after])]]) if after.size else NEVER,
        n_outside=int(np.count_nonzero(columns["step"][comm] == NEVER)),
        collectives=_collectives(events, columns, stream, comm),
    )


def _columns(events: pa.Table) -> dict[str, Int64]:
    """Return what is asked of every operation."""
    return {
        "start": events["start_ns"].to_numpy(),
        "end": events["end_ns"].to_numpy(),
        "launch": _filled(events["launch_ns"], NEVER),
        "step": _filled(events["step"], NEVER),
        "phase": _phases(events["phase"]),
    }


def _after_the_one_before(launch: Int64) -> Int64:
    """Let an operation without a launch, of those in order of start, have been launched with the one before it."""
    return np.where(launch == NEVER, np.maximum.accumulate(launch), launch)


def _collectives(
    events: pa.Table, columns: dict[str, Int64], stream: Int64, comm: Int64
) -> Collectives:
    """Return the communication operations that belong to a step, in order of launch."""
    comm = comm[columns["step"][comm] != NEVER]
    order = comm[np.lexsort((columns["start"][comm], columns["launch"][comm]))]
    return Collectives(
        **{key: value[order] for key, value in columns.items()},
        seq=_filled(events["seq"], NEVER)[order],
        stream=stream[order],
        kind=np.asarray(events["collective"].take(pa.array(order)).to_pylist(), object),
    )


def _streams(events: pa.Table) -> Int64:
    """Return one number per (device, stream)."""
    device, stream = (_filled(events[name], -1) for name in ("device_id", "stream_id"))
    _, codes = np.unique(np.stack((device, stream)), axis=1, return_inverse=True)
    return codes.reshape(-1)


def _main_stream(stream: Int64, duration: Int64, chosen: Flags) -> int:
    if not chosen.any():
        return -1
    return int(np.argmax(np.bincount(stream[chosen], weights=duration[chosen])))


def _phases(column: pa.ChunkedArray) -> Int64:
    places = pc.index_in(column, value_set=pa.array(PHASES, pa.string()))
    return _filled(places, _NO_PHASE).astype(np.int64)


def _is_named(names: Sequence[str], wanted: str) -> Flags:
    return np.array([name == wanted for name in names], np.bool_)


def _filled(column: pa.ChunkedArray, value: int) -> Int64:
    filled: Int64 = (pc.fill_null(column, value) if column.null_count else column).to_numpy()
    return filled
