"""The pictures of docs/: screenshots of the pages that the tutorial writes.

``NSYSPIPE_SCREENSHOTS=docs/images pytest -m browser tests/browser/test_pictures.py -n 0`` takes them anew."""

import pytest

from tests.cli.tools import nsyspipe_here
from tests.conftest import SAMPLES

BEFORE = str(SAMPLES / "ddp-4gpu-before_*.sqlite")
AFTER = str(SAMPLES / "ddp-4gpu-after_*.sqlite")
IMAGES = SAMPLES.parent / "docs" / "images"
COMMANDS = {
    "timeline": ["analyze", BEFORE],
    "whatif": ["whatif", BEFORE, "--bucket-mb", "25"],
    "diff": ["diff", f"before={BEFORE}", f"after={AFTER}"],
}
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_a_picture_of_the_docs_can_be_taken(open_page, screenshot, tmp_path, name):
    page = tmp_path / f"{name}.html"
    done = nsyspipe_here(*COMMANDS[name], "--html", str(page), "-q")
    assert (done.returncode, done.stderr) == (0, "")
    opened = open_page(page, size=(1100, 700), reduced_motion="reduce")
    opened.draw()
    if name == "timeline":
        opened.page.locator("#timeline").scroll_into_view_if_needed()
        opened.page.evaluate("document.getElementById('timeline').scrollIntoView({behavior: 'instant'})")
    opened.page.wait_for_timeout(1000)  # until what moves stands still
    screenshot(opened.page, name)
    assert (IMAGES / f"{name}.png").read_bytes().startswith(PNG_SIGNATURE)
