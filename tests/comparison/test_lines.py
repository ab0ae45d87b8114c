"""Lines of Python that findings name, where two sides differ."""

import json
from types import SimpleNamespace

import pytest

from nsyspipe.comparison.lines import TOPIC, line_changes
from nsyspipe.findings.host_lines import HOST_FUNCTION, HOST_LINE, LOCK_HELD_BY_OTHER
from nsyspipe.model import schema


def line(file, number=3, function="f", **more):
    return {"file": file, "line": number, "function": function, "n_samples": 9} | more


def capture(**figures_of_findings):
    """Build a capture whose findings have some figures."""
    rows = []
    for name, figures in figures_of_findings.items():
        row = dict.fromkeys(schema.FINDINGS.names)
        row |= {"id": name.replace("_", "-"), "severity": "low", "title": "", "advice": ""}
        rows.append(row | {"evidence": json.dumps(figures)})
    table = schema.FINDINGS.arrow.empty_table().from_pylist(rows)
    return SimpleNamespace(run=SimpleNamespace(judged_findings=lambda: table))


def named(file, **more):
    return capture(launch_bound={HOST_LINE: line(file, **more)})


def test_another_line_of_a_finding_is_a_change():
    (row,) = line_changes([named("a.py")], [named("b.py", number=4)])
    assert (row["topic"], row["baseline"], row["candidate"]) == (
        TOPIC,
        "a.py:3 in f",
        "b.py:4 in f",
    )
    assert row["what"].endswith("launch-bound")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (named("a.py"), named("a.py", n_samples=5)),
        # The folder that files have in common is another one.
        (named("a.py"), named("src/a.py")),
        (named("src/a.py"), named("a.py")),
        # Only one side knows a line, or has the finding.
        (named("a.py"), capture(launch_bound={})),
        (named("a.py"), capture(input_bound={HOST_LINE: line("b.py")})),
        # One side has a line, and the other a function.
        (named("a.py"), capture(launch_bound={HOST_FUNCTION: line("b.py", last_line=5)})),
    ],
)
def test_what_is_the_same_or_known_on_one_side_is_no_change(before, after):
    assert line_changes([before], [after]) == []


def test_the_end_of_a_file_name_is_not_another_file():
    assert len(line_changes([named("a.py")], [named("data.py")])) == 1
    assert len(line_changes([named("a.py")], [named("xa.py")])) == 1


def test_functions_and_holders_of_the_lock_are_compared_too():
    before, after = (
        capture(
            sync_bound={
                HOST_FUNCTION: line("a.py", last_line=last_line),
                LOCK_HELD_BY_OTHER: line("spin.py", number=last_line),
            }
        )
        for last_line in (5, 6)
    )
    rows = line_changes([before], [after])
    assert {(row["baseline"], row["candidate"]) for row in rows} == {
        ("spin.py:5 in f", "spin.py:6 in f"),
        ("a.py:3-5 in f", "a.py:3-6 in f"),
    }


def test_a_side_whose_captures_name_different_lines_is_not_compared():
    assert line_changes([named("a.py"), named("b.py")], [named("c.py")]) == []
    assert len(line_changes([named("a.py"), named("a.py")], [named("c.py")])) == 1
