"""Saved runs that accident or malice changed: every command that reads them answers or says what is wrong."""

import json
import math
import random
import re
import shutil
import traceback
from dataclasses import fields

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import nsyspipe
from nsyspipe.errors import DatasetError, NsyspipeError
from nsyspipe.store import parquet_size, saved_run
from nsyspipe.store.saved_run import parse_details
from nsyspipe.store.write import save
from tests.cli.tools import nsyspipe_here
from tests.store.store_tools import (
    OTHER_ID,
    RUN_ID,
    contents,
    old_run,
    other_run,
    places,
    stored,
    unlisted,
)
from tests.store.test_store_saved_run import rewrite

# Each seed changes one table of a run in one way (see the end), and is read by two commands, all of
# them in turn.
SEEDS = range(28)


@pytest.fixture(scope="module")
def good(tmp_path_factory):  # a run that does not say which files are its own, and another one
    folder = tmp_path_factory.mktemp("good")
    store = unlisted(stored(folder / "store", old_run(folder), events=True))
    shutil.copytree(stored(folder / "alone", other_run(folder)), store, dirs_exist_ok=True)
    return store


def commands(store, folder):
    """Return every command that reads saved runs; the first run of the store is changed, the other is not."""
    run, other = (store / "runs" / f"run_id={run_id}" for run_id in (RUN_ID, OTHER_ID))
    named = [store, "--run-id", RUN_ID]
    return [
        [
            "analyze",
            *named,
            "--json",
            "-",
            "--html",
            folder / "x.html",
            "--markdown",
            folder / "x.md",
            "--perfetto",
            folder / "x.pftrace",
            "--force",
        ],
        ["analyze", *named],
        ["analyze", *named, "--out", folder / "again", "--force"],
        ["diff", run, other, "--html", folder / "d.html", "--force"],
        ["compare", other, run, "--html", folder / "c.html", "--force"],
        ["whatif", run],
        ["dashboard", store, "-o", folder / "db.html", "--pages", folder / "pages", "--force"],
    ]


@pytest.mark.slow
def test_a_changed_run_is_answered_or_refused_by_every_command(good, tmp_path, attempts):
    failures = []
    for seed in SEEDS:
        chosen = random.Random(seed)
        store = tmp_path / f"store{seed}"
        shutil.copytree(good, store)
        files = places(store)
        name = chosen.choice(sorted(set(files) - {"metrics"}) + ["runs", "findings"] * 4)
        what = changed(chosen, files[name])
        for command in [commands(store, tmp_path)[(2 * seed + one) % 7] for one in (0, 1)]:
            try:
                done = nsyspipe_here(*command)
                code, said = done.returncode, done.stderr
            except Exception:  # noqa: BLE001 - which ends the program with 1
                code, said = 1, traceback.format_exc()
            # A changed figure may make a gate fail, which is 3 or more.
            if code == 1 or "Traceback" in said or (command[0] == "dashboard" and code):
                failures.append((seed, name, what, command[0], code, said[-300:]))
    attempts(2 * len(SEEDS))
    assert not failures


@pytest.fixture
def copy(good, tmp_path):
    return shutil.copytree(good, tmp_path / "store")


def test_rows_of_unknown_steps_are_an_error_that_names_the_table(copy, worded):
    files = places(copy)
    rewrite(files["steps"], lambda table: table.slice(0, 0))
    with pytest.raises(DatasetError) as caught:
        nsyspipe.load(copy, run_id=RUN_ID).timeline()
    assert caught.value.subject == str(files["timeline"])
    worded(caught.value.problem)


def test_a_replay_refuses_operations_of_another_run(copy, tmp_path, worded):
    places(copy)["steps"].write_bytes(places(copy, OTHER_ID)["steps"].read_bytes())
    done = nsyspipe_here("whatif", copy / "runs" / f"run_id={RUN_ID}", COLUMNS="100")
    assert done.returncode == 4
    worded(done.stdout.partition("\n")[0])


def with_details(store, change):
    def rewritten(table):
        found = change(json.loads(table["details"][0].as_py()))
        text = found if isinstance(found, str) else json.dumps(found)
        return table.set_column(table.column_names.index("details"), "details", pa.array([text]))

    rewrite(places(store)["runs"], rewritten)
    return store


def assert_unusable(store):
    with pytest.raises(DatasetError) as caught:
        _ = nsyspipe.load(store, run_id=RUN_ID).header
    assert caught.value.subject == str(places(store)["runs"])


ODD = [-1, 2**70, 1.5, "x", True, [], [None], {}, {"a": 1}, float("nan"), float("inf")]


@pytest.mark.parametrize("part", ["header", "nccl", "link"])
def test_each_field_of_the_details_is_checked(copy, attempts, part):
    whole = json.loads(nsyspipe.load(copy, run_id=RUN_ID)._row["details"])
    n_attempts = 0
    for name, value in whole[part].items():
        for odd in ODD:
            if isinstance(odd, type(value)) and not isinstance(odd, bool) and odd == odd:  # noqa: PLR0124
                continue
            changed_details = {**whole, part: {**whole[part], name: odd}}
            n_attempts += 1
            try:
                parse_details(json.dumps(changed_details))
            except ValueError as error:
                assert str(error), odd  # noqa: PT017 - the others are of the right type
            else:
                assert value is None or isinstance(odd, (type(value), int)), (name, odd)
    attempts(n_attempts)
    assert_unusable(with_details(copy, lambda found: {**found, part: "x"}))


@pytest.mark.parametrize(
    ("captured_at", "is_utc"),
    [
        ("2001-09-09T01:46:40Z", True),
        ("2001-09-09T01:46:40+00:00", True),
        ("2001-09-09T03:46:40+02:00", False),
        ("2001-09-09T01:46:40", False),
        ("2001-09-09T01:46:40-00:01", False),
        ("yesterday", False),
    ],
)
@pytest.mark.parametrize("place", ["header", "header.capture"])
def test_times_of_a_saved_run_are_in_utc(copy, place, captured_at, is_utc):
    details = json.loads(nsyspipe.load(copy, run_id=RUN_ID)._row["details"])
    header = details["header"]
    changed_part = {"captured_at_utc": captured_at}
    if place == "header":
        header |= changed_part
    else:
        header["capture"] = changed_part
    refused_field, *_ = problem_of_details(details).split()
    assert refused_field == ("-" if is_utc else f"{place}.captured_at_utc")


def problem_of_details(details):
    try:
        parse_details(json.dumps(details))
    except ValueError as error:
        return str(error)
    return "-"


def test_every_field_that_is_saved_is_of_a_type_that_can_be_checked():
    for kind in saved_run._OBJECTS.values():
        for one in fields(kind):
            needed = str(one.type).removesuffix(" | None")
            of_list = needed.removeprefix("list[").removesuffix("]")
            assert needed in saved_run._IS or of_list in saved_run._OBJECTS, (kind, one.name)


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        "[" * 200_000,
        '{"header":' * 200_000,
        '{"header": NaN}',
        '{"header": 1e999}',
        "9" * 10_000,
        '"x"',
        "nul",
    ],
)
def test_details_that_no_parser_likes_are_an_error(copy, text):
    assert_unusable(with_details(copy, lambda _: text))


@pytest.mark.slow
def test_one_bad_run_is_a_warning_in_the_dashboard_and_an_error_if_named(copy, tmp_path, worded):
    store = with_details(copy, lambda _: "[" * 200_000)
    done = nsyspipe_here(
        "dashboard", store, "-o", tmp_path / "x.html", "--pages", tmp_path / "pages"
    )
    assert done.returncode == 0
    assert f"warning: {RUN_ID}: page " in done.stderr
    assert OTHER_ID in (tmp_path / "x.html").read_text()
    assert (tmp_path / "pages" / f"{OTHER_ID}.html").exists()
    run, other = (store / "runs" / f"run_id={run_id}" for run_id in (RUN_ID, OTHER_ID))
    for command in (
        ["compare", other, run],
        ["diff", other, run],
        ["whatif", run],
        ["analyze", run],
    ):
        done = nsyspipe_here(*command)
        assert (done.returncode, f"run_id={RUN_ID}" in done.stderr) == (2, True), command
        worded(done.stderr, command[0])


def test_only_safe_parts_of_a_command_saved_by_an_old_version_are_read(copy, tmp_path):
    given = {
        "command": [
            "python",
            "/home/me/train.py",
            "--lr=0.1",
            "--jwt",
            "eyJhbGciOi",
            "hmac:0123abcd",
        ],
        "environment": {"NCCL_P2P_DISABLE": "1", "NCCL_ALGO": "sesame", "HF_TOKEN": "hf_abcdef"},
        "git_commit": "abc",
    }

    def add(details):
        details["header"]["capture"] = given
        return details

    run = nsyspipe.load(with_details(copy, add), run_id=RUN_ID)
    found = run.header.capture
    assert found.command == ["python", "train.py", "--lr=0.1", "--jwt", "***", "hmac:0123abcd"]
    assert (found.environment, found.git_commit) == (
        {"NCCL_ALGO": "***", "NCCL_P2P_DISABLE": "1"},
        "abc",
    )
    save(run, tmp_path / "again")
    assert b"eyJhbGciOi" not in b"".join(contents(tmp_path / "again").values())
    assert nsyspipe.load(tmp_path / "again").header == run.header


def many_rows(table):
    n_rows = 400_000
    columns = [
        pa.DictionaryArray.from_arrays(pa.nulls(n_rows, pa.int32()), pa.array(["a"]))
        if pa.types.is_string(column.type) or pa.types.is_dictionary(column.type)
        else pa.nulls(n_rows, column.type)
        for column in table.columns
    ]
    fields = [
        pa.field(one.name, column.type) for one, column in zip(table.schema, columns, strict=True)
    ]
    return pa.table(columns, schema=pa.schema(fields, table.schema.metadata))


def long_text(table):
    at = table.column_names.index("gpu_name")
    return table.set_column(
        at, "gpu_name", pa.array(["x" * 30_000_000] + [None] * (len(table) - 1), pa.large_string())
    )


def one_text_many_times(table):
    n_rows = 100_000
    columns = {one.name: pa.nulls(n_rows, one.type) for one in table.schema if one.name != "name"}
    codes = pa.DictionaryArray.from_arrays(
        pa.array([0] * n_rows, pa.int32()), pa.array(["y" * 10_000])
    )
    return pa.table({**columns, "name": codes}).replace_schema_metadata(table.schema.metadata)


BOMBS = {"steps": many_rows, "ranks": long_text, "kernels": one_text_many_times}


@pytest.mark.slow
@pytest.mark.parametrize(("table", "bomb"), BOMBS.items())
def test_a_decompression_bomb_is_refused_before_it_is_read(copy, monkeypatch, table, bomb):
    monkeypatch.setattr(parquet_size, "_MAX_PAGES_BYTES", 2**24)
    path = places(copy)[table]
    pq.write_table(
        bomb(pq.ParquetFile(path).read()),
        path,
        compression="zstd",
        use_dictionary=bomb is not long_text,
    )
    assert path.stat().st_size < 200_000
    before = pa.default_memory_pool().max_memory()
    with pytest.raises(NsyspipeError, match=re.escape(str(path))):  # noqa: PT012
        asked = getattr(nsyspipe.load(copy, run_id=RUN_ID), table)
        _ = asked() if callable(asked) else asked
    assert pa.default_memory_pool().max_memory() - before < 100_000_000


def test_a_file_that_is_large_and_holds_nothing_is_refused_before_it_is_read(copy):
    path = places(copy)["steps"]
    whole = path.read_bytes()
    with path.open("r+b") as file:
        file.truncate(2**40)
        file.seek(2**40 - len(whole))
        file.write(whole)
    with pytest.raises(NsyspipeError, match="hold columns"):
        nsyspipe.load(copy, run_id=RUN_ID).steps()


ODD_JSON: list[object] = [
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
TEXTS = [
    "",
    "x",
    "\x00",
    "\x1b[31m",
    "<script>",
    "null",
    "é" * 1000,
    "0",
    "forward",
    "{}",
    "[" * 5000,
]
OTHER_TYPES = [
    pa.array(["7"]),
    pa.array([b"\xff"]),
    pa.array([0.5]),
    pa.array([[1]]),
    pa.array([True]),
    pa.array([{"a": 1}]),
    pa.array([3], pa.int8()),
    pa.array([2**64 - 1], pa.uint64()),
    pa.array([0], pa.timestamp("ns")),
    pa.array([1.0], pa.float32()),
]


def changed(chosen, path):
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
        table = table.set_column(
            table.column_names.index(column), column, pa.array(texts, pa.string())
        )
    pq.write_table(table, path)
    return f"{name} of {column}"


def _flipped(chosen, content):
    for _ in range(chosen.randint(1, 4)):
        content[chosen.randrange(len(content))] ^= 1 << chosen.randrange(8)
    return content


def _taken(table, rows):
    return table.take(pa.array(rows, pa.int64()))


def _one_changed(chosen, column, value):
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
    kinds = (
        (pa.types.is_integer, NUMBERS),
        (pa.types.is_floating, FLOATS),
        (pa.types.is_boolean, [True, False]),
    )
    values = next((values for is_kind, values in kinds if is_kind(kind)), TEXTS)
    return table.set_column(at, name, _one_changed(chosen, column, chosen.choice(values)))


def _swapped(chosen, table, at, name):
    same = [
        one
        for one in table.column_names
        if table.schema.field(one).type == table.schema.field(at).type
    ]
    return table.set_column(at, name, table[chosen.choice(same)])


def _mutate(chosen, value, depth=0):
    if isinstance(value, dict) and value and (depth == 0 or chosen.random() < 0.8):
        key = chosen.choice(sorted(value))
        if chosen.random() < 0.15:
            return {name: one for name, one in value.items() if name != key}
        return {**value, key: _mutate(chosen, value[key], depth + 1)}
    if isinstance(value, list) and value and chosen.random() < 0.6:
        at = chosen.randrange(len(value))
        return [*value[:at], _mutate(chosen, value[at], depth + 1), *value[at + 1 :]]
    return chosen.choice(ODD_JSON)


def _broken(chosen, text):
    at = chosen.randrange(len(text))
    broken = [text[:at], text[:at] + '"' + text[at:], text + text]
    return chosen.choice([*broken, "[" * 100_000, '{"a":' * 100_000, "null", "[]", "{}", "1"])


OF_BYTES = {
    "bytes": _flipped,
    "cut": lambda chosen, content: content[: chosen.randrange(len(content))],
}
OF_TABLE = {
    "no rows": lambda _, table: table.slice(0, 0),
    "fewer rows": lambda chosen, table: _taken(
        table, [at for at in range(len(table)) if chosen.random() < 0.6]
    ),
    "rows twice": lambda _, table: pa.concat_tables([table, table]),
    "other order": lambda chosen, table: _taken(
        table, chosen.sample(range(len(table)), len(table))
    ),
    "metadata": lambda chosen, table: table.replace_schema_metadata(
        {"schema_version": chosen.choice(["", "99", "-1", "x", "1" * 5000, "\u0661"])}
    ),
}
OF_COLUMN = {
    "drop": lambda _, table, __, name: table.drop_columns([name]),
    "twice": lambda _, table, at, name: table.append_column(name, table.column(at)),
    "other name": lambda _, table, at, __: table.set_column(at, "other", table.column(at)),
    "nulls": lambda _, table, at, name: table.set_column(
        at, name, pa.nulls(len(table), table.column(at).type)
    ),
    "one null": lambda chosen, table, at, name: table.set_column(
        at, name, _one_changed(chosen, table.column(at), None)
    ),
    "value": _value,
    "other type": lambda chosen, table, at, name: table.set_column(
        at, name, _taken(chosen.choice(OTHER_TYPES), [0] * len(table))
    ),
    "swapped": _swapped,
}
OF_JSON = {
    "json": lambda chosen, text: json.dumps(_mutate(chosen, json.loads(text))),
    "json text": _broken,
}
