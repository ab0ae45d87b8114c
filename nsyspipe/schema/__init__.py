"""Every table that nsyspipe hands from one room to the next or to a user.

Times are int64 nanoseconds; intervals are half-open. A null means "not recorded".
"""

from __future__ import annotations

from nsyspipe.schema.events import COPIES, DTOD_KIND, KERNELS, LAUNCHES, MEMSET_KIND, RANGES
from nsyspipe.schema.model import SCHEMA_VERSION, Column, TableSchema, conform
from nsyspipe.schema.results import (
    DESCRIBED,
    FIGURES,
    PHASES,
    PROBLEMS,
    RANK_SUMMARY,
    RANKS,
    STEPS,
    SUMMARY,
)

__all__ = [
    "COPIES",
    "DESCRIBED",
    "DTOD_KIND",
    "FIGURES",
    "KERNELS",
    "LAUNCHES",
    "MEMSET_KIND",
    "PHASES",
    "PROBLEMS",
    "RANGES",
    "RANKS",
    "RANK_SUMMARY",
    "SCHEMA_VERSION",
    "STEPS",
    "SUMMARY",
    "Column",
    "TableSchema",
    "conform",
]
