"""What tests of the source share."""

import pytest

from tests.contract.trees import nodes_of_file


@pytest.fixture(scope="package", autouse=True)
def _nodes_of_files():
    """Free the syntax trees of the package behind the last test that may walk through them."""
    yield
    nodes_of_file.cache_clear()
