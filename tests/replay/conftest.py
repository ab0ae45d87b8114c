"""Runs of which every time is known, written once for the tests of a file, and asked."""

import functools

import pytest

import nsyspipe
from nsyspipe.replay import answer
from nsyspipe.replay.answer import whatif
from tests.build.tools import run_of


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """Return a function that writes a run's reports and loads them, each run once."""
    runs = {}

    def load(run):
        if run not in runs:
            runs[run] = nsyspipe.load(run.write(tmp_path_factory.mktemp("run")), jobs=1)
        return runs[run]

    return load


@pytest.fixture(scope="module")
def opened_once():
    """Let `whatif` make each run ready to be replayed once, whatever is asked of it: that takes most of its time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(answer, "opened_replay", functools.cache(answer.opened_replay))
        yield


@pytest.fixture(scope="module")
def ask(loaded):
    return lambda run, **changes: whatif(loaded(run), **changes)


@pytest.fixture
def written(tmp_path):
    """Return a function that writes a report per builder and loads them."""
    return functools.partial(run_of, tmp_path, jobs=1)
