"""What else differs around two runs: collectives, copies, link, versions and settings; and what of it a change of the step may come from."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
from msgspec import Struct, field
from msgspec.structs import replace

from nsyspipe.comparison.changes import PARTS, SIDES, StepTable, mean_of, mean_step_time
from nsyspipe.comparison.comparability import collectives_per_step
from nsyspipe.comparison.facts import (
    BANDWIDTH,
    BOTH,
    BY_ALL_RANKS,
    BY_GRAPH_NODES,
    BY_LOG,
    BY_PAYLOADS,
    BY_STEPS,
    COMMAND,
    COMMANDS,
    CUDA_OF_TORCH,
    DELAYS,
    ENVIRONMENT,
    HOST_NAMES,
    NCCL_SETTINGS,
    NONE,
    STARTED_COMMAND,
    STRAGGLER,
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
from nsyspipe.comparison.gate import DEFAULT_MIN_EFFECT
from nsyspipe.comparison.metrics import per_step
from nsyspipe.model.columns import text
from nsyspipe.model.comm_kernels import is_communication
from nsyspipe.model.table import FLOAT, Column, TableSchema
from nsyspipe.nsys.command_words import HASHED, MASK, PER_CAPTURE, VARIABLES
from nsyspipe.nsys.settings import HOST, LINK, SETTINGS, STREAMS, is_costly
from nsyspipe.run.run import Run
from nsyspipe.run.work import has_whole_graphs, n_steps

Fact = tuple[str, str, str]

CHANGES = TableSchema(
    name="difference_changes",
    doc=(
        "One row per fact around the runs that differs: numbers in the columns _value, words in "
        "the others."
    ),
    key=("topic", "what"),
    columns=(
        text("topic", "steps, collectives, copies, stragglers, link, versions, capture"),
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


class _Numbers(Struct, frozen=True):
    """Numbers around a run that one recording brings."""

    topic: str
    what: str
    recorded_by: str
    names: frozenset[str]  # of its facts

    def keys_in(self, numbers: Mapping[Fact, float | None]) -> list[Fact]:
        """Return the facts that are of it."""
        return [key for key in numbers if key[0] == self.topic and key[1] in self.names]

    def is_known_in(self, numbers: Mapping[Fact, float | None]) -> bool:
        """Tell whether all of them were recorded."""
        keys = self.keys_in(numbers)
        return bool(keys) and all(numbers[key] is not None for key in keys)


_LATE_SHARE = 0.01  # of a step: lateness is a change where a side has more
_ALIKE = 1e-3  # means that differ by less look the same
HIDDEN = "hmac:?"  # stands for a value of which nobody can tell whether it changed
_HIDDEN_VALUE = re.compile(rf"{re.escape(shlex.quote(MASK))}|{re.escape(MASK)}")
_IN_ALL = ("collectives", "collectives per step", "count")
_MESSAGE_BYTES = "message bytes per step"
_DTOD_COPIES = "DtoD copies per step"
_DTOD_BYTES = "DtoD bytes per step"
COPIES = "number and bytes of copies on the device"
_DELAY = "longest delay of a step by a rank"
_TOPICS = ("steps", "collectives", "copies", "stragglers", "link", "versions", "capture")
GRADIENT_COPIES = "gradient copies per step"
MEAN_MESSAGE = "mean message of a collective"
MAY_HAVE = ", which may have changed"  # behind a fact whose value is hidden
_ALIKE_SHARE = 0.5  # of the change of the part that changed most: as much is named beside it
MARKED = 0.1  # of the larger side: from here on a change of a number may be the cause of another
# Of each part of the step the topics, and single facts, that it may depend on; what any may depend
# on.
_CAUSES = {
    "compute": set[str](),
    "exposed_comm": {"collectives", "link", "stragglers", "NCCL"},
    "exposed_memory": {"copies"},
    "idle": {"CUDA graphs", TRACE, TRACED_EVENTS},
}
_NUMBERS = (
    _Numbers("collectives", "collectives per step", BY_GRAPH_NODES, frozenset({_IN_ALL[1]})),
    _Numbers("collectives", _MESSAGE_BYTES, BY_PAYLOADS, frozenset({_MESSAGE_BYTES})),
    _Numbers("copies", COPIES, BY_STEPS, frozenset({_DTOD_COPIES, GRADIENT_COPIES, _DTOD_BYTES})),
    _Numbers("stragglers", DELAYS, BY_ALL_RANKS, frozenset({_DELAY})),
    _Numbers("link", BANDWIDTH, BY_PAYLOADS, frozenset({BANDWIDTH})),
)
# Of each effect of a setting the parts of the step that it lengthens; what settings of
# communication begin with, and those that only say more of it.
_PARTS_BY_EFFECT = {
    STREAMS: {"exposed_comm", "idle"},
    HOST: {"exposed_comm", "idle"},
    LINK: {"exposed_comm"},
}
_OF_COMM_SETTINGS = ("NCCL_", "TORCH_NCCL_")
_HARMLESS = {"NCCL_DEBUG", "NCCL_NVTX_DISABLE"}
_OF_ANY = {"parallelism", "torch", CUDA_OF_TORCH, "driver", "commit", HOST_NAMES}
Change = tuple[
    str, str | None, float | str | None, float | str | None
]  # what, unit of numbers, before, after


class Surroundings(Struct, frozen=True):
    """What differs around two runs, and what of it both sides recorded."""

    changes: pa.Table  # `CHANGES`
    facts: pa.Table  # `FACTS`


def surroundings(*tables: Sequence[StepTable]) -> Surroundings:
    """Compare the facts around baseline and candidate.

    Numbers are means over rank and summary step, and over a side's captures. Words of several
    captures that differ stand side by side. A fact that one side did not record is no change, but a
    setting that one side lacks is. Values that were hashed are compared where one key hashed all of
    them, and else may have changed.
    """
    numbers = _compare_numbers(tables)
    words = _compare_words(tables)
    compared = [*numbers.compared, *words.compared]
    compared.sort(key=lambda one: _TOPICS.index(one.topic))  # within a topic as they came
    rows = [*_n_steps_rows(tables), *numbers.changes, *words.changes]
    rows.sort(key=lambda row: _TOPICS.index(row["topic"]))
    return Surroundings(CHANGES.from_rows(rows), facts_table(compared))


class _Comparison(Struct):
    """Rows of `CHANGES`, and the matters that were compared, or could not be."""

    changes: list[dict[str, Any]] = field(default_factory=list)
    compared: list[Compared] = field(default_factory=list)


def _n_steps_rows(tables: Sequence[Sequence[StepTable]]) -> list[dict[str, Any]]:
    counts = [[n_steps(table.run) for table in side] for side in tables]
    rows = _word_rows(
        "steps", "steps in the figures", *(", ".join(map(str, side)) for side in counts)
    )
    if rows and [*map(len, counts)] == [1, 1]:
        return [
            _number_row(("steps", "steps in the figures", "count"), *(float(n) for (n,) in counts))
        ]
    return rows


def _compare_numbers(tables: Sequence[Sequence[StepTable]]) -> _Comparison:
    found = _Comparison()
    # Counts and times of communication mean something else in a run that older definitions were
    # used for.
    if any(table.outdated_columns for side in tables for table in side):
        return found
    if not all(table.n_steps for side in tables for table in side):
        found.compared = [
            Compared(one.topic, one.what, BY_STEPS, (False, False), None) for one in _NUMBERS
        ]
        return found
    runs = [table.run for side in tables for table in side]
    before, after = map(_numbers, tables)
    little_ns = _LATE_SHARE * float(min(mean_step_time(side) or 0 for side in tables))
    # A sort of collective that only one side has is 0 on the other; inside graphs as a whole it was
    # not seen.
    keys = (
        before.keys() & after.keys()
        if any(map(has_whole_graphs, runs))
        else before.keys() | after.keys()
    )
    of_all = before[_IN_ALL], after[_IN_ALL]
    different: set[Fact] = set()
    for key in sorted(keys, key=lambda key: (key[0], key != _IN_ALL, key)):
        one = before.get(key, 0.0)
        other = after.get(key, 0.0)
        is_in_all = key[0] == "collectives" and key != _IN_ALL and (one, other) == of_all
        if one is None or other is None or _is_alike(key[2], one, other, little_ns):
            continue
        different.add(key)
        if not is_in_all:
            found.changes.append(_number_row(key, one, other))
    for matter in _NUMBERS:
        is_known = matter.is_known_in(before), matter.is_known_in(after)
        is_same = all(key not in different for key in matter.keys_in(before | after))
        lacking = [side for side, known in zip(tables, is_known, strict=True) if not known]
        before_why, after_why = (
            _why_unknown(matter, side) if side in lacking else None for side in tables
        )
        recorded_by = _recorded_by(matter, lacking)
        whys = (before_why, after_why)
        compared = Compared(matter.topic, matter.what, recorded_by, is_known, is_same, whys=whys)
        if is_known in {(True, False), (False, True)} and len(matter.names) == 1:
            key = matter.keys_in(before | after)[0]
            numbers = before if is_known[0] else after
            compared = replace(compared, words=key[1], unit=key[2], value=numbers[key])
        found.compared.append(compared)
    return found


def _why_unknown(matter: _Numbers, side: Sequence[StepTable]) -> str | None:
    """Return why a side does not have numbers, where more is known of that than what records them."""
    return (
        _joined_whys(lack_of_delays(table).why for table in side) if matter.what == DELAYS else None
    )


def _joined_whys(whys: Iterable[str | None]) -> str | None:
    return " | ".join(dict.fromkeys(filter(None, whys))) or None


def _recorded_by(matter: _Numbers, lacking: Sequence[Sequence[StepTable]]) -> str | None:
    """Return what records numbers that some sides lack: where operations inside CUDA graphs were not seen, those."""
    tables = [table for side in lacking for table in side]
    if matter.what == DELAYS and tables:
        return next(filter(None, (lack_of_delays(table).recorded_by for table in tables)), None)
    if matter.recorded_by == BY_STEPS and any(has_whole_graphs(table.run) for table in tables):
        return BY_GRAPH_NODES
    return matter.recorded_by


def _compare_words(tables: Sequence[Sequence[StepTable]]) -> _Comparison:
    found = _Comparison()
    is_told = _hashes_can_be_compared([table.run for side in tables for table in side])
    sides = [[matters_of(table) for table in side] for side in tables]
    named_by_log = _named_by_log(sides)
    is_contradicted = any(
        environment_contradicts_log(matters) for side in sides for matters in side
    )
    for at, matter in enumerate(sides[0][0]):
        of_sides = [[matters[at] for matters in side] for side in sides]
        is_known = [all(one.is_known for one in side) for side in of_sides]
        old, new = (_joined([one.words for one in side], is_told=is_told) for side in of_sides)
        unknown = [[one for one in side if not one.is_known] for side in of_sides]
        recorders = [one.recorded_by for side in unknown for one in side]
        recorded_by = _fix_of_all(recorders) if recorders else matter.recorded_by
        before_why, after_why = (_joined_whys(one.why_unknown for one in side) for side in unknown)
        rows: list[dict[str, Any]] = []
        rows_by_log: list[dict[str, Any]] = []
        for what in sorted({*old, *new}):
            is_in_both = what in old and what in new
            # Where both sides say any settings, one that is not there was not set.
            is_compared = is_in_both or (matter.is_setting and all(is_known))
            by_launcher = {TRACED_EVENTS: TRACE, STARTED_COMMAND: COMMAND}.get(what)
            if by_launcher in old and by_launcher in new:
                continue  # which has more words for the same
            is_by_log = matter.what == ENVIRONMENT and what in named_by_log
            if is_compared:
                own = rows_by_log if is_by_log else rows
                own += _word_rows(matter.topic, what, old.get(what), new.get(what))
        found.changes += rows
        is_hidden = any(row["what"].endswith(MAY_HAVE) for row in rows)
        has_common = matter.is_setting or bool(old.keys() & new.keys())
        known_on = (is_known[0], is_known[1]) if has_common or not all(is_known) else (False, False)
        is_same = None if is_hidden else not (rows or rows_by_log)
        if is_same and matter.what == ENVIRONMENT and is_contradicted:
            is_same = None
        is_told_once = known_on in {(True, False), (False, True)} or is_same
        words = _told(matter, new if known_on == (False, True) else old) if is_told_once else None
        whys = before_why, after_why
        found.compared.append(
            Compared(matter.topic, matter.what, recorded_by, known_on, is_same, words, whys=whys)
        )
    return found


def _fix_of_all(recorders: Sequence[str | None]) -> str | None:
    """Return what records what some runs lack: a log that only some of them wrote is asked of a run that writes one."""
    return BY_LOG if BY_LOG in recorders else next(filter(None, recorders), None)


def _told(matter: Matter, words: Mapping[str, str]) -> str | None:
    """Return what a matter's words are, each with its name where that is not the matter's own."""
    if not matter.is_setting and len(words) == 1:
        return next(iter(words.values()))
    between = "=" if matter.is_setting else " "
    return ", ".join(f"{name}{between}{word}" for name, word in words.items()) or None


def _hashes_can_be_compared(runs: Sequence[Run]) -> bool:
    """Tell whether one key, which is kept, has hashed the values of all captures."""
    keys = {run.header.capture.hash_key for run in runs if run.header.capture is not None}
    return len(keys) == 1 and keys.isdisjoint({None, PER_CAPTURE})


def _named_by_log(sides: Sequence[Sequence[Sequence[Matter]]]) -> set[str]:
    """Return the settings that NCCL's logs of both sides compare: what NCCL took, not what programs were started with."""
    logs = [
        one for side in sides for matters in side for one in matters if one.what == NCCL_SETTINGS
    ]
    return (
        {name for log in logs for name in log.words} if all(log.is_known for log in logs) else set()
    )


def _is_alike(unit: str, old: float, new: float, little_ns: float) -> bool:
    """Whether nobody would see the difference; one more of many that were counted is one."""
    if unit == "count" and old.is_integer() and new.is_integer():
        return old == new
    if unit == "ns" and max(old, new) < little_ns:
        return True
    least = MARKED if unit == "bytes/s" else _ALIKE  # what is measured is never the same twice
    return abs(new - old) <= least * max(abs(old), abs(new))


def _number_row(fact: Fact, old: float, new: float) -> dict[str, Any]:
    numbers = {"baseline_value": old, "candidate_value": new, "delta": new - old}
    return dict(zip(("topic", "what", "unit"), fact, strict=True)) | numbers


def _word_rows(topic: str, what: str, old: str | None, new: str | None) -> list[dict[str, Any]]:
    may_have = MAY_HAVE * (old == new and HIDDEN in (old or ""))
    row = {"topic": topic, "what": f"{what}{may_have}", "baseline": old, "candidate": new}
    return [row] if old != new or may_have else []


def _joined(captures: Sequence[Mapping[str, str]], *, is_told: bool) -> dict[str, str]:
    """Join what a side's captures say; unless it `is_told` whether hashed values differ, hidden ones all look alike."""

    def shown(word: str) -> str:
        return _HIDDEN_VALUE.sub(HIDDEN, word if is_told else HASHED.sub(HIDDEN, word))

    names = dict.fromkeys(chain(*captures))
    return {
        name: " | ".join(
            dict.fromkeys(shown(capture[name]) for capture in captures if name in capture)
        )
        for name in names
    }


def _numbers(tables: Sequence[StepTable]) -> dict[Fact, float | None]:
    captures = [dict(_of_capture(table)) for table in tables]
    # A sort of collective that a capture does not have is 0 there, not unknown.
    return {key: mean_of(numbers.get(key, 0.0) for numbers in captures) for key in chain(*captures)}


def _of_capture(table: StepTable) -> Iterator[tuple[Fact, float | None]]:
    figures = table.run.summary().to_pylist()[0]
    yield _IN_ALL, figures["collectives_per_step"]
    n_bytes = figures["message_bytes_per_step"]
    number = figures["collectives_per_step"]
    yield ("collectives", _MESSAGE_BYTES, "bytes"), n_bytes
    yield (
        ("collectives", MEAN_MESSAGE, "bytes"),
        n_bytes / number if n_bytes is not None and number else None,
    )
    for what, column in ((_DTOD_COPIES, "n_dtod"), (GRADIENT_COPIES, "n_grad_copies")):
        values = table.matrix(column)
        yield ("copies", what, "count"), None if values is None else float(values.mean())
    yield ("copies", _DTOD_BYTES, "bytes"), figures["dtod_bytes_per_step"]
    bandwidths = per_step(table, "busbw")
    yield (
        ("link", BANDWIDTH, "bytes/s"),
        None if isinstance(bandwidths, str) else float(np.median(bandwidths)),
    )
    yield ("stragglers", _DELAY, "ns"), longest_delay(table)
    if has_whole_graphs(table.run):
        return  # some collectives may not have been seen
    for sort, number in collectives_per_step(table.run).items():
        yield ("collectives", f"{sort} per step", "count"), number


class Cause(NamedTuple):
    """The part of the step that makes up at least half of the change of the mean step time, and what may be the cause."""

    part: str  # of `PARTS`
    delta_ns: float
    facts: tuple[
        Change, ...
    ]  # that such a part depends on: recorded ones that differ, or half of its own change
    # how many matters the facts are of: number and size of collectives are one; of several none is
    # the cause for sure
    n_matters: int
    beside: tuple[
        tuple[Change, float], ...
    ] = ()  # copies of gradients on one side, and how exposed copies change, ns
    bandwidth: Change | None = (
        None  # that changed with it: measured as the part is, of the link or what crosses it
    )
    is_link_compared: bool = True


class DifferenceTables(Protocol):
    """What a cause is read from: a `RunDifference`, with its tables."""

    @property
    def is_comparable(self) -> bool:
        """Whether nothing blocks the comparison."""

    @property
    def mean_step_time(self) -> Sequence[float | None]:
        """Mean step time of the baseline and of the candidate, and their difference, ns."""

    @property
    def hidden_comm_ns(self) -> tuple[float, float] | None:
        """Communication beside compute of both sides, ns."""

    @property
    def metrics(self) -> pa.Table:
        """The metrics of both sides."""

    @property
    def step_time_parts(self) -> pa.Table:
        """The parts of the step time."""

    @property
    def idle_causes(self) -> pa.Table:
        """The causes of idle time."""

    @property
    def kernels(self) -> pa.Table:
        """The kernels of either side."""

    @property
    def changes(self) -> pa.Table:
        """What else differs."""

    @property
    def facts(self) -> pa.Table:
        """Which facts both sides recorded."""


def cause_of(difference: DifferenceTables) -> Cause | None:
    """Return where a step time that got better or worse comes from; None if it did not, no part is half of it, or they are not comparable."""
    if not difference.is_comparable:
        return None
    rows = {row["metric"]: row for row in difference.metrics.to_pylist()}
    step_time = rows["step_time"]
    whole = difference.mean_step_time[2] or 0.0
    parts = [
        (row["part"], row["delta_ns"] or 0.0) for row in difference.step_time_parts.to_pylist()
    ]
    part, delta = max(parts, key=lambda one: one[1] * whole)
    is_decided = (
        step_time["verdict"] in {"improvement", "regression"} and whole * step_time["delta"] > 0
    )
    if not is_decided or delta * whole < whole**2 / 2:
        return None
    facts, costly = _causes_among_changes(difference, part, delta)
    # What was measured is no cause, as the link is that it was measured of.
    bandwidth = next((change for _, change in facts if change[0] == BANDWIDTH), None)
    facts = [(matter, change) for matter, change in facts if change[0] != BANDWIDTH]
    times: list[tuple[str, float, float]] = []
    is_as_many = part == "exposed_comm" and not facts and bandwidth is None
    if is_as_many and rows["busbw"]["verdict"] == step_time["verdict"]:
        # The same collectives, at a speed that is not much another.
        bandwidth = (BANDWIDTH, "bytes/s", rows["busbw"]["baseline"], rows["busbw"]["candidate"])
    elif part == "idle" and not costly:
        by_cause = (
            row for row in difference.idle_causes.to_pylist() if row["delta_ns"] is not None
        )
        times = [
            (f"idle, {row['cause']}", row["baseline_ns"], row["candidate_ns"]) for row in by_cause
        ]
    elif part == "compute":
        own = [row for row in difference.kernels.to_pylist() if not is_communication(row["name"])]
        both = [row for row in own if row["baseline_n_per_step"] and row["candidate_n_per_step"]]
        numbers = [sum(row[f"{side}_n_per_step"] for row in both) for side in SIDES]
        if (
            _is_marked(*numbers) and (numbers[1] - numbers[0]) * delta > 0
        ):  # as much as to explain their time
            facts.append(
                (
                    "kernels",
                    ("kernels that both sides run, per step", "count", numbers[0], numbers[1]),
                )
            )
        others = [row for row in own if row["status"] in {"vanished", "appeared"}]
        sides = [sum(row[f"{side}_ns_per_step"] for row in others) for side in SIDES]
        times = [("kernels that only one side runs", sides[0], sides[1])]
        if difference.hidden_comm_ns is not None:  # they share the GPU
            times.append(("overlapped communication", *difference.hidden_comm_ns))
    facts += [
        (what, (what, "ns", one, two))
        for what, one, two in times
        if (two - one) * delta >= delta**2 / 2
    ]
    facts = facts or _changed_commands(difference)
    is_link_compared = any(
        row["what"] == LINK and row["recorded_on"] == BOTH for row in difference.facts.to_pylist()
    )
    copies = [row for row in difference.changes.to_pylist() if row["what"] == GRADIENT_COPIES]
    pairs = [
        (row["what"], row["unit"], row["baseline_value"], row["candidate_value"]) for row in copies
    ]
    beside = tuple(
        (pair, dict(parts)["exposed_memory"])
        for pair in pairs
        if 0.0 in pair and part != "exposed_memory"
    )
    n_matters = len({matter for matter, _ in facts})
    changes = tuple(change for _, change in facts)
    return Cause(part, delta, changes, n_matters, beside, bandwidth, is_link_compared)


def _causes_among_changes(
    difference: DifferenceTables, part: str, delta: float
) -> tuple[list[tuple[str, Change]], set[str]]:
    """Return the changes that a part may depend on, each with its matter, and what costly settings among them act on.

    Sorts, number and size of collectives are one matter, and so is the link and what goes through
    it. A setting and what follows from it are one cause, of which only the setting is named.
    """
    facts: list[tuple[str, Change]] = []
    costly: set[str] = set()
    for row in difference.changes.to_pylist():
        if not _may_cause(row, part, delta):
            continue
        before, after = (row[side if row["delta"] is None else f"{side}_value"] for side in SIDES)
        facts.append((_matter_of(row, part), (row["what"], row["unit"], before, after)))
        if _explains(row, delta):
            costly.add(SETTINGS[row["what"]].acts_on)
    if LINK in costly:
        facts = [(matter, fact) for matter, fact in facts if matter != LINK or fact[0] in SETTINGS]
    return facts, costly


def _changed_commands(difference: DifferenceTables) -> list[tuple[str, Change]]:
    """Return commands that differ: a cause of everything, which is named only where nothing is known that follows from it."""
    rows = (row for row in difference.changes.to_pylist() if row["what"] in COMMANDS)
    return [(COMMAND, (row["what"], None, row["baseline"], row["candidate"])) for row in rows]


def opposed_parts(difference: DifferenceTables) -> tuple[tuple[str, float], ...]:
    """Return the part that changed most against a decided step time, else the parts that changed most each way, with their ns.

    Those that changed at least half as much as these are among them.

    Nothing where that is less than what counts, nor of sides that are not comparable. Parts of idle
    are its causes too.
    """
    before, _, whole = difference.mean_step_time
    if before is None or whole is None or not difference.is_comparable:
        return ()
    causes = difference.idle_causes.to_pylist()
    rows = difference.step_time_parts.to_pylist()
    parts: list[tuple[str, float]] = [
        (f"idle, {row['cause']}", row["delta_ns"] or 0.0) for row in causes
    ]
    parts += [(row["part"], row["delta_ns"] or 0.0) for row in rows]
    low, *_, high = sorted(parts, key=itemgetter(1))
    is_low, is_high = (
        abs(ns) >= DEFAULT_MIN_EFFECT * before for ns in (min(low[1], 0.0), max(high[1], 0.0))
    )
    (verdict,) = (
        row["verdict"] for row in difference.metrics.to_pylist() if row["metric"] == "step_time"
    )
    if verdict in {"improvement", "regression"}:
        return (high,) * is_high if whole < 0 else (low,) * is_low
    if not (is_low and is_high):
        return ()
    whole_parts = [part for part in parts if part[0] in PARTS]
    return (low, *_changed_alike(low, whole_parts), high, *_changed_alike(high, whole_parts))


def _changed_alike(
    most: tuple[str, float], parts: Iterable[tuple[str, float]]
) -> list[tuple[str, float]]:
    """Return the other parts that changed the same way as the one that did most, by half as much or more; largest first."""
    of_idle = most[0].startswith("idle")  # of which it may be a cause
    others = [part for part in parts if part[0] != most[0] and not (of_idle and part[0] == "idle")]
    alike = [one for one in others if one[1] / most[1] >= _ALIKE_SHARE]
    return sorted(alike, key=lambda one: -abs(one[1]))


def _is_marked(before: float, after: float) -> bool:
    return abs(after - before) >= MARKED * max(abs(before), abs(after))


def _matter_of(row: Mapping[str, Any], part: str) -> str:
    what: str = row["what"].removesuffix(MAY_HAVE)
    if what in SETTINGS and SETTINGS[what].acts_on == LINK:
        return LINK
    return row["topic"] if row["topic"] in _CAUSES[part] and what not in SETTINGS else what


def _explains(row: Mapping[str, Any], delta: float) -> bool:
    """Tell whether a setting changed that costs time on the side that is slower, and not on the other."""
    before, after = (
        row["what"] in SETTINGS and is_costly(row["what"], row[side]) for side in SIDES
    )
    return before != after and after == (delta > 0)


def _may_setting_cause(row: Mapping[str, Any], part: str, delta: float) -> bool:
    name = row["what"].removesuffix(MAY_HAVE)
    setting = SETTINGS.get(name)
    if setting is None:
        return (
            part == "exposed_comm" and name.startswith(_OF_COMM_SETTINGS) and name not in _HARMLESS
        )
    is_costly_somewhere = any(is_costly(name, row[side]) for side in SIDES)
    may_be_either = not is_costly_somewhere or row["what"] != name
    return part in _PARTS_BY_EFFECT[setting.acts_on] and (may_be_either or _explains(row, delta))


def _may_cause(row: Mapping[str, Any], part: str, delta: float) -> bool:
    what = row["what"].removesuffix(MAY_HAVE)
    if what in VARIABLES:
        return _may_setting_cause(row, part, delta)
    if (_CAUSES[part] | _OF_ANY).isdisjoint((row["topic"], what)):
        return False
    if what == STRAGGLER:
        return bool(row[SIDES[delta > 0]] != NONE)
    if row["delta"] is None or not _is_marked(row["baseline_value"], row["candidate_value"]):
        return row["delta"] is None
    is_either_way = what == MEAN_MESSAGE or (
        row["topic"] == "collectives" and row["unit"] == "count"
    )
    return is_either_way or bool(row["delta"] * delta * (-1 if what == BANDWIDTH else 1) > 0)
