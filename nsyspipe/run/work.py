"""What a step of a run computes, by which runs of different programs are told apart.

Runs of one program are found to be alike whatever their steps are called. A run store keeps this
in few bytes.
"""

from __future__ import annotations

import json
import math
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.analysis.traffic import dimensions, ranks_per_batch
from nsyspipe.model.comm_kernels import are_communication
from nsyspipe.model.figures import METRICS
from nsyspipe.model.names import is_matrix_product, ranges
from nsyspipe.model.problems import MIXED_RUNS
from nsyspipe.model.typed_tables import (
    KernelsColumn,
    KernelsTable,
)
from nsyspipe.run.run import Run

# Another model, batch or precision computes at least this many times as long.
_MIN_TIME_RATIO_OF_OTHER_PROGRAM = 3.0
# The same, if both run the same kernels.
_MIN_TIME_RATIO_OF_SAME_KERNELS = 2.0
# More layers have at least this many times the time and the matrix products.
_MIN_RATIO_OF_MORE_LAYERS = 1.5
# Two programs run the same kernels if these take at least this share of the time of either. The
# share of the other may be smaller.
_MIN_SHARED_SHARE_OF_SAME_KERNELS = 0.5
# Two programs launch the same if at least this share of the launches is alike.
_MIN_SHARE_OF_LAUNCHES_ALIKE = 0.8
_MIN_LAUNCHES = 1.0
# A damaged report may claim any number of ranks. This many are enough to compare runs by.
_MAX_RANKS_COMPARED = 1 << 16
# The one name of all matrix products.
_PRODUCTS = "matrix products"
_COMPUTE = METRICS["compute"].column
_KERNEL_COLUMNS: list[KernelsColumn] = ["name", "total_ns", "n_in_summary"]
_PROBLEMS_OF_WHOLE_GRAPHS = {"graphs-as-a-whole", "comm-in-graphs"}
_Member = TypeVar("_Member")


def has_whole_graphs(run: Run) -> bool:
    """Tell whether CUDA graphs of a run were captured as a whole, without what ran inside."""
    return bool(_PROBLEMS_OF_WHOLE_GRAPHS & problem_codes(run))


def problem_codes(run: Run) -> set[str]:
    """Return the codes of the problems of a run."""
    return {row["code"] for row in run.problem_rows}


def n_steps(run: Run) -> int:
    """Return how many summary steps a run has."""
    return int(run.summary()["n_summary_steps"][0].as_py())


def missing_ranks(run: Run) -> tuple[int, ...]:
    """Return which ranks of the job have no report."""
    # Reports without GPUs are not missing.
    n_job_ranks = run.header.n_job_ranks if run.header.n_ranks else 0
    present = {*run.ranks["rank"].to_pylist()}
    n_compared = min(n_job_ranks or 0, _MAX_RANKS_COMPARED)
    missing = [rank for rank in range(n_compared) if rank not in present]
    return tuple(missing)


def source_of_steps(run: Run) -> str:
    """Return in words what the steps of a run were found by."""
    return "nothing: a capture" if run.is_capture else str(run.header.steps_from)


class RanksPerBatch(NamedTuple):
    """How many ranks share a batch, and whether that is certain or there may be more."""

    n_ranks: int
    is_certain: bool


class Work(NamedTuple):
    """What a step of one rank computes, as a mean over captures."""

    # None if a capture has a step whose compute is not known, or no step.
    busy_ns: float | None
    # The time in ns of each kernel that is not communication.
    kernels: dict[str, float]
    # How often a step runs each kernel, with all matrix products as one. Empty if a capture does
    # not show it.
    launches: dict[str, float]
    # How many ranks of each capture share a batch, by its words.
    per_batch: dict[str, RanksPerBatch]
    # What else is equal in all runs that are compared by their times.
    alike: str = ""

    @classmethod
    def of(cls, runs: Sequence[Run]) -> Work:
        """Return the work of the captures of one side."""
        kernels = _compute_kernels(runs)
        n_rank_steps = _count_rank_steps(runs)
        batches = map(_describe_batch, runs)
        descriptions = map(_describe_rest, runs)
        return cls(
            busy_ns=_mean_compute_ns(runs),
            kernels=_time_of_kernels(kernels),
            launches=_launches_per_step(kernels, n_rank_steps),
            per_batch=dict(batches),
            alike=" | ".join(descriptions),
        )

    def saved(self) -> str:
        """Return the work as JSON. Kernels have a code of their name."""
        kernels = _with_codes(self.kernels)
        launches = _with_codes(self.launches)
        fields = [self.busy_ns, kernels, launches, self.per_batch, self.alike]
        return json.dumps(fields, separators=(",", ":"))

    @classmethod
    def parsed(cls, text: str | None) -> Work | None:
        """Return what `saved` wrote, or None for any other text."""
        try:
            busy_ns, kernels, launches, per_batch, alike = json.loads(text or "")
            return cls(
                busy_ns=None if busy_ns is None else float(busy_ns),
                kernels=_positive_numbers(kernels),
                launches=_positive_numbers(launches),
                per_batch=_parse_batches(per_batch),
                alike=str(alike),
            )
        except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
            return None

    @property
    def n(self) -> float:
        """Number of kernels of a step."""
        return sum(self.launches.values())

    def shared(self, rival: Work) -> float:
        """Return the share of the kernels' time that is in kernels which the rival runs too."""
        shared_names = [name for name in self.kernels if name in rival.kernels]
        shared_ns = sum(self.kernels[name] for name in shared_names)
        total_ns = sum(self.kernels.values())
        return shared_ns / total_ns

    @property
    def text(self) -> str:
        """The work in words."""
        busy_ms = (self.busy_ns or 0.0) / 1e6
        text = f"{busy_ms:.4g} ms of compute"
        if not self.launches:
            return text
        noun = "kernel" if self.n == 1 else "kernels"
        return f"{text} in {self.n:.4g} {noun}"

    def is_other(self, rival: Work) -> bool:
        """Tell whether the rival runs another program, or another batch of it.

        Any program is another if it computes 3 times as long. If the kernels that both run take
        half of the time of either, it is another if it computes twice as long, or 1.5 times as
        long with 1.5 times as many matrix products. (More layers have more of them, and so have
        more micro-batches.) Otherwise it is another if fewer than 0.8 of the launches are alike.
        """
        shorter, longer = sorted((rival, self), key=_compute_ns_of)
        shorter_ns = _compute_ns_of(shorter)
        time_ratio = _compute_ns_of(longer) / shorter_ns if shorter_ns else 1.0
        if time_ratio >= _MIN_TIME_RATIO_OF_OTHER_PROGRAM:
            return True
        shared_share = max(self.shared(rival), rival.shared(self))
        runs_same_kernels = shared_share >= _MIN_SHARED_SHARE_OF_SAME_KERNELS
        if not runs_same_kernels:
            return not self._launches_alike(rival)
        n_products = longer.launches.get(_PRODUCTS, 0.0)
        n_products_of_shorter = shorter.launches.get(_PRODUCTS, math.inf)
        products_ratio = n_products / n_products_of_shorter
        has_more_layers = min(time_ratio, products_ratio) >= _MIN_RATIO_OF_MORE_LAYERS
        return time_ratio >= _MIN_TIME_RATIO_OF_SAME_KERNELS or has_more_layers

    def _launches_alike(self, rival: Work) -> bool:
        """Tell whether most launches of both are of equal kernels.

        Matrix products count as equal, because they have other names in another precision.
        """
        launches_of_rival = [rival.launches.get(name, 0.0) for name in self.launches]
        n_alike = sum(map(min, self.launches.values(), launches_of_rival))
        n_launches_of_larger = max(self.n, rival.n, _MIN_LAUNCHES)
        return n_alike >= _MIN_SHARE_OF_LAUNCHES_ALIKE * n_launches_of_larger

    def other_batches(self, rival: Work) -> bool | None:
        """Tell whether it is certain that a different number of ranks shares a batch.

        None if the number is the same in all captures.
        """
        numbers = {*self.per_batch.values(), *rival.per_batch.values()}
        largest = max((number.n_ranks for number in numbers), default=1)
        if len(numbers) <= 1 or largest <= 1:
            return None
        certain = [number.n_ranks for number in numbers if number.is_certain]
        return any(n_ranks < largest for n_ranks in certain)

    def is_unlike(self, rival: Work) -> bool:
        """Tell whether the times of the two are never compared."""
        if self.alike != rival.alike or self.other_batches(rival):
            return True
        if self.busy_ns is None or rival.busy_ns is None:
            return self.busy_ns is not rival.busy_ns
        have_kernels = bool(self.kernels and rival.kernels)
        return have_kernels and self.is_other(rival)


def _compute_ns_of(work: Work) -> float:
    return work.busy_ns or 0.0


def _mean_compute_ns(runs: Iterable[Run]) -> float | None:
    """Return the mean compute time of a step, None if a capture has an unknown one or no step."""
    means_ns: list[float | None] = []
    for run in runs:
        compute_ns = run.breakdown().column(_COMPUTE)
        means_ns.append(pc.mean(compute_ns, skip_nulls=False).as_py())
    known_ns = [mean_ns for mean_ns in means_ns if mean_ns is not None]
    is_known = len(known_ns) == len(means_ns)
    return sum(known_ns) / len(known_ns) if is_known else None


def _compute_kernels(runs: Iterable[Run]) -> pa.Table:
    """Return the kernels of all runs that are not communication."""
    kernels_of_runs = [run.kernels().select(_KERNEL_COLUMNS) for run in runs]
    kernels = pa.concat_tables(kernels_of_runs)
    is_communication = are_communication(kernels["name"])
    return kernels.filter(pc.invert(is_communication))


def _count_rank_steps(runs: Iterable[Run]) -> int:
    """Return the number of summary steps of all ranks."""
    return sum(n_steps(run) * run.header.n_ranks for run in runs)


def _time_of_kernels(kernels: pa.Table) -> dict[str, float]:
    times_ns = defaultdict[str, float](float)
    for name, total_ns in _pairs(kernels, "total_ns"):
        times_ns[name] += total_ns
    return {name: total_ns for name, total_ns in times_ns.items() if total_ns > 0}


def _launches_per_step(kernels: KernelsTable, n_rank_steps: int) -> dict[str, float]:
    """Return how often each kernel runs in a step of a rank. Empty if that is not known."""
    if not n_rank_steps or kernels["n_in_summary"].null_count:
        return {}
    launches = defaultdict[str, float](float)
    for name, n_launches in _pairs(kernels, "n_in_summary"):
        if n_launches:
            kind = _PRODUCTS if is_matrix_product(name) else name
            launches[kind] += n_launches / n_rank_steps
    return dict(launches)


def _pairs(kernels: KernelsTable, column: str) -> Iterator[tuple[str, int]]:
    names = kernels["name"].to_pylist()
    values = kernels.column(column).to_pylist()
    return zip(names, values, strict=True)


def _with_codes(numbers: Mapping[str, float]) -> dict[str, float]:
    """Return numbers of 4 digits by the code of each name. All matrix products have no code."""
    numbers_of_codes = {}
    for name, number in numbers.items():
        code = name if name == _PRODUCTS else _code_of_name(name)
        numbers_of_codes[code] = float(f"{number:.4g}")
    return numbers_of_codes


def _code_of_name(name: str) -> str:
    checksum = zlib.crc32(name.encode(errors="replace"))
    return f"{checksum:x}"


def _positive_numbers(numbers: Mapping[str, Any]) -> dict[str, float]:
    positive = {}
    for name, number in numbers.items():
        if number > 0:
            positive[name] = float(number)
    return positive


def _parse_batches(per_batch: Mapping[str, Any]) -> dict[str, RanksPerBatch]:
    batches = {}
    for words, (n_ranks, is_certain) in per_batch.items():
        batch = RanksPerBatch(int(n_ranks), bool(is_certain))
        batches[str(words)] = batch
    return batches


def _describe_batch(run: Run) -> tuple[str, RanksPerBatch]:
    """Return how many ranks share a batch, with the words for it."""
    n_job_ranks = run.header.n_job_ranks
    n_ranks, is_certain = ranks_per_batch(run.traffic(), n_job_ranks)
    is_certain = is_certain and not has_whole_graphs(run)
    if is_certain:
        words = str(n_ranks)
    elif n_ranks > 1:
        words = f"{n_ranks} or more"
    else:
        words = "not known"
    degrees = map(str, dimensions(run.traffic(), n_job_ranks))
    degrees_in_words = ", ".join(degrees)
    if degrees_in_words:
        words = f"{words} ({degrees_in_words})"
    return words, RanksPerBatch(n_ranks, is_certain)


def _describe_rest(run: Run) -> str:
    """Return what must be equal besides compute and batch for times to be compared."""
    words = [source_of_steps(run), *ranges(missing_ranks(run))]
    if MIXED_RUNS & problem_codes(run):
        # A mixture of several runs is like no other run.
        words.append(run.header.run_id)
    return ", ".join(words)


def parted(
    members: Iterable[_Member], is_fitting: Callable[[_Member, list[_Member]], bool]
) -> list[list[_Member]]:
    """Divide members into kinds, so that the members of each kind fit each other.

    A member that fits several kinds, for example because its GPU was not recorded, is alone. Pass
    members in order of their compute, least first, so that the result does not depend on their
    order.
    """
    kinds: list[list[_Member]] = []
    for member in members:
        fitting = [kind for kind in kinds if is_fitting(member, kind)]
        if len(fitting) == 1:
            fitting[0].append(member)
        else:
            kinds.append([member])
    return kinds
