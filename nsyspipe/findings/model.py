"""What a rule looks at, and what it may answer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct, field

from nsyspipe.analysis import kernels as kernel_measures
from nsyspipe.analysis.counted_steps import CountedBus, clocks_by_rank, counted_bus
from nsyspipe.analysis.intervals import run_starts
from nsyspipe.analysis.launching import fastest_launch_times, longest_work_times
from nsyspipe.analysis.traffic import (
    DATA,
    OTHER,
    PIPELINE,
    SHARDED,
    SMALL_BYTES,
    bubble_ns_per_step,
    number_rank_steps,
    parallelism,
)
from nsyspipe.model import schema
from nsyspipe.model.names import is_nccl_communicator
from nsyspipe.model.problems import CATALOGUE, IN_GRAPHS, WITH_BLOBS
from nsyspipe.model.table import Flags, Float64, Int64
from nsyspipe.model.typed_tables import (
    CountersTable,
    HostLinesTable,
    KernelsTable,
    LinksTable,
    PhasesTable,
    StepsTable,
    StragglersTable,
    TrafficRow,
    TrafficTable,
)


class Finding(Struct, frozen=True):
    """What a rule found. Its ID is the name of the rule."""

    title: str
    # What to change, in a few words.
    action: str
    # The same in a sentence, with the names of the options.
    advice: str
    # The upper bound of what the change saves. None if there is no bound.
    saving_ns_per_step: float | None
    # The figures that the rule rests on. Names have units, and values are plain JSON.
    evidence: Mapping[str, Any]


class NotJudged(Struct, frozen=True):
    """Why a rule could not be judged, and what would add the missing data.

    The fix is None if a separate problem names it.
    """

    reason: str
    fix: str | None


# None: the rule was judged, and there is nothing to say.
Answer: TypeAlias = Finding | NotJudged | None


class Saving(NamedTuple):
    """An upper bound of what a change saves, and the figures that it follows from."""

    ns_per_step: float
    figures: dict[str, Any]


class Bound(NamedTuple):
    """An upper bound of what a change saves per step, on the rank that sets it."""

    saving_ns: float
    # Means over steps, which sum to the saving. Those that are 0 are left out.
    parts: Mapping[str, float]
    # That rank, if it is the same in all steps and the bound follows from one rank.
    limit_rank: int | None = None


class Wording(NamedTuple):
    """The words of a finding."""

    title: str
    action: str
    advice: str


class Condition(NamedTuple):
    """What the bound of a finding depends on, or contains. In JSON, true fields are figures."""

    # It depends on something that was not recorded.
    is_conditional: bool = False
    # It depends on NVLink that neither a topology nor NCCL's log shows.
    is_nvlink_assumed: bool = False
    # It may contain waiting for other ranks, which the advice does not change.
    is_wait_included: bool = False

    @classmethod
    def from_figures(cls, figures: Mapping[str, Any]) -> Condition:
        """Read the condition from the figures of a finding."""
        values = [bool(figures.get(name)) for name in cls._fields]
        return cls(*values)

    @property
    def figures(self) -> dict[str, bool]:
        """The true fields, as figures of a finding."""
        fields = self._asdict().items()
        return {name: True for name, is_true in fields if is_true}


class Slowdown(NamedTuple):
    """How much longer kernels take during communication, as ``slowed / free - 1``."""

    # None if too few kernels can be compared.
    measured_ratio: float | None
    # What bounds use instead, with delays included. None if it was measured, or if no
    # communication is hidden.
    assumed_ratio: float | None

    @property
    def figures(self) -> dict[str, float | None]:
        """Both ratios, as figures of a finding."""
        return {
            "slowdown_ratio": self.measured_ratio,
            "assumed_slowdown_ratio": self.assumed_ratio,
        }


class Recording(Struct, frozen=True):
    """What the profiler recorded besides kernels and ranges, which costs time on the host."""

    # Kinds of events, by their names in nsys. Empty if they are not known.
    events: tuple[str, ...] = ()
    # None if it is not known.
    is_cpu_sampled: bool | None = None
    # Whether CUDA API calls have backtraces. None if it is not known.
    has_backtraces: bool | None = None


# What rules about communication need of the steps.
COLUMNS_OF_COMM = ("comm_ns", "compute_ns")
# A figure of stragglers and pipelines: launching decides how long steps take, so it comes first.
IS_LAUNCH_BOUND = "is_launch_bound"
# No fix: a problem of the run says why waiting is not known, and what helps.
WAITING_UNKNOWN = NotJudged("waiting is not known", None)
# No capture showed compute slowed by more than this, over all of it.
MAX_BELIEVED_SLOWDOWN = 1.0
# Bounds use a slowdown times this, because the measure may be too low by so much.
BOUND_OVER_MEASURED = 1 + kernel_measures.MEASURED_WITHIN

_COLUMNS_OF_COLLECTIVES = (
    "step",
    "rank",
    "collective",
    "datatype",
    "start_ns",
    "end_ns",
    "n_ranks",
    "transfer_ns",
    "late_by_ns",
    "held_up_ns",
    "exposed_ns",
    "wait_ns",
    "arrival_skew_ns",
    "is_late_significant",
    "message_bytes",
    "bus_bytes",
    "comm_id",
    "micro_batch",
)
_TRAFFIC_FIGURES = (
    "calls_per_step",
    "bytes_per_step",
    "comm_ns_per_step",
    "exposed_ns_per_step",
    "wait_ns_per_step",
)
# Links of hardware counters, in words.
LINK_WORDS = {"nvlink": "NVLink", "pcie": "PCIe"}
_EXPOSED_PART = "exposed_part_ns_per_step"
_WAIT = "wait_ns_per_step"
_MIN_EXPOSED_SHARE_OF_STEP = 0.05
# What the traffic of a role serves, in words. Gradients of all ranks need no words.
_PURPOSES = {"sharded": "sharded parameters", "tensor": "tensor parallelism", "expert": "experts"}
_WIDE_DATATYPES = ("f32", "f64")
# A role is named if it has this share of a figure.
_MIN_SHARE_OF_NAMED_ROLE = 2 / 3
_UNKNOWN_ROLE = "what all-reduces serve is not known without backward passes"
_MARK_BACKWARD = "mark them with NVTX ranges, or name yours: --backward REGEX"
_UNKNOWN_SENDS = (
    "sends and receives of ranks that do alike may be an all-to-all of experts, a ring, or a "
    "pipeline's"
)
# By its name in nsys.
_NVTX_EVENTS = "NvtxEvents"
_CAPTURED_WITH_NVTX = ", captured with --trace=nvtx"


class Evidence(Struct, frozen=True, dict=True):
    """A run's tables as rules see them."""

    n_ranks: int
    world_size: int | None
    # The one row of `schema.SUMMARY`.
    summary: Mapping[str, Any]
    # `schema.STEPS` of the summary steps, and of all steps.
    steps: StepsTable
    all_steps: pa.Table
    # `schema.PHASES` of the summary steps.
    phases: PhasesTable
    # `schema.COLLECTIVES` of all steps.
    all_collectives: pa.Table
    stragglers: StragglersTable
    # `schema.KERNEL_COSTS`.
    kernels: KernelsTable
    traffic: TrafficTable = field(default_factory=schema.TRAFFIC.empty)
    host_lines: HostLinesTable = field(default_factory=schema.HOST_LINES.empty)
    # How often nsys should sample Python. None if it is not known, or differs between reports.
    python_samples_per_s: float | None = None
    # How long each rank waits for Python's lock (GIL) in its idle time, by cause, ns per step.
    # Ranks of which it was not recorded are left out.
    lock_waits: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    # Whether the user asked for no lines of Python.
    are_lines_left_out: bool = False
    # Mean idle time per step by the API call that the host was blocked in, largest first.
    blocked_ns_by_call: Mapping[str, float] = field(default_factory=dict)
    # How often the allocator of torch freed its cache and tried again, by rank of which it is
    # known, from the start of the program.
    alloc_retries: Mapping[int, int] = field(default_factory=dict)
    skipped_steps: tuple[int, ...] = ()
    # 1 if it is not known.
    n_hosts: int = 1
    # The host of each rank of which it is known.
    hosts: Mapping[int, str] = field(default_factory=dict)
    # The largest error of the clocks of ranks. None if the error of one clock is not known.
    clock_error_ns: int | None = 0
    # The models of the GPUs, each once.
    gpu_names: tuple[str, ...] = ()
    # From NCCL's log and the topology.
    links: LinksTable | None = None
    # ``NCCL_*`` that NCCL took from the environment, by its log.
    nccl_settings: Mapping[str, str] | None = None
    # Training variables of the programs, by the reports or a sidecar. None if they were not
    # recorded.
    environment: Mapping[str, str] | None = None
    recording: Recording = Recording()
    # `schema.COUNTERS`: hardware counters.
    counters: CountersTable = field(default_factory=schema.COUNTERS.empty)
    # Whether the rows of `steps` are captures without steps.
    is_capture: bool = False
    # Whether CUDA graphs launch the steps.
    is_graph_replayed: bool = False
    # Whether all ranks are one process group, or NCCL's payload or log names the groups.
    are_groups_known: bool = True

    @cached_property
    def collectives(self) -> pa.Table:
        """The columns of `schema.COLLECTIVES` that rules use, of the summary steps."""
        rows = self.all_collectives.select(_COLUMNS_OF_COLLECTIVES)
        in_summary = self.all_collectives["in_summary"]
        are_all_in_summary = pc.all(in_summary).as_py()
        # Thousands of ranks have gigabytes of rows, which are not copied without need.
        return rows if are_all_in_summary else rows.filter(in_summary)

    @cached_property
    def counted_bus(self) -> CountedBus | None:
        """The bandwidth of communication by hardware counters, None if nothing was counted."""
        if not self.counters.num_rows:
            return None
        return counted_bus(self.counters, self.all_steps, self.collectives)

    @cached_property
    def clocks_hz(self) -> dict[int, float]:
        """The mean clock of each rank whose GPU was counted."""
        if not self.counters.num_rows:
            return {}
        return clocks_by_rank(self.counters, self.all_steps)

    @property
    def counted_figures(self) -> dict[str, Any]:
        """What hardware counters saw of communication, as figures of a finding."""
        bus = self.counted_bus
        return {} if bus is None else bus.figures

    @property
    def counted_text(self) -> str:
        """What hardware counters saw of communication, as the end of a title. May be empty."""
        bus = self.counted_bus
        if bus is None:
            return ""
        gb_per_s = bus.bytes_per_s / 1e9
        return f". Counters saw {gb_per_s:.3g} GB/s on {LINK_WORDS[bus.link]}"

    @property
    def link_settings(self) -> Mapping[str, str] | None:
        """What NCCL took from the environment by its log, or without a log the environment."""
        return self.environment if self.nccl_settings is None else self.nccl_settings

    # Gradients

    @cached_property
    def gradient_all_reduces(self) -> pa.Table:
        """The all-reduces of gradients that may be DDP's: none if the run shards parameters."""
        rows = self.operations_of_role(DATA, "all_reduce")
        return rows.slice(0, 0) if SHARDED in self.roles else rows

    @property
    def wide_gradients(self) -> pa.Table:
        """The gradient all-reduces whose messages a datatype of half the bytes would shorten."""
        rows = self.gradient_all_reduces
        datatypes = rows["datatype"].cast(pa.string())
        is_wide = pc.is_in(datatypes, value_set=pa.array(_WIDE_DATATYPES))
        return rows.filter(is_wide)

    @property
    def why_gradients_are_unknown(self) -> NotJudged | None:
        """Why it is not known whether there are `gradient_all_reduces`; None if it is known."""
        uses = self.traffic_of_role(OTHER, "all_reduce")
        may_send_gradients = any(_may_send_gradients(row) for row in uses)
        if not may_send_gradients:
            return None
        # Marking backward does not help with graphs: no range of the host lies inside a replay.
        fix = CATALOGUE[IN_GRAPHS].fix if self.is_graph_replayed else _MARK_BACKWARD
        return NotJudged(_UNKNOWN_ROLE, fix)

    # Roles of the traffic

    @cached_property
    def _traffic_by_rank(self) -> list[TrafficRow]:
        is_of_rank = pc.is_valid(self.traffic["rank"])
        rows = self.traffic.drop_columns("ranks").filter(is_of_rank)
        return rows.to_pylist()

    @cached_property
    def roles(self) -> list[str]:
        """The roles of the run's traffic, `OTHER` among them."""
        return parallelism(self.traffic)

    def operations_of_role(self, role: str, *collectives: str) -> pa.Table:
        """Return the operations of a role: those of the named collectives, or all without names.

        A use is a kind of collective on a communicator. All of its operations have one role.
        """
        traffic_of_role = self.traffic_of_role(role, *collectives)
        uses = {_name_use(row) for row in traffic_of_role}
        uses_of_run = {_name_use(row) for row in self._traffic_by_rank}
        operations = self.collectives
        if uses == uses_of_run:
            # A large table is not copied without need.
            return operations
        kinds = _encode_texts(operations["collective"])
        communicators = _encode_texts(operations["comm_id"])
        is_of_role = _is_use_of(uses, kinds.texts, communicators.texts)
        is_row_of_role = is_of_role[kinds.codes, communicators.codes]
        return operations.filter(pa.array(is_row_of_role))

    def traffic_of_role(self, role: str, *collectives: str) -> list[TrafficRow]:
        """Return the rows of `traffic` of a role, each of one rank.

        If collectives are named, only their rows are returned.
        """
        rows = [row for row in self._traffic_by_rank if row["role"] == role]
        if not collectives:
            return rows
        return [row for row in rows if row["collective"] in collectives]

    def exposed_cost(self, role: str, *collectives: str) -> Saving | None:
        """Return what a step gains at most without the communication of a role.

        That is `saving_without` the operations of the role. None if their exposed time without
        waiting is below 5 % of step time. This time is a sum over the uses of the role, and the
        mean over ranks.
        """
        traffic = self.traffic_of_role(role, *collectives)
        exposed_ns = self._mean_without_waiting("exposed_ns_per_step", traffic)
        if self.share_of_step(exposed_ns) < _MIN_EXPOSED_SHARE_OF_STEP:
            return None
        operations = self.operations_of_role(role, *collectives)
        saving = self.saving_without(operations)
        figures = self.traffic_figures(role, *collectives) | saving.figures
        return Saving(saving.ns_per_step, figures)

    def _mean_without_waiting(self, figure: str, rows: Sequence[Mapping[str, Any]]) -> float:
        """Return a time of a rank without its waiting, the mean over ranks.

        `rows` are rows of traffic, which a rank has for each of its uses. If the figure is the
        waiting itself, nothing is taken off. What is not known counts as 0.
        """
        without_waiting = []
        for row in rows:
            whole_ns = row[figure] or 0.0
            wait_ns = 0.0 if figure == _WAIT else row[_WAIT] or 0.0
            # Waiting may be hidden, and then it can be longer than an exposed time.
            without_waiting.append(max(whole_ns - wait_ns, 0.0))
        return sum(without_waiting) / self.n_ranks

    def traffic_figures(self, role: str, *collectives: str) -> dict[str, float | None]:
        """Return the figures of a role's traffic per step: sums over uses, means over ranks.

        A figure is None if it is not known of one use.
        """
        rows = self.traffic_of_role(role, *collectives)
        return {name: self._mean_over_ranks(rows, name) for name in _TRAFFIC_FIGURES}

    @cached_property
    def exposed_by_role(self) -> dict[str, float | None]:
        """Exposed time per step by role, the mean over ranks.

        The parts sum to the exposed time of a rank. A part is None if it is not known of one use.
        """
        exposed_ns = {}
        for role in self.roles:
            traffic = self.traffic_of_role(role)
            exposed_ns[role] = self._mean_over_ranks(traffic, _EXPOSED_PART)
        return exposed_ns

    def _mean_over_ranks(self, rows: Sequence[Mapping[str, Any]], figure: str) -> float | None:
        """Return the sum of a figure of a rank, the mean over ranks; None if a row lacks it.

        `rows` are rows of traffic, which a rank has for each of its uses.
        """
        values = [row[figure] for row in rows]
        if None in values:
            return None
        total: float = sum(values)
        return total / self.n_ranks

    def main_role_text(self, figure: str, total_ns: float, *, noun: str) -> str:
        """Return ``, mostly NOUN of tensor parallelism`` for the role with most of a figure.

        A role needs two thirds of the total, see `_mean_without_waiting`. The text is empty if no
        role has that much. It is also empty for roles without words, such as gradients.
        """
        min_ns = _MIN_SHARE_OF_NAMED_ROLE * total_ns
        if min_ns <= 0:
            return ""
        for role in self.roles:
            if role in _PURPOSES:
                traffic = self.traffic_of_role(role)
                role_ns = self._mean_without_waiting(figure, traffic)
                if role_ns >= min_ns:
                    return f", mostly {noun} of {_PURPOSES[role]}"
        return ""

    @property
    def main_waiting_text(self) -> str:
        """In which traffic most of the waiting is, see `main_role_text`. Empty with one role."""
        if len(self.roles) == 1:
            return ""
        wait_ns = self.mean("wait_ns") or 0.0
        return self.main_role_text(_WAIT, wait_ns, noun="in collectives")

    @property
    def has_communicators(self) -> bool:
        """Whether NCCL names the communicators.

        Otherwise each stands for a stream of all ranks, and an all-to-all may be sends and
        receives.
        """
        communicators = {row["communicator"] for row in self._traffic_by_rank}
        return all(map(is_nccl_communicator, communicators))

    @property
    def payload_fix(self) -> str:
        """What adds NCCL's payloads: another export, and NVTX unless it was traced already."""
        is_nvtx_traced = _NVTX_EVENTS in self.recording.events
        return WITH_BLOBS if is_nvtx_traced else f"{WITH_BLOBS}{_CAPTURED_WITH_NVTX}"

    def not_judged_without_sizes(self, reason: str) -> NotJudged:
        """Return why a rule that needs message sizes is not judged.

        With several ranks, a problem of the run says what adds the sizes.
        """
        fix = self.payload_fix if self.n_ranks == 1 else None
        return NotJudged(reason, fix)

    @property
    def why_sends_are_unknown(self) -> NotJudged | None:
        """Why it is not known what sends and receives serve; None if it is, or without any."""
        if not self.traffic_of_role(OTHER, "send_recv"):
            return None
        fix = f"NCCL 2.28 or newer names all-to-all: {self.payload_fix}"
        return NotJudged(_UNKNOWN_SENDS, fix)

    @property
    def is_pipeline(self) -> bool:
        """Whether ranks are stages that wait for each other by design."""
        return PIPELINE in self.roles

    @cached_property
    def bubble_ns_per_step(self) -> float | None:
        """How long a rank waits between stages of a pipeline on average; None if not known."""
        return bubble_ns_per_step(self.traffic, self.n_ranks)

    # Waiting

    @cached_property
    def has_absent_ranks(self) -> bool:
        """Whether ranks are known to be missing, so that waiting for them looks like transfer."""
        return self.world_size is not None and self.n_ranks < self.world_size

    @property
    def is_wait_known(self) -> bool:
        """Whether waiting and transfer are known separately in all summary steps.

        They are not known separately if the last rank to start may be missing.
        """
        return not self.has_absent_ranks and not self.steps["wait_ns"].null_count

    @property
    def exposed_transfer_ns_per_step(self) -> float | None:
        """Exposed communication without exposed waiting, the mean over steps and ranks.

        If waiting is not known, it is all exposed communication.
        """
        exposed_ns = self.mean("exposed_comm_ns")
        if exposed_ns is None:
            return None
        wait_ns = self.mean("exposed_wait_ns") if self.is_wait_known else 0.0
        return exposed_ns - (wait_ns or 0.0)

    @property
    def transfer_ns_per_step(self) -> float:
        """Communication per step while all ranks take part.

        If waiting is not known, all communication.
        """
        transfer_ns = self.mean("transfer_ns") if self.is_wait_known else None
        if transfer_ns is not None:
            return transfer_ns
        return self.mean("comm_ns") or 0.0

    # Compute that communication slows

    @cached_property
    def compared_kernels(self) -> kernel_measures.Compared:
        """The kernels during communication that have equal kernels without it."""
        return kernel_measures.compared_kernels(self.kernels)

    @cached_property
    def slowdown(self) -> Slowdown:
        """How much longer kernels take during communication: measured, or else assumed."""
        compared = self.compared_kernels
        if compared.is_enough and compared.slowdown_ratio is not None:
            return Slowdown(measured_ratio=compared.slowdown_ratio, assumed_ratio=None)
        hidden_ns = pc.sum(self.steps["overlap_compute_ns"]).as_py()
        if not hidden_ns:
            # Without hidden communication, there is nothing to assume.
            return Slowdown(measured_ratio=None, assumed_ratio=None)
        operations_per_ns = kernel_measures.operations_per_ns(self.kernels)
        bandwidth = self.summary["busbw_bytes_per_s"]
        assumed_ratio = kernel_measures.largest_assumed_slowdown(bandwidth, operations_per_ns)
        return Slowdown(measured_ratio=None, assumed_ratio=assumed_ratio)

    def slowed_ns(self, hidden_ns: Float64, *, is_upper_bound: bool = False) -> Float64:
        """Return how much hidden communication lengthens compute, ``hidden x c / (1 + c)``.

        `hidden_ns` is the hidden communication on each row of `steps`. c is the measured slowdown,
        from 0 to 1. If it was not measured, c is what bounds assume.

        With `is_upper_bound`, c is the largest slowdown that the measure allows. Then the time by
        which kernels begin later is added, in proportion to the hidden time. An assumed c includes
        these delays already.
        """
        measured_ratio = self.slowdown.measured_ratio
        if measured_ratio is None:
            return _lengthening_ns(hidden_ns, self.slowdown.assumed_ratio or 0.0)
        if not is_upper_bound:
            return _lengthening_ns(hidden_ns, measured_ratio)
        slowed_ns = _lengthening_ns(hidden_ns, measured_ratio * BOUND_OVER_MEASURED)
        all_hidden_ns, delay_ns = self.columns("overlap_compute_ns", "comm_delay_ns")
        # Without any hidden communication, both times are 0, and so is the share.
        hidden_share = hidden_ns / np.maximum(all_hidden_ns, 1)
        return slowed_ns + BOUND_OVER_MEASURED * delay_ns * hidden_share

    # Bounds

    def saving_without(
        self,
        rows: pa.Table | None = None,
        *,
        remaining_share: float = 0.0,
        with_waiting: bool = False,
    ) -> Saving:
        """Return what a step gains at most without some operations, or without all communication.

        `rows` are the operations, or None for all communication. Each rank gains two parts:

        - Exposed transfer: that of the operations, less `remaining_share`, but at most the exposed
          transfer of the rank. With `with_waiting`, the rank gains exposed waiting too, and so it
          does if waiting cannot be told from transfer.
        - Slowed compute: how much the operations slow compute at most, see `slowed_ns`.

        In each step, the rank that gains most sets the bound. The figures begin with both parts.
        An assumed slowdown is None if no compute runs during the operations.
        """
        # If ranks are missing, waiting for them looks like transfer.
        is_waiting_gone = with_waiting or self.has_absent_ranks
        exposed_ns, exposed_wait_ns = self.columns("exposed_comm_ns", "exposed_wait_ns")
        if is_waiting_gone:
            operations_ns = self._comm_ns(rows)
            max_gone_ns = exposed_ns
        else:
            operations_ns = self._transfer_ns(rows)
            max_gone_ns = exposed_ns - exposed_wait_ns
        gone_ns = np.minimum(max_gone_ns, operations_ns * (1 - remaining_share))
        slowed_ns = self.slowed_ns(self._hidden_ns(rows), is_upper_bound=True)
        limit_rows = self.rows_of_largest(gone_ns + slowed_ns)
        is_transfer = self.is_wait_known and not with_waiting
        gone_name = "exposed_transfer" if is_transfer else "exposed_comm"
        mean_gone_ns = float(gone_ns[limit_rows].mean())
        mean_slowed_ns = float(slowed_ns[limit_rows].mean())
        parts = {gone_name: mean_gone_ns, "slowed_compute": mean_slowed_ns}
        slowdown_figures = self.slowdown.figures
        if not slowed_ns.any():
            # The bound does not rest on the assumption.
            slowdown_figures["assumed_slowdown_ratio"] = None
        figures = {"saving_ns_per_step_by_part": parts, **slowdown_figures}
        return Saving(sum(parts.values()), figures)

    def _comm_ns(self, rows: pa.Table | None) -> Float64:
        """Return how long some operations take on each row of `steps`.

        If `rows` is None, it is how long all communication takes.
        """
        if rows is None:
            return next(self.columns("comm_ns"))
        length_ns = _length_ns(rows)
        return self._sum_by_step(rows, length_ns)

    def _transfer_ns(self, rows: pa.Table | None) -> Float64:
        """Return the transfer of some operations on each row of `steps`.

        If `rows` is None, all communication counts. If waiting is not known, it counts as transfer.
        """
        if rows is not None:
            length_ns = _length_ns(rows)
            transfer_ns = pc.coalesce(rows["transfer_ns"], length_ns)
            return self._sum_by_step(rows, transfer_ns)
        steps = self.steps
        all_transfer_ns = pc.coalesce(steps["transfer_ns"], steps["comm_ns"])
        result: Float64 = all_transfer_ns.to_numpy()
        return result

    def _hidden_ns(self, rows: pa.Table | None) -> Float64:
        """Return how long some operations run during compute, on each row of `steps`.

        If `rows` is None, all communication counts.
        """
        (hidden_ns,) = self.columns("overlap_compute_ns")
        if rows is None:
            return hidden_ns
        exposed_ns = fill_zero(rows["exposed_ns"])
        during_compute_ns = pc.subtract(_length_ns(rows), exposed_ns)
        hidden_of_rows_ns = self._sum_by_step(rows, during_compute_ns)
        # Operations that overlap each other count twice in the sum.
        return np.minimum(hidden_ns, hidden_of_rows_ns)

    def _sum_by_step(self, rows: pa.Table, values: pa.ChunkedArray) -> Float64:
        """Return for each row of `steps` the sum of a value over operations.

        These are the operations of its rank and step.
        """
        ranks_of_operations = rows["rank"].to_numpy()
        highest_rank = max(self.rank_of_row.max(initial=0), ranks_of_operations.max(initial=0))
        n_ranks = int(highest_rank) + 1
        # Each pair of a rank and a step has a number of its own.
        pair_of_row = number_rank_steps(self.steps, n_ranks)
        pairs, place_of_row = np.unique(pair_of_row, return_inverse=True)
        pair_of_operation = number_rank_steps(rows, n_ranks)
        is_in_steps = np.isin(pair_of_operation, pairs)
        place_of_operation = np.searchsorted(pairs, pair_of_operation[is_in_steps])
        values_in_steps = values.to_numpy()[is_in_steps]
        sums_of_pairs = np.bincount(place_of_operation, values_in_steps, pairs.size)
        return sums_of_pairs.astype(np.float64)[place_of_row]

    @cached_property
    def fastest_launch_ns(self) -> Float64:
        """The launch time of the fastest host in each step; 0 if it is not known."""
        return fastest_launch_times(self.steps)

    @cached_property
    def above_launching_ns(self) -> Float64:
        """How much longer each step is than the fastest host takes to launch it."""
        above_ns = self._step_time_ns - self.fastest_launch_ns
        return np.maximum(above_ns, 0.0)

    @property
    def launching_figures(self) -> dict[str, float]:
        """What bounds leave for launching: the launch time of the fastest host, and the step time.

        Empty if launch times are not known.
        """
        # Launch times that are not known are 0.
        if not self.fastest_launch_ns.any():
            return {}
        mean_launch_ns = float(self.fastest_launch_ns.mean())
        mean_step_ns = float(self._step_time_ns.mean())
        return {
            "fastest_launch_ns_per_step": mean_launch_ns,
            "step_time_ns_per_step": mean_step_ns,
        }

    @cached_property
    def is_launch_bound(self) -> bool:
        """Whether even the fastest host launches steps for longer than any device works in them."""
        work_ns = longest_work_times(self.steps).sum()
        return bool(self.fastest_launch_ns.sum() > work_ns)

    def mean_of_largest(self, values_ns: Float64) -> float:
        """Return the mean over steps of the largest value over ranks, from 0 to the mean step.

        A largest value below 0 counts as 0.
        """
        largest_ns = np.maximum(self.largest(values_ns), 0.0)
        mean_ns = float(largest_ns.mean())
        return min(mean_ns, self._mean_wall_ns)

    def saving_down_to(self, windows_ns: Float64) -> float:
        """Return what a step gains if its windows are only this long, a mean over steps.

        A step is as long as its longest window. The gain is at most the mean step.
        """
        shortened_ns = np.maximum(self.largest(windows_ns), 0.0)
        gain_ns = self._step_time_ns - shortened_ns
        return min(float(gain_ns.mean()), self._mean_wall_ns)

    def mean_parts(self, rows: Int64, **gone_ns: Float64) -> dict[str, float]:
        """Return the parts of what steps gain, means over steps. Parts of 0 are left out.

        `rows` has the row of `steps` that sets the new length of each step. `gone_ns` has what each
        row loses, by part. The part ``longer_window`` is added: by how much the longest window of
        the step exceeds the window of that row.
        """
        (wall_ns,) = self.columns("wall_ns")
        parts = {name: column_ns[rows] for name, column_ns in gone_ns.items()}
        parts["longer_window"] = self._step_time_ns - wall_ns[rows]
        means = {}
        for name, part_ns in parts.items():
            mean_ns = float(part_ns.mean())
            if mean_ns:
                means[name] = mean_ns
        return means

    # Sums and means of the steps

    @cached_property
    def _step_time_ns(self) -> Float64:
        """How long each step takes: its longest window."""
        return self.largest(next(self.columns("wall_ns")))

    @property
    def _mean_wall_ns(self) -> float:
        """The mean step; 0 if it is not known."""
        return self.mean("wall_ns") or 0.0

    @cached_property
    def rank_of_row(self) -> Int64:
        """The rank of each row of `steps`."""
        ranks: Int64 = self.steps["rank"].to_numpy()
        return ranks

    @cached_property
    def step_of_row(self) -> Int64:
        """The step of each row of `steps`."""
        steps: Int64 = self.steps["step"].to_numpy()
        return steps

    def largest(self, values: Float64) -> Float64:
        """Return the largest value over ranks of each step."""
        return values[self.rows_of_largest(values)]

    def rows_of_largest(self, values: Float64) -> Int64:
        """Return the row of `steps` with the largest value of each step, the first of equals."""
        largest_first = -values
        # The most important key is the last one.
        sorted_rows = np.lexsort((largest_first, self.step_of_row))
        first_of_step = run_starts(self.step_of_row[sorted_rows])
        return sorted_rows[first_of_step]

    def sum_of_other_ranks(self, values: Float64) -> Float64:
        """Return for each row of `steps` the sum of the values of the other ranks of its step."""
        _, step_number_of_row = np.unique(self.step_of_row, return_inverse=True)
        sum_of_step = np.bincount(step_number_of_row, weights=values)
        return sum_of_step[step_number_of_row] - values

    def columns(self, *names: str) -> Iterator[Float64]:
        """Yield columns of `steps`. What is not known counts as 0."""
        return (fill_zero(self.steps.column(name)).to_numpy() for name in names)

    def mean(self, column: str) -> float | None:
        """Return the mean of a column of `steps`; None if a value is null, or without steps."""
        total = pc.sum(self.steps.column(column), skip_nulls=False, min_count=1).as_py()
        if total is None:
            return None
        mean: float = total / self.steps.num_rows
        return mean

    def means(self, *columns: str) -> dict[str, float | None]:
        """Return the means of columns, named as figures per step."""
        return {f"{name}_per_step": self.mean(name) for name in columns}

    def share_of_step(self, ns_per_step: float) -> float:
        """Return a time per step as a share of the mean step."""
        wall_ns = self.mean("wall_ns")
        return ns_per_step / wall_ns if wall_ns else 0.0

    @property
    def has_comm(self) -> bool:
        """Whether the summary steps have communication; false if that is not known."""
        return bool(self.summary["comm_share"])


def _may_send_gradients(use: Mapping[str, Any]) -> bool:
    """Tell whether the mean message of a use of communicators is not small, or of unknown size."""
    n_bytes = use["bytes_per_step"]
    if n_bytes is None:
        return True
    n_calls = use["calls_per_step"] or 0
    bytes_of_small_calls = SMALL_BYTES * n_calls
    return bool(n_bytes > bytes_of_small_calls)


def _name_use(use: Mapping[str, Any]) -> str:
    return f"{use['collective']} {use['communicator']}"


def _is_use_of(
    uses: Collection[str], kinds: Sequence[str | None], communicators: Sequence[str | None]
) -> Flags:
    """Tell which kinds of collectives (rows) and communicators (columns) are among some uses."""
    is_use = np.zeros((len(kinds), len(communicators)), bool)
    for number, kind in enumerate(kinds):
        is_use[number] = [f"{kind} {name}" in uses for name in communicators]
    return is_use


class _EncodedTexts(NamedTuple):
    """A column of texts as codes."""

    # The distinct texts, and None for null at the end.
    texts: list[str | None]
    # The place in `texts` of each row of the column.
    codes: Int64


def _encode_texts(column: pa.ChunkedArray) -> _EncodedTexts:
    encoded = column.combine_chunks().dictionary_encode()
    texts = encoded.dictionary.to_pylist()
    codes = pc.fill_null(encoded.indices, len(texts))
    return _EncodedTexts([*texts, None], codes.to_numpy())


def aggregate_by(rows: pa.Table, key: str, column: str, function: str) -> dict[Any, Any]:
    """Aggregate a column for each value of a key, in the order in which the values come first."""
    # Arrow takes time for each column of a table that it groups.
    needed_columns = rows.select([key, column])
    by_key = needed_columns.group_by(key, use_threads=False)
    aggregates = by_key.aggregate([(column, function)])
    keys = aggregates[key].to_pylist()
    values = aggregates[f"{column}_{function}"].to_pylist()
    return dict(zip(keys, values, strict=True))


def select_rows(rows: pa.Table, column: str, value: object) -> pa.Table:
    """Return the rows that have a value in a column."""
    has_value = pc.equal(rows[column], value)
    return rows.filter(has_value)


def fill_zero(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Replace what is not known by 0."""
    if not column.null_count:
        return column
    return pc.fill_null(column, 0)


def _length_ns(operations: pa.Table) -> pa.ChunkedArray:
    return pc.subtract(operations["end_ns"], operations["start_ns"])


def _lengthening_ns(hidden_ns: Float64, slowdown_ratio: float) -> Float64:
    """Return ``hidden x c / (1 + c)``. c is the slowdown, limited to what is believed."""
    believed_ratio = min(max(slowdown_ratio, 0.0), MAX_BELIEVED_SLOWDOWN)
    return hidden_ns * (believed_ratio / (1 + believed_ratio))


# The columns of the steps that each rule needs. If one has a null, no finding means nothing.
Rules: TypeAlias = dict[Callable[[Evidence], Answer], tuple[str, ...]]
