"""Limits of what several rules ask of the evidence, just below and just above each. Times are ns, steps are of 1000."""

from tests.findings.role_rules import mixed


def names_tensor_parallelism(tensor_ns):
    """Tell whether the evidence names the role with so much of 300 exposed ns; the rest is of gradients."""
    given = mixed(("tensor", tensor_ns), ("data", 300 - tensor_ns))
    return given.main_role_text("exposed_ns_per_step", 300, noun="communication") != ""


# 200 of 300 are two thirds.
def test_a_role_with_two_thirds_of_communication_is_named():
    assert names_tensor_parallelism(200)


# 199 of 300 are 66.3 %.
def test_a_role_with_less_than_two_thirds_is_not_named():
    assert not names_tensor_parallelism(199)
