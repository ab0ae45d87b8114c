"""How dense the code is: what a reader has to hold in mind at once, counted from the syntax tree.

No layout changes these counts, except of lines that are too long.
"""

import ast
import io
import tokenize
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tests.contract.trees import children_of, nodes_of, nodes_of_file

MAX_COLUMNS = 100
MAX_COMPLEXITY = 12
MAX_LOCALS = 15
MAX_STATEMENT_NODES = 60
MAX_DEPTH = 4
MAX_RESULT_PARTS = 2
MAX_POSITIONAL_ARGUMENTS = 5

# Pronouns, prepositions and participles do not tell what a value is.
VAGUE_NAMES = frozenset(
    "one own of it found given kept said that these other others".split()  # noqa: SIM905 - a list of words
)

_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_NESTING = (ast.Call, ast.IfExp, ast.Lambda, *_COMPREHENSIONS)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
# Any other node counts for itself alone.
_COUNTED = (ast.NamedExpr, ast.FormattedValue, ast.Call, ast.stmt, *_COMPREHENSIONS)
_BRANCHES = (
    ast.If,
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.ExceptHandler,
    ast.IfExp,
    ast.Assert,
    ast.match_case,
)


@dataclass
class Density:
    """The counts of a tree of Python files. Places are ``file:line name``."""

    statement_nodes: list[int] = field(default_factory=list)
    n_bindings: int = 0
    n_vague_bindings: int = 0
    places: dict[str, list[str]] = field(default_factory=dict)

    def add(self, count: str, place: str) -> None:
        """Add a place to a count."""
        self.places.setdefault(count, []).append(place)

    @property
    def mean_statement_nodes(self) -> float:
        """Mean number of syntax nodes in a statement; compound statements count by their head."""
        return sum(self.statement_nodes) / len(self.statement_nodes)

    @property
    def p90_statement_nodes(self) -> int:
        """Number of syntax nodes that 90 % of the statements do not exceed."""
        return sorted(self.statement_nodes)[int(0.9 * len(self.statement_nodes))]

    @property
    def vague_names_per_1000(self) -> float:
        """Bindings with a name of `VAGUE_NAMES`, in 1000 bindings of variables and parameters."""
        return 1000 * self.n_vague_bindings / self.n_bindings


def density_of(root: Path) -> Density:
    """Measure all Python files below a directory."""
    density = Density()
    for path in sorted(root.rglob("*.py")):
        name = str(path.relative_to(root))
        measure_lines(density, path.read_text(encoding="utf-8"), name)
        measure_nodes(density, nodes_of_file(path), name)
    return density


def measure_file(density: Density, source: str, name: str) -> None:
    """Add the counts of one file."""
    measure_lines(density, source, name)
    measure_nodes(density, nodes_of(ast.parse(source)), name)


def measure_nodes(density: Density, nodes: Sequence[ast.AST], name: str) -> None:
    """Add the counts of the syntax tree of one file; its nodes come behind those that they are in."""
    sizes = sizes_of(nodes)
    for node in nodes:
        _measure_node(density, node, name, sizes)
        if isinstance(node, _FUNCTIONS):
            _measure_function(density, node, name, sizes)


class Size(NamedTuple):
    """How many nodes a tree has, and how many calls, comprehensions, ternaries and lambdas are inside each other."""

    n_nodes: int
    depth: int


def sizes_of(nodes: Sequence[ast.AST]) -> dict[ast.AST, Size]:
    """Return the size of each node of a tree, whose nodes come behind those that they are in."""
    sizes: dict[ast.AST, Size] = {}
    for node in reversed(nodes):
        n_nodes, depth = 1, 0
        for child in children_of(node):
            below = sizes[child]
            n_nodes += below.n_nodes
            depth = max(depth, below.depth)
        sizes[node] = Size(n_nodes, depth + isinstance(node, _NESTING))
    return sizes


def measure_lines(density: Density, source: str, name: str) -> None:
    """Add the counts of lines and comments of one file."""
    for number, line in enumerate(source.splitlines(), start=1):
        if len(line) > MAX_COLUMNS:
            density.add("long lines", f"{name}:{number}")
    if "fmt:" not in source:
        return
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and "fmt:" in token.string:
            density.add("switched-off formatting", f"{name}:{token.start[0]}")


def _measure_node(
    density: Density, node: ast.AST, file: str, sizes: Mapping[ast.AST, Size]
) -> None:
    if isinstance(node, _COUNTED):
        for count in _counts_of_node(node, sizes):
            density.add(count, f"{file}:{getattr(node, 'lineno', 0)}")
    name = None
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        name = node.id
    elif isinstance(node, ast.arg):
        name = node.arg
    if name is not None:
        density.n_bindings += 1
        density.n_vague_bindings += name in VAGUE_NAMES


def _counts_of_node(node: ast.AST, sizes: Mapping[ast.AST, Size]) -> Iterator[str]:
    """Yield the names of the counts that a node belongs to, whatever function it is in."""
    if isinstance(node, ast.NamedExpr):
        yield "walrus"
    if isinstance(node, _COMPREHENSIONS) and _has_inside(node, _COMPREHENSIONS):
        yield "nested comprehensions"
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple):
        for target in node.targets:
            if isinstance(target, ast.Tuple):
                yield "tuples assigned to tuples"
    if isinstance(node, ast.FormattedValue) and _contains(node.value, (ast.IfExp,)):
        yield "ternaries in f-strings"
    if isinstance(node, ast.Call):
        # A star stands for any number of arguments, and is not counted.
        positional = [value for value in node.args if not isinstance(value, ast.Starred)]
        if len(positional) > MAX_POSITIONAL_ARGUMENTS:
            yield "calls with many positional arguments"
    if isinstance(node, ast.stmt) and not isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
        yield from _counts_of_statement(node, sizes)


def _counts_of_statement(statement: ast.stmt, sizes: Mapping[ast.AST, Size]) -> Iterator[str]:
    is_declaration = _is_declaration(statement)
    size = _n_nodes_by_entry(statement) if is_declaration else _n_nodes_of_head(statement, sizes)
    if size > MAX_STATEMENT_NODES:
        yield "large statements"
    if max((sizes[part].depth for part in _head(statement)), default=0) > MAX_DEPTH:
        yield "deeply nested statements"


def _measure_function(
    density: Density,
    function: ast.FunctionDef | ast.AsyncFunctionDef,
    file: str,
    sizes: Mapping[ast.AST, Size],
) -> None:
    place = f"{file}:{function.lineno} {function.name}"
    density.statement_nodes += [_n_nodes_of_head(inner, sizes) for inner in _statements(function)]
    nodes = nodes_of(function)
    n_paths = complexity_of(nodes)
    if n_paths > MAX_COMPLEXITY:
        density.add("complex functions", f"{place} {n_paths}")
    stored = [node for node in nodes if isinstance(node, ast.Name)]
    local_names = {node.id for node in stored if isinstance(node.ctx, ast.Store)}
    if len(local_names) > MAX_LOCALS:
        density.add("functions with many locals", f"{place} {len(local_names)}")
    if _n_result_parts(function.returns) > MAX_RESULT_PARTS:
        density.add("results that are long tuples", place)


def complexity(function: ast.AST) -> int:
    """Return the number of paths through a function."""
    return complexity_of(nodes_of(function))


def complexity_of(nodes: Iterable[ast.AST]) -> int:
    """Return the number of paths through a function by its nodes.

    Branches, loops, comprehensions and their conditions, ternaries, and each further part of an
    ``and`` or ``or`` count 1. Functions inside the function do not count, but what they contain
    does, as it stands in the way of the reader.
    """
    paths = 1
    for node in nodes:
        if isinstance(node, _BRANCHES):
            paths += 1
        elif isinstance(node, ast.BoolOp):
            paths += len(node.values) - 1
        elif isinstance(node, ast.comprehension):
            paths += 1 + len(node.ifs)
    return paths


def _statements(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.stmt]:
    """Yield the statements of a function, at all depths, without its docstring and definitions."""
    has_docstring = ast.get_docstring(function) is not None
    waiting: list[ast.stmt] = list(function.body[1:] if has_docstring else function.body)
    while waiting:
        statement = waiting.pop()
        if isinstance(statement, (*_FUNCTIONS, ast.ClassDef)):
            continue
        yield statement
        waiting += _blocks(statement)


def _blocks(statement: ast.stmt) -> list[ast.stmt]:
    """Return the statements that stand in the blocks of a compound statement."""
    blocks = [getattr(statement, name, []) for name in ("body", "orelse", "finalbody")]
    blocks += [handler.body for handler in getattr(statement, "handlers", [])]
    blocks += [case.body for case in getattr(statement, "cases", [])]
    return [inner for block in blocks for inner in block]


def _head(statement: ast.stmt) -> list[ast.AST]:
    """Return the parts of a statement that stand before its blocks; all of a simple statement."""
    match statement:
        case ast.If() | ast.While():
            return [statement.test]
        case ast.For() | ast.AsyncFor():
            return [statement.target, statement.iter]
        case ast.With() | ast.AsyncWith():
            return [*statement.items]
        case ast.Match():
            return [statement.subject]
        case ast.Try():
            return []
        case _:
            return [statement]


def _n_nodes_of_head(statement: ast.stmt, sizes: Mapping[ast.AST, Size]) -> int:
    parts = _head(statement)
    n_nodes = sum(sizes[part].n_nodes for part in parts)
    return n_nodes if parts == [statement] else n_nodes + 1


def _is_declaration(statement: ast.stmt) -> bool:
    """Tell whether a statement declares a constant, such as a table with its columns."""
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            return name.isupper()
        case _:
            return False


def _n_nodes_by_entry(node: ast.AST) -> int:
    """Return the number of nodes where each tuple, list, set and dict has only its largest entry.

    A reader takes the entries of a constant one by one, however many there are.
    """
    match node:
        case ast.Tuple(elts=entries) | ast.List(elts=entries) | ast.Set(elts=entries):
            return 1 + max(map(_n_nodes_by_entry, entries), default=0)
        case ast.Dict(keys=keys, values=values):
            sizes = [
                _n_nodes_by_entry(value) + (0 if key is None else _n_nodes_by_entry(key))
                for key, value in zip(keys, values, strict=True)
            ]
            return 1 + max(sizes, default=0)
        case _:
            return 1 + sum(map(_n_nodes_by_entry, children_of(node)))


def _contains(node: ast.AST, kinds: tuple[type[ast.AST], ...]) -> bool:
    return any(isinstance(inner, kinds) for inner in nodes_of(node))


def _has_inside(node: ast.AST, kinds: tuple[type[ast.AST], ...]) -> bool:
    return any(isinstance(inner, kinds) for inner in nodes_of(node) if inner is not node)


def _n_result_parts(annotation: ast.expr | None) -> int:
    """Return the length of the tuple that a function returns by its annotation; 0 for others."""
    match annotation:
        case ast.Subscript(value=ast.Name(id="tuple"), slice=ast.Tuple(elts=parts)):
            is_open = any(isinstance(part, ast.Constant) and part.value is ... for part in parts)
            return 0 if is_open else len(parts)
        case _:
            return 0
