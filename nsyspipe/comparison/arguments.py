"""Which arguments of two commands differ: nobody sees this in two whole commands."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator

from msgspec import Struct

# Begins a negative number, which is not an option.
_NEGATIVE_NUMBER = re.compile(r"-[\d.]")
_BETWEEN_COMMANDS = "|"
# The name of words that belong to no option.
_NO_OPTION = ""

# By name of argument: its distinct values in their order, as the keys of a dict.
Arguments = dict[str, dict[str, None]]


class ChangedArgument(Struct, frozen=True):
    """An option, or the words of no option, that differ between two commands.

    None means that the argument is not given; an empty text that it is given without a value.
    """

    name: str
    before: str | None
    after: str | None


def changed_arguments(before: str, after: str) -> list[ChangedArgument]:
    """Return which arguments of two commands differ, in their order; none if only the order does.

    A side may be several commands with ``|`` between them. The values of an argument are then those
    of all these commands.
    """
    old = _arguments(before)
    new = _arguments(after)
    changed = []
    for name in dict.fromkeys((*old, *new)):
        old_values = old.get(name, {})
        new_values = new.get(name, {})
        # The order of values does not count.
        if old_values.keys() == new_values.keys():
            continue
        old_text = _changed_text(name, old_values, new_values)
        new_text = _changed_text(name, new_values, old_values)
        if old_text != new_text:
            changed.append(ChangedArgument(name, old_text, new_text))
    return changed


def _changed_text(name: str, values: Iterable[str], opposite: Iterable[str]) -> str | None:
    """Return the values of an argument; of words of no option those that the other side lacks."""
    shown = [*values]
    if name == _NO_OPTION:
        shown = [value for value in shown if value not in opposite]
    return ", ".join(shown) if shown else None


def hidden_arguments(command: str, hidden: str) -> list[str]:
    """Return the names of arguments with a value that is hidden; `hidden` stands in its place."""
    arguments = _arguments(command).items()
    return [name for name, values in arguments if hidden in "\n".join(values)]


def _arguments(command: str) -> Arguments:
    """Return the values of each argument of a command, as the keys of a dict.

    A command that cannot be split is a single word.
    """
    try:
        words = shlex.split(command)
    except ValueError:
        return {_NO_OPTION: {command: None}}
    arguments: Arguments = {}
    for name, value in _named_values(words):
        arguments.setdefault(name, {})[value] = None
    return arguments


class _OpenOption(Struct):
    """An option that the words after it are values of."""

    name: str
    values: list[str]


def _named_values(words: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield the arguments of commands with their values.

    An option without = has the words after it as values, up to the next option or the end of the
    command. It is yielded after its last value was read. Words before any option are yielded one by
    one, as values of `_NO_OPTION`.
    """
    option: _OpenOption | None = None
    for word in words:
        ends_option = word == _BETWEEN_COMMANDS or _is_option(word)
        if ends_option and option is not None:
            yield option.name, " ".join(option.values)
            option = None
        name, equals_sign, value = word.partition("=")
        if word == _BETWEEN_COMMANDS:
            continue
        # NAME=VALUE is a whole argument, also without hyphens as in Hydra.
        if equals_sign and name:
            yield name, value
        elif _is_option(word):
            option = _OpenOption(word, [])
        elif option is None:
            yield _NO_OPTION, word
        else:
            option.values.append(word)
    if option is not None:
        yield option.name, " ".join(option.values)


def _is_option(word: str) -> bool:
    has_name = bool(word.strip("-"))
    return word.startswith("-") and has_name and not _NEGATIVE_NUMBER.match(word)
