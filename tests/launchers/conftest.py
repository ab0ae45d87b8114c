"""The machine that launchers are tested on."""

import pytest

from tests.build.trace import steady_rank
from tests.launchers.answers import answering
from tests.launchers.fakes import Machine
from tests.launchers.jobs import put_launchers


@pytest.fixture(scope="session")
def reports(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reports")
    for rank in range(4):
        steady_rank(rank).write(folder / f"{rank}.sqlite")
    return folder


@pytest.fixture
def machine(tmp_path, reports):
    """A machine with everything but GPUs; whatever a test starts there must have ended."""
    there = Machine(tmp_path / "machine", reports)
    there.root.mkdir()
    with there.set_up().watched():
        yield there


@pytest.fixture
def lab(machine):
    return put_launchers(machine)


@pytest.fixture
def answering_lab(lab):
    """A lab where analyses run in this process; captures, and all else, are programs of their own."""
    with answering(lab.root / "launchers"):
        yield lab
