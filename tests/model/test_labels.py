"""The NVTX vocabulary: step numbers, epochs, roles in their order."""

from __future__ import annotations

import re

import pytest

from nsyspipe.model.names import PHASE_PATTERNS, PHASES, holds_steps, phase_of, step_number

DEFAULTS = {phase: re.compile(pattern) for phase, pattern in PHASE_PATTERNS.items()}


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("step 3", 3),
        ("Batch 0", 0),
        ("12", 12),
        ("it007", 7),
        ("Batch 10, seq = 99", 10),
        ("Batch 10, seq = 99, op_id = 7", 10),
        ("Batch 10, op_id = 7, seq = 99", 10),
        ("step", None),
        ("", None),
        ("step, seq = 4", None),  # only a suffix
        ("epoch 1 step 2", None),
        ("step 1.5", None),
        ("step 1 of 1", None),
        ("step 3, seq 4", None),  # no suffix of torch's
        (f"step {2**63 - 1}", 2**63 - 1),
        (f"step {2**63}", None),  # no int64
    ],
)
def test_the_step_number_is_the_one_integer_of_the_text_without_suffixes(text, number):
    assert step_number(text) == number


def test_a_number_of_thousands_of_digits_is_no_step_number():
    assert step_number("step " + "9" * 5000) is None


@pytest.mark.parametrize(
    ("family", "expected"),
    [
        ("epoch #", True),
        ("Train EPOCH #", True),
        ("epochs", True),
        ("step #", False),
        ("epo ch", False),
    ],
)
def test_an_epoch_is_known_by_its_name_in_any_case(family, expected):
    assert holds_steps(family) is expected


def test_roles_have_their_order():
    assert PHASES == ("backward", "forward", "optimizer", "data")


@pytest.mark.parametrize(
    ("family", "phase"),
    [
        ("data optimizer forward backward", "backward"),
        ("data optimizer forward", "forward"),
        ("data optimizer", "optimizer"),
        ("data", "data"),
        ("other", None),
    ],
)
def test_of_several_roles_the_first_in_order_wins(family, phase):
    assert phase_of(family, DEFAULTS) == phase


def test_patterns_of_ones_own_decide_alone():
    patterns = DEFAULTS | {"data": re.compile("^other$")}
    assert phase_of("other", patterns) == "data"
    assert phase_of("data", patterns) is None
