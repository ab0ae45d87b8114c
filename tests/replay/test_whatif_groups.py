"""The groups of a what-if: settings first, no row without a change, bars as long as the step, and links by a part of their name."""

from dataclasses import replace

import pytest

from nsyspipe.errors import OptionError
from nsyspipe.replay.answer import (
    ELSEWHERE,
    GROUPS,
    HARDWARE,
    HERE,
    LIMIT,
    SETTING,
    UNKNOWN,
    Scenario,
    WhatIf,
)
from nsyspipe.replay.knobs import Knobs
from nsyspipe.report.whatif import GROUP_NAMES, headline_sentences, menu, menu_rows, sort_scenarios
from tests.build.plain_steps import MS

CAPTURED_MS, LIMIT_MS = 100.0, 60.0


def scenario(name, step_ms, *, half_range_ms=1.0, place=None, **knobs):
    ends = ((step_ms + side * half_range_ms) * MS for side in (-1, 1))
    gain_ms = CAPTURED_MS - step_ms
    return Scenario(
        name,
        name,
        knobs,
        step_ms * MS,
        *ends,
        1e9 / (step_ms * MS),
        gain_ms,
        gain_ms * MS,
        link_place=place,
    )


def answer(*scenarios):
    return WhatIf("id", "run", 5, CAPTURED_MS * MS, LIMIT_MS * MS, 40.0 * MS, 0.0, scenarios, ())


BUCKETS = scenario("buckets", 90.0, bucket_mb=25.0)
OTHER_MACHINE = scenario("other machine", 70.0, place=ELSEWHERE, link="nvlink5")
OVERLAP = scenario("overlap", 65.0, perfect_overlap=True)
NOISE = scenario("noise", 99.5, no_grad_copy=True)
AS_NOW = scenario("as now", CAPTURED_MS, place=HERE, link="shm")
ALL = (OVERLAP, OTHER_MACHINE, BUCKETS, NOISE, AS_NOW)


@pytest.mark.parametrize(
    ("changed", "group"),
    [
        (BUCKETS, SETTING),
        (scenario("x", 90.0, no_sync=True), SETTING),
        (OTHER_MACHINE, HARDWARE),
        (scenario("x", 90.0, place=UNKNOWN, link="nvlink4"), HARDWARE),
        (scenario("x", 90.0, bandwidth_factor=2.0), HARDWARE),
        # A link of the machine is a setting only if it is faster than the one in use.
        (scenario("x", 90.0, place=HERE, link="nvlink4"), SETTING),
        (scenario("x", 110.0, place=HERE, link="shm"), HARDWARE),
        (OVERLAP, LIMIT),
        (scenario("x", 90.0, no_wait=True), LIMIT),
        (scenario("x", 90.0, no_wait=True, bucket_mb=25.0), LIMIT),
    ],
)
def test_a_change_is_a_setting_other_hardware_or_a_limit(changed, group):
    assert changed.group == group


def test_settings_come_first_though_hardware_and_limits_save_more():
    labels = [row.label for row in menu_rows(answer(*ALL), ALL, is_verbose=False)]
    headings = [labels.index(GROUP_NAMES[group]) for group in GROUPS]
    assert headings == sorted(headings)
    assert labels.index("buckets") == headings[0] + 1
    assert labels[0] == "as captured"


def test_a_row_without_a_change_is_only_shown_on_request():
    found = answer(*ALL)
    short, full = (
        {row.label for row in menu_rows(found, ALL, is_verbose=verbose)}
        for verbose in (False, True)
    )
    assert {"noise"} <= full - short
    assert not any(row.startswith(("noise", "as now", "shm")) for row in short)
    assert [one.id for one in sort_scenarios(found).unchanged] == ["as now"]
    assert [one.id for one in sort_scenarios(found).within_noise] == ["noise"]


def test_a_group_without_rows_has_no_heading():
    labels = [row.label for row in menu_rows(answer(BUCKETS), (BUCKETS, NOISE), is_verbose=False)]
    assert GROUP_NAMES[HARDWARE] not in labels


def test_bars_are_as_long_as_the_step_time():
    table = menu(answer(*ALL), ALL, is_verbose=False, has_bars=True)
    bars = {row[0].strip(): len(row[-1]) for row in table.rows}
    longest = bars["as captured"]
    assert bars["buckets"] == round(0.9 * longest)
    assert bars["zero communication time"] == round(LIMIT_MS / CAPTURED_MS * longest)
    assert bars[GROUP_NAMES[SETTING]] == 0


def test_the_first_sentence_is_about_a_setting():
    first, *others = headline_sentences(answer(*ALL))
    assert "buckets" in first
    assert any("nvlink5" in sentence for sentence in others)
    assert not any("overlap" in sentence for sentence in (first, *others))


@pytest.mark.parametrize(
    ("name", "offered", "not_offered"),
    [
        ("nvlink", ("nvlink4 (H100, H200)", "nvlink5 (B200)"), "pcie"),
        ("NVLINK", ("nvlink4 (H100, H200)",), "pcie"),
        ("pcie", ("pcie4x16", "pcie5x16"), "nvlink"),
        ("roce", ("roce-400",), "infiniband"),
    ],
)
def test_a_part_of_a_name_is_answered_with_the_links_that_it_may_mean(name, offered, not_offered):
    with pytest.raises(OptionError) as raised:
        Knobs(link=name)
    assert all(link in raised.value.fix for link in offered)
    assert not_offered not in raised.value.fix


@pytest.mark.parametrize("name", ["foo", "nvlnk4", ""])
def test_another_name_is_never_corrected_to_another_link(name):
    with pytest.raises(OptionError) as raised:
        Knobs(link=name)
    assert "--bandwidth" in raised.value.fix
    assert "nvlink4 (H100, H200)" in raised.value.found


def test_a_refused_change_keeps_its_group():
    refused = replace(OTHER_MACHINE, gain_pct=None, step_time_ns=None, refused="why")
    assert refused.group == HARDWARE
