"""Which arguments of two commands differ, one by one."""

from types import SimpleNamespace

import pyarrow as pa
import pytest

from nsyspipe.comparison.arguments import ChangedArgument, changed_arguments, hidden_arguments
from nsyspipe.comparison.facts import STARTED_COMMAND
from nsyspipe.comparison.surroundings import MAY_HAVE
from nsyspipe.report.difference import _rows_of_change, hidden_facts, shown_changes

TRAIN = "python3 train.py --ddp"


@pytest.mark.parametrize(
    ("before", "after", "changed"),
    [
        (TRAIN, TRAIN, []),
        (f"{TRAIN} --lr 1", "python3 train.py --lr 1 --ddp", []),
        (TRAIN, f"{TRAIN} --bucket-mb 100", [("--bucket-mb", None, "100")]),
        (f"{TRAIN} --view", TRAIN, [("--view", "", None)]),
        (f"{TRAIN} --lr=1", f"{TRAIN} --lr 2", [("--lr", "1", "2")]),
        (f"{TRAIN} --lr -1", f"{TRAIN} --lr -.5", [("--lr", "-1", "-.5")]),
        (
            f"{TRAIN} --betas 0.9 0.95",
            f"{TRAIN} --betas 0.9 0.99",
            [("--betas", "0.9 0.95", "0.9 0.99")],
        ),
        ("python3 a.py x", "python3 b.py x", [("", "a.py", "b.py")]),
        ("python3 a.py optim.lr=1", "python3 a.py optim.lr=2", [("optim.lr", "1", "2")]),
        # What follows --name=VALUE is no value of it
        ("nsys --a=1 python3 x", "nsys --b=2 --a=1 python3 x", [("--b", None, "2")]),
        # Several commands of one side, as each rank has its own
        ("a.py --rank 0 | a.py --rank 1", "a.py --rank 0 | a.py --rank 1", []),
        ("a.py --rank 0 | a.py --rank 1", "a.py --rank 0", [("--rank", "0, 1", "0")]),
        ("a.py 'unclosed", "a.py", [("", "a.py 'unclosed", "a.py")]),
    ],
)
def test_each_argument_that_differs_stands_with_both_values(before, after, changed):
    assert changed_arguments(before, after) == [ChangedArgument(*one) for one in changed]
    swapped = {ChangedArgument(name, new, old) for name, old, new in changed}
    assert {*changed_arguments(after, before)} == swapped


def test_arguments_whose_value_is_hidden():
    assert hidden_arguments("python3 hmac:? --a hmac:? --lr 1", "hmac:?") == ["", "--a"]


def shown(what, before, after):
    row = {
        "topic": "capture",
        "what": what,
        "unit": None,
        "delta": None,
        "baseline": before,
        "candidate": after,
    }
    return [(one["what"], one["baseline"], one["candidate"]) for one in _rows_of_change(row)]


def test_a_command_is_shown_as_its_arguments_that_changed():
    found = shown("command", f"{TRAIN} --lr 1", f"{TRAIN} --lr 2 --fused")
    assert found == [("argument --lr", "1", "2"), ("argument --fused", "not given", "given")]


@pytest.mark.parametrize(
    ("what", "value"),
    [
        ("command", f"{TRAIN} --data hmac:?"),
        (STARTED_COMMAND, "hmac:? -c hmac:? --lr 1"),
        ("NCCL_ALGO", "hmac:?"),
    ],
    ids=["command", "command of nsys", "setting"],
)
def test_what_both_sides_hide_is_no_change_but_not_compared(what, value, worded):
    sides = {"baseline": value, "candidate": value}
    row = {"topic": "capture", "what": f"{what}{MAY_HAVE}", "unit": None, "delta": None, **sides}
    difference = SimpleNamespace(changes=pa.Table.from_pylist([row]))
    assert shown_changes(difference) == []
    worded(hidden_facts(difference))


@pytest.mark.parametrize(
    ("what", "before", "after"), [("command", "a --b --c", "a --c --b"), ("torch", "2.4", "2.5")]
)
def test_what_is_no_changed_argument_stays_as_it_is(what, before, after):
    assert shown(what, before, after) == [(what, before, after)]
