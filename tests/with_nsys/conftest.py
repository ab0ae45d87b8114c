"""A real nsys for the tests that need one: the machine's own, or one that is installed for them."""

import importlib.util
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from nsyspipe.nsys.programs import find_nsys
from tests.with_nsys.launching import RealMachine

INSTALLER = Path(__file__).parents[2] / ".ci" / "install-nsys"
_INSTALL_S = 900


@pytest.fixture(scope="session")
def nsys() -> Path:
    """Return an nsys that runs; skip where none can be had, but in CI fail."""
    if (found := find_nsys()) is not None:
        return found.path
    asked = subprocess.run(
        [INSTALLER], capture_output=True, text=True, timeout=_INSTALL_S, check=False
    )
    if asked.returncode == 0:
        return Path(asked.stdout.split()[-1])
    if os.environ.get("CI"):
        pytest.fail(f"no nsys in CI: {asked.stderr}")
    pytest.skip("no nsys")


@pytest.fixture
def with_nsys(nsys: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{nsys.parent}{os.pathsep}{os.environ['PATH']}")
    return nsys


@pytest.fixture
def machine(with_nsys: Path, tmp_path: Path) -> Iterator[RealMachine]:
    # An import takes seconds.
    if importlib.util.find_spec("torch") is None:
        pytest.skip("no torch: dependency group capture")
    there = RealMachine(tmp_path, tmp_path).set_up()
    with there.watched():
        yield there
