"""What a run could not answer, and what to change about it."""

from __future__ import annotations

from nsyspipe.schema.model import FLOAT, INT, TEXT, Column, TableSchema

__all__ = ["FINDINGS", "PROBLEMS"]

FINDINGS = TableSchema(
    "findings",
    "One row per rule that fired, by saving, largest first.",
    ("saving_ns_per_step", "id"),
    (
        Column("id", TEXT, "text", "stable identifier of the rule", ""),
        Column(
            "severity",
            TEXT,
            "text",
            "high, medium or low: the saving is at least 10 %, at least 3 % of step time, or less or not known",
            "derived",
        ),
        Column("title", TEXT, "text", "what was found", ""),
        Column("action", TEXT, "text", "what to change, in a few words", ""),
        Column("advice", TEXT, "text", "what to change, with the option's name", ""),
        Column(
            "saving_ns_per_step",
            FLOAT,
            "ns",
            "upper bound on the step time that the change could give back; null where it has none",
            "derived",
            nullable=True,
        ),
        Column(
            "expected_ns_per_step",
            FLOAT,
            "ns",
            "what the change would likely bring: step time less that of a replay with it (nsyspipe whatif, which says how), the mean over steps, never "
            "cut to saving_ns_per_step; the evidence has the replay's range, which may hold no gain at all; null where the replay knows no such change, refused it (replay_refused in the evidence says why), or the run was "
            "saved before there was this column",
            "derived",
            nullable=True,
        ),
        Column(
            "evidence", TEXT, "json", "the figures that the rule rests on, as a JSON object", ""
        ),
    ),
)

PROBLEMS = TableSchema(
    "problems",
    "One row per thing that could not be read or answered, what it costs, and what would bring it back.",
    (),
    (
        Column("code", TEXT, "text", "stable identifier", ""),
        Column("severity", TEXT, "text", "error, warning or info", ""),
        Column("report", TEXT, "text", "the report concerned", "", nullable=True),
        Column("rank", INT, "id", "the rank concerned", "", nullable=True),
        Column("message", TEXT, "text", "what is missing and which answer it costs", ""),
        Column("fix", TEXT, "text", "the flag or option that mends it", "", nullable=True),
    ),
)
