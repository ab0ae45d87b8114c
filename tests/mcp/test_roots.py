"""Paths that a server refuses before it looks at them, and names that look like globs."""

import pytest

from nsyspipe.errors import InputError
from nsyspipe.mcp.roots import Roots


@pytest.fixture
def roots(tmp_path, monkeypatch):
    """Return the root `root`, which is the working directory, beside a directory `outside`."""
    for name in ("root", "outside"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "root")
    return Roots.of([tmp_path / "root"])


SHORT_PARTS = {"characters": "a" * 1024, "components": "/".join("a" * 64), "colons": "a:" * 8}


@pytest.mark.parametrize("argument", SHORT_PARTS.values(), ids=SHORT_PARTS)
def test_a_path_may_be_as_long_as_the_limit(roots, argument):
    roots.check(argument)


@pytest.mark.parametrize(
    ("noun", "argument"),
    [
        ("characters", "a" * 1025),
        ("characters", "a/:" * 100_000),
        ("components", "/".join("a" * 65)),
        ("colons", "a:" * 9),
    ],
)
def test_a_path_of_too_many_parts_is_refused(roots, noun, argument):
    with pytest.raises(InputError, match=rf"has \d+ {noun}"):
        roots.check(argument)


@pytest.mark.parametrize("argument", ["[x]", "[x]/", "[x]/missing", "[x]:run", "[x]/deep", "./[x]"])
def test_a_link_in_a_directory_named_like_a_glob_does_not_lead_out(roots, tmp_path, argument):
    (tmp_path / "root" / "[x]" / "deep").mkdir(parents=True)
    roots.check(argument)
    (tmp_path / "root" / "[x]" / "link").symlink_to(tmp_path / "outside")
    with pytest.raises(InputError, match="link"):
        roots.check(argument)
