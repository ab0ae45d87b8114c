"""The verdict of a run in a few lines, for pages and notebooks.

What to change first, where the time of a step goes, and what to doubt.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from nsyspipe.model.names import listed
from nsyspipe.report import first_screen, overview
from nsyspipe.report.overview import StepPart, StepTime
from nsyspipe.report.units import ms_text, short_percent, upper_first
from nsyspipe.report.words import mean_step_ns
from nsyspipe.run.run import Run

# At this share of the step, copies are named.
_MIN_NAMED_COPIES_SHARE = 0.05


def verdict(run: Run) -> str:
    """Return what to change first, then where the step goes, then what to doubt, a line each.

    Two warnings come before all that: that the reports may come from different runs, and that
    communication is not known. Without ranks or a step time, return only why there is no step time.
    """
    step = overview.step_time_of(run)
    headline = first_screen.headline_of(run, step)
    if not run.header.n_ranks:
        return headline
    if step is None:
        return f"{headline}{_unrecorded(run)}"
    all_warnings = list(first_screen.warnings_of(run))
    mixed_warnings = [warning for warning in all_warnings if warning == first_screen.MIXED]
    other_warnings = [warning for warning in all_warnings if warning != first_screen.MIXED]
    lines = [*mixed_warnings]
    if not _is_comm_known(run):
        lines.append(first_screen.unknown_text(run))
    lines += _change_lines(run)
    lines += _step_lines(run, step)
    lines += other_warnings
    return "\n".join(lines)


def _unrecorded(run: Run) -> str:
    """Return on which ranks kernels were not recorded, as a further sentence. Empty if on none."""
    ranks = first_screen.ranks_without_kernels(run)
    return f" Kernels{ranks} were not recorded." if ranks else ""


def _is_comm_known(run: Run) -> bool:
    shares = run.summary()["comm_share"]
    return shares[0].as_py() is not None


def _change_lines(run: Run) -> Iterator[str]:
    """Yield the first recommendation with its saving, and why it comes first.

    If there is nothing to change, yield that instead.
    """
    recommendations = overview.recommendations_of(run)
    checks = overview.checks_of(run)
    nothing_to_change = first_screen.nothing_text(run, recommendations, checks)
    if nothing_to_change is not None:
        yield nothing_to_change
        return
    first = recommendations.first
    (summary,) = run.summary().to_pylist()
    step_ns = mean_step_ns(summary)
    if first is None or step_ns is None:
        return
    finding = first.finding
    estimate = first_screen.estimate_text(first, step_ns).rstrip(".")
    yield f"{finding.action}: {estimate}."
    reasons = first_screen.why_first(recommendations)
    yield " ".join([f"{finding.title}.", *reasons])


def _step_lines(run: Run, step: StepTime) -> Iterator[str]:
    """Yield how much of the step its main parts take; nothing if communication is not known."""
    (summary,) = run.summary().to_pylist()
    if not step.parts or summary["comm_share"] is None:
        return
    whole = "the capture" if run.is_capture else "a step"
    if run.header.n_ranks > 1:
        whole += ", on its slowest rank"
    texts = map(_part_text, _named_parts(step, summary))
    parts = upper_first(listed(texts))
    notes = first_screen.comm_notes(run, summary)
    yield " ".join([f"{parts} of {whole}.", *notes])


def _named_parts(step: StepTime, summary: Mapping[str, Any]) -> list[StepPart]:
    """Return the parts of the step that the verdict names.

    With communication, it names only exposed communication. Without communication, it names compute
    and idle time, and also copies if they take much of the step.
    """
    part_of_name = {part.figure.name: part for part in step.parts}
    if summary["comm_share"]:
        return [part_of_name["exposed_comm"]]
    copies = part_of_name["exposed_memory"]
    are_copies_large = copies.share >= _MIN_NAMED_COPIES_SHARE
    named_copies = [copies] if are_copies_large else []
    return [part_of_name["compute"], *named_copies, part_of_name["idle"]]


def _part_text(part: StepPart) -> str:
    """Return what a part of the step takes: ``compute takes 10.00 ms (50%)``."""
    # The label of exposed copies is a plural.
    figure = part.figure
    verb = "take" if figure.name == "exposed_memory" else "takes"
    time = f"{ms_text(part.ns)} ({short_percent(part.share)})"
    return f"{figure.label.lower()} {verb} {time}"
