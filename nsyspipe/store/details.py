"""What no column of a saved run holds, as JSON in its row: checked field by field, as sidecars are."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from nsyspipe.command_words import Mask, recorded_command, recorded_environment
from nsyspipe.fabric import NcclFacts
from nsyspipe.findings.link_evidence import LinkVerdict
from nsyspipe.header import RunHeader
from nsyspipe.sidecar_model import RunCapture
from nsyspipe.slowest_link import SlowestLink
from nsyspipe.store.values import parsed_object

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Details", "parse_details"]

T = TypeVar("T")

_LARGEST = 2**62
_LONGEST_TEXT = 1_000_000
_MOST = 1_000_000
_DEEPEST = 8
_MISSING = object()


@dataclass(frozen=True)
class Details:
    """What a run's row says beside its columns.

    Attributes
    ----------
    n_host_steps
        Rows of `schema.HOST_STEPS`; None of a run that was saved before there was that table.
    """

    header: RunHeader
    skipped_steps: list[int]
    nccl: NcclFacts | None
    link: LinkVerdict | None
    n_host_steps: int | None


def parse_details(text: str) -> Details:
    """Read what `saved_tables` wrote; what only a later nsyspipe has is left out.

    Of the command and the variables only what may be written down is kept: an earlier nsyspipe allowed more.

    Raises
    ------
    ValueError
        If it is no such JSON, or a field is missing, of another type, or out of range; the message says which.
    """
    found = parsed_object(text)
    header = _value("RunHeader", found.get("header"), "header")
    for where, moment in (("header", header), ("header.capture", header.capture)):
        if moment is not None and moment.captured_at_utc is not None:
            _check_moment(moment.captured_at_utc, where)
    return Details(
        header=replace(header, capture=_masked(header.capture)),
        skipped_steps=_value("list[int]", found.get("skipped_steps"), "skipped_steps"),
        nccl=_value("NcclFacts | None", found.get("nccl", _MISSING), "nccl"),
        link=_value("LinkVerdict | None", found.get("link", _MISSING), "link"),
        n_host_steps=_value("int | None", found.get("n_host_steps"), "n_host_steps"),
    )


def _masked(capture: RunCapture | None) -> RunCapture | None:
    if capture is None:
        return None
    command = capture.command
    return replace(
        capture,
        command=None if command is None else recorded_command(command, Mask()),
        environment=recorded_environment(capture.environment, Mask()),
    )


def _rebuilt(kind: type[T], found: Any, where: str) -> T:  # noqa: ANN401 - whatever stands there
    """Make an object of its fields, each of its declared type."""
    if not isinstance(found, dict):
        raise ValueError(f"{where} is no object")  # noqa: TRY004 - of data, not of a caller
    values = {}
    for one in fields(kind):  # type: ignore[arg-type]
        if one.name in found:
            values[one.name] = _value(str(one.type), found[one.name], f"{where}.{one.name}")
        elif one.default is MISSING and one.default_factory is MISSING:
            raise ValueError(f"{where} lacks {one.name}")
    return kind(**values)


def _value(kind: str, found: Any, where: str) -> Any:  # noqa: ANN401 - whatever stands there
    """Return a value as a declared type, named as annotations name it."""
    needed = kind.removesuffix(" | None")
    if found is None and needed != kind:
        return None
    if needed in _OBJECTS:
        return _rebuilt(_OBJECTS[needed], found, where)
    if not _IS[needed](found):
        raise ValueError(f"{where} is no {kind}")
    return tuple(found) if needed.startswith("tuple") else found


def _is_text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= _LONGEST_TEXT


def _is_int(value: object) -> bool:
    return type(value) is int and 0 <= value <= _LARGEST


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and abs(value) <= _LARGEST  # type: ignore[arg-type]


def _is_list(of: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: isinstance(value, list) and len(value) <= _MOST and all(map(of, value))


def _is_texts_by_name(value: object) -> bool:
    return isinstance(value, dict) and all(map(_is_text, value.values()))


def _is_evidence(value: object, depth: int = 0) -> bool:
    if isinstance(value, dict):
        return depth < _DEEPEST and all(_is_evidence(one, depth + 1) for one in value.values())
    if isinstance(value, list):
        return depth < _DEEPEST and all(_is_evidence(one, depth + 1) for one in value)
    return value is None or isinstance(value, bool) or _is_text(value) or _is_number(value)


_OBJECTS: dict[str, type] = {
    "RunHeader": RunHeader,
    "RunCapture": RunCapture,
    "NcclFacts": NcclFacts,
    "LinkVerdict": LinkVerdict,
    "SlowestLink": SlowestLink,
}
_IS: dict[str, Callable[[object], bool]] = {
    "str": _is_text,
    "int": _is_int,
    "float": _is_number,
    "bool": lambda value: isinstance(value, bool),
    "list[str]": _is_list(_is_text),
    "list[int]": _is_list(lambda value: type(value) is int and abs(value) <= _LARGEST),
    "dict[str, str]": _is_texts_by_name,
    "tuple[str, str]": lambda value: (
        isinstance(value, list) and len(value) == 2 and all(map(_is_text, value))  # noqa: PLR2004
    ),
    "Mapping[str, Any]": lambda value: isinstance(value, dict) and _is_evidence(value),
}


def _check_moment(text: str, where: str) -> None:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError(f"{where}.captured_at_utc is no time") from error
    if moment.tzinfo is None:
        raise ValueError(f"{where}.captured_at_utc is no time of UTC")
