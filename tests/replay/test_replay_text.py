"""The sentence that an answer begins with."""

from __future__ import annotations

import pytest

from nsyspipe.replay.answer import Scenario, WhatIf
from nsyspipe.report.whatif import gain_text, headline

MS = 1_000_000


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
