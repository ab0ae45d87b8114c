"""What to know of a scoreboard's figures: how they are made, what is doubtful or undecided, what is wrong with runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsyspipe.report.run_words import uneven_text
from nsyspipe.report.scoreboard_words import hint_text, listed
from nsyspipe.units import percent_text

if TYPE_CHECKING:
    from nsyspipe.scoreboard.board import Scoreboard

__all__ = ["doubts", "notes", "troubles"]


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
        is_told = (row["check"] == "few-steps" and row["label"] in named) or row[
            "check"
        ] == "same-capture"
        if not is_told and not (
            row["blocks"] and len(board.kinds) > 1
        ):  # the table is parted by those
            key = what, row["against"], row["reference_value"]
            found.setdefault(key, []).append(f"{row['label']} {row['value']}")
    return [
        *(f"not decided: {listed(labels)} ({why})" for why, labels in undecided.items()),
        *(f"{listed([first, *labels])} are the same capture" for first, labels in copies.items()),
        *(
            f"{what}: {against} {value}; {listed(others)}"
            for (what, against, value), others in found.items()
        ),
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
