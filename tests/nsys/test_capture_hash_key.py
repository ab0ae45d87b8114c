"""The key of hashed values: made once, the user's alone, refused where it may not be."""

from __future__ import annotations

import os
import stat
import subprocess
import sys

import pytest

from nsyspipe.nsys.command_words import HASHED, PER_CAPTURE
from nsyspipe.nsys.secrets import hash_key, main


@pytest.fixture
def state(tmp_path):
    return tmp_path / "state" / "nsyspipe"


def key_of(state):
    return hash_key({"XDG_STATE_HOME": str(state.parent)})


def is_own(key):
    assert (key.key_id == PER_CAPTURE) == (key.note is not None)
    return key.key_id == PER_CAPTURE


def test_it_is_made_once_and_readable_by_its_owner_alone(state):
    old = os.umask(0)  # nothing is left to the mask
    try:
        first = key_of(state)
    finally:
        os.umask(old)
    assert not is_own(first)
    file = state / "hash-key"
    assert (file.read_bytes(), len(first.key)) == (first.key, 32)
    assert [stat.S_IMODE(one.stat().st_mode) for one in (file, state)] == [0o600, 0o700]
    assert list(state.iterdir()) == [file]
    again = key_of(state)
    assert (again.key, again.key_id) == (first.key, first.key_id)


def test_its_name_tells_keys_apart_and_nothing_of_them(state, tmp_path):
    first, other = key_of(state), hash_key({"HOME": str(tmp_path), "XDG_STATE_HOME": "relative"})
    # Without XDG it lies where the standard says.
    assert (tmp_path / ".local/state/nsyspipe/hash-key").read_bytes() == other.key
    assert first.key_id != other.key_id
    assert len(first.key_id) == 8
    assert first.key_id not in first.key.hex()
    assert first.of("", "which key") != f"hmac:{first.key_id}"
    # 33 would be bytes of it in decimal
    assert first.key.hex() not in repr(first)
    assert repr(first.key) not in repr(first)


SIZES_AND_MODES = {
    "short": (31, 0o600), "long": (33, 0o600), "empty": (0, 0o600), "open": (32, 0o644), "group": (32, 0o640),
}  # fmt: skip
OTHERS = ("link", "dangling", "directory", "pipe", "folder link", "folder open", "folder file")


@pytest.mark.parametrize("sick", [*SIZES_AND_MODES, *OTHERS])
def test_a_key_that_others_may_know_or_have_put_there_is_refused(state, tmp_path, sick):
    file = state / "hash-key"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    (elsewhere / "hash-key").write_bytes(b"k" * 32)
    (elsewhere / "hash-key").chmod(0o600)
    state.mkdir(parents=True, mode=0o700)
    if sick in {"folder link", "folder file"}:
        state.rmdir()
    if sick in SIZES_AND_MODES:
        size, mode = SIZES_AND_MODES[sick]
        file.write_bytes(b"k" * size)
        file.chmod(mode)
    else:
        {
            "link": lambda: file.symlink_to(elsewhere / "hash-key"), "dangling": lambda: file.symlink_to(tmp_path / "new"),
            "directory": file.mkdir, "pipe": lambda: os.mkfifo(file, 0o600), "folder link": lambda: state.symlink_to(elsewhere),
            "folder file": state.touch, "folder open": lambda: state.chmod(0o777),
        }[sick]()  # fmt: skip
    key = key_of(state)
    assert is_own(key)
    assert key.key != b"k" * 32
    assert "diff says that they may have changed" in key.note
    assert not (tmp_path / "new").exists()
    assert (elsewhere / "hash-key").read_bytes() == b"k" * 32
    assert key_of(state).key != key.key


def test_without_a_state_directory_or_with_one_of_somebody_else_each_capture_has_its_own(state, monkeypatch):
    for environment in ({}, {"HOME": ""}, {"HOME": "x"}, {"HOME": "/dev/null"}, {"HOME": "/proc"}):
        first, second = hash_key(environment), hash_key(environment)
        assert is_own(first)
        assert first.key != second.key
        assert first.of("a", "b") != second.of("a", "b")
    key_of(state)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    key = key_of(state)
    assert is_own(key)
    assert "belongs to somebody else" in key.note


def test_of_several_captures_that_begin_at_once_one_makes_it(state):
    code = "from nsyspipe.nsys.secrets import hash_key; print(hash_key().key_id)"
    variables = os.environ | {"XDG_STATE_HOME": str(state.parent)}
    started = [subprocess.Popen([sys.executable, "-c", code], env=variables, stdout=subprocess.PIPE) for _ in range(8)]
    said = {process.communicate(timeout=30)[0] for process in started}
    assert said == {f"{key_of(state).key_id}\n".encode()}
    assert [path.name for path in state.iterdir()] == ["hash-key"]


def test_words_are_printed_as_they_may_be_written_down(state, monkeypatch, capsys):
    monkeypatch.setenv("XDG_STATE_HOME", str(state.parent))
    monkeypatch.setenv("NCCL_P2P_DISABLE", "1")
    words = ["--environment", "ddp.sh", "-n", "2", "--", "--lr", "0.1", "--data", "a b"]
    before = dict(os.environ)
    main(words)
    assert dict(os.environ) == before  # the key goes into no environment
    first = capsys.readouterr().out
    *rest, value = first.split()
    assert rest[-7:] == ["ddp.sh", "-n", "2", "--", "--lr", "0.1", "--data"]
    assert "NCCL_P2P_DISABLE=1" in rest
    assert HASHED.fullmatch(value)
    main(words)
    assert capsys.readouterr().out == first
    # Hashes by a key that is forgotten would differ each time.
    monkeypatch.setenv("XDG_STATE_HOME", "/dev/null")
    main(words[1:])
    assert capsys.readouterr().out == "ddp.sh -n 2 -- --lr 0.1 --data '***' "
