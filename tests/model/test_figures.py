"""The vocabulary: names, units and definitions of figures agree with the tables, and the glossary has each term once."""

import pytest

from nsyspipe.model import figures
from nsyspipe.model.figures import (
    FIGURES,
    MEANS,
    OTHER_FIGURES,
    RATES,
    RATIOS,
    definition_of,
    glossary_rows,
)
from nsyspipe.model.schema import DESCRIBED, STEPS, SUMMARY

_ALL = {**{f"run: {name}": figure for name, figure in FIGURES.items()}, **OTHER_FIGURES}


def test_the_unit_of_a_figure_is_that_of_its_column():
    for name, figure in FIGURES.items():
        columns = [one for one in (*SUMMARY.columns, *STEPS.columns) if one.name == figure.column]
        assert figure.unit == columns[0].unit, name


def test_the_ratios_are_those_of_the_steps_with_their_formulas():
    formulas = {
        name: f"{numerator} / {denominator}".replace("_ns", "")
        for name, (numerator, denominator) in RATIOS.items()
    }
    assert formulas == {
        column.name: column.doc for column in STEPS.columns if column.unit == "ratio"
    }


def test_the_means_are_those_of_the_summary_with_their_formulas():
    formulas = {name: f"mean {column} over (rank, step)" for name, column in MEANS.items()}
    assert formulas == {
        column.name: column.doc for column in SUMMARY.columns if column.doc.startswith("mean ")
    }


def test_the_rates_are_those_of_the_summary_with_their_formulas():
    formulas = {name: f"sum of {column} / sum of transfer" for name, column in RATES.items()}
    assert formulas == {
        column.name: column.doc.partition(" over ")[0]
        for column in SUMMARY.columns
        if column.unit == "bytes/s"
    }


def test_every_definition_is_one_sentence():
    for name, figure in _ALL.items():
        assert figure.definition.endswith("."), name
        assert ". " not in figure.definition, name
        assert ";" not in figure.definition, name


def test_the_glossary_has_each_term_once():
    terms = [row.term for row in glossary_rows()]
    assert len(terms) == len(set(terms))


def test_the_glossary_has_every_figure_and_term():
    labels = {figure.label for figure in _ALL.values()} | {term.name for term in figures.TERMS}
    assert {row.term for row in glossary_rows()} == labels


def test_a_time_and_its_share_are_one_row_with_both_units():
    units = [row.unit for row in glossary_rows() if row.term == FIGURES["exposed_comm_share"].label]
    assert len(units) == 1
    assert len(units[0].split(", ")) == 2


@pytest.mark.parametrize(
    ("table", "column", "figure"),
    [
        ("steps", "wait_ns", FIGURES["wait_ns"]),
        ("summary", "idle_share", FIGURES["idle_share"]),
        ("phases", "idle_ns", OTHER_FIGURES["idle_before"]),
        ("costs", "beside_comm_ratio", OTHER_FIGURES["concurrent_with_comm"]),
    ],
)
def test_a_column_that_is_a_figure_has_its_definition(table, column, figure):
    assert definition_of(table, column) == figure.definition


@pytest.mark.parametrize("figure", OTHER_FIGURES.values(), ids=lambda figure: figure.name)
def test_every_figure_without_a_value_of_the_run_is_the_definition_of_a_column(figure):
    definitions = {
        definition_of(table.name, name) for table in DESCRIBED.values() for name in table.names
    }
    is_mean_of_a_sum = figure.name == "straggler_delay"  # the tables have the sum over steps
    assert is_mean_of_a_sum or figure.definition in definitions


def test_each_column_with_a_figures_definition_is_in_the_schema():
    lost = [
        (table, column)
        for table, known in figures._FIGURES_OF_TABLES.items()
        for column, figure in known.items()
        if figure not in FIGURES.values() and column not in DESCRIBED[table].names
    ]
    assert lost == []


@pytest.mark.parametrize(
    ("table", "column"),
    [
        ("steps", "wall_ns"),
        ("steps", "rank"),
        ("rank_summary", "step_time_ns"),
        ("collectives", "wait_ns"),
    ],
)
def test_a_column_that_is_another_figure_has_none(table, column):
    assert definition_of(table, column) is None
