"""Steps of a program that names none: the smallest stretch of launches that repeats, and the backward pass in it."""

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np
import pyarrow as pa
from msgspec import Struct

from nsyspipe.analysis.alignment import agreement, n_shared, runs_of_codes
from nsyspipe.analysis.attribution import NEVER, UNKNOWN, ProcessOperations
from nsyspipe.analysis.steps import REPETITION, Candidate, Members
from nsyspipe.model.names import is_matrix_product, is_optimizer
from nsyspipe.model.table import Flags, Int64

# Which of a launch's properties repeat, in the order in which they are tried, and how alike units
# have to be.
SHAPES = "names and grids"
NAMES = "names"
COMM = "collectives and optimizer"
_LEAST_AGREEMENT = {SHAPES: 0.95, NAMES: 0.95, COMM: 0.8}
# By how much a pair of units may be less alike than most: so much, six times what is usual; but no
# more than so much.
_NOISE = 0.05
_MOST_NOISE = 0.15
_LEAST_UNITS = 3
_LEAST_COVER = 0.4  # of the sequence, by units: a recompilation may stand between two stretches
_LEAST_REPEATED = 0.8  # the same of a sequence in which nothing trains
# A key's distances are regular where this part of the sequence lies in those near their median.
_LEAST_REGULAR = 0.3
_NEAR = 0.25
# Of keys about as frequent the most regular ones are tried: counts are told apart by a twentieth.
_COUNTS = 20
_KEYS_PER_COUNT = 2
_MOST_TRIED = 80
_GRAM = 8
_BEHIND = 0.75  # of a unit is before most updates
LEAST_BACKWARD: Final = 0.1  # of a unit's compute kernels
_LEAST_KNOWN = 0.5  # of an evaluation's kernels, in the training units
_MOST_UNLIKE = 3  # pairs of units, or half of all
# pairs of units that are looked at first, and which part of them may be unlike
_SAMPLE = 64
_UNLIKE_IN_SAMPLE = 0.6
_NEARLY = 0.9  # as large as any other is a first or last unit that is not cut off
_MOST_ALIGNED = 10  # ways to cut a sequence by one key


class LaunchSequence(Struct, frozen=True):
    """What one process launched, in order: kernels, and each graph once."""

    time_ns: Int64  # host start of the launch, report time
    thread_id: Int64
    name: Int64  # a number per name
    shape: Int64 | None  # a number per name and grid; None where grids are not known
    is_optimizer: Flags
    is_comm: Flags
    may_begin: Flags | None = (
        None  # whether a step may begin there, by what `launch_sequence` says; None: anywhere
    )


class Repetition(Struct, frozen=True):
    """The units of one process: whole, one behind the other."""

    sequence: LaunchSequence  # all that it launched
    edges: Int64  # place in the sequence where each unit begins, and the one behind the last
    agreement: (
        float  # median over units: launches that stand in the next one too, of the longer of both
    )
    key: str  # `SHAPES`, `NAMES` or `COMM`
    thread_id: int  # the thread that runs the training loop
    backward_threads: tuple[
        int, ...
    ]  # those that launch a part of every unit while the loop's own waits
    has_optimizer: bool

    @property
    def is_step(self) -> bool:
        """Whether a unit trains: it updates weights, or has a backward pass."""
        return self.has_optimizer or bool(self.backward_threads)

    @property
    def n_launches(self) -> int:
        """Launches in a unit, the median."""
        return int(np.median(np.diff(self.edges)))

    @property
    def members(self) -> Members:
        """The units as steps: each ends where the next begins, in the middle of the host's pause between their launches."""
        times = self.sequence.time_ns
        edges = self.edges
        usual = int(np.median(times[edges[1:-1]] - times[edges[1:-1] - 1]))
        around = np.concatenate([times[:1] - usual, times, times[-1:] + usual])
        before = around[edges]
        behind = around[edges + 1]
        limits = behind - (behind - before) // 2
        return Members(self.thread_id, np.empty(0, np.int64), limits[:-1], limits[1:])

    @property
    def candidate(self) -> Candidate:
        """The family of the units, which qualifies where they are steps."""
        steps = self.members
        n_launched = self.sequence.time_ns.size
        return Candidate(
            name=REPETITION,
            thread_id=steps.thread_id,
            union_ns=int(steps.ends[-1] - steps.starts[0]),
            first_start_ns=int(steps.starts[0]),
            n_members=steps.starts.size,
            is_part=not self.is_step,
            # What is outside of them is no reason against them.
            n_launched_inside=n_launched,
            n_launched=n_launched,
        )

    @property
    def n_updates(self) -> int:
        """Backward passes of a unit with an update of the loop's thread behind each, the median; 0 where no thread tells."""
        inside = slice(*self.edges[[0, -1]].tolist())
        thread = self.sequence.thread_id[inside]
        is_update = self.sequence.is_optimizer[inside] & (thread == self.thread_id)
        is_backward = np.isin(thread, self.backward_threads)
        rows = np.flatnonzero(is_update | is_backward)
        behind = rows[1:][is_backward[rows[:-1]] & is_update[rows[1:]]]
        unit = np.searchsorted(self.edges - self.edges[0], behind, side="right") - 1
        return int(np.median(np.bincount(unit, minlength=self.edges.size - 1)))


def launch_sequence(
    operations: ProcessOperations,
    names: Mapping[int, str],
    calls: pa.Table | None,
    main_thread_id: int | None = None,
) -> LaunchSequence:
    """List what a process launched, in order; `names` are texts by name id, `calls` `canonical.HOST_CALLS` of the process.

    Kernels of one launch are a graph: one item, known by how many they are. Without calls all
    threads are one. A step may begin where the main thread goes on behind another (backward), up to
    its first product of matrices (forward).
    """
    n = operations.n_launched
    launch = operations.kernel_launch[:n]
    first = np.flatnonzero(np.diff(launch, prepend=-NEVER))
    n_kernels = np.diff(first, append=n)
    name_ids, grids = (operations.kernel_column(column, 0, n) for column in ("name_id", "grid"))
    optimizers = [number for number, name in names.items() if is_optimizer(name)]
    keys = (
        np.where(n_kernels > 1, UNKNOWN + n_kernels, name_ids[first]),
        np.where(n_kernels > 1, 0, grids[first]),
    )
    name, grid = (np.unique(key, return_inverse=True)[1].astype(np.int64) for key in keys)
    threads = threads_of(launch[first], calls)
    products = [number for number, name in names.items() if is_matrix_product(name)]
    shape = None if (grids == UNKNOWN).any() else np.unique(name * n + grid, return_inverse=True)[1]
    updates = (
        np.logical_or.reduceat(np.isin(name_ids, optimizers), first) if n else np.zeros(0, np.bool_)
    )
    may_begin = _before_forward(threads == main_thread_id, np.isin(name_ids[first], products))
    is_comm = operations.is_comm[first] & (n_kernels == 1)
    return LaunchSequence(launch[first], threads, name, shape, updates, is_comm, may_begin)


def _before_forward(is_main: Flags, is_product: Flags) -> Flags | None:
    """Flag the main thread's launches between another's and its own first product; None where that says nothing."""
    if is_main.all() or not is_main.any() or not (is_main & is_product).any():
        return None
    n_products: Int64 = np.cumsum(is_product) - is_product
    turns = np.flatnonzero(np.diff(is_main, prepend=False) & is_main)
    turn = np.searchsorted(turns, np.arange(is_main.size), side="right") - 1
    may_begin: Flags = (
        is_main & (turn >= 0) & (n_products == n_products[turns[np.maximum(turn, 0)]])
    )
    return may_begin


def threads_of(times: Int64, calls: pa.Table | None) -> Int64:
    """Return the thread that was in the call which began at each time; without `canonical.HOST_CALLS` one for all."""
    if calls is None or not calls.num_rows:
        return np.zeros(times.size, np.int64)
    starts = calls["start_ns"].to_numpy()
    order = np.argsort(starts, kind="stable")
    at = np.minimum(np.searchsorted(starts[order], times), starts.size - 1)
    threads: Int64 = calls["thread_id"].to_numpy()[order[at]]
    return threads


_LEAST_LAUNCHES = 3  # of fewer nothing repeats three times


def find_repetition(sequence: LaunchSequence, n_steps: int | None = None) -> Repetition | None:
    """Find the smallest unit that a process repeats, a step before any other; None where nothing does at least three times.

    Units are aligned with the next: agreement is the length of their longest common subsequence
    over the longer one's, and its median has to reach 0.95 (0.8 where only collectives and
    optimizer are compared). A block that stands in one unit alone (an evaluation, a checkpoint)
    counts in it, unless it trains; then the unit is larger, as where a kernel recurs only in every
    m-th one of a program whose optimizer is not known. With `n_steps` only units count of which
    there are as many, or one more or less. If the optimizer is known, a unit begins behind its last
    kernel; else where the capture does that holds nothing but whole units, else where the host
    pauses longest.
    """
    if sequence.name.size < _LEAST_LAUNCHES:
        return None
    for trains in (True,) if sequence.is_optimizer.any() else (True, False):
        for keyed in _keyed(sequence):
            unit = _smallest(sequence, keyed, n_steps, trains=trains)
            if unit is not None:
                return unit
    return None


class _Keyed(Struct, frozen=True):
    """A sequence by one of the keys: what is compared, where that stands, names, threads, and which update weights."""

    key: str
    least: float  # agreement
    codes: Int64
    places: Int64
    names: Int64
    threads: Int64
    is_optimizer: Flags


def _keyed(sequence: LaunchSequence) -> Iterator[_Keyed]:
    names = sequence.name
    threads = sequence.thread_id
    updates = sequence.is_optimizer
    for key, codes in ((SHAPES, sequence.shape), (NAMES, names)):
        if codes is not None:
            yield _Keyed(
                key, _LEAST_AGREEMENT[key], codes, np.arange(names.size), names, threads, updates
            )
    # Of updates in a row the first has a code of its own: on one GPU nothing else is left between
    # two steps.
    is_first = updates & np.diff(updates, prepend=False)
    places = np.flatnonzero(sequence.is_comm | updates)
    codes = (2 * names + is_first)[places]
    least = _LEAST_AGREEMENT[COMM]
    yield _Keyed(COMM, least, codes, places, names[places], threads[places], updates[places])


def _smallest(
    sequence: LaunchSequence, keyed: _Keyed, n_steps: int | None, *, trains: bool
) -> Repetition | None:
    """Return the smallest unit by a key, a step where it is to train something, else one that most of the sequence is."""
    updates = np.flatnonzero(sequence.is_optimizer)
    changes_thread = np.diff(sequence.thread_id, prepend=sequence.thread_id[:1]) != 0
    n_trained = np.cumsum(sequence.is_optimizer if updates.size else changes_thread)[keyed.places]
    tried: set[bytes] = set()
    least_unlike = 1.0  # of units that are not alike enough
    for anchors in _anchors(keyed.codes):
        # In most units something trains: of layers alone no step is made.
        is_training = np.mean(np.diff(n_trained[anchors]) > 0) >= _LEAST_COVER
        if (
            (trains and not is_training)
            or len(tried) == _MOST_ALIGNED
            or not _may_repeat(keyed, anchors)
        ):
            continue
        places = keyed.places[anchors]
        size = sequence.time_ns.size
        edges = (
            _behind_updates(updates, places, size) if updates.size else _at_pauses(sequence, places)
        )
        edges = np.unique(np.concatenate([[0], edges, [size]]))
        if edges.tobytes() in tried:
            continue
        tried.add(edges.tobytes())
        unit = _unit(sequence, keyed, edges)
        if unit is None or (n_steps is not None and abs(unit.edges.size - 1 - n_steps) > 1):
            continue
        unlike = 1 - unit.agreement
        is_most = keyed.key != COMM and np.ptp(unit.edges) >= _LEAST_REPEATED * sequence.name.size
        if unit.agreement < keyed.least:
            least_unlike = min(least_unlike, unlike)
        elif (unit.is_step if trains else is_most) and unlike <= least_unlike / 2:
            return unit  # else as little alike as the smaller units that it is made of
    return None


def _anchors(codes: Int64) -> Iterator[Int64]:
    """Yield the places of keys that recur regularly, most frequent first: single launches, and runs of several."""
    regular: list[tuple[int, int, Int64]] = []
    for keys in (codes, runs_of_codes(codes, _GRAM)):
        order, first, counts = _groups(keys, _LEAST_UNITS)
        key = np.repeat(np.arange(first.size), counts - 1)
        distances = np.delete(np.diff(order, prepend=0), first)
        median = distances[np.lexsort((distances, key))][
            first - np.arange(first.size) + counts // 2 - 1
        ]
        near = np.bincount(
            key, distances * (np.abs(distances - median[key]) <= _NEAR * median[key]), first.size
        )
        kinds = (_COUNTS * np.log(counts)).astype(np.int64)
        best = np.lexsort((-near, -kinds))
        best = best[near[best] >= _LEAST_REGULAR * codes.size]
        rank = np.arange(best.size) - np.searchsorted(-kinds[best], -kinds[best])
        for at in best[rank < _KEYS_PER_COUNT].tolist():
            regular.append(
                (-int(kinds[at]), len(regular), order[first[at] : first[at] + counts[at]])
            )
    yield from (places for _, _, places in sorted(regular)[:_MOST_TRIED])


def _groups(keys: Int64, least: int = 1) -> tuple[Int64, Int64, Int64]:
    """Return the places of keys that recur so often, by key, where in those each begins, and how many it has."""
    order = np.argsort(keys, kind="stable")
    counts = np.diff(np.flatnonzero(np.diff(keys[order], prepend=-1)), append=keys.size)
    recurs = counts >= least
    order = order[np.repeat(recurs, counts)]
    counts = counts[recurs]
    return order, np.cumsum(counts) - counts, counts


def _unit(sequence: LaunchSequence, keyed: _Keyed, edges: Int64) -> Repetition | None:
    at = np.searchsorted(keyed.places, edges)
    holds_some = np.diff(at, prepend=-1) > 0
    stretch = _stretch(keyed, at[holds_some])
    if stretch is None:
        return None
    first, last, alike = stretch
    edges = _behind_blocks(sequence, edges[holds_some][first : last + 1])
    if keyed.key == COMM:  # what else is in the first and the last has not been looked at
        sizes = np.diff(edges)
        is_first_cut = sizes[0] < _NEARLY * sizes[1:].min()
        is_last_cut = sizes[-1] < _NEARLY * sizes[:-1].min()
        edges = edges[int(is_first_cut) : edges.size - int(is_last_cut)]
    loop, backward, are_in_each = _threads(sequence, edges)
    has_optimizer = bool(sequence.is_optimizer[edges[0] : edges[-1]].any())
    is_whole = keyed.key != COMM or (
        are_in_each and (has_optimizer or not _is_part(sequence.name, edges))
    )
    if not is_whole or edges.size <= _LEAST_UNITS:
        return None
    return Repetition(sequence, edges, alike, keyed.key, loop, backward, has_optimizer)


def _may_repeat(keyed: _Keyed, edges: Int64) -> bool:
    """Tell whether units hold the same keys as the next, in whatever order: a cheap look at some, before `_stretch`."""
    pairs = np.unique(
        np.linspace(0, edges.size - 3, min(edges.size - 2, _SAMPLE)).astype(np.int64)
    ).tolist()
    units = [[keyed.codes[edges[unit] : edges[unit + 1]] for unit in (at, at + 1)] for at in pairs]
    n_alike = sum(n_shared(*pair) >= (keyed.least - _NOISE) * min(map(len, pair)) for pair in units)
    return len(pairs) - n_alike <= max(_MOST_UNLIKE, _UNLIKE_IN_SAMPLE * len(pairs))


def _stretch(keyed: _Keyed, edges: Int64) -> tuple[int, int, float] | None:
    """Return first and last edge of the longest run of units, and how alike they are; None: a larger unit is to be tried."""
    if edges.size <= _LEAST_UNITS:
        return None
    codes = keyed.codes
    sizes = np.diff(edges)
    floor = keyed.least - min(_MOST_NOISE, _NOISE + float(np.median(sizes)) ** -0.5)
    is_long = sizes >= floor * np.median(sizes)
    may_fit = is_long[1:] & is_long[:-1]
    agreements = np.where(may_fit & _equal_next(codes, edges), 1.0, 0.0)
    is_block = np.zeros(codes.size, np.bool_)
    n_unlike = np.count_nonzero(~may_fit)
    for at in np.flatnonzero(may_fit & (agreements == 0)).tolist():
        units = slice(edges[at], edges[at + 1]), slice(edges[at + 1], edges[at + 2])
        shorter, longer = sorted(units, key=lambda unit: unit.stop - unit.start)
        part, block = agreement(codes[shorter], codes[longer], floor)
        # In units of few launches two are a block already.
        if floor <= part < keyed.least and block.start == block.stop:
            stricter = agreement(codes[shorter], codes[longer], keyed.least)
            part, block = max((part, block), stricter, key=lambda one: one[0])
        added = slice(longer.start + block.start, longer.start + block.stop)
        if added.start == added.stop or _trains_nothing(keyed, added, shorter):
            agreements[at] = part
            is_block[added] = True
        n_unlike += agreements[at] < floor
        if n_unlike > max(_MOST_UNLIKE, agreements.size // 2):
            return None
    usual = np.median(agreements)
    noise = max(_NOISE, 6 * np.median(np.abs(agreements - usual)))
    fits = agreements >= np.clip(usual - noise, floor, keyed.least)
    changes = np.flatnonzero(np.diff(fits.astype(np.int8), prepend=0, append=0)).tolist()
    runs = ((begin, end + 1) for begin, end in zip(changes[::2], changes[1::2], strict=True))
    first, last = max(runs, key=lambda run: edges[run[1]] - edges[run[0]], default=(0, 0))
    if last - first < _LEAST_UNITS or edges[last] - edges[first] < _LEAST_COVER * codes.size:
        return None
    if keyed.is_optimizer.any():
        is_whole = bool(
            np.logical_or.reduceat(keyed.is_optimizer[: edges[last]], edges[first:last]).all()
        )
    else:
        is_whole = not _is_part(np.where(is_block, -1, keyed.names), edges[first : last + 1])
    return (first, last, float(np.median(agreements[first : last - 1]))) if is_whole else None


def _trains_nothing(keyed: _Keyed, block: slice, unit: slice) -> bool:
    """Tell whether a block is what programs do between steps: no update, no backward pass, no unit of its own."""
    are_several = np.ptp(keyed.threads[unit]) > 0
    if keyed.is_optimizer[block].any() or (are_several and np.ptp(keyed.threads[block]) > 0):
        return False
    # Where one thread launches all, or no optimizer is known, its kernels have to be known too.
    n_known = np.count_nonzero(np.isin(keyed.names[block], keyed.names[unit]))
    if n_known < _LEAST_KNOWN * (block.stop - block.start) and not (
        are_several and keyed.is_optimizer[unit].any()
    ):
        return False
    return n_shared(keyed.codes[block], keyed.codes[unit]) < keyed.least * keyed.codes[unit].size


def _equal_next(codes: Int64, edges: Int64) -> Flags:
    sizes = np.diff(edges)
    places = np.arange(edges[0], edges[-2])
    there = np.minimum(places + np.repeat(sizes[:-1], sizes[:-1]), codes.size - 1)
    are_equal: Flags = np.logical_and.reduceat(codes[places] == codes[there], edges[:-2] - edges[0])
    are_equal &= sizes[1:] == sizes[:-1]
    return are_equal


def _is_part(names: Int64, edges: Int64) -> bool:
    """Tell whether some kernel recurs only in every m-th unit, from the first ones to the last."""
    n_units = edges.size - 1
    unit = np.repeat(np.arange(n_units), np.diff(edges))
    inside = names[edges[0] : edges[-1]]
    name, unit = np.divmod(np.unique((inside * n_units + unit)[inside >= 0]), n_units)
    _, first, counts = _groups(name)
    distance = np.where(counts > 1, unit[np.minimum(first + 1, name.size - 1)] - unit[first], 1)
    expected = np.repeat(unit[first] - distance * first, counts) + np.repeat(
        distance, counts
    ) * np.arange(name.size)
    is_regular = (
        np.logical_and.reduceat(unit == expected, first) & (unit[first] < distance) & (distance > 1)
    )
    is_part = is_regular & (n_units - unit[first + counts - 1] <= distance)
    n_rare = np.count_nonzero((counts > 1) & (counts <= n_units // 2 + 1))
    # Of many that come at random a few seem regular, but none four times.
    return bool((is_part & (counts > _MOST_UNLIKE)).any() or np.count_nonzero(is_part) > n_rare / 2)


def _behind_updates(updates: Int64, anchors: Int64, size: int) -> Int64:
    n_units = anchors.size - 1
    distances = np.diff(updates, append=2 * size)
    unit = np.searchsorted(anchors, updates, side="right") - 1
    inside = (unit >= 0) & (unit < n_units)
    longest = np.zeros(n_units, np.int64)
    np.maximum.at(longest, unit[inside], distances[inside])
    pause = int(longest.min())
    # Of graphs that hold a whole step each is the last.
    ends = updates[distances > (0 if pause == 1 else max(1, pause // 2))] + 1
    per_unit = int(np.diff(np.searchsorted(ends, anchors[[0, -1]]))[0]) // n_units
    if per_unit <= 1:
        return ends
    # Of several optimizers in a unit the last is that behind which a unit is whole from the start
    # of the capture.
    phase = int(np.argmin(np.abs(ends[:per_unit] - float(np.median(np.diff(anchors))))))
    return ends[phase::per_unit]


def _behind_blocks(sequence: LaunchSequence, edges: Int64) -> Int64:
    """Move the beginning of units behind a block of one thread that stands there alone: it counts in the unit before."""
    edges = edges.copy()
    sizes = np.diff(edges)
    usual = int(np.argmin(np.abs(sizes - np.median(sizes))))
    unit = sequence.name[edges[usual] : edges[usual + 1]]
    least = _LEAST_AGREEMENT[NAMES] - _NOISE
    for at in np.flatnonzero(sizes * least > unit.size).tolist():
        begin = edges[at + 1] - unit.size
        has_backward = np.ptp(sequence.thread_id[edges[at] : begin]) > 0
        if (
            not has_backward
            and agreement(unit, sequence.name[begin : edges[at + 1]], least)[0] >= least
        ):
            edges[at] = begin
    return edges


def _at_pauses(sequence: LaunchSequence, anchors: Int64) -> Int64:
    """Return where a capture of nothing but whole units begins each, else of keys once in each that behind the longest pause."""
    lengths = np.diff(anchors)
    size = sequence.time_ns.size
    n_units = lengths.size
    if (lengths == lengths[0]).all() and size == anchors.size * lengths[0]:
        return np.arange(0, size, lengths[0])
    inside = slice(int(anchors[0]), int(anchors[-1]))
    pauses = np.diff(sequence.time_ns, prepend=sequence.time_ns[:1])[inside]
    may_begin = (
        np.ones(pauses.size, np.bool_) if sequence.may_begin is None else sequence.may_begin[inside]
    )
    unit = np.repeat(np.arange(n_units), lengths)
    keys = sequence.name if sequence.shape is None else sequence.shape
    for codes in (keys, runs_of_codes(keys, _GRAM)):
        order, first, counts = _groups(codes[inside])
        rows = order[first[counts == n_units, None] + np.arange(n_units)]  # of each key
        rows = rows[(unit[rows] == np.arange(n_units)).all(axis=1)]
        if rows.size:
            allowed = rows[may_begin[rows].mean(axis=1) > 0.5]  # noqa: PLR2004 - in most units
            rows = allowed if allowed.size else rows
            best = rows[np.argmax(np.median(pauses[rows[:, 1:]], axis=1)), 0]
            return np.flatnonzero(codes == codes[inside][best])
    return anchors


def _threads(sequence: LaunchSequence, edges: Int64) -> tuple[int, tuple[int, ...], bool]:
    """Return the training loop's thread, those of the backward pass, and whether all that launch much do in each unit."""
    inside = slice(int(edges[0]), int(edges[-1]))
    unit = np.repeat(np.arange(edges.size - 1), np.diff(edges))
    updates = np.flatnonzero(sequence.is_optimizer[inside])
    parts = (updates - (edges - edges[0])[unit[updates]]) / np.diff(edges)[unit[updates]]
    # An optimizer inside the backward pass is not the loop's.
    is_behind = updates.size > 0 and np.median(parts) > _BEHIND
    ids, counts = np.unique(
        sequence.thread_id[updates + edges[0] if is_behind else edges[:-1]], return_counts=True
    )
    loop = int(ids[np.argmax(counts)])
    ids, thread = np.unique(sequence.thread_id[inside], return_inverse=True)
    n_computed = np.zeros((ids.size, edges.size - 1), np.int64)
    np.add.at(n_computed, (thread, unit), ~sequence.is_comm[inside])
    launches_much = (n_computed >= np.maximum(1, LEAST_BACKWARD * n_computed.sum(axis=0))).all(
        axis=1
    )
    overall = n_computed.sum(axis=1) >= LEAST_BACKWARD * n_computed.sum()
    backward = tuple(int(number) for number in ids[launches_much & (ids != loop)])
    return loop, backward, bool((n_computed[overall] > 0).all())
