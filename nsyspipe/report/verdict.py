"""The verdict of a run in a few lines, for pages and notebooks: what to change first, where the step goes, and what to doubt."""

from __future__ import annotations

from collections.abc import Iterator

from nsyspipe.model.names import listed
from nsyspipe.report import first_screen, overview
from nsyspipe.report.overview import StepPart, StepTime
from nsyspipe.report.units import ms_text, short_percent
from nsyspipe.report.words import mean_step_ns
from nsyspipe.run.run import Run

_MUCH_COPIES = 0.05  # of the step, from which on copies are named


def verdict(run: Run) -> str:
    """Return what to change first, then where the step goes, then what to doubt, a line each.

    Nothing stands before a warning that the reports may come from different runs, or that
    communication is not known.
    """
    step = overview.step_time_of(run)
    if not run.header.n_ranks or step is None:
        return first_screen.headline_of(run, step) + (
            "" if run.header.n_ranks == 0 else _unrecorded(run)
        )
    warnings = list(first_screen.warnings_of(run))
    lines = [first_screen.MIXED] if first_screen.MIXED in warnings else []
    if not _is_known(run):
        lines.append(first_screen.unknown_text(run))
    lines += [*_change_lines(run), *_step_lines(run, step)]
    lines += [line for line in warnings if line != first_screen.MIXED]
    return "\n".join(lines)


def _unrecorded(run: Run) -> str:
    ranks = first_screen.ranks_without_kernels(run)
    return f" Kernels{ranks} were not recorded." if ranks else ""


def _is_known(run: Run) -> bool:
    return run.summary()["comm_share"][0].as_py() is not None


def _change_lines(run: Run) -> Iterator[str]:
    """Yield the first recommendation with what it saves, and why it comes first; or that there is nothing to change."""
    found = overview.recommendations_of(run)
    checks = overview.checks_of(run)
    nothing = first_screen.nothing_text(run, found, checks)
    if nothing is not None:
        yield nothing
    step_ns = mean_step_ns(run.summary().to_pylist()[0])
    if found.first is None or step_ns is None:
        return
    estimate = first_screen.estimate_text(found.first, step_ns)
    yield f"{found.first.finding.action}: {estimate.rstrip('.')}."
    reasons = first_screen.why_first(found)
    yield " ".join([f"{found.first.finding.title}.", *reasons])


def _part_text(part: StepPart) -> str:
    """Return what a part of the step takes: ``compute takes 10.00 ms (50%)``."""
    verb = "take" if part.figure.name == "exposed_memory" else "takes"  # exposed copies are plural
    return f"{part.figure.label.lower()} {verb} {ms_text(part.ns)} ({short_percent(part.share)})"


def _step_lines(run: Run, step: StepTime) -> Iterator[str]:
    """Yield how much of the step is exposed communication; without communication, how much is compute, copies and idle time."""
    (summary,) = run.summary().to_pylist()
    parts = {part.figure.name: part for part in step.parts}
    if not parts or summary["comm_share"] is None:
        return
    whole = "the capture" if run.is_capture else "a step"
    names = ["exposed_comm"] if summary["comm_share"] else ["compute", "idle"]
    if not summary["comm_share"] and parts["exposed_memory"].share >= _MUCH_COPIES:
        names.insert(1, "exposed_memory")
    text = listed(_part_text(parts[name]) for name in names)
    yield " ".join(
        [f"{text[:1].upper()}{text[1:]} of {whole}.", *first_screen.comm_notes(run, summary)]
    )
