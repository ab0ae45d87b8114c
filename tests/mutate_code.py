"""Change the code of the package in one place at a time, and tell which changes no test notices.

``python -m tests.mutate_code SEED [NUMBER]`` draws NUMBER places (50 if not given) at random from
the rooms that compute, and runs the tests against each change, without comparing words and goldens.
It prints each change with "noticed" or "SURVIVED", and exits with 1 if fewer than 96 % are noticed.

A change that cannot change any result is no fault of the tests. Write it into `EQUIVALENT` with the
reason. The next place of the draw takes its turn.
"""

import ast
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
ROOMS = ("analysis", "run", "findings", "comparison", "replay")
DRAWN_BY_DEFAULT = 50
MIN_NOTICED_SHARE = 0.96
MINUTES_PER_CHANGE = 15

# Operator -> what stands there instead.
_SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.And: ast.Or,
    ast.Or: ast.And,
}

# Place and change -> why no result can differ.
EQUIVALENT: dict[str, str] = {
    "nsyspipe/analysis/collectives.py:28 1 -> 2": "UNGROUPED stays below every number of a group",
    "nsyspipe/comparison/student_t.py:95 4096 -> 4097": "a cache holds one entry more",
    "nsyspipe/analysis/clock.py:206 1 -> 2": "an unknown that no tie names stays 0",
}


@dataclass(frozen=True)
class Change:
    """One place of a file of the package, by its number among the places of the file."""

    file: str
    number: int
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.text}"


def changes_of(file: str, source: str) -> list[Change]:
    """Return all changes that can be made in a file, in the order of its syntax tree."""
    return [
        Change(file, number, line, text)
        for number, (line, text, _) in enumerate(_places(ast.parse(source)))
    ]


def changed(source: str, change: Change) -> str:
    """Return the source with a change made."""
    tree = ast.parse(source)
    for number, (_, _, replace_node) in enumerate(_places(tree)):
        if number == change.number:
            replace_node()
            return ast.unparse(tree)
    raise ValueError(str(change))


def _places(tree: ast.Module) -> Iterator[tuple[int, str, "_Replacement"]]:
    """Yield line, description and replacement of each number and operator."""
    in_annotations = {id(node) for node in _annotation_nodes(tree)}
    for node in ast.walk(tree):
        if id(node) in in_annotations:
            continue
        if isinstance(node, ast.Constant):
            yield from _number(node)
        elif isinstance(node, ast.Compare) and len(node.ops) == 1:
            yield from _operator(node, node.ops[0], "ops", as_list=True)
        elif isinstance(node, ast.BinOp | ast.BoolOp):
            yield from _operator(node, node.op, "op", as_list=False)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            # Twice negated: the change is made in place, and the node stays a negation.
            twice = ast.UnaryOp(ast.Not(), node.operand)
            text = f"no negation in {ast.unparse(node)[:70]}"
            yield node.lineno, text, _Replacement(node, "operand", twice)


def _number(node: ast.Constant) -> Iterator[tuple[int, str, "_Replacement"]]:
    match node.value:
        case bool():
            return
        case int(value):
            other: float = value + 1
        case float(value):
            other = 1.5 * value if value else 1.0
        case _:
            return
    yield node.lineno, f"{value} -> {other}", _Replacement(node, "value", other)


def _annotation_nodes(tree: ast.Module) -> Iterator[ast.AST]:
    for node in ast.walk(tree):
        for field in ("annotation", "returns"):
            annotation = getattr(node, field, None)
            if isinstance(annotation, ast.expr):
                yield from ast.walk(annotation)


def _operator(
    node: ast.expr, operator: ast.AST, field: str, *, as_list: bool
) -> Iterator[tuple[int, str, "_Replacement"]]:
    swapped = _SWAPPED.get(type(operator))
    if swapped is not None:
        text = f"{type(operator).__name__} -> {swapped.__name__} in {ast.unparse(node)[:70]}"
        value = [swapped()] if as_list else swapped()
        yield node.lineno, text, _Replacement(node, field, value)


@dataclass
class _Replacement:
    """Puts another value into a field of a node."""

    node: ast.AST
    field: str
    value: object

    def __call__(self) -> None:
        setattr(self.node, self.field, self.value)


def drawn(seed: int) -> Iterator[Change]:
    """Yield the changes of all rooms in random order, without those that change no result."""
    changes = []
    for room in ROOMS:
        for path in sorted((ROOT / "nsyspipe" / room).rglob("*.py")):
            name = str(path.relative_to(ROOT))
            changes += changes_of(name, path.read_text(encoding="utf-8"))
    random.Random(seed).shuffle(changes)
    return (change for change in changes if str(change) not in EQUIVALENT)


def is_noticed(change: Change, copy: Path) -> bool:
    """Run the tests on a copy of the project with a change: those of its room, then the others."""
    file = copy / change.file
    original = (ROOT / change.file).read_text(encoding="utf-8")
    file.write_text(changed(original, change), encoding="utf-8")
    room = Path(change.file).parts[1]
    others = [*(name for name in ROOMS if name != room), "property", "report", "cli"]
    try:
        return any(_fails(copy, folders) for folders in ([room], others))
    finally:
        file.write_text(original, encoding="utf-8")


def _fails(copy: Path, folders: list[str]) -> bool:
    words = ["-x", "-q", "-p", "no:randomly", "-p", "no:cacheprovider", "--without-goldens"]
    tests = [f"tests/{folder}" for folder in folders]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *words, *tests],
            cwd=copy,
            env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(copy)},
            timeout=60 * MINUTES_PER_CHANGE,
            capture_output=True,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return True  # a loop that does not end is noticed
    return done.returncode != 0


def main(seed: int, number: int) -> int:
    """Draw the changes, print what becomes of each, and return the exit code."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        ignored = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache")
        shutil.copytree(ROOT, copy, ignore=ignored)
        n_noticed = 0
        for change, _ in zip(drawn(seed), range(number), strict=False):
            noticed = is_noticed(change, copy)
            n_noticed += noticed
            print(f"{'noticed ' if noticed else 'SURVIVED'} {change}", flush=True)
    print(f"{n_noticed} of {number} changes are noticed")
    return int(n_noticed < MIN_NOTICED_SHARE * number)


if __name__ == "__main__":
    arguments = [int(word) for word in sys.argv[1:]]
    sys.exit(main(arguments[0], arguments[1] if len(arguments) > 1 else DRAWN_BY_DEFAULT))
