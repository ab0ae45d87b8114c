"""Attempts to make nsyspipe run, touch or lose what it must not; each test case is one attempt or counts its own."""

import pytest


@pytest.fixture
def attempts(record_property):
    return lambda number: record_property("attempts", number)


def pytest_itemcollected(item):
    """Each attack reads its reports anew."""
    item.add_marker(pytest.mark.reads_anew)
