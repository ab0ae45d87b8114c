"""The summary steps of one run as matrices: a row per rank, a column per step, in the order of time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc

from nsyspipe.errors import DatasetError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from nsyspipe.run import Run

    Int64 = NDArray[np.int64]

__all__ = ["StepTable", "has_whole_graphs"]

_WHOLE_GRAPHS = {"graphs-as-a-whole", "comm-in-graphs"}


def has_whole_graphs(run: Run) -> bool:
    """Tell whether CUDA graphs of a run were captured as a whole, so that nothing inside them was seen."""
    return not _WHOLE_GRAPHS.isdisjoint(run.problems["code"].to_pylist())


@dataclass(frozen=True)
class StepTable:
    """The figures' steps of a run.

    Every rank has every summary step, so that their rows make a matrix.

    Attributes
    ----------
    hides_idle
        Idle time is null: CUDA graphs were captured as a whole, and not so in what the run is compared with. Gaps inside
        them are not seen.
    """

    run: Run
    hides_idle: bool = False

    @classmethod
    def of_sides(cls, *sides: Sequence[Run]) -> tuple[list[StepTable], ...]:
        """Return the captures of each side that is compared with the others."""
        is_whole = [[has_whole_graphs(run) for run in side] for side in sides]
        is_mixed = len({one for side in is_whole for one in side}) > 1
        return tuple(
            [cls(run, hides_idle=is_mixed and own) for run, own in zip(*one, strict=True)]
            for one in zip(sides, is_whole, strict=True)
        )

    @cached_property
    def rows(self) -> pa.Table:
        """`schema.STEPS` of the summary steps."""
        return self.run.breakdown()

    @property
    def ranks(self) -> list[int]:
        """The ranks, ascending: the matrices' rows."""
        ranks: list[int] = sorted(self.rows["rank"].unique().to_pylist())
        return ranks

    @property
    def n_steps(self) -> int:
        """How many summary steps there are; none in a capture without steps."""
        return 0 if self.run.is_capture else int(self._order.shape[1])

    @cached_property
    def steps(self) -> Int64:
        """Numbers of the steps: the matrices' columns."""
        numbers: Int64 = self.rows["step"].to_numpy()
        return numbers[self._order[0]] if self.n_steps else np.empty(0, np.int64)

    def matrix(self, column: str) -> Int64 | None:
        """Return a column of integers as ranks x steps; None where any of it is null, or without steps."""
        values = self.rows[column]
        if self.hides_idle and column.startswith("idle_"):
            return None
        if values.null_count or not self.n_steps:
            return None
        found: Int64 = values.to_numpy()[self._order]
        return found

    @cached_property
    def slowest(self) -> Int64:
        """For each step the row of the rank with the largest window (tie: the lowest rank)."""
        wall = self.matrix("wall_ns")
        return np.empty(0, np.int64) if wall is None else np.argmax(wall, axis=0)

    @cached_property
    def _order(self) -> Int64:
        """Where in the table each cell of a matrix is."""
        rank, step = self.rows["rank"].to_numpy(), self.rows["step"].to_numpy()
        n_ranks = len(np.unique(rank))
        if not n_ranks:
            return np.empty((0, 0), np.int64)
        cells = np.lexsort((step, rank))
        if (
            cells.size % n_ranks
            or (step[cells.reshape(n_ranks, -1)] != step[cells[: cells.size // n_ranks]]).any()
        ):
            raise DatasetError(
                self.run.header.run_id,
                "has figures of steps that not every rank has",
                fix="analyze its reports again",
            )
        cells = cells.reshape(n_ranks, -1)
        # Numbers need not ascend with time; statistics look at neighbours in time.
        by_time = np.argsort(self.rows["start_ns"].to_numpy()[cells[0]], kind="stable")
        return cells[:, by_time]

    @cached_property
    def transfers(self) -> dict[str, NDArray[np.float64] | None]:
        """Sums per step over matched collectives: transfer time, message bytes, bus bytes; None where one is null."""
        found = self.run.collectives()
        chosen = found.filter(pc.and_(found["in_summary"], found["is_matched"]))
        ordered = np.sort(self.steps)
        place = np.argsort(self.steps, kind="stable")
        at = np.searchsorted(ordered, chosen["step"].to_numpy())
        sums: dict[str, NDArray[np.float64] | None] = {}
        for name in ("transfer_ns", "message_bytes", "bus_bytes"):
            values = chosen[name]
            if values.null_count or not chosen.num_rows:
                sums[name] = None
                continue
            total = np.zeros(self.n_steps)
            np.add.at(total, place[at], values.to_numpy().astype(np.float64))
            sums[name] = total
        return sums
