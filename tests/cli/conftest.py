"""What the tests of commands share."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from nsyspipe.cli.app import app


@pytest.fixture
def invoke():
    """Return a function that runs the program in this process, where that is enough."""

    def run(*arguments):
        return CliRunner().invoke(app, ["analyze", *map(str, arguments)], catch_exceptions=True)

    return run
