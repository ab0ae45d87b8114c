"""A difference in words and as blocks: the verdict, then where it comes from; and its documents."""

import json
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, NamedTuple, cast

from msgspec import Struct

from nsyspipe.analysis.summary import host_figures
from nsyspipe.comparison.arguments import ChangedArgument, changed_arguments, hidden_arguments
from nsyspipe.comparison.causes import Cause, Change
from nsyspipe.comparison.changes import SIDES
from nsyspipe.comparison.comparability import DEFINITIONS, OTHER_WORK
from nsyspipe.comparison.difference import Gate, RunDifference
from nsyspipe.comparison.facts import (
    BANDWIDTH,
    COMMANDS,
    DELAYS,
    EXPORTER,
    LINK,
    MEASURED,
    NCCL_SETTINGS,
    NCCL_VERSION,
    NEITHER as NEITHER_SIDE,
    NONE,
    STRAGGLER,
)
from nsyspipe.comparison.gate import ANY_CHANGE, REGRESSION, GateSettings
from nsyspipe.comparison.metrics import DEFAULT_METRIC, INCONCLUSIVE, LEFT_OUT, NO_CHANGE
from nsyspipe.comparison.side import Side, run_ids_of
from nsyspipe.comparison.statistics import MEAN, MEDIAN
from nsyspipe.comparison.surroundings import HIDDEN, MAY_HAVE, MESSAGE_BYTES
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
from nsyspipe.report.formats import Format, formats_of, lazily
from nsyspipe.report.subject import subject_facts
from nsyspipe.report.units import (
    absent,
    delta_text,
    in_unit_of_row,
    metric_label,
    ms_text,
    percent_text,
    sure_text,
    upper_first,
    value_text,
)
from nsyspipe.report.words import (
    IDLE_PHRASES,
    Trouble,
    backward_source,
    opposed_text,
    same_problems,
    settling_text,
    uneven_notes,
)
from nsyspipe.version import __version__

# Terminal widths from which on columns are shown; the columns of both sides go last.
_MIN_WIDTH_FOR_SIDES = 40
_MIN_WIDTH_FOR_VERDICT = 50
_MIN_WIDTH_FOR_CHANGE = 62
_MIN_WIDTH_FOR_PERCENT = 70
_MIN_WIDTH_FOR_WORDS = 79
_MIN_WIDTH_FOR_INTERVAL = 95
# What `why` of a metric says if its mean and its median changed in opposite directions.
_OPPOSED = "differ in sign"
# What `why` of a metric says if the runs do not do the same work.
_NOT_COMPARABLE = "not comparable"
# A change by so many percent only says that the baseline is next to nothing: the unit says more.
_MAX_SHOWN_PERCENT = 10_000
# Of the step time: where a smaller change comes from matters to nobody.
_MIN_EXPLAINED_SHARE = 0.001
# Of the step time: a figure that changed by this much is shown, whatever it is.
_MIN_SHARE_SHOWN_ALWAYS = 0.05
# The finding that has the slowdown of compute by communication.
_SLOWED_COMPUTE = "comm-slows-compute"
# The parts of communication time, which are known only if all ranks are.
_PARTS_OF_COMM = {"wait": "waiting", "transfer": "transfer"}
# Problems about files: those that are not used, and those that are used without being named.
_FILE_PROBLEMS = {"log-of-another-run", "topology-of-another-machine", *OF_FILES_BESIDE}
_MAX_SHOWN_CHANGES = 20
_MAX_FACTS_IN_SENTENCE = 4
_MAX_FACT_CHARS = 40
_MAX_VALUE_CHARS = 20
_MAX_ONE_SIDED_FACT_CHARS = 60
DIFF_RUNS = "nsyspipe-diff-runs"  # the meta element of a page that says which runs it compares
OF_RANKS = (
    "Each row uses, in every step, the rank with the largest value. Other outputs differ: the "
    "first lines of analyze use the slowest rank, and analyze -v also shows means over ranks."
)
# Facts that runs of one rank cannot have.
_BETWEEN_RANKS = {
    "parallelism",
    BANDWIDTH,
    DELAYS,
    LINK,
    NCCL_SETTINGS,
    NCCL_VERSION,
    STRAGGLER,
    MESSAGE_BYTES,
}
# Names on the screen of facts that have other names in tables and documents.
_SHOWN_AS = {
    LINK: "interconnect",
    "DtoD copies per step": "D2D copies per step",
    "DtoD bytes per step": "D2D bytes per step",
    "message bytes per step": "message sizes per step",
    "mean message of a collective": "mean message size",
    DELAYS: "straggler delay",
    EXPORTER: "nsys version of the export",
    "longest delay of a step by a rank": "straggler delay",
    "steps in the figures": "steps used",
    "trace options": "kinds of traced events",
    "copies on the device": "D2D copies",
    "number and bytes of copies on the device": "number and size of D2D copies",
}
# Captions of the tables, by which the page finds them.
PARTS = "Where the change of the mean step time comes from"
METRICS = "Metrics of both sides"
# Stands below a verdict on one capture per side.
SCOPE = "This holds for these two captures. Other captures of the programs can differ."
KERNELS = "Kernels that changed most"
CHANGES = "What else changed"
_WITHOUT_STEPS = (
    "A side is a capture without steps. Only its shares and bandwidths are compared, without "
    "confidence intervals. "
    "For a verdict name the steps with --step REGEX, or mark them with NVTX ranges."
)


def difference_blocks(difference: RunDifference, *, has_gate: bool = True) -> Iterator[Block]:
    """Yield everything: the verdict, both sides, doubts, and all tables with notes."""
    yield from answer_blocks(difference)
    if has_gate:
        yield from gate_blocks(difference)
    yield from side_blocks(difference)
    file_problems = [row for row in difference.problem_rows if row["code"] in _FILE_PROBLEMS]
    if file_problems:
        yield Troubles(side_problems(file_problems), is_close=True)
    yield parts_table(difference)
    yield metrics_table(difference)
    yield kernels_table(difference, difference.top_kernels.to_pylist())
    yield changes_table(difference)
    texts = notes(difference)
    if texts:
        yield Notes(texts)


def side_problems(rows: Sequence[Mapping[str, Any]]) -> list[Trouble]:
    """Return problems of the sides, each once, with the sides that have it."""
    return same_problems(rows, _sides_of)


def _sides_of(rows: Sequence[Mapping[str, Any]]) -> str:
    sides = dict.fromkeys(row["side"] for row in rows)
    return listed(sides)


def answer_blocks(difference: RunDifference) -> Iterator[Block]:
    """Yield the verdict, what the change comes from, and what speaks against the verdict."""
    verdict = difference.verdict
    yield Sentence(verdict_text(difference), "bold", verdict=verdict)
    if verdict != INCONCLUSIVE and is_of_one_capture_each(difference):
        yield Sentence(SCOPE)
    if difference.cause is not None:
        yield Sentence(cause_text(difference.cause))
    if difference.opposed_parts:
        yield Sentence(opposed_text(difference.opposed_parts))
    outlier = difference.outlier
    if outlier is not None:
        time = ms_text(outlier.ns)
        median = ms_text(outlier.median_ns)
        step = (
            f"Step {outlier.step} of the {outlier.side} takes {time}, but the median is {median}."
        )
        yield Sentence(f"{step} Without this step the verdict would be {outlier.verdict}.")


def side_blocks(difference: RunDifference) -> Iterator[Block]:
    """Yield what both sides are, and what makes the comparison doubtful or impossible."""
    sides = (difference.baseline, difference.candidate)
    for name, side in zip(SIDES, sides, strict=True):
        n_captures = len(side.runs)
        run = side.runs[0]
        facts = [side.name, *subject_facts(run)]
        facts += backward_source(run)
        if n_captures > 1:
            facts.append(f"the first of {n_captures} captures")
        yield Facts(facts, name, is_of_several=True)
    yield from doubt_blocks(difference)


def doubt_blocks(difference: RunDifference) -> Iterator[Block]:
    """Yield what makes the comparison doubtful or impossible."""
    checks = difference.comparability.to_pylist()
    is_forced = difference.rules.is_forced
    if checks:
        warnings = [_doubt(row, is_forced=is_forced) for row in checks]
        yield Troubles(warnings, is_close=True)


def _doubt(row: Mapping[str, Any], *, is_forced: bool) -> Trouble:
    """Return a check of the comparison as a problem, which has no place and no fix.

    If the runs do other work, the message names the option that compares them anyway.
    """
    severity = _NOT_COMPARABLE if row["blocks"] else "warning"
    message = row["message"]
    can_be_forced = row["check"] == OTHER_WORK and not is_forced
    if can_be_forced:
        message += (
            ". Use --force if you know that the runs are comparable, for example eager and "
            "torch.compile."
        )
    return Trouble(severity=severity, message=message, place="", fix=None)


def gate_blocks(difference: RunDifference) -> Iterator[Sentence]:
    """Yield what the gate decided, if there is one, and which rule it has."""
    gate = difference.gate
    if gate is not None:
        yield Sentence(gate_line(gate), verdict=gate.outcome)
        yield Sentence(rule_text(gate, difference.settings))


def gate_line(gate: Gate) -> str:
    """Return the decision of a gate in one line: ``GATE UNDECIDED (exit 4): ...``."""
    outcome = gate.outcome.upper()
    return f"GATE {outcome} (exit {gate.exit_code}): {gate_text(gate)}"


def part_rows(difference: RunDifference) -> list[dict[str, Any]]:
    """Return the rows of the table of parts: each part, the causes of idle time, and the sum.

    A cause that takes no time on both sides is left out.
    """
    rows = []
    for part in difference.step_time_parts.to_pylist():
        label = metric_label(part["part"])
        rows.append({"name": label, **part})
    # Idle is the last part, so its causes follow it.
    for cause in difference.idle_causes.to_pylist():
        if cause["baseline_ns"] or cause["candidate_ns"]:
            label = _cause_label(cause["cause"])
            rows.append({"name": f"  {label}", **cause})
    sum_of_parts = {"name": "mean step time", **_mean_step_time(difference)}
    return [*rows, sum_of_parts]


def _cause_label(cause: str) -> str:
    """Return what a cause of idle time is called, without the word idle."""
    figure = METRIC_FIGURES[f"idle_{cause}"]
    return figure.short.removeprefix("idle: ")


def _mean_step_time(difference: RunDifference) -> dict[str, float | None]:
    before_ns, after_ns, delta_ns = difference.mean_step_time
    return {"baseline_ns": before_ns, "candidate_ns": after_ns, "delta_ns": delta_ns}


def parts_table(difference: RunDifference) -> Table:
    """Return the parts of the mean step time on both sides."""
    whose = "part" if has_one_rank(difference) else "slowest rank\nof each step"
    name_field = Field(whose, of("name"), "word")
    fields = [name_field, *_times("_ns")]
    _before_ns, _after_ns, delta_ns = difference.mean_step_time
    if delta_ns is None:
        note = "not available, because a side has no step that was recorded on every rank"
        return table_of(PARTS, [], fields, note)
    return table_of(PARTS, part_rows(difference), fields)


def _times(suffix: str) -> list[Field]:
    """Return columns of the mean times of both sides and their change, with equal decimals.

    The columns of the rows are ``baseline``, ``candidate`` and ``delta``, each with this suffix.
    """
    fields = []
    write_ns = partial(value_text, "ns")
    for side in SIDES:
        cell = of(f"{side}{suffix}", write_ns)
        heading = f"{side}\nmean"
        field = Field(heading, cell, from_width=_MIN_WIDTH_FOR_SIDES, decimals_of="mean")
        fields.append(field)
    change = of(f"delta{suffix}", partial(delta_text, "ns"))
    fields.append(Field("change\nof mean", change, decimals_of="mean"))
    return fields


# Groups of metrics, in the order of their table.
_JUDGED = 0
_SHOWN = 1
_HIDDEN = 2


def metric_rows(difference: RunDifference) -> tuple[list[dict[str, Any]], int]:
    """Return all metrics in the order of the table, and how many of them the terminal shows.

    Judged metrics come first. Main metrics that the baseline has come next, together with times
    that certainly changed much. The terminal shows these. All other metrics come last.
    """
    rows = difference.metrics.to_pylist()
    row_of_metric = {row["metric"]: row for row in rows}
    step_time_before_ns = row_of_metric[DEFAULT_METRIC]["baseline"] or 0
    large_change_ns = _MIN_SHARE_SHOWN_ALWAYS * step_time_before_ns
    is_capture = difference.has_capture_without_steps

    def group_number(row: Mapping[str, Any]) -> int:
        if row["metric"] in difference.judged:
            return _JUDGED
        if _is_main(row, is_capture=is_capture) or _is_large_change(row, large_change_ns):
            return _SHOWN
        return _HIDDEN

    # The sort is stable, so metrics of one group keep their order.
    rows.sort(key=group_number)
    n_shown = sum(group_number(row) != _HIDDEN for row in rows)
    return rows, n_shown


def _is_main(row: Mapping[str, Any], *, is_capture: bool) -> bool:
    """Tell whether a metric is among the main ones, and the baseline has it.

    All metrics of a capture without steps are main ones: shares and bandwidths.
    """
    figure = units.metric_figure(row["metric"])
    is_main = is_capture or figure is not None
    return is_main and row["baseline"] is not None


def _is_large_change(row: Mapping[str, Any], large_change_ns: float) -> bool:
    """Tell whether a time certainly changed by at least this much."""
    is_time = row["unit"] == "ns"
    is_sure = row["verdict"] not in (INCONCLUSIVE, NO_CHANGE)
    return is_time and is_sure and abs(row["delta"]) >= large_change_ns


def metrics_table(difference: RunDifference) -> Table:
    """Return the metrics of both sides with verdicts."""
    rows, n_shown = metric_rows(difference)
    shown = rows[:n_shown]
    statistics = {row["statistic"] for row in shown}
    fields = [_metric_name_field(difference, statistics)]
    fields += _metric_side_fields(statistics)
    change_cell = partial(_metric, name="delta", write=delta_text)
    fields.append(Field("change", change_cell, from_width=_MIN_WIDTH_FOR_CHANGE))
    has_interval = any(row["ci_low"] is not None for row in shown)
    if has_interval:
        fields.append(_interval_field(difference.rules.confidence))
    hint = "percent of the baseline (ratios have percentage points)"
    percent = Field("%", _percent_cell, hint=hint, from_width=_MIN_WIDTH_FOR_PERCENT)
    verdict_cell = partial(_verdict_cell, difference)
    verdict = Field("verdict", verdict_cell, "word", from_width=_MIN_WIDTH_FOR_VERDICT)
    fields += [percent, verdict]
    note = _note_about_ranks(difference)
    # Judged metrics are the first rows.
    n_judged = len(difference.judged)
    judged_rows = frozenset(range(n_judged))
    return table_of(METRICS, rows, fields, note, n_shown=n_shown, strong=judged_rows)


def _note_about_ranks(difference: RunDifference) -> str | None:
    """Return which rank a metric is of. None for runs of one rank, and for captures as a whole."""
    if has_one_rank(difference) or difference.has_capture_without_steps:
        return None
    return OF_RANKS


def _verdict_cell(difference: RunDifference, row: Mapping[str, Any]) -> Word:
    word = verdict_word(row["verdict"])
    return Word(word, is_plain=is_outweighed(difference, row))


def _metric_name_field(difference: RunDifference, statistics: set[str | None]) -> Field:
    """Return the column of names.

    `statistics` are the statistics of the metrics in the table. If one of them is the mean, each
    name says which statistic the metric is. A metric without values has None for a statistic. If a
    side is a capture without steps, all metrics have None.
    """
    suffix_of_statistic = {}
    if MEAN in statistics:
        suffix_of_statistic = {MEAN: ", mean", MEDIAN: ", median"}
    contradiction_of_metric = _contradictions(difference)

    def cell(row: Mapping[str, Any]) -> str:
        metric = row["metric"]
        suffix = suffix_of_statistic.get(row["statistic"], "")
        contradiction = contradiction_of_metric.get(metric, "")
        return f"{metric_label(metric)}{suffix}{contradiction}"

    has_no_steps = statistics == {None}
    heading = "of the capture" if has_no_steps else "rank with the\nlargest value"
    return Field(heading, cell, "word")


def _metric_side_fields(statistics: set[str | None]) -> list[Field]:
    """Return the columns of both sides, with the statistic in their headings.

    `statistics` are the statistics of the metrics in the table. A metric without values has None,
    and all metrics of a capture without steps have None.
    """
    statistics_of_values = statistics - {None}
    if not statistics_of_values:
        second_line = ""
    elif statistics_of_values == {MEAN}:
        second_line = "\nmean"
    elif MEAN in statistics_of_values:
        second_line = "\nmean or median"
    else:
        second_line = "\nmedian"
    fields = []
    for side in SIDES:
        heading = f"{side}{second_line}"
        cell = partial(_metric, name=side, write=value_text)
        fields.append(Field(heading, cell, from_width=_MIN_WIDTH_FOR_SIDES))
    return fields


def _interval_field(confidence: float) -> Field:
    heading = f"{sure_text(confidence)} CI\nof the change"
    hint = "confidence interval of the change"
    return Field(heading, interval_cell, hint=hint, from_width=_MIN_WIDTH_FOR_INTERVAL)


def _percent_cell(row: Mapping[str, Any]) -> str:
    change_pct = row["delta_pct"] or 0
    if row["unit"] != "ratio" and change_pct >= _MAX_SHOWN_PERCENT:
        return f">{_MAX_SHOWN_PERCENT}"
    return percent_change(row).removesuffix("%")


def verdict_word(verdict: str) -> str:
    """Return what a verdict is called on the screen."""
    return "unchanged" if verdict == NO_CHANGE else verdict


def is_outweighed(difference: RunDifference, row: Mapping[str, Any]) -> bool:
    """Tell whether the regression of a metric is no reason for an alarm.

    That is so if the metric is not judged, and the verdict of the difference is not a regression.
    """
    is_judged = row["metric"] in difference.judged
    is_metric_regression = bool(row["verdict"] == REGRESSION)
    return is_metric_regression and not is_judged and difference.verdict != REGRESSION


def _metric(row: Mapping[str, Any], name: str, write: Callable[[str, float | None], str]) -> str:
    """Return a value of a metric, such as ``delta``, in words. A time has the unit of both sides.

    `write` returns the value of a unit in words.
    """
    values = [row.get(side) for side in SIDES]
    text = in_unit_of_row(write(row["unit"], row[name]), values)
    return text.replace(" steps/s", " /s")


def kernels_table(difference: RunDifference, rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return the kernels that changed most."""
    name = Field("kernels, per\nrank and step", of("name"), "name")
    phase = Field("phase", of("phase"), "word", from_width=_MIN_WIDTH_FOR_WORDS)
    status = Field("status", of("status"), "word", from_width=_MIN_WIDTH_FOR_WORDS)
    fields = [name, *_times("_ns_per_step"), phase, status]
    n_kernels = difference.kernels.num_rows
    note = _kernels_note(n_kernels, len(rows))
    return table_of(KERNELS, rows, fields, note)


def _kernels_note(n_kernels: int, n_shown: int) -> str:
    """Return how to read the table of kernels, or why it is empty."""
    if not n_kernels:
        return "not available, because a side has no steps or its kernels were not counted by step"
    if not n_shown:
        return "no kernel changed by more than 0.1% of the step"
    note = (
        "These are means over all ranks. The parts of the step above are those of the slowest "
        "rank. Kernels have no confidence interval, so a small change may be noise."
    )
    n_left_out = n_kernels - n_shown
    if not n_left_out:
        return note
    return f"{note} The {n_left_out} other kernels changed less."


def _side_text(unit: str | None, value: float | str | None) -> str:
    if isinstance(value, float):
        return value_text(unit, value)
    if not value:
        return "not set"
    return value.replace(HIDDEN, _HIDDEN_WORD)


def _fact_text(row: Mapping[str, Any], side: str) -> str:
    """Return the value of a fact on one side in words."""
    # Only numbers have a difference. Their values are in a column of their own.
    is_number = row["delta"] is not None
    column = f"{side}_value" if is_number else side
    return _side_text(row["unit"], row[column])


def change_text_of_fact(row: Mapping[str, Any]) -> str:
    """Return a fact that changed in a line: ``collectives per step: 1 -> 37``."""
    texts = [_fact_text(row, side) for side in SIDES]
    before, after = (shortened(text, _MAX_FACT_CHARS) for text in texts)
    name = shown_name(row["what"])
    return f"{name}: {before} -> {after}"


def changes_table(difference: RunDifference) -> Table:
    """Return the facts that changed."""
    rows = shown_changes(difference)
    fields = [Field("what else changed", _fact_name_cell, "name", most=_MAX_FACT_CHARS)]
    for side in SIDES:
        cell = partial(_fact_text, side=side)
        fields.append(Field(side, cell, "name", most=_MAX_VALUE_CHARS))
    fields.append(Field("change", _fact_delta_cell, from_width=_MIN_WIDTH_FOR_WORDS))
    note = facts_text(difference)
    return table_of(CHANGES, rows, fields, note, n_shown=_MAX_SHOWN_CHANGES)


def _fact_name_cell(row: Mapping[str, Any]) -> str:
    return shown_name(row["what"])


def _fact_delta_cell(row: Mapping[str, Any]) -> str:
    if row["delta"] is None:
        return ""
    return _metric(row, "delta", delta_text)


def shown_changes(difference: RunDifference) -> list[dict[str, Any]]:
    """Return the rows of the table of what else changed, one for each argument of a command.

    A fact that both sides hide has no row, because nobody can tell whether it changed.
    """
    rows = []
    for change in difference.changes.to_pylist():
        if not _is_hidden(change):
            rows += _rows_of_change(change)
    return rows


def _is_hidden(row: Mapping[str, Any]) -> bool:
    """Tell whether both sides hide the value of a fact. Its name then says that it may differ."""
    name = str(row["what"])
    return name.endswith(MAY_HAVE)


def _rows_of_change(row: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows that show a change: for a command, a row for each argument that differs."""
    baseline = row["baseline"]
    candidate = row["candidate"]
    if row["what"] not in COMMANDS or baseline is None or candidate is None:
        return [row]
    arguments = changed_arguments(baseline, candidate)
    if not arguments:
        # Only the order of the arguments differs.
        return [row]
    return [_argument_row(row, argument) for argument in arguments]


def _argument_row(row: dict[str, Any], argument: ChangedArgument) -> dict[str, Any]:
    sides = {
        "baseline": _argument_value(argument.before),
        "candidate": _argument_value(argument.after),
    }
    return row | sides | {"what": _argument_text(argument.name)}


def _argument_value(value: str | None) -> str:
    """Return the value of an argument; an option without a value is only given or not."""
    if value is None:
        return "not given"
    return value or "given"


def _argument_text(name: str) -> str:
    """Return what an argument is called; words that belong to no option have an empty name."""
    return f"argument {name}" if name else "other arguments"


def hidden_facts(difference: RunDifference) -> list[str]:
    """Return what both sides hide, so that nobody can tell whether it changed.

    Of commands, these are arguments.
    """
    rows = difference.changes.to_pylist()
    return [_hidden_fact(row) for row in rows if _is_hidden(row)]


def _hidden_fact(row: Mapping[str, Any]) -> str:
    """Return the name of a hidden fact. For a command, name the arguments that are hidden."""
    name = cast("str", row["what"].removesuffix(MAY_HAVE))
    if name not in COMMANDS:
        return name
    # Both sides have the same text, with HIDDEN in place of each hidden value.
    command = row["baseline"]
    arguments = hidden_arguments(command, HIDDEN)
    names = [*map(_argument_text, arguments)]
    return f"{listed(names)} of the {name}"


def facts_text(difference: RunDifference) -> str:
    """Return which facts are the same on both sides, and which are not compared and why."""
    sentences = []
    if not shown_changes(difference):
        # A sidecar may hold only the hash of an argument, to protect secrets.
        has_hashes = bool(hidden_facts(difference))
        verbs = "recorded and do not mask" if has_hashes else "recorded"
        sentences.append(f"No difference was found in the facts that both sides {verbs}.")
    sentences += masked_notes(difference)
    same = same_facts(difference)
    if same:
        sentences.append(f"Same on both sides: {listed(same)}.")
    sentences += not_compared_texts(difference)
    return " ".join(sentences)


def masked_notes(difference: RunDifference) -> list[str]:
    """Return why a value of a shown change is masked; nothing if none is."""
    for row in shown_changes(difference):
        if any(_is_masked(row[side]) for side in SIDES):
            return [_WHY_MASKED]
    return []


def _is_masked(value: float | str | None) -> bool:
    return isinstance(value, str) and HIDDEN in value


def has_one_rank(difference: RunDifference) -> bool:
    """Tell whether every run of both sides is of a job with one rank."""
    runs = (*difference.baseline.runs, *difference.candidate.runs)
    return all(run.header.n_job_ranks == 1 for run in runs)


def same_facts(difference: RunDifference) -> list[str]:
    """Return the names of the facts that both sides recorded and that are the same."""
    rows = [row for row in difference.facts.to_pylist() if row["is_same"]]
    return [_same_fact(row) for row in rows if row["what"] not in MEASURED]


class NotCompared(Struct, frozen=True):
    """Facts that are not compared for one reason."""

    facts: tuple[str, ...]
    reason: str


_OTHER_DEFINITIONS = NotCompared(
    ("collectives", "copies", "delays"),
    f"the sides were analyzed with different definitions, {ANALYZE_AGAIN}",
)


def not_compared_texts(difference: RunDifference) -> list[str]:
    """Return a sentence for each reason why facts are not compared, with what records them."""
    missing = not_compared(difference)
    return [f"Not compared: {listed(row.facts)} ({row.reason})." for row in missing]


def not_compared_block(difference: RunDifference) -> Iterator[Lines]:
    """Yield a line for each fact that is not compared, with the reason; nothing if all are."""
    lines = []
    for row in not_compared(difference):
        lines += [Line(f"{fact}: {row.reason}") for fact in row.facts]
    if lines:
        yield Lines("Not compared", lines)


def not_compared(difference: RunDifference) -> list[NotCompared]:
    """Return which facts are not compared, and why.

    The order is: facts that a side did not record, facts that both sides hide, facts that a side
    lacks for another known reason, and times of communication that only one side has. If both
    sides have one rank, facts that one rank cannot have are left out.
    """
    rows = difference.facts.to_pylist()
    if has_one_rank(difference):
        rows = [row for row in rows if row["what"] not in _BETWEEN_RANKS]
    facts_with_known_reason = [_fact_with_reasons(row) for row in rows if _has_reason(row)]
    rows_without_known_reason = [row for row in rows if not _has_reason(row)]
    return [
        *_not_recorded(rows_without_known_reason),
        *_hidden(difference),
        *facts_with_known_reason,
        *_one_sided_figures(difference),
    ]


def _not_recorded(rows: Sequence[Mapping[str, Any]]) -> Iterator[NotCompared]:
    """Yield facts that one side or both did not record, those with the same fix together.

    The fix is what would record them. Facts that neither side recorded come first.
    """
    for recorded_on in (NEITHER_SIDE, *SIDES):
        is_on_neither = recorded_on == NEITHER_SIDE
        reason = "not recorded" if is_on_neither else f"only recorded for the {recorded_on}"
        rows_of_reason = [row for row in rows if row["recorded_on"] == recorded_on]
        rows_by_fix = grouped((row["recorded_by"], row) for row in rows_of_reason)
        for fix, rows_of_fix in rows_by_fix.items():
            facts = tuple(map(_fact_without_value, rows_of_fix))
            yield NotCompared(facts, f"{reason}, needs {fix}")


def _hidden(difference: RunDifference) -> Iterator[NotCompared]:
    """Yield the facts that both sides hide, if there are any."""
    facts = hidden_facts(difference)
    if facts:
        yield NotCompared(tuple(facts), "masked on both sides, so they may have changed")


def _one_sided_figures(difference: RunDifference) -> Iterator[NotCompared]:
    """Yield times of communication that one side lacks, or that the sides define differently."""
    if DEFINITIONS in difference.comparability["check"].to_pylist():
        yield _OTHER_DEFINITIONS
        return
    for figures in figures_of_one_side(difference):
        names = tuple(_PARTS_OF_COMM[metric] for metric in figures.metrics)
        reason = f"only the {figures.side} has data: {figures.why}"
        yield NotCompared(names, reason)


def shown_name(what: str) -> str:
    """Return what a fact is called on the screen.

    A cause of idle time (``idle, launch``) is called as in sentences.
    """
    part, _, idle_cause = what.partition(", ")
    if part == "idle" and idle_cause in IDLE_PHRASES:
        return IDLE_PHRASES[idle_cause]
    return _SHOWN_AS.get(what, what)


class FiguresOfOneSide(Struct, frozen=True):
    """Times of communication that only one side has, for one reason."""

    side: str
    why: str
    metrics: tuple[str, ...]


def figures_of_one_side(difference: RunDifference) -> list[FiguresOfOneSide]:
    """Return which of waiting and transfer only one side has, and why the other side lacks them.

    Metrics with the same side and reason are one entry.
    """
    metrics_by_side_and_why: dict[tuple[str, str], list[str]] = {}
    for row in difference.metrics.to_pylist():
        metric = row["metric"]
        side = _only_side_with_data(row)
        if metric in _PARTS_OF_COMM and side is not None:
            side_and_why = (side, row["why"])
            metrics = metrics_by_side_and_why.setdefault(side_and_why, [])
            metrics.append(metric)
    figures = []
    for (side, why), metrics in metrics_by_side_and_why.items():
        figures.append(FiguresOfOneSide(side, why, tuple(metrics)))
    return figures


def _only_side_with_data(row: Mapping[str, Any]) -> str | None:
    """Return the only side that has data of a metric.

    None if both sides have data or neither has, and if the metric has a value. A metric that only
    one side has data of has no value on either side.
    """
    if row["baseline"] is not None or row["candidate"] is not None:
        return None
    sides_with_data = [side for side in SIDES if row[f"n_{side}"]]
    return sides_with_data[0] if len(sides_with_data) == 1 else None


# Stands for a value that a sidecar or a redacted report hides.
_HIDDEN_WORD = "(masked)"
_WHY_MASKED = f"{_HIDDEN_WORD}: nsyspipe does not show this value, because it may be secret."
# What the straggler is called if it is not known, next to its delay.
_WHICH_STRAGGLER = "which rank is the straggler"
_INTERVALS = (
    "The confidence intervals of the difference take into account that a step may depend on the "
    "step before."
)
# The command that compares several captures of each side.
SEVERAL_CAPTURES = "nsyspipe diff old=OLD1 old=OLD2 new=NEW1 new=NEW2"
# What only the log of NCCL records. NCCL settings can be known from the environment too.
_OF_LOG = {
    LINK: "interconnect",
    NCCL_SETTINGS: "NCCL settings in the NCCL log",
    NCCL_VERSION: "NCCL version",
}


def _fact_without_value(row: Mapping[str, Any]) -> str:
    """Return a fact that a side did not record, with the value of the side that has it."""
    if row["recorded_on"] != NEITHER_SIDE:
        return _fact_of_one_side(row)
    name = _OF_LOG.get(row["what"]) or _fact_of_one_side(row)
    return name.removesuffix(" per step")


def _has_reason(row: Mapping[str, Any]) -> bool:
    """Tell whether it is known for a side why the side lacks a fact."""
    reasons = [row[f"{side}_why"] for side in SIDES]
    return any(reason is not None for reason in reasons)


def _fact_with_reasons(row: Mapping[str, Any]) -> NotCompared:
    """Return a fact with the reason of each side that lacks the fact.

    A side without a known reason gets a text that says what would record the fact.
    """
    recorded_on = row["recorded_on"]
    default_reason = f"not recorded, needs {row['recorded_by']}"
    sides_without_fact = [side for side in SIDES if side != recorded_on]
    reason_of_side = {side: row[f"{side}_why"] or default_reason for side in sides_without_fact}
    sides_and_reasons = ", ".join(f"{side}: {reason}" for side, reason in reason_of_side.items())
    distinct_reasons = set(reason_of_side.values())
    if recorded_on != NEITHER_SIDE:
        explanation = f"only known for the {recorded_on}. Not known for the {sides_and_reasons}"
    elif len(distinct_reasons) == 1:
        (common_reason,) = distinct_reasons
        explanation = f"{common_reason} (both sides)"
    else:
        explanation = sides_and_reasons
    return NotCompared((_fact_of_one_side(row),), explanation)


def _is_no_straggler(row: Mapping[str, Any]) -> bool:
    is_straggler = row["what"] == STRAGGLER
    return bool(is_straggler and row["words"] == NONE)


def _same_fact(row: Mapping[str, Any]) -> str:
    if _is_no_straggler(row):
        return f"no {STRAGGLER}"
    return shown_name(row["what"])


def _fact_of_one_side(row: Mapping[str, Any]) -> str:
    """Return a fact that is not compared, with its value on the side that has it.

    A number has words that say what it counts. A value in words has the name of the fact in front,
    and a fact without a value is its name.
    """
    if _is_no_straggler(row):
        return f"no {STRAGGLER}"
    if row["value"] is not None:
        value = value_text(row["unit"], row["value"])
        return f"{row['words']} {value}"
    name = shown_name(row["what"])
    if row["words"] is None:
        return _WHICH_STRAGGLER if row["what"] == STRAGGLER else name
    words = shortened(row["words"], _MAX_ONE_SIDED_FACT_CHARS)
    has_several_words = " " in words
    return f"{name} [{words}]" if has_several_words else f"{name} {words}"


def percent_change(row: Mapping[str, Any]) -> str:
    """Return the relative difference with its sign, ``+3.2%``.

    A ratio has a dash, because its differences are percentage points. So has a percentage from
    `_MAX_SHOWN_PERCENT` on, because its baseline is near zero. There are as many decimals as
    distinguish the percentage from the minimum effect.
    """
    percent = row["delta_pct"]
    is_ratio = row["unit"] == "ratio"
    if percent is None or is_ratio or abs(percent) >= _MAX_SHOWN_PERCENT:
        return absent
    signed_percent = units.signed(percent, distinct_from=row.get("min_effect_pct"))
    return f"{signed_percent}%"


def change_text(row: Mapping[str, Any]) -> str:
    """Return both values and the difference, in its unit and in percent if that is meaningful."""
    absolute_change = _metric(row, "delta", delta_text)
    relative_change = percent_change(row)
    if relative_change == absent:
        change = absolute_change
    elif row["delta"] == 0:
        # No change in percent is no change in any unit.
        change = relative_change
    else:
        change = f"{absolute_change}, {relative_change}"
    before, after = (_metric(row, side, value_text) for side in SIDES)
    before_text = _without_shared_unit(before, followed_by=after)
    return f"{before_text} -> {after} ({change})"


def _without_shared_unit(quantity: str, *, followed_by: str) -> str:
    """Return a quantity without its unit, if the quantity that follows has the same unit."""
    _, _, unit = followed_by.partition(" ")
    return quantity.removesuffix(f" {unit}") if unit else quantity


def interval_text(row: Mapping[str, Any]) -> str:
    """Return the interval of the difference of a metric, ``-74.15 to -71.61 ms``.

    If both ends have the same unit, it stands once.
    """
    if row["ci_low"] is None:
        return absent
    low = _metric(row, "ci_low", delta_text)
    high = _metric(row, "ci_high", delta_text)
    return f"{_without_shared_unit(low, followed_by=high)} to {high}"


def interval_cell(row: Mapping[str, Any]) -> str:
    """Return the interval for a cell next to the cell of the difference.

    The unit is left out if the difference and both ends of the interval have the same unit.
    """
    text = interval_text(row)
    distinct_units = set()
    for name in ("delta", "ci_low", "ci_high"):
        quantity = _metric(row, name, delta_text)
        _, _, unit = quantity.partition(" ")
        distinct_units.add(unit)
    if len(distinct_units) > 1:
        return text
    (common_unit,) = distinct_units
    return text.removesuffix(f" {common_unit}")


def verdict_text(difference: RunDifference) -> str:
    """Return the verdict: by how much the deciding metric changed, and how sure that is.

    The verdicts of the other judged metrics follow.
    """
    deciding = _deciding_row(difference)
    other_rows = [row for row in difference.judged_rows if row["metric"] != deciding["metric"]]
    other_verdicts = [
        f"{metric_label(row['metric'])}: {verdict_word(row['verdict'])}" for row in other_rows
    ]
    # Sentences about the CPU, with a space at their end, or nothing.
    cpu_times = _host_text(difference)
    verdict = verdict_word(difference.verdict).capitalize()
    decision = _decision_text(deciding, difference.fail_on)
    sentences = [f"{cpu_times}{verdict}: {decision}"]
    if other_verdicts:
        sentences.append(f"Other judged metrics: {', '.join(other_verdicts)}")
    if difference.rules.is_forced and not difference.is_comparable:
        sentences.append("The runs are not comparable, but you used --force")
    text = ". ".join(sentences)
    return f"{text}."


def _deciding_row(difference: RunDifference) -> Mapping[str, Any]:
    """Return the judged metric that the verdict of the difference is taken from.

    That is the first metric with this verdict. Metrics with a better direction are searched, or all
    judged metrics if none has one. If no metric is found, return the first judged metric that
    changed, or the first judged metric if none changed.
    """
    rows = difference.judged_rows
    with_better_direction = [row for row in rows if row["better"] != NEITHER]
    searched_rows = with_better_direction or rows
    for row in searched_rows:
        if row["verdict"] == difference.verdict:
            return row
    changed = [row for row in rows if row["verdict"] != NO_CHANGE]
    return changed[0] if changed else rows[0]


def _host_text(difference: RunDifference) -> str:
    """Return the CPU time per step of both sides, with a space at the end.

    Empty if a capture of a side has no steps on the CPU.
    """
    before_ns = _host_step_ns(difference.baseline)
    after_ns = _host_step_ns(difference.candidate)
    if before_ns is None or after_ns is None:
        return ""
    before = ms_text(before_ns)
    after = ms_text(after_ns)
    return (
        f"CPU time per step: {before} before, {after} after "
        "(from NVTX ranges, median of the slowest process). This change may be noise. "
    )


def _host_step_ns(side: Side) -> float | None:
    """Return the CPU time of a step of a side. None if a capture has no steps on the CPU.

    The time of a process is the median over its steps. The time of a capture is that of its slowest
    process, and the time of the side is the median over its captures.
    """
    times_of_captures_ns = []
    for run in side.runs:
        processes = host_figures(run.host_steps())
        times_of_processes_ns = [process.median_ns for process in processes if process.median_ns]
        if not times_of_processes_ns:
            return None
        times_of_captures_ns.append(max(times_of_processes_ns))
    return statistics.median(times_of_captures_ns)


def _decision_text(row: Mapping[str, Any], fail_on: str | None) -> str:
    """Return the change of the deciding metric, and how sure it is.

    `fail_on` is the verdict on which a gate fails, if there is a gate.
    """
    name = metric_label(row["metric"])
    if row["baseline"] is None or row["candidate"] is None:
        return f"{name} is not available. Reason: {_reason(row)}"
    statistic = row["statistic"]
    # A capture without steps has no statistic.
    full_name = f"{statistic} {name}" if statistic else name
    change = f"{full_name} {change_text(row)}"
    if row["ci_low"] is None:
        return f"{change}. Reason: {_reason(row)}"
    level = sure_text(row["confidence"])
    change_and_level = f"{change}, {level} CI"
    if row["verdict"] == INCONCLUSIVE:
        return f"{change_and_level} {_inconclusive_text(row, fail_on)}"
    change_and_interval = f"{change_and_level} {interval_text(row)}"
    has_change = row["verdict"] != NO_CHANGE
    if has_change and row["better"] == NEITHER:
        return f"{change_and_interval}. Neither direction of {name} is better"
    return change_and_interval


def _inconclusive_text(row: Mapping[str, Any], fail_on: str | None) -> str:
    """Return the interval of an inconclusive metric, why it decides nothing, and what would.

    `fail_on` is the verdict on which a gate fails, if there is a gate. A gate on regressions passes
    if the interval excludes a regression. The last sentence then says so.
    """
    relative = _relative_interval(row)
    if relative is None:
        reason = _reason(row)
        sentences = [interval_text(row), f"Reason: {reason}"]
    else:
        min_effect = relative.min_effect
        sentences = [f"{relative.interval} (minimum effect {min_effect})"]
    has_regression_gate = fail_on == REGRESSION
    is_regression_excluded = row["no_regression"]
    if has_regression_gate and is_regression_excluded:
        hint = "A regression above the minimum effect is excluded, so the gate passes"
    else:
        hint = settle_text(row, has_regression_gate=has_regression_gate)
    if hint:
        sentences.append(upper_first(hint))
    return ". ".join(sentences)


def _reason(row: Mapping[str, Any]) -> str:
    """Return why a metric is not decided, with the option that would decide it."""
    why: str = row["why"] or "not decided"
    if _NOT_COMPARABLE in why:
        reason = why.replace(_NOT_COMPARABLE, "the runs are not comparable")
        return f"{reason} (--force compares anyway)"
    fix = _interval_fix(row, why)
    if fix is not None:
        return f"{why} ({fix})"
    if row["ci_low"] is None:
        return why
    # Only metrics with steps have means besides their medians.
    has_means = row["baseline_mean"] is not None
    if has_means and _OPPOSED in why:
        return _opposed_reason(row)
    relative = _relative_interval(row)
    if relative is None:
        return why
    return f"the change may be {relative.interval} (minimum effect {relative.min_effect})"


def _interval_fix(row: Mapping[str, Any], why: str) -> str | None:
    """Return what the user can do to get the interval that a metric lacks. None if not known.

    `why` says what is missing, in the words of the comparison.
    """
    if "without steps" in why:
        return "name the steps with --step REGEX"
    if LEFT_OUT in why:
        return WHOLE_STEP
    is_known = row["baseline"] is not None and row["candidate"] is not None
    has_interval = row["ci_low"] is not None
    if is_known and not has_interval and "step" in why:
        return "capture more steps"
    return None


def _opposed_reason(row: Mapping[str, Any]) -> str:
    """Return by how much the mean and the median changed, in opposite directions."""
    texts = []
    for statistic in (MEAN, MEDIAN):
        delta = row[f"candidate_{statistic}"] - row[f"baseline_{statistic}"]
        texts.append(delta_text(row["unit"], delta))
    deltas = ", ".join(texts)
    return f"mean and median differ in sign ({deltas})"


class RelativeInterval(NamedTuple):
    """The interval of a change and the minimum effect, in the same unit."""

    interval: str
    min_effect: str


def _relative_interval(row: Mapping[str, Any]) -> RelativeInterval | None:
    """Return the interval and the minimum effect, if they explain why a metric is inconclusive.

    None if they do not. Both are in percent of the baseline, and for a ratio in percentage points.
    If the baseline is so small that percentages would be huge, both are in the unit of the metric.
    """
    if not _is_explained_by_interval(row):
        return None
    low = row["ci_low"]
    high = row["ci_high"]
    min_effect = row["min_effect"]
    is_ratio = row["unit"] == "ratio"
    whole = 1 if is_ratio else abs(row["baseline"])
    largest_change = max(abs(low), abs(high))
    is_percent_huge = 100 * largest_change >= _MAX_SHOWN_PERCENT * whole
    if is_percent_huge and not is_ratio:
        effect_text = value_text(row["unit"], min_effect)
        return RelativeInterval(interval_text(row), effect_text)
    unit = units.POINTS if is_ratio else "%"
    min_effect_pct = 100 * min_effect / whole
    # With as many decimals as distinguish the ends from the minimum effect.
    low_text = units.signed(100 * low / whole, distinct_from=min_effect_pct)
    high_text = units.signed(100 * high / whole, distinct_from=min_effect_pct)
    min_effect_text = units.decimals(min_effect_pct)
    return RelativeInterval(f"{low_text} to {high_text} {unit}", f"{min_effect_text} {unit}")


def _is_explained_by_interval(row: Mapping[str, Any]) -> bool:
    """Tell whether the interval and the minimum effect explain why a metric is inconclusive.

    They do not if the reason is another one, or if the metric has no baseline to take shares of. A
    ratio needs no baseline, because its changes are in percentage points.
    """
    why = row["why"] or ""
    has_other_reason = _OPPOSED in why or _NOT_COMPARABLE in why
    if has_other_reason or row["min_effect"] is None:
        return False
    has_baseline = bool(row["baseline"])
    is_ratio = row["unit"] == "ratio"
    return has_baseline or is_ratio


def settle_text(row: Mapping[str, Any], *, has_regression_gate: bool = False) -> str:
    """Return how many steps or captures would settle an inconclusive metric.

    With a gate on regressions, these are the numbers that would settle the gate. Without one, a
    change that no number of steps would settle has a text that says so. Empty if nothing is known.
    """
    n_steps_of_sides = [row[f"n_{side}"] or 0 for side in SIDES]
    if has_regression_gate:
        return settling_text(
            row["gate_steps"], row["gate_captures"], n_steps_of_sides, aim="settle the gate"
        )
    hint = settling_text(row["settle_steps"], row["settle_captures"], n_steps_of_sides)
    if hint:
        return hint
    why = row["why"] or ""
    # The interval includes the minimum effect, and no number of steps would change that.
    is_close_to_min_effect = row["ci_low"] is not None and "interval" in why
    if is_close_to_min_effect:
        return "the change is so close to the minimum effect that more steps would not settle it"
    return ""


def notes(difference: RunDifference) -> list[str]:
    """Return how to read the metrics: the method, what intervals leave out, and the thresholds."""
    texts = _notes_about_steps(difference)
    rows = difference.metrics.to_pylist()
    # All intervals have the same method, so the first one is enough.
    method = next((row["method"] for row in rows if row["ci_low"] is not None), None)
    if method:
        min_effect = percent_text(difference.rules.min_effect)
        texts.append(f"{_INTERVALS} Method: {method}.")
        texts.append(f"Unchanged means that the whole confidence interval is within ±{min_effect}.")
        texts += spread_text(difference, several=SEVERAL_CAPTURES)
    overlap = _overlap_note(difference)
    if overlap is not None:
        texts.append(overlap)
    file = difference.settings.file
    if file:
        texts.append(f"Thresholds from {file}.")
    return texts


def _notes_about_steps(difference: RunDifference) -> list[str]:
    """Return what missing or uneven steps change in the comparison."""
    if difference.has_capture_without_steps:
        return [_WITHOUT_STEPS]
    sides = map(str.capitalize, SIDES)
    uneven = uneven_notes(zip(sides, difference.evenness, strict=True))
    if not uneven:
        return []
    return [*uneven, "Steps are uneven, so nsyspipe judges means."]


def is_of_one_capture_each(difference: RunDifference) -> bool:
    """Tell whether the intervals leave out the variation between captures."""
    rows = difference.metrics.to_pylist()
    has_intervals = any(row["ci_low"] is not None for row in rows)
    return has_intervals and not difference.has_spread_between_captures


def spread_text(difference: RunDifference, *, several: str) -> list[str]:
    """Return how to include the variation between captures, if each side is one capture.

    `several` is how the reader names several captures.
    """
    if not is_of_one_capture_each(difference):
        return []
    return [
        f"To include the variation between captures, pass several captures of each side: {several}"
    ]


def _overlap_note(difference: RunDifference) -> str | None:
    """Return that compute got slower as more communication overlaps with it.

    None if compute did not get slower, or if overlapped communication grew by less than compute
    did. Then the overlap cannot explain the slowdown.
    """
    row_of_metric = {row["metric"]: row for row in difference.metrics.to_pylist()}
    compute = row_of_metric["compute"]
    is_slower = compute["verdict"] == REGRESSION
    if not is_slower or difference.hidden_comm_ns is None:
        return None
    # Hidden is another word for overlapped.
    before_ns, after_ns = difference.hidden_comm_ns
    increase_ns = after_ns - before_ns
    # As much as compute grew, and never less than the minimum effect.
    min_increase_ns = max(compute["min_effect"], compute["delta"])
    if increase_ns < min_increase_ns:
        return None
    change = delta_text("ns", compute["delta"])
    before = ms_text(before_ns)
    after = ms_text(after_ns)
    text = (
        f"Compute changed by {change} per step, and overlapped communication from {before} to "
        f"{after}. Both share the GPU, and the step time includes both."
    )
    if not _has_slowdown_finding(difference.candidate):
        return text
    return f"{text} nsyspipe analyze of the candidate shows the slowdown ({_SLOWED_COMPUTE})."


def _has_slowdown_finding(side: Side) -> bool:
    for run in side.runs:
        findings = run.judged_findings()["id"].to_pylist()
        if _SLOWED_COMPUTE in findings:
            return True
    return False


def _contradictions(difference: RunDifference) -> dict[str, str]:
    """Return a remark for each metric that changed in another direction than its part of the step.

    Each part of the step is also a metric of the same name. The metric uses the rank with the
    largest value, and the part uses the slowest rank. A change of up to 0.1 % of the step has no
    direction.
    """
    metrics = difference.metrics.to_pylist()
    delta_of_metric_ns = {row["metric"]: row["delta"] or 0 for row in metrics}
    step_before_ns = difference.mean_step_time.baseline_ns or 0
    min_delta_ns = _MIN_EXPLAINED_SHARE * step_before_ns
    remarks = {}
    for row in difference.step_time_parts.to_pylist():
        name = row["part"]
        part_delta_ns = row["delta_ns"] or 0
        metric_delta_ns = delta_of_metric_ns[name]
        have_directions = min(abs(part_delta_ns), abs(metric_delta_ns)) > min_delta_ns
        are_opposed = (part_delta_ns > 0) != (metric_delta_ns > 0)
        if have_directions and are_opposed:
            change = delta_text("ns", part_delta_ns)
            remarks[name] = f" (on the slowest rank {change})"
    return remarks


def gate_text(gate: Gate) -> str:
    """Return in one line what a gate found."""
    if gate.failed:
        return ", ".join(map(_failed_text, gate.failed))
    if gate.undecided:
        return _undecided_text(gate)
    names = listed(map(_judged, gate.judged))
    effect = units.decimals(gate.min_effect_pct)
    excluded = "change" if gate.fail_on == ANY_CHANGE else "regression"
    return f"no {excluded} of {names} by {effect}% or more"


def _failed_text(row: Mapping[str, Any]) -> str:
    change = change_text(row)
    return f"{row['verdict']} of {_judged(row)}, {change}"


def _undecided_text(gate: Gate) -> str:
    """Return why the gate cannot decide on some metrics, then what would decide them.

    A hint that several metrics have is there once.
    """
    has_regression_gate = gate.fail_on == REGRESSION
    reasons = []
    hints = []
    for row in gate.undecided:
        reason = _reason(row)
        reasons.append(f"{_judged(row)} is {row['verdict']}, because {reason}")
        hint = settle_text(row, has_regression_gate=has_regression_gate)
        if hint and hint not in hints:
            hints.append(hint)
    return ". ".join([", ".join(reasons), *map(upper_first, hints)])


def _judged(row: Mapping[str, Any]) -> str:
    """Return a judged metric, with the statistic that is compared."""
    metric = str(row["metric"])
    statistic = row["statistic"]
    return f"{statistic} {metric}" if statistic else metric


def rule_text(gate: Gate, settings: GateSettings) -> str:
    """Return the options of a gate: the verdict that fails, metrics, minimum effect, confidence.

    A gate of the command line also has who set each option. A gate of the Python API has no
    `settings.fail_on`, and nobody knows who set its options.
    """
    names = ",".join(gate.metrics)
    effect = units.decimals(gate.min_effect_pct)
    # All judged metrics have the same confidence.
    confidence = gate.judged[0]["confidence"]
    options = {
        "fail_on": f"--fail-on {gate.fail_on}",
        "metrics": f"--metric {names}",
        "min_effect": f"--min-effect {effect}%",
        "confidence": f"--confidence {confidence:g}",
    }
    is_of_command_line = bool(settings.fail_on)
    texts = []
    for name, option in options.items():
        source = f" ({settings.source(name)})" if is_of_command_line else ""
        texts.append(f"{option}{source}")
    rule = ", ".join(texts)
    return f"Rule of the gate: {rule}."


def cause_text(cause: Cause) -> str:
    """Return which part of the step time changed, and which changed facts may be the cause."""
    label = metric_label(cause.part)
    change = _short_delta(cause.delta_ns)
    sentences = [f"Most of the change is {label}: {change}."]
    if cause.facts:
        sentences.append(_possible_causes_text(cause))
    if cause.bandwidth is not None:
        bandwidth = _values_text(cause.bandwidth)
        sentences.append(f"Also changed: {bandwidth}.")
        if not cause.is_link_compared:
            remark = "The interconnect may be the cause, but was not recorded for both sides."
            sentences.append(remark)
    for gradient_copies, exposed_copies_delta_ns in cause.beside:
        sentences.append(_gradient_copies_text(gradient_copies, exposed_copies_delta_ns))
    return " ".join(sentences)


def _gradient_copies_text(gradient_copies: Change, exposed_copies_delta_ns: float) -> str:
    """Return how the number of gradient copies changed, and the setting of DDP that does this.

    With ``gradient_as_bucket_view=True``, DDP does not copy gradients.
    """
    copies = _values_text(gradient_copies)
    exposed = f"exposed copies {_short_delta(exposed_copies_delta_ns)}"
    is_decrease = _is_decrease(gradient_copies)
    setting = "With" if is_decrease else "Without"
    copied = "no such copies" if is_decrease else "such copies"
    remark = f"{setting} gradient_as_bucket_view=True, DDP makes {copied}."
    return f"Also changed: {copies} ({exposed}). {remark}"


def _is_decrease(change: Change) -> bool:
    """Tell whether both sides have a number, and the number of the candidate is smaller."""
    before = change.baseline
    after = change.candidate
    if not isinstance(before, int | float) or not isinstance(after, int | float):
        return False
    return after < before


def _values_text(change: Change) -> str:
    """Return a changed fact with its name in tables, and both values."""
    before, after = _sides_texts(change)
    return f"{change.what} {before} -> {after}"


def _possible_causes_text(cause: Cause) -> str:
    """Return the changed facts that may be the cause.

    If they are all about one matter, such as the number and size of collectives, they are the
    likely cause. If they are about several matters, nobody knows which of them it is.
    """
    texts = [_changed_fact_text(change) for change in cause.facts]
    facts = listed(texts, _MAX_FACTS_IN_SENTENCE)
    has_several_matters = cause.n_matters > 1
    if has_several_matters:
        return f"Possible causes: {facts}. The data do not show which of them it is."
    return f"Likely cause: {facts}."


def _changed_fact_text(change: Change) -> str:
    """Return a changed fact with both values.

    For a command, return the names of the arguments that differ instead. Values that are too long
    for a sentence are left out.
    """
    before, after = _sides_texts(change)
    if change.what in COMMANDS:
        arguments = changed_arguments(before, after)
        # Words that belong to no option have an empty name.
        names = [argument.name or "others" for argument in arguments]
        if names:
            return f"arguments of the command ({listed(names, _MAX_FACTS_IN_SENTENCE)})"
    name = shown_name(change.what)
    n_chars_of_longer_value = max(len(before), len(after))
    if n_chars_of_longer_value > _MAX_FACT_CHARS:
        return f"another {name}"
    return f"{name} {before} -> {after}"


def _sides_texts(change: Change) -> list[str]:
    """Return the values of a changed fact on both sides."""
    before_text = _side_text(change.unit, change.baseline)
    after_text = _side_text(change.unit, change.candidate)
    return [before_text, after_text]


def _short_delta(ns: float) -> str:
    """Return a difference of times with its sign and three significant digits."""
    if not ns:
        return ms_text(ns, 3)
    sign = "+" if ns > 0 else "-"
    return f"{sign}{ms_text(abs(ns), 3)}"


def difference_document(difference: RunDifference) -> dict[str, Any]:
    """Return the document as plain Python values, in a fixed order.

    ``baseline`` and ``candidate`` are the run object of the side's first capture, with the side's
    label and the run ids of all captures. ``step_time_parts`` sum to ``mean_step_time`` and
    ``idle_causes`` to the part idle, exactly.
    """
    document = _judgement_document(difference)
    cause = difference.cause
    document |= {
        "baseline": _side(difference.baseline),
        "candidate": _side(difference.candidate),
        "metrics": difference.metrics.to_pylist(),
        "mean_step_time": _mean_step_time(difference),
        "cause": cause and cause._asdict(),
    }
    document |= _parts_document(difference)
    document["changes"] = _changes_document(difference)
    document["facts"] = difference.facts.to_pylist()
    document["problems"] = difference.problem_rows
    return document


def _judgement_document(difference: RunDifference) -> dict[str, Any]:
    """Return the verdict, and what it rests on."""
    rules = difference.rules
    gate = difference.gate
    # 100 * 0.07 is not exactly 7.
    min_effect_pct = round(100 * rules.min_effect, 12)
    document = {
        "schema_version": SCHEMA_VERSION,
        "tool_version": __version__,
        "verdict": difference.verdict,
        "judged": list(difference.judged),
        "min_effect_pct": min_effect_pct,
        "statistic": difference.statistic,
        "evenness": _evenness_document(difference),
        "confidence": rules.confidence,
    }
    document["settings_file"] = difference.settings.file
    document["has_spread_between_captures"] = difference.has_spread_between_captures
    document["comparable"] = difference.is_comparable
    document["comparability"] = difference.comparability.to_pylist()
    document["gate"] = None if gate is None else _gate_document(gate)
    return document


def _parts_document(difference: RunDifference) -> dict[str, Any]:
    parts = difference.step_time_parts.to_pylist()
    causes = difference.idle_causes.to_pylist()
    kernels = difference.top_kernels.to_pylist()
    return {"step_time_parts": parts, "idle_causes": causes, "kernels": kernels}


def _evenness_document(difference: RunDifference) -> dict[str, list[dict[str, Any]]]:
    sides = zip(SIDES, difference.evenness, strict=True)
    return {side: [*map(asdict, captures)] for side, captures in sides}


def _gate_document(gate: Gate) -> dict[str, Any]:
    failed = [row["metric"] for row in gate.failed]
    undecided = [row["metric"] for row in gate.undecided]
    return {
        "fail_on": gate.fail_on,
        "outcome": gate.outcome,
        "exit_code": gate.exit_code,
        "failed": failed,
        "undecided": undecided,
    }


def _changes_document(difference: RunDifference) -> list[dict[str, Any]]:
    """Return what else changed, without the columns ``baseline_value`` and ``candidate_value``.

    ``baseline`` and ``candidate`` have the numbers of these columns, or words if there are none.
    """
    changes: list[dict[str, Any]] = difference.changes.to_pylist()
    for row in changes:
        number_of_side = {side: row.pop(f"{side}_value") for side in SIDES}
        has_numbers = number_of_side["baseline"] is not None
        if has_numbers:
            row.update(number_of_side)
    return changes


def _side(side: Side) -> dict[str, Any]:
    """Return the header of the first capture of a side, with the label and all captures."""
    document = asdict(side.runs[0].header)
    document["label"] = side.label
    document["captures"] = run_ids_of(side)
    return document


def identity_of(difference: RunDifference) -> str:
    """Return what identifies a difference: the run ids of both sides, as JSON."""
    sides = (difference.baseline, difference.candidate)
    captures = [run_ids_of(side) for side in sides]
    return json.dumps(captures)


def _identity_in(document: Mapping[str, Any]) -> str:
    """Return the identity of the difference that a document is about."""
    sides = [document[side] for side in SIDES]
    captures = [list(map(str, side["captures"])) for side in sides]
    return json.dumps(captures)


def difference_formats(difference: RunDifference) -> dict[str, Format]:
    """Return how a difference is written in each format.

    The formats also tell which difference a file is about, so that no other file is replaced.
    """
    page = partial(lazily("html.difference_page", "difference_page"), difference)
    return formats_of(
        "diff",
        identity_of(difference),
        document=partial(difference_document, difference),
        identity_in=_identity_in,
        blocks=partial(difference_blocks, difference),
        usage="nsyspipe diff BASELINE CANDIDATE",
        meta=DIFF_RUNS,
        page=page,
    )
