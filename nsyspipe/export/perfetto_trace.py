"""A run as a Perfetto trace: all ranks on one clock, a process track for each."""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.export.perfetto_collectives import with_last_rank
from nsyspipe.export.perfetto_derived import bin_edges
from nsyspipe.export.perfetto_packets import track_name_at_head
from nsyspipe.export.perfetto_rank import RankTracks, process_track
from nsyspipe.export.perfetto_slices import Slices, Values, same_text, shown
from nsyspipe.export.perfetto_writer import TraceWriter, Track
from nsyspipe.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from nsyspipe.header import RunHeader
    from nsyspipe.run import Run

__all__ = ["perfetto", "run_id_of_trace", "write_trace"]

_HEAD = "nsyspipe run_id="
_NS_PER_S = 10**9


def perfetto(
    run: Run,
    file: BinaryIO,
    *,
    steps: tuple[int, int] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> None:
    """Write a run as a Perfetto trace; see `write_trace`.

    Parameters
    ----------
    file
        Open for binary writing; ranks are written one after the other.
    steps
        The first and the last step to show, by number; None shows everything captured.
    on_progress
        Called with (ranks read, ranks in all).

    Raises
    ------
    OptionError
        If there is no such step.
    DatasetError
        If the run was saved without its operations.
    """
    table = run.steps()
    if steps is not None:
        first, last = steps
        number = table["step"]
        table = table.filter(pc.and_(pc.greater_equal(number, first), pc.less_equal(number, last)))
    write_trace(
        file,
        header=run.header,
        ranks=run.ranks,
        steps=table,
        step_family=run.step_family,
        collectives=run.collectives(),
        operations=_counted(run, steps, on_progress),
    )


def _counted(
    run: Run, steps: tuple[int, int] | None, on_progress: Callable[[int, int], None] | None
) -> Iterator[tuple[int, pa.Table, pa.Table]]:
    n_ranks = run.ranks.num_rows
    for n_done, found in enumerate(run.operations(steps), start=1):
        if on_progress:
            on_progress(n_done, n_ranks)
        yield found


def write_trace(
    file: BinaryIO,
    *,
    header: RunHeader,
    ranks: pa.Table,
    steps: pa.Table,
    step_family: str | None,
    collectives: pa.Table,
    operations: Iterable[tuple[int, pa.Table, pa.Table]],
) -> None:
    r"""Write tables of a run as a Perfetto trace.

    Below the track of each rank, ranks in order, stand

    - ``steps``: the windows on the device. Below them ``phases on device``, ``exposed communication`` (``M \ C``),
      ``waiting in communication`` (W), ``compute busy`` and ``communication busy`` (percent of each bin, see
      `perfetto_derived.bin_edges`), ``phases on host``. Exposed, waiting and busy are clipped to the windows: what
      lies in a window sums to the figure of its step exactly. A track without slices is a true zero; what was not
      recorded has no track.
    - a thread for each (device, stream) with all operations. What overlaps on a stream stands on further threads.

    Arrows link the ranks of each matched collective in order of arrival. Times are aligned times; where some rank's
    clock starts before 0 they are shifted by whole seconds (``time_shift_ns`` of the first track). Every slice tells
    its aligned start as ``start_ns``.

    Parameters
    ----------
    steps
        Rows of `schema.STEPS` to show, of all ranks.
    step_family
        The NVTX texts that are the steps; None where the only step is the whole capture.
    collectives
        `schema.COLLECTIVES`, of all steps.
    operations
        Each rank, in order, with its `schema.EVENTS` and `schema.PHASE_RANGES`. An operation that lies in a window
        must be there, whatever step it belongs to: exposed communication is measured on them.

    Notes
    -----
    Holds the columns of one rank and the packets of some thousand slices. Costs about 5 us per operation.
    """
    shift = _shift(ranks)
    writer = TraceWriter(file, shift)
    writer.write_slices(Track(f"{_HEAD}{header.run_id}"), _run_slice(header, steps, shift))
    writer.write_order()
    edges, collectives = bin_edges(steps), with_last_rank(collectives)
    rows = {row["rank"]: (place, row) for place, row in enumerate(ranks.to_pylist())}
    for rank, events, ranges in operations:
        place, row = rows[rank]
        track = process_track(row, place)
        shown_steps = steps.filter(pc.equal(steps["rank"], rank))
        RankTracks(
            writer=writer,
            parent=writer.write_track(track),
            process=track.process,
            steps=shown_steps,
            step_names=_names(shown_steps["step"], step_family),
            collectives=collectives.filter(pc.equal(collectives["rank"], rank)),
            edges=edges,
        ).write(events, ranges)


def run_id_of_trace(path: Path) -> str | None:
    """Return the id of the run that a trace was written of; None for any other file. Reads its first packet only."""
    try:
        with path.open("rb") as file:
            name = track_name_at_head(file)
    except OSError:
        return None
    return name.removeprefix(_HEAD) if name is not None and name.startswith(_HEAD) else None


def _names(steps: pa.ChunkedArray, family: str | None) -> pa.ChunkedArray:
    numbers = steps.cast(pa.string())
    if family is None:
        return pc.if_else(pc.is_valid(numbers), "whole capture", numbers)
    return pc.binary_join_element_wise("step", numbers, " ")


def _shift(ranks: pa.Table) -> int:
    """Return the whole seconds, in ns, that bring the start of every rank's clock to 0 or later."""
    earliest = pc.min(ranks["clock_shift_ns"]).as_py() or 0
    return -min(earliest // _NS_PER_S, 0) * _NS_PER_S


def _run_slice(header: RunHeader, steps: pa.Table, shift: int) -> Slices:
    """Return one slice over all windows that tells what the trace is of."""
    first, last = pc.min(steps["start_ns"]).as_py() or 0, pc.max(steps["end_ns"]).as_py() or 0
    texts = {
        "run_id": header.run_id,
        "captured_at_utc": header.captured_at_utc,
        "nsyspipe": __version__,
    }
    numbers = {"n_ranks": header.n_ranks, "world_size": header.world_size, "time_shift_ns": shift}
    notes = {name: same_text(shown(text), 1) for name, text in texts.items() if text is not None}
    notes |= {
        name: Values(np.array([number]), np.ones(1, np.bool_))
        for name, number in numbers.items()
        if number is not None
    }
    label, category = same_text(shown(header.label), 1), same_text("run", 1)
    return Slices(np.array([first]), np.array([last]), label, category, notes)
