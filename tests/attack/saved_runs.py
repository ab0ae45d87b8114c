"""Changes to a saved run such as accident or malice could make: of its rows, columns, bytes, and JSON."""

from __future__ import annotations

import json
import math
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

ODD: list[Any] = [
    None, -1, 0, 1, 2**63 - 1, -(2**63), 10**400, 1e308, math.nan, math.inf, "", "x", "\ud800", "<script>", "9" * 5000,
    True, [], {}, [[]], [None], {"a": None}, ["x", 1],
]  # fmt: skip
NUMBERS = [0, -1, 1, 7, 2**31, 2**53 + 1, 2**62, 2**63 - 1, -(2**63)]
FLOATS = [0.0, -0.0, -1.5, 1e-300, 1e300, math.nan, math.inf, -math.inf, 2.0]
TEXTS = ["", "x", "\x00", "\x1b[31m", "<script>", "null", "é" * 1000, "0", "forward", "{}", "[" * 5000]
OTHER_TYPES = [
    pa.array(["7"]), pa.array([b"\xff"]), pa.array([0.5]), pa.array([[1]]), pa.array([True]), pa.array([{"a": 1}]),
    pa.array([3], pa.int8()), pa.array([2**64 - 1], pa.uint64()), pa.array([0], pa.timestamp("ns")),
    pa.array([1.0], pa.float32()),
]  # fmt: skip


def changed(chosen, path):
    """Change a file of a saved run in place; return what was done, in words."""
    names = [*OF_BYTES, *OF_TABLE, *OF_COLUMN, "value", "value"]
    if path.parent.parent.name in ("runs", "findings"):
        names += [*OF_JSON] * 3
    name = chosen.choice(names)
    if name in OF_BYTES:
        path.write_bytes(OF_BYTES[name](chosen, bytearray(path.read_bytes())))
        return name
    table = pq.ParquetFile(path).read()
    if name in OF_TABLE:
        pq.write_table(OF_TABLE[name](chosen, table), path)
        return name
    column = chosen.choice(table.column_names)
    if name in OF_JSON:
        column = "details" if "details" in table.column_names else "evidence"
    if name in OF_COLUMN:
        table = OF_COLUMN[name](chosen, table, table.column_names.index(column), column)
    elif len(table):
        texts = table[column].to_pylist()
        row = chosen.randrange(len(texts))
        texts[row] = OF_JSON[name](chosen, texts[row])
        table = table.set_column(table.column_names.index(column), column, pa.array(texts, pa.string()))
    pq.write_table(table, path)
    return f"{name} of {column}"


def _flipped(chosen, content):
    for _ in range(chosen.randint(1, 4)):
        content[chosen.randrange(len(content))] ^= 1 << chosen.randrange(8)
    return content


def _taken(table, rows):
    return table.take(pa.array(rows, pa.int64()))


def _one_changed(chosen, column, value):
    """Return a column with one value replaced, and sometimes all of them."""
    values = column.to_pylist()
    if values:
        values[chosen.randrange(len(values))] = value
        if value is not None and chosen.random() < 0.3:
            values = [value] * len(values)
    return pa.array(values, column.type)


def _value(chosen, table, at, name):
    column = table.column(at)
    kind = column.type
    if pa.types.is_timestamp(kind):
        if not len(column):
            return table
        odd = pa.array([chosen.choice([0, -(2**62), 2**62, 2**63 - 1])], pa.int64()).cast(kind)
        return table.set_column(at, name, pa.concat_arrays([odd, column.combine_chunks().slice(1)]))
    kinds = ((pa.types.is_integer, NUMBERS), (pa.types.is_floating, FLOATS), (pa.types.is_boolean, [True, False]))
    values = next((values for is_kind, values in kinds if is_kind(kind)), TEXTS)
    return table.set_column(at, name, _one_changed(chosen, column, chosen.choice(values)))


def _swapped(chosen, table, at, name):
    same = [one for one in table.column_names if table.schema.field(one).type == table.schema.field(at).type]
    return table.set_column(at, name, table[chosen.choice(same)])


def _other_type(chosen, table, at, name):
    return table.set_column(at, name, _taken(chosen.choice(OTHER_TYPES), [0] * len(table)))


def _mutate(chosen, value, depth=0):
    """Return a JSON value with one part of it changed."""
    if isinstance(value, dict) and value and (depth == 0 or chosen.random() < 0.8):
        key = chosen.choice(sorted(value))
        if chosen.random() < 0.15:
            return {name: one for name, one in value.items() if name != key}
        return {**value, key: _mutate(chosen, value[key], depth + 1)}
    if isinstance(value, list) and value and chosen.random() < 0.6:
        at = chosen.randrange(len(value))
        return [*value[:at], _mutate(chosen, value[at], depth + 1), *value[at + 1 :]]
    return chosen.choice(ODD)


def _broken(chosen, text):
    at = chosen.randrange(len(text))
    broken = [text[:at], text[:at] + '"' + text[at:], text + text]
    return chosen.choice([*broken, "[" * 100_000, '{"a":' * 100_000, "null", "[]", "{}", "1"])


OF_BYTES = {"bytes": _flipped, "cut": lambda chosen, content: content[: chosen.randrange(len(content))]}
OF_TABLE = {
    "no rows": lambda _, table: table.slice(0, 0),
    "fewer rows": lambda chosen, table: _taken(table, [at for at in range(len(table)) if chosen.random() < 0.6]),
    "rows twice": lambda _, table: pa.concat_tables([table, table]),
    "other order": lambda chosen, table: _taken(table, chosen.sample(range(len(table)), len(table))),
    "metadata": lambda chosen, table: table.replace_schema_metadata(
        {"schema_version": chosen.choice(["", "99", "-1", "x", "1" * 5000, "\u0661"])}
    ),
}
OF_COLUMN = {
    "drop": lambda _, table, __, name: table.drop_columns([name]),
    "twice": lambda _, table, at, name: table.append_column(name, table.column(at)),
    "other name": lambda _, table, at, __: table.set_column(at, "other", table.column(at)),
    "nulls": lambda _, table, at, name: table.set_column(at, name, pa.nulls(len(table), table.column(at).type)),
    "one null": lambda chosen, table, at, name: table.set_column(at, name, _one_changed(chosen, table.column(at), None)),
    "value": _value, "other type": _other_type, "swapped": _swapped,
}  # fmt: skip
OF_JSON = {"json": lambda chosen, text: json.dumps(_mutate(chosen, json.loads(text))), "json text": _broken}
