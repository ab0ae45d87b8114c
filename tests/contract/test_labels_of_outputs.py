"""Headings of columns and tiles that are names of figures are read from the vocabulary, not written a second time."""

import ast
from pathlib import Path

import nsyspipe
from nsyspipe.model.figures import FIGURES, OTHER_FIGURES
from tests.contract.trees import nodes_of, nodes_of_file

REPORT = Path(nsyspipe.__file__).parent / "report"
LABELS = {
    text.casefold()
    for figure in (*FIGURES.values(), *OTHER_FIGURES.values())
    for text in (figure.label, figure.short)
}
PLACES = {"Field": 0, "Tile": 0, "barred": 1}  # which argument of a call is the heading


def headings_in(nodes):
    """Yield the headings that a module writes as texts, and their lines."""
    for call in (node for node in nodes if isinstance(node, ast.Call)):
        place = PLACES.get(getattr(call.func, "id", ""))
        heading = call.args[place] if place is not None and len(call.args) > place else None
        if isinstance(heading, ast.Constant) and isinstance(heading.value, str):
            yield heading.lineno, " ".join(heading.value.split())


def test_no_heading_repeats_the_name_of_a_figure():
    repeated = [
        f"{path.name}:{line}: {heading}"
        for path in REPORT.rglob("*.py")
        for line, heading in headings_in(nodes_of_file(path))
        if heading.casefold() in LABELS
    ]
    assert repeated == []


def test_a_repeated_name_is_found():
    tree = ast.parse(
        'Field("exposed\\ncomm", 1)\nbarred(rows, "idle", 1)\nTile(FIGURES["x"].short)'
    )
    assert [heading for _, heading in headings_in(nodes_of(tree))] == ["exposed comm", "idle"]
    assert "exposed comm" in LABELS
