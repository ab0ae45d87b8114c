"""What has an explanation, and how an ID is found: findings and words by their files, the others by what declares them."""

import difflib

from msgspec import Struct

from nsyspipe.model.figures import METRICS
from nsyspipe.model.problems import CATALOGUE
from nsyspipe.report.explanations.declared import (
    columns_by_name,
    definitions_of_terms,
    explain_column,
    explain_metric,
    explain_note,
    explain_term,
)
from nsyspipe.report.explanations.text import (
    Explanation,
    Group,
    ids_in,
    normalized,
    read_explanation,
)

FINDINGS_FOLDER = "findings"
WORDS_FOLDER = "words"
# Other words that outputs use, and the word whose explanation includes them.
ALIASES = {
    "estimate": "estimates",
    "estimated": "estimates",
    "range": "estimates",
    "ranges": "estimates",
    "upper-bound": "estimates",
    "upper-bounds": "estimates",
    "at-most": "estimates",
    "within-noise": "estimates",
    "saving": "estimates",
    "savings": "estimates",
    "limit": "limits",
    "perfect-overlap": "limits",
    "simulated": "simulation",
    "whatif": "simulation",
    "exposed": "exposed-communication",
    "overlapped": "exposed-communication",
    "overlapped-communication": "exposed-communication",
    "straggler-delay": "wait-time",
    "transfer-time": "wait-time",
    "delay": "wait-time",
    "idle-causes": "idle-time",
    "skipped-check": "skipped-checks",
    "skipped": "skipped-checks",
    "verdict": "verdicts",
    "improvement": "verdicts",
    "regression": "verdicts",
    "unchanged": "verdicts",
    "inconclusive": "verdicts",
    "tied": "verdicts",
    "tied-with": "verdicts",
    "warm-up-step": "steps-used",
    "steps": "steps-used",
    "bandwidth": "interconnect",
    "link": "interconnect",
    "high": "severity",
    "medium": "severity",
    "low": "severity",
}
_NAMES_OF_CAUSES = {
    "idle devices": "idle GPUs"
}  # causes that text calls by another name than JSON does
_MOST_SIMILAR = 5
_SIMILARITY = 0.6
_LEAST_LETTERS = 3  # of a part of an ID that finds the IDs that contain it


class Entry(Struct, frozen=True):
    """One ID in a list of IDs."""

    id: str
    title: str


def explain(topic: str) -> Explanation | None:
    """Return the explanation of an ID; None if there is none.

    The exact name of a metric comes first, then a finding, a word, a note, the label of a metric, a
    term of the glossary, and a column.
    """
    if topic in METRICS:
        return explain_metric(normalized(topic))
    name = normalized(topic)
    if name in ids_in(FINDINGS_FOLDER):
        return explain_finding(name)
    word = ALIASES.get(name, name)
    if word in ids_in(WORDS_FOLDER):
        return read_explanation(WORDS_FOLDER, word, Group.WORD)
    return explain_note(name) or explain_metric(name) or explain_term(name) or explain_column(name)


def explain_finding(name: str) -> Explanation:
    """Return the explanation of a finding that has one."""
    return read_explanation(FINDINGS_FOLDER, name, Group.FINDING)


def similar_ids(topic: str) -> list[str]:
    """Return the IDs that somebody may have meant, the most similar first."""
    name = normalized(topic)
    known = {normalized(known_id): known_id for known_id in all_ids()}
    close = difflib.get_close_matches(name, known, n=_MOST_SIMILAR, cutoff=_SIMILARITY)
    is_long_enough = len(name) >= _LEAST_LETTERS
    containing = [known_name for known_name in known if is_long_enough and name in known_name]
    return [known[known_name] for known_name in dict.fromkeys([*close, *containing])][
        :_MOST_SIMILAR
    ]


def all_ids() -> list[str]:
    """Return every ID, columns included."""
    groups = (
        ids_in(FINDINGS_FOLDER),
        ids_in(WORDS_FOLDER),
        CATALOGUE,
        METRICS,
        _terms(),
        columns_by_name(),
    )
    return list(dict.fromkeys(name for group in groups for name in group))


def findings_by_cause() -> dict[str, list[Entry]]:
    """Return the findings by what causes them, in the order of `nsyspipe.findings.judge.CAUSES`."""
    from nsyspipe.findings.judge import CAUSES  # noqa: PLC0415 - only lists need the rules

    return {
        cause: [Entry(name, explain_finding(name).title) for name in names]
        for cause, names in CAUSES.items()
    }


def cause_name(cause: str) -> str:
    """Return what text calls one of the causes of `findings_by_cause`."""
    return _NAMES_OF_CAUSES.get(cause, cause)


def words() -> list[Entry]:
    """Return the words of outputs: those that have a file, and the other terms of the glossary."""
    of_files = [
        Entry(name, read_explanation(WORDS_FOLDER, name, Group.WORD).title)
        for name in ids_in(WORDS_FOLDER)
    ]
    of_glossary = [Entry(name, definition) for name, definition in _terms().items()]
    return sorted([*of_files, *of_glossary], key=lambda entry: entry.id)


def _terms() -> dict[str, str]:
    """Return the definitions of those terms of the glossary that no file explains."""
    explained = {*ids_in(FINDINGS_FOLDER), *ids_in(WORDS_FOLDER), *ALIASES}
    return {
        name: definition
        for name, definition in definitions_of_terms().items()
        if name not in explained
    }


def metrics() -> list[Entry]:
    """Return the metrics, in the order in which a difference has them."""
    return [Entry(name, figure.label) for name, figure in METRICS.items()]


def notes() -> list[str]:
    """Return the codes of notes and warnings."""
    return [*CATALOGUE]
