"""Limits of severity, just below and just above each. Steps are of 1000 ns."""

from nsyspipe.findings.judge import judge
from tests.findings.device_rules import INPUT, idle


def severity_with_saving(saving_ns):
    """Return the severity of `input-bound` where a step can get so much shorter."""
    findings = judge(idle(INPUT, saving_ns))[0]
    return dict(zip(findings["id"].to_pylist(), findings["severity"].to_pylist(), strict=True))[
        "input-bound"
    ]


# 100 of 1000 are 10 %.
def test_a_saving_of_10_percent_of_a_step_is_of_high_severity():
    assert severity_with_saving(100) == "high"


# 99 of 1000 are 9.9 %.
def test_a_saving_of_less_than_10_percent_is_of_medium_severity():
    assert severity_with_saving(99) == "medium"


# 30 of 1000 are 3 %.
def test_a_saving_of_3_percent_of_a_step_is_of_medium_severity():
    assert severity_with_saving(30) == "medium"


# 29 of 1000 are 2.9 %.
def test_a_saving_of_less_than_3_percent_is_of_low_severity():
    assert severity_with_saving(29) == "low"
