"""Each limit of what a step is from both sides: ranges, repetition, captures, steps that count."""

from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from nsyspipe.analysis import repetition
from nsyspipe.analysis.repeated_steps import aligned_numbers
from nsyspipe.analysis.repetition import LaunchSequence, Repetition, find_repetition
from nsyspipe.analysis.steps import Candidate, Windows
from nsyspipe.model.user_paths import ReportFile
from nsyspipe.run import captures, process, run_problems
from nsyspipe.run.step_sources import _problems_of_repetition
from tests.build.make_comm import op, rank
from tests.build.tools import codes, run_of
from tests.build.trace import steady_rank

pytestmark = pytest.mark.reads_anew

LOOP, AUTOGRAD = 1, 2
SIZE = 100


# --- ranges ---------------------------------------------------------------------------------------
def candidate(*, n_members=5, n_inside=100):
    return Candidate("step #", LOOP, 1000, 0, n_members, n_inside, 100)


@pytest.mark.parametrize(
    ("family", "qualifies"),
    [
        (candidate(n_members=1), False),
        (candidate(n_members=2), True),
        (candidate(n_inside=49), False),
        (candidate(n_inside=50), True),
    ],
)
def test_steps_are_two_ranges_with_half_of_the_launches(family, qualifies):
    assert family.qualifies == qualifies


# --- repetition -----------------------------------------------------------------------------------
def unit(*, size=SIZE, others=(), number=0):
    """Return the names of a step's launches; at the places of `others` they are its own."""
    names = [f"k{at}" for at in range(size - 1)]
    for at in others:
        names[at] = f"other {number} {at}"
    return [*names, "AdamFunctor"]


def alone(n, number):
    """Return names that no other launch has."""
    return [f"alone {number} {at}" for at in range(n)]


def sequence(names, *, shapes=None, threads=None):
    ids = np.unique(names, return_inverse=True)[1].astype(np.int64)
    return LaunchSequence(
        time_ns=10 * np.arange(len(names)),
        thread_id=np.full(len(names), LOOP) if threads is None else np.array(threads),
        name=ids,
        shape=None if shapes is None else np.unique(shapes, return_inverse=True)[1],
        is_optimizer=np.array([name == "AdamFunctor" for name in names]),
        is_comm=np.array([name.startswith("nccl") for name in names]),
    )


def joined(parts):
    return [name for part in parts for name in part]


def n_units(found):
    return 0 if found is None else found.edges.size - 1


@pytest.mark.parametrize(("n_changed", "key"), [(5, repetition.SHAPES), (6, repetition.NAMES)])
def test_grids_are_alike_in_95_of_100_launches(n_changed, key):
    names = joined([unit()] * 6)
    shapes = joined(unit(others=range(n_changed), number=at) for at in range(6))
    assert find_repetition(sequence(names, shapes=shapes)).key == key


@pytest.mark.parametrize(("n_changed", "n"), [(5, 6), (6, 0)])
def test_names_are_alike_in_95_of_100_launches(n_changed, n):
    # By names alone: of grids nothing is known, and in one thread nothing else is left.
    parts = [unit(others=range(n_changed), number=at) for at in range(6)]
    found = find_repetition(sequence(joined(parts)))
    is_by_names = found is not None and found.key == repetition.NAMES
    assert (n_units(found) if is_by_names else 0) == n


def comm_unit(n_changed, number, *, size=40):
    """Return launches that no other step has, with ten collectives and an update behind them."""
    comm = [f"nccl_{at}" for at in range(10)]
    for at in range(n_changed):
        comm[at] = f"nccl_{number}_{at}"
    return [*alone(size - 11, number), *comm, "AdamFunctor"]


@pytest.mark.parametrize(("n_changed", "n"), [(2, 6), (3, 0)])
def test_collectives_and_updates_are_alike_in_four_of_five(n_changed, n):
    # Of ten collectives and the update 9 of 11 are 0.82, and 8 of 11 are 0.73.
    parts = [comm_unit(n_changed, at) for at in range(6)]
    assert n_units(find_repetition(sequence(joined(parts)))) == n


@pytest.mark.parametrize(("n_changed", "n"), [(9, 9), (10, 8)])
def test_a_unit_may_be_less_alike_than_most_by_a_twentieth(n_changed, n):
    # Neighbors agree to 0.96; with the last one, to 0.91 or 0.90.
    parts = [unit(others=range(4), number=at) for at in range(8)]
    parts.append(unit(others=range(n_changed), number=8))
    assert n_units(find_repetition(sequence(joined(parts)))) == n


def unit_of_one_name(size):
    """Return launches of one name; their grids tell them apart."""
    return ["gemm"] * (size - 1) + ["AdamFunctor"]


@pytest.mark.parametrize(("size", "n"), [(80, 9), (79, 8)])
def test_a_unit_has_80_per_cent_of_the_launches_of_others_at_least(size, n):
    # 0.95 less 0.15. The last unit lacks a block of launches, whose names it has too.
    names = joined([*[unit_of_one_name(SIZE)] * 8, unit_of_one_name(size)])
    last = [*unit()[: size - 1], "AdamFunctor"]
    shapes = joined([*[unit()] * 8, last])
    found = find_repetition(sequence(names, shapes=shapes))
    assert (found.key, n_units(found)) == (repetition.SHAPES, n)


@pytest.mark.parametrize(("n_alone", "key"), [(600, repetition.NAMES), (606, repetition.COMM)])
def test_units_are_four_tenths_of_all_launches_at_least(n_alone, key):
    # Eight units of 50: 400 of 1000, or of 1006. Then the updates alone are compared.
    names = joined([*[unit(size=50)] * 8, alone(n_alone, 0)])
    assert find_repetition(sequence(names)).key == key


@pytest.mark.parametrize(("n_alone", "key"), [(366, repetition.NAMES), (368, repetition.COMM)])
def test_regular_distances_are_three_tenths_of_all_launches_at_least(n_alone, key):
    # Three units of 100 have two distances: 200 of 666, or of 668.
    names = joined([*[unit()] * 3, alone(n_alone, 0)])
    assert find_repetition(sequence(names)).key == key


@pytest.mark.parametrize(("n_alone", "n"), [(37, 7), (38, 0)])
def test_where_nothing_trains_units_are_four_fifths_of_all_launches(n_alone, n):
    # The last of eight units of 50 is cut off by what follows: 350 of 437, or of 438.
    names = joined([*[[f"k{at}" for at in range(50)]] * 8, alone(n_alone, 0)])
    assert n_units(find_repetition(sequence(names))) == n


@pytest.mark.parametrize(("n_launches", "n"), [(2, 0), (3, 3)])
def test_three_launches_are_the_least_that_repeat(n_launches, n):
    assert n_units(find_repetition(sequence(["AdamFunctor"] * n_launches))) == n


@pytest.mark.parametrize(("n", "expected"), [(2, 0), (3, 3)])
def test_three_units_are_the_least_that_repeat(n, expected):
    assert n_units(find_repetition(sequence(joined([unit()] * n)))) == expected


@pytest.mark.parametrize(("n_backward", "threads"), [(9, ()), (10, (AUTOGRAD,))])
def test_a_thread_of_the_backward_pass_launches_a_tenth_of_each_unit(n_backward, threads):
    of_unit = [AUTOGRAD] * n_backward + [LOOP] * (SIZE - n_backward)
    found = find_repetition(sequence(joined([unit()] * 4), threads=of_unit * 4))
    assert found.backward_threads == threads


@pytest.mark.parametrize(("place", "loop"), [(75, LOOP), (76, AUTOGRAD)])
def test_updates_behind_three_quarters_of_a_unit_are_of_the_loop(place, loop):
    # The loop's thread begins each unit, and another one updates.
    names, threads = [f"k{at}" for at in range(SIZE)], [LOOP] * SIZE
    names[place], threads[place] = "AdamFunctor", AUTOGRAD
    edges = np.arange(0, 5 * SIZE, SIZE)
    launches = sequence(names * 4, threads=threads * 4)
    assert repetition._find_threads(launches, edges).loop == loop


def keyed(names, *, least=0.95):
    of_all = sequence(names)
    places = np.arange(len(names))
    return repetition._Keyed(
        repetition.NAMES,
        least,
        of_all.name,
        places,
        of_all.name,
        of_all.thread_id,
        of_all.is_optimizer,
    )


@pytest.mark.parametrize(("n_known", "expected"), [(4, False), (5, True)])
def test_half_of_the_kernels_of_an_evaluation_are_known(n_known, expected):
    block = [f"k{at}" for at in range(n_known)] + alone(10 - n_known, 0)
    found = repetition._trains_nothing(keyed([*unit(), *block]), slice(100, 110), slice(0, 100))
    assert found == expected


@pytest.mark.parametrize(("n_unlike", "expected"), [(6, True), (7, False)])
def test_six_tenths_of_the_pairs_of_units_may_be_unlike(n_unlike, expected):
    # Of 12 units 11 pairs: 6.6. Units that nothing shares are unlike their neighbors.
    parts = [alone(10, at) if at < n_unlike else ["k"] * 10 for at in range(12)]
    edges = np.arange(0, 130, 10)
    assert repetition._may_repeat(keyed(joined(parts)), edges) == expected


@pytest.mark.parametrize(("n_unlike", "expected"), [(3, True), (4, False)])
def test_three_pairs_of_units_may_be_unlike_however_few_there_are(n_unlike, expected):
    # Of 5 units 4 pairs: six tenths are 2.4.
    parts = [alone(10, at) if at < n_unlike else ["k"] * 10 for at in range(5)]
    edges = np.arange(0, 60, 10)
    assert repetition._may_repeat(keyed(joined(parts)), edges) == expected


@pytest.mark.parametrize(("n_times", "is_part"), [(3, False), (4, True)])
def test_a_kernel_of_every_second_unit_makes_parts_of_them_from_four_times_on(n_times, is_part):
    # Two kernels that come at random are as rare, so that one alone is not the most of those.
    n = 2 * n_times
    rare = {at: ["regular"] for at in range(1, n, 2)}
    for at, name in ((0, "a"), (1, "a"), (1, "b"), (2, "b")):
        rare[at] = [*rare.get(at, []), name]
    parts = [["k0", "k1", *rare.get(at, [])] for at in range(n)]
    edges = np.cumsum([0, *map(len, parts)])
    assert repetition._is_part(sequence(joined(parts)).name, edges) == is_part


@pytest.mark.parametrize(("size", "n"), [(36, 6), (35, 5)])
def test_a_first_unit_of_nine_tenths_of_the_least_is_whole(size, n):
    # Only collectives and updates are compared, and the others have 40 launches.
    parts = [comm_unit(0, at, size=40) for at in range(1, 6)]
    assert n_units(find_repetition(sequence(joined([comm_unit(0, 0, size=size), *parts])))) == n


# --- units of several ranks -----------------------------------------------------------------------
EVEN = tuple(range(0, 8000, 1000))


def of_rank(begins, *, late=0):
    """Return a rank whose units begin so, and whose all-reduces end 700 behind that."""
    ops = [op(start + 690 + late, member=at) for at, start in enumerate(begins)]
    return rank(*ops).process.comm, pa.table({"start_ns": np.array(begins) + late}), 0


@pytest.mark.parametrize(("late", "is_sure"), [(333, True), (334, False)])
def test_a_shift_of_units_is_sure_if_it_is_half_of_any_other(late, is_sure):
    # Even steps are 1000 apart: the next shift is off by 667, or 666.
    assert aligned_numbers([of_rank(EVEN), of_rank(EVEN, late=late)])[1] == is_sure


@pytest.mark.parametrize(("n_apart", "is_found"), [(2, True), (3, False)])
def test_units_are_looked_for_two_steps_apart_at_most(n_apart, is_found):
    starts = (0, 1000, 2300, 3100, 4600, 5500, 7300, 7900)
    (numbers, _), _ = aligned_numbers([of_rank(starts), of_rank(starts[n_apart:])])
    assert (int(numbers[0]) == -n_apart) == is_found


@pytest.mark.parametrize(("n_covered", "expected"), [(900, []), (890, ["steps-cover-part"])])
def test_steps_that_cover_less_than_nine_tenths_are_a_problem(n_covered, expected):
    launches = sequence(["AdamFunctor"] * 1000)
    edges = np.arange(0, n_covered + 1, 10)
    units = Repetition(launches, edges, 1.0, repetition.NAMES, LOOP, (), has_optimizer=True)
    found = [one.code for one in _problems_of_repetition(7, units, has_each_one_optimizer=True)]
    assert [code for code in found if code == "steps-cover-part"] == expected


# --- steps that count -----------------------------------------------------------------------------
@pytest.mark.parametrize(("n_steps", "is_few"), [(4, True), (5, False)])
def test_fewer_than_three_steps_in_the_metrics_are_few(tmp_path, n_steps, is_few):
    # Of the steps the first is skipped and the last is cut off.
    run = run_of(tmp_path, *(steady_rank(at, n_steps) for at in range(2)))
    assert ("few-steps" in codes(run)) == is_few


def steps_in_turn(longer_ns):
    """Return two steps of two ranks: in turn one takes 1000 ns, the other so much longer."""
    walls = [1000, 1000 + longer_ns, 1000 + longer_ns, 1000]
    starts = [0, 2000, 0, 2000]
    columns = {"rank": [0, 0, 1, 1], "step": [1, 2, 1, 2], "start_ns": starts, "wall_ns": walls}
    columns["end_ns"] = [start + wall for start, wall in zip(starts, walls, strict=True)]
    return pa.table(columns | {"in_summary": [True] * 4})


@pytest.mark.parametrize(
    ("longer_ns", "severities"), [(20, []), (21, ["info"]), (105, ["info"]), (106, ["warning"])]
)
def test_slowest_ranks_in_turn_are_told_above_1_and_warned_of_above_5_per_cent(
    longer_ns, severities
):
    # The largest windows sum to 2000 + 2 d, and a rank's own to 2000 + d: d / (2000 + d) more.
    problems = run_problems._problems_of_slowest_rank(steps_in_turn(longer_ns))
    assert [problem.severity for problem in problems] == severities


@pytest.mark.parametrize(("n_between", "expected"), [(2, False), (3, True)])
def test_a_tenth_of_the_launches_may_be_between_the_steps(tmp_path, n_between, expected):
    # Three steps of six launches: 2 of 20 are a tenth, and 3 of 21 are more.
    builder = steady_rank(0, 0, world_size=1)
    for begin in (0, 10_000, 20_000):
        builder.range(begin, begin + 5000, f"step {begin}")
        launches = [begin + 100 * at for at in range(6)]
        launches += [begin + 5500 + 100 * at for at in range(n_between) if begin == 0]
        for launch in launches:
            builder.kernel(launch + 50, launch + 90, launch=launch)
    assert ("launches-between-steps" in codes(run_of(tmp_path, builder))) == expected


# --- captures of one process ----------------------------------------------------------------------
def report(begin_ns, end_ns, *, argument=0, nsys_start_ns=None):
    facts = SimpleNamespace(
        host="h",
        session_start_utc_ns=1,
        nsys_start_utc_ns=nsys_start_ns,
        number=lambda name: None,
    )
    return SimpleNamespace(
        span=(begin_ns, end_ns),
        argument=argument,
        report=SimpleNamespace(facts=facts, file=ReportFile.of("run_1.sqlite")),
        process=SimpleNamespace(pid=7, device_id=0),
    )


@pytest.mark.parametrize(("later_ns", "is_one"), [(1000, True), (1001, False)])
def test_reports_of_one_nsys_say_its_start_to_the_microsecond(later_ns, is_one):
    one, other = (report(0, 1, nsys_start_ns=10**9 + later) for later in (0, later_ns))
    assert captures._are_by_one_nsys(one, other) == is_one


@pytest.fixture
def alike_captures(monkeypatch):
    """Let captures differ in nothing but their times."""
    for name in ("_has_other_rank", "_has_other_communicators", "_do_step_numbers_go_on"):
        monkeypatch.setattr(captures, name, lambda *_: False)


MINUTE_NS = 60 * 10**9


@pytest.mark.parametrize(("gap_ns", "is_next"), [(MINUTE_NS, True), (MINUTE_NS + 1, False)])
def test_captures_of_one_process_follow_within_a_minute(alike_captures, gap_ns, is_next):
    pair = report(0, 100), report(100 + gap_ns, 200 + gap_ns, argument=1)
    assert captures._is_next_capture(*pair, is_one_job=False) == is_next


@pytest.mark.parametrize(("gap_ns", "is_shared"), [(MINUTE_NS, True), (MINUTE_NS + 1, False)])
def test_a_process_number_is_shared_within_a_minute(alike_captures, gap_ns, is_shared):
    pair = report(0, 100), report(100 + gap_ns, 200 + gap_ns, argument=1)
    assert captures.share_one_process_number(*pair) == is_shared


# --- clocks of steps ------------------------------------------------------------------------------
@pytest.mark.parametrize(("span_ns", "is_known"), [(1_000_000, True), (1_000_001, False)])
def test_a_clock_error_above_a_millisecond_has_to_be_less_than_a_step(span_ns, is_known):
    window = np.array([0]), np.array([500])
    windows = Windows(np.array([0]), *window, np.array([True]))
    assert process._are_clocks_comparable(SimpleNamespace(span_ns=span_ns), windows) == is_known
