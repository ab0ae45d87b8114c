"""Each limit of a comparison from both sides: what is decided just below and just above it."""

import math
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from nsyspipe.comparison import comparability, gate, statistics
from nsyspipe.comparison.causes import PartDelta, _is_marked, _parts_changed_alike
from nsyspipe.comparison.changes import StepTable, kernel_changes, mean_step_time
from nsyspipe.comparison.separation import separation_of
from nsyspipe.comparison.series import Captures, RegularSeries, Series, centre_by_means
from nsyspipe.comparison.statistics import Interval, Judgement, difference_of_centres
from nsyspipe.comparison.surroundings import _compare_numbers, _is_alike
from nsyspipe.errors import OptionError
from nsyspipe.run.work import Work
from tests.build.tools import Changed


def side(*captures):
    return Captures.of([np.array(values, np.float64) for values in captures])


# --- steps that do not overlap, and levels --------------------------------------------------------
@pytest.mark.parametrize(("longer", "is_separated"), [(105.9, True), (106.1, False)])
def test_a_gap_of_four_spreads_makes_two_levels(longer, is_separated):
    # Levels of 100 -/+ 1 and longer -/+ 1 have a spread of 1, and a gap of 3.9 or 4.1 between them.
    # Sides that are 3 apart are told apart unless a capture switches levels by as much.
    baseline = [99, 101, 99, 101, longer - 1, longer + 1, longer - 1, longer + 1]
    candidate = np.linspace(longer + 4, longer + 6, 8)
    assert (separation_of(side(baseline), side(candidate), 0.95) is not None) == is_separated


@pytest.mark.parametrize(("n_long", "is_regular"), [(3, False), (4, True)])
def test_a_pattern_of_one_side_has_to_come_four_times(n_long, is_regular):
    before, _ = centre_by_means(side([100, 100, 100, 300] * n_long), side(np.linspace(99, 101, 12)))
    assert isinstance(before.series[0], RegularSeries) == is_regular


# --- the spread of steps --------------------------------------------------------------------------
@pytest.mark.parametrize(("furthest", "counted"), [(4.44, 4.44), (4.46, 3 * 1.482602218505602)])
def test_steps_count_as_three_robust_deviations_away_at_most(furthest, counted):
    # The absolute deviations are 0, 1, 1 and twice the furthest: their median is 1.
    deviations = Series(np.array([-furthest, -1, 0, 1, furthest])).deviations
    assert deviations[-1] == pytest.approx(counted, rel=1e-12)


@pytest.mark.parametrize(("furthest", "is_beside_gap"), [(4.63, False), (4.70, True)])
def test_a_median_is_beside_a_gap_from_three_normal_variances(furthest, is_beside_gap):
    # Of five steps the smallest and the largest are in reach, 1/3 in ranks from the median: f^2 is
    # 2.25 furthest^2. Three normal variances are 3 pi / 2 (2 x 4.4478^2 + 2) / 4 = 48.97, which
    # 2.25 x 4.665^2 are too.
    steps = Series(np.array([-furthest, -1, 0, 1, furthest]))
    assert steps.is_beside_gap(0.0) == is_beside_gap


def steps_with_a_gap(n, first_above):
    """Return n steps of which those from a rank on, counted from 0, are longer by 1."""
    return Series((np.arange(n) >= first_above).astype(np.float64))


@pytest.mark.parametrize(
    ("n", "first_above", "is_in_reach"),
    [
        # 12 + 0.98 x 26 / 5 = 17.1: part of the rank 18 is in reach.
        (25, 18, True),
        (25, 19, False),
        # 49 + 0.98 x 100 / sqrt(99) = 58.85: the rank 59 in part, and nothing of 60.
        (99, 59, True),
        (99, 60, False),
    ],
)
def test_ranks_within_two_standard_errors_tell_of_a_gap(n, first_above, is_in_reach):
    assert steps_with_a_gap(n, first_above).is_beside_gap(0.0) == is_in_reach


@pytest.mark.parametrize(("first_above", "is_in_reach"), [(80, True), (81, False)])
def test_correlated_steps_are_worth_ten_at_least(first_above, is_in_reach):
    # At a correlation of 0.97 99 steps are worth about 2; of 10 the band reaches to rank
    # 49 + 0.98 x 100 / sqrt(10) = 79.99.
    assert steps_with_a_gap(99, first_above).is_beside_gap(0.97) == is_in_reach


@pytest.mark.parametrize(("n", "verdict"), [(2, "inconclusive"), (3, "regression")])
def test_three_steps_of_each_side_are_needed(n, verdict):
    found = difference_of_centres([np.full(n, 100.0)], [np.full(n, 110.0)])
    assert Judgement(found, min_effect=2.0).verdict == verdict


# --- what an interval is made of ------------------------------------------------------------------
@pytest.mark.parametrize(
    ("n", "n_correlations"),
    [((80, 80), 12), ((80, 81), 36), ((400, 400), 36), ((400, 401), 108)],
)
def test_more_steps_tell_more_correlations_apart(n, n_correlations):
    rng = np.random.default_rng(1)
    interval = Interval(tuple(side(rng.standard_normal(size)) for size in n), 0.95)
    assert interval.weighted_correlations.correlations.size == n_correlations


@pytest.mark.parametrize(
    ("n", "divisor"),
    [
        (3, 1.0),  # sqrt(0.275 x 3) is 0.91
        (4, math.sqrt(1.1)),
        (32, math.sqrt(8.8)),
        (33, 3.0),  # sqrt(0.275 x 33) is 3.01
    ],
)
def test_the_error_is_divided_by_one_to_three(monkeypatch, n, divisor):
    errors = []
    monkeypatch.setattr(statistics, "half_width", lambda *given: errors.append(given[3]) or 1.0)
    rng = np.random.default_rng(2)
    steps = [side(rng.standard_normal(n)) for _ in range(2)]
    assert Interval(tuple(steps), 0.95).half == 1.0
    assert errors == [pytest.approx(0.05 / divisor, rel=1e-12)]


def open_difference(half):
    """Return a difference of 0 of ten steps a side with an interval of a given half-width."""
    ten = SimpleNamespace(series=[SimpleNamespace(n=10)])
    values = {"delta": 0.0, "other_delta": 0.0, "low": -9.0, "high": 9.0, "half": half}
    interval = SimpleNamespace(sides=(ten, ten))
    return SimpleNamespace(**values, undecided=None, separation=None, interval=interval)


@pytest.mark.parametrize(("factor", "is_settled"), [(0.999, True), (1.001, False)])
def test_five_thousand_steps_are_the_most_that_settle_anything(factor, is_settled):
    # 500 times the steps shrink the half-width by sqrt(500), to 0.95 x 2 or not.
    half = factor * 1.9 * math.sqrt(500)
    found = open_difference(
        lambda steps_factor=1.0, captures_factor=1: half / math.sqrt(steps_factor * captures_factor)
    )
    steps, _ = Judgement(found, min_effect=2.0).estimate_needed()
    assert (steps is not None) == is_settled


@pytest.mark.parametrize(("factor", "n_captures"), [(0.999, 20), (1.001, None)])
def test_twenty_captures_are_the_most_that_settle_anything(factor, n_captures):
    half = factor * 1.9 * math.sqrt(20)
    found = open_difference(
        lambda steps_factor=1.0, captures_factor=1: half / math.sqrt(steps_factor * captures_factor)
    )
    assert Judgement(found, min_effect=2.0).estimate_needed()[1] == n_captures


@pytest.mark.parametrize(("half_of_two", "n_captures"), [(1.899, 2), (1.901, 3)])
def test_five_per_cent_less_than_what_counts_is_aimed_at(half_of_two, n_captures):
    halves = {2: half_of_two, 3: 1.0}
    found = open_difference(
        lambda steps_factor=1.0, captures_factor=1: halves.get(captures_factor, 9.0)
    )
    assert Judgement(found, min_effect=2.0).estimate_needed()[1] == n_captures


# --- what is asked for ----------------------------------------------------------------------------
def refusal_of(check, given):
    try:
        check(given)
    except OptionError as error:
        return type(error)
    return None


@pytest.mark.parametrize(("given", "is_refused"), [(0.5, True), (0.501, False)])
def test_a_confidence_is_above_one_half(given, is_refused):
    assert (refusal_of(gate.check_confidence, given) is not None) == is_refused


@pytest.mark.parametrize(("given", "is_refused"), [(0.0999, True), (0.1, False)])
def test_a_number_below_a_tenth_of_a_per_cent_is_refused(given, is_refused):
    assert (refusal_of(gate.effect_ratio, given) is not None) == is_refused


SETTING = b'[diff]\nconfidence = 0.9\nmin-effect = "3%"\n#'


@pytest.mark.parametrize(("n_more", "is_refused"), [(0, False), (1, True)])
def test_a_settings_file_has_a_mebibyte_at_most(tmp_path, n_more, is_refused):
    (tmp_path / "nsyspipe.toml").write_bytes(SETTING.ljust(2**20 + n_more, b"#"))
    assert (refusal_of(gate.read_settings, tmp_path) is not None) == is_refused


@pytest.mark.parametrize(("number", "is_written"), [(2**63, True), (2**63 + 1, False)])
def test_integers_above_the_largest_of_toml_are_not_written(number, is_written):
    assert gate._number_text(number).isdecimal() == is_written


@pytest.mark.parametrize(("candidate", "verdict"), [(101.9, "no change"), (102.1, "regression")])
def test_two_per_cent_are_what_counts_if_nothing_is_said(candidate, verdict):
    found = difference_of_centres([np.full(4, 100.0)], [np.full(4, candidate)])
    assert Judgement(found, min_effect=100 * gate.DEFAULT_MIN_EFFECT).verdict == verdict


# --- sides that are hardly comparable -------------------------------------------------------------
def side_with_overhead(overhead_ns):
    steps = pa.table({"overhead_ns": [overhead_ns], "wall_ns": [1000]})
    return SimpleNamespace(name="x", runs=[SimpleNamespace(breakdown=lambda: steps)])


@pytest.mark.parametrize(("overhead_ns", "checks"), [(9, []), (10, ["profiler-overhead"])])
def test_one_per_cent_of_profiler_overhead_is_a_doubt(overhead_ns, checks):
    sides = side_with_overhead(0), side_with_overhead(overhead_ns)
    assert [one.check for one in comparability._profiler_overhead(sides)] == checks


def side_with_bytes(n_bytes):
    summary = pa.table({"message_bytes_per_step": [float(n_bytes)]})
    run = SimpleNamespace(summary=lambda: summary, definitions_version=2)
    return SimpleNamespace(name="x", runs=[run])


@pytest.mark.parametrize(("n_bytes", "checks"), [(9900, []), (9899, ["message-bytes"])])
def test_more_than_one_per_cent_of_the_bytes_are_other_bytes(n_bytes, checks):
    sides = side_with_bytes(10_000), side_with_bytes(n_bytes)
    assert [one.check for one in comparability._message_bytes(sides)] == checks


def unlike_captures(run, **figures):
    row = run.summary().to_pylist()[0] | figures
    schema = run.summary().schema
    changed = Changed(run, summary=lambda: pa.Table.from_pylist([row], schema))
    sides = [SimpleNamespace(name="x", runs=runs) for runs in ([run, changed], [run])]
    return [one.check for one in comparability._unlike_captures(sides)]


@pytest.mark.parametrize(("ratio", "checks"), [(1.25, []), (1.26, ["unlike-captures"])])
def test_captures_of_a_side_differ_by_a_quarter_of_the_time_at_most(run, ratio, checks):
    assert unlike_captures(run, step_time_ns=1200.0 * ratio) == checks


@pytest.mark.parametrize(("number", "checks"), [(1.1, []), (1.11, ["unlike-captures"])])
def test_captures_of_a_side_differ_by_a_tenth_in_collectives_at_most(run, number, checks):
    # Each rank has one collective in a step.
    assert unlike_captures(run, collectives_per_step=number) == checks


@pytest.mark.parametrize(("size", "checks"), [(1100.0, []), (1101.0, ["unlike-captures"])])
def test_captures_of_a_side_differ_by_a_tenth_in_bytes_at_most(run, size, checks):
    row = run.summary().to_pylist()[0] | {"message_bytes_per_step": 1000.0}
    sized = Changed(run, summary=lambda: pa.Table.from_pylist([row], run.summary().schema))
    assert unlike_captures(sized, message_bytes_per_step=size) == checks


def work(busy_ns, kernels, launches):
    return Work(float(busy_ns), kernels, launches, {})


@pytest.mark.parametrize(("busy_ns", "is_other"), [(2999, False), (3000, True)])
def test_other_kernels_that_compute_three_times_as_long_are_other_work(busy_ns, is_other):
    before = work(1000, {"a": 1.0}, {"matrix products": 9.0})
    assert before.is_other(work(busy_ns, {"b": 1.0}, {"matrix products": 9.0})) == is_other


@pytest.mark.parametrize(("busy_ns", "is_other"), [(1999, False), (2000, True)])
def test_the_same_kernels_that_compute_twice_as_long_are_other_work(busy_ns, is_other):
    before = work(1000, {"a": 1.0}, {"matrix products": 9.0})
    assert before.is_other(work(busy_ns, {"a": 1.0}, {"matrix products": 9.0})) == is_other


@pytest.mark.parametrize(
    ("busy_ns", "n_products", "is_other"),
    [(1499, 15.0, False), (1500, 14.9, False), (1500, 15.0, True)],
)
def test_half_as_much_again_in_time_and_products_is_other_work(busy_ns, n_products, is_other):
    before = work(1000, {"a": 1.0}, {"matrix products": 10.0})
    assert before.is_other(work(busy_ns, {"a": 1.0}, {"matrix products": n_products})) == is_other


@pytest.mark.parametrize(("shared_ns", "is_other"), [(49.0, True), (50.0, False)])
def test_kernels_are_the_same_from_half_of_the_time_on(shared_ns, is_other):
    # No launch is alike, which counts where the kernels are not the same.
    before = work(1000, {"a": 50.0, "b": 50.0}, {"a": 1.0})
    after = work(1000, {"a": shared_ns, "c": 100 - shared_ns}, {"c": 1.0})
    before = before._replace(kernels={"a": shared_ns, "b": 100 - shared_ns})
    assert before.is_other(after) == is_other


@pytest.mark.parametrize(("n_alike", "is_other"), [(7.9, True), (8.0, False)])
def test_other_kernels_have_to_be_launched_four_times_in_five_alike(n_alike, is_other):
    before = work(1000, {"a": 1.0}, {"matrix products": 10.0})
    assert before.is_other(work(1000, {"b": 1.0}, {"matrix products": n_alike})) == is_other


@pytest.mark.parametrize(("n_launches", "is_other"), [(0.79, True), (0.81, False)])
def test_alike_launches_are_counted_over_one_a_step_at_least(n_launches, is_other):
    before = work(1000, {"a": 1.0}, {"matrix products": n_launches})
    assert before.is_other(work(1000, {"b": 1.0}, before.launches)) == is_other


# --- what changed ---------------------------------------------------------------------------------
@pytest.mark.parametrize(("after", "is_alike"), [(1000.9, True), (1001.1, False)])
def test_means_that_differ_by_a_thousandth_look_the_same(after, is_alike):
    assert _is_alike("bytes", 1000.0, after, min_late_ns=0.0) == is_alike


@pytest.mark.parametrize(("after", "is_alike"), [(1110.0, True), (1112.0, False)])
def test_bandwidths_within_a_tenth_look_the_same(after, is_alike):
    # A tenth of the larger: of 1111.1.
    assert _is_alike("bytes/s", 1000.0, after, min_late_ns=0.0) == is_alike


@pytest.mark.parametrize(("after", "is_marked"), [(1111.0, False), (1112.0, True)])
def test_a_change_by_a_tenth_of_the_larger_side_may_be_a_cause(after, is_marked):
    assert _is_marked(1000.0, after) == is_marked


@pytest.mark.parametrize(("ns", "names"), [(-4.9, []), (-5.1, ["idle"])])
def test_half_of_the_change_of_the_part_that_changed_most_is_named(ns, names):
    compute = PartDelta("compute", -10.0)
    alike = _parts_changed_alike(compute, [compute, PartDelta("idle", ns)])
    assert [name for name, _ in alike] == names


def table_with_delay(run, delay_ns):
    """Return three steps of 1200 ns in each of which a rank makes the others wait so long."""
    lateness = pa.table({"lateness_ns": [3 * delay_ns, 0]})
    return StepTable(Changed(run, stragglers=lambda: lateness))


@pytest.mark.parametrize(("delay_ns", "n_changes"), [(11, 0), (13, 1)])
def test_a_delay_below_one_per_cent_of_a_step_is_no_change(run, delay_ns, n_changes):
    # A hundredth of 1200 ns is 12 ns.
    sides = [[table_with_delay(run, ns)] for ns in (0, delay_ns)]
    changes = [row for row in _compare_numbers(sides).changes if row["topic"] == "stragglers"]
    assert len(changes) == n_changes


def kernel_table(ns):
    """Return a capture of one rank and step of 100 000 ns in which a kernel takes so long."""
    row = {"phase": "forward", "name": "gemm", "in_summary_ns": ns, "n_in_summary": 1}
    run = SimpleNamespace(kernels=lambda: pa.Table.from_pylist([row]), problem_rows=[])
    wall_ns = np.array([[100_000]])
    return SimpleNamespace(n_steps=1, ranks=[0], run=run, matrix=lambda name: wall_ns)


@pytest.mark.parametrize(("after_ns", "status"), [(50_100, "same"), (50_101, "changed")])
def test_a_kernel_changed_by_a_thousandth_of_the_step_is_the_same(after_ns, status):
    rows = kernel_changes([kernel_table(50_000)], [kernel_table(after_ns)], min_effect=0.02)
    assert rows["status"].to_pylist() == [status]


@pytest.mark.parametrize(("whole", "part"), [(2**42 - 1, Fraction(1, 4)), (2**42, 0)])
def test_times_have_fractions_below_four_thousand_seconds(whole, part):
    table = SimpleNamespace(mean_of_slowest=lambda name: whole + Fraction(1, 4))
    assert mean_step_time([table]) == whole + part
