"""The simulation against a slow and plain one, and what must hold for any program."""

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra.numpy import arrays
from msgspec.structs import replace

from nsyspipe.analysis.kernels import Slowing
from nsyspipe.replay.simulate import (
    JOIN,
    NO_SLOWING,
    READY,
    WINDOW,
    SimulationSetting,
    StepProgram,
    simulate,
)

N_RANKS = st.integers(1, 3)
TIMES = st.integers(0, 50)


@st.composite
def programs(draw):
    """Windows with collectives in order of launch, each waited for somewhere after it began, by some ranks there alone."""
    n_ranks = draw(N_RANKS)
    markers = [(WINDOW, 0)]
    n_windows, n_collectives, open_ones = 1, 0, []
    for _ in range(draw(st.integers(1, 10))):
        kind = draw(st.sampled_from((WINDOW, READY, JOIN)))
        if kind == WINDOW:
            markers.append((WINDOW, n_windows))
            n_windows += 1
        elif kind == READY:
            markers.append((READY, n_collectives))
            open_ones.append(n_collectives)
            n_collectives += 1
        elif open_ones:
            markers.append((JOIN, open_ones.pop(draw(st.integers(0, len(open_ones) - 1)))))
    markers.append((WINDOW, n_windows))

    def matrix(n, values=TIMES):
        return draw(arrays(np.int64, (n, n_ranks), elements=values)).astype(np.float64)

    work = np.cumsum(matrix(len(markers)), axis=0)
    begun = np.cumsum(matrix(len(markers), st.integers(0, 3)), axis=0)
    kind = np.array([kind for kind, _ in markers])
    return StepProgram(
        kind=kind,
        subject=np.array([which for _, which in markers]),
        is_passed=(kind != JOIN)[:, np.newaxis] | (matrix(len(markers), st.integers(0, 3)) > 0),
        progress=np.stack((work, np.zeros_like(work), begun, np.zeros_like(begun))),
        step=np.zeros(n_collectives, np.int64),
        lag_ns=matrix(n_collectives),
        transfer_ns=matrix(n_collectives),
        n_bytes=np.full(n_collectives, np.nan),
        chain=np.zeros(n_collectives, np.int64),
        is_gradient=np.ones(n_collectives, np.bool_),
        role=np.full(n_collectives, "data", object),
        group=matrix(n_collectives, st.integers(0, 1)).astype(np.int64),
        begin_ns=matrix(1)[0],
        late_during_work_ns=matrix(n_collectives)[:, 0],
        longer_during_work=matrix(n_collectives)[:, 0] / 50,
    )


def one_by_one(program, slowing):
    n_ranks = program.n_ranks
    now = program.begin_ns.tolist()
    busy = [[] for _ in range(n_ranks)]
    free, ends, edges = [-np.inf] * n_ranks, {}, {}
    work, _, begun, _ = program.progress
    before, begun_before = work[0].tolist(), begun[0].tolist()
    markers = zip(program.kind, program.subject, work.tolist(), begun, strict=True)
    for at, (kind, which, work, begun) in enumerate(markers):
        for rank in range(n_ranks):
            ahead = work[rank] - before[rank]
            n_begun = begun[rank] - begun_before[rank]
            # An operation takes 1 us at least: of shorter ones a piece of work holds no more than
            # fit.
            density = n_begun / max(ahead, 1000 * max(n_begun, 1))
            now[rank] = moved_on(
                now[rank], ahead, busy[rank], 1 + slowing.ratio + slowing.delay_ns * density
            )
        before, begun_before = work, begun
        if kind == READY:
            starts = [max(free[r], now[r]) + program.lag_ns[which][r] for r in range(n_ranks)]
            works = [starts[r] < now[r] + work_until_join(program, at, r) for r in range(n_ranks)]
            late = program.late_during_work_ns[which]
            starts = [one + late * beside for one, beside in zip(starts, works, strict=True)]
            ends[which] = []
            for rank, group in enumerate(program.group[which].tolist()):
                peers = [at for at in range(n_ranks) if program.group[which][at] == group]
                longer = 1 + program.longer_during_work[which] * any(works[at] for at in peers)
                last = max(starts[at] for at in peers)
                ends[which].append(
                    max(last + program.transfer_ns[which][rank] * longer, starts[rank])
                )
            free = ends[which]
            for rank in range(n_ranks):
                busy[rank].append((starts[rank], free[rank]))
        elif kind == JOIN:
            now = [
                max(now[r], ends[which][r]) if program.is_passed[at, r] else now[r]
                for r in range(n_ranks)
            ]
        else:
            edges[int(which)] = list(now)
    return np.array([edges[at] for at in sorted(edges)])


def work_until_join(program, at, rank):
    waits = (program.kind[at:] == JOIN) & program.is_passed[at:, rank]
    return (
        program.progress[0, at + int(np.argmax(waits)) if waits.any() else -1, rank]
        - program.progress[0, at, rank]
    )


def moved_on(now, work, busy, slow_by):
    for start, end in busy:
        alone = min(max(start - now, 0), work)
        now, work = now + alone, work - alone
        if now >= start:
            slow = min(max(end - now, 0) / slow_by, work)
            now, work = now + slow * slow_by, work - slow
    return now + work


@pytest.mark.slow
@given(programs(), st.sampled_from((0.0, 0.25, 1.0)), st.sampled_from((0.0, 300.0)))
def test_it_is_what_moving_rank_by_rank_gives(program, slowdown, delay):
    slowing = Slowing(slowdown, delay)
    assert simulate(program, [SimulationSetting(NO_SLOWING, slowing)])[0] == pytest.approx(
        one_by_one(program, slowing), abs=1e-6
    )


@pytest.mark.slow
@given(programs())
def test_settings_side_by_side_do_not_touch_each_other(program):
    settings = [
        SimulationSetting(NO_SLOWING, Slowing(c, 100 * c), program.transfer_ns * f)
        for c in (0.0, 0.5)
        for f in (1.0, 2.0)
    ]
    together = simulate(program, settings)
    assert together == pytest.approx(
        np.concatenate([simulate(program, [one]) for one in settings]), abs=1e-6
    )


@pytest.mark.slow
@given(programs())
def test_a_shift_of_all_clocks_shifts_all_windows_and_no_work_is_lost(program):
    alone, slowed = simulate(
        program, [SimulationSetting(), SimulationSetting(NO_SLOWING, Slowing(0.1))]
    )
    (shifted,) = simulate(
        replace(program, begin_ns=program.begin_ns + 1000),
        [SimulationSetting(NO_SLOWING, Slowing(0.1))],
    )
    assert shifted == pytest.approx(slowed + 1000)
    assert (
        np.diff(alone, axis=0)
        >= np.diff(program.progress[0, program.kind == WINDOW], axis=0) - 1e-6
    ).all()


@given(programs())
def test_longer_transfers_and_more_contention_make_no_window_begin_earlier(program):
    # What begins late beside work, or takes longer there, gains where it is moved behind that work.
    even = replace(
        program,
        late_during_work_ns=0 * program.late_during_work_ns,
        longer_during_work=0 * program.longer_during_work,
    )
    longer = SimulationSetting(transfer_ns=program.transfer_ns + 7)
    less, more = (SimulationSetting(NO_SLOWING, Slowing(ratio)) for ratio in (0.1, 0.6))
    alone, with_longer, with_less, with_more = simulate(
        even, [SimulationSetting(), longer, less, more]
    )
    assert (with_longer >= alone - 1e-6).all()
    assert (with_more >= with_less - 1e-6).all()
