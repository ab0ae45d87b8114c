"""Kinds of runs: runs of the same work, which may share a series of step times."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

from nsyspipe.run.work import Work, parted

# A run is compared with so many runs of a kind at each end, those of least and of most compute.
MAX_COMPARED_RUNS_PER_END = 8


@dataclass(frozen=True)
class WorkingRun:
    """A run whose work is known."""

    # Among the rows of all runs.
    place: int
    run_id: str
    label: str
    work: Work

    @property
    def compute_ns(self) -> float:
        """Compute time of a step; infinite where it is not known."""
        return self.work.busy_ns or math.inf


def kinds_of_work(runs: Sequence[WorkingRun]) -> list[list[WorkingRun]]:
    """Return the runs of each work, by compute time and then by run id."""
    by_compute = sorted(runs, key=attrgetter("compute_ns", "run_id"))
    return parted(by_compute, _fits_kind)


def _fits_kind(run: WorkingRun, kind: Sequence[WorkingRun]) -> bool:
    """Tell whether a run does the same work as the runs of a kind.

    The runs of a kind are sorted by compute time. Of a large kind, only those with the least and
    with the most compute are compared.
    """
    if len(kind) > 2 * MAX_COMPARED_RUNS_PER_END:
        least_compute = kind[:MAX_COMPARED_RUNS_PER_END]
        most_compute = kind[-MAX_COMPARED_RUNS_PER_END:]
        compared = [*least_compute, *most_compute]
    else:
        compared = [*kind]
    works = [member.work for member in compared]
    return not any(map(run.work.is_unlike, works))


def are_most_labels_shared(runs: Sequence[WorkingRun]) -> bool:
    """Tell whether at least half of the runs share their label with another run."""
    n_runs_by_label = Counter(run.label for run in runs)
    numbers_of_runs = n_runs_by_label.values()
    n_sharing = sum(n_runs for n_runs in numbers_of_runs if n_runs > 1)
    return 2 * n_sharing >= len(runs)
