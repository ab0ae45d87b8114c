"""What the package promises besides numbers: names, schemas, docs, light imports."""

import importlib
import io
import pkgutil
import re
import shutil
import string
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import nsyspipe
from nsyspipe.errors import OptionError, OutputError, ReportNotFoundError
from nsyspipe.model import schema
from nsyspipe.model.options import MOST_RANKS, asked_ranks
from nsyspipe.model.problems import CATALOGUE, SEVERITIES
from nsyspipe.replay.answer import SCENARIOS, Scenario
from tests.build.trace import steady_rank
from tests.conftest import SAMPLES

TABLES = schema.RUN_TABLES | {"breakdown": schema.STEPS}
# Keys of tables whose largest rows come first, or whose nulls come last.
ORDERED_OTHERWISE = {
    "expected_ns_per_step",
    "saving_ns_per_step",
    "blocked_ns_per_step",
    "lane",
    "name",
}


def test_public_names_are_sorted_and_exist():
    assert nsyspipe.__all__ == [
        "NsyspipeError",
        "Run",
        "Side",
        "__version__",
        "compare",
        "dashboard",
        "diff",
        "errors",
        "export",
        "load",
        "whatif",
    ]
    assert all(getattr(nsyspipe, name) is not None for name in nsyspipe.__all__)
    assert {name for name in dir(nsyspipe) if not name.startswith("_")} == {*nsyspipe.__all__} - {
        "__version__"
    }  # Tab
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        nsyspipe.nothing  # noqa: B018 - asking is the test


# The last three are of packages that take seconds to import, if they are there. Tests of the
# callbacks and of the server import them.
NOT_IMPORTED = {
    "nsyspipe.__main__",
    "nsyspipe.capture.lightning",
    "nsyspipe.capture.trainer",
    "nsyspipe.mcp.server",
}


def test_rooms_do_not_hide_the_names_of_the_api():
    for module in pkgutil.walk_packages(nsyspipe.__path__, "nsyspipe."):
        if module.name not in NOT_IMPORTED:
            importlib.import_module(module.name)
    assert all(
        callable(getattr(nsyspipe, name))
        for name in ("compare", "dashboard", "diff", "load", "whatif")
    )
    from nsyspipe import export  # noqa: PLC0415 - as a user does

    assert dir(export) == ["dashboard", "document", "parquet", "write"]
    assert all(callable(getattr(export, name)) for name in dir(export))


# Tables of what this run does not have.
MAY_BE_EMPTY = {
    *("problems", "links", "host_steps", "findings", "idle_calls", "counters", "host_lines"),
    *("counter_bars", "line_bars", "peers"),
}


@pytest.mark.parametrize("name", TABLES)
def test_every_table_has_its_declared_schema_with_docs_and_units(steady_run, without_gpu, name):
    table = steady_run.table(name)
    # Where nothing ran on a GPU it is there, too.
    for one in (table, without_gpu.table(name)):
        assert one.schema.equals(TABLES[name].arrow, check_metadata=True), one
    assert table.num_rows or name in MAY_BE_EMPTY
    rows = table.select(TABLES[name].key).to_pylist()  # what is of all ranks stands before theirs
    keys = [tuple(-1 if value is None else value for value in row.values()) for row in rows]
    assert keys == sorted(keys) or {*TABLES[name].key} & ORDERED_OTHERWISE
    for field in table.schema:
        assert field.metadata[b"doc"], field
        assert field.metadata[b"unit"], field
        assert field.nullable or table[field.name].null_count == 0, field


def test_pandas_at_the_edge_keeps_integers_exact(steady_run):
    frame = steady_run.to_pandas("steps")
    assert str(frame["overlap_backward_ns"].dtype) == "int64[pyarrow]"
    assert isinstance(frame, pd.DataFrame)
    with pytest.raises(OptionError, match="no such table"):
        steady_run.to_pandas("stepz")


def test_a_run_reads_nothing_until_it_is_asked(steady):
    run = nsyspipe.load(steady)
    assert repr(run) == "<Run of 2 reports, not read yet>"
    _ = run.steps()
    assert repr(run) == "<Run 'steady': 2 ranks, 4 steps, 2 used>"
    _ = run.findings()
    assert repr(run) == f"<Run 'steady': 2 ranks, 4 steps, 2 used: {run.verdict}>"
    with pytest.raises(AttributeError):
        run.skip_first = 3


def test_answers_have_a_summary_sentence_and_documented_members(steady_run):
    change, board = (
        nsyspipe.diff(steady_run, steady_run, fail_on="regression"),
        nsyspipe.compare([steady_run]),
    )
    answer = nsyspipe.whatif(steady_run)
    assert change.verdict == "inconclusive"
    assert change.headline.startswith("Inconclusive")
    for one in (steady_run, board, answer, change.gate):
        assert one.headline == one.verdict, one
    for one in (steady_run, change, board, answer, change.gate):
        own = {field.name for field in fields(one)}
        for name in (name for name in dir(one) if not name.startswith("_")):
            docs = [getattr(vars(kind).get(name), "__doc__", "") for kind in type(one).mro()]
            is_of_class = name in (type(one).__doc__ or "") or isinstance(one, nsyspipe.Run)
            assert is_of_class if name in own else any(docs), name
    offered = {*dir(steady_run), *dir(change), *dir(board), *dir(answer)}
    inner = {
        "chosen",
        "executor",
        "given_label",
        "judged_findings",
        "problem_rows",
        "rank_map",
        "reading",
    }
    assert offered.isdisjoint(inner)
    assert {"problems", "steps", "verdict", "gate", "table", "scenarios"} <= offered


def test_the_table_of_a_whatif_says_its_units_and_what_they_mean(steady_run):
    found = nsyspipe.whatif(steady_run).table()
    assert found.schema.equals(SCENARIOS.arrow, check_metadata=True)
    assert found.schema.field("low_ns").metadata[b"unit"] == b"ns"
    assert found["id"].to_pylist() == [one.id for one in nsyspipe.whatif(steady_run).scenarios]
    assert {*found.column_names} == {one.name for one in fields(Scenario)} - {
        "knobs",
        "refused_in_options",
    }


api: Any = nsyspipe  # as whoever has no type checker calls it


def compared(run, **options):
    return api.diff(run, run, **options)


LARGE = f"1{56 * '0'}..."  # 10**400, in a line of 60 characters

WRONG: dict[str, Callable[[Any], object]] = {
    "reports=None": lambda _: api.load(None),
    "reports=[]": lambda _: api.load([]),
    "label=3": lambda _: api.load("a.sqlite", label=3),
    "run_id=7": lambda _: api.load("a.sqlite", run_id=7),
    "executor=4": lambda _: api.load("a.sqlite", executor=4),
    "jobs=True": lambda _: api.load("a.sqlite", jobs=True),
    "on_progress=1": lambda _: api.load("a.sqlite", on_progress=1),
    "run='store'": lambda _: api.export.parquet("store", "s2"),
    "run=<RunDifference": lambda run: api.export.parquet(api.diff(run, run), "s2"),
    "reports=<Run 'steady'": api.load,
    "table pyarrow.Table rank": lambda run: run.to_pandas(run.steps()),
    "steps='x'": lambda _: api.load("a.sqlite", steps="x"),
    "jobs=0": lambda _: api.load("a.sqlite", jobs=0),
    "step=3": lambda _: api.load(__file__, step=3),
    "rank_map=3": lambda _: api.load(__file__, rank_map=3),
    "topology=3": lambda _: api.load(__file__, topology=3),
    "bucket_mb=[25, 50]": lambda run: api.whatif(run, bucket_mb=[25, 50]),
    "bucket_mb='25'": lambda run: api.whatif(run, bucket_mb="25"),
    **{
        f"gradient_bytes={text!r}": partial(
            lambda run, text: api.whatif(run, gradient_bytes=text), text=text
        )
        for text in ("665MB", "1e9")
    },
    "link=3": lambda run: api.whatif(run, link=3),
    "steps='x' (2)": lambda run: run.operations("x"),
    "ranks 2-3": lambda run: run.operations(ranks="0-3"),
    "steps 2:1": lambda run: run.operations((2, 1)),
    "step 99": lambda run: run.timeline(99),
    "step=(1, 2)": lambda run: run.timeline((1, 2)),
    "top='x'": lambda run: run.kernels(top="x"),
    "label=3 (2)": lambda run: api.Side(3, [run]),
    "runs='a/'": lambda _: api.Side("a", "a/"),
    "runs=['a/']": lambda _: api.Side("a", ["a/"]),
    "a": lambda _: api.Side("a", ()),
    "a (2)": lambda run: api.Side("a", (run, run)),
    **{
        f"min_effect_pct={one}": partial(compared, min_effect_pct=float(one))
        for one in ("-0.1", "nan", "inf")
    },
    **{f"confidence={one}": partial(compared, confidence=one) for one in (0.5, 1.0)},
    "metrics='speed'": partial(compared, metrics=["speed"]),
    "metrics='idel'": partial(compared, metrics="step_time, idel"),
    "metrics=3": partial(compared, metrics=3),
    "diff": api.diff,
    "fail_on=3": partial(compared, fail_on=3),
    "fail_on='slower'": partial(compared, fail_on="slower"),
    "fail_on='regression'": lambda run: api.diff(
        run, run, fail_on="regression", metrics="idle,comm"
    ),
    "baseline=<Run ": lambda run: api.diff(run, against="a"),
    "runs=3": lambda _: api.compare(3),
    "path=None": lambda run: api.export.write(run, None),
    "answer=3": lambda _: api.export.write(3, "a.html"),
    "store=3": lambda run: api.export.parquet(run, 3),
    "path=3": lambda run: api.dashboard(run.header.label, 3),
    "against=5": lambda run: api.diff("store", run, against=5),
    "step=b'step'": lambda _: api.load(__file__, step=b"step"),
    "step=''": lambda _: api.load(__file__, step=""),
    f"step {10**30}": lambda run: run.timeline(10**30),
    "step 10**5000": lambda run: run.timeline(10**5000),
    "sort=['step_time']": lambda run: api.compare([run], sort=["step_time"]),
    "sort='speed'": lambda run: api.compare([run], sort="speed"),
    "most='a'": lambda run: run.telling_ranks("a"),
    "ranks=True": lambda run: run.operations(ranks=True),
    "ranks=range(0, 1000000000000)": lambda run: run.operations(ranks=range(10**12)),
    **{
        f"{name}={LARGE}": partial(lambda run, name: api.whatif(run, **{name: 10**400}), name=name)
        for name in ("bucket_mb", "bandwidth", "gradient_bytes")
    },
    f"min_effect_pct={LARGE}": partial(compared, min_effect_pct=10**400),
    f"confidence={LARGE}": partial(compared, confidence=10**400),
    "path='a\\x00.html'": lambda run: api.export.write(run, "a\0.html"),
    "store='a\\x00'": lambda run: api.export.parquet(run, "a\0"),
    "pages='a\\x00'": lambda _: api.dashboard("store", "a.html", pages="a\0"),
    "label='\\ud800'": lambda _: api.load("a.sqlite", label="\ud800"),
    "run_id=''": lambda _: api.load("a.sqlite", run_id=""),
    "bucket_mb=True": lambda run: api.whatif(run, bucket_mb=True),
    "metrics=''": partial(compared, metrics=""),
    "metrics=[]": partial(compared, metrics=[]),
    "metrics=[['idle']]": partial(compared, metrics=[["idle"]]),
    "min_effect_pct=100": partial(compared, min_effect_pct=100),
    "min_effect_pct='250%'": partial(compared, min_effect_pct="250%"),
    "skip_first=-1": lambda _: api.load(__file__, skip_first=-1),
    "skip_first='-1'": lambda _: api.load(__file__, skip_first="-1"),
    "ranks='a'": lambda _: api.load(__file__, ranks="a"),
    "rank_map='x'": lambda _: api.load(__file__, rank_map="x"),
    "min_effect_pct=0.02": partial(compared, min_effect_pct=0.02),
    "confidence=nan": partial(compared, confidence=float("nan")),
    "bucket_mb=nan": lambda run: api.whatif(run, bucket_mb=float("nan")),
    "backward=3": lambda _: api.load(__file__, backward=3),
    "ranks='0:1'": lambda _: api.load(__file__, ranks="0:1"),
    "ranks=[]": lambda run: run.timeline(ranks=[]),
    "steps 2:99": lambda run: run.operations((2, 99)),
    "steps=True": lambda run: run.operations(steps=True),
    "step=True": lambda run: run.timeline(step=True),
    "runs=(<Run ": lambda run: api.Side("a", (run, 5)),
    "runs=[None]": lambda _: api.Side("a", [None]),
    "baseline=None": lambda run: api.diff(None, run),
    "candidate=[]": lambda run: api.diff(run, []),
    "runs={<Run ": lambda run: api.compare({run}),
    "whatif": lambda run: api.whatif(api.Side("a", [run, api.load(run.paths[0])])),
    "no_wait=np.True_": lambda run: api.whatif(run, no_wait=np.True_),
    "rank_map": lambda _: api.load(__file__, rank_map={"a.sqlite": "a"}),
    "reports=<_io.BytesIO": lambda _: api.load(io.BytesIO(b"a")),
    "m/x.xlsx": lambda run: api.export.write(run, "m/x.xlsx"),
    "m/.html": lambda run: api.export.write(run, "m/.html"),
    "a long table": lambda run: run.to_pandas("x" * 5000),
    "a long metric": partial(compared, metrics="x" * 5000),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_parameter_of_another_kind_is_refused_in_words(steady_run, case, worded):
    steady_run.findings()  # a run that has them names the first of them
    with pytest.raises(OptionError) as caught:
        WRONG[case](steady_run)
    assert caught.value.fix or case.startswith(("jobs", "table", "a long table"))
    worded(re.sub(r"0x[0-9a-f]+", "0x", str(caught.value)))


@pytest.mark.parametrize("asked", [range(0, 9, 2), range(3, 0, -1), range(MOST_RANKS)])
def test_a_range_of_ranks_may_have_any_step_and_all_possible_ranks(asked):
    assert asked_ranks(asked) == frozenset(asked)


@pytest.mark.parametrize(
    ("asked", "problem"),
    [
        (range(MOST_RANKS + 1), f"rank {MOST_RANKS} is too large"),
        (range(1, 10**30, 7), f"rank {MOST_RANKS + 4} is too large"),
        (range(-2, 3), "rank -2 is negative"),
        (-1, "rank -1 is negative"),
    ],
)
def test_a_range_is_refused_with_its_first_number_that_is_no_rank(asked, problem):
    with pytest.raises(OptionError) as caught:
        asked_ranks(asked)
    assert caught.value.problem == problem


def test_a_run_has_the_label_and_id_of_its_header(steady, tmp_path):
    run = nsyspipe.load(steady)
    nsyspipe.export.parquet(run, tmp_path / "runs")
    for one in (
        run,
        nsyspipe.load(tmp_path / "runs"),
        nsyspipe.load(steady, label="other", run_id="run-7"),
    ):
        assert (one.label, one.run_id) == (one.header.label, one.header.run_id), one


@pytest.mark.slow
def test_a_command_that_mends_it_is_a_call_in_python(steady, tmp_path):
    for label in ("a", "b", "c"):
        nsyspipe.export.parquet(
            nsyspipe.load(steady, label=label, run_id=f"run-{label}"), store := tmp_path / "runs"
        )
    for call, fix in {
        lambda: nsyspipe.diff(store, against="a"): f"nsyspipe.diff('{store}', 'b', against='a')",
        lambda: nsyspipe.diff(store, against="run-a"): f"nsyspipe.diff('{store}:run-a', CANDIDATE)",
        lambda: nsyspipe.diff(steady, against="a"): (
            "nsyspipe.export.parquet(nsyspipe.load(REPORTS, label='a'), STORE), for each capture"
        ),
        lambda: nsyspipe.dashboard("nostore", tmp_path / "a.html"): (
            "nsyspipe.export.parquet(nsyspipe.load(REPORTS), 'nostore')"
        ),
    }.items():
        with pytest.raises(nsyspipe.NsyspipeError) as caught:
            call()
        assert str(caught.value).endswith(f"  fix: {fix}"), call


def test_a_name_that_nothing_has_says_what_is_there_and_where(steady, tmp_path, monkeypatch):
    monkeypatch.chdir(steady)
    for number in range(2, 6):
        (tmp_path / f"{number}{number}.sqlite").touch()
    for wrong in ("steady_[2-9].sqlite", "steady_9.sqlite", "nowhere/steady_*.sqlite"):
        with pytest.raises(ReportNotFoundError) as caught:
            nsyspipe.load(wrong)
        assert (
            caught.value.found
            == f"steady_0.sqlite, steady_1.sqlite and 4 more reports in {tmp_path}"
        ), wrong


def test_one_step_is_given_by_its_number(steady_run, tmp_path):
    numbers = steady_run.steps()["step"].to_pylist()
    one, same = (
        list(steady_run.operations(numbers[-1])),
        list(steady_run.operations((numbers[-1], numbers[-1]))),
    )
    assert [rank for rank, *_ in one] == [0, 1]
    assert one == same != list(steady_run.operations())
    nsyspipe.export.write(steady_run, tmp_path / "run.pftrace", steps=numbers[-1])
    assert (tmp_path / "run.pftrace").stat().st_size


@pytest.fixture
def store(steady, tmp_path):
    """A store with two runs of label a, one of label b."""
    for number, label in enumerate("aab"):
        nsyspipe.export.parquet(
            nsyspipe.load(steady, label=label, run_id=f"run-{number}"), tmp_path / "runs"
        )
    return tmp_path / "runs"


@pytest.mark.slow
def test_all_runs_of_a_label_are_a_side(store, steady_run, worded):
    for candidate, label in ((None, "b"), ("b", "b"), (steady_run, "steady"), (f"{store}:b", "b")):
        change = nsyspipe.diff(store, candidate, against="a")
        assert [run.header.run_id for run in change.baseline.runs] == ["run-0", "run-1"], candidate
        assert (change.candidate.label, len(change.candidate.runs)) == (label, 1), candidate
    assert len(nsyspipe.diff(store, "a", against="b").candidate.runs) == 2
    with pytest.raises(OptionError) as caught:
        nsyspipe.diff(store, against="c")
    worded(str(caught.value))


@pytest.mark.slow
def test_whatever_the_command_line_writes_python_writes_too(store, tmp_path, worded):
    change, board = nsyspipe.diff(store, against="a"), nsyspipe.compare(store)
    usual = ["json", "md", "html"]
    for answer, name, suffixes in ((change, "change", usual), (board, "board", [*usual, "csv"])):
        for suffix in suffixes:
            path = tmp_path / f"{name}.{suffix}"
            for _ in range(2):  # one of the same runs is replaced
                nsyspipe.export.write(answer, path)
            assert path.stat().st_size, suffix
    with pytest.raises(OptionError) as caught:
        nsyspipe.export.write(change, tmp_path / "change.csv")
    assert caught.value.found == ".json, .md, .html"
    with pytest.raises(OutputError) as kept:
        nsyspipe.export.write(board, tmp_path / "change.json")
    worded(str(kept.value), "a file of another answer")
    nsyspipe.dashboard(store, tmp_path / "all.html", pages=tmp_path / "pages")
    assert len(list((tmp_path / "pages").iterdir())) == 3
    with pytest.raises(OutputError) as kept:
        nsyspipe.dashboard(store, tmp_path / "change.html")
    worded(str(kept.value), "a page of another answer")
    assert change.to_pandas("metrics").shape[0] == change.metrics.num_rows
    assert board.to_pandas("table")["label"].tolist() == ["a (run-0)", "a (run-1)", "b"]


def test_every_problem_kind_has_a_severity_and_plain_placeholders():
    for code, kind in CATALOGUE.items():
        assert kind.severity in SEVERITIES, code
        for text in filter(None, (kind.message, kind.fix)):
            names = [name for _, name, _, _ in string.Formatter().parse(text)]
            assert all(name is None or name.isidentifier() for name in names), (code, text)


HEAVY = ("numpy", "pandas", "pyarrow", "sqlalchemy", "torch", "nvtx")
OF_THE_SERVER = ("anyio", "mcp", "nsyspipe.mcp")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import nsyspipe, nsyspipe.cli.app", (*HEAVY, *OF_THE_SERVER)),
        ("main('--help')", (*HEAVY, *OF_THE_SERVER)),
        ("main('analyze', 'sample_reports/ddp-4gpu-before_0.sqlite', '-q')", OF_THE_SERVER),
    ],
)
def test_import_loads_nothing_heavy(statement, absent):
    code = (
        "import contextlib, sys\n"
        "def main(*words):\n"
        "    from nsyspipe.cli.app import app\n"
        "    app(words, standalone_mode=False)\n"
        "with contextlib.redirect_stdout(sys.stderr):\n"
        f"    {statement}\n"
        f"print([name for name in {absent!r} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=SAMPLES.parent
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
def test_what_a_notebook_gives_by_mistake_is_refused_or_told(steady_run, tmp_path, worded):
    export = nsyspipe.export
    for call in (
        lambda: nsyspipe.diff(steady_run, steady_run, force="no"),
        lambda: nsyspipe.compare([steady_run], force="no"),
        lambda: nsyspipe.whatif(steady_run, no_wait="no"),
        lambda: export.write(steady_run, tmp_path / "a.html", force="no"),
        lambda: export.parquet(steady_run, tmp_path, events="yes"),
        lambda: nsyspipe.dashboard(tmp_path, tmp_path / "a.html", force="no"),
    ):
        with pytest.raises(OptionError):
            call()
    with pytest.raises(OptionError, match="bucket_mb=100"):
        nsyspipe.whatif(steady_run, bucket_mb="100MB")
    for reports in (steady_run.steps().to_pandas(), {"a": "b.sqlite"}):
        with pytest.raises(OptionError):
            nsyspipe.load(reports)
    path = steady_rank(0, world_size=1).write(tmp_path / "a.sqlite")
    run = nsyspipe.load(path, backward="bwd|backwards")
    nsyspipe.export.parquet(run, tmp_path / "old")
    change, board, answer = nsyspipe.diff(run, run), nsyspipe.compare([run]), nsyspipe.whatif(run)
    of_answer, saved = pa.Table.from_pylist(answer.problems), nsyspipe.load(tmp_path / "old")
    in_python = [run.problems, run.table("problems"), change.problems, board.problems, of_answer]
    in_commands = [
        pa.Table.from_pylist(one.problem_rows) for one in (run, change, board, answer, saved)
    ]
    for option, tables in (("backward=", in_python), ("--backward ", in_commands)):
        for problems in tables:
            at = problems["code"].index("phase-pattern-unmatched").as_py()
            assert f"{option}'bwd|backwards'" in problems["message"][at].as_py(), problems
            assert f" {option.strip()}" in problems["fix"][at].as_py(), problems
    two = nsyspipe.load(path, label="two")
    for run in (steady_run, two):
        nsyspipe.export.parquet(run, tmp_path / "store")
    assert nsyspipe.load(tmp_path / "store", label="two").header.run_id == two.header.run_id
    with pytest.raises(OptionError) as caught:
        nsyspipe.load(tmp_path / "store", label="tw")
    worded(str(caught.value), "a label that is not there")
    saved = nsyspipe.load(tmp_path / "store:two")
    shutil.rmtree(tmp_path / "store")
    worded(repr(saved), "a run that is gone")
