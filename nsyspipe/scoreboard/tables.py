"""The tables of a scoreboard: every column's unit and formula."""

from __future__ import annotations

from nsyspipe.schema.model import FLAG, FLOAT, INT, TEXT, Column, TableSchema

__all__ = ["CHECKS_OF_RUNS", "PROBLEMS_OF_RUNS", "SCOREBOARD", "SUMMARY_FIGURES"]

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


def _text(name: str, doc: str, *, nullable: bool = False) -> Column:
    return Column(name, TEXT, "text", doc, nullable=nullable)


def _number(name: str, unit: str, doc: str) -> Column:
    return Column(name, FLOAT, unit, doc, nullable=True)


def _count(name: str, doc: str, *, nullable: bool = False) -> Column:
    return Column(name, INT, "count", doc, nullable=nullable)


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

CHECKS_OF_RUNS = TableSchema(
    "scoreboard_checks",
    "One row per reason to doubt a comparison: those that block are against the first, the others against the peer.",
    ("label", "check"),
    (
        _text("label", "the run"),
        _text("against", "what it was compared with"),
        _text("check", "stable name"),
        Column("blocks", FLAG, "flag", "no verdict without --force"),
        _text("reference_value", "what was found there"),
        _text("value", "what was found of the run"),
        _text("message", "both in one sentence"),
    ),
)

PROBLEMS_OF_RUNS = TableSchema(
    "scoreboard_problems",
    "The problems of the runs, as each says them.",
    ("label",),
    (
        _text("label", "the run"),
        _text("run_id", "its capture"),
        _text("code", "as in problems; no-figures: no step has a window on every rank"),
        _text("severity", "error, warning, info"),
        _text("report", "where", nullable=True),
        Column("rank", INT, "id", "where", nullable=True),
        _text("message", "what"),
        _text("fix", "what mends it", nullable=True),
    ),
)
