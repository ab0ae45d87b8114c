"""The kind of parallelism that a communicator serves, and the waiting that it causes by design."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from nsyspipe.analysis.intervals import EMPTY, IntervalSet, least_of, sums_of, union_of
from nsyspipe.model.names import grouped, is_nccl_communicator, listed
from nsyspipe.model.table import Int64

DATA = "data"
SHARDED = "sharded"
TENSOR = "tensor"
PIPELINE = "pipeline"
EXPERT = "expert"
OTHER = "other"
ROLES = (DATA, SHARDED, TENSOR, PIPELINE, EXPERT, OTHER)
# The next layer or stage needs their data at once, so a stream of their own gains nothing.
NEEDED_AT_ONCE = frozenset({TENSOR, PIPELINE, EXPERT})

# A collective of layers stands in forward about as often as in backward. A collective of a loss or
# a buffer stands in forward now and then.
_MIN_FORWARD_SHARE_OF_LAYERS = 0.2
_MIN_CALLS_OF_LAYERS = 2
# If sizes are not known, a collective in forward may only count or average below this share.
_MIN_CERTAIN_FORWARD_SHARE = 0.3
# What counts, clips or averages: the loss, a norm, whether a gradient overflowed.
SMALL_BYTES = 64 * 1024
# From the innermost role, which has the fastest links, to the outermost.
_NESTING = (TENSOR, EXPERT, PIPELINE, SHARDED, DATA)


class CommUse(Struct, frozen=True):
    """One collective of one communicator, over the summary steps."""

    communicator: str
    collective: str
    ranks: tuple[int, ...]
    calls_per_step: float
    # The mean. None if the size of a call is not known.
    bytes_per_call: float | None
    # Shares of the calls that are launched before the first backward range of the step, and in
    # backward. None if there is no backward range.
    forward_share: float | None
    backward_share: float | None
    # Of sends: the compute kernels of each rank in a step before its first send.
    kernels_before: tuple[float, ...] = ()

    @property
    def is_in_forward(self) -> bool:
        """Whether forward has as many calls as layers make."""
        forward_share = self.forward_share or 0.0
        is_often_in_forward = forward_share >= _MIN_FORWARD_SHARE_OF_LAYERS
        return is_often_in_forward and self.calls_per_step >= _MIN_CALLS_OF_LAYERS

    @property
    def is_small(self) -> bool:
        """Whether the calls are too small for parts of a model."""
        return self.bytes_per_call is not None and self.bytes_per_call <= SMALL_BYTES


def roles(uses: Sequence[CommUse]) -> list[str]:
    """Return the role of each collective of each communicator, one of `ROLES`, in the same order.

    - ``expert``: all-to-all.
    - ``pipeline``: sends and receives, if one rank launches twice as many kernels as another before
      its first send of a step. The first stage begins a step, while ranks of an all-to-all or of a
      ring do alike.
    - ``tensor``: all-reduce, or all-gather and reduce-scatter, in forward and in backward.
    - ``sharded``: reduce-scatter outside of forward, and the all-gathers of the same ranks.
    - ``data``: all-reduce outside of forward, and broadcasts of the same ranks.
    - ``other``: everything else. That includes what is too small for a model, and what could have
      two of these roles because no backward range is known.
    """
    by_ranks = grouped((use.ranks, use) for use in uses)
    return [_role(use, by_ranks[use.ranks]) for use in uses]


def begins_in_stages(kernels_before: Sequence[float]) -> bool:
    """Tell whether ranks look like stages, by the kernels of each before its first send.

    They do if one rank launches twice as many as another.
    """
    return 2 * min(kernels_before, default=0.0) < max(kernels_before, default=0.0)


def _role(use: CommUse, same_ranks: Sequence[CommUse]) -> str:
    """Return the role of a use, given all uses of communicators of the same ranks."""
    if use.collective == "all_to_all":
        return EXPERT
    if use.collective == "send_recv":
        return PIPELINE if begins_in_stages(use.kernels_before) else OTHER
    if use.is_small:
        return OTHER
    if use.collective == "all_reduce":
        return _role_of_all_reduce(use)
    if use.collective in {"all_gather", "reduce_scatter"}:
        return _role_of_shards(use, same_ranks)
    is_of_gradients = use.collective == "broadcast" and _are_gradients_reduced(same_ranks)
    return DATA if is_of_gradients else OTHER


def _role_of_all_reduce(use: CommUse) -> str:
    if use.backward_share is None:
        return OTHER
    if not use.is_in_forward:
        return DATA
    forward_share = use.forward_share or 0.0
    is_certain = use.bytes_per_call is not None or forward_share >= _MIN_CERTAIN_FORWARD_SHARE
    return TENSOR if is_certain else OTHER


def _role_of_shards(use: CommUse, same_ranks: Sequence[CommUse]) -> str:
    """Return the role of an all-gather or a reduce-scatter."""
    scatters = [
        scatter
        for scatter in same_ranks
        if scatter.collective == "reduce_scatter" and not scatter.is_small
    ]
    if not scatters or _is_after_optimizer(use):
        return OTHER
    is_of_layers = any(scatter.is_in_forward for scatter in scatters)
    return TENSOR if is_of_layers else SHARDED


def _is_after_optimizer(use: CommUse) -> bool:
    """Tell whether a use gathers what an optimizer with sharded states wrote: no layer needs it."""
    if use.collective != "all_gather" or use.forward_share is None:
        return False
    return use.forward_share < _MIN_FORWARD_SHARE_OF_LAYERS


def _are_gradients_reduced(uses: Sequence[CommUse]) -> bool:
    return any(use.collective == "all_reduce" and not use.is_in_forward for use in uses)


def parallelism(traffic: pa.Table) -> list[str]:
    """Return the roles of a run's communicators, each once, in the order of `ROLES`."""
    roles_of_run = set(traffic["role"].unique().to_pylist())
    return [role for role in ROLES if role in roles_of_run]


def bubble_ns_per_step(traffic: pa.Table, n_ranks: int) -> float | None:
    """Return how long a rank of the run waits between stages of a pipeline, ns per step.

    The result is the mean over ranks. None if it is not known.
    """
    is_rank_of_stage = pc.and_(pc.equal(traffic["role"], PIPELINE), pc.is_valid(traffic["rank"]))
    bubbles = traffic["bubble_ns_per_step"].filter(is_rank_of_stage)
    total = pc.sum(bubbles, skip_nulls=False, min_count=0).as_py()
    return None if total is None else total / max(n_ranks, 1)


def between_stages(collectives: pa.Table) -> pa.ChunkedArray:
    """Tell in which operations stages of a pipeline wait for each other by design.

    These are sends and receives, and operations of a communicator that has two ranks of one that
    sends: for example a norm over all stages.
    """
    if "send_recv" not in collectives["collective"].unique().to_pylist():
        return pa.chunked_array([np.zeros(collectives.num_rows, np.bool_)])
    is_send_recv = pc.equal(collectives["collective"].cast(pa.string()), "send_recv")
    comm_ids = collectives["comm_id"].cast(pa.string()).combine_chunks().dictionary_encode()
    n_comms = len(comm_ids.dictionary)
    # The code behind the last is that of operations whose communicator is not known.
    comm = pc.fill_null(comm_ids.indices, n_comms).to_numpy()
    ranks, rank = np.unique(collectives["rank"], return_inverse=True)
    is_member = np.zeros((n_comms + 1, ranks.size), np.float32)
    is_member[comm, rank] = 1
    is_member[n_comms] = 0
    sending_comms = np.unique(comm[is_send_recv.to_numpy()])
    n_shared_ranks = is_member @ is_member[sending_comms].T
    is_of_stages = (n_shared_ranks > 1).any(axis=1)
    return pc.or_(is_send_recv, pa.chunked_array([is_of_stages[comm]]))


@dataclass(frozen=True)
class Dimension:
    """Ranks that communicate in groups of one size. Roles of the same groups are one dimension."""

    roles: tuple[str, ...]
    # Ranks of a group. None if communicators are not NCCL's own, or if the sizes differ.
    size: int | None
    # The ranks of each group, the lowest first.
    groups: tuple[tuple[int, ...], ...] = field(default=(), compare=False)

    def __str__(self) -> str:
        return listed(self.roles) + ("" if self.size is None else f" {self.size}")


def dimensions(traffic: pa.Table, world_size: int | None) -> list[Dimension]:
    """Return how ranks are grouped, from `schema.TRAFFIC`, the innermost dimension first.

    Communicators of a role that share ranks are one group, for example the pairs of neighboring
    stages of a pipeline. If the only group has all ranks of the job, its size is known even if its
    communicator is not NCCL's own.
    """
    rows = _rows_of_communicators(traffic)
    found_dimensions: dict[object, Dimension] = {}
    for role in _NESTING:
        rows_of_role = [row for row in rows if row["role"] == role]
        if not rows_of_role:
            continue
        groups = _join_groups([_ranks_of(row) for row in rows_of_role])
        size = _group_size(rows_of_role, groups)
        # Groups with ranks that are not seen may differ from all others.
        is_whole = all(len(group) == size for group in groups)
        key = frozenset(groups) if is_whole else role
        dimension = found_dimensions.get(key)
        if dimension is None:
            sorted_groups = sorted(tuple(sorted(group)) for group in groups)
            found_dimensions[key] = Dimension((role,), size, tuple(sorted_groups))
        else:
            found_dimensions[key] = replace(dimension, roles=(*dimension.roles, role))
    return _complete_size(list(found_dimensions.values()), world_size)


def _complete_size(results: list[Dimension], world_size: int | None) -> list[Dimension]:
    """Set the size of the only group of a job, if that has all ranks."""
    all_ranks = tuple(range(world_size or 0))
    is_one_group = [dimension.groups for dimension in results] == [(all_ranks,)]
    if is_one_group and not results[0].size:
        return [replace(results[0], size=world_size)]
    return results


def _rows_of_communicators(traffic: pa.Table) -> list[dict[str, Any]]:
    """Return the rows that are of all ranks of a communicator."""
    return traffic.filter(pc.is_null(traffic["rank"])).to_pylist()  # type: ignore[no-any-return]


def _ranks_of(row: Mapping[str, Any]) -> frozenset[int]:
    return frozenset(map(int, row["ranks"].split(",")))


def _join_groups(communicators: Sequence[frozenset[int]]) -> list[frozenset[int]]:
    """Join communicators that share ranks."""
    groups: list[frozenset[int]] = []
    for ranks in communicators:
        overlapping = [group for group in groups if group & ranks]
        groups = [group for group in groups if group not in overlapping]
        groups.append(ranks.union(*overlapping))
    return groups


def _group_size(rows: Sequence[Mapping[str, Any]], groups: Sequence[frozenset[int]]) -> int | None:
    """Return how many ranks each group of a role has; None if that is not known, or differs."""
    declared_sizes: set[int | None] = {
        row["n_ranks"] if is_nccl_communicator(row["communicator"]) else None for row in rows
    }
    declared_size = declared_sizes.pop()
    if declared_sizes or not declared_size:
        return None
    seen_sizes = {len(group) for group in groups}
    largest = max(seen_sizes)
    if len(seen_sizes) > 1 and largest > declared_size:
        return None
    return max(largest, declared_size)


def is_hybrid_sharded(traffic: pa.Table) -> bool:
    """Tell whether gradients are all-reduced between groups that share shards, as in HSDP.

    Each all-reduce then has one rank of each group.
    """
    shard_groups = []
    replicas = []
    for row in _rows_of_communicators(traffic):
        ranks = _ranks_of(row)
        if row["role"] == SHARDED:
            shard_groups.append(ranks)
        elif row["role"] == DATA and row["collective"] == "all_reduce" and len(ranks) > 1:
            replicas.append(ranks)
    if not shard_groups or not replicas:
        return False
    return all(len(ranks & group) <= 1 for ranks in replicas for group in shard_groups)


def ranks_per_batch(traffic: pa.Table, world_size: int | None) -> tuple[int, bool]:
    """Return how many ranks share a batch, and whether that is certain.

    The number is the product of the sizes of tensor and pipeline dimensions. Other ranks, for
    example those that share experts, process a batch each. More ranks may share a batch if such a
    size is not known, if no role is known, or if a communicator without a role may carry parts of a
    model.
    """
    groups = dimensions(traffic, world_size)
    sizes = [group.size for group in groups if not {TENSOR, PIPELINE}.isdisjoint(group.roles)]
    has_no_role = pc.and_(pc.is_null(traffic["rank"]), pc.equal(traffic["role"], OTHER))
    without_role = traffic.filter(has_no_role)
    small_bytes = pc.multiply(without_role["calls_per_step"], float(SMALL_BYTES))
    is_small = pc.less_equal(without_role["bytes_per_step"], small_bytes).to_pylist()
    are_sizes_known = None not in sizes
    is_rest_small = {None, False}.isdisjoint(is_small)
    are_roles_known = bool(groups) or world_size == 1
    n_ranks = math.prod(size or 2 for size in sizes)
    return n_ranks, are_roles_known and are_sizes_known and is_rest_small


def mean_over_ranks(
    traffic: pa.Table, column: str, key: str, n_ranks: int
) -> dict[str, float] | None:
    """Sum a column by role or collective, and divide the sums by the number of ranks.

    None if a part is not known. Each communicator counts as often as it has ranks.
    """
    is_of_rank = pc.is_valid(traffic["rank"])
    rows = traffic.select([*{"rank", column, key}]).filter(is_of_rank).to_pylist()
    if any(row[column] is None for row in rows):
        return None
    sums: dict[str, float] = defaultdict(float)
    for row in rows:
        sums[row[key]] += row[column]
    return {name: total / n_ranks for name, total in sums.items()}


def exposed_parts(
    uses: Sequence[IntervalSet], hidden: IntervalSet, windows: IntervalSet
) -> list[float]:
    """Return how much of the time of each use of a rank is exposed in the windows, ns.

    `hidden` is when communication runs at the same time as compute. If n uses are exposed at the
    same time, each gets an n-th of it. So all parts sum to the length of their union.
    """
    exposed = [times.without(hidden).intersect(windows) for times in uses]
    lengths = [float((times.ends - times.starts).sum()) for times in exposed]
    together = union_of(*exposed) if exposed else EMPTY
    if sum(lengths) == (together.ends - together.starts).sum():
        # No use overlaps another.
        return lengths
    # These are sorted runs, which a stable sort merges. Nothing lies between equal edges.
    sides = [side for times in exposed for side in (times.starts, times.ends)]
    edges = np.sort(np.concatenate(sides), kind="stable")
    spans = [
        (np.searchsorted(edges, times.starts), np.searchsorted(edges, times.ends))
        for times in exposed
    ]
    n_begun = np.zeros(edges.size, np.int64)
    for first, last in spans:
        n_begun[first] += 1
        n_begun[last] -= 1
    # Uses that are exposed from each edge to the next.
    n_at_once = np.cumsum(n_begun)[:-1]
    shared_ns = np.diff(edges) / np.maximum(n_at_once, 1)
    shared_before = np.append(0.0, np.cumsum(shared_ns))
    return [float((shared_before[last] - shared_before[first]).sum()) for first, last in spans]


def own_lateness(collectives: pa.Table) -> pa.Table:
    """Return what ranks are late by themselves, in collectives in which no stages meet.

    ``inherited_ns`` is how much longer a rank waited for other stages in the step than another rank
    of the communicator. ``late_by_ns`` and ``held_up_ns`` are less by that, but at least 0, because
    a rank that was kept waiting is late for that reason.
    """
    is_staged = between_stages(collectives)
    has_stages = pc.any(is_staged).as_py()
    rows = collectives.filter(pc.invert(is_staged)) if has_stages else collectives
    if not (has_stages and rows.num_rows):
        return rows.append_column("inherited_ns", pa.array(np.zeros(rows.num_rows, np.int64)))
    waited_ns = _waiting_for_stages(rows, collectives.filter(is_staged))
    comm_ids = rows["comm_id"].cast(pa.string()).combine_chunks().dictionary_encode()
    n_comms = len(comm_ids.dictionary)
    comm = pc.fill_null(comm_ids.indices, n_comms).to_numpy()
    group_key = rows["step"].to_numpy() * (n_comms + 1) + comm
    groups, group = np.unique(group_key, return_inverse=True)
    inherited_ns = waited_ns - least_of(group, waited_ns, groups.size)[group]
    for name in ("late_by_ns", "held_up_ns"):
        difference = pc.subtract(rows[name], pa.array(inherited_ns))
        by_itself = pc.max_element_wise(difference, 0, skip_nulls=False)
        rows = rows.set_column(rows.schema.get_field_index(name), name, by_itself)
    return rows.append_column("inherited_ns", pa.array(inherited_ns))


def _waiting_for_stages(rows: pa.Table, between: pa.Table) -> Int64:
    """Return how long the rank of each row waited in operations between stages of the same step."""
    n_ranks = max(pc.max(table["rank"]).as_py() for table in (rows, between)) + 1
    keys = _step_of_rank(rows, n_ranks)
    keys_between = _step_of_rank(between, n_ranks)
    steps, place = np.unique(np.concatenate([keys, keys_between]), return_inverse=True)
    wait_ns = pc.fill_null(between["wait_ns"], 0).to_numpy()
    waited_ns = sums_of(place[keys.size :], wait_ns, steps.size)
    return waited_ns[place[: keys.size]]


def _step_of_rank(collectives: pa.Table, n_ranks: int) -> Int64:
    keys: Int64 = pc.add(pc.multiply(collectives["step"], n_ranks), collectives["rank"]).to_numpy()
    return keys


def held_up_by_step(collectives: pa.Table, steps: pa.Table) -> pa.Table:
    """Return how long other ranks waited for each rank in each step, from `schema.COLLECTIVES`.

    The largest wait of each collective counts, as `own_lateness` has it. Collectives of several
    communicators may be waited for at the same time, so a step counts at most its own time, which
    its ranks share in proportion. Returns the columns ``step``, ``rank``, ``is_alone`` (whether it
    was the only rank to come last) and ``held_up_ns`` above 0, sorted.
    """
    return sum_held_up(own_lateness(collectives), steps)


def sum_held_up(rows: pa.Table, steps: pa.Table) -> pa.Table:
    """Do what `held_up_by_step` does, with collectives that `own_lateness` returned."""
    is_held_up = pc.greater(rows["held_up_ns"], 0)
    rows = rows.select(["step", "rank", "late_by_ns", "held_up_ns"]).filter(is_held_up)
    rows = rows.append_column("is_alone", pc.greater(rows["late_by_ns"], 0))
    keys = ["step", "rank", "is_alone"]
    sums = rows.group_by(keys, use_threads=False).aggregate([("held_up_ns", "sum")])
    sums = sums.sort_by([(key, "ascending") for key in keys])
    held_up_ns = sums["held_up_ns_sum"].to_numpy()
    numbers, step = np.unique(sums["step"].to_numpy(), return_inverse=True)
    total_ns = sums_of(step, held_up_ns, numbers.size)
    steps = steps.filter(pc.is_in(steps["step"], value_set=pa.array(numbers)))
    place = np.searchsorted(numbers, steps["step"].to_numpy())
    limit_ns = least_of(place, steps["wall_ns"].to_numpy(), numbers.size)
    ratio = np.minimum(limit_ns / np.maximum(total_ns, 1), 1.0)
    reduced_ns = (held_up_ns * ratio[step]).astype(np.int64)
    shared_ns = np.where((total_ns > limit_ns)[step], reduced_ns, held_up_ns)
    return pa.table({**{key: sums[key] for key in keys}, "held_up_ns": shared_ns})
