"""Runs that are laid out by hand, each made once for all tests."""

import pytest

import nsyspipe
from tests.build.plain_steps import plain_rank

STEPS = [(1000, 100, 40, 60)] * 3


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """Return a function that makes a run of a list of steps per rank; `edit` changes a rank's report before it is written."""
    runs = {}

    def make(*ranks, edit=None, without=(), load=None, **options):
        options = {"world_size": len(ranks), **options}
        key = repr((ranks, without, load, options)), edit  # kept, so that no other function is taken for it
        if key not in runs:
            folder = tmp_path_factory.mktemp("made")
            for rank, steps in enumerate(ranks):
                builder = plain_rank(rank, steps, **options)
                if edit is not None:
                    edit(builder)
                builder.write(folder / f"run_{rank}.sqlite", without=without)
            runs[key] = nsyspipe.load(folder, jobs=1, **load or {})
        return runs[key]

    return make


@pytest.fixture(scope="session")
def run(made):
    """Return two ranks of equal steps: windows [1000, 1600), skipped, three of 1200, and one that is cut off."""
    return made(STEPS, STEPS)
