"""Labels and settings."""

from __future__ import annotations

import pickle
import re

import pytest

from nsyspipe.errors import OptionError
from nsyspipe.model import names as module
from nsyspipe.model.options import Reading, compile_pattern, parse_skip_first
from tests.conftest import FROZEN

DEFAULTS = {phase: re.compile(pattern) for phase, pattern in module.PHASE_PATTERNS.items()}


@pytest.mark.parametrize(("text", "number"), [
    ("step 3", 3), ("Batch 0", 0), ("12", 12), ("it007", 7), ("step", None), ("", None), ("epoch 1 step 2", None),
    ("step 1.5", None), ("step 1 of 1", None), ("Batch 10, seq = 99", 10), ("Batch 10, seq = 99, op_id = 7", 10),
    ("Batch 10, op_id = 7, seq = 99", 10), ("step, seq = 4", None), ("step 3, seq 4", None),  # only a suffix, and none
    (f"step {2**63 - 1}", 2**63 - 1), (f"step {2**63}", None), ("step " + "9" * 5000, None),  # no int64
])  # fmt: skip
def test_the_step_number_is_the_one_integer_of_the_text_without_suffixes(text, number):
    assert module.step_number(text) == number


def test_an_epoch_is_known_by_its_name_in_any_case():
    families = ("epoch #", "Train EPOCH #", "epochs", "step #", "epo ch")
    assert [module.holds_steps(family) for family in families] == [True, True, True, False, False]


@pytest.mark.parametrize("n_roles", range(5))
def test_of_several_roles_the_first_in_order_wins(n_roles):
    assert module.PHASES == ("backward", "forward", "optimizer", "data")
    family = " ".join(["other", *module.PHASES[::-1][:n_roles]])
    assert module.phase_of(family, DEFAULTS) == (module.PHASES[4 - n_roles] if n_roles else None)
    # Patterns of one's own decide alone.
    patterns = DEFAULTS | {"data": re.compile("^other$")}
    assert [module.phase_of(family, patterns) for family in ("other", "data")] == ["data", None]


def patterns(reading):
    return {phase: pattern.pattern for phase, pattern in reading.phases.items()}


def test_patterns_given_as_text_are_compiled_and_others_keep_their_default():
    reading = Reading()
    assert (reading.step, reading.comm_kernel, patterns(reading)) == (None, None, module.PHASE_PATTERNS)
    assert Reading.from_text() == reading
    reading = Reading.from_text(step=r"^it \d+", comm_kernel="my_comm", forward="fp", data=None)
    assert (reading.step.pattern, reading.comm_kernel.pattern) == (r"^it \d+", "my_comm")
    assert patterns(reading) == module.PHASE_PATTERNS | {"forward": "fp"}
    assert pickle.loads(pickle.dumps(reading)) == reading
    assert compile_pattern("--step", r"(?i)step \d").search("my STEP 3")


@pytest.mark.parametrize("option", ["step", "comm_kernel", "backward", "forward", "optimizer", "data"])
def test_a_pattern_that_is_none_is_an_error_that_names_its_option(option):
    with pytest.raises(OptionError) as caught:
        Reading.from_text(**{option: "a(b"})
    flag = "--" + option.replace("_", "-")
    assert caught.value.subject == f"{flag} 'a(b'"
    assert "not a regular expression" in caught.value.problem
    assert "position 1" in caught.value.problem
    assert caught.value.fix


@pytest.mark.parametrize(
    ("value", "n"), [("auto", None), (" AUTO ", None), ("0", 0), (0, 0), ("12", 12), (3, 3), (" 1 ", 1)]
)
def test_skip_first_is_auto_or_a_number(value, n):
    assert parse_skip_first(value) == n


@pytest.mark.parametrize("value", ["-1", -1, "1.5", 1.0, "", "two", "²", "٣", "1 2", "none", True])
def test_skip_first_is_nothing_else(value):
    with pytest.raises(OptionError) as caught:
        parse_skip_first(value)
    assert caught.value.subject == f"--skip-first {value}"
    assert caught.value.lines()[-1] == "  fix: --skip-first auto"


# --- names of kernels -----------------------------------------------------------------------------
def test_what_a_kernels_name_says_and_the_label_that_tells_it_apart(pinned):
    lines = (FROZEN / "names/kernels.txt").read_text(encoding="utf-8").splitlines()
    found = []
    for name in (line for line in lines if not line.startswith("  ")):
        found.append(name)
        if name and not name.startswith("#"):
            says = module.collective_of(name), module.datatype_of(name), module.algorithm_of(name)
            found.append(f"  {', '.join(map(str, says))}; {module.kernel_label(name)}")
    pinned("names/kernels.txt", "\n".join([*found, ""]))
    assert (module.collective_of(""), module.kernel_label("")) == ("other", "")


def test_a_collective_is_found_in_any_case_the_longest_name_wins_and_a_datatype_is_a_whole_word():
    found = map(module.collective_of, ("NCCLKERNEL_REDUCESCATTER_RING", "mscclAllReduceKernel"))
    assert list(found) == ["reduce_scatter", "all_reduce"]
    assert {*map(module.datatype_of, ("ncclDevKernel_AllReduce_Sum_f32x4", "ncclDevKernel_AllReducef32"))} == {None}
    assert len(set(module.COLLECTIVES)) == len(module.COLLECTIVES) == 8
