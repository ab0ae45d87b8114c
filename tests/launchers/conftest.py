"""The machine that launchers are tested on."""

from __future__ import annotations

import pytest

from tests.build.trace import steady_rank
from tests.launchers.fakes import Machine


@pytest.fixture(scope="session")
def a_report(tmp_path_factory):
    return steady_rank(0).write(tmp_path_factory.mktemp("report") / "report.sqlite")


@pytest.fixture
def machine(tmp_path, a_report):
    """A machine with everything but GPUs; whatever a test starts there must have ended."""
    there = Machine(tmp_path / "machine", a_report)
    there.root.mkdir()
    yield there.set_up()
    assert not there.left_behind()
    assert not list(there.temporary.glob("nsyspipe-*"))
