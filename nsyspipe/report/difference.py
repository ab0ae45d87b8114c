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
from nsyspipe.model.figures import METRICS as METRIC_FIGURES, NEITHER
from nsyspipe.model.names import grouped, listed
from nsyspipe.model.problems import OF_FILES_BESIDE, WHOLE_STEP
from nsyspipe.model.table import SCHEMA_VERSION
from nsyspipe.report import units
from nsyspipe.report.blocks import (
    Block,
    Facts,
    Field,
    Line,
    Lines,
    Notes,
    Sentence,
    Table,
    Troubles,
    Word,
    of,
    table_of,
)
from nsyspipe.report.export import formats_of, lazily
from nsyspipe.report.files import Format
from nsyspipe.report.subject import subject_facts
from nsyspipe.report.units import (
    absent,
    beside,
    delta_text,
    metric_label,
    ms_text,
    percent_text,
    sure_text,
    value_text,
)
from nsyspipe.report.words import (
    Trouble,
    backward_source,
    opposed_text,
    same_problems,
    settling_text,
    uneven_notes,
)
from nsyspipe.version import __version__

# How wide a terminal has room for what metrics, kernels and changes can do without; both sides go
# last.
_BOTH = 40
_VERDICT = 50
_CHANGE = 62
_PERCENT = 70
_WORDS = 79
_INTERVAL = 95
_OPPOSED = "differ in sign"
# per cent of a baseline: so many say only that it is next to nothing, and units say more
_NO_PERCENTAGE = 10_000
# of the step time: nobody asks where less comes from, everybody where so much does
_LITTLE = 0.001
_MUCH = 0.05
_SLOWED_COMPUTE = "comm-slows-compute"  # the finding that says how much slower
# What time of communication is split into where all ranks are known.
_SPLIT = {"wait": "waiting", "transfer": "transfer"}
# What was given or found beside the reports, and is not used; and what is used that nobody named.
_OF_FILES = {"log-of-another-run", "topology-of-another-machine", *OF_FILES_BESIDE}
_SHOWN_CHANGES = 20
_MOST_FACTS = 4
_LONGEST_FACT = 40
_LONGEST_VALUE = 20
_LONGEST_TOLD = 60
DIFF_RUNS = "nsyspipe-diff-runs"  # the meta element of a page that says which runs it compares
OF_RANKS = (
    "Each row uses, in every step, the rank with the largest value. analyze uses the slowest rank, "
    "so its values differ."
)
# How facts are shown whose names in tables and documents stay.
_SHOWN_AS = {
    LINK: "interconnect",
    "DtoD copies per step": "D2D copies per step",
    "DtoD bytes per step": "D2D bytes per step",
    "message bytes per step": "message sizes per step",
    "mean message of a collective": "mean message size",
    "longest delay of a step by a rank": "straggler delay",
    "steps in the figures": "steps used",
    "copies on the device": "D2D copies",
    "number and bytes of copies on the device": "number and size of D2D copies",
}
# Captions of the tables, by which a page knows them.
PARTS = "Where the change of the mean step time comes from"
METRICS = "Metrics of both sides"
# Of a verdict on one capture per side.
SCOPE = "This holds for these two captures. Other captures of the programs can differ."
KERNELS = "Kernels that changed most"
CHANGES = "What else changed"


def difference_blocks(difference: RunDifference, *, has_gate: bool = True) -> Iterator[Block]:
    """Yield everything: verdict and gate, both sides, doubts, where the step time changed, metrics, kernels, facts and notes."""
    yield from answer_blocks(difference)
    if has_gate:
        yield from gate_blocks(difference)
    yield from side_blocks(difference)
    unused = [row for row in difference.problem_rows if row["code"] in _OF_FILES]
    if unused:
        yield Troubles(side_problems(unused), is_close=True)
    yield parts_table(difference)
    yield metrics_table(difference)
    yield kernels_table(difference, difference.top_kernels.to_pylist())
    yield changes_table(difference)
    texts = notes(difference)
    if texts:
        yield Notes(texts)


def side_problems(rows: Sequence[Mapping[str, Any]]) -> list[Trouble]:
    """Return problems of the sides, each once, with the sides that have it."""
    return same_problems(rows, lambda alike: listed({row["side"]: 0 for row in alike}))


def answer_blocks(difference: RunDifference) -> Iterator[Block]:
    """Yield the verdict, what the change comes from, and what speaks against the verdict."""
    yield Sentence(verdict_text(difference), "bold", verdict=difference.verdict)
    if difference.verdict != INCONCLUSIVE and is_of_one_capture_each(difference):
        yield Sentence(SCOPE)
    cause = difference.cause
    if cause is not None:
        yield Sentence(cause_text(cause))
    moved = difference.opposed_parts
    if moved:
        yield Sentence(opposed_text(moved))
    outlier = difference.outlier
    if outlier is not None:
        times = f"takes {ms_text(outlier.ns)}, but the median is {ms_text(outlier.median_ns)}"
        without = f"Without this step the verdict would be {outlier.verdict}."
        yield Sentence(f"Step {outlier.step} of the {outlier.side} {times}. {without}")


def side_blocks(difference: RunDifference) -> Iterator[Block]:
    """Yield what both sides are, and what makes the comparison doubtful or impossible."""
    for name, side in zip(SIDES, (difference.baseline, difference.candidate), strict=True):
        run = side.runs[0]
        first = [f"the first of {len(side.runs)} captures"] if len(side.runs) > 1 else []
        facts = [side.name, *subject_facts(run), *backward_source(run), *first]
        yield Facts(facts, name, is_of_several=True)
    yield from doubt_blocks(difference)


def doubt_blocks(difference: RunDifference) -> Iterator[Block]:
    """Yield what makes the comparison doubtful or impossible."""
    checks = difference.comparability.to_pylist()
    if checks:
        yield Troubles(
            [_doubt(row, is_forced=difference.rules.is_forced) for row in checks], is_close=True
        )


def _doubt(row: Mapping[str, Any], *, is_forced: bool) -> Trouble:
    """Return a check of the comparison as a warning, with a hint if an option overrides the check."""
    is_hinted = row["check"] == OTHER_WORK and not is_forced
    hint = (
        " Use --force if you know that the runs are comparable, for example eager and "
        "torch.compile."
    )
    severity = "not comparable" if row["blocks"] else "warning"
    return severity, f"{row['message']}{f'.{hint}' if is_hinted else ''}", "", None


def gate_blocks(difference: RunDifference) -> Iterator[Sentence]:
    """Yield what the gate decided, if there is one, and which rule it has."""
    gate = difference.gate
    if gate is not None:
        yield Sentence(gate_line(gate), verdict=gate.outcome)
        yield Sentence(rule_text(gate, difference.settings))


def gate_line(gate: Gate) -> str:
    """Return the decision of a gate in one line: ``GATE UNDECIDED (exit 4): ...``."""
    return f"GATE {gate.outcome.upper()} (exit {gate.exit_code}): {gate_text(gate)}"


def part_rows(difference: RunDifference) -> list[dict[str, Any]]:
    """Return the parts of the mean step time, idle with the causes that a side has some of, and their sum."""
    parts = (
        {"name": metric_label(part["part"]), **part}
        for part in difference.step_time_parts.to_pylist()
    )
    some = (
        cause
        for cause in difference.idle_causes.to_pylist()
        if cause["baseline_ns"] or cause["candidate_ns"]
    )
    # Idle is the last part.
    of_idle = ({"name": f"  {_cause_label(cause['cause'])}", **cause} for cause in some)
    return [*parts, *of_idle, {"name": "mean step time", **_mean_step_time(difference)}]


def _cause_label(cause: str) -> str:
    """Return what a cause of idle time is called, without the word idle."""
    return METRIC_FIGURES[f"idle_{cause}"].short.removeprefix("idle: ")


def _mean_step_time(difference: RunDifference) -> dict[str, float | None]:
    return dict(
        zip(("baseline_ns", "candidate_ns", "delta_ns"), difference.mean_step_time, strict=True)
    )


def parts_table(difference: RunDifference) -> Table:
    """Return the parts of the mean step time on both sides."""
    fields = [Field("of the\nslowest rank", of("name"), "word"), *_times("_ns")]
    if difference.mean_step_time[2] is None:
        note = "not available, because a side has no step that was recorded on every rank"
        return table_of(PARTS, [], fields, note)
    return table_of(PARTS, part_rows(difference), fields)


def _times(suffix: str) -> list[Field]:
    time = partial(Field, decimals_of="mean")
    sides = [
        time(f"{side}\nmean", of(side + suffix, partial(value_text, "ns")), from_width=_BOTH)
        for side in SIDES
    ]
    return [*sides, time("change\nof mean", of(f"delta{suffix}", partial(delta_text, "ns")))]


def metric_rows(difference: RunDifference) -> tuple[list[dict[str, Any]], int]:
    """Return all figures, judged ones first, then main ones of both sides and times that changed much for sure; and how many these are."""
    rows = difference.metrics.to_pylist()
    is_capture = (
        difference.has_capture_without_steps
    )  # all that it has is a main one: shares and bandwidths
    much = _MUCH * max(
        (row["baseline"] or 0 for row in rows if row["metric"] == DEFAULT_METRIC), default=0
    )

    def place(row: Mapping[str, Any]) -> int:
        is_main = (is_capture or units.metric_figure(row["metric"])) and row["baseline"] is not None
        is_sure = row["unit"] == "ns" and row["verdict"] not in (INCONCLUSIVE, NO_CHANGE)
        if row["metric"] in difference.judged:
            return 0
        return 1 if is_main or (is_sure and abs(row["delta"]) >= much) else 2

    rows.sort(key=place)  # stable
    return rows, sum(place(row) < 2 for row in rows)  # noqa: PLR2004 - those that stand first


def metrics_table(difference: RunDifference) -> Table:
    """Return the metrics of both sides with verdicts."""
    rows, n_shown = metric_rows(difference)
    statistics = {row["statistic"] for row in rows[:n_shown]}
    what = (
        "median" if MEAN not in statistics else "mean" if statistics == {MEAN} else "mean or median"
    )
    whose, below = (
        ("of the capture", "")
        if statistics == {None}
        else ("of the rank with\nmost of it", f"\n{what}")
    )
    said = {MEAN: ", mean", MEDIAN: ", median" * (MEAN in statistics)}  # where it may be either
    sure = f"{sure_text(difference.rules.confidence)} CI\nof the change"
    against = _against_parts(difference)
    fields = [
        Field(
            whose,
            lambda row: (
                metric_label(row["metric"])
                + said.get(row["statistic"], "")
                + against.get(row["metric"], "")
            ),
            "word",
        ),
        *(
            Field(side + below, partial(_metric, name=side, write=value_text), from_width=_BOTH)
            for side in SIDES
        ),
        Field("change", partial(_metric, name="delta", write=delta_text), from_width=_CHANGE),
        *(
            [
                Field(
                    sure,
                    interval_cell,
                    hint="confidence interval of the change",
                    from_width=_INTERVAL,
                )
            ]
            if any(row["ci_low"] is not None for row in rows[:n_shown])
            else []
        ),
        Field(
            "%",
            lambda row: (
                f">{_NO_PERCENTAGE}"
                if row["unit"] != "ratio" and (row["delta_pct"] or 0) >= _NO_PERCENTAGE
                else percent_change(row).removesuffix("%")
            ),
            hint="percent of the baseline (ratios have percentage points)",
            from_width=_PERCENT,
        ),
        Field(
            "verdict",
            lambda row: Word(verdict_word(row["verdict"]), is_plain=is_outweighed(difference, row)),
            "word",
            from_width=_VERDICT,
        ),
    ]
    note = None if difference.has_capture_without_steps else OF_RANKS
    strong = frozenset(range(len(difference.judged)))
    return table_of(METRICS, rows, fields, note, n_shown=n_shown, strong=strong)


def verdict_word(verdict: str) -> str:
    """Return what a verdict is called on the screen."""
    return "unchanged" if verdict == NO_CHANGE else verdict


def is_outweighed(difference: RunDifference, row: Mapping[str, Any]) -> bool:
    """Tell whether a figure got worse on which no verdict rests, in a difference that is no regression: no alarm."""
    return (
        row["metric"] not in difference.judged
        and difference.verdict != REGRESSION == row["verdict"]
    )


def _metric(row: Mapping[str, Any], name: str, write: Callable[[str, float | None], str]) -> str:
    return beside(write(row["unit"], row[name]), (row.get(side) for side in SIDES)).replace(
        " steps/s", " /s"
    )


def kernels_table(difference: RunDifference, rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return the kernels that changed most."""
    fields = [
        Field("kernels, per\nrank and step", of("name"), "name"),
        *_times("_ns_per_step"),
        Field("phase", of("phase"), "word", from_width=_WORDS),
        Field("status", of("status"), "word", from_width=_WORDS),
    ]
    n_others = difference.kernels.num_rows - len(rows)
    more = f" The {n_others} other kernels changed less." if n_others else ""
    note = (
        "These are means over all ranks. The parts of the step above are those of the slowest "
        "rank. Kernels have no confidence interval, so "
        f"a small change may be noise.{more}"
    )
    if not difference.kernels.num_rows:
        note = "not available, because a side has no steps or its kernels were not counted by step"
    elif not rows:
        note = "no kernel changed by more than 0.1% of the step"
    return table_of(KERNELS, rows, fields, note)


def _side_text(unit: str | None, value: float | str | None) -> str:
    return value_text(unit, value) if isinstance(value, float) else value or "not set"


def _fact_text(row: Mapping[str, Any], side: str) -> str:
    return _side_text(row["unit"], row[side] if row["delta"] is None else row[f"{side}_value"])


def change_text_of_fact(row: Mapping[str, Any]) -> str:
    """Return a fact that changed in a line: ``collectives per step: 1 -> 37``."""
    before, after = (shortened(_fact_text(row, side), _LONGEST_FACT) for side in SIDES)
    return f"{shown_name(row['what'])}: {before} -> {after}"


def changes_table(difference: RunDifference) -> Table:
    """Return the facts that changed."""
    rows = shown_changes(difference)
    fields = [
        Field("what else changed", lambda row: shown_name(row["what"]), "name", most=_LONGEST_FACT),
        *(
            Field(side, partial(_fact_text, side=side), "name", most=_LONGEST_VALUE)
            for side in SIDES
        ),
        Field(
            "change",
            lambda row: "" if row["delta"] is None else _metric(row, "delta", delta_text),
            from_width=_WORDS,
        ),
    ]
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
    rows = [
        _argument_row(row, changed_argument)
        for changed_argument in changed_arguments(row["baseline"], row["candidate"])
    ]
    return rows or [row]


def _argument_row(row: dict[str, Any], argument: ChangedArgument) -> dict[str, Any]:
    values = {"baseline": argument.before, "candidate": argument.after}
    shown = {
        side: "not given" if value is None else value or "given" for side, value in values.items()
    }
    return {**row, **shown, "what": _argument_text(argument.name)}


def _argument_text(name: str) -> str:
    """Return what the argument of a name is called; words that are of no option have none."""
    return f"argument {name}" if name else "other arguments"


def hidden_facts(difference: RunDifference) -> list[str]:
    """Return what is hidden on both sides, so that nobody can tell whether it changed: of commands the arguments."""
    return [
        _hidden_fact(row)
        for row in difference.changes.to_pylist()
        if row["what"].endswith(MAY_HAVE)
    ]


def _hidden_fact(row: Mapping[str, Any]) -> str:
    what = str(row["what"].removesuffix(MAY_HAVE))
    if what not in COMMANDS:
        return what
    arguments = map(_argument_text, hidden_arguments(row["baseline"], HIDDEN))
    return f"{listed([*arguments])} of the {what}"


def facts_text(difference: RunDifference) -> str:
    """Return which facts are the same on both sides, and which are not compared, with what records them."""
    same = same_facts(difference)
    seen = "recorded and do not hide" if hidden_facts(difference) else "recorded"
    nothing = (
        []
        if shown_changes(difference)
        else [f"No difference was found in the facts that both sides {seen}."]
    )
    alike = [f"Same on both sides: {listed(same)}."] if same else []
    return " ".join([*nothing, *alike, *not_compared_texts(difference)])


def same_facts(difference: RunDifference) -> list[str]:
    """Return the names of the facts that both sides recorded and that are the same."""
    rows = difference.facts.to_pylist()
    return [_same_fact(row) for row in rows if row["is_same"] and row["what"] not in MEASURED]


class NotCompared(Struct, frozen=True):
    """Facts that are not compared for one reason."""

    facts: str
    reason: str


_OTHER_DEFINITIONS = NotCompared(
    "collectives, copies and delays",
    f"the sides were analyzed with different definitions, {ANALYZE_AGAIN}",
)


def not_compared_texts(difference: RunDifference) -> list[str]:
    """Return a sentence for each reason why facts are not compared, with what records them."""
    return [f"Not compared: {row.facts} ({row.reason})." for row in not_compared(difference)]


def not_compared_block(difference: RunDifference) -> Iterator[Lines]:
    """Yield a line for each reason why facts are not compared; nothing if there is none."""
    missing = not_compared(difference)
    if missing:
        yield Lines("Not compared", [Line(f"{row.facts}: {row.reason}") for row in missing])


def not_compared(difference: RunDifference) -> list[NotCompared]:
    """Return which facts are not compared, and why: what nobody recorded, one side alone, or what is hidden."""
    rows = difference.facts.to_pylist()
    found = []
    for side in (NEITHER_SIDE, *SIDES):
        of_side = (row for row in rows if row["recorded_on"] == side and not _is_explained(row))
        why = "not recorded" if side == NEITHER_SIDE else f"only recorded for the {side}"
        for fix, of_fix in grouped((row["recorded_by"], row) for row in of_side).items():
            found.append(NotCompared(listed(_facts_of_one_fix(of_fix)), f"{why}, needs {fix}"))
    hidden = hidden_facts(difference)
    if hidden:
        found.append(
            NotCompared(", ".join(hidden), "hidden on both sides, so they may have changed")
        )
    found += [_explained_fact(row) for row in rows if _is_explained(row)]
    if DEFINITIONS in difference.comparability["check"].to_pylist():
        found.append(_OTHER_DEFINITIONS)
    else:
        found += [_of_one_side(figures) for figures in figures_of_one_side(difference)]
    return found


def shown_name(what: str) -> str:
    """Return what a fact is called on the screen."""
    return _SHOWN_AS.get(what, what)


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
        if (
            row["metric"] in _SPLIT
            and len(known) == 1
            and row["baseline"] is row["candidate"] is None
        ):
            of_reason.setdefault((known[0], row["why"]), []).append(row["metric"])
    return [
        FiguresOfOneSide(side, why, tuple(metrics)) for (side, why), metrics in of_reason.items()
    ]


def _of_one_side(figures: FiguresOfOneSide) -> NotCompared:
    names = listed(_SPLIT[metric] for metric in figures.metrics)
    return NotCompared(names, f"only the {figures.side} has data: {figures.why}")


# The environment that reports captured may have settings too, which are compared: only what NCCL's
# log says is lacking.
_OF_LOG = {LINK: "interconnect", NCCL_SETTINGS: "NCCL settings", NCCL_VERSION: "NCCL version"}


def _facts_of_one_fix(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return facts that one recording would bring; of NCCL's log, which no side has, what it would say."""
    is_of_log = [row["recorded_on"] == NEITHER_SIDE and row["what"] in _OF_LOG for row in rows]
    of_log = [_OF_LOG[row["what"]] for row, is_one in zip(rows, is_of_log, strict=True) if is_one]
    others = [
        _fact_of_one_side(row) for row, is_one in zip(rows, is_of_log, strict=True) if not is_one
    ]
    return [*others, f"{listed(of_log)} from the NCCL log"] if of_log else others


def _is_explained(row: Mapping[str, Any]) -> bool:
    """Tell whether more is known of why a fact is not compared than what records it."""
    return any(row[f"{side}_why"] is not None for side in SIDES)


def _explained_fact(row: Mapping[str, Any]) -> NotCompared:
    """Return a fact with the reason of each side that lacks it, or with what would record it."""
    needs = f"not recorded, needs {row['recorded_by']}"
    lacking = [side for side in SIDES if row["recorded_on"] != side]
    whys = {side: row[f"{side}_why"] or needs for side in lacking}
    reason = ", ".join(f"{side}: {why}" for side, why in whys.items())
    if row["recorded_on"] == NEITHER_SIDE and len({*whys.values()}) == 1:
        reason = f"both sides: {whys[SIDES[0]]}"
    elif row["recorded_on"] != NEITHER_SIDE:
        reason = f"only known for the {row['recorded_on']}. Not known for the {reason}"
    return NotCompared(_fact_of_one_side(row), reason)


def _same_fact(row: Mapping[str, Any]) -> str:
    return (
        f"no {STRAGGLER}"
        if (row["what"], row["words"]) == (STRAGGLER, NONE)
        else shown_name(row["what"])
    )


def _fact_of_one_side(row: Mapping[str, Any]) -> str:
    """Return a fact that is not compared, and what the side that has it says."""
    if (row["what"], row["words"]) == (STRAGGLER, NONE):
        return f"no {STRAGGLER}"
    if row["value"] is not None:
        return f"{row['words']} {value_text(row['unit'], row['value'])}"
    name = shown_name(row["what"])
    if row["words"] is None:
        return name
    cut = shortened(row["words"], _LONGEST_TOLD)
    return f"{name} [{cut}]" if " " in cut else f"{name} {cut}"


def percent_change(row: Mapping[str, Any]) -> str:
    """Return the relative difference with its sign; nothing of ratios, which have points, nor of next to nothing."""
    if (
        row["delta_pct"] is None
        or row["unit"] == "ratio"
        or abs(row["delta_pct"]) >= _NO_PERCENTAGE
    ):
        return absent
    return f"{units.signed(row['delta_pct'], row.get('min_effect_pct'))}%"


def change_text(row: Mapping[str, Any]) -> str:
    """Return both values and the difference, in its unit and, where that says something, in per cent."""
    change = _metric(row, "delta", delta_text)
    relative = percent_change(row)
    if relative != absent:
        change = relative if row["delta"] == 0 else f"{change}, {relative}"
    before, after = (_metric(row, side, value_text) for side in SIDES)
    return f"{_without_unit_of(before, after)} -> {after} ({change})"


def _without_unit_of(text: str, other: str) -> str:
    """Return a quantity without its unit, if another quantity that follows has the same."""
    unit = other.partition(" ")[2]
    return text.removesuffix(f" {unit}") if unit else text


def interval_text(row: Mapping[str, Any]) -> str:
    """Return the interval of a metric's difference, ``-74.15 to -71.61 ms``; one unit where both ends have it."""
    if row["ci_low"] is None:
        return absent
    low, high = (_metric(row, name, delta_text) for name in ("ci_low", "ci_high"))
    return f"{_without_unit_of(low, high)} to {high}"


def interval_cell(row: Mapping[str, Any]) -> str:
    """Return the same without the unit, where the cell of the difference has that too."""
    ends = {
        _metric(row, name, delta_text).partition(" ")[2] for name in ("delta", "ci_low", "ci_high")
    }
    return (
        interval_text(row).removesuffix(f" {ends.pop()}") if len(ends) == 1 else interval_text(row)
    )


def verdict_text(difference: RunDifference) -> str:
    """Return what became of the judged metric that decides, by how much, how sure that is; then of the other ones."""
    rows = difference.judged_rows
    # Of those that know no better, one that is not the same.
    with_direction = [row for row in rows if row["better"] != NEITHER]
    deciding = next(
        (row for row in with_direction or rows if row["verdict"] == difference.verdict),
        next((row for row in rows if row["verdict"] != NO_CHANGE), rows[0]),
    )
    others = [
        f"{metric_label(row['metric'])}: {verdict_word(row['verdict'])}"
        for row in rows
        if row["metric"] != deciding["metric"]
    ]
    verdict = verdict_word(difference.verdict).capitalize()
    sentences = [f"{_host_text(difference)}{verdict}: {_decided(deciding, difference.fail_on)}"]
    if others:
        sentences.append(f"Other judged metrics: {', '.join(others)}")
    if difference.rules.is_forced and not difference.is_comparable:
        sentences.append("The runs are not comparable, but you used --force")
    return ". ".join(sentences) + "."


def _host_text(difference: RunDifference) -> str:
    times = []
    for side in (difference.baseline, difference.candidate):
        slowest = [
            max(
                (host_figure.median_ns or 0 for host_figure in host_figures(run.host_steps())),
                default=0,
            )
            for run in side.runs
        ]
        times += [ms_text(statistics.median(slowest))] if all(slowest) else []
    if len(times) < len(SIDES):
        return ""
    of_what = "from NVTX ranges, median of the slowest process"
    return (
        f"CPU time per step: {times[0]} before, {times[1]} after ({of_what}). This change may be "
        "noise. "
    )


def _decided(row: Mapping[str, Any], fail_on: str | None) -> str:
    name = metric_label(row["metric"])
    if None in (row["baseline"], row["candidate"]):
        return f"{name} is not available. Reason: {_reason(row)}"
    text = " ".join(filter(None, [row["statistic"], name, change_text(row)]))
    if row["ci_low"] is None:
        return f"{text}. Reason: {_reason(row)}"
    sure = f"{text}, {sure_text(row['confidence'])} CI"
    if row["verdict"] != INCONCLUSIVE:
        is_open = row["better"] == NEITHER and row["verdict"] != NO_CHANGE
        return f"{sure} {interval_text(row)}{f'. Neither direction of {name} is better' * is_open}"
    is_gated = fail_on == REGRESSION
    hint = settle_text(row, "gate" if is_gated else "settle")
    if is_gated and row["no_regression"]:
        hint = "A regression above the minimum effect is excluded, so the gate passes"
    found = _interval_and_limit(row)
    sentences = [f"{sure} {interval_text(row)}", f"Reason: {_reason(row)}"]
    if found:
        sentences = [f"{sure} {found[0]} (minimum effect {found[1]})"]
    return ". ".join([*sentences, *([f"{hint[:1].upper()}{hint[1:]}"] if hint else [])])


def _reason(row: Mapping[str, Any]) -> str:
    why: str = row["why"] or "not decided"
    if "not comparable" in why:
        return (
            f"{why.replace('not comparable', 'the runs are not comparable')} (--force compares "
            "anyway)"
        )
    if "without steps" in why:
        return f"{why} (name the steps with --step REGEX)"
    if LEFT_OUT in why:
        return f"{why} ({WHOLE_STEP})"
    if row["ci_low"] is None:
        is_known = None not in (row["baseline"], row["candidate"])
        return f"{why} (capture more steps)" if is_known and "step" in why else why
    if row["baseline_mean"] is not None and _OPPOSED in why:
        sides = ((f"baseline_{name}", f"candidate_{name}") for name in (MEAN, MEDIAN))
        apart = (delta_text(row["unit"], row[after] - row[before]) for before, after in sides)
        return "mean and median differ in sign ({}, {})".format(*apart)
    found = _interval_and_limit(row)
    return why if found is None else f"the change may be {found[0]} (minimum effect {found[1]})"


def _interval_and_limit(row: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return interval and what counts, in per cent of the baseline unless that is next to nothing, of ratios in points, where they say why it is inconclusive."""
    why = row["why"] or ""
    base = row["baseline"]
    least = row["min_effect"]
    if (
        least is None
        or not (base or row["unit"] == "ratio")
        or _OPPOSED in why
        or "not comparable" in why
    ):
        return None
    is_ratio = row["unit"] == "ratio"
    if not is_ratio and 100 * max(
        abs(row[name]) for name in ("ci_low", "ci_high")
    ) >= _NO_PERCENTAGE * abs(base):
        return interval_text(row), value_text(row["unit"], least)
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
    return (
        hint
        or "the change is so close to the minimum effect that more steps would not settle it"
        * is_close
    )


def notes(difference: RunDifference) -> list[str]:
    """Return what to know of the figures: the method, what the interval leaves out, which file set thresholds."""
    method = next(
        (row["method"] for row in difference.metrics.to_pylist() if row["ci_low"] is not None), None
    )
    uneven = uneven_notes(zip(map(str.capitalize, SIDES), difference.evenness, strict=True))
    texts = []
    if difference.has_capture_without_steps:
        texts.append(
            "A side is a capture without steps. Only its shares and bandwidths are compared, "
            "without confidence intervals. "
            "For a verdict name the steps with --step REGEX, or mark them with NVTX ranges."
        )
    elif uneven:
        texts += [*uneven, "Steps are uneven, so nsyspipe judges means."]
    if method:
        least = percent_text(difference.rules.min_effect)
        texts.append(f"Confidence intervals of the difference: {method}.")
        texts.append(f"Unchanged means that the whole confidence interval is within ±{least}.")
        texts += spread_text(difference, "LABEL=REPORTS")
    texts += filter(None, [_beside_text(difference)])
    return texts + ([f"Thresholds from {file}."] if (file := difference.settings.file) else [])


def is_of_one_capture_each(difference: RunDifference) -> bool:
    """Tell whether the intervals leave out the spread between captures."""
    has_intervals = any(row["ci_low"] is not None for row in difference.metrics.to_pylist())
    return has_intervals and not difference.has_spread_between_captures


def spread_text(difference: RunDifference, several: str) -> list[str]:
    """Return how to include the spread between captures where each side is one, and how `several` are named; else nothing."""
    if not is_of_one_capture_each(difference):
        return []
    return [f"To include the spread between captures, pass several captures as {several}."]


def _beside_text(difference: RunDifference) -> str | None:
    """Return what now runs beside compute where that got slower and communication is hidden more."""
    compute = next(row for row in difference.metrics.to_pylist() if row["metric"] == "compute")
    if compute["verdict"] != REGRESSION or difference.hidden_comm_ns is None:
        return None
    before, after = difference.hidden_comm_ns
    if after - before < max(compute["min_effect"], compute["delta"]):
        return None
    text = (
        f"Compute changed by {delta_text('ns', compute['delta'])} per step, and overlapped "
        "communication from "
        f"{ms_text(before)} to {ms_text(after)}. Both share the GPU, and the step time "
        "includes both"
    )
    findings = {
        row["id"] for run in difference.candidate.runs for row in run.judged_findings().to_pylist()
    }
    is_told = _SLOWED_COMPUTE in findings
    where = f"nsyspipe analyze of the candidate shows the slowdown ({_SLOWED_COMPUTE})."
    return f"{text}. {where}" if is_told else f"{text}."


def _against_parts(difference: RunDifference) -> dict[str, str]:
    """Return what stands behind a figure that changes the other way than the part of its name: how much that changes, on the slowest rank."""
    deltas = {row["metric"]: row["delta"] or 0 for row in difference.metrics.to_pylist()}
    parts = [
        (row["part"], row["delta_ns"] or 0, deltas[row["part"]])
        for row in difference.step_time_parts.to_pylist()
    ]
    little = _LITTLE * (difference.mean_step_time[0] or 0)
    opposed = {
        name: delta
        for name, delta, own in parts
        if min(delta, own) < -little and max(delta, own) > little
    }
    return {
        name: f" (on the slowest rank {delta_text('ns', delta)})" for name, delta in opposed.items()
    }


def gate_text(gate: Gate) -> str:
    """Return in one line what a gate found."""
    if gate.failed:
        return ", ".join(
            f"{row['verdict']} of {_judged(row)}, {change_text(row)}" for row in gate.failed
        )
    if gate.undecided:
        return _undecided_text(gate)
    names = listed(map(_judged, gate.judged))
    effect = units.decimals(gate.judged[0]["min_effect_pct"])
    return f"no {gate.fail_on.removeprefix('any-')} of {names} by {effect}% or more"


def _undecided_text(gate: Gate) -> str:
    aim = "gate" if gate.fail_on == REGRESSION else "settle"
    texts = [
        f"{_judged(row)} is {row['verdict']}, because {_reason(row)}" for row in gate.undecided
    ]
    hints = dict.fromkeys(hint for row in gate.undecided if (hint := settle_text(row, aim)))
    return ". ".join([", ".join(texts), *(f"{hint[:1].upper()}{hint[1:]}" for hint in hints)])


def _judged(row: Mapping[str, Any]) -> str:
    return " ".join(
        filter(None, [row["statistic"], row["metric"]])
    )  # which number of it is compared


def rule_text(gate: Gate, settings: GateSettings) -> str:
    """Return what a gate was asked, and of a command who says so: the metrics, from where on a change counts, how sure that has to be."""
    first = gate.judged[0]
    names = ",".join(row["metric"] for row in gate.judged)
    options = {
        "fail_on": f"--fail-on {gate.fail_on}",
        "metrics": f"--metric {names}",
        "min_effect": f"--min-effect {units.decimals(first['min_effect_pct'])}%",
        "confidence": f"--confidence {first['confidence']:g}",
    }
    sources = {name: f" ({settings.source(name)})" if settings.fail_on else "" for name in options}
    return (
        "Rule of the gate: "
        f"{', '.join(option + sources[name] for name, option in options.items())}."
    )


def cause_text(cause: Cause) -> str:
    """Return which part of the step time changed, and what changed in structure that such a part depends on."""
    told = []
    for (
        what,
        unit,
        *both,
    ) in cause.facts:  # of words that are too long for a sentence only that they differ
        texts = [_side_text(unit, value) for value in both]
        arguments = (
            [changed_argument.name or "others" for changed_argument in changed_arguments(*texts)]
            if what in COMMANDS
            else []
        )
        if arguments:
            told.append(f"arguments of the command ({listed(arguments, _MOST_FACTS)})")
            continue
        is_long = max(map(len, texts)) > _LONGEST_FACT
        told.append(
            f"another {shown_name(what)}" if is_long else f"{shown_name(what)} {' -> '.join(texts)}"
        )
    sentences = [
        f"Most of the change is {metric_label(cause.part)}: {_short_delta(cause.delta_ns)}."
    ]
    if told:
        facts = listed(told, _MOST_FACTS)
        likely = f"Likely cause: {facts}."
        several = f"Possible causes: {facts}. The data do not show which of them it is."
        sentences.append(likely if cause.n_matters <= 1 else several)
    if cause.bandwidth is not None:
        what, unit, *both = cause.bandwidth
        sentences.append(
            f"Also changed: {what} {' -> '.join(_side_text(unit, value) for value in both)}."
        )
        if not cause.is_link_compared:
            sentences.append(
                "The interconnect may be the cause, but was not recorded for both sides."
            )
    for (what, unit, *both), ns in cause.beside:
        copies = " -> ".join(_side_text(unit, value) for value in both)
        exposed = f"exposed copies {_short_delta(ns)}"
        sentences.append(
            f"Also changed: {what} {copies}, as with gradient_as_bucket_view=True ({exposed})."
        )
    return " ".join(sentences)


def _short_delta(ns: float) -> str:
    """Return a difference of times with its sign and three significant digits."""
    return f"{'+' if ns > 0 else '-' if ns < 0 else ''}{ms_text(abs(ns), 3)}"


def difference_document(difference: RunDifference) -> dict[str, Any]:
    """Return the document as plain Python values, in a fixed order.

    ``baseline`` and ``candidate`` are the run object of the side's first capture, with the side's
    label and the run ids of all captures. ``step_time_parts`` sum to ``mean_step_time`` and
    ``idle_causes`` to the part idle, exactly.
    """
    changes = difference.changes.to_pylist()
    for row in changes:  # numbers in the place of the words, which numbers do not have
        values = {side: row.pop(f"{side}_value") for side in SIDES}
        row.update({} if values["baseline"] is None else values)
    evenness = zip(SIDES, difference.evenness, strict=True)
    judged_by = (
        None
        if (gate := difference.gate) is None
        else {
            **{name: getattr(gate, name) for name in ("fail_on", "outcome", "exit_code")},
            **{
                name: [row["metric"] for row in getattr(gate, name)]
                for name in ("failed", "undecided")
            },
        }
    )
    return {
        "schema_version": SCHEMA_VERSION,
        "tool_version": __version__,
        "verdict": difference.verdict,
        "judged": list(difference.judged),
        "min_effect_pct": round(100 * difference.rules.min_effect, 12),
        "statistic": difference.statistic,
        "evenness": {
            name: [asdict(capture) for capture in captures] for name, captures in evenness
        },
        "confidence": difference.rules.confidence,
        "settings_file": difference.settings.file,
        "has_spread_between_captures": difference.has_spread_between_captures,
        "comparable": difference.is_comparable,
        "comparability": difference.comparability.to_pylist(),
        "gate": judged_by,
        "baseline": _side(difference.baseline),
        "candidate": _side(difference.candidate),
        "metrics": difference.metrics.to_pylist(),
        "mean_step_time": _mean_step_time(difference),
        "cause": difference.cause and difference.cause._asdict(),
        "step_time_parts": difference.step_time_parts.to_pylist(),
        "idle_causes": difference.idle_causes.to_pylist(),
        "kernels": difference.top_kernels.to_pylist(),
        "changes": changes,
        "facts": difference.facts.to_pylist(),
        "problems": difference.problem_rows,
    }


def _side(side: Side) -> dict[str, Any]:
    return {
        **asdict(side.runs[0].header),
        "label": side.label,
        "captures": [run.header.run_id for run in side.runs],
    }


def identity_of(difference: RunDifference) -> str:
    """Return what tells differences apart: the run ids of both sides, as JSON."""
    return json.dumps(
        [_side(side)["captures"] for side in (difference.baseline, difference.candidate)]
    )


def difference_formats(difference: RunDifference) -> dict[str, Format]:
    """Return how a difference is written in each format, and how a file of it says which runs it is of."""
    return formats_of(
        "diff",
        identity_of(difference),
        document=partial(difference_document, difference),
        identity_in=lambda document: json.dumps(
            [list(map(str, document[side]["captures"])) for side in SIDES]
        ),
        blocks=partial(difference_blocks, difference),
        usage="nsyspipe diff BASELINE CANDIDATE",
        meta=DIFF_RUNS,
        page=partial(lazily("html.difference_page", "difference_page"), difference),
    )
