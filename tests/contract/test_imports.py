"""No import goes up between rooms, and no files import each other in a circle, also inside functions and for types only."""

import ast
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

import nsyspipe
from tests.contract.trees import nodes_of, nodes_of_file

PACKAGE = Path(nsyspipe.__file__).parent
# The rooms, the lowest floor first. A file imports files of its own room and of lower floors.
FLOORS = (
    {"errors", "version"},
    {"suggestions"},
    {"model"},
    {"analysis", "nsys"},
    {"capture", "reader"},
    {"redact", "run"},
    {"findings"},
    {"report_run"},
    {"comparison", "replay", "store"},
    {"report"},
    {"api"},
    {"mcp"},
    {"cli", "pytest_plugin"},
    {"__init__", "__main__"},
)


def files_of_package() -> dict[str, Path]:
    """Return the files of the package by the names of their modules."""
    files = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        files[".".join(parts).removesuffix(".__init__")] = path
    return files


def imported_names(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the names that a file imports, each with its module, wherever the import stands."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def module_of(name: str, modules: Mapping[str, object]) -> str | None:
    """Return the module that an imported name is, or that has it; None for other packages."""
    if name in modules:
        return name
    module = name.rpartition(".")[0]
    return module if module in modules else None


def imports_of_package() -> dict[str, set[str]]:
    """Return for each module of the package the modules of the package that it imports."""
    files = files_of_package()
    imports = {}
    for name, path in files.items():
        names = imported_names(nodes_of_file(path))
        modules = {module_of(imported, files) for imported in names}
        imports[name] = {module for module in modules if module is not None} - {name}
    return imports


@pytest.fixture(scope="module")
def package_imports() -> dict[str, set[str]]:
    return imports_of_package()


def room_of(module: str) -> str:
    _, _, inside = module.partition(".")
    return inside.partition(".")[0] or "__init__"


def floor_of(room: str) -> int:
    return next(floor for floor, rooms in enumerate(FLOORS) if room in rooms)


def goes_up(importing: str, imported: str) -> bool:
    """Tell whether an import goes to another room that is not on a lower floor."""
    rooms = room_of(importing), room_of(imported)
    return rooms[0] != rooms[1] and floor_of(rooms[1]) >= floor_of(rooms[0])


def upward_imports(imports: Mapping[str, set[str]]) -> list[str]:
    """Return all imports that go up, in words."""
    return [
        f"{importing} imports {imported}"
        for importing, modules in imports.items()
        for imported in sorted(modules)
        if goes_up(importing, imported)
    ]


def reached_from(start: str, imports: Mapping[str, set[str]]) -> set[str]:
    """Return the modules that a module imports, also through others."""
    reached: set[str] = set()
    to_visit = [*imports[start]]
    while to_visit:
        module = to_visit.pop()
        if module not in reached:
            reached.add(module)
            to_visit.extend(imports[module])
    return reached


def circles(imports: Mapping[str, set[str]]) -> list[list[str]]:
    """Return the sets of modules that import each other, directly or through others."""
    reached = {module: reached_from(module, imports) for module in imports}
    found = {
        tuple(sorted(other for other in reached[module] if module in reached[other]))
        for module in imports
        if module in reached[module]
    }
    return [list(circle) for circle in sorted(found)]


def test_no_import_goes_up_between_rooms(package_imports):
    assert upward_imports(package_imports) == []


@pytest.mark.slow
def test_no_files_import_each_other_in_a_circle(package_imports):
    assert circles(package_imports) == []


def test_every_room_is_on_a_floor():
    rooms = {room_of(module) for module in files_of_package()}
    assert rooms - set().union(*FLOORS) == set()


def test_an_import_inside_a_function_and_one_for_types_are_found():
    text = "if TYPE_CHECKING:\n    from a.b import c\ndef f():\n    import d.e\n"
    assert set(imported_names(nodes_of(ast.parse(text)))) == {"a.b.c", "d.e"}


def test_an_import_of_a_higher_floor_is_found():
    imports = {"nsyspipe.run.a": {"nsyspipe.findings.b", "nsyspipe.reader.c"}}
    assert upward_imports(imports) == ["nsyspipe.run.a imports nsyspipe.findings.b"]


def test_an_import_of_another_room_on_the_same_floor_is_found():
    imports = {"nsyspipe.store.a": {"nsyspipe.replay.b", "nsyspipe.store.c"}}
    assert upward_imports(imports) == ["nsyspipe.store.a imports nsyspipe.replay.b"]


def test_a_circle_of_three_files_is_found():
    imports = {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}
    assert circles(imports) == [["a", "b", "c"]]
