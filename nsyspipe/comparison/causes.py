"""Where a change of the step time comes from: its largest part, and facts that may be the cause."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from nsyspipe.comparison.changes import PARTS, SIDES
from nsyspipe.comparison.facts import (
    BANDWIDTH,
    BOTH,
    COMMAND,
    COMMANDS,
    CUDA_OF_TORCH,
    HOST_NAMES,
    LINK as LINK_MATTER,
    NONE,
    STRAGGLER,
    TRACE,
    TRACED_EVENTS,
)
from nsyspipe.comparison.gate import DEFAULT_MIN_EFFECT
from nsyspipe.comparison.surroundings import (
    ALLOCATIONS,
    GRADIENT_COPIES,
    MAY_HAVE,
    MEAN_MESSAGE,
    MIN_MARKED_SHARE,
)
from nsyspipe.model.comm_kernels import is_communication
from nsyspipe.nsys.command_words import VARIABLES
from nsyspipe.nsys.settings import HOST, LINK, SETTINGS, STREAMS, is_costly

# A part is named beside the part that changed most if it changed by this share of that at least.
MIN_SHARE_OF_LARGEST_CHANGE = 0.5
# Of each part of the step the topics, and single facts, that it may depend on.
_TOPICS_BY_PART = {
    "compute": frozenset[str](),
    "exposed_comm": frozenset({"collectives", "link", "stragglers", "NCCL"}),
    "exposed_memory": frozenset({"copies"}),
    "idle": frozenset({"CUDA graphs", TRACE, TRACED_EVENTS, ALLOCATIONS}),
}
# Facts that every part may depend on.
_FACTS_OF_ANY_PART = frozenset(
    {"parallelism", "torch", CUDA_OF_TORCH, "driver", "commit", HOST_NAMES}
)
# What a setting acts on -> the parts of the step that it makes longer.
_PARTS_BY_EFFECT = {
    STREAMS: {"exposed_comm", "idle"},
    HOST: {"exposed_comm", "idle"},
    LINK: {"exposed_comm"},
}
_COMM_SETTING_PREFIXES = ("NCCL_", "TORCH_NCCL_")
_HARMLESS_COMM_SETTINGS = {"NCCL_DEBUG", "NCCL_NVTX_DISABLE"}
_DECIDED = frozenset({"improvement", "regression"})


class Change(NamedTuple):
    """A fact that differs: numbers with their unit, or words without a unit."""

    what: str
    unit: str | None
    baseline: float | str | None
    candidate: float | str | None


class PartDelta(NamedTuple):
    """By how much a part of the step, or a cause of idle time, changed."""

    part: str
    delta_ns: float


class Cause(NamedTuple):
    """The part that makes up at least half of a change of the mean step time, and its causes."""

    # Of `PARTS`.
    part: str
    delta_ns: float
    # Changed facts that such a part depends on, and times that make up half of its change.
    facts: tuple[Change, ...]
    # How many matters the facts are about. Number and size of collectives are one matter. If there
    # are several, none of them is the cause for sure.
    n_matters: int
    # Gradient copies that only one side has, each with the change of exposed copies, ns.
    beside: tuple[tuple[Change, float], ...] = ()
    # It changed too, but it is measured as the part is, so that it is an effect.
    bandwidth: Change | None = None
    is_link_compared: bool = True


class _ChangedFact(NamedTuple):
    """A row of `CHANGES`."""

    topic: str
    what: str
    unit: str | None
    # Numbers if they have a unit, else words.
    baseline: Any
    candidate: Any
    # None of words.
    delta: float | None

    @property
    def name(self) -> str:
        """What changed, without the words that it may have changed."""
        return self.what.removesuffix(MAY_HAVE)

    @property
    def change(self) -> Change:
        """The fact without its topic."""
        return Change(self.what, self.unit, self.baseline, self.candidate)


class _PossibleCause(NamedTuple):
    """A change that may be a cause, and the matter that it is about."""

    matter: str
    change: Change


# --- the cause ------------------------------------------------------------------------------------
class MeanStepTime(NamedTuple):
    """Mean step times of baseline and candidate, and candidate - baseline."""

    baseline_ns: float | None
    candidate_ns: float | None
    delta_ns: float | None


class DifferenceTables(Protocol):
    """What a cause is read from: a `RunDifference`, with its tables."""

    @property
    def is_comparable(self) -> bool:
        """Whether nothing blocks the comparison."""

    @property
    def mean_step_time(self) -> MeanStepTime:
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
    """Return where a step time that got better or worse comes from.

    None if the sides are not comparable, if the step time did not change, or if no part makes up
    half of its change.
    """
    if not difference.is_comparable:
        return None
    largest = _find_largest_part(difference)
    if largest is None:
        return None
    possible_changes = _possible_changes(difference, largest)
    causes = _possible_causes(difference, largest, possible_changes)
    changes = [cause.change for cause in causes]
    matters = {cause.matter for cause in causes}
    gradient_copies = _removed_gradient_copies(difference, largest.part)
    bandwidth = _bandwidth_change(difference, largest, possible_changes)
    return Cause(
        *largest,
        facts=tuple(changes),
        n_matters=len(matters),
        beside=tuple(gradient_copies),
        bandwidth=bandwidth,
        is_link_compared=_is_link_compared(difference),
    )


def _possible_causes(
    difference: DifferenceTables, largest: PartDelta, possible_changes: Sequence[_ChangedFact]
) -> list[_PossibleCause]:
    """Return the changes that may be the cause; the changed commands if nothing else may be."""
    # Bandwidth is measured on the same collectives as the part, so it is not a cause.
    facts = [fact for fact in possible_changes if fact.what != BANDWIDTH]
    causes = []
    for fact in facts:
        matter = _matter_of(fact, largest.part)
        causes.append(_PossibleCause(matter, fact.change))
    causes += _causes_among_kernels(difference, largest)
    causes += _causes_among_times(difference, largest)
    return causes or _changed_commands(difference)


def _bandwidth_change(
    difference: DifferenceTables, largest: PartDelta, possible_changes: Sequence[_ChangedFact]
) -> Change | None:
    """Return the bus bandwidth if it changed with exposed communication.

    If nothing else that it depends on changed, the verdict of the bandwidth decides.
    """
    for fact in possible_changes:
        if fact.what == BANDWIDTH:
            return fact.change
    if largest.part != "exposed_comm" or possible_changes:
        return None
    busbw = _metric_row(difference, "busbw")
    step_time = _metric_row(difference, "step_time")
    if busbw["verdict"] != step_time["verdict"]:
        return None
    return Change(BANDWIDTH, "bytes/s", busbw["baseline"], busbw["candidate"])


def _find_largest_part(difference: DifferenceTables) -> PartDelta | None:
    """Return the part that makes up at least half of a decided change of the step time."""
    step_time = _metric_row(difference, "step_time")
    whole_ns = difference.mean_step_time.delta_ns or 0.0
    if step_time["verdict"] not in _DECIDED:
        return None
    is_in_same_direction = whole_ns * step_time["delta"] > 0
    largest = max(_part_deltas(difference), key=lambda part: part.delta_ns * whole_ns)
    is_half = largest.delta_ns * whole_ns >= whole_ns**2 / 2
    return largest if is_in_same_direction and is_half else None


def _is_step_time_decided(difference: DifferenceTables) -> bool:
    """Tell whether the step time got better or worse."""
    step_time = _metric_row(difference, "step_time")
    return step_time["verdict"] in _DECIDED


def _part_deltas(difference: DifferenceTables) -> list[PartDelta]:
    rows = difference.step_time_parts.to_pylist()
    return [PartDelta(row["part"], row["delta_ns"] or 0.0) for row in rows]


def _metric_row(difference: DifferenceTables, metric: str) -> dict[str, Any]:
    """Return the row of `METRIC_ROWS` of a metric."""
    rows = difference.metrics.to_pylist()
    return next(row for row in rows if row["metric"] == metric)


def _is_link_compared(difference: DifferenceTables) -> bool:
    for row in difference.facts.to_pylist():
        if row["what"] == LINK_MATTER:
            return bool(row["recorded_on"] == BOTH)
    return False


def _removed_gradient_copies(
    difference: DifferenceTables, part: str
) -> Iterator[tuple[Change, float]]:
    """Yield gradient copies that only one side has, with the change of exposed copies, ns.

    This is the trace of gradient_as_bucket_view. It explains no part but the exposed copies, so it
    is told beside the cause of any other part.
    """
    if part == "exposed_memory":
        return
    deltas_ns = dict(_part_deltas(difference))
    exposed_copies_ns = deltas_ns["exposed_memory"]
    for fact in _changed_facts(difference):
        if fact.what == GRADIENT_COPIES and 0.0 in {fact.baseline, fact.candidate}:
            yield fact.change, exposed_copies_ns


# --- facts that may be the cause ------------------------------------------------------------------
def _changed_facts(difference: DifferenceTables) -> Iterator[_ChangedFact]:
    for row in difference.changes.to_pylist():
        suffix = "" if row["delta"] is None else "_value"
        before, after = (row[f"{side}{suffix}"] for side in SIDES)
        yield _ChangedFact(
            topic=row["topic"],
            what=row["what"],
            unit=row["unit"],
            baseline=before,
            candidate=after,
            delta=row["delta"],
        )


def _possible_changes(difference: DifferenceTables, part: PartDelta) -> list[_ChangedFact]:
    """Return the changed facts that a part may depend on.

    A setting and what follows from it are one cause. If a setting of the interconnect explains the
    change, other facts of the interconnect are left out.
    """
    facts = [fact for fact in _changed_facts(difference) if _may_cause(fact, part)]
    if LINK not in _explaining_effects(facts, part):
        return facts
    return [fact for fact in facts if not _follows_from_link_setting(fact, part.part)]


def _follows_from_link_setting(fact: _ChangedFact, part: str) -> bool:
    if fact.what in SETTINGS:
        return False
    return _matter_of(fact, part) == LINK


def _explaining_effects(facts: Iterable[_ChangedFact], part: PartDelta) -> set[str]:
    """Return what those settings act on that explain the change of a part."""
    explaining = [fact.what for fact in facts if _explains(fact, part.delta_ns)]
    return {SETTINGS[name].acts_on for name in explaining}


def _may_cause(fact: _ChangedFact, part: PartDelta) -> bool:
    """Tell whether a part may depend on a changed fact, and the fact changed the right way."""
    if fact.name in VARIABLES:
        return _may_variable_cause(fact, part)
    topics = _TOPICS_BY_PART[part.part] | _FACTS_OF_ANY_PART
    if topics.isdisjoint({fact.topic, fact.name}):
        return False
    if fact.name == STRAGGLER:
        slower_side = fact.candidate if part.delta_ns > 0 else fact.baseline
        return bool(slower_side != NONE)
    return fact.delta is None or _may_number_cause(fact, fact.delta, part)


def _may_number_cause(fact: _ChangedFact, delta: float, part: PartDelta) -> bool:
    """Tell whether a number changed by a tenth or more, in the way that explains the part.

    More bytes, copies or delay make a part longer, and so does less bandwidth. Number and mean size
    of collectives may do so either way.
    """
    if not _is_marked(fact.baseline, fact.candidate):
        return False
    is_number_of_collectives = fact.topic == "collectives" and fact.unit == "count"
    if fact.name == MEAN_MESSAGE or is_number_of_collectives:
        return True
    slowing_delta = -delta if fact.name == BANDWIDTH else delta
    return slowing_delta * part.delta_ns > 0


def _may_variable_cause(fact: _ChangedFact, part: PartDelta) -> bool:
    """Tell whether an environment variable acts on a part.

    If a value is known to cost time, the slower side has to be the one that has it, unless it is
    hidden whether the value changed.
    """
    setting = SETTINGS.get(fact.name)
    if setting is None:
        is_of_comm = fact.name.startswith(_COMM_SETTING_PREFIXES)
        acts_on_comm = is_of_comm and fact.name not in _HARMLESS_COMM_SETTINGS
        return part.part == "exposed_comm" and acts_on_comm
    if part.part not in _PARTS_BY_EFFECT[setting.acts_on]:
        return False
    is_hidden = fact.what != fact.name
    values = (fact.baseline, fact.candidate)
    is_costly_on_a_side = any(is_costly(fact.name, value) for value in values)
    if is_hidden or not is_costly_on_a_side:
        return True
    return _explains(fact, part.delta_ns)


def _explains(fact: _ChangedFact, delta_ns: float) -> bool:
    """Tell whether a setting costs time on the side that is slower, and not on the other."""
    if fact.what not in SETTINGS:
        return False
    costs_before = is_costly(fact.what, fact.baseline)
    costs_after = is_costly(fact.what, fact.candidate)
    is_candidate_slower = delta_ns > 0
    return costs_before != costs_after and costs_after == is_candidate_slower


def _is_marked(before: float, after: float) -> bool:
    """Tell whether a number changed by so much that it may be the cause of another change."""
    larger = max(abs(before), abs(after))
    change = abs(after - before)
    return change >= MIN_MARKED_SHARE * larger


def _matter_of(fact: _ChangedFact, part: str) -> str:
    """Return the matter of a fact: sorts, number and size of collectives are one, for example."""
    if fact.name in SETTINGS:
        acts_on_link = SETTINGS[fact.name].acts_on == LINK
        return LINK if acts_on_link else fact.name
    is_topic_of_part = fact.topic in _TOPICS_BY_PART[part]
    return fact.topic if is_topic_of_part else fact.name


def _changed_commands(difference: DifferenceTables) -> list[_PossibleCause]:
    """Return the changed commands: any part may depend on them, so they are named last."""
    facts = _changed_facts(difference)
    commands = [fact.change for fact in facts if fact.what in COMMANDS]
    return [_PossibleCause(COMMAND, command) for command in commands]


# --- measured times that may be the cause ---------------------------------------------------------
def _causes_among_times(difference: DifferenceTables, part: PartDelta) -> list[_PossibleCause]:
    """Return times that make up at least half of the change of a part."""
    causes = []
    times = _times_behind_part(difference, part)
    for name, (before_ns, after_ns) in times.items():
        change = Change(name, "ns", before_ns, after_ns)
        explained = (after_ns - before_ns) * part.delta_ns
        if explained >= part.delta_ns**2 / 2:
            causes.append(_PossibleCause(name, change))
    return causes


def _times_behind_part(
    difference: DifferenceTables, part: PartDelta
) -> dict[str, tuple[float, float]]:
    """Return the times of baseline and candidate that a part consists of or depends on, ns.

    The causes of idle time are left out if a setting explains it.
    """
    if part.part == "idle":
        possible_changes = _possible_changes(difference, part)
        is_explained = bool(_explaining_effects(possible_changes, part))
        return {} if is_explained else _times_by_idle_cause(difference)
    if part.part == "compute":
        return _times_of_compute(difference)
    return {}


def _times_by_idle_cause(difference: DifferenceTables) -> dict[str, tuple[float, float]]:
    times = {}
    for row in difference.idle_causes.to_pylist():
        if row["delta_ns"] is not None:
            name = f"idle, {row['cause']}"
            times[name] = (row["baseline_ns"], row["candidate_ns"])
    return times


def _times_of_compute(difference: DifferenceTables) -> dict[str, tuple[float, float]]:
    kernels = _computing_kernels(difference)
    rows = [row for row in kernels if row["status"] in {"vanished", "appeared"}]
    times = {"kernels that only one side runs": _sums_of_sides(rows, "ns_per_step")}
    hidden_comm_ns = difference.hidden_comm_ns
    # Communication that runs at the same time takes its share of the GPU.
    if hidden_comm_ns is not None:
        times["overlapped communication"] = hidden_comm_ns
    return times


def _causes_among_kernels(difference: DifferenceTables, part: PartDelta) -> list[_PossibleCause]:
    """Return the number of kernels that both sides run, if it changed with the time of compute."""
    if part.part != "compute":
        return []
    kernels = _computing_kernels(difference)
    in_candidate = [row for row in kernels if row["candidate_n_per_step"]]
    in_both = [row for row in in_candidate if row["baseline_n_per_step"]]
    n_before, n_after = _sums_of_sides(in_both, "n_per_step")
    changed_alike = (n_after - n_before) * part.delta_ns > 0
    if not (changed_alike and _is_marked(n_before, n_after)):
        return []
    change = Change("kernels that both sides run, per step", "count", n_before, n_after)
    return [_PossibleCause("kernels", change)]


def _sums_of_sides(rows: Sequence[Mapping[str, Any]], column: str) -> tuple[float, float]:
    before = sum(row[f"baseline_{column}"] for row in rows)
    after = sum(row[f"candidate_{column}"] for row in rows)
    return before, after


def _computing_kernels(difference: DifferenceTables) -> list[Mapping[str, Any]]:
    rows = difference.kernels.to_pylist()
    return [row for row in rows if not is_communication(row["name"])]


# --- parts that changed against the step time -----------------------------------------------------
def opposed_parts(difference: DifferenceTables) -> tuple[PartDelta, ...]:
    """Return the parts, and causes of idle time, that changed against each other.

    If the step time got better or worse, it is the part that changed most against it. Otherwise it
    is the part that changed most in each direction, each followed by the parts that changed at
    least half as much. Parts that changed by less than the default minimum effect are left out.
    Nothing if the sides are not comparable.
    """
    before_ns, _, delta_ns = difference.mean_step_time
    if before_ns is None or delta_ns is None or not difference.is_comparable:
        return ()
    parts = [*_idle_cause_deltas(difference), *_part_deltas(difference)]
    shortened, *_, lengthened = sorted(parts, key=attrgetter("delta_ns"))
    min_delta_ns = DEFAULT_MIN_EFFECT * before_ns
    is_shortened = -min(shortened.delta_ns, 0.0) >= min_delta_ns
    is_lengthened = max(lengthened.delta_ns, 0.0) >= min_delta_ns
    if _is_step_time_decided(difference):
        opposed = lengthened if delta_ns < 0 else shortened
        is_enough = is_lengthened if delta_ns < 0 else is_shortened
        return (opposed,) if is_enough else ()
    if not (is_shortened and is_lengthened):
        return ()
    whole_parts = [part for part in parts if part.part in PARTS]
    with_shortened = _changed_alike(shortened, whole_parts)
    with_lengthened = _changed_alike(lengthened, whole_parts)
    return (shortened, *with_shortened, lengthened, *with_lengthened)


def _idle_cause_deltas(difference: DifferenceTables) -> Iterator[PartDelta]:
    for row in difference.idle_causes.to_pylist():
        name = f"idle, {row['cause']}"
        yield PartDelta(name, row["delta_ns"] or 0.0)


def _changed_alike(largest: PartDelta, parts: Sequence[PartDelta]) -> list[PartDelta]:
    """Return the parts that changed the same way as the largest, at least half as much."""
    # A cause of idle time is in the part idle already.
    covered = {largest.part}
    if largest.part.startswith("idle"):
        covered.add("idle")
    alike = []
    for part in parts:
        share = part.delta_ns / largest.delta_ns
        if part.part not in covered and share >= MIN_SHARE_OF_LARGEST_CHANGE:
            alike.append(part)
    return sorted(alike, key=lambda part: -abs(part.delta_ns))
