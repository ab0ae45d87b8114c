"""What a step of a run computes, by which programs are told apart whatever their steps are called; and in few bytes, as a store keeps it."""

from __future__ import annotations

import json
import math
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.analysis.traffic import dimensions, ranks_per_batch
from nsyspipe.model.comm_kernels import are_communication
from nsyspipe.model.figures import METRICS
from nsyspipe.model.names import is_matrix_product, ranges
from nsyspipe.model.problems import MIXED_RUNS
from nsyspipe.run.run import Run

# Compute of a step that is so many times as long may be of another model, batch or precision; of
# the same kernels.
_FAR_APART = 3.0
_FAR_APART_OF_SAME = 2.0
_MORE_OF_SAME = 1.5
# of a program's own kernels the other runs more, by time; of one in another precision it may be
# less
_FEW_SHARED = 0.5
# of all, matrix products as one
_LAUNCHES_ALIKE = 0.8
_LEAST_LAUNCHES = 1.0
_PRODUCTS = "matrix products"
_COMPUTE = METRICS["compute"].column
_WHOLE_GRAPHS = {"graphs-as-a-whole", "comm-in-graphs"}
_Member = TypeVar("_Member")


def has_whole_graphs(run: Run) -> bool:
    """Tell whether CUDA graphs of a run were captured as a whole, so that nothing inside them was seen."""
    return not _WHOLE_GRAPHS.isdisjoint([row["code"] for row in run.problem_rows])


def n_steps(run: Run) -> int:
    """Return how many summary steps a run has."""
    return int(run.summary()["n_summary_steps"][0].as_py())


def missing_ranks(run: Run) -> tuple[int, ...]:
    """Return which ranks of the job have no report."""
    # Reports without GPUs are there. A count is enough to compare by; of a damaged report it may be
    # any number.
    size = run.header.n_job_ranks if run.header.n_ranks else 0
    present = {*run.ranks["rank"].to_pylist()}
    return tuple(rank for rank in range(min(size or 0, 1 << 16)) if rank not in present)


def source_of_steps(run: Run) -> str:
    """Return in words what the steps of a run come from."""
    return "nothing: a capture" if run.is_capture else str(run.header.steps_from)


class Work(NamedTuple):
    """What a step of one rank computes, mean over captures."""

    busy_ns: float | None  # None where a capture has a step of which it is not known, or none
    kernels: dict[str, float]  # time of each that is no communication, ns
    launches: dict[
        str, float
    ]  # how often each runs, matrix products as one; empty where a capture does not tell
    per_batch: dict[
        str, tuple[int, bool]
    ]  # `ranks_per_batch` of each capture, by what is said of it
    alike: str = ""  # what else is the same of all that are ranked together

    @classmethod
    def of(cls, runs: Sequence[Run]) -> Work:
        """Return the work of the captures of one side."""
        means = [pc.mean(run.breakdown()[_COMPUTE], skip_nulls=False).as_py() for run in runs]
        rows = pa.concat_tables(
            run.kernels().select(["name", "total_ns", "n_in_summary"]) for run in runs
        )
        rows = rows.filter(pc.invert(are_communication(rows["name"])))
        kernels = defaultdict[str, float](float)
        launches = defaultdict[str, float](float)
        steps = sum(n_steps(run) * run.header.n_ranks for run in runs)
        is_counted = steps and not rows["n_in_summary"].null_count
        for name, ns, n in zip(
            *(rows[column].to_pylist() for column in rows.column_names), strict=True
        ):
            kernels[name] += ns
            if is_counted and n:
                launches[_PRODUCTS if is_matrix_product(name) else name] += n / steps
        busy = None if None in means else sum(means) / len(means)
        times = {name: ns for name, ns in kernels.items() if ns > 0}
        alike = " | ".join(map(_alike, runs))
        return cls(busy, times, launches, dict(map(_per_batch, runs)), alike)

    def saved(self) -> str:
        """Return it as JSON, kernels by a code of their names."""
        codes = {
            name: f"{zlib.crc32(name.encode(errors='replace')):x}"
            for name in {*self.kernels, *self.launches} - {_PRODUCTS}
        }
        numbers = (
            {codes.get(name, name): float(f"{n:.4g}") for name, n in some.items()}
            for some in self[1:3]
        )
        return json.dumps([self.busy_ns, *numbers, *self[3:]], separators=(",", ":"))

    @classmethod
    def parsed(cls, text: str | None) -> Work | None:
        """Return what `saved` wrote; None of anything else."""
        try:
            busy, kernels, launches, per_batch, alike = json.loads(text or "")
            batches = {
                str(words): (int(n), bool(is_all)) for words, (n, is_all) in per_batch.items()
            }
            times, numbers = (
                {name: float(n) for name, n in some.items() if n > 0}
                for some in (kernels, launches)
            )
            return cls(None if busy is None else float(busy), times, numbers, batches, str(alike))
        except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
            return None

    @property
    def n(self) -> float:
        """Kernels of a step."""
        return sum(self.launches.values())

    def shared(self, other: Work) -> float:
        """Return the share of the kernels' time that is in kernels which the other runs too."""
        return sum(ns for name, ns in self.kernels.items() if name in other.kernels) / sum(
            self.kernels.values()
        )

    @property
    def text(self) -> str:
        """It in words."""
        number = f" in {self.n:.4g} kernel{'s'[: self.n != 1]}" if self.launches else ""
        return f"{(self.busy_ns or 0.0) / 1e6:.4g} ms of compute{number}"

    def is_other(self, other: Work) -> bool:
        """Whether it is another program's, or another batch of it.

        Of kernels that both run by half of either's time: compute twice as long, or 1.5 times with
        1.5 times as many matrix products (more layers; micro-batches are more launches in the same
        time). Of other kernels: compute 3 times as long, or less than 0.8 of the launches alike (in
        another precision matrix products have other names).
        """
        times = sorted((self.busy_ns or 0.0, other.busy_ns or 0.0))
        longer = times[1] / times[0] if times[0] else 1.0
        if longer >= _FAR_APART:
            return True
        if max(self.shared(other), other.shared(self)) >= _FEW_SHARED:
            of_longer, of_shorter = (self, other) if times[1] == self.busy_ns else (other, self)
            more = of_longer.launches.get(_PRODUCTS, 0.0) / of_shorter.launches.get(
                _PRODUCTS, math.inf
            )
            return longer >= _FAR_APART_OF_SAME or min(longer, more) >= _MORE_OF_SAME
        alike = sum(min(n, other.launches.get(name, 0.0)) for name, n in self.launches.items())
        return alike < _LAUNCHES_ALIKE * max(self.n, other.n, _LEAST_LAUNCHES)

    def other_batches(self, other: Work) -> bool | None:
        """Whether more ranks share a batch than in the other, for sure; None where as many do."""
        numbers = {*self.per_batch.values(), *other.per_batch.values()}
        most = max((n for n, _ in numbers), default=1)
        return (
            any(n < most for n, is_all in numbers if is_all)
            if len(numbers) > 1 and most > 1
            else None
        )

    def is_unlike(self, other: Work) -> bool:
        """Whether the two are never ranked together."""
        if self.alike != other.alike or self.other_batches(other):
            return True
        if None in (self.busy_ns, other.busy_ns):
            return self.busy_ns is not other.busy_ns
        return bool(self.kernels and other.kernels) and self.is_other(other)


def _per_batch(run: Run) -> tuple[str, tuple[int, bool]]:
    of_run = run.traffic(), run.header.n_job_ranks
    (n, is_all), degrees = ranks_per_batch(*of_run), ", ".join(map(str, dimensions(*of_run)))
    is_all &= not has_whole_graphs(run)
    number = f"{n}{'' if is_all else ' or more'}" if is_all or n > 1 else "not known"
    return f"{number} ({degrees})" if degrees else number, (n, is_all)


def _alike(run: Run) -> str:
    is_mixed = not MIXED_RUNS.isdisjoint([row["code"] for row in run.problem_rows])
    return ", ".join(
        [
            source_of_steps(run),
            *ranges(missing_ranks(run)),
            *([run.header.run_id] if is_mixed else []),
        ]
    )


def parted(
    members: Iterable[_Member], is_fitting: Callable[[_Member, list[_Member]], bool]
) -> list[list[_Member]]:
    """Return members that fit each other together; one that fits several kinds, as one whose GPU is not recorded, is of none of them.

    They are to come from the least compute on: so the order in which they are given does not count.
    """
    kinds: list[list[_Member]] = []
    for member in members:
        fitting = [kind for kind in kinds if is_fitting(member, kind)]
        if len(fitting) == 1:
            fitting[0].append(member)
        else:
            kinds.append([member])
    return kinds
