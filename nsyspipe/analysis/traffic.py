"""The kind of parallelism that a communicator serves, and the waiting that it causes by design."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from numpy.typing import NDArray

from nsyspipe.analysis.intervals import EMPTY, IntervalSet, least_of, sums_of, union_of
from nsyspipe.model.names import grouped, is_nccl_communicator, listed
from nsyspipe.model.table import Int64
from nsyspipe.model.typed_tables import (
    CollectivesTable,
    StepsTable,
    TrafficRow,
    TrafficTable,
)

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
        size = self.bytes_per_call
        return size is not None and size <= SMALL_BYTES


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
    """Tell whether ranks look like stages of a pipeline.

    `kernels_before` are the kernels that each rank launches before its first send. Ranks look like
    stages if one rank launches more than twice as many as another.
    """
    fewest = min(kernels_before, default=0.0)
    most = max(kernels_before, default=0.0)
    return most > 2 * fewest


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
    """Return the role of an all-reduce that is not known to be small.

    Without a backward range, the role is not known. Outside of forward, an all-reduce is of
    gradients. In forward, it is of layers if it is certainly not small. This is so if its size is
    known, or if many of its calls are in forward.
    """
    if use.backward_share is None:
        return OTHER
    if not use.is_in_forward:
        return DATA
    forward_share = use.forward_share or 0.0
    is_size_known = use.bytes_per_call is not None
    is_often_in_forward = forward_share >= _MIN_CERTAIN_FORWARD_SHARE
    return TENSOR if is_size_known or is_often_in_forward else OTHER


def _role_of_shards(use: CommUse, same_ranks: Sequence[CommUse]) -> str:
    """Return the role of an all-gather or a reduce-scatter.

    Without a reduce-scatter of the same ranks, no layer and no gradient is in shards. Gradients are
    scattered in backward only. A reduce-scatter in forward is of layers. An all-gather of weights
    that the optimizer has updated has no role.
    """
    scatters = list(filter(_is_large_scatter, same_ranks))
    if not scatters or _is_after_optimizer(use):
        return OTHER
    is_of_layers = any(scatter.is_in_forward for scatter in scatters)
    return TENSOR if is_of_layers else SHARDED


def _is_large_scatter(use: CommUse) -> bool:
    return use.collective == "reduce_scatter" and not use.is_small


def _is_after_optimizer(use: CommUse) -> bool:
    """Tell whether a use gathers the weights that an optimizer with sharded states updated.

    No layer needs such an all-gather, so few of its calls are in forward.
    """
    if use.collective != "all_gather" or use.forward_share is None:
        return False
    return use.forward_share < _MIN_FORWARD_SHARE_OF_LAYERS


def _are_gradients_reduced(uses: Sequence[CommUse]) -> bool:
    return any(map(_reduces_gradients, uses))


def _reduces_gradients(use: CommUse) -> bool:
    return use.collective == "all_reduce" and not use.is_in_forward


def parallelism(traffic: TrafficTable) -> list[str]:
    """Return the roles of a run's communicators, each once, in the order of `ROLES`."""
    different_roles = traffic["role"].unique().to_pylist()
    return [role for role in ROLES if role in different_roles]


def bubble_ns_per_step(traffic: TrafficTable, n_ranks: int) -> float | None:
    """Return how long a rank of the run waits between stages of a pipeline, ns per step.

    The result is the mean over ranks. It is 0 without stages, and None if the time of a rank is not
    known.
    """
    is_of_pipeline = pc.equal(traffic["role"], PIPELINE)
    is_of_rank = pc.is_valid(traffic["rank"])
    is_rank_of_stage = pc.and_(is_of_pipeline, is_of_rank)
    bubbles = traffic["bubble_ns_per_step"].filter(is_rank_of_stage)
    total = pc.sum(bubbles, skip_nulls=False, min_count=0).as_py()
    if total is None:
        return None
    # 1 avoids a division by 0 in a run without ranks.
    bubble_ns: float = total / max(n_ranks, 1)
    return bubble_ns


def between_stages(collectives: CollectivesTable) -> pa.ChunkedArray:
    """Tell in which operations stages of a pipeline wait for each other by design.

    These are sends and receives, and operations of a communicator that has two ranks of one that
    sends: for example a norm over all stages.
    """
    n_rows = collectives.num_rows
    if "send_recv" not in collectives["collective"].unique().to_pylist():
        return pa.chunked_array([np.zeros(n_rows, np.bool_)])
    kinds = collectives["collective"].cast(pa.string())
    is_send_recv = pc.equal(kinds, "send_recv")
    comm, n_comms = _communicators(collectives)
    has_rank = _members_of(comm, collectives["rank"])
    # An unknown communicator has no known ranks.
    has_rank[n_comms:] = 0
    sending_comms = np.unique(comm[is_send_recv.to_numpy()])
    # The product counts the ranks that each communicator has in common with each sending one.
    n_shared_ranks = has_rank @ has_rank[sending_comms].T
    shares_two_ranks = n_shared_ranks > 1
    is_comm_of_stages = shares_two_ranks.any(axis=1)
    is_of_stages = pa.chunked_array([is_comm_of_stages[comm]])
    return pc.or_(is_send_recv, is_of_stages)


class _Communicators(NamedTuple):
    """The communicator of each operation, as a number from 0."""

    code: Int64
    # The number behind the last. It is that of operations whose communicator is not known.
    n_known: int


def _members_of(comm: Int64, ranks: pa.ChunkedArray) -> NDArray[np.float32]:
    """Return a matrix with 1 for each communicator (row) and rank (column) that have operations."""
    numbers, rank = np.unique(ranks, return_inverse=True)
    n_rows = int(comm.max(initial=0)) + 1
    is_member = np.zeros((n_rows, numbers.size), np.float32)
    is_member[comm, rank] = 1
    return is_member


def _communicators(collectives: CollectivesTable) -> _Communicators:
    """Return the number of the communicator of each collective."""
    names = collectives["comm_id"].cast(pa.string())
    encoded = names.combine_chunks().dictionary_encode()
    n_known = len(encoded.dictionary)
    code = pc.fill_null(encoded.indices, n_known)
    return _Communicators(code.to_numpy(), n_known)


@dataclass(frozen=True)
class Dimension:
    """Ranks that communicate in groups of one size. Roles of the same groups are one dimension."""

    roles: tuple[str, ...]
    # Ranks of a group. None if communicators are not NCCL's own, or if the sizes differ.
    size: int | None
    # The ranks of each group, the lowest first.
    groups: tuple[tuple[int, ...], ...] = field(default=(), compare=False)

    def __str__(self) -> str:
        names = listed(self.roles)
        return names if self.size is None else f"{names} {self.size}"


def dimensions(traffic: TrafficTable, world_size: int | None) -> list[Dimension]:
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
        # Roles with the same groups are one dimension. If ranks of a group were not seen, nothing
        # shows that groups are the same, so the role is a dimension of its own.
        is_whole = all(len(group) == size for group in groups)
        key = frozenset(groups) if is_whole else role
        dimension = found_dimensions.get(key)
        if dimension is None:
            dimension = Dimension((), size, _sorted_groups(groups))
        all_roles = (*dimension.roles, role)
        found_dimensions[key] = replace(dimension, roles=all_roles)
    results = list(found_dimensions.values())
    return _complete_size(results, world_size)


def _sorted_groups(groups: Sequence[frozenset[int]]) -> tuple[tuple[int, ...], ...]:
    sorted_groups = [tuple(sorted(group)) for group in groups]
    return tuple(sorted(sorted_groups))


def _complete_size(results: list[Dimension], world_size: int | None) -> list[Dimension]:
    """Return the dimensions. A single dimension of one group with all ranks gets a size.

    The size of the group is that of the job then, even if no communicator declares a size.
    """
    all_ranks = tuple(range(world_size or 0))
    groups_of_dimensions = [dimension.groups for dimension in results]
    is_one_group_of_all = groups_of_dimensions == [(all_ranks,)]
    if not is_one_group_of_all or results[0].size:
        return results
    return [replace(results[0], size=world_size)]


def _rows_of_communicators(traffic: TrafficTable) -> list[TrafficRow]:
    """Return the rows that are of all ranks of a communicator."""
    is_of_all_ranks = pc.is_null(traffic["rank"])
    return traffic.filter(is_of_all_ranks).to_pylist()


def _ranks_of(row: Mapping[str, Any]) -> frozenset[int]:
    ranks = row["ranks"].split(",")
    return frozenset(map(int, ranks))


def _join_groups(communicators: Sequence[frozenset[int]]) -> list[frozenset[int]]:
    """Join communicators that share ranks."""
    groups: list[frozenset[int]] = []
    for ranks in communicators:
        overlapping = [group for group in groups if group & ranks]
        groups = [group for group in groups if group not in overlapping]
        joined = ranks.union(*overlapping)
        groups.append(joined)
    return groups


def _group_size(rows: Sequence[Mapping[str, Any]], groups: Sequence[frozenset[int]]) -> int | None:
    """Return how many ranks each group of a role has; None if that is not known, or differs.

    NCCL declares the size of each communicator. A group has more ranks than that if several
    communicators were joined. It seems to have fewer if some of its ranks were not captured.
    """
    declared_sizes = {_declared_size(row) for row in rows}
    if len(declared_sizes) > 1:
        return None
    declared_size = declared_sizes.pop()
    if not declared_size:
        return None
    seen_sizes = {len(group) for group in groups}
    largest = max(seen_sizes)
    are_joined = largest > declared_size
    if are_joined and len(seen_sizes) > 1:
        # Nothing declares the size of joined communicators, so the sizes may really differ.
        return None
    return max(largest, declared_size)


def _declared_size(row: Mapping[str, Any]) -> int | None:
    """Return the number of ranks that NCCL gives a communicator; None for an inferred one."""
    if not is_nccl_communicator(row["communicator"]):
        return None
    n_ranks: int | None = row["n_ranks"]
    return n_ranks


def is_hybrid_sharded(traffic: TrafficTable) -> bool:
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


def ranks_per_batch(traffic: TrafficTable, world_size: int | None) -> tuple[int, bool]:
    """Return how many ranks share a batch, and whether that is certain.

    The number is the product of the sizes of tensor and pipeline dimensions. Other ranks, for
    example those that share experts, process a batch each. The number is not certain, and may be
    too small, if one of these sizes or all roles are not known. It is not certain either if a
    communicator without a role may carry parts of a model, since its calls are not known to be
    small.
    """
    found_dimensions = dimensions(traffic, world_size)
    sizes = [dimension.size for dimension in found_dimensions if _shares_batch(dimension)]
    is_of_all_ranks = pc.is_null(traffic["rank"])
    has_no_role = pc.equal(traffic["role"], OTHER)
    without_role = traffic.filter(pc.and_(is_of_all_ranks, has_no_role))
    max_bytes = pc.multiply(without_role["calls_per_step"], float(SMALL_BYTES))
    is_small = pc.less_equal(without_role["bytes_per_step"], max_bytes)
    # A size that is not known may be large.
    is_known_to_be_small = pc.fill_null(is_small, fill_value=False)
    is_rest_small = all(is_known_to_be_small.to_pylist())
    are_sizes_known = None not in sizes
    are_roles_known = bool(found_dimensions) or world_size == 1
    is_certain = are_roles_known and are_sizes_known and is_rest_small
    # A group has at least two ranks.
    n_ranks = math.prod(size or 2 for size in sizes)
    return n_ranks, is_certain


def _shares_batch(dimension: Dimension) -> bool:
    """Tell whether the ranks of a group process the same batch."""
    return TENSOR in dimension.roles or PIPELINE in dimension.roles


def mean_over_ranks(
    traffic: pa.Table, column: str, key: str, n_ranks: int
) -> dict[str, float] | None:
    """Sum a column for each value of `key`, and divide the sums by the number of ranks.

    `key` is ``role`` or ``collective``. The rows of single ranks are summed, so a communicator
    counts once for each of its ranks. None if the column is null in one of these rows.
    """
    is_of_rank = pc.is_valid(traffic["rank"])
    different_names = {"rank", column, key}
    columns = traffic.select([*different_names])
    sums: dict[str, float] = defaultdict(float)
    for row in columns.filter(is_of_rank).to_pylist():
        value = row[column]
        if value is None:
            return None
        sums[row[key]] += value
    return {name: total / n_ranks for name, total in sums.items()}


def exposed_parts(
    uses: Sequence[IntervalSet], hidden: IntervalSet, windows: IntervalSet
) -> list[float]:
    """Return how much of the time of each use of a rank is exposed in the windows, ns.

    `hidden` is when communication runs at the same time as compute. Time at which n uses are
    exposed is divided: each use gets an n-th. So all parts sum to the length of the union.
    """
    exposed = [times.without(hidden).intersect(windows) for times in uses]
    lengths = [float(_length_ns(times)) for times in exposed]
    together = union_of(*exposed) if exposed else EMPTY
    if sum(lengths) == _length_ns(together):
        # No use overlaps another.
        return lengths
    return _shared_parts(exposed)


def _length_ns(times: IntervalSet) -> int:
    lengths = times.ends - times.starts
    return int(lengths.sum())


def _shared_parts(uses: Sequence[IntervalSet]) -> list[float]:
    """Return the time of each use, ns. Time of n uses is divided: each of them gets an n-th.

    An edge is a start or an end of an interval. From one edge to the next, the uses stay the same.
    """
    sides = [side for times in uses for side in (times.starts, times.ends)]
    edges = np.concatenate(sides)
    # These are sorted runs, which a stable sort merges.
    edges.sort(kind="stable")
    # How many more uses there are behind each edge than before. `searchsorted` finds the first of
    # equal edges, which gets the changes of all. No time lies between equal edges.
    change_at_edge = np.zeros(edges.size, np.int64)
    places_of_uses = []
    for times in uses:
        first = np.searchsorted(edges, times.starts)
        last = np.searchsorted(edges, times.ends)
        change_at_edge[first] += 1
        change_at_edge[last] -= 1
        places_of_uses.append((first, last))
    n_uses_to_next_edge = np.cumsum(change_at_edge)[:-1]
    # What one use gets from each edge to the next. 1 avoids a division by 0 without any use.
    share_ns = np.diff(edges) / np.maximum(n_uses_to_next_edge, 1)
    share_before_edge_ns = np.append(0.0, np.cumsum(share_ns))
    parts_ns = []
    for first, last in places_of_uses:
        share_of_interval_ns = share_before_edge_ns[last] - share_before_edge_ns[first]
        parts_ns.append(float(share_of_interval_ns.sum()))
    return parts_ns


def own_lateness(collectives: CollectivesTable) -> pa.Table:
    """Return the collectives in which no stages meet, with what ranks are late by themselves.

    A rank that waited for other stages of a pipeline is late for that reason. Of the ranks of a
    communicator, one waited least for other stages in the step. The new column ``inherited_ns`` is
    how much longer each rank waited. ``late_by_ns`` and ``held_up_ns`` are less by
    ``inherited_ns``, but at least 0.
    """
    is_staged = between_stages(collectives)
    if not pc.any(is_staged).as_py():
        return _with_inherited(collectives, np.zeros(collectives.num_rows, np.int64))
    rows = collectives.filter(pc.invert(is_staged))
    if not rows.num_rows:
        return _with_inherited(rows, np.zeros(0, np.int64))
    waited_ns = _waiting_for_stages(rows, collectives.filter(is_staged))
    comm, n_comms = _communicators(rows)
    step = rows["step"].to_numpy()
    # A group is a communicator in a step. All unknown communicators share the number `n_comms`.
    key = step * (n_comms + 1) + comm
    groups, group_of_row = np.unique(key, return_inverse=True)
    least_of_group_ns = least_of(group_of_row, waited_ns, groups.size)
    inherited_ns = waited_ns - least_of_group_ns[group_of_row]
    for name in ("late_by_ns", "held_up_ns"):
        difference = pc.subtract(rows[name], pa.array(inherited_ns))
        by_itself = pc.max_element_wise(difference, 0, skip_nulls=False)
        place = rows.column_names.index(name)
        rows = rows.set_column(place, name, by_itself)
    return _with_inherited(rows, inherited_ns)


def _with_inherited(rows: pa.Table, inherited_ns: Int64) -> pa.Table:
    return rows.append_column("inherited_ns", pa.array(inherited_ns))


def _waiting_for_stages(rows: pa.Table, between: pa.Table) -> Int64:
    """Return how long the rank of each row waited in operations between stages of the same step."""
    largest_rank = pc.max(rows["rank"]).as_py()
    largest_between = pc.max(between["rank"]).as_py()
    n_ranks = max(largest_rank, largest_between) + 1
    key_of_row = number_rank_steps(rows, n_ranks)
    key_between = number_rank_steps(between, n_ranks)
    # Numbered together, so that the same step of a rank has one number in both tables.
    all_keys = np.concatenate([key_of_row, key_between])
    rank_steps, number = np.unique(all_keys, return_inverse=True)
    number_of_row = number[: key_of_row.size]
    number_between = number[key_of_row.size :]
    wait_ns = pc.fill_null(between["wait_ns"], 0).to_numpy()
    waited_ns = sums_of(number_between, wait_ns, rank_steps.size)
    return waited_ns[number_of_row]


def number_rank_steps(rows: pa.Table, n_ranks: int) -> Int64:
    """Return a number for the step and the rank of each row."""
    first_of_step = pc.multiply(rows["step"], n_ranks)
    number: Int64 = pc.add(first_of_step, rows["rank"]).to_numpy()
    return number


def held_up_by_step(collectives: CollectivesTable, steps: StepsTable) -> pa.Table:
    """Return how long other ranks waited for each rank in each step, from `schema.COLLECTIVES`.

    Returns the columns ``step``, ``rank``, ``is_alone`` and ``held_up_ns``, sorted by the first
    three. ``is_alone`` tells whether the rank was the only one to come last. Only rows with
    ``held_up_ns`` above 0 are returned.

    The largest wait of each collective counts, as `own_lateness` has it. Collectives of several
    communicators may be waited for at the same time. So the times of a step add up to at most the
    time of the step. If they are more, all are reduced in proportion.
    """
    return sum_held_up(own_lateness(collectives), steps)


def sum_held_up(rows: pa.Table, steps: StepsTable) -> pa.Table:
    """Return how long other ranks waited for each rank in each step, as `held_up_by_step` does.

    `rows` are collectives that `own_lateness` returned. If the times of a step add up to more than
    its shortest window, all are reduced in proportion.
    """
    sums = _sum_by_step_and_rank(rows)
    held_up_ns = sums["held_up_ns"].to_numpy()
    numbers, step_of_row = np.unique(sums["step"].to_numpy(), return_inverse=True)
    # Of each step.
    total_ns = sums_of(step_of_row, held_up_ns, numbers.size)
    limit_ns = _shortest_windows(steps, numbers)
    is_above_limit = total_ns > limit_ns
    # The total is above 0, unless it overflows in a damaged report.
    share = np.minimum(limit_ns / np.maximum(total_ns, 1), 1.0)
    # Of each row. Times within the limit stay exact integers.
    exact_reduced_ns = held_up_ns * share[step_of_row]
    reduced_ns = exact_reduced_ns.astype(np.int64)
    limited_ns = np.where(is_above_limit[step_of_row], reduced_ns, held_up_ns)
    place = sums.column_names.index("held_up_ns")
    return sums.set_column(place, "held_up_ns", pa.array(limited_ns))


def _sum_by_step_and_rank(rows: CollectivesTable) -> pa.Table:
    """Return the columns of `held_up_by_step`, without a limit."""
    keys = ["step", "rank", "is_alone"]
    is_held_up = pc.greater(rows["held_up_ns"], 0)
    rows = rows.select(["step", "rank", "late_by_ns", "held_up_ns"]).filter(is_held_up)
    # If several ranks came last together, none of them is late by anything.
    is_alone = pc.greater(rows["late_by_ns"], 0)
    with_is_alone = rows.append_column("is_alone", is_alone)
    groups = with_is_alone.group_by(keys, use_threads=False)
    sums = groups.aggregate([("held_up_ns", "sum")])
    sums = sums.rename_columns([*keys, "held_up_ns"])
    return sums.sort_by([(key, "ascending") for key in keys])


def _shortest_windows(steps: StepsTable, numbers: Int64) -> Int64:
    """Return the shortest window over ranks of each of some sorted steps, ns."""
    wanted = pa.array(numbers)
    is_wanted = pc.is_in(steps["step"], value_set=wanted)
    steps = steps.select(["step", "wall_ns"])
    steps = steps.filter(is_wanted)
    step = steps["step"].to_numpy()
    wall_ns = steps["wall_ns"].to_numpy()
    place = np.searchsorted(numbers, step)
    return least_of(place, wall_ns, numbers.size)
