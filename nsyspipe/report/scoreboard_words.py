"""What a scoreboard says in words, whatever it is written in: who is fastest, figures with units, what is doubtful."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nsyspipe.comparison.scoreboard import REFERENCE
from nsyspipe.model import text as names_text
from nsyspipe.report.units import (
    absent,
    bandwidth_text,
    bytes_text,
    count_text,
    ms_text,
    percent_text,
    rate_text,
)
from nsyspipe.report.words import uneven_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from nsyspipe.comparison.scoreboard import Kind, Scoreboard


# Names in a list before the rest is counted; and of the figures those that stand there even if no run has them.
_SHOWN, _ASKED_FOR = 4, 7


@dataclass(frozen=True)
class Figure:
    """A column of `tables.SCOREBOARD` with its words; a heading of two lines."""

    column: str
    heading: str
    text: Callable[[Any], str]


# What the steps' time goes to, and what there is room for: first those that an optimization study asks for.
FIGURES = (
    Figure("comm_share", "comm\nin all", percent_text),
    Figure("exposed_comm_share", "exposed\ncomm", percent_text),
    Figure("overlap_ratio", "hidden by\ncompute", percent_text),
    Figure("backward_overlap_ratio", "hidden by\nbackward", percent_text),
    Figure("wait_share", "waits for\nothers", percent_text),
    Figure("dtod_ns_per_step", "DtoD\ncopies", ms_text),
    Figure("message_bytes_per_step", "message\nbytes", bytes_text),
    Figure("idle_share", "idle", percent_text),
    Figure("collectives_per_step", "collectives\nper step", count_text),
    Figure("busbw_bytes_per_s", "bus\nbandwidth", bandwidth_text),
)


def speedup_text(value: float | None, digits: int = 3) -> str:
    """Return a speed-up, ``1.128x``."""
    return absent if value is None else f"{value:.{digits}f}x"


def speedup_interval(row: Mapping[str, Any]) -> str:
    """Return the interval of a run's speed-up over its peer, ``1.121 .. 1.135``; nothing of a reference."""
    low, high = row["peer_speedup_low"], row["peer_speedup_high"]
    if low is None or row["peer"] == row["label"]:
        return absent
    return f"{low:.3f} .. {high:.3f}"


def shown_figures(rows: Sequence[Mapping[str, Any]]) -> list[Figure]:
    """Return the figures that a study asks for, and the others that any run has."""
    return [
        one for at, one in enumerate(FIGURES) if at < _ASKED_FOR or any(row[one.column] is not None for row in rows)
    ]


def rows_by_kind(board: Scoreboard) -> list[tuple[Kind, list[dict[str, Any]]]]:
    """Return the rows of each kind of runs that can be compared with each other, in the order of the table."""
    rows = {row["label"]: row for row in board.table.to_pylist()}
    return [(kind, [rows[label] for label in kind.labels]) for kind in board.kinds]


def main_kind(board: Scoreboard) -> Kind:
    """Return the kind with most runs; of equal ones the one that was named first."""
    return max(board.kinds, key=lambda kind: len(kind.labels))


def kind_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return what runs of a kind have in common: ``4 ranks, NVIDIA H200``."""
    row = rows[0]
    size = row["world_size"] or row["n_ranks"]
    missing = f" of {size}" if row["n_ranks"] != size else ""
    ranks = f"{row['n_ranks']}{missing} rank{'' if size == 1 else 's'}"
    return f"{ranks}, {row['gpu_names']}" if row["gpu_names"] else ranks


def headlines(board: Scoreboard) -> list[str]:
    """Return a sentence for each kind of several runs, the one with most runs first; one sentence at least."""
    found = rows_by_kind(board)
    main = main_kind(board)
    ordered = sorted(found, key=lambda pair: pair[0] is not main)
    told = [pair for pair in ordered if len(pair[0].labels) > 1] or ordered[:1]
    if len(board.sides) > 1 and len(told[0][0].labels) == 1:
        return [f"No two of {len(board.sides)} runs can be compared: {_why_alone(board)}."]
    of_kind = len(found) > 1
    return [_headline(board, kind, rows, of_kind=of_kind) for kind, rows in told]


def _headline(board: Scoreboard, kind: Kind, rows: Sequence[dict[str, Any]], *, of_kind: bool) -> str:
    by_label = {row["label"]: row for row in rows}
    among = f" on {kind_text(rows)}" if of_kind else ""
    if len(board.sides) == 1:
        return f"{kind.peer} is the only run: there is nothing to compare it with."
    if kind.best is None:
        return f"Which of {len(rows)} runs{among} is fastest cannot be said: {_undecided(kind.peer, rows)}."
    best = by_label[kind.best]
    level = f", level with {listed(kind.level_with)} in step time" if kind.level_with else ""
    of_all = among or f" of {len(rows)} runs"
    if best["label"] != kind.peer and best["peer_verdict"] != "improvement":
        return f"{_not_sure(best, kind.peer, of_all, rows)}."
    if kind.not_told_from:
        return _open_text(kind, best, f"{len(rows)} runs{among}", level)
    if best["label"] != kind.peer:
        return f"{best['label']} is the fastest{of_all}: {_speed(best, kind.peer)}{level}."
    others = [row for row in rows if row is not best and row["peer_speedup"] is not None]
    if not level and others:
        second = max(others, key=lambda row: row["peer_speedup"])
        level = f": {second['label']} is {_speed(second, 'it')}"
    return f"{kind.peer} is the fastest{of_all}{level}."


def _open_text(kind: Kind, best: Mapping[str, Any], runs: str, level: str) -> str:
    """Return whom these steps do not tell the best from, so that none is called the fastest."""
    is_peer = best["label"] == kind.peer
    speed = "has the shortest mean step time" if is_peer else f"is {_speed(best, kind.peer)}"
    apart = f"not told apart from {listed(kind.not_told_from)} by these steps"
    return f"Which of {runs} is fastest is open: {best['label']} {speed}, {apart}{level}."


def _not_sure(best: Mapping[str, Any], peer: str, of_all: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return that the run with the largest speed-up is not judged faster, and why."""
    speed = f"{best['label']} is {_speed(best, peer)}"
    undecided = [row["label"] for row in rows if row["peer_verdict"] == "inconclusive"]
    if best["peer_verdict"] == "no change" and undecided:
        apart = f"{listed(undecided)} not told apart from it by these steps"
        return f"Whether any run{of_all} is faster than {peer} is open: {speed}, no change; {apart}"
    if best["peer_verdict"] == "no change":
        return f"No run{of_all} is faster than {peer} by what counts: {speed}, no change"
    more = "; ".join(one for one in (best["peer_why"], hint_text(best)) if one)
    why = f"; {more}" if more else ""
    low = best["peer_speedup_low"]
    if low is not None and low > 1:
        # Means say so, and the verdict is of medians, or asks for more than a speed-up above 1.
        of = f"its {best['peer_statistic'] or 'median'} step time is {best['peer_verdict']}"
        return f"{speed}, but {of}{why}"
    return f"Whether any run{of_all} is faster than {peer} is open: {speed}{why}"


def hint_text(row: Mapping[str, Any]) -> str:
    """Return about how many more steps or captures would settle a run's verdict; nothing where that is not known."""
    steps, captures = row["peer_settle_steps"], row["peer_settle_captures"]
    by_captures = f"about {captures} captures of each" if captures else ""
    by_steps = f"about {steps} steps per capture" if steps else ""
    is_fewer = bool(captures and steps) and captures * row["n_summary_steps"] < steps
    both = [by_captures, by_steps] if is_fewer else [by_steps, by_captures]
    said = ", or ".join(one for one in both if one)
    return f"{said} would settle it" if said else ""


def _speed(row: Mapping[str, Any], peer: str) -> str:
    """Return a speed-up with its interval, in as many digits as tell its ends apart: ``1.12x of ddp (1.11 to 1.13)``."""
    low, high = row["peer_speedup_low"], row["peer_speedup_high"]
    if low is None:
        return f"{speedup_text(row['peer_speedup'], 2)} of {peer}"
    digits = 3 if f"{low:.2f}" == f"{high:.2f}" else 2
    text = speedup_text(row["peer_speedup"], digits)
    return f"{text} of {peer} ({low:.{digits}f} to {high:.{digits}f})"


def _undecided(peer: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return why nobody can be measured against the first: it has too few steps."""
    first = next(row for row in rows if row["label"] == peer)
    if first["peer_speedup"] is None:
        return f"{peer} has no step times"
    return next((row["peer_why"] for row in rows if row["peer_why"]), f"{peer} has too few steps")


def _why_alone(board: Scoreboard) -> str:
    checks = [row["message"].partition(": ")[0] for row in board.checks.to_pylist() if row["blocks"]]  # fmt: skip
    return f"they differ in {listed(list(dict.fromkeys(checks)))}"


def step_texts(row: Mapping[str, Any]) -> tuple[str, str]:
    """Return a run's step time and throughput."""
    return ms_text(row["step_time_ns"]), rate_text(row["throughput_steps_per_s"])


def verdict_word(row: Mapping[str, Any]) -> str:
    """Return a run's verdict within its kind."""
    return REFERENCE if row["peer"] == row["label"] else str(row["peer_verdict"])


def listed(names: Iterable[str]) -> str:
    """Return names of runs as `text.listed` does, the first few."""
    return names_text.listed(names, most=_SHOWN)


def notes(board: Scoreboard) -> list[str]:
    """Return what to know of the figures: formulas, what a step of more ranks means, what the intervals leave out."""
    rows = board.table.to_pylist()
    effect, sure = percent_text(board.rules.min_effect), percent_text(board.rules.confidence, 0)
    over = "of the first run of its kind" if len(board.kinds) > 1 else f"of {board.reference}"
    speed = (
        f"Speed-up: mean step time {over} / that of the run, with its {sure} interval; verdict: as nsyspipe diff "
        f"judges the step time (median; mean where steps are uneven), no change: all of its interval within {effect}."
    )
    found = [speed]
    for label, captures in board.evenness.items():
        uneven = [one for one in captures if one.is_uneven]
        if uneven:
            found.append(f"{label}: {uneven_text(uneven[0])}.")
    if len({row["world_size"] or row["n_ranks"] for row in rows}) > 1:
        found.append(
            "Runs differ in ranks: speed-ups compare steps, whatever a step processes. With one batch size per rank, "
            "that over a run of one rank is the scaling efficiency, and steps/s x ranks the throughput in samples."
        )
    if board.rules.settings_file is not None:
        found.append(f"Thresholds from {board.rules.settings_file}.")
    if all(len(side.runs) == 1 for side in board.sides) and len(rows) > 1:
        found.append(
            "One capture per run: the spread between captures is not in the intervals; several captures of a run share "
            "a LABEL=."
        )
    single = [side.label for side in board.sides if len(side.runs) == 1]
    if 0 < len(single) < len(board.sides):
        verb = "has one capture" if len(single) == 1 else "have one capture each"
        found.append(
            f"{listed(single)} {verb}: against a run of several, the spread between captures is taken from that run."
        )
    return found


def doubts(board: Scoreboard) -> list[str]:
    """Return what makes comparisons doubtful or undecided, each reason once with the runs that it concerns."""
    undecided: dict[str, list[str]] = {}
    for row in board.table.to_pylist():
        if row["peer_why"] and row["peer_speedup"] is not None:
            why = "; ".join(one for one in (row["peer_why"], hint_text(row)) if one)
            undecided.setdefault(why, []).append(row["label"])
    named = {label for labels in undecided.values() for label in labels}
    checks = board.checks.to_pylist()
    copies: dict[str, list[str]] = {}
    for row in checks:
        if row["check"] == "same-capture":
            copies.setdefault(row["against"], []).append(row["label"])
    found: dict[tuple[str, str, str], list[str]] = {}
    for row in checks:
        what = row["message"].partition(": ")[0]
        is_told = (row["check"] == "few-steps" and row["label"] in named) or row["check"] == "same-capture"
        if not is_told and not (row["blocks"] and len(board.kinds) > 1):  # the table is parted by those
            key = what, row["against"], row["reference_value"]
            found.setdefault(key, []).append(f"{row['label']} {row['value']}")
    return [
        *(f"not decided: {listed(labels)} ({why})" for why, labels in undecided.items()),
        *(f"{listed([first, *labels])} are the same capture" for first, labels in copies.items()),
        *(f"{what}: {against} {value}; {listed(others)}" for (what, against, value), others in found.items()),
    ]


def troubles(board: Scoreboard) -> list[tuple[str, str, str, str | None]]:
    """Return errors and warnings of the runs, equal ones once: severity, message, the runs, fix."""
    found: dict[tuple[str, str, str | None], list[str]] = {}
    for row in board.problems.to_pylist():
        if row["severity"] != "info":
            found.setdefault((row["severity"], row["message"], row["fix"]), []).append(row["label"])
    return [
        (severity, message, listed(list(dict.fromkeys(labels))), fix)
        for (severity, message, fix), labels in found.items()
    ]
