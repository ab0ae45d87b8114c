"""What the program imports, and what it says of itself."""

from __future__ import annotations

import subprocess
import sys

import pytest

import nsyspipe
from tests.cli.tools import environment, nsyspipe_run


def imported(*arguments):
    """Return the packages that a run of the program imports, with what they import of themselves."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "nsyspipe", *map(str, arguments)],
        capture_output=True, text=True, check=False, timeout=60, env=environment(),
    )  # fmt: skip
    assert done.returncode == 0
    rows = [line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")]
    assert "nsyspipe.cli.app" in rows
    # A refused import is listed too, but nothing inside it.
    return {name.partition(".")[0] for name in rows if "." in name}


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["--help"], ["diff", "-h"]], ids=" ".join)
def test_help_and_version_import_nothing_heavy(arguments):
    heavy = {"adbc_driver_manager", "adbc_driver_sqlite", "numpy", "pandas", "pyarrow", "sqlalchemy", "torch"}
    assert imported(*arguments) & heavy == set()


@pytest.mark.slow
def test_analysis_does_without_pandas_polars_and_torch(steady):
    found = imported("analyze", steady, "-j", 1)
    assert {"pyarrow", "sqlalchemy"} <= found
    assert found & {"pandas", "polars", "torch", "nvtx"} == set()


@pytest.mark.slow
def test_a_program_that_imports_the_package_keeps_its_pandas(steady):
    script = f"import nsyspipe; print(nsyspipe.load({str(steady)!r}).to_pandas('steps').dtypes['wall_ns'])"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60, env=environment()
    )
    assert (done.stdout, done.stderr) == ("int64[pyarrow]\n", "")


def test_the_version_is_one_line():
    done = nsyspipe_run("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"nsyspipe {nsyspipe.__version__}\n", "")


@pytest.mark.slow
def test_completion_offers_the_tables_of_schema():
    done = nsyspipe_run("schema", _NSYSPIPE_COMPLETE="complete_bash", COMP_WORDS="nsyspipe schema st", COMP_CWORD="2")
    assert "steps" in done.stdout
