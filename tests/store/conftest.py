"""Small runs that differ in every table, analyzed once for all tests of stores."""

import pytest

from tests.store.store_tools import new_run, old_run, other_run


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return old_run(folder), new_run(folder), other_run(folder)
