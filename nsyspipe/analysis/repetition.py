"""Finds the steps of a program that names none: the smallest part of its launches that repeats."""

from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from msgspec import Struct

from nsyspipe.analysis.alignment import agreement, n_shared, runs_of_codes
from nsyspipe.analysis.attribution import NEVER, UNKNOWN, ProcessOperations
from nsyspipe.analysis.steps import REPETITION, Candidate, Members
from nsyspipe.model.names import is_matrix_product, is_optimizer
from nsyspipe.model.table import Flags, Float64, Int64

# What is compared of launches, in the order in which it is tried.
SHAPES = "names and grids"
NAMES = "names"
COMM = "collectives and optimizer"
# How much units have to agree: the share of launches that two units have in the same order.
_MIN_AGREEMENT = {SHAPES: 0.95, NAMES: 0.95, COMM: 0.8}
# How much less a pair of units may agree than most pairs. It is six times the usual deviation, but
# between these limits.
_MIN_NOISE = 0.05
_MAX_NOISE = 0.15
_NOISE_IN_DEVIATIONS = 6
_MIN_UNITS = 3
_MIN_LAUNCHES = 3
# Units have to cover this share of the sequence. A recompilation may stand between two runs of
# units. A sequence without training has to be covered to a larger share.
_MIN_COVERED_SHARE = 0.4
_MIN_COVERED_SHARE_WITHOUT_TRAINING = 0.8
# A key recurs regularly if distances near their median cover this share of the sequence. Near means
# that they differ from the median by less than the other share.
_MIN_REGULAR_SHARE = 0.3
_MAX_DEVIATION_OF_DISTANCES = 0.25
# Keys whose counts differ by less than about a twentieth are as frequent. Only the most regular of
# them are tried.
_COUNT_CLASSES_PER_FACTOR_E = 20
_MAX_KEYS_PER_COUNT_CLASS = 2
_MAX_KEYS = 80
# Launches in the runs that are keys.
_RUN_LENGTH = 8
# Updates of the training loop stand behind this share of a unit.
_MIN_PLACE_OF_UPDATES = 0.75
# A thread of the backward pass launches this share of the compute kernels of a unit.
MIN_BACKWARD_SHARE: Final = 0.1
# An evaluation has this share of its kernels in common with the training units.
_MIN_KNOWN_SHARE = 0.5
# This number of pairs of units may be unlike, or half of all pairs if that is more.
_MAX_UNLIKE_PAIRS = 3
# Pairs of units that are compared first, and the share of them that may be unlike.
_SAMPLED_PAIRS = 64
_MAX_UNLIKE_SHARE_OF_SAMPLE = 0.6
# A first or last unit is cut off if it is smaller than this share of all others.
_MIN_SIZE_OF_WHOLE_UNIT = 0.9
# Ways to cut a sequence that are tried for what is compared.
_MAX_CUTS = 10


class LaunchSequence(Struct, frozen=True):
    """What one process launched, in order: kernels, and each graph once."""

    # Host start of the launch, report time.
    time_ns: Int64
    thread_id: Int64
    # A number per name.
    name: Int64
    # A number per name and grid. None if grids are not known.
    shape: Int64 | None
    is_optimizer: Flags
    is_comm: Flags
    # Whether a step may begin there, as `launch_sequence` describes it. None: anywhere.
    may_begin: Flags | None = None


class Repetition(Struct, frozen=True):
    """The units of one process: whole, and without gaps."""

    # All that the process launched.
    sequence: LaunchSequence
    # Where each unit begins in the sequence, and where the last one ends.
    edges: Int64
    # Median over units: the share of launches that the next unit has too, of the longer of both.
    agreement: float
    # `SHAPES`, `NAMES` or `COMM`.
    key: str
    # The thread that runs the training loop.
    thread_id: int
    # Threads that launch a part of every unit while the thread of the loop waits.
    backward_threads: tuple[int, ...]
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
        """The units as steps.

        Each ends where the next begins: in the middle of the pause of the host between their
        launches.
        """
        times = self.sequence.time_ns
        edges = self.edges
        usual_pause = int(np.median(times[edges[1:-1]] - times[edges[1:-1] - 1]))
        padded = np.concatenate([times[:1] - usual_pause, times, times[-1:] + usual_pause])
        before = padded[edges]
        behind = padded[edges + 1]
        limits = behind - (behind - before) // 2
        return Members(self.thread_id, np.empty(0, np.int64), limits[:-1], limits[1:])

    @property
    def candidate(self) -> Candidate:
        """The family of the units. It qualifies if they are steps."""
        steps = self.members
        n_launched = self.sequence.time_ns.size
        union_ns = int(steps.ends[-1] - steps.starts[0])
        return Candidate(
            name=REPETITION,
            thread_id=steps.thread_id,
            union_ns=union_ns,
            first_start_ns=int(steps.starts[0]),
            n_members=steps.starts.size,
            is_part=not self.is_step,
            # Launches outside of the units do not count against them.
            n_launched_inside=n_launched,
            n_launched=n_launched,
        )

    @property
    def n_updates(self) -> int:
        """Backward passes of a unit that an update of the loop's thread follows: the median.

        0 if no thread of the backward pass is known.
        """
        inside = slice(*self.edges[[0, -1]].tolist())
        thread = self.sequence.thread_id[inside]
        is_update = self.sequence.is_optimizer[inside] & (thread == self.thread_id)
        is_backward = np.isin(thread, self.backward_threads)
        rows = np.flatnonzero(is_update | is_backward)
        behind = rows[1:][is_backward[rows[:-1]] & is_update[rows[1:]]]
        unit = np.searchsorted(self.edges - self.edges[0], behind, side="right") - 1
        n_by_unit = np.bincount(unit, minlength=self.edges.size - 1)
        return int(np.median(n_by_unit))


def launch_sequence(
    operations: ProcessOperations,
    names: Mapping[int, str],
    calls: pa.Table | None,
    main_thread_id: int | None = None,
) -> LaunchSequence:
    """List what a process launched, in order.

    `names` are texts by name ID, and `calls` is `canonical.HOST_CALLS` of the process. Kernels of
    one launch are a graph: one item, which is recognized by how many they are. Without calls, all
    launches have one thread. A step may begin where the main thread launches after another thread
    (after backward), up to its first product of matrices (in forward).
    """
    n_launched = operations.n_launched
    launch = operations.kernel_launch[:n_launched]
    first = np.flatnonzero(np.diff(launch, prepend=-NEVER))
    n_kernels = np.diff(first, append=n_launched)
    name_ids = operations.kernel_column("name_id", 0, n_launched)
    grids = operations.kernel_column("grid", 0, n_launched)
    is_graph = n_kernels > 1
    name = _number(np.where(is_graph, UNKNOWN + n_kernels, name_ids[first]))
    grid = _number(np.where(is_graph, 0, grids[first]))
    are_grids_known = not (grids == UNKNOWN).any()
    threads = threads_of(launch[first], calls)
    is_product = np.isin(name_ids[first], _ids_of(names, is_matrix_product))
    is_update = np.isin(name_ids, _ids_of(names, is_optimizer))
    if n_launched:
        is_update = np.logical_or.reduceat(is_update, first)
    is_main = threads == main_thread_id
    return LaunchSequence(
        time_ns=launch[first],
        thread_id=threads,
        name=name,
        shape=_number(name * n_launched + grid) if are_grids_known else None,
        is_optimizer=is_update,
        is_comm=operations.is_comm[first] & ~is_graph,
        may_begin=_before_forward(is_main, is_product),
    )


def _number(keys: Int64) -> Int64:
    """Return a number from 0 for each different key."""
    numbers: Int64 = np.unique(keys, return_inverse=True)[1].astype(np.int64)
    return numbers


def _ids_of(names: Mapping[int, str], is_wanted: Callable[[str], bool]) -> list[int]:
    return [name_id for name_id, name in names.items() if is_wanted(name)]


def _before_forward(is_main: Flags, is_product: Flags) -> Flags | None:
    """Flag the launches of the main thread after another thread's, before its next product.

    None if there is no other thread, or if the main thread launches no product of matrices.
    """
    if is_main.all() or not is_main.any() or not (is_main & is_product).any():
        return None
    n_products: Int64 = np.cumsum(is_product) - is_product
    turns = np.flatnonzero(np.diff(is_main, prepend=False) & is_main)
    turn = np.searchsorted(turns, np.arange(is_main.size), side="right") - 1
    n_products_at_turn = n_products[turns[np.maximum(turn, 0)]]
    may_begin: Flags = is_main & (turn >= 0) & (n_products == n_products_at_turn)
    return may_begin


def threads_of(times: Int64, calls: pa.Table | None) -> Int64:
    """Return the thread of the call that began at each time; without `calls` one for all.

    `calls` is `canonical.HOST_CALLS`.
    """
    if calls is None or not calls.num_rows:
        return np.zeros(times.size, np.int64)
    starts = calls["start_ns"].to_numpy()
    order = np.argsort(starts, kind="stable")
    place = np.minimum(np.searchsorted(starts[order], times), starts.size - 1)
    threads: Int64 = calls["thread_id"].to_numpy()[order[place]]
    return threads


def find_repetition(sequence: LaunchSequence, n_steps: int | None = None) -> Repetition | None:
    """Find the smallest unit that a process repeats at least three times; a step if there is one.

    Each unit is aligned with the next. Their agreement is the length of the longest common
    subsequence, as a share of the longer unit. The median agreement has to reach 0.95, or 0.8 if
    only collectives and optimizer are compared.

    A block that only one unit has (an evaluation, a checkpoint) counts in that unit, unless it
    trains. If a block trains, the unit is larger. The unit is larger, too, if a kernel recurs only
    in every m-th unit and the optimizer of the program is not known.

    With `n_steps`, there must be as many units, or one more or less. If the optimizer is known, a
    unit begins behind its last kernel. Otherwise a unit begins with the capture, if that has
    nothing but whole units, or else behind the longest pause of the host.
    """
    if sequence.name.size < _MIN_LAUNCHES:
        return None
    for trains in (True,) if sequence.is_optimizer.any() else (True, False):
        for keyed in _keyed(sequence):
            unit = _find_smallest(sequence, keyed, n_steps, trains=trains)
            if unit is not None:
                return unit
    return None


class _Keyed(Struct, frozen=True):
    """The launches of a sequence that are compared, and the code by which they are."""

    key: str
    min_agreement: float
    codes: Int64
    # Places in the sequence.
    places: Int64
    names: Int64
    threads: Int64
    is_optimizer: Flags


def _keyed(sequence: LaunchSequence) -> Iterator[_Keyed]:
    """Yield what is compared: `SHAPES`, then `NAMES`, then `COMM`."""
    updates = sequence.is_optimizer
    for key, codes in ((SHAPES, sequence.shape), (NAMES, sequence.name)):
        if codes is not None:
            yield _Keyed(
                key=key,
                min_agreement=_MIN_AGREEMENT[key],
                codes=codes,
                places=np.arange(sequence.name.size),
                names=sequence.name,
                threads=sequence.thread_id,
                is_optimizer=updates,
            )
    # The first of several updates in a row has a code of its own. On one GPU nothing else marks the
    # end of a step.
    is_first_update = updates & np.diff(updates, prepend=False)
    places = np.flatnonzero(sequence.is_comm | updates)
    yield _Keyed(
        key=COMM,
        min_agreement=_MIN_AGREEMENT[COMM],
        codes=(2 * sequence.name + is_first_update)[places],
        places=places,
        names=sequence.name[places],
        threads=sequence.thread_id[places],
        is_optimizer=updates[places],
    )


def _find_smallest(
    sequence: LaunchSequence, keyed: _Keyed, n_steps: int | None, *, trains: bool
) -> Repetition | None:
    """Return the smallest unit by what is compared.

    It is a step if it has to train something. Otherwise it covers most of the sequence.
    """
    n_trained = _count_training(sequence)[keyed.places]
    tried: set[bytes] = set()
    # The least difference between units that do not agree enough.
    min_difference = 1.0
    for anchors in _anchors(keyed.codes):
        if len(tried) == _MAX_CUTS:
            break
        # Something trains in most units. Layers alone do not make a step.
        share_that_trains = np.mean(np.diff(n_trained[anchors]) > 0)
        if trains and share_that_trains < _MIN_COVERED_SHARE:
            continue
        if not _may_repeat(keyed, anchors):
            continue
        edges = _cut(sequence, keyed.places[anchors])
        if edges.tobytes() in tried:
            continue
        tried.add(edges.tobytes())
        unit = _find_unit(sequence, keyed, edges)
        if unit is None or not _is_number_of_steps(unit.edges.size - 1, n_steps):
            continue
        difference = 1 - unit.agreement
        if unit.agreement < keyed.min_agreement:
            min_difference = min(min_difference, difference)
        elif difference <= min_difference / 2 and _is_wanted(unit, trains=trains):
            # Otherwise it differs as much as the smaller units that it is made of.
            return unit
    return None


def _count_training(sequence: LaunchSequence) -> Int64:
    """Return how many updates precede each launch; without an optimizer, changes of the thread."""
    if sequence.is_optimizer.any():
        return np.cumsum(sequence.is_optimizer)
    thread = sequence.thread_id
    return np.cumsum(np.diff(thread, prepend=thread[:1]) != 0)


def _cut(sequence: LaunchSequence, anchors: Int64) -> Int64:
    """Return the edges of units, near the anchors, that have the whole sequence."""
    size = sequence.time_ns.size
    updates = np.flatnonzero(sequence.is_optimizer)
    if updates.size:
        edges = _behind_updates(updates, anchors, size)
    else:
        edges = _at_pauses(sequence, anchors)
    return np.unique(np.concatenate([[0], edges, [size]]))


def _is_number_of_steps(n_units: int, n_steps: int | None) -> bool:
    return n_steps is None or abs(n_units - n_steps) <= 1


def _is_wanted(unit: Repetition, *, trains: bool) -> bool:
    if trains:
        return unit.is_step
    n_launches = unit.sequence.name.size
    covers_most = np.ptp(unit.edges) >= _MIN_COVERED_SHARE_WITHOUT_TRAINING * n_launches
    return bool(unit.key != COMM and covers_most)


class _RegularKey(NamedTuple):
    """Where a key recurs regularly, and the class of keys that are as frequent."""

    count_class: int
    places: Int64


def _anchors(codes: Int64) -> Iterator[Int64]:
    """Yield the places of keys that recur regularly, most frequent first.

    Keys are single launches, and runs of several.
    """
    regular = [
        *_find_regular_keys(codes),
        *_find_regular_keys(runs_of_codes(codes, _RUN_LENGTH)),
    ]
    regular.sort(key=lambda key: -key.count_class)
    yield from (key.places for key in regular[:_MAX_KEYS])


def _find_regular_keys(keys: Int64) -> list[_RegularKey]:
    groups = _group(keys, _MIN_UNITS)
    n_groups = groups.first.size
    # The distances from each place to the next, key after key.
    key = np.repeat(np.arange(n_groups), groups.counts - 1)
    distances = np.delete(np.diff(groups.places, prepend=0), groups.first)
    middle = groups.first - np.arange(n_groups) + groups.counts // 2 - 1
    median = distances[np.lexsort((distances, key))][middle][key]
    is_near = np.abs(distances - median) <= _MAX_DEVIATION_OF_DISTANCES * median
    covered = np.bincount(key, distances * is_near, n_groups)
    count_class = (_COUNT_CLASSES_PER_FACTOR_E * np.log(groups.counts)).astype(np.int64)
    best = np.lexsort((-covered, -count_class))
    best = best[covered[best] >= _MIN_REGULAR_SHARE * keys.size]
    first_of_class = np.searchsorted(-count_class[best], -count_class[best])
    place_in_class = np.arange(best.size) - first_of_class
    best = best[place_in_class < _MAX_KEYS_PER_COUNT_CLASS]
    return [
        _RegularKey(int(count_class[group]), groups.places_of(group)) for group in best.tolist()
    ]


class _Groups(Struct, frozen=True):
    """The places of equal keys, key after key."""

    places: Int64
    # Of each key: the index of its first place, and how many it has.
    first: Int64
    counts: Int64

    def places_of(self, group: int) -> Int64:
        return self.places[self.first[group] : self.first[group] + self.counts[group]]


def _group(keys: Int64, min_count: int = 1) -> _Groups:
    """Group the places of keys that recur so often."""
    places = np.argsort(keys, kind="stable")
    counts = np.diff(np.flatnonzero(np.diff(keys[places], prepend=-1)), append=keys.size)
    is_frequent = counts >= min_count
    places = places[np.repeat(is_frequent, counts)]
    counts = counts[is_frequent]
    return _Groups(places=places, first=np.cumsum(counts) - counts, counts=counts)


def _find_unit(sequence: LaunchSequence, keyed: _Keyed, edges: Int64) -> Repetition | None:
    """Return the longest run of units that agree; None if a larger unit has to be tried."""
    places = np.searchsorted(keyed.places, edges)
    has_launches = np.diff(places, prepend=-1) > 0
    run = _find_run(keyed, places[has_launches])
    if run is None:
        return None
    edges = _behind_blocks(sequence, edges[has_launches][run.first : run.last + 1])
    if keyed.key == COMM:
        edges = _without_cut_off_units(edges)
    threads = _find_threads(sequence, edges)
    has_optimizer = bool(sequence.is_optimizer[edges[0] : edges[-1]].any())
    if keyed.key == COMM:
        # Only collectives and updates were compared.
        is_whole = has_optimizer or not _is_part(sequence.name, edges)
        if not threads.are_in_each_unit or not is_whole:
            return None
    if edges.size <= _MIN_UNITS:
        return None
    return Repetition(
        sequence=sequence,
        edges=edges,
        agreement=run.agreement,
        key=keyed.key,
        thread_id=threads.loop,
        backward_threads=threads.backward,
        has_optimizer=has_optimizer,
    )


def _without_cut_off_units(edges: Int64) -> Int64:
    """Drop a first and a last unit that are smaller than all others."""
    sizes = np.diff(edges)
    is_first_cut = sizes[0] < _MIN_SIZE_OF_WHOLE_UNIT * sizes[1:].min()
    is_last_cut = sizes[-1] < _MIN_SIZE_OF_WHOLE_UNIT * sizes[:-1].min()
    return edges[int(is_first_cut) : edges.size - int(is_last_cut)]


def _may_repeat(keyed: _Keyed, edges: Int64) -> bool:
    """Tell whether units have the same keys as the next, in any order.

    This is a cheap look at some units before they are aligned.
    """
    n_pairs = min(edges.size - 2, _SAMPLED_PAIRS)
    sample = np.unique(np.linspace(0, edges.size - 3, n_pairs).astype(np.int64)).tolist()
    n_unlike = 0
    for first in sample:
        unit = keyed.codes[edges[first] : edges[first + 1]]
        following = keyed.codes[edges[first + 1] : edges[first + 2]]
        min_shared = (keyed.min_agreement - _MIN_NOISE) * min(unit.size, following.size)
        n_unlike += n_shared(unit, following) < min_shared
    return n_unlike <= max(_MAX_UNLIKE_PAIRS, _MAX_UNLIKE_SHARE_OF_SAMPLE * len(sample))


class _Run(NamedTuple):
    """A run of units that agree: its first and last edge, and the median agreement."""

    first: int
    last: int
    agreement: float


def _find_run(keyed: _Keyed, edges: Int64) -> _Run | None:
    """Return the longest run of units that agree; None if a larger unit has to be tried."""
    if edges.size <= _MIN_UNITS:
        return None
    # Small units may agree less by chance.
    median_size = float(np.median(np.diff(edges)))
    noise = min(_MAX_NOISE, _MIN_NOISE + median_size**-0.5)
    floor = keyed.min_agreement - noise
    compared = _compare_units(keyed, edges, floor)
    if compared is None:
        return None
    agreements = compared.agreements
    first, last = _longest_run(agreements, edges, floor, keyed.min_agreement)
    n_covered = edges[last] - edges[first]
    if last - first < _MIN_UNITS or n_covered < _MIN_COVERED_SHARE * keyed.codes.size:
        return None
    if keyed.is_optimizer.any():
        updates = keyed.is_optimizer[: edges[last]]
        is_whole = bool(np.logical_or.reduceat(updates, edges[first:last]).all())
    else:
        names = np.where(compared.is_block, -1, keyed.names)
        is_whole = not _is_part(names, edges[first : last + 1])
    if not is_whole:
        return None
    return _Run(first, last, float(np.median(agreements[first : last - 1])))


class _Compared(NamedTuple):
    """How units compare with the next."""

    agreements: Float64
    is_block: Flags  # of each launch: whether it is in a block that only one unit has


def _compare_units(keyed: _Keyed, edges: Int64, floor: float) -> _Compared | None:
    """Compare each unit with the next; None if too many differ."""
    sizes = np.diff(edges)
    is_long = sizes >= floor * np.median(sizes)
    may_agree = is_long[1:] & is_long[:-1]
    agreements = np.where(may_agree & _equal_next(keyed.codes, edges), 1.0, 0.0)
    is_block = np.zeros(keyed.codes.size, np.bool_)
    n_unlike = np.count_nonzero(~may_agree)
    max_unlike = max(_MAX_UNLIKE_PAIRS, agreements.size // 2)
    for unit in np.flatnonzero(may_agree & (agreements == 0)).tolist():
        pair = slice(edges[unit], edges[unit + 1]), slice(edges[unit + 1], edges[unit + 2])
        agreements[unit], block = _compare_pair(keyed, pair, floor)
        is_block[block] = True
        n_unlike += agreements[unit] < floor
        if n_unlike > max_unlike:
            return None
    return _Compared(agreements, is_block)


def _compare_pair(keyed: _Keyed, pair: tuple[slice, slice], floor: float) -> tuple[float, slice]:
    """Return how much two units agree, and the block that only the longer one has.

    0 if they agree less than `floor`, or if the block trains.
    """
    shorter, longer = sorted(pair, key=_length)
    short_codes = keyed.codes[shorter]
    long_codes = keyed.codes[longer]
    share, block = agreement(short_codes, long_codes, floor)
    if floor <= share < keyed.min_agreement and not _length(block):
        # In units of few launches, two launches are a block already.
        stricter_share, stricter_block = agreement(short_codes, long_codes, keyed.min_agreement)
        if stricter_share > share:
            share = stricter_share
            block = stricter_block
    added = slice(longer.start + block.start, longer.start + block.stop)
    if _length(added) and not _trains_nothing(keyed, added, shorter):
        return 0.0, slice(0, 0)
    return share, added


def _length(part: slice) -> int:
    return int(part.stop - part.start)


def _longest_run(
    agreements: Float64, edges: Int64, floor: float, min_agreement: float
) -> tuple[int, int]:
    """Return the first and the last edge of the units that agree with the next, without gap."""
    usual = np.median(agreements)
    deviation = np.median(np.abs(agreements - usual))
    noise = max(_MIN_NOISE, _NOISE_IN_DEVIATIONS * deviation)
    is_alike = agreements >= np.clip(usual - noise, floor, min_agreement)
    changes = np.flatnonzero(np.diff(is_alike.astype(np.int8), prepend=0, append=0)).tolist()
    # The last unit of a run is the one that the unit before it agrees with.
    runs = [(begin, end + 1) for begin, end in zip(changes[::2], changes[1::2], strict=True)]
    return max(runs, key=lambda run: edges[run[1]] - edges[run[0]], default=(0, 0))


def _trains_nothing(keyed: _Keyed, block: slice, unit: slice) -> bool:
    """Tell whether a block is what programs do between steps.

    Then it has no update, no backward pass, and no unit of its own.
    """
    has_backward_thread = np.ptp(keyed.threads[unit]) > 0
    if keyed.is_optimizer[block].any():
        return False
    if has_backward_thread and np.ptp(keyed.threads[block]) > 0:
        return False
    # If one thread launches all, or if no optimizer is known, the kernels of the block have to be
    # those of the unit.
    is_recognizable = has_backward_thread and keyed.is_optimizer[unit].any()
    n_known = np.count_nonzero(np.isin(keyed.names[block], keyed.names[unit]))
    if n_known < _MIN_KNOWN_SHARE * _length(block) and not is_recognizable:
        return False
    unit_codes = keyed.codes[unit]
    return n_shared(keyed.codes[block], unit_codes) < keyed.min_agreement * unit_codes.size


def _equal_next(codes: Int64, edges: Int64) -> Flags:
    """Tell which units have the same codes as the next."""
    sizes = np.diff(edges)
    places = np.arange(edges[0], edges[-2])
    places_in_next = np.minimum(places + np.repeat(sizes[:-1], sizes[:-1]), codes.size - 1)
    is_same_code = codes[places] == codes[places_in_next]
    are_equal: Flags = np.logical_and.reduceat(is_same_code, edges[:-2] - edges[0])
    are_equal &= sizes[1:] == sizes[:-1]
    return are_equal


def _is_part(names: Int64, edges: Int64) -> bool:
    """Tell whether some kernel recurs only in every m-th unit, from the first to the last."""
    n_units = edges.size - 1
    unit = np.repeat(np.arange(n_units), np.diff(edges))
    inside = names[edges[0] : edges[-1]]
    keys = np.unique((inside * n_units + unit)[inside >= 0])
    # The units of each name, name after name.
    name, unit = np.divmod(keys, n_units)
    groups = _group(name)
    is_part = _recur_regularly(unit, groups, n_units)
    n_rare = np.count_nonzero((groups.counts > 1) & (groups.counts <= n_units // 2 + 1))
    # If many kernels come at random, a few seem regular, but none of them four times.
    is_any_certain = bool((is_part & (groups.counts > _MAX_UNLIKE_PAIRS)).any())
    return is_any_certain or bool(np.count_nonzero(is_part) > n_rare / 2)


def _recur_regularly(unit: Int64, groups: _Groups, n_units: int) -> Flags:
    """Tell which names recur in every m-th unit from the first to the last, m being at least 2.

    `unit` are the units of each name, name after name, in the order of the groups.
    """
    first = groups.first
    counts = groups.counts
    second_unit = unit[np.minimum(first + 1, unit.size - 1)]
    distance = np.where(counts > 1, second_unit - unit[first], 1)
    unit_at_zero = unit[first] - distance * first
    expected = np.repeat(unit_at_zero, counts) + np.repeat(distance, counts) * np.arange(unit.size)
    is_regular = np.logical_and.reduceat(unit == expected, first) & (distance > 1)
    is_from_first = unit[first] < distance
    is_to_last = n_units - unit[first + counts - 1] <= distance
    is_regular_throughout: Flags = is_regular & is_from_first & is_to_last
    return is_regular_throughout


def _behind_updates(updates: Int64, anchors: Int64, size: int) -> Int64:
    """Return the edges of units that end with the last update of their optimizer."""
    n_units = anchors.size - 1
    distances = np.diff(updates, append=2 * size)
    unit = np.searchsorted(anchors, updates, side="right") - 1
    is_inside = (unit >= 0) & (unit < n_units)
    longest = np.zeros(n_units, np.int64)
    np.maximum.at(longest, unit[is_inside], distances[is_inside])
    pause = int(longest.min())
    # If a graph has a whole step, each update is the last of a step.
    min_distance = 0 if pause == 1 else max(1, pause // 2)
    ends = updates[distances > min_distance] + 1
    n_inside = int(np.diff(np.searchsorted(ends, anchors[[0, -1]]))[0])
    per_unit = n_inside // n_units
    if per_unit <= 1:
        return ends
    # If a unit has several optimizers, it ends behind the one that makes the first unit whole from
    # the start of the capture.
    usual_size = float(np.median(np.diff(anchors)))
    phase = int(np.argmin(np.abs(ends[:per_unit] - usual_size)))
    return ends[phase::per_unit]


def _behind_blocks(sequence: LaunchSequence, edges: Int64) -> Int64:
    """Move the begin of units behind a block of one thread that no other unit has.

    The block then counts in the unit before.
    """
    edges = edges.copy()
    sizes = np.diff(edges)
    usual = int(np.argmin(np.abs(sizes - np.median(sizes))))
    usual_unit = sequence.name[edges[usual] : edges[usual + 1]]
    min_agreement = _MIN_AGREEMENT[NAMES] - _MIN_NOISE
    for number in np.flatnonzero(sizes * min_agreement > usual_unit.size).tolist():
        end = edges[number + 1]
        begin = end - usual_unit.size
        has_backward = np.ptp(sequence.thread_id[edges[number] : begin]) > 0
        if has_backward:
            continue
        share, _ = agreement(usual_unit, sequence.name[begin:end], min_agreement)
        if share >= min_agreement:
            edges[number] = begin
    return edges


def _at_pauses(sequence: LaunchSequence, anchors: Int64) -> Int64:
    """Return where units begin if no optimizer is known.

    If the capture has nothing but whole units, the first begins with the capture. Otherwise they
    begin with the key that recurs once in each unit and comes behind the longest pause.
    """
    lengths = np.diff(anchors)
    size = sequence.time_ns.size
    n_units = lengths.size
    if (lengths == lengths[0]).all() and size == anchors.size * lengths[0]:
        return np.arange(0, size, lengths[0])
    inside = slice(int(anchors[0]), int(anchors[-1]))
    pauses = np.diff(sequence.time_ns, prepend=sequence.time_ns[:1])[inside]
    unit = np.repeat(np.arange(n_units), lengths)
    keys = sequence.name if sequence.shape is None else sequence.shape
    for codes in (keys, runs_of_codes(keys, _RUN_LENGTH)):
        rows = _once_in_each_unit(codes[inside], unit, n_units)
        if rows.size:
            if sequence.may_begin is not None:
                rows = _prefer_allowed(rows, sequence.may_begin[inside])
            usual_pauses = np.median(pauses[rows[:, 1:]], axis=1)
            best = rows[np.argmax(usual_pauses), 0]
            return np.flatnonzero(codes == codes[inside][best])
    return anchors


def _once_in_each_unit(codes: Int64, unit: Int64, n_units: int) -> Int64:
    """Return the places of codes that every unit has once: a row per code, a column per unit."""
    groups = _group(codes)
    first = groups.first[groups.counts == n_units, None]
    rows: Int64 = groups.places[first + np.arange(n_units)]
    is_once_in_each: Flags = (unit[rows] == np.arange(n_units)).all(axis=1)
    once: Int64 = rows[is_once_in_each]
    return once


def _prefer_allowed(rows: Int64, may_begin: Flags) -> Int64:
    """Return the rows at which a step may begin in most units; all if there are none."""
    is_allowed = may_begin[rows].mean(axis=1) > 0.5  # noqa: PLR2004 - in most units
    return rows[is_allowed] if is_allowed.any() else rows


class _Threads(NamedTuple):
    """The threads of units."""

    loop: int  # of the training loop
    backward: tuple[int, ...]
    are_in_each_unit: bool  # whether all that launch much do so in each unit


def _find_threads(sequence: LaunchSequence, edges: Int64) -> _Threads:
    inside = slice(int(edges[0]), int(edges[-1]))
    n_units = edges.size - 1
    unit = np.repeat(np.arange(n_units), np.diff(edges))
    loop = _find_thread_of_loop(sequence, edges, unit)
    ids, thread = np.unique(sequence.thread_id[inside], return_inverse=True)
    n_computed = np.zeros((ids.size, n_units), np.int64)
    np.add.at(n_computed, (thread, unit), ~sequence.is_comm[inside])
    min_computed = np.maximum(1, MIN_BACKWARD_SHARE * n_computed.sum(axis=0))
    is_backward = (n_computed >= min_computed).all(axis=1) & (ids != loop)
    launches_much = n_computed.sum(axis=1) >= MIN_BACKWARD_SHARE * n_computed.sum()
    return _Threads(
        loop=loop,
        backward=tuple(int(thread_id) for thread_id in ids[is_backward]),
        are_in_each_unit=bool((n_computed[launches_much] > 0).all()),
    )


def _find_thread_of_loop(sequence: LaunchSequence, edges: Int64, unit: Int64) -> int:
    """Return the thread that makes most updates; or that begins most units.

    An optimizer inside the backward pass does not tell the thread of the loop.
    """
    updates = np.flatnonzero(sequence.is_optimizer[edges[0] : edges[-1]])
    unit_of_update = unit[updates]
    place_in_unit = updates - (edges - edges[0])[unit_of_update]
    share_before = place_in_unit / np.diff(edges)[unit_of_update]
    is_behind_backward = updates.size > 0 and np.median(share_before) > _MIN_PLACE_OF_UPDATES
    launches = updates + edges[0] if is_behind_backward else edges[:-1]
    ids, counts = np.unique(sequence.thread_id[launches], return_counts=True)
    return int(ids[np.argmax(counts)])
