"""How Sphinx builds the site: ``sphinx-build -W --keep-going docs SITE``, with the dependency group ``docs``.

Pages stay plain Markdown that GitHub shows too. MyST-Parser reads them, and a link that leads nowhere is an error. The
navigation of the site is made from the links of ``index.md`` and ``findings/index.md``.
"""

import re
from pathlib import Path

from sphinx.application import Sphinx

import nsyspipe

project = "nsyspipe"
version = release = nsyspipe.__version__
author = "the nsyspipe authors"

extensions = ["myst_parser"]
root_doc = "index"
exclude_patterns = ["examples"]
source_suffix = {".md": "markdown"}
nitpicky = True

# Headings get the anchors that GitHub gives them.
myst_heading_anchors = 4

html_theme = "furo"
html_title = f"nsyspipe {version}"

DOCS = Path(__file__).parent
LINK = re.compile(r"\[([^\]]+)\]\(([^)\s#:]+)(#[^)\s]*)?\)")


def is_page_or_file_of_site(target: Path) -> bool:
    """Whether the site can link to a file: pages of docs/, and files that a reader downloads."""
    is_page = target.suffix == ".md"
    return target.is_file() and (not is_page or target.is_relative_to(DOCS))


def without_links_out_of_site(docname: str, text: str) -> str:
    """Return a page whose links to folders, and to pages outside docs/, are plain words: the site has neither."""
    folder = (DOCS / docname).parent

    def replaced(link: re.Match[str]) -> str:
        target = (folder / link[2]).resolve()
        return link[0] if is_page_or_file_of_site(target) else link[1]

    return LINK.sub(replaced, text)


def navigation(text: str) -> str:
    """Return a hidden table of contents for each section of an index, with the pages that the section links to."""
    parts = []
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        caption, _, body = section.partition("\n")
        pages = dict.fromkeys(target for _, target, _ in LINK.findall(body) if not target.startswith(".."))
        if not pages:
            continue
        parts.append("\n".join(["```{toctree}", ":hidden:", f":caption: {caption}", "", *pages, "```"]))
    return "\n\n".join(parts)


def prepare_page(_: Sphinx, docname: str, source: list[str]) -> None:
    """Change the text of a page before Sphinx reads it."""
    source[0] = without_links_out_of_site(docname, source[0])
    if docname.endswith("index"):
        source[0] += "\n" + navigation(source[0])


def setup(app: Sphinx) -> None:
    """Register what this file does, as Sphinx asks for it."""
    app.connect("source-read", prepare_page)
