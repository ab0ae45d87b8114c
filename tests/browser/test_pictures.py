"""The pictures of docs/: screenshots of the HTML reports of the tutorial and of the gallery.

``NSYSPIPE_SCREENSHOTS=docs/images pytest -m browser tests/browser/test_pictures.py -n 0`` takes them anew."""

import pytest

from tests.cli.tools import nsyspipe_here
from tests.conftest import SAMPLES
from tests.gallery import GALLERY, write_gallery_page

BEFORE = str(SAMPLES / "ddp-4gpu-before_*.sqlite")
AFTER = str(SAMPLES / "ddp-4gpu-after_*.sqlite")
IMAGES = SAMPLES.parent / "docs" / "images"
COMMANDS = {
    "timeline": ["analyze", BEFORE],
    "whatif": ["whatif", BEFORE, "--bucket-mb", "25"],
    "diff": ["diff", f"before={BEFORE}", f"after={AFTER}"],
}
SIZE = (1100, 700)
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_a_picture_of_the_docs_can_be_taken(open_page, screenshot, tmp_path, name):
    page = tmp_path / f"{name}.html"
    done = nsyspipe_here(*COMMANDS[name], "--html", str(page), "-q")
    assert (done.returncode, done.stderr) == (0, "")
    opened = open_page(page, size=SIZE)
    take(opened, screenshot, name, "timeline" if name == "timeline" else None)


@pytest.mark.parametrize("name", GALLERY)
def test_a_picture_of_the_gallery_can_be_taken(open_page, screenshot, tmp_path, name):
    opened = open_page(write_gallery_page(name, tmp_path), size=SIZE)
    take(opened, screenshot, f"gallery-{name}", "timeline")


def take(opened, screenshot, name, section):
    """Take the picture of a page from a section on, or from the top; the docs have a picture of that name."""
    opened.draw()
    if section:
        opened.page.evaluate(
            f"document.getElementById('{section}').scrollIntoView({{behavior: 'instant'}})"
        )
    screenshot(opened.page, name)
    assert (IMAGES / f"{name}.png").read_bytes().startswith(PNG_SIGNATURE)
