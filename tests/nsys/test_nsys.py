"""The nsys command: how it is found, which it is, what it lists."""

from __future__ import annotations

import os

import pytest

from nsyspipe.errors import NsysFailedError, NsysNotFoundError
from nsyspipe.nsys import programs as nsys
from nsyspipe.nsys.programs import find_nsys, telling_lines
from tests.build.fake_nsys import NEW_OPTIONS, fake_nsys
from tests.build.programs import HELP, program


def test_its_version_is_text_and_numbers(tmp_path):
    found = nsys.find(str(fake_nsys(tmp_path)))
    assert (found.version_text, found.version) == ("2024.2.3.38", (2024, 2, 3, 38))


def test_it_is_found_on_the_search_path(tmp_path, monkeypatch):
    path = fake_nsys(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert nsys.find().path == path
    assert nsys.find("nsys").path == path


def test_a_directory_stands_for_the_nsys_in_it(tmp_path):
    path = fake_nsys(tmp_path / "bin dir")
    assert nsys.find(str(tmp_path / "bin dir")).path == path


def test_a_relative_path_holds_from_other_directories_too(tmp_path, monkeypatch):
    path = fake_nsys(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert nsys.find("./nsys").path == path


@pytest.mark.parametrize("given", ["", "no-such-program-at-all", "/no/such/nsys", "/tmp", "/etc/passwd"])
def test_what_is_no_program_is_not_found(given):
    with pytest.raises(NsysNotFoundError) as caught:
        nsys.find(given)
    assert caught.value.fix


def test_without_one_the_message_says_where_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    if find_nsys() is not None:
        pytest.skip("this machine has nsys in one of the usual places")
    with pytest.raises(NsysNotFoundError, match="not on PATH") as caught:
        nsys.find()
    assert "developer.nvidia.com/nsight-systems" in caught.value.fix


@pytest.mark.parametrize(
    ("script", "problem"), [("exit 127", "fails with status 127"), ("echo something else", "does not tell a version")]
)
def test_a_program_that_is_no_nsys_is_refused(tmp_path, script, problem):
    path = program(tmp_path, "nsys", script)
    with pytest.raises(NsysFailedError, match=problem) as caught:
        nsys.find(str(path))
    assert caught.value.subject == str(path)


def test_a_program_that_cannot_be_started_is_refused(tmp_path):
    path = tmp_path / "nsys"
    path.write_bytes(b"\x7fELF of another machine")
    path.chmod(0o755)
    with pytest.raises(NsysFailedError, match="cannot be started"):
        nsys.find(str(path))


def test_what_it_traces_is_read_from_its_help(tmp_path):
    found = nsys.find(str(fake_nsys(tmp_path)))
    assert found.trace_values() == ("cuda", "nvtx", "cublas-verbose", "osrt", "python-gil", "none")


def test_nccl_is_a_trace_value_where_the_help_lists_it(tmp_path):
    newer = HELP.replace("'osrt'", "'osrt', 'nccl'")
    assert "nccl" in nsys.find(str(fake_nsys(tmp_path, profile=newer))).trace_values()


def test_options_are_known_by_the_help_alone(tmp_path):
    old, new = tmp_path / "old", tmp_path / "new"
    found = nsys.find(str(fake_nsys(old)))
    assert [found.has("export", one) for one in ("--lazy", "--type", "--include-blobs", "--laz")] == [
        True, True, False, False,
    ]  # fmt: skip
    assert nsys.find(str(fake_nsys(new, options=NEW_OPTIONS))).has("export", "--include-blobs")


def test_a_help_that_fails_lists_nothing(tmp_path):
    path = program(tmp_path, "nsys", '[ "$1" = --version ] && echo version 2030.1 && exit; exit 3')
    found = nsys.find(str(path))
    assert found.trace_values() == ()
    assert not found.has("export", "--lazy")


def test_the_help_is_asked_for_once(tmp_path):
    path = fake_nsys(tmp_path, profile=HELP)
    text = path.read_text()
    path.write_text(text.replace("case", 'echo "$1" >> "$0.asked"\ncase', 1))
    found = nsys.find(str(path))
    assert found.has("export", "--lazy")
    assert found.has("export", "--quiet")
    assert (tmp_path / "nsys.asked").read_text().split() == ["--version", "export"]


def test_lines_that_tell_go_before_those_that_came_last():
    said = "Generating 'a'\n[1/1] [0%   ]\r[1/1] [=====  40%] a\nError: no space left\nbye\n"
    assert telling_lines(said, 3) == ["Error: no space left"]
    assert telling_lines("Generating 'a'\n[====100%] a\nbye\n", 1) == ["bye"]
    assert telling_lines("\n[1/1] [0%   ]\n", 3) == []


def test_of_many_the_last_are_told_each_once():
    said = "cannot a\ncannot b\ncannot c\ncannot c\n"
    assert telling_lines(said, 3) == ["cannot b", "cannot c"]


def test_they_are_short_and_fit_to_print():
    (line,) = telling_lines("\x1b[31mfailed\x1b[0m\x07 " + "x" * 900, 3)
    assert line == "failed " + "x" * 193
