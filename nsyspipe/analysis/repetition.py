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
# In place of the number of a name, for launches whose name does not count.
_NAMELESS = -1


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
        """The time of each unit, as if each unit were the range of a step.

        A unit ends where the next begins: in the middle of the pause of the host between the last
        launch of the unit and the first launch of the next. The usual pause is assumed before the
        first launch of the capture and behind the last.
        """
        times = self.sequence.time_ns
        inner_edges = self.edges[1:-1]
        pauses = times[inner_edges] - times[inner_edges - 1]
        usual_pause = int(np.median(pauses))
        time_before_all = times[:1] - usual_pause
        time_behind_all = times[-1:] + usual_pause
        # An edge is the index of the first launch of a unit, or the number of launches. So even
        # the first edge needs a launch before it, and the last edge a launch behind it.
        previous_times = np.append(time_before_all, times)
        next_times = np.append(times, time_behind_all)
        launch_before_edge = previous_times[self.edges]
        launch_behind_edge = next_times[self.edges]
        half_pause = (launch_behind_edge - launch_before_edge) // 2
        time_of_edge = launch_behind_edge - half_pause
        no_rows = np.empty(0, np.int64)
        return Members(self.thread_id, no_rows, time_of_edge[:-1], time_of_edge[1:])

    @property
    def candidate(self) -> Candidate:
        """The units as the members of a family. The family qualifies as steps if a unit trains.

        All launches count as inside the units, since the first and the last step may be cut off.
        So launches outside of the units never keep the family from being chosen.
        """
        members = self.members
        n_launched = self.sequence.time_ns.size
        first_start_ns = int(members.starts[0])
        last_end_ns = int(members.ends[-1])
        return Candidate(
            name=REPETITION,
            thread_id=self.thread_id,
            union_ns=last_end_ns - first_start_ns,
            first_start_ns=first_start_ns,
            n_members=members.starts.size,
            # Units that do not train are micro-batches or layers, which are parts of steps.
            is_part=not self.is_step,
            n_launched_inside=n_launched,
            n_launched=n_launched,
        )

    @property
    def n_updates(self) -> int:
        """How often the loop's thread updates weights after a backward pass: median over units.

        Several updates after one backward pass count once. 0 if no backward thread is known.
        """
        inside = _inside(self.edges)
        thread = self.sequence.thread_id[inside]
        is_update = thread == self.thread_id
        is_update &= self.sequence.is_optimizer[inside]
        is_backward = np.isin(thread, self.backward_threads)
        # All other launches are left out, so an update directly follows its backward pass.
        launches = np.flatnonzero(is_update | is_backward)
        previous_launch = launches[:-1]
        next_launch = launches[1:]
        is_first_update = is_backward[previous_launch] & is_update[next_launch]
        first_updates = next_launch[is_first_update]
        unit_of_launch = _unit_of_launches(self.edges)
        unit_of_update = unit_of_launch[first_updates]
        n_units = self.edges.size - 1
        n_updates_of_unit = np.bincount(unit_of_update, minlength=n_units)
        return int(np.median(n_updates_of_unit))


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

    `names` are texts by name ID, and `calls` is `canonical.HOST_CALLS` of the process. Without
    calls, all launches have one thread.

    Several kernels of one launch are a CUDA graph. A graph is one item of the sequence. All graphs
    of the same number of kernels count as the same.

    ``may_begin`` flags the launches with which a step may begin. These are launches of the main
    thread between a backward pass and the first product of matrices of the next forward pass. A
    backward pass is taken to end where the main thread launches again after another thread.
    """
    n_launched = operations.n_launched
    launch_of_kernel = operations.kernel_launch[:n_launched]
    # Kernels are in order of launch, so those of one launch follow each other.
    is_first_of_launch = np.diff(launch_of_kernel, prepend=-NEVER) != 0
    first_kernel = np.flatnonzero(is_first_of_launch)
    times = launch_of_kernel[first_kernel]
    n_kernels = np.diff(first_kernel, append=n_launched)
    is_graph = n_kernels > 1
    id_of_kernel = operations.kernel_column("name_id", 0, n_launched)
    first_id = id_of_kernel[first_kernel]
    # Far below all name IDs, so no name has the number of a graph.
    graph_id = UNKNOWN + n_kernels
    name = _number_equal(np.where(is_graph, graph_id, first_id))
    is_product = np.isin(first_id, _ids_of(names, is_matrix_product))
    threads = threads_of(times, calls)
    is_main = threads == main_thread_id
    return LaunchSequence(
        time_ns=times,
        thread_id=threads,
        name=name,
        shape=_number_shapes(operations, name, first_kernel, is_graph),
        is_optimizer=_have_update(id_of_kernel, names, first_kernel),
        is_comm=operations.is_comm[first_kernel] & ~is_graph,
        may_begin=_before_forward(is_main, is_product),
    )


def _number_shapes(
    operations: ProcessOperations, name: Int64, first_kernel: Int64, is_graph: Flags
) -> Int64 | None:
    """Return for each launch a number that stands for its name and grid.

    None if the grid of any kernel is not known. `name` and `first_kernel` are those of each launch.
    """
    n_launched = operations.n_launched
    grids = operations.kernel_column("grid", 0, n_launched)
    if (grids == UNKNOWN).any():
        return None
    grid = np.where(is_graph, 0, grids[first_kernel])
    # There are no more grids than kernels, so no two pairs have the same key.
    key = name * n_launched
    key += _number_equal(grid)
    return _number_equal(key)


def _have_update(id_of_kernel: Int64, names: Mapping[int, str], first_kernel: Int64) -> Flags:
    """Tell which launches have a kernel of an optimizer.

    `id_of_kernel` is the name ID of each kernel. `first_kernel` is the first kernel of each launch.
    """
    optimizer_ids = _ids_of(names, is_optimizer)
    is_update = np.isin(id_of_kernel, optimizer_ids)
    if not is_update.size:
        # `reduceat` takes no empty array.
        return is_update
    return np.logical_or.reduceat(is_update, first_kernel)


def _number_equal(keys: Int64) -> Int64:
    """Return a number for each key, from 0. Equal keys have the same number."""
    _, number_of_key = np.unique(keys, return_inverse=True)
    numbers: Int64 = number_of_key.astype(np.int64)
    return numbers


def _ids_of(names: Mapping[int, str], is_wanted: Callable[[str], bool]) -> list[int]:
    return [name_id for name_id, name in names.items() if is_wanted(name)]


def _before_forward(is_main: Flags, is_product: Flags) -> Flags | None:
    """Flag the launches with which a step may begin, as `launch_sequence` describes them.

    Both parameters have a flag per launch: whether the main thread made the launch, and whether its
    kernel is a product of matrices. None if the main thread makes all launches, or no product.
    """
    is_main_product = is_main & is_product
    if is_main.all() or not is_main_product.any():
        return None
    n_products_up_to: Int64 = np.cumsum(is_product)
    n_products_before = n_products_up_to - is_product
    # A turn is a run of launches of the main thread.
    begins_turn = np.diff(is_main, prepend=False)
    begins_turn &= is_main
    first_of_turn = np.flatnonzero(begins_turn)
    # Launches before the first turn get -1. They are of other threads, so they are false anyway.
    turn = np.cumsum(begins_turn) - 1
    n_before_turn = n_products_before[first_of_turn]
    # A step may begin as long as the turn has launched no product.
    has_no_product_yet: Flags = n_products_before == n_before_turn[turn]
    return has_no_product_yet & is_main


def threads_of(times: Int64, calls: HostCallsOfReportTable | None) -> Int64:
    """Return the thread of the call that began at each time.

    `calls` is `canonical.HOST_CALLS`. Without it, all threads are 0.
    """
    if calls is None or not calls.num_rows:
        return np.zeros(times.size, np.int64)
    starts = calls["start_ns"].to_numpy()
    call_at_place = np.argsort(starts, kind="stable")
    place = np.searchsorted(starts[call_at_place], times)
    # A time behind all calls gets the last call.
    place = np.minimum(place, starts.size - 1)
    call = call_at_place[place]
    threads: Int64 = calls["thread_id"].to_numpy()[call]
    return threads


def find_repetition(sequence: LaunchSequence, n_steps: int | None = None) -> Repetition | None:
    """Find the smallest unit that a process repeats at least three times; a step if there is one.

    Each unit is aligned with the next. Their agreement is the length of the longest common
    subsequence, as a share of the longer unit. The median agreement has to reach 0.95, or 0.8 if
    only collectives and optimizer are compared.

    A block of launches that only one unit has (an evaluation, a checkpoint) counts in that unit.
    In two cases a larger unit is sought: the block has training steps, or the optimizer of the
    program is not known and a kernel recurs only in every m-th unit.

    With `n_steps`, the number of units may differ from that of steps by 1 at most.

    If the optimizer is known, a unit begins behind the last kernel of the optimizer. Without a
    known optimizer, a capture of whole units has its first unit at its begin. In all other cases, a
    unit begins behind the longest pause of the host.

    Units that train are sought first. Other units are accepted only if no optimizer is known.
    """
    if sequence.name.size < _MIN_LAUNCHES:
        return None
    is_optimizer_known = bool(sequence.is_optimizer.any())
    trains_of_attempts = [True] if is_optimizer_known else [True, False]
    for trains in trains_of_attempts:
        for keyed in _keyed_launches(sequence):
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


def _keyed_launches(sequence: LaunchSequence) -> Iterator[_Keyed]:
    """Yield what is compared: by `SHAPES` if grids are known, then by `NAMES`, then by `COMM`."""
    names = sequence.name
    is_update = sequence.is_optimizer
    for key, codes in ((SHAPES, sequence.shape), (NAMES, names)):
        if codes is not None:
            yield _Keyed(
                key=key,
                min_agreement=_MIN_AGREEMENT[key],
                codes=codes,
                places=np.arange(names.size),
                names=names,
                threads=sequence.thread_id,
                is_optimizer=is_update,
            )
    # The first of several updates in a row has a code of its own. Without communication, nothing
    # else marks the end of a step.
    is_first_update = np.diff(is_update, prepend=False)
    is_first_update &= is_update
    # A code is a name and this flag in one number.
    codes = 2 * names + is_first_update
    places = np.flatnonzero(sequence.is_comm | is_update)
    yield _Keyed(
        key=COMM,
        min_agreement=_MIN_AGREEMENT[COMM],
        codes=codes[places],
        places=places,
        names=names[places],
        threads=sequence.thread_id[places],
        is_optimizer=is_update[places],
    )


def _find_smallest(
    sequence: LaunchSequence, keyed: _Keyed, n_steps: int | None, *, trains: bool
) -> Repetition | None:
    """Return the smallest unit that repeats in what is compared; None if there is none.

    Units are tried from the smallest on. With `trains`, the unit has to train. Without, the units
    have to cover most of the sequence.

    The difference of units is 1 - agreement. If smaller units differ too much, a larger unit may
    differ at most half as much. A larger unit with about the same difference is only made of the
    smaller ones.
    """
    n_signs = _count_signs_of_training(sequence)[keyed.places]
    tried_cuts: set[bytes] = set()
    least_difference = 1.0
    for anchors in _anchors(keyed.codes):
        if len(tried_cuts) == _MAX_CUTS:
            break
        if trains and not _do_most_train(n_signs[anchors]):
            continue
        if not _may_repeat(keyed, anchors):
            continue
        edges = _cut(sequence, keyed.places[anchors])
        cut = edges.tobytes()
        if cut in tried_cuts:
            continue
        tried_cuts.add(cut)
        repetition = _find_units(sequence, keyed, edges)
        if repetition is None or not _has_steps(repetition, n_steps):
            continue
        difference = 1 - repetition.agreement
        if repetition.agreement < keyed.min_agreement:
            least_difference = min(least_difference, difference)
            continue
        is_clear = difference <= least_difference / 2
        if is_clear and _is_wanted(repetition, trains=trains):
            return repetition
    return None


def _do_most_train(n_signs: Int64) -> bool:
    """Tell whether many units train something. Layers alone do not make a step.

    `n_signs` is the count of `_count_signs_of_training` at the begin of each unit.
    """
    trains = np.diff(n_signs) > 0
    return bool(np.mean(trains) >= _MIN_COVERED_SHARE)


def _count_signs_of_training(sequence: LaunchSequence) -> Int64:
    """Return for each launch how many signs of training there are up to it.

    A sign is a kernel of an optimizer. If no optimizer is known, a sign is a launch by another
    thread than the launch before, since backward has a thread of its own.
    """
    if sequence.is_optimizer.any():
        return np.cumsum(sequence.is_optimizer)
    thread = sequence.thread_id
    differences = np.diff(thread, prepend=thread[:1])
    return np.cumsum(differences != 0)


def _cut(sequence: LaunchSequence, anchors: Int64) -> Int64:
    """Cut the whole sequence into units near the anchors.

    Returns where each unit begins, and where the last one ends. The first and the last unit may be
    parts of a unit.
    """
    size = sequence.time_ns.size
    updates = np.flatnonzero(sequence.is_optimizer)
    if updates.size:
        edges = _behind_updates(updates, anchors, size)
    else:
        edges = _at_pauses(sequence, anchors)
    all_edges = np.concatenate([[0], edges, [size]])
    return np.unique(all_edges)


def _has_steps(repetition: Repetition, n_steps: int | None) -> bool:
    """Tell whether there are as many units as steps, or one more or less.

    Any number of units is right if the number of steps is None.
    """
    if n_steps is None:
        return True
    n_units = repetition.edges.size - 1
    return abs(n_units - n_steps) <= 1


def _is_wanted(repetition: Repetition, *, trains: bool) -> bool:
    """Tell whether units train. Without `trains`, tell whether they cover most of the sequence.

    Without training, collectives alone do not make a unit.
    """
    if trains:
        return repetition.is_step
    if repetition.key == COMM:
        return False
    n_launches = repetition.sequence.name.size
    min_covered = _MIN_COVERED_SHARE_WITHOUT_TRAINING * n_launches
    n_covered = np.ptp(repetition.edges)
    return bool(n_covered >= min_covered)


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
    regular.sort(key=lambda key: key.count_class, reverse=True)
    for key in regular[:_MAX_KEYS]:
        yield key.places


def _find_regular_keys(keys: Int64) -> list[_RegularKey]:
    """Return the keys that recur regularly, most frequent first.

    Keys that are about as frequent are of one count class. Only the most regular keys of a class
    are returned.
    """
    groups = _group(keys, min_count=_MIN_UNITS)
    n_covered = _cover_regularly(groups)
    exact_class = _COUNT_CLASSES_PER_FACTOR_E * np.log(groups.counts)
    count_class = exact_class.astype(np.int64)
    # By class, then by the number of covered launches, both from the largest on.
    groups_in_order = np.lexsort((-n_covered, -count_class))
    min_covered = _MIN_REGULAR_SHARE * keys.size
    is_regular = n_covered >= min_covered
    regular_groups = groups_in_order[is_regular[groups_in_order]]
    place_in_class = places_in_runs(count_class[regular_groups])
    chosen_groups = regular_groups[place_in_class < _MAX_KEYS_PER_COUNT_CLASS]
    regular_keys = []
    for group in chosen_groups.tolist():
        class_of_key = int(count_class[group])
        regular_keys.append(_RegularKey(class_of_key, groups.places_of(group)))
    return regular_keys


class _Groups(Struct, frozen=True):
    """The places at which each key stands. A group is a key."""

    # Group after group, ascending in each.
    places: Int64
    # Of each group: the index of its first place in `places`, and how many places it has.
    first: Int64
    counts: Int64

    def places_of(self, group: int) -> Int64:
        first = self.first[group]
        last = first + self.counts[group]
        return self.places[first:last]


def _group(keys: Int64, min_count: int = 1) -> _Groups:
    """Group the places of equal keys. Keys with fewer places than `min_count` are left out."""
    places = np.argsort(keys, kind="stable")
    first = run_starts(keys[places])
    counts = np.diff(first, append=keys.size)
    is_frequent = counts >= min_count
    is_of_frequent_key = np.repeat(is_frequent, counts)
    frequent_counts = counts[is_frequent]
    first_of_frequent = np.cumsum(frequent_counts) - frequent_counts
    return _Groups(
        places=places[is_of_frequent_key], first=first_of_frequent, counts=frequent_counts
    )


def _cover_regularly(groups: _Groups) -> Int64:
    """Return for each group how many launches its regular distances cover.

    A distance is that from a place to the next place of the group. It is regular if it is near the
    median distance of the group.
    """
    n_groups = groups.first.size
    # Without the difference at the first place of a group, which is that from another group. So the
    # distances of the first group are left, then those of the second, and so on.
    differences = np.diff(groups.places, prepend=0)
    distances = np.delete(differences, groups.first)
    n_distances = groups.counts - 1
    group_of_distance = np.repeat(np.arange(n_groups), n_distances)
    first_distance = np.cumsum(n_distances) - n_distances
    lower_middle = first_distance + (n_distances - 1) // 2
    # The order of groups stays, so each group keeps its range of places.
    by_length = np.lexsort((distances, group_of_distance))
    median_of_group = distances[by_length[lower_middle]]
    median = median_of_group[group_of_distance]
    deviations = np.abs(distances - median)
    is_regular = deviations <= _MAX_DEVIATION_OF_DISTANCES * median
    return sums_of(group_of_distance[is_regular], distances[is_regular], n_groups)


def _find_units(sequence: LaunchSequence, keyed: _Keyed, edges: Int64) -> Repetition | None:
    """Return the longest run of units that agree, whole and with its threads.

    `edges` are where units begin in the sequence, and where the last one ends. None if there is no
    such run, so that larger units have to be tried.
    """
    # Edges in the sequence become edges in the compared launches. Of edges without a compared
    # launch between them, only the first counts.
    compared_edges = np.searchsorted(keyed.places, edges)
    is_counted = np.diff(compared_edges, prepend=-1) > 0
    run = _find_run(keyed, compared_edges[is_counted])
    if run is None:
        return None
    counted_edges = edges[is_counted]
    edges_of_run = counted_edges[run.first : run.last + 1]
    edges_of_units = _behind_blocks(sequence, edges_of_run)
    is_of_communication = keyed.key == COMM
    if is_of_communication:
        edges_of_units = _without_cut_off_units(edges_of_units)
    threads = _find_threads(sequence, edges_of_units)
    updates = sequence.is_optimizer[_inside(edges_of_units)]
    has_optimizer = bool(updates.any())
    if is_of_communication:
        # Only collectives and updates were compared, so look at the other launches here.
        is_whole = has_optimizer or not _is_part(sequence.name, edges_of_units)
        if not threads.are_in_each_unit or not is_whole:
            return None
    n_units = edges_of_units.size - 1
    if n_units < _MIN_UNITS:
        return None
    return Repetition(
        sequence=sequence,
        edges=edges_of_units,
        agreement=run.agreement,
        key=keyed.key,
        thread_id=threads.loop,
        backward_threads=threads.backward,
        has_optimizer=has_optimizer,
    )


def _without_cut_off_units(edges: Int64) -> Int64:
    """Drop the first and the last unit if they are clearly smaller than all other units."""
    sizes = np.diff(edges)
    min_size_of_first = _MIN_SIZE_OF_WHOLE_UNIT * sizes[1:].min()
    min_size_of_last = _MIN_SIZE_OF_WHOLE_UNIT * sizes[:-1].min()
    if sizes[0] < min_size_of_first:
        edges = edges[1:]
    if sizes[-1] < min_size_of_last:
        edges = edges[:-1]
    return edges


def _may_repeat(keyed: _Keyed, edges: Int64) -> bool:
    """Tell whether most units have about the same codes as the next unit, in any order.

    This is a cheap look at a sample of units before they are aligned.
    """
    n_units = edges.size - 1
    n_pairs = n_units - 1
    n_sampled = min(n_pairs, _SAMPLED_PAIRS)
    spread = np.linspace(0, n_pairs - 1, n_sampled)
    sample = np.unique(spread.astype(np.int64)).tolist()
    min_share = keyed.min_agreement - _MIN_NOISE
    n_unlike = 0
    for number in sample:
        begin, middle, end = edges[number : number + 3]
        unit = keyed.codes[begin:middle]
        next_unit = keyed.codes[middle:end]
        min_shared = min_share * min(unit.size, next_unit.size)
        if n_shared(unit, next_unit) < min_shared:
            n_unlike += 1
    max_unlike = _MAX_UNLIKE_SHARE_OF_SAMPLE * len(sample)
    return n_unlike <= max(_MAX_UNLIKE_PAIRS, max_unlike)


class _Run(NamedTuple):
    """A run of units, each of which agrees with the next."""

    first: int  # index of the edge at which the run begins
    last: int  # index of the edge at which the run ends
    agreement: float  # the median


def _find_run(keyed: _Keyed, edges: Int64) -> _Run | None:
    """Return the longest run of units that agree; None if a larger unit has to be tried.

    A larger unit has to be tried if the run is short, or if its units are only parts of steps. The
    median of a run has to reach `keyed.min_agreement`, which the caller checks. A single pair of
    units may agree less, by a noise that is larger for small units.
    """
    n_units = edges.size - 1
    if n_units < _MIN_UNITS:
        return None
    median_size = float(np.median(np.diff(edges)))
    noise_of_size = _MIN_NOISE + median_size**-0.5
    noise = min(_MAX_NOISE, noise_of_size)
    min_of_pair = keyed.min_agreement - noise
    compared = _compare_units(keyed, edges, min_of_pair)
    if compared is None:
        return None
    agreements = compared.agreements
    first, last = _longest_run(agreements, edges, min_of_pair, keyed.min_agreement)
    n_units_of_run = last - first
    n_covered = edges[last] - edges[first]
    min_covered = _MIN_COVERED_SHARE * keyed.codes.size
    if n_units_of_run < _MIN_UNITS or n_covered < min_covered:
        return None
    edges_of_run = edges[first : last + 1]
    if not _are_whole(keyed, edges_of_run, compared.is_block):
        return None
    # A run has one pair of neighbors less than it has units.
    agreements_of_run = agreements[first : last - 1]
    return _Run(first, last, float(np.median(agreements_of_run)))


def _are_whole(keyed: _Keyed, edges: Int64, is_block: Flags) -> bool:
    """Tell whether units are whole, and not only parts of steps.

    If an optimizer is known, units are whole if each has an update. Without a known optimizer,
    `_is_part` decides. It does not get the names of launches in a block that only one unit has,
    which `is_block` flags.
    """
    if keyed.is_optimizer.any():
        is_update_up_to_end = keyed.is_optimizer[: edges[-1]]
        has_update = np.logical_or.reduceat(is_update_up_to_end, edges[:-1])
        return bool(has_update.all())
    names_outside_blocks = np.where(is_block, _NAMELESS, keyed.names)
    return not _is_part(names_outside_blocks, edges)


class _Compared(NamedTuple):
    """How units compare with the next."""

    agreements: Float64  # of each unit but the last
    is_block: Flags  # of each launch: whether it is in a block that only one unit has


def _compare_units(keyed: _Keyed, edges: Int64, min_of_pair: float) -> _Compared | None:
    """Compare each unit with the next; None if too many pairs agree less than `min_of_pair`.

    Pairs of equal units agree to 1, and pairs with a short unit to 0. Only the other pairs have to
    be compared launch by launch.
    """
    sizes = np.diff(edges)
    is_short = sizes < min_of_pair * np.median(sizes)
    has_short_unit = is_short[1:] | is_short[:-1]
    are_equal = _equal_next(keyed.codes, edges)
    are_equal &= ~has_short_unit
    agreements = are_equal.astype(np.float64)
    is_block = np.zeros(keyed.codes.size, np.bool_)
    n_unlike = np.count_nonzero(has_short_unit)
    max_unlike = max(_MAX_UNLIKE_PAIRS, agreements.size // 2)
    has_to_be_compared = ~has_short_unit & ~are_equal
    for unit in np.flatnonzero(has_to_be_compared).tolist():
        begin, middle, end = edges[unit : unit + 3]
        pair = slice(begin, middle), slice(middle, end)
        agreements[unit], block = _compare_pair(keyed, pair, min_of_pair)
        is_block[block] = True
        if agreements[unit] < min_of_pair:
            n_unlike += 1
        if n_unlike > max_unlike:
            return None
    return _Compared(agreements, is_block)


def _compare_pair(
    keyed: _Keyed, pair: tuple[slice, slice], min_of_pair: float
) -> tuple[float, slice]:
    """Return how much two units agree, and the block that only the longer unit has.

    The block does not count against the agreement. The agreement is 0 if it is less than
    `min_of_pair`, or if the block trains. Without a block, the second result is an empty slice.
    """
    shorter, longer = sorted(pair, key=_length)
    share, block_in_longer = _agreement_with_block(
        keyed.codes[shorter], keyed.codes[longer], min_of_pair, keyed.min_agreement
    )
    begin = longer.start + block_in_longer.start
    block = slice(begin, begin + _length(block_in_longer))
    if _length(block) and not _trains_nothing(keyed, block, shorter):
        return 0.0, slice(0, 0)
    return share, block


def _agreement_with_block(
    shorter: Int64, longer: Int64, min_of_pair: float, min_agreement: float
) -> tuple[float, slice]:
    """Return the `agreement` of the codes of two units, and the block that is left out.

    `agreement` leaves a block out only if the whole units do not reach the limit. The low limit
    `min_of_pair` may be reached in spite of a block. Such units are compared again with the limit
    `min_agreement`, which is higher. The larger agreement counts, with its block.
    """
    share, block = agreement(shorter, longer, min_of_pair)
    is_below_usual_limit = min_of_pair <= share < min_agreement
    if not is_below_usual_limit or _length(block):
        return share, block
    share_of_second_look, block_of_second_look = agreement(shorter, longer, min_agreement)
    if share_of_second_look > share:
        return share_of_second_look, block_of_second_look
    return share, block


def _length(part: slice) -> int:
    return int(part.stop - part.start)


def _longest_run(
    agreements: Float64, edges: Int64, min_of_pair: float, min_agreement: float
) -> tuple[int, int]:
    """Return the indices of the edges at which the longest run of units begins and ends.

    Each unit of a run agrees with the next about as much as most units do. The longest run has the
    most launches. Both indices are 0 if no unit agrees with the next.
    """
    usual = np.median(agreements)
    deviations = np.abs(agreements - usual)
    usual_noise = _NOISE_IN_DEVIATIONS * np.median(deviations)
    noise = max(_MIN_NOISE, usual_noise)
    # An agreement below `min_of_pair` is too low, and one above `min_agreement` is always enough.
    min_alike = np.clip(usual - noise, min_of_pair, min_agreement)
    agrees_with_next = agreements >= min_alike
    changes = np.diff(agrees_with_next.astype(np.int8), prepend=0, append=0)
    # A run begins with its first unit that agrees with the next.
    first_edges = np.flatnonzero(changes > 0)
    if not first_edges.size:
        return 0, 0
    # The last unit of a run does not agree with the next, but the unit before agrees with it. The
    # edge at its end is one behind the edge at its begin.
    first_edge_of_last_unit = np.flatnonzero(changes < 0)
    last_edges = first_edge_of_last_unit + 1
    n_launches = edges[last_edges] - edges[first_edges]
    longest = n_launches.argmax()
    return int(first_edges[longest]), int(last_edges[longest])


def _trains_nothing(keyed: _Keyed, block: slice, unit: slice) -> bool:
    """Tell whether a block of launches is what programs do between steps.

    Such a block has no update and no backward pass, and it is not a unit itself. An update is seen
    by a known optimizer, and a backward pass by a second thread. If the `unit` shows not both, they
    may be hidden in the block, too. Then the block also has to consist of kernels of the unit, as
    an evaluation does.
    """
    unit_has_backward_thread = _are_several(keyed.threads[unit])
    if keyed.is_optimizer[block].any():
        return False
    if unit_has_backward_thread and _are_several(keyed.threads[block]):
        return False
    would_show_training = unit_has_backward_thread and keyed.is_optimizer[unit].any()
    is_name_of_unit = np.isin(keyed.names[block], keyed.names[unit])
    n_with_name_of_unit = np.count_nonzero(is_name_of_unit)
    min_with_name_of_unit = _MIN_KNOWN_SHARE * _length(block)
    if not would_show_training and n_with_name_of_unit < min_with_name_of_unit:
        return False
    unit_codes = keyed.codes[unit]
    min_shared_by_units = keyed.min_agreement * unit_codes.size
    is_unit_itself = n_shared(keyed.codes[block], unit_codes) >= min_shared_by_units
    return not is_unit_itself


def _are_several(threads: Int64) -> bool:
    """Tell whether launches are of more than one thread."""
    return bool(np.ptp(threads) > 0)


def _equal_next(codes: Int64, edges: Int64) -> Flags:
    """Tell for each unit but the last whether it has the same codes as the next unit."""
    sizes = np.diff(edges)
    sizes_but_last = sizes[:-1]
    sizes_of_next = sizes[1:]
    places = np.arange(edges[0], edges[-2])
    # The same place in the next unit is farther by the size of the unit.
    size_at_place = np.repeat(sizes_but_last, sizes_but_last)
    place_in_next = places + size_at_place
    # A unit that is longer than the next may reach behind all codes. It counts as different below,
    # so any code will do.
    np.minimum(place_in_next, codes.size - 1, out=place_in_next)
    is_same_code = codes[places] == codes[place_in_next]
    begins = edges[:-2] - edges[0]
    are_equal: Flags = np.logical_and.reduceat(is_same_code, begins)
    are_equal &= sizes_of_next == sizes_but_last
    return are_equal


def _is_part(names: Int64, edges: Int64) -> bool:
    """Tell whether units are only parts of steps, as the micro-batches of a step are.

    A kernel is regular if it recurs in every m-th unit, from the first unit to the last, and m is
    at least 2. By chance, a kernel may seem regular in at most `_MAX_REGULAR_BY_CHANCE` units. So
    units are parts if one regular kernel is in more units. They are also parts if more than half of
    the rare kernels are regular. A rare kernel is in 2 units or more, and at most in about half of
    them, as every regular kernel is.
    """
    n_units = edges.size - 1
    name_of_launch = names[_inside(edges)]
    key = name_of_launch * n_units
    key += _unit_of_launches(edges)
    has_name = name_of_launch != _NAMELESS
    keys = np.unique(key[has_name])
    # The units of the first name in ascending order, then those of the second, and so on.
    name, unit = np.divmod(keys, n_units)
    units_of_names = _group(name)
    n_units_with_name = units_of_names.counts
    is_regular = _recur_regularly(unit, units_of_names, n_units)
    # With m = 2, every second unit: one more than half if the number of units is odd.
    max_units_of_rare = n_units // 2 + 1
    is_rare = n_units_with_name > 1
    is_rare &= n_units_with_name <= max_units_of_rare
    is_no_chance = n_units_with_name > _MAX_REGULAR_BY_CHANCE
    has_certain_name = (is_regular & is_no_chance).any()
    are_most_regular = np.count_nonzero(is_regular) > np.count_nonzero(is_rare) / 2
    return bool(has_certain_name or are_most_regular)


def _recur_regularly(unit: Int64, groups: _Groups, n_units: int) -> Flags:
    """Tell which names recur in every m-th unit from the first to the last, m being at least 2.

    A group is a name. `unit` has the units of the first name in ascending order, then those of the
    second, and so on. A name in a single unit does not recur.
    """
    first = groups.first
    counts = groups.counts
    first_unit = unit[first]
    last_unit = unit[first + counts - 1]
    # Names in a single unit would read behind all units. They are false below.
    second = np.minimum(first + 1, unit.size - 1)
    distance = unit[second] - first_unit
    number_in_name = np.arange(unit.size)
    number_in_name -= np.repeat(first, counts)
    # The units at equal distances, counted from the first unit of the name.
    expected_unit = np.repeat(distance, counts)
    expected_unit *= number_in_name
    expected_unit += np.repeat(first_unit, counts)
    is_regular: Flags = np.logical_and.reduceat(unit == expected_unit, first)
    is_regular &= counts > 1
    is_regular &= distance > 1
    is_from_first = first_unit < distance
    is_regular &= is_from_first
    is_to_last = last_unit + distance >= n_units
    is_regular &= is_to_last
    return is_regular


def _behind_updates(updates: Int64, anchors: Int64, n_launches: int) -> Int64:
    """Return where units end: behind the last update of an optimizer.

    `updates` and `anchors` are places in a sequence of `n_launches`. There is about one unit from
    each anchor to the next. The updates of one optimizer follow each other closely. So an update is
    the last one if the distance to the next update is more than half of the shortest pause.
    """
    n_units = anchors.size - 1
    # The last update of the sequence has no next one. It gets a distance above all others.
    distances = np.diff(updates, append=2 * n_launches)
    pause = _shortest_pause(updates, distances, anchors)
    if pause == 1:
        # A graph has a whole step, so each update is the last of a step.
        ends = updates + 1
    else:
        # Updates that directly follow each other are of one optimizer.
        min_distance = max(1, pause // 2)
        is_last_update = distances > min_distance
        ends = updates[is_last_update] + 1
    first_anchor, last_anchor = anchors[[0, -1]]
    n_ends_before_first, n_ends_before_last = np.searchsorted(ends, [first_anchor, last_anchor])
    n_optimizers = int(n_ends_before_last - n_ends_before_first) // n_units
    if n_optimizers <= 1:
        return ends
    # A unit with several optimizers ends behind one of them. If the capture begins with a unit, its
    # end is about as far from the begin as a unit is long. So take that optimizer.
    usual_size = np.median(np.diff(anchors))
    deviations = np.abs(ends[:n_optimizers] - usual_size)
    first_end = int(deviations.argmin())
    return ends[first_end::n_optimizers]


def _shortest_pause(updates: Int64, distances: Int64, anchors: Int64) -> int:
    """Return the smallest pause of all units, in launches.

    The pause of a unit is its longest distance from an update to the next update. A unit is what
    lies from one anchor to the next.
    """
    n_units = anchors.size - 1
    unit_of_update = np.searchsorted(anchors, updates, side="right") - 1
    # Updates before the first anchor and behind the last are in no unit.
    is_in_unit = unit_of_update >= 0
    is_in_unit &= unit_of_update < n_units
    pause_of_unit = np.zeros(n_units, np.int64)
    np.maximum.at(pause_of_unit, unit_of_update[is_in_unit], distances[is_in_unit])
    return int(pause_of_unit.min())


def _behind_blocks(sequence: LaunchSequence, edges: Int64) -> Int64:
    """Return the edges, moved where a unit begins with a block that the usual unit does not have.

    The usual unit is the one whose size is nearest to the median. A larger unit has a block if what
    is behind the block agrees with the usual unit. The unit then begins behind the block, and the
    block counts in the unit before. A block with launches of several threads stays, since it may
    have a backward pass.
    """
    moved_edges = edges.copy()
    sizes = np.diff(edges)
    deviations = np.abs(sizes - np.median(sizes))
    usual_unit = int(deviations.argmin())
    usual_names = sequence.name[_inside(edges[usual_unit : usual_unit + 2])]
    min_agreement = _MIN_AGREEMENT[NAMES] - _MIN_NOISE
    is_larger = sizes * min_agreement > usual_names.size
    for unit in np.flatnonzero(is_larger).tolist():
        end = edges[unit + 1]
        end_of_block = end - usual_names.size
        block = slice(edges[unit], end_of_block)
        if _are_several(sequence.thread_id[block]):
            continue
        names_behind_block = sequence.name[end_of_block:end]
        share, _ = agreement(usual_names, names_behind_block, min_agreement)
        if share >= min_agreement:
            moved_edges[unit] = end_of_block
    return moved_edges


def _at_pauses(sequence: LaunchSequence, anchors: Int64) -> Int64:
    """Return where units begin if no optimizer is known. There is about one unit per anchor.

    If the capture has nothing but whole units of one size, the first begins with the capture. Any
    other capture is cut at a code that each unit has once. Of several such codes, the one behind
    the longest pause of the host is taken. Single launches are tried first, then runs of launches.
    Without such a code, units begin at the anchors.
    """
    sizes = np.diff(anchors)
    first_size = sizes[0]
    n_launches = sequence.time_ns.size
    are_equal = (sizes == first_size).all()
    # Besides the units between anchors, the launches at both ends make one more.
    if are_equal and n_launches == anchors.size * first_size:
        return np.arange(0, n_launches, first_size)
    inside = _inside(anchors)
    times = sequence.time_ns
    pause_before = np.diff(times, prepend=times[:1])[inside]
    unit = _unit_of_launches(anchors)
    single_codes = sequence.name if sequence.shape is None else sequence.shape
    for codes in (single_codes, runs_of_codes(single_codes, _RUN_LENGTH)):
        codes_inside = codes[inside]
        # A row per code, a column per unit.
        places = _once_in_each_unit(codes_inside, unit, sizes.size)
        if not places.size:
            continue
        if sequence.may_begin is not None:
            places = _prefer_allowed(places, sequence.may_begin[inside])
        # What precedes the first unit need not be a unit, so the pause before it does not count.
        pauses_of_code = pause_before[places[:, 1:]]
        usual_pause_of_code = np.median(pauses_of_code, axis=1)
        place_of_best = places[usual_pause_of_code.argmax(), 0]
        return np.flatnonzero(codes == codes_inside[place_of_best])
    return anchors


def _once_in_each_unit(codes: Int64, unit: Int64, n_units: int) -> Int64:
    """Return the places of codes that every unit has once: a row per code, a column per unit.

    `unit` is the unit of each place.
    """
    groups = _group(codes)
    units = np.arange(n_units)
    first = groups.first[groups.counts == n_units]
    places: Int64 = groups.places[np.add.outer(first, units)]
    is_in_unit = unit[places] == units
    places_of_codes: Int64 = places[is_in_unit.all(axis=1)]
    return places_of_codes


def _prefer_allowed(places: Int64, may_begin: Flags) -> Int64:
    """Return the codes at which a step may begin in most units; all codes if there are none.

    A code is a row of its places, as `_once_in_each_unit` returns it.
    """
    share_allowed = may_begin[places].mean(axis=1)
    is_allowed = share_allowed > 0.5  # noqa: PLR2004 - in most units
    return places[is_allowed] if is_allowed.any() else places


class _Threads(NamedTuple):
    """The threads of units."""

    loop: int  # of the training loop
    backward: tuple[int, ...]
    are_in_each_unit: bool  # whether each thread that launches much launches in each unit


def _find_threads(sequence: LaunchSequence, edges: Int64) -> _Threads:
    """Return the thread of the loop, and the threads of the backward pass.

    A thread of the backward pass launches `MIN_BACKWARD_SHARE` of the compute kernels in every
    unit. A thread launches much if it launches that share of all compute kernels.
    """
    inside = _inside(edges)
    unit_of_launch = _unit_of_launches(edges)
    loop = _find_thread_of_loop(sequence, edges, unit_of_launch)
    ids, thread_of_launch = np.unique(sequence.thread_id[inside], return_inverse=True)
    # Compute kernels: a row per thread, a column per unit.
    n_units = edges.size - 1
    n_kernels = np.zeros((ids.size, n_units), np.int64)
    is_compute = ~sequence.is_comm[inside]
    np.add.at(n_kernels, (thread_of_launch, unit_of_launch), is_compute)
    min_in_unit = MIN_BACKWARD_SHARE * n_kernels.sum(axis=0)
    # Without a kernel, no thread has a share of a unit.
    has_share_of_unit = n_kernels >= np.maximum(1, min_in_unit)
    is_backward = has_share_of_unit.all(axis=1)
    is_backward &= ids != loop
    backward = tuple(ids[is_backward].tolist())
    min_in_all_units = MIN_BACKWARD_SHARE * n_kernels.sum()
    launches_much = n_kernels.sum(axis=1) >= min_in_all_units
    is_in_unit = n_kernels[launches_much] > 0
    return _Threads(loop, backward, are_in_each_unit=bool(is_in_unit.all()))


def _find_thread_of_loop(sequence: LaunchSequence, edges: Int64, unit_of_launch: Int64) -> int:
    """Return the thread that makes most updates, if most updates are near the end of their units.

    Earlier updates may be those of an optimizer inside the backward pass, on another thread. Then,
    or without updates, return the thread that begins most units.
    """
    inside = _inside(edges)
    first_launches = edges[:-1]
    updates_inside = np.flatnonzero(sequence.is_optimizer[inside])
    unit_of_update = unit_of_launch[updates_inside]
    updates = updates_inside + inside.start
    n_launches_before = updates - edges[unit_of_update]
    sizes = np.diff(edges)
    share_before = n_launches_before / sizes[unit_of_update]
    are_updates_at_end = updates.size > 0 and np.median(share_before) > _MIN_PLACE_OF_UPDATES
    launches_of_loop = updates if are_updates_at_end else first_launches
    threads = sequence.thread_id[launches_of_loop]
    ids, counts = np.unique(threads, return_counts=True)
    return int(ids[counts.argmax()])
