"""Shared fixtures: real reports, unpacked once; small built runs."""

from __future__ import annotations

import lzma
import shutil
from pathlib import Path

import pytest

from tests.build.trace import steady_rank

REAL = Path(__file__).with_name("real")
SAMPLES = Path(__file__).parent.parent / "sample_reports"


def pytest_addoption(parser):
    parser.addoption("--update-golden", action="store_true", help="rewrite the expected outputs")
    parser.addoption("--kernels", type=int, default=1_000_000, help="bench: kernels per report")
    parser.addoption("--ranks", type=int, default=8, help="bench: reports")


@pytest.fixture(scope="session")
def real(tmp_path_factory):
    """Return the folder of real reports (see tests/real/PROVENANCE.md), unpacked."""
    folder = tmp_path_factory.mktemp("real")
    for packed in sorted(REAL.glob("*.xz")):
        with lzma.open(packed) as source, (folder / packed.stem).open("wb") as target:
            shutil.copyfileobj(source, target)
    return folder


@pytest.fixture
def steady(tmp_path):
    """Return the folder of a built run: two ranks, four equal steps."""
    for rank in range(2):
        steady_rank(rank).write(tmp_path / f"steady_{rank}.sqlite")
    return tmp_path
