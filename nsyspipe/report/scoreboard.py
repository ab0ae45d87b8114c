"""A scoreboard: what it says in words and as blocks, who is fastest first; its JSON, CSV and page."""

import csv
import hashlib
import io
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from nsyspipe.comparison.comparability import OTHER_WORK, SHARED_BATCH, UNKNOWN_WORK, UNLIKE
from nsyspipe.comparison.metrics import NO_CHANGE
from nsyspipe.comparison.scoreboard import REFERENCE, SCOREBOARD, SORTS, Kind, Scoreboard
from nsyspipe.comparison.series import MIN_STEPS, TOO_FEW
from nsyspipe.comparison.statistics import MEDIAN
from nsyspipe.model.figures import FIGURES, shown
from nsyspipe.model.names import listed
from nsyspipe.model.problems import MORE_STEPS, OF_FILES_BESIDE
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
from nsyspipe.report.export import formats_of, lazily
from nsyspipe.report.files import Format, head_of
from nsyspipe.report.units import absent, ms_text, percent_text, rate_text, signed, value_text
from nsyspipe.report.words import (
    Trouble,
    of_world,
    same_problems,
    settling_text,
    sources,
    uneven_notes,
)
from nsyspipe.run.run import job_ranks
from nsyspipe.version import __version__

Row = dict[str, Any]
RESULTS = "Runs and their speed"  # caption of the table that says who is fastest
_SHOWN_TROUBLES = 8  # but on pages
# How wide a terminal has room for the columns of results; of figures each needs so much more.
_CHANGED = 101
_INTERVAL = 75
_OVER = 73
_STEPS = 70
_RATE = 68
_RANKS = 60
_VERDICT = 46
_TIME = 45
_FIGURE = 10
_IN_RESULTS = {"step_time_ns", "throughput_steps_per_s", "speedup"}
_listed = partial(listed, most=4)
_DOCS = {column.name: column.doc for column in SCOREBOARD.columns}
_LARGEST_FILE = 2**26
_PAIR = 2  # runs
_GROUP = "Group"  # of runs that are ranked together
_TOLD = {
    SHARED_BATCH,
    OTHER_WORK,
    UNKNOWN_WORK,
    UNLIKE,
}  # what parts runs that no heading tells apart
_APART = {
    SHARED_BATCH: ". Not ranked together, because ranks of tensor and pipeline parallelism share a batch",
    OTHER_WORK: (
        ". Not ranked together. Use --force if you know that they are comparable, for example with "
        "torch.compile"
    ),
}
RUNS = "nsyspipe-compare"  # the meta element of a page
_SHORT = 12  # letters of a label
_FIRST_FIGURES = {"exposed_comm_share", "overlap_ratio", "wait_share", "idle_share"}


def scoreboard_blocks(board: Scoreboard, *, is_verbose: bool = True) -> Iterator[Block]:
    """Yield who is fastest, the runs of each group with their speed-ups, what steps go to, doubts and notes.

    Verbose, also all metrics of the table, files that were found beside the reports, and formulas.
    """
    yield from (Sentence(line, "bold") for line in headlines(board))
    yield subject(board)
    kinds = rows_by_kind(board)
    for _, rows, kind_text in kinds:
        if len(kinds) > 1:
            yield Heading(kind_text, "dim")
        yield results_table(board, rows)
    yield figures_table(board, is_verbose=is_verbose)
    doubtful = warnings(board, is_verbose=is_verbose)
    if doubtful:
        yield Troubles(doubtful, _SHOWN_TROUBLES)
    yield Notes(notes(board) if is_verbose else short_notes(board))


def subject(board: Scoreboard) -> Facts:
    """Return how many runs there are, on what, and which one is the baseline."""
    kinds = rows_by_kind(board)
    # --force shows runs of several groups in one table.
    has_one_size = len(kinds) == 1 and len({row["n_ranks"] for row in kinds[0][1]}) == 1
    common = [kinds[0][2]] if has_one_size else []
    return Facts(
        [of_world(len(board.sides), None, "run", "s"), *common, f"baseline: {board.reference}"],
        "Runs",
    )


def warnings(board: Scoreboard, *, is_verbose: bool) -> list[Trouble]:
    """Return what makes comparisons doubtful or undecided, and the problems of the runs."""
    rows = board.problem_rows
    grave = [
        row
        for row in rows
        if row["severity"] != "info" or (is_verbose and row["code"] in OF_FILES_BESIDE)
    ]
    problems = same_problems(
        grave, lambda rows: _listed(dict.fromkeys(row["label"] for row in rows))
    )
    return [("warning", doubt, "", None) for doubt in doubts(board)] + problems


def results_table(board: Scoreboard, rows: Sequence[Row]) -> Table:
    """Return the runs of a group with their step times, speed-ups and verdicts."""

    def interval(row: Row) -> str:
        low = row["peer_speedup_low"]
        high = row["peer_speedup_high"]
        return absent if low is None or row["peer"] == row["label"] else f"{low:.3f} to {high:.3f}"

    def change(row: Row) -> str:
        if row["peer_delta_low_ratio"] is None or row["peer"] == row["label"]:
            return absent
        delta, low, high = (
            signed(100 * row[f"peer_delta_{end}ratio"]) for end in ("", "low_", "high_")
        )
        return f"{delta}% ({low} to {high})"

    has_kinds = len(board.kinds) > 1
    others = _of_other_work(board)
    peer = "the first of its group" if has_kinds else board.reference
    judged = " or ".join(
        sorted({row["peer_statistic"] for row in rows} - {None} or {MEDIAN}, reverse=True)
    )
    has_change = {*map(change, rows)} != {absent}
    effect = percent_text(board.rules.min_effect)
    fields = [
        run_field(board.table.to_pylist()),
        *(
            []
            if has_kinds
            else [
                Field(
                    "ranks", lambda row: str(_job_ranks(row) or row["n_ranks"]), from_width=_RANKS
                )
            ]
        ),
        Field("steps", of("n_summary_steps"), hint=_DOCS["n_summary_steps"], from_width=_STEPS),
        Field(
            "step time\nmedian",
            of("step_time_ns", ms_text),
            hint=_DOCS["step_time_ns"],
            from_width=0 if board.sort == "step_time" else _TIME,
        ),
        Field(
            "steps/s",
            of("throughput_steps_per_s", rate_text),
            hint=_DOCS["throughput_steps_per_s"],
            unit="steps/s",
            from_width=0 if board.sort == "throughput" else _RATE,
        ),
        Field(
            "speed-up\nof means",
            lambda row: _speedup_text(row["peer_speedup"]),
            hint=_DOCS["peer_speedup"].replace("the peer", peer),
        ),
        Field(
            f"{units.sure_text(board.rules.confidence)} CI",
            interval,
            hint="of the speed-up of means (the verdict uses the CI of the change)",
            from_width=_INTERVAL,
        ),
        *(
            [
                Field(
                    "over the\nfirst",
                    lambda row: absent if row["label"] in others else _speedup_text(row["speedup"]),
                    hint=_DOCS["speedup"],
                    from_width=_OVER,
                )
            ]
            if _has_over_first(board, rows)
            else []
        ),
        *(
            [
                Field(
                    f"change\nof {judged}",
                    change,
                    hint=f"of the step time against {peer}, and its CI (the verdict is an "
                    "improvement or a regression if the CI excludes 0 and the change is at "
                    f"least {effect})",
                    from_width=_CHANGED,
                )
            ]
            if has_change
            else []
        ),
        Field(
            f"verdict\non {judged}",
            lambda row: Word(verdict_word(row["peer_verdict"]), row["peer_why"]),
            "word",
            _DOCS["peer_verdict"].replace("the peer", peer),
            _VERDICT,
        ),
    ]
    return table_of(RESULTS, rows, fields, is_close=has_kinds)


def _has_over_first(board: Scoreboard, rows: Sequence[Row]) -> bool:
    """Whether runs of a kind have a speed-up over the first that was given which is not that over their own first."""
    labels = {row["label"] for row in rows}
    return board.reference not in labels and not labels <= _of_other_work(board)


def run_field(rows: Sequence[Row], heading: str = "run") -> Field:
    """Return the column of what runs are called."""
    return Field(
        heading, of("label"), "name" if any(len(row["label"]) > _SHORT for row in rows) else "word"
    )


def _of_other_work(board: Scoreboard) -> set[str]:
    checks = () if board.rules.is_forced else board.checks.to_pylist()
    return {
        row["label"]
        for row in checks
        if row["blocks"] and row["check"] in {OTHER_WORK, SHARED_BATCH}
    }


def verdict_word(verdict: str) -> str:
    """Return what a verdict is called on the screen."""
    return {REFERENCE: "baseline", NO_CHANGE: "unchanged"}.get(verdict, verdict)


def figures_table(board: Scoreboard, *, is_verbose: bool) -> Table:
    """Return the metrics of all runs; verbose all that a table of several runs shows."""
    rows = [row for _, of_kind, _ in rows_by_kind(board) for row in of_kind]
    sort = board.sort
    if_known = [
        one
        for one in shown("scoreboard, if known")
        if any(row[one.column] is not None for row in rows)
    ]
    fields = [run_field(rows, "mean over\nall ranks")]
    asked_for = SORTS[sort][0] if sort else None
    figures = [*shown("scoreboard"), *if_known]
    if not is_verbose:
        figures = [figure for figure in figures if figure.name in _FIRST_FIGURES]
    if asked_for in FIGURES and FIGURES[asked_for] not in figures and asked_for not in _IN_RESULTS:
        figures.insert(0, FIGURES[asked_for])
    if asked_for == "rank_steps_per_s":
        fields.append(
            Field("rank\nsteps/s", of(asked_for, rate_text), hint=_DOCS[asked_for], unit="steps/s")
        )
    for at, figure in enumerate(figures, start=2):
        cell = of(figure.column, partial(value_text, figure.unit))
        width = 0 if figure.column == asked_for else _FIGURE * at
        fields.append(Field(figure.heading, cell, hint=figure.meaning, from_width=width))
    return table_of("What steps go to", rows, fields)


def _speedup_text(value: float | None, digits: int = 3) -> str:
    return absent if value is None else f"{value:.{digits}f}x"


def _job_ranks(row: Row) -> int | None:
    """Return how many ranks the job of a run had, as far as one knows."""
    return job_ranks(row["n_ranks"], row["n_processes"], row["world_size"])


def rows_by_kind(board: Scoreboard) -> list[tuple[Kind, list[Row], str]]:
    """Return the kinds of runs that can be compared with each other, their rows in the order of the table, and what each is called."""
    rows = {row["label"]: row for row in board.table.to_pylist()}
    of_kind = [[rows[label] for label in kind.labels] for kind in board.kinds]
    sizes = (of_world(first["n_ranks"], _job_ranks(first), "rank", "s") for first, *_ in of_kind)
    texts = [
        ", ".join(filter(None, [size, rows[0]["gpu_names"]]))
        for size, rows in zip(sizes, of_kind, strict=True)
    ]
    if len(texts) > 1:
        texts = [f"{_GROUP} {number}: {text}" for number, text in enumerate(texts, 1)]
    return list(zip(board.kinds, of_kind, texts, strict=True))


def headlines(board: Scoreboard) -> list[str]:
    """Return a sentence for each kind of several runs, the one with most runs first; one sentence at least."""
    is_alone = len(board.sides) == 1
    if is_alone and not board.checks.num_rows:
        return [f"{board.reference} is the only run, so there is nothing to compare."]
    kinds = rows_by_kind(board)
    several = sorted((kind for kind in kinds if len(kind[1]) > 1), key=lambda kind: -len(kind[1]))
    if not several:
        checks = {
            row["message"].partition(": ")[0]: row["check"]
            for row in board.checks.to_pylist()
            if row["blocks"]
        }
        whole = [
            what for what, check in checks.items() if check in {UNKNOWN_WORK, UNLIKE}
        ]  # sentences of their own
        facts = [what for what in checks if what not in whole]
        whole = [*([f"the runs have {_listed(facts)}"] if facts else []), *whole]
        why = ", and ".join(whole) or "nsyspipe does not know which runs do the same work"
        n_runs = len(board.sides)
        none = (
            f"No two of the {n_runs} runs can be compared"
            if n_runs > _PAIR
            else "The runs cannot be compared"
        )
        alone = (
            f"{board.reference} is the only run, and its captures do not seem to have one "
            "configuration"
        )
        return [f"{alone if is_alone else none}: {why}."]
    is_open = {UNKNOWN_WORK: (True, False), SHARED_BATCH: (False,)}
    unknown = [
        row for row in board.checks.to_pylist() if row["blocks"] in is_open.get(row["check"], ())
    ]
    unseen = [{row["label"], row["against"]} for row in unknown]
    lines = []
    for one in several:
        caution = " nsyspipe cannot check that these runs do the same work." * any(
            pair.issubset(one[0].labels) for pair in unseen
        )
        lines.append(f"{_headline(board, *one, of_kind=len(kinds) > 1)}{caution}")
    return lines


def _headline(
    board: Scoreboard, kind: Kind, rows: Sequence[Row], kind_text: str, *, of_kind: bool
) -> str:
    by_label = {row["label"]: row for row in rows}
    among = (
        f" in group {kind_text.partition(':')[0].removeprefix(_GROUP).strip()}" if of_kind else ""
    )
    copies = {
        row["label"] for row in board.checks.to_pylist() if row["check"] == "same-capture"
    } | {kind.peer}
    is_compared = (
        board.rules.is_forced or len(rows) == 1 or max(row["n_captures"] for row in rows) > 1
    )
    if not is_compared and by_label.keys() <= copies:
        return f"{_listed(kind.labels)} are the same capture, so there is nothing to compare."
    if kind.best is None:  # no run can be measured against the first
        return _not_ranked(kind, rows, among)
    best = by_label[kind.best]
    tied = f", tied with {_listed(kind.level_with)}" if kind.level_with else ""
    of_all = among or f" of {len(rows)} runs"
    if best["label"] != kind.peer and best["peer_verdict"] != "improvement":
        return f"{_not_sure(best, kind.peer, of_all, rows)}."
    if kind.not_told_from:
        speed = (
            "has the shortest mean step time"
            if best["label"] == kind.peer
            else f"is {_speed(best, kind.peer)}"
        )
        rivals = f"but is not distinguishable from {_listed(kind.not_told_from)}"
        return f"No clear winner{of_all}: {best['label']} {speed}, {rivals}{tied}."
    if best["label"] != kind.peer:
        return f"{best['label']} is the fastest{of_all}: {_speed(best, kind.peer)}{tied}."
    others = [row for row in rows if row is not best and row["peer_speedup"] is not None]
    if not tied and others:
        second = max(others, key=lambda row: row["peer_speedup"])
        tied = f": {second['label']} is {_speed(second, '')}"
    return f"{kind.peer} is the fastest{of_all}{tied}."


def _not_ranked(kind: Kind, rows: Sequence[Row], among: str) -> str:
    """Return why runs of a group are not ranked: the first has no step times, or runs have too few steps."""
    if next(row for row in rows if row["label"] == kind.peer)["peer_speedup"] is None:
        return f"Not ranked{among}: {kind.peer} has no step times."
    few = [row["label"] for row in rows if row["n_summary_steps"] < MIN_STEPS] or [kind.peer]
    have, each = ("have", " each") if len(few) > 1 else ("has", "")
    return f"Not ranked{among}: {_listed(few)} {have} fewer than {MIN_STEPS} measured steps{each}."


def _not_sure(best: Row, peer: str, of_all: str, rows: Sequence[Row]) -> str:
    speed = f"{best['label']} is {_speed(best, peer)}"
    undecided = [row["label"] for row in rows if row["peer_verdict"] == "inconclusive"]
    if best["peer_verdict"] == "no change" and not undecided:
        return f"No run{of_all} is faster than {peer} by the minimum effect: {speed}, unchanged"
    is_open = f"The data do not show whether any run{of_all} is faster than {peer}: {speed}"
    if best["peer_verdict"] == "no change":
        return f"{is_open}, unchanged, and {_listed(undecided)} not distinguishable from {peer}"
    why = f" ({_why(best)})" if _why(best) else ""
    if (best["peer_speedup_low"] or 0) <= 1:
        return f"{is_open}{why}"
    # The means show a difference, but the verdict is of medians, or needs more than a speed-up
    # above 1.
    statistic = best["peer_statistic"] or "median"
    return (
        f"{speed}, but the verdict on the {statistic} step time is "
        f"{verdict_word(best['peer_verdict'])}{why}"
    )


def _why(row: Row) -> str:
    hint = settling_text(
        row["peer_settle_steps"], row["peer_settle_captures"], [row["n_summary_steps"]]
    )
    return ", ".join(filter(None, [row["peer_why"], hint]))


def _speed(row: Row, peer: str) -> str:
    """Return a speed-up with its interval, in as many digits as tell it from both ends: ``1.12x the speed of ddp (1.11 to 1.13)``."""
    low = row["peer_speedup_low"]
    high = row["peer_speedup_high"]
    digits = (
        3
        if low is not None and len({f"{one:.2f}" for one in (low, row["peer_speedup"], high)}) < 3  # noqa: PLR2004
        else 2
    )
    text = (
        f"{_speedup_text(row['peer_speedup'], digits)} "
        f"{f'the speed of {peer}' if peer else 'its speed'}"
    )
    return text if low is None else f"{text} ({low:.{digits}f} to {high:.{digits}f})"


def notes(board: Scoreboard) -> list[str]:
    """Return what to know of the figures: formulas, what a step of more ranks means, what the intervals leave out."""
    rows = board.table.to_pylist()
    effect = percent_text(board.rules.min_effect)
    sure = units.sure_text(board.rules.confidence)
    over = "of the first run of its group" if len(board.kinds) > 1 else f"of {board.reference}"
    speed = (
        f"Speed-up is the mean step time {over} divided by the mean step time of the run, with "
        f"a {sure} confidence interval. "
        "The verdict is the verdict of nsyspipe diff on the median step time (on the mean if "
        "steps are uneven). "
        f"Unchanged means that the whole confidence interval is within ±{effect}."
    )
    has_over_first = any(_has_over_first(board, of_kind) for _, of_kind, _ in rows_by_kind(board))
    over_first = []
    if has_over_first:
        over_first = [
            (
                f"Over the first is the mean step time of {board.reference} divided by the mean "
                "step time of the run."
            )
        ]
    texts = [speed, *over_first, *uneven_notes(board.evenness.items())]
    if len({_job_ranks(row) or row["n_ranks"] for row in rows}) > 1:
        texts.append(
            "The runs have different numbers of ranks. A speed-up compares steps, not samples. "
            "If all ranks have the same batch "
            "size, the speed-up over a run of one rank is the scaling efficiency. If the runs "
            "use only data parallelism, "
            "steps/s x ranks is batches/s."
        )
    for side in board.sides:
        guessed = dict.fromkeys(text for run in side.runs for text in sources(run))
        texts += [f"{side.label}: {', '.join(guessed)}."] if guessed else []
    texts += environment_texts(board)
    texts += [f"Thresholds from {board.settings.file}."] if board.settings.file else []
    return texts + spread_texts(board)


def short_notes(board: Scoreboard) -> list[str]:
    """Return what limits the comparison, and what `-v` adds."""
    thresholds = [f"Thresholds from {board.settings.file}."] if board.settings.file else []
    return [
        *spread_texts(board),
        *thresholds,
        "-v shows more metrics, the formulas and the files that were used.",
    ]


def spread_texts(board: Scoreboard) -> list[str]:
    """Return what confidence intervals leave out if some runs have one capture."""
    rows = board.table.to_pylist()
    single = [side.label for side in board.sides if len(side.runs) == 1]
    has_intervals = any(
        row["peer_speedup_low"] is not None and row["label"] != row["peer"] for row in rows
    )
    if not has_intervals or not single:
        return []
    if len(single) == len(board.sides):
        spread = "the confidence intervals do not include the spread between captures"
        return [
            f"One capture per run: {spread}. Pass several captures of a run with the same LABEL=."
        ]
    verb = "has one capture" if len(single) == 1 else "have one capture each"
    return [
        (
            f"{_listed(single)} {verb}. nsyspipe takes the spread between captures from the runs "
            "with several captures."
        )
    ]


def environment_texts(board: Scoreboard) -> list[str]:
    """Return which training variables differ between runs, and of which runs nothing recorded them."""
    by_variable: dict[str, defaultdict[str, list[str]]] = {}
    for row in board.environments.to_pylist():
        by_variable.setdefault(row["what"], defaultdict(list))[row["value"]].append(row["label"])
    texts = [f"{what} differs: {_by_value(by_value)}." for what, by_value in by_variable.items()]
    unknown = board.without_environment
    if texts and unknown:
        texts.append(f"Environment variables were not recorded for {_listed(unknown)}.")
    return texts


def doubts(board: Scoreboard) -> list[str]:
    """Return what makes comparisons doubtful or undecided, each reason once with the runs that it concerns."""
    undecided, copies = (defaultdict[Any, list[str]](list) for _ in range(2))
    differ = defaultdict[Any, defaultdict[str, list[str]]](lambda: defaultdict(list))
    unlike: dict[str, None] = {}
    for row in board.table.to_pylist():
        if row["peer_why"] and row["peer_speedup"] is not None:
            undecided[_why(row)].append(row["label"])
    is_named = set(chain(*undecided.values())).__contains__
    for row in board.checks.to_pylist():
        if row["check"] == "same-capture":
            copies[row["against"]].extend([] if is_named(row["label"]) else [row["label"]])
            continue
        if row["check"] == UNLIKE or row["label"] == row["against"]:
            unlike[row["message"]] = None
            continue
        is_told = row["check"] == "few-steps" and is_named(row["label"])
        is_parting = (
            row["blocks"] and row["check"] not in _TOLD and len(board.kinds) > 1
        )  # the headings say it
        if not is_told and not is_parting:
            what = row["message"].partition(": ")[0]
            fate = _APART.get(row["check"], "") * (row["blocks"] and not board.rules.is_forced)
            differ[what, row["against"], row["reference_value"], fate][row["value"]].append(
                row["label"]
            )
    return [
        *unlike,
        *_undecided(undecided),
        *(
            f"{_listed([first, *labels])} are the same capture"
            for first, labels in copies.items()
            if labels
        ),
        *(
            f"{what}: {against} {value}, {_by_value(own)}{fate}"
            for (what, against, value, fate), own in differ.items()
        ),
    ]


def _undecided(labels_by_reason: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield which runs have no verdict and why; all that only lack steps in one sentence, which names each once."""
    for why, labels in labels_by_reason.items():
        if TOO_FEW not in why:
            yield f"inconclusive: {_listed(labels)} ({why})"
    of_few = [
        label for why, labels in labels_by_reason.items() if TOO_FEW in why for label in labels
    ]
    if of_few:
        yield f"inconclusive: {_listed(of_few)} (too few steps, {MORE_STEPS})"


def _by_value(labels: Mapping[str, Sequence[str]]) -> str:
    """Return values and the labels of the runs that have them: ``one 1, 2 (ddp2 and pp)``."""
    return _listed(
        f"{value} ({_listed(own)})" if own[1:] else f"{own[0]} {value}"
        for value, own in labels.items()
    )


def scoreboard_document(board: Scoreboard) -> dict[str, Any]:
    """Return the document as plain Python values, in a fixed order; ``captures`` are the run ids of a run."""
    captures = {side.label: [run.header.run_id for run in side.runs] for side in board.sides}
    return {
        "schema_version": SCHEMA_VERSION,
        "tool_version": __version__,
        "reference": board.reference,
        "sort": board.sort,
        "min_effect_pct": round(100 * board.rules.min_effect, 12),
        "confidence": board.rules.confidence,
        "is_forced": board.rules.is_forced,
        "settings_file": board.settings.file,
        "runs": [
            row | {"captures": captures[row["label"]]}
            for row in board.table.drop_columns("run_ids").to_pylist()
        ],
        "kinds": [asdict(kind) for kind in board.kinds],
        "comparability": board.checks.to_pylist(),
        "environments": board.environments.to_pylist(),
        "problems": board.problem_rows,
    }


def identity_of(board: Scoreboard) -> str:
    """Return what tells scoreboards apart, as a hash: the run ids of their runs, in whatever order."""
    return _hashed([run.header.run_id for run in side.runs] for side in board.sides)


def _identity_of_csv(path: Path, board: Scoreboard) -> str | None:
    try:
        there = sorted(
            str(row.get("run_ids"))
            for row in csv.DictReader(io.StringIO(head_of(path, _LARGEST_FILE)))
        )
    except csv.Error:
        return None
    return (
        identity_of(board)
        if there == sorted(map(csv_cell, board.table["run_ids"].to_pylist()))
        else None
    )


def _hashed(captures: Iterable[Iterable[str]]) -> str:
    return hashlib.sha256(
        json.dumps(sorted(sorted(map(str, capture)) for capture in captures)).encode()
    ).hexdigest()


def scoreboard_formats(board: Scoreboard) -> dict[str, Format]:
    """Return how a scoreboard is written in each format, and how a file of it says which runs it is of."""
    formats = formats_of(
        "compare",
        identity_of(board),
        document=partial(scoreboard_document, board),
        identity_in=lambda one: (
            _hashed(row["captures"] for row in one["runs"]) if one["reference"] else None
        ),
        blocks=partial(scoreboard_blocks, board),
        usage="nsyspipe compare RUN RUN ...",
        page=partial(lazily("html.scoreboard_page", "scoreboard_page"), board),
        meta=RUNS,
    )
    text = partial(
        csv_text, board.table.column_names, [row.values() for row in board.table.to_pylist()]
    )
    return formats | {"csv": Format(text, partial(_identity_of_csv, board=board))}
