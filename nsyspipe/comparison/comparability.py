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
    # This is the order in which reasons are told. The sort below keeps it among those that block.
    checks = [
        *_check_captures(sides),
        *_check_machines(sides),
        *_check_work(sides),
        *_check_definition_of_steps(sides),
        *_check_recording(sides),
        *_check_steps(sides),
    ]
    # False sorts before True.
    return sorted(checks, key=lambda check: not check.blocks)


def _check(
    name: str, what: str, words_of_sides: Sequence[str], *, blocks: bool = False, advice: str = ""
) -> Check:
    """Return a check with the words of both sides in one sentence, and the advice after it.

    `name` is the stable name of the check. The sentence begins with `what`: "WHAT: baseline WORDS,
    candidate WORDS".
    """
    before, after = words_of_sides
    message = f"{what}: baseline {before}, candidate {after}{advice}"
    return Check(name, blocks, before, after, message)


def _compare_words(
    sides: Sides,
    word_of: Callable[[Run], str],
    *,
    name: str,
    what: str,
    blocks: bool = False,
    unknown_word: str | None = None,
    fine_word: str | None = None,
    advice: str = "",
) -> Iterator[Check]:
    """Yield a check if not all captures of both sides have the same word.

    If a capture has the unknown word, no check is yielded, because nothing can be compared. If
    there is a fine word, a check is also yielded if all captures have the same word, but another
    one than the fine word. For `name`, `what` and `advice`, see `_check`.
    """
    # Distinct words of each side, in the order of its captures.
    words_of_sides = [list(dict.fromkeys(map(word_of, side.runs))) for side in sides]
    distinct_words = {*chain.from_iterable(words_of_sides)}
    if unknown_word in distinct_words:
        return
    is_same_word_fine = fine_word is None or distinct_words == {fine_word}
    if len(distinct_words) > 1 or not is_same_word_fine:
        texts = [" | ".join(words) for words in words_of_sides]
        yield _check(name, what, texts, blocks=blocks, advice=advice)


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
    baseline, candidate = sides
    for after in candidate.runs:
        for before in baseline.runs:
            if _is_same_capture(before, after):
                label = before.header.label
                message = f"both sides are the same capture: {label}"
                labels = {"baseline": label, "candidate": after.header.label}
                yield Check("same-capture", blocks=True, **labels, message=message)
                # One check says enough, however many captures are on both sides.
                return


def _repeated_capture(sides: Sides) -> Iterator[Check]:
    """Yield a check if a side has a capture twice: this shows no variation between captures."""
    run_ids_of_sides = [_repeated_run_ids(side) for side in sides]
    if any(run_ids_of_sides):
        texts = [run_ids or _NONE for run_ids in run_ids_of_sides]
        yield _check("repeated-capture", "one capture has two run IDs", texts)


def _repeated_run_ids(side: Side) -> str:
    """Return the run IDs of captures that an earlier run of the side has too; empty if none."""
    pairs = combinations(side.runs, 2)
    repeated = [later for earlier, later in pairs if _is_same_capture(earlier, later)]
    run_ids = [run.header.run_id for run in repeated]
    return ", ".join(run_ids)


def _is_same_capture(run: Run, other_run: Run) -> bool:
    """Tell whether two runs are of one capture, whatever their run IDs.

    Then they share the time of the capture, the step time, and the processes of the ranks. No two
    captures share all of these.
    """
    if run is other_run:
        return True
    captured_at = run.header.captured_at_utc
    # The cheap comparison comes first.
    if captured_at is None or captured_at != other_run.header.captured_at_utc:
        return False
    step_time = run.summary()["step_time_ns"]
    other_step_time = other_run.summary()["step_time_ns"]
    if not step_time.equals(other_step_time):
        return False
    columns: list[RanksColumn] = ["rank", "pid", "n_kernels"]
    ranks = run.ranks.select(columns)
    other_ranks = other_run.ranks.select(columns)
    return bool(ranks.equals(other_ranks))


def _unlike_captures(sides: Sides) -> Iterator[Check]:
    """Yield a check for each side with captures that are hardly of one configuration.

    The variation between such captures is not noise.
    """
    for side_name, side in zip(SIDES, sides, strict=True):
        unlikeness = _find_unlikeness(side.runs) if len(side.runs) > 1 else None
        if unlikeness is None:
            continue
        difference = f"by {unlikeness.longest_over_shortest_pct:.0f}%"
        facts = ", ".join(unlikeness.facts)
        message = (
            f"captures of {side.name} differ {difference} ({facts}). "
            "Pass only captures of one configuration"
        )
        words_by_side = dict.fromkeys(SIDES, _NONE)
        words_by_side[side_name] = difference
        yield Check(UNLIKE, blocks=True, **words_by_side, message=message)


class _Unlikeness(NamedTuple):
    """By how much captures differ in step time, and all in which they differ."""

    # How much longer the longest step time is than the shortest.
    longest_over_shortest_pct: float
    # In words, the step times first.
    facts: list[str]


def _find_unlikeness(runs: Sequence[Run]) -> _Unlikeness | None:
    """Return how captures differ, if they differ by more than captures of one configuration.

    None otherwise. Captures without a step time are left out of the comparison of step times.
    """
    summaries = [run.summary().to_pylist()[0] for run in runs]
    summaries.sort(key=lambda summary: summary["step_time_ns"] or 0.0)
    step_times = [summary["step_time_ns"] for summary in summaries]
    # If no step time is known, a single one stands for all, so that they do not differ.
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
    longest_over_shortest_pct = 100 * (longest_ns / shortest_ns - 1)
    return _Unlikeness(longest_over_shortest_pct, [times, *facts])


def _different_amounts(summaries: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the amounts of a step that differ by too much between captures, as texts."""
    for amount in _AMOUNTS:
        cells = [summary[amount.column] for summary in summaries]
        known_values = [cell for cell in cells if cell is not None]
        smallest = min(known_values, default=0.0)
        largest = max(known_values, default=0.0)
        if largest > MAX_RATIO_OF_AMOUNTS * smallest:
            texts = [f"{value / amount.unit:.4g}" for value in known_values]
            distinct = " and ".join(dict.fromkeys(texts))
            yield f"{distinct} {amount.what}"


def _different_collectives(runs: Sequence[Run]) -> Iterator[str]:
    """Yield a text with the sorts of collectives that only some captures have, if they matter.

    They matter if a capture has many more collectives than all captures have in common. Nothing is
    yielded if a capture has CUDA graphs that were captured as a whole: the collectives inside these
    were not seen.
    """
    if any(map(has_whole_graphs, runs)):
        return
    n_per_step_by_sort = _collectives_of_captures(runs)
    sorts_of_some = [sort for sort, numbers in n_per_step_by_sort.items() if not all(numbers)]
    if not sorts_of_some:
        return
    n_of_sorts_by_capture = zip(*n_per_step_by_sort.values(), strict=True)
    most_of_a_capture = max(map(sum, n_of_sorts_by_capture))
    # Of a sort, the captures have in common as many as the capture with fewest of them has.
    n_common = sum(map(min, n_per_step_by_sort.values()))
    if most_of_a_capture > MAX_RATIO_OF_AMOUNTS * n_common:
        yield f"only some have {listed(sorts_of_some)}"


def _collectives_of_captures(runs: Sequence[Run]) -> dict[str, list[float]]:
    """Return how many collectives of each sort the captures have per step, by sort.

    A sort has a number for each capture with steps, in the order of the captures. A sort is the
    name of a collective, with its datatype if all captures recorded all datatypes.
    """
    datatypes = [run.collectives()["datatype"] for run in runs]
    are_datatypes_known = not any(column.null_count for column in datatypes)
    columns: list[CollectivesColumn] = ["collective"]
    if are_datatypes_known:
        columns.append("datatype")
    runs_with_steps = [run for run in runs if n_steps(run)]
    numbers_of_captures = [collectives_per_step(run, columns) for run in runs_with_steps]
    numbers_by_sort = {}
    for sort in sorted({*chain.from_iterable(numbers_of_captures)}):
        numbers_by_sort[sort] = [numbers.get(sort, 0.0) for numbers in numbers_of_captures]
    return numbers_by_sort


def _has_different_kernels(runs: Sequence[Run]) -> bool:
    """Tell whether two captures with known kernels do different work."""
    works = [Work.of([run]) for run in runs]
    known_works = [work for work in works if work.kernels]
    pairs = combinations(known_works, 2)
    return any(work.is_other(other_work) for work, other_work in pairs)


def collectives_per_step(
    run: Run, by: Sequence[CollectivesColumn] = ("collective", "datatype")
) -> dict[str, float]:
    """Return how many collectives of each sort a rank has per summary step, by sort.

    A sort is what a collective has in the columns `by`, joined to one text without nulls.
    """
    collectives = run.collectives()
    in_summary = collectives.filter(collectives["in_summary"])
    groups = in_summary.group_by(by, use_threads=False)
    counts = groups.aggregate([([], "count_all")])
    n_rank_steps = n_steps(run) * run.header.n_ranks
    n_per_step_by_sort = {}
    for row in counts.to_pylist():
        words = [row[name] for name in by]
        sort = " ".join(filter(None, words))
        n_per_step_by_sort[sort] = row["count_all"] / n_rank_steps
    return n_per_step_by_sort


# --- machines, ranks and definitions --------------------------------------------------------------
def _check_machines(sides: Sides) -> Iterator[Check]:
    """Yield checks of ranks, GPUs, and whether all reports are of one run."""
    runs = _runs_of(sides)
    yield from _world_size(sides)
    has_gpu_activity = any(run.header.n_ranks for run in runs)
    yield from _compare_words(
        sides,
        _gpu_activity,
        name="no-gpu-activity",
        what="GPU activity",
        blocks=has_gpu_activity,
        fine_word=_RECORDED,
    )
    # An unknown GPU model may be the same, so it does not block.
    are_gpus_known = all(run.header.gpu_names for run in runs)
    yield from _compare_words(
        sides,
        _gpu_models,
        name="gpu-model",
        what="GPU model",
        blocks=are_gpus_known,
    )
    # If all runs miss the same ranks, they can still be compared.
    missing_in_runs = {missing_ranks(run) for run in runs}
    yield from _compare_words(
        sides,
        _missing_rank_names,
        name="missing-ranks",
        what="missing ranks",
        blocks=len(missing_in_runs) > 1,
        fine_word=_NONE,
    )
    yield from _compare_words(
        sides,
        _codes_of_mixed_runs,
        name="mixed-runs",
        what="reports that may be of different runs",
        blocks=True,
        fine_word=_NONE,
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
    """Yield a check if world sizes differ.

    If a capture does not know its world size, the numbers of recorded ranks are compared instead.
    """
    if all(run.header.n_job_ranks is not None for run in _runs_of(sides)):
        what = "world size"
        word_of = _world_size_of
    else:
        what = "number of ranks"
        word_of = _number_of_ranks
    yield from _compare_words(sides, word_of, name="world-size", what=what, blocks=True)


def _number_of_ranks(run: Run) -> str:
    return str(run.header.n_ranks)


def _world_size_of(run: Run) -> str:
    return str(run.header.n_job_ranks)


def check_order(baseline: Side, candidate: Side) -> Iterator[Check]:
    """Yield a check if the whole candidate was captured before the baseline.

    Then the order of the arguments may be wrong. Nothing is yielded if the time of a capture is not
    known.
    """
    baseline_times = [run.header.captured_at_utc for run in baseline.runs]
    candidate_times = [run.header.captured_at_utc for run in candidate.runs]
    if not all([*baseline_times, *candidate_times]):
        return
    # Times in this format are in order if their texts are.
    first_baseline = min(map(str, baseline_times))
    last_candidate = max(map(str, candidate_times))
    if last_candidate < first_baseline:
        texts = [_time_text(first_baseline), _time_text(last_candidate)]
        what = "the candidate was captured before the baseline"
        advice = ". Swap the arguments if their order is wrong"
        yield _check("capture-order", what, texts, advice=advice)


def _time_text(time: str) -> str:
    """Return a time like 2026-11-30T12:00:00.5Z in words, to the second."""
    n_letters_to_the_second = 19
    to_the_second = time[:n_letters_to_the_second].replace("T", " ")
    return f"{to_the_second} UTC"


def check_definitions(baseline: Side, candidate: Side) -> Iterator[Check]:
    """Yield a check if captures were saved with different definitions.

    Metrics that mean something else are not compared.
    """
    sides = (baseline, candidate)
    if not _follow_same_definitions(_runs_of(sides)):
        what = "different versions of the definitions"
        advice = f". Communication, copies and compute are not compared ({ANALYZE_AGAIN})"
        yield _check(DEFINITIONS, what, _definitions_of_sides(sides), advice=advice)


def _other_ranks(sides: Sides) -> Iterator[Check]:
    """Yield a check if the definition of a rank may differ between captures.

    In version 1 of the definitions, several devices of one process were one rank. A version that is
    newer than this nsyspipe may define a rank in any way.
    """
    runs = _runs_of(sides)
    latest_version = latest_of(run.definitions_version for run in runs)
    outdated_runs = [run for run in runs if run.definitions_version != latest_version]
    is_newer_than_known = latest_version > DEFINITIONS_VERSION
    may_differ = is_newer_than_known or any(map(_has_rank_of_several_devices, outdated_runs))
    if outdated_runs and may_differ:
        versions = _definitions_of_sides(sides)
        what = "different versions of the definitions"
        advice = f". The definition of a rank may differ ({ANALYZE_AGAIN})"
        yield _check("definitions-of-ranks", what, versions, blocks=True, advice=advice)


def _has_rank_of_several_devices(run: Run) -> bool:
    devices_of_ranks = run.ranks["device_ids"].to_pylist()
    return any("," in devices for devices in devices_of_ranks)


def _definitions_of_sides(sides: Sides) -> list[str]:
    """Return the versions of the definitions of each side, as one text per side."""
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
    """Yield checks of what a step computes."""
    yield from _ranks_per_batch(sides)
    yield from _unknown_work(sides)
    yield from _other_work(sides)
    # Inside CUDA graphs that were captured as a whole, no all-to-all was seen. So it is not known
    # whether such a run has experts.
    if not any(map(has_whole_graphs, _runs_of(sides))):
        yield from _compare_words(
            sides,
            _use_of_experts,
            name="experts",
            what="all-to-all of expert parallelism",
            advice=". If only one side has experts, the models differ",
        )


def _use_of_experts(run: Run) -> str:
    roles = parallelism(run.traffic())
    return "some" if EXPERT in roles else _NONE


def _ranks_per_batch(sides: Sides) -> Iterator[Check]:
    """Yield a check if more ranks share a batch on one side, so that a step has fewer batches.

    The check blocks if this is certain.
    """
    before, after = (side.work for side in sides)
    # None if the numbers of ranks per batch do not differ. Otherwise whether this is certain.
    certainty = before.other_batches(after)
    if certainty is not None:
        texts = [" | ".join(work.per_batch) for work in (before, after)]
        what = "different model-parallel sizes"
        advice = ". Ranks of one tensor or pipeline parallel group share a batch"
        yield _check(SHARED_BATCH, what, texts, blocks=certainty, advice=advice)


def _unknown_work(sides: Sides) -> Iterator[Check]:
    """Yield a check if a side did not record the compute of its steps.

    The check blocks if the other side recorded it. Nothing is yielded if a capture has no steps.
    """
    known_sides = [side.work.busy_ns is not None for side in sides]
    if all(known_sides) or not all(map(n_steps, _runs_of(sides))):
        return
    texts = ["known compute" if is_known else "unknown compute" for is_known in known_sides]
    what = "nsyspipe cannot check that steps do the same work"
    advice = ". Unrecorded work may be of another model, batch size or precision"
    yield _check(UNKNOWN_WORK, what, texts, blocks=any(known_sides), advice=advice)


def _other_work(sides: Sides) -> Iterator[Check]:
    """Yield a check if steps do different work: other kernels, or much more compute.

    Nothing is yielded if a side did not record its compute, or its kernels.
    """
    before, after = (side.work for side in sides)
    if before.busy_ns is None or after.busy_ns is None:
        return
    if not (before.kernels and after.kernels) or not before.is_other(after):
        return
    # Of the candidate's compute time, the share in kernels that the baseline also runs.
    shared_share = after.shared(before)
    shared_pct = f"{100 * shared_share:.0f}%"
    after_text = after.text
    # At 100%, the sides run the same kernels. Then the time and number of these differ, which the
    # texts of both sides tell already.
    if shared_pct != "100%":
        kernels = f"kernels that the {SIDES[0]} also runs"
        after_text += f" (only {shared_pct} of its compute time is in {kernels})"
    yield _check(OTHER_WORK, "different work per step", [before.text, after_text], blocks=True)


# --- what a step is -------------------------------------------------------------------------------
def _check_definition_of_steps(sides: Sides) -> Iterator[Check]:
    """Yield checks of what a step is, and where its backward pass is."""
    # Metrics of a step cannot be compared with metrics of a whole capture, so this blocks. Without
    # GPU activity there are no metrics, which another check tells.
    if all(run.header.n_ranks for run in _runs_of(sides)):
        yield from _compare_words(
            sides, source_of_steps, name="steps-from", what="source of the steps", blocks=True
        )
    yield from _compare_words(sides, _step_family, name="step-family", what="steps are")
    yield from _compare_words(
        sides,
        _source_of_backward,
        name="backward-from",
        what="backward is taken from",
        unknown_word=_NONE,
    )
    yield from _compare_words(
        sides, _number_of_skipped_steps, name="skipped-steps", what="skipped warm-up steps"
    )


def _number_of_skipped_steps(run: Run) -> str:
    return str(len(run.skipped_steps))


def _step_family(run: Run) -> str:
    """Return the name of the ranges that are steps, or what else the steps are."""
    if run.step_family:
        return repr(run.step_family)
    return "the whole capture" if run.is_capture else str(run.header.steps_from)


def _source_of_backward(run: Run) -> str:
    """Return in words how backward was found: as problems say, or else by ranges.

    A problem of the code "backward-by-thread", for example, says "thread". The word is `_NONE` if
    there is no backward.
    """
    prefix = "backward-by-"
    codes = [code for code in problem_codes(run) if code.startswith(prefix)]
    ways = sorted(code.removeprefix(prefix) for code in codes)
    if ways:
        return " and ".join(ways)
    phases = run.phases()["phase"].unique().to_pylist()
    return "ranges" if "backward" in phases else _NONE


# --- what was recorded ----------------------------------------------------------------------------
def _check_recording(sides: Sides) -> Iterator[Check]:
    """Yield checks of what was recorded, and how much the profiler slowed the program down.

    The message of a check is `what`, a colon, and what each side has.
    """
    yield from _message_bytes(sides)
    yield from _profiler_overhead(sides)
    yield from _compare_words(
        sides, _traces, name="traces", what="traced", unknown_word=_NOT_RECORDED
    )
    yield from _compare_words(
        sides,
        _cuda_trace,
        name="cuda-trace",
        what="CUDA was traced by different methods, which delay the program differently",
        unknown_word=_NOT_RECORDED,
    )
    yield from _compare_words(
        sides,
        _python_sampling,
        name="python-sampling",
        what="Python was sampled differently, which can slow the program down",
        unknown_word=_NOT_RECORDED,
    )
    yield from _warnings(sides)


def _message_bytes(sides: Sides) -> Iterator[Check]:
    """Yield a check if a step sends more or fewer bytes than on the other side."""
    if not _follow_same_definitions(_runs_of(sides)):
        return
    before, after = (_mean_message_bytes(side) for side in sides)
    if before is None or after is None:
        return
    change = abs(after - before)
    if change > MAX_SHARE_OF_OTHER_BYTES * max(before, after):
        texts = [f"{n_bytes / 1e6:.4g} MB" for n_bytes in (before, after)]
        what = "different message sizes per step (another model, precision or parallelism?)"
        yield _check("message-bytes", what, texts)


def _mean_message_bytes(side: Side) -> float | None:
    """Return the message bytes per step, mean over captures; None if one did not record them."""
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

    Of several problems with one code, the last one's words stand for all.
    """
    codes_of_runs = [problem_codes(run) for run in _runs_of(sides)]
    common_codes = set.intersection(*codes_of_runs)
    rows_of_sides = [_rows_of_warnings(side, common_codes) for side in sides]
    text_by_code = {}
    for row in chain.from_iterable(rows_of_sides):
        text_by_code[row["code"]] = _start_of_message(row["message"])
    if not text_by_code:
        return
    texts_of_sides = []
    for rows in rows_of_sides:
        codes_of_side = {row["code"] for row in rows}
        texts = [text for code, text in text_by_code.items() if code in codes_of_side]
        texts_of_sides.append(" / ".join(texts) or _NONE)
    is_about_logs = any(code.startswith("log-of-") for code in text_by_code)
    advice = ". nsyspipe uses a log without LABEL= for both sides" if is_about_logs else ""
    yield _check("recorded", "warnings that only some captures have", texts_of_sides, advice=advice)


def _rows_of_warnings(side: Side, common_codes: set[str]) -> list[Mapping[str, Any]]:
    """Return the warnings and errors of a side, without those that all captures have."""
    rows = [row for run in side.runs for row in run.problem_rows]
    serious_rows = [row for row in rows if row["severity"] != "info"]
    return [row for row in serious_rows if row["code"] not in common_codes]


def _start_of_message(message: str) -> str:
    """Return the first sentence of a message, up to its colon."""
    first_sentence, _, _ = message.partition(". ")
    start, _, _ = first_sentence.partition(": ")
    return start


# --- steps used -----------------------------------------------------------------------------------
def _check_steps(sides: Sides) -> Iterator[Check]:
    """Yield checks of the steps that the figures are of."""
    yield from _compare_words(
        sides,
        _incomplete_steps,
        name="cut-off-steps",
        what="incomplete steps among the steps used",
        fine_word=_NONE,
    )
    yield from _compare_words(
        sides,
        _times_of_kernels,
        name="kernel-times",
        what="times of kernels per step are",
        fine_word=_COUNTED,
        advice=". If an older nsyspipe saved the runs, save them again from their reports",
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
    """Yield a check if a capture has too few steps.

    Nothing is yielded if a capture has no steps or no ranks at all, because other checks tell this.
    """
    runs = _runs_of(sides)
    if any(run.is_capture or not run.header.n_ranks for run in runs):
        return
    fewest_steps = min(map(n_steps, runs))
    if fewest_steps < MIN_STEPS:
        texts = [_numbers_of_steps_text(side) for side in sides]
        advice = f" (at least {MIN_STEPS} are needed, {MORE_STEPS})"
        yield _check("few-steps", "too few steps used", texts, advice=advice)


def _numbers_of_steps_text(side: Side) -> str:
    return " | ".join(str(n_steps(run)) for run in side.runs)
