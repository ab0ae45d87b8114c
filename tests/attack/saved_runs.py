"""Changes to a saved run such as accident or malice could make: of its rows, columns, bytes, and JSON."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from nsyspipe.model.schema import EVENT_TABLES

ODD: list[Any] = [
    None,
    -1,
    0,
    1,
    2**63 - 1,
    -(2**63),
    10**400,
    1e308,
    math.nan,
    math.inf,
    "",
    "x",
    "\ud800",
    "<script>",
    "9" * 5000,
    True,
    [],
    {},
    [[]],
    [None],
    {"a": None},
    ["x", 1],
]
NUMBERS = [0, -1, 1, 7, 2**31, 2**53 + 1, 2**62, 2**63 - 1, -(2**63)]
FLOATS = [0.0, -0.0, -1.5, 1e-300, 1e300, math.nan, math.inf, -math.inf, 2.0]
TEXTS = ["", "x", "\x00", "\x1b[31m", "<script>", "null", "é" * 1000, "0", "forward", "{}", "[" * 5000]


def changed(chosen, path):
    """Change a file of a saved run in place; return what was done, in words."""
    names = [name for name in CHANGES if name not in JSON_CHANGES]
    if path.parent.parent.name in ("runs", "findings"):
        names += JSON_CHANGES * 3
    name = chosen.choice(names)
    if name in ("bytes", "cut"):
        return f"{name}: {CHANGES[name](chosen, path)}"
    table = pq.ParquetFile(path).read()
    found, what = CHANGES[name](chosen, table)
    pq.write_table(found, path)
    return f"{name}: {what}"


def _bytes(chosen, path):
    content = bytearray(path.read_bytes())
    for _ in range(chosen.randint(1, 4)):
        content[chosen.randrange(len(content))] ^= 1 << chosen.randrange(8)
    path.write_bytes(content)
    return ""


def _cut(chosen, path):
    content = path.read_bytes()
    path.write_bytes(content[: chosen.randrange(len(content))])
    return ""


def _column(chosen, table):
    at = chosen.randrange(table.num_columns)
    return at, table.column_names[at], table.column(at)


def _replaced(table, at, name, values, kind=None):
    field = table.schema.field(at)
    column = values if isinstance(values, pa.Array) else pa.array(values, kind or field.type)
    return table.set_column(at, pa.field(name, column.type), column)


def _drop_column(chosen, table):
    _, name, _ = _column(chosen, table)
    return table.drop_columns([name]), name


def _twice(chosen, table):
    _, name, column = _column(chosen, table)
    return table.append_column(name, column), name


def _other_name(chosen, table):
    at, name, column = _column(chosen, table)
    return table.set_column(at, "other", column), name


def _nulls(chosen, table):
    at, name, column = _column(chosen, table)
    return table.set_column(at, name, pa.nulls(len(table), column.type)), name


def _one_null(chosen, table):
    at, name, column = _column(chosen, table)
    values = column.to_pylist()
    if values:
        values[chosen.randrange(len(values))] = None
    return table.set_column(at, name, pa.array(values, column.type)), name


def _value(chosen, table):
    at, name, column = _column(chosen, table)
    values, kind = column.to_pylist(), column.type
    if not values:
        return table, name
    row = chosen.randrange(len(values))
    if pa.types.is_integer(kind):
        values[row] = chosen.choice(NUMBERS)
    elif pa.types.is_floating(kind):
        values[row] = chosen.choice(FLOATS)
    elif pa.types.is_boolean(kind):
        values[row] = not values[row]
    elif pa.types.is_timestamp(kind):
        shown = pa.array([chosen.choice([0, -(2**62), 2**62, 2**63 - 1])], pa.int64()).cast(kind)
        rest = column.combine_chunks()
        return table.set_column(at, name, pa.concat_arrays([shown, rest.slice(1)])), name
    else:
        values[row] = chosen.choice(TEXTS)
    if chosen.random() < 0.3:
        values = [values[row]] * len(values)
    return table.set_column(at, name, pa.array(values, kind)), (
        name,
        values[row] if not isinstance(values[row], str) else values[row][:20],
    )


def _other_type(chosen, table):
    at, name, column = _column(chosen, table)
    n = len(table)
    kinds = [pa.array(["7"] * n), pa.array([b"\xff"] * n), pa.array([0.5] * n), pa.array([[1]] * n, pa.list_(pa.int64())),
             pa.array([True] * n), pa.array([{"a": 1}] * n, pa.struct([("a", pa.int64())])), pa.array([3] * n, pa.int8()),
             pa.array([2**64 - 1] * n, pa.uint64()), pa.array([0] * n, pa.timestamp("ns")), pa.array([1.0] * n, pa.float32())]  # fmt: skip
    column = chosen.choice(kinds)
    return table.set_column(at, name, column), (name, str(column.type))


def _no_rows(chosen, table):
    return table.slice(0, 0), ""


def _fewer_rows(chosen, table):
    kept = [at for at in range(len(table)) if chosen.random() < 0.6]
    return table.take(pa.array(kept, pa.int64())), len(kept)


def _rows_twice(chosen, table):
    return pa.concat_tables([table, table]), ""


def _other_order(chosen, table):
    order = np.random.default_rng(chosen.randrange(2**31)).permutation(len(table))
    return table.take(pa.array(order)), ""


def _swapped_columns(chosen, table):
    at, name, column = _column(chosen, table)
    same = [one for one in table.column_names if table.schema.field(one).type == column.type]
    other = chosen.choice(same)
    table = table.set_column(at, name, table[other])
    return table, (name, other)


def _metadata(chosen, table):
    value = chosen.choice(["", "99", "-1", "x", "1" * 5000, "\u0661"])
    return table.replace_schema_metadata({"schema_version": value}), value[:10]


def _mutate(chosen, value, depth=0):
    """Return a JSON value with one part of it changed."""
    if isinstance(value, dict) and value and (depth == 0 or chosen.random() < 0.8):
        key = chosen.choice(sorted(value))
        if chosen.random() < 0.15:
            return {name: one for name, one in value.items() if name != key}, f"-{key}"
        found, what = _mutate(chosen, value[key], depth + 1)
        return {**value, key: found}, f"{key}.{what}"
    if isinstance(value, list) and value and chosen.random() < 0.6:
        at = chosen.randrange(len(value))
        found, what = _mutate(chosen, value[at], depth + 1)
        return [*value[:at], found, *value[at + 1 :]], f"{at}.{what}"
    odd = chosen.choice(ODD)
    return odd, repr(odd)[:20]


def _json(chosen, table):
    name = "details" if "details" in table.column_names else "evidence"
    texts = table[name].to_pylist()
    if not texts:
        return table, ""
    row = chosen.randrange(len(texts))
    found, what = _mutate(chosen, json.loads(texts[row]))
    texts[row] = json.dumps(found)
    return table.set_column(table.column_names.index(name), name, pa.array(texts, pa.string())), what


def _json_text(chosen, table):
    name = "details" if "details" in table.column_names else "evidence"
    texts = table[name].to_pylist()
    if not texts:
        return table, ""
    text = texts[0]
    at = chosen.randrange(len(text))
    texts[0] = chosen.choice(
        [text[:at], text[:at] + '"' + text[at:], "[" * 100_000, '{"a":' * 100_000, "null", "[]", "{}", "1", text + text]
    )
    return table.set_column(table.column_names.index(name), name, pa.array(texts, pa.string())), texts[0][:10]


JSON_CHANGES = ["json", "json text"]
CHANGES = {
    "bytes": _bytes, "cut": _cut, "drop column": _drop_column, "column twice": _twice, "other name": _other_name,
    "nulls": _nulls, "one null": _one_null, "value": _value, "another value": _value, "third value": _value, "other type": _other_type, "no rows": _no_rows,
    "fewer rows": _fewer_rows, "rows twice": _rows_twice, "other order": _other_order,
    "swapped columns": _swapped_columns, "metadata": _metadata, "json": _json, "json text": _json_text,
}  # fmt: skip
assert EVENT_TABLES
