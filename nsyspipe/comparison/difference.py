"""Before and after: the two sides, everything that differs between them, and whether it is noise."""

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.analysis.summary import Evenness
from nsyspipe.comparison.changes import (
    BANDWIDTH,
    COMMAND,
    MARKED,
    MAY_HAVE,
    MEAN_MESSAGE,
    NOBODY,
    WAITED_FOR,
    Cause,
    StepTable,
    cause_of,
    has_whole_graphs,
    kernel_changes,
    mean_of,
    mean_step_time,
    step_parts,
)
from nsyspipe.comparison.comparability import (
    COMPARABILITY,
    OTHER_WORK,
    PROBLEMS_OF_SIDES,
    check_comparable,
    check_order,
    n_steps,
)
from nsyspipe.comparison.gate import DEFAULT_CONFIDENCE, DEFAULT_MIN_EFFECT
from nsyspipe.comparison.metrics import (
    DEFAULT_METRIC,
    INCONCLUSIVE,
    Outlier,
    evenness_of,
    metric_rows,
    outlier,
    overall_verdict,
    per_step,
)
from nsyspipe.errors import OptionError
from nsyspipe.model.side_files import NcclFacts, RunCapture
from nsyspipe.model.table import table
from nsyspipe.nsys.command_words import HASHED, MASK, PER_CAPTURE
from nsyspipe.run.run import Run, ShownInNotebooks

Fact = tuple[str, str, str]


CHANGES = table("""
    difference_changes by topic, what: One row per fact around the runs that differs: numbers in the columns _value, words in the others.

    topic            text              steps, collectives, copies, stragglers, link, versions, capture
    what             text              the fact
    unit             text?             of the numbers; null for words
    baseline         text?             in words; null where it was not set
    candidate        text?             the same of the candidate
    baseline_value   float:the_row's?  as a number; mean of several captures
    candidate_value  float:the_row's?  the same of the candidate
    delta            float:the_row's?  candidate - baseline
""")


@dataclass(frozen=True)
class Side:
    """One side of a difference: a name, and its captures, one or several of the same configuration."""

    label: str
    runs: tuple[Run, ...]
    shown_as: str | None = None  # what to call it in words, where the label does not tell it from others

    @property
    def name(self) -> str:
        """What to call it in words."""
        return self.label if self.shown_as is None else self.shown_as

    def __post_init__(self) -> None:
        if not self.runs:
            raise OptionError(self.label, "has no run", fix="at least one capture on each side")
        ids = [run.header.run_id for run in self.runs]
        for run_id in ids:
            if ids.count(run_id) > 1:  # their spread would be nothing
                problem = f"has the capture {run_id} twice"
                raise OptionError(self.label, problem, fix="name each capture of a side once")


@dataclass(frozen=True)
class RunDifference(ShownInNotebooks):
    """What changed from a baseline to a candidate, as tables.

    Every difference is candidate - baseline: swapping the sides negates each exactly, and a run differs from itself by
    exactly 0.
    """

    _TABLES = ("metrics", "step_time_parts", "idle_causes", "kernels", "changes", "comparability", "problems")

    baseline: Side
    candidate: Side
    min_effect: float = DEFAULT_MIN_EFFECT  # smallest |delta| / baseline that counts, as a ratio
    confidence: float = DEFAULT_CONFIDENCE  # of the intervals
    judged: tuple[str, ...] = (DEFAULT_METRIC,)  # the metrics that the verdict rests on
    is_forced: bool = False  # whether verdicts are given although the runs are not comparable

    @cached_property
    def comparability(self) -> pa.Table:
        """`COMPARABILITY`: what makes the comparison doubtful or impossible, the latter first."""
        checks = [*check_comparable(self.baseline, self.candidate), *check_order(self.baseline, self.candidate)]
        return COMPARABILITY.from_rows([check._asdict() for check in checks])

    @property
    def is_comparable(self) -> bool:
        """Whether nothing blocks: equal world size, GPU model, and no rank missing on one side only."""
        return not any(self.comparability["blocks"].to_pylist())

    @property
    def has_spread_between_captures(self) -> bool:
        """Whether a side has several captures, so that what differs between captures is in the intervals."""
        return len(self.baseline.runs) > 1 or len(self.candidate.runs) > 1

    @property
    def has_capture_without_steps(self) -> bool:
        """Whether a side is a capture without steps: then only shares and bandwidths of it are compared."""
        return any(run.is_capture for run in (*self.baseline.runs, *self.candidate.runs))

    @cached_property
    def metrics(self) -> pa.Table:
        """`METRIC_ROWS`: per figure of a step both medians, delta, its interval, n and verdict."""
        blocking = [row["message"].partition(": ")[0] for row in self.comparability.to_pylist() if row["blocks"]]
        is_blocked = blocking and not self.is_forced
        return metric_rows(
            *self._tables,
            min_effect=self.min_effect,
            confidence=self.confidence,
            blocked=f"not comparable: {', '.join(blocking)}" if is_blocked else None,
            settled=() if is_blocked else self.judged,
        )

    @cached_property
    def outlier(self) -> Outlier | None:
        """The one step that makes a judged step time inconclusive, against what would otherwise be decided; else None."""
        row = next((row for row in self.judged_rows if row["metric"] == DEFAULT_METRIC), None)
        if row is None or row["verdict"] != INCONCLUSIVE or row["ci_low"] is None:
            return None
        is_blocked = not (self.is_comparable or self.is_forced)
        return None if is_blocked else outlier(*self._tables, min_effect=self.min_effect, confidence=self.confidence)

    @cached_property
    def cause(self) -> Cause | None:
        """Where most of a step time that got better or worse comes from; None if it did not, or steps may do other work.

        What a number may be the cause of goes its way, and by a tenth: more bytes, copies or lateness, or less bandwidth,
        make a part longer. Kernels are a cause if those that only one side runs make up half of the change of compute.
        By force between sides that are not comparable there is none: what makes them so may be it.
        """
        is_other_work = OTHER_WORK in self.comparability["check"].to_pylist()
        return None if is_other_work or not self.is_comparable else cause_of(self)

    @property
    def statistic(self) -> str:
        """What times are judged on: ``mean`` where the steps of either run are uneven, else ``median``."""
        rows = self.metrics.to_pylist()
        return next(row["statistic"] for row in rows if row["metric"] == DEFAULT_METRIC) or "median"

    @cached_property
    def evenness(self) -> list[list[Evenness]]:
        """How even the step times of each capture of baseline and candidate are; of those that have any."""
        return list(map(evenness_of, self._tables))

    @cached_property
    def step_time_parts(self) -> pa.Table:
        """`STEP_TIME_PARTS`: compute, exposed comm, exposed memory, idle; they sum to `mean_step_time` exactly."""
        return step_parts(*self._tables)[0]

    @cached_property
    def idle_causes(self) -> pa.Table:
        """`IDLE_CAUSE_PARTS`: the part idle by cause, summing to it exactly."""
        return step_parts(*self._tables)[1]

    @cached_property
    def mean_step_time(self) -> tuple[float | None, float | None, float | None]:
        """Mean step time of baseline and candidate and their difference, ns; None without steps."""
        before, after = (None if (mean := mean_step_time(side)) is None else float(mean) for side in self._tables)
        return before, after, None if before is None or after is None else after - before

    @cached_property
    def kernels(self) -> pa.Table:
        """`KERNEL_CHANGES`: every kernel of either side, the largest |delta| per step first."""
        return kernel_changes(*self._tables, min_effect=self.min_effect)

    @cached_property
    def changes(self) -> pa.Table:
        """`CHANGES`: collectives, copies, stragglers, link, versions and capture, where they differ."""
        return surroundings(*self._tables)

    @cached_property
    def problems(self) -> pa.Table:
        """`PROBLEMS_OF_SIDES`: the problems of each side's captures."""
        rows = [
            {"side": name, "run_id": run.header.run_id, **row, "fix": row["fix"] and row["fix"].removesuffix(_THIS)}
            for name, side in (("baseline", self.baseline), ("candidate", self.candidate))
            for run in side.runs
            for row in run.problems.to_pylist()
        ]
        return PROBLEMS_OF_SIDES.from_rows(rows)

    @property
    def judged_rows(self) -> list[dict[str, Any]]:
        """The rows of `metrics` that the verdict rests on, in the order in which they were named."""
        rows = {row["metric"]: row for row in self.metrics.to_pylist()}
        return [rows[name] for name in self.judged]

    @property
    def verdict(self) -> str:
        """Of the judged metrics the first of: regression, inconclusive, improvement, no change.

        Those that are neither better lower nor higher do not enter; if all are such, and one changed, it is
        inconclusive: nothing says whether that is better.
        """
        return overall_verdict(self.judged_rows)

    @cached_property
    def _tables(self) -> tuple[list[StepTable], ...]:
        return StepTable.of_sides(self.baseline.runs, self.candidate.runs)

    def __repr__(self) -> str:
        return f"<RunDifference {self.baseline.name!r} -> {self.candidate.name!r}: {self.verdict}>"


_THIS = ": nsyspipe diff"  # a fix that this is itself
_LATE_SHARE = 0.01  # of a step: lateness of less counts as none
_STRAGGLER = "straggler"  # the rule
_ALIKE = 1e-3  # means that differ by less look the same
_HIDDEN = "hmac:?"  # stands for a value of which nobody can tell whether it changed
_HIDDEN_VALUE = re.compile(rf"{re.escape(shlex.quote(MASK))}|{re.escape(MASK)}")
_IN_ALL = ("collectives", "collectives per step", "count")
_TOPICS = ("steps", "collectives", "copies", "stragglers", "link", "versions", "capture")


def surroundings(*tables: Sequence[StepTable]) -> pa.Table:
    """Return `CHANGES`: the facts that differ between baseline and candidate, by topic.

    Numbers are means over rank and summary step, and over a side's captures. Words of several captures that differ
    stand side by side. A fact that one side did not record is no change, but a setting that one side lacks is. Values that
    were hashed are compared where one key hashed all of them, and else may have changed.
    """
    runs = [table.run for side in tables for table in side]
    counts = (", ".join(str(n_steps(table.run)) for table in side) for side in tables)
    rows = list(_word_row("steps", "steps in the figures", *counts))
    if all(table.n_steps for side in tables for table in side):
        before, after = map(_numbers, tables)
        # A sort of collective that only one side has is 0 on the other; inside graphs as a whole it was not seen.
        is_whole = any(map(has_whole_graphs, runs))
        keys = before.keys() & after.keys() if is_whole else before.keys() | after.keys()
        of_all = before[_IN_ALL], after[_IN_ALL]
        for key in sorted(keys, key=lambda key: (key[0], key != _IN_ALL, key)):
            topic, what, unit = key
            one, other = before.get(key, 0.0), after.get(key, 0.0)
            is_in_all = topic == "collectives" and key != _IN_ALL and (one, other) == of_all
            if not (one is None or other is None or is_in_all or _is_alike(unit, one, other)):
                numbers = {"baseline_value": one, "candidate_value": other, "delta": other - one}
                rows.append({"topic": topic, "what": what, "unit": unit, **numbers})
    keys_of_hashes = {run.header.capture.hash_key for run in runs if run.header.capture is not None}
    # One key, which is kept, has hashed the values of all captures.
    is_told = len(keys_of_hashes) == 1 and keys_of_hashes.isdisjoint({None, PER_CAPTURE})
    facts = [[_facts(table) for table in side] for side in tables]
    for topic, is_setting in facts[0][0]:
        old, new = (_joined([words[topic, is_setting] for words in side], is_told=is_told) for side in facts)
        for what in sorted({*old, *new}):
            # Where both sides say any settings, one that is not there was not set.
            if (is_setting and old and new) or (what in old and what in new):
                rows += _word_row(topic, what, old.get(what), new.get(what))
    rows.sort(key=lambda row: _TOPICS.index(row["topic"]))  # stable: within a topic as they came
    return CHANGES.from_rows(rows)


def _is_alike(unit: str, old: float, new: float) -> bool:
    """Whether nobody would see the difference; one more of many that were counted is one."""
    if unit == "count" and old.is_integer() and new.is_integer():
        return old == new
    least = MARKED if unit == "bytes/s" else _ALIKE  # what is measured is never the same twice
    return abs(new - old) <= least * max(abs(old), abs(new))


def _word_row(topic: str, what: str, old: str | None, new: str | None) -> Iterator[dict[str, Any]]:
    is_hidden = old == new and _HIDDEN in (old or "")
    if old != new or is_hidden:
        what = f"{what}{MAY_HAVE}" if is_hidden else what
        yield {"topic": topic, "what": what, "baseline": old, "candidate": new}


def _joined(captures: Sequence[Mapping[str, str]], *, is_told: bool) -> dict[str, str]:
    """Join what a side's captures say; unless it `is_told` whether hashed values differ, hidden ones all look alike."""
    joined = {}
    for name in dict.fromkeys(chain(*captures)):
        words = [facts[name] for facts in captures if name in facts]
        if not is_told:
            words = [_HIDDEN_VALUE.sub(_HIDDEN, HASHED.sub(_HIDDEN, word)) for word in words]
        joined[name] = " | ".join(dict.fromkeys(words))
    return joined


def _numbers(tables: Sequence[StepTable]) -> dict[Fact, float | None]:
    """Return the numbers of a side; None where a capture did not record one."""
    captures = [dict(_of_capture(table)) for table in tables]
    # A sort of collective that a capture does not have is 0 there, not unknown.
    return {key: mean_of(numbers.get(key, 0.0) for numbers in captures) for key in chain(*captures)}


def _of_capture(table: StepTable) -> Iterator[tuple[Fact, float | None]]:
    figures = table.run.summary().to_pylist()[0]
    yield _IN_ALL, figures["collectives_per_step"]
    n_bytes, number = figures["message_bytes_per_step"], figures["collectives_per_step"]
    yield ("collectives", "message bytes per step", "bytes"), n_bytes
    yield ("collectives", MEAN_MESSAGE, "bytes"), n_bytes / number if n_bytes is not None and number else None
    for what, column in (("DtoD copies per step", "n_dtod"), ("gradient copies per step", "n_grad_copies")):
        values = table.matrix(column)
        yield ("copies", what, "count"), None if values is None else float(values.mean())
    yield ("copies", "DtoD bytes per step", "bytes"), figures["dtod_bytes_per_step"]
    bandwidths = per_step(table, "busbw")
    yield ("link", BANDWIDTH, "bytes/s"), None if isinstance(bandwidths, str) else float(np.median(bandwidths))
    yield ("stragglers", "lateness of the latest rank per step", "ns"), _latest(table)
    if has_whole_graphs(table.run):
        return  # some collectives may not have been seen
    rows = table.run.collectives()
    by_sort = rows.filter(rows["in_summary"]).group_by(["collective", "datatype"], use_threads=False)
    n_cells = table.n_steps * len(table.ranks)
    for row in by_sort.aggregate([([], "count_all")]).to_pylist():
        name = " ".join(filter(None, (row["collective"], row["datatype"])))
        yield ("collectives", f"{name} per step", "count"), row["count_all"] / n_cells


def _latest(table: StepTable) -> float | None:
    """Return how late the latest rank is per step, which counts from a hundredth of it on; None when not known."""
    rows, wall = table.run.stragglers(), table.matrix("wall_ns")
    if wall is None or not rows.num_rows or rows["lateness_ns"].null_count:
        return None
    per_step: float = max(rows["lateness_ns"].to_pylist()) / table.n_steps
    return 0.0 if per_step < _LATE_SHARE * float(wall.max(axis=0).mean()) else per_step


def _facts(table: StepTable) -> dict[tuple[str, bool], dict[str, str]]:
    """Return the facts of a run by topic and whether they are settings, in words by name; what is not known is not there."""
    run, header = table.run, table.run.header
    capture = header.capture or RunCapture()
    nccl = run.nccl or NcclFacts(None, {}, None)
    transports = filter(None, run.links()["transport"].unique().to_pylist())
    is_dirty = " with changes" if capture.git_is_dirty else ""
    found: dict[str, dict[str, Any]] = {
        "stragglers": {WAITED_FOR: _straggler(table)},
        "link": {
            "slowest link": run.link and run.link.slowest and run.link.slowest.kind,
            "transport": ", ".join(sorted(transports)),
            "NVLink SHARP": {None: None, True: "on", False: "off"}[nccl.nvls],
        },
        "versions": {
            "nsys": ", ".join(header.nsys_versions),
            "export schema": ", ".join(header.export_schema_versions),
            "NCCL": nccl.version or capture.nccl_version,
            "torch": capture.torch_version,
            "CUDA": capture.cuda_version,
            "driver": capture.driver_version,
            "Python": capture.python_version,
            "commit": capture.git_commit and f"{capture.git_commit}{is_dirty}",
        },
        "capture": {
            "hosts": ", ".join(header.hosts),
            "CUDA graphs": "as a whole: what is inside was not seen" if has_whole_graphs(run) else "none as a whole",
            COMMAND: shlex.join(capture.command or []),
            "trace": ", ".join(capture.trace or []),
            "capture range": capture.capture_range,
        },
    }
    known = {(topic, False): {name: one for name, one in words.items() if one} for topic, words in found.items()}
    return known | {("link", True): dict(nccl.settings), ("capture", True): dict(capture.environment)}


def _straggler(table: StepTable) -> str | None:
    """Name whom the run's own finding names; None where that could not be judged."""
    problems = table.run.problems
    unjudged = problems.filter(pc.equal(problems["code"], "not-judged"))["message"].to_pylist()
    is_judged = not any(_STRAGGLER in message.partition(" (")[0] for message in unjudged)
    if not is_judged or _latest(table) is None:
        return None
    rows = table.run.judged_findings().to_pylist()
    late: dict[str, Any] = next((json.loads(row["evidence"]) for row in rows if row["id"] == _STRAGGLER), {})
    if "node" in late:
        return f"node {late['node']}"
    named = list(late.get("held_up_ns_per_step_by_rank", ()))
    return f"rank{'s' if len(named) > 1 else ''} {', '.join(named)}" if named else NOBODY
