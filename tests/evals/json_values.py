"""The values that a path chooses in a JSON document, read as the skill describes paths."""

from typing import Any

from nsyspipe.report.skill.fields import EachRow, Key, PathStep, RowAt, RowsWith, parse_path


def values_at(document: Any, path: str) -> list[Any]:
    """Return all values that a path chooses; none if a key or a row is not there."""
    values = [document]
    for step in parse_path(path):
        values = [chosen for value in values for chosen in _chosen(value, step)]
    return values


def _chosen(value: Any, step: PathStep) -> list[Any]:
    match step:
        case Key(name):
            return [value[name]] if isinstance(value, dict) and name in value else []
        case EachRow():
            return value if isinstance(value, list) else []
        case RowAt(number):
            return value[number : number + 1] if isinstance(value, list) else []
        case RowsWith(conditions):
            rows = value if isinstance(value, list) else []
            return [
                row
                for row in rows
                if all(each.key in row and row[each.key] == each.value for each in conditions)
            ]
