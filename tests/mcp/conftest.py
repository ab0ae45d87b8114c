"""A directory as an agent sees it: reports, and a store of saved runs."""

import pytest

import nsyspipe
from nsyspipe.mcp.roots import Roots
from nsyspipe.mcp.tools import Tools
from nsyspipe.store.write import save
from tests.build.plain_steps import write_run
from tests.conftest import filled_once

# Compute, communication, copy and idle time of each summary step, in ns.
STEPS_OF_RANKS = (((100, 20, 0, 0), (200, 20, 0, 10)), ((100, 20, 0, 0), (300, 20, 0, 10)))
SLOWER_STEPS = (((900, 20, 0, 0),) * 2, ((900, 20, 0, 0),) * 2)


@pytest.fixture(scope="session")
def world(tmp_path_factory):
    """Return a directory with the reports `fast` and `slow`, and both runs saved in `store`."""
    return filled_once(tmp_path_factory, "agents", make_world)


def make_world(folder):
    for name, ranks in (("fast", STEPS_OF_RANKS), ("slow", SLOWER_STEPS)):
        reports = write_run(folder / name, ranks)
        run = nsyspipe.load(reports, label=name, run_id=f"run-{name}", jobs=1)
        save(run, folder / "store", events=True)


@pytest.fixture
def tools(world, monkeypatch):
    monkeypatch.chdir(world)
    return Tools(Roots.of([world]))
