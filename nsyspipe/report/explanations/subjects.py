"""Which IDs have an explanation, and how `explain` finds an ID.

Findings and words have files. Other explanations are made from declarations.
"""

import difflib
from collections.abc import Iterable

from msgspec import Struct

from nsyspipe.model.figures import METRICS
from nsyspipe.model.problems import CATALOGUE
from nsyspipe.report.explanations.declared import (
    columns_by_name,
    definitions_of_terms,
    explain_column,
    explain_label,
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
# Causes with another name in text than in JSON.
_NAMES_OF_CAUSES = {"idle devices": "idle GPUs"}
_MAX_SIMILAR_IDS = 5
_MIN_SIMILARITY = 0.6
# A part of an ID with this many letters finds the IDs that contain it.
_MIN_LETTERS_OF_PART = 3


class Entry(Struct, frozen=True):
    """One ID in a list of IDs."""

    id: str
    title: str


def explain(topic: str) -> Explanation | None:
    """Return the explanation of an ID. None if there is none.

    A topic that is written like the name of a metric, such as ``step_time``, is that metric.
    Otherwise, the order is: findings, words, notes, labels and columns of metrics, terms of the
    glossary, other columns, and other labels of outputs.
    """
    name = normalized(topic)
    if topic in METRICS:
        return explain_metric(name)
    if name in ids_in(FINDINGS_FOLDER):
        return explain_finding(name)
    word = ALIASES.get(name, name)
    if word in ids_in(WORDS_FOLDER):
        return read_explanation(WORDS_FOLDER, word, Group.WORD)
    # The first that has an explanation.
    note_or_metric = explain_note(name) or explain_metric(name)
    term_or_column = explain_term(name) or explain_column(name)
    return note_or_metric or term_or_column or explain_label(name)


def explain_finding(name: str) -> Explanation:
    """Return the explanation of a finding that has one."""
    return read_explanation(FINDINGS_FOLDER, name, Group.FINDING)


def similar_ids(topic: str) -> list[str]:
    """Return the IDs that somebody may have meant, the most similar first.

    IDs that contain the topic come last.
    """
    name = normalized(topic)
    id_of_name = {normalized(known_id): known_id for known_id in all_ids()}
    similar_names = difflib.get_close_matches(
        name, id_of_name, n=_MAX_SIMILAR_IDS, cutoff=_MIN_SIMILARITY
    )
    if len(name) >= _MIN_LETTERS_OF_PART:
        similar_names += [known_name for known_name in id_of_name if name in known_name]
    distinct_names = [*dict.fromkeys(similar_names)]
    return [id_of_name[similar_name] for similar_name in distinct_names[:_MAX_SIMILAR_IDS]]


def all_ids() -> list[str]:
    """Return every ID, columns included."""
    ids = [*ids_in(FINDINGS_FOLDER), *ids_in(WORDS_FOLDER)]
    ids += CATALOGUE
    ids += METRICS
    ids += _terms()
    ids += columns_by_name()
    return list(dict.fromkeys(ids))


def findings_by_cause() -> dict[str, list[Entry]]:
    """Return the findings by what causes them, in the order of `nsyspipe.findings.judge.CAUSES`."""
    from nsyspipe.findings.judge import CAUSES  # noqa: PLC0415 - only lists need the rules

    return {cause: _finding_entries(names) for cause, names in CAUSES.items()}


def _finding_entries(names: Iterable[str]) -> list[Entry]:
    return [*map(_finding_entry, names)]


def _finding_entry(name: str) -> Entry:
    return Entry(name, explain_finding(name).title)


def cause_name(cause: str) -> str:
    """Return what text calls one of the causes of `findings_by_cause`."""
    return _NAMES_OF_CAUSES.get(cause, cause)


def words() -> list[Entry]:
    """Return the words of outputs that have a file, and the other terms of the glossary."""
    definitions = _terms().items()
    entries = [Entry(name, definition) for name, definition in definitions]
    for name in ids_in(WORDS_FOLDER):
        explanation = read_explanation(WORDS_FOLDER, name, Group.WORD)
        entries.append(Entry(name, explanation.title))
    return sorted(entries, key=lambda entry: entry.id)


def _terms() -> dict[str, str]:
    """Return the definitions of the terms of the glossary that no file explains."""
    terms = definitions_of_terms()
    for name in [*ids_in(FINDINGS_FOLDER), *ids_in(WORDS_FOLDER), *ALIASES]:
        terms.pop(name, None)
    return terms


def metrics() -> list[Entry]:
    """Return the metrics, in the order in which a difference has them."""
    return [Entry(name, figure.label) for name, figure in METRICS.items()]


def notes() -> list[str]:
    """Return the codes of notes and warnings."""
    return [*CATALOGUE]
