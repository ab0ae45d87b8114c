"""Tests of how reports are read read each report anew."""

import pytest


def pytest_itemcollected(item):
    item.add_marker(pytest.mark.reads_anew)
