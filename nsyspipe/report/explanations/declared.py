"""Explanations of notes, metrics, columns and terms.

They are made from the declarations in the catalogue of notes, the figures and the schema.
"""

import re
from collections.abc import Container, Iterator, Mapping, Sequence
from itertools import filterfalse

from msgspec import Struct, structs

from nsyspipe.model.figures import FIGURES, METRICS, OTHER_FIGURES, TERMS, Figure, definition_of
from nsyspipe.model.names import SINGULAR_VERBS
from nsyspipe.model.problems import CATALOGUE, ProblemKind
from nsyspipe.model.schema import DESCRIBED, STEPS, SUMMARY
from nsyspipe.model.table import Column, TableSchema
from nsyspipe.report.explanations.text import (
    Code,
    Explanation,
    Group,
    Items,
    Paragraph,
    Piece,
    Section,
    normalized,
)
from nsyspipe.report.units import upper_first

_UNITS = {
    "ns": "nanoseconds in JSON and tables, milliseconds in text and pages",
    "ratio": "a ratio, where 1 is all, and a percentage in text and pages",
    "bytes": "bytes in JSON and tables, MB or GB in text and pages (1 GB is 1,000,000,000 bytes)",
    "bytes/s": (
        "bytes per second in JSON and tables, GB/s in text and pages (1 GB is 1,000,000,000 bytes)"
    ),
    "1/s": "steps per second",
    "FLOP": "floating-point operations, where a multiplication with an addition counts as two",
    "FLOP/s": "FLOPs per second in JSON and tables, TFLOP/s in text and pages",
    "token/s": "tokens per second",
    "sample/s": "samples per second",
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
    """Return the severity, meaning and fix of a note or warning. None if no note has this code."""
    kind = CATALOGUE.get(name)
    return None if kind is None else _explanation_of_note(name, kind)


def _explanation_of_note(name: str, kind: ProblemKind) -> Explanation:
    message = _with_placeholders(kind.message)
    meaning = [Paragraph(_sentence(message))]
    has_placeholders = message != kind.message
    if has_placeholders:
        meaning.append(Paragraph(_PLACEHOLDERS))
    severity = Paragraph(_SEVERITIES[kind.severity])
    fix = _fix_text(_with_placeholders(kind.fix or ""))
    sections = (
        _section("Severity", severity),
        _section("What it means", *meaning),
        _section("How to fix it", Paragraph(fix)),
    )
    summary = "A note that outputs print if it applies to your reports."
    return Explanation(name, Group.NOTE, name, summary, sections)


def _section(heading: str, *pieces: Piece) -> Section:
    return Section(heading, pieces)


def _with_placeholders(template: str) -> str:
    """Return a template of a message with words in capital letters for its fields.

    A field ``{n_steps:step|steps}`` is a counted noun. It becomes ``N_STEPS steps``. The field of a
    verb, such as ``{are}``, becomes its plural.
    """
    for verb in SINGULAR_VERBS:
        template = template.replace(f"{{{verb}}}", verb)
    with_plain_fields = re.sub(r"\{(\w+):[^|}]+\|([^}]+)\}", r"{\1} \2", template)

    def placeholder(field: re.Match[str]) -> str:
        return field[1].upper()

    return re.sub(r"\{(\w+)\}", placeholder, with_plain_fields)


def _fix_text(fix: str) -> str:
    if not fix:
        return _NO_FIX
    is_only_a_value = fix.isupper()
    return _FIX_IN_NOTE if is_only_a_value else _sentence(fix)


def _sentence(text: str) -> str:
    """Return a text with a capital letter and a full stop.

    A text that begins with an option or a name keeps its first letter.
    """
    first_word, _, _ = text.partition(" ")
    is_lower_word = first_word.isalpha() and first_word.islower()
    if is_lower_word and first_word != _TOOL:
        text = upper_first(text)
    has_end = text.endswith((".", "?"))
    return text if has_end else f"{text}."


def definitions_of_terms() -> dict[str, str]:
    """Return the definitions of the glossary's terms by their IDs."""
    return {normalized(term.name): term.definition for term in TERMS}


def explain_term(name: str) -> Explanation | None:
    """Return the sentence of the glossary about a term. None if there is no such term."""
    definition = definitions_of_terms().get(name)
    if definition is None:
        return None
    return Explanation(name, Group.WORD, name, definition, ())


def explain_metric(name: str) -> Explanation | None:
    """Return the explanation of a metric by its name, column or label. None if there is none.

    If the name is that of the column, and not that of the metric, the explanation also has what the
    column means in tables of other things than metrics.
    """
    figure = _figure_named(name)
    if figure is None:
        return None
    explanation = _explanation_of_metric(figure)
    is_name_of_metric = name == normalized(figure.name)
    is_name_of_column = name == normalized(figure.column)
    is_column_asked_for = is_name_of_column and not is_name_of_metric
    if not is_column_asked_for:
        return explanation
    places = columns_by_name()[figure.column]
    other_places = [place for place in places if place.table not in _TABLES_OF_METRICS]
    sections = [*explanation.sections]
    sections += map(_section_of_column, other_places)
    return structs.replace(explanation, sections=tuple(sections))


def _figure_named(name: str) -> Figure | None:
    """Return the figure that has a normalized name. None if no figure has the name.

    The name of a metric comes first, then the name of a column, then a label. If several figures
    have the same label, it is the label of the first one.
    """
    figure_of_label: dict[str, Figure] = {}
    for figure in METRICS.values():
        for label in (figure.short, figure.label):
            # The label of an earlier figure stays.
            figure_of_label.setdefault(normalized(label), figure)
    figure_of_metric = _with_normalized_names(METRICS)
    figure_of_column = _with_normalized_names(FIGURES)
    for figure_of_name in (figure_of_metric, figure_of_column, figure_of_label):
        if name in figure_of_name:
            return figure_of_name[name]
    return None


def explain_label(name: str) -> Explanation | None:
    """Return the explanation of a column by the label that outputs have for it.

    Labels of metrics are left out, because `explain_metric` has them. None if no label is `name`.
    """
    for figure in OTHER_FIGURES.values():
        labels = {normalized(figure.short), normalized(figure.label)}
        if name in labels:
            return explain_column(normalized(figure.column))
    return None


def _with_normalized_names(figures: Mapping[str, Figure]) -> dict[str, Figure]:
    return {normalized(name): figure for name, figure in figures.items()}


def _explanation_of_metric(figure: Figure) -> Explanation:
    """Return the explanation of a metric: definition, unit, formulas, and how to compare it.

    The formulas are that of the metric, those of its columns in the table of the run, and those of
    the columns in the table of steps that it is computed from.
    """
    step_names = {figure.column, *figure.of_step}
    run_columns = _columns_named(SUMMARY, {figure.column})
    step_columns = _columns_named(STEPS, step_names)
    formulas = [f"of one step, to compare runs: {figure.formula}"]
    formulas += [f"of the run: {_formula(column)}" for column in run_columns]
    formulas += [f"`{column.name}`: {_formula(column)}" for column in step_columns]
    definition = Paragraph(_sentence(figure.definition))
    unit = _sentence(_unit_text(figure.unit))
    direction = Paragraph(_DIRECTIONS[figure.better])
    command = f"nsyspipe diff BEFORE AFTER --metric {figure.name}\n"
    nulls = _null_texts([*run_columns, *step_columns])
    sections = (
        _section("Definition", definition),
        _section("Unit", Paragraph(unit)),
        _section("Formula", *_formula_pieces(formulas)),
        _section("When it is null", Items(tuple(nulls))),
        _section("Which direction is better", direction),
        _section("How to compare it", Code("bash", command)),
    )
    summary = f"A metric. In JSON and tables, its column is `{figure.column}`."
    return Explanation(figure.name, Group.METRIC, figure.label, summary, sections)


def _formula_pieces(formulas: Sequence[str]) -> Iterator[Piece]:
    yield Items(tuple(formulas))
    yield from _about_symbols(formulas)


class _Place(Struct, frozen=True):
    """A column and the table that has it."""

    table: str
    column: Column


def _columns_named(schema: TableSchema, names: Container[str | None]) -> list[Column]:
    return [column for column in schema.columns if column.name in names]


def columns_by_name() -> dict[str, list[_Place]]:
    """Return the places of every column of `nsyspipe schema`, by the name of the column.

    A place is a table that has a column with this name.
    """
    places_by_name: dict[str, list[_Place]] = {}
    for table in DESCRIBED.values():
        for column in table.columns:
            places = places_by_name.setdefault(column.name, [])
            places.append(_Place(table.name, column))
    return places_by_name


def explain_column(name: str) -> Explanation | None:
    """Return the explanation of a column. None if there is no such column.

    It has a section for each table that has the column.
    """
    items = columns_by_name().items()
    places_of_column = {normalized(column): places for column, places in items}
    places = places_of_column.get(name)
    if places is None:
        return None
    column_name = places[0].column.name
    names = [f"`{place.table}`" for place in places]
    tables = ", ".join(names)
    summary = f"A column of {tables}."
    sections = tuple(map(_section_of_column, places))
    return Explanation(column_name, Group.COLUMN, column_name, summary, sections)


def _section_of_column(place: _Place) -> Section:
    """Return what a column means in one table: definition, formula, unit, and when it is null.

    Only a column of a metric has a definition besides its formula.
    """
    column = place.column
    definition = definition_of(place.table, column.name)
    formula = _formula(column)
    texts = []
    if definition:
        texts.append(_sentence(definition))
    texts.append(_sentence(formula))
    unit = _unit_text(column.unit)
    texts.append(f"Unit: {unit}.")
    texts += _null_texts([column])
    symbols = _about_symbols([formula])
    return _section(f"In the table {place.table}", Items(tuple(texts)), *symbols)


def _about_symbols(formulas: Sequence[str]) -> Sequence[Paragraph]:
    """Return what the letters of formulas mean, if there is a formula with a length."""
    text = "".join(formulas)
    return [Paragraph(_SYMBOLS)] if "|" in text else []


def _unit_text(unit: str) -> str:
    return _UNITS.get(unit, unit)


def _formula(column: Column) -> str:
    """Return the formula of a column, in the words of its declaration.

    Clauses of the declaration that are about null are left out.
    """
    clauses = filterfalse(_is_about_null, _clauses(column.doc))
    return ". ".join(clauses) or column.name


def _null_texts(columns: Sequence[Column]) -> list[str]:
    """Return texts about when columns are null, as far as their declarations say it."""
    nullable = [column for column in columns if column.nullable]
    if not nullable:
        return ["Never null."]
    texts = []
    for column in nullable:
        clauses = filter(_is_about_null, _clauses(column.doc))
        texts += [f"`{column.name}`: {clause}" for clause in clauses]
    return [*dict.fromkeys(texts), _NULL_IN_GENERAL]


def _clauses(doc: str) -> list[str]:
    return re.split(r"\. (?=[A-Z])", doc.removesuffix("."))


def _is_about_null(clause: str) -> bool:
    word = re.search(r"\bnull\b", clause, flags=re.IGNORECASE)
    return word is not None
