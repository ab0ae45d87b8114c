"""What the summaries of a run say alike, whatever they are written in: subject, columns, problems."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nsyspipe.units import absent, ms_text, percent_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pyarrow as pa

    from nsyspipe.run import Run
    from nsyspipe.statistics import Evenness

__all__ = [
    "RANK_COLUMNS",
    "SameProblem",
    "capture_lengths",
    "expected_text",
    "left_out",
    "mean_step_ns",
    "same_problems",
    "saving_texts",
    "subject_parts",
    "uneven_text",
]

# Heading and figure; the parts of the step come first and sum to it.
RANK_COLUMNS = (
    ("compute", "compute_share"),
    ("exposed comm", "exposed_comm_share"),
    ("exposed copies", "exposed_memory_share"),
    ("idle", "idle_share"),
    ("comm in all", "comm_share"),
    ("hidden by compute", "overlap_ratio"),
    ("hidden by backward", "backward_overlap_ratio"),
    ("waits for others", "wait_share"),
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
    """Return which run, how many ranks, on what, and which steps count; as recorded, not escaped.

    Parameters
    ----------
    summary
        The one row of `schema.SUMMARY`.
    """
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
_ORDINALS = {
    3: "third",
    4: "fourth",
    5: "fifth",
    6: "sixth",
    7: "seventh",
    8: "eighth",
    9: "ninth",
    10: "tenth",
}
# Less than this is shown as nothing, without a sign.
_NOTHING = 0.0005


def expected_text(expected: float | None, step_time_ns: float | None) -> str:
    """Return what a replay expects of a change, as a share of the step time."""
    if expected is None or not step_time_ns:
        return absent
    share = expected / step_time_ns
    return f"~ {percent_text(0.0 if abs(share) < _NOTHING else share)}"


def same_problems(problems: Iterable[Mapping[str, Any]]) -> list[SameProblem]:
    """Join equal problems of several ranks and reports, in the order of the first of each.

    Parameters
    ----------
    problems
        Rows of `schema.PROBLEMS`.
    """
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
