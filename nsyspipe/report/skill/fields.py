"""Fields of a JSON document by their path, such as ``metrics[metric=step_time].verdict``."""

import json
import re
from typing import TypeAlias

from msgspec import Struct

# A path is names with dots between them. After a name, brackets choose rows of a list.
_CONDITION = r"\w+=[^\[\],=]+"
_CHOICE = rf"\[(?:\d*|{_CONDITION}(?:,{_CONDITION})*)\]"
_PART = re.compile(rf"(?P<name>\w+)(?P<choices>(?:{_CHOICE})*)")
_BRACKET = re.compile(r"\[([^\[\]]*)\]")


class Key(Struct, frozen=True):
    """The value of an object that has this name."""

    name: str


class EachRow(Struct, frozen=True):
    """All rows of a list."""


class RowAt(Struct, frozen=True):
    """The row of a list with this number, from 0."""

    number: int


class Condition(Struct, frozen=True):
    """A field of a row, and the value that it has to have."""

    key: str
    value: str | int | None


class RowsWith(Struct, frozen=True):
    """The rows of a list that meet all conditions."""

    conditions: tuple[Condition, ...]


PathStep: TypeAlias = Key | EachRow | RowAt | RowsWith


def parse_path(path: str) -> list[PathStep]:
    """Return the steps of a path.

    ``name`` is a value of an object. ``[]`` is each row of a list, ``[0]`` is its first row, and
    ``[key=value,key=value]`` is each row with these values. ``null`` and numbers are values of
    JSON. Raises a ValueError for any other text.
    """
    steps: list[PathStep] = []
    for text in _parts_of(path):
        part = _PART.fullmatch(text)
        if part is None:
            message = f"no path of a field: {path!r}"
            raise ValueError(message)
        steps.append(Key(part["name"]))
        steps.extend(_row_step(bracket) for bracket in _BRACKET.findall(part["choices"]))
    return steps


def _parts_of(path: str) -> list[str]:
    """Return the parts of a path. A dot in brackets belongs to a value."""
    return re.split(r"\.(?![^\[]*\])", path)


def _row_step(bracket: str) -> PathStep:
    """Return the step for the text between two brackets: empty, ``0``, or ``key=value``."""
    if not bracket:
        return EachRow()
    if bracket.isdigit():
        return RowAt(int(bracket))
    return RowsWith(tuple(_condition_of(text) for text in bracket.split(",")))


def _condition_of(text: str) -> Condition:
    key, _, value = text.partition("=")
    return Condition(key, _value_of(value))


def _value_of(text: str) -> str | int | None:
    if text == "null":
        return None
    return int(text) if re.fullmatch(r"-?\d+", text) else text


def jq_filter(path: str) -> str:
    """Return the filter of jq that prints the values of a path."""
    # The last stage is still being written. It may stay empty.
    stages = [""]
    for step in parse_path(path):
        match step:
            case Key():
                stages[-1] += f".{step.name}"
            case EachRow():
                stages[-1] += "[]"
            case RowAt():
                stages[-1] += f"[{step.number}]"
            case RowsWith():
                tests = [
                    f".{condition.key} == {json.dumps(condition.value)}"
                    for condition in step.conditions
                ]
                stages[-1] += "[]"
                # A filter of its own, and an empty one for the steps that follow.
                stages += [f"select({' and '.join(tests)})", ""]
    return " | ".join(filter(None, stages))


def without_choice(path: str) -> str:
    """Return a path in which every choice of rows is ``[]``, to compare paths of one field."""
    return _BRACKET.sub("[]", path)
