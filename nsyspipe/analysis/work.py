"""FLOPs of a step against the peak of the GPU, and the ladder from step time to ideal compute."""

from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from nsyspipe.model.table import Int64
from nsyspipe.model.typed_tables import StepsTable

_NS_PER_S = 10**9
# The rungs of the ladder, which sum to `wall_ns`, from avoidable time to the least possible.
RUNGS = ("exposed_comm_ns", "exposed_memory_ns", "idle_ns", "slow_compute_ns", "ideal_compute_ns")


class RankWork(Struct, frozen=True):
    """What each complete step of one rank works on. None means not known."""

    # Of the whole job.
    tokens: int | None = None
    samples: int | None = None
    # Of the rank.
    flops: int | None = None
    # Of its GPU and datatype, dense.
    peak_flops_per_s: int | None = None
    # The datatype of the peak, one of `peaks.DATATYPES`, and what shows it.
    peak_datatype: str | None = None
    peak_datatype_source: str | None = None

    @property
    def ideal_compute_ns(self) -> int | None:
        """FLOPs / peak, rounded to the nearest ns. It is rounded nowhere else."""
        if self.flops is None or self.peak_flops_per_s is None:
            return None
        half = self.peak_flops_per_s // 2
        return (self.flops * _NS_PER_S + half) // self.peak_flops_per_s


def work_columns(
    works: Sequence[RankWork], rank_place: Int64, windows: Mapping[str, pa.ChunkedArray]
) -> dict[str, pa.Array | pa.ChunkedArray]:
    """Return the columns of `schema.STEPS` about work.

    `works` is what each rank works on, and `rank_place` is the place of the rank of each window.
    The columns are null for incomplete steps, of which nobody knows the work. Slow compute is also
    null if ideal compute is longer than compute, which is impossible. Then FLOPs or peak are wrong.
    """
    places = pa.array(rank_place)
    is_complete = windows["is_complete"]

    def of_windows(values: Sequence[int | None]) -> pa.Array | pa.ChunkedArray:
        taken = pa.array(values, pa.int64()).take(places)
        return pc.if_else(is_complete, taken, None)

    ideal_ns = of_windows([work.ideal_compute_ns for work in works])
    slow_ns = pc.subtract(windows["compute_ns"], ideal_ns)
    is_possible = pc.greater_equal(slow_ns, 0)
    tokens = [work.tokens for work in works]
    samples = [work.samples for work in works]
    flops = [work.flops for work in works]
    return {
        "tokens": of_windows(tokens),
        "samples": of_windows(samples),
        "flops": of_windows(flops),
        "ideal_compute_ns": ideal_ns,
        "slow_compute_ns": pc.if_else(is_possible, slow_ns, None),
    }


def n_faster_than_peak(steps: StepsTable) -> int:
    """Return in how many rows ideal compute is longer than compute, which is impossible."""
    is_faster = pc.greater(steps["ideal_compute_ns"], steps["compute_ns"])
    n_faster: int | None = pc.sum(is_faster).as_py()
    return n_faster or 0


class Ladder(Struct, frozen=True):
    """The mean step time of ranks as the sum of its rungs, exactly."""

    # In the order of `RUNGS`, each from its own numerator.
    rungs_ns: dict[str, Fraction]
    # The mean window of a rank.
    wall_ns: Fraction


def ladder(steps: StepsTable) -> Ladder | None:
    """Return the mean window of a rank as a ladder: the sum of the mean times in `RUNGS`.

    `steps` has a row per rank and step. None if a time is not known in a row, or without rows.
    """
    means = {}
    for name in (*RUNGS, "wall_ns"):
        values = steps.column(name)
        if values.null_count or not len(values):
            return None
        # Python's integers do not overflow.
        total_ns = sum(np.asarray(values).tolist())
        means[name] = Fraction(total_ns, len(values))
    wall_ns = means.pop("wall_ns")
    return Ladder(means, wall_ns)
