"""A check of English: no semicolons, short sentences, no banned words, one term for one thing.

``python -m tests.contract.prose FILE ...`` prints what it objects to. ``test_prose.py`` has the list of files."""

import html
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nsyspipe.model.figures import METRICS
from nsyspipe.model.problems import CATALOGUE

MAX_WORDS_IN_SENTENCE = 35
MAX_MEAN_WORDS = 25

# A pattern of words that nobody should have to read twice, and what to write.
BANNED = {
    r"beside": "concurrent with, next to, or while ... runs",
    r"told|tells?|speaks?": "reports, prints, or states",
    r"says|said": "reports, prints, or states",
    r"whose": "two sentences",
    r"of which": "two sentences",
    r"mends?|mended": "fixes",
    r"likewise": "also",
    r"thereof|whereof|therein|wherein": "the noun",
    r"but for": "except",
    r"for want of": "because there is no",
    r"stands": "is",
}
# A term that is not used any more, and the one that is.
REPLACED_TERMS = {
    r"comm in all": "total communication",
    r"hidden by (?:compute|backward)": "overlap, or overlap with backward",
    r"waits for others": "wait time",
    r"(?:mean|longest) delay by it": "straggler delay",
    r"lateness|held[ _]up": "delay",
    r"DtoD": "D2D",
    r"nominal": "peak bandwidth",
    r"edges": "connections",
    r"level with": "tied with",
    r"not told apart": "not distinguishable from",
    r"not judged": "skipped check",
    r"not replayed": "no estimate",
    r"not clear": "within noise",
    r"if so": "only if",
    r"gives? back": "saves",
    r"brings?": "saves",
    r"promised": "predicted",
    r"advice": "recommendation",
    r"figures?": "metrics",
    r"datasets?": "run store",
    r"ranks per batch": "model-parallel size",
    r"bytes of messages?|message bytes": "message size",
    r"host launches|hosts launch": "the CPU launches",
    r"(?<!to[ -])devices?(?![ -]to[ -]device)": "GPU",
    r"replay of itself": "simulation error",
}
NUMBER_STYLE = {
    r"\d %": "a percentage without a space",
    r"\d \.\. -?\d": "a range with the word to",
}
BRITISH_SPELLING = {
    r"\w*(?:colour|behaviour|neighbour|favour)\w*": "the US spelling",
    r"(?:synchron|serial|optim|recogn|normal|summar|organ)is(?:e[sd]?|ing|ation)": "the US spelling",
    r"centre|licence": "the US spelling",
}
# Every pattern of words and styles, to see at once that a text has none of them.
_ANY_WORD = "|".join([*BANNED, *REPLACED_TERMS, *BRITISH_SPELLING])
_ANY_STYLE = "|".join(NUMBER_STYLE)
_ANY_OBJECTION = re.compile(rf"\b(?:{_ANY_WORD})\b|{_ANY_STYLE}", flags=re.IGNORECASE)
FRONTED = re.compile(r"(?:Of|Where|What|With)\b(?![- ]if\b|.*\?$)")

_FENCE = re.compile(r"^ *(```|~~~).*?^ *\1 *$", flags=re.DOTALL | re.MULTILINE)
_COMMENT = re.compile(r"<!--.*?-->", flags=re.DOTALL)
_IMAGE_OR_LINK = re.compile(r"!?\[((?:[^\[\]]|\[[^\]]*\])*)\]\([^)]*\)")
_CODE = re.compile(r"`[^`]*`")
_TAG = re.compile(r"<[^>]+>")
_LIST_MARK = re.compile(r"^ *(?:[-*+]|\d+\.) +")
_UI_LABEL = re.compile(r"(?<!\*)\*[A-Z+][^*]*\*(?!\*)")
# A sentence begins with a capital letter, or with one of these names.
_LOWER_CASE_NAMES = "nsyspipe|nsys|torch|git|stderr|stdout"
_SENTENCE_END = re.compile(
    rf"(?<=[.!?])[\"')*]* +(?=[\"'(*]*(?:[A-Z\d]|(?:{_LOWER_CASE_NAMES})\b))"
)
# In output: the key of a row, and words with an underscore, a call, a value, a path, or the hyphens
# of an option or a code.
_KEY = re.compile(r"^ *(?:(?:advice|evidence):|advice(?: \||  +string))")
_DATA = re.compile(r"^ *(?:data-[a-z-]+: |\{\")")  # of charts, in a page
_JSON_KEY = re.compile(r'^ *"\w+":')
_NAMES = re.compile(rf"(?<![\w-])(?:{'|'.join((*CATALOGUE, *METRICS))})(?![\w-])")
_CODE_IN_OUTPUT = re.compile(
    r"'[^']*;[^']*'|\S*(?:--[a-z]|_|\(\w*[,)]|=|/|<\w+>)\S*|\b[a-z]+(?:-[a-z]+){2,}\b|\bto\(device,|DataLoader\( "
    r"dataset|\b\d;\d\b"
)
_TEXT_OF_FINDING = re.compile(r'^  (?:title|action|advice): "(.*)"$', flags=re.MULTILINE)
_ABBREVIATIONS = re.compile(r"\b(e\.g|i\.e|vs|etc|approx)\.")


@dataclass(frozen=True)
class Objection:
    """A place in a text that a rule objects to."""

    rule: str
    text: str
    instead: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.text!r}: {self.instead}"


def prose_of_markdown(text: str) -> Iterator[tuple[str, bool]]:
    """Yield the paragraphs, list items, table cells and headings of a page, and whether each is a heading."""
    text = _COMMENT.sub("", _FENCE.sub("", text))
    text = _CODE.sub("Code", _IMAGE_OR_LINK.sub(lambda link: link[1], text))
    text = html.unescape(_UI_LABEL.sub("Label", _TAG.sub("", text)))
    paragraph: list[str] = []
    for line in [*text.splitlines(), ""]:
        starts_block = not line.strip() or line.startswith(("#", "|")) or _LIST_MARK.match(line)
        if starts_block and paragraph:
            yield " ".join(paragraph), False
            paragraph = []
        if line.startswith("#"):
            yield line.lstrip("# "), True
        elif line.startswith("|"):
            cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)]
            yield from ((cell, False) for cell in cells if re.search(r"\w", cell))
        elif line.strip():
            paragraph.append(_LIST_MARK.sub("", line).strip())


def sentences_of(paragraph: str) -> list[str]:
    """Return the sentences of a paragraph."""
    text = _ABBREVIATIONS.sub(r"\1", paragraph)
    return [
        sentence.strip() for sentence in _SENTENCE_END.split(text) if re.search(r"\w", sentence)
    ]


def words_in(sentence: str) -> int:
    """Return the number of words of a sentence. A number counts as one word, and so does a piece of code."""
    return len(re.findall(r"\w[\w'.,/=-]*", sentence))


def objections_to_words(text: str) -> Iterator[Objection]:
    """Yield semicolons, banned words, replaced terms and unusual styles in a text, whatever its sentences are."""
    if ";" in text:
        yield Objection("semicolon", text, "two sentences")
    if not _ANY_OBJECTION.search(text):
        return
    rules = (
        ("banned word", BANNED, True),
        ("replaced term", REPLACED_TERMS, True),
        ("number style", NUMBER_STYLE, False),
        ("spelling", BRITISH_SPELLING, True),
    )
    for rule, patterns, are_words in rules:
        for pattern, instead in patterns.items():
            bounded = rf"\b(?:{pattern})\b" if are_words else pattern
            if match := re.search(bounded, text, flags=re.IGNORECASE):
                yield Objection(rule, f"{match[0]} in: {text}", instead)


def objections_to_markdown(text: str) -> Iterator[Objection]:
    """Yield what a page has against the house style."""
    lengths = []
    for paragraph, is_heading in prose_of_markdown(text):
        yield from objections_to_words(paragraph)
        for sentence in () if is_heading else sentences_of(paragraph):
            n_words = words_in(sentence)
            lengths.append(n_words)
            if n_words > MAX_WORDS_IN_SENTENCE:
                yield Objection(
                    "long sentence", sentence, f"{n_words} words, at most {MAX_WORDS_IN_SENTENCE}"
                )
            if FRONTED.match(sentence):
                yield Objection("opening", sentence, "the subject first")
    if lengths and sum(lengths) / len(lengths) > MAX_MEAN_WORDS:
        yield Objection(
            "mean length", f"{sum(lengths) / len(lengths):.1f} words", f"at most {MAX_MEAN_WORDS}"
        )


def objections_to_output(text: str) -> Iterator[Objection]:
    """Yield what printed output has against the house style: its words, since its lines are no sentences."""
    for line in text.splitlines():
        yield from objections_to_words(_without_code(html.unescape(line)))


def _without_code(line: str) -> str:
    """Return a line of output without keys, options, calls, codes and quoted input, which are no English."""
    if _DATA.match(line):
        return ""
    return _CODE_IN_OUTPUT.sub("Code", _NAMES.sub("Code", _JSON_KEY.sub("", _KEY.sub("", line))))


def objections_to(path: Path) -> list[Objection]:
    """Return what a file has against the house style: a page of Markdown, output of a command, or golden findings."""
    text = path.read_text(encoding="utf-8")
    if (
        path.parent.name == "findings" and path.suffix == ".txt"
    ):  # the names of the cases are no output
        text = "\n".join(_TEXT_OF_FINDING.findall(text))
    return [*(objections_to_markdown(text) if path.suffix == ".md" else objections_to_output(text))]


if __name__ == "__main__":
    for name in sys.argv[1:]:
        for objection in objections_to(Path(name)):
            print(f"{name}: {objection}")
