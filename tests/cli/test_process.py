"""What a process of the program imports, and how it ends when somebody else decides: Ctrl-C, a reader that left, a full disk."""

import signal
import subprocess
import sys

import pytest

import nsyspipe
from tests.cli.tools import environment, nsyspipe_run, program, python_run
from tests.store.store_tools import stored

# In a process of its own: coverage holds a lock when a thread's first line is traced, and one that
# comes then keeps it held.
INTERRUPTED = """
import gc, signal, threading
from nsyspipe.reader.tables import connected, fetch_arrow

signal.signal(signal.SIGINT, signal.default_int_handler)
gc.disable()  # Python itself loses one that comes in a callback of the collector
for at in range(60):
    sender = threading.Timer(at * 1e-5, signal.raise_signal, (signal.SIGINT,))
    try:
        with connected("file::memory:") as connection:
            sender.start()
            while sender.is_alive():
                fetch_arrow(connection, "SELECT 1")
            sender.join()
    except KeyboardInterrupt:
        print(at)
"""


@pytest.mark.slow
def test_no_interrupt_that_comes_while_sqlite_answers_is_lost():
    """Of those that come just as a statement ends, ADBC's own way with signals lost one in a few."""
    done = python_run(INTERRUPTED)
    assert (done.stdout.split(), done.stderr) == ([str(at) for at in range(60)], "")


# What commands print is written at one place, help and errors of use by Typer.
SLOWER = (pytest.param(f"{one} {{}}", marks=pytest.mark.slow) for one in ("doctor", "whatif"))


@pytest.mark.slow
@pytest.mark.parametrize("arguments", ["analyze {}", "diff --help", *SLOWER])
def test_a_reader_that_left_is_no_bug_of_ours(steady, arguments):
    command = program(*(one.format(steady) for one in arguments.split()))
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    ) as started:
        started.stdout.close()
        errors = started.stderr.read()
        started.wait(timeout=30)
    assert errors == b""
    assert started.returncode in (0, 128 + signal.SIGPIPE)  # 1 would mean a bug of ours


@pytest.mark.slow
@pytest.mark.parametrize(
    ("redirect", "codes"), [(">/dev/full", {2}), (">&-", {0, 2})], ids=["full disk", "closed"]
)
def test_a_stdout_that_takes_nothing_is_no_bug_of_ours(redirect, codes):
    command = ["/bin/sh", "-c", f'exec "$0" "$@" {redirect}', *program("schema", "steps")]
    done = subprocess.run(
        command, stderr=subprocess.PIPE, text=True, check=False, timeout=30, env=environment()
    )
    assert done.returncode in codes
    assert "Traceback" not in done.stderr
    assert done.stderr.count("error: ") == (done.returncode == 2)


def imported_modules(*arguments):
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "nsyspipe", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=environment(),
    )
    assert done.returncode == 0
    rows = [
        line.rpartition("|")[2].strip()
        for line in done.stderr.splitlines()
        if line.startswith("import time:")
    ]
    assert "nsyspipe.cli.app" in rows
    return rows


def imported(*arguments):
    # A refused import is listed too, but nothing inside it.
    return {name.partition(".")[0] for name in imported_modules(*arguments) if "." in name}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "needed"),
    [
        ("--help", ()),
        ("diff -h", ()),
        ("analyze -j 1", ("numpy", "pyarrow", "sqlalchemy", "adbc_driver_sqlite")),
        ("analyze -q", ("numpy", "pyarrow")),
    ],
)
def test_a_command_imports_nothing_that_it_does_not_need(steady, tmp_path, words, needed):
    place = steady if "-j" in words else stored(tmp_path / "runs", nsyspipe.load(steady))
    found = imported(*words.split(), *([place] if needed else []))
    reading = {"adbc_driver_sqlite", "numpy", "pyarrow", "sqlalchemy"}
    assert found & (reading | {"dask", "distributed", "pandas", "polars", "torch", "nvtx"}) == {
        *needed
    }


# Modules that only one command needs.
ONLY_FOR = {"nsyspipe.report.skill": "skill"}


@pytest.mark.slow
@pytest.mark.parametrize("words", ["--help", "analyze -j 1", "explain", "skill"])
def test_a_command_imports_no_module_of_another_command(steady, words):
    modules = imported_modules(*words.split(), *([steady] if "-j" in words else []))
    command = words.partition(" ")[0]
    used = {only for only in ONLY_FOR if any(module.startswith(only) for module in modules)}
    assert used == {only for only, owner in ONLY_FOR.items() if owner == command}


@pytest.mark.slow
def test_a_program_that_imports_the_package_keeps_its_pandas(steady):
    done = python_run(
        "import nsyspipe; "
        f"print(nsyspipe.load({str(steady)!r}).to_pandas('steps').dtypes['wall_ns'])"
    )
    assert (done.stdout, done.stderr) == ("int64[pyarrow]\n", "")


@pytest.mark.slow
def test_the_version_is_one_line():
    done = nsyspipe_run("--version")
    assert (done.returncode, done.stdout, done.stderr) == (
        0,
        f"nsyspipe {nsyspipe.__version__}\n",
        "",
    )


@pytest.mark.slow
def test_completion_offers_the_tables_of_schema():
    done = nsyspipe_run(
        "schema",
        _NSYSPIPE_COMPLETE="complete_bash",
        COMP_WORDS="nsyspipe schema st",
        COMP_CWORD="2",
    )
    assert "steps" in done.stdout
