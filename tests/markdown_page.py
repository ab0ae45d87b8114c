"""What a reader of Markdown sees: text, tables and links, by a parser that is not ours."""

import re

from markdown_it import MarkdownIt

_HIDDEN = "\N{ZERO WIDTH SPACE}"
UNPARTED = "\N{NO-BREAK SPACE}"  # what stands between a figure and its unit; shown as a space
# table > body > row > cell; the lines of a list lie less deep.
_CELL_LEVEL = 4
# What GitHub makes links, notifications, emoji or formulas of, outside of code, once Markdown is
# done.
_OF_GITHUB = re.compile(
    r"@\w|#\d|\bGH-\d|\w://|\bwww\.|:[\w+-]+:|\$.*\$", re.IGNORECASE | re.DOTALL
)


class Page:
    """A parsed page, with GitHub's tables and HTML.

    `tables` holds rows of cells, the headings first; `texts` all else block by block; `codes` what
    is in code font; `links` the targets of links; `html` what a browser takes for a tag or a
    comment; `reached` what GitHub would make links and the like of.
    """

    def __init__(self, source):
        self.tables, self.texts, self.codes = [], [], []
        self.links, self.html, self.reached, self.tags = [], [], [], set()
        for token in (
            MarkdownIt("commonmark", {"html": True})
            .enable(["table", "strikethrough"])
            .parse(source)
        ):
            self.tags.add(token.tag)
            if token.type == "table_open":
                self.tables.append([])
            elif token.type == "tr_open":
                self.tables[-1].append([])
            elif token.type == "html_block":
                self.html += token.content.splitlines()
            elif token.type == "inline":
                in_cell = bool(self.tables) and token.level == _CELL_LEVEL
                (self.tables[-1][-1] if in_cell else self.texts).append(self._shown(token.children))

    def _shown(self, tokens):
        for one in tokens:
            self.tags.add(one.tag)
            self.links += [one.attrs[name] for name in ("href", "src") if name in one.attrs]
            if one.type == "html_inline":
                self.html.append(one.content)
            elif one.type == "code_inline":
                self.codes.append(one.content)
            elif one.type == "text":
                self.reached += _OF_GITHUB.findall(one.content)
        shown = "".join(
            one.content for one in tokens if one.type in {"text", "code_inline", "softbreak"}
        )
        return shown.replace(_HIDDEN, "").replace(UNPARTED, " ")
