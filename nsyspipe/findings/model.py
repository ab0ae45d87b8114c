"""What a rule looks at, and what it may answer."""

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct, field

from nsyspipe.analysis import kernels as slowdown
from nsyspipe.analysis.intervals import run_starts
from nsyspipe.analysis.launching import fastest_launch_times, longest_work_times
from nsyspipe.analysis.traffic import (
    DATA,
    OTHER,
    PIPELINE,
    SHARDED,
    SMALL_BYTES,
    bubble_ns_per_step,
    parallelism,
)
from nsyspipe.model import schema
from nsyspipe.model.names import is_nccl_communicator
from nsyspipe.model.problems import CATALOGUE, IN_GRAPHS, WITH_BLOBS
from nsyspipe.model.table import Float64, Int64


class Finding(Struct, frozen=True):
    """What a rule found that fired; its id is the rule's name."""

    title: str
    action: str  # what to change, in at most 56 characters
    advice: str  # the same in a sentence, with the names of the options
    saving_ns_per_step: float | None  # upper bound of what that gives back; None when there is none
    evidence: Mapping[
        str, Any
    ]  # the figures that the rule rests on, named with their units; plain JSON values


class NotJudged(Struct, frozen=True):
    """Why a rule could not be judged, and what would bring what it needs; None where a problem of its own says that."""

    reason: str
    fix: str | None


OF_COMM = ("comm_ns", "compute_ns")  # what rules about communication need of the steps
_OF_COLLECTIVES = (
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
_OF_TRAFFIC = tuple(
    f"{name}_per_step" for name in ("calls", "bytes", "comm_ns", "exposed_ns", "wait_ns")
)
_EXPOSED_PART = "exposed_part_ns_per_step"
_WAIT = "wait_ns_per_step"
_LEAST_EXPOSED = 0.05
# What a role's traffic serves, in words; gradients of all ranks need none.
_SERVED = {"sharded": "sharded parameters", "tensor": "tensor parallelism", "expert": "experts"}
_WIDE = ("f32", "f64")
_MOSTLY = 2 / 3  # a role is named from this share on
_UNKNOWN_ROLE = "what all-reduces serve is not known without backward passes"
_MARK_BACKWARD = "mark them with NVTX ranges, or name yours: --backward REGEX"
_UNKNOWN_SENDS = (
    "sends and receives of ranks that do alike may be an all-to-all of experts, a ring, or a "
    "pipeline's"
)
# Of a straggler's evidence: launching decides how long steps take, and that is to change first.
IS_LAUNCH_BOUND = "is_launch_bound"
_TRACED_NVTX = "NvtxEvents"  # as nsys calls it
_CAPTURED_WITH_NVTX = ", captured with --trace=nvtx"
WAITING_UNKNOWN = ("waiting is not known", None)  # of which a problem says why, and what mends it

MOST_BELIEVED = 1.0  # no capture showed all of compute slowed by more than this
AT_MOST = 1 + slowdown.MEASURED_WITHIN  # times a slowdown, as bounds take it

Saving = tuple[float, dict[str, Any]]  # ns per step, and the figures that it follows from
Answer = Finding | NotJudged | None  # None: judged, and nothing to say


class Recording(Struct, frozen=True):
    """What the profiler recorded beside kernels and ranges, which takes time of the host; None where that is not known."""

    events: tuple[
        str, ...
    ] = ()  # kinds of events, as nsys calls them; none where that is not known
    is_cpu_sampled: bool | None = None
    has_backtraces: bool | None = None  # of CUDA API calls


class Evidence(Struct, frozen=True, dict=True):
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
    traffic: pa.Table = field(default_factory=schema.TRAFFIC.empty)
    # Mean idle time per step by the API call that the host was blocked in, largest first.
    blocked_ns_by_call: Mapping[str, float] = field(default_factory=dict)
    skipped_steps: tuple[int, ...] = ()
    n_hosts: int = 1  # also where that is not known
    hosts: Mapping[int, str] = field(default_factory=dict)  # of ranks, where it is known
    clock_error_ns: int | None = 0  # the largest of the ranks' clocks; None where one is not known
    gpu_names: tuple[str, ...] = ()  # models, each once
    links: pa.Table | None = None  # from NCCL's log and the topology
    nccl_settings: Mapping[str, str] | None = (
        None  # ``NCCL_*`` that NCCL took from the environment, by its log
    )
    # Training variables of the programs, by the reports or a sidecar; None where nothing recorded
    # them
    environment: Mapping[str, str] | None = None
    recording: Recording = Recording()
    is_capture: bool = False  # the rows of `steps` are captures without steps
    is_graph_replayed: bool = False  # CUDA graphs launch the steps
    are_groups_known: bool = (
        True  # whether ranks are one process group, or NCCL's payload or log names the groups
    )

    @cached_property
    def collectives(self) -> pa.Table:
        """What rules ask of `schema.COLLECTIVES`, of the summary steps."""
        rows = self.all_collectives.select(_OF_COLLECTIVES)
        counts = self.all_collectives["in_summary"]
        return (
            rows if pc.all(counts).as_py() else rows.filter(counts)
        )  # thousands of ranks have gigabytes

    @property
    def link_settings(self) -> Mapping[str, str] | None:
        """What NCCL took from the environment, by its log; without a log what the programs were started with."""
        return self.environment if self.nccl_settings is None else self.nccl_settings

    @cached_property
    def gradient_all_reduces(self) -> pa.Table:
        """The all-reduces that may be DDP's: those of gradients, in a run that does not shard parameters too."""
        rows = self.of_role(DATA, "all_reduce")
        return rows.slice(0, 0) if SHARDED in self.roles else rows

    @property
    def wide_gradients(self) -> pa.Table:
        """Those of them that a datatype of half the bytes would shorten."""
        rows = self.gradient_all_reduces
        return rows.filter(pc.is_in(rows["datatype"].cast(pa.string()), value_set=pa.array(_WIDE)))

    @property
    def unknown_gradients(self) -> NotJudged | None:
        """Why it is not known whether there are `gradient_all_reduces`; None where it is."""
        sizes = (
            (row["bytes_per_step"], row["calls_per_step"])
            for row in self.traffic_of(OTHER, "all_reduce")
        )
        is_large = any(
            n_bytes is None or n_bytes > SMALL_BYTES * (calls or 0) for n_bytes, calls in sizes
        )
        # No range of the host lies inside a replayed graph.
        fix = CATALOGUE[IN_GRAPHS].fix if self.is_graph_replayed else _MARK_BACKWARD
        return NotJudged(_UNKNOWN_ROLE, fix) if is_large else None

    @cached_property
    def _by_rank(self) -> list[dict[str, Any]]:
        return list(
            self.traffic.drop_columns("ranks").filter(pc.is_valid(self.traffic["rank"])).to_pylist()
        )

    @cached_property
    def roles(self) -> list[str]:
        """The roles of the run's traffic, `OTHER` among them."""
        return parallelism(self.traffic)

    def of_role(self, role: str, *collectives: str) -> pa.Table:
        """Return the operations of a role, of all its collectives unless some are given."""
        uses = {
            f"{row['collective']} {row['communicator']}"
            for row in self.traffic_of(role, *collectives)
        }
        if len(uses) == len({(row["collective"], row["communicator"]) for row in self._by_rank}):
            return self.collectives
        words = []
        codes = []
        for name in ("collective", "comm_id"):
            column = self.collectives[name].combine_chunks().dictionary_encode()
            words.append([*column.dictionary.to_pylist(), None])
            codes.append(pc.fill_null(column.indices, len(column.dictionary)).to_numpy())
        is_used = np.array(
            [[f"{collective} {comm}" in uses for comm in words[1]] for collective in words[0]]
        )
        return self.collectives.filter(pa.array(is_used[tuple(codes)]))

    def traffic_of(self, role: str, *collectives: str) -> list[dict[str, Any]]:
        """Return the rows of `traffic` of a role and one rank each, of all its collectives unless some are given."""
        rows = (row for row in self._by_rank if row["role"] == role)
        return [row for row in rows if not collectives or row["collective"] in collectives]

    def exposed_cost(self, role: str, *collectives: str) -> Saving | None:
        r"""Return what exposed communication of a role costs at most, and its figures; None below 5 % of step time.

        That is ``|M \ C| - wait`` at least, the mean over ranks of the sum over its uses. Cost: `saving_without` them.
        """
        if (
            self.share(self._least("exposed_ns_per_step", self.traffic_of(role, *collectives)))
            < _LEAST_EXPOSED
        ):
            return None
        saving, figures = self.saving_without(self.of_role(role, *collectives))
        return saving, self.traffic_figures(role, *collectives) | figures

    def _least(self, figure: str, rows: list[dict[str, Any]]) -> float:
        """Return a figure of traffic, less waiting where it is not that, the mean over ranks; what is not known counts as 0."""
        parts = ((row[figure] or 0.0) - ((figure != _WAIT and row[_WAIT]) or 0.0) for row in rows)
        return sum(max(part, 0.0) for part in parts) / self.n_ranks

    def traffic_figures(self, role: str, *collectives: str) -> dict[str, float | None]:
        """Return what a role's traffic costs per step: sums over its uses, the mean over ranks; None where one is not known."""
        columns = {
            name: [row[name] for row in self.traffic_of(role, *collectives)] for name in _OF_TRAFFIC
        }
        return {
            name: None if None in own else sum(own) / self.n_ranks for name, own in columns.items()
        }

    @cached_property
    def exposed_by_role(self) -> dict[str, float | None]:
        """Exposed time per step by role, the mean over ranks: parts that sum to what a rank has; None where one is not known."""
        parts = {role: [row[_EXPOSED_PART] for row in self.traffic_of(role)] for role in self.roles}
        return {
            role: None if None in own else sum(own) / self.n_ranks for role, own in parts.items()
        }

    def mostly(self, what: str, figure: str, total: float) -> str:
        """Return ``, mostly ... of tensor parallelism``: the role that two thirds of a figure are at least, as `_least` has it.

        Nothing where no role has so much, or gradients have.
        """
        parts = {
            role: self._least(figure, self.traffic_of(role))
            for role in self.roles
            if role in _SERVED
        }
        most = next((role for role, own in parts.items() if own >= _MOSTLY * total > 0), None)
        return f", mostly {what}of {_SERVED[most]}" if most else ""

    @property
    def waited_in(self) -> str:
        """In which traffic most of the waiting is, as `mostly` has it; nothing where there is no other."""
        if len(self.roles) == 1:
            return ""
        return self.mostly("in collectives ", _WAIT, self.mean("wait_ns") or 0.0)

    @property
    def has_communicators(self) -> bool:
        """Whether NCCL names them; else each is a stream of all ranks, and an all-to-all may be sends and receives."""
        return all(is_nccl_communicator(row["communicator"]) for row in self._by_rank)

    @property
    def with_calls(self) -> str:
        """What brings NCCL's payloads: another export, and NVTX in the capture, unless it is known that it was traced."""
        return (
            WITH_BLOBS
            if _TRACED_NVTX in self.recording.events
            else f"{WITH_BLOBS}{_CAPTURED_WITH_NVTX}"
        )

    def lacks_sizes(self, reason: str) -> NotJudged:
        """Return why a rule that needs message sizes is not judged; of several ranks a problem says what brings them."""
        return NotJudged(reason, self.with_calls if self.n_ranks == 1 else None)

    @property
    def is_pipeline(self) -> bool:
        """Whether ranks are stages that wait for each other by design."""
        return PIPELINE in self.roles

    @property
    def unknown_sends(self) -> NotJudged | None:
        """Why it is not known what sends and receives serve; None where it is, or there are none."""
        fix = f"NCCL 2.28 or newer names all-to-all: {self.with_calls}"
        return NotJudged(_UNKNOWN_SENDS, fix) if self.traffic_of(OTHER, "send_recv") else None

    @cached_property
    def bubble_ns_per_step(self) -> float | None:
        """How long a rank waits between stages of a pipeline, in the mean; None where that is not known."""
        return bubble_ns_per_step(self.traffic, self.n_ranks)

    @cached_property
    def has_absent_ranks(self) -> bool:
        """Whether ranks of the world are known to be missing, so that waiting for them looks like transfer."""
        return self.world_size is not None and self.n_ranks < self.world_size

    @property
    def is_wait_known(self) -> bool:
        """Whether waiting can be told from transferring in all summary steps; not where the last to start may be absent."""
        return not self.has_absent_ranks and not self.steps["wait_ns"].null_count

    @property
    def exposed_transfer_ns_per_step(self) -> float | None:
        r"""``|M \ C \ W|``: exposed communication less exposed waiting; all that is exposed where waiting is not known."""
        exposed = self.mean("exposed_comm_ns")
        waiting = self.mean("exposed_wait_ns") if self.is_wait_known else 0.0
        return None if exposed is None else exposed - (waiting or 0.0)

    @cached_property
    def compared(self) -> slowdown.Compared:
        """The kernels beside communication that have equal ones without it."""
        return slowdown.compared_kernels(self.kernels)

    @cached_property
    def slowdown_figures(self) -> dict[str, float | None]:
        """How much longer kernels take beside communication, as `slowed_ns` has it; None where those that can be compared are few.

        And what bounds take that for at most then, delays in it; None where it is known, or nothing
        is hidden.
        """
        measured = self.compared.slowdown_ratio if self.compared.is_enough else None
        assumed = None
        if measured is None and pc.sum(self.steps["overlap_compute_ns"]).as_py():
            assumed = slowdown.most_assumed(
                self.summary["busbw_bytes_per_s"], slowdown.operations_per_ns(self.kernels)
            )
        return {"slowdown_ratio": measured, "assumed_slowdown_ratio": assumed}

    def slowed_ns(self, hidden: Float64, *, is_most: bool = False) -> Float64:
        """Return by how much hidden communication lengthens compute, ``hidden x c / (1 + c)``.

        c is the measured slowdown, or the most that it may be, at most 1, and then with the share
        of ``comm_delay_ns``; where none was measured the one that is assumed, delays in it.
        """
        known, assumed = self.slowdown_figures.values()
        c = min(
            max((assumed or 0.0) if known is None else known * (AT_MOST if is_most else 1.0), 0.0),
            MOST_BELIEVED,
        )
        slowed = hidden * (c / (1 + c))
        if known is None or not is_most:
            return slowed
        all_hidden, delay = self.columns("overlap_compute_ns", "comm_delay_ns")
        return slowed + AT_MOST * delay * (hidden / np.maximum(all_hidden, 1))

    def saving_without(
        self, rows: pa.Table | None = None, *, kept: float = 0.0, waits: bool = False
    ) -> Saving:
        r"""Return step time less the limit without these operations, or all, but for a kept share of their transfer, per step.

        Mean over steps of the largest over ranks of ``min(|M \ C \ W|, T x (1 - kept))`` and the most of `slowed_ns` of
        ``min(|M n C|, H)``: T is the sum of their transfer, H that of their time beside compute. With `waits` their waiting
        goes too: ``min(|M \ C|, L)``, L the sum of their length. Where waiting is not known it counts as transfer. And the
        figures behind it, these two parts first; what slowing is assumed only where compute runs
        beside them.
        """
        names = ("exposed_comm_ns", "exposed_wait_ns", "overlap_compute_ns", "comm_ns")
        exposed, wait, hidden, whole = self.columns(*names)
        transfer = pc.coalesce(self.steps["transfer_ns"], self.steps["comm_ns"]).to_numpy()
        if rows is not None:
            length = pc.subtract(rows["end_ns"], rows["start_ns"])
            whole, transfer = (
                self._sums(rows, one) for one in (length, pc.coalesce(rows["transfer_ns"], length))
            )
            beside_compute = pc.subtract(length, pc.fill_null(rows["exposed_ns"], 0))
            hidden = np.minimum(hidden, self._sums(rows, beside_compute))
        if waits or self.has_absent_ranks:
            transfer = whole
        else:
            exposed = exposed - wait
        exposed = np.minimum(exposed, transfer * (1 - kept))
        slowed = self.slowed_ns(hidden, is_most=True)
        most = self.rows_of_most(exposed + slowed)
        alone = "exposed_transfer" if self.is_wait_known and not waits else "exposed_comm"
        parts = {alone: float(exposed[most].mean()), "slowed_compute": float(slowed[most].mean())}
        slowdown_figures = self.slowdown_figures
        if not slowed.any():
            slowdown_figures = {**slowdown_figures, "assumed_slowdown_ratio": None}
        return sum(parts.values()), {"saving_ns_per_step_by_part": parts, **slowdown_figures}

    @cached_property
    def fastest_launch_ns(self) -> Float64:
        """The launch time of the fastest host in each step, ns; 0 where it is not known."""
        return fastest_launch_times(self.steps)

    @cached_property
    def above_launching_ns(self) -> Float64:
        """How much longer each step is than the fastest host takes to launch it, ns."""
        (wall,) = self.columns("wall_ns")
        return np.maximum(self.most(wall) - self.fastest_launch_ns, 0.0)

    @property
    def launching_figures(self) -> dict[str, float]:
        """What bounds leave to launching: the fastest host's time of a step, beside the step time; nothing if not known."""
        (wall,) = self.columns("wall_ns")
        if not self.fastest_launch_ns.any():
            return {}
        figures = {
            "fastest_launch_ns_per_step": self.fastest_launch_ns,
            "step_time_ns_per_step": self.most(wall),
        }
        return {name: float(values.mean()) for name, values in figures.items()}

    @cached_property
    def is_launch_bound(self) -> bool:
        """Whether even the fastest host takes longer to launch the steps than any device works in them."""
        return bool(self.fastest_launch_ns.sum() > longest_work_times(self.steps).sum())

    def _sums(self, rows: pa.Table, values: pa.ChunkedArray) -> Float64:
        width = (pc.max(self.steps["rank"]).as_py() or 0) + 1
        own, wanted = (
            pc.add(pc.multiply(one["step"], width), one["rank"]).to_numpy()
            for one in (rows, self.steps)
        )
        keys, place = np.unique(wanted, return_inverse=True)
        known = np.isin(own, keys)
        sums = np.bincount(np.searchsorted(keys, own[known]), values.to_numpy()[known], keys.size)
        return sums.astype(np.float64)[place]

    def mean_of_most(self, values: Float64) -> float:
        """Return the mean over steps of the largest over ranks, from 0 to the mean step."""
        return min(float(np.maximum(self.most(values), 0.0).mean()), self.mean("wall_ns") or 0.0)

    def saving_down_to(self, windows: Float64) -> float:
        """Return step time less the largest over ranks of these shorter windows, the mean over steps, up to the mean step."""
        (wall,) = self.columns("wall_ns")
        return min(
            float((self.most(wall) - np.maximum(self.most(windows), 0.0)).mean()),
            self.mean("wall_ns") or 0.0,
        )

    def parts_of(self, rows: Int64, **gone: Float64) -> dict[str, float]:
        """Return what goes of a step, on the row of `steps` that each is left with: means of what is not 0, and another's longer window."""
        (wall,) = self.columns("wall_ns")
        parts = {name: column[rows] for name, column in gone.items()} | {
            "longer_window": self.most(wall) - wall[rows]
        }
        return {name: own for name, column in parts.items() if (own := float(column.mean()))}

    def most(self, values: Float64) -> Float64:
        """Return the largest over ranks of each step."""
        return values[self.rows_of_most(values)]

    def rows_of_most(self, values: Float64) -> Int64:
        """Return the row of `steps` with the largest value of each step; of equal ones the first."""
        step = self.steps["step"].to_numpy()
        order = np.lexsort((-values, step))
        return order[run_starts(step[order])]

    def of_other_ranks(self, values: Float64) -> Float64:
        """Return for each row of `steps` the sum of the values of the other ranks of its step."""
        numbers, step = np.unique(self.steps["step"].to_numpy(), return_inverse=True)
        total = np.bincount(step, weights=values, minlength=numbers.size)
        return total[step] - values

    def columns(self, *names: str) -> Iterator[Float64]:
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

    def means(self, *columns: str) -> dict[str, float | None]:
        """Return the means of columns, named as figures per step."""
        return {f"{name}_per_step": self.mean(name) for name in columns}

    def share(self, ns_per_step: float) -> float:
        """Return a time per step as a share of the mean wall time."""
        wall = self.mean("wall_ns")
        return ns_per_step / wall if wall else 0.0

    @property
    def has_comm(self) -> bool:
        """Whether the summary steps hold communication; false when that is not known."""
        return bool(self.summary["comm_share"])


# By rule the columns of steps of which a null makes silence mean nothing.
Rules = dict[Callable[[Evidence], Answer], tuple[str, ...]]
