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
# A float holds each integer up to this one.
_MAX_INTEGER_OF_FLOAT = 2**53


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
    """Return the answer of the tool ``query``: rows of a table, as plain Python values.

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
        ``rows``, ``columns`` (name, type and unit of each), the numbers of rows, and
        ``next_offset``. With that offset, the same query continues. None means that there are no
        more rows.

    Raises
    ------
    OptionError
        If there is no such table or column, or if a value is not of the type of its column.
    """
    schema = _schema_of(asked.table)
    names = asked.columns or schema.names
    for name in names:
        _check_column(schema, name)
    conditions = [_CheckedCondition(schema, condition) for condition in asked.where]
    if asked.sort_by is not None:
        _check_column(schema, asked.sort_by)
    table = run.table(schema.name)
    matching = _matching_rows(table, conditions)
    ordered = _ordered(matching, asked)
    asked_rows = ordered.slice(asked.offset, asked.limit).select(names)
    rows = _first_rows(asked_rows.to_pylist(), max_row_bytes)
    document: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "tool_version": __version__,
        "run": {"run_id": run.header.run_id, "label": run.header.label},
        "table": schema.name,
        "columns": _columns_in_words(schema, names),
    }
    n_matching_rows = matching.num_rows
    next_offset = asked.offset + len(rows)
    has_more_rows = next_offset < n_matching_rows
    document["n_rows"] = table.num_rows
    document["n_matching_rows"] = n_matching_rows
    document["next_offset"] = next_offset if has_more_rows else None
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


class _CheckedCondition:
    """A condition whose column exists, and whose value is of the type of the column."""

    def __init__(self, schema: TableSchema, condition: Condition) -> None:
        _check_column(schema, condition.column)
        type_of_column = {column.name: column.type for column in schema.columns}
        self._condition = condition
        self._type = type_of_column[condition.column]
        has_value = condition.value is not None
        needs_value = condition.operator in _COMPARISONS
        # The other two operators are ``is null`` and ``is not null``.
        if has_value != needs_value:
            problem = "takes no value" if has_value else "needs a value, and null is none"
            raise OptionError(self._subject, problem, fix="is null and is not null have no value")
        if has_value:
            self._check_value(condition.value)

    @property
    def _subject(self) -> str:
        return f"where {self._condition.column} {self._condition.operator}"

    def _check_value(self, value: object) -> None:
        """Raise an OptionError unless a value is of the type of the column."""
        kind = _KINDS[self._type]
        # In Python, a bool is an int too. A flag is no number here, and a number is no flag.
        is_flag = isinstance(value, bool)
        needs_flag = self._type == FLAG
        is_of_kind = isinstance(value, kind.types) and is_flag == needs_flag
        size_of_integer = abs(value) if isinstance(value, int) else 0
        subject = f"{self._subject} {short_repr(value)}"
        if not is_of_kind or size_of_integer > _MAX_INTEGER:
            raise OptionError(subject, f"is not {kind.noun}", fix=f"pass {kind.noun}")
        # A column of floats takes integers too, but only those that a float can hold exactly.
        if self._type == FLOAT and size_of_integer > _MAX_INTEGER_OF_FLOAT:
            problem = "is an integer that a column of floats cannot hold"
            raise OptionError(subject, problem, fix=f"at most {_MAX_INTEGER_OF_FLOAT}, or a float")

    def is_fulfilled(self, table: pa.Table) -> pa.ChunkedArray:
        """Tell for each row whether it fulfils the condition. A null fulfils only ``is null``."""
        column = table[self._condition.column]
        if self._condition.operator == "is null":
            return pc.is_null(column)
        if self._condition.operator == "is not null":
            return pc.is_valid(column)
        value = pa.scalar(self._condition.value, self._type)
        compare = _COMPARISONS[self._condition.operator]
        # A comparison with null is null.
        return pc.fill_null(compare(column, value), fill_value=False)


def _matching_rows(table: pa.Table, conditions: Sequence[_CheckedCondition]) -> pa.Table:
    """Return the rows that fulfil all conditions."""
    for condition in conditions:
        table = table.filter(condition.is_fulfilled(table))
    return table


def _ordered(table: pa.Table, asked: QueryArguments) -> pa.Table:
    """Return the rows in the asked order, in which rows with equal values keep their order."""
    if asked.sort_by is None:
        return table
    direction = "descending" if asked.descending else "ascending"
    # Rows with equal values go by their position.
    positions = pa.array(range(table.num_rows), INT)
    keys = pa.table({"value": table[asked.sort_by], "position": positions})
    sorted_positions = pc.sort_indices(keys, [("value", direction), ("position", "ascending")])
    return table.take(sorted_positions)


def _first_rows(rows: list[dict[str, Any]], max_bytes: int) -> list[dict[str, Any]]:
    """Return the first rows, as many as have JSON of at most `max_bytes` together.

    Raise an OptionError if the first row alone has more.
    """
    n_bytes_so_far = 0
    for n_fitting, row in enumerate(rows):
        n_bytes_so_far += len(json.dumps(row))
        if n_bytes_so_far > max_bytes:
            if n_fitting == 0:
                problem = f"one row has more than {max_bytes} bytes"
                raise OptionError("query", problem, fix="name fewer columns")
            return rows[:n_fitting]
    return rows


def _columns_in_words(schema: TableSchema, names: Sequence[str]) -> list[dict[str, str]]:
    """Return name, type and unit of some columns, in the asked order."""
    column_of_name = {column.name: column for column in schema.columns}
    described = []
    for name in names:
        column = column_of_name[name]
        described.append({"name": name, "type": str(column.type), "unit": column.unit})
    return described
