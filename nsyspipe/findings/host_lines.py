"""The line of Python at which the host was while its GPU idled, as evidence of a finding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.analysis.host_lines import MIN_SAMPLES
from nsyspipe.findings.model import Evidence, Finding, select_rows
from nsyspipe.model.python_files import NOT_SEEN

# What the samples of a finding are of: a middle part of names of columns in `schema.HOST_LINES`.
_CAUSE_OF_FINDING = {
    "input-bound": "input",
    "launch-bound": "launch",
    "sync-bound": "blocked",
    "straggler": "idle",
}
# Findings that a line of Python can explain.
NAMING_LINES = frozenset(_CAUSE_OF_FINDING)
# A line with a smaller share of the samples, or of the steps, is not the reason by itself.
MIN_SHARE_OF_SAMPLES = 0.5
MIN_SHARE_OF_STEPS = 0.5
# A late rank is late because its GPU idles, if that is this part of the delays.
MIN_PART_OF_LATENESS = 0.5
_IDLE_COLUMNS = ("idle_input_ns", "idle_launch_ns", "idle_blocked_ns")
# Values of `schema.HOST_LINES`, column ``frame``.
_PROGRAM = "program"
_INNERMOST = "innermost"
# Figures of a finding: the line of the program, and the innermost line if that is another one.
HOST_LINE = "host_line"
INNERMOST_LINE = "innermost_line"
# Why the line is not known, although it may have been recorded.
LINE_UNKNOWN = "host_line_unknown"
LEFT_OUT = "lines were left out on request (--no-lines)"
TOO_FEW = "too few samples"
NO_MAIN_LINE = "no line has most of the samples"
NOT_SEEN_IN_TIME = "a call in C held Python's lock (GIL), so no sample could be taken"
NOT_WHY_LATE = "the rank is not late because its GPU is idle"


class _Line(NamedTuple):
    """One line of Python in the samples of a cause."""

    file: str
    line: int
    function: str
    n_samples: int
    n_steps: int


def line_figures(evidence: Evidence, name: str, finding: Finding) -> Mapping[str, Any]:
    """Return the line of Python that a finding names, or why it is not known.

    The result is empty for a finding that no line explains, and without samples. The line is the
    innermost line of the user's program with most samples in the idle time in question. It needs
    half of these samples, and half of the steps. If the program has no such line, it is the
    innermost line of all.
    """
    cause = _CAUSE_OF_FINDING.get(name)
    rows = evidence.host_lines
    if cause is not None and evidence.are_lines_left_out:
        return {LINE_UNKNOWN: LEFT_OUT}
    if cause is None or not rows.num_rows:
        return {}
    rank = _rank_of(evidence, finding)
    if rank is not None:
        rows = select_rows(rows, "rank", rank)
    if not rows.num_rows or rows["n_idle_samples"].null_count:
        return {}
    if name == "straggler" and not _is_late_by_idling(evidence, rank, finding):
        return {LINE_UNKNOWN: NOT_WHY_LATE}
    return _figures_of_rows(evidence, rows, cause, rank)


def _rank_of(evidence: Evidence, finding: Finding) -> int | None:
    """Return the rank that a finding is about; None for all."""
    if evidence.n_ranks == 1:
        return None
    rank: int | None = finding.evidence.get("rank")
    return rank


def _is_late_by_idling(evidence: Evidence, rank: int | None, finding: Finding) -> bool:
    """Tell whether the GPU of a late rank idles for its host longer than the other GPUs do."""
    lateness_ns = finding.evidence.get("lateness_ns_per_step")
    steps = evidence.steps
    if rank is None or not lateness_ns:
        return False
    idle_ns = pa.array([0] * steps.num_rows, pa.int64())
    for column in _IDLE_COLUMNS:
        idle_ns = pc.add(idle_ns, steps.column(column))
    is_of_rank = pc.equal(steps["rank"], rank)
    of_rank_ns = pc.mean(idle_ns.filter(is_of_rank)).as_py()
    of_others_ns = pc.mean(idle_ns.filter(pc.invert(is_of_rank))).as_py()
    if of_rank_ns is None or of_others_ns is None:
        return False
    longer_ns = of_rank_ns - of_others_ns
    return bool(longer_ns >= MIN_PART_OF_LATENESS * lateness_ns)


def _figures_of_rows(
    evidence: Evidence, rows: pa.Table, cause: str, rank: int | None
) -> dict[str, Any]:
    """Return the line that most samples of a cause are at, or why it is not known."""
    steps = evidence.steps if rank is None else select_rows(evidence.steps, "rank", rank)
    n_steps = steps.num_rows
    # Each sample has one innermost line.
    of_all = select_rows(rows, "frame", _INNERMOST)
    n_samples = pc.sum(of_all[f"n_{cause}_samples"]).as_py() or 0
    if n_samples < MIN_SAMPLES:
        return {LINE_UNKNOWN: TOO_FEW}
    innermost = _main_line(rows, _INNERMOST, cause)
    line = _main_line(rows, _PROGRAM, cause)
    has_line_of_program = line is not None and _is_main(line, n_samples, n_steps)
    if not has_line_of_program:
        line = innermost
    if line is None or not _is_main(line, n_samples, n_steps):
        return {LINE_UNKNOWN: NO_MAIN_LINE}
    if line.file == NOT_SEEN:
        return {LINE_UNKNOWN: NOT_SEEN_IN_TIME}
    totals = {"n_of_samples": n_samples, "n_of_steps": n_steps}
    figures: dict[str, Any] = {HOST_LINE: line._asdict() | totals}
    if innermost is not None and innermost[:3] != line[:3]:
        figures[INNERMOST_LINE] = innermost._asdict() | totals
    return figures


def _is_main(line: _Line, n_samples: int, n_steps: int) -> bool:
    """Tell whether a line has half of the samples, and samples in half of the steps."""
    has_samples = line.n_samples >= MIN_SHARE_OF_SAMPLES * n_samples
    return has_samples and line.n_steps >= MIN_SHARE_OF_STEPS * n_steps


def _main_line(rows: pa.Table, frame: str, cause: str) -> _Line | None:
    """Return the line with most samples of a cause, the first in the alphabet of equal ones."""
    keys = ["file", "line", "function"]
    samples = f"n_{cause}_samples"
    steps = f"n_{cause}_steps"
    of_frame = select_rows(rows, "frame", frame)
    by_line = of_frame.group_by(keys, use_threads=False)
    sums = by_line.aggregate([(samples, "sum"), (steps, "sum")])
    if not sums.num_rows:
        return None
    in_alphabet = [(key, "ascending") for key in keys]
    first = sums.sort_by([(f"{samples}_sum", "descending"), *in_alphabet]).slice(0, 1)
    (row,) = first.to_pylist()
    return _Line(
        file=row["file"],
        line=row["line"],
        function=row["function"],
        n_samples=row[f"{samples}_sum"],
        n_steps=row[f"{steps}_sum"],
    )
