"""Saved runs that accident or malice changed: every command that reads them answers or says what is wrong."""

from __future__ import annotations

import json
import random
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
from tests.attack.saved_runs import changed
from tests.cli.tools import nsyspipe_here
from tests.store.store_tools import OTHER_ID, RUN_ID, contents, old_run, other_run, places, stored, unlisted
from tests.store.test_store_saved_run import rewrite

# Each seed changes one table of a run in one way, and is read by two commands, all of them in turn.
SEEDS = range(28)


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """Return a store of a run that does not say which files are its own, and of another run."""
    folder = tmp_path_factory.mktemp("good")
    store = unlisted(stored(folder / "store", old_run(folder), events=True))
    shutil.copytree(stored(folder / "alone", other_run(folder)), store, dirs_exist_ok=True)
    return store


def commands(store, folder):
    """Return every command that reads saved runs; the first run of the store is changed, the other is not."""
    run, other = (store / "runs" / f"run_id={run_id}" for run_id in (RUN_ID, OTHER_ID))
    named = [store, "--run-id", RUN_ID]
    return [
        ["analyze", *named, "--json", "-", "--html", folder / "x.html", "--markdown", folder / "x.md",
         "--perfetto", folder / "x.pftrace", "--force"],
        ["analyze", *named],
        ["analyze", *named, "--out", folder / "again", "--force"],
        ["diff", run, other, "--html", folder / "d.html", "--force"],
        ["compare", other, run, "--html", folder / "c.html", "--force"],
        ["whatif", run],
        ["dashboard", store, "-o", folder / "db.html", "--pages", folder / "pages", "--force"],
    ]  # fmt: skip


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
    """Return a copy of the store that a test may change."""
    return shutil.copytree(good, tmp_path / "store")


def test_rows_of_steps_that_the_run_has_not_are_an_error_that_names_their_table(copy):
    files = places(copy)
    rewrite(files["steps"], lambda table: table.slice(0, 0))
    with pytest.raises(DatasetError, match="rows of steps that the run has not") as caught:
        nsyspipe.load(copy, run_id=RUN_ID).timeline()
    assert caught.value.subject == str(files["timeline"])


def with_details(store, change):
    """Change what the details of the run say."""

    def rewritten(table):
        found = change(json.loads(table["details"][0].as_py()))
        text = found if isinstance(found, str) else json.dumps(found)
        return table.set_column(table.column_names.index("details"), "details", pa.array([text]))

    rewrite(places(store)["runs"], rewritten)
    return store


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
                assert str(error)  # noqa: PT017 - the others are of the right type
            else:
                assert value is None or isinstance(odd, (type(value), int)), (name, odd)
    attempts(n_attempts)
    with_details(copy, lambda found: {**found, part: "x"})
    with pytest.raises(DatasetError, match="has no usable details"):
        _ = nsyspipe.load(copy, run_id=RUN_ID).header


def test_every_field_that_is_saved_is_of_a_type_that_can_be_checked():
    for kind in saved_run._OBJECTS.values():
        for one in fields(kind):
            needed = str(one.type).removesuffix(" | None")
            assert needed in saved_run._IS or needed in saved_run._OBJECTS, (kind, one.name)


@pytest.mark.parametrize(
    "text", ["[" * 200_000, '{"header":' * 200_000, '{"header": NaN}', '{"header": 1e999}', "9" * 10_000, '"x"', "nul"]
)
def test_details_that_no_parser_likes_are_an_error(copy, text):
    store = with_details(copy, lambda _: text)
    with pytest.raises(DatasetError, match="has no usable details"):
        _ = nsyspipe.load(store, run_id=RUN_ID).header


def test_one_bad_run_costs_the_dashboard_a_warning_and_others_that_ask_for_it_an_error(copy, tmp_path):
    store = with_details(copy, lambda _: "[" * 200_000)
    done = nsyspipe_here("dashboard", store, "-o", tmp_path / "x.html", "--pages", tmp_path / "pages")
    assert done.returncode == 0
    assert f"warning: {RUN_ID}: page " in done.stderr
    assert OTHER_ID in (tmp_path / "x.html").read_text()
    assert (tmp_path / "pages" / f"{OTHER_ID}.html").exists()
    run, other = (store / "runs" / f"run_id={run_id}" for run_id in (RUN_ID, OTHER_ID))
    for command in (["compare", other, run], ["diff", other, run], ["whatif", run], ["analyze", run]):
        done = nsyspipe_here(*command)
        assert done.returncode == 2
        assert f"run_id={RUN_ID}" in done.stderr
        assert "has no usable details" in done.stderr


def test_of_a_command_that_an_earlier_nsyspipe_saved_only_what_may_be_written_down_is_read(copy, tmp_path):
    given = {
        "command": ["python", "/home/me/train.py", "--lr=0.1", "--jwt", "eyJhbGciOi", "hmac:0123abcd"],
        "environment": {"NCCL_P2P_DISABLE": "1", "NCCL_ALGO": "sesame", "HF_TOKEN": "hf_abcdef"},
        "git_commit": "abc",
    }  # fmt: skip

    def add(details):
        details["header"]["capture"] = given
        return details

    run = nsyspipe.load(with_details(copy, add), run_id=RUN_ID)
    found = run.header.capture
    assert found.command == ["python", "train.py", "--lr=0.1", "--jwt", "***", "hmac:0123abcd"]
    assert found.environment == {"NCCL_ALGO": "***", "NCCL_P2P_DISABLE": "1"}
    assert found.git_commit == "abc"
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
    fields = [pa.field(one.name, column.type) for one, column in zip(table.schema, columns, strict=True)]
    return pa.table(columns, schema=pa.schema(fields, table.schema.metadata))


def long_text(table):
    at = table.column_names.index("gpu_name")
    text = pa.array(["x" * 30_000_000] + [None] * (len(table) - 1), pa.large_string())
    return table.set_column(at, "gpu_name", text)


def one_text_many_times(table):
    """Return a hundred thousand times a text of ten thousand letters, as a dictionary stores it."""
    n_rows = 100_000
    columns = {one.name: pa.nulls(n_rows, one.type) for one in table.schema if one.name != "name"}
    codes = pa.DictionaryArray.from_arrays(pa.array([0] * n_rows, pa.int32()), pa.array(["y" * 10_000]))
    found = pa.table({**columns, "name": codes})
    return found.replace_schema_metadata(table.schema.metadata)


@pytest.mark.parametrize(
    ("table", "bomb"), [("steps", many_rows), ("ranks", long_text), ("kernels", one_text_many_times)]
)
def test_a_file_that_would_become_far_larger_than_it_is_is_refused_before_it_is_read(copy, monkeypatch, table, bomb):
    monkeypatch.setattr(parquet_size, "_SMALL_PAGES", 2**24)
    path = places(copy)[table]
    found = bomb(pq.ParquetFile(path).read())
    pq.write_table(found, path, compression="zstd", use_dictionary=bomb is not long_text)
    assert path.stat().st_size < 200_000
    before = pa.default_memory_pool().max_memory()
    with pytest.raises(NsyspipeError, match=r"cannot be read.*than a file of"):  # noqa: PT012
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
