"""``nsyspipe mcp`` says what it lacks. Its answers are tested in ``tests/mcp``."""

import sys

import pytest

from tests.cli.tools import nsyspipe_here


def test_without_the_extra_the_error_names_it(monkeypatch, tmp_path, worded):
    monkeypatch.delitem(sys.modules, "nsyspipe.mcp.server", raising=False)
    for package in ("anyio", "mcp"):
        monkeypatch.setitem(sys.modules, package, None)
    done = nsyspipe_here("mcp", "--root", tmp_path)
    assert done.returncode == 2
    worded(done.stderr)


@pytest.mark.parametrize("words", [(), ("--root", "nothing")], ids=["no root", "no directory"])
def test_a_root_must_be_named_and_be_a_directory(tmp_path, worded, words):
    done = nsyspipe_here("mcp", *words, cwd=tmp_path)
    assert done.returncode == 2
    worded(done.stderr)
