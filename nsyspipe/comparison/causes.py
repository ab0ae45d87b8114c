"""Where a change of the step time comes from: its largest part, and facts that may be the cause."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

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

# A part is named beside the part that changed most if its change is at least this share of the
# largest change.
MIN_SHARE_OF_LARGEST_CHANGE = 0.5
# A part of the step -> the topics of facts, and the names of single facts, that it may depend on.
_TOPICS_AND_FACTS_BY_PART = {
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

    # Of `changes.PARTS`, or "idle, " and a cause.
    part: str
    delta_ns: float

    @property
    def is_of_idle_time(self) -> bool:
        """Whether this is the idle part, or one of its causes."""
        return self.part.startswith("idle")


class Cause(NamedTuple):
    """The part that makes up at least half of a change of the mean step time, and its causes."""

    # Of `changes.PARTS`.
    part: str
    delta_ns: float
    # Changed facts that such a part depends on, and times that make up half of its change.
    facts: tuple[Change, ...]
    # How many matters the facts are about. Number and size of collectives are one matter. If there
    # are several matters, none of them is the cause for sure.
    n_matters: int
    # Gradient copies that only one side has, each with the change of exposed copies, ns.
    beside: tuple[tuple[Change, float], ...] = ()
    # The bus bandwidth, if it changed too. It is measured on the same collectives as the part, so
    # its change is an effect and no cause.
    bandwidth: Change | None = None
    # Whether both sides recorded the interconnect.
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
    """Return the part that a change of the step time comes from, and what may be its cause.

    None if the sides are not comparable, if the step time got neither better nor worse, or if no
    part makes up half of the change of the step time.
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
    gradient_copies = _one_sided_gradient_copies(difference, largest.part)
    bandwidth = _bandwidth_change(difference, largest, possible_changes)
    return Cause(
        part=largest.part,
        delta_ns=largest.delta_ns,
        facts=tuple(changes),
        n_matters=len(matters),
        beside=tuple(gradient_copies),
        bandwidth=bandwidth,
        is_link_compared=_is_link_compared(difference),
    )


def _possible_causes(
    difference: DifferenceTables, largest: PartDelta, possible_changes: Sequence[_ChangedFact]
) -> list[_PossibleCause]:
    """Return the changes that may be the cause of the change of the largest part.

    These are changed facts, kernels and times. Without any of them, they are the changed commands.
    """
    causes = []
    for fact in possible_changes:
        # Bandwidth is measured on the same collectives as the part, so it is not a cause.
        if fact.what != BANDWIDTH:
            matter = _matter_of(fact, largest.part)
            causes.append(_PossibleCause(matter, fact.change))
    causes += _causes_among_kernels(difference, largest)
    causes += _causes_among_times(difference, largest)
    return causes or _changed_commands(difference)


def _bandwidth_change(
    difference: DifferenceTables, largest: PartDelta, possible_changes: Sequence[_ChangedFact]
) -> Change | None:
    """Return the change of the bus bandwidth, if it may explain the change of the largest part.

    The bandwidth may be one of the possible changes. Otherwise it counts only for exposed
    communication without any possible change, and only if its verdict is that of the step time.
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
    """Return the part that makes up at least half of a decided change of the step time.

    None if the step time got neither better nor worse, or if no part makes up half of its change.
    """
    if not _is_step_time_decided(difference):
        return None
    step_time = _metric_row(difference, "step_time")
    mean_delta_ns = difference.mean_step_time.delta_ns
    # The parts sum to the change of the mean. The verdict may be about medians, so both averages
    # have to change the same way.
    if mean_delta_ns is None or mean_delta_ns * step_time["delta"] <= 0:
        return None
    parts = _part_deltas(difference)
    largest = max(parts, key=lambda part: part.delta_ns / mean_delta_ns)
    return largest if _is_half_of(largest.delta_ns, mean_delta_ns) else None


def _is_half_of(delta_ns: float, whole_delta_ns: float) -> bool:
    """Tell whether a change goes the same way as a whole change, and is at least half of it."""
    # Multiplied by the whole change, both sides have a sign that does not depend on its direction.
    return delta_ns * whole_delta_ns >= whole_delta_ns**2 / 2


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
    """Tell whether both sides recorded the interconnect."""
    for row in difference.facts.to_pylist():
        if row["what"] == LINK_MATTER:
            return bool(row["recorded_on"] == BOTH)
    return False


def _one_sided_gradient_copies(
    difference: DifferenceTables, largest_part: str
) -> Iterator[tuple[Change, float]]:
    """Yield gradient copies that only one side has, with the change of exposed copies, ns.

    Such a change shows that one side sets PyTorch's gradient_as_bucket_view. It explains only the
    exposed copies. If these are the largest part, the change is a possible cause already, and
    nothing is yielded.
    """
    if largest_part == "exposed_memory":
        return
    delta_ns_by_part = dict(_part_deltas(difference))
    exposed_copies_delta_ns = delta_ns_by_part["exposed_memory"]
    for fact in _changed_facts(difference):
        if fact.what == GRADIENT_COPIES and 0.0 in {fact.baseline, fact.candidate}:
            yield fact.change, exposed_copies_delta_ns


# --- facts that may be the cause ------------------------------------------------------------------
def _changed_facts(difference: DifferenceTables) -> Iterator[_ChangedFact]:
    """Yield the rows of `CHANGES`, with numbers or else words as baseline and candidate."""
    for row in difference.changes.to_pylist():
        is_number = row["delta"] is not None
        yield _ChangedFact(
            topic=row["topic"],
            what=row["what"],
            unit=row["unit"],
            baseline=row["baseline_value"] if is_number else row["baseline"],
            candidate=row["candidate_value"] if is_number else row["candidate"],
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
    """Tell whether a fact of the interconnect is no setting itself, so that it is an effect."""
    if fact.what in SETTINGS:
        return False
    return _matter_of(fact, part) == LINK


def _explaining_effects(facts: Iterable[_ChangedFact], part: PartDelta) -> set[str]:
    """Return what the settings act on that explain the change of a part: `LINK` or `HOST`."""
    explaining_settings = [fact.what for fact in facts if _explains(fact, part.delta_ns)]
    return {SETTINGS[name].acts_on for name in explaining_settings}


def _may_cause(fact: _ChangedFact, part: PartDelta) -> bool:
    """Tell whether a changed fact may be the cause of the change of a part.

    The part has to depend on such facts. A number has to change in the right direction, and a
    straggler has to be on the slower side. Any other change of words may be the cause.
    """
    if fact.name in VARIABLES:
        return _may_variable_cause(fact, part)
    topics_and_facts = _TOPICS_AND_FACTS_BY_PART[part.part] | _FACTS_OF_ANY_PART
    if fact.topic not in topics_and_facts and fact.name not in topics_and_facts:
        return False
    if fact.name == STRAGGLER:
        straggler_of_slower_side = fact.candidate if part.delta_ns > 0 else fact.baseline
        return bool(straggler_of_slower_side != NONE)
    if fact.delta is None:
        return True
    return _may_number_cause(fact, fact.delta, part)


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
    # Above 0 if the number changed so that the part gets longer.
    lengthening_delta = -delta if fact.name == BANDWIDTH else delta
    return lengthening_delta * part.delta_ns > 0


def _may_variable_cause(fact: _ChangedFact, part: PartDelta) -> bool:
    """Tell whether an environment variable may be the cause of the change of a part.

    A variable that is not among `SETTINGS` may only act on communication, as its name says. A
    setting has to act on the part. If a value of the setting is known to cost time, the slower side
    has to have such a value, and the other side must not. Hidden values may always be the cause.
    """
    setting = SETTINGS.get(fact.name)
    if setting is None:
        is_of_comm = fact.name.startswith(_COMM_SETTING_PREFIXES)
        acts_on_comm = is_of_comm and fact.name not in _HARMLESS_COMM_SETTINGS
        return part.part == "exposed_comm" and acts_on_comm
    if part.part not in _PARTS_BY_EFFECT[setting.acts_on]:
        return False
    has_hidden_values = fact.what != fact.name
    values = (fact.baseline, fact.candidate)
    has_costly_value = any(is_costly(fact.name, value) for value in values)
    if has_hidden_values or not has_costly_value:
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
    """Tell whether a number changed by a tenth of the larger side or more.

    So much of a change may be the cause of another change.
    """
    larger = max(abs(before), abs(after))
    change = abs(after - before)
    return change >= MIN_MARKED_SHARE * larger


def _matter_of(fact: _ChangedFact, part: str) -> str:
    """Return the matter of a fact. Facts of one matter count as one cause.

    If the part depends on all facts of a topic, these are one matter, for example number and size
    of collectives. Settings that act on the interconnect are one matter with it. Any other fact is
    a matter of its own.
    """
    if fact.name in SETTINGS:
        acts_on_link = SETTINGS[fact.name].acts_on == LINK
        return LINK if acts_on_link else fact.name
    is_topic_of_part = fact.topic in _TOPICS_AND_FACTS_BY_PART[part]
    return fact.topic if is_topic_of_part else fact.name


def _changed_commands(difference: DifferenceTables) -> list[_PossibleCause]:
    """Return the changed commands as one matter.

    Any part may depend on a command, which says little. So they only count without other causes.
    """
    facts = _changed_facts(difference)
    commands = [fact.change for fact in facts if fact.what in COMMANDS]
    return [_PossibleCause(COMMAND, command) for command in commands]


# --- measured times that may be the cause ---------------------------------------------------------
def _causes_among_times(difference: DifferenceTables, part: PartDelta) -> list[_PossibleCause]:
    """Return times that make up at least half of the change of a part."""
    causes = []
    times = _times_behind_part(difference, part)
    for name, (before_ns, after_ns) in times.items():
        if _is_half_of(after_ns - before_ns, part.delta_ns):
            change = Change(name, "ns", before_ns, after_ns)
            causes.append(_PossibleCause(name, change))
    return causes


def _times_behind_part(
    difference: DifferenceTables, part: PartDelta
) -> dict[str, tuple[float, float]]:
    """Return the times that a part consists of, or depends on, by name: of both sides, ns.

    Only compute and idle time have such times. If a setting explains the change of idle time, its
    times are left out.
    """
    if part.part == "idle":
        possible_changes = _possible_changes(difference, part)
        is_explained_by_setting = bool(_explaining_effects(possible_changes, part))
        return {} if is_explained_by_setting else _times_by_idle_cause(difference)
    if part.part == "compute":
        return _times_of_compute(difference)
    return {}


def _times_by_idle_cause(difference: DifferenceTables) -> dict[str, tuple[float, float]]:
    """Return the idle time of both sides, ns, by causes that both sides recorded."""
    times = {}
    for row in difference.idle_causes.to_pylist():
        if row["delta_ns"] is not None:
            name = f"idle, {row['cause']}"
            times[name] = (row["baseline_ns"], row["candidate_ns"])
    return times


def _times_of_compute(difference: DifferenceTables) -> dict[str, tuple[float, float]]:
    """Return the time of kernels of one side only, and of overlapped communication, by name, ns."""
    kernels = _computing_kernels(difference)
    one_sided_kernels = [row for row in kernels if row["status"] in {"vanished", "appeared"}]
    one_sided_ns = _sums_of_sides(one_sided_kernels, "ns_per_step")
    times = {"kernels that only one side runs": one_sided_ns}
    hidden_comm_ns = difference.hidden_comm_ns
    # Communication that runs at the same time takes its share of the GPU, so compute takes longer.
    if hidden_comm_ns is not None:
        times["overlapped communication"] = hidden_comm_ns
    return times


def _causes_among_kernels(difference: DifferenceTables, part: PartDelta) -> list[_PossibleCause]:
    """Return the number of kernels that both sides run, if it may be the cause of more compute.

    More kernels may be the cause of a longer part compute, and fewer kernels of a shorter one. Such
    a change has to be large enough (`_is_marked`). The result is empty for any other part.
    """
    if part.part != "compute":
        return []
    kernels = _computing_kernels(difference)
    in_candidate = [row for row in kernels if row["candidate_n_per_step"]]
    in_both = [row for row in in_candidate if row["baseline_n_per_step"]]
    n_before, n_after = _sums_of_sides(in_both, "n_per_step")
    is_in_same_direction = (n_after - n_before) * part.delta_ns > 0
    if not (is_in_same_direction and _is_marked(n_before, n_after)):
        return []
    change = Change("kernels that both sides run, per step", "count", n_before, n_after)
    return [_PossibleCause("kernels", change)]


def _sums_of_sides(rows: Sequence[Mapping[str, Any]], column: str) -> tuple[float, float]:
    """Return the sums over rows of the baseline's column and of the candidate's."""
    before = sum(row[f"baseline_{column}"] for row in rows)
    after = sum(row[f"candidate_{column}"] for row in rows)
    return before, after


def _computing_kernels(difference: DifferenceTables) -> list[Mapping[str, Any]]:
    rows = difference.kernels.to_pylist()
    return [row for row in rows if not is_communication(row["name"])]


# --- parts that changed against the step time -----------------------------------------------------
def opposed_parts(difference: DifferenceTables) -> tuple[PartDelta, ...]:
    """Return the parts of a step, and causes of idle time, that changed against each other.

    If the step time got better or worse, the result is the one part that changed most against the
    step time. The result is empty if this part changed by less than the default minimum effect.

    If the step time got neither better nor worse, the result is the part that got shorter by most,
    and then the part that got longer by most. Each is followed by the other parts that changed the
    same way and at least half as much. The result is empty unless both changed by the default
    minimum effect or more.

    The result is empty too if the sides are not comparable, or if a side has no step time.
    """
    before_ns, _, delta_ns = difference.mean_step_time
    if before_ns is None or delta_ns is None or not difference.is_comparable:
        return ()
    whole_parts = _part_deltas(difference)
    parts_and_causes = [*_idle_cause_deltas(difference), *whole_parts]
    shortened, *_, lengthened = sorted(parts_and_causes, key=attrgetter("delta_ns"))
    min_delta_ns = DEFAULT_MIN_EFFECT * before_ns
    is_shortened_enough = shortened.delta_ns <= -min_delta_ns
    is_lengthened_enough = lengthened.delta_ns >= min_delta_ns
    if _is_step_time_decided(difference):
        if delta_ns < 0:
            return (lengthened,) if is_lengthened_enough else ()
        return (shortened,) if is_shortened_enough else ()
    if not (is_shortened_enough and is_lengthened_enough):
        return ()
    # Followers are whole parts: a cause of idle time beside the idle part would count twice.
    beside_shortened = _parts_changed_alike(shortened, whole_parts)
    beside_lengthened = _parts_changed_alike(lengthened, whole_parts)
    return (shortened, *beside_shortened, lengthened, *beside_lengthened)


def _idle_cause_deltas(difference: DifferenceTables) -> Iterator[PartDelta]:
    """Yield by how much each cause of idle time changed; by 0 if this is not known."""
    for row in difference.idle_causes.to_pylist():
        name = f"idle, {row['cause']}"
        yield PartDelta(name, row["delta_ns"] or 0.0)


def _parts_changed_alike(largest: PartDelta, whole_parts: Sequence[PartDelta]) -> list[PartDelta]:
    """Return the other parts that changed the same way as the largest, at least half as much.

    If the largest is a cause of idle time, the idle part is left out, because it contains this
    cause. The part with the largest change comes first.
    """
    alike = []
    for whole_part in whole_parts:
        is_largest = whole_part.part == largest.part
        contains_largest = whole_part.is_of_idle_time and largest.is_of_idle_time
        if is_largest or contains_largest:
            continue
        # Below 0 if the part changed the other way.
        share_of_largest = whole_part.delta_ns / largest.delta_ns
        if share_of_largest >= MIN_SHARE_OF_LARGEST_CHANGE:
            alike.append(whole_part)
    return sorted(alike, key=lambda part: abs(part.delta_ns), reverse=True)
