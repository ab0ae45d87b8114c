"""Settings files that others may write: they loosen no gate."""

import os

import pytest

from nsyspipe.comparison.gate import GateSettings, read_settings, settled
from nsyspipe.errors import OptionError

NAMES = ("fail_on", "min_effect", "confidence", "metrics")

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


@pytest.fixture
def refused(worded):
    """Return a function that checks that a file is refused, and why; it returns the error."""

    def check(folder, **options):
        with pytest.raises(OptionError) as caught:
            taken(folder, **options)
        worded(caught.value.lines())
        return caught.value

    return check


def taken(folder, **options):
    return settled(GateSettings(**options), read_settings(folder), NAMES)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "nsyspipe.toml").write_text('min-effect = "50%"\n')
    (tmp_path / "below").mkdir()
    return tmp_path


@pytest.mark.parametrize("mode", [0o755, 0o775, 0o1777])
def test_a_file_of_the_users_own_counts(folder, mode):
    folder.chmod(mode)
    assert taken(folder / "below").min_effect == 0.5


@pytest.mark.parametrize("below", [".", "below"])
def test_a_directory_that_anybody_may_write_is_refused(folder, below, refused):
    folder.chmod(0o777)
    assert "--min-effect" in refused(folder / below).fix
    # Where options say all that it does, nothing is taken from it.
    assert taken(folder / below, min_effect=0.02) == GateSettings(min_effect=0.02)


def test_a_file_that_anybody_may_write_is_refused(folder, refused):
    (folder / "nsyspipe.toml").chmod(0o666)
    refused(folder)


@needs_root
@pytest.mark.parametrize("given_away", ["file", "target of a link", "link"])
def test_a_file_of_another_owner_is_refused(folder, given_away, monkeypatch, refused):
    monkeypatch.delenv("SUDO_UID", raising=False)
    path = folder / "nsyspipe.toml"
    if given_away != "file":
        target = path.rename(folder / "below" / "theirs.toml")
        path.symlink_to(target)
    os.chown(target if given_away == "target of a link" else path, 12345, -1, follow_symlinks=False)
    refused(folder)
    monkeypatch.setenv("SUDO_UID", "12345")
    assert taken(folder).min_effect == 0.5


def test_roots_files_count_for_everybody(folder, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 4321)
    if (folder / "nsyspipe.toml").stat().st_uid == 0:
        assert taken(folder).min_effect == 0.5
    else:
        with pytest.raises(OptionError):
            taken(folder)


def test_a_link_out_of_a_directory_that_anybody_may_write_is_refused(folder, refused):
    (folder / "below").chmod(0o777)
    (folder / "below" / "nsyspipe.toml").symlink_to(folder / "nsyspipe.toml")
    refused(folder / "below")


def test_a_directory_further_up_that_anybody_may_write_is_refused(folder, refused):
    """Who may write there may put another directory in the place of the next one."""
    inside = folder / "below" / "project"
    inside.mkdir()
    (folder / "nsyspipe.toml").rename(inside / "nsyspipe.toml")
    folder.chmod(0o777)
    refused(inside)
    for mode in (0o1777, 0o775):  # nobody may take away what is another's; a group is left alone
        folder.chmod(mode)
        assert taken(inside).min_effect == 0.5, mode


@needs_root
@pytest.mark.parametrize("depth", [0, 1, 2, "link"])
def test_a_directory_of_another_owner_or_its_link_is_refused_however_far_up(
    folder, depth, monkeypatch, refused
):
    monkeypatch.delenv("SUDO_UID", raising=False)
    inside = theirs = folder / "below" / ("link" if depth == "link" else "project")
    if depth == "link":
        inside.symlink_to(folder)
    else:
        inside.mkdir()
        (folder / "nsyspipe.toml").rename(inside / "nsyspipe.toml")
        theirs = (inside, *inside.parents)[depth]
    os.chown(theirs, 12345, -1, follow_symlinks=False)
    refused(inside)
    monkeypatch.setenv("SUDO_UID", "12345")
    assert taken(inside).min_effect == 0.5
