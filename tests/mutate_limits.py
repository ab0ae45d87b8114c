"""Move each limit of the rules a little, down and up, and tell which move no test notices.

``python -m tests.mutate_limits`` prints the moves that survive and exits with 1 if there are some.
Words go with it to choose limits: ``python -m tests.mutate_limits slow_link``.
"""

import ast
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict, replace

from nsyspipe import findings
from tests.findings.limits import LIMITS, Use
from tests.findings.make import answers


class Move(Struct, frozen=True):
    """A limit with another value, and one of the places where it decides."""

    limit: str
    value: float
    use: Use

    def __str__(self) -> str:
        return f"{self.limit} = {self.value} in {self.use.module}: {', '.join(self.use.tests)}"


def numbers_of_rules() -> dict[str, float]:
    """Return the numbers that modules of `findings` assign or import, by where they are assigned.

    Names are below `nsyspipe`: ``findings.judge._HIGH``, ``analysis.steps.FEW_STEPS``.
    """
    found: dict[str, float] = {}
    for folder in findings.__path__:
        for path in sorted(Path(folder).glob("*.py")):
            place = "findings" if path.stem == "__init__" else f"findings.{path.stem}"
            source = ast.parse(path.read_text(encoding="utf-8"))
            names = {(place, name) for name in assigned_names(source)} | imported_names(source)
            for module, name in names:
                value = vars(import_module(f"nsyspipe.{module}"))[name]
                found |= dict(numbers_in(f"{module}.{name}", value))
    return found


def imported_names(source: ast.Module) -> set[tuple[str, str]]:
    """Return the constants that a module imports from nsyspipe, each with the module that has it."""
    imports = [
        node
        for node in source.body
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("nsyspipe.")
    ]
    return {
        ((node.module or "").removeprefix("nsyspipe."), imported.name)
        for node in imports
        for imported in node.names
        if imported.name.isupper()
    }


def assigned_names(source: ast.Module) -> list[str]:
    """Return the names that a module assigns on its own level, in tuples too."""
    assignments = [node for node in source.body if isinstance(node, ast.Assign | ast.AnnAssign)]
    targets = [
        target
        for node in assignments
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    ]
    return [
        node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)
    ]


def numbers_in(name: str, value: Any) -> Iterator[tuple[str, float]]:
    """Yield the numbers in a value, each with where it is: fields, elements and values of mappings too."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        yield name, value
    inside: list[tuple[str, Any]] = []
    if isinstance(value, Struct):
        inside = [(f"{name}.{field}", one) for field, one in asdict(value).items()]
    elif isinstance(value, dict) and "__spec__" not in value:  # else a module's own names
        inside = [(f"{name}[{key!r}]", one) for key, one in value.items()]
    elif isinstance(value, tuple | list | set | frozenset):
        inside = [(f"{name}[{place}]", one) for place, one in enumerate(value)]
    for where, one in inside:
        yield from numbers_in(where, one)


def moves() -> list[Move]:
    """Return every limit with its lower and its higher value, once for each place where it decides."""
    return [
        Move(name, value, use)
        for name, limit in LIMITS.items()
        for use in limit.uses
        for value in (limit.lower, limit.higher)
    ]


@contextmanager
def moved(limit: str, value: float) -> Iterator[None]:
    """Give a limit another value, in all modules that import it too."""
    room, module_name, name, *field = limit.split(".")
    owner = import_module(f"nsyspipe.{room}.{module_name}")
    original = vars(owner)[name]
    changed = replace(original, **{field[0]: value}) if field else value
    modules = [owner, *modules_that_import(name, original)]
    try:
        for module in modules:
            setattr(module, name, changed)
        yield
    finally:
        for module in modules:
            setattr(module, name, original)


def modules_that_import(name: str, value: object) -> list[ModuleType]:
    """Return the modules of nsyspipe that hold a value under a public name; private names stay in their module."""
    if name.startswith("_"):
        return []
    return [
        module
        for module in [*sys.modules.values()]
        if module.__name__.partition(".")[0] == "nsyspipe" and vars(module).get(name) is value
    ]


def is_noticed(move: Move) -> bool:
    """Tell whether a test of the place where the limit decides fails with the moved limit."""
    with moved(move.limit, move.value):
        return any(fails(check) for check in checks_of(move.use))


def checks_of(use: Use) -> list[Callable[[], None]]:
    """Return the tests of a use, each as something to call; `KeyError` for a name that its module lacks."""
    module = import_module(f"tests.findings.{use.module}")
    cases = {case.id: case.values for case in getattr(module, "CASES", ())}
    if cases:
        return [partial(answer_again, *cases[name]) for name in use.tests]
    return [vars(module)[name] for name in use.tests]


def answer_again(rule: Any, given: Any, expected: Any) -> None:
    """Check a case on evidence that is built anew, since evidence keeps figures that follow from limits."""
    given.build_again()
    try:
        answers(rule, given, expected, lambda _: None)
    finally:
        given.build_again()


def fails(check: Callable[[], None]) -> bool:
    """Tell whether a test fails by one of its own assertions; any other error is one."""
    try:
        check()
    except AssertionError:
        return True
    return False


def main(words: list[str]) -> int:
    """Print the moves that no test notices, of limits whose names hold one of these words, or of all."""
    chosen = [move for move in moves() if not words or any(word in move.limit for word in words)]
    survivors = [move for move in chosen if not is_noticed(move)]
    for move in survivors:
        print(f"not noticed: {move}")
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} moves are noticed")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
