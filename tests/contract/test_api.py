"""What the package promises besides numbers: names, schemas, docs, light imports."""

from __future__ import annotations

import contextlib
import importlib
import pkgutil
import string
import subprocess
import sys

import pandas as pd
import pytest

import nsyspipe
from nsyspipe.errors import OptionError
from nsyspipe.model import schema
from nsyspipe.model.problems import CATALOGUE, SEVERITIES

TABLES = schema.RUN_TABLES | {"breakdown": schema.STEPS}
# Keys of tables whose largest rows come first, or whose nulls come last.
ORDERED_OTHERWISE = {"saving_ns_per_step", "blocked_ns_per_step", "lane", "name"}


def test_public_names_are_sorted_and_exist():
    assert nsyspipe.__all__ == [
        "NsyspipeError", "Run", "Side", "__version__", "compare", "diff", "export", "load", "whatif",
    ]  # fmt: skip
    assert all(getattr(nsyspipe, name) is not None for name in nsyspipe.__all__)
    assert {name for name in dir(nsyspipe) if not name.startswith("_")} == {*nsyspipe.__all__} - {"__version__"}  # Tab
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        nsyspipe.nothing  # noqa: B018 - asking is the test


OF_EXTRAS, MISSING = {"nsyspipe.capture.lightning", "nsyspipe.capture.trainer"}, (ModuleNotFoundError,)


def test_rooms_do_not_hide_the_names_of_the_api():
    for module in pkgutil.walk_packages(nsyspipe.__path__, "nsyspipe."):
        if module.name != "nsyspipe.__main__":
            with contextlib.suppress(*MISSING if module.name in OF_EXTRAS else ()):
                importlib.import_module(module.name)
    assert all(callable(getattr(nsyspipe, name)) for name in ("compare", "diff", "load", "whatif"))
    from nsyspipe import export  # noqa: PLC0415 - as a user does

    assert callable(export.parquet)


@pytest.mark.parametrize("name", TABLES)
def test_every_table_has_its_declared_schema_with_docs_and_units(steady_run, without_gpu, name):
    table = steady_run.table(name)
    # Where nothing ran on a GPU it is there, too.
    for one in (table, without_gpu.table(name)):
        assert one.schema.equals(TABLES[name].arrow, check_metadata=True)
    assert table.num_rows or name in {"problems", "links", "host_steps", "findings", "idle_calls"}
    # What is of all ranks stands before theirs.
    keys = [
        tuple(-1 if row[key] is None else row[key] for key in TABLES[name].key)
        for row in table.select(TABLES[name].key).to_pylist()
    ]
    assert keys == sorted(keys) or {*TABLES[name].key} & ORDERED_OTHERWISE
    for field in table.schema:
        assert field.metadata[b"doc"]
        assert field.metadata[b"unit"]
        assert field.nullable or table[field.name].null_count == 0


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
    assert repr(run) == "<Run 'steady': 2 ranks, 4 steps, 2 in the figures>"
    with pytest.raises(AttributeError):
        run.skip_first = 3


@pytest.mark.parametrize("code", CATALOGUE)
def test_every_problem_kind_has_a_severity_and_plain_placeholders(code):
    kind = CATALOGUE[code]
    assert kind.severity in SEVERITIES
    for text in filter(None, (kind.message, kind.fix)):
        assert all(name is None or name.isidentifier() for _, name, _, _ in string.Formatter().parse(text))


def test_import_loads_nothing_heavy():
    code = (
        "import sys, nsyspipe, nsyspipe.cli.app; "
        "print([m for m in ('numpy', 'pandas', 'pyarrow', 'sqlalchemy', 'torch', 'nvtx') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
