"""What the summaries of a run say alike, whatever they are written in: verdict, subject, columns, idle causes, problems."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from nsyspipe.model.schema import IDLE_CAUSES
from nsyspipe.model.text import printable
from nsyspipe.report.units import absent, ms_text, percent_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pyarrow as pa

    from nsyspipe.analysis.summary import Evenness
    from nsyspipe.run.run import Run


# Heading (of two lines where it is narrow) and figure; the parts of the step come first and sum to it.
RANK_COLUMNS = (
    ("compute", "compute_share"),
    ("exposed\ncomm", "exposed_comm_share"),
    ("exposed\ncopies", "exposed_memory_share"),
    ("idle", "idle_share"),
    ("comm\nin all", "comm_share"),
    ("hidden\nby compute", "overlap_ratio"),
    ("hidden by\nbackward", "backward_overlap_ratio"),
    ("waits for\nothers", "wait_share"),
)


@dataclass(frozen=True)
class SameProblem:
    """A problem that several ranks or reports have alike."""

    severity: str
    message: str
    fix: str | None
    ranks: tuple[int, ...]
    reports: tuple[str, ...]


def subject_parts(run: Run, summary: Mapping[str, Any]) -> list[str]:
    """Return which run, how many ranks, on what, and which steps count; as recorded, not escaped."""
    header = run.header
    of_world = f" of {header.world_size}" if header.world_size not in (None, header.n_ranks) else ""
    plural = "" if header.n_ranks == 1 and not of_world else "s"
    host_steps = run.host_steps()
    if host_steps.num_rows:  # then there are no ranks
        return [header.label, *_host_parts(host_steps, run.step_family, header.world_size)]
    parts = [header.label, f"{header.n_ranks}{of_world} rank{plural}", *header.gpu_names]
    if run.is_capture:
        parts.append("a capture without steps")
    elif header.n_ranks:
        family = f" {run.step_family!r}" if run.step_family else ""
        steps = f"{summary['n_summary_steps']} of {summary['n_steps']} steps{family}"
        skipped = ", ".join(map(str, run.skipped_steps))
        plural = "s" if len(run.skipped_steps) > 1 else ""
        parts.append(f"{steps} (step{plural} {skipped} skipped)" if skipped else steps)
    return parts


def _host_parts(host_steps: pa.Table, family: str | None, world_size: int | None) -> list[str]:
    n_processes = len({(row["report"], row["pid"]) for row in host_steps.to_pylist()})
    what = f" {family!r}" if family else ""
    of_world = f" of {world_size}" if world_size not in (None, n_processes) else ""
    plural = "" if n_processes == 1 and not of_world else "es"
    return [
        f"{n_processes}{of_world} process{plural} without GPU activity",
        f"{host_steps.num_rows} host steps{what}",
    ]


def capture_lengths(run: Run) -> dict[int, int]:
    """Return how long each rank of a capture without steps was captured, ns."""
    rows = run.breakdown().select(["rank", "wall_ns"]).to_pylist()
    return {row["rank"]: row["wall_ns"] for row in rows}


def uneven_text(one: Evenness) -> str:
    """Return ``steps are uneven``, with mean and median, whether any step is like the median, and the pattern."""
    text = f"steps are uneven: mean {ms_text(one.mean)}, median {ms_text(one.median)}"
    if one.is_median_nobodys:
        text += ", which no step takes"
    if one.levels is None or one.n_long is None:
        return text
    levels = short, long = ms_text(one.levels[0]), ms_text(one.levels[1])
    if one.period == _TWO:
        return f"{text}; {short} and {long} in turn"
    if not one.period:
        return f"{text}; two levels, {short} and {long} ({one.n_long} of {one.n_steps} steps)"
    is_long_rarer = 2 * one.n_long <= one.n_steps
    rare, usual = reversed(levels) if is_long_rarer else levels
    every = f"every {_ORDINALS.get(one.period, f'{one.period}th')} step"
    return f"{text}; {every} {_compared(*one.levels, is_longer=is_long_rarer)} ({rare} instead of {usual})"


def _compared(short: float, long: float, *, is_longer: bool) -> str:
    """Return how much longer or shorter a step is; beyond twice as long a percentage is hard to read."""
    if not is_longer:
        return f"is about {percent_text((long - short) / long, 0)} shorter"
    if short > 0 and long < _TWO * short:
        return f"is about {percent_text((long - short) / short, 0)} longer"
    return f"takes about {long / short:.1f} times as long" if short > 0 else "is longer"


def left_out(headings: Sequence[str], shown: Sequence[str]) -> list[str]:
    """Return the line that names the columns for which a terminal is too narrow; none if all are shown."""
    missing = [" ".join(one.split()) for one in headings if one not in shown]
    return [f"Left out for the width: {', '.join(missing)}."] if missing else []


def mean_step_ns(summary: Mapping[str, Any]) -> float | None:
    """Return the mean step time that savings are shares of: of a mean, none can exceed it. None without steps."""
    rate = summary["throughput_steps_per_s"]
    return _NS_PER_S / rate if rate else None


def saving_texts(saving: float | None, step_time_ns: float | None) -> tuple[str, str]:
    """Return a saving in ns, and what share of the mean step time it is."""
    if not saving:
        return absent, absent
    return ms_text(saving), percent_text(saving / step_time_ns if step_time_ns else None)


_NS_PER_S = 1e9
_TWO = 2
_ORDINALS = dict(enumerate(["third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth"], start=3))
# Less than this is shown as nothing, without a sign.
_NOTHING = 0.0005


def expected_text(expected: float | None, step_time_ns: float | None) -> str:
    """Return what a replay expects of a change, as a share of the step time."""
    if expected is None or not step_time_ns:
        return absent
    share = expected / step_time_ns
    return f"~ {percent_text(0.0 if abs(share) < _NOTHING else share)}"


def same_problems(problems: Iterable[Mapping[str, Any]]) -> list[SameProblem]:
    """Join equal problems of several ranks and reports, in the order of the first of each."""
    where: dict[tuple[str, str, str | None], list[Mapping[str, Any]]] = {}
    for row in problems:
        where.setdefault((row["severity"], row["message"], row["fix"]), []).append(row)
    return [
        SameProblem(
            *same,
            ranks=tuple(sorted({row["rank"] for row in rows if row["rank"] is not None})),
            reports=tuple(sorted({row["report"] for row in rows if row["report"] is not None})),
        )
        for same, rows in where.items()
    ]


_LEAST_SHARE, _LEAST_PART = 0.02, 0.001
# Names of calls come from the report; all of CUDA's are shorter.
_LONGEST_NAME = 35


def idle_text(steps: pa.Table, calls: pa.Table) -> str | None:
    """Return what share of step time is idle, and why, the largest cause first.

    None where less than 2 % is idle, or where it is not known. Causes under 0.1 % are left out.
    """
    wall, idle = _total(steps, "wall_ns"), _total(steps, "idle_ns")
    if not wall or idle is None or idle / wall < _LEAST_SHARE:
        return None
    parts = {_word(name): _total(steps, name) for name in IDLE_CAUSES}
    known = {word: part for word, part in parts.items() if part is not None}
    if len(known) < len(parts):  # the other causes are still told apart
        known[" or ".join(word for word in parts if word not in known)] = idle - sum(known.values())
    shown = sorted(known.items(), key=lambda pair: -pair[1])
    texts = [
        f"{word} {percent_text(part / wall)}{_longest_call(calls) if word == 'blocked' else ''}"
        for word, part in shown
        if part / wall >= _LEAST_PART
    ]
    return f"idle {percent_text(idle / wall)}: {', '.join(texts)}"


def _total(steps: pa.Table, column: str) -> int | None:
    total: int | None = pc.sum(steps[column], skip_nulls=False, min_count=1).as_py()
    return total


def _word(column: str) -> str:
    return column.removeprefix("idle_").removesuffix("_ns")


def _longest_call(calls: pa.Table) -> str:
    if not calls.num_rows:
        return ""
    return f" ({printable(calls['call'][0].as_py())[:_LONGEST_NAME]})"


# From this share of communication on, waiting is worth a word.
_MUCH_WAITING = 0.1
# From this share of step time on copies are worth a word, and from this of communication on what other compute hides.
_MUCH_COPIES, _OTHER_COMPUTE = 0.05, 0.05

_NO_VERDICT = "No GPU activity was recorded, so there is nothing to measure."
_WITH_HOST_STEPS = "No GPU activity was recorded: these are host times of the NVTX steps only."
_CAUTION = "Caution: the reports may be of different runs; then nothing said across ranks here holds."
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
    """Return the sentence for a run's figures, and on lines of their own what goes with it."""
    rows = list(problems)
    text = _sentences(
        summary,
        n_ranks,
        findings,
        has_host_steps=has_host_steps,
        of_what="the capture" if is_capture else "step time",
        codes=[row["code"] for row in rows],
        errors=[row["code"] for row in rows if row["severity"] == "error"],
    )
    lines = [text]
    if evenness is not None and evenness.is_uneven:
        lines.append(f"S{uneven_text(evenness)[1:]}.")
    if any(row["code"] in _MIXED for row in rows):
        lines.append(_CAUTION)
    return "\n".join(lines)


def verdict_of(run: Run) -> str:
    """Return `verdict` of a run."""
    return verdict(
        run.summary().to_pylist()[0],
        run.header.n_ranks,
        run.findings().to_pylist(),
        has_host_steps=run.host_steps().num_rows > 0,
        is_capture=run.is_capture,
        problems=run.problems.to_pylist(),
        evenness=run.evenness(),
    )


# Where ranks are missing, waiting for them looks like transfer.
_MISSING = {"ranks-missing", "ranks-not-captured"}


def _sentences(
    summary: Mapping[str, Any],
    n_ranks: int,
    findings: Sequence[Mapping[str, Any]],
    *,
    has_host_steps: bool,
    of_what: str,
    codes: Sequence[str],
    errors: Sequence[str],
) -> str:
    if not n_ranks:
        return _WITH_HOST_STEPS if has_host_steps else _NO_VERDICT
    if not summary["n_summary_steps"] and of_what == "step time":
        return "No step has a window on every rank, so there are no figures for the run."
    if summary["comm_share"] is None:
        return _not_known(of_what, errors)
    if summary["comm_share"] == 0:
        return _without_comm(summary, of_what, hides_idle="graphs-as-a-whole" in codes)
    share, exposed = _percent(summary["comm_share"]), _percent(summary["exposed_comm_share"])
    hidden, where = summary["backward_overlap_ratio"], "backward"
    if hidden is None:
        hidden, where = summary["overlap_ratio"], f"compute ({_why_no_backward(of_what, codes)})"
    elif (summary["overlap_ratio"] or 0.0) > hidden + _OTHER_COMPUTE:
        hidden, where = summary["overlap_ratio"], f"compute, {_percent(hidden)} under backward's"
    share = f"{share} of {of_what}"
    waiting = summary["wait_share"] or 0.0
    if waiting >= _MUCH_WAITING * summary["comm_share"]:
        least = "at least " if _MISSING.intersection(codes) else ""
        share = f"{share} ({least}{_percent(waiting)} waiting for other ranks)"
    text = f"Communication is {share}, {exposed} exposed; {_percent(hidden)} of it hides under {where}."
    late = next((row for row in findings if row["id"] == "straggler"), None)
    if late is None:
        return text
    cost = ms_text(late["saving_ns_per_step"])
    return f"{text}\n{late['action'].capitalize()}: {cost} per step."


def _why_no_backward(of_what: str, codes: Sequence[str]) -> str:
    if of_what != "step time":
        return "there are no steps to look for backward in"
    if "no-launches" in codes:
        return "what backward launched was not recorded"
    return "backward was not marked"


def _without_comm(summary: Mapping[str, Any], of_what: str, *, hides_idle: bool) -> str:
    parts = [f"compute is {_percent(summary['compute_share'])} of {of_what}"]
    if (summary["exposed_memory_share"] or 0.0) >= _MUCH_COPIES:
        parts.append(f"copies {_percent(summary['exposed_memory_share'])}")
    if summary["idle_share"] is not None and not hides_idle:
        parts.append(f"idle {_percent(summary['idle_share'])}")
    return f"No communication: {', '.join(parts)}."


def _not_known(of_what: str, errors: Sequence[str]) -> str:
    """Return what stands in the verdict's place where communication is not known."""
    text = next((_UNKNOWN_COMM[code] for code in _UNKNOWN_COMM if code in errors), None)
    what = "the steps' time" if of_what == "step time" else "the time of the capture"
    return text or f"What {what} goes to is not known: kernels or their names were not recorded."


def _percent(ratio: float | None) -> str:
    return percent_text(ratio, 0)
