"""What built runs, differences and scoreboards say, pinned as files."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest

from nsyspipe.version import __version__

FROZEN = Path(__file__).parents[1] / "golden" / "frozen" / "report"


@pytest.fixture
def pinned(request):
    """Return a function that compares texts by format with the committed file, or commits them."""

    def compare(name, **texts):
        text = "".join(f"--- {kind} ---\n{one.rstrip()}\n" for kind, one in texts.items()).replace(
            __version__, "VERSION"
        )
        expected = FROZEN / f"{name}.txt"
        if request.config.getoption("--update-golden"):
            expected.parent.mkdir(parents=True, exist_ok=True)
            expected.write_text(text, encoding="utf-8")
        assert text == expected.read_text(encoding="utf-8")

    return compare


@pytest.fixture
def shown():
    """Return a function that tells what a page shows and draws, without how figures are made: a line for each text."""

    def text_of(markup):
        return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", markup)).split())

    def row(found):
        cells = (text_of(cell) for cell in re.findall(r"<t[dh]\b.*?</t[dh]>", found[0], re.DOTALL))
        return f"<p>{html.escape(' | '.join(cells))}</p>"

    def lines(page):
        data = re.findall(r'<script type="application/json" id="(data-[a-z-]+)">(.*?)</script>', page)
        page = re.sub(r"<(script|style)\b.*?</\1>", "", page, flags=re.DOTALL)
        page = re.sub(r"<tr\b.*?</tr>", row, page, flags=re.DOTALL)
        page = re.sub(r"<h2[^>]*>How (each figure is|figures are) made</h2>.*?</section>", "", page, flags=re.DOTALL)
        texts = map(text_of, re.split(r"</?(?:p|div|h\d|li|section|figure|summary|caption|details|ul)\b[^>]*>", page))
        return "\n".join([*filter(None, texts), *(f"{name}: {text}" for name, text in data)])

    return lines
