"""Columns that several tables share, and short ways to declare the common sorts."""

from __future__ import annotations

from nsyspipe.schema.model import FLOAT, INT, Column

__all__ = ["RANK", "STEP", "count", "ns", "ratio"]

RANK = Column(
    "rank",
    INT,
    "id",
    "global rank",
    "the first of rank map, environment, NCCL payload, MPI thread name, file name, order that numbers every rank",
)
STEP = Column(
    "step", INT, "id", "step number, the same on every rank", "NVTX range text, or its ordinal"
)


def ns(name: str, doc: str, *, source: str = "", nullable: bool = False) -> Column:
    """Declare a column of nanoseconds."""
    return Column(name, INT, "ns", doc, source, nullable)


def count(name: str, doc: str, source: str = "", *, nullable: bool = False) -> Column:
    """Declare a column of numbers of things."""
    return Column(name, INT, "count", doc, source, nullable)


def ratio(name: str, doc: str) -> Column:
    """Declare a derived ratio; null where its denominator is 0 or its numerator null."""
    return Column(name, FLOAT, "ratio", doc, "derived", nullable=True)
