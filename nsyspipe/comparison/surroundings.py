"""What else differs around two runs: collectives, copies, interconnect, versions and settings."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct, field
from msgspec.structs import replace

from nsyspipe.comparison.changes import StepTable, mean_of, mean_step_time
from nsyspipe.comparison.comparability import collectives_per_step
from nsyspipe.comparison.facts import (
    BANDWIDTH,
    BY_ALL_RANKS,
    BY_GRAPH_NODES,
    BY_LOG,
    BY_PAYLOADS,
    BY_STEPS,
    COMMAND,
    DELAYS,
    ENVIRONMENT,
    NCCL_SETTINGS,
    STARTED_COMMAND,
    TRACE,
    TRACED_EVENTS,
    Compared,
    KnownSides,
    Matter,
    environment_contradicts_log,
    facts_table,
    lack_of_delays,
    longest_delay,
    matters_of,
)
from nsyspipe.comparison.lines import TOPIC as LINES, line_changes
from nsyspipe.comparison.metrics import per_step
from nsyspipe.model.columns import text
from nsyspipe.model.table import FLOAT, Column, TableSchema
from nsyspipe.nsys.command_words import HASHED, MASK, PER_CAPTURE
from nsyspipe.run.work import has_whole_graphs, n_steps

CHANGES = TableSchema(
    name="difference_changes",
    doc=(
        "One row per fact around the runs that differs: numbers in the columns _value, words in "
        "the others."
    ),
    key=("topic", "what"),
    columns=(
        text(
            "topic",
            "steps, collectives, copies, memory, stragglers, lines, link, versions, capture",
        ),
        text("what", "the fact"),
        text("unit", "unit of the numbers, null for words", nullable=True),
        text("baseline", "value of the baseline in words, null if not set", nullable=True),
        text("candidate", "value of the candidate in words, null if not set", nullable=True),
        Column(
            "baseline_value",
            FLOAT,
            "the row's",
            "value of the baseline as a number, mean of several captures",
            nullable=True,
        ),
        Column(
            "candidate_value",
            FLOAT,
            "the row's",
            "value of the candidate as a number, mean of several captures",
            nullable=True,
        ),
        Column("delta", FLOAT, "the row's", "candidate - baseline", nullable=True),
    ),
)


class NumberKey(NamedTuple):
    """Which number around a run: its topic, its name, and its unit."""

    topic: str
    what: str
    unit: str


Numbers = Mapping[NumberKey, float | None]


class NumbersOfSides(NamedTuple):
    """The numbers around baseline and candidate. None for a number that was not recorded."""

    before: Numbers
    after: Numbers


# The captures of each side.
Sides = Sequence[Sequence[StepTable]]


class _NumberMatter(Struct, frozen=True):
    """Numbers around a run that one recording brings."""

    topic: str
    what: str
    recorded_by: str
    number_names: Set[str]

    def keys_in(self, numbers: Numbers) -> list[NumberKey]:
        """Return the keys of the numbers that belong to this matter."""
        keys_of_topic = [key for key in numbers if key.topic == self.topic]
        return [key for key in keys_of_topic if key.what in self.number_names]

    def is_known_in(self, numbers: Numbers) -> bool:
        """Tell whether all numbers of this matter were recorded."""
        values = [numbers[key] for key in self.keys_in(numbers)]
        return bool(values) and None not in values


# Stands for a value of which nobody can tell whether it changed.
HIDDEN = "hmac:?"
_HIDDEN_VALUE = re.compile(rf"{re.escape(shlex.quote(MASK))}|{re.escape(MASK)}")
# Stands behind the name of a fact whose value is hidden.
MAY_HAVE = ", which may have changed"
# Delays of less than this share of a step on both sides look the same.
MIN_LATE_SHARE_OF_STEP = 0.01
# Means that differ by less, as a share of the larger one, look the same.
MAX_ALIKE_SHARE = 1e-3
# A change of a measured number, as a share of the larger side, that may be the cause of another
# change.
MIN_MARKED_SHARE = 0.1

ALL_COLLECTIVES = NumberKey("collectives", "collectives per step", "count")
MESSAGE_BYTES = "message bytes per step"
MEAN_MESSAGE = "mean message of a collective"
DTOD_COPIES = "DtoD copies per step"
DTOD_BYTES = "DtoD bytes per step"
GRADIENT_COPIES = "gradient copies per step"
ALLOCATIONS = "calls per step that allocate GPU memory"
PEAK_ALLOCATED = "peak allocated memory"
PEAK_RESERVED = "peak reserved memory"
ALLOC_RETRIES = "allocator retries"
_COPIES = "number and bytes of copies on the device"
LONGEST_DELAY = "longest delay of a step by a rank"
_STEPS_USED = "steps in the figures"
_TOPICS = (
    "steps",
    "collectives",
    "copies",
    "memory",
    "stragglers",
    LINES,
    "link",
    "versions",
    "capture",
)
_N_COLLECTIVES = ALL_COLLECTIVES.what
_COLLECTIVES = _NumberMatter("collectives", _N_COLLECTIVES, BY_GRAPH_NODES, {_N_COLLECTIVES})
_MESSAGES = _NumberMatter("collectives", MESSAGE_BYTES, BY_PAYLOADS, {MESSAGE_BYTES})
_COPY_NUMBERS = {DTOD_COPIES, GRADIENT_COPIES, DTOD_BYTES}
_DEVICE_COPIES = _NumberMatter("copies", _COPIES, BY_STEPS, _COPY_NUMBERS)
_STRAGGLERS = _NumberMatter("stragglers", DELAYS, BY_ALL_RANKS, {LONGEST_DELAY})
_BUS_BANDWIDTH = _NumberMatter("link", BANDWIDTH, BY_PAYLOADS, {BANDWIDTH})
_NUMBER_MATTERS = (_COLLECTIVES, _MESSAGES, _DEVICE_COPIES, _STRAGGLERS, _BUS_BANDWIDTH)
# What a report records -> what a launcher records of the same, in more words.
_MORE_BY_LAUNCHER = {TRACED_EVENTS: TRACE, STARTED_COMMAND: COMMAND}


class Surroundings(Struct, frozen=True):
    """What differs around two runs, and what of it both sides recorded."""

    changes: pa.Table  # `CHANGES`
    facts: pa.Table  # `FACTS`


class _Comparison(Struct):
    """Rows of `CHANGES`, and the matters that were compared, or could not be."""

    changes: list[dict[str, Any]] = field(default_factory=list)
    compared: list[Compared] = field(default_factory=list)


def surroundings(*sides: Sequence[StepTable]) -> Surroundings:
    """Compare the facts around the captures of baseline and candidate, the two `sides`.

    Numbers are means over ranks, summary steps and captures of a side. Words that differ between
    captures of a side are joined.

    A fact that only one side recorded is no change. A setting is a change if both sides recorded
    their settings, and only one of them has it set. Hashed values are compared if one key hashed
    all of them. Otherwise each hashed value is a change, with words that say that the value may
    have changed.
    """
    numbers = _compare_numbers(sides)
    words = _compare_words(sides)
    changes = [*_n_steps_rows(sides), *numbers.changes]
    changes += line_changes(*sides)
    changes += words.changes
    matters = [*numbers.compared, *words.compared]
    # Both sorts are stable, so rows of one topic stay in the order in which they were compared.
    changes.sort(key=lambda row: _TOPICS.index(row["topic"]))
    matters.sort(key=lambda matter: _TOPICS.index(matter.topic))
    return Surroundings(CHANGES.from_rows(changes), facts_table(matters))


# --- numbers --------------------------------------------------------------------------------------
def _n_steps_rows(sides: Sides) -> list[dict[str, Any]]:
    """Return the row of the number of steps used; no row if it is the same on both sides.

    A side of several captures has a number for each of them. Then the row is in words.
    """
    n_steps_before = _n_steps_of_captures(sides[0])
    n_steps_after = _n_steps_of_captures(sides[1])
    if n_steps_before == n_steps_after:
        return []
    if len(n_steps_before) == 1 and len(n_steps_after) == 1:
        key = NumberKey("steps", _STEPS_USED, "count")
        return [_number_row(key, float(n_steps_before[0]), float(n_steps_after[0]))]
    before_text = ", ".join(map(str, n_steps_before))
    after_text = ", ".join(map(str, n_steps_after))
    return _word_rows("steps", _STEPS_USED, before_text, after_text)


def _n_steps_of_captures(side: Sequence[StepTable]) -> list[int]:
    return [n_steps(capture.run) for capture in side]


def _compare_numbers(sides: Sides) -> _Comparison:
    """Compare collectives, copies, delays and bandwidth.

    Nothing is compared if a capture was saved under older definitions. All numbers are unknown if a
    capture has no steps.
    """
    captures = [*chain.from_iterable(sides)]
    # Counts and times of communication mean something else under older definitions.
    if any(capture.outdated_columns for capture in captures):
        return _Comparison()
    if not all(capture.n_steps for capture in captures):
        unknown_matters = list(map(_unknown_numbers, _NUMBER_MATTERS))
        return _Comparison(compared=unknown_matters)
    numbers = NumbersOfSides(_mean_numbers(sides[0]), _mean_numbers(sides[1]))
    keys = _comparable_keys(numbers, captures)
    different = _different_numbers(numbers, keys, _min_late_ns(sides))
    comparison = _Comparison()
    for key, (before, after) in different.items():
        if not _repeats_total(key, before, after, numbers):
            comparison.changes.append(_number_row(key, before, after))
    for matter in _NUMBER_MATTERS:
        compared = _compare_number_matter(matter, sides, numbers, different)
        comparison.compared.append(compared)
    return comparison


def _unknown_numbers(matter: _NumberMatter) -> Compared:
    """Return a matter of numbers that no side has, because a capture has no steps."""
    neither = KnownSides(baseline=False, candidate=False)
    return Compared(matter.topic, matter.what, BY_STEPS, neither, is_same=None)


def _min_late_ns(sides: Sides) -> float:
    """Return the delay from which on a rank is called late, ns: a share of the shorter step time.

    It is 0 if a side has no step time.
    """
    step_times_ns = [mean_step_time(side) or 0 for side in sides]
    return MIN_LATE_SHARE_OF_STEP * float(min(step_times_ns))


def _comparable_keys(numbers: NumbersOfSides, captures: Sequence[StepTable]) -> list[NumberKey]:
    """Return the keys of the numbers that can be compared.

    They are in the order of their topics. The total of all collectives comes before the numbers of
    each kind of collective.

    A kind that only one side has is compared too, with 0 on the other side. But CUDA graphs that
    were captured as a whole hide the kinds inside. If a side has such graphs, only numbers that
    both sides have are compared.
    """
    if _has_whole_graphs(captures):
        keys = numbers.before.keys() & numbers.after.keys()
    else:
        keys = numbers.before.keys() | numbers.after.keys()
    # False sorts before True, so the total is the first of its topic.
    return sorted(keys, key=lambda key: (key.topic, key != ALL_COLLECTIVES, key))


def _has_whole_graphs(captures: Iterable[StepTable]) -> bool:
    """Tell whether a capture recorded CUDA graphs as a whole, so that it hides their operations."""
    return any(has_whole_graphs(capture.run) for capture in captures)


def _different_numbers(
    numbers: NumbersOfSides, keys: Iterable[NumberKey], min_late_ns: float
) -> dict[NumberKey, tuple[float, float]]:
    """Return baseline and candidate of the numbers that differ, in the order of the keys.

    A number that a side does not have is 0 there. A number that a side did not record is left out.
    """
    different = {}
    for key in keys:
        before = numbers.before.get(key, 0.0)
        after = numbers.after.get(key, 0.0)
        if before is None or after is None:
            continue
        if not _is_alike(key.unit, before, after, min_late_ns):
            different[key] = (before, after)
    return different


def _repeats_total(key: NumberKey, before: float, after: float, numbers: NumbersOfSides) -> bool:
    """Tell whether a number repeats the total of collectives, so that its row would add nothing.

    This is so if all collectives of both sides are of one sort.
    """
    if key.topic != "collectives" or key == ALL_COLLECTIVES:
        return False
    total_before = numbers.before[ALL_COLLECTIVES]
    total_after = numbers.after[ALL_COLLECTIVES]
    return before == total_before and after == total_after


def _compare_number_matter(
    matter: _NumberMatter,
    sides: Sides,
    numbers: NumbersOfSides,
    different: Iterable[NumberKey],
) -> Compared:
    """Return on which sides a matter of numbers was recorded, and whether both have the same.

    If the matter has a single number, and only one side recorded it, the result has that number.
    """
    before, after = numbers
    known_sides = KnownSides(matter.is_known_in(before), matter.is_known_in(after))
    keys = matter.keys_in({**before, **after})
    captures_of_sides_without: list[StepTable] = []
    for side, is_known in zip(sides, known_sides, strict=True):
        if not is_known:
            captures_of_sides_without += side
    baseline_why = _why_unknown(matter, sides[0], is_known=known_sides.baseline)
    candidate_why = _why_unknown(matter, sides[1], is_known=known_sides.candidate)
    compared = Compared(
        topic=matter.topic,
        what=matter.what,
        recorded_by=_recorder_of_numbers(matter, captures_of_sides_without),
        known_sides=known_sides,
        is_same=set(keys).isdisjoint(different),
        whys=(baseline_why, candidate_why),
    )
    if not known_sides.is_one_side or len(matter.number_names) > 1:
        return compared
    (key,) = keys
    value = before[key] if known_sides.baseline else after[key]
    return replace(compared, words=key.what, unit=key.unit, value=value)


def _why_unknown(matter: _NumberMatter, side: Sequence[StepTable], *, is_known: bool) -> str | None:
    """Return why a side lacks numbers; None if it has them, or if no reason is known."""
    if is_known or matter.what != DELAYS:
        return None
    lacks = map(lack_of_delays, side)
    return _join_whys(lack.why for lack in lacks)


def _join_whys(whys: Iterable[str | None]) -> str | None:
    """Return the distinct reasons as one text; None if there is none."""
    distinct = dict.fromkeys(filter(None, whys))
    return " | ".join(distinct) or None


def _recorder_of_numbers(
    matter: _NumberMatter, captures_of_sides_without: Sequence[StepTable]
) -> str | None:
    """Return what would record a matter of numbers on the sides that lack it.

    `captures_of_sides_without` are all captures of these sides. For delays, the result depends on
    what the captures lack, and is None if nothing would record the delays. Captures with CUDA
    graphs as a whole need the operations inside the graphs, and not other steps.
    """
    if matter.what == DELAYS and captures_of_sides_without:
        lacks = map(lack_of_delays, captures_of_sides_without)
        recorders = (lack.recorded_by for lack in lacks)
        return next(filter(None, recorders), None)
    if matter.recorded_by == BY_STEPS and _has_whole_graphs(captures_of_sides_without):
        return BY_GRAPH_NODES
    return matter.recorded_by


def _is_alike(unit: str, before: float, after: float, min_late_ns: float) -> bool:
    """Tell whether the difference of two numbers is too small to be told.

    Whole counts have to be equal. Numbers in ns are delays, which are alike if nobody is late on
    either side. All other numbers may differ by a share of the larger one. The share is larger for
    a bandwidth, because a measured bandwidth is never the same twice.
    """
    are_whole = before.is_integer() and after.is_integer()
    if unit == "count" and are_whole:
        return before == after
    if unit == "ns" and max(before, after) < min_late_ns:
        return True
    max_share = MIN_MARKED_SHARE if unit == "bytes/s" else MAX_ALIKE_SHARE
    larger = max(abs(before), abs(after))
    difference = abs(after - before)
    return difference <= max_share * larger


def _number_row(key: NumberKey, before: float, after: float) -> dict[str, Any]:
    delta = after - before
    numbers = {"baseline_value": before, "candidate_value": after, "delta": delta}
    return key._asdict() | numbers


def _mean_numbers(side: Sequence[StepTable]) -> dict[NumberKey, float | None]:
    """Return the numbers around a side, as means over its captures.

    A mean is None if a capture did not record the number.
    """
    numbers_of_captures = [dict(_numbers_of_capture(capture)) for capture in side]
    means = {}
    for key in chain(*numbers_of_captures):
        # A sort of collective that a capture does not have is 0 there, not unknown.
        values = [numbers.get(key, 0.0) for numbers in numbers_of_captures]
        means[key] = mean_of(values)
    return means


def _numbers_of_capture(capture: StepTable) -> Iterator[tuple[NumberKey, float | None]]:
    """Yield the numbers around a capture; None for those that it did not record."""
    run = capture.run
    summary = run.summary().to_pylist()[0]
    n_collectives = summary["collectives_per_step"]
    n_bytes = summary["message_bytes_per_step"]
    mean_message = None
    if n_bytes is not None and n_collectives:
        mean_message = n_bytes / n_collectives
    yield ALL_COLLECTIVES, n_collectives
    yield NumberKey("collectives", MESSAGE_BYTES, "bytes"), n_bytes
    yield NumberKey("collectives", MEAN_MESSAGE, "bytes"), mean_message
    n_copies = _mean_of_column(capture, "n_dtod")
    n_gradient_copies = _mean_of_column(capture, "n_grad_copies")
    yield NumberKey("copies", DTOD_COPIES, "count"), n_copies
    yield NumberKey("copies", GRADIENT_COPIES, "count"), n_gradient_copies
    yield NumberKey("copies", DTOD_BYTES, "bytes"), summary["dtod_bytes_per_step"]
    yield from _memory_numbers(capture)
    yield NumberKey("link", BANDWIDTH, "bytes/s"), _median_bandwidth(capture)
    yield NumberKey("stragglers", LONGEST_DELAY, "ns"), longest_delay(capture)
    # Inside CUDA graphs that were captured as a whole, some collectives may not have been seen.
    if not has_whole_graphs(run):
        for sort, number in collectives_per_step(run).items():
            yield NumberKey("collectives", f"{sort} per step", "count"), number


def _memory_numbers(capture: StepTable) -> Iterator[tuple[NumberKey, float | None]]:
    """Yield how often a step allocates GPU memory, and the largest figure of any rank.

    These figures are the peaks of allocated and of reserved memory, and the allocator's retries.
    """
    yield NumberKey("memory", ALLOCATIONS, "count"), _mean_of_column(capture, "n_allocs")
    ranks = capture.run.ranks
    largest_allocated = _largest(ranks["peak_allocated_bytes"])
    largest_reserved = _largest(ranks["peak_reserved_bytes"])
    yield NumberKey("memory", PEAK_ALLOCATED, "bytes"), largest_allocated
    yield NumberKey("memory", PEAK_RESERVED, "bytes"), largest_reserved
    yield NumberKey("memory", ALLOC_RETRIES, "count"), _largest(ranks["n_alloc_retries"])


def _largest(column: pa.ChunkedArray) -> float | None:
    """Return the largest value over ranks; None if the value of a rank is not known."""
    largest = pc.max(column, skip_nulls=False).as_py()
    return None if largest is None else float(largest)


def _median_bandwidth(capture: StepTable) -> float | None:
    """Return the median over steps of the bus bandwidth, bytes/s; None if it is not known."""
    bandwidths_or_reason = per_step(capture, "busbw")
    if isinstance(bandwidths_or_reason, str):
        return None
    return float(np.median(bandwidths_or_reason))


def _mean_of_column(capture: StepTable, column: str) -> float | None:
    values = capture.matrix(column)
    if values is None:
        return None
    return float(values.mean())


# --- words ----------------------------------------------------------------------------------------
class _MatterOfSide(Struct, frozen=True):
    """One matter of words as the captures of a side have it."""

    # The same matter, once per capture.
    in_captures: Sequence[Matter]
    # Of all captures by name, joined where they differ.
    words: Mapping[str, str]

    @property
    def matter(self) -> Matter:
        """The matter in the first capture."""
        return self.in_captures[0]

    @property
    def in_captures_without(self) -> list[Matter]:
        """The matter of those captures that did not record it: what would, and why not."""
        return [matter for matter in self.in_captures if not matter.is_known]

    @property
    def is_known(self) -> bool:
        """Whether all captures recorded the matter."""
        return not self.in_captures_without

    @property
    def why_unknown(self) -> str | None:
        """Why captures do not have the matter, if more is known than what would record it."""
        return _join_whys(matter.why_unknown for matter in self.in_captures_without)


class _WordRows(NamedTuple):
    """Rows of `CHANGES` of one matter of words."""

    rows: list[dict[str, Any]]
    # Settings that NCCL's logs of all captures name too. The matter of the logs compares them, so
    # that these rows are not shown. They only say that this matter is not the same.
    rows_left_to_logs: list[dict[str, Any]]


def _compare_words(sides: Sides) -> _Comparison:
    """Compare versions, settings, commands and other facts in words."""
    captures_before, captures_after = (list(map(matters_of, side)) for side in sides)
    can_compare_hashes = _can_compare_hashes(sides)
    matters_before = _matters_of_side(captures_before, can_compare_hashes=can_compare_hashes)
    matters_after = _matters_of_side(captures_after, can_compare_hashes=can_compare_hashes)
    all_captures = [*captures_before, *captures_after]
    is_contradicted = any(map(environment_contradicts_log, all_captures))
    comparison = _Comparison()
    for before, after in zip(matters_before, matters_after, strict=True):
        # What NCCL's logs tell counts more than the environment variables of the same names.
        is_environment = before.matter.what == ENVIRONMENT
        names_left_to_logs = _names_in_logs(all_captures) if is_environment else set()
        may_be_same = not (is_environment and is_contradicted)
        changes = _changes_of_matter(before, after, names_left_to_logs)
        comparison.changes += changes.rows
        comparison.compared.append(
            _compare_word_matter(before, after, changes, may_be_same=may_be_same)
        )
    return comparison


def _matters_of_side(
    matters_of_captures: Sequence[Sequence[Matter]], *, can_compare_hashes: bool
) -> list[_MatterOfSide]:
    """Return the matters of a side, each over all captures of the side.

    Every capture has the same matters in the same order, which is the order of the result too.
    """
    matters = []
    for in_captures in zip(*matters_of_captures, strict=True):
        words = _join_words(in_captures, can_compare_hashes=can_compare_hashes)
        matters.append(_MatterOfSide(in_captures, words))
    return matters


def _changes_of_matter(
    before: _MatterOfSide, after: _MatterOfSide, names_left_to_logs: set[str]
) -> _WordRows:
    """Return the words of a matter that differ between the sides, by name.

    If both sides recorded settings, a setting that only one side has was not set on the other side,
    which is a difference. Any other word is compared only if both sides have it.
    """
    matter = before.matter
    are_settings_known = matter.is_setting and before.is_known and after.is_known
    common_names = before.words.keys() & after.words.keys()
    changes = _WordRows([], [])
    for name in sorted({*before.words, *after.words}):
        can_be_compared = name in common_names or are_settings_known
        # If the launchers of both sides recorded more words of the same fact, those are compared.
        has_more_words_by_launchers = _MORE_BY_LAUNCHER.get(name) in common_names
        if not can_be_compared or has_more_words_by_launchers:
            continue
        rows = changes.rows_left_to_logs if name in names_left_to_logs else changes.rows
        rows += _word_rows(matter.topic, name, before.words.get(name), after.words.get(name))
    return changes


def _compare_word_matter(
    before: _MatterOfSide, after: _MatterOfSide, changes: _WordRows, *, may_be_same: bool
) -> Compared:
    """Return on which sides a matter of words was recorded, and whether both have the same.

    The result has the words of the only side that recorded the matter. If both did, it has the
    words if both sides have the same.
    """
    matter = before.matter
    known_sides = _comparable_sides(before, after)
    is_same = _are_words_same(changes, may_be_same=may_be_same)
    words = None
    if known_sides.baseline and known_sides.candidate:
        words = _words_text(matter, before.words) if is_same else None
    elif known_sides.baseline:
        words = _words_text(matter, before.words)
    elif known_sides.candidate:
        words = _words_text(matter, after.words)
    return Compared(
        topic=matter.topic,
        what=matter.what,
        recorded_by=_recorder_of_words(before, after),
        known_sides=known_sides,
        is_same=is_same,
        words=words,
        whys=(before.why_unknown, after.why_unknown),
    )


def _comparable_sides(before: _MatterOfSide, after: _MatterOfSide) -> KnownSides:
    """Return which sides recorded a matter.

    If both did, but have no name of a word in common, nothing can be compared. Then the result is
    as if neither side had recorded the matter. Settings can be compared even then.
    """
    has_common_words = not before.words.keys().isdisjoint(after.words)
    can_be_compared = before.matter.is_setting or has_common_words
    if before.is_known and after.is_known and not can_be_compared:
        return KnownSides(baseline=False, candidate=False)
    return KnownSides(before.is_known, after.is_known)


def _are_words_same(changes: _WordRows, *, may_be_same: bool) -> bool | None:
    """Tell whether a matter is the same on both sides; None if that is hidden or contradicted.

    `may_be_same` is false if NCCL's log of a run contradicts its environment. Rows that are left to
    the logs are not shown, but they are differences too.
    """
    names = [row["what"] for row in changes.rows]
    if any(name.endswith(MAY_HAVE) for name in names):
        return None
    if changes.rows or changes.rows_left_to_logs:
        return False
    return True if may_be_same else None


def _recorder_of_words(before: _MatterOfSide, after: _MatterOfSide) -> str | None:
    """Return what would record a matter in all captures that lack it.

    If no capture lacks the matter, the result is what recorded it. Otherwise it is what the first
    capture needs, with one exception. If NCCL's log is missing, a capture that wrote a log only
    needs an option. But if another capture wrote none, the result is a new run with a log.
    """
    in_captures_without = [*before.in_captures_without, *after.in_captures_without]
    if not in_captures_without:
        return before.matter.recorded_by
    recorders = [matter.recorded_by for matter in in_captures_without]
    # What a capture needs that wrote no log.
    if BY_LOG in recorders:
        return BY_LOG
    return next(filter(None, recorders), None)


def _words_text(matter: Matter, words: Mapping[str, str]) -> str | None:
    """Return the words of a matter as one text; None if there are no words.

    A setting is "NAME=WORD". Any other word is "NAME WORD", or only "WORD" if it is the only one.
    """
    if not matter.is_setting and len(words) == 1:
        (word,) = words.values()
        return word
    separator = "=" if matter.is_setting else " "
    named_words = map(separator.join, words.items())
    return ", ".join(named_words) or None


def _can_compare_hashes(sides: Sides) -> bool:
    """Tell whether equal hashes mean equal values: one key has hashed the values of all captures.

    A key that was made for a single capture is not kept, so it cannot have hashed another one.
    """
    captures = chain.from_iterable(sides)
    sidecars = [capture.run.header.capture for capture in captures]
    keys = {sidecar.hash_key for sidecar in sidecars if sidecar is not None}
    return len(keys) == 1 and keys.isdisjoint({None, PER_CAPTURE})


def _names_in_logs(matters_of_runs: Sequence[Sequence[Matter]]) -> set[str]:
    """Return the names of settings that NCCL's logs tell of; no name if a run has no log.

    Logs say what NCCL took, which counts more than what the programs were started with.
    """
    all_matters = chain.from_iterable(matters_of_runs)
    logs = [matter for matter in all_matters if matter.what == NCCL_SETTINGS]
    if not all(log.is_known for log in logs):
        return set()
    names = chain.from_iterable(log.words for log in logs)
    return set(names)


def _word_rows(
    topic: str, what: str, before: str | None, after: str | None
) -> list[dict[str, Any]]:
    """Return the row of a fact in words, if the fact differs or may differ; else no row.

    Hidden values may differ even if their words are equal.
    """
    are_words_equal = before == after
    is_hidden = before is not None and HIDDEN in before
    if are_words_equal and not is_hidden:
        return []
    name = f"{what}{MAY_HAVE}" if are_words_equal else what
    return [{"topic": topic, "what": name, "baseline": before, "candidate": after}]


def _join_words(in_captures: Sequence[Matter], *, can_compare_hashes: bool) -> dict[str, str]:
    """Return the words of a matter by name, with the distinct words of all captures of a side.

    The same text, `HIDDEN`, stands for every hidden value. It stands for hashed values too, unless
    hashes can be compared.
    """
    # The keys of each inner dict are the distinct words, in the order in which they were met.
    words_by_name: dict[str, dict[str, None]] = {}
    for matter in in_captures:
        for name, word in matter.words.items():
            comparable = word if can_compare_hashes else HASHED.sub(HIDDEN, word)
            shown = _HIDDEN_VALUE.sub(HIDDEN, comparable)
            distinct_words = words_by_name.setdefault(name, {})
            distinct_words[shown] = None
    return {name: " | ".join(distinct_words) for name, distinct_words in words_by_name.items()}
