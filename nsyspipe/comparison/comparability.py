"""Whether two sides can be compared, and other reasons to doubt a comparison."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, combinations
from typing import Any, NamedTuple

import pyarrow.compute as pc

from nsyspipe.analysis.traffic import EXPERT, parallelism
from nsyspipe.comparison.changes import SIDES, mean_of
from nsyspipe.comparison.series import MIN_STEPS
from nsyspipe.comparison.side import Side
from nsyspipe.model.columns import flag, identifier, text
from nsyspipe.model.definitions import ANALYZE_AGAIN, DEFINITIONS_VERSION, latest_of
from nsyspipe.model.names import few, listed
from nsyspipe.model.problems import MIXED_RUNS, MORE_STEPS
from nsyspipe.model.table import TableSchema
from nsyspipe.model.typed_tables import CollectivesColumn, RanksColumn
from nsyspipe.nsys.command_words import PYTHON_IS_NOT_SAMPLED
from nsyspipe.run.run import Run
from nsyspipe.run.work import (
    Work,
    has_whole_graphs,
    missing_ranks,
    n_steps,
    problem_codes,
    source_of_steps,
)

Sides = tuple[Side, Side]

COMPARABILITY = TableSchema(
    name="difference_comparability",
    doc=(
        "One row per reason to doubt the comparison. A reason that blocks makes all verdicts "
        "inconclusive."
    ),
    key=("check",),
    columns=(
        text("check", "stable name"),
        flag("blocks", "no verdict without --force"),
        text("baseline", "what was found"),
        text("candidate", "what was found"),
        text("message", "both values in one sentence"),
    ),
)

CHECKS_OF_RUNS = TableSchema(
    name="scoreboard_checks",
    doc=(
        "One row per reason to doubt a comparison: reasons that block are against the first run, "
        "others against the peer."
    ),
    key=("label", "check"),
    columns=(
        text("label", "the run"),
        text("against", "what it was compared with"),
        text("check", "stable name"),
        flag("blocks", "no verdict without --force"),
        text("reference_value", "value of the run that it was compared with"),
        text("value", "value of the run"),
        text("message", "both values in one sentence"),
    ),
)

_PROBLEM_COLUMNS = (
    text("severity", "error, warning, info"),
    text("report", "where", nullable=True),
    identifier("rank", "where", nullable=True),
    text("message", "what"),
    text("fix", "how to fix the problem", nullable=True),
)

SIDE_PROBLEMS = TableSchema(
    name="difference_problems",
    doc="The problems of each run.",
    key=("side",),
    columns=(
        text("side", "baseline or candidate"),
        text("run_id", "capture"),
        text("code", "as in problems"),
        *_PROBLEM_COLUMNS,
    ),
)

RUN_PROBLEMS = TableSchema(
    name="scoreboard_problems",
    doc="The problems of each run.",
    key=("label",),
    columns=(
        text("label", "the run"),
        text("run_id", "its capture"),
        text("code", "as in problems, or no-figures if no step was recorded on every rank"),
        *_PROBLEM_COLUMNS,
    ),
)

OTHER_WORK = "other-work"
UNKNOWN_WORK = "unknown-work"
UNLIKE = "unlike-captures"
SHARED_BATCH = "shared-batch"
DEFINITIONS = "definitions"

_NOT_RECORDED = "not recorded"
_NONE = "none"
_RECORDED = "recorded"
_COUNTED = "counted"
# From this share of the step time on, the work of the profiler changes what it measures.
MIN_PROFILER_SHARE_OF_STEP = 0.01
# Captures of one configuration differ by a smaller factor in step time, and in number and size of
# collectives.
MAX_RATIO_OF_STEP_TIMES = 1.25
MAX_RATIO_OF_AMOUNTS = 1.1
# What a run sends in a step may differ by this share, because of padding.
MAX_SHARE_OF_OTHER_BYTES = 0.01
_MAX_RANKS_SHOWN = 6


class _Amount(NamedTuple):
    """A column of the summary that captures of one configuration share, and its words."""

    column: str
    unit: float
    what: str


_AMOUNTS = (
    _Amount("collectives_per_step", 1, "collectives"),
    _Amount("message_bytes_per_step", 1e6, "MB of messages"),
)


class Check(NamedTuple):
    """One reason to doubt a comparison: a row of `COMPARABILITY`."""

    check: str
    blocks: bool
    baseline: str
    candidate: str
    message: str

    @property
    def separates_runs(self) -> bool:
        """Whether runs are not ranked together: the check blocks because they differ."""
        return self.blocks and not self.is_same

    @property
    def is_same(self) -> bool:
        """Whether both are one capture, so that there is nothing to compare."""
        return self.check == "same-capture"


def check_comparable(baseline: Side, candidate: Side) -> list[Check]:
    """Return the reasons not to compare two sides; those that block come first."""
    sides = (baseline, candidate)
    # The order in which reasons are told. Where a capture lacks something, it measures less.
    checks = [
        *_check_captures(sides),
        *_check_machines(sides),
        *_check_work(sides),
        *_check_definition_of_steps(sides),
        *_check_recording(sides),
        *_check_steps(sides),
    ]
    return sorted(checks, key=lambda check: not check.blocks)


def _check(
    name: str, what: str, words: Sequence[str], *, blocks: bool = False, after: str = ""
) -> Check:
    """Return a check with the words of both sides in one sentence."""
    before, now = words
    message = f"{what}: baseline {before}, candidate {now}{after}"
    return Check(name, blocks, before, now, message)


def _compare_words(
    sides: Sides,
    name: str,
    what: str,
    word_of: Callable[[Run], str],
    *,
    blocks: bool = False,
    unless: str | None = None,
    fine: str | None = None,
    after: str = "",
) -> Iterator[Check]:
    """Yield a check if captures differ in a word, or if none of them has the word that is fine.

    Nothing if a capture has the word `unless`: then it is not known.
    """
    words = [dict.fromkeys(map(word_of, side.runs)) for side in sides]
    distinct = {*words[0], *words[1]}
    if unless in distinct:
        return
    are_fine = fine is None or distinct == {fine}
    if len(distinct) > 1 or not are_fine:
        texts = [" | ".join(side) for side in words]
        yield _check(name, what, texts, blocks=blocks, after=after)


def _runs_of(sides: Sides) -> list[Run]:
    return [run for side in sides for run in side.runs]


# --- captures -------------------------------------------------------------------------------------
def _check_captures(sides: Sides) -> Iterator[Check]:
    yield from _same_capture(sides)
    yield from _repeated_capture(sides)
    yield from _unlike_captures(sides)


def _same_capture(sides: Sides) -> Iterator[Check]:
    """Yield a check if both sides have the same capture, whatever its run IDs.

    There is nothing to compare then, and a gate would always pass.
    """
    for now in sides[1].runs:
        for before in sides[0].runs:
            if _is_same_capture(before, now):
                label = before.header.label
                message = f"both sides are the same capture: {label}"
                labels = {"baseline": label, "candidate": now.header.label}
                yield Check("same-capture", blocks=True, **labels, message=message)
                return


def _repeated_capture(sides: Sides) -> Iterator[Check]:
    """Yield a check if a side has a capture twice: this shows no spread between captures."""
    words = [_repeated_run_ids(side) for side in sides]
    if any(words):
        texts = [word or _NONE for word in words]
        yield _check("repeated-capture", "one capture has two run IDs", texts)


def _repeated_run_ids(side: Side) -> str:
    pairs = combinations(side.runs, 2)
    repeated = [now for before, now in pairs if _is_same_capture(before, now)]
    run_ids = [run.header.run_id for run in repeated]
    return ", ".join(run_ids)


def _is_same_capture(before: Run, now: Run) -> bool:
    """Tell whether two runs share what no two captures share, whatever their run IDs."""
    captured_at = before.header.captured_at_utc
    if before is now:
        return True
    # The cheap comparison comes first.
    if captured_at is None or captured_at != now.header.captured_at_utc:
        return False
    step_time_before = before.summary()["step_time_ns"]
    step_time_now = now.summary()["step_time_ns"]
    if not step_time_before.equals(step_time_now):
        return False
    columns: list[RanksColumn] = ["rank", "pid", "n_kernels"]
    ranks_before = before.ranks.select(columns)
    ranks_now = now.ranks.select(columns)
    return bool(ranks_before.equals(ranks_now))


def _unlike_captures(sides: Sides) -> Iterator[Check]:
    """Yield a check for each side with captures that are hardly of one configuration.

    The spread between such captures is not noise.
    """
    for index, side in enumerate(sides):
        unlikeness = _find_unlikeness(side.runs) if len(side.runs) > 1 else None
        if unlikeness is None:
            continue
        by = f"by {unlikeness.slower_pct:.0f}%"
        facts = ", ".join(unlikeness.facts)
        message = (
            f"captures of {side.name} differ {by} ({facts}). "
            "Pass only captures of one configuration"
        )
        words = dict.fromkeys(SIDES, _NONE) | {SIDES[index]: by}
        yield Check(UNLIKE, blocks=True, **words, message=message)


class _Unlikeness(NamedTuple):
    """By how much captures differ in step time, and all in which they differ."""

    slower_pct: float
    facts: list[str]


def _find_unlikeness(runs: Sequence[Run]) -> _Unlikeness | None:
    """Return how captures differ, if they differ by more than captures of one configuration."""
    summaries = [run.summary().to_pylist()[0] for run in runs]
    summaries.sort(key=lambda summary: summary["step_time_ns"] or 0.0)
    step_times = [summary["step_time_ns"] for summary in summaries]
    known_ns = [ns for ns in step_times if ns] or [1.0]
    shortest_ns = known_ns[0]
    longest_ns = known_ns[-1]
    facts: list[str] = []
    if _follow_same_definitions(runs):
        facts += _different_amounts(summaries)
        facts += _different_collectives(runs)
    if _has_different_kernels(runs):
        facts.append("different kernels")
    if not facts and longest_ns <= MAX_RATIO_OF_STEP_TIMES * shortest_ns:
        return None
    shortest_ms = shortest_ns / 1e6
    longest_ms = longest_ns / 1e6
    times = f"{shortest_ms:.4g} and {longest_ms:.4g} ms per step"
    slower_pct = 100 * (longest_ns / shortest_ns - 1)
    return _Unlikeness(slower_pct, [times, *facts])


def _different_amounts(summaries: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the amounts of a step that differ between captures, as texts."""
    for amount in _AMOUNTS:
        cells = [summary[amount.column] for summary in summaries]
        values = [cell for cell in cells if cell is not None]
        smallest = min(values, default=0.0)
        largest = max(values, default=0.0)
        if largest > MAX_RATIO_OF_AMOUNTS * smallest:
            texts = [f"{value / amount.unit:.4g}" for value in values]
            distinct = " and ".join(dict.fromkeys(texts))
            yield f"{distinct} {amount.what}"


def _different_collectives(runs: Sequence[Run]) -> Iterator[str]:
    """Yield the sorts of collectives that only some captures have, if these are many.

    Collectives inside CUDA graphs that were captured as a whole were not seen, so nothing can be
    said then.
    """
    if any(map(has_whole_graphs, runs)):
        return
    numbers_by_sort = _collectives_of_captures(runs)
    only_of_some = [sort for sort, numbers in numbers_by_sort.items() if not all(numbers)]
    if not only_of_some:
        return
    numbers_of_captures = zip(*numbers_by_sort.values(), strict=True)
    largest_total = max(map(sum, numbers_of_captures))
    n_common = sum(map(min, numbers_by_sort.values()))
    if largest_total > MAX_RATIO_OF_AMOUNTS * n_common:
        yield f"only some have {listed(only_of_some)}"


def _collectives_of_captures(runs: Sequence[Run]) -> dict[str, list[float]]:
    """Return how many collectives of each sort each capture has per step, by sort.

    Sorts have datatypes if all captures recorded them.
    """
    datatypes = [run.collectives()["datatype"] for run in runs]
    are_datatypes_known = not any(column.null_count for column in datatypes)
    columns: list[CollectivesColumn] = ["collective"]
    if are_datatypes_known:
        columns.append("datatype")
    counts = [collectives_per_step(run, columns) for run in runs if n_steps(run)]
    numbers_by_sort = {}
    for sort in sorted({*chain(*counts)}):
        numbers_by_sort[sort] = [count.get(sort, 0.0) for count in counts]
    return numbers_by_sort


def _has_different_kernels(runs: Sequence[Run]) -> bool:
    works = [Work.of([run]) for run in runs]
    known_works = [work for work in works if work.kernels]
    pairs = combinations(known_works, 2)
    return any(before.is_other(now) for before, now in pairs)


def collectives_per_step(
    run: Run, by: Sequence[CollectivesColumn] = ("collective", "datatype")
) -> dict[str, float]:
    """Return how many collectives of each sort a rank has per summary step."""
    rows = run.collectives()
    rows = rows.filter(rows["in_summary"])
    by_sort = rows.group_by(by, use_threads=False)
    counted = by_sort.aggregate([([], "count_all")])
    n_rank_steps = n_steps(run) * run.header.n_ranks
    counts = {}
    for row in counted.to_pylist():
        words = [row[name] for name in by]
        sort = " ".join(filter(None, words))
        counts[sort] = row["count_all"] / n_rank_steps
    return counts


# --- machines, ranks and definitions --------------------------------------------------------------
def _check_machines(sides: Sides) -> Iterator[Check]:
    runs = _runs_of(sides)
    yield from _world_size(sides)
    has_gpu_activity = any(run.header.n_ranks for run in runs)
    yield from _compare_words(
        sides,
        "no-gpu-activity",
        "GPU activity",
        _gpu_activity,
        blocks=has_gpu_activity,
        fine=_RECORDED,
    )
    are_gpus_known = all(run.header.gpu_names for run in runs)
    yield from _compare_words(
        sides,
        "gpu-model",
        "GPU model",
        _gpu_models,
        blocks=are_gpus_known,
    )
    missing_in_runs = {missing_ranks(run) for run in runs}
    yield from _compare_words(
        sides,
        "missing-ranks",
        "missing ranks",
        _missing_rank_names,
        blocks=len(missing_in_runs) > 1,
        fine=_NONE,
    )
    yield from _compare_words(
        sides,
        "mixed-runs",
        "reports that may be of different runs",
        _codes_of_mixed_runs,
        blocks=True,
        fine=_NONE,
    )
    yield from _other_ranks(sides)


def _gpu_activity(run: Run) -> str:
    return _RECORDED if run.header.n_ranks else _NOT_RECORDED


def _gpu_models(run: Run) -> str:
    return ", ".join(run.header.gpu_names) or _NOT_RECORDED


def _missing_rank_names(run: Run) -> str:
    names = few(missing_ranks(run), _MAX_RANKS_SHOWN)
    return names or _NONE


def _codes_of_mixed_runs(run: Run) -> str:
    codes = MIXED_RUNS & problem_codes(run)
    return ", ".join(sorted(codes)) or _NONE


def _world_size(sides: Sides) -> Iterator[Check]:
    """Yield a check if world sizes differ; if a capture does not know its own, numbers of ranks."""
    what = "number of ranks"
    word_of = _number_of_ranks
    if all(run.header.n_job_ranks is not None for run in _runs_of(sides)):
        what = "world size"
        word_of = _world_size_of
    yield from _compare_words(sides, "world-size", what, word_of, blocks=True)


def _number_of_ranks(run: Run) -> str:
    return str(run.header.n_ranks)


def _world_size_of(run: Run) -> str:
    return str(run.header.n_job_ranks)


def check_order(baseline: Side, candidate: Side) -> Iterator[Check]:
    """Yield a check if the candidate was captured before the baseline: the order may be wrong."""
    before = [run.header.captured_at_utc for run in baseline.runs]
    now = [run.header.captured_at_utc for run in candidate.runs]
    if not all([*before, *now]):
        return
    first_baseline = min(map(str, before))
    last_candidate = max(map(str, now))
    if last_candidate < first_baseline:
        texts = [_time_text(first_baseline), _time_text(last_candidate)]
        what = "the candidate was captured before the baseline"
        after = ". Swap the arguments if their order is wrong"
        yield _check("capture-order", what, texts, after=after)


def _time_text(time: str) -> str:
    to_the_second = time[:19].replace("T", " ")
    return f"{to_the_second} UTC"


def check_definitions(baseline: Side, candidate: Side) -> Iterator[Check]:
    """Yield a check if captures were saved with different definitions.

    Metrics that mean something else are not compared.
    """
    words = _definitions_by_side((baseline, candidate))
    has_mixed_side = any("|" in word for word in words)
    if has_mixed_side or words[0] != words[1]:
        after = f". Communication, copies and compute are not compared ({ANALYZE_AGAIN})"
        yield _check(DEFINITIONS, "different versions of the definitions", words, after=after)


def _other_ranks(sides: Sides) -> Iterator[Check]:
    """Yield a check if ranks of some captures follow another definition of a rank.

    In version 1 of the definitions, several devices of one process were one rank.
    """
    runs = _runs_of(sides)
    latest = latest_of(run.definitions_version for run in runs)
    outdated = [run for run in runs if run.definitions_version != latest]
    is_newer_than_known = latest > DEFINITIONS_VERSION
    may_differ = is_newer_than_known or any(map(_has_rank_of_several_devices, outdated))
    if outdated and may_differ:
        words = _definitions_by_side(sides)
        what = "different versions of the definitions"
        after = f". The definition of a rank may differ ({ANALYZE_AGAIN})"
        yield _check("definitions-of-ranks", what, words, blocks=True, after=after)


def _has_rank_of_several_devices(run: Run) -> bool:
    devices_of_ranks = run.ranks["device_ids"].to_pylist()
    return any("," in devices for devices in devices_of_ranks)


def _definitions_by_side(sides: Sides) -> list[str]:
    texts = []
    for side in sides:
        versions = {run.definitions_version for run in side.runs}
        text = " | ".join(map(str, sorted(versions)))
        texts.append(text)
    return texts


def _follow_same_definitions(runs: Sequence[Run]) -> bool:
    versions = {run.definitions_version for run in runs}
    return len(versions) == 1


# --- work -----------------------------------------------------------------------------------------
def _check_work(sides: Sides) -> Iterator[Check]:
    yield from _ranks_per_batch(sides)
    yield from _unknown_work(sides)
    yield from _other_work(sides)
    # Inside CUDA graphs that were captured as a whole, no all-to-all was seen.
    if not any(map(has_whole_graphs, _runs_of(sides))):
        yield from _compare_words(
            sides,
            "experts",
            "all-to-all of expert parallelism",
            _use_of_experts,
            after=". If only one side has experts, the models differ",
        )


def _use_of_experts(run: Run) -> str:
    roles = parallelism(run.traffic())
    return "some" if EXPERT in roles else _NONE


def _ranks_per_batch(sides: Sides) -> Iterator[Check]:
    """Yield a check if more ranks share a batch on one side, so that a step has fewer batches."""
    before, now = sides
    blocks = before.work.other_batches(now.work)
    if blocks is not None:
        words = [" | ".join(side.work.per_batch) for side in sides]
        what = "different model-parallel sizes"
        after = ". Ranks of one tensor or pipeline parallel group share a batch"
        yield _check(SHARED_BATCH, what, words, blocks=blocks, after=after)


def _unknown_work(sides: Sides) -> Iterator[Check]:
    """Yield a check if the compute of steps was not recorded; it blocks if one side recorded it."""
    is_known = [side.work.busy_ns is not None for side in sides]
    if all(is_known) or not all(map(n_steps, _runs_of(sides))):
        return
    texts = ["known compute" if known else "unknown compute" for known in is_known]
    what = "nsyspipe cannot check that steps do the same work"
    after = ". Unrecorded work may be of another model, batch size or precision"
    yield _check(UNKNOWN_WORK, what, texts, blocks=any(is_known), after=after)


def _other_work(sides: Sides) -> Iterator[Check]:
    """Yield a check if steps do different work: other kernels, or much more compute."""
    before, now = (side.work for side in sides)
    if before.busy_ns is None or now.busy_ns is None:
        return
    if not (before.kernels and now.kernels) or not before.is_other(now):
        return
    shared_ratio = now.shared(before)
    shared_pct = f"{100 * shared_ratio:.0f}%"
    now_text = now.text
    # If all compute is in the same kernels, time and number differ.
    if shared_pct != "100%":
        kernels = f"kernels that the {SIDES[0]} also runs"
        now_text += f" (only {shared_pct} of this compute time is in {kernels})"
    yield _check(OTHER_WORK, "different work per step", [before.text, now_text], blocks=True)


# --- what a step is -------------------------------------------------------------------------------
def _check_definition_of_steps(sides: Sides) -> Iterator[Check]:
    # Metrics of a step are not those of a whole capture.
    if all(run.header.n_ranks for run in _runs_of(sides)):
        yield from _compare_words(
            sides, "steps-from", "source of the steps", source_of_steps, blocks=True
        )
    yield from _compare_words(sides, "step-family", "steps are", _step_family)
    yield from _compare_words(
        sides, "backward-from", "backward is taken from", _source_of_backward, unless=_NONE
    )
    yield from _compare_words(
        sides, "skipped-steps", "skipped warm-up steps", _number_of_skipped_steps
    )


def _number_of_skipped_steps(run: Run) -> str:
    return str(len(run.skipped_steps))


def _step_family(run: Run) -> str:
    """Return the name of the ranges that are steps, or what else the steps are."""
    if run.step_family:
        return repr(run.step_family)
    return "the whole capture" if run.is_capture else str(run.header.steps_from)


def _source_of_backward(run: Run) -> str:
    """Return in words how backward was found: by problems that tell it, else by ranges."""
    parts = [code.partition("backward-by-") for code in problem_codes(run)]
    ways = sorted(way for _, _, way in parts if way)
    if ways:
        return " and ".join(ways)
    phases = run.phases()["phase"].unique().to_pylist()
    return "ranges" if "backward" in phases else _NONE


# --- what was recorded ----------------------------------------------------------------------------
def _check_recording(sides: Sides) -> Iterator[Check]:
    yield from _message_bytes(sides)
    yield from _profiler_overhead(sides)
    yield from _compare_words(sides, "traces", "traced", _traces, unless=_NOT_RECORDED)
    yield from _compare_words(
        sides,
        "cuda-trace",
        "CUDA was traced by different methods, which delay the program differently",
        _cuda_trace,
        unless=_NOT_RECORDED,
    )
    yield from _compare_words(
        sides,
        "python-sampling",
        "Python was sampled differently, which can slow the program down",
        _python_sampling,
        unless=_NOT_RECORDED,
    )
    yield from _warnings(sides)


def _message_bytes(sides: Sides) -> Iterator[Check]:
    """Yield a check if a step sends more or fewer bytes than on the other side."""
    if not _follow_same_definitions(_runs_of(sides)):
        return
    before, now = (_mean_message_bytes(side) for side in sides)
    if before is None or now is None:
        return
    change = abs(now - before)
    if change > MAX_SHARE_OF_OTHER_BYTES * max(before, now):
        texts = [f"{n_bytes / 1e6:.4g} MB" for n_bytes in (before, now)]
        what = "different message sizes per step (another model, precision or parallelism?)"
        yield _check("message-bytes", what, texts)


def _mean_message_bytes(side: Side) -> float | None:
    columns = [run.summary()["message_bytes_per_step"] for run in side.runs]
    return mean_of(column[0].as_py() for column in columns)


def _profiler_overhead(sides: Sides) -> Iterator[Check]:
    """Yield a check if the profiler took much of the steps of a capture."""
    shares = [_profiler_share_of_steps(run) for run in _runs_of(sides)]
    if max(shares) >= MIN_PROFILER_SHARE_OF_STEP:
        texts = [" | ".join(map(_profiler_share_text, side.runs)) for side in sides]
        yield _check("profiler-overhead", "large profiler overhead in the steps", texts)


def _profiler_share_of_steps(run: Run) -> float:
    steps = run.breakdown()
    overhead_ns = pc.sum(steps["overhead_ns"]).as_py() or 0
    wall_ns = pc.sum(steps["wall_ns"]).as_py() or 0
    return overhead_ns / wall_ns if wall_ns else 0.0


def _profiler_share_text(run: Run) -> str:
    percent = 100 * _profiler_share_of_steps(run)
    return f"{percent:.1f}%"


def _traces(run: Run) -> str:
    capture = run.header.capture
    traces = capture.trace if capture is not None else None
    if not traces:
        return _NOT_RECORDED
    return ", ".join(sorted(traces))


def _cuda_trace(run: Run) -> str:
    return ", ".join(run.header.cuda_trace_methods) or _NOT_RECORDED


def _python_sampling(run: Run) -> str:
    rates = run.header.python_samplings
    texts = [rate if rate == PYTHON_IS_NOT_SAMPLED else f"{rate} per second" for rate in rates]
    return ", ".join(texts) or _NOT_RECORDED


def _warnings(sides: Sides) -> Iterator[Check]:
    """Yield a check if captures have warnings, or errors, that others do not have.

    The words of a warning are those before its colon.
    """
    codes_of_runs = [problem_codes(run) for run in _runs_of(sides)]
    common_codes = set.intersection(*codes_of_runs)
    rows_of_sides = [_rows_of_warnings(side, common_codes) for side in sides]
    sentences = {}
    for row in chain.from_iterable(rows_of_sides):
        sentences[row["code"]] = _first_sentence(row["message"])
    if not sentences:
        return
    words = []
    for rows in rows_of_sides:
        codes = {row["code"] for row in rows}
        texts = [text for code, text in sentences.items() if code in codes]
        words.append(" / ".join(texts) or _NONE)
    is_about_logs = any(code.startswith("log-of-") for code in sentences)
    after = ". nsyspipe uses a log without LABEL= for both sides" if is_about_logs else ""
    yield _check("recorded", "warnings that only some captures have", words, after=after)


def _rows_of_warnings(side: Side, common_codes: set[str]) -> list[Mapping[str, Any]]:
    """Return the warnings and errors of a side, without those that all captures have."""
    rows = [row for run in side.runs for row in run.problem_rows]
    serious_rows = [row for row in rows if row["severity"] != "info"]
    return [row for row in serious_rows if row["code"] not in common_codes]


def _first_sentence(message: str) -> str:
    sentence = message.partition(". ")[0]
    return sentence.partition(": ")[0]


# --- steps used -----------------------------------------------------------------------------------
def _check_steps(sides: Sides) -> Iterator[Check]:
    yield from _compare_words(
        sides,
        "cut-off-steps",
        "incomplete steps among the steps used",
        _incomplete_steps,
        fine=_NONE,
    )
    yield from _compare_words(
        sides,
        "kernel-times",
        "times of kernels per step are",
        _times_of_kernels,
        fine=_COUNTED,
        after=". If an older nsyspipe saved the runs, save them again from their reports",
    )
    yield from _few_steps(sides)


def _incomplete_steps(run: Run) -> str:
    if run.is_capture:
        return _NONE
    are_complete = pc.all(run.breakdown()["is_complete"], min_count=0)
    return _NONE if are_complete.as_py() else "some"


def _times_of_kernels(run: Run) -> str:
    times = run.kernels()["in_summary_ns"]
    return _NOT_RECORDED if times.null_count else _COUNTED


def _few_steps(sides: Sides) -> Iterator[Check]:
    """Yield a check if a capture has too few steps; not if it lacks more than steps."""
    runs = _runs_of(sides)
    if any(run.is_capture or not run.header.n_ranks for run in runs):
        return
    fewest_steps = min(map(n_steps, runs))
    if fewest_steps < MIN_STEPS:
        texts = [_numbers_of_steps_text(side) for side in sides]
        after = f" (at least {MIN_STEPS} are needed, {MORE_STEPS})"
        yield _check("few-steps", "too few steps used", texts, after=after)


def _numbers_of_steps_text(side: Side) -> str:
    return " | ".join(str(n_steps(run)) for run in side.runs)
