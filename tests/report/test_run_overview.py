"""The first screen of a run's page: its numbers are those of the terminal's, in the order in which they are shown."""

import pytest
from msgspec.structs import replace

from nsyspipe import load
from nsyspipe.findings.judge import CAUSES
from nsyspipe.report import first_screen, overview, words
from nsyspipe.report.blocks import Bars, Tiles
from nsyspipe.report.explanations.subjects import explain_finding
from nsyspipe.report.findings import findings_of
from nsyspipe.report.html import run_overview as page
from nsyspipe.report.html.page import Chart, Columns, Fold
from nsyspipe.report.overview import (
    BOUNDED,
    CONDITIONAL,
    ESTIMATED,
    UNBOUNDED,
    Recommendation,
    Recommendations,
)
from nsyspipe.report.units import ms_text
from tests.build.tools import Changed, finding

MS = 10**6
STEP_NS = 100 * MS


@pytest.fixture
def change(steady_run):
    """Return a function that makes a recommendation for a step of 100 ms: what it saves, and the range of the step time then."""
    (some_finding,) = findings_of(Changed(steady_run, findings=[finding(1)]))

    def make(name="single-bucket", known=ESTIMATED, saving_ms=20, low_ms=75, high_ms=90):
        saving_ns = None if saving_ms is None else saving_ms * MS
        step_ns = None if saving_ns is None else STEP_NS - saving_ns
        ends = (None, None) if low_ms is None else (low_ms * MS, high_ms * MS)
        return Recommendation(replace(some_finding, id=name), known, saving_ns, step_ns, *ends)

    return make


def screen_of(run):
    return [*page.overview_blocks(run, run.telling_ranks(64))]


def of_kind(kind, blocks):
    for block in blocks:
        if isinstance(block, kind):
            yield block
        if isinstance(block, Columns):
            for column in block.columns:
                yield from of_kind(kind, column)


@pytest.fixture(scope="module")
def straggler(real):
    return load(sorted(real.glob("ddp-2gpu-straggler_[0-9].sqlite")), jobs=1)


@pytest.fixture(scope="module")
def shm(real):
    return load(sorted(real.glob("ddp-4gpu-shm_[0-9].sqlite")), jobs=1)


@pytest.mark.slow
def test_the_headline_is_the_first_recommendation_of_the_terminal(shm):
    (answer,) = of_kind(page.Answer, screen_of(shm))
    first = overview.recommendations_of(shm).first
    assert (answer.id, answer.headline) == (first.finding.id, first.finding.headline)
    assert not answer.is_doubt
    assert answer.effect.saving == ms_text(first.saving_ns, 3)


def test_the_screen_has_one_step_time(shm):
    blocks = screen_of(shm)
    step = overview.step_time_of(shm)
    (answer,), (tiles,) = of_kind(page.Answer, blocks), of_kind(Tiles, blocks)
    (chart,) = of_kind(Chart, blocks)
    step_tile = tiles.tiles[0]
    assert f"{step_tile.value} {step_tile.unit}" == ms_text(step.mean_ns)
    assert f"{answer.effect.now} ms" == ms_text(step.mean_ns)
    assert chart.data["step"] == step.mean_ns


@pytest.mark.parametrize("name", ["shm", "straggler"])
def test_four_tiles_have_the_words_of_the_bars(name, request):
    blocks = screen_of(request.getfixturevalue(name))
    (tiles,), (bars,) = of_kind(Tiles, blocks), of_kind(Bars, blocks)
    assert len(tiles.tiles) == 4
    times = {row.category: row.time for row in bars.rows}
    of_parts = [tile for tile in tiles.tiles if tile.category in times]
    assert [tile.category for tile in of_parts] == ["exposed"]
    assert [f"{tile.value} {tile.unit}" for tile in of_parts] == [times["exposed"]]


def test_the_tile_of_a_straggler_names_the_rank(straggler):
    (tiles,) = of_kind(Tiles, screen_of(straggler))
    delay = tiles.tiles[-1]
    latest = max(straggler.stragglers().to_pylist(), key=lambda row: row["lateness_ns"])
    assert f"rank {latest['rank']}" in delay.meaning
    assert float(delay.value) == pytest.approx(latest["lateness_ns"] / MS, rel=0.01)


def test_a_large_delay_names_its_rank_although_no_straggler_was_found(straggler):
    others = [row for row in straggler.finding_rows if row["id"] != "straggler"]
    (tiles,) = of_kind(Tiles, screen_of(Changed(straggler, finding_rows=others)))
    assert "rank 1" in tiles.tiles[-1].meaning


def test_the_legend_of_ranks_has_every_part_that_their_bars_draw(shm, straggler):
    for run in (shm, straggler):
        (chart,) = of_kind(Chart, screen_of(run))
        drawn = {name for row in chart.data["ranks"] for name, ns in row["parts"].items() if ns}
        assert drawn <= {category for category, _ in chart.legend}, run


def test_one_rank_has_four_tiles_none_of_them_of_communication(real):
    (tiles,) = of_kind(Tiles, screen_of(load(real / "baseline.sqlite")))
    assert [tile.category for tile in tiles.tiles] == [None, "idle", "copies", None]


def test_below_the_ranks_stands_the_simulated_step_with_its_range(shm):
    first = overview.recommendations_of(shm).first
    (chart,) = of_kind(Chart, screen_of(shm))
    assert chart.data["after"] == {"ns": first.step_ns, "low": first.low_ns, "high": first.high_ns}


def test_without_an_estimate_no_step_is_drawn_below_the_ranks(shm):
    found = overview.recommendations_of(shm)
    bounded = replace(
        found, first=replace(found.first, saving_kind=BOUNDED, low_ns=None, high_ns=None)
    )
    step = overview.step_time_of(shm)
    (chart,) = of_kind(Chart, page.rank_blocks(shm, step, bounded, [0]))
    assert "after" not in chart.data


def test_an_estimate_has_a_range_and_no_upper_bound(change):
    effect = page.effect_of(change(), STEP_NS)
    assert (effect.saving, effect.share, effect.qualifier) == ("20.0 ms", "20%", "")
    assert (effect.now, effect.then, effect.step_range) == ("100.0", "80.0 ms", "75.0 to 90.0")


def test_an_upper_bound_is_told_apart_from_an_estimate(change):
    effect = page.effect_of(change(known=BOUNDED, low_ms=None), STEP_NS)
    assert (bool(effect.qualifier), effect.step_range, effect.saving) == (True, "", "20.0 ms")


def test_a_saving_that_needs_an_interconnect_says_so(change):
    conditions = [
        page.effect_of(change(known=known), STEP_NS).condition for known in (CONDITIONAL, ESTIMATED)
    ]
    assert [bool(condition) for condition in conditions] == [True, False]


def test_nothing_is_known_of_a_change_without_a_bound(change):
    row = page.opportunity_of(change(known=UNBOUNDED, saving_ms=None, low_ms=None), STEP_NS, 1.0)
    assert (row.effect.saving, row.gain, row.saving_range) == ("", None, "")


def test_bars_are_shares_of_the_longest_with_the_ends_of_their_ranges(change):
    # 20 ms of 100 ms are saved, at least 10 and at most 25 ms; the longest is 50 ms.
    changes = [change(), change("slow-link", known=BOUNDED, saving_ms=50, low_ms=None)]
    longest_ns = page.longest_saving(changes, STEP_NS)
    estimate, bound = (page.opportunity_of(one, STEP_NS, longest_ns).gain for one in changes)
    assert longest_ns == 50 * MS
    assert (estimate.share, estimate.low, estimate.high, estimate.is_bound) == (
        0.4,
        0.2,
        0.5,
        False,
    )
    assert (bound.share, bound.low, bound.high, bound.is_bound) == (1.0, None, None, True)


def test_a_range_that_reaches_below_zero_begins_at_zero(change):
    noise = change(saving_ms=1, low_ms=90, high_ms=110)
    row = page.opportunity_of(noise, STEP_NS, page.longest_saving([noise], STEP_NS))
    assert (row.gain.low, row.gain.high) == (0.0, 1.0)


def test_recommendations_stand_in_the_order_of_the_terminal(shm):
    found = overview.recommendations_of(shm)
    (rows,) = of_kind(page.Opportunities, screen_of(shm))
    assert [row.id for row in rows.rows] == [one.finding.id for one in found.shown]
    assert [row.number for row in rows.rows] == [*range(1, len(found.shown) + 1)]
    # After the first the numbers that are shown fall.
    savings_ns = [one.saving_ns for one in found.alternatives]
    assert savings_ns == sorted(savings_ns, reverse=True)


@pytest.mark.slow
def test_everything_that_was_found_is_somewhere_on_the_screen(shm, straggler):
    for run in (shm, straggler):
        blocks = screen_of(run)
        lists = [*of_kind(page.Opportunities, blocks)]
        for fold in of_kind(Fold, blocks):
            lists += of_kind(page.Opportunities, fold.blocks)
        assert {row.id for rows in lists for row in rows.rows} == {
            row["id"] for row in run.finding_rows
        }, run


def test_a_doubt_about_all_figures_stands_above_the_action(shm, monkeypatch):
    monkeypatch.setattr(overview, "is_of_mixed_runs", lambda _: True)
    (answer,) = of_kind(page.Answer, screen_of(shm))
    assert answer.is_doubt
    assert first_screen.MIXED.startswith(answer.headline)
    assert answer.action == overview.recommendations_of(shm).first.finding.headline


def test_with_nothing_to_change_the_headline_says_so(shm):
    nothing = Recommendations(None, (), (), (), None)
    step_ns = words.mean_step_ns(shm.summary().to_pylist()[0])
    checks = overview.checks_of(shm)
    answer = page.answer_of(shm, overview.step_time_of(shm), nothing, checks, step_ns)
    assert (answer.effect, answer.id, answer.is_doubt) == (None, "", False)
    assert answer.headline == first_screen.nothing_sentences(shm, nothing, checks)[0].removesuffix(
        "."
    )


@pytest.mark.parametrize("name", [name for names in CAUSES.values() for name in names])
def test_every_finding_has_its_explanation_on_the_page(name):
    blocks = [*page.explained_blocks(explain_finding(name))]
    assert [*of_kind(page.Explained, blocks)]
