"""Each limit of a replay from both sides: what is decided just below it, and what just above it."""

import math
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from nsyspipe.analysis.kernels import NARROW, Compared, Slowing, assumed
from nsyspipe.errors import OptionError
from nsyspipe.model.schema import FINDINGS
from nsyspipe.replay import (
    answer,
    gradients,
    knobs,
    opening,
    program,
    rebucket,
    refusals,
    scenarios,
    starving,
)
from nsyspipe.replay.gradients import MIB, Gradients
from nsyspipe.replay.knobs import Knobs, knobs_of
from nsyspipe.replay.ranges import CapturedFacts, Contention, slowdowns
from nsyspipe.replay.simulate import WINDOW, SimulationSetting, StepProgram, _work_between
from nsyspipe.replay.timelines import BEFORE_ALL_NS
from tests.build.tools import run_of_steps

GB = 1e9


def is_refused(ask):
    try:
        ask()
    except OptionError:
        return True
    return False


# --- what is asked for ----------------------------------------------------------------------------
@pytest.mark.parametrize(("bytes_per_s", "expected"), [(999_999, True), (1_000_000, False)])
def test_a_bandwidth_below_a_megabyte_per_second_is_refused(bytes_per_s, expected):
    assert is_refused(lambda: knobs_of(bandwidth=bytes_per_s)) == expected


@pytest.mark.parametrize(
    ("changes", "subject"),
    [
        ({"bandwidth_bytes_per_s": 0.0}, "--bandwidth 0"),
        ({"bandwidth_factor": 0.0}, "--bandwidth 0"),
        ({"bucket_mb": 0.0}, "--bucket-mb 0"),
        # 0 is no missing value, so it contradicts a link as any other bandwidth does.
        ({"bandwidth_bytes_per_s": 0.0, "link": "nvlink4"}, "--link and --bandwidth"),
        ({"bandwidth_factor": 0.0, "link": "nvlink4"}, "--link and --bandwidth"),
        ({"bandwidth_factor": 2.0, "link": "nvlink4"}, "--link and --bandwidth"),
    ],
)
def test_zero_is_refused_as_a_number(changes, subject):
    with pytest.raises(OptionError) as caught:
        Knobs(**changes)
    assert caught.value.subject == subject


@pytest.mark.parametrize("text", ["0", "0.0", "0x", "0GB/s", "tensor=0x"])
def test_the_fix_of_a_zero_bandwidth_is_no_zero(text):
    with pytest.raises(OptionError) as caught:
        knobs_of(bandwidth=text)
    assert " 0" not in caught.value.fix.removesuffix("a number above 0")


@pytest.mark.parametrize(("mib", "expected"), [(2**20, False), (2**20 + 1, True)])
def test_a_bucket_has_a_tebibyte_at_most(mib, expected):
    assert is_refused(lambda: Knobs(bucket_mb=mib)) == expected


@pytest.mark.parametrize(("given", "expected"), [(1100, False), (1101, True)])
def test_given_bytes_of_gradients_are_within_a_tenth_of_those_captured(
    monkeypatch, given, expected
):
    seen = Gradients(np.array([400.0, 600.0]), np.zeros((2, 1)), is_exact=True)
    monkeypatch.setattr(opening, "gradients_of", lambda *_, **__: seen)
    captured = SimpleNamespace(steps=range(3), program=SimpleNamespace(n_ranks=2))
    replay = SimpleNamespace(captured=captured, has_gradients=False, nominal_bytes_per_s=None)
    assert is_refused(lambda: opening._check_bytes(replay, given)) == expected


# --- runs that cannot be replayed -----------------------------------------------------------------
def run_that_idles(share):
    """Return a run of two ranks and steps of which only the clock of the device is doubtful."""
    steps = {"step": [0, 1], "is_complete": [True, True], "in_summary": [True, True]}
    problem = {"code": "device-clock-unknown", "message": "", "fix": ""}
    return SimpleNamespace(
        is_capture=False,
        header=SimpleNamespace(n_ranks=2, n_job_ranks=2),
        problem_rows=[problem],
        collectives=lambda: pa.table({"step": [0]}),
        summary=lambda: pa.table({"idle_share": [share]}),
        steps=lambda: pa.table(steps),
        traffic=lambda: pa.table({"role": ["data"], "collective": ["all_reduce"]}),
        skipped_steps=[],
    )


@pytest.mark.parametrize(("share", "n_reasons"), [(0.02, 0), (0.021, 1)])
def test_an_idle_share_above_two_per_cent_needs_a_clock(share, n_reasons):
    assert len([*refusals.why_not(run_that_idles(share))]) == n_reasons


def timeline(**others):
    """Return what one rank did: an all-reduce of one step, and kernels that were all launched."""
    collectives = SimpleNamespace(
        start=np.array([10]),
        launch=np.array([5]),
        step=np.array([0]),
        seq=np.array([0]),
        kind=np.array(["all_reduce"], object),
        stream=np.array([1]),
        is_inline=np.array([False]),
    )
    values = {
        "n_comm_outside_steps": 0,
        "comm_stream_kernels_ns": 0,
        "n_comm_stream_kernels": 0,
        "n_without_launch": 0,
    }
    values |= {"start": np.arange(100), "launch": np.arange(1000, 1100)}
    return SimpleNamespace(**(values | others), collectives=collectives)


def reasons_of(*timelines):
    columns = {"step": [0], "is_matched": [True], "comm_id": ["all_reduce/0"]}
    run = SimpleNamespace(collectives=lambda: pa.table(columns))
    # One step of 1000 ns.
    windows = SimpleNamespace(steps=np.array([0]), edges=np.array([[0, 0], [1000, 1000]]))
    return [*refusals.why_not_replayable(run, timelines, windows)]


@pytest.mark.parametrize(("kernels_ns", "n_reasons"), [(10, 0), (11, 1)])
def test_kernels_of_a_hook_take_one_per_cent_of_a_step_at_most(kernels_ns, n_reasons):
    assert len(reasons_of(timeline(), timeline(comm_stream_kernels_ns=kernels_ns))) == n_reasons


@pytest.mark.parametrize(("n_without", "n_reasons"), [(2, 0), (3, 1)])
def test_one_per_cent_of_the_launches_may_be_missing(n_without, n_reasons):
    # Of 200 operations on two ranks.
    assert len(reasons_of(timeline(), timeline(n_without_launch=n_without))) == n_reasons


@pytest.mark.parametrize(("compute_ns", "is_contradicted"), [(1000.0, False), (1000.1, True)])
def test_a_step_without_communication_is_no_shorter_than_its_compute(compute_ns, is_contradicted):
    replay = SimpleNamespace(limits=[[1000.0]], least_compute_ns=lambda most_slower: compute_ns)
    assert (refusals.contradiction(replay) is not None) == is_contradicted


def test_compute_may_be_slower_by_half_beside_communication():
    asked = []

    def least_compute_ns(max_slowdown):
        asked.append(max_slowdown)
        return 1000.0

    replay = SimpleNamespace(limits=[[1000.0]], least_compute_ns=least_compute_ns)
    assert refusals.contradiction(replay) is None
    assert asked == [1.5]


# --- GPUs that wait for launches ------------------------------------------------------------------
def starved_run(input_ns, launch_ns, blocked_ns):
    row = {"rank": 0, "in_summary": True, "wall_ns": 10_000, "idle_input_ns": input_ns}
    row |= {"idle_launch_ns": launch_ns, "idle_blocked_ns": blocked_ns}
    return run_of_steps(pa.Table.from_pylist([row]))


@pytest.mark.parametrize(("input_ns", "n_causes"), [(249, 1), (250, 2)])
def test_a_cause_of_a_quarter_of_the_waiting_is_named(input_ns, n_causes):
    (causes,) = starving.starved_causes(starved_run(input_ns, 1000 - input_ns, 0))
    assert len(causes) == n_causes


def starved_replay(share):
    """Return a replay of two ranks of which one waits for launches for a share of its step."""
    captured = SimpleNamespace(
        program=SimpleNamespace(n_ranks=2), windows=SimpleNamespace(ranks=(0, 1))
    )
    return SimpleNamespace(
        captured=captured,
        has_gradients=False,
        nominal_bytes_per_s=None,
        world_size=2,
        starved_shares=np.array([share, 0.0]),
        starved_causes=[("launch-bound",), ()],
        starving=SimpleNamespace(slower=[0], n_late_steps={}, n_steps=3),
        rank_names=SimpleNamespace(name=str),
        is_answered_balanced=False,
    )


@pytest.mark.parametrize(("share", "n_reasons"), [(0.02, 0), (0.0201, 1)])
def test_gpus_wait_for_launches_for_two_per_cent_of_a_step_at_most(share, n_reasons):
    assert len([*refusals._why_not_any(starved_replay(share), Knobs(prefetch=True))]) == n_reasons


def launching_replay(launching_ns, high_ns):
    prediction = SimpleNamespace(high_ns=high_ns)
    return SimpleNamespace(
        launch_bound_share=lambda _: 0.0,
        launching_ns=launching_ns,
        predict=lambda _, **__: prediction,
        longest_work_ns=high_ns,
        starved_shares=np.array([0.0]),
    )


@pytest.mark.parametrize(("launching_ns", "is_refused_then"), [(1250.0, False), (1251.0, True)])
def test_hosts_may_launch_a_quarter_longer_than_the_step(
    monkeypatch, launching_ns, is_refused_then
):
    monkeypatch.setattr(scenarios, "why_not_knobs", lambda *_: None)
    reason = scenarios.why_refused(launching_replay(launching_ns, 1000.0), Knobs(prefetch=True))
    assert (reason is not None) == is_refused_then


@pytest.mark.parametrize(("launching_ns", "is_refused_then"), [(1000.0, False), (1001.0, True)])
def test_hosts_that_wait_for_no_rank_launch_no_longer_than_the_step(
    monkeypatch, launching_ns, is_refused_then
):
    monkeypatch.setattr(scenarios, "why_not_knobs", lambda *_: None)
    reason = scenarios.why_refused(launching_replay(launching_ns, 1000.0), Knobs(no_wait=True))
    assert (reason is not None) == is_refused_then


# --- bandwidths -----------------------------------------------------------------------------------
def replay_with_bandwidth(own, most, n_ranks=2):
    captured = SimpleNamespace(program=SimpleNamespace(n_ranks=n_ranks))
    values = {"bus_bytes_per_s": own, "nominal_bytes_per_s": most}
    return SimpleNamespace(captured=captured, has_gradients=True, **values)


@pytest.mark.parametrize(
    ("n_ranks", "own", "is_beyond"),
    [(2, 450 * GB, False), (2, 451 * GB, True), (3, 562 * GB, False), (3, 563 * GB, True)],
)
def test_from_three_ranks_on_a_switch_gives_a_quarter_more(n_ranks, own, is_beyond):
    # 1.25 x 450 GB/s are 562.5 GB/s.
    replay = replay_with_bandwidth(own, 450 * GB, n_ranks)
    assert (refusals.beyond_nominal(replay) is not None) == is_beyond


@pytest.mark.parametrize(("own", "is_beyond"), [(9.9e6, True), (10e6, False)])
def test_no_network_is_slower_than_ten_megabytes_per_second(own, is_beyond):
    assert (refusals.beyond_nominal(replay_with_bandwidth(own, None)) is not None) == is_beyond


def replay_with_ratio(ratio):
    return SimpleNamespace(
        roles=("data",),
        bus_bandwidth_of=lambda role: 100 * GB,
        bandwidth_ratio=lambda asked, role: ratio,
        is_waited_for=lambda role: False,
        is_sharded=False,
    )


@pytest.mark.parametrize(("ratio", "n_reasons"), [(1.03, 0), (1.031, 1)])
def test_a_link_is_slower_from_three_per_cent_on(ratio, n_reasons):
    found = [
        *refusals._why_not_bandwidth(replay_with_ratio(ratio), Knobs(bandwidth_bytes_per_s=99 * GB))
    ]
    assert len(found) == n_reasons


@pytest.mark.parametrize(("factor", "n_reasons"), [(1.25, 0), (1.251, 1)])
def test_no_link_is_faster_than_the_fastest_and_a_quarter(factor, n_reasons):
    most = max(link.nominal_bytes_per_s or 0.0 for link in knobs.LINKS.values())
    asked = Knobs(bandwidth_bytes_per_s=factor * most)
    assert len([*refusals._why_not_bandwidth(replay_with_ratio(1.0), asked)]) == n_reasons


@pytest.mark.parametrize(("own", "is_kept"), [(0.81, True), (0.79, False)])
def test_a_link_within_a_fifth_of_the_captured_one_is_that(own, is_kept):
    link = knobs.LINKS["nvlink4"]
    facts = SimpleNamespace(
        roles=("data",), bus_bandwidth_of=lambda role: own * link.bus_bytes_per_s, known_link=None
    )
    target = CapturedFacts.target(facts, Knobs(link="nvlink4"))
    assert target == (None if is_kept else link.bus_bytes_per_s)


# --- buckets --------------------------------------------------------------------------------------
def replay_with_gradients(n_gradients, n_steps=1, **others):
    """Return a replay whose gradients have a MiB each, so that a cap of one gives each a bucket."""
    each = Gradients(np.full(n_gradients, float(MIB)), np.zeros((n_gradients, 1)), is_exact=True)
    steps = SimpleNamespace(step=np.array([0]), is_gradient=np.array([True]))
    values = {"n_bursts": 1, "gradient_bytes": 1.0, "sent_share": None, "lag_share": 0.0}
    captured = SimpleNamespace(steps=range(n_steps), program=steps)
    return SimpleNamespace(gradients=[each], captured=captured, **(values | others))


@pytest.mark.parametrize(
    ("replay", "n_reasons"),
    [
        (replay_with_gradients(128), 0),
        (replay_with_gradients(129), 1),
        (replay_with_gradients(100, n_steps=25), 0),  # 2 500 in all
        (replay_with_gradients(61, n_steps=41), 1),  # 2 501
        (replay_with_gradients(1, sent_share=0.75), 0),
        (replay_with_gradients(1, sent_share=0.749), 1),
        (replay_with_gradients(1, lag_share=1.0), 0),
        (replay_with_gradients(1, lag_share=1.01), 1),
    ],
)
def test_buckets_are_refused_beyond_each_of_their_limits(replay, n_reasons):
    assert len([*refusals._why_not_buckets(replay, Knobs(bucket_mb=1))]) == n_reasons


def is_own(captured_bytes, new_sizes, *, is_exact, cap_mib=1.0):
    """Tell whether new buckets are those that were captured."""
    own = Gradients(np.array(new_sizes), np.zeros((len(new_sizes), 1)), is_exact=is_exact)
    n_bytes = np.array(captured_bytes)
    captured = SimpleNamespace(n_bytes=n_bytes, transfer_ns=n_bytes[:, np.newaxis])
    each = np.arange(n_bytes.size)
    buckets = rebucket._NewBuckets(0, each, own, np.arange(own.n_bytes.size), own.n_bytes)
    return rebucket._are_captured(captured, buckets, cap_mib)


@pytest.mark.parametrize(("moved", "expected"), [(14.9, True), (15.1, False)])
def test_buckets_are_those_captured_within_15_per_cent_of_the_largest(moved, expected):
    sizes = [100.0 - moved, 60.0 + moved]
    assert is_own([100.0, 60.0], sizes, is_exact=True) == expected


@pytest.mark.parametrize(("more", "expected"), [(1.059, True), (1.061, False)])
def test_a_cap_may_exceed_full_buckets_by_6_per_cent(more, expected):
    sizes = [float(MIB)] * 3
    assert is_own(sizes, sizes, is_exact=False, cap_mib=more) == expected


@pytest.mark.parametrize(("n_new", "expected"), [(53, True), (54, False)])
def test_estimated_buckets_differ_by_6_per_cent_in_number_at_most(n_new, expected):
    # 6 % of 50 buckets are 3.
    new_sizes = [50.0 * MIB / n_new] * n_new
    assert is_own([float(MIB)] * 50, new_sizes, is_exact=False) == expected


# --- gradients ------------------------------------------------------------------------------------
@pytest.mark.parametrize(("angle", "expected"), [(0.640, True), (0.647, False)])
def test_kernels_are_gradients_from_a_correlation_of_0_8_on(angle, expected):
    # Two directions without a mean, at right angles: the correlation is the cosine of the angle,
    # and 0.8 that of 0.6435.
    sizes, across = np.array([1.0, -1, 1, -1]), np.array([1.0, 1, -1, -1])
    lengths = math.cos(angle) * sizes + math.sin(angle) * across
    assert gradients.is_alike(lengths + 9, sizes + 9) == expected


def scaling_timeline(shorter):
    """Return a rank of three kernels, the first two launched before a short last collective."""
    collectives = SimpleNamespace(
        start=np.array([0, 2000]),
        end=np.array([1000, 2000 + shorter]),
        launch=np.array([15, 25]),
        step=np.array([0, 0]),
        phase=np.array([1, 1]),
    )
    launches = np.array([10, 20, 30])
    return SimpleNamespace(
        collectives=collectives,
        latest_launch=launches,
        step=np.zeros(3, np.int64),
        phase=np.ones(3, np.int64),
        name=np.zeros(3, np.int64),
        names=("mul",),
    )


@pytest.mark.parametrize(("shorter_ns", "n_rows"), [(19, 1), (20, 2)])
def test_a_collective_of_two_per_cent_of_the_longest_is_of_gradients(
    monkeypatch, shorter_ns, n_rows
):
    monkeypatch.setattr(gradients, "_BACKWARD", 1)
    assert gradients._scaling_rows(scaling_timeline(shorter_ns), np.array([0, 1])).size == n_rows


def found_by_kernels(monkeypatch, n_kernels, sizes, n_buckets=1):
    """Return what `_ready_by_scaling` finds of so many kernels that scale gradients."""
    rows = np.arange(n_kernels)
    monkeypatch.setattr(gradients, "_scaling_rows", lambda *_: rows)
    rank = SimpleNamespace(start=rows * 100, end=rows * 100 + 10 + rows)
    copies = [gradients.GradientCopies(np.arange(sizes.size), sizes)]
    captured = SimpleNamespace(timelines=[rank])
    return gradients._ready_by_scaling(captured, np.arange(n_buckets), copies, sizes)


@pytest.mark.parametrize(("n_copies", "is_found"), [(1, False), (2, True)])
def test_two_copies_are_needed_to_be_of_gradients(monkeypatch, n_copies, is_found):
    sizes = 10.0 + np.arange(n_copies)
    assert (found_by_kernels(monkeypatch, n_copies, sizes) is not None) == is_found


@pytest.mark.parametrize(("n_kernels", "is_found"), [(12, True), (13, False)])
def test_three_times_as_many_kernels_as_gradients_are_the_most(monkeypatch, n_kernels, is_found):
    sizes = 10.0 + np.arange(4)
    assert (found_by_kernels(monkeypatch, n_kernels, sizes) is not None) == is_found


@pytest.mark.parametrize(("n_kernels", "is_found"), [(3, False), (4, True)])
def test_four_kernels_a_bucket_tell_sizes(monkeypatch, n_kernels, is_found):
    rows = np.arange(n_kernels)
    monkeypatch.setattr(gradients, "_scaling_rows", lambda *_: rows)
    rank = SimpleNamespace(
        collectives=SimpleNamespace(launch=np.array([1000])),
        launch=rows,
        start=rows * 100,
        end=rows * 100 + 10 + rows,
    )
    captured = SimpleNamespace(timelines=[rank])
    found = gradients._gradients_by_kernels(captured, np.array([0]), np.array([64.0]))
    assert (found is not None) == is_found


@pytest.mark.parametrize(("n", "n_rows"), [(20_000, 20_000), (20_001, 20_000)])
def test_twenty_thousand_copies_in_a_row_are_the_most(n, n_rows):
    is_copy = np.ones(n, np.bool_)
    rank = SimpleNamespace(start=np.arange(n), is_copy=is_copy, end_of_copies=np.full(n, n))
    assert gradients._copies_after(rank, np.array([0])).size == n_rows


# --- work beside communication --------------------------------------------------------------------
def contention(*, ratio=0.2, n_kernels=100, share=1.0, covered_share=0.5):
    return Contention(Compared(n_kernels, ratio, share), 5000.0, 1000.0, covered_share, 1e6, 50.0)


@pytest.mark.parametrize(
    ("measured", "is_measured"),
    [
        (contention(covered_share=0.0199), False),
        (contention(covered_share=0.02), True),
        (contention(ratio=1.5), True),
        (contention(ratio=1.51), False),
    ],
)
def test_a_slowdown_is_measured_within_its_limits(measured, is_measured):
    assert slowdowns(measured, 30e9, None).is_measured == is_measured


@pytest.mark.parametrize(("tenths", "is_measured"), [(0.99, True), (1.01, False)])
def test_a_slowdown_is_that_of_links_a_tenth_of_the_way_to_nvlink(tenths, is_measured):
    # From 30 to 300 GB/s the way is one decade: a tenth of it is the factor 10^0.1.
    target = 30e9 * 10 ** (tenths / 10)
    assert slowdowns(contention(), 30e9, target).is_measured == is_measured


def test_over_host_memory_3800_ns_of_the_delay_are_in_the_operation():
    # Without a delay of its own, the assumed one less 3 800 ns is left between operations.
    measured = contention()._replace(delay_ns=None)
    (_, after), *_ = slowdowns(measured, 30e9, None).pairs
    assert assumed(30e9) == NARROW
    assert after.delay_ns == NARROW.delay_ns - 3800


def program_of_one_piece(work_ns, n_begun):
    """Return a rank that works for so long between two windows and begins so many operations."""
    places = np.zeros((4, 2, 1))
    places[0, 1, 0], places[2, 1, 0] = work_ns, n_begun
    nothing, column = np.empty(0), np.empty((0, 1))
    return StepProgram(
        kind=np.array([WINDOW, WINDOW]),
        subject=np.array([0, 1]),
        is_passed=np.ones((2, 1), np.bool_),
        progress=places,
        step=np.empty(0, np.int64),
        lag_ns=column,
        transfer_ns=column,
        n_bytes=nothing,
        chain=np.empty(0, np.int64),
        is_gradient=np.empty(0, np.bool_),
        role=np.empty(0, object),
        group=np.empty((0, 1), np.int64),
        begin_ns=np.zeros(1),
        late_during_work_ns=nothing,
        longer_during_work=nothing,
    )


@pytest.mark.parametrize(
    ("work_ns", "slow"),
    [
        (4000.0, 1 + 500 / 1000),  # four operations in 4 us: one each 1000 ns
        (3999.0, 1 + 500 / 1000),  # no denser than that
        (4100.0, 1 + 500 / 1025),
    ],
)
def test_an_operation_takes_a_microsecond_at_least(work_ns, slow):
    setting = SimulationSetting(after=Slowing(0.0, 500.0))
    _, slows = _work_between(program_of_one_piece(work_ns, 4.0), [setting])
    assert slows[0, 1, 0] == pytest.approx(slow, rel=1e-12)


# --- what waits for a collective ------------------------------------------------------------------
def waiting_rank(start, *, free, launch):
    """Return a rank whose second kernel begins behind a collective that ends at 100 000 ns."""
    none = np.zeros(1, np.bool_)
    comm = SimpleNamespace(
        start=np.array([10_000]), end=np.array([100_000]), launch=np.array([1]), is_inline=none
    )
    return SimpleNamespace(
        collectives=comm,
        start=np.array([0, start]),
        latest_launch=np.array([0, launch]),
        launch=np.array([0, launch]),
        end_before=np.array([BEFORE_ALL_NS, free]),
    )


@pytest.mark.parametrize(
    ("rank", "waits"),
    [
        (waiting_rank(149_999, free=5_000, launch=2), True),
        (waiting_rank(150_000, free=5_000, launch=2), False),
        (waiting_rank(100_010, free=79_999, launch=2), True),
        (waiting_rank(100_010, free=80_000, launch=2), False),
        (waiting_rank(100_010, free=5_000, launch=79_999), True),
        (waiting_rank(100_010, free=5_000, launch=80_000), False),
    ],
)
def test_an_operation_waited_if_it_stood_still_for_20_us_and_began_within_50(rank, waits):
    joins = program._find_joins(rank, np.zeros(1, np.int64))
    assert joins.has_waited.tolist() == [waits]


WORDS = {"severity": "low", "title": "", "action": "", "advice": "", "evidence": "{}"}


# --- findings -------------------------------------------------------------------------------------
@pytest.mark.parametrize(("n_kernels", "is_opened"), [(500_000, True), (500_001, False)])
def test_findings_of_up_to_half_a_million_kernels_are_replayed(monkeypatch, n_kernels, is_opened):
    opened = []
    monkeypatch.setattr(answer, "opened_replay", lambda run: opened.append(run) or "not now")
    monkeypatch.setattr(answer, "_limit_bounds", lambda run, rows, opened: rows)
    monkeypatch.setattr(answer, "advised_change", lambda *_: None)
    finding = {"id": "slow-link", "saving_ns_per_step": 1.0, "expected_ns_per_step": None}
    run = SimpleNamespace(
        header=SimpleNamespace(gpu_names=("NVIDIA H200",)),
        ranks=pa.table({"n_kernels": [n_kernels]}),
    )
    answer.with_expected_savings(run, FINDINGS.from_rows([WORDS | finding]))
    assert bool(opened) == is_opened
