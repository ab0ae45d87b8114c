"""What else differs around two runs: collectives, copies, link, versions and settings; and what of it a change of the step may come from."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from nsyspipe.analysis.traffic import dimensions
from nsyspipe.comparison.changes import SIDES, StepTable, mean_of, mean_step_time
from nsyspipe.comparison.comparability import collectives_per_step
from nsyspipe.comparison.gate import DEFAULT_MIN_EFFECT
from nsyspipe.comparison.metrics import per_step
from nsyspipe.model.side_files import NcclFacts, RunCapture
from nsyspipe.model.table import table
from nsyspipe.nsys.command_words import HASHED, MASK, PER_CAPTURE
from nsyspipe.run.work import has_whole_graphs, n_steps

if TYPE_CHECKING:
    from nsyspipe.comparison.difference import RunDifference

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

_LATE_SHARE = 0.01  # of a step: lateness is a change where a side has more
_ALIKE = 1e-3  # means that differ by less look the same
_HIDDEN = "hmac:?"  # stands for a value of which nobody can tell whether it changed
_HIDDEN_VALUE = re.compile(rf"{re.escape(shlex.quote(MASK))}|{re.escape(MASK)}")
_IN_ALL = ("collectives", "collectives per step", "count")
_TOPICS = ("steps", "collectives", "copies", "stragglers", "link", "versions", "capture")
GRADIENT_COPIES = "gradient copies per step"
MEAN_MESSAGE, STRAGGLER, NONE = "mean message of a collective", "straggler", "none"
MAY_HAVE = ", which may have changed"  # behind a fact whose value is hidden
BANDWIDTH, COMMAND = "bus bandwidth", "command"
MARKED = 0.1  # of the larger side: from here on a change of a number may be the cause of another
# Of each part of the step the topics, and single facts, that it may depend on; what any may depend on.
_CAUSES = {
    "compute": set[str](), "exposed_comm": {"collectives", "link", "stragglers", "NCCL"},
    "exposed_memory": {"copies"}, "idle": {"CUDA graphs", "trace"},
}  # fmt: skip
_OF_ANY = {"parallelism", "torch", "CUDA", "driver", "commit", COMMAND, "hosts"}
Change = tuple[str, str | None, float | str | None, float | str | None]  # what, unit of numbers, before, after


def surroundings(*tables: Sequence[StepTable]) -> pa.Table:
    """Return `CHANGES`: the facts that differ between baseline and candidate, by topic.

    Numbers are means over rank and summary step, and over a side's captures. Words of several captures that differ
    stand side by side. A fact that one side did not record is no change, but a setting that one side lacks is. Values that
    were hashed are compared where one key hashed all of them, and else may have changed.
    """
    runs = [table.run for side in tables for table in side]
    counts = [[n_steps(table.run) for table in side] for side in tables]
    rows = _word_rows("steps", "steps in the figures", *(", ".join(map(str, side)) for side in counts))
    if rows and [*map(len, counts)] == [1, 1]:
        rows = [_number_row(("steps", "steps in the figures", "count"), *(float(n) for (n,) in counts))]
    # Counts and times of communication mean something else in a run that older definitions were used for.
    if all(table.n_steps and not table.outdated_columns for side in tables for table in side):
        before, after = map(_numbers, tables)
        little_ns = _LATE_SHARE * float(min(mean_step_time(side) or 0 for side in tables))
        # A sort of collective that only one side has is 0 on the other; inside graphs as a whole it was not seen.
        keys = before.keys() & after.keys() if any(map(has_whole_graphs, runs)) else before.keys() | after.keys()
        of_all = before[_IN_ALL], after[_IN_ALL]
        for key in sorted(keys, key=lambda key: (key[0], key != _IN_ALL, key)):
            one, other = before.get(key, 0.0), after.get(key, 0.0)
            is_in_all = key[0] == "collectives" and key != _IN_ALL and (one, other) == of_all
            if not (one is None or other is None or is_in_all or _is_alike(key[2], one, other, little_ns)):
                rows.append(_number_row(key, one, other))
    keys_of_hashes = {run.header.capture.hash_key for run in runs if run.header.capture is not None}
    # One key, which is kept, has hashed the values of all captures.
    is_told = len(keys_of_hashes) == 1 and keys_of_hashes.isdisjoint({None, PER_CAPTURE})
    facts = [[_facts(table) for table in side] for side in tables]
    for topic, is_setting in facts[0][0]:
        old, new = (_joined([words[topic, is_setting] for words in side], is_told=is_told) for side in facts)
        for what in sorted({*old, *new}):
            # Where both sides say any settings, one that is not there was not set.
            if (is_setting and old and new) or (what in old and what in new):
                rows += _word_rows(topic, what, old.get(what), new.get(what))
    return CHANGES.from_rows(sorted(rows, key=lambda row: _TOPICS.index(row["topic"])))  # within a topic as they came


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
    may_have = MAY_HAVE * (old == new and _HIDDEN in (old or ""))
    row = {"topic": topic, "what": f"{what}{may_have}", "baseline": old, "candidate": new}
    return [row] if old != new or may_have else []


def _joined(captures: Sequence[Mapping[str, str]], *, is_told: bool) -> dict[str, str]:
    """Join what a side's captures say; unless it `is_told` whether hashed values differ, hidden ones all look alike."""

    def shown(word: str) -> str:
        return word if is_told else _HIDDEN_VALUE.sub(_HIDDEN, HASHED.sub(_HIDDEN, word))

    names = dict.fromkeys(chain(*captures))
    return {name: " | ".join(dict.fromkeys(shown(own[name]) for own in captures if name in own)) for name in names}


def _numbers(tables: Sequence[StepTable]) -> dict[Fact, float | None]:
    captures = [dict(_of_capture(table)) for table in tables]
    # A sort of collective that a capture does not have is 0 there, not unknown.
    return {key: mean_of(numbers.get(key, 0.0) for numbers in captures) for key in chain(*captures)}


def _of_capture(table: StepTable) -> Iterator[tuple[Fact, float | None]]:
    figures = table.run.summary().to_pylist()[0]
    yield _IN_ALL, figures["collectives_per_step"]
    n_bytes, number = figures["message_bytes_per_step"], figures["collectives_per_step"]
    yield ("collectives", "message bytes per step", "bytes"), n_bytes
    yield ("collectives", MEAN_MESSAGE, "bytes"), n_bytes / number if n_bytes is not None and number else None
    for what, column in (("DtoD copies per step", "n_dtod"), (GRADIENT_COPIES, "n_grad_copies")):
        values = table.matrix(column)
        yield ("copies", what, "count"), None if values is None else float(values.mean())
    yield ("copies", "DtoD bytes per step", "bytes"), figures["dtod_bytes_per_step"]
    bandwidths = per_step(table, "busbw")
    yield ("link", BANDWIDTH, "bytes/s"), None if isinstance(bandwidths, str) else float(np.median(bandwidths))
    yield ("stragglers", "longest delay of a step by a rank", "ns"), _longest_delay(table)
    if has_whole_graphs(table.run):
        return  # some collectives may not have been seen
    for sort, number in collectives_per_step(table.run).items():
        yield ("collectives", f"{sort} per step", "count"), number


def _longest_delay(table: StepTable) -> float | None:
    """Return the longest that all others waited for a rank in a step, whichever it was, the mean over steps; None when not known."""
    rows = table.run.stragglers()
    if not rows.num_rows or rows["lateness_ns"].null_count:
        return None
    return float(sum(rows["lateness_ns"].to_pylist()) / table.n_steps)


def _facts(table: StepTable) -> dict[tuple[str, bool], dict[str, str]]:
    """Return the facts of a run by topic and whether they are settings, in words by name; what is not known is not there."""
    run, header = table.run, table.run.header
    capture = header.capture or RunCapture()
    nccl = run.nccl or NcclFacts(None, {}, None)
    transports = filter(None, run.links()["transport"].unique().to_pylist())
    is_dirty = " with changes" if capture.git_is_dirty else ""
    link = run.link.slowest if run.link else None
    groups = [] if table.outdated_columns else dimensions(run.traffic(), header.world_size)
    found: dict[str, dict[str, Any]] = {
        "collectives": {"parallelism": None if None in [one.size for one in groups] else ", ".join(map(str, groups))},
        "stragglers": {STRAGGLER: _straggler(table)},
        "link": {
            "slowest link": None if link is None or link.kind == "unknown" else link.kind,
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
    unjudged = [row["message"] for row in table.run.problem_rows if row["code"] == "not-judged"]
    is_judged = not any(STRAGGLER in message.partition(" (")[0] for message in unjudged)
    if table.outdated_columns or not is_judged or _longest_delay(table) is None:
        return None
    rows = table.run.judged_findings().to_pylist()
    late: dict[str, Any] = next((json.loads(row["evidence"]) for row in rows if row["id"] == STRAGGLER), {})
    if "node" in late:
        return f"node {late['node']}"
    named = list(late.get("held_up_ns_per_step_by_rank", ()))
    return f"rank{'s'[: len(named) > 1]} {', '.join(named)}" if named else NONE


class Cause(NamedTuple):
    """The part of the step that makes up at least half of the change of the mean step time, and what may be the cause."""

    part: str  # of `PARTS`
    delta_ns: float
    facts: tuple[Change, ...]  # that such a part depends on: recorded ones that differ, or half of its own change
    n_matters: int  # how many matters the facts are of: number and size of collectives are one; of several none is the cause for sure
    beside: tuple[tuple[Change, float], ...] = ()  # copies of gradients on one side, and how exposed copies change, ns


def cause_of(difference: RunDifference) -> Cause | None:
    """Return where a step time that got better or worse comes from; None if it did not, no part is half of it, or they are not comparable."""
    if not difference.is_comparable:
        return None
    rows = {row["metric"]: row for row in difference.metrics.to_pylist()}
    step_time, whole = rows["step_time"], difference.mean_step_time[2] or 0.0
    parts = [(row["part"], row["delta_ns"] or 0.0) for row in difference.step_time_parts.to_pylist()]
    part, delta = max(parts, key=lambda one: one[1] * whole)
    is_decided = step_time["verdict"] in {"improvement", "regression"} and whole * step_time["delta"] > 0
    if not is_decided or delta * whole < whole**2 / 2:
        return None
    # By matter: sorts, number and size of collectives are one, and so is the link and what goes through it.
    facts: list[tuple[str, Change]] = []
    for row in difference.changes.to_pylist():
        if _may_cause(row, part, delta):
            before, after = (row[side if row["delta"] is None else f"{side}_value"] for side in SIDES)
            matter = row["topic"] if row["topic"] in _CAUSES[part] else row["what"]
            facts.append((matter, (row["what"], row["unit"], before, after)))
    facts.sort(key=lambda fact: fact[1][0] != BANDWIDTH)  # stable: the one that acts on all of it first
    times: list[tuple[str, float, float]] = []
    if part == "exposed_comm" and not facts and rows["busbw"]["verdict"] == step_time["verdict"]:
        # The same collectives, at a speed that is not much another.
        facts = [("link", (BANDWIDTH, "bytes/s", rows["busbw"]["baseline"], rows["busbw"]["candidate"]))]
    elif part == "idle":
        by_cause = (row for row in difference.idle_causes.to_pylist() if row["delta_ns"] is not None)
        times = [(f"idle, {row['cause']}", row["baseline_ns"], row["candidate_ns"]) for row in by_cause]
    elif part == "compute":
        own = [row for row in difference.kernels.to_pylist() if not row["name"].lower().startswith("nccl")]
        both = [row for row in own if row["baseline_n_per_step"] and row["candidate_n_per_step"]]
        numbers = [sum(row[f"{side}_n_per_step"] for row in both) for side in SIDES]
        if _is_marked(*numbers) and (numbers[1] - numbers[0]) * delta > 0:  # as much as to explain their time
            facts.append(("kernels", ("kernels that both sides run, per step", "count", numbers[0], numbers[1])))
        others = [row for row in own if row["status"] in {"vanished", "appeared"}]
        sides = [sum(row[f"{side}_ns_per_step"] for row in others) for side in SIDES]
        times = [("kernels that only one side runs", sides[0], sides[1])]
        comm, exposed = rows["comm"], rows["exposed_comm"]
        if None not in (comm["delta"], exposed["delta"]):  # they share the GPU
            hidden = [comm[side] - exposed[side] for side in SIDES]
            times.append(("communication beside compute", hidden[0], hidden[1]))
    facts += [(what, (what, "ns", one, two)) for what, one, two in times if (two - one) * delta >= delta**2 / 2]
    copies = [row for row in difference.changes.to_pylist() if row["what"] == GRADIENT_COPIES]
    pairs = [(row["what"], row["unit"], row["baseline_value"], row["candidate_value"]) for row in copies]
    beside = tuple((pair, dict(parts)["exposed_memory"]) for pair in pairs if 0.0 in pair and part != "exposed_memory")
    return Cause(part, delta, tuple(fact for _, fact in facts), len({matter for matter, _ in facts}), beside)


def opposed_parts(difference: RunDifference) -> tuple[tuple[str, float], ...]:
    """Return the part that changed most against a decided step time, else the parts that did most each way, with their ns.

    Nothing where that is less than what counts, nor of sides that are not comparable. Parts of idle are its causes too.
    """
    before, _, whole = difference.mean_step_time
    if before is None or whole is None or not difference.is_comparable:
        return ()
    causes, rows = difference.idle_causes.to_pylist(), difference.step_time_parts.to_pylist()
    parts: list[tuple[str, float]] = [(f"idle, {row['cause']}", row["delta_ns"] or 0.0) for row in causes]
    parts += [(row["part"], row["delta_ns"] or 0.0) for row in rows]
    low, *_, high = sorted(parts, key=itemgetter(1))
    is_low, is_high = (abs(ns) >= DEFAULT_MIN_EFFECT * before for ns in (min(low[1], 0.0), max(high[1], 0.0)))
    (verdict,) = (row["verdict"] for row in difference.metrics.to_pylist() if row["metric"] == "step_time")
    if verdict in {"improvement", "regression"}:
        return (high,) * is_high if whole < 0 else (low,) * is_low
    return (low, high) if is_low and is_high else ()


def _is_marked(before: float, after: float) -> bool:
    return abs(after - before) >= MARKED * max(abs(before), abs(after))


def _may_cause(row: Mapping[str, Any], part: str, delta: float) -> bool:
    what = row["what"].removesuffix(MAY_HAVE)
    if (_CAUSES[part] | _OF_ANY).isdisjoint((row["topic"], what)):
        return False
    if what == STRAGGLER:
        return bool(row[SIDES[delta > 0]] != NONE)
    if row["delta"] is None or not _is_marked(row["baseline_value"], row["candidate_value"]):
        return row["delta"] is None
    is_either_way = what == MEAN_MESSAGE or (row["topic"] == "collectives" and row["unit"] == "count")
    return is_either_way or bool(row["delta"] * delta * (-1 if what == BANDWIDTH else 1) > 0)
