"""What small files and silent programs may cost: counted before work begins, and never waited for without an end."""

import contextlib
import os
import re
import resource
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest
from rich.console import Console

import nsyspipe
from nsyspipe.cli.options import check_address_space
from nsyspipe.errors import DamagedReportError, InputError, NsyspipeError, OptionError, OutputError
from nsyspipe.model.options import parse_rank_map
from nsyspipe.model.schema import EVENTS
from nsyspipe.model.text_files import (
    MOST_SMALL_BYTES,
    NotOrdinaryError,
    open_ordinary,
    read_small_text,
)
from nsyspipe.reader.fabric import read_nccl_logs, read_topology
from nsyspipe.report import perfetto
from nsyspipe.report.as_text import as_text
from nsyspipe.report.blocks import Sentence
from nsyspipe.report.html.dashboard_page import check_dashboard, page_links, write_pages
from nsyspipe.run import gather
from tests.cli.tools import LINES_AT_END

NOT_READ = ["/dev/zero", "/dev/null", "pipe", "."]


def report_of_processes(path, n):
    columns = "start, end, deviceId, streamId, correlationId, globalPid, shortName, demangledName"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
        database.execute("INSERT INTO StringIds VALUES (1, 'gemm')")
        database.execute(f"CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL ({columns})")
        rows = [(10 * at, 10 * at + 5, 0, 7, 1, (at + 1) << 24, 1, 1) for at in range(n)]
        database.executemany(
            f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({', '.join('?' * 8)})", rows
        )
    database.close()


def test_processes_are_counted_before_work_begins(tmp_path, monkeypatch):
    monkeypatch.setattr(gather, "MAX_PROCESSES", 3)
    for n in (3, 4):
        report_of_processes(tmp_path / f"x_{n}.sqlite", n)
    assert nsyspipe.load(tmp_path / "x_3.sqlite", jobs=1).ranks.num_rows == 3
    with pytest.raises(DamagedReportError, match=r"\b4\b.*\b3\b"):
        nsyspipe.load(tmp_path / "x_4.sqlite", jobs=1).steps()


def events_of_streams(n):
    columns = {one.name: pa.nulls(n, one.type) for one in EVENTS.arrow} | {
        "category": pa.array(["compute"] * n)
    }
    numbers = pa.array(range(n), pa.int64())
    return pa.table(
        columns
        | dict.fromkeys(("device_id", "stream_id", "start_ns", "end_ns", "correlation_id"), numbers)
    )


def test_streams_are_counted_before_tracks_are_made(monkeypatch):
    monkeypatch.setattr(perfetto, "_MAX_STREAMS", 4)
    events = events_of_streams(5)
    with pytest.raises(OutputError, match="more than 4"):
        next(perfetto._streams(events))


@pytest.mark.parametrize("place", NOT_READ)
@pytest.mark.parametrize(
    "read",
    [
        parse_rank_map,
        lambda place: read_nccl_logs([Path(place)]),
        lambda place: read_topology(Path(place)),
    ],
    ids=["rank map", "log", "topology"],
)
def test_only_ordinary_files_are_read_beside_reports(place, read, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    with pytest.raises((OptionError, InputError), match="ordinary"):
        read(place)


def test_a_text_is_read_up_to_a_size(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b"abc")
    with open_ordinary(path, 3) as file:
        assert file.read() == b"abc"
    with pytest.raises(NotOrdinaryError, match="3 bytes"):
        open_ordinary(path, 2)
    with path.open("r+b") as file:
        file.truncate(MOST_SMALL_BYTES + 1)
    with pytest.raises(NotOrdinaryError):
        read_small_text(path)


@pytest.mark.parametrize("megabytes", [300, 400, 511])
def test_a_limit_of_memory_that_is_too_small_is_told(megabytes, monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (megabytes << 20, resource.RLIM_INFINITY))
    with pytest.raises(InputError, match=rf"\b{megabytes} MB\b.*\b512 MB\b"):
        check_address_space()


@pytest.mark.parametrize("limit", [512 << 20, resource.RLIM_INFINITY])
def test_a_limit_of_memory_that_is_enough_is_not_told(limit, monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, resource.RLIM_INFINITY))
    check_address_space()


@contextlib.contextmanager
def silent_server():
    """Yield a server that takes connections and says nothing, and its address."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60)
        yield server, f"tcp://127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.slow
def test_a_silent_scheduler_is_refused_and_both_signals_are_heard(tmp_path):
    pytest.importorskip("distributed")
    report_of_processes(tmp_path / "x.sqlite", 1)
    command = [
        sys.executable,
        "-m",
        "nsyspipe",
        "analyze",
        str(tmp_path / "x.sqlite"),
        "--scheduler",
    ]
    environment = os.environ | {"DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "2s"}
    with silent_server() as (_, address):
        done = subprocess.run(
            [*command, address],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert address in done.stderr
    environment["DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT"] = "300s"
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        with (
            silent_server() as (server, address),
            subprocess.Popen(
                [*command, address], env=environment, stderr=subprocess.PIPE, text=True
            ) as process,
            server.accept()[0],
        ):
            time.sleep(1)  # by then it waits for an answer
            process.send_signal(number)
            said = process.communicate(timeout=20)[1]
        assert process.returncode == code, said
        assert len(said.splitlines()) == LINES_AT_END[number], number


def test_a_terminal_without_a_width_is_written_to(monkeypatch):
    monkeypatch.setenv("COLUMNS", "0")
    assert as_text([Sentence("some words")], Console()).strip() == "some words"


def test_a_dashboard_follows_no_link_inside_its_store(tmp_path):
    store, outside = tmp_path / "store", tmp_path / "outside"
    store.mkdir()
    outside.mkdir()
    (store / "pages").symlink_to(outside)
    (store / "index.html").symlink_to(outside / "index.html")
    for call in (
        lambda: check_dashboard(str(store / "index.html"), store, force=True),
        lambda: check_dashboard(str(store / "pages" / "index.html"), store, force=True),
        lambda: write_pages(store, ["a"], store / "pages"),
    ):
        with pytest.raises(NsyspipeError, match=re.escape(str(store))):
            call()
    assert list(outside.iterdir()) == []
    assert page_links(store, ["a"], tmp_path) == {}
    check_dashboard(str(outside / "index.html"), store, force=True)


@pytest.mark.parametrize("script", ["sweep.sh", "ddp.sh"])
@pytest.mark.parametrize("number", ["9223372036854775808", "99999999999999999999", "100000"])
def test_a_number_of_gpus_that_bash_cannot_hold_is_refused(script, number):
    launcher = Path(nsyspipe.__file__).parents[1] / "launchers" / script
    command = ["bash", str(launcher), "-n", number, "--cpu", "--dry-run"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"-n {number}: not a number" in done.stderr
