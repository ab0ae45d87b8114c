"""docs/architecture.md names every file of the package and no other; links between documents lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "nsyspipe"
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
FENCED = re.compile(r"^```.*?^```$", flags=re.DOTALL | re.MULTILINE)


def named_files(text):
    """Return the Python files that a text names, in code font or in its drawings, but for examples in capitals."""
    return {name for name in re.findall(r"[\w/]+\.py\b", text) if "NAME" not in name}


def anchors(text):
    """Return what a link may name in a page: its headings as GitHub writes them, and anchors of its own."""
    headings = re.findall(r"^#+ (.+)$", FENCED.sub("", text), flags=re.MULTILINE)
    words = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {one.replace(" ", "-") for one in words} | set(re.findall(r'<a id="([^"]+)"', text))


def broken_links(path):
    """Return the links of a page that lead to no file of the repository, or to no heading of it."""
    text = FENCED.sub("", path.read_text(encoding="utf-8"))
    broken = []
    for link in re.findall(r'(?:\]\(|src="|srcset=")([^)"\s]+)[)"]', text):
        if re.match(r"[a-z]+:", link):
            continue
        place, _, anchor = link.partition("#")
        target = path.parent / place if place else path
        if not target.exists() or (anchor and anchor not in anchors(target.read_text(encoding="utf-8"))):
            broken.append(link)
    return broken


def test_every_file_that_is_named_exists():
    names = named_files(ARCHITECTURE)
    assert names
    assert [name for name in names if not ((ROOT if name.startswith("tests/") else PACKAGE) / name).is_file()] == []


def test_every_file_of_the_package_has_its_line():
    lines = re.findall(r"^- `([\w/]+\.py)`: .+$", ARCHITECTURE, flags=re.MULTILINE)
    assert len(set(lines)) == len(lines)
    # A room's own file holds what the room is, and no code; that of capture is what training programs import.
    own = {path for path in PACKAGE.rglob("*/__init__.py") if path.parent.name != "capture"}
    files = {str(path.relative_to(PACKAGE)) for path in set(PACKAGE.rglob("*.py")) - own}
    assert sorted(files - set(lines)) == []


def test_the_drawing_has_the_layers_of_the_import_contract():
    contract = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    layers = re.search(r"\nlayers = \[\n(.*?)\]", contract, flags=re.DOTALL)
    assert layers is not None
    drawing = [line.strip() for line in ARCHITECTURE.split("```")[1].splitlines() if line.strip()]
    wanted = re.findall(r'"([^"]+)"', layers[1])
    assert [line for line, layer in zip(drawing, wanted, strict=True) if not line.startswith(layer)] == []  # fmt: skip


def test_hooks_before_a_commit_are_commands_of_ci():
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    hooks = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    commands = re.findall(r"^\s+entry: (.+)$", hooks, flags=re.MULTILINE)
    assert commands
    assert [command for command in commands if command not in ci] == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path):
    assert broken_links(path) == []


def test_a_link_to_nothing_is_found(tmp_path):
    page = tmp_path / "page.md"
    links = "[a](page.md#a-page) [b](gone.md) [c](#gone) [d](https://example.org/x)"
    page.write_text(f"# A page\n{links}\n```\n[e](gone.md)\n```\n", encoding="utf-8")
    assert broken_links(page) == ["gone.md", "#gone"]
