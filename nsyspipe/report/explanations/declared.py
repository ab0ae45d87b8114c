"""Explanations of notes, metrics, columns and terms, made from what declares them: the catalogue, the figures, the schema."""

import re
from collections.abc import Sequence

from msgspec import Struct, structs

from nsyspipe.model.figures import FIGURES, METRICS, TERMS, Figure, definition_of
from nsyspipe.model.problems import CATALOGUE, ProblemKind
from nsyspipe.model.schema import DESCRIBED, STEPS, SUMMARY
from nsyspipe.model.table import Column
from nsyspipe.report.explanations.text import (
    Code,
    Explanation,
    Group,
    Items,
    Paragraph,
    Section,
    normalized,
)

_UNITS = {
    "ns": "nanoseconds in JSON and tables, milliseconds in text and pages",
    "ratio": "a ratio, where 1 is all, and a percentage in text and pages",
    "bytes": "bytes in JSON and tables, MB or GB in text and pages (1 GB is 1,000,000,000 bytes)",
    "bytes/s": "bytes per second in JSON and tables, GB/s in text and pages (1 GB is 1,000,000,000 bytes)",
    "1/s": "steps per second",
    "count": "a number",
    "flag": "true or false",
    "text": "text",
    "json": "text that is a JSON document",
    "id": "a number that identifies something",
    "enum": "a number that means one of several kinds",
    "time": "a date and time in UTC",
}
_SEVERITIES = {
    "error": "error: an important answer is missing.",
    "warning": "warning: an answer is missing, or metrics are doubtful.",
    "info": "info: how nsyspipe read the reports. Most often you do not need to do anything.",
}
_DIRECTIONS = {
    "lower": "Lower is better.",
    "higher": "Higher is better.",
    "neither": "Neither direction is better by itself.",
}
_TABLES_OF_METRICS = {"steps", "breakdown", "summary", "rank_summary", "runs"}
_NO_FIX = "There is nothing to fix."
_FIX_IN_NOTE = "The fix depends on your run. The note in the output contains the fix."
_TOOL = "nsyspipe"
_PLACEHOLDERS = "Words in capital letters can stand for values of your run."
_NULL_IN_GENERAL = (
    "Null if the reports do not contain what it is made from. A note in the output names the "
    "missing part."
)
_SYMBOLS = (
    "C, M and P are the times in which compute, communication and copies run. D means "
    "device-to-device copies, "
    "B compute of the backward pass, and W wait time. |X| is the length of X, without times "
    "counted twice. "
    "`\\` means without, `n` means and, `u` means or."
)


def explain_note(name: str) -> Explanation | None:
    """Return the explanation of a note or warning: severity, meaning and fix; None if there is none of that code."""
    kind = CATALOGUE.get(name)
    return None if kind is None else _explanation_of_note(name, kind)


def _explanation_of_note(name: str, kind: ProblemKind) -> Explanation:
    message = _with_values(kind.message)
    about_values = [Paragraph(_PLACEHOLDERS)] if message != kind.message else []
    sections = (
        Section("Severity", (Paragraph(_SEVERITIES[kind.severity]),)),
        Section("What it means", (Paragraph(_sentence(message)), *about_values)),
        Section("How to fix it", (Paragraph(_fix_text(_with_values(kind.fix or ""))),)),
    )
    return Explanation(
        name, Group.NOTE, name, "A note that outputs print if it applies to your reports.", sections
    )


def _with_values(template: str) -> str:
    """Return a template of a message with its fields as words in capital letters, and counted nouns in the plural."""
    counted = re.sub(r"\{(\w+):[^|}]+\|([^}]+)\}", r"{\1} \2", template)
    return re.sub(r"\{(\w+)\}", lambda field: field[1].upper(), counted)


def _fix_text(fix: str) -> str:
    if not fix:
        return _NO_FIX
    is_only_a_value = fix.isupper()
    return _FIX_IN_NOTE if is_only_a_value else _sentence(fix)


def _sentence(text: str) -> str:
    """Return a text with a capital letter and a full stop; a text that begins with an option or a name keeps its letter."""
    first_word = text.partition(" ")[0]
    is_plain_word = first_word.isalpha() and first_word.islower() and first_word != _TOOL
    start = text[:1].upper() if is_plain_word else text[:1]
    end = "" if text.endswith((".", "?")) else "."
    return f"{start}{text[1:]}{end}"


def definitions_of_terms() -> dict[str, str]:
    """Return the definitions of the glossary's terms by their IDs."""
    return {normalized(term.name): term.definition for term in TERMS}


def explain_term(name: str) -> Explanation | None:
    """Return the explanation of a term: the sentence of the glossary; None if there is no such term."""
    definition = definitions_of_terms().get(name)
    return None if definition is None else Explanation(name, Group.WORD, name, definition, ())


def explain_metric(name: str) -> Explanation | None:
    """Return the explanation of a metric by its name, its column or its label; None if there is none.

    Asked for the column, it includes what a column of the same name is in tables that do not hold
    metrics.
    """
    by_label = {
        normalized(label): figure
        for figure in reversed(METRICS.values())
        for label in (figure.short, figure.label)
    }
    by_column = {normalized(column): figure for column, figure in FIGURES.items()}
    by_name = {normalized(metric): figure for metric, figure in METRICS.items()}
    figure = (by_label | by_column | by_name).get(name)
    if figure is None:
        return None
    explanation = _explanation_of_metric(figure)
    if name == normalized(figure.column) != normalized(figure.name):
        elsewhere = [
            place
            for place in columns_by_name()[figure.column]
            if place.table not in _TABLES_OF_METRICS
        ]
        sections = (*explanation.sections, *map(_section_of_column, elsewhere))
        return structs.replace(explanation, sections=sections)
    return explanation


def _explanation_of_metric(figure: Figure) -> Explanation:
    of_run = [column for column in SUMMARY.columns if column.name == figure.column]
    of_step = [
        column for column in STEPS.columns if column.name in (figure.column, *figure.of_step)
    ]
    formulas = [f"of one step, to compare runs: {figure.formula}"]
    formulas += [f"of the run: {_definition(column)}" for column in of_run]
    formulas += [f"`{column.name}`: {_definition(column)}" for column in of_step]
    command = f"nsyspipe diff BEFORE AFTER --metric {figure.name}\n"
    sections = (
        Section("Definition", (Paragraph(_sentence(figure.definition)),)),
        Section("Unit", (Paragraph(_sentence(_unit_text(figure.unit))),)),
        Section("Formula", (Items(tuple(formulas)), *_about_symbols(formulas))),
        Section("When it is null", (Items(tuple(_null_texts([*of_run, *of_step]))),)),
        Section("Which direction is better", (Paragraph(_DIRECTIONS[figure.better]),)),
        Section("How to compare it", (Code("bash", command),)),
    )
    summary = f"A metric. In JSON and tables, its column is `{figure.column}`."
    return Explanation(figure.name, Group.METRIC, figure.label, summary, sections)


class _Place(Struct, frozen=True):
    """A column and the table that has it."""

    table: str
    column: Column


def columns_by_name() -> dict[str, list[_Place]]:
    """Return every column of `nsyspipe schema` by name, with the tables that have it."""
    places: dict[str, list[_Place]] = {}
    for table in DESCRIBED.values():
        for column in table.columns:
            places.setdefault(column.name, []).append(_Place(table.name, column))
    return places


def explain_column(name: str) -> Explanation | None:
    """Return the explanation of a column, with a section for each table that has it; None if there is none."""
    places = {normalized(column): tables for column, tables in columns_by_name().items()}.get(name)
    if places is None:
        return None
    column_name = places[0].column.name
    tables = ", ".join(f"`{place.table}`" for place in places)
    sections = tuple(_section_of_column(place) for place in places)
    return Explanation(column_name, Group.COLUMN, column_name, f"A column of {tables}.", sections)


def _section_of_column(place: _Place) -> Section:
    column = place.column
    meaning = definition_of(place.table, column.name)
    formula = _definition(column)
    texts = [_sentence(meaning)] if meaning else []
    texts += [_sentence(formula), f"Unit: {_unit_text(column.unit)}.", *_null_texts([column])]
    return Section(f"In the table {place.table}", (Items(tuple(texts)), *_about_symbols([formula])))


def _about_symbols(formulas: Sequence[str]) -> Sequence[Paragraph]:
    return [Paragraph(_SYMBOLS)] if any("|" in formula for formula in formulas) else []


def _unit_text(unit: str) -> str:
    return _UNITS.get(unit, unit)


def _definition(column: Column) -> str:
    """Return what the declaration of a column says it is, without what it says about null."""
    clauses = [clause for clause in _clauses(column.doc) if not _is_about_null(clause)]
    return ". ".join(clauses) or column.name


def _null_texts(columns: Sequence[Column]) -> list[str]:
    """Return when columns are null, as far as their declarations contain it, a text each."""
    nullable = [column for column in columns if column.nullable]
    if not nullable:
        return ["Never null."]
    clauses = [
        f"`{column.name}`: {clause}"
        for column in nullable
        for clause in _clauses(column.doc)
        if _is_about_null(clause)
    ]
    return [*dict.fromkeys(clauses), _NULL_IN_GENERAL]


def _clauses(doc: str) -> list[str]:
    return re.split(r"\. (?=[A-Z])", doc.removesuffix("."))


def _is_about_null(clause: str) -> bool:
    return re.search(r"\bnull\b", clause, flags=re.IGNORECASE) is not None
