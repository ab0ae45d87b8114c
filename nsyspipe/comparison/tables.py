"""The tables of a difference and of a scoreboard: every column's unit and formula."""

from __future__ import annotations

from nsyspipe.model.table import FLAG, FLOAT, INT, TEXT, Column, TableSchema


def _text(name: str, doc: str, *, nullable: bool = False) -> Column:
    return Column(name, TEXT, "text", doc, nullable=nullable)


def _number(name: str, unit: str, doc: str, *, nullable: bool = True) -> Column:
    return Column(name, FLOAT, unit, doc, nullable=nullable)


def _count(name: str, doc: str, *, nullable: bool = False) -> Column:
    return Column(name, INT, "count", doc, nullable=nullable)


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
        _count("n_baseline", "summary steps that have the figure, never times ranks"),
        _count("n_candidate", "the same of the candidate"),
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
        _count("settle_steps", "about so many steps per capture would settle it, of judged figures; null: decided, or no number would", nullable=True),
        _count("settle_captures", "or so many captures on each side, each of as many steps", nullable=True),
        _count("gate_steps", "the same for --fail-on regression", nullable=True),
        _count("gate_captures", "the same for --fail-on regression", nullable=True),
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


def _checks(name: str, doc: str, *of: Column, values: tuple[Column, Column]) -> TableSchema:
    columns = (
        *of,
        _text("check", "stable name"),
        Column("blocks", FLAG, "flag", "no verdict without --force"),
        *values,
        _text("message", "both in one sentence"),
    )
    return TableSchema(name, doc, (*(column.name for column in of[:1]), "check"), columns)


def _problems(name: str, of: Column, run_id: str, code: str) -> TableSchema:
    columns = (
        of,
        _text("run_id", run_id),
        _text("code", code),
        _text("severity", "error, warning, info"),
        _text("report", "where", nullable=True),
        Column("rank", INT, "id", "where", nullable=True),
        _text("message", "what"),
        _text("fix", "what mends it", nullable=True),
    )
    return TableSchema(name, "The problems of the runs, as each says them.", (of.name,), columns)


COMPARABILITY = _checks(
    "difference_comparability",
    "One row per reason to doubt the comparison; those that block make all verdicts inconclusive.",
    values=(_text("baseline", "what was found"), _text("candidate", "what was found")),
)
CHECKS_OF_RUNS = _checks(
    "scoreboard_checks",
    "One row per reason to doubt a comparison: those that block are against the first, the others against the peer.",
    _text("label", "the run"),
    _text("against", "what it was compared with"),
    values=(
        _text("reference_value", "what was found there"),
        _text("value", "what was found of the run"),
    ),
)

PROBLEMS_OF_SIDES = _problems(
    "difference_problems", _text("side", "baseline or candidate"), "capture", "as in problems"
)
PROBLEMS_OF_RUNS = _problems(
    "scoreboard_problems",
    _text("label", "the run"),
    "its capture",
    "as in problems; no-figures: no step has a window on every rank",
)

# Figures that a run's summary has; of several captures of a run the mean of theirs.
SUMMARY_FIGURES = {
    "step_time_ns": ("ns", "slowest rank, median over summary steps"),
    "comm_share": ("ratio", "communication, hidden or not, of step time, pooled over ranks"),
    "exposed_comm_share": ("ratio", "communication beside no compute, of step time"),
    "overlap_ratio": ("ratio", "of communication, under compute"),
    "backward_overlap_ratio": ("ratio", "of communication, under compute of the backward pass"),
    "compute_share": ("ratio", "compute of step time"),
    "exposed_memory_share": ("ratio", "copies and memsets beside neither, of step time"),
    "idle_share": ("ratio", "of step time, the device does nothing"),
    "wait_share": ("ratio", "of step time, waiting for other ranks inside communication"),
    "dtod_ns_per_step": ("ns", "device-to-device copies, mean per rank and step"),
    "dtod_bytes_per_step": ("bytes", "the same in bytes"),
    "collectives_per_step": ("count", "mean per rank and step"),
    "message_bytes_per_step": ("bytes", "bytes of all collectives, mean per rank and step"),
    "busbw_bytes_per_s": ("bytes/s", "bus bytes over transfer time"),
}


def _speedup(prefix: str, over: str) -> tuple[Column, ...]:
    return (
        _number(f"{prefix}speedup", "ratio", f"mean step time of {over} / mean step time of this run: in steps/s"),
        _number(f"{prefix}speedup_low", "ratio", "lower end of its interval; null with too few steps"),
        _number(f"{prefix}speedup_high", "ratio", "upper end of it"),
    )  # fmt: skip


SCOREBOARD = TableSchema(
    "scoreboard",
    "One row per run, in the order given or sorted. The first that was given is the reference.",
    ("label",),
    (
        _text("label", "name of the run, unique"),
        _text("run_ids", "its captures, with a space between"),
        _count("n_captures", "captures of it"),
        _count("world_size", "ranks of the job; null when not recorded", nullable=True),
        _count("n_ranks", "ranks with a report"),
        _text("gpu_names", "GPU models, with commas between; empty when not recorded"),
        _count("n_summary_steps", "steps the figures rest on, of all captures"),
        *(_number(name, unit, doc) for name, (unit, doc) in SUMMARY_FIGURES.items()),
        _number("throughput_steps_per_s", "1/s", "1 / mean step time; of several captures of the mean of their means"),
        _number("rank_steps_per_s", "1/s", "throughput x ranks: samples/s over the batch of a rank"),
        *_speedup("", "the first"),
        _text("verdict", "of step time against the first: reference, improvement, regression, no change or inconclusive"),
        _text("why", "why it is inconclusive", nullable=True),
        _text("peer", "the first run that can be compared with this one: the same world size, GPU model and ranks"),
        *_speedup("peer_", "the peer"),
        _text("peer_verdict", "of step time against the peer; reference where that is the run itself"),
        _text("peer_why", "why that is inconclusive", nullable=True),
        _text("peer_statistic", "median, or mean where steps are uneven: what that verdict is of", nullable=True),
        _count("peer_settle_steps", "about so many steps per capture would settle it; null: decided, or no number would", nullable=True),
        _count("peer_settle_captures", "or so many captures of each run, each of as many steps", nullable=True),
        Column("is_uneven", FLAG, "flag", "mean and median of its steps are far apart, or few steps are near the median"),
        _number("mean_step_time_ns", "ns", "mean over summary steps of the slowest rank: what the parts sum to"),
        _number("compute_ns", "ns", "part of the mean step time on its slowest rank"),
        _number("exposed_comm_ns", "ns", "part of it"),
        _number("exposed_memory_ns", "ns", "part of it"),
        _number("idle_ns", "ns", "part of it"),
    ),
)  # fmt: skip
