"""What changed around the step time: communication, copies, stragglers, the link, versions, how it was captured."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from nsyspipe.comparison.changes import StepTable, has_whole_graphs
from nsyspipe.comparison.tables import CHANGES
from nsyspipe.nsys.command_words import HASHED, MASK, PER_CAPTURE

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from nsyspipe.comparison.difference import Side
    from nsyspipe.run.run import Run


# Lateness of less of a step counts as none.
_LATE_SHARE = 0.01
# Means that differ by less look the same.
_ALIKE = 1e-3
_NOBODY = "nobody"
_STRAGGLER = "straggler"  # the rule
# What stands for a value of which nobody can tell whether it changed.
_HIDDEN = "hmac:?"
_HIDDEN_VALUE = re.compile(rf"{re.escape(shlex.quote(MASK))}|{re.escape(MASK)}")
_PERHAPS = "{}, which may have changed"
_IN_ALL = ("collectives", "collectives per step", "count")
Numbers = dict[tuple[str, str, str], float | None]
Words = Mapping[str, str | None]


def surroundings(
    baseline: Side, candidate: Side, tables: tuple[Sequence[StepTable], Sequence[StepTable]]
) -> pa.Table:
    """Return `tables.CHANGES`: the facts that differ, by topic.

    Numbers are means over rank and summary step, and over a side's captures. Words of several captures that differ
    stand side by side. A fact that one side did not record is no change, but a setting that one side lacks is. Values that
    were hashed are compared where one key hashed all of them, and else may have changed.

    Parameters
    ----------
    tables
        The summary steps of both sides.
    """
    rows = [_word_row("steps", "summary steps", *map(_step_counts, (baseline, candidate)))]
    if all(table.n_steps for side in tables for table in side):
        before, after = _numbers(baseline, tables[0]), _numbers(candidate, tables[1])
        if any(has_whole_graphs(run) for side in (baseline, candidate) for run in side.runs):
            before, after = (
                {key: side[key] for key in before.keys() & after.keys()} for side in (before, after)
            )
        rows += _number_rows(before, after)
    has_one_key = _has_one_key((baseline, candidate))
    for topic, told, keeps_unset in _WORDS:
        sides = [
            _joined([told(run) if has_one_key else _without_hashes(told(run)) for run in side.runs])
            for side in (baseline, candidate)
        ]
        for what in sorted({name for side in sides for name in side}):
            old, new = (side.get(what) for side in sides)
            if keeps_unset(sides) or None not in (old, new):
                rows.append(_word_row(topic, what, old, new))
    topics = ["steps", "collectives", "copies", "stragglers", "link", "versions", "capture"]
    kept = [row for row in rows if row is not None]
    kept.sort(key=lambda row: topics.index(row["topic"]))  # stable: within a topic as they came
    return CHANGES.from_rows(kept)


def _number_rows(before: Numbers, after: Numbers) -> list[dict[str, Any] | None]:
    # A sort of collective that only one side has is 0 on the other.
    values = {key: (before.get(key, 0.0), after.get(key, 0.0)) for key in {*before, *after}}
    in_all = values[_IN_ALL]
    return [
        _number_row(key, *values[key])
        for key in sorted(values, key=lambda key: (key[0], key != _IN_ALL, key))
        if key == _IN_ALL or key[0] != "collectives" or values[key] != in_all
    ]


def _number_row(
    key: tuple[str, str, str], old: float | None, new: float | None
) -> dict[str, Any] | None:
    if old is None or new is None or _is_alike(key[2], old, new):
        return None
    values = {"baseline_value": old, "candidate_value": new, "delta": new - old}
    return {"topic": key[0], "what": key[1], "unit": key[2], **values}


def _is_alike(unit: str, old: float, new: float) -> bool:
    """Whether nobody would see the difference; one more of many that were counted is one."""
    if unit == "count" and old.is_integer() and new.is_integer():
        return old == new
    return abs(new - old) <= _ALIKE * max(abs(old), abs(new))


def _word_row(topic: str, what: str, old: str | None, new: str | None) -> dict[str, Any] | None:
    if old == new and _HIDDEN not in (old or ""):
        return None
    what = _PERHAPS.format(what) if old == new else what
    return {"topic": topic, "what": what, "baseline": old, "candidate": new}


def _has_one_key(sides: Sequence[Side]) -> bool:
    """Tell whether one key, which is kept, has hashed the values of all captures."""
    captures = [run.header.capture for side in sides for run in side.runs]
    keys = {capture.hash_key for capture in captures if capture is not None}
    return len(keys) == 1 and keys.isdisjoint({None, PER_CAPTURE})


def _without_hashes(words: Words) -> Words:
    """Return words whose hidden values all look alike, in a shell's quotes or not."""
    return {
        name: value and _HIDDEN_VALUE.sub(_HIDDEN, HASHED.sub(_HIDDEN, value))
        for name, value in words.items()
    }


def _step_counts(side: Side) -> str:
    return ", ".join(str(run.summary()["n_summary_steps"][0].as_py()) for run in side.runs)


def _numbers(side: Side, tables: Sequence[StepTable]) -> Numbers:
    """Return the numbers of a side by topic, name and unit; None where a capture did not record one."""
    captures = [dict(_of_run(run, own)) for run, own in zip(side.runs, tables, strict=True)]
    found: Numbers = {}
    for key in {key for one in captures for key in one}:
        # A sort of collective that a capture does not have is 0 there, not unknown.
        values = [one.get(key, 0.0) for one in captures]
        known = [value for value in values if value is not None]
        found[key] = sum(known) / len(values) if len(known) == len(values) else None
    return found


def _of_run(run: Run, table: StepTable) -> Iterator[tuple[tuple[str, str, str], float | None]]:
    figures = run.summary().to_pylist()[0]
    yield _IN_ALL, figures["collectives_per_step"]
    yield ("collectives", "message bytes per step", "bytes"), figures["message_bytes_per_step"]
    yield ("copies", "DtoD copies per step", "count"), _mean(table, "n_dtod")
    yield ("copies", "DtoD bytes per step", "bytes"), figures["dtod_bytes_per_step"]
    yield ("copies", "gradient copies per step", "count"), _mean(table, "n_grad_copies")
    yield from _by_sort(run, table.n_steps * len(table.ranks))
    yield ("stragglers", "lateness of the latest rank per step", "ns"), _latest(run, table)


def _by_sort(run: Run, n_cells: int) -> Iterator[tuple[tuple[str, str, str], float]]:
    """Yield how many collectives of each sort there are per rank and step; none where some may not have been seen."""
    if has_whole_graphs(run):
        return
    found = run.collectives()
    chosen = found.filter(found["in_summary"]).group_by(["collective", "datatype"])
    for row in chosen.aggregate([([], "count_all")]).to_pylist():
        name = " ".join(filter(None, (row["collective"], row["datatype"])))
        yield ("collectives", f"{name} per step", "count"), row["count_all"] / n_cells


def _mean(table: StepTable, column: str) -> float | None:
    values = table.matrix(column)
    return None if values is None else float(values.mean())


def _latest(run: Run, table: StepTable) -> float | None:
    """Return how late the latest rank is per step, which counts from a hundredth of it on; None when not known."""
    rows = run.stragglers()
    wall = table.matrix("wall_ns")
    if wall is None or not rows.num_rows or rows["lateness_ns"].null_count:
        return None
    per_step: float = max(rows["lateness_ns"].to_pylist()) / table.n_steps
    if per_step < _LATE_SHARE * float(wall.max(axis=0).mean()):
        return 0.0
    return per_step


def _stragglers(run: Run) -> Words:
    """Name whom the run's own finding names; nothing where that could not be judged."""
    if _latest(run, StepTable(run)) is None or _is_not_judged(run):
        return {}
    rows = run.judged_findings().to_pylist()
    late = next((json.loads(row["evidence"]) for row in rows if row["id"] == _STRAGGLER), None)
    named = list(late["held_up_ns_per_step_by_rank"]) if late else []
    ranks = f"rank{'s' if len(named) > 1 else ''} {', '.join(named)}"
    return {"the others wait for": ranks if named else _NOBODY}


def _is_not_judged(run: Run) -> bool:
    said = run.problems.filter(pc.equal(run.problems["code"], "not-judged"))["message"].to_pylist()
    return any(_STRAGGLER in message.partition(" (")[0] for message in said)


def _link(run: Run) -> Words:
    found: dict[str, str | None] = {}
    if run.link and run.link.slowest:
        found["slowest link"] = run.link.slowest.kind
    transports = run.links()["transport"].unique().to_pylist()
    if known := sorted(one for one in transports if one):
        found["transport"] = ", ".join(known)
    if run.nccl and run.nccl.nvls is not None:
        found["NVLink SHARP"] = "on" if run.nccl.nvls else "off"
    return found


def _settings(run: Run) -> Words:
    return dict(run.nccl.settings) if run.nccl else {}


def _versions(run: Run) -> Words:
    capture = run.header.capture
    nccl = (run.nccl and run.nccl.version) or (capture and capture.nccl_version)
    found = {
        "nsys": ", ".join(run.header.nsys_versions) or None,
        "export schema": ", ".join(run.header.export_schema_versions) or None,
        "NCCL": nccl,
    }
    if capture:
        dirty = " with changes" if capture.git_is_dirty else ""
        found |= {
            "torch": capture.torch_version,
            "CUDA": capture.cuda_version,
            "driver": capture.driver_version,
            "Python": capture.python_version,
            "commit": f"{capture.git_commit}{dirty}" if capture.git_commit else None,
        }
    return {name: value for name, value in found.items() if value}


def _capture(run: Run) -> Words:
    capture = run.header.capture
    graphs = (
        "as a whole: what is inside was not seen" if has_whole_graphs(run) else "none as a whole"
    )
    found = {"hosts": ", ".join(run.header.hosts) or None, "CUDA graphs": graphs}
    if capture:
        found |= {
            "command": shlex.join(capture.command) if capture.command else None,
            "trace": ", ".join(capture.trace) if capture.trace else None,
            "capture range": capture.capture_range,
        }
    return {name: value for name, value in found.items() if value}


def _environment(run: Run) -> Words:
    return dict(run.header.capture.environment) if run.header.capture else {}


def _joined(captures: Sequence[Words]) -> dict[str, str | None]:
    """Join what a side's captures say: one word where all say the same, else all of them."""
    names = {name for words in captures for name in words}
    found: dict[str, str | None] = {}
    for name in names:
        said = dict.fromkeys(words[name] for words in captures if words.get(name) is not None)
        found[name] = " | ".join(str(one) for one in said)
    return found


def _never(_: Sequence[Mapping[str, str | None]]) -> bool:
    return False


def _where_both_have_some(sides: Sequence[Mapping[str, str | None]]) -> bool:
    """Tell whether both sides say any settings, so that one that is not there was not set."""
    return all(sides)


_WORDS: tuple[tuple[str, Callable[[Any], Words], Callable[..., bool]], ...] = (
    ("stragglers", _stragglers, _never),
    ("link", _link, _never),
    ("versions", _versions, _never),
    ("capture", _capture, _never),
    ("link", _settings, _where_both_have_some),
    ("capture", _environment, _where_both_have_some),
)
