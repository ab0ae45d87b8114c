"""What built runs, differences and scoreboards say, pinned as files."""

import html
import re

import pytest

from nsyspipe.api import diff
from nsyspipe.version import __version__


@pytest.fixture
def pinned(pinned):
    """Return a function that compares texts by format with the committed file, or commits them."""

    def compare(name, **texts):
        text = "".join(f"--- {kind} ---\n{text.rstrip()}\n" for kind, text in texts.items())
        pinned(f"report/{name}.txt", text.replace(__version__, "VERSION"))

    return compare


@pytest.fixture(scope="module")
def faster(board_runs):
    return diff(board_runs["slow"], board_runs["fast"])


@pytest.fixture
def shown():
    """Return a function that tells what a page shows and draws, without how figures are made: a line for each text."""

    def text_of(markup):
        return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", markup.replace("<wbr>", ""))).split())

    def row(found):
        cells = (text_of(cell) for cell in re.findall(r"<t[dh]\b.*?</t[dh]>", found[0], re.DOTALL))
        return f"<p>{html.escape(' | '.join(cells))}</p>"

    def lines(page):
        data = re.findall(
            r'<script type="application/json" id="(data-[a-z-]+)">(.*?)</script>', page
        )
        page = re.sub(r"<(script|style)\b.*?</\1>", "", page, flags=re.DOTALL)
        page = re.sub(r"<tr\b.*?</tr>", row, page, flags=re.DOTALL)
        page = re.sub(
            r"<h2[^>]*>Definitions</h2>(?:(?!<details|</section>).)*</section>",
            "",
            page,
            flags=re.DOTALL,
        )
        texts = map(
            text_of,
            re.split(
                r"</?(?:p|div|h\d|li|section|figure|summary|caption|details|ul)\b[^>]*>", page
            ),
        )
        return "\n".join([*filter(None, texts), *(f"{name}: {text}" for name, text in data)])

    return lines
