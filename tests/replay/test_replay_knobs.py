"""What can be asked, and in which words."""

from __future__ import annotations

import pytest

from nsyspipe.errors import OptionError
from nsyspipe.replay.answer import Scenario, WhatIf, finding_of
from nsyspipe.replay.knobs import LINKS, Knobs, knobs_of, parse_bandwidth
from nsyspipe.report.whatif import gain_text, headline
from tests.build.ddp_run import MS
from tests.build.make_replay import SINGLE


def test_a_bandwidth_is_read():
    texts = ("300GB/s", "300 gB/s", "2.5TB/s", "900MBs", "1e9B/s", "12kB/s")
    assert [*map(parse_bandwidth, texts)] == [300e9, 300e9, 2.5e12, 900e6, 1e9, 12e3]


NO_BANDWIDTHS = ["", "fast", "300", "-3GB/s", "0GB/s", "300GBps", "1e999GB/s", "GB/s"]
BITS = ["200Gb/s", "200gb/s", "200Gbit/s", "200Gbits/s", "200Gbps", "200 GBit/s"]


@pytest.mark.parametrize("text", NO_BANDWIDTHS + BITS)
def test_what_is_no_bandwidth_is_refused_with_an_example_and_bits_with_both_readings(text):
    with pytest.raises(OptionError, match="bits" if text in BITS else "is no bandwidth") as raised:
        parse_bandwidth(text)
    both = "--bandwidth 25GB/s, or 200GB/s if it was bytes"
    assert raised.value.fix == (both if text in BITS else "--bandwidth 300GB/s")


@pytest.mark.parametrize("changes", [
    {"gradient_dtype": "f64"}, {"bucket_mb": 0.0}, {"bucket_mb": float("nan")},
    {"bandwidth": -1.0}, {"gradient_bytes": 0.0}, {"gradient_bytes": float("inf")}, {"link": "shm", "bandwidth": 1e9},
])  # fmt: skip
def test_what_cannot_be_used_is_refused(changes):
    with pytest.raises(OptionError):
        knobs_of(**changes)


@pytest.mark.parametrize(("changes", "given", "label"), [
    ({"gradient_bytes": 5}, {}, ""),
    ({"bucket_mb": 25, "no_wait": True}, {"bucket_mb": 25, "no_wait": True},
     "bucket_cap_mb=25, no waiting for late ranks"),
    ({"bandwidth": "2.5GB/s", "gradient_dtype": "bf16", "no_grad_copy": True, "perfect_overlap": True},
     {"bandwidth_bytes_per_s": 2.5e9, "gradient_dtype": "bf16", "no_grad_copy": True, "perfect_overlap": True},
     "bandwidth 2.5 GB/s, gradients as bf16, gradient_as_bucket_view=True, perfect overlap"),
    ({"link": "shm", "bucket_mb": 0.5}, {"link": "shm", "bucket_mb": 0.5}, "link shm, bucket_cap_mb=0.5"),
])  # fmt: skip
def test_given_holds_what_is_changed_only_and_is_said_in_the_words_of_the_options(changes, given, label):
    asked = knobs_of(**changes)
    assert (asked.given, asked.label, bool(asked)) == (given, label, bool(given))


@pytest.mark.parametrize(("word", "link", "rate"), [
    ("V100", "nvlink2", 150), ("a100", "nvlink3", 300), ("H100", "nvlink4", 450), ("h200", "nvlink4", 450),
    ("b200", "nvlink5", 900), ("pcie3x16", "pcie3x16", 15.75), ("pcie6x16", "pcie6x16", 121),
    ("InfiniBand-EDR", "infiniband-edr", 12.5), ("infiniband-xdr", "infiniband-xdr", 100),
    ("roce-100", "roce-100", 12.5), ("roce-400", "roce-400", 50),
])  # fmt: skip
def test_links_are_known_by_their_names_and_those_of_gpus(word, link, rate):
    assert knobs_of(link=word).link == link
    assert LINKS[link].nominal_bytes_per_s == pytest.approx(rate * 1e9, rel=0.001)
    assert LINKS[link].bus_bytes_per_s < LINKS[link].nominal_bytes_per_s


def test_a_link_or_a_unit_that_is_not_known_is_answered_with_the_form_that_takes_any():
    with pytest.raises(OptionError, match="is not known") as raised:
        knobs_of(link="carrier-pigeon")
    assert ("--bandwidth" in raised.value.fix, "nvlink3/a100" in raised.value.found) == (True, True)
    with pytest.raises(OptionError, match="is in bytes per second") as raised:
        knobs_of(bandwidth=300)  # meant in GB/s
    assert raised.value.fix == 'bandwidth="300GB/s"'


def test_every_link_says_where_its_figure_is_from():
    assert all(link.source and link.bus_bytes_per_s > 0 for link in LINKS.values())
    assert {name for name, link in LINKS.items() if link.is_measured} == {"nvlink4", "shm"}


# --- the menu -------------------------------------------------------------------------------------
VIEW = SINGLE.changed(has_copies=False)
IDS = {f"link-{name}" for name in ("nvlink5", "nvlink4", "pcie5x16", "pcie4x16", "shm")}
IDS |= {"bucket-25", "bucket-100", "no-grad-copy", "gradient-bf16", "no-wait", "perfect-overlap"}


def test_it_has_every_change_the_largest_gain_first_and_what_is_refused_last(ask):
    found = ask(SINGLE)
    assert {one.id for one in found.scenarios} == IDS
    gains = [one.gain_pct for one in found.scenarios]
    assert gains == sorted(gains, reverse=True)
    for name in ("id", "step_time_ns"):
        assert found.table()[name].to_pylist() == [getattr(one, name) for one in found.scenarios]
    refused = [one.refused is not None for one in ask(VIEW).scenarios]
    assert refused == sorted(refused)
    assert any(refused)


def test_few_steps_are_a_warning_and_enough_are_none(ask):
    found = ask(SINGLE.changed(n_steps=4), no_wait=True)
    (row,) = [one for one in found.problems if one["code"] == "few-steps-to-replay"]
    assert row["severity"] == "warning"
    assert row["message"].startswith("the answers rest on 2 steps")
    assert "few-steps-to-replay" not in [one["code"] for one in ask(SINGLE, no_wait=True).problems]


def test_a_change_names_the_finding_that_advises_it_and_its_bound(ask, loaded):
    by_id = {one.id: one for one in ask(SINGLE).scenarios}
    savings = {row["id"]: row["saving_ns_per_step"] for row in loaded(SINGLE).findings().to_pylist()}
    # Four copies in a row may be of anything, and no rank is late.
    named = {"bucket-25": "single-bucket", "perfect-overlap": "comm-bound", "no-grad-copy": None, "no-wait": None}
    for name, finding in named.items():
        assert (by_id[name].finding, by_id[name].finding_saving_ns) == (finding, savings.get(finding))
    # Of each step 80 ms are exposed.
    assert by_id["perfect-overlap"].finding_saving_ns == pytest.approx(80 * MS)
    # What is refused names it too; several changes answer none.
    (refused,) = ask(VIEW.changed(datatype="bf16"), bucket_mb=25).scenarios
    assert (refused.refused is not None, refused.finding) == (True, "single-bucket")
    (several,) = ask(SINGLE, bucket_mb=25, no_grad_copy=True).scenarios
    assert (several.finding, several.finding_saving_ns) == (None, None)


@pytest.mark.parametrize(("knobs", "finding"), [
    # The finding speaks of 450 GB/s.
    (Knobs(link="nvlink4"), "slow-link"), (Knobs(link="nvlink5"), None),
    (Knobs(bandwidth_bytes_per_s=100e9), "slow-link"), (Knobs(bucket_mb=100), "too-many-buckets"),
    (Knobs(no_wait=True), None), (Knobs(), None),
])  # fmt: skip
def test_it_is_the_rule_that_fired(knobs, finding):
    assert finding_of(knobs, {"slow-link", "too-many-buckets"}, 450e9) == finding


# --- the sentence that an answer begins with ------------------------------------------------------
def scenario(name, step, low, high, **knobs):
    return Scenario(name, name, knobs, step * MS, low * MS, high * MS, 1e9 / (step * MS), 100.0 - step)


def answer(*scenarios):
    """Return an answer for a step of 100 ms: a predicted ms is a per cent."""
    return WhatIf("id", "run", 5, 100.0 * MS, 80.0 * MS, 0.0, scenarios, ())


CLEAR, LINK = scenario("b", 95, 94, 96), scenario("link x", 80, 79, 81, link="x")


@pytest.mark.parametrize(("scenarios", "words"), [
    ((scenario("a", 90, 88, 93), CLEAR), "Largest single change: a, 10.00 ms (10.0 %) less step time (7.0 to 12.0 %)."),
    # A setting comes before another machine, which leads where no setting gains.
    ((LINK, CLEAR), "Largest single change: b, 5.000 ms (5.0 %) less step time (4.0 to 6.0 %). Another machine (link x): 20.00 ms (20.0 %) less."),
    ((LINK, scenario("b", 99, 97, 103)), "Largest single change: link x, 20.00 ms (20.0 %) less step time"),
    # Perfect overlap is a limit and no change.
    ((scenario("perfect-overlap", 70, 69, 71), CLEAR), "Largest single change: b,"),
    # A range with the captured time in it is no clear gain, a loss none.
    ((scenario("a", 98, 95, 101),), "No single change has a clear gain"),
    ((scenario("a", 120, 110, 130),), "No single change has a clear gain"),
    ((Scenario("a", "a", {}, refused="nothing to see"),) * 2, "No answer: nothing to see."),
])  # fmt: skip
def test_the_largest_clear_gain_leads(scenarios, words):
    text = headline(answer(*scenarios))
    assert text == words if words.endswith(".") else text.startswith(words)


def test_a_gain_that_is_not_clear_is_said_to_be_so():
    found = answer(scenario("a", 98, 95, 101, no_wait=True))
    assert gain_text(found, found.scenarios[0]) == "+2.0 %, not clear"


@pytest.mark.parametrize(("one", "words"), [
    (scenario("custom", 120, 110, 130), "20.00 ms (20.0 %) more step time (10.0 to 30.0 %)"),
    (scenario("custom", 99, 95, 103), "no clear gain: 1.000 ms (1.0 %) less step time, but the range includes 0"),
    (scenario("custom", 101, 97, 105), "no clear gain: 1.000 ms (1.0 %) more step time, but the range includes 0"),
])  # fmt: skip
def test_a_combination_is_told_with_its_range(one, words):
    assert headline(answer(one)).endswith(f" ms, {words}.")
