"""Whether two sides can be compared at all, and what else makes a comparison doubtful: each reason by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, combinations, islice, product
from typing import NamedTuple, TypeAlias

import pyarrow.compute as pc

from nsyspipe.analysis.traffic import EXPERT, parallelism
from nsyspipe.comparison.changes import SIDES, mean_of
from nsyspipe.comparison.series import MIN_STEPS
from nsyspipe.comparison.sides import Side
from nsyspipe.model.columns import flag, identifier, text
from nsyspipe.model.definitions import ANALYZE_AGAIN, DEFINITIONS_VERSION, latest_of
from nsyspipe.model.names import few, listed
from nsyspipe.model.problems import MIXED_RUNS, MORE_STEPS
from nsyspipe.model.table import TableSchema
from nsyspipe.run.run import Run
from nsyspipe.run.work import Work, has_whole_graphs, missing_ranks, n_steps, source_of_steps

Sides: TypeAlias = tuple[Side, Side]
Test: TypeAlias = Callable[[Sides], Iterator["Check"]]
Ask: TypeAlias = Callable[[list[Run]], bool]

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

_UNKNOWN = "not recorded"
_NONE = "none"
_GPU = "recorded"
_COUNTED = "counted"
_MUCH_OVERHEAD = (
    0.01  # from this share of step time on, the profiler's own work changes what it measures
)
# captures of one configuration differ by less, in step time and messages
_UNLIKE = 1.25
_OTHER_NUMBER = 1.1
OTHER_WORK = "other-work"
UNKNOWN_WORK = "unknown-work"
UNLIKE = "unlike-captures"
SHARED_BATCH = "shared-batch"
DEFINITIONS = "definitions"
_SAME_BYTES = 0.01  # what a run sends in a step may differ a little with padding
_AMOUNTS = (
    ("collectives_per_step", 1, "collectives"),
    ("message_bytes_per_step", 1e6, "MB of messages"),
)
_SHOWN = 6


class Check(NamedTuple):
    """One reason to doubt a comparison: a row of `COMPARABILITY`."""

    check: str
    blocks: bool
    baseline: str
    candidate: str
    message: str

    @property
    def parts(self) -> bool:
        """Whether runs are not ranked together: they differ, so that it blocks."""
        return self.blocks and not self.is_same

    @property
    def is_same(self) -> bool:
        """Whether both are one capture, which nothing can be told of."""
        return self.check == "same-capture"


def check_comparable(baseline: Side, candidate: Side) -> list[Check]:
    """Return what speaks against comparing two sides, as `_TESTS` tell it; what blocks comes first."""
    found = [check for test in _TESTS for check in test((baseline, candidate))]
    return sorted(found, key=lambda check: not check.blocks)


def _check(
    name: str, what: str, words: Sequence[str], *, blocks: bool = False, after: str = ""
) -> Check:
    before, now = words
    return Check(name, blocks, before, now, f"{what}: baseline {before}, candidate {now}{after}")


def _alike(
    name: str,
    what: str,
    word: Callable[[Run], str],
    *,
    blocks: Ask = lambda _: False,
    applies: Ask = lambda _: True,
    unless: str | None = None,
    fine: str | None = None,
    after: str = "",
) -> Test:
    """Return a test that what a word says of a capture is the same of all, and what is fine; none where one is `unless`."""

    def test(sides: Sides) -> Iterator[Check]:
        runs = _runs(sides)
        words = [list(dict.fromkeys(map(word, side.runs))) for side in sides]
        values = {*words[0], *words[1]}
        if (
            applies(runs)
            and unless not in values
            and (len(values) > 1 or (fine is not None and values != {fine}))
        ):
            yield _check(name, what, list(map(" | ".join, words)), blocks=blocks(runs), after=after)

    return test


def _runs(sides: Sides) -> list[Run]:
    return [run for side in sides for run in side.runs]


def _same_capture(sides: Sides) -> Iterator[Check]:
    """Tell of a baseline that is the candidate, under whatever run ids: nothing is compared, and a gate would always pass."""
    pairs = (
        (before, now)
        for now, before in product(sides[1].runs, sides[0].runs)
        if _is_same(before, now)
    )
    for before, now in islice(pairs, 1):
        label = before.header.label
        message = f"both sides are the same capture: {label}"
        yield Check(
            "same-capture", blocks=True, baseline=label, candidate=now.header.label, message=message
        )


def _repeated_capture(sides: Sides) -> Iterator[Check]:
    """Warn of captures that a side has twice: they say nothing of the spread between captures."""
    pairs = (combinations(side.runs, 2) for side in sides)
    words = [
        ", ".join(now.header.run_id for before, now in pair if _is_same(before, now))
        for pair in pairs
    ]
    if any(words):
        yield _check(
            "repeated-capture", "one capture has two run IDs", [word or _NONE for word in words]
        )


def _is_same(before: Run, now: Run) -> bool:
    """Tell whether two runs share what no two captures do, under whatever run ids they were saved; the cheap first."""
    at = before.header.captured_at_utc
    keys = ["rank", "pid", "n_kernels"]
    if before is now or at is None or at != now.header.captured_at_utc:
        return before is now
    is_as_long = before.summary()["step_time_ns"].equals(now.summary()["step_time_ns"])
    return bool(is_as_long and before.ranks.select(keys).equals(now.ranks.select(keys)))


def check_order(baseline: Side, candidate: Side) -> Iterator[Check]:
    """Tell of a candidate that was captured before the baseline: the two may be the wrong way round."""
    before, now = (
        [run.header.captured_at_utc for run in side.runs] for side in (baseline, candidate)
    )
    if all(before) and all(now) and (last := max(map(str, now))) < (first := min(map(str, before))):
        times = [f"{time[:19].replace('T', ' ')} UTC" for time in (first, last)]
        after = ". Swap the arguments if their order is wrong"
        yield _check(
            "capture-order", "the candidate was captured before the baseline", times, after=after
        )


def check_definitions(baseline: Side, candidate: Side) -> Iterator[Check]:
    """Tell of captures that were saved with other definitions than others: only figures that mean the same are compared."""
    words = _definitions_by_side((baseline, candidate))
    if words[0] != words[1] or any("|" in word for word in words):
        after = f". Communication, copies and compute are not compared ({ANALYZE_AGAIN})"
        yield _check(DEFINITIONS, "different versions of the definitions", words, after=after)


def _other_ranks(sides: Sides) -> Iterator[Check]:
    """Tell of ranks that are not ranks of the other definitions: several devices of a process were one rank in version 1."""
    runs = _runs(sides)
    latest = latest_of(run.definitions_version for run in runs)
    outdated = [run for run in runs if run.definitions_version != latest]
    if outdated and (
        latest > DEFINITIONS_VERSION or any(map(_has_rank_of_several_devices, outdated))
    ):
        after = f". The definition of a rank may differ ({ANALYZE_AGAIN})"
        yield _check(
            "definitions-of-ranks",
            "different versions of the definitions",
            _definitions_by_side(sides),
            blocks=True,
            after=after,
        )


def _has_rank_of_several_devices(run: Run) -> bool:
    return any("," in devices for devices in run.ranks["device_ids"].to_pylist())


def _definitions_by_side(sides: Sides) -> list[str]:
    versions = [sorted({run.definitions_version for run in side.runs}) for side in sides]
    return [" | ".join(map(str, version)) for version in versions]


def _follow_same_definitions(runs: Sequence[Run]) -> bool:
    return len({run.definitions_version for run in runs}) == 1


def _is_sized(runs: list[Run]) -> bool:
    return all(run.header.n_job_ranks is not None for run in runs)


def _message_bytes(sides: Sides) -> Iterator[Check]:
    if not _follow_same_definitions(_runs(sides)):
        return
    before, after = (
        mean_of(run.summary()["message_bytes_per_step"][0].as_py() for run in side.runs)
        for side in sides
    )
    if (
        before is not None
        and after is not None
        and abs(after - before) > _SAME_BYTES * max(before, after)
    ):
        texts = [f"{mean / 1e6:.4g} MB" for mean in (before, after)]
        yield _check(
            "message-bytes",
            "different message sizes per step (another model, precision or parallelism?)",
            texts,
        )


def _other_work(sides: Sides) -> Iterator[Check]:
    works = [side.work for side in sides]
    if any(work.busy_ns is None for work in works):
        if all(map(n_steps, _runs(sides))):
            texts = [
                "unknown compute" if work.busy_ns is None else "known compute" for work in works
            ]
            after = ". Unrecorded work may be of another model, batch size or precision"
            what = "nsyspipe cannot check that steps do the same work"
            yield _check(UNKNOWN_WORK, what, texts, after=after, blocks=texts[0] != texts[1])
    elif all(work.kernels for work in works) and works[0].is_other(works[1]):
        # if all is in the same kernels, time and number differ
        share = f"{100 * works[1].shared(works[0]):.0f}%"
        alike = (
            ""
            if share == "100%"
            else f" (only {share} of this compute time is in kernels that the {SIDES[0]} also runs)"
        )
        texts = [works[0].text, works[1].text + alike]
        yield _check(OTHER_WORK, "different work per step", texts, blocks=True)


def _ranks_per_batch(sides: Sides) -> Iterator[Check]:
    """Tell of ranks of which more share a batch than on the other side, or may: as many ranks process fewer batches."""
    is_sure = sides[0].work.other_batches(sides[1].work)
    if is_sure is not None:
        words = [" | ".join(side.work.per_batch) for side in sides]
        after = ". Ranks of one tensor or pipeline parallel group share a batch"
        yield _check(
            SHARED_BATCH, "different model-parallel sizes", words, blocks=is_sure, after=after
        )


def collectives_per_step(
    run: Run, by: Sequence[str] = ("collective", "datatype")
) -> dict[str, float]:
    """Return how many collectives of each sort a rank has per summary step."""
    rows = run.collectives()
    counts = (
        rows.filter(rows["in_summary"])
        .group_by(by, use_threads=False)
        .aggregate([([], "count_all")])
        .to_pylist()
    )
    n = n_steps(run) * run.header.n_ranks
    return {" ".join(row[name] for name in by if row[name]): row["count_all"] / n for row in counts}


def _unlike_captures(sides: Sides) -> Iterator[Check]:
    """Tell of captures of one side that are hardly of one configuration: spread between them is not noise."""
    for at, side in enumerate(sides):
        if len(side.runs) > 1 and (facts := _apart(side.runs)):
            by = facts[0]
            why = ", ".join(facts[1:])
            message = (
                f"captures of {side.name} differ {by} ({why}). Pass only captures of one "
                "configuration"
            )
            words = [by if number == at else _NONE for number in range(2)]
            yield Check(UNLIKE, blocks=True, baseline=words[0], candidate=words[1], message=message)


def _apart(runs: Sequence[Run]) -> list[str]:
    """Return by how much captures differ and in what, if by more than those of one configuration do."""
    rows = sorted(
        (run.summary().to_pylist()[0] for run in runs), key=lambda row: row["step_time_ns"] or 0.0
    )
    times = [row["step_time_ns"] for row in rows if row["step_time_ns"]] or [1.0]
    facts = []
    are_alike_defined = _follow_same_definitions(runs)
    for column, unit, what in _AMOUNTS if are_alike_defined else ():
        values = [value for row in rows if (value := row[column]) is not None]
        if max(values, default=0.0) > _OTHER_NUMBER * min(values, default=0.0):
            facts.append(
                f"{' and '.join(dict.fromkeys(f'{value / unit:.4g}' for value in values))} {what}"
            )
    # Of datatypes where all were recorded; inside graphs as a whole it was not seen.
    is_typed = not any(run.collectives()["datatype"].null_count for run in runs)
    is_seen = are_alike_defined and not any(map(has_whole_graphs, runs))
    seen = [run for run in runs if n_steps(run)] if is_seen else []
    counts = [collectives_per_step(run, ("collective", "datatype")[: 1 + is_typed]) for run in seen]
    sorts = {sort: [count.get(sort, 0.0) for count in counts] for sort in sorted({*chain(*counts)})}
    most = max(map(sum, zip(*sorts.values(), strict=True)), default=0.0)
    of_some = [sort for sort, numbers in sorts.items() if not all(numbers)]
    if of_some and most > _OTHER_NUMBER * sum(map(min, sorts.values())):
        facts.append(f"only some have {listed(of_some)}")
    works = [work for run in runs if (work := Work.of([run])).kernels]
    facts += ["different kernels"] * any(one.is_other(two) for one, two in combinations(works, 2))
    if not facts and times[-1] <= _UNLIKE * times[0]:
        return []
    by = f"by {100 * (times[-1] / times[0] - 1):.0f}%"
    return [by, f"{times[0] / 1e6:.4g} and {times[-1] / 1e6:.4g} ms per step", *facts]


def _profiler_overhead(sides: Sides) -> Iterator[Check]:
    steps = [[run.breakdown() for run in side.runs] for side in sides]
    sums = [
        [[pc.sum(one[name]).as_py() or 0 for name in ("overhead_ns", "wall_ns")] for one in side]
        for side in steps
    ]
    shares = [[overhead / wall if wall else 0.0 for overhead, wall in side] for side in sums]
    if max(map(max, shares)) >= _MUCH_OVERHEAD:
        texts = [" | ".join(f"{100 * one:.1f}%" for one in side) for side in shares]
        yield _check("profiler-overhead", "large profiler overhead in the steps", texts)


def _backward_from(run: Run) -> str:
    parts = {code.partition("backward-by-") for code in [row["code"] for row in run.problem_rows]}
    is_marked = "backward" in run.phases()["phase"].to_pylist()
    return " and ".join(sorted(way for _, _, way in parts if way)) or (
        "ranges" if is_marked else _NONE
    )


def _warnings(sides: Sides) -> Iterator[Check]:
    """Tell of warnings that not all captures have, by their codes, in the words before their colon."""
    rows = [
        [row for run in side.runs for row in run.problem_rows if row["severity"] != "info"]
        for side in sides
    ]
    of_each = [{row["code"] for row in run.problem_rows} for run in _runs(sides)]
    of_some = {
        row["code"]: _first_sentence(row["message"])
        for side in rows
        for row in side
        if not all(row["code"] in one for one in of_each)
    }
    if of_some:
        words = [
            " / ".join(
                text for code, text in of_some.items() if code in {row["code"] for row in side}
            )
            or _NONE
            for side in rows
        ]
        is_log = any(code.startswith("log-of-") for code in of_some)
        after = ". nsyspipe uses a log without LABEL= for both sides" * is_log
        yield _check("recorded", "warnings that only some captures have", words, after=after)


def _first_sentence(message: str) -> str:
    return message.partition(". ")[0].partition(": ")[0]


def _few_steps(sides: Sides) -> Iterator[Check]:
    if any(run.is_capture or not run.header.n_ranks for run in _runs(sides)):
        return  # more steps are not what is lacking
    numbers = [[n_steps(run) for run in side.runs] for side in sides]
    if min(map(min, numbers)) < MIN_STEPS:
        texts = [" | ".join(map(str, side)) for side in numbers]
        after = f" (at least {MIN_STEPS} are needed, {MORE_STEPS})"
        yield _check("few-steps", "too few steps used", texts, after=after)


# In this order they are told. Figures of a step are none of a capture; what a capture lacks it
# measures as less.
_TESTS: tuple[Test, ...] = (
    _same_capture,
    _repeated_capture,
    _unlike_captures,
    _alike(
        "world-size",
        "world size",
        lambda run: str(run.header.n_job_ranks),
        blocks=_is_sized,
        applies=_is_sized,
    ),
    _alike(
        "world-size",
        "number of ranks",
        lambda run: str(run.header.n_ranks),
        blocks=lambda _: True,
        applies=lambda runs: not _is_sized(runs),
    ),
    _alike(
        "no-gpu-activity",
        "GPU activity",
        lambda run: _GPU if run.header.n_ranks else _UNKNOWN,
        blocks=lambda runs: any(run.header.n_ranks for run in runs),
        fine=_GPU,
    ),
    _alike(
        "gpu-model",
        "GPU model",
        lambda run: ", ".join(run.header.gpu_names) or _UNKNOWN,
        blocks=lambda runs: all(run.header.gpu_names for run in runs),
    ),
    _alike(
        "missing-ranks",
        "missing ranks",
        lambda run: few(missing_ranks(run), _SHOWN) or _NONE,
        blocks=lambda runs: len(set(map(missing_ranks, runs))) > 1,
        fine=_NONE,
    ),
    _alike(
        "mixed-runs",
        "reports that may be of different runs",
        lambda run: (
            ", ".join(sorted(MIXED_RUNS & {row["code"] for row in run.problem_rows})) or _NONE
        ),
        blocks=lambda _: True,
        fine=_NONE,
    ),
    _other_ranks,
    _ranks_per_batch,
    _other_work,
    _alike(
        "experts",
        "all-to-all of expert parallelism",
        lambda run: "some" if EXPERT in parallelism(run.traffic()) else _NONE,
        applies=lambda runs: not any(map(has_whole_graphs, runs)),
        after=". If only one side has experts, the models differ",
    ),
    _alike(
        "steps-from",
        "source of the steps",
        source_of_steps,
        blocks=lambda _: True,
        applies=lambda runs: all(run.header.n_ranks for run in runs),
    ),
    _alike(
        "step-family",
        "steps are",
        lambda run: (
            repr(run.step_family)
            if run.step_family
            else "the whole capture"
            if run.is_capture
            else str(run.header.steps_from)
        ),
    ),
    _alike("backward-from", "backward is taken from", _backward_from, unless=_NONE),
    _alike("skipped-steps", "skipped warm-up steps", lambda run: str(len(run.skipped_steps))),
    _message_bytes,
    _profiler_overhead,
    _alike(
        "traces",
        "traced",
        lambda run: ", ".join(
            sorted((run.header.capture and run.header.capture.trace) or [_UNKNOWN])
        ),
        unless=_UNKNOWN,
    ),
    _warnings,
    _alike(
        "cut-off-steps",
        "incomplete steps among the steps used",
        lambda run: (
            _NONE
            if run.is_capture or pc.all(run.breakdown()["is_complete"], min_count=0).as_py()
            else "some"
        ),
        fine=_NONE,
    ),
    _alike(
        "kernel-times",
        "times of kernels per step are",
        lambda run: _UNKNOWN if run.kernels()["in_summary_ns"].null_count else _COUNTED,
        fine=_COUNTED,
        after=". If an older nsyspipe saved the runs, save them again from their reports",
    ),
    _few_steps,
)
