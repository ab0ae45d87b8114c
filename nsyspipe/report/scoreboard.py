"""A scoreboard in words and as blocks, who is fastest first; its JSON, CSV and page."""

import csv
import hashlib
import io
import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, cast

from nsyspipe.comparison.comparability import OTHER_WORK, SHARED_BATCH, UNKNOWN_WORK, UNLIKE
from nsyspipe.comparison.metrics import NO_CHANGE
from nsyspipe.comparison.scoreboard import REFERENCE, SCOREBOARD, SORTS, Kind, Scoreboard
from nsyspipe.comparison.series import MIN_STEPS, TOO_FEW
from nsyspipe.comparison.side import run_ids_of
from nsyspipe.comparison.statistics import MEAN, MEDIAN
from nsyspipe.model.figures import FIGURES, Figure, shown
from nsyspipe.model.names import counted, grouped, listed
from nsyspipe.model.problems import MORE_STEPS
from nsyspipe.model.table import SCHEMA_VERSION
from nsyspipe.report import units
from nsyspipe.report.blocks import (
    Block,
    Facts,
    Field,
    Heading,
    Notes,
    Sentence,
    Table,
    Troubles,
    Word,
    of,
    table_of,
)
from nsyspipe.report.costs import csv_cell, csv_text
from nsyspipe.report.files import head_of
from nsyspipe.report.formats import Format, formats_of, lazily
from nsyspipe.report.units import (
    absent,
    ms_text,
    percent_text,
    rate_text,
    signed,
    value_text,
)
from nsyspipe.report.words import (
    Trouble,
    counted_of_all,
    is_problem_shown,
    same_problems,
    settling_text,
    sources,
    uneven_notes,
)
from nsyspipe.run.run import Run, job_ranks
from nsyspipe.version import __version__

Row = dict[str, Any]
RESULTS = "Runs and their speed"  # caption of the table that says who is fastest
# A terminal shows this many warnings; pages show all.
_MAX_SHOWN_TROUBLES = 8
# Terminal widths from which on columns of results are shown.
_MIN_WIDTH_FOR_STEPS = 70
_MIN_WIDTH_FOR_RATE = 68
_MIN_WIDTH_FOR_RANKS = 60
_MIN_WIDTH_FOR_VERDICT = 46
_MIN_WIDTH_FOR_TIME = 45
# Each further metric needs this much more width.
_WIDTH_OF_METRIC = 10
_IN_RESULTS = {"step_time_ns", "throughput_steps_per_s", "speedup"}
_listed = partial(listed, most=4)
_DOCS = {column.name: column.doc for column in SCOREBOARD.columns}
_MAX_CSV_BYTES = 2**26
# Begins the name of a group of runs that are ranked together.
_GROUP = "Group"
# Checks that put runs into different groups for a reason that the headings of the groups lack.
_NOT_IN_HEADINGS = {SHARED_BATCH, OTHER_WORK, UNKNOWN_WORK, UNLIKE}
# What a check is about: a copy of a capture, the captures of one run, or two runs.
_COPY = "copy"
_CAPTURES_OF_RUN = "captures of run"
_TWO_RUNS = "two runs"
_NOT_RANKED_BECAUSE = {
    SHARED_BATCH: (
        ". Not ranked together, because ranks of tensor and pipeline parallelism share a batch"
    ),
    OTHER_WORK: (
        ". Not ranked together. Use --force if you know that they are comparable, for example with "
        "torch.compile"
    ),
}
RUNS = "nsyspipe-compare"  # the meta element of a page
# Runs with longer labels have a column that may be cut.
_MAX_SHORT_LABEL_CHARS = 12
_FIRST_FIGURES = {"exposed_comm_share", "overlap_ratio", "wait_share", "idle_share"}


class Group(NamedTuple):
    """Runs that can be compared with each other."""

    kind: Kind
    rows: list[Row]  # in the order of the table
    title: str


def scoreboard_blocks(board: Scoreboard, *, is_verbose: bool = True) -> Iterator[Block]:
    """Yield who is fastest, the runs of each group with their speed-ups, metrics and notes.

    A verbose scoreboard also has all metrics of the table, notes about files that were found beside
    the reports, and formulas.
    """
    yield from (Sentence(line, "bold") for line in headlines(board))
    yield subject(board)
    groups = groups_of(board)
    for group in groups:
        if len(groups) > 1:
            yield Heading(group.title, "dim")
        yield results_table(board, group.rows)
    yield figures_table(board, is_verbose=is_verbose)
    troubles = warnings(board, is_verbose=is_verbose)
    if troubles:
        yield Troubles(troubles, _MAX_SHOWN_TROUBLES)
    yield Notes(notes(board) if is_verbose else short_notes(board))


def subject(board: Scoreboard) -> Facts:
    """Return how many runs there are, on what, and which one is the baseline."""
    n_runs = counted(len(board.sides), "run")
    facts = [n_runs]
    groups = groups_of(board)
    if len(groups) == 1:
        (group,) = groups
        # With --force, a group may have runs of several sizes.
        sizes = {row["n_ranks"] for row in group.rows}
        if len(sizes) == 1:
            facts.append(group.title)
    if len(groups) == 1:
        facts.append(f"baseline: {board.reference}")
    else:
        facts.append(f"{len(groups)} groups, each with a baseline of its own")
    return Facts(facts, "Runs")


def warnings(board: Scoreboard, *, is_verbose: bool) -> list[Trouble]:
    """Return what makes comparisons doubtful or undecided, and the problems of the runs."""
    rows = [row for row in board.problem_rows if is_problem_shown(row, is_verbose=is_verbose)]
    warnings_of_board = [
        Trouble(severity="warning", message=doubt, place="", fix=None) for doubt in doubts(board)
    ]
    return warnings_of_board + same_problems(rows, _labels_of)


def _labels_of(rows: Sequence[Mapping[str, Any]]) -> str:
    labels = dict.fromkeys(row["label"] for row in rows)
    return _listed(labels)


def results_table(board: Scoreboard, rows: Sequence[Row]) -> Table:
    """Return the runs of a group with their step times, changes and verdicts.

    Each run is compared with its peer: the baseline, or the first run of its group.
    """
    has_groups = len(board.kinds) > 1
    peer = "the first of its group" if has_groups else board.reference
    used_statistics = {row["peer_statistic"] for row in rows}
    # Without a comparison, the table is headed as usual, by the median.
    named_statistics = [name for name in (MEDIAN, MEAN) if name in used_statistics] or [MEDIAN]
    statistic = " or ".join(named_statistics)
    fields = [run_field(board.table.to_pylist())]
    # The headings of groups name the number of ranks.
    fields += _speed_fields(board, has_ranks=not has_groups)
    if board.sort == "speedup":
        meaning = _DOCS["peer_speedup"].replace("the peer", peer)
        fields.append(Field("speed-up\nof means", _speedup_cell, hint=meaning))
    has_changes = any(_change_cell(row) != absent for row in rows)
    if has_changes:
        fields.append(_change_field(board, peer, statistic))
    fields.append(_verdict_field(peer, statistic))
    return table_of(RESULTS, rows, fields, is_close=has_groups)


def _verdict_field(peer: str, statistic: str) -> Field:
    """Return the column of the verdicts, with the reason on a page."""
    meaning = _DOCS["peer_verdict"].replace("the peer", peer)
    width = _MIN_WIDTH_FOR_VERDICT
    heading = f"verdict\non {statistic}"
    return Field(heading, _verdict_cell, kind="word", hint=meaning, from_width=width)


def _verdict_cell(row: Row) -> Word:
    word = verdict_word(row["peer_verdict"])
    return Word(word, row["peer_why"])


def _speed_fields(board: Scoreboard, *, has_ranks: bool) -> Iterator[Field]:
    """Yield the columns of ranks, steps, step time and throughput."""
    if has_ranks:
        yield Field("ranks", _ranks_cell, from_width=_MIN_WIDTH_FOR_RANKS)
    n_steps = of("n_summary_steps")
    meaning = _DOCS["n_summary_steps"]
    yield Field("steps", n_steps, hint=meaning, from_width=_MIN_WIDTH_FOR_STEPS)
    is_sorted_by_time = board.sort == "step_time"
    yield Field(
        "step time\nmedian",
        of("step_time_ns", ms_text),
        hint=_DOCS["step_time_ns"],
        from_width=0 if is_sorted_by_time else _MIN_WIDTH_FOR_TIME,
    )
    is_sorted_by_rate = board.sort == "throughput"
    yield Field(
        "steps/s",
        of("throughput_steps_per_s", rate_text),
        hint=_DOCS["throughput_steps_per_s"],
        unit="steps/s",
        from_width=0 if is_sorted_by_rate else _MIN_WIDTH_FOR_RATE,
    )


def _ranks_cell(row: Row) -> str:
    return str(_job_ranks(row) or row["n_ranks"])


def _speedup_cell(row: Row) -> str:
    return _speedup_text(row["peer_speedup"])


def _change_field(board: Scoreboard, peer: str, statistic: str) -> Field:
    """Return the column of the change of the step time, on which the verdict rests."""
    effect = percent_text(board.rules.min_effect)
    hint = (
        f"of the step time against {peer}, and its CI (the verdict is an improvement or a "
        f"regression if the CI excludes 0 and the change is at least {effect})"
    )
    heading = f"change\nof {statistic}"
    return Field(heading, _change_cell, hint=hint)


def _change_cell(row: Row) -> str:
    """Return the change against the peer with its interval. A dash without an interval."""
    is_peer = row["peer"] == row["label"]
    if is_peer or row["peer_delta_low_ratio"] is None:
        return absent
    delta = signed(100 * row["peer_delta_ratio"])
    low = signed(100 * row["peer_delta_low_ratio"])
    high = signed(100 * row["peer_delta_high_ratio"])
    return f"{delta}% ({low} to {high})"


def run_field(rows: Sequence[Row], heading: str = "run") -> Field:
    """Return the column with the labels of runs."""
    longest = max((len(row["label"]) for row in rows), default=0)
    kind = "name" if longest > _MAX_SHORT_LABEL_CHARS else "word"
    return Field(heading, of("label"), kind)


def verdict_word(verdict: str) -> str:
    """Return what a verdict is called on the screen."""
    return {REFERENCE: "baseline", NO_CHANGE: "unchanged"}.get(verdict, verdict)


def figures_table(board: Scoreboard, *, is_verbose: bool) -> Table:
    """Return the metrics of all runs, a row for each run.

    A verbose table has all metrics of `shown`. Any other table has only the most important ones.
    """
    rows = [row for group in groups_of(board) for row in group.rows]
    sort_column = _sort_column(board)
    fields = [run_field(rows, heading="mean over\nall ranks")]
    # This column is shown only if it sorts the table, and is not among the figures.
    if sort_column == "rank_steps_per_s":
        cell = of(sort_column, rate_text)
        meaning = _DOCS[sort_column]
        fields.append(Field("rank\nsteps/s", cell, hint=meaning, unit="steps/s"))
    figures = _shown_figures(rows, sort_column, is_verbose=is_verbose)
    # Each further metric needs more width, and the names of the runs need as much as a metric.
    for n_columns, figure in enumerate(figures, start=2):
        # The metric that sorts the table is always shown.
        is_sorting = figure.column == sort_column
        from_width = 0 if is_sorting else _WIDTH_OF_METRIC * n_columns
        cell = of(figure.column, partial(value_text, figure.unit))
        field = Field(figure.heading, cell, hint=figure.meaning, from_width=from_width)
        fields.append(field)
    return table_of("What steps go to", rows, fields)


def _sort_column(board: Scoreboard) -> str | None:
    """Return the column that sorts the runs. None if runs are in the order of the user."""
    if not board.sort:
        return None
    column, _is_most_first = SORTS[board.sort]
    return column


def _shown_figures(
    rows: Sequence[Row], sort_column: str | None, *, is_verbose: bool
) -> list[Figure]:
    """Return the metrics of the table.

    The metric that sorts the runs is added at the front, unless the table of results has it.
    """
    known_figures = [*shown("scoreboard")]
    optional_figures = shown("scoreboard, if known")
    known_figures += [figure for figure in optional_figures if _is_known(figure, rows)]
    first_figures = [figure for figure in known_figures if figure.name in _FIRST_FIGURES]
    figures = known_figures if is_verbose else first_figures
    # Not all columns that sort runs are figures.
    if sort_column not in FIGURES or sort_column in _IN_RESULTS:
        return figures
    sort_figure = FIGURES[sort_column]
    return figures if sort_figure in figures else [sort_figure, *figures]


def _is_known(figure: Figure, rows: Sequence[Row]) -> bool:
    values = [row[figure.column] for row in rows]
    return any(value is not None for value in values)


def _speedup_text(value: float | None, n_decimals: int = 3) -> str:
    if value is None:
        return absent
    return f"{value:.{n_decimals}f}x"


def _job_ranks(row: Row) -> int | None:
    """Return how many ranks the job of a run had, if that is known."""
    n_ranks = row["n_ranks"]
    n_processes = row["n_processes"]
    return job_ranks(n_ranks, n_processes, row["world_size"])


def groups_of(board: Scoreboard) -> list[Group]:
    """Return the groups of runs that can be compared with each other.

    There is a group for each of the `kinds` of the scoreboard. If there are several groups, their
    titles are numbered.
    """
    row_of_label = {row["label"]: row for row in board.table.to_pylist()}
    has_several = len(board.kinds) > 1
    groups = []
    for number, kind in enumerate(board.kinds, start=1):
        rows_of_group = [row_of_label[label] for label in kind.labels]
        hardware = _hardware_text(rows_of_group[0])
        title = f"{_GROUP} {number}: {hardware}" if has_several else hardware
        groups.append(Group(kind, rows_of_group, title))
    return groups


def _hardware_text(row: Row) -> str:
    size = counted_of_all(row["n_ranks"], _job_ranks(row), noun="rank", plural_ending="s")
    gpus = row["gpu_names"]
    return f"{size}, {gpus}" if gpus else size


def headlines(board: Scoreboard) -> list[str]:
    """Return who is fastest in each group of several runs, the largest group first.

    Without such a group, return one sentence that says why no runs are compared.
    """
    is_alone = len(board.sides) == 1
    has_checks = bool(board.checks.num_rows)
    if is_alone and not has_checks:
        # With checks, the captures of the run are not alike, which is said below.
        return [f"{board.reference} is the only run, so there is nothing to compare."]
    groups = groups_of(board)
    groups_of_several = [group for group in groups if len(group.rows) > 1]
    if not groups_of_several:
        return [_not_comparable_text(board)]
    largest_first = sorted(groups_of_several, key=lambda group: len(group.rows), reverse=True)
    unchecked_pairs = _unchecked_pairs(board)
    is_only_group = len(groups) == 1
    lines = []
    for group in largest_first:
        line = _headline(board, group, is_only_group=is_only_group)
        labels = group.kind.labels
        has_unchecked_pair = any(pair.issubset(labels) for pair in unchecked_pairs)
        if has_unchecked_pair:
            line += " nsyspipe cannot check that these runs do the same work."
        lines.append(line)
    return lines


def _unchecked_pairs(board: Scoreboard) -> list[set[str]]:
    """Return the labels of each pair of runs that nobody knows to do the same work."""
    rows = [row for row in board.checks.to_pylist() if _is_unchecked(row)]
    return [{row["label"], row["against"]} for row in rows]


def _is_unchecked(row: Row) -> bool:
    """Tell whether a check could not compare the work of two runs."""
    is_allowed_batch = row["check"] == SHARED_BATCH and not row["blocks"]
    return is_allowed_batch or row["check"] == UNKNOWN_WORK


def _not_comparable_text(board: Scoreboard) -> str:
    """Return that no two runs can be compared, and why."""
    n_runs = len(board.sides)
    if n_runs == 1:
        lead = (
            f"{board.reference} is the only run, and its captures do not seem to have one "
            "configuration"
        )
    elif n_runs > 2:  # noqa: PLR2004 - more than a pair
        lead = f"No two of the {n_runs} runs can be compared"
    else:
        lead = "The runs cannot be compared"
    reasons = _blocking_reasons(board) or ["nsyspipe does not know which runs do the same work"]
    return f"{lead}: {', and '.join(reasons)}."


def _blocking_reasons(board: Scoreboard) -> list[str]:
    """Return what keeps runs from being compared, as clauses."""
    check_of_message: dict[str, str] = {}
    for row in board.checks.to_pylist():
        if row["blocks"]:
            # After the colon, a message has the values of two runs. Without these values, messages
            # about several pairs of runs are equal.
            message, *_values = row["message"].split(": ")
            check_of_message[message] = row["check"]
    # Most messages are nouns that name a difference. Those of two checks are clauses already.
    differences: list[str] = []
    clauses: list[str] = []
    for message, check in check_of_message.items():
        is_clause = check in {UNKNOWN_WORK, UNLIKE}
        texts = clauses if is_clause else differences
        texts.append(message)
    if not differences:
        return clauses
    return [f"the runs have {_listed(differences)}", *clauses]


def _headline(board: Scoreboard, group: Group, *, is_only_group: bool) -> str:
    """Return the sentence that says which run of a group is fastest, or why that is not known.

    All runs of a group are compared with its baseline. The best run has the largest speed-up.
    """
    kind = group.kind
    baseline = kind.peer
    if _is_one_capture(board, group):
        return f"{_listed(kind.labels)} are the same capture, so there is nothing to compare."
    in_group = "" if is_only_group else f" in group {_group_number(group)}"
    if kind.best is None:
        # No speed-up has an interval.
        return _not_ranked(kind, group.rows, in_group)
    best_row = next(row for row in group.rows if row["label"] == kind.best)
    n_runs = len(group.rows)
    among = in_group or f" of {n_runs} runs"
    is_baseline_best = kind.best == baseline
    is_surely_faster = best_row["peer_verdict"] == "improvement"
    if not is_baseline_best and not is_surely_faster:
        # The baseline may be as fast as the best run.
        doubt = _not_sure(best_row, baseline, among, group.rows)
        return f"{doubt}."
    tied = _tied_text(kind)
    labels_of_rivals = kind.not_told_from
    if labels_of_rivals:
        return _no_winner_text(kind, best_row, among=among, tied=tied)
    if is_baseline_best:
        # The baseline has no speed-up of its own, so the second fastest run shows the distance.
        remark = tied or _second_text(best_row, group.rows)
        return f"{baseline} is the fastest{among}{remark}."
    speed = _speed(best_row, peer=baseline)
    return f"{kind.best} is the fastest{among}: {speed}{tied}."


def _tied_text(kind: Kind) -> str:
    """Return which runs are as fast as the best run, with a comma in front. Empty if none is."""
    if not kind.level_with:
        return ""
    return f", tied with {_listed(kind.level_with)}"


def _group_number(group: Group) -> str:
    name, _, _ = group.title.partition(":")
    return name.removeprefix(_GROUP).strip()


def _is_one_capture(board: Scoreboard, group: Group) -> bool:
    """Tell whether the runs of a group all are the same capture, so that they cannot be compared.

    False if the user forced (``--force``) the comparison of copies, or if a run has several
    captures.
    """
    has_several_captures = any(row["n_captures"] > 1 for row in group.rows)
    if board.rules.is_forced or has_several_captures or len(group.rows) == 1:
        return False
    checks = board.checks.to_pylist()
    copies = {row["label"] for row in checks if _subject_of_check(row) == _COPY}
    # The first run of the group is the original, and all others must be copies.
    original_and_copies = {group.kind.peer, *copies}
    return original_and_copies.issuperset(group.kind.labels)


def _no_winner_text(kind: Kind, best: Row, *, among: str, tied: str) -> str:
    """Return which run may be the fastest, and which runs may be as fast.

    `among` and `tied` are parts of the sentence. `among` is the group or the number of runs, and
    `tied` are the runs that are as fast as the best run.
    """
    if best["label"] == kind.peer:
        speed = "has the shortest mean step time"
    else:
        speed = f"is {_speed(best, peer=kind.peer)}"
    rivals = f"but is not distinguishable from {_listed(kind.not_told_from)}"
    claim = f"{best['label']} {speed}, {rivals}"
    return f"No clear winner{among}: {claim}{tied}."


def _second_text(best: Row, rows: Sequence[Row]) -> str:
    """Return how fast the second fastest run is, as a sentence with a full stop in front.

    `best` is the baseline, and the fastest of `rows`. Empty if the speed of no other run is known.
    """
    other_rows = [row for row in rows if row is not best and row["peer_speedup"] is not None]
    if not other_rows:
        return ""
    second = max(other_rows, key=lambda row: row["peer_speedup"])
    speed = _speed(second, peer=best["label"])
    return f". {second['label']} runs at {speed}"


def _not_ranked(kind: Kind, rows: Sequence[Row], among: str) -> str:
    """Return why runs of a group are not ranked: no step times, or too few steps."""
    peer_row = next(row for row in rows if row["label"] == kind.peer)
    if peer_row["peer_speedup"] is None:
        return f"Not ranked{among}: {kind.peer} has no step times."
    labels_with_few_steps = [row["label"] for row in rows if row["n_summary_steps"] < MIN_STEPS]
    # A run with enough steps in all may have a capture with too few. Then the first run is named.
    labels = labels_with_few_steps or [kind.peer]
    names = _listed(labels)
    fewer = f"fewer than {MIN_STEPS} measured steps"
    if len(labels) == 1:
        return f"Not ranked{among}: {names} has {fewer}."
    return f"Not ranked{among}: {names} have {fewer} each."


def _not_sure(best: Row, peer: str, among: str, rows: Sequence[Row]) -> str:
    """Return that no run of a group is certainly faster than the baseline (`peer`), and why.

    `best` is the run with the shortest mean step time, and not the baseline. `among` is the group
    or the number of runs, as a part of the sentence.
    """
    speedup = _speed(best, peer=peer)
    speed = f"{best['label']} is {speedup}"
    if best["peer_verdict"] == NO_CHANGE:
        undecided_labels = [row["label"] for row in rows if row["peer_verdict"] == "inconclusive"]
        return _unchanged_text(speed, peer, among=among, undecided_labels=undecided_labels)
    reason = _why_undecided(best)
    why = f" ({reason})" if reason else ""
    low_speedup = best["peer_speedup_low"]
    is_mean_surely_shorter = low_speedup is not None and low_speedup > 1
    if not is_mean_surely_shorter:
        return f"{_not_known_text(speed, peer, among=among)}{why}"
    # But the verdict may be on the median, and it needs the minimum effect.
    statistic = best["peer_statistic"] or "median"
    verdict = verdict_word(best["peer_verdict"])
    return f"{speed}, but the verdict on the {statistic} step time is {verdict}{why}"


def _unchanged_text(speed: str, peer: str, *, among: str, undecided_labels: Sequence[str]) -> str:
    """Return that the best run is as fast as the baseline (`peer`).

    `speed` is the best run with its speed-up, and `among` is the group or the number of runs, both
    as parts of the sentence. `undecided_labels` are the runs that may still be faster than the
    baseline.
    """
    if not undecided_labels:
        return f"No run{among} is faster than {peer} by the minimum effect: {speed}, unchanged"
    not_known = _not_known_text(speed, peer, among=among)
    labels = _listed(undecided_labels)
    return f"{not_known}, unchanged, and {labels} not distinguishable from {peer}"


def _not_known_text(speed: str, peer: str, *, among: str) -> str:
    """Return that it is not known whether any run is faster than the baseline (`peer`)."""
    return f"The data do not show whether any run{among} is faster than {peer}: {speed}"


def _why_undecided(row: Row) -> str:
    """Return why a run has no verdict, and how many steps or captures would bring one."""
    settle_steps = row["peer_settle_steps"]
    settle_captures = row["peer_settle_captures"]
    hint = settling_text(settle_steps, settle_captures, counts=[row["n_summary_steps"]])
    texts = (row["peer_why"], hint)
    return ", ".join(text for text in texts if text)


def _speed(row: Row, *, peer: str) -> str:
    """Return a speed-up with its interval: ``1.12x the mean speed of ddp (1.11 to 1.13)``.

    If two decimals do not distinguish the speed-up from both ends of the interval, there are three
    decimals.
    """
    speedup = row["peer_speedup"]
    low = row["peer_speedup_low"]
    high = row["peer_speedup_high"]
    whose = f"the mean speed of {peer}"
    if low is None:
        return f"{_speedup_text(speedup, n_decimals=2)} {whose}"
    values = (low, speedup, high)
    texts_with_two_decimals = {f"{value:.2f}" for value in values}
    are_distinct = len(texts_with_two_decimals) == len(values)
    n_decimals = 2 if are_distinct else 3
    interval = f"{low:.{n_decimals}f} to {high:.{n_decimals}f}"
    return f"{_speedup_text(speedup, n_decimals)} {whose} ({interval})"


def notes(board: Scoreboard) -> list[str]:
    """Return how to read the table.

    The notes are about formulas, uneven steps, runs of different sizes, how steps were found,
    environments, thresholds, and the variation between captures.
    """
    texts = [_formula_note(board)]
    texts += uneven_notes(board.evenness.items())
    sizes = {_job_ranks(row) or row["n_ranks"] for row in board.table.to_pylist()}
    if len(sizes) > 1:
        texts.append(_DIFFERENT_SIZES)
    for side in board.sides:
        sources_text = _sources_of_runs(side.runs)
        if sources_text:
            texts.append(f"{side.label}: {sources_text}.")
    texts += environment_texts(board)
    texts += _thresholds_texts(board)
    return texts + spread_texts(board)


def _sources_of_runs(runs: Iterable[Run]) -> str:
    """Return how the steps and the backward pass of the runs of a side were found, each way once.

    Empty if ranges mark them in all runs.
    """
    texts: dict[str, None] = {}
    for run in runs:
        texts |= dict.fromkeys(sources(run))
    return ", ".join(texts)


_DIFFERENT_SIZES = (
    "The runs have different numbers of ranks. A speed-up compares steps, not samples. If all "
    "ranks have the same batch size, the speed-up over a run of one rank is the scaling "
    "efficiency. If the runs use only data parallelism, steps/s x ranks is batches/s."
)


def _formula_note(board: Scoreboard) -> str:
    """Return what the speed of a run, its change and its verdict are."""
    effect = percent_text(board.rules.min_effect)
    sure = units.sure_text(board.rules.confidence)
    has_groups = len(board.kinds) > 1
    base = "of the first run of its group" if has_groups else f"of {board.reference}"
    return (
        f"The speed of a run is the mean step time {base} divided by the mean step time of the "
        f"run, with a {sure} confidence interval. The change and the verdict are those of nsyspipe "
        "diff on the median step time (on the mean if steps are uneven). "
        f"Unchanged means that the whole confidence interval is within ±{effect}."
    )


def _thresholds_texts(board: Scoreboard) -> list[str]:
    file = board.settings.file
    return [f"Thresholds from {file}."] if file else []


def short_notes(board: Scoreboard) -> list[str]:
    """Return what limits the comparison, and what `-v` adds."""
    texts = spread_texts(board) + _thresholds_texts(board)
    texts.append("-v shows more metrics, the formulas and the files that were used.")
    return texts


def spread_texts(board: Scoreboard) -> list[str]:
    """Return how intervals treat the variation between captures, if some runs have one capture.

    Empty if no run has a confidence interval, or if all runs have several captures.
    """
    compared_rows = [row for row in board.table.to_pylist() if row["label"] != row["peer"]]
    has_intervals = any(row["peer_speedup_low"] is not None for row in compared_rows)
    labels_of_one_capture = [side.label for side in board.sides if len(side.runs) == 1]
    if not has_intervals or not labels_of_one_capture:
        return []
    if len(labels_of_one_capture) == len(board.sides):
        gap = "the confidence intervals do not include the variation between captures"
        fix = "Pass several captures of a run with the same LABEL=."
        return [f"One capture per run: {gap}. {fix}"]
    is_single = len(labels_of_one_capture) == 1
    verb = "has one capture" if is_single else "have one capture each"
    source = "nsyspipe takes the variation between captures from the runs with several captures."
    labels = _listed(labels_of_one_capture)
    return [f"{labels} {verb}. {source}"]


def environment_texts(board: Scoreboard) -> list[str]:
    """Return which training variables differ between runs, and which runs did not record them.

    Empty if no variable differs.
    """
    rows = board.environments.to_pylist()
    rows_of_variable = grouped((row["what"], row) for row in rows)
    texts = []
    for variable, rows_with_values in rows_of_variable.items():
        labels_by_value = grouped((row["value"], row["label"]) for row in rows_with_values)
        texts.append(f"{variable} differs: {_by_value(labels_by_value)}.")
    labels_without_variables = board.without_environment
    if texts and labels_without_variables:
        labels = _listed(labels_without_variables)
        texts.append(f"Environment variables were not recorded for {labels}.")
    return texts


class Deviation(NamedTuple):
    """A fact in which runs differ from another run."""

    what: str
    against: str  # the label of the other run
    reference_value: str
    consequence: str  # a sentence, or empty


def doubts(board: Scoreboard) -> list[str]:
    """Return what makes comparisons doubtful or undecided, each reason with its runs.

    First come messages about captures of one run that are not alike, then undecided runs, copies of
    a capture, and facts in which runs differ.
    """
    labels_by_reason = _undecided_labels(board)
    undecided_labels = {*chain.from_iterable(labels_by_reason.values())}
    checks = board.checks.to_pylist()
    rows_by_subject = grouped((_subject_of_check(row), row) for row in checks)
    rows_within_runs = rows_by_subject.get(_CAPTURES_OF_RUN, [])
    distinct_messages = dict.fromkeys(row["message"] for row in rows_within_runs)
    deviations = [
        row
        for row in rows_by_subject.get(_TWO_RUNS, [])
        if not _is_shown_elsewhere(board, row, undecided_labels)
    ]
    texts = [*distinct_messages, *_undecided_texts(labels_by_reason)]
    texts += _copies_texts(rows_by_subject.get(_COPY, []), undecided_labels)
    texts += _deviation_texts(board, deviations)
    return texts


def _subject_of_check(row: Row) -> str:
    """Return what a check is about: a copy of a capture, the captures of one run, or two runs."""
    if row["check"] == "same-capture":
        return _COPY
    is_within_run = row["label"] == row["against"]
    if is_within_run or row["check"] == UNLIKE:
        return _CAPTURES_OF_RUN
    return _TWO_RUNS


def _undecided_labels(board: Scoreboard) -> dict[str, list[str]]:
    """Return the runs whose speed is known but that have no verdict, by reason."""
    labels_by_reason: defaultdict[str, list[str]] = defaultdict(list)
    for row in board.table.to_pylist():
        has_verdict = not row["peer_why"]
        is_speed_known = row["peer_speedup"] is not None
        if is_speed_known and not has_verdict:
            labels = labels_by_reason[_why_undecided(row)]
            labels.append(row["label"])
    return labels_by_reason


def _is_shown_elsewhere(board: Scoreboard, row: Row, undecided_labels: Collection[str]) -> bool:
    """Tell whether a check is shown among undecided runs, or in the headings of groups."""
    is_undecided = row["label"] in undecided_labels
    if row["check"] == "few-steps" and is_undecided:
        return True
    has_groups = len(board.kinds) > 1
    is_in_headings = row["check"] not in _NOT_IN_HEADINGS
    return row["blocks"] and has_groups and is_in_headings


def _deviation(board: Scoreboard, row: Row) -> Deviation:
    """Return the fact in which a run differs from another run, as a check found it.

    If the check keeps the two runs from being ranked together, the consequence says so.
    """
    # After the colon, a message has the values of both runs.
    fact, *_values = row["message"].split(": ")
    consequence = ""
    if row["blocks"] and not board.rules.is_forced:
        consequence = _NOT_RANKED_BECAUSE.get(row["check"], "")
    return Deviation(
        what=fact,
        against=row["against"],
        reference_value=row["reference_value"],
        consequence=consequence,
    )


def _copies_texts(rows: Sequence[Row], undecided_labels: Collection[str]) -> Iterator[str]:
    """Yield which runs are copies of which run. `rows` are the checks that found the copies.

    Undecided runs are left out, because they are named with their reason.
    """
    copies_of_label = grouped((row["against"], row["label"]) for row in rows)
    for label, copies in copies_of_label.items():
        decided_copies = [copy for copy in copies if copy not in undecided_labels]
        if decided_copies:
            yield f"{_listed([label, *decided_copies])} are the same capture"


def _deviation_texts(board: Scoreboard, rows: Sequence[Row]) -> Iterator[str]:
    """Yield each fact with the value of the other run, and the runs by their values.

    `rows` are the checks that found differences.
    """
    rows_of_deviation = grouped((_deviation(board, row), row) for row in rows)
    for deviation, rows_with_fact in rows_of_deviation.items():
        labels_by_value = grouped((row["value"], row["label"]) for row in rows_with_fact)
        reference = f"{deviation.against} {deviation.reference_value}"
        values = f"{_by_value(labels_by_value)}{deviation.consequence}"
        yield f"{deviation.what}: {reference}, {values}"


def _undecided_texts(labels_by_reason: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield which runs have no verdict and why. Runs that only lack steps are one sentence."""
    labels_with_few_steps: list[str] = []
    for reason, labels in labels_by_reason.items():
        if TOO_FEW in reason:
            labels_with_few_steps += labels
        else:
            yield f"inconclusive: {_listed(labels)} ({reason})"
    if labels_with_few_steps:
        yield f"inconclusive: {_listed(labels_with_few_steps)} (too few steps, {MORE_STEPS})"


def _by_value(labels_by_value: Mapping[str, Sequence[str]]) -> str:
    """Return values and the labels of the runs that have them: ``one 1, 2 (ddp2 and pp)``."""
    return _listed(_value_text(value, labels) for value, labels in labels_by_value.items())


def _value_text(value: str, labels: Sequence[str]) -> str:
    """Return a value and the runs that have it: ``one 1``, or ``2 (ddp2 and pp)`` for several."""
    if len(labels) == 1:
        return f"{labels[0]} {value}"
    return f"{value} ({_listed(labels)})"


def scoreboard_document(board: Scoreboard) -> dict[str, Any]:
    """Return the document as plain Python values; ``captures`` are the run ids of a run."""
    rules = board.rules
    document = {
        "schema_version": SCHEMA_VERSION,
        "tool_version": __version__,
        "reference": board.reference,
        "sort": board.sort,
        "min_effect_pct": round(100 * rules.min_effect, 12),
        "confidence": rules.confidence,
        "is_forced": rules.is_forced,
        "settings_file": board.settings.file,
    }
    document["runs"] = _run_documents(board)
    document["kinds"] = [asdict(kind) for kind in board.kinds]
    document["comparability"] = board.checks.to_pylist()
    document["environments"] = board.environments.to_pylist()
    document["problems"] = board.problem_rows
    return document


def _run_documents(board: Scoreboard) -> list[dict[str, Any]]:
    """Return the rows of the table, each with the run IDs of its captures as a list."""
    captures = {side.label: run_ids_of(side) for side in board.sides}
    rows = board.table.drop_columns("run_ids").to_pylist()
    for row in rows:
        row["captures"] = captures[row["label"]]
    return cast("list[dict[str, Any]]", rows)


def identity_of(board: Scoreboard) -> str:
    """Return what identifies a scoreboard: a hash of the run ids, whatever their order."""
    return _hashed(run_ids_of(side) for side in board.sides)


def _identity_in(document: Mapping[str, Any]) -> str | None:
    """Return the identity of the scoreboard that a document is about; None if it is of none."""
    if not document["reference"]:
        return None
    return _hashed(row["captures"] for row in document["runs"])


def _identity_of_csv(path: Path, board: Scoreboard) -> str | None:
    """Return the identity of a scoreboard if a CSV file has the same runs, else None."""
    text = head_of(path, _MAX_CSV_BYTES)
    rows = csv.DictReader(io.StringIO(text))
    try:
        cells_of_file = sorted(str(row.get("run_ids")) for row in rows)
    except csv.Error:
        return None
    cells_of_board = sorted(map(csv_cell, board.table["run_ids"].to_pylist()))
    return identity_of(board) if cells_of_file == cells_of_board else None


def _hashed(run_ids_of_sides: Iterable[Iterable[str]]) -> str:
    """Return a hash of the run IDs of each side. The order of sides and of IDs does not count."""
    sorted_sides = sorted(sorted(map(str, run_ids)) for run_ids in run_ids_of_sides)
    text = json.dumps(sorted_sides)
    return hashlib.sha256(text.encode()).hexdigest()


def scoreboard_formats(board: Scoreboard) -> dict[str, Format]:
    """Return how a scoreboard is written in each format, and how to identify one in a file."""
    blocks = partial(scoreboard_blocks, board)
    page = partial(lazily("html.scoreboard_page", "scoreboard_page"), board)
    formats = formats_of(
        "compare",
        identity_of(board),
        document=partial(scoreboard_document, board),
        identity_in=_identity_in,
        blocks=blocks,
        usage="nsyspipe compare RUN RUN ...",
        page=page,
        meta=RUNS,
    )
    rows = [row.values() for row in board.table.to_pylist()]
    text = partial(csv_text, board.table.column_names, rows)
    identity_in_csv = partial(_identity_of_csv, board=board)
    return formats | {"csv": Format(text, identity_in_csv)}
