"""The tables of a difference: every column's unit and formula."""

from __future__ import annotations

from nsyspipe.model.table import FLAG, FLOAT, INT, TEXT, Column, TableSchema


def _text(name: str, doc: str, *, nullable: bool = False) -> Column:
    return Column(name, TEXT, "text", doc, nullable=nullable)


def _number(name: str, unit: str, doc: str, *, nullable: bool = True) -> Column:
    return Column(name, FLOAT, unit, doc, nullable=nullable)


def _sides(unit: str, doc: str, suffix: str = "") -> tuple[Column, ...]:
    return (
        _number(f"baseline{suffix}", unit, f"{doc}, of the baseline"),
        _number(f"candidate{suffix}", unit, f"{doc}, of the candidate"),
        _number(f"delta{suffix}", unit, "candidate - baseline"),
    )


METRIC_ROWS = TableSchema(
    "difference_metrics",
    "One row per figure: medians or means over summary steps of both sides, and what their difference may be.",
    ("metric",),
    (
        _text("metric", "name, as --metric takes it"),
        _text("unit", "ns, 1/s, ratio, count, bytes or bytes/s"),
        _text("better", "lower, higher, or neither"),
        _text("statistic", "median, or mean: of times where the steps of either run are uneven", nullable=True),
        *_sides("the metric's", "that over summary steps; of several captures the mean of theirs"),
        _number("delta_pct", "%", "100 x delta / baseline; null where that is 0"),
        _number("ci_low", "the metric's", "lower end of the interval of delta; null when undecided"),
        _number("ci_high", "the metric's", "upper end of it"),
        _number("confidence", "ratio", "of the interval", nullable=False),
        Column("n_baseline", INT, "count", "summary steps that have the figure, never times ranks"),
        Column("n_candidate", INT, "count", "the same of the candidate"),
        _text("method", "how the interval was made", nullable=True),
        _text("verdict", "improvement, regression, no change, or inconclusive; change of what is neither better lower nor higher"),
        _text("why", "what is lacking where there is no figure, or why it is inconclusive", nullable=True),
        *(
            _number(f"{side}_{name}", "the metric's", f"{name} over summary steps of the {side}, whatever is judged")
            for side in ("baseline", "candidate") for name in ("median", "mean")
        ),
        _number("min_effect", "the metric's", "smallest difference that counts"),
        _number("min_effect_pct", "%", "the same, of the baseline", nullable=False),
        Column("no_regression", FLAG, "flag", "the interval's worse end lies below it: --fail-on regression passes"),
        Column("settle_steps", INT, "count", "about so many steps per capture would settle it, of judged figures; null: decided, or no number would", nullable=True),
        Column("settle_captures", INT, "count", "or so many captures on each side, each of as many steps", nullable=True),
        Column("gate_steps", INT, "count", "the same for --fail-on regression", nullable=True),
        Column("gate_captures", INT, "count", "the same for --fail-on regression", nullable=True),
    ),
)  # fmt: skip

STEP_TIME_PARTS = TableSchema(
    "difference_step_time_parts",
    "One row per part of the step on the slowest rank of each step (tie: the lowest): they sum to the mean step time "
    "exactly, in every column.",
    ("part",),
    (
        _text("part", "compute, exposed_comm, exposed_memory, idle"),
        *_sides("ns", "mean over summary steps", "_ns"),
    ),
)

IDLE_CAUSE_PARTS = TableSchema(
    "difference_idle_causes",
    "One row per cause of idle time on the same ranks: they sum to the part idle exactly.",
    ("cause",),
    (
        _text("cause", "input, launch, blocked, dependency, or other: no cause that both sides recorded"),
        *_sides("ns", "mean over summary steps; null where a side did not record it", "_ns"),
    ),
)  # fmt: skip

_PER_STEP = "per rank and summary step: durations of those that start in its window"
KERNEL_CHANGES = TableSchema(
    "difference_kernels",
    "One row per (phase, normalised name) that either side runs in a summary step, the largest |delta| first.",
    ("delta_ns_per_step", "phase", "name"),
    (
        _text("phase", "phase that launched them; null outside of all", nullable=True),
        _text("name", "as in kernels"),
        _text(
            "status",
            "appeared, vanished, changed, or same: at most the minimum effect and 0.1 % of the step",
        ),
        *_sides("ns", _PER_STEP, "_ns_per_step"),
        _number(
            "baseline_n_per_step",
            "count",
            "how many, likewise; 0 where none runs in a summary step",
        ),
        _number("candidate_n_per_step", "count", "the same of the candidate"),
        _number("baseline_mean_ns", "ns", "mean duration of one; null where none runs there"),
        _number("candidate_mean_ns", "ns", "the same of the candidate"),
    ),
)

CHANGES = TableSchema(
    "difference_changes",
    "One row per fact around the runs that differs: numbers in the columns _value, words in the others.",
    ("topic", "what"),
    (
        _text("topic", "steps, collectives, copies, stragglers, link, versions, capture"),
        _text("what", "the fact"),
        _text("unit", "of the numbers; null for words", nullable=True),
        _text("baseline", "in words; null where it was not set", nullable=True),
        _text("candidate", "the same of the candidate", nullable=True),
        _number("baseline_value", "the row's", "as a number; mean of several captures"),
        _number("candidate_value", "the row's", "the same of the candidate"),
        _number("delta", "the row's", "candidate - baseline"),
    ),
)

COMPARABILITY = TableSchema(
    "difference_comparability",
    "One row per reason to doubt the comparison; those that block make all verdicts inconclusive.",
    ("check",),
    (
        _text("check", "stable name"),
        Column("blocks", FLAG, "flag", "no verdict without --force"),
        _text("baseline", "what was found"),
        _text("candidate", "what was found"),
        _text("message", "both in one sentence"),
    ),
)

PROBLEMS_OF_SIDES = TableSchema(
    "difference_problems",
    "The problems of the runs, as each says them.",
    ("side",),
    (
        _text("side", "baseline or candidate"),
        _text("run_id", "capture"),
        _text("code", "as in problems"),
        _text("severity", "error, warning, info"),
        _text("report", "where", nullable=True),
        Column("rank", INT, "id", "where", nullable=True),
        _text("message", "what"),
        _text("fix", "what mends it", nullable=True),
    ),
)
