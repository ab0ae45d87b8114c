"""How Sphinx builds the site: ``sphinx-build -W --keep-going docs SITE``, with the dependency group ``docs``.

Pages stay plain Markdown that GitHub shows too. MyST-Parser reads them, and a link that leads
nowhere is an error. The navigation of the site is made from the links of ``index.md`` and
``findings/index.md``.
"""

import re
import sys
from pathlib import Path

from sphinx.application import Sphinx

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS.parent))

import nsyspipe  # noqa: E402 - found by the line above, if it is not installed
from tests.gallery import GALLERY, write_gallery_page  # noqa: E402

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
        pages = dict.fromkeys(
            target for _, target, _ in LINK.findall(body) if not target.startswith("..")
        )
        if not pages:
            continue
        parts.append(
            "\n".join(["```{toctree}", ":hidden:", f":caption: {caption}", "", *pages, "```"])
        )
    return "\n\n".join(parts)


def with_links_to_reports(text: str) -> str:
    """Return the gallery with a link to the HTML report below each picture: the site has the reports, the repository not."""
    link = r"\1\n\n<a href='gallery/\2.html'>Open the HTML report</a>"
    return re.sub(r"(!\[[^\]]*\]\(images/gallery-(\w+)\.png\))", link, text)


def write_gallery(app: Sphinx, exception: Exception | None) -> None:
    """Write the HTML reports of the gallery into the site."""
    if exception is None and app.builder.format == "html":
        folder = Path(app.outdir) / "gallery"
        folder.mkdir(exist_ok=True)
        for name in GALLERY:
            write_gallery_page(name, folder)


def prepare_page(_: Sphinx, docname: str, source: list[str]) -> None:
    """Change the text of a page before Sphinx reads it."""
    source[0] = without_links_out_of_site(docname, source[0])
    if docname == "gallery":
        source[0] = with_links_to_reports(source[0])
    if docname.endswith("index"):
        source[0] += "\n" + navigation(source[0])


def setup(app: Sphinx) -> None:
    """Register what this file does, as Sphinx asks for it."""
    app.connect("source-read", prepare_page)
    app.connect("build-finished", write_gallery)
