"""A difference: what it says in words and as blocks, verdict first, then where it comes from; and its documents."""

import json
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from msgspec import Struct

from nsyspipe.analysis.summary import host_figures
from nsyspipe.comparison.arguments import ChangedArgument, changed_arguments, hidden_arguments
from nsyspipe.comparison.changes import SIDES
from nsyspipe.comparison.comparability import DEFINITIONS, OTHER_WORK
from nsyspipe.comparison.difference import Gate, RunDifference, Side
from nsyspipe.comparison.facts import (
    COMMANDS,
    LINK,
    MEASURED,
    NCCL_SETTINGS,
    NCCL_VERSION,
    NEITHER as NEITHER_SIDE,
    NONE,
    STRAGGLER,
)
from nsyspipe.comparison.gate import REGRESSION, GateSettings
from nsyspipe.comparison.metrics import DEFAULT_METRIC, INCONCLUSIVE, LEFT_OUT, NO_CHANGE
from nsyspipe.comparison.statistics import MEAN, MEDIAN
from nsyspipe.comparison.surroundings import HIDDEN, MAY_HAVE, Cause
from nsyspipe.errors import shortened
from nsyspipe.model.definitions import ANALYZE_AGAIN
from nsyspipe.model.figures import NEITHER
from nsyspipe.model.names import grouped, listed
from nsyspipe.model.problems import OF_FILES_BESIDE, WHOLE_STEP
from nsyspipe.model.table import SCHEMA_VERSION
from nsyspipe.report import units
from nsyspipe.report.blocks import Block, Facts, Field, Notes, Sentence, Table, Troubles, Word, of, table_of
from nsyspipe.report.export import formats_of, lazily
from nsyspipe.report.files import Format
from nsyspipe.report.units import absent, beside, delta_text, metric_label, ms_text, percent_text, sure_text, value_text
from nsyspipe.report.words import opposed_text, same_problems, settling_text, subject_parts, uneven_notes
from nsyspipe.version import __version__

# How wide a terminal has room for what figures, kernels and changes can do without; both sides go last.
_BOTH, _VERDICT, _CHANGE, _PERCENT, _WORDS, _INTERVAL = 40, 50, 62, 70, 79, 95
_OPPOSED = "differ in sign"
_NO_PERCENTAGE = 10_000  # per cent of a baseline: so many say only that it is next to nothing, and units say more
_LITTLE, _MUCH = 0.001, 0.05  # of the step time: nobody asks where less comes from, everybody where so much does
_SLOWED_COMPUTE = "comm-slows-compute"  # the finding that says how much slower
# What time of communication is split into where all ranks are known.
_SPLIT = {"wait": "waiting", "transfer": "transfer"}
# What was given or found beside the reports, and is not used; and what is used that nobody named.
_OF_FILES = {"log-of-another-run", "topology-of-another-machine", *OF_FILES_BESIDE}
_SHOWN_CHANGES, _MOST_FACTS, _LONGEST_FACT, _LONGEST_VALUE, _LONGEST_TOLD = 20, 4, 40, 20, 60
DIFF_RUNS = "nsyspipe-diff-runs"  # the meta element of a page that says which runs it compares
OF_RANKS = "A time is that of each step's rank with most of it; nsyspipe analyze has means over ranks and steps of all but the step time."
# Captions of the tables, by which a page knows them.
PARTS, METRICS = "Where the change of the mean step time comes from", "Figures of both sides"
KERNELS, CHANGES = "Kernels that changed most", "What else changed"


def difference_blocks(difference: RunDifference) -> Iterator[Block]:
    """Yield the verdict and its gate, both sides, doubts, where the step time changed, figures, kernels, facts and notes."""
    yield Sentence(verdict_text(difference), "bold", verdict=difference.verdict)
    yield from gate_blocks(difference)
    if (cause := difference.cause) is not None:
        yield Sentence(cause_text(difference, cause))
    if moved := difference.opposed_parts:
        yield Sentence(opposed_text(moved))
    if (one := difference.outlier) is not None:
        takes = f"takes {ms_text(one.ns)}, where the median is {ms_text(one.median_ns)}"
        yield Sentence(f"Step {one.step} of the {one.side} {takes}; without it the verdict would be {one.verdict}.")
    for name, side in zip(SIDES, (difference.baseline, difference.candidate), strict=True):
        _, *parts = subject_parts(side.runs[0], side.runs[0].summary().to_pylist()[0])
        first = [f"the first of {len(side.runs)} captures"] if len(side.runs) > 1 else []
        yield Facts([side.name, *parts, *first], name, is_of_several=True)
    if checks := difference.comparability.to_pylist():
        hints = {} if difference.rules.is_forced else {OTHER_WORK: "; --force if only torch.compile made them differ"}
        grave = {True: "not comparable", False: "warning"}
        doubts = [(grave[row["blocks"]], row["message"] + hints.get(row["check"], ""), "", None) for row in checks]
        yield Troubles(doubts, is_close=True)
    if unused := [row for row in difference.problem_rows if row["code"] in _OF_FILES]:
        yield Troubles(same_problems(unused, lambda rows: listed({row["side"]: 0 for row in rows})), is_close=True)
    yield _parts(difference)
    yield _metrics(difference)
    yield _kernels(difference)
    yield _changes(difference)
    if texts := notes(difference):
        yield Notes(texts)


def gate_blocks(difference: RunDifference) -> Iterator[Sentence]:
    """Yield what the gate found, if there is one, and what it rests on."""
    if (gate := difference.gate) is not None:
        yield Sentence(f"Gate {gate.outcome}: {gate_text(gate)}", verdict=gate.outcome)
        yield Sentence(rule_text(gate, difference.settings))


def part_rows(difference: RunDifference) -> list[dict[str, Any]]:
    """Return the parts of the mean step time, idle with the causes that a side has some of, and their sum."""
    parts = ({"name": metric_label(part["part"]), **part} for part in difference.step_time_parts.to_pylist())
    some = (cause for cause in difference.idle_causes.to_pylist() if cause["baseline_ns"] or cause["candidate_ns"])
    of_idle = ({"name": f"of it {cause['cause']}", **cause} for cause in some)  # which is the last part
    return [*parts, *of_idle, {"name": "mean step time", **_mean_step_time(difference)}]


def _mean_step_time(difference: RunDifference) -> dict[str, float | None]:
    return dict(zip(("baseline_ns", "candidate_ns", "delta_ns"), difference.mean_step_time, strict=True))


def _parts(difference: RunDifference) -> Table:
    fields = [Field("of the\nslowest rank", of("name"), "word"), *_times("_ns")]
    if difference.mean_step_time[2] is None:
        note = "a side has no step with a window on every rank, so there is nothing to split"
        return table_of(PARTS, [], fields, note)
    return table_of(PARTS, part_rows(difference), fields)


def _times(suffix: str) -> list[Field]:
    time = partial(Field, decimals_of="mean")
    sides = [time(f"{side}\nmean", of(side + suffix, partial(value_text, "ns")), from_width=_BOTH) for side in SIDES]
    return [*sides, time("change\nof mean", of(f"delta{suffix}", partial(delta_text, "ns")))]


def metric_rows(difference: RunDifference) -> tuple[list[dict[str, Any]], int]:
    """Return all figures, judged ones first, then main ones of both sides and times that changed much for sure; and how many these are."""
    rows = difference.metrics.to_pylist()
    is_capture = difference.has_capture_without_steps  # all that it has is a main one: shares and bandwidths
    much = _MUCH * max((row["baseline"] or 0 for row in rows if row["metric"] == DEFAULT_METRIC), default=0)

    def place(row: Mapping[str, Any]) -> int:
        is_main = (is_capture or units.metric_figure(row["metric"])) and row["baseline"] is not None
        is_sure = row["unit"] == "ns" and row["verdict"] not in (INCONCLUSIVE, NO_CHANGE)
        if row["metric"] in difference.judged:
            return 0
        return 1 if is_main or (is_sure and abs(row["delta"]) >= much) else 2

    rows.sort(key=place)  # stable
    return rows, sum(place(row) < 2 for row in rows)  # noqa: PLR2004 - those that stand first


def _metrics(difference: RunDifference) -> Table:
    rows, n_shown = metric_rows(difference)
    statistics = {row["statistic"] for row in rows[:n_shown]}
    what = "median" if MEAN not in statistics else "mean" if statistics == {MEAN} else "mean or median"
    whose, below = ("of the capture", "") if statistics == {None} else ("of the rank with\nmost of it", f"\n{what}")
    said = {MEAN: ", mean", MEDIAN: ", median" * (MEAN in statistics)}  # where it may be either
    sure, against = f"its {sure_text(difference.rules.confidence)}\ninterval", _against_parts(difference)
    fields = [
        Field(whose, lambda row: metric_label(row["metric"]) + said.get(row["statistic"], "") + against.get(row["metric"], ""), "word"),
        *(Field(side + below, partial(_metric, name=side, write=value_text), from_width=_BOTH) for side in SIDES),
        Field("change", partial(_metric, name="delta", write=delta_text), from_width=_CHANGE),
        *([Field(sure, interval_cell, hint="of the change, in its unit", from_width=_INTERVAL)] if any(row["ci_low"] is not None for row in rows[:n_shown]) else []),
        Field("%", lambda row: f">{_NO_PERCENTAGE}" if row["unit"] != "ratio" and (row["delta_pct"] or 0) >= _NO_PERCENTAGE else percent_change(row).removesuffix(" %"), hint="of the baseline; ratios have points", from_width=_PERCENT),
        Field("verdict", lambda row: Word(row["verdict"], is_plain=is_outweighed(difference, row)), "word", from_width=_VERDICT),
    ]  # fmt: skip
    note, strong = None if difference.has_capture_without_steps else OF_RANKS, frozenset(range(len(difference.judged)))
    return table_of(METRICS, rows, fields, note, n_shown=n_shown, strong=strong)


def is_outweighed(difference: RunDifference, row: Mapping[str, Any]) -> bool:
    """Tell whether a figure got worse on which no verdict rests, in a difference that is no regression: no alarm."""
    return row["metric"] not in difference.judged and difference.verdict != REGRESSION == row["verdict"]


def _metric(row: Mapping[str, Any], name: str, write: Callable[[str, float | None], str]) -> str:
    return beside(write(row["unit"], row[name]), (row.get(side) for side in SIDES)).replace(" steps/s", " /s")


def _kernels(difference: RunDifference) -> Table:
    rows = difference.top_kernels.to_pylist()
    fields = [
        Field("kernels, per\nrank and step", of("name"), "name"),
        *_times("_ns_per_step"),
        Field("phase", of("phase"), "word", from_width=_WORDS),
        Field("status", of("status"), "word", from_width=_WORDS),
    ]
    n_others = difference.kernels.num_rows - len(rows)
    more = f" None of the {n_others} others changed by more than these." if n_others else ""
    note = f"Means over all ranks, where the parts of the step are of its slowest rank. No interval: times per step are not kept by kernel, and a small change may be noise.{more}"
    if not difference.kernels.num_rows:
        note = "not known: a side has no steps, or it was not counted what runs in them"
    elif not rows:
        note = "none changed by more than 0.1 % of the step"
    return table_of(KERNELS, rows, fields, note)


def _side_text(unit: str | None, value: float | str | None) -> str:
    return value_text(unit, value) if isinstance(value, float) else value or "not set"


def _changes(difference: RunDifference) -> Table:
    def fact(row: Mapping[str, Any], side: str) -> str:
        return _side_text(row["unit"], row[side] if row["delta"] is None else row[f"{side}_value"])

    rows = shown_changes(difference)
    fields = [
        Field("what else changed", of("what"), "name", most=_LONGEST_FACT),
        *(Field(side, partial(fact, side=side), "name", most=_LONGEST_VALUE) for side in SIDES),
        Field("change", lambda row: "" if row["delta"] is None else _metric(row, "delta", delta_text), from_width=_WORDS),
    ]  # fmt: skip
    return table_of(CHANGES, rows, fields, facts_text(difference), n_shown=_SHOWN_CHANGES)


def shown_changes(difference: RunDifference) -> list[dict[str, Any]]:
    """Return the rows of the table of what else changed, as it is shown: one for each argument of a command.

    Of what both sides hide there is none: nothing is known of it.
    """
    rows = (row for row in difference.changes.to_pylist() if not row["what"].endswith(MAY_HAVE))
    return [shown for row in rows for shown in _rows_of_change(row)]


def _rows_of_change(row: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows that a change is shown as: of commands each argument that differs."""
    if row["what"] not in COMMANDS or None in (row["baseline"], row["candidate"]):
        return [row]
    rows = [_argument_row(row, one) for one in changed_arguments(row["baseline"], row["candidate"])]
    return rows or [row]


def _argument_row(row: dict[str, Any], argument: ChangedArgument) -> dict[str, Any]:
    values = {"baseline": argument.before, "candidate": argument.after}
    shown = {side: "not given" if value is None else value or "given" for side, value in values.items()}
    return {**row, **shown, "what": _argument_text(argument.name)}


def _argument_text(name: str) -> str:
    """Return what the argument of a name is called; words that are of no option have none."""
    return f"argument {name}" if name else "words"


def hidden_facts(difference: RunDifference) -> list[str]:
    """Return what is hidden on both sides, so that nobody can tell whether it changed: of commands the arguments."""
    return [_hidden_fact(row) for row in difference.changes.to_pylist() if row["what"].endswith(MAY_HAVE)]


def _hidden_fact(row: Mapping[str, Any]) -> str:
    what = str(row["what"].removesuffix(MAY_HAVE))
    if what not in COMMANDS:
        return what
    arguments = map(_argument_text, hidden_arguments(row["baseline"], HIDDEN))
    return f"{listed([*arguments])} of the {what}"


_OTHER_DEFINITIONS = (
    "Collectives, copies and delays are not compared: the sides were analyzed with different definitions "
    f"({ANALYZE_AGAIN})."
)


def facts_text(difference: RunDifference) -> str:
    """Return which facts are the same on both sides, and which are not compared, with what records them."""
    rows = difference.facts.to_pylist()
    same = [_same_fact(row) for row in rows if row["is_same"] and row["what"] not in MEASURED]
    hidden = hidden_facts(difference)
    seen = "recorded and do not hide" if hidden else "recorded"
    nothing = [] if shown_changes(difference) else [f"nothing that both sides {seen}."]
    texts = [*nothing, f"The same on both sides: {listed(same)}."] if same else nothing
    for side in (NEITHER_SIDE, *SIDES):
        of_side = (row for row in rows if row["recorded_on"] == side and not _is_explained(row))
        by_fix = grouped((row["recorded_by"], row) for row in of_side)
        why = f"only the {side} has them"
        if side == NEITHER_SIDE:
            why = "they were not found in the reports or beside them"
        told = [f"{listed(_facts_of_one_fix(own))} ({fix})" for fix, own in by_fix.items()]
        texts += [f"Not compared, because {why}: {', '.join(told)}."] if told else []
    if hidden:
        texts.append(f"Not compared, because hidden on both sides, so that it may have changed: {', '.join(hidden)}.")
    texts += [_explained_fact(row) for row in rows if _is_explained(row)]
    if DEFINITIONS in difference.comparability["check"].to_pylist():
        texts.append(_OTHER_DEFINITIONS)
    else:
        texts += [_figures_of_one_side_text(own) for own in figures_of_one_side(difference)]
    return " ".join(texts)


class FiguresOfOneSide(Struct, frozen=True):
    """Times of communication that only one side has, for one reason."""

    side: str
    why: str
    metrics: tuple[str, ...]


def figures_of_one_side(difference: RunDifference) -> list[FiguresOfOneSide]:
    """Return which of waiting and transfer only one side has, and why the other does not."""
    of_reason: dict[tuple[str, str], list[str]] = {}
    for row in difference.metrics.to_pylist():
        known = [side for side in SIDES if row[f"n_{side}"]]
        if row["metric"] in _SPLIT and len(known) == 1 and row["baseline"] is row["candidate"] is None:
            of_reason.setdefault((known[0], row["why"]), []).append(row["metric"])
    return [FiguresOfOneSide(side, why, tuple(metrics)) for (side, why), metrics in of_reason.items()]


def _figures_of_one_side_text(own: FiguresOfOneSide) -> str:
    names = listed(_SPLIT[metric] for metric in own.metrics)
    return f"Not compared, because only the {own.side} has it: {names} ({own.why})."


# The environment that reports captured may have settings too, which are compared: only what NCCL's log says is lacking.
_OF_LOG = {LINK: "link", NCCL_SETTINGS: "settings", NCCL_VERSION: "version that was loaded"}


def _facts_of_one_fix(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return facts that one recording would bring; of NCCL's log, which no side has, what it would say."""
    is_of_log = [row["recorded_on"] == NEITHER_SIDE and row["what"] in _OF_LOG for row in rows]
    of_log = [_OF_LOG[row["what"]] for row, is_one in zip(rows, is_of_log, strict=True) if is_one]
    others = [_fact_of_one_side(row) for row, is_one in zip(rows, is_of_log, strict=True) if not is_one]
    return [*others, f"what NCCL's log says of the {listed(of_log)}"] if of_log else others


def _is_explained(row: Mapping[str, Any]) -> bool:
    """Tell whether more is known of why a fact is not compared than what records it."""
    return any(row[f"{side}_why"] is not None for side in SIDES)


def _explained_fact(row: Mapping[str, Any]) -> str:
    """Say of each side that lacks a fact why it does, or what would record it."""
    needs = f"not recorded, which needs {row['recorded_by']}"
    lacking = [side for side in SIDES if row["recorded_on"] != side]
    whys = {side: row[f"{side}_why"] or needs for side in lacking}
    told = "; ".join(f"{side}: {why}" for side, why in whys.items())
    if row["recorded_on"] == NEITHER_SIDE and len({*whys.values()}) == 1:
        told = f"both sides: {whys[SIDES[0]]}"
    only = "" if row["recorded_on"] == NEITHER_SIDE else f", because only the {row['recorded_on']} has it"
    return f"Not compared{only}: {_fact_of_one_side(row)} ({told})."


def _same_fact(row: Mapping[str, Any]) -> str:
    return f"no {STRAGGLER}" if (row["what"], row["words"]) == (STRAGGLER, NONE) else str(row["what"])


def _fact_of_one_side(row: Mapping[str, Any]) -> str:
    """Return a fact that is not compared, and what the side that has it says."""
    if (row["what"], row["words"]) == (STRAGGLER, NONE):
        return f"no {STRAGGLER}"
    if row["value"] is not None:
        return f"{row['words']} {value_text(row['unit'], row['value'])}"
    if row["words"] is None:
        return str(row["what"])
    cut = shortened(row["words"], _LONGEST_TOLD)
    return f"{row['what']} [{cut}]" if " " in cut else f"{row['what']} {cut}"


def percent_change(row: Mapping[str, Any]) -> str:
    """Return the relative difference with its sign; nothing of ratios, which have points, nor of next to nothing."""
    if row["delta_pct"] is None or row["unit"] == "ratio" or abs(row["delta_pct"]) >= _NO_PERCENTAGE:
        return absent
    return f"{units.signed(row['delta_pct'], row.get('min_effect_pct'))} %"


def change_text(row: Mapping[str, Any]) -> str:
    """Return both values and the difference, in per cent or, where that says nothing, in its unit."""
    relative = percent_change(row)
    change = delta_text(row["unit"], row["delta"]) if relative == absent else relative
    return f"{' -> '.join(_metric(row, side, value_text) for side in SIDES)} ({change})"


def interval_text(row: Mapping[str, Any]) -> str:
    """Return the interval of a metric's difference, ``-74.15 .. -71.61 ms``; one unit where both ends have it."""
    if row["ci_low"] is None:
        return absent
    low, high = (_metric(row, name, delta_text) for name in ("ci_low", "ci_high"))
    return f"{low.removesuffix(' ' + high.partition(' ')[2])} .. {high}"


def interval_cell(row: Mapping[str, Any]) -> str:
    """Return the same without the unit, where the cell of the difference has that too."""
    ends = {_metric(row, name, delta_text).partition(" ")[2] for name in ("delta", "ci_low", "ci_high")}
    return interval_text(row).removesuffix(f" {ends.pop()}") if len(ends) == 1 else interval_text(row)


def verdict_text(difference: RunDifference) -> str:
    """Return what became of the judged metric that decides, by how much, how sure that is; then of the other ones."""
    rows = difference.judged_rows
    # Of those that know no better, one that is not the same.
    with_direction = [row for row in rows if row["better"] != NEITHER]
    deciding = next(
        (row for row in with_direction or rows if row["verdict"] == difference.verdict),
        next((row for row in rows if row["verdict"] != NO_CHANGE), rows[0]),
    )
    others = [f"{metric_label(row['metric'])}: {row['verdict']}" for row in rows if row["metric"] != deciding["metric"]]
    text = f"{_host_text(difference)}{difference.verdict.capitalize()}: {_decided(deciding, difference.fail_on)}"
    forced = "judged by --force, though not comparable" * (difference.rules.is_forced and not difference.is_comparable)
    return "; ".join(filter(None, [text, ", ".join(others), forced]))


def _host_text(difference: RunDifference) -> str:
    times = []
    for side in (difference.baseline, difference.candidate):
        slowest = [max((one.median_ns or 0 for one in host_figures(run.host_steps())), default=0) for run in side.runs]
        times += [ms_text(statistics.median(slowest))] if all(slowest) else []
    if len(times) < len(SIDES):
        return ""
    of_what = "NVTX ranges, median of the slowest process; whether that is noise is not judged"
    return f"Host steps take {times[0]} before, {times[1]} after ({of_what}). "


def _decided(row: Mapping[str, Any], fail_on: str | None) -> str:
    name = metric_label(row["metric"])
    if None in (row["baseline"], row["candidate"]):
        return f"no {name} ({_reason(row)})"
    text = " ".join(filter(None, [row["statistic"], name, change_text(row)]))
    if row["ci_low"] is None:
        return f"{text}; {_reason(row)}"
    sure = f"{text}, {sure_text(row['confidence'])} interval"
    if row["verdict"] != INCONCLUSIVE:
        is_open = row["better"] == NEITHER and row["verdict"] != NO_CHANGE
        return f"{sure} {interval_text(row)}{f'; {name} is neither better lower nor higher' * is_open}"
    is_gated = fail_on == REGRESSION
    hint = settle_text(row, "gate" if is_gated else "settle")
    if is_gated and row["no_regression"]:
        hint = "a regression that counts is excluded, and the gate passes"
    found = _interval_and_limit(row)
    parts = (f"{found[0]}, and {found[1]} counts",) if found else (interval_text(row), _reason(row))
    return "; ".join(filter(None, [f"{sure} {parts[0]}", *parts[1:], hint]))


def _reason(row: Mapping[str, Any]) -> str:
    why: str = row["why"] or "not decided"
    if "not comparable" in why:
        return f"{why} (--force to go on)"
    if "without steps" in why:
        return f"{why}; name the steps with --step REGEX"
    if LEFT_OUT in why:
        return f"{why}; {WHOLE_STEP}"
    if row["ci_low"] is None:
        is_known = None not in (row["baseline"], row["candidate"])
        return f"{why}; capture more steps" if is_known and "step" in why else why
    if row["baseline_mean"] is not None and _OPPOSED in why:
        sides = ((f"baseline_{name}", f"candidate_{name}") for name in (MEAN, MEDIAN))
        apart = (delta_text(row["unit"], row[after] - row[before]) for before, after in sides)
        return "mean and median differ in sign ({}, {})".format(*apart)
    found = _interval_and_limit(row)
    return why if found is None else f"it may be {found[0]}, and {found[1]} counts"


def _interval_and_limit(row: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return interval and what counts, in per cent of the baseline unless that is next to nothing, of ratios in points, where they say why it is inconclusive."""
    why, base, least = row["why"] or "", row["baseline"], row["min_effect"]
    if least is None or not (base or row["unit"] == "ratio") or _OPPOSED in why or "not comparable" in why:
        return None
    is_ratio = row["unit"] == "ratio"
    if not is_ratio and 100 * max(abs(row[name]) for name in ("ci_low", "ci_high")) >= _NO_PERCENTAGE * abs(base):
        return interval_text(row).replace(" .. ", " to "), value_text(row["unit"], least)
    unit, word = (1, units.POINTS) if is_ratio else (abs(base), "%")
    counts = 100 * least / unit
    low, high = (units.signed(100 * row[name] / unit, counts) for name in ("ci_low", "ci_high"))
    return f"{low} to {high} {word}", f"{units.decimals(counts)} {word}"


def settle_text(row: Mapping[str, Any], what: str = "settle") -> str:
    """Return about how many more steps or captures would settle an inconclusive row; nothing if that is not known."""
    counts = [row[f"n_{side}"] or 0 for side in SIDES]
    aim = "settle it" if what == "settle" else "settle the gate"
    is_close = what == "settle" and row["ci_low"] is not None and "interval" in (row["why"] or "")
    hint = settling_text(row[f"{what}_steps"], row[f"{what}_captures"], counts, aim)
    return hint or "too close to what counts for more steps to settle it" * is_close


def notes(difference: RunDifference) -> list[str]:
    """Return what to know of the figures: the method, what the interval leaves out, which file set thresholds."""
    method = next((row["method"] for row in difference.metrics.to_pylist() if row["ci_low"] is not None), None)
    uneven = uneven_notes(zip(map(str.capitalize, SIDES), difference.evenness, strict=True))
    texts = []
    if difference.has_capture_without_steps:
        needs = "step time, times per step and a verdict need steps: name them with --step REGEX, or mark them with NVTX ranges"
        whole = "its shares and bandwidths as a whole are compared, without intervals"
        texts.append(f"A capture without steps: {whole}; {needs}.")
    elif uneven:
        texts += [*uneven, "Times are judged on means, since steps are uneven."]
    if method:
        least = percent_text(difference.rules.min_effect)
        texts.append(f"Intervals of the difference: {method}; no change: all of the interval within {least}.")
        texts += spread_text(difference, "LABEL=REPORTS")
    texts += filter(None, [_beside_text(difference)])
    return texts + ([f"Thresholds from {file}."] if (file := difference.settings.file) else [])


def spread_text(difference: RunDifference, several: str) -> list[str]:
    """Return what the intervals leave out where each side is one capture, and how `several` are named; else nothing."""
    what = f"the spread between captures is not in the interval; name several as {several}"
    has_intervals = any(row["ci_low"] is not None for row in difference.metrics.to_pylist())
    return [f"One capture per side: {what}."] if has_intervals and not difference.has_spread_between_captures else []


def _beside_text(difference: RunDifference) -> str | None:
    """Return what now runs beside compute where that got slower and communication is hidden more."""
    compute = next(row for row in difference.metrics.to_pylist() if row["metric"] == "compute")
    if compute["verdict"] != REGRESSION or difference.hidden_comm_ns is None:
        return None
    before, after = difference.hidden_comm_ns
    if after - before < max(compute["min_effect"], compute["delta"]):
        return None
    text = (
        f"Compute takes {delta_text('ns', compute['delta'])}, while communication beside it went from {ms_text(before)} to "
        f"{ms_text(after)} a step: they share the GPU. The step time has both"
    )
    findings = {row["id"] for run in difference.candidate.runs for row in run.judged_findings().to_pylist()}
    is_told = _SLOWED_COMPUTE in findings
    where = f"; what of it is a slowdown is in the candidate's nsyspipe analyze ({_SLOWED_COMPUTE})"
    return f"{text}{where}." if is_told else f"{text}."


def _against_parts(difference: RunDifference) -> dict[str, str]:
    """Return what stands behind a figure that changes the other way than the part of its name: how much that changes, on the slowest rank."""
    deltas = {row["metric"]: row["delta"] or 0 for row in difference.metrics.to_pylist()}
    parts = [(row["part"], row["delta_ns"] or 0, deltas[row["part"]]) for row in difference.step_time_parts.to_pylist()]
    little = _LITTLE * (difference.mean_step_time[0] or 0)
    opposed = {name: delta for name, delta, own in parts if min(delta, own) < -little and max(delta, own) > little}
    return {name: f" (slowest rank's {delta_text('ns', delta)})" for name, delta in opposed.items()}


def gate_text(gate: Gate) -> str:
    """Return in one line what a gate found."""
    if gate.failed:
        return "; ".join(f"{_judged(row)} {row['verdict']}, {change_text(row)}" for row in gate.failed)
    aim = "gate" if gate.fail_on == REGRESSION else "settle"
    said = ((f"{_judged(row)} is {row['verdict']} ({_reason(row)})", settle_text(row, aim)) for row in gate.undecided)
    undecided = "; ".join(part for texts in said for part in texts if part)
    names, effect = listed(map(_judged, gate.judged)), units.decimals(gate.judged[0]["min_effect_pct"])
    return undecided or f"no {gate.fail_on.removeprefix('any-')} of {names} by {effect} % or more"


def _judged(row: Mapping[str, Any]) -> str:
    return " ".join(filter(None, [row["statistic"], row["metric"]]))  # which number of it is compared


def rule_text(gate: Gate, settings: GateSettings) -> str:
    """Return what a gate was asked, and of a command who says so: the metrics, from where on a change counts, how sure that has to be."""
    first, names = gate.judged[0], ",".join(row["metric"] for row in gate.judged)
    options = {
        "fail_on": f"--fail-on {gate.fail_on}", "metrics": f"--metric {names}",
        "min_effect": f"--min-effect {units.decimals(first['min_effect_pct'])}%", "confidence": f"--confidence {first['confidence']:g}",
    }  # fmt: skip
    sources = {name: f" ({settings.source(name)})" if settings.fail_on else "" for name in options}
    return f"It rests on {', '.join(option + sources[name] for name, option in options.items())}."


def cause_text(difference: RunDifference, cause: Cause) -> str:
    """Return which part of the step time changed, and what changed in structure that such a part depends on."""
    whole = delta_text("ns", difference.mean_step_time[2])
    told = []
    for what, unit, *both in cause.facts:  # of words that are too long for a sentence only that they differ
        texts = [_side_text(unit, value) for value in both]
        arguments = [one.name or "words" for one in changed_arguments(*texts)] if what in COMMANDS else []
        if arguments:
            told.append(f"arguments of the command ({listed(arguments, _MOST_FACTS)})")
            continue
        told.append(f"another {what}" if max(map(len, texts)) > _LONGEST_FACT else f"{what} {' -> '.join(texts)}")
    facts = listed(told, _MOST_FACTS) if told else ""
    because = f" Probable cause, by what else changed: {facts}." if facts else ""
    if cause.n_matters > 1:
        because = f" Probable causes, by what else changed: {facts}; which of them it is cannot be told apart here."
    part = f"{metric_label(cause.part)} by {delta_text('ns', cause.delta_ns)}"
    if cause.bandwidth is not None:
        what, unit, *both = cause.bandwidth
        because += f" With it {what} {' -> '.join(_side_text(unit, value) for value in both)}"
        because += "." if cause.is_link_compared else "; the link, which may be the cause, was not compared."
    for (what, unit, *both), ns in cause.beside:
        copies = " -> ".join(_side_text(unit, value) for value in both)
        exposed = delta_text("ns", ns)
        because += f" Beside it {what} {copies}, as by gradient_as_bucket_view: exposed copies by {exposed}."
    return f"Mean step time changed by {whole}, {part}.{because}"


def difference_document(difference: RunDifference) -> dict[str, Any]:
    """Return the document as plain Python values, in a fixed order.

    ``baseline`` and ``candidate`` are the run object of the side's first capture, with the side's label and the run ids
    of all captures. ``step_time_parts`` sum to ``mean_step_time`` and ``idle_causes`` to the part idle, exactly.
    """
    changes = difference.changes.to_pylist()
    for row in changes:  # numbers in the place of the words, which numbers do not have
        values = {side: row.pop(f"{side}_value") for side in SIDES}
        row.update({} if values["baseline"] is None else values)
    evenness = zip(SIDES, difference.evenness, strict=True)
    judged_by = None if (gate := difference.gate) is None else {
        **{name: getattr(gate, name) for name in ("fail_on", "outcome", "exit_code")},
        **{name: [row["metric"] for row in getattr(gate, name)] for name in ("failed", "undecided")},
    }  # fmt: skip
    return {
        "schema_version": SCHEMA_VERSION, "tool_version": __version__,
        "verdict": difference.verdict, "judged": list(difference.judged),
        "min_effect_pct": round(100 * difference.rules.min_effect, 12), "statistic": difference.statistic,
        "evenness": {name: [asdict(capture) for capture in captures] for name, captures in evenness},
        "confidence": difference.rules.confidence, "settings_file": difference.settings.file,
        "has_spread_between_captures": difference.has_spread_between_captures,
        "comparable": difference.is_comparable, "comparability": difference.comparability.to_pylist(), "gate": judged_by,
        "baseline": _side(difference.baseline), "candidate": _side(difference.candidate),
        "metrics": difference.metrics.to_pylist(),
        "mean_step_time": _mean_step_time(difference),
        "cause": difference.cause and difference.cause._asdict(),
        "step_time_parts": difference.step_time_parts.to_pylist(), "idle_causes": difference.idle_causes.to_pylist(),
        "kernels": difference.top_kernels.to_pylist(), "changes": changes,
        "facts": difference.facts.to_pylist(),
        "problems": difference.problem_rows,
    }  # fmt: skip


def _side(side: Side) -> dict[str, Any]:
    return {**asdict(side.runs[0].header), "label": side.label, "captures": [run.header.run_id for run in side.runs]}


def identity_of(difference: RunDifference) -> str:
    """Return what tells differences apart: the run ids of both sides, as JSON."""
    return json.dumps([_side(side)["captures"] for side in (difference.baseline, difference.candidate)])


def difference_formats(difference: RunDifference) -> dict[str, Format]:
    """Return how a difference is written in each format, and how a file of it says which runs it is of."""
    return formats_of(
        "diff", identity_of(difference), document=partial(difference_document, difference),
        identity_in=lambda document: json.dumps([list(map(str, document[side]["captures"])) for side in SIDES]),
        blocks=partial(difference_blocks, difference),
        usage="nsyspipe diff BASELINE CANDIDATE", meta=DIFF_RUNS,
        page=partial(lazily("html.difference_page", "difference_page"), difference),
    )  # fmt: skip
