"""Which arguments of two commands differ: a command as a whole is too long to see that."""

from __future__ import annotations

import re
import shlex

from msgspec import Struct

_NUMBER = re.compile(r"-[\d.]")  # begins a negative number, which is no option
_BETWEEN_COMMANDS = "|"
_FREE = ""  # the name of words that belong to no option
_WITHOUT_VALUE = ""


class ChangedArgument(Struct, frozen=True):
    """An option, or the words of no option, that two commands do not share; None is "not given", empty is "given"."""

    name: str
    before: str | None
    after: str | None


def changed_arguments(before: str, after: str) -> list[ChangedArgument]:
    """Return which arguments of two commands differ, in their order; none where only their order does.

    Where a side is several commands, with ``|`` between them, an argument has all values that it has in them.
    """
    old = _arguments(before)
    new = _arguments(after)
    changed = []
    for name in dict.fromkeys((*old, *new)):
        if old.get(name) == new.get(name):
            continue
        values = [old.get(name, {}), new.get(name, {})]
        if name == _FREE:  # of which only some differ
            values = [
                dict.fromkeys(own for own in values[at] if own not in values[1 - at])
                for at in (0, 1)
            ]
        texts = [", ".join(value) if value else None for value in values]
        if texts[0] != texts[1]:
            changed.append(ChangedArgument(name, *texts))
    return changed


def hidden_arguments(command: str, hidden: str) -> list[str]:
    """Return the names of the arguments whose value is hidden, which is what stands in its place."""
    return [
        name
        for name, values in _arguments(command).items()
        if any(hidden in value for value in values)
    ]


def _arguments(command: str) -> dict[str, dict[str, None]]:
    """Return the distinct values of each option of a command, in their order."""
    try:
        words = shlex.split(command)
    except ValueError:
        return {_FREE: {command: None}}
    found: dict[str, dict[str, None]] = {}
    name = _FREE
    own = list[str]()

    def close() -> None:
        if name != _FREE:
            found.setdefault(name, {})[" ".join(own)] = None

    for word in words:
        is_option = word.startswith("-") and len(word.strip("-")) > 0 and not _NUMBER.match(word)
        key, equals, value = word.partition("=")
        if word == _BETWEEN_COMMANDS:
            close()
            name = _FREE
            own = []
        elif is_option:
            close()
            name = key
            own = [value] if equals else []
        elif equals and key:  # as Hydra has its settings
            found.setdefault(key, {})[value] = None
        elif name == _FREE:
            found.setdefault(_FREE, {})[word] = None
        else:
            own.append(word)
    close()
    return found
