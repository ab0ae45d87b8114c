"""The verdict of a run: the sentences that stand before all else, and what to change first."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Set
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from nsyspipe.analysis.traffic import bubble_ns_per_step
from nsyspipe.findings.judge import is_conditional, is_wait_included
from nsyspipe.model.problems import MIXED_RUNS
from nsyspipe.report.findings import LITTLE, parts_text, sum_text
from nsyspipe.report.units import ms_text, percent_text
from nsyspipe.report.words import NOT_CLEAR, SEEN, assumed_text, is_replay_clear, rank_step_ns, uneven_text

if TYPE_CHECKING:
    from nsyspipe.run.run import Run

_percent = partial(percent_text, digits=0)
# From this share of communication on waiting is worth a word, and what other compute hides; of step time copies.
_MUCH_WAITING, _OTHER_COMPUTE, _MUCH_COPIES = 0.1, 0.05, 0.05
_NO_VERDICT = "No GPU activity was recorded, so there is nothing to measure."
_WITH_HOST_STEPS = "No GPU activity was recorded: these are host times of the NVTX steps only."
_ONE_STEP = "Only 1 step counts: it may be unlike the others, and nothing here says how much steps vary."
# Why communication is not known, by the problem that says so.
_UNKNOWN_COMM = {
    "comm-in-graphs": "Communication is not known, so what to change could not be judged: CUDA graphs were captured as a whole, "
    "and what runs inside them was not seen. Capture with nsys profile --cuda-graph-trace=node.",
    "no-comm-kernels": "Communication is not known, so what to change could not be judged: no kernel of several ranks is known "
    "to communicate. Name yours with --comm-kernel REGEX.",
}
_OF_WINDOW = {"exposed_wait", "longer_window"}  # the bound of late ranks where more than compute is left


def verdict(run: Run) -> str:
    """Return the sentence for a run's figures, and on lines of their own what goes with it."""
    (summary,) = run.summary().to_pylist()
    severities = {row["code"]: row["severity"] for row in run.problem_rows}
    of_what = "the capture" if run.is_capture else "step time"
    wall = rank_step_ns(run) or 0.0

    def amount(share: float, of: str = "") -> str:
        return f"{ms_text(share * wall)} ({_percent(share)}{of})"

    if not run.header.n_ranks:
        lines = [_WITH_HOST_STEPS if run.host_steps().num_rows else _NO_VERDICT]
    elif not summary["n_summary_steps"] and not run.is_capture:
        lines = ["No step has a window on every rank, so there are no figures for the run."]
    elif summary["comm_share"] is None:
        what = "the time of the capture" if run.is_capture else "the steps' time"
        unknown = f"What {what} goes to is not known: kernels or their names were not recorded."
        lines = [next((why for code, why in _UNKNOWN_COMM.items() if severities.get(code) == "error"), unknown)]
    elif summary["comm_share"] == 0:
        lines = [_without_comm(summary, of_what, amount, hides_idle="graphs-as-a-whole" in severities)]
    else:
        bubble = (bubble_ns_per_step(run.traffic(), run.header.n_ranks) or 0.0) / wall if wall else 0.0
        lines = [" ".join(_with_comm(summary, of_what, severities.keys(), bubble, amount))]
        late = (row for row in run.findings().to_pylist() if row["id"] == "straggler")
        lines += [
            f"{row['action'][0].upper()}{row['action'][1:]}: up to {ms_text(row['saving_ns_per_step'])} of a step{_by_part(row)}."
            for row in late
        ]
    if (evenness := run.evenness()) is not None and evenness.is_uneven:
        lines.append(f"S{uneven_text(evenness)[1:]}.")
    if (n_ranks := run.header.n_ranks) and n_ranks < (world_size := run.header.world_size or 0):
        lines.append(f"Of {n_ranks} of {world_size} ranks only: what the others would change is not known.")
    if summary["n_summary_steps"] == 1 and run.judged_findings().num_rows:
        lines.append(_ONE_STEP)
    if MIXED_RUNS & severities.keys():
        lines.append("Caution: the reports may be of different runs; then nothing said across ranks here holds.")
    return "\n".join(lines)


def _by_part(straggler: Mapping[str, Any]) -> str:
    """Return what the bound of late ranks is made of; its parts sum to it."""
    evidence = json.loads(straggler["evidence"])
    parts, alone = (evidence.get(name) for name in ("saving_ns_per_step_by_part", "lateness_ns_per_step"))
    if not parts or not alone or abs(parts.get("delays", 0.0) / alone - 1) < SEEN:
        return ""
    if "delays" in parts:
        return f" (all delays of a step together, each moment once; the longest by rank {evidence['rank']}: {ms_text(alone)})"
    whose = "that is left with the shortest window" if parts.keys() <= _OF_WINDOW else "that computes least"
    return f" (of the rank {whose}: {sum_text(dict(sorted(parts.items(), key=lambda part: -part[1])))})"


def _with_comm(
    summary: Mapping[str, Any], of_what: str, codes: Set[str], bubble: float, amount: Callable[..., str]
) -> Iterator[str]:
    """Yield how much communication there is, exposed or hidden; and how much of it, in another split, is waiting."""
    hidden, where = summary["backward_overlap_ratio"], "backward"
    if hidden is None:
        why = "what backward launched was not recorded" if "no-launches" in codes else "backward was not marked"
        why = why if of_what == "step time" else "there are no steps to look for backward in"
        hidden, where = summary["overlap_ratio"], f"compute ({why})"
    elif (summary["overlap_ratio"] or 0.0) > hidden + _OTHER_COMPUTE:
        hidden, where = summary["overlap_ratio"], f"compute, {_percent(hidden)} by backward"
    exposed = f"{amount(summary['exposed_comm_share'])} exposed; {_percent(hidden)} hidden by {where}"
    yield f"Communication is {amount(summary['comm_share'])} of {of_what}, {exposed}."
    waits = {"stages": bubble, "ranks": (summary["wait_share"] or 0.0) - bubble}
    if much := {who: share for who, share in waits.items() if share >= _MUCH_WAITING * summary["comm_share"]}:
        said = (f"for other {who} takes {amount(share, f' of {of_what}')}" for who, share in much.items())
        yield f"Of communication, waiting {' and '.join(said)}."


def _without_comm(summary: Mapping[str, Any], of_what: str, amount: Callable[..., str], *, hides_idle: bool) -> str:
    parts = [f"compute is {amount(summary['compute_share'])} of {of_what}"]
    if (summary["exposed_memory_share"] or 0.0) >= _MUCH_COPIES:
        parts.append(f"copies {amount(summary['exposed_memory_share'])}")
    if summary["idle_share"] is not None and not hides_idle:
        parts.append(f"idle {amount(summary['idle_share'])}")
    return f"No communication: {', '.join(parts)}."


def _worth(row: Mapping[str, Any]) -> float:
    limit = json.loads(row["evidence"]).get("replay_limit_ns_per_step", row["expected_ns_per_step"])
    return float(row["saving_ns_per_step"] if limit is None else limit)


def gain_text(findings: pa.Table, step_ns: float | None, median_ns: float | None, *, is_judged: bool) -> str | None:
    """Return what to change first, and whether that is the largest gain, with its worth; that there is little, or none.

    None where nothing was judged. Of `step_ns`, the mean, it is a share; by the median one tells whether a replay is clear.
    """
    rows = [row for row in findings.to_pylist() if row["saving_ns_per_step"]]
    if not is_judged or not step_ns:
        return None
    if not rows:
        return "Nothing to gain: no rule fired that knows a bound in time." if not findings.num_rows else None
    first, saving = rows[0], rows[0]["saving_ns_per_step"]
    most, likely = min(saving / step_ns, 1.0), first["expected_ns_per_step"]
    expected, evidence = "", json.loads(first["evidence"])
    if (limit := evidence.get("replay_limit_ns_per_step")) is not None:
        expected = f", at most {percent_text(limit / step_ns)} with all of it hidden"
    elif likely is not None and likely > 0:
        is_sure = is_replay_clear(evidence, median_ns)
        expected = f", likely {percent_text(likely / step_ns)}{'' if is_sure else f', {NOT_CLEAR}'}"
        expected += f", if {text}" if (text := evidence.get("replay_assumes")) else ""
    parts = f" ({text})" if (text := parts_text(evidence)) else _by_part(first)
    worth = f"up to {ms_text(saving)} ({percent_text(most)}) of each step{parts}{assumed_text(evidence)}{expected}"
    told = (row for row in rows[1:] if likely is None and (row["expected_ns_per_step"] or 0.0) > 0)
    replayed = [row for row in told if is_replay_clear(json.loads(row["evidence"]), median_ns)]
    is_largest = not replayed and not is_wait_included(first) and _worth(first) >= max(map(_worth, rows))
    is_little = all(row["saving_ns_per_step"] < LITTLE * step_ns for row in rows)
    name = "Little to gain" if is_little else "Largest gain" if is_largest else "To change first"
    least = saving if likely is None else likely
    text = f"{name}: {first['action']}: {worth}."
    for row in replayed[:1]:
        text += f" Largest of those replayed: {row['action']}: likely {percent_text(row['expected_ns_per_step'] / step_ns)}."
    # Of what rests on what was not recorded the first; only what links the GPUs is such.
    for row in [row for row in rows[1:] if is_conditional(row) and row["saving_ns_per_step"] > least][:1]:
        share = percent_text(min(row["saving_ns_per_step"] / step_ns, 1.0))
        text += f" Or perhaps: {row['action']}: up to {ms_text(row['saving_ns_per_step'])} ({share})"
        text += "; NCCL_DEBUG=INFO (--nccl-log) tells."
    return text
