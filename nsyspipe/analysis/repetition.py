"""Finds the steps of a program that names none: the smallest part of its launches that repeats."""

from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from msgspec import Struct

from nsyspipe.analysis.alignment import agreement, n_shared, runs_of_codes
from nsyspipe.analysis.attribution import NEVER, UNKNOWN, ProcessOperations
from nsyspipe.analysis.intervals import places_in_runs, run_starts, sums_of
from nsyspipe.analysis.steps import REPETITION, Candidate, Members
from nsyspipe.model.names import is_matrix_product, is_optimizer
from nsyspipe.model.table import Flags, Float64, Int64
from nsyspipe.model.typed_tables import (
    HostCallsOfReportTable,
)

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
# If many kernels come at random, a few seem to recur regularly, but in no more units than this.
_MAX_REGULAR_BY_CHANCE = 3
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
        sizes = np.diff(self.edges)
        return int(np.median(sizes))

    @property
    def members(self) -> Members:
        """The units as steps.

        Each ends where the next begins: in the middle of the pause of the host between their
        launches.
        """
        times = self.sequence.time_ns
        edges = self.edges
        inner_edges = edges[1:-1]
        pauses = times[inner_edges] - times[inner_edges - 1]
        usual_pause = int(np.median(pauses))
        time_before = times[:1] - usual_pause
        time_behind = times[-1:] + usual_pause
        padded = np.concatenate([time_before, times, time_behind])
        before = padded[edges]
        behind = padded[edges + 1]
        half_pause = (behind - before) // 2
        limits = behind - half_pause
        no_rows = np.empty(0, np.int64)
        return Members(self.thread_id, no_rows, limits[:-1], limits[1:])

    @property
    def candidate(self) -> Candidate:
        """The family of the units. It qualifies if they are steps."""
        steps = self.members
        n_launched = self.sequence.time_ns.size
        first_start_ns = int(steps.starts[0])
        last_end_ns = int(steps.ends[-1])
        return Candidate(
            name=REPETITION,
            thread_id=steps.thread_id,
            union_ns=last_end_ns - first_start_ns,
            first_start_ns=first_start_ns,
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
        inside = _inside(self.edges)
        thread = self.sequence.thread_id[inside]
        is_update = thread == self.thread_id
        is_update &= self.sequence.is_optimizer[inside]
        is_backward = np.isin(thread, self.backward_threads)
        rows = np.flatnonzero(is_update | is_backward)
        previous = rows[:-1]
        following = rows[1:]
        is_behind_backward = is_backward[previous] & is_update[following]
        updates = following[is_behind_backward]
        first_launches = self.edges - inside.start
        unit = np.searchsorted(first_launches, updates, side="right") - 1
        n_units = self.edges.size - 1
        n_by_unit = np.bincount(unit, minlength=n_units)
        return int(np.median(n_by_unit))


def _inside(edges: Int64) -> slice:
    """Return the launches from the first edge to the last."""
    first = int(edges[0])
    last = int(edges[-1])
    return slice(first, last)


def _unit_of_launches(edges: Int64) -> Int64:
    """Return the number of the unit of each launch from the first edge to the last."""
    sizes = np.diff(edges)
    return np.repeat(np.arange(sizes.size), sizes)


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
    is_new_launch = np.diff(launch, prepend=-NEVER)
    first = np.flatnonzero(is_new_launch)
    times = launch[first]
    n_kernels = np.diff(first, append=n_launched)
    is_graph = n_kernels > 1
    name_ids = operations.kernel_column("name_id", 0, n_launched)
    first_name_ids = name_ids[first]
    # No name has the number of a graph.
    graph_ids = UNKNOWN + n_kernels
    name = _number(np.where(is_graph, graph_ids, first_name_ids))
    is_product = np.isin(first_name_ids, _ids_of(names, is_matrix_product))
    threads = threads_of(times, calls)
    is_main = threads == main_thread_id
    return LaunchSequence(
        time_ns=times,
        thread_id=threads,
        name=name,
        shape=_number_shapes(operations, name, first, is_graph),
        is_optimizer=_have_update(name_ids, names, first),
        is_comm=operations.is_comm[first] & ~is_graph,
        may_begin=_before_forward(is_main, is_product),
    )


def _number_shapes(
    operations: ProcessOperations, name: Int64, first: Int64, is_graph: Flags
) -> Int64 | None:
    """Return a number for each launch's name and grid. None if the grid of a kernel is not known.

    `first` is the first kernel of each launch.
    """
    n_launched = operations.n_launched
    grids = operations.kernel_column("grid", 0, n_launched)
    if (grids == UNKNOWN).any():
        return None
    grid = np.where(is_graph, 0, grids[first])
    key = name * n_launched
    key += _number(grid)
    return _number(key)


def _have_update(name_ids: Int64, names: Mapping[int, str], first: Int64) -> Flags:
    """Tell which launches have a kernel of an optimizer; `first` is the first kernel of each."""
    optimizer_ids = _ids_of(names, is_optimizer)
    is_update = np.isin(name_ids, optimizer_ids)
    if not name_ids.size:
        return is_update
    return np.logical_or.reduceat(is_update, first)


def _number(keys: Int64) -> Int64:
    """Return a number from 0 for each different key."""
    _, inverse = np.unique(keys, return_inverse=True)
    numbers: Int64 = inverse.astype(np.int64)
    return numbers


def _ids_of(names: Mapping[int, str], is_wanted: Callable[[str], bool]) -> list[int]:
    return [name_id for name_id, name in names.items() if is_wanted(name)]


def _before_forward(is_main: Flags, is_product: Flags) -> Flags | None:
    """Flag the launches of the main thread after another thread's, before its next product.

    None if there is no other thread, or if the main thread launches no product of matrices.
    """
    is_main_product = is_main & is_product
    if is_main.all() or not is_main_product.any():
        return None
    n_products: Int64 = np.cumsum(is_product)
    n_products -= is_product
    begins_turn = np.diff(is_main, prepend=False)
    begins_turn &= is_main
    turns = np.flatnonzero(begins_turn)
    turn = np.cumsum(begins_turn) - 1
    first_of_turn = turns[np.maximum(turn, 0)]
    may_begin: Flags = n_products == n_products[first_of_turn]
    may_begin &= turn >= 0
    may_begin &= is_main
    return may_begin


def threads_of(times: Int64, calls: HostCallsOfReportTable | None) -> Int64:
    """Return the thread of the call that began at each time; without `calls` one for all.

    `calls` is `canonical.HOST_CALLS`.
    """
    if calls is None or not calls.num_rows:
        return np.zeros(times.size, np.int64)
    starts = calls["start_ns"].to_numpy()
    order = np.argsort(starts, kind="stable")
    place = np.searchsorted(starts[order], times)
    call = order[np.minimum(place, starts.size - 1)]
    threads: Int64 = calls["thread_id"].to_numpy()[call]
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
    must_train = [True]
    if not sequence.is_optimizer.any():
        must_train.append(False)
    for trains in must_train:
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
    names = sequence.name
    updates = sequence.is_optimizer
    for key, codes in ((SHAPES, sequence.shape), (NAMES, names)):
        if codes is not None:
            yield _Keyed(
                key=key,
                min_agreement=_MIN_AGREEMENT[key],
                codes=codes,
                places=np.arange(names.size),
                names=names,
                threads=sequence.thread_id,
                is_optimizer=updates,
            )
    # The first of several updates in a row has a code of its own. On one GPU nothing else marks the
    # end of a step.
    is_first_update = np.diff(updates, prepend=False)
    is_first_update &= updates
    codes = 2 * names
    codes += is_first_update
    places = np.flatnonzero(sequence.is_comm | updates)
    yield _Keyed(
        key=COMM,
        min_agreement=_MIN_AGREEMENT[COMM],
        codes=codes[places],
        places=places,
        names=names[places],
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
        if trains and not _do_most_train(n_trained[anchors]):
            continue
        if not _may_repeat(keyed, anchors):
            continue
        edges = _cut(sequence, keyed.places[anchors])
        cut = edges.tobytes()
        if cut in tried:
            continue
        tried.add(cut)
        unit = _find_unit(sequence, keyed, edges)
        if unit is None or not _has_steps(unit, n_steps):
            continue
        difference = 1 - unit.agreement
        is_clear = difference <= min_difference / 2
        if unit.agreement < keyed.min_agreement:
            min_difference = min(min_difference, difference)
        elif is_clear and _is_wanted(unit, trains=trains):
            # Otherwise it differs as much as the smaller units that it is made of.
            return unit
    return None


def _do_most_train(n_trained: Int64) -> bool:
    """Tell whether something trains in most units. Layers alone do not make a step.

    `n_trained` is how much trained before each unit.
    """
    trains = np.diff(n_trained) > 0
    return bool(np.mean(trains) >= _MIN_COVERED_SHARE)


def _count_training(sequence: LaunchSequence) -> Int64:
    """Return how many updates precede each launch; without an optimizer, changes of the thread."""
    if sequence.is_optimizer.any():
        return np.cumsum(sequence.is_optimizer)
    thread = sequence.thread_id
    changes = np.diff(thread, prepend=thread[:1])
    return np.cumsum(changes != 0)


def _cut(sequence: LaunchSequence, anchors: Int64) -> Int64:
    """Return the edges of units, near the anchors, that have the whole sequence."""
    size = sequence.time_ns.size
    updates = np.flatnonzero(sequence.is_optimizer)
    if updates.size:
        edges = _behind_updates(updates, anchors, size)
    else:
        edges = _at_pauses(sequence, anchors)
    all_edges = np.concatenate([[0], edges, [size]])
    return np.unique(all_edges)


def _has_steps(unit: Repetition, n_steps: int | None) -> bool:
    """Tell whether there are as many units as steps, or one more or less."""
    if n_steps is None:
        return True
    n_units = unit.edges.size - 1
    return abs(n_units - n_steps) <= 1


def _is_wanted(unit: Repetition, *, trains: bool) -> bool:
    if trains:
        return unit.is_step
    if unit.key == COMM:
        return False
    n_launches = unit.sequence.name.size
    min_covered = _MIN_COVERED_SHARE_WITHOUT_TRAINING * n_launches
    return bool(np.ptp(unit.edges) >= min_covered)


class _RegularKey(NamedTuple):
    """Where a key recurs regularly, and the class of keys that are as frequent."""

    count_class: int
    places: Int64


def _anchors(codes: Int64) -> Iterator[Int64]:
    """Yield the places of keys that recur regularly, most frequent first.

    Keys are single launches, and runs of several.
    """
    regular = _find_regular_keys(codes)
    runs = runs_of_codes(codes, _RUN_LENGTH)
    regular += _find_regular_keys(runs)
    regular.sort(key=lambda key: -key.count_class)
    for key in regular[:_MAX_KEYS]:
        yield key.places


def _find_regular_keys(keys: Int64) -> list[_RegularKey]:
    groups = _group(keys, _MIN_UNITS)
    covered = _cover_regularly(groups)
    count_class = _COUNT_CLASSES_PER_FACTOR_E * np.log(groups.counts)
    count_class = count_class.astype(np.int64)
    best = np.lexsort((-covered, -count_class))
    min_covered = _MIN_REGULAR_SHARE * keys.size
    best = best[covered[best] >= min_covered]
    place_in_class = places_in_runs(count_class[best])
    best = best[place_in_class < _MAX_KEYS_PER_COUNT_CLASS]
    regular = []
    for group in best.tolist():
        class_of_key = int(count_class[group])
        regular.append(_RegularKey(class_of_key, groups.places_of(group)))
    return regular


class _Groups(Struct, frozen=True):
    """The places of equal keys, key after key."""

    places: Int64
    # Of each key: the index of its first place, and how many it has.
    first: Int64
    counts: Int64

    def places_of(self, group: int) -> Int64:
        first = self.first[group]
        last = first + self.counts[group]
        return self.places[first:last]


def _group(keys: Int64, min_count: int = 1) -> _Groups:
    """Group the places of keys that recur so often."""
    places = np.argsort(keys, kind="stable")
    first = run_starts(keys[places])
    counts = np.diff(first, append=keys.size)
    is_frequent = counts >= min_count
    is_of_frequent_key = np.repeat(is_frequent, counts)
    counts = counts[is_frequent]
    first = np.cumsum(counts) - counts
    return _Groups(places=places[is_of_frequent_key], first=first, counts=counts)


def _cover_regularly(groups: _Groups) -> Int64:
    """Return how many launches the regular distances of each key cover."""
    n_groups = groups.first.size
    numbers = np.arange(n_groups)
    # The distances from each place to the next, key after key.
    n_distances = groups.counts - 1
    key = np.repeat(numbers, n_distances)
    differences = np.diff(groups.places, prepend=0)
    distances = np.delete(differences, groups.first)
    first = groups.first - numbers
    middle = first + groups.counts // 2 - 1
    order = np.lexsort((distances, key))
    median_of_key = distances[order[middle]]
    median = median_of_key[key]
    deviations = np.abs(distances - median)
    is_near = deviations <= _MAX_DEVIATION_OF_DISTANCES * median
    near_distances = distances * is_near
    return sums_of(key, near_distances, n_groups)


def _find_unit(sequence: LaunchSequence, keyed: _Keyed, edges: Int64) -> Repetition | None:
    """Return the longest run of units that agree; None if a larger unit has to be tried."""
    places = np.searchsorted(keyed.places, edges)
    has_launches = np.diff(places, prepend=-1) > 0
    run = _find_run(keyed, places[has_launches])
    if run is None:
        return None
    edges = edges[has_launches]
    edges = _behind_blocks(sequence, edges[run.first : run.last + 1])
    is_of_communication = keyed.key == COMM
    if is_of_communication:
        edges = _without_cut_off_units(edges)
    threads = _find_threads(sequence, edges)
    updates = sequence.is_optimizer[_inside(edges)]
    has_optimizer = bool(updates.any())
    if is_of_communication:
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
    min_size_of_first = _MIN_SIZE_OF_WHOLE_UNIT * sizes[1:].min()
    min_size_of_last = _MIN_SIZE_OF_WHOLE_UNIT * sizes[:-1].min()
    if sizes[0] < min_size_of_first:
        edges = edges[1:]
    if sizes[-1] < min_size_of_last:
        edges = edges[:-1]
    return edges


def _may_repeat(keyed: _Keyed, edges: Int64) -> bool:
    """Tell whether units have the same keys as the next, in any order.

    This is a cheap look at some units before they are aligned.
    """
    n_pairs = min(edges.size - 2, _SAMPLED_PAIRS)
    last_pair = edges.size - 3
    numbers = np.linspace(0, last_pair, n_pairs)
    sample = np.unique(numbers.astype(np.int64)).tolist()
    min_share = keyed.min_agreement - _MIN_NOISE
    n_unlike = 0
    for number in sample:
        begin, middle, end = edges[number : number + 3]
        unit = keyed.codes[begin:middle]
        following = keyed.codes[middle:end]
        min_shared = min_share * min(unit.size, following.size)
        n_unlike += n_shared(unit, following) < min_shared
    max_unlike = _MAX_UNLIKE_SHARE_OF_SAMPLE * len(sample)
    return n_unlike <= max(_MAX_UNLIKE_PAIRS, max_unlike)


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
    noise = _MIN_NOISE + median_size**-0.5
    floor = keyed.min_agreement - min(_MAX_NOISE, noise)
    compared = _compare_units(keyed, edges, floor)
    if compared is None:
        return None
    agreements = compared.agreements
    first, last = _longest_run(agreements, edges, floor, keyed.min_agreement)
    n_covered = edges[last] - edges[first]
    min_covered = _MIN_COVERED_SHARE * keyed.codes.size
    if last - first < _MIN_UNITS or n_covered < min_covered:
        return None
    edges_of_run = edges[first : last + 1]
    if not _are_whole(keyed, edges_of_run, compared.is_block):
        return None
    median_agreement = np.median(agreements[first : last - 1])
    return _Run(first, last, float(median_agreement))


def _are_whole(keyed: _Keyed, edges: Int64, is_block: Flags) -> bool:
    """Tell whether each unit of a run has an update, or no kernel shows a larger unit.

    Blocks that only one unit has do not count.
    """
    if keyed.is_optimizer.any():
        updates = keyed.is_optimizer[: edges[-1]]
        has_update = np.logical_or.reduceat(updates, edges[:-1])
        return bool(has_update.all())
    names = np.where(is_block, -1, keyed.names)
    return not _is_part(names, edges)


class _Compared(NamedTuple):
    """How units compare with the next."""

    agreements: Float64
    is_block: Flags  # of each launch: whether it is in a block that only one unit has


def _compare_units(keyed: _Keyed, edges: Int64, floor: float) -> _Compared | None:
    """Compare each unit with the next; None if too many differ."""
    sizes = np.diff(edges)
    is_long = sizes >= floor * np.median(sizes)
    may_agree = is_long[1:] & is_long[:-1]
    are_equal = _equal_next(keyed.codes, edges)
    are_equal &= may_agree
    agreements = are_equal.astype(np.float64)
    is_block = np.zeros(keyed.codes.size, np.bool_)
    n_unlike = np.count_nonzero(~may_agree)
    max_unlike = max(_MAX_UNLIKE_PAIRS, agreements.size // 2)
    is_unsure = may_agree & ~are_equal
    for unit in np.flatnonzero(is_unsure).tolist():
        begin, middle, end = edges[unit : unit + 3]
        pair = slice(begin, middle), slice(middle, end)
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
    is_unsure = floor <= share < keyed.min_agreement
    if is_unsure and not _length(block):
        # In units of few launches, two launches are a block already.
        stricter_share, stricter_block = agreement(short_codes, long_codes, keyed.min_agreement)
        if stricter_share > share:
            share = stricter_share
            block = stricter_block
    begin = longer.start + block.start
    added = slice(begin, begin + _length(block))
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
    deviations = np.abs(agreements - usual)
    usual_noise = _NOISE_IN_DEVIATIONS * np.median(deviations)
    noise = max(_MIN_NOISE, usual_noise)
    min_alike = np.clip(usual - noise, floor, min_agreement)
    is_alike = agreements >= min_alike
    changes = np.diff(is_alike.astype(np.int8), prepend=0, append=0)
    begins = np.flatnonzero(changes > 0)
    # The last unit of a run is the one that the unit before it agrees with.
    ends = np.flatnonzero(changes < 0) + 1
    if not begins.size:
        return 0, 0
    lengths = edges[ends] - edges[begins]
    longest = lengths.argmax()
    return int(begins[longest]), int(ends[longest])


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
    names = keyed.names[block]
    is_known = np.isin(names, keyed.names[unit])
    min_known = _MIN_KNOWN_SHARE * _length(block)
    if np.count_nonzero(is_known) < min_known and not is_recognizable:
        return False
    unit_codes = keyed.codes[unit]
    min_shared_of_units = keyed.min_agreement * unit_codes.size
    return n_shared(keyed.codes[block], unit_codes) < min_shared_of_units


def _equal_next(codes: Int64, edges: Int64) -> Flags:
    """Tell which units have the same codes as the next."""
    sizes = np.diff(edges)
    size = sizes[:-1]
    size_of_next = sizes[1:]
    places = np.arange(edges[0], edges[-2])
    places_in_next = places + np.repeat(size, size)
    np.minimum(places_in_next, codes.size - 1, out=places_in_next)
    is_same_code = codes[places] == codes[places_in_next]
    first_places = edges[:-2] - edges[0]
    are_equal: Flags = np.logical_and.reduceat(is_same_code, first_places)
    are_equal &= size_of_next == size
    return are_equal


def _is_part(names: Int64, edges: Int64) -> bool:
    """Tell whether units are only parts of steps, as the micro-batches of a step are.

    They are if a kernel recurs in every m-th unit, from the first to the last: one in so many
    units that it is no chance, or more than half of the kernels that are in few units.
    """
    n_units = edges.size - 1
    inside = names[_inside(edges)]
    key = inside * n_units
    key += _unit_of_launches(edges)
    # Launches without a name do not count.
    keys = np.unique(key[inside >= 0])
    # The units of each name, name after name.
    name, unit = np.divmod(keys, n_units)
    groups = _group(name)
    n_units_with_name = groups.counts
    is_regular = _recur_regularly(unit, groups, n_units)
    is_rare = n_units_with_name > 1
    is_rare &= n_units_with_name <= n_units // 2 + 1
    is_certain = n_units_with_name > _MAX_REGULAR_BY_CHANCE
    is_certain &= is_regular
    n_regular = np.count_nonzero(is_regular)
    are_most_regular = n_regular > np.count_nonzero(is_rare) / 2
    return bool(is_certain.any() or are_most_regular)


def _recur_regularly(unit: Int64, groups: _Groups, n_units: int) -> Flags:
    """Tell which names recur in every m-th unit from the first to the last, m being at least 2.

    `unit` are the units of each name, name after name, in the order of the groups.
    """
    first = groups.first
    counts = groups.counts
    last = first + counts - 1
    second = np.minimum(first + 1, unit.size - 1)
    first_unit = unit[first]
    distance = unit[second] - first_unit
    distance[counts == 1] = 1
    unit_at_zero = first_unit - distance * first
    expected = np.repeat(distance, counts)
    expected *= np.arange(unit.size)
    expected += np.repeat(unit_at_zero, counts)
    is_regular: Flags = np.logical_and.reduceat(unit == expected, first)
    is_regular &= distance > 1
    is_from_first = first_unit < distance
    is_regular &= is_from_first
    is_to_last = n_units - unit[last] <= distance
    is_regular &= is_to_last
    return is_regular


def _behind_updates(updates: Int64, anchors: Int64, size: int) -> Int64:
    """Return the edges of units that end with the last update of their optimizer."""
    n_units = anchors.size - 1
    distances = np.diff(updates, append=2 * size)
    pause = _shortest_pause(updates, distances, anchors)
    # If a graph has a whole step, each update is the last of a step.
    min_distance = 0 if pause == 1 else max(1, pause // 2)
    is_last_update = distances > min_distance
    ends = updates[is_last_update] + 1
    first_and_last = np.searchsorted(ends, anchors[[0, -1]])
    n_inside = int(np.ptp(first_and_last))
    per_unit = n_inside // n_units
    if per_unit <= 1:
        return ends
    # If a unit has several optimizers, it ends behind the one that makes the first unit whole from
    # the start of the capture.
    usual_size = np.median(np.diff(anchors))
    deviations = np.abs(ends[:per_unit] - usual_size)
    phase = int(deviations.argmin())
    return ends[phase::per_unit]


def _shortest_pause(updates: Int64, distances: Int64, anchors: Int64) -> int:
    """Return the smallest pause of all units.

    The pause of a unit is its longest distance from an update to the next.
    """
    n_units = anchors.size - 1
    unit = np.searchsorted(anchors, updates, side="right") - 1
    is_inside = unit >= 0
    is_inside &= unit < n_units
    longest = np.zeros(n_units, np.int64)
    np.maximum.at(longest, unit[is_inside], distances[is_inside])
    return int(longest.min())


def _behind_blocks(sequence: LaunchSequence, edges: Int64) -> Int64:
    """Move the begin of units behind a block of one thread that no other unit has.

    The block then counts in the unit before.
    """
    edges = edges.copy()
    sizes = np.diff(edges)
    deviations = np.abs(sizes - np.median(sizes))
    usual = int(deviations.argmin())
    begin, end = edges[usual : usual + 2]
    usual_unit = sequence.name[begin:end]
    min_agreement = _MIN_AGREEMENT[NAMES] - _MIN_NOISE
    is_larger = sizes * min_agreement > usual_unit.size
    for number in np.flatnonzero(is_larger).tolist():
        end = edges[number + 1]
        begin = end - usual_unit.size
        threads_of_block = sequence.thread_id[edges[number] : begin]
        has_backward = np.ptp(threads_of_block) > 0
        if has_backward:
            continue
        names = sequence.name[begin:end]
        share, _ = agreement(usual_unit, names, min_agreement)
        if share >= min_agreement:
            edges[number] = begin
    return edges


def _at_pauses(sequence: LaunchSequence, anchors: Int64) -> Int64:
    """Return where units begin if no optimizer is known.

    If the capture has nothing but whole units, the first begins with the capture. Otherwise they
    begin with the key that recurs once in each unit and comes behind the longest pause.
    """
    lengths = np.diff(anchors)
    length = lengths[0]
    size = sequence.time_ns.size
    has_equal_units = (lengths == length).all()
    if has_equal_units and size == anchors.size * length:
        return np.arange(0, size, length)
    inside = _inside(anchors)
    times = sequence.time_ns
    pauses = np.diff(times, prepend=times[:1])[inside]
    unit = _unit_of_launches(anchors)
    keys = sequence.name if sequence.shape is None else sequence.shape
    for codes in (keys, runs_of_codes(keys, _RUN_LENGTH)):
        codes_inside = codes[inside]
        rows = _once_in_each_unit(codes_inside, unit, lengths.size)
        if not rows.size:
            continue
        if sequence.may_begin is not None:
            rows = _prefer_allowed(rows, sequence.may_begin[inside])
        pauses_before = pauses[rows[:, 1:]]
        usual_pauses = np.median(pauses_before, axis=1)
        best = rows[usual_pauses.argmax(), 0]
        return np.flatnonzero(codes == codes_inside[best])
    return anchors


def _once_in_each_unit(codes: Int64, unit: Int64, n_units: int) -> Int64:
    """Return the places of codes that every unit has once: a row per code, a column per unit."""
    groups = _group(codes)
    units = np.arange(n_units)
    first = groups.first[groups.counts == n_units]
    places = np.add.outer(first, units)
    rows: Int64 = groups.places[places]
    is_in_unit = unit[rows] == units
    once: Int64 = rows[is_in_unit.all(axis=1)]
    return once


def _prefer_allowed(rows: Int64, may_begin: Flags) -> Int64:
    """Return the rows at which a step may begin in most units; all if there are none."""
    share_allowed = may_begin[rows].mean(axis=1)
    is_allowed = share_allowed > 0.5  # noqa: PLR2004 - in most units
    return rows[is_allowed] if is_allowed.any() else rows


class _Threads(NamedTuple):
    """The threads of units."""

    loop: int  # of the training loop
    backward: tuple[int, ...]
    are_in_each_unit: bool  # whether all that launch much do so in each unit


def _find_threads(sequence: LaunchSequence, edges: Int64) -> _Threads:
    inside = _inside(edges)
    unit = _unit_of_launches(edges)
    loop = _find_thread_of_loop(sequence, edges, unit)
    ids, thread = np.unique(sequence.thread_id[inside], return_inverse=True)
    # Compute kernels of each thread in each unit.
    n_units = edges.size - 1
    n_computed = np.zeros((ids.size, n_units), np.int64)
    is_compute = ~sequence.is_comm[inside]
    np.add.at(n_computed, (thread, unit), is_compute)
    min_in_unit = MIN_BACKWARD_SHARE * n_computed.sum(axis=0)
    launches_part = n_computed >= np.maximum(1, min_in_unit)
    is_backward = launches_part.all(axis=1)
    is_backward &= ids != loop
    backward = tuple(ids[is_backward].tolist())
    min_in_all = MIN_BACKWARD_SHARE * n_computed.sum()
    launches_much = n_computed.sum(axis=1) >= min_in_all
    are_in_unit = n_computed[launches_much] > 0
    return _Threads(loop, backward, bool(are_in_unit.all()))


def _find_thread_of_loop(sequence: LaunchSequence, edges: Int64, unit: Int64) -> int:
    """Return the thread that makes most updates; or that begins most units.

    An optimizer inside the backward pass does not tell the thread of the loop.
    """
    inside = _inside(edges)
    first_launches = edges[:-1]
    updates = np.flatnonzero(sequence.is_optimizer[inside])
    unit_of_update = unit[updates]
    updates += inside.start
    place_in_unit = updates - edges[unit_of_update]
    sizes = np.diff(edges)
    share_before = place_in_unit / sizes[unit_of_update]
    is_behind_backward = updates.size > 0 and np.median(share_before) > _MIN_PLACE_OF_UPDATES
    launches = updates if is_behind_backward else first_launches
    threads = sequence.thread_id[launches]
    ids, counts = np.unique(threads, return_counts=True)
    return int(ids[counts.argmax()])
