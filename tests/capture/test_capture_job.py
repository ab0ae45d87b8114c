"""The job around the ranks: room for its files, its limits, its signals. Whole jobs: tests/launchers/test_endings.py."""

import os
import signal
import subprocess
import sys
import tempfile

import pytest

from nsyspipe.capture import supervision
from nsyspipe.capture.job import main
from nsyspipe.capture.supervision import (
    catching_signals,
    group_is_alive,
    group_of,
    interruptible,
    start,
)


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert list(folder.iterdir()) == []


def run(name, *words, command=("true",)):
    return main([f"--name={name}", "--program=train.py", *words, "--", *command])


def test_the_status_of_an_unprofiled_command_is_passed_on(tmp_path, capsys, worded):
    for words, status in (
        (("true",), 0),
        (("sh", "-c", "exit 9"), 9),
        (("sh", "-c", "kill -6 $$"), 134),
        (("/no/such",), 2),
    ):
        assert run(tmp_path / "x", command=words) == status, words
    worded(capsys.readouterr().err)


def test_the_command_has_the_status_directory_which_is_removed_later(tmp_path, temporary, capfd):
    words = ["sh", "-c", f'cp -rL "$NSYSPIPE_STATUS_DIR" {tmp_path}/kept; exec ls -l /proc/self/fd']
    assert run(tmp_path / "x", command=words) == 0
    out = capfd.readouterr().out
    assert f"-> {temporary}/nsyspipe-" in out
    assert "/lock\n" in out
    assert (tmp_path / "kept").is_dir()


def test_a_name_below_a_file_or_of_a_directory_is_refused(tmp_path, capsys, worded):
    (tmp_path / "file").touch()
    assert run(tmp_path / "file" / "x", "--nsys=nsys") == 2
    worded(capsys.readouterr().err, "below a file")
    (tmp_path / "x_0.sqlite").mkdir()  # one of a report's name is not removed
    assert run(tmp_path / "x", "--nsys=nsys", "--force") == 2
    worded(capsys.readouterr().err, "of a directory")
    assert (tmp_path / "x_0.sqlite").is_dir()


@pytest.fixture
def heard():
    """Hear signals that end a program, also where pytest was started without, as by nohup."""
    before = {
        number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGTERM, signal.SIGHUP)
    }
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_signals_are_caught_and_handlers_come_back(
    heard,
):
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)]
    with catching_signals() as stop:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGHUP)
    assert (stop.signal, stop.n_asked) == (signal.SIGHUP, 2)
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)] == before
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interruptible(), catching_signals() as stop:
            signal.raise_signal(signal.SIGHUP)
        assert stop.n_asked == 0
    finally:
        signal.signal(signal.SIGHUP, before[1])
    with pytest.raises(KeyboardInterrupt), interruptible():
        signal.raise_signal(signal.SIGTERM)


def test_all_of_a_group_is_ended_also_what_ignores_the_polite_signal():
    process = start(
        ["sh", "-c", "trap '' TERM; echo up; sleep 30 & wait; wait"],
        os.environ,
        output=subprocess.DEVNULL,
    )
    while group_of(process.pid) != process.pid:
        pass
    assert group_is_alive(process.pid)
    supervision.end_groups([process.pid], grace_s=0.3)
    assert not group_is_alive(process.pid)
    process.wait()
    assert supervision.status_of(process) in {128 + signal.SIGKILL, 128 + signal.SIGTERM}


def test_a_group_of_zombies_is_not_alive_and_our_own_is_nobodys_to_end():
    assert group_of(os.getpid()) is None
    process = start([sys.executable, "-S", "-c", ""], os.environ)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # ended, but not collected
    assert not group_is_alive(process.pid)
    process.wait()
    assert group_of(process.pid) is None
