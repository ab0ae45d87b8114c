"""Rows of one table of a saved run: named columns, typed conditions, and limits."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.errors import OptionError, short_repr
from nsyspipe.mcp.arguments import Condition, QueryArguments
from nsyspipe.model.schema import RUN_TABLES
from nsyspipe.model.table import FLAG, FLOAT, INT, SCHEMA_VERSION, TEXT, TableSchema
from nsyspipe.run.run import Run
from nsyspipe.version import __version__

_COMPARISONS = {
    "==": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
_MAX_INTEGER = 2**63 - 1


class _Kind(NamedTuple):
    """What values of a column may be, in Python and in words."""

    types: tuple[type, ...]
    noun: str


_KINDS = {
    INT: _Kind((int,), "an integer of 64 bits"),
    FLOAT: _Kind((int, float), "a number"),
    TEXT: _Kind((str,), "a text"),
    FLAG: _Kind((bool,), "true or false"),
}


def query_document(run: Run, asked: QueryArguments, max_row_bytes: int) -> dict[str, Any]:
    """Return rows of a table, with what is known of its columns, as plain Python values.

    Parameters
    ----------
    run
        The run.
    asked
        The table, its columns, conditions, order and number of rows.
    max_row_bytes
        Rows are returned only as long as their JSON has at most so many bytes.

    Returns
    -------
    dict
        ``rows``, and ``next_offset``, with which the same query continues. It is null after the
        last row.

    Raises
    ------
    OptionError
        If there is no such table or column, or if a value is not of the type of its column.
    """
    schema = _schema_of(asked.table)
    names = asked.columns or schema.names
    for name in names:
        _check_column(schema, name)
    conditions = [_Checked(schema, condition) for condition in asked.where]
    if asked.sort_by is not None:
        _check_column(schema, asked.sort_by)
    table = run.table(schema.name)
    matching = _matching_rows(table, conditions)
    ordered = _ordered(matching, asked)
    page = ordered.slice(asked.offset, asked.limit).select(names)
    rows = _rows_within(page.to_pylist(), max_row_bytes)
    document: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "tool_version": __version__,
        "run": {"run_id": run.header.run_id, "label": run.header.label},
        "table": schema.name,
        "columns": _described(schema, names),
    }
    n_matching_rows = matching.num_rows
    next_offset = asked.offset + len(rows)
    document["n_rows"] = table.num_rows
    document["n_matching_rows"] = n_matching_rows
    document["next_offset"] = next_offset if next_offset < n_matching_rows else None
    return document | {"rows": rows}


def _schema_of(table: str) -> TableSchema:
    if table not in RUN_TABLES:
        subject = f"table {short_repr(table)}"
        raise OptionError.no_such_name(subject, "there is no such table", table, RUN_TABLES)
    return RUN_TABLES[table]


def _check_column(schema: TableSchema, name: str) -> None:
    if name not in schema.names:
        subject = f"column {short_repr(name)}"
        problem = f"there is no such column in {schema.name}"
        raise OptionError.no_such_name(subject, problem, name, schema.names)


class _Checked:
    """A condition whose column exists, and whose value is of the type of the column."""

    def __init__(self, schema: TableSchema, condition: Condition) -> None:
        _check_column(schema, condition.column)
        (column,) = (each for each in schema.columns if each.name == condition.column)
        self._condition = condition
        self._type = column.type
        has_value = condition.value is not None
        if has_value != (condition.operator in _COMPARISONS):
            needed = "takes no value" if has_value else "needs a value, and null is none"
            raise OptionError(self._subject, needed, fix="is null and is not null have no value")
        if has_value:
            self._check_value(condition.value)

    @property
    def _subject(self) -> str:
        return f"where {self._condition.column} {self._condition.operator}"

    def _check_value(self, value: object) -> None:
        kind = _KINDS[self._type]
        is_flag = isinstance(value, bool)
        is_of_kind = isinstance(value, kind.types) and is_flag == (self._type == FLAG)
        is_too_large = isinstance(value, int) and abs(value) > _MAX_INTEGER
        if not is_of_kind or is_too_large:
            subject = f"{self._subject} {short_repr(value)}"
            raise OptionError(subject, f"is not {kind.noun}", fix=f"pass {kind.noun}")

    def is_fulfilled(self, table: pa.Table) -> pa.ChunkedArray:
        """Tell for each row whether it fulfils the condition. A null fulfils only ``is null``."""
        column = table[self._condition.column]
        if self._condition.operator == "is null":
            return pc.is_null(column)
        if self._condition.operator == "is not null":
            return pc.is_valid(column)
        value = pa.scalar(self._condition.value, self._type)
        compare = _COMPARISONS[self._condition.operator]
        return pc.fill_null(compare(column, value), fill_value=False)


def _matching_rows(table: pa.Table, conditions: Sequence[_Checked]) -> pa.Table:
    for condition in conditions:
        table = table.filter(condition.is_fulfilled(table))
    return table


def _ordered(table: pa.Table, asked: QueryArguments) -> pa.Table:
    """Return the rows in the asked order, in which rows with equal values keep their order."""
    if asked.sort_by is None:
        return table
    order = "descending" if asked.descending else "ascending"
    positions = pa.array(range(table.num_rows), INT)
    keys = pa.table({"value": table[asked.sort_by], "position": positions})
    sorted_rows = pc.sort_indices(keys, [("value", order), ("position", "ascending")])
    return table.take(sorted_rows)


def _rows_within(rows: list[dict[str, Any]], max_bytes: int) -> list[dict[str, Any]]:
    """Return the first rows whose JSON has at most so many bytes together."""
    n_bytes = 0
    for number, row in enumerate(rows):
        n_bytes += len(json.dumps(row))
        if n_bytes > max_bytes:
            if number == 0:
                problem = f"one row has more than {max_bytes} bytes"
                raise OptionError("query", problem, fix="name fewer columns")
            return rows[:number]
    return rows


def _described(schema: TableSchema, names: Sequence[str]) -> list[dict[str, str]]:
    columns = {column.name: column for column in schema.columns}
    described = []
    for name in names:
        column = columns[name]
        described.append({"name": name, "type": str(column.type), "unit": column.unit})
    return described
