"""What a saved table may hold, and what no column of a run holds, as JSON in its row: both checked, as sidecars are."""

from __future__ import annotations

import json
import math
from dataclasses import MISSING, dataclass, fields, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.analysis.links import SlowestLink
from nsyspipe.findings.slow_link import LinkVerdict
from nsyspipe.model.fabric import NcclFacts
from nsyspipe.model.schema import DATASET
from nsyspipe.model.sidecar import RunCapture
from nsyspipe.model.table import FLAG, FLOAT, INT
from nsyspipe.nsys.command_words import Mask, recorded_command, recorded_environment
from nsyspipe.run.run import RunHeader

if TYPE_CHECKING:
    from collections.abc import Callable

# Sums and differences of what is smaller stay in 64 bits.
_LARGEST = 2**62
_SPANS = (("start_ns", "end_ns"), ("host_start_ns", "host_end_ns"))
_LONGEST_TEXT = 1_000_000
# As objects it takes some twenty times as much memory; a run of 10 000 processes has some millions.
_LONGEST_JSON = 16 * 2**20
_MOST = 1_000_000
_DEEPEST = 8
_MISSING = object()
_NEVER_NEGATIVE = ("count", "bytes", "bytes/s")
_OF_ONE_ROW_PER_KEY = (
    "ranks", "steps", "phases", "stragglers", "kernels", "rank_summary", "phase_summary",
)  # fmt: skip


def check_values(table: pa.Table, name: str) -> None:
    """Check each column of a table of the dataset by its declared unit: as nsyspipe would have written it.

    A ValueError if a value is null or negative that never is, is no number, is too large, or ends before it starts; or if
    a text that is JSON is no object, or a row is there twice.
    """
    for column in DATASET[name].columns:
        values = table[column.name]
        if values.null_count and not column.nullable:
            raise ValueError(f"{column.name} has nulls")
        if column.type == FLOAT and not _all(pc.is_finite(values)):
            raise ValueError(f"{column.name} has values that are no number")
        if column.type in (INT, FLOAT):
            low, span = (0 if column.unit in _NEVER_NEGATIVE else -_LARGEST, pc.min_max(values).as_py())
            if span["min"] is not None and not low <= span["min"] <= span["max"] <= _LARGEST:
                raise ValueError(f"{column.name} has values beyond what a run has")
        elif column.unit == "json" and name != "runs":  # whose details are checked field by field
            for text in pc.unique(values).to_pylist():
                parsed_object(text)
    _check_rows(table, name)


def _check_rows(table: pa.Table, name: str) -> None:
    # Two steps of no length may begin at once: they are sorted by that, and told apart by their numbers.
    key = ["rank", "step"] if name == "steps" else [one for one in DATASET[name].key if one != "run_id"]
    if name in _OF_ONE_ROW_PER_KEY and len(table.group_by(key).aggregate([])) != len(table):
        raise ValueError(f"it has rows of the same {', '.join(key)}")
    for start, end in _SPANS:
        if start in table.column_names and not _all(pc.greater_equal(table[end], table[start])):
            raise ValueError(f"{end} lies before {start}")


def _all(flags: pa.ChunkedArray) -> bool:
    assert flags.type == FLAG  # noqa: S101 - of this file's own making
    return pc.all(flags).as_py() is not False


def parsed_object(text: str) -> dict[str, Any]:
    """Parse a JSON object that somebody else may have written.

    A ValueError if it is none, is too long or nested too deeply, or has a number that is none or too large.
    """
    if len(text) > _LONGEST_JSON:
        raise ValueError(f"it has {len(text)} characters, more than a run has")
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


@dataclass(frozen=True)
class Details:
    """What a run's row says beside its columns."""

    header: RunHeader
    skipped_steps: list[int]
    nccl: NcclFacts | None
    link: LinkVerdict | None
    n_host_steps: int | None  # rows of `schema.HOST_STEPS`; None: saved before there was that table


def parse_details(text: str) -> Details:
    """Read what `saved_tables` wrote; what only a later nsyspipe has is left out.

    Of the command and the variables only what may be written down is kept: an earlier nsyspipe allowed more. A ValueError
    says which field is missing, of another type, or out of range.
    """
    found = parsed_object(text)
    header = _value("RunHeader", found.get("header"), "header")
    capture = header.capture
    _check_moment(header.captured_at_utc, "header")
    if capture is not None:
        _check_moment(capture.captured_at_utc, "header.capture")
        command = None if capture.command is None else recorded_command(capture.command, Mask())
        environment = recorded_environment(capture.environment, Mask())
        capture = replace(capture, command=command, environment=environment)
    return Details(
        header=replace(header, capture=capture),
        skipped_steps=_value("list[int]", found.get("skipped_steps"), "skipped_steps"),
        nccl=_value("NcclFacts | None", found.get("nccl", _MISSING), "nccl"),
        link=_value("LinkVerdict | None", found.get("link", _MISSING), "link"),
        n_host_steps=_value("int | None", found.get("n_host_steps"), "n_host_steps"),
    )


def _value(kind: str, found: Any, where: str) -> Any:  # noqa: ANN401 - whatever stands there
    """Return a value as a declared type, named as annotations name it."""
    needed = kind.removesuffix(" | None")
    if found is None and needed != kind:
        return None
    if needed not in _OBJECTS:
        if not _IS[needed](found):
            raise ValueError(f"{where} is no {kind}")
        return tuple(found) if needed.startswith("tuple") else found
    if not isinstance(found, dict):
        raise ValueError(f"{where} is no object")  # noqa: TRY004 - of data, not of a caller
    values = {}
    for one in fields(_OBJECTS[needed]):
        if one.name in found:
            values[one.name] = _value(str(one.type), found[one.name], f"{where}.{one.name}")
        elif one.default is MISSING and one.default_factory is MISSING:
            raise ValueError(f"{where} lacks {one.name}")
    return _OBJECTS[needed](**values)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= _LONGEST_TEXT


def _is_int(value: object) -> bool:
    return type(value) is int and 0 <= value <= _LARGEST


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and abs(value) <= _LARGEST  # type: ignore[arg-type]


def _is_list(of: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: isinstance(value, list) and len(value) <= _MOST and all(map(of, value))


def _is_evidence(value: object, depth: int = 0) -> bool:
    if isinstance(value, dict | list):
        held = value.values() if isinstance(value, dict) else value
        return depth < _DEEPEST and all(_is_evidence(one, depth + 1) for one in held)
    return value is None or isinstance(value, bool) or _is_text(value) or _is_number(value)


_OBJECTS: dict[str, type[Any]] = {
    one.__name__: one for one in (RunHeader, RunCapture, NcclFacts, LinkVerdict, SlowestLink)
}
_IS: dict[str, Callable[[object], bool]] = {
    "str": _is_text,
    "int": _is_int,
    "float": _is_number,
    "bool": lambda value: isinstance(value, bool),
    "list[str]": _is_list(_is_text),
    "list[int]": _is_list(lambda value: type(value) is int and abs(value) <= _LARGEST),
    "dict[str, str]": lambda value: isinstance(value, dict) and all(map(_is_text, value.values())),
    "tuple[str, str]": lambda value: (
        isinstance(value, list) and len(value) == 2 and all(map(_is_text, value))  # noqa: PLR2004
    ),
    "Mapping[str, Any]": lambda value: isinstance(value, dict) and _is_evidence(value),
}


def _check_moment(text: str | None, where: str) -> None:
    try:
        moment = None if text is None else datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError(f"{where}.captured_at_utc is no time") from error
    if moment is not None and moment.tzinfo is None:
        raise ValueError(f"{where}.captured_at_utc is no time of UTC")
