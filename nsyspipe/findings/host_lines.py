"""The line of Python at which the host was while its GPU idled, as evidence of a finding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
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
from nsyspipe.model.table import Int64

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
_NS_PER_S = 1_000_000_000
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
# not recorded, and its share of this idle time.
LOCK_WAIT = "lock_wait_ns_per_step"
LOCK_WAIT_SHARE = "lock_wait_share"
# Shorter waits for the lock do not explain idle time.
MIN_SHARE_OF_LOCK = 0.1
# Between which lines a thread held Python's lock. Of the main thread if most samples could not be
# taken in time, and of another thread if the launching thread waits for the lock.
LOCK_HELD = "lock_held"
LOCK_HELD_BY_OTHER = "lock_held_by_other"
# In times of holding the lock, a line of a function has two places: itself, and the code behind it.
_PLACES_PER_LINE = 2
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
MANY_MISSING = "too many samples are missing to name one line"


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


class _Hold(NamedTuple):
    """The code between two lines, which ran while a thread held Python's lock.

    The samples are those that were due meanwhile.
    """

    after_file: str
    after_line: int
    after_function: str
    file: str
    line: int
    function: str
    n_samples: int
    # There are at least so many steps with such a sample.
    n_steps: int

    @property
    def is_in_one_function(self) -> bool:
        """Whether both lines are in the same function."""
        return self.after_file == self.file and self.after_function == self.function


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
    # How many samples were due in this idle time. nsys takes fewer, for example while a thread
    # holds Python's lock. 0 if the rate of sampling is not known.
    n_due_samples: float = 0


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
    has_samples = evidence.host_lines.num_rows > 0
    if not has_samples and not evidence.lock_waits:
        return why_no_line
    rank = _rank_of(evidence, finding)
    lines = evidence.host_lines
    steps = evidence.steps
    if rank is not None:
        lines = select_rows(lines, "rank", rank)
        steps = select_rows(steps, "rank", rank)
    question = _Question(lines, steps, cause)
    n_due_samples = _count_due_samples(question, evidence.python_samples_per_s)
    question = question._replace(n_due_samples=n_due_samples)
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

    The share of idle time is added if both times are known. If that share is large, the lines
    between which another thread held the lock are added. These lines need most of the samples of
    that thread, and samples in half of the steps.
    """
    figures: dict[str, Any] = {LOCK_WAIT: wait_ns}
    idle_ns = _mean_idle_ns(question)
    if wait_ns is None or not idle_ns:
        return figures
    share_of_idle = wait_ns / idle_ns
    figures[LOCK_WAIT_SHARE] = share_of_idle
    if share_of_idle < MIN_SHARE_OF_LOCK:
        return figures
    hold = _main_hold(question, LOCK_HOLDER)
    min_steps = MIN_SHARE_OF_STEPS * question.steps.num_rows
    if hold is not None and hold.n_steps >= min_steps:
        figures[LOCK_HELD_BY_OTHER] = _figure_of_hold(question, LOCK_HOLDER, hold)
    return figures


def _figure_of(place: _Line | _Place, totals: _Totals) -> dict[str, Any]:
    """Return a place as a figure of a finding."""
    figure = place._asdict()
    return figure | totals._asdict()


def _count_due_samples(question: _Question, samples_per_s: float | None) -> float:
    """Return how many samples nsys should take in the idle time in question.

    Only ranks with samples count. 0 if the rate or the idle time is not known.
    """
    if samples_per_s is None:
        return 0
    sampled_ranks = question.lines["rank"].unique()
    is_sampled = pc.is_in(question.steps["rank"], sampled_ranks)
    n_due_samples = 0.0
    for column in _columns_of_cause(question.cause):
        idle_ns = pc.sum(question.steps[column].filter(is_sampled)).as_py()
        if idle_ns is None:
            return 0
        n_due_samples += idle_ns / _NS_PER_S * samples_per_s
    return n_due_samples


def _columns_of_cause(cause: str) -> Sequence[str]:
    """Return the columns of `schema.STEPS` with the idle time of a cause."""
    return _IDLE_COLUMNS if cause == _ANY_CAUSE else (f"idle_{cause}_ns",)


def _mean_idle_ns(question: _Question) -> float | None:
    """Return the idle time in question, a mean over steps and ranks, ns; None if not known."""
    means_ns = []
    for column in _columns_of_cause(question.cause):
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
        return {LINE_UNKNOWN: NOT_SEEN_IN_TIME} | _hold_figures(question)
    reason = _why_not_named(line, question, totals)
    if line is None or reason is not None:
        # The function and the call may be known without a line.
        return figures or {LINE_UNKNOWN: reason}
    figures[HOST_LINE] = _figure_of(line, totals)
    if innermost is not None and not innermost.is_at_same_place(line):
        figures[INNERMOST_LINE] = _figure_of(innermost, totals)
    return figures


def _why_not_named(line: _Line | None, question: _Question, totals: _Totals) -> str | None:
    """Return why a finding does not name the line with most samples; None if it names it."""
    if line is None or line.file == NOT_SEEN or not _is_main(line, totals):
        return NO_MAIN_LINE
    return MANY_MISSING if _may_be_minor(line, question) else None


def _hold_figures(question: _Question) -> dict[str, Any]:
    """Return between which lines the main thread held Python's lock; empty if not known."""
    hold = _main_hold(question, LET_GO)
    if hold is None:
        return {}
    return {LOCK_HELD: _figure_of_hold(question, LET_GO, hold)}


def _figure_of_hold(question: _Question, frame: str, hold: _Hold) -> dict[str, Any]:
    """Return two lines as a figure of a finding, with their samples, but not with their steps."""
    figure = hold._asdict()
    del figure["n_steps"]
    return figure | {"n_of_samples": _totals(question, frame).n_of_samples}


def _main_hold(question: _Question, frame: str) -> _Hold | None:
    """Return which code ran while a thread held Python's lock, for most of its late samples.

    `frame` says which thread it is. A sample is late if the thread held the lock when the sample
    was due. The code is between two lines. If the same code holds the lock each time, it is in all
    times of holding, so of the holds in one function the part that most of them share is returned.
    None if there are too few late samples, or if no part is in half of them.
    """
    n_late_samples = _totals(question, frame).n_of_samples
    if n_late_samples < MIN_SAMPLES:
        return None
    candidates: list[_Hold] = []
    holds_of_function: dict[tuple[str, str], list[_Hold]] = {}
    for hold in _holds(question, frame):
        if hold.is_in_one_function:
            holds_of_function.setdefault((hold.file, hold.function), []).append(hold)
        else:
            candidates.append(hold)
    for holds in holds_of_function.values():
        candidates += _shared_parts(holds)
    min_samples = MIN_SHARE_OF_SAMPLES * n_late_samples
    frequent = [hold for hold in candidates if hold.n_samples >= min_samples]
    return max(frequent, key=_n_samples, default=None)


def _n_samples(hold: _Hold) -> int:
    return hold.n_samples


def _shared_parts(holds: Sequence[_Hold]) -> list[_Hold]:
    """Return the part of a function that ran in most late samples, in a list.

    All holds are in this function. A hold whose first line is after its other line goes round a
    loop. The list is empty if several separate parts, or all lines of the loop, ran equally often.
    """
    numbers = sorted({number for hold in holds for number in (hold.after_line, hold.line)})
    counts = _count_at_places(holds, numbers)
    is_most_frequent = counts.n_samples == counts.n_samples.max()
    begins = np.flatnonzero(is_most_frequent & ~np.roll(is_most_frequent, 1))
    ends = np.flatnonzero(is_most_frequent & ~np.roll(is_most_frequent, -1))
    if begins.size != 1:
        return []
    (begin,) = begins.tolist()
    (end,) = ends.tolist()
    # The part begins and ends at a line, because each hold does.
    part = holds[0]._replace(
        after_line=numbers[begin // _PLACES_PER_LINE],
        line=numbers[end // _PLACES_PER_LINE],
        n_samples=int(counts.n_samples[begin]),
        n_steps=int(counts.n_steps[begin]),
    )
    return [part]


class _PlaceCounts(NamedTuple):
    """How many samples the holds have that ran each place, and the most steps of one hold."""

    n_samples: Int64
    n_steps: Int64


def _count_at_places(holds: Sequence[_Hold], numbers: Sequence[int]) -> _PlaceCounts:
    """Count at each place of a function in which holds ran it.

    `numbers` are the lines of the holds in order. The places are: the first line, the code between
    it and the next line, the next line, and so on. The last place is the way from the last line
    round the loop to the first.
    """
    n_places = _PLACES_PER_LINE * len(numbers)
    place_of_number = {number: _PLACES_PER_LINE * index for index, number in enumerate(numbers)}
    n_samples = np.zeros(n_places, np.int64)
    n_steps = np.zeros(n_places, np.int64)
    for hold in holds:
        first = place_of_number[hold.after_line]
        n_further = (place_of_number[hold.line] - first) % n_places
        places = np.arange(first, first + n_further + 1) % n_places
        n_samples[places] += hold.n_samples
        n_steps[places] = np.maximum(n_steps[places], hold.n_steps)
    return _PlaceCounts(n_samples, n_steps)


def _holds(question: _Question, frame: str) -> list[_Hold]:
    """Return each pair of lines between which a thread held Python's lock, of all ranks.

    Only samples of the cause count. Pairs without a first line are left out.
    """
    keys = ["after_file", "after_line", "after_function", "file", "line", "function"]
    samples = f"n_{question.cause}_samples"
    steps = f"n_{question.cause}_steps"
    of_frame = select_rows(question.lines, "frame", frame)
    has_first_line = pc.is_valid(of_frame["after_line"])
    by_lines = of_frame.filter(has_first_line).group_by(keys, use_threads=False)
    sums = by_lines.aggregate([(samples, "sum"), (steps, "sum")])
    holds = []
    for row in sums.to_pylist():
        lines = {key: row[key] for key in keys}
        counts = {"n_samples": row[f"{samples}_sum"], "n_steps": row[f"{steps}_sum"]}
        holds.append(_Hold(**lines, **counts))
    return holds


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

    A candidate is in half of the samples that were due, and has samples in half of the steps. A
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
        is_main = _is_main(candidate.place, totals) and not _may_be_minor(candidate.place, question)
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


def _may_be_minor(line: _Line | _Place, question: _Question) -> bool:
    """Tell whether a line may have less than half of the samples that were due in the idle time.

    The samples that nsys did not take may be at other lines.
    """
    return line.n_samples < MIN_SHARE_OF_SAMPLES * question.n_due_samples


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
