"""Tests of how reports are read read each report anew."""

import pytest


@pytest.fixture
def _digested_once():
    """Take no report from an earlier test."""
