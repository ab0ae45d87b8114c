"""What kind of parallelism a communicator serves: gradients, shards of parameters, layers, stages, experts."""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from nsyspipe.analysis.intervals import EMPTY, IntervalSet, least_of, sums_of, union_of
from nsyspipe.model.names import grouped, is_nccl_communicator, listed

ROLES = DATA, SHARDED, TENSOR, PIPELINE, EXPERT, OTHER = (
    "data",
    "sharded",
    "tensor",
    "pipeline",
    "expert",
    "other",
)
# What the next layer or stage needs at once: a stream of its own gains nothing.
NEEDED_AT_ONCE = frozenset({TENSOR, PIPELINE, EXPERT})

# A layer's collective stands in forward about as often as in backward; now and then one of a loss
# or a buffer does.
_LEAST_IN_FORWARD = 0.2
# below this share, what counts or averages may be what stands in forward, unless sizes tell
_SURELY_IN_FORWARD = 0.3
SMALL_BYTES = (
    64 * 1024
)  # what counts, clips or averages: the loss, a norm, whether a gradient overflowed
_NESTING = (
    TENSOR,
    EXPERT,
    PIPELINE,
    SHARDED,
    DATA,
)  # from the innermost, which NCCL serves best, to the outermost


class CommUse(Struct, frozen=True):
    """One collective of one communicator, over the summary steps."""

    communicator: str
    collective: str
    ranks: tuple[int, ...]
    calls_per_step: float
    bytes_per_call: float | None  # mean; null where one is not known
    # parts of the calls that are launched before the step's first backward range, and in backward;
    # null without backward
    forward_share: float | None
    backward_share: float | None
    kernels_before: tuple[
        float, ...
    ] = ()  # of sends: compute kernels of each rank in a step before its first

    @property
    def is_in_forward(self) -> bool:
        """Whether forward has as many of them as layers make."""
        return (self.forward_share or 0.0) >= _LEAST_IN_FORWARD and self.calls_per_step >= 2  # noqa: PLR2004

    @property
    def is_small(self) -> bool:
        """Whether nothing of a model is in them."""
        return self.bytes_per_call is not None and self.bytes_per_call <= SMALL_BYTES


def roles(uses: Sequence[CommUse]) -> list[str]:
    """Return the role of each collective of each communicator, one of `ROLES`, in the same order.

    ``expert``: all-to-all. ``pipeline``: sends and receives before whose first of a step one rank
    launches twice as many kernels as another: the first stage begins, and an all-to-all or a ring
    is of ranks that do alike. ``tensor``: all-reduce, or all-gather and reduce-scatter, in forward
    and in backward; ``sharded``: reduce-scatter outside of forward, and the all-gathers on a
    communicator of the same ranks; ``data``: all-reduce outside of forward, and broadcasts beside
    it. What is too small for a model, and what fits none of these, is ``other``; so is what could
    be two of these where no backward range is known.
    """
    by_ranks = grouped((use.ranks, use) for use in uses)
    return [_role(use, by_ranks[use.ranks]) for use in uses]


def begins_in_stages(kernels_before: Sequence[float]) -> bool:
    """Tell whether one rank launches twice as many kernels before its first send of a step as another: stages do."""
    return 2 * min(kernels_before, default=0.0) < max(kernels_before, default=0.0)


def _role(use: CommUse, same_ranks: Sequence[CommUse]) -> str:
    if use.collective == "all_to_all":
        return EXPERT
    if use.collective == "send_recv":
        return PIPELINE if begins_in_stages(use.kernels_before) else OTHER
    if use.is_small or (use.collective == "all_reduce" and use.backward_share is None):
        return OTHER
    if use.collective == "all_reduce":
        is_sure = use.bytes_per_call is not None or (use.forward_share or 0.0) >= _SURELY_IN_FORWARD
        return (TENSOR if is_sure else OTHER) if use.is_in_forward else DATA
    if use.collective in {"all_gather", "reduce_scatter"}:
        scatters = [
            one for one in same_ranks if one.collective == "reduce_scatter" and not one.is_small
        ]
        in_layers = any(scatter.is_in_forward for scatter in scatters)
        # Behind an optimizer whose states are sharded no layer waits for what is gathered.
        is_before = (
            use.collective != "all_gather" or (use.forward_share or 0.0) >= _LEAST_IN_FORWARD
        )
        is_before |= use.forward_share is None
        return (TENSOR if in_layers else SHARDED) if scatters and is_before else OTHER
    has_gradients = any(
        one.collective == "all_reduce" and not one.is_in_forward for one in same_ranks
    )
    return DATA if use.collective == "broadcast" and has_gradients else OTHER


def parallelism(traffic: pa.Table) -> list[str]:
    """Return the roles of a run's communicators, each once, in the order of `ROLES`."""
    there = set(traffic["role"].unique().to_pylist())
    return [role for role in ROLES if role in there]


def bubble_ns_per_step(traffic: pa.Table, n_ranks: int) -> float | None:
    """Return how long a rank of the run waits between stages of a pipeline, in the mean; None where that is not known."""
    is_of_rank = pc.and_(pc.equal(traffic["role"], PIPELINE), pc.is_valid(traffic["rank"]))
    total = pc.sum(
        traffic["bubble_ns_per_step"].filter(is_of_rank), skip_nulls=False, min_count=0
    ).as_py()
    return None if total is None else total / max(n_ranks, 1)


def between_stages(collectives: pa.Table) -> pa.ChunkedArray:
    """Tell in which operations stages of a pipeline wait for each other by design.

    Sends and receives, and what a communicator does that holds two of the ranks of one that sends:
    a norm of all stages.
    """
    if "send_recv" not in collectives["collective"].unique().to_pylist():
        return pa.chunked_array([np.zeros(collectives.num_rows, np.bool_)])
    in_pairs = pc.equal(collectives["collective"].cast(pa.string()), "send_recv")
    named = collectives["comm_id"].cast(pa.string()).combine_chunks().dictionary_encode()
    code = pc.fill_null(named.indices, len(named.dictionary)).to_numpy()
    numbers, rank = np.unique(collectives["rank"], return_inverse=True)
    users = np.zeros((len(named.dictionary) + 1, numbers.size), np.float32)
    users[code, rank] = 1
    users[-1] = 0  # of those whose communicator is not known
    is_shared = (users @ users[np.unique(code[in_pairs.to_numpy()])].T > 1).any(axis=1)
    return pc.or_(in_pairs, pa.chunked_array([is_shared[code]]))


@dataclass(frozen=True)
class Dimension:
    """Ranks that communicate in groups of one size, and what for: roles of the same groups are one dimension."""

    roles: tuple[str, ...]
    size: int | None  # of a group; None where communicators are not NCCL's own, or groups differ
    groups: tuple[tuple[int, ...], ...] = field(
        default=(), compare=False
    )  # their ranks, the lowest first

    def __str__(self) -> str:
        return listed(self.roles) + ("" if self.size is None else f" {self.size}")


def dimensions(traffic: pa.Table, world_size: int | None) -> list[Dimension]:
    """Return how ranks are grouped, of `schema.TRAFFIC`, the innermost first.

    Communicators of a role that share ranks are one group: the pairs of neighbouring stages are one
    pipeline. If all ranks of the job are the only one that there is, they are a group whatever NCCL
    calls it.
    """
    rows = traffic.filter(pc.is_null(traffic["rank"])).to_pylist()
    found: dict[object, tuple[int | None, list[str], tuple[tuple[int, ...], ...]]] = {}
    for role in _NESTING:
        own = [row for row in rows if row["role"] == role]
        if not own:
            continue
        groups: list[frozenset[int]] = []
        for row in own:
            group = frozenset(map(int, row["ranks"].split(",")))
            shared = [other for other in groups if other & group]
            groups = [*(other for other in groups if other not in shared), group.union(*shared)]
        widths = {len(group) for group in groups}
        told = {
            (row["n_ranks"] or 0) if is_nccl_communicator(row["communicator"]) else 0 for row in own
        }
        is_even = (
            len(told) == 1 and 0 not in told and (len(widths) == 1 or max(widths) <= max(told))
        )
        size = max(widths | told) if is_even else None
        # Of groups that are not seen whole nobody knows whether they are the same.
        key = frozenset(groups) if widths == {size} else role
        found.setdefault(key, (size, [], tuple(sorted(tuple(sorted(group)) for group in groups))))[
            1
        ].append(role)
    of_all = [(tuple(range(world_size)),)] if world_size else []
    whole = world_size if [groups for _, _, groups in found.values()] == of_all else None
    return [
        Dimension(tuple(names), size or whole, groups) for size, names, groups in found.values()
    ]


def is_hybrid_sharded(traffic: pa.Table) -> bool:
    """Tell whether gradients are all-reduced between groups that share shards, one rank of each, as of HSDP."""
    rows = traffic.filter(pc.is_null(traffic["rank"])).to_pylist()
    ranks = [frozenset(row["ranks"].split(",")) for row in rows]
    uses = [(row["role"], row["collective"]) for row in rows]
    sharing = [own for own, (role, _) in zip(ranks, uses, strict=True) if role == SHARDED]
    reducing = [own for own, use in zip(ranks, uses, strict=True) if use == (DATA, "all_reduce")]
    replicas = [own for own in reducing if len(own) > 1]
    if not sharing or not replicas:
        return False
    return all(len(replica & group) <= 1 for replica in replicas for group in sharing)


def ranks_per_batch(traffic: pa.Table, world_size: int | None) -> tuple[int, bool]:
    """Return how many ranks share a batch, and whether no more do: the sizes of tensor and pipeline dimensions, multiplied.

    Others, as those that share experts, process a batch each. More may share one where such a size
    is not known, or where it is not known what any communicator serves, or one that may carry parts
    of a model.
    """
    groups = dimensions(traffic, world_size)
    sizes = [group.size for group in groups if not {TENSOR, PIPELINE}.isdisjoint(group.roles)]
    others = traffic.filter(pc.and_(pc.is_null(traffic["rank"]), pc.equal(traffic["role"], OTHER)))
    is_small = pc.less_equal(
        others["bytes_per_step"], pc.multiply(others["calls_per_step"], float(SMALL_BYTES))
    )
    is_known = (bool(groups) or world_size == 1) and {None, False}.isdisjoint(
        [*sizes, *is_small.to_pylist()]
    )
    return math.prod(size or 2 for size in sizes), is_known


def mean_over_ranks(
    traffic: pa.Table, column: str, key: str, n_ranks: int
) -> dict[str, float] | None:
    """Sum a column by role or collective, a mean over so many ranks; None where a part is not known.

    Each communicator counts as often as it has ranks.
    """
    rows = traffic.select([*{"rank", column, key}]).filter(pc.is_valid(traffic["rank"])).to_pylist()
    if any(row[column] is None for row in rows):
        return None
    sums: dict[str, float] = defaultdict(float)
    for row in rows:
        sums[row[key]] += row[column]
    return {name: total / n_ranks for name, total in sums.items()}


def exposed_parts(
    uses: Sequence[IntervalSet], hidden: IntervalSet, windows: IntervalSet
) -> list[float]:
    """Return of each use of a rank how much of its time in the windows is exposed, ns, shared where several are at once.

    `hidden` is when communication runs beside compute. Where n uses are exposed at once each gets
    the n-th part, so that all parts sum to the length of their union.
    """
    exposed = [times.without(hidden).intersect(windows) for times in uses]
    whole = [float((times.ends - times.starts).sum()) for times in exposed]
    together = union_of(*exposed) if exposed else EMPTY
    if sum(whole) == (together.ends - together.starts).sum():
        return whole  # none overlaps another
    # Sorted runs, which a stable sort merges. Equal edges have nothing between them.
    sides = [side for times in exposed for side in (times.starts, times.ends)]
    edges = np.sort(np.concatenate(sides), kind="stable")
    n_at_once = np.zeros(edges.size, np.int64)  # uses that are exposed from each edge to the next
    spans = [
        (np.searchsorted(edges, times.starts), np.searchsorted(edges, times.ends))
        for times in exposed
    ]
    for first, last in spans:
        n_at_once[first] += 1
        n_at_once[last] -= 1
    n_at_once = np.cumsum(n_at_once)[:-1]
    shared_before = np.append(0.0, np.cumsum(np.diff(edges) / np.maximum(n_at_once, 1)))
    return [float((shared_before[last] - shared_before[first]).sum()) for first, last in spans]


def own_lateness(collectives: pa.Table) -> pa.Table:
    """Return the collectives in which no stages of a pipeline meet, with what their ranks are late by themselves.

    ``inherited_ns`` is what a rank of it waited longer for other stages in that step than another
    of the communicator; ``late_by_ns`` and ``held_up_ns`` are less that, 0 at least: who was kept
    waiting comes late for that.
    """
    is_staged = between_stages(collectives)
    is_any = pc.any(is_staged).as_py()
    rows = collectives.filter(pc.invert(is_staged)) if is_any else collectives
    if not (is_any and rows.num_rows):
        return rows.append_column("inherited_ns", pa.array(np.zeros(rows.num_rows, np.int64)))
    waits = collectives.filter(is_staged)
    width = pc.max(collectives["rank"]).as_py() + 1
    keys, own = (
        pc.add(pc.multiply(one["step"], width), one["rank"]).to_numpy() for one in (waits, rows)
    )
    known, place = np.unique(np.concatenate([own, keys]), return_inverse=True)
    waited = sums_of(place[own.size :], pc.fill_null(waits["wait_ns"], 0).to_numpy(), known.size)[
        place[: own.size]
    ]
    named = rows["comm_id"].cast(pa.string()).combine_chunks().dictionary_encode()
    group = rows["step"].to_numpy() * (len(named.dictionary) + 1) + pc.fill_null(
        named.indices, len(named.dictionary)
    )
    groups, number = np.unique(group, return_inverse=True)
    inherited = waited - least_of(number, waited, groups.size)[number]
    for name in ("late_by_ns", "held_up_ns"):
        less = pc.max_element_wise(
            pc.subtract(rows[name], pa.array(inherited)), 0, skip_nulls=False
        )
        rows = rows.set_column(rows.schema.get_field_index(name), name, less)
    return rows.append_column("inherited_ns", pa.array(inherited))


def held_up_by_step(collectives: pa.Table, steps: pa.Table) -> pa.Table:
    """Sum by step and rank how long others waited for it, the largest wait of each collective; of `schema.COLLECTIVES`.

    That is `own_lateness`. Collectives of several communicators may be waited for at once, so a
    step counts at most its own time, shared out in proportion. Returns ``step``, ``rank``,
    ``is_alone`` (whether it was the only one to come last) and ``held_up_ns`` above 0, sorted.
    """
    return sum_held_up(own_lateness(collectives), steps)


def sum_held_up(rows: pa.Table, steps: pa.Table) -> pa.Table:
    """Do what `held_up_by_step` does, of collectives with what their ranks are late by themselves."""
    rows = rows.select(["step", "rank", "late_by_ns", "held_up_ns"]).filter(
        pc.greater(rows["held_up_ns"], 0)
    )
    rows = rows.append_column("is_alone", pc.greater(rows["late_by_ns"], 0))
    keys = ["step", "rank", "is_alone"]
    sums = rows.group_by(keys, use_threads=False).aggregate([("held_up_ns", "sum")])
    sums = sums.sort_by([(key, "ascending") for key in keys])
    held_up = sums["held_up_ns_sum"].to_numpy()
    numbers, step = np.unique(sums["step"].to_numpy(), return_inverse=True)
    total = sums_of(step, held_up, numbers.size)
    own = steps.filter(pc.is_in(steps["step"], value_set=pa.array(numbers)))
    most = least_of(
        np.searchsorted(numbers, own["step"].to_numpy()), own["wall_ns"].to_numpy(), numbers.size
    )
    ratio = np.minimum(most / np.maximum(total, 1), 1.0)
    shared = np.where((total > most)[step], (held_up * ratio[step]).astype(np.int64), held_up)
    return pa.table({**{key: sums[key] for key in keys}, "held_up_ns": shared})
