"""The line of Python of a finding: each limit, and the rank and cause that samples are of."""

from collections import Counter
from typing import NamedTuple

import pytest
from hypothesis import given, strategies as st

from nsyspipe.findings.host_lines import (
    HOST_CALL,
    HOST_FUNCTION,
    HOST_LINE,
    INNERMOST_LINE,
    LINE_UNKNOWN,
    LOCK_HELD,
    LOCK_HELD_BY_OTHER,
    LOCK_WAIT,
    LOCK_WAIT_SHARE,
    MANY_MISSING,
    NO_MAIN_LINE,
    NOT_SEEN_IN_TIME,
    NOT_WHY_LATE,
    TOO_FEW,
    line_figures,
)
from nsyspipe.findings.model import Evidence, Finding
from nsyspipe.model import schema
from nsyspipe.model.python_files import NOT_SEEN

N_STEPS = 4


def lines(*rows):
    """Build `schema.HOST_LINES` from (rank, frame, file, samples, steps) of all causes alike."""
    filled = []
    for rank, frame, file, n_samples, n_steps in rows:
        row = {"rank": rank, "frame": frame, "file": file, "line": 1, "function": "f"}
        for column in schema.HOST_LINES.names:
            if column.endswith("_samples"):
                row[column] = n_samples
            elif column.endswith("_steps"):
                row[column] = n_steps
        filled.append(row)
    return schema.HOST_LINES.from_rows(filled)


def steps(n_ranks=1, idle=(100,)):
    rows = []
    for rank in range(n_ranks):
        for step in range(N_STEPS):
            row = dict.fromkeys(schema.STEPS.names)
            row |= {"rank": rank, "step": step, "idle_input_ns": idle[rank]}
            row |= {"idle_launch_ns": 0, "idle_blocked_ns": 0}
            rows.append(row)
    return schema.STEPS.arrow.empty_table().from_pylist(rows)


def figures(
    rows,
    name="launch-bound",
    n_ranks=1,
    idle=(100, 0),
    *,
    waits=None,
    samples_per_s=None,
    with_lock=False,
    **evidence,
):
    table = steps(n_ranks, idle)
    seen = Evidence(
        n_ranks=n_ranks,
        world_size=n_ranks,
        summary={},
        steps=table,
        all_steps=table,
        phases=schema.PHASES.empty(),
        all_collectives=schema.COLLECTIVES.empty(),
        stragglers=schema.STRAGGLERS.empty(),
        kernels=schema.KERNEL_COSTS.empty(),
        host_lines=rows,
        lock_waits=waits or {},
        python_samples_per_s=samples_per_s,
    )
    found = line_figures(seen, name, Finding("", "", "", None, evidence))
    return found if with_lock else without_lock(found)


def without_lock(found):
    """Return figures without those of Python's lock, which was not recorded."""
    assert found.get(LOCK_WAIT) is None
    return {name: value for name, value in found.items() if name != LOCK_WAIT}


def named(found):
    """Return the line that figures name, with nothing for no line."""
    return found.get(HOST_LINE, {"file": None, "n_samples": None, "n_steps": None})


def both(file, n_samples, n_steps, rank=0):
    return [(rank, frame, file, n_samples, n_steps) for frame in ("innermost", "program")]


def test_four_samples_are_too_few_and_five_are_enough():
    assert figures(lines(*both("a.py", 4, 4))) == {LINE_UNKNOWN: TOO_FEW}
    assert named(figures(lines(*both("a.py", 5, 4))))["n_samples"] == 5


def test_a_line_needs_half_of_the_samples():
    half = lines(*both("a.py", 10, 4), *both("b.py", 5, 4), *both("c.py", 5, 4))
    less = lines(*both("a.py", 9, 4), *both("b.py", 6, 4), *both("c.py", 5, 4))
    assert named(figures(half))["file"] == "a.py"
    assert figures(less) == {LINE_UNKNOWN: NO_MAIN_LINE}


def test_a_line_needs_half_of_the_samples_that_were_due():
    # 4 steps with 5 ms of idle time are 20 samples at 1000 per second, and 22 at 1100.
    idle = (5_000_000, 5_000_000)
    rows = lines(*both("a.py", 10, 4))
    assert named(figures(rows, "input-bound", idle=idle, samples_per_s=1000.0))["file"] == "a.py"
    found = figures(rows, "input-bound", idle=idle, samples_per_s=1100.0)
    assert found == {LINE_UNKNOWN: MANY_MISSING}


def test_samples_are_due_only_of_ranks_with_samples():
    # Rank 1 idles too, but Python was not sampled there.
    idle = (5_000_000, 5_000_000)
    rows = lines(*both("a.py", 10, 4))
    found = figures(rows, "input-bound", n_ranks=2, idle=idle, samples_per_s=1000.0, rank=None)
    assert named(found)["file"] == "a.py"


@pytest.mark.parametrize(("n_unseen", "reason"), [(10, NOT_SEEN_IN_TIME), (9, NO_MAIN_LINE)])
def test_samples_that_were_not_taken_in_time_name_no_line(n_unseen, reason):
    unseen = (0, "innermost", NOT_SEEN, n_unseen, 4)
    others = [*both("a.py", 9, 4), *both("b.py", 19 - 9 - n_unseen, 4)]
    assert figures(lines(unseen, *others)) == {LINE_UNKNOWN: reason}


def test_samples_of_few_steps_that_were_not_taken_in_time_are_the_reason_too():
    unseen = (0, "innermost", NOT_SEEN, 10, 1)
    rows = lines(unseen, *both("a.py", 6, 4), *both("b.py", 4, 4))
    assert figures(rows) == {LINE_UNKNOWN: NOT_SEEN_IN_TIME}


class Hold(NamedTuple):
    """Samples that were due while a thread held the lock between two lines."""

    after_line: int | None
    line: int
    n_samples: int
    n_steps: int = 4
    after_function: str = "train"
    rank: int = 0
    frame: str = "let_go"


def hold_rows(*holds):
    """Build `schema.HOST_LINES` of holds in the function `train` of a.py."""
    rows = []
    for hold in holds:
        row = dict.fromkeys(schema.HOST_LINES.names)
        row |= {"rank": hold.rank, "frame": hold.frame}
        row |= {"file": "a.py", "line": hold.line, "function": "train"}
        if hold.after_line is not None:
            row |= {"after_file": "a.py", "after_line": hold.after_line}
            row["after_function"] = hold.after_function
        for cause in ("idle", "input", "launch", "blocked"):
            row |= {f"n_{cause}_samples": hold.n_samples, f"n_{cause}_steps": hold.n_steps}
        rows.append(row | {"n_samples": hold.n_samples})
    return rows


def held(*holds, **more):
    """Return the lines between which the main thread held the lock, and the number of samples.

    None if no lines are named. No sample of the main thread was taken in time.
    """
    n_unseen = sum(hold.n_samples for hold in holds)
    unseen = lines((0, "innermost", NOT_SEEN, max(n_unseen, 5), 4)).to_pylist()
    found = figures(schema.HOST_LINES.from_rows([*unseen, *hold_rows(*holds)]), **more)
    assert found[LINE_UNKNOWN] == NOT_SEEN_IN_TIME
    if LOCK_HELD not in found:
        return None
    hold = found[LOCK_HELD]
    return hold["after_line"], hold["line"], hold["n_samples"], hold["n_of_samples"]


def test_the_code_of_a_hold_needs_half_of_the_samples_of_holds():
    assert held(Hold(10, 12, 5), Hold(20, 22, 4), Hold(None, 1, 1)) == (10, 12, 5, 10)
    assert held(Hold(10, 12, 4), Hold(20, 22, 3), Hold(30, 32, 3)) is None


def test_four_samples_of_holds_are_too_few():
    assert held(Hold(191, 184, 5)) == (191, 184, 5, 5)
    assert held(Hold(191, 184, 4)) is None


def test_holds_share_one_line():
    assert held(Hold(97, 97, 9), Hold(95, 97, 1)) == (97, 97, 10, 10)


def test_holds_share_the_part_that_all_of_them_ran():
    # The first two lead round the loop from 191 over 195 to 184. The last one ends at 195.
    holds = [Hold(191, 184, 4), Hold(187, 184, 3), Hold(187, 195, 3)]
    assert held(*holds) == (191, 195, 10, 10)


def test_a_shared_part_may_lead_round_the_loop():
    holds = [Hold(187, 184, 3), Hold(191, 184, 2), Hold(191, 182, 2)]
    assert held(*holds) == (191, 182, 7, 7)


def test_two_parts_that_ran_equally_often_are_not_named():
    assert held(Hold(10, 12, 5), Hold(20, 22, 5)) is None


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6), st.integers(1, 9)), min_size=1))
def test_the_shared_part_is_in_most_holds(ends_and_counts):
    holds = [Hold(*row) for row in ends_and_counts]
    # Each line is a point of a circle, and so is the code behind it: 10, 15, 20, and so on.
    n_samples = Counter()
    for after, line, n in ends_and_counts:
        end = 10 * line if line >= after else 10 * line + 60
        for point in range(10 * after, end + 5, 5):
            n_samples[(point - 10) % 60] += n
    most = max(n_samples.values())
    shared = held(*holds)
    if shared is not None:
        first, last, n_of_part, _ = shared
        assert n_of_part == most
        assert n_samples[10 * first - 10] == most
        assert n_samples[10 * last - 10] == most
        assert n_samples[(10 * last - 5) % 60] < most


def test_holds_from_a_line_of_another_function_stay_apart():
    of_other_function = Hold(21, 184, 4, after_function="forward")
    assert held(of_other_function, Hold(191, 184, 4), Hold(186, 187, 1)) is None
    assert held(of_other_function._replace(n_samples=5), Hold(191, 184, 5)) is not None


def test_holds_without_a_sample_before_count_only_in_the_total():
    assert held(Hold(None, 184, 5), Hold(191, 184, 5)) == (191, 184, 5, 10)
    assert held(Hold(None, 184, 6), Hold(191, 184, 5)) is None


def test_holds_of_several_ranks_are_added():
    holds = [Hold(191, 184, 3), Hold(191, 184, 2, rank=1)]
    assert held(*holds, n_ranks=2, rank=None) == (191, 184, 5, 5)


def test_every_figure_of_a_hold():
    unseen = lines((0, "innermost", NOT_SEEN, 9, 4)).to_pylist()
    hold = hold_rows(Hold(21, 184, 9, after_function="forward"))
    found = figures(schema.HOST_LINES.from_rows([*unseen, *hold]))
    assert found[LOCK_HELD] == {
        "after_file": "a.py",
        "after_line": 21,
        "after_function": "forward",
        "file": "a.py",
        "line": 184,
        "function": "train",
        "n_samples": 9,
        "n_of_samples": 9,
    }


def test_a_line_needs_half_of_the_steps():
    assert named(figures(lines(*both("a.py", 10, 2))))["n_steps"] == 2
    assert figures(lines(*both("a.py", 10, 1))) == {LINE_UNKNOWN: NO_MAIN_LINE}


def test_the_innermost_line_of_all_stands_beside_the_line_of_the_program():
    rows = lines((0, "innermost", "torch/a.py", 10, 4), (0, "program", "train.py", 10, 4))
    found = figures(rows)
    assert found[HOST_LINE]["file"] == "train.py"
    assert found[INNERMOST_LINE]["file"] == "torch/a.py"


def test_without_a_line_of_the_program_the_innermost_line_is_named():
    found = figures(lines((0, "innermost", "torch/a.py", 10, 4)))
    assert found[HOST_LINE]["file"] == "torch/a.py"
    assert INNERMOST_LINE not in found


def test_only_samples_of_the_rank_of_the_finding_count():
    rows = lines(*both("a.py", 10, 4, rank=0), *both("b.py", 10, 4, rank=1))
    assert figures(rows, n_ranks=2, rank=1)[HOST_LINE]["file"] == "b.py"
    assert figures(rows, n_ranks=2, rank=None) == {
        HOST_LINE: {
            "file": "a.py",
            "line": 1,
            "function": "f",
            "n_samples": 10,
            "n_steps": 4,
            "n_of_samples": 20,
            "n_of_steps": 8,
        }
    }


def lines_of_late_rank(lateness_ns):
    """Return the figures of a rank that idles 100 ns longer than the other rank."""
    rows = lines(*both("a.py", 10, 4))
    return figures(rows, "straggler", 2, (100, 0), rank=0, lateness_ns_per_step=lateness_ns)


def test_a_straggler_is_late_if_idling_is_half_of_its_delays():
    assert named(lines_of_late_rank(200))["file"] == "a.py"


def test_a_straggler_is_not_late_by_less_idling():
    assert lines_of_late_rank(201) == {LINE_UNKNOWN: NOT_WHY_LATE}


def test_samples_without_known_causes_name_no_line():
    rows = lines(*both("a.py", 10, 4))
    column = rows.column_names.index("n_idle_samples")
    unknown = rows.set_column(column, "n_idle_samples", [[None] * rows.num_rows])
    assert figures(unknown.cast(schema.HOST_LINES.arrow)) == {}


@pytest.mark.parametrize("name", ["comm-bound", "grad-copy"])
def test_findings_that_no_line_explains_name_none(name):
    assert figures(lines(*both("a.py", 10, 4)), name) == {}


NO_WAITS = {"input": 0.0, "launch": 0.0, "blocked": 0.0}


def lock_figures(rows, waits, name="input-bound", **more):
    return figures(rows, name, waits=waits, with_lock=True, **more)


def test_without_waits_of_each_rank_the_wait_for_the_lock_is_null():
    rows = lines(*both("a.py", 10, 4), *both("a.py", 10, 4, rank=1))
    found = lock_figures(rows, {0: NO_WAITS}, n_ranks=2, idle=(100, 100))
    assert found[LOCK_WAIT] is None
    assert LOCK_WAIT_SHARE not in found


def test_the_wait_for_the_lock_is_that_of_the_cause_and_a_mean_of_ranks():
    waits = {0: NO_WAITS | {"input": 30.0, "launch": 7.0}, 1: NO_WAITS | {"input": 10.0}}
    found = lock_figures(lines(*both("a.py", 10, 4)), waits, n_ranks=2, idle=(100, 60))
    assert (found[LOCK_WAIT], found[LOCK_WAIT_SHARE]) == (20.0, 0.25)
    found = lock_figures(lines(*both("a.py", 10, 4)), waits, n_ranks=2, idle=(100, 60), rank=0)
    assert (found[LOCK_WAIT], found[LOCK_WAIT_SHARE]) == (30.0, 0.3)


def is_holder_named(wait_ns, n_samples, n_steps=4):
    """Tell whether the holder of the lock is named, given waits in 100 ns of idle time."""
    hold = Hold(52, 52, n_samples, n_steps, frame="lock_holder")
    rows = [*lines(*both("a.py", 10, 4)).to_pylist(), *hold_rows(hold)]
    waits = {0: NO_WAITS | {"input": wait_ns}}
    found = lock_figures(schema.HOST_LINES.from_rows(rows), waits)
    assert named(found)["file"] == "a.py"
    assert LOCK_HELD not in found
    return LOCK_HELD_BY_OTHER in found


def test_the_holder_of_the_lock_is_named_from_a_tenth_of_the_idle_time():
    assert is_holder_named(wait_ns=10, n_samples=5)
    assert not is_holder_named(wait_ns=9, n_samples=5)


def test_four_samples_of_the_holder_of_the_lock_are_too_few():
    assert not is_holder_named(wait_ns=10, n_samples=4)


def test_the_holder_of_the_lock_needs_samples_in_half_of_the_steps():
    assert is_holder_named(wait_ns=10, n_samples=5, n_steps=2)
    assert not is_holder_named(wait_ns=10, n_samples=5, n_steps=1)


def test_waits_for_the_lock_are_known_without_samples():
    found = lock_figures(lines(), {0: NO_WAITS | {"input": 50.0}})
    assert found == {LOCK_WAIT: 50.0, LOCK_WAIT_SHARE: 0.5}


def stack_rows(*rows):
    """Build `schema.HOST_LINES` of samples at ten lines, and calls and functions in their stacks.

    These are (frame, name, samples in the idle time, all samples, mean depth). In all there are 20
    samples in the idle time, and 40 at other times.
    """
    at_lines = [row for place in range(10) for row in both(f"{place}.py", 2, 4)]
    filled = lines(*at_lines).to_pylist()
    for row in filled:
        row["n_samples"] = 6
    for frame, name, n_samples, n_all_samples, mean_depth in rows:
        row = dict.fromkeys(schema.HOST_LINES.names)
        row |= {"rank": 0, "frame": frame, "file": "a.py", "line": 3, "function": name}
        row |= {"last_line": 7 if frame == "function" else None, "mean_depth": mean_depth}
        counts = ("idle", "input", "launch", "blocked")
        row |= {f"n_{cause}_samples": n_samples for cause in counts}
        row |= {f"n_{cause}_steps": 4 for cause in counts}
        filled.append(row | {"n_samples": n_all_samples})
    return schema.HOST_LINES.from_rows(filled)


def named_functions(*rows):
    """Return which function is named, given (name, samples, all samples, mean depth) of each."""
    found = figures(stack_rows(*(("function", *row) for row in rows)))
    return found[HOST_FUNCTION]["function"] if HOST_FUNCTION in found else found[LINE_UNKNOWN]


def test_a_function_needs_half_of_the_samples():
    assert named_functions(("half", 10, 10, 0.0)) == "half"
    assert named_functions(("less", 9, 9, 0.0)) == NO_MAIN_LINE


def test_a_function_needs_half_of_the_samples_that_were_due():
    # 4 steps with 10 ms of idle time are 40 samples at 1000 per second, and 44 at 1100.
    idle = (10_000_000, 0)
    rows = stack_rows(("function", "half", 20, 20, 0.0))
    assert HOST_FUNCTION in figures(rows, "input-bound", idle=idle, samples_per_s=1000.0)
    assert HOST_FUNCTION not in figures(rows, "input-bound", idle=idle, samples_per_s=1100.0)


def test_a_function_that_all_other_samples_have_too_is_the_loop():
    assert named_functions(("loop", 20, 20 + 38, 0.0)) == NO_MAIN_LINE
    assert named_functions(("step", 20, 20 + 37, 0.0)) == "step"


def test_the_innermost_of_functions_in_about_as_many_samples_is_named():
    assert named_functions(("outer", 20, 20, 1.0), ("inner", 18, 18, 0.0)) == "inner"
    assert named_functions(("outer", 20, 20, 1.0), ("inner", 17, 17, 0.0)) == "outer"
    assert named_functions(("outer", 20, 20, 1.0), ("inner", 20, 20, 0.5)) == "inner"


def test_a_function_has_its_lines_and_a_call_its_line():
    found = figures(stack_rows(("function", "f", 12, 12, 0.0), ("call", "g", 15, 15, 1.0)))
    totals = {"n_of_samples": 20, "n_of_steps": 4, "n_steps": 4}
    function = {"file": "a.py", "line": 3, "last_line": 7, "function": "f", "n_samples": 12}
    assert found[HOST_FUNCTION] == function | totals
    call = {"file": "a.py", "line": 3, "function": "g", "n_samples": 15}
    assert found[HOST_CALL] == call | totals
    assert not {HOST_LINE, LINE_UNKNOWN} & found.keys()


def test_where_a_line_is_named_no_function_is():
    stacks = stack_rows(("function", "f", 12, 12, 0.0)).to_pylist()
    main_line = lines(*both("a.py", 60, 4)).to_pylist()
    found = figures(schema.HOST_LINES.from_rows([*stacks, *main_line]))
    assert (HOST_LINE in found, HOST_FUNCTION in found) == (True, False)


def test_with_few_other_samples_no_function_is_taken_for_the_loop():
    rows = stack_rows(("function", "f", 20, 24, 0.0)).to_pylist()
    for row in rows:
        if row["frame"] == "program":
            row["n_samples"] = 2
    rows[1]["n_samples"] = 6
    found = figures(schema.HOST_LINES.from_rows(rows))
    assert found[HOST_FUNCTION]["function"] == "f"
