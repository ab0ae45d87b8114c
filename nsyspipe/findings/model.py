"""What a rule looks at, and what it may answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.analysis import kernels as slowdown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from nsyspipe.model.types import Float64


@dataclass(frozen=True)
class Finding:
    """What a rule found that fired; its id is the rule's name."""

    title: str
    action: str  # what to change, in at most 56 characters
    advice: str  # the same in a sentence, with the names of the options
    saving_ns_per_step: float | None  # upper bound of what that gives back; None when there is none
    # The figures that the rule rests on, named with their units; plain JSON values.
    evidence: Mapping[str, Any]


@dataclass(frozen=True)
class NotJudged:
    """Why a rule could not be judged, and what would bring what it needs."""

    reason: str
    fix: str


# What rules about communication need of the steps.
OF_COMM = ("comm_ns", "compute_ns")
_OF_COLLECTIVES = (
    "step", "rank", "collective", "datatype", "start_ns", "end_ns", "n_ranks", "transfer_ns", "late_by_ns", "held_up_ns",
    "wait_ns", "arrival_skew_ns",
    "is_late_significant", "message_bytes", "bus_bytes",
)  # fmt: skip

# Fewer kernels that can be compared tell nothing, and no capture showed all of compute slowed by more than this.
_ENOUGH_KERNELS, MOST_BELIEVED = 30, 1.0

# None: judged, and nothing to say.
Answer = Finding | NotJudged | None


@dataclass(frozen=True)
class Evidence:
    """A run's tables as rules see them."""

    n_ranks: int
    world_size: int | None
    summary: Mapping[str, Any]  # the one row of `schema.SUMMARY`
    steps: pa.Table  # `schema.STEPS` of the summary steps
    all_steps: pa.Table
    phases: pa.Table  # `schema.PHASES` of the summary steps
    all_collectives: pa.Table
    stragglers: pa.Table
    kernels: pa.Table  # `schema.KERNEL_COSTS`
    # Mean idle time per step by the API call that the host was blocked in, largest first.
    blocked_ns_by_call: Mapping[str, float] = field(default_factory=dict)
    skipped_steps: tuple[int, ...] = ()
    n_hosts: int = 1  # also where that is not known
    gpu_names: tuple[str, ...] = ()  # models, each once
    links: pa.Table | None = None  # from NCCL's log and the topology
    # ``NCCL_*`` variables that NCCL took from the environment, by its log.
    nccl_settings: Mapping[str, str] | None = None
    is_capture: bool = False  # the rows of `steps` are captures without steps

    @cached_property
    def collectives(self) -> pa.Table:
        """What rules ask of `schema.COLLECTIVES`, of the summary steps."""
        chosen = self.all_collectives.select(_OF_COLLECTIVES)
        return chosen.filter(self.all_collectives["in_summary"])

    @cached_property
    def gradient_all_reduces(self) -> pa.Table:
        """The all-reduces that may be DDP's: none in a run that reduce-scatters too (FSDP) or all-reduces in forward.

        The latter is tensor parallelism: DDP all-reduces nothing there. Its options differ.
        """
        is_sharded = "reduce_scatter" in self.kinds
        rows = self.only_kind("all_reduce")
        return rows.slice(0, 0) if is_sharded or self._all_reduces_in_forward else rows

    @cached_property
    def kinds(self) -> frozenset[str]:
        """The collectives of the summary steps."""
        return frozenset(self.collectives["collective"].unique().to_pylist())

    @property
    def _all_reduces_in_forward(self) -> bool:
        """Whether a tenth of communication is launched in forward, and all-reduces are all there is."""
        if self.kinds - {"all_reduce", "broadcast"}:
            return False
        forward = self.phases.filter(pc.equal(self.phases["phase"], "forward"))["comm_ns"]
        total = pc.sum(self.steps["comm_ns"]).as_py() or 0
        return 10 * (pc.sum(forward).as_py() or 0) > total

    @property
    def is_data_parallel(self) -> bool:
        """Whether all communication may be DDP's: all-reduces of gradients, and broadcasts of buffers."""
        return bool(self.gradient_all_reduces.num_rows) and not self.kinds - {"all_reduce", "broadcast"}  # fmt: skip

    @property
    def is_capture_start_only(self) -> bool:
        """Whether the figures rest on nothing but the step in which the capture began."""
        chosen = set(self.steps["step"].unique().to_pylist())
        first = pc.min(self.all_steps["start_ns"])
        began = self.all_steps.filter(pc.equal(self.all_steps["start_ns"], first))["step"]
        return chosen == set(began.to_pylist())

    @cached_property
    def has_absent_ranks(self) -> bool:
        """Whether ranks of the world are known to be missing, so that waiting for them looks like transfer."""
        return self.world_size is not None and self.n_ranks < self.world_size

    @property
    def is_wait_known(self) -> bool:
        """Whether waiting can be told from transferring in every summary step.

        Not where ranks are missing: the last to start a collective may be one of them.
        """
        return not self.has_absent_ranks and not self.steps["wait_ns"].null_count

    @property
    def exposed_transfer_ns_per_step(self) -> float | None:
        r"""``|M \ C \ W|``: exposed communication less exposed waiting; all that is exposed where waiting is not known."""
        exposed = self.mean("exposed_comm_ns")
        wait = self.mean("exposed_wait_ns") if self.is_wait_known else None
        return None if exposed is None else exposed - (wait or 0.0)

    @property
    def slowdown_ratio(self) -> float | None:
        """`compared_slowdown_ratio` where the compared kernels may stand for the others; else None."""
        is_enough = slowdown.compared_share(self.kernels) >= slowdown.LEAST_COMPARED
        return self.compared_slowdown_ratio if is_enough else None

    @cached_property
    def assumed_slowdown_ratio(self) -> float | None:
        """What bounds take the slowdown for at most where it is not known; None where it is, or nothing is hidden."""
        if self.slowdown_ratio is not None or not pc.sum(self.steps["overlap_compute_ns"]).as_py():
            return None
        return slowdown.most_assumed(self.summary["busbw_bytes_per_s"])

    @property
    def slowdown_figures(self) -> dict[str, float | None]:
        """The slowdown that `saving_without_comm` rests on, measured or assumed."""
        names = ("slowdown_ratio", "assumed_slowdown_ratio")
        return {name: getattr(self, name) for name in names}

    @property
    def beside_compute_ns(self) -> float:
        """Step time less what the rank that computes least does, beside communication slowed as bounds take it; the mean step.

        Of the rank that computes least, since a late one may compute more than it has to.
        """
        wall, compute, hidden = self._columns("wall_ns", "compute_ns", "overlap_compute_ns")
        own = compute - self.most_slowed_share * hidden
        longest = self._most(wall) + self._most(-own)
        return float(longest.mean()) if longest.size else 0.0

    @property
    def most_slowed_share(self) -> float:
        """The share of hidden communication by which it lengthens compute at most, as bounds take it."""
        return self._slowed_share(1 + slowdown.MEASURED_WITHIN)

    def _slowed_share(self, margin: float = 1.0) -> float:
        """Return the share of hidden communication by which it lengthens compute, c / (1 + c)."""
        known = self.slowdown_ratio
        return _share((self.assumed_slowdown_ratio or 0.0) if known is None else known * margin)

    @cached_property
    def compared_slowdown_ratio(self) -> float | None:
        """How much longer kernels take beside communication; None where fewer than 30 can be compared."""
        kernels = self.kernels.filter(pc.greater(self.kernels["n_slowed"], 0))
        n_slowed, slowed, free = (pc.sum(kernels[name]).as_py() or 0 for name in ("n_slowed", "slowed_ns", "free_ns"))
        return slowed / free - 1 if n_slowed >= _ENOUGH_KERNELS and free else None

    def saving_without_comm(self, kept: float = 0.0) -> float:
        r"""Return step time less the limit with communication gone but for a share of its transfer that is kept, per step.

        Mean over steps of the largest over ranks of
        ``min(|M \ C \ W|, transfer x (1 - kept)) + |M n C| x c / (1 + c)``: what is exposed, and what it slows compute
        down by (c is `slowdown_ratio`, or where that is not known `assumed_slowdown_ratio`; at most 1). Where waiting is not known it counts as transfer.
        """
        exposed, transfer, wait, hidden = self._columns(
            "exposed_comm_ns", "comm_ns", "exposed_wait_ns", "overlap_compute_ns"
        )
        if not self.has_absent_ranks:
            exposed = exposed - wait
            transfer = pc.coalesce(self.steps["transfer_ns"], self.steps["comm_ns"]).to_numpy()
        freed = np.minimum(exposed, transfer * (1 - kept)) + hidden * self._slowed_share()
        return self._mean_of_most(freed)

    def slowed_ns(self, ratio: float, margin: float) -> float:
        """Return what communication slows compute down by per step: ``|M n C| x c / (1 + c) + margin x comm_delay``.

        c is `ratio` x `margin`, at most 1. Mean over steps of the largest over ranks; a delay that is not known counts
        as none.
        """
        hidden, late = self._columns("overlap_compute_ns", "comm_delay_ns")
        return self._mean_of_most(hidden * _share(ratio * margin) + margin * late)

    def mean_of_most(self, column: str) -> float | None:
        """Return the mean over steps of a column's largest over ranks, at most the mean step; None as `mean` does."""
        return None if self.mean(column) is None else self._mean_of_most(self.steps[column].to_numpy())  # fmt: skip

    def _mean_of_most(self, values: Float64) -> float:
        # A step in which all ranks lose counts as 0.
        return min(float(np.maximum(self._most(values), 0.0).mean()), self.mean("wall_ns") or 0.0)

    def _most(self, values: Float64) -> Float64:
        """Return the largest over ranks of each step."""
        numbers, step = np.unique(self.steps["step"], return_inverse=True)
        most = np.full(numbers.size, -np.inf)
        np.maximum.at(most, step, values)
        return most

    def _columns(self, *names: str) -> Iterator[Float64]:
        """Yield columns of `steps`; what is not known counts as 0."""
        return (pc.fill_null(self.steps[name], 0).to_numpy() for name in names)

    @property
    def transfer_ns_per_step(self) -> float:
        """Communication per step with all ranks there; all communication where waiting is not known."""
        transfer = self.mean("transfer_ns") if self.is_wait_known else None
        return (self.mean("comm_ns") or 0.0) if transfer is None else transfer

    def mean(self, column: str) -> float | None:
        """Return the mean over (rank, step) of a column of `steps`; None if any is null, or without steps."""
        total = pc.sum(self.steps[column], skip_nulls=False, min_count=1).as_py()
        return None if total is None else total / self.steps.num_rows

    def share(self, ns_per_step: float) -> float:
        """Return a time per step as a share of the mean wall time."""
        wall = self.mean("wall_ns")
        return ns_per_step / wall if wall else 0.0

    @property
    def has_comm(self) -> bool:
        """Whether the summary steps hold communication; false when that is not known."""
        return bool(self.summary["comm_share"])

    @property
    def mean_by_rank(self) -> pa.Table:
        """Mean of every time per step of each rank, sorted by rank."""
        names = [name for name in self.steps.column_names if name.endswith("_ns")]
        found = self.steps.group_by("rank").aggregate([(name, "mean") for name in names])
        columns = {"rank": found["rank"]} | {name: found[f"{name}_mean"] for name in names}
        return pa.table(columns).sort_by("rank")

    def only_kind(self, collective: str) -> pa.Table:
        """Return the collectives of one kind."""
        return self.collectives.filter(pc.equal(self.collectives["collective"], collective))


def _share(c: float) -> float:
    """Return c / (1 + c), of a slowdown that is believed."""
    c = min(max(c, 0.0), MOST_BELIEVED)
    return c / (1 + c)
