"""One sentence that says what a run's step time goes to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nsyspipe.report.run_words import uneven_text
from nsyspipe.units import ms_text, percent_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from nsyspipe.statistics import Evenness

__all__ = ["verdict"]

# From this share of communication on, waiting is worth a word.
_MUCH_WAITING = 0.1
# From this share of step time on copies are worth a word, and from this of communication on what other compute hides.
_MUCH_COPIES, _OTHER_COMPUTE = 0.05, 0.05

_NOTHING = "No GPU activity was recorded, so there is nothing to measure."
_WITH_HOST_STEPS = "No GPU activity was recorded: these are host times of the NVTX steps only."
_CAUTION = (
    "Caution: the reports may be of different runs; then nothing said across ranks here holds."
)
# Why communication is not known, by the problem that says so.
_UNKNOWN_COMM = {
    "comm-in-graphs": "Communication is not known: CUDA graphs were captured as a whole, and what communicates inside "
    "them was not seen. Capture with nsys profile --cuda-graph-trace=node.",
    "no-comm-kernels": "Communication is not known: no kernel of several ranks is known to communicate. "
    "Name yours with --comm-kernel REGEX.",
}
_MIXED = ("different-runs", "more-ranks-than-world")


def verdict(
    summary: Mapping[str, Any],
    n_ranks: int,
    findings: Sequence[Mapping[str, Any]] = (),
    *,
    has_host_steps: bool = False,
    is_capture: bool = False,
    problems: Iterable[Mapping[str, Any]] = (),
    evenness: Evenness | None = None,
) -> str:
    """Return the sentence for a run's figures, and on lines of their own what goes with it.

    Parameters
    ----------
    summary
        The one row of `schema.SUMMARY`.
    findings
        Rows of `schema.FINDINGS`: a straggler belongs to the verdict, since the others' figures follow from it.
    has_host_steps
        Whether a run without ranks has steps on its hosts.
    is_capture
        Whether the figures are of the capture as a whole, since there are no steps.
    problems
        Rows of `schema.PROBLEMS`: that reports may be of different runs makes figures of them doubtful.
    evenness
        Of the step times: of uneven ones neither mean nor median says all.
    """
    rows = list(problems)
    text = _sentences(
        summary,
        n_ranks,
        findings,
        has_host_steps=has_host_steps,
        of_what="the capture" if is_capture else "step time",
        errors=[row["code"] for row in rows if row["severity"] == "error"],
    )
    lines = [text]
    if evenness is not None and evenness.is_uneven:
        lines.append(f"S{uneven_text(evenness)[1:]}.")
    if any(row["code"] in _MIXED for row in rows):
        lines.append(_CAUTION)
    return "\n".join(lines)


def _sentences(
    summary: Mapping[str, Any],
    n_ranks: int,
    findings: Sequence[Mapping[str, Any]],
    *,
    has_host_steps: bool,
    of_what: str,
    errors: Sequence[str],
) -> str:
    if not n_ranks:
        return _WITH_HOST_STEPS if has_host_steps else _NOTHING
    if not summary["n_summary_steps"] and of_what == "step time":
        return "No step has a window on every rank, so there are no figures for the run."
    if summary["comm_share"] is None:
        return _not_known(of_what, errors)
    if summary["comm_share"] == 0:
        return _without_comm(summary, of_what)
    share, exposed = _percent(summary["comm_share"]), _percent(summary["exposed_comm_share"])
    hidden, where = summary["backward_overlap_ratio"], "backward"
    if hidden is None:
        hidden, where = summary["overlap_ratio"], "compute (backward was not marked)"
    elif (summary["overlap_ratio"] or 0.0) > hidden + _OTHER_COMPUTE:
        hidden, where = summary["overlap_ratio"], f"compute, {_percent(hidden)} under backward's"
    share = f"{share} of {of_what}"
    waiting = summary["wait_share"] or 0.0
    if waiting >= _MUCH_WAITING * summary["comm_share"]:
        share = f"{share} ({_percent(waiting)} waiting for other ranks)"
    text = f"Communication is {share}, {exposed} exposed; {_percent(hidden)} of it hides under {where}."
    late = next((row for row in findings if row["id"] == "straggler"), None)
    if late is None:
        return text
    cost = ms_text(late["saving_ns_per_step"])
    return f"{text}\n{late['action'].capitalize()}: {cost} per step."


def _without_comm(summary: Mapping[str, Any], of_what: str) -> str:
    parts = [f"compute is {_percent(summary['compute_share'])} of {of_what}"]
    if (summary["exposed_memory_share"] or 0.0) >= _MUCH_COPIES:
        parts.append(f"copies {_percent(summary['exposed_memory_share'])}")
    if summary["idle_share"] is not None:
        parts.append(f"idle {_percent(summary['idle_share'])}")
    return f"No communication: {', '.join(parts)}."


def _not_known(of_what: str, errors: Sequence[str]) -> str:
    """Return what stands in the verdict's place where communication is not known."""
    text = next((_UNKNOWN_COMM[code] for code in _UNKNOWN_COMM if code in errors), None)
    what = "the steps' time" if of_what == "step time" else "the time of the capture"
    return text or f"What {what} goes to is not known: kernels or their names were not recorded."


def _percent(ratio: float | None) -> str:
    return percent_text(ratio, 0)
