"""The table of lines of Python: which rows it has, and where it is shown."""

from types import SimpleNamespace

from nsyspipe.model import schema
from nsyspipe.model.python_files import NOT_SEEN
from nsyspipe.report.host_lines import line_table


def run_of_lines(*rows):
    """Return a run with (rank, frame, file, samples in idle time for input and for launches)."""
    filled = []
    for rank, frame, file, n_input, n_launch in rows:
        row = dict.fromkeys(schema.HOST_LINES.names)
        row |= {"rank": rank, "frame": frame, "file": file, "line": 7, "function": "f"}
        row |= {"n_samples": 0, "n_idle_samples": n_input + n_launch, "n_idle_steps": 2}
        row |= {"n_input_samples": n_input, "n_launch_samples": n_launch, "n_blocked_samples": 0}
        filled.append(row)
    table = schema.HOST_LINES.from_rows(filled)
    return SimpleNamespace(host_lines=lambda: table)


def cells(table):
    """Return the cells as texts."""
    return [[getattr(cell, "text", cell) for cell in row] for row in table.rows]


def test_lines_of_all_ranks_are_pooled_and_most_samples_come_first():
    run = run_of_lines(
        (0, "program", "a.py", 3, 1),
        (0, "program", "b.py", 0, 6),
        (1, "program", "a.py", 4, 0),
        (0, "innermost", "x.py", 7, 7),
    )
    rows = cells(line_table(run, 5))
    assert [row[:4] for row in rows] == [["a.py:7", "f", "8", "4"], ["b.py:7", "f", "6", "2"]]
    assert len({row[4] for row in rows}) == 2


def test_only_so_many_lines_are_shown_and_the_note_counts_the_others():
    run = run_of_lines(*((0, "program", f"{name}.py", 1, 0) for name in "abcd"))
    table = line_table(run, 3)
    assert [row[0] for row in table.rows] == ["a.py:7", "b.py:7", "c.py:7"]
    assert "1 at 1 more line (" in table.note
    assert "2 at 2 more lines (" in line_table(run, 2).note
    assert "more" not in line_table(run, 4).note


def test_a_program_without_a_line_has_the_innermost_lines_that_were_seen():
    run = run_of_lines((0, "innermost", "torch/a.py", 2, 0), (0, "innermost", NOT_SEEN, 5, 0))
    assert [row[0] for row in line_table(run, 5).rows] == ["torch/a.py:7"]


def test_without_samples_in_idle_time_there_is_no_table():
    assert line_table(run_of_lines((0, "program", "a.py", 0, 0)), 5) is None
    assert line_table(run_of_lines(), 5) is None


def test_lines_of_which_no_cause_is_known_are_not_shown():
    rows = run_of_lines((0, "program", "a.py", 1, 0)).host_lines().to_pylist()
    unknown = [{**row, "n_idle_samples": None} for row in rows]
    table = schema.HOST_LINES.from_rows(unknown)
    assert line_table(SimpleNamespace(host_lines=lambda: table), 5) is None
