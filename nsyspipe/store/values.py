"""What the values of a saved table must be: such as nsyspipe would have written, whoever wrote them."""

from __future__ import annotations

import json
import math
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.schema import DATASET
from nsyspipe.schema.model import FLAG, FLOAT, INT

__all__ = ["check_values", "parsed_object"]

# Sums and differences of what is smaller stay in 64 bits.
_LARGEST = 2**62
_SPANS = (("start_ns", "end_ns"), ("host_start_ns", "host_end_ns"))
_NEVER_NEGATIVE = ("count", "bytes", "bytes/s")
_OF_ONE_ROW_PER_KEY = (
    "ranks", "steps", "phases", "stragglers", "kernels", "rank_summary", "phase_summary",
)  # fmt: skip


def check_values(table: pa.Table, name: str) -> None:
    """Check each column of a table of the dataset by its declared unit.

    Raises
    ------
    ValueError
        If a value is null or negative that never is, is no number, is too large, or ends before it starts; or if a
        text that is JSON is no object, or a row is there twice.
    """
    for column in DATASET[name].columns:
        values = table[column.name]
        if values.null_count and not column.nullable:
            raise ValueError(f"{column.name} has nulls")
        if column.type == FLOAT and not _all(pc.is_finite(values)):
            raise ValueError(f"{column.name} has values that are no number")
        if column.type in (INT, FLOAT):
            low = 0 if column.unit in _NEVER_NEGATIVE else -_LARGEST
            _check_range(column.name, values, low)
        elif column.unit == "json" and name != "runs":  # whose details are checked field by field
            for text in values.to_pylist():
                parsed_object(text)
    # Two steps of no length may begin at once: they are sorted by that, and told apart by their numbers.
    key = ["rank", "step"] if name == "steps" else [one for one in DATASET[name].key if one != "run_id"]  # fmt: skip
    if name in _OF_ONE_ROW_PER_KEY and len(table.group_by(key).aggregate([])) != len(table):
        raise ValueError(f"it has rows of the same {', '.join(key)}")
    for start, end in _SPANS:
        if start in table.column_names and not _all(pc.greater_equal(table[end], table[start])):
            raise ValueError(f"{end} lies before {start}")


def _all(flags: pa.ChunkedArray) -> bool:
    assert flags.type == FLAG  # noqa: S101 - of this file's own making
    return pc.all(flags).as_py() is not False


def _check_range(name: str, values: pa.ChunkedArray, low: int) -> None:
    span = pc.min_max(values).as_py()
    if span["min"] is not None and not low <= span["min"] <= span["max"] <= _LARGEST:
        raise ValueError(f"{name} has values beyond what a run has")


def parsed_object(text: str) -> dict[str, Any]:
    """Parse a JSON object that somebody else may have written.

    Raises
    ------
    ValueError
        If it is none, is nested too deeply, or has a number that is none or too large.
    """
    try:
        found = json.loads(text, parse_constant=_number, parse_float=_number)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(found, dict):
        raise ValueError("it is no JSON object")  # noqa: TRY004 - of data, not of a caller
    return found


def _number(word: str) -> float:
    number = float(word)
    if not math.isfinite(number):
        raise ValueError(f"{word} is no number")
    return number
