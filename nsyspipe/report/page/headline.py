"""The first lines of a run's page: what it is, what its step time goes to, and its key figures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from nsyspipe.report.findings_text import link_text
from nsyspipe.report.idle_text import idle_text
from nsyspipe.report.run_words import subject_parts
from nsyspipe.report.verdict import verdict
from nsyspipe.units import ms_text, percent_text, rate_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nsyspipe.run import Run

__all__ = ["Tile", "facts", "key_figures", "verdict_lines", "why_lines"]

# Which problems explain that a figure is null, the most telling first.
_CAUSES = {
    "step_time_ns": ("no-steps", "no-common-step", "no-gpu-activity", "captured-without-gpu"),
    "comm_share": ("comm-in-graphs", "no-comm-kernels", "no-kernels", "no-kernel-names"),
    "exposed_comm_share": ("comm-in-graphs", "no-comm-kernels", "no-kernels", "no-kernel-names"),
    "backward_overlap_ratio": (
        "comm-in-graphs",
        "no-comm-kernels",
        "no-backward",
        "no-steps",
        "no-nvtx",
        "no-launches",
        "no-kernels",
    ),
    "wait_share": (
        "different-runs",
        "unmatched-collectives",
        "no-common-clock",
        "comm-in-graphs",
        "no-comm-kernels",
        "no-kernels",
        "no-kernel-names",
    ),
    "idle_share": ("no-kernels", "no-memcpy", "no-memset"),
    "exposed_memory_share": ("no-memcpy", "no-memset", "no-kernels"),
}
_LONGEST_REASON = 90
# From this share of step time on, idle time is worth a line on the first screen.
_MUCH_IDLE = 0.05
_ONE_STEP = "these figures rest on one step: capture ten or more before trusting small differences"


@dataclass(frozen=True)
class Tile:
    """One key figure as words.

    Attributes
    ----------
    missing
        Instead of a figure: ``not recorded``, or a dash where there is nothing to record; `meaning` then says why.
    category
        Of the palette.
    """

    name: str
    value: str
    unit: str
    meaning: str
    missing: str | None = None
    category: str | None = None


def verdict_lines(run: Run) -> list[str]:
    """Return the verdict, a sentence per line, as the terminal says it."""
    findings = run.findings().to_pylist()
    text = verdict(
        run.summary().to_pylist()[0],
        run.header.n_ranks,
        findings,
        has_host_steps=run.host_steps().num_rows > 0,
        is_capture=run.is_capture,
        problems=run.problems.to_pylist(),
        evenness=run.evenness(),
    )
    return text.split("\n")


def why_lines(run: Run) -> list[str]:
    """Return what stands behind the verdict: the link, why devices idle, and that one step is not much."""
    texts = [link_text(run.link)]
    if (run.summary()["idle_share"][0].as_py() or 0.0) >= _MUCH_IDLE:
        texts.append(idle_text(run.breakdown(), run.idle_calls()))
    if run.summary()["n_summary_steps"][0].as_py() == 1:
        texts.append(_ONE_STEP)
    return [f"{text[0].upper()}{text[1:]}." for text in texts if text]


def facts(run: Run) -> list[str]:
    """Return which run this is, on what, captured when, and which steps count."""
    _, *parts = subject_parts(run, run.summary().to_pylist()[0])
    hosts = run.header.hosts
    more = [f"{len(hosts)} hosts" if len(hosts) > 2 else ", ".join(hosts)] if hosts else []  # noqa: PLR2004 - two fit
    captured = run.header.captured_at_utc
    if captured:
        more.append(f"captured {captured[:10]} {captured[11:16]} UTC")
    return [*parts, *more]


def key_figures(run: Run) -> list[Tile]:
    """Return the figures of the first screen; one that is null says why."""
    summary = run.summary().to_pylist()[0]
    reasons = _reasons(run)
    n_steps = summary["n_summary_steps"]
    of_what = "the capture" if run.is_capture else "step time"
    over = f"slowest rank, median of {n_steps} steps" if n_steps > 1 else "slowest rank of the step"

    def tile(name: str, figure: str, text: str, meaning: str, category: str | None = None) -> Tile:
        value, _, unit = text.rpartition(" ")
        if summary[figure] is not None:
            return Tile(name, value, unit, meaning, None, category)
        if nothing := _why_nothing(figure, run, summary):
            return Tile(name, value, unit, nothing, "\N{EN DASH}", category)
        why = _why_null(figure, summary, reasons)
        return Tile(name, value, unit, why, "not recorded", category)

    def share(name: str, figure: str, meaning: str, category: str | None = None) -> Tile:
        return tile(name, figure, percent_text(summary[figure]), meaning, category)

    dtod = pc.sum(run.breakdown()["dtod_ns"], skip_nulls=False, min_count=1).as_py()
    dtod = dtod if run.is_capture else summary["dtod_ns_per_step"]
    copies = f"DtoD, exposed or not: {ms_text(dtod)}"
    pooled = ", all ranks pooled" if run.header.n_ranks > 1 else ""
    return [
        tile("Step time", "step_time_ns", ms_text(summary["step_time_ns"]), over),
        tile("Throughput", "throughput_steps_per_s", rate_text(summary["throughput_steps_per_s"]), "1 / mean step time"),
        share("Communication", "comm_share", f"of {of_what}{pooled}"),
        share("Exposed", "exposed_comm_share", f"of {of_what}, beside no compute", "exposed"),
        share("Hidden", "backward_overlap_ratio", "of communication, by backward", "hidden"),
        share("Waiting", "wait_share", f"of {of_what}, for late ranks", "waiting"),
        share("Idle", "idle_share", f"of {of_what}{pooled}", "idle"),
        share("Exposed copies", "exposed_memory_share", f"of {of_what}; {copies}", "copies"),
    ]  # fmt: skip


def _reasons(run: Run) -> dict[str, str]:
    return {row["code"]: row["message"] for row in reversed(run.problems.to_pylist())}


def _why_nothing(figure: str, run: Run, summary: Mapping[str, Any]) -> str | None:
    """Return why there is nothing that could have been recorded; None if there is."""
    if figure == "wait_share" and run.header.n_ranks == 1:
        return "one rank: there is nobody to wait for"
    if figure in {"wait_share", "backward_overlap_ratio"} and summary["comm_share"] == 0:
        return "there is no communication"
    return None


def _why_null(figure: str, summary: Mapping[str, Any], reasons: Mapping[str, str]) -> str:
    if not summary["n_summary_steps"] and "no-steps" not in reasons:
        figure = "step_time_ns"
    codes = _CAUSES.get(figure, _CAUSES["step_time_ns"])
    text = next((reasons[code] for code in codes if code in reasons), "see Problems")
    text = text.partition(": ")[0]  # what is missing; which answers that costs is seen
    return text if len(text) <= _LONGEST_REASON else f"{text[: _LONGEST_REASON - 3].rstrip()}..."
