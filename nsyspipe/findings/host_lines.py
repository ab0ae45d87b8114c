"""The line of Python at which the host was while its GPU idled, as evidence of a finding."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.analysis.host_lines import MIN_SAMPLES
from nsyspipe.findings.model import Evidence, Finding, select_rows
from nsyspipe.model.python_files import (
    CALL,
    FUNCTION,
    IN_PROGRAM,
    INNERMOST,
    LET_GO,
    LOCK_HOLDER,
    NOT_SEEN,
)

# What the samples of a finding are of: a middle part of names of columns in `schema.HOST_LINES`.
_CAUSE_OF_FINDING = {
    "input-bound": "input",
    "launch-bound": "launch",
    "sync-bound": "blocked",
    "straggler": "idle",
}
_ANY_CAUSE = "idle"
# Findings that a line of Python can explain.
NAMING_LINES = frozenset(_CAUSE_OF_FINDING)
# A line with a smaller share of the samples, or of the steps, is not the reason by itself.
MIN_SHARE_OF_SAMPLES = 0.5
MIN_SHARE_OF_STEPS = 0.5
# A late rank is late because its GPU idles, if that is this part of the delays.
MIN_PART_OF_LATENESS = 0.5
_IDLE_COLUMNS = ("idle_input_ns", "idle_launch_ns", "idle_blocked_ns")
# Figures of a finding: the line of the program, and the innermost line if that is another one.
HOST_LINE = "host_line"
INNERMOST_LINE = "innermost_line"
# If no line of the program has most of the samples: the function and the call that are in the
# stack of most of them.
HOST_FUNCTION = "host_function"
HOST_CALL = "host_call"
# What is in this part of the samples of other times is the loop, and explains no idle time.
MAX_SHARE_OF_OTHER_TIMES = 0.95
# Of calls and functions in about as many samples, the innermost says most.
MIN_PART_OF_MOST = 0.9
# How long the launching thread waits for Python's lock (GIL) in this idle time, null if that was
# not recorded, and its share of this idle time. Then where another thread let go of the lock.
LOCK_WAIT = "lock_wait_ns_per_step"
LOCK_WAIT_SHARE = "lock_wait_share"
LOCK_HOLDER_LINE = "lock_holder_line"
# Shorter waits for the lock do not explain idle time.
MIN_SHARE_OF_LOCK = 0.1
# If most samples could not be taken in time: the line at which the thread let go of the lock. What
# held the lock ran at this line or earlier.
LET_GO_LINE = "let_go_line"
# Why the line is not known, although it may have been recorded.
LINE_UNKNOWN = "host_line_unknown"
LEFT_OUT = "lines were left out on request (--no-lines)"
TOO_FEW = "nsys took too few samples"
NO_MAIN_LINE = "no line of the main thread has most of the samples"
NOT_SEEN_IN_TIME = (
    "the main thread held Python's lock (GIL), and nsys took its samples only after the thread "
    "had released it"
)
NOT_WHY_LATE = "the rank is not late because its GPU is idle"


class _Line(NamedTuple):
    """One line of Python in the samples of a cause."""

    file: str
    line: int
    function: str
    n_samples: int
    n_steps: int

    def is_at_same_place(self, line: _Line) -> bool:
        """Tell whether another line is the same one, whatever its samples."""
        is_same_line = self.file == line.file and self.line == line.line
        return is_same_line and self.function == line.function


class _Place(NamedTuple):
    """A function or a call in the stacks of the samples of a cause."""

    file: str
    line: int
    # Of a function, else None.
    last_line: int | None
    function: str
    n_samples: int
    n_steps: int


class _FrameSums(NamedTuple):
    """A function or a call with what it is chosen by."""

    place: _Place
    # Samples of other times.
    n_other_samples: int
    mean_depth: float


class _Question(NamedTuple):
    """Which idle time is in question: its rows of the tables, and its cause."""

    # `schema.HOST_LINES` and `schema.STEPS` of the ranks in question.
    lines: pa.Table
    steps: pa.Table
    cause: str


def line_figures(evidence: Evidence, name: str, finding: Finding) -> Mapping[str, Any]:
    """Return the line of Python that explains the idle time of a finding, or why it is not known.

    The result is empty for a finding that no line explains, and without samples. The line is that
    of `_figures_of_lines`. If waits for Python's lock (GIL) were recorded, `_lock_figures` are
    added.
    """
    cause = _CAUSE_OF_FINDING.get(name)
    if cause is None:
        return {}
    # Empty, unless the user wants no lines. Waits for the lock are known even then.
    why_no_line = {LINE_UNKNOWN: LEFT_OUT} if evidence.are_lines_left_out else {}
    rank = _rank_of(evidence, finding)
    lines = evidence.host_lines
    steps = evidence.steps
    if rank is not None:
        lines = select_rows(lines, "rank", rank)
        steps = select_rows(steps, "rank", rank)
    question = _Question(lines, steps, cause)
    has_lines = _has_known_causes(lines)
    lock_wait_ns = _mean_lock_wait_ns(evidence, question)
    if not has_lines and lock_wait_ns is None:
        return why_no_line
    if name == "straggler" and not _is_late_by_idling(evidence, rank, finding):
        return {LINE_UNKNOWN: NOT_WHY_LATE}
    figures = _lock_figures(question, lock_wait_ns)
    if has_lines:
        figures |= _figures_of_lines(question)
    return figures | why_no_line


def _has_known_causes(lines: pa.Table) -> bool:
    """Tell whether there are samples, and whether it is known which of them are in idle time."""
    n_idle_samples = lines["n_idle_samples"]
    return lines.num_rows > 0 and not n_idle_samples.null_count


def _mean_lock_wait_ns(evidence: Evidence, question: _Question) -> float | None:
    """Return how long a rank in question waits for Python's lock in its idle time, ns per step.

    That is the mean over the ranks in question. None if the waits of any of them were not recorded.
    """
    waits_ns = []
    for rank in question.steps["rank"].unique().to_pylist():
        wait_ns_by_cause = evidence.lock_waits.get(rank)
        if wait_ns_by_cause is None:
            return None
        causes = [question.cause]
        if question.cause == _ANY_CAUSE:
            causes = [*wait_ns_by_cause]
        wait_ns = sum(wait_ns_by_cause[cause] for cause in causes)
        waits_ns.append(wait_ns)
    return sum(waits_ns) / len(waits_ns) if waits_ns else None


def _lock_figures(question: _Question, wait_ns: float | None) -> dict[str, Any]:
    """Return how long the launching thread waits for Python's lock, and who holds it meanwhile.

    The share of idle time is added if both times are known. If that share is large, the line of the
    thread that holds the lock is added. This line needs most of the samples of the holder, and
    these must be enough samples.
    """
    figures: dict[str, Any] = {LOCK_WAIT: wait_ns}
    idle_ns = _mean_idle_ns(question)
    if wait_ns is None or not idle_ns:
        return figures
    share_of_idle = wait_ns / idle_ns
    figures[LOCK_WAIT_SHARE] = share_of_idle
    if share_of_idle < MIN_SHARE_OF_LOCK:
        return figures
    line = _main_line(question, LOCK_HOLDER)
    totals = _totals(question, LOCK_HOLDER)
    has_enough_samples = totals.n_of_samples >= MIN_SAMPLES
    if line is not None and has_enough_samples and _is_main(line, totals):
        figures[LOCK_HOLDER_LINE] = _figure_of(line, totals)
    return figures


def _figure_of(place: _Line | _Place, totals: _Totals) -> dict[str, Any]:
    """Return a place as a figure of a finding."""
    figure = place._asdict()
    return figure | totals._asdict()


def _mean_idle_ns(question: _Question) -> float | None:
    """Return the idle time in question, a mean over steps and ranks, ns; None if not known."""
    is_any = question.cause == _ANY_CAUSE
    columns = _IDLE_COLUMNS if is_any else (f"idle_{question.cause}_ns",)
    means_ns = []
    for column in columns:
        mean_ns = pc.mean(question.steps[column])
        means_ns.append(mean_ns.as_py())
    return None if None in means_ns else sum(means_ns)


def _rank_of(evidence: Evidence, finding: Finding) -> int | None:
    """Return the rank that a finding is about; None if it is about all ranks of the run."""
    if evidence.n_ranks == 1:
        return None
    rank: int | None = finding.evidence.get("rank")
    return rank


def _is_late_by_idling(evidence: Evidence, rank: int | None, finding: Finding) -> bool:
    """Tell whether a rank is late because its GPU idles for its host longer than other GPUs do.

    The longer idle time must be half of the lateness. False if it is not known.
    """
    lateness_ns = finding.evidence.get("lateness_ns_per_step")
    steps = evidence.steps
    if rank is None or not lateness_ns:
        return False
    idle_ns = reduce(pc.add, map(steps.column, _IDLE_COLUMNS))
    is_of_rank = pc.equal(steps["rank"], rank)
    of_rank_ns = pc.mean(idle_ns.filter(is_of_rank)).as_py()
    of_others_ns = pc.mean(idle_ns.filter(pc.invert(is_of_rank))).as_py()
    if of_rank_ns is None or of_others_ns is None:
        return False
    longer_ns = of_rank_ns - of_others_ns
    return bool(longer_ns >= MIN_PART_OF_LATENESS * lateness_ns)


class _Totals(NamedTuple):
    """How many samples of a cause and how many steps there are, whatever the line."""

    n_of_samples: int
    n_of_steps: int


def _totals(question: _Question, frame: str) -> _Totals:
    """Return the number of samples that have a frame of this kind, and of steps."""
    rows = select_rows(question.lines, "frame", frame)
    n_samples = _sum_of(rows, f"n_{question.cause}_samples")
    return _Totals(n_samples, question.steps.num_rows)


def _figures_of_lines(question: _Question) -> dict[str, Any]:
    """Return the line that most samples of a cause are at, or why it is not known.

    It is a line of the user's program if one has most samples. Otherwise it is the innermost line,
    and the figures of `_figures_of_stacks` are added.
    """
    # Each sample has one innermost line, so these are all samples.
    totals = _totals(question, INNERMOST)
    if totals.n_of_samples < MIN_SAMPLES:
        return {LINE_UNKNOWN: TOO_FEW}
    innermost = _main_line(question, INNERMOST)
    line = _main_line(question, IN_PROGRAM)
    figures: dict[str, Any] = {}
    if line is None or not _is_main(line, totals):
        # No line of the program has most samples, but the innermost line may have most.
        line = innermost
        figures |= _figures_of_stacks(question, totals)
    if line is not None and _is_unseen(line, totals):
        return {LINE_UNKNOWN: NOT_SEEN_IN_TIME} | _let_go_figures(question)
    if line is None or line.file == NOT_SEEN or not _is_main(line, totals):
        # The function and the call may be known without a line.
        return figures or {LINE_UNKNOWN: NO_MAIN_LINE}
    figures[HOST_LINE] = _figure_of(line, totals)
    if innermost is not None and not innermost.is_at_same_place(line):
        figures[INNERMOST_LINE] = _figure_of(innermost, totals)
    return figures


def _let_go_figures(question: _Question) -> dict[str, Any]:
    """Return the line at which the thread let go of Python's lock, for most delayed samples.

    A sample that is due while the thread holds the lock is only taken when the thread lets go. The
    result is empty if no line has most of these samples.
    """
    line = _main_line(question, LET_GO)
    totals = _totals(question, LET_GO)
    if line is None or line.n_samples < MIN_SHARE_OF_SAMPLES * totals.n_of_samples:
        return {}
    return {LET_GO_LINE: _figure_of(line, totals)}


def _is_unseen(line: _Line, totals: _Totals) -> bool:
    """Tell whether most samples could not be taken in time. In which steps does not matter."""
    min_samples = MIN_SHARE_OF_SAMPLES * totals.n_of_samples
    return line.file == NOT_SEEN and line.n_samples >= min_samples


def _figures_of_stacks(question: _Question, totals: _Totals) -> dict[str, Any]:
    """Return the function and the call that are in the stack of most samples, if there are any."""
    figures = {}
    function = _main_frame(question, FUNCTION, totals)
    if function is not None:
        figures[HOST_FUNCTION] = _figure_of(function, totals)
    call = _main_frame(question, CALL, totals)
    if call is not None:
        figures[HOST_CALL] = _figure_of(call, totals)
        # A call is at one line, and only a function has a last line.
        del figures[HOST_CALL]["last_line"]
    return figures


def _main_frame(question: _Question, frame: str, totals: _Totals) -> _Place | None:
    """Return the innermost call or function that is in the stacks of most samples of a cause.

    A candidate is in half of the samples of the cause, and has samples in half of the steps. A
    frame that is also in nearly all other samples is the training loop. It explains no idle time,
    so it is no candidate. Of the candidates with about the most samples, the innermost is returned;
    None without candidates.
    """
    rows = select_rows(question.lines, "frame", frame)
    keys = ["file", "function"]
    if frame == CALL:
        keys.append("line")
    of_program = select_rows(question.lines, "frame", IN_PROGRAM)
    n_other_samples = _count_other_samples(of_program, question)
    candidates = []
    for candidate in _sums_of_frames(rows, question.cause, keys):
        is_main = _is_main(candidate.place, totals)
        is_loop = _is_in_nearly_all(candidate.n_other_samples, n_other_samples)
        if is_main and not is_loop:
            candidates.append(candidate)
    most_samples = max((candidate.place.n_samples for candidate in candidates), default=0)
    min_samples = MIN_PART_OF_MOST * most_samples
    frequent = [candidate for candidate in candidates if candidate.place.n_samples >= min_samples]
    innermost = min(frequent, key=_order_of_frame, default=None)
    return None if innermost is None else innermost.place


def _is_in_nearly_all(n_with_frame: int, n_samples: int) -> bool:
    """Tell whether a call or function is in nearly all samples. False for few samples."""
    if n_samples < MIN_SAMPLES:
        return False
    return n_with_frame >= MAX_SHARE_OF_OTHER_TIMES * n_samples


def _count_other_samples(rows: pa.Table, question: _Question) -> int:
    """Return how many samples are not in the idle time in question."""
    n_samples = _sum_of(rows, "n_samples")
    n_in_question = _sum_of(rows, f"n_{question.cause}_samples")
    return n_samples - n_in_question


def _sum_of(rows: pa.Table, name: str) -> int:
    """Return the sum of a column of counts."""
    total = pc.sum(rows[name])
    return total.as_py() or 0


def _sums_of_frames(rows: pa.Table, cause: str, keys: list[str]) -> list[_FrameSums]:
    """Return calls or functions with their samples, summed over ranks. Keys tell them apart."""
    n_samples = rows["n_samples"].cast(pa.float64())
    depth_sum = pc.multiply(rows["mean_depth"], n_samples)
    with_depth = rows.append_column("depth_sum", depth_sum)
    sums = [("n_samples", "sum"), ("depth_sum", "sum")]
    sums += [(f"n_{cause}_samples", "sum"), (f"n_{cause}_steps", "sum")]
    sums += [("line", "min"), ("last_line", "max")]
    by_frame = with_depth.group_by(keys, use_threads=False)
    pooled = by_frame.aggregate(sums)
    return [_frame_sums(row, cause) for row in pooled.to_pylist()]


def _frame_sums(row: Mapping[str, Any], cause: str) -> _FrameSums:
    """Return a call or function by a row of sums. Its samples and steps are those of the cause."""
    n_samples = row[f"n_{cause}_samples_sum"]
    n_steps = row[f"n_{cause}_steps_sum"]
    n_all_samples = row["n_samples_sum"]
    first_line = row["line_min"]
    last_line = row["last_line_max"]
    place = _Place(
        file=row["file"],
        line=first_line,
        last_line=last_line,
        function=row["function"],
        n_samples=n_samples,
        n_steps=n_steps,
    )
    n_other_samples = n_all_samples - n_samples
    mean_depth = row["depth_sum_sum"] / n_all_samples
    return _FrameSums(place, n_other_samples, mean_depth)


def _order_of_frame(row: _FrameSums) -> tuple[Any, ...]:
    """Return what frames are sorted by.

    The innermost is first: depth counts from the innermost frame. Of equals, the frame with most
    samples is first.
    """
    place = row.place
    most_first = -place.n_samples
    return row.mean_depth, most_first, place.file, place.line, place.function


def _is_main(line: _Line | _Place, totals: _Totals) -> bool:
    """Tell whether a line has half of the samples, and samples in half of the steps."""
    has_samples = line.n_samples >= MIN_SHARE_OF_SAMPLES * totals.n_of_samples
    return has_samples and line.n_steps >= MIN_SHARE_OF_STEPS * totals.n_of_steps


def _main_line(question: _Question, frame: str) -> _Line | None:
    """Return the line with most samples of a cause, of equals the first in the alphabet.

    Only lines of one kind of frame count. None if there are none.
    """
    keys = ["file", "line", "function"]
    samples = f"n_{question.cause}_samples"
    steps = f"n_{question.cause}_steps"
    of_frame = select_rows(question.lines, "frame", frame)
    by_line = of_frame.group_by(keys, use_threads=False)
    sums = by_line.aggregate([(samples, "sum"), (steps, "sum")])
    if not sums.num_rows:
        return None
    in_alphabet = [(key, "ascending") for key in keys]
    first = sums.sort_by([(f"{samples}_sum", "descending"), *in_alphabet]).slice(0, 1)
    (row,) = first.to_pylist()
    return _Line(
        file=row["file"],
        line=row["line"],
        function=row["function"],
        n_samples=row[f"{samples}_sum"],
        n_steps=row[f"{steps}_sum"],
    )
