"""What of nsys's output says why it failed."""

from __future__ import annotations

from nsyspipe.nsys.programs import telling_lines


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
