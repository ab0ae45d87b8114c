"""The verdict of a run: the sentences that stand before all else, and what to change first."""

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from functools import partial
from typing import Any

import pyarrow.compute as pc

from nsyspipe.analysis.traffic import bubble_ns_per_step
from nsyspipe.model.names import few, ranges
from nsyspipe.model.problems import MIXED_RUNS
from nsyspipe.report.findings import Finding, findings_of, is_little
from nsyspipe.report.units import ms_text, percent_text
from nsyspipe.report.words import NOT_CLEAR, SEEN, rank_step_ns, uneven_text
from nsyspipe.run.run import Run

_percent = partial(percent_text, digits=0)
# From this share of communication on waiting is worth a word, and what other compute hides; of step time copies.
_MUCH_ON_STREAM = 0.1  # of communication
_MUCH_WAITING, _OTHER_COMPUTE, _MUCH_COPIES = 0.1, 0.05, 0.05
_NO_VERDICT = "No GPU activity was recorded, so there is nothing to measure."
_WITH_HOST_STEPS = "No GPU activity was recorded: these are host times of the NVTX steps only."
# Why communication is not known, by the problem that says so.
_UNKNOWN_COMM = {
    "comm-in-graphs": "Communication is not known, so what to change could not be judged: CUDA graphs were captured as a whole, "
    "and what runs inside them was not seen. Capture with nsys profile --cuda-graph-trace=node.",
    "no-comm-kernels": "Communication is not known, so what to change could not be judged: no kernel of several ranks is known "
    "to communicate. Name yours with --comm-kernel REGEX.",
}


def verdict(run: Run) -> str:
    """Return what to change first, the sentence for a run's figures, and on lines of their own what goes with them.

    Where communication is not known, that is said first.
    """
    (summary,) = run.summary().to_pylist()
    severities = {row["code"]: row["severity"] for row in run.problem_rows}
    unrecorded = {row["rank"] for row in run.problem_rows if row["code"] in {"no-kernels", "no-kernel-names"}} - {None}
    of_ranks = f" of rank{'s'[: len(unrecorded) > 1]} {few(ranges(sorted(unrecorded)), 3)}" if unrecorded else ""
    of_what = "the capture" if run.is_capture else "step time"
    wall = rank_step_ns(run) or 0.0
    found, is_known = findings_of(run), summary["comm_share"] is not None
    is_judged = summary["n_summary_steps"] and not run.is_capture and is_known
    gain = gain_text(found, is_whole="not-judged" not in severities) if found or is_judged else []

    def amount(share: float, of: str = "") -> str:
        return f"{ms_text(share * wall)} ({_percent(share)}{of})"

    if not run.header.n_ranks:
        lines = [_WITH_HOST_STEPS if run.host_steps().num_rows else _NO_VERDICT]
    elif not summary["n_summary_steps"] and not run.is_capture:
        why = f": kernels{of_ranks} were not recorded" if unrecorded else ""
        lines = [f"No step has a window on every rank, so there are no figures for the run{why}."]
    elif not is_known:
        what = "the time of the capture" if run.is_capture else "the steps' time"
        unknown = f"What {what} goes to is not known: kernels{of_ranks} or their names were not recorded."
        lines = [next((why for code, why in _UNKNOWN_COMM.items() if severities.get(code) == "error"), unknown)]
    elif summary["comm_share"] == 0:
        lines = [_without_comm(summary, of_what, amount, hides_idle="graphs-as-a-whole" in severities)]
    else:
        bubble = (bubble_ns_per_step(run.traffic(), run.header.n_ranks) or 0.0) / wall if wall else 0.0
        on_stream = _on_compute_stream(run, summary["comm_share"], partial(amount, of=f" of {of_what}"))
        lines = [" ".join([*_with_comm(summary, of_what, severities.keys(), bubble, amount), *on_stream])]
        late = (one for one in found if one.id == "straggler" and one is not _first_bounded(found))
        parts_of = ((one, f"{one.parts and f' ({one.parts})'}{one.assumed}") for one in late)
        lines += [f"{one.headline}: up to {one.saving} of a step{parts}." for one, parts in parts_of]
    if (evenness := run.evenness()) is not None and evenness.is_uneven:
        lines.append(f"S{uneven_text(evenness)[1:]}.")
    if (n_ranks := run.header.n_ranks) and n_ranks < (n_job_ranks := run.header.n_job_ranks or 0):
        lines.append(f"Of {n_ranks} of {n_job_ranks} ranks only: what the others would change is not known.")
    lines = [*gain, *lines] if is_known else [lines[0], *gain, *lines[1:]]
    if MIXED_RUNS & severities.keys():  # before what may be no answer at all
        lines.insert(0, "Caution: the reports may be of different runs; then nothing said across ranks here holds.")
    return "\n".join(lines)


def _first_bounded(findings: Sequence[Finding]) -> Finding | None:
    return next((one for one in findings if one.share), None)


def _with_comm(
    summary: Mapping[str, Any], of_what: str, codes: Set[str], bubble: float, amount: Callable[..., str]
) -> Iterator[str]:
    """Yield how much communication there is, exposed or hidden; and how much of it, in another split, is waiting."""
    hidden, where, rest = summary["backward_overlap_ratio"], "backward", ""
    if hidden is None:
        why = "what backward launched was not recorded" if "no-launches" in codes else "backward was not marked"
        why = "step ranges leave out communication" if "comm-between-steps" in codes else why
        why = why if of_what == "step time" else "there are no steps to look for backward in"
        hidden, where = summary["overlap_ratio"], f"compute ({why})"
    elif (summary["overlap_ratio"] or 0.0) > hidden + _OTHER_COMPUTE:
        hidden, where, rest = summary["overlap_ratio"], "compute", f", backward {_percent(hidden)}"
    exposed = f"{amount(summary['exposed_comm_share'])} exposed; {where} hides {_percent(hidden)} of it{rest}"
    yield f"Communication is {amount(summary['comm_share'])} of {of_what}, {exposed}."
    waits = {"stages": bubble, "ranks": (summary["wait_share"] or 0.0) - bubble}
    if much := {who: share for who, share in waits.items() if share >= _MUCH_WAITING * summary["comm_share"]}:
        said = (f"for other {who} takes {amount(share, f' of {of_what}')}" for who, share in much.items())
        yield f"Of communication, waiting {' and '.join(said)}."


def _on_compute_stream(run: Run, comm_share: float, amount: Callable[..., str]) -> Iterator[str]:
    """Yield how much communication runs on the stream that computes, where that is much of it."""
    steps = run.breakdown()
    on_stream = pc.mean(steps["comm_on_compute_stream_ns"], skip_nulls=False).as_py()
    share = (on_stream or 0.0) / (rank_step_ns(run) or 1.0)
    if share < _MUCH_ON_STREAM * comm_share or not share:
        return
    streams = sorted(set(run.ranks["compute_stream_id"].drop_null().to_pylist()))
    which = f"stream{'s'[: len(streams) > 1]} {few(ranges(streams), 3)}"
    whole = share >= (1 - SEEN) * comm_share
    how_much = "Communication" if whole else f"Of communication {amount(share)}"
    yield f"{how_much} shares {which} with compute: no compute of that stream can run beside it."


def _without_comm(summary: Mapping[str, Any], of_what: str, amount: Callable[..., str], *, hides_idle: bool) -> str:
    parts = [f"compute is {amount(summary['compute_share'])} of {of_what}"]
    if (summary["exposed_memory_share"] or 0.0) >= _MUCH_COPIES:
        parts.append(f"copies and memsets {amount(summary['exposed_memory_share'])}")
    if summary["idle_share"] is not None and not hides_idle:
        parts.append(f"idle {amount(summary['idle_share'])}")
    return f"No communication: {', '.join(parts)}."


def gain_text(findings: Sequence[Finding], *, is_whole: bool = True) -> list[str]:
    """Return what to change first and its worth, and in a second sentence what else there is; nothing without a bound.

    It is the largest gain where no other is worth more, of changes that were replayed a clear one. `is_whole` if all was judged.
    """
    if (first := _first_bounded(findings)) is None:
        nothing = "Nothing to gain was found" + ("" if is_whole else ", as far as it could be judged")
        return [] if findings else [f"{nothing}."]
    bounded = [one for one in findings if one.share]
    worth = f"up to {first.saving} ({percent_text(first.share)}) of each step"
    worth += ", waiting included, which is not known" if first.is_wait_included else ""
    if first.expected and first.is_limit:
        worth += f", {first.gain} if all of it were hidden (replay)"
    elif first.expected and first.worth > 0:
        worth += f", likely {first.gain}"
        worth += "" if first.is_clear else f", {NOT_CLEAR}: within the error of the replay"
    is_gain_told = first.expected and not first.is_limit and first.worth > 0
    if first.assumes and (is_gain_told or first.is_nvlink_assumed):
        worth += f", {first.assumes}"
    replayed = [one for one in bounded if one.expected and not (one.is_limit or one.is_conditional)]
    clear = [one for one in replayed if one.is_clear and one.worth > 0]
    is_largest = not first.is_wait_included and all(one.worth <= first.worth for one in bounded)
    is_largest &= first in clear if replayed else not (first.is_limit or first.refused)
    little = is_little(findings)
    name = "Little to gain" if little else "Largest gain" if is_largest else "To change first"
    level = [one for one in clear if one is not first and first in clear and first.is_level(one)]
    more = [f"Level with it: {one.action}: likely {one.gain}." for one in level[:1]]
    if clear and first not in clear:
        more = [f"Largest clear gain of those replayed: {clear[0].action}: likely {clear[0].gain}."]
    elif not (clear or little or all(one is first for one in replayed)):
        more = ["No change that was replayed is a clear gain."]
    # Of what rests on what was not recorded the first; only what links the GPUs is such.
    for one in [one for one in bounded if one is not first and one.is_conditional and one.share > first.worth][:1]:
        then = f", then likely {one.gain}" if one.expected else ""
        more += [
            f"Or perhaps: {one.action}: up to {one.saving} ({percent_text(one.share)}){then}; nvidia-smi topo -m (--topology) tells."
        ]
    return [f"{name}: {first.action}: {worth}.", *filter(None, [" ".join(more)])]
