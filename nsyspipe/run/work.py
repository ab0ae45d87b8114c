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
    """Return which ranks of the job have no report. A run without GPUs misses none."""
    if not run.header.n_ranks:
        return ()
    present = {*run.ranks["rank"].to_pylist()}
    n_job_ranks = run.header.n_job_ranks or 0
    n_compared = min(n_job_ranks, _MAX_RANKS_COMPARED)
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
    # How many ranks share a batch. A capture with other words for it has an entry of its own.
    per_batch: dict[str, RanksPerBatch]
    # Everything else that must be equal in two runs whose times are compared, in words.
    alike: str = ""

    @classmethod
    def of(cls, runs: Sequence[Run]) -> Work:
        """Return the work of the captures of one side."""
        kernels = _compute_kernels(runs)
        n_rank_steps = _count_rank_steps(runs)
        words_and_batches = map(_describe_batch, runs)
        words_for_rest = map(_describe_rest, runs)
        return cls(
            busy_ns=_mean_compute_ns(runs),
            kernels=_time_of_kernels(kernels),
            launches=_launches_per_step(kernels, n_rank_steps),
            per_batch=dict(words_and_batches),
            alike=" | ".join(words_for_rest),
        )

    def saved(self) -> str:
        """Return the work as JSON. Kernels have a code of their name."""
        kernels = _with_codes(self.kernels)
        launches = _with_codes(self.launches)
        fields = [self.busy_ns, kernels, launches, self.per_batch, self.alike]
        return json.dumps(fields, separators=(",", ":"))

    @classmethod
    def parsed(cls, text: str | None) -> Work | None:
        """Return the work that `saved` wrote as `text`, None if it is another text."""
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
        """How many kernels a step runs."""
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
        n_kernels = self.n
        noun = "kernel" if n_kernels == 1 else "kernels"
        return f"{text} in {n_kernels:.4g} {noun}"

    def is_other(self, rival: Work) -> bool:
        """Tell whether the rival runs another program, or another batch of it.

        - It does if one of both computes 3 times as long.
        - Both run the same kernels if these take half of the time of one of them. Then the rival is
          another program if one of both computes twice as long. 1.5 times as long is enough with
          1.5 times as many matrix products, which come with more layers or micro-batches.
        - With other kernels, the rival is another program if fewer than 0.8 of the launches are
          alike.
        """
        shorter, longer = sorted((rival, self), key=_compute_ns_of)
        shorter_ns = _compute_ns_of(shorter)
        longer_ns = _compute_ns_of(longer)
        # Without compute, the times show no difference.
        time_ratio = longer_ns / shorter_ns if shorter_ns else 1.0
        if time_ratio >= _MIN_TIME_RATIO_OF_OTHER_PROGRAM:
            return True
        shared_share = max(self.shared(rival), rival.shared(self))
        runs_same_kernels = shared_share >= _MIN_SHARED_SHARE_OF_SAME_KERNELS
        if not runs_same_kernels:
            return not self._launches_alike(rival)
        # The ratio is 0 if one of both has no matrix products.
        n_products_of_longer = longer.launches.get(_PRODUCTS, 0.0)
        n_products_of_shorter = shorter.launches.get(_PRODUCTS, math.inf)
        products_ratio = n_products_of_longer / n_products_of_shorter
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
        """Tell whether captures certainly differ in how many ranks share a batch.

        None if the number is the same in all captures, or if no ranks share a batch.
        """
        batches = {*self.per_batch.values(), *rival.per_batch.values()}
        largest = max((batch.n_ranks for batch in batches), default=1)
        if len(batches) <= 1 or largest <= 1:
            return None
        # A number that is not certain may be larger in truth.
        return any(batch.is_certain and batch.n_ranks < largest for batch in batches)

    def is_unlike(self, rival: Work) -> bool:
        """Tell whether the works are too different for their times to be compared.

        They are if only one compute time is known. If neither is known, or if kernels are not
        known, nothing shows that they are.
        """
        if self.alike != rival.alike or self.other_batches(rival):
            return True
        is_known = self.busy_ns is not None
        is_rival_known = rival.busy_ns is not None
        if is_known != is_rival_known:
            return True
        are_kernels_known = bool(self.kernels and rival.kernels)
        return is_known and are_kernels_known and self.is_other(rival)


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
    """Return the time of each kernel over all ranks and runs, without kernels of no time."""
    times_ns = defaultdict[str, float](float)
    for name, total_ns in _pairs(kernels, "total_ns"):
        times_ns[name] += total_ns
    return {name: total_ns for name, total_ns in times_ns.items() if total_ns > 0}


def _launches_per_step(kernels: KernelsTable, n_rank_steps: int) -> dict[str, float]:
    """Return how often each kernel runs in a step of a rank. Empty if that is not known.

    All matrix products count as one kernel.
    """
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
    """Return the numbers with 4 digits, by a code of each name.

    The name that all matrix products share stays as it is.
    """
    numbers_of_codes = {}
    for name, number in numbers.items():
        code = name if name == _PRODUCTS else _code_of_name(name)
        numbers_of_codes[code] = float(f"{number:.4g}")
    return numbers_of_codes


def _code_of_name(name: str) -> str:
    checksum = zlib.crc32(name.encode(errors="replace"))
    return f"{checksum:x}"


def _positive_numbers(numbers: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers that are above 0."""
    positive = {}
    for name, number in numbers.items():
        if number > 0:
            positive[name] = float(number)
    return positive


def _parse_batches(per_batch: Mapping[str, Any]) -> dict[str, RanksPerBatch]:
    """Return `Work.per_batch` from JSON."""
    batches = {}
    for words, (n_ranks, is_certain) in per_batch.items():
        batch = RanksPerBatch(int(n_ranks), bool(is_certain))
        batches[str(words)] = batch
    return batches


def _describe_batch(run: Run) -> tuple[str, RanksPerBatch]:
    """Return how many ranks share a batch, with the words for it."""
    n_job_ranks = run.header.n_job_ranks
    n_ranks, is_shown_by_traffic = ranks_per_batch(run.traffic(), n_job_ranks)
    # Graphs that were captured as a whole hide communication.
    is_certain = is_shown_by_traffic and not has_whole_graphs(run)
    if is_certain:
        number_in_words = str(n_ranks)
    elif n_ranks > 1:
        number_in_words = f"{n_ranks} or more"
    else:
        number_in_words = "not known"
    degrees = ", ".join(map(str, dimensions(run.traffic(), n_job_ranks)))
    words = f"{number_in_words} ({degrees})" if degrees else number_in_words
    return words, RanksPerBatch(n_ranks, is_certain)


def _describe_rest(run: Run) -> str:
    """Return `Work.alike` of one run in words: the source of its steps, and its missing ranks."""
    words = [source_of_steps(run), *ranges(missing_ranks(run))]
    is_mixture = bool(MIXED_RUNS & problem_codes(run))
    if is_mixture:
        # A mixture of several runs is like no other run, so it gets words that no other run has.
        words.append(run.header.run_id)
    return ", ".join(words)


def parted(
    members: Iterable[_Member], is_fitting: Callable[[_Member, list[_Member]], bool]
) -> list[list[_Member]]:
    """Divide members into kinds, so that the members of each kind fit each other.

    A member joins the only kind that it fits. If it fits none or several, it starts a kind of its
    own. It may fit several because its GPU was not recorded. The kinds depend on the order of
    `members`, so pass them in order of their compute, least first.
    """
    kinds: list[list[_Member]] = []
    for member in members:
        fitting = [kind for kind in kinds if is_fitting(member, kind)]
        if len(fitting) == 1:
            fitting[0].append(member)
        else:
            kinds.append([member])
    return kinds
