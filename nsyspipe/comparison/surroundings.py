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
        of_topic = [key for key in numbers if key.topic == self.topic]
        return [key for key in of_topic if key.what in self.number_names]

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
    captures of a side are joined. If the reports of a side cannot tell a fact, nothing has changed.
    If they tell that a setting is not set on one side only, it has changed. Hashed values are
    compared if one key hashed all of them. Otherwise they may have changed.
    """
    numbers = _compare_numbers(sides)
    words = _compare_words(sides)
    # Both sorts are stable: within a topic the order of the comparison stays.
    compared = [*numbers.compared, *words.compared]
    compared.sort(key=lambda matter: _TOPICS.index(matter.topic))
    rows = [*_n_steps_rows(sides), *numbers.changes]
    rows += line_changes(*sides)
    rows += words.changes
    rows.sort(key=lambda row: _TOPICS.index(row["topic"]))
    return Surroundings(CHANGES.from_rows(rows), facts_table(compared))


# --- numbers --------------------------------------------------------------------------------------
def _n_steps_rows(sides: Sides) -> list[dict[str, Any]]:
    """Return the row of the number of steps used, if it differs: in words for several captures."""
    before = _numbers_of_steps(sides[0])
    after = _numbers_of_steps(sides[1])
    if before == after:
        return []
    if len(before) == 1 and len(after) == 1:
        key = NumberKey("steps", _STEPS_USED, "count")
        (n_before,) = before
        (n_after,) = after
        return [_number_row(key, float(n_before), float(n_after))]
    before_text = ", ".join(map(str, before))
    after_text = ", ".join(map(str, after))
    return _word_rows("steps", _STEPS_USED, before_text, after_text)


def _numbers_of_steps(side: Sequence[StepTable]) -> list[int]:
    return [n_steps(capture.run) for capture in side]


def _compare_numbers(sides: Sides) -> _Comparison:
    """Compare collectives, copies, delays and bandwidth."""
    captures = [*chain.from_iterable(sides)]
    # Counts and times of communication mean something else under older definitions.
    if any(capture.outdated_columns for capture in captures):
        return _Comparison()
    if not all(capture.n_steps for capture in captures):
        unknown = list(map(_unknown_numbers, _NUMBER_MATTERS))
        return _Comparison(compared=unknown)
    before_numbers = _mean_numbers(sides[0])
    after_numbers = _mean_numbers(sides[1])
    numbers = (before_numbers, after_numbers)
    keys = _comparable_keys(numbers, captures)
    different = _different_numbers(numbers, keys, _little_ns(sides))
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
    return Compared(matter.topic, matter.what, BY_STEPS, (False, False), None)


def _little_ns(sides: Sides) -> float:
    """Return the delay below which nobody is called late, ns: a share of the shorter step time."""
    step_times_ns = map(mean_step_time, sides)
    shortest_ns = min(step_time_ns or 0 for step_time_ns in step_times_ns)
    return MIN_LATE_SHARE_OF_STEP * float(shortest_ns)


def _comparable_keys(
    numbers: tuple[Numbers, Numbers], captures: Sequence[StepTable]
) -> list[NumberKey]:
    """Return the numbers that can be compared, by topic, with the total of collectives first.

    A sort of collective that only one side has is 0 on the other. Inside CUDA graphs that were
    captured as a whole it was not seen, so then only numbers of both sides are compared.
    """
    before, after = numbers
    keys = before.keys() | after.keys()
    if _has_whole_graphs(captures):
        keys = before.keys() & after.keys()
    return sorted(keys, key=lambda key: (key.topic, key != ALL_COLLECTIVES, key))


def _has_whole_graphs(captures: Iterable[StepTable]) -> bool:
    """Tell whether a capture recorded CUDA graphs as a whole, so that it hides their operations."""
    return any(has_whole_graphs(capture.run) for capture in captures)


def _different_numbers(
    numbers: tuple[Numbers, Numbers], keys: Iterable[NumberKey], little_ns: float
) -> dict[NumberKey, tuple[float, float]]:
    """Return the numbers that differ between the sides, in the order of the keys."""
    different = {}
    for key in keys:
        before, after = (side.get(key, 0.0) for side in numbers)
        if before is None or after is None:
            continue
        if not _is_alike(key.unit, before, after, little_ns):
            different[key] = (before, after)
    return different


def _repeats_total(
    key: NumberKey, before: float, after: float, numbers: tuple[Numbers, Numbers]
) -> bool:
    """Tell whether a sort of collective is as many as all collectives: then the total is enough."""
    if key.topic != "collectives" or key == ALL_COLLECTIVES:
        return False
    total_before, total_after = (side[ALL_COLLECTIVES] for side in numbers)
    return before == total_before and after == total_after


def _compare_number_matter(
    matter: _NumberMatter,
    sides: Sides,
    numbers: tuple[Numbers, Numbers],
    different: Iterable[NumberKey],
) -> Compared:
    """Return on which sides a matter of numbers was recorded, and whether it is the same there.

    If only one side recorded a matter of a single number, the result has that number.
    """
    before, after = numbers
    is_known = (matter.is_known_in(before), matter.is_known_in(after))
    keys = matter.keys_in({**before, **after})
    is_same = set(keys).isdisjoint(different)
    lacking = [
        side for side, is_side_known in zip(sides, is_known, strict=True) if not is_side_known
    ]
    recorded_by = _recorded_by(matter, lacking)
    compared = Compared(
        topic=matter.topic,
        what=matter.what,
        recorded_by=recorded_by,
        is_known=is_known,
        is_same=is_same,
        whys=_whys_unknown(matter, sides, is_known),
    )
    is_on_one_side = is_known[0] != is_known[1]
    if not is_on_one_side or len(matter.number_names) > 1:
        return compared
    key = keys[0]
    value = before[key] if is_known[0] else after[key]
    return replace(compared, words=key.what, unit=key.unit, value=value)


def _whys_unknown(
    matter: _NumberMatter, sides: Sides, is_known: tuple[bool, bool]
) -> tuple[str | None, str | None]:
    """Return why each side does not have numbers, if more is known than what would record them."""
    whys: list[str | None] = [None, None]
    for index, side in enumerate(sides):
        if matter.what == DELAYS and not is_known[index]:
            lacks = map(lack_of_delays, side)
            whys[index] = _join_whys(lack.why for lack in lacks)
    before_why, after_why = whys
    return before_why, after_why


def _join_whys(whys: Iterable[str | None]) -> str | None:
    distinct = dict.fromkeys(filter(None, whys))
    return " | ".join(distinct) or None


def _recorded_by(matter: _NumberMatter, lacking: Sides) -> str | None:
    """Return what records numbers that some sides do not have.

    If operations inside CUDA graphs were not seen, it is the option that records these.
    """
    captures = [*chain.from_iterable(lacking)]
    if matter.what == DELAYS and captures:
        lacks = map(lack_of_delays, captures)
        recorders = (lack.recorded_by for lack in lacks)
        return next(filter(None, recorders), None)
    if matter.recorded_by == BY_STEPS and _has_whole_graphs(captures):
        return BY_GRAPH_NODES
    return matter.recorded_by


def _is_alike(unit: str, before: float, after: float, little_ns: float) -> bool:
    """Tell whether nobody would see the difference of two numbers; whole counts differ by one."""
    are_whole = before.is_integer() and after.is_integer()
    if unit == "count" and are_whole:
        return before == after
    if unit == "ns" and max(before, after) < little_ns:
        return True
    # A measured bandwidth is never the same twice.
    max_share = MIN_MARKED_SHARE if unit == "bytes/s" else MAX_ALIKE_SHARE
    larger = max(abs(before), abs(after))
    difference = abs(after - before)
    return difference <= max_share * larger


def _number_row(key: NumberKey, before: float, after: float) -> dict[str, Any]:
    delta = after - before
    numbers = {"baseline_value": before, "candidate_value": after, "delta": delta}
    return key._asdict() | numbers


def _mean_numbers(side: Sequence[StepTable]) -> dict[NumberKey, float | None]:
    """Return the numbers around a side, as means over its captures."""
    captures = [dict(_numbers_of_capture(capture)) for capture in side]
    means = {}
    for key in chain(*captures):
        # A sort of collective that a capture does not have is 0 there, not unknown.
        values = [numbers.get(key, 0.0) for numbers in captures]
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
    """Yield how often steps allocate GPU memory, and the peaks of the rank with most."""
    yield NumberKey("memory", ALLOCATIONS, "count"), _mean_of_column(capture, "n_allocs")
    ranks = capture.run.ranks
    largest_allocated = _largest(ranks["peak_allocated_bytes"])
    largest_reserved = _largest(ranks["peak_reserved_bytes"])
    yield NumberKey("memory", PEAK_ALLOCATED, "bytes"), largest_allocated
    yield NumberKey("memory", PEAK_RESERVED, "bytes"), largest_reserved
    yield NumberKey("memory", ALLOC_RETRIES, "count"), _largest(ranks["n_alloc_retries"])


def _largest(column: pa.ChunkedArray) -> float | None:
    """Return the largest value over ranks; None if it is not known of all."""
    largest = pc.max(column, skip_nulls=False).as_py()
    return None if largest is None else float(largest)


def _median_bandwidth(capture: StepTable) -> float | None:
    """Return the median over steps of the bus bandwidth, bytes/s; None if it is not known."""
    bandwidths = per_step(capture, "busbw")
    if isinstance(bandwidths, str):
        return None
    return float(np.median(bandwidths))


def _mean_of_column(capture: StepTable, column: str) -> float | None:
    values = capture.matrix(column)
    if values is None:
        return None
    return float(values.mean())


# --- words ----------------------------------------------------------------------------------------
class _MatterOfSide(Struct, frozen=True):
    """One matter of words as the captures of a side have it."""

    captures: Sequence[Matter]
    # Of all captures by name, joined where they differ.
    words: Mapping[str, str]

    @property
    def matter(self) -> Matter:
        """The matter in the first capture."""
        return self.captures[0]

    @property
    def unknown_captures(self) -> list[Matter]:
        """Return the matter of those captures that did not record it."""
        return [matter for matter in self.captures if not matter.is_known]

    @property
    def is_known(self) -> bool:
        """Whether all captures recorded the matter."""
        return not self.unknown_captures

    @property
    def why_unknown(self) -> str | None:
        """Why captures do not have the matter, if more is known than what would record it."""
        return _join_whys(matter.why_unknown for matter in self.unknown_captures)


class _WordRows(NamedTuple):
    """Rows of `CHANGES` of one matter of words."""

    rows: list[dict[str, Any]]
    # NCCL's logs of both sides compare these settings too, and have the last word on them.
    rows_by_log: list[dict[str, Any]]


def _compare_words(sides: Sides) -> _Comparison:
    """Compare versions, settings, commands and other facts in words."""
    before = [matters_of(capture) for capture in sides[0]]
    after = [matters_of(capture) for capture in sides[1]]
    matters_of_captures = [*before, *after]
    names_in_logs = _names_in_logs(matters_of_captures)
    is_contradicted = any(map(environment_contradicts_log, matters_of_captures))
    can_compare_hashes = _can_compare_hashes(sides)
    comparison = _Comparison()
    for old, new in _pair_matters(before, after, can_compare_hashes=can_compare_hashes):
        is_environment = old.matter.what == ENVIRONMENT
        names_by_log = names_in_logs if is_environment else set()
        changes = _changes_of_matter(old, new, names_by_log)
        may_be_same = not (is_environment and is_contradicted)
        compared = _compare_word_matter(old, new, changes, may_be_same=may_be_same)
        comparison.changes += changes.rows
        comparison.compared.append(compared)
    return comparison


def _pair_matters(
    before: Sequence[Sequence[Matter]],
    after: Sequence[Sequence[Matter]],
    *,
    can_compare_hashes: bool,
) -> Iterator[tuple[_MatterOfSide, _MatterOfSide]]:
    """Yield each matter of baseline and candidate; every run has the same ones in one order."""
    old_matters = zip(*before, strict=True)
    new_matters = zip(*after, strict=True)
    for old, new in zip(old_matters, new_matters, strict=True):
        old_words = _join_words(old, can_compare_hashes=can_compare_hashes)
        new_words = _join_words(new, can_compare_hashes=can_compare_hashes)
        before_matter = _MatterOfSide(old, old_words)
        yield before_matter, _MatterOfSide(new, new_words)


def _changes_of_matter(
    old: _MatterOfSide, new: _MatterOfSide, names_in_logs: set[str]
) -> _WordRows:
    """Return the words of a matter that differ between the sides.

    If both sides recorded settings, a setting that is not there was not set. Any other word is
    compared only if both sides have it.
    """
    matter = old.matter
    are_settings_known = matter.is_setting and old.is_known and new.is_known
    common = old.words.keys() & new.words.keys()
    changes = _WordRows([], [])
    for name in sorted({*old.words, *new.words}):
        is_compared = name in common or are_settings_known
        has_more_words = _MORE_BY_LAUNCHER.get(name) in common
        if not is_compared or has_more_words:
            continue
        rows = changes.rows_by_log if name in names_in_logs else changes.rows
        before = old.words.get(name)
        after = new.words.get(name)
        rows += _word_rows(matter.topic, name, before, after)
    return changes


def _compare_word_matter(
    old: _MatterOfSide, new: _MatterOfSide, changes: _WordRows, *, may_be_same: bool
) -> Compared:
    """Return on which sides a matter of words was recorded, and whether it is the same there."""
    matter = old.matter
    is_known = _sides_with_common_words(old, new)
    is_same = _are_words_same(changes, may_be_same=may_be_same)
    is_on_one_side = is_known[0] != is_known[1]
    is_only_in_new = is_known == (False, True)
    words = None
    if is_on_one_side or is_same:
        shown_side = new if is_only_in_new else old
        words = _words_text(matter, shown_side.words)
    recorded_by = matter.recorded_by
    unknown_captures = [*old.unknown_captures, *new.unknown_captures]
    if unknown_captures:
        recorders = [capture.recorded_by for capture in unknown_captures]
        recorded_by = _recorder_for_all(recorders)
    return Compared(
        topic=matter.topic,
        what=matter.what,
        recorded_by=recorded_by,
        is_known=is_known,
        is_same=is_same,
        words=words,
        whys=(old.why_unknown, new.why_unknown),
    )


def _sides_with_common_words(old: _MatterOfSide, new: _MatterOfSide) -> tuple[bool, bool]:
    """Return which sides recorded a matter; neither if both did, but no word of it twice."""
    has_common_words = not old.words.keys().isdisjoint(new.words)
    can_be_compared = old.matter.is_setting or has_common_words
    if old.is_known and new.is_known and not can_be_compared:
        return False, False
    return old.is_known, new.is_known


def _are_words_same(changes: _WordRows, *, may_be_same: bool) -> bool | None:
    """Tell whether a matter is the same on both sides; None if that is hidden or contradicted."""
    names = [row["what"] for row in changes.rows]
    if any(name.endswith(MAY_HAVE) for name in names):
        return None
    if changes.rows or changes.rows_by_log:
        return False
    return True if may_be_same else None


def _recorder_for_all(recorders: Sequence[str | None]) -> str | None:
    """Return what would record a matter in all runs that do not have it.

    A log that only some of these runs wrote needs another run, so then it is a run with a log.
    """
    if BY_LOG in recorders:
        return BY_LOG
    return next(filter(None, recorders), None)


def _words_text(matter: Matter, words: Mapping[str, str]) -> str | None:
    """Return the words of a matter as one text, with their names if there are several of them."""
    if not matter.is_setting and len(words) == 1:
        return next(iter(words.values()))
    separator = "=" if matter.is_setting else " "
    named_words = map(separator.join, words.items())
    return ", ".join(named_words) or None


def _can_compare_hashes(sides: Sides) -> bool:
    """Tell whether one key, which is kept, has hashed the values of all captures."""
    captures = chain.from_iterable(sides)
    sidecars = [capture.run.header.capture for capture in captures]
    keys = {sidecar.hash_key for sidecar in sidecars if sidecar is not None}
    return len(keys) == 1 and keys.isdisjoint({None, PER_CAPTURE})


def _names_in_logs(matters_of_runs: Sequence[Sequence[Matter]]) -> set[str]:
    """Return the names of settings that NCCL's logs tell of; none if a run has no log.

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
    """Return the row of a fact in words, if it differs or may differ; else no row."""
    name = what
    if before == after:
        if HIDDEN not in (before or ""):
            return []
        name = f"{what}{MAY_HAVE}"
    return [{"topic": topic, "what": name, "baseline": before, "candidate": after}]


def _join_words(captures: Sequence[Matter], *, can_compare_hashes: bool) -> dict[str, str]:
    """Return the words of a matter by name, of all captures of a side.

    Hidden values look all alike, and so do hashed ones unless hashes can be compared.
    """
    words: dict[str, dict[str, None]] = {}
    for capture in captures:
        for name, word in capture.words.items():
            comparable = word if can_compare_hashes else HASHED.sub(HIDDEN, word)
            shown = _HIDDEN_VALUE.sub(HIDDEN, comparable)
            distinct_words = words.setdefault(name, {})
            distinct_words[shown] = None
    return {name: " | ".join(distinct) for name, distinct in words.items()}
